//! Orderly ends (case SHUTDOWN-HANG): bounded, told to everybody, nothing vanishes.

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{bounded, unbounded};
use pelton_broker::Refusal;
use pelton_broker::storage::{Durability, Options as LogOptions};
use pelton_metrics::Counter;

use super::harness::{
    PATIENCE, TestConsumer, TestProducer, TestReceipt, is_stored, memory_topic, open_handler,
    open_stalled_handler, open_topic, options, spawn, stats,
};
use crate::{
    CloseReason, Control, DiskChoice, EngineOptions, ProducerState, PushError, ReceiptState,
    Verdict, open,
};

const FIVE_S: Duration = Duration::from_secs(5);

fn refused(state: ReceiptState) -> bool {
    state == ReceiptState::Refused(Refusal::Closed)
}

#[test]
fn shutdown_hang_a_stop_ends_while_producers_push_in_a_loop_and_every_receipt_is_answered() {
    let runtime = open(EngineOptions {
        shards: 2,
        ..options()
    })
    .unwrap();
    let producers: Vec<TestProducer> = (0..4)
        .map(|i| {
            let (handle, topic) = memory_topic(&runtime, &format!("loop-{i}"));
            TestProducer::open(handle, topic, 64)
        })
        .collect();
    let (started, first) = bounded(4);
    let threads: Vec<_> = producers
        .into_iter()
        .map(|mut producer| {
            let started = started.clone();
            spawn(move || {
                let mut receipts: Vec<TestReceipt> = Vec::new();
                while let Some(receipt) = producer.send(b"x") {
                    receipts.push(receipt);
                    if receipts.len() == 100 {
                        started.send(()).unwrap();
                    }
                }
                let states: Vec<_> = receipts.iter().map(TestReceipt::wait).collect();
                let stored = states.iter().filter(|&&state| is_stored(state)).count();
                assert!(
                    states[..stored].iter().all(|&state| is_stored(state)),
                    "stored first"
                );
                assert!(
                    states[stored..].iter().all(|&state| refused(state)),
                    "then refused"
                );
                stored
            })
        })
        .collect();
    for _ in 0..4 {
        first.recv_timeout(PATIENCE).unwrap();
    }
    let report = runtime.shutdown(FIVE_S, false);
    assert!(
        report.clean && report.waited && report.took_ns < 5_000_000_000,
        "{report:?}"
    );
    assert_eq!(report.shards.len(), 2);
    let stored: usize = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .sum();
    assert!(stored >= 400);
}

#[test]
fn shutdown_hang_a_producer_blocked_on_a_full_ring_is_told() {
    // No room at all: the ring stays full, since nobody consumes.
    let log = LogOptions {
        memory_backlog_bytes: 1 << 20,
        ..options().log
    };
    let runtime = open(EngineOptions { log, ..options() }).unwrap();
    let (handle, topic) = memory_topic(&runtime, "blocked");
    let consumer = TestConsumer::open(handle, topic, 1);
    let mut producer = TestProducer::open(handle, topic, 8);
    let (blocked, is_blocked) = bounded(1);
    let handle = handle.clone();
    let thread = spawn(move || {
        let body = vec![0; 60_000];
        let mut receipts = Vec::new();
        let mut held = false;
        loop {
            match producer.try_send(&body) {
                Some(receipt) => receipts.push(receipt),
                // Full, and the shard says that it has no room: it stays so.
                None if held => break,
                None => held = stats(&handle).metrics.counters.get(Counter::HeldNoRoom) > 0,
            }
        }
        blocked.send(()).unwrap();
        assert!(producer.send(&body).is_none(), "told, not served");
        receipts.iter().map(TestReceipt::wait).collect::<Vec<_>>()
    });
    is_blocked.recv_timeout(PATIENCE).unwrap();
    let report = runtime.shutdown(FIVE_S, false);
    assert!(
        report.clean,
        "a stop does not wait for consumers: {report:?}"
    );
    let states = thread.join().unwrap();
    assert!(
        states
            .iter()
            .all(|&state| is_stored(state) || refused(state)),
        "{states:?}"
    );
    assert!(refused(*states.last().unwrap()));
    assert_eq!(consumer.signal.closed(), Some(CloseReason::EngineStopped));
}

