//! [`KeyOrder`] against rule D87 as it is written: one list of entries, looked through for each answer.

use crate::keys::{Blocked, KeyOrder, KeyRange, Owners, Ring, Split, Sticky, look_ahead_limit};
use proptest::prelude::*;
use std::collections::BTreeSet;

const HASHES: [u16; 6] = [1, 9_000, 22_000, 35_000, 48_000, 65_535];
const CONSUMERS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unread,
    Replay,
    Delayed,
    Pending(u32),
    Acked,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u16,
    /// Messages not acked.
    left: u64,
    state: State,
    sent: bool,
}

/// A subscription that dispatches by a [`KeyOrder`], and the list of entries that checks it.
#[derive(Debug)]
struct Model {
    order: KeyOrder,
    out_of_order: bool,
    entries: Vec<Entry>,
    read: usize,
    consumers: BTreeSet<u32>,
    eligible: BTreeSet<u32>,
}

impl Model {
    fn new(owners: Owners, out_of_order: bool) -> Self {
        Self {
            order: KeyOrder::new(owners, out_of_order),
            out_of_order,
            entries: Vec::new(),
            read: 0,
            consumers: BTreeSet::new(),
            eligible: BTreeSet::new(),
        }
    }

    fn publish(&mut self, hash: u16, messages: u64) {
        self.entries.push(Entry {
            hash,
            left: messages,
            state: State::Unread,
            sent: false,
        });
    }

    fn join(&mut self, consumer: u32) {
        if self.consumers.insert(consumer) {
            let name = format!("c{}", consumer % 3);
            self.order.join(consumer, &name, &[]).unwrap();
        }
    }

    fn leave(&mut self, consumer: u32, owned_first: bool) {
        if !self.consumers.remove(&consumer) {
            return;
        }
        self.eligible.remove(&consumer);
        if owned_first {
            self.order.leave(consumer);
        }
        for at in 0..self.entries.len() {
            if self.entries[at].state == State::Pending(consumer) {
                self.give_back(at, State::Replay);
            }
        }
        if !owned_first {
            self.order.leave(consumer);
        }
    }

    fn set_eligible(&mut self, consumer: u32, eligible: bool) {
        if !self.consumers.contains(&consumer) {
            return;
        }
        self.order.set_eligible(consumer, eligible);
        if eligible {
            self.eligible.insert(consumer);
        } else {
            self.eligible.remove(&consumer);
        }
    }

    /// Nack, or the end of its holder.
    fn give_back(&mut self, at: usize, to: State) {
        let entry = self.entries[at];
        let drain = self.order.draining().any(|d| d.hash == entry.hash);
        let ended = self.order.release(entry.hash, entry.left).is_some();
        let held = self.order.held(entry.hash).is_some();
        assert_eq!(ended, drain && !held, "a drain ends with the last one held");
        self.entries[at].state = to;
        match to {
            State::Delayed => self.order.insert_delayed(at as u64, entry.hash),
            _ => self.order.insert_replay(at as u64, entry.hash),
        }
    }

    /// Acks up to `messages` of an entry, in whatever state it is.
    fn ack(&mut self, at: usize, messages: u64) {
        let entry = self.entries[at];
        let acked = messages.min(entry.left);
        match entry.state {
            State::Pending(_) => drop(self.order.release(entry.hash, acked)),
            State::Replay | State::Delayed if acked == entry.left => {
                self.order.remove(at as u64, entry.hash);
            }
            State::Replay | State::Delayed => {}
            State::Unread | State::Acked => return,
        }
        self.entries[at].left -= acked;
        if self.entries[at].left == 0 {
            self.entries[at].state = State::Acked;
        }
    }

