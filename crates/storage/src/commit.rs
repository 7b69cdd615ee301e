//! Group commit: batches become blocks, and blocks become durable a run at a time: one write past
//! the page cache, one in flight (`run.rs`). With `written` topics in the log they are written
//! inline, slice by slice, with one sync in flight (`write.rs`).
//!
//! Source of the rules: `spec/runtime.md` 3.4 to 3.11. What 3.9 leaves unused is used here: beside
//! other writers it was 1.2 times raw write + fdatasync, and a sync by a worker 1.65 times; at
//! 2 MiB it costs 160 ns of CPU per page against 790 by way of the page cache.
mod done;
mod run;
mod write;

use std::collections::{BTreeMap, VecDeque};

use crate::ahead::Ahead;
use crate::checkpoint::{Checkpoint, PART_BYTES_MIN, Part};
use crate::encode::{BlockPlan, encode_block, encode_seal};
use crate::entry::{Durability, Ticket, TopicKey, TopicSlot};
use crate::footer::FooterBuilder;
use crate::format;
use crate::gather::{Batch, Gather};
use crate::log::{Log, LogEvent};
use crate::op::{DiskDone, DiskError, DiskOp, DiskOpKind, SegmentId};
use crate::options::Options;
use crate::page::{PAGE_BYTES, PageBuf};
use crate::read::ReadPlan;
use crate::recover::RecoveredTopic;
use crate::segments::{Segment, SegmentState, Segments};
use crate::stats::LogStats;

use run::Run;

/// The durable half of a log.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) chain: Chain,
    pub(crate) gather: Gather,
    pub(crate) segments: Segments,
    pub(crate) active: Option<Active>,
    /// Zeros on their way into the first segment.
    pub(crate) ahead: Option<Ahead>,
    pub(crate) checkpoint: Checkpoint,
    pub(crate) recovered: BTreeMap<TopicKey, RecoveredTopic>,
    /// Longest block that fits an empty segment, bytes.
    pub(crate) block_bytes_max: usize,
    /// Longest run that is more than one block, bytes.
    commit_bytes: usize,
    /// Blocks are written inline: the log has, or had, a `written` topic.
    inline: bool,
    /// Laid out for the next commit.
    run: Option<Run>,
    /// Blocks of the commit in flight.
    committing: VecDeque<Unsynced>,
    run_buffers: Vec<PageBuf>,
    /// The next block waits for an operation in flight.
    stalled: bool,
    writing: Option<Writing>,
    /// Blocks written and not known to be synced, oldest first.
    unsynced: VecDeque<Unsynced>,
    unsynced_bytes: u64,
    unsynced_wants: u32,
    /// Sync or commit in flight, and the last block it proves.
    sync: Option<(u64, u64)>,
    done_written: u64,
    done_synced: u64,
    /// A block of this life was synced, so its epoch is never used again. Until then `written`
    /// entries are not ready either: after a power cut the next life might give their positions to
    /// others.
    proven: bool,
    /// A block although nothing is gathered: the first of this life, or the last.
    mark_wanted: bool,
    closing: Closing,
    pub(crate) ops: VecDeque<DiskOp>,
    pending: Vec<(u64, Pending)>,
    next_op: u64,
    buffers: Vec<PageBuf>,
    may_write: bool,
    /// The next block has no segment to go to.
    pub(crate) waiting_segment: bool,
    pub(crate) poisoned: Option<DiskError>,
    pub(crate) no_space: bool,
    pub(crate) full_said: bool,
    pub(crate) retry_create_ns: u64,
    /// A durable topic was opened: spares are made.
    pub(crate) wanted: bool,
    pub(crate) now_ns: u64,
    last_commit_ns: u64,
    ack_delay_ns: u64,
    scratch: Vec<u8>,
    pub(crate) stats: LogStats,
}

/// Identity and end of the block chain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chain {
    pub(crate) log_id: u128,
    pub(crate) epoch: u32,
    /// Sequence of the next block.
    pub(crate) next_seq: u64,
    pub(crate) prev_crc: u32,
    /// Last sequence known to be synced.
    pub(crate) synced_seq: u64,
}

/// The segment commits go to.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) slot: u32,
    /// Page the next block starts at.
    pub(crate) page: u32,
    pub(crate) footer: FooterBuilder,
}

