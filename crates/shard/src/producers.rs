//! The producers of a shard: their rings, what is owed to them, and what waits behind their entries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use pelton_broker::{Handled, LogState, Outcome, ProducerId, Receipts, Refusal};
use pelton_rings::SlotReceiver;

use crate::mesh::{Forwarded, Outbox};
use crate::port::{
    BODY_KEPT_MAX, PORTS_MAX, ProducerSignal, ProducerState, Publish, RECEIPTS_PER_PAGE,
    ReceiptPage, Stamped,
};

/// All producers by slot. A slot is used again once its producer is closed and owed nothing.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    ports: Vec<Option<ProducerPort>>,
    free: Vec<u32>,
    /// Slots whose ring was popped from in this turn: who waits for space is told at its end.
    freed: Vec<u32>,
    /// Slots whose first entry the core had no room for.
    held: Vec<u32>,
    log_state: Option<LogState>,
    stopping: bool,
}

/// What one look at a producer gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Popped {
    /// One entry went to the core (or was refused).
    Entry,
    /// Nothing is there.
    Empty,
    /// The core has no room: the entry stays first in line.
    Held,
}

/// How a publish that went to the core is counted by the caller.
pub(crate) type Sink<'a> = dyn FnMut(ProducerId, &Publish) -> Handled + 'a;

#[derive(Debug)]
struct ProducerPort {
    /// Known once the core has attached it.
    id: Option<ProducerId>,
    source: Source,
    durable: bool,
    /// In the inbox's list of sources.
    active: bool,
    /// `aside` holds an entry that the core had no room for.
    held: bool,
    aside: Publish,
    freed: bool,
    /// Entries handed to the core and not answered.
    owed: u64,
    /// Entries that are still taken; what comes behind them is refused. `None`: no end yet.
    takes: Option<u64>,
    /// Its close request, executed once `takes` is down to 0 (rule A5).
    close: Option<Stamped>,
    closed: bool,
}

#[derive(Debug)]
enum Source {
    /// A handle on another thread, with the pages that are not yet fully answered.
    Ring { ring: SlotReceiver<Publish>, signal: Arc<ProducerSignal>, pages: VecDeque<Page> },
    /// Handlers, here or on other shards, and whom to answer, in order.
    Forward { queue: VecDeque<Forwarded>, answers: VecDeque<(u32, u32, Vec<u8>)>, next: u64 },
}

#[derive(Debug)]
struct Page {
    first_sequence: u64,
    answered: usize,
    page: Arc<ReceiptPage>,
}

impl Producers {
    /// Slots ever used: the ready bits that can be set.
    pub(crate) fn used(&self) -> usize {
        self.ports.len()
    }

    /// Keeps a ring for a producer that is about to be attached; gives its slot, or `None` if there
    /// are [`PORTS_MAX`] already.
    pub(crate) fn open_ring(
        &mut self,
        ring: SlotReceiver<Publish>,
        signal: Arc<ProducerSignal>,
        durable: bool,
    ) -> Option<u32> {
        match (&self.log_state, durable) {
            (Some(LogState::DiskFull), true) => signal.set(ProducerState::DiskFull, None),
            (Some(LogState::Poisoned(error)), true) => {
                signal.set(ProducerState::Poisoned, Some(error));
            }
            _ => {}
        }
        self.open(Source::Ring { ring, signal, pages: VecDeque::new() }, durable)
    }

    /// Keeps a queue for a producer that handlers forward to.
    pub(crate) fn open_forward(&mut self, durable: bool) -> Option<u32> {
        let (queue, answers) = (VecDeque::new(), VecDeque::new());
        self.open(Source::Forward { queue, answers, next: 0 }, durable)
    }

    fn open(&mut self, source: Source, durable: bool) -> Option<u32> {
        let port = ProducerPort {
            id: None,
            source,
            durable,
            active: false,
            held: false,
            aside: Publish::default(),
            freed: false,
            owed: 0,
            takes: self.stopping.then_some(0),
            close: None,
            closed: false,
        };
        if let Some(slot) = self.free.pop() {
            self.ports[slot as usize] = Some(port);
            return Some(slot);
        }
        if self.ports.len() == PORTS_MAX {
            return None;
        }
        self.ports.push(Some(port));
        Some(u32::try_from(self.ports.len() - 1).expect("bounded by PORTS_MAX"))
    }

