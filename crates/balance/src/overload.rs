//! `overload`: an absolute limit, no comparison with other shards. Kept for comparison: where all
//! are over it, units go round without end (rules B3.4 and R6).

use crate::{
    OverloadParams,
    placement::LeastRate,
    view::{Pick, View, at_least},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Overload {
    params: OverloadParams,
    placement: LeastRate,
}

impl Overload {
    pub(crate) fn new(params: OverloadParams) -> Self {
        Self {
            params,
            placement: LeastRate::new(params.placement_seed),
        }
    }

    pub(crate) fn plan(&mut self, seen: &View<'_>) -> Vec<Pick> {
        let OverloadParams { limit, extra, .. } = self.params;
        let mut picked = Vec::new();
        for &shard in seen.shards {
            let score = seen.score(shard);
            if score >= limit {
                let target = score * (score - limit + extra) / 100.0;
                let units = at_least(seen.may_leave(shard), target);
                picked.extend(units.map(|unit| (unit, shard)));
            }
        }
        self.placement.place(seen, picked)
    }
}
