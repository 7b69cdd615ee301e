//! State of one topic in memory: a few words while it is idle, the rest made at its first append.
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::block::{Block, BlockKind, CLASS_GROW_MAX, class_for};
use crate::cursor::Subs;
use crate::entry::{Durability, EntryMeta, NewEntry, TopicKey};
use crate::index::{Index, Spot, Totals};
use crate::position::{LedgerList, LedgerRun, Position};
use crate::segments::Segments;
use crate::sequences::Sequences;

/// A topic's place in the log's table. 100,000 idle ones must be cheap: nothing is behind `live`
/// before the first append (or recovered entry, or subscription of a durable topic).
#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) key: TopicKey,
    pub(crate) durability: Durability,
    /// Rises when the slot is given to another topic, so that late commits and reads miss.
    pub(crate) generation: u32,
    pub(crate) live: Option<Box<Live>>,
}

/// A frozen block of a topic and the ordinals it covers.
#[derive(Debug)]
pub(crate) struct BlockRef {
    pub(crate) first: u64,
    pub(crate) count: u32,
    /// Totals of what a memory topic had before it.
    pub(crate) before: Totals,
    /// Node in the eviction list; `NO_NODE` for memory topics.
    pub(crate) node: u32,
    pub(crate) kind: BlockKind,
    pub(crate) block: Arc<Block>,
}

pub(crate) const NO_NODE: u32 = u32::MAX;

impl BlockRef {
    pub(crate) fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

/// What a topic needs once it has entries.
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) ledgers: LedgerList,
    /// Live entries are the ordinals `first..end`; those below `ready` may be dispatched.
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) ready: u64,
    /// Where the next entry goes; ledger 0 while none is open.
    pub(crate) next: Position,
    /// The open block by value, so that an append touches no atomic; its shell waits beside it.
    pub(crate) open: Block,
    pub(crate) shell: Option<Arc<Block>>,
    pub(crate) open_first: u64,
    pub(crate) open_before: Totals,
    pub(crate) open_class: u8,
    /// Class the next open block is made of: follows what a turn brings.
    pub(crate) class: u8,
    /// Frozen blocks in order of their ordinals; durable topics may have holes.
    pub(crate) blocks: VecDeque<BlockRef>,
    /// Of all entries appended in this life.
    pub(crate) totals: Totals,
    /// Durable topics only.
    pub(crate) index: Index,
    pub(crate) subs: Subs,
    /// Of producers whose sequences count.
    pub(crate) sequences: Sequences,
    /// Ordinals that could not be read.
    pub(crate) failed: BTreeSet<u64>,
    /// Stretches being read: first ordinal and count.
    pub(crate) reading: Vec<(u64, u32)>,
    /// Trimming that waits for the commit of the entries it concerns.
    pub(crate) trim_wanted: u64,
    /// A `Ready` event waits to be polled.
    pub(crate) ready_said: bool,
    /// Group of this topic in the open commit: its ticket and index.
    pub(crate) group: (u64, u32),
}

