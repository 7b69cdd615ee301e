//! The window that a shard fills between two samples.

use std::collections::BTreeMap;

use crate::{Round, ShardId, ShardSample, ShardUnit, UnitId};

/// What a shard did since its last sample. A move, of whatever unit to or from the shard, restarts
/// it: what was measured before says nothing about what the shard carries now (rule B1.1).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    busy_ns: u64,
    wall_ns: u64,
    /// Items times nanoseconds that they waited.
    depth_ns: u128,
    bytes_out: u64,
    units: BTreeMap<UnitId, ShardUnit>,
}

impl Window {
    /// A turn, or the time between two turns: so long, of which busy, and so many items in the
    /// data lane meanwhile. Spinning is not busy.
    pub fn turn(&mut self, wall_ns: u64, busy_ns: u64, depth: u64) {
        self.wall_ns += wall_ns;
        self.busy_ns += busy_ns;
        self.depth_ns += u128::from(depth) * u128::from(wall_ns);
    }

    /// A unit lives here, pinned or not, and appears in the sample even if it does nothing.
    pub fn unit(&mut self, unit: UnitId, pinned: bool) {
        self.entry(unit).pinned = pinned;
    }

    /// Busy time and bytes sent for a unit. The time is part of a turn's; the bytes are added up
    /// here.
    pub fn work(&mut self, unit: UnitId, busy_ns: u64, bytes_out: u64) {
        self.bytes_out += bytes_out;
        let entry = self.entry(unit);
        entry.busy_ns += busy_ns;
        entry.bytes_out += bytes_out;
    }

    /// Forgets all that was measured, and a unit that has left.
    pub fn restart(&mut self, left: Option<UnitId>) {
        if let Some(unit) = left {
            self.units.remove(&unit);
        }
        (self.busy_ns, self.wall_ns, self.depth_ns) = (0, 0, 0);
        self.bytes_out = 0;
        for unit in self.units.values_mut() {
            (unit.busy_ns, unit.bytes_out) = (0, 0);
        }
    }

    /// The sample of this window, and a new window. `depth_capacity` in items, `bytes_per_s` what
    /// the shard may send.
    pub fn close(
        &mut self,
        shard: ShardId,
        as_of: Round,
        depth_capacity: u64,
        bytes_per_s: Option<u64>,
    ) -> ShardSample {
        let budget = |per_s: u64| {
            let bytes = u128::from(per_s) * u128::from(self.wall_ns) / 1_000_000_000;
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let sample = ShardSample {
            shard,
            as_of,
            busy_ns: self.busy_ns,
            wall_ns: self.wall_ns,
            mean_depth: self.depth_ns as f64 / self.wall_ns.max(1) as f64,
            depth_capacity,
            bytes_out: self.bytes_out,
            bytes_budget: bytes_per_s.map(budget),
            units: self.units.values().copied().collect(),
        };
        self.restart(None);
        sample
    }

    fn entry(&mut self, unit: UnitId) -> &mut ShardUnit {
        self.units.entry(unit).or_insert(ShardUnit {
            unit,
            busy_ns: 0,
            bytes_out: 0,
            pinned: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn filled() -> Window {
        let mut window = Window::default();
        window.unit(UnitId(1), false);
        window.unit(UnitId(2), true);
        window.turn(300 * MS, 300 * MS, 40);
        window.work(UnitId(1), 200 * MS, 500);
        window.turn(700 * MS, 0, 0);
        window
    }

    #[test]
    fn depth_is_weighed_by_how_long_it_lasted_and_the_budget_by_the_length_of_the_window() {
        let sample = filled().close(ShardId(0), 5, 100, Some(2000));
        assert_eq!((sample.busy_ns, sample.wall_ns), (300 * MS, 1000 * MS));
        assert_eq!((sample.mean_depth, sample.bytes_budget), (12.0, Some(2000)));
        assert_eq!(sample.report().score, 30.0);
        assert_eq!(sample.report().units[0].load, 20.0);
        assert_eq!(sample.report().units.len(), 1, "the pinned one is foreign");
    }

    #[test]
    fn nothing_measured_survives_a_sample_or_a_move() {
        let mut sampled = filled();
        let _ = sampled.close(ShardId(0), 5, 100, None);
        let mut moved = filled();
        moved.restart(Some(UnitId(1)));
        for (mut window, units) in [(sampled, 2), (moved, 1)] {
            window.turn(10 * MS, MS, 0);
            let sample = window.close(ShardId(0), 6, 100, None);
            assert_eq!(sample.report().score, 10.0);
            assert_eq!(sample.units.len(), units);
            assert!(sample.units.iter().all(|unit| unit.busy_ns == 0));
        }
    }
}
