//! The engine: open, topics, statistics, and an orderly end.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pelton_shard::{EngineOptions, Runtime};

use crate::driver::Driver;
use crate::error::{DeleteError, StatsError};
use crate::pending::{Pending, ask};
use crate::port::{Ports, Request, ShardHandle};
use crate::stats::{self, EngineStats};
use crate::topic::{EntryLimit, EntryLimits, Settings, TopicBuilder, deleted};
use crate::{
    Clock, Disk, DiskReport, Durability, Explanation, HostReport, Idle, MESSAGE_HEADER_BYTES,
    OpenError, ShutdownReport, wait,
};

/// What a segment needs beside the body of one entry that fills it, in bytes, rounded up.
const SEGMENT_OVERHEAD_BYTES: u64 = 20 << 10;

/// How [`Engine::builder`] and [`Engine::in_memory`] open an engine.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct Builder {
    options: EngineOptions,
    /// `None` asks the environment.
    disk: Option<Disk>,
    waiting: Option<Idle>,
}

impl Builder {
    fn new(dir: Option<PathBuf>) -> Builder {
        Builder {
            options: EngineOptions {
                dir,
                ..EngineOptions::default()
            },
            disk: None,
            waiting: None,
        }
    }

    /// Shards: threads that own topics, 1 by default. Topics are spread over them by name and stay
    /// where they are; a directory can be opened with more shards than before, not with fewer.
    pub fn shards(mut self, shards: usize) -> Builder {
        self.options.shards = shards;
        self
    }

    /// How the disk is driven: [`Disk::Auto`] (io_uring where it can be had, else threads that call
    /// pread), `Uring` or `Pread`. By default what the environment variable `DISK` says (`auto`,
    /// `uring`, `pread`), and `Auto` without it.
    pub fn disk(mut self, disk: Disk) -> Builder {
        self.disk = Some(disk);
        self
    }

    /// How shards wait for work: by default they spin for up to 20 us while that is worth it, then
    /// sleep.
    pub fn idle(mut self, idle: Idle) -> Builder {
        self.options.idle = idle;
        self
    }

    /// How blocking calls of handles wait: by default as shards do, if there are more CPUs than shards,
    /// else they park at once. [`Idle::Busy`] burns a CPU for each thread that waits.
    pub fn waiting(mut self, idle: Idle) -> Builder {
        self.waiting = Some(idle);
        self
    }

    /// Pins each shard to a CPU of its own, if there are enough. Off by default.
    pub fn pin(mut self, pin: bool) -> Builder {
        self.options.pin = pin;
        self
    }

    /// Bytes of each segment file: at least 64 KiB, a multiple of 4 KiB, below 4 GiB; 64 MiB by
    /// default. An entry must fit into one.
    pub fn segment_bytes(mut self, bytes: u64) -> Builder {
        self.options.log.segment_bytes = bytes;
        self
    }

    /// Memory per shard, in bytes, in which the newest entries are kept for dispatch without a read
    /// from disk; 32 MiB by default.
    pub fn tail_bytes(mut self, bytes: u64) -> Builder {
        self.options.log.tail_bytes = bytes;
        self
    }

    /// Memory per shard, in bytes, for the backlog of memory topics; 256 MiB by default. When it is
    /// full their producers wait. At least 64 KiB; an entry needs up to twice its length, and one that
    /// does not fit in alone is refused.
    pub fn memory_backlog_bytes(mut self, bytes: u64) -> Builder {
        self.options.log.memory_backlog_bytes = bytes;
        self
    }

    /// Longest entry in bytes, framing included; 5 MiB and 16 KiB by default. What does not fit
    /// into a segment ([`Builder::segment_bytes`]), or of a memory topic into its memory
    /// ([`Builder::memory_backlog_bytes`]), is refused as well.
    pub fn entry_bytes_max(mut self, bytes: u32) -> Builder {
        self.options.log.entry_bytes_max = bytes;
        self
    }

    /// Opens although segments with live entries are missing, or the end of a log that is known to have
    /// been there when the engine was last opened or closed: what they held is lost and reported. Off by
    /// default, when that is an error.
    pub fn accept_loss(mut self, accept: bool) -> Builder {
        self.options.log.accept_loss = accept;
        self
    }

