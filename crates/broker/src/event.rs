//! The contract of the core on one page: everything that can start work, everything it can ask for.
//!
//! The shard calls [`crate::Broker::handle`] with an [`Event`] and the time, then takes
//! [`Effect`]s until there are none. Nothing else crosses but permit counters.

use std::sync::Arc;

use pelton_flow::Account;
use pelton_storage::{Block, DiskDone, DiskOp, Durability, Position};

/// The time of one turn: one clock read, handed to everything the turn does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic nanoseconds: every duration and deadline.
    pub mono_ns: u64,
    /// Unix milliseconds, which may step: publish times only.
    pub wall_ms: u64,
}

/// A topic open on this shard. Never reused within a run of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicId(pub u32);

/// A producer attached to a topic. `slot` is dense and reused; `serial` tells its lives apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProducerId {
    /// Dense index, as the shell chose it: its ready bit and port.
    pub slot: u32,
    /// Rises with every attachment of the shard.
    pub serial: u32,
}

/// A consumer attached to a subscription: one attachment, named as [`ProducerId`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerId {
    /// Dense index, as the shell chose it.
    pub slot: u32,
    /// Rises with every attachment of the shard.
    pub serial: u32,
}

/// Names a request until its [`Effect::Reply`]; chosen by the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// How the consumers of a subscription share its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubscriptionKind {
    /// One consumer, position order.
    Exclusive,
    /// Any number of consumers, round robin among those with permits.
    Shared,
}

/// Where a new subscription starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialPosition {
    /// Behind the last entry.
    Latest,
    /// At the first entry that still exists.
    Earliest,
}

/// What can start work in the core.
#[derive(Debug)]
pub enum Event<'a> {
    /// A control request; answered by one [`Effect::Reply`] with the same id.
    Request {
        /// Comes back in the reply.
        id: RequestId,
        /// What is asked.
        request: Request,
    },
    /// One entry from a producer. May be held: see [`Handled`].
    Publish {
        /// The attachment that publishes.
        producer: ProducerId,
        /// The entry.
        entry: Publish<'a>,
    },
    /// The consumer is done with this entry.
    Ack {
        /// Who says so; the entry may be pending elsewhere, the position decides.
        consumer: ConsumerId,
        /// The entry.
        position: Position,
    },
    /// The consumer is done with consecutive entries of one ledger.
    AckRun {
        /// Who says so.
        consumer: ConsumerId,
        /// The first entry.
        first: Position,
        /// How many, 1 or more.
        entries: u32,
    },
    /// Everything of the subscription up to and including this entry is done (Exclusive only).
    AckCumulative {
        /// Who says so.
        consumer: ConsumerId,
        /// The last entry meant.
        position: Position,
    },
    /// Deliver this entry again; its count rises.
    Nack {
        /// Who holds it.
        consumer: ConsumerId,
        /// The entry.
        position: Position,
    },
    /// A consumer whose dispatcher was parked has granted permits.
    Granted {
        /// The attachment.
        consumer: ConsumerId,
    },
    /// The shell carried out a [`DiskOp`].
    Disk(DiskDone),
    /// The shell carried out a [`MetaOp`].
    Meta(MetaDone),
    /// End of a turn: due deadlines, one dispatch pass per dispatcher, commit, trim.
    Tick,
}

/// Whether the core took an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a held publish stays with its producer"]
pub enum Handled {
    /// Done; the event's memory is free.
    Taken,
    /// There is no room for this publish now: keep it, and everything behind it from the same
    /// producer, and offer it again in a later turn.
    Held,
}

/// One entry as a producer gives it.
#[derive(Clone, Copy, Debug)]
pub struct Publish<'a> {
    /// The framed messages.
    pub body: &'a [u8],
    /// Messages in `body`, 1 to [`MESSAGES_PER_ENTRY_MAX`].
    pub messages: u32,
    /// Hash of the entry's key, 0 without one.
    pub key_hash: u32,
    /// The producer's own number for this entry; rises by one.
    pub sequence: u64,
    /// When the producer handed it over, monotonic nanoseconds.
    pub arrived_ns: u64,
}

/// Most messages in one entry (rule D2).
pub const MESSAGES_PER_ENTRY_MAX: u32 = 100_000;

