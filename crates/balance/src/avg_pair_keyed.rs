//! `avg-pair-keyed`: `avg` with its hits counted per pair, wrong on purpose. Where two shards take
//! turns as the maximum, every round is the first of another pair, and it never acts (rule R13).

use std::collections::BTreeMap;

use crate::{
    AvgParams,
    view::{Pick, View, at_most, lowest_first},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AvgPairKeyed {
    params: AvgParams,
    /// Low and high hits of a pair that was apart in the last round.
    hits: BTreeMap<[usize; 2], [u32; 2]>,
}

impl AvgPairKeyed {
    pub(crate) fn new(params: AvgParams) -> Self {
        Self {
            params,
            hits: BTreeMap::new(),
        }
    }

    pub(crate) fn plan(&mut self, seen: &View<'_>) -> Vec<Pick> {
        let order = lowest_first(seen.shards, |shard| seen.score(shard));
        let mut picks = Vec::new();
        let mut hits = BTreeMap::new();
        for i in 0..order.len() / 2 {
            let [to, from] = [order[i], order[order.len() - 1 - i]];
            let gap = seen.score(from) - seen.score(to);
            if gap < self.params.low {
                continue;
            }
            let [low, high] = self.hits.get(&[to, from]).copied().unwrap_or_default();
            let low = low + 1;
            let high = if gap >= self.params.high { high + 1 } else { 0 };
            let fires = high >= self.params.hits_high || low >= self.params.hits_low;
            hits.insert([to, from], if fires { [0, 0] } else { [low, high] });
            let target = gap * self.params.share;
            if fires && target > self.params.min_target {
                let units = at_most(seen.movable(from), target);
                picks.extend(units.map(|unit| Pick { unit, from, to }));
            }
        }
        self.hits = hits;
        picks
    }
}
