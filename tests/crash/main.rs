//! kill -9 at random points of a synced load: nothing receipted is lost, nothing acked comes back,
//! nothing is delivered that was not published, and every reopen is quick.
//!
//! The parent (this test) starts itself again as a child that publishes, consumes and acks, and
//! prints what it was promised: `r N` once message N is receipted, `a N` once its ack is durable.
//! The parent kills it, opens the directory itself and compares. One directory goes through many
//! lives, so recovery also runs over what earlier recoveries left.
//!
//! Beside these, disks that do not do as they are told (`faults.rs`): full, read-only, failing.
//!
//! `CRASH_RUNS` sets the number of kills (10 unless told; 200 by hand), `POWER_CUTS` that of power
//! cuts (2 unless told; 20 by hand; root only), `CRASH_SEED` the seed, `DISK` the disk driver.
#![forbid(unsafe_code)]

mod child;
#[cfg(test)]
mod faults;
mod lives;
mod power;

#[cfg(test)]
mod tests {
    use crate::lives::{Home, Lives};
    use crate::power::LoopDisk;

    fn number(name: &str, default: u64) -> u64 {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    }

    fn lives(home: Home, runs: u64) {
        let mut lives = Lives::new(home, number("CRASH_SEED", 1));
        for _ in 0..runs {
            lives.end_one_and_check();
        }
        lives.report();
    }

    #[test]
    fn nothing_promised_is_lost_when_the_process_is_killed() {
        if crate::child::run_if_asked() {
            return;
        }
        // Not the system's temporary directory: that may be memory.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
        lives(Home::Directory(dir), number("CRASH_RUNS", 10));
    }

    #[test]
    fn nothing_promised_is_lost_when_the_power_is_cut() {
        if let Some(why) = LoopDisk::missing() {
            println!("skipped: {why}");
            return;
        }
        let disk = LoopDisk::new().expect("a loop file can be mounted");
        lives(Home::Disk(disk), number("POWER_CUTS", 2));
    }
}
