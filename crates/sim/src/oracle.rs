//! What must be so, kept by the world on its own: it sees what goes into the core and what comes out,
//! never the core's own state. Each rule has a name; those with a T are of `spec/dispatch.md` 23.
//!
//! Entries are known by their place in the order of appends of their topic. A topic or subscription that
//! is deleted and made again is another one.

use std::collections::BTreeMap;

use pelton_broker::storage::{Durability, Position};
use pelton_broker::{InitialPosition, Policy, Reply, RequestError, SeekTo, TopicId};

use crate::clients::Consumer;
use crate::core::{Delivered, HandOver, Say};
use crate::cursor::{all_of, both, count};
use crate::sub::{Start, State, Sub};
use crate::unstored::handed_out;

/// A rule that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub rule: &'static str,
    /// What was seen instead.
    pub what: String,
}

/// Number of the acks that were there when the engine was opened: as durable as can be.
pub(crate) const FOUND: u64 = 1;

pub(crate) type Check = Result<(), Violation>;

pub(crate) fn hold(rule: &'static str, holds: bool, what: impl FnOnce() -> String) -> Check {
    if holds {
        return Ok(());
    }
    let what = what();
    Err(Violation { rule, what })
}

#[derive(Debug)]
pub(crate) struct Topic {
    pub(crate) name: String,
    pub(crate) shard: usize,
    pub(crate) durability: Durability,
    /// The topic as it is in the core, if it is.
    pub(crate) life: Option<Life>,
    /// Those deleted since the engine was opened: without an answer they may be there again.
    pub(crate) former: Vec<Life>,
}

impl Topic {
    /// The topic and the id the core has given it, once it has.
    pub(crate) fn opened(&mut self) -> Option<(&mut Life, TopicId)> {
        let life = self.life.as_mut()?;
        let id = life.id?;
        Some((life, id))
    }
}

/// A topic from its making to its deletion.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// Durable id, 0 while it is not known.
    pub(crate) key: u64,
    pub(crate) id: Option<TopicId>,
    /// A client was told that it is there: it stays through any crash.
    pub(crate) answered: bool,
    pub(crate) serial: u64,
    pub(crate) producers: usize,
    pub(crate) entries: Vec<Entry>,
    pub(crate) ledgers: Vec<Ledger>,
    /// The highest sequence of each producer's name, as recovery found it.
    pub(crate) sequences: BTreeMap<String, u64>,
    pub(crate) subs: Vec<Sub>,
    /// What the topic was asked to go by, the default first, and whether that holds as far as is known.
    pub(crate) policies: Vec<(Policy, bool)>,
    pub(crate) end: End,
    /// First entry appended since the engine was opened.
    pub(crate) opened_at: usize,
    /// Entries that exist, as last told, and how many there were ever then.
    pub(crate) stored: usize,
    pub(crate) known: usize,
}

/// Whether a topic was asked to take nothing more.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct End {
    /// Requests without an answer.
    pub(crate) asked: u32,
    /// One was answered.
    pub(crate) answered: bool,
    /// One failed, and may be on the disk by way of a later record.
    pub(crate) failed: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) body: Vec<u8>,
    pub(crate) messages: u32,
    pub(crate) key_hash: u32,
    pub(crate) sequence: u64,
    /// The producer's name and the sequence, if that counts.
    pub(crate) numbered: Option<(String, u64)>,
    pub(crate) publish_ms: u64,
    pub(crate) fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// No receipt yet.
    Owed,
    /// Its receipt said stored.
    Stored,
    /// Its topic stores nothing.
    Unstored,
    /// Its receipt said nobody knows.
    Unknown,
    /// It was there when the engine was opened, and is as durable as can be.
    Found,
}

/// Consecutive entries of one ledger.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ledger {
    pub(crate) ledger: u64,
    pub(crate) entry: u64,
    pub(crate) first: usize,
    /// One past the last; none while it is the one that is appended to.
    pub(crate) end: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) topics: Vec<Topic>,
    /// Number of the last ack; [`FOUND`] at the start.
    pub(crate) last_ack: u64,
    pub(crate) last_life: u64,
}

