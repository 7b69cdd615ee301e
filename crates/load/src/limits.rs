//! The machine's own limits, by way of the shard's raw measurements: rings without an engine around
//! them, the disk without a log.

use std::{io, num::NonZero, path::Path, thread};

use crate::LoadError;

/// What a round trip is taken to need when a time is turned into a number of them.
const RING_RTT_NS: u64 = 400;

/// What a message over a ring is taken to need, likewise.
const RING_NS: u64 = 25;

/// Threads of the raw ring pipeline.
const RING_THREADS: usize = 3;

/// A message over one SPSC ring and back over another, two spinning threads, for about `for_ns`; the
/// median in nanoseconds.
pub(crate) fn ring_rtt_ns(for_ns: u64) -> Result<u64, LoadError> {
    let rounds = usize::try_from(for_ns / RING_RTT_NS)
        .unwrap_or(usize::MAX)
        .clamp(1_000, 1 << 20);
    pelton::limits::ring_round_trip_ns(rounds)
        .map_err(|error| unmeasured("the ring round trip", Path::new("memory"), &error))
}

/// Messages per second over SPSC rings, from a producer to a consumer, for about `for_ns`; `None` with
/// fewer CPUs than its three threads, which spin.
pub(crate) fn ring_per_s(for_ns: u64) -> Result<Option<f64>, LoadError> {
    if thread::available_parallelism().map_or(1, NonZero::get) < RING_THREADS {
        return Ok(None);
    }
    let messages = (for_ns / RING_NS).max(10_000);
    pelton::limits::ring_pipeline_per_s(messages)
        .map(|per_s| Some(per_s as f64))
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
