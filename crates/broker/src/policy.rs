//! What the subscriptions of a topic go by: limits and habits, with the names operators know.

use serde::{Deserialize, Serialize};

/// Policy of a topic. It can change at any time and takes effect with the next event.
///
/// Defaults are those of section 22 of the dispatch specification.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Policy {
    /// Messages one consumer may hold unacked (Shared, KeyShared); 0: any number.
    pub max_unacked_messages_per_consumer: u64,
    /// Messages all consumers of a subscription may hold unacked; 0: any number.
    pub max_unacked_messages_per_subscription: u64,
    /// A consumer or subscription at its cap goes on once this part of the cap is left.
    pub max_unacked_messages_unblock_ratio: f64,
    /// Entries a consumer gets before the next one's turn.
    pub dispatcher_max_round_robin_batch_size: u32,
    /// Whether the messages of a batch can be acked one by one (rule D96).
    pub acknowledgment_at_batch_index_level_enabled: bool,
    /// How long a nacked entry waits.
    pub redelivery_backoff: Backoff,
    /// Whether a time to deliver at is heeded (Shared, KeyShared); else entries go at once.
    pub delayed_delivery_enabled: bool,
    /// How far in the future a time to deliver at may be; 0: any. A publish beyond it is refused.
    pub delayed_delivery_max_delay_in_millis: u64,
    /// Entries that may wait for their time; while so many do, unread ones stay where they are.
    pub delayed_delivery_max_entries_per_subscription: u64,
    /// Whether an entry is stored once only, by its producer's name and sequence (rule D141). What
    /// came while it was off is not known.
    pub deduplication_enabled: bool,
    /// Messages are acked so long after they were published, handed over or not; 0: never.
    #[serde(rename = "messageTTL")]
    pub message_ttl_seconds: u64,
    /// Messages that nobody was given so long after they were published are given to nobody; 0: no
    /// such deadline. The earlier one counts if they have one of their own (rule D130).
    pub max_delivery_lag_millis: u64,
    /// What becomes of messages whose deadline has passed.
    pub deadline_action: DeadlineAction,
    /// How long entries are kept that every subscription has acked.
    pub retention: Retention,
    /// How much may wait to be acked, and what happens to more.
    pub backlog_quota: BacklogQuota,
    /// Where messages go that cannot be handled; none: nowhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letter: Option<DeadLetter>,
    /// KeyShared: whether keys are shared out by consistent hashing, else by halving ranges.
    pub subscription_key_shared_use_consistent_hashing: bool,
    /// Points of each consumer on the hash ring.
    pub subscription_key_shared_consistent_hashing_replica_points: u32,
    /// KeyShared: entries put aside, per consumer, before unread ones have to wait; 0: no such limit.
    pub key_shared_look_ahead_msg_in_replay_threshold_per_consumer: u64,
    /// The same for the subscription.
    pub key_shared_look_ahead_msg_in_replay_threshold_per_subscription: u64,
    /// Failover: a new active consumer waits so long for what the old one holds.
    pub active_consumer_failover_delay_time_millis: u64,
    /// Failover on partitions: no consumer came or went for so long before an equal one takes over.
    pub failover_rebalance_quiet_millis: u64,
}

/// Delay of an entry that is nacked for the n-th time (rule D112).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Backoff {
    /// After the first nack; 0: none at all.
    pub initial_ms: u64,
    /// Each nack waits so many times longer.
    pub multiplier: f64,
    /// The longest wait.
    pub max_ms: u64,
}

/// What becomes of an entry that nobody was given before its deadline (rule D131).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DeadlineAction {
    /// It is acked and counted.
    #[default]
    Drop,
    /// It goes to the dead-letter topic, if the policy has one.
    DeadLetter,
}

/// How long entries are kept that every durable subscription has acked, for readers, seeks and
/// subscriptions to come (rule D127). They go once they are too old, or the topic is too large.
///
/// What is in memory alone is kept as long as that memory is not wanted for new entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Retention {
    /// Minutes since they were published; 0: not kept at all, -1: however old they are.
    pub retention_time_in_minutes: i64,
    /// MiB of properties and bodies of all entries of the topic, those that are not acked as well; 0:
    /// not kept at all, -1: however many.
    #[serde(rename = "retentionSizeInMB")]
    pub retention_size_in_mb: i64,
}

/// How large the backlog of a topic may become: that of its slowest durable subscription (rules D128
/// and D129).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct BacklogQuota {
    /// Bytes of properties and bodies from the first entry on that is not acked; -1: any number. An
    /// entry is taken while they are fewer.
    pub limit_size: i64,
    /// Seconds since the first entry that is not acked was published; -1: any number.
    pub limit_time: i64,
    /// What happens to more.
    pub policy: BacklogPolicy,
}

/// What happens when a backlog is as large as it may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BacklogPolicy {
    /// No entry is taken until there is room: producers wait. New ones are refused meanwhile.
    #[default]
    ProducerRequestHold,
    /// Entries and new producers are refused until there is room.
    ProducerException,
    /// The oldest entries of the slowest subscriptions are acked, handed over or not.
    ConsumerBacklogEviction,
}

