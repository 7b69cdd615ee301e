//! The mode in which the caller turns the loop: no thread but this one.

use std::task::{Context, Poll, Waker};

use pelton::{
    Consumer, Delivery, Driver, Durability, Engine, Pending, ReceiptError, RecvError,
    SubscriptionKind, Topic, TopicError, Verdict,
};

use crate::common::small;

#[test]
fn a_message_goes_round_on_one_thread() {
    let (engine, mut driver) = Engine::in_memory().open_driven().unwrap();
    let topic = driver.run_until(engine.topic("t").begin()).unwrap();
    let mut consumer = driver.run_until(topic.subscribe("s").begin()).unwrap();
    let mut producer = driver.run_until(topic.producer().begin()).unwrap();
    for i in 0..1_000u32 {
        let receipt = producer.send(i.to_le_bytes()).unwrap();
        assert!(receipt.try_get().is_none(), "nothing happens by itself");
        assert!(driver.run_once().items > 0);
        receipt
            .try_get()
            .expect("a memory topic answers in the same turn")
            .unwrap();
        let delivery = consumer
            .try_recv()
            .unwrap()
            .expect("handed over in the same turn");
        assert_eq!(delivery.payload(), i.to_le_bytes());
        delivery.ack();
    }
    driver.run_until(consumer.begin_flush_acks()).unwrap();
    let stats = driver.run_until(engine.begin_stats()).unwrap();
    let stats = stats.subscription("t", "s").unwrap();
    assert_eq!((stats.acked_messages, stats.backlog_entries), (1_000, 0));
}

#[test]
fn blocking_calls_on_the_driving_thread_say_so_instead_of_hanging() {
    let (engine, mut driver) = Engine::in_memory().open_driven().unwrap();
    let error = engine.topic("t").open().unwrap_err();
    assert_eq!(
        error,
        TopicError::WouldBlock {
            name: "t".to_owned()
        }
    );
    assert!(error.to_string().contains("run_until"), "{error}");
    let topic = driver.run_until(engine.topic("t").begin()).unwrap();
    let mut consumer = driver.run_until(topic.subscribe("s").begin()).unwrap();
    let mut producer = driver.run_until(topic.producer().begin()).unwrap();
    assert!(matches!(consumer.recv(), Err(RecvError::WouldBlock { .. })));
    let receipt = producer.send("x").unwrap();
    assert_eq!(receipt.wait(), Err(ReceiptError::WouldBlock));
    assert_eq!(producer.flush(), Err(ReceiptError::WouldBlock));
    let pending: Pending<_> = engine.begin_stats();
    let pending = pending.wait().expect_err("it gives itself back");
    driver.run_until(pending).unwrap();
    assert!(receipt.wait().is_ok(), "what is there needs no waiting");
    consumer.recv().unwrap().ack();
}

