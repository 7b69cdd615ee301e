//! `pelton check`: what the machine offers an engine.

use std::{fmt::Write as _, time::Duration};

use pelton::{Fact, FactVerdict};

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
            "\nAn engine runs here; {n} of these lines could be better."
        ),
        (n, _) => writeln!(out, "\nMissing: {n} of these lines matter to an engine."),
    };
    print(&out)?;
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Told),
    }
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
