//! Reads one segment: by its footer, or block by block. Trusts nothing before it is checked.
use std::collections::BTreeMap;

use crate::entry::{ENTRY_HEADER_BYTES, Hints, decode_entry, times_bytes};
use crate::footer::{GroupEntry, GroupHead, Summary, decode_group, decode_summary};
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, Reader, SegmentHeader, Trailer, section,
};
use crate::op::{DiskError, SegmentId};
use crate::page::{PAGE_BYTES, PageBuf};
use crate::partial::decode_piece;
use crate::recover::{RecoverError, SegmentInfo};

/// How the shell lets segments be read: fills the slice from the byte offset, gives the bytes read,
/// 0 at the end of the file. Slices and offsets are whole pages.
pub type ReadAt<'a> = dyn FnMut(SegmentId, u64, &mut [u8]) -> Result<usize, DiskError> + 'a;

/// Bytes read at once while scanning.
const WINDOW_BYTES: usize = 512 << 10;

/// A piece of a segment in memory, read ahead. Past the end of the file there are zeros.
pub(crate) struct Window<'a, 'b> {
    read: &'a mut ReadAt<'b>,
    segment: SegmentId,
    /// Bytes of the file, rounded up to a page.
    end: u64,
    at: u64,
    buffer: PageBuf,
}

impl<'a, 'b> Window<'a, 'b> {
    pub(crate) fn new(read: &'a mut ReadAt<'b>, info: SegmentInfo) -> Window<'a, 'b> {
        let end = info.bytes.next_multiple_of(PAGE_BYTES as u64);
        Window {
            read,
            segment: info.id,
            end,
            at: 0,
            buffer: PageBuf::new(0),
        }
    }

    /// `len` bytes at `offset`, both whole pages; cut at the end of the file.
    pub(crate) fn get(&mut self, offset: u64, len: usize) -> Result<&[u8], RecoverError> {
        let len = len.min(usize::try_from(self.end.saturating_sub(offset)).unwrap_or(usize::MAX));
        let have = self.at..self.at + self.buffer.len() as u64;
        if !(have.start <= offset && offset + len as u64 <= have.end) {
            let ahead = usize::try_from(self.end - offset.min(self.end)).unwrap_or(usize::MAX);
            self.fill(offset, len.max(WINDOW_BYTES.min(ahead)))?;
        }
        let from = (offset - self.at) as usize;
        Ok(&self.buffer.as_slice()[from..from + len])
    }

    fn fill(&mut self, offset: u64, len: usize) -> Result<(), RecoverError> {
        // Empty first: growing must not copy what is not wanted any more.
        self.buffer.set_len(0);
        self.buffer.set_len(len);
        self.at = offset;
        let mut done = 0;
        while done < len {
            let into = &mut self.buffer.as_mut_slice()[done..];
            let at = offset + done as u64;
            let read = (self.read)(self.segment, at, into).map_err(|error| RecoverError::Read {
                segment: self.segment,
                offset: at,
                error,
            })?;
            if read == 0 {
                break;
            }
            done += read.min(len - done);
        }
        self.buffer.as_mut_slice()[done..].fill(0);
        Ok(())
    }
}

/// Entries of one ledger that are adjacent in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundGroup {
    pub(crate) head: GroupHead,
    /// Its entries are `SegmentScan::entries[first..first + head.count]`.
    pub(crate) first: usize,
}

/// A stored entry's place, size and hints, without the times that few have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundEntry {
    pub(crate) offset: u32,
    /// Of properties and body.
    pub(crate) bytes: u32,
    pub(crate) messages: u32,
    key_hash: u32,
    publish_ms: u64,
}

/// A section with cursor or segment records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) seq: u64,
    pub(crate) kind: u32,
    pub(crate) payload: Vec<u8>,
}

/// An intact block behind the end of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stray {
    pub(crate) page: u32,
    pub(crate) header: BlockHeader,
    pub(crate) ledgers: Vec<u64>,
}

