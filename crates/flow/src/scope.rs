//! One scope of limits: its two buckets, and whose turn it is at them.

use std::collections::VecDeque;

use crate::rate::Limits;
use crate::token_bucket::TokenBucket;

/// Part of the capacity that one pass may take while others want some too (rule D45).
const STEPS_PER_CAPACITY: u64 = 256;

/// The scopes of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopeKind {
    /// The engine; `broker` in the names of statistics.
    Broker,
    /// All subscriptions of a topic.
    Topic,
    /// One subscription.
    Subscription,
}

impl ScopeKind {
    /// All, in the order of the arrays in [`crate::ThrottleCounts`].
    pub const ALL: [Self; 3] = [Self::Broker, Self::Topic, Self::Subscription];
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Messages.
    Messages,
    /// Stored bytes.
    Bytes,
}

impl Unit {
    /// Both, in the order of the arrays in [`crate::ThrottleCounts`].
    pub const ALL: [Self; 2] = [Self::Messages, Self::Bytes];
}

/// A dispatcher to be woken at an instant: at once if that is not later than now, and only when
/// something is settled, leased or changed if it is `u64::MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wake {
    /// The id it gave to [`crate::Limiter`].
    pub dispatcher: u32,
    /// On the clock of the bucket, in nanoseconds.
    pub at_ns: u64,
}

/// The limits of the engine on one shard, of a topic or of a subscription. Lives where its owner
/// lives and moves with it, as levels: a move grants nothing (rule D50).
#[derive(Clone, Debug, Default)]
pub struct Scope {
    pub(crate) messages: TokenBucket,
    pub(crate) bytes: TokenBucket,
    /// Dispatchers that this scope refused, longest wait first. Only the first is woken, so a
    /// token wakes one dispatcher and not all of them.
    waiting: VecDeque<u32>,
    /// Dispatchers that want a pass or wait.
    pub(crate) claimants: u32,
}

impl Scope {
    /// Changes the limits. Wakes nobody by itself: [`Scope::wake`] says who is to be woken then.
    pub fn set(&mut self, now_ns: u64, limits: Limits) {
        self.messages.set(now_ns, limits.messages);
        self.bytes.set(now_ns, limits.bytes);
    }

    /// Whether there is a limit.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.messages.is_on() || self.bytes.is_on()
    }

    /// One of the two buckets.
    #[must_use]
    pub fn bucket(&self, unit: Unit) -> &TokenBucket {
        match unit {
            Unit::Messages => &self.messages,
            Unit::Bytes => &self.bytes,
        }
    }

    /// The same, for the shard's side of a lease ([`crate::Lessee`]).
    pub fn bucket_mut(&mut self, unit: Unit) -> &mut TokenBucket {
        match unit {
            Unit::Messages => &mut self.messages,
            Unit::Bytes => &mut self.bytes,
        }
    }

    /// Who waits longest here, and the instant at which both buckets have a whole token. To be
    /// asked after every change of this scope: a pass, a settlement, a lease, new limits.
    #[must_use]
    pub fn wake(&self) -> Option<Wake> {
        let dispatcher = *self.waiting.front()?;
        let at_ns = self.messages.ready_at_ns(1).max(self.bytes.ready_at_ns(1));
        Some(Wake { dispatcher, at_ns })
    }

    /// Dispatchers that want tokens of this scope, the waiting ones included.
    #[must_use]
    pub fn claimants(&self) -> u32 {
        self.claimants
    }

    pub(crate) fn refill(&mut self, now_ns: u64) {
        self.messages.refill(now_ns);
        self.bytes.refill(now_ns);
    }

    pub(crate) fn admits(&self) -> bool {
        self.messages.admits() && self.bytes.admits()
    }

    pub(crate) fn is_first(&self, dispatcher: u32) -> bool {
        self.waiting.front() == Some(&dispatcher)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(crate) fn wait_first(&mut self, dispatcher: u32) {
        self.waiting.push_front(dispatcher);
    }

    pub(crate) fn wait_last(&mut self, dispatcher: u32) {
        self.waiting.push_back(dispatcher);
    }

    pub(crate) fn leave(&mut self, dispatcher: u32) {
        if self.is_first(dispatcher) {
            self.waiting.pop_front();
        } else {
            self.waiting.retain(|&other| other != dispatcher);
        }
    }

    /// Messages and bytes that one pass may take while others want some too.
    pub(crate) fn step(&self) -> (u64, u64) {
        let step = |bucket: &TokenBucket| (bucket.capacity() / STEPS_PER_CAPACITY).max(1);
        (step(&self.messages), step(&self.bytes))
    }
}
