//! What clients do, step by step: each step finds its subject, tells the core, and tells the oracle.

use pelton_broker::storage::{Durability, Position};
use pelton_broker::{InitialPosition, Publish, SeekTo};

use crate::chance::Chance;
use crate::clients::{Owed, Producer};
use crate::core::{Ask, Say};
use crate::cursor::Still;
use crate::keys::KEYS;
use crate::oracle::{Check, Entry, Fate, hold};
use crate::replies::Asked;
use crate::sequences::{numbered, producer_name};
use crate::steps::Step;
use crate::wishes::{delay_ns, policy, wish};
use crate::world::World;

/// Subscriptions of a topic; the last one is of readers.
const SUBS: u8 = 4;
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
                kind,
                who,
                start,
                granted,
            } => {
                let (topic, sub) = (self.topic(topic), sub % SUBS);
                let initial = self.initial(topic, start % 8, who);
                let habit = 5 * topic + usize::from(sub);
                let wish = wish((habit, sub == SUBS - 1), kind, who);
                let granted = u32::from(granted);
                self.subscribe(topic, &format!("s{sub}"), (wish, initial), granted)
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
            Step::AckBatch {
                consumer,
                pick,
                seed,
            } => self.say_of_one(consumer, pick, |at| Say::AckBatch(at, still(seed))),
            Step::AckCumulative {
                consumer,
                pick,
                part,
            } => {
                let still = if part < 64 {
                    still(part.into())
                } else {
                    Vec::new()
                };
                self.say_of_one(consumer, pick, |at| Say::AckCumulative(at, still))
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
                delay,
            } => {
                for offset in 0..entries {
                    let nack = |at| Say::Nack(at, delay_ns(delay));
                    self.say_of_one(consumer, pick.wrapping_add(offset), nack)?;
                }
                Ok(())
            }
            Step::NackAll { consumer } => match self.consumer(consumer) {
                Some(consumer) => self.say(consumer, &Say::NackAll),
                None => Ok(()),
            },
            Step::Release { consumer, pick } => self.say_of_one(consumer, pick, Say::Release),
            Step::Seek {
                topic,
                sub,
                start,
                pick,
                index,
            } => {
                let (topic, name) = (self.topic(topic), format!("s{}", sub % SUBS));
                let to = self.seek_to(topic, start, pick, index);
                self.seek(topic, &name, to)
            }
            Step::Terminate { topic } => self.terminate(self.topic(topic)),
            Step::LastPosition { topic, sub } => {
                self.last_position(self.topic(topic), &format!("s{}", sub % SUBS))
            }
            Step::SetPolicy { topic, seed } => self.set_policy(self.topic(topic), policy(seed)),
            _ => unreachable!("{step:?} is of the world"),
        }
    }

    /// Where a new subscription starts: mostly at the first entry.
    fn initial(&self, topic: usize, start: u8, pick: u8) -> InitialPosition {
        match (start, self.any_position(topic, pick)) {
            (0, _) => InitialPosition::Latest,
            (1, Some(position)) => InitialPosition::At(position),
            (2, _) => {
                let life = self.oracle.topics[topic].life.as_ref();
                let entries = life.map_or(&[][..], |life| &life.entries[..]);
                let at = usize::from(pick).checked_rem(entries.len());
                let ms = at.map_or(0, |at| entries[at].publish_ms);
                InitialPosition::Since(ms + u64::from(pick % 2))
            }
            _ => InitialPosition::Earliest,
        }
    }

    fn seek_to(&self, topic: usize, start: u8, pick: u8, index: u16) -> SeekTo {
        let position = self.any_position(topic, pick);
        match (start % 8, position) {
            (3, Some(position)) => SeekTo::Message {
                position,
                index: u32::from(index) % 25,
            },
            (4, Some(position)) => SeekTo::Part {
                position,
                still: still(index).into(),
            },
            (start, _) => self.initial(topic, start % 4, pick).into(),
        }
    }

    /// Of any entry that somebody knows of, or behind the last one.
    fn any_position(&self, topic: usize, pick: u8) -> Option<Position> {
        let life = self.oracle.topics[topic].life.as_ref()?;
        let at = usize::from(pick).checked_rem(life.entries.len() + 1)?;
        let last = life.position(at.checked_sub(1)?);
        let behind = last.map(|last| Position {
            entry: last.entry + 1,
            ..last
        });
        life.position(at).or(behind)
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
        let now_ms = self.now.wall_ms;
        let state = &mut self.oracle.topics[topic];
        let shard = state.shard;
        let stored = state.durability != Durability::NonPersistent;
        let Some((life, id)) = state.opened() else {
            return self.open_topic(topic, false);
        };
        let taken = !life.end.takes_nothing();
        let takes_less = stored && life.takes_less(now_ms).is_some();
        life.producers += usize::from(taken && !takes_less);
        let serial = life.serial;
        let slot = free_slot(&self.producers, |p| {
            let here = p.open && self.oracle.topics[p.topic].shard == shard;
            here.then_some(p.slot)
        });
        if !taken {
            let ask = Ask::OpenProducer(id, slot);
            return self.ask(shard, ask, Asked::Refused("terminated"));
        }
        if takes_less {
            let ask = Ask::OpenProducer(id, slot);
            return self.ask(shard, ask, Asked::Refused("quota"));
        }
        let producer = self.producers.len();
        self.producers.push(Producer {
            topic,
            slot,
            id: None,
            open: true,
            at_end: false,
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
            let counted = self.oracle.topics[topic].durability != Durability::NonPersistent;
            let (Some(id), life) = (of.id, self.oracle.topics[topic].life.as_mut()) else {
                return Ok(());
            };
            let Some(life) = life.filter(|life| life.serial == of.life) else {
                return Ok(());
            };
            self.last_entry += 1;
            let number = self.last_entry;
            let name = producer_name(of.slot);
            let highest = life.highest(&name);
            let counts = life.policy().deduplication_enabled && counted;
            let numbers = numbered(highest, number ^ u64::from(size)).filter(|_| counts);
            let repeats = highest.filter(|&highest| numbers.is_some_and(|it| it.first <= highest));
            let entry = Entry {
                id: number,
                body: body(number, size),
                messages: messages(number, size),
                key_hash: key_of(number),
                sequence: numbers.map_or(sequence, |numbers| numbers.last),
                numbered: numbers.map(|numbers| (name, numbers.last)),
                publish_ms: self.now.wall_ms,
                fate: Fate::Owed,
            };
            let offered = Publish {
                body: &entry.body.clone(),
                messages: entry.messages,
                key_hash: entry.key_hash,
                sequence,
                numbered: numbers,
                arrived_ns: self.now.mono_ns,
                ..Publish::default()
            };
            // Its age is looked at once a second.
            let takes_less = life.takes_less(0).filter(|_| counted);
            let owed = repeats.map_or(Owed::Entry(life.entries.len()), Owed::Repeats);
            of.owed.insert(sequence, owed);
            of.next_sequence += 1;
            life.entries
                .extend(Some(entry).filter(|_| repeats.is_none()));
            let taken = self.shards[shard].core.publish(id, offered, self.now);
            if !taken {
                // It is offered again another time, as another one.
                hold("D141 held", repeats.is_none(), || {
                    format!("entry {number} is held")
                })?;
                self.oracle.life(topic).entries.pop();
                let of = &mut self.producers[producer];
                of.owed.remove(&sequence);
                of.next_sequence -= 1;
                return self.pump(shard);
            }
            self.totals.entries += 1;
            self.pump(shard)?;
            let life = self.oracle.life(topic);
            let refused = life.entries.last().is_none_or(|last| last.id != number);
            hold("D132 taken", refused || !life.end.answered, || {
                format!("entry {number} comes after the end")
            })?;
            hold("D128 taken", refused || takes_less.is_none(), || {
                format!("entry {number}, and {takes_less:?}")
            })?;
        }
        Ok(())
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
            Some(position) => self.say(consumer, &Say::Ack(position)),
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
            Some(position) => self.say(consumer, &say(position)),
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
        if kind % 9 == 8 {
            // An attachment that a seek ended has nothing to say (rule D99).
            if let Some((ended, at)) = self.consumers[consumer].ended.zip(any) {
                self.shards[shard].core.say(ended, &Say::Ack(at), self.now);
            }
            return self.pump(shard);
        }
        let say = match kind % 9 {
            // Of any entry of the topic, whoever has it.
            0 => any.map(Say::Ack),
            1 => any.map(|at| Say::Nack(at, None)),
            2 => last(topic).map(|at| Say::Ack(beyond(at))),
            3 => last(topic).map(|at| Say::AckCumulative(beyond(at), Vec::new())),
            4 => Some(Say::Ack(nowhere)),
            5 => Some(Say::AckRun(nowhere, u32::MAX)),
            6 => nth(&others, pick, |_| true).and_then(last).map(Say::Ack),
            _ => any.map(|at| Say::AckRun(at, 1 + 3 * u32::from(pick))),
        };
        match say {
            Some(say) => self.say(consumer, &say),
            None => Ok(()),
        }
    }

    fn say(&mut self, consumer: usize, say: &Say) -> Check {
        let of = &self.consumers[consumer];
        let (Some(id), shard) = (of.id, self.oracle.topics[of.topic].shard) else {
            return Ok(());
        };
        self.oracle.said(consumer, of, say, self.now.mono_ns);
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
pub(crate) fn free_slot<T>(all: &[T], used: impl Fn(&T) -> Option<u32>) -> u32 {
    let used: Vec<u32> = all.iter().filter_map(used).collect();
    (0..)
        .find(|slot| !used.contains(slot))
        .expect("fewer than 2^32")
}

/// One in four entries has no key.
fn key_of(number: u64) -> u32 {
    let of_all = Chance(number).below(KEYS.len() as u64 * 4 / 3);
    KEYS.get(of_all as usize).copied().unwrap_or(0).into()
}

/// Any messages of a batch; now and then too many words, or too few.
fn still(seed: u16) -> Still {
    let mut chance = Chance(u64::from(seed));
    let words = [1, 1, 1, 2, 16, 17][chance.below(6) as usize];
    let mut word = || match chance.below(4) {
        0 => u64::MAX,
        1 => chance.next() | chance.next(),
        _ => chance.next(),
    };
    (0..words).map(|_| word()).collect()
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