/// What a segment holds.
#[derive(Debug, Default)]
pub(crate) struct SegmentScan {
    pub(crate) groups: Vec<FoundGroup>,
    pub(crate) entries: Vec<FoundEntry>,
    /// Entries that have times, by their index: deliver-at and deadline.
    timed: Vec<(usize, u64, u64)>,
    pub(crate) records: Vec<Record>,
    /// Topic, producer, and the highest sequence of its numbered entries in a group. Not in the footer.
    pub(crate) numbered: Vec<(u64, u64, u64)>,
    /// Header of the first and last block of the chain.
    pub(crate) first: Option<BlockHeader>,
    pub(crate) last: Option<BlockHeader>,
    pub(crate) blocks: u32,
    pub(crate) starts: Vec<u64>,
    pub(crate) ends: Vec<u64>,
    /// The chain ends with a footer: its summary.
    pub(crate) sealed: Option<Summary>,
    /// Taken from the footer alone.
    pub(crate) by_footer: bool,
    /// There is a trailer of this life.
    pub(crate) has_trailer: bool,
    /// Page the chain ends at.
    pub(crate) end_page: u32,
    /// The block at the end has this segment's identity but is not good.
    pub(crate) torn_pages: Option<u32>,
    pub(crate) strays: Vec<Stray>,
}

impl SegmentScan {
    /// Highest mark of what is synced that any intact block carries.
    pub(crate) fn synced_through(&self) -> u64 {
        let strays = self.strays.iter().map(|stray| stray.header.synced_through);
        strays
            .chain(self.last.map(|last| last.synced_through))
            .max()
            .unwrap_or(0)
    }

    fn push_entry(&mut self, entry: &GroupEntry) {
        let GroupEntry { hints, .. } = entry;
        if hints.is_timed() {
            let times = (self.entries.len(), hints.deliver_at_ms, hints.deadline_ms);
            self.timed.push(times);
        }
        self.entries.push(FoundEntry {
            offset: entry.offset,
            bytes: entry.bytes,
            messages: entry.messages,
            key_hash: hints.key_hash,
            publish_ms: hints.publish_ms,
        });
    }

    /// Entries of a group, with their hints.
    pub(crate) fn entries_of(
        &self,
        group: &FoundGroup,
    ) -> impl Iterator<Item = (&FoundEntry, Hints)> {
        let range = group.first..group.first + group.head.count as usize;
        (group.first..)
            .zip(&self.entries[range])
            .map(|(at, entry)| {
                let timed = self.timed.binary_search_by_key(&at, |timed| timed.0);
                let (_, deliver_at_ms, deadline_ms) =
                    timed.map_or((at, 0, 0), |index| self.timed[index]);
                let hints = Hints {
                    key_hash: entry.key_hash,
                    publish_ms: entry.publish_ms,
                    deliver_at_ms,
                    deadline_ms,
                };
                (entry, hints)
            })
    }

    /// Whether anything of this life is in it.
    pub(crate) fn has_blocks(&self) -> bool {
        self.first.is_some() || !self.strays.is_empty()
    }

    /// First sequence seen in it.
    pub(crate) fn order(&self) -> u64 {
        let stray = self.strays.iter().map(|stray| stray.header.seq).min();
        self.first
            .map(|first| first.seq)
            .or(stray)
            .unwrap_or(u64::MAX)
    }

    /// Ledgers in it, those behind the end of the chain first.
    pub(crate) fn ledgers(&self) -> Vec<u64> {
        let strays = self
            .strays
            .iter()
            .flat_map(|stray| stray.ledgers.iter().copied());
        let mut ledgers = Vec::new();
        for ledger in strays.chain(self.groups.iter().map(|group| group.head.ledger)) {
            if !ledgers.contains(&ledger) && ledgers.len() < 64 {
                ledgers.push(ledger);
            }
        }
        ledgers
    }
}

