//! Seeks, initial positions, and subscriptions that are not kept (rules D127, D133 to D137).

use pelton_storage::{Durability, Position};
use proptest::prelude::*;

use super::world::World;
use crate::{
    ConsumerId, Event, InitialPosition, Policy, Reply, Request, RequestError, SeekTo,
    SubscriptionKind,
};

const EARLIEST: SeekTo = SeekTo::Start(InitialPosition::Earliest);
const LATEST: SeekTo = SeekTo::Start(InitialPosition::Latest);

/// A topic whose entries are kept by a subscription that nobody reads, and a consumer of "s".
fn kept(durability: Durability) -> (World, ConsumerId) {
    let mut world = World::with(durability);
    let consumer = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    world.subscribe("keeper", 9, |_| {}).unwrap();
    (world, consumer)
}

fn seek(to: SeekTo, world: &World) -> Request {
    Request::Seek {
        topic: world.topic,
        subscription: "s".to_owned(),
        to,
    }
}

/// Seeks, and gives what the attachment has become.
fn sought(world: &mut World, to: SeekTo) -> ConsumerId {
    let done = world.ask(seek(to, world));
    assert!(matches!(done, Ok(Reply::Done)), "{done:?}");
    world.settle();
    world.resets.last().expect("it is attached").1
}

fn entries(world: &mut World) -> Vec<u64> {
    let taken = world.take_entries();
    taken.into_iter().map(|(_, entry)| entry).collect()
}

fn at_entry(position: Position) -> SeekTo {
    SeekTo::Start(InitialPosition::At(position))
}

#[test]
fn a_seek_back_brings_what_it_names_first_and_all_behind_it() {
    let (mut world, old) = kept(Durability::Memory);
    world.publish(1_000, 1);
    world.flow(old, 600);
    let target = world.got[100].1;
    let late = world.got[400].1;
    world.ack_all();
    world.flow(old, 100);
    world.got.clear();
    let new = sought(&mut world, at_entry(target));
    assert_eq!(world.resets, [(old, new)]);
    assert!(world.got.is_empty(), "the permits of before are gone");
    world.ack(old, late);
    world.nack(old, late);
    world.send(Event::AckCumulative {
        consumer: old,
        position: late,
        still: &[],
    });
    world.settle();
    let stats = world.stats();
    assert_eq!(
        (
            stats.backlog_messages,
            stats.backlog_entries,
            stats.unacked_messages
        ),
        (900, 900, 0),
        "acks of before change nothing"
    );
    world.flow(new, 1_000);
    assert_eq!(entries(&mut world), (100..1_000).collect::<Vec<_>>());
    assert_eq!(world.permits("c0"), 100);
}

#[test]
fn a_seek_forth_passes_over_what_was_held_and_owed() {
    let mut world = World::new();
    let (a, b) = (world.attach(0), world.attach(1));
    world.subscribe("keeper", 9, |_| {}).unwrap();
    world.publish(10, 3);
    world.flow(a, 12);
    let positions: Vec<Position> = world.got.iter().map(|got| got.1).collect();
    world.nack(a, positions[0]);
    world.send(Event::Nack {
        consumer: a,
        position: positions[1],
        delay_ns: Some(1_000_000),
    });
    world.settle();
    assert_eq!(world.stats().replay_entries, 1);
    let last = Position {
        entry: 8,
        ..positions[0]
    };
    sought(&mut world, at_entry(last));
    let stats = world.stats();
    assert_eq!(
        (
            stats.backlog_messages,
            stats.unacked_messages,
            stats.replay_entries
        ),
        (6, 0, 0)
    );
    world.got.clear();
    let news: Vec<ConsumerId> = world.resets.iter().map(|reset| reset.1).collect();
    assert_eq!((news[0].slot, news[1].slot), (a.slot, b.slot));
    world.flow(news[0], 100);
    assert_eq!(entries(&mut world), [8, 9]);
    assert_eq!(
        world.pass_ns(10_000_000),
        0,
        "nor does the delayed one come"
    );
    // Back again: counts were cleared.
    sought(&mut world, EARLIEST);
    let new = world.resets[3].1;
    world.flow(new, 100);
    assert!(world.got.iter().all(|got| got.3 == 0));
    assert_eq!(entries(&mut world), (0..10).collect::<Vec<_>>());
}