    /// Opens the engine: takes the directory (made if missing), recovers what is in it and starts one
    /// thread per shard. Blocks until that is done.
    ///
    /// # Errors
    /// [`OpenError`]; nothing runs. What was repaired until then stays repaired, and a second open goes
    /// on from there.
    pub fn open(self) -> Result<Engine, OpenError> {
        let (options, waiting) = self.decide()?;
        let log = options.log.clone();
        let runtime = pelton_shard::open(options)?;
        Ok(Engine::new(runtime, &log, waiting))
    }

    /// Opens an engine of one shard that the calling thread drives: no thread is started but the disk's
    /// (none in memory), and nothing happens but in [`Driver::run_once`] and [`Driver::run_until`].
    ///
    /// # Errors
    /// As [`Builder::open`], and if more than one shard is asked for.
    pub fn open_driven(self) -> Result<(Engine, Driver), OpenError> {
        let (options, waiting) = self.decide()?;
        let log = options.log.clone();
        let (runtime, inner) = pelton_shard::open_driven(options)?;
        let engine = Engine::new(runtime, &log, waiting);
        let engine_id = engine.settings.engine_id;
        let driver = Driver::new(inner, engine.runtime.handle(0).clone(), engine_id);
        Ok((engine, driver))
    }

    fn decide(mut self) -> Result<(EngineOptions, Option<Idle>), OpenError> {
        self.options.disk = match self.disk {
            Some(disk) => disk,
            None => Disk::from_env()
                .map_err(|why| OpenError::Options(format!("environment variable DISK: {why}")))?,
        };
        let bytes = self.options.log.entry_bytes_max;
        if bytes as usize <= MESSAGE_HEADER_BYTES {
            return Err(OpenError::Options(format!(
                "entry_bytes_max is {bytes}: it must be more than the {MESSAGE_HEADER_BYTES} bytes of framing"
            )));
        }
        Ok((self.options, self.waiting))
    }
}

/// An open engine. Usable from any thread by reference; handles made from it outlive it and then say
/// that they are closed.
///
/// Dropped, it shuts down in an orderly way and waits up to 5 s for it; on a thread that runs a shard
/// it starts that and does not wait.
pub struct Engine {
    runtime: Runtime,
    settings: Settings,
    limits: EntryLimits,
}

impl Engine {
    /// An engine that keeps durable topics, and what is known of them, in `dir`.
    pub fn builder(dir: impl Into<PathBuf>) -> Builder {
        Builder::new(Some(dir.into()))
    }

    /// An engine without a directory: memory topics only, gone when it is closed.
    pub fn in_memory() -> Builder {
        Builder::new(None)
    }

    fn new(
        runtime: Runtime,
        log: &pelton_shard::broker::storage::Options,
        waiting: Option<Idle>,
    ) -> Engine {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let limits = entry_limits(log);
        let settings = Settings {
            engine_id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            clock: runtime.clock(),
            waiting: waiting.unwrap_or_else(|| wait::default_waiting(runtime.shards())),
            dir: runtime.dir().unwrap_or(Path::new("")).into(),
            entry_limit: limits.stored,
        };
        Engine {
            runtime,
            settings,
            limits,
        }
    }

    /// Makes or opens a topic. Its name has 1 to 512 bytes, no control characters, and no blanks at
    /// its ends; names of Pulsar are fine.
    pub fn topic(&self, name: impl Into<String>) -> TopicBuilder {
        let name = name.into();
        let handle = self.owner(&name).clone();
        let durability = if self.runtime.durable() {
            Durability::Synced
        } else {
            Durability::Memory
        };
        TopicBuilder::new(name, durability, handle, self.settings.clone(), self.limits)
    }

    /// Deletes a topic with its subscriptions and entries, and blocks until that is durable. It must
    /// have neither producers nor consumers.
    ///
    /// # Errors
    /// [`DeleteError`]; nothing was changed.
    pub fn delete_topic(&self, name: &str) -> Result<(), DeleteError> {
        let what = "topic";
        let would_block = || {
            Err(DeleteError::WouldBlock {
                what,
                name: name.to_owned(),
            })
        };
        self.begin_delete_topic(name)
            .wait()
            .unwrap_or_else(|_| would_block())
    }

    /// As [`Engine::delete_topic`], to be waited for, awaited or driven.
    pub fn begin_delete_topic(&self, name: &str) -> Pending<Result<(), DeleteError>> {
        let name = name.to_owned();
        let asked = (self.settings.engine_id, self.settings.waiting);
        let request = Request::DeleteTopic { name: name.clone() };
        ask(
            asked,
            self.owner(&name),
            request,
            Ports::None,
            move |answer| deleted("topic", name, answer),
        )
    }

