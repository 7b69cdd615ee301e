//! Orderly stop: nothing new is taken, what was taken is made durable, everybody is told.
//!
//! ```text
//! asked --> draining: publishes that are in the rings now are taken, later ones are refused
//!       --> closing:  the core commits everything and marks it; its receipts go out
//!       --> stopped:  the rest is refused, the disk is shut down, handles are closed
//! ```
//! The end of the drain is a count taken when it starts, not an empty ring: a producer in a loop
//! cannot keep it going. A deadline or an abort goes to the last step at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use pelton_broker::{Effect, Now};

use crate::reached;
use crate::turn::Shard;

/// How long the disk is waited for at the end, however the deadline stands (`spec/runtime.md` 2.10).
const DISK_GRACE: Duration = Duration::from_secs(1);

/// What the stop of one shard came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardReport {
    /// Index of the shard.
    pub shard: u32,
    /// Everything that was taken is as durable as it was promised, and marked so on disk.
    pub clean: bool,
    /// Entries taken from rings after the stop was asked for.
    pub drained_entries: u64,
    /// Entries refused: they were queued and are not stored.
    pub refused_entries: u64,
    /// Entries taken whose outcome was still unknown at the end: they may or may not be stored.
    pub unknown_entries: u64,
    /// Control requests given back without an answer.
    pub returned_control: u64,
    /// Acks and nacks given back: their entries are delivered again after a reopen.
    pub returned_data: u64,
    /// Disk operations that did not end; their memory is kept for ever.
    pub leaked_operations: usize,
    /// From the request to the end, in nanoseconds.
    pub took_ns: u64,
}

/// Where a stop is asked for: any thread, even if the control lane is full.
#[derive(Debug)]
pub(crate) struct StopFlag {
    /// `u64::MAX` until asked.
    deadline_ns: AtomicU64,
    abort: AtomicBool,
}

impl Default for StopFlag {
    fn default() -> StopFlag {
        StopFlag {
            deadline_ns: AtomicU64::new(u64::MAX),
            abort: AtomicBool::new(false),
        }
    }
}

impl StopFlag {
    /// A later request makes the deadline earlier, never later.
    pub(crate) fn ask(&self, deadline_ns: u64, abort: bool) {
        if abort {
            self.abort.store(true, Ordering::Release);
        }
        self.deadline_ns
            .fetch_min(deadline_ns.min(u64::MAX - 1), Ordering::AcqRel);
    }

    fn asked(&self) -> Option<(u64, bool)> {
        let deadline_ns = self.deadline_ns.load(Ordering::Acquire);
        (deadline_ns != u64::MAX).then(|| (deadline_ns, self.abort.load(Ordering::Acquire)))
    }

    /// Whether it says something that `stop` has not heard yet.
    pub(crate) fn is_news(&self, stop: Option<&Stop>) -> bool {
        self.asked() != stop.map(|stop| (stop.deadline_ns, stop.abort))
    }
}

/// A stop that is going on.
#[derive(Debug)]
pub(crate) struct Stop {
    deadline_ns: u64,
    abort: bool,
    started_ns: u64,
    phase: Phase,
    /// The phase changed in this turn: the next one needs no event.
    moved: bool,
    entries_before: u64,
    clean: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Draining,
    Closing,
    Stopped,
}

impl Stop {
    pub(crate) fn deadline_ns(&self) -> u64 {
        self.deadline_ns
    }

    /// Whether the next step needs no event; the last one is the caller's.
    pub(crate) fn wants_turn(&self) -> bool {
        self.phase != Phase::Closing || self.moved
    }
}

impl Shard {
    /// Whether the last step is due: [`Shard::finish`].
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop
            .as_ref()
            .is_some_and(|stop| stop.phase == Phase::Stopped)
    }

    /// One step of a stop, at the end of each turn.
    pub(crate) fn step_stop(&mut self, now: Now) {
        if let Some((deadline_ns, abort)) = self.shared.stop.asked() {
            match &mut self.stop {
                Some(stop) => (stop.deadline_ns, stop.abort) = (deadline_ns, abort),
                None => self.start_stop(deadline_ns, abort, now),
            }
        }
        let Some(stop) = &mut self.stop else { return };
        stop.moved = false;
        if stop.abort {
            stop.phase = Phase::Stopped;
        } else if stop.phase == Phase::Draining && self.inbox.producers.drained() {
            (stop.phase, stop.moved) = (Phase::Closing, true);
            self.broker.close();
            // What the close asks of the disk is carried out by the next turn.
        } else if stop.phase == Phase::Closing && self.broker.quiet() && !self.broker.has_work() {
            (stop.phase, stop.clean) = (Phase::Stopped, !self.broker.is_poisoned());
        }
        if stop.phase != Phase::Stopped && now.mono_ns >= stop.deadline_ns {
            stop.phase = Phase::Stopped;
        }
    }

    fn start_stop(&mut self, deadline_ns: u64, abort: bool, now: Now) {
        self.inbox.stop(abort);
        self.stop = Some(Stop {
            deadline_ns,
            abort,
            started_ns: now.mono_ns,
            phase: Phase::Draining,
            moved: true,
            entries_before: self.entries_taken,
            clean: false,
        });
    }

    /// The last step: refuses what is left and lets go of the disk. Handles learn that the shard is
    /// closed when it is dropped.
    pub(crate) fn finish(&mut self) -> ShardReport {
        let now = Now {
            mono_ns: self.clock.now_ns(),
            wall_ms: 0,
        };
        let drained_entries = match &self.stop {
            Some(stop) => self.entries_taken - stop.entries_before,
            None => 0,
        };
        let (returned_control, returned_data) = self.inbox.close();
        let refused_entries = self.inbox.producers.refuse_rest(&mut self.outbox);
        self.outbox.flush(&mut self.watch.metrics.counters);
        let shutdown = self
            .disk
            .shutdown(DISK_GRACE, now.mono_ns, &mut self.watch.metrics);
        // A sync that ended just now still makes receipts true; nothing else is carried out.
        while let Some(answer) = self.disk.next_done() {
            self.on_answer(answer, now);
        }
        while let Some(effect) = self.broker.poll_effect() {
            if let Effect::Receipts(receipts) = effect {
                self.give_receipts(receipts);
            }
        }
        let stop = self.stop.as_ref();
        let clean = stop.is_some_and(|stop| stop.clean) && shutdown.leaked == 0;
        if clean && let Some(kv) = self.disk.kv() {
            // If it fails, the one of the last open stays, which is true as well.
            let _ = reached::store(kv, self.shared.index, self.broker.log().synced_sequence());
        }
        ShardReport {
            shard: self.shared.index,
            clean,
            drained_entries,
            refused_entries,
            unknown_entries: self.inbox.producers.owed(),
            returned_control,
            returned_data,
            leaked_operations: shutdown.leaked,
            took_ns: stop.map_or(0, |stop| {
                self.clock.now_ns().saturating_sub(stop.started_ns)
            }),
        }
    }
}
