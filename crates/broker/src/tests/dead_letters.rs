//! Redelivery and dead letters: counts, copies and their order, what a crash leaves (D107 to D121).

use pelton_storage::{Durability, Position};
use proptest::prelude::*;

use super::world::{Mail, World};
use crate::{
    Backoff, ConsumerId, DeadLetter, DeadlineAction, Event, Policy, Properties, Reply, Request,
    RequestError, SubscriptionKind,
};

const SECOND_NS: u64 = 1_000_000_000;
const DLQ: &str = "t-s-DLQ";

/// One Shared consumer with permits, and the policy's counts.
fn world(durability: Durability, max_redeliver_count: u32, max_deliveries: u32) -> World {
    let mut world = World::with(durability);
    world.wish.capped = true;
    world.policy(policy(max_redeliver_count, max_deliveries));
    world
}

fn policy(max_redeliver_count: u32, max_deliveries: u32) -> Policy {
    Policy {
        dead_letter: Some(DeadLetter {
            max_redeliver_count,
            max_deliveries,
            ..DeadLetter::default()
        }),
        ..Policy::default()
    }
}

fn reject(world: &mut World, consumer: ConsumerId, position: Position) {
    world.send(Event::Reject { consumer, position });
    world.settle();
}

/// Properties and bodies of everything in a topic's subscription "dlq".
fn read(world: &mut World, name: &str, durability: Durability) -> Vec<(Vec<u8>, Vec<u8>)> {
    world.read.clear();
    let name = name.to_owned();
    let Ok(Reply::Topic(topic)) = world.ask(Request::OpenTopic { name, durability }) else {
        panic!("no topic")
    };
    let own = std::mem::replace(&mut world.topic, topic);
    let c = world.subscribe("dlq", 30, |_| {}).unwrap();
    world.topic = own;
    world.flow(c, 10_000);
    world.got.retain(|got| got.0 != c);
    world.close(c);
    std::mem::take(&mut world.read)
}

/// Nacks what comes, until nothing does; the counts seen.
fn nack_all(world: &mut World, c: ConsumerId) -> Vec<u32> {
    let mut counts = Vec::new();
    while let Some((_, position, _, count)) = world.got.pop() {
        counts.push(count);
        world.nack(c, position);
        world.settle();
    }
    counts
}

// Redelivery.

#[test]
fn ack_queue_dropped_t48_acks_and_redelivery_move_the_floor_and_a_crash_brings_back_exactly_the_holes()
 {
    let mut world = world(Durability::Synced, 0, 0);
    let c = world.attach(0);
    world.publish(5, 1);
    world.settle();
    world.flow(c, 5);
    let positions: Vec<Position> = world.got.iter().map(|got| got.1).collect();
    for n in [1, 2, 4] {
        world.ack(c, positions[n]);
    }
    world.nack(c, positions[0]);
    world.nack(c, positions[3]);
    let floor = |world: &mut World| {
        let (topic, subscription) = (world.topic, "s".to_owned());
        match world.ask(Request::LastPosition {
            topic,
            subscription,
        }) {
            Ok(Reply::LastPosition { mark_delete, .. }) => mark_delete,
            other => panic!("{other:?}"),
        }
    };
    world.ack(c, positions[0]);
    assert_eq!(floor(&mut world), Some(positions[2]));
    world.ack(c, positions[3]);
    assert_eq!(floor(&mut world), Some(positions[4]));
    world.settle();
    world.got.clear();

    world.publish(10_000, 1);
    world.settle();
    while world.flow(c, 10_000) > 0 {}
    assert_eq!(world.got.len(), 10_000);
    for (n, (_, position, ..)) in std::mem::take(&mut world.got).into_iter().enumerate() {
        if n % 100 != 7 {
            world.ack(c, position);
        }
    }
    let consumer = c;
    world.ask(Request::FlushAcks { consumer }).unwrap();
    let mut again = World::reopen(world.disk, Durability::Synced);
    again.wish.capped = true;
    let c = again.attach(0);
    again.flow(c, 20_000);
    let back = again.take_entries().into_iter().map(|(_, entry)| entry);
    assert!(back.eq((0..100).map(|n| 5 + 100 * n + 7)));
}

