//! Control requests while the data lane is full.

use pelton::{Engine, Topic};
use pelton_metrics::Histogram;

use crate::{
    DIGITS, LoadError,
    bench::{Bench, Meter, NO_SAMPLE, Shape, part_of, topics_on_all_shards},
    compare::{Comparison, Figure, Round},
    embedded::Client,
    neighbours::Neighbours,
    report::Part,
    scenario::durability_name,
    schedule::{Pace, Schedule},
};

/// Producers, so that their queues together hold more work than the shard gets through in the time
/// of a request: 32 queues of 1,024 entries are some milliseconds.
const PRODUCERS: usize = 32;

/// Every so many requests one asks for statistics.
const STATS_EVERY: u64 = 50;

pub(crate) fn run(bench: &mut Bench<'_>, engine: &Engine, seconds: f64) -> Result<Part, LoadError> {
    let shape = Shape {
        producers: PRODUCERS,
        sample: NO_SAMPLE,
        window: 1 << 16,
        ..Shape::one_to_one(bench.options)
    };
    let mut client = bench.client(engine, "control", &shape)?;
    client.open_windows()?;
    let other = topics_on_all_shards(engine, "control-other", shape.durability)?;
    bench.say("control: warming up");
    let warm = client.now_ns() + 200_000_000;
    client.run(&mut Schedule::new(Pace::Saturated, 0), warm)?;
    client.restart();

    bench.ring_rtt_ns(100_000_000)?;
    bench.say("control: measuring");
    let neighbours = Neighbours::now();
    let meter = Meter::start(engine)?;
    let (mut idle, mut stats) = (Histogram::new(DIGITS), Histogram::new(DIGITS));
    let mut control = Histogram::new(DIGITS);
    client.drain()?;
    for n in 0..2_000 {
        request(engine, &other[0], &client, n, (&mut idle, &mut stats))?;
    }
    stats.clear();
    let start_ns = client.now_ns();
    let end_ns = start_ns + (seconds * 1e9) as u64;
    let mut n = 0;
    while client.now_ns() < end_ns {
        client.fill_queues()?;
        request(engine, &other[0], &client, n, (&mut control, &mut stats))?;
        n += 1;
        client.receive_burst()?;
    }
    client.drain()?;
    let measured_s = (client.now_ns() - start_ns) as f64 / 1e9;
    let mut part = part_of("control", &shape, &mut client, measured_s);
    meter.stop(&mut client, &mut part)?;
    // Queues are kept full on purpose: what a message waits in them says nothing.
    part.end_to_end.clear();
    part.verdict = client.seen.verifier.verdict();
    part.control = control;
    part.title = format!(
        "topic and producer requests while {PRODUCERS} producers' queues are full of {} B {} messages; 1 client thread",
        shape.message_bytes,
        durability_name(shape.durability)
    );
    part.meaning = "whether the engine still answers when it is flooded: control goes before data";
    part.notes.push(
        "one request at a time, each sent when every queue is full; latency counts from there"
            .into(),
    );
    if let (Some(p99), Some(idle_p99)) = (part.control.quantile(9_900), idle.quantile(9_900)) {
        let round = Round {
            product: p99 as f64,
            raw: idle_p99 as f64,
            others: neighbours.share(),
        };
        part.comparisons.extend(Comparison::of_rounds(
            "control_p99_vs_idle_p99",
            "p99",
            "the same requests with nothing else to do",
            Figure::LatencyNs,
            &[round],
        ));
    }
    part.others.push(("with idle lanes", idle));
    part.others.push(("statistics", stats));
    Ok(part)
}

/// One control request, timed: opening a topic that is open, a producer, or now and then statistics.
fn request(
    engine: &Engine,
    topic: &Topic,
    client: &Client,
    n: u64,
    (control, stats): (&mut Histogram, &mut Histogram),
) -> Result<(), LoadError> {
    let start_ns = client.now_ns();
    if n % STATS_EVERY == STATS_EVERY - 1 {
        engine.stats().map_err(LoadError::engine)?;
        stats.record(client.now_ns() - start_ns);
    } else if n.is_multiple_of(2) {
        engine
            .topic(topic.name())
            .durability(topic.durability())
            .open()
            .map_err(LoadError::engine)?;
        control.record(client.now_ns() - start_ns);
    } else {
        // Dropped outside the measured time: a request of its own that nobody waits for.
        let producer = topic
            .producer()
            .queue(2)
            .open()
            .map_err(LoadError::engine)?;
        control.record(client.now_ns() - start_ns);
        drop(producer);
    }
    Ok(())
}
