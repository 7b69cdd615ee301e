//! Failover, KeyShared, caps, priorities, batch acks and redelivery, one rule at a time.

use std::collections::BTreeMap;

use pelton_storage::Position;
use proptest::prelude::*;

use super::world::World;
use crate::{Backoff, ConsumerId, Event, KeyShared, Policy, RequestError, SubscriptionKind};

const SECOND_NS: u64 = 1_000_000_000;

fn world(kind: SubscriptionKind) -> World {
    let mut world = World::new();
    world.wish.kind = kind;
    world
}

fn named(world: &mut World, slot: u32, name: &str, priority: i32) -> ConsumerId {
    world.wish.name = Some(name.to_owned());
    world.wish.priority_level = priority;
    world.attach(slot)
}

/// Position of the n-th entry, 0 first: a memory topic has one ledger.
fn entry(world: &World, n: u64) -> Position {
    Position {
        ledger: world.got[0].1.ledger,
        entry: n,
    }
}

fn entries(world: &mut World) -> Vec<u64> {
    world
        .take_entries()
        .into_iter()
        .map(|(_, entry)| entry)
        .collect()
}

// Exclusive: rewind.

#[test]
fn a_nack_rewinds_an_exclusive_subscription_to_its_first_unacked_entry() {
    let mut world = world(SubscriptionKind::Exclusive);
    let c = world.attach(0);
    world.publish(6, 1);
    world.flow(c, 5);
    let (first, third, fifth) = (entry(&world, 0), entry(&world, 2), entry(&world, 4));
    world.ack(c, first);
    world.ack(c, third);
    world.got.clear();
    world.nack(c, fifth);
    world.flow(c, 100);
    let counts: Vec<u32> = world.got.iter().map(|got| got.3).collect();
    assert_eq!(counts, [0; 4]);
    assert_eq!(entries(&mut world), [1, 3, 4, 5]);
}

#[test]
fn redeliver_all_of_1000_rounds_keeps_the_pending_set() {
    for kind in [SubscriptionKind::Exclusive, SubscriptionKind::Shared] {
        let mut world = world(kind);
        let c = world.attach(0);
        world.publish(10, 1);
        world.flow(c, 10);
        for round in 1..=1_000 {
            world.send(Event::NackAll { consumer: c });
            assert_eq!(world.flow(c, 10), 10, "round {round}");
            assert_eq!(world.stats().unacked_messages, 10);
        }
        world.ack_all();
        assert_eq!(world.stats().backlog_messages, 0);
    }
}

// Failover.

#[test]
fn failover_flap() {
    let mut world = world(SubscriptionKind::Failover);
    let z = named(&mut world, 0, "z", 0);
    named(&mut world, 1, "y", 0);
    for round in 0..100 {
        let x = named(&mut world, 2, "x", 0);
        world.pass_ns(SECOND_NS / 10);
        world.close(x);
        world.pass_ns(SECOND_NS / 10);
        assert_eq!(
            world.told.iter().filter(|told| told.1).count(),
            1,
            "round {round}"
        );
    }
    assert_eq!(world.told[0], (z, true));
    // All leave and return: one is active within one turn.
    world.close(z);
    let told = world.told.last().copied().unwrap();
    assert!(told.1 && told.0.slot == 1, "{told:?}");
    world.close(told.0);
    world.told.clear();
    let back = named(&mut world, 5, "z", 0);
    world.settle();
    assert_eq!(world.told, [(back, true)]);
}

#[test]
fn failover_stale_read() {
    let mut world = world(SubscriptionKind::Failover);
    let a = named(&mut world, 0, "a", 1);
    world.publish(400, 1);
    world.flow(a, 300);
    for n in 0..100 {
        let position = entry(&world, n);
        world.ack(a, position);
    }
    world.settle();
    let two_hundredth = entry(&world, 199);
    let ledger = world.got[0].1.ledger;
    world.got.clear();
    let b = named(&mut world, 1, "b", 0);
    assert_eq!(
        world.flow(b, 1_000),
        0,
        "it waits for what the old one holds"
    );
    world.flow(a, 100);
    assert_eq!(world.told, [(a, true), (a, false), (b, true)]);
    for n in 100..200 {
        world.ack(a, Position { ledger, entry: n });
    }
    world.ack(a, two_hundredth);
    assert_eq!(world.settle(), 0);
    assert_eq!(world.pass_ns(SECOND_NS), 200);
    let got = world.take_entries();
    assert!(got.iter().all(|&(slot, _)| slot == b.slot));
    assert!(got.into_iter().map(|(_, entry)| entry).eq(200..400));
}

