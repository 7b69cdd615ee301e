//! The disk of one shard: the operation table above one of two drivers.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;
use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use crate::file::{Access, SegmentFile};
use crate::notify::Notifier;
use crate::op::{Completion, FileId, FileTask, Op, RawDone};
use crate::pool::{IoPool, Job, Port, Work};
use crate::probe::{Backend, DiskPlan, DiskReport};
use crate::table::{Flight, Kind, Next, OpTable, Reading};
use crate::tasks::TaskWork;
use crate::uring::{CQ_ENTRIES, Uring};

/// Operations in flight of one disk: as many as the completion queue has places, so that it
/// cannot overflow (runtime 1.3).
const IN_FLIGHT_MAX: usize = CQ_ENTRIES as usize;
/// Completions taken from the ring at a time.
const TAKEN_MAX: usize = 64;
/// What cancels carry as user data: a generation never gets there together with this slot.
const CANCEL_USER_DATA: u64 = u64::MAX;
/// Shutdown waits so long for cancels, and in all (runtime 2.10).
const CANCEL_NS: u64 = 1_000_000_000;
const DROP_GRACE: Duration = Duration::from_secs(5);

/// Reads, syncs and file work of one shard. Made and used on the shard's thread.
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
    /// Syncs in flight.
    pub syncs_in_flight: usize,
    /// Enters of the ring.
    pub enters_total: u64,
    /// Enters that took fewer entries than were queued.
    pub short_submits_total: u64,
    /// Reads that came back short and went on.
    pub short_reads_total: u64,
    /// Tries repeated after EINTR, EAGAIN or a refused way of reading.
    pub retries_total: u64,
    /// Completions that belonged to nothing in flight.
    pub stale_total: u64,
    /// Completions that found no room: above 0 is a bug.
    pub overflow_total: u64,
}

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
        self.files.insert(file, Arc::new(SegmentFile::open(path, access, direct)?));
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
        let file = self.file(file).ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))?;
        file.write_at(offset, bytes)
    }

    /// Takes an operation in; it is under way after the next [`Disk::enter`] or [`Disk::reap`].
    ///
    /// # Errors
    /// The operation back, if 1,024 are in flight.
    pub fn submit(&mut self, user: u64, op: Op) -> Result<(), Op> {
        if self.table.is_full() || self.refused.len() == IN_FLIGHT_MAX {
            return Err(op);
        }
        let slot = match op {
            Op::Read { file, offset, len, memory, direct } => {
                let len = (len as usize).min(memory.len());
                let Some(file) = self.files.get(&file).cloned() else {
                    self.refuse(user, Some(memory));
                    return Ok(());
                };
                let mode = file.way(direct, &memory, offset, len);
                let kind = Kind::Read(Reading::new(offset, len, mode));
                self.table.insert(Flight { user, file: Some(file), memory: Some(memory), kind })
            }
            Op::Sync { file } => {
                let Some(file) = self.files.get(&file).cloned() else {
                    self.refuse(user, None);
                    return Ok(());
                };
                let file = Some(file);
                self.table.insert(Flight { user, file, memory: None, kind: Kind::Sync })
            }
            Op::Task(task) => {
                let file = match &*task {
                    FileTask::Forget { file } => self.files.get(file).cloned(),
                    _ => None,
                };
                let work = Box::new(TaskWork { task: *task, file });
                let kind = Kind::Task(Some(work));
                self.table.insert(Flight { user, file: None, memory: None, kind })
            }
        };
        if !self.waiting.is_empty() || !self.launch(slot) {
            self.waiting.push_back(slot);
        }
        Ok(())
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

    /// Operations in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.table.in_flight() + self.refused.len()
    }

    /// Whether a sync is in flight: then an adaptive shard does not spin (runtime 7.4).
    #[must_use]
    pub fn sync_in_flight(&self) -> bool {
        self.table.syncs > 0
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
            syncs_in_flight: self.table.syncs,
            short_reads_total: self.table.short_reads,
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
            self.wait(left.min(Duration::from_millis(10)), &mut done, &mut completed);
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
        let slots = self.table.slots_in_flight();
        let Driver::Uring(uring) = &mut self.driver else { return };
        let timeout_ns = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX).min(CANCEL_NS);
        if uring.cancel_all(timeout_ns) {
            return;
        }
        for user_data in slots {
            let entry = opcode::AsyncCancel::new(user_data).build().user_data(CANCEL_USER_DATA);
            // SAFETY: a cancel points to no memory.
            if !unsafe { uring.push(&entry) } {
                break;
            }
        }
    }

    /// Waits a little for one more completion of either kind.
    fn wait(
        &mut self,
        time: Duration,
        done: &mut impl FnMut(Completion),
        completed: &mut usize,
    ) {
        match &mut self.driver {
            Driver::Uring(uring) if self.table.in_flight() > self.table.tasks() => {
                uring.wait_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
            }
            _ => {
                if let Ok(raw) = self.results.recv_timeout(time) {
                    *completed += self.take_in(raw, done);
                }
            }
        }
    }

    /// Starts the next try of a slot; false if the queue it needs is full.
    fn launch(&mut self, slot: u32) -> bool {
        let user_data = self.table.user_data(slot);
        let flight = self.table.flight(slot);
        if let Driver::Uring(uring) = &mut self.driver
            && let Some(entry) = entry_of(flight)
        {
            let entry = entry.user_data(user_data);
            // SAFETY: the memory and the file are in the table until this slot's completion is
            // taken (`settle`), or are leaked with it (`shutdown`).
            if unsafe { uring.push(&entry) } {
                return true;
            }
            uring.flush(usize::MAX);
            // SAFETY: as above.
            return unsafe { uring.push(&entry) };
        }
        let work = work_of(flight);
        let Err(job) = self.pool.try_send(Job { user_data, work, port: self.port.clone() }) else {
            return true;
        };
        match job.work {
            Work::Read { memory, .. } => flight.memory = Some(memory),
            Work::Task(work) => flight.kind = Kind::Task(Some(work)),
            Work::Sync { .. } | Work::Close(_) => {}
        }
        false
    }

    fn reap_pool(&mut self, max: usize, done: &mut impl FnMut(Completion)) -> usize {
        let mut count = 0;
        while count < max {
            let Ok(raw) = self.results.try_recv() else { break };
            count += self.take_in(raw, done);
        }
        count
    }

    fn reap_ring(&mut self, max: usize, done: &mut impl FnMut(Completion)) -> usize {
        let mut taken = [(0, 0); TAKEN_MAX];
        let mut count = 0;
        while count < max {
            let Driver::Uring(uring) = &mut self.driver else { break };
            let room = TAKEN_MAX.min(max - count);
            let n = uring.take(&mut taken[..room]);
            for (user_data, code) in taken[..n].iter().copied() {
                let result = usize::try_from(code)
                    .map_err(|_| io::Error::from_raw_os_error(code.saturating_neg()));
                count += self.take_in(RawDone { user_data, result, memory: None }, done);
            }
            if n < room {
                break;
            }
        }
        count
    }

    fn take_in(&mut self, raw: RawDone, done: &mut impl FnMut(Completion)) -> usize {
        #[cfg(test)]
        if let Some(faults) = &mut self.faults {
            faults.hold(raw);
            return 0;
        }
        self.settle(raw, done)
    }

    #[cfg(test)]
    fn reap_faults(&mut self, done: &mut impl FnMut(Completion)) -> usize {
        let mut count = 0;
        while let Some(raw) = self.faults.as_mut().and_then(crate::fault::Faults::release) {
            count += self.settle(raw, done);
        }
        count
    }

    /// Judges one result: the operation is over, or its rest is asked for.
    fn settle(&mut self, raw: RawDone, done: &mut impl FnMut(Completion)) -> usize {
        let Some(slot) = self.table.find(raw.user_data) else {
            self.stale += u64::from(raw.user_data != CANCEL_USER_DATA);
            return 0;
        };
        if raw.memory.is_some() {
            self.table.flight(slot).memory = raw.memory;
        }
        let again = !self.port.closing.load(Ordering::Relaxed);
        match self.table.advance(slot, raw.result) {
            Next::Again if again => {
                if !self.waiting.is_empty() || !self.launch(slot) {
                    self.waiting.push_back(slot);
                }
                0
            }
            next => {
                let result = match next {
                    Next::Done(result) => result,
                    Next::Again => Err(io::Error::from_raw_os_error(libc::ECANCELED)),
                };
                let (completion, file) = self.table.finish(slot, result);
                if let Some(file) = file {
                    self.retire(file);
                }
                done(completion);
                1
            }
        }
    }

    /// Lets go of a file; the last to hold it has it closed by the pool.
    fn retire(&mut self, file: Arc<SegmentFile>) {
        if Arc::strong_count(&file) == 1 {
            // A full queue closes it here.
            let work = Work::Close(file);
            let _ = self.pool.try_send(Job { user_data: 0, work, port: self.port.clone() });
        }
    }

    fn refuse(&mut self, user: u64, memory: Option<crate::Memory>) {
        let result = Err(io::Error::from_raw_os_error(libc::EBADF));
        self.refused.push_back(Completion { user, result, memory });
    }
}