    /// The core attached it.
    pub(crate) fn attached(&mut self, id: ProducerId) {
        if let Some(port) = self.port(id.slot) {
            port.id = Some(id);
        }
    }

    /// The core refused to attach it.
    pub(crate) fn not_attached(&mut self, slot: u32) {
        if self.ports[slot as usize].take().is_some() {
            self.free.push(slot);
        }
    }

    /// The core detached it; the slot is free once every entry is answered.
    pub(crate) fn closed(&mut self, id: ProducerId) {
        if let Some(port) = self.port_of(id) {
            port.closed = true;
            self.free_if_done(id.slot);
        }
    }

    /// Notes that the slot is in the inbox's list; false if it is already, or names nothing.
    pub(crate) fn activate(&mut self, slot: u32) -> bool {
        match self.port(slot) {
            Some(port) if port.id.is_some() && !port.active && !port.held => {
                port.active = true;
                true
            }
            _ => false,
        }
    }

    /// Notes that the slot left the inbox's list.
    pub(crate) fn deactivate(&mut self, slot: u32) {
        if let Some(port) = self.port(slot) {
            port.active = false;
        }
    }

    /// Whether an entry is there for sure: an Acquire look at the ring.
    pub(crate) fn waits(&self, slot: u32) -> bool {
        self.ports[slot as usize].as_ref().is_some_and(|port| port.held || port.len() > 0)
    }

    /// Takes an entry that a handler forwarded; false if its producer is gone.
    pub(crate) fn enqueue(&mut self, forwarded: Forwarded) -> Result<(), Forwarded> {
        match self.port_of(forwarded.producer) {
            Some(ProducerPort { source: Source::Forward { queue, .. }, closed: false, .. }) => {
                queue.push_back(forwarded);
                Ok(())
            }
            _ => Err(forwarded),
        }
    }

    /// Offers the first entry of the producer to the core.
    #[inline]
    pub(crate) fn pop(&mut self, slot: u32, sink: &mut Sink<'_>) -> Popped {
        let Some(port) = self.ports[slot as usize].as_mut() else { return Popped::Empty };
        let Some(id) = port.id else { return Popped::Empty };
        let popped = port.pop(id, sink);
        match popped {
            Popped::Entry if !port.freed => {
                port.freed = true;
                self.freed.push(slot);
            }
            Popped::Held => self.held.push(slot),
            _ => {}
        }
        popped
    }

    /// Whether the producer's close waits for nothing more: the request, to be executed.
    pub(crate) fn take_due_close(&mut self, slot: u32) -> Option<Stamped> {
        let port = self.port(slot)?;
        if port.takes == Some(0) && !port.held { port.close.take() } else { None }
    }

    /// Parks a close request behind what the producer has published; gives it back if that is
    /// nothing.
    pub(crate) fn park_close(&mut self, id: ProducerId, item: Stamped) -> Option<Stamped> {
        let Some(port) = self.port_of(id) else { return Some(item) };
        let before = port.len() + u64::from(port.held);
        port.takes = Some(port.takes.map_or(before, |takes| takes.min(before)));
        if port.takes == Some(0) && !port.held {
            return Some(item);
        }
        port.close = Some(item);
        None
    }

    /// Completes receipts and wakes who waits for them.
    pub(crate) fn answer(&mut self, receipts: &Receipts, outbox: &mut Outbox) {
        let Some(port) = self.port_of(receipts.producer) else { return };
        port.owed = port.owed.saturating_sub(u64::from(receipts.count));
        port.answer(receipts.first_sequence, u64::from(receipts.count), receipts.outcome, outbox);
        self.free_if_done(receipts.producer.slot);
    }

    /// Tells every durable producer whether the log takes publishes.
    pub(crate) fn set_log_state(&mut self, state: LogState) {
        for port in self.ports.iter().flatten().filter(|port| port.durable) {
            if let Source::Ring { signal, .. } = &port.source {
                match &state {
                    LogState::Open => signal.set(ProducerState::Open, None),
                    LogState::DiskFull => signal.set(ProducerState::DiskFull, None),
                    LogState::Poisoned(error) => signal.set(ProducerState::Poisoned, Some(error)),
                }
            }
        }
        self.log_state = Some(state);
    }

