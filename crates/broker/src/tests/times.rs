//! Times of entries: to deliver at, deadlines, time to live; to the millisecond of the wall clock.

use pelton_storage::Durability;

use super::world::World;
use crate::{ConsumerId, Outcome, Policy, Publish, Refusal, Request, SeekTo, SubscriptionKind};

const SECOND_NS: u64 = 1_000_000_000;

/// Caps, delays and deadlines hold up a backlog beside permits.
fn world(kind: SubscriptionKind, durability: Durability) -> World {
    let mut world = World::with(durability);
    world.wish.kind = kind;
    world.wish.capped = true;
    world
}

fn shared() -> World {
    world(SubscriptionKind::Shared, Durability::Memory)
}

fn at(deliver_at_ms: u64) -> impl FnOnce(&mut Publish<'_>) {
    move |entry| entry.deliver_at_ms = deliver_at_ms
}

fn until(deadline_ms: u64) -> impl FnOnce(&mut Publish<'_>) {
    move |entry| entry.deadline_ms = deadline_ms
}

fn entries(world: &mut World) -> Vec<u64> {
    let got = world.take_entries();
    got.into_iter().map(|(_, entry)| entry).collect()
}

fn ttl(seconds: u64) -> Policy {
    Policy {
        message_ttl_seconds: seconds,
        ..Policy::default()
    }
}

#[test]
fn t52_sent_at_its_millisecond_and_not_before() {
    for kind in [SubscriptionKind::Shared, SubscriptionKind::KeyShared] {
        let mut world = world(kind, Durability::Memory);
        let c = world.attach(0);
        world.flow(c, 10);
        world.publish_with(at(1_234));
        world.settle();
        assert_eq!(world.pass_until_ms(1_233), 0);
        assert_eq!(
            (world.stats().delayed_entries, world.permits("c0")),
            (1, 10)
        );
        assert_eq!(world.pass_until_ms(1_234), 1);
        assert_eq!((world.stats().delayed_entries, world.permits("c0")), (0, 9));
    }
}

#[test]
fn t52_entries_of_one_instant_come_in_position_order_and_behind_what_is_lower() {
    let mut world = shared();
    let c = world.attach(0);
    for n in 0..5_000 {
        world.publish_with(at(1_234 - n % 3)); // the later ones are due earlier
    }
    world.settle();
    assert_eq!(world.stats().delayed_entries, 5_000);
    world.pass_until_ms(2_000);
    world.flow(c, 10_000);
    assert_eq!(entries(&mut world), (0..5_000).collect::<Vec<_>>());
}

#[test]
fn an_entry_that_waits_for_its_time_holds_up_neither_others_nor_its_key() {
    let mut world = world(SubscriptionKind::KeyShared, Durability::Memory);
    let c = world.attach(0);
    world.flow(c, 10);
    for deliver_at_ms in [5_000, 0, 3_000, 0] {
        world.publish_with(|entry| {
            entry.key_hash = 7;
            entry.deliver_at_ms = deliver_at_ms;
        });
    }
    world.settle();
    assert_eq!(entries(&mut world), [1, 3]);
    world.pass_until_ms(4_999);
    assert_eq!(entries(&mut world), [2]);
    world.pass_until_ms(5_000);
    assert_eq!(entries(&mut world), [0]);
}

#[test]
fn a_step_of_the_wall_clock_is_noticed_within_a_second() {
    let mut world = shared();
    let c = world.attach(0);
    world.flow(c, 10);
    world.publish_with(at(10_000));
    world.publish_with(at(20_000));
    world.settle();
    world.now.wall_ms = 15_000;
    assert_eq!(world.settle(), 1, "in the first turn");
    world.now.wall_ms = 5_000;
    assert_eq!(
        world.pass_ns(14 * SECOND_NS),
        0,
        "and a step back waits again"
    );
    assert_eq!(world.pass_ns(SECOND_NS), 1);
    // Of a shard that sleeps, the next look is never farther away than that.
    world.publish_with(at(1_000_000));
    world.settle();
    let next_ns = world.broker.next_deadline().unwrap();
    assert!(next_ns <= world.now.mono_ns + SECOND_NS);
}

#[test]
fn exclusive_and_failover_deliver_at_once_and_in_order() {
    for kind in [SubscriptionKind::Exclusive, SubscriptionKind::Failover] {
        let mut world = world(kind, Durability::Memory);
        let c = world.attach(0);
        for deliver_at_ms in [9_000, 0, 8_000] {
            world.publish_with(at(deliver_at_ms));
        }
        world.flow(c, 10);
        assert_eq!(entries(&mut world), [0, 1, 2]);
    }
}

#[test]
fn what_waits_goes_at_once_when_nobody_heeds_its_time_any_more() {
    let mut world = shared();
    let c = world.attach(0);
    world.flow(c, 10);
    world.publish_with(at(9_000));
    world.settle();
    let policy = Policy {
        delayed_delivery_enabled: false,
        ..Policy::default()
    };
    assert_eq!(world.policy(policy), 1);
    world.policy(Policy::default());
    world.publish_with(at(9_000));
    world.settle();
    world.close(c);
    let c = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    world.got.clear();
    world.flow(c, 10);
    assert_eq!(entries(&mut world), [0, 1]);
}

