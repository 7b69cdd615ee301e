//! Entries owed again: disjoint ranges of ordinals, lowest first (rule D114).

use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// Start to one past the end; no two touch.
    ranges: BTreeMap<u64, u64>,
    entries: u64,
}

impl Replay {
    pub(crate) fn entries(&self) -> u64 {
        self.entries
    }

    /// The lowest range, as (start, end).
    pub(crate) fn first(&self) -> Option<(u64, u64)> {
        self.ranges
            .first_key_value()
            .map(|(&start, &end)| (start, end))
    }

    pub(crate) fn insert(&mut self, ordinal: u64) {
        let (mut start, mut end) = (ordinal, ordinal + 1);
        if let Some((&before, &before_end)) = self.ranges.range(..=ordinal).next_back() {
            if before_end > ordinal {
                return;
            }
            if before_end == ordinal {
                start = before;
            }
        }
        if let Some(after_end) = self.ranges.remove(&end) {
            end = after_end;
        }
        self.ranges.insert(start, end);
        self.entries += 1;
    }

    /// Removes consecutive entries, wherever they are.
    pub(crate) fn remove_run(&mut self, first: u64, entries: u64) {
        let end = first + entries;
        if let Some((&start, &range_end)) = self.ranges.first_key_value()
            && start == first
            && end <= range_end
        {
            self.ranges.pop_first();
            if end < range_end {
                self.ranges.insert(end, range_end);
            }
            self.entries -= entries;
            return;
        }
        (first..end).for_each(|ordinal| self.remove(ordinal));
    }

    pub(crate) fn remove(&mut self, ordinal: u64) {
        let Some((&start, &end)) = self.ranges.range(..=ordinal).next_back() else {
            return;
        };
        if ordinal >= end {
            return;
        }
        self.ranges.remove(&start);
        if start < ordinal {
            self.ranges.insert(start, ordinal);
        }
        if ordinal + 1 < end {
            self.ranges.insert(ordinal + 1, end);
        }
        self.entries -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_agrees_with_a_set(ops in prop::collection::vec((0u64..30, 0u8..3), 1..200)) {
            let (mut replay, mut model) = (Replay::default(), BTreeSet::new());
            for (ordinal, op) in ops {
                match op {
                    0 => {
                        replay.insert(ordinal);
                        model.insert(ordinal);
                    }
                    1 => {
                        replay.remove(ordinal);
                        model.remove(&ordinal);
                    }
                    _ => {
                        let first = replay.first().map_or(ordinal, |(first, _)| first);
                        replay.remove_run(first, ordinal % 5);
                        (first..first + ordinal % 5).for_each(|ordinal| {
                            model.remove(&ordinal);
                        });
                    }
                }
                prop_assert_eq!(replay.entries(), model.len() as u64);
                let listed: Vec<u64> =
                    replay.ranges.iter().flat_map(|(&start, &end)| start..end).collect();
                prop_assert_eq!(listed, model.iter().copied().collect::<Vec<_>>());
                for (&start, &end) in &replay.ranges {
                    prop_assert!(start < end && !replay.ranges.contains_key(&end));
                }
            }
        }
    }
}
