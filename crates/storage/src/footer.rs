//! The footer of a sealed segment: the index of all its entries, so that opening needs no scan.
use crate::format::{
    GROUP_ENTRY_BYTES_MAX, GROUP_HEADER_BYTES, Reader, SECTION_HEADER_BYTES, push_varint, put_u32,
    section,
};

/// Collects the footer while the segment is written (or scanned): a few bytes per entry.
#[derive(Debug, Default)]
pub(crate) struct FooterBuilder {
    /// Finished group sections.
    groups: Vec<u8>,
    sections: u32,
    open_at: usize,
    open_count: u32,
    pub(crate) blocks: u32,
    pub(crate) first_seq: u64,
    pub(crate) first_prev_crc: u32,
    pub(crate) starts: Vec<u64>,
    pub(crate) ends: Vec<u64>,
}

/// A group of entries that are adjacent on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupHead {
    pub(crate) topic: u64,
    pub(crate) ledger: u64,
    pub(crate) first_entry: u64,
    /// Byte offset in the segment of the first entry's stored header.
    pub(crate) offset: u32,
    pub(crate) count: u32,
    pub(crate) epoch: u32,
}

/// What a footer says about the segment as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) first_seq: u64,
    pub(crate) next_segment: u64,
    pub(crate) first_prev_crc: u32,
    pub(crate) blocks: u32,
    pub(crate) starts: Vec<u64>,
    pub(crate) ends: Vec<u64>,
}

const SUMMARY_BYTES: usize = 32;

impl FooterBuilder {
    pub(crate) fn note_block(&mut self, seq: u64, prev_crc: u32) {
        if self.blocks == 0 {
            self.first_seq = seq;
            self.first_prev_crc = prev_crc;
        }
        self.blocks += 1;
    }

    /// Starts a group; its `count` is filled in by `end_group`.
    pub(crate) fn begin_group(&mut self, head: &GroupHead) {
        self.open_at = self.groups.len();
        self.open_count = 0;
        self.groups.extend_from_slice(&section::GROUP.to_le_bytes());
        self.groups.extend_from_slice(&[0; 4]);
        self.groups.extend_from_slice(&head.topic.to_le_bytes());
        self.groups.extend_from_slice(&head.ledger.to_le_bytes());
        self.groups
            .extend_from_slice(&head.first_entry.to_le_bytes());
        self.groups.extend_from_slice(&head.offset.to_le_bytes());
        self.groups.extend_from_slice(&[0; 4]);
        self.groups.extend_from_slice(&head.epoch.to_le_bytes());
        self.groups.extend_from_slice(&[0; 4]);
    }

    #[inline]
    pub(crate) fn entry(&mut self, bytes: u32, messages: u32) {
        push_varint(&mut self.groups, bytes);
        push_varint(&mut self.groups, messages);
        self.open_count += 1;
    }

    pub(crate) fn end_group(&mut self) {
        let payload = self.groups.len() - self.open_at - SECTION_HEADER_BYTES;
        put_u32(&mut self.groups, self.open_at + 4, payload as u32);
        put_u32(
            &mut self.groups,
            self.open_at + SECTION_HEADER_BYTES + 28,
            self.open_count,
        );
        self.sections += 1;
    }

    /// Bytes of the footer's sections if `groups` groups of `entries` entries are added.
    pub(crate) fn bytes_with(&self, groups: usize, entries: usize) -> usize {
        let summary =
            SECTION_HEADER_BYTES + SUMMARY_BYTES + 8 * (self.starts.len() + self.ends.len() + 2);
        summary
            + self.groups.len()
            + groups * (SECTION_HEADER_BYTES + GROUP_HEADER_BYTES)
            + entries * GROUP_ENTRY_BYTES_MAX
    }

