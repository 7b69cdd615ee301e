//! Control requests while the data lane is full.

use pelton::{
    Engine, EngineStats, Pending, Producer, ProducerError, StatsError, Topic, TopicError,
};
use pelton_metrics::Histogram;

use crate::{
    DIGITS, LoadError,
    bench::{Bench, Meter, ROUNDS, Shape, topics_on_all_shards, warm_up_ns},
    compare::{Comparison, Figure, Round},
    embedded::Clock,
    flood::Flood,
    neighbours::Neighbours,
    report::Part,
    scenario::durability_name,
    schedule::{Lag, Pace, Schedule},
    units,
};

/// Producers, so that their queues together hold more work than the shard gets through in the time
/// of a request: 32 queues of 1,024 entries are some milliseconds.
const PRODUCERS: usize = 32;

/// Requests that are due in a second, evenly spaced, whatever became of the last one.
const REQUESTS_PER_S: u64 = 2_000;

/// Time in which queues fill up before the first request.
const FILL_NS: u64 = 5_000_000;

/// Every so many requests one asks for statistics.
const STATS_EVERY: u64 = 50;

pub(crate) fn run(bench: &mut Bench<'_>, engine: &Engine, seconds: f64) -> Result<Part, LoadError> {
    let shape = Shape {
        producers: PRODUCERS,
        ..Shape::one_to_one(bench.options)
    };
    let topics = topics_on_all_shards(engine, "control-other", shape.durability)?;
    let flooded_topics = topics_on_all_shards(engine, "control", shape.durability)?;
    let mut flood = Flood::attach(&bench.clock, flooded_topics, &shape)?;
    bench.say("control: warming up");
    let mut warming_up = Asking::new(engine, &topics);
    let warm_up_ns = warm_up_ns(200_000_000, seconds);
    warming_up.run(bench, Some(&mut flood), warm_up_ns)?;
    flood.drain()?;

    let round_ns = (seconds * 1e9) as u64 / ROUNDS;
    let mut rounds = Vec::new();
    let (mut idle, mut control) = (Histogram::new(DIGITS), Histogram::new(DIGITS));
    let mut stats = Histogram::new(DIGITS);
    let (mut lag, mut full_percent) = (Lag::new(), Histogram::new(DIGITS));
    let (mut busy_s, mut messages) = (0.0, 0);
    let meter = Meter::start(engine)?;
    for n in 1..=ROUNDS {
        if bench.stopped() {
            break;
        }
        bench.say(&format!("control: round {n} of {ROUNDS}"));
        let neighbours = Neighbours::now();
        let mut alone = Asking::new(engine, &topics);
        alone.run(bench, None, round_ns / 3)?;
        let (before, start_ns) = (flood.arrived(), bench.clock.now_ns());
        let mut flooded = Asking::new(engine, &topics);
        flooded.run(bench, Some(&mut flood), round_ns * 2 / 3)?;
        flood.drain()?;
        busy_s += (bench.clock.now_ns() - start_ns) as f64 / 1e9;
        messages += flood.arrived() - before;
        let p99 = |asking: &Asking<'_>| asking.control.quantile(9_900).map(|ns| ns as f64);
        if let (Some(product), Some(raw)) = (p99(&flooded), p99(&alone)) {
            rounds.push(Round {
                product,
                raw,
                others: neighbours.share(),
            });
        }
        idle.merge(&alone.control);
        control.merge(&flooded.control);
        stats.merge(&flooded.stats);
        lag.merge(&flooded.lag);
        full_percent.merge(&flooded.full_percent);
    }
    bench.ring_rtt_ns(50_000_000)?;
    let mut part = Part::new("control", durability_name(shape.durability));
    let stats_read = meter.read(&mut part)?;
    part.verdict = flood.verdict(&stats_read);
    part.seconds = busy_s;
    part.achieved_per_s = messages as f64 / busy_s;
    part.bytes_per_s = part.achieved_per_s * shape.message_bytes as f64;
    part.control = control;
    part.lag = lag;
    part.title = format!(
        "topic and producer requests while {PRODUCERS} producers keep their queues full of {} B {} messages for four handlers; 1 client thread",
        shape.message_bytes,
        durability_name(shape.durability)
    );
    part.meaning = "whether the engine still answers when it is flooded: control goes before data";
    let requests = part.control.count() + stats.count();
    part.figures.push((
        "requests",
        format!(
            "{} at fixed times, {REQUESTS_PER_S} a second; {} % of the queues full at the median request",
            units::count(requests),
            full_percent.quantile(5_000).unwrap_or(0)
        ),
    ));
    part.notes.push(
        "open loop: latency counts from the time a request was due to the answer in hand".into(),
    );
    part.comparisons.extend(Comparison::of_rounds(
        "control_p99_vs_idle_p99",
        "p99",
        "the same requests with nothing else to do",
        Figure::LatencyNs,
        &rounds,
    ));
    if rounds.is_empty() {
        part.notes.push(
            "no ratio: too few requests for a p99 in a round; give a --duration of 10 or more"
                .into(),
        );
    }
    part.others.push(("with idle lanes", idle));
    part.others.push(("statistics", stats));
    Ok(part)
}

