//! Receipts: where the answer to a publish is read.
//!
//! The shard writes answers into pages of 256 sequences that a producer shares with its receipts; a
//! receipt is a place on such a page. No message travels per receipt, and pages are used again.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::error::ReceiptError;
use crate::port::{ProducerSignal, RECEIPTS_PER_PAGE, ReceiptPage, ReceiptState, Refusal};
use crate::wait::{self, Waiter};
use crate::{Idle, Position};

/// Where one published entry was stored, once that is known: wait for it, poll it, await it, or drop
/// it (the entry is stored all the same; [`crate::Producer::flush`] waits for all).
///
/// As a future it needs no runtime and is cancel safe: it takes nothing, so it can be dropped and
/// asked again. One task or thread waits on a receipt at a time.
pub struct Receipt {
    page: Arc<ReceiptPage>,
    index: u8,
    idle: Idle,
    engine_id: u64,
}

impl Receipt {
    /// The answer if it is there.
    #[must_use]
    pub fn try_get(&self) -> Option<Result<Position, ReceiptError>> {
        outcome(self.page.get(self.index), &self.page.producer)
    }

    /// Blocks until the entry is as durable as its topic, and gives its position
    /// ([`Position::NOWHERE`] if the topic is non-persistent).
    ///
    /// # Errors
    /// [`ReceiptError`]; all but `Unknown` and `WouldBlock` mean that it was not stored, for sure.
    pub fn wait(&self) -> Result<Position, ReceiptError> {
        self.wait_at_most(None)
            .map(|position| position.expect("without a time-out there is an end"))
    }

    /// As [`Receipt::wait`], but `None` after `timeout`. The receipt is still good then.
    ///
    /// # Errors
    /// As [`Receipt::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Position>, ReceiptError> {
        self.wait_at_most(Some(timeout))
    }

    fn wait_at_most(&self, timeout: Option<Duration>) -> Result<Option<Position>, ReceiptError> {
        if let Some(answer) = self.try_get() {
            return answer.map(Some);
        }
        if !wait::may_block(self.engine_id) {
            return Err(ReceiptError::WouldBlock);
        }
        Waiter::new(self.idle)
            .wait(timeout, |waker| self.look(waker))
            .transpose()
    }

    fn look(&self, waker: Option<&Waker>) -> Option<Result<Position, ReceiptError>> {
        let state = match waker {
            None => self.page.get(self.index),
            Some(waker) => self.page.poll(self.index, waker),
        };
        outcome(state, &self.page.producer)
    }
}

impl Future for Receipt {
    type Output = Result<Position, ReceiptError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.look(Some(context.waker()))
            .map_or(Poll::Pending, Poll::Ready)
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Receipt")
            .field(&self.page.get(self.index))
            .finish()
    }
}

/// What an answer means to a user; `None` while there is none.
fn outcome(
    state: ReceiptState,
    producer: &ProducerSignal,
) -> Option<Result<Position, ReceiptError>> {
    let reason = || {
        producer
            .reason()
            .unwrap_or("no reason was given")
            .to_owned()
    };
    Some(match state {
        ReceiptState::Pending => return None,
        ReceiptState::Stored(position) => Ok(position),
        ReceiptState::Unknown => Err(ReceiptError::Unknown {
            error: producer
                .reason()
                .unwrap_or("the engine stopped before it knew")
                .to_owned(),
        }),
        ReceiptState::Refused(Refusal::DiskFull) => Err(ReceiptError::DiskFull),
        ReceiptState::Refused(Refusal::NoSegment) => Err(ReceiptError::NoSegment),
        ReceiptState::Refused(Refusal::Poisoned) => Err(ReceiptError::Poisoned { error: reason() }),
        ReceiptState::Refused(Refusal::Invalid) => Err(ReceiptError::Invalid),
        ReceiptState::Refused(Refusal::Closed) => Err(ReceiptError::Closed),
        ReceiptState::Refused(Refusal::Terminated) => Err(ReceiptError::Terminated),
        ReceiptState::Refused(Refusal::Fenced) => Err(ReceiptError::Fenced),
        ReceiptState::Refused(Refusal::DelayTooLong) => Err(ReceiptError::DelayTooLong),
        ReceiptState::Refused(Refusal::BacklogQuota) => Err(ReceiptError::BacklogQuota),
    })
}

