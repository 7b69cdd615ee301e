//! One lane of the inbox: a slot-sequence ring for any number of pushers and one popper.
//!
//! Positions go up in steps of two. A slot at position `p` is free while its sequence is `p`,
//! published at `p + 1`, and free for the next lap at `p + 2 * capacity`. The odd number keeps
//! "published" apart from "free" even in a ring of one, and leaves the lowest bit of the tail to say
//! that the lane is closed: a claim is a compare-exchange on the tail, so after `close` none can
//! succeed, and what is claimed by then is all there will ever be.

use crate::sync::{AtomicUsize, CachePadded, Ordering, UnsafeCell, check_capacity};

const STEP: usize = 2;
const CLOSED: usize = 1;

/// Slots of one claim at most: a pusher preempted between claim and publish holds back all behind
/// its claim (`spec/runtime.md` 5.6).
const CLAIM_MAX: usize = 16;

struct Slot<T> {
    sequence: AtomicUsize,
    /// `None` while the slot is free. A published `None` is a place whose pusher gave no value (its
    /// iterator ended early or panicked); the popper skips it.
    value: UnsafeCell<Option<T>>,
}

/// The shared part of a lane.
pub(crate) struct Mpsc<T> {
    slots: Box<[Slot<T>]>,
    /// Next position to claim, and the closed bit.
    tail: CachePadded<AtomicUsize>,
    /// Next position to pop; for `len` only, the popper trusts its own [`Head`].
    head: CachePadded<AtomicUsize>,
}

/// The popper's position: one per lane, never cloned. Holding it is the right to pop.
pub(crate) struct Head {
    next: usize,
}

// SAFETY: values move from pushers to the popper, which T: Send allows. A slot is touched by the
// thread that owns it by sequence only.
unsafe impl<T: Send> Send for Mpsc<T> {}
// SAFETY: as above; all else in it is atomic.
unsafe impl<T: Send> Sync for Mpsc<T> {}

impl<T> Mpsc<T> {
    /// An empty lane whose first position is `start` items from zero, and the right to pop from it.
    pub(crate) fn new(capacity: usize, start: usize) -> (Mpsc<T>, Head) {
        check_capacity(capacity);
        let start = start.wrapping_mul(STEP);
        let mut slots: Vec<Slot<T>> = (0..capacity)
            .map(|i| {
                // The first position, from `start` on, that falls on slot i.
                let first = (start / STEP) & (capacity - 1);
                let steps = i.wrapping_sub(first) & (capacity - 1);
                let sequence = start.wrapping_add(steps * STEP);
                Slot {
                    sequence: AtomicUsize::new(sequence),
                    value: UnsafeCell::new(None),
                }
            })
            .collect();
        slots.shrink_to_fit();
        let lane = Mpsc {
            slots: slots.into_boxed_slice(),
            tail: CachePadded::new(AtomicUsize::new(start)),
            head: CachePadded::new(AtomicUsize::new(start)),
        };
        (lane, Head { next: start })
    }

    /// Pushes one value; gives it back if the lane is full or closed.
    #[inline]
    pub(crate) fn push(&self, value: T) -> Result<(), T> {
        match self.claim(1) {
            Some(mut claim) => {
                claim.publish(Some(value));
                Ok(())
            }
            None => Err(value),
        }
    }

    /// Pushes from `values` until it ends or the lane is full or closed; returns how many went.
    pub(crate) fn push_batch(&self, values: &mut impl ExactSizeIterator<Item = T>) -> usize {
        let mut count = 0;
        while let Some(mut claim) = self.claim(values.len()) {
            while claim.next != claim.end {
                // An early end drops the claim, which publishes the rest as places without a value.
                let Some(value) = values.next() else {
                    return count;
                };
                claim.publish(Some(value));
                count += 1;
            }
        }
        count
    }

