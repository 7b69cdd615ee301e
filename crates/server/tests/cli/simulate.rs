//! `pelton simulate` as a user runs it.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use crate::{pelton, scratch, text};

/// What a run that ends with 0 prints.
#[track_caller]
fn printed(args: &[&str]) -> String {
    let out = pelton(&[&["simulate"], args].concat());
    let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(
        (out.status.code(), stderr.as_str()),
        (Some(0), ""),
        "{args:?}"
    );
    assert!(!stdout.contains('\x1b'), "no terminal, no colours");
    stdout
}

/// The words of the line that begins with `first`.
#[track_caller]
fn words<'a>(table: &'a str, first: &str) -> Vec<&'a str> {
    let mut lines = table.lines().map(|line| line.split_whitespace().collect());
    let found = lines.find(|words: &Vec<&str>| words.first() == Some(&first));
    found.unwrap_or_else(|| panic!("no line {first} in\n{table}"))
}

#[test]
fn issue_18173_is_shown_step_by_step_and_its_remedy_ends_it_in_one_act() {
    let table = printed(&["issue-18173"]);
    // Round, scores, real load at that time, what moved, load after.
    for (round, line) in [
        ("1", "1 90 / 10 90 / 10 40.00 0 to 1 50 / 50"),
        ("2", "2 86 / 14 50 / 50 36.00 0 to 1 14 / 86"),
        ("3", "3 78.8 / 21.2 14 / 86 14.00 0 to 1 0 / 100"),
        ("4", "4 70.92 / 29.08 0 / 100 - 0 / 100"),
        ("10", "10 37.69 / 62.31 0 / 100 12.31 1 to 0 12.31 / 87.69"),
        (
            "27",
            "27 60.76 / 39.24 59.24 / 40.76 10.76 0 to 1 48.49 / 51.51",
        ),
    ] {
        assert_eq!(words(&table, round).join(" "), line);
    }
    assert!(
        !table.contains("\n   28 "),
        "round 27 is the last that does anything"
    );
    assert!(
        table.contains("181.85 points moved for a problem of 40"),
        "{table}"
    );
    assert!(table.contains("multi-hit: 1 act, in round 5: 40 units, 40 points, then 50 and 50"));
}

#[test]
fn all_strategies_stand_side_by_side_and_without_a_scenario_it_is_90_against_10() {
    let table = printed(&["--compare"]);
    assert!(
        table.contains("S0: worked example 90/10, units of 5"),
        "{table}"
    );
    // Last round, moves, back, points, peak, gap at the end, hot units.
    let threshold = ["threshold", "53", "33", "13", "165", "90", "10", "0"];
    assert_eq!(words(&table, "threshold"), threshold);
    let pair_fill = ["pair-fill", "2", "8", "0", "40", "90", "0", "0"];
    assert_eq!(words(&table, "pair-fill"), pair_fill);
    let never = printed(&["S6", "--compare"]);
    assert_eq!(words(&never, "overload")[..3], ["overload", "never", "586"]);
}

/// P1: the command takes the names of the vectors and gives their numbers.
#[test]
fn every_scenario_and_strategy_of_the_vectors_comes_out_as_there() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR"));
    let vectors = vectors.join("../balance/tests/balance_vectors.json");
    let vectors = fs::read_to_string(vectors).expect("a file of the workspace");
    let vectors: Value = serde_json::from_str(&vectors).expect("JSON");
    let mut expected: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for run in vectors["runs"].as_array().expect("a list") {
        // The seed of the command is 1 too.
        let same_seed = run["noise_seed"].as_u64().is_none_or(|seed| seed == 1);
        if same_seed && run["strategy"] != "avg-pair-keyed" {
            let scenario = run["scenario"].as_str().expect("a name");
            expected.entry(scenario).or_default().push(run);
        }
    }
    assert_eq!(expected.len(), 38);
    for (scenario, runs) in expected {
        let table = printed(&[scenario, "--compare"]);
        assert_eq!(runs.len(), 11, "{scenario}");
        for run in runs {
            let strategy = run["strategy"].as_str().expect("a name");
            let [_, last, moves, back, points, _, gap, _] = words(&table, strategy)[..] else {
                panic!("{scenario} {strategy} has not 8 columns\n{table}");
            };
            let expected = &run["expected"];
            let what = format!("{scenario} {strategy}");
            let last_round = match expected["settled"].as_bool() {
                Some(true) => expected["last_move_round"].to_string(),
                _ => "never".into(),
            };
            assert_eq!(last, last_round, "{what}");
            assert_eq!(moves, expected["moves"].to_string(), "{what}");
            assert_eq!(back, expected["moves_back"].to_string(), "{what}");
            for (found, field) in [(points, "points_moved"), (gap, "final_gap")] {
                let found: f64 = found.parse().expect("a number");
                let expected = expected[field].as_f64().expect("a number");
                assert!((found - expected).abs() < 0.005_001, "{what} {field}");
            }
        }
    }
}

