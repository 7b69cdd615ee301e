//! From what was found to a log that can go on: repairs, segment table, indexes, cursors.
use std::collections::BTreeMap;

use crate::commit::{Active, Chain, Store};
use crate::cursor::{CursorState, Image};
use crate::entry::{SubKey, TopicKey};
use crate::files::{End, File, Files, Needed};
use crate::footer::FooterBuilder;
use crate::format::{Reader, section};
use crate::index::Spot;
use crate::log::Log;
use crate::options::Options;
use crate::page::PAGE_BYTES;
use crate::partial::decode_piece;
use crate::position::{LedgerRun, Position};
use crate::recover::{RecoverError, RecoverReport, Recovered, RecoveredTopic, Repair};
use crate::scan::{Record, SegmentScan};
use crate::segments::{Segment, SegmentState};

/// A log in the making.
#[derive(Debug)]
pub(crate) struct Opened {
    options: Options,
    store: Box<Store>,
    repairs: Vec<Repair>,
    report: RecoverReport,
    next_ledger: u64,
}

impl Opened {
    pub(crate) fn open(
        options: Options,
        files: Files,
        end: End,
        needed: Needed,
    ) -> Result<Recovered, RecoverError> {
        let log_id = files.log_id.unwrap_or(options.log_id);
        let headers = || {
            files.list.iter().flat_map(|file| {
                let strays = file.scan.strays.iter().map(|stray| &stray.header);
                file.scan.first.iter().chain(&file.scan.last).chain(strays)
            })
        };
        let last = files.list[..end.files]
            .last()
            .and_then(|file| file.scan.last);
        let (found, reached) = (last.map_or(0, |last| last.seq), options.reached);
        if found < reached && !options.accept_loss {
            return Err(RecoverError::Short { found, reached });
        }
        let chain = Chain {
            log_id,
            epoch: headers()
                .map(|header| header.epoch)
                .max()
                .map_or(1, |epoch| epoch + 1),
            next_seq: found + 1,
            prev_crc: last.map_or(0, |last| last.crc),
            // The repairs sync what is accepted here before the first block is written.
            synced_seq: found,
        };
        let mut opened = Opened {
            store: Box::new(Store::new(&options, chain)),
            options,
            repairs: Vec::new(),
            report: RecoverReport::default(),
            next_ledger: headers()
                .map(|header| header.next_ledger)
                .max()
                .unwrap_or(1)
                .max(1),
        };
        opened.report.clean = is_clean(&files.list[..end.files])
            && files.list.iter().all(|file| file.scan.strays.is_empty());
        opened.report.end = found;
        opened.report.reached = (found < reached).then_some(reached);
        let next = files.list[..end.files]
            .last()
            .and_then(|file| file.scan.sealed.as_ref())
            .map(|sealed| sealed.next_segment);
        for (index, file) in files.list.iter().enumerate() {
            if index < end.files {
                opened.take_chained(file, end, &needed)?;
            } else {
                opened.take_spare(file, next);
            }
        }
        opened.store.segments.keep_clear_of(
            needed
                .freed
                .iter()
                .copied()
                .chain(needed.lost.iter().map(|lost| lost.0))
                .chain(next),
        );
        let chain = files.list.into_iter().take(end.files);
        opened.take_cursors(chain.skip(needed.records_from), needed.floor_seq);
        Ok(opened.finish(needed, last.is_some()))
    }

