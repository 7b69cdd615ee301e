//! One message in flight: what a publish and its delivery take when nobody waits for anything else.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release},
};

use pelton::{Engine, InitialPosition, Message, Topic, Verdict as HandlerVerdict};
use pelton_metrics::Histogram;

use crate::{
    DIGITS, LoadError,
    bench::{Bench, Meter, ROUNDS, Shape, part_of, topics_on_all_shards},
    compare::{Comparison, Figure, Round},
    embedded::Client,
    neighbours::Neighbours,
    payload::Header,
    report::Part,
    scenario::durability_name,
    units,
    verify::Verdict,
};

/// Before measuring, in messages: the shard's spin budget learns the pace.
const WARM_UP: u64 = 20_000;

pub(crate) fn run(bench: &mut Bench<'_>, engine: &Engine, seconds: f64) -> Result<Part, LoadError> {
    let shape = Shape::one_to_one(bench.options);
    let mut client = bench.client(engine, "rtt", &shape)?;
    client.open_windows()?;
    let topics = topics_on_all_shards(engine, "rtt-handler", shape.durability)?;
    let mut handled = Handled::attach(&topics[0], shape.message_bytes)?;
    bench.say("rtt: warming up");
    for _ in 0..WARM_UP {
        if bench.stopped() {
            break;
        }
        there_and_back(&mut client)?;
        handled.once(&bench.clock)?;
    }
    client.restart();
    handled.latency.clear();
    let round_ns = (seconds * 1e9) as u64 / ROUNDS;
    let (mut rings, mut handlers) = (Vec::new(), Vec::new());
    let (mut all, mut busy_s) = (Histogram::new(DIGITS), 0.0);
    let mut receipts = Histogram::new(DIGITS);
    let (mut messages, mut bytes) = (0, 0);
    let meter = Meter::start(engine)?;
    for n in 1..=ROUNDS {
        if bench.stopped() {
            break;
        }
        bench.say(&format!("rtt: round {n} of {ROUNDS}"));
        let neighbours = Neighbours::now();
        let raw = bench.ring_rtt_ns(round_ns / 5)?;
        let start_ns = client.now_ns();
        while client.now_ns() - start_ns < round_ns * 3 / 5 && !bench.stopped() {
            there_and_back(&mut client)?;
        }
        busy_s += (client.now_ns() - start_ns) as f64 / 1e9;
        client.seen.flush();
        let by_ring = std::mem::replace(&mut client.seen.end_to_end, Histogram::new(DIGITS));
        all.merge(&by_ring);
        receipts.merge(&client.publish_receipt);
        messages += client.seen.messages;
        bytes += client.seen.bytes;
        client.restart();
        let by_handler = handled.round(bench, round_ns / 5)?;
        // Of both together: alone they are too short to say.
        let others = neighbours.share();
        rings.extend(round(&by_ring, raw, others));
        handlers.extend(round(&by_handler, raw, others));
    }
    (client.seen.messages, client.seen.bytes) = (messages, bytes);
    let mut part = part_of("rtt", &shape, &mut client, busy_s);
    meter.stop(&mut client, &mut part)?;
    part.end_to_end = all;
    part.publish_receipt = receipts;
    part.verdict = client.seen.verifier.verdict();
    part.verdict.merge(&handled.verdict());
    part.others.push(("handler", handled.latency.clone()));
    part.title = format!(
        "one message of {} B in flight, {}; 1 shard thread, 1 client thread, both spinning",
        shape.message_bytes,
        durability_name(shape.durability)
    );
    part.meaning =
        "how long a message takes from publish to its consumer when nothing else is going on";
    let against = "the round trip over two rings";
    let figure = Figure::LatencyNs;
    part.comparisons.extend(Comparison::of_rounds(
        "rtt_p50_vs_ring_rtt",
        "p50",
        against,
        figure,
        &rings,
    ));
    part.comparisons.extend(Comparison::of_rounds(
        "handler_p50_vs_ring_rtt",
        "handler p50",
        against,
        figure,
        &handlers,
    ));
    Ok(part)
}

fn round(histogram: &Histogram, raw: f64, others: f64) -> Option<Round> {
    let product = histogram.quantile(5_000)? as f64;
    Some(Round {
        product,
        raw,
        others,
    })
}

