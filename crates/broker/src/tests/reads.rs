//! Reads on their way while consumers come, go and ask: the cases WAKE-LOST-PERMITS-DURING-SEND,
//! KEY-JOIN-READ-IN-FLIGHT and KEY-JOIN-ORDER-MAP.

use std::collections::{BTreeMap, BTreeSet};

use pelton_storage::{Durability, Position};

use super::world::World;
use crate::{ConsumerId, SubscriptionKind};

/// A backlog of singles that is on disk alone, each of a key from `hash`, and nobody connected.
fn cold(kind: SubscriptionKind, entries: u32, hash: impl Fn(u32) -> u32) -> World {
    let mut world = World::with(Durability::Synced);
    world.wish.kind = kind;
    let first = world.attach(0);
    for n in 0..entries {
        world.publish_keyed(hash(n), 1);
    }
    world.settle();
    world.close(first);
    let hashes = std::mem::take(&mut world.hashes);
    let mut world = World::reopen(world.disk, Durability::Synced);
    world.wish.kind = kind;
    // A read that is held up holds up a backlog beside permits.
    world.wish.capped = true;
    world.hashes = hashes;
    world
}

fn numbers(world: &World) -> Vec<u64> {
    world.got.iter().map(|got| got.1.entry).collect()
}

#[test]
fn wake_lost_permits_during_send() {
    let mut world = cold(SubscriptionKind::Shared, 200, |_| 0);
    let c = world.attach(0);
    world.disk.holds_reads = true;
    assert_eq!(world.flow(c, 50), 0, "the read is on its way");
    assert_eq!(world.flow(c, 100), 0);
    world.publish(10, 1);
    world.settle();
    world.disk.let_go(true);
    world.settle();
    assert_eq!(numbers(&world), (0..150).collect::<Vec<_>>());
    assert_eq!(world.permits("c0"), 0);
}

#[test]
fn wake_lost_permits_during_send_the_reader_goes_and_another_one_comes() {
    let mut world = cold(SubscriptionKind::Shared, 200, |_| 0);
    let gone = world.attach(0);
    world.disk.holds_reads = true;
    assert_eq!(world.flow(gone, 50), 0);
    world.close(gone);
    let c = world.attach(1);
    world.flow(c, 100);
    world.disk.let_go(true);
    world.settle();
    assert!(world.got.iter().all(|got| got.0 == c));
    assert_eq!(numbers(&world), (0..100).collect::<Vec<_>>());
    world.flow(c, 100);
    assert_eq!(numbers(&world), (0..200).collect::<Vec<_>>());
}

/// Splitmix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}

/// Who holds what, seen from outside.
#[derive(Default)]
struct Seen {
    held: BTreeMap<Position, ConsumerId>,
    acked: BTreeSet<u64>,
    /// Highest entry delivered of each key, redeliveries aside.
    highest: BTreeMap<u32, u64>,
    /// Lowest entry of each key that went back with its holder.
    back: BTreeMap<u32, u64>,
}

impl Seen {
    fn look(&mut self, world: &mut World, seed: u64) {
        for (consumer, position, ..) in std::mem::take(&mut world.got) {
            let entry = position.entry;
            let key = world.hashes[entry as usize];
            assert!(!self.acked.contains(&entry), "seed {seed}: {entry} again");
            assert_eq!(self.held.insert(position, consumer), None, "seed {seed}");
            for (other, holder) in &self.held {
                let same = world.hashes[other.entry as usize] == key;
                assert!(
                    !same || *holder == consumer,
                    "seed {seed}: key {key} with two, by {entry} and {other:?}"
                );
            }
            let from = self.back.remove(&key);
            let before = self.highest.insert(key, entry);
            let rises = from.map_or(before.is_none_or(|b| entry > b), |from| entry == from);
            assert!(rises, "seed {seed}: key {key}: {entry} after {before:?}");
        }
    }

    fn leave(&mut self, world: &World, who: ConsumerId) {
        let mut lowest: BTreeMap<u32, u64> = BTreeMap::new();
        self.held.retain(|position, holder| {
            if *holder == who {
                let key = world.hashes[position.entry as usize];
                let low = lowest.entry(key).or_insert(position.entry);
                *low = position.entry.min(*low);
            }
            *holder != who
        });
        for (key, low) in lowest {
            let old = self.back.entry(key).or_insert(low);
            *old = low.min(*old);
        }
    }

    fn ack_one(&mut self, world: &mut World, at: usize) {
        if let Some((&position, &holder)) = self.held.iter().nth(at) {
            self.held.remove(&position);
            self.acked.insert(position.entry);
            world.ack(holder, position);
        }
    }
}

#[test]
fn key_join_read_in_flight() {
    for seed in 0..200 {
        let mut rng = Rng(seed);
        let mut world = cold(SubscriptionKind::KeyShared, 1_000, |n| 1 + n % 10 * 6_500);
        let mut seen = Seen::default();
        let c1 = world.attach(0);
        // Some are out and unacked when the next read is on its way and somebody joins.
        world.flow(c1, 5 + rng.below(60) as u32);
        seen.look(&mut world, seed);
        world.disk.holds_reads = true;
        world.flow(c1, 2_000);
        let mut here = vec![c1, world.attach(1)];
        world.flow(here[1], 2_000);
        world.disk.let_go(true);
        world.settle();
        seen.look(&mut world, seed);
        let (mut slot, mut acks) = (2, 0);
        while seen.acked.len() < 1_000 {
            if rng.below(40) == 0 {
                world.disk.holds_reads = true;
            }
            if acks == 300 + rng.below(100) && here.len() > 1 {
                let who = here.remove(rng.below(here.len()));
                world.close(who);
                seen.leave(&world, who);
            } else if rng.below(100) == 0 && here.len() < 5 {
                here.push(world.attach(slot));
                world.flow(here[here.len() - 1], 2_000);
                slot += 1;
            } else if !seen.held.is_empty() {
                let at = rng.below(seen.held.len());
                seen.ack_one(&mut world, at);
                acks += 1;
            } else {
                // Nobody holds anything: what is left can only wait for a read.
                world.disk.let_go(true);
                world.settle();
                seen.look(&mut world, seed);
                assert!(!seen.held.is_empty(), "seed {seed}: a stall");
            }
            world.settle();
            seen.look(&mut world, seed);
        }
        assert_eq!(world.stats().backlog_messages, 0, "seed {seed}");
    }
}

#[test]
fn key_join_order_map() {
    let mut world = cold(SubscriptionKind::KeyShared, 600, |n| 1 + n % 10 * 6_500);
    let mut seen = Seen::default();
    let leaving: Vec<ConsumerId> = (0..3).map(|slot| world.attach(slot)).collect();
    for &who in &leaving {
        world.flow(who, 100);
    }
    seen.look(&mut world, 0);
    while let Some(at) = seen.held.keys().position(|at| at.entry < 100) {
        seen.ack_one(&mut world, at);
    }
    world.settle();
    world.disk.holds_reads = true;
    for &who in &leaving {
        world.flow(who, 50);
    }
    for &who in &leaving {
        seen.look(&mut world, 0);
        world.close(who);
        seen.leave(&world, who);
    }
    let c4 = world.attach(3);
    world.disk.let_go(true);
    world.settle();
    let c5 = world.attach(4);
    for who in [c4, c5] {
        world.flow(who, 1_000);
    }
    loop {
        seen.look(&mut world, 0);
        if seen.held.is_empty() {
            break;
        }
        seen.ack_one(&mut world, 0);
        world.settle();
    }
    assert_eq!(seen.acked.len(), 600);
    assert_eq!(world.stats().backlog_messages, 0);
}
