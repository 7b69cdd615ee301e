//! Permits, with exact numbers: what was granted, handed over, and is owed. Cases PERMIT-*.

use pelton::{Consumer, Engine, GrantError, InitialPosition, Message, Producer, SubscriptionKind};

use crate::common::{LONG, eventually, memory, some_turns, stats_of, subscribed};

const BACKLOG: (&str, &str) = ("t", "s");

/// A Shared consumer that grants by hand, and so many entries of 100 messages waiting for it.
fn backlog_of_batches(engine: &Engine, entries: u32) -> (Producer, Consumer) {
    let topic = engine.topic("t").open().unwrap();
    let consumer = topic
        .subscribe("s")
        .kind(SubscriptionKind::Shared)
        .initial(InitialPosition::Earliest)
        .manual_permits()
        .open()
        .unwrap();
    let mut producer = topic.producer().open().unwrap();
    for entry in 0..entries {
        let number = entry.to_le_bytes();
        producer.send_batch([Message::new(&number); 100]).unwrap();
    }
    producer.flush().unwrap();
    (producer, consumer)
}

/// Receives exactly the entries `from..to`, acks them, and checks that nothing more was handed over
/// and that the shard counts `permits` left.
fn exactly(engine: &Engine, consumer: &mut Consumer, from: u32, to: u32, permits: i64) {
    for entry in from..to {
        let delivery = consumer
            .recv_timeout(LONG)
            .unwrap()
            .expect("an entry for the permits");
        assert_eq!(delivery.payload(), entry.to_le_bytes(), "in order");
        assert_eq!(delivery.message_count(), 100);
        delivery.ack();
    }
    some_turns(engine);
    assert!(consumer.try_recv().unwrap().is_none(), "an entry too many");
    let stats = stats_of(engine, BACKLOG.0, BACKLOG.1);
    assert_eq!(stats.delivered_messages, u64::from(to) * 100);
    assert_eq!(stats.consumers[0].available_permits, permits);
    assert_eq!(consumer.permits(), permits);
}

/// PERMIT-ZERO-READ.
#[test]
fn a_few_permits_against_large_entries_bring_one_entry_and_debt() {
    let engine = memory();
    let (_producer, mut consumer) = backlog_of_batches(&engine, 60);
    exactly(&engine, &mut consumer, 0, 0, 0);
    consumer.grant(1_000).unwrap();
    exactly(&engine, &mut consumer, 0, 10, 0);
    let estimate = stats_of(&engine, "t", "s").consumers[0].avg_messages_per_entry;
    assert!((estimate - 100.0).abs() < 1e-9, "estimate {estimate}");
    eventually(&engine, BACKLOG, |s| {
        s.acked_messages == 1_000 && s.unacked_messages == 0
    });
    consumer.grant(4).unwrap();
    exactly(&engine, &mut consumer, 10, 11, -96);
    consumer.grant(95).unwrap();
    exactly(&engine, &mut consumer, 11, 11, -1);
    consumer.grant(2).unwrap();
    exactly(&engine, &mut consumer, 11, 12, -99);
}

/// PERMIT-FIRST-BATCH-OVERSHOOT.
#[test]
fn a_fresh_subscription_overshoots_by_one_entry_at_most() {
    let engine = memory();
    let (_producer, mut consumer) = backlog_of_batches(&engine, 40);
    consumer.grant(20).unwrap();
    exactly(&engine, &mut consumer, 0, 1, -80);
    let stats = stats_of(&engine, "t", "s");
    assert_eq!(stats.backlog_messages, 3_900 + stats.unacked_messages);
    consumer.grant(80).unwrap();
    exactly(&engine, &mut consumer, 1, 1, 0);
    consumer.grant(1).unwrap();
    exactly(&engine, &mut consumer, 1, 2, -99);
}

#[test]
fn without_permits_nothing_comes_and_zero_grants_nothing() {
    let engine = memory();
    let (_producer, mut consumer) = backlog_of_batches(&engine, 3);
    consumer.grant(0).unwrap();
    exactly(&engine, &mut consumer, 0, 0, 0);
}

#[test]
fn acks_and_nacks_give_no_permits_back() {
    let engine = memory();
    let (_producer, mut consumer) = backlog_of_batches(&engine, 3);
    consumer.grant(200).unwrap();
    let first = consumer.recv_timeout(LONG).unwrap().unwrap();
    let second = consumer.recv_timeout(LONG).unwrap().unwrap();
    first.ack();
    second.nack();
    let stats = eventually(&engine, BACKLOG, |s| {
        s.replay_entries == 1 && s.acked_messages == 100
    });
    assert_eq!(
        (stats.unacked_messages, stats.consumers[0].available_permits),
        (0, 0)
    );
    some_turns(&engine);
    assert!(consumer.try_recv().unwrap().is_none());
    // What is owed again goes first, and is paid for again.
    consumer.grant(100).unwrap();
    let again = consumer.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(
        (again.payload(), again.redelivery_count()),
        (&1u32.to_le_bytes()[..], 1)
    );
    again.ack();
    assert_eq!(
        stats_of(&engine, "t", "s").consumers[0].available_permits,
        0
    );
}

#[test]
fn more_than_the_window_is_not_granted() {
    let engine = memory();
    let (topic, _) = subscribed(&engine, "t", "other");
    let mut consumer = topic
        .subscribe("s")
        .window(10)
        .manual_permits()
        .open()
        .unwrap();
    consumer.grant(10).unwrap();
    let refused = GrantError::Window {
        asked: 1,
        outstanding: 10,
        window: 10,
    };
    assert_eq!(consumer.grant(1), Err(refused));
    let mut producer = topic.producer().open().unwrap();
    producer.send("x").unwrap();
    consumer.recv_timeout(LONG).unwrap().unwrap().ack();
    consumer.grant(1).unwrap();
    assert_eq!((consumer.grant(1), consumer.permits()), (Err(refused), 10));
}

#[test]
fn automatic_grants_keep_the_window_and_pay_the_debt_of_large_entries() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let mut consumer = topic.subscribe("s").window(10).open().unwrap();
    let mut producer = topic.producer().open().unwrap();
    for round in 0..200u32 {
        let entry = [Message::new(b"m"); 64];
        producer
            .send_batch(&entry[..round as usize % 64 + 1])
            .unwrap();
    }
    for round in 0..200u32 {
        let delivery = consumer
            .recv_timeout(LONG)
            .unwrap()
            .expect("the grants never dry up");
        assert_eq!(delivery.message_count(), round % 64 + 1);
        let outstanding = consumer.permits();
        assert!(
            (-63..=10).contains(&outstanding),
            "{outstanding} of a window of 10"
        );
        delivery.ack();
    }
}

#[test]
fn a_consumer_without_permits_holds_up_nobody_else() {
    let engine = memory();
    let (mut producer, starved) = backlog_of_batches(&engine, 4);
    let topic = engine.topic("t").open().unwrap();
    let mut other = topic
        .subscribe("s")
        .kind(SubscriptionKind::Shared)
        .open()
        .unwrap();
    for entry in 0..4u32 {
        let delivery = other
            .recv_timeout(LONG)
            .unwrap()
            .expect("all entries come here");
        assert_eq!(delivery.payload(), entry.to_le_bytes());
        delivery.ack();
    }
    producer.send("more").unwrap();
    other
        .recv_timeout(LONG)
        .unwrap()
        .expect("this one too")
        .ack();
    assert_eq!(starved.permits(), 0);
}
