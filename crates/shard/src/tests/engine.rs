//! The path of a message through a whole shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pelton_broker::flow::Granter;
use pelton_broker::storage::{Durability, Options as LogOptions};
use pelton_broker::{Reply, Request, SubscriptionKind};
use pelton_metrics::Counter;

use super::harness::{
    PATIENCE, TestConsumer, TestProducer, ask, is_stored, memory_topic, open_handler, open_topic,
    options, stats, subscribe, wait_for,
};
use crate::{
    CloseReason, ConsumerSignal, Data, EngineOptions, Handler, HandlerDelivery, Ports,
    RECEIPTS_PER_PAGE, ReceiptState, Verdict, open, open_driven,
};

#[test]
fn every_entry_is_receipted_delivered_in_order_and_acked() {
    let runtime = open(EngineOptions {
        shards: 2,
        ..options()
    })
    .unwrap();
    // Two topics on different shards, so both threads work.
    let names: Vec<String> = (0..2)
        .map(|shard| {
            (0..)
                .map(|i| format!("t{i}"))
                .find(|name| runtime.shard_of(name) == shard)
                .unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for name in &names {
            let runtime = &runtime;
            scope.spawn(move || {
                let (handle, topic) = memory_topic(runtime, name);
                let mut producer = TestProducer::open(handle, topic, 64);
                let mut consumer = TestConsumer::open(handle, topic, 100);
                let reader = scope.spawn(move || {
                    for i in 0..10_000_u32 {
                        let got = consumer.recv().unwrap();
                        assert_eq!(got.body, i.to_be_bytes());
                        consumer.ack(&got);
                    }
                });
                let receipts: Vec<_> = (0..10_000_u32)
                    .map(|i| producer.send(&i.to_be_bytes()).unwrap())
                    .collect();
                let mut last = None;
                for receipt in receipts {
                    let ReceiptState::Stored(position) = receipt.wait() else {
                        panic!()
                    };
                    assert!(last < Some(position), "positions rise");
                    last = Some(position);
                }
                reader.join().unwrap();
            });
        }
    });
    assert!(runtime.shutdown(super::harness::PATIENCE, false).clean);
}

#[test]
fn entries_of_every_size_keep_their_bytes_and_slots_give_up_large_memory() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "sizes");
    let mut producer = TestProducer::open(handle, topic, 4);
    let mut consumer = TestConsumer::open(handle, topic, 10);
    for bytes in [0, 1, 63, 4_096, 65_536, 65_537, 1 << 20, 5] {
        let body: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
        assert!(is_stored(producer.send(&body).unwrap().wait()));
        let got = consumer.recv().unwrap();
        assert!(got.body == body, "{bytes} bytes");
        consumer.ack(&got);
    }
}

#[test]
fn a_producer_without_room_waits_while_others_go_on_and_loses_nothing() {
    // Room for about 16 entries of 64 KiB.
    let log = LogOptions {
        memory_backlog_bytes: 1 << 20,
        ..options().log
    };
    let runtime = open(EngineOptions { log, ..options() }).unwrap();
    let (handle, full) = memory_topic(&runtime, "full");
    let (_, other) = memory_topic(&runtime, "other");
    let mut consumer = TestConsumer::open(handle, full, 1_000);
    let mut held = TestProducer::open(handle, full, 64);
    let receipts: Vec<_> = (0..64_u8)
        .map(|i| held.send(&vec![i; 65_000]).unwrap())
        .collect();
    let first: Vec<_> = (0..8_u8).map(|_| consumer.recv().unwrap()).collect();
    assert_eq!(
        receipts[63].get(),
        ReceiptState::Pending,
        "there is no room for all of it"
    );

    // A small entry of another producer still finds a place, or waits for the same room; either way
    // its topic has its own ring and its own order.
    let mut free = TestProducer::open(handle, other, 4);
    let mut other_consumer = TestConsumer::open(handle, other, 10);
    let small = free.send(b"small").unwrap();

    for got in &first {
        consumer.ack(got);
    }
    for i in 8..64_u8 {
        let got = consumer.recv().unwrap();
        assert!(got.body == vec![i; 65_000], "in order");
        consumer.ack(&got);
    }
    assert!(receipts.iter().all(|receipt| is_stored(receipt.wait())));
    assert_eq!(other_consumer.recv().unwrap().body, b"small");
    assert!(is_stored(small.wait()));
    assert!(stats(handle).metrics.counters.get(Counter::HeldNoRoom) > 0);
}

