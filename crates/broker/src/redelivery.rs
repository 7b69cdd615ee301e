//! What comes back from consumers: nacked, released, or left behind, and when it is owed again.

use pelton_storage::{Log, Position};

use crate::broker::SubIndex;
use crate::dead_letter::Reason;
use crate::keyed::hash_of;
use crate::selector::Selector;
use crate::subscription::Subscription;
use crate::times::Fate;
use crate::window::State;
use crate::{Broker, ConsumerId, DeadLetter};

/// What is remembered of an entry that was asked for again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Redelivery {
    /// How often: what consumers see (rule D109).
    pub(crate) count: u32,
    /// How often it came back, whatever the reason; while the policy asks (rules D110 and D116).
    deliveries: u32,
    /// When it is owed again, monotonic nanoseconds, while it is delayed.
    due_ns: u64,
}

/// Why an entry leaves its holder's hands unacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// Asked for again, not before the given delay or that of the policy; counted.
    Nacked { delay_ns: Option<u64> },
    /// Given back as if it had not been handed over.
    Released,
    /// Given up: it is dead at once.
    Rejected,
    /// Its holder is gone.
    Ended,
    /// The subscription starts again at its first unacked entry.
    Rewound,
}

impl Broker {
    /// Ignored for entries that the sender does not hold (rule D107).
    pub(crate) fn nack(&mut self, id: ConsumerId, position: Position, delay_ns: Option<u64>) {
        let Some((index, ordinal)) = self.held_by(id, position) else {
            return;
        };
        if self.sub(index).kind.is_single() {
            return self.rewind(index);
        }
        self.give_back(index, ordinal, Return::Nacked { delay_ns });
        self.wake_freed(index);
        self.want(index);
    }

    /// The entry goes back uncounted (rule D115).
    pub(crate) fn release(&mut self, id: ConsumerId, position: Position) {
        let Some((index, ordinal)) = self.held_by(id, position) else {
            return;
        };
        self.give_back(index, ordinal, Return::Released);
        self.wake_freed(index);
        self.want(index);
    }

    /// The entry is dead at once (rule D117).
    pub(crate) fn reject(&mut self, id: ConsumerId, position: Position) {
        let Some((index, ordinal)) = self.held_by(id, position) else {
            return;
        };
        self.give_back(index, ordinal, Return::Rejected);
        self.wake_freed(index);
        self.want(index);
    }

    /// Everything the consumer holds, taken as one value first (rule D108; apache/pulsar#5276).
    pub(crate) fn nack_all(&mut self, id: ConsumerId) {
        // One that holds nothing gives nothing back: a standby does not rewind the active one.
        let holder = self.consumer(id).filter(|consumer| consumer.unacked > 0);
        let Some(index) = holder.map(|consumer| consumer.sub) else {
            self.acks_ignored += 1;
            return;
        };
        if self.sub(index).kind.is_single() {
            return self.rewind(index);
        }
        self.give_back_all(index, Some(id.slot), Return::Nacked { delay_ns: None });
        self.wake_freed(index);
        self.want(index);
    }

    /// Position order is all that an Exclusive or Failover subscription has: it starts again at its
    /// first unacked entry, whatever was named (rule D66). Counts stay 0.
    pub(crate) fn rewind(&mut self, index: SubIndex) {
        self.give_back_all(index, None, Return::Rewound);
        self.wake_freed(index);
        self.want(index);
    }

    /// What the consumer of `slot` holds, or all consumers, goes back.
    pub(crate) fn give_back_all(&mut self, index: SubIndex, slot: Option<u32>, why: Return) {
        let window = &self.sub(index).window;
        for ordinal in window.floor()..window.end() {
            if let State::Held(holder) = self.sub(index).window.get(ordinal)
                && slot.is_none_or(|slot| slot == holder)
            {
                self.give_back(index, ordinal, why);
            }
        }
    }

    /// A held entry leaves its holder, and is owed again at once or later.
    pub(crate) fn give_back(&mut self, index: SubIndex, ordinal: u64, why: Return) {
        let now_ns = self.now.mono_ns;
        let sub = self.subs[index.0 as usize].as_mut().expect("resolved");
        let State::Held(slot) = sub.window.get(ordinal) else {
            return;
        };
        let messages = sub.window.messages(ordinal);
        self.freed.note(sub, &mut self.consumers, slot, messages);
        sub.released(&self.log, ordinal, messages);
        let policy = &self.topics[sub.topic as usize]
            .as_ref()
            .expect("it has a topic")
            .policy;
        let dead = match &policy.dead_letter {
            Some(dead_letter) if !sub.kind.is_single() => sub.dies_of(ordinal, why, dead_letter),
            _ => (why == Return::Rejected).then_some(Reason::Rejected),
        };
        if let Some(reason) = dead {
            sub.owe(&self.log, ordinal);
            return self.bury(index, ordinal, reason);
        }
        let mut delay_ns = 0;
        if let Return::Nacked { delay_ns: asked } = why {
            let redelivery = sub.redeliveries.entry(ordinal).or_default();
            redelivery.count = redelivery.count.saturating_add(1);
            let backoff = policy.redelivery_backoff;
            delay_ns = asked.unwrap_or_else(|| backoff.delay_ns(redelivery.count));
            redelivery.due_ns = now_ns.saturating_add(delay_ns);
        }
        if delay_ns == 0 {
            sub.owe(&self.log, ordinal);
        } else {
            if sub.delays.len() == 0 {
                sub.delayed_ns = now_ns;
            }
            sub.owe_later(&self.log, ordinal);
            self.arm(index);
        }
        if let Fate::Over(over) = self.fate(index, ordinal) {
            self.end_of_time(index, ordinal, over);
        }
    }

