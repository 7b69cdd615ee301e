//! What is kept of a topic, and how large its backlog may become (rules D127 to D129).

use pelton_storage::{Durability, Position};

use super::world::World;
use crate::{
    BacklogPolicy, BacklogQuota, ConsumerId, Event, Handled, InitialPosition, Letter, OpenProducer,
    Outcome, Policy, Publish, Refusal, Reply, Request, RequestError, Retention, SeekTo,
    SubscriptionKind, TopicStats,
};

const MINUTE_MS: u64 = 60_000;
static BODY: [u8; 64 << 10] = [7; 64 << 10];

fn keeps(minutes: i64, mb: i64) -> Policy {
    Policy {
        retention: Retention {
            retention_time_in_minutes: minutes,
            retention_size_in_mb: mb,
        },
        ..Policy::default()
    }
}

fn limits(limit_size: i64, limit_time: i64, policy: BacklogPolicy) -> Policy {
    Policy {
        backlog_quota: BacklogQuota {
            limit_size,
            limit_time,
            policy,
        },
        ..Policy::default()
    }
}

impl World {
    fn topic_stats(&mut self) -> TopicStats {
        let Ok(Reply::Stats(mut stats)) = self.ask(Request::Stats) else {
            panic!("no stats")
        };
        stats.topics.remove(0)
    }

    fn stored(&mut self) -> u64 {
        self.topic_stats().entries
    }

    /// Publishes entries of 64 KiB.
    fn publish_large(&mut self, entries: usize) {
        for _ in 0..entries {
            self.publish_with(|entry| entry.body = &BODY);
        }
        // A log that writes inline does so slice by slice, each in a turn.
        for _ in 0..4 {
            self.settle();
        }
    }

    /// How the publish of one entry of 64 KiB ended; `None`: it is to be offered again.
    fn offer_large(&mut self) -> Option<Outcome> {
        let entry = Publish {
            body: &BODY,
            messages: 1,
            sequence: self.sequence,
            ..Publish::default()
        };
        let event = Event::Publish {
            producer: self.producer,
            entry: &entry,
        };
        if self.broker.handle(event, self.now) == Handled::Held {
            return None;
        }
        self.sequence += 1;
        self.receipts.clear();
        for _ in 0..4 {
            self.settle();
        }
        Some(self.receipts[0].outcome)
    }

    fn reader(&mut self, slot: u32) -> ConsumerId {
        let reader = self.subscribe("reader", slot, |asked| {
            asked.durable = false;
            asked.kind = SubscriptionKind::Exclusive;
        });
        reader.unwrap()
    }

    fn got_entries(&mut self) -> Vec<u64> {
        let got = self.take_entries();
        got.into_iter().map(|(_, entry)| entry).collect()
    }
}

#[test]
fn what_is_acked_by_all_goes_when_it_is_too_old_and_not_before() {
    for durability in [Durability::Memory, Durability::Synced] {
        let mut world = World::with(durability);
        let consumer = world.attach(0);
        world.policy(keeps(2, -1));
        world.publish(10, 1);
        world.flow(consumer, 100);
        world.pass_until_ms(MINUTE_MS);
        world.publish(5, 1);
        world.settle();
        world.ack_all();
        assert_eq!(world.stored(), 15);
        let reader = world.reader(1);
        world.got.clear();
        world.flow(reader, 100);
        assert_eq!(world.got_entries().len(), 15, "a reader gets what is kept");
        world.pass_until_ms(2 * MINUTE_MS + 1);
        assert_eq!(world.stored(), 15, "the oldest is two minutes old");
        world.pass_until_ms(2 * MINUTE_MS + 2);
        assert_eq!(world.stored(), 5);
        world.pass_until_ms(3 * MINUTE_MS + 1);
        assert_eq!((world.stored(), world.broker.next_deadline()), (0, None));
    }
}

#[test]
fn nothing_that_is_not_acked_goes_however_old() {
    let mut world = World::new();
    let consumer = world.attach(0);
    world.policy(keeps(1, 1));
    world.publish_large(40);
    world.flow(consumer, 10);
    world.ack_all();
    world.pass_until_ms(10 * MINUTE_MS);
    assert_eq!((world.stored(), world.stats().backlog_entries), (30, 30));
    world.flow(consumer, 100);
    world.ack_all();
    assert_eq!(world.stored(), 0);
}

