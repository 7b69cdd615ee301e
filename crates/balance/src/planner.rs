//! The strategies at work: parameters with the counters that go with them.

use crate::{
    Plan, Policy, Round, Strategy,
    avg::Avg,
    avg_pair_keyed::AvgPairKeyed,
    multi_hit::MultiHit,
    multi_hit_3::MultiHit3,
    overload::Overload,
    pair_fill::PairFill,
    threshold::Threshold,
    transfer::Transfer,
    uniform::Uniform,
    view::{Pick, View},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Planner {
    Threshold(Threshold),
    Overload(Overload),
    Uniform(Uniform),
    MultiHit(MultiHit),
    MultiHit3(MultiHit3),
    Avg(Avg),
    AvgPairKeyed(AvgPairKeyed),
    Transfer(Transfer),
    PairFill(PairFill),
}

impl Planner {
    /// Counters at zero, for so many shards.
    pub(crate) fn new(policy: &Policy, shards: usize) -> Self {
        match policy.strategy {
            Strategy::Threshold(params) => Self::Threshold(Threshold::new(params, shards)),
            Strategy::Overload(params) => Self::Overload(Overload::new(params)),
            Strategy::Uniform(params) => Self::Uniform(Uniform::new(params)),
            Strategy::MultiHit(params) => Self::MultiHit(MultiHit::new(params, shards)),
            Strategy::MultiHit3(params) => Self::MultiHit3(MultiHit3::new(params, shards)),
            Strategy::Avg(params) => Self::Avg(Avg::new(params, shards)),
            Strategy::AvgPairKeyed(params) => Self::AvgPairKeyed(AvgPairKeyed::new(params)),
            Strategy::Transfer(params) => Self::Transfer(Transfer::new(params, shards)),
            Strategy::PairFill(params) => Self::PairFill(PairFill::new(params, shards)),
        }
    }

    /// The picks of one round. Leaves in `plan` what the shards were judged by, and the events.
    pub(crate) fn plan(&mut self, seen: &View<'_>, plan: &mut Plan) -> Vec<Pick> {
        plan.scores = seen.raw_scores();
        match self {
            Self::Threshold(strategy) => strategy.plan(seen, &mut plan.scores),
            Self::Overload(strategy) => strategy.plan(seen),
            Self::Uniform(strategy) => strategy.plan(seen),
            Self::MultiHit(strategy) => strategy.plan(seen),
            Self::MultiHit3(strategy) => strategy.plan(seen),
            Self::Avg(strategy) => strategy.plan(seen),
            Self::AvgPairKeyed(strategy) => strategy.plan(seen),
            Self::Transfer(strategy) => strategy.plan(seen, &mut plan.scores),
            Self::PairFill(strategy) => strategy.plan(seen, &mut plan.hot_units),
        }
    }

    /// A move from one place to another has been carried out in `round`.
    pub(crate) fn moved(&mut self, from: Option<usize>, to: Option<usize>, round: Round) {
        match self {
            Self::Transfer(strategy) => strategy.moved(from, to, round),
            Self::PairFill(strategy) => strategy.moved(from, to, round),
            Self::Threshold(_)
            | Self::Overload(_)
            | Self::Uniform(_)
            | Self::MultiHit(_)
            | Self::MultiHit3(_)
            | Self::Avg(_)
            | Self::AvgPairKeyed(_) => {}
        }
    }
}
