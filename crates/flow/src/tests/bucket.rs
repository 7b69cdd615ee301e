//! The bucket against an exact model in rational numbers, and against broken twins of the model: a
//! check that found nothing wrong with them would prove nothing.

use std::collections::VecDeque;

use num_rational::Ratio;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::world::{SECOND, check_windows};
use crate::{Rate, TokenBucket};

type Tokens = Ratio<i128>;

/// What a bucket is used for.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Time passes, in nanoseconds.
    Wait(u64),
    /// The clock of another core, so many nanoseconds behind the latest time.
    Behind(u64),
    /// An entry goes if there is a whole token; its read is settled later.
    Entry(u64),
    /// The oldest read is back; so many percent of its entry were sent.
    Back(u64),
    /// The limit changes: tokens per period, period in seconds, burst.
    Limit(u64, u32, Option<u64>),
    Off,
}

fn step(with_changes: bool) -> impl Strategy<Value = Step> {
    let uses = prop_oneof![
        (0u64..3_000_000_000).prop_map(Step::Wait),
        (0u64..20_000_000).prop_map(Step::Wait),
        (0u64..900_000_000).prop_map(Step::Behind),
        (1u64..400).prop_map(Step::Entry),
        (1u64..3).prop_map(Step::Entry),
        (0u64..=100).prop_map(Step::Back),
        Just(Step::Back(100)),
    ];
    let limit = (
        1u64..500,
        1u32..4,
        prop_oneof![Just(None), (1u64..300).prop_map(Some)],
    );
    let changes = prop_oneof![
        3 => limit.prop_map(|(tokens, period_s, burst)| Step::Limit(tokens, period_s, burst)),
        1 => Just(Step::Off),
    ];
    let weight = u32::from(with_changes);
    prop_oneof![9 => uses, weight => changes]
}

fn steps(with_changes: bool) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(with_changes), 1..150)
}

/// How a limiter goes wrong in public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Each refill forgets the part of a token.
    RoundsAway,
    /// Each second starts from zero (pulsar#8599).
    ForgivesDebt,
    /// What is out for reads is not held against the refill.
    BanksSlowReads,
    /// The refill is capped before what was taken meanwhile is taken off (pulsar#23930).
    CapsBeforeDebit,
    /// What was not sent stays debited.
    KeepsRefunds,
    /// A new limit starts full.
    GrantsABurst,
    /// Time that went back counts again.
    CountsTimeTwice,
    /// Only a bucket that holds the whole entry lets it go.
    WaitsForTheWholeEntry,
}

const FAULTS: [Fault; 8] = [
    Fault::RoundsAway,
    Fault::ForgivesDebt,
    Fault::BanksSlowReads,
    Fault::CapsBeforeDebit,
    Fault::KeepsRefunds,
    Fault::GrantsABurst,
    Fault::CountsTimeTwice,
    Fault::WaitsForTheWholeEntry,
];

/// The rules in tokens, with no unit of its own to round to.
#[derive(Debug)]
struct Model {
    fault: Fault,
    /// Tokens per nanosecond, and capacity.
    rate: Option<(Tokens, Tokens)>,
    on: bool,
    level: Tokens,
    reserved: Tokens,
    /// Taken since the refill; only a faulty model takes it off later.
    taken: Tokens,
    seen_ns: i128,
}

impl Model {
    fn new(fault: Fault) -> Self {
        let zero = Tokens::default();
        Self {
            fault,
            rate: None,
            on: false,
            level: zero,
            reserved: zero,
            taken: zero,
            seen_ns: 0,
        }
    }

