//! How acks, nacks and detachments get into the lanes of a shard, full or not.

use std::time::Duration;

use crate::port::{Control, Data, Ports, PushError, Request, ShardHandle, reply};
use crate::wait;

/// Looks at a full lane before the thread gives its CPU away, and before it sleeps.
const SPINS: u32 = 100;
const YIELDS: u32 = 200;

/// A full lane of 16,384 items takes the shard about a millisecond; nothing tells when there is room.
const PAUSE: Duration = Duration::from_micros(100);

/// Pushes, and waits while the lane is full; for a thread that runs the shard, and must not wait for
/// itself, the shard keeps the item. A shard that has ended needs no acks.
pub(crate) fn push(handle: &ShardHandle, data: Data, engine_id: u64) {
    match handle.data(data) {
        Ok(()) | Err(PushError::Closed(_)) => {}
        Err(PushError::Full(data)) => push_to_full(handle, data, engine_id),
    }
}

#[cold]
fn push_to_full(handle: &ShardHandle, mut data: Data, engine_id: u64) {
    if !wait::may_block(engine_id) {
        let _ = handle.keep_data(data);
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

/// Asks for a detachment, behind everything that was pushed before, and does not wait for the answer.
/// A full lane is as in [`push`].
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
            let _ = handle.keep_control(control);
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
