//! Sending and receiving: order, kinds, fan-out, batches, keys, and the ways to receive.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pelton::{Engine, InitialPosition, Message, SubscriptionKind, Verdict, key_hash};

use crate::common::{LONG, eventually, memory, receive, shared, subscribed};

fn number(payload: &[u8]) -> u32 {
    u32::from_le_bytes(payload.try_into().expect("4 bytes"))
}

#[test]
fn an_exclusive_consumer_receives_everything_in_order() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "orders", "billing");
    let mut producer = topic.producer().name("shop").open().unwrap();
    let sender = std::thread::spawn(move || {
        for i in 0..20_000u32 {
            producer.send(i.to_le_bytes()).unwrap();
        }
        producer.close().unwrap();
    });
    for i in 0..20_000u32 {
        let delivery = consumer
            .recv_timeout(LONG)
            .unwrap()
            .expect("more is on its way");
        assert_eq!(number(delivery.payload()), i);
        assert_eq!(
            (delivery.sequence(), delivery.message_count()),
            (u64::from(i), 1)
        );
        assert_eq!(delivery.redelivery_count(), 0);
        delivery.ack();
    }
    sender.join().unwrap();
    consumer.flush_acks().unwrap();
    let stats = eventually(&engine, ("orders", "billing"), |s| {
        s.acked_messages == 20_000
    });
    assert_eq!((stats.backlog_messages, stats.unacked_messages), (0, 0));
    assert_eq!(consumer.try_recv().unwrap().map(|d| d.position()), None);
}

#[test]
fn shared_consumers_share_the_work_and_lose_nothing() {
    let engine = memory();
    let topic = engine.topic("jobs").open().unwrap();
    let consumers: Vec<_> = (0..4)
        .map(|i| {
            let builder = topic.subscribe("workers").kind(SubscriptionKind::Shared);
            builder.name(format!("w{i}")).window(100).open().unwrap()
        })
        .collect();
    let mut producer = topic.producer().open().unwrap();
    let threads: Vec<_> = consumers
        .into_iter()
        .map(|mut consumer| {
            std::thread::spawn(move || {
                let mut seen = Vec::new();
                loop {
                    let delivery = consumer.recv_timeout(LONG).unwrap().expect("an end marker");
                    let i = number(delivery.payload());
                    delivery.ack();
                    if i == u32::MAX {
                        consumer.close().unwrap();
                        return seen;
                    }
                    seen.push(i);
                }
            })
        })
        .collect();
    for i in 0..10_000u32 {
        producer.send(i.to_le_bytes()).unwrap();
    }
    eventually(&engine, ("jobs", "workers"), |s| s.acked_messages == 10_000);
    // One end marker each: whoever has one leaves and cannot take another.
    for _ in 0..4 {
        producer.send(u32::MAX.to_le_bytes()).unwrap();
    }
    let seen: Vec<Vec<u32>> = threads.into_iter().map(|t| t.join().unwrap()).collect();
    assert!(
        seen.iter().all(|each| !each.is_empty()),
        "every consumer had work"
    );
    assert!(
        seen.iter().all(|each| each.is_sorted()),
        "each consumer's entries ascend"
    );
    let all: BTreeSet<u32> = seen.iter().flatten().copied().collect();
    assert_eq!(
        seen.iter().map(Vec::len).sum::<usize>(),
        10_000,
        "none twice"
    );
    assert_eq!(all.len(), 10_000, "none lost");
}

#[test]
fn every_subscription_gets_every_entry_at_its_own_pace() {
    let engine = memory();
    let topic = engine.topic("news").open().unwrap();
    let mut readers: Vec<_> = (0..5)
        .map(|i| topic.subscribe(format!("reader {i}")).open().unwrap())
        .collect();
    let mut producer = topic.producer().open().unwrap();
    let sent: Vec<Vec<u8>> = (0..500).map(|i| format!("news {i}").into_bytes()).collect();
    for news in &sent {
        producer.send(news).unwrap();
    }
    // One reader is far ahead of the others all the time.
    for reader in &mut readers {
        assert_eq!(receive(reader, sent.len()), sent);
    }
}

