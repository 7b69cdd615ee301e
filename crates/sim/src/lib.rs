//! A world from a seed: shards of the real core on one thread, with a fake clock, disks and metadata
//! that fail, clients that stall, leave, join and lie, and crashes at any step.
//!
//! A run is a list of steps. After each one, [`Violation`]s are looked for by an oracle that knows
//! only what went into the core and what came out. A failure says the line that runs it again, and
//! [`Failure::shrink`] drops every step that it does not need.
//!
//! To add something that can happen: a variant in `steps.rs`, an arm in `world.rs` or `actions.rs`, what it
//! means in `oracle.rs` and `sub.rs`. Events, requests and effects of the core are named in `core.rs` alone.
#![forbid(unsafe_code)]

mod actions;
mod attach;
mod chance;
mod clients;
mod core;
mod counts;
mod cursor;
mod disk;
mod election;
mod keeping;
mod keys;
mod meta;
mod oracle;
mod reopen;
mod replies;
mod run;
mod sequences;
mod shrink;
mod steps;
mod sub;
mod unstored;
mod wishes;
mod world;

pub use oracle::Violation;
pub use run::{Failure, run_bytes, run_seed};
pub use world::Totals;
