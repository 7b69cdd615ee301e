//! A pass of a KeyShared subscription: the entry's key decides who gets it (rules D86 to D93).

use pelton_storage::{Log, TopicSlot};

use crate::broker::SubIndex;
use crate::dispatch::{Candidate, Offered, Pass};
use crate::keys::{KeyOrder, look_ahead_limit};
use crate::selector::{PASS_ENTRIES_MAX, Selector};
use crate::subscription::{Consumer, Subscription};
use crate::window::State;
use crate::{Broker, Policy};

/// Unread entries that one pass looks at: those of keys that may not go now are put aside.
const LOOKED_AT_MAX: u64 = 4 * PASS_ENTRIES_MAX;

/// The 16-bit hash by which an entry's key has its place. Entries without a key are each a key of
/// their own.
pub(crate) fn hash_of(log: &Log, slot: TopicSlot, ordinal: u64) -> u16 {
    match log.hints(slot, ordinal).map_or(0, |hints| hints.key_hash) {
        0 => fold(ordinal.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48),
        hash => fold(u64::from(hash)),
    }
}

/// 1 to 65,535: 0 is no hash.
fn fold(hash: u64) -> u16 {
    (hash as u16).max(1)
}

/// Entries that may be put aside before unread ones have to wait (rule D90).
pub(crate) fn look_ahead_of(sub: &Subscription, policy: &Policy) -> u64 {
    look_ahead_limit(
        sub.consumers.len() as u64,
        policy.key_shared_look_ahead_msg_in_replay_threshold_per_consumer,
        policy.key_shared_look_ahead_msg_in_replay_threshold_per_subscription,
        policy.max_unacked_messages_per_subscription,
    )
}

impl Broker {
    /// What waits and may go, lowest first; then unread entries, as far as looking ahead is allowed.
    pub(crate) fn pass_by_key(&mut self, index: SubIndex) {
        let sub = self.subs[index.0 as usize]
            .as_mut()
            .expect("the pass found it");
        let topic = self.topics[sub.topic as usize]
            .as_ref()
            .expect("it has a topic");
        let look_ahead = look_ahead_of(sub, &topic.policy);
        let ready_end = self.log.ready_end(sub.slot);
        let mut pass = Pass::new(self.now.mono_ns);
        let mut looked_at = 0;
        loop {
            if pass.is_over() || looked_at == LOOKED_AT_MAX {
                return self.want(index);
            }
            let Some(next) = sub.next_of_keys(ready_end, look_ahead) else {
                return;
            };
            let hash = hash_of(&self.log, sub.slot, next.ordinal);
            let Selector::KeyShared(order) = &mut sub.selector else {
                return;
            };
            let Some(port) = owner_now(order, next, hash, &mut self.consumers) else {
                if next.state == State::Unread {
                    looked_at += 1;
                    sub.read = next.ordinal + 1;
                    sub.owe(&self.log, next.ordinal);
                }
                continue;
            };
            let consumer = self.consumers[port as usize]
                .as_mut()
                .expect("it owns the key");
            let offered = pass.offer(
                &mut self.log,
                &mut self.effects,
                (sub, next),
                (port, consumer),
                1,
            );
            match offered {
                Offered::Gone(_) => {
                    let messages = u64::from(sub.window.messages(next.ordinal));
                    if let Selector::KeyShared(order) = &mut sub.selector {
                        order.hold(hash, port, messages);
                        order.remove(next.ordinal, hash);
                    }
                }
                Offered::Skipped => {
                    if let Selector::KeyShared(order) = &mut sub.selector {
                        order.remove(next.ordinal, hash);
                    }
                }
                Offered::Awaited => return,
                Offered::NoBuffer => return self.starved.push(index),
            }
        }
    }
}

impl Subscription {
    fn next_of_keys(&mut self, ready_end: u64, look_ahead: u64) -> Option<Candidate> {
        if self.blocked && self.caps.headroom(0, self.unacked) <= 0 {
            return None;
        }
        let Selector::KeyShared(order) = &self.selector else {
            return None;
        };
        if let Some((ordinal, ..)) = order.next_ready() {
            return Some(Candidate {
                ordinal,
                end: ordinal + 1,
                state: State::Replay,
            });
        }
        if self.blocked || order.in_replay() >= look_ahead {
            return None;
        }
        self.next_unread(ready_end).map(|ordinal| Candidate {
            ordinal,
            end: ordinal + 1,
            state: State::Unread,
        })
    }
}

/// The consumer that may get the entry now. One that turns out to have no permits is no longer
/// eligible, until its next grant says so.
pub(crate) fn owner_now(
    order: &mut KeyOrder,
    next: Candidate,
    hash: u16,
    consumers: &mut [Option<Consumer>],
) -> Option<u32> {
    let owner = match next.state {
        State::Unread => order.may_go(next.ordinal, hash).ok()?,
        _ => order.next_ready()?.2,
    };
    let consumer = consumers[owner as usize].as_mut()?;
    if consumer.may_go() {
        return Some(owner);
    }
    consumer.offered = false;
    order.set_eligible(owner, false);
    None
}
