//! What clients do, step by step: each step finds its subject, tells the core, and tells the oracle.

use pelton_broker::storage::{Durability, Position};
use pelton_broker::{InitialPosition, Publish, SubscriptionKind};

use crate::clients::{Consumer, Producer};
use crate::core::{Ask, Say};
use crate::oracle::{Check, Entry, Fate, Life, hold};
use crate::steps::Step;
use crate::world::{Asked, World};

/// Subscriptions of a topic.
const SUBS: u8 = 3;
/// Picks from here on name one of all that ever were, also those that have left.
const ANYBODY: u8 = 240;

impl World {
    pub(crate) fn client_step(&mut self, step: Step) -> Check {
        match step {
            Step::OpenTopic { topic, odd } => self.open_topic(self.topic(topic), odd),
            Step::DeleteTopic { topic } => self.delete_topic(self.topic(topic)),
            Step::OpenProducer { topic } => self.open_producer(self.topic(topic)),
            Step::CloseProducer { producer } => match self.producer(producer) {
                Some(producer) => self.close_producer(producer),
                None => Ok(()),
            },
            Step::Publish {
                producer,
                entries,
                size,
            } => match self.producer(producer) {
                Some(producer) => self.publish(producer, entries, size),
                None => Ok(()),
            },
            Step::Subscribe {
                topic,
                sub,
                exclusive,
                latest,
                granted,
            } => {
                let kind = match exclusive {
                    true => SubscriptionKind::Exclusive,
                    false => SubscriptionKind::Shared,
                };
                let initial = match latest {
                    true => InitialPosition::Latest,
                    false => InitialPosition::Earliest,
                };
                let name = format!("s{}", sub % SUBS);
                self.subscribe(
                    self.topic(topic),
                    &name,
                    (kind, initial),
                    u32::from(granted),
                )
            }
            Step::Unsubscribe { topic, sub } => {
                self.unsubscribe(self.topic(topic), &format!("s{}", sub % SUBS))
            }
            Step::CloseConsumer { consumer } => match self.consumer(consumer) {
                Some(consumer) => self.close_consumer(consumer),
                None => Ok(()),
            },
            Step::Grant { consumer, messages } => {
                if let Some(consumer) = self.consumer(consumer) {
                    self.grant(consumer, u32::from(messages));
                }
                Ok(())
            }
            Step::FlushAcks { consumer } => match self.consumer(consumer) {
                Some(consumer) => self.flush_acks(consumer),
                None => Ok(()),
            },
            Step::Ack { consumer, pick } => self.say_of_one(consumer, pick, Say::Ack),
            Step::AckRun {
                consumer,
                pick,
                entries,
            } => self.say_of_one(consumer, pick, |at| Say::AckRun(at, u32::from(entries))),
            Step::AckCumulative { consumer, pick } => {
                self.say_of_one(consumer, pick, Say::AckCumulative)
            }
            Step::AckFalse {
                consumer,
                pick,
                kind,
            } => self.ack_false(consumer, pick, kind),
            Step::Nack {
                consumer,
                pick,
                entries,
            } => {
                for offset in 0..entries {
                    self.say_of_one(consumer, pick.wrapping_add(offset), Say::Nack)?;
                }
                Ok(())
            }
            _ => unreachable!("{step:?} is of the world"),
        }
    }

    fn topic(&self, pick: u8) -> usize {
        usize::from(pick) % self.oracle.topics.len()
    }

    fn producer(&self, pick: u8) -> Option<usize> {
        let wanted = |p: &&usize| pick >= ANYBODY || self.producers[**p].open;
        nth(&(0..self.producers.len()).collect::<Vec<_>>(), pick, wanted)
    }

    fn consumer(&self, pick: u8) -> Option<usize> {
        let of = |at: usize| &self.consumers[at];
        let wanted = |c: &&usize| of(**c).told && (pick >= ANYBODY || of(**c).attached);
        nth(&(0..self.consumers.len()).collect::<Vec<_>>(), pick, wanted)
    }

