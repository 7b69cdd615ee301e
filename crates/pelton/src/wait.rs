//! How a blocking call waits: it spins briefly, then parks the thread until a waker wakes it.
//!
//! Everything that can be waited for is an *attempt* that takes a plain [`Waker`], so the blocking
//! and the async form of a call are the same code. A thread has one waker for life: waiting
//! allocates nothing. A thread that runs a shard (it drives the engine, or is inside a handler) must
//! not wait for that shard, so [`may_block`] is asked first.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::port::{nanos, on_shard_thread};
use crate::{Clock, Idle};

/// What is spun by default before parking, in nanoseconds: about what a wake-up costs.
const SPIN_NS_DEFAULT: u64 = 20_000;

/// Looks between two reads of the clock while spinning.
const SPINS_PER_CLOCK_READ: u32 = 32;

/// After so many waits in a row that spun in vain, spinning is skipped for a while.
const MISSES_MAX: u32 = 8;

/// So many waits park at once after [`MISSES_MAX`].
const SKIPPED_WAITS: u32 = 64;

/// Waits on behalf of one handle, and remembers whether spinning has been worth it lately.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    idle: Idle,
    misses: u32,
    skip: u32,
}

impl Waiter {
    pub(crate) fn new(idle: Idle) -> Waiter {
        Waiter {
            idle,
            misses: 0,
            skip: 0,
        }
    }

    pub(crate) fn idle(&self) -> Idle {
        self.idle
    }

    /// Repeats `attempt` until it gives something, or the time is over. `attempt(None)` only looks;
    /// `attempt(Some(waker))` leaves the waker where the other side finds it, then looks again.
    pub(crate) fn wait<T>(
        &mut self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(Option<&Waker>) -> Option<T>,
    ) -> Option<T> {
        if let Some(value) = attempt(None) {
            return Some(value);
        }
        // For time-outs only, so it need not be the engine's; a handle of its own costs nothing.
        let clock = Clock::new();
        let deadline_ns = timeout.map(|timeout| clock.now_ns().saturating_add(nanos(timeout)));
        if let Some(value) = self.spin(&clock, deadline_ns, &mut attempt) {
            return Some(value);
        }
        let waker = this_thread();
        loop {
            waker.parker.notified.store(false, Ordering::Release);
            if let Some(value) = attempt(Some(&waker.waker)) {
                return Some(value);
            }
            while !waker.parker.notified.load(Ordering::Acquire) {
                match deadline_ns {
                    None => std::thread::park(),
                    Some(deadline_ns) => {
                        let left_ns = deadline_ns.saturating_sub(clock.now_ns());
                        if left_ns == 0 {
                            return attempt(None);
                        }
                        std::thread::park_timeout(Duration::from_nanos(left_ns));
                    }
                }
            }
        }
    }

    fn spin<T>(
        &mut self,
        clock: &Clock,
        deadline_ns: Option<u64>,
        attempt: &mut impl FnMut(Option<&Waker>) -> Option<T>,
    ) -> Option<T> {
        let ceiling_ns = match self.idle {
            Idle::Park => return None,
            Idle::Adaptive { .. } if self.skip > 0 => {
                self.skip -= 1;
                return None;
            }
            Idle::Adaptive { ceiling_ns } => ceiling_ns,
            Idle::Busy => u64::MAX,
        };
        let end_ns = clock.now_ns().saturating_add(ceiling_ns);
        let end_ns = deadline_ns.map_or(end_ns, |deadline_ns| end_ns.min(deadline_ns));
        loop {
            for _ in 0..SPINS_PER_CLOCK_READ {
                if let Some(value) = attempt(None) {
                    self.misses = 0;
                    return Some(value);
                }
                std::hint::spin_loop();
            }
            if clock.now_ns() >= end_ns {
                break;
            }
        }
        self.misses += 1;
        if self.misses >= MISSES_MAX {
            (self.misses, self.skip) = (0, SKIPPED_WAITS);
        }
        None
    }
}

/// What handles do by default while they wait, given the number of shards that also need a CPU.
pub(crate) fn default_waiting(shards: usize) -> Idle {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cpus > shards {
        Idle::Adaptive {
            ceiling_ns: SPIN_NS_DEFAULT,
        }
    } else {
        Idle::Park
    }
}

/// The waker of one thread, and the flag it raises.
#[derive(Clone)]
struct ThreadWaker {
    parker: Arc<Parker>,
    waker: Waker,
}

struct Parker {
    thread: Thread,
    /// Parking alone is not enough: others may unpark this thread for reasons of their own.
    notified: AtomicBool,
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.notified.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl ThreadWaker {
    fn new() -> ThreadWaker {
        let parker = Arc::new(Parker {
            thread: std::thread::current(),
            notified: AtomicBool::new(false),
        });
        ThreadWaker {
            waker: Waker::from(Arc::clone(&parker)),
            parker,
        }
    }
}

thread_local! {
    static WAKER: ThreadWaker = ThreadWaker::new();
    /// Engines whose driver lives on this thread.
    static DRIVES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn this_thread() -> ThreadWaker {
    // While the thread ends its slot may be gone; then one is made for the occasion.
    WAKER
        .try_with(Clone::clone)
        .unwrap_or_else(|_| ThreadWaker::new())
}

/// False if waiting for this engine on this thread could wait for itself.
pub(crate) fn may_block(engine_id: u64) -> bool {
    !on_shard_thread()
        && !DRIVES
            .try_with(|ids| ids.borrow().contains(&engine_id))
            .unwrap_or(false)
}

/// Notes that this thread drives the engine. The driver cannot leave its thread.
pub(crate) fn drives(engine_id: u64) {
    DRIVES.with_borrow_mut(|ids| ids.push(engine_id));
}

/// Takes back [`drives`].
pub(crate) fn drives_no_more(engine_id: u64) {
    // The thread-local may be gone already if the driver is dropped by a thread that ends.
    let _ = DRIVES.try_with(|ids| ids.borrow_mut().retain(|id| *id != engine_id));
}