impl End {
    pub(crate) fn takes_nothing(self) -> bool {
        self.answered || self.asked > 0
    }
}

impl Ledger {
    pub(crate) fn follows(&self, position: Position) -> bool {
        let entries = self.end.map_or(0, |end| end - self.first);
        position.ledger == self.ledger && position.entry == self.entry + entries as u64
    }
}

impl Life {
    pub(crate) fn sub(&mut self, name: &str) -> Option<&mut Sub> {
        self.subs.iter_mut().find(|sub| sub.name == name)
    }

    pub(crate) fn policy(&self) -> &Policy {
        let mut holds = self.policies.iter().rev().filter(|(_, holds)| *holds);
        let last = holds.next();
        &last.expect("the default holds").0
    }

    /// The first entry that exists, as last told.
    pub(crate) fn stored_from(&self) -> usize {
        self.known - self.stored
    }

    /// The last policy that holds is that of every subscription.
    pub(crate) fn use_policy(&mut self) {
        let policy = self.policy().clone();
        for sub in &mut self.subs {
            sub.policy = policy.clone();
            sub.weigh(&self.entries);
        }
    }

    pub(crate) fn resolve(&self, position: Position) -> Option<usize> {
        let mut of_ledger = self.ledgers.iter().filter(|l| l.ledger == position.ledger);
        of_ledger.find_map(|ledger| {
            let at = usize::try_from(position.entry.checked_sub(ledger.entry)?).ok()?;
            let index = ledger.first.checked_add(at)?;
            (index < ledger.end.unwrap_or(self.entries.len())).then_some(index)
        })
    }

    /// The entries there are of `count` consecutive ones of a ledger.
    fn run(&self, first: Position, count: u32) -> Vec<usize> {
        let end = first.entry.saturating_add(u64::from(count));
        let mut found = Vec::new();
        for run in self.ledgers.iter().filter(|run| run.ledger == first.ledger) {
            let indexes = run.first..run.end.unwrap_or(self.entries.len());
            let entry = |index: usize| run.entry + (index - run.first) as u64;
            found.extend(indexes.filter(|&index| (first.entry..end).contains(&entry(index))));
        }
        found
    }

    pub(crate) fn position(&self, index: usize) -> Option<Position> {
        let ledger = self.ledgers.iter().find(|ledger| {
            (ledger.first..ledger.end.unwrap_or(self.entries.len())).contains(&index)
        })?;
        Some(Position {
            ledger: ledger.ledger,
            entry: ledger.entry + (index - ledger.first) as u64,
        })
    }

    /// Takes note of where an entry is, or compares.
    pub(crate) fn learn(&mut self, index: usize, position: Position) -> Check {
        if self.position(index).is_none() && index >= self.opened_at {
            let before = (index - self.opened_at) as u64;
            let ledger = Ledger {
                ledger: position.ledger,
                entry: position.entry.wrapping_sub(before),
                first: self.opened_at,
                end: None,
            };
            self.ledgers.push(ledger);
        }
        let known = self.position(index);
        hold("T7 positions", known == Some(position), || {
            format!("entry {index} is at {position:?}, known at {known:?}")
        })
    }

