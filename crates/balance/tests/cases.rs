//! How balancers fail, each a test: the cases of area balance by their ids, R1 to R16 of part B9,
//! and the worked example of pulsar#18173.

use pelton_balance::{
    AvgParams, Move, Outcome, PairFillParams, Policy, Report, Round, ShardId, State, Strategy,
    UnitId, UnitLoad, plan,
    simulate::{Amount, Run, Scenario, run, run_fluid, scenarios},
};

fn policy(strategy: &str) -> Policy {
    Policy::new(Strategy::named(strategy).expect("a name of part B"))
}

fn played(scenario: &str, strategy: &str) -> Run {
    let mut all = scenarios().into_iter();
    let scenario = all.find(|s| s.name == scenario).expect("a name of part B");
    run(&scenario, &policy(strategy), 1)
}

/// Last move round or `never` / moves / points / final gap, as in the tables of part B.
fn check(scenario: &str, strategy: &str, cell: &str) {
    let run = played(scenario, strategy);
    let last = match run.settled() {
        true => run.last_round().to_string(),
        false => "never".into(),
    };
    let rounded = |x: f64| (x * 100.0).round() / 100.0;
    let (points, gap) = (rounded(run.points()), rounded(run.final_gap()));
    let found = format!("{last}/{}/{points}/{gap}", run.moves().count());
    assert_eq!(found, cell, "{scenario} {strategy}");
}

/// Reports of one round, one per shard: a load made of units of 1, which have `first` and the
/// following numbers.
fn shards_of(loads: &[f64], as_of: Round, first: u64) -> Vec<Report> {
    let mut number = first..;
    let mut report = |(shard, load): (usize, &f64)| Report {
        shard: ShardId(shard as u32),
        as_of,
        score: *load,
        throughput: None,
        units: number
            .by_ref()
            .take(*load as usize)
            .map(|unit| UnitLoad {
                unit: UnitId(unit),
                load: 1.0,
            })
            .collect(),
    };
    loads.iter().enumerate().map(&mut report).collect()
}

/// The rounds in which a strategy acts when it sees these loads. Every round has units of its own,
/// so that none is in grace, and every act is over at once.
fn acts(policy: &Policy, loads: &[Vec<f64>]) -> Vec<Round> {
    let (mut state, mut acted) = (State::default(), Vec::new());
    for (round, loads) in (1..).zip(loads) {
        let reports = shards_of(loads, round, round * 1000);
        let moves = plan(&reports, round, policy, &mut state).moves;
        moves
            .iter()
            .for_each(|m| state.finish(m, round, Outcome::Done));
        if !moves.is_empty() {
            acted.push(round);
        }
    }
    acted
}

/// Two shards so far apart in each round.
fn gaps(gaps: &[f64]) -> Vec<Vec<f64>> {
    gaps.iter()
        .map(|gap| vec![50.0 + gap / 2.0, 50.0 - gap / 2.0])
        .collect()
}

/// So many rounds of a gap.
fn rounds_of(count: usize, gap: f64) -> Vec<f64> {
    vec![gap; count]
}

#[test]
fn shed_hitcount_only_rounds_in_a_row_count_and_an_act_spends_them() {
    for name in ["avg", "pair-fill"] {
        let check = |pattern: &[f64], expected: &[Round]| {
            assert_eq!(
                acts(&policy(name), &gaps(pattern)),
                expected,
                "{name} {pattern:?}"
            );
        };
        check(&[50.0, 50.0], &[2]);
        check(&[50.0, 20.0, 50.0], &[]);
        check(&rounds_of(8, 20.0), &[8]);
        let broken = [rounds_of(7, 20.0), vec![10.0], rounds_of(7, 20.0)].concat();
        check(&broken, &[]);
        check(&rounds_of(8, 15.0), &[8]);
        check(&[40.0, 40.0], &[2]);
        check(&[50.0; 4], &[2, 4]);
        // The neighbours: just under a limit, and a low round in a row of high ones.
        check(&rounds_of(100, 14.0), &[]);
        check(&[38.0, 38.0, 38.0, 38.0, 38.0, 38.0, 38.0], &[]);
        check(&[20.0, 50.0, 20.0, 50.0, 20.0, 50.0, 20.0, 50.0], &[8]);
        check(&[50.0, 0.0, 50.0, 50.0], &[4]);
    }
}

