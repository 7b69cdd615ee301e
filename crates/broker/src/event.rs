//! The contract of the core on one page: everything that can start work, everything it can ask for.
//!
//! The shard calls [`crate::Broker::handle`] with an [`Event`] and the time, then takes
//! [`Effect`]s until there are none. Nothing else crosses but permit counters.

use std::sync::Arc;

use pelton_flow::{Account, Granter};
use pelton_storage::{Block, DiskDone, DiskOp, Durability, Position};

use crate::keys::{AssignError, KeyRange};
use crate::{BacklogPolicy, BrokerStats, Explanation, Letter, Policy};

/// The time of one turn: one clock read, handed to everything the turn does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Monotonic nanoseconds: every duration and deadline.
    pub mono_ns: u64,
    /// Unix milliseconds, which may step: publish times, and what is measured against them.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum SubscriptionKind {
    /// One consumer, position order.
    Exclusive,
    /// Any number of consumers, one of them active: position order, and another takes over.
    Failover,
    /// Any number of consumers, round robin among those with permits.
    Shared,
    /// Any number of consumers; entries of one key go to one of them, in order.
    #[serde(rename = "Key_Shared")]
    KeyShared,
}

impl SubscriptionKind {
    /// Whether one consumer at a time gets all entries, in position order.
    #[must_use]
    pub fn is_single(self) -> bool {
        matches!(
            self,
            SubscriptionKind::Exclusive | SubscriptionKind::Failover
        )
    }
}

/// Where a new subscription starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialPosition {
    /// Behind the last entry.
    Latest,
    /// At the first entry that still exists.
    Earliest,
    /// At this entry, or at the first one behind it that exists.
    At(Position),
    /// At the first entry published at this Unix millisecond or later.
    Since(u64),
}

/// Where a subscription goes on after a seek (rule D135).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeekTo {
    /// As a new subscription would start.
    Start(InitialPosition),
    /// At this message of an entry, counted from 0.
    Message {
        /// The entry.
        position: Position,
        /// The first message that comes.
        index: u32,
    },
    /// At this entry, and of it the messages that `still` has, as in [`Event::AckBatch`].
    Part {
        /// The entry.
        position: Position,
        /// 64 messages a word, bit 1: comes again. Missing words are 0.
        still: Box<[u64]>,
    },
}

impl From<InitialPosition> for SeekTo {
    fn from(start: InitialPosition) -> Self {
        SeekTo::Start(start)
    }
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
        entry: &'a Publish<'a>,
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
    /// Some messages of an entry are done (rule D95).
    AckBatch {
        /// Who says so.
        consumer: ConsumerId,
        /// The entry.
        position: Position,
        /// 64 messages a word, bit 1: not yet done. Missing words are 0.
        still: &'a [u64],
    },
    /// Everything of the subscription before this entry is done, and of it what `still` has not
    /// (Exclusive and Failover only, rule D97).
    AckCumulative {
        /// Who says so.
        consumer: ConsumerId,
        /// The last entry meant.
        position: Position,
        /// As in [`Event::AckBatch`]; empty: the whole entry.
        still: &'a [u64],
    },
    /// Deliver this entry again; its count rises. An Exclusive or Failover subscription is rewound
    /// to its first unacked entry instead (rule D66).
    Nack {
        /// Who holds it.
        consumer: ConsumerId,
        /// The entry.
        position: Position,
        /// Not before so long from now, in nanoseconds; `None`: as the topic's policy says.
        delay_ns: Option<u64>,
    },
    /// The entry goes back as if it had not been handed over; its count stays (rule D115).
    Release {
        /// Who holds it.
        consumer: ConsumerId,
        /// The entry.
        position: Position,
    },
    /// The entry is dead at once: it goes to the dead-letter topic of the topic's policy or, if that
    /// has none, is acked and counted (rule D117).
    Reject {
        /// Who holds it.
        consumer: ConsumerId,
        /// The entry.
        position: Position,
    },
    /// Deliver again everything that the consumer holds; counts rise (rule D108).
    NackAll {
        /// Who.
        consumer: ConsumerId,
    },
    /// A consumer whose dispatcher was parked has granted permits.
    Granted {
        /// The attachment.
        consumer: ConsumerId,
    },
    /// The way to a consumer is full, or has room again (rule D79): meanwhile it gets nothing and
    /// nobody waits for it.
    Writable {
        /// The attachment.
        consumer: ConsumerId,
        /// Whether there is room.
        writable: bool,
    },
    /// The shell carried out a [`DiskOp`].
    Disk(DiskDone),
    /// The shell carried out a [`MetaOp`].
    Meta(MetaDone),
    /// The shard that owns a dead-letter topic has answered [`Request::DeadLetter`].
    DeadLettered {
        /// Of the [`Effect::DeadLetter`].
        token: u64,
        /// It was [`Reply::Done`]: the copy is durable.
        stored: bool,
    },
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
#[derive(Clone, Copy, Debug, Default)]
pub struct Publish<'a> {
    /// The framed messages.
    pub body: &'a [u8],
    /// Messages in `body`, 1 to [`MESSAGES_PER_ENTRY_MAX`].
    pub messages: u32,
    /// Hash of the entry's key, 0 without one.
    pub key_hash: u32,
    /// The producer's own number for this entry; rises by one.
    pub sequence: u64,
    /// Its numbers among all that producers of this name publish, if it has some.
    pub numbered: Option<Numbered>,
    /// When the producer handed it over, monotonic nanoseconds.
    pub arrived_ns: u64,
    /// Not to be handed over before this Unix millisecond (Shared and KeyShared, rule D122); 0: at
    /// once.
    pub deliver_at_ms: u64,
    /// Not to be handed over from this Unix millisecond on (rule D130); 0: no end.
    pub deadline_ms: u64,
}

