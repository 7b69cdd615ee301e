//! Stopping: bounded, repeatable, from anywhere; nothing receipted is lost. Case SHUTDOWN-HANG.

use std::sync::mpsc;
use std::time::Duration;

use pelton::{Engine, SendError, Verdict};

use crate::common::{LONG, memory, receive, small};

/// The bound of SHUTDOWN-HANG.
const BOUND: Duration = Duration::from_secs(5);

fn timed<T>(engine: &Engine, f: impl FnOnce() -> T) -> T {
    let before_ns = engine.clock().now_ns();
    let value = f();
    let took_ns = engine.clock().now_ns() - before_ns;
    assert!(
        u128::from(took_ns) < 2 * BOUND.as_nanos(),
        "took {took_ns} ns"
    );
    value
}

#[test]
fn producers_in_a_loop_are_told_and_receipted_entries_are_there() {
    let directory = tempfile::tempdir().unwrap();
    let engine = small(directory.path())
        .segment_bytes(1 << 20)
        .open()
        .unwrap();
    let topic = engine.topic("t").open().unwrap();
    drop(topic.subscribe("s").open().unwrap());
    let (first, started) = mpsc::channel();
    let threads: Vec<_> = (0..3u8)
        .map(|id| {
            // A queue this small is full nearly always, so some of them stop while they wait.
            let mut producer = topic.producer().queue(8).open().unwrap();
            let first = first.clone();
            std::thread::spawn(move || {
                let mut receipts = Vec::new();
                for i in 0u64.. {
                    let mut payload = vec![id; 100];
                    payload[1..9].copy_from_slice(&i.to_le_bytes());
                    match producer.send(&payload) {
                        Ok(receipt) => receipts.push(receipt),
                        Err(SendError::Closed { .. }) => break,
                        Err(error) => panic!("{error}"),
                    }
                    if i == 100 {
                        first.send(()).unwrap();
                    }
                }
                receipts
                    .iter()
                    .map(|receipt| receipt.wait().is_ok())
                    .collect::<Vec<bool>>()
            })
        })
        .collect();
    for _ in 0..3 {
        started.recv_timeout(LONG).unwrap();
    }
    let report = timed(&engine, || engine.shutdown(BOUND));
    assert!(report.clean, "{report:?}");
    let receipted: Vec<Vec<bool>> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    drop((topic, engine));

    let engine = small(directory.path())
        .segment_bytes(1 << 20)
        .open()
        .unwrap();
    let topic = engine.topic("t").open().unwrap();
    let mut consumer = topic.subscribe("s").open().unwrap();
    let backlog = crate::common::stats_of(&engine, "t", "s").backlog_entries as usize;
    let mut found: Vec<Vec<bool>> = receipted.iter().map(|r| vec![false; r.len()]).collect();
    for payload in receive(&mut consumer, backlog) {
        let at = u64::from_le_bytes(payload[1..9].try_into().unwrap()) as usize;
        let seen = &mut found[usize::from(payload[0])][at];
        assert!(!*seen, "stored twice");
        *seen = true;
    }
    for (receipted, found) in receipted.iter().zip(&found) {
        assert!(receipted.len() > 100);
        let lost = receipted
            .iter()
            .zip(found)
            .filter(|(receipt, found)| **receipt && !**found);
        assert_eq!(lost.count(), 0, "receipted entries were lost");
    }
}

#[test]
fn an_engine_can_be_stopped_at_once_twice_and_from_two_threads() {
    for _ in 0..20 {
        let engine = memory();
        timed(&engine, || engine.shutdown(BOUND));
        timed(&engine, || engine.shutdown(BOUND));
    }
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let mut producer = topic.producer().open().unwrap();
    producer.send("x").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| timed(&engine, || engine.shutdown(BOUND)));
        }
    });
    assert!(producer.send("y").is_err());
}

#[test]
fn a_blocked_consumer_is_woken_by_the_stop() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let mut consumer = topic.subscribe("s").open().unwrap();
    let waiting = std::thread::spawn(move || consumer.recv().map(|delivery| delivery.ack()));
    timed(&engine, || engine.shutdown(BOUND));
    assert!(waiting.join().unwrap().is_err());
}

#[test]
fn the_engine_can_be_dropped_inside_a_handler() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let mut producer = topic.producer().open().unwrap();
    let (give, given) = mpsc::channel::<Engine>();
    let (done, is_done) = mpsc::channel();
    let guard = topic
        .subscribe("s")
        .handler(move |_| {
            drop(given.recv().unwrap());
            done.send(()).unwrap();
            Verdict::Ack
        })
        .unwrap();
    give.send(engine).unwrap();
    producer.send("stop").unwrap();
    is_done
        .recv_timeout(LONG)
        .expect("the drop did not wait for its own thread");
    // The shard ends by itself.
    let end = pelton::Clock::new().now_ns() + LONG.as_nanos() as u64;
    while producer.send("more").is_ok() {
        assert!(pelton::Clock::new().now_ns() < end, "the shard never ended");
        std::thread::yield_now();
    }
    drop(guard);
}
