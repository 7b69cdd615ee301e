//! What is kept of a topic though it is acked, and how large its backlog may become (rules D127 to D129).

use pelton_broker::storage::Durability;
use pelton_broker::{BacklogPolicy, SubscriptionStats};

use crate::oracle::{Check, Entry, Life, Oracle, hold};
use crate::sub::Sub;

/// Bytes of these entries.
fn bytes_of(entries: &[Entry]) -> u64 {
    entries.iter().map(|entry| entry.body.len() as u64).sum()
}

/// A limit in some unit of so many parts; below 0 is none.
fn limit(units: i64, parts: u64) -> u64 {
    u64::try_from(units).map_or(u64::MAX, |units| units * parts)
}

impl Life {
    /// Whether the policy keeps an entry that everybody has acked.
    pub(crate) fn keeps(&self, at: usize, now_ms: u64) -> bool {
        let retention = self.policy().retention;
        let age_max_ms = limit(retention.retention_time_in_minutes, 60_000);
        let is_young = now_ms.saturating_sub(self.entries[at].publish_ms) <= age_max_ms;
        let is_small =
            bytes_of(&self.entries[at..]) <= limit(retention.retention_size_in_mb, 1 << 20);
        age_max_ms > 0 && is_young && is_small
    }

    /// Whether nothing more may be appended, and whether publishes are held then.
    pub(crate) fn takes_less(&self, now_ms: u64) -> Option<BacklogPolicy> {
        let len = self.entries.len();
        let durable = self.subs.iter().filter(|sub| sub.durable);
        let floor = durable.map(|sub| sub.cursor.lowest_unacked(len)).min();
        let floor = floor.filter(|&floor| floor < len)?;
        let quota = self.policy().backlog_quota;
        let old_at_ms = self.entries[floor]
            .publish_ms
            .saturating_add(limit(quota.limit_time, 1_000));
        let excessive =
            bytes_of(&self.entries[floor..]) >= limit(quota.limit_size, 1) || now_ms >= old_at_ms;
        let takes_less = quota.policy != BacklogPolicy::ConsumerBacklogEviction;
        (excessive && takes_less).then_some(quota.policy)
    }
}

impl Sub {
    /// Bytes from its first entry on that is not acked.
    pub(crate) fn backlog_bytes(&self, entries: &[Entry]) -> u64 {
        bytes_of(&entries[self.cursor.lowest_unacked(entries.len())..])
    }

    /// Whether its first entry is to be evicted.
    fn is_evictable(&self, entries: &[Entry], now_ms: u64) -> bool {
        let quota = self.policy.backlog_quota;
        let floor = self.cursor.lowest_unacked(entries.len());
        let Some(first) = entries.get(floor).filter(|_| self.durable) else {
            return false;
        };
        let old_at_ms = first
            .publish_ms
            .saturating_add(limit(quota.limit_time, 1_000));
        let excessive =
            bytes_of(&entries[floor..]) > limit(quota.limit_size, 1) || now_ms >= old_at_ms;
        excessive && quota.policy == BacklogPolicy::ConsumerBacklogEviction
    }

    /// Takes note of what was evicted: no more than had to be.
    pub(crate) fn note_evicted(
        &mut self,
        entries: &[Entry],
        told: &SubscriptionStats,
        now_ms: u64,
        ack: u64,
    ) -> Check {
        if self.evicted_messages == told.evicted_messages {
            return Ok(());
        }
        while self.evicted_messages < told.evicted_messages {
            let evicts = self.is_evictable(entries, now_ms) && !self.is_seeking();
            hold("D129 evicted", evicts, || {
                format!("of {}: {told:?}", self.name)
            })?;
            let floor = self.cursor.lowest_unacked(entries.len());
            self.evicted_messages += self.left(floor, entries);
            self.drop_entry(floor, ack);
        }
        self.weigh(entries);
        Ok(())
    }
}

impl Oracle {
    /// At rest: nothing is kept that need not be, and no backlog is too large.
    pub(crate) fn check_keeping(&self, shard: usize, now_ms: u64) -> Check {
        for topic in self.topics.iter().filter(|topic| topic.shard == shard) {
            let Some(life) = &topic.life else { continue };
            if topic.durability == Durability::NonPersistent {
                continue;
            }
            let len = life.entries.len();
            let first = life.stored_from();
            let needs = life.subs.iter().map(|sub| sub.needs(len)).min();
            let ready = life.ready(topic.durability);
            let acked = first < needs.unwrap_or(ready).min(ready);
            hold("D127 kept", !acked || life.keeps(first, now_ms), || {
                format!("entry {first} of {} at {now_ms} ms", topic.name)
            })?;
            let seeks = life.subs.iter().any(|sub| !sub.seeks.is_empty());
            // Its age is looked at once a second.
            let excessive = life.subs.iter().find(|sub| {
                sub.cursor.lowest_unacked(len) < ready && sub.is_evictable(&life.entries, 0)
            });
            hold("D129 evicted", excessive.is_none() || seeks, || {
                format!("{excessive:?} of {} is too large", topic.name)
            })?;
        }
        Ok(())
    }
}
