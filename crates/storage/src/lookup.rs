//! What the log knows of live entries without reading them: hints, sizes, sums, seek by time.
use crate::block::Block;
use crate::entry::{EntryMeta, Hints, TopicSlot};
use crate::index::Totals;
use crate::log::Log;
use crate::topic::Live;

impl Log {
    /// Messages of a live entry.
    #[must_use]
    pub fn messages(&self, slot: TopicSlot, ordinal: u64) -> Option<u32> {
        let live = self.live(slot)?;
        match live.index.get(ordinal) {
            Some(spot) => Some(spot.messages),
            None => live.meta(ordinal).map(|meta| meta.messages),
        }
    }

    /// Length of a live entry's properties and body, in bytes.
    #[must_use]
    pub fn bytes(&self, slot: TopicSlot, ordinal: u64) -> Option<u32> {
        let live = self.live(slot)?;
        match live.index.get(ordinal) {
            Some(spot) => Some(spot.bytes),
            None => live.meta(ordinal).map(EntryMeta::payload_bytes),
        }
    }

    /// Hints of a live entry (rule D28), in memory or not. Logarithmic in the topic's entries with
    /// times, or in its blocks for a memory topic.
    #[must_use]
    pub fn hints(&self, slot: TopicSlot, ordinal: u64) -> Option<Hints> {
        let live = self
            .live(slot)
            .filter(|live| (live.first..live.end).contains(&ordinal))?;
        match live.index.hints(ordinal) {
            Some(hints) => Some(hints),
            None => live.meta(ordinal).map(EntryMeta::hints),
        }
    }

    /// Live entries that have a deliver-at or a deadline, in order, with their hints: what a topic's
    /// timers are made of again. Reads nothing. Durable topics: looks at those entries only; memory
    /// topics: walks all of them, whose number the memory bounds.
    #[must_use]
    pub fn timed(&self, slot: TopicSlot) -> Vec<(u64, Hints)> {
        let Some(live) = self.live(slot) else {
            return Vec::new();
        };
        if self.topics[slot.0 as usize].durability.is_stored() {
            let timed = live.index.timed();
            return timed
                .filter_map(|ordinal| Some((ordinal, live.index.hints(ordinal)?)))
                .collect();
        }
        let entries = live
            .memory_blocks()
            .flat_map(|(first, block)| (first..).zip(block.metas().iter().map(EntryMeta::hints)));
        entries
            .filter(|(ordinal, hints)| *ordinal >= live.first && hints.is_timed())
            .collect()
    }

    /// Messages in live entries from `ordinal` on. Walks 512 entries at most.
    #[must_use]
    pub fn backlog_messages(&self, slot: TopicSlot, ordinal: u64) -> u64 {
        self.totals_from(slot, ordinal).messages
    }

    /// Bytes of properties and bodies of live entries from `ordinal` on. Walks 512 entries at most.
    #[must_use]
    pub fn bytes_from(&self, slot: TopicSlot, ordinal: u64) -> u64 {
        self.totals_from(slot, ordinal).bytes
    }

    fn totals_from(&self, slot: TopicSlot, ordinal: u64) -> Totals {
        let Some(live) = self.live(slot) else {
            return Totals::default();
        };
        let ordinal = ordinal.max(live.first);
        if !self.topics[slot.0 as usize].durability.is_stored() {
            live.memory_totals_from(ordinal)
        } else {
            live.index.totals_from(ordinal)
        }
    }

    /// The first live entry, in the order of positions, that was published at `publish_ms` or
    /// later, else the end (rule D135; publish times may be disordered).
    ///
    /// Reads nothing. Durable topics: one number per 256 entries, then 512 entries at most.
    /// Memory topics: walks the entries, whose number the memory bounds.
    #[must_use]
    pub fn first_published_since(&self, slot: TopicSlot, publish_ms: u64) -> u64 {
        let Some(live) = self.live(slot) else {
            return 0;
        };
        if !self.topics[slot.0 as usize].durability.is_stored() {
            live.memory_published_since(publish_ms)
        } else {
            live.index.first_published_since(publish_ms)
        }
    }
}

impl Live {
    /// The blocks of a memory topic with the ordinals they start at; the open one is the last.
    fn memory_blocks(&self) -> impl Iterator<Item = (u64, &Block)> {
        let frozen = self.blocks.iter().map(|block| (block.first, &*block.block));
        frozen.chain(
            self.shell
                .is_some()
                .then_some((self.open_first, &self.open)),
        )
    }

    fn memory_totals_from(&self, ordinal: u64) -> Totals {
        if ordinal >= self.end {
            return Totals::default();
        }
        let (first, block, after) = match self.block_index(ordinal) {
            Some(index) => {
                let after = match self.blocks.get(index + 1) {
                    Some(next) => next.before,
                    None if self.open.is_empty() => self.totals,
                    None => self.open_before,
                };
                (self.blocks[index].first, &*self.blocks[index].block, after)
            }
            None => (self.open_first, &self.open, self.totals),
        };
        let mut totals = self.totals - after;
        for meta in &block.metas()[(ordinal - first) as usize..] {
            totals.count(meta.messages, meta.payload_bytes());
        }
        totals
    }

    fn memory_published_since(&self, publish_ms: u64) -> u64 {
        for (first, block) in self.memory_blocks() {
            let skip = self.first.saturating_sub(first);
            let mut live = (first..).zip(block.metas()).skip(skip as usize);
            if let Some((found, _)) = live.find(|(_, meta)| meta.publish_ms >= publish_ms) {
                return found;
            }
        }
        self.end
    }
}