#[test]
fn futures_are_driven_to_their_end_with_disk_and_handlers() {
    let directory = tempfile::tempdir().unwrap();
    let mut seen = 0u32;
    for round in 0..2 {
        let (engine, mut driver) = small(directory.path()).open_driven().unwrap();
        let topic = driver.run_until(engine.topic("t").begin()).unwrap();
        assert_eq!(topic.durability(), Durability::Synced);
        let mut consumer = driver.run_until(topic.subscribe("s").begin()).unwrap();
        let (count, counted) = std::sync::mpsc::channel();
        let handler = topic.subscribe("h").begin_handler(move |entry| {
            count.send(entry.message_count()).unwrap();
            Verdict::Ack
        });
        let guard = driver.run_until(handler).unwrap();
        let mut producer = driver.run_until(topic.producer().begin()).unwrap();
        let receipts: Vec<_> = (0..50u32)
            .map(|i| producer.send(i.to_le_bytes()).unwrap())
            .collect();
        for receipt in receipts {
            driver.run_until(receipt).unwrap();
        }
        for _ in 0..50 {
            let delivery = driver.run_until(consumer.recv_async()).unwrap();
            assert_eq!(delivery.payload(), (seen % 50).to_le_bytes());
            seen += 1;
            delivery.ack();
        }
        driver.run_until(consumer.begin_flush_acks()).unwrap();
        assert!(driver.run_until(guard.close()));
        assert_eq!(counted.try_iter().sum::<u32>(), 50, "round {round}");
        let flushed =
            std::future::poll_fn(|context: &mut Context<'_>| producer.poll_flush(context));
        driver.run_until(flushed).unwrap();
        drop((producer, consumer, topic));
        let report = driver
            .shutdown(std::time::Duration::from_secs(5))
            .expect("it ended");
        assert!(report.clean, "{report:?}");
    }
}

#[test]
fn an_engine_without_its_driver_is_closed() {
    let (engine, mut driver) = Engine::in_memory().open_driven().unwrap();
    let topic = driver.run_until(engine.topic("t").begin()).unwrap();
    let mut consumer = driver.run_until(topic.subscribe("s").begin()).unwrap();
    drop(driver);
    let mut context = Context::from_waker(Waker::noop());
    assert!(matches!(
        consumer.poll_recv(&mut context),
        Poll::Ready(Err(RecvError::Closed { .. }))
    ));
    assert!(matches!(
        engine.topic("u").open(),
        Err(TopicError::EngineClosed { .. })
    ));
}

#[test]
fn acks_that_the_full_lane_does_not_take_are_kept_and_sent_later() {
    let (engine, mut driver) = Engine::in_memory().open_driven().unwrap();
    let topic = driver.run_until(engine.topic("t").begin()).unwrap();
    let subscribe = topic.subscribe("s").window(30_000);
    let mut consumer = driver.run_until(subscribe.begin()).unwrap();
    let mut producer = driver
        .run_until(topic.producer().queue(32_768).begin())
        .unwrap();
    for i in 0..20_000u32 {
        producer.try_send(i.to_le_bytes()).unwrap();
    }
    while driver.run_once().items > 0 {}
    // The lane holds 16,384 and nobody empties it: each of these returns at once all the same.
    for i in 0..20_000u32 {
        let delivery = consumer.try_recv().unwrap().expect("all were handed over");
        assert_eq!(delivery.payload(), i.to_le_bytes());
        delivery.ack();
    }
    while driver.run_once().items > 0 {}
    driver.run_until(consumer.begin_flush_acks()).unwrap();
    let stats = driver.run_until(engine.begin_stats()).unwrap();
    let stats = stats.subscription("t", "s").unwrap();
    assert_eq!((stats.acked_messages, stats.backlog_entries), (20_000, 0));
}

/// A wake-up from another thread ends the sleep of the driving one. Counted, not timed: a sleep that
/// nobody ended would be ended by its time-out.
#[test]
fn a_future_woken_by_another_thread_wakes_the_driver() {
    let (engine, mut driver) = Engine::in_memory().open_driven().unwrap();
    let (ask, asked) = std::sync::mpsc::channel::<Waker>();
    let waker_thread = std::thread::spawn(move || {
        for waker in asked {
            // Long enough that the driver sleeps by then, short against its time-out of 5 ms.
            std::thread::sleep(std::time::Duration::from_millis(1));
            waker.wake();
        }
    });
    let _ = driver.run_until(engine.begin_stats()).unwrap();
    for _ in 0..50 {
        let mut polls = 0;
        driver.run_until(std::future::poll_fn(|context| {
            polls += 1;
            if polls == 1 {
                ask.send(context.waker().clone()).unwrap();
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        }));
    }
    drop(ask);
    waker_thread.join().unwrap();
    let stats = driver.run_until(engine.begin_stats()).unwrap();
    let wakes = stats.merged().counters.get(pelton::metrics::Counter::Wakes);
    assert!(wakes > 10, "{wakes} of 50 wake-ups ended a sleep");
}

#[test]
fn a_consumer_dropped_while_the_control_lane_is_full_is_detached_later() {
    let (engine, mut driver) = Engine::in_memory().open_driven().unwrap();
    let topic = driver.run_until(engine.topic("t").begin()).unwrap();
    let consumer = driver.run_until(topic.subscribe("s").begin()).unwrap();
    // Nobody empties the lane meanwhile, so it is full at the end.
    let mut context = Context::from_waker(Waker::noop());
    let asked: Vec<_> = (0..2_000)
        .map(|_| {
            let mut asked = Box::pin(engine.topic("t").begin());
            assert!(asked.as_mut().poll(&mut context).is_pending());
            asked
        })
        .collect();
    drop(consumer);
    for asked in asked {
        driver.run_until(asked).unwrap();
    }
    // Exclusive: it has one consumer at a time.
    driver.run_until(topic.subscribe("s").begin()).unwrap();
}

/// More acks than the data lane takes, given by the driving thread with nobody to empty it.
const ACKS: u32 = 40_000;

/// A topic with so many entries, and a consumer that has received all of them.
fn received_all(engine: &Engine, driver: &mut Driver) -> (Topic, Consumer, Vec<Delivery>) {
    let topic = driver.run_until(engine.topic("t").begin()).unwrap();
    let subscribe = topic.subscribe("s").window(2 * ACKS);
    let mut consumer = driver.run_until(subscribe.begin()).unwrap();
    let producer = topic.producer().queue(65_536).begin();
    let mut producer = driver.run_until(producer).unwrap();
    for i in 0..ACKS {
        producer.try_send(i.to_le_bytes()).unwrap();
    }
    while driver.run_once().items > 0 {}
    let deliveries: Vec<_> = std::iter::from_fn(|| consumer.try_recv().unwrap()).collect();
    assert_eq!(deliveries.len(), ACKS as usize);
    (topic, consumer, deliveries)
}

#[test]
fn a_flush_on_the_driving_thread_covers_acks_that_a_full_lane_did_not_take() {
    let (engine, mut driver) = Engine::in_memory().open_driven().unwrap();
    let (_topic, mut consumer, deliveries) = received_all(&engine, &mut driver);
    deliveries.into_iter().for_each(Delivery::ack);
    let flush = consumer.begin_flush_acks();
    driver.run_until(flush).unwrap();
    let stats = driver.run_until(engine.begin_stats()).unwrap();
    let stats = stats.subscription("t", "s").unwrap();
    assert_eq!(stats.acked_messages, u64::from(ACKS));
}

#[test]
fn a_consumer_dropped_on_the_driving_thread_is_closed_behind_its_acks() {
    let (engine, mut driver) = Engine::in_memory().open_driven().unwrap();
    let (topic, consumer, deliveries) = received_all(&engine, &mut driver);
    deliveries.into_iter().for_each(Delivery::ack);
    drop(consumer);
    let mut next = driver.run_until(topic.subscribe("s").begin()).unwrap();
    while driver.run_once().items > 0 {}
    assert!(next.try_recv().unwrap().is_none(), "acked, and comes again");
}

#[test]
fn a_thousand_consumers_dropped_between_two_turns_are_all_closed() {
    let (engine, mut driver) = Engine::in_memory().open_driven().unwrap();
    let topic = driver.run_until(engine.topic("t").begin()).unwrap();
    let shared = || topic.subscribe("s").kind(SubscriptionKind::Shared);
    let consumers: Vec<_> = (0..1_000)
        .map(|_| driver.run_until(shared().window(5).begin()).unwrap())
        .collect();
    let producer = topic.producer().queue(8_192).begin();
    let mut producer = driver.run_until(producer).unwrap();
    for i in 0..5_000u32 {
        producer.try_send(i.to_le_bytes()).unwrap();
    }
    while driver.run_once().items > 0 {}
    drop(consumers);
    let mut next = driver.run_until(shared().window(10_000).begin()).unwrap();
    while driver.run_once().items > 0 {}
    let again = std::iter::from_fn(|| next.try_recv().unwrap()).map(Delivery::ack);
    assert_eq!(again.count(), 5_000);
    drop((next, producer));
    driver.run_until(engine.begin_delete_topic("t")).unwrap();
}
