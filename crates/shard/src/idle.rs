//! What a shard does between turns: spin a little, look again at everything, park.

use std::io;

use pelton_metrics::{Counter, Counters};
use pelton_sys::{Poller, Ready, Sockets, SpinVerdict};

use crate::disk::InFlight;
use crate::turn::Shard;

/// How a shard waits for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// Sleeps at once.
    Park,
    /// Spins for up to `ceiling_ns` while that has been worth it lately, then sleeps.
    Adaptive {
        /// Longest spin, in nanoseconds.
        ceiling_ns: u64,
    },
    /// Never sleeps: for a CPU that nothing else runs on.
    Busy,
}

impl Default for Idle {
    /// A spin of 20 us: about what waking another CPU costs.
    fn default() -> Idle {
        Idle::Adaptive { ceiling_ns: 20_000 }
    }
}

/// Idle times between two tries at spinning while the average says not to.
const TRY_EVERY: u32 = 64;

/// With reads in flight and no sync, an adaptive shard spins as long as a read takes (7.2).
const READ_SPIN_NS: u64 = 60_000;
/// With a commit of the ring in flight and nothing else to do, it looks for its end for up to so long,
/// and gives the CPU to whoever wants it between two looks. No worker of ours needs it, as one does for
/// a sync (7.4); a sleep ends 30 us after the commit *[p50 129 us asleep, 98 so, 104 raw write + fdatasync]*.
const COMMIT_SPIN_NS: u64 = 200_000;
/// So many spins in a row that ended in sleep, and there are none for a while (7.2).
const MISSES_MAX: u32 = 8;
const NO_SPIN_NS: u64 = 10_000_000;
/// Looks between two reads of the clock while spinning.
const LOOKS_PER_CLOCK_READ: u32 = 16;
/// Something waits for room that nobody announces: the shard looks again after this.
const LOOK_AGAIN_NS: u64 = 1_000_000;
/// After a time-out that found work: how long its wake-up may still be on the way.
const LATE_WAKE_NS: u64 = 10_000_000;

/// The wait of a shard, and what it has learnt about its gaps.
#[derive(Debug)]
pub(crate) struct Sleeper {
    policy: Idle,
    /// What this machine allows; `None` is no bound.
    spin_max_ns: Option<u64>,
    poller: Poller,
    gap_average_ns: u64,
    misses: u32,
    no_spin_until_ns: u64,
    /// Gaps so far.
    idles: u32,
    /// Sockets that have something, for the resident.
    ready: Vec<Ready>,
    /// The gap that the next turn ends: since when, and what it was spent on.
    gap: Option<Gap>,
}

#[derive(Clone, Copy, Debug)]
struct Gap {
    since_ns: u64,
    spun: bool,
    /// A pusher was inside a push all that time.
    stalled: bool,
}

impl Sleeper {
    pub(crate) fn new(policy: Idle, verdict: SpinVerdict, poller: Poller) -> Sleeper {
        let spin_max_ns = match verdict {
            SpinVerdict::On => None,
            SpinVerdict::Limited { max_us } => Some(u64::from(max_us) * 1_000),
            SpinVerdict::Off(_) => Some(0),
        };
        Sleeper {
            policy,
            spin_max_ns,
            poller,
            gap_average_ns: 0,
            misses: 0,
            no_spin_until_ns: 0,
            idles: 0,
            ready: Vec::new(),
            gap: None,
        }
    }

    /// Where sockets that end the sleep are registered.
    pub(crate) fn sockets(&self) -> io::Result<Sockets> {
        self.poller.sockets()
    }

    /// Whether a socket has something that nobody has taken.
    pub(crate) fn any_ready(&self) -> bool {
        self.poller.any_ready()
    }

    /// Sockets that have something; the kernel is asked unless a sleep has told of some.
    pub(crate) fn ready(&mut self) -> &mut Vec<Ready> {
        if !self.poller.any_ready() {
            // An error is met again, and reported, by the next sleep.
            let _ = self.poller.wait(Some(0));
        }
        self.poller.take_ready(&mut self.ready);
        &mut self.ready
    }

