//! A ring in place for one pusher and one popper: slots are never moved, so a `Vec` inside keeps
//! its buffer from lap to lap.

use std::fmt;

use crate::positions::{Positions, Reader, Writer};
use crate::sync::{Arc, Full, UnsafeCell, check_capacity};

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

pub(crate) fn starting_at<T: Default>(
    capacity: usize,
    start: usize,
) -> (SlotSender<T>, SlotReceiver<T>) {
    check_capacity(capacity);
    let (positions, writer, reader) = Positions::new(capacity, start);
    let slots = (0..capacity)
        .map(|_| UnsafeCell::new(T::default()))
        .collect();
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
    slots: Box<[UnsafeCell<T>]>,
    positions: Positions,
}

// SAFETY: a slot is reached by `&mut` from the thread that owns it by position, which T: Send
// allows; never by reference from both, so no T: Sync is needed.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above; all else in it is atomic.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    #[inline(always)]
    fn slot(&self, position: usize) -> &UnsafeCell<T> {
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

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::rc::Rc;

    use proptest::prelude::*;

    use super::*;

    fn set<T>(value: T) -> impl FnOnce(&mut T) {
        move |slot| *slot = value
    }

    #[test]
    fn slots_keep_their_buffers_from_lap_to_lap() {
        let (mut sender, mut receiver) = slots::<Vec<u8>>(2);
        let mut buffers = Vec::new();
        for lap in 0..3 {
            for _ in 0..2 {
                let address = sender.push_with(|body| {
                    body.clear();
                    body.extend_from_slice(&[lap; 100]);
                    body.as_ptr().addr()
                });
                buffers.push(address.unwrap());
            }
            assert_eq!(
                sender.push_with(|_| unreachable!("the ring is full")),
                Err(Full(()))
            );
            for _ in 0..2 {
                receiver
                    .pop_with(|body| assert_eq!(body, &[lap; 100]))
                    .unwrap();
            }
        }
        assert_eq!(buffers[..2], buffers[2..4]);
        assert_eq!(buffers[..2], buffers[4..]);
    }

    #[test]
    fn a_push_that_panics_shows_nothing() {
        let (mut sender, mut receiver) = slots::<u32>(1);
        let push = AssertUnwindSafe(|| sender.push_with(|_| panic!("on purpose")));
        assert!(catch_unwind(push).is_err());
        assert!(receiver.is_empty());
        assert_eq!(receiver.pop_with(|_| ()), None);
        sender.push_with(set(5)).unwrap();
        assert_eq!(receiver.pop_with(|value| *value), Some(5));
    }

    #[test]
    fn a_pop_that_panics_leaves_the_slot_the_oldest() {
        let (mut sender, mut receiver) = slots::<u32>(2);
        sender.push_with(set(5)).unwrap();
        let pop = AssertUnwindSafe(|| receiver.pop_with(|_| panic!("on purpose")));
        assert!(catch_unwind(pop).is_err());
        assert_eq!((sender.free(), receiver.len()), (1, 1));
        assert_eq!(receiver.pop_with(|value| *value), Some(5));
    }

    #[test]
    fn each_end_knows_when_the_other_is_gone() {
        let (mut sender, mut receiver) = slots::<u32>(2);
        sender.push_with(set(5)).unwrap();
        assert!(!sender.is_closed() && !receiver.is_closed());
        drop(sender);
        assert!(receiver.is_closed());
        assert_eq!(receiver.pop_with(|value| *value), Some(5));
        let (sender, receiver) = slots::<u32>(2);
        drop(receiver);
        assert!(sender.is_closed());
    }

    #[test]
    fn two_threads_see_every_slot_once_and_in_order() {
        const COUNT: usize = 200_000;
        let (mut sender, mut receiver) = starting_at::<Vec<usize>>(4, usize::MAX - 2);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for value in 0..COUNT {
                    while sender
                        .push_with(|slot| slot.resize(value % 7 + 1, value))
                        .is_err()
                    {
                        std::thread::yield_now();
                    }
                }
            });
            let mut expected = 0;
            while expected < COUNT {
                let seen = receiver.pop_with(|slot| {
                    assert_eq!(*slot, vec![expected; expected % 7 + 1]);
                    slot.clear();
                });
                if seen.is_some() {
                    expected += 1;
                } else {
                    std::thread::yield_now();
                }
            }
        });
    }

    proptest! {
        #[test]
        fn a_ring_of_slots_behaves_like_a_deque(
            exponent in 0..4u32,
            back in prop_oneof![Just(2usize), Just(10), 0..40usize],
            pushes in proptest::collection::vec(any::<bool>(), 1..300),
        ) {
            let capacity = 1usize << exponent;
            let token = Rc::new(());
            let (mut sender, mut receiver) =
                starting_at::<Option<(usize, Rc<()>)>>(capacity, usize::MAX - back);
            let mut model = VecDeque::new();
            for (serial, push) in pushes.into_iter().enumerate() {
                if push {
                    let item = Some((serial, Rc::clone(&token)));
                    let pushed = sender.push_with(set(item));
                    prop_assert_eq!(pushed.is_ok(), model.len() < capacity);
                    if pushed.is_ok() {
                        model.push_back(serial);
                    }
                } else {
                    let popped = receiver.pop_with(|slot| slot.as_ref().map(|item| item.0));
                    prop_assert_eq!(popped, model.pop_front().map(Some));
                }
                prop_assert_eq!(receiver.len(), model.len());
                prop_assert_eq!(receiver.is_empty(), model.is_empty());
                prop_assert_eq!(sender.free(), capacity - model.len());
                prop_assert!(Rc::strong_count(&token) <= capacity + 1);
            }
            drop(receiver);
            drop(sender);
            prop_assert_eq!(Rc::strong_count(&token), 1);
        }
    }
}
