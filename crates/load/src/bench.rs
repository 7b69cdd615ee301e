//! What all scenarios share: the engine, the topics, the yardsticks, and what is read at the end.

use std::{
    collections::BTreeMap,
    fmt, fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pelton::{Disk, Durability, Engine, EngineStats, ShardMetrics, SubscriptionKind, Topic};
use pelton_metrics::Counter;

use crate::{
    LoadError,
    compare::{Comparison, Figure, Round},
    crossbeam::pipeline_per_s,
    embedded::{Client, Clock},
    limits,
    report::{Cpu, Limits, Part},
    scenario::{DiskDriver, Options, durability_name},
    seen::Content,
    sender::queue,
    verify::Verifier,
    workdir::WorkDir,
};

/// Time of a raw round at most: more says nothing new, and whoever stops a run waits for its end.
const RAW_NS_MAX: u64 = 500_000_000;

/// Commits of a round, raw or the engine's: a median of fewer says little, more say nothing new.
pub(crate) const SYNCS_MIN: usize = 25;
const SYNCS_MAX: usize = 300;

/// Raw writes are synced at each of these.
const SYNC_EACH_BYTES: u64 = 4 << 20;

/// Rounds of product and yardstick in turn (`runtime.md` 11.5).
pub(crate) const ROUNDS: u64 = 5;

/// One run: options, clock, directory, and the limits measured so far.
pub(crate) struct Bench<'a> {
    pub(crate) options: &'a Options,
    pub(crate) clock: Clock,
    pub(crate) limits: Limits,
    watch: &'a Watch<'a>,
    work: Option<WorkDir>,
}

/// Who watches a run.
pub struct Watch<'a> {
    /// Told now and then what is being done, in a few words.
    pub progress: &'a dyn Fn(&str),
    /// Once true the run ends early, in order: what is under way arrives and is checked, and the
    /// report has what was measured until then.
    pub stop: Arc<AtomicBool>,
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("stop", &self.stop)
            .finish_non_exhaustive()
    }
}

impl<'a> Watch<'a> {
    /// Told by `progress`, never stopped.
    pub fn new(progress: &'a dyn Fn(&str)) -> Watch<'a> {
        Watch {
            progress,
            stop: Arc::default(),
        }
    }
}

/// Topics and who is attached to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// On each topic.
    pub(crate) producers: usize,
    /// On each topic.
    pub(crate) subscriptions: usize,
    /// On each subscription.
    pub(crate) consumers: usize,
    /// Keys of the messages; `None`: every producer is a key of its own.
    pub(crate) keys: Option<usize>,
    pub(crate) message_bytes: usize,
    pub(crate) batch: usize,
    pub(crate) durability: Durability,
    /// Every so many entries the receipt is timed.
    pub(crate) sample: u64,
    /// Messages a consumer asks for ahead.
    pub(crate) window: u32,
    /// Entries that a closed loop keeps under way to each subscription; by default two queues of its
    /// producer, as the channels that are the yardstick have.
    pub(crate) under_way: Option<u64>,
}

impl Shape {
    /// A producer and a consumer on each topic, single messages, every receipt timed.
    pub(crate) fn one_to_one(options: &Options) -> Shape {
        Shape {
            producers: 1,
            subscriptions: 1,
            consumers: 1,
            keys: None,
            message_bytes: options.message_bytes(),
            batch: 1,
            durability: options.durability(),
            sample: 1,
            window: 512,
            under_way: None,
        }
    }
}

/// Time to warm up: `longest_ns`, but no more than a fifth of what is measured afterwards.
pub(crate) fn warm_up_ns(longest_ns: u64, measured_s: f64) -> u64 {
    longest_ns.min((measured_s * 1e9) as u64 / 5)
}

/// A sample so rare that no receipt is kept.
pub(crate) const NO_SAMPLE: u64 = u64::MAX;

