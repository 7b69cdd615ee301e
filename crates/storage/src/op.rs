//! What the log asks the shell to do with the disk, and what it is told about it.
use crate::page::PageBuf;

/// A segment's rising number, never used twice within a log; its file is `seg-{:016x}.log`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl std::fmt::Display for SegmentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seg-{:016x}.log", self.0)
    }
}

/// One operation for the shell. Answered by exactly one [`DiskDone`] of the same `id`.
#[derive(Debug)]
pub struct DiskOp {
    /// Number of the operation, unique within the log.
    pub id: u64,
    /// What to do.
    pub kind: DiskOpKind,
}

/// What to do. All offsets and lengths are multiples of 4 KiB.
#[derive(Debug)]
pub enum DiskOpKind {
    /// Write `buffer` (whole pages, at most `slice_bytes`) at `offset`, inline, buffered. The shell
    /// reports the bytes written and gives the buffer back; it does not go on after a short write.
    Write {
        /// Segment written to.
        segment: SegmentId,
        /// Byte offset in its file.
        offset: u64,
        /// What to write: the whole window.
        buffer: PageBuf,
    },
    /// Write `buffer` (whole pages) at `offset` and make it durable, past the page cache where that
    /// can be had. Not inline. All of it or an error; the buffer comes back.
    Commit {
        /// Segment written to.
        segment: SegmentId,
        /// Byte offset in its file.
        offset: u64,
        /// What to write: the whole window.
        buffer: PageBuf,
    },
    /// `fdatasync`. Never repeated after an error (`spec/runtime.md` 3.10).
    Sync {
        /// Segment to sync.
        segment: SegmentId,
    },
    /// Fill `buffer` from `offset`. Report the bytes read.
    Read {
        /// Segment read from.
        segment: SegmentId,
        /// Byte offset in its file.
        offset: u64,
        /// Memory to read into, as long as what is wanted.
        buffer: PageBuf,
        /// True if the segment is sealed and O_DIRECT is safe; otherwise read through the cache.
        direct: bool,
    },
    /// Make a file, fill it, write `header` at 0, fdatasync it and the directory; then report. On
    /// an error nothing of the file may stay.
    Create {
        /// Segment to make.
        segment: SegmentId,
        /// Length of the file in bytes.
        bytes: u64,
        /// First page.
        header: PageBuf,
        /// How the rest is filled.
        fill: Fill,
    },
    /// Rename the file of `from` to that of `to`, write `header` at 0, fdatasync file and
    /// directory; then report.
    Recycle {
        /// Consumed segment.
        from: SegmentId,
        /// Its new name.
        to: SegmentId,
        /// First page of the new life.
        header: PageBuf,
    },
    /// Write zeros over a part of an open segment and fdatasync them, at no more than 50 MB/s, and on
    /// a descriptor of its own: a write-back error is then reported to the log's own sync as well.
    Prewrite {
        /// Segment written to.
        segment: SegmentId,
        /// Byte offset in its file.
        offset: u64,
        /// Bytes of zeros.
        bytes: u64,
    },
    /// Unlink the file and sync the directory.
    Unlink {
        /// Segment to remove.
        segment: SegmentId,
    },
    /// Drop the pages of a sealed segment from the page cache (advice only).
    Forget {
        /// Sealed segment.
        segment: SegmentId,
    },
}

/// How a new segment's file is filled behind its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeros, as fast as the disk takes them: somebody waits for this short segment.
    Zeros,
    /// Zeros at no more than 50 MB/s (`spec/runtime.md` 3.2): a spare for later.
    ZerosPaced,
    /// `fallocate` only: the pool was empty at a roll, or the first receipt waits for it.
    Allocate,
}

/// How an operation ended.
#[derive(Debug)]
pub struct DiskDone {
    /// Number of the operation.
    pub id: u64,
    /// Bytes written or read (0 for the others), or the error.
    pub result: Result<usize, DiskError>,
    /// The buffer of a Write, Commit or Read, and of a Create or Recycle the header's if it is at hand.
    pub buffer: Option<PageBuf>,
}

/// The kernel's answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct DiskError {
    /// Error number as the kernel gave it; 0 if there was none.
    pub errno: i32,
    /// What was tried, on what, and the kernel's words.
    pub text: String,
}

impl DiskError {
    /// EINTR: the call was interrupted before it did anything.
    pub const EINTR: i32 = 4;
    /// EIO: the device failed.
    pub const EIO: i32 = 5;
    /// EAGAIN: the kernel could not take it now.
    pub const EAGAIN: i32 = 11;
    /// ENOSPC: no room on the file system.
    pub const ENOSPC: i32 = 28;
    /// EDQUOT: no room left to this user.
    pub const EDQUOT: i32 = 122;

    /// True for "no room".
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.errno == Self::ENOSPC || self.errno == Self::EDQUOT
    }
}
