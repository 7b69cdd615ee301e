//! Steady state allocates nothing, on any thread (runtime 8.5, 11.3): publish, dispatch, receive and
//! ack of 10^6 messages on a memory topic after a warm-up, counted by the allocator itself.
//!
//! One test only: the counters are the process's.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};

use pelton::{Consumer, Engine, InitialPosition, Message, Producer, Verdict};
use pelton_sys::alloc::{Counted, Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

const MESSAGES: u64 = 1_000_000;

/// Messages' bytes the producer may be ahead of the consumer while it is counted. Without a bound the
/// backlog grows, and its index with it; and beyond the memory that the pool keeps (32 MiB a shard)
/// blocks go back to the allocator.
const LEAD_BYTES: u64 = 8 << 20;
const LEAD_ENTRIES_MAX: u64 = 4_096;

/// Rounds of [`MESSAGES`] until one allocates nothing. The first ones are the warm-up: pools grow to
/// their high-water marks, which depend on how the threads happen to run. Whatever allocated by the
/// message would do so in every round, and that by the million.
const ROUNDS_MAX: usize = 20;

/// Sends entries of `batch` messages each and receives them on another thread by `receive`, which
/// takes at least one entry and says how many. Gives the counts of each round until one is zero.
fn rounds(batch: u64, mut receive: impl FnMut(&mut Consumer) -> u64 + Send) -> Vec<Counted> {
    let engine = Engine::in_memory().open().unwrap();
    let topic = engine.topic("t").open().unwrap();
    let mut consumer = topic
        .subscribe("s")
        .initial(InitialPosition::Earliest)
        .open()
        .unwrap();
    let mut producer = topic.producer().open().unwrap();
    let (received, wanted, meet) = (AtomicU64::new(0), AtomicU64::new(0), Barrier::new(2));
    let entries = MESSAGES / batch;
    let lead = LEAD_ENTRIES_MAX.min(LEAD_BYTES / (100 * batch));
    // More than the lead, so that every queue was longer than it will be while it is counted.
    let warm_up_lead = 3 * lead;
    let body = [0x5a; 64];
    let mut counts = Vec::with_capacity(ROUNDS_MAX);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut taken = 0;
            loop {
                meet.wait();
                let wanted = wanted.load(Ordering::Acquire);
                if wanted == taken {
                    return;
                }
                while taken < wanted {
                    taken += receive(&mut consumer);
                    received.store(taken, Ordering::Release);
                }
                meet.wait();
            }
        });
        for _ in 0..warm_up_lead {
            send(&mut producer, &body, batch);
        }
        producer.flush().unwrap();
        let mut sent = warm_up_lead;
        while counts.len() < ROUNDS_MAX && counts.last() != Some(&Counted::default()) {
            wanted.store(sent + entries, Ordering::Release);
            ALLOCATOR.arm();
            meet.wait();
            for _ in 0..entries {
                while sent - received.load(Ordering::Acquire) >= lead {
                    std::thread::yield_now();
                }
                send(&mut producer, &body, batch);
                sent += 1;
            }
            producer.flush().unwrap();
            meet.wait();
            counts.push(ALLOCATOR.disarm());
        }
        meet.wait();
    });
    counts
}

fn send(producer: &mut Producer, body: &[u8], batch: u64) {
    if batch == 1 {
        producer
            .send_message(Message::new(body).key(b"key"))
            .unwrap();
    } else {
        producer
            .send_batch((0..batch).map(|_| Message::new(body)))
            .unwrap();
    }
}

/// The last round allocated nothing, and none of the others anything by the message.
fn check(what: &str, counts: &[Counted]) {
    println!("{what}: {counts:?}");
    assert_eq!(
        counts.last(),
        Some(&Counted::default()),
        "{what}: {counts:?}"
    );
    let most = counts.iter().map(|counted| counted.allocations).max();
    assert!(most < Some(MESSAGES / 100), "{what}: {counts:?}");
}

#[test]
fn a_million_messages_allocate_nothing() {
    let by_delivery = rounds(1, |consumer| {
        let delivery = consumer.recv().unwrap();
        assert_eq!(delivery.key(), Some(&b"key"[..]));
        delivery.ack();
        1
    });
    check("recv and ack of single messages", &by_delivery);

    let in_place = rounds(1, |consumer| {
        consumer.for_each(256, |_| Verdict::Ack).unwrap() as u64
    });
    check("for_each of single messages", &in_place);

    let batches = rounds(100, |consumer| {
        let delivery = consumer.recv().unwrap();
        assert_eq!(delivery.messages().count(), 100);
        delivery.ack();
        1
    });
    check("batches of 100", &batches);
}
