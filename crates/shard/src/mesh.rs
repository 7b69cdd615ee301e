//! The mesh: a ring pair per ordered pair of shards, two lanes each, and what a shard has for others.
//!
//! Three things cross: control requests that arrived at a shard that does not own their topic,
//! entries that a handler forwards, and dead letters; the latter two with their answers. A full ring makes its sender keep the items,
//! in order, while it goes on draining its own inbox (rule A7.2), so two full shards cannot block
//! each other. The memory of a forwarded body goes home with its answer (rule A7.3).

use std::collections::VecDeque;
use std::sync::Arc;

use pelton_broker::storage::Position;
use pelton_broker::{ConsumerId, Letter, ProducerId};
use pelton_metrics::{Counter, Counters};
use pelton_rings::{Receiver, Sender, spsc};

use crate::port::{ForwardError, ForwardTo, Shared, Stamped};

/// Slots of a mesh ring's control lane (A1).
const MESH_CONTROL_SLOTS: usize = 128;
/// Slots of a mesh ring's data lane (A1).
const MESH_DATA_SLOTS: usize = 1_024;
/// Forwards to one shard that are not answered yet, at most: what its queues must hold.
const FORWARDS_MAX: usize = 4_096;
/// Bodies kept for the next forwards.
const SPARE_BODIES_MAX: usize = 64;

/// Indices into [`Shared::mesh`].
pub(crate) const CONTROL: usize = 0;
pub(crate) const DATA: usize = 1;

/// An item of the data lane between shards.
#[derive(Debug)]
pub(crate) enum PeerData {
    /// An entry for a topic of the receiver.
    Forward(Forwarded),
    /// What became of one.
    Answer {
        token: u32,
        stored: bool,
        body: Vec<u8>,
    },
    /// A dead letter for a topic of the receiver; the sending core bounds how many are on their way.
    Letter { token: u64, letter: Box<Letter> },
    /// What became of one.
    LetterAnswer { token: u64, stored: bool },
}

/// An entry on its way to the shard that owns its topic.
#[derive(Debug)]
pub(crate) struct Forwarded {
    pub(crate) producer: ProducerId,
    pub(crate) messages: u32,
    pub(crate) key_hash: u32,
    pub(crate) arrived_ns: u64,
    /// Whom to answer: shard and its number for the entry that waits for this.
    pub(crate) from: u32,
    pub(crate) token: u32,
    pub(crate) body: Vec<u8>,
}

/// The receiving ends of the rings from one peer.
#[derive(Debug)]
pub(crate) struct FromPeer {
    pub(crate) control: Receiver<Stamped>,
    pub(crate) data: Receiver<PeerData>,
}

/// What a shard sends to others, itself included.
#[derive(Debug)]
pub(crate) struct Outbox {
    own: u32,
    peers: Vec<ToPeer>,
    /// Of the handler call that is going on; sent if its verdict is `Ack`.
    current: Vec<(u32, Forwarded)>,
    /// Entries whose ack waits for forwards, by token.
    waiting: Vec<Option<Waiting>>,
    free_tokens: Vec<u32>,
    spare_bodies: Vec<Vec<u8>>,
    now_ns: u64,
}

/// The sending ends to one peer; none for the shard itself, whose `data` is taken by its own turn.
#[derive(Debug)]
struct ToPeer {
    link: Option<Link>,
    control: VecDeque<Stamped>,
    data: VecDeque<PeerData>,
    /// Forwards sent and not answered.
    unanswered: usize,
}

#[derive(Debug)]
struct Link {
    shared: Arc<Shared>,
    control: Sender<Stamped>,
    data: Sender<PeerData>,
}

/// An entry that a handler acked, and that is acked once its forwards are stored.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    consumer: ConsumerId,
    position: Position,
    left: u32,
    refused: bool,
}

/// The last answer for an entry came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    pub(crate) consumer: ConsumerId,
    pub(crate) position: Position,
    pub(crate) stored: bool,
}

/// All rings of an engine; element i is what shard i gets.
pub(crate) fn mesh(shards: &[Arc<Shared>]) -> Vec<(Outbox, Vec<Option<FromPeer>>)> {
    let count = shards.len();
    let mut ends: Vec<(Outbox, Vec<Option<FromPeer>>)> = (0..count)
        .map(|own| {
            (
                Outbox::new(own as u32, count),
                (0..count).map(|_| None).collect(),
            )
        })
        .collect();
    for from in 0..count {
        for to in (0..count).filter(|&to| to != from) {
            let (control, control_receiver) = spsc(MESH_CONTROL_SLOTS);
            let (data, data_receiver) = spsc(MESH_DATA_SLOTS);
            let shared = Arc::clone(&shards[to]);
            ends[from].0.peers[to].link = Some(Link {
                shared,
                control,
                data,
            });
            ends[to].1[from] = Some(FromPeer {
                control: control_receiver,
                data: data_receiver,
            });
        }
    }
    ends
}

impl Outbox {
    fn new(own: u32, shards: usize) -> Outbox {
        let peer = || ToPeer {
            link: None,
            control: VecDeque::new(),
            data: VecDeque::new(),
            unanswered: 0,
        };
        Outbox {
            own,
            peers: (0..shards).map(|_| peer()).collect(),
            current: Vec::new(),
            waiting: Vec::new(),
            free_tokens: Vec::new(),
            spare_bodies: Vec::new(),
            now_ns: 0,
        }
    }

