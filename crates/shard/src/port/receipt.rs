//! What travels in a producer's slot ring, and the page its answer is written to.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use pelton_broker::storage::Position;
use pelton_broker::{Numbered, Outcome, Refusal};

use super::user_code::UserWaker;
use super::{ProducerSignal, ProducerState};

/// Sequences answered by one [`ReceiptPage`].
pub const RECEIPTS_PER_PAGE: usize = 256;

/// A slot of a producer's ring. It is never moved: the body's memory is used again and again.
#[derive(Debug, Default)]
pub struct Publish {
    /// The framed messages. Above [`super::BODY_KEPT_MAX`] the shard takes the memory out of the slot.
    pub body: Vec<u8>,
    /// Messages in `body`, 1 or more.
    pub messages: u32,
    /// Hash of the entry's key, 0 without one.
    pub key_hash: u32,
    /// Rises by one with every entry of the producer, from 0.
    pub sequence: u64,
    /// When the producer handed it over (or meant to), monotonic nanoseconds of the engine's clock.
    pub arrived_ns: u64,
    /// On the heap, because it is rare.
    pub extras: Option<Box<PublishExtras>>,
    /// Where sequences `sequence .. sequence + 256` are answered: given with each sequence that is a
    /// multiple of [`RECEIPTS_PER_PAGE`], and only then. The shard takes it out.
    pub page: Option<Arc<ReceiptPage>>,
}

/// What few entries have: times, and numbers that outlive their producer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishExtras {
    /// Not to be delivered before this Unix millisecond; 0: at once.
    pub deliver_at_ms: u64,
    /// Not to be delivered from this Unix millisecond on; 0: no end.
    pub deadline_ms: u64,
    /// Its sequences among those of all producers of this name.
    pub numbered: Option<Numbered>,
}

/// How a publish ended, as its receipt says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiptState {
    /// Not known yet.
    Pending,
    /// Stored with its topic's durability; [`Position::NOWHERE`] if that stores nothing, or has it
    /// already.
    Stored(Position),
    /// Not stored, for sure.
    Refused(Refusal),
    /// The log failed or the engine ended first: it may or may not be there after a reopen.
    Unknown,
}

/// The answers of 256 consecutive sequences of one producer: written by the shard, read by receipts,
/// no message in between. Used again once its `Arc` is unique ([`ReceiptPage::reset`]).
///
/// An answer counts only with the number of the page's present use, so that a reset writes no slot: the
/// lines of answers that nobody reads stay in the shard's cache.
#[derive(Debug)]
#[repr(align(128))]
pub struct ReceiptPage {
    slots: [ReceiptSlot; RECEIPTS_PER_PAGE],
    /// Number of the present use, in the bits above an answer's code.
    uses: u32,
    /// Some answer of this use is not `Stored`.
    failed: AtomicBool,
    waiting: AtomicBool,
    wakers: OnceLock<Box<[UserWaker]>>,
    /// Of the producer whose sequences these are.
    pub producer: Arc<ProducerSignal>,
}

#[derive(Debug, Default)]
struct ReceiptSlot {
    state: AtomicU32,
    ledger: AtomicU64,
    entry: AtomicU64,
}

/// Bits of an answer's code in the state of its slot.
const CODE_BITS: u32 = 8;

const STORED: u32 = 1;
const UNKNOWN: u32 = 2;
const REFUSED: u32 = 3;
const REFUSED_LAST: u32 = REFUSED + REFUSALS.len() as u32 - 1;
const REFUSALS: [Refusal; 9] = [
    Refusal::DiskFull,
    Refusal::NoSegment,
    Refusal::Poisoned,
    Refusal::Invalid,
    Refusal::Closed,
    Refusal::Terminated,
    Refusal::Fenced,
    Refusal::DelayTooLong,
    Refusal::BacklogQuota,
];