/// Takes a sealed segment from its footer; `None` if there is no good one.
pub(crate) fn read_footer(
    window: &mut Window<'_, '_>,
    header: &SegmentHeader,
) -> Result<Option<SegmentScan>, RecoverError> {
    let page_bytes = PAGE_BYTES as u64;
    let last_page = header.bytes / page_bytes - 1;
    let Some(trailer) = Trailer::decode(window.get(last_page * page_bytes, PAGE_BYTES)?) else {
        return Ok(None);
    };
    let mine = trailer.log_id == header.log_id && trailer.segment == header.segment;
    let (page, pages) = (u64::from(trailer.page), u64::from(trailer.pages));
    if !mine || page == 0 || pages == 0 || page + pages > last_page {
        return Ok(None);
    }
    let offset = page * page_bytes;
    let Some(block) = BlockHeader::peek(window.get(offset, PAGE_BYTES)?) else {
        return Ok(None);
    };
    let same = (block.kind, block.crc, block.seq, block.pages, block.page)
        == (
            BlockKind::Footer,
            trailer.crc,
            trailer.seq,
            trailer.pages,
            trailer.page,
        );
    if !same || block.log_id != header.log_id || block.segment != header.segment {
        return Ok(None);
    }
    let bytes = window.get(offset, pages as usize * PAGE_BYTES)?;
    let mut scan = SegmentScan {
        by_footer: true,
        has_trailer: true,
        ..SegmentScan::default()
    };
    if !block.is_intact(bytes) || scan.take_footer(&block, bytes, header.bytes).is_none() {
        return Ok(None);
    }
    let Some(summary) = &scan.sealed else {
        return Ok(None);
    };
    scan.first = Some(BlockHeader {
        seq: summary.first_seq,
        prev_crc: summary.first_prev_crc,
        ..block
    });
    scan.last = Some(block);
    scan.blocks = summary.blocks;
    scan.starts.clone_from(&summary.starts);
    scan.ends.clone_from(&summary.ends);
    scan.end_page = trailer.page + trailer.pages;
    Ok(Some(scan))
}

/// Walks the chain of a segment from its first block, then looks for intact blocks behind its end.
pub(crate) fn scan_blocks(
    window: &mut Window<'_, '_>,
    header: &SegmentHeader,
) -> Result<SegmentScan, RecoverError> {
    let page_bytes = PAGE_BYTES as u64;
    let pages = (window.end.min(header.bytes) / page_bytes) as u32;
    let mut scan = SegmentScan::default();
    let mut page = 1;
    while page < pages && scan.sealed.is_none() {
        let Some(block) = peek_mine(window, header, page, pages)? else {
            break;
        };
        let bytes = window.get(
            u64::from(page) * page_bytes,
            block.pages as usize * PAGE_BYTES,
        )?;
        let follows = scan.last.is_none_or(|last| {
            block.seq == last.seq.wrapping_add(1)
                && block.prev_crc == last.crc
                && block.epoch >= last.epoch
        });
        if !follows || !block.is_intact(bytes) || scan.take(&block, bytes, header.bytes).is_none() {
            scan.torn_pages = Some(block.pages);
            break;
        }
        page += block.pages;
    }
    scan.end_page = page;
    let last_page = header.bytes / page_bytes - 1;
    let trailer = window.get(last_page * page_bytes, PAGE_BYTES)?;
    scan.has_trailer = Trailer::decode(trailer).is_some_and(|trailer| {
        trailer.log_id == header.log_id && trailer.segment == header.segment
    });
    if scan.sealed.is_none() {
        find_strays(window, header, pages, &mut scan)?;
    }
    Ok(scan)
}

fn find_strays(
    window: &mut Window<'_, '_>,
    header: &SegmentHeader,
    pages: u32,
    scan: &mut SegmentScan,
) -> Result<(), RecoverError> {
    let mut page = scan.end_page;
    while page < pages {
        let mut step = 1;
        if let Some(block) = peek_mine(window, header, page, pages)? {
            let offset = u64::from(page) * PAGE_BYTES as u64;
            let bytes = window.get(offset, block.pages as usize * PAGE_BYTES)?;
            if block.is_intact(bytes) {
                step = block.pages;
                let ledgers = ledgers_of(&block, bytes);
                scan.strays.push(Stray {
                    page,
                    header: block,
                    ledgers,
                });
            }
        }
        page += step;
    }
    Ok(())
}

