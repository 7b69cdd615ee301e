//! The operation table: it owns what an operation uses until its last completion (runtime 2.7).

use std::io;
use std::sync::Arc;

use crate::file::{IoMode, SegmentFile};
use crate::memory::{MEMORY_ALIGN, Memory};
use crate::op::{Completion, IoFault};
use crate::tasks::TaskWork;

/// EINTR and EAGAIN are answered by another try so many times (runtime 2.8).
const RETRIES_MAX: u8 = 8;

/// Slots for operations in flight; never more than the completion queue has places.
#[derive(Debug, Default)]
pub(crate) struct OpTable {
    slots: Vec<Slot>,
    free: Vec<u32>,
    in_flight: usize,
    pub(crate) reads: usize,
    pub(crate) read_bytes: usize,
    pub(crate) commits: usize,
    pub(crate) syncs: usize,
    pub(crate) short_transfers: u64,
    pub(crate) retries: u64,
}

#[derive(Debug, Default)]
struct Slot {
    /// Rises with each use and each try, so that a late or doubled completion finds nothing.
    generation: u32,
    flight: Option<Flight>,
}

/// One operation in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) user: u64,
    pub(crate) file: Option<Arc<SegmentFile>>,
    pub(crate) memory: Option<Memory>,
    pub(crate) kind: Kind,
}

#[derive(Debug)]
pub(crate) enum Kind {
    Read(Reading),
    Commit(Committing),
    Sync,
    /// `Some` until it has gone to the pool.
    Task(Option<Box<TaskWork>>),
}

/// Where a read stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// Bytes that are in memory for certain.
    done: usize,
    /// Where the current try began: `done`, or for O_DIRECT the border before it.
    pub(crate) base: usize,
    pub(crate) mode: IoMode,
    tries: u8,
}

/// Where a durable write stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committing {
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// Bytes that are durable: the next try begins there.
    pub(crate) done: usize,
    pub(crate) mode: IoMode,
    tries: u8,
}

impl Committing {
    pub(crate) fn new(offset: u64, len: usize, mode: IoMode) -> Self {
        Self {
            offset,
            len,
            done: 0,
            mode,
            tries: 0,
        }
    }
}

impl Reading {
    pub(crate) fn new(offset: u64, len: usize, mode: IoMode) -> Self {
        Self {
            offset,
            len,
            done: 0,
            base: 0,
            mode,
            tries: 0,
        }
    }
}

/// What follows from one result.
#[derive(Debug)]
pub(crate) enum Next {
    /// The operation is over.
    Done(io::Result<usize>),
    /// The rest has to be asked for.
    Again,
}