#[test]
fn a_seek_into_a_batch_starts_at_its_message() {
    let (mut world, c) = kept(Durability::Memory);
    world.publish(2, 300);
    world.flow(c, 1_000);
    let position = world.got[0].1;
    world.ack_all();
    let index = 151;
    let c = sought(&mut world, SeekTo::Message { position, index });
    assert_eq!(world.stats().backlog_messages, 149 + 300);
    world.flow(c, 1_000);
    let (at, still) = &world.parts[0];
    assert_eq!((*at, still.len()), (position, 5));
    let named = (0..300).filter(|i| still[i / 64] >> (i % 64) & 1 == 1);
    assert!(named.eq(151..300));
    assert_eq!(world.permits("c0"), 1_000 - 449);
    let still = vec![0b101].into();
    sought(&mut world, SeekTo::Part { position, still });
    assert_eq!(world.stats().backlog_messages, 2 + 300);
    sought(
        &mut world,
        SeekTo::Message {
            position,
            index: 300,
        },
    );
    assert_eq!(world.stats().backlog_messages, 300, "the batch ends before");
    sought(&mut world, SeekTo::Message { position, index: 0 });
    assert_eq!(world.stats().backlog_messages, 600);
}

#[test]
fn a_seek_by_time_finds_the_first_in_the_order_of_positions() {
    let (mut world, _) = kept(Durability::Memory);
    for time_ms in [2, 1, 3, 5, 4, 6] {
        world.now.wall_ms = time_ms;
        world.publish(1, 1);
    }
    world.settle();
    for (time_ms, backlog) in [(5, 3), (1, 6), (2, 6), (3, 4), (6, 1), (7, 0)] {
        sought(&mut world, SeekTo::Start(InitialPosition::Since(time_ms)));
        assert_eq!(world.stats().backlog_messages, backlog, "since {time_ms}");
    }
}

#[test]
fn what_was_acked_out_of_order_comes_again_after_a_seek_to_the_start() {
    let (mut world, c) = kept(Durability::Memory);
    world.publish(50, 1);
    world.flow(c, 50);
    for entry in [10, 20, 30] {
        let position = world.got[entry].1;
        world.ack(c, position);
    }
    world.settle();
    world.got.clear();
    let c = sought(&mut world, EARLIEST);
    world.flow(c, 100);
    assert_eq!(entries(&mut world), (0..50).collect::<Vec<_>>());
    let c = sought(&mut world, LATEST);
    world.flow(c, 100);
    assert_eq!(
        (entries(&mut world).len(), world.stats().backlog_messages),
        (0, 0)
    );
}

#[test]
fn a_consumer_at_its_cap_goes_on_after_a_seek() {
    let mut world = World::new();
    world.wish.capped = true;
    let c = world.attach(0);
    world.subscribe("keeper", 9, |_| {}).unwrap();
    world.policy(Policy {
        max_unacked_messages_per_consumer: 5,
        ..Policy::default()
    });
    world.publish(20, 1);
    assert_eq!(world.flow(c, 100), 5);
    let c = sought(&mut world, EARLIEST);
    assert_eq!(world.flow(c, 100), 5);
}

#[test]
fn a_key_shared_subscription_begins_again_in_key_order() {
    let mut world = World::new();
    world.wish.kind = SubscriptionKind::KeyShared;
    let (a, _b) = (world.attach(0), world.attach(1));
    world
        .subscribe("keeper", 9, |asked| asked.kind = SubscriptionKind::Shared)
        .unwrap();
    for entry in 0..40 {
        world.publish_keyed(1 + entry % 4, 1);
    }
    world.flow(a, 100); // the keys of the other one wait
    sought(&mut world, EARLIEST);
    world.got.clear();
    let news: Vec<ConsumerId> = world.resets.iter().map(|reset| reset.1).collect();
    for new in news {
        world.flow(new, 100);
    }
    let mut got = entries(&mut world);
    got.sort_unstable();
    assert_eq!(got, (0..40).collect::<Vec<_>>());
    assert_eq!(world.stats().unacked_messages, 40);
}

