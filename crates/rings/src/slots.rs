//! A ring in place for one pusher and one popper: slots are never moved, so a `Vec` inside keeps
//! its buffer from lap to lap.

use std::fmt;

use crate::positions::{Positions, Reader, Writer};
use crate::sync::{Arc, Cell, Full, check_capacity};

/// A ring of `capacity` slots, each `T::default()` at first, and its two ends.
///
/// A slot keeps whatever the two ends leave in it: the pusher finds what the popper left there one
/// lap ago.
///
/// # Panics
///
/// If `capacity` is not a power of two from 1 to 2^30.
pub fn slots<T: Default>(capacity: usize) -> (SlotSender<T>, SlotReceiver<T>) {
    starting_at(capacity, 0)
}

fn starting_at<T: Default>(capacity: usize, start: usize) -> (SlotSender<T>, SlotReceiver<T>) {
    check_capacity(capacity);
    let (positions, writer, reader) = Positions::new(capacity, start);
    let slots = (0..capacity).map(|_| Cell::new(T::default())).collect();
    let ring = Arc::new(Ring { slots, positions });
    (
        SlotSender {
            ring: Arc::clone(&ring),
            writer,
        },
        SlotReceiver { ring, reader },
    )
}

/// Slots from head up to tail are the popper's, all others the pusher's; all are initialised.
struct Ring<T> {
    slots: Box<[Cell<T>]>,
    positions: Positions,
}

// SAFETY: a slot is reached by `&mut` from the thread that owns it by position, which T: Send
// allows; never by reference from both, so no T: Sync is needed.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above; all else in it is atomic.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    #[inline(always)]
    fn slot(&self, position: usize) -> &Cell<T> {
        // `len() - 1` is the mask, and tells the compiler that the index is in bounds.
        &self.slots[position & (self.slots.len() - 1)]
    }
}

/// The pushing end. Dropping it closes the ring; what was pushed can still be popped.
pub struct SlotSender<T> {
    ring: Arc<Ring<T>>,
    writer: Writer,
}

impl<T> SlotSender<T> {
    /// Lets `f` write the next slot, then shows it. If `f` panics nothing is shown, and the next
    /// push finds the slot as `f` left it.
    ///
    /// # Errors
    ///
    /// [`Full`] if `capacity` slots are waiting; `f` was not called.
    #[inline]
    pub fn push_with<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> Result<R, Full<()>> {
        if self.writer.room(&self.ring.positions) == 0 {
            return Err(Full(()));
        }
        let result = self.ring.slot(self.writer.next()).with_mut(|slot| {
            // SAFETY: the slot at `next` is the pusher's: next - head < capacity, head was read
            // with Acquire, and a SlotSender cannot be cloned.
            f(unsafe { &mut *slot })
        });
        self.writer.advance();
        self.writer.publish(&self.ring.positions);
        Ok(result)
    }

    /// Slots free right now. Reads the receiver's cache line: ask once per batch.
    pub fn free(&mut self) -> usize {
        self.writer.look(&self.ring.positions)
    }

    /// Slots in the ring.
    pub fn capacity(&self) -> usize {
        self.writer.capacity()
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.ring.positions.is_closed()
    }
}

impl<T> Drop for SlotSender<T> {
    fn drop(&mut self) {
        self.ring.positions.close();
    }
}

impl<T> fmt::Debug for SlotSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotSender")
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// The popping end. Dropping it closes the ring.
pub struct SlotReceiver<T> {
    ring: Arc<Ring<T>>,
    reader: Reader,
}

impl<T> SlotReceiver<T> {
    /// Lets `f` use the oldest slot, then gives it back to the sender at once; `None` if nothing is
    /// published. If `f` panics the slot stays the oldest.
    #[inline]
    pub fn pop_with<R>(&mut self, f: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.reader.waiting(&self.ring.positions) == 0 {
            return None;
        }
        let result = self.ring.slot(self.reader.next()).with_mut(|slot| {
            // SAFETY: next < tail and tail was read with Acquire, so the slot is the popper's, and
            // a SlotReceiver cannot be cloned.
            f(unsafe { &mut *slot })
        });
        self.reader.advance();
        self.reader.release(&self.ring.positions);
        Some(result)
    }

    /// Whether nothing is published (an Acquire load: fit for the second look of a sleeper).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Slots published and not popped.
    #[inline]
    pub fn len(&self) -> usize {
        self.reader.len(&self.ring.positions)
    }

    /// Slots in the ring.
    pub fn capacity(&self) -> usize {
        self.ring.slots.len()
    }

    /// Whether the sender is gone. What it published before can still be popped: the ring has
    /// ended when this was true **before** a pop that found nothing.
    pub fn is_closed(&self) -> bool {
        self.ring.positions.is_closed()
    }
}

impl<T> Drop for SlotReceiver<T> {
    fn drop(&mut self) {
        self.ring.positions.close();
    }
}

impl<T> fmt::Debug for SlotReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotReceiver")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
