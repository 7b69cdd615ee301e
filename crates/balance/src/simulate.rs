//! Balancing played through: a cluster on paper, a strategy, round after round.
//!
//! A round does, in this order: the load changes of the scenario; the sample; a plan on the sample
//! of `report_lag` rounds ago with the owners and unit loads of now; its moves, all at once (rule
//! B2.2). The same scenario, policy and seed give the same run.

mod cluster;
mod fluid;
mod scenario;

use crate::{HotUnit, Move, Outcome, Plan, Policy, Round, State, plan, view::total};

pub use fluid::{Amount, FluidRound, history_delay, run_fluid};
pub use scenario::{LoadChanges, Scenario, scenarios};

use cluster::Cluster;

/// Rounds at the end of a run in which a settled cluster does not move (rule B2.3).
const SETTLED_TAIL: Round = 60;

/// What came of a scenario under a policy. Loads are in points.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Every round.
    pub rounds: Vec<RoundRow>,
    /// Moves onto a shard that the unit had lived on.
    pub moves_back: usize,
    /// The highest load of any shard after the moves of any round, without noise.
    pub peak: f64,
    /// Load per shard in the end, without noise and spikes.
    pub final_loads: Vec<f64>,
}

/// One round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundRow {
    /// Its number, from 1.
    pub round: Round,
    /// Load per shard before its moves.
    pub loads: Vec<f64>,
    /// What the strategy judged each shard by.
    pub scores: Vec<f64>,
    /// Its moves, in the order carried out.
    pub moves: Vec<Move>,
    /// Its events.
    pub hot_units: Vec<HotUnit>,
    /// Load per shard after its moves.
    pub loads_after: Vec<f64>,
}

impl Run {
    /// All moves with their rounds.
    pub fn moves(&self) -> impl Iterator<Item = (Round, &Move)> {
        self.rounds
            .iter()
            .flat_map(|row| row.moves.iter().map(|moved| (row.round, moved)))
    }

    /// Load that was moved, each time it was moved.
    #[must_use]
    pub fn points(&self) -> f64 {
        total(self.moves().map(|(_, moved)| moved.reason.load))
    }

    /// Rounds with a move.
    pub fn acting_rounds(&self) -> impl Iterator<Item = Round> {
        let acting = self.rounds.iter().filter(|row| !row.moves.is_empty());
        acting.map(|row| row.round)
    }

    /// The last round with a move, 0 if there was none.
    #[must_use]
    pub fn last_round(&self) -> Round {
        self.acting_rounds().last().unwrap_or(0)
    }

    /// Whether the last 60 rounds are without a move.
    #[must_use]
    pub fn settled(&self) -> bool {
        self.last_round() + SETTLED_TAIL <= self.rounds.len() as Round
    }

    /// Distance between the highest and the lowest shard in the end.
    #[must_use]
    pub fn final_gap(&self) -> f64 {
        gap(&self.final_loads)
    }

    /// Events with their rounds.
    pub fn hot_units(&self) -> impl Iterator<Item = &HotUnit> {
        self.rounds.iter().flat_map(|row| &row.hot_units)
    }
}

impl RoundRow {
    /// Load that moved in this round.
    #[must_use]
    pub fn points(&self) -> f64 {
        total(self.moves.iter().map(|moved| moved.reason.load))
    }

    /// Distance between the highest and the lowest shard before the moves.
    #[must_use]
    pub fn gap_before(&self) -> f64 {
        gap(&self.loads)
    }

    /// Distance between the highest and the lowest shard after the moves.
    #[must_use]
    pub fn gap_after(&self) -> f64 {
        gap(&self.loads_after)
    }
}

/// Distance between the highest and the lowest of some loads; 0 for none.
fn gap(loads: &[f64]) -> f64 {
    let highest = loads.iter().copied().fold(f64::MIN, f64::max);
    let lowest = loads.iter().copied().fold(f64::MAX, f64::min);
    (highest - lowest).max(0.0)
}

/// Plays a scenario through. `noise_seed` matters only to scenarios with noise.
#[must_use]
pub fn run(scenario: &Scenario, policy: &Policy, noise_seed: u64) -> Run {
    let mut cluster = Cluster::new(scenario, noise_seed);
    let mut state = State::default();
    // The samples that a report may still be made of, oldest first.
    let mut samples: Vec<Vec<f64>> = Vec::new();
    let (mut rounds, mut moves_back, mut peak) = (Vec::new(), 0, 0.0_f64);
    for round in 1..=scenario.rounds {
        cluster.change_load(&scenario.changes, round);
        let loads = cluster.loads().to_vec();
        samples.push(loads.clone());
        let as_of = round.saturating_sub(scenario.report_lag).max(1);
        // One sample a round, and none is dropped before it is the one shown for the last time.
        let shown = &samples[samples.len() - 1 - (round - as_of) as usize];
        let reports = cluster.reports(shown, as_of);
        let Plan {
            moves,
            hot_units,
            scores,
        } = plan(reports, round, policy, &mut state);
        for planned in &moves {
            moves_back += usize::from(cluster.carry_out(planned));
            state.finish(planned, round, Outcome::Done);
        }
        if samples.len() as Round > scenario.report_lag {
            samples.remove(0);
        }
        let loads_after = cluster.loads().to_vec();
        peak = cluster.calm_loads().into_iter().fold(peak, f64::max);
        rounds.push(RoundRow {
            round,
            loads,
            scores,
            moves,
            hot_units,
            loads_after,
        });
    }
    Run {
        rounds,
        moves_back,
        peak,
        final_loads: cluster.base_loads(),
    }
}