/// When an entry is dead, and where its copy goes (rules D116 to D118). The counts decide for Shared
/// and KeyShared subscriptions; a rejected entry is dead on any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct DeadLetter {
    /// Dead when redelivery is asked for and its count is this already; 0: never.
    pub max_redeliver_count: u32,
    /// Dead when it comes back for any reason after so many hand-overs: what kills its consumers
    /// ends too. Counted while this is not 0; 0: never.
    pub max_deliveries: u32,
    /// Name of the topic, which gets the durability of the entry's own; none:
    /// `<topic without -partition-N>-<subscription>-DLQ`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topic: Option<String>,
    /// Made with the topic, at its first entry, so that nothing is lost before somebody reads it.
    pub initial_subscription: String,
}

impl Default for BacklogQuota {
    fn default() -> Self {
        Self {
            limit_size: -1,
            limit_time: -1,
            policy: BacklogPolicy::default(),
        }
    }
}

impl Default for DeadLetter {
    fn default() -> Self {
        Self {
            max_redeliver_count: 0,
            max_deliveries: 0,
            topic: None,
            initial_subscription: "dlq".to_owned(),
        }
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_unacked_messages_per_consumer: 50_000,
            max_unacked_messages_per_subscription: 200_000,
            max_unacked_messages_unblock_ratio: 0.5,
            dispatcher_max_round_robin_batch_size: 20,
            acknowledgment_at_batch_index_level_enabled: true,
            redelivery_backoff: Backoff::default(),
            delayed_delivery_enabled: true,
            delayed_delivery_max_delay_in_millis: 0,
            delayed_delivery_max_entries_per_subscription: 4_000_000,
            deduplication_enabled: false,
            message_ttl_seconds: 0,
            max_delivery_lag_millis: 0,
            deadline_action: DeadlineAction::Drop,
            retention: Retention::default(),
            backlog_quota: BacklogQuota::default(),
            dead_letter: None,
            subscription_key_shared_use_consistent_hashing: true,
            subscription_key_shared_consistent_hashing_replica_points: 100,
            key_shared_look_ahead_msg_in_replay_threshold_per_consumer: 4_000,
            key_shared_look_ahead_msg_in_replay_threshold_per_subscription: 40_000,
            active_consumer_failover_delay_time_millis: 1_000,
            failover_rebalance_quiet_millis: 1_000,
        }
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            initial_ms: 0,
            multiplier: 2.0,
            max_ms: 60_000,
        }
    }
}

impl Policy {
    /// Whether it can be gone by; else why not.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let Retention {
            retention_time_in_minutes: minutes,
            retention_size_in_mb: mb,
        } = self.retention;
        if minutes < -1 || mb < -1 || (minutes == 0) != (mb == 0) {
            return Err(
                "retention: time and size are both 0 (nothing is kept), or each is a limit above 0 or -1 (none)",
            );
        }
        let quota = &self.backlog_quota;
        if quota.limit_size < -1 || quota.limit_time < -1 {
            return Err("backlogQuota: a limit is 0 or more, or -1 (none)");
        }
        Ok(())
    }
}

impl Retention {
    /// Entries that are acked are kept for a while.
    pub(crate) fn keeps(&self) -> bool {
        self.retention_time_in_minutes != 0
    }

    /// An entry published before this Unix millisecond is too old.
    pub(crate) fn oldest_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.age_max_ms())
    }

    /// Milliseconds; `u64::MAX`: any age.
    pub(crate) fn age_max_ms(&self) -> u64 {
        let minutes = u64::try_from(self.retention_time_in_minutes);
        minutes.map_or(u64::MAX, |minutes| minutes.saturating_mul(60_000))
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        let mb = u64::try_from(self.retention_size_in_mb);
        mb.map_or(u64::MAX, |mb| mb.saturating_mul(1 << 20))
    }
}

impl BacklogQuota {
    pub(crate) fn is_limited(&self) -> bool {
        self.limit_size >= 0 || self.limit_time >= 0
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        u64::try_from(self.limit_size).unwrap_or(u64::MAX)
    }

    /// Milliseconds; `u64::MAX`: any age.
    pub(crate) fn age_max_ms(&self) -> u64 {
        let seconds = u64::try_from(self.limit_time);
        seconds.map_or(u64::MAX, |seconds| seconds.saturating_mul(1_000))
    }
}

impl Backoff {
    /// The wait after the nack that made the count `count`, 1 or more; nanoseconds.
    #[must_use]
    pub fn delay_ns(&self, count: u32) -> u64 {
        if self.initial_ms == 0 {
            return 0;
        }
        let factor = self
            .multiplier
            .max(1.0)
            .powi(count.saturating_sub(1).min(1_000).cast_signed());
        let delay_ms = (self.initial_ms as f64 * factor).min(self.max_ms as f64);
        (delay_ms * 1e6) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backoff_doubles_up_to_its_longest() {
        let backoff = Backoff {
            initial_ms: 100,
            multiplier: 2.0,
            max_ms: 1_000,
        };
        let delays_ms = [1, 2, 3, 4, 5, u32::MAX].map(|count| backoff.delay_ns(count) / 1_000_000);
        assert_eq!(delays_ms, [100, 200, 400, 800, 1_000, 1_000]);
        assert_eq!(Backoff::default().delay_ns(7), 0);
    }

    #[test]
    fn a_policy_of_an_older_version_has_defaults_for_what_it_lacks() {
        let read: Policy = serde_json::from_str("{\"maxUnackedMessagesPerConsumer\":7}").unwrap();
        let expected = Policy {
            max_unacked_messages_per_consumer: 7,
            ..Policy::default()
        };
        assert_eq!(read, expected);
    }
}