    /// Where a subscription begins that is made now, or sought (rules D135 and D136).
    pub(crate) fn start_of(&self, durability: Durability, to: &SeekTo) -> Start {
        let (len, ready) = (self.entries.len(), self.ready(durability));
        let earliest = len - self.stored;
        let whole = |may| Start { may, part: None };
        // At an entry that is there, or behind one that is not.
        let at = |position: Position| {
            let mut of_ledger = self.ledgers.iter().rev();
            let behind = of_ledger.find(|run| run.ledger == position.ledger);
            let behind = behind.and_then(|run| run.end).unwrap_or(len);
            self.resolve(position).unwrap_or(behind).max(earliest)
        };
        let exactly = |at: usize| whole(at..=at);
        let (position, still) = match *to {
            SeekTo::Start(InitialPosition::Earliest) => return exactly(earliest),
            SeekTo::Start(InitialPosition::At(position)) => return exactly(at(position)),
            SeekTo::Start(InitialPosition::Since(ms)) => {
                let mut there = earliest..len;
                let first = there.find(|&at| self.entries[at].publish_ms >= ms);
                return exactly(first.unwrap_or(len));
            }
            SeekTo::Start(InitialPosition::Latest) => {
                return whole(match durability {
                    Durability::Memory => ready..=ready,
                    // What is durable may not have its receipt yet; of a written topic, what has its
                    // receipt may still wait for the first sync of this life.
                    Durability::Synced => ready..=len,
                    _ => self.opened_at..=len,
                });
            }
            SeekTo::Message { position, index } => {
                let done = |word: usize| match u64::from(index).saturating_sub(64 * word as u64) {
                    64.. => 0,
                    bits => u64::MAX << bits,
                };
                (position, (0..1_563).map(done).collect())
            }
            SeekTo::Part {
                position,
                ref still,
            } => (position, still.to_vec()),
        };
        let there = self.resolve(position).filter(|&at| at >= earliest);
        let Some(there) = there else {
            return exactly(at(position));
        };
        let all = all_of(self.entries[there].messages);
        let left = both(&all, &still);
        match count(&left) {
            0 => exactly(there + 1),
            _ => Start {
                may: there..=there,
                part: Some(left).filter(|left| *left != all),
            },
        }
    }

    fn find(&self, body: &[u8]) -> Option<usize> {
        let id = u64::from_le_bytes(*body.first_chunk()?);
        self.entries
            .binary_search_by_key(&id, |entry| entry.id)
            .ok()
    }

    /// Which entry it is: the very one that was published.
    pub(crate) fn recognize(&self, delivered: &Delivered) -> Result<usize, Violation> {
        let found = self.find(&delivered.body);
        let index = found.ok_or_else(|| Violation {
            rule: "T7 phantom",
            what: format!("{:?} was never published there", delivered.position),
        })?;
        let entry = &self.entries[index];
        let same = entry.body == delivered.body
            && entry.messages == delivered.messages
            && entry.key_hash == delivered.key_hash
            && entry.sequence == delivered.sequence
            && entry.publish_ms == delivered.publish_ms;
        hold("T7 content", same, || {
            format!("published {entry:?}, delivered {delivered:?}")
        })?;
        Ok(index)
    }

    /// Entries that may be dispatched: a run from the start.
    pub(crate) fn ready(&self, durability: Durability) -> usize {
        match durability {
            Durability::NonPersistent | Durability::Memory => self.entries.len(),
            Durability::Written | Durability::Synced => {
                let ready = |e: &Entry| matches!(e.fate, Fate::Stored | Fate::Found);
                let unready = self.entries.iter().rposition(ready);
                unready.map_or(0, |last| last + 1)
            }
        }
    }
}

impl Oracle {
    pub(crate) fn life(&mut self, topic: usize) -> &mut Life {
        self.topics[topic].life.as_mut().expect("it is in the core")
    }

    /// The subscription of a consumer, with the entries of its topic.
    pub(crate) fn sub_of(&mut self, consumer: &Consumer) -> Option<(&mut Sub, &[Entry])> {
        let life = self.topics[consumer.topic].life.as_mut()?;
        let sub = life.subs.iter_mut().find(|sub| sub.name == consumer.sub)?;
        Some((sub, &life.entries))
    }

    /// All subscriptions of a shard, each with the entries of its topic.
    fn subs(&mut self, shard: usize) -> impl Iterator<Item = (&mut Sub, &[Entry])> {
        let ours = self.topics.iter_mut().filter(move |t| t.shard == shard);
        ours.filter_map(|topic| topic.life.as_mut())
            .flat_map(|life| {
                let entries = &life.entries[..];
                life.subs.iter_mut().map(move |sub| (sub, entries))
            })
    }

    /// A shard is about to take a turn: what is due by now is.
    pub(crate) fn tick(&mut self, shard: usize, now_ns: u64) {
        for (sub, entries) in self.subs(shard) {
            sub.tick(entries, now_ns);
        }
        let ours = self.topics.iter_mut().filter(|topic| topic.shard == shard);
        for life in ours.filter_map(|topic| topic.life.as_mut()) {
            life.subs.retain(|sub| !sub.is_over(now_ns));
        }
    }

