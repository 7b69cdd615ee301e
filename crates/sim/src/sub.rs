//! A subscription as it must be: what is acked, held and owed, and who may get what.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use pelton_broker::{Policy, SubscriptionKind, SubscriptionStats};

use crate::clients::Consumer;
use crate::cursor::{Cursor, Still, all_of, both, count};
use crate::election::Election;
use crate::keys::{KEYS, Keys, look_ahead};
use crate::oracle::{Check, Entry, FOUND, hold};
use crate::unstored::Passed;

/// How long a subscription that is not durable waits after a seek (`nonDurableSeekGraceMs`).
const SEEK_GRACE_NS: u64 = 10_000_000_000;

#[derive(Debug)]
pub(crate) struct Sub {
    pub(crate) name: String,
    /// Durable id, 0 while it is not known.
    pub(crate) key: u64,
    pub(crate) kind: SubscriptionKind,
    pub(crate) answered: bool,
    /// Kept when its last consumer leaves, and holds back what it has not acked.
    pub(crate) durable: bool,
    pub(crate) policy: Policy,
    /// Until the core has said where it starts: where it may, and the number of that ack.
    pub(crate) may_start: Option<(RangeInclusive<usize>, u64)>,
    pub(crate) cursor: Cursor,
    /// Where it was before the seeks since the engine was opened.
    pub(crate) former: Vec<Cursor>,
    pub(crate) seeks: Vec<Seek>,
    /// Attachments that a seek has ended and that have not been told.
    pub(crate) to_reset: Vec<usize>,
    /// Not durable, after a seek: until when it waits for a consumer.
    waits_until_ns: Option<u64>,
    /// Entries that were handed over and are not acked.
    pub(crate) states: BTreeMap<usize, State>,
    pub(crate) redeliveries: BTreeMap<usize, u32>,
    /// Those attached, in order of arrival.
    pub(crate) consumers: Vec<usize>,
    /// Who is active, or owns what, of Failover and KeyShared.
    pub(crate) election: Option<Election>,
    pub(crate) keys: Option<Keys>,
    /// Entries that were never handed over and were put aside for their keys, as last told.
    pub(crate) aside: u64,
    /// Consumers at their unacked cap, and whether the subscription is at its own (rule D104).
    pub(crate) at_cap: BTreeSet<usize>,
    pub(crate) full: bool,
    pub(crate) delivered_messages: u64,
    pub(crate) acked_messages: u64,
    /// Of a topic that stores nothing.
    pub(crate) passed: Option<Passed>,
    /// Not durable: messages that were removed before they were handed over.
    pub(crate) jumped_messages: u64,
    /// Messages that the engine has acked because the backlog was too large.
    pub(crate) evicted_messages: u64,
}

/// Where a subscription was asked to go on.
#[derive(Debug)]
pub(crate) struct Seek {
    pub(crate) start: Start,
    /// Its number among the acks.
    pub(crate) ack: u64,
    /// The log failed: nobody knows whether it is on the disk.
    pub(crate) failed: bool,
}

/// A place where a subscription begins: which entries it may be, and what of the first is left.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) may: RangeInclusive<usize>,
    pub(crate) part: Option<Still>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// By a consumer of this index.
    Held(usize),
    Replay,
    /// Owed again from this monotonic nanosecond on.
    Delayed(u64),
}

/// What a consumer brings along.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) kind: SubscriptionKind,
    pub(crate) durable: bool,
    pub(crate) name: String,
    pub(crate) priority: i32,
    pub(crate) keys: pelton_broker::KeyShared,
}

impl Sub {
    pub(crate) fn new(name: &str, durable: bool, policy: &Policy) -> Sub {
        Sub {
            name: name.to_owned(),
            key: 0,
            kind: SubscriptionKind::Shared,
            answered: false,
            durable,
            policy: policy.clone(),
            may_start: None,
            cursor: Cursor::default(),
            former: Vec::new(),
            seeks: Vec::new(),
            to_reset: Vec::new(),
            waits_until_ns: None,
            states: BTreeMap::new(),
            redeliveries: BTreeMap::new(),
            consumers: Vec::new(),
            election: None,
            keys: None,
            aside: 0,
            at_cap: BTreeSet::new(),
            full: false,
            delivered_messages: 0,
            acked_messages: 0,
            passed: None,
            jumped_messages: 0,
            evicted_messages: 0,
        }
    }

