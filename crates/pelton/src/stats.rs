//! What an engine says about itself.

use crate::error::StatsError;
use crate::pending::{Call, Pending};
use crate::port::{Answer, Control, Ports, Reply, Request, ShardHandle, ShardStats, reply};
use crate::{Explanation, Idle, ShardMetrics, SubscriptionStats, TopicStats};

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

/// Statistics of every shard.
pub(crate) fn begin(
    engine_id: u64,
    idle: Idle,
    handles: &[ShardHandle],
) -> Pending<Result<EngineStats, StatsError>> {
    let call = |handle: &ShardHandle| {
        let (to, from) = reply();
        let spare = Box::new(ShardMetrics::new());
        Call::new(handle.clone(), Control::Stats { spare, reply: to }, from)
    };
    let calls = handles.iter().map(call).collect();
    ask_all(engine_id, idle, calls, |shards| EngineStats { shards })
}

/// What waits on every shard, and why.
pub(crate) fn begin_explain(
    engine_id: u64,
    idle: Idle,
    handles: &[ShardHandle],
) -> Pending<Result<Vec<Explanation>, StatsError>> {
    let call = |handle: &ShardHandle| {
        let (to, from) = reply();
        let control = Control::Request {
            request: Request::Explain { topic: None },
            ports: Ports::None,
            reply: to,
        };
        Call::new(handle.clone(), control, from)
    };
    let calls = handles.iter().map(call).collect();
    ask_all(engine_id, idle, calls, |shards: Vec<Answer>| {
        let explained = shards.into_iter().filter_map(|answer| match answer {
            Ok(Reply::Explain(all)) => Some(all),
            _ => None, // a shard refuses no such request
        });
        explained.flatten().collect()
    })
}

/// Asks every shard at once; `whole` makes one value of their answers, by index.
fn ask_all<A: Send + 'static, T: 'static>(
    engine_id: u64,
    idle: Idle,
    mut calls: Vec<Call<A>>,
    whole: fn(Vec<A>) -> T,
) -> Pending<Result<T, StatsError>> {
    let mut answers: Vec<Option<A>> = calls.iter().map(|_| None).collect();
    Pending::new(engine_id, idle, move |waker| {
        for (shard, (call, answer)) in calls.iter_mut().zip(&mut answers).enumerate() {
            if answer.is_some() {
                continue;
            }
            match call.look(waker) {
                Some(Ok(given)) => *answer = Some(given),
                Some(Err(_)) => return Some(Err(StatsError::EngineClosed { shard })),
                None => {}
            }
        }
        if answers.iter().any(Option::is_none) {
            return None;
        }
        Some(Ok(whole(
            answers.iter_mut().filter_map(Option::take).collect(),
        )))
    })
}