#[test]
fn t49_only_requests_for_redelivery_count() {
    let mut world = world(Durability::Memory, 0, 0);
    let first = world.attach(0);
    world.publish(1, 1);
    world.flow(first, 1);
    let position = world.got[0].1;
    for _ in 0..3 {
        world.nack(first, position);
        world.settle();
    }
    world.close(first);
    let second = world.attach(1);
    world.flow(second, 10);
    assert_eq!(world.got[1..], [(second, position, 1, 1)], "once");
    world.ack_all();

    world.publish(1, 1);
    let mut counts = Vec::new();
    world.close(second);
    for slot in 10..16 {
        world.got.clear();
        let c = world.attach(slot);
        world.flow(c, 1);
        counts.push(world.got[0].3);
        if slot < 15 {
            world.close(c);
            continue;
        }
        let position = world.got[0].1;
        for _ in 0..2 {
            world.nack(c, position);
            world.flow(c, 1);
            counts.push(world.got.last().unwrap().3);
        }
    }
    assert_eq!(counts, [0, 0, 0, 0, 0, 0, 1, 2]);
}

#[test]
fn t50_all_of_a_thousand_come_again_a_thousand_times() {
    let mut world = world(Durability::Memory, 0, 0);
    world.policy(Policy {
        redelivery_backoff: Backoff::default(),
        ..Policy::default()
    });
    let consumer = world.attach(0);
    world.publish(1_000, 1);
    world.flow(consumer, 2_000_000);
    for _ in 0..1_000 {
        world.got.clear();
        world.send(Event::NackAll { consumer });
        assert_eq!(world.settle(), 1_000);
        assert_eq!(world.stats().unacked_messages, 1_000);
    }
    world.ack_all();
    assert_eq!(world.stats().backlog_messages, 0);
}

// Dead letters.

#[test]
fn t51_after_the_last_redelivery_there_is_one_copy_and_no_backlog() {
    for kind in [SubscriptionKind::Shared, SubscriptionKind::KeyShared] {
        let mut world = world(Durability::Synced, 3, 0);
        world.wish.kind = kind;
        let c = world.attach(0);
        world.publish_keyed(9, 4);
        world.settle();
        world.flow(c, 100);
        assert_eq!(nack_all(&mut world, c), [0, 1, 2, 3]);
        let stats = world.stats();
        let counts = (stats.backlog_messages, stats.unacked_messages);
        assert_eq!((counts, stats.acked_messages), ((0, 0), 0));
        assert_eq!(
            (stats.dead_lettered_messages, stats.dead_lettering_entries),
            (4, 0)
        );
        let copies = read(&mut world, DLQ, Durability::Synced);
        let [(properties, body)] = &copies[..] else {
            panic!("{copies:?}")
        };
        assert_eq!(body[..], 0u64.to_le_bytes());
        let get = |name| Properties::of(properties).get(name);
        assert_eq!(get("REAL_TOPIC"), Some("t"));
        assert_eq!(get("REAL_SUBSCRIPTION"), Some("s"));
        assert_eq!(get("PELTON_REASON"), Some("max_redeliveries"));
        assert_eq!(get("PELTON_REDELIVERY_COUNT"), Some("3"));
        assert!(get("ORIGIN_MESSAGE_ID").unwrap().ends_with(":0:-1"));
        assert_eq!(get("PELTON_ACK_SET"), None);
    }
}

#[test]
fn t51_what_kills_its_consumers_is_dead_after_its_last_delivery() {
    let mut world = world(Durability::Synced, 0, 5);
    let first = world.attach(20);
    world.close(first);
    world.publish(1, 1);
    world.settle();
    for slot in 0..5 {
        let c = world.attach(slot);
        assert_eq!(world.flow(c, 1), 1, "delivery {slot}");
        world.close(c);
    }
    let c = world.attach(9);
    assert_eq!(world.flow(c, 1), 0);
    assert_eq!(world.stats().backlog_messages, 0);
    let copies = read(&mut world, DLQ, Durability::Synced);
    assert_eq!(copies.len(), 1);
    let properties = Properties::of(&copies[0].0);
    assert_eq!(properties.get("PELTON_REASON"), Some("max_deliveries"));
    assert_eq!(properties.get("PELTON_REDELIVERY_COUNT"), Some("0"));
}

