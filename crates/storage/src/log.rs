//! The log of one shard: topics, appends, lookups, trimming. Pure: the shell carries out its ops.
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::block::{Block, BlockKind, BlockPool, class_charge, class_for};
use crate::commit::Store;
use crate::entry::{
    Durability, EntryMeta, NewEntry, PAYLOAD_BYTES_MAX, Ticket, TopicKey, TopicSlot,
};
use crate::op::{DiskError, SegmentId};
use crate::options::Options;
use crate::position::Position;
use crate::tail::TailList;
use crate::topic::{BlockRef, Live, NO_NODE, Topic};

/// What an append gives: where the entry is, and the commit that makes it as durable as promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Dense number of the entry in its topic, in memory only.
    pub ordinal: u64,
    /// Its position.
    pub position: Position,
    /// Done when `done_through(durability of the topic) >= ticket`; 0 for memory topics.
    pub ticket: Ticket,
}

/// Why an append was not taken. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Longer than `entry_bytes_max`, or than a segment can hold.
    #[error("the entry is longer than this log can store")]
    TooLarge,
    /// No room on the disk. Acks free some; [`LogEvent::DiskFull`] `(false)` says when.
    #[error("the disk is full")]
    DiskFull,
    /// A write or sync failed: this log takes nothing any more until the engine is reopened.
    #[error("a write or sync failed: the log takes no appends until it is opened again")]
    Poisoned,
    /// A bound on memory is reached: hold the entry, [`LogEvent::Room`] says when to try again.
    #[error("the log's memory is used up for now")]
    NoMemory,
    /// A durable topic in a log without a disk.
    #[error("this log is in memory: a durable topic cannot be appended to")]
    NoDisk,
}

/// Where an entry is.
#[derive(Debug)]
pub enum Place<'a> {
    /// In memory: block and slot.
    Memory(&'a Arc<Block>, u32),
    /// Stored, not in memory: call [`Log::fetch`].
    OnDisk,
    /// Being read: [`LogEvent::Fetched`] follows.
    Reading,
    /// Stored and unreadable (three failed reads or a wrong checksum). Its neighbours may be fine.
    Failed,
    /// Trimmed, or never appended.
    Gone,
}

/// Answer to [`Log::fetch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// Reads were planned: [`LogEvent::Fetched`] follows for each.
    Started,
    /// No read buffer is free; [`LogEvent::Room`] says when to try again.
    NoBuffer,
    /// The entry is being read.
    AlreadyReading,
    /// There is nothing to read: the entry is in memory, gone, or failed.
    NotNeeded,
}

/// Something the broker wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogEvent {
    /// `ready_end` of a durable topic moved. Memory topics' moves with each append, without event.
    Ready(TopicSlot),
    /// A read of this topic ended, well or badly: ask `locate` again.
    Fetched(TopicSlot),
    /// A write or sync failed; nothing unproven gets a receipt any more.
    Poisoned {
        /// What failed.
        error: DiskError,
    },
    /// Publishing stopped for want of disk space (`true`), or goes on (`false`).
    DiskFull(bool),
    /// Memory or buffers came free after a `NoMemory` or `NoBuffer` answer.
    Room,
    /// A roll found no ready spare and had a segment allocated.
    SegmentAllocated(SegmentId),
    /// A segment has unreadable entries: it is served where readable and never used again.
    Quarantined(SegmentId),
}

/// The segment log of one shard.
///
/// Appends and acks are gathered; [`Log::flush_turn`] ends a turn and cuts commit blocks;
/// [`Log::poll_op`] gives what the shell must do, [`Log::on_done`] takes what came of it, and
/// [`Log::poll_event`] tells the broker what changed.
#[derive(Debug)]
pub struct Log {
    pub(crate) options: Options,
    pub(crate) topics: Vec<Topic>,
    free_slots: Vec<u32>,
    pub(crate) pool: BlockPool,
    pub(crate) tail: TailList,
    pub(crate) next_ledger: u64,
    pub(crate) memory_bytes: u64,
    /// Somebody was told `NoMemory` for a memory topic and waits for `Room`.
    starved_memory: bool,
    /// Somebody was told `NoMemory` for a durable topic and waits for `Room`.
    pub(crate) starved_appends: bool,
    /// Somebody was told `NoBuffer` and waits for `Room`.
    pub(crate) starved_reads: bool,
    pub(crate) events: VecDeque<LogEvent>,
    /// Metas of the range being checked; kept for its memory.
    pub(crate) read_scratch: Vec<EntryMeta>,
    /// The durable half; `None` in a log without a disk.
    pub(crate) store: Option<Box<Store>>,
}