    /// A segment with blocks of the chain.
    fn take_chained(&mut self, file: &File, end: End, needed: &Needed) -> Result<(), RecoverError> {
        let scan = &file.scan;
        let (Some(header), Some(first), Some(last)) = (&file.header, scan.first, scan.last) else {
            return Ok(());
        };
        let mut segment = Segment::new(file.info.id, header.bytes, SegmentState::Sealed);
        segment.synced = true;
        segment.first_seq = first.seq;
        segment.last_seq = last.seq;
        self.report.segments += 1;
        self.report.segments_scanned += u64::from(!scan.by_footer);
        self.report.blocks_scanned += if scan.by_footer {
            0
        } else {
            u64::from(scan.blocks)
        };
        if needed.freed.contains(&file.info.id.0) {
            segment.state = SegmentState::Freeing;
            segment.freed_seq = 1;
            self.store.segments.add(segment);
            return Ok(());
        }
        if scan.sealed.is_none() {
            segment.state = SegmentState::Active;
        }
        segment.live = scan.entries.len() as u64;
        let slot = self.store.segments.add(segment);
        self.index(file, slot)?;
        self.cut(file);
        if last.seq > end.synced || scan.sealed.is_none() {
            self.repairs.push(Repair::Sync(file.info.id));
        }
        if scan.sealed.is_none() {
            let footer = rebuild_footer(scan, first.seq, first.prev_crc);
            self.store.active = Some(Active {
                slot,
                page: scan.end_page,
                footer,
            });
        }
        Ok(())
    }

    /// A segment without blocks of the chain: a spare, or of no use.
    fn take_spare(&mut self, file: &File, next: Option<u64>) {
        let id = file.info.id;
        let is_next = next == Some(id.0);
        self.cut(file);
        if file.scan.has_blocks() {
            self.repairs.push(Repair::Sync(id));
        }
        let bytes = self.options.segment_bytes;
        match &file.header {
            Some(header) if is_next || header.bytes == bytes && file.info.bytes >= bytes => {
                let state = if is_next {
                    SegmentState::Active
                } else {
                    SegmentState::Ready
                };
                let slot = self
                    .store
                    .segments
                    .add(Segment::new(id, header.bytes, state));
                if is_next {
                    let footer = FooterBuilder::default();
                    self.store.active = Some(Active {
                        slot,
                        page: 1,
                        footer,
                    });
                } else {
                    self.report.spares += 1;
                }
            }
            None if file.info.bytes == bytes => {
                let mut segment = Segment::new(id, bytes, SegmentState::Freeing);
                segment.freed_seq = 1;
                self.store.segments.add(segment);
            }
            _ => {
                self.repairs.push(Repair::Unlink(id));
                self.store.segments.keep_clear_of([id.0].into_iter());
            }
        }
    }

    /// Zeros for what is behind the end of the chain in this file, so that it never lines up with
    /// what is appended next.
    fn cut(&mut self, file: &File) {
        let (Some(header), scan) = (&file.header, &file.scan) else {
            return;
        };
        let page = PAGE_BYTES as u64;
        let segment = file.info.id;
        // In a file that loses all its blocks the chain "ends" at its first one.
        let from = if self.keeps(file) { scan.end_page } else { 1 };
        let strays = scan
            .strays
            .iter()
            .map(|stray| stray.page + stray.header.pages);
        let torn = scan.torn_pages.map(|pages| scan.end_page + pages);
        let chained = (!self.keeps(file)).then_some(scan.end_page);
        let to = strays.chain(torn).chain(chained).max().unwrap_or(from);
        let is_cut = to > from;
        if is_cut {
            let (offset, bytes) = (u64::from(from) * page, u64::from(to - from) * page);
            self.repairs.push(Repair::Zero {
                segment,
                offset,
                bytes,
            });
            self.report.torn.get_or_insert((segment, offset));
        }
        if scan.has_trailer && (scan.sealed.is_none() || !self.keeps(file)) {
            let offset = header.bytes - page;
            self.repairs.push(Repair::Zero {
                segment,
                offset,
                bytes: page,
            });
        }
    }

    /// Whether the file's blocks are in the chain: it was given a place with blocks.
    fn keeps(&self, file: &File) -> bool {
        self.store
            .segments
            .iter()
            .any(|(_, segment)| segment.id == file.info.id && segment.first_seq != 0)
    }

