//! One io_uring, made and used by one thread (runtime 1.2 to 1.13).

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::mem;
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use io_uring::types::{CancelBuilder, Fd, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};

use crate::affinity::CpuSet;
use crate::ladder::{Step, build_patiently, ladder};
use crate::notify::Notifier;
use crate::syscall::memory_file;

/// Submission queue entries; with the completion queue 36 KiB of locked memory (runtime 1.3).
pub(crate) const SQ_ENTRIES: u32 = 256;
/// Completion queue entries, and with that the most operations in flight.
pub(crate) const CQ_ENTRIES: u32 = 1024;
/// Worker threads, bounded and unbounded: 8 and 96,365 by default (runtime 3.8 allows 2 and 2).
/// One is all that one sync in flight needs, and a second one would be made later, by the pinned
/// thread, with its one CPU (see [`Uring::make_worker`]).
const WORKERS_MAX: [u32; 2] = [1, 1];
/// What the operation that makes the worker waits for its end, in nanoseconds.
const WORKER_WAIT_NS: u64 = 1_000_000_000;
/// User data of operations that nobody waits for.
pub(crate) const NOBODY: u64 = u64::MAX;
/// `IORING_REGISTER_RING_FDS` and its opposite; the crate keeps its own index in a borrow.
const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;

/// The ring and what its thread needs to use it.
///
/// `!Send` and `!Sync`: a SINGLE_ISSUER ring answers EEXIST to any other thread, and the
/// library's type would let it move.
pub(crate) struct Uring {
    ring: IoUring,
    /// The registered index, or the descriptor itself.
    enter_fd: i32,
    registered: bool,
    step: Step,
    restricted: bool,
    no_iowait: bool,
    pub(crate) enters: u64,
    pub(crate) short_submits: u64,
    _thread: PhantomData<*mut ()>,
}

/// How the ring is made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UringOptions {
    /// Where the ladder begins; 1 unless a test or an earlier ring says more.
    pub(crate) first_step: Step,
    /// CPUs of the ring's workers.
    pub(crate) worker_cpus: CpuSet,
    /// Places of the submission and of the completion queue.
    pub(crate) entries: (u32, u32),
}

impl UringOptions {
    pub(crate) fn new(first_step: Step, worker_cpus: CpuSet) -> Self {
        Self {
            first_step,
            worker_cpus,
            entries: (SQ_ENTRIES, CQ_ENTRIES),
        }
    }
}

#[repr(C)]
struct RingFdUpdate {
    offset: u32,
    reserved: u32,
    data: u64,
}

/// Registered rings and enters with a wait use this (struct io_uring_getevents_arg).
#[repr(C)]
struct WaitArgument {
    sigmask: u64,
    sigmask_size: u32,
    min_wait_us: u32,
    timeout: u64,
}

impl Uring {
    /// Makes the ring of the calling thread, with its eventfd registered and switched off.
    ///
    /// # Errors
    /// The kernel's: EINVAL below step 5, EPERM and ENOSYS where it is forbidden, ENOMEM for
    /// locked memory.
    pub(crate) fn new(options: &UringOptions, notifier: &Notifier) -> io::Result<Self> {
        // The step that held once holds for the process; the next ring does not try the others.
        static HELD: AtomicU8 = AtomicU8::new(1);
        let first = options.first_step.max(Step(HELD.load(Ordering::Relaxed)));
        let ((ring, restricted), step) =
            ladder(first, |step| build_patiently(step, options.entries))?;
        if options.first_step.0 <= 1 {
            HELD.store(step.0, Ordering::Relaxed);
        }
        let submitter = ring.submitter();
        submitter.register_eventfd(notifier.raw_fd())?;
        // Before the first operation: later calls leave existing workers where they are. Without
        // them (before 5.15) the workers inherit the shard's CPU: slower, not wrong.
        let _ = submitter.register_iowq_max_workers(&mut { WORKERS_MAX });
        if !options.worker_cpus.is_empty() {
            let _ = submitter.register_iowq_aff(options.worker_cpus.raw());
        }
        let enter_fd = ring.as_raw_fd();
        let no_iowait = ring.params().is_feature_no_iowait();
        let mut uring = Self {
            ring,
            enter_fd,
            registered: false,
            step,
            restricted,
            no_iowait,
            enters: 0,
            short_submits: 0,
            _thread: PhantomData,
        };
        uring.disarm();
        uring.register_ring_fd();
        // Best effort: without it syncs run on the shard's CPU, slower and not wrong.
        let _ = uring.make_worker(&options.worker_cpus);
        Ok(uring)
    }

