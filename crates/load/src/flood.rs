//! More data than a shard gets through: producers whose queues are kept full, and handlers on the
//! shard's own thread that take everything. A consumer on the client's thread would cost that thread
//! more than it costs the shard, and the queues would run empty.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release},
};

use pelton::{EngineStats, HandlerGuard, InitialPosition, Topic, Verdict as HandlerVerdict};

use crate::{
    LoadError,
    bench::{NO_SAMPLE, Shape},
    embedded::{Clock, STALL_NS},
    payload::Header,
    sender::Sender,
    verify::{Verdict, Verifier},
};

/// Entries sent in a step: some microseconds.
const STEP: usize = 16;

/// Subscriptions of a topic, one handler each: with four of them a message is several times the work
/// for the shard that it is for the client.
const SUBSCRIPTIONS: [&str; 4] = ["flood-0", "flood-1", "flood-2", "flood-3"];

/// The producers and what became of their messages.
pub(crate) struct Flood {
    clock: Clock,
    senders: Vec<Sender>,
    /// Numbers what is sent; it is checked where it arrives.
    sent: Verifier,
    arrived: Vec<Arc<Arrived>>,
    topics: Vec<Topic>,
    _guards: Vec<HandlerGuard>,
    /// Whose turn it is.
    turn: usize,
}

/// Written by a shard's thread, read by the client's.
#[derive(Default)]
struct Arrived {
    count: AtomicU64,
    out_of_order: AtomicU64,
}

impl Flood {
    /// `shape.producers` producers on each topic, with nothing sent yet.
    pub(crate) fn attach(
        clock: &Clock,
        topics: Vec<Topic>,
        shape: &Shape,
    ) -> Result<Flood, LoadError> {
        let producers = topics.len() * shape.producers;
        let (mut senders, mut arrived, mut guards) = (Vec::new(), Vec::new(), Vec::new());
        for topic in &topics {
            for subscription in SUBSCRIPTIONS {
                let inside = Arc::<Arrived>::default();
                arrived.push(Arc::clone(&inside));
                guards.push(handle(topic, subscription, inside, producers)?);
            }
            for _ in 0..shape.producers {
                let size = (shape.message_bytes, 1);
                senders.push(Sender::open(topic, senders.len(), size, NO_SAMPLE)?);
            }
        }
        Ok(Flood {
            clock: clock.clone(),
            senders,
            sent: Verifier::new(producers, producers),
            arrived,
            topics,
            _guards: guards,
            turn: 0,
        })
    }

    /// Adds to one queue what it has room for, and goes on to the next when it is full.
    pub(crate) fn step(&mut self) -> Result<(), LoadError> {
        let now_ns = self.clock.now_ns();
        let sent = self.senders[self.turn].send_burst(&mut self.sent, STEP, now_ns)?;
        if sent < STEP {
            self.turn = (self.turn + 1) % self.senders.len();
        }
        Ok(())
    }

    /// Queues that are full now, in percent of all.
    pub(crate) fn full_percent(&mut self) -> u64 {
        let senders = self.senders.iter_mut();
        let full = senders.filter_map(|s| s.is_full().then_some(())).count();
        (full * 100 / self.senders.len()) as u64
    }

    /// Waits until all that was sent has arrived, or nothing has for 10 s: the verdict says so then.
    pub(crate) fn drain(&mut self) -> Result<(), LoadError> {
        self.senders.iter_mut().try_for_each(Sender::flush)?;
        let mut progress = (self.arrived(), self.clock.now_ns());
        while self.arrived() < self.expected() {
            std::thread::yield_now();
            let now_ns = self.clock.now_ns();
            if self.arrived() > progress.0 {
                progress = (self.arrived(), now_ns);
            } else if now_ns - progress.1 > STALL_NS {
                break;
            }
        }
        Ok(())
    }

    /// Deliveries that have been made.
    pub(crate) fn arrived(&self) -> u64 {
        let each = self.arrived.iter();
        each.map(|arrived| arrived.count.load(Acquire)).sum()
    }

    fn expected(&self) -> u64 {
        self.sent() * SUBSCRIPTIONS.len() as u64
    }

    fn sent(&self) -> u64 {
        let producers = 0..self.senders.len();
        producers.map(|i| self.sent.next_sequence(i)).sum()
    }

    /// After the drain; what was acked is the engine's word.
    pub(crate) fn verdict(&self, stats: &EngineStats) -> Verdict {
        let each = self.topics.iter().flat_map(|topic| {
            let found = |name| stats.subscription(topic.name(), name);
            SUBSCRIPTIONS.into_iter().filter_map(found)
        });
        let (expected, arrived) = (self.expected(), self.arrived());
        let out_of_order = self.arrived.iter();
        Verdict {
            published: self.sent(),
            expected,
            delivered: arrived.min(expected),
            acked: each.map(|subscription| subscription.acked_messages).sum(),
            lost: expected.saturating_sub(arrived),
            duplicated: arrived.saturating_sub(expected),
            out_of_order: out_of_order.map(|a| a.out_of_order.load(Relaxed)).sum(),
            ..Verdict::default()
        }
    }
}

/// Takes and acks everything, and checks that the messages of each producer come in order.
fn handle(
    topic: &Topic,
    subscription: &str,
    arrived: Arc<Arrived>,
    producers: usize,
) -> Result<HandlerGuard, LoadError> {
    // By producer: the sequence that is to come.
    let mut next = vec![0; producers];
    let subscribe = topic.subscribe(subscription);
    let handler = subscribe
        .initial(InitialPosition::Earliest)
        .handler(move |delivery| {
            let header = Header::read(delivery.payload());
            let expected = header.and_then(|h| Some((next.get_mut(h.producer as usize)?, h)));
            match expected {
                Some((next, header)) if *next == header.sequence => *next += 1,
                _ => {
                    arrived.out_of_order.fetch_add(1, Relaxed);
                }
            }
            let count = arrived.count.load(Relaxed);
            arrived.count.store(count + 1, Release);
            HandlerVerdict::Ack
        });
    handler.map_err(LoadError::engine)
}
