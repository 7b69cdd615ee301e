//! The command line.

pub(crate) mod serve;
pub(crate) mod simulate;

use std::path::PathBuf;

use clap::{
    Parser, Subcommand, ValueEnum,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser as _},
};
use pelton::SHARDS_MAX;
use pelton_load::{DiskDriver, Scenario};

pub(crate) use serve::Serve;
pub(crate) use simulate::Simulate;

/// A message dispatch engine: topics on disk, consumers sent exactly what they asked for.
#[derive(Debug, Parser)]
#[command(name = "pelton", version, after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const AFTER_HELP: &str = "\
Start here:
  pelton bench                 what this machine can do with it: a tour of 10 s
  pelton check                 what this machine lacks, and the remedy
  pelton bench synced          durable receipts beside the disk's own speed
  pelton serve                 a server for clients of Apache Pulsar
  pelton simulate --compare    what each balancing strategy would move
  pelton bench replay --input events.ndjson --speed 1000

Exit codes: 0 fine, 1 the checked thing is not so or could not be checked, 2 usage.";

/// Longer runs than a week are typing errors.
const SECONDS_MAX: f64 = 604_800.0;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Puts load on an engine, checks every message, and shows the figures beside the machine's own
    Bench(Bench),
    /// Reports what the machine offers an engine; exit code 1 if something that matters is missing
    Check(Check),
    /// Reads a data directory without changing it
    Log(Log),
    /// Serves clients of Apache Pulsar, unmodified, until SIGTERM or Ctrl-C
    Serve(Serve),
    /// Plays load on shards through under a balancing strategy: what moves when, and why
    ///
    /// Load is counted in points, one percent of one shard; a unit is what moves whole: a topic.
    /// Nothing is measured and nothing is really moved; the same arguments give the same output.
    Simulate(Simulate),
}

/// Without a scenario: short parts of several, 10 s in all, with a line on what each means.
///
/// The engine runs inside this process, on a directory of its own that is removed afterwards. Every
/// message is checked: published = delivered = acked for each subscription, none lost, doubled or out
/// of order, no permits overrun. The exit code is 1 if that is not so.
#[derive(Debug, clap::Args)]
#[command(after_help = BENCH_HELP)]
pub(crate) struct Bench {
    /// What to run
    #[arg(value_name = "SCENARIO", default_value = "mix", value_parser = scenario_parser())]
    pub(crate) scenario: Scenario,

    /// replay: file with one JSON object a line; time_ms gives the arrival times
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,

    /// replay: field that holds a line's key; order is kept and checked per key
    #[arg(long, value_name = "FIELD")]
    pub(crate) key: Option<String>,

    /// replay: how many times as fast as recorded (default: so that it takes --duration)
    #[arg(long, value_name = "X", value_parser = positive, allow_negative_numbers = true)]
    pub(crate) speed: Option<f64>,

    /// Measured time in seconds; without a scenario the time of all of it (default: 10)
    #[arg(long, value_name = "S", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) duration: Option<f64>,

    /// Messages per second; latency then counts from the intended send times (default: as many as go)
    #[arg(long, value_name = "R", value_parser = at_least_1, allow_negative_numbers = true)]
    pub(crate) rate: Option<u64>,

    /// Shards of the engine, one thread each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = shards, allow_negative_numbers = true)]
    pub(crate) shards: usize,

    /// When a message counts as stored (default: by scenario)
    #[arg(long, value_enum)]
    pub(crate) durability: Option<Durability>,

    /// Bytes of a message, at least 24 (default: by scenario)
    #[arg(long, value_name = "BYTES", value_parser = at_least_1, allow_negative_numbers = true)]
    pub(crate) size: Option<u64>,

    /// Messages in an entry (default: 1, for batch 100)
    #[arg(long, value_name = "N", value_parser = at_least_1, allow_negative_numbers = true)]
    pub(crate) batch: Option<u64>,

    /// What to drive
    #[arg(long, value_enum, default_value_t = Target::Embedded)]
    pub(crate) target: Target,

    /// Existing directory in which the run makes one of its own, which it removes (default: the current)
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Disk driver (default: what the environment's DISK says, else auto)
    #[arg(long, value_enum)]
    pub(crate) disk: Option<Disk>,

    /// Writes all figures as one JSON object; - is standard output, in place of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,

    /// Writes the main latency as an HdrHistogram percentile distribution, in microseconds
    #[arg(long, value_name = "FILE")]
    pub(crate) hgrm: Option<PathBuf>,

    /// Writes a page with a percentile plot and all figures
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

const BENCH_HELP: &str = "\
Examples:
  pelton bench rtt
  pelton bench throughput --rate 200000 --html page.html
  pelton bench synced --dir /var/lib/somewhere
  pelton simulate --compare    what each balancing strategy would move
  pelton bench replay --input flights.ndjson --key origin --shards 2";

/// What a run drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Target {
    /// An engine inside this process
    Embedded,
}

/// When a message counts as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Durability {
    /// At once; it is never written
    Memory,
    /// When it is written to the kernel
    Written,
    /// When it is written and synced
    Synced,
}

