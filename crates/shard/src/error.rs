//! Why an engine could not be opened.

use std::io;
use std::path::PathBuf;

use pelton_broker::RestoreError;
use pelton_broker::storage::RecoverError;
use pelton_sys::{DiskPlanError, LockError};

/// Why an engine could not be opened. Each says what was tried, on what, why it failed and what to
/// do. Nothing that is stored was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The options contradict each other or the machine.
    #[error("bad options: {0}")]
    Options(String),
    /// The directory cannot be made or read.
    #[error("open directory {}: {source}: check the path and its permissions", path.display())]
    Directory {
        /// The directory or the file in it.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another process (or another engine of this one) holds the directory, or the lock cannot be
    /// taken.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// Something in the directory is not the engine's.
    #[error(
        "{} is not a file of this engine: move it away, or give the engine a directory of its own",
        path.display()
    )]
    Foreign {
        /// What was found.
        path: PathBuf,
    },
    /// The directory was made with more shards.
    #[error(
        "the directory holds {found} shards: open it with shards({found}) or more, not {asked}"
    )]
    TooFewShards {
        /// Shards in the directory.
        found: usize,
        /// Shards asked for.
        asked: usize,
    },
    /// The disk driver that was asked for cannot be had.
    #[error(transparent)]
    Driver(#[from] DiskPlanError),
    /// The metadata cannot be opened or read.
    #[error("open metadata: {0}")]
    Metadata(io::Error),
    /// The metadata file is damaged, or not a store of this engine; it was left as it is.
    #[error(
        "{0}: put it back from a copy of the whole directory, segments and metadata belong together"
    )]
    MetadataDamaged(io::Error),
    /// A metadata record makes no sense.
    #[error(transparent)]
    Record(#[from] RestoreError),
    /// The log of a shard cannot be recovered.
    #[error("recover {}: {source}", dir.display())]
    Recover {
        /// The shard's folder.
        dir: PathBuf,
        /// What was found.
        source: RecoverError,
    },
    /// Recovery could not bring a file into the state it needs.
    #[error("repair {}: {source}", path.display())]
    Repair {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A shard could not get a thread, a ring or a descriptor.
    #[error("start shard {shard}: {source}")]
    Start {
        /// The shard.
        shard: u32,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl OpenError {
    /// What [`pelton_sys::Kv::open`] says.
    pub(crate) fn metadata(error: io::Error) -> OpenError {
        match error.kind() {
            io::ErrorKind::InvalidData => OpenError::MetadataDamaged(error),
            _ => OpenError::Metadata(error),
        }
    }
}
