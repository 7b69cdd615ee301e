//! A latency histogram with fixed bounds that never refuses a value and never wraps a count.

use std::fmt;

/// The largest value that has a bucket, in nanoseconds: 60 s. Larger ones count in its bucket.
pub const MAX_NS: u64 = 60_000_000_000;

/// A quantile is printed only with at least this many samples above it; fewer say nothing.
const SAMPLES_ABOVE_MIN: u128 = 10;

/// A latency histogram in nanoseconds, up to [`MAX_NS`], with a relative error of at most 1 % at two
/// digits (shards: 30 KiB each) and 0.1 % at three (the load generator: 216 KiB).
///
/// Memory is allocated by [`Histogram::new`] only. Every value is counted: one above [`MAX_NS`]
/// counts in the top bucket and in [`Histogram::clamped`]. `min` and the sum are exact, `max` is
/// exact up to [`MAX_NS`]. Counts and sum saturate: they stay at their largest value, never wrap.
///
/// The buckets are those of HdrHistogram, and tests hold them to the library's. Recording is our own
/// because a shard records in every turn, and the generator every message: 30 instructions here (6
/// for a zero), 100 through the library.
#[derive(Clone)]
pub struct Histogram {
    /// Records per bucket, in the order of [`index`].
    counts: Box<[u64]>,
    digits: u8,
    /// Each power of two is cut into 2^`half_bits` buckets of equal width.
    half_bits: u32,
    /// Of the values as they came, not as they were clamped.
    sum_ns: u128,
    /// Of the values above 0; `u64::MAX` while there is none.
    min_ns: u64,
    max_ns: u64,
    clamped: u64,
}

/// One bucket in use. Values in nanoseconds, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) low_ns: u64,
    pub(crate) high_ns: u64,
    pub(crate) count: u64,
}

impl Histogram {
    /// An empty histogram that keeps `digits` significant decimal digits.
    ///
    /// # Panics
    /// If `digits` is not 1 to 5.
    #[must_use]
    pub fn new(digits: u8) -> Histogram {
        assert!(
            (1..=5).contains(&digits),
            "a histogram keeps 1 to 5 digits, not {digits}"
        );
        // Below 2 x 10^digits every value has a bucket of its own: that is what a digit means.
        let half_bits = (2 * 10_u64.pow(digits.into())).next_power_of_two().ilog2() - 1;
        let length = index(MAX_NS, half_bits) + 1;
        Histogram {
            counts: vec![0; length.next_multiple_of(1 << half_bits)].into_boxed_slice(),
            digits,
            half_bits,
            sum_ns: 0,
            min_ns: u64::MAX,
            max_ns: 0,
            clamped: 0,
        }
    }

    /// Records one value in nanoseconds.
    #[inline]
    pub fn record(&mut self, value_ns: u64) {
        self.record_n(value_ns, 1);
    }

    /// Records the same value `count` times at the price of one; `count` of zero changes nothing.
    #[inline]
    pub fn record_n(&mut self, value_ns: u64, count: u64) {
        if value_ns == 0 || count == 0 {
            // With one clock read a turn, most stages of most messages take no time.
            self.counts[0] = self.counts[0].saturating_add(count);
            return;
        }
        let bounded_ns = value_ns.min(MAX_NS);
        let bucket = &mut self.counts[index(bounded_ns, self.half_bits)];
        *bucket = bucket.saturating_add(count);
        self.sum_ns = self
            .sum_ns
            .saturating_add(u128::from(value_ns) * u128::from(count));
        self.min_ns = self.min_ns.min(bounded_ns);
        self.max_ns = self.max_ns.max(bounded_ns);
        if value_ns > MAX_NS {
            self.clamped = self.clamped.saturating_add(count);
        }
    }

    /// Adds everything `other` holds. Percentiles are never averaged: histograms are added, then read.
    /// `other` may keep another number of digits; the result is as exact as the coarser of the two.
    pub fn merge(&mut self, other: &Histogram) {
        for bucket in other.buckets() {
            let mine = &mut self.counts[index(bucket.high_ns, self.half_bits)];
            *mine = mine.saturating_add(bucket.count);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.clamped = self.clamped.saturating_add(other.clamped);
    }

    /// Empties it and keeps its memory.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.sum_ns, self.min_ns, self.max_ns, self.clamped) = (0, u64::MAX, 0, 0);
    }

    /// How many values were recorded; saturates. Adds up all buckets: for reports, not for turns.
    #[must_use]
    pub fn count(&self) -> u64 {
        u64::try_from(self.total()).unwrap_or(u64::MAX)
    }

