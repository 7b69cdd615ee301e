//! The pinned thread: joins the pure core (`pelton-broker`) to the kernel (`pelton-sys`).
//!
//! A shard is one thread that owns topics, their log, and everything attached to them. This crate has
//! its turn loop, the two-lane inbox it takes from, the mesh to other shards, what it does when idle,
//! and its orderly end. What it does not know: how messages are framed, and every rule of dispatch.
//!
//! Read `turn.rs` first. Handles on other threads talk to a shard through [`port`] alone.
//!
//! | file | has |
//! |---|---|
//! | `turn.rs` | the duty cycle: the whole machine on one page |
//! | `port.rs`, `port/` | what handles on other threads push into and are answered by |
//! | `inbox.rs`, `watched.rs`, `producers.rs`, `producer_port.rs` | every source as two lanes; rings of producers, receipts owed to them |
//! | `effects.rs`, `consumers.rs`, `disk.rs`, `requests.rs` | what the core asks for, carried out |
//! | `resident.rs` | what else lives on the thread: the connections of a server |
//! | `mesh.rs`, `routes.rs` | ring pair per ordered pair of shards, forwards of handlers; who owns a topic |
//! | `idle.rs`, `watch.rs` | spin, look again, park; busy time, long turns |
//! | `spawn.rs`, `plan.rs`, `start.rs`, `runtime.rs`, `driver.rs`, `stop.rs`, `error.rs` | open, recover, run, stop; why an open failed |
//! | `inspect.rs`, `limits.rs` | a directory read-only; what this machine can do at best |
#![forbid(unsafe_code)]

mod turn;

mod consumers;
mod disk;
mod effects;
mod inbox;
mod mesh;
mod producer_port;
mod producers;
mod requests;
mod resident;
mod routes;
mod watched;

mod idle;
mod watch;

mod driver;
mod error;
mod plan;
mod reached;
mod runtime;
mod spawn;
mod start;
mod stop;

pub mod inspect;
pub mod limits;
pub mod port;

#[cfg(test)]
mod tests;

pub use driver::Driver;
pub use error::OpenError;
pub use idle::Idle;
pub use plan::SERVER_FILE;
pub use port::*;
pub use resident::{MakeResident, Resident};
pub use routes::Router;
pub use runtime::{Runtime, ShutdownReport};
pub use spawn::{EngineOptions, SHARDS_MAX, open, open_driven};
pub use stop::ShardReport;
pub use turn::Work;
pub use watch::{LONG_TURN_NS, LongTurn, TurnWork};

// What handles need of the crates below, so that the facade needs no arrow to them.
pub use pelton_broker as broker;
pub use pelton_metrics as metrics;
pub use pelton_sys::{
    Clock, DiskChoice, DiskReport, Fact, HostReport, Kv, KvWrite, Verdict as FactVerdict,
    host_report, nanos, raise_open_files, spawn_named,
};

/// Sockets of a resident.
pub mod net {
    pub use pelton_sys::{Ready, Sockets, TcpListener, TcpStream};
}

/// The rings that handles and shards share.
pub mod rings {
    pub use pelton_rings::{Full, Receiver, Sender, SlotReceiver, SlotSender, slots, spsc};
}
