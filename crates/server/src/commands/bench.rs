//! `pelton bench`: runs a scenario, prints the table, writes the files.

use std::{fs, path::Path};

use indicatif::{ProgressBar, ProgressStyle};
use pelton_load::{Options, Report};

use crate::{
    args::{Bench, Target},
    outcome::{Failure, print},
};

pub(crate) fn run(bench: &Bench) -> Result<(), Failure> {
    let Target::Embedded = bench.target;
    let options = Options {
        scenario: bench.scenario,
        input: bench.input.clone(),
        key: bench.key.clone(),
        speed: bench.speed,
        seconds: bench.duration,
        rate: bench.rate,
        shards: bench.shards,
        durability: bench.durability.map(Into::into),
        message_bytes: bench.size,
        batch: bench.batch,
        dir: bench.dir.clone(),
        disk: bench.disk.map(Into::into),
    };
    let outputs = [&bench.json, &bench.hgrm, &bench.html];
    // Before the run: nobody wants to learn of a typing error after it.
    outputs
        .into_iter()
        .flatten()
        .try_for_each(|path| check_output(path))?;
    let report = measured(&options)?;
    print(&report.table());
    if let Some(path) = &bench.json {
        write(path, &report.json())?;
    }
    if let Some(path) = &bench.html {
        write(path, &report.html())?;
    }
    if let Some(path) = &bench.hgrm {
        match report.main_latency() {
            Some((_, histogram)) => write(path, &pelton_load::hgrm(histogram))?,
            None => return Err(no_latency(path, &report)),
        }
    }
    match report.violations().is_empty() {
        true => Ok(()),
        false => Err(Failure::Told),
    }
}

fn measured(options: &Options) -> Result<Report, Failure> {
    // Drawn on standard error and only on a terminal. No ticker: a third busy thread is what a
    // measurement on two CPUs does not need.
    let progress = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("[{elapsed}] {msg}") {
        progress.set_style(style);
    }
    let report = pelton_load::run(options, &|what| {
        progress.set_message(what.to_owned());
        progress.tick();
    });
    progress.finish_and_clear();
    report.map_err(|error| match error.is_usage() {
        true => Failure::Usage(error.to_string()),
        false => Failure::error(error),
    })
}

fn check_output(path: &Path) -> Result<(), Failure> {
    let parent = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    match parent {
        Some(parent) if !parent.is_dir() => Err(Failure::Usage(format!(
            "{} cannot be written: {} is no directory; make it first, or name another file",
            path.display(),
            parent.display()
        ))),
        _ => Ok(()),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| {
        Failure::Error(format!(
            "writing {} failed: {error}; name a file that you may write",
            path.display()
        ))
    })
}

fn no_latency(path: &Path, report: &Report) -> Failure {
    Failure::Error(format!(
        "writing {} failed: scenario {} has no latency; leave --hgrm out",
        path.display(),
        report.scenario
    ))
}
