//! Why an engine could not be opened.

use std::io;
use std::path::PathBuf;

use pelton_broker::RestoreError;
use pelton_broker::storage::RecoverError;
use pelton_sys::{DiskPlanError, LockError};

/// Why an engine could not be opened. Each says what was tried, on what, why it failed and what to
/// do. What was repaired until then stays repaired; a second open goes on from there.
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
        "{} is not a file of this engine: is this the right directory? An engine needs one of its own",
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
    /// The metadata cannot be opened or read; the text names the file.
    #[error(
        "{0}; make sure that the disk is healthy and has space, and that the directory is writable"
    )]
    Metadata(io::Error),
    /// The metadata is gone, the entries are there.
    #[error(
        "{} is missing or empty, but there are segments of topics that it should name: put it back \
         from a copy, or give the engine another directory",
        path.display()
    )]
    NoMetadata {
        /// Where it should be.
        path: PathBuf,
    },
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
    #[error("repair: {source}; make sure that the disk is healthy, has space and is writable")]
    Repair {
        /// The file.
        path: PathBuf,
        /// What was tried on it, and the kernel's answer.
        source: io::Error,
    },
    /// The threads of the I/O pool cannot be had.
    #[error("start the I/O pool: {0}; `pelton check` says what this machine lacks")]
    Pool(io::Error),
    /// A shard could not get a thread, a ring or a descriptor.
    #[error("start shard {shard}: {source}; `pelton check` says what this machine lacks")]
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

#[cfg(test)]
mod tests {
    use pelton_broker::storage::{DiskError, SegmentId};

    use super::*;

    /// Each says what was tried, on what, why it failed and what to do, each of it once.
    #[test]
    fn errors_of_an_open_read_in_full() {
        let why = || io::Error::new(io::ErrorKind::PermissionDenied, "no");
        let recover = |source| OpenError::Recover {
            dir: PathBuf::from("/d/shard-0"),
            source,
        };
        let segment = SegmentId(3);
        let cases = [
            (
                OpenError::Metadata(io::Error::other("open metadata /d/meta.redb: no")),
                "open metadata /d/meta.redb: no; make sure that the disk is healthy and has space, and \
                 that the directory is writable",
            ),
            (
                OpenError::Repair {
                    path: PathBuf::from("/d/shard-0/seg-3"),
                    source: io::Error::other("sync /d/shard-0/seg-3: no"),
                },
                "repair: sync /d/shard-0/seg-3: no; make sure that the disk is healthy, has space and is \
                 writable",
            ),
            (
                OpenError::Pool(why()),
                "start the I/O pool: no; `pelton check` says what this machine lacks",
            ),
            (
                OpenError::Start {
                    shard: 1,
                    source: why(),
                },
                "start shard 1: no; `pelton check` says what this machine lacks",
            ),
            (
                OpenError::Lock(LockError::Io {
                    path: PathBuf::from("/d/LOCK"),
                    source: why(),
                }),
                "lock /d/LOCK: no; check the permissions of the directory and its file system",
            ),
            (
                recover(RecoverError::Missing {
                    segments: vec![segment, SegmentId(31)],
                }),
                "recover /d/shard-0: segments with live entries are missing: \
                 seg-0000000000000003.log, seg-000000000000001f.log; put them back, or open with \
                 accept_loss and lose what they held",
            ),
            (
                recover(RecoverError::Damaged {
                    segment,
                    offset: 4_096,
                    ledgers: vec![7],
                    why: "a checksum is wrong".to_owned(),
                }),
                "recover /d/shard-0: seg-0000000000000003.log is damaged at byte 4096: a checksum is \
                 wrong (ledgers [7]); put an intact copy of the directory in its place",
            ),
            (
                recover(RecoverError::Read {
                    segment,
                    offset: 0,
                    error: DiskError {
                        errno: 5,
                        text: "no".to_owned(),
                    },
                }),
                "recover /d/shard-0: seg-0000000000000003.log could not be read at byte 0: no; make \
                 sure that the disk is healthy",
            ),
        ];
        for (error, text) in cases {
            assert_eq!(error.to_string(), text);
        }
    }
}
