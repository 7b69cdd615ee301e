//! What must be so, kept by the world on its own: it sees what goes into the core and what comes out,
//! never the core's own state. Each rule has a name; those with a T are of `spec/dispatch.md` 23.
//!
//! Entries are known by their place in the order of appends of their topic. A topic or subscription that
//! is deleted and made again is another one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use pelton_broker::storage::{Durability, Position};
use pelton_broker::{
    BrokerStats, ConsumerStats, SubscriptionKind, SubscriptionStats, TopicId, TopicStats,
};

use crate::clients::Consumer;
use crate::core::{Delivered, Say};

/// Defaults of the caps on unacked messages.
const CONSUMER_UNACKED_MAX: u64 = 50_000;
const SUBSCRIPTION_UNACKED_MAX: u64 = 200_000;

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
    pub(crate) subs: Vec<Sub>,
    /// First entry appended since the engine was opened.
    pub(crate) opened_at: usize,
    /// Entries that exist, as last told.
    pub(crate) stored: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) id: u64,
    pub(crate) body: Vec<u8>,
    pub(crate) messages: u32,
    pub(crate) key_hash: u32,
    pub(crate) sequence: u64,
    pub(crate) publish_ms: u64,
    pub(crate) fate: Fate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// No receipt yet.
    Owed,
    /// Its receipt said stored.
    Stored,
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
pub(crate) struct Sub {
    pub(crate) name: String,
    /// Durable id, 0 while it is not known.
    pub(crate) key: u64,
    pub(crate) kind: SubscriptionKind,
    pub(crate) answered: bool,
    /// Until the core has said where it starts: where it may, and the number of that ack.
    pub(crate) may_start: Option<(Range<usize>, u64)>,
    /// Number of the ack of each entry, 0 without one; shorter than the topic's entries.
    pub(crate) acked: Vec<u64>,
    /// Acks up to this number are as durable as the topic.
    pub(crate) promised: u64,
    /// Entries that were handed over and are not acked.
    pub(crate) states: BTreeMap<usize, State>,
    pub(crate) redeliveries: BTreeMap<usize, u32>,
    /// Consumers at their unacked cap, and whether the subscription is at its own (rule D104).
    pub(crate) at_cap: BTreeSet<usize>,
    pub(crate) full: bool,
    pub(crate) delivered_messages: u64,
    pub(crate) acked_messages: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// By a consumer of this index.
    Held(usize),
    Replay,
}

#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) topics: Vec<Topic>,
    /// Number of the last ack; [`FOUND`] at the start.
    pub(crate) last_ack: u64,
    pub(crate) last_life: u64,
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

    fn find(&self, body: &[u8]) -> Option<usize> {
        let id = u64::from_le_bytes(*body.first_chunk()?);
        self.entries
            .binary_search_by_key(&id, |entry| entry.id)
            .ok()
    }

    /// Entries that may be dispatched: a run from the start.
    pub(crate) fn ready(&self, durability: Durability) -> usize {
        match durability {
            Durability::Memory => self.entries.len(),
            _ => {
                let ready = |e: &Entry| matches!(e.fate, Fate::Stored | Fate::Found);
                let unready = self.entries.iter().rposition(ready);
                unready.map_or(0, |last| last + 1)
            }
        }
    }
}

impl Sub {
    pub(crate) fn new(name: &str, kind: SubscriptionKind) -> Sub {
        Sub {
            name: name.to_owned(),
            key: 0,
            kind,
            answered: false,
            may_start: None,
            acked: Vec::new(),
            promised: 0,
            states: BTreeMap::new(),
            redeliveries: BTreeMap::new(),
            at_cap: BTreeSet::new(),
            full: false,
            delivered_messages: 0,
            acked_messages: 0,
        }
    }

    pub(crate) fn is_acked(&self, index: usize) -> bool {
        self.acked.get(index).is_some_and(|&ack| ack != 0)
    }

