//! Errors of control calls: topics, producers, subscriptions, statistics.

use crate::{Durability, SubscriptionKind};

/// Why a topic was not opened. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TopicError {
    /// The name is not valid.
    #[error("opening topic {name:?} failed: its name {why}")]
    InvalidName {
        /// As given, cut to 64 characters.
        name: String,
        /// What is wrong and what would be right.
        why: &'static str,
    },
    /// The topic exists with another durability.
    #[error(
        "opening topic {name:?} failed: it was made with durability {existing:?}, and {asked:?} was asked for or is the default; open it with durability(Durability::{existing:?}), or delete it first"
    )]
    DurabilityMismatch {
        /// The topic.
        name: String,
        /// What it was made with.
        existing: Durability,
        /// What was asked.
        asked: Durability,
    },
    /// A durable topic was asked of an engine in memory.
    #[error(
        "opening topic {name:?} with durability {asked:?} failed: this engine is in memory and keeps nothing; use Engine::builder(dir), or Durability::Memory"
    )]
    NoDirectory {
        /// The topic.
        name: String,
        /// What was asked.
        asked: Durability,
    },
    /// The metadata could not be written.
    #[error(
        "opening topic {name:?} failed: its metadata could not be written ({error}); make space in the data directory or repair it, and try again"
    )]
    Metadata {
        /// The topic.
        name: String,
        /// The store's own words.
        error: String,
    },
    /// The shard's log takes nothing more.
    #[error(
        "opening topic {name:?} failed: the log of its shard is poisoned ({error}); open the engine again"
    )]
    Poisoned {
        /// The topic.
        name: String,
        /// The first failure.
        error: String,
    },
    /// The engine is closed.
    #[error("opening topic {name:?} failed: the engine is closed; open it again")]
    EngineClosed {
        /// The topic.
        name: String,
    },
    /// This thread runs the shard it would wait for.
    #[error(
        "opening topic {name:?} was not waited for: this thread runs the engine; use begin() with Driver::run_until, or another thread"
    )]
    WouldBlock {
        /// The topic.
        name: String,
    },
    /// Refused for a reason that this version of the API has no name for.
    #[error("opening topic {name:?} failed: {why}")]
    Refused {
        /// The topic.
        name: String,
        /// The shard's own words.
        why: String,
    },
}

/// Why a topic's policy was not changed. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The metadata could not be written.
    #[error(
        "changing the policy of topic {topic:?} failed: the metadata could not be written ({error}); make space in the data directory or repair it, and try again"
    )]
    Metadata {
        /// The topic.
        topic: String,
        /// The store's own words.
        error: String,
    },
    /// It cannot be gone by.
    #[error("changing the policy of topic {topic:?} failed: it is not valid: {why}")]
    Invalid {
        /// The topic.
        topic: String,
        /// Which part, and what would be valid.
        why: &'static str,
    },
    /// The topic was deleted.
    #[error("changing the policy of topic {topic:?} failed: it was deleted; open the topic again")]
    TopicGone {
        /// The topic.
        topic: String,
    },
    /// The engine is closed.
    #[error("changing the policy of topic {topic:?} failed: the engine is closed; open it again")]
    EngineClosed {
        /// The topic.
        topic: String,
    },
    /// This thread runs the shard it would wait for.
    #[error(
        "the new policy of topic {topic:?} was not waited for: this thread runs the engine; use begin_set_policy() with Driver::run_until, or another thread"
    )]
    WouldBlock {
        /// The topic.
        topic: String,
    },
    /// Refused for a reason that this version of the API has no name for.
    #[error("changing the policy of topic {topic:?} failed: {why}")]
    Refused {
        /// The topic.
        topic: String,
        /// The shard's own words.
        why: String,
    },
}

