//! Idle shards: they sleep, no wake-up is lost, and none is sent without need.

use std::time::Duration;

use crossbeam_channel::bounded;
use pelton_metrics::Counter;

use super::harness::{
    PATIENCE, TestConsumer, TestProducer, is_stored, memory_topic, open_stalled_handler, options,
    spawn, stats,
};
use crate::{EngineOptions, Idle, ShardHandle, open};

/// Case BUSYPOLL-QUOTA, step 1, and runtime 7.6, over a shorter time.
#[test]
fn busypoll_quota_an_idle_shard_sleeps_whatever_its_policy_was_before() {
    for idle in [Idle::Park, Idle::default()] {
        let runtime = open(EngineOptions {
            idle,
            shards: 2,
            ..options()
        })
        .unwrap();
        let (handle, topic) = memory_topic(&runtime, "idle");
        let mut producer = TestProducer::open(handle, topic, 16);
        for _ in 0..100 {
            assert!(is_stored(producer.send(b"x").unwrap().wait()));
        }
        let _ = stats(handle);
        // Nothing happens for this long: that is what is measured.
        let (_never, silence) = bounded::<()>(0);
        let _ = silence.recv_timeout(Duration::from_millis(500));
        let metrics = stats(handle).metrics;
        let count = |counter| metrics.counters.get(counter);
        // The first is the end of the request before, the last the beginning of this one.
        assert!(
            count(Counter::Sleeps) <= 5,
            "{idle:?}: {} sleeps",
            count(Counter::Sleeps)
        );
        assert!(
            count(Counter::Turns) <= 3,
            "{idle:?}: {} turns",
            count(Counter::Turns)
        );
        let awake_ns = count(Counter::BusyNs) + count(Counter::SpinNs);
        assert!(
            awake_ns < 5_000_000,
            "{idle:?}: awake for {awake_ns} ns of 500 ms"
        );
        assert_eq!(count(Counter::Rescues), 0);
    }
}

/// Case WAKE-STOLEN, step 1: single pushes at random from three threads, the shard parks after each.
#[test]
fn wake_stolen_no_push_waits_for_a_time_out() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "stolen");
    let threads: Vec<_> = (0..3)
        .map(|i| {
            let handle: ShardHandle = handle.clone();
            let mut producer = TestProducer::open(&handle, topic, 4);
            spawn(move || {
                for round in 0..5_000_u32 {
                    // Data by ring and bit, or control by the lane; one at a time.
                    if (round + i) % 5 == 0 {
                        let _ = stats(&handle);
                    } else {
                        assert!(is_stored(producer.send(b"x").unwrap().wait()));
                    }
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    let metrics = stats(handle).metrics;
    assert_eq!(metrics.counters.get(Counter::Rescues), 0);
}

/// Case WAKE-STOLEN, step 2: producers that wait for room are all told.
#[test]
fn wake_stolen_every_sender_that_waits_for_room_goes_on() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "senders");
    let (done, ends) = bounded(4);
    let mut consumer = TestConsumer::open(handle, topic, 1_000);
    for i in 0..4_u8 {
        let mut producer = TestProducer::open(handle, topic, 2);
        let done = done.clone();
        spawn(move || {
            for _ in 0..2_000 {
                producer.send(&[i]).unwrap();
            }
            done.send(producer).unwrap();
        });
    }
    for _ in 0..8_000 {
        let got = consumer.recv().unwrap();
        consumer.ack(&got);
    }
    for _ in 0..4 {
        ends.recv_timeout(PATIENCE).unwrap();
    }
}

/// Waits until the shard sleeps: it has announced that, and looked at everything once more.
fn wait_for_sleep(handle: &ShardHandle) {
    let (_never, silence) = bounded::<()>(0);
    while !handle.shared.doorbell().is_announced() {
        std::thread::yield_now();
    }
    let _ = silence.recv_timeout(Duration::from_millis(50));
}

#[test]
fn a_shard_that_does_not_sleep_is_not_woken_and_a_burst_wakes_it_once() {
    let runtime = open(options()).unwrap();
    let (handle, topic) = memory_topic(&runtime, "burst");
    let (go, is_in) = open_stalled_handler(handle, topic, 2_000);
    let mut producer = TestProducer::open(handle, topic, 1_024);
    let _ = stats(handle);
    wait_for_sleep(handle);
    // The first entry of the burst ends the sleep; the shard stands in the handler for the others.
    let first = producer.send(b"x").unwrap();
    is_in.recv_timeout(PATIENCE).unwrap();
    let rest: Vec<_> = (0..1_000).map(|_| producer.send(b"x").unwrap()).collect();
    drop(go);
    assert!(is_stored(first.wait()) && is_stored(rest.last().unwrap().wait()));
    wait_for_sleep(handle);
    let metrics = stats(handle).metrics;
    // One for the burst, one for the question. Another ring would end the sleep in between for nothing.
    assert_eq!(metrics.counters.get(Counter::Wakes), 2);
    assert_eq!(metrics.counters.get(Counter::WakesUseless), 0);
}

#[test]
fn a_busy_shard_still_stops() {
    let runtime = open(EngineOptions {
        idle: Idle::Busy,
        ..options()
    })
    .unwrap();
    let (handle, topic) = memory_topic(&runtime, "busy");
    let mut producer = TestProducer::open(handle, topic, 16);
    assert!(is_stored(producer.send(b"x").unwrap().wait()));
    assert!(runtime.shutdown(PATIENCE, false).clean);
}
