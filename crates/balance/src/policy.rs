//! How to balance: a strategy with its parameters, and what holds for all strategies.
//!
//! A policy may change between two rounds; that clears all counters (rule B1.5). Distances are in
//! points, hits in consecutive rounds, shares between 0 and 1.

use crate::Round;

/// How plans are made.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Who gives to whom, and when.
    pub strategy: Strategy,
    /// What a move costs, in points: 0 between the shards of a process, 1 between machines. A unit
    /// of less load does not move, and pair-fill wants that much more gain (rule B4).
    pub move_cost: f64,
    /// A plan ends after so many moves.
    pub max_moves_per_round: Option<usize>,
    /// A unit moved in round m may move again from round m + 1 + this (rule B2.4).
    pub grace_rounds: Round,
    /// A shard whose report is older is neither end of a move (rule B1.4).
    pub stale_rounds: Round,
}

impl Default for Policy {
    /// Pair-fill between the shards of a process.
    fn default() -> Self {
        Self::new(Strategy::default())
    }
}

impl Policy {
    /// A strategy with what holds between the shards of a process.
    #[must_use]
    pub fn new(strategy: Strategy) -> Self {
        Self {
            strategy,
            move_cost: 0.0,
            max_moves_per_round: None,
            grace_rounds: 30,
            stale_rounds: 8,
        }
    }

    /// The same between machines, where a move costs a point.
    #[must_use]
    pub fn between_machines(strategy: Strategy) -> Self {
        Self {
            move_cost: 1.0,
            ..Self::new(strategy)
        }
    }
}

/// The strategies. Pair-fill is the one to use; the others are here to be compared with it.
#[derive(Clone, Debug, PartialEq)]
pub enum Strategy {
    /// Score with history against the mean; a random shard receives (rules B3.1 to B3.3).
    Threshold(ThresholdParams),
    /// Absolute limit (rule B3.4).
    Overload(OverloadParams),
    /// Highest against lowest message rate (rule B3.5).
    Uniform(UniformParams),
    /// Distance from the mean with two hit counts, levels the cluster (rule B3.9, pulsar#18173).
    MultiHit(MultiHitParams),
    /// One limit over the mean, three hits (rule B3.6).
    MultiHit3(MultiHit3Params),
    /// Pairs from the outside in move a share of their gap (rule B3.7).
    Avg(AvgParams),
    /// `Avg` with counters that belong to pairs. Wrong on purpose: where two shards take turns as
    /// the maximum it never acts (rule R13).
    AvgPairKeyed(AvgParams),
    /// Deviation of averaged scores, small units first, swaps (rule B3.8).
    Transfer(TransferParams),
    /// Pairs decide when, the mean decides how much, everybody below it receives (rule B4).
    PairFill(PairFillParams),
}

impl Default for Strategy {
    fn default() -> Self {
        Self::PairFill(PairFillParams::default())
    }
}

impl Strategy {
    /// The names to compare side by side, in the order of the tables of part B.
    pub const NAMES: [&str; 11] = [
        "threshold",
        "threshold-fresh",
        "threshold-lower",
        "uniform",
        "overload",
        "multi-hit",
        "multi-hit-3",
        "avg",
        "avg-0.2",
        "transfer",
        "pair-fill",
    ];

    /// The strategy of this name with its parameters of part B: one of [`Strategy::NAMES`] or
    /// `avg-pair-keyed`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let threshold = ThresholdParams::default();
        Some(match name {
            "threshold" => Self::Threshold(threshold),
            "threshold-fresh" => Self::Threshold(ThresholdParams {
                history: 0.0,
                ..threshold
            }),
            "threshold-lower" => Self::Threshold(ThresholdParams {
                lower_boundary: true,
                ..threshold
            }),
            "uniform" => Self::Uniform(UniformParams::default()),
            "overload" => Self::Overload(OverloadParams::default()),
            "multi-hit" => Self::MultiHit(MultiHitParams::default()),
            "multi-hit-3" => Self::MultiHit3(MultiHit3Params::default()),
            "avg" => Self::Avg(AvgParams::default()),
            "avg-0.2" => Self::Avg(AvgParams {
                share: 0.2,
                ..AvgParams::default()
            }),
            "avg-pair-keyed" => Self::AvgPairKeyed(AvgParams {
                min_target: 0.0,
                ..AvgParams::default()
            }),
            "transfer" => Self::Transfer(TransferParams::default()),
            "pair-fill" => Self::PairFill(PairFillParams::default()),
            _ => return None,
        })
    }

    /// The family, as reasons and records name it.
    #[must_use]
    pub fn family(&self) -> &'static str {
        match self {
            Self::Threshold(_) => "threshold",
            Self::Overload(_) => "overload",
            Self::Uniform(_) => "uniform",
            Self::MultiHit(_) => "multi-hit",
            Self::MultiHit3(_) => "multi-hit-3",
            Self::Avg(_) => "avg",
            Self::AvgPairKeyed(_) => "avg-pair-keyed",
            Self::Transfer(_) => "transfer",
            Self::PairFill(_) => "pair-fill",
        }
    }
}

