//! Runs one scenario from start to end: engine, parts, shutdown, report.

use std::time::Duration;

use pelton::{Durability, Engine};

use crate::{
    LoadError,
    bench::{Bench, Watch},
    report::{Part, Report},
    runs,
    scenario::{Options, Scenario},
};

/// An engine that has nothing to do any more gets this long to stop.
const SHUTDOWN: Duration = Duration::from_secs(30);

/// Does what `options` say, under the eyes of `watch`.
///
/// A fault of the engine (lost, doubled, out of order, overrun) is no error but in the report:
/// [`Report::violations`]. The directory of the run is removed in either case.
///
/// # Errors
/// [`LoadError`] if the run could not be made, or was stopped before it had measured anything.
pub fn run(options: &Options, watch: &Watch<'_>) -> Result<Report, LoadError> {
    options.check()?;
    let mut bench = Bench::new(options, watch);
    let (mut parts, headline) = parts(&mut bench)?;
    let interrupted = bench.stopped();
    if interrupted {
        // Of a part that came to nothing only what it found wrong is of interest.
        parts.retain(|part| part.achieved_per_s > 0.0 || !part.verdict.violations().is_empty());
    }
    let last = parts.len().checked_sub(1).ok_or(LoadError::Interrupted)?;
    let report = Report {
        scenario: options.scenario.name(),
        target: "embedded",
        shards: options.shards,
        input: options
            .input
            .as_ref()
            .map(|path| path.display().to_string()),
        interrupted,
        parts,
        headline: headline.min(last),
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
        if bench.stopped() {
            break;
        }
        parts.push(runs::synced::saturated(bench, engine, size, third)?);
    }
    Ok(parts)
}

/// Share of a part of the tour that is its measured time. Warming up, the limits measured in between
/// and opening and closing take the rest.
const MEASURED_SHARE: f64 = 0.6;

/// Short parts that a newcomer can read: how long, how many, how many in batches, how safe. `seconds`
/// are all of it, so what one part takes too much the others have less.
fn mix(bench: &mut Bench<'_>, seconds: f64) -> Result<(Vec<Part>, usize), LoadError> {
    let options = bench.options;
    let end_ns = bench.clock.now_ns() + (seconds * 1e9) as u64;
    let part_s = |bench: &Bench<'_>, parts_left: u32| {
        let left_ns = end_ns.saturating_sub(bench.clock.now_ns());
        let left_s = (left_ns as f64 / 1e9).max(seconds / 10.0);
        left_s / f64::from(parts_left) * MEASURED_SHARE
    };
    // Needed last, but a directory that cannot be had is to be told now.
    bench.work()?;
    let memory = bench.engine(Durability::Memory, "memory")?;
    let mut parts = Vec::new();
    let rtt_s = part_s(bench, 5);
    parts.push(runs::rtt::run(bench, &memory, rtt_s)?);
    for (scenario, parts_left) in [(Scenario::Throughput, 4), (Scenario::Batch, 3)] {
        if bench.stopped() {
            break;
        }
        let options = Options {
            scenario,
            ..options.clone()
        };
        let stream = runs::stream::stream_of(&options, part_s(bench, parts_left));
        parts.push(runs::stream::run(bench, &memory, &stream)?);
    }
    close(bench, memory)?;
    if bench.stopped() {
        return Ok((parts, 1));
    }
    let durable = bench.engine(Durability::Synced, "synced")?;
    let depth_1_s = part_s(bench, 2);
    parts.push(runs::synced::depth_1(bench, &durable, depth_1_s)?);
    if !bench.stopped() {
        let size = ("synced, 256 B", "synced_256_vs_write_bandwidth", 256);
        let saturated_s = part_s(bench, 1);
        parts.push(runs::synced::saturated(bench, &durable, size, saturated_s)?);
    }
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

    fn temporary(name: &str) -> std::path::PathBuf {
        let name = format!("pelton-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn fine(options: &Options) -> Report {
        let report = run(options, &Watch::new(&|_| ())).unwrap_or_else(|error| panic!("{error}"));
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
            (Scenario::Control, 4),
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
    fn the_tour_takes_the_time_it_was_given_limits_included() {
        let parent = temporary("tour-time");
        let options = Options {
            seconds: Some(3.0),
            dir: Some(parent.clone()),
            ..Options::new(Scenario::Mix)
        };
        let clock = crate::embedded::Clock::new();
        let start_ns = clock.now_ns();
        let report = fine(&options);
        // An unoptimised engine on a busy machine: far above 3 s, far below what rounds of fixed size
        // took.
        let took_ns = clock.now_ns() - start_ns;
        assert!(took_ns < 9_000_000_000, "{took_ns} ns");
        assert_eq!(report.parts.len(), 5);
        for part in &report.parts {
            assert!(!part.comparisons.is_empty(), "{} has no ratio", part.name);
        }
        std::fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn a_stopped_run_ends_in_order_with_what_it_has() {
        let parent = temporary("tour-stop");
        for scenario in [Scenario::Throughput, Scenario::Synced, Scenario::Control] {
            let options = Options {
                seconds: Some(4.0),
                dir: Some(parent.clone()),
                ..Options::new(scenario)
            };
            let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
            let watch = Watch {
                stop: std::sync::Arc::clone(&stop),
                progress: &|what| {
                    // One round is done, and another begins.
                    if what.contains("round 2 of") {
                        stop.store(true, std::sync::atomic::Ordering::Relaxed);
                    }
                },
            };
            let report = run(&options, &watch).unwrap();
            assert!(report.interrupted);
            assert_eq!(report.violations(), Vec::<String>::new());
            assert_eq!(report.parts.len(), 1, "{}", scenario.name());
        }
        let left = std::fs::read_dir(&parent).unwrap().count();
        assert_eq!(left, 0, "the directories of the runs are gone");
        std::fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn a_run_stopped_at_once_has_nothing_to_report() {
        let watch = Watch::new(&|_| ());
        watch.stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let error = run(&short(Scenario::Rtt), &watch).unwrap_err();
        assert!(matches!(error, LoadError::Interrupted), "{error}");
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
        let parent = temporary("tour");
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
