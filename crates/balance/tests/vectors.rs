//! Every number of part B, against `balance_vectors.json`: the results of an independent oracle,
//! written in Python from the rules of part B and not from this crate. The key `schema` of that file
//! says what each field means. Counts, rounds and move lists compare exactly, points within 1e-6.

use std::collections::BTreeMap;

use pelton_balance::{
    Move, Outcome, Policy, Report, Round, ShardId, State, Strategy, UnitId, UnitLoad, plan,
    simulate::{Amount, LoadChanges, Run, Scenario, history_delay, run, run_fluid, scenarios},
};
use serde_json::{Value, json};

/// Whatever number `value` is.
fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("{value} is a number"))
}

fn numbers(value: &Value) -> Vec<f64> {
    list(value).iter().map(number).collect()
}

fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("{value} is a list"))
}

fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("{value} is a text"))
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("balance_vectors.json")).expect("the file is JSON")
}

/// Equal but for numbers, which are equal within 1e-6; `5` and `5.0` are the same number.
#[track_caller]
fn assert_close(found: &Value, expected: &Value, what: &str) {
    let close = match (found, expected) {
        (Value::Number(_), Value::Number(_)) => (number(found) - number(expected)).abs() <= 1e-6,
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            a.iter().zip(b).for_each(|(a, b)| assert_close(a, b, what));
            true
        }
        (Value::Object(a), Value::Object(b)) => {
            let keys =
                |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<Vec<_>>();
            assert_eq!(keys(a), keys(b), "{what}");
            a.iter()
                .for_each(|(key, a)| assert_close(a, &b[key], &format!("{what}: {key}")));
            true
        }
        _ => found == expected,
    };
    assert!(close, "{what}: found {found}, expected {expected}");
}

fn policy(name: &str) -> Policy {
    Policy::new(Strategy::named(name).unwrap_or_else(|| panic!("no strategy {name}")))
}

/// The parameters under the names of the file.
fn params(strategy: &Strategy) -> Value {
    match strategy {
        Strategy::Threshold(p) => json!({"history": p.history, "margin": p.margin,
            "extra": p.extra, "min_target": p.min_target, "lower_boundary": p.lower_boundary}),
        Strategy::Overload(p) => json!({"limit": p.limit, "extra": p.extra}),
        Strategy::Uniform(p) => json!({"ratio_percent": p.ratio_percent, "share": p.share,
            "min_rate": p.min_rate}),
        Strategy::MultiHit(p) => json!({"low": p.low, "high": p.high, "hits_low": p.hits_low,
            "hits_high": p.hits_high}),
        Strategy::MultiHit3(p) => json!({"hits": p.hits, "margin": p.margin}),
        Strategy::Avg(p) => json!({"share": p.share, "low": p.low, "high": p.high,
            "hits_low": p.hits_low, "hits_high": p.hits_high, "min_target": p.min_target}),
        Strategy::AvgPairKeyed(p) => json!({"share": p.share, "low": p.low, "high": p.high,
            "hits_low": p.hits_low, "hits_high": p.hits_high}),
        Strategy::Transfer(p) => json!({"target_std": p.target_std, "hits": p.hits,
            "cool_down_s": p.cool_down_rounds * 60, "max_pairs": p.max_pairs,
            "report_top": p.report_top, "history": p.history}),
        Strategy::PairFill(p) => json!({"low": p.low, "high": p.high, "hits_low": p.hits_low,
            "hits_high": p.hits_high, "min_gain": p.min_gain, "backoff": p.backoff_rounds}),
    }
}

#[test]
fn strategies_have_the_names_and_parameters_of_the_file() {
    let vectors = vectors();
    let expected = vectors["strategies"].as_object().expect("a table");
    for (name, of_file) in expected {
        let policy = policy(name);
        assert_eq!(policy.strategy.family(), text(&of_file["kind"]), "{name}");
        assert_close(&params(&policy.strategy), &of_file["params"], name);
    }
    assert_eq!(
        expected.len(),
        Strategy::NAMES.len() + 1,
        "and the wrong one"
    );
    assert!(
        Strategy::NAMES
            .iter()
            .all(|name| expected.contains_key(*name))
    );
    assert_eq!(Policy::default(), policy("pair-fill"));
    assert_eq!(
        Policy::default().grace_rounds as f64,
        number(&vectors["model"]["grace_rounds"])
    );
}

fn changes(changes: &LoadChanges) -> Value {
    match changes {
        LoadChanges::None => json!({"kind": "none"}),
        LoadChanges::Spike {
            shard,
            factor,
            first_round,
            rounds,
        } => json!({"kind": "spike",
            "shard": shard, "factor": factor, "first_round": first_round, "rounds": rounds}),
        LoadChanges::Alternate {
            odd_rounds,
            even_rounds,
        } => json!({"kind": "alternate",
            "odd_rounds": odd_rounds, "even_rounds": even_rounds}),
        LoadChanges::Noise { amplitude } => json!({"kind": "noise", "amplitude": amplitude}),
    }
}

