//! The caller-driven mode: a shard without a thread of its own.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crossbeam_channel::Sender;
use pelton_sys::nanos;

use crate::plan::Resources;
use crate::port::ON_SHARD_THREAD;
use crate::spawn::end_shard;
use crate::stop::ShardReport;
use crate::turn::{Shard, Work};

/// Owns the one shard of a driven engine. It cannot leave its thread: the kernel ties a ring to the
/// thread that made it.
///
/// Nothing happens between calls: requests are answered, entries stored and handed over in
/// [`Driver::run_once`]. Dropped, it stops the shard as an abort does.
///
/// ```compile_fail,E0277
/// fn can_move_to_another_thread<T: Send>() {}
/// can_move_to_another_thread::<pelton_shard::Driver>();
/// ```
pub struct Driver {
    shard: Option<Shard>,
    resources: Option<Arc<Resources>>,
    report: Arc<OnceLock<ShardReport>>,
    ended: Option<Sender<Infallible>>,
}

impl Driver {
    pub(crate) fn new(
        shard: Shard,
        resources: Arc<Resources>,
        report: Arc<OnceLock<ShardReport>>,
        ended: Sender<Infallible>,
    ) -> Driver {
        Driver {
            shard: Some(shard),
            resources: Some(resources),
            report,
            ended: Some(ended),
        }
    }

    /// One turn: never sleeps, takes at most 64 items of the lanes. Call it until its
    /// [`Work::items`] is 0 and [`Work::more`] false; then wait as you like ([`Driver::park`] is one
    /// way) until something was pushed or the deadline it names. After a shutdown it does nothing.
    pub fn run_once(&mut self) -> Work {
        let Some(shard) = &mut self.shard else {
            return Work::default();
        };
        let before = ON_SHARD_THREAD.replace(true);
        let work = shard.turn();
        ON_SHARD_THREAD.set(before);
        if shard.is_stopped() {
            self.end();
        }
        work
    }

    /// Sleeps until there is something to do, for at most `at_most`.
    pub fn park(&mut self, at_most: Duration) {
        let Some(shard) = &mut self.shard else { return };
        shard.park(shard.next_deadline(), Some(nanos(at_most)));
    }

    /// Whether the shard has stopped.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.shard.is_none()
    }

    /// What the stop came to, once [`Driver::is_done`].
    #[must_use]
    pub fn report(&self) -> Option<&ShardReport> {
        self.report.get()
    }

    /// Stops the shard and drives it to its end, for at most `wait` (and up to 1 s for the disk).
    pub fn shutdown(&mut self, wait: Duration) -> Option<ShardReport> {
        if let Some(shard) = &self.shard {
            let deadline_ns = shard.clock.now_ns().saturating_add(nanos(wait));
            shard.shared.stop(deadline_ns, false);
        }
        while !self.is_done() {
            let work = self.run_once();
            if work.items == 0 && !work.more {
                self.park(wait);
            }
        }
        self.report.get().cloned()
    }

    fn end(&mut self) {
        if let Some(shard) = self.shard.take() {
            end_shard(shard, &self.report);
        }
        self.resources = None;
        self.ended = None;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver")
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}
