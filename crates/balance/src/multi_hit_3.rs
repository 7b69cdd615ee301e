//! `multi-hit-3`: a simpler relative of `multi-hit`. One limit, over the mean only; each shard that
//! was over it three rounds in a row moves half its gap to the lowest (rule B3.6).

use crate::{
    MultiHit3Params,
    view::{Pick, View, at_most, highest_first, lowest},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MultiHit3 {
    params: MultiHit3Params,
    hits: Vec<u32>,
}

impl MultiHit3 {
    pub(crate) fn new(params: MultiHit3Params, shards: usize) -> Self {
        Self {
            params,
            hits: vec![0; shards],
        }
    }

    pub(crate) fn plan(&mut self, seen: &View<'_>) -> Vec<Pick> {
        let limit = seen.mean(seen.shards) + self.params.margin;
        for &shard in seen.shards {
            let over = seen.score(shard) >= limit;
            self.hits[shard] = if over { self.hits[shard] + 1 } else { 0 };
        }
        let mut picks: Vec<Pick> = Vec::new();
        let mut receivers = Vec::new();
        for from in highest_first(seen.shards, |shard| seen.score(shard)) {
            let over = seen.score(from) >= limit;
            if !over || self.hits[from] < self.params.hits {
                continue;
            }
            let unused = seen.shards.iter().copied();
            let unused = unused.filter(|shard| !receivers.contains(shard));
            let to = lowest(unused, |shard| seen.score(shard));
            self.hits[from] = 0;
            receivers.push(to);
            let half_gap = (seen.score(from) - seen.score(to)) / 2.0;
            let units = at_most(seen.may_leave(from), half_gap);
            picks.extend(units.map(|unit| Pick { unit, from, to }));
        }
        picks
    }
}
