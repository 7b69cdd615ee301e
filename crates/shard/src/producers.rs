//! The producers of a shard: their rings, what is owed to them, and what waits behind their entries.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use pelton_broker::{Handled, LogState, ProducerId, Receipts};
use pelton_rings::SlotReceiver;

use crate::mesh::{Forwarded, Outbox};
use crate::port::{PORTS_MAX, ProducerSignal, ProducerState, Publish, Stamped};
use crate::producer_port::{Popped, ProducerPort, RefusedForward, Source};

/// All producers by slot. A slot is used again once its producer is closed and owed nothing.
#[derive(Debug, Default)]
pub(crate) struct Producers {
    ports: Vec<Option<ProducerPort>>,
    free: Vec<u32>,
    /// Slots that were popped from or answered in this turn: their handles are told at its end.
    told: Vec<u32>,
    /// Slots whose first entry the core had no room for.
    held: Vec<u32>,
    refused: Vec<RefusedForward>,
    log_state: Option<(ProducerState, Option<String>)>,
    stopping: bool,
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
        if let (Some((state, reason)), true) = (&self.log_state, durable) {
            signal.set(*state, reason.as_deref());
        }
        self.open(
            Source::Ring {
                ring,
                signal,
                pages: VecDeque::new(),
                unwoken: None,
            },
            durable,
        )
    }

    /// Keeps a queue for a producer that handlers forward to.
    pub(crate) fn open_forward(&mut self, durable: bool) -> Option<u32> {
        let (queue, answers) = (VecDeque::new(), VecDeque::new());
        self.open(
            Source::Forward {
                queue,
                answers,
                next: 0,
            },
            durable,
        )
    }

    fn open(&mut self, source: Source, durable: bool) -> Option<u32> {
        let port = ProducerPort::new(source, durable, self.stopping);
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
        let Some(port) = self.port_of(id) else { return };
        port.closed = true;
        // What came behind the count of its close is not taken, and who forwarded it hears so.
        if let Source::Forward { queue, .. } = &mut port.source {
            let left = std::mem::take(queue);
            self.refused
                .extend(left.into_iter().map(|it| (it.from, it.token, it.body)));
        }
        self.free_if_done(id.slot);
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
        self.ports[slot as usize]
            .as_ref()
            .is_some_and(|port| port.held || port.len() > 0)
    }

    /// Whether a handle has published something that can be offered to the core.
    #[inline]
    pub(crate) fn has_published(&self, slot: u32) -> bool {
        match self.ports.get(slot as usize) {
            Some(Some(port)) => port.id.is_some() && !port.held && port.len() > 0,
            _ => false,
        }
    }

    /// Takes an entry that a handler forwarded; gives it back if its producer is gone.
    pub(crate) fn enqueue(&mut self, forwarded: Forwarded) -> Result<(), Forwarded> {
        match self.port_of(forwarded.producer) {
            Some(ProducerPort {
                source: Source::Forward { queue, .. },
                closed: false,
                ..
            }) => {
                queue.push_back(forwarded);
                Ok(())
            }
            _ => Err(forwarded),
        }
    }

    /// Offers entries of the producer to the core, up to `max` (1 or more) and while `more` says so.
    /// How many it took, and how the last look ended.
    #[inline]
    pub(crate) fn pop_run(
        &mut self,
        slot: u32,
        max: u32,
        more: impl Fn() -> bool,
        sink: &mut impl FnMut(ProducerId, &Publish) -> Handled,
    ) -> (u32, Popped) {
        let Some(port) = self.ports[slot as usize].as_mut() else {
            return (0, Popped::Empty);
        };
        let Some(id) = port.id else {
            return (0, Popped::Empty);
        };
        let mut count = 0;
        let last = loop {
            match port.pop(id, sink, &mut self.refused) {
                Popped::Entry => {
                    count += 1;
                    if count == max || !more() {
                        break Popped::Entry;
                    }
                }
                Popped::LastEntry => {
                    count += 1;
                    break Popped::LastEntry;
                }
                // A stop does not wait for consumers to make room: the rest is refused.
                Popped::Held if self.stopping => port.takes = Some(0),
                Popped::Held => {
                    self.held.push(slot);
                    break Popped::Held;
                }
                Popped::Empty => break Popped::Empty,
            }
        };
        if count > 0 && !port.told {
            port.told = true;
            self.told.push(slot);
        }
        (count, last)
    }

    /// Whether the producer's close waits for nothing more: the request, to be executed.
    pub(crate) fn take_due_close(&mut self, slot: u32) -> Option<Stamped> {
        let port = self.port(slot)?;
        if port.takes == Some(0) && !port.held {
            port.close.take()
        } else {
            None
        }
    }

    /// Parks a close request behind what the producer has published; gives it back if that is
    /// nothing.
    pub(crate) fn park_close(&mut self, id: ProducerId, item: Stamped) -> Option<Stamped> {
        let Some(port) = self.port_of(id) else {
            return Some(item);
        };
        let before = port.len() + u64::from(port.held);
        port.takes = Some(port.takes.map_or(before, |takes| takes.min(before)));
        if port.takes == Some(0) && !port.held {
            return Some(item);
        }
        port.close = Some(item);
        None
    }

    /// Completes receipts; who waits for them is woken at the end of the turn.
    pub(crate) fn answer(&mut self, receipts: &Receipts, outbox: &mut Outbox) {
        let slot = receipts.producer.slot;
        let Some(port) = self.port_of(receipts.producer) else {
            return;
        };
        let count = u64::from(receipts.count);
        port.owed = port.owed.saturating_sub(count);
        port.answer(receipts.first_sequence, count, receipts.outcome, outbox);
        if !std::mem::replace(&mut port.told, true) {
            self.told.push(slot);
        }
        self.free_if_done(slot);
    }

    /// Nothing more is taken of it, and never will be: `Terminated` or `Fenced`.
    pub(crate) fn ended(&mut self, id: ProducerId, state: ProducerState) {
        if let Some(ProducerPort {
            source: Source::Ring { signal, .. },
            ..
        }) = self.port_of(id)
        {
            signal.set(state, None);
        }
    }

    /// Tells every durable producer whether the log takes publishes; `has_space` if it is not for want
    /// of space that it has no segment for them.
    pub(crate) fn set_log_state(&mut self, state: LogState, has_space: bool) {
        let (state, reason) = match state {
            LogState::Open => (ProducerState::Open, None),
            LogState::DiskFull if has_space => (ProducerState::NoSegment, None),
            LogState::DiskFull => (ProducerState::DiskFull, None),
            LogState::Poisoned(error) => (ProducerState::Poisoned, Some(error)),
        };
        for port in self.ports.iter().flatten().filter(|port| port.durable) {
            if let Source::Ring { signal, .. } = &port.source {
                signal.set(state, reason.as_deref());
            }
        }
        self.log_state = Some((state, reason));
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

    /// Whether a handle has something to be told.
    pub(crate) fn owes_news(&self) -> bool {
        !self.told.is_empty()
    }

    /// End of a turn, after its fence: wakes producers that wait for space, and who waits for receipts.
    pub(crate) fn tell(&mut self) {
        for slot in self.told.drain(..) {
            if let Some(port) = self.ports[slot as usize].as_mut() {
                port.tell();
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
            let waiting = if refuse {
                0
            } else {
                port.len() + u64::from(port.held)
            };
            port.takes = Some(port.takes.map_or(waiting, |takes| takes.min(waiting)));
            if port.id.is_some() && !port.active {
                port.active = true;
                look(slot);
            }
        }
        self.held.clear();
    }

    /// Whether every entry that was to be taken is.
    pub(crate) fn drained(&self) -> bool {
        self.ports
            .iter()
            .flatten()
            .all(|port| port.takes == Some(0) && !port.held)
    }

    /// End of a stop: refuses what is still in rings and queues; returns how many entries.
    pub(crate) fn refuse_rest(&mut self, outbox: &mut Outbox) -> u64 {
        let mut refused = 0;
        for port in self.ports.iter_mut().flatten() {
            port.takes = Some(0);
            let Some(id) = port.id else { continue };
            let mut none = |_: ProducerId, _: &Publish| Handled::Taken;
            for _ in 0..=port.capacity() {
                if port.pop(id, &mut none, &mut self.refused) == Popped::Empty {
                    break;
                }
                refused += 1;
            }
            // Their entries may be stored; without that answer they are delivered again.
            if let Source::Forward { answers, .. } = &mut port.source {
                self.refused.extend(answers.drain(..));
            }
        }
        self.answer_refused(outbox);
        refused
    }

    /// Answers forwards that were refused without asking the core.
    pub(crate) fn answer_refused(&mut self, outbox: &mut Outbox) {
        for (from, token, body) in self.refused.drain(..) {
            outbox.answer(from, token, false, body);
        }
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