/// A block on its way into the file.
#[derive(Debug)]
struct Writing {
    segment: u32,
    /// Offset and bytes still to be written.
    pieces: VecDeque<(u64, PageBuf)>,
    sent: usize,
    in_flight: bool,
    done: Unsynced,
}

#[derive(Debug)]
struct Unsynced {
    seq: u64,
    segment: u32,
    bytes: u64,
    seals: bool,
    wants: bool,
    batch: Option<Batch>,
    said_written: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    No,
    Wanted,
    Marked,
}

/// What an operation in flight was for.
#[derive(Debug)]
pub(crate) enum Pending {
    Write {
        segment: u32,
        offset: u64,
        len: usize,
        again: bool,
    },
    Commit,
    Sync,
    Read(ReadPlan),
    Create {
        slot: u32,
        allocated: bool,
    },
    Recycle {
        from: u32,
        to: u32,
    },
    Prewrite {
        bytes: u64,
    },
    Unlink {
        slot: u32,
    },
    Forget,
}

/// What one turn lays out for the next commit, about: more than it takes in from its lanes, and
/// short enough that the lanes do not wait for it.
const LAID_OUT_BYTES_PER_TURN: usize = 512 << 10;

/// Pages left of a segment for acks while the disk is full and no spare is left.
const EMERGENCY_BYTES: u64 = 1 << 20;

impl Store {
    pub(crate) fn new(options: &Options, chain: Chain) -> Store {
        // Header, trailer, and a footer for one block of one entry.
        let block_bytes_max = options.segment_bytes as usize - 4 * PAGE_BYTES;
        // A batch of many small groups needs a footer of up to four fifths of its own length.
        let batch_bytes_max = (options.block_bytes as usize).min(block_bytes_max / 2);
        Store {
            chain,
            gather: Gather::new(batch_bytes_max),
            segments: Segments::default(),
            active: None,
            ahead: None,
            checkpoint: Checkpoint::default(),
            recovered: BTreeMap::new(),
            block_bytes_max,
            commit_bytes: options.commit_bytes as usize,
            inline: false,
            run: None,
            committing: VecDeque::new(),
            run_buffers: Vec::new(),
            stalled: false,
            writing: None,
            unsynced: VecDeque::new(),
            unsynced_bytes: 0,
            unsynced_wants: 0,
            sync: None,
            done_written: 0,
            done_synced: 0,
            proven: false,
            mark_wanted: false,
            closing: Closing::No,
            ops: VecDeque::new(),
            pending: Vec::new(),
            next_op: 0,
            buffers: Vec::new(),
            may_write: false,
            waiting_segment: false,
            poisoned: None,
            no_space: false,
            full_said: false,
            retry_create_ns: 0,
            wanted: false,
            now_ns: 0,
            last_commit_ns: 0,
            ack_delay_ns: options.ack_delay_ns,
            scratch: Vec::new(),
            stats: LogStats::default(),
        }
    }

    /// The last block of an orderly stop is due or laid out: nothing may follow it.
    pub(crate) fn is_marked(&self) -> bool {
        self.closing == Closing::Marked
    }

    /// This life's first block is due even if nothing is appended: it makes its epoch known.
    pub(crate) fn want_mark(&mut self) {
        self.mark_wanted = true;
    }

    pub(crate) fn push_op(&mut self, kind: DiskOpKind, pending: Pending) -> u64 {
        let id = self.next_op;
        self.next_op += 1;
        self.pending.push((id, pending));
        self.ops.push_back(DiskOp { id, kind });
        id
    }

    pub(crate) fn take_buffer(&mut self, len: usize) -> PageBuf {
        let mut buffer = self.buffers.pop().unwrap_or_else(|| PageBuf::new(len));
        buffer.set_len(len);
        buffer
    }

    fn put_buffer(&mut self, buffer: PageBuf) {
        // Longer ones were for one long entry.
        if self.buffers.len() < 4 && buffer.capacity() <= 4 * self.gather.batch_bytes_max {
            self.buffers.push(buffer);
        }
    }

    /// Whether a block of so many pages, with these groups and entries, fits the active segment
    /// with a footer and trailer behind it, and `spare` pages left.
    fn fits(&self, pages: usize, groups: usize, entries: usize, spare: u64) -> bool {
        let Some(active) = &self.active else {
            return false;
        };
        let footer = format::BLOCK_HEADER_BYTES + active.footer.bytes_with(groups, entries);
        let needed = active.page as u64 + pages as u64 + format::pages(footer) as u64 + 1 + spare;
        needed * PAGE_BYTES as u64 <= self.segments.get(active.slot).bytes
    }

