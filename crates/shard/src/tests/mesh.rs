//! Handlers that forward to topics of other shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pelton_broker::flow::Granter;
use pelton_broker::storage::Durability;
use pelton_broker::{OpenProducer, OpenedProducer, Reply, Request, SubscriptionKind};

use super::harness::{
    TestConsumer, TestProducer, ask, is_stored, memory_topic, open_handler, options, spawn, stats,
    subscribe,
};
use crate::plan::Plan;
use crate::start::build;
use crate::turn::Shard;
use crate::{
    Answer, ConsumerSignal, EngineOptions, ForwardError, ForwardTo, Handler, Ports, ProducerSignal,
    Publish, ReplyFrom, Runtime, ShardHandle, Verdict, open,
};

/// The name of a topic that lives on that shard.
fn name_on(runtime: &Runtime, shard: u32, prefix: &str) -> String {
    (0..)
        .map(|i| format!("{prefix}-{i}"))
        .find(|name| runtime.shard_of(name) == shard)
        .unwrap()
}

fn forward_to(runtime: &Runtime, name: &str) -> ForwardTo {
    let (handle, topic) = memory_topic(runtime, name);
    let request = Request::from(OpenProducer::shared(topic, "forwards"));
    let Ok(Reply::Producer(OpenedProducer { id: producer, .. })) =
        ask(handle, request, Ports::Forward)
    else {
        panic!()
    };
    ForwardTo {
        shard: handle.index(),
        producer,
    }
}

/// Fewer than may be unanswered: a forward that finds no room is nacked, and a nack sets an Exclusive
/// subscription back to its first unacked entry, unanswered forwards included.
const FORWARDED: u32 = 4_000;

fn check_forward(shards: usize, from: u32, to: u32) {
    let runtime = open(EngineOptions {
        shards,
        ..options()
    })
    .unwrap();
    let (source, target) = (
        name_on(&runtime, from, "source"),
        name_on(&runtime, to, "target"),
    );
    let forward = forward_to(&runtime, &target);
    let (target_handle, target_topic) = memory_topic(&runtime, &target);
    let mut consumer = TestConsumer::open(target_handle, target_topic, 100);
    let (handle, topic) = memory_topic(&runtime, &source);
    open_handler(
        handle,
        topic,
        50,
        Box::new(move |delivery| {
            let mut body = delivery.body().to_vec();
            body.push(b'!');
            match delivery.forward(&forward, &body, 1, 0) {
                Ok(()) => Verdict::Ack,
                Err(_) => Verdict::Nack,
            }
        }),
    );
    let mut producer = TestProducer::open(handle, topic, 64);
    let sender = spawn(move || {
        for i in 0..FORWARDED {
            producer.send(&i.to_be_bytes()).unwrap();
        }
    });
    for i in 0..FORWARDED {
        let got = consumer.recv().unwrap();
        assert_eq!(got.body, [&i.to_be_bytes()[..], b"!"].concat());
        consumer.ack(&got);
    }
    sender.join().unwrap();
    // Every answer came home, so every source entry is acked.
    for round in 0.. {
        let left = stats(handle)
            .broker
            .topics
            .iter()
            .find(|t| t.name == source)
            .unwrap()
            .subscriptions[0]
            .backlog_entries;
        if left == 0 {
            break;
        }
        assert!(round < 100_000, "{left} entries are not acked");
    }
}

#[test]
fn entries_forwarded_to_another_shard_arrive_in_order_and_ack_their_source_when_stored() {
    check_forward(2, 0, 1);
}

#[test]
fn entries_forwarded_within_a_shard_take_the_same_way() {
    check_forward(1, 0, 0);
}

#[test]
fn a_forward_that_is_refused_delivers_its_source_again() {
    let runtime = open(EngineOptions {
        shards: 2,
        ..options()
    })
    .unwrap();
    let (source, target) = (
        name_on(&runtime, 0, "source"),
        name_on(&runtime, 1, "target"),
    );
    let gone = forward_to(&runtime, &target);
    let request = Request::CloseProducer {
        producer: gone.producer,
    };
    assert!(ask(runtime.handle(1), request, Ports::None).is_ok());
    let good = forward_to(&runtime, &target);
    let (target_handle, target_topic) = memory_topic(&runtime, &target);
    let mut consumer = TestConsumer::open(target_handle, target_topic, 10);
    let (handle, topic) = memory_topic(&runtime, &source);
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    open_handler(
        handle,
        topic,
        10,
        Box::new(move |delivery| {
            let call = count.fetch_add(1, Ordering::SeqCst);
            // Two forwards: that one of them is refused is enough.
            let second = if call < 2 { &gone } else { &good };
            for to in [&good, second] {
                delivery.forward(to, delivery.body(), 1, 0).unwrap();
            }
            assert_eq!(
                delivery.forward(&ForwardTo { shard: 9, ..good }, b"", 1, 0),
                Err(ForwardError::NoShard(9))
            );
            Verdict::Ack
        }),
    );
    let mut producer = TestProducer::open(handle, topic, 4);
    assert!(is_stored(producer.send(b"x").unwrap().wait()));
    // At least once: the good half of the two refused rounds is there too.
    for _ in 0..4 {
        assert_eq!(consumer.recv().unwrap().body, b"x");
    }
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    assert!(consumer.try_recv().is_none());
}

