//! Ack state of subscriptions: mark-delete position and a bitmap of what is acked above it.
use std::collections::{BTreeMap, VecDeque};

use crate::entry::{SubKey, TopicKey};
use crate::partial::{Piece, Recovering, merged};
use crate::position::{LedgerList, Position};

/// A change of a subscription's ack state, as the broker reports it.
#[derive(Clone, Copy, Debug)]
pub enum AckDelta<'a> {
    /// Everything up to and including this position is acked. Never moves back.
    MarkDelete(Position),
    /// Stretches of individually acked entries: first position and how many entries of that
    /// ledger, 1 or more. Entries that do not exist are passed over.
    Ranges(&'a [(Position, u64)]),
    /// Entries acked in part, each with the words that say of which messages: bit 1 is a message
    /// that is not acked, missing words are zeros. Merged by AND into what is kept; an entry of
    /// which nothing is left is acked whole. Entries that do not exist or are acked are passed over,
    /// and so are sets of more than 100,000 messages: such an entry comes again whole.
    Batch(&'a [(Position, &'a [u64])]),
    /// Seek: the state becomes "everything up to this position is acked, nothing above"; `None`
    /// means nothing at all is acked.
    Reset(Option<Position>),
}

/// Ack state of a subscription as recovered from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CursorState {
    /// Topic it belongs to.
    pub topic: TopicKey,
    /// The subscription.
    pub sub: SubKey,
    /// Everything up to and including this is acked; `None` if nothing is.
    pub mark_delete: Option<Position>,
    /// Acked stretches above it: first position, and entries of that ledger.
    pub acked: Vec<(Position, u64)>,
    /// Entries above it that are acked in part, and the words of what is not acked: bit 1 is a
    /// message that is not, missing words are zeros.
    pub partial: Vec<(Position, Vec<u64>)>,
}

impl CursorState {
    /// Every position of the acked stretches, whether its entry still exists or not.
    pub fn acked_positions(&self) -> impl Iterator<Item = Position> {
        self.acked
            .iter()
            .flat_map(|&(first, count)| (0..count).map(move |by| first.nth(by)))
    }
}

/// Subscriptions of one durable topic, sorted by key.
#[derive(Debug, Default)]
pub(crate) struct Subs {
    list: Vec<Sub>,
}

/// The log's own copy of one ack state: what a checkpoint writes, so the broker is never asked.
///
/// Bits are by ordinal: alternating acks cost a bit per entry, not a range.
#[derive(Debug)]
pub(crate) struct Sub {
    pub(crate) key: SubKey,
    pub(crate) mark_at: Option<Position>,
    /// Ordinals below are acked.
    mark: u64,
    /// Word `i` has the bits of ordinals `64 * (first_word + i)` and up.
    first_word: u64,
    words: VecDeque<u64>,
    /// Ordinals of entries acked in part, and the words of what is not acked.
    partial: BTreeMap<u64, Box<[u64]>>,
    /// Commit whose list of moved marks has this subscription already, and where in it.
    pub(crate) listed: (u64, u32),
    /// Commit of its last change.
    pub(crate) ticket: u64,
    /// The broker has asked for it; others are forgotten by `forget_unopened`.
    pub(crate) opened: bool,
}

impl Subs {
    pub(crate) fn get_mut(&mut self, key: SubKey) -> Option<&mut Sub> {
        let index = self.list.binary_search_by_key(&key, |sub| sub.key).ok()?;
        Some(&mut self.list[index])
    }

    pub(crate) fn get(&self, key: SubKey) -> Option<&Sub> {
        let index = self.list.binary_search_by_key(&key, |sub| sub.key).ok()?;
        Some(&self.list[index])
    }

    /// Adds a subscription that is not there.
    pub(crate) fn insert(&mut self, sub: Sub) {
        if let Err(at) = self.list.binary_search_by_key(&sub.key, |other| other.key) {
            self.list.insert(at, sub);
        }
    }

    pub(crate) fn remove(&mut self, key: SubKey) {
        if let Ok(at) = self.list.binary_search_by_key(&key, |sub| sub.key) {
            self.list.remove(at);
        }
    }

    /// The topic is trimmed: what was stored up to `at` is passed by every subscription, acked or
    /// expired. Noted while the position is still known.
    pub(crate) fn pass(&mut self, at: Position, mark: u64) {
        for sub in &mut self.list {
            if mark > sub.mark {
                sub.mark = mark;
                sub.mark_at = sub.mark_at.max(Some(at));
                sub.drop_passed();
            }
        }
    }

