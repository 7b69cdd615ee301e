//! What a disk is asked and what it answers. Memory goes in and comes back by value.

use std::io;
use std::path::PathBuf;

use crate::kv::{Kv, KvWrite};
use crate::memory::Memory;

/// A file that the caller opened under a number of its own choice, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u64);

/// One operation. Every submitted one ends as exactly one [`Completion`].
#[derive(Debug)]
pub enum Op {
    /// Reads `len` bytes at `offset` into the front of `memory`. A short read is continued, EINTR
    /// and EAGAIN are retried: the completion has all `len` bytes, or an error.
    Read {
        /// Which file.
        file: FileId,
        /// Where in it, in bytes.
        offset: u64,
        /// How many bytes; at most the length of `memory`.
        len: u32,
        /// Where to. Comes back with the completion, also after an error.
        memory: Memory,
        /// O_DIRECT, where the file and the alignment allow; else through the page cache.
        direct: bool,
    },
    /// Writes all of `memory` at `offset` and makes it durable: O_DIRECT with RWF_DSYNC, or through
    /// the page cache where the file or the alignment does not allow that. It proves what it wrote
    /// and nothing else. EINTR and EAGAIN are retried, a short write is continued once.
    Commit {
        /// Which file.
        file: FileId,
        /// Where in it, in bytes.
        offset: u64,
        /// What to write. Comes back with the completion, also after an error.
        memory: Memory,
    },
    /// `fdatasync`. Never repeated after an error (runtime 3.10).
    Sync {
        /// Which file.
        file: FileId,
    },
    /// Work on files for the I/O pool, whatever the driver. Boxed: rare and large.
    Task(Box<FileTask>),
}

/// File work, done by the I/O pool (runtime 3.3). Paths are the caller's; parents must exist.
#[derive(Debug)]
pub enum FileTask {
    /// Makes the file: fills it, writes `header` at 0, syncs the file, then the directory. A
    /// failure leaves no file behind. `header` comes back.
    Create {
        /// The new file; AlreadyExists if there is one.
        path: PathBuf,
        /// Its length in bytes.
        bytes: u64,
        /// Its first bytes, written last: an unfinished file has no valid header.
        header: Memory,
        /// How the space is made.
        fill: Fill,
    },
    /// Renames the file, writes a new header at 0, syncs the file, then the directory. A failure
    /// after the rename removes the file. `header` comes back.
    Recycle {
        /// Its name so far.
        from_path: PathBuf,
        /// Its new name; AlreadyExists if there is such a file.
        to_path: PathBuf,
        /// Its new first bytes.
        header: Memory,
    },
    /// Writes zeros over a part of a file and syncs them, on a descriptor of its own: a write-back
    /// error is reported once to each, so this cannot take it away from the syncs of [`Op::Sync`].
    Prewrite {
        /// Which file.
        path: PathBuf,
        /// Where the zeros start, in bytes.
        offset: u64,
        /// How many.
        bytes: u64,
        /// At most so many bytes a second; 0 is no limit.
        bytes_per_s: u64,
    },
    /// Removes the file and syncs the directory. A file that is gone already is no error.
    Unlink {
        /// Which file.
        path: PathBuf,
    },
    /// Lets the page cache drop a file's clean pages.
    Forget {
        /// Which file.
        file: FileId,
    },
    /// Syncs a directory.
    SyncDir {
        /// Which directory.
        path: PathBuf,
    },
    /// Metadata, in one durable transaction.
    Kv(KvBatch),
}

/// How a new file gets its space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Zeros are written in pieces of 256 KiB, each synced; a sync over written blocks takes half
    /// the time of one over fresh ones (runtime 3.1, 3.2).
    Zeros {
        /// At most so many bytes a second, so that commits do not wait behind it; 0 is no limit.
        bytes_per_s: u64,
    },
    /// `fallocate`: at once, but unwritten; for a roll that finds no spare.
    Allocate,
}

/// Changes of metadata that happen together.
#[derive(Clone, Debug)]
pub struct KvBatch {
    /// The store.
    pub kv: Kv,
    /// The changes, in order.
    pub writes: Vec<KvWrite>,
}

/// How an operation ended.
#[derive(Debug)]
pub struct Completion {
    /// What the caller gave with [`Disk::submit`](crate::Disk::submit).
    pub user: u64,
    /// Bytes read, written or made, or 0 for what has no size. Errors are the kernel's, or a
    /// [`IoFault`] inside an [`io::Error`].
    pub result: io::Result<usize>,
    /// The memory that went in.
    pub memory: Option<Memory>,
}

/// A read that failed though no single system call reported an error (runtime 2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoFault {
    /// The file ends before the range does; kind `UnexpectedEof`.
    #[error("the file ends after {got} of {wanted} bytes")]
    Truncated {
        /// Bytes that are there; they are in the memory.
        got: usize,
        /// Bytes asked for.
        wanted: usize,
    },
    /// EINTR or EAGAIN nine times in a row; kind `ResourceBusy`.
    #[error("the kernel asked for one more try 9 times in a row")]
    Busy,
}

impl IoFault {
    /// The fault inside an error of [`Completion::result`], if it is one.
    #[must_use]
    pub fn of(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref::<Self>().copied()
    }
}

impl From<IoFault> for io::Error {
    fn from(fault: IoFault) -> Self {
        let kind = match fault {
            IoFault::Truncated { .. } => io::ErrorKind::UnexpectedEof,
            IoFault::Busy => io::ErrorKind::ResourceBusy,
        };
        Self::new(kind, fault)
    }
}

/// What a driver says about one try of an operation, before it is judged by the table.
#[derive(Debug)]
pub(crate) struct RawDone {
    pub(crate) user_data: u64,
    pub(crate) result: io::Result<usize>,
    /// Memory that travelled to a pool thread; the ring's stays in the table.
    pub(crate) memory: Option<Memory>,
}