#[test]
fn scenarios_are_those_of_the_file() {
    let vectors = vectors();
    let found: Vec<Value> = scenarios()
        .iter()
        .map(|s| {
            json!({"id": s.name, "title": s.title, "rounds": s.rounds,
            "report_lag": s.report_lag, "shards": s.shards, "excess_points": s.excess(),
            "load_changes": changes(&s.changes)})
        })
        .collect();
    assert_close(&Value::Array(found), &vectors["scenarios"], "scenarios");
}

fn result(run: &Run, strategy: &str) -> Value {
    let mut result = json!({
        "first_move_round": run.acting_rounds().next().unwrap_or(0),
        "last_move_round": run.last_round(),
        "settled": run.settled(),
        "acting_rounds": run.acting_rounds().count(),
        "moves": run.moves().count(),
        "moves_back": run.moves_back,
        "points_moved": run.points(),
        "peak_usage": run.peak,
        "final_gap": run.final_gap(),
        "final_usage": run.final_loads,
    });
    if strategy == "pair-fill" {
        let events = run.hot_units().map(|hot| json!([hot.round, hot.shard.0]));
        result["hot_events"] = events.collect();
    }
    result
}

fn move_list(run: &Run) -> Value {
    let of_move = |(round, m): (Round, &Move)| json!([round, m.unit.0, m.from.0, m.to.0]);
    run.moves().map(of_move).collect()
}

#[test]
fn every_run_of_the_file_is_reproduced() {
    let vectors = vectors();
    let scenarios: BTreeMap<String, Scenario> = scenarios()
        .into_iter()
        .map(|s| (s.name.clone(), s))
        .collect();
    // [scenario, strategy] -> results over the noise seeds.
    let mut noisy: BTreeMap<[&str; 2], Vec<Value>> = BTreeMap::new();
    let (mut runs, mut lists) = (0, 0);
    for expected in list(&vectors["runs"]) {
        let (scenario, strategy) = (text(&expected["scenario"]), text(&expected["strategy"]));
        let noise_seed = expected.get("noise_seed").map_or(1.0, number) as u64;
        let what = format!("{scenario} {strategy} {noise_seed}");
        let run = run(&scenarios[scenario], &policy(strategy), noise_seed);
        let result = result(&run, strategy);
        assert_close(&result, &expected["expected"], &what);
        runs += 1;
        match expected.get("move_list") {
            Some(list) => {
                assert_eq!(move_list(&run), *list, "{what}");
                lists += 1;
            }
            None => noisy.entry([scenario, strategy]).or_default().push(result),
        }
    }
    assert_eq!((runs, lists), (837, 397), "nothing was skipped");
    let aggregates = list(&vectors["aggregates"]);
    assert_eq!(aggregates.len(), noisy.len());
    for expected in aggregates {
        let key = [text(&expected["scenario"]), text(&expected["strategy"])];
        for field in [
            "first_move_round",
            "acting_rounds",
            "points_moved",
            "final_gap",
        ] {
            let values: Vec<f64> = noisy[&key].iter().map(|r| number(&r[field])).collect();
            assert_eq!(values.len(), 20, "{key:?}");
            let mean = values.iter().sum::<f64>() / 20.0;
            let least = values.iter().copied().fold(f64::MAX, f64::min);
            let greatest = values.iter().copied().fold(f64::MIN, f64::max);
            let found = json!({"mean": mean, "min": least, "max": greatest});
            assert_close(&found, &expected[field], &format!("{key:?} {field}"));
        }
    }
}

#[test]
fn divisible_load_goes_the_way_of_the_worked_example() {
    for expected in list(&vectors()["fluid"]) {
        let amount = match text(&expected["mode"]) {
            "half-gap" => Amount::HalfGap,
            mode => {
                assert_eq!(mode, "share");
                Amount::Share
            }
        };
        let rounds = run_fluid(amount, [90.0, 10.0], 400);
        let last = rounds
            .iter()
            .rposition(|r| r.moved != 0.0)
            .expect("something moves")
            + 1;
        let rows = rounds[..last].iter().map(|r| {
            json!([
                r.round,
                r.scores[0],
                r.scores[1],
                r.moved,
                r.loads[0],
                r.loads[1]
            ])
        });
        // The file adds up its rows, which are rounded to 6 places.
        let rounded = |x: f64| (x * 1e6).round() / 1e6;
        let found = json!({
            "mode": expected["mode"],
            "last_move_round": last,
            "final_load": rounds[399].loads,
            "points_moved": rounds.iter().map(|r| rounded(r.moved.abs())).sum::<f64>(),
            "rows": rows.collect::<Value>(),
        });
        assert_close(&found, expected, text(&expected["mode"]));
    }
}