#[test]
fn shed_hitcount_any_threshold_acts_in_exactly_that_round() {
    for hits in [1, 2, 3, 7, 63, 64, 65] {
        let pair_fill = PairFillParams {
            hits_low: hits,
            hits_high: hits,
            ..PairFillParams::default()
        };
        let avg = AvgParams {
            hits_low: hits,
            hits_high: hits,
            ..AvgParams::default()
        };
        for strategy in [Strategy::PairFill(pair_fill), Strategy::Avg(avg)] {
            for gap in [20.0, 60.0] {
                let pattern = gaps(&rounds_of(2 * hits as usize, gap));
                let expected = [hits, 2 * hits].map(Round::from);
                let policy = Policy::new(strategy.clone());
                assert_eq!(acts(&policy, &pattern), expected, "{strategy:?}");
            }
        }
    }
}

#[test]
fn shed_hitcount_hits_belong_to_the_shard_though_its_partner_changes() {
    // A cold shard 2 whose hot partner alternates, and a hot shard 2 whose cold one does.
    let cold = |round| {
        if round % 2 == 0 {
            vec![60.0, 58.0, 40.0]
        } else {
            vec![58.0, 60.0, 40.0]
        }
    };
    let hot = |round| {
        if round % 2 == 0 {
            vec![40.0, 42.0, 60.0]
        } else {
            vec![42.0, 40.0, 60.0]
        }
    };
    let rounds = |loads: &dyn Fn(u64) -> Vec<f64>| (1..=8).map(loads).collect::<Vec<_>>();
    for pattern in [rounds(&cold), rounds(&hot)] {
        assert_eq!(acts(&policy("avg"), &pattern), [8]);
        assert_eq!(acts(&policy("pair-fill"), &pattern), [8]);
        assert_eq!(acts(&policy("avg-pair-keyed"), &pattern), []);
    }
    // The partner of that round is the other end.
    let (mut state, policy) = (State::default(), policy("pair-fill"));
    for round in 1..=8 {
        let reports = shards_of(&cold(round), round, 0);
        let moves = plan(&reports, round, &policy, &mut state).moves;
        let first = moves.first().map(|m| (m.from, m.to));
        let expected = (round == 8).then_some((ShardId(0), ShardId(2)));
        assert_eq!(first, expected, "round {round}");
    }
}

#[test]
fn shed_stale_history_one_right_act_and_then_silence() {
    let run = played("S0f", "pair-fill");
    assert_eq!(run.acting_rounds().collect::<Vec<_>>(), [2]);
    check("S0f", "pair-fill", "2/40/40/0");
    // However old the samples are: 8 units once.
    for lag in 0..6 {
        check(&format!("S7/{lag}"), "pair-fill", "2/8/40/0");
    }
    // What must not happen: the repair is right, and the score still says 86 against 14.
    let (mut state, policy) = (State::default(), policy("threshold"));
    let before = plan(&shards_of(&[90.0, 10.0], 1, 0), 1, &policy, &mut state);
    assert_eq!(before.scores, [90.0, 10.0]);
    before
        .moves
        .iter()
        .for_each(|m| state.finish(m, 1, Outcome::Done));
    let after = plan(&shards_of(&[50.0, 50.0], 2, 1000), 2, &policy, &mut state);
    assert!((after.scores[0] - 86.0).abs() < 1e-9 && (after.scores[1] - 14.0).abs() < 1e-9);
    assert!(after.moves.iter().all(|m| m.from == ShardId(0)));
    assert!(
        !after.moves.is_empty(),
        "it sheds from a shard that has no more than the other"
    );
}

#[test]
fn shed_idle_shard_is_seen_among_any_number_of_equally_hot_ones() {
    check("S2b", "pair-fill", "2/29/72.5/2.5");
    check("S2b", "threshold", "0/0/0/80");
    for hot in [2, 3, 6, 7, 10, 39, 40, 63, 64, 65, 128] {
        let mut shards = vec![vec![2.5; 32]; hot];
        shards.push(Vec::new());
        let scenario = Scenario {
            shards,
            ..scenarios().remove(0)
        };
        let found = run(&scenario, &policy("pair-fill"), 0);
        let acts: Vec<Round> = found.acting_rounds().collect();
        assert_eq!(acts[0], 2, "{hot} hot shards");
        assert!(
            found.final_gap() < 15.0,
            "{hot} hot shards: {}",
            found.final_gap()
        );
        // From 40 shards on none is 2 points over the mean: one unit of one pair at a time.
        assert_eq!(acts.len() == 1, hot < 40, "{hot} hot shards: {acts:?}");
        let blind = run(&scenario, &policy("threshold"), 0);
        // 80 is more than 10 over the mean only while the idle one weighs enough.
        assert_eq!(blind.moves().count() > 0, hot <= 7, "{hot} hot shards");
    }
}