#[test]
fn the_oldest_goes_once_the_topic_is_too_large() {
    for durability in [Durability::Memory, Durability::Synced] {
        let mut world = World::with(durability);
        world.wish.capped = true; // by commits
        let consumer = world.attach(0);
        world.policy(keeps(-1, 1));
        world.publish_large(10);
        world.flow(consumer, 1_000);
        world.ack_all();
        assert_eq!(world.stored(), 10);
        world.publish_large(10);
        world.ack_all();
        let stats = world.topic_stats();
        assert_eq!((stats.entries, stats.bytes), (16, 1 << 20));
        // A seek finds what is kept, and a subscription to come as well.
        let done = world.ask(Request::Seek {
            topic: world.topic,
            subscription: "s".to_owned(),
            to: SeekTo::Start(InitialPosition::Earliest),
        });
        assert!(matches!(done, Ok(Reply::Done)), "{done:?}");
        world.settle();
        assert_eq!(world.stats().backlog_entries, 16);
        let late = world.subscribe("late", 2, |_| {}).unwrap();
        world.got.clear();
        world.flow(late, 100);
        assert_eq!(world.got_entries(), (4..20).collect::<Vec<_>>());
    }
}

#[test]
fn a_topic_without_subscriptions_keeps_what_its_policy_says_after_a_restart_too() {
    let mut world = World::with(Durability::Synced);
    world.policy(keeps(-1, -1));
    world.publish(10, 1);
    for _ in 0..4 {
        world.settle();
    }
    assert_eq!(world.stored(), 10);
    let mut world = World::reopen(world.disk, Durability::Synced);
    world.settle();
    assert_eq!(world.stored(), 10);
    world.policy(Policy::default());
    assert_eq!(world.stored(), 0, "a policy holds for what is there");
}

#[test]
fn what_memory_keeps_gives_way_to_what_is_new() {
    let mut world = World::new();
    let consumer = world.attach(0);
    world.policy(keeps(-1, -1));
    world.flow(consumer, u32::MAX);
    let mut most = 0;
    for _ in 0..10_000 {
        match world.offer_large() {
            Some(outcome) => assert!(matches!(outcome, Outcome::Stored(_))),
            None => {
                most = world.stored();
                world.settle();
                assert!(world.offer_large().is_some());
                break;
            }
        }
        world.ack_all();
        world.got.clear();
    }
    assert!(most > 100, "{most} entries are kept in the default memory");
    assert!(world.stored() < most);
}

#[test]
fn half_a_retention_is_refused() {
    let mut world = World::new();
    for (minutes, mb) in [(0, 1), (1, 0), (-2, 1), (1, -2)] {
        let policy = Box::new(keeps(minutes, mb));
        let topic = world.topic;
        let refused = world.ask(Request::SetPolicy { topic, policy });
        assert!(matches!(refused, Err(RequestError::InvalidPolicy { .. })));
    }
}

#[test]
fn producers_wait_while_the_backlog_is_as_large_as_it_may_be() {
    let mut world = World::new();
    world.wish.capped = true;
    let consumer = world.attach(0);
    world.policy(limits(4 * 65_536, -1, BacklogPolicy::ProducerRequestHold));
    world.publish_large(4);
    assert_eq!(world.stats().backlog_bytes, 4 * 65_536);
    assert_eq!(world.offer_large(), None);
    let asked = OpenProducer {
        slot: 1,
        ..OpenProducer::shared(world.topic, "p")
    };
    let refused = world.ask(asked.into());
    let holds = BacklogPolicy::ProducerRequestHold;
    assert!(
        matches!(&refused, Err(RequestError::BacklogQuota { policy, .. }) if *policy == holds),
        "{refused:?}"
    );
    // A hole in it makes no room: what is stored from the first one on is what counts.
    world.flow(consumer, 2);
    let first = world.got[0].1;
    world.ack(consumer, world.got[1].1);
    world.settle();
    assert_eq!(world.offer_large(), None);
    world.ack(consumer, first);
    world.settle();
    for _ in 0..2 {
        assert!(matches!(world.offer_large(), Some(Outcome::Stored(_))));
    }
    assert_eq!(world.offer_large(), None);
    // A subscription that is not durable holds nobody up, and a topic without others takes all.
    world.close(consumer);
    world.reader(1);
    let unsubscribed = world.ask(Request::Unsubscribe {
        topic: world.topic,
        subscription: "s".to_owned(),
    });
    assert!(matches!(unsubscribed, Ok(Reply::Done)));
    assert!(matches!(world.offer_large(), Some(Outcome::Stored(_))));
}

