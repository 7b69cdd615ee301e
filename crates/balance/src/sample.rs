//! Load samples: one window of one shard or machine, and the score they come to.
//!
//! Nothing in a sample is an average that outlives its window or a move (rule B1.1): a window that
//! began before a move says nothing about the load after it.

use crate::{Report, Round, ShardId, UnitId, UnitLoad};

/// One window of a shard of this process.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardSample {
    /// The shard.
    pub shard: ShardId,
    /// The round that the window is.
    pub as_of: Round,
    /// Time in turns that did something; spinning is not work.
    pub busy_ns: u64,
    /// Length of the window.
    pub wall_ns: u64,
    /// Mean number of items in the data lane.
    pub mean_depth: f64,
    /// Items the data lane holds.
    pub depth_capacity: u64,
    /// Bytes sent.
    pub bytes_out: u64,
    /// Bytes that may be sent in the window, if that is limited.
    pub bytes_budget: Option<u64>,
    /// The units that live there, in ascending order.
    pub units: Vec<ShardUnit>,
}

/// What one unit took of a shard's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardUnit {
    /// The unit.
    pub unit: UnitId,
    /// Busy time spent for it.
    pub busy_ns: u64,
    /// Bytes sent for it.
    pub bytes_out: u64,
    /// It must stay where it is: its load counts as foreign (rule B1.5).
    pub pinned: bool,
}

/// One window of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineSample {
    /// The machine.
    pub shard: ShardId,
    /// The round that the window is.
    pub as_of: Round,
    /// Time on a CPU.
    pub cpu_ns: u64,
    /// Time on a CPU that all its CPUs together have in the window.
    pub cpu_capacity_ns: u64,
    /// Bytes over the network.
    pub network: NetworkUse,
    /// Bytes that the network can take in the window.
    pub network_capacity: NetworkUse,
    /// The units that live there, in ascending order.
    pub units: Vec<MachineUnit>,
}

/// Bytes in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkUse {
    /// Received.
    pub bytes_in: u64,
    /// Sent.
    pub bytes_out: u64,
}

/// What one unit took of a machine's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineUnit {
    /// The unit.
    pub unit: UnitId,
    /// Time on a CPU.
    pub cpu_ns: u64,
    /// Bytes over the network.
    pub network: NetworkUse,
    /// It must stay where it is: its load counts as foreign (rule B1.5).
    pub pinned: bool,
}

impl ShardSample {
    /// The score is the largest of busy time, lane depth and bytes out, each against its capacity;
    /// a unit's load is what it contributes to that term. Nobody knows whose items wait in a lane,
    /// so depth is shared out by busy time (rules B1.2 and B1.3).
    #[must_use]
    pub fn report(&self) -> Report {
        let busy = points(self.busy_ns as f64, self.wall_ns);
        let depth = points(self.mean_depth, self.depth_capacity);
        let bytes = |bytes: u64| self.bytes_budget.map_or(0.0, |of| points(bytes as f64, of));
        let bytes_score = bytes(self.bytes_out);
        let score = busy.max(depth).max(bytes_score);
        let load = |unit: &ShardUnit| {
            if score == busy {
                points(unit.busy_ns as f64, self.wall_ns)
            } else if score == depth {
                share(unit.busy_ns, self.busy_ns) * score
            } else {
                bytes(unit.bytes_out)
            }
        };
        let units = self.units.iter().filter(|unit| !unit.pinned);
        report(
            (self.shard, self.as_of, score),
            units.map(|unit| (unit.unit, load(unit))),
        )
    }
}

impl MachineSample {
    /// The score is the largest of CPU, network in and network out, each against its capacity;
    /// memory has no weight (rule B1.2). A unit's load is what it contributes to that term.
    #[must_use]
    pub fn report(&self) -> Report {
        let cpu = |ns: u64| points(ns as f64, self.cpu_capacity_ns);
        let bytes_in = |bytes: u64| points(bytes as f64, self.network_capacity.bytes_in);
        let bytes_out = |bytes: u64| points(bytes as f64, self.network_capacity.bytes_out);
        let (cpu_score, in_score) = (cpu(self.cpu_ns), bytes_in(self.network.bytes_in));
        let score = cpu_score
            .max(in_score)
            .max(bytes_out(self.network.bytes_out));
        let load = |unit: &MachineUnit| {
            if score == cpu_score {
                cpu(unit.cpu_ns)
            } else if score == in_score {
                bytes_in(unit.network.bytes_in)
            } else {
                bytes_out(unit.network.bytes_out)
            }
        };
        let units = self.units.iter().filter(|unit| !unit.pinned);
        report(
            (self.shard, self.as_of, score),
            units.map(|unit| (unit.unit, load(unit))),
        )
    }
}

