//! When each entry is due, and how far the generator itself was behind.
//!
//! An open-loop load has its send times before it starts. Latency counts from those times, not from
//! the moment the generator got round to sending: otherwise a stall of the system under test would
//! stop the clock of all the messages it held up (coordinated omission).

use pelton_metrics::Histogram;

use crate::DIGITS;

const NS_PER_S: u128 = 1_000_000_000;

/// What gives the send times.
#[derive(Clone, Debug, PartialEq)]
pub enum Pace {
    /// Closed loop: whenever there is room. The intended time is the time of sending.
    Saturated,
    /// Evenly spaced entries of `batch` messages, so many messages per second; both 1 or more.
    Rate {
        /// Messages per second.
        messages_per_s: u64,
        /// Messages in an entry.
        batch: u64,
    },
    /// These offsets from the start in nanoseconds, rising.
    Times(Vec<u64>),
}

/// The send times of one producer thread.
#[derive(Clone, Debug)]
pub struct Schedule {
    pace: Pace,
    start_ns: u64,
    sent: u64,
    limit: u64,
}

impl Schedule {
    /// Starts at `start_ns` on the monotonic clock the caller reads.
    ///
    /// # Panics
    /// If the rate or the batch is 0.
    #[must_use]
    pub fn new(pace: Pace, start_ns: u64) -> Schedule {
        if let Pace::Rate {
            messages_per_s,
            batch,
        } = pace
        {
            assert!(
                messages_per_s > 0 && batch > 0,
                "a rate of 0 never sends: {pace:?}"
            );
        }
        Schedule {
            pace,
            start_ns,
            sent: 0,
            limit: u64::MAX,
        }
    }

    /// The same, over after `entries`.
    #[must_use]
    pub fn at_most(mut self, entries: u64) -> Schedule {
        self.limit = entries;
        self
    }

    /// True if times are given in advance.
    #[must_use]
    pub fn is_open_loop(&self) -> bool {
        self.pace != Pace::Saturated
    }

    /// When the next entry is due; `None` when all are sent. A saturated schedule has the next one
    /// due `now_ns`.
    #[inline]
    #[must_use]
    pub fn next_ns(&self, now_ns: u64) -> Option<u64> {
        if self.sent >= self.limit {
            return None;
        }
        match &self.pace {
            Pace::Saturated => Some(now_ns),
            Pace::Rate {
                messages_per_s,
                batch,
            } => {
                // From the start each time, so that rounding does not add up.
                let messages = u128::from(self.sent) * u128::from(*batch);
                let offset = messages * NS_PER_S / u128::from(*messages_per_s);
                Some(self.start_ns + u64::try_from(offset).expect("584 years"))
            }
            Pace::Times(offsets) => {
                let index = usize::try_from(self.sent).expect("an index");
                offsets.get(index).map(|offset| self.start_ns + offset)
            }
        }
    }

    /// The next entry was sent.
    #[inline]
    pub fn advance(&mut self) {
        self.sent += 1;
    }

    /// Entries that may still be sent.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.limit - self.sent
    }

    /// Entries sent so far.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent
    }
}

/// How late entries left, and whose fault it was.
#[derive(Clone, Debug)]
pub struct Lag {
    /// Time of sending less intended time, in nanoseconds.
    late: Histogram,
    /// Entries that found the producer's ring full when they were due.
    held_by_engine: u64,
}

/// Later than this is worth a line in the report: beyond a scheduler's wake-up, below its tick.
const LATE_NS: u64 = 1_000_000;

impl Lag {
    /// Nothing sent yet.
    #[must_use]
    pub fn new() -> Lag {
        Lag {
            late: Histogram::new(DIGITS),
            held_by_engine: 0,
        }
    }

    /// An entry due at `intended_ns` left at `sent_ns`; `held` if the engine had no room before.
    #[inline]
    pub fn sent(&mut self, intended_ns: u64, sent_ns: u64, held: bool) {
        self.late.record(sent_ns.saturating_sub(intended_ns));
        self.held_by_engine += u64::from(held);
    }

    /// Adds another thread's.
    pub fn merge(&mut self, other: &Lag) {
        self.late.merge(&other.late);
        self.held_by_engine += other.held_by_engine;
    }