#[test]
fn a_new_active_starts_as_soon_as_the_old_one_has_finished_or_gone() {
    for closes in [false, true] {
        let mut world = world(SubscriptionKind::Failover);
        let a = named(&mut world, 0, "a", 1);
        world.publish(20, 1);
        world.flow(a, 10);
        let ledger = world.got[0].1.ledger;
        let b = named(&mut world, 1, "b", 0);
        world.flow(b, 100);
        world.got.clear();
        if closes {
            world.close(a);
            assert_eq!(entries(&mut world), (0..20).collect::<Vec<_>>());
        } else {
            for n in 0..10 {
                world.ack(a, Position { ledger, entry: n });
            }
            world.settle();
            assert_eq!(entries(&mut world), (10..20).collect::<Vec<_>>());
        }
    }
}

#[test]
fn failover_all_timed_out() {
    let mut world = world(SubscriptionKind::Failover);
    for round in 0..50u32 {
        let (a, b) = (named(&mut world, 0, "a", 0), named(&mut world, 1, "b", 0));
        world.publish(1, 1);
        world.flow(a, 1);
        world.flow(b, 1);
        assert_eq!(world.got.len() as u32, round + 1, "somebody is active");
        world.ack_all();
        world.close(a);
        world.close(b);
        world.got.truncate(round as usize + 1);
    }
}

// Shared: levels and caps.

#[test]
fn a_lower_level_gets_nothing_while_a_higher_one_can() {
    let mut world = world(SubscriptionKind::Shared);
    let low = named(&mut world, 0, "low", 1);
    let high = named(&mut world, 1, "high", 0);
    world.flow(low, 1_000);
    world.flow(high, 10);
    world.publish(30, 1);
    world.settle();
    let got = world.take_entries();
    assert!(got[..10].iter().all(|&(slot, _)| slot == 1));
    assert!(got[10..].iter().all(|&(slot, _)| slot == 0));
}

#[test]
fn ack_blocked_never_cleared() {
    let mut world = world(SubscriptionKind::Shared);
    world.wish.capped = true;
    world.policy(Policy {
        max_unacked_messages_per_consumer: 50,
        ..Policy::default()
    });
    let c = world.attach(0);
    world.publish(10, 36);
    assert_eq!(world.flow(c, 1_000), 2);
    let (first, second) = (entry(&world, 0), entry(&world, 1));
    world.ack(c, first);
    assert_eq!((world.settle(), world.stats().unacked_messages), (0, 36));
    world.ack(c, second);
    assert_eq!(world.settle(), 2);
    // Whatever lowers the count opens it: a nack, a raised cap, no cap.
    let third = entry(&world, 2);
    world.nack(c, third);
    assert_eq!(world.settle(), 0);
    world.send(Event::NackAll { consumer: c });
    assert_eq!(world.settle(), 2);
    assert_eq!(world.policy(Policy::default()), 6);
}

#[test]
fn a_cap_of_one_lets_singles_through_one_by_one() {
    let mut world = world(SubscriptionKind::Shared);
    world.wish.capped = true;
    world.policy(Policy {
        max_unacked_messages_per_consumer: 1,
        ..Policy::default()
    });
    let c = world.attach(0);
    world.publish(40, 1);
    world.flow(c, 1_000);
    for n in 0..40 {
        assert_eq!(world.got.len(), n + 1);
        let position = world.got[n].1;
        world.ack(c, position);
        world.settle();
    }
}

#[test]
fn a_subscription_at_its_cap_gets_the_next_in_the_turn_of_the_ack() {
    let mut world = world(SubscriptionKind::Shared);
    world.wish.capped = true;
    world.policy(Policy {
        max_unacked_messages_per_subscription: 200,
        ..Policy::default()
    });
    let (c, d) = (world.attach(0), world.attach(1));
    world.publish(500, 1);
    world.flow(c, 300);
    world.flow(d, 300);
    assert_eq!(world.got.len(), 200);
    // Replay goes on while there is headroom.
    let held = world.got[7];
    world.nack(held.0, held.1);
    assert_eq!(world.settle(), 1);
    world.ack_all();
    assert_eq!(world.stats().unacked_messages, 200);
}

