//! What ends a shard's sleep: one eventfd, written by everybody, read by nobody.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::syscall::check;

/// The waking end of a [`Poller`](crate::Poller): any thread may hold one.
///
/// The same eventfd is registered with the shard's io_uring and written by the I/O pool, so the
/// loop is the same with and without io_uring. It is never read: each write is a new edge, and a
/// read would be one more system call per wake (runtime 1.8).
#[derive(Clone, Debug)]
pub struct Notifier(Arc<OwnedFd>);

impl Notifier {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: eventfd takes two integers and touches no memory of ours.
        let fd = check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Ends the sleep of the poller this belongs to, or keeps its next one from beginning.
    pub fn wake(&self) {
        let one = 1_u64;
        loop {
            // SAFETY: the descriptor is open as long as `self`; the pointer covers 8 bytes.
            let written = unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), 8) };
            if written == 8 {
                return;
            }
            match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINTR) => {}
                // EAGAIN: the count is at its end (2^64 wakes); the descriptor is readable, but a
                // write gives no edge any more. Not reachable in the life of a machine.
                other => panic!("a shard's eventfd refused a wake: errno {other:?}"),
            }
        }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
