//! Topics: open, policy, delete.

use std::collections::BTreeMap;
use std::sync::Arc;

use pelton_storage::{CursorState, Durability, NewEntry, SubKey, TopicKey, TopicSlot};

use crate::access::Access;
use crate::alarms::Sleeper;
use crate::broker::SubIndex;
use crate::meta::{MetaWait, NEXT_KEY_PREFIX, TOPIC_PREFIX, Undo, durability_name};
use crate::name::check_name;
use crate::quota::Quota;
use crate::retention::Kept;
use crate::subscription::{Consumer, Subscription};
use crate::terminate::End;
use crate::times::TopicTimes;
use crate::unacked::Caps;
use crate::{
    Broker, ConsumerId, Effect, MetaDone, Now, Policy, Reply, RequestError, RequestId,
    RestoreError, TopicId, TopicRecord,
};

#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: Box<str>,
    pub(crate) key: TopicKey,
    pub(crate) slot: TopicSlot,
    pub(crate) durability: Durability,
    pub(crate) policy: Arc<Policy>,
    pub(crate) subs: Vec<SubIndex>,
    pub(crate) access: Access,
    /// Messages ever appended in this run, those found at the start included.
    pub(crate) messages: u64,
    pub(crate) end: End,
    /// Something may stand in the way of a publish: it is looked at closely.
    pub(crate) gated: bool,
    /// Its entries have times, or its policy gives them some.
    pub(crate) times: Option<Box<TopicTimes>>,
    /// A publish of this turn woke its subscriptions already.
    pub(crate) woken: bool,
    /// It is in the list of topics to trim.
    pub(crate) trim: bool,
    pub(crate) kept: Kept,
    pub(crate) quota: Quota,
}

/// Bits of a durable id below the number of its shard.
const KEY_BITS: u32 = 48;
const KEY_MASK: u64 = (1 << KEY_BITS) - 1;

impl Topic {
    pub(crate) fn entries_per_turn(&self) -> u64 {
        u64::from(self.policy.dispatcher_max_round_robin_batch_size).max(1)
    }

    /// The number behind "-partition-", if the topic is one of a partitioned topic's.
    pub(crate) fn partition(&self) -> Option<u32> {
        let (_, number) = self.name.rsplit_once("-partition-")?;
        number.parse().ok()
    }
}

impl Broker {
    /// Takes over the metadata of this shard and the cursors that its log recovered, at `now`.
    ///
    /// # Errors
    /// A record that cannot be read; nothing was changed on disk.
    pub fn restore(
        &mut self,
        records: &[(String, Vec<u8>)],
        cursors: &[CursorState],
        now: Now,
    ) -> Result<(), RestoreError> {
        self.now = now;
        let next_key = format!("{NEXT_KEY_PREFIX}{}", self.options.shard);
        let by_key: BTreeMap<_, _> = cursors.iter().map(|c| ((c.topic, c.sub), c)).collect();
        // A cursor may be in the log although the metadata that was to name it was lost with a crash:
        // its id must not become another subscription's.
        for cursor in cursors {
            self.next_key = self.next_key.max((cursor.sub.0 & KEY_MASK) + 1);
        }
        for (key, value) in records {
            if *key == next_key {
                let text = String::from_utf8_lossy(value);
                let why = |error: std::num::ParseIntError| RestoreError {
                    key: key.clone(),
                    why: error.to_string(),
                };
                self.next_key = self.next_key.max(text.parse().map_err(why)?);
            }
            if !key.starts_with(TOPIC_PREFIX) {
                continue;
            }
            let record = TopicRecord::decode(key, value)?;
            if record.shard == self.options.shard {
                self.restore_topic(&record, &by_key);
            }
        }
        self.log.forget_unopened();
        Ok(())
    }

