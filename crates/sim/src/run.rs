//! Runs of the world: from a seed, from bytes, and again without what does not matter.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::steps::{Step, from_bytes, from_seed};
use crate::world::{Totals, World};
use crate::{Violation, shrink};

/// A run in which a rule did not hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Seed of the world's shape.
    pub seed: u64,
    /// How many steps the run had.
    pub steps: usize,
    /// The rule, and what was seen.
    pub violation: Violation,
    /// The steps up to the one that failed; [`Failure::shrink`] makes them few.
    trace: Vec<Step>,
}

/// Runs `steps` steps from a seed, then everything to its end.
///
/// # Errors
/// [`Failure`]: the first rule that did not hold.
pub fn run_seed(seed: u64, steps: usize) -> Result<Totals, Box<Failure>> {
    run(seed, steps, from_seed(seed, steps))
}

/// Runs the steps that any bytes mean, in the world that the first two bytes choose.
///
/// # Errors
/// [`Failure`]: the first rule that did not hold.
pub fn run_bytes(bytes: &[u8]) -> Result<Totals, Box<Failure>> {
    let Some((seed, rest)) = bytes.split_first_chunk() else {
        return Ok(Totals::default());
    };
    let steps = from_bytes(rest);
    run(u64::from(u16::from_le_bytes(*seed)), steps.len(), steps)
}

fn run(seed: u64, count: usize, mut steps: Vec<Step>) -> Result<Totals, Box<Failure>> {
    try_steps(seed, &steps).map_err(|(at, violation)| {
        steps.truncate(at + 1);
        Box::new(Failure {
            seed,
            steps: count,
            violation,
            trace: steps,
        })
    })
}

impl Failure {
    /// The same failure by fewer steps: none of those left can be dropped alone.
    #[must_use]
    pub fn shrink(mut self) -> Failure {
        let rule = self.violation.rule;
        let mut violation = self.violation.clone();
        self.trace = shrink::shortest(self.trace, |steps| match try_steps(self.seed, steps) {
            Err((_, found)) if found.rule == rule => {
                violation = found;
                true
            }
            _ => false,
        });
        self.violation = violation;
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { rule, what } = &self.violation;
        writeln!(f, "seed {}: {rule}: {what}", self.seed)?;
        writeln!(
            f,
            "PELTON_SIM_SEED={} PELTON_SIM_STEPS={} cargo test -p pelton-tests --test sim -- replay --nocapture",
            self.seed, self.steps
        )?;
        writeln!(f, "{} steps are enough:", self.trace.len())?;
        self.trace
            .iter()
            .try_for_each(|step| writeln!(f, "  {step:?}"))
    }
}

/// Runs the steps and the end; a panic of the core is a rule of its own.
fn try_steps(seed: u64, steps: &[Step]) -> Result<Totals, (usize, Violation)> {
    keep_quiet();
    let at = Cell::new(0);
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(seed)?;
        for (number, &step) in steps.iter().enumerate() {
            at.set(number);
            world.step(step)?;
        }
        at.set(steps.len());
        world.finish()?;
        Ok(world.totals)
    }));
    let result = caught.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        let rule = "no panic";
        let place = PLACE.take();
        let what = format!("{} {place}", text.unwrap_or_default());
        Err(Violation { rule, what })
    });
    QUIET.set(false);
    result.map_err(|violation| (at.get(), violation))
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static PLACE: Cell<String> = const { Cell::new(String::new()) };
}

/// Panics within a run are reported by it, once, and not by each try of a shrink.
fn keep_quiet() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                PLACE.set(
                    info.location()
                        .map(|at| format!("at {at}"))
                        .unwrap_or_default(),
                );
            } else {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
}