const PAGE: u64 = RECEIPTS_PER_PAGE as u64;

/// The pages of one producer: those that still wait for answers, and those that can be used again.
pub(crate) struct Pages {
    signal: Arc<ProducerSignal>,
    /// In order of their first sequence.
    recent: VecDeque<Page>,
    /// Every sequence before this one has been looked at by `take_failure`.
    seen: u64,
    /// The first failure since the last flush.
    failure: Option<ReceiptError>,
}

struct Page {
    first: u64,
    page: Arc<ReceiptPage>,
}

/// Pages beyond this many are not kept for use again.
const PAGES_KEPT: usize = 64;

impl Pages {
    pub(crate) fn new(signal: Arc<ProducerSignal>) -> Pages {
        Pages {
            signal,
            recent: VecDeque::new(),
            seen: 0,
            failure: None,
        }
    }

    /// The page for this sequence, and whether it has to be given to the shard with it.
    pub(crate) fn page_of(&mut self, sequence: u64) -> (&Arc<ReceiptPage>, bool) {
        let first = sequence - sequence % PAGE;
        if self.recent.back().is_none_or(|page| page.first != first) {
            let page = self.fresh();
            self.recent.push_back(Page { first, page });
        }
        let page = &self.recent.back().expect("pushed if there was none").page;
        (page, sequence == first)
    }

    /// A page nobody holds any more, else a new one. The shard lets go of a page once every answer
    /// is on it, receipts when they are dropped.
    fn fresh(&mut self) -> Arc<ReceiptPage> {
        let unused = self
            .recent
            .iter_mut()
            .position(|page| Arc::get_mut(&mut page.page).is_some());
        if let Some(mut page) = unused.and_then(|at| self.recent.remove(at)) {
            self.look_at(&page);
            if let Some(memory) = Arc::get_mut(&mut page.page) {
                memory.reset();
                return page.page;
            }
        }
        // Old receipts that somebody keeps hold their pages themselves.
        let answered =
            |page: &Page| (0..=u8::MAX).all(|i| page.page.get(i) != ReceiptState::Pending);
        if self.recent.len() >= PAGES_KEPT
            && self.recent.front().is_some_and(answered)
            && let Some(page) = self.recent.pop_front()
        {
            self.look_at(&page);
        }
        Arc::new(ReceiptPage::new(Arc::clone(&self.signal)))
    }

    /// Remembers the first failure on a page that is about to be forgotten.
    fn look_at(&mut self, page: &Page) {
        if self.failure.is_some() || page.page.no_failure() {
            return;
        }
        for index in 0..PAGE {
            if page.first + index < self.seen {
                continue;
            }
            let state = page.page.get(index as u8);
            if let Some(Err(error)) = outcome(state, &self.signal) {
                self.failure = Some(error);
                return;
            }
        }
    }

    /// True once every sequence below `end` has its answer.
    pub(crate) fn answered(&self, end: u64) -> bool {
        // The newest first: it is the last one to be answered.
        self.recent.iter().rev().all(|page| {
            let count = end.saturating_sub(page.first).min(PAGE);
            (0..count)
                .rev()
                .all(|index| page.page.get(index as u8) != ReceiptState::Pending)
        })
    }

    /// Takes the first failure of any sequence below `end` since this was last asked.
    pub(crate) fn take_failure(&mut self, end: u64) -> Option<ReceiptError> {
        for page in &self.recent {
            for index in 0..end.saturating_sub(page.first).min(PAGE) {
                if self.failure.is_some() || page.first + index < self.seen {
                    continue;
                }
                let state = page.page.get(index as u8);
                if let Some(Err(error)) = outcome(state, &self.signal) {
                    self.failure = Some(error);
                }
            }
        }
        self.seen = end;
        self.failure.take()
    }

    /// The receipt of the sequence that [`Pages::page_of`] was asked for last.
    pub(crate) fn receipt(&self, sequence: u64, idle: Idle, engine_id: u64) -> Receipt {
        let last = self.recent.back().expect("it was given a page");
        Receipt {
            page: Arc::clone(&last.page),
            index: (sequence % PAGE) as u8,
            idle,
            engine_id,
        }
    }
}
