//! Metadata records: which topics exist, where, with which subscriptions.
//!
//! They sit behind a small key-value seam: the core emits a [`MetaOp`] and goes on when it is told
//! that it is done; operations are carried out in order. Data and cursors are in the log instead.

use std::collections::VecDeque;
use std::sync::Arc;

use pelton_storage::Durability;
use serde::{Deserialize, Serialize};

use crate::{Letter, MetaOp, Policy, ProducerId, Reply, RequestId, TopicId};

/// Prefix of the keys of topic records; the topic's name follows.
pub const TOPIC_PREFIX: &str = "topic/";

/// Prefix of the keys that hold the next durable id of a shard, so that ids are never reused.
pub(crate) const NEXT_KEY_PREFIX: &str = "next-key/";

/// A durable topic, as stored in JSON under [`TOPIC_PREFIX`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopicRecord {
    /// Its name.
    pub name: String,
    /// Its durable id: names it in the log.
    pub key: u64,
    /// The shard whose log holds it.
    pub shard: u32,
    /// "written" or "synced".
    pub durability: String,
    /// What its subscriptions go by; none: the engine's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<Policy>,
    /// How often producers were given the topic for themselves alone; none: never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topic_epoch: Option<u64>,
    /// It takes nothing more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub terminated: bool,
    /// Its durable subscriptions.
    pub subscriptions: Vec<SubscriptionRecord>,
}

/// A durable subscription within a [`TopicRecord`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionRecord {
    /// Its name.
    pub name: String,
    /// Its durable id: names its cursor records in the log.
    pub key: u64,
}

impl TopicRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// [`RestoreError`] with what JSON or the durability said.
    pub fn decode(key: &str, value: &[u8]) -> Result<Self, RestoreError> {
        let error = |why: String| RestoreError {
            key: key.to_owned(),
            why,
        };
        let record: Self = serde_json::from_slice(value).map_err(|e| error(e.to_string()))?;
        if record.durable().is_none() {
            return Err(error(format!("unknown durability {:?}", record.durability)));
        }
        Ok(record)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record of strings and numbers is always JSON")
    }

    pub(crate) fn durable(&self) -> Option<Durability> {
        match self.durability.as_str() {
            "written" => Some(Durability::Written),
            "synced" => Some(Durability::Synced),
            _ => None,
        }
    }
}

pub(crate) fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::NonPersistent => "non-persistent",
        Durability::Memory => "memory",
        Durability::Written => "written",
        Durability::Synced => "synced",
    }
}

/// A metadata record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reading metadata record {key:?} failed: {why}; it was not written by this version")]
pub struct RestoreError {
    /// Key of the record.
    pub key: String,
    /// What is wrong.
    pub why: String,
}

/// What to undo if a write of metadata fails.
#[derive(Debug)]
pub(crate) enum Undo {
    Topic(TopicId),
    Subscription(TopicId, String),
    /// What was asked, and what held before.
    Policy(TopicId, Arc<Policy>, Arc<Policy>),
    Terminate(TopicId),
    Producer(ProducerId),
    Nothing,
}

/// Requests that wait for their metadata, in the order of the operations.
#[derive(Debug, Default)]
pub(crate) struct MetaWaits {
    last_token: u64,
    waits: VecDeque<MetaWait>,
}

#[derive(Debug)]
pub(crate) struct MetaWait {
    pub(crate) token: u64,
    pub(crate) id: RequestId,
    pub(crate) name: String,
    pub(crate) reply: Reply,
    pub(crate) undo: Undo,
    /// Appended to this topic before the request is answered.
    pub(crate) letter: Option<(TopicId, Letter)>,
}

impl MetaWaits {
    /// The operation to emit; its reply is kept until it is done.
    pub(crate) fn begin(
        &mut self,
        writes: Vec<(String, Option<Vec<u8>>)>,
        wait: impl FnOnce(u64) -> MetaWait,
    ) -> MetaOp {
        self.last_token += 1;
        self.waits.push_back(wait(self.last_token));
        MetaOp {
            token: self.last_token,
            writes,
        }
    }

    /// The request that waits since last is not answered by its metadata: then a letter is appended.
    pub(crate) fn append_after(&mut self, topic: TopicId, letter: Letter) {
        if let Some(wait) = self.waits.back_mut() {
            wait.letter = Some((topic, letter));
        }
    }

    /// Takes the request that waited for `token`.
    pub(crate) fn take(&mut self, token: u64) -> Option<MetaWait> {
        let at = self.waits.iter().position(|wait| wait.token == token)?;
        self.waits.remove(at)
    }

    /// A policy could not be written: those that were asked for later do not go back to it either.
    pub(crate) fn forget_policy(&mut self, failed: &Arc<Policy>, held: &Arc<Policy>) {
        for wait in &mut self.waits {
            if let Undo::Policy(_, _, before) = &mut wait.undo
                && Arc::ptr_eq(before, failed)
            {
                *before = Arc::clone(held);
            }
        }
    }

    /// Whether somebody waits for the end of a topic.
    pub(crate) fn terminates(&self, topic: TopicId) -> bool {
        let of = |undo: &Undo| matches!(*undo, Undo::Terminate(of) if of == topic);
        self.waits.iter().any(|wait| of(&wait.undo))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }
}
