//! What is on disk, byte by byte. Everything read is bounds-checked before use or allocation.
//!
//! A segment file is a run of 4 KiB pages; all numbers are little endian.
//!
//! ```text
//! page 0            segment header
//! page 1 ..         blocks, each a run of whole pages, one behind the other
//! then              the footer block, if the segment is sealed
//! last page         the trailer: where the footer is, if the segment is sealed
//! ```
//!
//! Segment header (64 bytes used):
//! ```text
//!  0 u32 magic "PSG1"      16 u128 identity of the log     48 u64 longest block, bytes
//!  4 u32 crc32c of 8..64   32 u64  segment number          56 u64 zero
//!  8 u32 version, 3        40 u64  segment length, bytes
//! 12 u32 zero
//! ```
//!
//! Block (a chain over all segments of a log):
//! ```text
//!  0 u32 magic "PBK1"                       48 u64 sequence number of the block, rising by 1
//!  4 u32 crc32c of bytes 8..used            56 u64 last sequence known synced when it was made
//!  8 u16 kind: 1 commit, 2 footer           64 u64 next ledger id
//! 10 u16 version, 3                         72 u32 crc of the block before (0 for the first)
//! 12 u32 bytes used, header included        76 u32 page it starts at
//! 16 u32 length in pages                    80 u32 number of sections
//! 20 u32 epoch: count of opens              84 u32 zero
//! 24 u128 identity of the log               88 ..  sections, then zeros to the page border
//! 40 u64 segment number
//! ```
//! Segment number, page and epoch tell a stale block from a live one: a recycled segment has
//! another number, and every open writes with a higher epoch than any block it saw.
//!
//! Section: `u32 kind, u32 bytes of payload, payload`. Payloads:
//! ```text
//!  1 entries      u64 topic, u64 ledger, u64 first entry, u32 epoch, u32 count, stored entries
//!                 (`entry.rs`)
//!  2 marks        n x (u64 topic, u64 subscription, u64 ledger, u64 entry): mark-delete positions
//!  3 acked        u64 topic, u64 subscription, u64 ledger, u64 base, u32 count, u32 zero,
//!                 count x (u32 first entry - base, u32 entries)
//!  4 reset        u64 topic, u64 subscription, u64 1 if there is a position, u64 ledger, u64 entry
//!  5 freed        n x u64 segment: will be used again once this block is synced
//!  6 checkpoint starts   u64 number
//!  7 live segments       n x u64 segment: must be there (part of a checkpoint)
//!  8 cursor       u64 topic, u64 subscription, u32 1 if it has a mark, u32 runs, u64 ledger, u64
//!                 entry of the mark,
//!                 runs x (u64 ledger, u64 first entry, u32 words, u32 zero, words x u64 bits)
//!  9 checkpoint ends     u64 number
//! 10 summary      (footer) u64 first sequence, u64 next segment, u32 crc before the first block,
//!                 u32 blocks, u32 checkpoints started here, u32 ended here, their u64 numbers
//! 11 group        (footer) u64 topic, u64 ledger, u64 first entry, u32 offset of the first stored
//!                 entry, u32 count, u32 epoch, u32 zero, count x (varint bytes of properties and
//!                 body, varint 2 x messages + 1 if hints follow; then u8 which: 1 u32 hash of
//!                 the key, 2 zigzag varint publish time - that of the entry before in this
//!                 footer, 4 u64 deliver-at, u64 deadline)
//! 12 partial      u64 topic, u64 subscription, u64 ledger, u64 entry, u32 number of the first
//!                 word, u32 words of the whole set, words x u64 bits: 1 is a message not acked
//! 13 sequences    u64 topic, n x (u64 producer, u64 highest sequence): part of a checkpoint
//! ```
//!
//! Trailer (last page of a sealed segment, 64 bytes used):
//! ```text
//!  0 u32 magic "PTR1"      24 u64 segment number        40 u32 crc of the footer block
//!  4 u32 crc32c of 8..64   32 u32 page of the footer    44 u32 zero
//!  8 u128 identity         36 u32 its pages             48 u64 its sequence number
//! ```
use crate::page::PAGE_BYTES;

