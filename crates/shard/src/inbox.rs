//! Every source of a shard as two lanes: control before data, by credit; round robin within a lane.
//!
//! | lane | sources |
//! |---|---|
//! | control | closes whose fence opened, the inbox ring, the mesh control ring of each peer |
//! | data | the inbox ring (acks), grants, the mesh data ring of each peer, the ring of each producer |
//!
//! A data source is in `sources` while it may hold something. Ready bits put it there (or a look at its
//! ring: `watched.rs`), and only a look that finds it empty takes it out; what was published after that
//! look is found by the next one.

use std::collections::VecDeque;
use std::sync::Arc;

use pelton_broker::{Handled, ProducerId, Request};
use pelton_rings::{Credit, Lane, PriorityReceiver};

use crate::mesh::{CONTROL, DATA, FromPeer, PeerData};
use crate::port::{Control, Data, Lanes, Overflowed, Publish, Shared, Stamped, for_each_bit};
use crate::producer_port::Popped;
use crate::producers::Producers;
use crate::watched::Watched;

/// Items of one source in a row (A1.4).
const VISIT_ITEMS: u32 = 16;

/// Everything a shard can be given, and the rule by which it takes it.
#[derive(Debug)]
pub(crate) struct Inbox {
    shared: Arc<Shared>,
    lanes: PriorityReceiver<Stamped, Data>,
    /// What found no room in `lanes`: served as a part of them, behind the rest.
    overflow: Overflowed,
    peers: Vec<Option<FromPeer>>,
    pub(crate) producers: Producers,
    watched: Watched,
    credit: Credit,
    /// Data sources that may hold something, the one that is served first.
    sources: VecDeque<Source>,
    /// Items left in the visit of the first source.
    visit: u32,
    lane_listed: bool,
    peer_listed: Vec<bool>,
    /// Consumers that granted permits a dispatcher waits for.
    grants: VecDeque<u32>,
    consumers_used: usize,
    /// Peers whose control ring may hold something.
    control_peers: VecDeque<u32>,
    control_visit: u32,
    /// Data items ever popped from `lanes`.
    data_popped: u64,
    /// Control that waits for data (A5), oldest first.
    fenced: VecDeque<(Fence, Stamped)>,
    opened: VecDeque<Stamped>,
}

/// Opens once so many items of the data lane, and of what overflowed from it, were popped.
#[derive(Clone, Copy, Debug)]
struct Fence {
    lane: u64,
    overflow: u64,
}

/// A source of the data lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Lane,
    Grants,
    Peer(u32),
    Producer(u32),
}

/// What goes straight to the core.
#[derive(Debug)]
pub(crate) enum Input<'a> {
    /// An entry, in its slot; it may be held back.
    Publish(ProducerId, &'a Publish),
    /// From the inbox ring.
    Data(Data),
}

/// What the shard itself handles.
#[derive(Debug)]
pub(crate) enum Item {
    /// From the control lane.
    Control(Stamped),
    /// A consumer slot whose handle granted permits.
    Granted(u32),
    /// From another shard.
    Peer { from: u32, data: PeerData },
}

/// What one look at the data lane gave. Small: it is passed around for every entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Took {
    Nothing,
    /// It went to the core.
    Done,
    Granted(u32),
    /// That peer's ring has an item.
    Peer(u32),
}

impl Inbox {
    pub(crate) fn new(shared: Arc<Shared>, lanes: Lanes, peers: Vec<Option<FromPeer>>) -> Inbox {
        let Lanes { ring, overflow } = lanes;
        Inbox {
            shared,
            lanes: ring,
            overflow,
            peer_listed: vec![false; peers.len()],
            peers,
            producers: Producers::default(),
            watched: Watched::default(),
            credit: Credit::new(),
            sources: VecDeque::new(),
            visit: VISIT_ITEMS,
            lane_listed: false,
            grants: VecDeque::new(),
            consumers_used: 0,
            control_peers: VecDeque::new(),
            control_visit: VISIT_ITEMS,
            data_popped: 0,
            fenced: VecDeque::new(),
            opened: VecDeque::new(),
        }
    }