    // Where it is.

    /// It begins there, by an ack of this number.
    pub(crate) fn start(&mut self, start: Start, ack: u64) {
        let first = *start.may.start();
        (0..first).for_each(|at| self.cursor.set_acked(at, ack));
        if let Some(part) = start.part {
            self.cursor.set_part(first, ack, part);
        }
        self.may_start = Some((start.may, ack));
    }

    pub(crate) fn is_seeking(&self) -> bool {
        self.seeks.iter().any(|seek| !seek.failed)
    }

    /// A seek is asked for: every attachment ends, and what was handed over is owed again until it is
    /// carried out (rule D133).
    pub(crate) fn begin_seek(&mut self, seek: Seek, entries: &[Entry], now_ns: u64) {
        self.give_back(|_| true);
        self.weigh(entries);
        self.to_reset.clone_from(&self.consumers);
        if !self.durable {
            self.waits_until_ns = Some(now_ns + SEEK_GRACE_NS);
        }
        self.seeks.push(seek);
    }

    /// It is carried out.
    pub(crate) fn end_seek(&mut self, at: usize) {
        let seek = self.seeks.remove(at);
        let cursor = Cursor::promised(seek.ack);
        self.former
            .push(std::mem::replace(&mut self.cursor, cursor));
        self.states.clear();
        self.redeliveries.clear();
        self.start(seek.start, seek.ack);
    }

    /// The first entry that must be kept for it.
    pub(crate) fn needs(&self, entries: usize) -> usize {
        let seeks = self.seeks.iter().filter(|seek| !seek.failed);
        let sought = seeks.map(|seek| *seek.start.may.end()).min();
        let lowest = self.cursor.lowest_unacked(entries);
        let needs = lowest.min(sought.unwrap_or(entries));
        if self.durable { needs } else { entries }
    }

    /// Entries before `first` were removed: one that is not durable moves on (rule D127).
    pub(crate) fn jump(&mut self, first: usize, entries: &[Entry]) {
        for at in (0..first).filter(|_| !self.durable) {
            if self.cursor.is_acked(at) {
                continue;
            }
            if !matches!(self.states.remove(&at), Some(State::Held(_))) {
                self.jumped_messages += self.left(at, entries);
            }
            self.redeliveries.remove(&at);
            self.cursor.set_acked(at, FOUND);
        }
        self.weigh(entries);
    }

    /// Whether it ends when its last consumer has left (rule D137).
    pub(crate) fn ends(&self, came_back: bool) -> bool {
        !self.durable && self.consumers.is_empty() && (came_back || self.waits_until_ns.is_none())
    }

    /// Whether it has waited long enough for a consumer.
    pub(crate) fn is_over(&self, now_ns: u64) -> bool {
        self.consumers.is_empty() && self.waits_until_ns.is_some_and(|until| until <= now_ns)
    }

    // Attachments.

    /// A consumer attaches: false, and nothing changed but the kind, if others have its keys.
    pub(crate) fn attach(
        &mut self,
        consumer: usize,
        wish: &Wish,
        (topic, entries): (&str, &[Entry]),
        now_ns: u64,
    ) -> bool {
        if self.consumers.is_empty() {
            self.kind = wish.kind;
            let failover = wish.kind == SubscriptionKind::Failover;
            self.election = failover.then(|| Election::new(topic, &self.policy));
            let keyed = wish.kind == SubscriptionKind::KeyShared;
            self.keys = keyed.then(|| Keys::new(&wish.keys, &self.policy));
        }
        if let Some(keys) = &mut self.keys
            && !keys.join(consumer, &wish.name, &wish.keys.ranges)
        {
            return false;
        }
        if self.kind.is_single() {
            // Position order is all there is (rule D66): nothing stays behind for a delay.
            self.end_delays(u64::MAX);
        }
        self.consumers.push(consumer);
        self.waits_until_ns = None;
        if let Some(election) = &mut self.election {
            election.join(consumer, &wish.name, wish.priority, now_ns);
        }
        self.weigh(entries);
        true
    }

