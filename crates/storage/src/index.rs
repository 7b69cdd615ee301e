//! The index of a durable topic: place, size and hints of each live entry, and sums over them.
use std::collections::VecDeque;
use std::ops::{AddAssign, Sub};

use crate::entry::{ENTRY_HEADER_BYTES, Hints, times_bytes};

/// Where an entry is stored and what is known of it. 24 bytes per live entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Slot in the segment table; [`Spot::PENDING`] until its commit block is laid out.
    pub(crate) segment: u32,
    /// Byte offset of its stored header in the segment.
    pub(crate) offset: u32,
    /// Length of its properties and body.
    pub(crate) bytes: u32,
    /// Messages in it.
    pub(crate) messages: u32,
    key_hash: u32,
    /// Publish time after the base of its chunk, milliseconds; [`FAR`] if it is too far from it.
    published: i32,
}

/// The publish time is in [`Index::far`].
const FAR: i32 = i32::MIN;

impl Spot {
    pub(crate) const PENDING: u32 = u32::MAX;

    /// Its hints are set when it is pushed.
    #[inline]
    pub(crate) fn new(segment: u32, offset: u32, bytes: u32, messages: u32) -> Spot {
        Spot {
            segment,
            offset,
            bytes,
            messages,
            key_hash: 0,
            published: 0,
        }
    }
}

/// Messages and payload bytes of a stretch of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
}

impl Totals {
    #[inline]
    pub(crate) fn count(&mut self, messages: u32, bytes: u32) {
        self.messages += u64::from(messages);
        self.bytes += u64::from(bytes);
    }
}

impl AddAssign for Totals {
    fn add_assign(&mut self, more: Totals) {
        self.messages += more.messages;
        self.bytes += more.bytes;
    }
}

impl Sub for Totals {
    type Output = Totals;

    fn sub(self, less: Totals) -> Totals {
        Totals {
            messages: self.messages - less.messages,
            bytes: self.bytes - less.bytes,
        }
    }
}

/// What is kept once for the entries of `CHUNK` ordinals.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    /// Totals of all entries before it, trimmed ones too.
    before: Totals,
    base_ms: u64,
    /// No live entry of it was published later; `u64::MAX` while it is the last one.
    max_ms: u64,
}

/// Ordinals of a chunk: a sum or a search walks no more spots than this.
const CHUNK: u64 = 256;

/// The times of an entry that has some.
#[derive(Clone, Copy, Debug)]
struct Timed {
    ordinal: u64,
    deliver_at_ms: u64,
    deadline_ms: u64,
}

/// Spots of consecutive ordinals.
#[derive(Debug, Default)]
pub(crate) struct Index {
    spots: VecDeque<Spot>,
    first: u64,
    /// Chunk `i` covers the ordinals from `CHUNK * (first_chunk + i)` on.
    chunks: VecDeque<Chunk>,
    first_chunk: u64,
    /// Of all entries ever pushed.
    totals: Totals,
    /// Entries with times, in order; 24 bytes for each, none for others.
    timed: VecDeque<Timed>,
    /// Ordinals and publish times that are weeks away from their neighbours'.
    far: VecDeque<(u64, u64)>,
}

impl Index {
    #[inline]
    pub(crate) fn push(&mut self, spot: Spot, hints: &Hints) {
        let ordinal = self.end();
        if ordinal.is_multiple_of(CHUNK) {
            self.open_chunk(hints.publish_ms);
        }
        let base_ms = self.chunks.back().map_or(0, |chunk| chunk.base_ms);
        let published = match hints.publish_ms.checked_sub(base_ms) {
            Some(after) => i32::try_from(after).unwrap_or(FAR),
            None => i32::try_from(base_ms - hints.publish_ms).map_or(FAR, |before| -before),
        };
        self.spots.push_back(Spot {
            key_hash: hints.key_hash,
            published,
            ..spot
        });
        self.totals.count(spot.messages, spot.bytes);
        if published == FAR || hints.is_timed() {
            self.push_rare(ordinal, published == FAR, hints);
        }
    }

    #[cold]
    fn push_rare(&mut self, ordinal: u64, is_far: bool, hints: &Hints) {
        if is_far {
            self.far.push_back((ordinal, hints.publish_ms));
        }
        if hints.is_timed() {
            self.timed.push_back(Timed {
                ordinal,
                deliver_at_ms: hints.deliver_at_ms,
                deadline_ms: hints.deadline_ms,
            });
        }
    }

