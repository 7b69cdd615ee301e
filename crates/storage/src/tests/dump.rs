//! Reading a log without changing it: what `pelton log verify` and `pelton log dump` show.
use crate::entry::{EntryMeta, TopicKey, decode_entry};
use crate::files::Files;
use crate::format::{BlockHeader, BlockKind, Reader, SegmentHeader, section};
use crate::op::SegmentId;
use crate::page::PAGE_BYTES;
use crate::position::Position;
use crate::recover::{RecoverError, SegmentInfo};
use crate::scan::{ReadAt, SegmentScan, Window, scan_blocks};

/// What a look at all segments found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Segments in the order of their blocks, spares last.
    pub segments: Vec<SegmentReport>,
    /// Ledgers with stored entries, in the order of their ids.
    pub ledgers: Vec<LedgerReport>,
    /// Why the log could not be opened, if so.
    pub refusal: Option<RecoverError>,
}

/// One segment file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its number.
    pub segment: SegmentId,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// What it is.
    pub kind: SegmentKind,
    /// Good blocks in the chain.
    pub blocks: u32,
    /// Sequences of the first and last of them.
    pub sequences: Option<(u64, u64)>,
    /// Entries in them.
    pub entries: u64,
    /// Byte offset of the first bad block, if blocks of this life stand behind the chain's end or
    /// the end itself is a bad one.
    pub bad_block: Option<u64>,
    /// Intact blocks behind it.
    pub stray_blocks: u32,
}

/// What a segment file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Has a good footer at its end.
    Sealed,
    /// Has blocks and no footer.
    Open,
    /// Has a good header and no blocks.
    Spare,
    /// Has no good header.
    Empty,
}

/// One ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedgerReport {
    /// Its id.
    pub ledger: u64,
    /// Topic it belongs to.
    pub topic: TopicKey,
    /// Epoch of its writer.
    pub epoch: u32,
    /// First and last stored entry.
    pub entries: (u64, u64),
    /// Stored entries.
    pub count: u64,
    /// Messages in them.
    pub messages: u64,
    /// Bytes of their properties and bodies.
    pub bytes: u64,
    /// Entries with a deliver-at time or a deadline.
    pub timed: u64,
    /// Publish times of the earliest and the latest, milliseconds of wall clock.
    pub published_ms: (u64, u64),
    /// Missing stretches between the first and the last: first missing entry and how many.
    pub gaps: Vec<(u64, u64)>,
}

/// Something a dump shows, in the order it is stored.
#[derive(Clone, Copy, Debug)]
pub enum DumpItem<'a> {
    /// A block of the chain.
    Block {
        /// Segment it is in.
        segment: SegmentId,
        /// Byte offset of the block.
        offset: u64,
        /// Its sequence number.
        sequence: u64,
        /// Count of opens when it was written.
        epoch: u32,
        /// How far the log was known to be synced then.
        synced_through: u64,
        /// Bytes used.
        bytes: u32,
        /// True for the footer of a sealed segment.
        is_footer: bool,
    },
    /// An entry in the block before.
    Entry {
        /// Topic it belongs to.
        topic: TopicKey,
        /// What is known of it.
        meta: &'a EntryMeta,
        /// Its properties, as they were handed in.
        properties: &'a [u8],
        /// Its payload.
        body: &'a [u8],
    },
    /// A section with cursor or segment records in the block before.
    Records {
        /// What they are.
        name: &'static str,
        /// Bytes of the section.
        bytes: usize,
    },
    /// The chain of a segment ends at a block that is not good.
    Bad {
        /// Segment it is in.
        segment: SegmentId,
        /// Byte offset of the block.
        offset: u64,
        /// Intact blocks behind it.
        stray_blocks: u32,
    },
}

/// Walks every block of every segment. Changes nothing and goes on behind damage.
///
/// # Errors
/// A file that cannot be read. That the log is damaged is in the report, not an error.
pub fn verify(
    segments: &[SegmentInfo],
    read: &mut ReadAt<'_>,
) -> Result<VerifyReport, RecoverError> {
    let mut report = VerifyReport::default();
    let mut scans = scan_all(segments, read)?;
    scans.sort_by_key(|(info, _, scan)| (scan.order(), info.id));
    for (info, header, scan) in &scans {
        report
            .segments
            .push(segment_report(*info, header.is_some(), scan));
        for group in &scan.groups {
            let head = &group.head;
            let ledger = report.ledger(head.ledger, TopicKey(head.topic), head.epoch);
            ledger.add(head.first_entry, u64::from(head.count));
            for (entry, hints) in scan.entries_of(group) {
                ledger.messages += u64::from(entry.messages);
                ledger.bytes += u64::from(entry.bytes);
                ledger.timed += u64::from(hints.is_timed());
                let (earliest, latest) = ledger.published_ms;
                ledger.published_ms =
                    (earliest.min(hints.publish_ms), latest.max(hints.publish_ms));
            }
        }
    }
    report.ledgers.sort_by_key(|ledger| ledger.ledger);
    report.refusal = Files::open(segments, read, false).err();
    Ok(report)
}

