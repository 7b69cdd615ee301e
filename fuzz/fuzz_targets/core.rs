//! Any sequence of events into the core, against every rule of the simulator's oracle (`crates/sim`).
//!
//! An input is the shape of a world and then seven bytes a step: publishes, acks, grants, clients that come
//! and go, faults of the disk, crashes.
#![cfg_attr(fuzzing, no_main)]

#[cfg(all(test, not(fuzzing)))]
#[expect(dead_code, reason = "nothing was found here yet")]
mod inputs;

fn check(data: &[u8]) {
    if let Err(failure) = pelton_sim::run_bytes(data) {
        panic!("{failure}");
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| check(data));

/// Runs the check over the given files: a finding under a debugger, without libFuzzer.
#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        check(&std::fs::read(path)?);
    }
    Ok(())
}

#[cfg(all(test, not(fuzzing)))]
mod tests {
    #[test]
    fn generated_steps_keep_every_rule() {
        crate::inputs::each(300, 1_500, super::check);
    }
}
