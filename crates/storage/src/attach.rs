//! Topics meet what recovery found of them; topics and subscriptions nobody wants are forgotten.
use crate::cursor::{Image, Sub};
use crate::entry::{SubKey, TopicSlot};
use crate::index::Spot;
use crate::log::Log;
use crate::segments::{SegmentState, Segments};
use crate::stats::LogStats;
use crate::topic::Live;

impl Log {
    /// Gives a topic that is being opened its recovered entries and cursors.
    pub(crate) fn attach_recovered(&mut self, slot: TopicSlot) {
        let topic = &mut self.topics[slot.0 as usize];
        let Some(store) = &mut self.store else { return };
        if !topic.durability.is_stored() {
            return;
        }
        store.wanted = true;
        let Some(found) = store.recovered.remove(&topic.key) else {
            return;
        };
        let mut live = Live::default();
        live.ledgers = found.ledgers;
        live.end = found.index.end();
        live.ready = live.end;
        live.index = found.index;
        live.sequences = found.sequences;
        for (key, image) in &found.cursors {
            live.subs.insert(live.sub_from(*key, image));
        }
        topic.live = Some(Box::new(live));
    }

    /// The stored entries of a topic that is being dropped no longer keep their segments.
    pub(crate) fn forget_topic(&mut self, slot: TopicSlot) {
        let topic = &mut self.topics[slot.0 as usize];
        if let (Some(store), Some(live)) = (&mut self.store, topic.live.as_deref_mut()) {
            live.forget_stored(live.end, &mut store.segments);
        }
    }

    /// After all topics and subscriptions that the metadata knows were opened: forgets recovered
    /// entries and cursors of all others, which were deleted.
    pub fn forget_unopened(&mut self) {
        let Some(store) = &mut self.store else { return };
        for mut found in std::mem::take(&mut store.recovered).into_values() {
            let consumed = |spot: &Spot| store.segments.consumed(spot.segment, 1);
            found.index.trim(found.index.end(), consumed);
        }
        for topic in &mut self.topics {
            if let Some(live) = topic.live.as_deref_mut() {
                live.subs.retain_opened();
            }
        }
    }

    /// Counters and gauges.
    #[must_use]
    pub fn stats(&self) -> LogStats {
        let mut stats = self.store.as_ref().map_or_else(LogStats::default, |store| {
            let mut stats = store.stats.clone();
            stats.gathered_bytes = store.gather.held_bytes;
            stats.reads_in_flight = store.reads_in_flight() as u64;
            stats.disk_full = u64::from(store.full_said);
            stats.poisoned = u64::from(store.poisoned.is_some());
            fill_segments(&mut stats, &store.segments);
            stats
        });
        stats.tail_bytes = self.tail.tail_bytes();
        stats.memory_bytes = self.memory_bytes;
        stats.lent_bytes = self.pool.lent_bytes();
        stats.read_buffers_out = u64::from(self.pool.read_out());
        stats
    }
}

fn fill_segments(stats: &mut LogStats, segments: &Segments) {
    stats.spares_ready = segments.count(SegmentState::Ready) as u64;
    for (_, segment) in segments.iter() {
        let in_use = matches!(
            segment.state,
            SegmentState::Active | SegmentState::Sealed | SegmentState::Freeing
        );
        stats.segments_in_use += u64::from(in_use);
        stats.segments_quarantined += u64::from(segment.quarantined);
    }
}

impl Live {
    fn sub_from(&self, key: SubKey, image: &Image) -> Sub {
        let (first, end, ledgers) = (self.first, self.end, &self.ledgers);
        let mark = image
            .mark
            .map_or(first, |at| ledgers.ordinal_after(at, first, end));
        let mut sub = Sub::new(key, image.mark, mark);
        for (at, count) in image.acked() {
            let from = ledgers.ordinal_at_or_after(at, first, end);
            let to = ledgers.ordinal_after(at.last_of(count), first, end);
            sub.ack(from, to, ledgers);
        }
        let messages = |at| Some(self.index.get(ledgers.ordinal(at, end)?)?.messages);
        for (at, words) in image.partial_from((0, 0), messages) {
            if let Some(ordinal) = ledgers.ordinal(at, end)
                && let Some(spot) = self.index.get(ordinal)
                && sub
                    .ack_part(ordinal, &words, spot.messages)
                    .is_some_and(<[_]>::is_empty)
            {
                sub.ack(ordinal, ordinal + 1, ledgers);
            }
        }
        sub
    }
}
