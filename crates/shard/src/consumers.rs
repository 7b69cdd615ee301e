//! The consumers of a shard: rings to handles on other threads, and handlers that run here.

use std::collections::VecDeque;
use std::sync::Arc;

use pelton_broker::flow::{Grant, Granter};
use pelton_broker::storage::Position;
use pelton_broker::{ConsumerId, Run};
use pelton_rings::{Full, Sender};

use crate::mesh::Outbox;
use crate::port::{
    Arrival, CloseReason, ConsumerSignal, Handler, HandlerDelivery, PORTS_MAX, Ports,
    RUNS_WAITING_FEW, Verdict,
};

/// While the log is crowded, a consumer gets nothing more once so many runs wait for it: each keeps
/// a block in memory. What one pass brings comes on top.
const RUNS_WAITING_MAX: usize = 16;

/// All consumers by slot.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    ports: Vec<Option<ConsumerPort>>,
    free: Vec<u32>,
    /// Slots that got runs in this turn.
    told: Vec<u32>,
    /// Slots whose ring had no room for a run.
    spilled: Vec<u32>,
}

#[derive(Debug)]
struct ConsumerPort {
    id: Option<ConsumerId>,
    /// The serial it had before the first seek that began it again.
    first_serial: u32,
    to: To,
    signal: Arc<ConsumerSignal>,
    told: bool,
    /// It gets no more until it has taken what it has.
    held_back: bool,
    /// Whoever subscribed was told of it.
    answered: bool,
    /// Its handler panicked and is never called again.
    panicked: bool,
}

enum To {
    /// The ring, and runs that did not fit: more was granted than the ring has places.
    Ring {
        ring: Sender<Arrival>,
        spilled: VecDeque<Arrival>,
    },
    Handler(Box<HandlerPort>),
}

struct HandlerPort {
    handler: Handler,
    granter: Granter,
    /// What it was granted at first, in messages.
    window: u32,
}

/// What a handler said about the entries of a run; the caller tells the core.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pub(crate) acked: Vec<Position>,
    pub(crate) nacked: Vec<Position>,
    pub(crate) rejected: Vec<Position>,
    /// Its grant woke a dispatcher.
    pub(crate) granted: bool,
    /// It panicked: detach it.
    pub(crate) panicked: bool,
}

impl Verdicts {
    pub(crate) fn is_empty(&self) -> bool {
        let Verdicts {
            acked,
            nacked,
            rejected,
            granted,
            panicked,
        } = self;
        acked.is_empty() && nacked.is_empty() && rejected.is_empty() && !granted && !panicked
    }
}

impl Consumers {
    /// Slots ever used: the ready bits that can be set.
    pub(crate) fn used(&self) -> usize {
        self.ports.len()
    }

    /// Keeps the ends of a consumer that is about to be attached; gives its slot, or the ends back if
    /// there are [`PORTS_MAX`] already or they are not a consumer's.
    pub(crate) fn open(&mut self, ports: Ports) -> Result<u32, Ports> {
        if self.free.is_empty() && self.ports.len() == PORTS_MAX {
            return Err(ports);
        }
        let (to, signal) = match ports {
            Ports::Consumer { ring, signal } => (
                To::Ring {
                    ring,
                    spilled: VecDeque::new(),
                },
                signal,
            ),
            Ports::Handler {
                handler,
                granter,
                signal,
            } => {
                let window = u32::try_from(granter.granted()).unwrap_or(u32::MAX);
                let port = HandlerPort {
                    handler,
                    granter,
                    window,
                };
                (To::Handler(Box::new(port)), signal)
            }
            other => return Err(other),
        };
        let port = Some(ConsumerPort {
            id: None,
            first_serial: 0,
            to,
            signal,
            told: false,
            held_back: false,
            answered: false,
            panicked: false,
        });
        if let Some(slot) = self.free.pop() {
            self.ports[slot as usize] = port;
            return Ok(slot);
        }
        self.ports.push(port);
        Ok(u32::try_from(self.ports.len() - 1).expect("bounded by PORTS_MAX"))
    }

    /// The core attached it, and whoever subscribed is about to be told. True if its handler has
    /// panicked since: detach it.
    #[must_use]
    pub(crate) fn attached(&mut self, id: ConsumerId) -> bool {
        let Some(Some(port)) = self.ports.get_mut(id.slot as usize) else {
            return false;
        };
        port.id_or(id); // a seek may have begun it again already
        port.answered = true;
        port.panicked
    }