/// The header of a block of this life at this page, with lengths that fit.
fn peek_mine(
    window: &mut Window<'_, '_>,
    header: &SegmentHeader,
    page: u32,
    pages: u32,
) -> Result<Option<BlockHeader>, RecoverError> {
    let bytes = window.get(u64::from(page) * PAGE_BYTES as u64, PAGE_BYTES)?;
    let Some(block) = BlockHeader::peek(bytes) else {
        return Ok(None);
    };
    let mine = block.log_id == header.log_id
        && block.segment == header.segment
        && block.page == page
        && block.pages <= pages - page
        && (block.kind == BlockKind::Footer || u64::from(block.used) <= header.block_bytes_max);
    Ok(mine.then_some(block))
}

fn ledgers_of(block: &BlockHeader, bytes: &[u8]) -> Vec<u64> {
    let mut ledgers = Vec::new();
    for section in block.sections(bytes).flatten() {
        let mut r = Reader::new(section.payload);
        if section.kind == section::ENTRIES
            && let (Some(_), Some(ledger)) = (r.u64(), r.u64())
            && !ledgers.contains(&ledger)
        {
            ledgers.push(ledger);
        }
    }
    ledgers
}

impl SegmentScan {
    /// Takes an intact block into the chain. `None` if its content contradicts itself: then nothing
    /// of it was taken.
    fn take(&mut self, block: &BlockHeader, bytes: &[u8], segment_bytes: u64) -> Option<()> {
        let before = (self.groups.len(), self.entries.len(), self.records.len());
        let marks = (self.starts.len(), self.ends.len(), self.timed.len());
        let numbered = self.numbered.len();
        let taken = match block.kind {
            BlockKind::Commit => self.take_sections(block, bytes),
            BlockKind::Footer => self.check_footer(block, bytes, segment_bytes),
        };
        if taken.is_none() {
            self.groups.truncate(before.0);
            self.entries.truncate(before.1);
            self.records.truncate(before.2);
            self.starts.truncate(marks.0);
            self.ends.truncate(marks.1);
            self.timed.truncate(marks.2);
            self.numbered.truncate(numbered);
            self.sealed = None;
            return None;
        }
        self.first.get_or_insert(*block);
        self.last = Some(*block);
        self.blocks += 1;
        Some(())
    }

    fn take_sections(&mut self, block: &BlockHeader, bytes: &[u8]) -> Option<()> {
        let base = block.page.checked_mul(PAGE_BYTES as u32)?;
        for section in block.sections(bytes) {
            let section = section?;
            match section.kind {
                section::ENTRIES => {
                    let at = base.checked_add(u32::try_from(section.at).ok()?)?;
                    self.take_entries(section.payload, at)?;
                }
                section::CHECKPOINT_START | section::CHECKPOINT_END => {
                    let number = Reader::new(section.payload).u64()?;
                    if section.kind == section::CHECKPOINT_START {
                        self.starts.push(number);
                    } else {
                        self.ends.push(number);
                    }
                    self.take_record(block.seq, section.kind, section.payload);
                }
                section::SUMMARY | section::GROUP => return None,
                kind => {
                    check_record(kind, section.payload)?;
                    self.take_record(block.seq, kind, section.payload);
                }
            }
        }
        Some(())
    }

    fn take_record(&mut self, seq: u64, kind: u32, payload: &[u8]) {
        self.records.push(Record {
            seq,
            kind,
            payload: payload.to_vec(),
        });
    }

