//! Pacing arithmetic: what a consumer asked for, what it was given, and what may be read for it.
//!
//! Everything is a count of messages, entries or bytes, each with a type of its own: most faults of
//! this kind of system are unit mix-ups (apache/pulsar#18553). There is no thread, clock or topic
//! here; the one thing shared with another thread is the pair of counters in [`Permits`].
#![forbid(unsafe_code)]

mod average;
#[cfg(all(test, loom))]
mod mutants;
mod permits;
mod read_plan;
mod sync;
mod units;

pub use average::Average;
pub use permits::{AVAILABLE_MAX, Account, Grant, Granter, Permits};
pub use read_plan::{Budget, Stop, estimated_entries};
pub use units::{Bytes, Entries, Messages};
