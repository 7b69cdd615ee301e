//! The mode in which the caller turns the loop.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::port::ShardHandle;
use crate::{ShardReport, Work, wait};

/// How long a dropped [`Driver`] takes at most to stop its shard in an orderly way.
const DROP_DEADLINE: Duration = Duration::from_secs(5);

/// Turns the one shard of an engine from [`crate::Builder::open_driven`], on the thread that opened it; it
/// cannot be sent to another one.
///
/// Handles work as ever, on any thread. On this one, blocking calls would wait for themselves: they
/// give `WouldBlock`, and the `begin` forms, receipts and receives go to [`Driver::run_until`].
/// Dropped, it stops the shard in an orderly way, for at most 5 s.
pub struct Driver {
    inner: pelton_shard::Driver,
    bell: Arc<Bell>,
    engine_id: u64,
}

impl Driver {
    /// On the thread that will drive it.
    pub(crate) fn new(inner: pelton_shard::Driver, handle: ShardHandle, engine_id: u64) -> Driver {
        wait::drives(engine_id);
        let bell = Arc::new(Bell {
            rung: AtomicBool::new(false),
            handle,
        });
        Driver {
            inner,
            bell,
            engine_id,
        }
    }

    /// One turn: takes what is there, 64 items at most, and never sleeps. [`Work::items`] is 0 and
    /// [`Work::more`] false once there is nothing left to do before [`Work::next_deadline_ns`].
    pub fn run_once(&mut self) -> Work {
        self.inner.run_once()
    }

    /// Takes turns, and sleeps in between, until the future gives its value: a [`crate::Pending`], a
    /// [`crate::Receipt`], a [`crate::Recv`], or any other.
    pub fn run_until<F: Future>(&mut self, future: F) -> F::Output {
        /// A wake-up from another thread that comes between the look at the bell and the sleep rings
        /// a doorbell that nobody has announced; then this ends the sleep.
        const LOOK_AGAIN: Duration = Duration::from_millis(5);
        let mut future = pin!(future);
        let waker = Waker::from(Arc::clone(&self.bell));
        loop {
            self.bell.rung.store(false, Ordering::Release);
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return value;
            }
            loop {
                let work = self.run_once();
                if self.bell.rung.load(Ordering::Acquire) {
                    break;
                }
                if self.inner.is_done() {
                    // Only other threads can wake the future now.
                    std::thread::park_timeout(LOOK_AGAIN);
                } else if work.items == 0 && !work.more {
                    self.inner.park(LOOK_AGAIN);
                }
            }
        }
    }

    /// Sleeps until there is something to do, for at most `at_most`: for loops of the caller's own
    /// around [`Driver::run_once`].
    pub fn park(&mut self, at_most: Duration) {
        self.inner.park(at_most);
    }

    /// Stops the shard and drives it to its end, for at most `wait` and up to 1 s for the disk. `None`
    /// if the shard ended without a report.
    pub fn shutdown(&mut self, wait: Duration) -> Option<ShardReport> {
        self.inner.shutdown(wait)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // While the thread unwinds, turning user code (handlers) again is no help.
        if !std::thread::panicking() {
            self.shutdown(DROP_DEADLINE);
        }
        wait::drives_no_more(self.engine_id);
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("done", &self.inner.is_done())
            .finish_non_exhaustive()
    }
}

/// The waker of futures that a driver drives.
struct Bell {
    rung: AtomicBool,
    handle: ShardHandle,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.handle.wake();
    }
}