/// Requests at fixed times, and what became of them.
struct Asking<'e> {
    engine: &'e Engine,
    topics: &'e [Topic],
    /// Due times and answers to come.
    under_way: Vec<(u64, Asked)>,
    /// Due time to answer, in nanoseconds.
    control: Histogram,
    stats: Histogram,
    lag: Lag,
    /// How many of the queues were full when a request was sent.
    full_percent: Histogram,
}

/// A request whose answer has not been seen.
enum Asked {
    Topic(Pending<Result<Topic, TopicError>>),
    Producer(Box<Pending<Result<Producer, ProducerError>>>),
    Stats(Pending<Result<EngineStats, StatsError>>),
}

/// What an answer brings; dropped outside the measured time. That a producer goes is a request of its
/// own that nobody waits for.
enum Answered {
    Topic(#[expect(dead_code, reason = "kept until it was timed")] Topic),
    Producer(#[expect(dead_code, reason = "kept until it was timed")] Box<Producer>),
    Stats,
}

impl<'e> Asking<'e> {
    fn new(engine: &'e Engine, topics: &'e [Topic]) -> Asking<'e> {
        Asking {
            engine,
            topics,
            under_way: Vec::new(),
            control: Histogram::new(DIGITS),
            stats: Histogram::new(DIGITS),
            lag: Lag::new(),
            full_percent: Histogram::new(DIGITS),
        }
    }

    /// Asks for `for_ns`, beside a flood or with nothing else to do, and waits for the last answers.
    fn run(
        &mut self,
        bench: &Bench<'_>,
        mut flood: Option<&mut Flood>,
        for_ns: u64,
    ) -> Result<(), LoadError> {
        let pace = Pace::Rate {
            messages_per_s: REQUESTS_PER_S,
            batch: 1,
        };
        let clock = &bench.clock;
        // The queues fill up before the first request is due.
        let start_ns = clock.now_ns() + FILL_NS;
        let mut schedule = Schedule::new(pace, start_ns);
        loop {
            let now_ns = clock.now_ns();
            let over = now_ns >= start_ns + for_ns || bench.stopped();
            if over && self.under_way.is_empty() {
                return Ok(());
            }
            let due_ns = schedule.next_ns(now_ns).filter(|&due_ns| due_ns <= now_ns);
            if let (false, Some(due_ns)) = (over, due_ns) {
                if let Some(flood) = &mut flood {
                    self.full_percent.record(flood.full_percent());
                }
                self.ask(schedule.sent(), due_ns);
                self.lag.sent(due_ns, now_ns, false);
                schedule.advance();
            }
            self.settle(clock)?;
            if let Some(flood) = &mut flood {
                flood.step()?;
            }
        }
    }

    /// Opening a topic that is open, a producer, or now and then statistics.
    fn ask(&mut self, n: u64, due_ns: u64) {
        let topic = &self.topics[n as usize % self.topics.len()];
        let asked = match () {
            () if n % STATS_EVERY == STATS_EVERY - 1 => Asked::Stats(self.engine.begin_stats()),
            () if n.is_multiple_of(2) => {
                let again = self.engine.topic(topic.name());
                Asked::Topic(again.durability(topic.durability()).begin())
            }
            () => Asked::Producer(Box::new(topic.producer().queue(2).begin())),
        };
        self.under_way.push((due_ns, asked));
    }

    /// Times the answers that have come.
    fn settle(&mut self, clock: &Clock) -> Result<(), LoadError> {
        let mut i = 0;
        while let Some((due_ns, asked)) = self.under_way.get_mut(i) {
            let Some(answer) = asked.try_take() else {
                i += 1;
                continue;
            };
            let took_ns = clock.now_ns() - *due_ns;
            match answer? {
                Answered::Stats => self.stats.record(took_ns),
                Answered::Topic(_) | Answered::Producer(_) => self.control.record(took_ns),
            }
            self.under_way.swap_remove(i);
        }
        Ok(())
    }
}

impl Asked {
    fn try_take(&mut self) -> Option<Result<Answered, LoadError>> {
        Some(match self {
            Asked::Topic(pending) => pending
                .try_take()?
                .map(Answered::Topic)
                .map_err(LoadError::engine),
            Asked::Producer(pending) => pending
                .try_take()?
                .map(|producer| Answered::Producer(Box::new(producer)))
                .map_err(LoadError::engine),
            Asked::Stats(pending) => pending
                .try_take()?
                .map(|_| Answered::Stats)
                .map_err(LoadError::engine),
        })
    }
}