/// Sequences of an entry, which count for all producers of one name if the topic's policy says so
/// (rule D141): an entry whose first one is not higher than the highest so far is not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbered {
    /// Of its first message.
    pub first: u64,
    /// Of its last message, `first` or higher.
    pub last: u64,
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
    /// Attaches a producer, or has it wait for its turn: then the answer comes with that.
    OpenProducer(Box<OpenProducer>),
    /// Detaches a producer. What it published stays.
    CloseProducer {
        /// The attachment.
        producer: ProducerId,
    },
    /// Attaches a consumer to a subscription, made if it does not exist.
    Subscribe(Box<Subscribe>),
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
    /// Moves a subscription, back or forth; answered when that is as durable as the topic. Every
    /// attachment ends and, of handles in this process, goes on as a new one: [`Effect::Reset`].
    /// Several of them are carried out in order (rules D133 and D134).
    Seek {
        /// From [`Reply::Topic`].
        topic: TopicId,
        /// Subscription name.
        subscription: String,
        /// Where it goes on.
        to: SeekTo,
    },
    /// Where a topic ends, and how far a subscription is.
    LastPosition {
        /// From [`Reply::Topic`].
        topic: TopicId,
        /// Subscription name.
        subscription: String,
    },
    /// Ends a topic: it takes no publish any more and serves what it has (rule D132).
    Terminate {
        /// From [`Reply::Topic`].
        topic: TopicId,
    },
    /// Changes what a topic's subscriptions go by, from now on.
    SetPolicy {
        /// From [`Reply::Topic`].
        topic: TopicId,
        /// All of it.
        policy: Box<Policy>,
    },
    /// Appends a dead letter to a topic of this shard, made if it does not exist; answered when that
    /// is as durable as the topic.
    DeadLetter(Box<Letter>),
    /// Counts of every topic and subscription.
    Stats,
    /// Why subscriptions and consumers get nothing, of one topic or of all (rule D144).
    Explain {
        /// From [`Reply::Topic`].
        topic: Option<TopicId>,
    },
}

/// A producer to attach.
#[derive(Debug)]
pub struct OpenProducer {
    /// From [`Reply::Topic`].
    pub topic: TopicId,
    /// Stored with its entries by hash; sequences count for each name. Need not be unique.
    pub name: String,
    /// Whether it shares the topic with others.
    pub access: ProducerAccess,
    /// The topic's epoch when it was attached before: it is refused if others had the topic for
    /// themselves since. `None`: it never was.
    pub topic_epoch: Option<u64>,
    /// The port the shell keeps for it.
    pub slot: u32,
}

