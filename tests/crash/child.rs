//! The child: a synced load that says what it was promised, until it is killed.

use std::collections::VecDeque;
use std::io::Write;
use std::path::Path;

use pelton::{Consumer, Engine, InitialPosition, Receipt, SubscriptionKind};

/// Set to the directory in the child's environment.
pub(crate) const DIR_VARIABLE: &str = "PELTON_CRASH_CHILD_DIR";
/// The first number to publish.
pub(crate) const FIRST_VARIABLE: &str = "PELTON_CRASH_CHILD_FIRST";

pub(crate) const TOPIC: &str = "crash";
pub(crate) const SUBSCRIPTION: &str = "checked";
pub(crate) const SEGMENT_BYTES: u64 = 1 << 20;

/// The payload of message `number`: checkable, and of a size that depends on it (8 to 3,007 bytes),
/// so that blocks end everywhere.
pub(crate) fn payload(number: u64) -> Vec<u8> {
    let bytes = usize::try_from(number.wrapping_mul(2_654_435_761) % 3_000).expect("small");
    let mut payload = number.to_le_bytes().to_vec();
    payload.extend((0..bytes).map(|at| (number as usize + at) as u8));
    payload
}

/// The number of a payload, if every byte of it is right.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (payload(number) == bytes).then_some(number)
}

pub(crate) fn open(dir: &Path) -> Engine {
    let engine = Engine::builder(dir).segment_bytes(SEGMENT_BYTES).open();
    engine.unwrap_or_else(|error| panic!("open failed: {error}"))
}

pub(crate) fn subscribe(engine: &Engine) -> Consumer {
    let topic = engine.topic(TOPIC).open().expect("the topic opens");
    topic
        .subscribe(SUBSCRIPTION)
        .kind(SubscriptionKind::Exclusive)
        .initial(InitialPosition::Earliest)
        .open()
        .expect("the subscription attaches")
}

/// Runs the load for ever if this process was started as the child.
pub(crate) fn run_if_asked() -> bool {
    let Ok(dir) = std::env::var(DIR_VARIABLE) else {
        return false;
    };
    let first: u64 = std::env::var(FIRST_VARIABLE)
        .expect("set")
        .parse()
        .expect("a number");
    let engine = open(Path::new(&dir));
    let mut consumer = subscribe(&engine);
    let topic = engine.topic(TOPIC).open().expect("the topic opens");
    let mut producer = topic.producer().open().expect("the producer attaches");
    let mut out = std::io::stdout();
    let mut owed: VecDeque<(u64, Receipt)> = VecDeque::new();
    let mut acked: Vec<u64> = Vec::new();
    for next in first.. {
        let receipt = producer.send(payload(next)).expect("the log takes it");
        owed.push_back((next, receipt));
        // A burst of up to 16 in flight, so that commits hold one message and many.
        while owed.len() > (next % 16) as usize {
            let (number, receipt) = owed.pop_front().expect("not empty");
            receipt.wait().expect("it becomes durable");
            writeln!(out, "r {number}").expect("the parent reads");
        }
        while let Some(delivery) = consumer.try_recv().expect("the consumer lives") {
            // Every fifth stays unacked: holes in the cursor.
            let number = number(delivery.payload()).expect("an intact payload");
            if number.is_multiple_of(5) {
                delivery.keep();
            } else {
                writeln!(out, "i {number}").expect("the parent reads");
                delivery.ack();
                acked.push(number);
            }
        }
        if next.is_multiple_of(32) && !acked.is_empty() {
            consumer.flush_acks().expect("the acks become durable");
            for number in acked.drain(..) {
                writeln!(out, "a {number}").expect("the parent reads");
            }
        }
        out.flush().expect("the parent reads");
    }
    true
}
