//! Pelton, a message dispatch engine, inside your own process: topics that keep entries on disk (or
//! in memory), subscriptions that push them to consumers exactly as fast as those ask for them. No
//! server, no async runtime, no daemon.
//!
//! ```
//! use pelton::{Engine, Message};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let engine = Engine::in_memory().open()?; // Engine::builder("data") keeps everything on disk
//! let orders = engine.topic("orders").open()?;
//!
//! // Subscribe first: a topic without subscriptions keeps nothing, and a new one starts at the end.
//! let mut consumer = orders.subscribe("billing").open()?;
//! let mut producer = orders.producer().name("shop").open()?;
//!
//! let receipt = producer.send("order 1")?;
//! producer.send_batch([Message::from("order 2").key(b"ada"), Message::from("order 3")])?;
//! println!("stored at {:?}", receipt.wait()?); // or await it, or drop it
//!
//! for _ in 0..2 {
//!     let delivery = consumer.recv()?; // one entry: a message, or a batch
//!     for message in delivery.messages() {
//!         println!("{}", String::from_utf8_lossy(message.payload));
//!     }
//!     delivery.ack();
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Entries and messages
//!
//! An **entry** is what is stored, delivered and acked as a whole: one message ([`Producer::send`]) or
//! a batch of up to 100,000 ([`Producer::send_batch`]). Permits, windows, rates and backlog count
//! **messages**; positions, receipts and deliveries are of entries. Batches are what makes it fast:
//! everything but the copy of the bytes is paid per entry.
//!
//! # Durability
//!
//! A property of a topic, given when it is made ([`TopicBuilder::durability`]):
//!
//! | | a receipt means | a crash of the process | of the machine |
//! |---|---|---|---|
//! | [`Durability::Synced`] (default) | written and fdatasync'ed | loses nothing receipted | loses nothing receipted |
//! | [`Durability::Written`] | written to the kernel | loses nothing receipted | may lose the newest |
//! | [`Durability::Memory`] | in memory | loses everything | loses everything |
//! | [`Durability::NonPersistent`] | it went to who could take it | keeps nothing anyway | keeps nothing anyway |
//!
//! An entry can be delivered once it is as durable as its topic. Acks ride on the next commit;
//! [`Consumer::flush_acks`] waits for it, as does an orderly [`Engine::shutdown`]. So delivery is *at
//! least once*: after a crash, entries whose acks were not durable come again.
//!
//! If a write or sync fails the log is poisoned: nothing more is receipted, sends fail with the reason,
//! and entries on the way end as [`ReceiptError::Unknown`]. Open the engine again: what had a receipt
//! is there.
//!
//! An entry that cannot be read any more, because the disk has changed it, is passed over: it is not
//! delivered, not acked, and stays in the backlog. [`SubscriptionStats::damaged_entries`] counts such
//! entries and the notes of [`Engine::stats`] name the first; no receive fails for it.
//!
//! # Permits
//!
//! A consumer is sent what it asked for. By default it grants its window (1,000 messages) and, as it
//! receives, grants again in halves. With [`SubscribeBuilder::manual_permits`] it grants by hand
//! ([`Consumer::grant`]). While one permit is left the next entry comes whole; what it overshoots by is
//! debt that later grants pay first. So `delivered - granted < largest batch`, always, and a slow
//! consumer delays nobody but itself. What waits to be received is kept in memory, up to 64 MiB per
//! shard beside the newest entries; beyond that, who has 16 reads' worth waiting gets more only when it
//! has received. A [`Delivery`] that is kept keeps its block: 64 KiB, or 256 KiB if it was read from disk.
//!
//! # Positions
//!
//! A new subscription starts where it asks ([`SubscribeBuilder::initial`]); [`Topic::seek`] moves one,
//! back or forth, to a position, a message of a batch, a time or an end. Consumers and handlers stay:
//! what they held is dropped, their permits start again, and [`Consumer::resets`] counts it. A
//! [`Reader`] ([`Topic::reader`]) reads without a subscription that is kept. Who goes back finds what
//! some subscription still keeps: entries that all of them have acked are gone.
//!
//! # Times
//!
//! A message may name a time before which it is not delivered ([`Message::deliver_at_ms`],
//! [`Message::deliver_after`]; Shared and KeyShared subscriptions) and one from which it is worth
//! nothing ([`Message::deadline_ms`]). A topic's [`Policy`] may give every message a time to live or a
//! deadline: what expires is acked, held or not; what misses its deadline is given to nobody. Both are
//! counted in [`SubscriptionStats`], and cost neither permits nor reads. The times are the wall
//! clock's, so a step of it changes what is due.
//!
//! # Dead letters
//!
//! With [`Policy::dead_letter`] an entry that is rejected ([`Delivery::reject`], [`Verdict::Reject`]),
//! nacked or handed over too often is copied to a topic of its own, `<topic>-<subscription>-DLQ` by
//! default, and acked once the copy is as durable as the topic. Its [`Entry::properties`] say where it
//! comes from and why. A crash in between leaves a second copy at worst.
//!
//! # Threads
//!
//! An engine has shards ([`Builder::shards`]): one thread each, named `pelton-shard-N`, that owns its
//! topics alone. Handles are the other side of rings:
//!
//! | | share | use |
//! |---|---|---|
//! | [`Engine`], [`Topic`] | `&self` from any thread | `Topic` is `Clone` |
//! | [`Producer`], [`Consumer`] | move them; `&mut self` | one each per thread that publishes or receives |
//! | [`Delivery`], [`Receipt`], [`Pending`] | move them | settle or wait anywhere |
//!
//! Blocking calls spin for some microseconds, then park the thread ([`Builder::waiting`]). A
//! [handler](SubscribeBuilder::handler) runs on the shard's thread itself. With
//! [`Builder::open_driven`] there is no shard thread at all and the caller turns the loop. On a thread
//! that runs a shard, blocking calls would wait for themselves: they give `WouldBlock` instead.
//!
//! # Async and cancel safety
//!
//! [`Consumer::recv_async`], [`Receipt`], [`Producer::ready`] and [`Pending`] are futures on a plain
//! [`std::task::Waker`]: any executor runs them, and none is needed. With the feature `stream` a
//! [`Consumer`] is a `futures_core::Stream`. All may be dropped at any await: a receive takes an entry
//! only in the poll that returns it, a receipt or a wait for room takes nothing, and a dropped
//! [`Pending`] undoes what its call attaches. Blocking calls with a time-out take nothing when it
//! passes.
//!
//! # What an entry body looks like
//!
//! `u32 payload length | u16 key length (0xFFFF: none) | key | payload`, little endian, for each message:
//! see [`Messages`]. `pelton log dump` shows them.
#![forbid(unsafe_code)]

