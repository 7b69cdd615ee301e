//! What a shard tells a producer or consumer handle outside their rings: state, and a wake-up.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};
use std::task::Waker;

use super::user_code::UserWaker;

/// Whether a producer may publish, as its shard last said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProducerState {
    /// Publishes are taken.
    Open,
    /// The disk is full: publishes are refused until acks free a segment or space is made.
    DiskFull,
    /// As `DiskFull`, but it is not for want of space that the log can make no segment: out of
    /// descriptors, say. The shard's notes say why.
    NoSegment,
    /// A write or sync failed: nothing is taken until the engine is opened again. See
    /// [`ProducerSignal::reason`].
    Poisoned,
    /// The topic was terminated: nothing is taken any more.
    Terminated,
    /// Another producer has taken the topic for itself: nothing of this one is taken any more.
    Fenced,
    /// The engine stops: nothing new is taken, receipts of what was taken still come.
    Stopping,
    /// Nothing more comes: receipts that are still pending stay unknown.
    Closed,
}

impl ProducerState {
    const ALL: [ProducerState; 8] = [
        ProducerState::Open,
        ProducerState::DiskFull,
        ProducerState::NoSegment,
        ProducerState::Poisoned,
        ProducerState::Terminated,
        ProducerState::Fenced,
        ProducerState::Stopping,
        ProducerState::Closed,
    ];
}

/// Shared by a producer handle, its receipts and its shard. One handle waits on it at a time.
#[derive(Debug, Default)]
pub struct ProducerSignal {
    state: AtomicU8,
    reason: OnceLock<String>,
    space: Bell,
    progress: Bell,
}

impl ProducerSignal {
    /// An open one.
    #[must_use]
    pub fn new() -> ProducerSignal {
        ProducerSignal::default()
    }

    /// Whether publishes are taken.
    #[must_use]
    pub fn state(&self) -> ProducerState {
        ProducerState::ALL[usize::from(self.state.load(Ordering::Acquire))]
    }

    /// Why the state is [`ProducerState::Poisoned`].
    #[must_use]
    pub fn reason(&self) -> Option<&str> {
        self.reason.get().map(String::as_str)
    }

    /// Asks for `waker` once when the shard has freed ring space or the state changed. The caller
    /// must look at ring and state again after this call and before it sleeps.
    pub fn wait_for_space(&self, waker: &Waker) {
        self.space.ask(waker);
    }

    /// Asks for `waker` once when receipts of this producer moved or the state changed. The caller
    /// must look again after this call and before it sleeps.
    pub fn wait_for_progress(&self, waker: &Waker) {
        self.progress.ask(waker);
    }

    /// After pops and a `fence(SeqCst)`.
    pub(crate) fn space_freed(&self) {
        self.space.ring();
    }

    /// After receipts were completed and a `fence(SeqCst)`.
    pub(crate) fn progressed(&self) {
        self.progress.ring();
    }

    /// Changes the state and wakes whoever waits. `Terminated` and what comes behind it are never left
    /// for an earlier state.
    pub(crate) fn set(&self, state: ProducerState, reason: Option<&str>) {
        if let Some(text) = reason {
            // Only the first reason is kept: later failures follow from it.
            let _ = self.reason.set(text.to_owned());
        }
        let now = self.state();
        let ends = now as u8 >= ProducerState::Terminated as u8;
        if !(ends && (state as u8) < (now as u8)) {
            self.state.store(state as u8, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        self.space.ring();
        self.progress.ring();
    }
}

/// Why a consumer gets nothing more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// The handle asked for it.
    Asked,
    /// The engine stopped.
    EngineStopped,
    /// Its handler panicked; what it held is delivered to others.
    HandlerPanicked,
}

impl CloseReason {
    const ALL: [CloseReason; 3] = [
        CloseReason::Asked,
        CloseReason::EngineStopped,
        CloseReason::HandlerPanicked,
    ];
}

/// A consumer that was held back gets more when no more runs than this are in its ring.
pub(crate) const RUNS_WAITING_FEW: usize = 8;

/// Shared by a consumer handle and its shard. One task or thread waits on it at a time.
#[derive(Debug, Default)]
pub struct ConsumerSignal {
    /// 0 while open, else 1 + the index of the reason.
    closed: AtomicU8,
    active: AtomicBool,
    /// Nothing more comes unless somebody seeks.
    at_end: AtomicBool,
    /// Seeks that began the attachment again; a mark in the ring says where each of them did.
    resets: AtomicU32,
    /// The shard waits for the handle to take what is in its ring.
    held_back: AtomicBool,
    delivered: Bell,
}

impl ConsumerSignal {
    /// An open one.
    #[must_use]
    pub fn new() -> ConsumerSignal {
        ConsumerSignal::default()
    }

