//! The report as one page that needs nothing else: no script, no style sheet, no picture file.

use std::fmt::Write as _;

use pelton_metrics::Histogram;

use crate::{
    hgrm,
    report::{Part, Report},
    table, units,
};

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1d2733;--soft:#5b6875;--line:#d5dbe1;--paper:#fff;--bad:#b3261e;\
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#cc79a7;--c4:#b08900;--c5:#56b4e9}\
@media(prefers-color-scheme:dark){:root{--ink:#e4e9ee;--soft:#98a4b0;--line:#36414c;--paper:#14191f;--bad:#ff8a80;\
--c0:#56b4e9;--c1:#f0904a;--c2:#2fc99a;--c3:#e3a5c7;--c4:#e5c04b;--c5:#8fd0f5}}\
body{margin:2rem auto;max-width:60rem;padding:0 1rem;background:var(--paper);color:var(--ink);\
font:16px/1.5 system-ui,sans-serif}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2rem 0 .2rem}p{margin:.2rem 0}.soft{color:var(--soft)}\
.bad{color:var(--bad);font-weight:600}table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.6rem 0}\
th,td{padding:.15rem .8rem .15rem 0;text-align:right;border-bottom:1px solid var(--line)}\
th{color:var(--soft);font-weight:500}th:first-child,td:first-child{text-align:left}\
.wide{overflow-x:auto}svg{width:100%;height:auto;margin:1rem 0}svg text{fill:var(--soft);font-size:13px}";

impl Report {
    /// One HTML page with a percentile plot, all figures and the verdict.
    #[must_use]
    pub fn html(&self) -> String {
        let mut body = String::new();
        let title = format!("pelton bench {}", self.scenario);
        let _ = write!(body, "<h1>{}</h1>", escape(&title));
        let facts = format!(
            "{} engine, {} shard{}",
            self.target,
            self.shards,
            if self.shards == 1 { "" } else { "s" }
        );
        let _ = write!(body, "<p class=soft>{}</p>", escape(&facts));
        let violations = self.violations();
        if violations.is_empty() {
            body.push_str("<p>Nothing lost, doubled or out of order; no permit overrun.</p>");
        }
        for violation in violations {
            let _ = write!(body, "<p class=bad>BROKEN: {}</p>", escape(&violation));
        }
        body.push_str(&plot(&self.series()));
        for part in &self.parts {
            part_html(&mut body, part);
        }
        body.push_str("<h2>Host</h2><div class=wide><table>");
        for (fact, value) in &self.host {
            let _ = write!(body, "<tr><td>{}<td>{}", escape(fact), escape(value));
        }
        body.push_str("</table></div>");
        format!(
            "<!doctype html><html lang=en><meta charset=utf-8>\
             <meta name=viewport content=\"width=device-width,initial-scale=1\">\
             <title>{}</title><style>{STYLE}</style><body>{body}</body></html>\n",
            escape(&title)
        )
    }

    fn series(&self) -> Vec<(String, &Histogram)> {
        let named = |part: &Part, label: &str| match self.parts.len() {
            1 => label.to_owned(),
            _ => format!("{}: {label}", part.name),
        };
        self.parts
            .iter()
            .flat_map(|part| {
                part.latencies()
                    .map(move |(label, histogram)| (named(part, label), histogram))
            })
            .collect()
    }
}

fn part_html(body: &mut String, part: &Part) {
    let _ = write!(
        body,
        "<h2>{}</h2><p>{}</p><p class=soft>{}</p>",
        escape(part.name),
        escape(&part.title),
        escape(part.meaning)
    );
    if part.latencies().next().is_some() {
        body.push_str("<div class=wide><table><tr><th>latency");
        for head in ["p50", "p90", "p99", "p99.9", "p99.99", "max", "samples"] {
            let _ = write!(body, "<th>{head}");
        }
        for (label, histogram) in part.latencies() {
            latency_row(body, label, histogram);
        }
        body.push_str("</table></div>");
    }
    let mut say = |label: &str, text: &str| {
        let _ = write!(body, "<p><b>{}</b> {}</p>", escape(label), escape(text));
    };
    say("rate", &table::rate_text(part));
    part.figures
        .iter()
        .for_each(|(label, value)| say(label, value));
    for comparison in &part.comparisons {
        say("ratio", &comparison.sentence());
        comparison
            .noise()
            .iter()
            .for_each(|noise| say("note", noise));
    }
    part.lag
        .sentence()
        .iter()
        .for_each(|sentence| say("schedule", sentence));
    part.notes.iter().for_each(|note| say("note", note));
    say("checked", &table::checked_text(&part.verdict));
}

fn latency_row(body: &mut String, label: &str, histogram: &Histogram) {
    let summary = histogram.summary();
    if summary.count == 0 {
        return;
    }
    let _ = write!(body, "<tr><td>{}", escape(&label.replace('_', " ")));
    let quantiles = [
        summary.p50,
        summary.p90,
        summary.p99,
        summary.p999,
        summary.p9999,
    ];
    for quantile in quantiles.into_iter().chain([Some(summary.max)]) {
        let _ = write!(
            body,
            "<td>{}",
            quantile.map_or_else(|| "-".into(), units::duration)
        );
    }
    let _ = write!(body, "<td>{}", units::count(summary.count));
}

/// The picture's size and the margins around the plot, in its own units.
const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 45.0;