impl OpenProducer {
    /// One that shares the topic; the shell has yet to choose its port.
    #[must_use]
    pub fn shared(topic: TopicId, name: impl Into<String>) -> OpenProducer {
        OpenProducer {
            topic,
            name: name.into(),
            access: ProducerAccess::Shared,
            topic_epoch: None,
            slot: 0,
        }
    }
}

impl From<OpenProducer> for Request {
    fn from(asked: OpenProducer) -> Request {
        Request::OpenProducer(Box::new(asked))
    }
}

/// Whether a producer shares its topic with others (rule D142).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub enum ProducerAccess {
    /// With any number of others that share it too.
    #[default]
    Shared,
    /// With nobody; refused while there is another producer.
    Exclusive,
    /// With nobody; waits until there is no other producer.
    WaitForExclusive,
    /// With nobody; the others are detached, whoever waits is refused.
    ExclusiveWithFencing,
}

/// A producer that was attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenedProducer {
    /// The attachment.
    pub id: ProducerId,
    /// The topic's epoch; `None` if nobody ever had it for himself.
    pub topic_epoch: Option<u64>,
    /// The highest sequence of its name, if the topic's policy says that they count and one has come.
    pub last_sequence: Option<u64>,
}

/// A consumer to attach.
#[derive(Debug)]
pub struct Subscribe {
    /// From [`Reply::Topic`].
    pub topic: TopicId,
    /// Subscription name, checked by [`crate::check_name`].
    pub subscription: String,
    /// Must match while others are attached.
    pub kind: SubscriptionKind,
    /// Where a new subscription starts.
    pub initial: InitialPosition,
    /// Whether a new subscription is kept, and holds back what it has not acked. One that is not is
    /// a cursor in memory that ends with its last consumer (rule D137). Must match an existing one.
    pub durable: bool,
    /// Shown in statistics; Failover elects by it.
    pub consumer: String,
    /// Lower numbers come first: Shared serves others only while none of these can take an entry,
    /// Failover elects among the lowest (rules D69 and D77).
    pub priority_level: i32,
    /// How keys are shared out; KeyShared only.
    pub key_shared: KeyShared,
    /// The shard's side of its permits.
    pub account: Account,
    /// The port the shell keeps for it.
    pub slot: u32,
}

/// How a KeyShared subscription shares out its keys: as its first consumer asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyShared {
    /// The hashes this consumer wants; none: they are shared out (rules D83 to D85).
    pub ranges: Vec<KeyRange>,
    /// Entries of a key may overtake each other, and nobody waits for them (rule D93).
    pub allow_out_of_order_delivery: bool,
}

