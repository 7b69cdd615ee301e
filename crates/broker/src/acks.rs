//! Acks: whole entries, parts of batches, everything up to a point; and their records in the log.

use std::ops::Range;

use pelton_storage::{AckDelta, Log, Position, TopicSlot};

use crate::ack_set::AckSet;
use crate::broker::{Flush, SubIndex};
use crate::selector::Selector;
use crate::subscription::Subscription;
use crate::terminate::End;
use crate::window::State;
use crate::{Broker, ConsumerId, Reply, RequestError, RequestId};

impl Broker {
    /// An ack acts on the position, whoever sends it (rule D94); again changes nothing (D99).
    pub(crate) fn ack(&mut self, id: ConsumerId, position: Position) {
        if let Some((index, ordinal)) = self.resolve(id, position) {
            self.ack_ordinals(index, ordinal..ordinal + 1);
        }
    }

    /// As [`Broker::ack`] for consecutive entries of one ledger; of those that are trimmed or were
    /// never there nothing is left to do.
    pub(crate) fn ack_run(&mut self, id: ConsumerId, first: Position, entries: u32) {
        let index = self.acking(id);
        let ordinals = index.map_or(0..0, |index| {
            self.log.ordinals(self.sub(index).slot, first, entries)
        });
        match index {
            Some(index) if !ordinals.is_empty() => self.ack_ordinals(index, ordinals),
            _ => self.acks_ignored += 1,
        }
    }

    /// Some messages of an entry are done; what was done before stays done (rule D95).
    pub(crate) fn ack_batch(&mut self, id: ConsumerId, position: Position, still: &[u64]) {
        if let Some((index, ordinal)) = self.resolve(id, position) {
            self.ack_part(index, ordinal, still);
        }
    }

    /// Everything before the entry, and the entry but for what `still` names (rule D97).
    pub(crate) fn ack_cumulative(&mut self, id: ConsumerId, position: Position, still: &[u64]) {
        let Some((index, last)) = self.resolve(id, position) else {
            return;
        };
        if !self.sub(index).kind.is_single() {
            self.acks_ignored += 1;
            return;
        }
        let whole = still.iter().all(|&word| word == 0);
        let floor = self.sub(index).window.floor();
        self.ack_ordinals(index, floor..last + u64::from(whole));
        if !whole {
            self.ack_part(index, last, still);
        }
    }

    /// Which subscription and entry an ack names; counts what names nothing.
    pub(crate) fn resolve(
        &mut self,
        id: ConsumerId,
        position: Position,
    ) -> Option<(SubIndex, u64)> {
        let found = self.acking(id).and_then(|index| {
            let ordinal = self.log.ordinal(self.sub(index).slot, position)?;
            Some((index, ordinal))
        });
        if found.is_none() {
            self.acks_ignored += 1;
        }
        found
    }

    /// The subscription that a consumer's acks are for; none while it is sought.
    fn acking(&self, id: ConsumerId) -> Option<SubIndex> {
        let index = self.consumer(id)?.sub;
        (self.sub(index).seeks == 0).then_some(index)
    }

    /// Acks a run. Held entries say how many messages they carry; others are looked up.
    pub(crate) fn ack_ordinals(&mut self, index: SubIndex, ordinals: Range<u64>) {
        let sub = self.subs[index.0 as usize].as_mut().expect("resolved");
        for ordinal in ordinals {
            let (before, mut messages) = sub.window.ack(ordinal);
            match before {
                State::Acked => continue,
                State::Held(slot) => {
                    self.freed.note(sub, &mut self.consumers, slot, messages);
                    if sub.released(&self.log, ordinal, messages) {
                        self.freed.note_key();
                    }
                }
                free => {
                    messages = self.log.messages(sub.slot, ordinal).unwrap_or(0);
                    if let Some(set) = sub.partial.get(&ordinal) {
                        messages = set.left();
                    }
                    match free {
                        State::Replay => sub.end_replay(&self.log, ordinal),
                        State::Delayed => sub.end_delay(&self.log, ordinal),
                        State::Later => sub.end_later(&self.log, ordinal),
                        _ => {}
                    }
                    if matches!(sub.selector, Selector::KeyShared(_)) {
                        self.freed.note_key(); // what stood behind it may go
                    }
                }
            }
            if !sub.partial.is_empty() {
                sub.partial.remove(&ordinal);
            }
            if !sub.redeliveries.is_empty() {
                sub.redeliveries.remove(&ordinal);
            }
            sub.acked_messages += u64::from(messages);
            sub.note_ack(ordinal);
        }
        if !sub.ack_queued {
            sub.ack_queued = true;
            self.acked.push(index);
        }
        if self.freed.any() {
            self.wake_freed(index);
        }
    }

