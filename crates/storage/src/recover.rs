//! Opening a log.
use std::collections::BTreeMap;

use crate::cursor::{CursorState, Image};
use crate::entry::{SubKey, TopicKey};
use crate::files::Files;
use crate::index::Index;
use crate::log::Log;
use crate::op::{DiskError, SegmentId};
use crate::opened::Opened;
use crate::options::Options;
use crate::position::LedgerList;
use crate::scan::ReadAt;
use crate::sequences::Sequences;

/// Entries and cursors of a topic that was found in the log and is not open yet.
#[derive(Debug, Default)]
pub(crate) struct RecoveredTopic {
    pub(crate) ledgers: LedgerList,
    pub(crate) index: Index,
    pub(crate) cursors: BTreeMap<SubKey, Image>,
    pub(crate) sequences: Sequences,
}

/// A segment file found in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Number from the file's name.
    pub id: SegmentId,
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// Something the shell must do to the files, in the order given, before the first turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Write zeros over a range of whole pages, and sync the file.
    Zero {
        /// Segment to write to.
        segment: SegmentId,
        /// Byte offset, a multiple of 4 KiB.
        offset: u64,
        /// Bytes, a multiple of 4 KiB.
        bytes: u64,
    },
    /// `fdatasync` the file: what was accepted may only be in the page cache.
    Sync(SegmentId),
    /// Remove the file and sync the directory: it holds nothing and cannot be used.
    Unlink(SegmentId),
}

/// A log that was opened.
#[derive(Debug)]
pub struct Recovered {
    /// The log, ready for `open_topic`.
    pub log: Log,
    /// What the shell must carry out first, in order. If it is interrupted, recovering again
    /// comes to the same result.
    pub repairs: Vec<Repair>,
    /// Ack state of each subscription that has one.
    pub cursors: Vec<CursorState>,
    /// Topics with stored entries or cursors.
    pub topics: Vec<TopicKey>,
    /// What was found.
    pub report: RecoverReport,
}

/// What recovery found, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoverReport {
    /// Segments with blocks.
    pub segments: u64,
    /// Of these, how many were read block by block, because they had no good footer.
    pub segments_scanned: u64,
    /// Ready spares.
    pub spares: u64,
    /// Blocks accepted by scanning.
    pub blocks_scanned: u64,
    /// Entries indexed.
    pub entries: u64,
    /// Ledgers with entries.
    pub ledgers: u64,
    /// Torn end that was cut: segment and byte offset.
    pub torn: Option<(SegmentId, u64)>,
    /// Segments with live entries that are missing and were accepted as lost.
    pub lost_segments: Vec<SegmentId>,
    /// True if the last stop was orderly.
    pub clean: bool,
    /// Sequence of the last block, 0 if there is none. What is recovered is on disk, repairs done.
    pub end: u64,
    /// Sequence that the log is known to have reached, if that is more and was accepted as lost.
    pub reached: Option<u64>,
}

/// Why a log could not be opened. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoverError {
    /// Something that was promised is damaged.
    #[error(
        "{segment} is damaged at byte {offset}: {why} (ledgers {ledgers:?}); put an intact copy of the \
         directory in its place"
    )]
    Damaged {
        /// File.
        segment: SegmentId,
        /// Byte offset of the first bad block.
        offset: u64,
        /// Ledgers in the segment, those of the bad block first if they are known.
        ledgers: Vec<u64>,
        /// What is wrong.
        why: String,
    },
    /// Segments with live entries are not there.
    #[error(
        "segments with live entries are missing: {}; put them back, or open with accept_loss and lose \
         what they held",
        names(segments)
    )]
    Missing {
        /// Their numbers.
        segments: Vec<SegmentId>,
    },
    /// The log ends before a place that it is known to have reached.
    #[error(
        "the log ends at block {found} and was at block {reached} when the engine was last opened or \
         closed: files were cut or removed since; put them back from a copy, or see what is left \
         with Builder::accept_loss"
    )]
    Short {
        /// Sequence of its last block, 0 if it has none.
        found: u64,
        /// Sequence it had reached.
        reached: u64,
    },
    /// A file belongs to another log.
    #[error(
        "{segment} belongs to another log ({found:032x}, this is {expected:032x}): move it out of the \
         directory"
    )]
    Foreign {
        /// File.
        segment: SegmentId,
        /// Identity it carries.
        found: u128,
        /// Identity of the others.
        expected: u128,
    },
    /// A file has the name of a segment and is none.
    #[error("{segment} is not a segment of a log: move it out of the directory")]
    NotASegment {
        /// File.
        segment: SegmentId,
    },
    /// A file was written in another format.
    #[error(
        "{segment} has format {found} and this version reads and writes format {expected}: open the \
         directory with the version that wrote it, or start with an empty one"
    )]
    Version {
        /// File.
        segment: SegmentId,
        /// Format it has.
        found: u32,
        /// Format of this version.
        expected: u32,
    },
    /// A file could not be read.
    #[error(
        "{segment} could not be read at byte {offset}: {error}; make sure that the disk is healthy"
    )]
    Read {
        /// File.
        segment: SegmentId,
        /// Byte offset.
        offset: u64,
        /// The kernel's answer.
        error: DiskError,
    },
    /// The options contradict each other; the text says which.
    #[error("bad options: {0}")]
    Options(String),
}

fn names(segments: &[SegmentId]) -> String {
    let names: Vec<String> = segments.iter().map(SegmentId::to_string).collect();
    names.join(", ")
}

impl Log {
    /// Opens a log from its segment files, or makes a new one if there are none.
    ///
    /// Reads only; what must be changed comes back as [`Repair`]s. `read` fills the slice from an
    /// offset and gives the bytes read, 0 at the end of the file; it should read with O_DIRECT
    /// where it can, because after a failed sync the page cache tells lies (`spec/runtime.md`
    /// 3.10). Torn ends of unsynced commits are cut; damage to what was promised is an error.
    ///
    /// # Errors
    /// [`RecoverError`]; nothing was changed.
    pub fn recover(
        options: Options,
        segments: &[SegmentInfo],
        read: &mut ReadAt<'_>,
    ) -> Result<Recovered, RecoverError> {
        options.check().map_err(RecoverError::Options)?;
        let (files, end, needed) = Files::open(segments, read, options.accept_loss)?;
        Opened::open(options, files, end, needed)
    }
}
