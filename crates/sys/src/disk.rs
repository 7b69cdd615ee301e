//! The disk of one shard: the operation table above one of two drivers.

mod drive;
mod shutdown;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crossbeam_channel::Receiver;

pub use shutdown::Shutdown;

use crate::file::{Access, SegmentFile};
use crate::memory::Memory;
use crate::notify::Notifier;
use crate::op::{Completion, FileId, FileTask, Op, RawDone};
use crate::pool::{IoPool, Port};
use crate::probe::{Backend, DiskPlan, DiskReport};
use crate::table::{Committing, Flight, Kind, OpTable, Reading};
use crate::tasks::TaskWork;
use crate::uring::{CQ_ENTRIES, Uring};

/// Operations in flight of one disk: as many as the completion queue has places, so that it
/// cannot overflow (runtime 1.3).
const IN_FLIGHT_MAX: usize = CQ_ENTRIES as usize;

/// Reads, commits, syncs and file work of one shard. Made and used on the shard's thread.
///
/// ```compile_fail,E0277
/// fn can_move_to_another_thread<T: Send>() {}
/// can_move_to_another_thread::<pelton_sys::Disk>();
/// ```
///
/// Dropping it is [`Disk::shutdown`] with five seconds.
pub struct Disk {
    driver: Driver,
    table: OpTable,
    files: BTreeMap<FileId, Arc<SegmentFile>>,
    pool: IoPool,
    port: Arc<Port>,
    results: Receiver<RawDone>,
    /// Operations that ended before they began: their file was not open.
    refused: VecDeque<Completion>,
    /// Slots whose next try found a full queue, oldest first.
    waiting: VecDeque<u32>,
    report: DiskReport,
    stale: u64,
    #[cfg(test)]
    pub(crate) faults: Option<crate::fault::Faults>,
}

enum Driver {
    Uring(Box<Uring>),
    Pread,
}

/// Gauges and counters of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Operations in flight, of every kind.
    pub in_flight: usize,
    /// Reads in flight.
    pub reads_in_flight: usize,
    /// Bytes those reads ask for.
    pub read_bytes_in_flight: usize,
    /// Syncs in flight, commits included.
    pub syncs_in_flight: usize,
    /// Enters of the ring.
    pub enters_total: u64,
    /// Enters that took fewer entries than were queued.
    pub short_submits_total: u64,
    /// Reads and commits that came back short and went on.
    pub short_transfers_total: u64,
    /// Tries repeated after EINTR, EAGAIN or a refused way of reading.
    pub retries_total: u64,
    /// Completions that belonged to nothing in flight.
    pub stale_total: u64,
    /// Completions that found no room: above 0 is a bug.
    pub overflow_total: u64,
}

impl Disk {
    /// Makes the disk of the calling thread, as [`DiskPlan::decide`] settled it for all shards.
    ///
    /// # Errors
    /// When the ring that the plan promises cannot be had here; the text has the remedy.
    pub fn open(plan: &DiskPlan, pool: &IoPool, notifier: &Notifier) -> io::Result<Self> {
        let mut report = plan.report().clone();
        let driver = match plan.backend() {
            Backend::Pread => Driver::Pread,
            Backend::Uring => {
                let uring = Uring::new(&plan.uring_options(), notifier)
                    .map_err(|error| plan.explain_build(&error))?;
                report.built(uring.step(), uring.restricted());
                Driver::Uring(Box::new(uring))
            }
        };
        let (port, results) = Port::new(IN_FLIGHT_MAX, notifier.clone());
        Ok(Self {
            driver,
            table: OpTable::new(IN_FLIGHT_MAX),
            files: BTreeMap::new(),
            pool: pool.clone(),
            port,
            results,
            refused: VecDeque::new(),
            waiting: VecDeque::with_capacity(IN_FLIGHT_MAX),
            report,
            stale: 0,
            #[cfg(test)]
            faults: None,
        })
    }

    /// What it runs on, and why.
    #[must_use]
    pub fn report(&self) -> &DiskReport {
        &self.report
    }