    /// Ends the last chunk, and begins the next one.
    #[cold]
    fn open_chunk(&mut self, base_ms: u64) {
        let end = self.end();
        if let Some(&last) = self.chunks.back() {
            let first = self.first.max(end - CHUNK);
            let latest = (first..end).filter_map(|ordinal| self.publish_ms(ordinal));
            let max_ms = latest.max().unwrap_or(0);
            self.chunks.pop_back();
            self.chunks.push_back(Chunk { max_ms, ..last });
        } else {
            self.first_chunk = end / CHUNK;
        }
        self.chunks.push_back(Chunk {
            before: self.totals,
            base_ms,
            max_ms: u64::MAX,
        });
    }

    /// One past the last ordinal.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.first + self.spots.len() as u64
    }

    #[inline]
    pub(crate) fn get(&self, ordinal: u64) -> Option<&Spot> {
        self.spots
            .get(usize::try_from(ordinal.checked_sub(self.first)?).ok()?)
    }

    /// Offset behind the stored bytes of an entry, whose spot is given.
    pub(crate) fn stored_end(&self, ordinal: u64, spot: &Spot) -> u64 {
        let times = times_bytes(self.times(ordinal).is_some());
        u64::from(spot.offset) + (ENTRY_HEADER_BYTES + times) as u64 + u64::from(spot.bytes)
    }

    /// What is known of an entry without reading it. Logarithmic in the entries with times.
    pub(crate) fn hints(&self, ordinal: u64) -> Option<Hints> {
        let times = self.times(ordinal);
        Some(Hints {
            key_hash: self.get(ordinal)?.key_hash,
            publish_ms: self.publish_ms(ordinal)?,
            deliver_at_ms: times.map_or(0, |times| times.deliver_at_ms),
            deadline_ms: times.map_or(0, |times| times.deadline_ms),
        })
    }

    /// Ordinals of the entries with times, in order.
    pub(crate) fn timed(&self) -> impl Iterator<Item = u64> {
        self.timed.iter().map(|timed| timed.ordinal)
    }

    fn times(&self, ordinal: u64) -> Option<&Timed> {
        let at = self
            .timed
            .binary_search_by_key(&ordinal, |timed| timed.ordinal);
        self.timed.get(at.ok()?)
    }

    fn publish_ms(&self, ordinal: u64) -> Option<u64> {
        let published = self.get(ordinal)?.published;
        if published == FAR {
            let at = self.far.binary_search_by_key(&ordinal, |&(far, _)| far);
            return Some(self.far.get(at.ok()?)?.1);
        }
        let chunk = self
            .chunks
            .get((ordinal / CHUNK - self.first_chunk) as usize)?;
        Some(chunk.base_ms.wrapping_add_signed(i64::from(published)))
    }

    pub(crate) fn place(&mut self, ordinal: u64, segment: u32, offset: u32) {
        let at = usize::try_from(ordinal - self.first).expect("an index fits memory");
        let spot = &mut self.spots[at];
        spot.segment = segment;
        spot.offset = offset;
    }

    /// Removes the spots below `before`, giving each to `gone`.
    pub(crate) fn trim(&mut self, before: u64, mut gone: impl FnMut(&Spot)) {
        while self.first < before
            && let Some(spot) = self.spots.pop_front()
        {
            gone(&spot);
            self.first += 1;
        }
        while self.first_chunk < self.first / CHUNK && self.chunks.pop_front().is_some() {
            self.first_chunk += 1;
        }
        drop_below(&mut self.timed, |timed| timed.ordinal < self.first);
        drop_below(&mut self.far, |&(ordinal, _)| ordinal < self.first);
    }

    /// Totals of the entries from `ordinal` on. Walks one chunk at most.
    pub(crate) fn totals_from(&self, ordinal: u64) -> Totals {
        let ordinal = ordinal.max(self.first);
        if ordinal >= self.end() {
            return Totals::default();
        }
        let next = ordinal / CHUNK + 1;
        let (end, mut totals) = match self.chunks.get((next - self.first_chunk) as usize) {
            Some(chunk) => (next * CHUNK, self.totals - chunk.before),
            None => (self.end(), Totals::default()),
        };
        for spot in (ordinal..end).filter_map(|ordinal| self.get(ordinal)) {
            totals.count(spot.messages, spot.bytes);
        }
        totals
    }

    /// The first ordinal that was published at `since_ms` or later, else the end. Looks at one
    /// number per chunk, and walks two chunks at most.
    pub(crate) fn first_published_since(&self, since_ms: u64) -> u64 {
        for (number, chunk) in (self.first_chunk..).zip(&self.chunks) {
            if chunk.max_ms < since_ms {
                continue;
            }
            // The latest of the first chunk may be trimmed.
            let first = (number * CHUNK).max(self.first);
            let found = (first..self.end().min((number + 1) * CHUNK))
                .find(|&ordinal| self.publish_ms(ordinal).is_some_and(|ms| ms >= since_ms));
            if let Some(found) = found {
                return found;
            }
        }
        self.end()
    }

    /// Bytes it holds for so many live entries.
    #[cfg(test)]
    pub(crate) fn state_bytes(&self) -> usize {
        self.spots.len() * size_of::<Spot>()
            + self.chunks.len() * size_of::<Chunk>()
            + self.timed.len() * size_of::<Timed>()
            + self.far.len() * size_of::<(u64, u64)>()
    }
}