#[test]
fn history_is_late_and_then_does_not_believe_the_repair() {
    let vectors = vectors();
    let expected = list(&vectors["history_delay"]);
    assert_eq!(expected.len(), 5);
    for expected in expected {
        let gap = number(&expected["gap"]);
        let delay = history_delay(gap).expect("more than 20 apart");
        let (rounds_to_trigger, rounds_still_accused) = delay;
        let found = json!({"gap": gap, "rounds_to_trigger": rounds_to_trigger,
            "rounds_still_accused": rounds_still_accused});
        assert_close(&found, expected, "history_delay");
    }
    assert_eq!(
        history_delay(20.0),
        None,
        "20 is reached, but never by an average"
    );
}

/// A strategy with one parameter set to what a decision says.
fn change(strategy: &mut Strategy, key: &str, value: &Value) {
    match (strategy, key) {
        (Strategy::Avg(p), "low") => p.low = number(value),
        (Strategy::Avg(p), "hits_low") => p.hits_low = number(value) as u32,
        (Strategy::MultiHit(p), "low") => p.low = number(value),
        (Strategy::MultiHit(p), "high") => p.high = number(value),
        (Strategy::MultiHit(p), "hits_low") => p.hits_low = number(value) as u32,
        (Strategy::MultiHit(p), "hits_high") => p.hits_high = number(value) as u32,
        (Strategy::Transfer(p), "hits") => p.hits = number(value) as u32,
        (Strategy::Transfer(p), "max_pairs") => p.max_pairs = number(value) as usize,
        // Part of the reports here.
        (Strategy::Transfer(_), "throughput") => {}
        (strategy, key) => panic!("{}: {key}", strategy.family()),
    }
}

/// The reports of one call: what it shows, else the sums of the unit loads.
fn shown(shards: &[Vec<UnitLoad>], call: &Value, throughput: Option<&Value>) -> Vec<Report> {
    let report = |(shard, units): (usize, &Vec<UnitLoad>)| Report {
        shard: ShardId(shard as u32),
        as_of: number(&call["as_of"][shard]) as Round,
        score: call.get("score").map_or_else(
            || units.iter().fold(0.0, |sum, unit| sum + unit.load),
            |score| number(&score[shard]),
        ),
        throughput: throughput.map(|rates| number(&rates[shard])),
        units: units.clone(),
    };
    shards.iter().enumerate().map(report).collect()
}

#[test]
fn every_single_decision_of_the_file_is_the_same() {
    let vectors = vectors();
    let decisions = list(&vectors["decisions"]);
    assert_eq!(decisions.len(), 25);
    for decision in decisions {
        let what = text(&decision["title"]);
        let mut policy = policy(text(&decision["strategy"]));
        let changed = decision["changed_params"].as_object().expect("a table");
        changed
            .iter()
            .for_each(|(key, value)| change(&mut policy.strategy, key, value));
        if let Strategy::Threshold(params) = &mut policy.strategy {
            params.placement_seed = number(&decision["placement_seed"]) as u64;
        }
        let mut number_of_unit = 0..;
        let mut unit = |load: &f64| UnitLoad {
            unit: UnitId(number_of_unit.next().expect("no end")),
            load: *load,
        };
        let shards: Vec<Vec<UnitLoad>> = list(&decision["shards"])
            .iter()
            .map(|loads| numbers(loads).iter().map(&mut unit).collect())
            .collect();
        // A unit that moved in round m may move again from round m + 31.
        let moved_at = decision["moved_at"].as_object().expect("a table");
        let free_at: BTreeMap<UnitId, Round> = moved_at
            .iter()
            .map(|(unit, m)| {
                (
                    UnitId(unit.parse().expect("a unit")),
                    number(m) as Round + 31,
                )
            })
            .collect();
        let mut state = State::default();
        for call in list(&decision["calls"]) {
            if call.get("event").is_some() {
                state.clear_counters();
                continue;
            }
            free_at
                .iter()
                .for_each(|(unit, round)| state.forbid(*unit, *round));
            let round = number(&call["round"]) as Round;
            let reports = shown(&shards, call, changed.get("throughput"));
            let plan = plan(&reports, round, &policy, &mut state);
            let moves = plan
                .moves
                .iter()
                .map(|m| json!([m.unit.0, m.from.0, m.to.0]));
            assert_eq!(
                moves.collect::<Value>(),
                call["plan"],
                "{what}, round {round}"
            );
            // The strategy thinks they were carried out, but the units never moved.
            for planned in &plan.moves {
                state.finish(planned, round, Outcome::Done);
                state.forbid(planned.unit, 0);
            }
        }
    }
}