#[test]
fn shutdown_hang_within_a_millisecond_of_the_start_and_before_anything_was_attached() {
    for shards in [1, 3] {
        let runtime = open(EngineOptions {
            shards,
            ..options()
        })
        .unwrap();
        let report = runtime.shutdown(FIVE_S, false);
        assert!(report.clean, "{report:?}");
        assert_eq!(report.shards.len(), shards);
    }
    drop(open(options()).unwrap());
}

#[test]
fn shutdown_hang_twice_and_from_two_threads_gives_one_report() {
    let runtime = Arc::new(
        open(EngineOptions {
            shards: 2,
            ..options()
        })
        .unwrap(),
    );
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let runtime = Arc::clone(&runtime);
            spawn(move || runtime.shutdown(FIVE_S, false))
        })
        .collect();
    let reports: Vec<_> = threads
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    assert_eq!(reports[0].shards, reports[1].shards);
    let again = runtime.shutdown(Duration::ZERO, true);
    assert_eq!(again.shards, reports[0].shards);
    assert!(again.clean && runtime.is_stopped());
}

#[test]
fn shutdown_hang_dropping_the_engine_inside_a_handler_does_not_wait_for_itself() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "inside");
    let handle = handle.clone();
    let (give, take) = bounded::<crate::Runtime>(1);
    let (told, tells) = bounded(1);
    let (_, signal) = open_handler(
        &handle,
        topic,
        4,
        Box::new(move |_| {
            if let Ok(runtime) = take.recv_timeout(PATIENCE) {
                let report = runtime.shutdown(FIVE_S, false);
                told.send(report.waited).unwrap();
                drop(runtime);
            }
            Verdict::Ack
        }),
    );
    let mut producer = TestProducer::open(&handle, topic, 4);
    give.send(runtime).unwrap();
    let receipt = producer.send(b"x").unwrap();
    assert!(!tells.recv_timeout(PATIENCE).unwrap());
    assert!(is_stored(receipt.wait()));
    let reason = super::harness::wait_for("the end", |waker| {
        signal.wait_for_delivery(waker);
        signal.closed()
    });
    assert_eq!(reason, CloseReason::EngineStopped);
}

#[test]
fn shutdown_hang_a_handler_that_blocks_is_named_and_the_stop_returns_all_the_same() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "blocks");
    let (go, wait) = unbounded::<()>();
    let (entered, is_in) = bounded(1);
    open_handler(
        handle,
        topic,
        4,
        Box::new(move |_| {
            let _ = entered.try_send(());
            let _ = wait.recv();
            Verdict::Ack
        }),
    );
    let mut producer = TestProducer::open(handle, topic, 4);
    producer.send(b"x").unwrap();
    is_in.recv_timeout(PATIENCE).unwrap();
    let report = runtime.shutdown(Duration::from_millis(10), false);
    assert_eq!((report.running.as_slice(), report.clean), (&[0][..], false));
    drop(go);
    let report = runtime.shutdown(FIVE_S, false);
    assert!(
        report.running.is_empty() && runtime.is_stopped(),
        "{report:?}"
    );
}