impl<'a> Bench<'a> {
    pub(crate) fn new(options: &'a Options, watch: &'a Watch<'a>) -> Bench<'a> {
        Bench {
            options,
            clock: Clock::new(),
            limits: Limits::default(),
            watch,
            work: None,
        }
    }

    /// Says what is being done now.
    pub(crate) fn say(&self, what: &str) {
        (self.watch.progress)(what);
    }

    /// True once the run is to end early.
    pub(crate) fn stopped(&self) -> bool {
        self.watch.stop.load(Ordering::Relaxed)
    }

    /// The directory of this run, made when it is first needed.
    pub(crate) fn work(&mut self) -> Result<&WorkDir, LoadError> {
        if self.work.is_none() {
            self.work = Some(WorkDir::new(self.options.dir.as_deref())?);
        }
        Ok(self.work.as_ref().expect("just made"))
    }

    /// An engine with nothing in it: in memory, or in a directory of its own.
    pub(crate) fn engine(
        &mut self,
        durability: Durability,
        name: &str,
    ) -> Result<Engine, LoadError> {
        let builder = match durability {
            Durability::Memory => Engine::in_memory(),
            _ => Engine::builder(self.work()?.sub(name)?),
        };
        let builder = builder.shards(self.options.shards);
        let builder = match self.options.disk {
            None => builder,
            Some(DiskDriver::Auto) => builder.disk(Disk::Auto),
            Some(DiskDriver::Uring) => builder.disk(Disk::Uring),
            Some(DiskDriver::Pread) => builder.disk(Disk::Pread),
        };
        builder.open().map_err(LoadError::engine)
    }

    /// One topic per shard, attached as `shape` says, all driven by this thread.
    pub(crate) fn client(
        &self,
        engine: &Engine,
        name: &str,
        shape: &Shape,
    ) -> Result<Client, LoadError> {
        let topics = topics_on_all_shards(engine, name, shape.durability)?;
        let producers = topics.len() * shape.producers;
        let mut verifier = Verifier::new(producers, shape.keys.unwrap_or(producers));
        let mut places = Vec::new();
        for (t, topic) in topics.iter().enumerate() {
            for s in 0..shape.subscriptions {
                let subscription = format!("sub-{s}");
                let label = format!("{}/{subscription}", topic.name());
                let from = t * shape.producers..(t + 1) * shape.producers;
                let index = verifier.add_subscription(label, from);
                for _ in 0..shape.consumers {
                    verifier.add_consumer(index);
                    places.push((t, subscription.clone()));
                }
            }
        }
        let content = Content::Filled {
            bytes: shape.message_bytes,
        };
        let mut client = Client::new(
            engine.clock(),
            Arc::clone(&self.watch.stop),
            verifier,
            content,
        );
        let kind = match shape.consumers {
            1 => SubscriptionKind::Exclusive,
            _ => SubscriptionKind::Shared,
        };
        for (t, subscription) in places {
            let builder = topics[t].subscribe(subscription).kind(kind);
            client.add_taker(builder, shape.window)?;
        }
        for topic in &topics {
            for _ in 0..shape.producers {
                client.add_sender(topic, (shape.message_bytes, shape.batch), shape.sample)?;
            }
        }
        let subscriptions = (topics.len() * shape.subscriptions) as u64;
        let entries = shape
            .under_way
            .unwrap_or_else(|| 2 * queue(shape.message_bytes * shape.batch) as u64);
        client.bound(entries.saturating_mul(shape.batch as u64 * subscriptions));
        Ok(client)
    }

    /// Crossbeam over the same hops for a while; kept as the limit of the run.
    pub(crate) fn crossbeam(&mut self, message_bytes: usize, for_ns: u64) -> f64 {
        let per_s = pipeline_per_s(&self.clock, message_bytes, for_ns.min(RAW_NS_MAX));
        keep_highest(&mut self.limits.crossbeam_pipeline_per_s, per_s);
        per_s
    }

    /// Round trip over two rings; the median in nanoseconds.
    pub(crate) fn ring_rtt_ns(&mut self, for_ns: u64) -> Result<f64, LoadError> {
        let trips = limits::ring_round_trips(for_ns.min(RAW_NS_MAX))?;
        if keep_lowest(&mut self.limits.ring_rtt_ns_p50, trips.p50_ns) {
            self.limits.ring_rtt_noisy = trips.are_noisy();
        }
        Ok(trips.p50_ns as f64)
    }

    /// What a message at a rate can take at best, in nanoseconds: a sync, or a ring round trip.
    pub(crate) fn latency_limit(&mut self, durability: Durability) -> Result<f64, LoadError> {
        match durability {
            Durability::Synced => self.fdatasync_ns(100_000_000),
            _ => self.ring_rtt_ns(100_000_000),
        }
    }

    /// Messages per second over rings alone.
    pub(crate) fn ring_per_s(&mut self, for_ns: u64) -> Result<(), LoadError> {
        let per_s = limits::ring_per_s(for_ns.min(RAW_NS_MAX))?;
        keep_highest(&mut self.limits.ring_per_s, per_s);
        Ok(())
    }

    /// Write and fdatasync of 4 KiB, for about `for_ns`; the median in nanoseconds.
    pub(crate) fn fdatasync_ns(&mut self, for_ns: u64) -> Result<f64, LoadError> {
        let known_ns = self.limits.fdatasync_ns_p50;
        let rounds = known_ns.map_or(0, |ns| for_ns / ns.max(1));
        let rounds = usize::try_from(rounds).unwrap_or(usize::MAX);
        let rounds = rounds.clamp(SYNCS_MIN, SYNCS_MAX);
        let ns = limits::fdatasync_ns(self.work()?.path(), rounds)?;
        keep_lowest(&mut self.limits.fdatasync_ns_p50, ns);
        Ok(ns as f64)
    }

    /// Sequential write with a sync each 4 MiB, for about `for_ns`; in bytes per second.
    pub(crate) fn write_bytes_per_s(&mut self, for_ns: u64) -> Result<f64, LoadError> {
        // The file is written once before, so that what is measured are writes over written blocks.
        let known_per_s = self.limits.write_bytes_per_s.unwrap_or(0.0) / 2.0;
        let syncs = (known_per_s * for_ns as f64 / 1e9) as u64 / SYNC_EACH_BYTES;
        let bytes = syncs.clamp(4, 16) * SYNC_EACH_BYTES;
        let per_s = limits::write_bytes_per_s(self.work()?.path(), bytes)?;
        keep_highest(&mut self.limits.write_bytes_per_s, per_s);
        Ok(per_s)
    }

    /// O_DIRECT reads, in bytes per second; `None` where the file system has no O_DIRECT.
    pub(crate) fn read_bytes_per_s(&mut self, bytes: u64) -> Result<Option<f64>, LoadError> {
        let per_s = limits::read_bytes_per_s(self.work()?.path(), bytes)?;
        if let Some(per_s) = per_s {
            keep_highest(&mut self.limits.read_bytes_per_s, per_s);
        }
        Ok(per_s)
    }

    /// Facts of the host, by name.
    pub(crate) fn host(&self) -> BTreeMap<String, String> {
        let dir = self.work.as_ref().map(WorkDir::path);
        let report = pelton::host_report(dir, self.options.shards, None);
        let facts = report.facts.iter();
        facts
            .map(|fact| (fact.name.to_owned(), fact.value.clone()))
            .collect()
    }
}

/// A limit is what the machine could do at its best; ratios use the rounds instead.
fn keep_highest(limit: &mut Option<f64>, per_s: f64) {
    let best = limit.get_or_insert(per_s);
    *best = per_s.max(*best);
}

/// True if it is the new limit.
fn keep_lowest(limit: &mut Option<u64>, ns: u64) -> bool {
    let lowest = limit.is_none_or(|best| ns < best);
    if lowest {
        *limit = Some(ns);
    }
    lowest
}

/// Topics named after `name`, one on each shard.
pub(crate) fn topics_on_all_shards(
    engine: &Engine,
    name: &str,
    durability: Durability,
) -> Result<Vec<Topic>, LoadError> {
    let mut found: Vec<Option<Topic>> = (0..engine.shards()).map(|_| None).collect();
    // Names are spread by hash: the last shard is found after some n ln n of them.
    for i in 0.. {
        if found.iter().all(Option::is_some) {
            break;
        }
        let candidate = format!("{name}-{i}");
        let topic = engine.topic(&candidate).durability(durability).open();
        let topic = topic.map_err(LoadError::engine)?;
        match &mut found[topic.shard()] {
            place @ None => *place = Some(topic),
            Some(_) => engine.delete_topic(&candidate).map_err(LoadError::engine)?,
        }
    }
    Ok(found.into_iter().flatten().collect())
}

/// What the engine counted and what it cost, from one moment to another.
pub(crate) struct Meter<'e> {
    engine: &'e Engine,
    switches: u64,
}

