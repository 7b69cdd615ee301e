//! The seam between handles (crate `pelton`) and a shard: everything that crosses goes through here.
//!
//! A handle never waits inside a call of this module and never shares a lock with a shard. It pushes
//! into a ring, sets its ready bit, and rings the doorbell; answers come through its own ring, its
//! receipt pages or a [`ReplyFrom`].

use std::cell::Cell;
use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use pelton_broker::flow::Granter;
use pelton_broker::storage::Position;
use pelton_broker::{BrokerStats, ConsumerId, Reply, Request, RequestError, Run};
use pelton_metrics::ShardMetrics;
use pelton_rings::{
    Doorbell, Full, PriorityRing, ReadyWords, Sender, SlotReceiver, Wake, priority_ring,
};
use pelton_sys::{Clock, Notifier};

use crate::resident::MakeResident;
use crate::stop::StopFlag;
use crate::watch::LongTurn;

mod handler;
mod overflow;
mod receipt;
mod reply;
mod signal;
mod user_code;

use overflow::{Overflow, overflow};

pub use handler::{ForwardError, ForwardTo, Handler, HandlerDelivery, Verdict};
pub(crate) use overflow::{Lanes, Overflowed};
pub use receipt::{Publish, PublishExtras, RECEIPTS_PER_PAGE, ReceiptPage, ReceiptState};
pub use reply::{NoReply, ReplyFrom, ReplyTo, reply};
pub(crate) use signal::RUNS_WAITING_FEW;
pub use signal::{CloseReason, ConsumerSignal, ProducerSignal, ProducerState};
pub(crate) use user_code::contained;

/// Most producers, and most consumers, attached to one shard at a time: their ready bits take 16 KiB.
pub const PORTS_MAX: usize = 131_072;

/// Slots keep bodies of up to this many bytes; the memory of larger ones is taken out, so that a ring
/// of 1,024 slots holds at most 64 MiB of idle memory.
pub const BODY_KEPT_MAX: usize = 64 * 1024;

/// What a request is answered with.
pub type Answer = Result<Reply, RequestError>;

/// An item of the control lane.
#[derive(Debug)]
pub enum Control {
    /// Something for the core. Port slots in it are chosen by the shard: any value will do.
    Request {
        /// What is asked.
        request: Request,
        /// The shard's ends of what the request attaches.
        ports: Ports,
        /// Where the answer goes.
        reply: ReplyTo<Answer>,
    },
    /// A resident for the shard's thread; a second one takes the place of the first.
    Settle {
        /// Makes it there.
        make: MakeResident,
        /// Whether it was made.
        reply: ReplyTo<io::Result<()>>,
    },
    /// Exchange `spare` (empty) with what the shard measured since the last exchange.
    Stats {
        /// An empty set.
        spare: Box<ShardMetrics>,
        /// Where the answer goes.
        reply: ReplyTo<ShardStats>,
    },
}

/// The shard's ends of a new producer or consumer.
pub enum Ports {
    /// The request attaches nothing.
    None,
    /// For `OpenProducer`: a handle on another thread.
    Producer {
        /// What it publishes.
        ring: SlotReceiver<Publish>,
        /// Its state and wake-ups.
        signal: Arc<ProducerSignal>,
    },
    /// For `OpenProducer`: handlers forward to it ([`ForwardTo`]).
    Forward,
    /// For `Subscribe`: a handle on another thread. The ring holds at least as many runs as messages
    /// can be granted at once; what does not fit waits on the shard's heap.
    Consumer {
        /// What is handed over.
        ring: Sender<Arrival>,
        /// Its wake-up and close reason.
        signal: Arc<ConsumerSignal>,
    },
    /// For `Subscribe`: runs on the shard's thread. What it has handled is granted again, so the
    /// first grant is its window.
    Handler {
        /// Called for each entry.
        handler: Handler,
        /// The other side of the request's account, with the window granted.
        granter: Granter,
        /// Its close reason.
        signal: Arc<ConsumerSignal>,
    },
}

/// What comes to a consumer's handle.
#[derive(Debug)]
pub enum Arrival {
    /// Entries.
    Run(Run),
    /// A seek has ended the attachment, and its port goes on with a new one: what came before is gone.
    Reset {
        /// Whom acks name from now on.
        becomes: ConsumerId,
        /// Permits start again: it was granted nothing.
        granter: Granter,
    },
}