    /// The end of an attachment: what it held is owed again.
    pub(crate) fn detach(&mut self, consumer: usize, entries: &[Entry], now_ns: u64) {
        self.give_back(|holder| holder == consumer);
        self.consumers.retain(|&other| other != consumer);
        if let Some(keys) = &mut self.keys {
            keys.leave(consumer);
        }
        if let Some(election) = &mut self.election {
            election.leave(consumer, now_ns);
        }
        self.weigh(entries);
    }

    // What is owed.

    /// What some hold is owed again at once.
    pub(crate) fn give_back(&mut self, whose: impl Fn(usize) -> bool) {
        for state in self.states.values_mut() {
            if matches!(state, State::Held(holder) if whose(*holder)) {
                *state = State::Replay;
            }
        }
    }

    fn end_delays(&mut self, now_ns: u64) {
        for state in self.states.values_mut() {
            if matches!(state, State::Delayed(due_ns) if *due_ns <= now_ns) {
                *state = State::Replay;
            }
        }
    }

    /// A turn is about to be taken at this time.
    pub(crate) fn tick(&mut self, entries: &[Entry], now_ns: u64) {
        if let Some(passed) = &mut self.passed {
            passed.tick();
        }
        self.end_delays(now_ns);
        // Who takes over now may start now as well.
        while let Some(election) = &mut self.election
            && election.due_ns().is_some_and(|due_ns| due_ns <= now_ns)
        {
            if election.tick(now_ns) {
                let active = election.active();
                self.give_back(|holder| Some(holder) != active);
            }
            self.weigh(entries);
        }
        self.weigh(entries);
    }

