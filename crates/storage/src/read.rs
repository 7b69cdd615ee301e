//! Reading what is not in memory: merged ranges, every entry checked before it leaves.
//!
//! Source of the rules: `spec/runtime.md` 2.2 to 2.9.
use std::sync::Arc;

use crate::block::BlockKind;
use crate::commit::{Pending, Store};
use crate::entry::{EntryMeta, TopicSlot, decode_entry};
use crate::index::{Spot, Totals};
use crate::log::{Fetch, Log, LogEvent};
use crate::op::{DiskDone, DiskError, DiskOpKind};
use crate::page::{PAGE_BYTES, PageBuf};
use crate::segments::SegmentState;
use crate::topic::{BlockRef, Live};

/// One read: consecutive ordinals whose stored bytes lie in one range of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReadPlan {
    slot: TopicSlot,
    generation: u32,
    first: u64,
    count: u32,
    segment: u32,
    offset: u64,
    len: u32,
    /// Reads that failed, came back short, or had a wrong checksum.
    attempts: u8,
    /// Reads that were interrupted.
    busy: u8,
}

/// Two wanted stretches are one range if no more lies between them (2.5).
const GAP_BYTES_MAX: u64 = 24 << 10;
/// Reads in flight per log and per topic (2.6).
const READS_MAX: usize = 64;
const TOPIC_READS_MAX: usize = 8;
/// A range is read this often before its entries count as unreadable (2.8).
const ATTEMPTS_MAX: u8 = 3;
/// EINTR and EAGAIN are repeated this often.
const BUSY_MAX: u8 = 8;
/// A block nobody came for is let go after this long if its buffer is wanted.
const FORGOTTEN_NS: u64 = 1_000_000_000;

impl Log {
    /// Plans reads for entries from `ordinal` on that are not in memory: at least `want_entries`,
    /// and on until `read_ahead_bytes` of stored bytes are planned. [`LogEvent::Fetched`] follows
    /// for each range; then `locate` finds the entries in memory, or failed.
    pub fn fetch(
        &mut self,
        slot: TopicSlot,
        ordinal: u64,
        want_entries: u32,
        read_ahead_bytes: u64,
    ) -> Fetch {
        let Some(mut store) = self.store.take() else {
            return Fetch::NotNeeded;
        };
        let fetch = self.plan_reads(&mut store, slot, ordinal, want_entries, read_ahead_bytes);
        if fetch == Fetch::NoBuffer {
            self.starved_reads = true;
        }
        self.store = Some(store);
        fetch
    }

    fn plan_reads(
        &mut self,
        store: &mut Store,
        slot: TopicSlot,
        ordinal: u64,
        want_entries: u32,
        read_ahead_bytes: u64,
    ) -> Fetch {
        let topic = &self.topics[slot.0 as usize];
        let Some(live) = topic.live.as_deref() else {
            return Fetch::NotNeeded;
        };
        if !topic.durability.is_stored() || ordinal < live.first || ordinal >= live.ready {
            return Fetch::NotNeeded;
        }
        if live.is_reading(ordinal) {
            return Fetch::AlreadyReading;
        }
        let generation = topic.generation;
        let (mut next, mut left, mut bytes_left) = (ordinal, want_entries, read_ahead_bytes);
        let mut in_flight = store.reads_in_flight();
        let mut started = false;
        while (left > 0 || bytes_left > 0) && in_flight < READS_MAX {
            let Some(live) = self.live(slot) else { break };
            if live.reading.len() >= TOPIC_READS_MAX {
                break;
            }
            let end = live.unread_end(next);
            let range_max = u64::from(self.options.read_buffer_bytes);
            let topic = (slot, generation);
            let Some(plan) = plan_range(topic, live, next, end, left, bytes_left, range_max) else {
                break;
            };
            let Some(buffer) = self.read_buffer(plan.len as usize, store.now_ns) else {
                break;
            };
            left = left.saturating_sub(plan.count);
            bytes_left = bytes_left.saturating_sub(u64::from(plan.len));
            next = plan.first + u64::from(plan.count);
            if let Some(live) = self.topics[slot.0 as usize].live.as_deref_mut() {
                live.reading.push((plan.first, plan.count));
            }
            store.segments.get_mut(plan.segment).reads += 1;
            store.emit_read(plan, buffer);
            in_flight += 1;
            started = true;
        }
        let Some(live) = self.live(slot) else {
            return Fetch::NotNeeded;
        };
        match (started, live.unread_end(ordinal) > ordinal) {
            (true, _) => Fetch::Started,
            (false, true) => Fetch::NoBuffer,
            (false, false) => Fetch::NotNeeded,
        }
    }