#[test]
fn a_close_waits_for_what_its_producer_published_and_the_slot_is_used_again() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "close");
    let mut consumer = TestConsumer::open(handle, topic, 2_000);
    let mut slots = Vec::new();
    for _ in 0..3 {
        let mut producer = TestProducer::open(handle, topic, 1_024);
        slots.push(producer.id.slot);
        let receipts: Vec<_> = (0..1_000_u32)
            .map(|i| producer.send(&i.to_be_bytes()).unwrap())
            .collect();
        let closed = producer.close();
        assert!(closed.wait().unwrap().is_ok());
        assert!(receipts.iter().all(|receipt| is_stored(receipt.wait())));
        for i in 0..1_000_u32 {
            let got = consumer.recv().unwrap();
            assert_eq!(got.body, i.to_be_bytes());
            consumer.ack(&got);
        }
    }
    assert_eq!(slots, [0, 0, 0]);
}

#[test]
fn a_flush_of_acks_comes_after_the_acks_pushed_before_it() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "flush");
    let mut producer = TestProducer::open(handle, topic, 1_024);
    let mut consumer = TestConsumer::open(handle, topic, 1_000);
    for round in 0..20 {
        let got: Vec<_> = (0..500)
            .map(|_| {
                producer.send(b"x").unwrap();
                consumer.recv().unwrap()
            })
            .collect();
        got.iter().for_each(|got| consumer.ack(got));
        let request = Request::FlushAcks {
            consumer: consumer.id,
        };
        assert!(ask(handle, request, Ports::None).is_ok());
        let stats = stats(handle);
        let sub = &stats.broker.topics[0].subscriptions[0];
        assert_eq!(
            (sub.backlog_entries, sub.unacked_messages),
            (0, 0),
            "round {round}"
        );
    }
}

#[test]
fn who_closes_an_exclusive_consumer_and_subscribes_again_finds_its_place_free() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "again");
    let mut producer = TestProducer::open(handle, topic, 16);
    for _ in 0..50 {
        let mut consumer = TestConsumer::open(handle, topic, 100);
        for _ in 0..10 {
            producer.send(b"x").unwrap();
            let got = consumer.recv().unwrap();
            consumer.ack(&got);
        }
        // Not waited for.
        let request = Request::CloseConsumer {
            consumer: consumer.id,
        };
        drop(handle.request(request, Ports::None).unwrap());
    }
}

#[test]
fn a_nacked_entry_comes_again_with_its_count() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "nack");
    let mut producer = TestProducer::open(handle, topic, 16);
    let kind = SubscriptionKind::Shared;
    let mut consumer = TestConsumer::open_named(handle, topic, "sub", kind, 10);
    producer.send(b"again").unwrap();
    let got = consumer.recv().unwrap();
    consumer.push(Data::Nack {
        consumer: consumer.id,
        position: got.position,
    });
    let again = consumer.recv().unwrap();
    assert_eq!((again.position, again.redeliveries), (got.position, 1));
}

#[test]
fn more_grants_than_ring_places_lose_nothing() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "spill");
    let kind = SubscriptionKind::Shared;
    let mut consumer = TestConsumer::open_named(handle, topic, "sub", kind, 2);
    consumer.grant(10_000);
    let mut producer = TestProducer::open(handle, topic, 2);
    for i in 0..2_000_u32 {
        // One at a time, so that each makes a run of its own.
        assert!(is_stored(producer.send(&i.to_be_bytes()).unwrap().wait()));
    }
    for i in 0..2_000_u32 {
        assert_eq!(consumer.recv().unwrap().body, i.to_be_bytes());
    }
}