/// Shows every good block of every segment, with its entries, in the order they are stored.
///
/// # Errors
/// A file that cannot be read.
pub fn dump(
    segments: &[SegmentInfo],
    read: &mut ReadAt<'_>,
    show: &mut dyn FnMut(DumpItem<'_>),
) -> Result<(), RecoverError> {
    let mut scans = scan_all(segments, read)?;
    scans.sort_by_key(|(info, _, scan)| (scan.order(), info.id));
    for (info, _, scan) in &scans {
        let mut window = Window::new(read, *info);
        let mut page = 1;
        while page < scan.end_page && scan.first.is_some() {
            let offset = u64::from(page) * PAGE_BYTES as u64;
            let Some(block) = BlockHeader::peek(window.get(offset, PAGE_BYTES)?) else {
                break;
            };
            let bytes = window.get(offset, block.pages as usize * PAGE_BYTES)?;
            show_block(info.id, offset, &block, bytes, show);
            page += block.pages;
        }
        if let Some(offset) = bad_block(scan) {
            let stray_blocks = scan.strays.len() as u32;
            show(DumpItem::Bad {
                segment: info.id,
                offset,
                stray_blocks,
            });
        }
    }
    Ok(())
}

type Scanned = (SegmentInfo, Option<SegmentHeader>, SegmentScan);

fn scan_all(segments: &[SegmentInfo], read: &mut ReadAt<'_>) -> Result<Vec<Scanned>, RecoverError> {
    let mut scans = Vec::new();
    for &info in segments {
        let mut window = Window::new(read, info);
        let header = SegmentHeader::decode(window.get(0, PAGE_BYTES)?)
            .filter(|header| header.segment == info.id.0);
        let scan = match &header {
            Some(header) => scan_blocks(&mut window, header)?,
            None => SegmentScan::default(),
        };
        scans.push((info, header, scan));
    }
    Ok(scans)
}

fn bad_block(scan: &SegmentScan) -> Option<u64> {
    let is_bad = scan.torn_pages.is_some() || !scan.strays.is_empty();
    is_bad.then_some(u64::from(scan.end_page) * PAGE_BYTES as u64)
}

fn segment_report(info: SegmentInfo, has_header: bool, scan: &SegmentScan) -> SegmentReport {
    let kind = match (has_header, scan.sealed.is_some(), scan.has_blocks()) {
        (false, _, _) => SegmentKind::Empty,
        (true, true, _) => SegmentKind::Sealed,
        (true, false, true) => SegmentKind::Open,
        (true, false, false) => SegmentKind::Spare,
    };
    SegmentReport {
        segment: info.id,
        bytes: info.bytes,
        kind,
        blocks: scan.blocks,
        sequences: scan
            .first
            .zip(scan.last)
            .map(|(first, last)| (first.seq, last.seq)),
        entries: scan.entries.len() as u64,
        bad_block: bad_block(scan),
        stray_blocks: scan.strays.len() as u32,
    }
}

fn show_block(
    segment: SegmentId,
    offset: u64,
    block: &BlockHeader,
    bytes: &[u8],
    show: &mut dyn FnMut(DumpItem<'_>),
) {
    show(DumpItem::Block {
        segment,
        offset,
        sequence: block.seq,
        epoch: block.epoch,
        synced_through: block.synced_through,
        bytes: block.used,
        is_footer: block.kind == BlockKind::Footer,
    });
    for section in block.sections(bytes).flatten() {
        if section.kind == section::ENTRIES {
            show_entries(section.payload, show);
        } else {
            let name = section_name(section.kind);
            show(DumpItem::Records {
                name,
                bytes: section.payload.len(),
            });
        }
    }
}

fn show_entries(payload: &[u8], show: &mut dyn FnMut(DumpItem<'_>)) {
    let mut r = Reader::new(payload);
    let Some(topic) = r.u64() else { return };
    let _ = r.bytes(24);
    while let Some(stored) = decode_entry(r.rest) {
        let meta = stored.meta;
        let start = meta.offset as usize;
        show(DumpItem::Entry {
            topic: TopicKey(topic),
            meta: &meta,
            properties: &r.rest[start - meta.properties_bytes as usize..start],
            body: &r.rest[start..start + meta.bytes as usize],
        });
        let _ = r.bytes(meta.stored_bytes());
    }
}

fn section_name(kind: u32) -> &'static str {
    match kind {
        section::MARKS => "mark-delete positions",
        section::ACKED => "acked entries",
        section::RESET => "cursor reset",
        section::FREED => "freed segments",
        section::CHECKPOINT_START => "checkpoint starts",
        section::LIVE_SEGMENTS => "live segments",
        section::CURSOR => "cursor",
        section::CHECKPOINT_END => "checkpoint ends",
        section::SUMMARY => "summary",
        section::GROUP => "index of entries",
        section::PARTIAL => "partly acked entry",
        _ => "unknown",
    }
}

impl VerifyReport {
    /// True if the log could be opened as it is.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.refusal.is_none()
    }

    fn ledger(&mut self, ledger: u64, topic: TopicKey, epoch: u32) -> &mut LedgerReport {
        // Groups of a ledger come in order, so the one looked for is mostly among the last.
        if let Some(index) = self
            .ledgers
            .iter()
            .rposition(|report| report.ledger == ledger)
        {
            return &mut self.ledgers[index];
        }
        self.ledgers.push(LedgerReport {
            ledger,
            topic,
            epoch,
            entries: (u64::MAX, 0),
            count: 0,
            messages: 0,
            bytes: 0,
            timed: 0,
            published_ms: (u64::MAX, 0),
            gaps: Vec::new(),
        });
        let last = self.ledgers.len() - 1;
        &mut self.ledgers[last]
    }
}

impl LedgerReport {
    fn add(&mut self, first: u64, count: u64) {
        if self.count > 0 && first > self.entries.1 + 1 {
            self.gaps
                .push((self.entries.1 + 1, first - self.entries.1 - 1));
        }
        self.entries.0 = self.entries.0.min(first);
        self.entries.1 = self.entries.1.max(first + count - 1);
        self.count += count;
    }

    /// Position of the last stored entry.
    #[must_use]
    pub fn last(&self) -> Position {
        Position {
            ledger: self.ledger,
            entry: self.entries.1,
        }
    }
}
