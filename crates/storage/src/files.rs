//! All segment files of a log together: their order, where the chain ends, what is missing.
//!
//! The rule (DESIGN 6): let S be the highest "synced through" mark of any intact block. A bad or
//! missing block with a sequence of at most S was promised: damage. Above S it is the torn end of
//! an unsynced commit, and is cut with all that follows.
use std::collections::BTreeSet;

use crate::format::{Reader, SegmentHeader, VERSION, section};
use crate::op::SegmentId;
use crate::page::PAGE_BYTES;
use crate::recover::{RecoverError, SegmentInfo};
use crate::scan::{ReadAt, SegmentScan, Window, read_footer, scan_blocks};

/// A segment file and what is in it.
#[derive(Debug)]
pub(crate) struct File {
    pub(crate) info: SegmentInfo,
    /// `None` if the file has no good header and nothing of this life in it.
    pub(crate) header: Option<SegmentHeader>,
    pub(crate) scan: SegmentScan,
}

/// The files in the order of their blocks; those without blocks last.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) list: Vec<File>,
    /// Identity of the log, if a file has one.
    pub(crate) log_id: Option<u128>,
}

/// Where the chain ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// Files of the list that belong to the chain; others have no blocks, or lose them.
    pub(crate) files: usize,
    /// Highest mark of what was synced.
    pub(crate) synced: u64,
}

/// Which files' content counts.
#[derive(Debug, Default)]
pub(crate) struct Needed {
    /// First file (of the list) whose records count: where the last complete checkpoint starts.
    pub(crate) records_from: usize,
    /// Sequence of the block that checkpoint starts in; 0 if there is none.
    pub(crate) floor_seq: u64,
    /// Number of that checkpoint.
    pub(crate) checkpoint: u64,
    /// Highest number of a checkpoint that was started, complete or not: never used again, or the
    /// end of a later one would be taken for the end of this.
    pub(crate) last_started: u64,
    /// Segments whose blocks are all consumed; their files wait to be used again.
    pub(crate) freed: BTreeSet<u64>,
    /// Missing ones that were accepted as lost.
    pub(crate) lost: Vec<SegmentId>,
}

impl Files {
    fn scan(infos: &[SegmentInfo], read: &mut ReadAt<'_>) -> Result<Files, RecoverError> {
        let mut infos = infos.to_vec();
        infos.sort_by_key(|info| info.id);
        let mut files = Files {
            list: Vec::new(),
            log_id: None,
        };
        for &info in &infos {
            let mut window = Window::new(read, info);
            let page = window.get(0, PAGE_BYTES)?;
            let header = SegmentHeader::decode(page);
            // A header is one sector: there, or not; a file shorter than a page was never ready.
            let empty = info.bytes < PAGE_BYTES as u64 || page.iter().all(|&byte| byte == 0);
            if header.is_none()
                && let Some(found) = SegmentHeader::version(page)
                && found != u32::from(VERSION)
            {
                return Err(RecoverError::Version {
                    segment: info.id,
                    found,
                    expected: u32::from(VERSION),
                });
            }
            if header.is_none() && !empty {
                return Err(RecoverError::NotASegment { segment: info.id });
            }
            if let Some(header) = header.filter(|header| header.segment == info.id.0) {
                let expected = *files.log_id.get_or_insert(header.log_id);
                if header.log_id != expected {
                    let found = header.log_id;
                    return Err(RecoverError::Foreign {
                        segment: info.id,
                        found,
                        expected,
                    });
                }
            }
            // A file renamed but not yet given its new header holds nothing of its new life.
            let header = header.filter(|header| header.segment == info.id.0);
            files.list.push(File {
                info,
                header,
                scan: SegmentScan::default(),
            });
        }
        for file in &mut files.list {
            file.read_blocks(files.log_id, read)?;
        }
        Ok(files)
    }

    /// All that is read before a log can be built.
    pub(crate) fn open(
        infos: &[SegmentInfo],
        read: &mut ReadAt<'_>,
        accept_loss: bool,
    ) -> Result<(Files, End, Needed), RecoverError> {
        let mut files = Files::scan(infos, read)?;
        files.order();
        let synced = files.synced_through();
        files.distrust_footers(read, synced)?;
        files.order();
        let end = files.find_end(synced)?;
        let needed = files.find_records(read, end, accept_loss)?;
        Ok((files, end, needed))
    }

    fn order(&mut self) {
        self.list
            .sort_by_key(|file| (file.scan.order(), file.info.id));
    }

    /// Highest mark; footers that it does not cover must not be trusted.
    fn synced_through(&self) -> u64 {
        self.list
            .iter()
            .map(|file| file.scan.synced_through())
            .max()
            .unwrap_or(0)
    }