#[test]
fn issue_18173_step_by_step_history_moves_182_points_for_a_problem_of_40() {
    let rounds = run_fluid(Amount::HalfGap, [90.0, 10.0], 240);
    let close = |a: [f64; 2], b: [f64; 2]| (a[0] - b[0]).abs() < 5e-3 && (a[1] - b[1]).abs() < 5e-3;
    // Scores seen, what moved, and the real load after that.
    let expected = [
        ([90.0, 10.0], 40.0, [50.0, 50.0]),
        ([86.0, 14.0], 36.0, [14.0, 86.0]),
        ([78.8, 21.2], 14.0, [0.0, 100.0]),
    ];
    for (found, (scores, moved, loads)) in rounds.iter().zip(expected) {
        assert!(
            close(found.scores, scores) && close(found.loads, loads),
            "{found:?}"
        );
        assert!((found.moved - moved).abs() < 5e-3, "{found:?}");
    }
    let moved: Vec<f64> = rounds.iter().map(|round| round.moved).collect();
    assert!(
        moved[3..9].iter().all(|moved| *moved == 0.0),
        "shard 0 has nothing left to give"
    );
    for (found, back) in moved[9..14].iter().zip([12.31, 14.85, 15.65, 14.80, 12.56]) {
        assert!((found + back).abs() < 5e-3, "{found} flows back");
    }
    assert!(moved[14..25].iter().all(|moved| *moved == 0.0));
    assert!(moved[25] > 0.0 && moved[26] > 0.0, "and forth again");
    assert!(
        moved[27..].iter().all(|moved| *moved == 0.0),
        "round 27 is the last"
    );
    let points: f64 = moved.iter().map(|moved| moved.abs()).sum();
    assert!((points - 181.85).abs() < 5e-3, "{points}");
    assert!(close(rounds[239].loads, [48.49, 51.51]));
}

#[test]
fn issue_18173_its_own_remedy_ends_it_in_one_act() {
    let run = played("S0f", "multi-hit");
    // 90 is 40 off the mean, which is not more than 40: five low hits.
    assert_eq!(run.acting_rounds().collect::<Vec<_>>(), [5]);
    assert_eq!((run.points(), run.final_loads), (40.0, vec![50.0, 50.0]));
}

#[test]
fn r1_history_sheds_too_much_and_plays_ping_pong() {
    check("S0", "threshold", "53/33/165/10");
    assert_eq!(played("S0", "threshold").moves_back, 13);
    check("S0", "pair-fill", "2/8/40/0");
}

#[test]
fn r2_nobody_qualifies_as_a_receiver_so_everybody_does() {
    check("S9", "threshold", "24/31/77.5/22.5");
    check("S9", "pair-fill", "8/16/40/1");
}

#[test]
fn r3_a_history_stepped_twice_a_round_runs_ahead() {
    check("S0", "threshold-lower", "63/35/175/10");
    assert_eq!(played("S0", "threshold-lower").moves_back, 15);
}

#[test]
fn r4_one_pair_a_round_or_pair_ends_alone_fill_a_new_shard_slowly() {
    check("S2b", "uniform", "6/23/57.5/22.5");
    check("S2b", "avg", "12/48/120/10");
    check("S2b", "pair-fill", "2/29/72.5/2.5");
}

#[test]
fn r5_a_hot_unit_is_carried_to_and_fro_or_handed_on() {
    check("S5", "threshold", "75/23/280/40");
    check("S5", "threshold-lower", "never/68/780/40");
    check("S5", "overload", "1/1/70/60");
    check("S5", "pair-fill", "2/4/20/40");
}

#[test]
fn r6_where_all_are_overloaded_units_go_round_without_gain() {
    check("S6", "overload", "never/586/2890/15");
    assert_eq!(played("S6", "overload").peak, 125.0);
    check("S6", "pair-fill", "0/0/0/7");
}

#[test]
fn r7_a_limit_over_the_mean_does_not_see_one_idle_shard_among_many() {
    check("S2b", "threshold", "0/0/0/80");
    check("S2b", "multi-hit-3", "0/0/0/80");
}

