//! Partly acked entries: which messages of a batch are not acked yet (rules D95 to D97).
use crate::format::{Reader, SECTION_HEADER_BYTES, section};
use crate::position::Position;

/// Most words of a set. A longer one is not kept: its entry comes again whole.
pub(crate) const WORDS_MAX: usize = 100_000_usize.div_ceil(64);

/// Bytes of a record without its words.
pub(crate) const PARTIAL_HEAD_BYTES: usize = SECTION_HEADER_BYTES + 40;

/// The messages of an entry of `messages` that neither `kept` nor `given` says are acked: bit 1 is
/// not acked, missing words are zeros, bits behind the last message do not count. Without zero words
/// at its end, so an empty set is an entry that is acked whole. `None` if it is too long to be kept.
pub(crate) fn merged(kept: Option<&[u64]>, given: &[u64], messages: u32) -> Option<Vec<u64>> {
    let in_entry = messages.div_ceil(64) as usize;
    let mut words = given[..given.len().min(in_entry)].to_vec();
    if words.len() == in_entry
        && let Some(last) = words.last_mut()
    {
        *last &= u64::MAX >> (in_entry as u32 * 64 - messages);
    }
    if let Some(kept) = kept {
        words.truncate(kept.len());
        words
            .iter_mut()
            .zip(kept)
            .for_each(|(word, kept)| *word &= kept);
    }
    trim(&mut words);
    (words.len() <= WORDS_MAX).then_some(words)
}

fn trim(words: &mut Vec<u64>) {
    while words.last() == Some(&0) {
        words.pop();
    }
}

/// A piece of a set, as recorded. What is recorded of an entry only ever takes bits away, so pieces
/// of a checkpoint that did not get to its end do no harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) topic: u64,
    pub(crate) sub: u64,
    pub(crate) at: Position,
    /// Number of its first word in the set.
    first: usize,
    /// Words of the whole set.
    total: usize,
    /// Little endian.
    words: &'a [u8],
}

/// Reads a record; `None` if it contradicts itself.
pub(crate) fn decode_piece(payload: &[u8]) -> Option<Piece<'_>> {
    let mut r = Reader::new(payload);
    let (topic, sub) = (r.u64()?, r.u64()?);
    let at = Position {
        ledger: r.u64()?,
        entry: r.u64()?,
    };
    let (first, total) = (r.u32()? as usize, r.u32()? as usize);
    let words = r.rest.len() / 8;
    let good =
        r.rest.len().is_multiple_of(8) && words > 0 && total <= WORDS_MAX && first + words <= total;
    good.then_some(Piece {
        topic,
        sub,
        at,
        first,
        total,
        words: r.rest,
    })
}

/// Appends the record of the words of a set from `first` on, as many as `room` bytes hold; gives
/// how many, 0 if there is no room for any.
pub(crate) fn push_piece(
    out: &mut Vec<u8>,
    (topic, sub): (u64, u64),
    at: Position,
    set: &[u64],
    first: usize,
    room: usize,
) -> usize {
    let count = (room.saturating_sub(PARTIAL_HEAD_BYTES) / 8).min(set.len() - first);
    if count == 0 {
        return 0;
    }
    let payload = PARTIAL_HEAD_BYTES - SECTION_HEADER_BYTES + count * 8;
    out.extend_from_slice(&section::PARTIAL.to_le_bytes());
    out.extend_from_slice(&(payload as u32).to_le_bytes());
    for word in [topic, sub, at.ledger, at.entry] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&(first as u32).to_le_bytes());
    out.extend_from_slice(&(set.len() as u32).to_le_bytes());
    for word in &set[first..first + count] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    count
}

/// A set while the log is being recovered: it may lack words until all pieces were seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovering {
    words: Vec<u64>,
    total: usize,
}

impl Recovering {
    pub(crate) fn new(piece: &Piece<'_>) -> Recovering {
        let total = piece.total;
        let words = Vec::new();
        Recovering { words, total }
    }

