//! The segment log of one shard as a state machine: append, group commit, read, recover.
//!
//! Nothing here touches a file, a thread, a clock or a random source. The shell hands in entries,
//! `now` and the outcome of disk operations, and carries out the [`DiskOp`]s it is given.
#![forbid(unsafe_code)]

mod block;
mod commit;
mod cursor;
mod entry;
mod index;
mod log;
mod op;
mod options;
mod page;
mod position;
mod recover;
mod stats;
mod tail;
mod topic;

pub use block::Block;
pub use cursor::{AckDelta, CursorState};
pub use entry::{Durability, EntryMeta, NewEntry, SubKey, Ticket, TopicKey, TopicSlot};
pub use log::{Appended, Fetch, Log, LogEvent, Place, Refused};
pub use op::{DiskDone, DiskError, DiskOp, DiskOpKind, Fill, SegmentId};
pub use options::Options;
pub use page::{PAGE_BYTES, PageBuf};
pub use position::Position;
pub use recover::{RecoverError, RecoverReport, Recovered, Repair, SegmentInfo};
pub use stats::LogStats;