#[test]
fn r8_a_limit_on_the_deviation_tolerates_a_wide_gap_and_a_short_report_caps_a_cycle() {
    check("S8", "transfer", "0/0/0/60");
    check("S8", "pair-fill", "2/27/54/2");
    let run = played("S0f", "transfer");
    let acted = run.rounds.iter().filter(|row| !row.moves.is_empty());
    assert!(
        acted.map(|row| row.moves.len()).eq([9, 9]),
        "10 units are known, one stays"
    );
}

#[test]
fn r9_a_swap_that_nobody_needed() {
    check("S0", "transfer", "4/10/50/0");
}

#[test]
fn r10_a_report_older_than_the_last_act_makes_a_strategy_act_twice() {
    check("S7/2", "avg", "66/36/180/0");
    check("S7/3", "multi-hit-3", "never/112/560/0");
    check("S7/5", "multi-hit", "55/34/170/20");
    check("S7n/1", "multi-hit", "33/44/110/2.5");
    check("S7n/2", "multi-hit", "never/624/1560/90");
    check("S7n/2", "pair-fill", "2/19/47.5/2.5");
}

#[test]
fn r11_without_history_and_without_hits_noise_is_chased() {
    let run = played("S4a", "threshold-fresh");
    assert!(run.acting_rounds().count() >= 49 && run.points() > 250.0);
    check("S1w+50/1", "multi-hit", "15/14/56.88/0");
    check("S1w+50/1", "pair-fill", "0/0/0/0");
    assert_eq!(played("S4a", "pair-fill").moves().count(), 0);
}

#[test]
fn r12_hits_spent_with_nothing_moved_are_silent_but_in_pair_fill() {
    for (strategy, events) in [("avg", 0), ("multi-hit", 0), ("pair-fill", 30)] {
        let run = played("S5", strategy);
        assert_eq!(run.hot_units().count(), events, "{strategy}");
        assert_eq!(run.final_gap(), 40.0, "{strategy}");
    }
    let run = played("S5", "pair-fill");
    let first = run.hot_units().next().expect("30 of them");
    assert_eq!((first.round, first.shard, first.gap), (4, ShardId(0), 40.0));
    assert_eq!(
        (first.largest, first.quiet_until),
        (Some((UnitId(0), 70.0)), 12)
    );
    let text = first.to_string();
    assert!(text.contains("split unit 0 (70.0 points)"), "{text}");
}

#[test]
fn r13_counters_keyed_by_pair_never_fire_where_two_shards_take_turns() {
    check("S3b", "avg-pair-keyed", "0/0/0/60");
    check("S3b", "avg", "10/18/45.3/15");
    check("S3b", "pair-fill", "2/16/40.2/0");
}

#[test]
fn r14_load_that_cannot_move_is_relieved_once_reported_and_left_alone() {
    check("S10", "pair-fill", "2/3/7.5/52.5");
    assert_eq!(played("S10", "pair-fill").hot_units().count(), 30);
    check("S10", "threshold-lower", "never/45/652.5/60");
    // The same with load that is no unit at all.
    let scenario = Scenario {
        shards: vec![vec![2.5; 4], vec![2.5; 20], Vec::new()],
        foreign: vec![0.0, 0.0, 70.0],
        ..scenarios().remove(0)
    };
    let run = run(&scenario, &policy("pair-fill"), 0);
    assert_eq!((run.points(), run.final_gap()), (7.5, 52.5));
    let event = run.hot_units().next().expect("reported");
    assert_eq!((event.shard, event.largest), (ShardId(2), None));
    assert!(event.to_string().contains("none of its load can move"));
}

#[test]
fn r15_a_limit_on_the_distance_from_the_mean_hides_a_gap_of_twice_its_size() {
    check("S11", "multi-hit", "0/0/0/18");
    check("S1+40/5", "multi-hit", "14/4/18/20");
    check("S11", "pair-fill", "8/8/20/2");
}

#[test]
fn r16_rounding_down_at_donor_and_receiver_adds_up() {
    check("S2b", "multi-hit", "1/20/50/25");
    check("S2b", "pair-fill", "2/29/72.5/2.5");
}

/// 80 against 20 in units of 1, sampled in `round`.
fn apart(round: Round) -> Vec<Report> {
    shards_of(&[80.0, 20.0], round, 0)
}

/// A state of pair-fill whose first plan is due in round 2, and that plan.
fn planned(policy: &Policy) -> (State, Vec<Move>) {
    let mut state = State::default();
    assert_eq!(plan(&apart(1), 1, policy, &mut state).moves, []);
    let moves = plan(&apart(2), 2, policy, &mut state).moves;
    (state, moves)
}

