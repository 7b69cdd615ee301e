//! Producers whose rings the shard looks at directly.
//!
//! A ready bit costs a lone message two cache lines more than its entry does: the producer takes the
//! word's line to set the bit, the shard takes it back to clear it. So the bit of a producer that
//! published lately stays set, which its handle finds in its own cache, and the shard looks at the
//! tail of its ring instead, in each turn and before each sleep.

use crate::port::{ReadyBits, for_each_bit};
use crate::producers::Producers;

/// Rings looked at in each turn: a load each, from the shard's own cache while nothing is published.
const WATCHED_MAX: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct Watched {
    slots: Vec<u32>,
    /// Their bits, by word of the ready bits.
    bits: Vec<u64>,
    /// Who may be let go next.
    oldest: usize,
}

impl Watched {
    /// Once per turn: gives every producer that may have published since the last look.
    pub(crate) fn look(
        &mut self,
        ready: &ReadyBits,
        producers: &mut Producers,
        mut found: impl FnMut(u32),
    ) {
        let used = producers.used();
        self.bits.resize(ReadyBits::words_of(used), 0);
        let mut crowded = false;
        for (word, watched) in self.bits.iter_mut().enumerate() {
            let mut fresh = ready.look(word) & !*watched;
            while fresh != 0 {
                let bit = fresh & fresh.wrapping_neg();
                let slot = word as u32 * 64 + bit.trailing_zeros();
                if self.slots.len() < WATCHED_MAX {
                    self.slots.push(slot);
                    *watched |= bit;
                    fresh ^= bit;
                } else {
                    // As many as there are in this word, with one read-modify-write.
                    crowded = true;
                    ready.clear(word, fresh);
                    for_each_bit(word, fresh, |slot| {
                        if producers.activate(slot) {
                            found(slot);
                        }
                    });
                    break;
                }
            }
        }
        if crowded {
            self.let_one_go(ready, producers, &mut found);
        }
        for &slot in &self.slots {
            if producers.has_published(slot) && producers.activate(slot) {
                found(slot);
            }
        }
    }

    /// Whether [`Watched::look`] would find one.
    pub(crate) fn any(&self, ready: &ReadyBits, producers: &Producers) -> bool {
        let mut watched = self.slots.iter();
        watched.any(|&slot| producers.has_published(slot))
            || (0..ReadyBits::words_of(producers.used()))
                .any(|word| ready.look(word) & !self.bits.get(word).copied().unwrap_or(0) != 0)
    }

    /// Makes room for a busier one: lets go of one that has nothing just now, in rotation.
    fn let_one_go(
        &mut self,
        ready: &ReadyBits,
        producers: &mut Producers,
        found: &mut impl FnMut(u32),
    ) {
        for _ in 0..self.slots.len() {
            self.oldest = (self.oldest + 1) % self.slots.len();
            let slot = self.slots[self.oldest];
            if producers.has_published(slot) {
                continue;
            }
            self.slots.swap_remove(self.oldest);
            let (word, bit) = (slot as usize / 64, 1 << (slot % 64));
            self.bits[word] &= !bit;
            ready.clear(word, bit);
            // The look that the clear asks for.
            if producers.has_published(slot) && producers.activate(slot) {
                found(slot);
            }
            return;
        }
    }
}