/// Latency over percentile, both logarithmic: the tail gets as much room as the bulk.
fn plot(series: &[(String, &Histogram)]) -> String {
    let curves: Vec<(&str, Vec<hgrm::Point>)> = series
        .iter()
        .map(|(label, histogram)| (label.as_str(), hgrm::points(histogram)))
        .filter(|(_, points)| !points.is_empty())
        .collect();
    if curves.is_empty() {
        return String::new();
    }
    let all = || curves.iter().flat_map(|(_, points)| points);
    // Whole decades, at least one of them.
    let low = all()
        .map(|p| (p.value_ns.max(1) as f64).log10())
        .fold(f64::MAX, f64::min)
        .floor();
    let high = all()
        .map(|p| (p.value_ns.max(1) as f64).log10())
        .fold(low + 1.0, f64::max)
        .ceil();
    let nines = all().map(nines).fold(2.0, f64::max).ceil();
    let x = |nines_here: f64| LEFT + nines_here / nines * (WIDTH - LEFT - RIGHT);
    let y = |log10: f64| HEIGHT - BOTTOM - (log10 - low) / (high - low) * (HEIGHT - TOP - BOTTOM);

    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=img aria-label=\"latency by percentile\">"
    );
    let mut decade = low;
    while decade <= high {
        let _ = write!(
            svg,
            "<path d=\"M{LEFT} {0:.1}H{1}\" stroke=\"var(--line)\"/>\
             <text x={2} y={3:.1} text-anchor=end>{4}</text>",
            y(decade),
            WIDTH - RIGHT,
            LEFT - 8.0,
            y(decade) + 4.0,
            units::duration(10_f64.powf(decade) as u64)
        );
        decade += 1.0;
    }
    let mut tick = 0.0;
    while tick <= nines {
        let _ = write!(
            svg,
            "<path d=\"M{0:.1} {TOP}V{1}\" stroke=\"var(--line)\"/>\
             <text x={0:.1} y={2} text-anchor=middle>{3}</text>",
            x(tick),
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0,
            percentile_label(tick)
        );
        tick += 1.0;
    }
    for (i, (label, points)) in curves.iter().enumerate() {
        curve(&mut svg, i, label, points, &x, &y);
    }
    let _ = write!(
        svg,
        "<text x={LEFT} y={}>percentile</text></svg>",
        HEIGHT - 8.0
    );
    svg
}

fn curve(
    svg: &mut String,
    i: usize,
    label: &str,
    points: &[hgrm::Point],
    x: &dyn Fn(f64) -> f64,
    y: &dyn Fn(f64) -> f64,
) {
    let colour = format!("var(--c{})", i % 6);
    // Past six curves a second pattern tells equal colours apart.
    let dash = if i < 6 {
        ""
    } else {
        " stroke-dasharray=\"6 4\""
    };
    let mut path = String::new();
    for (n, point) in points.iter().enumerate() {
        let command = if n == 0 { 'M' } else { 'L' };
        let log10 = (point.value_ns.max(1) as f64).log10();
        let _ = write!(path, "{command}{:.1} {:.1}", x(nines(point)), y(log10));
    }
    let label = escape(label);
    let _ = write!(
        svg,
        "<path d=\"{path}\" fill=none stroke=\"{colour}\" stroke-width=2{dash}><title>{label}</title></path>\
         <rect x={0} y={1} width=12 height=3 fill=\"{colour}\"/><text x={2} y={3}>{label}</text>",
        LEFT + 12.0,
        TOP + 12.0 + 18.0 * i as f64,
        LEFT + 30.0,
        TOP + 18.0 + 18.0 * i as f64,
    );
}

/// 0 at 0 %, 1 at 90 %, 2 at 99 %. The maximum stands where one sample of all would.
fn nines(point: &hgrm::Point) -> f64 {
    let beyond = (1.0 - point.share).max(0.5 / point.samples.max(1) as f64);
    -beyond.log10()
}

fn percentile_label(nines: f64) -> String {
    match nines as u32 {
        0 => "0 %".into(),
        1 => "90 %".into(),
        2 => "99 %".into(),
        n => format!("99.{} %", "9".repeat(n as usize - 2)),
    }
}

/// As text between tags or within quotes of HTML and SVG.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use crate::report::tests::example;

    #[test]
    fn the_page_is_self_contained_and_shows_every_part() {
        let page = example(2).html();
        assert!(page.starts_with("<!doctype html>"));
        for forbidden in ["<script", "http://", "https://", "src=", "NaN", "inf"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert_eq!(
            page.matches("<title>").count(),
            3,
            "the page's and one per curve"
        );
        assert!(page.contains("first: end to end") && page.contains("second: end to end"));
        assert!(page.contains("99.99 %"));
    }

    #[test]
    fn text_from_outside_cannot_become_markup() {
        let mut report = example(1);
        report.parts[0].notes.push("<img onerror=x> & \"y\"".into());
        report.host.insert("<b>".into(), "</table>".into());
        let page = report.html();
        assert!(!page.contains("<img") && !page.contains("<b>:") && page.contains("&lt;img"));
        assert_eq!(page.matches("</table>").count(), 2);
    }

    #[test]
    fn a_run_without_latencies_has_no_plot() {
        let mut report = example(1);
        report.parts[0].end_to_end.clear();
        assert!(!report.html().contains("<svg"));
    }
}