impl<'e> Meter<'e> {
    /// Starts counting at zero.
    pub(crate) fn start(engine: &'e Engine) -> Result<Meter<'e>, LoadError> {
        engine.stats().map_err(LoadError::engine)?;
        Ok(Meter {
            engine,
            switches: shard_switches(),
        })
    }

    /// Adds the cost to the part, and takes the engine's word on what was acked.
    pub(crate) fn stop(self, client: &mut Client, part: &mut Part) -> Result<(), LoadError> {
        client.flush_acks()?;
        let stats = self.read(part)?;
        for (topic, subscription, label) in client.subscriptions() {
            if let Some(found) = stats.subscription(&topic, &subscription) {
                client
                    .seen
                    .verifier
                    .engine_acked(&label, found.acked_messages);
            }
        }
        Ok(())
    }

    /// Adds the cost to the part; everything the engine counted.
    pub(crate) fn read(self, part: &mut Part) -> Result<EngineStats, LoadError> {
        // Shards of other engines in the process may have ended meanwhile, with what they counted.
        let switches = shard_switches().saturating_sub(self.switches);
        let stats = self.engine.stats().map_err(LoadError::engine)?;
        let measured: ShardMetrics = stats.merged();
        let counters = &measured.counters;
        let published = counters.get(Counter::MessagesIn);
        part.cpu = Cpu {
            shard_busy_ns_per_message: (published > 0)
                .then(|| counters.get(Counter::BusyNs) as f64 / published as f64),
            voluntary_switches: Some(switches),
            wakeups: Some(counters.get(Counter::Wakes)),
        };
        Ok(stats)
    }
}

/// Voluntary switches of all shard threads, from the process's own status files.
fn shard_switches() -> u64 {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else {
        return 0;
    };
    let read = |path: &Path, file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
    tasks
        .flatten()
        .map(|task| task.path())
        .filter(|path| read(path, "comm").starts_with("pelton-shard"))
        .filter_map(|path| {
            let status = read(&path, "status");
            let line = status
                .lines()
                .find(|l| l.starts_with("voluntary_ctxt_switches"))?;
            line.split_whitespace().nth(1)?.parse::<u64>().ok()
        })
        .sum()
}

/// The median latency of a part over what it can be at best, measured before and after it: receipts
/// over a sync where topics are synced, else deliveries over a ring round trip. `others` is the share
/// of the CPUs that other processes used meanwhile.
pub(crate) fn p50_over_limit(
    part: &Part,
    durability: Durability,
    (raw, others): ([f64; 2], f64),
) -> Option<Comparison> {
    let (histogram, name, what, against) = match durability {
        Durability::Synced => (
            &part.publish_receipt,
            "receipt_p50_vs_fdatasync",
            "receipt p50",
            "one raw write + fdatasync",
        ),
        _ => (
            &part.end_to_end,
            "p50_vs_ring_rtt",
            "p50",
            "the round trip over two rings",
        ),
    };
    let product = histogram.quantile(5_000)? as f64;
    let rounds = raw.map(|raw| Round {
        product,
        raw,
        others,
    });
    Comparison::of_rounds(name, what, against, Figure::LatencyNs, &rounds)
}

/// A part with its rates, verdict and histograms, from what the client has seen since its restart.
pub(crate) fn part_of(
    name: &'static str,
    shape: &Shape,
    client: &mut Client,
    seconds: f64,
) -> Part {
    client.seen.flush();
    let mut part = Part::new(name, durability_name(shape.durability));
    part.seconds = seconds;
    // Stopped before anything was measured: no rate is better than an infinite one.
    let per_s = |count: u64| {
        if seconds > 0.0 {
            count as f64 / seconds
        } else {
            0.0
        }
    };
    part.achieved_per_s = per_s(client.seen.messages);
    part.bytes_per_s = per_s(client.seen.bytes);
    part.end_to_end.merge(&client.seen.end_to_end);
    part.publish_receipt.merge(&client.publish_receipt);
    part.lag.merge(&client.lag);
    part
}
