//! Consumers: permits out, deliveries in.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::delivery::{Delivery, Source};
use crate::error::{AckError, GrantError, RecvError};
use crate::pending::{Pending, ask};
use crate::port::{
    AckPart, AckSet, Arrival, ConsumerId, ConsumerSignal, Data, Grant, Granter, Ports, Receiver,
    Request, RequestError, Run,
};
use crate::position::Asking;
use crate::wait::{self, Waiter};
use crate::{Position, acks};

mod builder;
mod each;

pub use builder::{SubscribeBuilder, WINDOW_MESSAGES_MAX};

/// Receives the entries of a subscription, as fast as it grants permits: a permit is one message.
///
/// By default it grants its window at the start and, in chunks of half a window, what it has received
/// since; so at most a window of messages waits for it, plus what the last entry was larger than the
/// permits left. Not `Clone`, and its methods take `&mut self`: share the work by subscribing several
/// consumers ([`crate::SubscriptionKind::Shared`]) or by sending deliveries to other threads.
///
/// Dropped or closed, it gives back what it received and did not ack.
pub struct Consumer {
    ring: Receiver<Arrival>,
    signal: Arc<ConsumerSignal>,
    granter: Granter,
    source: Arc<Source>,
    name: Box<str>,
    /// The run being received, with the next slot of it.
    current: Option<Run>,
    /// Messages of the entry that a closure is being shown. Left over only by one that panicked: that
    /// entry is nacked and not looked at again.
    shown: Option<u32>,
    window: u32,
    /// Messages per automatic grant; `None` if permits are granted by hand.
    chunk: Option<u32>,
    /// Messages received since the last automatic grant.
    owed: u32,
    /// Marks of seeks taken from the ring.
    resets: u32,
    waiter: Waiter,
}

/// What a subscription's builder gives to the consumer it makes.
pub(crate) struct Parts {
    pub(crate) ring: Receiver<Arrival>,
    pub(crate) signal: Arc<ConsumerSignal>,
    pub(crate) granter: Granter,
    pub(crate) name: Box<str>,
    pub(crate) window: u32,
    pub(crate) auto: bool,
    pub(crate) waiter: Waiter,
}

impl Consumer {
    pub(crate) fn new(parts: Parts, source: Source) -> Consumer {
        let Parts {
            ring,
            signal,
            granter,
            name,
            window,
            auto,
            waiter,
        } = parts;
        let chunk = auto.then_some((window / 2).max(1));
        let source = Arc::new(source);
        let current = None;
        Consumer {
            ring,
            signal,
            granter,
            source,
            name,
            current,
            shown: None,
            window,
            chunk,
            owed: 0,
            resets: 0,
            waiter,
        }
    }

