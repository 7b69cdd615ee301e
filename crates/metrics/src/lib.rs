//! What a shard counts and times: one closed table of counters, HDR histograms, snapshots that merge,
//! and the Prometheus page.
//!
//! What rate limits did to a subscription is counted by the subscription ([`Throttled`]); here it gets
//! its names.
//!
//! A shard owns one [`ShardMetrics`] and writes to it without atomics or locks; a collector gets a
//! filled set by exchange, merges it and reads it. Recording takes a few nanoseconds and allocates
//! nothing.
//!
//! Deliberately absent: a global registry, a clock (every duration is handed in as nanoseconds) and
//! rates (a reader takes the difference of two snapshots, [`Counters::since`]).
#![forbid(unsafe_code)]

mod counter;
mod histogram;
mod snapshot;
mod text;
mod throttled;

pub use counter::{Counter, Counters, Unit};
pub use histogram::{Histogram, MAX_NS, Summary};
pub use snapshot::ShardMetrics;
pub use text::{Kind, Page, shard_page};
pub use throttled::{Field, Throttled, ThrottledRow, throttled_page};
