//! The machine's own limits, by way of the shard's raw measurements: rings without an engine around
//! them, the disk without a log.

use std::{io, path::Path};

use pelton::limits::RoundTrips;

use crate::LoadError;

/// A message over one SPSC ring and back over another, two spinning threads, for `for_ns`.
pub(crate) fn ring_round_trips(for_ns: u64) -> Result<RoundTrips, LoadError> {
    pelton::limits::ring_round_trips(for_ns)
        .map_err(|error| unmeasured("the ring round trip", Path::new("memory"), &error))
}

/// Messages per second from this thread over one SPSC ring to a second thread and back over another,
/// for `for_ns`.
pub(crate) fn ring_per_s(for_ns: u64) -> Result<f64, LoadError> {
    pelton::limits::ring_pipeline_per_s(for_ns)
        .map(|per_s| per_s as f64)
        .map_err(|error| unmeasured("ring throughput", Path::new("memory"), &error))
}

/// One 4 KiB write and fdatasync over written blocks; the median in nanoseconds.
pub(crate) fn fdatasync_ns(dir: &Path, rounds: usize) -> Result<u64, LoadError> {
    pelton::limits::raw_fdatasync_ns(dir, rounds)
        .map_err(|error| unmeasured("write + fdatasync", dir, &error))
}

/// Sequential writes with a sync each 4 MiB, in bytes per second.
pub(crate) fn write_bytes_per_s(dir: &Path, bytes: u64) -> Result<f64, LoadError> {
    pelton::limits::raw_write_bytes_per_s(dir, bytes)
        .map(|per_s| per_s as f64)
        .map_err(|error| unmeasured("write bandwidth", dir, &error))
}

/// O_DIRECT reads of 256 KiB, four in flight, in bytes per second; `None` where the file system has
/// no O_DIRECT.
pub(crate) fn read_bytes_per_s(dir: &Path, bytes: u64) -> Result<Option<f64>, LoadError> {
    match pelton::limits::raw_read_bytes_per_s(dir, bytes) {
        Ok(per_s) => Ok(Some(per_s as f64)),
        Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(None),
        Err(error) => Err(unmeasured("read bandwidth", dir, &error)),
    }
}

fn unmeasured(what: &'static str, dir: &Path, error: &io::Error) -> LoadError {
    LoadError::Limit {
        what,
        dir: dir.to_owned(),
        why: error.to_string(),
    }
}