#[test]
fn a_late_close_by_an_old_name_still_closes_it() {
    let (mut world, old) = kept(Durability::Memory);
    sought(&mut world, EARLIEST);
    let new = sought(&mut world, EARLIEST);
    world.close(old);
    assert!(world.stats().consumers.is_empty());
    // The slot's next life is not of the same name.
    let next = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    world.close(new);
    assert_eq!(world.stats().consumers.len(), 1);
    world.close(next);
}

/// Case SEEK-FLOW-RACE: the reset is stopped where it waits for the disk.
#[test]
fn seek_flow_race() {
    let (mut world, old) = kept(Durability::Synced);
    world.publish(1_000, 1);
    world.settle();
    world.flow(old, 600);
    let (target, queued) = (world.got[100].1, world.got[599].1);
    for (_, position, ..) in std::mem::take(&mut world.got) {
        world.ack(old, position);
    }
    world.settle();
    let _rung = world.granters.get_mut(&old).map(|g| g.grant(100)).unwrap();
    world.disk.holds_syncs = true;
    world.send(Event::AckCumulative {
        consumer: old,
        position: queued,
        still: &[],
    });
    world.begin(seek(at_entry(target), &world));
    world.settle();
    assert!(world.stats().seeking && world.replies.is_empty());
    let new = world.resets[0].1;
    let cumulative = |consumer| Event::AckCumulative {
        consumer,
        position: queued,
        still: &[],
    };
    world.send(cumulative(old));
    world.send(cumulative(new));
    assert_eq!(world.flow(new, 100), 0, "nothing while it is under way");
    let other = world.try_attach(1, SubscriptionKind::Exclusive);
    assert!(matches!(other, Err(RequestError::ConsumerBusy { .. })));
    world.disk.let_go(true);
    world.settle();
    assert!(matches!(world.replies.pop(), Some(Ok(Reply::Done))));
    assert_eq!(entries(&mut world), (100..200).collect::<Vec<_>>());
    world.send(cumulative(old));
    world.settle();
    assert_eq!(world.stats().backlog_messages, 900);

    let mut world = World::reopen(world.disk, Durability::Synced);
    let c = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    assert_eq!(world.stats().backlog_messages, 900);
    world.flow(c, 1_000);
    world.flow(c, 1_000);
    assert_eq!(entries(&mut world), (100..1_000).collect::<Vec<_>>());
}

#[test]
fn a_seek_that_fails_moves_nothing() {
    let (mut world, c) = kept(Durability::Synced);
    world.publish(20, 1);
    world.settle();
    world.flow(c, 10);
    let target = world.got[2].1;
    for (_, position, ..) in world.got.drain(..5).collect::<Vec<_>>() {
        world.ack(c, position);
    }
    world.settle();
    world.got.clear();
    world.disk.holds_syncs = true;
    world.begin(seek(at_entry(target), &world));
    world.settle();
    world.disk.let_go(false);
    world.settle();
    assert!(matches!(
        world.replies.pop(),
        Some(Err(RequestError::Poisoned { .. }))
    ));
    let stats = world.stats();
    assert_eq!((stats.backlog_messages, stats.seeking), (15, false));
    let new = world.resets[0].1;
    world.flow(new, 100);
    assert_eq!(entries(&mut world), (5..20).collect::<Vec<_>>());
    let refused = world.ask(seek(EARLIEST, &world));
    assert!(matches!(refused, Err(RequestError::Poisoned { .. })));
}

