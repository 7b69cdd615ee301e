//! Sizes of a log. Every field is given; `Default` is what the engine starts from.
use crate::block::{CLASSES, class_bytes, class_charge};
use crate::page::PAGE_BYTES;

/// Smallest [`Options::memory_backlog_bytes`].
const MEMORY_BACKLOG_BYTES_MIN: u64 = 64 << 10;

/// Sizes and bounds of one shard's log. Bytes unless the name says otherwise.
#[derive(Clone, Debug)]
pub struct Options {
    /// Length of a new segment; at least 64 KiB, a multiple of 4 KiB, below 4 GiB.
    pub segment_bytes: u64,
    /// Memory for entries of durable topics that are kept after their write.
    pub tail_bytes: u64,
    /// Read buffers of `read_buffer_bytes` each, in flight or cached.
    pub read_buffers: u32,
    /// Longest merged read; 256 KiB by `spec/runtime.md` 2.5.
    pub read_buffer_bytes: u32,
    /// Bound on what is appended to durable topics and not yet as durable as promised.
    pub gather_bytes_max: u64,
    /// Size at which a commit block is cut.
    pub block_bytes: u32,
    /// Blocks gathered while a commit is in flight become durable with one write of at most this,
    /// unless one block is longer.
    pub commit_bytes: u32,
    /// Longest inline write per turn; with `written` topics blocks are cut at that size too.
    pub slice_bytes: u32,
    /// Ready or coming segments to keep: one for the next roll, one for emergencies.
    pub spares_min: u32,
    /// Consumed segments beyond this many are unlinked, not recycled.
    pub spares_max: u32,
    /// Bound on the memory of memory topics' backlog, 64 KiB or more: [`Options::memory_entry_bytes_max`].
    pub memory_backlog_bytes: u64,
    /// Memory that the log has let go of and deliveries still hold, from which on it is crowded:
    /// [`crate::Log::is_crowded`].
    pub lent_bytes_max: u64,
    /// Longest body.
    pub entry_bytes_max: u32,
    /// Longest time acks wait for a commit if nothing else is committed, nanoseconds.
    pub ack_delay_ns: u64,
    /// Identity of a new log; random, from the shell. An existing log keeps its own.
    pub log_id: u128,
    /// Sequence of the block that the log is known to have had on disk, 0 if none is known: an end
    /// before it is a loss. See [`crate::Log::synced_sequence`].
    pub reached: u64,
    /// Open although segments with live entries are missing, or the end: the loss is reported, not refused.
    pub accept_loss: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes: 64 << 20,
            tail_bytes: 32 << 20,
            read_buffers: 64,
            read_buffer_bytes: 256 << 10,
            gather_bytes_max: 8 << 20,
            block_bytes: 256 << 10,
            commit_bytes: 2 << 20,
            slice_bytes: 64 << 10,
            spares_min: 2,
            spares_max: 8,
            memory_backlog_bytes: 256 << 20,
            lent_bytes_max: 64 << 20,
            entry_bytes_max: (5 << 20) + (16 << 10),
            ack_delay_ns: 100_000_000,
            log_id: 0,
            reached: 0,
            accept_loss: false,
        }
    }
}

impl Options {
    /// Longest payload of a memory topic, in bytes: its block alone fills `memory_backlog_bytes`.
    #[must_use]
    pub fn memory_entry_bytes_max(&self) -> usize {
        let fits = |class: &u8| class_charge(*class) <= self.memory_backlog_bytes;
        let largest = (0..CLASSES as u8).rev().find(fits);
        largest.map_or(0, class_bytes)
    }

    /// Whether a log can work with these sizes.
    ///
    /// # Errors
    /// Which option is wrong, its value and what it must be.
    pub fn check(&self) -> Result<(), String> {
        let page = PAGE_BYTES as u64;
        let lengths = [
            ("segment_bytes", self.segment_bytes),
            ("read_buffer_bytes", u64::from(self.read_buffer_bytes)),
            ("block_bytes", u64::from(self.block_bytes)),
            ("commit_bytes", u64::from(self.commit_bytes)),
            ("slice_bytes", u64::from(self.slice_bytes)),
        ];
        if self.segment_bytes < 16 * page || self.segment_bytes > u64::from(u32::MAX) {
            let bytes = self.segment_bytes;
            return Err(format!(
                "segment_bytes is {bytes}: it must be at least 64 KiB and below 4 GiB"
            ));
        }
        for (name, bytes) in lengths {
            if bytes == 0 || !bytes.is_multiple_of(page) {
                return Err(format!("{name} is {bytes}: it must be a multiple of 4 KiB"));
            }
        }
        if self.read_buffers == 0 {
            return Err("read_buffers is 0: it must be 1 or more".to_owned());
        }
        if self.spares_min < 2 || self.spares_max < self.spares_min {
            let (min, max) = (self.spares_min, self.spares_max);
            return Err(format!(
                "spares_min is {min}, spares_max {max}: 2 <= spares_min <= spares_max"
            ));
        }
        if self.memory_backlog_bytes < MEMORY_BACKLOG_BYTES_MIN {
            let bytes = self.memory_backlog_bytes;
            return Err(format!(
                "memory_backlog_bytes is {bytes}: it must be at least 64 KiB"
            ));
        }
        Ok(())
    }
}