    /// Statistics of all shards. Blocks until they have answered.
    ///
    /// # Errors
    /// [`StatsError`].
    pub fn stats(&self) -> Result<EngineStats, StatsError> {
        self.begin_stats()
            .wait()
            .unwrap_or(Err(StatsError::WouldBlock))
    }

    /// As [`Engine::stats`], to be waited for, awaited or driven.
    pub fn begin_stats(&self) -> Pending<Result<EngineStats, StatsError>> {
        let Settings {
            engine_id, waiting, ..
        } = self.settings;
        stats::begin(engine_id, waiting, self.runtime.handles())
    }

    /// Why subscriptions and consumers get nothing now: each one that is not moving, with the reasons
    /// and since when. Blocks until all shards have answered. Asking changes nothing, and the path of
    /// a message pays nothing for it.
    ///
    /// # Errors
    /// [`StatsError`].
    pub fn explain(&self) -> Result<Vec<Explanation>, StatsError> {
        self.begin_explain()
            .wait()
            .unwrap_or(Err(StatsError::WouldBlock))
    }

    /// As [`Engine::explain`], to be waited for, awaited or driven.
    pub fn begin_explain(&self) -> Pending<Result<Vec<Explanation>, StatsError>> {
        let Settings {
            engine_id, waiting, ..
        } = self.settings;
        stats::begin_explain(engine_id, waiting, self.runtime.handles())
    }

    /// What this machine has and lacks for the engine, with the remedy for each thing that is missing.
    /// Measures nothing; [`crate::host_report`] can.
    #[must_use]
    pub fn io_report(&self) -> HostReport {
        crate::host_report(self.runtime.dir(), self.runtime.shards(), None)
    }

    /// What the disk runs on, and why; `None` in memory.
    #[must_use]
    pub fn disk_report(&self) -> Option<&DiskReport> {
        self.runtime.disk_report()
    }

    /// What was decided when it was opened, one line each: spinning, pinning. What each shard recovered,
    /// and what went wrong since, damaged entries among it, is in the notes of [`Engine::stats`].
    #[must_use]
    pub fn notes(&self) -> &[String] {
        self.runtime.notes()
    }

    /// A handle on the clock of every `_ns` in this engine, for the thread that asks.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.runtime.clock()
    }

    /// How many shards it has.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.runtime.shards()
    }

    /// Its directory; `None` in memory.
    #[must_use]
    pub fn dir(&self) -> Option<&Path> {
        self.runtime.dir()
    }

    /// Whether every shard has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.runtime.is_stopped()
    }

    /// Stops the engine: publishes that are queued are taken and made durable, receipts are given,
    /// acks are made durable, handles are told. Returns when that is done, at the latest after `wait`
    /// and up to 2 s for the disk; the report says what was not.
    ///
    /// Calling it again, or on another thread at once, waits for the same stop. On a thread that runs
    /// a shard it starts the stop and does not wait.
    pub fn shutdown(&self, wait: Duration) -> ShutdownReport {
        self.runtime.shutdown(wait, false)
    }

    /// Stops at once: what is queued is refused, what is not yet durable has receipts that say
    /// `Unknown`. What was receipted is kept, as it is after a crash.
    pub fn abort(&self) -> ShutdownReport {
        self.runtime.shutdown(Duration::ZERO, true)
    }

    fn owner(&self, topic: &str) -> &ShardHandle {
        self.runtime.handle(self.runtime.shard_of(topic))
    }
}

/// The smallest of what applies is what is reported.
fn entry_limits(log: &pelton_shard::broker::storage::Options) -> EntryLimits {
    let by_option = EntryLimit {
        bytes: log.entry_bytes_max as usize,
        option: "entry_bytes_max",
    };
    let or = |bytes: usize, option| match bytes < by_option.bytes {
        true => EntryLimit { bytes, option },
        false => by_option,
    };
    let segment_bytes = log.segment_bytes.saturating_sub(SEGMENT_OVERHEAD_BYTES);
    EntryLimits {
        stored: or(segment_bytes as usize, "segment_bytes"),
        memory: or(log.memory_entry_bytes_max(), "memory_backlog_bytes"),
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("dir", &self.dir())
            .field("shards", &self.shards())
            .field("closed", &self.is_closed())
            .finish_non_exhaustive()
    }
}
