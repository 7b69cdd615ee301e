//! What did not fit into a lane, of threads that must not wait for room: a shard's own, and the one
//! that drives it, would wait for themselves.
//!
//! It stays on the heap, behind its lane: while anything is here the lane counts as full, so nothing
//! overtakes it, and whoever can wait does. Its owners bound it: an ack for each entry that was handed
//! over, a request for each handle that was dropped.

use crossbeam_channel::{Receiver, Sender, unbounded};
use pelton_rings::PriorityReceiver;

use super::{Data, Stamped};

/// The pushers' ends.
#[derive(Debug)]
pub(crate) struct Overflow {
    pub(super) control: Sender<Stamped>,
    pub(super) data: Sender<Data>,
}

/// Everything that is pushed to one shard, as the shard takes it. Dropped, the shard is closed.
#[derive(Debug)]
pub(crate) struct Lanes {
    pub(crate) ring: PriorityReceiver<Stamped, Data>,
    /// Behind the ring's lanes.
    pub(crate) overflow: Overflowed,
}

/// The shard's ends.
#[derive(Debug)]
pub(crate) struct Overflowed {
    control: Receiver<Stamped>,
    data: Receiver<Data>,
    /// As of the last look: an item costs no look of its own.
    pub(crate) has_control: bool,
    pub(crate) has_data: bool,
    data_popped: u64,
}

pub(super) fn overflow() -> (Overflow, Overflowed) {
    let (to_control, control) = unbounded();
    let (to_data, data) = unbounded();
    let pushers = Overflow {
        control: to_control,
        data: to_data,
    };
    let taker = Overflowed {
        control,
        data,
        has_control: false,
        has_data: false,
        data_popped: 0,
    };
    (pushers, taker)
}

impl Overflowed {
    /// Once per turn.
    pub(crate) fn look(&mut self) {
        self.has_control = !self.control.is_empty();
        self.has_data = !self.data.is_empty();
    }

    /// Whether there is anything, looked at or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }

    pub(crate) fn pop_control(&mut self) -> Option<Stamped> {
        let item = self.control.try_recv().ok();
        self.has_control = !self.control.is_empty();
        item
    }

    pub(crate) fn pop_data(&mut self) -> Option<Data> {
        let item = self.data.try_recv().ok();
        self.has_data = !self.data.is_empty();
        self.data_popped += u64::from(item.is_some());
        item
    }

    /// Items: control, data.
    pub(crate) fn lens(&self) -> (usize, usize) {
        (self.control.len(), self.data.len())
    }

    /// Data items ever popped, and what that will be once all that is here now was.
    pub(crate) fn data_count(&self) -> (u64, u64) {
        (self.data_popped, self.data_popped + self.data.len() as u64)
    }
}
