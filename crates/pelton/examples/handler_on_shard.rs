//! A handler that runs on the shard's own thread: no ring, no wake-up, no second thread between
//! the log and the code that reacts. Here it keeps a running sum per key.
//!
//! `cargo run -p pelton --example handler_on_shard`

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::mpsc;
use std::time::Duration;

use pelton::{Engine, Message, Verdict};

fn main() -> Result<(), Box<dyn Error>> {
    let engine = Engine::in_memory().open()?;
    let ticks = engine.topic("ticks").open()?;

    let (finished, sums) = mpsc::channel();
    let mut by_key: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
    // The handler owns its state: no lock. It must not block, since its shard waits for it.
    let guard = ticks.subscribe("sums").handler(move |entry| {
        for message in entry.messages() {
            if message.payload == b"end" {
                let _ = finished.send(std::mem::take(&mut by_key));
                continue;
            }
            let Ok(bytes) = message.payload.try_into() else {
                return Verdict::Nack;
            };
            let key = message.key.unwrap_or_default().to_vec();
            *by_key.entry(key).or_default() += u64::from_le_bytes(bytes);
        }
        Verdict::Ack
    })?;

    let mut producer = ticks.producer().open()?;
    for number in 0..30_000u64 {
        let key: &[u8] = [&b"red"[..], b"green", b"blue"][(number % 3) as usize];
        producer.send_message(Message::new(&number.to_le_bytes()).key(key))?;
    }
    producer.send(b"end")?;

    for (key, sum) in sums.recv_timeout(Duration::from_secs(10))? {
        println!("{:>5}: {sum}", String::from_utf8_lossy(&key));
    }
    drop(guard); // detaches the handler; the subscription stays
    println!("stopped: {:?}", engine.shutdown(Duration::from_secs(5)));
    Ok(())
}
