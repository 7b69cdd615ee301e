//! The footer of a sealed segment: the index of all its entries, so that opening needs no scan.
use crate::entry::{ENTRY_HEADER_BYTES, Hints, times_bytes};
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
    /// Publish time of the entry before; most are close to it.
    last_ms: u64,
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

/// Bits that say which hints of an entry follow.
const HAS_KEY_HASH: u8 = 1;
const HAS_PUBLISH_TIME: u8 = 2;
const HAS_TIMES: u8 = 4;

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

    /// Adds an entry: bytes of its properties and body, messages, hints.
    #[inline]
    pub(crate) fn entry(&mut self, bytes: u32, messages: u32, hints: &Hints) {
        let is_plain = hints.key_hash == 0 && hints.publish_ms == self.last_ms && !hints.is_timed();
        push_varint(&mut self.groups, u64::from(bytes));
        push_varint(
            &mut self.groups,
            u64::from(messages) << 1 | u64::from(!is_plain),
        );
        if !is_plain {
            self.entry_hints(hints);
        }
        self.open_count += 1;
    }

    fn entry_hints(&mut self, hints: &Hints) {
        let out = &mut self.groups;
        let at = out.len();
        out.push(0);
        let mut which = 0;
        if hints.key_hash != 0 {
            which |= HAS_KEY_HASH;
            out.extend_from_slice(&hints.key_hash.to_le_bytes());
        }
        if hints.publish_ms != self.last_ms {
            which |= HAS_PUBLISH_TIME;
            let moved = hints.publish_ms.wrapping_sub(self.last_ms).cast_signed();
            push_varint(out, (moved << 1 ^ moved >> 63).cast_unsigned());
            self.last_ms = hints.publish_ms;
        }
        if hints.is_timed() {
            which |= HAS_TIMES;
            out.extend_from_slice(&hints.deliver_at_ms.to_le_bytes());
            out.extend_from_slice(&hints.deadline_ms.to_le_bytes());
        }
        out[at] = which;
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
        self.last_ms = 0;
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

/// An entry in a footer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GroupEntry {
    /// Byte offset of its stored header in the segment.
    pub(crate) offset: u32,
    /// Bytes of its properties and body.
    pub(crate) bytes: u32,
    pub(crate) messages: u32,
    pub(crate) hints: Hints,
}

/// Reads a group section: calls `entry` for each. `last_ms` is the publish time of the entry before
/// in the same footer, 0 at its start. `None` if it contradicts itself; what was given until then
/// must be thrown away.
pub(crate) fn decode_group(
    payload: &[u8],
    last_ms: &mut u64,
    mut head: impl FnMut(&GroupHead),
    mut entry: impl FnMut(GroupEntry),
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
        let bytes = u32::try_from(r.varint()?).ok()?;
        let messages = r.varint()?;
        let hints = decode_hints(&mut r, messages & 1 == 1, last_ms)?;
        entry(GroupEntry {
            offset,
            bytes,
            messages: u32::try_from(messages >> 1).ok()?,
            hints,
        });
        let header = ENTRY_HEADER_BYTES + times_bytes(hints.is_timed());
        offset = offset.checked_add(bytes)?.checked_add(header as u32)?;
    }
    r.rest.is_empty().then_some(())
}

fn decode_hints(r: &mut Reader<'_>, follow: bool, last_ms: &mut u64) -> Option<Hints> {
    let mut hints = Hints::default();
    let which = if follow { r.u8()? } else { 0 };
    if which & !(HAS_KEY_HASH | HAS_PUBLISH_TIME | HAS_TIMES) != 0 {
        return None;
    }
    if which & HAS_KEY_HASH != 0 {
        hints.key_hash = r.u32()?;
    }
    if which & HAS_PUBLISH_TIME != 0 {
        let moved = r.varint()?;
        let moved = (moved >> 1) ^ (moved & 1).wrapping_neg();
        *last_ms = last_ms.wrapping_add(moved);
    }
    if which & HAS_TIMES != 0 {
        (hints.deliver_at_ms, hints.deadline_ms) = (r.u64()?, r.u64()?);
        if !hints.is_timed() {
            return None;
        }
    }
    hints.publish_ms = *last_ms;
    Some(hints)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        footer.entry(10, 1, &Hints::default());
        footer.entry(300, 7, &Hints::default());
        footer.end_group();
        let payload = footer.groups[SECTION_HEADER_BYTES..].to_vec();
        let mut entries = Vec::new();
        let read = |payload: &[u8], entries: &mut Vec<_>| {
            decode_group(
                payload,
                &mut 0,
                |_| (),
                |entry| entries.push((entry.offset, entry.bytes, entry.messages)),
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

    fn hints() -> impl Strategy<Value = Hints> {
        let time = || prop_oneof![3 => Just(0), 1 => any::<u64>()];
        let publish = prop_oneof![3 => 1_000..1_003u64, 1 => any::<u64>()];
        let key_hash = prop_oneof![Just(0), any::<u32>()];
        (key_hash, publish, time(), time()).prop_map(
            |(key_hash, publish_ms, deliver_at_ms, deadline_ms)| Hints {
                key_hash,
                publish_ms,
                deliver_at_ms,
                deadline_ms,
            },
        )
    }

    proptest! {
        #[test]
        fn groups_survive_with_all_hints_within_the_bytes_reserved(
            groups in prop::collection::vec(
                prop::collection::vec((0..1u32 << 20, any::<u32>(), hints()), 1..20), 1..4,
            ),
        ) {
            let mut footer = FooterBuilder::default();
            let head = GroupHead { topic: 1, ledger: 2, first_entry: 3, offset: 4096, count: 0, epoch: 5 };
            for group in &groups {
                let most = footer.bytes_with(1, group.len());
                footer.begin_group(&head);
                for (bytes, messages, hints) in group {
                    footer.entry(*bytes, *messages, hints);
                }
                footer.end_group();
                prop_assert!(footer.bytes_with(0, 0) <= most);
            }
            let (mut rest, mut last_ms) = (Reader::new(&footer.groups), 0);
            for group in &groups {
                prop_assert_eq!(rest.u32(), Some(section::GROUP));
                let bytes = rest.u32().unwrap() as usize;
                let payload = rest.bytes(bytes).unwrap();
                let (mut entries, mut offset) = (Vec::new(), 4096);
                decode_group(payload, &mut last_ms, |_| (), |entry| entries.push(entry)).unwrap();
                prop_assert_eq!(entries.len(), group.len());
                for (entry, (bytes, messages, hints)) in entries.iter().zip(group) {
                    let expected = GroupEntry {
                        offset, bytes: *bytes, messages: *messages, hints: *hints,
                    };
                    prop_assert_eq!(*entry, expected);
                    offset += bytes + 64 + if hints.is_timed() { 16 } else { 0 };
                }
            }
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(payload in prop::collection::vec(any::<u8>(), 40..200)) {
            let mut payload = payload;
            put_u32(&mut payload, 28, 20);
            let _ = decode_group(&payload, &mut 7, |_| (), |_| ());
        }
    }
}
