//! Producers: what they publish, and what may stand in its way.

use pelton_storage::{Durability, NewEntry, Refused};

use crate::quota::Excess;
use crate::receipts::Append;
use crate::terminate::End;
use crate::topic::Topic;
use crate::{
    Broker, Effect, Handled, MESSAGES_PER_ENTRY_MAX, Outcome, ProducerId, Publish, Receipts,
    Refusal,
};

#[derive(Debug)]
pub(crate) struct Producer {
    pub(crate) serial: u32,
    pub(crate) topic: u32,
    /// Hash of its name, stored with each entry.
    pub(crate) name_hash: u64,
    /// Another one has taken the topic for itself.
    pub(crate) fenced: bool,
}

impl Topic {
    /// Whether a publish has to be looked at closely: after each change of what that looks at.
    pub(crate) fn look_at_gate(&mut self) {
        self.gated = self.end != End::Open
            || self.access.has_fenced()
            || self.policy.deduplication_enabled
            || self.policy.backlog_quota.is_limited();
    }
}

impl Broker {
    /// Appends one entry. The hot path: nothing here allocates.
    pub(crate) fn publish(&mut self, id: ProducerId, entry: &Publish<'_>) -> Handled {
        let Some(producer) = self.producer(id).filter(|_| !self.closing()) else {
            return self.refuse(id, entry.sequence, Refusal::Closed);
        };
        if entry.messages == 0 || entry.messages > MESSAGES_PER_ENTRY_MAX {
            return self.refuse(id, entry.sequence, Refusal::Invalid);
        }
        let index = producer.topic;
        let new = NewEntry {
            body: entry.body,
            messages: entry.messages,
            key_hash: entry.key_hash,
            producer: producer.name_hash,
            sequence: entry.sequence,
            is_numbered: false,
            publish_ms: self.now.wall_ms,
            arrived_ns: entry.arrived_ns,
            deliver_at_ms: entry.deliver_at_ms,
            deadline_ms: entry.deadline_ms,
            properties: &[],
        };
        if self.topic_at(index).gated {
            return self.publish_gated(id, index, entry, new);
        }
        self.append(id, index, entry, &new)
    }

    /// As [`Broker::publish`], of a topic that does not take just anything.
    #[cold]
    fn publish_gated(
        &mut self,
        id: ProducerId,
        index: u32,
        entry: &Publish<'_>,
        mut new: NewEntry<'_>,
    ) -> Handled {
        let topic = self.topic_at(index);
        if topic.end != End::Open {
            return self.refuse(id, entry.sequence, Refusal::Terminated);
        }
        if self.producer(id).is_some_and(|producer| producer.fenced) {
            return self.refuse(id, entry.sequence, Refusal::Fenced);
        }
        let counts = topic.policy.deduplication_enabled;
        let numbered = entry.numbered.filter(|_| counts);
        let stored = topic.durability.is_stored();
        if numbered.is_some() && stored && self.is_poisoned() {
            return self.refuse(id, entry.sequence, Refusal::Poisoned);
        }
        if let Some(numbered) = numbered
            && let Some(highest) = self.log.last_sequence(topic.slot, new.producer)
            && numbered.first <= highest
        {
            let durability = topic.durability;
            let (receipts, effects) = (&mut self.receipts, &mut self.effects);
            receipts.owe_duplicate(durability, id, entry.sequence, effects);
            return Handled::Taken;
        }
        match self.may_take(index) {
            Ok(()) => {}
            Err(Excess::Holds) => return Handled::Held,
            Err(Excess::Refused(why)) => return self.refuse(id, entry.sequence, why),
        }
        if let Some(numbered) = numbered {
            new.sequence = numbered.last.max(numbered.first);
            new.is_numbered = true;
        }
        let handled = self.append(id, index, entry, &new);
        self.note_backlog(index, entry.body.len());
        handled
    }

    #[inline(always)]
    fn append(
        &mut self,
        id: ProducerId,
        index: u32,
        entry: &Publish<'_>,
        new: &NewEntry<'_>,
    ) -> Handled {
        let topic = self.topics[index as usize]
            .as_mut()
            .expect("a producer keeps its topic");
        if entry.deliver_at_ms != 0 && topic.policy.delays_too_long(entry.deliver_at_ms, self.now) {
            return self.refuse(id, entry.sequence, Refusal::DelayTooLong);
        }
        let stored = if new.is_numbered {
            self.log.append_apart(topic.slot, new, self.now.mono_ns)
        } else {
            self.log.append(topic.slot, new, self.now.mono_ns)
        };
        let appended = match stored {
            Ok(appended) => appended,
            Err(Refused::NoMemory) if topic.durability == Durability::NonPersistent => {
                self.drop_entry(index, entry.messages);
                let (receipts, effects) = (&mut self.receipts, &mut self.effects);
                receipts.owe_apart(id, entry.sequence, Outcome::Unstored, effects);
                return Handled::Taken;
            }
            Err(Refused::NoMemory) => {
                self.give_way();
                return Handled::Held;
            }
            Err(Refused::TooLarge) => return self.refuse(id, entry.sequence, Refusal::Invalid),
            Err(Refused::DiskFull) => return self.refuse(id, entry.sequence, Refusal::DiskFull),
            // A durable topic is not opened without a directory.
            Err(Refused::NoDisk) => return self.refuse(id, entry.sequence, Refusal::Invalid),
            Err(Refused::Poisoned) => return self.refuse(id, entry.sequence, Refusal::Poisoned),
        };
        topic.messages += u64::from(entry.messages);
        if !topic.woken && !topic.durability.is_stored() {
            topic.woken = true;
            self.woken.push(index);
        }
        if entry.deliver_at_ms | entry.deadline_ms != 0 || topic.times.is_some() {
            let with = (&self.log, &mut self.wall_alarms);
            topic.note_times(index, appended.ordinal, &new.hints(), with);
        }
        let append = Append {
            producer: id,
            sequence: entry.sequence,
            ordinal: appended.ordinal,
            position: appended.position,
            ticket: appended.ticket,
        };
        self.receipts
            .owe(topic.durability, append, &mut self.effects);
        Handled::Taken
    }

    #[cold]
    fn refuse(&mut self, producer: ProducerId, sequence: u64, why: Refusal) -> Handled {
        let outcome = Outcome::Refused(why);
        let receipts = Receipts {
            producer,
            first_sequence: sequence,
            count: 1,
            outcome,
        };
        self.effects.push_back(Effect::Receipts(receipts));
        Handled::Taken
    }
}

/// The number that a producer's entries have in the log: its name by FNV-1a, 64 bits.
#[must_use]
pub fn producer_number(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