#[test]
fn a_handler_runs_on_the_shard_and_its_window_is_granted_again() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "handler");
    let seen = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&seen);
    let mut refused = None;
    let (_, signal) = open_handler(
        handle,
        topic,
        4,
        Box::new(move |delivery| {
            assert!(crate::on_shard_thread());
            let expected = count.load(Ordering::SeqCst);
            // Each third one is refused once.
            if expected % 3 == 2 && refused.replace(expected) != Some(expected) {
                return Verdict::Nack;
            }
            assert_eq!(delivery.body(), expected.to_be_bytes());
            count.fetch_add(1, Ordering::SeqCst);
            Verdict::Ack
        }),
    );
    let mut producer = TestProducer::open(handle, topic, 16);
    let mut last = None;
    for i in 0..300_u32 {
        // One at a time: what is refused would otherwise come after its successors.
        last = producer.send(&i.to_be_bytes());
        wait_until(handle, || seen.load(Ordering::SeqCst) == i + 1);
    }
    assert!(is_stored(last.unwrap().wait()));
    assert_eq!(signal.closed(), None);
    let backlog = stats(handle).broker.topics[0].subscriptions[0].backlog_entries;
    assert_eq!(backlog, 0);
}

/// Waits for the shard's own thread: each answer of it lets its turns go on.
fn wait_until(handle: &crate::ShardHandle, done: impl Fn() -> bool) {
    for _ in 0..100_000 {
        if done() {
            return;
        }
        let _ = stats(handle);
    }
    panic!("it did not come to that");
}

#[test]
fn a_handler_that_panics_is_detached_and_its_entries_go_to_others() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "panics");
    let (_, signal) = open_handler(
        handle,
        topic,
        10,
        Box::new(|delivery| {
            assert_ne!(delivery.body(), b"bad", "this panic is part of the test");
            Verdict::Ack
        }),
    );
    let mut producer = TestProducer::open(handle, topic, 16);
    for body in [&b"good"[..], b"bad", b"after"] {
        producer.send(body).unwrap();
    }
    let reason = wait_for("the handler's end", |waker| {
        signal.wait_for_delivery(waker);
        signal.closed()
    });
    assert_eq!(reason, CloseReason::HandlerPanicked);
    let kind = SubscriptionKind::Exclusive;
    let mut consumer = TestConsumer::open_named(handle, topic, "handler", kind, 10);
    let bodies = [consumer.recv().unwrap().body, consumer.recv().unwrap().body];
    assert_eq!(bodies, [b"bad".to_vec(), b"after".to_vec()]);
    assert!(
        stats(handle)
            .notes
            .iter()
            .any(|note| note.contains("panicked"))
    );
}

#[test]
fn a_handler_whose_state_panics_when_dropped_costs_nobody_else_the_shard() {
    struct Held;
    impl Drop for Held {
        fn drop(&mut self) {
            panic!("this panic is part of the test");
        }
    }
    let handler = |held: Held| {
        Box::new(move |_: &HandlerDelivery<'_>| {
            let _ = &held;
            Verdict::Ack
        })
    };
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "drops");
    let (consumer, _) = open_handler(handle, topic, 10, handler(Held));
    ask(handle, Request::CloseConsumer { consumer }, Ports::None).unwrap();
    // And one that ends with its shard.
    open_handler(handle, topic, 10, handler(Held));
    let report = runtime.shutdown(PATIENCE, false);
    assert!(report.clean, "{report}");
}