    /// Takes messages out of an entry; the last one acks it whole.
    fn ack_part(&mut self, index: SubIndex, ordinal: u64, still: &[u64]) {
        let topic = self.topic_at(self.sub(index).topic);
        let messages = self.log.messages(topic.slot, ordinal).unwrap_or(0);
        let enabled = topic.policy.acknowledgment_at_batch_index_level_enabled;
        let sub = self.subs[index.0 as usize].as_mut().expect("resolved");
        let state = sub.window.get(ordinal);
        if state == State::Acked {
            return;
        }
        let so_far = sub.partial.get(&ordinal).cloned();
        let mut set = so_far.unwrap_or_else(|| AckSet::full(messages));
        let done = set.merge(still);
        let left = set.left();
        if left == 0 {
            return self.ack_ordinals(index, ordinal..ordinal + 1);
        }
        if done == 0 || !enabled {
            return;
        }
        sub.partial.insert(ordinal, set);
        if let State::Held(slot) = state {
            sub.window.set(ordinal, state, left);
            self.freed.note(sub, &mut self.consumers, slot, done);
            if sub.released(&self.log, ordinal, done) {
                self.freed.note_key();
            }
        }
        sub.acked_messages += u64::from(done);
        sub.new_partial.push(ordinal);
        if !sub.ack_queued {
            sub.ack_queued = true;
            self.acked.push(index);
        }
        self.wake_freed(index);
    }

    /// Whoever may get more because of what was acked or given back, gets it (rule D104).
    pub(crate) fn wake_freed(&mut self, index: SubIndex) {
        if !self.freed.any() {
            return;
        }
        while let Some(slot) = self.freed.pop() {
            self.offer(index, slot);
        }
        self.want(index);
    }

    /// Writes down the acks of this turn, one record a subscription, and lets the topics be trimmed.
    pub(crate) fn record_acks(&mut self) {
        while let Some(index) = self.acked.pop() {
            let Some(sub) = self.subs[index.0 as usize].as_mut() else {
                continue;
            };
            sub.ack_queued = false;
            let topic = sub.topic;
            let state = self.topics[topic as usize]
                .as_ref()
                .expect("a subscription has a topic");
            // What is done away with while a seek is on its way is not to be found behind its record.
            if state.durability.is_stored() && sub.durable && sub.seeks == 0 {
                record_acks_of(sub, state.slot, &mut self.log);
            }
            sub.new_acks.clear();
            sub.new_partial.clear();
            let ended = state.end == End::Terminated;
            self.mark_trim(topic);
            if ended {
                self.look_for_end(index);
            }
        }
    }

    pub(crate) fn flush_acks(
        &mut self,
        id: RequestId,
        consumer: ConsumerId,
    ) -> Result<Option<Reply>, RequestError> {
        let missing = || RequestError::NotFound {
            what: "consumer",
            name: format!("{consumer:?}"),
        };
        let index = self.attachment(consumer).ok_or_else(missing)?.sub;
        self.record_acks();
        let durability = self.topic_at(self.sub(index).topic).durability;
        let Some(ticket) = self.sub(index).ack_ticket else {
            return Ok(Some(Reply::Done));
        };
        if ticket <= self.log.done_through(durability) {
            return Ok(Some(Reply::Done));
        }
        if let Some(error) = &self.poisoned {
            return Err(RequestError::Poisoned {
                error: error.clone(),
            });
        }
        self.log.commit_soon();
        self.flushes.push(Flush {
            id,
            ticket,
            durability,
        });
        Ok(None)
    }
}

impl Subscription {
    fn note_ack(&mut self, ordinal: u64) {
        match self.new_acks.last_mut() {
            Some((first, count)) if *first + *count == ordinal => *count += 1,
            _ => self.new_acks.push((ordinal, 1)),
        }
    }
}

fn record_acks_of(sub: &mut Subscription, slot: TopicSlot, log: &mut Log) {
    let floor = sub.window.floor();
    if floor > sub.recorded_floor
        && let Some(last) = log.position(slot, floor - 1)
    {
        sub.ack_ticket = Some(log.ack_record(slot, sub.key, AckDelta::MarkDelete(last)));
        sub.recorded_floor = floor;
    }
    sub.ranges.clear();
    for &(first, count) in &sub.new_acks {
        for position in (first.max(floor)..first + count).filter_map(|o| log.position(slot, o)) {
            match sub.ranges.last_mut() {
                Some((start, entries)) if position.is_behind(*start, *entries) => *entries += 1,
                _ => sub.ranges.push((position, 1)),
            }
        }
    }
    if !sub.ranges.is_empty() {
        sub.ack_ticket = Some(log.ack_record(slot, sub.key, AckDelta::Ranges(&sub.ranges)));
    }
    // An entry that was acked whole since is in the ranges already.
    let sets = sub.new_partial.iter().filter_map(|&ordinal| {
        let set = sub.partial.get(&ordinal)?;
        Some((log.position(slot, ordinal)?, set.words()))
    });
    let sets: Vec<_> = sets.collect();
    if !sets.is_empty() {
        sub.ack_ticket = Some(log.ack_record(slot, sub.key, AckDelta::Batch(&sets)));
    }
}
