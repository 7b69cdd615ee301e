//! What is gathered for the next commit blocks: entries by topic, ack deltas, freed segments.
use std::collections::VecDeque;

use crate::cursor::{AckDelta, CursorState, Sub};
use crate::entry::{Durability, NewEntry, SubKey, Ticket, TopicSlot};
use crate::format::{
    BLOCK_HEADER_BYTES, ENTRIES_HEADER_BYTES, SECTION_HEADER_BYTES, push_section, put_u32, section,
};
use crate::index::Spot;
use crate::log::{Appended, Log, Refused};
use crate::partial::{PARTIAL_HEAD_BYTES, push_piece};
use crate::position::Position;

/// Entries of one topic in a batch: they become one section, adjacent on disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) slot: TopicSlot,
    pub(crate) generation: u32,
    pub(crate) first: u64,
    pub(crate) count: u32,
}

/// A moved mark-delete; the last of a batch wins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark {
    pub(crate) topic: u64,
    pub(crate) sub: u64,
    /// `None` if a reset in the same batch took it back.
    pub(crate) at: Option<Position>,
}

/// What becomes one commit block. All buffers are used again.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) ticket: u64,
    pub(crate) groups: Vec<Group>,
    /// Encoded bytes of the groups.
    pub(crate) data_bytes: usize,
    /// Finished sections of acks and resets, in the order they came.
    pub(crate) cursor: Vec<u8>,
    pub(crate) cursor_sections: u32,
    /// Topics and subscriptions that are reset among them.
    pub(crate) resets: Vec<(u64, u64)>,
    pub(crate) marks: Vec<Mark>,
    /// Slots of segments that are freed.
    pub(crate) freed: Vec<u32>,
    /// An entry of a `written` topic is in it: it is written at the end of its turn.
    pub(crate) has_written: bool,
    /// Something in it is promised to be synced.
    pub(crate) wants_sync: bool,
    ranges: Option<OpenRanges>,
}

/// The acked section at the end of `Batch::cursor` that more stretches may join.
#[derive(Clone, Copy, Debug)]
struct OpenRanges {
    at: usize,
    topic: u64,
    sub: u64,
    ledger: u64,
    base: u64,
    end: u64,
    count: u32,
}

/// Longest record one ack adds: a section of one stretch.
const ACK_BYTES_MAX: usize = SECTION_HEADER_BYTES + 40 + 8;

impl Batch {
    pub(crate) fn has_records(&self) -> bool {
        !self.cursor.is_empty() || !self.marks.is_empty() || !self.freed.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && !self.has_records()
    }

    /// Bytes of the block, without padding and checkpoint.
    pub(crate) fn encoded_bytes(&self) -> usize {
        let words = |count: usize, each: usize| {
            if count == 0 {
                0
            } else {
                SECTION_HEADER_BYTES + count * each
            }
        };
        BLOCK_HEADER_BYTES
            + self.data_bytes
            + self.cursor.len()
            + words(self.marks.len(), 32)
            + words(self.freed.len(), 8)
    }

    pub(crate) fn clear(&mut self) {
        self.groups.clear();
        self.data_bytes = 0;
        self.clear_records();
        self.has_written = false;
        self.wants_sync = false;
    }

    pub(crate) fn clear_records(&mut self) {
        self.cursor.clear();
        self.cursor_sections = 0;
        self.resets.clear();
        self.marks.clear();
        self.freed.clear();
        self.ranges = None;
    }

    /// Moves the records behind those of `ahead`, a batch of records that no ticket waits for; false if
    /// they have to stay for now: they would make it too long, or undo a reset by a mark from before it
    /// (a block has its marks last).
    pub(crate) fn move_records(&mut self, ahead: &mut Batch, bytes_max: usize) -> bool {
        let bytes = self.encoded_bytes() - self.data_bytes;
        let fits = !ahead.has_records() || ahead.encoded_bytes() + bytes <= bytes_max;
        if !fits || !self.resets.is_empty() && !ahead.marks.is_empty() {
            return false;
        }
        ahead.cursor.append(&mut self.cursor);
        ahead.cursor_sections += self.cursor_sections;
        ahead.resets.append(&mut self.resets);
        ahead.marks.append(&mut self.marks);
        ahead.freed.append(&mut self.freed);
        ahead.wants_sync = true;
        self.clear_records();
        true
    }

