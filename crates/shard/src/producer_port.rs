//! One producer of a shard: what it publishes, what of it was taken, and what is owed to it.

use std::collections::VecDeque;
use std::sync::Arc;

use pelton_broker::{Handled, Outcome, ProducerId, Refusal};
use pelton_rings::SlotReceiver;

use crate::mesh::{Forwarded, Outbox};
use crate::port::{
    BODY_KEPT_MAX, ProducerSignal, ProducerState, Publish, RECEIPTS_PER_PAGE, ReceiptPage, Stamped,
};

/// What one look at a producer gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped {
    /// One entry went to the core.
    Entry,
    /// The same (or one was refused), and no more of this producer are taken.
    LastEntry,
    /// Nothing is there.
    Empty,
    /// The core has no room: the entry stays first in line.
    Held,
}

/// A forward that was refused without asking the core: shard and token to answer, and its memory.
pub(crate) type RefusedForward = (u32, u32, Vec<u8>);

#[derive(Debug)]
pub(crate) struct ProducerPort {
    /// Known once the core has attached it.
    pub(crate) id: Option<ProducerId>,
    pub(crate) source: Source,
    pub(crate) durable: bool,
    /// In the inbox's list of sources.
    pub(crate) active: bool,
    /// `aside` holds an entry that the core had no room for.
    pub(crate) held: bool,
    aside: Publish,
    /// In the list of those to be told at the end of the turn.
    pub(crate) told: bool,
    /// Entries handed to the core and not answered.
    pub(crate) owed: u64,
    /// Entries that are still taken; what comes behind them is refused. `None`: no end yet.
    pub(crate) takes: Option<u64>,
    /// Its close request, executed once `takes` is down to 0 (rule A5).
    pub(crate) close: Option<Stamped>,
    pub(crate) closed: bool,
}

#[derive(Debug)]
pub(crate) enum Source {
    /// A handle on another thread, with the pages that are not yet fully answered.
    Ring {
        ring: SlotReceiver<Publish>,
        signal: Arc<ProducerSignal>,
        pages: VecDeque<Page>,
        /// What was answered in this turn: from the first to behind the last sequence.
        unwoken: Option<(u64, u64)>,
    },
    /// Handlers, here or on other shards, and whom to answer, in order.
    Forward {
        queue: VecDeque<Forwarded>,
        answers: VecDeque<RefusedForward>,
        next: u64,
    },
}

#[derive(Debug)]
pub(crate) struct Page {
    first_sequence: u64,
    answered: usize,
    page: Arc<ReceiptPage>,
}

impl ProducerPort {
    /// One that the core has not attached yet. While the shard stops it takes nothing.
    pub(crate) fn new(source: Source, durable: bool, stopping: bool) -> ProducerPort {
        ProducerPort {
            id: None,
            source,
            durable,
            active: false,
            held: false,
            aside: Publish::default(),
            told: false,
            owed: 0,
            takes: stopping.then_some(0),
            close: None,
            closed: false,
        }
    }