#[test]
fn what_a_handler_forwarded_before_it_nacked_is_not_sent() {
    let runtime = open(EngineOptions {
        shards: 2,
        ..options()
    })
    .unwrap();
    let (source, target) = (
        name_on(&runtime, 0, "source"),
        name_on(&runtime, 1, "target"),
    );
    let forward = forward_to(&runtime, &target);
    let (target_handle, target_topic) = memory_topic(&runtime, &target);
    let mut consumer = TestConsumer::open(target_handle, target_topic, 10);
    let (handle, topic) = memory_topic(&runtime, &source);
    let mut calls = 0u8;
    open_handler(
        handle,
        topic,
        10,
        Box::new(move |delivery| {
            let call = calls;
            calls += 1;
            delivery.forward(&forward, &[call], 1, 0).unwrap();
            if call < 3 {
                Verdict::Nack
            } else {
                Verdict::Ack
            }
        }),
    );
    let mut producer = TestProducer::open(handle, topic, 4);
    assert!(is_stored(producer.send(b"x").unwrap().wait()));
    assert_eq!(consumer.recv().unwrap().body, [3]);
}

/// A shard whose turns the test takes itself, by the rule of [`Shard::run`].
struct Stepped {
    shard: Shard,
    runtime: Runtime,
}

impl Stepped {
    fn new() -> Stepped {
        let mut plan = Plan::make(options()).unwrap();
        let seed = plan.seeds().remove(0);
        let shard = build(seed, &plan.resources).unwrap();
        let runtime = plan.into_runtime(Vec::new(), Vec::new(), Some(std::thread::current().id()));
        Stepped { shard, runtime }
    }

    fn handle(&self) -> &ShardHandle {
        self.runtime.handle(0)
    }

    /// Turns until the shard would go to sleep.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            if !self.shard.turn().more && !self.shard.has_work() {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    fn ask(&mut self, request: Request, ports: Ports) -> Reply {
        let from: ReplyFrom<Answer> = self.handle().request(request, ports).unwrap();
        self.settle();
        from.try_take().unwrap().expect("it was answered").unwrap()
    }

    fn open_topic(&mut self, name: &str) -> pelton_broker::TopicId {
        let request = Request::OpenTopic {
            name: name.to_owned(),
            durability: Durability::Memory,
        };
        match self.ask(request, Ports::None) {
            Reply::Topic(topic) => topic,
            other => panic!("{other:?}"),
        }
    }

    fn open_producer(
        &mut self,
        topic: pelton_broker::TopicId,
        ports: Ports,
    ) -> pelton_broker::ProducerId {
        let request = Request::from(OpenProducer::shared(topic, "p"));
        match self.ask(request, ports) {
            Reply::Producer(opened) => opened.id,
            other => panic!("{other:?}"),
        }
    }

    fn backlog(&mut self, topic: &str) -> u64 {
        let Reply::Stats(stats) = self.ask_stats() else {
            panic!("not what was asked for")
        };
        let topic = stats.topics.iter().find(|t| t.name == topic).unwrap();
        topic.subscriptions[0].backlog_entries
    }

    fn ask_stats(&mut self) -> Reply {
        self.ask(Request::Stats, Ports::None)
    }
}

/// Entries that come behind the count of a close are refused, and whoever forwarded them hears of it
/// without another event.
#[test]
fn what_is_queued_behind_the_close_of_a_forwarding_producer_is_answered() {
    // With some of these counts the close ends a turn in which nothing else happens.
    for entries in 65..=160 {
        check_close_behind(entries);
    }
}

fn check_close_behind(entries: u32) {
    let mut stepped = Stepped::new();
    let (source, target) = (stepped.open_topic("source"), stepped.open_topic("target"));
    let forward = ForwardTo {
        shard: 0,
        producer: stepped.open_producer(target, Ports::Forward),
    };
    let (calls, again) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (count, count_again) = (Arc::clone(&calls), Arc::clone(&again));
    let (mut granter, account) = Granter::pair();
    let _ = granter.grant(entries);
    let ports = Ports::Handler {
        handler: Handler::new(move |delivery| {
            count.fetch_add(1, Ordering::SeqCst);
            if delivery.redelivery_count() > 0 {
                count_again.fetch_add(1, Ordering::SeqCst);
                return Verdict::Ack;
            }
            delivery.forward(&forward, delivery.body(), 1, 0).unwrap();
            Verdict::Ack
        }),
        granter,
        signal: Arc::new(ConsumerSignal::new()),
    };
    let request = subscribe(source, "handler", SubscriptionKind::Shared, account);
    stepped.ask(request, ports);
    let (ring, receiver) = pelton_rings::slots::<Publish>(256);
    let signal = Arc::new(ProducerSignal::new());
    let ports = Ports::Producer {
        ring: receiver,
        signal: Arc::clone(&signal),
    };
    let id = stepped.open_producer(source, ports);
    let mut producer = TestProducer::of(stepped.handle(), id, ring, signal);
    for _ in 0..entries {
        producer.try_send(b"x").expect("room for all");
    }
    // One turn takes 64 of them, whose forwards are queued when the close counts them; those of the
    // next turn come behind.
    stepped.shard.turn();
    let request = Request::CloseProducer {
        producer: forward.producer,
    };
    let closed = stepped.handle().request(request, Ports::None).unwrap();
    stepped.settle();
    assert!(matches!(closed.try_take(), Ok(Some(Ok(_)))));
    let told = (calls.load(Ordering::SeqCst), again.load(Ordering::SeqCst));
    assert_eq!(told.0, entries + told.1);
    assert_eq!(
        stepped.backlog("source"),
        0,
        "of {entries} every source entry is acked"
    );
    let later = (calls.load(Ordering::SeqCst), again.load(Ordering::SeqCst));
    assert!(later.1 > 0, "some forward was refused");
    assert_eq!(
        told, later,
        "with {entries} somebody waited for another event"
    );
}