    /// Slots that were held, to be offered again.
    pub(crate) fn release_held(&mut self, mut again: impl FnMut(u32)) {
        for slot in self.held.drain(..) {
            if let Some(port) = self.ports[slot as usize].as_mut()
                && port.held
                && !port.active
            {
                port.active = true;
                again(slot);
            }
        }
    }

    /// Whether some producer waits for room in the core.
    pub(crate) fn any_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// End of a turn: tells producers that wait for space in their rings.
    pub(crate) fn tell_freed(&mut self) {
        if self.freed.is_empty() {
            return;
        }
        // Partner: the fence of `Bell::ask`, after the pops of this turn.
        fence(Ordering::SeqCst);
        for slot in self.freed.drain(..) {
            if let Some(port) = self.ports[slot as usize].as_mut() {
                port.freed = false;
                if let Source::Ring { signal, .. } = &port.source {
                    signal.space_freed();
                }
            }
        }
    }

    /// First step of a stop: nothing new is taken. What is in the rings now still is (or, with
    /// `refuse`, is not), so the drain has an end however fast producers push.
    pub(crate) fn stop(&mut self, refuse: bool, mut look: impl FnMut(u32)) {
        self.stopping = true;
        for port in self.ports.iter().flatten() {
            if let Source::Ring { signal, .. } = &port.source {
                signal.set(ProducerState::Stopping, None);
            }
        }
        // A producer that saw no stop has published before this, and the lengths below show it;
        // one that has not published yet sees the stop, or its entry is refused.
        fence(Ordering::SeqCst);
        for (slot, port) in (0..).zip(self.ports.iter_mut()) {
            let Some(port) = port else { continue };
            let waiting = if refuse { 0 } else { port.len() + u64::from(port.held) };
            port.takes = Some(port.takes.map_or(waiting, |takes| takes.min(waiting)));
            if port.id.is_some() && !port.active {
                (port.active, port.held) = (true, port.held);
                look(slot);
            }
        }
        self.held.clear();
    }

    /// Whether every entry that was to be taken is.
    pub(crate) fn drained(&self) -> bool {
        self.ports.iter().flatten().all(|port| port.takes == Some(0) && !port.held)
    }

    /// Refuses what is still in rings and queues; returns how many entries.
    pub(crate) fn refuse_rest(&mut self, outbox: &mut Outbox) -> u64 {
        let mut refused = 0;
        for port in self.ports.iter_mut().flatten() {
            port.takes = Some(0);
            let Some(id) = port.id else { continue };
            let mut none = |_: ProducerId, _: &Publish| Handled::Taken;
            while port.pop(id, &mut none) == Popped::Entry {
                refused += 1;
            }
            port.answer_forwards(outbox);
        }
        refused
    }

    /// Entries taken and not answered.
    pub(crate) fn owed(&self) -> u64 {
        self.ports.iter().flatten().map(|port| port.owed).sum()
    }

    fn port(&mut self, slot: u32) -> Option<&mut ProducerPort> {
        self.ports.get_mut(slot as usize)?.as_mut()
    }

    fn port_of(&mut self, id: ProducerId) -> Option<&mut ProducerPort> {
        self.port(id.slot).filter(|port| port.id == Some(id))
    }

    fn free_if_done(&mut self, slot: u32) {
        let Some(port) = self.port(slot) else { return };
        if port.closed && port.owed == 0 {
            self.ports[slot as usize] = None;
            self.free.push(slot);
        }
    }
}

impl ProducerPort {
    /// Entries in the ring or queue, one that is held aside not counted.
    fn len(&self) -> u64 {
        match &self.source {
            Source::Ring { ring, .. } => ring.len() as u64,
            Source::Forward { queue, .. } => queue.len() as u64,
        }
    }

