//! What the simulator found, each test named after what went wrong.

use pelton_flow::Granter;
use pelton_storage::{
    CursorState, Durability, Log, Options as LogOptions, Position, SubKey, TopicKey,
};

use super::world::World;
use crate::{
    Broker, Effect, Event, Handled, InitialPosition, KeyShared, MetaDone, MetaOp, Now, Options,
    Policy, Reply, Request, RequestError, RequestId, Subscribe, SubscriptionKind, TOPIC_PREFIX,
    TopicId, TopicRecord,
};

/// A core with a log that could store: its disk never answers, its metadata as the test says.
fn durable() -> Broker {
    let log = Log::recover(LogOptions::default(), &[], &mut |_, _, _| Ok(0))
        .expect("nothing is a log that is new")
        .log;
    let options = Options {
        shard: 0,
        durable: true,
    };
    Broker::new(log, options)
}

fn send(broker: &mut Broker, event: Event<'_>) {
    assert_eq!(broker.handle(event, Now::default()), Handled::Taken);
}

/// Replies and metadata operations that came out.
fn take(broker: &mut Broker) -> (Vec<Result<Reply, RequestError>>, Vec<MetaOp>) {
    let (mut replies, mut ops) = (Vec::new(), Vec::new());
    while let Some(effect) = broker.poll_effect() {
        match effect {
            Effect::Reply { reply, .. } => replies.push(reply),
            Effect::Meta(op) => ops.push(op),
            _ => {}
        }
    }
    (replies, ops)
}

fn end(broker: &mut Broker, op: &MetaOp, result: Result<(), String>) {
    let token = op.token;
    send(broker, Event::Meta(MetaDone { token, result }));
}

fn request(broker: &mut Broker, request: Request) {
    let id = RequestId(1);
    send(broker, Event::Request { id, request });
}

fn open_topic(broker: &mut Broker) -> TopicId {
    let (name, durability) = ("t".to_owned(), Durability::Synced);
    request(broker, Request::OpenTopic { name, durability });
    let (_, ops) = take(broker);
    end(broker, &ops[0], Ok(()));
    match take(broker).0.pop() {
        Some(Ok(Reply::Topic(topic))) => topic,
        other => panic!("{other:?}"),
    }
}

fn subscribe(broker: &mut Broker, topic: TopicId, slot: u32) {
    let asked = Subscribe {
        topic,
        subscription: "s".to_owned(),
        kind: SubscriptionKind::Shared,
        initial: InitialPosition::Earliest,
        durable: true,
        consumer: format!("c{slot}"),
        priority_level: 0,
        key_shared: KeyShared::default(),
        account: Granter::pair().1,
        slot,
    };
    request(broker, Request::Subscribe(Box::new(asked)));
}

#[test]
fn the_second_consumer_of_a_subscription_that_could_not_be_made_is_told_so() {
    let mut broker = durable();
    let topic = open_topic(&mut broker);
    subscribe(&mut broker, topic, 0);
    subscribe(&mut broker, topic, 1);
    let (replies, ops) = take(&mut broker);
    assert!(replies.is_empty(), "both wait for the record: {replies:?}");
    end(&mut broker, &ops[0], Err("no".to_owned()));
    end(&mut broker, &ops[1], Ok(()));
    let (replies, _) = take(&mut broker);
    assert!(
        matches!(
            replies[..],
            [
                Err(RequestError::Metadata { .. }),
                Err(RequestError::NotFound { .. })
            ]
        ),
        "{replies:?}"
    );
}

#[test]
fn the_id_of_a_cursor_whose_metadata_was_lost_is_not_given_out_again() {
    let mut broker = durable();
    let orphan = CursorState {
        topic: TopicKey(1),
        sub: SubKey(7),
        mark_delete: None,
        acked: Vec::new(),
        partial: Vec::new(),
    };
    broker.restore(&[], &[orphan], Now::default()).unwrap();
    let topic = open_topic(&mut broker);
    subscribe(&mut broker, topic, 0);
    let (_, ops) = take(&mut broker);
    let written = ops[0].writes.iter();
    let mut records = written.filter(|(key, _)| key.starts_with(TOPIC_PREFIX));
    let (key, value) = records.next().unwrap();
    let record = TopicRecord::decode(key, value.as_deref().unwrap()).unwrap();
    assert!(record.subscriptions[0].key > 7, "{record:?}");
}

#[test]
fn a_run_of_acks_whose_start_is_trimmed_acks_the_rest() {
    let mut world = World::new();
    let c = world.attach(0);
    world.publish(8, 1);
    world.flow(c, 8);
    let first = world.got[0].1;
    world.ack(c, first);
    world.settle();
    let (consumer, entries) = (c, 4);
    world.send(Event::AckRun {
        consumer,
        first,
        entries,
    });
    assert_eq!(world.stats().backlog_entries, 4);
}

#[test]
fn a_standby_that_gives_all_back_does_not_rewind_the_active() {
    let mut world = World::new();
    world.wish.kind = SubscriptionKind::Failover;
    let ids = [world.attach(0), world.attach(1)];
    world.publish(3, 1);
    for id in ids {
        world.flow(id, 10);
    }
    let active = world.got[0].0;
    let consumer = ids.into_iter().find(|&id| id != active).unwrap();
    world.send(Event::NackAll { consumer });
    world.settle();
    assert_eq!(world.got.len(), 3, "each came once: {:?}", world.got);
}

