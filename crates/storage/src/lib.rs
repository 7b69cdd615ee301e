//! The segment log of one shard as a state machine: append, group commit, read, recover.
//!
//! Nothing here touches a file, a thread, a clock or a random source. The shell hands in entries,
//! `now` and the outcome of disk operations, and carries out the [`DiskOp`]s it is given.
#![forbid(unsafe_code)]

mod ahead;
mod attach;
mod block;
mod checkpoint;
mod commit;
mod cursor;
mod encode;
mod entry;
mod files;
mod footer;
mod format;
mod gather;
mod index;
mod log;
mod lookup;
mod op;
mod opened;
mod options;
mod page;
mod partial;
mod position;
mod read;
mod recover;
mod scan;
mod segments;
mod sequences;
mod spares;
mod stats;
mod tail;
mod topic;

#[cfg(test)]
mod tests;

pub use block::Block;
pub use cursor::{AckDelta, CursorState};
pub use entry::{Durability, EntryMeta, Hints, NewEntry, SubKey, Ticket, TopicKey, TopicSlot};
pub use log::{Appended, Fetch, Log, LogEvent, Place, Refused};
pub use op::{DiskDone, DiskError, DiskOp, DiskOpKind, Fill, SegmentId};
pub use options::Options;
pub use page::{PAGE_BYTES, PageBuf};
pub use position::Position;
pub use recover::{RecoverError, RecoverReport, Recovered, Repair, SegmentInfo};
pub use scan::ReadAt;
pub use stats::LogStats;