    fn refill(&mut self, now_ns: u64) {
        let now_ns = i128::from(now_ns);
        let Some((per_ns, capacity)) = self.rate else {
            return;
        };
        let passed_ns = (now_ns - self.seen_ns).max(0);
        if self.fault == Fault::ForgivesDebt
            && now_ns / 1_000_000_000 > self.seen_ns / 1_000_000_000
        {
            self.level = self.level.max(Tokens::default());
        }
        let twice = self.fault == Fault::CountsTimeTwice;
        self.seen_ns = if twice {
            now_ns
        } else {
            self.seen_ns.max(now_ns)
        };
        let held = if self.fault == Fault::BanksSlowReads {
            Tokens::default()
        } else {
            self.reserved
        };
        let late = if self.fault == Fault::CapsBeforeDebit {
            self.taken
        } else {
            Tokens::default()
        };
        let room = (capacity - held - self.level - late).max(Tokens::default());
        self.level += (per_ns * passed_ns).min(room);
        if self.fault == Fault::RoundsAway {
            self.level = self.level.floor();
        }
        self.taken = Tokens::default();
    }

    fn set(&mut self, now_ns: u64, rate: Option<(u64, u32, Option<u64>)>) {
        self.refill(now_ns);
        self.on = rate.is_some();
        let Some((tokens, period_s, burst)) = rate else {
            return;
        };
        let capacity = Tokens::from(i128::from(burst.unwrap_or(tokens)));
        let period_ns = i128::from(period_s) * i128::from(SECOND);
        if self.rate.is_none() {
            self.seen_ns = i128::from(now_ns);
        }
        let starts_full = self.rate.is_none() || self.fault == Fault::GrantsABurst;
        self.level = if starts_full {
            capacity
        } else {
            self.level.min(capacity)
        };
        // The stated loss of a new period: less than 1 / period_ns of a token.
        self.level = (self.level * period_ns).floor() / period_ns;
        self.rate = Some((Tokens::new(i128::from(tokens), period_ns), capacity));
    }

    fn admits(&self, tokens: u64) -> bool {
        let least = if self.fault == Fault::WaitsForTheWholeEntry {
            i128::from(tokens)
        } else {
            1
        };
        !self.on || self.level >= Tokens::from(least)
    }

    fn reserve(&mut self, tokens: u64) {
        let tokens = Tokens::from(i128::from(tokens));
        self.level -= tokens;
        self.taken += tokens;
        self.reserved += tokens;
    }

    fn settle(&mut self, now_ns: u64, reserved: u64, sent: u64) {
        self.refill(now_ns);
        self.reserved -= i128::from(reserved);
        if self.fault == Fault::KeepsRefunds {
            return;
        }
        let capacity = self.rate.map_or(Tokens::default(), |rate| rate.1);
        let lifted = self.level + i128::from(reserved - sent);
        self.level = lifted.min(capacity.max(self.level));
    }

    fn ready_at_ns(&self) -> u64 {
        let (per_ns, capacity) = self.rate.filter(|_| self.on).unwrap_or_default();
        if !self.on || self.level >= Tokens::from(1) {
            return self.seen_ns as u64;
        }
        if capacity - self.reserved < Tokens::from(1) {
            return u64::MAX;
        }
        let wait_ns = ((Tokens::from(1) - self.level) / per_ns)
            .ceil()
            .to_integer();
        (self.seen_ns + wait_ns) as u64
    }
}