#[test]
fn a_users_own_loads_are_played_and_drawn_for_light_and_dark() {
    let dir = scratch("own");
    let path = |name: &str| dir.join(name).display().to_string();
    let (loads, svg, json) = (path("loads.toml"), path("a.svg"), path("a.json"));
    let file = "title = \"a <hot> topic\"\n[[shard]]\nunits = [70, 5, 5]\n\
        [[shard]]\nunits = [5]\nforeign = 20\n[[shard]]\n";
    fs::write(&loads, file).expect("ours");
    let table = printed(&["--input", &loads, "--svg", &svg, "--json", &json]);
    assert!(table.contains("loads: a <hot> topic"), "{table}");
    assert!(table.contains("3 shards, 4 units, 240 rounds"), "{table}");
    assert!(table.contains("split unit 0 (70.0 points)"), "{table}");
    let picture = fs::read_to_string(&svg).expect("written");
    assert!(picture.starts_with("<svg xmlns=") && picture.ends_with("</svg>\n"));
    assert!(picture.contains("prefers-color-scheme:dark") && picture.contains("shard 2"));
    assert!(picture.contains("a &lt;hot&gt; topic") && !picture.contains("<hot>"));
    for forbidden in ["<script", "NaN", "inf", "href"] {
        assert!(!picture.contains(forbidden), "{forbidden}");
    }
    let value = fs::read_to_string(&json).expect("written");
    let value: Value = serde_json::from_str(&value).expect("JSON");
    assert_eq!(
        value["runs"][0]["rounds"][0]["loads"],
        serde_json::json!([80.0, 25.0, 0.0])
    );
    // A picture of all strategies has a panel for each.
    printed(&["--input", &loads, "--compare", "--svg", &svg]);
    let picture = fs::read_to_string(&svg).expect("written");
    assert_eq!(picture.matches("<g transform").count(), 11);
    // And one of the issue has the worked example besides.
    printed(&["issue-18173", "--svg", &svg]);
    let picture = fs::read_to_string(&svg).expect("written");
    assert_eq!(picture.matches("<g transform").count(), 3);
    assert!(picture.contains("score 1"), "what it was judged by");
    fs::remove_dir_all(&dir).expect("ours");
}

#[test]
fn the_file_that_help_shows_can_be_played_as_it_is() {
    let help = printed(&["--help"]);
    let example = help
        .split("--input loads.toml:\n")
        .nth(1)
        .expect("an example");
    let example = example
        .split("\nExamples:")
        .next()
        .expect("and more after it");
    let dir = scratch("example");
    let loads = dir.join("loads.toml");
    fs::write(&loads, example).expect("ours");
    let table = printed(&["--input", &loads.display().to_string()]);
    assert!(
        table.contains("orders is hot") && table.contains("2 shards, 3 units"),
        "{table}"
    );
    // What is commented out is right too.
    let start = example.find("  [spike]").expect("a spike");
    let noise = example.find("  # [noise]").expect("and noise");
    let uncommented = |line: &str| line.replacen("# ", "", 1) + "\n";
    let noise: String = example[noise..].lines().map(uncommented).collect();
    let noisy = example[..start].to_owned() + &noise;
    fs::write(&loads, noisy).expect("ours");
    printed(&["--input", &loads.display().to_string()]);
    for scenario in ["issue-18173", "S2b", "S1+40/8", "S4b"] {
        assert!(
            help.contains(&format!("- {scenario}:")),
            "{scenario} is in the list"
        );
    }
    fs::remove_dir_all(&dir).expect("ours");
}

#[test]
fn bad_loads_end_with_2_and_one_line_that_names_file_and_line() {
    let dir = scratch("bad");
    let loads = dir.join("loads.toml");
    let path = loads.display().to_string();
    for (file, line, what, remedy) in [
        (
            "[[shard]]\nunits = [1, -5]",
            2,
            "-5 is no load",
            "give points",
        ),
        (
            "[[shard]]\n\nunits = [\"orders\"]",
            3,
            "invalid type",
            "--help shows a file",
        ),
        (
            "[[shard]]\nload = 5",
            2,
            "unknown field `load`",
            "--help shows a file",
        ),
        ("[[shard]]\nunits = [5", 2, "", "--help shows a file"),
        (
            "# nothing",
            1,
            "there is no shard",
            "give each shard a [[shard]]",
        ),
    ] {
        fs::write(&loads, file).expect("ours");
        let out = pelton(&["simulate", "--input", &path]);
        let error = text(&out.stderr);
        assert_eq!(
            (out.status.code(), text(&out.stdout).as_str()),
            (Some(2), ""),
            "{error}"
        );
        let place = format!("pelton: reading {path} failed: line {line}: ");
        assert!(error.starts_with(&place), "{error}");
        assert!(error.contains(what) && error.contains(remedy), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    // A file that is not there is no bad file.
    let out = pelton(&["simulate", "--input", "/nonexistent.toml"]);
    assert_eq!(
        (out.status.code(), text(&out.stderr).lines().count()),
        (Some(1), 1)
    );
    // Nor may the picture take its place.
    let out = pelton(&["simulate", "--input", &path, "--svg", &path]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    assert_eq!(
        fs::read_to_string(&loads).expect("still there"),
        "# nothing"
    );
    fs::remove_dir_all(&dir).expect("ours");
}

#[test]
fn what_does_not_go_together_is_a_usage_error() {
    for args in [
        &["S99"][..],
        &["--strategy", "pairfill"],
        &["S0", "--input", "x.toml"],
        &["--compare", "--strategy", "avg"],
        &["--seed", "-1"],
    ] {
        let out = pelton(&[&["simulate"], args].concat());
        assert_eq!(out.status.code(), Some(2), "{args:?}");
        assert_eq!(text(&out.stdout), "", "{args:?}");
    }
    let out = pelton(&["simulate", "--strategy", "pair-fil"]);
    assert!(
        text(&out.stderr).contains("'pair-fill'"),
        "the nearest is named"
    );
}

#[test]
fn the_same_seed_gives_the_same_output_and_another_seed_another() {
    let noisy = |seed| printed(&["S4b", "--compare", "--seed", seed]);
    assert_eq!(noisy("5"), noisy("5"));
    assert_ne!(noisy("5"), noisy("6"));
}