    /// Whether the kernel has something on a socket: a look, for a shard that spins.
    fn look_at_sockets(&mut self) -> bool {
        self.poller.wait(Some(0)).is_ok_and(|woken| woken.sockets)
    }

    /// The turn that ends a gap has read the clock: no second read between finding work and doing it.
    #[inline]
    pub(crate) fn end_gap(&mut self, now_ns: u64, counters: &mut Counters) {
        let Some(gap) = self.gap.take() else { return };
        let gap_ns = now_ns.saturating_sub(gap.since_ns);
        self.idles = self.idles.wrapping_add(1);
        self.gap_average_ns = (self.gap_average_ns / 10) * 9 + gap_ns / 10;
        if gap.spun {
            // What parking made of it before was mostly its own wake-up.
            self.gap_average_ns = self.gap_average_ns.min(gap_ns);
            counters.add(Counter::SpinNs, gap_ns);
        }
        if gap.stalled {
            counters.add(Counter::ClaimedUnpublishedNs, gap_ns);
        }
    }

    /// How long to spin from `now_ns` on; `u64::MAX` is for ever.
    fn spins_until_ns(&self, now_ns: u64, in_flight: InFlight) -> u64 {
        match self.policy {
            Idle::Busy => u64::MAX,
            _ => now_ns.saturating_add(self.budget_ns(now_ns, in_flight)),
        }
    }

    /// How long to spin now, in nanoseconds.
    fn budget_ns(&self, now_ns: u64, in_flight: InFlight) -> u64 {
        let Idle::Adaptive { ceiling_ns } = self.policy else {
            return 0;
        };
        // The worker of a sync needs a CPU: spinning beside it costs 2.6 ms at p99 (7.4).
        if in_flight.sync || now_ns < self.no_spin_until_ns {
            return 0;
        }
        let spin_max_ns = match self.spin_max_ns {
            // Two CPUs: what is yielded takes nothing from the other threads.
            Some(1..) if in_flight.commit => None,
            max_ns => max_ns,
        };
        let ceiling_ns = match in_flight {
            InFlight { commit: true, .. } => ceiling_ns.max(COMMIT_SPIN_NS),
            InFlight { reads: true, .. } => ceiling_ns.max(READ_SPIN_NS),
            _ => ceiling_ns,
        };
        let ceiling_ns = spin_max_ns.map_or(ceiling_ns, |max_ns| ceiling_ns.min(max_ns));
        // The gaps of a shard that parks hold its own wake-up: without a try now and then, one that
        // parked once would find every gap too long for ever.
        if self.idles.is_multiple_of(TRY_EVERY) || self.gap_average_ns < ceiling_ns {
            ceiling_ns
        } else {
            0
        }
    }

    fn missed(&mut self, now_ns: u64) {
        self.misses += 1;
        if self.misses == MISSES_MAX {
            self.misses = 0;
            self.no_spin_until_ns = now_ns + NO_SPIN_NS;
        }
    }
}

impl Shard {
    /// After a turn that found nothing: until there is something, or `deadline_ns`.
    pub(crate) fn idle(&mut self, deadline_ns: Option<u64>) {
        let start_ns = self.clock.now_ns();
        self.watch.close_turn(start_ns);
        if deadline_ns.is_some_and(|deadline_ns| deadline_ns <= start_ns) {
            return;
        }
        let in_flight = self.disk.in_flight();
        let end_ns = self.sleeper.spins_until_ns(start_ns, in_flight);
        let stalled = self.inbox.stalled();
        let spun =
            end_ns > start_ns && self.spin(start_ns, (end_ns, deadline_ns), in_flight.commit);
        if !spun {
            self.park(deadline_ns, None);
        }
        self.sleeper.gap = Some(Gap {
            since_ns: start_ns,
            spun,
            stalled,
        });
    }