// Batches acked in part.

#[test]
fn ack_partial_redeliver_permits() {
    let mut world = world(SubscriptionKind::Shared);
    let c = world.attach(0);
    world.publish(1, 100);
    world.flow(c, 1_000);
    let e = entry(&world, 0);
    let part = |still: &[u64], world: &mut World| {
        world.send(Event::AckBatch {
            consumer: c,
            position: e,
            still,
        });
        world.settle();
    };
    part(&[!0b11, u64::MAX], &mut world);
    assert_eq!(
        (world.stats().unacked_messages, world.permits("c0")),
        (98, 900)
    );
    world.nack(c, e);
    world.settle();
    let expected = vec![0xFFFF_FFFF_FFFF_FFFC, 0x0000_000F_FFFF_FFFF];
    assert_eq!(world.parts, [(e, expected)]);
    assert_eq!(
        (world.stats().unacked_messages, world.permits("c0")),
        (98, 802)
    );
    world.ack(c, e);
    world.settle();
    let stats = world.stats();
    assert_eq!((stats.unacked_messages, stats.acked_messages), (0, 100));
    world.flow(c, 198);
    assert_eq!(world.permits("c0"), 1_000);
}

#[test]
fn ack_set_words() {
    let mut world = world(SubscriptionKind::Shared);
    let c = world.attach(0);
    world.publish(1, 130);
    world.flow(c, 1_000);
    let e = entry(&world, 0);
    for (still, left) in [
        (&[u64::MAX][..], 64),
        (&[!1, u64::MAX, 3][..], 63),
        (&[u64::MAX; 9][..], 63),
        (&[!1; 3][..], 63),
    ] {
        world.send(Event::AckBatch {
            consumer: c,
            position: e,
            still,
        });
        world.settle();
        let stats = world.stats();
        assert_eq!(
            (stats.unacked_messages, stats.backlog_messages),
            (left, left)
        );
    }
    world.send(Event::AckBatch {
        consumer: c,
        position: e,
        still: &[],
    });
    world.settle();
    assert_eq!(world.stats().backlog_messages, 0);
}

#[test]
fn a_cumulative_ack_inside_a_batch_leaves_the_rest_of_it() {
    let mut world = world(SubscriptionKind::Exclusive);
    let c = world.attach(0);
    world.publish(3, 10);
    world.flow(c, 1_000);
    let (e1, e2) = (entry(&world, 0), entry(&world, 1));
    let cumulative = |position, still: &[u64], world: &mut World| {
        world.send(Event::AckCumulative {
            consumer: c,
            position,
            still,
        });
        world.settle();
    };
    cumulative(e2, &[0x3F0], &mut world);
    assert_eq!(world.stats().backlog_messages, 16);
    cumulative(e1, &[], &mut world);
    cumulative(e2, &[0x3FF], &mut world);
    assert_eq!(world.stats().backlog_messages, 16);
    world.close(c);
    world.got.clear();
    let d = world.attach(1);
    world.flow(d, 1_000);
    assert_eq!(world.parts, [(e2, vec![0x3F0])]);
    assert_eq!(entries(&mut world), [1, 2]);
    assert_eq!(world.permits("c1"), 1_000 - 16);
}

#[test]
fn without_batch_index_acks_the_batch_comes_whole() {
    let mut world = world(SubscriptionKind::Shared);
    world.policy(Policy {
        acknowledgment_at_batch_index_level_enabled: false,
        ..Policy::default()
    });
    let c = world.attach(0);
    world.publish(1, 12);
    world.flow(c, 100);
    let e = entry(&world, 0);
    world.send(Event::AckBatch {
        consumer: c,
        position: e,
        still: &[0xFE0],
    });
    assert_eq!(world.stats().unacked_messages, 12);
    world.send(Event::AckBatch {
        consumer: c,
        position: e,
        still: &[0],
    });
    assert_eq!(world.stats().unacked_messages, 0);
}

// Redelivery.

#[test]
fn redeliver_count_disconnect() {
    let mut world = world(SubscriptionKind::Shared);
    world.publish(1, 1);
    let mut counts = Vec::new();
    for round in 0..8 {
        let c = world.attach(round);
        world.flow(c, 1);
        let (_, position, _, count) = *world.got.last().unwrap();
        counts.push(count);
        if round >= 5 {
            world.nack(c, position);
        }
        world.close(c);
    }
    assert_eq!(counts, [0, 0, 0, 0, 0, 0, 1, 2]);
}

