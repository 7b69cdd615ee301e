//! Blocks: the memory entries live in, shared with deliveries and recycled when they come home.
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use crate::entry::{EntryMeta, NewEntry};
use crate::page::{PAGE_BYTES, PageBuf};
use crate::position::Position;

/// Entries of one topic with consecutive ordinals, in memory: frozen, shared by `Arc`.
///
/// A delivery holds the block and a slot. The log recycles the memory once every delivery has let
/// go (`Arc::get_mut`), so nothing is allocated or freed per message and nothing is freed on a
/// foreign thread.
#[derive(Default)]
pub struct Block {
    data: Vec<u8>,
    metas: Vec<EntryMeta>,
    pages: Option<Pages>,
}

/// Where the window of a read buffer lies in `data`.
#[derive(Clone, Copy, Debug)]
struct Pages {
    start: usize,
    len: usize,
}

impl Block {
    /// Entries in it; slots are `0..len()`.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.metas.len() as u32
    }

    /// True if it holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.metas.is_empty()
    }

    /// What is known of the entry in `slot`.
    ///
    /// # Panics
    /// If `slot >= len()`.
    #[must_use]
    #[inline]
    pub fn meta(&self, slot: u32) -> &EntryMeta {
        &self.metas[slot as usize]
    }

    /// Metas of all slots, in order.
    #[must_use]
    #[inline]
    pub fn metas(&self) -> &[EntryMeta] {
        &self.metas
    }

    /// The stored payload of the entry in `slot`.
    ///
    /// # Panics
    /// If `slot >= len()`.
    #[must_use]
    #[inline]
    pub fn body(&self, slot: u32) -> &[u8] {
        let meta = &self.metas[slot as usize];
        let start = meta.offset as usize;
        &self.data[start..start + meta.bytes as usize]
    }

    /// The properties of the entry in `slot`, as they were handed in; mostly empty.
    ///
    /// # Panics
    /// If `slot >= len()`.
    #[must_use]
    pub fn properties(&self, slot: u32) -> &[u8] {
        let meta = &self.metas[slot as usize];
        let end = meta.offset as usize;
        &self.data[end - meta.properties_bytes as usize..end]
    }

    /// Properties and body, one behind the other.
    #[inline]
    pub(crate) fn payload(&self, slot: u32) -> &[u8] {
        let meta = &self.metas[slot as usize];
        let body = meta.offset as usize;
        &self.data[body - meta.properties_bytes as usize..body + meta.bytes as usize]
    }

    /// True if a payload of `bytes` goes in without the memory growing.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.metas.len() < SLOTS_MAX && self.data.capacity() - self.data.len() >= bytes
    }

    #[inline]
    pub(crate) fn push(&mut self, entry: &NewEntry<'_>, position: Position, appended_ns: u64) {
        if !entry.properties.is_empty() {
            self.data.extend_from_slice(entry.properties);
        }
        let offset = self.data.len() as u32;
        self.data.extend_from_slice(entry.body);
        self.metas.push(EntryMeta {
            position,
            offset,
            bytes: entry.body.len() as u32,
            messages: entry.messages,
            key_hash: entry.key_hash,
            producer: entry.producer,
            sequence: entry.sequence,
            publish_ms: entry.publish_ms,
            arrived_ns: entry.arrived_ns,
            appended_ns,
            deliver_at_ms: entry.deliver_at_ms,
            deadline_ms: entry.deadline_ms,
            properties_bytes: entry.properties.len() as u32,
            is_numbered: entry.is_numbered,
        });
    }

    /// Forgets the entries and keeps the memory.
    pub(crate) fn clear(&mut self) {
        self.data.clear();
        self.metas.clear();
    }

    /// Bytes of properties and bodies in it.
    pub(crate) fn data_bytes(&self) -> usize {
        self.data.len()
    }

    /// Makes an empty block hold a read buffer.
    pub(crate) fn install(&mut self, buffer: PageBuf) {
        let (data, start, len) = buffer.into_parts();
        self.metas.clear();
        self.data = data;
        self.pages = Some(Pages { start, len });
    }

    /// Adds an entry whose body is at `meta.offset` within the read buffer.
    pub(crate) fn push_read(&mut self, mut meta: EntryMeta) {
        let start = self.pages.map_or(0, |pages| pages.start);
        meta.offset += start as u32;
        self.metas.push(meta);
    }

    /// Adds a copy of an entry that was read.
    pub(crate) fn push_copy(&mut self, meta: EntryMeta, payload: &[u8]) {
        let offset = self.data.len() as u32 + meta.properties_bytes;
        self.data.extend_from_slice(payload);
        self.metas.push(EntryMeta { offset, ..meta });
    }

    /// Takes the read buffer out again.
    pub(crate) fn uninstall(&mut self) -> Option<PageBuf> {
        let pages = self.pages.take()?;
        self.metas.clear();
        Some(PageBuf::from_parts(
            std::mem::take(&mut self.data),
            pages.start,
            pages.len,
        ))
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block")
            .field("entries", &self.metas.len())
            .field("bytes", &self.data.len())
            .field("first", &self.metas.first().map(|meta| meta.position))
            .finish()
    }
}

