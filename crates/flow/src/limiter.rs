//! Three scopes of limits around one dispatcher: what a pass may take, and what it took.
//!
//! The buckets belong to whoever they limit: the engine's to the shard, a topic's to the topic, a
//! subscription's to the subscription. A [`Limiter`] borrows the three for as long as a call takes.
//! A pass of a dispatcher does this, with no limits at the price of three flags:
//!
//! ```
//! # use pelton_flow::*;
//! # let (mut engine, mut topic, mut subscription) = Default::default();
//! # let (mut throttle, now_ns, id) = (Throttle::default(), 0, 7);
//! # let entries = [(Messages(10), Bytes(64)); 3];
//! # topic = Scope::default();
//! # Scope::set(&mut topic, 0, Limits { messages: Rate::per_second(20), bytes: None });
//! let mut limiter = Limiter {
//!     dispatcher: id,
//!     scopes: [&mut engine, &mut topic, &mut subscription],
//!     throttle: &mut throttle,
//! };
//! limiter.claim(); // with the bit `wanted` of the dispatcher, long before the pass
//!
//! let mut allowance = limiter.open(now_ns, Terms::default());
//! let mut budget = Budget::new(1000, Entries(100), Bytes(5 << 20)).with_tokens(&allowance);
//! let mut candidates = entries.iter().copied();
//! let mut refused = None;
//! while let Some((messages, bytes)) = candidates.clone().next() {
//!     match budget.admit(messages, bytes) {
//!         Ok(()) => allowance.spend(Entries(1), messages, bytes), // and plan or hand over the entry
//!         Err(Stop::Tokens | Stop::Step) => {
//!             // What would go by every other limit, from the index; only where it will be counted.
//!             let counts = allowance.counts();
//!             refused = Some(if counts { budget.withheld(candidates) } else { Withheld::default() });
//!             break;
//!         }
//!         Err(_) => break,
//!     }
//!     candidates.next();
//! }
//! let closed = limiter.close(now_ns, &allowance, refused);
//! if closed.again { /* the dispatcher is wanted again, at the back of the run queue */ }
//!
//! // Now, or when the reads are back; with zeros if nothing of it was sent.
//! limiter.settle(now_ns, closed.reservation, Entries(2), Messages(20), Bytes(128));
//! for wake in limiter.wakes() {
//!     // Arm the throttle timer of `wake.dispatcher`: it is wanted at `wake.at_ns`.
//!     assert_eq!((wake.dispatcher, wake.at_ns), (id, 50_000_000));
//! }
//! ```
//!
//! A dispatcher that ends, or whose plan waits for reads, calls [`Limiter::leave`]: it would not use
//! its turns. A changed policy calls [`Scope::set`], a lease
//! [`crate::Lessee::on_lease`]; then [`Scope::wake`] says who is wanted, and when.

use crate::scope::{Scope, ScopeKind, Unit, Wake};
use crate::throttle::{Buckets, Scopes, Throttle, Withheld};
use crate::{Bytes, Entries, Messages};

/// In this order a dispatcher waits: for its own limit first, so that nobody stands in a queue of
/// others while it could not go anyway.
const NEAREST_FIRST: [ScopeKind; 3] =
    [ScopeKind::Subscription, ScopeKind::Topic, ScopeKind::Broker];

/// A step, in messages and bytes, that ends no pass.
const NO_STEP: (u64, u64) = (u64::MAX, u64::MAX);

/// The limits around one dispatcher.
#[derive(Debug)]
pub struct Limiter<'a> {
    /// Names the dispatcher in queues and in [`Wake`]; unique on the shard.
    pub dispatcher: u32,
    /// In the order of [`ScopeKind::ALL`].
    pub scopes: [&'a mut Scope; 3],
    /// What belongs to this dispatcher.
    pub throttle: &'a mut Throttle,
}

/// How a subscription is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Not at all ([`crate::is_exempt`]).
    pub exempt: bool,
    /// One message token per entry (`dispatchThrottlingOnBatchMessageEnabled`, rule D49).
    pub per_entry: bool,
}