    /// `at` is the payload's offset in the segment.
    fn take_entries(&mut self, payload: &[u8], at: u32) -> Option<()> {
        let mut r = Reader::new(payload);
        let (topic, ledger, first_entry) = (r.u64()?, r.u64()?, r.u64()?);
        let (epoch, count) = (r.u32()?, r.u32()?);
        if u64::from(count) * ENTRY_HEADER_BYTES as u64 > r.rest.len() as u64 || count == 0 {
            return None;
        }
        first_entry.checked_add(u64::from(count))?;
        let mut offset = at + (payload.len() - r.rest.len()) as u32;
        let head = GroupHead {
            topic,
            ledger,
            first_entry,
            offset,
            count,
            epoch,
        };
        let first = self.entries.len();
        let mut highest = BTreeMap::new();
        for index in 0..u64::from(count) {
            let stored = decode_entry(r.rest)?;
            let position = stored.meta.position;
            if (position.ledger, position.entry, stored.epoch)
                != (ledger, first_entry + index, epoch)
            {
                return None;
            }
            let bytes = stored.meta.stored_bytes();
            r.bytes(bytes)?;
            if stored.meta.is_numbered {
                let sequence = highest.entry(stored.meta.producer).or_default();
                *sequence = stored.meta.sequence.max(*sequence);
            }
            self.push_entry(&GroupEntry {
                offset,
                bytes: stored.meta.payload_bytes(),
                messages: stored.meta.messages,
                hints: stored.meta.hints(),
            });
            offset += bytes as u32;
        }
        if !r.rest.is_empty() || ledger == 0 {
            return None;
        }
        self.groups.push(FoundGroup { head, first });
        let numbered = highest.into_iter();
        self.numbered
            .extend(numbered.map(|(producer, sequence)| (topic, producer, sequence)));
        Some(())
    }

    /// A footer met while scanning: it is read, and must say what the scan found.
    fn check_footer(&mut self, block: &BlockHeader, bytes: &[u8], segment: u64) -> Option<()> {
        let mut says = SegmentScan::default();
        says.take_footer(block, bytes, segment)?;
        let same =
            says.groups == self.groups && says.entries == self.entries && says.timed == self.timed;
        if !same {
            return None;
        }
        self.sealed = says.sealed;
        Some(())
    }

    fn take_footer(&mut self, block: &BlockHeader, bytes: &[u8], segment: u64) -> Option<()> {
        let mut last_ms = 0;
        for section in block.sections(bytes) {
            let section = section?;
            match section.kind {
                section::SUMMARY => self.sealed = Some(decode_summary(section.payload)?),
                section::GROUP => {
                    let (first, mut group, mut inside) = (self.entries.len(), None, true);
                    decode_group(
                        section.payload,
                        &mut last_ms,
                        |&head| group = Some(FoundGroup { head, first }),
                        |entry| {
                            inside &= is_inside(&entry, segment);
                            self.push_entry(&entry);
                        },
                    )?;
                    let group = group.filter(|group| inside && group.head.ledger != 0)?;
                    self.groups.push(group);
                }
                _ => return None,
            }
        }
        self.sealed.is_some().then_some(())
    }
}

/// Whether an entry lies where entries may lie.
fn is_inside(entry: &GroupEntry, segment_bytes: u64) -> bool {
    let header = ENTRY_HEADER_BYTES + times_bytes(entry.hints.is_timed());
    let end = u64::from(entry.offset) + header as u64 + u64::from(entry.bytes);
    u64::from(entry.offset) >= (PAGE_BYTES + BLOCK_HEADER_BYTES) as u64 && end <= segment_bytes
}

/// Whether a record section is as long as its counts say.
fn check_record(kind: u32, payload: &[u8]) -> Option<()> {
    let words = |each: usize| (payload.len().is_multiple_of(each * 8)).then_some(());
    match kind {
        section::MARKS => words(4),
        section::FREED | section::LIVE_SEGMENTS => words(1),
        section::RESET => (payload.len() == 40).then_some(()),
        section::PARTIAL => decode_piece(payload).map(|_| ()),
        section::SEQUENCES => (payload.len() % 16 == 8).then_some(()),
        section::ACKED => {
            let mut r = Reader::new(payload);
            r.bytes(32)?;
            let count = r.u32()?;
            r.u32()?;
            (u64::from(count) * 8 == r.rest.len() as u64).then_some(())
        }
        section::CURSOR => {
            let mut r = Reader::new(payload);
            r.bytes(20)?;
            let runs = r.u32()?;
            r.bytes(16)?;
            for _ in 0..runs {
                r.bytes(16)?;
                let words = u64::from(r.u32()?);
                r.u32()?;
                if words * 8 > r.rest.len() as u64 {
                    return None;
                }
                r.bytes(words as usize * 8)?;
            }
            r.rest.is_empty().then_some(())
        }
        // A later version's record: not ours to judge, so not ours to drop either.
        _ => None,
    }
}
