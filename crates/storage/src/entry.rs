//! Entries: what a publisher hands in, what the index knows, and the stored header.
use crate::position::Position;

/// How safe an entry is before its producer gets a receipt and consumers may see it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Never written.
    Memory,
    /// Written to the page cache: survives the death of the process.
    Written,
    /// Synced: survives the loss of power.
    #[default]
    Synced,
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
#[derive(Clone, Copy, Debug)]
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
    /// Publish time, milliseconds of wall clock.
    pub publish_ms: u64,
    /// When it was received, monotonic nanoseconds; kept in memory only.
    pub arrived_ns: u64,
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
}

/// Bytes of the header before each stored body.
///
/// ```text
///  0 u32 crc32c of bytes 4.. of header and body     32 u64 producer
///  4 u32 length of the body                         40 u64 sequence
///  8 u64 ledger                                     48 u64 publish time, ms
/// 16 u64 entry                                      56 u32 hash of the key
/// 24 u32 epoch of the ledger                        60 u32 zero
/// 28 u32 messages                                   64 .. body
/// ```
/// All numbers are little endian. The checksum covers the position and the epoch, so an entry that
/// is intact but in the wrong place is not accepted.
pub(crate) const ENTRY_HEADER_BYTES: usize = 64;

/// Writes header and body to `out`, whose length is exactly theirs.
pub(crate) fn encode_entry(out: &mut [u8], meta: &EntryMeta, epoch: u32, body: &[u8]) {
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
    header[60..64].copy_from_slice(&[0; 4]);
    rest.copy_from_slice(body);
    let crc = crc_fast::crc32_iscsi(&out[4..]);
    out[0..4].copy_from_slice(&crc.to_le_bytes());
}

/// A stored entry as read back; its body is behind the header.
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
    let end = ENTRY_HEADER_BYTES.checked_add(usize::try_from(body_bytes).ok()?)?;
    let covered = bytes.get(4..end)?;
    if crc_fast::crc32_iscsi(covered) != u32_at(0) {
        return None;
    }
    let meta = EntryMeta {
        position: Position {
            ledger: u64_at(8),
            entry: u64_at(16),
        },
        offset: ENTRY_HEADER_BYTES as u32,
        bytes: body_bytes,
        messages: u32_at(28),
        key_hash: u32_at(56),
        producer: u64_at(32),
        sequence: u64_at(40),
        publish_ms: u64_at(48),
        arrived_ns: 0,
        appended_ns: 0,
    };
    Some(StoredEntry {
        meta,
        epoch: u32_at(24),
    })
}