/// Free blocks kept for reuse, at least, in bytes.
const MEMORY_FREE_MIN: u64 = 8 << 20;

fn block_kind(in_memory: bool, class: u8) -> BlockKind {
    if in_memory {
        BlockKind::Memory(class)
    } else {
        BlockKind::Tail(class)
    }
}

impl Log {
    /// A log without a disk, for memory topics only; appends to others answer `NoDisk`.
    #[must_use]
    pub fn in_memory(options: Options) -> Log {
        Log::new(options, None)
    }

    pub(crate) fn new(options: Options, store: Option<Box<Store>>) -> Log {
        let pool = BlockPool::new(
            options.tail_bytes.max(MEMORY_FREE_MIN),
            options.read_buffers,
            options.read_buffer_bytes,
        );
        Log {
            options,
            topics: Vec::new(),
            free_slots: Vec::new(),
            pool,
            tail: TailList::default(),
            next_ledger: 1,
            memory_bytes: 0,
            starved_memory: false,
            starved_appends: false,
            starved_reads: false,
            events: VecDeque::new(),
            read_scratch: Vec::new(),
            store,
        }
    }

    /// Opens a topic. If the log was recovered, its stored entries and cursors are attached; they
    /// stay in their ledgers, the first append opens a new one. A key is open at most once.
    pub fn open_topic(&mut self, key: TopicKey, durability: Durability) -> TopicSlot {
        if durability == Durability::Written
            && let Some(store) = &mut self.store
        {
            store.write_inline(self.options.slice_bytes);
        }
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                let topic = &mut self.topics[slot as usize];
                topic.key = key;
                topic.durability = durability;
                slot
            }
            None => {
                self.topics.push(Topic {
                    key,
                    durability,
                    generation: 0,
                    live: None,
                });
                (self.topics.len() - 1) as u32
            }
        };
        self.attach_recovered(TopicSlot(slot));
        TopicSlot(slot)
    }

    /// Forgets a topic with all its entries and subscriptions. The slot may be given to another
    /// topic afterwards; what deliveries hold stays valid.
    pub fn drop_topic(&mut self, slot: TopicSlot) {
        let end = self.end(slot);
        self.forget_topic(slot);
        self.let_go(slot, end);
        let topic = &mut self.topics[slot.0 as usize];
        topic.generation = topic.generation.wrapping_add(1);
        let in_memory = !topic.durability.is_stored();
        if let Some(mut live) = topic.live.take()
            && let Some((shell, class)) = live.take_open()
        {
            self.pool.put(shell, block_kind(in_memory, class));
        }
        self.free_slots.push(slot.0);
        self.settle_memory();
    }

    /// Appends an entry: copies the body into the topic's open block and indexes it.
    ///
    /// # Errors
    /// [`Refused`]; then nothing has changed.
    #[inline]
    pub fn append(
        &mut self,
        slot: TopicSlot,
        entry: &NewEntry<'_>,
        now_ns: u64,
    ) -> Result<Appended, Refused> {
        let topic = &mut self.topics[slot.0 as usize];
        if !topic.durability.is_stored()
            && let Some(live) = &mut topic.live
            && live.has_room(entry.payload_bytes())
            && entry.payload_bytes() <= self.options.entry_bytes_max as usize
        {
            let (ordinal, position) = live.push(entry, now_ns);
            return Ok(Appended {
                ordinal,
                position,
                ticket: Ticket(0),
            });
        }
        self.append_apart(slot, entry, now_ns)
    }

    /// The first live ordinal; equal to `end` if there is none.
    #[must_use]
    pub fn first(&self, slot: TopicSlot) -> u64 {
        self.live(slot).map_or(0, |live| live.first)
    }

    /// One past the last appended ordinal.
    #[must_use]
    #[inline]
    pub fn end(&self, slot: TopicSlot) -> u64 {
        self.live(slot).map_or(0, |live| live.end)
    }

    /// One past the last ordinal that has the topic's durability and may be dispatched.
    #[must_use]
    #[inline]
    pub fn ready_end(&self, slot: TopicSlot) -> u64 {
        let topic = &self.topics[slot.0 as usize];
        let Some(live) = &topic.live else { return 0 };
        if !topic.durability.is_stored() {
            live.end
        } else {
            live.ready
        }
    }

    /// Position of a live ordinal.
    #[must_use]
    pub fn position(&self, slot: TopicSlot, ordinal: u64) -> Option<Position> {
        let live = self.live(slot)?;
        if ordinal < live.first || ordinal >= live.end {
            return None;
        }
        live.ledgers.position(ordinal)
    }

    /// Ordinal of the live entry at exactly this position.
    #[must_use]
    pub fn ordinal(&self, slot: TopicSlot, position: Position) -> Option<u64> {
        let live = self.live(slot)?;
        live.ledgers
            .ordinal(position, live.end)
            .filter(|&ordinal| ordinal >= live.first)
    }

    /// Ordinals of the live ones among `entries` consecutive entries of a ledger, 1 or more: what was
    /// trimmed, or is of another ledger, is not among them.
    #[must_use]
    pub fn ordinals(&self, slot: TopicSlot, first: Position, entries: u32) -> Range<u64> {
        self.live(slot).map_or(0..0, |live| {
            live.ledgers.ordinals(first, entries, live.first, live.end)
        })
    }

    /// Ordinal of the first live entry behind this position, which may be trimmed, lost or not
    /// there yet; `end` if there is none. Where a cursor with this mark-delete goes on.
    #[must_use]
    pub fn ordinal_after(&self, slot: TopicSlot, position: Position) -> u64 {
        let Some(live) = self.live(slot) else {
            return 0;
        };
        live.ledgers
            .ordinal_after(position, live.first, live.end)
            .max(live.first)
    }

    /// Position of the last entry before an ordinal, trimmed or not: the mark-delete of a cursor
    /// that starts there. `None` if there never was one (in this life of the log).
    #[must_use]
    pub fn position_before(&self, slot: TopicSlot, ordinal: u64) -> Option<Position> {
        self.live(slot)?.ledgers.before(ordinal)
    }

    /// Position of the last entry appended or recovered; `None` if there never was one (in this
    /// life of the log).
    #[must_use]
    pub fn last_position(&self, slot: TopicSlot) -> Option<Position> {
        let live = self.live(slot)?;
        live.ledgers.position(live.end.checked_sub(1)?)
    }

    /// The first live entry at this position or behind it; `end` if there is none.
    #[must_use]
    pub fn ordinal_at_or_after(&self, slot: TopicSlot, position: Position) -> u64 {
        self.live(slot).map_or(0, |live| {
            live.ledgers
                .ordinal_at_or_after(position, live.first, live.end)
        })
    }

    /// Where an entry is. Freezes the open block if the entry is in it.
    pub fn locate(&mut self, slot: TopicSlot, ordinal: u64) -> Place<'_> {
        if self.live(slot).is_some_and(|live| live.in_open(ordinal)) {
            self.freeze(slot, false);
        }
        let Some(live) = self.topics[slot.0 as usize].live.as_deref() else {
            return Place::Gone;
        };
        if ordinal < live.first || ordinal >= live.end {
            return Place::Gone;
        }
        if let Some(index) = live.block_index(ordinal) {
            let block = &live.blocks[index];
            if block.node != NO_NODE {
                self.tail.touch(block.node);
            }
            return Place::Memory(&block.block, (ordinal - block.first) as u32);
        }
        if live.failed.contains(&ordinal) {
            return Place::Failed;
        }
        if live.is_reading(ordinal) {
            Place::Reading
        } else {
            Place::OnDisk
        }
    }

    /// The longest run of consecutive ready ordinals from `ordinal` on in consecutive slots of one
    /// block in memory, at most `max_entries`: block, first slot, count. `None` if the entry is not
    /// ready or not in memory: `locate` says which.
    #[inline]
    pub fn run(
        &mut self,
        slot: TopicSlot,
        ordinal: u64,
        max_entries: u32,
    ) -> Option<(Arc<Block>, u32, u32)> {
        let ready = self.ready_end(slot);
        if ordinal >= ready || max_entries == 0 {
            return None;
        }
        if self.live(slot)?.in_open(ordinal) {
            self.freeze(slot, false);
        }
        let live = self.topics[slot.0 as usize].live.as_deref()?;
        let block = &live.blocks[live.block_index(ordinal)?];
        if ordinal < live.first {
            return None;
        }
        if block.node != NO_NODE {
            self.tail.touch(block.node);
        }
        let count = (block.end().min(ready) - ordinal).min(u64::from(max_entries)) as u32;
        Some((
            Arc::clone(&block.block),
            (ordinal - block.first) as u32,
            count,
        ))
    }

    /// All subscriptions have consumed what is below `before`: index and blocks let go of it, and
    /// segments without live entries are used again. Entries whose commit is under way follow
    /// when it is done.
    pub fn trim(&mut self, slot: TopicSlot, before: u64) {
        let topic = &mut self.topics[slot.0 as usize];
        let Some(live) = topic.live.as_deref_mut() else {
            return;
        };
        let before = before.min(live.end);
        if !topic.durability.is_stored() {
            self.let_go(slot, before);
            self.settle_memory();
        } else {
            self.trim_stored(slot, before);
        }
    }

    /// Whether what was handed over and not let go of takes more memory than it should, beside the
    /// log's own: those who have not looked at what they have are to get no more. Appends go on.
    #[must_use]
    #[inline]
    pub fn is_crowded(&self) -> bool {
        self.pool.lent_bytes() > self.options.lent_bytes_max
    }

    #[inline]
    pub(crate) fn live(&self, slot: TopicSlot) -> Option<&Live> {
        self.topics[slot.0 as usize].live.as_deref()
    }

    /// As [`Log::append`], and never inlined: for who appends rarely, or a numbered entry.
    ///
    /// Errors: [`Refused`]; then nothing has changed.
    #[cold]
    pub fn append_apart(
        &mut self,
        slot: TopicSlot,
        entry: &NewEntry<'_>,
        now_ns: u64,
    ) -> Result<Appended, Refused> {
        let bytes_max = (self.options.entry_bytes_max as usize).min(PAYLOAD_BYTES_MAX);
        if entry.payload_bytes() > bytes_max {
            return Err(Refused::TooLarge);
        }
        let durability = self.topics[slot.0 as usize].durability;
        let appended = if durability.is_stored() {
            self.append_stored(slot, entry, now_ns)?
        } else {
            if entry.payload_bytes() > self.options.memory_entry_bytes_max() {
                return Err(Refused::TooLarge);
            }
            self.make_room(slot, entry.payload_bytes(), durability)?;
            let (ordinal, position) = self.open_live(slot).push(entry, now_ns);
            Appended {
                ordinal,
                position,
                ticket: Ticket(0),
            }
        };
        if entry.is_numbered {
            let sequences = &mut self.open_live(slot).sequences;
            sequences.appended(entry.producer, entry.sequence);
        }
        Ok(appended)
    }

    /// Sees to an open block with room for the payload, and to an open ledger.
    pub(crate) fn make_room(
        &mut self,
        slot: TopicSlot,
        bytes: usize,
        durability: Durability,
    ) -> Result<(), Refused> {
        let in_memory = !durability.is_stored();
        if !self.open_live(slot).has_room(bytes) {
            let least = class_for(bytes);
            let mut class = self.open_live(slot).class.max(least);
            if in_memory && !self.has_memory_for(class) {
                class = least;
                self.give_back_empty(slot);
                self.pool.look_at_lent();
                self.settle_memory();
                if !self.has_memory_for(class) {
                    self.starved_memory = true;
                    return Err(Refused::NoMemory);
                }
            }
            self.freeze(slot, true);
            if !in_memory {
                self.evict_tail();
            }
            let (shell, class) = self.pool.take(class);
            if in_memory {
                self.memory_bytes += class_charge(class);
            }
            let old = self.open_live(slot).set_open(shell, class);
            if let Some((shell, class)) = old {
                self.pool.put(shell, block_kind(in_memory, class));
            }
        }
        if self.open_live(slot).next.ledger == 0 {
            let (ledger, epoch) = (self.next_ledger, self.epoch());
            self.next_ledger += 1;
            self.open_live(slot).open_ledger(ledger, epoch);
        }
        Ok(())
    }

    fn has_memory_for(&self, class: u8) -> bool {
        self.memory_bytes + class_charge(class) <= self.options.memory_backlog_bytes
    }

    /// The open block of a memory topic goes back if it is empty: a larger one may need its place.
    fn give_back_empty(&mut self, slot: TopicSlot) {
        let live = self.open_live(slot);
        if live.open.is_empty()
            && let Some((shell, class)) = live.take_open()
        {
            self.pool.put(shell, BlockKind::Memory(class));
        }
    }

    pub(crate) fn open_live(&mut self, slot: TopicSlot) -> &mut Live {
        self.topics[slot.0 as usize].live.get_or_insert_default()
    }

    /// Ends the topic's open block and makes it a shared one.
    pub(crate) fn freeze(&mut self, slot: TopicSlot, full: bool) {
        let topic = &mut self.topics[slot.0 as usize];
        let in_memory = !topic.durability.is_stored();
        let Some(live) = topic.live.as_deref_mut() else {
            return;
        };
        let before = live.open_before;
        let Some((block, first, class)) = live.freeze(full) else {
            return;
        };
        let kind = block_kind(in_memory, class);
        let node = if in_memory {
            NO_NODE
        } else {
            self.tail.push(slot, first, class_charge(class))
        };
        live.blocks.push_back(BlockRef {
            first,
            count: block.len(),
            before,
            node,
            kind,
            block,
        });
    }

    /// Moves the topic's `first` and gives back the blocks that end at or below it.
    pub(crate) fn let_go(&mut self, slot: TopicSlot, before: u64) {
        let Some(live) = self.topics[slot.0 as usize].live.as_deref_mut() else {
            return;
        };
        if before <= live.first {
            return;
        }
        live.first = before;
        while let Some(block) = live.blocks.front()
            && block.end() <= live.first
            && let Some(block) = live.blocks.pop_front()
        {
            if block.node != NO_NODE {
                self.tail.remove(block.node);
            }
            self.pool.put(block.block, block.kind);
        }
        if live.shell.is_some() && live.first == live.end && !live.open.is_empty() {
            live.open.clear();
            live.open_first = live.end;
            live.open_before = live.totals;
        }
        live.ledgers.trim(live.first);
    }

    /// Lets the oldest blocks of durable topics go that are stored and ready, down to `tail_bytes`.
    fn evict_tail(&mut self) {
        while self.tail.tail_bytes() > self.options.tail_bytes
            && let Some(node) = self.tail.oldest_tail()
            && let Some(live) = self.topics[node.slot.0 as usize].live.as_deref_mut()
            && let Some(index) = live.block_index(node.first)
            && live.blocks[index].end() <= live.ready
            && let Some(block) = live.blocks.remove(index)
        {
            self.tail.remove(block.node);
            self.pool.put(block.block, block.kind);
        }
    }

    /// Takes note of memory that came home, and says so to whoever waits for it.
    pub(crate) fn settle_memory(&mut self) {
        self.memory_bytes -= self.pool.take_memory_home();
        if self.starved_memory && self.memory_bytes < self.options.memory_backlog_bytes / 8 * 7 {
            self.starved_memory = false;
            self.events.push_back(LogEvent::Room);
        }
    }
}