/// Entries a block holds at most: at 64 B bodies this is 32 KiB of bodies and 48 KiB of metas,
/// which stays in a private cache while it goes from producer to consumer.
const SLOTS_MAX: usize = 512;
/// Smallest class: 512 B.
const CLASS_BITS_MIN: u32 = 9;
/// Largest class blocks grow to by themselves: 64 KiB. Larger ones are for one large entry.
pub(crate) const CLASS_GROW_MAX: u8 = 7;
/// Largest class: 2^(9 + 18) = 128 MiB, more than any entry.
pub(crate) const CLASSES: usize = 19;

/// The class whose memory holds `bytes`.
pub(crate) fn class_for(bytes: usize) -> u8 {
    let bits = bytes.max(1).next_power_of_two().trailing_zeros();
    (bits.saturating_sub(CLASS_BITS_MIN) as u8).min(CLASSES as u8 - 1)
}

pub(crate) fn class_bytes(class: u8) -> usize {
    1 << (CLASS_BITS_MIN + u32::from(class))
}

/// Memory a block of this class is charged with, in bytes: bodies and as much again for metas.
pub(crate) fn class_charge(class: u8) -> u64 {
    let bytes = class_bytes(class);
    (bytes + bytes.min(SLOTS_MAX * size_of::<EntryMeta>())) as u64
}

/// Free blocks by class, and those on their way home.
///
/// Bound: free memory above `free_bytes_max` is given back to the allocator; what is lent is
/// bounded by who hands it out, see [`crate::Log::is_crowded`].
#[derive(Debug)]
pub(crate) struct BlockPool {
    free: [Vec<Arc<Block>>; CLASSES],
    free_bytes: u64,
    free_bytes_max: u64,
    /// Shells without memory of their own, for read buffers.
    shells: Vec<Arc<Block>>,
    lent: VecDeque<Lent>,
    lent_bytes: u64,
    read_free: Vec<PageBuf>,
    read_out: u32,
    read_buffers: u32,
    read_buffer_bytes: u32,
    /// Charge that came home for memory topics since it was last asked for.
    memory_home: u64,
}

#[derive(Debug)]
struct Lent {
    block: Arc<Block>,
    kind: BlockKind,
}

/// What a block's memory is charged to and where it goes when it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    /// Of a memory topic, class given.
    Memory(u8),
    /// Of a durable topic's tail, class given.
    Tail(u8),
    /// A read buffer.
    Read,
}

/// Classes looked through for a free block, the wanted one included.
const LARGER_CLASSES: usize = 3;
/// Looks at this many lent blocks each time one is taken or given back.
const LENT_LOOKS: usize = 4;

impl BlockPool {
    pub(crate) fn new(free_bytes_max: u64, read_buffers: u32, read_buffer_bytes: u32) -> BlockPool {
        BlockPool {
            free: Default::default(),
            free_bytes: 0,
            free_bytes_max,
            shells: Vec::new(),
            lent: VecDeque::new(),
            lent_bytes: 0,
            read_free: Vec::new(),
            read_out: 0,
            read_buffers,
            read_buffer_bytes,
            memory_home: 0,
        }
    }

