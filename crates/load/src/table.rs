//! The report as text for a terminal. Colours are ANSI sequences; whoever prints it to something else
//! strips them.

use std::fmt::Write as _;

use pelton_metrics::{Histogram, Summary};

use crate::{
    report::{Part, Report},
    units,
    verify::Verdict,
};

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const PLAIN: &str = "\x1b[0m";

/// Width of the first column.
const LABEL: usize = 20;
/// Width of the others: "12.3 us" and a gap.
const CELL: usize = 10;

impl Report {
    /// The whole report, with ANSI colours and a line end.
    #[must_use]
    pub fn table(&self) -> String {
        let mut out = String::new();
        for part in &self.parts {
            part_table(&mut out, part);
            out.push('\n');
        }
        self.limits_line(&mut out);
        if self.interrupted {
            let text = "ended early: these are the figures until then";
            line(&mut out, "interrupted", &format!("{YELLOW}{text}{PLAIN}"));
        }
        self.verdict_line(&mut out);
        out
    }

    fn limits_line(&self, out: &mut String) {
        let limits = &self.limits;
        let mut known = Vec::new();
        if let Some(ns) = limits.ring_rtt_ns_p50 {
            let noisy = match limits.ring_rtt_noisy {
                true => " (noisy: its two threads had to share a CPU)",
                false => "",
            };
            known.push(format!("ring round trip {}{noisy}", units::duration(ns)));
        }
        if let Some(rate) = limits.ring_per_s {
            known.push(format!("rings, two hops {}", units::rate(rate, "msg")));
        }
        if let Some(rate) = limits.crossbeam_pipeline_per_s {
            known.push(format!("crossbeam, two hops {}", units::rate(rate, "msg")));
        }
        if let Some(ns) = limits.fdatasync_ns_p50 {
            known.push(format!("write + fdatasync {}", units::duration(ns)));
        }
        if let Some(rate) = limits.write_bytes_per_s {
            known.push(format!("sequential write {}/s", units::bytes(rate)));
        }
        if let Some(rate) = limits.read_bytes_per_s {
            known.push(format!("O_DIRECT read {}/s", units::bytes(rate)));
        }
        if !known.is_empty() {
            line(out, "this machine", &known.join(", "));
        }
    }

    fn verdict_line(&self, out: &mut String) {
        let violations = self.violations();
        if violations.is_empty() {
            let text =
                format!("{GREEN}nothing lost, doubled or out of order; no permit overrun{PLAIN}");
            line(out, "verdict", &text);
        }
        for violation in violations {
            line(
                out,
                "verdict",
                &format!("{RED}{BOLD}BROKEN{PLAIN}{RED}: {violation}{PLAIN}"),
            );
        }
    }
}

fn part_table(out: &mut String, part: &Part) {
    let _ = writeln!(out, "{BOLD}{}{PLAIN}  {}", part.name, part.title);
    if !part.meaning.is_empty() {
        let _ = writeln!(out, "{DIM}{}{PLAIN}", part.meaning);
    }
    if part.latencies().next().is_some() {
        let _ = write!(out, "{DIM}{:LABEL$}", "");
        for head in ["p50", "p90", "p99", "p99.9", "p99.99", "max"] {
            let _ = write!(out, "{head:>CELL$}");
        }
        let _ = writeln!(out, "{:>14}{PLAIN}", "samples");
        for (label, histogram) in part.latencies() {
            latency_row(out, label, histogram);
        }
    }
    line(out, "rate", &rate_text(part));
    for (label, value) in &part.figures {
        line(out, label, value);
    }
    for comparison in &part.comparisons {
        line(
            out,
            "ratio",
            &format!("{BOLD}{}{PLAIN}", comparison.sentence()),
        );
        if let Some(noise) = comparison.noise() {
            line(out, "", &format!("{YELLOW}{noise}{PLAIN}"));
        }
    }
    if let Some(sentence) = part.lag.sentence() {
        let colour = if part.lag.fell_behind() { YELLOW } else { "" };
        line(out, "schedule", &format!("{colour}{sentence}{PLAIN}"));
    }
    cpu_line(out, part);
    for note in &part.notes {
        line(out, "note", note);
    }
    line(out, "checked", &checked_text(&part.verdict));
}