    /// Makes the worker now, under the mask it is to have.
    ///
    /// A worker is a copy of the thread whose ring it serves, and since 6.2 a mask that a program
    /// set limits what the kernel sets later: registering the affinity alone leaves the workers of
    /// a pinned thread on its one CPU. So the thread takes the mask, has a sync done, which always
    /// goes to a worker, and takes its own mask back. The last idle worker stays for ever.
    fn make_worker(&mut self, cpus: &CpuSet) -> io::Result<()> {
        let own = CpuSet::of_this_thread()?;
        if cpus.is_empty() {
            return Ok(());
        }
        let file = memory_file()?;
        let sync = opcode::Fsync::new(Fd(file.as_raw_fd())).build();
        cpus.apply()?;
        // SAFETY: a sync points to no memory.
        if unsafe { self.push(&sync.user_data(NOBODY)) } {
            self.wait_ns(WORKER_WAIT_NS);
            self.take(&mut [(0, 0)]);
        }
        own.apply()
    }

    pub(crate) fn step(&self) -> Step {
        self.step
    }

    pub(crate) fn restricted(&self) -> bool {
        self.restricted
    }

    /// Queues an entry; false if the submission queue is full.
    ///
    /// # Safety
    /// Everything the entry points to stays valid and untouched until its completion was taken.
    pub(crate) unsafe fn push(&mut self, entry: &squeue::Entry) -> bool {
        let mut queue = self.ring.submission();
        // SAFETY: the caller keeps what the entry points to valid until its completion.
        unsafe { queue.push(entry) }.is_ok()
    }

    /// Submits what is queued and lets the kernel post what is done: one enter, and only if there
    /// is a reason. True if it made progress, false if there was nothing or the kernel asks to
    /// reap first (EAGAIN, ENOMEM, EBUSY).
    pub(crate) fn flush(&mut self, in_flight: usize) -> bool {
        let queue = self.ring.submission();
        let queued = queue.len();
        let flagged = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        // Step 5 has no syscall-free word of pending work (runtime 1.2).
        if queued == 0 && !flagged && (self.step.0 < 5 || in_flight == 0) {
            return false;
        }
        match self.enter(u32::try_from(queued).unwrap_or(u32::MAX), 0, None) {
            Ok(taken) => {
                self.short_submits += u64::from(taken < queued);
                taken > 0 || flagged
            }
            Err(_) => false,
        }
    }

    /// Waits in the ring for one completion, at most so long; for shutdown only (runtime 1.13).
    pub(crate) fn wait_ns(&mut self, timeout_ns: u64) {
        let queued = self.ring.submission().len();
        let timeout = timespec(timeout_ns);
        let _ = self.enter(u32::try_from(queued).unwrap_or(u32::MAX), 1, Some(&timeout));
    }

    /// One enter with GETEVENTS, repeated after a signal. An error left over is one that a reap
    /// or a timeout cures.
    fn enter(
        &mut self,
        to_submit: u32,
        wait_for: u32,
        timeout: Option<&Timespec>,
    ) -> io::Result<usize> {
        let mut flags = EnterFlags::GETEVENTS;
        flags.set(EnterFlags::REGISTERED_RING, self.registered);
        let mut argument = WaitArgument {
            sigmask: 0,
            sigmask_size: 0,
            min_wait_us: 0,
            timeout: 0,
        };
        let (pointer, size) = match timeout {
            None => (ptr::null(), 0),
            Some(timespec) => {
                flags |= EnterFlags::EXT_ARG;
                flags.set(EnterFlags::NO_IOWAIT, self.no_iowait);
                argument.timeout = ptr::from_ref(timespec) as u64;
                (&raw const argument, mem::size_of::<WaitArgument>())
            }
        };
        loop {
            self.enters += 1;
            let error = match self.enter_once(to_submit, wait_for, flags, (pointer, size)) {
                Ok(taken) => return Ok(taken),
                Err(error) => error,
            };
            match error.raw_os_error() {
                Some(libc::EINTR) if timeout.is_none() => {}
                // A completion was lost, or another thread uses the ring, or it is closed: what
                // the kernel does to our memory is not known any more.
                Some(errno @ (libc::EBADR | libc::EEXIST | libc::EBADF)) => {
                    eprintln!(
                        "pelton: io_uring enter failed with errno {errno}, which must not be"
                    );
                    std::process::abort();
                }
                _ => return Err(error),
            }
        }
    }

