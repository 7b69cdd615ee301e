//! The futures, on an executor of a dozen lines.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use pelton::SubscriptionKind;

use crate::common::{LONG, block_on, eventually, memory, receive, small, subscribed};

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn everything_can_be_awaited() {
    let directory = tempfile::tempdir().unwrap();
    let engine = small(directory.path()).open().unwrap();
    block_on(async {
        let topic = engine.topic("t").begin().await.unwrap();
        let mut consumer = topic.subscribe("s").begin().await.unwrap();
        let mut producer = topic.producer().queue(2).begin().await.unwrap();
        for i in 0..100u32 {
            producer.ready().await.unwrap();
            let receipt = producer.try_send(i.to_le_bytes()).expect("there was room");
            if i % 10 == 0 {
                receipt.await.unwrap();
            }
        }
        std::future::poll_fn(|context| producer.poll_flush(context))
            .await
            .unwrap();
        for i in 0..100u32 {
            let delivery = consumer.recv_async().await.unwrap();
            assert_eq!(delivery.payload(), i.to_le_bytes());
            delivery.ack();
        }
        consumer.begin_flush_acks().await.unwrap();
        let stats = engine.begin_stats().await.unwrap();
        assert_eq!(stats.subscription("t", "s").unwrap().acked_messages, 100);
    });
}

#[test]
fn a_receive_that_is_dropped_takes_nothing() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    {
        let mut receive = pin!(consumer.recv_async());
        assert!(
            receive
                .as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
    }
    let mut producer = topic.producer().open().unwrap();
    for i in 0..3u8 {
        producer.send([i]).unwrap();
    }
    producer.flush().unwrap();
    let end_ns = engine.clock().now_ns() + LONG.as_nanos() as u64;
    while count.0.load(Ordering::SeqCst) == 0 {
        assert!(
            engine.clock().now_ns() < end_ns,
            "the waker was never called"
        );
        std::thread::yield_now();
    }
    for _ in 0..100 {
        drop(consumer.recv_async());
    }
    assert_eq!(receive(&mut consumer, 3), [[0u8], [1], [2]]);
    assert_eq!(count.0.load(Ordering::SeqCst), 1, "a waker is called once");
}

#[test]
fn many_tasks_receive_on_one_thread() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    let shared = || {
        topic
            .subscribe("s")
            .kind(SubscriptionKind::Shared)
            .window(4)
            .open()
            .unwrap()
    };
    let consumers: Vec<_> = (0..10).map(|_| shared()).collect();
    let mut tasks: Vec<_> = consumers
        .into_iter()
        .map(|mut consumer| {
            Box::pin(async move {
                for _ in 0..50 {
                    consumer.recv_async().await.unwrap().ack();
                }
                consumer.begin_flush_acks().await.unwrap();
            })
        })
        .collect();
    let mut producer = topic.producer().open().unwrap();
    for i in 0..500u32 {
        producer.send(i.to_le_bytes()).unwrap();
    }
    // All tasks on one waker; which of them is ready is found by polling.
    block_on(std::future::poll_fn(|context: &mut Context<'_>| {
        tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
        if tasks.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }));
}

#[test]
fn a_call_that_is_dropped_leaves_nothing_attached() {
    let engine = memory();
    let topic = engine.topic("t").open().unwrap();
    drop(topic.subscribe("s").begin());
    drop(topic.producer().begin());
    drop(topic.forwarder());
    eventually(&engine, ("t", "s"), |s| s.consumers.is_empty());
    // Exclusive: it could not attach if the dropped one still were.
    topic.subscribe("s").open().unwrap();
    let end_ns = engine.clock().now_ns() + LONG.as_nanos() as u64;
    while engine.stats().unwrap().topic("t").unwrap().producers > 0 {
        assert!(
            engine.clock().now_ns() < end_ns,
            "a producer stayed attached"
        );
    }
}

#[cfg(feature = "stream")]
#[test]
fn a_consumer_is_a_stream_that_ends_with_its_engine() {
    use futures_core::Stream;

    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    for i in 0..10u8 {
        producer.send([i]).unwrap();
    }
    let mut next = || {
        block_on(std::future::poll_fn(|context| {
            std::pin::Pin::new(&mut consumer).poll_next(context)
        }))
    };
    for i in 0..10u8 {
        let delivery = next().expect("ten were sent");
        assert_eq!(delivery.payload(), [i]);
        delivery.ack();
    }
    engine.shutdown(LONG);
    assert!(next().is_none());
}
