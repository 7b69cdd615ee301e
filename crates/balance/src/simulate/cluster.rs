//! The cluster of a scenario: units, where they live, and what their load is in this round.

use crate::{
    Move, Report, Round, ShardId, UnitId, UnitLoad,
    lcg::Lcg,
    simulate::{LoadChanges, Scenario},
};

/// Shards and units numbered from 0: shard 0's units first, then shard 1's.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Load that belongs to a shard and cannot move.
    foreign: Vec<f64>,
    /// Scales all that a shard carries, in this round.
    shard_factor: Vec<f64>,
    units: Vec<Unit>,
    noise: Lcg,
    /// What the fields above come to.
    loads: Vec<f64>,
    reports: Vec<Report>,
    /// They no longer do.
    changed: bool,
}

#[derive(Debug)]
struct Unit {
    base_load: f64,
    /// Scales its load wherever it lives.
    factor: f64,
    owner: usize,
    /// Where it began, for load changes of that shard's units.
    first_home: usize,
    /// Shards it has lived on.
    homes: Vec<usize>,
}

impl Cluster {
    pub(super) fn new(scenario: &Scenario, noise_seed: u64) -> Self {
        let shards = scenario.shards.len();
        let on_shard = |(shard, units): (usize, &Vec<f64>)| {
            let unit = move |&base_load: &f64| Unit {
                base_load,
                factor: 1.0,
                owner: shard,
                first_home: shard,
                homes: vec![shard],
            };
            units.iter().map(unit).collect::<Vec<_>>()
        };
        let report = |shard: usize| Report {
            shard: ShardId(shard as u32),
            as_of: 0,
            score: 0.0,
            throughput: None,
            units: Vec::new(),
        };
        let foreign = |shard| scenario.foreign.get(shard).copied().unwrap_or(0.0);
        let mut cluster = Self {
            foreign: (0..shards).map(foreign).collect(),
            shard_factor: vec![1.0; shards],
            units: scenario
                .shards
                .iter()
                .enumerate()
                .flat_map(on_shard)
                .collect(),
            noise: Lcg::new(noise_seed),
            loads: vec![0.0; shards],
            reports: (0..shards).map(report).collect(),
            changed: true,
        };
        cluster.refresh();
        cluster
    }

    /// Load per shard, now.
    pub(super) fn loads(&mut self) -> &[f64] {
        self.refresh();
        &self.loads
    }

    /// Load per shard without what scales a whole shard.
    pub(super) fn calm_loads(&mut self) -> Vec<f64> {
        match self.shard_factor.iter().all(|factor| *factor == 1.0) {
            true => self.loads().to_vec(),
            false => self.sums(|unit| unit.base_load * unit.factor),
        }
    }

    /// Load per shard without any load change.
    pub(super) fn base_loads(&self) -> Vec<f64> {
        self.sums(|unit| unit.base_load)
    }

    /// The reports of a round: scores as sampled, owners and unit loads of now.
    pub(super) fn reports(&mut self, scores: &[f64], as_of: Round) -> &[Report] {
        self.refresh();
        for (report, score) in self.reports.iter_mut().zip(scores) {
            (report.score, report.as_of) = (*score, as_of);
        }
        &self.reports
    }

    /// Carries a move out; true if the unit had lived there before.
    pub(super) fn carry_out(&mut self, planned: &Move) -> bool {
        let unit = &mut self.units[planned.unit.0 as usize];
        let (from, to) = (planned.from.0 as usize, planned.to.0 as usize);
        assert_eq!(unit.owner, from, "a plan moves a unit from where it is");
        let back = unit.homes.contains(&to);
        if !back {
            unit.homes.push(to);
        }
        unit.owner = to;
        self.changed = true;
        back
    }

    /// The load changes of a round.
    pub(super) fn change_load(&mut self, changes: &LoadChanges, round: Round) {
        match changes {
            LoadChanges::None => return,
            LoadChanges::Spike {
                shard,
                factor,
                first_round,
                rounds,
            } => {
                let on = (*first_round..first_round.saturating_add(*rounds)).contains(&round);
                let spiking = self.units.iter_mut().filter(|u| u.first_home == *shard);
                spiking.for_each(|unit| unit.factor = if on { *factor } else { 1.0 });
            }
            LoadChanges::Alternate {
                odd_rounds,
                even_rounds,
            } => {
                let factors = if round % 2 == 1 {
                    odd_rounds
                } else {
                    even_rounds
                };
                self.shard_factor.clone_from(factors);
            }
            LoadChanges::Noise { amplitude } => {
                for factor in &mut self.shard_factor {
                    *factor = 1.0 + amplitude * (2.0 * self.noise.unit() - 1.0);
                }
            }
        }
        self.changed = true;
    }

    /// Loads and reports are made anew only when something changed: most rounds change nothing.
    fn refresh(&mut self) {
        if !self.changed {
            return;
        }
        self.changed = false;
        self.reports.iter_mut().for_each(|r| r.units.clear());
        let factors = self.foreign.iter().zip(&self.shard_factor);
        self.loads = factors.map(|(load, factor)| load * factor).collect();
        for (number, unit) in self.units.iter().enumerate() {
            let load = unit.base_load * unit.factor * self.shard_factor[unit.owner];
            self.loads[unit.owner] += load;
            self.reports[unit.owner].units.push(UnitLoad {
                unit: UnitId(number as u64),
                load,
            });
        }
    }

    fn sums(&self, load: impl Fn(&Unit) -> f64) -> Vec<f64> {
        let mut sums = self.foreign.clone();
        for unit in &self.units {
            sums[unit.owner] += load(unit);
        }
        sums
    }
}