    fn enter_once(
        &mut self,
        to_submit: u32,
        wait_for: u32,
        flags: EnterFlags,
        (argument, size): (*const WaitArgument, usize),
    ) -> io::Result<usize> {
        #[cfg(test)]
        if let Some(errno) = crate::fault::next_enter() {
            return Err(io::Error::from_raw_os_error(errno));
        }
        let (call, fd, bits) = (libc::SYS_io_uring_enter, self.enter_fd, flags.bits());
        // SAFETY: the ring is ours and open; the argument is null or outlives the call; the
        // entries queued were vouched for when they were pushed.
        let taken = unsafe { libc::syscall(call, fd, to_submit, wait_for, bits, argument, size) };
        usize::try_from(taken).map_err(|_| io::Error::last_os_error())
    }

    /// Takes completions, user data and result, as many as fit; the count.
    pub(crate) fn take(&mut self, into: &mut [(u64, i32)]) -> usize {
        let mut taken = 0;
        let mut queue = self.ring.completion();
        while taken < into.len() {
            let Some(entry) = queue.next() else { break };
            // None of our operations answers twice; what says it will is not over.
            if !cqueue::more(entry.flags()) {
                into[taken] = (entry.user_data(), entry.result());
                taken += 1;
            }
        }
        taken
    }

    /// Whether there is something to submit, to reap or to let the kernel post (runtime 1.10).
    pub(crate) fn work_pending(&mut self) -> bool {
        let queue = self.ring.submission();
        let queued = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
        drop(queue);
        queued || !self.ring.completion().is_empty()
    }

    /// Completions that found no room in the queue; above 0 is a bug (runtime 1.3).
    pub(crate) fn overflow(&mut self) -> u32 {
        self.ring.completion().overflow()
    }

    /// From now on completions write the eventfd.
    pub(crate) fn arm(&mut self) {
        self.ring.completion().enable_eventfd();
    }

    /// From now on they do not: an awake shard looks by itself.
    pub(crate) fn disarm(&mut self) {
        self.ring.completion().disable_eventfd();
    }

    /// Cancels all that can be cancelled, for at most `timeout_ns`; false where the kernel has no
    /// such call (before 6.0).
    pub(crate) fn cancel_all(&mut self, timeout_ns: u64) -> bool {
        let timeout = timespec(timeout_ns);
        let cancelled = self
            .ring
            .submitter()
            .register_sync_cancel(Some(timeout), CancelBuilder::any());
        !matches!(
            cancelled.map_err(|error| error.raw_os_error()),
            Err(Some(libc::EINVAL))
        )
    }

    /// A registered ring descriptor saves 60 of 480 ns per enter (runtime 1.7).
    fn register_ring_fd(&mut self) {
        let data = u64::try_from(self.ring.as_raw_fd()).expect("an open descriptor");
        let mut update = RingFdUpdate {
            offset: u32::MAX,
            reserved: 0,
            data,
        };
        let (call, fd) = (libc::SYS_io_uring_register, self.ring.as_raw_fd());
        let pointer = &raw mut update;
        // SAFETY: the pointer covers one update, which outlives the call.
        if unsafe { libc::syscall(call, fd, REGISTER_RING_FDS, pointer, 1) } == 1 {
            self.enter_fd = i32::try_from(update.offset).expect("a small index");
            self.registered = true;
        }
    }
}

fn timespec(ns: u64) -> Timespec {
    Timespec::new()
        .sec(ns / 1_000_000_000)
        .nsec(u32::try_from(ns % 1_000_000_000).unwrap_or(0))
}

impl Drop for Uring {
    fn drop(&mut self) {
        if !self.registered {
            return;
        }
        // The index holds the ring open for as long as the thread lives, locked memory included.
        let offset = u32::try_from(self.enter_fd).expect("a small index");
        let mut update = RingFdUpdate {
            offset,
            reserved: 0,
            data: 0,
        };
        let (call, fd) = (libc::SYS_io_uring_register, self.ring.as_raw_fd());
        let pointer = &raw mut update;
        // SAFETY: the pointer covers one update, which outlives the call.
        unsafe { libc::syscall(call, fd, UNREGISTER_RING_FDS, pointer, 1) };
    }
}

impl fmt::Debug for Uring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Uring")
            .field("step", &self.step)
            .finish_non_exhaustive()
    }
}
