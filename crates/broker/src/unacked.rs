//! Unacked messages: the one place where they rise, fall, and block or free somebody.

use pelton_flow::Messages;

use crate::explain::{CapScope, Why};
use crate::selector::Selector;
use crate::subscription::{Consumer, Subscription};
use crate::{Policy, SubscriptionKind};

/// One delivery is debited everywhere at once: permits, unacked and counters move by the same P.
#[inline]
pub(crate) fn debit(
    sub: &mut Subscription,
    consumer: &mut Consumer,
    messages: Messages,
    now_ns: u64,
) {
    (sub.moved_ns, consumer.moved_ns) = (now_ns, now_ns);
    sub.awaits_ns = None;
    consumer.account.spend(messages);
    consumer.unacked += messages.0;
    sub.unacked += messages.0;
    sub.delivered_messages += messages.0;
    consumer.blocked = sub.caps.consumer.blocks(consumer.blocked, consumer.unacked);
    sub.blocked = sub.caps.subscription.blocks(sub.blocked, sub.unacked);
}

/// Who may go on since unacked messages fell, until [`crate::Broker::wake_freed`] sees to it.
#[derive(Debug, Default)]
pub(crate) struct Freed {
    slots: Vec<u32>,
    subscription: bool,
}

impl Freed {
    /// Messages that the consumer of `slot` held are acked, or leave its hands.
    #[inline]
    pub(crate) fn note(
        &mut self,
        sub: &mut Subscription,
        consumers: &mut [Option<Consumer>],
        slot: u32,
        messages: u32,
    ) {
        sub.unacked -= u64::from(messages);
        if sub.blocked {
            sub.blocked = sub.caps.subscription.blocks(true, sub.unacked);
            self.subscription = true;
        }
        let Some(holder) = consumers[slot as usize].as_mut() else {
            return;
        };
        holder.unacked -= u64::from(messages);
        if holder.blocked {
            holder.blocked = sub.caps.consumer.blocks(true, holder.unacked);
            if !holder.blocked {
                self.slots.push(slot);
            }
        }
        if let Selector::Failover(election) = &mut sub.selector {
            // Somebody may wait for the old active one to finish (rule D73).
            election.old_holds(slot, holder.unacked);
            self.subscription |= holder.unacked == 0;
        }
    }

    /// A key is free for its new owner.
    pub(crate) fn note_key(&mut self) {
        self.subscription = true;
    }

    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.subscription || !self.slots.is_empty()
    }

    /// The consumers to offer entries to again, latest first, until `None`; then nobody is noted.
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.subscription = false;
        self.slots.pop()
    }
}

/// The caps of one subscription (rules D103 and D104). The one place that decides who is blocked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caps {
    consumer: Cap,
    subscription: Cap,
}

/// Blocked from `limit` on, until `resume_at` or less are left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cap {
    limit: u64,
    resume_at: u64,
}

impl Default for Caps {
    fn default() -> Self {
        let none = Cap::new(0, 0.0);
        Self {
            consumer: none,
            subscription: none,
        }
    }
}

impl Caps {
    /// Exclusive and Failover have none: one consumer holds what it was given, in order.
    pub(crate) fn new(kind: SubscriptionKind, policy: &Policy) -> Self {
        if kind.is_single() {
            return Self::default();
        }
        let ratio = policy.max_unacked_messages_unblock_ratio;
        Self {
            consumer: Cap::new(policy.max_unacked_messages_per_consumer, ratio),
            subscription: Cap::new(policy.max_unacked_messages_per_subscription, ratio),
        }
    }

    /// Takes over changed caps: who is blocked by them now.
    pub(crate) fn apply(self, sub: &mut Subscription, consumers: &mut [Option<Consumer>]) {
        sub.caps = self;
        sub.blocked = self.subscription.blocks(sub.blocked, sub.unacked);
        for &slot in &sub.consumers {
            if let Some(consumer) = consumers[slot as usize].as_mut() {
                consumer.blocked = self.consumer.blocks(consumer.blocked, consumer.unacked);
            }
        }
    }

    /// Why a consumer at its cap gets nothing.
    pub(crate) fn why_consumer(&self, name: &str, unacked: u64) -> Why {
        self.consumer
            .why(CapScope::Consumer(name.to_owned()), unacked)
    }

    /// Why a subscription at its cap gets nothing that was never sent.
    pub(crate) fn why_subscription(&self, unacked: u64) -> Why {
        self.subscription.why(CapScope::Subscription, unacked)
    }

    /// Messages that one consumer may still get.
    #[inline]
    pub(crate) fn headroom(&self, consumer_unacked: u64, sub_unacked: u64) -> i64 {
        let ours = self.consumer.limit.saturating_sub(consumer_unacked);
        let all = self.subscription.limit.saturating_sub(sub_unacked);
        i64::try_from(ours.min(all)).unwrap_or(i64::MAX)
    }
}

impl Cap {
    fn new(limit: u64, ratio: f64) -> Self {
        if limit == 0 {
            return Self {
                limit: u64::MAX,
                resume_at: u64::MAX,
            };
        }
        // At the limit itself nobody goes on, whatever the ratio: there is no room.
        let resume_at = (limit as f64 * ratio.clamp(0.0, 1.0)).floor() as u64;
        Self {
            limit,
            resume_at: resume_at.min(limit - 1),
        }
    }

    fn why(&self, scope: CapScope, unacked: u64) -> Why {
        Why::UnackedCap {
            scope,
            unacked,
            limit: self.limit,
            resume_at: self.resume_at,
        }
    }

    #[inline]
    fn blocks(&self, blocked: bool, unacked: u64) -> bool {
        if blocked {
            unacked > self.resume_at
        } else {
            unacked >= self.limit
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_at_the_limit_and_open_again_at_half() {
        let policy = Policy {
            max_unacked_messages_per_consumer: 50,
            max_unacked_messages_per_subscription: 0,
            ..Policy::default()
        };
        let caps = Caps::new(SubscriptionKind::Shared, &policy);
        let states = [49, 50, 72, 36, 26, 25, 49]
            .iter()
            .scan(false, |blocked, &unacked| {
                *blocked = caps.consumer.blocks(*blocked, unacked);
                Some(*blocked)
            });
        let expected = [false, true, true, true, true, false, false];
        assert!(states.eq(expected));
        assert_eq!(caps.headroom(48, 1 << 60), 2);
        assert_eq!(caps.headroom(72, 72), 0);
        assert!(!caps.subscription.blocks(false, u64::MAX - 1));
    }

    #[test]
    fn a_limit_of_one_lets_one_through_at_a_time() {
        let policy = Policy {
            max_unacked_messages_per_consumer: 1,
            ..Policy::default()
        };
        let caps = Caps::new(SubscriptionKind::Shared, &policy);
        assert!(caps.consumer.blocks(false, 1));
        assert!(!caps.consumer.blocks(true, 0));
        let single = Caps::new(SubscriptionKind::Exclusive, &policy);
        assert!(!single.consumer.blocks(false, 1 << 50));
    }
}
