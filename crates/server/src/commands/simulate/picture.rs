//! Load of each shard over the rounds, as SVG: one panel per run. It stands alone, in light and in
//! dark surroundings.

use std::fmt::Write as _;

use pelton_balance::simulate::{FluidRound, Run};
use pelton_load::escape;

use super::{Played, issue};

/// Colours that also the colour-blind tell apart (Okabe and Ito), brighter on dark ground. Plain
/// classes, because not every viewer knows variables.
const STYLE: &str = "\
text{font-family:system-ui,sans-serif;font-size:13px;fill:#5b6875}.title{font-size:15px;font-weight:600;fill:#1d2733}\
.paper{fill:#fff}.grid{stroke:#d5dbe1}.line{fill:none;stroke-width:2;stroke-linejoin:round}.many{stroke-width:1}\
.score{stroke-dasharray:2 4}.twice{stroke-dasharray:8 4}\
.c0{stroke:#0072b2}.c1{stroke:#d55e00}.c2{stroke:#009e73}.c3{stroke:#cc79a7}.c4{stroke:#b08900}.c5{stroke:#56b4e9}\
@media(prefers-color-scheme:dark){text{fill:#98a4b0}.title{fill:#e4e9ee}.paper{fill:#14191f}.grid{stroke:#36414c}\
.c0{stroke:#56b4e9}.c1{stroke:#f0904a}.c2{stroke:#2fc99a}.c3{stroke:#e3a5c7}.c4{stroke:#e5c04b}.c5{stroke:#8fd0f5}}";
const COLOURS: usize = 6;

/// Of all panels in a row, of one panel, and the margins around its plot.
const WIDTH: f64 = 1320.0;
const HEIGHT: f64 = 270.0;
const LEFT: f64 = 44.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 54.0;
/// Above and below all panels.
const HEAD: f64 = 56.0;
const MARGIN: f64 = 12.0;

/// After the last move nothing is to be seen; so many rounds of it are shown.
const TAIL_ROUNDS: usize = 10;
const ROUNDS_MIN: usize = 20;
/// On each scale, besides the one at 0.
const TICKS: usize = 4;
/// Longer titles do not fit.
const TITLE_CHARS: usize = 78;

struct Panel {
    title: String,
    curves: Vec<Curve>,
}

/// One value per round; the first is the start.
struct Curve {
    label: String,
    classes: String,
    points: Vec<f64>,
}

pub(super) fn svg(played: &Played) -> String {
    let last = played.runs.iter().map(|(_, run)| run.last_round() as usize);
    let worked = played.worked.as_ref().map(|worked| &worked.half_gap);
    let last = last.max().unwrap_or(0);
    let last = last.max(worked.map_or(0, |rounds| issue::last_act(rounds)));
    let shown = (last + TAIL_ROUNDS).max(ROUNDS_MIN).next_multiple_of(20);
    let shown = shown.min(played.scenario.rounds as usize);
    let worked = worked.map(|rounds| of_worked(&rounds[..shown]));
    let of_runs = played
        .runs
        .iter()
        .map(|(name, run)| of_run(name, run, shown));
    let panels: Vec<Panel> = worked.into_iter().chain(of_runs).collect();
    let title = format!("{}: {}", played.scenario.name, played.scenario.title);
    let title: String = title.chars().take(TITLE_CHARS).collect();
    page(&title, &panels, shown)
}

fn of_run(strategy: &str, run: &Run, shown: usize) -> Panel {
    let shards = run.final_loads.len();
    let curve = |shard: usize| {
        let start = run.rounds[0].loads[shard];
        let after = run.rounds[..shown].iter().map(|row| row.loads_after[shard]);
        Curve {
            label: format!("shard {shard}"),
            classes: classes(shard, shards),
            points: [start].into_iter().chain(after).collect(),
        }
    };
    Panel {
        title: format!(
            "{strategy}: {} moves, gap {}",
            run.moves().count(),
            super::table::short(run.final_gap())
        ),
        curves: (0..shards).map(curve).collect(),
    }
}

fn of_worked(rounds: &[FluidRound]) -> Panel {
    let curve = |label: &str, shard: usize, more: &str, of: &dyn Fn(&FluidRound) -> f64| Curve {
        label: format!("{label} {shard}"),
        classes: classes(shard, 2) + more,
        points: [[90.0, 10.0][shard]]
            .into_iter()
            .chain(rounds.iter().map(of))
            .collect(),
    };
    let load = |shard: usize| curve("load", shard, "", &|round| round.loads[shard]);
    let score = |shard: usize| curve("score", shard, " score", &|round| round.scores[shard]);
    Panel {
        title: "half the score gap, score with history".into(),
        curves: vec![load(0), load(1), score(0), score(1)],
    }
}

fn classes(shard: usize, shards: usize) -> String {
    let many = if shards > 2 * COLOURS { " many" } else { "" };
    let twice = if shard / COLOURS % 2 == 1 {
        " twice"
    } else {
        ""
    };
    format!("line c{}{many}{twice}", shard % COLOURS)
}