    /// Appends the sections to `out`; gives their number.
    pub(crate) fn encode(&self, next_segment: u64, out: &mut Vec<u8>) -> u32 {
        let marks = self.starts.len() + self.ends.len();
        out.extend_from_slice(&section::SUMMARY.to_le_bytes());
        out.extend_from_slice(&((SUMMARY_BYTES + 8 * marks) as u32).to_le_bytes());
        out.extend_from_slice(&self.first_seq.to_le_bytes());
        out.extend_from_slice(&next_segment.to_le_bytes());
        out.extend_from_slice(&self.first_prev_crc.to_le_bytes());
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend_from_slice(&(self.starts.len() as u32).to_le_bytes());
        out.extend_from_slice(&(self.ends.len() as u32).to_le_bytes());
        for number in self.starts.iter().chain(&self.ends) {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&self.groups);
        self.sections + 1
    }

    /// Ready for the next segment, memory kept.
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
        self.sections = 0;
        self.blocks = 0;
        self.starts.clear();
        self.ends.clear();
    }
}

/// Reads a summary section.
pub(crate) fn decode_summary(payload: &[u8]) -> Option<Summary> {
    let mut r = Reader::new(payload);
    let (first_seq, next_segment) = (r.u64()?, r.u64()?);
    let (first_prev_crc, blocks, starts, ends) = (r.u32()?, r.u32()?, r.u32()?, r.u32()?);
    let (starts, ends) = (u64::from(starts), u64::from(ends));
    if (starts + ends) * 8 != r.rest.len() as u64 {
        return None;
    }
    let mut numbers = |count: u64| (0..count).map(|_| r.u64()).collect::<Option<Vec<u64>>>();
    let (starts, ends) = (numbers(starts)?, numbers(ends)?);
    Some(Summary {
        first_seq,
        next_segment,
        first_prev_crc,
        blocks,
        starts,
        ends,
    })
}

/// Reads a group section: calls `entry(offset of the stored header, body bytes, messages)` for
/// each. `None` if it contradicts itself; what was given until then must be thrown away.
pub(crate) fn decode_group(
    payload: &[u8],
    mut head: impl FnMut(&GroupHead),
    mut entry: impl FnMut(u32, u32, u32),
) -> Option<()> {
    let mut r = Reader::new(payload);
    let group = GroupHead {
        topic: r.u64()?,
        ledger: r.u64()?,
        first_entry: r.u64()?,
        offset: r.u32()?,
        count: r.u32()?,
        epoch: r.u32()?,
    };
    r.u32()?;
    // Each entry takes two bytes at least.
    if u64::from(group.count) * 2 > r.rest.len() as u64 {
        return None;
    }
    group.first_entry.checked_add(u64::from(group.count))?;
    head(&group);
    let mut offset = group.offset;
    for _ in 0..group.count {
        let (bytes, messages) = (r.varint()?, r.varint()?);
        entry(offset, bytes, messages);
        offset = offset
            .checked_add(bytes)?
            .checked_add(crate::entry::ENTRY_HEADER_BYTES as u32)?;
    }
    r.rest.is_empty().then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_footer_group_says_where_each_entry_is_and_a_huge_count_is_refused() {
        let mut footer = FooterBuilder::default();
        let head = GroupHead {
            topic: 1,
            ledger: 2,
            first_entry: 3,
            offset: 4096,
            count: 0,
            epoch: 5,
        };
        footer.begin_group(&head);
        footer.entry(10, 1);
        footer.entry(300, 7);
        footer.end_group();
        let payload = footer.groups[SECTION_HEADER_BYTES..].to_vec();
        let mut entries = Vec::new();
        let read = |payload: &[u8], entries: &mut Vec<_>| {
            decode_group(
                payload,
                |_| (),
                |at, bytes, messages| entries.push((at, bytes, messages)),
            )
        };
        read(&payload, &mut entries).unwrap();
        assert_eq!(entries, [(4096, 10, 1), (4096 + 74, 300, 7)]);
        for count in [0, 1, 3, 0x7FFF_FFF0, u32::MAX] {
            let mut bad = payload.clone();
            put_u32(&mut bad, 28, count);
            assert_eq!(read(&bad, &mut entries), None, "count {count}");
        }
    }
}