    /// True if work came, or the deadline did. With `yields` the CPU is given away between looks.
    fn spin(
        &mut self,
        start_ns: u64,
        (end_ns, deadline_ns): (u64, Option<u64>),
        yields: bool,
    ) -> bool {
        let until_ns = deadline_ns.map_or(end_ns, |deadline_ns| end_ns.min(deadline_ns));
        loop {
            for _ in 0..LOOKS_PER_CLOCK_READ {
                if self.has_work() || (self.resident.is_some() && self.sleeper.look_at_sockets()) {
                    self.sleeper.misses = 0;
                    return true;
                }
                std::hint::spin_loop();
            }
            if yields {
                std::thread::yield_now();
            }
            let now_ns = self.clock.now_ns();
            if now_ns >= until_ns {
                if until_ns < end_ns {
                    return true;
                }
                self.watch
                    .metrics
                    .counters
                    .add(Counter::SpinNs, now_ns - start_ns);
                self.sleeper.missed(now_ns);
                return false;
            }
        }
    }

    /// Sleeps until there is work, `deadline_ns` comes, or `at_most_ns` have passed. The order is what
    /// makes it safe: announce, then look again at everything, then sleep (A2.2, runtime 1.10).
    pub(crate) fn park(&mut self, deadline_ns: Option<u64>, at_most_ns: Option<u64>) {
        self.shared.doorbell().announce();
        self.disk.arm_sleep();
        let timeout_ns = self.timeout_ns(deadline_ns, at_most_ns);
        if timeout_ns != Some(0) && !self.has_work() {
            self.sleep(timeout_ns);
        }
        self.shared.doorbell().disarm();
        self.disk.disarm();
    }

    fn sleep(&mut self, timeout_ns: Option<u64>) {
        self.watch.metrics.counters.increment(Counter::Sleeps);
        let mut woken = self.wait(timeout_ns);
        if !woken && self.inbox.has_work() && self.shared.doorbell().is_announced() {
            // A time-out, and work that nobody has rung for. Its pusher may be between the push and
            // the ring; if the ring does not come, a wake-up was lost.
            woken = self.wait(Some(LATE_WAKE_NS));
            if !woken {
                self.watch.metrics.counters.increment(Counter::Rescues);
            }
        }
        if woken {
            self.watch.metrics.counters.increment(Counter::Wakes);
            if !self.has_work() {
                self.watch.metrics.counters.increment(Counter::WakesUseless);
            }
        }
    }

    /// True if somebody woke us.
    fn wait(&mut self, timeout_ns: Option<u64>) -> bool {
        match self.sleeper.poller.wait(timeout_ns) {
            Ok(woken) => woken.notified || woken.sockets,
            // Only a broken descriptor gives an error; then every wait would.
            Err(error) => panic!("shard {}: the poller failed: {error}", self.shared.index),
        }
    }

    fn timeout_ns(&mut self, deadline_ns: Option<u64>, at_most_ns: Option<u64>) -> Option<u64> {
        let looks_again = self.inbox.producers.any_held()
            || self.consumers.any_spilled()
            || self.outbox.waits_for_room();
        let look_ns = looks_again.then_some(LOOK_AGAIN_NS);
        let deadline_ns = deadline_ns.map(|deadline_ns| {
            let now_ns = self.clock.now_ns();
            deadline_ns.saturating_sub(now_ns)
        });
        [look_ns, deadline_ns, at_most_ns, self.disk.sleep_max_ns()]
            .into_iter()
            .flatten()
            .min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_without_bound_spins_for_ever_and_does_not_overflow() {
        let policy = Idle::Adaptive {
            ceiling_ns: u64::MAX,
        };
        let sleeper = Sleeper::new(policy, SpinVerdict::On, Poller::new().unwrap());
        for commit in [false, true] {
            let in_flight = InFlight {
                commit,
                ..InFlight::default()
            };
            assert_eq!(sleeper.spins_until_ns(1_000, in_flight), u64::MAX);
        }
    }
}
