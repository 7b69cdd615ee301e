//! What a run found: for people by [`crate::table`], for programs as one JSON object.
//!
//! Schema 1. Durations are integers in nanoseconds, rates are per second, ratios say which figure of
//! the engine stands over which limit of the machine. A quantile with fewer than 10 samples above it
//! is `null`, and so is whatever a scenario has no figure for.

use std::collections::BTreeMap;

use pelton_metrics::{Histogram, Summary};
use serde::Serialize;

use crate::{DIGITS, compare::Comparison, schedule::Lag, verify::Verdict};

/// One measured part of a run. Most scenarios have one; `synced` and the mix have several.
#[derive(Clone, Debug)]
pub struct Part {
    /// Name in reports.
    pub name: &'static str,
    /// The shape of the load in one line.
    pub title: String,
    /// What the figures mean, for a newcomer.
    pub meaning: &'static str,
    /// Durability of its topics.
    pub durability: &'static str,
    /// Length of the measured time, raw rounds not counted.
    pub seconds: f64,
    /// Lost, doubled, out of order, overrun.
    pub verdict: Verdict,
    /// Messages per second the schedule asked for; `None` for as fast as possible.
    pub offered_per_s: Option<f64>,
    /// Messages delivered per second, over all subscriptions.
    pub achieved_per_s: f64,
    /// Bytes of payload delivered per second.
    pub bytes_per_s: f64,
    /// Intended send time to receipt of the message by its consumer.
    pub end_to_end: Histogram,
    /// Intended send time to the producer's receipt.
    pub publish_receipt: Histogram,
    /// A control request to its answer.
    pub control: Histogram,
    /// The same under other names, for scenarios that compare two ways.
    pub others: Vec<(&'static str, Histogram)>,
    /// The engine beside the machine.
    pub comparisons: Vec<Comparison>,
    /// How late the generator was.
    pub lag: Lag,
    /// What else is to be said.
    pub notes: Vec<String>,
    /// Other figures with a unit, already for people.
    pub figures: Vec<(&'static str, String)>,
    /// What it cost.
    pub cpu: Cpu,
}

impl Part {
    /// An empty part.
    #[must_use]
    pub fn new(name: &'static str, durability: &'static str) -> Part {
        let empty = || Histogram::new(DIGITS);
        Part {
            name,
            title: String::new(),
            meaning: "",
            durability,
            seconds: 0.0,
            verdict: Verdict::default(),
            offered_per_s: None,
            achieved_per_s: 0.0,
            bytes_per_s: 0.0,
            end_to_end: empty(),
            publish_receipt: empty(),
            control: empty(),
            others: Vec::new(),
            comparisons: Vec::new(),
            lag: Lag::new(),
            notes: Vec::new(),
            figures: Vec::new(),
            cpu: Cpu::default(),
        }
    }

    /// Every latency that has samples, in nanoseconds, with its label.
    pub fn latencies(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        [
            ("end to end", &self.end_to_end),
            ("publish -> receipt", &self.publish_receipt),
            ("control", &self.control),
        ]
        .into_iter()
        .chain(
            self.others
                .iter()
                .map(|(label, histogram)| (*label, histogram)),
        )
        .filter(|(_, histogram)| histogram.count() > 0)
    }
}

/// What the run cost the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Cpu {
    /// Time of turns that did something, per message published, in nanoseconds.
    pub shard_busy_ns_per_message: Option<f64>,
    /// Times the shard threads gave up their CPU of their own accord.
    pub voluntary_switches: Option<u64>,
    /// Sleeps of the shards that a notification ended.
    pub wakeups: Option<u64>,
}

/// What the machine itself can do, measured in the same run; `None` where a scenario has no use for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Limits {
    /// A message over one SPSC ring and back over another, two spinning threads: median.
    pub ring_rtt_ns_p50: Option<u64>,
    /// True if those threads did not have a CPU each, so that it is the scheduler's figure.
    pub ring_rtt_noisy: bool,
    /// Messages per second from a thread over one SPSC ring to a second thread and back over another.
    pub ring_per_s: Option<f64>,
    /// Messages per second from a thread over a bounded crossbeam channel to a second thread and back
    /// over another: the hops of a published and delivered message.
    pub crossbeam_pipeline_per_s: Option<f64>,
    /// One 4 KiB write and fdatasync over blocks written before: median.
    pub fdatasync_ns_p50: Option<u64>,
    /// Sequential write with a sync each 4 MiB.
    pub write_bytes_per_s: Option<f64>,
    /// O_DIRECT reads, 4 of 256 KiB in flight.
    pub read_bytes_per_s: Option<f64>,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Scenario by its name on the command line.
    pub scenario: &'static str,
    /// What was driven.
    pub target: &'static str,
    /// Shards of the engine.
    pub shards: usize,
    /// The file that was replayed.
    pub input: Option<String>,
    /// True if it was ended early; parts that had not measured anything are left out.
    pub interrupted: bool,
    /// In the order they ran; never empty.
    pub parts: Vec<Part>,
    /// Index of the part whose rate stands for the run.
    pub headline: usize,
    /// The machine's own limits.
    pub limits: Limits,
    /// The host, by fact.
    pub host: BTreeMap<String, String>,
}

