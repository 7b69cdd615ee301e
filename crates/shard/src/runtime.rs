//! A running engine: its handles, and its orderly end.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use pelton_sys::{Clock, DiskReport};

use crate::plan::Resources;
use crate::port::{ShardHandle, on_shard_thread};
use crate::routes::Routes;
use crate::stop::ShardReport;

/// What a shard may take longer than its deadline: it shuts its disk down and closes its handles.
const END_GRACE: Duration = Duration::from_secs(2);
/// How long a dropped engine waits.
const DROP_DEADLINE: Duration = Duration::from_secs(5);

/// The shards of an open engine. Dropping it is [`Runtime::shutdown`] with 5 s.
#[derive(Debug)]
pub struct Runtime {
    pub(crate) handles: Vec<ShardHandle>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) clock: Clock,
    pub(crate) dir: Option<PathBuf>,
    pub(crate) disk: Option<DiskReport>,
    pub(crate) notes: Vec<String>,
    pub(crate) ends: Vec<Ends>,
    pub(crate) threads: TakeOnce<Vec<JoinHandle<()>>>,
    pub(crate) resources: TakeOnce<Arc<Resources>>,
    /// The thread that owns the driver, if there is one.
    pub(crate) driven_by: Option<ThreadId>,
    pub(crate) first_report: OnceLock<ShutdownReport>,
}

/// How the end of a shard is noticed.
#[derive(Debug)]
pub(crate) struct Ends {
    /// Never sent to; disconnected when the shard has ended.
    pub(crate) ended: Receiver<Infallible>,
    /// Set before that, unless the shard panicked.
    pub(crate) report: Arc<OnceLock<ShardReport>>,
}

/// What a shutdown came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShutdownReport {
    /// One per shard that ended in an orderly way, in order.
    pub shards: Vec<ShardReport>,
    /// Everything that was taken is as durable as promised, on all shards.
    pub clean: bool,
    /// Shards whose thread panicked.
    pub panicked: Vec<u32>,
    /// Shards that had not ended in time, e.g. because a handler blocks. The directory stays locked
    /// while they live.
    pub running: Vec<u32>,
    /// False if the caller could not wait, being a shard's own thread: the stop goes on without it.
    pub waited: bool,
    /// From the call to its return, in nanoseconds.
    pub took_ns: u64,
}

impl Runtime {
    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.handles.len()
    }

    /// The handle of one shard.
    ///
    /// # Panics
    /// If there is no such shard.
    #[must_use]
    pub fn handle(&self, shard: u32) -> &ShardHandle {
        &self.handles[shard as usize]
    }

    /// All handles, by index.
    #[must_use]
    pub fn handles(&self) -> &[ShardHandle] {
        &self.handles
    }

    /// The shard that owns a topic, or would if it were made now.
    #[must_use]
    pub fn shard_of(&self, topic: &str) -> u32 {
        self.routes.shard_of(topic)
    }

    /// The clock of every time in this engine.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether there is a directory.
    #[must_use]
    pub fn durable(&self) -> bool {
        self.dir.is_some()
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> Option<&Path> {
        self.dir.as_deref()
    }

    /// What the disk runs on and why, as decided for all shards; `None` in memory.
    #[must_use]
    pub fn disk_report(&self) -> Option<&DiskReport> {
        self.disk.as_ref()
    }

    /// What was decided at the start, one line each.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Whether every shard has ended.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.handles.iter().all(ShardHandle::is_closed)
    }

    /// Starts a stop and does not wait for it.
    pub fn start_shutdown(&self, wait: Duration, abort: bool) {
        let wait_ns = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
        let deadline_ns = self.clock.now_ns().saturating_add(wait_ns);
        for handle in &self.handles {
            handle.shared.stop(deadline_ns, abort);
        }
    }

    /// Stops the engine: publishes that are queued are taken and made durable, receipts are given,
    /// everything is closed. At the latest after `wait`, plus up to 2 s for the disk, it returns.
    /// With `abort` nothing is drained: what is queued is refused.
    ///
    /// A second call does nothing but wait for the first; both get the same report. On a shard's own
    /// thread (in a handler), and on the thread that drives the engine, it starts the stop and returns.
    pub fn shutdown(&self, wait: Duration, abort: bool) -> ShutdownReport {
        let started_ns = self.clock.now_ns();
        self.start_shutdown(wait, abort);
        // The last shard lets go of the directory.
        drop(self.resources.take());
        if on_shard_thread() || self.driven_by == Some(std::thread::current().id()) {
            return ShutdownReport {
                took_ns: self.clock.now_ns() - started_ns,
                ..Default::default()
            };
        }
        let mut report = ShutdownReport {
            clean: true,
            waited: true,
            ..ShutdownReport::default()
        };
        let until_ns = started_ns
            .saturating_add(nanos(wait))
            .saturating_add(nanos(END_GRACE));
        for (index, ends) in (0..).zip(&self.ends) {
            let left_ns = until_ns.saturating_sub(self.clock.now_ns());
            let ended = ends.ended.recv_timeout(Duration::from_nanos(left_ns));
            match (ended, ends.report.get()) {
                (Err(crossbeam_channel::RecvTimeoutError::Timeout), _) => {
                    report.running.push(index)
                }
                (_, Some(shard)) => {
                    report.clean &= shard.clean;
                    report.shards.push(shard.clone());
                }
                (_, None) => report.panicked.push(index),
            }
        }
        report.clean &= report.running.is_empty() && report.panicked.is_empty();
        report.took_ns = self.clock.now_ns() - started_ns;
        if !report.running.is_empty() {
            return report; // Their threads cannot be joined; a later call may find them ended.
        }
        for thread in self.threads.take().unwrap_or_default() {
            // It has ended but for its last instructions. A panic is in the report already.
            let _ = thread.join();
        }
        self.first_report.get_or_init(|| report).clone()
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if self.first_report.get().is_none() {
            self.shutdown(DROP_DEADLINE, false);
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A value that any thread can take, once.
#[derive(Debug)]
pub(crate) struct TakeOnce<T>(Receiver<T>);

impl<T> TakeOnce<T> {
    pub(crate) fn new(value: T) -> TakeOnce<T> {
        let (sender, receiver): (Sender<T>, Receiver<T>) = bounded(1);
        let _ = sender.try_send(value);
        TakeOnce(receiver)
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.0.try_recv().ok()
    }
}
