//! The binary `pelton`. Exit codes: 0 fine, 1 the checked thing is not so, 2 usage.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod config;
mod files;
mod outcome;
mod serve;

use std::process::ExitCode;

use clap::Parser;

use crate::{
    args::{Args, Command, LogCommand},
    outcome::Failure,
};

/// Small blocks that one thread allocates and another frees are what an engine makes.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match &args.command {
        Command::Bench(bench) => commands::bench::run(bench),
        Command::Check(check) => commands::check::run(check),
        Command::Serve(serve) => commands::serve::run(serve),
        Command::Simulate(simulate) => commands::simulate::run(simulate),
        Command::Log(log) => match &log.command {
            LogCommand::Verify { dir } => commands::log::verify(dir),
            LogCommand::Dump { dir, limit } => commands::log::dump(dir, *limit),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Told) => ExitCode::from(1),
        Err(Failure::Error(line)) => outcome::fail(&line, 1),
        Err(Failure::Usage(line)) => outcome::fail(&line, 2),
    }
}
