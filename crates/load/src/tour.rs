//! Runs one scenario from start to end: engine, parts, shutdown, report.

use std::time::Duration;

use pelton::{Durability, Engine};

use crate::{
    LoadError,
    bench::Bench,
    report::{Part, Report},
    runs,
    scenario::{Options, Scenario},
};

/// An engine that has nothing to do any more gets this long to stop.
const SHUTDOWN: Duration = Duration::from_secs(30);

/// Does what `options` say; `progress` is told now and then what is being done, in a few words.
///
/// A fault of the engine (lost, doubled, out of order, overrun) is no error but in the report:
/// [`Report::violations`]. The directory of the run is removed in either case.
///
/// # Errors
/// [`LoadError`] if the run could not be made.
pub fn run(options: &Options, progress: &dyn Fn(&str)) -> Result<Report, LoadError> {
    options.check()?;
    let mut bench = Bench::new(options, progress);
    let (parts, headline) = parts(&mut bench)?;
    let report = Report {
        scenario: options.scenario.name(),
        target: "embedded",
        shards: options.shards,
        input: options
            .input
            .as_ref()
            .map(|path| path.display().to_string()),
        parts,
        headline,
        limits: bench.limits,
        host: bench.host(),
    };
    Ok(report)
}

/// The parts of the scenario, and which of them stands for its rate.
fn parts(bench: &mut Bench<'_>) -> Result<(Vec<Part>, usize), LoadError> {
    let options = bench.options;
    let seconds = options.seconds();
    if options.scenario == Scenario::Mix {
        return mix(bench, seconds);
    }
    // Before the engine is opened: a bad file is no reason to make a directory.
    let events = match options.scenario {
        Scenario::Replay => Some(runs::replay::read(options)?),
        _ => None,
    };
    let engine = bench.engine(options.durability(), "engine")?;
    let (parts, headline) = match options.scenario {
        Scenario::Mix => unreachable!("done above"),
        Scenario::Rtt => (vec![runs::rtt::run(bench, &engine, seconds)?], 0),
        Scenario::Throughput | Scenario::Batch | Scenario::Shared | Scenario::Fanout => {
            let stream = runs::stream::stream_of(options, seconds);
            (vec![runs::stream::run(bench, &engine, &stream)?], 0)
        }
        Scenario::Synced => (synced(bench, &engine, seconds)?, 1),
        Scenario::Backlog => (vec![runs::backlog::run(bench, &engine, seconds)?], 0),
        Scenario::Control => (vec![runs::control::run(bench, &engine, seconds)?], 0),
        Scenario::Replay => {
            let events = events.as_ref().expect("read above");
            (vec![runs::replay::run(bench, &engine, events)?], 0)
        }
        Scenario::IdleTopics => (vec![runs::idle::run(bench, &engine)?], 0),
    };
    close(bench, engine)?;
    Ok((parts, headline))
}

fn synced(bench: &mut Bench<'_>, engine: &Engine, seconds: f64) -> Result<Vec<Part>, LoadError> {
    let third = seconds / 3.0;
    let mut parts = vec![runs::synced::depth_1(bench, engine, third)?];
    let sizes = match bench.options.message_bytes {
        None => vec![
            ("synced, 256 B", "synced_256_vs_write_bandwidth", 256),
            ("synced, 4 KiB", "synced_4k_vs_write_bandwidth", 4_096),
        ],
        Some(bytes) => vec![("synced, saturated", "synced_vs_write_bandwidth", bytes)],
    };
    for size in sizes {
        parts.push(runs::synced::saturated(bench, engine, size, third)?);
    }
    Ok(parts)
}

