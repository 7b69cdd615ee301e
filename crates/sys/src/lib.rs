//! The kernel, and all the I/O: the clock, the one wait of a shard, the disk by io_uring or by a
//! pread pool, files, metadata, pinning and the host report.
//!
//! What this crate does not know: frames, topics, entries, segments. A file is a [`FileId`] that
//! the caller chose and opened; memory goes in and comes back by value.
//!
//! Reading order: [`Poller`] (the one sleep) and [`Notifier`] (what ends it), then [`Disk`] (the
//! operation table above one of two drivers), then [`IoPool`] (the threads beside the shards).
#![expect(
    unsafe_code,
    reason = "system calls and the memory an io_uring writes to live here"
)]
#![expect(
    clippy::disallowed_types,
    reason = "this crate is where files and locks live"
)]
#![expect(
    clippy::disallowed_methods,
    reason = "this crate reads the clocks for everybody else"
)]
#![cfg(target_os = "linux")]

#[cfg(feature = "counting-alloc")]
pub mod alloc;

mod affinity;
mod cgroup;
mod clock;
mod disk;
#[cfg(test)]
mod fault;
mod file;
mod host;
mod host_facts;
mod kv;
mod ladder;
mod limits;
mod lock;
mod memory;
mod notify;
mod op;
mod poller;
mod pool;
mod probe;
mod probe_child;
mod probe_self;
mod sockets;
mod spawn;
mod spin;
mod syscall;
mod table;
mod tasks;
#[cfg(test)]
mod tests;
mod uring;

pub use affinity::{CpuSet, cpus_allowed, current_cpu, pin};
pub use cgroup::{Quota, quota};
pub use clock::{Clock, ManualClock, nanos};
pub use disk::{Disk, DiskStats, Shutdown};
pub use file::{Access, IoMode, SegmentFile, drop_page_cache, sync_dir, zero_range};
pub use host::{Fact, HostReport, Verdict, host_report, raise_open_files};
pub use kv::{Kv, KvWrite};
pub use limits::{
    RawLimits, Switches, process_rss_bytes, raw_fdatasync_ns, raw_limits, raw_read_bytes_per_s,
    raw_write_bytes_per_s, thread_cpu_ns, thread_switches,
};
pub use lock::{DirLock, LOCK_FILE, LockError};
pub use memory::{MEMORY_ALIGN, Memory};
pub use notify::Notifier;
pub use op::{Completion, FileId, FileTask, Fill, IoFault, KvBatch, Op};
pub use poller::{Poller, Woken};
pub use pool::{IoPool, pool_threads};
pub use probe::{Backend, DiskChoice, DiskPlan, DiskPlanError, DiskReport};
pub use sockets::{Ready, Sockets, TcpListener, TcpStream};
pub use spawn::spawn_named;
pub use spin::{SpinInput, SpinOff, SpinVerdict, spin_verdict};