    /// Asks for `waker` once when runs were pushed or the consumer was closed. The caller must look
    /// at its ring and at [`ConsumerSignal::closed`] again after this call and before it sleeps.
    pub fn wait_for_delivery(&self, waker: &Waker) {
        self.delivered.ask(waker);
    }

    /// Why nothing more comes; `None` while open. What the ring still holds may be drained first.
    #[must_use]
    pub fn closed(&self) -> Option<CloseReason> {
        match self.closed.load(Ordering::Acquire) {
            0 => None,
            reason => Some(CloseReason::ALL[usize::from(reason) - 1]),
        }
    }

    /// Whether it is the active consumer of a Failover subscription.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    /// Whether the topic is terminated and the subscription has no backlog.
    #[must_use]
    pub fn at_end(&self) -> bool {
        self.at_end.load(Ordering::Acquire)
    }

    /// How many seeks began the attachment again, wrapping. While it is more than the marks that were
    /// taken from the ring, what the ring holds in front of the next one is of before.
    #[inline]
    #[must_use]
    pub fn resets(&self) -> u32 {
        self.resets.load(Ordering::Acquire)
    }

    /// Whether the shard gives it nothing more until it has taken most of what is in its ring. Looked
    /// at after each run taken, and when there is none: then [`ConsumerSignal::take_held_back`].
    #[inline]
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.held_back.load(Ordering::Relaxed)
    }

    /// True once for each time it was held back, if `waiting` runs in its ring are few enough: then
    /// the shard is to be told, by [`crate::ShardHandle::granted`].
    #[must_use]
    pub fn take_held_back(&self, waiting: usize) -> bool {
        waiting <= RUNS_WAITING_FEW && self.held_back.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn set_held_back(&self, held_back: bool) {
        self.held_back.store(held_back, Ordering::Release);
        // Partner: the fence of `wait_for_delivery`. Either the handle sees that it is held back
        // before it sleeps, or who calls this and looks at the ring again sees what it took.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn set_at_end(&self) {
        self.at_end.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        self.delivered.ring();
    }

    /// Before the mark is pushed: whoever takes that must find it counted.
    pub(crate) fn reset(&self) {
        self.at_end.store(false, Ordering::Release);
        self.resets.fetch_add(1, Ordering::AcqRel);
    }

    /// Wakes the waiter as well: it may want to know.
    pub(crate) fn set_active(&self, active: bool) {
        self.active.store(active, Ordering::Release);
        fence(Ordering::SeqCst);
        self.delivered.ring();
    }

    /// After pushes and a `fence(SeqCst)`.
    pub(crate) fn delivered(&self) {
        self.delivered.ring();
    }

    /// The first reason stays.
    pub(crate) fn close(&self, reason: CloseReason) {
        let code = reason as u8 + 1;
        let _ = self
            .closed
            .compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire);
        fence(Ordering::SeqCst);
        self.delivered.ring();
    }
}

/// One waiter, looked at with one plain load while nobody waits.
#[derive(Debug, Default)]
struct Bell {
    wanted: AtomicBool,
    waker: UserWaker,
}

impl Bell {
    fn ask(&self, waker: &Waker) {
        self.waker.register(waker);
        self.wanted.store(true, Ordering::Release);
        // Partner: the fence of whoever calls `ring`. Either it sees the wish, or the asker's next
        // look sees what was published.
        fence(Ordering::SeqCst);
    }

    fn ring(&self) {
        if self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::AcqRel) {
            self.waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_waiter_is_woken_once_for_each_time_it_asks() {
        let (count, signal) = (Arc::new(Count::default()), ProducerSignal::new());
        let waker = Waker::from(Arc::clone(&count));
        signal.space_freed();
        signal.wait_for_space(&waker);
        signal.progressed();
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        signal.space_freed();
        signal.space_freed();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_stopping_producer_is_never_opened_again() {
        let signal = ProducerSignal::new();
        signal.set(ProducerState::DiskFull, None);
        signal.set(ProducerState::Open, None);
        assert_eq!(signal.state(), ProducerState::Open);
        signal.set(ProducerState::Stopping, None);
        signal.set(ProducerState::Poisoned, Some("sync failed: EIO"));
        assert_eq!(signal.state(), ProducerState::Stopping);
        signal.set(ProducerState::Closed, None);
        assert_eq!(
            (signal.state(), signal.reason()),
            (ProducerState::Closed, Some("sync failed: EIO"))
        );
    }

    #[test]
    fn the_first_reason_of_a_closed_consumer_stays() {
        let (count, signal) = (Arc::new(Count::default()), ConsumerSignal::new());
        signal.wait_for_delivery(&Waker::from(Arc::clone(&count)));
        assert_eq!(signal.closed(), None);
        signal.close(CloseReason::HandlerPanicked);
        signal.close(CloseReason::EngineStopped);
        assert_eq!(signal.closed(), Some(CloseReason::HandlerPanicked));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
    }
}
