//! System calls per message, counted: what `docs/BENCH.md` states, held by the number of messages and
//! not by time.
//!
//! Each test starts itself again as a child, which does its work between two marks; the parent traces
//! every thread of it and counts the system calls in between. Noise only adds calls (a thread that
//! loses its CPU finds the other side asleep), so the best of some rounds is what counts: a call per
//! message is in every round.
#![forbid(unsafe_code)]

#[cfg(test)]
mod calls;
#[cfg(test)]
mod trace;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::Path;
    use std::time::Duration;

    use nix::libc;
    use pelton::{Consumer, Engine, HandlerGuard, Idle, InitialPosition, Producer, Verdict};

    use crate::calls::Calls;
    use crate::trace::{mark, traced};

    const ROUNDS: usize = 5;
    const BURST: u64 = 64;
    /// No roll within a test.
    const SEGMENT_BYTES: u64 = 32 << 20;
    /// Segments that a log has ready beside the one it writes.
    const SPARES: usize = 2;
    const LONG: Duration = Duration::from_secs(60);

    /// `ROUNDS` times the work between two marks, after one round that counts for nothing.
    fn rounds(mut round: impl FnMut()) {
        round();
        for _ in 0..ROUNDS {
            mark();
            round();
            mark();
        }
    }

    /// Prints all rounds and gives the one with the fewest calls.
    fn best(what: &str, rounds: Vec<Calls>) -> Calls {
        assert_eq!(rounds.len(), ROUNDS, "the child did all its rounds");
        for round in &rounds {
            println!("{what}: {round}");
        }
        let fewest = rounds.into_iter().min_by_key(Calls::total);
        fewest.expect("there are rounds")
    }

    fn memory(idle: Idle) -> Engine {
        let engine = Engine::in_memory().idle(idle).waiting(idle).open();
        engine.expect("an engine in memory opens")
    }

    fn attach(engine: &Engine) -> (Producer, Consumer) {
        let topic = engine.topic("t").open().expect("the topic opens");
        let consumer = topic.subscribe("s").initial(InitialPosition::Earliest);
        let consumer = consumer.open().expect("the subscription opens");
        let producer = topic.producer().open().expect("the producer attaches");
        (producer, consumer)
    }

    fn attach_handler(engine: &Engine) -> (Producer, HandlerGuard) {
        let topic = engine.topic("t").open().expect("the topic opens");
        let guard = topic.subscribe("s").handler(|_| Verdict::Ack);
        let producer = topic.producer().open().expect("the producer attaches");
        (producer, guard.expect("the handler attaches"))
    }

    fn receive(consumer: &mut Consumer) {
        let delivery = consumer.recv_timeout(LONG).expect("the consumer lives");
        delivery.expect("it arrives").ack();
    }

    /// Sends and receives so many messages in bursts, on this thread.
    fn bursts(producer: &mut Producer, consumer: &mut Consumer, messages: u64) {
        for _ in 0..messages / BURST {
            for _ in 0..BURST {
                producer.send([7; 64]).expect("the shard takes it");
            }
            for _ in 0..BURST {
                receive(consumer);
            }
        }
    }

    /// Sends so many messages without a pause, and waits for the last receipt.
    fn stream(producer: &mut Producer, messages: u64) {
        for _ in 0..messages {
            producer.send([7; 64]).expect("the shard takes it");
        }
        producer.flush().expect("the shard takes it");
    }

    #[test]
    fn an_engine_that_does_not_sleep_makes_no_system_call() {
        const TEST: &str = "tests::an_engine_that_does_not_sleep_makes_no_system_call";
        let counted = traced(TEST, || {
            let engine = memory(Idle::Busy);
            let (mut producer, mut consumer) = attach(&engine);
            rounds(|| bursts(&mut producer, &mut consumer, 1_000 * BURST));
        });
        let Some(counted) = counted else { return };
        let best = best("64,000 messages, nobody sleeps", counted);
        assert_eq!(best.total(), 0, "{best}");
    }

    #[test]
    fn a_burst_costs_far_less_than_waking_somebody_for_each_message() {
        const TEST: &str = "tests::a_burst_costs_far_less_than_waking_somebody_for_each_message";
        const BURSTS: u64 = 1_000;
        let counted = traced(TEST, || {
            let engine = memory(Idle::default());
            let (mut producer, mut consumer) = attach(&engine);
            rounds(|| bursts(&mut producer, &mut consumer, BURSTS * BURST));
        });
        let Some(counted) = counted else { return };
        let best = best("64,000 messages in bursts of 64", counted);
        // Where the two share a CPU with others, the shard sleeps within a burst as well.
        assert!(best.total() <= BURST / 2 * BURSTS, "{best}");
    }

    #[test]
    fn a_stream_to_a_handler_makes_40_system_calls_per_1000_messages_at_most() {
        const TEST: &str =
            "tests::a_stream_to_a_handler_makes_40_system_calls_per_1000_messages_at_most";
        const THOUSANDS: u64 = 100;
        let counted = traced(TEST, || {
            let engine = memory(Idle::default());
            let (mut producer, _guard) = attach_handler(&engine);
            rounds(|| stream(&mut producer, THOUSANDS * 1_000));
        });
        let Some(counted) = counted else { return };
        let best = best("100,000 messages to a handler", counted);
        assert!(best.total() <= 40 * THOUSANDS, "{best}");
    }

    #[test]
    fn a_lone_message_rings_twice_and_parks_once() {
        const TEST: &str = "tests::a_lone_message_rings_twice_and_parks_once";
        const MESSAGES: u64 = 1_000;
        let counted = traced(TEST, || {
            let engine = memory(Idle::Park);
            let (mut producer, mut consumer) = attach(&engine);
            rounds(|| {
                for _ in 0..MESSAGES {
                    producer.send([7; 64]).expect("the shard takes it");
                    receive(&mut consumer);
                }
            });
        });
        let Some(counted) = counted else { return };
        let best = best("1,000 lone messages, nobody spins", counted);
        // For the message and for its ack: one ring, one sleep. The consumer parks, and is woken.
        assert!(best.of(libc::SYS_write) <= 2 * MESSAGES, "{best}");
        assert!(best.of(libc::SYS_epoll_wait) <= 2 * MESSAGES, "{best}");
        assert!(best.of(libc::SYS_futex) <= 2 * MESSAGES, "{best}");
        assert!(best.total() <= 6 * MESSAGES, "{best}");
    }

    /// An engine whose durable writes go through io_uring, with a producer to a handler, in a
    /// directory of its own; once it has made its segments, so that nothing goes on beside.
    fn durable() -> Option<(tempfile::TempDir, Engine, Producer, HandlerGuard)> {
        // Not the system's temporary directory: that may be memory.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        let engine = Engine::builder(dir.path()).segment_bytes(SEGMENT_BYTES);
        let engine = engine.open().expect("it opens");
        engine.disk_report().expect("it has a directory").step?;
        let (mut producer, guard) = attach_handler(&engine);
        stream(&mut producer, 1);
        // The spares follow the first segment, one by one; a header comes last.
        while segments_made(&dir.path().join("shard-0")) <= SPARES {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        Some((dir, engine, producer, guard))
    }

    /// Segment files with a header.
    fn segments_made(dir: &Path) -> usize {
        let files = std::fs::read_dir(dir).expect("the folder of the shard");
        let made = files.filter(|file| {
            let path = file.as_ref().expect("a file").path();
            let file = std::fs::OpenOptions::new().read(true).open(path);
            let mut start = [0; 8];
            file.is_ok_and(|mut file| file.read_exact(&mut start).is_ok() && start != [0; 8])
        });
        made.count()
    }

    #[test]
    fn a_lone_durable_receipt_enters_the_ring_twice() {
        const TEST: &str = "tests::a_lone_durable_receipt_enters_the_ring_twice";
        const RECEIPTS: u64 = 200;
        let counted = traced(TEST, || {
            let Some((_dir, _engine, mut producer, _guard)) = durable() else {
                return;
            };
            rounds(|| {
                for _ in 0..RECEIPTS {
                    let receipt = producer.send([7; 64]).expect("the shard takes it");
                    receipt.wait().expect("it becomes durable");
                }
            });
        });
        let Some(counted) = counted.filter(|rounds| through_the_ring(rounds)) else {
            return;
        };
        let best = best("200 lone durable receipts", counted);
        // Submit and reap; the ring of the doorbell; asleep before the message and before the end
        // of the write; the producer parks, and is woken. The yields of a shard that waits for a
        // write are for others.
        // One round may reap what the round before it submitted.
        let slack = RECEIPTS / 50;
        let yields = best.of(libc::SYS_sched_yield);
        assert!(
            best.of(libc::SYS_io_uring_enter) <= 2 * RECEIPTS + slack,
            "{best}"
        );
        assert!(best.of(libc::SYS_write) <= RECEIPTS, "{best}");
        assert!(
            best.of(libc::SYS_epoll_wait) <= 2 * RECEIPTS + slack,
            "{best}"
        );
        assert!(best.of(libc::SYS_futex) <= 2 * RECEIPTS + slack, "{best}");
        assert!(best.total() - yields <= 7 * RECEIPTS, "{best}");
    }

    #[test]
    fn a_durable_stream_makes_60_system_calls_per_1000_messages_at_most() {
        const TEST: &str =
            "tests::a_durable_stream_makes_60_system_calls_per_1000_messages_at_most";
        const THOUSANDS: u64 = 20;
        let counted = traced(TEST, || {
            let Some((_dir, _engine, mut producer, _guard)) = durable() else {
                return;
            };
            rounds(|| stream(&mut producer, THOUSANDS * 1_000));
        });
        let Some(counted) = counted.filter(|rounds| through_the_ring(rounds)) else {
            return;
        };
        let best = best("20,000 durable messages", counted);
        assert!(best.total() <= 60 * THOUSANDS, "{best}");
    }

    /// False, and a line, if the child had no ring to work with.
    fn through_the_ring(rounds: &[Calls]) -> bool {
        if rounds.is_empty() {
            println!("skipped: io_uring is not to be had here, or DISK says otherwise");
        }
        !rounds.is_empty()
    }
}
