//! Counts the system calls of a child by ptrace, which needs no privilege for one's own children.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace::{self, Options};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::calls::Calls;

/// Set to the name of its test in the child's environment.
const CHILD: &str = "PELTON_SYSCALLS_CHILD";

/// Starts or ends what is counted: a system call that nothing else here makes.
pub(crate) fn mark() {
    let _ = std::os::unix::process::parent_id();
}

/// In the child: does `work` once it is traced, and gives nothing. In the parent: the calls between
/// each pair of marks, or nothing and a line that says why they cannot be counted.
pub(crate) fn traced(test: &str, work: impl FnOnce()) -> Option<Vec<Calls>> {
    if std::env::var(CHILD).is_ok_and(|child| child == test) {
        let read = std::io::stdin().read_exact(&mut [0]);
        read.expect("the parent says when");
        work();
        return None;
    }
    match count(test) {
        Ok(rounds) => Some(rounds),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

#[expect(
    clippy::zombie_processes,
    reason = "its tracer waits for it, in follow()"
)]
fn count(test: &str) -> Result<Vec<Calls>, String> {
    let mut child = Command::new(std::env::current_exe().expect("a test binary"))
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the child starts");
    if let Err(error) = seize(&child) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("this process may not trace its child: {error}"));
    }
    let stdin = child.stdin.as_mut().expect("piped");
    stdin.write_all(&[0]).expect("the child reads");
    Ok(follow(pid(child.id())))
}

fn pid(id: u32) -> Pid {
    Pid::from_raw(id.try_into().expect("a process number"))
}

/// Takes every thread of the child; those it makes later are taken by the kernel.
fn seize(child: &Child) -> Result<(), Errno> {
    let options =
        Options::PTRACE_O_TRACESYSGOOD | Options::PTRACE_O_TRACECLONE | Options::PTRACE_O_EXITKILL;
    let mut taken = BTreeSet::new();
    loop {
        let threads = std::fs::read_dir(format!("/proc/{}/task", child.id()));
        let threads = threads.expect("the child waits for its start");
        let names = threads.map(|thread| thread.expect("a thread").file_name());
        let ids = names.map(|name| name.to_str().and_then(|name| name.parse().ok()));
        let new: Vec<u32> = ids.flatten().filter(|id| !taken.contains(id)).collect();
        if new.is_empty() {
            return Ok(());
        }
        for id in new {
            match ptrace::seize(pid(id), options) {
                Ok(()) => ptrace::interrupt(pid(id))?,
                // A child of a thread taken just now: the kernel was faster.
                Err(Errno::EPERM) if !taken.is_empty() => {}
                Err(error) => return Err(error),
            }
            taken.insert(id);
        }
    }
}

/// Until the child's end.
fn follow(child: Pid) -> Vec<Calls> {
    let mut rounds: Vec<Calls> = Vec::new();
    let mut counting = false;
    loop {
        // Not the children of other tests, which other threads wait for.
        let any = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let (thread, signal) = match waitpid(None, Some(any)).expect("there is a child") {
            WaitStatus::PtraceSyscall(thread) => {
                match entered(thread) {
                    Some(libc::SYS_getppid) if counting => counting = false,
                    Some(libc::SYS_getppid) => {
                        counting = true;
                        rounds.push(Calls::default());
                    }
                    Some(number) if counting => {
                        rounds.last_mut().expect("a round").note(number);
                    }
                    _ => {}
                }
                (thread, None)
            }
            WaitStatus::PtraceEvent(thread, ..) => (thread, None),
            WaitStatus::Stopped(thread, signal) => (thread, Some(signal)),
            WaitStatus::Exited(thread, code) if thread == child => {
                assert_eq!(code, 0, "the child failed: its output is above");
                return rounds;
            }
            WaitStatus::Signaled(thread, signal, _) if thread == child => {
                panic!("the child was killed by {signal}");
            }
            _ => continue,
        };
        match ptrace::syscall(thread, signal) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => panic!("thread {thread} cannot go on: {error}"),
        }
    }
}

/// The number of the system call that the thread has stopped in front of; nothing if it stopped
/// behind one. The kernel sets the result to ENOSYS before a call, and no call here gives that.
fn entered(thread: Pid) -> Option<i64> {
    let registers = ptrace::getregs(thread).ok()?;
    let before = registers.rax.cast_signed() == -i64::from(libc::ENOSYS);
    before.then(|| registers.orig_rax.cast_signed())
}
