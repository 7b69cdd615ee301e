//! Policies of limits: how fast, how much at once, and who is left out.

use crate::Entries;

pub(crate) const NS_PER_S: u64 = 1_000_000_000;

/// How fast a bucket refills and how much it holds: `tokens` per period, at most `capacity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// At most 2^63 - 1; 0 for a bucket that only leases fill.
    pub(crate) tokens: u64,
    /// At least one second.
    pub(crate) period_ns: u64,
    /// 1 to 2^63 - 1: less than one token would never let anything go.
    pub(crate) capacity: u64,
}

impl Rate {
    /// `tokens` each `period_s` seconds (0 is taken as 1), holding `burst` tokens, by default those
    /// of one period. `None`, no limit, where `tokens` is 0 or less (rules D39 and D40).
    #[must_use]
    pub fn new(tokens: i64, period_s: u32, burst: Option<u64>) -> Option<Self> {
        let tokens = u64::try_from(tokens).ok().filter(|&tokens| tokens > 0)?;
        Some(Self {
            tokens,
            period_ns: u64::from(period_s.max(1)) * NS_PER_S,
            capacity: burst.unwrap_or(tokens).clamp(1, i64::MAX.unsigned_abs()),
        })
    }

    /// `tokens` each second, with the burst of one second.
    #[must_use]
    pub fn per_second(tokens: i64) -> Option<Self> {
        Self::new(tokens, 1, None)
    }

    /// The same limit where another shard keeps its time: filled by leases alone.
    #[must_use]
    pub fn leased(self) -> Self {
        Self { tokens: 0, ..self }
    }
}

/// The two limits of one scope; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// In messages.
    pub messages: Option<Rate>,
    /// In stored bytes.
    pub bytes: Option<Rate>,
}

/// A policy as an operator writes it. Of several the nearest counts: subscription, topic,
/// namespace, engine (`a.or(b)`, rule D39).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DispatchRate {
    /// Messages per period; 0 or less is no limit.
    pub messages: i64,
    /// Stored bytes per period; 0 or less is no limit.
    pub bytes: i64,
    /// Length of a period in seconds; 0 is taken as 1 (`ratePeriodInSecond`).
    pub period_s: u32,
    /// Messages that may go at once; by default those of one period.
    pub burst_messages: Option<u64>,
    /// Bytes that may go at once; by default those of one period.
    pub burst_bytes: Option<u64>,
    /// Adds what is published to both rates (`relativeToPublishRate`, rule D46).
    pub relative_to_publish_rate: bool,
}

impl DispatchRate {
    /// The limits of a scope, `published` being the messages and bytes per second that
    /// [`PublishRate`] found. A burst that is not given follows the rate.
    #[must_use]
    pub fn limits(&self, published: (u64, u64)) -> Limits {
        let relative = |configured: i64, per_s: u64| {
            if !self.relative_to_publish_rate || configured <= 0 {
                return configured;
            }
            let per_period = per_s.saturating_mul(u64::from(self.period_s.max(1)));
            configured.saturating_add_unsigned(per_period)
        };
        let messages = relative(self.messages, published.0);
        let bytes = relative(self.bytes, published.1);
        Limits {
            messages: Rate::new(messages, self.period_s, self.burst_messages),
            bytes: Rate::new(bytes, self.period_s, self.burst_bytes),
        }
    }
}

/// How fast a topic is published to, sampled about every second: a higher sample is taken as it is,
/// a lower one as the mean of old and new (rule D46). One for messages, one for bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishRate {
    /// Instant and total of the sample before.
    before: Option<(u64, u64)>,
    per_s: u64,
}

impl PublishRate {
    /// Takes a sample of a counter that only rises and gives the rate per second, rounded down. A
    /// sample that is not later than the one before changes nothing.
    pub fn sample(&mut self, now_ns: u64, total: u64) -> u64 {
        let Some((before_ns, before)) = self.before else {
            self.before = Some((now_ns, total));
            return self.per_s;
        };
        if now_ns > before_ns {
            let grown = u128::from(total.saturating_sub(before)) * u128::from(NS_PER_S);
            let found = grown / u128::from(now_ns - before_ns);
            let found = u64::try_from(found).unwrap_or(u64::MAX);
            self.per_s = found.max(self.per_s.midpoint(found));
            self.before = Some((now_ns, total));
        }
        self.per_s
    }
}

/// Whether a subscription that has caught up is left out of all limits, neither asking nor debiting:
/// `throttle_caught_up` is `dispatchThrottlingOnNonBacklogConsumerEnabled`, `threshold` is
/// `managedLedgerCursorBackloggedThreshold` (rule D47).
#[must_use]
pub fn is_exempt(throttle_caught_up: bool, backlog: Entries, threshold: Entries) -> bool {
    !throttle_caught_up && backlog <= threshold
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_of_zero_or_less_is_no_limit_and_no_burst_is_smaller_than_a_token() {
        assert_eq!(Rate::per_second(0), None);
        assert_eq!(Rate::per_second(-1), None);
        assert_eq!(Rate::per_second(i64::MIN), None);
        assert_eq!(Rate::new(5, 1, Some(0)).unwrap().capacity, 1);
        assert_eq!(Rate::new(5, 0, None), Rate::per_second(5));
        let huge = Rate::new(i64::MAX, u32::MAX, Some(u64::MAX)).unwrap();
        assert_eq!(huge.capacity, i64::MAX.unsigned_abs());
    }

    #[test]
    fn a_relative_limit_follows_the_publish_rate_and_its_burst_follows_with_it() {
        let policy = DispatchRate {
            messages: 100,
            relative_to_publish_rate: true,
            ..DispatchRate::default()
        };
        let limits = policy.limits((50, 7000));
        assert_eq!(limits.messages, Rate::per_second(150));
        assert_eq!(limits.bytes, None, "what is off stays off");
        let ten_seconds = DispatchRate {
            period_s: 10,
            ..policy
        };
        assert_eq!(
            ten_seconds.limits((50, 0)).messages,
            Rate::new(600, 10, None)
        );
        assert_eq!(
            policy.limits((u64::MAX, 0)).messages,
            Rate::per_second(i64::MAX)
        );
    }

    #[test]
    fn the_publish_rate_rises_at_once_and_falls_by_halves() {
        let mut rate = PublishRate::default();
        let mut total = 0;
        let mut sampled = Vec::new();
        for (second, published) in [0, 1000, 100, 0, 400, 0].into_iter().enumerate() {
            total += published;
            sampled.push(rate.sample(second as u64 * NS_PER_S, total));
        }
        assert_eq!(sampled, [0, 1000, 550, 275, 400, 200]);
        assert_eq!(rate.sample(3 * NS_PER_S, total + 9), 200, "time went back");
        assert_eq!(
            rate.sample(5_500_000_000, total + 500),
            1000,
            "half a second"
        );
        assert_eq!(
            rate.sample(5_500_000_001, u64::MAX),
            u64::MAX,
            "no overflow"
        );
    }

    #[test]
    fn only_a_subscription_that_has_caught_up_is_exempt_and_only_if_the_switch_says_so() {
        let threshold = Entries(1000);
        assert!(is_exempt(false, Entries(1000), threshold));
        assert!(!is_exempt(false, Entries(1001), threshold));
        assert!(!is_exempt(true, Entries(0), threshold));
    }
}
