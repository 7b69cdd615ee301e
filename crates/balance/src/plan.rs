//! One round of balancing: reports in, moves with reasons and events out.

use std::fmt;

use crate::{
    Policy, Report, Round, ShardId, State, UnitId,
    state::Counting,
    view::{Pick, View},
};

/// What one round came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// To be carried out in this order. Nothing later chooses a target again.
    pub moves: Vec<Move>,
    /// Units that are too hot for any move to help.
    pub hot_units: Vec<HotUnit>,
    /// Per report what the strategy judged its shard by, in points: an average of the past for the
    /// strategies with history, else the score as reported.
    pub scores: Vec<f64>,
}

/// A unit that should go from one shard to another.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// What moves.
    pub unit: UnitId,
    /// Where it is.
    pub from: ShardId,
    /// Where it shall be.
    pub to: ShardId,
    /// Why.
    pub reason: Reason,
}

/// Why a unit moves: what the strategy saw, in points.
#[derive(Clone, Debug, PartialEq)]
pub struct Reason {
    /// Family of the strategy.
    pub strategy: &'static str,
    /// What the giving shard was judged by.
    pub from_score: f64,
    /// What the receiving shard was judged by.
    pub to_score: f64,
    /// Load of the unit.
    pub load: f64,
    /// The highest reported score of any shard, once the whole plan is carried out.
    pub projected_max: f64,
}

/// Two shards are apart, and no unit of the higher one would make its maximum clearly lower: split
/// the topic or give it a shard of its own (rule B8.1). At most one a shard in 8 rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct HotUnit {
    /// When.
    pub round: Round,
    /// The higher shard.
    pub shard: ShardId,
    /// Its largest unit and that unit's load in points; none if all its load is foreign.
    pub largest: Option<(UnitId, f64)>,
    /// How far it is over the lower shard, in points.
    pub gap: f64,
    /// It is left alone before this round.
    pub quiet_until: Round,
}

/// Plans the moves of `round`. The reports stand in ascending order of their shards, one each, and
/// their units ascend too; equal input gives an equal plan. A shard that joined or was lost, or
/// another policy, starts the counters over.
///
/// Each move of the plan is under way until [`State::finish`] is told of its end.
///
/// # Panics
/// When the reports are not in ascending order of their shards.
#[must_use]
pub fn plan(reports: &[Report], round: Round, policy: &Policy, state: &mut State) -> Plan {
    assert!(
        reports.is_sorted_by(|a, b| a.shard < b.shard),
        "one report per shard, in ascending order of shards"
    );
    state.not_before.retain(|_, not_before| *not_before > round);
    state.grace_rounds = policy.grace_rounds;
    let State {
        counting,
        running,
        not_before,
        ..
    } = state;
    let planner = Counting::planner(counting, reports, policy);
    let fresh = |&shard: &usize| reports[shard].as_of.saturating_add(policy.stale_rounds) >= round;
    let shards: Vec<usize> = (0..reports.len()).filter(fresh).collect();
    let mut plan = Plan::default();
    if shards.is_empty() {
        plan.scores = reports.iter().map(|report| report.score).collect();
        return plan;
    }
    let view = View {
        round,
        reports,
        shards: &shards,
        running,
        held: not_before,
        move_cost: policy.move_cost,
    };
    let mut picks = planner.plan(&view, &mut plan);
    // A random target may be the unit's own shard.
    picks.retain(|pick| pick.from != pick.to);
    picks.truncate(policy.max_moves_per_round.unwrap_or(usize::MAX));
    plan.moves = with_reasons(&picks, reports, policy.strategy.family(), &plan.scores);
    running.extend_from_slice(&plan.moves);
    plan
}

fn with_reasons(
    picks: &[Pick],
    reports: &[Report],
    strategy: &'static str,
    scores: &[f64],
) -> Vec<Move> {
    let mut projected: Vec<f64> = reports.iter().map(|report| report.score).collect();
    for pick in picks {
        projected[pick.from] -= pick.unit.load;
        projected[pick.to] += pick.unit.load;
    }
    let projected_max = projected.into_iter().fold(f64::MIN, f64::max);
    let with_reason = |pick: &Pick| Move {
        unit: pick.unit.unit,
        from: reports[pick.from].shard,
        to: reports[pick.to].shard,
        reason: Reason {
            strategy,
            from_score: scores[pick.from],
            to_score: scores[pick.to],
            load: pick.unit.load,
            projected_max,
        },
    };
    picks.iter().map(with_reason).collect()
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {:.1} against {:.1} points, the unit has {:.1}, the highest shard would have {:.1}",
            self.strategy, self.from_score, self.to_score, self.load, self.projected_max
        )
    }
}

impl fmt::Display for HotUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shard, gap) = (self.shard, self.gap);
        write!(f, "shard {shard} is {gap:.1} points over its counterpart, ")?;
        match self.largest {
            Some((unit, load)) => write!(
                f,
                "and no move helps: split unit {unit} ({load:.1} points) or give it a shard of its own"
            ),
            None => write!(f, "and none of its load can move"),
        }
    }
}
