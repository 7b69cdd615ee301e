//! `avg`: shards sorted by score and paired from the outside in; a pair that was apart often enough
//! moves a share of its gap (rule B3.7).

use crate::{
    AvgParams,
    hits::{HitCounters, Limits},
    view::{Pick, View, at_most, lowest_first},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Avg {
    params: AvgParams,
    counters: HitCounters,
}

impl Avg {
    pub(crate) fn new(params: AvgParams, shards: usize) -> Self {
        let limits = Limits {
            low: params.low,
            high: params.high,
            hits_low: params.hits_low,
            hits_high: params.hits_high,
        };
        Self {
            params,
            counters: HitCounters::new(limits, shards),
        }
    }

    pub(crate) fn plan(&mut self, seen: &View<'_>) -> Vec<Pick> {
        let order = lowest_first(seen.shards, |shard| seen.score(shard));
        let gap = |[low, high]: [usize; 2]| seen.score(high) - seen.score(low);
        let mut apart = Vec::new();
        // An odd middle shard is paired with itself, which ends its row.
        for i in 0..order.len().div_ceil(2) {
            let ends = [order[i], order[order.len() - 1 - i]];
            if self.counters.count(ends, gap(ends)) {
                apart.push(ends);
            }
        }
        if apart.is_empty() {
            self.counters.clear_all();
        }
        let mut picks = Vec::new();
        for ends in apart {
            if !self.counters.reached(ends) {
                continue;
            }
            // Spent even if nothing can move: that is how hits vanish silently (rule R12).
            self.counters.clear(ends);
            let target = gap(ends) * self.params.share;
            if target > self.params.min_target {
                let [to, from] = ends;
                let units = at_most(seen.movable(from), target);
                picks.extend(units.map(|unit| Pick { unit, from, to }));
            }
        }
        picks
    }
}
