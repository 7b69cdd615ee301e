//! Entries: what a publisher hands in, what the index knows, and the stored header.
use crate::position::Position;

/// How safe an entry is before its producer gets a receipt and consumers may see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Not kept at all: an entry goes, when it is published, to whoever can take it. In the log it is
    /// as one in memory, let go at once.
    NonPersistent,
    /// Never written.
    Memory,
    /// Written to the page cache: survives the death of the process.
    Written,
    /// Synced: survives the loss of power.
    #[default]
    Synced,
}

impl Durability {
    /// Whether entries are written, and with them whatever belongs to them.
    #[must_use]
    pub fn is_stored(self) -> bool {
        matches!(self, Durability::Written | Durability::Synced)
    }
}

/// Durable id of a topic, given by the broker's metadata; never used for another topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicKey(pub u64);

/// Durable id of a subscription, given by the broker's metadata; never used for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SubKey(pub u64);

/// Dense index of an open topic within one [`crate::Log`]; free for another after `drop_topic`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicSlot(pub u32);

/// Number of a commit. What was appended or acked with ticket `t` has a durability as soon as
/// [`crate::Log::done_through`] of it is `>= t`. Ticket 0 is always done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// An entry to append: one or more messages.
#[derive(Clone, Copy, Debug, Default)]
pub struct NewEntry<'a> {
    /// Payload, in bytes as stored.
    pub body: &'a [u8],
    /// Messages in it, 1 or more.
    pub messages: u32,
    /// Hash of its key, 0 if it has none.
    pub key_hash: u32,
    /// Producer's durable number.
    pub producer: u64,
    /// Producer's sequence.
    pub sequence: u64,
    /// Whether the sequence is kept as the highest of its producer: see [`crate::Log::last_sequence`].
    /// Heeded by [`crate::Log::append_apart`] alone.
    pub is_numbered: bool,
    /// Publish time, milliseconds of wall clock.
    pub publish_ms: u64,
    /// When it was received, monotonic nanoseconds; kept in memory only.
    pub arrived_ns: u64,
    /// Not to be delivered before this time, milliseconds of wall clock; 0 if it has none.
    pub deliver_at_ms: u64,
    /// Not to be delivered from this time on, milliseconds of wall clock; 0 if it has none.
    pub deadline_ms: u64,
    /// Properties of the entry as a whole, encoded by the caller; mostly empty.
    pub properties: &'a [u8],
}

impl NewEntry<'_> {
    /// Bytes of properties and body.
    #[inline]
    #[must_use]
    pub fn payload_bytes(&self) -> usize {
        self.properties.len() + self.body.len()
    }

    /// What the log will tell of it without reading it.
    #[must_use]
    #[inline]
    pub fn hints(&self) -> Hints {
        Hints {
            key_hash: self.key_hash,
            publish_ms: self.publish_ms,
            deliver_at_ms: self.deliver_at_ms,
            deadline_ms: self.deadline_ms,
        }
    }

    /// Bytes it takes on disk.
    #[inline]
    pub(crate) fn stored_bytes(&self) -> usize {
        let times = times_bytes(self.hints().is_timed());
        ENTRY_HEADER_BYTES + times + self.payload_bytes()
    }
}

/// What the log tells of an entry without reading it (rule D28).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Hash of its key, 0 if it has none.
    pub key_hash: u32,
    /// Publish time, milliseconds of wall clock.
    pub publish_ms: u64,
    /// Not to be delivered before this time, milliseconds of wall clock; 0 if it has none.
    pub deliver_at_ms: u64,
    /// Not to be delivered from this time on, milliseconds of wall clock; 0 if it has none.
    pub deadline_ms: u64,
}

impl Hints {
    /// Has a time that the index keeps beside the entry's place.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.deliver_at_ms | self.deadline_ms != 0
    }
}