    /// The time of this turn: when forwards of this turn arrive.
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
    }

    /// Gathers one forward of the handler call that is going on.
    pub(crate) fn forward(
        &mut self,
        to: &ForwardTo,
        body: &[u8],
        messages: u32,
        key_hash: u32,
    ) -> Result<(), ForwardError> {
        let Some(peer) = self.peers.get(to.shard as usize) else {
            return Err(ForwardError::NoShard(to.shard));
        };
        if peer.unanswered + self.current.len() >= FORWARDS_MAX {
            return Err(ForwardError::Full(to.shard));
        }
        let mut memory = self.spare_bodies.pop().unwrap_or_default();
        memory.clear();
        memory.extend_from_slice(body);
        let forwarded = Forwarded {
            producer: to.producer,
            messages,
            key_hash,
            arrived_ns: self.now_ns,
            from: self.own,
            token: 0,
            body: memory,
        };
        self.current.push((to.shard, forwarded));
        Ok(())
    }

    /// Ends a handler call that wants its entry acked. False if it forwarded nothing: ack it now.
    pub(crate) fn send_current(&mut self, consumer: ConsumerId, position: Position) -> bool {
        if self.current.is_empty() {
            return false;
        }
        let left = u32::try_from(self.current.len()).expect("bounded by FORWARDS_MAX");
        let waiting = Some(Waiting {
            consumer,
            position,
            left,
            refused: false,
        });
        let token = match self.free_tokens.pop() {
            Some(token) => {
                self.waiting[token as usize] = waiting;
                token
            }
            None => {
                self.waiting.push(waiting);
                u32::try_from(self.waiting.len() - 1).expect("bounded by FORWARDS_MAX per shard")
            }
        };
        for (to, mut forwarded) in self.current.drain(..) {
            forwarded.token = token;
            let peer = &mut self.peers[to as usize];
            peer.unanswered += 1;
            peer.data.push_back(PeerData::Forward(forwarded));
        }
        true
    }

    /// Ends a handler call whose entry comes again: what it forwarded is not sent.
    pub(crate) fn drop_current(&mut self) {
        while let Some((_, forwarded)) = self.current.pop() {
            self.keep(forwarded.body);
        }
    }

    /// Answers a forward that came from shard `to`.
    pub(crate) fn answer(&mut self, to: u32, token: u32, stored: bool, body: Vec<u8>) {
        self.peers[to as usize].data.push_back(PeerData::Answer {
            token,
            stored,
            body,
        });
    }

    /// Takes an answer of shard `from`; the last one of an entry settles it.
    pub(crate) fn answered(
        &mut self,
        from: u32,
        token: u32,
        stored: bool,
        body: Vec<u8>,
    ) -> Option<Settled> {
        self.keep(body);
        self.peers[from as usize].unanswered -= 1;
        let slot = &mut self.waiting[token as usize];
        let waiting = slot.as_mut()?;
        waiting.left -= 1;
        waiting.refused |= !stored;
        if waiting.left > 0 {
            return None;
        }
        let Waiting {
            consumer,
            position,
            refused,
            ..
        } = *waiting;
        *slot = None;
        self.free_tokens.push(token);
        Some(Settled {
            consumer,
            position,
            stored: !refused,
        })
    }

    /// Sends a dead letter to the shard that owns its topic.
    pub(crate) fn send_letter(&mut self, to: u32, token: u64, letter: Box<Letter>) {
        let data = &mut self.peers[to as usize].data;
        data.push_back(PeerData::Letter { token, letter });
    }

    /// Answers a dead letter that came from shard `to`.
    pub(crate) fn answer_letter(&mut self, to: u32, token: u64, stored: bool) {
        let data = &mut self.peers[to as usize].data;
        data.push_back(PeerData::LetterAnswer { token, stored });
    }

    /// Hands a control request to the shard that owns its topic.
    pub(crate) fn send_control(&mut self, to: u32, item: Stamped) {
        self.peers[to as usize].control.push_back(item);
    }

    /// What the shard has for itself.
    pub(crate) fn pop_own(&mut self) -> Option<PeerData> {
        self.peers[self.own as usize].data.pop_front()
    }

    /// Pushes what has gathered; once per turn. A ring without room keeps the rest for later.
    pub(crate) fn flush(&mut self, counters: &mut Counters) {
        let own = self.own as usize;
        for peer in &mut self.peers {
            let Some(link) = peer.link.as_mut() else {
                continue;
            };
            if !peer.control.is_empty() {
                let full = Counter::MeshFullControl;
                push(
                    &mut link.control,
                    &mut peer.control,
                    &link.shared,
                    (CONTROL, own),
                    full,
                    counters,
                );
            }
            if !peer.data.is_empty() {
                let full = Counter::MeshFullData;
                push(
                    &mut link.data,
                    &mut peer.data,
                    &link.shared,
                    (DATA, own),
                    full,
                    counters,
                );
            }
        }
    }

    /// Whether something waits for room in a peer's ring: nobody rings when there is.
    pub(crate) fn waits_for_room(&self) -> bool {
        self.peers
            .iter()
            .any(|peer| peer.link.is_some() && !(peer.control.is_empty() && peer.data.is_empty()))
    }

    fn keep(&mut self, body: Vec<u8>) {
        if self.spare_bodies.len() < SPARE_BODIES_MAX
            && body.capacity() <= crate::port::BODY_KEPT_MAX
        {
            self.spare_bodies.push(body);
        }
    }
}

fn push<T>(
    ring: &mut Sender<T>,
    items: &mut VecDeque<T>,
    to: &Shared,
    (lane, own): (usize, usize),
    full: Counter,
    counters: &mut Counters,
) {
    // The ring asks for a value only when it has a place for it, so the rest stays in the list.
    if ring.push_chunk(&mut std::iter::from_fn(|| items.pop_front())) > 0 {
        let wake = to.mesh[lane].set_and_ring(own, to.doorbell());
        if to.wake(wake) {
            counters.increment(Counter::WakesSent);
        }
    }
    if !items.is_empty() {
        counters.add(full, items.len() as u64);
    }
}