impl fmt::Debug for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ports::None => "None",
            Ports::Producer { .. } => "Producer",
            Ports::Forward => "Forward",
            Ports::Consumer { .. } => "Consumer",
            Ports::Handler { .. } => "Handler",
        })
    }
}

/// An item of the data lane that is not a publish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// The consumer is done with this entry.
    Ack {
        /// Who.
        consumer: ConsumerId,
        /// What.
        position: Position,
    },
    /// The consumer is done with consecutive entries of one ledger: what a whole burst costs is one
    /// item.
    AckRun {
        /// Who says so.
        consumer: ConsumerId,
        /// The first entry.
        first: Position,
        /// How many, 1 or more.
        entries: u32,
    },
    /// Everything up to and including this entry is done (Exclusive and Failover only).
    AckCumulative {
        /// Who.
        consumer: ConsumerId,
        /// The last entry meant.
        position: Position,
    },
    /// Some messages of a batch are done; on the heap, because it is rare.
    AckPart(Box<AckPart>),
    /// Deliver this entry again, as soon as the topic's policy says.
    Nack {
        /// Who.
        consumer: ConsumerId,
        /// What.
        position: Position,
    },
    /// Deliver this entry again, not before so long from now.
    NackLater {
        /// Who.
        consumer: ConsumerId,
        /// What.
        position: Position,
        /// Milliseconds from when the shard takes it.
        delay_ms: u32,
    },
    /// This entry goes back as if it had not been handed over.
    Release {
        /// Who.
        consumer: ConsumerId,
        /// What.
        position: Position,
    },
    /// This entry cannot be handled: it goes to the dead-letter topic, if there is one.
    Reject {
        /// Who.
        consumer: ConsumerId,
        /// What.
        position: Position,
    },
    /// Deliver again all that the consumer holds.
    NackAll {
        /// Who.
        consumer: ConsumerId,
    },
}

/// See [`Data::AckPart`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckPart {
    /// Who.
    pub consumer: ConsumerId,
    /// The entry.
    pub position: Position,
    /// 64 messages a word, bit 1: not yet done.
    pub still: Box<[u64]>,
    /// Everything before the entry is done as well (Exclusive and Failover only).
    pub cumulative: bool,
}

/// Answer to [`Control::Stats`].
#[derive(Debug)]
pub struct ShardStats {
    /// Index of the shard.
    pub shard: u32,
    /// Its topics.
    pub broker: BrokerStats,
    /// What it measured since the last exchange.
    pub metrics: Box<ShardMetrics>,
    /// The last turns that were longer than [`crate::LONG_TURN_NS`], oldest first.
    pub long_turns: Vec<LongTurn>,
    /// Items waiting in the control lane.
    pub control_depth: usize,
    /// Items waiting in the data lane, publishes not counted.
    pub data_depth: usize,
    /// What no counter tells, e.g. a pin that failed or the disk driver and why.
    pub notes: Vec<String>,
}

/// A lane did not take an item; it is given back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError<T> {
    /// No room now.
    #[error("the shard's lane is full")]
    Full(T),
    /// The shard has ended.
    #[error("the shard has stopped")]
    Closed(T),
}

/// Any thread's way to one shard. Cheap to clone; no call blocks, and none allocates but
/// [`ShardHandle::request`], for its answer, and those that keep what found no room.
#[derive(Clone, Debug)]
pub struct ShardHandle {
    pub(crate) shared: Arc<Shared>,
    /// Its own, so that threads with a handle each write no line together.
    pub(crate) clock: Clock,
}