    /// A read buffer, if need be that of a block read earlier that was seen.
    fn read_buffer(&mut self, len: usize, now_ns: u64) -> Option<PageBuf> {
        loop {
            if let Some(buffer) = self.pool.take_read(len) {
                return Some(buffer);
            }
            let node = self.tail.oldest_read(now_ns.saturating_sub(FORGOTTEN_NS))?;
            let live = self.topics[node.slot.0 as usize].live.as_deref_mut()?;
            let index = live.block_index(node.first)?;
            let block = live.blocks.remove(index)?;
            self.tail.remove(block.node);
            self.pool.put(block.block, block.kind);
        }
    }

    pub(crate) fn has_read_buffer(&self, now_ns: u64) -> bool {
        self.pool.read_out() < self.options.read_buffers
            || self
                .tail
                .oldest_read(now_ns.saturating_sub(FORGOTTEN_NS))
                .is_some()
    }

    pub(crate) fn on_read(&mut self, store: &mut Store, plan: ReadPlan, done: DiskDone) {
        let ReadPlan { slot, .. } = plan;
        store.segments.get_mut(plan.segment).reads -= 1;
        store.segments.look = true;
        let is_current = self.topics[slot.0 as usize].generation == plan.generation;
        if is_current && let Some(live) = self.topics[slot.0 as usize].live.as_deref_mut() {
            live.reading
                .retain(|&reading| reading != (plan.first, plan.count));
        }
        let Some(buffer) = done.buffer else {
            self.pool.lose_read();
            self.events.push_back(LogEvent::Fetched(slot));
            return;
        };
        if !is_current {
            self.pool.put_read(buffer);
            return;
        }
        let read = match done.result {
            Ok(read) => read.min(buffer.len()),
            Err(DiskError {
                errno: DiskError::EINTR | DiskError::EAGAIN,
                ..
            }) if plan.busy < BUSY_MAX => {
                return self.read_again(
                    store,
                    ReadPlan {
                        busy: plan.busy + 1,
                        ..plan
                    },
                    buffer,
                );
            }
            Err(_) => 0,
        };
        let attempts = plan.attempts + 1;
        let mut metas = std::mem::take(&mut self.read_scratch);
        metas.clear();
        let whole = self.check_read(&plan, &buffer.as_slice()[..read], &mut metas);
        if !whole && attempts < ATTEMPTS_MAX {
            self.read_again(store, ReadPlan { attempts, ..plan }, buffer);
        } else if !whole && read == 0 && plan.count > 1 {
            self.read_half(store, &plan, buffer);
        } else {
            store.stats.reads += 1;
            store.stats.bytes_read += read as u64;
            self.install(store, &plan, buffer, &metas);
            self.events.push_back(LogEvent::Fetched(slot));
        }
        self.read_scratch = metas;
    }

    fn read_again(&mut self, store: &mut Store, plan: ReadPlan, buffer: PageBuf) {
        store.stats.reads_repeated += 1;
        if let Some(live) = self.topics[plan.slot.0 as usize].live.as_deref_mut() {
            live.reading.push((plan.first, plan.count));
        }
        store.segments.get_mut(plan.segment).reads += 1;
        store.emit_read(plan, buffer);
    }

    /// A range that cannot be read at all is halved, so that neighbours of a bad sector are served;
    /// the second half is fetched again when it is asked for.
    fn read_half(&mut self, store: &mut Store, plan: &ReadPlan, mut buffer: PageBuf) {
        let half = self.live(plan.slot).and_then(|live| {
            let first = plan.first.max(live.first);
            let end = (plan.first + u64::from(plan.count / 2)).max(first + 1);
            let (topic, ready) = ((plan.slot, plan.generation), end.min(live.ready));
            plan_range(topic, live, first, ready, plan.count / 2, 0, u64::MAX)
        });
        match half {
            Some(half) => {
                buffer.set_len(half.len as usize);
                self.read_again(store, half, buffer);
            }
            None => self.pool.put_read(buffer),
        }
        self.events.push_back(LogEvent::Fetched(plan.slot));
    }

