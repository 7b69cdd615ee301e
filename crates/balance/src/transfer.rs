//! `transfer`: the deviation of averaged scores against a target; a few pairs a cycle, small units
//! first, with a swap where the next one would overshoot. Kept for comparison (rules B3.8 and R8).

use crate::{
    Round, TransferParams, UnitLoad,
    history::History,
    view::{EPSILON, Pick, View, largest_first, lowest_first, mean, total},
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Transfer {
    params: TransferParams,
    history: History,
    hits: u32,
    /// Shards that gave units, and when; until a report of each is past the cool-down.
    gave: Vec<(usize, Round)>,
}

/// Averaged scores as shares of a shard, their mean, and their deviation as the plan proceeds.
struct Spread<'a> {
    score: &'a [f64],
    mean: f64,
    squares: f64,
    deviation: f64,
    count: f64,
}

impl Transfer {
    pub(crate) fn new(params: TransferParams, shards: usize) -> Self {
        Self {
            params,
            history: History::new(params.history, shards),
            hits: 0,
            gave: Vec::new(),
        }
    }

    pub(crate) fn plan(&mut self, seen: &View<'_>, scores: &mut [f64]) -> Vec<Pick> {
        let mut score = vec![0.0; seen.reports.len()];
        for &shard in seen.shards {
            scores[shard] = self.history.step(shard, seen.score(shard));
            score[shard] = scores[shard] / 100.0;
        }
        if self.cools_down(seen) {
            return Vec::new();
        }
        self.gave.clear();
        let mut spread = Spread::new(seen, &score);
        let order = lowest_first(seen.shards, |shard| score[shard]);
        let (mut low_at, mut high_at) = (0, order.len() - 1);
        let hit = self.unbalanced(seen, &spread, order[low_at], order[high_at]);
        self.hits = if hit { self.hits + 1 } else { 0 };
        if self.hits <= self.params.hits {
            return Vec::new();
        }
        let (mut picks, mut pairs_done) = (Vec::new(), 0);
        while pairs_done < self.params.max_pairs && low_at < high_at {
            let (low, high) = (order[low_at], order[high_at]);
            if !self.unbalanced(seen, &spread, low, high) {
                break;
            }
            high_at -= 1;
            let marked = self.shed(seen, &score, high, low, &mut picks);
            if marked > 0.0 {
                spread.shift(low, high, marked * score[high] / seen.score(high));
                pairs_done += 1;
                low_at += 1;
            }
        }
        if !picks.is_empty() {
            self.hits = 0;
        }
        picks
    }

    /// Both ends of a move start a new history.
    pub(crate) fn moved(&mut self, from: Option<usize>, to: Option<usize>, round: Round) {
        for shard in [from, to].into_iter().flatten() {
            self.history.forget(shard);
        }
        self.gave.extend(from.map(|shard| (shard, round)));
    }

    fn cools_down(&self, seen: &View<'_>) -> bool {
        let wait = self.params.cool_down_rounds;
        let mut gave = self.gave.iter();
        gave.any(|&(shard, round)| seen.as_of(shard) < round + wait)
    }

    fn unbalanced(&self, seen: &View<'_>, spread: &Spread<'_>, low: usize, high: usize) -> bool {
        let Spread { score, mean, .. } = *spread;
        let target_std = self.params.target_std;
        let portion = (target_std / 2.0).clamp(0.0, 0.5);
        let rate = |shard: usize| seen.reports[shard].throughput.unwrap_or(score[shard]);
        spread.deviation > target_std
            || score[low] < mean * portion
            || rate(low) < rate(high) * portion
            || (score[high] > 0.85 && score[high] > mean + target_std)
    }

    /// Picks moves from high to low and swaps back; gives the load marked to leave high.
    fn shed(
        &self,
        seen: &View<'_>,
        score: &[f64],
        high: usize,
        low: usize,
        picks: &mut Vec<Pick>,
    ) -> f64 {
        let (high_load, low_load) = (seen.score(high), seen.score(low));
        let wanted = high_load * ((score[high] - score[low]) / 2.0) / score[high];
        let reported = self.reported(seen, high);
        // Offered back once per pair, whatever comes of it.
        let mut swaps = self.reported(seen, low).into_iter();
        let (mut marked, mut left) = (0.0, reported.len());
        for unit in reported {
            if left <= 1 {
                break; // one reported unit always stays
            }
            if !seen.may_move(&unit) {
                continue;
            }
            let after = marked + unit.load;
            if after > wanted + EPSILON {
                let back = swap(
                    &mut swaps,
                    high_load,
                    high_load - marked - unit.load,
                    low_load + after,
                );
                let Some(back) = back else { break };
                picks.extend(back.into_iter().map(|unit| Pick {
                    unit,
                    from: low,
                    to: high,
                }));
            }
            picks.push(Pick {
                unit,
                from: high,
                to: low,
            });
            marked = after;
            left -= 1;
        }
        marked
    }

    /// The largest units of a shard, smallest first.
    fn reported(&self, seen: &View<'_>, shard: usize) -> Vec<UnitLoad> {
        let mut units = largest_first(seen.units(shard).to_vec());
        units.truncate(self.params.report_top);
        units.reverse();
        units
    }
}

/// Units to give back so that the pair ends in order and clearly lower, if there are such.
fn swap(
    candidates: &mut impl Iterator<Item = UnitLoad>,
    high_load: f64,
    mut new_high: f64,
    mut new_low: f64,
) -> Option<Vec<UnitLoad>> {
    let mut back = Vec::new();
    for unit in candidates {
        let (high_after, low_after) = (new_high + unit.load, new_low - unit.load);
        if high_after < high_load && low_after < high_load {
            back.push(unit);
            (new_high, new_low) = (high_after, low_after);
            if new_low <= new_high && new_high < high_load * 0.75 {
                return Some(back);
            }
        }
    }
    None
}

impl<'a> Spread<'a> {
    fn new(seen: &View<'_>, score: &'a [f64]) -> Self {
        let scores = || seen.shards.iter().map(|&shard| score[shard]);
        let (count, mean) = (seen.shards.len() as f64, mean(scores()));
        let squares = total(scores().map(|x| x * x));
        let deviation = (squares / count - mean * mean).max(0.0).sqrt();
        Self {
            score,
            mean,
            squares,
            deviation,
            count,
        }
    }

    /// The deviation once `by` has gone from high to low; the mean stays.
    fn shift(&mut self, low: usize, high: usize, by: f64) {
        let (low, high) = (self.score[low], self.score[high]);
        let (less, more) = ((high - by).max(0.0), low + by);
        self.squares += -high * high - low * low + less * less + more * more;
        self.deviation = (self.squares / self.count - self.mean * self.mean)
            .abs()
            .sqrt();
    }
}