    /// What a dispatcher does: waiting entries first, then unread ones.
    fn pass(&mut self, entries: usize) {
        for _ in 0..entries {
            if let Some((ordinal, hash, consumer)) = self.order.next_ready() {
                self.hand_over(usize::try_from(ordinal).unwrap(), consumer);
                self.order.remove(ordinal, hash);
            } else if self.read < self.entries.len() {
                let at = self.read;
                self.read += 1;
                let Entry { hash, .. } = self.entries[at];
                match self.order.may_go(at as u64, hash) {
                    Ok(consumer) => self.hand_over(at, consumer),
                    Err(_) => {
                        self.entries[at].state = State::Replay;
                        self.order.insert_replay(at as u64, hash);
                    }
                }
            }
        }
    }

    /// T6: one consumer holds a hash at a time, and first deliveries ascend.
    fn hand_over(&mut self, at: usize, consumer: u32) {
        let Entry {
            hash, left, sent, ..
        } = self.entries[at];
        assert!(self.eligible.contains(&consumer));
        assert_eq!(self.order.owners().owner(hash), Some(consumer));
        if !self.out_of_order {
            for (other, entry) in self.entries.iter().enumerate() {
                let elsewhere = matches!(entry.state, State::Pending(c) if c != consumer);
                assert!(
                    entry.hash != hash || !elsewhere,
                    "{hash} is at two consumers"
                );
                let overtaken = !sent && other > at && entry.hash == hash && entry.sent;
                assert!(!overtaken, "entry {at} of {hash} comes after {other}");
            }
        }
        self.entries[at].state = State::Pending(consumer);
        self.entries[at].sent = true;
        self.order.hold(hash, consumer, left);
    }

    /// D87 for one entry, by the list alone.
    fn allowed(&self, at: usize) -> Option<u32> {
        let hash = self.entries[at].hash;
        let owner = self.order.owners().owner(hash)?;
        let same = |entry: &&Entry| entry.hash == hash;
        let mut lower = self.entries[..at].iter().filter(same);
        let waits = |entry: &Entry| matches!(entry.state, State::Replay | State::Delayed);
        let elsewhere =
            |entry: &Entry| matches!(entry.state, State::Pending(holder) if holder != owner);
        let in_order = !lower.any(waits) && !self.entries.iter().filter(same).any(elsewhere);
        let goes = self.eligible.contains(&owner) && (in_order || self.out_of_order);
        goes.then_some(owner)
    }

    fn check(&mut self) {
        let in_state = |state| move |entry: &&Entry| entry.state == state;
        let replay = |at: &usize| self.entries[*at].state == State::Replay;
        let next = (0..self.entries.len()).filter(replay).find_map(|at| {
            let owner = self.allowed(at)?;
            Some((at as u64, self.entries[at].hash, owner))
        });
        assert_eq!(self.order.next_ready(), next);
        let counted = |state| self.entries.iter().filter(in_state(state)).count() as u64;
        assert_eq!(self.order.in_replay(), counted(State::Replay));
        assert_eq!(self.order.in_delay(), counted(State::Delayed));
        let most = HASHES.map(|hash| {
            let mine = |entry: &&Entry| entry.hash == hash && entry.state == State::Replay;
            self.entries.iter().filter(mine).count()
        });
        let hottest = self
            .order
            .hottest()
            .map_or(0, |(_, entries)| entries as usize);
        assert_eq!(hottest, most.into_iter().max().unwrap());
        if let Some(&Entry { hash, .. }) = self.entries.get(self.read) {
            let allowed = self.allowed(self.read);
            assert_eq!(self.order.may_go(self.read as u64, hash).ok(), allowed);
        }
        for hash in HASHES.into_iter().filter(|_| !self.out_of_order) {
            let held: u64 = self
                .entries
                .iter()
                .filter(|e| e.hash == hash && matches!(e.state, State::Pending(_)))
                .map(|e| e.left)
                .sum();
            assert_eq!(
                self.order.held(hash).map_or(0, |(_, messages)| messages),
                held
            );
        }
    }