impl Report {
    /// Everything all parts promised and broke; empty if the run is fine.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        self.verdict().violations()
    }

    /// All parts together.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let mut all = Verdict::default();
        self.parts.iter().for_each(|part| all.merge(&part.verdict));
        all
    }

    /// The latency that a percentile plot of the run shows first.
    #[must_use]
    pub fn main_latency(&self) -> Option<(&'static str, &Histogram)> {
        let headline = &self.parts[self.headline];
        let control = self.parts.iter().find(|part| part.control.count() > 0);
        match control {
            Some(part) if self.scenario == "control" => Some(("control", &part.control)),
            _ => headline
                .latencies()
                .next()
                .or_else(|| self.parts.iter().find_map(|part| part.latencies().next())),
        }
    }

    /// One JSON object, schema 1, with a line end.
    ///
    /// A run of several parts sums their messages and gives the latencies of the first part that has
    /// them and the rate of its headline part; `parts` then holds one object of the same shape each.
    #[must_use]
    pub fn json(&self) -> String {
        let headline = &self.parts[self.headline];
        let mut object = self.object(headline, self.scenario);
        let verdict = self.verdict();
        object.messages = Messages::of(&verdict);
        object.seconds = self.parts.iter().map(|part| part.seconds).sum();
        object.ratio = self.parts.iter().flat_map(ratios).collect();
        object.host = Some(&self.host);
        object.interrupted = self.interrupted;
        let first = |pick: fn(&Part) -> &Histogram| self.parts.iter().map(pick).find_map(summary);
        object.latency_ns.end_to_end = first(|part| &part.end_to_end);
        object.latency_ns.publish_receipt = first(|part| &part.publish_receipt);
        object.latency_ns.control = first(|part| &part.control);
        if self.parts.len() > 1 {
            let parts = self.parts.iter().map(|part| self.object(part, part.name));
            object.parts = parts.collect();
        }
        let mut text = serde_json::to_string_pretty(&object)
            .expect("numbers, strings and maps with string keys");
        text.push('\n');
        text
    }

    fn object<'a>(&'a self, part: &'a Part, name: &'a str) -> Object<'a> {
        Object {
            schema: 1,
            scenario: name,
            target: self.target,
            shards: self.shards,
            durability: part.durability,
            input: self.input.as_deref(),
            interrupted: false,
            seconds: part.seconds,
            messages: Messages::of(&part.verdict),
            rate: Rate {
                offered_per_s: part.offered_per_s,
                achieved_per_s: part.achieved_per_s,
                bytes_per_s: part.bytes_per_s,
            },
            latency_ns: LatencyNs {
                end_to_end: summary(&part.end_to_end),
                publish_receipt: summary(&part.publish_receipt),
                control: summary(&part.control),
            },
            limits: self.limits,
            ratio: ratios(part).collect(),
            cpu: part.cpu,
            host: None,
            parts: Vec::new(),
        }
    }
}