impl ShardHandle {
    /// Index of the shard.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.shared.index
    }

    /// Pushes into the control lane.
    ///
    /// # Errors
    /// The item comes back if the lane is full or the shard has ended.
    #[expect(
        clippy::result_large_err,
        reason = "the item comes back by value: nothing is allocated"
    )]
    pub fn control(&self, control: Control) -> Result<(), PushError<Control>> {
        let item = Stamped {
            control,
            pushed_ns: self.clock.now_ns(),
        };
        let pushed = match self.shared.overflow.control.is_empty() {
            true => self.shared.inbox.push_control(item),
            false => Err(Full(item)),
        };
        self.pushed(pushed).map_err(|error| match error {
            PushError::Full(item) => PushError::Full(item.control),
            PushError::Closed(item) => PushError::Closed(item.control),
        })
    }

    /// Gives a control item that came back as full to the shard all the same: it waits on the heap,
    /// and the lane counts as full until the shard has taken it. For threads that must not wait for
    /// the shard, and for what they cannot keep themselves.
    ///
    /// # Errors
    /// The item comes back if the shard has ended.
    #[expect(
        clippy::result_large_err,
        reason = "the item comes back by value: nothing is allocated"
    )]
    pub fn keep_control(&self, control: Control) -> Result<(), PushError<Control>> {
        let item = Stamped {
            control,
            pushed_ns: self.clock.now_ns(),
        };
        let kept = self.shared.overflow.control.send(item);
        self.shared.ring();
        kept.map_err(|back| PushError::Closed(back.0.control))
    }

    /// Asks the core: pushes the request and gives the end where its answer arrives.
    ///
    /// # Errors
    /// The request comes back if the lane is full or the shard has ended.
    #[expect(
        clippy::result_large_err,
        reason = "the item comes back by value: nothing is allocated"
    )]
    pub fn request(
        &self,
        request: Request,
        ports: Ports,
    ) -> Result<ReplyFrom<Answer>, PushError<Control>> {
        let (to, from) = reply();
        self.control(Control::Request {
            request,
            ports,
            reply: to,
        })?;
        Ok(from)
    }

    /// Pushes into the data lane.
    ///
    /// # Errors
    /// The item comes back if the lane is full or the shard has ended.
    pub fn data(&self, data: Data) -> Result<(), PushError<Data>> {
        let pushed = match self.shared.overflow.data.is_empty() {
            true => self.shared.inbox.push_data(data),
            false => Err(Full(data)),
        };
        self.pushed(pushed)
    }

    /// As [`ShardHandle::keep_control`], for the data lane.
    ///
    /// # Errors
    /// The item comes back if the shard has ended.
    pub fn keep_data(&self, data: Data) -> Result<(), PushError<Data>> {
        let kept = self.shared.overflow.data.send(data);
        self.shared.ring();
        kept.map_err(|back| PushError::Closed(back.0))
    }

    /// Pushes as many items as fit, in order, and says how many went. The rest stays in `items`.
    pub fn data_batch(&self, items: &mut impl ExactSizeIterator<Item = Data>) -> usize {
        let mut pushed = 0;
        while items.len() > 0 && self.shared.overflow.data.is_empty() {
            let (count, wake) = self.shared.inbox.push_data_batch(items);
            self.shared.wake(wake);
            if count == 0 {
                break;
            }
            pushed += count;
        }
        pushed
    }

    /// The producer in `slot` has published: once per push or batch, after it.
    pub fn published(&self, slot: u32) {
        let wake = self
            .shared
            .publishes
            .set_and_ring(slot, self.shared.doorbell());
        self.shared.wake(wake);
    }

    /// The consumer in `slot` got [`pelton_broker::flow::Grant::Ring`] for a grant.
    pub fn granted(&self, slot: u32) {
        let wake = self
            .shared
            .grants
            .set_and_ring(slot, self.shared.doorbell());
        self.shared.wake(wake);
    }

    /// Wakes the shard if it sleeps, though there is nothing new: it looks at everything once more.
    pub fn wake(&self) {
        self.shared.ring();
    }

    /// Whether the shard has ended. Rings of handles that were attached to it are closed then.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.shared.inbox.is_closed()
    }

    fn pushed<T>(&self, result: Result<Wake, Full<T>>) -> Result<(), PushError<T>> {
        match result {
            Ok(wake) => {
                self.shared.wake(wake);
                Ok(())
            }
            Err(Full(item)) if self.is_closed() => Err(PushError::Closed(item)),
            Err(Full(item)) => Err(PushError::Full(item)),
        }
    }
}

/// Whether the calling thread is a shard's: it must not wait for a shard then, nor for a full ring.
#[must_use]
pub fn on_shard_thread() -> bool {
    ON_SHARD_THREAD.get()
}

thread_local! {
    pub(crate) static ON_SHARD_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// A control item and when it was pushed.
#[derive(Debug)]
pub(crate) struct Stamped {
    pub(crate) control: Control,
    pub(crate) pushed_ns: u64,
}

/// What a shard and everybody who talks to it have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) index: u32,
    pub(crate) inbox: PriorityRing<Stamped, Data>,
    overflow: Overflow,
    pub(crate) publishes: ReadyBits,
    pub(crate) grants: ReadyBits,
    /// One bit per peer that pushed into its mesh ring of this lane: control, data.
    pub(crate) mesh: [ReadyWords; 2],
    /// Set by the shard's thread before the engine is given out.
    pub(crate) notifier: OnceLock<Notifier>,
    pub(crate) stop: StopFlag,
}