    /// Checks each entry of the range: its checksum, and that it is the one the index promises.
    /// Metas of bad ones have no messages and position 0. True if none is bad.
    fn check_read(&self, plan: &ReadPlan, bytes: &[u8], metas: &mut Vec<EntryMeta>) -> bool {
        let Some(live) = self.live(plan.slot) else {
            return true;
        };
        let mut whole = true;
        for ordinal in plan.first.max(live.first)..plan.first + u64::from(plan.count) {
            let meta = check_entry(live, plan, ordinal, bytes);
            whole &= meta.is_some();
            metas.push(meta.unwrap_or_default());
        }
        whole
    }

    /// Puts what was read where readers find it. The longest good stretch keeps the buffer; others
    /// are copied, which happens beside a bad entry only.
    fn install(
        &mut self,
        store: &mut Store,
        plan: &ReadPlan,
        buffer: PageBuf,
        metas: &[EntryMeta],
    ) {
        let is_bad = |meta: &EntryMeta| meta.position.ledger == 0;
        let Some(live) = self.topics[plan.slot.0 as usize].live.as_deref_mut() else {
            return self.pool.put_read(buffer);
        };
        let base = plan.first.max(live.first);
        for (ordinal, meta) in (base..).zip(metas) {
            if is_bad(meta) && live.failed.insert(ordinal) {
                store.stats.entries_failed += 1;
                let segment = store.segments.get_mut(plan.segment);
                if !std::mem::replace(&mut segment.quarantined, true) {
                    self.events.push_back(LogEvent::Quarantined(segment.id));
                }
            }
        }
        let stretches = || {
            metas
                .chunk_by(|a, b| is_bad(a) == is_bad(b))
                .filter(|s| !is_bad(&s[0]))
        };
        let longest = stretches().max_by_key(|stretch| stretch.len());
        let Some(longest) = longest else {
            return self.pool.put_read(buffer);
        };
        let mut first = base;
        for stretch in metas.chunk_by(|a, b| is_bad(a) == is_bad(b)) {
            if !is_bad(&stretch[0]) && !std::ptr::eq(stretch, longest) {
                self.copy_stretch(plan.slot, first, stretch, buffer.as_slice(), store.now_ns);
            }
            first += stretch.len() as u64;
        }
        let before = longest.as_ptr().addr() - metas.as_ptr().addr();
        let first = base + (before / size_of::<EntryMeta>()) as u64;
        let mut block = self.pool.take_shell();
        if let Some(inner) = Arc::get_mut(&mut block) {
            inner.install(buffer);
            for &meta in longest {
                inner.push_read(meta);
            }
        }
        let node = self.tail.push_read(plan.slot, first, store.now_ns);
        let count = longest.len() as u32;
        self.open_live(plan.slot).insert_block(BlockRef {
            first,
            count,
            before: Totals::default(),
            node,
            kind: BlockKind::Read,
            block,
        });
    }

    fn copy_stretch(
        &mut self,
        slot: TopicSlot,
        first: u64,
        stretch: &[EntryMeta],
        bytes: &[u8],
        now_ns: u64,
    ) {
        let total: usize = stretch
            .iter()
            .map(|meta| meta.payload_bytes() as usize)
            .sum();
        let class = crate::block::class_for(total);
        let (mut block, class) = self.pool.take(class);
        if let Some(inner) = Arc::get_mut(&mut block) {
            for meta in stretch {
                let start = (meta.offset - meta.properties_bytes) as usize;
                let payload = &bytes[start..][..meta.payload_bytes() as usize];
                inner.push_copy(*meta, payload);
            }
        }
        let node = self.tail.push_read(slot, first, now_ns);
        let kind = BlockKind::Tail(class);
        let count = stretch.len() as u32;
        self.open_live(slot).insert_block(BlockRef {
            first,
            count,
            before: Totals::default(),
            node,
            kind,
            block,
        });
    }
}

impl Store {
    fn emit_read(&mut self, plan: ReadPlan, buffer: PageBuf) {
        let segment = self.segments.get(plan.segment);
        let (id, direct) = (
            segment.id,
            segment.state != SegmentState::Active && segment.synced,
        );
        self.stats.reads_active_segment += u64::from(!direct);
        let kind = DiskOpKind::Read {
            segment: id,
            offset: plan.offset,
            buffer,
            direct,
        };
        self.push_op(kind, Pending::Read(plan));
    }
}

