//! What limits did to one subscription: how often, how much, for how long.

use crate::scope::{ScopeKind, Unit};
use crate::{Bytes, Entries, Messages};

/// Where counters stop. They never wrap and fit a signed 64-bit field (rule D56).
const COUNT_MAX: u64 = i64::MAX.unsigned_abs();

/// The counters of one subscription. Arrays are `[scope][unit]` in the order of [`ScopeKind::ALL`]
/// and [`Unit::ALL`].
///
/// All only rise, have one writer, the shard, and saturate at 2^63 - 1. They live with the
/// subscription through changes of type, moves and unloads; they start at 0 with the engine or with
/// a new subscription and nothing else resets them (rules D53 to D56).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThrottleCounts {
    /// Passes that ended because a bucket had less than one token, once per bucket.
    pub events: [[u64; 2]; 3],
    /// Nanoseconds from such an event to the first pass that the bucket did not refuse.
    pub throttled_ns: [[u64; 2]; 3],
    /// Messages that a pass would have handed over had there been no limits.
    pub withheld_messages: u64,
    /// Their stored bytes.
    pub withheld_bytes: u64,
}

/// What a pass would have handed over had there been no rate limits: see [`crate::Budget::withheld`].
/// Nothing if another limit refuses the same entry, and then nothing is counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Withheld {
    pub(crate) entries: Entries,
    pub(crate) messages: Messages,
    pub(crate) bytes: Bytes,
}

/// What limits know of one dispatcher. Lives and moves with its subscription.
#[derive(Clone, Debug, Default)]
pub struct Throttle {
    counts: ThrottleCounts,
    /// Buckets that counted an event and have admitted nothing of this dispatcher since.
    counted: Buckets,
    /// Since when a bucket refuses.
    since_ns: [Option<u64>; 6],
    /// The scope in whose queue this dispatcher stands.
    pub(crate) queued: Option<ScopeKind>,
    /// Scopes where its turn came while another scope refused: it need not queue there again.
    pub(crate) cleared: Scopes,
    /// What is left of a step for which there were not enough tokens, in messages and bytes.
    pub(crate) step_left: Option<(u64, u64)>,
    /// Scopes that count it as a claimant.
    pub(crate) claimed: Scopes,
}

impl Throttle {
    /// The counters, with the time of refusals that still last.
    #[must_use]
    pub fn counts(&self, now_ns: u64) -> ThrottleCounts {
        let mut counts = self.counts;
        for (index, since_ns) in self.since_ns.iter().enumerate() {
            if let Some(since_ns) = since_ns {
                let spent_ns = now_ns.saturating_sub(*since_ns);
                add(&mut counts.throttled_ns[index / 2][index % 2], spent_ns);
            }
        }
        counts
    }

    /// The buckets that refuse this dispatcher at the moment and since when, for `explain()`.
    pub fn refusals(&self) -> impl Iterator<Item = (ScopeKind, Unit, u64)> + '_ {
        self.since_ns
            .iter()
            .enumerate()
            .filter_map(|(index, since_ns)| {
                since_ns.map(|since_ns| (ScopeKind::ALL[index / 2], Unit::ALL[index % 2], since_ns))
            })
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queued.is_none()
            && self.claimed == Scopes::default()
            && self.since_ns.iter().all(Option::is_none)
    }

    /// Whether a refusal by one of `buckets` would count before anything more is admitted.
    pub(crate) fn would_count(&self, buckets: Buckets) -> bool {
        !buckets.without(self.counted).is_empty()
    }

    /// The end of a pass: `admitted_by` took something, `refusing` had no token for the next entry.
    pub(crate) fn note(
        &mut self,
        now_ns: u64,
        admitted_by: Buckets,
        refusing: Buckets,
        withheld: Withheld,
    ) {
        self.counted = self.counted.without(admitted_by);
        let lasting = refusing.without(admitted_by);
        for (index, since_ns) in self.since_ns.iter_mut().enumerate() {
            if !lasting.has(index)
                && let Some(since_ns) = since_ns.take()
            {
                let spent_ns = now_ns.saturating_sub(since_ns);
                add(
                    &mut self.counts.throttled_ns[index / 2][index % 2],
                    spent_ns,
                );
            }
        }
        let events = refusing.without(self.counted);
        if withheld.entries.0 == 0 || events.is_empty() {
            return;
        }
        for index in (0..6).filter(|&index| events.has(index)) {
            add(&mut self.counts.events[index / 2][index % 2], 1);
            self.since_ns[index] = Some(now_ns);
        }
        add(&mut self.counts.withheld_messages, withheld.messages.0);
        add(&mut self.counts.withheld_bytes, withheld.bytes.0);
        self.counted = self.counted.with(events);
    }
}

