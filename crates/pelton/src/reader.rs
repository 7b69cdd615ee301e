//! Readers: a topic read from a position on, without a subscription that is kept.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::consumer::{Consumer, SubscribeBuilder};
use crate::delivery::{Delivery, OnDrop};
use crate::error::{PositionError, RecvError, SubscribeError};
use crate::pending::Pending;
use crate::position::{LastPosition, would_block};
use crate::topic::Topic;
use crate::{InitialPosition, Position, SeekTo, SubscriptionKind};

/// How a reader is opened: [`Topic::reader`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct ReaderBuilder {
    subscribe: SubscribeBuilder,
}

impl Topic {
    /// A reader that starts there: an Exclusive consumer of a subscription of its own that is not kept
    /// ([`SubscribeBuilder::non_durable`]).
    pub fn reader(&self, start: InitialPosition) -> ReaderBuilder {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let name = format!("reader-{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let subscribe = self
            .subscribe(name)
            .kind(SubscriptionKind::Exclusive)
            .initial(start)
            .on_drop(OnDrop::Keep)
            .non_durable();
        ReaderBuilder { subscribe }
    }
}

impl ReaderBuilder {
    /// The reader's name, shown in statistics. Empty by default.
    pub fn name(mut self, name: impl Into<String>) -> ReaderBuilder {
        self.subscribe = self.subscribe.name(name);
        self
    }

    /// As [`SubscribeBuilder::window`].
    pub fn window(mut self, messages: u32) -> ReaderBuilder {
        self.subscribe = self.subscribe.window(messages);
        self
    }

    /// Attaches the reader, and blocks until the shard has answered.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing was changed.
    pub fn open(self) -> Result<Reader, SubscribeError> {
        self.subscribe.open().map(Reader::new)
    }

    /// As [`ReaderBuilder::open`], to be waited for, awaited or driven.
    pub fn begin(self) -> Pending<Result<Reader, SubscribeError>> {
        self.subscribe.begin_as(Reader::new)
    }
}

/// Reads the entries of a topic in order. What it has given out is done: there is nothing to ack.
///
/// It holds nothing back: an entry that no subscription keeps may be gone before it is read, and is
/// then passed over (`jumped_messages` of its statistics).
pub struct Reader {
    consumer: Consumer,
    /// The last entry given out, since the last seek of its own.
    read: Option<Position>,
}

impl Reader {
    fn new(consumer: Consumer) -> Reader {
        Reader {
            consumer,
            read: None,
        }
    }

    /// Name of the topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        self.consumer.topic()
    }

    /// Name of its subscription, as statistics have it.
    #[must_use]
    pub fn subscription(&self) -> &str {
        self.consumer.subscription()
    }

    /// Blocks until there is an entry.
    ///
    /// # Errors
    /// As [`Consumer::recv`].
    pub fn read(&mut self) -> Result<Delivery, RecvError> {
        let delivery = self.consumer.recv()?;
        Ok(self.done_with(delivery))
    }

    /// An entry if there is one now. Never blocks.
    ///
    /// # Errors
    /// As [`Consumer::try_recv`].
    pub fn try_read(&mut self) -> Result<Option<Delivery>, RecvError> {
        let delivery = self.consumer.try_recv()?;
        Ok(delivery.map(|delivery| self.done_with(delivery)))
    }

    /// As [`Reader::read`], but `None` once `timeout` has passed.
    ///
    /// # Errors
    /// As [`Consumer::recv`].
    pub fn read_timeout(&mut self, timeout: Duration) -> Result<Option<Delivery>, RecvError> {
        let delivery = self.consumer.recv_timeout(timeout)?;
        Ok(delivery.map(|delivery| self.done_with(delivery)))
    }

    /// As [`Reader::read`], for futures. The last waker is woken.
    ///
    /// # Errors
    /// As [`Consumer::recv`].
    pub fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<Delivery, RecvError>> {
        let read = self.consumer.poll_recv(context);
        read.map_ok(|delivery| self.done_with(delivery))
    }

    /// Whether there is an entry behind the last one that was read, whether it has arrived yet or not.
    /// Blocks until the shard has answered, if it must be asked.
    ///
    /// # Errors
    /// [`PositionError`].
    pub fn has_message_available(&mut self) -> Result<bool, PositionError> {
        if self.consumer.has_entry() {
            return Ok(true);
        }
        let names = (self.topic().to_owned(), self.subscription().to_owned());
        let asked = self.consumer.begin_last_position().wait();
        let LastPosition { last, mark_delete } =
            asked.unwrap_or_else(|_| Err(would_block(names.0, names.1)))?;
        // Its own acks may still be on their way.
        Ok(last > mark_delete.max(self.read))
    }

    /// Moves it: the next entry read is the first one there. See [`Topic::seek`].
    ///
    /// # Errors
    /// As [`Topic::seek`].
    pub fn seek(&mut self, to: impl Into<SeekTo>) -> Result<(), PositionError> {
        self.consumer.seek(to)?;
        self.read = None;
        Ok(())
    }

    /// As [`Consumer::reached_end`].
    pub fn reached_end(&mut self) -> bool {
        self.consumer.reached_end()
    }

    fn done_with(&mut self, delivery: Delivery) -> Delivery {
        let position = delivery.position();
        self.consumer.ack_position(position);
        self.read = Some(position);
        delivery
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader")
            .field("topic", &self.topic())
            .field("read", &self.read)
            .finish_non_exhaustive()
    }
}
