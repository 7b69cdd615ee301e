//! explain(): each reason, since when, and that what ends it ends it (rules D144 and D145).

use pelton_storage::Durability;

use super::world::World;
use crate::keys::KeyRange;
use crate::{
    Backoff, CapScope, Event, KeyShared, Policy, Request, SeekTo, Subscribe, SubscriptionKind, Why,
};

fn world(kind: SubscriptionKind) -> World {
    let mut world = World::new();
    world.wish.kind = kind;
    world
}

/// The reasons alone.
fn whys(world: &mut World) -> Vec<Why> {
    world.why().into_iter().map(|(_, why)| why).collect()
}

fn kinds(world: &mut World) -> Vec<String> {
    let kind = |why: Why| {
        let value = serde_json::to_value(why).expect("it is a plain object");
        value["kind"].as_str().expect("it is tagged").to_owned()
    };
    whys(world).into_iter().map(kind).collect()
}

#[test]
fn caught_up_since_the_last_hand_over_with_the_last_position() {
    let mut world = world(SubscriptionKind::Shared);
    let c = world.attach(0);
    world.at_ms(5);
    world.publish(3, 1);
    world.flow(c, 10);
    let last = world.got[2].1;
    world.at_ms(9);
    let position = Some(last);
    assert_eq!(world.why(), [(5, Why::CaughtUp { position })]);
    world.publish(1, 1);
    world.settle();
    assert_eq!(world.why()[0].0, 9, "since without a break");
}

#[test]
fn no_consumer_since_the_last_one_left() {
    let mut world = world(SubscriptionKind::Shared);
    let c = world.attach(0);
    world.at_ms(7);
    world.close(c);
    world.publish(1, 1);
    world.settle();
    world.at_ms(11);
    assert_eq!(world.why(), [(7, Why::NoConsumer)]);
    world.attach(1);
    world.settle();
    assert!(!whys(&mut world).contains(&Why::NoConsumer));
}

#[test]
fn no_permits_shows_what_is_owed() {
    let mut world = world(SubscriptionKind::Shared);
    let (c, other) = (world.attach(0), world.attach(1));
    world.publish(3, 100);
    world.at_ms(4);
    world.flow(c, 20);
    world.at_ms(6);
    let of_c = Why::NoPermits {
        consumer: "c0".to_owned(),
        available: -80,
        granted: 20,
        delivered: 100,
        owed: 81,
    };
    assert_eq!(world.why()[0], (4, of_c.clone()));
    world.flow(other, 1_000);
    assert!(whys(&mut world).contains(&of_c), "one consumer's own");
    world.flow(c, 81);
    assert!(!kinds(&mut world).contains(&"no_permits".to_owned()));
}

#[test]
fn unacked_caps_of_a_consumer_and_of_the_subscription() {
    let mut world = world(SubscriptionKind::Shared);
    world.wish.capped = true;
    world.policy(Policy {
        max_unacked_messages_per_consumer: 10,
        max_unacked_messages_per_subscription: 15,
        ..Policy::default()
    });
    let (a, b) = (world.attach(0), world.attach(1));
    world.publish(40, 1);
    world.at_ms(3);
    world.flow(a, 100);
    let cap = |scope, unacked, limit, resume_at| Why::UnackedCap {
        scope,
        unacked,
        limit,
        resume_at,
    };
    let of_a = cap(CapScope::Consumer("c0".to_owned()), 10, 10, 5);
    assert_eq!(world.why()[0], (3, of_a.clone()));
    world.at_ms(8);
    world.flow(b, 100);
    let of_all = cap(CapScope::Subscription, 15, 15, 7);
    let why = world.why();
    assert_eq!(why[0], (8, of_all));
    assert!(why.contains(&(3, of_a)));
    world.ack_all();
    while world.stats().backlog_messages > 0 {
        world.ack_all();
    }
    assert_eq!(kinds(&mut world), ["caught_up"]);
}

#[test]
fn a_new_active_waits_for_what_the_old_one_holds() {
    let mut world = world(SubscriptionKind::Failover);
    (world.wish.name, world.wish.priority_level) = (Some("old".to_owned()), 1);
    let old = world.attach(0);
    world.publish(5, 1);
    world.flow(old, 100);
    (world.wish.name, world.wish.priority_level) = (Some("new".to_owned()), 0);
    world.at_ms(20);
    let new = world.attach(1);
    world.flow(new, 100);
    let waits = Why::FailoverWait {
        old: Some("old".to_owned()),
        new: "new".to_owned(),
        until_unix_ms: 1_020,
        old_unacked: 5,
    };
    assert_eq!(world.why()[0], (20, waits));
    world.close(old);
    assert_eq!(kinds(&mut world), ["caught_up"]);
}