    /// When something must happen though nobody does anything.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let delayed = self.states.values().filter_map(|state| match state {
            State::Delayed(due_ns) => Some(*due_ns),
            _ => None,
        });
        let election = self.election.iter().filter_map(Election::due_ns);
        let alone = self.consumers.is_empty();
        let end = self.waits_until_ns.filter(|_| alone);
        delayed.chain(election).chain(end).min()
    }

    pub(crate) fn ack(&mut self, index: usize, messages: u32, ack: u64) {
        if !self.cursor.is_acked(index) {
            self.acked_messages += u64::from(self.cursor.left(index, messages));
            self.drop_entry(index, ack);
        }
    }

    /// The subscription is done with an entry.
    pub(crate) fn drop_entry(&mut self, index: usize, ack: u64) {
        self.cursor.set_acked(index, ack);
        self.states.remove(&index);
        self.redeliveries.remove(&index);
    }

    /// Only some messages of an entry are acked (rules D95 and D96).
    pub(crate) fn ack_part(&mut self, index: usize, messages: u32, ack: u64, still: &[u64]) {
        if self.cursor.is_acked(index) {
            return;
        }
        let before = self.still(index).cloned();
        let before = before.unwrap_or_else(|| all_of(messages));
        let left = both(&before, still);
        if count(&left) == 0 {
            self.ack(index, messages, ack);
        } else if self.policy.acknowledgment_at_batch_index_level_enabled && left != before {
            self.acked_messages += u64::from(count(&before) - count(&left));
            self.cursor.set_part(index, ack, left);
        }
    }

    /// A consumer gives an entry back (rules D107, D66 and D112).
    pub(crate) fn nack(&mut self, (at, index): (usize, usize), delay_ns: Option<u64>, now_ns: u64) {
        if self.states.get(&index) != Some(&State::Held(at)) {
            return;
        }
        if self.kind.is_single() {
            return self.give_back(|_| true);
        }
        let given_back = self.redeliveries.entry(index).or_default();
        *given_back += 1;
        let state = match delay_ns.unwrap_or_else(|| backoff_ns(&self.policy, *given_back)) {
            0 => State::Replay,
            delay_ns => State::Delayed(now_ns + delay_ns),
        };
        self.states.insert(index, state);
    }

    /// What is left of an entry, if it is acked in part.
    pub(crate) fn still(&self, index: usize) -> Option<&Still> {
        self.cursor.part(index)
    }

    pub(crate) fn left(&self, index: usize, entries: &[Entry]) -> u64 {
        u64::from(self.cursor.left(index, entries[index].messages))
    }

    pub(crate) fn is_free(&self, index: usize) -> bool {
        let held = matches!(self.states.get(&index), Some(State::Held(_)));
        !held && !self.cursor.is_acked(index)
    }

    fn is_delayed(&self, index: usize) -> bool {
        matches!(self.states.get(&index), Some(State::Delayed(_)))
    }

    /// Which entry is next where keys do not matter: what was handed over lies before what was not.
    pub(crate) fn next(&self, entries: usize) -> Option<usize> {
        (0..entries).find(|&at| self.is_free(at) && !self.is_delayed(at))
    }

    /// Which entry of a key is next, whether it may go or not.
    fn next_of(&self, key: u16, entries: &[Entry]) -> Option<usize> {
        let of_key = |at: &usize| entries[*at].key_hash == u32::from(key);
        (0..entries.len()).find(|at| of_key(at) && self.is_free(*at))
    }

    /// Who holds entries of a key.
    fn holder_of(&self, key: u16, entries: &[Entry]) -> Option<usize> {
        self.states.iter().find_map(|(&at, &state)| match state {
            State::Held(holder) if entries[at].key_hash == u32::from(key) => Some(holder),
            _ => None,
        })
    }

    pub(crate) fn held_by(&self, consumer: usize) -> Vec<usize> {
        let held = |(&at, &state): (&usize, &State)| (state == State::Held(consumer)).then_some(at);
        self.states.iter().filter_map(held).collect()
    }

    /// Messages that a consumer holds, or all of them do.
    pub(crate) fn unacked(&self, consumer: Option<usize>, entries: &[Entry]) -> u64 {
        let of = |(&at, &state): (&usize, &State)| match state {
            State::Held(by) if consumer.is_none_or(|wanted| wanted == by) => self.left(at, entries),
            _ => 0,
        };
        self.states.iter().map(of).sum()
    }

    // Who may get what.

    /// Who is at a cap, after any change of what is unacked (rules D103 and D104), and whether the
    /// former active has nothing left.
    pub(crate) fn weigh(&mut self, entries: &[Entry]) {
        if let Some(election) = &mut self.election {
            let states = &self.states;
            election.settle(|old| states.values().any(|&state| state == State::Held(old)));
        }
        if self.kind.is_single() {
            (self.full, self.at_cap) = (false, BTreeSet::new());
            return;
        }
        let policy = &self.policy;
        let blocks = |was: bool, count: u64, cap: u64| {
            let resume_at = (cap as f64 * policy.max_unacked_messages_unblock_ratio) as u64;
            let resume_at = resume_at.min(cap.saturating_sub(1));
            cap > 0 && (count >= cap && !was || was && count > resume_at)
        };
        let all = policy.max_unacked_messages_per_subscription;
        let each = policy.max_unacked_messages_per_consumer;
        self.full = blocks(self.full, self.unacked(None, entries), all);
        let mut unacked = BTreeMap::<usize, u64>::new();
        for (&at, &state) in &self.states {
            if let State::Held(consumer) = state {
                *unacked.entry(consumer).or_default() += self.left(at, entries);
            }
        }
        let of = |consumer: &usize| unacked.get(consumer).copied().unwrap_or(0);
        let blocked = |consumer: &usize| blocks(self.at_cap.contains(consumer), of(consumer), each);
        self.at_cap = self.consumers.iter().copied().filter(blocked).collect();
    }

    /// Whether the subscription gets nothing at all, not even what it is owed again.
    fn has_no_headroom(&self, entries: &[Entry]) -> bool {
        let all = self.policy.max_unacked_messages_per_subscription;
        self.full && self.unacked(None, entries) >= all
    }

    fn is_eligible(&self, at: usize, consumers: &[Consumer]) -> bool {
        let of = &consumers[at];
        of.granted > of.delivered && !self.at_cap.contains(&at)
    }

    /// Whether a consumer may be handed this entry now.
    pub(crate) fn check_may_get(
        &self,
        (at, index): (usize, usize),
        entries: &[Entry],
        consumers: &[Consumer],
    ) -> Check {
        let name = &self.name;
        hold("D133 seeking", !self.is_seeking(), || {
            format!(
                "consumer {at} of {name} gets {index} during {:?}",
                self.seeks
            )
        })?;
        let state = self.states.get(&index);
        let never_sent = state.is_none() && self.aside == 0;
        let capped = self.at_cap.contains(&at) || self.full && never_sent;
        hold(
            "D105 cap",
            !capped && !self.has_no_headroom(entries),
            || format!("consumer {at} or {name} is at its cap"),
        )?;
        hold("D112 delay", !self.is_delayed(index), || {
            format!("entry {index} of {name} comes early: {state:?}")
        })?;
        self.check_chosen((at, index), entries, consumers)?;
        if self.kind == SubscriptionKind::KeyShared {
            return self.check_key((at, index), entries);
        }
        let next = self.next(entries.len());
        hold("T7 order", next == Some(index), || {
            format!("entry {index} of {name} is sent while {next:?} is next")
        })
    }

    /// Whether it is this consumer's turn, whatever else is owed.
    pub(crate) fn check_chosen(
        &self,
        (at, index): (usize, usize),
        entries: &[Entry],
        consumers: &[Consumer],
    ) -> Check {
        let name = &self.name;
        match self.kind {
            SubscriptionKind::KeyShared => {
                let key = entries[index].key_hash as u16;
                let owner = self.keys.as_ref().and_then(|keys| keys.owner(key));
                hold("D86 owner", key == 0 || owner == Some(at), || {
                    format!("consumer {at} of {name} gets {index}, whose key is {owner:?}'s")
                })
            }
            SubscriptionKind::Failover => {
                let start = self.election.as_ref().and_then(Election::may_start);
                hold("D73 not active", start == Some(at), || {
                    format!("consumer {at} of {name} gets {index}: {:?}", self.election)
                })
            }
            SubscriptionKind::Shared => {
                let level = consumers[at].priority;
                let mut lower = self.consumers.iter().copied();
                let lower = lower
                    .find(|&c| consumers[c].priority < level && self.is_eligible(c, consumers));
                hold("D77 level", lower.is_none(), || {
                    format!("consumer {at} of {name} gets {index} before {lower:?}")
                })
            }
            SubscriptionKind::Exclusive => Ok(()),
        }
    }

    fn check_key(&self, (at, index): (usize, usize), entries: &[Entry]) -> Check {
        let key = entries[index].key_hash as u16;
        let in_order = self.keys.as_ref().is_some_and(|keys| !keys.out_of_order);
        if key == 0 || !in_order {
            return Ok(());
        }
        let name = &self.name;
        let holder = self.holder_of(key, entries);
        hold(
            "T6 two holders",
            holder.is_none_or(|holder| holder == at),
            || format!("consumer {at} of {name} gets {index}, {holder:?} holds its key"),
        )?;
        let next = self.next_of(key, entries);
        hold("T6 key order", next == Some(index), || {
            format!("entry {index} of {name} is sent while {next:?} is next of its key")
        })
    }

    /// An entry that should have been sent, and to whom, if there is one (T3).
    pub(crate) fn stalled(
        &self,
        (entries, ready): (&[Entry], usize),
        consumers: &[Consumer],
    ) -> Option<(usize, usize)> {
        if self.has_no_headroom(entries) || self.is_seeking() {
            return None;
        }
        let eligible = |at: &usize| self.is_eligible(*at, consumers);
        let mut eligible = self.consumers.iter().copied().filter(eligible);
        match self.kind {
            SubscriptionKind::KeyShared => {
                self.stalled_key((entries, ready), &eligible.collect::<Vec<_>>())
            }
            SubscriptionKind::Failover => {
                let start = self.election.as_ref()?.may_start()?;
                let next = self.next(ready)?;
                self.is_eligible(start, consumers).then_some((next, start))
            }
            SubscriptionKind::Exclusive | SubscriptionKind::Shared => {
                let next = self.next(ready)?;
                let sendable = !self.full || self.states.contains_key(&next);
                eligible.next().filter(|_| sendable).map(|at| (next, at))
            }
        }
    }

    fn stalled_key(
        &self,
        (entries, ready): (&[Entry], usize),
        eligible: &[usize],
    ) -> Option<(usize, usize)> {
        let keys = self.keys.as_ref()?;
        let replay = |at: usize| self.states.get(&at) == Some(&State::Replay);
        // Only what was handed over before is known to be within reach.
        let reach = look_ahead(self.consumers.len(), &self.policy);
        let far = self.full || self.aside + self.replay_entries() >= reach;
        let sendable = |at: usize| !self.is_delayed(at) && (!far || replay(at));
        let keyed = KEYS.iter().find_map(|&key| {
            let owner = keys.owner(key).filter(|owner| eligible.contains(owner))?;
            let in_order = |at: &usize| {
                let holder = self.holder_of(key, entries);
                keys.out_of_order
                    || self.next_of(key, entries) == Some(*at)
                        && holder.is_none_or(|holder| holder == owner)
            };
            let of_key = |at: &usize| entries[*at].key_hash == u32::from(key);
            let mut free = (0..ready).filter(|&at| self.is_free(at) && sendable(at));
            let next = free.by_ref().filter(of_key).find(in_order)?;
            Some((next, owner))
        });
        // Nobody outside knows whose an entry without a key is.
        let anybody = !keys.is_sticky() && eligible.len() == self.consumers.len();
        let any = eligible.first().filter(|_| anybody);
        keyed.or_else(|| {
            let unkeyed = |at: &usize| entries[*at].key_hash == 0 && self.is_free(*at);
            let mut free = (0..ready).filter(unkeyed);
            free.find(|&at| sendable(at)).zip(any.copied())
        })
    }

    pub(crate) fn delayed_entries(&self) -> u64 {
        let delayed = |state: &&State| matches!(state, State::Delayed(_));
        self.states.values().filter(delayed).count() as u64
    }

    pub(crate) fn replay_entries(&self) -> u64 {
        let replay = self
            .states
            .values()
            .filter(|&&state| state == State::Replay);
        replay.count() as u64
    }

    /// Takes note of what is put aside, which keys alone do, and only so far (rules D90 and D91).
    pub(crate) fn note_aside(&mut self, told: &SubscriptionStats) -> Check {
        let aside = told.replay_entries.saturating_sub(self.replay_entries());
        let keyed = self.kind == SubscriptionKind::KeyShared;
        let reach = look_ahead(self.consumers.len(), &self.policy);
        let fine = aside <= self.aside || keyed && aside <= reach;
        hold("D90 look-ahead", fine, || {
            let (before, name) = (self.aside, &self.name);
            format!("{aside} entries of {name} are put aside, {before} before, of {reach}")
        })?;
        self.aside = aside;
        Ok(())
    }

    /// Takes the core's word for where it starts, within what is right.
    pub(crate) fn learn_start(&mut self, entries: usize, told: &SubscriptionStats) -> Check {
        let Some((may, ack)) = self.may_start.take() else {
            return Ok(());
        };
        let start = entries.saturating_sub(told.backlog_entries as usize);
        hold("D136 start", may.contains(&start), || {
            format!("{told:?} starts at {start}, may at {may:?}")
        })?;
        (*may.start()..start).for_each(|at| self.cursor.set_acked(at, ack));
        Ok(())
    }
}

/// How long an entry waits that was given back so often.
fn backoff_ns(policy: &Policy, given_back: u32) -> u64 {
    let of = &policy.redelivery_backoff;
    let longer = |ms: u64, _| (ms * of.multiplier as u64).min(of.max_ms);
    (1..given_back).fold(of.initial_ms.min(of.max_ms), longer) * 1_000_000
}
