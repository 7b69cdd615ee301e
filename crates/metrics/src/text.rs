//! The Prometheus page (text format 0.0.4).

use std::fmt::Write;

use crate::{
    counter::{Counter, Unit},
    histogram::Histogram,
    snapshot::ShardMetrics,
};

/// Upper bounds of the buckets in nanoseconds with their text in seconds: 1, 2, 5 x 10^k from 1 us to
/// 10 s. Source: `dispatch.md` section 21. Text, because 2e-6 as a double prints as one pleases.
const BOUNDS: [(u64, &str); 22] = [
    (1_000, "0.000001"),
    (2_000, "0.000002"),
    (5_000, "0.000005"),
    (10_000, "0.00001"),
    (20_000, "0.00002"),
    (50_000, "0.00005"),
    (100_000, "0.0001"),
    (200_000, "0.0002"),
    (500_000, "0.0005"),
    (1_000_000, "0.001"),
    (2_000_000, "0.002"),
    (5_000_000, "0.005"),
    (10_000_000, "0.01"),
    (20_000_000, "0.02"),
    (50_000_000, "0.05"),
    (100_000_000, "0.1"),
    (200_000_000, "0.2"),
    (500_000_000, "0.5"),
    (1_000_000_000, "1"),
    (2_000_000_000, "2"),
    (5_000_000_000, "5"),
    (10_000_000_000, "10"),
];

/// The type of a family of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Buckets, a sum and a count.
    Histogram,
}

/// A page under construction: a family, then its samples, then the next family.
///
/// Label values may hold anything; they are escaped. Names come from tables of ours and are not.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
    family: &'static str,
}

impl Page {
    /// An empty page.
    #[must_use]
    pub fn new() -> Page {
        Page::default()
    }

    /// Begins a family: its HELP and TYPE lines. Samples that follow belong to it.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.family = name;
        self.push("# HELP ");
        self.push(name);
        self.push(" ");
        self.escape(help, false);
        self.push("\n# TYPE ");
        self.push(name);
        self.push(" ");
        self.push(kind);
        self.push("\n");
    }

    /// One sample of a plain number.
    pub fn number(&mut self, labels: &[(&str, &str)], value: u64) {
        self.sample("", labels, None);
        self.line_end(format_args!("{value}"));
    }

    /// One sample of nanoseconds, printed in seconds to the last digit.
    pub fn seconds(&mut self, labels: &[(&str, &str)], value_ns: u128) {
        self.sample("", labels, None);
        self.seconds_end(value_ns);
    }

    /// A histogram: cumulative buckets from 1 us to 10 s, then `+Inf`, sum and count.
    ///
    /// A value counts under a bound if it shares an HDR bucket with it, so up to 1 % above a bound
    /// still counts as within it; `_sum` and `_count` are exact.
    pub fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let mut buckets = histogram.buckets().peekable();
        let mut cumulative = 0_u64;
        for (bound_ns, bound) in BOUNDS {
            while let Some(bucket) = buckets.next_if(|bucket| bucket.low_ns <= bound_ns) {
                cumulative = cumulative.saturating_add(bucket.count);
            }
            self.sample("_bucket", labels, Some(bound));
            self.line_end(format_args!("{cumulative}"));
        }
        self.sample("_bucket", labels, Some("+Inf"));
        self.line_end(format_args!("{}", histogram.count()));
        self.sample("_sum", labels, None);
        self.seconds_end(histogram.sum_ns());
        self.sample("_count", labels, None);
        self.line_end(format_args!("{}", histogram.count()));
    }

    /// The finished text.
    #[must_use]
    pub fn finish(self) -> String {
        self.text
    }

    /// Name, suffix and labels, up to the space before the value.
    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>) {
        self.push(self.family);
        self.push(suffix);
        let mut separator = "{";
        for (name, value) in labels
            .iter()
            .copied()
            .chain(bound.map(|bound| ("le", bound)))
        {
            self.push(separator);
            self.push(name);
            self.push("=\"");
            self.escape(value, true);
            self.push("\"");
            separator = ",";
        }
        if separator == "," {
            self.push("}");
        }
        self.push(" ");
    }

    fn line_end(&mut self, value: std::fmt::Arguments<'_>) {
        self.text
            .write_fmt(value)
            .expect("a string takes everything");
        self.push("\n");
    }

    fn seconds_end(&mut self, ns: u128) {
        self.line_end(format_args!(
            "{}.{:09}",
            ns / 1_000_000_000,
            ns % 1_000_000_000
        ));
    }

    fn escape(&mut self, text: &str, quotes: bool) {
        for c in text.chars() {
            match c {
                '\\' => self.push("\\\\"),
                '\n' => self.push("\\n"),
                '"' if quotes => self.push("\\\""),
                _ => self.text.push(c),
            }
        }
    }

    fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }
}

/// The families every shard has, for the given shards by number. Every series is there, zero or not.
#[must_use]
pub fn shard_page(shards: &[(u32, &ShardMetrics)]) -> String {
    let shards: Vec<(String, &ShardMetrics)> = shards
        .iter()
        .map(|(shard, metrics)| (shard.to_string(), *metrics))
        .collect();
    let mut page = Page::new();
    counters(&mut page, &shards);
    histograms(&mut page, &shards);
    page.finish()
}

