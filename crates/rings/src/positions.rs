//! Head and tail of a ring with one pusher and one popper; `spsc` and `slots` differ in slots only.
//!
//! Positions run freely and wrap: `tail - head` (wrapping) is the length, so all `capacity` slots
//! are usable. Each side keeps a copy of the other's position and looks again only when the copy
//! says full or empty.

use crate::sync::{AtomicBool, AtomicUsize, CachePadded, Ordering};

/// The shared part. Each field is written by one side (`closed` by either, once).
pub(crate) struct Positions {
    /// Next position to push. Written by the pusher; Release pairs with `Reader::look`.
    tail: CachePadded<AtomicUsize>,
    /// Next position to pop. Written by the popper; Release pairs with `Writer::look`.
    head: CachePadded<AtomicUsize>,
    /// One of the two ends is gone.
    closed: CachePadded<AtomicBool>,
}

impl Positions {
    /// An empty ring whose positions begin at `start`, and its two sides.
    pub(crate) fn new(capacity: usize, start: usize) -> (Positions, Writer, Reader) {
        let positions = Positions {
            tail: CachePadded::new(AtomicUsize::new(start)),
            head: CachePadded::new(AtomicUsize::new(start)),
            closed: CachePadded::new(AtomicBool::new(false)),
        };
        let writer = Writer {
            next: start,
            head_seen: start,
            capacity,
        };
        let reader = Reader {
            next: start,
            tail_seen: start,
        };
        (positions, writer, reader)
    }

    pub(crate) fn close(&self) {
        // Release: who sees the flag sees all that was published before it.
        self.closed.store(true, Ordering::Release);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Positions pushed and not popped, once both sides are gone.
    pub(crate) fn left(&self) -> (usize, usize) {
        // Relaxed: dropping the last handle has synchronised with both sides.
        (
            self.head.load(Ordering::Relaxed),
            self.tail.load(Ordering::Relaxed),
        )
    }
}

/// The pusher's side: one per ring, never cloned.
pub(crate) struct Writer {
    next: usize,
    head_seen: usize,
    capacity: usize,
}

impl Writer {
    #[inline(always)]
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Free slots by the copy of head; looks at head only if that says none.
    #[inline(always)]
    pub(crate) fn room(&mut self, positions: &Positions) -> usize {
        let room = self.room_seen();
        if room == 0 {
            self.look(positions)
        } else {
            room
        }
    }

    /// Free slots right now.
    pub(crate) fn look(&mut self, positions: &Positions) -> usize {
        // Acquire: the popper is done with the slots it gives back.
        self.head_seen = positions.head.load(Ordering::Acquire);
        self.room_seen()
    }

    /// The slot at `next` is written; it shows with the next `publish`.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    #[inline(always)]
    pub(crate) fn publish(&self, positions: &Positions) {
        // Release: what was written to the slots comes before the position that shows them.
        positions.tail.store(self.next, Ordering::Release);
    }

    #[inline(always)]
    fn room_seen(&self) -> usize {
        self.capacity
            .wrapping_sub(self.next.wrapping_sub(self.head_seen))
    }
}

/// The popper's side: one per ring, never cloned.
pub(crate) struct Reader {
    next: usize,
    tail_seen: usize,
}

impl Reader {
    #[inline(always)]
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    /// Published values by the copy of tail; looks at tail only if that says none.
    #[inline(always)]
    pub(crate) fn waiting(&mut self, positions: &Positions) -> usize {
        if self.tail_seen == self.next {
            // Acquire: the values come with the position.
            self.tail_seen = positions.tail.load(Ordering::Acquire);
        }
        self.tail_seen.wrapping_sub(self.next)
    }

    /// Published values right now.
    #[inline]
    pub(crate) fn len(&self, positions: &Positions) -> usize {
        positions
            .tail
            .load(Ordering::Acquire)
            .wrapping_sub(self.next)
    }

    /// The slot at `next` is no longer needed; the pusher learns it with the next `release`.
    #[inline(always)]
    pub(crate) fn advance(&mut self) {
        self.next = self.next.wrapping_add(1);
    }

    #[inline(always)]
    pub(crate) fn release(&self, positions: &Positions) {
        // Release: we are done with the slots before the pusher may write them.
        positions.head.store(self.next, Ordering::Release);
    }
}