    pub(crate) fn open_topic(&mut self, topic: usize, odd: bool) -> Check {
        let state = &self.oracle.topics[topic];
        let (name, shard) = (state.name.clone(), state.shard);
        let asked_for = match (odd && state.life.is_some(), state.durability) {
            (false, durability) => durability,
            (true, Durability::Memory) => Durability::Synced,
            (true, _) => Durability::Memory,
        };
        let asked = match &state.life {
            Some(_) if asked_for != state.durability => Asked::Refused("durability"),
            Some(life) => Asked::OpenTopic {
                topic,
                life: life.serial,
                made: false,
            },
            None => {
                let life = self.new_life();
                let serial = life.serial;
                self.oracle.topics[topic].life = Some(life);
                Asked::OpenTopic {
                    topic,
                    life: serial,
                    made: true,
                }
            }
        };
        self.ask(shard, Ask::OpenTopic(name, asked_for), asked)
    }

    fn delete_topic(&mut self, topic: usize) -> Check {
        let state = &self.oracle.topics[topic];
        let (name, shard) = (state.name.clone(), state.shard);
        let attached = self
            .consumers
            .iter()
            .any(|c| c.topic == topic && c.attached);
        let asked = match &state.life {
            None => Asked::Refused("not found"),
            Some(life) if life.producers > 0 || attached => Asked::Refused("in use"),
            Some(_) => {
                self.forget_topic(topic);
                Asked::Plain
            }
        };
        self.ask(shard, Ask::DeleteTopic(name), asked)
    }

    fn open_producer(&mut self, topic: usize) -> Check {
        let state = &mut self.oracle.topics[topic];
        let shard = state.shard;
        let Some((life, id)) = state
            .life
            .as_mut()
            .and_then(|life| life.id.map(|id| (life, id)))
        else {
            return self.open_topic(topic, false);
        };
        life.producers += 1;
        let serial = life.serial;
        let slot = free_slot(&self.producers, |p| {
            let here = p.open && self.oracle.topics[p.topic].shard == shard;
            here.then_some(p.slot)
        });
        let producer = self.producers.len();
        self.producers.push(Producer {
            topic,
            slot,
            id: None,
            open: true,
            next_sequence: 0,
            owed: std::collections::BTreeMap::new(),
            life: serial,
        });
        self.ask(
            shard,
            Ask::OpenProducer(id, slot),
            Asked::OpenProducer(producer),
        )
    }

    fn close_producer(&mut self, producer: usize) -> Check {
        let of = &mut self.producers[producer];
        let Some(id) = of.id else { return Ok(()) };
        if std::mem::take(&mut of.open) {
            let life = self.oracle.topics[of.topic].life.as_mut();
            if let Some(life) = life.filter(|life| life.serial == of.life) {
                life.producers -= 1;
            }
        }
        let shard = self.oracle.topics[of.topic].shard;
        self.ask(shard, Ask::CloseProducer(id), Asked::Plain)
    }

    fn publish(&mut self, producer: usize, entries: u8, size: u8) -> Check {
        for _ in 0..entries {
            let of = &mut self.producers[producer];
            let (topic, sequence) = (of.topic, of.next_sequence);
            let shard = self.oracle.topics[topic].shard;
            let (Some(id), life) = (of.id, self.oracle.topics[topic].life.as_mut()) else {
                return Ok(());
            };
            let Some(life) = life.filter(|life| life.serial == of.life) else {
                return Ok(());
            };
            self.last_entry += 1;
            let number = self.last_entry;
            let entry = Entry {
                id: number,
                body: body(number, size),
                messages: messages(number, size),
                key_hash: (number % 7) as u32,
                sequence,
                publish_ms: self.now.wall_ms,
                fate: Fate::Owed,
            };
            let offered = Publish {
                body: &entry.body.clone(),
                messages: entry.messages,
                key_hash: entry.key_hash,
                sequence,
                arrived_ns: self.now.mono_ns,
                ..Publish::default()
            };
            of.owed.insert(sequence, life.entries.len());
            of.next_sequence += 1;
            life.entries.push(entry);
            let taken = self.shards[shard].core.publish(id, offered, self.now);
            if !taken {
                // It is offered again another time, as another one.
                self.oracle.life(topic).entries.pop();
                let of = &mut self.producers[producer];
                of.owed.remove(&sequence);
                of.next_sequence -= 1;
                return self.pump(shard);
            }
            self.totals.entries += 1;
            self.pump(shard)?;
        }
        Ok(())
    }