fn counters(page: &mut Page, shards: &[(String, &ShardMetrics)]) {
    let mut previous = "";
    for &counter in Counter::ALL {
        if counter.name() != previous {
            previous = counter.name();
            page.family(counter.name(), Kind::Counter, counter.help());
        }
        for (shard, metrics) in shards {
            let both = [
                ("shard", shard.as_str()),
                counter.label().unwrap_or_default(),
            ];
            let labels = if counter.label().is_some() {
                &both[..]
            } else {
                &both[..1]
            };
            let value = metrics.counters.get(counter);
            match counter.unit() {
                Unit::Count => page.number(labels, value),
                Unit::Nanos => page.seconds(labels, u128::from(value)),
            }
        }
    }
}

fn histograms(page: &mut Page, shards: &[(String, &ShardMetrics)]) {
    type Get = fn(&ShardMetrics) -> &Histogram;
    const FAMILIES: [(&str, &str, Get); 3] = [
        (
            "pelton_turn_seconds",
            "Length of a turn that did something.",
            |m| &m.turn,
        ),
        ("pelton_sync_seconds", "Length of a disk sync.", |m| &m.sync),
        ("pelton_read_seconds", "Length of a disk read.", |m| &m.read),
    ];
    const CLAMPED: &str = "Values above 60 s, counted in the top bucket, by histogram.";

    for (name, help, get) in FAMILIES {
        page.family(name, Kind::Histogram, help);
        for (shard, metrics) in shards {
            page.histogram(&[("shard", shard)], get(metrics));
        }
    }
    page.family(
        "pelton_lane_wait_seconds",
        Kind::Histogram,
        "Wait of an item in its lane.",
    );
    for (shard, metrics) in shards {
        page.histogram(
            &[("shard", shard), ("lane", "control")],
            &metrics.control_wait,
        );
    }
    page.family("pelton_clamped_values_total", Kind::Counter, CLAMPED);
    for (shard, metrics) in shards {
        for (name, _, get) in FAMILIES {
            page.number(
                &[("shard", shard), ("histogram", name)],
                get(metrics).clamped(),
            );
        }
        page.number(
            &[("shard", shard), ("histogram", "control_wait")],
            metrics.control_wait.clamped(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_announces_a_family_once_and_then_lists_its_samples() {
        let mut page = Page::new();
        page.family(
            "pelton_x",
            Kind::Gauge,
            "Two\nlines with \\ and \"quotes\".",
        );
        page.number(&[], 7);
        page.number(&[("topic", "a\\b\"c\nd"), ("é", "ü")], u64::MAX);
        page.seconds(&[("k", "v")], 1);
        assert_eq!(
            page.finish(),
            "# HELP pelton_x Two\\nlines with \\\\ and \"quotes\".\n\
             # TYPE pelton_x gauge\n\
             pelton_x 7\n\
             pelton_x{topic=\"a\\\\b\\\"c\\nd\",é=\"ü\"} 18446744073709551615\n\
             pelton_x{k=\"v\"} 0.000000001\n"
        );
    }

    #[test]
    fn buckets_are_cumulative_and_a_value_on_a_bound_is_within_it() {
        let mut histogram = Histogram::new(2);
        for (bound_ns, _) in BOUNDS {
            histogram.record(bound_ns);
        }
        histogram.record(0);
        histogram.record(u64::MAX);
        let mut page = Page::new();
        page.family("h", Kind::Histogram, "H.");
        page.histogram(&[("stage", "read")], &histogram);
        let text = page.finish();
        for (i, (_, bound)) in BOUNDS.iter().enumerate() {
            let line = format!("h_bucket{{stage=\"read\",le=\"{bound}\"}} {}\n", i + 2);
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(text.contains("h_bucket{stage=\"read\",le=\"+Inf\"} 24\n"));
        assert!(
            text.contains("h_sum{stage=\"read\"} 18446744092.598439615\n"),
            "{text}"
        );
        assert!(text.contains("h_count{stage=\"read\"} 24\n"));
    }

    #[test]
    fn the_text_of_every_bound_is_its_value_in_seconds() {
        for (bound_ns, text) in BOUNDS {
            let seconds: f64 = text.parse().unwrap();
            assert_eq!((seconds * 1e9).round() as u64, bound_ns);
        }
        assert!(BOUNDS.is_sorted());
    }

    #[test]
    fn every_line_of_a_shards_page_belongs_to_the_family_announced_last() {
        let mut shard = ShardMetrics::new();
        shard.turn.record(u64::MAX);
        let page = shard_page(&[(0, &shard), (1, &ShardMetrics::new())]);
        let mut family = "";
        let mut announced = Vec::new();
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                family = rest.split(' ').next().unwrap();
                assert!(!announced.contains(&family), "{family} is announced twice");
                announced.push(family);
            } else if !line.starts_with("# TYPE ") {
                let rest = line.strip_prefix(family).expect(line);
                let suffix = rest.split('{').next().unwrap();
                assert!(
                    ["", "_bucket", "_sum", "_count"].contains(&suffix),
                    "{line}"
                );
                let (_, value) = line.rsplit_once(' ').unwrap();
                assert!(value.parse::<f64>().is_ok_and(|v| v >= 0.0), "{line}");
            }
        }
        assert!(page.contains(
            "pelton_clamped_values_total{shard=\"0\",histogram=\"pelton_turn_seconds\"} 1\n"
        ));
        assert!(page.contains("pelton_sync_seconds_bucket{shard=\"1\",le=\"1\"} 0\n"));
    }
}