    /// The exact sum of all values, in nanoseconds, clamped ones with their true size; saturates.
    #[must_use]
    pub fn sum_ns(&self) -> u128 {
        self.sum_ns
    }

    /// How many of the recorded values were above [`MAX_NS`]; saturates.
    #[must_use]
    pub fn clamped(&self) -> u64 {
        self.clamped
    }

    /// Significant decimal digits kept.
    #[must_use]
    pub fn digits(&self) -> u8 {
        self.digits
    }

    /// The value in nanoseconds that `per_10_000` ten-thousandths of the records do not exceed
    /// (9990 is p99.9), or `None` if fewer than 10 records lie above it.
    ///
    /// # Panics
    /// If `per_10_000` is above 10,000.
    #[must_use]
    pub fn quantile(&self, per_10_000: u16) -> Option<u64> {
        self.quantiles([per_10_000])[0]
    }

    /// The usual quantiles in one pass.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let [p50, p90, p99, p999, p9999] = self.quantiles([5_000, 9_000, 9_900, 9_990, 9_999]);
        let count = self.count();
        let min = if self.counts[0] > 0 || count == 0 {
            0
        } else {
            self.min_ns
        };
        Summary {
            count,
            min,
            p50,
            p90,
            p99,
            p999,
            p9999,
            max: self.max_ns,
        }
    }

    /// The used buckets from low to high: the largest value a bucket stands for, in nanoseconds, and
    /// how many records it holds.
    pub fn recorded(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.buckets().map(|bucket| (bucket.high_ns, bucket.count))
    }

    pub(crate) fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let used = self
            .counts
            .iter()
            .enumerate()
            .filter(|(_, count)| **count > 0);
        used.map(|(i, &count)| {
            // The inverse of `index`.
            let shift = (i >> self.half_bits).saturating_sub(1);
            let low_ns = (i as u64 - ((shift as u64) << self.half_bits)) << shift;
            Bucket {
                low_ns,
                high_ns: (low_ns + (1 << shift) - 1).min(MAX_NS),
                count,
            }
        })
    }

    fn total(&self) -> u128 {
        self.counts.iter().map(|count| u128::from(*count)).sum()
    }

    /// `wanted` rises. Ranks are integers: at 2^60 records a rank in floating point is off by 64.
    fn quantiles<const N: usize>(&self, wanted: [u16; N]) -> [Option<u64>; N] {
        let total = self.total();
        let mut found = [None; N];
        let mut next = 0;
        let mut seen = 0_u128;
        for bucket in self.buckets() {
            seen += u128::from(bucket.count);
            while next < N {
                assert!(
                    wanted[next] <= 10_000,
                    "{} is more than all of 10,000",
                    wanted[next]
                );
                let rank = (total * u128::from(wanted[next])).div_ceil(10_000).max(1);
                if seen < rank {
                    break;
                }
                if total - rank >= SAMPLES_ABOVE_MIN {
                    found[next] = Some(bucket.high_ns.min(self.max_ns));
                }
                next += 1;
            }
        }
        found
    }
}

/// The bucket of a value. Below 2^(`half_bits` + 1) the value itself; above, each power of two has
/// 2^`half_bits` buckets, told apart by the bits below its highest.
#[inline]
fn index(value_ns: u64, half_bits: u32) -> usize {
    // Wrapping, because nothing can wrap and a check costs as much as the sum: `shift` is below 64.
    let shift = (value_ns | 1_u64.wrapping_shl(half_bits))
        .ilog2()
        .wrapping_sub(half_bits);
    let first = u64::from(shift).wrapping_shl(half_bits);
    first.wrapping_add(value_ns.wrapping_shr(shift)) as usize
}

impl fmt::Debug for Histogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Thousands of buckets help nobody in a failed assertion.
        f.debug_struct("Histogram")
            .field("digits", &self.digits())
            .field("summary", &self.summary())
            .field("sum_ns", &self.sum_ns)
            .field("clamped", &self.clamped)
            .finish()
    }
}

