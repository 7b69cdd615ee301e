//! Errors of the data path: send, receipt, receive, ack, grant, forward.

use std::fmt;
use std::path::PathBuf;

/// Why an entry was not handed to the shard. It was not stored and never will be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// The entry is larger than the engine takes.
    #[error(
        "sending {bytes} bytes to {topic:?} failed: an entry takes at most {max}; send less at once, or raise Builder::{option}"
    )]
    TooLarge {
        /// The topic.
        topic: String,
        /// Bytes of the framed entry; of a batch, up to the message that was too much.
        bytes: usize,
        /// Most that is taken.
        max: usize,
        /// The option of [`crate::Builder`] that says so.
        option: &'static str,
    },
    /// The key is longer than [`crate::KEY_BYTES_MAX`].
    #[error(
        "sending to {topic:?} failed: a key of {bytes} bytes is too long, at most {max}; shorten it or put it in the payload"
    )]
    KeyTooLong {
        /// The topic.
        topic: String,
        /// Bytes of the key.
        bytes: usize,
        /// Most that is taken.
        max: usize,
    },
    /// A batch of no messages, or of more than [`crate::MESSAGES_PER_ENTRY_MAX`].
    #[error(
        "sending a batch of {messages} messages to {topic:?} failed: a batch has 1 to {max}; split it"
    )]
    BatchSize {
        /// The topic.
        topic: String,
        /// Messages in the batch; beyond the most that is taken they are not counted further.
        messages: u32,
        /// Most that is taken.
        max: u32,
    },
    /// The disk is full.
    #[error(
        "sending to {topic:?} failed: the disk under {} is full; ack or delete backlog, or make space",
        dir.display()
    )]
    DiskFull {
        /// The topic.
        topic: String,
        /// The data directory.
        dir: PathBuf,
    },
    /// The log can make no new segment file, though not for want of space.
    #[error(
        "sending to {topic:?} failed: no segment file can be made under the data directory, and not for want of space; the notes of the engine's statistics say why"
    )]
    NoSegment {
        /// The topic.
        topic: String,
    },
    /// A write or sync failed; the log takes nothing more.
    #[error(
        "sending to {topic:?} failed: the log of its shard is poisoned ({error}); open the engine again"
    )]
    Poisoned {
        /// The topic.
        topic: String,
        /// The first failure.
        error: String,
    },
    /// The producer or the engine is closed.
    #[error(
        "sending to {topic:?} failed: the producer is closed, by close() or with its engine; open a new one"
    )]
    Closed {
        /// The topic.
        topic: String,
    },
    /// The topic was terminated.
    #[error(
        "sending to {topic:?} failed: the topic was terminated and takes nothing more; use another topic"
    )]
    Terminated {
        /// The topic.
        topic: String,
    },
    /// Another producer has taken the topic for itself.
    #[error(
        "sending to {topic:?} failed: another producer has taken the topic for itself; open a new producer if this one is to go on"
    )]
    ProducerFenced {
        /// The topic.
        topic: String,
    },
    /// The ring is full, and this thread runs the shard that would empty it.
    #[error(
        "sending to {topic:?} was not waited for: the queue is full and this thread runs the engine; call Driver::run_once, or try_send"
    )]
    WouldBlock {
        /// The topic.
        topic: String,
    },
    /// Another engine owns the topic. Not given by an embedded engine.
    #[error("sending to {topic:?} failed: this engine does not own the topic; look it up again")]
    NotOwner {
        /// The topic.
        topic: String,
    },
    /// A newer owner has fenced this one off. Not given by an embedded engine.
    #[error(
        "sending to {topic:?} failed: a newer owner has taken the topic; look it up again and send what has no receipt"
    )]
    Fenced {
        /// The topic.
        topic: String,
    },
    /// The topic is on the move. Not given by an embedded engine.
    #[error("sending to {topic:?} failed: the topic is moving to another owner; try again shortly")]
    OwnerChanging {
        /// The topic.
        topic: String,
    },
}

/// Why `try_send` did not send. Every variant gives the payload back.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrySendError<T> {
    /// The producer's queue is full: wait for [`crate::Producer::ready`] or try again later.
    Full(T),
    /// It cannot be sent.
    Failed {
        /// What was to be sent.
        payload: T,
        /// Why it was not.
        error: SendError,
    },
}

impl<T> TrySendError<T> {
    /// The payload that was not sent.
    pub fn into_payload(self) -> T {
        match self {
            TrySendError::Full(payload) | TrySendError::Failed { payload, .. } => payload,
        }
    }

    /// True if trying again later can succeed.
    pub fn is_full(&self) -> bool {
        matches!(self, TrySendError::Full(_))
    }
}

impl<T> fmt::Display for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrySendError::Full(_) => f.write_str(
                "sending without waiting failed: the producer's queue is full; wait for ready(), or send()",
            ),
            TrySendError::Failed { error, .. } => error.fmt(f),
        }
    }
}

// By hand, so that payloads need no `Debug`.
impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrySendError::Full(_) => f.write_str("Full(..)"),
            TrySendError::Failed { error, .. } => f.debug_tuple("Failed").field(error).finish(),
        }
    }
}

impl<T> std::error::Error for TrySendError<T> {}

