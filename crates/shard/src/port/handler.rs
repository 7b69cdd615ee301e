//! Consumers that run on the shard's own thread: what they are given and what they can ask.

use std::cell::RefCell;
use std::fmt;

use pelton_broker::storage::{Block, EntryMeta, Position};
use pelton_broker::{ProducerId, Run};

use super::user_code::contained;
use crate::mesh::Outbox;

/// A consumer called at hand-over, on the shard's thread. It must not block: the whole shard waits.
/// One that panics is detached; what it held goes to other consumers. A panic in the drop of what it
/// has captured ends there.
pub struct Handler(Option<Box<HandlerFn>>);

type HandlerFn = dyn FnMut(&HandlerDelivery<'_>) -> Verdict + Send;

impl Handler {
    /// Called for each entry.
    pub fn new(handle: impl FnMut(&HandlerDelivery<'_>) -> Verdict + Send + 'static) -> Handler {
        Handler(Some(Box::new(handle)))
    }

    /// `None` if it panicked, after which it is never to be called again.
    pub(crate) fn call(&mut self, delivery: &HandlerDelivery<'_>) -> Option<Verdict> {
        let handle = self.0.as_mut()?;
        contained(|| handle(delivery))
    }
}

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handler").finish_non_exhaustive()
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        contained(|| self.0 = None);
    }
}

/// What becomes of the entry a handler was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Done. If the handler forwarded something, the entry is acked once all of that is stored, and
    /// delivered again if any of it was refused.
    Ack,
    /// Deliver it again.
    Nack,
    /// It cannot be handled: it goes to the dead-letter topic of the topic's policy or, without one,
    /// is dropped and counted. What the handler forwarded is not sent.
    Reject,
}

/// A topic to forward to, wherever its owner is. Opened by an `OpenProducer` request with
/// [`super::Ports::Forward`] at the shard that owns the topic; ends with `CloseProducer`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardTo {
    /// The shard that owns the topic.
    pub shard: u32,
    /// The attachment there.
    pub producer: ProducerId,
}

/// Why an entry was not forwarded. Nothing was sent; [`Verdict::Nack`] tries again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// Too much is already on its way to that shard.
    #[error("the mesh to shard {0} is full: nack, and the entry comes again")]
    Full(u32),
    /// There is no such shard.
    #[error("there is no shard {0}")]
    NoShard(u32),
}

/// One entry as a handler sees it.
#[derive(Debug)]
pub struct HandlerDelivery<'a> {
    block: &'a Block,
    slot: u32,
    redeliveries: u32,
    still: Option<&'a [u64]>,
    outbox: RefCell<&'a mut Outbox>,
}

impl<'a> HandlerDelivery<'a> {
    pub(crate) fn new(run: &'a Run, slot: u32, outbox: &'a mut Outbox) -> HandlerDelivery<'a> {
        HandlerDelivery {
            block: &run.block,
            slot,
            redeliveries: run.redeliveries,
            still: run.still.as_deref(),
            outbox: RefCell::new(outbox),
        }
    }

    /// The framed messages of the entry.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.block.body(self.slot)
    }

    /// Properties of the entry as a whole; mostly none.
    #[must_use]
    pub fn properties(&self) -> &[u8] {
        self.block.properties(self.slot)
    }

    /// Counts, times and numbers of the entry.
    #[must_use]
    pub fn meta(&self) -> &EntryMeta {
        self.block.meta(self.slot)
    }

    /// Where it is stored.
    #[must_use]
    pub fn position(&self) -> Position {
        self.meta().position
    }

    /// How often it was asked to be delivered again.
    #[must_use]
    pub fn redelivery_count(&self) -> u32 {
        self.redeliveries
    }

    /// Of a partly acked entry: the messages that are not acked, a bit each.
    #[must_use]
    pub fn still(&self) -> Option<&[u64]> {
        self.still
    }

    /// Sends an entry (framed messages) on to another topic, over the mesh if another shard owns it.
    ///
    /// # Errors
    /// [`ForwardError`]: nothing was sent.
    pub fn forward(
        &self,
        to: &ForwardTo,
        body: &[u8],
        messages: u32,
        key_hash: u32,
    ) -> Result<(), ForwardError> {
        self.outbox
            .borrow_mut()
            .forward(to, body, messages, key_hash)
    }
}