/// Both do the steps; says where they part.
fn compare(steps: &[Step], fault: Fault) -> Result<(), String> {
    let (mut bucket, mut model) = (TokenBucket::default(), Model::new(fault));
    let mut out: VecDeque<u64> = VecDeque::new();
    let (mut now_ns, mut latest_ns) = (10 * SECOND, 10 * SECOND);
    bucket.set(now_ns, Rate::per_second(100));
    model.set(now_ns, Some((100, 1, None)));
    for (index, &step) in steps.iter().enumerate() {
        match step {
            Step::Wait(ns) | Step::Behind(ns) => {
                let behind = matches!(step, Step::Behind(_));
                now_ns = if behind { latest_ns - ns } else { now_ns + ns };
                latest_ns = latest_ns.max(now_ns);
                bucket.refill(now_ns);
                if model.on {
                    model.refill(now_ns);
                }
            }
            Step::Entry(tokens) => {
                if bucket.admits() != model.admits(tokens) {
                    return Err(format!("step {index}: only one admits {tokens}"));
                }
                if bucket.admits() && bucket.is_on() {
                    bucket.reserve(tokens);
                    model.reserve(tokens);
                    out.push_back(tokens);
                }
            }
            Step::Back(percent) => {
                if let Some(tokens) = out.pop_front() {
                    let sent = tokens * percent / 100;
                    bucket.settle(now_ns, tokens, sent);
                    model.settle(now_ns, tokens, sent);
                }
            }
            Step::Limit(tokens, period_s, burst) => {
                bucket.set(now_ns, Rate::new(tokens as i64, period_s, burst));
                model.set(now_ns, Some((tokens, period_s, burst)));
            }
            Step::Off => {
                bucket.set(now_ns, None);
                model.set(now_ns, None);
            }
        }
        let level = if model.on {
            model.level.floor().to_integer()
        } else {
            i128::from(i64::MAX)
        };
        if i128::from(bucket.tokens()) != level {
            return Err(format!(
                "step {index}, {step:?}: {} tokens, not {level}",
                bucket.tokens()
            ));
        }
        if model.on && bucket.ready_at_ns(1) != model.ready_at_ns() {
            return Err(format!("step {index}, {step:?}: ready at another instant"));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(Config::with_cases(2_000))]

    #[test]
    fn a_bucket_is_exact_to_the_token_and_to_the_nanosecond(steps in steps(true)) {
        prop_assert_eq!(compare(&steps, Fault::None), Ok(()));
    }

    /// Over every window, reads of any length included: rate x window + burst + one entry.
    #[test]
    fn over_any_window_no_more_goes_than_the_rate_the_burst_and_one_entry(
        steps in steps(false), tokens in 1u64..500, burst in 1u64..400
    ) {
        let mut bucket = TokenBucket::default();
        let (mut now_ns, mut latest_ns) = (SECOND, SECOND);
        bucket.set(now_ns, Rate::new(tokens as i64, 1, Some(burst)));
        let (mut out, mut gone, mut largest) = (VecDeque::new(), Vec::new(), 0);
        for step in steps {
            match step {
                Step::Wait(ns) => now_ns += ns,
                Step::Behind(ns) => now_ns = latest_ns - ns,
                Step::Entry(size) => {
                    bucket.refill(now_ns);
                    if bucket.admits() {
                        bucket.reserve(size);
                        out.push_back(size);
                        largest = largest.max(size);
                    }
                }
                Step::Back(percent) => {
                    if let Some(size) = out.pop_front() {
                        let sent = size * percent / 100;
                        bucket.settle(now_ns, size, sent);
                        gone.push((latest_ns.max(now_ns), sent));
                    }
                }
                Step::Limit(..) | Step::Off => unreachable!("without changes"),
            }
            latest_ns = latest_ns.max(now_ns);
            bucket.refill(now_ns);
        }
        check_windows(gone.into_iter(), tokens, burst + largest.saturating_sub(1));
    }

    /// A change of limit alone never makes an entry go that could not go before.
    #[test]
    fn no_change_of_a_limit_forgives_debt_or_grants_a_burst(
        before in 1i64..i64::MAX, changes in prop::collection::vec((0i64..i64::MAX, 1u32..100), 1..20),
        taken in any::<u64>()
    ) {
        let mut bucket = TokenBucket::default();
        bucket.set(0, Rate::per_second(before));
        bucket.debit(taken);
        let mut least = bucket.tokens();
        for (tokens, period_s) in changes {
            bucket.set(0, Rate::new(tokens, period_s, None));
            if bucket.is_on() {
                prop_assert!(bucket.tokens() <= least, "{} after {least}", bucket.tokens());
                prop_assert!(bucket.tokens() >= least.min(tokens).saturating_sub(1), "nor is a debt made up");
                least = bucket.tokens();
            }
        }
    }
}

#[test]
fn every_faulty_model_is_told_from_the_bucket() {
    for fault in FAULTS {
        let mut runner = TestRunner::new(Config {
            cases: 2_000,
            failure_persistence: None,
            max_shrink_iters: 0,
            ..Config::default()
        });
        let found = runner.run(&steps(true), |steps| {
            compare(&steps, fault).map_err(TestCaseError::fail)
        });
        assert!(found.is_err(), "{fault:?} looks like the real thing");
    }
}