    /// Entries sent later than 1 ms.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
            .recorded()
            .filter(|(value_ns, _)| *value_ns > LATE_NS)
            .map(|(_, count)| count)
            .sum()
    }

    /// True if one send in a thousand or more was later than 1 ms.
    #[must_use]
    pub fn fell_behind(&self) -> bool {
        self.late() * 1_000 >= self.late.count().max(1)
    }

    /// One sentence for the report, or `None` if nothing was sent on a schedule.
    #[must_use]
    pub fn sentence(&self) -> Option<String> {
        let sent = self.late.count();
        if sent == 0 {
            return None;
        }
        let worst = crate::units::duration(self.late.summary().max);
        let late = self.late();
        if late == 0 {
            return Some(format!(
                "the generator kept its schedule (latest send {worst} after its time)"
            ));
        }
        if !self.fell_behind() {
            return Some(format!(
                "the generator kept its schedule but for {late} of {sent} sends, the latest {worst} \
                 after its time; latencies contain it"
            ));
        }
        let share = crate::units::percent(late, sent);
        let why = match self.held_by_engine {
            0 => {
                "the generator itself was late: its CPU was taken, so judge the engine by a quieter run"
            }
            held if held >= late => {
                "the engine had no room, so the offered rate is above what it takes"
            }
            _ => "partly the engine had no room, partly the generator itself was late",
        };
        Some(format!(
            "FELL BEHIND: {share} of the sends left more than 1 ms after their time, the latest {worst}; \
             latencies count from the intended times and contain it ({why})"
        ))
    }
}

impl Default for Lag {
    fn default() -> Lag {
        Lag::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(messages_per_s: u64, batch: u64) -> Schedule {
        let pace = Pace::Rate {
            messages_per_s,
            batch,
        };
        Schedule::new(pace, 1_000)
    }

    #[test]
    fn entries_of_many_messages_are_due_at_the_rate_of_their_messages() {
        let mut schedule = rate(10, 100);
        schedule.advance();
        assert_eq!(schedule.next_ns(0), Some(10_000_001_000));
    }

    #[test]
    fn a_rate_is_kept_exactly_over_a_day_although_its_interval_is_no_whole_number() {
        let mut schedule = rate(3, 1);
        let mut times = Vec::new();
        for _ in 0..4 {
            times.push(schedule.next_ns(0).unwrap());
            schedule.advance();
        }
        assert_eq!(times, [1_000, 333_334_333, 666_667_666, 1_000_001_000]);
        schedule.sent = 3 * 86_400;
        assert_eq!(schedule.next_ns(0), Some(86_400_000_000_000 + 1_000));
    }

    #[test]
    fn intended_times_do_not_move_when_sends_are_late() {
        let mut schedule = rate(1_000, 1);
        schedule.advance();
        // A second late: the second entry was due after 1 ms all the same.
        assert_eq!(schedule.next_ns(1_000_000_000), Some(1_001_000));
    }

    #[test]
    fn given_times_are_used_in_order_and_then_there_are_none() {
        let mut schedule = Schedule::new(Pace::Times(vec![0, 5, 5]), 100);
        let mut times = Vec::new();
        while let Some(time) = schedule.next_ns(0) {
            times.push(time);
            schedule.advance();
        }
        assert_eq!(times, [100, 105, 105]);
        assert_eq!(schedule.sent(), 3);
    }

    #[test]
    fn a_saturated_schedule_is_due_now() {
        let mut schedule = Schedule::new(Pace::Saturated, 0).at_most(1);
        assert_eq!(schedule.left(), 1);
        assert_eq!(schedule.next_ns(77), Some(77));
        assert!(!schedule.is_open_loop());
        schedule.advance();
        assert_eq!(schedule.next_ns(77), None);
    }

    #[test]
    fn the_report_says_when_the_generator_fell_behind_and_by_how_much() {
        let mut lag = Lag::new();
        assert_eq!(lag.sentence(), None);
        lag.sent(1_000, 3_000, false);
        assert!(
            lag.sentence()
                .unwrap()
                .contains("kept its schedule (latest send 2.00 us")
        );
        lag.sent(0, 50_000_000, false);
        let sentence = lag.sentence().unwrap();
        assert!(sentence.starts_with("FELL BEHIND: 50 %"), "{sentence}");
        assert!(sentence.contains("50.0 ms") && sentence.contains("generator itself was late"));
    }

    #[test]
    fn one_late_send_in_thousands_is_said_without_alarm() {
        let mut lag = Lag::new();
        (0..5_000).for_each(|_| lag.sent(0, 100, false));
        lag.sent(0, 2_000_000, false);
        let sentence = lag.sentence().unwrap();
        assert!(
            sentence.contains("but for 1 of 5001 sends, the latest 2.00 ms"),
            "{sentence}"
        );
        assert!(!lag.fell_behind());
    }

    #[test]
    fn a_full_engine_is_not_called_a_late_generator() {
        let mut lag = Lag::new();
        lag.sent(0, 50_000_000, true);
        assert!(lag.sentence().unwrap().contains("the engine had no room"));
    }
}