/// What a request was answered with.
#[derive(Debug)]
pub enum Reply {
    /// The topic is open.
    Topic(TopicId),
    /// The producer is attached.
    Producer(OpenedProducer),
    /// The consumer is attached.
    Consumer(ConsumerId),
    /// The thing asked for is done.
    Done,
    /// Where a topic ends, and how far a subscription is; `None` where nothing is known of it.
    LastPosition {
        /// The last entry that can be delivered, whether it still exists or not.
        last: Option<Position>,
        /// Messages in it, while it exists.
        last_messages: Option<u32>,
        /// Everything of the subscription up to this entry is done.
        mark_delete: Option<Position>,
    },
    /// Statistics.
    Stats(Box<BrokerStats>),
    /// Every subscription that is not moving, or of which a consumer is not.
    Explain(Vec<Explanation>),
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
    /// The keys that a KeyShared consumer asked for cannot be its own.
    #[error("subscribing to {subscription:?} of topic {topic:?} failed: {why}")]
    KeyRanges {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
        /// Which range, and who has it.
        why: AssignError,
    },
    /// A KeyShared subscription shares out its keys in another way.
    #[error(
        "subscription {subscription:?} of topic {topic:?} shares its keys in another way: subscribe as its consumers did (with or without ranges, in order or not), or close them first"
    )]
    KeySharedMode {
        /// The topic.
        topic: String,
        /// The subscription.
        subscription: String,
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
    /// Another producer has the topic for itself, or waits for that.
    #[error(
        "topic {topic:?} has a producer that shares it with nobody, or one that waits for that: close it first"
    )]
    ProducerBusy {
        /// The topic.
        topic: String,
    },
    /// There are other producers, or some had the topic for themselves since.
    #[error(
        "topic {topic:?} has other producers, or was taken over by one: close them first, or open one with access ExclusiveWithFencing"
    )]
    ProducerFenced {
        /// The topic.
        topic: String,
    },
    /// Its backlog is as large as its policy allows, and that does not evict.
    #[error(
        "the backlog of topic {topic:?} is as large as its policy allows: consume it, or change backlogQuota"
    )]
    BacklogQuota {
        /// The topic.
        topic: String,
        /// What the policy does: whether producers are to wait or to hear so.
        policy: BacklogPolicy,
    },
    /// The policy cannot be gone by.
    #[error("the policy for topic {topic:?} is not valid: {why}")]
    InvalidPolicy {
        /// The topic.
        topic: String,
        /// Which part, and what would be valid.
        why: &'static str,
    },
    /// The topic was terminated.
    #[error("topic {topic:?} was terminated: it takes nothing more, and serves what it has")]
    Terminated {
        /// The topic.
        topic: String,
    },
    /// What is asked is not to be had of this kind of topic or subscription.
    #[error("{what} {name:?} {why}")]
    NotPossible {
        /// "topic" or "subscription".
        what: &'static str,
        /// As asked.
        name: String,
        /// Why, and what would be possible.
        why: &'static str,
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
    /// A seek has ended this attachment, which goes on as a new one: it holds nothing and was granted
    /// nothing. What was handed over before it is gone, acks that name the old one change nothing.
    Reset {
        /// The attachment that ended.
        consumer: ConsumerId,
        /// The new one, in the same port.
        becomes: ConsumerId,
        /// The consumer's side of its permits.
        granter: Granter,
    },
    /// The topic is terminated and the consumer's subscription has no backlog: nothing more will come,
    /// unless it seeks. Once for each attachment.
    EndOfTopic {
        /// Whom to tell.
        consumer: ConsumerId,
    },
    /// The topic of this producer was terminated: its publishes are refused.
    Terminated {
        /// Whom to tell.
        producer: ProducerId,
    },
    /// Another producer has taken the topic for itself: publishes of this one are refused. It is to be
    /// closed as usual.
    Fenced {
        /// Whom to tell.
        producer: ProducerId,
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
    /// Ask the shard that owns the letter's topic for [`Request::DeadLetter`], and answer with
    /// [`Event::DeadLettered`]. An answer that never comes leaves the entry unacked.
    DeadLetter {
        /// Comes back in the answer.
        token: u64,
        /// What to append.
        letter: Box<Letter>,
    },
    /// Failover: this consumer is the active one from now on, or is not (rule D75).
    Active {
        /// Whom to tell.
        consumer: ConsumerId,
        /// Whether it is.
        active: bool,
    },
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
    /// Of a partly acked entry, which is a run of its own: the messages that are not acked, as in
    /// [`Event::AckBatch`].
    pub still: Option<Box<[u64]>>,
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
    /// The topic stores nothing: each entry went to whoever could take it (rule D138).
    Unstored,
    /// Not stored again: the topic has this sequence of the producer's name, or a higher one, as
    /// durable as it promises (rule D141).
    Duplicate,
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
    /// The log can make no segment, though not for want of space. Said by the shell, which knows why;
    /// the core says `DiskFull`.
    NoSegment,
    /// The log is poisoned by an earlier failure.
    Poisoned,
    /// The entry is larger than the engine takes, or its message count is out of range.
    Invalid,
    /// The producer is not attached any more.
    Closed,
    /// The topic was terminated.
    Terminated,
    /// Another producer has taken the topic for itself.
    Fenced,
    /// It is to be delivered later than the topic's policy allows (rule D123).
    DelayTooLong,
    /// The topic's backlog is as large as its policy allows (rule D128).
    BacklogQuota,
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