fn add(counter: &mut u64, n: u64) {
    *counter = counter.saturating_add(n).min(COUNT_MAX);
}

/// A set of the six buckets, by `scope * 2 + unit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buckets(u8);

impl Buckets {
    pub(crate) const NONE: Self = Self(0);

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = (ScopeKind, Unit)> {
        (0..6)
            .filter(move |&index| self.has(index))
            .map(|index| (ScopeKind::ALL[index / 2], Unit::ALL[index % 2]))
    }

    pub(crate) fn insert(&mut self, scope: ScopeKind, unit: Unit) {
        self.0 |= 1 << (scope as usize * 2 + unit as usize);
    }

    pub(crate) fn limits(self, scope: ScopeKind) -> bool {
        Unit::ALL
            .iter()
            .any(|&unit| self.has(scope as usize * 2 + unit as usize))
    }

    fn has(self, index: usize) -> bool {
        self.0 & (1 << index) != 0
    }

    fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Scopes(u8);

impl Scopes {
    pub(crate) fn insert(&mut self, scope: ScopeKind) {
        self.0 |= 1 << scope as usize;
    }

    pub(crate) fn remove(&mut self, scope: ScopeKind) {
        self.0 &= !(1 << scope as usize);
    }

    pub(crate) fn contains(self, scope: ScopeKind) -> bool {
        self.0 & (1 << scope as usize) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(scope: ScopeKind, unit: Unit) -> Buckets {
        let mut buckets = Buckets::NONE;
        buckets.insert(scope, unit);
        buckets
    }

    fn one_withheld() -> Withheld {
        Withheld {
            entries: Entries(1),
            messages: Messages(3),
            bytes: Bytes(70),
        }
    }

    #[test]
    fn an_event_counts_again_only_after_its_bucket_admitted_something() {
        let topic = bucket(ScopeKind::Topic, Unit::Bytes);
        let none = Buckets::NONE;
        let mut throttle = Throttle::default();
        throttle.note(10, none, topic, one_withheld());
        throttle.note(20, none, topic, one_withheld());
        assert!(!throttle.would_count(topic));
        assert_eq!(throttle.counts(25).events[1], [0, 1]);
        assert_eq!(
            throttle.counts(25).throttled_ns[1],
            [0, 15],
            "it still lasts"
        );
        throttle.note(30, topic, topic, one_withheld());
        let counts = throttle.counts(30);
        assert_eq!(
            (counts.events[1], counts.throttled_ns[1]),
            ([0, 2], [0, 20])
        );
        assert_eq!((counts.withheld_messages, counts.withheld_bytes), (6, 140));
    }

    #[test]
    fn a_pass_that_ends_for_another_reason_ends_the_throttled_time_and_counts_nothing() {
        let broker = bucket(ScopeKind::Broker, Unit::Messages);
        let none = Buckets::NONE;
        let mut throttle = Throttle::default();
        throttle.note(0, none, broker, Withheld::default());
        assert_eq!(
            throttle.counts(9),
            ThrottleCounts::default(),
            "another limit refuses too"
        );
        throttle.note(100, none, broker, one_withheld());
        assert_eq!(throttle.refusals().collect::<Vec<_>>().len(), 1);
        throttle.note(130, none, none, Withheld::default());
        assert_eq!(throttle.counts(900).throttled_ns[0], [30, 0]);
        assert!(throttle.refusals().next().is_none());
    }

    #[test]
    fn counter_32bit_counters_stop_at_the_largest_signed_number() {
        for seed in [
            (1 << 31) - 10,
            (1 << 32) - 10,
            (1 << 53) - 10,
            COUNT_MAX - 10,
        ] {
            let mut counter = seed;
            add(&mut counter, 20);
            assert_eq!(counter, (seed + 20).min(COUNT_MAX));
            add(&mut counter, u64::MAX);
            assert_eq!(counter, COUNT_MAX);
        }
        let topic = bucket(ScopeKind::Topic, Unit::Messages);
        let mut throttle = Throttle::default();
        throttle.note(u64::MAX, Buckets::NONE, topic, one_withheld());
        assert_eq!(throttle.counts(0).throttled_ns[1][0], 0, "time went back");
        let mut long = Throttle::default();
        long.note(0, Buckets::NONE, topic, one_withheld());
        assert_eq!(long.counts(u64::MAX).throttled_ns[1][0], COUNT_MAX);
    }
}