impl Live {
    /// Room in the open block for a payload of this length.
    #[inline]
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        self.shell.is_some() && self.open.has_room(bytes)
    }

    /// Copies the entry into the open block. The caller has seen to room and ledger.
    #[inline]
    pub(crate) fn push(&mut self, entry: &NewEntry<'_>, now_ns: u64) -> (u64, Position) {
        let (ordinal, position) = (self.end, self.next);
        self.open.push(entry, position, now_ns);
        self.totals
            .count(entry.messages, entry.payload_bytes() as u32);
        self.next.entry += 1;
        self.end += 1;
        (ordinal, position)
    }

    pub(crate) fn open_ledger(&mut self, ledger: u64, epoch: u32) {
        self.next = Position { ledger, entry: 0 };
        self.ledgers.push(LedgerRun {
            ledger,
            epoch,
            first_entry: 0,
            first_ordinal: self.end,
        });
    }

    /// Takes an empty block as the open one; gives back the old one, which must be empty, with its
    /// class.
    pub(crate) fn set_open(
        &mut self,
        mut shell: Arc<Block>,
        class: u8,
    ) -> Option<(Arc<Block>, u8)> {
        let old = self.take_open();
        let inner = Arc::get_mut(&mut shell).expect("a block of the pool is not shared");
        std::mem::swap(inner, &mut self.open);
        self.shell = Some(shell);
        self.open_first = self.end;
        self.open_before = self.totals;
        self.open_class = class;
        old
    }

    /// Takes the open block away, with whatever it holds.
    pub(crate) fn take_open(&mut self) -> Option<(Arc<Block>, u8)> {
        let mut shell = self.shell.take()?;
        let inner = Arc::get_mut(&mut shell).expect("the open block's shell is not shared");
        std::mem::swap(inner, &mut self.open);
        Some((shell, self.open_class))
    }

    /// True if the ordinal is within a stretch being read.
    pub(crate) fn is_reading(&self, ordinal: u64) -> bool {
        self.reading
            .iter()
            .any(|&(first, count)| first <= ordinal && ordinal < first + u64::from(count))
    }

    /// Ends the open block; gives it as a shared one, or `None` if there is none or it is empty.
    /// The next block's class follows what this one held: twice its bytes if a reader ended it,
    /// one class more if it was full.
    pub(crate) fn freeze(&mut self, full: bool) -> Option<(Arc<Block>, u64, u8)> {
        if self.open.is_empty() {
            return None;
        }
        let mut shell = self.shell.take()?;
        let wanted = class_for(self.open.data_bytes().saturating_mul(2)).min(CLASS_GROW_MAX);
        self.class = if full {
            (self.open_class + 1).min(CLASS_GROW_MAX)
        } else {
            wanted.max(self.open_class.min(CLASS_GROW_MAX).saturating_sub(1))
        };
        let inner = Arc::get_mut(&mut shell).expect("the open block's shell is not shared");
        std::mem::swap(inner, &mut self.open);
        Some((shell, self.open_first, self.open_class))
    }

    /// Index in `blocks` of the one that holds `ordinal`.
    #[inline]
    pub(crate) fn block_index(&self, ordinal: u64) -> Option<usize> {
        let last = self.blocks.len().checked_sub(1)?;
        if self.blocks[last].first <= ordinal {
            return (ordinal < self.blocks[last].end()).then_some(last);
        }
        if ordinal < self.blocks[0].end() {
            return (self.blocks[0].first <= ordinal).then_some(0);
        }
        let index = self
            .blocks
            .partition_point(|block| block.first <= ordinal)
            .checked_sub(1)?;
        (ordinal < self.blocks[index].end()).then_some(index)
    }

    /// Puts a block where its ordinals belong.
    pub(crate) fn insert_block(&mut self, block: BlockRef) {
        let at = self
            .blocks
            .partition_point(|other| other.first < block.first);
        if at == self.blocks.len() {
            self.blocks.push_back(block);
        } else {
            self.blocks.insert(at, block);
        }
    }

    /// True if the ordinal is in the open block.
    #[inline]
    pub(crate) fn in_open(&self, ordinal: u64) -> bool {
        self.shell.is_some() && ordinal >= self.open_first && ordinal < self.end
    }

    /// One past the stretch from `ordinal` on that is ready, not in memory, not being read and not
    /// known to be unreadable; `ordinal` itself if it is not such.
    pub(crate) fn unread_end(&self, ordinal: u64) -> u64 {
        if self.block_index(ordinal).is_some()
            || self.is_reading(ordinal)
            || self.failed.contains(&ordinal)
        {
            return ordinal;
        }
        let after = self.blocks.partition_point(|block| block.first <= ordinal);
        let mut end = self
            .blocks
            .get(after)
            .map_or(self.ready, |block| block.first);
        if self.shell.is_some() && !self.open.is_empty() {
            end = end.min(self.open_first);
        }
        for &(first, _) in self.reading.iter().filter(|&&(first, _)| first > ordinal) {
            end = end.min(first);
        }
        if let Some(&failed) = self.failed.range(ordinal..).next() {
            end = end.min(failed);
        }
        end.min(self.ready).max(ordinal)
    }

    /// The index lets go of entries below `before`, and their segments with it.
    pub(crate) fn forget_stored(&mut self, before: u64, segments: &mut Segments) {
        let mut run = (Spot::PENDING, 0);
        self.index.trim(before, |spot| {
            if spot.segment != run.0 {
                if run.0 != Spot::PENDING {
                    segments.consumed(run.0, run.1);
                }
                run = (spot.segment, 0);
            }
            run.1 += 1;
        });
        if run.0 != Spot::PENDING {
            segments.consumed(run.0, run.1);
        }
        self.failed = self.failed.split_off(&before);
    }

    /// Meta of an entry in memory.
    pub(crate) fn meta(&self, ordinal: u64) -> Option<&EntryMeta> {
        if self.in_open(ordinal) {
            return Some(self.open.meta((ordinal - self.open_first) as u32));
        }
        let block = &self.blocks[self.block_index(ordinal)?];
        Some(block.block.meta((ordinal - block.first) as u32))
    }
}
