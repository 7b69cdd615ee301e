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
    /// What a shard's own thread could not push: it must not wait for itself.
    static DEFERRED: RefCell<Vec<(ShardHandle, Data)>> = const { RefCell::new(Vec::new()) };
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
        DEFERRED.with_borrow_mut(|deferred| deferred.push((handle.clone(), data)));
        return;
    }
    for round in 0u32.. {
        match round {
            0..SPINS => std::hint::spin_loop(),
            SPINS..YIELDS => std::thread::yield_now(),
            _ => std::thread::park_timeout(PAUSE),
        }
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
            deferred.retain(|(handle, data)| {
                matches!(handle.data(data.clone()), Err(PushError::Full(_)))
            });
        }
    });
}

/// Asks for a detachment and does not wait for it. Retries while the control lane is full.
pub(crate) fn detach(handle: &ShardHandle, request: Request, engine_id: u64) {
    let (to, _unread) = reply();
    let mut control = Control::Request {
        request,
        ports: Ports::None,
        reply: to,
    };
    let attempts = if wait::may_block(engine_id) {
        u32::MAX
    } else {
        SPINS
    };
    for round in 0..attempts {
        match handle.control(control) {
            Ok(()) | Err(PushError::Closed(_)) => return,
            Err(PushError::Full(back)) => control = back,
        }
        match round {
            0..SPINS => std::hint::spin_loop(),
            SPINS..YIELDS => std::thread::yield_now(),
            _ => std::thread::park_timeout(PAUSE),
        }
    }
}