/// What one pass may still take, and what it took. The least over all scopes, in whole tokens; they
/// cannot change within a pass, so the sum may be reserved at its end.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    messages: i64,
    bytes: i64,
    /// None without other claimants.
    step: Option<Step>,
    per_entry: bool,
    /// Whether a refusal before anything is admitted would count as an event.
    first_counts: bool,
    buckets: Buckets,
    entries: Entries,
    spent_messages: u64,
    spent_bytes: u64,
}

/// Tokens by what is to be counted; an entry may go while all are above zero (rule D42).
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokensLeft {
    pub(crate) messages: i64,
    /// Where one token is charged per entry.
    pub(crate) entries: i64,
    pub(crate) bytes: i64,
}

/// What is left of the part of a bucket that one pass may take while others want some too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    messages: u64,
    bytes: u64,
    per_entry: bool,
    begun: bool,
}

/// Tokens held by a plan whose entries are not sent yet. Ends in [`Limiter::settle`]; one that is
/// dropped instead keeps its part of the buckets for ever.
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use = "settle it, with zeros if nothing was sent"]
pub struct Reservation {
    buckets: Buckets,
    per_entry: bool,
    messages: u64,
    bytes: u64,
}

/// The end of a pass.
#[derive(Debug, Default)]
#[must_use = "it holds a reservation"]
pub struct Closed {
    /// What the plan holds of the buckets.
    pub reservation: Reservation,
    /// The pass had its step and nobody waits: the dispatcher is wanted again.
    pub again: bool,
}

impl TokensLeft {
    pub(crate) const UNLIMITED: Self = Self {
        messages: i64::MAX,
        entries: i64::MAX,
        bytes: i64::MAX,
    };

    pub(crate) fn is_spent(&self) -> bool {
        self.messages <= 0 || self.entries <= 0 || self.bytes <= 0
    }
}

impl Step {
    /// Charges one entry if it is the first of the pass or within the step: at most the larger of
    /// one entry and the step goes (rule D45).
    #[inline]
    pub(crate) fn admit(&mut self, messages: Messages, bytes: Bytes) -> bool {
        let messages = if self.per_entry { 1 } else { messages.0 };
        let admits = !self.begun || (messages <= self.messages && bytes.0 <= self.bytes);
        if admits {
            self.spend(messages, bytes.0);
        }
        admits
    }

    #[inline]
    fn spend(&mut self, messages: u64, bytes: u64) {
        self.begun = true;
        self.messages = self.messages.saturating_sub(messages);
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    fn is_used_up(&self) -> bool {
        self.messages == 0 || self.bytes == 0
    }
}

impl Allowance {
    /// No limit at all.
    pub const UNLIMITED: Self = Self {
        messages: i64::MAX,
        bytes: i64::MAX,
        step: None,
        per_entry: false,
        first_counts: false,
        buckets: Buckets::NONE,
        entries: Entries(0),
        spent_messages: 0,
        spent_bytes: 0,
    };

    /// Charges entries that [`crate::Budget::admit`] admitted; `messages` is their P.
    pub fn spend(&mut self, entries: Entries, messages: Messages, bytes: Bytes) {
        let messages = if self.per_entry {
            entries.0
        } else {
            messages.0
        };
        self.messages = self.messages.saturating_sub_unsigned(messages);
        self.bytes = self.bytes.saturating_sub_unsigned(bytes.0);
        if let Some(step) = &mut self.step {
            step.spend(messages, bytes.0);
        }
        self.entries += entries;
        self.spent_messages += messages;
        self.spent_bytes += bytes.0;
    }

    /// Whether a refusal now would be counted. If not, what is withheld need not be found out.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.first_counts || self.entries.0 > 0
    }

    #[inline]
    pub(crate) fn left(&self) -> TokensLeft {
        let unlimited = TokensLeft::UNLIMITED;
        let bytes = self.bytes;
        if self.per_entry {
            TokensLeft {
                entries: self.messages,
                bytes,
                ..unlimited
            }
        } else {
            TokensLeft {
                messages: self.messages,
                bytes,
                ..unlimited
            }
        }
    }