fn ratios(part: &Part) -> impl Iterator<Item = (&'static str, f64)> {
    part.comparisons
        .iter()
        .map(|comparison| (comparison.name, comparison.ratio))
}

fn summary(histogram: &Histogram) -> Option<Quantiles> {
    (histogram.count() > 0).then(|| histogram.summary().into())
}

#[derive(Serialize)]
struct Object<'a> {
    schema: u32,
    scenario: &'a str,
    target: &'a str,
    shards: usize,
    durability: &'a str,
    input: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    interrupted: bool,
    seconds: f64,
    messages: Messages,
    rate: Rate,
    latency_ns: LatencyNs,
    limits: Limits,
    ratio: BTreeMap<&'static str, f64>,
    cpu: Cpu,
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Object<'a>>,
}

/// With several subscriptions `delivered` and `acked` are per subscription, as `published` is: what
/// the run had in all, divided by what each had to be given, times what was published.
#[derive(Serialize)]
struct Messages {
    published: u64,
    delivered: u64,
    acked: u64,
    lost: u64,
    duplicated: u64,
    out_of_order: u64,
    permit_overrun_max: u64,
}

impl Messages {
    fn of(verdict: &Verdict) -> Messages {
        // Equal counts must stay equal and one message short must show: whole subscriptions are
        // taken off, the rest is what is missing.
        let per_subscription = |count: u64| {
            let missing = verdict.expected.saturating_sub(count);
            verdict.published.saturating_sub(missing)
        };
        Messages {
            published: verdict.published,
            delivered: per_subscription(verdict.delivered),
            acked: per_subscription(verdict.acked),
            lost: verdict.lost,
            duplicated: verdict.duplicated,
            out_of_order: verdict.out_of_order,
            permit_overrun_max: verdict.permit_overrun_max,
        }
    }
}

#[derive(Serialize)]
struct Rate {
    offered_per_s: Option<f64>,
    achieved_per_s: f64,
    bytes_per_s: f64,
}

#[derive(Serialize)]
struct LatencyNs {
    end_to_end: Option<Quantiles>,
    publish_receipt: Option<Quantiles>,
    control: Option<Quantiles>,
}

#[derive(Serialize)]
struct Quantiles {
    count: u64,
    min: u64,
    p50: Option<u64>,
    p90: Option<u64>,
    p99: Option<u64>,
    p999: Option<u64>,
    p9999: Option<u64>,
    max: u64,
}

