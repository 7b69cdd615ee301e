//! How far the log of each shard is known to have come, kept beside the topics in the metadata.
//!
//! A log alone cannot tell that its end, or all of it, was removed: what is left looks like an earlier
//! crash. So each shard writes down the last block that is on disk, at its open and at its orderly
//! stop. No crash takes that block away, so a log that ends before it was tampered with.

use std::path::Path;

use pelton_sys::{Kv, KvWrite};

use crate::disk::shard_dir;
use crate::plan::{META_FILE, Records};
use crate::start::list_segments;

/// Followed by the index of the shard; the value is the sequence as decimal text.
const PREFIX: &str = "reached/";

/// Sequence for each of `shards`, 0 where none was written down.
pub(crate) fn load(records: &Records, shards: usize) -> Vec<u64> {
    let mut reached = vec![0; shards];
    for (key, value) in records {
        if let Some(shard) = key
            .strip_prefix(PREFIX)
            .and_then(|index| index.parse().ok())
            && let Some(place) = reached.get_mut::<usize>(shard)
            && let Ok(text) = std::str::from_utf8(value)
        {
            *place = text.parse().unwrap_or(0);
        }
    }
    reached
}

/// Writes it down, durably.
///
/// # Errors
/// As [`Kv::apply`].
pub(crate) fn store(kv: &Kv, shard: u32, sequence: u64) -> std::io::Result<()> {
    kv.apply(&[KvWrite {
        key: format!("{PREFIX}{shard}"),
        value: Some(sequence.to_string().into_bytes()),
    }])
}

/// Whether there are segments and no metadata. No crash leaves that: the metadata is on disk before
/// the first segment is made.
pub(crate) fn lacks_metadata(dir: &Path, shards: usize) -> bool {
    let has_metadata = dir
        .join(META_FILE)
        .metadata()
        .is_ok_and(|file| file.len() > 0);
    let has_segments = |shard: usize| {
        let segments = list_segments(&shard_dir(dir, shard as u32));
        segments.is_ok_and(|segments| !segments.is_empty())
    };
    !has_metadata && (0..shards).any(has_segments)
}
