//! Positions and the ledger list of a topic. Who computes with a position does it here; the formats
//! of ack records alone (`gather.rs`, `cursor.rs`) take entry numbers apart.
use std::collections::VecDeque;
use std::ops::Range;

/// Where an entry is: ledger id and entry number within it, in entries.
///
/// Ledger ids rise over the life of a log, but not by one; entry numbers rise by one within a
/// ledger. Positions compare in publish order within a topic. Nobody but the ledger list computes
/// with them (DESIGN 6, rule 1): use [`crate::Log::position`] and [`crate::Log::ordinal_after`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Ledger id, unique within the log; never 0 for a stored entry.
    pub ledger: u64,
    /// Number of the entry within its ledger, from 0.
    pub entry: u64,
}

impl Position {
    /// Of what is stored nowhere: (-1, -1) on the wire.
    pub const NOWHERE: Position = Position {
        ledger: u64::MAX,
        entry: u64::MAX,
    };

    /// The position `by` entries behind this one, in the same ledger.
    #[must_use]
    pub fn nth(self, by: u64) -> Position {
        Position {
            ledger: self.ledger,
            entry: self.entry.saturating_add(by),
        }
    }

    /// The last of `entries` consecutive ones (1 or more) that start here.
    #[must_use]
    pub fn last_of(self, entries: u64) -> Position {
        self.nth(entries.saturating_sub(1))
    }

    /// Whether this is the entry right behind a run of `entries` entries that starts at `first`.
    #[must_use]
    pub fn is_behind(self, first: Position, entries: u64) -> bool {
        self == first.nth(entries)
    }
}

/// A stretch of one ledger whose entries have consecutive numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LedgerRun {
    pub(crate) ledger: u64,
    pub(crate) epoch: u32,
    pub(crate) first_entry: u64,
    pub(crate) first_ordinal: u64,
}

impl LedgerRun {
    /// The position of an ordinal of this run.
    pub(crate) fn position(&self, ordinal: u64) -> Position {
        let first = Position {
            ledger: self.ledger,
            entry: self.first_entry,
        };
        first.nth(ordinal - self.first_ordinal)
    }
}

/// Ledgers of one topic, oldest first: maps dense ordinals to positions and back.
///
/// A run ends where the next begins; the last one ends at the topic's `end`, which the caller
/// hands in so that an append does not have to touch the list.
#[derive(Debug, Default)]
pub(crate) struct LedgerList {
    runs: VecDeque<LedgerRun>,
    /// The last position of the runs that were forgotten.
    forgotten: Option<Position>,
}

impl LedgerList {
    pub(crate) fn push(&mut self, run: LedgerRun) {
        if let Some(last) = self.runs.back() {
            debug_assert!(
                last.first_ordinal < run.first_ordinal,
                "an empty run was left behind"
            );
            debug_assert!((last.ledger, last.first_entry) < (run.ledger, run.first_entry));
        }
        self.runs.push_back(run);
    }

    pub(crate) fn last(&self) -> Option<&LedgerRun> {
        self.runs.back()
    }

    /// The run of an ordinal; `None` if it was trimmed.
    pub(crate) fn run_of(&self, ordinal: u64) -> Option<&LedgerRun> {
        let after = self
            .runs
            .partition_point(|run| run.first_ordinal <= ordinal);
        self.runs.get(after.checked_sub(1)?)
    }

    pub(crate) fn position(&self, ordinal: u64) -> Option<Position> {
        Some(self.run_of(ordinal)?.position(ordinal))
    }

    /// The last position before an ordinal, whether its entry is trimmed or not.
    pub(crate) fn before(&self, ordinal: u64) -> Option<Position> {
        let last = ordinal.checked_sub(1)?;
        self.position(last).or(self.forgotten)
    }

    /// The ordinal of exactly this position, if it is there.
    pub(crate) fn ordinal(&self, at: Position, end: u64) -> Option<u64> {
        let index = self.index_at_or_before(at)?;
        let run = &self.runs[index];
        if run.ledger != at.ledger {
            return None;
        }
        let ordinal = run.first_ordinal.checked_add(at.entry - run.first_entry)?;
        (ordinal < self.run_end(index, end)).then_some(ordinal)
    }

    /// The ordinal of the first entry behind `at`: a position that was trimmed, or that lies in a
    /// gap, counts as passed.
    pub(crate) fn ordinal_after(&self, at: Position, first: u64, end: u64) -> u64 {
        let Some(index) = self.index_at_or_before(at) else {
            return first;
        };
        let run = &self.runs[index];
        let run_end = self.run_end(index, end);
        if run.ledger != at.ledger {
            return run_end;
        }
        run.first_ordinal
            .saturating_add(at.entry - run.first_entry)
            .saturating_add(1)
            .min(run_end)
    }

    /// The ordinal of the first entry at or behind `at`.
    pub(crate) fn ordinal_at_or_after(&self, at: Position, first: u64, end: u64) -> u64 {
        self.ordinal(at, end)
            .unwrap_or_else(|| self.ordinal_after(at, first, end))
            .max(first)
    }

    /// The ordinals, from `first` on, that there are of `entries` consecutive entries of a ledger.
    pub(crate) fn ordinals(&self, at: Position, entries: u32, first: u64, end: u64) -> Range<u64> {
        let last = at.last_of(u64::from(entries));
        let from = self.ordinal_at_or_after(at, first, end);
        from..self.ordinal_after(last, first, end).max(from)
    }