#[test]
fn what_is_under_way_is_planned_no_second_time_and_both_its_ends_are_left_alone() {
    let policy = policy("pair-fill");
    let (mut state, moves) = planned(&policy);
    assert_eq!((moves.len(), state.running().len()), (30, 30));
    for round in 3..=10 {
        assert_eq!(
            plan(&apart(round), round, &policy, &mut state).moves,
            [],
            "round {round}"
        );
    }
    // A report of the round in which they ended is not news yet.
    moves
        .iter()
        .for_each(|m| state.finish(m, 10, Outcome::Done));
    assert_eq!(state.running(), []);
    assert_eq!(plan(&apart(10), 11, &policy, &mut state).moves, []);
    assert_eq!(
        plan(&apart(11), 11, &policy, &mut state).moves,
        [],
        "the first hit"
    );
    let again = plan(&apart(12), 12, &policy, &mut state).moves;
    assert_eq!(again.len(), 30, "the second");
    let in_grace = again
        .iter()
        .any(|m| moves.iter().any(|old| old.unit == m.unit));
    assert!(!in_grace, "others, not those that just moved");
}

#[test]
fn an_aborted_move_waits_8_rounds_and_a_dropped_one_none() {
    let policy = policy("pair-fill");
    for (outcome, waits) in [(Outcome::Aborted, true), (Outcome::Dropped, false)] {
        let (mut state, moves) = planned(&policy);
        moves.iter().for_each(|m| state.finish(m, 2, outcome));
        let same = |moves: &[Move], again: &[Move]| {
            let units = |moves: &[Move]| moves.iter().map(|m| m.unit).collect::<Vec<_>>();
            units(moves) == units(again)
        };
        assert_eq!(
            plan(&apart(3), 3, &policy, &mut state).moves,
            [],
            "counters start over"
        );
        let again = plan(&apart(4), 4, &policy, &mut state).moves;
        assert_eq!(same(&moves, &again), !waits, "{outcome:?}");
        again
            .iter()
            .for_each(|m| state.finish(m, 4, Outcome::Dropped));
        for round in [9, 10] {
            let again = plan(&apart(round), round, &policy, &mut state).moves;
            assert_eq!(
                same(&moves, &again),
                round == 10,
                "{outcome:?}, round {round}"
            );
        }
    }
}

#[test]
fn every_strategy_leaves_a_unit_alone_that_is_under_way() {
    let (policy, mut state) = (policy("avg"), State::default());
    let mut acts = Vec::new();
    for round in 1..=4 {
        let moves = plan(&apart(round), round, &policy, &mut state).moves;
        acts.extend((!moves.is_empty()).then_some((round, moves)));
    }
    let [(2, first), (4, second)] = &acts[..] else {
        panic!("two hits and two hits: {acts:?}");
    };
    assert!(
        second
            .iter()
            .all(|m| first.iter().all(|old| old.unit != m.unit))
    );
}

#[test]
fn another_policy_starts_the_counters_over_and_leaves_the_grace() {
    let first = policy("pair-fill");
    let second = Policy::new(Strategy::PairFill(PairFillParams {
        hits_low: 9,
        ..PairFillParams::default()
    }));
    // One hit under each is not two.
    let mut state = State::default();
    assert_eq!(plan(&apart(1), 1, &first, &mut state).moves, []);
    assert_eq!(plan(&apart(2), 2, &second, &mut state).moves, []);
    assert_ne!(plan(&apart(3), 3, &second, &mut state).moves, []);

    let (mut state, moves) = planned(&first);
    moves.iter().for_each(|m| state.finish(m, 2, Outcome::Done));
    assert_eq!(plan(&apart(3), 3, &second, &mut state).moves, []);
    let again = plan(&apart(4), 4, &second, &mut state).moves;
    assert!(!again.is_empty());
    assert!(
        again
            .iter()
            .all(|m| moves.iter().all(|old| old.unit != m.unit))
    );
}

#[test]
fn a_move_that_ends_after_the_counters_were_cleared_still_gives_its_unit_grace() {
    let policy = policy("pair-fill");
    let (mut state, moves) = planned(&policy);
    state.clear_counters();
    moves.iter().for_each(|m| state.finish(m, 2, Outcome::Done));
    for round in 3..=33 {
        let again = plan(&apart(round), round, &policy, &mut state).moves;
        let in_grace = again
            .iter()
            .any(|m| moves.iter().any(|old| old.unit == m.unit));
        assert_eq!(in_grace, round == 33, "round {round}");
        again
            .iter()
            .for_each(|m| state.finish(m, round, Outcome::Dropped));
        if round == 31 {
            // So that the two hits are in rounds 32 and 33.
            state.clear_counters();
        }
    }
}

