//! `uniform`: the highest message rate against the lowest, one pair a round. Kept for comparison
//! (rules B3.5 and R4).

use crate::{
    UniformParams,
    placement::LeastRate,
    view::{Pick, View, highest},
};

/// A point is so many messages per second (rule B2.7).
const RATE_OF_A_POINT: f64 = 1000.0;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Uniform {
    params: UniformParams,
    placement: LeastRate,
}

impl Uniform {
    pub(crate) fn new(params: UniformParams) -> Self {
        Self {
            params,
            placement: LeastRate::new(params.placement_seed),
        }
    }

    pub(crate) fn plan(&mut self, seen: &View<'_>) -> Vec<Pick> {
        let UniformParams {
            ratio_percent,
            share,
            min_rate,
            ..
        } = self.params;
        let rate = |shard: usize| seen.score(shard) * RATE_OF_A_POINT;
        let shards = || seen.shards.iter().copied();
        let high = highest(shards(), rate);
        let lowest_rate = shards().map(rate).fold(f64::MAX, f64::min);
        // An idle shard counts as one message a second: nothing can be divided by 0.
        let lowest_rate = if lowest_rate.abs() <= 1e-6 {
            1.0
        } else {
            lowest_rate
        };
        let difference = rate(high) - lowest_rate;
        let mut left = (difference * share).trunc();
        if difference * 100.0 / lowest_rate <= ratio_percent || left < min_rate {
            return Vec::new();
        }
        let mut picked = Vec::new();
        for unit in seen.may_leave(high) {
            let rate = unit.load * RATE_OF_A_POINT;
            if 0.0 < rate && rate <= left + min_rate {
                left -= rate;
                picked.push((unit, high));
            }
        }
        self.placement.place(seen, picked)
    }
}
