//! A figure of the engine beside what the machine itself can do, measured in turns in one run.

use crate::units;

/// What a compared figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// A latency in nanoseconds: a lower ratio is better.
    LatencyNs,
    /// Messages per second: a higher ratio is better.
    MessagesPerSecond,
    /// Payload bytes per second: a higher ratio is better.
    BytesPerSecond,
}

impl Figure {
    /// The value for people, with its unit.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        match self {
            Figure::LatencyNs => units::duration(value.max(0.0) as u64),
            Figure::MessagesPerSecond => units::rate(value, "msg"),
            Figure::BytesPerSecond => format!("{}/s", units::bytes(value)),
        }
    }

    fn better(self) -> &'static str {
        match self {
            Figure::LatencyNs => "lower is better",
            Figure::MessagesPerSecond | Figure::BytesPerSecond => "higher is better",
        }
    }
}

/// One round: the figure of the engine and the raw figure measured next to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Round {
    /// The engine.
    pub product: f64,
    /// The machine.
    pub raw: f64,
    /// Share of all CPUs that other processes used meanwhile, 0 to 1.
    pub others: f64,
}

/// A round whose raw figure is further from the median than this was disturbed (`runtime.md` 11.5).
const SPREAD_MAX: f64 = 0.25;

/// A round in which other processes used more of the CPUs than this was disturbed (the same).
const OTHERS_MAX: f64 = 0.10;

/// The engine against one limit of the machine, by the median over rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Key in the JSON object `ratio`.
    pub name: &'static str,
    /// What is compared, as "p50" or "rate".
    pub what: &'static str,
    /// The limit, in words.
    pub against: &'static str,
    /// Unit of both.
    pub figure: Figure,
    /// Median of the engine's rounds that count.
    pub product: f64,
    /// Median of the raw rounds that count.
    pub raw: f64,
    /// Median of the ratios of the rounds that count.
    pub ratio: f64,
    /// Rounds measured.
    pub rounds: usize,
    /// Rounds that do not count: the raw figure was more than 25 % off its median, or other processes
    /// used more than 10 % of the CPUs. If none is left, all count.
    pub void: usize,
    /// Mean share of all CPUs that other processes used, 0 to 1.
    pub others: f64,
    /// Largest less smallest ratio of the rounds that count, relative to their median.
    pub spread: f64,
}

impl Comparison {
    /// Judges rounds; `None` if there is none with two positive figures.
    #[must_use]
    pub fn of_rounds(
        name: &'static str,
        what: &'static str,
        against: &'static str,
        figure: Figure,
        rounds: &[Round],
    ) -> Option<Comparison> {
        let usable: Vec<Round> = rounds
            .iter()
            .copied()
            .filter(|round| round.product > 0.0 && round.raw > 0.0)
            .collect();
        let raw = median(usable.iter().map(|round| round.raw))?;
        let is_quiet = |round: &&Round| {
            (round.raw - raw).abs() <= SPREAD_MAX * raw && round.others <= OTHERS_MAX
        };
        let quiet: Vec<Round> = usable.iter().filter(is_quiet).copied().collect();
        // With an even number of rounds the median lies between two that may both be far off.
        let counted = if quiet.is_empty() { &usable } else { &quiet };
        let ratios = || counted.iter().map(|round| round.product / round.raw);
        let ratio = median(ratios())?;
        let high = ratios().fold(f64::MIN, f64::max);
        let low = ratios().fold(f64::MAX, f64::min);
        Some(Comparison {
            name,
            what,
            against,
            figure,
            product: median(counted.iter().map(|round| round.product))?,
            raw: median(counted.iter().map(|round| round.raw))?,
            ratio,
            rounds: usable.len(),
            void: usable.len() - quiet.len(),
            others: usable.iter().map(|round| round.others).sum::<f64>() / usable.len() as f64,
            spread: (high - low) / ratio,
        })
    }

    /// The line of the report.
    #[must_use]
    pub fn sentence(&self) -> String {
        // The quotient of the two medians shown is another number.
        let rounds = match self.rounds - self.void {
            1 => "one round".to_owned(),
            0 => format!("median of the ratios of {} disturbed rounds", self.rounds),
            n => format!("median of the ratios of {n} rounds"),
        };
        format!(
            "{} {} = {} {} ({}; {rounds}, {})",
            self.what,
            self.figure.show(self.product),
            units::ratio(self.ratio),
            self.against,
            self.figure.show(self.raw),
            self.figure.better(),
        )
    }