    /// While the disk is full: whether what is gathered, and a block of `bytes` more, still has a
    /// place without the emergency reserve.
    pub(crate) fn has_room_for(&self, bytes: usize) -> bool {
        let ready = self.segments.count(SegmentState::Ready);
        if ready >= 2 {
            return true;
        }
        let waiting = self.gather.pages_waiting() as usize + format::pages(bytes) + 1;
        // Footers of many small groups take up to four fifths of the pages again.
        self.fits(waiting + waiting * 4 / 5, 0, 0, self.reserve_pages())
    }

    /// Pages of the active segment that publishes leave to acks: none while a spare does that. Whether
    /// the one in the making will be there or the disk is full is known when it is too late to ask.
    fn reserve_pages(&self) -> u64 {
        if self.segments.count(SegmentState::Ready) > 0 {
            return 0;
        }
        let Some(active) = &self.active else { return 0 };
        let bytes = self.segments.get(active.slot).bytes;
        EMERGENCY_BYTES.min(bytes / 4) / PAGE_BYTES as u64
    }

    pub(crate) fn say_full(&mut self, events: &mut VecDeque<LogEvent>) {
        if !self.full_said {
            self.full_said = true;
            events.push_back(LogEvent::DiskFull(true));
        }
    }

    pub(crate) fn reads_in_flight(&self) -> usize {
        self.pending
            .iter()
            .filter(|(_, pending)| matches!(pending, Pending::Read(_)))
            .count()
    }

    fn has_records(&self) -> bool {
        self.gather.open.has_records() || self.gather.closed.iter().any(Batch::has_records)
    }

    fn has_commit_work(&self) -> bool {
        !self.gather.open.is_empty()
            || !self.gather.closed.is_empty()
            || self.writing.is_some()
            || !self.has_no_run()
            || self.checkpoint.is_active()
            || self.mark_wanted
    }
}

impl Log {
    /// The end of a turn: gives lent memory a look, closes the batch if its commit is due, lays
    /// blocks out for the next commit, or lets at most one slice of `slice_bytes` be written.
    pub fn flush_turn(&mut self, now_ns: u64) {
        self.settle_memory();
        self.pool.look_at_lent();
        let Some(mut store) = self.store.take() else {
            return;
        };
        store.now_ns = now_ns;
        store.may_write = true;
        self.free_consumed(&mut store);
        self.keep_spares(&mut store);
        if store.closing == Closing::No {
            store.write_ahead();
        }
        if store.poisoned.is_none() {
            store.close_if_due();
            self.pump(&mut store);
        }
        if store.full_said && (!store.no_space || store.has_room_for(store.gather.batch_bytes_max))
        {
            store.full_said = false;
            self.events.push_back(LogEvent::DiskFull(false));
        }
        let appends =
            self.starved_appends && store.gather.held_bytes < self.options.gather_bytes_max / 2;
        // Reads do not wait for appends: behind a full disk only acks of what is read make room, and
        // what is stored in a poisoned log can still be read.
        let reads = self.starved_reads && self.has_read_buffer(now_ns);
        if appends || reads {
            self.starved_appends &= !appends;
            self.starved_reads &= !reads;
            self.events.push_back(LogEvent::Room);
        }
        self.store = Some(store);
    }

    /// The next operation for the shell; answered by [`Log::on_done`].
    pub fn poll_op(&mut self) -> Option<DiskOp> {
        self.store.as_mut()?.ops.pop_front()
    }

    /// What changed for the broker.
    pub fn poll_event(&mut self) -> Option<LogEvent> {
        let event = self.events.pop_front()?;
        if let LogEvent::Ready(slot) = event
            && let Some(live) = self.topics[slot.0 as usize].live.as_deref_mut()
        {
            live.ready_said = false;
        }
        Some(event)
    }

    /// Everything with a ticket up to this one has this durability. Ticket 0 before the first.
    #[must_use]
    pub fn done_through(&self, durability: Durability) -> Ticket {
        let Some(store) = &self.store else {
            return Ticket(0);
        };
        match durability {
            Durability::NonPersistent | Durability::Memory => Ticket(store.gather.open.ticket),
            Durability::Written => Ticket(store.done_written),
            Durability::Synced => Ticket(store.done_synced),
        }
    }