    /// A footer that is not known to be synced may stand before a block that is torn: its segment is
    /// read block by block.
    fn distrust_footers(&mut self, read: &mut ReadAt<'_>, synced: u64) -> Result<(), RecoverError> {
        for file in &mut self.list {
            if let Some(header) = file.header
                && file.scan.by_footer
                && file.scan.last.is_some_and(|last| last.seq > synced)
            {
                file.scan = scan_blocks(&mut Window::new(read, file.info), &header)?;
            }
        }
        Ok(())
    }

    /// Follows the chain over the files. `Err` if something promised is not there.
    fn find_end(&self, synced: u64) -> Result<End, RecoverError> {
        let with_blocks = self
            .list
            .iter()
            .take_while(|file| file.scan.has_blocks())
            .count();
        let mut last: Option<&File> = None;
        for (index, file) in self.list[..with_blocks].iter().enumerate() {
            let next = last.and_then(|last| Some((last.scan.sealed.as_ref()?, last.scan.last?)));
            let Some(first) = file.scan.first else {
                // Its first block is bad; behind a known predecessor its number is known too.
                let seq = match (last, next) {
                    (None, _) => 1,
                    (Some(_), Some((sealed, end))) if sealed.next_segment == file.info.id.0 => {
                        end.seq + 1
                    }
                    _ => file.scan.order(),
                };
                if synced >= seq {
                    return Err(file.damaged("its first block is bad and was known to be synced"));
                }
                return Ok(End {
                    files: index,
                    synced,
                });
            };
            if let Some((sealed, end)) = next
                && sealed.next_segment != file.info.id.0
                && let Some(empty) = self.without_blocks(sealed.next_segment)
            {
                // The successor lost all its blocks, so this file's are behind a tear as well.
                if synced > end.seq {
                    return Err(empty.damaged("its blocks are gone and were known to be synced"));
                }
                return Ok(End {
                    files: index,
                    synced,
                });
            }
            if let Some((sealed, end)) = next {
                let follows = first.seq == end.seq + 1 && first.prev_crc == end.crc;
                if sealed.next_segment == file.info.id.0 && !follows {
                    return Err(file.damaged("its first block does not follow the one before"));
                }
                if first.seq <= end.seq {
                    return Err(file.damaged("its blocks overlap those of another segment"));
                }
            }
            last = Some(file);
            if file.scan.sealed.is_none() {
                let end = file.scan.last.map_or(0, |last| last.seq);
                if synced > end {
                    return Err(file.damaged(
                        "a block is bad or missing that was known to be synced; later blocks are \
                         intact",
                    ));
                }
                return Ok(End {
                    files: index + 1,
                    synced,
                });
            }
        }
        Ok(End {
            files: with_blocks,
            synced,
        })
    }

    /// The file of this number, if it has a good header and no block.
    fn without_blocks(&self, id: u64) -> Option<&File> {
        self.list
            .iter()
            .find(|file| file.info.id.0 == id && file.header.is_some() && !file.scan.has_blocks())
    }

    /// Finds the last complete checkpoint, reads the records since, and compares the files with
    /// the segments that must be there.
    fn find_records(
        &mut self,
        read: &mut ReadAt<'_>,
        end: End,
        accept_loss: bool,
    ) -> Result<Needed, RecoverError> {
        let mut needed = Needed::default();
        let chain = &self.list[..end.files];
        let starts = chain
            .iter()
            .flat_map(|file| file.scan.starts.iter().copied());
        needed.last_started = starts.max().unwrap_or(0);
        let last = chain
            .iter()
            .flat_map(|file| file.scan.ends.iter().copied())
            .max();
        if let Some(number) = last
            && let Some(from) = chain
                .iter()
                .rposition(|file| file.scan.starts.contains(&number))
        {
            needed.records_from = from;
            needed.checkpoint = number;
        }
        for index in needed.records_from..end.files {
            self.list[index].read_records(read)?;
        }
        let chain = &self.list[..end.files];
        let from = needed.records_from;
        if needed.checkpoint != 0 {
            needed.floor_seq = chain[from].start_of(needed.checkpoint).unwrap_or(0);
        }
        let mut missing = BTreeSet::new();
        for pair in chain[from.min(chain.len())..].windows(2) {
            if let Some(sealed) = &pair[0].scan.sealed
                && sealed.next_segment != pair[1].info.id.0
            {
                missing.insert(sealed.next_segment);
            }
        }
        self.find_next_missing(end, &mut missing);
        let chain = &self.list[..end.files];
        if needed.checkpoint == 0
            && let Some(first) = chain.first().and_then(|file| file.scan.first)
            && first.seq != 1
        {
            missing.insert(0);
        }
        let (live, freed) = segment_records(&chain[from.min(chain.len())..], needed.floor_seq);
        let here: BTreeSet<u64> = chain.iter().map(|file| file.info.id.0).collect();
        missing.extend(live.difference(&freed).filter(|id| !here.contains(id)));
        needed.freed = chain[..from]
            .iter()
            .map(|file| file.info.id.0)
            .filter(|id| !live.contains(id))
            .chain(freed)
            .collect();
        needed.lost = missing.into_iter().map(SegmentId).collect();
        if !needed.lost.is_empty() && !accept_loss {
            return Err(RecoverError::Missing {
                segments: needed.lost,
            });
        }
        Ok(needed)
    }

