//! What is let go of: what every subscription has acked, and the topic's policy does not keep (rule
//! D127).

use pelton_storage::Durability;

use crate::Broker;
use crate::alarms::{Armed, Sleeper};

/// What is kept of a topic though it is acked.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    /// When the first entry is too old.
    pub(crate) armed: Armed,
    /// It is in memory alone, and that is wanted for new entries.
    gives_way: bool,
}

impl Broker {
    /// Lets go of what every subscription has acked and the policy does not keep. Without durable
    /// subscriptions everything is acked.
    pub(crate) fn trim(&mut self) {
        while let Some(index) = self.to_trim.pop() {
            let Some(topic) = self.topics[index as usize].as_mut() else {
                continue;
            };
            topic.trim = false;
            let (slot, ready) = (topic.slot, self.log.ready_end(topic.slot));
            let mut lowest = ready;
            let mut keeps_nothing = false;
            for index in &topic.subs {
                let Some(sub) = self.subs[index.0 as usize].as_ref() else {
                    continue;
                };
                keeps_nothing |= !sub.durable;
                lowest = lowest.min(sub.holds_from().unwrap_or(ready));
            }
            if topic.policy.retention.keeps() {
                lowest = self.kept_from(index, lowest);
            }
            if keeps_nothing {
                self.let_jump(index, lowest);
            }
            self.log.trim(slot, lowest);
        }
    }

    /// The first entry that is kept, of those before `acked_to` that nobody needs any more. As many
    /// steps as entries go.
    #[cold]
    fn kept_from(&mut self, index: u32, acked_to: u64) -> u64 {
        let topic = self.topics[index as usize].as_mut().expect("it is trimmed");
        let retention = &topic.policy.retention;
        if std::mem::take(&mut topic.kept.gives_way) {
            return acked_to;
        }
        let (oldest_ms, bytes_max) = (retention.oldest_ms(self.now.wall_ms), retention.bytes_max());
        let mut kept = self.log.first(topic.slot);
        let mut bytes = match bytes_max {
            u64::MAX => 0,
            _ => self.log.bytes_from(topic.slot, kept),
        };
        let mut due_ms = u64::MAX;
        while kept < acked_to
            && let Some(hints) = self.log.hints(topic.slot, kept)
        {
            if hints.publish_ms >= oldest_ms && bytes <= bytes_max {
                let age_max_ms = retention.age_max_ms();
                // One later, it is older than that.
                due_ms = hints
                    .publish_ms
                    .saturating_add(age_max_ms)
                    .saturating_add(1);
                break;
            }
            bytes = bytes.saturating_sub(self.log.bytes(topic.slot, kept).unwrap_or(0).into());
            kept += 1;
        }
        let who = Sleeper::Kept(index);
        self.wall_alarms.set(who, &mut topic.kept.armed, due_ms);
        if kept < acked_to && topic.durability == Durability::Memory {
            self.kept_in_memory.insert(index);
        }
        kept
    }

    /// Memory is wanted for a new entry: no topic in memory keeps what is acked.
    #[cold]
    pub(crate) fn give_way(&mut self) {
        for index in std::mem::take(&mut self.kept_in_memory) {
            let topic = self.topic_mut(index);
            if topic.policy.retention.keeps() {
                topic.kept.gives_way = true;
                self.mark_trim(index);
            }
        }
    }

    /// Who holds nothing back moves on.
    fn let_jump(&mut self, topic: u32, to: u64) {
        for at in 0..self.topic_at(topic).subs.len() {
            let index = self.topic_at(topic).subs[at];
            if self.sub(index).window.floor() < to {
                self.jump(index, to);
            }
        }
    }
}
