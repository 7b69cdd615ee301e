//! The segment files of a log: which are live, which are spare, which may be used again.
use crate::op::SegmentId;

/// Where a segment is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SegmentState {
    /// Being created or recycled: not ready before header and directory are synced.
    Coming,
    /// A ready spare: its header is synced.
    Ready,
    /// Commits go here.
    Active,
    /// Full, footer written. Read with O_DIRECT once synced.
    Sealed,
    /// Consumed; used again once the record that says so is synced.
    Freeing,
    /// Handed to the shell to be recycled or unlinked.
    Leaving,
}

/// One segment file.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) id: SegmentId,
    pub(crate) bytes: u64,
    pub(crate) state: SegmentState,
    /// Live entries in it.
    pub(crate) live: u64,
    /// Reads in flight.
    pub(crate) reads: u32,
    /// Has unreadable entries.
    pub(crate) quarantined: bool,
    /// Everything in it is synced (sealed segments).
    pub(crate) synced: bool,
    pub(crate) first_seq: u64,
    pub(crate) last_seq: u64,
    /// Sequence of the block with the record that it is freed; 0 while that is not written.
    pub(crate) freed_seq: u64,
}

impl Segment {
    pub(crate) fn new(id: SegmentId, bytes: u64, state: SegmentState) -> Segment {
        Segment {
            id,
            bytes,
            state,
            live: 0,
            reads: 0,
            quarantined: false,
            synced: false,
            first_seq: 0,
            last_seq: 0,
            freed_seq: 0,
        }
    }

    /// Its entries are all consumed, its blocks are synced, nobody reads it, and the last complete
    /// checkpoint (which starts at `floor_seq`) does not need it.
    pub(crate) fn is_consumed(&self, floor_seq: u64) -> bool {
        self.state == SegmentState::Sealed
            && self.live == 0
            && self.reads == 0
            && self.synced
            && !self.quarantined
            && self.last_seq < floor_seq
    }

    /// The record that it is freed is not in a block yet.
    pub(crate) fn waits_for_record(&self) -> bool {
        self.state == SegmentState::Freeing && self.freed_seq == 0
    }
}

/// All segments by slot; slots are used again.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    list: Vec<Option<Segment>>,
    pub(crate) next_id: u64,
    /// Something may have become consumed since the last look.
    pub(crate) look: bool,
}

impl Segments {
    pub(crate) fn add(&mut self, segment: Segment) -> u32 {
        self.next_id = self.next_id.max(segment.id.0 + 1);
        match self.list.iter().position(Option::is_none) {
            Some(slot) => {
                self.list[slot] = Some(segment);
                slot as u32
            }
            None => {
                self.list.push(Some(segment));
                (self.list.len() - 1) as u32
            }
        }
    }

    pub(crate) fn new_id(&mut self) -> SegmentId {
        let id = SegmentId(self.next_id.max(1));
        self.next_id = id.0 + 1;
        id
    }

    pub(crate) fn get(&self, slot: u32) -> &Segment {
        self.list[slot as usize]
            .as_ref()
            .expect("a segment slot in use")
    }

    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut Segment {
        self.list[slot as usize]
            .as_mut()
            .expect("a segment slot in use")
    }

    pub(crate) fn remove(&mut self, slot: u32) {
        self.list[slot as usize] = None;
    }

    /// Slot and segment of all there are.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Segment)> + '_ {
        self.list
            .iter()
            .enumerate()
            .filter_map(|(slot, segment)| Some((slot as u32, segment.as_ref()?)))
    }

    /// Numbers of the segments that must be there at the next open.
    pub(crate) fn live_ids(&self) -> impl Iterator<Item = u64> + '_ {
        self.iter()
            .filter(|(_, segment)| match segment.state {
                SegmentState::Sealed => true,
                SegmentState::Active => segment.first_seq != 0,
                SegmentState::Freeing => segment.waits_for_record(),
                _ => false,
            })
            .map(|(_, segment)| segment.id.0)
    }

    pub(crate) fn count(&self, state: SegmentState) -> usize {
        self.iter()
            .filter(|(_, segment)| segment.state == state)
            .count()
    }

    /// The ready spare with the lowest number.
    pub(crate) fn ready(&self) -> Option<u32> {
        self.iter()
            .filter(|(_, segment)| segment.state == SegmentState::Ready)
            .min_by_key(|(_, segment)| segment.id)
            .map(|(slot, _)| slot)
    }

    /// Live entries of a segment become fewer.
    #[inline]
    pub(crate) fn consumed(&mut self, slot: u32, entries: u64) {
        let segment = self.get_mut(slot);
        segment.live -= entries;
        if segment.live == 0 {
            self.look = true;
        }
    }

    /// The slot of a segment whose entries are all consumed.
    pub(crate) fn find_consumed(&mut self, floor_seq: u64) -> Option<u32> {
        let found = self
            .iter()
            .find(|(_, segment)| segment.is_consumed(floor_seq))
            .map(|(slot, _)| slot);
        if found.is_none() {
            self.look = false;
        }
        found
    }

    /// Numbers that must not be given to new segments.
    pub(crate) fn keep_clear_of(&mut self, ids: impl Iterator<Item = u64>) {
        for id in ids {
            self.next_id = self.next_id.max(id.saturating_add(1));
        }
    }
}