    /// Removes what the broker has not asked for.
    pub(crate) fn retain_opened(&mut self) {
        self.list.retain(|sub| sub.opened);
    }

    /// The subscription with the smallest key above `after`; `None` starts at the first.
    pub(crate) fn next_after(&self, after: Option<SubKey>) -> Option<&Sub> {
        let at = after.map_or(0, |after| self.list.partition_point(|sub| sub.key <= after));
        self.list.get(at)
    }
}

impl Sub {
    pub(crate) fn new(key: SubKey, mark_at: Option<Position>, mark: u64) -> Sub {
        Sub {
            key,
            mark_at,
            mark,
            first_word: mark / 64,
            words: VecDeque::new(),
            partial: BTreeMap::new(),
            listed: (0, 0),
            ticket: 0,
            opened: false,
        }
    }

    /// Everything below `mark` is acked. False if that was known.
    pub(crate) fn mark_delete(&mut self, at: Position, mark: u64) -> bool {
        if self.mark_at.is_some_and(|old| old >= at) {
            return false;
        }
        self.mark_at = Some(at);
        if mark > self.mark {
            self.mark = mark;
            self.drop_passed();
        }
        true
    }

    pub(crate) fn reset(&mut self, mark_at: Option<Position>, mark: u64) {
        self.mark_at = mark_at;
        self.mark = mark;
        self.words.clear();
        self.partial.clear();
        self.first_word = mark / 64;
    }

    /// Acks messages of one entry. Gives the words of what is not acked, none if that is nothing:
    /// then the entry is to be acked whole. `None` if nothing changes.
    pub(crate) fn ack_part(
        &mut self,
        ordinal: u64,
        given: &[u64],
        messages: u32,
    ) -> Option<&[u64]> {
        if ordinal < self.mark || self.bits_at(ordinal) & 1 == 1 {
            return None;
        }
        let kept = self.partial.get(&ordinal).map(|kept| &**kept);
        let words = merged(kept, given, messages)?;
        if kept == Some(&words[..]) {
            return None;
        }
        let words = words.into_boxed_slice();
        Some(self.partial.entry(ordinal).insert_entry(words).into_mut())
    }

    /// Entries acked in part from `from` on.
    pub(crate) fn partial_from(&self, from: u64) -> impl Iterator<Item = (u64, &[u64])> {
        let above = self.partial.range(from.max(self.mark)..);
        above.map(|(&ordinal, words)| (ordinal, &**words))
    }

    /// Sets the bits of ordinals `from..to`; then the mark moves over what is acked without a gap.
    pub(crate) fn ack(&mut self, from: u64, to: u64, ledgers: &LedgerList) {
        let from = from.max(self.mark);
        if from >= to {
            return;
        }
        remove_range(&mut self.partial, from, to);
        let last_word = (to - 1) / 64;
        let needed = usize::try_from(last_word + 1 - self.first_word).expect("a bitmap in memory");
        if self.words.len() < needed {
            self.words.resize(needed, 0);
        }
        for word in from / 64..=last_word {
            let low = if word == from / 64 { from % 64 } else { 0 };
            let high = if word == last_word { (to - 1) % 64 } else { 63 };
            let mask = (u64::MAX >> (63 - high)) & (u64::MAX << low);
            self.words[(word - self.first_word) as usize] |= mask;
        }
        self.advance(ledgers);
    }

    fn advance(&mut self, ledgers: &LedgerList) {
        let mut mark = self.mark;
        while let Some(&word) = self.words.get((mark / 64 - self.first_word) as usize) {
            let acked = u64::from((word >> (mark % 64)).trailing_ones());
            mark += acked;
            if acked == 0 || !mark.is_multiple_of(64) {
                break;
            }
        }
        if mark > self.mark {
            self.mark = mark;
            self.mark_at = self.mark_at.max(ledgers.position(mark - 1));
            self.drop_passed();
        }
    }

    fn drop_passed(&mut self) {
        remove_range(&mut self.partial, 0, self.mark);
        while self.first_word < self.mark / 64 {
            self.first_word += 1;
            if self.words.pop_front().is_none() {
                self.first_word = self.mark / 64;
            }
        }
        if let Some(word) = self.words.front_mut() {
            *word &= u64::MAX << (self.mark % 64);
        }
        while self.words.back() == Some(&0) {
            self.words.pop_back();
        }
    }