#[test]
fn a_nack_with_a_delay_comes_at_its_instant_and_by_the_backoff() {
    let mut world = world(SubscriptionKind::Shared);
    world.wish.capped = true;
    let c = world.attach(0);
    world.publish(2, 1);
    world.flow(c, 100);
    let (e1, e2) = (entry(&world, 0), entry(&world, 1));
    for (position, delay_ns) in [(e1, 5_000), (e2, 3_000)] {
        world.send(Event::Nack {
            consumer: c,
            position,
            delay_ns: Some(delay_ns),
        });
    }
    world.got.clear();
    let start = world.now.mono_ns;
    assert_eq!(world.settle(), 0);
    assert_eq!(world.broker.next_deadline(), Some(start + 3_000));
    world.pass_ns(2_990);
    assert_eq!(world.got.len(), 0);
    world.pass_ns(10);
    assert_eq!(entries(&mut world), [1]);
    assert_eq!(world.pass_ns(2_000), 1);
    // An ack while it waits wins.
    world.send(Event::Nack {
        consumer: c,
        position: e1,
        delay_ns: Some(5_000),
    });
    world.ack(c, e1);
    assert_eq!(world.pass_ns(10_000), 0);
    assert_eq!(world.stats().backlog_messages, 1);
    // The policy's backoff: 1 ms, then 2 ms; this entry was nacked once before.
    world.policy(Policy {
        redelivery_backoff: Backoff {
            initial_ms: 1,
            multiplier: 2.0,
            max_ms: 60_000,
        },
        ..Policy::default()
    });
    let start = world.now.mono_ns;
    world.nack(c, e2);
    world.settle();
    assert_eq!(world.broker.next_deadline(), Some(start + 2_000_000));
}

#[test]
fn a_released_entry_comes_again_uncounted() {
    let mut world = world(SubscriptionKind::Shared);
    let (c, d) = (world.attach(0), world.attach(1));
    world.publish(1, 1);
    world.flow(c, 1);
    let e = entry(&world, 0);
    world.send(Event::Release {
        consumer: d,
        position: e,
    });
    assert_eq!(world.flow(d, 1), 0, "it is not the sender's");
    world.send(Event::Release {
        consumer: c,
        position: e,
    });
    world.settle();
    assert_eq!(world.got[1], (d, e, 1, 0));
}

// KeyShared.

#[test]
fn key_replay_wrong_consumer() {
    let mut world = world(SubscriptionKind::KeyShared);
    world.policy(Policy {
        subscription_key_shared_use_consistent_hashing: false,
        ..Policy::default()
    });
    let c0 = world.attach(0);
    for _ in 0..10 {
        world.publish_keyed(100, 1);
    }
    world.flow(c0, 2);
    let (m0, m1) = (entry(&world, 0), entry(&world, 1));
    world.ack(c0, m1);
    // The lower half, with hash 100 in it, moves to each newcomer.
    let c1 = world.attach(1);
    world.flow(c1, 100);
    let c2 = world.attach(2);
    world.flow(c2, 100);
    world.got.clear();
    assert_eq!(world.flow(c0, 100), 0, "nobody gets m2 while c0 holds m0");
    world.ack(c0, m0);
    world.settle();
    let got = world.take_entries();
    assert!(got.iter().all(|&(slot, _)| slot == c2.slot), "{got:?}");
    assert!(got.into_iter().map(|(_, entry)| entry).eq(2..10));
}

#[test]
fn a_grant_or_a_leaving_owner_frees_what_was_put_aside() {
    for closes in [false, true] {
        let mut world = world(SubscriptionKind::KeyShared);
        world.policy(Policy {
            subscription_key_shared_use_consistent_hashing: false,
            ..Policy::default()
        });
        let (c1, c2) = (world.attach(0), world.attach(1));
        for _ in 0..40 {
            world.publish_keyed(60_000, 1);
            world.publish_keyed(100, 1);
        }
        world.flow(c1, 10);
        world.flow(c2, 100);
        assert_eq!(world.got.len(), 50);
        if closes {
            world.close(c1);
        } else {
            world.flow(c1, 100);
        }
        let got = world.take_entries();
        assert_eq!(got.len(), if closes { 90 } else { 80 });
    }
}