/// Seed of the random targets of part B (rule B2.6).
const PLACEMENT_SEED: u64 = 7;

/// Parameters of `threshold`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ThresholdParams {
    /// Weight of the past in a score; 0 is none.
    pub history: f64,
    /// A shard sheds when its score is this much over the mean.
    pub margin: f64,
    /// And sheds this much more than its score is over that.
    pub extra: f64,
    /// Less than this is not worth an act.
    pub min_target: f64,
    /// Whether the highest shard sheds when one is `margin` under the mean.
    pub lower_boundary: bool,
    /// Seed of the random targets.
    pub placement_seed: u64,
}

impl Default for ThresholdParams {
    fn default() -> Self {
        Self {
            history: 0.9,
            margin: 10.0,
            extra: 5.0,
            min_target: 1.0,
            lower_boundary: false,
            placement_seed: PLACEMENT_SEED,
        }
    }
}

/// Parameters of `overload`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OverloadParams {
    /// A shard sheds from this score on.
    pub limit: f64,
    /// And sheds this much more than its score is over that.
    pub extra: f64,
    /// Seed of the random choice among equals.
    pub placement_seed: u64,
}

impl Default for OverloadParams {
    fn default() -> Self {
        Self {
            limit: 85.0,
            extra: 5.0,
            placement_seed: PLACEMENT_SEED,
        }
    }
}

/// Parameters of `uniform`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UniformParams {
    /// It acts when the highest rate is more than this percentage over the lowest.
    pub ratio_percent: f64,
    /// Share of the difference that moves.
    pub share: f64,
    /// Messages per second that are worth an act.
    pub min_rate: f64,
    /// Seed of the random choice among equals.
    pub placement_seed: u64,
}

impl Default for UniformParams {
    fn default() -> Self {
        Self {
            ratio_percent: 50.0,
            share: 0.2,
            min_rate: 1000.0,
            placement_seed: PLACEMENT_SEED,
        }
    }
}

/// Parameters of `multi-hit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiHitParams {
    /// Distance from the mean beyond which a round counts as low.
    pub low: f64,
    /// Distance from the mean beyond which a round counts as high.
    pub high: f64,
    /// Low rounds until it acts.
    pub hits_low: u32,
    /// High rounds until it acts.
    pub hits_high: u32,
}

impl Default for MultiHitParams {
    fn default() -> Self {
        Self {
            low: 10.0,
            high: 40.0,
            hits_low: 5,
            hits_high: 1,
        }
    }
}

/// Parameters of `multi-hit-3`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MultiHit3Params {
    /// Rounds over the limit until it acts.
    pub hits: u32,
    /// The limit, over the mean.
    pub margin: f64,
}

impl Default for MultiHit3Params {
    fn default() -> Self {
        Self {
            hits: 3,
            margin: 10.0,
        }
    }
}

/// Parameters of `avg`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AvgParams {
    /// Share of its gap that a pair moves.
    pub share: f64,
    /// A gap that counts.
    pub low: f64,
    /// A gap that counts as high too.
    pub high: f64,
    /// Low rounds until a pair acts.
    pub hits_low: u32,
    /// High rounds until a pair acts.
    pub hits_high: u32,
    /// No more than this is not worth an act.
    pub min_target: f64,
}

impl Default for AvgParams {
    fn default() -> Self {
        Self {
            share: 0.5,
            low: 15.0,
            high: 40.0,
            hits_low: 8,
            hits_high: 2,
            min_target: 1.0,
        }
    }
}

/// Parameters of `transfer`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferParams {
    /// Deviation of the averaged scores, as shares of a shard, that is still fine.
    pub target_std: f64,
    /// It acts when more rounds than this in a row were not fine.
    pub hits: u32,
    /// Rounds (180 s of 60 s each) that a report must be past the last act.
    pub cool_down_rounds: Round,
    /// Pairs that one plan may settle.
    pub max_pairs: usize,
    /// Only so many of a shard's units are known, the largest.
    pub report_top: usize,
    /// Weight of the past in a score.
    pub history: f64,
}

impl Default for TransferParams {
    fn default() -> Self {
        Self {
            target_std: 0.25,
            hits: 3,
            cool_down_rounds: 3,
            max_pairs: 3,
            report_top: 10,
            history: 0.9,
        }
    }
}

/// Parameters of `pair-fill`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairFillParams {
    /// A gap that counts.
    pub low: f64,
    /// A gap that counts as high too.
    pub high: f64,
    /// Low rounds until a pair acts.
    pub hits_low: u32,
    /// High rounds until a pair acts.
    pub hits_high: u32,
    /// Less relief than this is not worth an act.
    pub min_gain: f64,
    /// Rounds for which a shard is left alone after its hot unit was reported.
    pub backoff_rounds: Round,
}

impl Default for PairFillParams {
    fn default() -> Self {
        Self {
            low: 15.0,
            high: 40.0,
            hits_low: 8,
            hits_high: 2,
            min_gain: 2.0,
            backoff_rounds: 8,
        }
    }
}
