//! The I/O pool: threads beside the shards, for preads, commits, syncs and file work (runtime 4.4).

use std::fmt;
use std::io;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, select};

use crate::affinity::{CpuSet, cpus_allowed};
use crate::file::{IoMode, SegmentFile};
use crate::memory::Memory;
use crate::notify::Notifier;
use crate::op::RawDone;
use crate::spawn::spawn_named;
use crate::tasks::{self, TaskWork};

/// Reads, commits and syncs that wait for a thread, over all shards. A full queue keeps operations in
/// their shard's own table, so it bounds memory and delays nobody else.
const FAST_PLACES: usize = 1024;
/// File work that waits for a thread.
const SLOW_PLACES: usize = 256;

/// The pool of a process. Clones share it; the last one ends the threads and waits for them.
///
/// Thread 0 does reads, commits and syncs only, so that files being filled or unlinked never hold up a
/// commit of the pread driver.
#[derive(Clone)]
pub struct IoPool(Arc<Pool>);

struct Pool {
    /// `None` once the pool closes.
    queues: Option<Queues>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    thread_count: usize,
}

struct Queues {
    fast: Sender<Job>,
    slow: Sender<Job>,
}

/// Work for a thread, and whom to tell.
pub(crate) struct Job {
    pub(crate) user_data: u64,
    pub(crate) work: Work,
    pub(crate) port: Arc<Port>,
}

pub(crate) enum Work {
    Read {
        file: Arc<SegmentFile>,
        mode: IoMode,
        offset: u64,
        range: (usize, usize),
        memory: Memory,
    },
    Commit {
        file: Arc<SegmentFile>,
        mode: IoMode,
        offset: u64,
        from: usize,
        memory: Memory,
    },
    Sync {
        file: Arc<SegmentFile>,
    },
    Task(Box<TaskWork>),
    /// Drops a file here: the last close of an unlinked file gives its blocks back, 12 ms for
    /// 64 MiB. Nobody is told.
    Close(Arc<SegmentFile>),
}

/// The way back to one disk.
pub(crate) struct Port {
    /// As many places as operations can be in flight: never full.
    results: Sender<RawDone>,
    /// The shard sleeps, or is about to: a result writes the eventfd. The pool's counterpart of
    /// the ring's eventfd switch (runtime 1.10).
    pub(crate) armed: AtomicBool,
    /// The disk shuts down: a throttled task gives up.
    pub(crate) closing: AtomicBool,
    notifier: Notifier,
}

/// How many threads a process with so many shards gets: 4 for each, at most 16.
#[must_use]
pub fn pool_threads(shards: usize) -> usize {
    shards.saturating_mul(4).clamp(2, 16)
}

impl IoPool {
    /// Starts `threads` threads (at least 2), named `pelton-io-N`, on the CPUs from before
    /// pinning and with all signals blocked.
    ///
    /// # Errors
    /// When the kernel gives no thread.
    pub fn new(threads: usize) -> io::Result<Self> {
        let (fast, fast_jobs) = bounded(FAST_PLACES);
        let (slow, slow_jobs) = bounded(SLOW_PLACES);
        let mask = *cpus_allowed();
        let thread_count = threads.max(2);
        let mut handles = Vec::with_capacity(thread_count);
        for index in 0..thread_count {
            let fast_jobs = fast_jobs.clone();
            let slow_jobs = if index == 0 {
                crossbeam_channel::never()
            } else {
                slow_jobs.clone()
            };
            let body = move || {
                prepare_thread(&mask);
                serve(&fast_jobs, &slow_jobs);
            };
            handles.push(spawn_named(&format!("pelton-io-{index}"), body)?);
        }
        let queues = Some(Queues { fast, slow });
        Ok(Self(Arc::new(Pool {
            queues,
            threads: Mutex::new(handles),
            thread_count,
        })))
    }

    /// Queues a job; a full queue gives it back.
    pub(crate) fn try_send(&self, job: Job) -> Result<(), Job> {
        let queues = self
            .0
            .queues
            .as_ref()
            .expect("open as long as a handle lives");
        let queue = match job.work {
            Work::Read { .. } | Work::Commit { .. } | Work::Sync { .. } => &queues.fast,
            Work::Task(_) | Work::Close(_) => &queues.slow,
        };
        queue
            .try_send(job)
            .map_err(|(TrySendError::Full(job) | TrySendError::Disconnected(job))| job)
    }
}

impl Port {
    pub(crate) fn new(places: usize, notifier: Notifier) -> (Arc<Self>, Receiver<RawDone>) {
        let (results, receiver) = bounded(places);
        let (armed, closing) = (AtomicBool::new(false), AtomicBool::new(false));
        (
            Arc::new(Self {
                results,
                armed,
                closing,
                notifier,
            }),
            receiver,
        )
    }

    fn tell(&self, done: RawDone) {
        // A closed receiver is a disk that is gone; the memory dies here, its only owner.
        let _ = self.results.try_send(done);
        // Partner of the fence in Disk::arm_sleep: the result is seen there, or the flag here.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) {
            self.notifier.wake();
        }
    }
}

/// Signals go to the program's own threads; the CPUs are all that the process may use.
fn prepare_thread(mask: &CpuSet) {
    // A cpuset that changed meanwhile refuses the old mask; the thread then keeps what it has.
    let _ = mask.apply();
    // SAFETY: a sigset_t is made of integers; all zeros is one, filled below.
    let mut all: libc::sigset_t = unsafe { mem::zeroed() };
    // SAFETY: the set is ours to write.
    unsafe { libc::sigfillset(&raw mut all) };
    // SAFETY: the set outlives the call; the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, ptr::null_mut()) };
}

/// Works until the queues are closed and empty.
fn serve(fast: &Receiver<Job>, slow: &Receiver<Job>) {
    loop {
        if let Ok(job) = fast.try_recv() {
            do_job(job);
            continue;
        }
        let received = select! {
            recv(fast) -> job => job,
            recv(slow) -> job => job,
        };
        match received {
            Ok(job) => do_job(job),
            // Both queues close together; what is left in them is done first.
            Err(_) => match fast.try_recv().or_else(|_| slow.try_recv()) {
                Ok(job) => do_job(job),
                Err(_) => return,
            },
        }
    }
}

fn do_job(job: Job) {
    let Job {
        user_data,
        work,
        port,
    } = job;
    let (result, memory) = match work {
        Work::Read {
            file,
            mode,
            offset,
            range: (from, to),
            mut memory,
        } => {
            let result = file.read_once(mode, offset, &mut memory.as_mut_slice()[from..to]);
            (result, Some(memory))
        }
        Work::Commit {
            file,
            mode,
            offset,
            from,
            memory,
        } => {
            let result = file.commit_once(mode, offset, &memory.as_slice()[from..]);
            (result, Some(memory))
        }
        Work::Sync { file } => (file.sync_data().map(|()| 0), None),
        Work::Task(work) => {
            // A thread that dies would leave its operation in flight for ever.
            let run = AssertUnwindSafe(|| tasks::run(*work, &port.closing));
            let panicked = || (Err(io::Error::other("file work panicked")), None);
            catch_unwind(run).unwrap_or_else(|_| panicked())
        }
        Work::Close(file) => return drop(file),
    };
    port.tell(RawDone {
        user_data,
        result,
        memory,
    });
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queues = None;
        let threads = self.threads.get_mut().map(mem::take).unwrap_or_default();
        for thread in threads {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for IoPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IoPool")
            .field("threads", &self.0.thread_count)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("armed", &self.armed)
            .finish_non_exhaustive()
    }
}