/// What all panels share, so that they can be compared.
struct Frame {
    width: f64,
    rounds: usize,
    /// The load at the upper end.
    top: f64,
}

impl Frame {
    fn x(&self, round: usize) -> f64 {
        let share = round as f64 / self.rounds as f64;
        LEFT + share * (self.width - LEFT - RIGHT)
    }

    fn y(&self, load: f64) -> f64 {
        HEIGHT - BOTTOM - load / self.top * (HEIGHT - TOP - BOTTOM)
    }
}

fn page(title: &str, panels: &[Panel], rounds: usize) -> String {
    let columns = panels.len().min(3);
    let points = panels.iter().flat_map(|panel| &panel.curves);
    let highest = points.flat_map(|curve| curve.points.iter().copied());
    let frame = Frame {
        // One panel need not be as wide as three.
        width: WIDTH / columns.max(2) as f64,
        rounds,
        top: nice(highest.fold(1.0, f64::max)),
    };
    let width = columns as f64 * frame.width + 2.0 * MARGIN;
    let height = panels.len().div_ceil(columns) as f64 * HEIGHT + HEAD + MARGIN;
    let title = escape(title);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" role=\"img\" aria-label=\"{title}\"><style>{STYLE}</style>\
         <rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>\
         <text class=\"title\" x=\"{0}\" y=\"26\">{title}</text>\
         <text x=\"{0}\" y=\"46\">load of each shard in points over rounds; 100 is a full shard</text>\n",
        MARGIN + 4.0
    );
    for (i, panel) in panels.iter().enumerate() {
        let x = MARGIN + (i % columns) as f64 * frame.width;
        let y = HEAD + (i / columns) as f64 * HEIGHT;
        let _ = write!(svg, "<g transform=\"translate({x} {y})\">");
        scales(&mut svg, &frame);
        for curve in &panel.curves {
            draw(&mut svg, curve, &frame);
        }
        let title = escape(&panel.title);
        let _ = write!(
            svg,
            "<text class=\"title\" x=\"{LEFT}\" y=\"20\">{title}</text>"
        );
        legend(&mut svg, panel, &frame);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

fn scales(svg: &mut String, frame: &Frame) {
    for tick in 0..=TICKS {
        let load = frame.top * tick as f64 / TICKS as f64;
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {0:.1}H{1}\"/>\
             <text x=\"{2}\" y=\"{3:.1}\" text-anchor=\"end\">{load}</text>",
            frame.y(load),
            frame.width - RIGHT,
            LEFT - 6.0,
            frame.y(load) + 4.0
        );
        let round = frame.rounds * tick / TICKS;
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{round}</text>",
            frame.x(round),
            HEIGHT - BOTTOM + 17.0
        );
    }
}

fn draw(svg: &mut String, curve: &Curve, frame: &Frame) {
    let mut path = String::new();
    for (round, load) in curve.points.iter().enumerate() {
        let (x, y) = (frame.x(round), frame.y(*load));
        // A step: the load stays until the moves of a round change it.
        let _ = match round {
            0 => write!(path, "M{x:.1} {y:.1}"),
            _ => write!(path, "H{x:.1}V{y:.1}"),
        };
    }
    let (classes, label) = (&curve.classes, &curve.label);
    let _ = write!(
        svg,
        "<path class=\"{classes}\" d=\"{path}\"><title>{label}</title></path>"
    );
}

/// Names the curves in a row below the plot, as long as they fit.
fn legend(svg: &mut String, panel: &Panel, frame: &Frame) {
    if panel.curves.len() > COLOURS {
        return;
    }
    let step = ((frame.width - LEFT) / panel.curves.len() as f64).min(90.0);
    for (i, curve) in panel.curves.iter().enumerate() {
        let (x, y) = (LEFT + step * i as f64, HEIGHT - 18.0);
        let _ = write!(
            svg,
            "<path class=\"{}\" d=\"M{x:.1} {y}h12\"/><text x=\"{:.1}\" y=\"{}\">{}</text>",
            curve.classes,
            x + 15.0,
            y + 4.0,
            curve.label
        );
    }
}

/// The next load above that divides into four readable ticks.
fn nice(highest: f64) -> f64 {
    let mut decade = 1.0;
    loop {
        for step in [1.0, 2.0, 4.0, 8.0, 10.0] {
            if step * decade >= highest {
                return step * decade;
            }
        }
        decade *= 10.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_ends_just_above_the_highest_load_in_four_even_ticks() {
        let table = [
            (1.0, 1.0),
            (50.0, 80.0),
            (90.0, 100.0),
            (125.0, 200.0),
            (400.0, 400.0),
        ];
        for (highest, top) in table {
            assert_eq!(nice(highest), top);
        }
    }

    #[test]
    fn curves_that_share_a_colour_differ_in_their_dashes() {
        assert_eq!(classes(1, 12), "line c1");
        assert_eq!(classes(7, 12), "line c1 twice");
        assert_eq!(classes(12, 13), "line c0 many");
    }
}