#[test]
fn t51_a_crash_at_any_step_leaves_one_or_two_copies_and_never_none() {
    for mail in [Mail::Holds, Mail::Unanswered, Mail::Works] {
        for holds_syncs in [false, true] {
            let mut world = world(Durability::Synced, 3, 0);
            let c = world.attach(0);
            world.publish(1, 1);
            world.settle();
            world.flow(c, 100);
            world.mail = mail;
            world.disk.holds_syncs = holds_syncs;
            nack_all(&mut world, c);
            let done = world.stats().dead_lettered_messages == 1;
            assert_eq!(done, mail == Mail::Works && !holds_syncs);
            let mut again = World::reopen(world.disk, Durability::Synced);
            again.wish.capped = true;
            let c = again.attach(0);
            again.flow(c, 100);
            nack_all(&mut again, c);
            again.pass_ns(SECOND_NS);
            assert_eq!(again.stats().backlog_messages, 0);
            let copies = read(&mut again, DLQ, Durability::Synced).len();
            assert!((1..=2).contains(&copies), "{copies} with {mail:?}");
        }
    }
}

#[test]
fn the_original_is_acked_only_once_the_copy_is_durable() {
    let mut world = world(Durability::Synced, 0, 0);
    let c = world.attach(0);
    world.publish(1, 1);
    world.settle();
    world.flow(c, 10);
    let position = world.got[0].1;
    world.disk.holds_syncs = true;
    reject(&mut world, c, position);
    let stats = world.stats();
    assert_eq!(
        (stats.dead_lettering_entries, stats.backlog_messages),
        (1, 1)
    );
    assert_eq!(stats.unacked_messages, 0, "it is nobody's");
    assert_eq!(world.flow(c, 10), 0, "nor does it go to anybody");
    world.disk.holds_syncs = false;
    world.disk.let_go(true);
    world.settle();
    world.settle();
    let stats = world.stats();
    assert_eq!(
        (stats.dead_lettering_entries, stats.backlog_messages),
        (0, 0)
    );
    assert_eq!(stats.dead_lettered_messages, 1);
}

#[test]
fn a_failed_append_is_tried_again_after_a_tenth_of_a_second_doubling_to_ten() {
    let mut world = world(Durability::Memory, 0, 0);
    let c = world.attach(0);
    world.publish(1, 1);
    world.flow(c, 10);
    let position = world.got[0].1;
    world.mail = Mail::Fails;
    reject(&mut world, c, position);
    let mut waits_ms = Vec::new();
    for _ in 0..9 {
        let due_ns = world.broker.next_deadline().unwrap();
        waits_ms.push((due_ns - world.now.mono_ns + 10) / 1_000_000);
        world.pass_ns(due_ns - world.now.mono_ns);
    }
    assert_eq!(
        waits_ms,
        [100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]
    );
    assert_eq!(world.stats().dead_lettering_entries, 1);
    world.mail = Mail::Works;
    world.pass_ns(10 * SECOND_NS);
    assert_eq!(world.stats().dead_lettered_messages, 1);
    assert_eq!(read(&mut world, DLQ, Durability::Memory).len(), 1);
}

#[test]
fn a_rejected_entry_is_dead_at_once_and_its_key_is_free() {
    let mut world = world(Durability::Memory, 0, 0);
    world.wish.kind = SubscriptionKind::KeyShared;
    let (a, b) = (world.attach(0), world.attach(1));
    world.mail = Mail::Holds;
    world.publish_keyed(7, 1);
    world.publish_keyed(7, 1);
    world.flow(a, 1);
    world.flow(b, 1);
    let (owner, position, ..) = world.got[0];
    reject(&mut world, owner, position);
    world.close(owner);
    let other = if owner == a { b } else { a };
    world.flow(other, 10);
    let got: Vec<_> = world.take_entries();
    assert_eq!(got, [(owner.slot, 0), (other.slot, 1)]);
}