/// What a client can ask of a shard's control lane.
#[derive(Debug)]
pub enum Request {
    /// Opens a topic, made if it does not exist.
    OpenTopic {
        /// Topic name, checked by [`crate::check_name`].
        name: String,
        /// Must match the durability an existing topic was made with.
        durability: Durability,
    },
    /// Deletes a topic that has neither producers nor consumers, with its subscriptions.
    DeleteTopic {
        /// Topic name.
        name: String,
    },
    /// Attaches a producer.
    OpenProducer {
        /// From [`Reply::Topic`].
        topic: TopicId,
        /// Stored with its entries by hash; need not be unique.
        name: String,
        /// The port the shell keeps for it.
        slot: u32,
    },
    /// Detaches a producer. What it published stays.
    CloseProducer {
        /// The attachment.
        producer: ProducerId,
    },
    /// Attaches a consumer to a subscription, made if it does not exist.
    Subscribe {
        /// From [`Reply::Topic`].
        topic: TopicId,
        /// Subscription name, checked by [`crate::check_name`].
        subscription: String,
        /// Must match while others are attached.
        kind: SubscriptionKind,
        /// Where a new subscription starts.
        initial: InitialPosition,
        /// Shown in statistics.
        consumer: String,
        /// The shard's side of its permits.
        account: Account,
        /// The port the shell keeps for it.
        slot: u32,
    },
    /// Detaches a consumer; what it held is delivered again to others.
    CloseConsumer {
        /// The attachment.
        consumer: ConsumerId,
    },
    /// Answers when every ack that the consumer gave before is as durable as its topic.
    FlushAcks {
        /// The attachment.
        consumer: ConsumerId,
    },
    /// Deletes a subscription that has no consumers.
    Unsubscribe {
        /// From [`Reply::Topic`].
        topic: TopicId,
        /// Subscription name.
        subscription: String,
    },
    /// Counts of every topic and subscription.
    Stats,
}

/// What a request was answered with.
#[derive(Debug)]
pub enum Reply {
    /// The topic is open.
    Topic(TopicId),
    /// The producer is attached.
    Producer(ProducerId),
    /// The consumer is attached.
    Consumer(ConsumerId),
    /// The thing asked for is done.
    Done,
    /// Statistics.
    Stats(Box<BrokerStats>),
}

/// Why a request was refused. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The name is not valid.
    #[error("{what} name {name:?} {why}")]
    InvalidName {
        /// "topic" or "subscription".
        what: &'static str,
        /// As given, cut to 64 characters.
        name: String,
        /// What is wrong and what would be right.
        why: &'static str,
    },
    /// The topic exists with another durability.
    #[error(
        "topic {name:?} was made with durability {existing:?}, not {asked:?}: open it with that, or delete it first"
    )]
    DurabilityMismatch {
        /// The topic.
        name: String,
        /// What it has.
        existing: Durability,
        /// What was asked.
        asked: Durability,
    },
    /// A durable topic was asked of an engine that has no directory.
    #[error(
        "topic {name:?} asks for durability {asked:?}, but this engine is in memory: use Engine::builder(dir), or durability memory"
    )]
    NoDirectory {
        /// The topic.
        name: String,
        /// What was asked.
        asked: Durability,
    },
    /// No such topic, subscription, producer or consumer.
    #[error("no {what} {name:?}")]
    NotFound {
        /// "topic" and the like.
        what: &'static str,
        /// As asked.
        name: String,
    },
    /// Another consumer holds an Exclusive subscription, or others use another kind.
    #[error(
        "subscription {subscription:?} of topic {topic:?} is {kind:?} and has {consumers} consumer(s): close them first, or subscribe with kind {kind:?} if that is Shared"
    )]
    ConsumerBusy {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// The kind in use.
        kind: SubscriptionKind,
        /// Consumers attached.
        consumers: usize,
    },
    /// Something is still attached.
    #[error("{what} {name:?} is in use by {users} producer(s) or consumer(s): close them first")]
    InUse {
        /// "topic" or "subscription".
        what: &'static str,
        /// As asked.
        name: String,
        /// How many.
        users: usize,
    },
    /// The metadata could not be written.
    #[error("writing the metadata of {name:?} failed: {error}; nothing was changed")]
    Metadata {
        /// The topic.
        name: String,
        /// What the store said.
        error: String,
    },
    /// The log takes nothing more.
    #[error("the log is poisoned since {error}: reopen the engine")]
    Poisoned {
        /// The first failure.
        error: String,
    },
}

