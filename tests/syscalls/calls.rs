//! System calls by name.

use std::collections::BTreeMap;
use std::fmt;

use nix::libc;

/// The calls that an engine makes once it runs; any other is shown by its number.
const NAMES: [(i64, &str); 14] = [
    (libc::SYS_read, "read"),
    (libc::SYS_write, "write"),
    (libc::SYS_pread64, "pread64"),
    (libc::SYS_pwrite64, "pwrite64"),
    (libc::SYS_pwritev2, "pwritev2"),
    (libc::SYS_fdatasync, "fdatasync"),
    (libc::SYS_futex, "futex"),
    (libc::SYS_epoll_wait, "epoll_wait"),
    (libc::SYS_timerfd_settime, "timerfd_settime"),
    (libc::SYS_io_uring_enter, "io_uring_enter"),
    (libc::SYS_sched_yield, "sched_yield"),
    (libc::SYS_mmap, "mmap"),
    (libc::SYS_mprotect, "mprotect"),
    (libc::SYS_clock_nanosleep, "clock_nanosleep"),
];

/// How often each system call was made between two marks.
#[derive(Debug, Default)]
pub(crate) struct Calls(BTreeMap<i64, u64>);

impl Calls {
    pub(crate) fn note(&mut self, number: i64) {
        *self.0.entry(number).or_default() += 1;
    }

    pub(crate) fn of(&self, number: i64) -> u64 {
        self.0.get(&number).copied().unwrap_or(0)
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

impl fmt::Display for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} system calls", self.total())?;
        for (number, count) in &self.0 {
            match NAMES.iter().find(|(known, _)| known == number) {
                Some((_, name)) => write!(f, ", {name} {count}")?,
                None => write!(f, ", number {number} {count}")?,
            }
        }
        Ok(())
    }
}