/// How the disk is driven.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Disk {
    /// io_uring where it can be had, else a pool of threads
    Auto,
    /// io_uring, or an error
    Uring,
    /// A pool of threads
    Pread,
}

impl From<Disk> for DiskDriver {
    fn from(disk: Disk) -> DiskDriver {
        match disk {
            Disk::Auto => DiskDriver::Auto,
            Disk::Uring => DiskDriver::Uring,
            Disk::Pread => DiskDriver::Pread,
        }
    }
}

impl From<Disk> for pelton::Disk {
    fn from(disk: Disk) -> pelton::Disk {
        match disk {
            Disk::Auto => pelton::Disk::Auto,
            Disk::Uring => pelton::Disk::Uring,
            Disk::Pread => pelton::Disk::Pread,
        }
    }
}

impl From<Durability> for pelton::Durability {
    fn from(durability: Durability) -> pelton::Durability {
        match durability {
            Durability::Memory => pelton::Durability::Memory,
            Durability::Written => pelton::Durability::Written,
            Durability::Synced => pelton::Durability::Synced,
        }
    }
}

#[derive(Debug, clap::Args)]
pub(crate) struct Check {
    /// Directory an engine would keep its data in
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,

    /// Shards an engine would have
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = shards, allow_negative_numbers = true)]
    pub(crate) shards: usize,

    /// Leaves out the disk measurement, which takes 2 s
    #[arg(long)]
    pub(crate) no_probe: bool,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Log {
    #[command(subcommand)]
    pub(crate) command: LogCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogCommand {
    /// Reads every block and says what is there, missing or damaged; exit code 1 if damaged
    Verify {
        /// Data directory of an engine
        dir: PathBuf,
    },
    /// Prints the stored entries in the order of the log
    Dump {
        /// Data directory of an engine
        dir: PathBuf,
        /// Ends after so many entries
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
    },
}

fn scenario_parser() -> impl clap::builder::TypedValueParser<Value = Scenario> {
    let values = Scenario::ALL.map(|s| PossibleValue::new(s.name()).help(s.help()));
    PossibleValuesParser::new(values).map(|name| {
        let found = Scenario::ALL
            .into_iter()
            .find(|scenario| scenario.name() == name);
        found.expect("only names of scenarios pass")
    })
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value.is_finite() && value > 0.0 => Ok(value),
        _ => Err("give a number above 0".into()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match positive(text)? {
        value if value <= SECONDS_MAX => Ok(value),
        _ => Err("give a number above 0, at most 604800 (a week)".into()),
    }
}

fn shards(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(shards) if (1..=SHARDS_MAX).contains(&shards) => Ok(shards),
        _ => Err(format!("give a whole number, 1 to {SHARDS_MAX}")),
    }
}

fn at_least_1(text: &str) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(value) if value > 0 => Ok(value),
        _ => Err("give a whole number, 1 or more".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn without_a_scenario_it_is_the_tour() {
        let args = Args::try_parse_from(["pelton", "bench"]).unwrap();
        let Command::Bench(bench) = args.command else {
            panic!("bench is bench");
        };
        assert_eq!((bench.scenario, bench.shards), (Scenario::Mix, 1));
    }

    #[test]
    fn every_scenario_is_known_and_no_other() {
        for scenario in Scenario::ALL {
            let args = ["pelton", "bench", scenario.name()];
            assert!(Args::try_parse_from(args).is_ok(), "{}", scenario.name());
        }
        assert!(Args::try_parse_from(["pelton", "bench", "speed"]).is_err());
    }

    #[test]
    fn numbers_that_make_no_sense_are_usage_errors() {
        for bad in ["0", "-1", "nan", "inf", "fast"] {
            for option in [
                "--duration",
                "--speed",
                "--rate",
                "--shards",
                "--size",
                "--batch",
            ] {
                let error = Args::try_parse_from(["pelton", "bench", option, bad]).unwrap_err();
                assert_eq!(error.exit_code(), 2, "{option} {bad}");
                let text = error.to_string();
                assert!(text.contains(option) && text.contains("give a "), "{text}");
            }
        }
    }

    #[test]
    fn a_scenario_typed_wrong_is_answered_with_the_nearest() {
        let error = Args::try_parse_from(["pelton", "bench", "spynced"]).unwrap_err();
        assert!(error.to_string().contains("'synced'"), "{error}");
    }
}