impl OpTable {
    pub(crate) fn new(capacity: usize) -> Self {
        let slots = (0..capacity).map(|_| Slot::default()).collect();
        let places = u32::try_from(capacity).expect("a small table");
        Self {
            slots,
            free: (0..places).rev().collect(),
            ..Self::default()
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Operations that the pool does under either driver.
    pub(crate) fn tasks(&self) -> usize {
        self.in_flight - self.reads - self.commits - self.syncs
    }

    /// The user data of everything in flight.
    pub(crate) fn all_in_flight(&self) -> Vec<u64> {
        let places = u32::try_from(self.slots.len()).expect("a small table");
        let slots = (0..places).filter(|slot| self.slots[*slot as usize].flight.is_some());
        slots.map(|slot| self.user_data(slot)).collect()
    }

    /// Takes an operation in; the table must not be full.
    pub(crate) fn insert(&mut self, flight: Flight) -> u32 {
        let slot = self.free.pop().expect("the caller asked is_full()");
        self.in_flight += 1;
        match &flight.kind {
            Kind::Read(reading) => {
                self.reads += 1;
                self.read_bytes += reading.len;
            }
            Kind::Commit(_) => self.commits += 1,
            Kind::Sync => self.syncs += 1,
            Kind::Task(_) => {}
        }
        let entry = &mut self.slots[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        debug_assert!(entry.flight.is_none(), "slot {slot} was free and in use");
        entry.flight = Some(flight);
        slot
    }

    /// What the kernel carries for the slot: generation above, slot below.
    pub(crate) fn user_data(&self, slot: u32) -> u64 {
        u64::from(self.slots[slot as usize].generation) << 32 | u64::from(slot)
    }

    /// The slot of a completion, if it is the one in flight there.
    pub(crate) fn find(&self, user_data: u64) -> Option<u32> {
        let slot = (user_data & u64::from(u32::MAX)) as u32;
        let entry = self.slots.get(slot as usize)?;
        let current = u64::from(entry.generation) == user_data >> 32;
        (current && entry.flight.is_some()).then_some(slot)
    }

    pub(crate) fn flight(&mut self, slot: u32) -> &mut Flight {
        self.slots[slot as usize]
            .flight
            .as_mut()
            .expect("a slot in flight")
    }

    /// Frees the slot. The file comes back too: the last to hold it closes it.
    pub(crate) fn finish(
        &mut self,
        slot: u32,
        result: io::Result<usize>,
    ) -> (Completion, Option<Arc<SegmentFile>>) {
        let flight = self.slots[slot as usize]
            .flight
            .take()
            .expect("a slot in flight");
        self.free.push(slot);
        self.in_flight -= 1;
        match &flight.kind {
            Kind::Read(reading) => {
                self.reads -= 1;
                self.read_bytes -= reading.len;
            }
            Kind::Commit(_) => self.commits -= 1,
            Kind::Sync => self.syncs -= 1,
            Kind::Task(_) => {}
        }
        (
            Completion {
                user: flight.user,
                result,
                memory: flight.memory,
            },
            flight.file,
        )
    }

    /// Judges one result of the operation in `slot`.
    pub(crate) fn advance(&mut self, slot: u32, result: io::Result<usize>) -> Next {
        let flight = self.slots[slot as usize]
            .flight
            .as_mut()
            .expect("a slot in flight");
        let (next, went_on) = match &mut flight.kind {
            Kind::Read(reading) => {
                let file = flight.file.as_ref().expect("a read has a file");
                let before = reading.done;
                let next = reading.advance(file, result);
                (next, reading.done > before)
            }
            Kind::Commit(commit) => {
                let file = flight.file.as_ref().expect("a commit has a file");
                let before = commit.done;
                let next = commit.advance(file, result);
                (next, commit.done > before)
            }
            // A sync is never repeated, whatever it said (runtime 3.10).
            Kind::Sync | Kind::Task(_) => return Next::Done(result),
        };
        self.short_transfers += u64::from(matches!(next, Next::Again) && went_on);
        self.retries += u64::from(matches!(next, Next::Again) && !went_on);
        if matches!(next, Next::Again) {
            // Each try has a generation of its own: a doubled answer to this one finds nothing.
            let entry = &mut self.slots[slot as usize];
            entry.generation = entry.generation.wrapping_add(1);
        }
        next
    }
}

impl Committing {
    fn advance(&mut self, file: &SegmentFile, result: io::Result<usize>) -> Next {
        match result {
            Ok(got) if self.done + got >= self.len => {
                file.committed();
                Next::Done(Ok(self.len))
            }
            // Once, and from a border that O_DIRECT takes (runtime 3.10).
            Ok(got) if self.done == 0 && got >= MEMORY_ALIGN => {
                self.done = got - got % MEMORY_ALIGN;
                self.tries = 0;
                Next::Again
            }
            Ok(_) => Next::Done(Err(io::ErrorKind::WriteZero.into())),
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) if self.tries < RETRIES_MAX => {
                    self.tries += 1;
                    Next::Again
                }
                Some(libc::EINVAL | libc::EOPNOTSUPP) if self.mode == IoMode::Direct => {
                    file.step_down(self.mode);
                    self.mode = IoMode::Buffered;
                    Next::Again
                }
                _ => Next::Done(Err(error)),
            },
        }
    }
}

impl Reading {
    fn advance(&mut self, file: &SegmentFile, result: io::Result<usize>) -> Next {
        let got = match result {
            Ok(got) => got,
            Err(error) => return self.failed(file, error),
        };
        let total = self.base + got;
        if total >= self.len {
            return Next::Done(Ok(self.len));
        }
        if total > self.done {
            self.done = total;
            self.tries = 0;
        } else if self.mode == IoMode::Direct {
            // No step forward: the end of the file, or less than a sector at a time. The page
            // cache takes any offset and tells the two apart.
            self.mode = IoMode::Buffered;
        } else {
            let fault = IoFault::Truncated {
                got: self.done,
                wanted: self.len,
            };
            return Next::Done(Err(fault.into()));
        }
        // O_DIRECT goes on at a border, so some bytes are read twice.
        let align = if self.mode == IoMode::Direct {
            file.direct_align()
        } else {
            1
        };
        self.base = self.done - self.done % align;
        Next::Again
    }

    fn failed(&mut self, file: &SegmentFile, error: io::Error) -> Next {
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) if self.tries == RETRIES_MAX => {
                Next::Done(Err(IoFault::Busy.into()))
            }
            Some(libc::EINTR | libc::EAGAIN) => {
                self.tries += 1;
                Next::Again
            }
            Some(libc::EINVAL | libc::EOPNOTSUPP) if self.mode != IoMode::Buffered => {
                self.mode = file.step_down(self.mode);
                self.base = self.done;
                Next::Again
            }
            _ => Next::Done(Err(error)),
        }
    }
}
