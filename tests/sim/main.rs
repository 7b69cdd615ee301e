//! Worlds from seeds (`crates/sim`): whatever happens, in any order, the rules of dispatch hold.
//!
//! `PELTON_SIM_SEEDS` sets how many seeds are run (2,000 unless told), `PELTON_SIM_FIRST` the first of them,
//! `PELTON_SIM_STEPS` the steps of each, `PELTON_SIM_SEED` the one that `replay` runs.
#![forbid(unsafe_code)]

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    use pelton_sim::{Failure, Totals, run_seed};

    const SEEDS: u64 = 2_000;
    const STEPS: u64 = 400;

    fn number(name: &str) -> Option<u64> {
        std::env::var(name).ok().and_then(|text| text.parse().ok())
    }

    fn steps() -> usize {
        number("PELTON_SIM_STEPS").unwrap_or(STEPS) as usize
    }

    /// Runs the seeds on every processor; the first failure ends all.
    fn run_seeds(first: u64, count: u64) -> Result<Totals, Box<Failure>> {
        let (next, failed) = (AtomicU64::new(0), AtomicBool::new(false));
        let some = || -> Result<Totals, Box<Failure>> {
            let mut sum = Totals::default();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count || failed.load(Ordering::Relaxed) {
                    return Ok(sum);
                }
                let totals = run_seed(first + at, steps());
                let totals = totals.inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
                sum.entries += totals.entries;
                sum.delivered += totals.delivered;
                sum.lives += totals.lives;
            }
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
            let mut sum = Totals::default();
            for one in all {
                let totals = one.join().expect("a run catches its panics")?;
                sum.entries += totals.entries;
                sum.delivered += totals.delivered;
                sum.lives += totals.lives;
            }
            Ok(sum)
        })
    }

    #[test]
    fn every_rule_holds_in_every_world() {
        let count = number("PELTON_SIM_SEEDS").unwrap_or(SEEDS);
        match run_seeds(number("PELTON_SIM_FIRST").unwrap_or(0), count) {
            Ok(totals) => println!("{count} seeds: {totals:?}"),
            Err(failure) => panic!("{}", failure.shrink()),
        }
    }

    #[test]
    fn replay() {
        let Some(seed) = number("PELTON_SIM_SEED") else {
            return;
        };
        if let Err(failure) = run_seed(seed, steps()) {
            panic!("{}", failure.shrink());
        }
    }
}