#[test]
fn without_a_policy_a_rejected_entry_is_acked_and_counted() {
    for kind in [SubscriptionKind::Exclusive, SubscriptionKind::Shared] {
        let mut world = World::new();
        world.wish.capped = true;
        world.wish.kind = kind;
        let c = world.attach(0);
        world.publish(2, 3);
        world.flow(c, 10);
        let position = world.got[0].1;
        reject(&mut world, c, position);
        reject(&mut world, c, position);
        let stats = world.stats();
        let counts = (stats.rejected_messages, stats.backlog_messages);
        assert_eq!((counts, stats.acked_messages), ((3, 3), 0));
        assert_eq!(stats.unacked_messages, 3);
    }
}

#[test]
fn of_a_partly_acked_batch_the_copy_is_whole_and_says_what_was_left() {
    let mut world = world(Durability::Memory, 0, 0);
    world.policy(Policy {
        dead_letter: Some(DeadLetter {
            topic: Some("the dead".to_owned()),
            ..DeadLetter::default()
        }),
        ..Policy::default()
    });
    let c = world.attach(0);
    world.publish(1, 70);
    world.flow(c, 100);
    let position = world.got[0].1;
    world.send(Event::AckBatch {
        consumer: c,
        position,
        still: &[!1, 0b11],
    });
    reject(&mut world, c, position);
    let stats = world.stats();
    let counts = (stats.dead_lettered_messages, stats.acked_messages);
    assert_eq!((counts, stats.backlog_messages), ((65, 5), 0));
    let copies = read(&mut world, "the dead", Durability::Memory);
    let set = Properties::of(&copies[0].0).get("PELTON_ACK_SET");
    assert_eq!(set, Some("fffffffffffffffe,0000000000000003"));
}

#[test]
fn a_late_entry_goes_to_the_dead_letter_topic_if_the_policy_says_so() {
    let mut world = world(Durability::Memory, 0, 0);
    world.attach(0);
    world.policy(Policy {
        deadline_action: DeadlineAction::DeadLetter,
        ..policy(0, 0)
    });
    world.publish_with(|entry| entry.deadline_ms = 5_000);
    world.settle();
    world.pass_until_ms(6_000);
    let stats = world.stats();
    let counts = (
        stats.dead_lettered_messages,
        stats.deadline_dropped_messages,
    );
    assert_eq!((counts, stats.backlog_messages), ((1, 0), 0));
    assert_eq!((stats.delivered_messages, world.permits("c0")), (0, 0));
    let copies = read(&mut world, DLQ, Durability::Memory);
    let reason = Properties::of(&copies[0].0).get("PELTON_REASON");
    assert_eq!(reason, Some("deadline"));
}

#[test]
fn a_copy_is_kept_for_the_first_subscription_and_made_of_what_is_only_on_disk() {
    let mut world = world(Durability::Synced, 0, 1);
    world.attach(0);
    world.publish(300, 1);
    world.settle();
    let mut again = World::reopen(world.disk, Durability::Synced);
    again.wish.capped = true;
    let c = again.attach(0);
    again.flow(c, 1_000);
    assert_eq!(again.got.len(), 300);
    again.got.clear();
    again.close(c);
    again.pass_ns(SECOND_NS);
    assert_eq!(again.stats().dead_lettered_messages, 300);
    let mut last = World::reopen(again.disk, Durability::Synced);
    last.wish.capped = true;
    assert_eq!(last.stats().backlog_messages, 0);
    let copies = read(&mut last, DLQ, Durability::Synced);
    let numbers = copies
        .iter()
        .map(|(_, body)| u64::from_le_bytes(body[..].try_into().unwrap()));
    assert!(numbers.eq(0..300), "each once, in order");
}

