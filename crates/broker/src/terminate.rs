//! Terminated topics: no publish any more, and an end that consumers are told (rule D132).

use pelton_storage::Durability;

use crate::broker::SubIndex;
use crate::meta::Undo;
use crate::{Broker, ConsumerId, Effect, ProducerId, Reply, RequestError, RequestId, TopicId};

/// Whether a topic has an end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum End {
    #[default]
    Open,
    /// Publishes are refused; the metadata that says so is on its way.
    Closing,
    Terminated,
}

impl Broker {
    pub(crate) fn terminate(
        &mut self,
        id: RequestId,
        topic: TopicId,
    ) -> Result<Option<Reply>, RequestError> {
        let state = self.find_topic(topic)?;
        let (name, durability) = (state.name.to_string(), state.durability);
        if durability == Durability::NonPersistent {
            return Err(RequestError::NotPossible {
                what: "topic",
                name,
                why: "is non-persistent: it has no backlog to serve; close its producers instead",
            });
        }
        if state.end == End::Terminated {
            return Ok(self.answer_after_meta(id, name, Reply::Done));
        }
        if durability.is_stored() {
            let state = self.topic_mut(topic.0);
            state.end = End::Closing;
            state.look_at_gate();
            self.write_record(id, topic.0, Reply::Done, Undo::Terminate(topic));
            return Ok(None);
        }
        self.terminated(topic);
        Ok(Some(Reply::Done))
    }

    /// From now on it is so, after a restart too.
    pub(crate) fn terminated(&mut self, topic: TopicId) {
        let state = self.topics[topic.0 as usize].as_mut();
        let Some(state) = state.filter(|topic| topic.end != End::Terminated) else {
            return;
        };
        state.end = End::Terminated;
        state.look_at_gate();
        for index in state.subs.clone() {
            self.look_for_end(index);
        }
        for (slot, producer) in (0..).zip(&self.producers) {
            if let Some(producer) = producer.as_ref().filter(|p| p.topic == topic.0) {
                let serial = producer.serial;
                let producer = ProducerId { slot, serial };
                self.effects.push_back(Effect::Terminated { producer });
            }
        }
        self.turn_away(topic, |topic| RequestError::Terminated { topic });
    }

    /// The metadata could not be written: it goes on, unless it was asked for again or has ended since.
    pub(crate) fn undo_terminate(&mut self, topic: TopicId) {
        let again = self.meta.terminates(topic);
        let state = self.topics[topic.0 as usize].as_mut();
        if let Some(state) = state.filter(|topic| topic.end == End::Closing && !again) {
            state.end = End::Open;
            state.look_at_gate();
        }
    }

    /// Tells the consumers of a subscription that has no backlog, each attachment once.
    pub(crate) fn look_for_end(&mut self, index: SubIndex) {
        let sub = self.subs[index.0 as usize].as_ref().expect("in use");
        let ended = self.topic_at(sub.topic).end == End::Terminated;
        if !ended || sub.seeks > 0 || sub.window.floor() < self.log.end(sub.slot) {
            return;
        }
        for &slot in &sub.consumers {
            let consumer = self.consumers[slot as usize].as_mut();
            if let Some(consumer) = consumer.filter(|consumer| !consumer.at_end) {
                consumer.at_end = true;
                let serial = consumer.serial;
                let consumer = ConsumerId { slot, serial };
                self.effects.push_back(Effect::EndOfTopic { consumer });
            }
        }
    }
}