impl From<Summary> for Quantiles {
    fn from(summary: Summary) -> Quantiles {
        let Summary {
            count,
            min,
            p50,
            p90,
            p99,
            p999,
            p9999,
            max,
        } = summary;
        Quantiles {
            count,
            min,
            p50,
            p90,
            p99,
            p999,
            p9999,
            max,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::compare::{Figure, Round};

    pub(crate) fn example(parts: usize) -> Report {
        let part = |i: usize| {
            let mut part = Part::new(if i == 0 { "first" } else { "second" }, "memory");
            part.title = "single-message entries of 64 B".into();
            part.meaning = "how fast it goes";
            part.seconds = 1.5;
            part.achieved_per_s = 1e6 * (i + 1) as f64;
            part.bytes_per_s = 64e6;
            for ns in 1..=100_000_u64 {
                part.end_to_end.record(ns * (i as u64 + 1));
            }
            part.verdict = Verdict {
                published: 100,
                expected: 200,
                delivered: 200,
                acked: 200,
                ..Verdict::default()
            };
            part.comparisons.extend(Comparison::of_rounds(
                ["first_vs_ring", "second_vs_ring"][i],
                "p50",
                "the ring round trip",
                Figure::LatencyNs,
                &[Round {
                    product: 800.0,
                    raw: 400.0,
                    others: 0.0,
                }],
            ));
            part
        };
        Report {
            scenario: "example",
            target: "embedded",
            shards: 1,
            input: None,
            interrupted: false,
            parts: (0..parts).map(part).collect(),
            headline: parts - 1,
            limits: Limits {
                ring_rtt_ns_p50: Some(400),
                ..Limits::default()
            },
            host: [("kernel".to_owned(), "6.18".to_owned())].into(),
        }
    }

    #[test]
    fn the_json_object_has_the_agreed_keys_in_the_agreed_order() {
        let text = example(1).json();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut at = 0;
        for key in [
            "schema",
            "scenario",
            "target",
            "shards",
            "durability",
            "input",
            "seconds",
            "messages",
            "rate",
            "latency_ns",
            "limits",
            "ratio",
            "cpu",
            "host",
        ] {
            let found = text
                .find(&format!("\n  \"{key}\": "))
                .unwrap_or_else(|| panic!("{key}"));
            assert!(found >= at, "{key} is out of place");
            at = found;
        }
        assert_eq!(value.as_object().unwrap().len(), 14, "and no others");
        let keys = |v: &serde_json::Value| {
            v.as_object()
                .unwrap()
                .keys()
                .cloned()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            keys(&value["messages"]),
            "acked delivered duplicated lost out_of_order permit_overrun_max published"
        );
        assert_eq!(
            keys(&value["rate"]),
            "achieved_per_s bytes_per_s offered_per_s"
        );
        assert_eq!(
            keys(&value["latency_ns"]),
            "control end_to_end publish_receipt"
        );
        assert_eq!(
            keys(&value["latency_ns"]["end_to_end"]),
            "count max min p50 p90 p99 p999 p9999"
        );
        assert_eq!(
            keys(&value["limits"]),
            "crossbeam_pipeline_per_s fdatasync_ns_p50 read_bytes_per_s ring_per_s \
             ring_rtt_noisy ring_rtt_ns_p50 write_bytes_per_s"
        );
        assert_eq!(
            keys(&value["cpu"]),
            "shard_busy_ns_per_message voluntary_switches wakeups"
        );
        assert_eq!(value["ratio"]["first_vs_ring"], 2.0);
        assert_eq!(value["limits"]["read_bytes_per_s"], serde_json::Value::Null);
    }

    #[test]
    fn an_interruption_shows() {
        let mut report = example(1);
        report.interrupted = true;
        let value: serde_json::Value = serde_json::from_str(&report.json()).unwrap();
        assert_eq!(value["interrupted"], true);
    }

    #[test]
    fn several_parts_sum_their_messages_and_keep_their_own_objects() {
        let value: serde_json::Value = serde_json::from_str(&example(2).json()).unwrap();
        assert_eq!(value["messages"]["published"], 200);
        assert_eq!(value["messages"]["delivered"], 200);
        assert_eq!(value["rate"]["achieved_per_s"], 2e6);
        // Latencies of the first part that has them: parts are not thrown into one histogram.
        assert_eq!(value["latency_ns"]["end_to_end"]["max"], 100_000);
        assert_eq!(value["parts"][1]["scenario"], "second");
        assert_eq!(
            value["parts"][1]["latency_ns"]["end_to_end"]["max"],
            200_000
        );
        assert_eq!(value["ratio"].as_object().unwrap().len(), 2);
    }

    #[test]
    fn one_message_missing_in_one_of_ten_subscriptions_shows() {
        let verdict = Verdict {
            published: 50,
            expected: 500,
            delivered: 499,
            acked: 500,
            lost: 1,
            ..Verdict::default()
        };
        let messages = Messages::of(&verdict);
        assert_eq!(
            (messages.published, messages.delivered, messages.acked),
            (50, 49, 50)
        );
    }
}
