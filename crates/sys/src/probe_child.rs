//! Trying io_uring out in a child that may be killed for it (runtime 4.2).

use std::io;
use std::mem;

use crate::syscall::{check, retry};

/// What became of the child.
#[derive(Debug)]
pub(crate) enum ChildVerdict {
    /// A ring was made, registered with and entered.
    Works,
    /// One of the three calls answered so.
    Errno(i32),
    /// The filter sent this signal.
    Signal(i32),
    /// The child could not be made or waited for.
    Unknown(io::Error),
}

/// `struct io_uring_params`: 120 bytes, all zeros ask for defaults.
#[repr(C)]
struct Params([u64; 15]);

const REGISTER_PROBE: libc::c_uint = 8;
/// Exit codes below are an errno of io_uring_setup; from here on an errno of the other two.
const LATER_STAGE: i32 = 128;

/// Forks a child that makes raw system calls only, and exits.
///
/// The program may be a service of the user's own: it is not executed again, its SIGCHLD handler
/// is not called (the child ends without a signal), and no handler of `fork` runs.
pub(crate) fn try_in_child() -> ChildVerdict {
    // SAFETY: without flags clone is fork: the child goes on with a copy of everything. It calls
    // only what is safe between fork and exec (`child` below) and never returns.
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if pid == 0 {
        child();
    }
    let Ok(pid @ 1..) = libc::pid_t::try_from(pid) else {
        return ChildVerdict::Unknown(io::Error::last_os_error());
    };
    let mut status = 0;
    let pointer = &raw mut status;
    // A child without an exit signal is a "clone" child: only __WALL finds it.
    // SAFETY: the pointer covers one integer that is ours to write.
    match retry(|| check(unsafe { libc::waitpid(pid, pointer, libc::__WALL) })) {
        Err(error) => ChildVerdict::Unknown(error),
        Ok(_) if libc::WIFSIGNALED(status) => ChildVerdict::Signal(libc::WTERMSIG(status)),
        Ok(_) => match libc::WEXITSTATUS(status) {
            0 => ChildVerdict::Works,
            code => ChildVerdict::Errno(code % LATER_STAGE),
        },
    }
}

/// In the child: no allocation, no lock, no return.
fn child() -> ! {
    // A killed child is expected: no core dump, and no handler of the program for the signal.
    // SAFETY: prctl takes integers here.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    // SAFETY: setting a signal to its default touches no memory of ours.
    unsafe { libc::signal(libc::SIGSYS, libc::SIG_DFL) };
    let code = child_calls();
    // SAFETY: _exit does not return and runs no handlers.
    unsafe { libc::_exit(code) }
}

/// Setup, register and enter: a filter may forbid each alone.
fn child_calls() -> i32 {
    let mut params = Params([0; 15]);
    let pointer = &raw mut params;
    // SAFETY: the pointer covers one params that is ours to write.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, pointer) };
    if fd < 0 {
        return errno().clamp(1, LATER_STAGE - 1);
    }
    // 16 bytes of header and 256 places of 8.
    // SAFETY: an array of integers; all zeros is one.
    let mut probe: [u64; 2 + 256] = unsafe { mem::zeroed() };
    let pointer = probe.as_mut_ptr();
    // SAFETY: the pointer covers a probe with the 256 places announced.
    let code = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            fd,
            REGISTER_PROBE,
            pointer,
            256,
        )
    };
    if code < 0 {
        return LATER_STAGE + errno().clamp(1, LATER_STAGE - 1);
    }
    // SAFETY: nothing to submit, nothing to wait for, no argument.
    let code = unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, 0, 0, 0, 0, 0) };
    if code < 0 {
        LATER_STAGE + errno().clamp(1, LATER_STAGE - 1)
    } else {
        0
    }
}

fn errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