    pub(crate) fn merge(&mut self, piece: &Piece<'_>) {
        self.total = self.total.min(piece.total);
        let words = piece.words.chunks_exact(8).filter_map(|word| {
            let bytes = word.try_into().ok()?;
            Some(u64::from_le_bytes(bytes))
        });
        for (at, word) in (piece.first..).zip(words) {
            if at < self.words.len() {
                self.words[at] &= word;
            } else if at == self.words.len() {
                self.words.push(word);
            }
            // Else nothing is known of the words before: the set is not whole.
        }
        self.words.truncate(self.total);
    }

    /// All of its pieces were seen and none has a bit left.
    pub(crate) fn is_acked(&self) -> bool {
        self.is_whole() && self.words.iter().all(|&word| word == 0)
    }

    fn is_whole(&self) -> bool {
        self.words.len() == self.total
    }

    /// The set for an entry of `messages`; `None` if it is not whole.
    pub(crate) fn finished(&self, messages: u32) -> Option<Vec<u64>> {
        if self.is_whole() {
            merged(None, &self.words, messages)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ack_set_words_merge_as_the_case_says() {
        let first = merged(None, &[u64::MAX], 130).unwrap();
        let left = merged(Some(&first), &[u64::MAX - 1, u64::MAX, 3], 130).unwrap();
        assert_eq!(left, [u64::MAX - 1], "indexes 1 to 63 of 130");
        assert_eq!(
            merged(None, &[i64::MAX as u64], 64).unwrap(),
            [u64::MAX >> 1]
        );
        assert_eq!(merged(None, &[u64::MAX], 64).unwrap(), [u64::MAX]);
        assert_eq!(merged(None, &[0xFE0, 7, 7, 7], 12).unwrap(), [0xFE0]);
        assert_eq!(
            merged(None, &[!0xFFF, 7], 12).unwrap(),
            [0; 0],
            "extra bits do not count"
        );
        assert_eq!(merged(None, &[0, 0], 130).unwrap(), [0; 0]);
        assert_eq!(merged(None, &[], 1).unwrap(), [0; 0]);
        let longest = vec![u64::MAX; WORDS_MAX];
        assert_eq!(
            merged(None, &longest, 100_000).map(|words| words.len()),
            Some(WORDS_MAX)
        );
        assert_eq!(merged(None, &vec![1; WORDS_MAX + 1], u32::MAX), None);
    }

    proptest! {
        #[test]
        fn pieces_of_any_length_in_any_repetition_make_the_same_set(
            set in prop::collection::vec(any::<u64>(), 1..50),
            rooms in prop::collection::vec(0..200usize, 1..30),
            repeats in 1..3,
        ) {
            let (mut set, at) = (set, Position { ledger: 3, entry: 4 });
            set.push(1);
            let mut image: Option<Recovering> = None;
            for _ in 0..repeats {
                let (mut first, mut rooms) = (0, rooms.iter().cycle());
                while first < set.len() {
                    let room = *rooms.next().unwrap() + PARTIAL_HEAD_BYTES + 8;
                    let mut out = Vec::new();
                    let count = push_piece(&mut out, (1, 2), at, &set, first, room);
                    prop_assert!(count > 0 && out.len() <= room);
                    let piece = decode_piece(&out[SECTION_HEADER_BYTES..]).unwrap();
                    prop_assert_eq!((piece.topic, piece.sub, piece.at, piece.first), (1, 2, at, first));
                    image.get_or_insert_with(|| Recovering::new(&piece)).merge(&piece);
                    first += count;
                }
            }
            let messages = set.len() as u32 * 64;
            prop_assert_eq!(image.unwrap().finished(messages), Some(set));
        }

        #[test]
        fn any_payload_is_read_without_a_panic(payload in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut payload = payload;
            if payload.len() > 40 {
                payload[32..40].copy_from_slice(&[1, 0, 0, 0, 9, 0, 0, 0]);
            }
            if let Some(piece) = decode_piece(&payload) {
                let mut image = Recovering::new(&piece);
                image.merge(&piece);
                prop_assert_eq!(image.finished(64), None);
            }
        }
    }
}
