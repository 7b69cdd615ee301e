//! Percentile distribution in the text format of HdrHistogram (`.hgrm`), which its plotters read.

use std::fmt::Write as _;

use pelton_metrics::Histogram;

/// Points per halving of the distance to 100 %, as the reference tools use.
const TICKS_PER_HALF: f64 = 5.0;

/// One row of the distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    /// In nanoseconds.
    pub(crate) value_ns: u64,
    /// Share of the samples that are not above it, 0 to 1.
    pub(crate) share: f64,
    /// How many those are.
    pub(crate) samples: u64,
}

/// The distribution at ever closer steps towards 100 %, last row the maximum; empty without samples.
pub(crate) fn points(histogram: &Histogram) -> Vec<Point> {
    let total = histogram.count();
    let max_ns = histogram.summary().max;
    let mut points: Vec<Point> = Vec::new();
    let mut wanted = 0.0_f64;
    let mut samples = 0;
    for (value_ns, count) in histogram.recorded() {
        samples += count;
        let share = samples as f64 / total as f64;
        if share < wanted {
            continue;
        }
        points.push(Point {
            value_ns: value_ns.min(max_ns),
            share,
            samples,
        });
        while wanted <= share && samples < total {
            wanted = next_tick(wanted);
        }
    }
    points
}

fn next_tick(share: f64) -> f64 {
    let halvings = (1.0 / (1.0 - share)).log2().floor() + 1.0;
    share + 1.0 / (TICKS_PER_HALF * 2.0_f64.powf(halvings))
}

/// The file's content; values in microseconds.
#[must_use]
pub fn hgrm(histogram: &Histogram) -> String {
    let mut out = format!(
        "{:>12} {:>14} {:>10} {:>14}\n\n",
        "Value", "Percentile", "TotalCount", "1/(1-Percentile)"
    );
    for Point {
        value_ns,
        share,
        samples,
    } in points(histogram)
    {
        let value_us = value_ns as f64 / 1e3;
        let _ = write!(out, "{value_us:>12.3} {share:>14.12} {samples:>10}");
        if samples < histogram.count() {
            let _ = write!(out, " {:>14.2}", 1.0 / (1.0 - share));
        }
        out.push('\n');
    }
    let count = histogram.count();
    let mean_us = histogram.sum_ns() as f64 / 1e3 / count.max(1) as f64;
    let max_us = histogram.summary().max as f64 / 1e3;
    let _ = writeln!(out, "#[Mean    = {mean_us:>12.3}]");
    let _ = writeln!(
        out,
        "#[Max     = {max_us:>12.3}, Total count    = {count:>12}]"
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DIGITS;

    #[test]
    fn the_distribution_rises_to_all_samples_and_ends_at_the_maximum() {
        let mut histogram = Histogram::new(DIGITS);
        (1..=100_000).for_each(|ns| histogram.record(ns));
        let points = points(&histogram);
        assert!((30..200).contains(&points.len()), "{}", points.len());
        assert!(
            points
                .windows(2)
                .all(|w| w[0].share < w[1].share && w[0].value_ns < w[1].value_ns)
        );
        let last = points.last().unwrap();
        assert_eq!((last.value_ns, last.samples), (100_000, 100_000));
        let half = points.iter().find(|p| p.share >= 0.5).unwrap();
        assert!((49_900..=50_200).contains(&half.value_ns), "{half:?}");
        let text = hgrm(&histogram);
        assert!(text.starts_with("       Value     Percentile TotalCount 1/(1-Percentile)\n\n"));
        assert!(text.contains("Total count    =       100000]"));
    }

    #[test]
    fn without_samples_there_are_no_points() {
        assert_eq!(points(&Histogram::new(DIGITS)), []);
    }

    #[test]
    fn one_value_only_is_one_point() {
        let mut histogram = Histogram::new(DIGITS);
        histogram.record_n(5_000, 1_000_000);
        let points = points(&histogram);
        assert_eq!(points.len(), 1);
        assert!((points[0].share - 1.0).abs() < 1e-12);
    }
}
