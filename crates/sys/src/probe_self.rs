//! The self-test of a ring: opcodes, a NOP, a read, a cancel, a wake of the eventfd, each within a
//! second (runtime 4.1).

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use io_uring::types::Fd;
use io_uring::{IoUring, Probe, opcode};

use crate::poller::Poller;
use crate::syscall::memory_file;

const PAGE: usize = 4096;
const STEP_MAX: Duration = Duration::from_secs(1);

/// Takes the ring through everything a disk will ask of it; the text says what failed.
pub(crate) fn self_test(ring: IoUring) -> Result<(), String> {
    opcodes(&ring)?;
    let mut poller = Poller::new().map_err(|error| format!("no poller: {error}"))?;
    run(ring, &mut poller).map_err(|(step, error)| format!("{step}: {error}"))
}

fn opcodes(ring: &IoUring) -> Result<(), String> {
    let mut probe = Probe::new();
    ring.submitter()
        .register_probe(&mut probe)
        .map_err(|error| format!("opcodes: {error}"))?;
    let needed = [
        ("READ", opcode::Read::CODE),
        ("READV", opcode::Readv::CODE),
        ("WRITE", opcode::Write::CODE),
        ("FSYNC", opcode::Fsync::CODE),
        ("ASYNC_CANCEL", opcode::AsyncCancel::CODE),
        ("NOP", opcode::Nop::CODE),
    ];
    match needed.iter().find(|(_, code)| !probe.is_supported(*code)) {
        Some((name, _)) => Err(format!("opcode {name} is not there")),
        None => Ok(()),
    }
}

fn run(mut ring: IoUring, poller: &mut Poller) -> Result<(), (&'static str, io::Error)> {
    let notifier = poller.notifier();
    ring.submitter()
        .register_eventfd(notifier.raw_fd())
        .map_err(|error| ("eventfd", error))?;
    let nop = opcode::Nop::new().build().user_data(1);
    one(&mut ring, poller, &nop, 0).map_err(|error| ("NOP", error))?;

    let file = memory_file().map_err(|error| ("memory file", error))?;
    file.write_all_at(&[7; PAGE], 0)
        .map_err(|error| ("memory file", error))?;
    // Leaked if the read never ends, as a disk would do it: the kernel may still write there.
    let mut memory = std::mem::ManuallyDrop::new(vec![0_u8; PAGE]);
    let read = opcode::Read::new(Fd(file.as_raw_fd()), memory.as_mut_ptr(), PAGE as u32);
    let read = read.build().user_data(2);
    one(&mut ring, poller, &read, PAGE as i32).map_err(|error| ("read", error))?;
    let memory = std::mem::ManuallyDrop::into_inner(memory);
    if memory.iter().any(|byte| *byte != 7) {
        return Err(("read", io::Error::other("other bytes than were written")));
    }

    cancel(&mut ring, poller).map_err(|error| ("cancel", error))
}

/// A read of a pipe that nobody writes stays until it is cancelled.
fn cancel(ring: &mut IoUring, poller: &mut Poller) -> io::Result<()> {
    let (silent, _writer) = io::pipe()?;
    // Leaked if the cancel fails, as above.
    let mut memory = std::mem::ManuallyDrop::new(vec![0_u8; 8]);
    let read = opcode::Read::new(Fd(silent.as_raw_fd()), memory.as_mut_ptr(), 8);
    push(ring, &read.build().user_data(3))?;
    let cancel = opcode::AsyncCancel::new(3).build().user_data(4);
    push(ring, &cancel)?;
    await_result(ring, poller, 3, -libc::ECANCELED)?;
    drop(std::mem::ManuallyDrop::into_inner(memory));
    Ok(())
}

/// Pushes one entry, submits, and waits for its completion through the eventfd.
fn one(
    ring: &mut IoUring,
    poller: &mut Poller,
    entry: &io_uring::squeue::Entry,
    expected: i32,
) -> io::Result<()> {
    push(ring, entry)?;
    await_result(ring, poller, entry.get_user_data(), expected)
}

fn await_result(
    ring: &mut IoUring,
    poller: &mut Poller,
    wanted: u64,
    expected: i32,
) -> io::Result<()> {
    ring.submit()?;
    let start = Instant::now();
    loop {
        while let Some(done) = ring.completion().next() {
            if done.user_data() == wanted {
                return match done.result() {
                    result if result == expected => Ok(()),
                    result if result < 0 => Err(io::Error::from_raw_os_error(-result)),
                    result => Err(io::Error::other(format!("{result}, not {expected}"))),
                };
            }
        }
        let left = STEP_MAX.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        poller.wait(Some(u64::try_from(left.as_nanos()).unwrap_or(1)))?;
        // Deferred work runs in an enter only.
        ring.submit()?;
    }
}

fn push(ring: &mut IoUring, entry: &io_uring::squeue::Entry) -> io::Result<()> {
    let mut queue = ring.submission();
    // SAFETY: what the entries point to is kept until their completion, or leaked (see `run`).
    unsafe { queue.push(entry) }.map_err(|_| io::Error::other("the submission queue is full"))
}
