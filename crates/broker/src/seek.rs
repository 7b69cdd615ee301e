//! Seeks: a subscription goes on somewhere else, and its attachments begin again.
//!
//! A seek ends every attachment at once and gives its port a new one; acks that name the old one
//! find nobody. The cursor moves when the seek's record is as durable as the topic: until then
//! nothing is handed over or acked, and if the log fails the cursor stands where it was, with what
//! was handed over owed again (rules D133 to D135).

use pelton_flow::Granter;
use pelton_storage::{AckDelta, Durability, Position, SubKey, Ticket, TopicSlot};

use crate::ack_set::AckSet;
use crate::broker::SubIndex;
use crate::redelivery::Return;
use crate::window::{State, Window};
use crate::{
    Broker, ConsumerId, Effect, InitialPosition, Reply, RequestError, RequestId, SeekTo, TopicId,
};

/// Where a subscription begins.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) ordinal: u64,
    /// What is left of that entry, if not all of it.
    part: Option<AckSet>,
}

/// A seek whose record is on its way.
#[derive(Debug)]
pub(crate) struct SeekWait {
    id: RequestId,
    name: String,
    index: SubIndex,
    /// Tells the subscription from a later one of the same index.
    key: SubKey,
    ticket: Ticket,
    durability: Durability,
    start: Start,
}

impl Broker {
    pub(crate) fn seek(
        &mut self,
        id: RequestId,
        topic: TopicId,
        name: &str,
        to: &SeekTo,
    ) -> Result<Option<Reply>, RequestError> {
        let index = self
            .find_sub(topic, name)?
            .ok_or_else(|| no_subscription(name))?;
        let (slot, durability) = {
            let topic = self.topic_at(topic.0);
            (topic.slot, topic.durability)
        };
        if durability == Durability::NonPersistent {
            return Err(RequestError::NotPossible {
                what: "subscription",
                name: name.to_owned(),
                why: "is of a non-persistent topic: it has no position to seek",
            });
        }
        let stored = durability.is_stored() && self.sub(index).durable;
        if stored && let Some(error) = &self.poisoned {
            let error = error.clone();
            return Err(RequestError::Poisoned { error });
        }
        let start = self.start_of(slot, to);
        self.record_acks(); // they come before the seek, in the log too
        self.give_back_all(index, None, Return::Ended);
        self.wake_freed(index);
        self.begin_attachments_again(index);
        self.wait_for_return(index);
        if !stored {
            self.go_on_at(index, start);
            return Ok(Some(Reply::Done));
        }
        let ticket = self.record_seek(index, slot, &start);
        let now_ns = self.now.mono_ns;
        let sub = self.sub_mut(index);
        sub.seeks += 1;
        sub.seek_ns = now_ns;
        sub.sought = sub.sought.min(start.ordinal);
        sub.ack_ticket = Some(ticket);
        let key = sub.key;
        self.seeks.push(SeekWait {
            id,
            name: name.to_owned(),
            index,
            key,
            ticket,
            durability,
            start,
        });
        self.log.commit_soon();
        Ok(None)
    }

    /// What a position, time or end means in this topic.
    pub(crate) fn start_of(&self, slot: TopicSlot, to: &SeekTo) -> Start {
        let (log, part) = (&self.log, None);
        let ordinal = match *to {
            SeekTo::Start(InitialPosition::Earliest) => log.first(slot),
            SeekTo::Start(InitialPosition::Latest) => log.ready_end(slot),
            SeekTo::Start(InitialPosition::At(position)) => log.ordinal_at_or_after(slot, position),
            SeekTo::Start(InitialPosition::Since(ms)) => log.first_published_since(slot, ms),
            SeekTo::Message { position, index } => {
                return self.start_within(slot, position, |set| {
                    index.checked_sub(1).map(|last| set.ack_through(last));
                });
            }
            SeekTo::Part {
                position,
                ref still,
            } => {
                return self.start_within(slot, position, |set| {
                    set.merge(still);
                });
            }
        };
        Start { ordinal, part }
    }

    /// At an entry, some of whose messages are done already.
    fn start_within(
        &self,
        slot: TopicSlot,
        position: Position,
        ack: impl FnOnce(&mut AckSet),
    ) -> Start {
        let Some(ordinal) = self.log.ordinal(slot, position) else {
            let (ordinal, part) = (self.log.ordinal_after(slot, position), None);
            return Start { ordinal, part };
        };
        let messages = self.log.messages(slot, ordinal).unwrap_or(0);
        let mut set = AckSet::full(messages);
        ack(&mut set);
        match set.left() {
            0 => Start {
                ordinal: ordinal + 1,
                part: None,
            },
            left => Start {
                ordinal,
                part: (left < messages).then_some(set),
            },
        }
    }

