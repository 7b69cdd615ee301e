//! `pair-fill`, the default: pairs decide when, as in `avg`, on reports newer than the last act; the
//! mean decides how much, and every shard under it receives; and where nothing fits, one unit moves
//! that makes the higher end lower, or an event says which unit is too hot (rule B4).

use crate::{
    HotUnit, PairFillParams, Round,
    hits::{HitCounters, Limits},
    view::{EPSILON, Pick, View, best, highest_first, largest_first, lowest, lowest_first, total},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PairFill {
    params: PairFillParams,
    counters: HitCounters,
    /// Per shard the round in which its last move ended; 0 before any.
    last_move: Vec<Round>,
    /// Per shard the round before which it fires no more.
    quiet_until: Vec<Round>,
}

impl PairFill {
    pub(crate) fn new(params: PairFillParams, shards: usize) -> Self {
        let limits = Limits {
            low: params.low,
            high: params.high,
            hits_low: params.hits_low,
            hits_high: params.hits_high,
        };
        Self {
            params,
            counters: HitCounters::new(limits, shards),
            last_move: vec![0; shards],
            quiet_until: vec![0; shards],
        }
    }

    pub(crate) fn plan(&mut self, seen: &View<'_>, events: &mut Vec<HotUnit>) -> Vec<Pick> {
        let newer =
            |shard: &usize| seen.as_of(*shard) > self.last_move[*shard] && !seen.is_moving(*shard);
        let live: Vec<usize> = seen.shards.iter().copied().filter(newer).collect();
        let fired = self.fired_pairs(seen, &live);
        if fired.is_empty() {
            return Vec::new();
        }
        let mut picks = self.fill(seen, &live);
        for ends in fired {
            events.extend(self.settle(seen, ends, &mut picks));
        }
        picks
    }

    /// A report that is not newer says nothing about the present.
    pub(crate) fn moved(&mut self, from: Option<usize>, to: Option<usize>, round: Round) {
        for shard in [from, to].into_iter().flatten() {
            self.last_move[shard] = self.last_move[shard].max(round);
        }
    }

    /// The pairs that were apart often enough, each as its low and high end.
    fn fired_pairs(&mut self, seen: &View<'_>, live: &[usize]) -> Vec<[usize; 2]> {
        let order = lowest_first(live, |shard| seen.score(shard));
        let mut fired = Vec::new();
        // An odd middle shard keeps its counters.
        for i in 0..order.len() / 2 {
            let ends = [order[i], order[order.len() - 1 - i]];
            let gap = seen.score(ends[1]) - seen.score(ends[0]);
            if self.counters.count(ends, gap)
                && self.counters.reached(ends)
                && seen.round >= self.quiet_until[ends[1]]
            {
                fired.push(ends);
            }
        }
        fired
    }

    /// Less is not worth an act.
    fn min_gain(&self, seen: &View<'_>) -> f64 {
        self.params.min_gain + seen.move_cost
    }

    /// Every shard over the mean, fired or not, fills those under it, to the nearest unit.
    fn fill(&self, seen: &View<'_>, live: &[usize]) -> Vec<Pick> {
        let mean = seen.mean(live);
        let mut excess: Vec<f64> = seen.raw_scores();
        excess.iter_mut().for_each(|score| *score -= mean);
        let mut donors = highest_first(live, |shard| excess[shard]);
        donors.retain(|&shard| excess[shard] >= self.min_gain(seen));
        let mut picks = Vec::new();
        for from in donors {
            // What a donor gives is bounded by what it had over the mean, not by what it received.
            let mut rest = excess[from];
            for unit in seen.may_leave(from) {
                let to = lowest(live.iter().copied(), |shard| excess[shard]);
                let load = unit.load;
                let slack = (load / 2.0).min(self.params.low / 6.0) + EPSILON;
                if 0.0 < load && load <= rest + slack && load <= -excess[to] + slack {
                    picks.push(Pick { unit, from, to });
                    rest -= load;
                    excess[from] -= load;
                    excess[to] += load;
                }
            }
        }
        picks
    }

    /// Prefers one unit that relieves the pair more than the fill did; else reports it as hot.
    fn settle(
        &mut self,
        seen: &View<'_>,
        [low, high]: [usize; 2],
        picks: &mut Vec<Pick>,
    ) -> Option<HotUnit> {
        self.counters.clear([low, high]);
        let leaving = picks.iter().filter(|pick| pick.from == high);
        let filled = total(leaving.map(|pick| pick.unit.load));
        let gap = seen.score(high) - seen.score(low);
        let relief = |load: f64| load.min(gap - load);
        let single = best(&seen.may_leave(high), |unit| relief(unit.load));
        let single = single.filter(|unit| {
            let gain = relief(unit.load);
            gain > filled + EPSILON && gain >= self.min_gain(seen)
        });
        let others_send = picks.iter().any(|pick| pick.to == low && pick.from != high);
        if let Some(unit) = single
            && !others_send
        {
            picks.retain(|pick| pick.from != high);
            picks.push(Pick {
                unit,
                from: high,
                to: low,
            });
            return None;
        }
        if filled >= self.min_gain(seen) {
            return None;
        }
        self.quiet_until[high] = seen.round + self.params.backoff_rounds;
        let largest = largest_first(seen.units(high).to_vec());
        Some(HotUnit {
            round: seen.round,
            shard: seen.reports[high].shard,
            largest: largest.first().map(|unit| (unit.unit, unit.load)),
            gap,
            quiet_until: self.quiet_until[high],
        })
    }
}