    /// An orderly stop: what is gathered is committed, then a block says that all of it is synced.
    /// Done when [`Log::idle`]; append nothing afterwards.
    pub fn close_mark(&mut self) {
        if let Some(store) = &mut self.store
            && store.closing == Closing::No
        {
            store.closing = Closing::Wanted;
        }
    }

    /// True if nothing is gathered, being written, waiting for its sync, or being read. Spares in
    /// the making do not count.
    #[must_use]
    pub fn idle(&self) -> bool {
        let Some(store) = &self.store else {
            return true;
        };
        if store.poisoned.is_some() {
            return store.pending.is_empty();
        }
        !store.has_commit_work()
            && store.closing != Closing::Wanted
            && store.sync.is_none()
            && store.unsynced_wants == 0
            && store.reads_in_flight() == 0
    }

    /// When `flush_turn` should be called again although nothing happens, monotonic nanoseconds;
    /// a time that has passed means at once.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let store = self.store.as_deref()?;
        let look = store.now_ns.saturating_add(STARVED_LOOK_NS);
        if store.poisoned.is_some() {
            return self.starved_reads.then_some(look);
        }
        let mut deadline = None;
        let mut at = |ns: u64| deadline = Some(deadline.map_or(ns, |old: u64| old.min(ns)));
        let writes = store
            .writing
            .as_ref()
            .is_none_or(|writing| !writing.in_flight);
        let blocked = store.waiting_segment && (store.no_space || store.segments.ready().is_none());
        if blocked && store.no_space && store.has_records() {
            at(store.now_ns.saturating_add(self.options.ack_delay_ns));
        }
        if writes && !blocked && !store.stalled {
            let more = store.writing.is_some()
                || !store.gather.closed.is_empty()
                || (store.checkpoint.is_active() || store.mark_wanted) && store.may_carry()
                || store.run.is_some() && store.sync.is_none()
                || store.closing == Closing::Wanted && store.sync.is_none();
            if more || store.is_due() {
                at(store.now_ns);
            } else if !store.gather.open.is_empty() && store.gather.open.groups.is_empty() {
                at(store
                    .last_commit_ns
                    .saturating_add(self.options.ack_delay_ns));
            }
        }
        if store.no_space && store.lacks_spare(self.options.spares_min) {
            at(store.retry_create_ns);
        }
        if self.starved_appends || self.starved_reads {
            at(look);
        }
        deadline
    }

    /// Sequence of the last block known to be on disk, 0 if there is none: whatever happens, the log
    /// does not end before it ([`crate::Options::reached`]).
    #[must_use]
    pub fn synced_sequence(&self) -> u64 {
        self.store
            .as_ref()
            .map_or(0, |store| store.chain.synced_seq)
    }

    /// The error that poisoned the log, if one did.
    #[must_use]
    pub fn poisoned(&self) -> Option<&DiskError> {
        self.store.as_ref()?.poisoned.as_ref()
    }

    /// Tells the log what came of an operation.
    pub fn on_done(&mut self, done: DiskDone) {
        let Some(mut store) = self.store.take() else {
            return;
        };
        if let Some(index) = store.pending.iter().position(|&(id, _)| id == done.id) {
            let (id, pending) = store.pending.swap_remove(index);
            store.stalled = false;
            match pending {
                Pending::Write {
                    segment,
                    offset,
                    len,
                    again,
                } => {
                    self.on_written(&mut store, (segment, offset, len, again), done);
                }
                Pending::Commit => self.on_committed(&mut store, done),
                Pending::Sync => self.on_synced(&mut store, id, done.result),
                Pending::Read(plan) => self.on_read(&mut store, plan, done),
                Pending::Create { slot, .. } => self.on_created(&mut store, slot, &done.result),
                Pending::Recycle { from, to } => {
                    self.on_recycled(&mut store, from, to, &done.result);
                }
                Pending::Prewrite { bytes } => store.on_prewritten(bytes, &done.result),
                Pending::Unlink { slot } => {
                    store.segments.remove(slot);
                    store.stats.segments_unlinked += 1;
                }
                Pending::Forget => {}
            }
        }
        self.store = Some(store);
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.store.as_ref().map_or(0, |store| store.chain.epoch)
    }

    /// Lays blocks out, emits the next slice if this turn may, and a commit or a sync if none is in
    /// flight.
    fn pump(&mut self, store: &mut Store) {
        store.stalled = false;
        if store.may_write && store.writing.is_none() {
            self.next_blocks(store);
        }
        if store.may_write
            && let Some(writing) = &store.writing
            && !writing.in_flight
        {
            store.may_write = false;
            store.emit_slice(self.options.slice_bytes as usize);
        }
        // While the last slice of a block is being written, its sync waits for it.
        let last_slice = store
            .writing
            .as_ref()
            .is_some_and(|writing| writing.pieces.is_empty());
        if !last_slice {
            store.start_sync(self.options.gather_bytes_max / 4);
        }
        store.start_commit();
    }

    /// The next block, and into a run what else was closed.
    fn next_blocks(&mut self, store: &mut Store) {
        let mut laid_bytes = 0;
        loop {
            let before = store.run_bytes();
            self.next_block(store);
            let bytes = store.run_bytes().saturating_sub(before);
            laid_bytes += bytes;
            let full = laid_bytes >= LAID_OUT_BYTES_PER_TURN;
            if bytes == 0 || full || store.gather.closed.is_empty() {
                return;
            }
        }
    }

    /// Lays out the next block: a batch, a part of a checkpoint, a mark, or a seal.
    fn next_block(&mut self, store: &mut Store) {
        if store.gather.closed.is_empty() {
            let carrier = store.checkpoint.is_active() || store.mark_wanted;
            if !carrier || !store.may_carry() {
                return;
            }
            store.gather.close();
        }
        let Some(batch) = store.gather.closed.front() else {
            return;
        };
        let is_data = !batch.groups.is_empty();
        let entries = batch.groups.iter().map(|group| group.count as usize).sum();
        let (bytes, groups) = (batch.encoded_bytes(), batch.groups.len());
        let pages = format::pages(bytes);
        if !store.may_lay_out(pages * PAGE_BYTES) {
            store.stalled = true;
            return;
        }
        // The last pages are for the steps towards a segment that can be used again: acks that come one by
        // one would use them up before they have consumed a segment.
        let frees_room = !batch.freed.is_empty() || store.checkpoint.is_active();
        let reserve = match is_data {
            true => store.reserve_pages(),
            false if frees_room => 0,
            false => store.reserve_pages() / 2,
        };
        if store.active.is_none() {
            let Some(slot) = store.take_spare(is_data) else {
                return self.block_waits(store);
            };
            store.activate(slot);
        }
        let fits = store.fits(pages, groups, entries, reserve);
        if store.meets_zeros(fits.then_some(pages)) {
            store.stalled = true;
            return;
        }
        if !fits {
            // A seal is written inline, behind everything that is to be proven by commits.
            if !store.has_no_run() {
                store.stalled = true;
                return;
            }
            let Some(next) = store.take_spare(is_data) else {
                return self.block_waits(store);
            };
            return self.seal(store, next);
        }
        store.waiting_segment = false;
        let Some(batch) = store.gather.closed.pop_front() else {
            return;
        };
        for index in 0..batch.groups.len() {
            let group = batch.groups[index];
            let topic = &self.topics[group.slot.0 as usize];
            if topic.generation == group.generation
                && topic.live.as_deref().is_some_and(|live| {
                    live.in_open(group.first)
                        || live.in_open(group.first + u64::from(group.count) - 1)
                })
            {
                self.freeze(group.slot, false);
            }
        }
        let part = store.checkpoint_part(&self.topics, bytes, (groups, entries));
        let max = batch.encoded_bytes() + store.scratch.len();
        let len = format::pages(max) * PAGE_BYTES;
        let Some(active) = &store.active else { return };
        let (slot, offset) = (active.slot, u64::from(active.page) * PAGE_BYTES as u64);
        if store.inline {
            let mut buffer = store.take_buffer(len);
            let bytes = self.lay_out(store, &batch, part, buffer.as_mut_slice());
            buffer.set_len(bytes);
            let mut block = store.new_block(slot, bytes, false);
            store.finish_layout(&mut block, batch, part);
            store.start_writing(VecDeque::from([(offset, buffer)]), block);
        } else {
            let mut run = store.take_run(slot, offset, len);
            let bytes = self.lay_out(store, &batch, part, run.extend(len));
            run.cut(len - bytes);
            let mut block = store.new_block(slot, bytes, false);
            store.finish_layout(&mut block, batch, part);
            run.blocks.push_back(block);
            store.run = Some(run);
        }
    }

    /// Lays out one block at the end of the active segment; gives its length in bytes.
    fn lay_out(&mut self, store: &mut Store, batch: &Batch, part: Part, out: &mut [u8]) -> usize {
        let Some(active) = &mut store.active else {
            return 0;
        };
        let segment = store.segments.get(active.slot).id;
        let plan = BlockPlan {
            chain: store.chain,
            segment,
            segment_slot: active.slot,
            page: active.page,
            next_ledger: self.next_ledger,
            part_sections: part.sections,
        };
        let ids = &store.segments;
        let laid = encode_block(
            out,
            &plan,
            batch,
            &mut self.topics,
            |slot| ids.get(slot).id.0,
            &store.scratch,
            &mut active.footer,
        );
        active
            .footer
            .note_block(store.chain.next_seq, store.chain.prev_crc);
        let slot = active.slot;
        let at = store.segments.get_mut(slot);
        at.live += laid.entries;
        if at.first_seq == 0 {
            at.first_seq = store.chain.next_seq;
        }
        at.last_seq = store.chain.next_seq;
        store.stats.entries_written += laid.entries;
        store.stats.body_bytes_written += laid.body_bytes;
        store.chain.prev_crc = laid.crc;
        active.page += (laid.bytes / PAGE_BYTES) as u32;
        for &freed in &batch.freed {
            store.segments.get_mut(freed).freed_seq = store.chain.next_seq;
        }
        laid.bytes
    }

    /// Writes footer and trailer of the active segment; `next` becomes active afterwards.
    fn seal(&mut self, store: &mut Store, next: u32) {
        store.waiting_segment = false;
        let Some(active) = store.active.take() else {
            return;
        };
        let segment = store.segments.get(active.slot).clone();
        let next_id = store.segments.get(next).id;
        let mut sections = std::mem::take(&mut store.scratch);
        sections.clear();
        let count = active.footer.encode(next_id.0, &mut sections);
        let used = format::BLOCK_HEADER_BYTES + sections.len();
        let mut footer = store.take_buffer(format::pages(used) * PAGE_BYTES);
        let mut trailer = store.take_buffer(PAGE_BYTES);
        let plan = BlockPlan {
            chain: store.chain,
            segment: segment.id,
            segment_slot: active.slot,
            page: active.page,
            next_ledger: self.next_ledger,
            part_sections: count,
        };
        let crc = encode_seal(&mut footer, &mut trailer, &plan, &sections);
        store.scratch = sections;
        let seq = store.chain.next_seq;
        store.chain.prev_crc = crc;
        let at = store.segments.get_mut(active.slot);
        at.last_seq = seq;
        if at.first_seq == 0 {
            at.first_seq = seq;
        }
        let offset = u64::from(active.page) * PAGE_BYTES as u64;
        let last_page = segment.bytes - PAGE_BYTES as u64;
        let block = store.new_block(active.slot, footer.len() + PAGE_BYTES, true);
        let pieces = VecDeque::from([(offset, footer), (last_page, trailer)]);
        store.start_writing(pieces, block);
        store.segments.get_mut(active.slot).state = SegmentState::Sealed;
        store.segments.get_mut(next).state = SegmentState::Active;
        let mut footer = active.footer;
        footer.clear();
        store.active = Some(Active {
            slot: next,
            page: 1,
            footer,
        });
        store.stats.segments_sealed += 1;
    }

    /// The block has no segment to go to: have one made at once, and if the disk is full let the
    /// records of the blocks that wait go ahead, so that acks can free space.
    fn block_waits(&mut self, store: &mut Store) {
        store.waiting_segment = true;
        if !store.no_space {
            self.hurry_spare(store);
            return;
        }
        store.say_full(&mut self.events);
        let waited = store.now_ns.saturating_sub(store.last_commit_ns) >= store.ack_delay_ns;
        if (waited || store.gather.soon) && store.let_records_ahead() {
            self.next_block(store);
        }
    }
}

/// How often a log somebody waits for looks whether foreign threads gave memory back.
const STARVED_LOOK_NS: u64 = 1_000_000;

/// A segment that is about to be made.
pub(crate) fn coming(id: SegmentId, bytes: u64) -> Segment {
    Segment::new(id, bytes, SegmentState::Coming)
}