    pub(crate) fn is_promised(&self, index: usize) -> bool {
        self.is_acked(index) && self.acked[index] <= self.promised
    }

    pub(crate) fn set_acked(&mut self, index: usize, ack: u64) {
        if self.acked.len() <= index {
            self.acked.resize(index + 1, 0);
        }
        self.acked[index] = ack;
    }

    /// Takes the core's word for where it starts, within what is right.
    fn learn_start(&mut self, entries: usize, told: &SubscriptionStats) -> Check {
        let Some((may, ack)) = self.may_start.take() else {
            return Ok(());
        };
        let start = entries.saturating_sub(told.backlog_entries as usize);
        let fine = may.start <= start && start <= may.end;
        hold("D136 start", fine, || {
            format!("{told:?} starts at {start}, may at {may:?}")
        })?;
        (may.start..start).for_each(|at| self.set_acked(at, ack));
        Ok(())
    }

    fn ack(&mut self, index: usize, messages: u32, ack: u64) {
        if !self.is_acked(index) {
            self.set_acked(index, ack);
            self.states.remove(&index);
            self.redeliveries.remove(&index);
            self.acked_messages += u64::from(messages);
        }
    }

    /// It starts again at its first unacked entry.
    fn rewind(&mut self) {
        let states = self.states.values_mut();
        states.for_each(|state| *state = State::Replay);
    }

    /// The lowest entry that was never handed over.
    fn first_unread(&self, entries: usize) -> Option<usize> {
        (0..entries).find(|&at| !self.is_acked(at) && !self.states.contains_key(&at))
    }

    fn first_replay(&self) -> Option<usize> {
        let replay = |(&at, &state): (&usize, &State)| (state == State::Replay).then_some(at);
        self.states.iter().find_map(replay)
    }

    pub(crate) fn lowest_unacked(&self, entries: usize) -> usize {
        (0..entries)
            .find(|&at| !self.is_acked(at))
            .unwrap_or(entries)
    }

    /// Which entry is next, whoever gets it: what is owed again before what is new, each in order.
    fn next(&self, entries: usize) -> Option<usize> {
        self.first_replay().or_else(|| self.first_unread(entries))
    }

    /// The end of an attachment: what it held is owed again.
    pub(crate) fn release(&mut self, consumer: usize, entries: &[Entry]) {
        for state in self.states.values_mut() {
            if *state == State::Held(consumer) {
                *state = State::Replay;
            }
        }
        self.weigh(entries);
    }

    /// Who is at a cap, after any change of what is unacked (rules D103 and D104).
    fn weigh(&mut self, entries: &[Entry]) {
        if self.kind == SubscriptionKind::Exclusive {
            (self.full, self.at_cap) = (false, BTreeSet::new());
            return;
        }
        let mut unacked = BTreeMap::<usize, u64>::new();
        for (&at, &state) in &self.states {
            if let State::Held(consumer) = state {
                *unacked.entry(consumer).or_default() += u64::from(entries[at].messages);
            }
        }
        let blocks = |was: bool, count: u64, cap: u64| count >= cap || was && count > cap / 2;
        let sum = unacked.values().sum();
        self.full = blocks(self.full, sum, SUBSCRIPTION_UNACKED_MAX);
        let was = std::mem::take(&mut self.at_cap);
        let blocked = |&(&consumer, &count): &(&usize, &u64)| {
            blocks(was.contains(&consumer), count, CONSUMER_UNACKED_MAX)
        };
        self.at_cap = unacked.iter().filter(blocked).map(|of| *of.0).collect();
    }
}

impl Oracle {
    pub(crate) fn life(&mut self, topic: usize) -> &mut Life {
        self.topics[topic].life.as_mut().expect("it is in the core")
    }

