//! Handlers: consumers on the shard's own thread.

use std::sync::mpsc;

use pelton::{
    CloseReason, Engine, InitialPosition, Message, RecvError, SubscriptionKind, TopicError, Verdict,
};

use crate::common::{LONG, block_on, eventually, memory, receive, subscribed};

#[test]
fn a_handler_gets_every_entry_on_the_shards_thread() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let (seen, all) = mpsc::channel();
    let guard = topic
        .subscribe("s")
        .kind(SubscriptionKind::Shared)
        .name("h")
        .window(8)
        .handler(move |entry| {
            let thread = std::thread::current().name().unwrap_or("").to_owned();
            assert_eq!(thread, "pelton-shard-0");
            if entry.redelivery_count() == 0 && entry.payload()[0] % 10 == 3 {
                return Verdict::Nack;
            }
            seen.send((
                entry.payload()[0],
                entry.message_count(),
                entry.redelivery_count(),
            ))
            .unwrap();
            Verdict::Ack
        })
        .unwrap();
    let mut producer = topic.producer().open().unwrap();
    for i in 0..100u8 {
        producer
            .send_batch([Message::new(&[i]), Message::new(b"second")])
            .unwrap();
    }
    let mut got: Vec<_> = (0..100).map(|_| all.recv_timeout(LONG).unwrap()).collect();
    got.sort_unstable();
    let expected: Vec<_> = (0..100u8).map(|i| (i, 2, u32::from(i % 10 == 3))).collect();
    assert_eq!(got, expected);
    let stats = eventually(&engine, ("t", "s"), |s| s.acked_messages == 200);
    assert_eq!(
        (stats.unacked_messages, stats.consumers[0].name.as_str()),
        (0, "h")
    );
    assert_eq!(guard.detached(), None);
}

#[test]
fn a_detached_handler_runs_no_more_and_its_subscription_stays() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let (seen, all) = mpsc::channel();
    let guard = topic
        .subscribe("s")
        .handler(move |_| {
            seen.send(()).unwrap();
            Verdict::Ack
        })
        .unwrap();
    let mut producer = topic.producer().open().unwrap();
    producer.send("one").unwrap();
    all.recv_timeout(LONG).unwrap();
    assert!(block_on(guard.close()));
    assert!(
        matches!(all.try_recv(), Err(mpsc::TryRecvError::Disconnected)),
        "it was dropped"
    );
    producer.send("two").unwrap();
    let mut consumer = topic.subscribe("s").open().unwrap();
    assert_eq!(receive(&mut consumer, 1), [b"two"]);
}

#[test]
fn a_handler_that_panics_is_detached_and_the_entry_comes_again() {
    let engine = memory();
    let (topic, mut bystander) = subscribed(&engine, "t", "bystander");
    let handler = topic.subscribe("s").initial(InitialPosition::Earliest);
    let guard = handler.handler(|_| panic!("expected by the test")).unwrap();
    let mut producer = topic.producer().open().unwrap();
    producer.send("x").unwrap();
    assert_eq!(receive(&mut bystander, 1), [b"x"], "the shard goes on");
    eventually(&engine, ("t", "s"), |s| s.consumers.is_empty());
    assert_eq!(guard.detached(), Some(CloseReason::HandlerPanicked));
    let mut next = topic.subscribe("s").open().unwrap();
    assert_eq!(receive(&mut next, 1), [b"x"]);
}

#[test]
fn blocking_calls_inside_a_handler_say_so_instead_of_hanging() {
    let engine = std::sync::Arc::new(memory());
    let (topic, mut other) = subscribed(&engine, "t", "other");
    let (result, results) = mpsc::channel();
    let inner = std::sync::Arc::downgrade(&engine);
    let guard = topic
        .subscribe("s")
        .handler(move |_| {
            if let Some(engine) = inner.upgrade() {
                let opened = engine.topic("u").open().map(|_| ());
                result
                    .send((opened, other.recv().map(|delivery| delivery.ack())))
                    .unwrap();
            }
            Verdict::Ack
        })
        .unwrap();
    topic.producer().open().unwrap().send("x").unwrap();
    let (opened, received) = results.recv_timeout(LONG).unwrap();
    assert_eq!(
        opened,
        Err(TopicError::WouldBlock {
            name: "u".to_owned()
        })
    );
    // The entry may have been handed to the other subscription before or after.
    if let Err(error) = received {
        assert!(matches!(error, RecvError::WouldBlock { .. }), "{error}");
    }
    drop(guard);
}

#[test]
fn a_handler_forwards_to_topics_of_any_shard() {
    let engine = Engine::in_memory().shards(2).open().unwrap();
    let source = engine.topic("source").open().unwrap();
    let targets: Vec<_> = (0..4)
        .map(|i| subscribed(&engine, &format!("target {i}"), "s"))
        .collect();
    let shards: std::collections::BTreeSet<_> = targets.iter().map(|(t, _)| t.shard()).collect();
    assert_eq!(shards.len(), 2, "some targets are on the other shard");
    let mut forwarders: Vec<_> = targets
        .iter()
        .map(|(t, _)| t.forwarder().unwrap())
        .collect();
    let guard = source
        .subscribe("router")
        .handler(move |entry| {
            for message in entry.messages() {
                let target = usize::from(message.payload[0]) % forwarders.len();
                if entry.forward(&mut forwarders[target], message).is_err() {
                    return Verdict::Nack;
                }
            }
            Verdict::Ack
        })
        .unwrap();
    let mut producer = source.producer().open().unwrap();
    for i in 0..200u8 {
        producer
            .send_message(Message::new(&[i]).key(b"key"))
            .unwrap();
    }
    for (at, (_, mut consumer)) in targets.into_iter().enumerate() {
        for i in (0..200u8).filter(|i| usize::from(i % 4) == at) {
            let delivery = consumer
                .recv_timeout(LONG)
                .unwrap()
                .expect("it was forwarded");
            assert_eq!(
                (delivery.payload(), delivery.key()),
                (&[i][..], Some(&b"key"[..]))
            );
            delivery.ack();
        }
    }
    eventually(&engine, ("source", "router"), |s| s.acked_messages == 200);
    drop(guard);
}
