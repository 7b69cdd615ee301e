//! The nine stages of a message between its arrival and its ack.

use crate::histogram::Histogram;

/// How many stages there are.
pub const STAGES: usize = 9;

/// A part of the time between the arrival of a message and its ack.
///
/// The stages of one message add up, to the nanosecond, to its end-to-end time. Source: DESIGN 8,
/// `dispatch.md` D153 and D154.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Arrival until a turn of the shard took it.
    Received,
    /// Taken until it was in the log's open block.
    Appended,
    /// Appended until it had its topic's durability.
    Durable,
    /// Waiting for a plan for no other reason than the two waits below.
    Planned,
    /// Planned until its bytes were in memory.
    Read,
    /// The part of the wait for a plan in which consumers had no permits (or no room).
    PermitWait,
    /// The part of the wait for a plan in which a rate limit withheld it.
    LimiterWait,
    /// In memory until it was with its consumer.
    HandedOver,
    /// With its consumer until the ack was applied.
    Acked,
}

impl Stage {
    /// All stages in the order a message goes through them.
    pub const ALL: [Stage; STAGES] = [
        Stage::Received,
        Stage::Appended,
        Stage::Durable,
        Stage::Planned,
        Stage::Read,
        Stage::PermitWait,
        Stage::LimiterWait,
        Stage::HandedOver,
        Stage::Acked,
    ];

    /// The name in reports and in the label `stage`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Received => "received",
            Stage::Appended => "appended",
            Stage::Durable => "durable",
            Stage::Planned => "planned",
            Stage::Read => "read",
            Stage::PermitWait => "permit_wait",
            Stage::LimiterWait => "limiter_wait",
            Stage::HandedOver => "handed_over",
            Stage::Acked => "acked",
        }
    }
}

/// One histogram per stage.
#[derive(Clone, Debug)]
pub struct StageSet {
    histograms: [Histogram; STAGES],
}

impl StageSet {
    /// Nine empty histograms of `digits` significant digits.
    ///
    /// # Panics
    /// If `digits` is not 1 to 5.
    #[must_use]
    pub fn new(digits: u8) -> StageSet {
        StageSet {
            histograms: std::array::from_fn(|_| Histogram::new(digits)),
        }
    }

    /// Records how long one message spent in `stage`, in nanoseconds.
    #[inline]
    pub fn record(&mut self, stage: Stage, value_ns: u64) {
        self.record_n(stage, value_ns, 1);
    }

    /// The same for a run of `count` messages that spent the same time, at the price of one.
    #[inline]
    pub fn record_n(&mut self, stage: Stage, value_ns: u64, count: u64) {
        self.histograms[stage as usize].record_n(value_ns, count);
    }

    /// The histogram of one stage.
    #[must_use]
    pub fn get(&self, stage: Stage) -> &Histogram {
        &self.histograms[stage as usize]
    }

    /// Every stage in order with its histogram.
    pub fn iter(&self) -> impl Iterator<Item = (Stage, &Histogram)> {
        Stage::ALL.into_iter().zip(&self.histograms)
    }

    /// The exact sum over all stages, in nanoseconds: for acked messages the end-to-end time.
    #[must_use]
    pub fn sum_ns(&self) -> u128 {
        self.histograms
            .iter()
            .fold(0, |sum, h| h.sum_ns().saturating_add(sum))
    }

    /// Adds everything `other` holds.
    pub fn merge(&mut self, other: &StageSet) {
        for (mine, theirs) in self.histograms.iter_mut().zip(&other.histograms) {
            mine.merge(theirs);
        }
    }

    /// Empties all and keeps their memory.
    pub fn clear(&mut self) {
        self.histograms.iter_mut().for_each(Histogram::clear);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stage_has_its_own_histogram_and_its_own_name() {
        let mut set = StageSet::new(2);
        for (i, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, i, "ALL is in the order of the enum");
            set.record_n(stage, 10 * (i as u64 + 1), i as u64 + 1);
        }
        let mut names: Vec<_> = Vec::new();
        for (i, (stage, histogram)) in set.iter().enumerate() {
            assert_eq!(histogram.count(), i as u64 + 1, "{}", stage.name());
            assert_eq!(set.get(stage).summary().max, 10 * (i as u64 + 1));
            names.push(stage.name());
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), STAGES);
    }

    #[test]
    fn stages_add_up_to_end_to_end_exactly_even_where_buckets_are_coarse_or_clamped() {
        let mut set = StageSet::new(2);
        let mut end_to_end = Histogram::new(2);
        for message in 0..1_000_u64 {
            let mut total = 0;
            for (i, stage) in Stage::ALL.into_iter().enumerate() {
                // Up to three minutes, so that some are clamped in both.
                let spent_ns = message * message * 19_997 * (i as u64) + message;
                set.record(stage, spent_ns);
                total += spent_ns;
            }
            end_to_end.record(total);
        }
        assert!(end_to_end.clamped() > 0);
        assert_eq!(set.sum_ns(), end_to_end.sum_ns());
    }
}
