//! The named scenarios of part B, the same as in the reference vectors.

use crate::Round;

/// Length of a run (rule B2.3).
const ROUNDS: Round = 240;
const NOISE_ROUNDS: Round = 500;

/// A cluster and what happens to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Short name.
    pub name: String,
    /// What it is.
    pub title: String,
    /// Per shard the loads of its units in points. Units count from 0 across the shards.
    pub shards: Vec<Vec<f64>>,
    /// Per shard the load in points that no unit accounts for and that cannot move; a shard beyond
    /// the end has none.
    pub foreign: Vec<f64>,
    /// Length of a run.
    pub rounds: Round,
    /// Age of reports.
    pub report_lag: Round,
    /// What happens to the load.
    pub changes: LoadChanges,
}

/// What happens to the load while a scenario runs.
#[derive(Clone, Debug, PartialEq)]
pub enum LoadChanges {
    /// Nothing.
    None,
    /// The units that began on a shard grow for some rounds, wherever they live by then.
    Spike {
        /// The shard.
        shard: usize,
        /// Their load is multiplied by this.
        factor: f64,
        /// From this round on.
        first_round: Round,
        /// For so many.
        rounds: Round,
    },
    /// All that a shard carries is multiplied, by one factor per shard.
    Alternate {
        /// In rounds 1, 3, and so on.
        odd_rounds: Vec<f64>,
        /// In rounds 2, 4, and so on.
        even_rounds: Vec<f64>,
    },
    /// All that a shard carries is multiplied by a random factor, anew in each round.
    Noise {
        /// Between 1 - this and 1 + this.
        amplitude: f64,
    },
}

impl Scenario {
    /// What exceeds the mean, summed over the shards: the least that has to move, in points.
    #[must_use]
    pub fn excess(&self) -> f64 {
        let foreign = self.foreign.iter().copied().chain(std::iter::repeat(0.0));
        let of_shard =
            |(units, foreign): (&Vec<f64>, f64)| units.iter().fold(foreign, |a, b| a + b);
        let loads: Vec<f64> = self.shards.iter().zip(foreign).map(of_shard).collect();
        let mean = crate::view::mean(loads.iter().copied());
        crate::view::total(loads.iter().map(|load| (load - mean).max(0.0)))
    }

    fn new(name: impl Into<String>, title: impl Into<String>, shards: Vec<Vec<f64>>) -> Self {
        Self {
            name: name.into(),
            title: title.into(),
            shards,
            foreign: Vec::new(),
            rounds: ROUNDS,
            report_lag: 0,
            changes: LoadChanges::None,
        }
    }

    fn with(self, changes: LoadChanges) -> Self {
        Self { changes, ..self }
    }
}

/// Every named scenario, in the order of the tables.
#[must_use]
pub fn scenarios() -> Vec<Scenario> {
    let mut all = steady();
    all.extend(spikes());
    all.extend(lags());
    all.extend(noise());
    all
}

