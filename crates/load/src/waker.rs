//! One thread that waits for many consumers at once: a waker that unparks it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

/// The waker of the thread that made it.
#[derive(Debug)]
pub(crate) struct ThreadWaker {
    shared: Arc<Shared>,
    waker: Waker,
}

#[derive(Debug)]
struct Shared {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl ThreadWaker {
    /// For the calling thread.
    pub(crate) fn new() -> ThreadWaker {
        let shared = Arc::new(Shared {
            thread: thread::current(),
            woken: AtomicBool::new(false),
        });
        ThreadWaker {
            waker: Waker::from(Arc::clone(&shared)),
            shared,
        }
    }

    /// To be left with whoever may wake. Wake-ups before this call are forgotten: look once more
    /// after leaving it, then [`ThreadWaker::park`].
    pub(crate) fn arm(&self) -> &Waker {
        self.shared.woken.store(false, Ordering::Release);
        &self.waker
    }

    /// Sleeps until woken, at most for `ns`; may return early.
    pub(crate) fn park(&self, ns: u64) {
        if !self.shared.woken.load(Ordering::Acquire) {
            thread::park_timeout(Duration::from_nanos(ns));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_between_arming_and_parking_is_not_lost() {
        let waker = ThreadWaker::new();
        let armed = waker.arm().clone();
        armed.wake_by_ref();
        // An hour, if it were lost.
        waker.park(3_600_000_000_000);
        thread::scope(|scope| {
            let armed = waker.arm().clone();
            scope.spawn(move || armed.wake());
            while !waker.shared.woken.load(Ordering::Acquire) {
                waker.park(3_600_000_000_000);
            }
        });
    }
}