/// Until what was published is durable: the first segment takes a few turns.
fn settle_all(world: &mut World) {
    for _ in 0..5 {
        world.settle();
    }
}

#[test]
fn what_is_not_durable_is_awaited() {
    let mut world = World::with(Durability::Synced);
    world.wish.capped = true;
    let c = world.attach(0);
    world.publish(1, 1);
    settle_all(&mut world);
    world.flow(c, 10);
    let next = pelton_storage::Position {
        entry: 1,
        ..world.got[0].1
    };
    world.disk.holds_syncs = true;
    world.publish(2, 1);
    world.settle();
    let position = Some(next);
    assert_eq!(whys(&mut world), [Why::AwaitDurable { position }]);
    world.disk.let_go(true);
    world.settle();
    assert_eq!(kinds(&mut world), ["caught_up"]);
}

/// A stored topic whose entries are on disk alone, and a consumer that wants them.
fn cold(holds_reads: bool) -> World {
    let mut world = World::with(Durability::Synced);
    world.attach(0);
    world.publish(3, 1);
    settle_all(&mut world);
    let mut world = World::reopen(world.disk, Durability::Synced);
    world.wish.capped = true;
    world.disk.holds_reads = holds_reads;
    let c = world.attach(0);
    world.at_ms(30);
    world.flow(c, 10);
    world
}

#[test]
fn an_entry_that_is_being_read_is_awaited() {
    let mut world = cold(true);
    let why = world.why();
    assert!(
        matches!(why[..], [(30, Why::AwaitDisk { position: Some(at) })] if at.entry == 0),
        "{why:?}"
    );
    world.disk.let_go(true);
    world.settle();
    assert_eq!(kinds(&mut world), ["caught_up"]);
}

#[test]
fn an_entry_that_cannot_be_read_is_told_of_for_good() {
    let mut world = World::with(Durability::Synced);
    world.attach(0);
    let odd = 0x5EED_F00D_5EED_F00D;
    // Enough commits of a page or more that the segment with the odd one is sealed.
    for sequence in (0..10).chain(odd..odd + 90) {
        world.sequence = sequence;
        world.publish(1, 1);
        settle_all(&mut world);
    }
    let mut disk = world.disk;
    disk.spoil(&u64::to_le_bytes(odd));
    let mut world = World::reopen(disk, Durability::Synced);
    world.wish.capped = true;
    let c = world.attach(0);
    world.at_ms(12);
    world.flow(c, 200);
    let damaged = world.why().pop();
    assert_eq!(damaged, Some((12, Why::Damaged { entries: 1 })));
    assert_eq!(world.got.len(), 99);
}

#[test]
fn a_redelivery_delay_says_when_it_ends() {
    let mut world = world(SubscriptionKind::Shared);
    world.wish.capped = true;
    let redelivery_backoff = Backoff {
        initial_ms: 50,
        ..Backoff::default()
    };
    world.policy(Policy {
        redelivery_backoff,
        ..Policy::default()
    });
    let c = world.attach(0);
    world.publish(2, 1);
    world.flow(c, 10);
    world.at_ms(100);
    let position = world.got[0].1;
    world.nack(c, position);
    world.settle();
    let delay = Why::RedeliveryDelay {
        entries: 1,
        next_due_unix_ms: 150,
    };
    assert_eq!(world.why(), [(100, delay)]);
    world.pass_ns(51_000_000);
    assert_eq!(kinds(&mut world), ["caught_up"]);
}

#[test]
fn a_seek_that_is_not_durable_and_a_log_that_failed() {
    let mut world = World::with(Durability::Synced);
    world.wish.capped = true;
    let c = world.attach(0);
    world.publish(3, 1);
    world.flow(c, 10);
    world.disk.holds_syncs = true;
    world.at_ms(40);
    let seek = Request::Seek {
        topic: world.topic,
        subscription: "s".to_owned(),
        to: SeekTo::Start(crate::InitialPosition::Earliest),
    };
    world.begin(seek);
    world.settle();
    assert_eq!(world.why()[0], (40, Why::Seeking));
    world.at_ms(50);
    world.disk.let_go(false);
    world.settle();
    world.replies.clear();
    let why = world.why();
    assert!(
        matches!(&why[0], (50, Why::LogPoisoned { error }) if error.contains("sync")),
        "{why:?}"
    );
    assert!(!why.iter().any(|why| why.1 == Why::Seeking));
}

// KeyShared.

