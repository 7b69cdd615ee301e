//! The deterministic core of one shard: topics, subscriptions, cursors, dispatchers.
//!
//! It takes an [`Event`] and the time and gives [`Effect`]s; it never touches a file, socket, thread,
//! clock or random source, so the same core runs under the shard's turn loop and under a simulator.
//! Call [`Broker::handle`], then [`Broker::poll_effect`] until `None`; [`Event::Tick`] ends a turn.
//!
//! Read `event.rs` first (the contract), then `broker.rs` (routes), then `dispatch.rs`.
#![forbid(unsafe_code)]

mod event;

mod access;
mod ack_set;
mod acks;
mod alarms;
mod broker;
mod dead_letter;
mod dispatch;
mod election;
mod expiry;
mod explain;
mod keyed;
pub mod keys;
mod letters;
mod meta;
mod name;
mod non_durable;
mod non_persistent;
mod policy;
mod producers;
mod properties;
mod quota;
mod receipts;
mod redelivery;
mod replay;
mod retention;
mod rotation;
mod seek;
mod selector;
mod stats;
mod subscription;
mod terminate;
mod timers;
mod times;
mod topic;
mod unacked;
mod window;

#[cfg(test)]
mod tests;

pub use pelton_flow as flow;
pub use pelton_storage as storage;

pub use ack_set::AckSet;
pub use broker::{Broker, Options};
pub use dead_letter::Letter;
pub use event::*;
pub use explain::{CapScope, Explanation, Reason, Why};
pub use meta::{RestoreError, SubscriptionRecord, TOPIC_PREFIX, TopicRecord};
pub use name::check_name;
pub use policy::{
    BacklogPolicy, BacklogQuota, Backoff, DeadLetter, DeadlineAction, Policy, Retention,
};
pub use producers::producer_number;
pub use properties::{Properties, push_property};
pub use stats::{BrokerStats, ConsumerStats, SubscriptionStats, TopicStats};
