//! What a plan is made from: one report per shard and round.

use std::fmt;

/// Number of a round, counted from 1. A round is 1 s between the shards of a process and 60 s
/// between machines (rule B1.4).
pub type Round = u64;

/// A shard: a core of this process, or a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShardId(pub u32);

/// What moves whole: a topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnitId(pub u64);

/// What one shard carried in one round.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The shard.
    pub shard: ShardId,
    /// The round that was sampled. It lags behind the round of the plan where reports travel.
    pub as_of: Round,
    /// Load of the shard in points, what no unit accounts for included. Finite.
    pub score: f64,
    /// Messages per second or any other rate, the same for all shards; only `transfer` compares it,
    /// and where it is missing the score is compared instead.
    pub throughput: Option<f64>,
    /// The movable units that live here *now*, in ascending order. A pinned unit is not among them:
    /// its load is part of the score alone (rule B1.5).
    pub units: Vec<UnitLoad>,
}

/// A unit and what it contributes to the score of its shard.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnitLoad {
    /// The unit.
    pub unit: UnitId,
    /// Its load in points, finite and not negative.
    pub load: f64,
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