pub(crate) const BLOCK_HEADER_BYTES: usize = 88;
pub(crate) const SECTION_HEADER_BYTES: usize = 8;
pub(crate) const ENTRIES_HEADER_BYTES: usize = 32;
pub(crate) const GROUP_HEADER_BYTES: usize = 40;
/// Longest entry in a footer group: two varints, and hints of every kind.
pub(crate) const GROUP_ENTRY_BYTES_MAX: usize = 5 + 5 + 1 + 4 + 10 + 16;

const SEGMENT_MAGIC: u32 = u32::from_le_bytes(*b"PSG1");
const BLOCK_MAGIC: u32 = u32::from_le_bytes(*b"PBK1");
const TRAILER_MAGIC: u32 = u32::from_le_bytes(*b"PTR1");
pub(crate) const VERSION: u16 = 3;
const SMALL_BYTES: usize = 64;

/// Kinds of sections.
pub(crate) mod section {
    pub(crate) const ENTRIES: u32 = 1;
    pub(crate) const MARKS: u32 = 2;
    pub(crate) const ACKED: u32 = 3;
    pub(crate) const RESET: u32 = 4;
    pub(crate) const FREED: u32 = 5;
    pub(crate) const CHECKPOINT_START: u32 = 6;
    pub(crate) const LIVE_SEGMENTS: u32 = 7;
    pub(crate) const CURSOR: u32 = 8;
    pub(crate) const CHECKPOINT_END: u32 = 9;
    pub(crate) const SUMMARY: u32 = 10;
    pub(crate) const GROUP: u32 = 11;
    pub(crate) const PARTIAL: u32 = 12;
    pub(crate) const SEQUENCES: u32 = 13;
}

/// Pages that hold `bytes`.
pub(crate) fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_BYTES)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockKind {
    Commit = 1,
    Footer = 2,
}

/// Header of a block, as laid out above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) kind: BlockKind,
    pub(crate) crc: u32,
    pub(crate) used: u32,
    pub(crate) pages: u32,
    pub(crate) epoch: u32,
    pub(crate) log_id: u128,
    pub(crate) segment: u64,
    pub(crate) seq: u64,
    pub(crate) synced_through: u64,
    pub(crate) next_ledger: u64,
    pub(crate) prev_crc: u32,
    pub(crate) page: u32,
    pub(crate) sections: u32,
}

impl BlockHeader {
    /// Writes the header into a block whose sections are in place; gives the checksum.
    pub(crate) fn seal(&self, block: &mut [u8]) -> u32 {
        let used = self.used as usize;
        block[used..].fill(0);
        put_u32(block, 0, BLOCK_MAGIC);
        block[8..10].copy_from_slice(&(self.kind as u16).to_le_bytes());
        block[10..12].copy_from_slice(&VERSION.to_le_bytes());
        put_u32(block, 12, self.used);
        put_u32(block, 16, self.pages);
        put_u32(block, 20, self.epoch);
        block[24..40].copy_from_slice(&self.log_id.to_le_bytes());
        put_u64(block, 40, self.segment);
        put_u64(block, 48, self.seq);
        put_u64(block, 56, self.synced_through);
        put_u64(block, 64, self.next_ledger);
        put_u32(block, 72, self.prev_crc);
        put_u32(block, 76, self.page);
        put_u32(block, 80, self.sections);
        put_u32(block, 84, 0);
        let crc = crc_fast::crc32_iscsi(&block[8..used]);
        put_u32(block, 4, crc);
        crc
    }

    /// Reads the header at the start of `bytes`: `None` unless magic, version and lengths make
    /// sense. The checksum is not looked at: the rest may not be there yet.
    pub(crate) fn peek(bytes: &[u8]) -> Option<BlockHeader> {
        let mut r = Reader::new(bytes);
        if r.u32()? != BLOCK_MAGIC {
            return None;
        }
        let crc = r.u32()?;
        let kind = match r.u16()? {
            1 => BlockKind::Commit,
            2 => BlockKind::Footer,
            _ => return None,
        };
        if r.u16()? != VERSION {
            return None;
        }
        let header = BlockHeader {
            kind,
            crc,
            used: r.u32()?,
            pages: r.u32()?,
            epoch: r.u32()?,
            log_id: r.u128()?,
            segment: r.u64()?,
            seq: r.u64()?,
            synced_through: r.u64()?,
            next_ledger: r.u64()?,
            prev_crc: r.u32()?,
            page: r.u32()?,
            sections: r.u32()?,
        };
        r.u32()?;
        let used = header.used as usize;
        (used >= BLOCK_HEADER_BYTES && header.pages as usize == pages(used)).then_some(header)
    }