    /// Its name, as shown in statistics.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.source.topic
    }

    /// Name of the subscription.
    #[must_use]
    pub fn subscription(&self) -> &str {
        &self.source.subscription
    }

    /// Blocks until an entry arrives. Spins briefly, then parks ([`crate::Builder::waiting`]).
    ///
    /// # Errors
    /// [`RecvError::Closed`] once the engine is closed and all that was handed over before has been
    /// received; `EndOfTopic` once the topic was terminated and all of it is acked; `WouldBlock` on a
    /// thread that runs the shard.
    pub fn recv(&mut self) -> Result<Delivery, RecvError> {
        Ok(self
            .recv_at_most(None)?
            .expect("without a time-out there is an end"))
    }

    /// An entry if there is one now. Never blocks, and makes no system call.
    ///
    /// # Errors
    /// [`RecvError::Closed`] and `EndOfTopic`, as [`Consumer::recv`].
    pub fn try_recv(&mut self) -> Result<Option<Delivery>, RecvError> {
        self.take_or_end(None).transpose()
    }

    /// As [`Consumer::recv`], but `None` once `timeout` has passed.
    ///
    /// # Errors
    /// As [`Consumer::recv`].
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<Delivery>, RecvError> {
        self.recv_at_most(Some(timeout))
    }

    /// Blocks until an entry arrives, then appends it and what else is there to `deliveries`, `max`
    /// at most; says how many (1 or more, but 0 if `max` is 0).
    ///
    /// # Errors
    /// As [`Consumer::recv`]; then nothing was appended.
    pub fn recv_many(
        &mut self,
        max: usize,
        deliveries: &mut Vec<Delivery>,
    ) -> Result<usize, RecvError> {
        if max == 0 {
            return Ok(0);
        }
        deliveries.push(self.recv()?);
        let mut count = 1;
        while count < max
            && let Some(delivery) = self.take()
        {
            deliveries.push(delivery);
            count += 1;
        }
        Ok(count)
    }

    /// A future of the next entry. Needs no runtime. Cancel safe: an entry is taken only by the poll
    /// that returns it.
    pub fn recv_async(&mut self) -> Recv<'_> {
        Recv { consumer: self }
    }

    /// As [`Consumer::recv_async`], for those who write their own futures. The last waker is woken.
    ///
    /// # Errors
    /// As [`Consumer::recv`].
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Result<Delivery, RecvError>> {
        match self.take_or_end(None) {
            Some(result) => Poll::Ready(result),
            None => self
                .take_or_end(Some(context.waker()))
                .map_or(Poll::Pending, Poll::Ready),
        }
    }

    /// Grants `n` more messages, on top of what is granted automatically. 0 changes nothing. One store
    /// and, if the shard waits for it, a wake-up; cancel safe, never blocks.
    ///
    /// Permits are spent by hand-over, redelivered entries included; acks and nacks give none back.
    /// An entry is handed over whole while one permit is left, and what it overshoots by is owed from
    /// the next grants (rules D8, D9).
    ///
    /// # Errors
    /// [`GrantError`] if more than the window would be outstanding; nothing was granted.
    pub fn grant(&mut self, n: u32) -> Result<(), GrantError> {
        let outstanding = self.granter.outstanding();
        if outstanding + i64::from(n) > i64::from(self.window) {
            return Err(GrantError::Window {
                asked: n,
                outstanding,
                window: self.window,
            });
        }
        self.give(n);
        Ok(())
    }

    /// Messages granted and not yet received; below zero while the last entry overshot. What the shard
    /// itself counts, hand-over instead of receipt, is in [`crate::Engine::stats`].
    #[must_use]
    pub fn permits(&self) -> i64 {
        self.granter.outstanding()
    }

    /// Seeks of its subscription that it has come to. With each of them its permits start again, and
    /// what it had received or was about to receive is gone: acks of it change nothing. It changes
    /// between two receives, so whoever keeps state beside the deliveries can tell which are of before.
    #[must_use]
    pub fn resets(&self) -> u32 {
        self.resets
    }

    /// Whether the topic was terminated ([`crate::Topic::terminate`]) and everything of the
    /// subscription is acked: nothing more comes, unless somebody seeks.
    pub fn reached_end(&mut self) -> bool {
        self.signal.at_end() && !self.has_entry()
    }

    /// Acks everything of the subscription up to and including this delivery, whoever received it.
    /// Those deliveries may then be dropped or acked, it makes no difference.
    ///
    /// # Errors
    /// [`AckError::CumulativeOnShared`]; [`AckError::Foreign`] if it is another consumer's delivery.
    pub fn ack_cumulative(&mut self, delivery: &Delivery) -> Result<(), AckError> {
        if self.may_ack_through(delivery)? {
            self.source.push(Data::AckCumulative {
                consumer: self.source.id,
                position: delivery.position(),
            });
        }
        Ok(())
    }

    /// Whether a cumulative ack of it has anything to act on: a seek may have undone it.
    fn may_ack_through(&self, delivery: &Delivery) -> Result<bool, AckError> {
        let (topic, subscription) = (self.topic().to_owned(), self.subscription().to_owned());
        if !self.source.kind.is_single() {
            return Err(AckError::CumulativeOnShared {
                topic,
                subscription,
            });
        }
        if !delivery.source().is_of(&self.source) {
            return Err(AckError::Foreign {
                topic,
                subscription,
            });
        }
        Ok(Arc::ptr_eq(delivery.source(), &self.source))
    }

    /// As [`Consumer::ack_cumulative`], but of this delivery only the messages up to and including
    /// the one at place `index` ([`crate::Messages::index`]).
    ///
    /// # Errors
    /// As [`Consumer::ack_cumulative`].
    pub fn ack_cumulative_to(&mut self, delivery: &Delivery, index: u32) -> Result<(), AckError> {
        let mut set = AckSet::full(delivery.batch_messages());
        set.ack_through(index);
        if set.left() == 0 {
            return self.ack_cumulative(delivery);
        }
        if self.may_ack_through(delivery)? {
            self.source.push(Data::AckPart(Box::new(AckPart {
                consumer: self.source.id,
                position: delivery.position(),
                still: set.words().into(),
                cumulative: true,
            })));
        }
        Ok(())
    }

    /// Everything received and not acked is delivered again. Counts rise; an Exclusive or Failover
    /// subscription starts again at its first unacked entry.
    pub fn redeliver_unacked(&mut self) {
        let consumer = self.source.id;
        self.source.push(Data::NackAll { consumer });
    }

    /// Whether this is the active consumer of a Failover subscription: the one that gets entries.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.signal.is_active()
    }

    /// Acks an entry by position, for deliveries that were kept ([`Delivery::keep`]). A position that
    /// is acked already, or that does not exist, changes nothing.
    pub fn ack_position(&mut self, position: Position) {
        self.source.push(Data::Ack {
            consumer: self.source.id,
            position,
        });
    }

    /// Blocks until every ack given before, on this thread or ordered before this call, is as durable
    /// as the topic.
    ///
    /// # Errors
    /// [`AckError`]: then some may be lost, and their entries come again.
    pub fn flush_acks(&mut self) -> Result<(), AckError> {
        let would_block = AckError::WouldBlock {
            topic: self.topic().to_owned(),
            subscription: self.subscription().to_owned(),
        };
        self.begin_flush_acks().wait().unwrap_or(Err(would_block))
    }

    /// As [`Consumer::flush_acks`], to be waited for, awaited or driven.
    pub fn begin_flush_acks(&mut self) -> Pending<Result<(), AckError>> {
        acks::push_deferred();
        let source = Arc::clone(&self.source);
        let request = Request::FlushAcks {
            consumer: self.source.id,
        };
        let asked = (source.engine_id, self.waiter.idle());
        ask(
            asked,
            &self.source.handle,
            request,
            Ports::None,
            move |answer| {
                let topic = source.topic.clone().into_string();
                let subscription = source.subscription.clone().into_string();
                match answer {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(RequestError::Poisoned { error })) => Err(AckError::NotDurable {
                        topic,
                        subscription,
                        why: error,
                    }),
                    Ok(Err(error)) => Err(AckError::NotDurable {
                        topic,
                        subscription,
                        why: error.to_string(),
                    }),
                    Err(_) => Err(AckError::EngineClosed {
                        topic,
                        subscription,
                    }),
                }
            },
        )
    }

    /// Flushes acks, then detaches. What it received and did not ack is delivered again, to others or
    /// to the next consumer; deliveries still held by it may no longer be acked.
    ///
    /// Dropping a consumer does the same without waiting for the acks.
    ///
    /// # Errors
    /// As [`Consumer::flush_acks`]; the consumer is detached all the same.
    pub fn close(mut self) -> Result<(), AckError> {
        self.flush_acks()
    }

    pub(crate) fn asking(&self) -> Asking<'_> {
        Asking {
            handle: &self.source.handle,
            asking: (self.source.engine_id, self.waiter.idle()),
            id: self.source.topic_id,
            topic: self.topic(),
            subscription: self.subscription(),
        }
    }

    fn recv_at_most(&mut self, timeout: Option<Duration>) -> Result<Option<Delivery>, RecvError> {
        if let Some(delivery) = self.take() {
            return Ok(Some(delivery));
        }
        if self.wait_for_entry(timeout)? {
            Ok(self.take())
        } else {
            Ok(None)
        }
    }

    /// True once there is an entry to take, false when the time is over.
    fn wait_for_entry(&mut self, timeout: Option<Duration>) -> Result<bool, RecvError> {
        self.skip_shown();
        if self.has_entry() {
            return Ok(true);
        }
        acks::push_deferred();
        if !wait::may_block(self.source.engine_id) {
            return Err(self.end().unwrap_or_else(|| self.would_block()));
        }
        let mut waiter = self.waiter.clone();
        let arrived = waiter.wait(timeout, |waker| {
            if let Some(waker) = waker {
                self.signal.wait_for_delivery(waker);
            }
            // The end is looked at first: what was pushed before it is seen after it.
            let end = self.end();
            if self.has_entry() {
                return Some(Ok(true));
            }
            end.map(Err)
        });
        self.waiter = waiter;
        arrived.unwrap_or(Ok(false))
    }

    /// An entry, the end, or nothing; with a waker, that is woken for the next of either.
    fn take_or_end(&mut self, waker: Option<&Waker>) -> Option<Result<Delivery, RecvError>> {
        if let Some(waker) = waker {
            self.signal.wait_for_delivery(waker);
        }
        if let Some(delivery) = self.take() {
            return Some(Ok(delivery));
        }
        // The end is looked at first: what was pushed before it is seen after it.
        let end = self.end();
        match (self.take(), end) {
            (Some(delivery), _) => Some(Ok(delivery)),
            (None, Some(end)) => Some(Err(end)),
            (None, None) => {
                acks::push_deferred();
                None
            }
        }
    }

    /// Why nothing comes behind what is in the ring.
    fn end(&self) -> Option<RecvError> {
        if self.signal.closed().is_some() || self.ring.is_closed() {
            return Some(self.closed());
        }
        self.signal.at_end().then(|| self.end_of_topic())
    }

    pub(crate) fn has_entry(&mut self) -> bool {
        self.next_slot().is_some()
    }

    fn take(&mut self) -> Option<Delivery> {
        let (run, slot) = self.next_slot()?;
        let (block, redeliveries) = (Arc::clone(&run.block), run.redeliveries);
        let batch_messages = block.meta(slot).messages;
        // A partly acked entry is a run of its own.
        let part = run
            .still
            .as_deref()
            .map(|still| AckSet::of(batch_messages, still));
        let messages = part.as_ref().map_or(batch_messages, AckSet::left);
        let delivery = Delivery::new(block, slot, redeliveries, part, Arc::clone(&self.source));
        self.advance(messages);
        Some(delivery)
    }

    fn next_slot(&mut self) -> Option<(&Run, u32)> {
        self.skip_shown();
        if self.signal.resets() != self.resets {
            self.come_to_reset();
        }
        while self.current.is_none() {
            match self.ring.pop()? {
                Arrival::Run(run) => self.current = Some(run),
                Arrival::Reset { becomes, granter } => self.begin_again(becomes, granter),
            }
        }
        self.current.as_ref().map(|run| (run, run.first_slot))
    }

    /// Drops what came before the marks that are on their way.
    #[cold]
    fn come_to_reset(&mut self) {
        self.current = None;
        while self.signal.resets() != self.resets {
            match self.ring.pop() {
                Some(Arrival::Run(_)) => {}
                Some(Arrival::Reset { becomes, granter }) => self.begin_again(becomes, granter),
                None => return, // the mark follows
            }
        }
    }

    /// A seek has ended the attachment; the new one is granted its window.
    #[cold]
    fn begin_again(&mut self, becomes: ConsumerId, granter: Granter) {
        self.source = Arc::new(self.source.after_seek(becomes));
        self.granter = granter;
        self.resets = self.resets.wrapping_add(1);
        self.owed = 0;
        if self.chunk.is_some() {
            self.give(self.window);
        }
    }

    /// Behind the entry at which a closure panicked.
    fn skip_shown(&mut self) {
        if let Some(messages) = self.shown.take() {
            self.advance(messages);
        }
    }

    /// Behind the slot of `next_slot`, which held so many messages.
    fn advance(&mut self, messages: u32) {
        if let Some(run) = &mut self.current {
            run.first_slot += 1;
            run.count -= 1;
            if run.count == 0 {
                self.current = None;
            }
        }
        self.granter.received(messages);
        let Some(chunk) = self.chunk else { return };
        self.owed += messages;
        if self.owed >= chunk {
            let owed = std::mem::take(&mut self.owed);
            self.give(owed);
        }
    }

    fn give(&mut self, n: u32) {
        if self.granter.grant(n) == Grant::Ring {
            self.source.handle.granted(self.source.id.slot);
        }
    }

    #[cold]
    fn closed(&self) -> RecvError {
        RecvError::Closed {
            topic: self.topic().to_owned(),
            subscription: self.subscription().to_owned(),
        }
    }

    #[cold]
    fn end_of_topic(&self) -> RecvError {
        RecvError::EndOfTopic {
            topic: self.topic().to_owned(),
            subscription: self.subscription().to_owned(),
        }
    }

    #[cold]
    fn would_block(&self) -> RecvError {
        RecvError::WouldBlock {
            topic: self.topic().to_owned(),
            subscription: self.subscription().to_owned(),
        }
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        if self.source.close() {
            acks::push_deferred();
            let request = Request::CloseConsumer {
                consumer: self.source.id,
            };
            acks::detach(&self.source.handle, request, self.source.engine_id);
        }
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("topic", &self.topic())
            .field("subscription", &self.subscription())
            .field("name", &self.name)
            .field("permits", &self.permits())
            .finish_non_exhaustive()
    }
}

/// See [`Consumer::recv_async`].
#[derive(Debug)]
#[must_use = "a future does nothing until it is polled"]
pub struct Recv<'a> {
    consumer: &'a mut Consumer,
}

impl Future for Recv<'_> {
    type Output = Result<Delivery, RecvError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.consumer.poll_recv(context)
    }
}

/// The stream of deliveries; it ends when the consumer's engine is closed, or at the end of a
/// terminated topic. Cancel safe.
#[cfg(feature = "stream")]
impl futures_core::Stream for Consumer {
    type Item = Delivery;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Delivery>> {
        self.poll_recv(context).map(Result::ok)
    }
}
