//! The worked example of pulsar#18173: two shards, load that can be divided at will, and a balancer
//! that judges by a score with history (rule B6).

use crate::{Round, history::History, view::EPSILON};

/// How much the higher shard gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Half of what the scores are apart, as long as there is load.
    HalfGap,
    /// What `threshold` gives: a share of the load.
    Share,
}

/// One round of two shards; scores and loads in points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FluidRound {
    /// Its number, from 1.
    pub round: Round,
    /// What each shard is judged by.
    pub scores: [f64; 2],
    /// What moved, from shard 0 to shard 1; below 0 back.
    pub moved: f64,
    /// Load of each after that.
    pub loads: [f64; 2],
}

/// Weight of the past, and distance from the mean that makes a shard give.
const HISTORY: f64 = 0.9;
const MARGIN: f64 = 10.0;
/// What `threshold` gives on top.
const EXTRA: f64 = 5.0;

/// Plays it from `loads`, for so many rounds.
#[must_use]
pub fn run_fluid(amount: Amount, mut loads: [f64; 2], rounds: Round) -> Vec<FluidRound> {
    let mut history = History::new(HISTORY, 2);
    let mut step = |round| {
        let scores = [0, 1].map(|shard| history.step(shard, loads[shard]));
        let mean = (scores[0] + scores[1]) / 2.0;
        let (high, low) = if scores[0] >= scores[1] {
            (0, 1)
        } else {
            (1, 0)
        };
        let mut moved = 0.0;
        if scores[high] >= mean + MARGIN {
            let wanted = match amount {
                Amount::HalfGap => (scores[high] - scores[low]) / 2.0,
                Amount::Share => loads[high] * (scores[high] - mean - MARGIN + EXTRA) / 100.0,
            };
            moved = wanted.min(loads[high]);
            loads[high] -= moved;
            loads[low] += moved;
        }
        FluidRound {
            round,
            scores,
            moved: if high == 0 { moved } else { -moved },
            loads,
        }
    };
    (1..=rounds).map(&mut step).collect()
}

/// Two shards whose loads are `gap` points apart: rounds until their scores are apart enough to act,
/// and rounds for which a perfect repair is not believed. None if a gap is never enough, as up to 20.
#[must_use]
pub fn history_delay(gap: f64) -> Option<(Round, Round)> {
    if gap.is_nan() || gap <= 2.0 * MARGIN {
        return None;
    }
    let limit = 2.0 * MARGIN - EPSILON;
    let (mut rise, mut score) = (0, 0.0);
    while score < limit {
        score = score * HISTORY + (1.0 - HISTORY) * gap;
        rise += 1;
    }
    let (mut accused, mut score) = (0, gap);
    while score >= limit {
        score *= HISTORY;
        accused += 1;
    }
    Some((rise, accused))
}