    /// What to think of it if the machine was not quiet.
    #[must_use]
    pub fn noise(&self) -> Option<String> {
        if self.void * 2 > self.rounds {
            return Some(format!(
                "too noisy to judge: {} of {} rounds were disturbed, other processes used {:.0} % of \
                 the CPUs; stop what else runs here and repeat",
                self.void,
                self.rounds,
                self.others * 100.0
            ));
        }
        (self.spread > SPREAD_MAX).then(|| {
            format!(
                "the ratio varied by {:.0} % between rounds: a noisy machine, repeat before judging",
                self.spread * 100.0
            )
        })
    }
}

/// The middle value, or the mean of the two middle ones.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(rounds: &[(f64, f64)]) -> Comparison {
        let rounds: Vec<Round> = rounds
            .iter()
            .map(|&(product, raw)| Round {
                product,
                raw,
                others: 0.0,
            })
            .collect();
        Comparison::of_rounds(
            "throughput_vs_crossbeam",
            "rate",
            "the crossbeam pipeline",
            Figure::MessagesPerSecond,
            &rounds,
        )
        .unwrap()
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_the_medians() {
        let quiet = compare(&[
            (10.0, 10.0),
            (12.0, 10.0),
            (9.0, 9.0),
            (8.0, 10.0),
            (11.0, 11.0),
        ]);
        assert!((quiet.ratio - 1.0).abs() < 1e-9);
        assert!(quiet.sentence().contains("= 1.00 x the crossbeam pipeline"));
        assert_eq!(quiet.void, 0);
    }

    #[test]
    fn a_round_in_which_the_raw_figure_was_disturbed_does_not_count() {
        let disturbed = compare(&[(10.0, 10.0), (10.0, 2.0), (10.0, 10.0), (10.0, 10.0)]);
        assert_eq!((disturbed.void, disturbed.rounds), (1, 4));
        assert!((disturbed.ratio - 1.0).abs() < 1e-9);
        assert_eq!(disturbed.noise(), None);
    }

    #[test]
    fn the_figures_beside_a_ratio_are_of_the_rounds_that_made_it() {
        let shown = compare(&[(50.0, 10.0), (50.0, 10.0), (9_000.0, 90.0)]);
        assert_eq!((shown.void, shown.rounds), (1, 3));
        let line = shown.sentence();
        assert!(line.starts_with("rate 50.0 msg/s = 5.00 x "), "{line}");
        assert!(
            line.contains("(10.0 msg/s; median of the ratios of 2 rounds"),
            "{line}"
        );
    }

    #[test]
    fn noise_is_said_and_more_than_half_void_is_no_judgement() {
        let varied = compare(&[(10.0, 10.0), (14.0, 10.0), (10.0, 10.0)]);
        assert!(varied.noise().unwrap().contains("varied by 40 %"));
        let void = compare(&[(1.0, 1.0), (1.0, 5.0), (1.0, 10.0), (1.0, 100.0)]);
        assert!(void.noise().unwrap().contains("too noisy to judge"));
    }

    #[test]
    fn a_round_beside_busy_neighbours_does_not_count() {
        let rounds = [(10.0, 0.0), (10.0, 0.05), (5.0, 0.5)].map(|(product, others)| Round {
            product,
            raw: 10.0,
            others,
        });
        let figure = Figure::MessagesPerSecond;
        let judged = Comparison::of_rounds("a", "rate", "b", figure, &rounds).unwrap();
        assert_eq!((judged.void, judged.noise()), (1, None));
        assert!((judged.ratio - 1.0).abs() < 1e-9);
        let busy = rounds.map(|round| Round {
            others: 0.4,
            ..round
        });
        let judged = Comparison::of_rounds("a", "rate", "b", figure, &busy).unwrap();
        assert!(
            judged
                .noise()
                .unwrap()
                .contains("other processes used 40 %")
        );
    }

    #[test]
    fn no_usable_round_gives_no_comparison() {
        let figure = Figure::LatencyNs;
        assert_eq!(Comparison::of_rounds("a", "b", "c", figure, &[]), None);
        let nothing = Round {
            product: 0.0,
            raw: 1.0,
            others: 0.0,
        };
        assert_eq!(
            Comparison::of_rounds("a", "b", "c", figure, &[nothing]),
            None
        );
    }
}
