//! The inbox of a shard: a control and a data lane for any number of pushers, one doorbell.

use std::collections::VecDeque;
use std::fmt;

use crate::credit::{Credit, Lane};
use crate::doorbell::{Doorbell, Wake};
use crate::mpsc::{Head, Mpsc};
use crate::sync::{Arc, Full};

/// Slots of a shard's control lane.
pub const CONTROL_LANE_SLOTS: usize = 256;
/// Slots of a shard's data lane.
pub const DATA_LANE_SLOTS: usize = 16_384;

const _: () = assert!(CONTROL_LANE_SLOTS.is_power_of_two() && DATA_LANE_SLOTS.is_power_of_two());

/// An inbox whose lanes take exactly `control` and `data` items, and its one popping end.
///
/// # Panics
///
/// If a capacity is not a power of two from 1 to 2^30.
pub fn priority_ring<C, D>(
    control: usize,
    data: usize,
) -> (PriorityRing<C, D>, PriorityReceiver<C, D>) {
    starting_at(control, data, 0)
}

pub(crate) fn starting_at<C, D>(
    control: usize,
    data: usize,
    start: usize,
) -> (PriorityRing<C, D>, PriorityReceiver<C, D>) {
    let (control, control_head) = Mpsc::new(control, start);
    let (data, data_head) = Mpsc::new(data, start);
    let inbox = Arc::new(Inbox {
        control,
        data,
        doorbell: Doorbell::new(),
    });
    let ring = PriorityRing {
        inbox: Arc::clone(&inbox),
    };
    let credit = Credit::new();
    (
        ring,
        PriorityReceiver {
            inbox,
            control_head,
            data_head,
            credit,
        },
    )
}

struct Inbox<C, D> {
    control: Mpsc<C>,
    data: Mpsc<D>,
    doorbell: Doorbell,
}

/// The pushing end; clones push into the same inbox.
///
/// A push never blocks, spins or allocates. It ends with the wake check: on [`Wake::Needed`] the
/// caller writes the shard's eventfd.
pub struct PriorityRing<C, D> {
    inbox: Arc<Inbox<C, D>>,
}

impl<C, D> PriorityRing<C, D> {
    /// Pushes a control item. No amount of data takes a control slot.
    ///
    /// # Errors
    ///
    /// [`Full`] with the item if the lane is full, or [closed](PriorityRing::is_closed).
    #[inline]
    pub fn push_control(&self, item: C) -> Result<Wake, Full<C>> {
        self.inbox.control.push(item).map_err(Full)?;
        Ok(self.inbox.doorbell.ring())
    }

    /// Pushes a data item.
    ///
    /// # Errors
    ///
    /// [`Full`] with the item if the lane is full, or [closed](PriorityRing::is_closed).
    #[inline]
    pub fn push_data(&self, item: D) -> Result<Wake, Full<D>> {
        self.inbox.data.push(item).map_err(Full)?;
        Ok(self.inbox.doorbell.ring())
    }

    /// Pushes data from `items` until it ends or the lane is full or closed, at most 16 places per
    /// claim, one wake check for all. Returns how many went; the rest stay in the iterator.
    ///
    /// `items` runs between claim and publish, where a delay holds back everybody behind: it should
    /// be a plain hand-over of what already exists. If it ends before its `len()` or panics, the
    /// places it leaves are skipped; after a panic no wake-up was decided.
    pub fn push_data_batch(&self, items: &mut impl ExactSizeIterator<Item = D>) -> (usize, Wake) {
        let count = self.inbox.data.push_batch(items);
        (
            count,
            if count == 0 {
                Wake::NotNeeded
            } else {
                self.inbox.doorbell.ring()
            },
        )
    }

    /// [`push_data_batch`](PriorityRing::push_data_batch) from the front of a list; what does not
    /// go stays in it, in order.
    pub fn push_data_list(&self, items: &mut VecDeque<D>) -> (usize, Wake) {
        self.push_data_batch(&mut Front(items))
    }

    /// The doorbell of the shard that pops from here; other sources of work ring it too.
    pub fn doorbell(&self) -> &Doorbell {
        &self.inbox.doorbell
    }

    /// Items in both lanes, those claimed and not yet published included.
    pub fn len(&self) -> usize {
        self.control_len() + self.data_len()
    }

    /// Whether both lanes are empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Items in the control lane.
    pub fn control_len(&self) -> usize {
        self.inbox.control.len()
    }

    /// Items in the data lane.
    pub fn data_len(&self) -> usize {
        self.inbox.data.len()
    }

    /// Items the two lanes can hold: control, data.
    pub fn capacity(&self) -> (usize, usize) {
        (self.inbox.control.capacity(), self.inbox.data.capacity())
    }

    /// Refuses every later push. A push that has claimed its place is not undone: the receiver has
    /// seen all of them when it [`is_drained`](PriorityReceiver::is_drained). Ring the doorbell
    /// after it if the shard has to notice.
    pub fn close(&self) {
        self.inbox.close();
    }

