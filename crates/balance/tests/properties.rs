//! Properties P2 to P11 of part B on random clusters. The generator and the 19 seeds are those of
//! the oracle behind `vectors.rs`, so that its counts must come out too, not only its bounds.

use pelton_balance::{
    Policy, Report, Round, ShardId, State, Strategy, UnitId, UnitLoad, plan,
    simulate::{LoadChanges, Run, Scenario, run},
};

/// Seeds 42, 43 and 100 to 116, 300 clusters of each family: 11,400 in all.
fn seeds() -> impl Iterator<Item = u64> {
    [42, 43].into_iter().chain(100..=116)
}

const CLUSTERS_PER_SEED: usize = 300;
const ROUNDS: Round = 240;

/// x <- x * 6364136223846793005 + 1442695040888963407 mod 2^64.
struct Lcg(u64);

impl Lcg {
    fn unit(&mut self) -> f64 {
        let next = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = next.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Family {
    /// 30 to 80 units of similar load per shard.
    Fine,
    /// 0 to 30 units, some a whole shard.
    Lumpy,
}

/// 2 to 12 shards of 0 to 100 points.
fn random_cluster(rng: &mut Lcg, family: Family) -> Vec<Vec<f64>> {
    let shard = |rng: &mut Lcg| {
        let count = match family {
            Family::Fine => 30 + rng.below(51),
            Family::Lumpy => rng.below(31),
        };
        let points = 100.0 * rng.unit();
        let weight = |_| match family {
            Family::Fine => 0.5 + rng.unit(),
            Family::Lumpy => 0.2 + rng.unit().powi(3) * 3.0,
        };
        let weights: Vec<f64> = (0..count).map(weight).collect();
        let whole: f64 = weights.iter().fold(0.0, |sum, weight| sum + weight);
        weights
            .iter()
            .map(|weight| weight * points / whole)
            .collect()
    };
    (0..2 + rng.below(11)).map(|_| shard(rng)).collect()
}

/// Every cluster of a family, with its replay line.
fn clusters(family: Family) -> impl Iterator<Item = (String, Vec<Vec<f64>>)> {
    seeds().flat_map(move |seed| {
        let mut rng = Lcg(seed);
        (0..CLUSTERS_PER_SEED).map(move |number| {
            let what = format!("{family:?}, seed {seed}, cluster {number}");
            (what, random_cluster(&mut rng, family))
        })
    })
}

fn scenario(shards: Vec<Vec<f64>>, rounds: Round, changes: LoadChanges) -> Scenario {
    Scenario {
        name: String::new(),
        title: String::new(),
        shards,
        foreign: Vec::new(),
        rounds,
        report_lag: 0,
        changes,
    }
}

fn steady(shards: Vec<Vec<f64>>) -> Scenario {
    scenario(shards, ROUNDS, LoadChanges::None)
}

fn named(name: &str) -> Policy {
    Policy::new(Strategy::named(name).expect("a name of part B"))
}

fn highest(loads: &[f64]) -> f64 {
    loads.iter().copied().fold(f64::MIN, f64::max)
}

fn mean(loads: &[f64]) -> f64 {
    loads.iter().sum::<f64>() / loads.len() as f64
}

/// What a family of clusters came to under pair-fill.
#[derive(Debug, Default)]
struct Found {
    plans: usize,
    large_gaps: usize,
    last_round: Round,
    points_over_excess: f64,
    receiver_past_mean: f64,
    rise: f64,
}

fn follow(family: Family) -> Found {
    let policy = named("pair-fill");
    let mut found = Found::default();
    for (what, shards) in clusters(family) {
        let scenario = steady(shards);
        let run = run(&scenario, &policy, 0);
        let mean = mean(&run.rounds[0].loads);
        let acted = run.rounds.iter().filter(|row| !row.moves.is_empty());
        for row in acted {
            found.plans += 1;
            let after = highest(&row.loads_after);
            found.rise = found.rise.max(after - highest(&row.loads));
            for planned in &row.moves {
                let past = row.loads_after[planned.to.0 as usize] - mean;
                found.receiver_past_mean = found.receiver_past_mean.max(past);
                // The projection of a plan is what comes of it.
                let projected = planned.reason.projected_max;
                assert!((projected - after).abs() < 1e-6, "{what}: {planned:?}");
            }
        }
        assert_grace(&run, &what);
        found.last_round = found.last_round.max(run.last_round());
        let over = run.points() - scenario.excess();
        found.points_over_excess = found.points_over_excess.max(over);
        if run.final_gap() >= 15.0 {
            found.large_gaps += 1;
            assert!(told_of_the_highest(&run), "{what}: a silent gap");
        }
    }
    found
}

/// P2: no unit moves twice within 30 rounds.
fn assert_grace(run: &Run, what: &str) {
    let moves: Vec<_> = run.moves().collect();
    for (i, (round, moved)) in moves.iter().enumerate() {
        let again = moves[i + 1..].iter().find(|(_, m)| m.unit == moved.unit);
        let again = again.map(|(again, _)| again - round);
        assert!(again.is_none_or(|rounds| rounds > 30), "{what}: {moved:?}");
    }
}

/// An event of the highest shard in the last 60 rounds.
fn told_of_the_highest(run: &Run) -> bool {
    let high = highest(&run.final_loads);
    let mut events = run.hot_units().filter(|hot| hot.round > ROUNDS - 60);
    events.any(|hot| run.final_loads[hot.shard.0 as usize] == high)
}

#[test]
fn p2_p3_p4_fine_units_are_levelled_soon_with_little_moved_and_nothing_made_higher() {
    let found = follow(Family::Fine);
    assert_eq!((found.large_gaps, found.last_round), (0, 8), "{found:?}");
    assert!(found.rise < 1e-6, "{found:?}");
    assert!(found.points_over_excess <= 5.56, "{found:?}");
    assert!(found.receiver_past_mean <= 1.91, "{found:?}");
}

#[test]
fn p2_p3_p4_lumpy_units_settle_and_every_gap_that_stays_is_reported() {
    let found = follow(Family::Lumpy);
    assert_eq!(
        (found.large_gaps, found.last_round),
        (1070, 58),
        "{found:?}"
    );
    assert!(found.rise < 1e-6, "{found:?}");
}

#[test]
fn p5_the_same_input_gives_the_same_plan_and_a_copy_of_the_state_plans_alike() {
    for (what, shards) in clusters(Family::Lumpy).step_by(100) {
        for name in Strategy::NAMES {
            let policy = named(name);
            let scenario = steady(shards.clone());
            let runs = [run(&scenario, &policy, 1), run(&scenario, &policy, 1)];
            assert_eq!(runs[0], runs[1], "{what}, {name}");
            let (mut state, reports) = (State::default(), reports(&shards));
            for round in 1..=10 {
                let mut copy = state.clone();
                let [without_acting, acting] =
                    [&mut copy, &mut state].map(|s| plan(&at(&reports, round), round, &policy, s));
                assert_eq!(without_acting, acting, "{what}, {name}");
                assert_eq!(copy, state, "{what}, {name}");
            }
        }
    }
}

fn reports(shards: &[Vec<f64>]) -> Vec<Report> {
    let mut number = 0..;
    let mut unit = |load: &f64| UnitLoad {
        unit: UnitId(number.next().expect("no end")),
        load: *load,
    };
    let report = |(shard, units): (usize, &Vec<f64>)| Report {
        shard: ShardId(shard as u32),
        as_of: 0,
        score: units.iter().fold(0.0, |sum, load| sum + load),
        throughput: None,
        units: units.iter().map(&mut unit).collect(),
    };
    shards.iter().enumerate().map(report).collect()
}

/// The same reports, sampled in `round`.
fn at(reports: &[Report], round: Round) -> Vec<Report> {
    let mut reports = reports.to_vec();
    reports.iter_mut().for_each(|report| report.as_of = round);
    reports
}

/// The first plan of pair-fill as load, from and to, sorted, with shards renamed back.
fn first_plan(shards: &[Vec<f64>], names: &[usize]) -> Vec<(f64, usize, usize)> {
    let (mut state, policy, reports) = (State::default(), Policy::default(), reports(shards));
    for round in 1..=8 {
        let moves = plan(&at(&reports, round), round, &policy, &mut state).moves;
        if !moves.is_empty() {
            let name = |shard: ShardId| names[shard.0 as usize];
            let moves = moves
                .iter()
                .map(|m| (m.reason.load, name(m.from), name(m.to)));
            let mut moves: Vec<_> = moves.collect();
            moves.sort_by(|a, b| a.partial_cmp(b).expect("loads are numbers"));
            return moves;
        }
    }
    Vec::new()
}

#[test]
fn p6_renumbering_the_shards_renumbers_the_plan_unless_shards_are_tied() {
    let (mut compared, mut different) = (0, 0);
    for family in [Family::Fine, Family::Lumpy] {
        for seed in seeds() {
            let (mut rng, mut mixer) = (Lcg(seed), Lcg(seed + 1000));
            for number in 0..CLUSTERS_PER_SEED {
                let shards = random_cluster(&mut rng, family);
                let mut order: Vec<usize> = (0..shards.len()).collect();
                for i in (1..order.len()).rev() {
                    order.swap(i, mixer.below(i + 1));
                }
                let mixed: Vec<_> = order.iter().map(|&old| shards[old].clone()).collect();
                let names: Vec<usize> = (0..shards.len()).collect();
                let plans = [first_plan(&shards, &names), first_plan(&mixed, &order)];
                compared += usize::from(plans.iter().any(|plan| !plan.is_empty()));
                if plans[0] != plans[1] {
                    different += 1;
                    let mut scores: Vec<f64> = reports(&shards).iter().map(|r| r.score).collect();
                    scores.sort_by(f64::total_cmp);
                    let tied = scores.windows(2).any(|pair| pair[0] == pair[1]);
                    assert!(tied, "{family:?}, seed {seed}, cluster {number}");
                }
            }
        }
    }
    assert_eq!((compared, different), (11_034, 64));
}

#[test]
fn p7_nothing_moves_in_ten_thousand_rounds_with_every_gap_under_15() {
    let noise = LoadChanges::Noise { amplitude: 0.14 };
    let scenario = scenario(vec![vec![2.5; 20]; 4], 10_000, noise);
    let run = run(&scenario, &named("pair-fill"), 1);
    let gap = |row: &pelton_balance::simulate::RoundRow| row.gap_after();
    let widest = run.rounds.iter().map(gap).fold(0.0, f64::max);
    assert!((13.0..15.0).contains(&widest), "{widest}: near the limit");
    assert_eq!(run.moves().count(), 0);
}

#[test]
fn p8_one_shard_or_one_unit_on_the_high_end_moves_nothing() {
    let policy = named("pair-fill");
    for (what, shards) in clusters(Family::Lumpy).step_by(10) {
        let alone = run(&steady(vec![shards[0].clone()]), &policy, 0);
        assert_eq!(alone.moves().count(), 0, "{what}");
        let single = vec![vec![120.0], shards[0].clone()];
        let single = run(&steady(single), &policy, 0);
        assert_eq!(single.moves().count(), 0, "{what}");
        assert!(single.hot_units().count() > 0, "{what}: in silence");
    }
}

#[test]
fn p9_a_joined_or_lost_shard_starts_the_counters_over() {
    let policy = named("pair-fill");
    let three = reports(&[vec![5.0; 16], vec![5.0; 4], vec![5.0; 10]]);
    for (first, then) in [(2, 3), (3, 2)] {
        let mut state = State::default();
        let mut moves = |shards: usize, round| {
            plan(&at(&three[..shards], round), round, &policy, &mut state).moves
        };
        assert_eq!(moves(first, 1), [], "the first hit of two");
        assert_eq!(moves(then, 2), [], "again the first");
        assert_ne!(moves(then, 3), [], "the second");
    }
}

#[test]
fn p10_a_stale_report_is_neither_end_of_a_move() {
    let mut acted = 0;
    for (what, shards) in clusters(Family::Lumpy).step_by(5) {
        let reports = reports(&shards);
        for name in Strategy::NAMES {
            let (policy, mut state) = (named(name), State::default());
            for round in 20..=28 {
                // 8 rounds old is live, 9 is not.
                let mut reports = at(&reports, round);
                reports[0].as_of = round - 9;
                let moves = plan(&reports, round, &policy, &mut state).moves;
                let touched = moves.iter().any(|m| [m.from, m.to].contains(&ShardId(0)));
                assert!(!touched, "{what}, {name}");
                acted += usize::from(!moves.is_empty());
            }
        }
    }
    assert!(acted > 1000, "{acted} plans for the others");
}

#[test]
fn p11_multi_hit_acts_neither_early_nor_across_the_mean_and_leaves_gaps_that_pair_fill_closes() {
    let policy = named("multi-hit");
    for (family, expected) in [(Family::Fine, 42), (Family::Lumpy, 1690)] {
        let mut large_gaps = 0;
        for (what, shards) in clusters(family) {
            let run = run(&steady(shards), &policy, 0);
            let start = &run.rounds[0].loads;
            let of_start = mean(start);
            let furthest = start.iter().map(|load| (load - of_start).abs());
            let earliest = match furthest.fold(0.0, f64::max) {
                d if d > 40.0 => 1,
                d if d > 10.0 => 5,
                _ => Round::MAX,
            };
            let first = run.acting_rounds().next();
            assert!(first.is_none_or(|first| first >= earliest), "{what}");
            for row in &run.rounds {
                let mean = mean(&row.loads);
                for planned in &row.moves {
                    let after = |shard: ShardId| row.loads_after[shard.0 as usize];
                    assert!(after(planned.from) > mean - 1e-6, "{what}: {planned:?}");
                    assert!(after(planned.to) < mean + 1e-6, "{what}: {planned:?}");
                }
            }
            large_gaps += usize::from(run.final_gap() >= 15.0);
        }
        assert_eq!(large_gaps, expected, "{family:?}");
    }
}