/// Why a topic or a subscription was not deleted. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeleteError {
    /// No such topic or subscription.
    #[error("deleting {what} {name:?} failed: there is none of that name; check the name")]
    NotFound {
        /// "topic" or "subscription".
        what: &'static str,
        /// As asked.
        name: String,
    },
    /// Something is still attached.
    #[error(
        "deleting {what} {name:?} failed: {users} producer(s) or consumer(s) use it; close them first"
    )]
    InUse {
        /// "topic" or "subscription".
        what: &'static str,
        /// As asked.
        name: String,
        /// How many are attached.
        users: usize,
    },
    /// The metadata could not be written.
    #[error(
        "deleting {what} {name:?} failed: the metadata could not be written ({error}); make space in the data directory or repair it, and try again"
    )]
    Metadata {
        /// "topic" or "subscription".
        what: &'static str,
        /// As asked.
        name: String,
        /// The store's own words.
        error: String,
    },
    /// The engine is closed.
    #[error("deleting {what} {name:?} failed: the engine is closed; open it again")]
    EngineClosed {
        /// "topic" or "subscription".
        what: &'static str,
        /// As asked.
        name: String,
    },
    /// This thread runs the shard it would wait for.
    #[error(
        "deleting {what} {name:?} was not waited for: this thread runs the engine; use the begin_ form with Driver::run_until, or another thread"
    )]
    WouldBlock {
        /// "topic" or "subscription".
        what: &'static str,
        /// As asked.
        name: String,
    },
    /// Refused for a reason that this version of the API has no name for.
    #[error("deleting {what} {name:?} failed: {why}")]
    Refused {
        /// "topic" or "subscription".
        what: &'static str,
        /// As asked.
        name: String,
        /// The shard's own words.
        why: String,
    },
}

/// Why a producer was not attached. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProducerError {
    /// The queue's size is out of range.
    #[error(
        "opening a producer on {topic:?} failed: a queue of {queue} entries is not possible; ask for 2 to {max}"
    )]
    InvalidQueue {
        /// The topic.
        topic: String,
        /// What was asked.
        queue: usize,
        /// The largest that can be had.
        max: usize,
    },
    /// The topic was deleted.
    #[error("opening a producer on {topic:?} failed: the topic was deleted; open the topic again")]
    TopicGone {
        /// The topic.
        topic: String,
    },
    /// The shard's log takes nothing more.
    #[error(
        "opening a producer on {topic:?} failed: the log of its shard is poisoned ({error}); open the engine again"
    )]
    Poisoned {
        /// The topic.
        topic: String,
        /// The first failure.
        error: String,
    },
    /// The topic was terminated.
    #[error(
        "opening a producer of {topic:?} failed: the topic was terminated and takes nothing more; use another topic"
    )]
    Terminated {
        /// The topic.
        topic: String,
    },
    /// Another producer has the topic for itself, or waits for that.
    #[error(
        "opening a producer of {topic:?} failed: another one has the topic for itself, or waits for that; close it, or open with access ExclusiveWithFencing"
    )]
    Busy {
        /// The topic.
        topic: String,
    },
    /// It was to have the topic for itself, and there are others, or one had it since.
    #[error(
        "opening a producer of {topic:?} for itself failed: there are others, or one had the topic since; close them, wait with access WaitForExclusive, or take it with ExclusiveWithFencing"
    )]
    Fenced {
        /// The topic.
        topic: String,
    },
    /// The topic's backlog is as large as its policy allows.
    #[error(
        "opening a producer on {topic:?} failed: the backlog of the topic is as large as backlogQuota of its policy allows; consume it, or raise that"
    )]
    BacklogQuota {
        /// The topic.
        topic: String,
    },
    /// The engine is closed.
    #[error("opening a producer on {topic:?} failed: the engine is closed; open it again")]
    EngineClosed {
        /// The topic.
        topic: String,
    },
    /// This thread runs the shard it would wait for.
    #[error(
        "opening a producer on {topic:?} was not waited for: this thread runs the engine; use begin() with Driver::run_until, or another thread"
    )]
    WouldBlock {
        /// The topic.
        topic: String,
    },
    /// Refused for a reason that this version of the API has no name for.
    #[error("opening a producer on {topic:?} failed: {why}")]
    Refused {
        /// The topic.
        topic: String,
        /// The shard's own words.
        why: String,
    },
}

