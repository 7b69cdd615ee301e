//! What the connections of one shard have in common, and what those of all shards have.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::Sender;
use pelton_shard::broker::Now;
use pelton_shard::broker::storage::Durability;
use pelton_shard::{Router, ShardHandle};
use pelton_wire::{MESSAGE_BYTES_MAX, PRELOGIN_FRAME_BYTES_MAX};

use super::refusal::Refusal;
use super::schemas::SchemaStore;
use super::topic::Named;
use super::waiting::Waiting;

/// What all connections of a server share; nothing in it is written on the path of a message.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) handles: Vec<ShardHandle>,
    pub(crate) router: Router,
    /// The URL of each shard's port, as clients are told.
    pub(crate) urls: Vec<String>,
    pub(crate) durability: Durability,
    pub(crate) limits: Limits,
    pub(crate) schemas: SchemaStore,
    /// Lines for whoever runs the server. A full channel drops them: a shard does not wait for it.
    pub(crate) log: Sender<String>,
    pub(crate) counters: Counters,
    /// The server stops: nobody new is let in, and everybody is told.
    pub(crate) draining: AtomicBool,
    /// Makes names of producers unique across restarts.
    pub(crate) started_ms: u64,
}

/// What clients may take. Source: wire spec 9.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) message_bytes_max: u32,
    pub(crate) prelogin_frame_bytes_max: u32,
    /// From accept to CONNECTED.
    pub(crate) handshake_ns: u64,
    /// A connection is asked for a sign of life after so long, and closed after twice as long.
    pub(crate) keep_alive_ns: u64,
    /// Of each shard.
    pub(crate) connections_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            message_bytes_max: MESSAGE_BYTES_MAX,
            prelogin_frame_bytes_max: PRELOGIN_FRAME_BYTES_MAX,
            handshake_ns: 30_000_000_000,
            keep_alive_ns: 30_000_000_000,
            connections_max: 10_000,
        }
    }
}

/// What happened to connections since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) accepted: AtomicU64,
    pub(crate) open: AtomicU64,
    /// Closed at once: there were too many.
    pub(crate) refused: AtomicU64,
    /// Bytes that are not the protocol, or against its rules.
    pub(crate) malformed: AtomicU64,
    pub(crate) handshake_timeouts: AtomicU64,
    pub(crate) evicted: AtomicU64,
    pub(crate) accept_errors: AtomicU64,
}

/// Adds one.
pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Shared {
    /// Says a line, unless too many wait to be said.
    pub(crate) fn say(&self, line: String) {
        let _ = self.log.try_send(line);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }
}

/// What the connections of one shard share.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) shared: Arc<Shared>,
    pub(crate) shard: u32,
    pub(crate) now: Now,
    /// Names in use: topic and producer.
    pub(crate) producer_names: BTreeMap<String, Vec<String>>,
    /// Consumers attached, by topic and subscription.
    pub(crate) consumers: BTreeMap<(String, String), usize>,
    /// What connections that are gone had asked for.
    pub(crate) orphans: Vec<Waiting>,
    pub(crate) names_made: u64,
}

impl Context {
    pub(crate) fn new(shared: Arc<Shared>, shard: u32) -> Context {
        Context {
            shared,
            shard,
            now: Now::default(),
            producer_names: BTreeMap::new(),
            consumers: BTreeMap::new(),
            orphans: Vec::new(),
            names_made: 0,
        }
    }

    /// The handle of the shard on whose thread this is.
    pub(crate) fn own_shard(&self) -> &ShardHandle {
        &self.shared.handles[self.shard as usize]
    }

    /// The shard that owns a topic, and the URL of its port.
    pub(crate) fn owner_of(&self, topic: &str) -> (u32, &str) {
        let owner = self.shared.router.shard_of(topic);
        (owner, &self.shared.urls[owner as usize])
    }

    /// A topic is served on its owner's port only. Source: wire spec 1.
    pub(crate) fn check_owner(&self, topic: &str) -> Result<(), Refusal> {
        match self.owner_of(topic) {
            (owner, _) if owner == self.shard => Ok(()),
            (_, url) => Err(Refusal::not_ready(format!(
                "Topic {topic} is served at {url}: look it up again"
            ))),
        }
    }

    /// What a topic is made with.
    pub(crate) fn durability_of(&self, named: &Named) -> Durability {
        match named.persistent {
            true => self.shared.durability,
            false => Durability::NonPersistent,
        }
    }

    /// A name for a producer that has none.
    pub(crate) fn new_name(&mut self) -> String {
        self.names_made += 1;
        format!(
            "pelton-{:x}-{}-{}",
            self.shared.started_ms, self.shard, self.names_made
        )
    }

    /// False if another producer of the topic has that name.
    pub(crate) fn take_producer_name(&mut self, topic: &str, name: &str) -> bool {
        let names = self.producer_names.entry(topic.to_owned()).or_default();
        let free = !names.iter().any(|taken| taken == name);
        if free {
            names.push(name.to_owned());
        }
        free
    }

    pub(crate) fn free_producer_name(&mut self, topic: &str, name: &str) {
        if let Some(names) = self.producer_names.get_mut(topic) {
            names.retain(|taken| taken != name);
            if names.is_empty() {
                self.producer_names.remove(topic);
            }
        }
    }

    pub(crate) fn count_consumer(&mut self, topic: &str, subscription: &str) {
        let key = (topic.to_owned(), subscription.to_owned());
        *self.consumers.entry(key).or_default() += 1;
    }

    pub(crate) fn uncount_consumer(&mut self, topic: &str, subscription: &str) {
        let key = (topic.to_owned(), subscription.to_owned());
        if let Some(count) = self.consumers.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                self.consumers.remove(&key);
            }
        }
    }

    /// Consumers of the subscription, on all connections.
    pub(crate) fn consumers_of(&self, topic: &str, subscription: &str) -> usize {
        let key = (topic.to_owned(), subscription.to_owned());
        self.consumers.get(&key).copied().unwrap_or(0)
    }
}