fn halves() -> World {
    let mut world = world(SubscriptionKind::KeyShared);
    world.policy(Policy {
        subscription_key_shared_use_consistent_hashing: false,
        key_shared_look_ahead_msg_in_replay_threshold_per_consumer: 4,
        ..Policy::default()
    });
    world
}

#[test]
fn a_key_that_moved_waits_for_its_old_owner() {
    let mut world = halves();
    let c0 = world.attach(0);
    world.publish_keyed(100, 2);
    world.flow(c0, 10);
    let c1 = world.attach(1); // takes the lower half
    world.flow(c1, 10);
    world.publish_keyed(100, 1);
    world.settle();
    let draining = Why::KeyDraining {
        hash: 100,
        old_owner: "c0".to_owned(),
        new_owner: Some("c1".to_owned()),
        left: 2,
    };
    assert!(whys(&mut world).contains(&draining));
    world.ack_all();
    assert_eq!(kinds(&mut world), ["caught_up"]);
}

#[test]
fn keys_of_an_owner_without_permits_fill_the_look_ahead() {
    let mut world = halves();
    let (c0, c1) = (world.attach(0), world.attach(1));
    world.flow(c1, 100);
    for _ in 0..20 {
        world.publish_keyed(60_000, 1);
    }
    world.settle();
    let why = whys(&mut world);
    let full = Why::KeyLookAheadFull {
        in_replay: 8,
        limit: 8,
        hottest_hash: Some(60_000),
        hottest_share: 1.0,
    };
    assert!(why.contains(&full), "{why:?}");
    let blocked = why.iter().find_map(|why| match why {
        Why::KeyBlocked {
            hash,
            owner,
            owner_reason,
            position: Some(_),
        } => Some((*hash, owner.as_str(), *owner_reason)),
        _ => None,
    });
    assert_eq!(blocked, Some((60_000, "c0", "no_permits")), "{why:?}");
    world.flow(c0, 100);
    assert_eq!(kinds(&mut world), ["caught_up"]);
}

#[test]
fn a_key_that_nobody_asked_for_has_no_owner() {
    let mut world = world(SubscriptionKind::KeyShared);
    let range = |first, last| KeyShared {
        ranges: vec![KeyRange { first, last }],
        ..KeyShared::default()
    };
    world.wish.key_shared = range(0, 99);
    let c = world.attach(0);
    world.flow(c, 10);
    world.publish_keyed(150, 1);
    world.settle();
    assert!(whys(&mut world).contains(&Why::KeyNoOwner { hash: 150 }));
    world.wish.key_shared = range(100, 199);
    let other = world.attach(1);
    world.flow(other, 10);
    assert_eq!(kinds(&mut world), ["caught_up"]);
}

#[test]
fn asking_changes_nothing_and_one_topic_can_be_asked_for() {
    let mut world = world(SubscriptionKind::Shared);
    let c = world.attach(0);
    let latest = |asked: &mut Subscribe| asked.kind = SubscriptionKind::Exclusive;
    world.subscribe("other", 1, latest).unwrap();
    world.publish(3, 1);
    world.flow(c, 2);
    let before = world.broker.stats();
    for topic in [None, Some(world.topic)] {
        let Ok(crate::Reply::Explain(all)) = world.ask(Request::Explain { topic }) else {
            panic!("no explanation")
        };
        let names: Vec<_> = all.iter().map(|one| &*one.subscription).collect();
        assert_eq!(names, ["s", "other"]);
    }
    world.send(Event::Tick);
    assert_eq!(world.broker.stats(), before);
    let topic = Some(crate::TopicId(77));
    let nothing = world.ask(Request::Explain { topic });
    assert!(matches!(nothing, Ok(crate::Reply::Explain(all)) if all.is_empty()));
}

#[test]
fn reasons_read_as_the_specification_has_them() {
    let why = Why::NoPermits {
        consumer: "c".to_owned(),
        available: -80,
        granted: 20,
        delivered: 100,
        owed: 81,
    };
    let reason = crate::Reason {
        since_unix_ms: 5,
        why,
    };
    let json = serde_json::to_value(reason).unwrap();
    let expected = serde_json::json!({
        "sinceUnixMs": 5, "kind": "no_permits", "consumer": "c", "available": -80,
        "granted": 20, "delivered": 100, "owed": 81,
    });
    assert_eq!(json, expected);
    let position = Some(pelton_storage::Position {
        ledger: 3,
        entry: 9,
    });
    let json = serde_json::to_value(Why::CaughtUp { position }).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"kind": "caught_up", "position": "3:9"})
    );
}