    fn restore_topic(
        &mut self,
        record: &TopicRecord,
        cursors: &BTreeMap<(TopicKey, SubKey), &CursorState>,
    ) {
        let durability = record.durable().expect("decode checked it");
        let index = self.insert_topic(record.name.clone(), record.key, durability);
        let slot = self.topic_at(index).slot;
        let first = self.log.first(slot);
        let messages = self.log.backlog_messages(slot, first);
        let topic = self.topic_mut(index);
        topic.messages = messages;
        if record.terminated {
            topic.end = End::Terminated;
        }
        if let Some(policy) = &record.policy {
            topic.policy = Arc::new(policy.clone());
        }
        topic.access.restore(record.topic_epoch);
        topic.look_at_gate();
        for stored in &record.subscriptions {
            let cursor = cursors.get(&(TopicKey(record.key), SubKey(stored.key)));
            self.log.open_sub(slot, SubKey(stored.key), None);
            let mut sub = Subscription::new(
                stored.name.clone(),
                SubKey(stored.key),
                (index, slot),
                first,
                self.now.mono_ns,
            );
            sub.skipped_messages = 0;
            if let Some(cursor) = cursor {
                sub.restore(cursor, &self.log);
            }
            self.insert_sub(sub);
        }
        self.list_times(index);
        self.mark_trim(index);
        self.look_at_quota(index);
    }

    pub(crate) fn open_topic(
        &mut self,
        id: RequestId,
        name: String,
        durability: Durability,
    ) -> Result<Option<Reply>, RequestError> {
        check_name("topic", &name)?;
        if durability.is_stored() && !self.options.durable {
            return Err(RequestError::NoDirectory {
                name,
                asked: durability,
            });
        }
        if let Some(&index) = self.names.get(name.as_str()) {
            let existing = self.topic_at(index).durability;
            if existing != durability {
                return Err(RequestError::DurabilityMismatch {
                    name,
                    existing,
                    asked: durability,
                });
            }
            // Its own record may still be on the way: answer behind it.
            return Ok(self.answer_after_meta(id, name, Reply::Topic(TopicId(index))));
        }
        let key = self.new_key();
        let index = self.insert_topic(name.clone(), key, durability);
        let reply = Reply::Topic(TopicId(index));
        if !durability.is_stored() {
            return Ok(Some(reply));
        }
        self.write_record(id, index, reply, Undo::Topic(TopicId(index)));
        Ok(None)
    }

    pub(crate) fn delete_topic(
        &mut self,
        id: RequestId,
        name: &str,
    ) -> Result<Option<Reply>, RequestError> {
        let not_found = || RequestError::NotFound {
            what: "topic",
            name: name.to_owned(),
        };
        let index = *self.names.get(name).ok_or_else(not_found)?;
        let topic = self.topic_at(index);
        let consumers: usize = topic
            .subs
            .iter()
            .map(|&sub| self.sub(sub).consumers.len())
            .sum();
        let users = consumers + topic.access.users();
        if users > 0 {
            return Err(RequestError::InUse {
                what: "topic",
                name: name.to_owned(),
                users,
            });
        }
        let durable = topic.durability.is_stored();
        self.remove_topic(index);
        if !durable {
            return Ok(Some(Reply::Done));
        }
        let writes = vec![(format!("{TOPIC_PREFIX}{name}"), None)];
        self.write_meta(id, name.to_owned(), writes, Reply::Done, Undo::Nothing);
        Ok(None)
    }

    pub(crate) fn set_policy(
        &mut self,
        id: RequestId,
        topic: TopicId,
        policy: Policy,
    ) -> Result<Option<Reply>, RequestError> {
        let before = Arc::clone(&self.find_topic(topic)?.policy);
        if let Err(why) = policy.check() {
            let topic = self.topic_at(topic.0).name.to_string();
            return Err(RequestError::InvalidPolicy { topic, why });
        }
        if let Some(dead_letter) = &policy.dead_letter {
            check_name("subscription", &dead_letter.initial_subscription)?;
            dead_letter
                .topic
                .as_deref()
                .map_or(Ok(()), |name| check_name("topic", name))?;
        }
        let durability = self.topic_at(topic.0).durability;
        let policy = Arc::new(policy);
        self.use_policy(topic, Arc::clone(&policy));
        if !durability.is_stored() {
            return Ok(Some(Reply::Done));
        }
        let undo = Undo::Policy(topic, policy, before);
        self.write_record(id, topic.0, Reply::Done, undo);
        Ok(None)
    }

    /// What was asked for since stays.
    fn undo_policy(&mut self, topic: TopicId, failed: &Arc<Policy>, held: Arc<Policy>) {
        self.meta.forget_policy(failed, &held);
        let in_use = self.find_topic(topic).map(|topic| &topic.policy);
        if in_use.is_ok_and(|in_use| Arc::ptr_eq(in_use, failed)) {
            self.use_policy(topic, held);
        }
    }