    /// Once per turn: which sources have announced something since the last look.
    pub(crate) fn look(&mut self) {
        let Inbox {
            shared,
            producers,
            watched,
            sources,
            grants,
            peer_listed,
            control_peers,
            ..
        } = self;
        watched.look(&shared.publishes, producers, |slot| {
            sources.push_back(Source::Producer(slot));
        });
        if producers.any_held() {
            producers.release_held(|slot| sources.push_back(Source::Producer(slot)));
        }
        let granted = grants.len();
        shared
            .grants
            .take(self.consumers_used, |slot| grants.push_back(slot));
        if granted == 0 && !grants.is_empty() {
            sources.push_back(Source::Grants);
        }
        if peer_listed.len() > 1 {
            take_bits(&shared.mesh[DATA], |peer| {
                if !std::mem::replace(&mut peer_listed[peer as usize], true) {
                    sources.push_back(Source::Peer(peer));
                }
            });
            take_bits(&shared.mesh[CONTROL], |peer| {
                if !control_peers.contains(&peer) {
                    control_peers.push_back(peer);
                }
            });
        }
        self.overflow.look();
        if !self.lane_listed && self.lane_waits() {
            self.lane_listed = true;
            self.sources.push_back(Source::Lane);
        }
    }

    /// Takes items by the lane rule (A3) until `budget` is 0 or nothing is there, or one comes that
    /// the shard handles. Entries and acks go to `core`; an entry that is held back stays first in
    /// line while the other sources go on. Control is looked at before every item (A4.1).
    #[inline]
    pub(crate) fn take(
        &mut self,
        budget: &mut u32,
        core: &mut impl FnMut(Input<'_>) -> Handled,
    ) -> Option<Item> {
        while *budget > 0 {
            let (count, took) = if self.control_waits() {
                let (before, data_waits) = (self.credit.clone(), self.data_waits());
                let taken = match self.credit.choose(true, data_waits)? {
                    Lane::Control => match self.pop_control() {
                        Some(item) => {
                            *budget -= 1;
                            return Some(Item::Control(item));
                        }
                        None => (0, Took::Nothing),
                    },
                    Lane::Data => self.pop_data(1, core),
                };
                if taken.0 == 0 {
                    // All control was fenced, or all data held back: nothing was dispatched.
                    self.credit = before;
                    continue;
                }
                taken
            } else {
                let taken = self.pop_data(*budget, core);
                // Charged for what was dispatched: a source found empty costs nothing, and more than
                // four items in a row change nothing.
                for _ in 0..taken.0.min(Credit::MAX.div_ceil(Credit::PER_DATA)) {
                    self.credit.choose(false, true);
                }
                taken
            };
            *budget -= count;
            match took {
                Took::Nothing => return None,
                Took::Done => {}
                Took::Granted(slot) => return Some(Item::Granted(slot)),
                Took::Peer(from) => {
                    let peer = self.peers[from as usize].as_mut();
                    return peer
                        .and_then(|peer| peer.data.pop())
                        .map(|data| Item::Peer { from, data });
                }
            }
        }
        None
    }

    /// Whether anything can be taken: the second look of a sleeper (A2.2), and of a spinning shard.
    pub(crate) fn has_work(&self) -> bool {
        self.lanes.has_published()
            || !self.overflow.is_empty()
            || !self.sources.is_empty()
            || !self.opened.is_empty()
            || !self.control_peers.is_empty()
            || self.watched.any(&self.shared.publishes, &self.producers)
            || self.shared.grants.any(self.consumers_used)
            || (self.peers.len() > 1 && self.shared.mesh.iter().any(|words| words.any()))
    }

    /// The credit left, for the record of a long turn.
    pub(crate) fn credit(&self) -> u32 {
        self.credit.level()
    }

    /// Depth of both lanes: control, data.
    pub(crate) fn depths(&self) -> (usize, usize) {
        let (control, data) = self.overflow.lens();
        (
            self.lanes.control_len() + control + self.fenced.len(),
            self.lanes.data_len() + data,
        )
    }

    /// Whether a pusher was interrupted inside a push, with others behind it.
    pub(crate) fn stalled(&self) -> bool {
        self.lanes.stalled()
    }

    /// Slots of consumers ever used: the grant bits that can be set.
    pub(crate) fn set_consumers_used(&mut self, used: usize) {
        self.consumers_used = used;
    }

    /// Puts a producer among the sources although its ready bit is not set.
    pub(crate) fn activate(&mut self, slot: u32) {
        if self.producers.activate(slot) {
            self.sources.push_back(Source::Producer(slot));
        }
    }

    /// First step of a stop; see [`Producers::stop`].
    pub(crate) fn stop(&mut self, refuse: bool) {
        let sources = &mut self.sources;
        self.producers
            .stop(refuse, |slot| sources.push_back(Source::Producer(slot)));
    }

    /// Last step of a stop: refuses every later push and gives back what is still queued, which is
    /// dropped by the caller. Control without an answer tells its asker so.
    pub(crate) fn close(&mut self) -> (u64, u64) {
        self.lanes.close();
        let (mut control, mut data) = (0, 0);
        // A pusher may be between claim and publish; it finishes without help from us.
        loop {
            while self.lanes.pop_control().is_some() {
                control += 1;
            }
            while self.lanes.pop_data().is_some() {
                data += 1;
            }
            if self.lanes.is_drained() {
                break;
            }
            std::thread::yield_now();
        }
        while self.overflow.pop_control().is_some() {
            control += 1;
        }
        while self.overflow.pop_data().is_some() {
            data += 1;
        }
        control += (self.fenced.len() + self.opened.len()) as u64;
        self.fenced.clear();
        self.opened.clear();
        for peer in self.peers.iter_mut().flatten() {
            while peer.control.pop().is_some() {
                control += 1;
            }
        }
        (control, data)
    }

    #[inline]
    fn control_waits(&self) -> bool {
        self.lanes.control_waits()
            || self.overflow.has_control
            || !self.opened.is_empty()
            || !self.control_peers.is_empty()
    }

    /// Whether the data lane holds something, in its ring or behind.
    #[inline]
    fn lane_waits(&self) -> bool {
        self.lanes.data_waits() || self.overflow.has_data
    }

    /// Whether a data source holds something for sure. Sources found empty leave the list.
    fn data_waits(&mut self) -> bool {
        while let Some(&source) = self.sources.front() {
            let waits = match source {
                Source::Lane => self.lane_waits(),
                Source::Grants => !self.grants.is_empty(),
                Source::Peer(from) => self.peers[from as usize]
                    .as_ref()
                    .is_some_and(|peer| !peer.data.is_empty()),
                Source::Producer(slot) => self.producers.waits(slot),
            };
            if waits {
                return true;
            }
            self.unlist(source);
        }
        false
    }

    /// Takes up to `max` items of the first source that has any, within its visit, and as long as
    /// no control comes. How many, and what the last one is.
    #[inline]
    fn pop_data(&mut self, max: u32, core: &mut impl FnMut(Input<'_>) -> Handled) -> (u32, Took) {
        while let Some(&source) = self.sources.front() {
            let max = max.min(self.visit);
            let (count, took) = match source {
                Source::Producer(slot) => self.pop_producer(slot, max, core),
                Source::Lane => self.pop_lane(max, core),
                Source::Grants => match self.grants.pop_front() {
                    Some(slot) => (1, Took::Granted(slot)),
                    None => (0, Took::Nothing),
                },
                Source::Peer(from) => match &self.peers[from as usize] {
                    Some(peer) if !peer.data.is_empty() => (1, Took::Peer(from)),
                    _ => (0, Took::Nothing),
                },
            };
            self.visit -= count;
            if took == Took::Nothing {
                self.unlist(source);
            } else if self.visit == 0 {
                self.visit = VISIT_ITEMS;
                if self.sources.len() > 1 {
                    self.sources.rotate_left(1);
                }
            }
            if count > 0 {
                // `Nothing` says that the source is empty behind these.
                return (
                    count,
                    if took == Took::Nothing {
                        Took::Done
                    } else {
                        took
                    },
                );
            }
        }
        (0, Took::Nothing)
    }

    #[inline]
    fn pop_producer(
        &mut self,
        slot: u32,
        max: u32,
        core: &mut impl FnMut(Input<'_>) -> Handled,
    ) -> (u32, Took) {
        let lanes = &self.lanes;
        let (count, last) =
            self.producers
                .pop_run(slot, max, || !lanes.control_waits(), &mut |id, entry| {
                    core(Input::Publish(id, entry))
                });
        match last {
            Popped::Entry => (count, Took::Done),
            Popped::LastEntry => {
                self.opened.extend(self.producers.take_due_close(slot));
                (count, Took::Done)
            }
            Popped::Empty | Popped::Held => (count, Took::Nothing),
        }
    }

    #[inline]
    fn pop_lane(&mut self, max: u32, core: &mut impl FnMut(Input<'_>) -> Handled) -> (u32, Took) {
        let mut count = 0;
        while count < max {
            let Some(data) = self.pop_lane_data() else {
                return (count, Took::Nothing);
            };
            let _ = core(Input::Data(data));
            count += 1;
            if !self.fenced.is_empty() {
                self.open_fences();
            }
            if self.control_waits() {
                break;
            }
        }
        (count, Took::Done)
    }

    #[inline]
    fn pop_lane_data(&mut self) -> Option<Data> {
        if let Some(data) = self.lanes.pop_data() {
            self.data_popped += 1;
            return Some(data);
        }
        // Not past a pusher that is inside its push: what it holds up may be of our pusher.
        let next = self.overflow.has_data && self.lanes.data_len() == 0;
        if next { self.overflow.pop_data() } else { None }
    }

    /// The first source is empty (or held back): it comes again by its bit, or with the next look.
    fn unlist(&mut self, source: Source) {
        self.sources.pop_front();
        self.visit = VISIT_ITEMS;
        match source {
            Source::Lane => {
                self.lane_listed = false;
                self.open_fences();
            }
            Source::Grants => {}
            Source::Peer(from) => self.peer_listed[from as usize] = false,
            Source::Producer(slot) => self.producers.deactivate(slot),
        }
    }

    fn pop_control(&mut self) -> Option<Stamped> {
        if let Some(item) = self.opened.pop_front() {
            return Some(item);
        }
        while let Some(item) = self.pop_ring_control() {
            if let Some(item) = self.pass_fence(item) {
                return Some(item);
            }
        }
        None
    }

    fn pop_ring_control(&mut self) -> Option<Stamped> {
        // The inbox and the peers take turns, 16 items each.
        if self.control_peers.is_empty() || (self.control_visit > 0 && self.lanes.control_waits()) {
            self.control_visit = self.control_visit.saturating_sub(1);
            return self.pop_lane_control();
        }
        while let Some(&from) = self.control_peers.front() {
            let item = self.peers[from as usize]
                .as_mut()
                .and_then(|peer| peer.control.pop());
            if item.is_some() {
                self.control_peers.rotate_left(1);
                self.control_visit = VISIT_ITEMS;
                return item;
            }
            self.control_peers.pop_front();
        }
        self.pop_lane_control()
    }

    fn pop_lane_control(&mut self) -> Option<Stamped> {
        if let Some(item) = self.lanes.pop_control() {
            return Some(item);
        }
        // As in `pop_lane_data`.
        let next = self.overflow.has_control && self.lanes.control_len() == 0;
        if next {
            self.overflow.pop_control()
        } else {
            None
        }
    }

    /// Rule A5: what closes or flushes waits for the data its source pushed before it. The item if
    /// nothing is before it.
    fn pass_fence(&mut self, item: Stamped) -> Option<Stamped> {
        let Control::Request { request, .. } = &item.control else {
            return Some(item);
        };
        match request {
            Request::CloseProducer { producer } => {
                let producer = *producer;
                let item = self.producers.park_close(producer, item);
                self.activate(producer.slot);
                item
            }
            Request::CloseConsumer { .. }
            | Request::FlushAcks { .. }
            | Request::Unsubscribe { .. }
            | Request::DeleteTopic { .. } => {
                // All sources share one data lane: what any of them pushed before is ahead.
                let ahead = self.lanes.data_len() as u64;
                let (popped, overflow) = self.overflow.data_count();
                if ahead == 0 && overflow == popped && self.fenced.is_empty() {
                    return Some(item);
                }
                let lane = self.data_popped + ahead;
                self.fenced.push_back((Fence { lane, overflow }, item));
                None
            }
            // Whoever closed a consumer and subscribes again finds its place free.
            Request::Subscribe(_) if let Some((fence, _)) = self.fenced.back() => {
                self.fenced.push_back((*fence, item));
                None
            }
            _ => Some(item),
        }
    }

    fn open_fences(&mut self) {
        // An empty lane is behind all: a push that was cut short leaves a place that is never popped.
        let empty = self.lanes.data_len() == 0;
        let (popped, _) = self.overflow.data_count();
        while self.fenced.front().is_some_and(|(fence, _)| {
            (empty || fence.lane <= self.data_popped) && fence.overflow <= popped
        }) {
            self.opened
                .extend(self.fenced.pop_front().map(|(_, item)| item));
        }
    }
}

fn take_bits(words: &pelton_rings::ReadyWords, mut found: impl FnMut(u32)) {
    for word in 0..words.words() {
        for_each_bit(word, words.take(word), &mut found);
    }
}