    /// Everybody asks for more and acks what comes: all of it must come.
    fn drain(&mut self) {
        self.join(0);
        for consumer in 0..CONSUMERS {
            self.set_eligible(consumer, true);
        }
        for at in 0..self.entries.len() {
            if self.entries[at].state == State::Delayed {
                self.entries[at].state = State::Replay;
                self.order.insert_replay(at as u64, self.entries[at].hash);
            }
        }
        for _ in 0..=self.entries.len() {
            self.pass(2 * self.entries.len());
            for at in 0..self.entries.len() {
                self.ack(
                    at,
                    u64::from(matches!(self.entries[at].state, State::Pending(_))) * 9,
                );
            }
        }
        assert!(self.entries.iter().all(|entry| entry.state == State::Acked));
        assert!(self.order.next_ready().is_none() && self.order.draining().next().is_none());
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Publish(usize, u64),
    Join(u32),
    Leave(u32, bool),
    Eligible(u32, bool),
    Pass(usize),
    Ack(usize, u64),
    Nack(usize, bool),
    Due(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let consumer = || 0..CONSUMERS;
    prop_oneof![
        6 => (0..HASHES.len(), 1u64..4).prop_map(|(hash, messages)| Op::Publish(hash, messages)),
        2 => consumer().prop_map(Op::Join),
        1 => (consumer(), any::<bool>()).prop_map(|(c, first)| Op::Leave(c, first)),
        3 => (consumer(), prop::bool::weighted(0.7)).prop_map(|(c, is)| Op::Eligible(c, is)),
        6 => (1usize..6).prop_map(Op::Pass),
        5 => (0usize..60, 1u64..4).prop_map(|(at, messages)| Op::Ack(at, messages)),
        3 => (0usize..60, any::<bool>()).prop_map(|(at, delay)| Op::Nack(at, delay)),
        2 => (0usize..60).prop_map(Op::Due),
    ]
}

fn run(model: &mut Model, op: Op) {
    let entry_at = |at: usize| (at < model.entries.len()).then(|| model.entries[at]);
    match op {
        Op::Publish(hash, messages) => model.publish(HASHES[hash], messages),
        Op::Join(consumer) => model.join(consumer),
        Op::Leave(consumer, first) => model.leave(consumer, first),
        Op::Eligible(consumer, eligible) => model.set_eligible(consumer, eligible),
        Op::Pass(entries) => model.pass(entries),
        Op::Ack(at, messages) if at < model.entries.len() => model.ack(at, messages),
        Op::Nack(at, delay) => {
            if matches!(
                entry_at(at),
                Some(Entry {
                    state: State::Pending(_),
                    ..
                })
            ) {
                let to = if delay { State::Delayed } else { State::Replay };
                model.give_back(at, to);
            }
        }
        Op::Due(at) => {
            if let Some(Entry {
                state: State::Delayed,
                hash,
                ..
            }) = entry_at(at)
            {
                model.entries[at].state = State::Replay;
                model.order.insert_replay(at as u64, hash);
            }
        }
        Op::Ack(..) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn t6_it_answers_as_d87_is_written(
        split in any::<bool>(),
        out_of_order in prop::bool::weighted(0.25),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let owners = if split { Owners::Split(Split::default()) } else { Owners::Ring(Ring::new(3)) };
        let mut model = Model::new(owners, out_of_order);
        for op in ops {
            run(&mut model, op);
            model.check();
        }
        model.drain();
        let order = &model.order;
        prop_assert_eq!(order.free_states(), order.all_states(), "an idle hash keeps no state");
    }
}

fn all_of(first: u16, last: u16) -> [KeyRange; 1] {
    [KeyRange { first, last }]
}

/// T37 and case KEY-REPLAY-WRONG-CONSUMER.
#[test]
fn t37_a_key_parked_for_one_newcomer_goes_to_the_last_once_it_is_drained() {
    let mut order = KeyOrder::new(Owners::Sticky(Sticky::default()), false);
    let hash = 500;
    let eligible = |order: &mut KeyOrder, consumer| {
        order.join(consumer, "", &all_of(0, u16::MAX)).unwrap();
        order.set_eligible(consumer, true);
    };
    eligible(&mut order, 0);
    for ordinal in 0..2 {
        assert_eq!(order.may_go(ordinal, hash), Ok(0));
        order.hold(hash, 0, 1);
    }
    assert_eq!(order.release(hash, 1), None);
    // The slot passes on while its holder is still there: sticky ranges stand in for a hash ring.
    order.leave(0);
    eligible(&mut order, 1);
    for ordinal in 2..4 {
        let draining = Blocked::Draining {
            holder: 0,
            owner: 1,
        };
        assert_eq!(order.may_go(ordinal, hash), Err(draining));
        order.insert_replay(ordinal, hash);
    }
    order.leave(1);
    eligible(&mut order, 2);
    for ordinal in 4..10 {
        assert!(order.may_go(ordinal, hash).is_err());
        order.insert_replay(ordinal, hash);
    }
    assert_eq!(order.next_ready(), None);
    let draining: Vec<_> = order
        .draining()
        .map(|d| (d.holder, d.owner, d.left))
        .collect();
    assert_eq!(draining, [(0, Some(2), 1)]);
    let unblocked = order.release(hash, 1).expect("m0 was the last one held");
    assert_eq!((unblocked.holder, unblocked.owner), (0, Some(2)));
    for ordinal in 2..10 {
        assert_eq!(order.next_ready(), Some((ordinal, hash, 2)));
        order.hold(hash, 2, 1);
        order.remove(ordinal, hash);
    }
    assert_eq!((order.next_ready(), order.in_replay()), (None, 0));
}

#[test]
fn d88_a_hash_that_returns_to_its_holder_is_not_draining() {
    let mut order = KeyOrder::new(Owners::Split(Split::default()), false);
    order.join(0, "", &[]).unwrap();
    order.set_eligible(0, true);
    order.hold(7, 0, 3);
    order.join(1, "", &[]).unwrap();
    order.set_eligible(1, true);
    assert!(matches!(
        order.may_go(9, 7),
        Err(Blocked::Draining {
            holder: 0,
            owner: 1
        })
    ));
    order.insert_replay(9, 7);
    assert_eq!(order.next_ready(), None);
    order.leave(1);
    assert_eq!(order.next_ready(), Some((9, 7, 0)));
}

#[test]
fn d89_a_delayed_nack_keeps_its_key_back_and_no_other() {
    let mut order = KeyOrder::new(Owners::Split(Split::default()), false);
    order.join(0, "", &[]).unwrap();
    order.set_eligible(0, true);
    order.hold(7, 0, 1);
    order.release(7, 1);
    order.insert_delayed(1, 7);
    assert_eq!(order.may_go(2, 7), Err(Blocked::Behind { ordinal: 1 }));
    order.insert_replay(2, 7);
    assert_eq!((order.next_ready(), order.may_go(3, 8)), (None, Ok(0)));
    order.insert_replay(1, 7);
    assert_eq!(order.next_ready(), Some((1, 7, 0)));
    // An ack after the nack wins (rule D94).
    order.remove(1, 7);
    assert_eq!(order.next_ready(), Some((2, 7, 0)));
}

#[test]
fn d90_the_look_ahead_limit() {
    assert_eq!(look_ahead_limit(3, 4_000, 40_000, 0), 12_000);
    assert_eq!(look_ahead_limit(30, 4_000, 40_000, 0), 40_000);
    assert_eq!(look_ahead_limit(30, 0, 40_000, 0), 40_000);
    assert_eq!(look_ahead_limit(30, 4_000, 0, 0), 120_000);
    assert_eq!(look_ahead_limit(30, 0, 0, 50), 50);
    assert_eq!(look_ahead_limit(30, 0, 0, 0), 200_000);
}