    fn push_reset(&mut self, topic: u64, sub: u64, to: Option<Position>) {
        let at = to.unwrap_or_default();
        let words = [topic, sub, u64::from(to.is_some()), at.ledger, at.entry];
        push_section(&mut self.cursor, section::RESET, &words);
        self.resets.push((topic, sub));
        self.cursor_sections += 1;
        self.ranges = None;
        self.wants_sync = true;
    }

    fn push_partial(&mut self, topic: u64, sub: u64, at: Position, words: &[u64]) {
        push_piece(&mut self.cursor, (topic, sub), at, words, 0, usize::MAX);
        self.cursor_sections += 1;
        self.ranges = None;
        self.wants_sync = true;
    }

    fn push_acked(&mut self, topic: u64, sub: u64, first: Position, count: u32) {
        self.wants_sync = true;
        let end = first.entry.saturating_add(u64::from(count));
        if let Some(open) = &mut self.ranges
            && (open.topic, open.sub, open.ledger) == (topic, sub, first.ledger)
            && first.entry >= open.base
            && end - open.base <= u64::from(u32::MAX)
        {
            if first.entry == open.end {
                let len_at = self.cursor.len() - 4;
                let last = self.cursor.last_chunk::<4>().copied().unwrap_or_default();
                let len = u32::from_le_bytes(last) + count;
                put_u32(&mut self.cursor, len_at, len);
            } else {
                open.count += 1;
                let offset = (first.entry - open.base) as u32;
                self.cursor.extend_from_slice(&offset.to_le_bytes());
                self.cursor.extend_from_slice(&count.to_le_bytes());
                let payload = self.cursor.len() - open.at - SECTION_HEADER_BYTES;
                put_u32(&mut self.cursor, open.at + 4, payload as u32);
                put_u32(
                    &mut self.cursor,
                    open.at + SECTION_HEADER_BYTES + 32,
                    open.count,
                );
            }
            open.end = end;
            return;
        }
        let at = self.cursor.len();
        // Count 1 with its padding word, then offset 0 and the length.
        let words = [
            topic,
            sub,
            first.ledger,
            first.entry,
            1,
            u64::from(count) << 32,
        ];
        push_section(&mut self.cursor, section::ACKED, &words);
        self.cursor_sections += 1;
        self.ranges = Some(OpenRanges {
            at,
            topic,
            sub,
            ledger: first.ledger,
            base: first.entry,
            end,
            count: 1,
        });
    }
}

/// The open batch, those that wait to be written, and spent ones for reuse.
#[derive(Debug)]
pub(crate) struct Gather {
    pub(crate) open: Batch,
    pub(crate) closed: VecDeque<Batch>,
    spent: Vec<Batch>,
    /// Size at which a batch is closed; a longer entry is alone with what came before it.
    pub(crate) batch_bytes_max: usize,
    /// Data bytes appended and not yet done.
    pub(crate) held_bytes: u64,
    /// A commit without waiting for data: somebody waits for an ack, or the log is closing.
    pub(crate) soon: bool,
}

impl Gather {
    pub(crate) fn new(batch_bytes_max: usize) -> Gather {
        Gather {
            open: Batch {
                ticket: 1,
                ..Batch::default()
            },
            closed: VecDeque::new(),
            spent: Vec::new(),
            batch_bytes_max,
            held_bytes: 0,
            soon: false,
        }
    }

    /// Closes the open batch if `bytes` more would make it too long.
    pub(crate) fn make_room(&mut self, bytes: usize) {
        if !self.open.is_empty() && self.open.encoded_bytes() + bytes > self.batch_bytes_max {
            self.close();
        }
    }

    pub(crate) fn close(&mut self) {
        let ticket = self.open.ticket + 1;
        let mut next = self.spent.pop().unwrap_or_default();
        next.ticket = ticket;
        self.closed
            .push_back(std::mem::replace(&mut self.open, next));
        self.soon = false;
    }

    pub(crate) fn spend(&mut self, mut batch: Batch) {
        self.held_bytes -= batch.data_bytes as u64;
        batch.clear();
        self.spent.push(batch);
    }

    /// What is reset by the batches that no block has yet.
    pub(crate) fn resets_waiting(&self) -> Vec<(u64, u64)> {
        let closed = self.closed.iter().flat_map(|batch| &batch.resets);
        closed.chain(&self.open.resets).copied().collect()
    }