    /// Entries in the ring or queue, one that is held aside not counted.
    pub(crate) fn len(&self) -> u64 {
        match &self.source {
            Source::Ring { ring, .. } => ring.len() as u64,
            Source::Forward { queue, .. } => queue.len() as u64,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        match &self.source {
            Source::Ring { ring, .. } => ring.capacity(),
            Source::Forward { queue, .. } => queue.len(),
        }
    }

    #[inline]
    pub(crate) fn pop(
        &mut self,
        id: ProducerId,
        sink: &mut impl FnMut(ProducerId, &Publish) -> Handled,
        refused: &mut Vec<RefusedForward>,
    ) -> Popped {
        if self.held {
            return self.offer_aside(id, sink, refused);
        }
        let ProducerPort {
            source,
            aside,
            held,
            owed,
            takes,
            ..
        } = self;
        match source {
            Source::Ring {
                ring,
                pages,
                unwoken,
                ..
            } => {
                let popped = ring.pop_with(|publish| {
                    if let Some(page) = publish.page.take() {
                        let first_sequence = publish.sequence;
                        pages.push_back(Page {
                            first_sequence,
                            answered: 0,
                            page,
                        });
                    }
                    if *takes == Some(0) {
                        let outcome = Outcome::Refused(Refusal::Closed);
                        complete(pages, unwoken, publish.sequence, 1, outcome);
                        return Popped::LastEntry;
                    }
                    if sink(id, publish) == Handled::Held {
                        std::mem::swap(publish, aside);
                        return Popped::Held;
                    }
                    if publish.body.capacity() > BODY_KEPT_MAX {
                        publish.body = Vec::new();
                    }
                    taken(owed, takes)
                });
                let popped = popped.unwrap_or(Popped::Empty);
                *held = popped == Popped::Held;
                popped
            }
            Source::Forward {
                queue,
                answers,
                next,
            } => {
                let Some(forwarded) = queue.pop_front() else {
                    return Popped::Empty;
                };
                let Forwarded {
                    messages,
                    key_hash,
                    arrived_ns,
                    from,
                    token,
                    body,
                    ..
                } = forwarded;
                answers.push_back((from, token, Vec::new()));
                let sequence = *next;
                *aside = Publish {
                    body,
                    messages,
                    key_hash,
                    sequence,
                    arrived_ns,
                    ..Publish::default()
                };
                *next += 1;
                *held = true;
                self.offer_aside(id, sink, refused)
            }
        }
    }

    /// Offers the entry that is not in the ring any more.
    fn offer_aside(
        &mut self,
        id: ProducerId,
        sink: &mut impl FnMut(ProducerId, &Publish) -> Handled,
        refused: &mut Vec<RefusedForward>,
    ) -> Popped {
        let ProducerPort {
            source,
            aside,
            held,
            owed,
            takes,
            ..
        } = self;
        let refuse = *takes == Some(0);
        if !refuse && sink(id, aside) == Handled::Held {
            return Popped::Held;
        }
        *held = false;
        match source {
            Source::Ring { pages, unwoken, .. } if refuse => {
                let outcome = Outcome::Refused(Refusal::Closed);
                complete(pages, unwoken, aside.sequence, 1, outcome);
            }
            Source::Ring { .. } if aside.body.capacity() > BODY_KEPT_MAX => aside.body = Vec::new(),
            Source::Ring { .. } => {}
            // Its body goes home with the answer.
            Source::Forward { answers, .. } => {
                let body = std::mem::take(&mut aside.body);
                if refuse {
                    refused.extend(
                        answers
                            .pop_back()
                            .map(|(from, token, _)| (from, token, body)),
                    );
                } else if let Some(answer) = answers.back_mut() {
                    answer.2 = body;
                }
            }
        }
        if refuse {
            Popped::LastEntry
        } else {
            taken(owed, takes)
        }
    }

    pub(crate) fn answer(&mut self, first: u64, count: u64, outcome: Outcome, outbox: &mut Outbox) {
        match &mut self.source {
            Source::Ring { pages, unwoken, .. } => complete(pages, unwoken, first, count, outcome),
            Source::Forward { answers, .. } => {
                let stored = matches!(
                    outcome,
                    Outcome::Stored(_) | Outcome::Unstored | Outcome::Duplicate
                );
                for _ in 0..count {
                    if let Some((from, token, body)) = answers.pop_front() {
                        outbox.answer(from, token, stored, body);
                    }
                }
            }
        }
    }

    /// End of a turn, after its one fence: wakes who waits for what was answered, or for space.
    pub(crate) fn tell(&mut self) {
        self.told = false;
        let Source::Ring {
            signal,
            pages,
            unwoken,
            ..
        } = &mut self.source
        else {
            return;
        };
        signal.space_freed();
        let Some((first, end)) = unwoken.take() else {
            return;
        };
        signal.progressed();
        for page in pages.iter() {
            let from = first.max(page.first_sequence);
            let to = end.min(page.first_sequence + RECEIPTS_PER_PAGE as u64);
            if from < to {
                page.page
                    .wake((from - page.first_sequence) as usize, (to - from) as usize);
            }
            if to == end {
                break;
            }
        }
        // Full pages are given up only now that nobody waits on them.
        while pages
            .front()
            .is_some_and(|page| page.answered == RECEIPTS_PER_PAGE)
        {
            pages.pop_front();
        }
    }
}

impl Drop for ProducerPort {
    /// However a shard ends, by a stop or by a panic: nobody waits for it any longer.
    fn drop(&mut self) {
        if let Source::Ring {
            ring,
            signal,
            pages,
            unwoken,
        } = &mut self.source
        {
            signal.set(ProducerState::Closed, None);
            // Who published after the last look and saw no `Closed` yet is found here (the fence
            // in `set` lies between); who publishes after this look sees it.
            for _ in 0..ring.capacity() {
                let left = ring.pop_with(|publish| {
                    if let Some(page) = publish.page.take() {
                        let first_sequence = publish.sequence;
                        pages.push_back(Page {
                            first_sequence,
                            answered: 0,
                            page,
                        });
                    }
                    let outcome = Outcome::Refused(Refusal::Closed);
                    complete(pages, unwoken, publish.sequence, 1, outcome);
                });
                if left.is_none() {
                    break;
                }
            }
            for page in pages {
                page.page.wake(0, RECEIPTS_PER_PAGE);
            }
        }
    }
}

fn taken(owed: &mut u64, takes: &mut Option<u64>) -> Popped {
    *owed += 1;
    let Some(left) = takes else {
        return Popped::Entry;
    };
    *left -= 1;
    if *left > 0 {
        Popped::Entry
    } else {
        Popped::LastEntry
    }
}

/// Answers consecutive sequences, which may lie on several pages. Who waits is woken later.
fn complete(
    pages: &mut VecDeque<Page>,
    unwoken: &mut Option<(u64, u64)>,
    first: u64,
    count: u64,
    outcome: Outcome,
) {
    let Some(oldest) = pages.front().map(|page| page.first_sequence) else {
        return;
    };
    let (mut sequence, end) = (first, first + count);
    *unwoken = Some(unwoken.map_or((first, end), |(from, to)| (from.min(first), to.max(end))));
    while sequence < end {
        // Pages follow one another without gaps: the producer gives one for each 256 sequences.
        let at = sequence.wrapping_sub(oldest) as usize / RECEIPTS_PER_PAGE;
        let Some(page) = pages.get_mut(at) else { break };
        let index = (sequence - page.first_sequence) as usize;
        let len = (RECEIPTS_PER_PAGE - index).min((end - sequence) as usize);
        page.page
            .complete(index, len, shifted(outcome, sequence - first));
        page.answered += len;
        sequence += len as u64;
    }
}

/// The outcome of the entry `by` behind the first one of a run.
fn shifted(outcome: Outcome, by: u64) -> Outcome {
    match outcome {
        // Positions of a run are consecutive entries of one ledger: that is its contract.
        Outcome::Stored(first) => Outcome::Stored(first.nth(by)),
        other => other,
    }
}
