//! What this machine can do at best, measured beside the product in the same run (runtime 11.5).
//!
//! The rings here are the product's own, with nothing around them: two spinning threads, no topics,
//! no turns. Limits of the disk are `pelton-sys`'s, re-exported.

use std::hint::spin_loop;
use std::io;
use std::thread::JoinHandle;

use pelton_rings::{Receiver, spsc};
use pelton_sys::{Clock, spawn_named};

pub use pelton_sys::{
    RawLimits, drop_page_cache, process_rss_bytes, raw_fdatasync_ns, raw_limits,
    raw_read_bytes_per_s, raw_write_bytes_per_s, thread_cpu_ns, thread_switches,
};

/// Places in the measured rings: as many as a producer's queue has by default.
const RING_SLOTS: usize = 1_024;
/// Messages published at once in the pipeline, as a turn does.
const CHUNK: usize = 16;
/// Looks at a ring before a thread gives up its CPU. The round trip has one thread per CPU and should
/// never get there; the pipeline has three threads, and this machine may have two CPUs.
const LOOKS_ALONE: u32 = 1 << 12;
const LOOKS_SHARED: u32 = 64;
/// What travels: as much as a run or a slot's header.
type Payload = [u64; 4];

/// Median time of a round trip over two SPSC rings between two spinning threads, in nanoseconds.
/// One message is under way at a time. `rounds` is at least 1; a tenth of them warm up.
///
/// # Errors
/// When the kernel gives no thread.
pub fn ring_round_trip_ns(rounds: usize) -> io::Result<u64> {
    let (mut there, mut arrives) = spsc::<Payload>(RING_SLOTS);
    let (mut back, mut returns) = spsc::<Payload>(RING_SLOTS);
    let total = rounds.max(1) + rounds / 10;
    let echo = spawn_named("pelton-limit-1", move || {
        for _ in 0..total {
            let message = pop_spinning(&mut arrives);
            assert!(back.push(message).is_ok(), "one message is under way");
        }
    })?;
    let clock = Clock::new();
    let mut took = Vec::with_capacity(total);
    for round in 0..total {
        let start_ns = clock.now_ns();
        assert!(
            there.push([round as u64; 4]).is_ok(),
            "one message is under way"
        );
        let [answer, ..] = pop_spinning(&mut returns);
        assert_eq!(answer, round as u64, "the echo gives back what it got");
        took.push(clock.now_ns() - start_ns);
    }
    end(echo)?;
    let measured = &mut took[rounds / 10..];
    measured.sort_unstable();
    Ok(measured[measured.len() / 2])
}

/// Messages per second through a pipeline of two SPSC rings, so three threads: as many hops as from a
/// producer over a shard to a consumer. Pushed and popped in chunks of 16.
///
/// # Errors
/// When the kernel gives no thread.
pub fn ring_pipeline_per_s(messages: u64) -> io::Result<u64> {
    let (mut first_in, mut first_out) = spsc::<Payload>(RING_SLOTS);
    let (mut second_in, mut second_out) = spsc::<Payload>(RING_SLOTS);
    let clock = Clock::new();
    let start_ns = clock.now_ns();
    let producer = spawn_named("pelton-limit-1", move || {
        let mut numbers = (0..messages).map(|number| [number; 4]);
        let (mut pushed, mut wait) = (0, Wait::new(LOOKS_SHARED));
        while pushed < messages {
            match first_in.push_chunk(&mut numbers.by_ref().take(CHUNK)) {
                0 => wait.look_again(),
                count => {
                    pushed += count as u64;
                    wait.reset();
                }
            }
        }
    })?;
    let middle = spawn_named("pelton-limit-2", move || {
        let (mut passed, mut wait) = (0, Wait::new(LOOKS_SHARED));
        while passed < messages {
            let room = second_in.free().min(CHUNK);
            let mut chunk = std::iter::from_fn(|| first_out.pop()).take(room);
            match second_in.push_chunk(&mut chunk) {
                0 => wait.look_again(),
                count => {
                    passed += count as u64;
                    wait.reset();
                }
            }
        }
    })?;
    let (mut expected, mut in_order, mut wait) = (0, true, Wait::new(LOOKS_SHARED));
    while expected < messages {
        let popped = second_out.pop_chunk(CHUNK, |[number, ..]| {
            in_order &= number == expected;
            expected += 1;
        });
        match popped {
            0 => wait.look_again(),
            _ => wait.reset(),
        }
    }
    let took_ns = clock.now_ns() - start_ns;
    end(producer)?;
    end(middle)?;
    assert!(in_order, "rings keep order");
    Ok(per_second(messages, took_ns))
}

fn pop_spinning(ring: &mut Receiver<Payload>) -> Payload {
    let mut wait = Wait::new(LOOKS_ALONE);
    loop {
        if let Some(message) = ring.pop() {
            return message;
        }
        wait.look_again();
    }
}

/// Spins; after `looks` in vain it lets another thread run.
struct Wait {
    looks: u32,
    left: u32,
}

impl Wait {
    fn new(looks: u32) -> Wait {
        Wait { looks, left: looks }
    }

    fn reset(&mut self) {
        self.left = self.looks;
    }

    fn look_again(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            std::thread::yield_now();
            self.reset();
        }
        spin_loop();
    }
}

fn end(thread: JoinHandle<()>) -> io::Result<()> {
    thread
        .join()
        .map_err(|_| io::Error::other("a measuring thread panicked"))
}

fn per_second(count: u64, took_ns: u64) -> u64 {
    let per_s = u128::from(count) * 1_000_000_000 / u128::from(took_ns.max(1));
    u64::try_from(per_s).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ring_limits_are_measured_on_messages_that_arrive_in_order() {
        assert!(ring_round_trip_ns(2_000).unwrap() > 0);
        assert!(ring_pipeline_per_s(20_000).unwrap() > 0);
        assert_eq!(per_second(1_000, 1_000_000), 1_000_000);
    }
}
