//! Pacing arithmetic: what a consumer asked for, what it was given, and what may be read for it.
//!
//! Everything is a count of messages, entries or bytes, each with a type of its own: most faults of
//! this kind of system are unit mix-ups (apache/pulsar#18553). There is no thread, clock or topic
//! here; the one thing shared with another thread is the pair of counters in [`Permits`].
//!
//! A pass of a dispatcher asks [`Limiter`] what rate limits leave to it, plans with a [`Budget`], and
//! tells the limiter what it took; the example there is the whole of it. [`Coordinator`] and
//! [`Lessee`] carry a limit across shards, between passes.
#![forbid(unsafe_code)]

mod average;
mod lease;
mod limiter;
#[cfg(all(test, loom))]
mod mutants;
mod permits;
mod rate;
mod read_plan;
mod scope;
mod sync;
#[cfg(all(test, not(loom)))]
mod tests;
mod throttle;
mod token_bucket;
mod units;

pub use average::Average;
pub use lease::{Ask, Coordinator, Lease, Lessee};
pub use limiter::{Allowance, Closed, Limiter, Reservation, Terms};
pub use permits::{AVAILABLE_MAX, Account, Grant, Granter, Permits};
pub use rate::{DispatchRate, Limits, PublishRate, Rate, is_exempt};
pub use read_plan::{Budget, Stop, estimated_entries, estimated_entries_of_bytes};
pub use scope::{Scope, ScopeKind, Unit, Wake};
pub use throttle::{Throttle, ThrottleCounts, Withheld};
pub use token_bucket::TokenBucket;
pub use units::{Bytes, Entries, Messages};