/// What is known of an entry in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryMeta {
    /// Where it is in its topic.
    pub position: Position,
    /// Where its body starts in the block's memory, in bytes; use [`crate::Block::body`].
    pub offset: u32,
    /// Length of the body in bytes.
    pub bytes: u32,
    /// Messages in it.
    pub messages: u32,
    /// Hash of its key, 0 if none.
    pub key_hash: u32,
    /// Producer's durable number.
    pub producer: u64,
    /// Producer's sequence.
    pub sequence: u64,
    /// Publish time, milliseconds of wall clock.
    pub publish_ms: u64,
    /// When it was received, monotonic nanoseconds; 0 if it was read from disk.
    pub arrived_ns: u64,
    /// When the log took it, monotonic nanoseconds; 0 if it was read from disk.
    pub appended_ns: u64,
    /// Not to be delivered before this time, milliseconds of wall clock; 0 if it has none.
    pub deliver_at_ms: u64,
    /// Not to be delivered from this time on, milliseconds of wall clock; 0 if it has none.
    pub deadline_ms: u64,
    /// Length of its properties, which stand before the body; use [`crate::Block::properties`].
    pub properties_bytes: u32,
    /// Its sequence counts among its producer's.
    pub is_numbered: bool,
}

impl EntryMeta {
    /// Bytes of properties and body.
    #[must_use]
    pub fn payload_bytes(&self) -> u32 {
        self.properties_bytes + self.bytes
    }

    /// What is known of it without reading it.
    #[must_use]
    pub fn hints(&self) -> Hints {
        Hints {
            key_hash: self.key_hash,
            publish_ms: self.publish_ms,
            deliver_at_ms: self.deliver_at_ms,
            deadline_ms: self.deadline_ms,
        }
    }

    /// Bytes it takes on disk.
    #[inline]
    pub(crate) fn stored_bytes(&self) -> usize {
        let times = times_bytes(self.hints().is_timed());
        ENTRY_HEADER_BYTES + times + self.payload_bytes() as usize
    }
}

/// Bytes of the header before each stored entry.
///
/// ```text
///  0 u32 crc32c of all bytes from 4 on              32 u64 producer
///  4 u32 length of the body                         40 u64 sequence
///  8 u64 ledger                                     48 u64 publish time, ms
/// 16 u64 entry                                      56 u32 hash of the key
/// 24 u32 epoch of the ledger                        60 u32 length of the properties; the top bit
/// 28 u32 messages                                          says that the times are there, the one
///                                                          below that the sequence counts
/// 64 .. if so: u64 deliver-at, u64 deadline, ms; then the properties; then the body
/// ```
/// All numbers are little endian. The checksum covers the position and the epoch, so an entry that
/// is intact but in the wrong place is not accepted.
pub(crate) const ENTRY_HEADER_BYTES: usize = 64;
const TIMES_BYTES: usize = 16;
/// Bit of the word at 60: the times stand behind the header.
const HAS_TIMES: u32 = 1 << 31;
/// Another one: the sequence counts among those of its producer.
const IS_NUMBERED: u32 = 1 << 30;
/// Longest properties and body together, so that lengths stay clear of those bits.
pub(crate) const PAYLOAD_BYTES_MAX: usize = IS_NUMBERED as usize - 1;

/// Bytes of the times of an entry that has some, or not.
#[inline]
pub(crate) fn times_bytes(is_timed: bool) -> usize {
    if is_timed { TIMES_BYTES } else { 0 }
}

/// Writes an entry to `out`, whose length is exactly its own. `payload` is its properties and body.
pub(crate) fn encode_entry(out: &mut [u8], meta: &EntryMeta, epoch: u32, payload: &[u8]) {
    let is_timed = meta.hints().is_timed();
    let (header, rest) = out.split_at_mut(ENTRY_HEADER_BYTES);
    header[4..8].copy_from_slice(&meta.bytes.to_le_bytes());
    header[8..16].copy_from_slice(&meta.position.ledger.to_le_bytes());
    header[16..24].copy_from_slice(&meta.position.entry.to_le_bytes());
    header[24..28].copy_from_slice(&epoch.to_le_bytes());
    header[28..32].copy_from_slice(&meta.messages.to_le_bytes());
    header[32..40].copy_from_slice(&meta.producer.to_le_bytes());
    header[40..48].copy_from_slice(&meta.sequence.to_le_bytes());
    header[48..56].copy_from_slice(&meta.publish_ms.to_le_bytes());
    header[56..60].copy_from_slice(&meta.key_hash.to_le_bytes());
    let flag = |is_set: bool, bit: u32| if is_set { bit } else { 0 };
    let flags = flag(is_timed, HAS_TIMES) | flag(meta.is_numbered, IS_NUMBERED);
    let extra = meta.properties_bytes | flags;
    header[60..64].copy_from_slice(&extra.to_le_bytes());
    let (times, rest) = rest.split_at_mut(times_bytes(is_timed));
    if is_timed {
        times[..8].copy_from_slice(&meta.deliver_at_ms.to_le_bytes());
        times[8..].copy_from_slice(&meta.deadline_ms.to_le_bytes());
    }
    rest.copy_from_slice(payload);
    let crc = crc_fast::crc32_iscsi(&out[4..]);
    out[0..4].copy_from_slice(&crc.to_le_bytes());
}

