//! What a shard measures about itself: busy time, long turns, counters.

use std::collections::VecDeque;

use pelton_broker::storage::LogStats;
use pelton_metrics::{Counter, ShardMetrics};

/// A turn longer than this is counted and leaves a record (A4.4): 5 ms.
pub const LONG_TURN_NS: u64 = 5_000_000;

/// Records kept.
const LONG_TURNS_KEPT: usize = 32;

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnWork {
    /// Disk and metadata completions.
    pub completions: u32,
    /// Items of the control lane.
    pub control: u32,
    /// Items of the data lane, entries included.
    pub data: u32,
    /// Entries published, of these.
    pub published: u32,
    /// Effects carried out: receipts, hand-overs, replies, disk and metadata operations.
    pub effects: u32,
    /// Entries given to handlers on this thread.
    pub handled: u32,
    /// Of the data, what the shard had for itself: forwards and dead letters, and their answers.
    pub to_itself: u32,
    /// What a resident of the thread took in and gave out.
    pub resident: u32,
    /// Bytes written to segments inline.
    pub written_bytes: u64,
}

impl TurnWork {
    /// Things done: 0 if the turn found nothing to do.
    #[must_use]
    pub fn items(&self) -> u32 {
        self.completions + self.control + self.data + self.effects + self.resident
    }
}

/// The record of one long turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongTurn {
    /// When it started, monotonic nanoseconds of the engine's clock.
    pub started_ns: u64,
    /// How long it took, in nanoseconds.
    pub took_ns: u64,
    /// Lane credit at its start, 0 to 32.
    pub credit: u32,
    /// What it did.
    pub work: TurnWork,
}

/// Numbers of one shard, and the turn that is not yet measured.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) metrics: Box<ShardMetrics>,
    open: Option<LongTurn>,
    long_turns: VecDeque<LongTurn>,
    /// Totals of the log as last asked for.
    logged: LogStats,
}

impl Watch {
    pub(crate) fn new() -> Watch {
        Watch {
            metrics: Box::new(ShardMetrics::new()),
            open: None,
            long_turns: VecDeque::with_capacity(LONG_TURNS_KEPT),
            logged: LogStats::default(),
        }
    }

    /// A turn ends where the next one (or the idle policy) reads the clock: one read for both.
    pub(crate) fn close_turn(&mut self, now_ns: u64) {
        let Some(mut turn) = self.open.take() else {
            return;
        };
        turn.took_ns = now_ns.saturating_sub(turn.started_ns);
        let counters = &mut self.metrics.counters;
        counters.increment(Counter::Turns);
        counters.add(Counter::BusyNs, turn.took_ns);
        self.metrics.turn.record(turn.took_ns);
        if turn.took_ns > LONG_TURN_NS {
            self.metrics.counters.increment(Counter::LongTurns);
            if self.long_turns.len() == LONG_TURNS_KEPT {
                self.long_turns.pop_front();
            }
            self.long_turns.push_back(turn);
        }
    }

    /// What the turn that began at `started_ns` did. One that did nothing is not busy time.
    pub(crate) fn record(&mut self, started_ns: u64, credit: u32, work: TurnWork) {
        if work.items() == 0 {
            return;
        }
        let counters = &mut self.metrics.counters;
        counters.add(Counter::ItemsControl, u64::from(work.control));
        counters.add(Counter::ItemsData, u64::from(work.data));
        self.open = Some(LongTurn {
            started_ns,
            took_ns: 0,
            credit,
            work,
        });
    }

    /// Adds what the log counted since the last call.
    pub(crate) fn count_log(&mut self, totals: LogStats) {
        type Get = fn(&LogStats) -> u64;
        const COUNTED: [(Counter, Get); 7] = [
            (Counter::Commits, |log| log.blocks_written),
            (Counter::SegmentsRecycled, |log| log.segments_recycled),
            (Counter::SegmentsMade, |log| log.segments_created),
            (Counter::SegmentsAllocated, |log| log.segments_allocated),
            (Counter::SegmentsUnlinked, |log| log.segments_unlinked),
            (Counter::ReadsRepeated, |log| log.reads_repeated),
            (Counter::EntriesUnreadable, |log| log.entries_failed),
        ];
        for (counter, get) in COUNTED {
            let since = get(&totals) - get(&self.logged);
            self.metrics.counters.add(counter, since);
        }
        self.logged = totals;
    }

    /// The records, oldest first.
    pub(crate) fn long_turns(&self) -> Vec<LongTurn> {
        self.long_turns.iter().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_measured_by_the_next_look_at_the_clock_and_a_long_one_leaves_a_record() {
        let mut watch = Watch::new();
        watch.record(
            1_000,
            32,
            TurnWork {
                control: 1,
                ..TurnWork::default()
            },
        );
        watch.close_turn(3_000);
        watch.record(
            3_000,
            7,
            TurnWork {
                data: 64,
                published: 64,
                ..TurnWork::default()
            },
        );
        watch.close_turn(3_000 + LONG_TURN_NS + 1);
        watch.record(10_000_000, 32, TurnWork::default());
        watch.close_turn(90_000_000);
        let counters = &watch.metrics.counters;
        assert_eq!(counters.get(Counter::Turns), 2);
        assert_eq!(counters.get(Counter::BusyNs), 2_000 + LONG_TURN_NS + 1);
        assert_eq!(counters.get(Counter::LongTurns), 1);
        assert_eq!(counters.get(Counter::ItemsData), 64);
        let record = watch.long_turns()[0];
        assert_eq!((record.credit, record.work.published), (7, 64));
    }

    #[test]
    fn only_the_latest_records_are_kept() {
        let mut watch = Watch::new();
        for i in 0..100 {
            let start = i * 10 * LONG_TURN_NS;
            watch.record(
                start,
                0,
                TurnWork {
                    data: 1,
                    ..TurnWork::default()
                },
            );
            watch.close_turn(start + 2 * LONG_TURN_NS);
        }
        assert_eq!(watch.long_turns().len(), LONG_TURNS_KEPT);
        assert_eq!(
            watch.long_turns().last().map(|t| t.started_ns),
            Some(990 * LONG_TURN_NS)
        );
    }
}
