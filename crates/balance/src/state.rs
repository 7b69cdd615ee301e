//! What a balancer remembers from round to round: counters, moves under way, units in grace.
//!
//! A plan without acting is a plan on a clone.

use std::collections::BTreeMap;

use crate::{Move, Policy, Report, Round, ShardId, UnitId, planner::Planner};

/// Rounds for which the unit of an aborted move stays where it is (rule C7.2).
const ABORT_BLOCK_ROUNDS: Round = 8;

/// How a planned move ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The unit lives on its target now.
    Done,
    /// It was tried, and the unit is back where it was. It is not tried again for 8 rounds.
    Aborted,
    /// It was never begun.
    Dropped,
}

/// The memory of a balancer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// The counters of the strategy, and for whom they count.
    pub(crate) counting: Option<Counting>,
    /// Moves that were planned and have not ended.
    pub(crate) running: Vec<Move>,
    /// Of the last policy; grace outlives the counters.
    pub(crate) grace_rounds: Round,
    /// Units that must stay where they are before a round.
    pub(crate) not_before: BTreeMap<UnitId, Round>,
}

/// Counters by place, which mean something under one policy and for one list of shards alone.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Counting {
    pub(crate) policy: Policy,
    pub(crate) members: Vec<ShardId>,
    pub(crate) planner: Planner,
}

impl State {
    /// Ends a planned move in `round`. Every move of a plan is ended once; until then its unit is
    /// planned no second time, and pair-fill leaves both its ends alone (rules B4.5 and C7.2). A
    /// move that is not under way changes nothing.
    pub fn finish(&mut self, ended: &Move, round: Round, outcome: Outcome) {
        let Some(at) = self.running.iter().position(|running| running == ended) else {
            return;
        };
        self.running.swap_remove(at);
        match outcome {
            Outcome::Done => {
                self.forbid(ended.unit, (round + 1).saturating_add(self.grace_rounds));
                if let Some(counting) = &mut self.counting {
                    counting.moved(ended, round);
                }
            }
            Outcome::Aborted => self.forbid(ended.unit, round + ABORT_BLOCK_ROUNDS),
            Outcome::Dropped => {}
        }
    }

    /// The unit is not planned before `round`; 0 lifts that. For whoever knows of moves that this
    /// state has not seen, such as a coordinator that has just taken over.
    pub fn forbid(&mut self, unit: UnitId, round: Round) {
        self.not_before.insert(unit, round);
    }

    /// Clears the counters, but neither the grace of units nor what is under way. A joined or lost
    /// shard and a changed policy do this by themselves (rules B1.5 and P9).
    pub fn clear_counters(&mut self) {
        self.counting = None;
    }

    /// Moves that were planned and have not ended.
    #[must_use]
    pub fn running(&self) -> &[Move] {
        &self.running
    }
}

impl Counting {
    /// The planner for this policy and these shards: the old one if it fits, else one whose
    /// counters are at zero.
    pub(crate) fn planner<'a>(
        counting: &'a mut Option<Self>,
        reports: &[Report],
        policy: &Policy,
    ) -> &'a mut Planner {
        let members = || reports.iter().map(|report| report.shard);
        let fits = |old: &Self| old.policy == *policy && old.members.iter().copied().eq(members());
        let new = || Self {
            policy: policy.clone(),
            members: members().collect(),
            planner: Planner::new(policy, reports.len()),
        };
        let fitting = counting.take().filter(fits);
        &mut counting.insert(fitting.unwrap_or_else(new)).planner
    }

    fn moved(&mut self, done: &Move, round: Round) {
        let place = |shard| self.members.binary_search(&shard).ok();
        // A shard that has left since has no counters any more.
        self.planner.moved(place(done.from), place(done.to), round);
    }
}