    fn pop(&mut self, id: ProducerId, sink: &mut Sink<'_>) -> Popped {
        let ProducerPort { source, aside, held, owed, takes, .. } = self;
        if *held {
            return offer_aside(source, id, (aside, held, owed, takes), sink);
        }
        match source {
            Source::Ring { ring, pages, .. } => {
                let popped = ring.pop_with(|publish| {
                    if let Some(page) = publish.page.take() {
                        let first_sequence = publish.sequence;
                        pages.push_back(Page { first_sequence, answered: 0, page });
                    }
                    if *takes == Some(0) {
                        let outcome = Outcome::Refused(Refusal::Closed);
                        complete(pages, publish.sequence, 1, outcome);
                        return Popped::Entry;
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
            Source::Forward { queue, answers, next } => {
                let Some(forwarded) = queue.pop_front() else { return Popped::Empty };
                let Forwarded { messages, key_hash, arrived_ns, from, token, body, .. } = forwarded;
                let (sequence, page) = (*next, None);
                *aside = Publish { body, messages, key_hash, sequence, arrived_ns, page };
                *next += 1;
                answers.push_back((from, token, Vec::new()));
                if *takes == Some(0) {
                    return Popped::Entry; // `answer_forwards` refuses it.
                }
                *held = true;
                offer_aside(source, id, (aside, held, owed, takes), sink)
            }
        }
    }

    fn answer(&mut self, first: u64, count: u64, outcome: Outcome, outbox: &mut Outbox) {
        match &mut self.source {
            Source::Ring { pages, signal, .. } => {
                complete(pages, first, count, outcome);
                signal.progressed();
            }
            Source::Forward { answers, .. } => {
                let stored = matches!(outcome, Outcome::Stored(_));
                for _ in 0..count {
                    if let Some((from, token, body)) = answers.pop_front() {
                        outbox.answer(from, token, stored, body);
                    }
                }
            }
        }
    }

    /// At the end of a shard: forwards that got no answer from the core are refused.
    fn answer_forwards(&mut self, outbox: &mut Outbox) {
        if let Source::Forward { answers, .. } = &mut self.source {
            for (from, token, body) in answers.drain(..) {
                outbox.answer(from, token, false, body);
            }
        }
    }
}

impl Drop for ProducerPort {
    /// However a shard ends, by a stop or by a panic: nobody waits for it any longer.
    fn drop(&mut self) {
        if let Source::Ring { signal, pages, .. } = &mut self.source {
            signal.set(ProducerState::Closed, None);
            for page in pages {
                page.page.wake(0, RECEIPTS_PER_PAGE);
            }
        }
    }
}

/// Offers an entry that is not in the ring any more.
fn offer_aside(
    source: &mut Source,
    id: ProducerId,
    (aside, held, owed, takes): (&mut Publish, &mut bool, &mut u64, &mut Option<u64>),
    sink: &mut Sink<'_>,
) -> Popped {
    if *takes == Some(0) {
        *held = false;
        if let Source::Ring { pages, .. } = source {
            complete(pages, aside.sequence, 1, Outcome::Refused(Refusal::Closed));
        }
        return Popped::Entry;
    }
    if sink(id, aside) == Handled::Held {
        return Popped::Held;
    }
    *held = false;
    match source {
        // Its body goes home with the answer.
        Source::Forward { answers, .. } => {
            if let Some((_, _, body)) = answers.back_mut() {
                *body = std::mem::take(&mut aside.body);
            }
        }
        Source::Ring { .. } if aside.body.capacity() > BODY_KEPT_MAX => aside.body = Vec::new(),
        Source::Ring { .. } => {}
    }
    taken(owed, takes)
}

fn taken(owed: &mut u64, takes: &mut Option<u64>) -> Popped {
    *owed += 1;
    if let Some(left) = takes {
        *left -= 1;
    }
    Popped::Entry
}

/// Answers consecutive sequences, which may lie on several pages; full pages are given up.
fn complete(pages: &mut VecDeque<Page>, first: u64, count: u64, outcome: Outcome) {
    let (mut sequence, end) = (first, first + count);
    for page in pages.iter_mut() {
        let page_end = page.first_sequence + RECEIPTS_PER_PAGE as u64;
        if sequence >= page_end || sequence < page.first_sequence {
            continue;
        }
        let index = (sequence - page.first_sequence) as usize;
        let len = (end.min(page_end) - sequence) as usize;
        page.page.complete(index, len, shifted(outcome, sequence - first));
        page.page.wake(index, len);
        page.answered += len;
        sequence += len as u64;
        if sequence == end {
            break;
        }
    }
    while pages.front().is_some_and(|page| page.answered == RECEIPTS_PER_PAGE) {
        pages.pop_front();
    }
}

/// The outcome of the entry `by` behind the first one of a run.
fn shifted(outcome: Outcome, by: u64) -> Outcome {
    match outcome {
        Outcome::Stored(mut position) => {
            // Positions of a run are consecutive entries of one ledger: that is its contract.
            position.entry += by;
            Outcome::Stored(position)
        }
        other => other,
    }
}