mod port;

mod driver;
mod engine;
mod topic;

mod message;
mod producer;
mod receipt;

mod consumer;
mod delivery;
mod handler;
mod position;
mod reader;

mod acks;
mod error;
mod pending;
mod stats;
mod wait;

pub use consumer::{Consumer, Recv, SubscribeBuilder, WINDOW_MESSAGES_MAX};
pub use delivery::{Delivery, Entry, OnDrop};
pub use driver::Driver;
pub use engine::{Builder, Engine};
pub use error::{
    AckError, DeleteError, ForwardError, GrantError, PolicyError, PositionError, ProducerError,
    ReceiptError, RecvError, SendError, StatsError, SubscribeError, TerminateError, TopicError,
    TrySendError,
};
pub use handler::{Forwarder, HandlerDelivery, HandlerGuard};
pub use message::{KEY_BYTES_MAX, MESSAGE_HEADER_BYTES, Message, Messages, key_hash};
pub use pending::Pending;
pub use position::LastPosition;
pub use producer::{Producer, ProducerBuilder, QUEUE_ENTRIES_MAX};
pub use reader::{Reader, ReaderBuilder};
pub use receipt::Receipt;
pub use stats::EngineStats;
pub use topic::{Topic, TopicBuilder};

// Of the crates below: what appears in the signatures above, and what tools of this repository use.
pub use pelton_shard::broker::keys::KeyRange;
pub use pelton_shard::broker::storage::{Durability, Position};
pub use pelton_shard::broker::{
    BacklogPolicy, BacklogQuota, Backoff, BrokerStats, CapScope, ConsumerStats, DeadLetter,
    DeadlineAction, Explanation, InitialPosition, MESSAGES_PER_ENTRY_MAX, Policy, ProducerAccess,
    Properties, Reason, Retention, SeekTo, SubscriptionKind, SubscriptionStats, TopicStats, Why,
};
pub use pelton_shard::metrics::{self, ShardMetrics};
pub use pelton_shard::port::{CloseReason, ShardStats, Verdict};
pub use pelton_shard::{
    Clock, DiskChoice as Disk, DiskReport, Fact, FactVerdict, HostReport, Idle, LongTurn,
    OpenError, SHARDS_MAX, ShardReport, ShutdownReport, TurnWork, Work, host_report, inspect,
    limits,
};
