//! Everything one shard measures, as one value that can be exchanged, merged and read.

use crate::{counter::Counters, histogram::Histogram};

/// Digits of a shard's histograms: 1 % error at 30 KiB each. Three digits take 216 KiB each, and four
/// of those leave little of a core's L2.
const SHARD_DIGITS: u8 = 2;

/// What one shard measures. Plain fields without atomics: the shard is the only writer.
///
/// On a request the shard exchanges its active set with an empty spare ([`std::mem::swap`]) and sends
/// the filled one to the collector, which merges, clears and returns it. So an exchanged set holds
/// what happened since the exchange before; the collector's sum of all holds what happened since start.
#[derive(Clone, Debug)]
pub struct ShardMetrics {
    /// Length of a turn that did something, in nanoseconds.
    pub turn: Histogram,
    /// Submission to completion of a disk sync, in nanoseconds.
    pub sync: Histogram,
    /// Submission to completion of a disk read, in nanoseconds.
    pub read: Histogram,
    /// Time an item waited in the control lane, in nanoseconds.
    pub control_wait: Histogram,
    /// The counters.
    pub counters: Counters,
}

impl ShardMetrics {
    /// An empty set; allocates about 120 KiB, recording allocates nothing more.
    #[must_use]
    pub fn new() -> ShardMetrics {
        let empty = || Histogram::new(SHARD_DIGITS);
        ShardMetrics {
            turn: empty(),
            sync: empty(),
            read: empty(),
            control_wait: empty(),
            counters: Counters::new(),
        }
    }

    /// Adds everything `other` holds: of the same shard later, or of another shard.
    pub fn merge(&mut self, other: &ShardMetrics) {
        for (mine, theirs) in self.plain_mut().into_iter().zip(other.plain()) {
            mine.merge(theirs);
        }
        self.counters.merge(&other.counters);
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.plain_mut().into_iter().for_each(Histogram::clear);
        self.counters = Counters::new();
    }

    fn plain(&self) -> [&Histogram; 4] {
        let ShardMetrics {
            turn,
            sync,
            read,
            control_wait,
            counters: _,
        } = self;
        [turn, sync, read, control_wait]
    }

    fn plain_mut(&mut self) -> [&mut Histogram; 4] {
        let ShardMetrics {
            turn,
            sync,
            read,
            control_wait,
            counters: _,
        } = self;
        [turn, sync, read, control_wait]
    }
}

impl Default for ShardMetrics {
    fn default() -> ShardMetrics {
        ShardMetrics::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counter;

    /// A set whose every part holds `value`.
    fn filled(value: u64) -> ShardMetrics {
        let mut set = ShardMetrics::new();
        set.plain_mut()
            .into_iter()
            .for_each(|histogram| histogram.record(value));
        Counter::ALL
            .iter()
            .for_each(|&counter| set.counters.add(counter, value));
        set
    }

    #[test]
    fn merging_two_shards_adds_every_part_of_both() {
        let mut merged = filled(10);
        merged.merge(&filled(30));
        assert!(
            merged
                .plain()
                .iter()
                .all(|h| h.count() == 2 && h.sum_ns() == 40)
        );
        assert!(merged.counters.iter().all(|(_, value)| value == 40));
    }

    #[test]
    fn an_exchanged_set_starts_empty_and_the_collector_loses_nothing() {
        let (mut active, mut spare, mut total) = (
            ShardMetrics::new(),
            ShardMetrics::new(),
            ShardMetrics::new(),
        );
        for round in 1..=3 {
            active.merge(&filled(round));
            std::mem::swap(&mut active, &mut spare);
            total.merge(&spare);
            spare.clear();
            assert!(
                active
                    .plain()
                    .iter()
                    .all(|h| h.count() == 0 && h.sum_ns() == 0)
            );
            assert!(active.counters.iter().all(|(_, value)| value == 0));
        }
        assert!(
            total
                .plain()
                .iter()
                .all(|h| h.count() == 3 && h.sum_ns() == 6)
        );
        assert!(total.counters.iter().all(|(_, value)| value == 6));
    }
}
