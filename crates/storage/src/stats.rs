//! Counters and gauges of a log.

/// Counters (rising) and gauges of one log, taken by [`crate::Log::stats`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Commit blocks written, seals and marks included.
    pub blocks_written: u64,
    /// Bytes written, padding included.
    pub bytes_written: u64,
    /// Bytes of bodies in written blocks.
    pub body_bytes_written: u64,
    /// Entries in written blocks.
    pub entries_written: u64,
    /// Syncs that came back well.
    pub syncs: u64,
    /// Segments sealed.
    pub segments_sealed: u64,
    /// Segments made.
    pub segments_created: u64,
    /// Segments allocated in a hurry, because a roll found no spare.
    pub segments_allocated: u64,
    /// Segments used again.
    pub segments_recycled: u64,
    /// Segments unlinked.
    pub segments_unlinked: u64,
    /// Gauge: segments with live entries, the active one included.
    pub segments_in_use: u64,
    /// Gauge: spares ready.
    pub spares_ready: u64,
    /// Gauge: segments with unreadable entries.
    pub segments_quarantined: u64,
    /// Checkpoints of the ack state completed.
    pub checkpoints: u64,
    /// Bytes of cursor records and checkpoints written.
    pub cursor_bytes_written: u64,
    /// Reads that came back well.
    pub reads: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Reads of a segment that is not sealed: the tail memory is too small.
    pub reads_active_segment: u64,
    /// Reads that were repeated.
    pub reads_repeated: u64,
    /// Entries that could not be read.
    pub entries_failed: u64,
    /// Gauge: reads in flight.
    pub reads_in_flight: u64,
    /// Gauge: read buffers in flight or kept.
    pub read_buffers_out: u64,
    /// Gauge: bytes appended and not yet as durable as promised.
    pub gathered_bytes: u64,
    /// Gauge: memory of durable topics' tails, bytes.
    pub tail_bytes: u64,
    /// Gauge: memory of memory topics' backlog, bytes.
    pub memory_bytes: u64,
    /// Gauge: memory let go here and still held by a delivery, bytes.
    pub lent_bytes: u64,
    /// Appends answered `NoMemory`.
    pub held_appends: u64,
    /// Gauge: 1 while publishing is stopped for want of disk space.
    pub disk_full: u64,
    /// Gauge: 1 once the log is poisoned.
    pub poisoned: u64,
}