    /// Whether the checksum of a whole block is right.
    pub(crate) fn is_intact(&self, block: &[u8]) -> bool {
        block
            .get(8..self.used as usize)
            .is_some_and(|bytes| crc_fast::crc32_iscsi(bytes) == self.crc)
    }

    /// The sections of an intact block.
    pub(crate) fn sections<'a>(&self, block: &'a [u8]) -> Sections<'a> {
        let bytes = block
            .get(BLOCK_HEADER_BYTES..self.used as usize)
            .unwrap_or(&[]);
        Sections {
            at: BLOCK_HEADER_BYTES,
            rest: bytes,
            left: self.sections,
        }
    }
}

/// One section of a block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section<'a> {
    pub(crate) kind: u32,
    /// Where the payload starts in the block.
    pub(crate) at: usize,
    pub(crate) payload: &'a [u8],
}

/// Walks the sections; an item of `None` means the block contradicts itself.
#[derive(Debug)]
pub(crate) struct Sections<'a> {
    at: usize,
    rest: &'a [u8],
    left: u32,
}

impl<'a> Iterator for Sections<'a> {
    type Item = Option<Section<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            let clean = self.rest.is_empty();
            self.rest = &[];
            return if clean { None } else { Some(None) };
        }
        self.left -= 1;
        let mut r = Reader::new(self.rest);
        let section = (|| {
            let kind = r.u32()?;
            let bytes = r.u32()?;
            let payload = r.bytes(usize::try_from(bytes).ok()?)?;
            let at = self.at + SECTION_HEADER_BYTES;
            self.at = at + payload.len();
            self.rest = r.rest;
            Some(Section { kind, at, payload })
        })();
        if section.is_none() {
            self.left = 0;
            self.rest = &[];
        }
        Some(section)
    }
}

/// Header page of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) log_id: u128,
    pub(crate) segment: u64,
    pub(crate) bytes: u64,
    pub(crate) block_bytes_max: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self, page: &mut [u8]) {
        page.fill(0);
        put_u32(page, 0, SEGMENT_MAGIC);
        put_u32(page, 8, u32::from(VERSION));
        page[16..32].copy_from_slice(&self.log_id.to_le_bytes());
        put_u64(page, 32, self.segment);
        put_u64(page, 40, self.bytes);
        put_u64(page, 48, self.block_bytes_max);
        let crc = crc_fast::crc32_iscsi(&page[8..SMALL_BYTES]);
        put_u32(page, 4, crc);
    }

    /// The version an intact header says, whether this code can read it or not.
    pub(crate) fn version(page: &[u8]) -> Option<u32> {
        let mut r = Reader::new(page.get(..SMALL_BYTES)?);
        if r.u32()? != SEGMENT_MAGIC || r.u32()? != crc_fast::crc32_iscsi(&page[8..SMALL_BYTES]) {
            return None;
        }
        r.u32()
    }

    pub(crate) fn decode(page: &[u8]) -> Option<SegmentHeader> {
        if SegmentHeader::version(page)? != u32::from(VERSION) {
            return None;
        }
        let mut r = Reader::new(&page[16..SMALL_BYTES]);
        let header = SegmentHeader {
            log_id: r.u128()?,
            segment: r.u64()?,
            bytes: r.u64()?,
            block_bytes_max: r.u64()?,
        };
        let page_bytes = PAGE_BYTES as u64;
        let sane = header.bytes <= u64::from(u32::MAX)
            && header.bytes.is_multiple_of(page_bytes)
            && header.bytes >= 4 * page_bytes
            && header.block_bytes_max <= header.bytes;
        sane.then_some(header)
    }
}

