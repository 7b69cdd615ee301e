//! A ring by value for one pusher and one popper: deliveries, mesh.

use std::fmt;
use std::mem::MaybeUninit;

use crate::positions::{Positions, Reader, Writer};
use crate::sync::{Arc, Full, UnsafeCell, check_capacity};

/// Pops between two publications of head inside [`Receiver::pop_chunk`]: a slow closure must not
/// keep the pusher from the slots already freed.
const RELEASE_EVERY: usize = 16;

/// A ring that takes exactly `capacity` values, and its two ends.
///
/// The ends may go to other threads if the values may:
///
/// ```compile_fail,E0277
/// let (sender, _receiver) = pelton_rings::spsc::<std::rc::Rc<u8>>(2);
/// std::thread::scope(|scope| { scope.spawn(move || drop(sender)); });
/// ```
///
/// # Panics
///
/// If `capacity` is not a power of two from 1 to 2^30.
pub fn spsc<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    starting_at(capacity, 0)
}

pub(crate) fn starting_at<T>(capacity: usize, start: usize) -> (Sender<T>, Receiver<T>) {
    check_capacity(capacity);
    let (positions, writer, reader) = Positions::new(capacity, start);
    let slots = (0..capacity)
        .map(|_| UnsafeCell::new(MaybeUninit::uninit()))
        .collect();
    let ring = Arc::new(Ring { slots, positions });
    (
        Sender {
            ring: Arc::clone(&ring),
            writer,
        },
        Receiver { ring, reader },
    )
}

/// Slots from head up to tail hold a value; all others are uninitialised.
struct Ring<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    positions: Positions,
}

// SAFETY: values move from the thread of the `Sender` to that of the `Receiver`, which T: Send
// allows. A slot is touched by the side that owns it by position only, and never by reference from
// both: no T: Sync is needed.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above; all else in it is atomic.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    #[inline(always)]
    fn slot(&self, position: usize) -> &UnsafeCell<MaybeUninit<T>> {
        // `len() - 1` is the mask, and tells the compiler that the index is in bounds.
        &self.slots[position & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        let (mut position, tail) = self.positions.left();
        while position != tail {
            self.slot(position).with_mut(|slot| {
                // SAFETY: both ends are gone, so the slot is ours alone.
                let slot = unsafe { &mut *slot };
                // SAFETY: from head up to tail every slot was written and not read.
                unsafe { slot.assume_init_drop() };
            });
            position = position.wrapping_add(1);
        }
    }
}

/// The pushing end. Dropping it closes the ring; what was pushed can still be popped.
pub struct Sender<T> {
    ring: Arc<Ring<T>>,
    writer: Writer,
}

impl<T> Sender<T> {
    /// Pushes `value` and shows it at once.
    ///
    /// # Errors
    ///
    /// [`Full`] with the value if `capacity` values are waiting. A ring whose receiver is gone
    /// fills up too: ask [`is_closed`](Sender::is_closed).
    #[inline]
    pub fn push(&mut self, value: T) -> Result<(), Full<T>> {
        if self.writer.room(&self.ring.positions) == 0 {
            return Err(Full(value));
        }
        self.write(value);
        self.writer.publish(&self.ring.positions);
        Ok(())
    }

    /// Pushes from `values` until it ends or the ring is full, and shows all of them at once.
    /// Returns how many went; the rest stay in the iterator.
    ///
    /// If the iterator panics, what it gave before shows with the next push or the drop.
    pub fn push_chunk(&mut self, values: &mut impl Iterator<Item = T>) -> usize {
        let room = self.writer.look(&self.ring.positions);
        let mut count = 0;
        while count < room {
            let Some(value) = values.next() else { break };
            self.write(value);
            count += 1;
        }
        self.writer.publish(&self.ring.positions);
        count
    }

    /// Slots free right now. Reads the receiver's cache line: ask once per batch.
    pub fn free(&mut self) -> usize {
        self.writer.look(&self.ring.positions)
    }

    /// Values the ring can hold.
    pub fn capacity(&self) -> usize {
        self.writer.capacity()
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.ring.positions.is_closed()
    }

    #[inline(always)]
    fn write(&mut self, value: T) {
        self.ring.slot(self.writer.next()).with_mut(|slot| {
            // SAFETY: the slot at `next` is empty and ours: next - head < capacity, head was read
            // with Acquire, and a Sender cannot be cloned.
            unsafe { slot.write(MaybeUninit::new(value)) };
        });
        self.writer.advance();
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // A chunk cut short by a panic is not shown yet.
        self.writer.publish(&self.ring.positions);
        self.ring.positions.close();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("capacity", &self.capacity())
            .finish_non_exhaustive()
    }
}

/// The popping end. Dropping it closes the ring; values left are dropped with the sender.
pub struct Receiver<T> {
    ring: Arc<Ring<T>>,
    reader: Reader,
}

impl<T> Receiver<T> {
    /// The oldest value, or `None` if nothing is published.
    ///
    /// The slot is free for the sender at once, not after a batch: a delivery ring is only as big
    /// as its window, and the permit for the next entry may be granted right after this pop. The
    /// store goes to a line that the sender reads only when it believes the ring is full.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.reader.waiting(&self.ring.positions) == 0 {
            return None;
        }
        let value = self.read();
        self.reader.release(&self.ring.positions);
        Some(value)
    }

    /// Hands up to `max` values to `f`, oldest first; returns how many.
    ///
    /// If `f` panics, the value it was given is gone and all others are still in the ring.
    pub fn pop_chunk(&mut self, max: usize, mut f: impl FnMut(T)) -> usize {
        let mut count = 0;
        while count < max {
            let visit = self.reader.waiting(&self.ring.positions);
            let visit = visit.min(max - count).min(RELEASE_EVERY);
            if visit == 0 {
                break;
            }
            for _ in 0..visit {
                let value = self.read();
                f(value);
            }
            self.reader.release(&self.ring.positions);
            count += visit;
        }
        count
    }

    /// The oldest value, left in place.
    pub fn peek(&mut self) -> Option<&T> {
        if self.reader.waiting(&self.ring.positions) == 0 {
            return None;
        }
        Some(self.ring.slot(self.reader.next()).with(|slot| {
            // SAFETY: published and not popped, so the sender leaves it alone until we pop, which
            // the borrow of `self` prevents.
            let slot = unsafe { &*slot };
            // SAFETY: a published slot was written.
            unsafe { slot.assume_init_ref() }
        }))
    }

    /// Whether nothing is published (an Acquire load: fit for the second look of a sleeper).
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Values published and not popped.
    #[inline]
    pub fn len(&self) -> usize {
        self.reader.len(&self.ring.positions)
    }

    /// Values the ring can hold.
    pub fn capacity(&self) -> usize {
        self.ring.slots.len()
    }

    /// Whether the sender is gone. What it published before can still be popped: the ring has
    /// ended when this was true **before** a pop that found nothing.
    pub fn is_closed(&self) -> bool {
        self.ring.positions.is_closed()
    }

    #[inline(always)]
    fn read(&mut self) -> T {
        let value = self.ring.slot(self.reader.next()).with(|slot| {
            // SAFETY: next < tail and tail was read with Acquire, so the slot is written and ours;
            // `advance` below sees to it that it is read once.
            let slot = unsafe { slot.read() };
            // SAFETY: a published slot was written.
            unsafe { slot.assume_init() }
        });
        self.reader.advance();
        value
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // A chunk cut short by a panic has not said yet what it popped.
        self.reader.release(&self.ring.positions);
        self.ring.positions.close();
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