impl ReceiptPage {
    /// A page with every answer pending.
    #[must_use]
    pub fn new(producer: Arc<ProducerSignal>) -> ReceiptPage {
        ReceiptPage {
            slots: std::array::from_fn(|_| ReceiptSlot::default()),
            uses: 0,
            failed: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            wakers: OnceLock::new(),
            producer,
        }
    }

    /// The answer of the sequence whose remainder by [`RECEIPTS_PER_PAGE`] is `index`. Once it is not
    /// `Pending` it stays, but for one case: [`ReceiptState::Unknown`] of an engine that just ended.
    #[must_use]
    pub fn get(&self, index: u8) -> ReceiptState {
        match self.read(index) {
            // What is pending once the shard has said `Closed` gets no answer, but for what was still
            // in the ring then: that is refused right after.
            ReceiptState::Pending if self.producer.state() == ProducerState::Closed => {
                match self.read(index) {
                    ReceiptState::Pending => ReceiptState::Unknown,
                    answer => answer,
                }
            }
            answer => answer,
        }
    }

    /// As [`ReceiptPage::get`]; if the answer is pending, `waker` is woken once it is there. One
    /// waiter per sequence: the last one to ask is woken. Cancel safe: nothing is taken.
    #[must_use]
    pub fn poll(&self, index: u8, waker: &Waker) -> ReceiptState {
        match self.get(index) {
            ReceiptState::Pending => {}
            answer => return answer,
        }
        let wakers = self.wakers.get_or_init(|| {
            (0..RECEIPTS_PER_PAGE)
                .map(|_| UserWaker::default())
                .collect()
        });
        wakers[usize::from(index)].register(waker);
        self.waiting.store(true, Ordering::Release);
        // Partner: the fence of a shard's turn, before `wake`.
        fence(Ordering::SeqCst);
        self.get(index)
    }

    /// Whether no answer so far, nor any that is missing for good, says that something was not stored.
    #[must_use]
    pub fn no_failure(&self) -> bool {
        !self.failed.load(Ordering::Acquire) && self.producer.state() != ProducerState::Closed
    }

    /// Every answer pending again, for the next 256 sequences of the same producer.
    pub fn reset(&mut self) {
        // A slot that keeps the number of an earlier use is pending. It wraps after 2^24 uses, each of
        // which answers every slot: no answer is that old.
        self.uses = self.uses.wrapping_add(1 << CODE_BITS);
        *self.failed.get_mut() = false;
        if std::mem::take(self.waiting.get_mut()) {
            for waker in self.wakers.get_mut().into_iter().flatten() {
                waker.clear();
            }
        }
    }

    /// Answers `count` sequences from `first` on. Positions of stored entries are consecutive.
    pub(crate) fn complete(&self, first: usize, count: usize, outcome: Outcome) {
        if !matches!(outcome, Outcome::Stored(_)) {
            self.failed.store(true, Ordering::Release);
        }
        for (i, slot) in self.slots[first..first + count].iter().enumerate() {
            let state = match outcome {
                Outcome::Stored(position) => {
                    slot.ledger.store(position.ledger, Ordering::Relaxed);
                    slot.entry
                        .store(position.nth(i as u64).entry, Ordering::Relaxed);
                    STORED
                }
                Outcome::Unstored | Outcome::Duplicate => {
                    let Position { ledger, entry } = Position::NOWHERE;
                    slot.ledger.store(ledger, Ordering::Relaxed);
                    slot.entry.store(entry, Ordering::Relaxed);
                    STORED
                }
                Outcome::Unknown => UNKNOWN,
                Outcome::Refused(refusal) => {
                    let code = REFUSALS.iter().position(|&known| known == refusal);
                    REFUSED + u32::try_from(code.unwrap_or(0)).unwrap_or(0)
                }
            };
            slot.state.store(self.uses | state, Ordering::Release);
        }
    }

