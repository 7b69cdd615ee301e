//! What clients wish for, made from the few bytes of a step: how a consumer wants to share, what a topic's
//! policy is to be, how long a nack asks to wait.

use pelton_broker::keys::KeyRange;
use pelton_broker::{
    BacklogPolicy, BacklogQuota, Backoff, KeyShared, Policy, Retention, SubscriptionKind,
};

use crate::chance::Chance;
use crate::sub::Wish;

const KINDS: [SubscriptionKind; 4] = [
    SubscriptionKind::Shared,
    SubscriptionKind::KeyShared,
    SubscriptionKind::Failover,
    SubscriptionKind::Exclusive,
];

/// What a consumer of a subscription wants. Mostly that is a habit of the subscription, so that several
/// get along.
pub(crate) fn wish((habit, reader): (usize, bool), kind: u8, who: u8) -> Wish {
    let (habit, odd) = match kind {
        0..16 => (usize::from(kind), true),
        _ => (habit, false),
    };
    let (ordered, sticky) = [(true, false), (true, true), (false, false)][habit / 4 % 3];
    Wish {
        kind: KINDS[habit % 4],
        durable: !reader ^ (kind == 16),
        name: format!("c{}", who % 5),
        priority: [0, 0, 0, 1, -1][usize::from(who / 5 % 5)],
        keys: KeyShared {
            ranges: if sticky {
                ranges(kind, odd)
            } else {
                Vec::new()
            },
            allow_out_of_order_delivery: !ordered,
        },
    }
}

/// A few quarters of all hashes: some leave holes, some meet those of others.
fn ranges(seed: u8, odd: bool) -> Vec<KeyRange> {
    let quarter = u16::from(seed % 4) << 14;
    let range = |first: u16| KeyRange {
        first,
        last: first + 0x3FFF,
    };
    match odd {
        true => vec![range(quarter), range(quarter)],
        false if seed < 128 => vec![range(quarter)],
        false => vec![range(quarter), range(quarter ^ 0x8000)],
    }
}

/// Small limits, so that a short run meets them.
pub(crate) fn policy(seed: u16) -> Policy {
    let mut chance = Chance(u64::from(seed));
    let mut one_of = |all: &[u64]| all[chance.below(all.len() as u64) as usize];
    Policy {
        max_unacked_messages_per_consumer: one_of(&[50_000, 0, 1, 5, 50, 150]),
        max_unacked_messages_per_subscription: one_of(&[200_000, 0, 2, 20, 200]),
        max_unacked_messages_unblock_ratio: one_of(&[0, 25, 50, 50, 100]) as f64 / 100.0,
        dispatcher_max_round_robin_batch_size: one_of(&[0, 1, 2, 20]) as u32,
        acknowledgment_at_batch_index_level_enabled: one_of(&[0, 1, 1, 1]) == 1,
        redelivery_backoff: Backoff {
            initial_ms: one_of(&[0, 0, 1, 20]),
            multiplier: one_of(&[1, 2, 3]) as f64,
            max_ms: one_of(&[5, 60_000]),
        },
        subscription_key_shared_use_consistent_hashing: one_of(&[0, 1]) == 1,
        subscription_key_shared_consistent_hashing_replica_points: one_of(&[0, 1, 3, 100]) as u32,
        key_shared_look_ahead_msg_in_replay_threshold_per_consumer: one_of(&[4_000, 0, 1, 3]),
        key_shared_look_ahead_msg_in_replay_threshold_per_subscription: one_of(&[40_000, 0, 2, 8]),
        active_consumer_failover_delay_time_millis: one_of(&[1_000, 0, 1, 50]),
        failover_rebalance_quiet_millis: one_of(&[1_000, 0, 1, 50]),
        deduplication_enabled: one_of(&[0, 0, 1]) == 1,
        retention: retention(one_of(&[0, 0, 0, 1, 2, 3])),
        backlog_quota: quota(one_of(&[0, 0, 0, 1, 2, 3]), one_of(&[0, 1, 2])),
        // Times and dead letters are not in this world.
        ..Policy::default()
    }
}

fn retention(habit: u64) -> Retention {
    let (retention_time_in_minutes, retention_size_in_mb) =
        [(0, 0), (-1, -1), (1, -1), (-1, 1)][habit as usize];
    Retention {
        retention_time_in_minutes,
        retention_size_in_mb,
    }
}

fn quota(habit: u64, policy: u64) -> BacklogQuota {
    let (limit_size, limit_time) = [(-1, -1), (0, -1), (20_000, 60), (100_000, 1)][habit as usize];
    BacklogQuota {
        limit_size,
        limit_time,
        policy: [
            BacklogPolicy::ProducerRequestHold,
            BacklogPolicy::ProducerException,
            BacklogPolicy::ConsumerBacklogEviction,
        ][policy as usize],
    }
}

/// Nanoseconds; none: as the policy says.
pub(crate) fn delay_ns(seed: u8) -> Option<u64> {
    match seed {
        0..128 => None,
        128..192 => Some(0),
        192..224 => Some(u64::from(seed) * 1_000),
        _ => Some(u64::from(seed) * 7_000_000),
    }
}