fn steady() -> Vec<Scenario> {
    let three = || vec![equal(80.0, 2.5), equal(80.0, 2.5), equal(20.0, 2.5)];
    let each = |loads: &[f64], size| loads.iter().map(|load| equal(*load, size)).collect();
    let alternate = LoadChanges::Alternate {
        odd_rounds: vec![1.01, 1.0, 1.0],
        even_rounds: vec![1.0, 1.01, 1.0],
    };
    vec![
        Scenario::new("S0", "worked example 90/10, units of 5", worked()),
        Scenario::new(
            "S0f",
            "worked example 90/10, units of 1",
            each(&[90.0, 10.0], 1.0),
        ),
        Scenario::new(
            "S2",
            "new shard: 4 x 60 and 0, units of 2.5",
            new_shard(4, 60.0),
        ),
        Scenario::new(
            "S2b",
            "new shard: 10 x 80 and 0, units of 2.5",
            new_shard(10, 80.0),
        ),
        Scenario::new("S3", "80/80/20, units of 2.5", three()),
        Scenario::new(
            "S3b",
            "80/80/20, shards 0 and 1 take turns as the maximum",
            three(),
        )
        .with(alternate),
        Scenario::new(
            "S5",
            "hot unit: 70,5,5,5,5 and 4 x 2.5",
            vec![vec![70.0, 5.0, 5.0, 5.0, 5.0], vec![2.5; 4]],
        ),
        Scenario::new(
            "S5b",
            "one large unit fits: 40,20,20 and 10",
            vec![vec![40.0, 20.0, 20.0], vec![10.0]],
        ),
        Scenario::new(
            "S6",
            "all overloaded: 95/92/90/88, units of 5 and a rest",
            each(&[95.0, 92.0, 90.0, 88.0], 5.0),
        ),
        Scenario::new(
            "S8",
            "20/30/52/80/80, units of 2",
            each(&[20.0, 30.0, 52.0, 80.0, 80.0], 2.0),
        ),
        Scenario::new(
            "S9",
            "nobody is 10 points under the mean: 4 x 40, 69, 70, units of 2.5",
            each(&[40.0, 40.0, 40.0, 40.0, 69.0, 70.0], 2.5),
        ),
        Scenario::new(
            "S10",
            "foreign load: 10 and 50 in units of 2.5, 70 in one unit",
            vec![equal(10.0, 2.5), equal(50.0, 2.5), vec![70.0]],
        ),
        Scenario::new(
            "S11",
            "a gap of 18, nobody 10 points off the mean: 59/59/41/41, units of 2.5",
            each(&[59.0, 59.0, 41.0, 41.0], 2.5),
        ),
    ]
}

fn spikes() -> Vec<Scenario> {
    let spike = |factor, rounds| LoadChanges::Spike {
        shard: 0,
        factor,
        first_round: 10,
        rounds,
    };
    let mut all = Vec::new();
    for (size, factor) in [(30, 1.6), (40, 1.8)] {
        for rounds in [1, 2, 3, 4, 5, 6, 8] {
            let title = format!("50/50, shard 0's units grow by {size} points for {rounds} rounds");
            let halves = vec![equal(50.0, 2.5); 2];
            let scenario = Scenario::new(format!("S1+{size}/{rounds}"), title, halves);
            all.push(scenario.with(spike(factor, rounds)));
        }
    }
    let title = "8 x 40, shard 0's units grow by 50 points for 1 round";
    let eight = Scenario::new("S1w+50/1", title, vec![equal(40.0, 2.5); 8]);
    all.push(eight.with(spike(2.25, 1)));
    all
}

fn lags() -> Vec<Scenario> {
    let late = |name: String, what: &str, shards, report_lag| Scenario {
        report_lag,
        ..Scenario::new(
            name,
            format!("{what}, samples {report_lag} rounds old"),
            shards,
        )
    };
    let joined = "new shard: 4 x 60 and 0, units of 2.5";
    let worked = (0..6).map(|lag| late(format!("S7/{lag}"), "worked example", worked(), lag));
    let joined = (1..3).map(|lag| late(format!("S7n/{lag}"), joined, new_shard(4, 60.0), lag));
    worked.chain(joined).collect()
}

fn noise() -> Vec<Scenario> {
    let noisy = |name, title, shards| Scenario {
        rounds: NOISE_ROUNDS,
        changes: LoadChanges::Noise { amplitude: 0.2 },
        ..Scenario::new(name, title, shards)
    };
    let unequal = vec![equal(65.0, 2.5), equal(35.0, 2.5)];
    vec![
        noisy("S4a", "4 x 50, noise of 20 %", vec![equal(50.0, 2.5); 4]),
        noisy("S4b", "65/35, noise of 20 %", unequal),
    ]
}

/// 90 against 10 in units of 5.
fn worked() -> Vec<Vec<f64>> {
    vec![equal(90.0, 5.0), equal(10.0, 5.0)]
}

/// So many shards of equal load in units of 2.5, and one that has just joined.
fn new_shard(old: usize, load: f64) -> Vec<Vec<f64>> {
    let mut shards = vec![equal(load, 2.5); old];
    shards.push(Vec::new());
    shards
}

/// A shard of equal units; a remainder becomes one smaller unit.
fn equal(load: f64, size: f64) -> Vec<f64> {
    let count = (load / size).floor();
    let mut units = vec![size; count as usize];
    let rest = load - count * size;
    if rest > crate::view::EPSILON {
        units.push(rest);
    }
    units
}