    /// Opens `path` as `file`. With `direct`, reads may ask for O_DIRECT.
    ///
    /// # Errors
    /// What `open` says, with the path; AlreadyExists if the number is taken.
    pub fn open_file(
        &mut self,
        file: FileId,
        path: &Path,
        access: Access,
        direct: bool,
    ) -> io::Result<()> {
        if self.files.contains_key(&file) {
            let text = format!("{file:?} is open already; {} cannot be", path.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
        }
        self.files
            .insert(file, Arc::new(SegmentFile::open(path, access, direct)?));
        Ok(())
    }

    /// Takes the file out of the table. Its descriptors close with its last operation in flight,
    /// on a pool thread. Nothing happens if it is not open.
    pub fn close_file(&mut self, file: FileId) {
        if let Some(file) = self.files.remove(&file) {
            self.retire(file);
        }
    }

    /// An open file.
    #[must_use]
    pub fn file(&self, file: FileId) -> Option<&SegmentFile> {
        self.files.get(&file).map(Arc::as_ref)
    }

    /// One inline `pwrite`, see [`SegmentFile::write_at`].
    ///
    /// # Errors
    /// The kernel's; EBADF if the file is not open here.
    pub fn write_at(&self, file: FileId, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let file = self
            .file(file)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        file.write_at(offset, bytes)
    }

    /// Takes an operation in; it is under way after the next [`Disk::enter`] or [`Disk::reap`].
    ///
    /// # Errors
    /// The operation back, if 1,024 are in flight, and after a shutdown.
    pub fn submit(&mut self, user: u64, op: Op) -> Result<(), Op> {
        let closing = self.port.closing.load(Ordering::Relaxed);
        if closing || self.table.is_full() || self.refused.len() == IN_FLIGHT_MAX {
            return Err(op);
        }
        let slot = match op {
            Op::Read {
                file,
                offset,
                len,
                memory,
                direct,
            } => {
                let len = (len as usize).min(memory.len());
                self.insert_transfer(user, file, memory, |file, memory| {
                    let mode = file.way(direct, memory, offset, len);
                    Kind::Read(Reading::new(offset, len, mode))
                })
            }
            Op::Commit {
                file,
                offset,
                memory,
            } => self.insert_transfer(user, file, memory, |file, memory| {
                let len = memory.len();
                let mode = file.way(true, memory, offset, len);
                Kind::Commit(Committing::new(offset, len, mode))
            }),
            Op::Sync { file } => {
                let Some(file) = self.files.get(&file).cloned() else {
                    self.refuse(user, None);
                    return Ok(());
                };
                let file = Some(file);
                Some(self.table.insert(Flight {
                    user,
                    file,
                    memory: None,
                    kind: Kind::Sync,
                }))
            }
            Op::Task(task) => {
                let file = match &*task {
                    FileTask::Forget { file } => self.files.get(file).cloned(),
                    _ => None,
                };
                let work = Box::new(TaskWork { task: *task, file });
                let kind = Kind::Task(Some(work));
                Some(self.table.insert(Flight {
                    user,
                    file: None,
                    memory: None,
                    kind,
                }))
            }
        };
        let Some(slot) = slot else { return Ok(()) };
        if !self.waiting.is_empty() || !self.launch(slot) {
            self.waiting.push_back(slot);
        }
        Ok(())
    }

    /// A read or a write between a file and memory; `None` if the file is not open, which is answered
    /// as such.
    fn insert_transfer(
        &mut self,
        user: u64,
        file: FileId,
        memory: Memory,
        kind: impl FnOnce(&SegmentFile, &Memory) -> Kind,
    ) -> Option<u32> {
        let Some(file) = self.files.get(&file).cloned() else {
            self.refuse(user, Some(memory));
            return None;
        };
        let kind = kind(&file, &memory);
        Some(self.table.insert(Flight {
            user,
            file: Some(file),
            memory: Some(memory),
            kind,
        }))
    }

    /// Hands what was submitted to the kernel, and lets it post what is done: at most one system
    /// call, and none if there is no reason for one.
    pub fn enter(&mut self) {
        while let Some(slot) = self.waiting.front().copied() {
            if !self.launch(slot) {
                break;
            }
            self.waiting.pop_front();
        }
        if let Driver::Uring(uring) = &mut self.driver {
            uring.flush(self.table.in_flight());
        }
    }

    /// Submits what waits, and gives every operation that ended to `done`, about `max` of them.
    /// Returns how many; if it is `max` or more, there may be more to do before a sleep.
    pub fn reap(&mut self, max: usize, mut done: impl FnMut(Completion)) -> usize {
        let mut count = 0;
        loop {
            self.enter();
            let before = count;
            while let Some(completion) = self.refused.pop_front() {
                done(completion);
                count += 1;
            }
            count += self.reap_pool(max.saturating_sub(count), &mut done);
            count += self.reap_ring(max.saturating_sub(count), &mut done);
            #[cfg(test)]
            {
                count += self.reap_faults(&mut done);
            }
            if count >= max || count == before || !self.work_pending() {
                return count;
            }
        }
    }

    /// Before a sleep: from now on every completion ends it (runtime 1.10). The caller then looks
    /// at [`Disk::work_pending`] and does not sleep if there is any.
    pub fn arm_sleep(&mut self) {
        self.port.armed.store(true, Ordering::Relaxed);
        if let Driver::Uring(uring) = &mut self.driver {
            uring.arm();
        }
        // Partner of the fence in Port::tell, and of the kernel's barrier in its eventfd check.
        fence(Ordering::SeqCst);
    }

    /// After a sleep: completions no longer write the eventfd.
    pub fn disarm(&mut self) {
        self.port.armed.store(false, Ordering::Relaxed);
        if let Driver::Uring(uring) = &mut self.driver {
            uring.disarm();
        }
    }

    /// Whether there is something to submit or to reap now.
    pub fn work_pending(&mut self) -> bool {
        if !self.results.is_empty() || !self.refused.is_empty() || !self.waiting.is_empty() {
            return true;
        }
        match &mut self.driver {
            // Step 5 shows no pending work without a system call: enter before every sleep.
            Driver::Uring(uring) => {
                (uring.step().0 == 5 && uring.flush(self.table.in_flight())) || uring.work_pending()
            }
            Driver::Pread => false,
        }
    }

    /// The longest sleep allowed now, in nanoseconds: 10 ms with operations in flight where the
    /// kernel's flag update is no full barrier (runtime 1.11), no bound on x86-64.
    #[must_use]
    pub fn sleep_max_ns(&self) -> Option<u64> {
        let bounded = cfg!(not(target_arch = "x86_64")) && self.in_flight() > 0;
        bounded.then_some(10_000_000)
    }

    /// Operations in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.table.in_flight() + self.refused.len()
    }

