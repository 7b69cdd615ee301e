//! Many topics with nothing to do: what each costs to have and to open.

use pelton::{Durability, Engine, InitialPosition};
use pelton_metrics::Histogram;

use crate::{
    DIGITS, LoadError,
    bench::Bench,
    payload::{HEADER_BYTES, Header},
    report::Part,
    units,
    verify::Verifier,
};

/// Topics opened.
const TOPICS: usize = 100_000;

/// Every so many topics one message goes through, so that what is counted is topics that work.
const USED_EVERY: usize = 100;

pub(crate) fn run(bench: &mut Bench<'_>, engine: &Engine) -> Result<Part, LoadError> {
    bench.say(&format!(
        "idle-topics: opening {} topics",
        units::count(TOPICS as u64)
    ));
    let mut verifier = Verifier::new(1, 1);
    let subscription = verifier.add_subscription("every hundredth topic", 0..1);
    let consumer = verifier.add_consumer(subscription);
    let mut opened = Histogram::new(DIGITS);
    let mut topics = Vec::with_capacity(TOPICS);
    let clock = engine.clock();
    let before_bytes = pelton::limits::process_rss_bytes();
    let start_ns = clock.now_ns();
    for i in 0..TOPICS {
        if bench.stopped() {
            break;
        }
        let one_ns = clock.now_ns();
        let topic = engine
            .topic(format!("idle-{i:06}"))
            .durability(Durability::Memory);
        let topic = topic.open().map_err(LoadError::engine)?;
        let receiver = topic
            .subscribe("sub")
            .initial(InitialPosition::Earliest)
            .window(1);
        let mut receiver = receiver.open().map_err(LoadError::engine)?;
        opened.record(clock.now_ns() - one_ns);
        if i % USED_EVERY == 0 {
            verifier.granted(consumer, 1);
            let mut payload = [0; HEADER_BYTES];
            let header = Header {
                producer: 0,
                key: 0,
                sequence: verifier.next_sequence(0),
                intended_ns: clock.now_ns(),
            };
            header.write(&mut payload);
            let mut producer = topic
                .producer()
                .queue(2)
                .open()
                .map_err(LoadError::engine)?;
            verifier.published(0, 1);
            producer.send(payload).map_err(LoadError::engine)?;
            let delivery = receiver.recv().map_err(LoadError::engine)?;
            verifier.delivered_entry(consumer, 1);
            verifier.delivered(consumer, Header::read(delivery.payload()));
            delivery.ack();
            receiver.flush_acks().map_err(LoadError::engine)?;
            verifier.acked(consumer, 1);
        }
        topics.push(topic);
    }
    let opened_count = topics.len();
    let seconds = (clock.now_ns() - start_ns) as f64 / 1e9;
    let after_bytes = pelton::limits::process_rss_bytes();
    let mut part = Part::new("idle-topics", "memory");
    part.title = format!(
        "{} memory topics with one subscription each, consumer detached",
        units::count(opened_count as u64)
    );
    part.meaning = "what a topic costs when nothing happens on it";
    part.seconds = seconds;
    part.achieved_per_s = verifier.delivered_total() as f64 / seconds;
    part.bytes_per_s = part.achieved_per_s * HEADER_BYTES as f64;
    part.verdict = verifier.verdict();
    part.others.push(("open + subscribe", opened));
    let per_topic = after_bytes.saturating_sub(before_bytes) as f64 / opened_count as f64;
    part.figures.push((
        "resident memory",
        format!(
            "{} per topic, handles included ({} before, {} after)",
            units::bytes(per_topic),
            units::bytes(before_bytes as f64),
            units::bytes(after_bytes as f64)
        ),
    ));
    part.figures.push((
        "opened at",
        format!(
            "{}, all in {seconds:.1} s",
            units::rate(opened_count as f64 / seconds, "topic")
        ),
    ));
    Ok(part)
}
