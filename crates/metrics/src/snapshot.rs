//! Everything one shard measures, as one value that can be exchanged, merged and read.

use crate::{counter::Counters, histogram::Histogram, stage::StageSet};

/// Digits of a shard's histograms: 1 % error at 30 KiB each. Three digits take 216 KiB each, and nine
/// of those do not fit a core's L2.
const SHARD_DIGITS: u8 = 2;

/// What one shard measures. Plain fields without atomics: the shard is the only writer.
///
/// On a request the shard exchanges its active set with an empty spare ([`std::mem::swap`]) and sends
/// the filled one to the collector, which merges, clears and returns it. So an exchanged set holds
/// what happened since the exchange before; the collector's sum of all holds what happened since start.
#[derive(Clone, Debug)]
pub struct ShardMetrics {
    /// The stages of every message.
    pub stages: StageSet,
    /// Arrival to ack of every message, in nanoseconds; the sum of its stages.
    pub end_to_end: Histogram,
    /// Durable to handed over, in nanoseconds.
    pub dispatch: Histogram,
    /// Length of a turn that did something, in nanoseconds.
    pub turn: Histogram,
    /// Submission to completion of a disk sync, in nanoseconds.
    pub sync: Histogram,
    /// Submission to completion of a disk read, in nanoseconds.
    pub read: Histogram,
    /// Doorbell to first instruction after the sleep, in nanoseconds.
    pub wake: Histogram,
    /// Time an item waited in the control lane, in nanoseconds.
    pub control_wait: Histogram,
    /// Time an item waited in the data lane, in nanoseconds.
    pub data_wait: Histogram,
    /// The counters.
    pub counters: Counters,
}

impl ShardMetrics {
    /// An empty set; allocates about 500 KiB, recording allocates nothing more.
    #[must_use]
    pub fn new() -> ShardMetrics {
        let empty = || Histogram::new(SHARD_DIGITS);
        ShardMetrics {
            stages: StageSet::new(SHARD_DIGITS),
            end_to_end: empty(),
            dispatch: empty(),
            turn: empty(),
            sync: empty(),
            read: empty(),
            wake: empty(),
            control_wait: empty(),
            data_wait: empty(),
            counters: Counters::new(),
        }
    }

    /// Adds everything `other` holds: of the same shard later, or of another shard.
    pub fn merge(&mut self, other: &ShardMetrics) {
        self.stages.merge(&other.stages);
        for (mine, theirs) in self.plain_mut().into_iter().zip(other.plain()) {
            mine.merge(theirs);
        }
        self.counters.merge(&other.counters);
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.stages.clear();
        self.plain_mut().into_iter().for_each(Histogram::clear);
        self.counters = Counters::new();
    }

    fn plain(&self) -> [&Histogram; 8] {
        let ShardMetrics {
            stages: _,
            end_to_end,
            dispatch,
            turn,
            sync,
            read,
            wake,
            control_wait,
            data_wait,
            counters: _,
        } = self;
        [
            end_to_end,
            dispatch,
            turn,
            sync,
            read,
            wake,
            control_wait,
            data_wait,
        ]
    }

    fn plain_mut(&mut self) -> [&mut Histogram; 8] {
        let ShardMetrics {
            stages: _,
            end_to_end,
            dispatch,
            turn,
            sync,
            read,
            wake,
            control_wait,
            data_wait,
            counters: _,
        } = self;
        [
            end_to_end,
            dispatch,
            turn,
            sync,
            read,
            wake,
            control_wait,
            data_wait,
        ]
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
    use crate::{Counter, Stage};

    /// A set whose every part holds `value`.
    fn filled(value: u64) -> ShardMetrics {
        let mut set = ShardMetrics::new();
        Stage::ALL
            .into_iter()
            .for_each(|stage| set.stages.record(stage, value));
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
                .stages
                .iter()
                .all(|(_, h)| h.count() == 2 && h.sum_ns() == 40)
        );
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