/// What the core asks of the shell.
#[derive(Debug)]
pub enum Effect {
    /// Give this run to the consumer's ring or handler. It counts as delivered.
    HandOver {
        /// To whom.
        consumer: ConsumerId,
        /// What.
        run: Run,
    },
    /// Answers for consecutive sequences of one producer, in order.
    Receipts(Receipts),
    /// Answers one [`Event::Request`].
    Reply {
        /// Of the request.
        id: RequestId,
        /// The answer.
        reply: Result<Reply, RequestError>,
    },
    /// Carry this out and answer with [`Event::Disk`].
    Disk(DiskOp),
    /// Carry this out, after all earlier ones, and answer with [`Event::Meta`].
    Meta(MetaOp),
    /// Whether publishes to the log are taken changed; for every durable producer of the shard.
    LogState(LogState),
}

/// Consecutive entries of one block for one consumer.
#[derive(Debug)]
pub struct Run {
    /// Holds the entries; shared, frozen.
    pub block: Arc<Block>,
    /// First slot of the block.
    pub first_slot: u32,
    /// Slots, 1 or more.
    pub count: u32,
    /// Messages in them all: what the permits were debited with.
    pub messages: u32,
    /// How often these entries were asked to be delivered again.
    pub redeliveries: u32,
}

/// Outcome of `count` sequences from `first_sequence` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipts {
    /// Whose.
    pub producer: ProducerId,
    /// First sequence answered.
    pub first_sequence: u64,
    /// Sequences answered, 1 or more.
    pub count: u32,
    /// The same for all.
    pub outcome: Outcome,
}

/// How an append ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Stored with the topic's durability; entries are consecutive from this position on.
    Stored(Position),
    /// Not stored, for sure.
    Refused(Refusal),
    /// The log failed before the outcome was known: it may or may not be there after a reopen.
    Unknown,
}

/// Why an entry was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The disk is full.
    DiskFull,
    /// The log is poisoned by an earlier failure.
    Poisoned,
    /// The entry is larger than the engine takes, or its message count is out of range.
    Invalid,
    /// The producer is not attached any more.
    Closed,
}

/// Whether the log takes publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogState {
    /// As usual.
    Open,
    /// Publishes are refused until acks free a segment or space is made.
    DiskFull,
    /// A write or sync failed; nothing more is taken until the engine is opened again.
    Poisoned(String),
}

/// Writes of one metadata transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaOp {
    /// Comes back in [`MetaDone`].
    pub token: u64,
    /// Key and value; `None` deletes.
    pub writes: Vec<(String, Option<Vec<u8>>)>,
}

/// Outcome of a [`MetaOp`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaDone {
    /// Of the operation.
    pub token: u64,
    /// The store's own words on failure.
    pub result: Result<(), String>,
}

/// Statistics of a shard's topics.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct BrokerStats {
    /// One per topic, in name order.
    pub topics: Vec<TopicStats>,
}

/// Statistics of a topic.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct TopicStats {
    /// Its name.
    pub name: String,
    /// Producers attached.
    pub producers: usize,
    /// Entries that exist.
    pub entries: u64,
    /// One per subscription.
    pub subscriptions: Vec<SubscriptionStats>,
}

/// Statistics of a subscription.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct SubscriptionStats {
    /// Its name.
    pub name: String,
    /// Entries not yet acked.
    pub backlog_entries: u64,
    /// Messages not yet acked.
    pub backlog_messages: u64,
    /// Messages handed over and not yet acked.
    pub unacked_messages: u64,
    /// Entries owed again.
    pub replay_entries: u64,
    /// Messages handed over since the engine was opened.
    pub delivered_messages: u64,
    /// Messages acked since the engine was opened.
    pub acked_messages: u64,
    /// One per consumer.
    pub consumers: Vec<ConsumerStats>,
}

/// Statistics of a consumer.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct ConsumerStats {
    /// Its name.
    pub name: String,
    /// Permits in messages; below zero is debt.
    pub available_permits: i64,
    /// Messages handed over to it.
    pub delivered_messages: u64,
    /// Messages it holds.
    pub unacked_messages: u64,
    /// Moving average, 0 before the first delivery.
    pub avg_messages_per_entry: f64,
}