    pub(crate) fn subscribe(
        &mut self,
        topic: usize,
        name: &str,
        (kind, initial): (SubscriptionKind, InitialPosition),
        granted: u32,
    ) -> Check {
        let state = &mut self.oracle.topics[topic];
        let (shard, topic_name) = (state.shard, state.name.clone());
        let Some((life, id)) = state
            .life
            .as_mut()
            .and_then(|life| life.id.map(|id| (life, id)))
        else {
            return self.open_topic(topic, false);
        };
        let before = life.sub(name).map(|sub| sub.kind);
        let slot = free_slot(&self.consumers, |c| {
            let here = c.attached && self.oracle.topics[c.topic].shard == shard;
            here.then_some(c.slot)
        });
        let users = self
            .consumers
            .iter()
            .filter(|c| c.attached && c.is_of(&topic_name, name));
        let users = users.count();
        self.consumers_ever += 1;
        let of = (topic, topic_name);
        let (mut consumer, account) = Consumer::new(self.consumers_ever, of, name.to_owned(), slot);
        let ask = Ask::Subscribe {
            topic: id,
            sub: name.to_owned(),
            kind,
            initial,
            name: consumer.name.clone(),
            account,
            slot,
        };
        let alone = SubscriptionKind::Exclusive;
        if users > 0 && before.is_some_and(|before| before == alone || before != kind) {
            return self.ask(shard, ask, Asked::Refused("busy"));
        }
        if granted > 0 {
            let rung = consumer.grant(granted);
            hold("D12 doorbell", !rung, || {
                "nobody waits for a newcomer".to_owned()
            })?;
        }
        let made = self.sub_for(topic, name, kind, initial);
        self.consumers.push(consumer);
        let consumer = self.consumers.len() - 1;
        self.ask(shard, ask, Asked::Subscribe { consumer, made })
    }

    pub(crate) fn close_consumer(&mut self, consumer: usize) -> Check {
        let of = &mut self.consumers[consumer];
        let (Some(id), topic) = (of.id.filter(|_| of.told), of.topic) else {
            return Ok(());
        };
        if std::mem::take(&mut of.attached) {
            let name = of.sub.clone();
            let life = self.oracle.topics[topic].life.as_mut();
            if let Some(Life { subs, entries, .. }) = life
                && let Some(sub) = subs.iter_mut().find(|sub| sub.name == name)
            {
                sub.release(consumer, entries);
            }
        }
        let shard = self.oracle.topics[topic].shard;
        self.ask(shard, Ask::CloseConsumer(id), Asked::Plain)
    }

    fn unsubscribe(&mut self, topic: usize, name: &str) -> Check {
        let state = &mut self.oracle.topics[topic];
        let (shard, topic_name) = (state.shard, state.name.clone());
        let Some((life, id)) = state
            .life
            .as_mut()
            .and_then(|life| life.id.map(|id| (life, id)))
        else {
            return Ok(());
        };
        let there = life.sub(name).is_some();
        let mut consumers = self.consumers.iter();
        let used = consumers.any(|c| c.attached && c.is_of(&topic_name, name));
        let asked = match (there, used) {
            (false, _) => Asked::Refused("not found"),
            (_, true) => Asked::Refused("in use"),
            _ => {
                self.forget_sub(topic, name);
                Asked::Plain
            }
        };
        self.ask(shard, Ask::Unsubscribe(id, name.to_owned()), asked)
    }

    fn grant(&mut self, consumer: usize, messages: u32) {
        let of = &mut self.consumers[consumer];
        let shard = self.oracle.topics[of.topic].shard;
        if of.attached && of.grant(messages) {
            self.shards[shard].bells.push(consumer);
        }
    }

    pub(crate) fn flush_acks(&mut self, consumer: usize) -> Check {
        let of = &self.consumers[consumer];
        let (Some(id), shard) = (of.id, self.oracle.topics[of.topic].shard) else {
            return Ok(());
        };
        let ack = self.oracle.last_ack;
        self.ask(
            shard,
            Ask::FlushAcks(id),
            Asked::FlushAcks { consumer, ack },
        )
    }

    pub(crate) fn ack(&mut self, consumer: usize, index: usize) -> Check {
        let topic = self.consumers[consumer].topic;
        match self.oracle.life(topic).position(index) {
            Some(position) => self.say(consumer, Say::Ack(position)),
            None => Ok(()),
        }
    }

