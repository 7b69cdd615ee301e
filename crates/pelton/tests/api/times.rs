//! Messages with times: to deliver at, deadlines, a topic's time to live. Rules D122 to D131.

use std::time::Duration;

use pelton::{Clock, Message, Policy, Receipt, ReceiptError, SubscriptionKind};

use crate::common::{LONG, eventually, memory, shared, small, stats_of, subscribed};

fn stored(receipt: Receipt) -> Result<(), ReceiptError> {
    receipt.wait().map(drop)
}

#[test]
fn a_message_comes_at_its_time_and_others_before_it() {
    let engine = memory();
    let (topic, mut consumer) = shared(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    let clock = Clock::new();
    let deliver_at_ms = clock.wall_ms() + 150;
    let later = Message::from("later").deliver_at_ms(deliver_at_ms);
    producer.send_message(later).unwrap();
    let after = Message::from("after").deliver_after(Duration::from_secs(3_600));
    producer.send_message(after).unwrap();
    producer.send("now").unwrap();
    let first = consumer.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(
        (first.payload(), first.entry().deliver_at_ms()),
        (&b"now"[..], 0)
    );
    first.ack();
    let second = consumer.recv_timeout(LONG).unwrap().unwrap();
    assert!(clock.wall_ms() >= deliver_at_ms, "it came early");
    assert_eq!(second.payload(), b"later");
    assert_eq!(second.entry().deliver_at_ms(), deliver_at_ms);
    second.ack();
    assert_eq!(stats_of(&engine, "t", "s").delayed_entries, 1);
    // Not heeded any more: it comes at once.
    let policy = Policy {
        delayed_delivery_enabled: false,
        ..Policy::default()
    };
    topic.set_policy(&policy).unwrap();
    assert_eq!(
        consumer.recv_timeout(LONG).unwrap().unwrap().payload(),
        b"after"
    );
}

#[test]
fn an_exclusive_consumer_gets_everything_at_once_and_in_order() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    let hour = Duration::from_secs(3_600);
    producer
        .send_message(Message::from("a").deliver_after(hour))
        .unwrap();
    producer.send("b").unwrap();
    for expected in [b"a", b"b"] {
        let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(delivery.payload(), expected);
        delivery.ack();
    }
}

#[test]
fn of_a_batch_the_latest_times_count() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    let far = 1 << 50;
    let timed = |deliver_at_ms, deadline_ms| {
        Message::from("m")
            .deliver_at_ms(deliver_at_ms)
            .deadline_ms(deadline_ms)
    };
    let batches = [
        (
            vec![timed(7, far), timed(9, far + 5), timed(8, far + 1)],
            (9, far + 5),
        ),
        (vec![timed(7, far), timed(0, 0)], (7, 0)),
        (vec![timed(0, 0), timed(3, far)], (3, 0)),
    ];
    for (messages, expected) in batches {
        producer.send_batch(messages).unwrap();
        let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
        let entry = delivery.entry();
        assert_eq!((entry.deliver_at_ms(), entry.deadline_ms()), expected);
        delivery.ack();
    }
}

#[test]
fn what_nobody_asked_for_in_time_is_dropped_and_counted() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let mut consumer = topic
        .subscribe("s")
        .kind(SubscriptionKind::Shared)
        .manual_permits()
        .open()
        .unwrap();
    let mut producer = topic.producer().open().unwrap();
    let brief = Message::from("brief").deadline_after(Duration::from_millis(20));
    stored(producer.send_message(brief).unwrap()).unwrap();
    stored(producer.send("lasting").unwrap()).unwrap();
    let stats = eventually(&engine, ("t", "s"), |s| s.deadline_dropped_messages == 1);
    assert_eq!((stats.backlog_messages, stats.delivered_messages), (1, 0));
    consumer.grant(10).unwrap();
    let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(delivery.payload(), b"lasting");
}

#[test]
fn a_time_to_live_ends_what_is_held_as_well() {
    let engine = memory();
    let (topic, mut consumer) = shared(&engine, "t", "s");
    let policy = Policy {
        message_ttl_seconds: 1,
        ..Policy::default()
    };
    topic.set_policy(&policy).unwrap();
    let mut producer = topic.producer().open().unwrap();
    producer.send("one").unwrap();
    let held = consumer.recv_timeout(LONG).unwrap().unwrap();
    let stats = eventually(&engine, ("t", "s"), |s| s.expired_messages == 1);
    assert_eq!((stats.unacked_messages, stats.backlog_messages), (0, 0));
    held.nack(); // too late for either
    producer.send("two").unwrap();
    assert_eq!(
        consumer.recv_timeout(LONG).unwrap().unwrap().payload(),
        b"two"
    );
}

#[test]
fn a_delay_beyond_the_policy_is_refused_by_its_receipt() {
    let engine = memory();
    let (topic, _consumer) = shared(&engine, "t", "s");
    let policy = Policy {
        delayed_delivery_max_delay_in_millis: 60_000,
        ..Policy::default()
    };
    topic.set_policy(&policy).unwrap();
    let mut producer = topic.producer().open().unwrap();
    let hour = Message::from("m").deliver_after(Duration::from_secs(3_600));
    let refused = stored(producer.send_message(hour).unwrap());
    assert!(
        matches!(refused, Err(ReceiptError::DelayTooLong)),
        "{refused:?}"
    );
    let second = Message::from("m").deliver_after(Duration::from_secs(1));
    stored(producer.send_message(second).unwrap()).unwrap();
}

#[test]
fn times_survive_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let deliver_at_ms = Clock::new().wall_ms() + 300;
    {
        let engine = small(directory.path()).open().unwrap();
        let (topic, _consumer) = shared(&engine, "t", "s");
        let mut producer = topic.producer().open().unwrap();
        let later = Message::from("later").deliver_at_ms(deliver_at_ms);
        stored(producer.send_message(later).unwrap()).unwrap();
        engine.shutdown(LONG);
    }
    let engine = small(directory.path()).open().unwrap();
    let (_topic, mut consumer) = shared(&engine, "t", "s");
    let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
    assert!(Clock::new().wall_ms() >= deliver_at_ms, "it came early");
    assert_eq!(delivery.payload(), b"later");
}
