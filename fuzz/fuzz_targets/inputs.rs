//! Generated inputs for `cargo test`: what a fuzzer starts from, the same at every run.

/// Hands `check` `count` inputs of 0 to `bytes_max` pseudo-random bytes. A failure prints the number
/// of its input.
pub(crate) fn each(count: u64, bytes_max: usize, mut check: impl FnMut(&[u8])) {
    for number in 0..count {
        let replay = Replay(number);
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
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        eprintln!("input number {} of inputs::each fails", self.0);
    }
}