    /// Indexes the entries of a segment.
    fn index(&mut self, file: &File, slot: u32) -> Result<(), RecoverError> {
        for group in &file.scan.groups {
            let head = &group.head;
            let found = self
                .store
                .recovered
                .entry(TopicKey(head.topic))
                .or_default();
            let end = found.index.end();
            let expected = found.next_position();
            let joins = found
                .ledgers
                .last()
                .is_some_and(|run| run.epoch == head.epoch)
                && expected == (head.ledger, head.first_entry);
            if !joins {
                if (head.ledger, head.first_entry) < expected {
                    return Err(file.damaged("entries of a topic are not in order"));
                }
                self.report.ledgers += u64::from(
                    found
                        .ledgers
                        .last()
                        .is_none_or(|run| run.ledger != head.ledger),
                );
                found.ledgers.push(LedgerRun {
                    ledger: head.ledger,
                    epoch: head.epoch,
                    first_entry: head.first_entry,
                    first_ordinal: end,
                });
            }
            self.next_ledger = self.next_ledger.max(head.ledger.saturating_add(1));
            for (entry, hints) in file.scan.entries_of(group) {
                let spot = Spot::new(slot, entry.offset, entry.bytes, entry.messages);
                found.index.push(spot, &hints);
            }
            self.report.entries += u64::from(head.count);
        }
        Ok(())
    }

    fn take_cursors(&mut self, chain: impl Iterator<Item = File>, floor_seq: u64) {
        for file in chain {
            for &(topic, producer, sequence) in &file.scan.numbered {
                let found = self.store.recovered.entry(TopicKey(topic)).or_default();
                found.sequences.found(producer, sequence);
            }
            for record in file
                .scan
                .records
                .iter()
                .filter(|record| record.seq >= floor_seq)
            {
                // Their lengths were checked when the block was accepted.
                let _ = apply(record, &mut self.store.recovered);
            }
        }
    }

    fn finish(self, needed: Needed, has_chain: bool) -> Recovered {
        let Opened {
            options,
            mut store,
            repairs,
            mut report,
            next_ledger,
        } = self;
        store.checkpoint.floor_seq = needed.floor_seq;
        store.checkpoint.number = needed.last_started;
        store.segments.look = true;
        if has_chain && store.active.is_some() {
            store.want_mark();
        }
        // A roll whose checkpoint did not get anywhere, or none at all, or one to forget.
        let fresh = |active: &Active| store.segments.get(active.slot).first_seq == 0;
        let rolled = store.active.as_ref().is_some_and(fresh);
        if has_chain && (rolled || needed.checkpoint == 0 || !needed.lost.is_empty()) {
            store.start_checkpoint();
        }
        report.lost_segments = needed.lost;
        let cursors = store
            .recovered
            .iter()
            .flat_map(|(&topic, found)| {
                found.cursors.iter().map(move |(&sub, image)| CursorState {
                    topic,
                    sub,
                    mark_delete: image.mark,
                    acked: image.acked().collect(),
                    partial: image
                        .partial_from((0, 0), |at| found.messages(at))
                        .collect(),
                })
            })
            .collect();
        let topics = store.recovered.keys().copied().collect();
        let mut log = Log::new(options, Some(store));
        log.next_ledger = next_ledger;
        Recovered {
            log,
            repairs,
            cursors,
            topics,
            report,
        }
    }
}

impl RecoveredTopic {
    /// Messages of an entry that is there.
    pub(crate) fn messages(&self, at: Position) -> Option<u32> {
        let ordinal = self.ledgers.ordinal(at, self.index.end())?;
        Some(self.index.get(ordinal)?.messages)
    }

    /// Ledger and number the next entry of the last run would have; `(0, 0)` if there is none.
    fn next_position(&self) -> (u64, u64) {
        self.ledgers.last().map_or((0, 0), |run| {
            let entries = self.index.end() - run.first_ordinal;
            (run.ledger, run.first_entry + entries)
        })
    }
}

/// Whether the chain ends with the mark of an orderly stop: an empty block that says that all
/// before it is synced; only the seal of the segment before may come in between.
fn is_clean(chain: &[File]) -> bool {
    let Some(scan) = chain.last().map(|file| &file.scan) else {
        // Nothing was ever written.
        return true;
    };
    let (Some(first), Some(last)) = (scan.first, scan.last) else {
        return false;
    };
    let unsynced = last.seq - last.synced_through.min(last.seq);
    last.sections == 0 && unsynced <= 1 + u64::from(first.seq == last.seq)
}

