//! `pelton simulate`: plays load on shards through under one strategy or all.

mod input;
mod issue;
mod json;
mod picture;
mod table;

use pelton_balance::{
    Policy, Strategy,
    simulate::{Run, Scenario, run as play, scenarios},
};

use crate::{
    args::simulate::{ISSUE, Simulate},
    files::{check_output, write},
    outcome::{Failure, print},
};

/// What was played, and what came of it under each strategy.
struct Played {
    scenario: Scenario,
    runs: Vec<(String, Run)>,
    /// The divisible load of the issue comes before the runs.
    worked: Option<issue::Worked>,
}

pub(crate) fn run(simulate: &Simulate) -> Result<(), Failure> {
    let outputs = [&simulate.json, &simulate.svg].into_iter().flatten();
    for path in outputs {
        check_output(path, simulate.input.as_deref())?;
    }
    let played = played(simulate)?;
    print(&match (&played.worked, simulate.compare) {
        (Some(worked), _) => worked.table(&played.runs),
        (None, true) => table::compare(&played.scenario, &played.runs),
        (None, false) => table::rounds(&played.scenario, &played.runs),
    })?;
    if let Some(path) = &simulate.json {
        write(path, &json::json(&played))?;
    }
    if let Some(path) = &simulate.svg {
        write(path, &picture::svg(&played))?;
    }
    Ok(())
}

fn played(simulate: &Simulate) -> Result<Played, Failure> {
    let name = simulate.scenario.as_deref().unwrap_or("S0");
    let scenario = match &simulate.input {
        Some(path) => input::read(path)?,
        None => scenario(name),
    };
    let step_by_step = name == ISSUE && simulate.strategy.is_none() && !simulate.compare;
    let names: Vec<&str> = match &simulate.strategy {
        _ if simulate.compare => Strategy::NAMES.to_vec(),
        _ if step_by_step => vec!["multi-hit", "pair-fill"],
        Some(wanted) => vec![wanted],
        None => vec!["pair-fill"],
    };
    let runs = names.into_iter().map(|name| {
        let strategy = Strategy::named(name).expect("only names of strategies pass");
        let run = play(&scenario, &Policy::new(strategy), simulate.seed);
        (name.to_owned(), run)
    });
    Ok(Played {
        runs: runs.collect(),
        worked: step_by_step.then(issue::Worked::new),
        scenario,
    })
}

/// A scenario of the tables; the issue's cluster is S0f.
fn scenario(name: &str) -> Scenario {
    let of_tables = if name == ISSUE { "S0f" } else { name };
    let found = scenarios().into_iter().find(|s| s.name == of_tables);
    Scenario {
        name: name.into(),
        ..found.expect("only names of scenarios pass")
    }
}
