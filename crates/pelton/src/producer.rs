//! Producers: entries in, receipts out.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::{ReceiptError, SendError, TrySendError};
use crate::message::{KEY_BYTES_MAX, Message, frame, key_hash};
use crate::port::{
    MESSAGES_PER_ENTRY_MAX, Numbered, OpenedProducer, ProducerSignal, ProducerState, Publish,
    PublishExtras, Request, SlotSender,
};
use crate::receipt::{Pages, Receipt};
use crate::topic::{EntryLimit, TopicInner};
use crate::wait::{self, Waiter};
use crate::{Clock, acks};

mod builder;

pub(crate) use builder::refused;
pub use builder::{ProducerBuilder, QUEUE_ENTRIES_MAX};

/// Publishes entries to one topic, in order. One thread at a time uses it (`&mut self`); several
/// producers of a topic are independent of each other.
///
/// A send copies the message into a slot shared with the shard: no allocation, no system call unless
/// the shard sleeps. What is sent before it is dropped or closed is published.
pub struct Producer {
    ring: SlotSender<Publish>,
    pages: Pages,
    signal: Arc<ProducerSignal>,
    opened: OpenedProducer,
    topic: Arc<TopicInner>,
    name: Box<str>,
    clock: Clock,
    /// The sequence of the next entry.
    next: u64,
    /// The batch being framed; its memory is exchanged with that of a slot.
    batch: Vec<u8>,
    waiter: Waiter,
}