    /// Pages that the gathered batches will take, at most.
    pub(crate) fn pages_waiting(&self) -> u64 {
        let pages = |batch: &Batch| crate::format::pages(batch.encoded_bytes()) as u64;
        pages(&self.open) + self.closed.iter().map(pages).sum::<u64>()
    }
}

impl Log {
    pub(crate) fn append_stored(
        &mut self,
        slot: TopicSlot,
        entry: &NewEntry<'_>,
        now_ns: u64,
    ) -> Result<Appended, Refused> {
        let durability = self.topics[slot.0 as usize].durability;
        let stored = entry.stored_bytes();
        self.admit(stored)?;
        self.make_room(slot, entry.payload_bytes(), durability)?;
        let Some(store) = &mut self.store else {
            return Err(Refused::NoDisk);
        };
        let section_bytes = SECTION_HEADER_BYTES + ENTRIES_HEADER_BYTES;
        store.gather.make_room(stored + section_bytes);
        let batch = &mut store.gather.open;
        let topic = &mut self.topics[slot.0 as usize];
        let generation = topic.generation;
        let live = topic.live.get_or_insert_default();
        let (ordinal, position) = live.push(entry, now_ns);
        let bytes = entry.payload_bytes() as u32;
        live.index.push(
            Spot::new(Spot::PENDING, 0, bytes, entry.messages),
            &entry.hints(),
        );
        let mut bytes = stored;
        if live.group.0 == batch.ticket {
            batch.groups[live.group.1 as usize].count += 1;
        } else {
            live.group = (batch.ticket, batch.groups.len() as u32);
            batch.groups.push(Group {
                slot,
                generation,
                first: ordinal,
                count: 1,
            });
            bytes += section_bytes;
        }
        batch.data_bytes += bytes;
        match durability {
            Durability::Synced => batch.wants_sync = true,
            _ => batch.has_written = true,
        }
        store.gather.held_bytes += bytes as u64;
        Ok(Appended {
            ordinal,
            position,
            ticket: Ticket(store.gather.open.ticket),
        })
    }

    /// Whether an entry of so many stored bytes may be taken now.
    fn admit(&mut self, stored: usize) -> Result<(), Refused> {
        let Some(store) = &mut self.store else {
            return Err(Refused::NoDisk);
        };
        if store.poisoned.is_some() {
            return Err(Refused::Poisoned);
        }
        let alone = BLOCK_HEADER_BYTES + SECTION_HEADER_BYTES + ENTRIES_HEADER_BYTES + stored;
        if alone > store.block_bytes_max {
            return Err(Refused::TooLarge);
        }
        let held = store.gather.held_bytes;
        let over = held > 0 && held + stored as u64 > self.options.gather_bytes_max;
        if over {
            self.starved_appends = true;
            store.stats.held_appends += 1;
            return Err(Refused::NoMemory);
        }
        if store.no_space && !store.has_room_for(alone) {
            store.say_full(&mut self.events);
            return Err(Refused::DiskFull);
        }
        Ok(())
    }

    /// Starts keeping the ack state of a subscription of a durable topic. If the log has it from
    /// before, that state stays; else everything up to `mark_delete` counts as acked. Done with
    /// the ticket. Memory topics keep none here: ticket 0.
    pub fn open_sub(
        &mut self,
        slot: TopicSlot,
        sub: SubKey,
        mark_delete: Option<Position>,
    ) -> Ticket {
        if !self.topics[slot.0 as usize].durability.is_stored() || self.store.is_none() {
            return Ticket(0);
        }
        let topic = &mut self.topics[slot.0 as usize];
        let live = topic.live.get_or_insert_default();
        if let Some(known) = live.subs.get_mut(sub) {
            known.opened = true;
            return Ticket(known.ticket);
        }
        let mark = mark_delete.map_or(live.first, |at| {
            live.ledgers.ordinal_after(at, live.first, live.end)
        });
        let mut new = Sub::new(sub, mark_delete, mark.max(live.first));
        new.opened = true;
        live.subs.insert(new);
        if mark_delete.is_some() {
            return self.ack_record(slot, sub, AckDelta::Reset(mark_delete));
        }
        Ticket(0)
    }

    /// Forgets a subscription's ack state.
    pub fn drop_sub(&mut self, slot: TopicSlot, sub: SubKey) {
        if let Some(live) = self.topics[slot.0 as usize].live.as_deref_mut() {
            live.subs.remove(sub);
        }
    }