    /// First acked ordinal at or above `from` (and above the mark), and how many follow it; at
    /// most `most`.
    pub(crate) fn next_acked(&self, from: u64, most: u64) -> Option<(u64, u64)> {
        let mut at = from.max(self.mark);
        let first = loop {
            let word = self
                .words
                .get(usize::try_from(at / 64 - self.first_word).ok()?)?;
            let rest = word >> (at % 64);
            if rest != 0 {
                break at + u64::from(rest.trailing_zeros());
            }
            at = (at / 64 + 1) * 64;
        };
        let mut end = first;
        while end - first < most
            && let Some(word) = self.words.get((end / 64 - self.first_word) as usize)
        {
            let ones = u64::from((word >> (end % 64)).trailing_ones());
            end += ones;
            if ones == 0 || !end.is_multiple_of(64) {
                break;
            }
        }
        Some((first, (end - first).min(most)))
    }

    /// The bits of 64 ordinals from `ordinal` on, which is not below the mark.
    pub(crate) fn bits_at(&self, ordinal: u64) -> u64 {
        let at = (ordinal / 64 - self.first_word) as usize;
        let low = self.words.get(at).copied().unwrap_or(0) >> (ordinal % 64);
        let high = self.words.get(at + 1).copied().unwrap_or(0);
        if ordinal.is_multiple_of(64) {
            low
        } else {
            low | high << (64 - ordinal % 64)
        }
    }

    /// Bytes of the bitmap.
    #[cfg(test)]
    pub(crate) fn bitmap_bytes(&self) -> usize {
        self.words.len() * 8
    }
}

/// Removes the keys `from..to` of a map that is mostly empty.
fn remove_range<K: Ord + Copy, V>(map: &mut BTreeMap<K, V>, from: K, to: K) {
    while let Some((&key, _)) = map.range(from..to).next() {
        map.remove(&key);
    }
}

/// Ack state while the log is being recovered: by position, because ordinals do not exist yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) mark: Option<Position>,
    /// `(ledger, first entry)` to the entry behind the last; stretches neither overlap nor touch.
    acked: BTreeMap<(u64, u64), u64>,
    /// `(ledger, entry)` of what is acked in part.
    partial: BTreeMap<(u64, u64), Recovering>,
}

impl Image {
    pub(crate) fn reset(&mut self, mark: Option<Position>) {
        self.mark = mark;
        self.acked.clear();
        self.partial.clear();
    }

    /// Takes a piece of what is not acked of an entry.
    pub(crate) fn ack_part(&mut self, piece: &Piece<'_>) {
        let Position { ledger, entry } = piece.at;
        let below = self.acked.range(..=(ledger, entry)).next_back();
        let is_acked = below.is_some_and(|(&(same, _), &end)| same == ledger && entry < end);
        if is_acked || self.mark >= Some(piece.at) {
            return;
        }
        let set = self.partial.entry((ledger, entry));
        let set = set.or_insert_with(|| Recovering::new(piece));
        set.merge(piece);
        if set.is_acked() {
            self.ack(piece.at, 1);
        }
    }

    /// Entries acked in part from `(ledger, entry)` on, with the words of what is not acked.
    /// `messages` gives those of an entry that exists.
    pub(crate) fn partial_from(
        &self,
        from: (u64, u64),
        messages: impl Fn(Position) -> Option<u32>,
    ) -> impl Iterator<Item = (Position, Vec<u64>)> {
        self.partial
            .range(from..)
            .filter_map(move |(&(ledger, entry), set)| {
                let at = Position { ledger, entry };
                let words = set.finished(messages(at)?)?;
                Some((at, words))
            })
    }

    pub(crate) fn mark_delete(&mut self, at: Position) {
        if self.mark >= Some(at) {
            return;
        }
        self.mark = Some(at);
        let key = (at.ledger, at.entry.saturating_add(1));
        remove_range(&mut self.partial, (0, 0), key);
        let above = self.acked.split_off(&key);
        let cut = self.acked.last_key_value().map(|(&key, &end)| (key, end));
        self.acked = above;
        if let Some(((ledger, _), end)) = cut
            && ledger == at.ledger
            && end > key.1
        {
            self.acked.insert(key, end);
        }
    }

