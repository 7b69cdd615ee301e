//! Inputs for `cargo test`: what a fuzzer starts from, the same at every run, and what one found.

use std::path::Path;

/// Hands `check` every file of `findings/TARGET`: inputs that a fuzzer once broke it with. Each is
/// named after what was wrong.
pub(crate) fn findings(target: &str, mut check: impl FnMut(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("findings")
        .join(target);
    for entry in folder.read_dir().expect("the folder is in the repository") {
        let path = entry.expect("a folder can be listed to its end").path();
        let replay = Replay(path.display().to_string());
        check(&std::fs::read(&path).expect("a file that was just listed"));
        std::mem::forget(replay);
    }
}

/// Hands `check` `count` inputs of 0 to `bytes_max` pseudo-random bytes. A failure prints the number
/// of its input.
pub(crate) fn each(count: u64, bytes_max: usize, mut check: impl FnMut(&[u8])) {
    for number in 0..count {
        let replay = Replay(format!("input {number} of inputs::each"));
        check(&input(number, bytes_max));
        std::mem::forget(replay);
    }
}

fn input(number: u64, bytes_max: usize) -> Vec<u8> {
    // xorshift64*: any seed but 0 will do.
    let mut state = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33
    };
    let length = usize::try_from(next()).expect("31 bits") % (bytes_max + 1);
    (0..length).map(|_| next().to_le_bytes()[0]).collect()
}

/// Dropped only if the check panicked.
struct Replay(String);

impl Drop for Replay {
    fn drop(&mut self) {
        eprintln!("{} fails", self.0);
    }
}