fn rebuild_footer(scan: &SegmentScan, first_seq: u64, first_prev_crc: u32) -> FooterBuilder {
    let mut footer = FooterBuilder::default();
    footer.blocks = scan.blocks;
    footer.first_seq = first_seq;
    footer.first_prev_crc = first_prev_crc;
    footer.starts.clone_from(&scan.starts);
    footer.ends.clone_from(&scan.ends);
    for group in &scan.groups {
        footer.begin_group(&group.head);
        for (entry, hints) in scan.entries_of(group) {
            footer.entry(entry.bytes, entry.messages, &hints);
        }
        footer.end_group();
    }
    footer
}

/// Applies a cursor record to the images; `None` if it ends too early.
fn apply(record: &Record, topics: &mut BTreeMap<TopicKey, RecoveredTopic>) -> Option<()> {
    let mut r = Reader::new(&record.payload);
    match record.kind {
        section::MARKS => {
            while !r.rest.is_empty() {
                let (topic, sub) = (r.u64()?, r.u64()?);
                let at = Position {
                    ledger: r.u64()?,
                    entry: r.u64()?,
                };
                cursor(topics, topic, sub).mark_delete(at);
            }
        }
        section::ACKED => {
            let image = cursor(topics, r.u64()?, r.u64()?);
            let (ledger, base) = (r.u64()?, r.u64()?);
            let count = r.u32()?;
            r.u32()?;
            for _ in 0..count {
                let (offset, len) = (r.u32()?, r.u32()?);
                let entry = base.checked_add(u64::from(offset))?;
                image.ack(Position { ledger, entry }, u64::from(len));
            }
        }
        section::RESET => {
            let image = cursor(topics, r.u64()?, r.u64()?);
            let is_some = r.u64()? == 1;
            let at = Position {
                ledger: r.u64()?,
                entry: r.u64()?,
            };
            image.reset(is_some.then_some(at));
        }
        section::CURSOR => {
            let image = cursor(topics, r.u64()?, r.u64()?);
            let (has_mark, runs) = (r.u32()? == 1, r.u32()?);
            let at = Position {
                ledger: r.u64()?,
                entry: r.u64()?,
            };
            // Added to what the records before it said: the checkpoint may end here, unfinished.
            if has_mark {
                image.mark_delete(at);
            }
            for _ in 0..runs {
                let (ledger, first) = (r.u64()?, r.u64()?);
                let words = r.u32()?;
                r.u32()?;
                for word in 0..u64::from(words) {
                    let base = first.checked_add(word * 64)?;
                    ack_bits(image, ledger, base, r.u64()?);
                }
            }
        }
        section::SEQUENCES => {
            let found = topics.entry(TopicKey(r.u64()?)).or_default();
            while !r.rest.is_empty() {
                found.sequences.found(r.u64()?, r.u64()?);
            }
        }
        section::PARTIAL => {
            let piece = decode_piece(&record.payload)?;
            cursor(topics, piece.topic, piece.sub).ack_part(&piece);
        }
        _ => {}
    }
    Some(())
}

fn cursor(topics: &mut BTreeMap<TopicKey, RecoveredTopic>, topic: u64, sub: u64) -> &mut Image {
    topics
        .entry(TopicKey(topic))
        .or_default()
        .cursors
        .entry(SubKey(sub))
        .or_default()
}

fn ack_bits(image: &mut Image, ledger: u64, base: u64, mut bits: u64) {
    let mut at = 0;
    while bits != 0 {
        let zeros = bits.trailing_zeros();
        bits >>= zeros;
        let ones = bits.trailing_ones();
        let entry = base.saturating_add(u64::from(at + zeros));
        image.ack(Position { ledger, entry }, u64::from(ones));
        at += zeros + ones;
        bits = bits.checked_shr(ones).unwrap_or(0);
    }
}
