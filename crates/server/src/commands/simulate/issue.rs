//! The worked example of pulsar#18173, round by round, and what its own remedy makes of it.

use std::fmt::Write as _;

use pelton_balance::simulate::{Amount, FluidRound, Run, history_delay, run_fluid};

use super::table::{BOLD, DIM, PLAIN, short};

const START: [f64; 2] = [90.0, 10.0];
const ROUNDS: u64 = 240;

/// Two shards whose load can be divided at will, judged by a score with history.
pub(super) struct Worked {
    pub(super) half_gap: Vec<FluidRound>,
    share: Vec<FluidRound>,
}

impl Worked {
    pub(super) fn new() -> Self {
        Self {
            half_gap: run_fluid(Amount::HalfGap, START, ROUNDS),
            share: run_fluid(Amount::Share, START, ROUNDS),
        }
    }

    pub(super) fn table(&self, runs: &[(String, Run)]) -> String {
        let mut out = format!(
            "{BOLD}pulsar#18173{PLAIN}: two shards at 90 and 10, load that can be divided at will\n\
             Judged by score = 0.9 x old + 0.1 x load; who is 10 over the mean score gives half of \
             what the scores are apart.\n\n\
             {DIM}round  scores         real load      moved            load after{PLAIN}\n"
        );
        let mut loads = START;
        for round in &self.half_gap[..last_act(&self.half_gap)] {
            let moved = match round.moved {
                0.0 => "-".into(),
                moved if moved > 0.0 => format!("{moved:>6.2}  0 to 1"),
                moved => format!("{:>6.2}  1 to 0", -moved),
            };
            let _ = writeln!(
                out,
                "{:>5}  {}  {}  {moved:<15}  {}",
                round.round,
                pair(round.scores),
                pair(loads),
                pair(round.loads).trim_end()
            );
            loads = round.loads;
        }
        let _ = writeln!(
            out,
            "\n{}\nWith what `threshold` gives instead: {}",
            outcome(&self.half_gap),
            outcome(&self.share)
        );
        let gap = START[0] - START[1];
        if let Some((rise, accused)) = history_delay(gap) {
            let _ = writeln!(
                out,
                "A history sees a new gap of {gap} after {rise} rounds, and holds it against a shard \
                 for {accused} more after a perfect repair."
            );
        }
        out.push_str("\nJudged by the load of now instead, in units of 1:\n");
        for (strategy, run) in runs {
            let acts = run.acting_rounds().count();
            let _ = writeln!(
                out,
                "  {BOLD}{strategy}{PLAIN}: {acts} act, in round {}: {} units, {} points, then {} and {}",
                run.last_round(),
                run.moves().count(),
                short(run.points()),
                short(run.final_loads[0]),
                short(run.final_loads[1])
            );
        }
        out
    }
}

/// Rounds until nothing moves any more.
pub(super) fn last_act(rounds: &[FluidRound]) -> usize {
    let last = rounds.iter().rposition(|round| round.moved != 0.0);
    last.map_or(0, |last| last + 1)
}

fn outcome(rounds: &[FluidRound]) -> String {
    let points: f64 = rounds.iter().map(|round| round.moved.abs()).sum();
    let [a, b] = rounds[rounds.len() - 1].loads;
    format!(
        "{points:.2} points moved for a problem of 40, the last in round {}, ending at {a:.2} and {b:.2}.",
        last_act(rounds)
    )
}

fn pair([a, b]: [f64; 2]) -> String {
    format!("{:<13}", format!("{} / {}", short(a), short(b)))
}
