//! A file of real events, at its own pace or another.

use std::sync::Arc;

use pelton::Engine;

use crate::{
    LoadError,
    bench::{Bench, Meter, Shape, p50_over_limit, part_of},
    neighbours::Neighbours,
    replay::Events,
    report::Part,
    scenario::{Options, durability_name},
    schedule::{Pace, Schedule},
    seen::Content,
    units,
};

/// The file of the options, read.
pub(crate) fn read(options: &Options) -> Result<Arc<Events>, LoadError> {
    let path = options
        .input
        .as_deref()
        .expect("checked: replay has an input");
    let events = Events::read(path, options.key.as_deref())?;
    if !events.timed && options.speed.is_some() {
        return Err(LoadError::Input {
            path: path.to_owned(),
            why: "its lines have no time_ms, so there is no speed to multiply".into(),
            remedy: "leave --speed out, or give --rate R",
        });
    }
    Ok(Arc::new(events))
}

pub(crate) fn run(
    bench: &mut Bench<'_>,
    engine: &Engine,
    events: &Arc<Events>,
) -> Result<Part, LoadError> {
    let shape = Shape {
        keys: Some(events.key_count()),
        message_bytes: events.longest() + crate::payload::HEADER_BYTES,
        window: 1_024,
        ..Shape::one_to_one(bench.options)
    };
    let shards = engine.shards();
    // A key lives on one topic, so that its order is an order.
    let place: Vec<usize> = (0..events.key_count())
        .map(|key| {
            let name = events.key_name(u32::try_from(key).expect("an id of the file's keys"));
            match events.key_field {
                Some(_) => pelton::key_hash(name.as_bytes()) as usize % shards,
                None => 0,
            }
        })
        .collect();
    let mut client = bench.client(engine, "replay", &shape)?;
    client.seen.content = Content::Lines {
        events: Arc::clone(events),
        sent: lines_by_producer(events, &place, shards),
    };
    client.open_windows()?;
    let (pace, told) = pace(bench.options, events);
    let raw_before = bench.latency_limit(shape.durability)?;
    let neighbours = Neighbours::now();
    let meter = Meter::start(engine)?;
    bench.say(&format!(
        "replay: {} lines, {told}",
        units::count(events.len() as u64)
    ));
    let start_ns = client.now_ns();
    let mut schedule = Schedule::new(pace.clone(), start_ns).at_most(events.len() as u64);
    client.run_with(&mut schedule, u64::MAX, |client, n, due_ns| {
        let line = usize::try_from(n).expect("an index");
        let key = events.key(line);
        let key_name = events
            .key_field
            .as_ref()
            .map(|_| events.key_name(key).as_bytes());
        client.try_send_content(
            place[key as usize],
            (key, key_name),
            events.line(line),
            due_ns,
        )
    })?;
    client.drain()?;
    let seconds = (client.now_ns() - start_ns) as f64 / 1e9;
    let mut part = part_of("replay", &shape, &mut client, seconds);
    meter.stop(&mut client, &mut part)?;
    let raw_after = bench.latency_limit(shape.durability)?;
    part.verdict = client.seen.verifier.verdict();
    part.offered_per_s = match &pace {
        Pace::Saturated => None,
        Pace::Rate { messages_per_s, .. } => Some(*messages_per_s as f64),
        Pace::Times(offsets) => offsets
            .last()
            .filter(|&&last_ns| last_ns > 0)
            .map(|&last_ns| events.len() as f64 * 1e9 / last_ns as f64),
    };
    part.title = title(events, &shape, shards, &told);
    part.meaning = "real events: every line must arrive once, unchanged, and in order per key";
    part.notes.extend(left_out(events));
    if pace != Pace::Saturated {
        part.comparisons.extend(p50_over_limit(
            &part,
            shape.durability,
            ([raw_before, raw_after], neighbours.share()),
        ));
    }
    Ok(part)
}

/// What was not done with the file as it stands.
fn left_out(events: &Events) -> impl Iterator<Item = String> {
    let blank = (events.blank > 0).then(|| format!("blank lines left out: {}", events.blank));
    let back = (events.back > 0 && events.timed).then(|| {
        format!(
            "lines with a time_ms before that of an earlier line, sent right after that: {}",
            events.back
        )
    });
    blank.into_iter().chain(back)
}

/// Which lines each producer sends, in order.
fn lines_by_producer(events: &Events, place: &[usize], producers: usize) -> Vec<Vec<u32>> {
    let mut lines: Vec<Vec<u32>> = vec![Vec::new(); producers];
    for line in 0..events.len() {
        let producer = place[events.key(line) as usize];
        lines[producer].push(u32::try_from(line).expect("a file in memory has fewer lines"));
    }
    lines
}

/// A rate if one is given, else the file's own times, else as fast as possible.
fn pace(options: &Options, events: &Events) -> (Pace, String) {
    if let Some(rate) = options.rate {
        return (
            Pace::Rate {
                messages_per_s: rate,
                batch: 1,
            },
            format!("at {}", units::rate(rate as f64, "msg")),
        );
    }
    if !events.timed || events.span_ns() == 0 {
        return (Pace::Saturated, "as fast as possible".into());
    }
    let span_s = events.span_ns() as f64 / 1e9;
    let speed = options.speed.unwrap_or(span_s / options.seconds());
    let told = format!(
        "{} of events at {} times their speed",
        units::duration(events.span_ns()),
        units::factor(speed)
    );
    (Pace::Times(events.offsets_ns(speed)), told)
}

fn title(events: &Events, shape: &Shape, shards: usize, told: &str) -> String {
    let keys = match &events.key_field {
        Some(field) => format!("{} keys by {field:?}", events.key_count()),
        None => "no key".into(),
    };
    format!(
        "{} lines, {keys}, {told}; {}, {shards} shard{}",
        units::count(events.len() as u64),
        durability_name(shape.durability),
        if shards == 1 { "" } else { "s" },
    )
}
