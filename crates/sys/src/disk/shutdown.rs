//! The end of a disk: nothing the kernel may still write to is freed (runtime 2.10).

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use io_uring::opcode;

use super::{Disk, Driver};
use crate::clock::nanos;
use crate::op::Completion;
use crate::table::OpTable;
use crate::uring::NOBODY;

/// Shutdown waits so long for cancels, and in all (runtime 2.10).
const CANCEL_NS: u64 = 1_000_000_000;
const DROP_GRACE: Duration = Duration::from_secs(5);

/// What a shutdown came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Operations that ended, well or not.
    pub completed: usize,
    /// Operations that did not end in time. Their memory is leaked on purpose: the kernel may
    /// still write to it.
    pub leaked: usize,
}

impl Disk {
    /// Cancels what can be cancelled and waits for the rest, at most `grace` (runtime 2.10). What
    /// ends is given to `done`; operations cancelled end with ECANCELED. What is still in flight
    /// then is leaked, memory and all, and said on standard error.
    pub fn shutdown(&mut self, grace: Duration, mut done: impl FnMut(Completion)) -> Shutdown {
        let start = Instant::now();
        self.port.closing.store(true, Ordering::Relaxed);
        let mut completed = self.reap(usize::MAX, &mut done);
        if self.in_flight() > 0 {
            self.cancel_all(grace);
        }
        while self.in_flight() > 0 {
            completed += self.reap(usize::MAX, &mut done);
            let left = grace.saturating_sub(start.elapsed());
            if self.in_flight() == 0 || left.is_zero() {
                break;
            }
            self.wait(
                left.min(Duration::from_millis(10)),
                &mut done,
                &mut completed,
            );
        }
        let leaked = self.in_flight();
        if leaked > 0 {
            eprintln!(
                "pelton: {leaked} disk operations did not end within {grace:?} of shutdown; \
                 their memory is kept for ever, since the kernel may still write to it"
            );
            std::mem::forget(std::mem::replace(&mut self.table, OpTable::new(0)));
            self.waiting.clear();
        }
        Shutdown { completed, leaked }
    }

    fn cancel_all(&mut self, grace: Duration) {
        let slots = self.table.all_in_flight();
        let Driver::Uring(uring) = &mut self.driver else {
            return;
        };
        let timeout_ns = nanos(grace).min(CANCEL_NS);
        if uring.cancel_all(timeout_ns) {
            return;
        }
        for user_data in slots {
            let entry = opcode::AsyncCancel::new(user_data)
                .build()
                .user_data(NOBODY);
            // SAFETY: a cancel points to no memory.
            if !unsafe { uring.push(&entry) } {
                break;
            }
        }
    }

    /// Waits a little for one more completion of either kind.
    fn wait(&mut self, time: Duration, done: &mut impl FnMut(Completion), completed: &mut usize) {
        match &mut self.driver {
            Driver::Uring(uring) if self.table.in_flight() > self.table.tasks() => {
                uring.wait_ns(nanos(time));
            }
            _ => {
                if let Ok(raw) = self.results.recv_timeout(time) {
                    *completed += self.take_in(raw, done);
                }
            }
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.shutdown(DROP_GRACE, drop);
    }
}
