//! Where a unit goes when its strategy names no target: the placements of `threshold`, `overload`
//! and `uniform`, with the faults they are kept for.

use crate::{
    UnitLoad,
    history::History,
    lcg::Lcg,
    view::{EPSILON, Pick, View, mean},
};

/// Steps a history of its own once per placed unit; random among the shards `margin` under the
/// mean, else among all. That "else" is how a loaded shard is given more (rule R2).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeastUsage {
    history: History,
    margin: f64,
    rng: Lcg,
}

impl LeastUsage {
    pub(crate) fn new(history: History, margin: f64, seed: u64) -> Self {
        Self {
            history,
            margin,
            rng: Lcg::new(seed),
        }
    }

    pub(crate) fn place(&mut self, seen: &View<'_>, picked: Vec<(UnitLoad, usize)>) -> Vec<Pick> {
        let place = |(unit, from)| Pick {
            unit,
            from,
            to: self.target(seen),
        };
        picked.into_iter().map(place).collect()
    }

    fn target(&mut self, seen: &View<'_>) -> usize {
        let step = |&shard: &usize| (shard, self.history.step(shard, seen.score(shard)));
        let scores: Vec<(usize, f64)> = seen.shards.iter().map(step).collect();
        let mean = mean(scores.iter().map(|(_, score)| *score));
        let under = |(shard, score): &(usize, f64)| {
            (score + self.margin <= mean + EPSILON).then_some(*shard)
        };
        let fit: Vec<usize> = scores.iter().filter_map(under).collect();
        let fit = if fit.is_empty() { seen.shards } else { &fit };
        fit[self.rng.below(fit.len())]
    }
}

/// A shard above this is full.
const FULL: f64 = 85.0;

/// Lowest score plus what the plan already placed there; equals by chance, and so all of them if
/// all are full (rule R6).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LeastRate {
    rng: Lcg,
}

impl LeastRate {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rng: Lcg::new(seed),
        }
    }

    pub(crate) fn place(&mut self, seen: &View<'_>, picked: Vec<(UnitLoad, usize)>) -> Vec<Pick> {
        let mut placed = vec![0.0; seen.reports.len()];
        let place = |(unit, from): (UnitLoad, usize)| {
            let to = self.target(seen, &placed);
            placed[to] += unit.load;
            Pick { unit, from, to }
        };
        picked.into_iter().map(place).collect()
    }

    fn target(&mut self, seen: &View<'_>, placed: &[f64]) -> usize {
        let rate = |shard: usize| match seen.score(shard) > FULL {
            true => f64::INFINITY,
            false => seen.score(shard) + placed[shard],
        };
        let shards = || seen.shards.iter().copied();
        let least = shards().map(rate).fold(f64::INFINITY, f64::min);
        let fit: Vec<usize> = shards().filter(|&shard| rate(shard) == least).collect();
        fit[self.rng.below(fit.len())]
    }
}
