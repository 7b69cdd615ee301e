//! Entries that are due at an instant: delayed delivery, redelivery delays, deadlines (rules D112,
//! D122, D130).

use std::collections::BTreeSet;

/// On one clock, in its unit. Exact, without ticks: the next instant is that of the first entry, and
/// what is due comes by instant, then by ordinal. 16 bytes an entry and what a B-tree leaves free;
/// collected from a list, as after a restart, next to nothing is free.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    /// Instant, ordinal.
    queue: BTreeSet<(u64, u64)>,
}

impl Timers {
    /// Has `ordinal` come due at `due`. It is armed for one instant at a time.
    pub(crate) fn arm(&mut self, due: u64, ordinal: u64) {
        self.queue.insert((due, ordinal));
    }

    /// Takes back what was armed for that instant; whether it was.
    pub(crate) fn disarm(&mut self, due: u64, ordinal: u64) -> bool {
        self.queue.remove(&(due, ordinal))
    }

    /// When the first one is due.
    #[must_use]
    pub(crate) fn next_due(&self) -> Option<u64> {
        self.queue.first().map(|&(due, _)| due)
    }

    /// How many are armed.
    pub(crate) fn len(&self) -> u64 {
        self.queue.len() as u64
    }

    /// Keeps those of ordinals from `first` on.
    pub(crate) fn forget_below(&mut self, first: u64) {
        self.queue.retain(|&(_, ordinal)| ordinal >= first);
    }

    /// The first one, if it is due at `now`.
    pub(crate) fn pop_due(&mut self, now: u64) -> Option<u64> {
        self.next_due().filter(|&due| due <= now)?;
        self.queue.pop_first().map(|(_, ordinal)| ordinal)
    }
}

/// From instants and ordinals in any order.
impl FromIterator<(u64, u64)> for Timers {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(armed: I) -> Self {
        let queue = armed.into_iter().collect();
        Self { queue }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn t52_due_at_its_instant_and_not_before_and_in_position_order() {
        let mut timers: Timers = (0..100_000).rev().map(|ordinal| (1_234, ordinal)).collect();
        assert_eq!(
            (timers.pop_due(1_233), timers.next_due()),
            (None, Some(1_234))
        );
        let popped: Vec<u64> = std::iter::from_fn(|| timers.pop_due(1_234)).collect();
        assert!(popped.into_iter().eq(0..100_000) && timers.queue.is_empty());
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_sorted_list(
            ops in prop::collection::vec((0u8..4, 0u64..20, 0u64..20), 1..300),
        ) {
            let (mut timers, mut model) = (Timers::default(), Vec::new());
            for (op, due, ordinal) in ops {
                match op {
                    0 | 1 => {
                        if let Some(at) = model.iter().position(|&(_, o)| o == ordinal) {
                            let (was, _) = model.remove(at);
                            prop_assert!(timers.disarm(was, ordinal));
                        }
                        timers.arm(due, ordinal);
                        model.push((due, ordinal));
                        model.sort_unstable();
                    }
                    2 => {
                        let known = model.contains(&(due, ordinal));
                        prop_assert_eq!(timers.disarm(due, ordinal), known);
                        model.retain(|&armed| armed != (due, ordinal));
                    }
                    _ => {
                        let first = model.first().copied().filter(|&(d, _)| d <= due);
                        prop_assert_eq!(timers.pop_due(due), first.map(|(_, o)| o));
                        model.retain(|&armed| Some(armed) != first);
                    }
                }
                prop_assert_eq!(timers.next_due(), model.first().map(|&(d, _)| d));
                prop_assert_eq!(timers.queue.len(), model.len());
            }
            prop_assert!(timers.queue.into_iter().eq(model));
        }
    }
}