/// What a report prints of a histogram; every value in nanoseconds.
///
/// A quantile with fewer than 10 records above it is `None`, printed as "-". With a `count` of zero,
/// `min` and `max` are 0 and mean nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How many values were recorded.
    pub count: u64,
    /// The exact minimum.
    pub min: u64,
    /// The median.
    pub p50: Option<u64>,
    /// 90 % are not above it.
    pub p90: Option<u64>,
    /// 99 % are not above it.
    pub p99: Option<u64>,
    /// 99.9 % are not above it.
    pub p999: Option<u64>,
    /// 99.99 % are not above it.
    pub p9999: Option<u64>,
    /// The exact maximum, at most [`MAX_NS`].
    pub max: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(digits: u8, values: impl IntoIterator<Item = u64>) -> Histogram {
        let mut histogram = Histogram::new(digits);
        for value in values {
            histogram.record(value);
        }
        histogram
    }

    /// HIST-CLAMP: a value above the maximum neither panics nor disappears, counts never wrap.
    #[test]
    fn hist_clamp_every_value_counts_and_none_panics() {
        for digits in 1..=5 {
            let mut shard = of(digits, [0, 1, MAX_NS, MAX_NS + 1_000_000_000, u64::MAX]);
            assert_eq!((shard.count(), shard.clamped()), (5, 2), "{digits} digits");
            assert_eq!((shard.summary().min, shard.summary().max), (0, MAX_NS));
            let top: u64 = shard
                .recorded()
                .filter(|(v, _)| *v == MAX_NS)
                .map(|(_, n)| n)
                .sum();
            assert_eq!(top, 3, "60 s, 61 s and 2^64-1 share the top bucket");
            assert_eq!(
                shard.sum_ns(),
                1 + 2 * u128::from(MAX_NS) + 1_000_000_000 + u128::from(u64::MAX)
            );

            shard.record_n(7, (1 << 32) + 5);
            assert_eq!(shard.count(), (1 << 32) + 10);
        }
    }

    /// HIST-CLAMP: histograms of shards that saw different ranges, and keep different digits.
    #[test]
    fn hist_clamp_a_merged_maximum_is_at_least_each_of_the_shards() {
        let shards = [
            of(2, 1..=100),
            of(3, (1..=100).map(|ms| ms * 1_000_000)),
            of(1, [MAX_NS - 1, MAX_NS, u64::MAX]),
            Histogram::new(2),
        ];
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]] {
            for digits in [1, 2, 3] {
                let mut merged = Histogram::new(digits);
                order
                    .iter()
                    .for_each(|&shard: &usize| merged.merge(&shards[shard]));
                assert_eq!(merged.count(), 203);
                assert_eq!(merged.clamped(), 1);
                assert_eq!(merged.summary().min, 1);
                assert!(
                    shards
                        .iter()
                        .all(|s| merged.summary().max >= s.summary().max)
                );
                let sum: u128 = shards.iter().map(Histogram::sum_ns).sum();
                assert_eq!(
                    merged.sum_ns(),
                    sum,
                    "the sum stays exact whatever the digits"
                );
            }
        }
    }

    /// HIST-CLAMP: counts saturate, by recording as by merging, and can still be read.
    #[test]
    fn hist_clamp_counts_saturate_and_quantiles_of_full_buckets_are_right() {
        let mut full = Histogram::new(2);
        full.record_n(5, u64::MAX - 1);
        full.record_n(5, 2);
        full.record_n(u64::MAX, u64::MAX);
        full.record_n(u64::MAX, u64::MAX);
        assert_eq!((full.count(), full.clamped()), (u64::MAX, u64::MAX));
        // Two full buckets: ranks are exact although the printed count has saturated.
        assert_eq!(
            (full.quantile(5_000), full.quantile(5_001)),
            (Some(5), Some(MAX_NS))
        );

        let mut merged = full.clone();
        (0..3).for_each(|_| merged.merge(&full));
        assert_eq!((merged.count(), merged.clamped()), (u64::MAX, u64::MAX));
        assert_eq!(
            (merged.quantile(5_000), merged.quantile(5_001)),
            (Some(5), Some(MAX_NS))
        );
        assert_eq!(merged.sum_ns(), u128::MAX, "4 x 2 x (2^64-1)^2 do not fit");
        full.record_n(7, 0);
        assert_eq!(full.recorded().count(), 2, "nothing of 7 was recorded");
    }

    #[test]
    fn a_quantile_needs_ten_samples_above_it() {
        // (records 1..=n, quantile in ten-thousandths, expected)
        let table = [
            (19, 5_000, None),
            (20, 5_000, Some(10)),
            (99, 9_000, None),
            (100, 9_000, Some(90)),
            (999, 9_900, None),
            (1_000, 9_900, Some(990)),
            (99_999, 9_999, None),
            (100_000, 9_999, Some(99_990)),
            (100_000, 10_000, None),
            (11, 0, Some(1)),
            (0, 5_000, None),
        ];
        for (n, per_10_000, expected) in table {
            // Five digits keep values below 200,000 apart, so the answer is exact.
            assert_eq!(
                of(5, 1..=n).quantile(per_10_000),
                expected,
                "{n} records, {per_10_000}"
            );
        }
    }

    #[test]
    fn an_empty_histogram_has_no_quantiles() {
        let empty = Histogram::new(2);
        assert_eq!(empty.summary(), Summary::default());
    }

    #[test]
    fn clearing_leaves_nothing_behind() {
        let mut histogram = of(2, [3, u64::MAX]);
        histogram.clear();
        histogram.merge(&Histogram::new(2));
        assert_eq!(histogram.summary(), Summary::default());
        assert_eq!((histogram.sum_ns(), histogram.clamped()), (0, 0));
        histogram.record(8);
        assert_eq!((histogram.summary().min, histogram.summary().max), (8, 8));
    }

    #[test]
    #[should_panic(expected = "1 to 5 digits, not 6")]
    fn six_digits_are_refused() {
        let _ = Histogram::new(6);
    }

    /// The library's histogram of the same values.
    fn library(digits: u8, values: &[u64]) -> hdrhistogram::Histogram<u64> {
        let mut library = hdrhistogram::Histogram::new_with_bounds(1, MAX_NS, digits).unwrap();
        values
            .iter()
            .for_each(|value| library.record(*value).unwrap());
        library
    }

    #[test]
    fn buckets_around_every_power_of_two_are_the_librarys() {
        for digits in 1..=5 {
            let library = library(digits, &[]);
            let edges = (0..36).flat_map(|bits| [(1 << bits) - 1, 1 << bits, (1 << bits) + 1]);
            for value in edges.chain([MAX_NS - 1, MAX_NS]).filter(|v| *v <= MAX_NS) {
                let expected = Bucket {
                    low_ns: library.lowest_equivalent(value),
                    high_ns: library.highest_equivalent(value).min(MAX_NS),
                    count: 1,
                };
                let ours: Vec<Bucket> = of(digits, [value]).buckets().collect();
                assert_eq!(ours, [expected], "{value} at {digits} digits");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn every_bucket_in_use_is_the_librarys(
            bits in prop::collection::vec((any::<u64>(), 0..64_u32), 1..500),
            digits in 1..=3_u8,
        ) {
            let values: Vec<u64> = bits.iter().map(|(v, shift)| (v >> shift).min(MAX_NS)).collect();
            let (ours, library) = (of(digits, values.iter().copied()), library(digits, &values));
            let theirs = library.iter_recorded().map(|bucket| Bucket {
                low_ns: library.lowest_equivalent(bucket.value_iterated_to()),
                high_ns: bucket.value_iterated_to().min(MAX_NS),
                count: bucket.count_at_value(),
            });
            prop_assert!(ours.buckets().eq(theirs));
        }

        #[test]
        fn every_quantile_is_within_one_percent_of_the_sorted_values(
            mut values in prop::collection::vec(0..=MAX_NS, 1..2_000),
            per_10_000 in 0_u16..=10_000,
        ) {
            let histogram = of(2, values.iter().copied());
            values.sort_unstable();
            let rank = (values.len() * usize::from(per_10_000)).div_ceil(10_000).max(1);
            let exact = values[rank - 1];
            match histogram.quantile(per_10_000) {
                Some(value) => {
                    prop_assert!(values.len() - rank >= 10);
                    prop_assert!(value >= exact && value - exact <= exact / 100);
                }
                None => prop_assert!(values.len() - rank < 10),
            }
            let sum: u128 = values.iter().map(|v| u128::from(*v)).sum();
            prop_assert_eq!(histogram.sum_ns(), sum);
            prop_assert_eq!(histogram.summary().max, values[values.len() - 1]);
        }

        #[test]
        fn merging_parts_is_recording_everything_at_once(
            parts in prop::collection::vec(prop::collection::vec(any::<u64>(), 0..50), 0..6),
        ) {
            let mut merged = Histogram::new(2);
            for part in &parts {
                merged.merge(&of(2, part.iter().copied()));
            }
            let whole = of(2, parts.concat());
            prop_assert_eq!(merged.summary(), whole.summary());
            prop_assert_eq!(merged.sum_ns(), whole.sum_ns());
            prop_assert_eq!(merged.clamped(), whole.clamped());
            prop_assert!(merged.recorded().eq(whole.recorded()));
        }
    }
}