    /// A handler panicked: nothing more goes there. True if it is to be detached now. One whose
    /// subscribe has no answer yet keeps its slot until then, or the answer would meet another
    /// consumer there.
    #[must_use]
    pub(crate) fn panicked(&mut self, id: ConsumerId) -> bool {
        let Some(Some(port)) = self.ports.get_mut(id.slot as usize) else {
            return false;
        };
        port.panicked = true;
        port.signal.close(CloseReason::HandlerPanicked);
        port.answered
    }

    /// The core refused to attach it.
    pub(crate) fn not_attached(&mut self, slot: u32) {
        if self.ports[slot as usize].take().is_some() {
            self.free.push(slot);
        }
    }

    /// The core detached it, or is about to: nothing more goes there.
    pub(crate) fn close(&mut self, id: ConsumerId, reason: CloseReason) {
        if let Some(slot) = self.ports.get_mut(id.slot as usize)
            && slot.as_ref().is_some_and(|port| port.had(id))
            && let Some(port) = slot.take()
        {
            port.signal.close(reason);
            self.free.push(id.slot);
        }
    }

    /// Failover: tells a consumer whether it is the active one.
    pub(crate) fn set_active(&mut self, id: ConsumerId, active: bool) {
        if let Some(Some(port)) = self.ports.get_mut(id.slot as usize)
            && port.id_or(id) == id
        {
            port.signal.set_active(active);
        }
    }

    /// A seek has begun it again: what was on its way to it is dropped. True if a handler's new grant
    /// woke its dispatcher.
    pub(crate) fn reset(
        &mut self,
        ended: ConsumerId,
        becomes: ConsumerId,
        granter: Granter,
    ) -> bool {
        let Some(Some(port)) = self.ports.get_mut(ended.slot as usize) else {
            return false;
        };
        if port.id_or(ended) != ended {
            return false;
        }
        port.id = Some(becomes);
        port.signal.reset();
        if std::mem::take(&mut port.held_back) {
            port.signal.set_held_back(false);
        }
        let slot = becomes.slot;
        match &mut port.to {
            To::Ring { ring, spilled } => {
                let waits = !spilled.is_empty();
                spilled.clear();
                let mark = Arrival::Reset { becomes, granter };
                if let Err(Full(mark)) = ring.push(mark) {
                    spilled.push_back(mark);
                    if !waits {
                        self.spilled.push(slot);
                    }
                }
                if !std::mem::replace(&mut port.told, true) {
                    self.told.push(slot);
                }
                false
            }
            To::Handler(handler) => {
                handler.granter = granter;
                handler.granter.grant(handler.window) == Grant::Ring
            }
        }
    }

    /// Nothing more comes to it, unless somebody seeks.
    pub(crate) fn end_of_topic(&mut self, id: ConsumerId) {
        if let Some(Some(port)) = self.ports.get_mut(id.slot as usize)
            && port.id_or(id) == id
        {
            port.signal.set_at_end();
        }
    }

    /// The attachment in a slot.
    pub(crate) fn id_of(&self, slot: u32) -> Option<ConsumerId> {
        self.ports.get(slot as usize)?.as_ref()?.id
    }

    /// Gives a run to its consumer. A handler's verdicts are added to `handled`.
    pub(crate) fn hand_over(
        &mut self,
        consumer: ConsumerId,
        run: Run,
        outbox: &mut Outbox,
        handled: &mut Verdicts,
    ) {
        let Some(Some(port)) = self.ports.get_mut(consumer.slot as usize) else {
            return;
        };
        // The first runs may come before the reply that names the attachment.
        if port.id_or(consumer) != consumer || port.panicked {
            return;
        }
        match &mut port.to {
            To::Ring { ring, spilled } => {
                if !port.told {
                    port.told = true;
                    self.told.push(consumer.slot);
                }
                let run = Arrival::Run(run);
                if !spilled.is_empty() {
                    spilled.push_back(run);
                } else if let Err(Full(run)) = ring.push(run) {
                    spilled.push_back(run);
                    self.spilled.push(consumer.slot);
                }
            }
            To::Handler(handler) => handler.run(consumer, &run, outbox, handled),
        }
    }