    #[inline]
    pub(crate) fn step(&self) -> Option<Step> {
        self.step
    }
}

impl Limiter<'_> {
    /// Declares that this dispatcher wants tokens. From two claimants on a scope gives each pass
    /// one step only, so the first of many does not empty it (rule D45; apache/pulsar#25061).
    pub fn claim(&mut self) {
        for kind in ScopeKind::ALL {
            if self.scopes[kind as usize].is_on() && !self.throttle.claimed.contains(kind) {
                self.throttle.claimed.insert(kind);
                self.scopes[kind as usize].claimants += 1;
            }
        }
    }

    /// Begins a pass: refills every bucket and takes the least.
    #[must_use]
    pub fn open(&mut self, now_ns: u64, terms: Terms) -> Allowance {
        let mut allowance = Allowance {
            per_entry: terms.per_entry,
            ..Allowance::UNLIMITED
        };
        if terms.exempt {
            return allowance;
        }
        let mut step = NO_STEP;
        for kind in ScopeKind::ALL {
            let scope = &mut *self.scopes[kind as usize];
            if !scope.is_on() {
                continue;
            }
            scope.refill(now_ns);
            for unit in Unit::ALL {
                if scope.bucket(unit).is_on() {
                    allowance.buckets.insert(kind, unit);
                }
            }
            allowance.messages = allowance.messages.min(scope.messages.tokens());
            allowance.bytes = allowance.bytes.min(scope.bytes.tokens());
            if scope.claimants > u32::from(self.throttle.claimed.contains(kind)) {
                let (messages, bytes) = scope.step();
                step = (step.0.min(messages), step.1.min(bytes));
            }
            if !self.is_its_turn(kind) {
                allowance.messages = allowance.messages.min(0);
            }
        }
        if step != NO_STEP {
            let left = self.throttle.step_left.unwrap_or(NO_STEP);
            allowance.step = Some(Step {
                messages: step.0.min(left.0),
                bytes: step.1.min(left.1),
                per_entry: terms.per_entry,
                begun: false,
            });
        }
        if allowance.messages <= 0 || allowance.bytes <= 0 {
            allowance.first_counts = self.throttle.would_count(self.refusing(&allowance));
        }
        allowance
    }

    /// Ends a pass: reserves what was spent at every scope, counts, and takes the dispatcher's place
    /// in the queue of what refused it. `refused` is `Some` if the pass ended at an entry for which
    /// there was no token or no step.
    pub fn close(
        &mut self,
        now_ns: u64,
        allowance: &Allowance,
        refused: Option<Withheld>,
    ) -> Closed {
        if allowance.buckets.is_empty() && self.throttle.is_idle() {
            return Closed::default();
        }
        let reservation = self.reserve(allowance);
        let admitted = allowance.entries.0 > 0;
        let admitted_by = if admitted {
            allowance.buckets
        } else {
            Buckets::NONE
        };
        let refusing = if refused.is_some() {
            self.refusing(allowance)
        } else {
            Buckets::NONE
        };
        self.throttle
            .note(now_ns, admitted_by, refusing, refused.unwrap_or_default());
        if refused.is_none() {
            self.leave();
        }
        let again = refused.is_some() && self.take_place(allowance);
        Closed { reservation, again }
    }

    /// Ends a reservation with what was sent of it, in P: the rest goes back. What was sent although
    /// it was not reserved is debited.
    pub fn settle(
        &mut self,
        now_ns: u64,
        reservation: Reservation,
        entries: Entries,
        messages: Messages,
        bytes: Bytes,
    ) {
        let messages = if reservation.per_entry {
            entries.0
        } else {
            messages.0
        };
        for (kind, unit) in reservation.buckets.iter() {
            let (reserved, sent) = match unit {
                Unit::Messages => (reservation.messages, messages),
                Unit::Bytes => (reservation.bytes, bytes.0),
            };
            let bucket = self.scopes[kind as usize].bucket_mut(unit);
            bucket.settle(now_ns, reserved, sent);
        }
    }

    /// Who waits first at each of the three scopes, and until when. After every pass and settlement.
    pub fn wakes(&self) -> impl Iterator<Item = Wake> + '_ {
        self.scopes.iter().filter_map(|scope| scope.wake())
    }

    /// The dispatcher ends, moves to another shard or waits for reads: it leaves its queue and claims
    /// nothing. Its counters and the throttled time that lasts stay. [`Limiter::wakes`] afterwards.
    pub fn leave(&mut self) {
        self.leave_queue();
        self.throttle.cleared = Scopes::default();
        self.throttle.step_left = None;
        for kind in ScopeKind::ALL {
            if self.throttle.claimed.contains(kind) {
                self.throttle.claimed.remove(kind);
                self.scopes[kind as usize].claimants -= 1;
            }
        }
    }

    fn reserve(&mut self, allowance: &Allowance) -> Reservation {
        if allowance.entries.0 == 0 {
            return Reservation::default();
        }
        for (kind, unit) in allowance.buckets.iter() {
            let tokens = match unit {
                Unit::Messages => allowance.spent_messages,
                Unit::Bytes => allowance.spent_bytes,
            };
            self.scopes[kind as usize].bucket_mut(unit).reserve(tokens);
        }
        Reservation {
            buckets: allowance.buckets,
            per_entry: allowance.per_entry,
            messages: allowance.spent_messages,
            bytes: allowance.spent_bytes,
        }
    }

    /// Buckets with less than one token for this pass.
    fn refusing(&self, allowance: &Allowance) -> Buckets {
        let mut refusing = Buckets::NONE;
        for (kind, unit) in allowance.buckets.iter() {
            if !self.scopes[kind as usize].bucket(unit).admits() {
                refusing.insert(kind, unit);
            }
        }
        refusing
    }

    /// Others that wait go first, unless this dispatcher had its turn and could not use it.
    fn is_its_turn(&self, kind: ScopeKind) -> bool {
        let scope = &self.scopes[kind as usize];
        !scope.has_waiting()
            || scope.is_first(self.dispatcher)
            || self.throttle.cleared.contains(kind)
    }

    /// Moves the dispatcher to the queue of the scope it has to wait for, if any. True if it need
    /// not wait and was only stopped by its step.
    fn take_place(&mut self, allowance: &Allowance) -> bool {
        self.claim();
        let had_turn_at = self.throttle.queued.filter(|&kind| self.is_its_turn(kind));
        // A turn that ran out of tokens goes on with the next ones. Else those who come when the
        // tokens of a lease or an instant end would have less at every round.
        let tokens_left = self.refusing(allowance).is_empty();
        let used_up = allowance.step.is_some_and(|step| step.is_used_up());
        let turn_is_over = allowance.entries.0 > 0 && (tokens_left || used_up);
        if turn_is_over {
            self.leave_queue();
            self.throttle.cleared = Scopes::default();
            self.throttle.step_left = None;
        } else if let Some(step) = allowance.step.filter(|step| step.begun) {
            self.throttle.step_left = Some((step.messages, step.bytes));
        }
        let place = NEAREST_FIRST.into_iter().find(|&kind| {
            allowance.buckets.limits(kind)
                && (!self.scopes[kind as usize].admits() || !self.is_its_turn(kind))
        });
        if place != self.throttle.queued {
            self.leave_queue();
            if let Some(kind) = had_turn_at.filter(|_| !turn_is_over) {
                self.throttle.cleared.insert(kind);
            }
            if let Some(kind) = place {
                self.stand_in(kind);
            }
        }
        place.is_none()
    }

    fn stand_in(&mut self, kind: ScopeKind) {
        let scope = &mut *self.scopes[kind as usize];
        if self.throttle.cleared.contains(kind) {
            self.throttle.cleared.remove(kind);
            scope.wait_first(self.dispatcher);
        } else {
            scope.wait_last(self.dispatcher);
        }
        self.throttle.queued = Some(kind);
    }

    fn leave_queue(&mut self) {
        if let Some(kind) = self.throttle.queued.take() {
            self.scopes[kind as usize].leave(self.dispatcher);
        }
    }
}