    /// A sealed last segment names its successor, whose header was synced before: it must be there,
    /// or what was written to it is lost.
    fn find_next_missing(&self, end: End, missing: &mut BTreeSet<u64>) {
        if let Some(last) = self.list[..end.files].last()
            && let Some(sealed) = &last.scan.sealed
        {
            let is_ready =
                |file: &File| file.info.id.0 == sealed.next_segment && file.header.is_some();
            if !self.list.iter().any(is_ready) {
                missing.insert(sealed.next_segment);
            }
        }
    }
}

impl File {
    fn read_blocks(
        &mut self,
        log_id: Option<u128>,
        read: &mut ReadAt<'_>,
    ) -> Result<(), RecoverError> {
        let mut window = Window::new(read, self.info);
        if let Some(header) = &self.header {
            if let Some(scan) = read_footer(&mut window, header)? {
                self.scan = scan;
            } else {
                self.scan = scan_blocks(&mut window, header)?;
            }
            return Ok(());
        }
        // Without a header the file is taken for empty, unless blocks of its life are in it.
        let Some(log_id) = log_id else { return Ok(()) };
        let page = PAGE_BYTES as u64;
        let bytes = self
            .info
            .bytes
            .next_multiple_of(page)
            .min(u64::from(u32::MAX) / page * page);
        if bytes < 4 * page {
            return Ok(());
        }
        let header = SegmentHeader {
            log_id,
            segment: self.info.id.0,
            bytes,
            block_bytes_max: bytes,
        };
        if scan_blocks(&mut window, &header)?.has_blocks() {
            return Err(RecoverError::Damaged {
                segment: self.info.id,
                offset: 0,
                ledgers: Vec::new(),
                why: "its header is bad and there are blocks behind it".into(),
            });
        }
        Ok(())
    }

    /// Walks the blocks of a segment that was taken from its footer.
    pub(crate) fn read_records(&mut self, read: &mut ReadAt<'_>) -> Result<(), RecoverError> {
        let Some(header) = self.header.filter(|_| self.scan.by_footer) else {
            return Ok(());
        };
        let scan = scan_blocks(&mut Window::new(read, self.info), &header)?;
        let same = (scan.sealed.is_some(), scan.last) == (true, self.scan.last);
        self.scan = scan;
        if same {
            Ok(())
        } else {
            Err(self.damaged("a block of a sealed segment is bad"))
        }
    }

    fn start_of(&self, number: u64) -> Option<u64> {
        let mut records = self.scan.records.iter();
        let starts = |record: &&crate::scan::Record| {
            record.kind == section::CHECKPOINT_START
                && Reader::new(&record.payload).u64() == Some(number)
        };
        records.find(starts).map(|record| record.seq)
    }

    pub(crate) fn damaged(&self, why: &str) -> RecoverError {
        RecoverError::Damaged {
            segment: self.info.id,
            offset: u64::from(self.scan.end_page) * PAGE_BYTES as u64,
            ledgers: self.scan.ledgers(),
            why: why.into(),
        }
    }
}

/// Segments that the checkpoint at `floor_seq` says are live, and those freed since.
fn segment_records(chain: &[File], floor_seq: u64) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let (mut live, mut freed) = (BTreeSet::new(), BTreeSet::new());
    let mut listing = false;
    let records = chain.iter().flat_map(|file| &file.scan.records);
    for record in records.filter(|record| record.seq >= floor_seq) {
        let ids = || {
            record
                .payload
                .chunks_exact(8)
                .filter_map(|id| Some(u64::from_le_bytes(id.try_into().ok()?)))
        };
        match record.kind {
            // Only the first list counts: that of the complete one.
            section::CHECKPOINT_START => listing = record.seq == floor_seq,
            section::CHECKPOINT_END => listing = false,
            section::LIVE_SEGMENTS if listing => live.extend(ids()),
            section::FREED => freed.extend(ids()),
            _ => {}
        }
    }
    (live, freed)
}
