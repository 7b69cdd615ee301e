//! Replays the lines of a file through a durable topic, then opens the engine again and shows that
//! what was not acked is still there.
//!
//! `cargo run -p pelton --example replay_file -- ../shared/data/earthquakes.ndjson`
//! Without an argument it replays a few lines of its own.

use std::error::Error;
use std::time::Duration;

use pelton::{Engine, InitialPosition, Message};

/// Earthquakes of one morning, as the USGS publishes them.
const BUILT_IN: &str = r#"{"time_ms":1517363399650,"key":"uw","mag":0.31,"place":"37km NNE of Amboy, Washington"}
{"time_ms":1517364015660,"key":"mb","mag":1.35,"place":"20km NNE of Lima, Montana"}
{"time_ms":1517364031800,"key":"us","mag":5.3,"place":"50km NNW of Sangiang, Indonesia"}
{"time_ms":1517364200000,"key":"uw","mag":1.1,"place":"8km S of Duvall, Washington"}
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let text = match std::env::args().nth(1) {
        Some(path) => std::fs::read_to_string(&path).map_err(|error| {
            format!("reading {path:?} failed: {error}; give a file with one event per line")
        })?,
        None => BUILT_IN.to_owned(),
    };
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let directory = tempfile::tempdir()?;

    let engine = Engine::builder(directory.path()).open()?;
    let events = engine.topic("events").open()?; // receipts after fdatasync
    let mut reader = events
        .subscribe("reader")
        .initial(InitialPosition::Earliest)
        .open()?;

    let started_ns = engine.clock().now_ns();
    let mut producer = events.producer().name("replay").open()?;
    for line in &lines {
        let message = match field(line, "key") {
            Some(key) => Message::new(line.as_bytes()).key(key.as_bytes()),
            None => Message::new(line.as_bytes()),
        };
        producer.send_message(message)?;
    }
    producer.flush()?;
    let elapsed_us = (engine.clock().now_ns() - started_ns) / 1_000;
    println!("{} lines stored and synced in {elapsed_us} us", lines.len());

    // Ack the first half, then stop: the other half is owed.
    let half = lines.len() / 2;
    for line in &lines[..half] {
        let event = reader.recv()?;
        assert_eq!(event.payload(), line.as_bytes(), "in the order of the file");
        event.ack();
    }
    reader.flush_acks()?;
    drop((producer, reader, events));
    println!("stopped: {:?}", engine.shutdown(Duration::from_secs(5)));

    let engine = Engine::builder(directory.path()).open()?;
    let events = engine.topic("events").open()?;
    let mut reader = events.subscribe("reader").open()?;
    for line in &lines[half..] {
        let event = reader.recv()?;
        assert_eq!(
            event.payload(),
            line.as_bytes(),
            "exactly what was not acked"
        );
        event.ack();
    }
    reader.flush_acks()?;
    println!(
        "{} lines received after reopening, {} before",
        lines.len() - half,
        half
    );
    Ok(())
}

/// The text of a field whose value is a plain string; good enough for an example.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(&format!("\"{name}\":\""))?;
    rest.split_once('"').map(|(value, _)| value)
}
