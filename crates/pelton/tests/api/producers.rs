//! Who may publish, and what is stored once only. Rules D141 and D142.

use pelton::{Message, Policy, Position, ProducerAccess, ProducerError, ReceiptError, SendError};

use crate::common::{LONG, memory, receive, small, subscribed};

fn deduplicates() -> Policy {
    Policy {
        deduplication_enabled: true,
        ..Policy::default()
    }
}

#[test]
fn a_producer_that_waits_for_the_topic_gets_it_when_the_others_are_closed() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let first = topic.producer().open().unwrap();
    let waits = topic.producer().access(ProducerAccess::WaitForExclusive);
    let mut waits = waits.begin();
    assert!(waits.try_take().is_none());
    let busy = topic.producer().open();
    assert!(matches!(busy, Err(ProducerError::Busy { .. })), "{busy:?}");
    first.close().unwrap();
    let mut second = waits.wait().unwrap().unwrap();
    assert_eq!(second.topic_epoch(), Some(0));
    second.send(b"alone").unwrap().wait().unwrap();
    let alone = topic.producer().access(ProducerAccess::Exclusive).open();
    assert!(matches!(alone, Err(ProducerError::Fenced { .. })));
    // Who does not wait any more stands in nobody's way once its turn has come.
    let given_up = topic.producer().access(ProducerAccess::WaitForExclusive);
    drop(given_up.begin());
    let last = topic.producer().access(ProducerAccess::WaitForExclusive);
    let last = last.begin();
    second.close().unwrap();
    last.wait().unwrap().unwrap().send(b"in turn").unwrap();
}

#[test]
fn a_producer_that_is_fenced_off_hears_so() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut old = topic.producer().open().unwrap();
    old.send(b"before").unwrap().wait().unwrap();
    let fencing = topic
        .producer()
        .access(ProducerAccess::ExclusiveWithFencing);
    let mut new = fencing.open().unwrap();
    new.send(b"after").unwrap().wait().unwrap();
    match old.send(b"never") {
        Err(SendError::ProducerFenced { .. }) => {}
        // It was sent before the shard's word was seen.
        Ok(receipt) => assert_eq!(receipt.wait(), Err(ReceiptError::Fenced)),
        other => panic!("{other:?}"),
    }
    assert_eq!(receive(&mut consumer, 2), [&b"before"[..], b"after"]);
    assert!(consumer.try_recv().unwrap().is_none());
    let epoch = new.topic_epoch().unwrap();
    new.close().unwrap();
    let taken = topic.producer().access(ProducerAccess::Exclusive);
    assert_eq!(taken.open().unwrap().topic_epoch(), Some(epoch + 1));
    let late = topic.producer().access(ProducerAccess::Exclusive);
    let late = late.topic_epoch(epoch).open();
    assert!(matches!(late, Err(ProducerError::Fenced { .. })));
}

#[test]
fn what_is_sent_again_after_a_restart_is_stored_once() {
    let directory = tempfile::tempdir().unwrap();
    let engine = small(directory.path()).open().unwrap();
    let (topic, mut consumer) = subscribed_synced(&engine);
    topic.set_policy(&deduplicates()).unwrap();
    let mut producer = topic.producer().name("billing").open().unwrap();
    assert_eq!(producer.last_sequence(), None);
    for sequence in 0..100u64 {
        let body = sequence.to_le_bytes();
        let message = Message::new(&body).sequence(sequence);
        producer.send_message(message).unwrap().wait().unwrap();
    }
    receive(&mut consumer, 100);
    consumer.flush_acks().unwrap();
    drop((producer, consumer, topic));
    engine.shutdown(LONG);
    let engine = small(directory.path()).open().unwrap();
    let (topic, mut consumer) = subscribed_synced(&engine);
    let mut producer = topic.producer().name("billing").open().unwrap();
    assert_eq!(producer.last_sequence(), Some(99));
    let again = producer.send_message(Message::new(b"again").sequence(99));
    assert_eq!(again.unwrap().wait(), Ok(Position::NOWHERE));
    let batch = [100, 101].map(|sequence| Message::new(b"new").sequence(sequence));
    let stored = producer.send_batch(batch).unwrap().wait().unwrap();
    assert_ne!(stored, Position::NOWHERE);
    let overlaps = producer.send_message(Message::new(b"again").sequence(101));
    assert_eq!(overlaps.unwrap().wait(), Ok(Position::NOWHERE));
    let delivery = consumer.recv().unwrap();
    let messages: Vec<_> = delivery.messages().map(|it| it.payload.to_vec()).collect();
    assert_eq!(messages, [b"new", b"new"]);
    assert!(consumer.try_recv().unwrap().is_none());
}

fn subscribed_synced(engine: &pelton::Engine) -> (pelton::Topic, pelton::Consumer) {
    let topic = engine.topic("t").open().unwrap();
    let consumer = topic.subscribe("s").open().unwrap();
    (topic, consumer)
}