/// Why an entry has no position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiptError {
    /// Not stored: the disk is full.
    #[error(
        "storing an entry failed: the disk under the data directory is full; ack or delete backlog, or make space, then send it again"
    )]
    DiskFull,
    /// Not stored: the log can make no new segment file, though not for want of space.
    #[error(
        "storing an entry failed: no segment file can be made under the data directory, and not for want of space; the notes of the engine's statistics say why; send it again then"
    )]
    NoSegment,
    /// Not stored: the log had been poisoned before.
    #[error(
        "storing an entry failed: the log of its shard is poisoned ({error}); open the engine again, then send it again"
    )]
    Poisoned {
        /// The first failure.
        error: String,
    },
    /// Not stored: larger than the engine takes.
    #[error(
        "storing an entry failed: it is larger than the engine takes, or has too many messages; send less at once"
    )]
    Invalid,
    /// Not stored: the producer or the engine was closed before the shard took the entry.
    #[error(
        "storing an entry failed: the producer or its engine was closed before the entry was taken; send it again on a new producer"
    )]
    Closed,
    /// Not stored: the topic was terminated before the shard took the entry.
    #[error(
        "storing an entry failed: its topic was terminated before the entry was taken; use another topic"
    )]
    Terminated,
    /// Not stored: another producer had taken the topic for itself before the shard took the entry.
    #[error(
        "storing an entry failed: another producer has taken its topic for itself; open a new producer if this one is to go on"
    )]
    Fenced,
    /// It was to be delivered later than the topic's policy allows.
    #[error(
        "storing an entry failed: it asks to be delivered later than delayedDeliveryMaxDelayInMillis of its topic's policy allows; deliver it sooner, or raise that"
    )]
    DelayTooLong,
    /// Not stored: the topic's backlog is as large as its policy allows.
    #[error(
        "storing an entry failed: the backlog of its topic is as large as backlogQuota of its policy allows; consume it, raise that, or let producers wait with policy producer_request_hold"
    )]
    BacklogQuota,
    /// A write or sync failed with this entry in it: it may or may not be stored.
    #[error(
        "whether an entry is stored is unknown: {error}; open the engine again and read the topic's end before sending it again"
    )]
    Unknown {
        /// The failure.
        error: String,
    },
    /// This thread runs the shard it would wait for. The receipt is still good.
    #[error(
        "a receipt was not waited for: this thread runs the engine; use Driver::run_until, or another thread"
    )]
    WouldBlock,
}

/// Why nothing was received.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecvError {
    /// The topic was terminated, and everything of the subscription is acked.
    #[error(
        "receiving from subscription {subscription:?} of {topic:?} ended: the topic was terminated and all of it is acked; close the consumer, or seek"
    )]
    EndOfTopic {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// The consumer or the engine is closed, and everything handed over before has been received.
    #[error(
        "receiving from subscription {subscription:?} of {topic:?} failed: the consumer is closed, by close() or with its engine; subscribe again"
    )]
    Closed {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// This thread runs the shard it would wait for.
    #[error(
        "receiving from subscription {subscription:?} of {topic:?} was not waited for: this thread runs the engine; use try_recv with Driver::run_once, or recv_async with Driver::run_until"
    )]
    WouldBlock {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
}

/// Why an ack was not taken, or not waited for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AckError {
    /// Cumulative acks need the order that only Exclusive has (rule D97).
    #[error(
        "acking cumulatively on subscription {subscription:?} of {topic:?} failed: it is Shared; ack each delivery, or subscribe as Exclusive"
    )]
    CumulativeOnShared {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// The delivery came from another consumer.
    #[error(
        "acking on subscription {subscription:?} of {topic:?} failed: the delivery came from another consumer; ack it there"
    )]
    Foreign {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// The engine is closed; the entries come again after it is opened.
    #[error(
        "flushing acks of subscription {subscription:?} of {topic:?} failed: the engine is closed; what was not flushed is delivered again after it is opened"
    )]
    EngineClosed {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// The log failed: acks given before may or may not be kept.
    #[error(
        "flushing acks of subscription {subscription:?} of {topic:?} failed: {why}; open the engine again, what was not kept is delivered again"
    )]
    NotDurable {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// What failed.
        why: String,
    },
    /// This thread runs the shard it would wait for.
    #[error(
        "flushing acks of subscription {subscription:?} of {topic:?} was not waited for: this thread runs the engine; use begin_flush_acks with Driver::run_until, or another thread"
    )]
    WouldBlock {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
}

/// Why permits were not granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// More would be outstanding than the consumer's window holds.
    #[error(
        "granting {asked} messages failed: {outstanding} are outstanding and the window is {window}; receive first, or subscribe with a larger window"
    )]
    Window {
        /// Messages asked for.
        asked: u32,
        /// Messages granted and not yet received.
        outstanding: i64,
        /// Most that may be outstanding.
        window: u32,
    },
}

/// Why a handler could not send something on. Nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// Too much is on its way to the topic's shard.
    #[error(
        "forwarding to {topic:?} failed: too much is on its way to its shard; nack, and the entry comes again"
    )]
    Full {
        /// The topic.
        topic: String,
    },
    /// The message is larger than the engine takes, or its key too long.
    #[error(
        "forwarding {bytes} bytes to {topic:?} failed: an entry takes at most {max}; forward less at once"
    )]
    TooLarge {
        /// The topic.
        topic: String,
        /// Bytes of the framed message.
        bytes: usize,
        /// Most that is taken.
        max: usize,
    },
    /// Refused for a reason that this version of the API has no name for.
    #[error("forwarding to {topic:?} failed: {why}")]
    Refused {
        /// The topic.
        topic: String,
        /// The shard's own words.
        why: String,
    },
}