#[test]
fn of_seeks_that_queue_the_last_one_wins() {
    let (mut world, c) = kept(Durability::Synced);
    world.publish(20, 1);
    world.settle();
    world.flow(c, 20);
    let positions: Vec<Position> = world.got.drain(..).map(|got| got.1).collect();
    world.disk.holds_syncs = true;
    for entry in [15, 3, 7] {
        world.begin(seek(at_entry(positions[entry]), &world));
        world.settle();
    }
    world.disk.let_go(true);
    world.settle();
    assert_eq!(world.replies.drain(..).filter(Result::is_ok).count(), 3);
    let new = world.resets[2].1;
    world.flow(new, 100);
    assert_eq!(entries(&mut world), (7..20).collect::<Vec<_>>());
    let world = World::reopen(world.disk, Durability::Synced);
    let stats = world.broker.stats();
    let sub = stats.topics[0]
        .subscriptions
        .iter()
        .find(|sub| sub.name == "s");
    assert_eq!(sub.unwrap().backlog_messages, 13);
}

#[test]
fn a_place_within_a_batch_survives_a_restart() {
    let (mut world, c) = kept(Durability::Written);
    world.publish(3, 10);
    world.settle();
    world.flow(c, 100);
    let position = world.got[1].1;
    sought(&mut world, SeekTo::Message { position, index: 4 });
    let mut world = World::reopen(world.disk, Durability::Written);
    let c = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
    assert_eq!(world.stats().backlog_messages, 16);
    world.flow(c, 100);
    assert_eq!(world.parts, [(position, vec![0x3f0])]);
    assert_eq!(entries(&mut world), [1, 2]);
}

/// Another cursor moves on while the seek is under way: what the seek wants stays.
#[test]
fn what_a_seek_is_about_to_bring_is_not_removed() {
    let (mut world, c) = kept(Durability::Synced);
    world.publish(20, 1);
    world.settle();
    world.flow(c, 20);
    let first = world.got[0].1;
    world.ack_all();
    let keeper = world.subscribe("keeper", 8, |_| {}).unwrap();
    world.got.clear();
    world.flow(keeper, 20);
    let held = std::mem::take(&mut world.got);
    world.disk.holds_syncs = true;
    world.begin(seek(at_entry(first), &world));
    for (consumer, position, ..) in held {
        world.ack(consumer, position);
    }
    world.settle();
    world.disk.let_go(true);
    world.settle();
    assert!(matches!(world.replies.pop(), Some(Ok(Reply::Done))));
    assert_eq!(world.stats().backlog_messages, 20);
}

#[test]
fn a_new_subscription_starts_where_it_asks() {
    let (mut world, c) = kept(Durability::Memory);
    for time_ms in 1..=10 {
        world.now.wall_ms = time_ms;
        world.publish(1, 2);
    }
    world.flow(c, 20);
    let position = world.got[6].1;
    let behind = Position {
        entry: 99,
        ..position
    };
    let starts = [
        (InitialPosition::Earliest, 20),
        (InitialPosition::Latest, 0),
        (InitialPosition::At(position), 8),
        (InitialPosition::At(behind), 0),
        (InitialPosition::Since(4), 14),
        (InitialPosition::Since(99), 0),
    ];
    for (slot, (initial, backlog)) in (20..).zip(starts) {
        let name = format!("n{slot}");
        world
            .subscribe(&name, slot, |asked| asked.initial = initial)
            .unwrap();
        let stats = world.broker.stats();
        let sub = stats.topics[0]
            .subscriptions
            .iter()
            .find(|sub| sub.name == name);
        assert_eq!(sub.unwrap().backlog_messages, backlog, "{initial:?}");
    }
}

/// What lies before its start is trimmed, and still in a segment that the next open finds.
#[test]
fn a_subscription_made_behind_trimmed_entries_starts_there_after_a_restart_too() {
    for initial in [InitialPosition::Earliest, InitialPosition::Latest] {
        let mut world = World::with(Durability::Synced);
        let c = world.attach(0);
        world.publish(10, 1);
        world.settle();
        world.flow(c, 10);
        world.ack_all();
        world
            .subscribe("later", 20, |asked| asked.initial = initial)
            .unwrap();
        world.publish(3, 1);
        world.settle();
        let world = World::reopen(world.disk, Durability::Synced);
        let stats = world.broker.stats();
        let subs = &stats.topics[0].subscriptions;
        let later = subs.iter().find(|sub| sub.name == "later").unwrap();
        assert_eq!(later.backlog_messages, 3, "{initial:?}");
    }
}

