#![allow(clippy::disallowed_methods)]
use pelton_storage::*;
fn main() {
    let mut log = Log::in_memory(Options::default());
    let t = log.open_topic(TopicKey(1), Durability::Memory);
    let body = [7u8; 64];
    for per_turn in [1u64, 16, 256, 4096] {
        for _ in 0..3 {
            let start = std::time::Instant::now();
            let n = 4_000_000u64;
            let mut done = log.end(t);
            let goal = done + n;
            let mut sum = 0u64;
            while done < goal {
                for i in 0..per_turn {
                    let e = NewEntry { body: &body, messages: 1, key_hash: 0, producer: 1, sequence: i, publish_ms: 0, arrived_ns: 5 };
                    log.append(t, &e, 9).unwrap();
                }
                while let Some((b, s, c)) = log.run(t, done, 1000) {
                    done += u64::from(c);
                    sum += u64::from(b.meta(s).messages);
                }
                log.trim(t, done);
            }
            println!("{per_turn}: {:.1} ns {sum}", start.elapsed().as_nanos() as f64 / n as f64);
        }
    }
}