/// The ring's entry for a flight; `None` for what the pool does under either driver.
fn entry_of(flight: &mut Flight) -> Option<squeue::Entry> {
    let file = flight.file.as_ref()?;
    match &flight.kind {
        Kind::Read(reading) => {
            let (fd, flags) = file.target(reading.mode);
            let memory = flight.memory.as_mut().expect("a read has memory between tries");
            let rest = &mut memory.as_mut_slice()[reading.base..reading.len];
            let len = u32::try_from(rest.len()).expect("a read's length is a u32");
            let read = opcode::Read::new(Fd(fd), rest.as_mut_ptr(), len);
            Some(read.offset(reading.offset + reading.base as u64).rw_flags(flags).build())
        }
        Kind::Sync => {
            Some(opcode::Fsync::new(Fd(file.raw_fd())).flags(FsyncFlags::DATASYNC).build())
        }
        Kind::Task(_) => None,
    }
}

/// The pool's work for a flight. Memory goes with it and comes back with the result.
fn work_of(flight: &mut Flight) -> Work {
    match &mut flight.kind {
        Kind::Read(reading) => Work::Read {
            file: flight.file.clone().expect("a read has a file"),
            mode: reading.mode,
            offset: reading.offset + reading.base as u64,
            range: (reading.base, reading.len),
            memory: flight.memory.take().expect("a read has memory between tries"),
        },
        Kind::Sync => Work::Sync { file: flight.file.clone().expect("a sync has a file") },
        Kind::Task(work) => Work::Task(work.take().expect("a task is sent once")),
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.shutdown(DROP_GRACE, drop);
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