#[test]
fn the_end_that_is_still_there_is_not_judged_by_a_report_from_before_the_move() {
    let policy = policy("pair-fill");
    let three = |round| shards_of(&[80.0, 20.0, 50.0], round, 0);
    let mut state = State::default();
    let mut moves = Vec::new();
    for round in 1..=2 {
        moves = plan(&three(round), round, &policy, &mut state).moves;
    }
    // The receiver is lost while its move is under way, and the source finishes it alone.
    let left = |round: Round, as_of: Round| {
        let mut reports = three(round);
        reports.remove(1);
        reports[0].as_of = as_of;
        reports
    };
    assert_eq!(plan(&left(3, 3), 3, &policy, &mut state).moves, []);
    moves.iter().for_each(|m| state.finish(m, 5, Outcome::Done));
    // 80 against 50 as seen before round 5 is no hit, however often it is seen.
    for round in 6..=13 {
        assert_eq!(plan(&left(round, 5), round, &policy, &mut state).moves, []);
    }
    let news = (14..=21).map(|round| plan(&left(round, round), round, &policy, &mut state).moves);
    assert!(
        news.last().is_some_and(|moves| !moves.is_empty()),
        "8 hits of news"
    );
}

#[test]
fn a_report_of_8_rounds_ago_still_counts_and_one_of_9_does_not() {
    for (age, live) in [(8, true), (9, false)] {
        let (policy, mut state) = (policy("pair-fill"), State::default());
        let mut acted = false;
        for round in 11..=12 {
            let mut reports = apart(round);
            reports[1].as_of = round - age;
            acted |= !plan(&reports, round, &policy, &mut state).moves.is_empty();
        }
        assert_eq!(acted, live, "{age} rounds");
    }
}

#[test]
fn where_a_move_costs_a_shard_must_be_further_over_the_mean_to_give() {
    // Shard 2 is 2.5 over the mean: enough where moves are free.
    let shards = [80.0, 20.0, 52.0, 46.0];
    for (policy, gives) in [
        (policy("pair-fill"), true),
        (Policy::between_machines(Strategy::default()), false),
    ] {
        let mut state = State::default();
        assert_eq!(
            plan(&shards_of(&shards, 1, 0), 1, &policy, &mut state).moves,
            []
        );
        let moves = plan(&shards_of(&shards, 2, 0), 2, &policy, &mut state).moves;
        assert!(moves.iter().any(|m| m.from == ShardId(0)));
        assert_eq!(moves.iter().any(|m| m.from == ShardId(2)), gives);
    }
}

#[test]
fn a_move_costs_between_machines_and_what_is_smaller_stays() {
    let mut reports = apart(1);
    reports[0].units.iter_mut().for_each(|unit| unit.load = 0.9);
    let plan_for = |policy: &Policy| {
        let mut state = State::default();
        let mut plan_of = |round| {
            reports.iter_mut().for_each(|report| report.as_of = round);
            plan(&reports.clone(), round, policy, &mut state)
        };
        let _ = plan_of(1);
        plan_of(2)
    };
    let mut plan_for = plan_for;
    assert_eq!(plan_for(&policy("pair-fill")).moves.len(), 33);
    let between = plan_for(&Policy::between_machines(Strategy::default()));
    assert_eq!(between.moves, []);
    assert_eq!(between.hot_units.len(), 1, "and somebody is told");
}

#[test]
fn a_plan_is_cut_after_as_many_moves_as_a_round_may_have() {
    let policy = Policy {
        max_moves_per_round: Some(3),
        ..policy("pair-fill")
    };
    let (state, moves) = planned(&policy);
    assert_eq!((moves.len(), state.running().len()), (3, 3));
    assert_eq!(moves[0].reason.projected_max, 77.0, "of the plan as it is");
}

#[test]
fn a_reason_says_what_was_seen() {
    let (_, moves) = planned(&policy("pair-fill"));
    assert_eq!(
        moves[0].reason.to_string(),
        "pair-fill: 80.0 against 20.0 points, the unit has 1.0, the highest shard would have 50.0"
    );
}