#[test]
fn latest_starts_behind_what_is_there_and_earliest_before_it() {
    let engine = memory();
    let (topic, _keeps_everything) = subscribed(&engine, "t", "first");
    let mut producer = topic.producer().open().unwrap();
    producer.send("old").unwrap().wait().unwrap();
    let mut latest = topic
        .subscribe("latest")
        .initial(InitialPosition::Latest)
        .open()
        .unwrap();
    let mut earliest = topic
        .subscribe("earliest")
        .initial(InitialPosition::Earliest)
        .open()
        .unwrap();
    producer.send("new").unwrap();
    assert_eq!(receive(&mut latest, 1), [b"new"]);
    assert_eq!(receive(&mut earliest, 2), [b"old", b"new"]);
}

#[test]
fn a_batch_is_one_entry_with_its_messages_and_keys() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    let messages = [
        Message::new(b"one").key(b"k1"),
        Message::new(b"").key(b""),
        Message::new(b"three"),
    ];
    let receipt = producer.send_batch(messages).unwrap();
    let many: Vec<[u8; 4]> = (0..1_000u32).map(u32::to_le_bytes).collect();
    producer.send_batch(&many).unwrap();

    let first = consumer.recv().unwrap();
    assert_eq!(first.position(), receipt.wait().unwrap());
    assert_eq!(first.messages().collect::<Vec<_>>(), messages);
    assert_eq!(
        (first.message_count(), first.payload(), first.key()),
        (3, &b"one"[..], Some(&b"k1"[..]))
    );
    assert_eq!(first.key_hash(), key_hash(b"k1"));
    first.ack();

    let second = consumer.recv().unwrap();
    assert_eq!(
        (second.message_count(), second.key(), second.key_hash()),
        (1_000, None, 0)
    );
    assert!(second.messages().map(|m| number(m.payload)).eq(0..1_000));
    second.ack();
    eventually(&engine, ("t", "s"), |s| {
        s.acked_messages == 1_003 && s.backlog_entries == 0
    });
}

#[test]
fn receipts_have_the_positions_of_the_deliveries_and_rise() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    // More than two pages of receipts, kept beyond the life of their producer.
    let receipts: Vec<_> = (0..700).map(|_| producer.send("x").unwrap()).collect();
    producer.close().unwrap();
    let positions: Vec<_> = receipts
        .iter()
        .map(|receipt| receipt.wait().unwrap())
        .collect();
    assert!(positions.is_sorted_by(|a, b| a < b));
    for position in positions {
        let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(delivery.position(), position);
        delivery.ack();
    }
}

#[test]
fn entries_can_be_received_in_many_ways() {
    let engine = memory();
    let (topic, mut consumer) = shared(&engine, "t", "s");
    assert_eq!(consumer.try_recv().unwrap().map(|d| d.position()), None);
    let none = consumer
        .recv_timeout(std::time::Duration::from_millis(1))
        .unwrap();
    assert!(none.is_none(), "nothing was sent");

    let mut producer = topic.producer().open().unwrap();
    for i in 0..100u32 {
        producer.send(i.to_le_bytes()).unwrap();
    }
    let mut next = 0u32;
    let mut deliveries = Vec::new();
    while next < 40 {
        let count = consumer.recv_many(7, &mut deliveries).unwrap();
        assert!((1..=7).contains(&count) && deliveries.len() == count);
        for delivery in deliveries.drain(..) {
            assert_eq!(number(delivery.payload()), next);
            next += 1;
            delivery.ack();
        }
    }
    let mut nacked = 0;
    while next < 100 || nacked > 0 {
        consumer
            .for_each(20, |entry| {
                let i = number(entry.payload());
                if i % 10 == 5 && entry.redelivery_count() == 0 {
                    nacked += 1;
                    return Verdict::Nack;
                }
                if entry.redelivery_count() > 0 {
                    nacked -= 1;
                } else {
                    next = i + 1;
                }
                Verdict::Ack
            })
            .unwrap();
    }
    assert_eq!(consumer.recv_many(0, &mut deliveries).unwrap(), 0);
    consumer.flush_acks().unwrap();
    eventually(&engine, ("t", "s"), |s| {
        s.acked_messages == 100 && s.unacked_messages == 0
    });
}