    /// A consumer says something of entries.
    pub(crate) fn said(&mut self, at: usize, consumer: &Consumer, say: Say) {
        if !consumer.attached {
            return;
        }
        self.last_ack += 1;
        let ack = self.last_ack;
        let life = self.topics[consumer.topic].life.as_mut();
        let Some(life) = life else { return };
        let named: Vec<usize> = match say {
            Say::AckRun(first, count) => life.run(first, count),
            Say::Ack(at) | Say::AckCumulative(at) | Say::Nack(at) => {
                life.resolve(at).into_iter().collect()
            }
        };
        let Some(&last) = named.last() else { return };
        let Life { subs, entries, .. } = life;
        let Some(sub) = subs.iter_mut().find(|sub| sub.name == consumer.sub) else {
            return;
        };
        let indexes = match say {
            Say::Ack(_) | Say::AckRun(..) => named,
            // Only where entries go in order (D97).
            Say::AckCumulative(_) if sub.kind == SubscriptionKind::Exclusive => {
                (0..=last).collect()
            }
            Say::AckCumulative(_) => return,
            Say::Nack(_) => {
                if sub.states.get(&last) != Some(&State::Held(at)) {
                    return;
                }
                if sub.kind == SubscriptionKind::Exclusive {
                    sub.rewind(); // D66
                } else {
                    sub.states.insert(last, State::Replay);
                    *sub.redeliveries.entry(last).or_default() += 1;
                }
                return sub.weigh(entries);
            }
        };
        for index in indexes {
            sub.ack(index, entries[index].messages, ack);
        }
        sub.weigh(entries);
    }

    /// A run was handed over.
    pub(crate) fn delivered(
        &mut self,
        at: usize,
        consumer: &mut Consumer,
        run: &[Delivered],
        redeliveries: u32,
        lied: bool,
    ) -> Check {
        let Topic {
            life, durability, ..
        } = &mut self.topics[consumer.topic];
        let life = life.as_mut().filter(|_| consumer.attached);
        hold("T7 nobody", life.is_some(), || {
            format!("a delivery to consumer {at}, which is not attached")
        })?;
        let Some(life) = life else { return Ok(()) };
        for delivered in run {
            let index = life.find(&delivered.body);
            hold("T7 phantom", index.is_some(), || {
                format!("{:?} was never published there", delivered.position)
            })?;
            let Some(index) = index else { return Ok(()) };
            life.learn(index, delivered.position)?;
            let entry = &life.entries[index];
            let same = entry.body == delivered.body
                && entry.messages == delivered.messages
                && entry.key_hash == delivered.key_hash
                && entry.sequence == delivered.sequence
                && entry.publish_ms == delivered.publish_ms;
            hold("T7 content", same, || {
                format!("published {entry:?}, delivered {delivered:?}")
            })?;
            // A sync that was in flight when the log failed may have proved what got no receipt.
            let ready = *durability == Durability::Memory || entry.fate != Fate::Owed;
            hold("D3 not durable", ready, || {
                format!("entry {index} is {:?}", entry.fate)
            })?;
            let permits = consumer.granted as i64 - consumer.delivered as i64;
            hold("T1 overrun", permits > 0, || {
                format!("consumer {at} has {permits} permits and gets entry {index}")
            })?;
            let messages = u64::from(entry.messages);
            let entries = life.entries.len();
            let Some(sub) = life.subs.iter_mut().find(|sub| sub.name == consumer.sub) else {
                return hold("T7 nobody", false, || "the subscription is gone".to_owned());
            };
            let state = sub.states.get(&index);
            let owed = !sub.is_acked(index) && !matches!(state, Some(State::Held(_)));
            hold("T7 twice", owed, || {
                let acked = sub.is_acked(index);
                format!(
                    "entry {index} of {}, acked: {acked}, state: {state:?}",
                    sub.name
                )
            })?;
            let next = sub.next(entries);
            hold("T7 order", next == Some(index) || lied, || {
                format!(
                    "entry {index} of {} is sent while {next:?} is next",
                    sub.name
                )
            })?;
            let capped = sub.at_cap.contains(&at) || sub.full && state.is_none();
            hold("D105 cap", !capped, || {
                format!("consumer {at} or {} is at its cap", sub.name)
            })?;
            let count = sub.redeliveries.get(&index).copied().unwrap_or(0);
            hold("D109 count", count == redeliveries, || {
                format!("entry {index} was given back {count} times, not {redeliveries}")
            })?;
            sub.states.insert(index, State::Held(at));
            sub.weigh(&life.entries);
            sub.delivered_messages += messages;
            consumer.delivered += messages;
            consumer.saw.push(index);
        }
        Ok(())
    }

