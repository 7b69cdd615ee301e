//! The other end of dead letters: copies that arrive for a topic of this shard (rules D118, D119).

use pelton_storage::{Durability, NewEntry, Refused};

use crate::broker::Flush;
use crate::meta::Undo;
use crate::name::check_name;
use crate::terminate::End;
use crate::{Broker, InitialPosition, Letter, Reply, RequestError, RequestId, TopicId};

impl Broker {
    /// Appends a copy, and answers when it is durable. The topic and its first subscription are made
    /// before, if need be, and their record is written before that.
    pub(crate) fn take_letter(
        &mut self,
        id: RequestId,
        letter: Letter,
    ) -> Result<Option<Reply>, RequestError> {
        if self.closing() {
            return Err(not_possible(&letter, "is closed: the engine stops"));
        }
        check_name("topic", &letter.topic)?;
        check_name("subscription", &letter.initial_subscription)?;
        let known = self.names.get(letter.topic.as_str()).copied();
        let topic = match known {
            Some(index) => TopicId(index),
            None => {
                let key = self.new_key();
                TopicId(self.insert_topic(letter.topic.clone(), key, letter.durability))
            }
        };
        let durability = self.topic_at(topic.0).durability;
        if durability == Durability::NonPersistent {
            return Err(not_possible(&letter, "is non-persistent: it keeps nothing"));
        }
        let subscription = letter.initial_subscription.clone();
        let is_read = self.find_sub(topic, &subscription)?.is_some();
        if !is_read {
            self.create_subscription(topic, &subscription, InitialPosition::Earliest, true);
        }
        if !durability.is_stored() || (is_read && self.meta.is_empty()) {
            return self.append_letter(id, topic, &letter);
        }
        if is_read {
            // Its record may still be on the way.
            self.write_meta(
                id,
                letter.topic.clone(),
                Vec::new(),
                Reply::Done,
                Undo::Nothing,
            );
        } else {
            let undo = match known {
                Some(_) => Undo::Subscription(topic, subscription),
                None => Undo::Topic(topic),
            };
            self.write_record(id, topic.0, Reply::Done, undo);
        }
        self.meta.append_after(topic, letter);
        Ok(None)
    }

    /// The topic is there to stay, and so is its first subscription.
    pub(crate) fn append_letter(
        &mut self,
        id: RequestId,
        topic: TopicId,
        letter: &Letter,
    ) -> Result<Option<Reply>, RequestError> {
        let state = self.find_topic(topic)?;
        let (slot, durability) = (state.slot, state.durability);
        if state.end != End::Open {
            let topic = state.name.to_string();
            return Err(RequestError::Terminated { topic });
        }
        let entry = NewEntry {
            body: &letter.body,
            messages: letter.messages,
            key_hash: letter.key_hash,
            publish_ms: self.now.wall_ms,
            arrived_ns: self.now.mono_ns,
            properties: &letter.properties,
            ..NewEntry::default()
        };
        let appended = match self.log.append_apart(slot, &entry, self.now.mono_ns) {
            Ok(appended) => appended,
            Err(Refused::Poisoned) => {
                let error = self.poisoned.clone().unwrap_or_default();
                return Err(RequestError::Poisoned { error });
            }
            Err(Refused::TooLarge) => {
                return Err(not_possible(letter, "cannot hold an entry of that size"));
            }
            Err(Refused::NoMemory | Refused::DiskFull | Refused::NoDisk) => {
                return Err(not_possible(letter, "has no room now: it is tried again"));
            }
        };
        self.note_append(topic.0, appended.ordinal, &entry);
        if appended.ticket <= self.log.done_through(durability) {
            return Ok(Some(Reply::Done));
        }
        self.flushes.push(Flush {
            id,
            ticket: appended.ticket,
            durability,
        });
        Ok(None)
    }
}

fn not_possible(letter: &Letter, why: &'static str) -> RequestError {
    RequestError::NotPossible {
        what: "topic",
        name: letter.topic.clone(),
        why,
    }
}
