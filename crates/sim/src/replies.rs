//! What producers and clients are answered, and whether that is right.

use pelton_broker::storage::Durability;
use pelton_broker::{BacklogPolicy, Outcome, Receipts, Refusal, Reply, RequestError};

use crate::clients::{Owed, Producer};
use crate::oracle::{Check, Fate, hold};
use crate::sequences::producer_name;
use crate::world::World;

/// A request that waits for its answer, and what the answer must be.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    OpenTopic {
        topic: usize,
        life: u64,
        made: bool,
    },
    OpenProducer(usize),
    /// The consumer of this index, to a subscription that was made for it or was there.
    Subscribe {
        consumer: usize,
        made: bool,
    },
    FlushAcks {
        consumer: usize,
        ack: u64,
    },
    SetPolicy {
        topic: usize,
        life: u64,
        /// In the list of the topic's policies.
        number: usize,
    },
    /// By its number among the acks.
    Seek {
        topic: usize,
        ack: u64,
    },
    Terminate {
        topic: usize,
        life: u64,
    },
    LastPosition {
        topic: usize,
        name: String,
    },
    /// Answered well, unless its metadata fails.
    Plain,
    /// Answered well.
    Done,
    /// Nothing may change.
    Refused(&'static str),
}

impl World {
    pub(crate) fn receipts(&mut self, at: usize, receipts: Receipts) -> Check {
        let id = receipts.producer;
        let topics = &self.oracle.topics;
        let of = |p: &&mut Producer| topics[p.topic].shard == at && p.id == Some(id);
        let producer = self.producers.iter_mut().find(of);
        hold("receipts", producer.is_some(), || {
            format!("{receipts:?} for nobody")
        })?;
        let Some(producer) = producer else {
            return Ok(());
        };
        let disk = &self.shards[at].disk;
        for offset in 0..receipts.count {
            let sequence = receipts.first_sequence + u64::from(offset);
            let owed = producer.owed.remove(&sequence);
            hold("receipts", owed.is_some(), || {
                format!("{receipts:?}: nothing is owed for {sequence}")
            })?;
            let Some(owed) = owed else { return Ok(()) };
            let stored = self.oracle.topics[producer.topic].durability;
            let stored = stored != Durability::NonPersistent;
            let life = self.oracle.topics[producer.topic].life.as_mut();
            let Some(life) = life.filter(|life| life.serial == producer.life) else {
                continue; // the topic is deleted
            };
            let refused = match receipts.outcome {
                Outcome::Refused(Refusal::Closed) => !producer.open,
                Outcome::Refused(Refusal::DiskFull) => disk.was_full,
                Outcome::Refused(Refusal::Poisoned) | Outcome::Unknown => disk.harmed,
                Outcome::Refused(Refusal::Terminated) => life.end.takes_nothing(),
                Outcome::Refused(Refusal::BacklogQuota) => {
                    let before = match owed {
                        Owed::Entry(index) => index,
                        Owed::Repeats(_) => life.entries.len(),
                    };
                    let last = life.entries.split_off(before);
                    let why = life.takes_less(self.now.wall_ms);
                    life.entries.extend(last);
                    why == Some(BacklogPolicy::ProducerException)
                }
                Outcome::Refused(_) => false,
                Outcome::Stored(_) | Outcome::Unstored | Outcome::Duplicate => true,
            };
            hold("receipts", refused, || {
                format!("{receipts:?} without a reason")
            })?;
            let index = match owed {
                Owed::Entry(index) => index,
                Owed::Repeats(highest) => {
                    let name = producer_name(producer.slot);
                    life.check_repeated(&name, highest, receipts.outcome)?;
                    continue;
                }
            };
            match receipts.outcome {
                Outcome::Stored(first) => {
                    hold("receipts", stored, || format!("{receipts:?} is not stored"))?;
                    let mut position = first;
                    position.entry += u64::from(offset);
                    life.learn(index, position)?;
                    life.entries[index].fate = Fate::Stored;
                }
                Outcome::Unstored => {
                    hold("receipts", !stored, || format!("{receipts:?} is stored"))?;
                    life.entries[index].fate = Fate::Unstored;
                }
                Outcome::Duplicate => hold("D141 once", false, || {
                    format!("{receipts:?} of {:?}", life.entries[index])
                })?,
                Outcome::Unknown => life.entries[index].fate = Fate::Unknown,
                Outcome::Refused(_) => {
                    // It was the last one taken, and was not.
                    let last = life.entries.len() == index + 1;
                    hold("receipts", last, || format!("{receipts:?} comes too late"))?;
                    life.entries.pop();
                }
            }
        }
        Ok(())
    }

