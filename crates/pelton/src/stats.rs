//! What an engine says about itself.

use crate::error::StatsError;
use crate::pending::{Call, Pending};
use crate::port::{Control, ShardHandle, ShardStats, reply};
use crate::{Idle, ShardMetrics, SubscriptionStats, TopicStats};

/// Statistics of all shards, taken one after the other within microseconds.
#[derive(Debug)]
pub struct EngineStats {
    /// One per shard, by index. Counts of topics and subscriptions are levels; `metrics` holds what
    /// the shard measured since it was last asked, by whomever: add the sets up for totals
    /// ([`ShardMetrics::merge`]).
    pub shards: Vec<ShardStats>,
}

impl EngineStats {
    /// A topic by name.
    #[must_use]
    pub fn topic(&self, name: &str) -> Option<&TopicStats> {
        self.shards
            .iter()
            .flat_map(|shard| &shard.broker.topics)
            .find(|topic| topic.name == name)
    }

    /// A subscription by the names of its topic and its own.
    #[must_use]
    pub fn subscription(&self, topic: &str, name: &str) -> Option<&SubscriptionStats> {
        self.topic(topic)?
            .subscriptions
            .iter()
            .find(|subscription| subscription.name == name)
    }

    /// What all shards measured since they were last asked, in one set.
    #[must_use]
    pub fn merged(&self) -> ShardMetrics {
        let mut all = ShardMetrics::new();
        for shard in &self.shards {
            all.merge(&shard.metrics);
        }
        all
    }
}

/// Asks every shard at once.
pub(crate) fn begin(
    engine_id: u64,
    idle: Idle,
    handles: &[ShardHandle],
) -> Pending<Result<EngineStats, StatsError>> {
    let mut calls: Vec<_> = handles
        .iter()
        .map(|handle| {
            let (to, from) = reply();
            let spare = Box::new(ShardMetrics::new());
            Call::new(handle.clone(), Control::Stats { spare, reply: to }, from)
        })
        .collect();
    let mut answers: Vec<Option<ShardStats>> = handles.iter().map(|_| None).collect();
    Pending::new(engine_id, idle, move |waker| {
        for (shard, (call, answer)) in calls.iter_mut().zip(&mut answers).enumerate() {
            if answer.is_some() {
                continue;
            }
            match call.look(waker) {
                Some(Ok(stats)) => *answer = Some(stats),
                Some(Err(_)) => return Some(Err(StatsError::EngineClosed { shard })),
                None => {}
            }
        }
        if answers.iter().any(Option::is_none) {
            return None;
        }
        Some(Ok(EngineStats {
            shards: answers.iter_mut().filter_map(Option::take).collect(),
        }))
    })
}
