//! Which sequences arrived, without a place for each.
//!
//! Everything below a low mark arrived; a bitmap holds what arrived above it. In order the bitmap
//! stays empty; it grows only while something is missing, one bit per message.

use std::collections::VecDeque;

/// The sequences of one producer that one subscription was given.
#[derive(Debug, Default)]
pub(crate) struct Sequences {
    /// Everything below arrived.
    low: u64,
    /// Sequence of bit 0 of the first word; a multiple of 64.
    base: u64,
    /// Bit set: arrived. Empty while nothing above `low` arrived.
    above: VecDeque<u64>,
}

impl Sequences {
    pub(crate) fn with_room() -> Sequences {
        Sequences {
            // Room for a million messages out of order before anything is allocated.
            above: VecDeque::with_capacity(1 << 14),
            ..Sequences::default()
        }
    }

    /// True if these are the next ones and nothing arrived above them; else nothing is changed.
    pub(crate) fn take_run(&mut self, first: u64, count: u64) -> bool {
        let next = first == self.low && self.above.is_empty();
        if next {
            self.low += count;
        }
        next
    }

    /// True if `sequence` is new.
    #[inline]
    pub(crate) fn observe(&mut self, sequence: u64) -> bool {
        if sequence == self.low && self.above.is_empty() {
            self.low += 1;
            return true;
        }
        self.observe_out_of_line(sequence)
    }

    #[cold]
    #[inline(never)]
    fn observe_out_of_line(&mut self, sequence: u64) -> bool {
        if sequence < self.low {
            return false;
        }
        if self.above.is_empty() {
            self.base = self.low & !63;
            self.above.push_back((1 << (self.low & 63)) - 1);
        }
        let word = usize::try_from((sequence - self.base) / 64).expect("bounded by published");
        while self.above.len() <= word {
            self.above.push_back(0);
        }
        let bit = 1_u64 << (sequence & 63);
        if self.above[word] & bit != 0 {
            return false;
        }
        self.above[word] |= bit;
        self.raise_low_mark();
        true
    }

    fn raise_low_mark(&mut self) {
        while self.above.front() == Some(&u64::MAX) {
            self.above.pop_front();
            self.base += 64;
        }
        let front = self.above.front().copied().unwrap_or(0);
        let ones = front.trailing_ones();
        self.low = self.base + u64::from(ones);
        // Nothing above the mark: back to the fast path.
        if self.above.len() == 1 && front == (1 << ones) - 1 {
            self.above.clear();
        }
    }

    /// How many different sequences arrived.
    pub(crate) fn distinct(&self) -> u64 {
        let known = if self.above.is_empty() {
            return self.low;
        } else {
            self.base
        };
        let bits: u32 = self.above.iter().map(|word| word.count_ones()).sum();
        known + u64::from(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_order_of_any_subset_is_counted_like_a_set_would() {
        // A small generator of our own: the sequence of a failure is its seed.
        for seed in 1..200_u64 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut random = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            let published = 1 + random(300);
            let mut sequences = Sequences::default();
            let mut model = std::collections::BTreeSet::new();
            for _ in 0..random(600) {
                let sequence = random(published);
                assert_eq!(
                    sequences.observe(sequence),
                    model.insert(sequence),
                    "seed {seed}, sequence {sequence}"
                );
                assert_eq!(sequences.distinct(), model.len() as u64, "seed {seed}");
            }
        }
    }
}