fn report(
    (shard, as_of, score): (ShardId, Round, f64),
    units: impl Iterator<Item = (UnitId, f64)>,
) -> Report {
    Report {
        shard,
        as_of,
        score,
        throughput: None,
        units: units.map(|(unit, load)| UnitLoad { unit, load }).collect(),
    }
}

/// Percent of `capacity`. What has no capacity and no use is no load.
fn points(used: f64, capacity: u64) -> f64 {
    100.0 * used / capacity.max(1) as f64
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(unit: u64, busy_ns: u64, bytes_out: u64) -> ShardUnit {
        ShardUnit {
            unit: UnitId(unit),
            busy_ns,
            bytes_out,
            pinned: false,
        }
    }

    fn sample() -> ShardSample {
        ShardSample {
            shard: ShardId(3),
            as_of: 7,
            busy_ns: 600_000_000,
            wall_ns: 1_000_000_000,
            mean_depth: 256.0,
            depth_capacity: 1024,
            bytes_out: 30,
            bytes_budget: Some(100),
            units: vec![unit(1, 400_000_000, 6), unit(2, 100_000_000, 24)],
        }
    }

    fn loads(report: &Report) -> Vec<f64> {
        report.units.iter().map(|unit| unit.load).collect()
    }

    #[test]
    fn busy_time_makes_the_score_and_what_no_unit_accounts_for_is_foreign() {
        let report = sample().report();
        assert_eq!((report.shard, report.as_of), (ShardId(3), 7));
        assert_eq!((report.score, loads(&report)), (60.0, vec![40.0, 10.0]));
    }

    #[test]
    fn depth_makes_the_score_and_is_shared_out_by_busy_time() {
        let report = ShardSample {
            mean_depth: 921.6,
            ..sample()
        }
        .report();
        assert_eq!((report.score, loads(&report)), (90.0, vec![60.0, 15.0]));
    }

    #[test]
    fn bytes_make_the_score_only_against_a_budget() {
        let mut sample = ShardSample {
            bytes_out: 70,
            ..sample()
        };
        let report = sample.report();
        assert_eq!((report.score, loads(&report)), (70.0, vec![6.0, 24.0]));
        sample.bytes_budget = None;
        assert_eq!(sample.report().score, 60.0);
    }

    #[test]
    fn a_pinned_unit_counts_and_cannot_move() {
        let mut sample = sample();
        sample.units[0].pinned = true;
        let report = sample.report();
        assert_eq!((report.score, loads(&report)), (60.0, vec![10.0]));
    }

    #[test]
    fn a_window_of_no_length_is_no_load() {
        let sample = ShardSample {
            busy_ns: 0,
            wall_ns: 0,
            mean_depth: 0.0,
            depth_capacity: 0,
            bytes_budget: Some(0),
            bytes_out: 0,
            units: vec![unit(1, 0, 0)],
            ..sample()
        };
        let report = sample.report();
        assert_eq!((report.score, loads(&report)), (0.0, vec![0.0]));
    }

    #[test]
    fn the_fullest_of_cpu_and_network_makes_the_score_of_a_machine() {
        let network = |bytes_in, bytes_out| NetworkUse {
            bytes_in,
            bytes_out,
        };
        let mut sample = MachineSample {
            shard: ShardId(0),
            as_of: 1,
            cpu_ns: 2_000,
            cpu_capacity_ns: 8_000,
            network: network(30, 60),
            network_capacity: network(100, 100),
            units: vec![MachineUnit {
                unit: UnitId(9),
                cpu_ns: 1_000,
                network: network(20, 50),
                pinned: false,
            }],
        };
        let check = |sample: &MachineSample, score: f64, load: f64| {
            let report = sample.report();
            assert_eq!((report.score, loads(&report)), (score, vec![load]));
        };
        check(&sample, 60.0, 50.0);
        sample.network.bytes_in = 80;
        check(&sample, 80.0, 20.0);
        sample.cpu_ns = 7_200;
        check(&sample, 90.0, 12.5);
    }
}