    /// The ack state the log keeps for a subscription of a durable topic.
    #[must_use]
    pub fn cursor(&self, slot: TopicSlot, sub: SubKey) -> Option<CursorState> {
        let live = self.live(slot)?;
        let state = live.subs.get(sub)?;
        let mut acked = Vec::new();
        let mut next = 0;
        while let Some((first, count)) = state.next_acked(next, u64::MAX) {
            for (run, first, count) in live.ledgers.pieces(first, first + count) {
                acked.push((run.position(first), count));
            }
            next = first + count;
        }
        let topic = self.topics[slot.0 as usize].key;
        Some(CursorState {
            topic,
            sub,
            mark_delete: state.mark_at,
            acked,
            partial: state
                .partial_from(0)
                .filter_map(|(at, words)| Some((live.ledgers.position(at)?, words.to_vec())))
                .collect(),
        })
    }

    /// Takes note of acks; they ride on the next commit, or on one of their own after
    /// `ack_delay_ns`, or at once after [`Log::commit_soon`]. Done with the ticket.
    pub fn ack_record(&mut self, slot: TopicSlot, sub: SubKey, delta: AckDelta<'_>) -> Ticket {
        let topic = &mut self.topics[slot.0 as usize];
        let (Some(live), Some(store)) = (topic.live.as_deref_mut(), &mut self.store) else {
            return Ticket(0);
        };
        let Some(state) = live.subs.get_mut(sub) else {
            return Ticket(0);
        };
        if store.poisoned.is_some() {
            // Never done: nothing is written any more.
            return Ticket(store.gather.open.ticket);
        }
        let (first, end, ledgers) = (live.first, live.end, &live.ledgers);
        let gather = &mut store.gather;
        gather.make_room(ACK_BYTES_MAX);
        match delta {
            AckDelta::MarkDelete(at) => {
                if !state.mark_delete(at, ledgers.ordinal_after(at, first, end)) {
                    return Ticket(state.ticket);
                }
                let mark = Mark {
                    topic: topic.key.0,
                    sub: sub.0,
                    at: Some(at),
                };
                let batch = &mut gather.open;
                if state.listed.0 == batch.ticket {
                    batch.marks[state.listed.1 as usize] = mark;
                } else {
                    state.listed = (batch.ticket, batch.marks.len() as u32);
                    batch.marks.push(mark);
                }
                batch.wants_sync = true;
            }
            AckDelta::Ranges(ranges) => {
                for &(at, count) in ranges {
                    gather.make_room(ACK_BYTES_MAX);
                    let from = ledgers.ordinal_at_or_after(at, first, end);
                    let to = ledgers.ordinal_after(at.last_of(count), first, end);
                    state.ack(from, to, ledgers);
                    let count = u32::try_from(count).unwrap_or(u32::MAX);
                    gather.open.push_acked(topic.key.0, sub.0, at, count);
                }
            }
            AckDelta::Batch(sets) => {
                let mut is_recorded = false;
                for &(at, given) in sets {
                    let ordinal = ledgers.ordinal(at, end);
                    let Some((ordinal, spot)) =
                        ordinal.zip(ordinal.and_then(|o| live.index.get(o)))
                    else {
                        continue;
                    };
                    let Some(words) = state.ack_part(ordinal, given, spot.messages) else {
                        continue;
                    };
                    is_recorded = true;
                    gather.make_room(PARTIAL_HEAD_BYTES + words.len() * 8);
                    if words.is_empty() {
                        state.ack(ordinal, ordinal + 1, ledgers);
                        gather.open.push_acked(topic.key.0, sub.0, at, 1);
                    } else {
                        gather.open.push_partial(topic.key.0, sub.0, at, words);
                    }
                }
                if !is_recorded {
                    return Ticket(state.ticket);
                }
            }
            AckDelta::Reset(to) => {
                let mark = to.map_or(first, |at| ledgers.ordinal_after(at, first, end));
                state.reset(to, mark);
                if state.listed.0 == gather.open.ticket {
                    gather.open.marks[state.listed.1 as usize].at = None;
                    state.listed.0 = 0;
                }
                gather.open.push_reset(topic.key.0, sub.0, to);
            }
        }
        state.ticket = gather.open.ticket;
        Ticket(state.ticket)
    }

    /// Somebody waits for an ack: the next `flush_turn` commits what is gathered.
    pub fn commit_soon(&mut self) {
        if let Some(store) = &mut self.store
            && !store.gather.open.is_empty()
        {
            store.gather.soon = true;
        }
    }
}