    /// Every attachment of the subscription ends, its permits with it, and its port gets a new one
    /// that was granted nothing (rule D14).
    fn begin_attachments_again(&mut self, index: SubIndex) {
        let now_ns = self.now.mono_ns;
        for slot in self.sub(index).consumers.clone() {
            let serial = self.serial();
            let (granter, account) = Granter::pair();
            let consumer = self.consumers[slot as usize].as_mut().expect("attached");
            let ended = consumer.begin_again(serial, account, now_ns);
            self.effects.push_back(Effect::Reset {
                consumer: ConsumerId {
                    slot,
                    serial: ended,
                },
                becomes: ConsumerId { slot, serial },
                granter,
            });
            self.offer(index, slot);
        }
    }

    fn record_seek(&mut self, index: SubIndex, slot: TopicSlot, start: &Start) -> Ticket {
        let key = self.sub(index).key;
        let before = self.log.position_before(slot, start.ordinal);
        let ticket = self.log.ack_record(slot, key, AckDelta::Reset(before));
        if let Some(set) = &start.part
            && let Some(position) = self.log.position(slot, start.ordinal)
        {
            let parts = [(position, set.words())];
            return self.log.ack_record(slot, key, AckDelta::Batch(&parts));
        }
        ticket
    }

    /// The cursor moves: everything before `start` is done, nothing behind it is.
    fn go_on_at(&mut self, index: SubIndex, start: Start) {
        let Start { ordinal, part } = start;
        let sub = self.subs[index.0 as usize].as_mut().expect("it seeks");
        let topic = self.topics[sub.topic as usize]
            .as_ref()
            .expect("it has a topic");
        let mut backlog = self.log.backlog_messages(sub.slot, ordinal);
        for waiting in sub.window.floor()..sub.window.end() {
            match sub.window.get(waiting) {
                State::Replay => sub.end_replay(&self.log, waiting),
                State::Delayed => sub.end_delay(&self.log, waiting),
                State::Later => sub.end_later(&self.log, waiting),
                _ => {}
            }
        }
        sub.window = Window::new(ordinal);
        sub.read = ordinal;
        self.dead_letters.forget(index);
        sub.redeliveries.clear();
        sub.new_acks.clear();
        sub.new_partial.clear();
        sub.partial.clear();
        if let Some(set) = part {
            let messages = self.log.messages(sub.slot, ordinal).unwrap_or(0);
            backlog -= u64::from(messages.saturating_sub(set.left()));
            sub.partial.insert(ordinal, set);
        }
        sub.recorded_floor = ordinal;
        let done = topic.messages.saturating_sub(backlog);
        sub.skipped_messages = done.cast_signed() - sub.acked_messages.cast_signed();
        let topic = sub.topic;
        self.arm(index);
        if self.topic_at(topic).times.is_some() {
            self.arm_later(index);
            self.list_times(topic);
        }
        self.mark_trim(topic);
        self.look_at_quota(topic);
        self.look_for_end(index);
        self.want(index);
    }

    /// Carries out the seeks whose records are durable, in their order: the last one wins.
    pub(crate) fn settle_seeks(&mut self) {
        let mut at = 0;
        while let Some(wait) = self.seeks.get(at) {
            if wait.ticket > self.log.done_through(wait.durability) {
                at += 1;
                continue;
            }
            let wait = self.seeks.remove(at);
            let reply = if self.end_seek(&wait) {
                self.go_on_at(wait.index, wait.start);
                Ok(Reply::Done)
            } else {
                Err(no_subscription(&wait.name))
            };
            self.effects.push_back(Effect::Reply { id: wait.id, reply });
        }
    }

    /// The log failed: cursors stay where they are, and what was handed over comes again.
    pub(crate) fn fail_seeks(&mut self, error: &str) {
        for wait in std::mem::take(&mut self.seeks) {
            if self.end_seek(&wait) {
                let topic = self.sub(wait.index).topic;
                self.mark_trim(topic);
                self.want(wait.index);
            }
            let error = error.to_owned();
            let reply = Err(RequestError::Poisoned { error });
            self.effects.push_back(Effect::Reply { id: wait.id, reply });
        }
    }

    /// False if the subscription is gone.
    fn end_seek(&mut self, wait: &SeekWait) -> bool {
        let sub = self.subs[wait.index.0 as usize].as_mut();
        let Some(sub) = sub.filter(|sub| sub.key == wait.key) else {
            return false;
        };
        sub.seeks -= 1;
        if sub.seeks == 0 {
            sub.sought = u64::MAX;
        }
        true
    }

    pub(crate) fn last_position(&self, topic: TopicId, name: &str) -> Result<Reply, RequestError> {
        let found = self.find_sub(topic, name)?;
        let sub = self.sub(found.ok_or_else(|| no_subscription(name))?);
        let ready_end = self.log.ready_end(sub.slot);
        let last_ordinal = ready_end.checked_sub(1);
        Ok(Reply::LastPosition {
            last_messages: last_ordinal.and_then(|last| self.log.messages(sub.slot, last)),
            last: self.log.position_before(sub.slot, ready_end),
            mark_delete: self.log.position_before(sub.slot, sub.window.floor()),
        })
    }
}

fn no_subscription(name: &str) -> RequestError {
    RequestError::NotFound {
        what: "subscription",
        name: name.to_owned(),
    }
}
