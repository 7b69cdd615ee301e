//! Consumers that do not receive: nobody else waits for them (rule D80).

use pelton::{Durability, Engine, InitialPosition, Topic};

use crate::common::{LONG, stats_of};

/// Of a size that takes a block of 64 KiB for itself, so that a full window is twice the memory that
/// deliveries may hold.
const ENTRY_BYTES: usize = 40_000;
/// More than a full window.
const ENTRIES: usize = 1_500;

fn engine(directory: &tempfile::TempDir) -> Engine {
    let builder = Engine::builder(directory.path()).tail_bytes(1 << 20);
    builder.open().unwrap()
}

fn topic(engine: &Engine, name: &str) -> Topic {
    let topic = engine.topic(name).durability(Durability::Written);
    topic.open().unwrap()
}

#[test]
fn a_consumer_that_does_not_receive_stops_its_topic() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(&directory);
    let topic = topic(&engine, "t");
    let mut slow = topic.subscribe("slow").open().unwrap();
    let mut fast = topic.subscribe("fast").open().unwrap();
    let mut producer = topic.producer().open().unwrap();
    for i in 0..ENTRIES {
        let receipt = producer.send(vec![i as u8; ENTRY_BYTES]).unwrap();
        assert!(receipt.wait_timeout(LONG).unwrap().is_some(), "entry {i}");
        let delivery = fast.recv_timeout(LONG).unwrap().expect("it is not delayed");
        assert_eq!(delivery.payload()[0], i as u8);
        delivery.ack();
    }
    // It was held back with permits in hand, for memory is bounded, and goes on when it receives.
    let permits = stats_of(&engine, "t", "slow").consumers[0].available_permits;
    assert!(permits > 0, "{permits}");
    for i in 0..ENTRIES {
        let delivery = slow.recv_timeout(LONG).unwrap();
        let delivery = delivery.unwrap_or_else(|| panic!("entry {i} does not come"));
        assert_eq!(delivery.payload()[0], i as u8);
        delivery.ack();
    }
}

#[test]
fn a_consumer_that_does_not_receive_a_backlog_keeps_others_from_the_disk() {
    let directory = tempfile::tempdir().unwrap();
    let engine = engine(&directory);
    let topic = topic(&engine, "t");
    drop(topic.subscribe("slow").open().unwrap());
    let backlog = topic.subscribe("fast");
    drop(backlog.initial(InitialPosition::Earliest).open().unwrap());
    let mut producer = topic.producer().open().unwrap();
    for i in 0..ENTRIES {
        producer.send(vec![i as u8; ENTRY_BYTES]).unwrap();
    }
    producer.flush().unwrap();
    let slow = topic.subscribe("slow").open().unwrap();
    // Its ring fills up with what was read for it.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let mut fast = topic.subscribe("fast").open().unwrap();
    for i in 0..ENTRIES {
        let delivery = fast.recv_timeout(LONG).unwrap();
        let delivery = delivery.unwrap_or_else(|| panic!("entry {i} does not come"));
        assert_eq!(delivery.payload()[0], i as u8);
        delivery.ack();
    }
    drop(slow);
}
