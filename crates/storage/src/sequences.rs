//! The highest sequence of each producer of a topic whose entries are numbered: how what was stored
//! already is told from what is new, after a crash too (rule D141).
//!
//! It is derived from the entries: each carries its producer and its sequence. A checkpoint has what
//! the blocks before it said, recovery reads the blocks behind. So a sequence counts if and only if
//! its entry is stored, whether that was trimmed since or not.
use std::collections::BTreeMap;
use std::ops::Range;

use crate::checkpoint::Part;
use crate::entry::{TopicKey, TopicSlot};
use crate::format::{SECTION_HEADER_BYTES, push_section, section};
use crate::log::Log;
use crate::topic::Live;

/// By the producer's durable number.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    highest: BTreeMap<u64, Highest>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Highest {
    appended: u64,
    /// What a checkpoint may say: an entry that has it is in a block.
    stored: Option<u64>,
}

impl Sequences {
    pub(crate) fn is_empty(&self) -> bool {
        self.highest.is_empty()
    }

    pub(crate) fn appended(&mut self, producer: u64, sequence: u64) {
        let highest = self.highest.entry(producer).or_default();
        highest.appended = highest.appended.max(sequence);
    }

    /// Recovery came across it.
    pub(crate) fn found(&mut self, producer: u64, sequence: u64) {
        self.appended(producer, sequence);
        self.stored(producer, sequence);
    }

    fn stored(&mut self, producer: u64, sequence: u64) {
        let highest = self.highest.entry(producer).or_default();
        highest.stored = highest.stored.max(Some(sequence));
    }

    /// Appends a section of a checkpoint, from the producer `from` on; the error is the producer to go
    /// on with when the room is used up.
    pub(crate) fn put(
        &self,
        out: &mut Vec<u8>,
        limit: usize,
        topic: TopicKey,
        from: u64,
        part: &mut Part,
    ) -> Result<(), u64> {
        let stored = self.highest.range(from..);
        let mut stored =
            stored.filter_map(|(&producer, highest)| Some((producer, highest.stored?)));
        let Some(mut next) = stored.next() else {
            return Ok(());
        };
        let room = limit.saturating_sub(out.len() + SECTION_HEADER_BYTES + 8) / 16;
        if room == 0 {
            return Err(next.0);
        }
        let mut words = vec![topic.0];
        let rest = loop {
            words.extend([next.0, next.1]);
            match stored.next() {
                None => break Ok(()),
                Some(more) if words.len() / 2 == room => break Err(more.0),
                Some(more) => next = more,
            }
        };
        push_section(out, section::SEQUENCES, &words);
        part.sections += 1;
        rest
    }
}

impl Live {
    /// These entries are in a block now.
    pub(crate) fn store_sequences(&mut self, mut ordinals: Range<u64>) {
        while let Some(index) = self.block_index(ordinals.start)
            && !ordinals.is_empty()
        {
            let block = &self.blocks[index];
            let skip = (ordinals.start - block.first) as usize;
            let take = (ordinals.end.min(block.end()) - ordinals.start) as usize;
            for meta in block.block.metas().iter().skip(skip).take(take) {
                if meta.is_numbered {
                    self.sequences.stored(meta.producer, meta.sequence);
                }
            }
            ordinals.start += take as u64;
        }
    }
}

impl Log {
    /// The highest sequence of the numbered entries of a producer. `None` if there never was one, or
    /// the topic was deleted since.
    #[must_use]
    pub fn last_sequence(&self, slot: TopicSlot, producer: u64) -> Option<u64> {
        let highest = self.live(slot)?.sequences.highest.get(&producer)?;
        Some(highest.appended)
    }
}
