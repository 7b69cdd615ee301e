//! How acks and nacks get into the data lane of a shard, full or not.

use std::cell::RefCell;
use std::time::Duration;

use crate::port::{Control, Data, Ports, PushError, Request, ShardHandle, reply};
use crate::wait;

/// Looks at a full lane before the thread gives its CPU away, and before it sleeps.
const SPINS: u32 = 100;
const YIELDS: u32 = 200;

/// A full lane of 16,384 items takes the shard about a millisecond; nothing tells when there is room.
const PAUSE: Duration = Duration::from_micros(100);

thread_local! {
    /// What a shard's own thread could not push: it must not wait for itself. At most one item for
    /// each entry that its consumers hold, and one for each handle it has dropped.
    static DEFERRED: RefCell<Vec<(ShardHandle, Deferred)>> = const { RefCell::new(Vec::new()) };
}

enum Deferred {
    Data(Data),
    Control(Control),
}

/// Pushes, and waits while the lane is full. A thread that runs the shard keeps the item instead,
/// until [`push_deferred`]; a shard that has ended needs no acks.
pub(crate) fn push(handle: &ShardHandle, data: Data, engine_id: u64) {
    match handle.data(data) {
        Ok(()) | Err(PushError::Closed(_)) => {}
        Err(PushError::Full(data)) => push_to_full(handle, data, engine_id),
    }
}

#[cold]
fn push_to_full(handle: &ShardHandle, mut data: Data, engine_id: u64) {
    if !wait::may_block(engine_id) {
        DEFERRED.with_borrow_mut(|deferred| deferred.push((handle.clone(), Deferred::Data(data))));
        return;
    }
    for round in 0u32.. {
        pause(round);
        match handle.data(data) {
            Ok(()) | Err(PushError::Closed(_)) => return,
            Err(PushError::Full(back)) => data = back,
        }
    }
}

/// Pushes what this thread had to keep; what still does not fit stays.
pub(crate) fn push_deferred() {
    // Gone only while the thread ends.
    let _ = DEFERRED.try_with(|deferred| {
        if let Ok(mut deferred) = deferred.try_borrow_mut() {
            for (handle, item) in std::mem::take(&mut *deferred) {
                if let Some(item) = item.push(&handle) {
                    deferred.push((handle, item));
                }
            }
        }
    });
}

impl Deferred {
    /// Gives itself back if the lane is full.
    fn push(self, handle: &ShardHandle) -> Option<Deferred> {
        match self {
            Deferred::Data(data) => match handle.data(data) {
                Err(PushError::Full(data)) => Some(Deferred::Data(data)),
                Ok(()) | Err(PushError::Closed(_)) => None,
            },
            Deferred::Control(control) => match handle.control(control) {
                Err(PushError::Full(control)) => Some(Deferred::Control(control)),
                Ok(()) | Err(PushError::Closed(_)) => None,
            },
        }
    }
}

/// Asks for a detachment and does not wait for it. While the control lane is full it tries again; a
/// thread that runs the shard keeps the request instead, until [`push_deferred`].
pub(crate) fn detach(handle: &ShardHandle, request: Request, engine_id: u64) {
    let (to, _unread) = reply();
    let mut control = Control::Request {
        request,
        ports: Ports::None,
        reply: to,
    };
    for round in 0u32.. {
        match handle.control(control) {
            Ok(()) | Err(PushError::Closed(_)) => return,
            Err(PushError::Full(back)) => control = back,
        }
        if !wait::may_block(engine_id) {
            let item = Deferred::Control(control);
            DEFERRED.with_borrow_mut(|deferred| deferred.push((handle.clone(), item)));
            return;
        }
        pause(round);
    }
}

/// Between two looks at a full lane.
fn pause(round: u32) {
    match round {
        0..SPINS => std::hint::spin_loop(),
        SPINS..YIELDS => std::thread::yield_now(),
        _ => std::thread::park_timeout(PAUSE),
    }
}
