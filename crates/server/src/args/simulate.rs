//! The command line of `pelton simulate`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser};
use pelton_balance::simulate::scenarios;

/// The worked example with divisible load, which is no scenario of the tables.
pub(crate) const ISSUE: &str = "issue-18173";

#[derive(Debug, clap::Args)]
#[command(after_long_help = HELP, after_help = "Your own loads and examples: pelton simulate --help")]
pub(crate) struct Simulate {
    /// What to play (default: S0)
    #[arg(value_name = "SCENARIO", value_parser = scenario_parser(), conflicts_with = "input")]
    pub(crate) scenario: Option<String>,

    /// Plays your own loads, from a TOML file
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,

    /// Who decides what moves (default: pair-fill)
    #[arg(long, value_name = "S", value_parser = strategy_parser())]
    pub(crate) strategy: Option<String>,

    /// All strategies side by side
    #[arg(long, conflicts_with = "strategy")]
    pub(crate) compare: bool,

    /// Seed of the noise, in scenarios that have some
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Writes every round as one JSON object
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Writes a picture of the load of each shard over the rounds
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

/// In the order of the tables.
const STRATEGIES: [[&str; 2]; 11] = [
    [
        "threshold",
        "a score with history against the mean; a random shard receives",
    ],
    ["threshold-fresh", "the same without history"],
    [
        "threshold-lower",
        "threshold, and the highest sheds when one is far under the mean",
    ],
    ["uniform", "the highest message rate against the lowest"],
    ["overload", "whoever is over 85 points sheds"],
    [
        "multi-hit",
        "distance from the mean in one round of 40 or five of 10, levels all",
    ],
    [
        "multi-hit-3",
        "three rounds of 10 over the mean, half the gap to the lowest",
    ],
    ["avg", "highest and lowest in pairs, half their gap"],
    ["avg-0.2", "the same with a fifth of the gap"],
    [
        "transfer",
        "deviation of averaged scores, small units first, with swaps",
    ],
    [
        "pair-fill",
        "pairs decide when, all under the mean are filled; reports hot units",
    ],
];

const HELP: &str = "\
Your own loads, --input loads.toml:
  title = \"orders is hot\"    # optional, as are the next two
  rounds = 240               # how long to play
  report_lag = 0             # rounds that a report is old when it is used

  [[shard]]                  # one for each shard
  units = [40, 20.5, 2]      # load of each of its topics, in points
  foreign = 10               # optional: load that cannot move

  [[shard]]                  # without units: it has just joined

  [spike]                    # optional: the topics of a shard grow for some rounds
  shard = 0                  # counted from 0
  factor = 1.6
  first_round = 10
  rounds = 3

  # [noise]                  # instead of a spike: all that a shard carries, times
  # amplitude = 0.2          # 0.8 to 1.2, by chance and anew in each round

Examples:
  pelton simulate issue-18173
  pelton simulate --compare
  pelton simulate S2b --strategy multi-hit --svg s2b.svg
  pelton simulate --input loads.toml --compare --json all.json";

/// Every scenario, with its title as help: what `--help` lists.
pub(crate) fn names() -> Vec<[String; 2]> {
    let issue = "pulsar#18173 step by step: history moves 182 points for a problem of 40";
    let issue = [ISSUE.into(), issue.into()];
    let named = scenarios().into_iter().map(|s| [s.name, s.title]);
    [issue].into_iter().chain(named).collect()
}

fn scenario_parser() -> PossibleValuesParser {
    let names = names().into_iter();
    PossibleValuesParser::new(names.map(|[name, title]| PossibleValue::new(name).help(title)))
}

fn strategy_parser() -> PossibleValuesParser {
    let wrong = PossibleValue::new("avg-pair-keyed").hide(true);
    let named = STRATEGIES.map(|[name, help]| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(named.into_iter().chain([wrong]))
}

#[cfg(test)]
mod tests {
    use pelton_balance::Strategy;

    use super::*;

    #[test]
    fn every_strategy_and_scenario_that_is_accepted_exists() {
        let strategies = Strategy::NAMES.into_iter().chain(["avg-pair-keyed"]);
        strategies.for_each(|name| assert!(Strategy::named(name).is_some(), "{name}"));
        assert_eq!(STRATEGIES.map(|[name, _]| name), Strategy::NAMES);
        assert_eq!(names().len(), scenarios().len() + 1);
    }
}