    /// The entries whose time has come are owed again.
    pub(crate) fn end_delays(&mut self, index: SubIndex) {
        let now_ns = self.now.mono_ns;
        let Some(sub) = self.subs[index.0 as usize].as_mut() else {
            return;
        };
        while let Some(ordinal) = sub.delays.pop_due(now_ns) {
            sub.owe(&self.log, ordinal);
        }
        self.want(index);
    }

    /// The entry a consumer names, if it holds it.
    fn held_by(&mut self, id: ConsumerId, position: Position) -> Option<(SubIndex, u64)> {
        let (index, ordinal) = self.resolve(id, position)?;
        if self.sub(index).window.get(ordinal) == State::Held(id.slot) {
            return Some((index, ordinal));
        }
        self.acks_ignored += 1;
        None
    }
}

impl Subscription {
    /// Whether an entry that comes back is dead (rule D116); counts the hand-over that has ended.
    fn dies_of(&mut self, ordinal: u64, why: Return, policy: &DeadLetter) -> Option<Reason> {
        if why == Return::Rejected {
            return Some(Reason::Rejected);
        }
        let max = policy.max_redeliver_count;
        if matches!(why, Return::Nacked { .. }) && max > 0 && self.count_of(ordinal) >= max {
            return Some(Reason::MaxRedeliveries);
        }
        if policy.max_deliveries == 0 {
            return None;
        }
        let redelivery = self.redeliveries.entry(ordinal).or_default();
        redelivery.deliveries = redelivery.deliveries.saturating_add(1);
        (redelivery.deliveries >= policy.max_deliveries).then_some(Reason::MaxDeliveries)
    }

    /// The entry is owed again, or for the first time, as soon as somebody may have it.
    pub(crate) fn owe(&mut self, log: &Log, ordinal: u64) {
        let messages = self.window.messages(ordinal);
        self.window.set(ordinal, State::Replay, messages);
        self.replay.insert(ordinal);
        if let Selector::KeyShared(order) = &mut self.selector {
            order.insert_replay(ordinal, hash_of(log, self.slot, ordinal));
        }
    }

    /// The entry is owed again once its delay is over.
    fn owe_later(&mut self, log: &Log, ordinal: u64) {
        let messages = self.window.messages(ordinal);
        self.window.set(ordinal, State::Delayed, messages);
        self.delays.arm(self.redeliveries[&ordinal].due_ns, ordinal);
        if let Selector::KeyShared(order) = &mut self.selector {
            order.insert_delayed(ordinal, hash_of(log, self.slot, ordinal));
        }
    }

    /// Position order is all that a single consumer has: nothing stays behind for its delay, where a
    /// cumulative ack would take it along unseen.
    pub(crate) fn end_all_delays(&mut self, log: &Log) {
        while let Some(ordinal) = self.delays.pop_due(u64::MAX) {
            self.owe(log, ordinal);
        }
    }

    /// It is acked while it waits to be owed again.
    pub(crate) fn end_delay(&mut self, log: &Log, ordinal: u64) {
        if let Some(redelivery) = self.redeliveries.get(&ordinal) {
            self.delays.disarm(redelivery.due_ns, ordinal);
        }
        self.end_wait(log, ordinal);
    }

    /// It is acked while it is owed.
    pub(crate) fn end_replay(&mut self, log: &Log, ordinal: u64) {
        self.replay.remove(ordinal);
        self.end_wait(log, ordinal);
    }

    fn end_wait(&mut self, log: &Log, ordinal: u64) {
        if let Selector::KeyShared(order) = &mut self.selector {
            order.remove(ordinal, hash_of(log, self.slot, ordinal));
        }
    }

    /// Messages of a held entry are acked, or it leaves its holder's hands. True if somebody may
    /// go on because of it.
    #[inline]
    pub(crate) fn released(&mut self, log: &Log, ordinal: u64, messages: u32) -> bool {
        match &mut self.selector {
            Selector::KeyShared(order) => {
                let hash = hash_of(log, self.slot, ordinal);
                order.release(hash, u64::from(messages)).is_some()
            }
            _ => false,
        }
    }

    /// Tells a new selector of what waits since before.
    pub(crate) fn list_waiting(&mut self, log: &Log) {
        let Selector::KeyShared(order) = &mut self.selector else {
            return;
        };
        for ordinal in self.window.floor()..self.window.end() {
            let hash = || hash_of(log, self.slot, ordinal);
            match self.window.get(ordinal) {
                State::Replay => order.insert_replay(ordinal, hash()),
                State::Delayed => order.insert_delayed(ordinal, hash()),
                _ => {}
            }
        }
    }
}
