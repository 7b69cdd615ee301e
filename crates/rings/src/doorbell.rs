//! Sleep and wake of a shard: {AWAKE, SLEEPING} on a cache line of its own.
//!
//! Waker: publish (Release), **fence**, look at the state. Sleeper: set the state, **fence**, look
//! at all it could be woken for. Of two sides that each write, fence and read, at least one sees
//! the other's write: either the waker sees SLEEPING or the sleeper sees the item. Without either
//! fence both can miss, and the models in `wake_models.rs` and the
//! mutants in `mutants.rs` show it.

use crate::sync::{AtomicU32, CachePadded, Ordering, fence};

const AWAKE: u32 = 0;
const SLEEPING: u32 = 1;

/// What a publisher has to do about the sleeper.
#[must_use = "a wake-up that nobody sends is a shard that sleeps for ever"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The shard sleeps and this caller is the one to wake it: write its eventfd.
    Needed,
    /// The shard is awake and will look, or somebody else wakes it.
    NotNeeded,
}

impl Wake {
    /// [`Wake::Needed`] if either is.
    pub fn or(self, other: Wake) -> Wake {
        if self == Wake::Needed { self } else { other }
    }
}

/// The doorbell of one sleeper; any number of threads ring.
#[derive(Debug)]
pub struct Doorbell(CachePadded<AtomicU32>);

impl Doorbell {
    /// A doorbell whose owner is awake.
    pub fn new() -> Doorbell {
        Doorbell(CachePadded::new(AtomicU32::new(AWAKE)))
    }

    /// To be called after **every** publish (or once after the last of a batch), never "only if the
    /// ring looked empty": an item published behind a claimed slot would be lost.
    #[inline]
    pub fn ring(&self) -> Wake {
        // Partner: the fence of `announce`.
        fence(Ordering::SeqCst);
        self.ring_fenced()
    }

    /// The second half of `ring`, for a caller whose own fence lies after its publish.
    #[inline(always)]
    pub(crate) fn ring_fenced(&self) -> Wake {
        if self.0.load(Ordering::Relaxed) == SLEEPING
            && self.0.swap(AWAKE, Ordering::AcqRel) == SLEEPING
        {
            return Wake::Needed;
        }
        Wake::NotNeeded
    }

    /// The owner is about to sleep. It must now look **again** at everything that can wake it, and
    /// call [`disarm`](Doorbell::disarm) instead of sleeping if it finds something.
    ///
    /// A swap, not a store: a store would be right, but loom then reports a lost wake-up that
    /// cannot happen, and the swap costs one RMW per sleep.
    #[inline]
    pub fn announce(&self) {
        self.0.swap(SLEEPING, Ordering::AcqRel);
        // Partner: the fence of `ring`.
        fence(Ordering::SeqCst);
    }

    /// The owner is awake (after its sleep, or because the second look found something).
    #[inline]
    pub fn disarm(&self) {
        self.0.swap(AWAKE, Ordering::AcqRel);
    }

    /// Whether the owner sleeps or is about to; for reports, not for decisions.
    pub fn is_announced(&self) -> bool {
        self.0.load(Ordering::Relaxed) == SLEEPING
    }
}

impl Default for Doorbell {
    fn default() -> Doorbell {
        Doorbell::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_of_many_rings_wakes_a_sleeper_and_none_an_owner_awake() {
        let bell = Doorbell::default();
        assert_eq!(bell.ring(), Wake::NotNeeded);
        bell.announce();
        assert!(bell.is_announced());
        assert_eq!((bell.ring(), bell.ring()), (Wake::Needed, Wake::NotNeeded));
        bell.announce();
        bell.disarm();
        assert!(!bell.is_announced());
        assert_eq!(bell.ring(), Wake::NotNeeded);
    }

    #[test]
    fn a_batch_of_publishes_needs_a_wake_if_one_of_them_does() {
        assert_eq!(Wake::Needed.or(Wake::NotNeeded), Wake::Needed);
        assert_eq!(Wake::NotNeeded.or(Wake::Needed), Wake::Needed);
        assert_eq!(Wake::NotNeeded.or(Wake::NotNeeded), Wake::NotNeeded);
    }

    #[test]
    fn the_state_has_its_cache_line_alone() {
        assert_eq!((size_of::<Doorbell>(), align_of::<Doorbell>()), (128, 128));
    }
}