#[test]
fn producers_hear_that_the_backlog_is_as_old_as_it_may_be() {
    let mut world = World::new();
    world.wish.capped = true;
    let consumer = world.attach(0);
    world.policy(limits(-1, 60, BacklogPolicy::ProducerException));
    world.publish_large(1);
    world.pass_until_ms(MINUTE_MS - 1);
    world.publish_large(1);
    world.pass_until_ms(MINUTE_MS + 1);
    let quota = Outcome::Refused(Refusal::BacklogQuota);
    assert_eq!(world.offer_large(), Some(quota));
    world.flow(consumer, 1);
    world.ack_all();
    assert!(matches!(world.offer_large(), Some(Outcome::Stored(_))));
    world.policy(limits(1, -1, BacklogPolicy::ProducerException));
    assert_eq!(world.offer_large(), Some(quota));
    world.policy(Policy::default());
    assert!(matches!(world.offer_large(), Some(Outcome::Stored(_))));
}

#[test]
fn a_subscription_that_becomes_the_slowest_counts_at_once() {
    let mut world = World::new();
    world.wish.capped = true;
    let consumer = world.attach(0);
    let policy = Policy {
        retention: keeps(-1, -1).retention,
        ..limits(4 * 65_536, -1, BacklogPolicy::ProducerException)
    };
    world.policy(policy);
    world.flow(consumer, 100);
    for _ in 0..6 {
        assert!(matches!(world.offer_large(), Some(Outcome::Stored(_))));
        world.ack_all();
    }
    world.subscribe("late", 2, |_| {}).unwrap();
    let quota = Outcome::Refused(Refusal::BacklogQuota);
    assert_eq!(world.offer_large(), Some(quota));
}

#[test]
fn the_oldest_entries_of_the_slowest_are_evicted_held_ones_too() {
    for durability in [Durability::Memory, Durability::Synced] {
        let mut world = World::with(durability);
        world.wish.capped = true;
        let consumer = world.attach(0);
        let quick = world.subscribe("quick", 1, |_| {}).unwrap();
        world.policy(limits(
            4 * 65_536,
            -1,
            BacklogPolicy::ConsumerBacklogEviction,
        ));
        world.flow(consumer, 3);
        world.flow(quick, 100);
        world.publish_large(2);
        let of_quick = |got: &&(ConsumerId, Position, u32, u32)| got.0 == quick;
        for position in world
            .got
            .iter()
            .filter(of_quick)
            .map(|got| got.1)
            .collect::<Vec<_>>()
        {
            world.ack(quick, position);
        }
        world.publish_large(6);
        let stats = world.topic_stats();
        let [slow, fast] = &stats.subscriptions[..] else {
            panic!("{stats:?}")
        };
        assert_eq!((slow.backlog_entries, slow.backlog_bytes), (4, 4 * 65_536));
        assert_eq!((slow.unacked_messages, slow.evicted_messages), (0, 4));
        assert_eq!((slow.acked_messages, fast.evicted_messages), (0, 2));
        world.got.clear();
        world.flow(consumer, 100);
        let got = world.got_entries();
        assert_eq!(
            got,
            [4, 5, 6, 7],
            "what is left, and a late ack is for nothing"
        );
    }
}

#[test]
fn what_is_too_old_is_evicted_without_a_publish() {
    let mut world = World::new();
    world.attach(0);
    world.policy(limits(-1, 60, BacklogPolicy::ConsumerBacklogEviction));
    world.publish(3, 5);
    world.settle();
    world.pass_until_ms(MINUTE_MS / 2);
    world.publish(1, 5);
    world.settle();
    world.pass_until_ms(MINUTE_MS);
    assert_eq!(world.stats().backlog_messages, 20);
    world.pass_until_ms(MINUTE_MS + 1);
    let stats = world.stats();
    assert_eq!((stats.backlog_messages, stats.evicted_messages), (5, 15));
    world.pass_until_ms(3 * MINUTE_MS / 2);
    assert_eq!((world.stored(), world.broker.next_deadline()), (0, None));
}

#[test]
fn a_dead_letter_counts_towards_the_quota_of_its_topic() {
    let mut world = World::new();
    world.attach(0);
    world.policy(limits(10, 60, BacklogPolicy::ConsumerBacklogEviction));
    let deliver = |world: &mut World| {
        let letter = Letter {
            topic: "t".to_owned(),
            durability: Durability::Synced,
            initial_subscription: "s".to_owned(),
            messages: 1,
            key_hash: 0,
            properties: Vec::new(),
            body: vec![1; 10],
        };
        let stored = world.ask(Request::DeadLetter(Box::new(letter)));
        assert!(matches!(stored, Ok(Reply::Done)), "{stored:?}");
        world.settle();
        let stats = world.stats();
        (stats.backlog_messages, stats.evicted_messages)
    };
    assert_eq!(deliver(&mut world), (1, 0));
    assert_eq!(deliver(&mut world), (1, 1));
    world.pass_until_ms(MINUTE_MS + 1);
    assert_eq!(world.stats().evicted_messages, 2);
}
