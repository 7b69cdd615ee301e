//! The run: blocks laid out one behind the other in memory, which one operation writes and makes
//! durable, past the page cache. One such commit is in flight; the next run fills meanwhile.
//!
//! A commit proves what it wrote and nothing else, so nothing unsynced may lie before it in the
//! chain. That holds as long as nothing is written inline but seals: a log with a `written` topic,
//! whose receipts are for the page cache, writes every block inline and syncs behind it.
use super::*;

/// Blocks that become durable together.
#[derive(Debug)]
pub(super) struct Run {
    segment: u32,
    /// Offset in the segment.
    offset: u64,
    /// The window is what is laid out.
    buffer: PageBuf,
    pub(super) blocks: VecDeque<Unsynced>,
}

impl Run {
    /// Memory for a block of so many bytes behind the others; the run is as long as that now.
    pub(super) fn extend(&mut self, bytes: usize) -> &mut [u8] {
        let from = self.buffer.len();
        self.buffer.set_len(from + bytes);
        &mut self.buffer.as_mut_slice()[from..]
    }

    /// The last block came out shorter by so many bytes.
    pub(super) fn cut(&mut self, bytes: usize) {
        self.buffer.set_len(self.buffer.len() - bytes);
    }
}

impl Store {
    /// A `written` topic was opened: from now on every block is written inline.
    pub(crate) fn write_inline(&mut self, slice_bytes: u32) {
        self.inline = true;
        let gather = &mut self.gather;
        gather.batch_bytes_max = gather.batch_bytes_max.min(slice_bytes as usize);
    }

    /// Nothing waits in a run, and none is in flight.
    pub(super) fn has_no_run(&self) -> bool {
        self.run.is_none() && self.committing.is_empty()
    }

    pub(super) fn run_bytes(&self) -> usize {
        self.run.as_ref().map_or(0, |run| run.buffer.len())
    }

    /// Whether a block of so many bytes may be laid out now; if not, an operation in flight has to
    /// end first.
    pub(super) fn may_lay_out(&self, bytes: usize) -> bool {
        if self.inline {
            return self.has_no_run();
        }
        // A part of a checkpoint fills what the batch leaves.
        let bytes = match self.checkpoint.is_active() {
            true => bytes.max(self.gather.batch_bytes_max),
            false => bytes,
        };
        self.run.is_none() || self.run_bytes() + bytes <= self.commit_bytes
    }

    /// Whether a block may be made for a part of a checkpoint or a mark alone: beside a commit in
    /// flight these wait for its end, or for data.
    pub(super) fn may_carry(&self) -> bool {
        self.inline || self.sync.is_none()
    }

    /// The run with room for a block of so many bytes, which goes to this place.
    pub(super) fn take_run(&mut self, segment: u32, offset: u64, bytes: usize) -> Run {
        self.run.take().unwrap_or_else(|| {
            let bytes = bytes.max(self.commit_bytes);
            let spare = self.run_buffers.pop();
            let mut buffer = spare
                .filter(|buffer| buffer.capacity() >= bytes)
                .unwrap_or_else(|| PageBuf::new(bytes));
            buffer.set_len(0);
            Run {
                segment,
                offset,
                buffer,
                blocks: VecDeque::new(),
            }
        })
    }

    /// One commit in flight, and no sync beside it.
    pub(super) fn start_commit(&mut self) {
        let free = self.sync.is_none() && self.writing.is_none() && self.unsynced.is_empty();
        if !free || self.poisoned.is_some() {
            return;
        }
        let Some(run) = self.run.take() else { return };
        let through = run.blocks.back().map_or(0, |block| block.seq);
        let segment = self.segments.get(run.segment).id;
        let kind = DiskOpKind::Commit {
            segment,
            offset: run.offset,
            buffer: run.buffer,
        };
        let op = self.push_op(kind, Pending::Commit);
        self.sync = Some((op, through));
        self.committing = run.blocks;
    }

    fn put_run_buffer(&mut self, buffer: PageBuf) {
        // Longer ones were for one long entry. Two: one in flight, one that fills.
        if self.run_buffers.len() < 2 && buffer.capacity() < 2 * self.commit_bytes {
            self.run_buffers.push(buffer);
        }
    }
}

impl Log {
    pub(super) fn on_committed(&mut self, store: &mut Store, done: DiskDone) {
        if let Some(buffer) = done.buffer {
            store.put_run_buffer(buffer);
        }
        let blocks = std::mem::take(&mut store.committing);
        if done.result.is_ok() {
            for block in blocks {
                store.stats.bytes_written += block.bytes;
                self.block_written(store, block);
            }
        }
        self.on_synced(store, done.id, done.result);
    }
}
