//! Counts of topics and subscriptions. Reading them changes nothing.

use pelton_storage::Position;

use crate::Broker;
use crate::broker::SubIndex;
use crate::terminate::End;
use crate::topic::Topic;

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
    /// Entries that exist, acked ones that are kept as well.
    pub entries: u64,
    /// Bytes of their properties and bodies.
    pub bytes: u64,
    /// It takes nothing more.
    pub terminated: bool,
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
    /// Bytes of the topic's entries from the first one on that is not acked: what `backlogQuota` limits.
    pub backlog_bytes: u64,
    /// Messages handed over and not yet acked.
    pub unacked_messages: u64,
    /// Entries owed again.
    pub replay_entries: u64,
    /// Entries that wait for the time they are to be delivered at, or to be delivered again.
    pub delayed_entries: u64,
    /// Messages handed over since the engine was opened.
    pub delivered_messages: u64,
    /// Messages acked since the engine was opened.
    pub acked_messages: u64,
    /// Kept when its last consumer leaves.
    pub durable: bool,
    /// A seek is not yet durable: nothing is handed over.
    pub seeking: bool,
    /// Messages that were removed before a subscription that is not durable had read them.
    pub jumped_messages: u64,
    /// Messages of a non-persistent topic that no consumer could take.
    pub dropped_messages: u64,
    /// Entries that could not be read and were passed over, not acked, since the engine was opened
    /// (rule D6). They stay in its backlog.
    pub damaged_entries: u64,
    /// The first of them that was met.
    #[serde(serialize_with = "ledger_and_entry")]
    pub first_damaged: Option<Position>,
    /// Messages that outlived the topic's time to live, handed over or not.
    pub expired_messages: u64,
    /// Messages whose deadline passed before they were handed over, and that were dropped.
    pub deadline_dropped_messages: u64,
    /// Messages of which a copy is in the dead-letter topic.
    pub dead_lettered_messages: u64,
    /// Entries whose copy is on its way there.
    pub dead_lettering_entries: u64,
    /// Messages that were rejected and, for want of a dead-letter topic, dropped.
    pub rejected_messages: u64,
    /// Messages that were acked because the backlog was too large (`consumer_backlog_eviction`).
    pub evicted_messages: u64,
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

/// A position as the array `[ledger, entry]`.
fn ledger_and_entry<S: serde::Serializer>(
    position: &Option<Position>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let pair = position.map(|position| [position.ledger, position.entry]);
    serde::Serialize::serialize(&pair, serializer)
}

impl Broker {
    pub(crate) fn stats(&self) -> BrokerStats {
        let topics = self
            .names
            .values()
            .map(|&index| self.topic_stats(self.topic_at(index)));
        BrokerStats {
            topics: topics.collect(),
        }
    }

    fn topic_stats(&self, topic: &Topic) -> TopicStats {
        TopicStats {
            name: topic.name.to_string(),
            producers: topic.access.attached(),
            entries: self.log.end(topic.slot) - self.log.first(topic.slot),
            bytes: self.log.bytes_from(topic.slot, 0),
            terminated: topic.end != End::Open,
            subscriptions: topic
                .subs
                .iter()
                .map(|&sub| self.sub_stats(sub, topic))
                .collect(),
        }
    }

    fn sub_stats(&self, index: SubIndex, topic: &Topic) -> SubscriptionStats {
        let sub = self.sub(index);
        let floor = sub.window.floor();
        let holes = (floor..sub.window.end())
            .filter(|&o| sub.window.get(o) == crate::window::State::Acked)
            .count() as u64;
        SubscriptionStats {
            name: sub.name.to_string(),
            backlog_entries: self.log.end(topic.slot).max(floor) - floor - holes,
            backlog_messages: sub.backlog_messages(topic.messages),
            backlog_bytes: self.log.bytes_from(topic.slot, floor),
            unacked_messages: sub.unacked,
            replay_entries: sub.replay.entries(),
            delayed_entries: sub.later.len() + sub.delays.len(),
            delivered_messages: sub.delivered_messages,
            acked_messages: sub.acked_messages,
            durable: sub.durable,
            seeking: sub.seeks > 0,
            jumped_messages: sub.jumped_messages,
            dropped_messages: sub.dropped_messages,
            damaged_entries: sub.damaged_entries,
            first_damaged: sub.first_damaged,
            expired_messages: sub.gone.expired,
            deadline_dropped_messages: sub.gone.late,
            dead_lettered_messages: sub.gone.dead_lettered,
            dead_lettering_entries: self.dead_letters.count_of(index),
            rejected_messages: sub.gone.rejected,
            evicted_messages: sub.gone.evicted,
            consumers: sub
                .consumers
                .iter()
                .map(|&port| self.consumer_stats(port))
                .collect(),
        }
    }

    fn consumer_stats(&self, port: u32) -> ConsumerStats {
        self.consumers[port as usize]
            .as_ref()
            .map_or_else(ConsumerStats::default, |consumer| ConsumerStats {
                name: consumer.name.clone(),
                available_permits: consumer.account.available(),
                delivered_messages: consumer.account.delivered(),
                unacked_messages: consumer.unacked,
                avg_messages_per_entry: consumer.average.get().unwrap_or(0.0),
            })
    }
}
