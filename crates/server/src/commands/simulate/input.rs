//! A user's own loads: a TOML file, checked before anything is played.

use std::{fs, ops::Range, path::Path};

use pelton_balance::simulate::{LoadChanges, Scenario};
use serde::Deserialize;
use toml::Spanned;

use crate::outcome::Failure;

/// A run keeps every round of every shard; this many of both together take some 100 MB for all
/// strategies.
const SHARD_ROUNDS_MAX: u64 = 500_000;
const UNITS_MAX: usize = 100_000;
/// Ten thousand shards' worth: far from where sums of doubles lose points.
const LOAD_MAX: f64 = 1e6;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    title: Option<String>,
    rounds: Option<Spanned<u64>>,
    report_lag: Option<Spanned<u64>>,
    #[serde(default)]
    shard: Vec<Spanned<Shard>>,
    spike: Option<Spanned<Spike>>,
    noise: Option<Spanned<Noise>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Shard {
    #[serde(default)]
    units: Vec<Spanned<f64>>,
    foreign: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spike {
    shard: Spanned<usize>,
    factor: Spanned<f64>,
    first_round: Spanned<u64>,
    rounds: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Noise {
    amplitude: Spanned<f64>,
}

/// What is wrong, where, and what to do.
#[derive(Debug)]
struct Wrong {
    at: Option<Range<usize>>,
    what: String,
    remedy: &'static str,
}

/// Reads and checks the file.
pub(super) fn read(path: &Path) -> Result<Scenario, Failure> {
    let text = fs::read_to_string(path).map_err(|error| {
        Failure::Error(format!(
            "reading {} failed: {error}; name a TOML file with loads, see pelton simulate --help",
            path.display()
        ))
    })?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    parse(&text, &name).map_err(|wrong| {
        let line = wrong.at.map_or(1, |at| line_of(&text, at.start));
        Failure::Usage(format!(
            "reading {} failed: line {line}: {}; {}",
            path.display(),
            wrong.what,
            wrong.remedy
        ))
    })
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    before.filter(|byte| **byte == b'\n').count() + 1
}

fn parse(text: &str, name: &str) -> Result<Scenario, Wrong> {
    let file: File = toml::from_str(text).map_err(|error| Wrong {
        at: error.span(),
        what: error.message().replace('\n', ", "),
        remedy: "pelton simulate --help shows a file",
    })?;
    if file.shard.is_empty() {
        return Err(Wrong {
            at: None,
            what: "there is no shard".into(),
            remedy: "give each shard a [[shard]] with units = [LOAD, ...]",
        });
    }
    let mut shards = Vec::new();
    let mut foreign = Vec::new();
    for shard in &file.shard {
        let Shard {
            units,
            foreign: own,
        } = shard.get_ref();
        let loads: Result<Vec<f64>, Wrong> = units.iter().map(load).collect();
        shards.push(loads?);
        foreign.push(own.as_ref().map_or(Ok(0.0), load)?);
    }
    if shards.iter().map(Vec::len).sum::<usize>() > UNITS_MAX {
        return Err(Wrong {
            at: None,
            what: format!("there are more than {UNITS_MAX} units"),
            remedy: "put small ones together",
        });
    }
    Ok(Scenario {
        name: name.into(),
        title: file
            .title
            .clone()
            .unwrap_or_else(|| "your own loads".into()),
        rounds: rounds(&file)?,
        report_lag: file.report_lag.as_ref().map_or(0, |lag| *lag.get_ref()),
        changes: changes(&file)?,
        shards,
        foreign,
    })
}

fn load(load: &Spanned<f64>) -> Result<f64, Wrong> {
    match *load.get_ref() {
        value if (0.0..=LOAD_MAX).contains(&value) => Ok(value),
        value => Err(Wrong {
            at: Some(load.span()),
            what: format!("{value} is no load"),
            remedy: "give points, one percent of one shard: 0 to 1000000",
        }),
    }
}

fn rounds(file: &File) -> Result<u64, Wrong> {
    let Some(rounds) = &file.rounds else {
        return Ok(240);
    };
    match *rounds.get_ref() {
        0 => Err(Wrong {
            at: Some(rounds.span()),
            what: "0 rounds show nothing".into(),
            remedy: "give 1 or more, or leave it out for 240",
        }),
        n if n.saturating_mul(file.shard.len() as u64) > SHARD_ROUNDS_MAX => Err(Wrong {
            at: Some(rounds.span()),
            what: format!(
                "{n} rounds of {} shards are too many to keep",
                file.shard.len()
            ),
            remedy: "give fewer: rounds times shards may be 500000",
        }),
        n => Ok(n),
    }
}

fn changes(file: &File) -> Result<LoadChanges, Wrong> {
    match (&file.spike, &file.noise) {
        (None, None) => Ok(LoadChanges::None),
        (Some(_), Some(noise)) => Err(Wrong {
            at: Some(noise.span()),
            what: "there is a [spike] and a [noise]".into(),
            remedy: "give one of them",
        }),
        (Some(spike), None) => self::spike(spike.get_ref(), file.shard.len()),
        (None, Some(noise)) => {
            let amplitude = &noise.get_ref().amplitude;
            match *amplitude.get_ref() {
                value if (0.0..=1.0).contains(&value) => {
                    Ok(LoadChanges::Noise { amplitude: value })
                }
                value => Err(Wrong {
                    at: Some(amplitude.span()),
                    what: format!("{value} is no amplitude"),
                    remedy: "give a number from 0 to 1; 0.2 is a fifth up or down",
                }),
            }
        }
    }
}

fn spike(spike: &Spike, shards: usize) -> Result<LoadChanges, Wrong> {
    let wrong = |at: Range<usize>, what: String, remedy| {
        Err(Wrong {
            at: Some(at),
            what,
            remedy,
        })
    };
    let (shard, factor) = (*spike.shard.get_ref(), *spike.factor.get_ref());
    if shard >= shards {
        let what = format!("there is no shard {shard}");
        return wrong(spike.shard.span(), what, "count the [[shard]] from 0");
    }
    if !(0.0..=1000.0).contains(&factor) {
        let what = format!("{factor} is no factor");
        return wrong(spike.factor.span(), what, "give a number from 0 to 1000");
    }
    let first_round = *spike.first_round.get_ref();
    if first_round.checked_add(spike.rounds).is_none() {
        let what = format!("round {first_round} never comes");
        return wrong(spike.first_round.span(), what, "give a smaller number");
    }
    Ok(LoadChanges::Spike {
        shard,
        factor,
        first_round,
        rounds: spike.rounds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_everything_is_read_as_written() {
        let text = "title = \"hot\"\nrounds = 12\nreport_lag = 2\n\
            [[shard]]\nunits = [40, 20.5]\nforeign = 10\n[[shard]]\n\
            [spike]\nshard = 1\nfactor = 1.5\nfirst_round = 3\nrounds = 4\n";
        let scenario = parse(text, "mine").unwrap();
        let expected = Scenario {
            name: "mine".into(),
            title: "hot".into(),
            shards: vec![vec![40.0, 20.5], vec![]],
            foreign: vec![10.0, 0.0],
            rounds: 12,
            report_lag: 2,
            changes: LoadChanges::Spike {
                shard: 1,
                factor: 1.5,
                first_round: 3,
                rounds: 4,
            },
        };
        assert_eq!(scenario, expected);
        let short = parse("[[shard]]\nunits = [1]", "x").unwrap();
        assert_eq!((short.rounds, short.report_lag), (240, 0));
        assert_eq!(short.changes, LoadChanges::None);
    }

    #[test]
    fn what_is_wrong_is_found_on_its_line() {
        let table = [
            ("[[shard]]\nunits = [1, -5]", 2, "-5 is no load"),
            ("[[shard]]\nunits = [1,\n 2,\n nan]", 4, "NaN is no load"),
            ("[[shard]]\nunits = [inf]", 2, "inf is no load"),
            ("[[shard]]\n\nforeign = -0.1", 3, "-0.1 is no load"),
            ("[[shard]]\nunits = [\"a\"]", 2, "invalid type: string"),
            ("[[shard]]\nunits = 5", 2, "invalid type: integer"),
            ("[[shard]]\nunit = [5]", 2, "unknown field `unit`"),
            ("[[shard]]\nunits = [5", 2, ""),
            ("round = 3\n[[shard]]", 1, "unknown field `round`"),
            ("rounds = 0\n[[shard]]", 1, "0 rounds"),
            ("\nrounds = 500001\n[[shard]]", 2, "too many to keep"),
            ("rounds = -1\n[[shard]]", 1, ""),
            ("title = \"empty\"", 1, "there is no shard"),
            ("", 1, "there is no shard"),
            ("[[shard]]\n[noise]\namplitude = 2", 3, "2 is no amplitude"),
            ("[[shard]]\n[noise]", 2, "missing field `amplitude`"),
            (
                "[[shard]]\n[spike]\nshard = 1\nfactor = 2\nfirst_round = 1\nrounds = 1",
                3,
                "there is no shard 1",
            ),
            (
                "[[shard]]\n[spike]\nshard = 0\nfactor = -2\nfirst_round = 1\nrounds = 1",
                4,
                "-2 is no factor",
            ),
            (
                "[noise]\namplitude = 0\n[[shard]]\n[spike]\nshard = 0\nfactor = 1\nfirst_round = 1\nrounds = 1",
                1,
                "a [spike] and a [noise]",
            ),
        ];
        for (text, line, what) in table {
            let wrong = parse(text, "x").expect_err(text);
            let found = wrong.at.clone().map_or(1, |at| line_of(text, at.start));
            assert_eq!(found, line, "{text:?}: {wrong:?}");
            assert!(wrong.what.contains(what), "{text:?}: {wrong:?}");
            assert!(!wrong.what.contains('\n'), "{text:?}: {wrong:?}");
        }
    }
}