    /// The policy holds from now on, for what is pending too.
    fn use_policy(&mut self, topic: TopicId, policy: Arc<Policy>) {
        let Some(state) = self.topics[topic.0 as usize].as_mut() else {
            return;
        };
        state.policy = policy;
        state.look_at_gate();
        self.mark_trim(topic.0);
        self.look_at_quota(topic.0);
        let state = self.topic_at(topic.0);
        for index in state.subs.clone() {
            let policy = &self.topics[topic.0 as usize]
                .as_ref()
                .expect("it is there")
                .policy;
            let sub = self.subs[index.0 as usize].as_mut().expect("a topic's own");
            Caps::new(sub.kind, policy).apply(sub, &mut self.consumers);
            let delays = policy.delays(sub.kind);
            for slot in sub.consumers.clone() {
                self.offer(index, slot);
            }
            if !delays {
                self.heed_no_later(index);
            }
            self.want(index);
        }
        self.list_times(topic.0);
    }

    /// An entry was appended that no producer waits for.
    pub(crate) fn note_append(&mut self, index: u32, ordinal: u64, entry: &NewEntry<'_>) {
        let topic = self.topics[index as usize].as_mut().expect("appended to");
        topic.messages += u64::from(entry.messages);
        if !topic.woken && !topic.durability.is_stored() {
            topic.woken = true;
            self.woken.push(index);
        }
        if topic.times.is_some() {
            let with = (&self.log, &mut self.wall_alarms);
            topic.note_times(index, ordinal, &entry.hints(), with);
        }
        if topic.policy.backlog_quota.is_limited() {
            self.note_backlog(index, entry.payload_bytes());
        }
    }

    pub(crate) fn meta_done(&mut self, done: MetaDone) {
        let Some(wait) = self.meta.take(done.token) else {
            return;
        };
        if let (Ok(()), Undo::Terminate(topic)) = (&done.result, &wait.undo) {
            self.terminated(*topic);
        }
        if let (Ok(()), Some((topic, letter))) = (&done.result, &wait.letter) {
            let answered = self.append_letter(wait.id, *topic, letter);
            if let Some(reply) = answered.transpose() {
                self.effects.push_back(Effect::Reply { id: wait.id, reply });
            }
            return;
        }
        let reply = match done.result {
            Ok(()) => match wait.reply {
                Reply::Topic(topic) if self.find_topic(topic).is_err() => {
                    Err(RequestError::NotFound {
                        what: "topic",
                        name: wait.name,
                    })
                }
                // Another one may have fenced it off meanwhile.
                Reply::Producer(opened) if self.publishing(opened.id).is_none() => {
                    Err(RequestError::ProducerFenced { topic: wait.name })
                }
                // A seek may have begun the attachment again meanwhile.
                Reply::Consumer(id) => match self.attachment(id) {
                    Some(&Consumer { serial, .. }) => {
                        Ok(Reply::Consumer(ConsumerId { serial, ..id }))
                    }
                    // Its subscription was another's, whose record could not be written.
                    None => Err(RequestError::NotFound {
                        what: "subscription",
                        name: wait.name,
                    }),
                },
                reply => Ok(reply),
            },
            Err(error) => {
                match wait.undo {
                    Undo::Topic(topic) => self.remove_topic(topic.0),
                    Undo::Subscription(topic, name) => self.undo_subscription(topic, &name),
                    Undo::Policy(topic, failed, held) => self.undo_policy(topic, &failed, held),
                    Undo::Terminate(topic) => self.undo_terminate(topic),
                    Undo::Producer(producer) => self.close_producer(producer),
                    Undo::Nothing => {}
                }
                Err(RequestError::Metadata {
                    name: wait.name,
                    error,
                })
            }
        };
        self.effects.push_back(Effect::Reply { id: wait.id, reply });
    }

    pub(crate) fn find_topic(&self, topic: TopicId) -> Result<&Topic, RequestError> {
        let found = self.topics.get(topic.0 as usize).and_then(Option::as_ref);
        found.ok_or_else(|| RequestError::NotFound {
            what: "topic",
            name: format!("#{}", topic.0),
        })
    }

    pub(crate) fn topic_at(&self, index: u32) -> &Topic {
        self.topics[index as usize]
            .as_ref()
            .expect("an index in use names a topic")
    }

    pub(crate) fn topic_mut(&mut self, index: u32) -> &mut Topic {
        self.topics[index as usize]
            .as_mut()
            .expect("an index in use names a topic")
    }