/// Attaches a reader: Exclusive and not kept.
fn reader(world: &mut World, initial: InitialPosition) -> Result<ConsumerId, RequestError> {
    world.subscribe("r", 5, |asked| {
        asked.kind = SubscriptionKind::Exclusive;
        asked.initial = initial;
        asked.durable = false;
    })
}

fn subscriptions(world: &World) -> Vec<String> {
    let stats = world.broker.stats();
    let subs = stats.topics[0].subscriptions.iter();
    subs.map(|sub| sub.name.clone()).collect()
}

#[test]
fn a_subscription_that_is_not_kept_ends_with_its_last_consumer() {
    let (mut world, _) = kept(Durability::Written);
    let r = reader(&mut world, InitialPosition::Earliest).unwrap();
    let mismatch = world.subscribe("s", 7, |asked| {
        asked.kind = SubscriptionKind::Shared;
        asked.durable = false;
    });
    assert!(matches!(mismatch, Err(RequestError::ConsumerBusy { .. })));
    assert_eq!(subscriptions(&world), ["s", "keeper", "r"]);
    world.close(r);
    assert_eq!(subscriptions(&world), ["s", "keeper"]);
    reader(&mut world, InitialPosition::Earliest).unwrap();
    let world = World::reopen(world.disk, Durability::Written);
    assert_eq!(
        subscriptions(&world),
        ["s", "keeper"],
        "nor is it there after a restart"
    );
}

#[test]
fn after_its_own_seek_it_waits_for_the_return() {
    const GRACE_NS: u64 = 10_000_000_000;
    let (mut world, _) = kept(Durability::Memory);
    world.publish(20, 1);
    let old = reader(&mut world, InitialPosition::Earliest).unwrap();
    world.flow(old, 20);
    let position = world.got.last().unwrap().1;
    let to = at_entry(Position {
        entry: 12,
        ..position
    });
    let request = |world: &World| Request::Seek {
        topic: world.topic,
        subscription: "r".to_owned(),
        to: to.clone(),
    };
    world.ask(request(&world)).unwrap();
    // A remote client's attachment is closed, and comes back.
    world.close(old);
    world.pass_ns(GRACE_NS / 2);
    let back = reader(&mut world, InitialPosition::Earliest).unwrap();
    world.got.clear();
    world.flow(back, 20);
    assert_eq!(entries(&mut world), (12..20).collect::<Vec<_>>());
    world.pass_ns(GRACE_NS);
    assert_eq!(subscriptions(&world).len(), 3, "it is in use");
    world.close(back);
    assert_eq!(
        subscriptions(&world).len(),
        2,
        "it had come back, so this is its end"
    );

    let old = reader(&mut world, InitialPosition::Earliest).unwrap();
    world.ask(request(&world)).unwrap();
    world.close(old);
    world.pass_ns(GRACE_NS - 1_000);
    assert_eq!(subscriptions(&world).len(), 3);
    world.pass_ns(2_000);
    assert_eq!(subscriptions(&world).len(), 2);

    // One that went on by itself has no reason to wait.
    reader(&mut world, InitialPosition::Earliest).unwrap();
    world.ask(request(&world)).unwrap();
    let new = world.resets.last().unwrap().1;
    world.flow(new, 1);
    world.close(new);
    assert_eq!(subscriptions(&world).len(), 2);
}

#[test]
fn it_holds_nothing_back_and_counts_what_it_jumps_over() {
    let mut world = World::new();
    let durable = world.attach(0);
    let r = reader(&mut world, InitialPosition::Earliest).unwrap();
    world.publish(10, 2);
    assert_eq!(world.flow(r, 6), 3);
    world.flow(durable, 20);
    let position = world.got.last().unwrap().1;
    world.ack_all();
    let stats = world.broker.stats();
    let sub = |name: &str| {
        stats.topics[0]
            .subscriptions
            .iter()
            .find(|sub| sub.name == name)
    };
    let left = sub("r").unwrap();
    assert_eq!(
        (
            left.jumped_messages,
            left.unacked_messages,
            left.backlog_messages
        ),
        (14, 0, 0)
    );
    assert_eq!(stats.topics[0].entries, 0);
    world.publish(1, 2);
    world.got.clear();
    assert_eq!(world.flow(r, 2), 1);
    assert_eq!(world.got.last().unwrap().1.entry, position.entry + 1);
}

