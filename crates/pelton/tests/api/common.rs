//! What the modules share: engines, an executor of a dozen lines, and waiting for a condition.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use pelton::{
    Builder, Clock, Consumer, Engine, InitialPosition, SubscriptionKind, SubscriptionStats, Topic,
};

/// Longer than anything here takes on a busy machine; reached only by a failure.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// An engine in memory.
pub(crate) fn memory() -> Engine {
    Engine::in_memory()
        .open()
        .expect("an engine in memory opens")
}

/// A builder for a directory, with segments as small as they can be so that they roll often.
pub(crate) fn small(directory: &Path) -> Builder {
    Engine::builder(directory).segment_bytes(64 * 1024)
}

/// A memory topic with a subscription from the start.
pub(crate) fn subscribed(engine: &Engine, topic: &str, subscription: &str) -> (Topic, Consumer) {
    let topic = engine.topic(topic).open().expect("the topic opens");
    let consumer = topic
        .subscribe(subscription)
        .initial(InitialPosition::Earliest)
        .open()
        .expect("the subscription opens");
    (topic, consumer)
}

/// As [`subscribed`], Shared: a nack brings back one entry, and counts.
pub(crate) fn shared(engine: &Engine, topic: &str, subscription: &str) -> (Topic, Consumer) {
    let topic = engine.topic(topic).open().expect("the topic opens");
    let subscribe = topic
        .subscribe(subscription)
        .kind(SubscriptionKind::Shared)
        .initial(InitialPosition::Earliest);
    let consumer = subscribe.open().expect("the subscription opens");
    (topic, consumer)
}

/// The next `count` payloads, acked.
pub(crate) fn receive(consumer: &mut Consumer, count: usize) -> Vec<Vec<u8>> {
    (0..count)
        .map(|i| {
            let delivery = consumer
                .recv_timeout(LONG)
                .expect("the consumer is open")
                .unwrap_or_else(|| panic!("only {i} of {count} entries came"));
            let payload = delivery.payload().to_vec();
            delivery.ack();
            payload
        })
        .collect()
}

/// The statistics of a subscription.
pub(crate) fn stats_of(engine: &Engine, topic: &str, subscription: &str) -> SubscriptionStats {
    let stats = engine.stats().expect("the engine is open");
    stats
        .subscription(topic, subscription)
        .expect("the subscription exists")
        .clone()
}

/// Asks for the statistics of a subscription until they are as wanted.
pub(crate) fn eventually(
    engine: &Engine,
    (topic, subscription): (&str, &str),
    wanted: impl Fn(&SubscriptionStats) -> bool,
) -> SubscriptionStats {
    let clock = Clock::new();
    let end_ns = clock.now_ns() + LONG.as_nanos() as u64;
    loop {
        let stats = stats_of(engine, topic, subscription);
        if wanted(&stats) {
            return stats;
        }
        assert!(clock.now_ns() < end_ns, "never came true: {stats:?}");
        std::thread::yield_now();
    }
}

/// Enough turns of the shard for anything that was due to happen to have happened.
pub(crate) fn some_turns(engine: &Engine) {
    for _ in 0..10 {
        engine.stats().expect("the engine is open");
    }
}

/// Runs a future to its end on this thread: all the executor that the crate needs.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread, AtomicBool);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.1.store(true, Ordering::Release);
            self.0.unpark();
        }
    }
    let unpark = Arc::new(Unpark(std::thread::current(), AtomicBool::new(false)));
    let waker = Waker::from(Arc::clone(&unpark));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        while !unpark.1.swap(false, Ordering::AcqRel) {
            std::thread::park_timeout(LONG);
        }
    }
}