    fn read(&self, index: u8) -> ReceiptState {
        let slot = &self.slots[usize::from(index)];
        // Its code alone is left if the number is that of this use.
        match slot.state.load(Ordering::Acquire) ^ self.uses {
            STORED => ReceiptState::Stored(Position {
                ledger: slot.ledger.load(Ordering::Relaxed),
                entry: slot.entry.load(Ordering::Relaxed),
            }),
            UNKNOWN => ReceiptState::Unknown,
            refused @ REFUSED..=REFUSED_LAST => {
                ReceiptState::Refused(REFUSALS[(refused - REFUSED) as usize])
            }
            _ => ReceiptState::Pending,
        }
    }

    /// Wakes who waits for these sequences: after [`ReceiptPage::complete`] and a `fence(SeqCst)`, the
    /// partner of the one in [`ReceiptPage::poll`].
    pub(crate) fn wake(&self, first: usize, count: usize) {
        if !self.waiting.load(Ordering::Relaxed) {
            return;
        }
        if let Some(wakers) = self.wakers.get() {
            wakers[first..first + count]
                .iter()
                .for_each(UserWaker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
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

    fn page() -> ReceiptPage {
        ReceiptPage::new(Arc::new(ProducerSignal::new()))
    }

    #[test]
    fn a_run_of_stored_entries_has_consecutive_positions() {
        let page = page();
        page.complete(
            254,
            2,
            Outcome::Stored(Position {
                ledger: 7,
                entry: 10,
            }),
        );
        assert_eq!(page.get(253), ReceiptState::Pending);
        assert_eq!(
            page.get(254),
            ReceiptState::Stored(Position {
                ledger: 7,
                entry: 10
            })
        );
        assert_eq!(
            page.get(255),
            ReceiptState::Stored(Position {
                ledger: 7,
                entry: 11
            })
        );
    }

    #[test]
    fn every_refusal_survives_its_code() {
        for (i, refusal) in REFUSALS.into_iter().enumerate() {
            let page = page();
            page.complete(i, 1, Outcome::Refused(refusal));
            assert_eq!(page.get(i as u8), ReceiptState::Refused(refusal));
        }
    }

    #[test]
    fn only_the_waiters_of_the_answered_run_are_woken() {
        let (page, count, other) = (
            page(),
            Arc::new(Count::default()),
            Arc::new(Count::default()),
        );
        assert_eq!(
            page.poll(3, &Waker::from(Arc::clone(&count))),
            ReceiptState::Pending
        );
        assert_eq!(
            page.poll(9, &Waker::from(Arc::clone(&other))),
            ReceiptState::Pending
        );
        page.complete(0, 5, Outcome::Unknown);
        fence(Ordering::SeqCst);
        page.wake(0, 5);
        assert_eq!(
            (
                count.0.load(Ordering::SeqCst),
                other.0.load(Ordering::SeqCst)
            ),
            (1, 0)
        );
        assert_eq!(page.poll(3, Waker::noop()), ReceiptState::Unknown);
    }

    #[test]
    fn a_pending_answer_of_a_closed_producer_is_unknown() {
        let page = page();
        page.complete(0, 1, Outcome::Refused(Refusal::Closed));
        page.producer.set(ProducerState::Closed, None);
        assert_eq!(page.get(0), ReceiptState::Refused(Refusal::Closed));
        assert_eq!(page.get(1), ReceiptState::Unknown);
    }

    #[test]
    fn a_page_that_is_reset_is_as_new() {
        let mut page = page();
        page.complete(0, 256, Outcome::Unknown);
        assert!(!page.no_failure());
        page.reset();
        assert!(page.no_failure());
        assert!((0..=255).all(|i| page.get(i) == ReceiptState::Pending));
        page.complete(7, 1, Outcome::Refused(Refusal::Closed));
        assert_eq!(page.get(6), ReceiptState::Pending);
        assert_eq!(page.get(7), ReceiptState::Refused(Refusal::Closed));
    }
}
