//! What lives on a shard's thread beside its topics: the connections of a server.
//!
//! A resident talks to shards as every handle does, by rings and lanes, to its own as to others. That
//! it runs in the turn itself is what saves a thread hop in each direction: what it takes in is taken
//! from its rings later in the same turn, and what that turn answers it gives out at the end of it.

use std::fmt;
use std::io;

use pelton_broker::Now;
use pelton_sys::{Ready, Sockets};

use crate::port::contained;
use crate::turn::Shard;
use crate::watch::TurnWork;

/// Called by the turn loop; no call may block or sleep.
pub trait Resident {
    /// Start of a turn: reads what is ready, empties `ready`, and pushes what it read. How much it did.
    fn take_in(&mut self, ready: &mut Vec<Ready>, now: Now) -> u32;

    /// End of a turn: takes answers, receipts and runs, and writes. How much it did.
    fn give_out(&mut self, now: Now) -> u32;

    /// Whether a turn would find something of its own: the last look before a sleep.
    fn has_work(&self) -> bool;

    /// When it wants a turn although nothing happens, monotonic nanoseconds.
    fn next_deadline_ns(&self) -> Option<u64>;
}

/// Makes a resident on the thread it will live on, in the way of [`crate::Control::Settle`].
pub struct MakeResident(Box<dyn FnOnce(Sockets) -> io::Result<Box<dyn Resident>> + Send>);

impl MakeResident {
    /// Called once, with the place where its sockets are registered.
    pub fn new(
        make: impl FnOnce(Sockets) -> io::Result<Box<dyn Resident>> + Send + 'static,
    ) -> MakeResident {
        MakeResident(Box::new(make))
    }
}

impl fmt::Debug for MakeResident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MakeResident").finish_non_exhaustive()
    }
}

impl Shard {
    pub(crate) fn settle_resident(&mut self, make: MakeResident) -> io::Result<()> {
        let sockets = self.sleeper.sockets()?;
        let made = contained(|| (make.0)(sockets))
            .unwrap_or_else(|| Err(io::Error::other("it panicked while it was made")))?;
        self.resident = Some(made);
        Ok(())
    }

    /// Its part at the start of a turn, or at the end. One that panics is gone, and its sockets with
    /// it; the shard goes on.
    #[inline]
    pub(crate) fn let_resident(&mut self, now: Now, work: &mut TurnWork, start: bool) {
        let Some(resident) = &mut self.resident else {
            return;
        };
        let done = match start {
            true => {
                let ready = self.sleeper.ready();
                contained(|| resident.take_in(ready, now))
            }
            false => contained(|| resident.give_out(now)),
        };
        match done {
            Some(items) => work.resident += items,
            None => {
                self.notes.push("the resident panicked and is gone".into());
                self.resident = None;
            }
        }
    }

    pub(crate) fn resident_has_work(&self) -> bool {
        let resident = self.resident.as_ref();
        resident.is_some_and(|resident| self.sleeper.any_ready() || resident.has_work())
    }
}