/// Why a consumer was not attached. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The subscription's name is not valid.
    #[error("subscribing {subscription:?} to {topic:?} failed: the subscription's name {why}")]
    InvalidName {
        /// The topic.
        topic: String,
        /// As given, cut to 64 characters.
        subscription: String,
        /// What is wrong and what would be right.
        why: &'static str,
    },
    /// The window is out of range.
    #[error(
        "subscribing {subscription:?} to {topic:?} failed: a window of {window} messages is not possible; ask for 1 to {max}"
    )]
    InvalidWindow {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// What was asked, in messages.
        window: u32,
        /// The largest that can be had.
        max: u32,
    },
    /// Another consumer holds an Exclusive subscription, or others use another kind.
    #[error(
        "subscribing {subscription:?} to {topic:?} failed: {}",
        busy(*kind, *consumers)
    )]
    ConsumerBusy {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// The kind in use.
        kind: SubscriptionKind,
        /// Consumers attached.
        consumers: usize,
    },
    /// The key ranges asked for cannot be this consumer's own.
    #[error("subscribing {subscription:?} to {topic:?} failed: {why}; ask for free ranges")]
    KeyRanges {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// Which range, and what is in its way.
        why: String,
    },
    /// Its consumers share its keys in another way.
    #[error(
        "subscribing {subscription:?} to {topic:?} failed: its consumers share its keys in another way; subscribe as they did (with or without key ranges, in order or not), or close them first"
    )]
    KeySharedMode {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// The topic was deleted.
    #[error(
        "subscribing {subscription:?} to {topic:?} failed: the topic was deleted; open the topic again"
    )]
    TopicGone {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// The metadata could not be written.
    #[error(
        "subscribing {subscription:?} to {topic:?} failed: the metadata could not be written ({error}); make space in the data directory or repair it, and try again"
    )]
    Metadata {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// The store's own words.
        error: String,
    },
    /// The shard's log takes nothing more.
    #[error(
        "subscribing {subscription:?} to {topic:?} failed: the log of its shard is poisoned ({error}); open the engine again"
    )]
    Poisoned {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// The first failure.
        error: String,
    },
    /// The engine is closed.
    #[error(
        "subscribing {subscription:?} to {topic:?} failed: the engine is closed; open it again"
    )]
    EngineClosed {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// This thread runs the shard it would wait for.
    #[error(
        "subscribing {subscription:?} to {topic:?} was not waited for: this thread runs the engine; use begin() with Driver::run_until, or another thread"
    )]
    WouldBlock {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// Another engine owns the topic. Not given by an embedded engine.
    #[error(
        "subscribing {subscription:?} to {topic:?} failed: this engine does not own the topic; look it up again"
    )]
    NotOwner {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// A newer owner has fenced this one off. Not given by an embedded engine.
    #[error(
        "subscribing {subscription:?} to {topic:?} failed: a newer owner has taken the topic; look it up again"
    )]
    Fenced {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// The topic is on the move. Not given by an embedded engine.
    #[error(
        "subscribing {subscription:?} to {topic:?} failed: the topic is moving to another owner; try again shortly"
    )]
    OwnerChanging {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// Refused for a reason that this version of the API has no name for.
    #[error("subscribing {subscription:?} to {topic:?} failed: {why}")]
    Refused {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// The shard's own words.
        why: String,
    },
}

/// Why there are no statistics.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StatsError {
    /// The engine is closed.
    #[error("reading statistics of shard {shard} failed: the engine is closed; open it again")]
    EngineClosed {
        /// The first shard that did not answer.
        shard: usize,
    },
    /// This thread runs the shard it would wait for.
    #[error(
        "reading statistics was not waited for: this thread runs the engine; use begin_stats with Driver::run_until, or another thread"
    )]
    WouldBlock,
    /// The shard answered with something else.
    #[error("reading statistics of shard {shard} failed: {why}")]
    Refused {
        /// The shard.
        shard: usize,
        /// Its own words.
        why: String,
    },
}

/// Why a consumer cannot join those of another kind, or the one of an Exclusive subscription.
fn busy(kind: SubscriptionKind, consumers: usize) -> String {
    match kind {
        SubscriptionKind::Exclusive => {
            "it is Exclusive, the default, and has its consumer; close that one first, \
             or have both subscribe with kind(SubscriptionKind::Shared)"
                .to_owned()
        }
        _ => format!(
            "its {consumers} consumer(s) are {kind:?}; subscribe with kind(SubscriptionKind::{kind:?}), or \
             close them first"
        ),
    }
}
