//! Tries of operations: started on a driver, judged when they come back.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use io_uring::types::{Fd, FsyncFlags};
use io_uring::{opcode, squeue};

use super::{Disk, Driver};
use crate::file::SegmentFile;
use crate::op::{Completion, RawDone};
use crate::pool::{Job, Work};
use crate::table::{Flight, Kind, Next};
use crate::uring::NOBODY;

/// Completions taken from the ring at a time.
const TAKEN_MAX: usize = 64;

impl Disk {
    /// Starts the next try of a slot; false if the queue it needs is full.
    pub(super) fn launch(&mut self, slot: u32) -> bool {
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
        let Err(job) = self.pool.try_send(Job {
            user_data,
            work,
            port: self.port.clone(),
        }) else {
            return true;
        };
        match job.work {
            Work::Read { memory, .. } | Work::Commit { memory, .. } => flight.memory = Some(memory),
            Work::Task(work) => flight.kind = Kind::Task(Some(work)),
            Work::Sync { .. } | Work::Close(_) => {}
        }
        false
    }

    pub(super) fn reap_pool(&mut self, max: usize, done: &mut impl FnMut(Completion)) -> usize {
        let mut count = 0;
        while count < max {
            let Ok(raw) = self.results.try_recv() else {
                break;
            };
            count += self.take_in(raw, done);
        }
        count
    }

    pub(super) fn reap_ring(&mut self, max: usize, done: &mut impl FnMut(Completion)) -> usize {
        let mut taken = [(0, 0); TAKEN_MAX];
        let mut count = 0;
        while count < max {
            let Driver::Uring(uring) = &mut self.driver else {
                break;
            };
            let room = TAKEN_MAX.min(max - count);
            let n = uring.take(&mut taken[..room]);
            for (user_data, code) in taken[..n].iter().copied() {
                let result = usize::try_from(code)
                    .map_err(|_| io::Error::from_raw_os_error(code.saturating_neg()));
                count += self.take_in(
                    RawDone {
                        user_data,
                        result,
                        memory: None,
                    },
                    done,
                );
            }
            if n < room {
                break;
            }
        }
        count
    }

    pub(super) fn take_in(&mut self, raw: RawDone, done: &mut impl FnMut(Completion)) -> usize {
        #[cfg(test)]
        if let Some(faults) = &mut self.faults {
            faults.hold(raw);
            return 0;
        }
        self.settle(raw, done)
    }

    #[cfg(test)]
    pub(super) fn reap_faults(&mut self, done: &mut impl FnMut(Completion)) -> usize {
        let mut count = 0;
        while let Some(raw) = self.faults.as_mut().and_then(crate::fault::Faults::release) {
            count += self.settle(raw, done);
        }
        count
    }

    /// Judges one result: the operation is over, or its rest is asked for.
    fn settle(&mut self, raw: RawDone, done: &mut impl FnMut(Completion)) -> usize {
        let Some(slot) = self.table.find(raw.user_data) else {
            self.stale += u64::from(raw.user_data != NOBODY);
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
    pub(super) fn retire(&mut self, file: Arc<SegmentFile>) {
        if Arc::strong_count(&file) == 1 {
            // A full queue closes it here.
            let work = Work::Close(file);
            let _ = self.pool.try_send(Job {
                user_data: 0,
                work,
                port: self.port.clone(),
            });
        }
    }
}

/// The ring's entry for a flight; `None` for what the pool does under either driver.
fn entry_of(flight: &mut Flight) -> Option<squeue::Entry> {
    let file = flight.file.as_ref()?;
    match &flight.kind {
        Kind::Read(reading) => {
            let (fd, flags) = file.target(reading.mode);
            let memory = flight
                .memory
                .as_mut()
                .expect("a read has memory between tries");
            let rest = &mut memory.as_mut_slice()[reading.base..reading.len];
            let len = u32::try_from(rest.len()).expect("a read's length is a u32");
            let read = opcode::Read::new(Fd(fd), rest.as_mut_ptr(), len);
            Some(
                read.offset(reading.offset + reading.base as u64)
                    .rw_flags(flags)
                    .build(),
            )
        }
        Kind::Commit(commit) => {
            let (fd, flags) = file.commit_target(commit.mode);
            let memory = flight
                .memory
                .as_ref()
                .expect("a commit has memory between tries");
            let rest = &memory.as_slice()[commit.done..];
            let len = u32::try_from(rest.len()).expect("a commit's length is a u32");
            let write = opcode::Write::new(Fd(fd), rest.as_ptr(), len);
            Some(
                write
                    .offset(commit.offset + commit.done as u64)
                    .rw_flags(flags)
                    .build(),
            )
        }
        Kind::Sync => Some(
            opcode::Fsync::new(Fd(file.raw_fd()))
                .flags(FsyncFlags::DATASYNC)
                .build(),
        ),
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
            memory: flight
                .memory
                .take()
                .expect("a read has memory between tries"),
        },
        Kind::Commit(commit) => Work::Commit {
            file: flight.file.clone().expect("a commit has a file"),
            mode: commit.mode,
            offset: commit.offset + commit.done as u64,
            from: commit.done,
            memory: flight
                .memory
                .take()
                .expect("a commit has memory between tries"),
        },
        Kind::Sync => Work::Sync {
            file: flight.file.clone().expect("a sync has a file"),
        },
        Kind::Task(work) => Work::Task(work.take().expect("a task is sent once")),
    }
}
