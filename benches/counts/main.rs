//! Instruction counts of the hot path, one shape per bench, against `baseline.rs`.
//!
//! Blind to shared cache lines and to the kernel, but the same at every run whatever else the machine
//! does, so this may gate where wall time may not. What a bench is handed is made, and what it
//! returns is dropped, outside the count.
#![expect(
    unreachable_pub,
    clippy::disallowed_types,
    reason = "what gungraun's macros expand to"
)]

mod baseline;
#[path = "../disk.rs"]
mod disk;
mod dispatch;
mod limits;
mod rings;
mod storage;
mod wire;
#[path = "../world.rs"]
mod world;

use gungraun::prelude::*;

use crate::{
    dispatch::dispatch_group, limits::limit_group, rings::ring_group, storage::storage_group,
    wire::wire_group,
};

main!(
    library_benchmark_groups = [
        ring_group,
        dispatch_group,
        limit_group,
        storage_group,
        wire_group
    ]
);
