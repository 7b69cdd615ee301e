//! A backlog that is not in memory any more, drained from disk.

use std::{fs, path::Path};

use pelton::Engine;

use crate::{
    LoadError,
    bench::{Bench, Meter, NO_SAMPLE, ROUNDS, Shape, part_of},
    compare::{Comparison, Figure, Round},
    neighbours::Neighbours,
    report::Part,
    scenario::durability_name,
    schedule::{Pace, Schedule},
    units,
};

/// Several times the tail memory of a shard (32 MiB), so that next to nothing is left in it.
const BYTES_MIN: u64 = 256 << 20;

/// Written per second of the wanted duration, about what a drain and its yardstick take.
const BYTES_PER_SECOND: f64 = (64 << 20) as f64;

/// Read per raw round.
const RAW_READ_BYTES: u64 = 128 << 20;

/// Messages a consumer asks for ahead.
const WINDOW: u32 = 8_192;

pub(crate) fn run(bench: &mut Bench<'_>, engine: &Engine, seconds: f64) -> Result<Part, LoadError> {
    let shape = Shape {
        sample: NO_SAMPLE,
        window: WINDOW,
        under_way: Some(u64::MAX),
        ..Shape::one_to_one(bench.options)
    };
    let wanted = BYTES_MIN.max((seconds * BYTES_PER_SECOND) as u64);
    let mut client = bench.client(engine, "backlog", &shape)?;
    bench.say(&format!("backlog: writing {}", units::bytes(wanted as f64)));
    let write_start_ns = client.now_ns();
    let wanted_entries = wanted / shape.message_bytes as u64;
    let mut schedule = Schedule::new(Pace::Saturated, 0).at_most(wanted_entries);
    client.run(&mut schedule, u64::MAX)?;
    // Fewer if it was stopped meanwhile.
    let entries = schedule.sent();
    let written = entries * shape.message_bytes as u64;
    client.flush()?;
    let write_s = (client.now_ns() - write_start_ns) as f64 / 1e9;
    let dropped = drop_segments(bench.work()?.path());

    client.restart();
    let mut rounds = Vec::new();
    let mut busy_s = 0.0;
    let meter = Meter::start(engine)?;
    for n in 1..=ROUNDS {
        if bench.stopped() {
            break;
        }
        bench.say(&format!("backlog: draining, round {n} of {ROUNDS}"));
        let neighbours = Neighbours::now();
        let raw = bench.read_bytes_per_s(RAW_READ_BYTES)?;
        // The last round takes what rounding left.
        let share = if n == ROUNDS {
            entries - entries / ROUNDS * (ROUNDS - 1)
        } else {
            entries / ROUNDS
        };
        let (before, start_ns) = (client.seen.bytes, client.now_ns());
        client.take_exactly(share)?;
        let round_s = (client.now_ns() - start_ns) as f64 / 1e9;
        busy_s += round_s;
        let product = (client.seen.bytes - before) as f64 / round_s;
        let others = neighbours.share();
        rounds.extend(raw.map(|raw| Round {
            product,
            raw,
            others,
        }));
    }
    // Nothing is left unless something went wrong, or the run is to end early: then it still comes.
    let drain_start_ns = client.now_ns();
    client.open_windows()?;
    client.drain()?;
    busy_s += (client.now_ns() - drain_start_ns) as f64 / 1e9;
    let mut part = part_of("backlog", &shape, &mut client, busy_s);
    meter.stop(&mut client, &mut part)?;
    // They lay there on purpose: their age says nothing about the engine.
    part.end_to_end.clear();
    part.verdict = client.seen.verifier.verdict();
    part.title = format!(
        "{} of {} messages of {} B written, then dropped from the page cache ({dropped} segments) and drained",
        units::bytes(written as f64),
        durability_name(shape.durability),
        shape.message_bytes
    );
    part.meaning = "how fast consumers catch up with what is on disk only";
    let write_rate = units::bytes(written as f64 / write_s);
    part.figures.push((
        "written at",
        format!("{write_rate}/s of payload, with no consumer"),
    ));
    part.comparisons.extend(Comparison::of_rounds(
        "backlog_vs_read_bandwidth",
        "drain",
        "O_DIRECT reads of 256 KiB, 4 in flight",
        Figure::BytesPerSecond,
        &rounds,
    ));
    if rounds.is_empty() && !bench.stopped() {
        part.notes
            .push("no ratio: this file system has no O_DIRECT".into());
    }
    Ok(part)
}

/// Drops every segment file below `dir` from the page cache; how many.
fn drop_segments(dir: &Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| {
            let path = entry.path();
            let segment = entry.file_name().to_string_lossy().starts_with("seg-");
            match () {
                () if path.is_dir() => drop_segments(&path),
                () if segment && pelton::limits::drop_page_cache(&path).is_ok() => 1,
                () => 0,
            }
        })
        .sum()
}
