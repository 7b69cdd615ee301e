//! `threshold`: a score with history against the mean. Kept for comparison: it judges the present
//! by the past, so it sheds again what is long gone (rules B3.1 to B3.3; pulsar#18173).

use crate::{
    ThresholdParams, UnitLoad,
    history::History,
    placement::LeastUsage,
    view::{Pick, View, at_least, highest, mean},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Threshold {
    params: ThresholdParams,
    history: History,
    placement: LeastUsage,
}

impl Threshold {
    pub(crate) fn new(params: ThresholdParams, shards: usize) -> Self {
        let history = History::new(params.history, shards);
        let placement = LeastUsage::new(history.clone(), params.margin, params.placement_seed);
        Self {
            params,
            history,
            placement,
        }
    }

    pub(crate) fn plan(&mut self, seen: &View<'_>, scores: &mut [f64]) -> Vec<Pick> {
        let mean = self.step(seen, scores);
        let mut picked = Vec::new();
        for &shard in seen.shards {
            if scores[shard] >= mean + self.params.margin {
                picked.extend(self.shed(seen, shard, scores[shard] - mean));
            }
        }
        if picked.is_empty() && self.params.lower_boundary {
            picked = self.shed_for_idle(seen);
        }
        self.placement.place(seen, picked)
    }

    /// Steps the histories into `scores` and gives their mean.
    fn step(&mut self, seen: &View<'_>, scores: &mut [f64]) -> f64 {
        for &shard in seen.shards {
            scores[shard] = self.history.step(shard, seen.score(shard));
        }
        mean(seen.shards.iter().map(|&shard| scores[shard]))
    }

    /// What a shard `over` the mean sheds of its present load.
    fn shed(&self, seen: &View<'_>, shard: usize, over: f64) -> Vec<(UnitLoad, usize)> {
        let ThresholdParams {
            margin,
            extra,
            min_target,
            ..
        } = self.params;
        let target = seen.score(shard) * (over - margin + extra) / 100.0;
        if target < min_target {
            return Vec::new();
        }
        let units = at_least(seen.may_leave(shard), target);
        units.map(|unit| (unit, shard)).collect()
    }

    /// Some shard is `margin` under the mean: the highest sheds 5 % of its load. The histories are
    /// stepped a second time in this round, and a shard may lose its only unit (rule R3).
    fn shed_for_idle(&mut self, seen: &View<'_>) -> Vec<(UnitLoad, usize)> {
        let mut scores = seen.raw_scores();
        let mean = self.step(seen, &mut scores);
        let shards = || seen.shards.iter().copied();
        let high = highest(shards(), |shard| scores[shard]);
        let lowest_score = shards().map(|shard| scores[shard]).fold(f64::MAX, f64::min);
        let target = seen.score(high) * self.params.margin / 100.0 * 0.5;
        if lowest_score >= mean - self.params.margin || target < self.params.min_target {
            return Vec::new();
        }
        let units = at_least(seen.movable(high), target);
        units.map(|unit| (unit, high)).collect()
    }
}