#[test]
fn alone_on_its_topic_it_gets_all_it_has_permits_for() {
    let mut world = World::new();
    let r = reader(&mut world, InitialPosition::Latest).unwrap();
    world.flow(r, 1_000);
    world.publish(1_500, 1);
    assert_eq!(world.settle(), 1_000, "over many passes");
    assert_eq!(entries(&mut world), (0..1_000).collect::<Vec<_>>());
    let stats = world.broker.stats();
    let topic = &stats.topics[0];
    assert_eq!(
        (topic.entries, topic.subscriptions[0].jumped_messages),
        (0, 500)
    );
}

#[test]
fn the_last_position_is_known_though_the_entries_are_gone() {
    let (mut world, c) = (World::with(Durability::Synced), 0);
    let c = world.try_attach(c, SubscriptionKind::Exclusive).unwrap();
    let ask = |world: &mut World| {
        let (topic, subscription) = (world.topic, "s".to_owned());
        match world.ask(Request::LastPosition {
            topic,
            subscription,
        }) {
            Ok(Reply::LastPosition {
                last, mark_delete, ..
            }) => (last, mark_delete),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&mut world), (None, None));
    world.publish(3, 1);
    world.settle();
    world.flow(c, 10);
    let positions: Vec<Position> = world.got.iter().map(|got| got.1).collect();
    world.ack(c, positions[0]);
    assert_eq!(ask(&mut world), (Some(positions[2]), Some(positions[0])));
    world.ack_all();
    assert_eq!(ask(&mut world), (Some(positions[2]), Some(positions[2])));
    world.disk.holds_syncs = true;
    world.wish.capped = true; // by the disk
    world.publish(1, 1);
    world.settle();
    assert_eq!(
        ask(&mut world).0,
        Some(positions[2]),
        "the new one is not durable yet"
    );
}

proptest! {
    /// Publishes, acks and seeks in any order: the backlog is what a list of entries says, and in the
    /// end exactly that comes.
    #[test]
    fn the_backlog_is_exact_over_any_seeks(steps in prop::collection::vec((0u8..4, 0usize..40, 1u32..70), 1..60)) {
        let (mut world, mut c) = kept(Durability::Memory);
        // Messages of each entry, and how many are not done.
        let mut model: Vec<(u32, u32)> = Vec::new();
        let position = |entry: usize| Position { ledger: 1, entry: entry as u64 };
        for (op, entry, n) in steps {
            match op {
                0 => { world.publish(1, n); model.push((n, n)); }
                1 => { world.flow(c, n); }
                2 if entry < model.len() => {
                    let at = position(entry);
                    world.ack(c, at);
                    model[entry].1 = 0;
                }
                3 if entry < model.len() => {
                    let index = n % model[entry].0;
                    c = sought(&mut world, SeekTo::Message { position: position(entry), index });
                    for (at, (whole, left)) in model.iter_mut().enumerate() {
                        *left = match at.cmp(&entry) {
                            std::cmp::Ordering::Less => 0,
                            std::cmp::Ordering::Equal => *whole - index,
                            std::cmp::Ordering::Greater => *whole,
                        };
                    }
                }
                _ => {}
            }
            world.settle();
            let expected: u64 = model.iter().map(|&(_, left)| u64::from(left)).sum();
            prop_assert_eq!(world.stats().backlog_messages, expected);
        }
        world.close(c);
        world.got.clear();
        let c = world.try_attach(0, SubscriptionKind::Exclusive).unwrap();
        world.flow(c, 1_000_000);
        world.settle();
        let expected: Vec<u64> = (0..).zip(&model).filter(|(_, m)| m.1 > 0).map(|(at, _)| at).collect();
        prop_assert_eq!(entries(&mut world), expected);
    }
}