#[test]
fn credit_double_grant_unacked_falls_once() {
    let mut world = world(Durability::Memory, 0, 3);
    world.policy(Policy {
        max_unacked_messages_per_subscription: 10,
        ..policy(0, 3)
    });
    let c = world.attach(0);
    world.publish(100, 1);
    world.flow(c, 10_000);
    let mut deliveries = 0;
    while let Some((_, position, ..)) = world.got.pop() {
        deliveries += 1;
        world.nack(c, position);
        world.settle();
        assert!(world.stats().unacked_messages <= 10);
    }
    let stats = world.stats();
    assert_eq!((deliveries, stats.dead_lettered_messages), (300, 100));
    assert_eq!((stats.unacked_messages, stats.backlog_messages), (0, 0));
}

#[test]
fn a_policy_with_a_name_that_is_none_is_refused() {
    let mut world = World::new();
    let mut bad = policy(1, 0);
    bad.dead_letter.as_mut().unwrap().topic = Some(" blank".to_owned());
    let (topic, policy) = (world.topic, Box::new(bad));
    let refused = world.ask(Request::SetPolicy { topic, policy });
    assert!(matches!(refused, Err(RequestError::InvalidName { .. })));
}

proptest! {
    /// Any order of publishes with and without times, acks, nacks, rejects, closes and time: every
    /// message goes exactly one way, and what is held is what the counts say.
    #[test]
    fn every_message_is_acked_late_expired_or_dead_and_nothing_else(
        (shared, drops) in any::<(bool, bool)>(),
        steps in prop::collection::vec((0u8..8, 0u64..4, 1u32..9), 1..100),
    ) {
        let mut world = World::new();
        world.wish.capped = true;
        world.wish.kind = match shared {
            true => SubscriptionKind::Shared,
            false => SubscriptionKind::KeyShared,
        };
        world.policy(Policy {
            message_ttl_seconds: 9,
            deadline_action: match drops {
                true => DeadlineAction::Drop,
                false => DeadlineAction::DeadLetter,
            },
            redelivery_backoff: Backoff { initial_ms: 100, ..Backoff::default() },
            ..policy(2, 4)
        });
        let keeper = world.attach(9); // never asks
        let (mut c, mut published) = (world.attach(0), 0);
        for (op, who, n) in steps {
            let held = world.got.len().checked_sub(1).map(|last| who as usize % (last + 1));
            match (op, held) {
                (0 | 1, _) => {
                    let now_ms = world.now.wall_ms;
                    world.publish_with(|entry| {
                        entry.messages = n;
                        entry.key_hash = n;
                        entry.deliver_at_ms = if who & 1 == 1 { now_ms + 700 } else { 0 };
                        entry.deadline_ms = if who & 2 == 2 { now_ms + u64::from(n) * 200 } else { 0 };
                    });
                    published += u64::from(n);
                }
                (2, _) => { world.flow(c, n); }
                (3, _) => { world.pass_ns(u64::from(n) * 300_000_000); }
                (4, Some(at)) => { let got = world.got.remove(at); world.ack(got.0, got.1); }
                (5, Some(at)) => { let got = world.got.remove(at); world.nack(got.0, got.1); }
                (6, Some(at)) => { let got = world.got.remove(at); reject(&mut world, got.0, got.1); }
                (7, _) => { world.close(c); world.got.clear(); c = world.attach(0); }
                _ => {}
            }
            world.settle();
        }
        world.close(keeper);
        world.flow(c, 1_000_000);
        world.pass_ns(800_000_000);
        world.ack_all();
        world.pass_ns(12 * SECOND_NS);
        let stats = world.stats();
        let ways = stats.acked_messages
            + stats.expired_messages
            + stats.deadline_dropped_messages
            + stats.rejected_messages
            + stats.dead_lettered_messages;
        prop_assert_eq!(ways, published);
        prop_assert_eq!((stats.backlog_messages, stats.unacked_messages), (0, 0));
        prop_assert_eq!((stats.delayed_entries, stats.dead_lettering_entries), (0, 0));
        prop_assert_eq!(world.broker.next_deadline(), None);
    }
}
