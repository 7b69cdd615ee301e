//! What a write or a sync came to: receipts, poison, and trims that waited for it.
use super::*;

impl Log {
    pub(super) fn on_written(
        &mut self,
        store: &mut Store,
        (segment, offset, len, again): (u32, u64, usize, bool),
        done: DiskDone,
    ) {
        if store.poisoned.is_some() {
            return;
        }
        let written = match done.result {
            Ok(written) => written,
            Err(error) => return self.poison(store, error),
        };
        if written < len {
            let id = store.segments.get(segment).id;
            let from = written / PAGE_BYTES * PAGE_BYTES;
            let Some(rest) = done.buffer.filter(|buffer| !again && buffer.len() == len) else {
                let text = format!("write of {len} bytes to {id} at {offset} ended at {written}");
                return self.poison(store, DiskError { errno: 0, text });
            };
            // A short write is continued once (3.10), from the page it stopped in.
            let mut buffer = store.take_buffer(len - from);
            buffer
                .as_mut_slice()
                .copy_from_slice(&rest.as_slice()[from..]);
            let offset = offset + from as u64;
            let pending = Pending::Write {
                segment,
                offset,
                len: len - from,
                again: true,
            };
            store.push_op(
                DiskOpKind::Write {
                    segment: id,
                    offset,
                    buffer,
                },
                pending,
            );
            return;
        }
        if let Some(buffer) = done.buffer {
            store.put_buffer(buffer);
        }
        store.stats.bytes_written += len as u64;
        let Some(writing) = &mut store.writing else {
            return;
        };
        writing.in_flight = false;
        if !writing.pieces.is_empty() {
            return;
        }
        let Some(writing) = store.writing.take() else {
            return;
        };
        self.block_written(store, writing.done);
        store.start_sync(self.options.gather_bytes_max / 4);
    }

    pub(super) fn block_written(&mut self, store: &mut Store, mut done: Unsynced) {
        store.stats.blocks_written += 1;
        if done.seals && !store.is_marked() {
            store.checkpoint.start_at_roll();
        }
        store.unsynced_bytes += done.bytes;
        store.unsynced_wants += u32::from(done.wants);
        if let Some(batch) = &done.batch {
            store.done_written = store.done_written.max(batch.ticket);
            if store.proven {
                done.said_written = true;
                self.mark_ready(batch, Durability::Written, &mut store.segments);
            }
        }
        store.unsynced.push_back(done);
    }

    pub(super) fn on_synced(
        &mut self,
        store: &mut Store,
        id: u64,
        result: Result<usize, DiskError>,
    ) {
        let Some((_, through)) = store.sync.take_if(|sync| sync.0 == id) else {
            return;
        };
        if let Err(error) = result {
            return self.poison(store, error);
        }
        store.stats.syncs += 1;
        store.chain.synced_seq = through;
        while let Some(done) = store.unsynced.pop_front_if(|done| done.seq <= through) {
            store.unsynced_bytes -= done.bytes;
            store.unsynced_wants -= u32::from(done.wants);
            if done.seals {
                let segment = store.segments.get_mut(done.segment);
                segment.synced = true;
                let id = segment.id;
                store.segments.look = true;
                store.push_op(DiskOpKind::Forget { segment: id }, Pending::Forget);
            }
            if let Some(batch) = done.batch {
                store.done_synced = store.done_synced.max(batch.ticket);
                if !done.said_written {
                    self.mark_ready(&batch, Durability::Written, &mut store.segments);
                }
                self.mark_ready(&batch, Durability::Synced, &mut store.segments);
                store.gather.spend(batch);
            }
        }
        if !store.proven {
            store.proven = true;
            for done in &mut store.unsynced {
                if let Some(batch) = &done.batch
                    && !std::mem::replace(&mut done.said_written, true)
                {
                    self.mark_ready(batch, Durability::Written, &mut store.segments);
                }
            }
        }
        if store.checkpoint.note_synced(through) {
            store.stats.checkpoints += 1;
            store.segments.look = true;
        }
        self.use_freed(store);
    }

    /// Entries of the batch's topics of this durability are dispatchable now.
    pub(super) fn mark_ready(
        &mut self,
        batch: &Batch,
        durability: Durability,
        segments: &mut Segments,
    ) {
        for group in &batch.groups {
            let topic = &mut self.topics[group.slot.0 as usize];
            if topic.generation != group.generation || topic.durability != durability {
                continue;
            }
            let Some(live) = topic.live.as_deref_mut() else {
                continue;
            };
            live.ready = group.first + u64::from(group.count);
            if !std::mem::replace(&mut live.ready_said, true) {
                self.events.push_back(LogEvent::Ready(group.slot));
            }
            let wanted = live.trim_wanted;
            if wanted > live.first {
                self.trim_ready(group.slot, wanted, segments);
            }
        }
    }

    /// Nothing unproven gets a receipt any more, and nothing more is written.
    pub(crate) fn poison(&mut self, store: &mut Store, error: DiskError) {
        if store.poisoned.is_some() {
            return;
        }
        store.poisoned = Some(error.clone());
        let dropped: Vec<u64> = store
            .ops
            .iter()
            .filter(|op| {
                matches!(
                    op.kind,
                    DiskOpKind::Write { .. } | DiskOpKind::Commit { .. } | DiskOpKind::Sync { .. }
                )
            })
            .map(|op| op.id)
            .collect();
        store.ops.retain(|op| !dropped.contains(&op.id));
        store.pending.retain(|(id, _)| !dropped.contains(id));
        self.events.push_back(LogEvent::Poisoned { error });
    }

    /// Moves the first live entry of a durable topic, as far as its entries are ready.
    pub(crate) fn trim_stored(&mut self, slot: TopicSlot, before: u64) {
        let Some(mut store) = self.store.take() else {
            return;
        };
        self.trim_ready(slot, before, &mut store.segments);
        self.store = Some(store);
    }

    pub(super) fn trim_ready(&mut self, slot: TopicSlot, before: u64, segments: &mut Segments) {
        let Some(live) = self.topics[slot.0 as usize].live.as_deref_mut() else {
            return;
        };
        live.trim_wanted = live.trim_wanted.max(before);
        let before = before.min(live.ready);
        if before <= live.first {
            return;
        }
        if let Some(at) = live.ledgers.position(before - 1) {
            live.subs.pass(at, before);
        }
        live.forget_stored(before, segments);
        self.let_go(slot, before);
    }
}
