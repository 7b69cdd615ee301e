//! Loads that are a stream of entries through topics: `throughput`, `batch`, `shared`, `fanout`.

use pelton::Engine;

use crate::{
    LoadError,
    bench::{Bench, Meter, ROUNDS, Shape, p50_over_limit, part_of, warm_up_ns},
    compare::{Comparison, Figure, Round},
    embedded::Client,
    neighbours::Neighbours,
    report::Part,
    scenario::{Options, Scenario, durability_name},
    schedule::{Pace, Schedule},
    units,
};

/// Time to warm up: memory touched, buffers grown, averages settled.
const WARM_UP_NS: u64 = 200_000_000;

/// A stream and how it is told.
pub(crate) struct Stream {
    pub(crate) name: &'static str,
    pub(crate) meaning: &'static str,
    pub(crate) shape: Shape,
    /// Messages per second; `None` for as fast as possible.
    pub(crate) rate: Option<u64>,
    pub(crate) seconds: f64,
    /// Key of the ratio in the report.
    pub(crate) ratio: &'static str,
}

/// The stream of a scenario, as the options want it.
pub(crate) fn stream_of(options: &Options, seconds: f64) -> Stream {
    let (name, ratio, meaning) = match options.scenario {
        Scenario::Batch => (
            "batch",
            "batch_vs_crossbeam",
            "messages per second when a producer sends many at once: what batching is worth",
        ),
        Scenario::Shared => (
            "shared",
            "shared_vs_crossbeam",
            "messages per second when 100 consumers share one subscription",
        ),
        Scenario::Fanout => (
            "fanout",
            "fanout_vs_crossbeam",
            "deliveries per second when ten subscriptions each get every message",
        ),
        _ => (
            "throughput",
            "throughput_vs_crossbeam",
            "messages per second, each published, dispatched by permits, checked and acked by itself",
        ),
    };
    let batch = options.batch();
    let (subscriptions, consumers) = match options.scenario {
        Scenario::Shared => (1, 100),
        Scenario::Fanout => (10, 1),
        _ => (1, 1),
    };
    Stream {
        name,
        meaning,
        ratio,
        shape: Shape {
            subscriptions,
            consumers,
            batch,
            // At a rate every receipt is timed; at full speed that would be what is measured.
            sample: if options.rate.is_some() { 1 } else { 64 },
            window: window(batch, consumers),
            ..Shape::one_to_one(options)
        },
        rate: options.rate,
        seconds,
    }
}

/// Permits that keep a consumer's ring busy: some hundred entries, fewer if many consumers share them.
fn window(batch: usize, consumers: usize) -> u32 {
    let entries = if consumers > 1 { 64 } else { 512 };
    u32::try_from((entries * batch).clamp(64, 1 << 17)).expect("clamped")
}

pub(crate) fn run(
    bench: &mut Bench<'_>,
    engine: &Engine,
    stream: &Stream,
) -> Result<Part, LoadError> {
    let mut client = bench.client(engine, stream.name, &stream.shape)?;
    client.open_windows()?;
    bench.say(&format!("{}: warming up", stream.name));
    let warm = client.now_ns() + warm_up_ns(WARM_UP_NS, stream.seconds);
    client.run(&mut Schedule::new(Pace::Saturated, 0), warm)?;
    client.drain()?;
    client.restart();
    let mut part = match stream.rate {
        None => saturated(bench, engine, stream, &mut client)?,
        Some(rate) => at_rate(bench, engine, stream, &mut client, rate)?,
    };
    part.meaning = stream.meaning;
    part.title = title(stream, bench.options.shards);
    part.verdict = client.seen.verifier.verdict();
    Ok(part)
}

/// As fast as it goes, in rounds with the yardstick between them.
fn saturated(
    bench: &mut Bench<'_>,
    engine: &Engine,
    stream: &Stream,
    client: &mut Client,
) -> Result<Part, LoadError> {
    let round_ns = (stream.seconds * 1e9) as u64 / ROUNDS;
    let mut rounds = Vec::new();
    let mut seconds = 0.0;
    let meter = Meter::start(engine)?;
    for n in 1..=ROUNDS {
        if bench.stopped() {
            break;
        }
        bench.say(&format!("{}: round {n} of {ROUNDS}", stream.name));
        let neighbours = Neighbours::now();
        let raw = bench.crossbeam(stream.shape.message_bytes, round_ns / 4);
        let (before, start_ns) = (client.seen.messages, client.now_ns());
        client.run(&mut Schedule::new(Pace::Saturated, 0), start_ns + round_ns)?;
        client.drain()?;
        let round_s = (client.now_ns() - start_ns) as f64 / 1e9;
        seconds += round_s;
        let product = (client.seen.messages - before) as f64 / round_s;
        rounds.push(Round {
            product,
            raw,
            others: neighbours.share(),
        });
    }
    bench.ring_per_s(round_ns / 4)?;
    let mut part = part_of(stream.name, &stream.shape, client, seconds);
    meter.stop(client, &mut part)?;
    part.comparisons.extend(Comparison::of_rounds(
        stream.ratio,
        "rate",
        "the crossbeam pipeline over the same two hops",
        Figure::MessagesPerSecond,
        &rounds,
    ));
    part.notes.push(
        "closed loop: latencies are those of full queues; give --rate for latencies at a rate"
            .into(),
    );
    Ok(part)
}

/// Open loop: latency from the intended send times.
fn at_rate(
    bench: &mut Bench<'_>,
    engine: &Engine,
    stream: &Stream,
    client: &mut Client,
    rate: u64,
) -> Result<Part, LoadError> {
    let raw_before = bench.latency_limit(stream.shape.durability)?;
    let neighbours = Neighbours::now();
    let meter = Meter::start(engine)?;
    bench.say(&format!(
        "{}: {} for {} s",
        stream.name,
        units::rate(rate as f64, "msg"),
        stream.seconds
    ));
    let start_ns = client.now_ns();
    let pace = Pace::Rate {
        messages_per_s: rate,
        batch: stream.shape.batch as u64,
    };
    let end_ns = start_ns + (stream.seconds * 1e9) as u64;
    client.run(&mut Schedule::new(pace, start_ns), end_ns)?;
    client.drain()?;
    let seconds = (client.now_ns() - start_ns) as f64 / 1e9;
    let mut part = part_of(stream.name, &stream.shape, client, seconds);
    meter.stop(client, &mut part)?;
    part.offered_per_s = Some(rate as f64);
    let raw_after = bench.latency_limit(stream.shape.durability)?;
    part.comparisons.extend(p50_over_limit(
        &part,
        stream.shape.durability,
        ([raw_before, raw_after], neighbours.share()),
    ));
    Ok(part)
}

fn title(stream: &Stream, shards: usize) -> String {
    let Shape {
        subscriptions,
        consumers,
        message_bytes,
        batch,
        durability,
        ..
    } = stream.shape;
    let entries = match batch {
        1 => format!("single-message entries of {message_bytes} B"),
        n => format!("entries of {n} messages of {message_bytes} B"),
    };
    let receivers = match (subscriptions, consumers) {
        (1, 1) => String::new(),
        (1, n) => format!(", {n} consumers on a Shared subscription"),
        (n, _) => format!(", {n} subscriptions"),
    };
    let shard_threads = match shards {
        1 => "1 shard thread".into(),
        n => format!("{n} shard threads, a topic on each"),
    };
    format!(
        "{entries}, {}{receivers}; {shard_threads}, 1 client thread that publishes and consumes",
        durability_name(durability)
    )
}
