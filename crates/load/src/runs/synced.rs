//! Durable receipts: what one costs alone, and what a full pipe of them brings.

use pelton::{Durability, Engine};

use crate::{
    LoadError,
    bench::{Bench, Meter, ROUNDS, SYNCS_MIN, Shape, part_of, warm_up_ns},
    compare::{Comparison, Figure, Round},
    neighbours::Neighbours,
    report::Part,
    scenario::durability_name,
    schedule::{Pace, Schedule},
};

/// Payload that is kept under way: the two commit buffers of a log.
const UNDER_WAY_BYTES: u64 = 8 << 20;

/// Until segments have been consumed and come back written through.
const WARM_UP_NS: u64 = 700_000_000;

fn shape(bench: &Bench<'_>, message_bytes: usize) -> Shape {
    Shape {
        message_bytes,
        durability: match bench.options.durability() {
            Durability::Memory => Durability::Synced,
            other => other,
        },
        sample: 16,
        window: 16_384,
        // What the log gathers at most; more only waits in front of it.
        under_way: Some((UNDER_WAY_BYTES / message_bytes as u64).clamp(512, 16_384)),
        ..Shape::one_to_one(bench.options)
    }
}

/// One publish at a time, each waited for until its receipt is there.
pub(crate) fn depth_1(
    bench: &mut Bench<'_>,
    engine: &Engine,
    seconds: f64,
) -> Result<Part, LoadError> {
    let shape = shape(bench, bench.options.message_bytes.unwrap_or(256));
    let mut client = bench.client(engine, "synced-1", &shape)?;
    client.open_windows()?;
    bench.say("synced, one in flight: warming up");
    let warm = client.now_ns() + warm_up_ns(WARM_UP_NS / 4, seconds);
    while client.now_ns() < warm && !bench.stopped() {
        client.publish_and_wait(0)?;
    }
    client.drain()?;
    client.restart();
    let round_ns = (seconds * 1e9) as u64 / ROUNDS;
    let mut rounds = Vec::new();
    let mut all = pelton_metrics::Histogram::new(crate::DIGITS);
    let mut busy_s = 0.0;
    let meter = Meter::start(engine)?;
    for n in 1..=ROUNDS {
        if bench.stopped() {
            break;
        }
        bench.say(&format!("synced, one in flight: round {n} of {ROUNDS}"));
        let neighbours = Neighbours::now();
        let raw = bench.fdatasync_ns(round_ns / 4)?;
        let (start_ns, mut commits) = (client.now_ns(), 0);
        let short = |now_ns, commits| now_ns - start_ns < round_ns || commits < SYNCS_MIN;
        while short(client.now_ns(), commits) && !bench.stopped() {
            client.publish_and_wait(0)?;
            commits += 1;
        }
        busy_s += (client.now_ns() - start_ns) as f64 / 1e9;
        client.drain()?;
        if let Some(p50) = client.publish_receipt.quantile(5_000) {
            rounds.push(Round {
                product: p50 as f64,
                raw,
                others: neighbours.share(),
            });
        }
        all.merge(&client.publish_receipt);
        client.publish_receipt.clear();
    }
    let mut part = part_of("synced, one in flight", &shape, &mut client, busy_s);
    meter.stop(&mut client, &mut part)?;
    part.publish_receipt = all;
    part.verdict = client.seen.verifier.verdict();
    part.title = format!(
        "one {} message of {} B at a time, each waited for until its receipt",
        durability_name(shape.durability),
        shape.message_bytes
    );
    part.meaning =
        "how long it takes until a message is safe on disk: the disk's own sync is most of it";
    part.comparisons.extend(Comparison::of_rounds(
        "synced_p50_vs_fdatasync",
        "receipt p50",
        "one raw write + fdatasync",
        Figure::LatencyNs,
        &rounds,
    ));
    Ok(part)
}

/// As many as go through, against the sequential write bandwidth of the same directory.
pub(crate) fn saturated(
    bench: &mut Bench<'_>,
    engine: &Engine,
    (name, ratio, message_bytes): (&'static str, &'static str, usize),
    seconds: f64,
) -> Result<Part, LoadError> {
    let shape = shape(bench, message_bytes);
    let mut client = bench.client(engine, &format!("synced-{message_bytes}"), &shape)?;
    client.open_windows()?;
    bench.say(&format!("{name}: warming up"));
    let warm = client.now_ns() + warm_up_ns(WARM_UP_NS, seconds);
    client.run(&mut Schedule::new(Pace::Saturated, 0), warm)?;
    client.drain()?;
    client.restart();
    let round_ns = (seconds * 1e9) as u64 / ROUNDS;
    let mut rounds = Vec::new();
    let mut busy_s = 0.0;
    let meter = Meter::start(engine)?;
    for n in 1..=ROUNDS {
        if bench.stopped() {
            break;
        }
        bench.say(&format!("{name}: round {n} of {ROUNDS}"));
        let neighbours = Neighbours::now();
        let raw = bench.write_bytes_per_s(round_ns / 4)?;
        let (before, start_ns) = (client.seen.bytes, client.now_ns());
        client.run(&mut Schedule::new(Pace::Saturated, 0), start_ns + round_ns)?;
        client.drain()?;
        let round_s = (client.now_ns() - start_ns) as f64 / 1e9;
        busy_s += round_s;
        let product = (client.seen.bytes - before) as f64 / round_s;
        rounds.push(Round {
            product,
            raw,
            others: neighbours.share(),
        });
    }
    let mut part = part_of(name, &shape, &mut client, busy_s);
    meter.stop(&mut client, &mut part)?;
    part.verdict = client.seen.verifier.verdict();
    part.title = format!(
        "{} single-message entries of {message_bytes} B, as many as go through; 1 client thread",
        durability_name(shape.durability)
    );
    part.meaning = "how many messages per second become safe on disk, and what share of the disk's write speed that is";
    part.comparisons.extend(Comparison::of_rounds(
        ratio,
        "payload",
        "sequential writes with a sync each 4 MiB",
        Figure::BytesPerSecond,
        &rounds,
    ));
    Ok(part)
}
