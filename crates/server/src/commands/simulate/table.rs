//! A run, or all of them, as text for a terminal.

use std::fmt::Write as _;

use pelton_balance::{
    Move, ShardId,
    simulate::{RoundRow, Run, Scenario},
};

pub(super) const BOLD: &str = "\x1b[1m";
pub(super) const DIM: &str = "\x1b[2m";
pub(super) const PLAIN: &str = "\x1b[0m";

/// More shards than this are shown as their highest, mean and lowest.
const SHARDS_SHOWN: usize = 12;

/// The rounds of one run in which something happened, and the sum of it.
pub(super) fn rounds(scenario: &Scenario, runs: &[(String, Run)]) -> String {
    let mut out = head(scenario);
    for (strategy, run) in runs {
        let _ = writeln!(out, "\n{BOLD}{strategy}{PLAIN}");
        let width = loads(&run.rounds[0].loads).len().max(10);
        let _ = writeln!(
            out,
            "{DIM}round  {:<width$}  gap after  moves{PLAIN}",
            "load after"
        );
        let before = loads(&run.rounds[0].loads);
        let gap = run.rounds[0].gap_before();
        let _ = writeln!(
            out,
            "    -  {before:<width$}  {gap:>9.1}  {DIM}the start{PLAIN}"
        );
        let mut told: Vec<String> = Vec::new();
        for row in &run.rounds {
            // What was reported before is only counted, below.
            let events: Vec<String> = row.hot_units.iter().map(ToString::to_string).collect();
            let news = events.iter().filter(|event| !told.contains(event));
            let news: Vec<String> = news.cloned().collect();
            if !row.moves.is_empty() || !news.is_empty() {
                round(&mut out, row, &news, width);
            }
            told.extend(news);
        }
        out.push_str(&sum(scenario, run));
    }
    out
}

fn round(out: &mut String, row: &RoundRow, events: &[String], width: usize) {
    let (after, gap) = (loads(&row.loads_after), row.gap_after());
    let _ = write!(out, "{:>5}  {after:<width$}  {gap:>9.1}  ", row.round);
    let mut parts = moves(&row.moves);
    // Judged by something else than the load: that is worth seeing.
    if !row.moves.is_empty() && row.scores != row.loads {
        parts.push(format!(
            "{DIM}at scores {}{PLAIN}",
            loads(&row.scores).trim()
        ));
    }
    parts.extend(events.iter().cloned());
    let _ = writeln!(out, "{}", parts.join("; "));
}

/// Moves between the same two shards in one.
fn moves(moves: &[Move]) -> Vec<String> {
    let mut pairs: Vec<(ShardId, ShardId, usize, f64)> = Vec::new();
    for planned in moves {
        let load = planned.reason.load;
        let same = |(from, to, ..): &&mut (ShardId, ShardId, usize, f64)| {
            (*from, *to) == (planned.from, planned.to)
        };
        match pairs.iter_mut().find(same) {
            Some((_, _, count, points)) => {
                *count += 1;
                *points += load;
            }
            None => pairs.push((planned.from, planned.to, 1, load)),
        }
    }
    let text = |(from, to, count, points): &(ShardId, ShardId, usize, f64)| {
        let units = if *count == 1 { "unit" } else { "units" };
        format!("{count} {units} of {} from {from} to {to}", short(*points))
    };
    pairs.iter().map(text).collect()
}

fn loads(loads: &[f64]) -> String {
    if loads.len() <= SHARDS_SHOWN {
        let each = loads.iter().map(|load| format!("{load:>5.1}"));
        return each.collect::<Vec<_>>().join(" ");
    }
    let highest = loads.iter().copied().fold(f64::MIN, f64::max);
    let lowest = loads.iter().copied().fold(f64::MAX, f64::min);
    let mean = loads.iter().sum::<f64>() / loads.len() as f64;
    format!("highest {highest:>5.1}  mean {mean:>5.1}  lowest {lowest:>5.1}")
}

/// What it came to in a few sentences.
fn sum(scenario: &Scenario, run: &Run) -> String {
    let mut out = String::from("\n");
    let count = run.moves().count();
    let excess = short(scenario.excess());
    let _ = match (count, run.settled()) {
        (0, _) => writeln!(out, "Nothing moved; {excess} points are over the mean."),
        (_, false) => writeln!(
            out,
            "{BOLD}It never settles:{PLAIN} {count} moves in {} of {} rounds, {} points moved for \
             {excess} over the mean.",
            run.acting_rounds().count(),
            scenario.rounds,
            short(run.points())
        ),
        (_, true) => writeln!(
            out,
            "{count} moves, the last in round {}; {} points moved for {excess} over the mean.",
            run.last_round(),
            short(run.points())
        ),
    };
    if run.moves_back > 0 {
        let _ = writeln!(
            out,
            "{} of them went back to where the unit had been.",
            run.moves_back
        );
    }
    let gap = run.final_gap();
    let _ = writeln!(
        out,
        "In the end the shards are {} points apart.",
        short(gap)
    );
    if let Some(last) = run.hot_units().last() {
        let _ = writeln!(
            out,
            "Hot units were reported {} times, the last time in round {}.",
            run.hot_units().count(),
            last.round
        );
    }
    out
}

/// All strategies side by side.
pub(super) fn compare(scenario: &Scenario, runs: &[(String, Run)]) -> String {
    let mut out = head(scenario);
    let _ = writeln!(
        out,
        "\n{DIM}{:<16} {:>10} {:>6} {:>6} {:>8} {:>6} {:>10} {:>9}{PLAIN}",
        "strategy", "last round", "moves", "back", "points", "peak", "gap at end", "hot units"
    );
    for (strategy, run) in runs {
        let last = match run.settled() {
            true => run.last_round().to_string(),
            false => "never".into(),
        };
        let _ = writeln!(
            out,
            "{strategy:<16} {last:>10} {:>6} {:>6} {:>8} {:>6} {:>10} {:>9}",
            run.moves().count(),
            run.moves_back,
            short(run.points()),
            short(run.peak),
            short(run.final_gap()),
            run.hot_units().count()
        );
    }
    let _ = writeln!(
        out,
        "\nlast round: of a move; never: still moving in the last 60. back: moves to where the unit \
         had been.\npoints: load moved. peak: of any shard after any round. hot units: reports of \
         load that no move helps."
    );
    out
}

fn head(scenario: &Scenario) -> String {
    let units: usize = scenario.shards.iter().map(Vec::len).sum();
    let lag = match scenario.report_lag {
        0 => String::new(),
        lag => format!(", reports {lag} rounds old"),
    };
    format!(
        "{BOLD}{}{PLAIN}: {}\n{} shards, {units} units, {} rounds{lag}; {} points are over the mean, \
         the least that has to move\n",
        scenario.name,
        scenario.title,
        scenario.shards.len(),
        scenario.rounds,
        short(scenario.excess())
    )
}

/// At most two places, none that is 0.
pub(super) fn short(number: f64) -> String {
    ((number * 100.0).round() / 100.0).to_string()
}