/// A stored entry as read back; its properties and body are behind the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredEntry {
    pub(crate) meta: EntryMeta,
    pub(crate) epoch: u32,
}

/// Reads the entry at the start of `bytes`. `None` if it does not fit or its checksum is wrong.
/// The meta's `offset` is that of the body from the start of `bytes`.
pub(crate) fn decode_entry(bytes: &[u8]) -> Option<StoredEntry> {
    let header = bytes.first_chunk::<ENTRY_HEADER_BYTES>()?;
    let u32_at = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
    let u64_at = |at: usize| u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| header[at + i]));
    let body_bytes = u32_at(4);
    let properties_bytes = u32_at(60) & !(HAS_TIMES | IS_NUMBERED);
    let is_timed = u32_at(60) & HAS_TIMES != 0;
    let body_at =
        (ENTRY_HEADER_BYTES + times_bytes(is_timed)).checked_add(properties_bytes as usize)?;
    let end = body_at.checked_add(usize::try_from(body_bytes).ok()?)?;
    if end - ENTRY_HEADER_BYTES > PAYLOAD_BYTES_MAX + TIMES_BYTES {
        return None;
    }
    let covered = bytes.get(4..end)?;
    if crc_fast::crc32_iscsi(covered) != u32_at(0) {
        return None;
    }
    let times = bytes[ENTRY_HEADER_BYTES..].first_chunk::<TIMES_BYTES>();
    let (deliver_at_ms, deadline_ms) = match times.filter(|_| is_timed) {
        Some(times) => (
            u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| times[i])),
            u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|i| times[8 + i])),
        ),
        None => (0, 0),
    };
    if is_timed && deliver_at_ms | deadline_ms == 0 {
        // Nobody writes that, and its length would not be what the index says.
        return None;
    }
    let meta = EntryMeta {
        position: Position {
            ledger: u64_at(8),
            entry: u64_at(16),
        },
        offset: body_at as u32,
        bytes: body_bytes,
        messages: u32_at(28),
        key_hash: u32_at(56),
        producer: u64_at(32),
        sequence: u64_at(40),
        publish_ms: u64_at(48),
        deliver_at_ms,
        deadline_ms,
        properties_bytes,
        is_numbered: u32_at(60) & IS_NUMBERED != 0,
        arrived_ns: 0,
        appended_ns: 0,
    };
    Some(StoredEntry {
        meta,
        epoch: u32_at(24),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_entry_survives_with_all_its_hints_and_no_flipped_bit_does(
            (deliver_at_ms, deadline_ms) in (prop::option::of(any::<u64>()), prop::option::of(any::<u64>())),
            (key_hash, publish_ms, messages) in (any::<u32>(), any::<u64>(), any::<u32>()),
            is_numbered in any::<bool>(),
            properties in prop::collection::vec(any::<u8>(), 0..40),
            body in prop::collection::vec(any::<u8>(), 0..200),
            flip in any::<prop::sample::Index>(),
        ) {
            let meta = EntryMeta {
                position: Position { ledger: 3, entry: 4 },
                bytes: body.len() as u32,
                properties_bytes: properties.len() as u32,
                deliver_at_ms: deliver_at_ms.unwrap_or(0),
                deadline_ms: deadline_ms.unwrap_or(0),
                key_hash,
                publish_ms,
                messages,
                is_numbered,
                ..EntryMeta::default()
            };
            let payload = [&properties[..], &body].concat();
            let mut stored = vec![0; meta.stored_bytes()];
            encode_entry(&mut stored, &meta, 9, &payload);
            stored.extend_from_slice(b"what follows");
            let back = decode_entry(&stored).unwrap();
            let start = back.meta.offset as usize;
            prop_assert_eq!(EntryMeta { offset: 0, ..back.meta }, meta);
            prop_assert_eq!(&stored[start - properties.len()..start], &properties[..]);
            prop_assert_eq!(&stored[start..start + body.len()], &body[..]);
            let bit = flip.index(meta.stored_bytes() * 8);
            stored[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode_entry(&stored), None);
        }
    }
}
