//! A pass of a KeyShared subscription: the entry's key decides who gets it (rules D86 to D93).

use pelton_storage::{Log, TopicSlot};

use crate::broker::SubIndex;
use crate::dispatch::{Candidate, Offered, Pass, Passed};
use crate::keys::{KeyOrder, look_ahead_limit};
use crate::selector::Selector;
use crate::subscription::{Consumer, Subscription};
use crate::times::Screened;
use crate::window::State;
use crate::{Broker, Policy};

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
    pub(crate) fn pass_by_key(&mut self, index: SubIndex, pass: &mut Pass) -> Passed {
        let sub = self.subs[index.0 as usize]
            .as_mut()
            .expect("the pass found it");
        let topic = self.topics[sub.topic as usize]
            .as_ref()
            .expect("it has a topic");
        let look_ahead = look_ahead_of(sub, &topic.policy);
        let ready_end = self.log.ready_end(sub.slot);
        let times = topic.times_for(sub.kind, self.now);
        let passed = Passed::all(times.as_ref());
        while let Some(next) = sub.next_of_keys(ready_end, look_ahead) {
            if pass.is_over() {
                self.want(index);
                return passed;
            }
            if let Some(times) = &times {
                if pass.has_looked() {
                    self.want(index);
                    return passed;
                }
                match times.screen(&self.log, sub, next) {
                    Screened::Go => {}
                    Screened::PutAside => continue,
                    Screened::Full => return passed,
                    Screened::Over(over) => return Passed::Over(next.ordinal, over),
                }
            }
            let hash = hash_of(&self.log, sub.slot, next.ordinal);
            let Selector::KeyShared(order) = &mut sub.selector else {
                return passed;
            };
            let Some(port) = owner_now(order, next, hash, &mut self.consumers) else {
                if next.state == State::Unread {
                    sub.read = next.ordinal + 1;
                    sub.owe(&self.log, next.ordinal);
                    if pass.has_looked() {
                        self.want(index);
                        return passed;
                    }
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
                (1, None),
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
                Offered::Awaited => return passed,
                Offered::NoBuffer => {
                    self.starved.push(index);
                    return passed;
                }
            }
        }
        passed
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