#[test]
fn an_abort_refuses_what_is_queued_and_says_how_much() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "abort");
    let (go, is_in) = open_stalled_handler(handle, topic, 100);
    let mut producer = TestProducer::open(handle, topic, 64);
    producer.send(b"first").unwrap();
    is_in.recv_timeout(PATIENCE).unwrap();
    // The shard stands still inside the handler, so these stay in the ring.
    let queued: Vec<_> = (0..64).map(|_| producer.send(b"x").unwrap()).collect();
    runtime.start_shutdown(FIVE_S, true);
    drop(go);
    let report = runtime.shutdown(FIVE_S, true);
    assert!(!report.clean);
    assert_eq!(report.shards[0].refused_entries, 64);
    let states: Vec<_> = queued.iter().map(TestReceipt::wait).collect();
    assert!(states.iter().all(|&state| refused(state)), "{states:?}");
    assert_eq!(producer.signal.state(), ProducerState::Closed);
}

#[test]
fn a_drain_takes_what_is_queued_when_it_starts() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "drain");
    let (go, is_in) = open_stalled_handler(handle, topic, 100);
    let mut producer = TestProducer::open(handle, topic, 128);
    producer.send(b"first").unwrap();
    is_in.recv_timeout(PATIENCE).unwrap();
    let queued: Vec<_> = (0..128).map(|_| producer.send(b"x").unwrap()).collect();
    runtime.start_shutdown(FIVE_S, false);
    drop(go);
    let report = runtime.shutdown(FIVE_S, false);
    assert!(report.clean, "{report:?}");
    assert!(queued.iter().all(|receipt| is_stored(receipt.wait())));
    assert_eq!(report.shards[0].refused_entries, 0);
}

#[test]
fn after_a_stop_every_call_says_closed() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "after");
    let handle = handle.clone();
    let mut producer = TestProducer::open(&handle, topic, 4);
    let mut consumer = TestConsumer::open(&handle, topic, 4);
    assert!(is_stored(producer.send(b"left over").unwrap().wait()));
    runtime.shutdown(FIVE_S, false);
    assert!(producer.try_send(b"x").is_none());
    assert_eq!(
        consumer.recv().unwrap().body,
        b"left over",
        "what was handed over can be drained"
    );
    assert!(consumer.recv().is_none());
    let (to, from) = crate::reply();
    let control = Control::Stats {
        spare: Box::default(),
        reply: to,
    };
    assert!(matches!(handle.control(control), Err(PushError::Closed(_))));
    assert!(from.wait().is_err());
}

#[test]
fn a_durable_topic_keeps_every_stored_entry_and_the_stop_marks_it_clean() {
    let dir = tempfile::tempdir().unwrap();
    let cases = [
        (DiskChoice::Auto, Durability::Synced),
        (DiskChoice::Auto, Durability::Written),
        (DiskChoice::Pread, Durability::Synced),
        (DiskChoice::Pread, Durability::Written),
    ];
    for (disk, durability) in cases {
        let durable = || EngineOptions {
            dir: Some(dir.path().join("data")),
            disk,
            ..options()
        };
        let name = format!("{disk:?}-{durability:?}");
        let runtime = open(durable()).unwrap();
        let handle = runtime.handle(0).clone();
        let topic = open_topic(&handle, &name, durability);
        // Without a subscription nothing would be kept.
        let subscribed = TestConsumer::open(&handle, topic, 1);
        let mut producer = TestProducer::open(&handle, topic, 64);
        let receipts: Vec<_> = (0..500_u32)
            .map(|i| producer.send(&i.to_be_bytes()).unwrap())
            .collect();
        let report = runtime.shutdown(FIVE_S, false);
        assert!(report.clean, "{report:?}");
        assert!(receipts.iter().all(|receipt| is_stored(receipt.wait())));
        assert_eq!(subscribed.signal.closed(), Some(CloseReason::EngineStopped));
        // The directory is free while the old runtime is still there.
        let again = open(durable()).unwrap();
        let handle = again.handle(0);
        let topic = open_topic(handle, &name, durability);
        let mut consumer = TestConsumer::open(handle, topic, 100);
        for i in 0..500_u32 {
            let got = consumer.recv().unwrap();
            assert_eq!(got.body, i.to_be_bytes());
            consumer.ack(&got);
        }
    }
}