    /// A durable id that is never given out again: the shard in the upper bits.
    pub(crate) fn new_key(&mut self) -> u64 {
        let key = u64::from(self.options.shard) << KEY_BITS | self.next_key;
        self.next_key += 1;
        key
    }

    /// Writes the record of a topic and answers `id` when it is stored.
    pub(crate) fn write_record(&mut self, id: RequestId, index: u32, reply: Reply, undo: Undo) {
        let topic = self.topic_at(index);
        let record = TopicRecord {
            name: topic.name.to_string(),
            key: topic.key.0,
            shard: self.options.shard,
            durability: durability_name(topic.durability).to_owned(),
            policy: (!Arc::ptr_eq(&topic.policy, &self.default_policy))
                .then(|| (*topic.policy).clone()),
            terminated: topic.end != End::Open,
            topic_epoch: topic.access.epoch(),
            subscriptions: topic
                .subs
                .iter()
                .map(|&sub| self.sub(sub))
                .filter(|sub| sub.durable)
                .map(Subscription::record)
                .collect(),
        };
        let next_key = self.next_key.to_string().into_bytes();
        let writes = vec![
            (
                format!("{TOPIC_PREFIX}{}", record.name),
                Some(record.encode()),
            ),
            (
                format!("{NEXT_KEY_PREFIX}{}", self.options.shard),
                Some(next_key),
            ),
        ];
        self.write_meta(id, record.name, writes, reply, undo);
    }

    pub(crate) fn write_meta(
        &mut self,
        id: RequestId,
        name: String,
        writes: Vec<(String, Option<Vec<u8>>)>,
        reply: Reply,
        undo: Undo,
    ) {
        let wait = |token| MetaWait {
            token,
            id,
            name,
            reply,
            undo,
            letter: None,
        };
        self.effects
            .push_back(Effect::Meta(self.meta.begin(writes, wait)));
    }

    /// Answers now, or behind the metadata that is still on its way.
    pub(crate) fn answer_after_meta(
        &mut self,
        id: RequestId,
        name: String,
        reply: Reply,
    ) -> Option<Reply> {
        if self.meta.is_empty() {
            return Some(reply);
        }
        self.write_meta(id, name, Vec::new(), reply, Undo::Nothing);
        None
    }

    pub(crate) fn insert_topic(&mut self, name: String, key: u64, durability: Durability) -> u32 {
        let key = TopicKey(key);
        let slot = self.log.open_topic(key, durability);
        let index = u32::try_from(self.topics.len()).expect("fewer than 2^32 topics");
        let name: Box<str> = name.into();
        self.names.insert(name.clone(), index);
        self.topics.push(Some(Topic {
            name,
            key,
            slot,
            durability,
            policy: Arc::clone(&self.default_policy),
            subs: Vec::new(),
            access: Access::default(),
            messages: 0,
            end: End::default(),
            gated: false,
            times: None,
            woken: false,
            trim: false,
            kept: Kept::default(),
            quota: Quota::default(),
        }));
        let at = slot.0 as usize;
        if self.by_slot.len() <= at {
            self.by_slot.resize(at + 1, u32::MAX);
        }
        self.by_slot[at] = index;
        index
    }

    fn remove_topic(&mut self, index: u32) {
        let Some(mut topic) = self.topics[index as usize].take() else {
            return;
        };
        self.names.remove(&topic.name);
        if let Some(mut times) = topic.times {
            let who = Sleeper::Topic(index);
            self.wall_alarms.disarm(who, &mut times.armed);
        }
        let alarms = &mut self.wall_alarms;
        alarms.disarm(Sleeper::Kept(index), &mut topic.kept.armed);
        alarms.disarm(Sleeper::Quota(index), &mut topic.quota.armed);
        self.kept_in_memory.remove(&index);
        for sub in &topic.subs {
            self.log.drop_sub(topic.slot, self.sub(*sub).key);
            self.remove_sub(*sub);
        }
        self.log.drop_topic(topic.slot);
    }
}

/// Places a value at a dense index that the shell chose.
pub(crate) fn put<T>(slots: &mut Vec<Option<T>>, slot: u32, value: T) {
    let at = slot as usize;
    if slots.len() <= at {
        slots.resize_with(at + 1, || None);
    }
    slots[at] = Some(value);
}