/// Short parts that a newcomer can read: how long, how many, how many in batches, how safe.
fn mix(bench: &mut Bench<'_>, seconds: f64) -> Result<(Vec<Part>, usize), LoadError> {
    let options = bench.options;
    let part_s = seconds / 5.0;
    let memory = bench.engine(Durability::Memory, "memory")?;
    let mut parts = vec![runs::rtt::run(bench, &memory, part_s)?];
    for scenario in [Scenario::Throughput, Scenario::Batch] {
        let options = Options {
            scenario,
            ..options.clone()
        };
        let stream = runs::stream::stream_of(&options, part_s);
        parts.push(runs::stream::run(bench, &memory, &stream)?);
    }
    close(bench, memory)?;
    let durable = bench.engine(Durability::Synced, "synced")?;
    parts.push(runs::synced::depth_1(bench, &durable, part_s)?);
    let size = ("synced, 256 B", "synced_256_vs_write_bandwidth", 256);
    parts.push(runs::synced::saturated(bench, &durable, size, part_s)?);
    close(bench, durable)?;
    Ok((parts, 1))
}

fn close(bench: &Bench<'_>, engine: Engine) -> Result<(), LoadError> {
    bench.say("stopping the engine");
    let report = engine.shutdown(SHUTDOWN);
    if report.clean {
        return Ok(());
    }
    Err(LoadError::engine(format!(
        "stopping the engine was not clean: {report:?}; this is a fault of the engine, report it"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(scenario: Scenario) -> Options {
        Options {
            seconds: Some(0.05),
            ..Options::new(scenario)
        }
    }

    fn fine(options: &Options) -> Report {
        let report = run(options, &|_| ()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(report.violations(), Vec::<String>::new());
        let verdict = report.verdict();
        assert!(verdict.published > 0);
        assert_eq!(
            (verdict.delivered, verdict.acked),
            (verdict.expected, verdict.expected)
        );
        report
    }

    #[test]
    fn scenarios_in_memory_run_and_every_message_is_accounted_for() {
        for (scenario, subscriptions) in [
            (Scenario::Rtt, 1),
            (Scenario::Throughput, 1),
            (Scenario::Batch, 1),
            (Scenario::Shared, 1),
            (Scenario::Fanout, 10),
            (Scenario::Control, 1),
        ] {
            let verdict = fine(&short(scenario)).verdict();
            let name = scenario.name();
            assert_eq!(
                verdict.expected,
                verdict.published * subscriptions,
                "{name}"
            );
        }
    }

    #[test]
    fn a_rate_is_offered_on_schedule_and_every_receipt_is_timed() {
        let options = Options {
            rate: Some(2_000),
            batch: Some(4),
            shards: 2,
            seconds: Some(0.2),
            ..Options::new(Scenario::Throughput)
        };
        let report = fine(&options);
        let part = &report.parts[0];
        // 400 messages in 100 entries; a slow machine may lose the last ones to the end of the time.
        assert!((200..=400).contains(&part.end_to_end.count()), "{part:?}");
        assert_eq!(part.publish_receipt.count() * 4, part.end_to_end.count());
        assert_eq!(part.offered_per_s, Some(2_000.0));
    }

    #[test]
    fn a_file_is_replayed_line_by_line_on_disk_and_leaves_no_directory() {
        let parent = std::env::temp_dir().join(format!("pelton-tour-{}", std::process::id()));
        std::fs::create_dir_all(&parent).unwrap();
        let input = parent.join("lines.ndjson");
        let line = |i: u64| format!("{{\"time_ms\":{},\"k\":\"{}\"}}\n", i * 10, i % 7);
        std::fs::write(&input, (0..500).map(line).collect::<String>()).unwrap();
        let options = Options {
            input: Some(input.clone()),
            key: Some("k".into()),
            shards: 2,
            dir: Some(parent.clone()),
            seconds: Some(0.1),
            ..Options::new(Scenario::Replay)
        };
        let report = fine(&options);
        assert_eq!(report.verdict().published, 500);
        assert!(report.json().contains("\"durability\": \"synced\""));
        let left: Vec<_> = std::fs::read_dir(&parent).unwrap().collect();
        assert_eq!(left.len(), 1, "the input alone: {left:?}");
        std::fs::remove_dir_all(&parent).unwrap();
    }
}
