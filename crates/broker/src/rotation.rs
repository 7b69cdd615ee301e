//! Whose turn it is in a Shared subscription: round robin per priority level.
//!
//! Only consumers that may get something are in here, so choosing one costs the same with ten or
//! ten thousand attached (rule D77). One that may not is taken out when its turn comes, or at once
//! when it is known, and put back by what changes that.

use std::collections::VecDeque;

#[derive(Debug, Default)]
pub(crate) struct Rotation {
    /// Ascending by priority number; usually one.
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    priority: i32,
    /// Port slots, the next one in front.
    queue: VecDeque<u32>,
    /// Entries the one in front may still get in this turn.
    turn_left: u64,
}

impl Rotation {
    /// Puts a consumer at the end of its level. It must not be in there.
    pub(crate) fn push(&mut self, slot: u32, priority: i32) {
        let at = self
            .levels
            .partition_point(|level| level.priority < priority);
        if self
            .levels
            .get(at)
            .is_none_or(|level| level.priority != priority)
        {
            let level = Level {
                priority,
                queue: VecDeque::new(),
                turn_left: 0,
            };
            self.levels.insert(at, level);
        }
        self.levels[at].queue.push_back(slot);
    }

    /// Takes a consumer out wherever it stands.
    pub(crate) fn remove(&mut self, slot: u32, priority: i32) {
        let Some(at) = self
            .levels
            .iter()
            .position(|level| level.priority == priority)
        else {
            return;
        };
        let level = &mut self.levels[at];
        if level.queue.front() == Some(&slot) {
            level.queue.pop_front();
            level.turn_left = 0;
        } else {
            level.queue.retain(|&other| other != slot);
        }
        if level.queue.is_empty() && self.levels.len() > 1 {
            self.levels.remove(at);
        }
    }

    /// The first consumer, by level and turn, for which `may_go` is true, and the entries its turn
    /// has left. Those for which it is not are taken out.
    pub(crate) fn pick(
        &mut self,
        entries_per_turn: u64,
        entries_alone: u64,
        mut may_go: impl FnMut(u32) -> bool,
    ) -> Option<(u32, u64)> {
        for level in &mut self.levels {
            while let Some(&slot) = level.queue.front() {
                if may_go(slot) {
                    if level.turn_left == 0 {
                        let alone = level.queue.len() == 1;
                        level.turn_left = if alone {
                            entries_alone
                        } else {
                            entries_per_turn
                        };
                    }
                    return Some((slot, level.turn_left));
                }
                level.queue.pop_front();
                level.turn_left = 0;
            }
        }
        None
    }

    /// The consumer picked last got so many entries: once its turn is over, the next one's begins.
    /// One alone keeps its place.
    pub(crate) fn took(&mut self, slot: u32, entries: u64) {
        let ours = |level: &&mut Level| level.queue.front() == Some(&slot);
        if let Some(level) = self.levels.iter_mut().find(ours) {
            level.turn_left = level.turn_left.saturating_sub(entries);
            level.rotate_if_over();
        }
    }

    /// The rotation moves on with each pass, so entries that arrive one by one go round as well
    /// (apache/pulsar#15703).
    pub(crate) fn end_of_pass(&mut self) {
        for level in &mut self.levels {
            if level.turn_left > 0 {
                level.turn_left = 0;
                level.rotate_if_over();
            }
        }
    }
}

impl Level {
    fn rotate_if_over(&mut self) {
        if self.turn_left == 0 && self.queue.len() > 1 {
            self.queue.rotate_left(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (level, permits) of C1..C5 as in rule D78; who gets what, one entry at a time.
    fn sequence(entries_per_turn: u64) -> Vec<u32> {
        let consumers = [(0, 2), (0, 1), (0, 1), (1, 2), (1, 1)];
        let mut permits = consumers.map(|(_, permits)| permits);
        let mut rotation = Rotation::default();
        for (slot, &(level, _)) in (0..).zip(&consumers) {
            rotation.push(slot, level);
        }
        let mut got = Vec::new();
        while let Some((slot, _)) =
            rotation.pick(entries_per_turn, 100, |slot| permits[slot as usize] > 0)
        {
            permits[slot as usize] -= 1;
            got.push(slot + 1);
            rotation.took(slot, 1);
        }
        got
    }

    #[test]
    fn the_example_of_rule_d78() {
        assert_eq!(sequence(1), [1, 2, 3, 1, 4, 5, 4]);
        assert_eq!(sequence(20), [1, 1, 2, 3, 4, 4, 5]);
    }

    #[test]
    fn one_that_leaves_takes_its_level_along() {
        let mut rotation = Rotation::default();
        rotation.push(7, 3);
        rotation.push(8, -1);
        rotation.remove(8, -1);
        assert_eq!(rotation.pick(20, 100, |_| true), Some((7, 100)));
        rotation.remove(7, 3);
        assert_eq!(rotation.pick(20, 100, |_| true), None);
    }
}