    /// An empty block of this class or a little larger, not shared with anyone, and its class.
    pub(crate) fn take(&mut self, class: u8) -> (Arc<Block>, u8) {
        if !self.lent.is_empty() {
            self.look_at_lent();
        }
        // A larger one rather than none: a new one is an allocation.
        for class in class..CLASSES.min(class as usize + LARGER_CLASSES) as u8 {
            if let Some(block) = self.free[class as usize].pop() {
                self.free_bytes -= class_charge(class);
                return (block, class);
            }
        }
        let bytes = class_bytes(class);
        let slots = (bytes / 64).clamp(4, SLOTS_MAX);
        let block = Block {
            data: Vec::with_capacity(bytes),
            metas: Vec::with_capacity(slots),
            pages: None,
        };
        (Arc::new(block), class)
    }

    /// Takes a block back, at once or as soon as its last delivery has let go.
    pub(crate) fn put(&mut self, mut block: Arc<Block>, kind: BlockKind) {
        if !self.lent.is_empty() {
            self.look_at_lent();
        }
        match Arc::get_mut(&mut block) {
            Some(inner) => {
                inner.metas.clear();
                self.read_out -= u32::from(kind == BlockKind::Read);
                self.home(block, kind);
            }
            None => {
                // Whoever does not let go of what was read must not keep others from reading.
                self.read_out -= u32::from(kind == BlockKind::Read);
                self.lent_bytes += charge(&block, kind);
                self.lent.push_back(Lent { block, kind });
            }
        }
    }

    /// A read buffer of at least `bytes`; `None` if all are out. A buffer above the usual size is
    /// made for the one large entry it is for and is not kept.
    pub(crate) fn take_read(&mut self, bytes: usize) -> Option<PageBuf> {
        if !self.lent.is_empty() {
            self.look_at_lent();
        }
        if self.read_out >= self.read_buffers {
            return None;
        }
        self.read_out += 1;
        let usual = self.read_buffer_bytes as usize;
        if bytes > usual {
            return Some(PageBuf::new(bytes));
        }
        let mut buffer = self.read_free.pop().unwrap_or_else(|| PageBuf::new(usual));
        buffer.set_len(bytes);
        Some(buffer)
    }

    /// Takes back a read buffer that never got into a block.
    pub(crate) fn put_read(&mut self, buffer: PageBuf) {
        self.read_out -= 1;
        self.keep_read(buffer);
    }

    /// Those that were lent may come home to a full house: others were made meanwhile.
    fn keep_read(&mut self, buffer: PageBuf) {
        let is_usual = buffer.capacity() <= self.read_buffer_bytes as usize + PAGE_BYTES;
        let has_place =
            self.read_free.len() + (self.read_out as usize) < self.read_buffers as usize;
        if is_usual && has_place {
            self.read_free.push(buffer);
        }
    }

    /// A read buffer was lost with its operation.
    pub(crate) fn lose_read(&mut self) {
        self.read_out -= 1;
    }

    /// A shell for a read buffer.
    pub(crate) fn take_shell(&mut self) -> Arc<Block> {
        self.shells.pop().unwrap_or_default()
    }

    /// Bytes that are trimmed or evicted here and still held elsewhere.
    pub(crate) fn lent_bytes(&self) -> u64 {
        self.lent_bytes
    }

    /// Read buffers in flight or cached.
    pub(crate) fn read_out(&self) -> u32 {
        self.read_out
    }

    /// Charge of memory topics' blocks that came home since the last call, in bytes.
    #[inline]
    pub(crate) fn take_memory_home(&mut self) -> u64 {
        std::mem::take(&mut self.memory_home)
    }

    /// Looks at the oldest lent blocks and takes home those nobody holds any more.
    pub(crate) fn look_at_lent(&mut self) {
        for _ in 0..LENT_LOOKS.min(self.lent.len()) {
            let Some(mut lent) = self.lent.pop_front() else {
                return;
            };
            let lent_bytes = charge(&lent.block, lent.kind);
            if let Some(inner) = Arc::get_mut(&mut lent.block) {
                inner.metas.clear();
                self.lent_bytes -= lent_bytes;
                self.home(lent.block, lent.kind);
            } else {
                self.lent.push_back(lent);
            }
        }
    }

