//! `pelton bench`: runs a scenario, prints the table, writes the files.

use std::{
    io,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use indicatif::{ProgressBar, ProgressStyle};
use pelton_load::{Options, Report, Watch};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};

use crate::{
    args::{Bench, Target},
    files::{check_output, write},
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
        message_bytes: bench.size.map(whole),
        batch: bench.batch.map(whole),
        dir: bench.dir.clone(),
        disk: bench.disk.map(Into::into),
    };
    let only_json = "only --json can go to standard output; name a file";
    if [&bench.hgrm, &bench.html]
        .into_iter()
        .flatten()
        .any(|path| is_stdout(path))
    {
        return Err(Failure::Usage(only_json.to_owned()));
    }
    let outputs = [&bench.json, &bench.hgrm, &bench.html];
    outputs
        .into_iter()
        .flatten()
        .filter(|path| !is_stdout(path))
        .try_for_each(|path| check_output(path, bench.input.as_deref()))?;
    if let (Some(path), false) = (&bench.hgrm, options.scenario.has_latency()) {
        return Err(no_latency(path, options.scenario.name()));
    }
    let report = measured(&options)?;
    match bench.json.as_deref() {
        // For a program that reads it: nothing else goes there.
        Some(path) if is_stdout(path) => print(&report.json())?,
        Some(path) => {
            print(&report.table())?;
            write(path, &report.json())?;
        }
        None => print(&report.table())?,
    }
    if let Some(path) = &bench.html {
        write(path, &report.html())?;
    }
    if let Some(path) = &bench.hgrm {
        match report.main_latency() {
            Some((_, histogram)) => write(path, &pelton_load::hgrm(histogram))?,
            None => return Err(no_latency(path, report.scenario)),
        }
    }
    // An interrupted run has not checked what it was asked to.
    match report.violations().is_empty() && !report.interrupted {
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
    let watch = Watch {
        progress: &|what| {
            progress.set_message(what.to_owned());
            progress.tick();
        },
        stop: stop_flag().map_err(|error| {
            Failure::Error(format!(
                "watching for Ctrl-C failed: {error}; run it where signals may be handled"
            ))
        })?,
    };
    let report = pelton_load::run(options, &watch);
    progress.finish_and_clear();
    report.map_err(|error| match error.is_usage() {
        true => Failure::Usage(error.to_string()),
        false => Failure::error(error),
    })
}

/// Set by the first Ctrl-C (or SIGTERM, SIGHUP), which ends the run in order. The second ends the
/// process at once; what that leaves behind the next run removes.
fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // In this order: the first signal finds the flag not yet set.
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn is_stdout(path: &Path) -> bool {
    path == Path::new("-")
}

fn no_latency(path: &Path, scenario: &str) -> Failure {
    Failure::Usage(format!(
        "writing {} would fail: scenario {scenario} has no latency; leave --hgrm out",
        path.display()
    ))
}

/// What was typed as a size: one that does not fit is as good as the largest.
fn whole(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
