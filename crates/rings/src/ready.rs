//! Which sources have published: one bit a source, 64 to a word.

use crate::doorbell::{Doorbell, Wake};
use crate::sync::{AtomicU64, CachePadded, Ordering, fence};

/// Words that share one padded block: a shard scans all of them, so they are packed, but not with
/// anything else.
const WORDS_PER_BLOCK: usize = 16;

/// Ready bits of any number of sources, taken by one shard.
///
/// A source publishes, sets its bit, rings the doorbell (the last two: [`set_and_ring`]); the shard
/// takes words and drains each source whose bit it got. The shard itself remembers the sources it
/// leaves non-empty.
///
/// [`set_and_ring`]: ReadyWords::set_and_ring
#[derive(Debug)]
pub struct ReadyWords {
    blocks: Box<[CachePadded<[AtomicU64; WORDS_PER_BLOCK]>]>,
    words: usize,
}

impl ReadyWords {
    /// No bit set; room for `bits` sources, numbered from 0.
    pub fn new(bits: usize) -> ReadyWords {
        let words = bits.div_ceil(64);
        let block = || CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let blocks = (0..words.div_ceil(WORDS_PER_BLOCK))
            .map(|_| block())
            .collect();
        ReadyWords { blocks, words }
    }

    /// Says that source `bit` has published. To be called after the publish.
    ///
    /// If the bit is already set the read-modify-write is skipped. That is right because of the
    /// fence between the publish and the look: the taker swaps, fences, then drains, so either this
    /// look sees the taker's zero, or the taker's drain sees what was published.
    ///
    /// # Panics
    ///
    /// If `bit` is out of range.
    #[inline]
    pub fn set(&self, bit: usize) {
        let (word, mask) = self.word_of(bit);
        if word.load(Ordering::Relaxed) & mask != 0 {
            // Partner: the fence of `take`.
            fence(Ordering::SeqCst);
            if word.load(Ordering::Relaxed) & mask != 0 {
                return;
            }
        }
        // Release: the taker that gets the bit gets what was published before it.
        word.fetch_or(mask, Ordering::Release);
    }

    /// [`set`](ReadyWords::set), then [`Doorbell::ring`], with one fence instead of two.
    ///
    /// # Panics
    ///
    /// If `bit` is out of range.
    #[inline]
    pub fn set_and_ring(&self, bit: usize, doorbell: &Doorbell) -> Wake {
        let (word, mask) = self.word_of(bit);
        if word.load(Ordering::Relaxed) & mask != 0 {
            // Partner: the fence of `take`, and of `Doorbell::announce`.
            fence(Ordering::SeqCst);
            if word.load(Ordering::Relaxed) & mask != 0 {
                return doorbell.ring_fenced();
            }
        }
        word.fetch_or(mask, Ordering::Release);
        doorbell.ring()
    }

    /// Whether any bit is set (Acquire loads: fit for the second look of a sleeper).
    #[inline]
    pub fn any(&self) -> bool {
        (0..self.words).any(|word| self.word(word).load(Ordering::Acquire) != 0)
    }

    /// Takes all bits of one word; bit `i` of the result is source `64 * word + i`. Each source
    /// whose bit is taken must be drained, or remembered by the caller.
    ///
    /// # Panics
    ///
    /// If `word` is out of range.
    #[inline]
    pub fn take(&self, word: usize) -> u64 {
        let word = self.word(word);
        if word.load(Ordering::Relaxed) == 0 {
            return 0; // Whoever sets a bit from now on rings the doorbell after it.
        }
        let bits = word.swap(0, Ordering::AcqRel);
        // Partner: the fence of `set`.
        fence(Ordering::SeqCst);
        bits
    }

    /// The bits of one word, left as they are (an Acquire load).
    ///
    /// A bit that stays set spares its source the read-modify-write, and both sides the cache line.
    /// Whoever leaves it looks at what the source publishes by other means, the second look before a
    /// sleep included, and [`clear`](ReadyWords::clear)s it before it stops to.
    ///
    /// # Panics
    ///
    /// If `word` is out of range.
    #[inline]
    pub fn look(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    /// Clears bits of one word that were seen by [`look`](ReadyWords::look). Each of these sources
    /// must be looked at once more, after this.
    ///
    /// # Panics
    ///
    /// If `word` is out of range.
    pub fn clear(&self, word: usize, bits: u64) {
        self.word(word).fetch_and(!bits, Ordering::AcqRel);
        // Partner: the fence of `set`.
        fence(Ordering::SeqCst);
    }

    /// Number of words.
    pub fn words(&self) -> usize {
        self.words
    }

    #[inline(always)]
    fn word(&self, word: usize) -> &AtomicU64 {
        &self.blocks[word / WORDS_PER_BLOCK][word % WORDS_PER_BLOCK]
    }

    #[inline(always)]
    fn word_of(&self, bit: usize) -> (&AtomicU64, u64) {
        (self.word(bit / 64), 1 << (bit % 64))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn no_sources_is_no_words() {
        let ready = ReadyWords::new(0);
        assert_eq!((ready.words(), ready.any()), (0, false));
    }

    #[test]
    fn setting_a_bit_rings_a_sleeper_whether_or_not_the_bit_was_set() {
        let (ready, bell) = (ReadyWords::new(65), Doorbell::new());
        assert_eq!(ready.set_and_ring(64, &bell), Wake::NotNeeded);
        bell.announce();
        assert_eq!(ready.set_and_ring(64, &bell), Wake::Needed);
        bell.announce();
        assert_eq!(ready.set_and_ring(0, &bell), Wake::Needed);
        assert_eq!((ready.take(0), ready.take(1), ready.any()), (1, 1, false));
    }

    proptest! {
        #[test]
        fn the_words_hold_exactly_the_bits_set_and_not_taken(
            bits in 1..3_000usize,
            ops in proptest::collection::vec((0..3_u8, any::<usize>()), 1..200),
        ) {
            let ready = ReadyWords::new(bits);
            let mut model = BTreeSet::new();
            prop_assert_eq!(ready.words(), bits.div_ceil(64));
            for (op, number) in ops {
                let bit = number % bits;
                if op == 0 {
                    ready.set(bit);
                    model.insert(bit);
                } else if op == 1 {
                    prop_assert_eq!(ready.look(bit / 64) >> (bit % 64) & 1 == 1, model.remove(&bit));
                    ready.clear(bit / 64, 1 << (bit % 64));
                } else {
                    let word = number % ready.words();
                    let taken = ready.take(word);
                    for bit in 64 * word..64 * word + 64 {
                        let expected = model.remove(&bit);
                        prop_assert_eq!(taken >> (bit % 64) & 1 == 1, expected, "bit {}", bit);
                    }
                }
                prop_assert_eq!(ready.any(), !model.is_empty());
            }
        }
    }
}