    /// Claims up to `wanted` places (16 at most); `None` if that is 0, or full, or closed.
    #[inline(always)]
    pub(crate) fn claim(&self, wanted: usize) -> Option<Claim<'_, T>> {
        let mut count = wanted.min(CLAIM_MAX).min(self.slots.len());
        let mut tail = self.tail.load(Ordering::Relaxed);
        while count > 0 && tail & CLOSED == 0 {
            // The last place decides: slots are freed in order. Acquire: the popper is done with
            // it and with all before it.
            let last = tail.wrapping_add(STEP * (count - 1));
            let sequence = self.slot(last).sequence.load(Ordering::Acquire);
            match sequence.wrapping_sub(last).cast_signed() {
                0 => {
                    let end = tail.wrapping_add(STEP * count);
                    // Relaxed: the values travel by the sequences of their slots.
                    match self.tail.compare_exchange_weak(
                        tail,
                        end,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    ) {
                        Ok(_) => {
                            return Some(Claim {
                                lane: self,
                                next: tail,
                                end,
                            });
                        }
                        Err(now) => tail = now,
                    }
                }
                // Still a lap behind: not so many places are free.
                ..0 => count /= 2,
                // Somebody else has claimed it: our tail was old.
                1.. => tail = self.tail.load(Ordering::Relaxed),
            }
        }
        None
    }

    /// The oldest value, or `None` if the oldest place is not published.
    #[inline]
    pub(crate) fn pop(&self, head: &mut Head) -> Option<T> {
        while self.waits(head) {
            let value = self.take(head);
            if value.is_some() {
                return value;
            }
        }
        None
    }

    /// The value of the oldest place, which is published.
    #[inline(always)]
    fn take(&self, head: &mut Head) -> Option<T> {
        let slot = self.slot(head.next);
        let value = slot.value.with_mut(|value| {
            // SAFETY: published (Acquire, in `waits`) and not yet freed: the popper's, and the one
            // Head of this lane is borrowed mutably.
            let value = unsafe { &mut *value };
            value.take()
        });
        // Release: we are done with the slot before a pusher may write it.
        let freed = head.next.wrapping_add(STEP * self.slots.len());
        slot.sequence.store(freed, Ordering::Release);
        head.next = head.next.wrapping_add(STEP);
        self.head.store(head.next, Ordering::Release);
        value
    }

    /// Whether the oldest place is published (Acquire).
    #[inline(always)]
    pub(crate) fn waits(&self, head: &Head) -> bool {
        let sequence = self.slot(head.next).sequence.load(Ordering::Acquire);
        sequence == head.next.wrapping_add(1)
    }

    /// Whether the oldest place is claimed and not published: its pusher was interrupted.
    pub(crate) fn stalled(&self, head: &Head) -> bool {
        !self.is_drained(head) && !self.waits(head)
    }

    /// Whether every place ever claimed was popped. Final once the lane is closed.
    pub(crate) fn is_drained(&self, head: &Head) -> bool {
        self.tail.load(Ordering::Acquire) & !CLOSED == head.next
    }

    /// Places claimed and not popped.
    pub(crate) fn len(&self) -> usize {
        // Head first, with Acquire: the tail read after it is then not older than it.
        let head = self.head.load(Ordering::Acquire);
        let tail = self.tail.load(Ordering::Relaxed) & !CLOSED;
        (tail.wrapping_sub(head) / STEP).min(self.slots.len())
    }

    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn close(&self) {
        // AcqRel: who sees the bit sees what came before the close.
        self.tail.fetch_or(CLOSED, Ordering::AcqRel);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.tail.load(Ordering::Acquire) & CLOSED != 0
    }

    #[inline(always)]
    fn slot(&self, position: usize) -> &Slot<T> {
        // `len() - 1` is the mask, and tells the compiler that the index is in bounds.
        &self.slots[(position / STEP) & (self.slots.len() - 1)]
    }
}

/// Claimed places that are not published yet. Dropping it publishes them without a value, so that
/// whatever happens to the pusher, the lane goes on.
pub(crate) struct Claim<'a, T> {
    lane: &'a Mpsc<T>,
    next: usize,
    end: usize,
}

impl<T> Claim<'_, T> {
    /// Fills and publishes the next claimed place.
    #[inline(always)]
    pub(crate) fn publish(&mut self, value: Option<T>) {
        debug_assert_ne!(self.next, self.end, "publishes no more than was claimed");
        let slot = self.lane.slot(self.next);
        slot.value.with_mut(|place| {
            // SAFETY: claimed by us and not yet published. What is overwritten is a None, which
            // needs no drop.
            unsafe { place.write(value) };
        });
        // Release: the value before the sequence that shows it.
        slot.sequence
            .store(self.next.wrapping_add(1), Ordering::Release);
        self.next = self.next.wrapping_add(STEP);
    }
}

impl<T> Drop for Claim<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        while self.next != self.end {
            self.publish(None);
        }
    }
}