impl Producer {
    /// Name of the topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic.name
    }

    /// Its name, as given; may be empty.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How often the topic had been given to a producer for itself alone when this one was attached;
    /// `None`: never. Whoever attaches again gives it: [`ProducerBuilder::topic_epoch`].
    #[must_use]
    pub fn topic_epoch(&self) -> Option<u64> {
        self.opened.topic_epoch
    }

    /// The highest [`Message::sequence`] that the topic had of producers of this name when this one
    /// was attached: to go on behind it. `None` if there is none, or the topic's policy does not have
    /// sequences count.
    #[must_use]
    pub fn last_sequence(&self) -> Option<u64> {
        self.opened.last_sequence
    }

    /// Sends a message without a key, as an entry of its own. Blocks while the queue is full.
    ///
    /// # Errors
    /// [`SendError`]: it was not sent and never will be.
    pub fn send(&mut self, payload: impl AsRef<[u8]>) -> Result<Receipt, SendError> {
        self.send_message(Message::new(payload.as_ref()))
    }

    /// Sends a message, as an entry of its own. Blocks while the queue is full.
    ///
    /// # Errors
    /// [`SendError`]: it was not sent and never will be.
    pub fn send_message(&mut self, message: Message<'_>) -> Result<Receipt, SendError> {
        self.check(&message)?;
        self.wait_for_room()?;
        self.push_one(&message);
        self.tell();
        Ok(self.receipt())
    }

    /// Sends without blocking, or gives the payload back.
    ///
    /// # Errors
    /// [`TrySendError::Full`] while the queue is full, else why it cannot be sent; both hold `payload`.
    pub fn try_send<P: AsRef<[u8]>>(&mut self, payload: P) -> Result<Receipt, TrySendError<P>> {
        match self.try_send_message(Message::new(payload.as_ref())) {
            Ok(receipt) => Ok(receipt),
            Err(TrySendError::Full(_)) => Err(TrySendError::Full(payload)),
            Err(TrySendError::Failed { error, .. }) => Err(TrySendError::Failed { payload, error }),
        }
    }

    /// As [`Producer::try_send`] for a message, which is borrowed anyway.
    ///
    /// # Errors
    /// As [`Producer::try_send`].
    #[expect(clippy::result_large_err, reason = "it gives the message back")]
    pub fn try_send_message<'m>(
        &mut self,
        message: Message<'m>,
    ) -> Result<Receipt, TrySendError<Message<'m>>> {
        let checked = self.check(&message).and_then(|()| self.look_for_room());
        match checked {
            Ok(true) => {
                self.push_one(&message);
                self.tell();
                Ok(self.receipt())
            }
            Ok(false) => Err(TrySendError::Full(message)),
            Err(error) => Err(TrySendError::Failed {
                payload: message,
                error,
            }),
        }
    }

    /// Sends each message as an entry of its own while the queue has room, and tells the shard once
    /// for all of them. Gives how many it took and the receipt of the last, which comes after those
    /// before it. Takes a message from the iterator only when there is room for it; never blocks.
    ///
    /// # Errors
    /// [`SendError`] of the first message that cannot be sent; those before it were:
    /// [`Producer::sent`] counts them.
    pub fn try_send_each<'m, M: Into<Message<'m>>>(
        &mut self,
        messages: &mut impl Iterator<Item = M>,
    ) -> Result<(usize, Option<Receipt>), SendError> {
        /// Tells the shard whatever ends the loop: an iterator may panic.
        struct Pushed<'p>(&'p mut Producer, usize);
        impl Drop for Pushed<'_> {
            fn drop(&mut self) {
                if self.1 > 0 {
                    self.0.tell();
                }
            }
        }
        let mut room = self.look_for_room()?;
        let mut pushed = Pushed(self, 0);
        while room && let Some(message) = messages.next() {
            let message = message.into();
            pushed.0.check(&message)?;
            pushed.0.push_one(&message);
            pushed.1 += 1;
            room = pushed.0.ring.free() > 0;
        }
        let sent = pushed.1;
        drop(pushed);
        Ok((sent, (sent > 0).then(|| self.receipt())))
    }

    /// Sends messages as one entry: stored, delivered and acked as a whole. Blocks while the queue is
    /// full. The entry is stored under the key of its first message.
    ///
    /// # Errors
    /// [`SendError`]: none of them was sent and none will be.
    pub fn send_batch<'m, M: Into<Message<'m>>>(
        &mut self,
        messages: impl IntoIterator<Item = M>,
    ) -> Result<Receipt, SendError> {
        let mut batch = std::mem::take(&mut self.batch);
        batch.clear();
        let framed = self.frame_batch(&mut batch, messages.into_iter().map(Into::into));
        self.batch = batch;
        let framed = framed?;
        self.wait_for_room()?;
        self.push(&framed, |producer, slot| {
            std::mem::swap(&mut slot.body, producer)
        });
        self.tell();
        Ok(self.receipt())
    }

    /// Waits until an entry has room in the queue: a following `try_send` is not refused as full. A
    /// future that needs no runtime; cancel safe, it takes nothing.
    ///
    /// # Errors
    /// [`SendError::Closed`] and the like: there will be no room any more.
    pub async fn ready(&mut self) -> Result<(), SendError> {
        poll_fn(|context| self.poll_ready(context)).await
    }

    /// As [`Producer::ready`], for those who write their own futures. The last waker is woken.
    ///
    /// # Errors
    /// As [`Producer::ready`].
    pub fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.room(Some(context.waker()))
            .map_or(Poll::Pending, Poll::Ready)
    }

    /// Blocks until everything sent is as durable as the topic: no receipt is pending.
    ///
    /// # Errors
    /// The first [`ReceiptError`] of an entry sent since the last flush. The others may have failed or
    /// not: their own receipts tell. `WouldBlock` on a thread that runs the shard: use
    /// [`Producer::poll_flush`] with [`crate::Driver::run_until`].
    pub fn flush(&mut self) -> Result<(), ReceiptError> {
        if let Some(flushed) = self.flushed(None) {
            return flushed;
        }
        if !wait::may_block(self.topic.settings.engine_id) {
            return Err(ReceiptError::WouldBlock);
        }
        let mut waiter = self.waiter.clone();
        let flushed = waiter.wait(None, |waker| self.flushed(waker));
        self.waiter = waiter;
        flushed.expect("without a time-out there is an end")
    }

    /// As [`Producer::flush`], for futures. The last waker is woken. Cancel safe.
    ///
    /// # Errors
    /// As [`Producer::flush`], without `WouldBlock`.
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ReceiptError>> {
        self.flushed(Some(context.waker()))
            .map_or(Poll::Pending, Poll::Ready)
    }

    /// Entries sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.next
    }

    /// Flushes, then detaches. Dropping a producer detaches it without waiting: what it sent is
    /// published all the same.
    ///
    /// # Errors
    /// As [`Producer::flush`]; the producer is detached all the same.
    pub fn close(mut self) -> Result<(), ReceiptError> {
        self.flush()
    }

    fn check(&self, message: &Message<'_>) -> Result<(), SendError> {
        let EntryLimit { bytes: max, option } = self.topic.settings.entry_limit;
        let bytes = message.framed_bytes();
        let key_bytes = message.key.map_or(0, <[u8]>::len);
        if bytes <= max && key_bytes <= KEY_BYTES_MAX {
            return Ok(());
        }
        let topic = self.topic.name.to_string();
        if key_bytes > KEY_BYTES_MAX {
            return Err(SendError::KeyTooLong {
                topic,
                bytes: key_bytes,
                max: KEY_BYTES_MAX,
            });
        }
        Err(SendError::TooLarge {
            topic,
            bytes,
            max,
            option,
        })
    }

    fn frame_batch<'m>(
        &self,
        body: &mut Vec<u8>,
        messages: impl Iterator<Item = Message<'m>>,
    ) -> Result<Framed, SendError> {
        let topic = || self.topic.name.to_string();
        let EntryLimit { bytes: max, option } = self.topic.settings.entry_limit;
        let mut framed = Framed {
            messages: 0,
            key_hash: 0,
            intended_ns: 0,
            extras: PublishExtras::default(),
        };
        for message in messages {
            self.check(&message)?;
            framed.messages += 1;
            framed.add(&message, &self.clock);
            if framed.messages > MESSAGES_PER_ENTRY_MAX {
                let (messages, max) = (framed.messages, MESSAGES_PER_ENTRY_MAX);
                return Err(SendError::BatchSize {
                    topic: topic(),
                    messages,
                    max,
                });
            }
            let bytes = body.len() + message.framed_bytes();
            if bytes > max {
                return Err(SendError::TooLarge {
                    topic: topic(),
                    bytes,
                    max,
                    option,
                });
            }
            if framed.messages == 1 {
                framed.key_hash = message.key.map_or(0, key_hash);
            }
            let earliest = framed.intended_ns == 0 || message.intended_ns < framed.intended_ns;
            if message.intended_ns != 0 && earliest {
                framed.intended_ns = message.intended_ns;
            }
            frame(body, &message);
        }
        if framed.messages == 0 {
            let max = MESSAGES_PER_ENTRY_MAX;
            return Err(SendError::BatchSize {
                topic: topic(),
                messages: 0,
                max,
            });
        }
        Ok(framed)
    }

    fn wait_for_room(&mut self) -> Result<(), SendError> {
        if self.look_for_room()? {
            return Ok(());
        }
        if !wait::may_block(self.topic.settings.engine_id) {
            return Err(SendError::WouldBlock {
                topic: self.topic.name.to_string(),
            });
        }
        let mut waiter = self.waiter.clone();
        let room = waiter.wait(None, |waker| self.room(waker));
        self.waiter = waiter;
        room.expect("without a time-out there is an end")
    }

    fn room(&mut self, waker: Option<&Waker>) -> Option<Result<(), SendError>> {
        if let Some(waker) = waker {
            self.signal.wait_for_space(waker);
        }
        match self.look_for_room() {
            Ok(true) => Some(Ok(())),
            Ok(false) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Whether a push would succeed now.
    fn look_for_room(&mut self) -> Result<bool, SendError> {
        if self.signal.state() != ProducerState::Open || self.ring.is_closed() {
            return Err(self.shut());
        }
        Ok(self.ring.free() > 0)
    }

    #[cold]
    fn shut(&self) -> SendError {
        let topic = self.topic.name.to_string();
        match self.signal.state() {
            ProducerState::DiskFull => SendError::DiskFull {
                topic,
                dir: self.topic.settings.dir.to_path_buf(),
            },
            ProducerState::NoSegment => SendError::NoSegment { topic },
            ProducerState::Poisoned => SendError::Poisoned {
                topic,
                error: self
                    .signal
                    .reason()
                    .unwrap_or("a write or sync failed")
                    .to_owned(),
            },
            ProducerState::Terminated => SendError::Terminated { topic },
            ProducerState::Fenced => SendError::ProducerFenced { topic },
            _ => SendError::Closed { topic },
        }
    }

    fn push_one(&mut self, message: &Message<'_>) {
        let mut framed = Framed {
            messages: 1,
            key_hash: message.key.map_or(0, key_hash),
            intended_ns: message.intended_ns,
            extras: PublishExtras::default(),
        };
        framed.add(message, &self.clock);
        self.push(&framed, |_, slot| {
            slot.body.clear();
            frame(&mut slot.body, message);
        });
    }

    /// Publishes an entry for which there is room; `fill` writes its body.
    fn push(&mut self, framed: &Framed, fill: impl FnOnce(&mut Vec<u8>, &mut Publish)) {
        let sequence = self.next;
        let arrived_ns = if framed.intended_ns == 0 {
            self.clock.now_ns()
        } else {
            framed.intended_ns
        };
        let (page, first) = self.pages.page_of(sequence);
        let batch = &mut self.batch;
        let pushed = self.ring.push_with(|slot| {
            fill(batch, slot);
            slot.messages = framed.messages;
            slot.key_hash = framed.key_hash;
            slot.sequence = sequence;
            slot.arrived_ns = arrived_ns;
            slot.extras = framed.boxed_extras();
            slot.page = first.then(|| Arc::clone(page));
        });
        assert!(
            pushed.is_ok(),
            "only this handle pushes, and there was room"
        );
        self.next += 1;
    }

    /// The receipt of the entry pushed last.
    fn receipt(&self) -> Receipt {
        let settings = &self.topic.settings;
        self.pages
            .receipt(self.next - 1, settings.waiting, settings.engine_id)
    }

    /// Tells the shard that there is something: once per call, however much it was.
    fn tell(&self) {
        self.topic.handle.published(self.opened.id.slot);
    }

    fn flushed(&mut self, waker: Option<&Waker>) -> Option<Result<(), ReceiptError>> {
        if let Some(waker) = waker {
            self.signal.wait_for_progress(waker);
        }
        if !self.pages.answered(self.next) {
            return None;
        }
        Some(self.pages.take_failure(self.next).map_or(Ok(()), Err))
    }
}

/// What is known of an entry besides its body.
struct Framed {
    messages: u32,
    key_hash: u32,
    intended_ns: u64,
    extras: PublishExtras,
}

impl Framed {
    fn add(&mut self, message: &Message<'_>, clock: &Clock) {
        if !message.has_extras() {
            self.extras.deadline_ms = 0;
            return;
        }
        self.add_times(message, clock);
        if let Some(sequence) = message.sequence {
            let all = self.extras.numbered.get_or_insert(Numbered {
                first: sequence,
                last: sequence,
            });
            all.first = all.first.min(sequence);
            all.last = all.last.max(sequence);
        }
    }

    /// Of a batch the latest times count (rule D130): no message is delivered early, and none is
    /// dropped that another one of its entry would have been delivered with.
    fn add_times(&mut self, message: &Message<'_>, clock: &Clock) {
        let (deliver_at_ms, deadline_ms) = (
            message.deliver.unix_ms(clock),
            message.deadline.unix_ms(clock),
        );
        let times = &mut self.extras;
        times.deliver_at_ms = times.deliver_at_ms.max(deliver_at_ms);
        let none = deadline_ms == 0 || (self.messages > 1 && times.deadline_ms == 0);
        times.deadline_ms = if none {
            0
        } else {
            times.deadline_ms.max(deadline_ms)
        };
    }

    fn boxed_extras(&self) -> Option<Box<PublishExtras>> {
        (self.extras != PublishExtras::default()).then(|| Box::new(self.extras))
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let request = Request::CloseProducer {
            producer: self.opened.id,
        };
        acks::detach(&self.topic.handle, request, self.topic.settings.engine_id);
    }
}

impl fmt::Debug for Producer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Producer")
            .field("topic", &self.topic.name)
            .field("name", &self.name)
            .field("sent", &self.next)
            .finish_non_exhaustive()
    }
}
