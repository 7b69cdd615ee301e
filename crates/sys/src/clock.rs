//! The one monotonic clock, and the wall clock for publish times.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds since the process first asked, monotonic, the same origin for every clock.
///
/// `quanta` reads the time stamp counter where it is invariant (11 ns; std takes 28) and the
/// kernel's monotonic clock elsewhere (runtime 9.1). A handle never shows its thread a smaller value
/// than before, also where the counters of two CPUs differ by some ticks: each thread clones its own.
pub struct Clock {
    source: Source,
    /// What this handle showed last. Stored plainly, not by read-modify-write, which would cost as
    /// much as the read: of threads that share one handle, one may see a step back.
    last_ns: AtomicU64,
}

#[derive(Clone)]
enum Source {
    Real(&'static Origin),
    Manual(ManualClock),
}

struct Origin {
    clock: quanta::Clock,
    zero: u64,
}

/// The hands of a clock that a test turns; see [`Clock::manual`].
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    monotonic_ns: Arc<AtomicU64>,
    wall_ms: Arc<AtomicU64>,
}

impl Clock {
    /// A handle on the process's clock. The first one calibrates for some milliseconds.
    #[must_use]
    pub fn new() -> Self {
        static ORIGIN: OnceLock<Origin> = OnceLock::new();
        let origin = ORIGIN.get_or_init(|| {
            let clock = quanta::Clock::new();
            let zero = clock.raw();
            Origin { clock, zero }
        });
        Self {
            source: Source::Real(origin),
            last_ns: AtomicU64::new(0),
        }
    }

    /// A clock that stands still until its hands are turned, for tests of time.
    #[must_use]
    pub fn manual() -> (Self, ManualClock) {
        let hands = ManualClock::default();
        (
            Self {
                source: Source::Manual(hands.clone()),
                last_ns: AtomicU64::new(0),
            },
            hands,
        )
    }

    /// Monotonic nanoseconds; never less than this handle answered its one thread before.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        let read = match &self.source {
            Source::Real(origin) => origin.clock.delta_as_nanos(origin.zero, origin.clock.raw()),
            Source::Manual(hands) => hands.monotonic_ns.load(Ordering::Relaxed),
        };
        let last = self.last_ns.load(Ordering::Relaxed);
        let now = read.max(last);
        self.last_ns.store(now, Ordering::Relaxed);
        now
    }

    /// Milliseconds since 1970 by the wall clock, which may step either way; 0 before 1970. For
    /// publish times that people read, never for a difference.
    #[must_use]
    pub fn wall_ms(&self) -> u64 {
        match &self.source {
            Source::Real(_) => SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
            Source::Manual(hands) => hands.wall_ms.load(Ordering::Relaxed),
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Clock {
    fn clone(&self) -> Self {
        let last_ns = self.last_ns.load(Ordering::Relaxed);
        Self {
            source: self.source.clone(),
            last_ns: AtomicU64::new(last_ns),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").finish_non_exhaustive()
    }
}

impl ManualClock {
    /// Sets the monotonic hand, in nanoseconds.
    pub fn set_ns(&self, ns: u64) {
        self.monotonic_ns.store(ns, Ordering::Relaxed);
    }

    /// Sets the wall clock's hand, in milliseconds since 1970.
    pub fn set_wall_ms(&self, ms: u64) {
        self.wall_ms.store(ms, Ordering::Relaxed);
    }
}

/// A duration as every time of the engine is kept: nanoseconds, 584 years at most.
#[must_use]
pub fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::Clock;

    /// Case CLOCK-BACKWARDS, the part of the clock: the monotonic source stumbles, the wall steps.
    #[test]
    fn clock_backwards_is_not_shown_by_the_monotonic_clock() {
        let (clock, hands) = Clock::manual();
        let start_ms = 1_700_000_000_000;
        for (ns, wall_ms) in [
            (10, start_ms),
            (20, start_ms + 10_000),
            (5, start_ms - 3_600_000),
            (0, 0),
            (30, start_ms + 86_400_000),
        ] {
            let before = clock.now_ns();
            hands.set_ns(ns);
            hands.set_wall_ms(wall_ms);
            assert!(clock.now_ns() >= before, "stepped back from {before}");
            assert_eq!(clock.wall_ms(), wall_ms);
        }
        assert_eq!(clock.now_ns(), 30);
    }

    #[test]
    fn clocks_of_all_threads_share_one_origin() {
        let here = Clock::new();
        let before = here.now_ns();
        let there = crate::spawn_named("clock-test", || Clock::new().now_ns());
        let there = there.expect("a thread").join().expect("no panic");
        let after = here.now_ns();
        // 1 ms of slack for counters of CPUs that differ.
        assert!(there + 1_000_000 >= before && there <= after + 1_000_000);
        assert!(here.wall_ms() > 1_600_000_000_000);
    }
}