fn line(out: &mut String, label: &str, text: &str) {
    let _ = writeln!(out, "{label:LABEL$}  {text}");
}

fn latency_row(out: &mut String, label: &str, histogram: &Histogram) {
    let Summary {
        count,
        p50,
        p90,
        p99,
        p999,
        p9999,
        max,
        ..
    } = histogram.summary();
    let _ = write!(out, "{label:LABEL$}");
    for quantile in [p50, p90, p99, p999, p9999, Some(max)] {
        let text = quantile.map_or_else(|| "-".to_owned(), units::duration);
        let _ = write!(out, "{text:>CELL$}");
    }
    let _ = writeln!(out, "{:>14}", units::count(count));
}

pub(crate) fn rate_text(part: &Part) -> String {
    let offered = match part.offered_per_s {
        Some(rate) => format!("offered {}", units::rate(rate, "msg")),
        None => "offered as fast as possible".into(),
    };
    format!(
        "{}, {}/s of payload ({offered}; {} deliveries in {:.1} s)",
        units::rate(part.achieved_per_s, "msg"),
        units::bytes(part.bytes_per_s),
        units::count((part.achieved_per_s * part.seconds).round() as u64),
        part.seconds
    )
}

fn cpu_line(out: &mut String, part: &Part) {
    let mut known = Vec::new();
    if let Some(ns) = part.cpu.shard_busy_ns_per_message {
        known.push(format!(
            "shard busy {} per message",
            units::duration(ns as u64)
        ));
    }
    if let Some(wakeups) = part.cpu.wakeups {
        known.push(format!("{} wake-ups", units::count(wakeups)));
    }
    if let Some(switches) = part.cpu.voluntary_switches {
        known.push(format!("{} voluntary switches", units::count(switches)));
    }
    if !known.is_empty() {
        line(out, "cost", &known.join(", "));
    }
}

pub(crate) fn checked_text(verdict: &Verdict) -> String {
    let subscriptions = match verdict.expected.checked_div(verdict.published) {
        Some(n) if n > 1 => format!(" for each of {n} subscriptions"),
        _ => String::new(),
    };
    let fine = verdict.violations().is_empty();
    let same = if fine && verdict.expected == verdict.acked {
        format!(
            "published {} = delivered = acked{subscriptions}",
            units::count(verdict.published)
        )
    } else {
        format!(
            "published {}{subscriptions}, delivered {}, acked {}",
            units::count(verdict.published),
            units::count(verdict.delivered),
            units::count(verdict.acked)
        )
    };
    format!(
        "{same}; {} lost, {} doubled, {} out of order, permit overrun at most {} (allowed {})",
        units::count(verdict.lost),
        units::count(verdict.duplicated),
        units::count(verdict.out_of_order),
        verdict.permit_overrun_max,
        verdict.permit_overrun_allowed
    )
}

#[cfg(test)]
mod tests {
    use crate::report::tests::example;

    #[test]
    fn the_table_shows_quantiles_rate_ratio_and_verdict() {
        let table = example(1).table();
        for expected in [
            "single-message entries of 64 B",
            "50.0 us   90.0 us",
            "100,000\n",
            "1.00 M msg/s",
            "p50 800 ns = 2.00 x the ring round trip (400 ns; one round, lower is better)",
            "published 100 = delivered = acked for each of 2 subscriptions; 0 lost",
            "ring round trip 400 ns",
            "nothing lost, doubled or out of order",
        ] {
            assert!(table.contains(expected), "{expected:?} is not in\n{table}");
        }
    }

    #[test]
    fn a_broken_promise_is_the_last_thing_said() {
        let mut report = example(1);
        report.parts[0].verdict.lost = 3;
        let table = report.table();
        assert!(table.lines().last().unwrap().contains("BROKEN"), "{table}");
        assert!(!table.contains("nothing lost"));
    }
}
