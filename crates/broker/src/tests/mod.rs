//! The core against the rules of the dispatch specification, with exact numbers.

use std::collections::BTreeMap;

use pelton_storage::Position;
use proptest::prelude::*;

use crate::{ConsumerId, Event, Outcome, Request, RequestError, SubscriptionKind};

mod dead_letters;
mod disk;
mod ends;
mod explain;
mod found;
mod keeping;
mod kinds;
mod positions;
mod producers;
mod reads;
mod times;
mod world;

use world::World;

#[test]
fn permit_zero_read() {
    let mut world = World::new();
    let c = world.attach(0);
    world.publish(60, 100);
    assert_eq!(world.flow(c, 1000), 10);
    assert_eq!(world.permits("c0"), 0);
    assert!((world.stats().consumers[0].avg_messages_per_entry - 100.0).abs() < 1e-9);
    world.ack_all();
    assert_eq!((world.flow(c, 4), world.permits("c0")), (1, -96));
    assert_eq!((world.flow(c, 95), world.permits("c0")), (0, -1));
    assert_eq!((world.flow(c, 2), world.permits("c0")), (1, -99));
}

#[test]
fn permit_first_batch_overshoot() {
    let mut world = World::new();
    let c = world.attach(0);
    world.publish(40, 100);
    assert_eq!((world.flow(c, 20), world.permits("c0")), (1, -80));
    assert_eq!((world.flow(c, 80), world.permits("c0")), (0, 0));
    assert_eq!((world.flow(c, 1), world.permits("c0")), (1, -99));
    let entries: Vec<u64> = world.got.iter().map(|got| got.1.entry).collect();
    assert_eq!(entries, [0, 1]);
}

#[test]
fn a_thousand_permits_read_one_entry_of_a_thousand() {
    let mut world = World::new();
    let c = world.attach(0);
    world.publish(600, 1000);
    assert_eq!((world.flow(c, 1000), world.permits("c0")), (1, 0));
}

#[test]
fn debt_of_one_consumer_does_not_stop_another() {
    let mut world = World::new();
    let ids: Vec<_> = (0..3).map(|slot| world.attach(slot)).collect();
    world.publish(10, 100);
    assert_eq!((world.flow(ids[0], 10), world.permits("c0")), (1, -90));
    assert_eq!((world.flow(ids[1], 50), world.permits("c1")), (1, -50));
    assert_eq!((world.flow(ids[2], 1), world.permits("c2")), (1, -99));
}

#[test]
fn slow_socket_blocks_others_nobody_waits_for_a_consumer_that_cannot_be_written_to() {
    let mut world = World::new();
    world.wish.capped = true; // it has permits and a backlog, and gets nothing
    let ids: Vec<_> = (0..2).map(|slot| world.attach(slot)).collect();
    for &id in &ids {
        world.flow(id, 100);
    }
    let writable = |consumer, writable| Event::Writable { consumer, writable };
    world.send(writable(ids[0], false));
    world.publish(10, 1);
    world.settle();
    assert!(world.got.iter().all(|got| got.0 == ids[1]));
    assert_eq!((world.got.len(), world.permits("c0")), (10, 100));
    world.send(writable(ids[1], false));
    world.publish(10, 1);
    world.settle();
    assert_eq!(world.got.len(), 10, "nobody is writable");
    world.send(writable(ids[0], true));
    world.settle();
    assert!(world.got[10..].iter().all(|got| got.0 == ids[0]));
    assert_eq!(world.got.len(), 20);
}

#[test]
fn permits_follow_mixed_batches_exactly() {
    let mut world = World::new();
    let c = world.attach(0);
    for _ in 0..5 {
        world.publish(1, 1);
        world.publish(1, 100);
    }
    assert_eq!((world.flow(c, 1000), world.permits("c0")), (10, 495));
}

#[test]
fn coming_and_going_consumers_leave_no_permits_behind() {
    let mut world = World::new();
    let first = world.attach(0);
    world.flow(first, 100);
    for slot in 1..1000 {
        let other = world.attach(slot % 3 + 1);
        world.flow(other, 100);
        world.close(other);
        world.close(other);
        assert_eq!(world.permits("c0"), 100);
    }
    world.publish(150, 1);
    assert_eq!(world.settle(), 100);
    assert_eq!(world.stats().backlog_messages, 150);
}