impl Shared {
    /// A shard's shared half, and the receiving end of its lanes.
    pub(crate) fn new(
        index: u32,
        shards: usize,
        (control_slots, data_slots): (usize, usize),
    ) -> (Arc<Shared>, Lanes) {
        let (inbox, ring) = priority_ring(control_slots, data_slots);
        let (overflow, overflowed) = overflow();
        let lanes = Lanes {
            ring,
            overflow: overflowed,
        };
        let shared = Shared {
            index,
            inbox,
            overflow,
            publishes: ReadyBits::new(PORTS_MAX),
            grants: ReadyBits::new(PORTS_MAX),
            mesh: [ReadyWords::new(shards), ReadyWords::new(shards)],
            notifier: OnceLock::new(),
            stop: StopFlag::default(),
        };
        (Arc::new(shared), lanes)
    }

    /// Asks the shard to stop, and wakes it.
    pub(crate) fn stop(&self, deadline_ns: u64, abort: bool) {
        self.stop.ask(deadline_ns, abort);
        self.ring();
    }

    fn ring(&self) {
        let wake = self.doorbell().ring();
        self.wake(wake);
    }

    pub(crate) fn doorbell(&self) -> &Doorbell {
        self.inbox.doorbell()
    }

    /// True if a sleeper was woken.
    pub(crate) fn wake(&self, wake: Wake) -> bool {
        let needed = matches!(wake, Wake::Needed);
        if needed && let Some(notifier) = self.notifier.get() {
            notifier.wake();
        }
        needed
    }
}

/// Ready bits for many sources, in groups of one cache line, so that a look covers used groups only.
#[derive(Debug)]
pub(crate) struct ReadyBits {
    groups: Box<[ReadyWords]>,
}

/// Bits per group: what `ReadyWords` keeps on one cache line pair.
const GROUP_BITS: usize = 1_024;
const GROUP_WORDS: usize = GROUP_BITS / 64;

impl ReadyBits {
    pub(crate) fn new(bits: usize) -> ReadyBits {
        let groups = (0..bits.div_ceil(GROUP_BITS))
            .map(|_| ReadyWords::new(GROUP_BITS))
            .collect();
        ReadyBits { groups }
    }

    /// A bit out of range names no port: nothing is set and nobody woken.
    fn set_and_ring(&self, bit: u32, doorbell: &Doorbell) -> Wake {
        let bit = bit as usize;
        match self.groups.get(bit / GROUP_BITS) {
            Some(group) => group.set_and_ring(bit % GROUP_BITS, doorbell),
            None => Wake::NotNeeded,
        }
    }

    /// Words that hold so many bits.
    pub(crate) fn words_of(bits: usize) -> usize {
        bits.div_ceil(64)
    }

    /// The bits of one word, left as they are; see [`ReadyWords::look`].
    pub(crate) fn look(&self, word: usize) -> u64 {
        self.groups[word / GROUP_WORDS].look(word % GROUP_WORDS)
    }

    /// Clears bits of one word; see [`ReadyWords::clear`].
    pub(crate) fn clear(&self, word: usize, bits: u64) {
        self.groups[word / GROUP_WORDS].clear(word % GROUP_WORDS, bits);
    }

    /// Whether any of the first `used` bits is set.
    pub(crate) fn any(&self, used: usize) -> bool {
        self.groups[..used.div_ceil(GROUP_BITS)]
            .iter()
            .any(ReadyWords::any)
    }

    /// Takes every set bit of the first `used`, in order.
    pub(crate) fn take(&self, used: usize, mut found: impl FnMut(u32)) {
        let mut first = 0;
        for group in &self.groups[..used.div_ceil(GROUP_BITS)] {
            for word in 0..group.words() {
                if first + word * 64 >= used {
                    return;
                }
                for_each_bit(first / 64 + word, group.take(word), &mut found);
            }
            first += GROUP_BITS;
        }
    }
}

/// Numbers of the bits that are set in one word of ready bits.
#[inline]
pub(crate) fn for_each_bit(word: usize, mut bits: u64, mut found: impl FnMut(u32)) {
    while bits != 0 {
        found(word as u32 * 64 + bits.trailing_zeros());
        bits &= bits - 1;
    }
}