    /// Whether pushes are refused, be it by [`close`](PriorityRing::close) or because the receiver
    /// is gone.
    pub fn is_closed(&self) -> bool {
        self.inbox.is_closed()
    }
}

#[cfg(all(test, not(loom)))]
impl<C, D> PriorityRing<C, D> {
    /// A pusher of data that stops between claim and publish.
    pub(crate) fn claim_data(&self, wanted: usize) -> Option<crate::mpsc::Claim<'_, D>> {
        self.inbox.data.claim(wanted)
    }
}

impl<C, D> Inbox<C, D> {
    fn close(&self) {
        self.control.close();
        self.data.close();
    }

    fn is_closed(&self) -> bool {
        // The last one closed.
        self.data.is_closed()
    }
}

impl<C, D> Clone for PriorityRing<C, D> {
    fn clone(&self) -> PriorityRing<C, D> {
        PriorityRing {
            inbox: Arc::clone(&self.inbox),
        }
    }
}

impl<C, D> fmt::Debug for PriorityRing<C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PriorityRing")
            .field("control_len", &self.control_len())
            .field("data_len", &self.data_len())
            .finish_non_exhaustive()
    }
}

/// The front of a list as an iterator that takes only what is asked for; `drain` would lose the rest.
struct Front<'a, T>(&'a mut VecDeque<T>);

impl<T> Iterator for Front<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        self.0.pop_front()
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.0.len(), Some(self.0.len()))
    }
}

impl<T> ExactSizeIterator for Front<'_, T> {}

/// What [`PriorityReceiver::pop`] chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item<C, D> {
    /// From the control lane.
    Control(C),
    /// From the data lane.
    Data(D),
}

/// The popping end, owned by the shard. Dropping it closes the inbox.
pub struct PriorityReceiver<C, D> {
    inbox: Arc<Inbox<C, D>>,
    control_head: Head,
    data_head: Head,
    credit: Credit,
}

impl<C, D> PriorityReceiver<C, D> {
    /// The oldest control item. Does not touch the credit.
    #[inline]
    pub fn pop_control(&mut self) -> Option<C> {
        self.inbox.control.pop(&mut self.control_head)
    }

    /// The oldest data item. Does not touch the credit.
    #[inline]
    pub fn pop_data(&mut self) -> Option<D> {
        self.inbox.data.pop(&mut self.data_head)
    }

    /// The next item by the [`Credit`] rule. A shard that has more in its lanes than these two
    /// rings keeps a credit of its own and pops lane by lane.
    #[inline]
    pub fn pop(&mut self) -> Option<Item<C, D>> {
        match self
            .credit
            .choose(self.control_waits(), self.data_waits())?
        {
            Lane::Control => self.pop_control().map(Item::Control),
            Lane::Data => self.pop_data().map(Item::Data),
        }
    }

    /// Whether the head of the control lane is published: one Acquire load.
    #[inline]
    pub fn control_waits(&self) -> bool {
        self.inbox.control.waits(&self.control_head)
    }

    /// Whether the head of the data lane is published: one Acquire load.
    #[inline]
    pub fn data_waits(&self) -> bool {
        self.inbox.data.waits(&self.data_head)
    }

    /// Whether either lane has something to pop: the second look of a sleeper. A claimed slot at
    /// the head does not count; its pusher rings once it is published.
    #[inline]
    pub fn has_published(&self) -> bool {
        self.control_waits() || self.data_waits()
    }

    /// Items in the control lane, those claimed and not yet published included.
    pub fn control_len(&self) -> usize {
        self.inbox.control.len()
    }

    /// Items in the data lane, those claimed and not yet published included.
    pub fn data_len(&self) -> usize {
        self.inbox.data.len()
    }

    /// The credit of [`pop`](PriorityReceiver::pop).
    pub fn credit(&self) -> &Credit {
        &self.credit
    }

    /// The doorbell that every push rings.
    pub fn doorbell(&self) -> &Doorbell {
        &self.inbox.doorbell
    }

    /// Whether the head slot of a lane is claimed and not published: a pusher was interrupted
    /// between the two. The lane stands still until it goes on; the other lane does not.
    pub fn stalled(&self) -> bool {
        self.inbox.control.stalled(&self.control_head) || self.inbox.data.stalled(&self.data_head)
    }

    /// Refuses every later push, like [`PriorityRing::close`].
    pub fn close(&self) {
        self.inbox.close();
    }

    /// Whether pushes are refused.
    pub fn is_closed(&self) -> bool {
        self.inbox.is_closed()
    }

    /// Whether everything ever claimed was popped, in both lanes. After a close this is final, so
    /// popped and refused add up to what was offered.
    pub fn is_drained(&self) -> bool {
        self.inbox.control.is_drained(&self.control_head)
            && self.inbox.data.is_drained(&self.data_head)
    }
}

impl<C, D> Drop for PriorityReceiver<C, D> {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl<C, D> fmt::Debug for PriorityReceiver<C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PriorityReceiver")
            .field("control_len", &self.control_len())
            .field("data_len", &self.data_len())
            .field("credit", &self.credit.level())
            .finish_non_exhaustive()
    }
}