#[test]
fn singles_one_by_one_go_round_all_consumers() {
    let mut world = World::new();
    let ids: Vec<_> = (0..4).map(|slot| world.attach(slot)).collect();
    for &id in &ids {
        world.flow(id, 1000);
    }
    for _ in 0..1000 {
        world.publish(1, 1);
        world.settle();
    }
    for id in ids {
        let got = world.got.iter().filter(|got| got.0 == id).count();
        assert_eq!(got, 250, "{id:?}");
    }
}

#[test]
fn ack_unacked_owner() {
    let mut world = World::new();
    let (c1, c2) = (world.attach(0), world.attach(1));
    world.publish(1, 5);
    world.flow(c1, 5);
    let position = world.got[0].1;
    world.nack(c1, position);
    assert_eq!(world.stats().unacked_messages, 0);
    world.settle();
    assert_eq!(world.got.len(), 1, "nobody has permits");
    assert_eq!(world.flow(c2, 5), 1);
    assert_eq!(world.got[1], (c2, position, 5, 1));
    // A late ack of the first one acts on the position; the holder's count falls.
    for _ in 0..3 {
        world.ack(c1, position);
    }
    world.settle();
    let stats = world.stats();
    assert_eq!(
        (
            stats.unacked_messages,
            stats.backlog_messages,
            stats.acked_messages
        ),
        (0, 0, 5)
    );
    world.nack(c2, position);
    assert_eq!(world.settle(), 0, "an acked entry never comes back");
}

#[test]
fn an_ack_after_a_nack_wins() {
    let mut world = World::new();
    let c = world.attach(0);
    world.publish(1, 5);
    world.flow(c, 5);
    let position = world.got[0].1;
    world.nack(c, position);
    world.ack(c, position);
    assert_eq!(world.flow(c, 100), 0);
    assert_eq!(world.stats().backlog_messages, 0);
}

#[test]
fn acks_and_redelivery_return_no_permits() {
    let mut world = World::new();
    let c = world.attach(0);
    world.publish(1, 1);
    assert_eq!((world.flow(c, 1000), world.permits("c0")), (1, 999));
    for round in 1..=3 {
        let position = world.got[0].1;
        world.nack(c, position);
        world.settle();
        assert_eq!(world.permits("c0"), 999 - round);
        assert_eq!(world.got.last().unwrap().3, u32::try_from(round).unwrap());
    }
    world.ack_all();
    assert_eq!(world.permits("c0"), 996);
}

#[test]
fn what_a_closed_consumer_held_comes_first_and_in_order() {
    let mut world = World::new();
    let c = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    world.publish(100, 1);
    assert_eq!(world.flow(c, 50), 50);
    let held: Vec<Position> = world.got.iter().map(|got| got.1).collect();
    for position in &held[..10] {
        world.ack(c, *position);
    }
    world.close(c);
    let again = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    world.got.clear();
    assert_eq!(world.flow(again, 1000), 90);
    let entries: Vec<u64> = world.got.iter().map(|got| got.1.entry).collect();
    assert_eq!(entries, (10..100).collect::<Vec<_>>());
    assert!(
        world.got.iter().all(|got| got.3 == 0),
        "a close does not raise the count"
    );
}

#[test]
fn redeliver_clear_race() {
    let mut world = World::new();
    let c = world.attach(0);
    world.publish(100, 1);
    world.flow(c, 1_000_000);
    for _ in 0..50 {
        for (_, position, ..) in std::mem::take(&mut world.got) {
            world.nack(c, position);
        }
        assert_eq!(world.settle(), 100);
    }
    world.ack_all();
    world.close(c);
    assert_eq!(
        (world.stats().backlog_messages, world.stats().replay_entries),
        (0, 0)
    );
}

#[test]
fn a_cumulative_ack_takes_all_before_it_and_never_moves_back() {
    let mut world = World::new();
    let c = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    world.publish(10, 3);
    world.flow(c, 1000);
    let (second, fifth) = (world.got[1].1, world.got[4].1);
    world.send(Event::AckCumulative {
        consumer: c,
        position: fifth,
        still: &[],
    });
    world.send(Event::AckCumulative {
        consumer: c,
        position: second,
        still: &[],
    });
    world.settle();
    let stats = world.stats();
    assert_eq!((stats.backlog_messages, stats.unacked_messages), (15, 15));
}