#[test]
fn slow_socket_blocks_others_look_ahead_is_bounded_and_memory_with_it() {
    let mut world = world(SubscriptionKind::KeyShared);
    world.policy(Policy {
        subscription_key_shared_use_consistent_hashing: false,
        key_shared_look_ahead_msg_in_replay_threshold_per_consumer: 1_000,
        ..Policy::default()
    });
    let (_c1, c2) = (world.attach(0), world.attach(1));
    for n in 0..20_000 {
        world.publish_keyed(if n < 19_000 { 60_000 } else { 100 }, 1);
    }
    world.flow(c2, 10_000);
    assert_eq!((world.got.len(), world.stats().replay_entries), (0, 2_000));
}

#[test]
fn sticky_ranges_do_not_overlap_and_the_mode_is_the_first_ones() {
    let mut world = world(SubscriptionKind::KeyShared);
    let range = |first, last| KeyShared {
        ranges: vec![crate::keys::KeyRange { first, last }],
        ..KeyShared::default()
    };
    world.wish.key_shared = range(0, 99);
    let c0 = world.attach(0);
    world.wish.key_shared = range(99, 200);
    let refused = world.try_attach(1, SubscriptionKind::KeyShared);
    assert!(
        matches!(refused, Err(RequestError::KeyRanges { .. })),
        "{refused:?}"
    );
    world.wish.key_shared = KeyShared::default();
    let refused = world.try_attach(1, SubscriptionKind::KeyShared);
    assert!(
        matches!(refused, Err(RequestError::KeySharedMode { .. })),
        "{refused:?}"
    );
    world.wish.key_shared = range(200, 300);
    let c1 = world.attach(1);
    world.flow(c0, 100);
    world.flow(c1, 100);
    for hash in [50, 150, 250] {
        world.publish_keyed(hash, 1);
    }
    world.settle();
    assert_eq!(world.take_entries(), [(0, 0), (1, 2)]);
    world.wish.key_shared = range(100, 199);
    let c2 = world.attach(2);
    world.flow(c2, 100);
    assert_eq!(
        world.take_entries(),
        [(2, 1)],
        "keys in a hole wait for an owner"
    );
}

/// What the random walk knows of each consumer, entry and key.
#[derive(Default)]
struct Model {
    held: BTreeMap<u64, ConsumerId>,
    acked: std::collections::BTreeSet<u64>,
    highest_of_key: BTreeMap<u32, u64>,
    nacked_below: BTreeMap<u32, u64>,
}

fn random_walk(
    kind: SubscriptionKind,
    steps: Vec<(u8, u32, u32)>,
    ring: bool,
) -> Result<(), TestCaseError> {
    let mut world = world(kind);
    world.wish.capped = true;
    world.policy(Policy {
        subscription_key_shared_use_consistent_hashing: ring,
        max_unacked_messages_per_consumer: 60,
        max_unacked_messages_per_subscription: 100,
        ..Policy::default()
    });
    let first = world.attach(0); // makes the subscription
    world.close(first);
    let mut ids: Vec<Option<ConsumerId>> = vec![None; 4];
    let (mut model, mut published) = (Model::default(), 0u64);
    for (op, who, n) in steps {
        let pick = |model: &Model, id: ConsumerId| {
            let ours = model.held.iter().filter(|(_, holder)| **holder == id);
            let ours: Vec<u64> = ours.map(|(&entry, _)| entry).collect();
            ours.get(n as usize % ours.len().max(1)).copied()
        };
        let ledger = world.got.first().map_or(1, |got| got.1.ledger);
        let place = |entry| Position { ledger, entry };
        match (op, ids[who as usize]) {
            (0 | 1, _) => {
                world.publish_keyed(1 + n % 7 * 9_000, n % 3 + 1);
                published += 1;
            }
            (2, None) => ids[who as usize] = Some(world.attach(who)),
            (2 | 3, Some(id)) => {
                world.flow(id, n);
            }
            (4 | 5, Some(id)) => {
                if let Some(entry) = pick(&model, id) {
                    world.ack(id, place(entry));
                    model.held.remove(&entry);
                    model.acked.insert(entry);
                }
            }
            (6, Some(id)) => {
                if let Some(entry) = pick(&model, id) {
                    world.nack(id, place(entry));
                    give_back(&mut model, &world, kind, |held, holder| {
                        held == entry && holder == id
                    });
                }
            }
            (7, Some(id)) => {
                world.close(id);
                ids[who as usize] = None;
                give_back(&mut model, &world, SubscriptionKind::Shared, |_, holder| {
                    holder == id
                });
            }
            (8, _) => {
                world.pass_ns(u64::from(n) * SECOND_NS / 20);
            }
            _ => {}
        }
        world.settle();
        observe(&mut world, &mut model, kind)?;
    }
    for id in ids.into_iter().flatten() {
        world.close(id);
        give_back(&mut model, &world, SubscriptionKind::Shared, |_, holder| {
            holder == id
        });
        observe(&mut world, &mut model, kind)?;
    }
    // Whoever comes last gets all that is left, and no more.
    let last = world.attach(0);
    world.flow(last, 1_000_000);
    loop {
        observe(&mut world, &mut model, kind)?;
        let Some((&entry, _)) = model.held.first_key_value() else {
            break;
        };
        let ledger = ledger_of(&world);
        world.ack(last, Position { ledger, entry });
        model.held.remove(&entry);
        model.acked.insert(entry);
        world.settle();
    }
    prop_assert_eq!(model.acked.len() as u64, published, "some were lost");
    prop_assert_eq!(world.stats().backlog_messages, 0);
    Ok(())
}

