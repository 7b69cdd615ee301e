//! Handlers that forward to topics of other shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pelton_broker::{Reply, Request};

use super::harness::{
    TestConsumer, TestProducer, ask, is_stored, memory_topic, open_handler, options, spawn, stats,
};
use crate::{EngineOptions, ForwardError, ForwardTo, Ports, Runtime, Verdict, open};

/// The name of a topic that lives on that shard.
fn name_on(runtime: &Runtime, shard: u32, prefix: &str) -> String {
    (0..)
        .map(|i| format!("{prefix}-{i}"))
        .find(|name| runtime.shard_of(name) == shard)
        .unwrap()
}

fn forward_to(runtime: &Runtime, name: &str) -> ForwardTo {
    let (handle, topic) = memory_topic(runtime, name);
    let request = Request::OpenProducer {
        topic,
        name: "forwards".to_owned(),
        slot: 0,
    };
    let Ok(Reply::Producer(producer)) = ask(handle, request, Ports::Forward) else {
        panic!()
    };
    ForwardTo {
        shard: handle.index(),
        producer,
    }
}

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
        for i in 0..5_000_u32 {
            producer.send(&i.to_be_bytes()).unwrap();
        }
    });
    for i in 0..5_000_u32 {
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
