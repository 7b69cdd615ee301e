//! Counts of topics and subscriptions. Reading them changes nothing.

use crate::broker::SubIndex;
use crate::terminate::End;
use crate::topic::Topic;
use crate::{Broker, BrokerStats, ConsumerStats, SubscriptionStats, TopicStats};

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