/// Publishes one message and spins until it is back.
fn there_and_back(client: &mut Client) -> Result<(), LoadError> {
    let intended_ns = client.now_ns();
    if !client.try_send_entry(0, intended_ns)? {
        return Err(LoadError::engine(
            "a queue with nothing in it was full; report it",
        ));
    }
    let mut looks = 0_u64;
    while client.receive_burst()? == 0 {
        std::hint::spin_loop();
        looks += 1;
        if looks.is_multiple_of(1 << 20) && client.now_ns() - intended_ns > 10_000_000_000 {
            return Err(LoadError::engine(
                "a message did not come back within 10 s; report it",
            ));
        }
    }
    client.settle_receipts()?;
    Ok(())
}

/// The other way to receive: a handler on the shard's own thread.
struct Handled {
    producer: pelton::Producer,
    seen: Arc<HandlerSeen>,
    _guard: pelton::HandlerGuard,
    payload: Vec<u8>,
    sent: u64,
    latency: Histogram,
}

/// Written by the shard's thread, read by the client's.
#[derive(Default)]
struct HandlerSeen {
    at_ns: AtomicU64,
    count: AtomicU64,
    wrong: AtomicU64,
}

impl Handled {
    fn attach(topic: &Topic, message_bytes: usize) -> Result<Handled, LoadError> {
        let seen = Arc::new(HandlerSeen::default());
        let inside = Arc::clone(&seen);
        let clock = crate::embedded::Clock::new();
        let guard = topic
            .subscribe("handler")
            .initial(InitialPosition::Earliest)
            .handler(move |delivery| {
                let now_ns = clock.now_ns();
                let count = inside.count.load(Relaxed);
                let expected = Header::read(delivery.payload()).map(|header| header.sequence);
                if expected != Some(count) {
                    inside.wrong.fetch_add(1, Relaxed);
                }
                inside.count.store(count + 1, Relaxed);
                inside.at_ns.store(now_ns, Release);
                HandlerVerdict::Ack
            })
            .map_err(LoadError::engine)?;
        Ok(Handled {
            producer: topic.producer().open().map_err(LoadError::engine)?,
            seen,
            _guard: guard,
            payload: vec![crate::seen::FILL; message_bytes],
            sent: 0,
            latency: Histogram::new(DIGITS),
        })
    }

    fn once(&mut self, clock: &crate::embedded::Clock) -> Result<(), LoadError> {
        self.seen.at_ns.store(0, Relaxed);
        let intended_ns = clock.now_ns();
        let header = Header {
            producer: 0,
            key: 0,
            sequence: self.sent,
            intended_ns,
        };
        header.write(&mut self.payload);
        let message = Message::new(&self.payload).intended_ns(intended_ns);
        self.producer
            .send_message(message)
            .map_err(LoadError::engine)?;
        self.sent += 1;
        let mut looks = 0_u64;
        loop {
            let at_ns = self.seen.at_ns.load(Acquire);
            if at_ns != 0 {
                self.latency.record(at_ns.saturating_sub(intended_ns));
                return Ok(());
            }
            std::hint::spin_loop();
            looks += 1;
            if looks.is_multiple_of(1 << 20) && clock.now_ns() - intended_ns > 10_000_000_000 {
                return Err(LoadError::engine(format!(
                    "a handler was not called within {} of a publish; this is a fault of the engine, report it",
                    units::duration(10_000_000_000)
                )));
            }
        }
    }

    /// Latencies of one round, which are also kept.
    fn round(&mut self, bench: &Bench<'_>, for_ns: u64) -> Result<Histogram, LoadError> {
        let clock = &bench.clock;
        let kept = std::mem::replace(&mut self.latency, Histogram::new(DIGITS));
        let start_ns = clock.now_ns();
        while clock.now_ns() - start_ns < for_ns && !bench.stopped() {
            self.once(clock)?;
        }
        let round = std::mem::replace(&mut self.latency, kept);
        self.latency.merge(&round);
        Ok(round)
    }

    fn verdict(&self) -> Verdict {
        let delivered = self.seen.count.load(Relaxed);
        Verdict {
            published: self.sent,
            expected: self.sent,
            delivered: delivered.min(self.sent),
            acked: delivered.min(self.sent),
            lost: self.sent.saturating_sub(delivered),
            duplicated: delivered.saturating_sub(self.sent),
            out_of_order: self.seen.wrong.load(Relaxed),
            ..Verdict::default()
        }
    }
}
