//! From options to running shards: lock, probe, recover each shard on its own thread, start.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};
use pelton_broker::storage::Options as LogOptions;
use pelton_rings::{CONTROL_LANE_SLOTS, DATA_LANE_SLOTS};
use pelton_sys::{DiskChoice, spawn_named};

use crate::driver::Driver;
use crate::error::OpenError;
use crate::idle::Idle;
use crate::plan::{Plan, Resources};
use crate::port::ON_SHARD_THREAD;
use crate::runtime::{Ends, Runtime};
use crate::start::{Seed, build};
use crate::stop::ShardReport;
use crate::turn::Shard;

/// Most shards: mesh rings grow with the square.
pub const SHARDS_MAX: usize = 64;

/// What an engine is opened with. Every field is given; the default is one shard in memory.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where durable topics are kept; `None` for an engine in memory.
    pub dir: Option<PathBuf>,
    /// Shards, 1 to [`SHARDS_MAX`].
    pub shards: usize,
    /// How the disk is driven.
    pub disk: DiskChoice,
    /// How shards wait.
    pub idle: Idle,
    /// Pin each shard to a CPU of its own, if there are enough. A pin that fails is a note.
    pub pin: bool,
    /// Sizes of each shard's log. Its `log_id` is chosen by [`open`] if it is 0.
    pub log: LogOptions,
    /// Places in a shard's control lane, a power of two.
    pub control_slots: usize,
    /// Places in a shard's data lane, a power of two.
    pub data_slots: usize,
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            dir: None,
            shards: 1,
            disk: DiskChoice::Auto,
            idle: Idle::default(),
            pin: false,
            log: LogOptions::default(),
            control_slots: CONTROL_LANE_SLOTS,
            data_slots: DATA_LANE_SLOTS,
        }
    }
}

/// Makes a shard on the thread that will run it.
pub(crate) type Build = fn(Seed, &Resources) -> Result<Shard, OpenError>;

/// Opens an engine: takes the directory, recovers every shard, and starts one thread
/// `pelton-shard-N` for each.
///
/// # Errors
/// [`OpenError`]; nothing runs. What was repaired until then stays repaired, and a second open goes on
/// from there.
pub fn open(options: EngineOptions) -> Result<Runtime, OpenError> {
    open_with(options, build)
}

/// As [`open`], with the way a shard is built: tests have one that panics.
pub(crate) fn open_with(options: EngineOptions, build: Build) -> Result<Runtime, OpenError> {
    let mut plan = Plan::make(options)?;
    let (built, builds) = bounded::<(u32, Result<(), OpenError>)>(plan.options.shards);
    let (go, start) = bounded::<()>(plan.options.shards);
    let mut ends = Vec::new();
    let mut threads = Vec::new();
    for seed in plan.seeds() {
        let (ended, end) = bounded::<Infallible>(0);
        let report = Arc::new(OnceLock::new());
        ends.push(Ends {
            ended: end,
            report: Arc::clone(&report),
        });
        let (resources, built, start) = (Arc::clone(&plan.resources), built.clone(), start.clone());
        let shard = seed.shared.index;
        let body = move || run_shard(seed, resources, build, built, &start, &report, ended);
        match spawn_named(&format!("pelton-shard-{shard}"), body) {
            Ok(thread) => threads.push(thread),
            Err(source) => {
                return Err(give_up(OpenError::Start { shard, source }, go, threads));
            }
        }
    }
    drop(built);
    let mut missing: Vec<u32> = (0..threads.len() as u32).collect();
    while let Some(&shard) = missing.first() {
        match builds.recv() {
            Ok((shard, Ok(()))) => missing.retain(|&other| other != shard),
            Ok((_, Err(error))) => return Err(give_up(error, go, threads)),
            // Every other shard has answered and let go of the channel.
            Err(_) => {
                let source = io::Error::other("its thread panicked while it opened");
                return Err(give_up(OpenError::Start { shard, source }, go, threads));
            }
        }
    }
    for _ in &threads {
        let _ = go.send(());
    }
    Ok(plan.into_runtime(ends, threads, None))
}

/// Opens an engine of one shard that the caller drives on the calling thread: no thread is started
/// but those of the I/O pool, and nothing happens unless [`Driver::run_once`] is called.
///
/// # Errors
/// [`OpenError`], also if more than one shard is asked for.
pub fn open_driven(options: EngineOptions) -> Result<(Runtime, Driver), OpenError> {
    if options.shards != 1 {
        let text = format!("a driven engine has 1 shard, not {}", options.shards);
        return Err(OpenError::Options(text));
    }
    let mut plan = Plan::make(options)?;
    let seed = plan.seeds().remove(0);
    let shard = build(seed, &plan.resources)?;
    let (ended, end) = bounded::<Infallible>(0);
    let report = Arc::new(OnceLock::new());
    let driver = Driver::new(
        shard,
        Arc::clone(&plan.resources),
        Arc::clone(&report),
        ended,
    );
    let ends = vec![Ends { ended: end, report }];
    Ok((
        plan.into_runtime(ends, Vec::new(), Some(std::thread::current().id())),
        driver,
    ))
}

/// The life of a shard's thread.
fn run_shard(
    seed: Seed,
    resources: Arc<Resources>,
    build: Build,
    built: Sender<(u32, Result<(), OpenError>)>,
    start: &Receiver<()>,
    report: &OnceLock<ShardReport>,
    ended: Sender<Infallible>,
) {
    ON_SHARD_THREAD.set(true);
    let index = seed.shared.index;
    let mut shard = match build(seed, &resources) {
        Ok(shard) => shard,
        Err(error) => {
            drop(resources);
            let _ = built.send((index, Err(error)));
            return;
        }
    };
    let _ = built.send((index, Ok(())));
    // Whoever waits for a shard that panicked must see that nobody else can answer.
    drop(built);
    // An error: another shard could not be built, and the engine is not opened.
    if start.recv().is_ok() {
        shard.run();
        end_shard(shard, report);
    }
    // Whoever waits for the end finds the directory free.
    drop(resources);
    drop(ended);
}

/// The last step of a shard, and the closing of everything that was attached to it.
pub(crate) fn end_shard(mut shard: Shard, report: &OnceLock<ShardReport>) {
    let mut last = shard.finish();
    let (clock, started) = (shard.clock.clone(), shard.clock.now_ns());
    drop(shard);
    last.took_ns += clock.now_ns().saturating_sub(started);
    let _ = report.set(last);
}

fn give_up(error: OpenError, go: Sender<()>, threads: Vec<JoinHandle<()>>) -> OpenError {
    // The others wait for this and end.
    drop(go);
    for thread in threads {
        let _ = thread.join();
    }
    error
}