    /// Whoever must be told something has been, and whoever must be woken will be (rule D62).
    pub(crate) fn check_owed(&mut self, shard: usize, next_ns: Option<u64>) -> Check {
        for (sub, _) in self.subs(shard) {
            if let Some(election) = &sub.election {
                election.check_told()?;
            }
            hold("D133 reset", sub.to_reset.is_empty(), || {
                format!("{:?} of {} were not told", sub.to_reset, sub.name)
            })?;
            let due_ns = sub.due_ns();
            let armed = due_ns.is_none_or(|due| next_ns.is_some_and(|next| next <= due));
            hold("D62 not armed", armed, || {
                format!(
                    "{} is due at {due_ns:?}, the core's next at {next_ns:?}",
                    sub.name
                )
            })?;
        }
        Ok(())
    }

    /// A consumer says something of entries.
    pub(crate) fn said(&mut self, at: usize, consumer: &Consumer, say: &Say, now_ns: u64) {
        if !consumer.attached {
            return;
        }
        self.last_ack += 1;
        let ack = self.last_ack;
        let Some(life) = self.topics[consumer.topic].life.as_mut() else {
            return;
        };
        let named: Vec<usize> = match *say {
            Say::AckRun(first, count) => life.run(first, count),
            Say::Ack(at)
            | Say::AckBatch(at, _)
            | Say::AckCumulative(at, _)
            | Say::Nack(at, _)
            | Say::Release(at) => life.resolve(at).into_iter().collect(),
            Say::NackAll => Vec::new(),
        };
        let Life { subs, entries, .. } = life;
        let Some(sub) = subs.iter_mut().find(|sub| sub.name == consumer.sub) else {
            return;
        };
        if sub.is_seeking() {
            return;
        }
        let last = named.last().copied();
        match (say, last) {
            (Say::Ack(_) | Say::AckRun(..), _) => {
                for index in named {
                    sub.ack(index, entries[index].messages, ack);
                }
            }
            (Say::AckBatch(_, still), Some(index)) => {
                sub.ack_part(index, entries[index].messages, ack, still);
            }
            // Only where entries go in order (D97).
            (Say::AckCumulative(_, still), Some(last)) if sub.kind.is_single() => {
                let whole = still.iter().all(|&word| word == 0);
                let through = last + usize::from(whole);
                for (index, entry) in entries[..through].iter().enumerate() {
                    sub.ack(index, entry.messages, ack);
                }
                sub.ack_part(last, entries[last].messages, ack, still);
            }
            (&Say::Nack(_, delay_ns), Some(index)) => sub.nack((at, index), delay_ns, now_ns),
            (Say::Release(_), Some(index)) if sub.states.get(&index) == Some(&State::Held(at)) => {
                sub.states.insert(index, State::Replay);
            }
            (Say::NackAll, _) => {
                for index in sub.held_by(at) {
                    sub.nack((at, index), None, now_ns);
                }
            }
            _ => {}
        }
        sub.weigh(entries);
    }

    /// A seek is answered: it is carried out, or could not be; whether that may be (rule D133).
    pub(crate) fn sought(
        &mut self,
        topic: usize,
        ack: u64,
        reply: &Result<Reply, RequestError>,
        harmed: bool,
    ) -> Result<bool, Violation> {
        let life = self.topics[topic].life.as_mut();
        let of = |sub: &Sub| sub.seeks.iter().position(|seek| seek.ack == ack);
        let mut subs = life.into_iter().flat_map(|life| &mut life.subs);
        let poisoned = harmed && matches!(reply, Err(RequestError::Poisoned { .. }));
        let Some((sub, at)) = subs.find_map(|sub| of(sub).map(|at| (sub, at))) else {
            return Ok(poisoned || matches!(reply, Err(RequestError::NotFound { .. })));
        };
        let first = sub.seeks.iter().position(|seek| !seek.failed);
        hold("D134 order", first == Some(at), || {
            format!("{ack} is answered before others of {:?}", sub.seeks)
        })?;
        match reply {
            Ok(Reply::Done) => sub.end_seek(at),
            _ => sub.seeks[at].failed = true,
        }
        Ok(poisoned || matches!(reply, Ok(Reply::Done)))
    }

