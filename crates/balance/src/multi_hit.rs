//! `multi-hit`: the remedy that pulsar#18173 itself proposes. Fresh scores, two distances from the
//! mean with a hit count each, and one act that levels the cluster (rule B3.9).

use crate::{
    MultiHitParams,
    view::{EPSILON, Pick, View, highest_first, lowest},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MultiHit {
    params: MultiHitParams,
    low_hits: Vec<u32>,
    high_hits: Vec<u32>,
}

impl MultiHit {
    pub(crate) fn new(params: MultiHitParams, shards: usize) -> Self {
        Self {
            params,
            low_hits: vec![0; shards],
            high_hits: vec![0; shards],
        }
    }

    pub(crate) fn plan(&mut self, seen: &View<'_>) -> Vec<Pick> {
        let mean = seen.mean(seen.shards);
        let excess = seen.raw_scores().into_iter().map(|score| score - mean);
        let excess: Vec<f64> = excess.collect();
        let mut fired = false;
        for &shard in seen.shards {
            fired |= self.fires(shard, excess[shard].abs());
        }
        match fired {
            true => level(seen, excess),
            false => Vec::new(),
        }
    }

    /// Counts one round of one shard. Firing spends both its counts even if nothing can move; the
    /// counts of the others run on.
    fn fires(&mut self, shard: usize, distance: f64) -> bool {
        let counted = |hits: u32, limit: f64| if distance > limit { hits + 1 } else { 0 };
        let low = counted(self.low_hits[shard], self.params.low);
        let high = counted(self.high_hits[shard], self.params.high);
        let fires = high >= self.params.hits_high || low >= self.params.hits_low;
        (self.low_hits[shard], self.high_hits[shard]) = if fires { (0, 0) } else { (low, high) };
        fires
    }
}

/// Every shard over the mean, fired or not, fills those under it; none crosses the mean.
fn level(seen: &View<'_>, mut excess: Vec<f64>) -> Vec<Pick> {
    let mut picks = Vec::new();
    for from in highest_first(seen.shards, |shard| excess[shard]) {
        if excess[from] <= 0.0 {
            continue;
        }
        for unit in seen.may_leave(from) {
            let to = lowest(seen.shards.iter().copied(), |shard| excess[shard]);
            if 0.0 < unit.load && unit.load <= excess[from].min(-excess[to]) + EPSILON {
                picks.push(Pick { unit, from, to });
                excess[from] -= unit.load;
                excess[to] += unit.load;
            }
        }
    }
    picks
}