#[test]
fn large_messages_pass_unharmed_between_small_ones() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().queue(4).open().unwrap();
    let sizes = [
        0usize,
        1,
        65_535,
        65_536,
        70_000,
        3,
        1_000_000,
        4 << 20,
        5,
        0,
        5 << 20,
        1,
    ];
    let sender = std::thread::spawn(move || {
        for (i, size) in sizes.into_iter().enumerate() {
            let payload = vec![i as u8; size];
            if i % 2 == 0 {
                producer.send(payload).unwrap();
            } else {
                producer.send_batch([Message::new(&payload)]).unwrap();
            }
        }
        producer.flush().unwrap();
    });
    for (i, size) in sizes.into_iter().enumerate() {
        let delivery = consumer
            .recv_timeout(LONG)
            .unwrap()
            .expect("it is on its way");
        assert_eq!(delivery.payload().len(), size);
        assert!(delivery.payload().iter().all(|&byte| byte == i as u8));
        delivery.ack();
    }
    sender.join().unwrap();
}

#[test]
fn topics_on_several_shards_do_not_mix() {
    let engine = Engine::in_memory().shards(2).open().unwrap();
    let mut used = BTreeSet::new();
    let mut all: Vec<_> = (0..16)
        .map(|i| {
            let (topic, consumer) = subscribed(&engine, &format!("topic {i}"), "s");
            used.insert(topic.shard());
            (topic.producer().open().unwrap(), consumer)
        })
        .collect();
    assert_eq!(used, BTreeSet::from([0, 1]), "topics are spread");
    for round in 0..100u32 {
        for (i, (producer, _)) in all.iter_mut().enumerate() {
            producer
                .send((round * 16 + i as u32).to_le_bytes())
                .unwrap();
        }
    }
    for (i, (_, consumer)) in all.iter_mut().enumerate() {
        let got = receive(consumer, 100);
        assert!(
            got.iter()
                .map(|p| number(p))
                .eq((0..100).map(|round| round * 16 + i as u32))
        );
    }
}

#[test]
fn what_an_iterator_gave_before_it_panicked_is_announced() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    let mut messages = (0..5u32).map(|i| {
        assert!(i < 3, "this panic is part of the test");
        Message::new(b"12345678")
    });
    let sent = catch_unwind(AssertUnwindSafe(|| producer.try_send_each(&mut messages)));
    assert!(sent.is_err());
    // With nothing sent behind them.
    assert_eq!(receive(&mut consumer, 3).len(), 3);
}

#[test]
fn intended_send_times_arrive_with_the_entry() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    let before_ns = engine.clock().now_ns();
    producer.send("now").unwrap();
    producer
        .send_message(Message::new(b"then").intended_ns(77))
        .unwrap();
    let batch = [
        Message::new(b"a").intended_ns(99),
        Message::new(b"b").intended_ns(88),
    ];
    producer.send_batch(batch).unwrap();
    let arrived: Vec<u64> = (0..3)
        .map(|_| {
            let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
            let arrived_ns = delivery.arrived_ns();
            assert!(delivery.appended_ns() >= before_ns && delivery.publish_time_ms() > 0);
            delivery.ack();
            arrived_ns
        })
        .collect();
    assert!(arrived[0] >= before_ns);
    assert_eq!(arrived[1..], [77, 88]);
}