    /// Whether a topic ends there, and a subscription is so far (rule D136).
    pub(crate) fn is_last(
        &self,
        topic: usize,
        name: &str,
        last: Option<Position>,
        mark_delete: Option<Position>,
    ) -> bool {
        let Topic {
            life, durability, ..
        } = &self.topics[topic];
        let Some(life) = life else { return false };
        if *durability == Durability::NonPersistent {
            return true; // there is nothing to be last
        }
        let Some(sub) = life.subs.iter().find(|sub| sub.name == name) else {
            return false;
        };
        let floor = sub.cursor.lowest_unacked(life.entries.len());
        // What nobody was told of may be known to the core alone.
        let known = floor.checked_sub(1).and_then(|at| life.position(at));
        let ready = match durability {
            Durability::Written => life.ready(*durability).min(life.opened_at),
            _ => life.ready(*durability),
        };
        let end = last
            .and_then(|last| life.resolve(last))
            .map_or(0, |at| at + 1);
        known.is_none_or(|known| mark_delete == Some(known))
            && (end >= ready || life.position(life.opened_at).is_none())
    }

    /// A run was handed over.
    pub(crate) fn delivered(
        &mut self,
        at: usize,
        consumers: &mut [Consumer],
        run: &HandOver,
        lied: bool,
    ) -> Check {
        let consumer = &consumers[at];
        let Topic {
            life, durability, ..
        } = &mut self.topics[consumer.topic];
        let life = life.as_mut().filter(|_| consumer.attached);
        hold("T7 nobody", life.is_some(), || {
            format!("a delivery to consumer {at}, which is not attached")
        })?;
        let Some(life) = life else { return Ok(()) };
        if *durability == Durability::NonPersistent {
            return handed_out(life, at, consumers, run);
        }
        let mut messages = 0;
        for delivered in &run.entries {
            let index = life.recognize(delivered)?;
            life.learn(index, delivered.position)?;
            let entry = &life.entries[index];
            // A sync that was in flight when the log failed may have proved what got no receipt.
            let ready = !durability.is_stored() || entry.fate != Fate::Owed;
            hold("D3 not durable", ready, || {
                format!("entry {index} is {:?}", entry.fate)
            })?;
            let permits = consumers[at].granted as i64 - consumers[at].delivered as i64;
            hold("T1 overrun", permits > 0, || {
                format!("consumer {at} has {permits} permits and gets entry {index}")
            })?;
            let Life { subs, entries, .. } = life;
            let named = |sub: &&mut Sub| sub.name == consumers[at].sub;
            let Some(sub) = subs.iter_mut().find(named) else {
                return hold("T7 nobody", false, || "the subscription is gone".to_owned());
            };
            hold("T7 twice", sub.is_free(index), || {
                let (acked, state) = (sub.cursor.is_acked(index), sub.states.get(&index));
                format!("entry {index} of {}, acked: {acked}, {state:?}", sub.name)
            })?;
            match sub.check_may_get((at, index), entries, consumers) {
                // What a failed sync lost is passed over.
                Err(violation) if lied && violation.rule.ends_with("order") => {}
                checked => checked?,
            }
            let given_back = sub
                .redeliveries
                .get(&index)
                .filter(|_| !sub.kind.is_single());
            let count = given_back.copied().unwrap_or(0);
            hold("D109 count", count == run.redeliveries, || {
                format!(
                    "entry {index} was given back {count} times, not {}",
                    run.redeliveries
                )
            })?;
            let still = sub.still(index);
            hold("D7 part", still == run.still.as_ref(), || {
                format!("of entry {index} is left {still:?}, not {:?}", run.still)
            })?;
            let left = sub.left(index, entries);
            sub.states.insert(index, State::Held(at));
            sub.weigh(entries);
            sub.delivered_messages += left;
            consumers[at].delivered += left;
            consumers[at].saw.push(index);
            messages += left;
        }
        hold("D7 messages", messages == u64::from(run.messages), || {
            format!("a run of {messages} messages says {}", run.messages)
        })
    }
}