    pub(crate) fn answered(
        &mut self,
        at: usize,
        asked: Asked,
        reply: Result<Reply, RequestError>,
    ) -> Check {
        let shard = &self.shards[at];
        let failed = matches!(reply, Err(RequestError::Metadata { .. }));
        hold("D20 answers", !failed || shard.meta_failed, || {
            format!("{asked:?} got {reply:?}, and all is well")
        })?;
        let fine = match (&asked, &reply) {
            (&Asked::OpenTopic { topic, life, made }, Err(RequestError::Metadata { .. })) => {
                let now = self.oracle.topics[topic].life.as_ref();
                if made && now.is_some_and(|now| now.serial == life) {
                    self.forget_topic(topic);
                }
                made
            }
            (&Asked::OpenTopic { topic, life, .. }, reply) => {
                let now = self.oracle.topics[topic].life.as_mut();
                match (now.filter(|now| now.serial == life), reply) {
                    (Some(life), &Ok(Reply::Topic(id))) => {
                        life.answered = true;
                        life.id.replace(id).is_none_or(|old| old == id)
                    }
                    (None, Err(RequestError::NotFound { .. })) => true,
                    _ => false,
                }
            }
            (&Asked::OpenProducer(producer), &Ok(Reply::Producer(opened))) => {
                self.producers[producer].id = Some(opened.id);
                true
            }
            (&Asked::Subscribe { consumer, made }, Err(RequestError::Metadata { .. })) => {
                if made && self.consumers[consumer].attached {
                    let (topic, sub) = (
                        self.consumers[consumer].topic,
                        self.consumers[consumer].sub.clone(),
                    );
                    self.forget_sub(topic, &sub);
                }
                made
            }
            (&Asked::Subscribe { consumer, .. }, &Ok(Reply::Consumer(id))) => {
                let consumer = &mut self.consumers[consumer];
                consumer.told = true;
                let life = self.oracle.topics[consumer.topic].life.as_mut();
                let sub = life.and_then(|life| life.sub(&consumer.sub));
                if let Some(sub) = sub.filter(|_| consumer.attached) {
                    sub.answered = true;
                }
                // To what failed meanwhile nobody is attached.
                consumer.attached && *consumer.id.get_or_insert(id) == id
            }
            // Its subscription could not be made, for another that came first.
            (&Asked::Subscribe { consumer, .. }, Err(RequestError::NotFound { .. })) => {
                !self.consumers[consumer].attached
            }
            (&Asked::FlushAcks { consumer, ack }, Ok(Reply::Done)) => {
                let consumer = &self.consumers[consumer];
                let life = self.oracle.topics[consumer.topic].life.as_mut();
                if let Some(sub) = life.and_then(|life| life.sub(&consumer.sub)) {
                    sub.cursor.promised = sub.cursor.promised.max(ack);
                }
                true
            }
            (&Asked::FlushAcks { consumer, .. }, Err(RequestError::NotFound { .. })) => {
                !self.consumers[consumer].attached
            }
            (Asked::FlushAcks { .. }, Err(RequestError::Poisoned { .. })) => shard.disk.harmed,
            (
                &Asked::SetPolicy {
                    topic,
                    life,
                    number,
                },
                reply,
            ) => {
                let now = self.oracle.topics[topic].life.as_mut();
                let failed = reply.is_err();
                if let Some(life) = now.filter(|now| failed && now.serial == life) {
                    life.policies[number].1 = false;
                    life.use_policy();
                }
                matches!(reply, Ok(Reply::Done) | Err(RequestError::Metadata { .. }))
            }
            (&Asked::Terminate { topic, life }, reply) => {
                let now = self.oracle.topics[topic].life.as_mut();
                if let Some(life) = now.filter(|now| now.serial == life) {
                    life.end.asked -= 1;
                    life.end.answered |= reply.is_ok();
                    life.end.failed |= reply.is_err();
                }
                matches!(reply, Ok(Reply::Done) | Err(RequestError::Metadata { .. }))
            }
            (&Asked::Seek { topic, ack }, reply) => {
                let harmed = shard.disk.harmed;
                self.oracle.sought(topic, ack, reply, harmed)?
            }
            (
                Asked::LastPosition { topic, name },
                Ok(Reply::LastPosition {
                    last, mark_delete, ..
                }),
            ) => self.oracle.is_last(*topic, name, *last, *mark_delete),
            (Asked::Done, Ok(Reply::Done)) => true,
            (Asked::Plain, Ok(Reply::Done) | Err(RequestError::Metadata { .. })) => true,
            (Asked::Refused(why), Err(error)) => name_of(error) == *why,
            _ => false,
        };
        hold("D20 answers", fine, || format!("{asked:?} got {reply:?}"))
    }
}

fn name_of(error: &RequestError) -> &'static str {
    match error {
        RequestError::InvalidName { .. } => "invalid name",
        RequestError::DurabilityMismatch { .. } => "durability",
        RequestError::NoDirectory { .. } => "no directory",
        RequestError::NotFound { .. } => "not found",
        RequestError::ConsumerBusy { .. } => "busy",
        RequestError::InUse { .. } => "in use",
        RequestError::Metadata { .. } => "metadata",
        RequestError::Poisoned { .. } => "poisoned",
        RequestError::KeyRanges { .. } => "keys",
        RequestError::KeySharedMode { .. } => "key mode",
        RequestError::Terminated { .. } => "terminated",
        RequestError::NotPossible { .. } => "not possible",
        RequestError::BacklogQuota { .. } => "quota",
        _ => "another",
    }
}