    /// Compares what the core counts with what it must be.
    pub(crate) fn check_stats(
        &mut self,
        shard: usize,
        stats: &BrokerStats,
        lied: bool,
        consumers: &[Consumer],
    ) -> Check {
        let ours = |topic: &&mut Topic| topic.shard == shard && topic.life.is_some();
        let mut topics = stats.topics.iter();
        for topic in self.topics.iter_mut().filter(ours) {
            let told = topics.next().filter(|told| told.name == topic.name);
            hold("T2 topics", told.is_some(), || {
                format!("{} is missing in the statistics", topic.name)
            })?;
            if let (Some(told), Some(life)) = (told, &mut topic.life) {
                check_topic(life, told, lied, consumers)?;
            }
        }
        let extra = topics.next();
        hold("T2 topics", extra.is_none(), || {
            format!("{extra:?} should not be there")
        })
    }

    /// At rest: nobody who could be served waits for what could be sent (T3).
    pub(crate) fn check_rest(&self, shard: usize, poisoned: bool, consumers: &[Consumer]) -> Check {
        for topic in self.topics.iter().filter(|topic| topic.shard == shard) {
            let Some(life) = &topic.life else { continue };
            let mut ready = life.ready(topic.durability);
            if poisoned && topic.durability == Durability::Written {
                // What was written is not sent before a sync has proved its positions.
                ready = ready.min(life.opened_at);
            }
            for sub in &life.subs {
                let Some(next) = sub.next(ready) else {
                    continue;
                };
                if sub.full && !sub.states.contains_key(&next) {
                    continue;
                }
                let of_sub = |(at, c): &(usize, &Consumer)| {
                    let here = c.attached && c.is_of(&topic.name, &sub.name);
                    here && !sub.at_cap.contains(at)
                };
                let waiting = consumers
                    .iter()
                    .enumerate()
                    .filter(of_sub)
                    .find(|(_, c)| c.granted > c.delivered);
                hold("T3 stalled", waiting.is_none(), || {
                    let (topic, sub) = (&topic.name, &sub.name);
                    format!("entry {next} of {topic}/{sub} waits, and so does {waiting:?}")
                })?;
            }
        }
        Ok(())
    }

    /// At rest with a disk that works: every publish is answered, what all have acked is gone.
    pub(crate) fn check_settled(&self, shard: usize) -> Check {
        for topic in self.topics.iter().filter(|topic| topic.shard == shard) {
            let Some(life) = &topic.life else { continue };
            let owed = life
                .entries
                .iter()
                .position(|entry| entry.fate == Fate::Owed);
            hold("no receipt", owed.is_none(), || {
                format!("for {owed:?} of {}", topic.name)
            })?;
            let len = life.entries.len();
            let unacked = life.subs.iter().map(|sub| sub.lowest_unacked(len));
            let ready = life.ready(topic.durability);
            let kept = len - unacked.min().unwrap_or(ready).min(ready);
            hold("D127 kept", life.stored == kept, || {
                format!(
                    "{} keeps {} entries, {kept} are wanted",
                    topic.name, life.stored
                )
            })?;
        }
        Ok(())
    }
}