    /// Offers again what did not fit. Nobody says when a ring has room, so the shard looks.
    pub(crate) fn push_spilled(&mut self) {
        let Consumers {
            ports,
            told,
            spilled: waiting,
            ..
        } = self;
        waiting.retain(|&slot| {
            let Some(ConsumerPort {
                to: To::Ring { ring, spilled },
                told: flag,
                ..
            }) = ports[slot as usize].as_mut()
            else {
                return false;
            };
            if ring.push_chunk(&mut std::iter::from_fn(|| spilled.pop_front())) > 0 && !*flag {
                *flag = true;
                told.push(slot);
            }
            !spilled.is_empty()
        });
    }

    /// Memory is short: names those who got runs in this turn and do not take them, to be held back
    /// until [`Consumers::has_room`] (rules D79 and D80).
    pub(crate) fn hold_back(&mut self, mut held: impl FnMut(ConsumerId)) {
        for &slot in &self.told {
            if let Some(port) = self.ports[slot as usize].as_mut()
                && !port.held_back
                && port.waiting() > RUNS_WAITING_MAX
                && let Some(id) = port.id
                && port.stays_held_back()
            {
                held(id);
            }
        }
    }

    /// The handle in this slot has said something: names it if it was held back and has taken what
    /// it had.
    pub(crate) fn has_room(&mut self, slot: u32) -> Option<ConsumerId> {
        let port = self.ports.get_mut(slot as usize)?.as_mut()?;
        (port.held_back && !port.stays_held_back()).then_some(port.id)?
    }

    /// Whether runs wait for room in a ring.
    pub(crate) fn any_spilled(&self) -> bool {
        !self.spilled.is_empty()
    }

    /// Whether a handle has something to be told.
    pub(crate) fn owes_news(&self) -> bool {
        !self.told.is_empty()
    }

    /// End of a turn, after its fence: wakes every consumer that got something, once.
    pub(crate) fn tell(&mut self) {
        for slot in self.told.drain(..) {
            if let Some(port) = self.ports[slot as usize].as_mut() {
                port.told = false;
                port.signal.delivered();
            }
        }
    }
}

impl ConsumerPort {
    /// Runs that its handle has not taken; a handler never lets any wait.
    fn waiting(&mut self) -> usize {
        match &mut self.to {
            To::Ring { ring, spilled } => ring.capacity() - ring.free() + spilled.len(),
            To::Handler(_) => 0,
        }
    }

    /// Asks the handle to say when it has taken what it has; false if it has already.
    fn stays_held_back(&mut self) -> bool {
        self.signal.set_held_back(true);
        self.held_back = self.waiting() > RUNS_WAITING_FEW;
        if !self.held_back {
            self.signal.set_held_back(false);
        }
        self.held_back
    }

    /// The attachment; `id` if it has none yet.
    #[inline]
    fn id_or(&mut self, id: ConsumerId) -> ConsumerId {
        *self.id.get_or_insert_with(|| {
            self.first_serial = id.serial;
            id
        })
    }

    /// Whether an id is its own, of now or before a seek.
    fn had(&self, id: ConsumerId) -> bool {
        let age = |serial: u32| serial.wrapping_sub(self.first_serial);
        self.id
            .is_some_and(|now| now.slot == id.slot && age(id.serial) <= age(now.serial))
    }
}

impl HandlerPort {
    fn run(
        &mut self,
        consumer: ConsumerId,
        run: &Run,
        outbox: &mut Outbox,
        handled: &mut Verdicts,
    ) {
        for slot in run.first_slot..run.first_slot + run.count {
            let position = run.block.meta(slot).position;
            let delivery = HandlerDelivery::new(run, slot, outbox);
            match self.handler.call(&delivery) {
                Some(Verdict::Ack) => {
                    if !outbox.send_current(consumer, position) {
                        handled.acked.push(position);
                    }
                }
                Some(Verdict::Nack) => {
                    outbox.drop_current();
                    handled.nacked.push(position);
                }
                Some(Verdict::Reject) => {
                    outbox.drop_current();
                    handled.rejected.push(position);
                }
                None => {
                    outbox.drop_current();
                    handled.panicked = true;
                    return;
                }
            }
        }
        self.granter.received(run.messages);
        handled.granted |= self.granter.grant(run.messages) == Grant::Ring;
    }
}

impl Drop for ConsumerPort {
    /// However a shard ends: nobody waits for it any longer. A reason given before stays.
    fn drop(&mut self) {
        self.signal.close(CloseReason::EngineStopped);
    }
}

impl std::fmt::Debug for To {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            To::Ring { .. } => "Ring",
            To::Handler(_) => "Handler",
        })
    }
}