#[test]
fn a_handler_that_panics_before_its_subscribe_is_answered_keeps_its_slot_from_newcomers() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = open(EngineOptions {
        dir: Some(dir.path().join("data")),
        ..options()
    })
    .unwrap();
    let handle = runtime.handle(0);
    let [bad, calm] = ["bad", "calm"].map(|name| open_topic(handle, name, Durability::Synced));
    let kind = SubscriptionKind::Exclusive;
    let first = TestConsumer::open_named(handle, bad, "handler", kind, 1);
    let consumer = first.id;
    ask(handle, Request::CloseConsumer { consumer }, Ports::None).unwrap();
    let mut producer = TestProducer::open(handle, bad, 4);
    assert!(is_stored(producer.send(b"bad").unwrap().wait()));

    // Answers to subscribers wait for the metadata that is on its way; deliveries do not.
    let busy: Vec<_> = ["x", "y", "z"]
        .map(|name| Request::OpenTopic {
            name: name.to_owned(),
            durability: Durability::Synced,
        })
        .map(|request| handle.request(request, Ports::None).unwrap())
        .into();
    let signal = Arc::new(ConsumerSignal::new());
    let (mut granter, account) = Granter::pair();
    let _ = granter.grant(1);
    let ports = Ports::Handler {
        handler: Handler::new(|_| panic!("this panic is part of the test")),
        granter,
        signal: Arc::clone(&signal),
    };
    let late = handle
        .request(subscribe(bad, "handler", kind, account), ports)
        .unwrap();
    let reason = wait_for("the handler's end", |waker| {
        signal.wait_for_delivery(waker);
        signal.closed()
    });
    assert_eq!(reason, CloseReason::HandlerPanicked);

    let mut newcomer = TestConsumer::open_named(handle, calm, "sub", kind, 1);
    let Ok(Reply::Consumer(panicked)) = late.wait_timeout(PATIENCE).unwrap().unwrap() else {
        panic!("it was attached")
    };
    assert_ne!(panicked.slot, newcomer.id.slot);
    let mut producer = TestProducer::open(handle, calm, 4);
    producer.send(b"calm").unwrap();
    assert_eq!(newcomer.recv().unwrap().body, b"calm");
    let mut after = TestConsumer::open_named(handle, bad, "handler", kind, 1);
    assert_eq!(after.recv().unwrap().body, b"bad");
    drop(busy);
}

#[test]
fn receipts_of_many_pages_are_all_given() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "pages");
    let mut producer = TestProducer::open(handle, topic, 1_024);
    let receipts: Vec<_> = (0..RECEIPTS_PER_PAGE * 5 + 3)
        .map(|_| producer.send(b"x").unwrap())
        .collect();
    assert!(receipts.iter().all(|receipt| is_stored(receipt.wait())));
}

#[test]
fn a_driven_engine_does_everything_in_the_callers_turns_and_nothing_else() {
    let (runtime, mut driver) = open_driven(options()).unwrap();
    let handle = runtime.handle(0).clone();
    let name = "driven".to_owned();
    let asked = handle
        .request(
            Request::OpenTopic {
                name,
                durability: Durability::Memory,
            },
            Ports::None,
        )
        .unwrap();
    assert!(asked.try_take().unwrap().is_none(), "nobody has driven it");
    while driver.run_once().items > 0 {}
    assert!(asked.try_take().unwrap().is_some());
    assert_eq!(driver.run_once().items, 0);
    driver.park(std::time::Duration::from_micros(100));
    let report = driver.shutdown(super::harness::PATIENCE).unwrap();
    assert!(report.clean && driver.is_done() && runtime.is_stopped());
}

#[test]
fn a_request_for_a_topic_of_another_shard_is_answered_by_its_owner() {
    let runtime = open(EngineOptions {
        shards: 3,
        ..options()
    })
    .unwrap();
    for i in 0..30 {
        let name = format!("topic-{i}");
        let wrong = (runtime.shard_of(&name) + 1) % 3;
        let topic = super::harness::open_topic(runtime.handle(wrong), &name, Durability::Memory);
        // The id is the owner's: a producer opens there.
        let mut producer = TestProducer::open(runtime.handle(runtime.shard_of(&name)), topic, 4);
        assert!(is_stored(producer.send(b"x").unwrap().wait()));
    }
}

#[test]
fn what_the_log_did_is_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let runtime = open(EngineOptions {
        dir: Some(dir.path().to_owned()),
        ..options()
    })
    .unwrap();
    let handle = runtime.handle(0);
    let topic = open_topic(handle, "kept", Durability::Synced);
    let mut producer = TestProducer::open(handle, topic, 4);
    let _ = stats(handle);
    for _ in 0..5 {
        assert!(is_stored(producer.send(b"x").unwrap().wait()));
    }
    // Each was waited for, so each had a commit of its own.
    let commits = || stats(handle).metrics.counters.get(Counter::Commits);
    assert!(commits() >= 5);
    assert_eq!(commits(), 0, "nothing was written since");
}
