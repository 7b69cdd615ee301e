//! Non-persistent topics: an entry goes to whoever can take it now, or to nobody (rule D138).
//!
//! The entries of a turn are in memory until its end; then each subscription hands them out, by its
//! own rules of choice and against permits as always, and drops the rest. Nothing is held, acked or
//! owed again, so the cursor is behind the last entry after every pass.

use pelton_flow::{Budget, Bytes, Entries, Messages};

use crate::broker::SubIndex;
use crate::dispatch::Candidate;
use crate::keyed::{hash_of, owner_now};
use crate::selector::Selector;
use crate::subscription::Subscription;
use crate::window::State;
use crate::{Broker, ConsumerId, Effect, Run};

impl Broker {
    /// One pass: everything published since the last one goes, or is dropped.
    pub(crate) fn hand_out(&mut self, index: SubIndex) {
        let Some(sub) = self.subs[index.0 as usize].as_mut() else {
            return;
        };
        let topic = self.topics[sub.topic as usize]
            .as_ref()
            .expect("it has a topic");
        let (entries_per_turn, end) = (topic.entries_per_turn(), self.log.end(topic.slot));
        while sub.read < end {
            let next = Candidate {
                ordinal: sub.read,
                end: sub.read + 1,
                state: State::Unread,
            };
            let picked = match &mut sub.selector {
                Selector::KeyShared(order) => {
                    let hash = hash_of(&self.log, sub.slot, next.ordinal);
                    owner_now(order, next, hash, &mut self.consumers).map(|owner| (owner, 1))
                }
                selector => selector.pick(&mut self.consumers, entries_per_turn),
            };
            let Some((port, turn_left)) = picked else {
                sub.drop_next(self.log.messages(sub.slot, next.ordinal));
                continue;
            };
            let most = u32::try_from((end - sub.read).min(turn_left)).unwrap_or(u32::MAX);
            let run = self.log.run(sub.slot, sub.read, most);
            let (block, first_slot, found) = run.expect("what a turn brought is in memory");
            let consumer = self.consumers[port as usize].as_mut().expect("picked");
            let permits = consumer.account.available();
            let mut budget = Budget::new(permits, Entries(u64::from(found)), Bytes(u64::MAX));
            let (mut count, mut messages) = (0, 0);
            for slot in first_slot..first_slot + found {
                let meta = block.meta(slot);
                let cost = (Messages(meta.messages.into()), Bytes(meta.bytes.into()));
                if budget.admit(cost.0, cost.1).is_err() {
                    break;
                }
                count += 1;
                messages += meta.messages;
            }
            debug_assert!(count > 0, "permits give at least one entry");
            let (spent, entries) = (Messages(messages.into()), u64::from(count));
            consumer.account.spend(spent);
            consumer.average.observe(spent, Entries(entries));
            sub.delivered_messages += spent.0;
            sub.let_pass(entries, messages);
            sub.selector.took(port, entries);
            let run = Run {
                block,
                first_slot,
                count,
                messages,
                redeliveries: 0,
                still: None,
            };
            let serial = consumer.serial;
            let consumer = ConsumerId { slot: port, serial };
            self.effects.push_back(Effect::HandOver { consumer, run });
        }
        sub.window.skip_to(end);
        sub.selector.end_of_pass();
        let topic = sub.topic;
        self.mark_trim(topic);
    }

    /// There is no memory for an entry: nobody gets it.
    pub(crate) fn drop_entry(&mut self, topic: u32, messages: u32) {
        let subs = &self.topics[topic as usize]
            .as_ref()
            .expect("it is published to")
            .subs;
        for index in subs {
            if let Some(sub) = self.subs[index.0 as usize].as_mut() {
                sub.dropped_messages += u64::from(messages);
            }
        }
    }
}

impl Subscription {
    fn drop_next(&mut self, messages: Option<u32>) {
        let messages = messages.unwrap_or(0);
        self.dropped_messages += u64::from(messages);
        self.let_pass(1, messages);
    }

    fn let_pass(&mut self, entries: u64, messages: u32) {
        self.read += entries;
        self.skipped_messages += i64::from(messages);
    }
}