    /// Two of three are of entries that it holds, the others of any that it saw of late.
    fn say_of_one(&mut self, consumer: u8, pick: u8, say: impl FnOnce(Position) -> Say) -> Check {
        let Some(consumer) = self.consumer(consumer) else {
            return Ok(());
        };
        let held = self.holds(consumer);
        let of = &self.consumers[consumer];
        let seen = &of.saw[of.saw.len().saturating_sub(16)..];
        let from = if pick % 3 < 2 && !held.is_empty() {
            &held
        } else {
            seen
        };
        let index = nth(from, pick / 3, |_| true);
        let life = self.oracle.topics[of.topic].life.as_ref();
        let position = index.and_then(|index| life.and_then(|life| life.position(index)));
        match position {
            Some(position) => self.say(consumer, say(position)),
            None => Ok(()),
        }
    }

    /// What no honest consumer says.
    fn ack_false(&mut self, consumer: u8, pick: u8, kind: u8) -> Check {
        let Some(consumer) = self.consumer(consumer) else {
            return Ok(());
        };
        let topic = self.consumers[consumer].topic;
        let shard = self.oracle.topics[topic].shard;
        let others: Vec<usize> = (0..self.oracle.topics.len())
            .filter(|&other| other != topic && self.oracle.topics[other].shard == shard)
            .collect();
        let last = |topic: usize| {
            let life = self.oracle.topics[topic].life.as_ref()?;
            life.position(life.entries.len().checked_sub(1)?)
        };
        let beyond = |at: Position| Position {
            entry: at.entry + u64::from(pick % 4),
            ..at
        };
        let any = self.oracle.topics[topic].life.as_ref().and_then(|life| {
            let len = life.entries.len();
            (len > 0)
                .then(|| life.position(usize::from(pick) % len))
                .flatten()
        });
        let nowhere = Position {
            ledger: 1 << 40,
            entry: u64::from(pick),
        };
        let say = match kind % 8 {
            // Of any entry of the topic, whoever has it.
            0 => any.map(Say::Ack),
            1 => any.map(Say::Nack),
            2 => last(topic).map(|at| Say::Ack(beyond(at))),
            3 => last(topic).map(|at| Say::AckCumulative(beyond(at))),
            4 => Some(Say::Ack(nowhere)),
            5 => Some(Say::AckRun(nowhere, u32::MAX)),
            6 => nth(&others, pick, |_| true).and_then(last).map(Say::Ack),
            _ => any.map(|at| Say::AckRun(at, 1 + 3 * u32::from(pick))),
        };
        match say {
            Some(say) => self.say(consumer, say),
            None => Ok(()),
        }
    }

    fn say(&mut self, consumer: usize, say: Say) -> Check {
        let of = &self.consumers[consumer];
        let (Some(id), shard) = (of.id, self.oracle.topics[of.topic].shard) else {
            return Ok(());
        };
        self.oracle.said(consumer, of, say);
        self.shards[shard].core.say(id, say, self.now);
        self.pump(shard)
    }
}

/// The wanted one that a pick names, modulo how many there are.
fn nth(all: &[usize], pick: u8, wanted: impl FnMut(&&usize) -> bool) -> Option<usize> {
    let all: Vec<usize> = all.iter().filter(wanted).copied().collect();
    all.get(usize::from(pick).checked_rem(all.len())?).copied()
}

/// The lowest slot that nobody uses, as the shell gives them out.
fn free_slot<T>(all: &[T], used: impl Fn(&T) -> Option<u32>) -> u32 {
    let used: Vec<u32> = all.iter().filter_map(used).collect();
    (0..)
        .find(|slot| !used.contains(slot))
        .expect("fewer than 2^32")
}

fn messages(number: u64, size: u8) -> u32 {
    match size % 8 {
        0..4 => 1,
        4 => 100,
        5 => 1_000,
        _ => 1 + (number % 20) as u32,
    }
}

/// Its number, then filler: most are short, few fill a segment.
fn body(number: u64, size: u8) -> Vec<u8> {
    let len = match size / 8 {
        0 => 20_000,
        1..5 => 4_000,
        5..12 => 700,
        _ => usize::from(size),
    };
    let mut body = number.to_le_bytes().to_vec();
    body.resize(len.max(8), number.to_le_bytes()[0]);
    body
}
