//! Load for an engine, and the truth about how it took it: named scenarios, an open-loop schedule, a
//! verifier that notices what was lost, doubled, reordered or sent without permits, and the machine's
//! own limits measured in the same run.
//!
//! [`run`] does one scenario and gives a [`Report`]; the binary `pelton bench` is a thin layer above
//! it. Reading order: `scenario.rs` (what can be asked for), `bench.rs` (what all scenarios share),
//! `embedded.rs` (the client loop), `runs/` (one file per kind of load), `report.rs`.
//!
//! Three rules:
//!
//! - Where a rate is given the loop is open: latency counts from the intended send time, and the
//!   report says when the generator itself was late.
//! - Every message carries producer and sequence and is checked when it arrives, warm-up included.
//! - A figure stands beside what the machine can do, measured in turns with it; ratios are medians
//!   over rounds, and noise is said.
//!
//! Deliberately absent: printing, exit codes, colours decided by a terminal; those are the binary's.
#![forbid(unsafe_code)]

mod error;
mod scenario;

mod bench;
mod runs;
mod tour;

mod embedded;
mod flood;
mod seen;
mod sender;
mod waker;

mod payload;
mod replay;
mod schedule;
mod sequences;
mod verify;

mod compare;
mod crossbeam;
mod limits;
mod neighbours;
mod workdir;

mod hgrm;
mod html;
mod report;
mod table;
pub mod units;

pub use bench::Watch;
pub use compare::{Comparison, Figure, Round};
pub use error::LoadError;
pub use hgrm::hgrm;
pub use html::escape;
pub use payload::{HEADER_BYTES, Header};
pub use replay::Events;
pub use report::{Cpu, Limits, Part, Report};
pub use scenario::{DiskDriver, Options, Scenario, durability_name};
pub use schedule::{Lag, Pace, Schedule};
pub use tour::run;
pub use verify::{Seen, Verdict, Verifier};
pub use workdir::WorkDir;

/// Digits of the generator's histograms: it is off the shards, so 216 KiB each do not matter.
pub(crate) const DIGITS: u8 = 3;
