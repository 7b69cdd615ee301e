//! The first segment of a log: in use at once, written through ahead of its tail.
//!
//! A sync over blocks that were never written takes twice as long (`spec/runtime.md` 3.1), but the
//! zeros of a whole segment take a second or more, and the first receipt would wait for them. So the
//! first segment is only allocated, and the zeros follow in pieces, a lead before the tail.
//!
//! A block never meets a piece: one that would reach the piece in flight waits for it, once; a tail
//! that fast takes the rest of the segment as it is. What a crash leaves is what any allocated segment
//! has behind its tail, zeros, so recovery knows nothing of this. A piece that fails ends it as well:
//! the rest is slower and not wrong.
use crate::commit::{Pending, Store};
use crate::op::{DiskError, DiskOpKind};
use crate::page::PAGE_BYTES;
use crate::segments::SegmentState;

/// One piece, the lead of the first, and so the most zeros that a block of a new log waits for: 5 ms
/// on the reference host. First segments that are no longer are written through at once.
pub(crate) const PIECE_BYTES: u64 = 256 << 10;

/// What is written through ahead of the tail.
#[derive(Debug)]
pub(crate) struct Ahead {
    slot: u32,
    /// Offset of the next piece, or of that in flight.
    from: u64,
    in_flight: bool,
    /// A block waits for the piece in flight.
    caught_up: bool,
}

impl Ahead {
    pub(crate) fn new(slot: u32) -> Ahead {
        Ahead {
            slot,
            from: PIECE_BYTES,
            in_flight: false,
            caught_up: false,
        }
    }

    pub(crate) fn is_of(&self, slot: u32) -> bool {
        self.slot == slot
    }
}

impl Store {
    /// Asks for the next piece if none is in flight.
    pub(crate) fn write_ahead(&mut self) {
        let Some(ahead) = &mut self.ahead else { return };
        let segment = self.segments.get(ahead.slot);
        if ahead.in_flight || segment.state == SegmentState::Coming || self.poisoned.is_some() {
            return;
        }
        let bytes = PIECE_BYTES.min(segment.bytes - ahead.from);
        if bytes == 0 {
            self.ahead = None;
            return;
        }
        ahead.in_flight = true;
        let kind = DiskOpKind::Prewrite {
            segment: segment.id,
            offset: ahead.from,
            bytes,
        };
        self.push_op(kind, Pending::Prewrite { bytes });
    }

    /// Whether a block of so many pages at the tail, or the seal (`None`), has to wait for the piece in
    /// flight.
    pub(crate) fn meets_zeros(&mut self, pages: Option<usize>) -> bool {
        let room = self.pages_before_zeros();
        let Some(ahead) = &mut self.ahead else {
            return false;
        };
        if pages.is_some_and(|pages| pages <= room) {
            return false;
        }
        if ahead.in_flight {
            ahead.caught_up = true;
            return true;
        }
        self.ahead = None;
        false
    }

    /// Pages between the tail and the piece in flight, or the next one.
    pub(crate) fn pages_before_zeros(&self) -> usize {
        let tail = self
            .active
            .as_ref()
            .map_or(0, |active| active.page as usize);
        let from = |ahead: &Ahead| (ahead.from / PAGE_BYTES as u64) as usize;
        self.ahead
            .as_ref()
            .map_or(usize::MAX, |ahead| from(ahead).saturating_sub(tail))
    }

    pub(crate) fn on_prewritten(&mut self, bytes: u64, result: &Result<usize, DiskError>) {
        if let Some(ahead) = &mut self.ahead {
            ahead.in_flight = false;
            ahead.from += bytes;
        }
        self.ahead
            .take_if(|ahead| ahead.caught_up || result.is_err());
    }
}