#[test]
fn a_cap_that_resumes_at_its_limit_lets_nothing_through_at_it() {
    let mut world = World::new();
    world.policy(Policy {
        max_unacked_messages_per_consumer: 2,
        max_unacked_messages_unblock_ratio: 1.0,
        ..Policy::default()
    });
    world.wish.capped = true;
    let c = world.attach(0);
    world.publish(5, 1);
    world.flow(c, 10);
    world.attach(1); // who is blocked is looked at again
    world.settle();
    assert_eq!(world.got.len(), 2);
    let first = world.got[0].1;
    world.ack(c, first);
    world.settle();
    assert_eq!(world.got.len(), 3);
}

#[test]
fn a_policy_that_could_not_be_written_takes_no_later_one_with_it() {
    let cap = |broker: &mut Broker, topic: TopicId, max: u64| {
        let policy = Box::new(Policy {
            max_unacked_messages_per_consumer: max,
            ..Policy::default()
        });
        request(broker, Request::SetPolicy { topic, policy });
        take(broker).1.remove(0)
    };
    let in_use = |broker: &Broker| broker.topic_at(0).policy.max_unacked_messages_per_consumer;
    let mut broker = durable();
    let topic = open_topic(&mut broker);
    let [first, second] = [1, 2].map(|max| cap(&mut broker, topic, max));
    end(&mut broker, &first, Err("no".to_owned()));
    assert_eq!(in_use(&broker), 2);
    end(&mut broker, &second, Err("no".to_owned()));
    assert_eq!(in_use(&broker), 50_000);
}

#[test]
fn an_exclusive_consumer_gets_what_a_shared_one_gave_back_at_once_and_in_order() {
    let mut world = World::new();
    world.wish.capped = true;
    let shared = world.attach(0);
    world.publish(3, 1);
    world.flow(shared, 10);
    let first = world.got[0].1;
    world.send(Event::Nack {
        consumer: shared,
        position: first,
        delay_ns: Some(60_000_000_000),
    });
    world.close(shared);
    world.got.clear();
    world.wish.kind = SubscriptionKind::Exclusive;
    let exclusive = world.attach(0);
    world.flow(exclusive, 10);
    let got: Vec<_> = world
        .got
        .iter()
        .map(|&(_, at, _, count)| (at, count))
        .collect();
    let expected = [0, 1, 2].map(|at| {
        let entry = first.entry + at;
        (Position { entry, ..first }, 0)
    });
    assert_eq!(got, expected);
}

#[test]
fn a_consumer_is_told_its_own_id_though_a_seek_came_before_the_answer() {
    let mut broker = durable();
    let topic = open_topic(&mut broker);
    subscribe(&mut broker, topic, 0);
    let (_, ops) = take(&mut broker);
    let to = InitialPosition::Earliest.into();
    let subscription = "s".to_owned();
    request(
        &mut broker,
        Request::Seek {
            topic,
            subscription,
            to,
        },
    );
    end(&mut broker, &ops[0], Ok(()));
    let mut becomes = None;
    while let Some(effect) = broker.poll_effect() {
        match effect {
            Effect::Reset { becomes: id, .. } => becomes = Some(id),
            Effect::Reply { reply, .. } => {
                let Ok(Reply::Consumer(id)) = reply else {
                    panic!("{reply:?}")
                };
                assert_eq!(Some(id), becomes);
                return;
            }
            _ => {}
        }
    }
    panic!("no answer");
}

#[test]
fn a_reader_goes_on_when_what_it_put_aside_is_removed() {
    let mut world = World::new();
    world.policy(Policy {
        key_shared_look_ahead_msg_in_replay_threshold_per_consumer: 1,
        subscription_key_shared_use_consistent_hashing: false,
        ..Policy::default()
    });
    world.wish.capped = true;
    let reader = |asked: &mut Subscribe| {
        (asked.durable, asked.kind) = (false, SubscriptionKind::KeyShared);
    };
    world.subscribe("r", 0, reader).unwrap();
    let low = world.subscribe("r", 1, reader).unwrap();
    let durable = world.subscribe("s", 2, |_| {}).unwrap();
    // The upper half of the keys is that of the first, which asks for nothing.
    (0..2).for_each(|_| world.publish_keyed(60_000, 1));
    world.publish_keyed(1, 1);
    world.flow(low, 10);
    assert!(world.got.is_empty(), "two wait: as far as it may look");
    world.flow(durable, 2);
    world.ack_all();
    let last = world.got.last().map(|&(who, at, ..)| (who, at.entry));
    assert_eq!(last, Some((low, 2)), "{:?}", world.got);
}

#[test]
fn a_second_request_to_terminate_does_not_rely_on_the_first() {
    let mut broker = durable();
    let topic = open_topic(&mut broker);
    let terminate = |broker: &mut Broker| {
        request(broker, Request::Terminate { topic });
        take(broker).1.remove(0)
    };
    let [first, second] = [(); 2].map(|()| terminate(&mut broker));
    end(&mut broker, &first, Err("no".to_owned()));
    assert!(matches!(take(&mut broker).0[..], [Err(_)]));
    end(&mut broker, &second, Ok(()));
    assert!(matches!(take(&mut broker).0[..], [Ok(Reply::Done)]));
    assert_eq!(broker.topic_at(0).end, crate::terminate::End::Terminated);
}

#[test]
fn what_nobody_wanted_before_the_first_subscription_is_let_go() {
    let mut world = World::new();
    world.publish(3, 1);
    let latest = |asked: &mut Subscribe| asked.initial = InitialPosition::Latest;
    world.subscribe("s", 0, latest).unwrap();
    world.settle();
    let Ok(Reply::Stats(stats)) = world.ask(Request::Stats) else {
        panic!("no stats")
    };
    assert_eq!(stats.topics[0].entries, 0);
}