#[test]
fn a_second_exclusive_consumer_is_told_to_wait() {
    let mut world = World::new();
    world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    for kind in [SubscriptionKind::Exclusive, SubscriptionKind::Shared] {
        let error = world.try_attach(1, kind).unwrap_err();
        assert!(
            matches!(error, RequestError::ConsumerBusy { consumers: 1, .. }),
            "{error}"
        );
    }
}

#[test]
fn receipts_come_as_one_run_a_turn() {
    let mut world = World::new();
    world.attach(0);
    world.publish(64, 1);
    world.settle();
    assert_eq!(world.receipts.len(), 1);
    assert_eq!(
        (world.receipts[0].first_sequence, world.receipts[0].count),
        (0, 64)
    );
    assert!(matches!(
        world.receipts[0].outcome,
        Outcome::Stored(Position { entry: 0, .. })
    ));
}

#[test]
fn a_topic_is_deleted_only_when_nobody_uses_it() {
    let mut world = World::new();
    let c = world.attach(0);
    let delete = || Request::DeleteTopic {
        name: "t".to_owned(),
    };
    assert!(matches!(
        world.ask(delete()),
        Err(RequestError::InUse { users: 2, .. })
    ));
    let consumer = c;
    world.ask(Request::CloseConsumer { consumer }).unwrap();
    let producer = world.producer;
    world.ask(Request::CloseProducer { producer }).unwrap();
    world.ask(delete()).unwrap();
    assert!(matches!(
        world.ask(delete()),
        Err(RequestError::NotFound { .. })
    ));
}

proptest! {
    /// Any order of publish, attach, flow, ack, nack and close: the invariants of `check` hold after
    /// each step, and in the end every message is acked exactly once.
    #[test]
    fn nothing_is_lost_doubled_or_overrun(steps in prop::collection::vec((0u8..7, 0u32..4, 1u32..60), 1..120)) {
        let mut world = World::new();
        world.attach(9); // holds the subscription, never asks
        let mut ids: Vec<Option<ConsumerId>> = vec![None; 4];
        let (mut granted, mut open): (BTreeMap<ConsumerId, i64>, Vec<(ConsumerId, Position)>) = Default::default();
        let mut published = 0u64;
        for (op, who, n) in steps {
            match (op, ids[who as usize]) {
                (0 | 1, _) => { world.publish(2, n); published += 2 * u64::from(n); }
                (2, None) => ids[who as usize] = Some(world.attach(who)),
                (2 | 3, Some(id)) => { *granted.entry(id).or_default() += i64::from(n); world.flow(id, n); }
                (4, Some(id)) => if let Some(at) = open.iter().position(|held| held.0 == id) {
                    let (_, position) = open.remove(at);
                    world.ack(id, position);
                },
                (5, Some(id)) => if let Some(at) = open.iter().rposition(|held| held.0 == id) {
                    let (_, position) = open.remove(at);
                    world.nack(id, position);
                },
                (6, Some(id)) => { world.close(id); open.retain(|held| held.0 != id); ids[who as usize] = None; }
                _ => {}
            }
            world.settle();
            for (id, position, messages, _) in std::mem::take(&mut world.got) {
                open.push((id, position));
                let left = granted.get_mut(&id).unwrap();
                prop_assert!(*left > 0, "delivered without a permit");
                *left -= i64::from(messages);
            }
        }
        for id in ids.into_iter().flatten() { world.close(id); }
        world.got.clear(); // a close gives what was held to whoever still had permits
        let last = world.attach(0);
        let unacked = world.stats().backlog_messages;
        world.flow(last, 1_000_000);
        let rest: u64 = world.got.iter().map(|got| u64::from(got.2)).sum();
        prop_assert_eq!(rest, unacked);
        world.ack_all();
        let stats = world.stats();
        prop_assert_eq!((stats.backlog_messages, stats.acked_messages), (0, published));
    }
}