    /// Whether something is in flight whose thread, the ring's worker or one of the pool, needs a CPU
    /// until it is durable: then an adaptive shard does not spin (runtime 7.4).
    #[must_use]
    pub fn sync_in_flight(&self) -> bool {
        let pool_commits = matches!(self.driver, Driver::Pread) && self.table.commits > 0;
        self.table.syncs > 0 || pool_commits
    }

    /// Whether a commit of the ring is in flight, which needs no thread of ours to end.
    #[must_use]
    pub fn commit_in_flight(&self) -> bool {
        matches!(self.driver, Driver::Uring(_)) && self.table.commits > 0
    }

    /// Whether reads are in flight, which lengthens the spin (runtime 7.2).
    #[must_use]
    pub fn reads_in_flight(&self) -> usize {
        self.table.reads
    }

    /// Gauges and counters.
    pub fn stats(&mut self) -> DiskStats {
        let mut stats = DiskStats {
            in_flight: self.in_flight(),
            reads_in_flight: self.table.reads,
            read_bytes_in_flight: self.table.read_bytes,
            syncs_in_flight: self.table.syncs + self.table.commits,
            short_transfers_total: self.table.short_transfers,
            retries_total: self.table.retries,
            stale_total: self.stale,
            ..DiskStats::default()
        };
        if let Driver::Uring(uring) = &mut self.driver {
            stats.enters_total = uring.enters;
            stats.short_submits_total = uring.short_submits;
            stats.overflow_total = u64::from(uring.overflow());
        }
        stats
    }

    fn refuse(&mut self, user: u64, memory: Option<crate::Memory>) {
        let result = Err(io::Error::from_raw_os_error(libc::EBADF));
        self.refused.push_back(Completion {
            user,
            result,
            memory,
        });
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("backend", &self.report.backend)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