fn ledger_of(world: &World) -> u64 {
    world.first_ledger.expect("something was delivered")
}

/// Entries go back; their keys start again there (rule D89).
fn give_back(
    model: &mut Model,
    world: &World,
    kind: SubscriptionKind,
    which: impl Fn(u64, ConsumerId) -> bool,
) {
    let rewinds = kind.is_single() && model.held.iter().any(|(&e, &h)| which(e, h));
    let gone: Vec<u64> = model
        .held
        .iter()
        .filter(|&(&e, &h)| rewinds || which(e, h))
        .map(|(&e, _)| e)
        .collect();
    for entry in gone {
        model.held.remove(&entry);
        let key = world.hashes[entry as usize];
        let lowest = model.nacked_below.entry(key).or_insert(entry);
        *lowest = entry.min(*lowest);
    }
}

/// Every delivery: of an entry that nobody holds and that is not acked; in order where order holds.
fn observe(
    world: &mut World,
    model: &mut Model,
    kind: SubscriptionKind,
) -> Result<(), TestCaseError> {
    for (consumer, position, ..) in std::mem::take(&mut world.got) {
        world.first_ledger = Some(position.ledger);
        let entry = position.entry;
        prop_assert!(!model.acked.contains(&entry), "entry {entry} was acked");
        if kind == SubscriptionKind::Failover {
            // The former active's entries are the new one's now.
            model.held.retain(|_, holder| *holder == consumer);
        }
        let before = model.held.insert(entry, consumer);
        prop_assert!(before.is_none(), "entry {entry} was held by {before:?}");
        let key = world.hashes[entry as usize];
        if kind == SubscriptionKind::KeyShared {
            let holders = model
                .held
                .iter()
                .filter(|(e, _)| world.hashes[**e as usize] == key);
            for (other, holder) in holders {
                prop_assert_eq!(*holder, consumer, "key {} with {} elsewhere", key, other);
            }
            if let Some(lowest) = model.nacked_below.remove(&key) {
                model.highest_of_key.insert(key, lowest.wrapping_sub(1));
            }
            let acked_up_to = model.highest_of_key.insert(key, entry);
            if let Some(before) = acked_up_to.filter(|&before| before != u64::MAX) {
                prop_assert!(entry > before, "key {key}: {entry} after {before}");
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn shared_with_caps_loses_and_doubles_nothing(
        steps in prop::collection::vec((0u8..9, 0u32..4, 1u32..60), 1..150),
    ) {
        random_walk(SubscriptionKind::Shared, steps, true)?;
    }

    #[test]
    fn failover_loses_and_doubles_nothing(
        steps in prop::collection::vec((0u8..9, 0u32..4, 1u32..60), 1..150),
    ) {
        random_walk(SubscriptionKind::Failover, steps, true)?;
    }

    #[test]
    fn key_order_holds_through_joins_and_leaves(
        steps in prop::collection::vec((0u8..9, 0u32..4, 1u32..60), 1..200), ring in any::<bool>(),
    ) {
        random_walk(SubscriptionKind::KeyShared, steps, ring)?;
    }
}
