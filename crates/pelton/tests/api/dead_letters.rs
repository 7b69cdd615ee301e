//! What cannot be handled: rejected entries, counts that end redelivery, the topic that copies go to,
//! on the same shard or another. Rules D116 to D121.

use pelton::{
    DeadLetter, Durability, Engine, InitialPosition, Message, Policy, SubscriptionKind, Topic,
    Verdict,
};

use crate::common::{LONG, eventually, memory, shared, small};

fn policy(max_redeliver_count: u32) -> Policy {
    Policy {
        dead_letter: Some(DeadLetter {
            max_redeliver_count,
            ..DeadLetter::default()
        }),
        ..Policy::default()
    }
}

/// Payloads of everything in the dead-letter topic of "s", with the reasons.
fn dead(
    engine: &Engine,
    topic: &str,
    durability: Durability,
    count: usize,
) -> Vec<(Vec<u8>, String)> {
    let name = format!("{topic}-s-DLQ");
    let topic = engine.topic(&name).durability(durability).open().unwrap();
    let mut consumer = topic.subscribe("dlq").open().unwrap();
    let letters = (0..count).map(|_| {
        let delivery = consumer.recv_timeout(LONG).unwrap().expect("a dead letter");
        let reason = delivery.entry().properties().get("PELTON_REASON");
        let letter = (delivery.payload().to_vec(), reason.unwrap().to_owned());
        delivery.ack();
        letter
    });
    let letters = letters.collect();
    assert!(consumer.try_recv().unwrap().is_none(), "no more than that");
    letters
}

fn rejecting(topic: &Topic, subscription: &str) -> pelton::HandlerGuard {
    topic
        .subscribe(subscription)
        .kind(SubscriptionKind::Shared)
        .initial(InitialPosition::Earliest)
        .handler(|entry| match entry.payload() {
            b"bad" => Verdict::Reject,
            _ => Verdict::Ack,
        })
        .unwrap()
}

#[test]
fn a_rejected_delivery_goes_to_the_dead_letter_topic() {
    let engine = memory();
    let (topic, mut consumer) = shared(&engine, "t", "s");
    topic.set_policy(&policy(0)).unwrap();
    let mut producer = topic.producer().open().unwrap();
    producer
        .send_message(Message::from("bad").key(b"k"))
        .unwrap();
    producer.send("good").unwrap();
    let bad = consumer.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(
        (bad.payload(), bad.entry().properties().count()),
        (&b"bad"[..], 0)
    );
    bad.reject();
    let good = consumer.recv_timeout(LONG).unwrap().unwrap();
    assert_eq!(good.payload(), b"good");
    good.ack();
    let stats = eventually(&engine, ("t", "s"), |s| s.backlog_messages == 0);
    assert_eq!((stats.dead_lettered_messages, stats.acked_messages), (1, 1));
    let letters = dead(&engine, "t", Durability::Memory, 1);
    assert_eq!(letters, [(b"bad".to_vec(), "rejected".to_owned())]);
}

#[test]
fn a_message_that_is_nacked_too_often_is_dead() {
    let engine = memory();
    let (topic, mut consumer) = shared(&engine, "t", "s");
    topic.set_policy(&policy(2)).unwrap();
    let mut producer = topic.producer().open().unwrap();
    producer.send("poison").unwrap();
    for count in 0..=2 {
        let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(delivery.redelivery_count(), count);
        delivery.nack();
    }
    eventually(&engine, ("t", "s"), |s| s.dead_lettered_messages == 1);
    let letters = dead(&engine, "t", Durability::Memory, 1);
    assert_eq!(
        letters,
        [(b"poison".to_vec(), "max_redeliveries".to_owned())]
    );
}

#[test]
fn without_a_policy_what_is_rejected_is_dropped_and_counted() {
    let engine = memory();
    let (topic, mut consumer) = shared(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    for _ in 0..3 {
        producer.send("m").unwrap();
    }
    let mut left = 3;
    while left > 0 {
        left -= consumer.for_each(left, |_| Verdict::Reject).unwrap();
    }
    let stats = eventually(&engine, ("t", "s"), |s| s.rejected_messages == 3);
    assert_eq!((stats.backlog_messages, stats.acked_messages), (0, 0));
}

#[test]
fn a_handler_rejects_and_copies_reach_topics_of_every_shard() {
    let engine = Engine::in_memory().shards(2).open().unwrap();
    let names: Vec<String> = (0..8).map(|n| format!("t{n}")).collect();
    let topics = names.iter().map(|name| {
        let topic = engine.topic(name).open().unwrap();
        topic.set_policy(&policy(0)).unwrap();
        let guard = rejecting(&topic, "s");
        let mut producer = topic.producer().open().unwrap();
        for payload in ["good", "bad", "good", "bad"] {
            producer.send(payload).unwrap();
        }
        producer.flush().unwrap();
        guard
    });
    let _guards: Vec<_> = topics.collect();
    let shard_of = |name: &str| engine.topic(name).open().unwrap().shard();
    let mut crossed = 0;
    for name in &names {
        let stats = eventually(&engine, (name, "s"), |s| s.backlog_messages == 0);
        assert_eq!((stats.dead_lettered_messages, stats.acked_messages), (2, 2));
        let letters = dead(&engine, name, Durability::Memory, 2);
        assert!(letters.iter().all(|(payload, _)| payload == b"bad"));
        crossed += u32::from(shard_of(name) != shard_of(&format!("{name}-s-DLQ")));
    }
    assert!((1..8).contains(&crossed), "{crossed} went to another shard");
}

#[test]
fn a_dead_letter_outlives_a_restart_and_its_original_does_not() {
    let directory = tempfile::tempdir().unwrap();
    {
        let engine = small(directory.path()).open().unwrap();
        let (topic, mut consumer) = shared(&engine, "t", "s");
        topic.set_policy(&policy(0)).unwrap();
        let mut producer = topic.producer().open().unwrap();
        for n in 0..100u8 {
            producer.send([n]).unwrap();
        }
        for _ in 0..100 {
            consumer.recv_timeout(LONG).unwrap().unwrap().reject();
        }
        eventually(&engine, ("t", "s"), |s| s.dead_lettered_messages == 100);
        assert!(engine.shutdown(LONG).shards.iter().all(|shard| shard.clean));
    }
    let engine = small(directory.path()).open().unwrap();
    let (_topic, mut consumer) = shared(&engine, "t", "s");
    let letters = dead(&engine, "t", Durability::Synced, 100);
    let payloads: Vec<u8> = letters.iter().map(|(payload, _)| payload[0]).collect();
    assert_eq!(payloads, (0..100).collect::<Vec<_>>());
    assert!(consumer.try_recv().unwrap().is_none());
}