    /// Runs that overlap `[from, to)` as `(ledger run, first ordinal, count)`.
    pub(crate) fn pieces(
        &self,
        from: u64,
        to: u64,
    ) -> impl Iterator<Item = (LedgerRun, u64, u64)> + '_ {
        let start = self
            .runs
            .partition_point(|run| run.first_ordinal <= from)
            .saturating_sub(1);
        (start..self.runs.len())
            .map(move |index| {
                let first = self.runs[index].first_ordinal.max(from);
                let end = self.run_end(index, to).min(to);
                (self.runs[index], first, end.saturating_sub(first))
            })
            .take_while(move |&(run, _, _)| run.first_ordinal < to)
            .filter(|&(_, _, count)| count > 0)
    }

    /// Forgets runs that end at or before `before`; the last one stays while it may be open.
    pub(crate) fn trim(&mut self, before: u64) {
        while self.runs.len() > 1 && self.runs[1].first_ordinal <= before {
            self.forgotten = self.position(self.runs[1].first_ordinal - 1);
            self.runs.pop_front();
        }
    }

    fn run_end(&self, index: usize, end: u64) -> u64 {
        self.runs
            .get(index + 1)
            .map_or(end, |next| next.first_ordinal)
    }

    fn index_at_or_before(&self, at: Position) -> Option<usize> {
        let key = (at.ledger, at.entry);
        self.runs
            .partition_point(|run| (run.ledger, run.first_entry) <= key)
            .checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> LedgerList {
        let mut list = LedgerList::default();
        for (ledger, first_entry, first_ordinal) in [(3, 0, 0), (3, 10, 4), (9, 0, 6)] {
            list.push(LedgerRun {
                ledger,
                epoch: 1,
                first_entry,
                first_ordinal,
            });
        }
        list
    }

    #[test]
    fn the_position_before_a_trimmed_ledger_is_still_known() {
        let mut list = list();
        list.trim(6);
        let at = |ledger, entry| Some(Position { ledger, entry });
        assert_eq!(list.before(7), at(9, 0));
        assert_eq!(list.before(6), at(3, 11));
        assert_eq!(list.before(0), None);
    }

    #[test]
    fn a_run_ends_with_its_ledger_and_starts_where_the_topic_does() {
        let list = list();
        let at = |ledger, entry| Position { ledger, entry };
        assert_eq!(list.ordinals(at(3, 1), 2, 0, 8), 1..3);
        assert_eq!(list.ordinals(at(3, 1), 100, 3, 8), 3..6);
        assert_eq!(list.ordinals(at(9, 1), u32::MAX, 0, 8), 7..8);
        assert!(list.ordinals(at(9, 2), 5, 0, 8).is_empty());
        assert!(list.ordinals(at(1 << 40, 0), u32::MAX, 0, 8).is_empty());
        assert!(list.ordinals(at(1, 0), u32::MAX, 0, 8).is_empty());
    }

    #[test]
    fn positions_and_ordinals_agree_across_gaps() {
        let list = list();
        for ordinal in 0..8 {
            let at = list.position(ordinal).unwrap();
            assert_eq!(list.ordinal(at, 8), Some(ordinal), "{at:?}");
        }
        assert_eq!(
            list.position(5),
            Some(Position {
                ledger: 3,
                entry: 11
            })
        );
        assert_eq!(
            list.ordinal(
                Position {
                    ledger: 3,
                    entry: 5
                },
                8
            ),
            None
        );
        assert_eq!(
            list.ordinal(
                Position {
                    ledger: 9,
                    entry: 2
                },
                8
            ),
            None
        );
    }

    #[test]
    fn a_position_in_a_gap_counts_as_passed() {
        let list = list();
        let after = |ledger, entry| list.ordinal_after(Position { ledger, entry }, 0, 8);
        assert_eq!(after(1, 7), 0);
        assert_eq!(after(3, 3), 4);
        assert_eq!(after(3, 5), 4);
        assert_eq!(after(3, 11), 6);
        assert_eq!(after(3, u64::MAX), 6);
        assert_eq!(after(5, 0), 6);
        assert_eq!(after(9, 0), 7);
        assert_eq!(after(9, 99), 8);
        assert_eq!(after(10, 0), 8);
    }

    #[test]
    fn pieces_cover_a_range_of_ordinals_once() {
        let pieces: Vec<_> = list()
            .pieces(2, 7)
            .map(|(run, first, count)| (run.ledger, first, count))
            .collect();
        assert_eq!(pieces, [(3, 2, 2), (3, 4, 2), (9, 6, 1)]);
        assert_eq!(list().pieces(4, 4).count(), 0);
    }

    #[test]
    fn trimming_keeps_the_last_run() {
        let mut list = list();
        list.trim(100);
        assert_eq!(
            list.position(7),
            Some(Position {
                ledger: 9,
                entry: 1
            })
        );
        assert_eq!(list.position(3), None);
        // The run before it, if any, is of another ledger, with higher numbers than this.
        list.push(LedgerRun {
            ledger: 12,
            epoch: 1,
            first_entry: 50,
            first_ordinal: 9,
        });
        assert_eq!(
            list.ordinal(
                Position {
                    ledger: 13,
                    entry: 0
                },
                10
            ),
            None
        );
    }
}