/// Removes from the front what is below; the memory goes with the last one.
fn drop_below<T>(list: &mut VecDeque<T>, is_below: impl Fn(&T) -> bool) {
    if list.is_empty() {
        return;
    }
    while list.front().is_some_and(&is_below) {
        list.pop_front();
    }
    if list.is_empty() {
        *list = VecDeque::new();
    }
}

const _: () = assert!(
    size_of::<Spot>() == 24 && size_of::<Chunk>() == 32 && size_of::<Timed>() == 24,
    "what the index costs per live entry is said above"
);

#[cfg(test)]
mod tests {

    use proptest::prelude::*;

    use super::*;

    fn times() -> impl Strategy<Value = u64> {
        prop_oneof![
            6 => 1_700_000_000_000..1_700_000_000_050u64,
            1 => Just(0),
            1 => Just(u64::MAX),
            1 => any::<u64>(),
        ]
    }

    proptest! {
        #[test]
        fn hints_sums_and_searches_agree_with_a_plain_list(
            entries in prop::collection::vec(
                (times(), any::<u32>(), 0..5_000u32, prop_oneof![4 => Just(0), 1 => any::<u64>()]),
                1..900,
            ),
            trims in prop::collection::vec((0..900u64, 0..900u64), 0..6),
            asked in prop::collection::vec((0..1_000u64, times()), 1..20),
        ) {
            let mut index = Index::default();
            let mut first = 0;
            for (ordinal, &(publish_ms, key_hash, bytes, deadline_ms)) in (0..).zip(&entries) {
                let hints = Hints { key_hash, publish_ms, deadline_ms, deliver_at_ms: deadline_ms / 2 };
                index.push(Spot::new(1, 2, bytes, bytes % 7), &hints);
                for &(_, before) in trims.iter().filter(|trim| trim.0 == ordinal) {
                    let mut gone = 0;
                    index.trim(before, |_| gone += 1);
                    let to = before.min(ordinal + 1).max(first);
                    prop_assert_eq!(gone, to - first);
                    first = to;
                }
            }
            let live = || (0..).zip(&entries).skip(first as usize);
            for (ordinal, since_ms) in asked {
                let hints = index.hints(ordinal);
                let expected = live().find(|entry| entry.0 == ordinal).map(|(_, entry)| *entry);
                prop_assert_eq!(
                    hints.map(|h| (h.publish_ms, h.key_hash, h.deliver_at_ms, h.deadline_ms)),
                    expected.map(|e| (e.0, e.1, e.3 / 2, e.3))
                );
                let totals = index.totals_from(ordinal);
                let from = || live().filter(|entry| entry.0 >= ordinal).map(|(_, entry)| entry.2);
                prop_assert_eq!(totals.bytes, from().map(u64::from).sum::<u64>());
                prop_assert_eq!(totals.messages, from().map(|bytes| u64::from(bytes % 7)).sum::<u64>());
                let found = live().find(|(_, entry)| entry.0 >= since_ms);
                let expected = found.map_or(entries.len() as u64, |(ordinal, _)| ordinal);
                prop_assert_eq!(index.first_published_since(since_ms), expected);
            }
        }
    }

    #[test]
    fn a_seek_by_time_finds_its_entry_among_millions_that_cost_few_bytes_each() {
        const N: u64 = 4_000_000;
        let mut index = Index::default();
        for ordinal in 0..N {
            // Disordered by up to 10 s, and rising.
            let publish_ms = 1_700_000_000_000 + ordinal + ordinal * 7919 % 10_000;
            let hints = Hints {
                publish_ms,
                key_hash: ordinal as u32,
                ..Hints::default()
            };
            index.push(Spot::new(0, 0, 100, 1), &hints);
        }
        let per_entry = index.state_bytes() as f64 / N as f64;
        let found = index.first_published_since(1_700_000_000_000 + N - 1);
        let totals = index.totals_from(N / 2 + 1);
        assert!(found > N - 10_100 && found < N);
        assert_eq!(totals.messages, N / 2 - 1);
        assert!(per_entry < 24.2);
        index.trim(N, |_| ());
        assert_eq!(index.state_bytes(), 0);
    }
}
