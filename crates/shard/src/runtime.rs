//! A running engine: its handles, and its orderly end.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use pelton_sys::{Clock, DiskReport, nanos};

use crate::plan::Resources;
use crate::port::{ShardHandle, on_shard_thread};
use crate::routes::{Router, Routes};
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

/// One line: whether it was clean, how long it took, what was drained, and whatever was not done.
impl fmt::Display for ShutdownReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.took_ns as f64 / 1e6;
        if !self.waited {
            return write!(
                f,
                "shutdown started in {ms:.1} ms and not waited for: this thread runs a shard"
            );
        }
        let clean = if self.clean { "clean" } else { "NOT clean" };
        let total = |of: fn(&ShardReport) -> u64| self.shards.iter().map(of).sum::<u64>();
        write!(
            f,
            "{clean} shutdown of {} shard(s) in {ms:.1} ms: {} entries drained",
            self.shards.len() + self.panicked.len() + self.running.len(),
            total(|shard| shard.drained_entries)
        )?;
        let undone = [
            (total(|shard| shard.refused_entries), "entries refused"),
            (
                total(|shard| shard.unknown_entries),
                "entries of unknown outcome",
            ),
            (
                total(|shard| shard.returned_control),
                "requests not answered",
            ),
            (
                total(|shard| shard.returned_data),
                "acks or nacks not taken",
            ),
            (
                total(|shard| shard.leaked_operations as u64),
                "disk operations that did not end",
            ),
        ];
        for (count, what) in undone.into_iter().filter(|&(count, _)| count > 0) {
            write!(f, ", {count} {what}")?;
        }
        for shard in &self.panicked {
            write!(f, ", shard {shard} panicked")?;
        }
        for shard in &self.running {
            write!(f, ", shard {shard} still runs")?;
        }
        Ok(())
    }
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

    /// The same for another thread.
    #[must_use]
    pub fn router(&self) -> Router {
        Router(Arc::clone(&self.routes))
    }

    /// A handle on the clock of every time in this engine, for the thread that asks.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock.clone()
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
        let deadline_ns = self.clock.now_ns().saturating_add(nanos(wait));
        for handle in &self.handles {
            handle.shared.stop(deadline_ns, abort);
        }
    }

    /// Stops the engine: publishes that are queued are taken and made durable, receipts are given,
    /// everything is closed. At the latest after `wait`, plus up to 2 s for the disk, it returns.
    /// With `abort` nothing is drained: what is queued is refused.
    ///
    /// A second call waits for the same stop and gets the same report; it can make the deadline earlier
    /// and the stop an abort, never the other way round. On a shard's own
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

#[cfg(test)]
mod tests {
    use super::{ShardReport, ShutdownReport};

    #[test]
    fn a_shutdown_report_reads_as_one_line() {
        let shard = ShardReport {
            clean: true,
            drained_entries: 7,
            ..ShardReport::default()
        };
        let clean = ShutdownReport {
            shards: vec![shard.clone()],
            clean: true,
            waited: true,
            took_ns: 1_250_000,
            ..ShutdownReport::default()
        };
        assert_eq!(
            clean.to_string(),
            "clean shutdown of 1 shard(s) in 1.2 ms: 7 entries drained"
        );
        let not_clean = ShutdownReport {
            shards: vec![ShardReport {
                unknown_entries: 3,
                leaked_operations: 1,
                ..shard
            }],
            clean: false,
            running: vec![1],
            ..clean.clone()
        };
        assert_eq!(
            not_clean.to_string(),
            "NOT clean shutdown of 2 shard(s) in 1.2 ms: 7 entries drained, 3 entries of unknown \
             outcome, 1 disk operations that did not end, shard 1 still runs"
        );
        let not_waited = ShutdownReport {
            took_ns: 10_000,
            ..ShutdownReport::default()
        };
        assert_eq!(
            not_waited.to_string(),
            "shutdown started in 0.0 ms and not waited for: this thread runs a shard"
        );
    }
}