    pub(crate) fn ack(&mut self, first: Position, count: u64) {
        let Position { ledger, mut entry } = first;
        let mut end = entry.saturating_add(count);
        if let Some(mark) = self.mark {
            if ledger < mark.ledger || (ledger == mark.ledger && end <= mark.entry + 1) {
                return;
            }
            if ledger == mark.ledger {
                entry = entry.max(mark.entry.saturating_add(1));
            }
        }
        if entry >= end {
            return;
        }
        remove_range(&mut self.partial, (ledger, entry), (ledger, end));
        if let Some((&(same, before), &before_end)) =
            self.acked.range(..=(ledger, entry)).next_back()
            && same == ledger
            && before_end >= entry
        {
            if before_end >= end {
                return;
            }
            entry = before;
        }
        while let Some((&(_, next), &next_end)) =
            self.acked.range((ledger, entry)..=(ledger, end)).next()
        {
            self.acked.remove(&(ledger, next));
            end = end.max(next_end);
        }
        self.acked.insert((ledger, entry), end);
    }

    pub(crate) fn acked(&self) -> impl Iterator<Item = (Position, u64)> + '_ {
        self.acked_from((0, 0))
    }

    /// Stretches that start at `(ledger, entry)` or behind it.
    pub(crate) fn acked_from(
        &self,
        from: (u64, u64),
    ) -> impl Iterator<Item = (Position, u64)> + '_ {
        self.acked
            .range(from..)
            .map(|(&(ledger, entry), &end)| (Position { ledger, entry }, end - entry))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::position::LedgerRun;

    fn ledgers() -> LedgerList {
        let mut list = LedgerList::default();
        list.push(LedgerRun {
            ledger: 1,
            epoch: 1,
            first_entry: 0,
            first_ordinal: 0,
        });
        list
    }

    fn at(entry: u64) -> Position {
        Position { ledger: 1, entry }
    }

    #[test]
    fn alternating_acks_cost_a_bit_each_and_the_end_state_is_constant() {
        let ledgers = ledgers();
        let mut sub = Sub::new(SubKey(1), None, 0);
        let n = 1_000_000;
        for ordinal in (1..n).step_by(2) {
            sub.ack(ordinal, ordinal + 1, &ledgers);
        }
        assert!(sub.bitmap_bytes() <= n as usize / 8 + 8);
        for ordinal in (0..n).step_by(2).collect::<Vec<_>>().into_iter().rev() {
            sub.ack(ordinal, ordinal + 1, &ledgers);
        }
        assert_eq!(sub.mark_at, Some(at(n - 1)));
        assert_eq!(sub.bitmap_bytes(), 0);
    }

    proptest! {
        #[test]
        fn bitmap_image_and_a_plain_set_agree(
            ops in prop::collection::vec((0..3u8, 0..300u64, 1..70u64), 1..60),
        ) {
            let ledgers = ledgers();
            let (mut sub, mut image) = (Sub::new(SubKey(1), None, 0), Image::default());
            let mut model = [false; 400];
            for (kind, first, count) in ops {
                if kind == 0 {
                    sub.mark_delete(at(first), first + 1);
                    image.mark_delete(at(first));
                    model[..=first as usize].fill(true);
                } else {
                    sub.ack(first, first + count, &ledgers);
                    image.ack(at(first), count);
                    model[first as usize..(first + count) as usize].fill(true);
                }
                let mut from_sub = [false; 400];
                from_sub[..sub.mark as usize].fill(true);
                let mut next = 0;
                while let Some((first, count)) = sub.next_acked(next, 40) {
                    from_sub[first as usize..(first + count) as usize].fill(true);
                    next = first + count;
                }
                prop_assert_eq!(&from_sub[..], &model[..]);
                let mut from_image = [false; 400];
                let mark = image.mark.map_or(0, |mark| mark.entry + 1);
                from_image[..mark as usize].fill(true);
                for (first, count) in image.acked() {
                    let (first, end) = (first.entry as usize, (first.entry + count) as usize);
                    prop_assert!(!from_image[first..end].contains(&true), "stretches overlap");
                    from_image[first..end].fill(true);
                }
                prop_assert_eq!(&from_image[..], &model[..]);
            }
        }
    }
}