#[test]
fn an_index_that_is_full_lets_unread_entries_wait_and_loses_none() {
    let mut world = shared();
    let c = world.attach(0);
    world.policy(Policy {
        delayed_delivery_max_entries_per_subscription: 2,
        ..Policy::default()
    });
    world.flow(c, 10);
    for deliver_at_ms in [2_000, 3_000, 4_000, 0] {
        world.publish_with(at(deliver_at_ms));
    }
    world.settle();
    assert_eq!(world.stats().delayed_entries, 2);
    assert_eq!(entries(&mut world), [0; 0]);
    world.pass_until_ms(2_000);
    assert_eq!(entries(&mut world), [0, 3]);
    world.pass_until_ms(4_000);
    assert_eq!(entries(&mut world), [1, 2]);
}

#[test]
fn a_delay_beyond_what_the_policy_allows_is_refused() {
    let mut world = shared();
    world.policy(Policy {
        delayed_delivery_max_delay_in_millis: 1_000,
        ..Policy::default()
    });
    let now_ms = world.now.wall_ms;
    world.publish_with(at(now_ms + 1_001));
    world.publish_with(at(now_ms + 1_000));
    world.settle();
    let outcomes: Vec<Outcome> = world.receipts.iter().map(|r| r.outcome).collect();
    assert_eq!(outcomes[0], Outcome::Refused(Refusal::DelayTooLong));
    assert!(matches!(outcomes[1], Outcome::Stored(_)));
}

#[test]
fn after_a_restart_delayed_entries_are_known_again_and_none_is_read() {
    let mut world = world(SubscriptionKind::Shared, Durability::Synced);
    world.attach(0);
    for n in 0..1_000u64 {
        world.publish_with(at(if n == 500 { 0 } else { 50_000 + n }));
    }
    world.settle();
    world.publish_with(until(60_000));
    world.settle();
    let mut again = World::reopen(world.disk, Durability::Synced);
    again.wish.capped = true;
    again.attach(0);
    again.pass_until_ms(49_999);
    assert_eq!(again.stats().delayed_entries, 500, "up to one that may go");
    assert_eq!(again.broker.log().stats().reads, 0);
    let c = again.attach(1);
    assert_eq!(again.flow(c, 10_000), 2);
    assert_eq!(again.stats().delayed_entries, 999);
    again.ack_all();
    again.got.clear();
    again.pass_until_ms(50_999);
    let got = entries(&mut again);
    assert!(got.into_iter().eq((0..1_000).filter(|&n| n != 500)));
}

// Time to live.

#[test]
fn t53_expired_entries_make_room_although_nobody_acks() {
    let mut world = shared();
    let c = world.attach(0);
    world.policy(Policy {
        max_unacked_messages_per_consumer: 10,
        ..ttl(5)
    });
    world.flow(c, 100);
    world.publish(10, 1);
    assert_eq!(world.settle(), 10);
    let first = world.got[0].1;
    assert_eq!(world.pass_until_ms(5_000), 0);
    world.publish(10, 1);
    world.settle();
    assert_eq!(world.pass_until_ms(6_001), 10);
    let stats = world.stats();
    let counts = (
        stats.unacked_messages,
        stats.backlog_messages,
        stats.acked_messages,
    );
    assert_eq!((counts, stats.expired_messages), ((10, 10, 0), 10));
    world.ack(c, first);
    world.settle();
    assert_eq!(
        world.stats().unacked_messages,
        10,
        "a late ack changes nothing"
    );
    world.ack_all();
    let stats = world.stats();
    assert_eq!((stats.backlog_messages, stats.acked_messages), (0, 10));
}

#[test]
fn nothing_is_handed_over_once_its_time_to_live_is_over() {
    for kind in [
        SubscriptionKind::Exclusive,
        SubscriptionKind::Shared,
        SubscriptionKind::KeyShared,
    ] {
        let mut world = world(kind, Durability::Memory);
        let c = world.attach(0);
        world.policy(ttl(5));
        world.publish(300, 1);
        let published_ms = world.now.wall_ms;
        world.pass_until_ms(published_ms + 4_999);
        assert_eq!(world.flow(c, 1), 1);
        // Not the sweep: no turn has passed when the permits come.
        world.now.wall_ms = published_ms + 5_000;
        assert_eq!(world.flow(c, 1_000), 0, "{kind:?}");
        world.publish(1, 1);
        assert_eq!(world.settle(), 1);
    }
}

#[test]
fn what_comes_back_after_its_time_to_live_is_not_handed_over_again() {
    let mut world = shared();
    let c = world.attach(0);
    world.policy(ttl(5));
    world.flow(c, 10);
    world.publish(1, 3);
    world.settle();
    let position = world.got[0].1;
    world.now.wall_ms += 5_000;
    world.nack(c, position);
    assert_eq!(world.settle(), 0);
    let stats = world.stats();
    assert_eq!((stats.expired_messages, stats.backlog_messages), (3, 0));
}

