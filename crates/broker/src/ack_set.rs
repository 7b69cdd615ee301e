//! Which messages of an entry are not acked yet (rules D95 to D97).
//!
//! On the wire it is a list of 64-bit words: bit i of word w stands for message 64 w + i, 1 means
//! "not acked". Words that are left out are 0, bits beyond the batch mean nothing.

const WORD_BITS: u32 = u64::BITS;

/// The messages of one entry that are not acked. A batch of up to 64 takes no memory of its own, a
/// larger one a single allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckSet {
    words: Words,
    /// Bits that are 1.
    left: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Words {
    One([u64; 1]),
    Many(Box<[u64]>),
}

impl AckSet {
    /// Nothing of a batch of `batch` messages is acked.
    #[must_use]
    pub fn full(batch: u32) -> Self {
        let words = if batch <= WORD_BITS {
            Words::One([mask(batch, 0)])
        } else {
            let words = batch.div_ceil(WORD_BITS);
            Words::Many((0..words).map(|word| mask(batch, word)).collect())
        };
        Self { words, left: batch }
    }

    /// What `words` say of a batch of `batch` messages.
    #[must_use]
    pub fn of(batch: u32, words: &[u64]) -> Self {
        let mut set = Self::full(batch);
        set.merge(words);
        set
    }

    /// Acks what `words` call acked, and nothing else is undone. Gives the messages that were newly
    /// acked.
    pub fn merge(&mut self, words: &[u64]) -> u32 {
        self.keep(|word| words.get(word).copied().unwrap_or(0))
    }

    /// Acks the messages up to and including `index`, as a cumulative ack does. Gives the messages
    /// that were newly acked.
    pub fn ack_through(&mut self, index: u32) -> u32 {
        let acked = index.saturating_add(1);
        self.keep(|word| !mask(acked, word as u32))
    }

    /// Messages that are not acked; 0 means the whole entry is.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.left
    }

    /// Whether message `index` is not acked.
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        let word = self.words().get((index / WORD_BITS) as usize);
        word.is_some_and(|word| word >> (index % WORD_BITS) & 1 == 1)
    }

    /// All words of the batch, as a delivery carries them.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        match &self.words {
            Words::One(word) => word,
            Words::Many(words) => words,
        }
    }

    fn keep(&mut self, kept: impl Fn(usize) -> u64) -> u32 {
        let words: &mut [u64] = match &mut self.words {
            Words::One(word) => word,
            Words::Many(words) => words,
        };
        let mut left = 0;
        for (at, word) in words.iter_mut().enumerate() {
            *word &= kept(at);
            left += word.count_ones();
        }
        std::mem::replace(&mut self.left, left) - left
    }
}

/// The bits of word `word` that stand for messages below `batch`.
fn mask(batch: u32, word: u32) -> u64 {
    let below = batch.saturating_sub(word.saturating_mul(WORD_BITS));
    match below {
        0 => 0,
        WORD_BITS.. => u64::MAX,
        bits => (1 << bits) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ALL: u64 = u64::MAX;

    /// T43 and case ACK-SET-WORDS, 1, 2, 4 and 5.
    #[test]
    fn t43_words_are_intersected_and_missing_ones_are_acked() {
        let mut set = AckSet::full(130);
        assert_eq!(set.merge(&[ALL]), 66);
        assert_eq!((set.merge(&[ALL - 1, ALL, 0x3]), set.left()), (1, 63));
        let left: Vec<u32> = (0..200).filter(|&index| set.contains(index)).collect();
        assert!(left.into_iter().eq(1..64));
        assert_eq!(set.words(), [ALL - 1, 0, 0]);
        assert_eq!(
            set.merge(&[ALL - 1, ALL, 0x3]),
            0,
            "again it changes nothing"
        );

        let mut set = AckSet::full(64);
        assert_eq!(
            (set.merge(&[0x7fff_ffff_ffff_ffff]), set.contains(63)),
            (1, false)
        );
        assert_eq!(AckSet::of(64, &[(-1i64).cast_unsigned()]), AckSet::full(64));

        let long = AckSet::of(12, &[ALL; 4]);
        assert_eq!((long.left(), long.words()), (12, &[0xfff][..]));
        assert_eq!(AckSet::of(12, &[0]).left(), 0);
        assert_eq!(AckSet::of(10, &[]).left(), 0);
    }

    #[test]
    fn t44_a_cumulative_ack_within_a_batch() {
        let mut set = AckSet::of(10, &[0x3f0]);
        assert_eq!(
            (set.left(), set.contains(3), set.contains(4)),
            (6, false, true)
        );
        assert_eq!((set.ack_through(4), set.left()), (1, 5));
        assert_eq!(set.ack_through(2), 0, "an older one changes nothing");
        assert_eq!((set.ack_through(9), set.left()), (5, 0));
    }

    #[test]
    fn t13_what_is_left_goes_out_with_the_next_delivery() {
        let mut set = AckSet::full(100);
        for index in 0..2 {
            set.ack_through(index);
        }
        assert_eq!(set.words(), [0xffff_ffff_ffff_fffc, 0x0000_000f_ffff_ffff]);
    }

    #[test]
    fn the_largest_batch_is_as_exact_as_a_small_one() {
        let mut set = AckSet::full(100_000);
        assert_eq!((set.left(), set.words().len()), (100_000, 1_563));
        assert_eq!((set.ack_through(99_998), set.left()), (99_999, 1));
        assert!(set.contains(99_999) && !set.contains(100_000));
        assert_eq!(set.ack_through(u32::MAX), 1);
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_list_of_flags(
            batch in prop_oneof![1u32..140, Just(100_000)],
            ops in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(prop_oneof![Just(ALL), any::<u64>()], 0..5).prop_map(Ok),
                    (0u32..150).prop_map(Err),
                ],
                1..8,
            ),
        ) {
            let mut set = AckSet::full(batch);
            let mut model = vec![true; batch as usize];
            for op in ops {
                let before = model.iter().filter(|&&left| left).count();
                let newly = match &op {
                    Ok(words) => {
                        let bit = |at: usize| words.get(at / 64).is_some_and(|w| w >> (at % 64) & 1 == 1);
                        model.iter_mut().enumerate().for_each(|(at, left)| *left &= bit(at));
                        set.merge(words)
                    }
                    Err(index) => {
                        model.iter_mut().take(*index as usize + 1).for_each(|left| *left = false);
                        set.ack_through(*index)
                    }
                };
                let left = model.iter().filter(|&&left| left).count();
                prop_assert_eq!((newly as usize, set.left() as usize), (before - left, left));
                prop_assert!((0..batch).all(|at| set.contains(at) == model[at as usize]));
                prop_assert_eq!(AckSet::of(batch, set.words()), set.clone());
            }
        }
    }
}
