//! `pelton check`: what the machine offers an engine.

use std::{
    fmt::Write as _,
    fs::{self, OpenOptions},
    path::Path,
    time::Duration,
};

use pelton::{Fact, FactVerdict};
use pelton_load::units;

use crate::{
    args::Check,
    outcome::{Failure, print},
};

/// Long enough for a steady median of the disk's sync.
const PROBE: Duration = Duration::from_secs(2);

pub(crate) fn run(check: &Check) -> Result<(), Failure> {
    if !check.dir.is_dir() {
        return Err(Failure::Error(format!(
            "checking {} failed: it is no directory; name one with --dir DIR",
            check.dir.display()
        )));
    }
    if !check.no_probe {
        may_write(&check.dir)?;
    }
    let probe = (!check.no_probe).then_some(PROBE);
    let report = pelton::host_report(Some(&check.dir), check.shards, probe);
    let width = report
        .facts
        .iter()
        .map(|fact| fact.name.len())
        .max()
        .unwrap_or(0);
    let mut out = String::new();
    report
        .facts
        .iter()
        .for_each(|fact| line(&mut out, fact, width));
    let count = |verdict| {
        report
            .facts
            .iter()
            .filter(|fact| fact.verdict == verdict)
            .count()
    };
    let (failed, warned) = (count(FactVerdict::Fail), count(FactVerdict::Warn));
    let _ = match (failed, warned) {
        (0, 0) => writeln!(out, "\nThis machine has all an engine wants."),
        (0, n) => writeln!(
            out,
            "\nAn engine runs here; {} above could be better.",
            units::many(n as u64, "line")
        ),
        (n, _) => writeln!(
            out,
            "\nMissing: {} above {} to an engine.",
            units::many(n as u64, "line"),
            if n == 1 { "matters" } else { "matter" }
        ),
    };
    print(&out)?;
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Told),
    }
}

/// One line for what would fail each measurement in its own words.
fn may_write(dir: &Path) -> Result<(), Failure> {
    let path = dir.join(format!(".pelton-check-{}", std::process::id()));
    let made = OpenOptions::new().write(true).create_new(true).open(&path);
    made.and_then(|_| fs::remove_file(&path)).map_err(|error| {
        Failure::Error(format!(
            "checking {} failed: no file can be made in it ({error}); name a directory that you may \
             write to with --dir DIR, or leave the measurement out with --no-probe",
            dir.display()
        ))
    })
}

fn line(out: &mut String, fact: &Fact, width: usize) {
    let (word, colour) = match fact.verdict {
        FactVerdict::Ok => ("ok  ", "\x1b[32m"),
        FactVerdict::Warn => ("warn", "\x1b[33m"),
        FactVerdict::Fail => ("FAIL", "\x1b[1;31m"),
    };
    let _ = writeln!(
        out,
        "{colour}{word}\x1b[0m  {:<width$}  {}",
        fact.name, fact.value
    );
    if !fact.remedy.is_empty() {
        let _ = writeln!(out, "      {:<width$}  -> {}", "", fact.remedy);
    }
}