fn check_topic(life: &mut Life, told: &TopicStats, lied: bool, consumers: &[Consumer]) -> Check {
    let len = life.entries.len();
    for told in &told.subscriptions {
        if let Some(sub) = life.sub(&told.name) {
            sub.learn_start(len, told)?;
        }
    }
    let stored = usize::try_from(told.entries).unwrap_or(usize::MAX);
    let unacked = life.subs.iter().map(|sub| sub.lowest_unacked(len));
    let needed = len - unacked.min().unwrap_or(len);
    hold("T7 trimmed", (needed..=len).contains(&stored), || {
        format!(
            "{} has {stored} entries of {len}, {needed} are needed",
            told.name
        )
    })?;
    life.stored = stored;
    let producers = (told.producers, life.producers);
    hold("T2 producers", producers.0 == producers.1, || {
        format!("{}: {producers:?}", told.name)
    })?;
    hold(
        "T2 subscriptions",
        told.subscriptions.len() == life.subs.len(),
        || format!("{told:?}"),
    )?;
    for told_sub in &told.subscriptions {
        let sub = life.subs.iter().find(|sub| sub.name == told_sub.name);
        hold("T2 subscriptions", sub.is_some(), || {
            format!("{told_sub:?}")
        })?;
        if let Some(sub) = sub {
            let of_sub =
                |(_, c): &(usize, &Consumer)| c.attached && c.is_of(&told.name, &told_sub.name);
            let attached: Vec<_> = consumers.iter().enumerate().filter(of_sub).collect();
            check_sub(&life.entries, sub, told_sub, lied, &attached)?;
        }
    }
    Ok(())
}

fn check_sub(
    entries: &[Entry],
    sub: &Sub,
    told: &SubscriptionStats,
    lied: bool,
    consumers: &[(usize, &Consumer)],
) -> Check {
    let messages = |at: usize| u64::from(entries[at].messages);
    let unacked = (0..entries.len()).filter(|&at| !sub.is_acked(at));
    let (backlog_entries, backlog_messages) =
        unacked.fold((0, 0), |(count, sum), at| (count + 1, sum + messages(at)));
    let held = |consumer: Option<usize>| -> u64 {
        let of = |(&at, &state): (&usize, &State)| match (state, consumer) {
            (State::Held(_), None) => messages(at),
            (State::Held(by), Some(consumer)) if by == consumer => messages(at),
            _ => 0,
        };
        sub.states.iter().map(of).sum()
    };
    let replay = sub.states.values().filter(|&&state| state == State::Replay);
    let expected = SubscriptionStats {
        name: sub.name.clone(),
        backlog_entries,
        backlog_messages,
        unacked_messages: held(None),
        replay_entries: replay.count() as u64,
        delivered_messages: sub.delivered_messages,
        acked_messages: sub.acked_messages,
        durable: true,
        seeking: false,
        // Nothing jumps, is dropped, delayed or over in this world.
        ..SubscriptionStats::default()
    };
    let mut told = told.clone();
    let told_consumers = std::mem::take(&mut told.consumers);
    if lied {
        // What a failed sync lost is damaged, and passed over.
        told.replay_entries = told.replay_entries.max(expected.replay_entries);
    }
    hold("T2 counts", told == expected, || {
        format!("{told:?} should be {expected:?}")
    })?;
    hold(
        "T2 consumers",
        told_consumers.len() == consumers.len(),
        || format!("{told_consumers:?} should be {consumers:?}"),
    )?;
    for &(at, consumer) in consumers {
        let told = told_consumers
            .iter()
            .find(|told| told.name == consumer.name);
        let expected = ConsumerStats {
            name: consumer.name.clone(),
            available_permits: consumer.granted as i64 - consumer.delivered as i64,
            delivered_messages: consumer.delivered,
            unacked_messages: held(Some(at)),
            avg_messages_per_entry: told.map_or(0.0, |told| told.avg_messages_per_entry),
        };
        hold("T1 conservation", told == Some(&expected), || {
            format!("{told:?} should be {expected:?}")
        })?;
    }
    Ok(())
}