#[test]
fn a_topic_without_times_has_no_alarm() {
    let mut world = shared();
    let c = world.attach(0);
    world.publish(10, 1);
    world.flow(c, 5);
    assert_eq!(world.broker.next_deadline(), None);
    world.policy(ttl(5));
    assert!(world.broker.next_deadline().is_some());
    world.ack_all();
    world.flow(c, 5);
    world.ack_all();
    world.pass_ns(20 * SECOND_NS);
    assert_eq!(
        world.broker.next_deadline(),
        None,
        "nor one with nothing left"
    );
}

// Deadlines.

#[test]
fn t54_dropped_within_a_second_of_its_deadline_without_permits() {
    let mut world = world(SubscriptionKind::Shared, Durability::Synced);
    world.attach(0);
    for _ in 0..10 {
        world.publish_with(until(5_000));
    }
    world.publish(1, 1);
    world.settle();
    world.pass_until_ms(4_999);
    assert_eq!(world.stats().backlog_messages, 11);
    let reads = world.broker.log().stats().reads;
    world.pass_until_ms(6_000);
    let stats = world.stats();
    assert_eq!(
        (stats.backlog_messages, stats.deadline_dropped_messages),
        (1, 10)
    );
    assert_eq!((stats.delivered_messages, world.permits("c0")), (0, 0));
    assert_eq!(world.broker.log().stats().reads, reads);
    // And for good.
    let mut again = World::reopen(world.disk, Durability::Synced);
    again.attach(0);
    assert_eq!(again.stats().backlog_messages, 1);
}

#[test]
fn a_pending_entry_outlives_its_deadline_and_does_not_come_again() {
    let mut world = shared();
    let c = world.attach(0);
    world.flow(c, 10);
    world.publish_with(until(2_000));
    world.publish_with(until(2_000));
    world.settle();
    world.pass_until_ms(9_000);
    let stats = world.stats();
    assert_eq!(
        (stats.unacked_messages, stats.deadline_dropped_messages),
        (2, 0)
    );
    let (first, second) = (world.got[0].1, world.got[1].1);
    world.ack(c, first);
    world.nack(c, second);
    assert_eq!(world.settle(), 0);
    let stats = world.stats();
    assert_eq!(
        (stats.acked_messages, stats.deadline_dropped_messages),
        (1, 1)
    );
}

#[test]
fn the_policy_gives_every_entry_a_deadline_and_the_earlier_one_counts() {
    let mut world = shared();
    let c = world.attach(0);
    world.policy(Policy {
        max_delivery_lag_millis: 3_000,
        ..Policy::default()
    });
    world.publish(1, 1);
    world.publish_with(until(1_000));
    world.publish_with(until(100_000));
    world.settle();
    world.pass_until_ms(2_000);
    assert_eq!(world.stats().deadline_dropped_messages, 1);
    world.publish(1, 1);
    world.pass_until_ms(4_500);
    assert_eq!(world.stats().deadline_dropped_messages, 3);
    world.flow(c, 10);
    assert_eq!(entries(&mut world), [3]);
}

#[test]
fn a_deadline_ends_a_wait_for_a_later_time_as_well() {
    let mut world = shared();
    let c = world.attach(0);
    world.flow(c, 10);
    world.publish_with(|entry| {
        entry.deliver_at_ms = 10_000;
        entry.deadline_ms = 2_000;
    });
    world.settle();
    assert_eq!(world.stats().delayed_entries, 1);
    world.pass_until_ms(3_000);
    let stats = world.stats();
    assert_eq!(
        (stats.delayed_entries, stats.deadline_dropped_messages),
        (0, 1)
    );
    assert_eq!(world.pass_until_ms(20_000), 0);
}

#[test]
fn a_seek_brings_times_back_into_force() {
    let mut world = shared();
    let c = world.attach(0);
    let keeper = world.subscribe("keeper", 8, |_| {}).unwrap();
    world.publish_with(at(1_500));
    world.publish_with(until(2_000));
    world.publish(1, 1);
    world.pass_until_ms(3_000);
    world.flow(c, 10);
    assert_eq!(entries(&mut world), [0, 2]);
    // The keeper never asked: the first is still there, and the clock steps back.
    world.now.wall_ms = 1_000;
    let (topic, subscription) = (world.topic, "s".to_owned());
    let to = SeekTo::Start(crate::InitialPosition::Earliest);
    world
        .ask(Request::Seek {
            topic,
            subscription,
            to,
        })
        .unwrap();
    world.settle();
    let again: ConsumerId = world.resets[0].1;
    world.flow(again, 10);
    assert_eq!(entries(&mut world), [1, 2], "the one that waits again");
    world.pass_until_ms(1_500);
    assert_eq!(entries(&mut world), [0]);
    world.close(keeper);
}
