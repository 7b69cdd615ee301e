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
/// Messages pushed or popped before the other is looked at.
const CHUNK: usize = 64;
/// Looks at a ring before a thread gives up its CPU. In a round trip some 10 us, so only where the
/// other thread has lost its own; in a pipeline, that has a ring to fall back on, sooner.
const LOOKS_ROUND_TRIP: u32 = 1 << 12;
const LOOKS_PIPELINE: u32 = 1 << 7;
/// Round trips kept: more would only cost memory.
const ROUNDS_MAX: usize = 1 << 20;
/// What travels: as much as a run or a slot's header.
type Payload = [u64; 4];
/// Ends the thread at the other side.
const LAST: Payload = [u64::MAX; 4];

/// Round trips between two threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrips {
    /// The median, in nanoseconds.
    pub p50_ns: u64,
    /// How many there were after a tenth for warming up.
    pub count: usize,
    /// In how many the caller's thread waited so long that it gave up its CPU.
    pub gave_up: usize,
}

impl RoundTrips {
    /// True if the two threads did not have a CPU each: the median is then the scheduler's.
    #[must_use]
    pub fn are_noisy(&self) -> bool {
        self.count < 100 || self.gave_up * 100 > self.count
    }
}

/// Round trips over two SPSC rings between the caller's thread and another, both spinning, for
/// `for_ns`; at least one. One message is under way at a time.
///
/// # Errors
/// When the kernel gives no thread.
pub fn ring_round_trips(for_ns: u64) -> io::Result<RoundTrips> {
    let (mut there, mut arrives) = spsc::<Payload>(RING_SLOTS);
    let (mut back, mut returns) = spsc::<Payload>(RING_SLOTS);
    let echo = spawn_named("pelton-limit", move || {
        loop {
            let (message, _) = pop_spinning(&mut arrives);
            if message == LAST {
                return;
            }
            assert!(back.push(message).is_ok(), "one message is under way");
        }
    })?;
    let clock = Clock::new();
    let end_ns = clock.now_ns() + for_ns;
    let mut took = Vec::new();
    loop {
        let (round, start_ns) = (took.len() as u64, clock.now_ns());
        assert!(there.push([round; 4]).is_ok(), "one message is under way");
        let ([answer, ..], gave_up) = pop_spinning(&mut returns);
        assert_eq!(answer, round, "the echo gives back what it got");
        let now_ns = clock.now_ns();
        took.push((now_ns - start_ns, gave_up));
        if now_ns >= end_ns || took.len() == ROUNDS_MAX {
            break;
        }
    }
    assert!(there.push(LAST).is_ok(), "none is under way");
    end(echo)?;
    let warm_up = took.len() / 10;
    let measured = &mut took[warm_up..];
    measured.sort_unstable();
    Ok(RoundTrips {
        p50_ns: measured[measured.len() / 2].0,
        count: measured.len(),
        gave_up: measured.iter().filter(|(_, gave_up)| *gave_up).count(),
    })
}

/// Messages per second from the caller's thread over one SPSC ring to another thread and back over a
/// second ring, for `for_ns`: the hops of a published and delivered message. In chunks of 64.
///
/// # Errors
/// When the kernel gives no thread.
pub fn ring_pipeline_per_s(for_ns: u64) -> io::Result<u64> {
    let (mut there, mut arrives) = spsc::<Payload>(RING_SLOTS);
    let (mut back, mut returns) = spsc::<Payload>(RING_SLOTS);
    let middle = spawn_named("pelton-limit", move || {
        let (mut wait, mut over) = (Wait::new(LOOKS_PIPELINE), false);
        while !over {
            let room = back.free().min(CHUNK);
            let popped = std::iter::from_fn(|| arrives.pop());
            let mut chunk = popped
                .take(room)
                .inspect(|message| over |= *message == LAST);
            if back.push_chunk(&mut chunk) == 0 {
                wait.look_again();
            } else {
                wait.reset();
            }
        }
    })?;
    let clock = Clock::new();
    let start_ns = clock.now_ns();
    let (mut pushed, mut popped, mut in_order) = (0, 0, true);
    let mut wait = Wait::new(LOOKS_PIPELINE);
    loop {
        let before = pushed + popped;
        let over = clock.now_ns() - start_ns >= for_ns;
        if !over {
            let mut numbers = (pushed..).map(|number| [number; 4]).take(CHUNK);
            pushed += there.push_chunk(&mut numbers) as u64;
        } else if popped == pushed {
            break;
        }
        returns.pop_chunk(CHUNK, |[number, ..]| {
            in_order &= number == popped;
            popped += 1;
        });
        if pushed + popped - before == 0 {
            wait.look_again();
        } else {
            wait.reset();
        }
    }
    let took_ns = clock.now_ns() - start_ns;
    assert!(there.push(LAST).is_ok(), "none is under way");
    end(middle)?;
    assert!(in_order, "rings keep order");
    Ok(per_second(popped, took_ns))
}

/// The next message, and whether the CPU was given up meanwhile.
fn pop_spinning(ring: &mut Receiver<Payload>) -> (Payload, bool) {
    let (mut wait, mut gave_up) = (Wait::new(LOOKS_ROUND_TRIP), false);
    loop {
        if let Some(message) = ring.pop() {
            return (message, gave_up);
        }
        gave_up |= wait.look_again();
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

    /// True if the CPU was given up.
    fn look_again(&mut self) -> bool {
        self.left -= 1;
        if self.left > 0 {
            spin_loop();
            return false;
        }
        std::thread::yield_now();
        self.reset();
        true
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
        let trips = ring_round_trips(2_000_000).unwrap();
        assert!(trips.p50_ns > 0 && trips.count > 0, "{trips:?}");
        assert!(ring_pipeline_per_s(2_000_000).unwrap() > 0);
        assert_eq!(per_second(1_000, 1_000_000), 1_000_000);
    }

    #[test]
    fn threads_that_share_a_cpu_still_end_and_are_called_noisy() {
        let cpu = pelton_sys::cpus_allowed().iter().next().expect("a CPU");
        let shared = spawn_named("pelton-limit-test", move || {
            pelton_sys::pin(cpu).unwrap();
            let clock = Clock::new();
            let start_ns = clock.now_ns();
            let trips = ring_round_trips(20_000_000).unwrap();
            assert!(trips.are_noisy(), "{trips:?}");
            assert!(ring_pipeline_per_s(20_000_000).unwrap() > 0);
            assert!(clock.now_ns() - start_ns < 10_000_000_000, "it ends");
        });
        shared.unwrap().join().unwrap();
    }
}
