//! What comes again: nacks, drops, closed consumers, cumulative acks. Cases ACK-UNACKED-OWNER b and
//! d, WAKE-LOST-PERMITS-DURING-SEND step 5.

use pelton::{AckError, InitialPosition, OnDrop, SubscribeError, SubscriptionKind, Verdict};

use crate::common::{LONG, eventually, memory, receive, shared, some_turns, stats_of, subscribed};

#[test]
fn what_a_closed_consumer_held_goes_to_the_next() {
    let engine = memory();
    let (topic, mut first) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    for i in 0..100u8 {
        producer.send([i]).unwrap();
    }
    let mut held = Vec::new();
    for i in 0..60u8 {
        let delivery = first.recv_timeout(LONG).unwrap().unwrap();
        if i % 3 == 0 {
            delivery.ack()
        } else {
            held.push(delivery)
        }
    }
    first.close().unwrap(); // acks come before the close, whatever the lanes
    let mut second = topic.subscribe("s").open().unwrap();
    drop(held); // too late to nack: everything is owed already
    let expected: Vec<Vec<u8>> = (0..100u8)
        .filter(|i| *i >= 60 || i % 3 != 0)
        .map(|i| vec![i])
        .collect();
    assert_eq!(receive(&mut second, expected.len()), expected);
    let stats = eventually(&engine, ("t", "s"), |s| s.backlog_entries == 0);
    assert_eq!((stats.unacked_messages, stats.acked_messages), (0, 100));
}

#[test]
fn a_dropped_consumer_does_not_overtake_its_own_acks() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    for round in 0..200u32 {
        producer.send(round.to_le_bytes()).unwrap();
        let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(
            delivery.payload(),
            round.to_le_bytes(),
            "an acked entry came again"
        );
        delivery.ack();
        drop(consumer);
        consumer = topic.subscribe("s").open().unwrap();
    }
}

#[test]
fn a_nacked_entry_comes_again_and_counts() {
    let engine = memory();
    let (topic, mut consumer) = shared(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    producer.send("again").unwrap();
    for count in 0..5 {
        let delivery = consumer
            .recv_timeout(LONG)
            .unwrap()
            .expect("it comes again");
        assert_eq!(
            (delivery.payload(), delivery.redelivery_count()),
            (&b"again"[..], count)
        );
        delivery.nack();
    }
    consumer.recv_timeout(LONG).unwrap().unwrap().ack();
    eventually(&engine, ("t", "s"), |s| {
        s.backlog_entries == 0 && s.replay_entries == 0
    });
}

#[test]
fn a_dropped_delivery_is_nacked_unless_it_is_to_be_kept() {
    let engine = memory();
    let (topic, mut nacks) = shared(&engine, "t", "nacks");
    let keep = topic.subscribe("keeps").on_drop(OnDrop::Keep);
    let mut keeps = keep.initial(InitialPosition::Earliest).open().unwrap();
    let mut producer = topic.producer().open().unwrap();
    producer.send("x").unwrap();

    drop(nacks.recv_timeout(LONG).unwrap().unwrap());
    let again = nacks
        .recv_timeout(LONG)
        .unwrap()
        .expect("nacked by the drop");
    assert_eq!(again.redelivery_count(), 1);
    again.keep();

    let position = {
        let kept = keeps.recv_timeout(LONG).unwrap().unwrap();
        kept.position()
    };
    some_turns(&engine);
    for (consumer, name) in [(&mut nacks, "nacks"), (&mut keeps, "keeps")] {
        assert!(
            consumer.try_recv().unwrap().is_none(),
            "{name} has it still"
        );
        assert_eq!(stats_of(&engine, "t", name).unacked_messages, 1);
        consumer.ack_position(position);
        eventually(&engine, ("t", name), |s| {
            s.backlog_entries == 0 && s.unacked_messages == 0
        });
    }
}

/// ACK-UNACKED-OWNER b and d.
#[test]
fn an_ack_after_a_nack_wins_and_repeated_acks_change_nothing() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let manual = topic
        .subscribe("s")
        .kind(SubscriptionKind::Shared)
        .manual_permits();
    let mut consumer = manual.open().unwrap();
    let mut producer = topic.producer().open().unwrap();
    producer.send_batch(["1", "2", "3", "4", "5"]).unwrap();
    producer.send("behind").unwrap();
    consumer.grant(1).unwrap();
    let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
    let position = delivery.position();
    assert_eq!(stats_of(&engine, "t", "s").unacked_messages, 5);
    delivery.nack(); // no permits are left, so it waits
    let stats = eventually(&engine, ("t", "s"), |s| s.replay_entries == 1);
    assert_eq!(
        (stats.unacked_messages, stats.consumers[0].unacked_messages),
        (0, 0)
    );
    for _ in 0..3 {
        consumer.ack_position(position);
    }
    let stats = eventually(&engine, ("t", "s"), |s| s.replay_entries == 0);
    assert_eq!((stats.unacked_messages, stats.acked_messages), (0, 5));
    consumer.grant(5).unwrap();
    assert_eq!(
        receive(&mut consumer, 1),
        [b"behind"],
        "the acked entry is not sent again"
    );
}