/// The range that begins with `first`: entries below `end` of the same segment, as many as are
/// wanted, with gaps and length within the bounds. A longer entry has a range of its own.
fn plan_range(
    topic: (TopicSlot, u32),
    live: &Live,
    first: u64,
    end: u64,
    want_entries: u32,
    read_ahead_bytes: u64,
    range_max: u64,
) -> Option<ReadPlan> {
    if first >= end {
        return None;
    }
    let page = PAGE_BYTES as u64;
    let spot = live
        .index
        .get(first)
        .filter(|spot| spot.segment != Spot::PENDING)?;
    let start = u64::from(spot.offset) / page * page;
    let segment = spot.segment;
    let mut stop = live.index.stored_end(first, spot);
    let mut next = first + 1;
    while next < end
        && let Some(spot) = live.index.get(next)
        && spot.segment == segment
        && (next - first < u64::from(want_entries) || stop - start < read_ahead_bytes)
        && u64::from(spot.offset)
            .checked_sub(stop)
            .is_some_and(|gap| gap <= GAP_BYTES_MAX)
        && live.index.stored_end(next, spot).next_multiple_of(page) - start <= range_max
    {
        stop = live.index.stored_end(next, spot);
        next += 1;
    }
    let (slot, generation) = topic;
    Some(ReadPlan {
        slot,
        generation,
        first,
        count: (next - first) as u32,
        segment,
        offset: start,
        len: (stop.next_multiple_of(page) - start) as u32,
        attempts: 0,
        busy: 0,
    })
}

fn check_entry(live: &Live, plan: &ReadPlan, ordinal: u64, bytes: &[u8]) -> Option<EntryMeta> {
    let spot = live.index.get(ordinal)?;
    let run = live.ledgers.run_of(ordinal)?;
    let at = usize::try_from(u64::from(spot.offset).checked_sub(plan.offset)?).ok()?;
    let stored = decode_entry(bytes.get(at..)?)?;
    let expected = live.ledgers.position(ordinal)?;
    let is_it = (stored.meta.position, stored.epoch) == (expected, run.epoch)
        && stored.meta.payload_bytes() == spot.bytes
        && Some(stored.meta.hints()) == live.index.hints(ordinal);
    if !is_it {
        return None;
    }
    Some(EntryMeta {
        offset: at as u32 + stored.meta.offset,
        ..stored.meta
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::entry::{ENTRY_HEADER_BYTES, Hints, times_bytes};

    proptest! {
        /// `spec/runtime.md` 13, test 7.
        #[test]
        fn merged_ranges_cover_every_wanted_byte_once_within_the_bounds(
            entries in prop::collection::vec((0u32..60_000, 1u32..40_000, any::<bool>()), 1..80),
            want in 1u32..80,
            ahead in 0u64..2_000_000,
        ) {
            let mut live = Live::default();
            let mut offset = 4096u32;
            for &(gap, bytes, is_timed) in &entries {
                offset += gap;
                let hints = Hints { deadline_ms: u64::from(is_timed), ..Hints::default() };
                live.index.push(Spot::new(0, offset, bytes, 1), &hints);
                let header = ENTRY_HEADER_BYTES + times_bytes(is_timed);
                offset += header as u32 + bytes;
            }
            let end = entries.len() as u64;
            let mut next = 0;
            while next < end {
                let plan = plan_range((TopicSlot(0), 0), &live, next, end, want, ahead, 256 << 10).unwrap();
                prop_assert_eq!(plan.first, next);
                prop_assert_eq!(plan.offset % 4096, 0);
                prop_assert_eq!(plan.len % 4096, 0);
                prop_assert!(plan.len <= 256 << 10);
                let mut last_end = None;
                for ordinal in plan.first..plan.first + u64::from(plan.count) {
                    let spot = live.index.get(ordinal).unwrap();
                    let (from, to) =
                        (u64::from(spot.offset), live.index.stored_end(ordinal, spot));
                    prop_assert!(plan.offset <= from && to <= plan.offset + u64::from(plan.len));
                    if let Some(before) = last_end {
                        prop_assert!(from - before <= GAP_BYTES_MAX);
                    }
                    last_end = Some(to);
                }
                next += u64::from(plan.count);
            }
        }
    }
}
