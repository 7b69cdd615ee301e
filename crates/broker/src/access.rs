//! Who may publish to a topic: producers share it, or one has it for itself (rule D142).

use std::collections::VecDeque;

use crate::meta::Undo;
use crate::producers::{Producer, producer_number};
use crate::terminate::End;
use crate::topic::put;
use crate::{
    Broker, Effect, OpenProducer, OpenedProducer, ProducerAccess, ProducerId, Reply, RequestError,
    RequestId, TopicId,
};

/// The producers of one topic.
#[derive(Debug, Default)]
pub(crate) struct Access {
    /// Attached and not fenced off.
    attached: u32,
    /// Fenced off and not yet closed.
    fenced: u32,
    /// The only one attached has the topic for itself.
    exclusive: bool,
    /// Rises each time a producer is given the topic for itself.
    epoch: Option<u64>,
    /// Those that want that, in the order they came.
    waiting: VecDeque<(RequestId, OpenProducer)>,
}

impl Access {
    pub(crate) fn restore(&mut self, epoch: Option<u64>) {
        self.epoch = epoch;
    }

    pub(crate) fn epoch(&self) -> Option<u64> {
        self.epoch
    }

    /// Producers that publish.
    pub(crate) fn attached(&self) -> usize {
        self.attached as usize
    }

    /// All who keep the topic from being deleted.
    pub(crate) fn users(&self) -> usize {
        (self.attached + self.fenced) as usize + self.waiting.len()
    }

    pub(crate) fn has_fenced(&self) -> bool {
        self.fenced > 0
    }
}

impl Broker {
    pub(crate) fn open_producer(
        &mut self,
        id: RequestId,
        asked: OpenProducer,
    ) -> Result<Option<Reply>, RequestError> {
        let state = self.find_topic(asked.topic)?;
        let topic = || state.name.to_string();
        if state.end != End::Open {
            return Err(RequestError::Terminated { topic: topic() });
        }
        if state.may_take_less() && self.is_excessive(asked.topic.0) {
            let state = self.topic_at(asked.topic.0);
            let (topic, policy) = (state.name.to_string(), state.policy.backlog_quota.policy);
            return Err(RequestError::BacklogQuota { topic, policy });
        }
        let state = self.topic_at(asked.topic.0);
        let topic = || state.name.to_string();
        let access = &state.access;
        let is_free = access.attached == 0 && access.waiting.is_empty();
        // Others had the topic since it was attached.
        let is_late = asked
            .topic_epoch
            .is_some_and(|epoch| Some(epoch) < access.epoch);
        match asked.access {
            ProducerAccess::Shared if access.exclusive || !access.waiting.is_empty() => {
                return Err(RequestError::ProducerBusy { topic: topic() });
            }
            ProducerAccess::Shared => {
                let opened = self.attach_producer(&asked);
                return Ok(Some(Reply::Producer(opened)));
            }
            _ if is_late => return Err(RequestError::ProducerFenced { topic: topic() }),
            ProducerAccess::Exclusive if !is_free => {
                return Err(RequestError::ProducerFenced { topic: topic() });
            }
            ProducerAccess::WaitForExclusive if !is_free => {
                let access = &mut self.topic_mut(asked.topic.0).access;
                access.waiting.push_back((id, asked));
                return Ok(None);
            }
            ProducerAccess::ExclusiveWithFencing => self.fence(asked.topic),
            ProducerAccess::Exclusive | ProducerAccess::WaitForExclusive => {}
        }
        Ok(self.give_topic(id, &asked))
    }

    pub(crate) fn close_producer(&mut self, id: ProducerId) {
        let Some(&Producer { topic, fenced, .. }) = self.producer(id) else {
            return;
        };
        self.producers[id.slot as usize] = None;
        let state = self.topic_mut(topic);
        if fenced {
            state.access.fenced -= 1;
            state.look_at_gate();
            return;
        }
        state.access.attached -= 1;
        if state.access.attached > 0 {
            return;
        }
        state.access.exclusive = false;
        if let Some((id, asked)) = state.access.waiting.pop_front()
            && let Some(reply) = self.give_topic(id, &asked)
        {
            let reply = Ok(reply);
            self.effects.push_back(Effect::Reply { id, reply });
        }
    }

    /// The producer, unless it was fenced off.
    pub(crate) fn publishing(&self, id: ProducerId) -> Option<&Producer> {
        self.producer(id).filter(|producer| !producer.fenced)
    }

    /// Attaches a producer to a topic without others, for itself; answered now, or once its epoch is
    /// stored.
    fn give_topic(&mut self, id: RequestId, asked: &OpenProducer) -> Option<Reply> {
        let state = self.topic_mut(asked.topic.0);
        let access = &mut state.access;
        access.exclusive = true;
        // Whoever was the last to have it goes on with its epoch.
        if asked.topic_epoch.is_none() || asked.topic_epoch != access.epoch {
            access.epoch = Some(access.epoch.map_or(0, |epoch| epoch + 1));
        }
        let is_stored = state.durability.is_stored();
        let opened = self.attach_producer(asked);
        let reply = Reply::Producer(opened);
        if !is_stored {
            return Some(reply);
        }
        self.write_record(id, asked.topic.0, reply, Undo::Producer(opened.id));
        None
    }

    fn attach_producer(&mut self, asked: &OpenProducer) -> OpenedProducer {
        let serial = self.serial();
        let name_hash = producer_number(&asked.name);
        let producer = Producer {
            serial,
            topic: asked.topic.0,
            name_hash,
            fenced: false,
        };
        put(&mut self.producers, asked.slot, producer);
        let state = self.topics[asked.topic.0 as usize].as_mut().expect("found");
        state.access.attached += 1;
        let counts = state.policy.deduplication_enabled;
        let last = self.log.last_sequence(state.slot, name_hash);
        OpenedProducer {
            id: ProducerId {
                slot: asked.slot,
                serial,
            },
            topic_epoch: state.access.epoch,
            last_sequence: last.filter(|_| counts),
        }
    }

    /// Nobody publishes to the topic any more, nor waits for that.
    fn fence(&mut self, topic: TopicId) {
        let mut fenced = 0;
        for (slot, producer) in (0..).zip(&mut self.producers) {
            if let Some(producer) = producer
                && producer.topic == topic.0
                && !std::mem::replace(&mut producer.fenced, true)
            {
                fenced += 1;
                let serial = producer.serial;
                let producer = ProducerId { slot, serial };
                self.effects.push_back(Effect::Fenced { producer });
            }
        }
        let state = self.topic_mut(topic.0);
        state.access.attached -= fenced;
        state.access.fenced += fenced;
        state.look_at_gate();
        self.turn_away(topic, |topic| RequestError::ProducerFenced { topic });
    }

    /// Refuses all who wait for the topic.
    pub(crate) fn turn_away(&mut self, topic: TopicId, why: impl Fn(String) -> RequestError) {
        let state = self.topic_mut(topic.0);
        let name = state.name.to_string();
        for (id, _) in std::mem::take(&mut state.access.waiting) {
            let reply = Err(why(name.clone()));
            self.effects.push_back(Effect::Reply { id, reply });
        }
    }
}
