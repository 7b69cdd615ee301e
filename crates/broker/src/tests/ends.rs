//! Terminated and non-persistent topics (rules D132 and D138).

use pelton_storage::Durability;

use super::world::World;
use crate::{
    InitialPosition, OpenProducer, Outcome, Refusal, Reply, Request, RequestError, SeekTo,
    SubscriptionKind,
};

fn terminate(world: &mut World) {
    let topic = world.topic;
    let done = world.ask(Request::Terminate { topic });
    assert!(matches!(done, Ok(Reply::Done)), "{done:?}");
    world.settle();
}

fn seek(world: &World, to: InitialPosition) -> Request {
    Request::Seek {
        topic: world.topic,
        subscription: "s".to_owned(),
        to: to.into(),
    }
}

#[test]
fn a_terminated_topic_serves_its_backlog_and_says_when_it_ends() {
    let mut world = World::new();
    let (a, b) = (world.attach(0), world.attach(1));
    world.subscribe("keeper", 9, |_| {}).unwrap();
    world.publish(4, 1);
    terminate(&mut world);
    world.receipts.clear();
    world.publish(1, 1);
    world.settle();
    let outcome = world.receipts[0].outcome;
    assert_eq!(outcome, Outcome::Refused(Refusal::Terminated));
    let refused = world.ask(OpenProducer::shared(world.topic, "late").into());
    assert!(matches!(refused, Err(RequestError::Terminated { .. })));
    world.flow(a, 3);
    world.flow(b, 3);
    assert_eq!((world.got.len(), world.ended.len()), (4, 0));
    world.ack_all();
    assert_eq!(world.ended, [a, b]);
    world.flow(a, 1);
    assert_eq!(world.ended.len(), 2, "once for each attachment");
    let c = world.attach(2);
    assert_eq!(world.ended[2..], [c]);
    // Back again, and to the end again: new attachments.
    world.ask(seek(&world, InitialPosition::Earliest)).unwrap();
    world.settle();
    assert_eq!(world.ended.len(), 3);
    world.ask(seek(&world, InitialPosition::Latest)).unwrap();
    assert_eq!(world.ended.len(), 6);
    let stats = world.broker.stats();
    assert!(stats.topics[0].terminated);
}

#[test]
fn a_topic_stays_terminated_after_a_restart() {
    let mut world = World::with(Durability::Synced);
    let c = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    world.publish(2, 1);
    world.settle();
    terminate(&mut world);
    terminate(&mut world);
    assert!(world.ended.is_empty());
    world.close(c);
    let mut world = World::reopen(world.disk, Durability::Synced);
    assert!(world.broker.stats().topics[0].terminated);
    let c = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    world.flow(c, 10);
    assert_eq!((world.got.len(), world.ended.len()), (2, 0));
    world.ack_all();
    assert_eq!(world.ended, [c]);
}

#[test]
fn a_non_persistent_entry_goes_to_who_can_take_it_or_nobody() {
    let mut world = World::with(Durability::NonPersistent);
    let c = world.attach(0);
    let other = world.subscribe("other", 1, |_| {}).unwrap();
    world.flow(c, 3);
    world.publish(5, 1);
    assert_eq!(world.settle(), 3);
    assert_eq!(world.receipts.len(), 1);
    let receipts = world.receipts[0];
    assert_eq!((receipts.count, receipts.outcome), (5, Outcome::Unstored));
    let stats = world.broker.stats();
    let topic = &stats.topics[0];
    let counts: Vec<(u64, u64)> = topic
        .subscriptions
        .iter()
        .map(|sub| (sub.delivered_messages, sub.dropped_messages))
        .collect();
    assert_eq!((counts, topic.entries), (vec![(3, 2), (0, 5)], 0));
    let stats = world.stats();
    assert_eq!((stats.unacked_messages, stats.backlog_messages), (0, 0));
    // Nothing is owed: neither acks nor nacks nor grants bring any of it back.
    let (_, position, ..) = world.got[0];
    world.nack(c, position);
    world.ack(c, position);
    world.flow(other, 100);
    assert_eq!(world.flow(c, 1), 0);
    world.publish(1, 10);
    assert_eq!((world.settle(), world.permits("c0")), (2, -9));
    let refused = world.ask(seek(&world, InitialPosition::Earliest));
    assert!(matches!(refused, Err(RequestError::NotPossible { .. })));
    let topic = world.topic;
    let refused = world.ask(Request::Terminate { topic });
    assert!(matches!(refused, Err(RequestError::NotPossible { .. })));
}

#[test]
fn non_persistent_entries_are_shared_out_by_kind() {
    for kind in [
        SubscriptionKind::Shared,
        SubscriptionKind::Failover,
        SubscriptionKind::KeyShared,
    ] {
        let mut world = World::with(Durability::NonPersistent);
        world.wish.kind = kind;
        let ids = [world.attach(0), world.attach(1)];
        for id in ids {
            world.flow(id, 1_000);
        }
        for entry in 0..100 {
            world.publish_keyed(1 + entry % 10, 1);
            world.settle();
        }
        let mut entries: Vec<u64> = world.got.iter().map(|got| got.1.entry).collect();
        entries.sort_unstable();
        assert_eq!(entries, (0..100).collect::<Vec<_>>(), "{kind:?}");
        let shares = ids.map(|id| world.got.iter().filter(|got| got.0 == id).count());
        match kind {
            SubscriptionKind::Shared => assert_eq!(shares, [50, 50]),
            SubscriptionKind::Failover => assert!(shares.contains(&100)),
            _ => assert_eq!(shares[0] % 10, 0, "a key has one owner"),
        }
    }
}

#[test]
fn a_seek_of_nobody_is_refused() {
    let mut world = World::new();
    let to: SeekTo = InitialPosition::Latest.into();
    let (topic, subscription) = (world.topic, "nobody".to_owned());
    let refused = world.ask(Request::Seek {
        topic,
        subscription,
        to,
    });
    assert!(matches!(refused, Err(RequestError::NotFound { .. })));
}