#[test]
fn a_cumulative_ack_takes_everything_before_it() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    for i in 0..10u8 {
        producer.send([i]).unwrap();
    }
    let mut held: Vec<_> = (0..10)
        .map(|_| consumer.recv_timeout(LONG).unwrap().unwrap())
        .collect();
    consumer.ack_cumulative(&held[6]).unwrap();
    eventually(&engine, ("t", "s"), |s| {
        s.acked_messages == 7 && s.unacked_messages == 3
    });
    held.clear();
    let again = receive(&mut consumer, 3);
    assert_eq!(again, [[7u8], [8], [9]]);
}

#[test]
fn a_cumulative_ack_needs_an_exclusive_subscription_and_its_own_delivery() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let mut shared = topic
        .subscribe("shared")
        .kind(SubscriptionKind::Shared)
        .open()
        .unwrap();
    let mut exclusive = topic.subscribe("exclusive").open().unwrap();
    topic.producer().open().unwrap().send("x").unwrap();
    let delivery = shared.recv_timeout(LONG).unwrap().unwrap();
    let (t, s) = ("t".to_owned(), "shared".to_owned());
    let expected = AckError::CumulativeOnShared {
        topic: t.clone(),
        subscription: s,
    };
    assert_eq!(shared.ack_cumulative(&delivery), Err(expected));
    let expected = AckError::Foreign {
        topic: t,
        subscription: "exclusive".to_owned(),
    };
    assert_eq!(exclusive.ack_cumulative(&delivery), Err(expected));
    delivery.ack();
}

#[test]
fn an_exclusive_subscription_has_one_consumer_and_kinds_do_not_mix() {
    let engine = memory();
    let (topic, consumer) = subscribed(&engine, "t", "s");
    for kind in [SubscriptionKind::Exclusive, SubscriptionKind::Shared] {
        let error = topic.subscribe("s").kind(kind).open().unwrap_err();
        let busy = matches!(
            error,
            SubscribeError::ConsumerBusy {
                kind: SubscriptionKind::Exclusive,
                consumers: 1,
                ..
            }
        );
        assert!(busy, "{error}");
    }
    drop(consumer);
    let shared = topic
        .subscribe("s")
        .kind(SubscriptionKind::Shared)
        .open()
        .unwrap();
    let error = topic.subscribe("s").open().unwrap_err();
    assert!(
        matches!(error, SubscribeError::ConsumerBusy { .. }),
        "{error}"
    );
    drop(shared);
    topic.subscribe("s").open().unwrap();
}

/// WAKE-LOST-PERMITS-DURING-SEND, variant 5, on a smaller scale.
#[test]
fn wake_lost_permits_during_send_a_backlog_drains_after_a_storm_of_consumers() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let subscribe = || topic.subscribe("s").kind(SubscriptionKind::Shared);
    let mut standing: Vec<_> = (0..32)
        .map(|_| subscribe().manual_permits().open().unwrap())
        .collect();
    let mut producer = topic.producer().open().unwrap();
    for i in 0..200u32 {
        producer.send(i.to_le_bytes()).unwrap();
    }
    let mut seed = 1u64;
    for _ in 0..2_000 {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let at = (seed >> 33) as usize % standing.len();
        standing[at] = subscribe().manual_permits().open().unwrap();
        standing[at].grant((seed >> 40) as u32 % 5).unwrap();
    }
    standing.clear();
    let mut last = subscribe().open().unwrap();
    let mut got: Vec<u32> = receive(&mut last, 200)
        .iter()
        .map(|payload| u32::from_le_bytes(payload[..].try_into().unwrap()))
        .collect();
    got.sort_unstable();
    assert!(got.into_iter().eq(0..200), "each once");
    eventually(&engine, ("t", "s"), |s| s.backlog_entries == 0);
}

#[test]
fn an_entry_whose_closure_panics_comes_again_once_and_its_neighbours_do_not() {
    let engine = memory();
    let (topic, mut consumer) = shared(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    for i in 0..5u8 {
        producer.send([i]).unwrap();
    }
    producer.flush().unwrap();
    eventually(&engine, ("t", "s"), |s| s.delivered_messages == 5);
    let mut seen = Vec::new();
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        consumer.for_each(10, |entry| {
            assert_ne!(entry.payload(), [2], "expected by the test");
            seen.push(entry.payload()[0]);
            Verdict::Ack
        })
    }));
    assert!(unwound.is_err());
    assert_eq!(seen, [0, 1]);
    eventually(&engine, ("t", "s"), |s| {
        s.acked_messages == 2 && s.delivered_messages == 6
    });
    let mut rest: Vec<_> = (0..3)
        .map(|_| {
            let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
            let got = (delivery.payload()[0], delivery.redelivery_count());
            delivery.ack();
            got
        })
        .collect();
    rest.sort_unstable();
    assert_eq!(rest, [(2, 1), (3, 0), (4, 0)]);
    assert!(consumer.try_recv().unwrap().is_none());
}
