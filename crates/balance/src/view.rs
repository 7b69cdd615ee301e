//! What a strategy may see of one round, and the selections that strategies share.
//!
//! Shards are numbered by their place in the reports. Ties go to the lower shard and the lower
//! unit; sums run in that order, so that equal input gives equal bits (rules B2.1 and B2.5).

use std::{cmp::Ordering, collections::BTreeMap};

use crate::{Move, Report, Round, UnitId, UnitLoad};

/// Absorbs the rounding of loads that add up to a limit.
pub(crate) const EPSILON: f64 = 1e-9;

/// One round as a strategy sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) round: Round,
    pub(crate) reports: &'a [Report],
    /// The shards that take part: in order, none with a report too old to act on.
    pub(crate) shards: &'a [usize],
    /// Moves under way.
    pub(crate) running: &'a [Move],
    /// Units that must stay where they are for now.
    pub(crate) held: &'a BTreeMap<UnitId, Round>,
    /// What a move costs, in points.
    pub(crate) move_cost: f64,
}

/// A unit picked to move, shards by their place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Pick {
    pub(crate) unit: UnitLoad,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

impl<'a> View<'a> {
    pub(crate) fn score(&self, shard: usize) -> f64 {
        self.reports[shard].score
    }

    pub(crate) fn as_of(&self, shard: usize) -> Round {
        self.reports[shard].as_of
    }

    pub(crate) fn units(&self, shard: usize) -> &'a [UnitLoad] {
        &self.reports[shard].units
    }

    /// Whether a unit may move now.
    pub(crate) fn may_move(&self, unit: &UnitLoad) -> bool {
        unit.load >= self.move_cost
            && !self.held.contains_key(&unit.unit)
            && self.running.iter().all(|running| running.unit != unit.unit)
    }

    /// Whether a move from or to this shard is under way.
    pub(crate) fn is_moving(&self, shard: usize) -> bool {
        let shard = self.reports[shard].shard;
        let mut running = self.running.iter();
        running.any(|running| running.from == shard || running.to == shard)
    }

    /// Mean score of `shards`.
    pub(crate) fn mean(&self, shards: &[usize]) -> f64 {
        mean(shards.iter().map(|&shard| self.score(shard)))
    }

    /// The scores by place, for strategies that judge by nothing else.
    pub(crate) fn raw_scores(&self) -> Vec<f64> {
        self.reports.iter().map(|report| report.score).collect()
    }

    /// Units that may move now, largest first.
    pub(crate) fn movable(&self, shard: usize) -> Vec<UnitLoad> {
        let units = self.units(shard).iter().copied();
        largest_first(units.filter(|unit| self.may_move(unit)).collect())
    }

    /// The same for strategies that leave every shard one unit (rule B2.4).
    pub(crate) fn may_leave(&self, shard: usize) -> Vec<UnitLoad> {
        match self.units(shard).len() {
            0 | 1 => Vec::new(),
            _ => self.movable(shard),
        }
    }
}

/// Sum divided by count, the sum from left to right.
pub(crate) fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    total(values) / count
}

/// The sum from left to right, starting at 0.
pub(crate) fn total(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(0.0, |sum, value| sum + value)
}

/// By value, -0 and 0 being equal. Values are finite.
fn by_value(a: f64, b: f64) -> Ordering {
    (a + 0.0).total_cmp(&(b + 0.0))
}

/// Largest load first.
pub(crate) fn largest_first(mut units: Vec<UnitLoad>) -> Vec<UnitLoad> {
    units.sort_by(|a, b| by_value(b.load, a.load).then(a.unit.cmp(&b.unit)));
    units
}

/// Shards by value, lowest first.
pub(crate) fn lowest_first(shards: &[usize], value: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut order = shards.to_vec();
    order.sort_by(|&a, &b| by_value(value(a), value(b)).then(a.cmp(&b)));
    order
}

/// Shards by value, highest first.
pub(crate) fn highest_first(shards: &[usize], value: impl Fn(usize) -> f64) -> Vec<usize> {
    lowest_first(shards, |shard| -value(shard))
}

/// The shard of the lowest value; `shards` is not empty.
pub(crate) fn lowest(shards: impl Iterator<Item = usize>, value: impl Fn(usize) -> f64) -> usize {
    shards
        .min_by(|&a, &b| by_value(value(a), value(b)).then(a.cmp(&b)))
        .expect("a plan for no shards ends before it compares them")
}

/// The shard of the highest value; `shards` is not empty.
pub(crate) fn highest(shards: impl Iterator<Item = usize>, value: impl Fn(usize) -> f64) -> usize {
    lowest(shards, |shard| -value(shard))
}

/// Units in the given order until `target` is reached, at least one: it may overshoot.
pub(crate) fn at_least(units: Vec<UnitLoad>, target: f64) -> impl Iterator<Item = UnitLoad> {
    let mut done = None;
    units.into_iter().take_while(move |unit| {
        let wanted = done.is_none_or(|done| done < target);
        done = Some(done.unwrap_or(0.0) + unit.load);
        wanted
    })
}

/// Units in the given order that fit into `target`, skipping what does not.
pub(crate) fn at_most(units: Vec<UnitLoad>, target: f64) -> impl Iterator<Item = UnitLoad> {
    let mut left = target;
    units.into_iter().filter(move |unit| {
        let fits = 0.0 < unit.load && unit.load <= left + EPSILON;
        if fits {
            left -= unit.load;
        }
        fits
    })
}

/// The unit of the greatest value, the lowest of equals.
pub(crate) fn best(units: &[UnitLoad], value: impl Fn(&UnitLoad) -> f64) -> Option<UnitLoad> {
    let order =
        |a: &&UnitLoad, b: &&UnitLoad| by_value(value(a), value(b)).then(b.unit.cmp(&a.unit));
    units.iter().max_by(order).copied()
}