/// Trailer page of a sealed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) log_id: u128,
    pub(crate) segment: u64,
    pub(crate) page: u32,
    pub(crate) pages: u32,
    pub(crate) crc: u32,
    pub(crate) seq: u64,
}

impl Trailer {
    pub(crate) fn encode(&self, page: &mut [u8]) {
        page.fill(0);
        put_u32(page, 0, TRAILER_MAGIC);
        page[8..24].copy_from_slice(&self.log_id.to_le_bytes());
        put_u64(page, 24, self.segment);
        put_u32(page, 32, self.page);
        put_u32(page, 36, self.pages);
        put_u32(page, 40, self.crc);
        put_u64(page, 48, self.seq);
        let crc = crc_fast::crc32_iscsi(&page[8..SMALL_BYTES]);
        put_u32(page, 4, crc);
    }

    pub(crate) fn decode(page: &[u8]) -> Option<Trailer> {
        let mut r = Reader::new(page.get(..SMALL_BYTES)?);
        if r.u32()? != TRAILER_MAGIC || r.u32()? != crc_fast::crc32_iscsi(&page[8..SMALL_BYTES]) {
            return None;
        }
        let (log_id, segment, at, pages, crc) = (r.u128()?, r.u64()?, r.u32()?, r.u32()?, r.u32()?);
        r.u32()?;
        Some(Trailer {
            log_id,
            segment,
            page: at,
            pages,
            crc,
            seq: r.u64()?,
        })
    }
}

/// Takes numbers and slices off the front of bytes; `None` where they end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Reader<'a> {
        Reader { rest }
    }

    pub(crate) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(bytes)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        let (&byte, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(byte)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u16::from_le_bytes(*bytes))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    pub(crate) fn u128(&mut self) -> Option<u128> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u128::from_le_bytes(*bytes))
    }

    /// A little-endian base-128 number.
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 {
                return None;
            }
            value |= part << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[inline]
pub(crate) fn push_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn put_u32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Appends a section whose payload is `words`.
pub(crate) fn push_section(out: &mut Vec<u8>, kind: u32, words: &[u64]) {
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&((words.len() * 8) as u32).to_le_bytes());
    for word in words {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_survive_the_varint() {
        for value in [0, 1, 127, 128, 16_383, 16_384, u64::MAX >> 1, u64::MAX] {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, value);
            assert_eq!(Reader::new(&bytes).varint(), Some(value));
            assert_eq!(Reader::new(&bytes[..bytes.len() - 1]).varint(), None);
        }
        let mut too_long = [0xff; 10];
        too_long[9] = 2;
        assert_eq!(Reader::new(&too_long).varint(), None);
    }

    #[test]
    fn headers_and_trailers_survive_and_one_flipped_bit_is_seen() {
        let mut page = [0u8; PAGE_BYTES];
        let header = SegmentHeader {
            log_id: 7,
            segment: 3,
            bytes: 1 << 16,
            block_bytes_max: 1 << 15,
        };
        header.encode(&mut page);
        assert_eq!(SegmentHeader::decode(&page), Some(header));
        for bit in 0..SMALL_BYTES * 8 {
            let mut bad = page;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(&bad), None, "bit {bit}");
        }
        let trailer = Trailer {
            log_id: 7,
            segment: 3,
            page: 9,
            pages: 2,
            crc: 5,
            seq: 11,
        };
        trailer.encode(&mut page);
        assert_eq!(Trailer::decode(&page), Some(trailer));
    }

    proptest! {
        #[test]
        fn any_bytes_are_walked_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut bytes = bytes;
            if bytes.len() >= 12 {
                bytes[..4].copy_from_slice(b"PBK1");
                bytes[8..12].copy_from_slice(&[1, 0, VERSION as u8, 0]);
            }
            if let Some(header) = BlockHeader::peek(&bytes) {
                let _ = header.is_intact(&bytes);
                prop_assert!(header.sections(&bytes).count() <= header.sections as usize + 1);
            }
            let sections = Sections { at: 0, rest: &bytes, left: u32::MAX };
            prop_assert!(sections.count() <= bytes.len() / SECTION_HEADER_BYTES + 1);
        }
    }
}
