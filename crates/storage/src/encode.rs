//! Lays a batch out as a commit block, and a footer with its trailer. One copy, two checksums.
use crate::commit::Chain;
use crate::entry::encode_entry;
use crate::footer::{FooterBuilder, GroupHead};
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, BlockKind, ENTRIES_HEADER_BYTES, SECTION_HEADER_BYTES,
    Trailer, pages, put_u32, put_u64, section,
};
use crate::gather::{Batch, Group};
use crate::op::SegmentId;
use crate::page::{PAGE_BYTES, PageBuf};
use crate::topic::Topic;

/// Where the block goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPlan {
    pub(crate) chain: Chain,
    pub(crate) segment: SegmentId,
    pub(crate) segment_slot: u32,
    pub(crate) page: u32,
    pub(crate) next_ledger: u64,
    /// Sections that are ready-made: a part of a checkpoint, or a footer's.
    pub(crate) part_sections: u32,
}

impl BlockPlan {
    fn header(&self, kind: BlockKind, used: usize, sections: u32) -> BlockHeader {
        BlockHeader {
            kind,
            crc: 0,
            used: used as u32,
            pages: pages(used) as u32,
            epoch: self.chain.epoch,
            log_id: self.chain.log_id,
            segment: self.segment.0,
            seq: self.chain.next_seq,
            synced_through: self.chain.synced_seq,
            next_ledger: self.next_ledger,
            prev_crc: self.chain.prev_crc,
            page: self.page,
            sections,
        }
    }
}

/// What a block came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Laid {
    /// Length of the block, whole pages.
    pub(crate) bytes: usize,
    pub(crate) entries: u64,
    pub(crate) body_bytes: u64,
    pub(crate) crc: u32,
}

/// Lays out `batch`: records, then a part of a checkpoint, then entries. The entries' blocks are
/// frozen. Their spots are set, and the footer learns of them. `block` is long enough; the result
/// says how much of it is used.
pub(crate) fn encode_block(
    block: &mut [u8],
    plan: &BlockPlan,
    batch: &Batch,
    topics: &mut [Topic],
    segment_id: impl Fn(u32) -> u64,
    part: &[u8],
    footer: &mut FooterBuilder,
) -> Laid {
    let mut out = Out {
        bytes: block,
        at: BLOCK_HEADER_BYTES,
    };
    let mut sections = batch.cursor_sections + plan.part_sections;
    out.put(&batch.cursor);
    let marks = batch.marks.iter().filter_map(|mark| Some((mark, mark.at?)));
    let count = marks.clone().count();
    if count > 0 {
        sections += 1;
        out.put_section(section::MARKS, count * 32);
        for (mark, at) in marks {
            for word in [mark.topic, mark.sub, at.ledger, at.entry] {
                out.put(&word.to_le_bytes());
            }
        }
    }
    if !batch.freed.is_empty() {
        sections += 1;
        out.put_section(section::FREED, batch.freed.len() * 8);
        for &slot in &batch.freed {
            out.put(&segment_id(slot).to_le_bytes());
        }
    }
    out.put(part);
    let mut laid = Laid::default();
    for group in &batch.groups {
        let topic = &mut topics[group.slot.0 as usize];
        // A topic dropped meanwhile leaves a gap in its ledger that nobody will ask for.
        if topic.generation == group.generation {
            sections += 1;
            put_group(&mut out, plan, group, topic, footer, &mut laid);
        }
    }
    let used = out.at;
    laid.bytes = pages(used) * PAGE_BYTES;
    let header = plan.header(BlockKind::Commit, used, sections);
    laid.crc = header.seal(&mut block[..laid.bytes]);
    laid
}

fn put_group(
    out: &mut Out<'_>,
    plan: &BlockPlan,
    group: &Group,
    topic: &mut Topic,
    footer: &mut FooterBuilder,
    laid: &mut Laid,
) {
    let Some(live) = topic.live.as_deref_mut() else {
        return;
    };
    let run = *live
        .ledgers
        .run_of(group.first)
        .expect("a gathered entry has a ledger");
    let first_entry = run.position(group.first).entry;
    let section_at = out.at;
    out.put_section(section::ENTRIES, 0);
    for word in [topic.key.0, run.ledger, first_entry] {
        out.put(&word.to_le_bytes());
    }
    out.put(&run.epoch.to_le_bytes());
    out.put(&group.count.to_le_bytes());
    let base = plan.page as usize * PAGE_BYTES;
    footer.begin_group(&GroupHead {
        topic: topic.key.0,
        ledger: run.ledger,
        first_entry,
        offset: (base + out.at) as u32,
        count: group.count,
        epoch: run.epoch,
    });
    let end = group.first + u64::from(group.count);
    let mut ordinal = group.first;
    while ordinal < end {
        let index = live
            .block_index(ordinal)
            .expect("gathered entries stay in memory");
        let frozen = &live.blocks[index];
        let stop = frozen.end().min(end);
        for at in ordinal..stop {
            let slot = (at - frozen.first) as u32;
            let (meta, payload) = (frozen.block.meta(slot), frozen.block.payload(slot));
            live.index
                .place(at, plan.segment_slot, (base + out.at) as u32);
            encode_entry(out.take(meta.stored_bytes()), meta, run.epoch, payload);
            footer.entry(meta.payload_bytes(), meta.messages, &meta.hints());
            laid.body_bytes += payload.len() as u64;
        }
        ordinal = stop;
    }
    footer.end_group();
    if !live.sequences.is_empty() {
        live.store_sequences(group.first..end);
    }
    laid.entries += u64::from(group.count);
    let payload = out.at - section_at - SECTION_HEADER_BYTES;
    debug_assert!(payload >= ENTRIES_HEADER_BYTES);
    put_u32(out.bytes, section_at + 4, payload as u32);
}

/// Lays out the footer block and the trailer page of the segment in `plan`; gives the footer's
/// checksum.
pub(crate) fn encode_seal(
    footer: &mut PageBuf,
    trailer: &mut PageBuf,
    plan: &BlockPlan,
    sections: &[u8],
) -> u32 {
    let used = BLOCK_HEADER_BYTES + sections.len();
    footer.as_mut_slice()[BLOCK_HEADER_BYTES..used].copy_from_slice(sections);
    let header = plan.header(BlockKind::Footer, used, plan.part_sections);
    let crc = header.seal(footer.as_mut_slice());
    Trailer {
        log_id: plan.chain.log_id,
        segment: plan.segment.0,
        page: plan.page,
        pages: header.pages,
        crc,
        seq: header.seq,
    }
    .encode(trailer.as_mut_slice());
    crc
}

/// Bytes being filled from the front.
struct Out<'a> {
    bytes: &'a mut [u8],
    at: usize,
}

impl Out<'_> {
    fn take(&mut self, count: usize) -> &mut [u8] {
        let at = self.at;
        self.at += count;
        &mut self.bytes[at..at + count]
    }

    fn put(&mut self, bytes: &[u8]) {
        self.take(bytes.len()).copy_from_slice(bytes);
    }

    fn put_section(&mut self, kind: u32, payload: usize) {
        let head = self.take(SECTION_HEADER_BYTES);
        put_u64(head, 0, u64::from(kind) | (payload as u64) << 32);
    }
}