    fn home(&mut self, mut block: Arc<Block>, kind: BlockKind) {
        let Some(inner) = Arc::get_mut(&mut block) else {
            return;
        };
        let class = match kind {
            BlockKind::Read => {
                if let Some(buffer) = inner.uninstall() {
                    self.keep_read(buffer);
                }
                self.shells.push(block);
                return;
            }
            BlockKind::Memory(class) => {
                self.memory_home += class_charge(class);
                class
            }
            BlockKind::Tail(class) => class,
        };
        inner.data.clear();
        if self.free_bytes + class_charge(class) <= self.free_bytes_max {
            self.free_bytes += class_charge(class);
            self.free[class as usize].push(block);
        }
    }
}

/// Memory that a block keeps while it is lent, in bytes.
fn charge(block: &Block, kind: BlockKind) -> u64 {
    match kind {
        BlockKind::Memory(class) | BlockKind::Tail(class) => class_charge(class),
        BlockKind::Read => block.data.capacity() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(body: &[u8]) -> NewEntry<'_> {
        NewEntry {
            body,
            messages: 1,
            ..NewEntry::default()
        }
    }

    #[test]
    fn a_lent_block_comes_home_when_its_last_delivery_lets_go() {
        let mut pool = BlockPool::new(1 << 20, 2, 8192);
        let (mut block, _) = pool.take(0);
        Arc::get_mut(&mut block)
            .unwrap()
            .push(&entry(b"abc"), Position::default(), 0);
        let held = Arc::clone(&block);
        let memory = Arc::as_ptr(&block);
        pool.put(block, BlockKind::Memory(0));
        assert_eq!(pool.lent_bytes(), class_charge(0));
        assert_eq!(held.body(0), b"abc");
        assert_eq!(pool.take_memory_home(), 0);
        drop(held);
        let (again, _) = pool.take(0);
        assert_eq!(Arc::as_ptr(&again), memory, "the same memory is used again");
        assert!(again.is_empty());
        assert_eq!(pool.take_memory_home(), class_charge(0));
        assert_eq!(pool.lent_bytes(), 0);
    }

    #[test]
    fn read_buffers_are_bounded_and_come_back_out_of_their_blocks() {
        let mut pool = BlockPool::new(1 << 20, 1, 8192);
        let buffer = pool.take_read(4096).unwrap();
        assert!(pool.take_read(4096).is_none());
        let mut shell = pool.take_shell();
        Arc::get_mut(&mut shell).unwrap().install(buffer);
        pool.put(shell, BlockKind::Read);
        assert_eq!(pool.take_read(8192).map(|buffer| buffer.len()), Some(8192));
    }

    #[test]
    fn a_read_buffer_that_is_not_let_go_of_is_no_read_buffer_less() {
        let mut pool = BlockPool::new(1 << 20, 1, 8192);
        let buffer = pool.take_read(4096).unwrap();
        let mut shell = pool.take_shell();
        Arc::get_mut(&mut shell).unwrap().install(buffer);
        let held = Arc::clone(&shell);
        pool.put(shell, BlockKind::Read);
        assert!(pool.lent_bytes() >= 8192);
        let another = pool.take_read(4096).unwrap();
        assert!(pool.take_read(4096).is_none(), "one at a time all the same");
        drop(held);
        pool.look_at_lent();
        assert_eq!((pool.lent_bytes(), pool.read_free.len()), (0, 0));
        pool.put_read(another);
        assert_eq!((pool.read_out(), pool.read_free.len()), (0, 1));
    }

    #[test]
    fn classes_hold_what_they_are_asked_for() {
        for bytes in [0, 1, 511, 512, 513, 65_536, 65_537, 5 << 20] {
            assert!(class_bytes(class_for(bytes)) >= bytes, "{bytes}");
        }
        assert_eq!(class_bytes(CLASS_GROW_MAX), 65_536);
    }
}
