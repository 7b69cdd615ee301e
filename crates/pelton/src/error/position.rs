//! Errors of calls about positions and ends.

/// Why a subscription was not moved, or was not said where it is. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PositionError {
    /// No such topic or subscription.
    #[error(
        "the position of subscription {subscription:?} of {topic:?} was not reached: there is none of that name; subscribe first"
    )]
    NotFound {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// It has no position.
    #[error("the position of subscription {subscription:?} of {topic:?} was not reached: it {why}")]
    NotPossible {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// What it is instead.
        why: &'static str,
    },
    /// The log failed: the subscription is where it was, and what was handed over comes again.
    #[error(
        "seeking in subscription {subscription:?} of {topic:?} failed: the log of its shard is poisoned ({error}); open the engine again"
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
        "the position of subscription {subscription:?} of {topic:?} was not reached: the engine is closed; open it again"
    )]
    EngineClosed {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// This thread runs the shard it would wait for.
    #[error(
        "the position of subscription {subscription:?} of {topic:?} was not waited for: this thread runs the engine; use the call that begins it with Driver::run_until, or another thread"
    )]
    WouldBlock {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
    },
    /// Refused for a reason that this version of the API has no name for.
    #[error("the position of subscription {subscription:?} of {topic:?} was not reached: {why}")]
    Refused {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// The shard's own words.
        why: String,
    },
}

/// Why a topic was not terminated. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TerminateError {
    /// The topic was deleted.
    #[error("terminating {topic:?} failed: it was deleted; there is nothing left to do")]
    TopicGone {
        /// The topic.
        topic: String,
    },
    /// It has no end.
    #[error("terminating {topic:?} failed: it {why}")]
    NotPossible {
        /// The topic.
        topic: String,
        /// What it is instead.
        why: &'static str,
    },
    /// The metadata could not be written.
    #[error(
        "terminating {topic:?} failed: its metadata could not be written ({error}); make space in the data directory or repair it, and try again"
    )]
    Metadata {
        /// The topic.
        topic: String,
        /// The store's own words.
        error: String,
    },
    /// The engine is closed.
    #[error("terminating {topic:?} failed: the engine is closed; open it again")]
    EngineClosed {
        /// The topic.
        topic: String,
    },
    /// This thread runs the shard it would wait for.
    #[error(
        "terminating {topic:?} was not waited for: this thread runs the engine; use begin_terminate with Driver::run_until, or another thread"
    )]
    WouldBlock {
        /// The topic.
        topic: String,
    },
    /// Refused for a reason that this version of the API has no name for.
    #[error("terminating {topic:?} failed: {why}")]
    Refused {
        /// The topic.
        topic: String,
        /// The shard's own words.
        why: String,
    },
}
