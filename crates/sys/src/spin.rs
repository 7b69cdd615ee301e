//! Whether an idle shard may spin before it sleeps (runtime 7.3).

use std::fmt;

/// What the verdict depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpinInput {
    /// Shards of this engine.
    pub shards: usize,
    /// In-process consumers that poll instead of sleeping.
    pub polling_consumers: usize,
    /// Whether a consumer's thread is pinned to the CPU of the shard.
    pub consumer_shares_cpu: bool,
    /// CPUs the process may use, from before pinning.
    pub cpus_allowed: usize,
    /// CPU quota in thousandths of a CPU, see [`quota`](crate::quota).
    pub quota_milli_cpus: Option<u32>,
}

/// May an idle shard spin?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinVerdict {
    /// For as long as its budget says.
    On,
    /// For at most this many microseconds, and only after real work: two CPUs are allowed.
    Limited {
        /// The ceiling in microseconds.
        max_us: u32,
    },
    /// Not at all, and which clause says so.
    Off(SpinOff),
}

/// The clause of runtime 7.3 that forbids spinning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinOff {
    /// One CPU: a spinning shard keeps everybody else from running.
    OneCpu,
    /// More shards and polling consumers than CPUs.
    MoreThreadsThanCpus,
    /// A consumer shares the shard's CPU: its p90 grows by exactly the budget.
    ConsumerOnSameCpu,
    /// The quota is below the CPUs: what is spun away is missing later, up to 100 ms in a row.
    QuotaBelowCpus,
}

/// With two CPUs, the longest spin in microseconds.
const TWO_CPUS_MAX_US: u32 = 5;

/// The verdict, the first clause that applies.
#[must_use]
pub fn spin_verdict(input: &SpinInput) -> SpinVerdict {
    let allowed_milli = input.cpus_allowed.saturating_mul(1000);
    let quota_short = input
        .quota_milli_cpus
        .is_some_and(|quota| (quota as usize) < allowed_milli);
    if input.cpus_allowed <= 1 {
        SpinVerdict::Off(SpinOff::OneCpu)
    } else if quota_short {
        SpinVerdict::Off(SpinOff::QuotaBelowCpus)
    } else if input.consumer_shares_cpu {
        SpinVerdict::Off(SpinOff::ConsumerOnSameCpu)
    } else if input.shards + input.polling_consumers > input.cpus_allowed {
        SpinVerdict::Off(SpinOff::MoreThreadsThanCpus)
    } else if input.cpus_allowed == 2 {
        SpinVerdict::Limited {
            max_us: TWO_CPUS_MAX_US,
        }
    } else {
        SpinVerdict::On
    }
}

impl fmt::Display for SpinVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Limited { max_us } => write!(f, "{max_us} us after real work (2 CPUs allowed)"),
            Self::Off(clause) => write!(f, "off: {clause}"),
        }
    }
}

impl fmt::Display for SpinOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneCpu => "only 1 CPU is allowed",
            Self::MoreThreadsThanCpus => "shards and polling consumers exceed the allowed CPUs",
            Self::ConsumerOnSameCpu => "a consumer shares the shard's CPU",
            Self::QuotaBelowCpus => "the CPU quota is below the allowed CPUs",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{SpinInput, spin_verdict};

    fn check(input: SpinInput, expected: &str) {
        assert_eq!(spin_verdict(&input).to_string(), expected, "{input:?}");
    }

    const FOUR: SpinInput = SpinInput {
        shards: 1,
        polling_consumers: 0,
        consumer_shares_cpu: false,
        cpus_allowed: 4,
        quota_milli_cpus: None,
    };

    /// Runtime test 30: cpuset of 1, 2, 4; quota 50 %; consumer on the same CPU.
    #[test]
    fn each_clause_is_named() {
        check(FOUR, "on");
        check(
            SpinInput {
                cpus_allowed: 1,
                ..FOUR
            },
            "off: only 1 CPU is allowed",
        );
        check(
            SpinInput {
                cpus_allowed: 2,
                ..FOUR
            },
            "5 us after real work (2 CPUs allowed)",
        );
        let shares = SpinInput {
            consumer_shares_cpu: true,
            ..FOUR
        };
        check(shares, "off: a consumer shares the shard's CPU");
        let crowd = SpinInput {
            shards: 3,
            polling_consumers: 2,
            ..FOUR
        };
        check(
            crowd,
            "off: shards and polling consumers exceed the allowed CPUs",
        );
        check(
            SpinInput {
                quota_milli_cpus: Some(4000),
                ..FOUR
            },
            "on",
        );
    }

    /// Case BUSYPOLL-QUOTA, step 3: `cpu.max 50000 100000` is noticed.
    #[test]
    fn busypoll_quota_below_the_cpus_stops_spinning() {
        let half = SpinInput {
            quota_milli_cpus: Some(500),
            ..FOUR
        };
        check(half, "off: the CPU quota is below the allowed CPUs");
        check(
            SpinInput {
                cpus_allowed: 2,
                ..half
            },
            "off: the CPU quota is below the allowed CPUs",
        );
    }
}
