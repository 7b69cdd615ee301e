//! How large the backlog of a topic may become, and what happens to more (rules D128 and D129).
//!
//! The backlog of a topic is that of its slowest durable subscription. It is counted up with each
//! entry, and looked at closely only once that count could be too high.

use pelton_storage::Durability;

use crate::alarms::{Armed, Sleeper};
use crate::broker::SubIndex;
use crate::topic::Topic;
use crate::{BacklogPolicy, Broker, Refusal};

/// Entries of one subscription that one turn evicts; a later turn goes on.
const EVICTED_MAX: u64 = 10_000;

/// A backlog whose age is limited is looked at so often.
const LOOK_AGAIN_MS: u64 = 1_000;

/// What is known of a topic's backlog.
#[derive(Debug)]
pub(crate) struct Quota {
    /// Its bytes, or more.
    bytes: u64,
    /// It is not too old before this Unix millisecond, unless the wall clock was set back meanwhile.
    young_until_ms: u64,
    /// It was too large, or nobody has looked yet.
    looks: bool,
    /// When its first entry is too old.
    pub(crate) armed: Armed,
    /// It is in the list of topics to evict from.
    evicts: bool,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            bytes: 0,
            young_until_ms: 0,
            looks: true,
            armed: Armed::default(),
            evicts: false,
        }
    }
}

/// Why an entry is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    /// Not now: it is to be offered again.
    Holds,
    Refused(Refusal),
}

impl Topic {
    /// Whether it has a backlog that is limited.
    fn is_limited(&self) -> bool {
        self.policy.backlog_quota.is_limited() && self.durability != Durability::NonPersistent
    }

    /// Whether its backlog is kept small by acking the oldest entries.
    fn evicts(&self) -> bool {
        let policy = self.policy.backlog_quota.policy;
        self.is_limited() && policy == BacklogPolicy::ConsumerBacklogEviction
    }

    /// Whether its backlog is kept small by taking less.
    pub(crate) fn may_take_less(&self) -> bool {
        self.is_limited() && !self.evicts()
    }
}

impl Broker {
    /// The backlog may have grown in another way than by an entry, or the limits have changed.
    pub(crate) fn look_at_quota(&mut self, index: u32) {
        let topic = self.topic_mut(index);
        topic.quota.looks = true;
        self.mark_evict(index);
    }

    /// Whether one more entry may be taken now.
    pub(crate) fn may_take(&mut self, index: u32) -> Result<(), Excess> {
        let topic = self.topic_at(index);
        if topic.durability.is_stored() && self.is_poisoned() {
            return Ok(()); // nothing is taken, and for a better reason
        }
        let (limits, known) = (&topic.policy.backlog_quota, &topic.quota);
        let is_small = known.bytes < limits.bytes_max();
        if !topic.may_take_less()
            || is_small && !known.looks && self.now.wall_ms < known.young_until_ms
        {
            return Ok(());
        }
        let policy = limits.policy;
        if !self.is_excessive(index) {
            return Ok(());
        }
        Err(match policy {
            BacklogPolicy::ProducerRequestHold => Excess::Holds,
            _ => Excess::Refused(Refusal::BacklogQuota),
        })
    }

    /// Looks closely.
    pub(crate) fn is_excessive(&mut self, index: u32) -> bool {
        let topic = self.topics[index as usize].as_mut().expect("in use");
        let end = self.log.end(topic.slot);
        let floors = topic.subs.iter().filter_map(|sub| {
            let sub = self.subs[sub.0 as usize].as_ref()?;
            sub.durable.then(|| sub.window.floor())
        });
        let floor = floors.min().unwrap_or(end);
        let limits = &topic.policy.backlog_quota;
        let first = self.log.hints(topic.slot, floor);
        let old_at_ms = first.map_or(self.now.wall_ms, |first| first.publish_ms);
        let old_at_ms = old_at_ms.saturating_add(limits.age_max_ms());
        topic.quota.bytes = self.log.bytes_from(topic.slot, floor);
        topic.quota.young_until_ms = old_at_ms;
        // However small the limit, one entry at a time may go.
        topic.quota.looks = floor < end
            && (topic.quota.bytes >= limits.bytes_max() || self.now.wall_ms >= old_at_ms);
        topic.quota.looks
    }

    /// An entry was appended to a topic whose backlog is limited.
    pub(crate) fn note_backlog(&mut self, index: u32, bytes: usize) {
        let now_ms = self.now.wall_ms;
        let topic = self.topic_mut(index);
        topic.quota.bytes = topic.quota.bytes.saturating_add(bytes as u64);
        let limits = &topic.policy.backlog_quota;
        let (bytes_max, age_max_ms) = (limits.bytes_max(), limits.age_max_ms());
        let old_at_ms = now_ms.saturating_add(age_max_ms);
        topic.quota.young_until_ms = topic.quota.young_until_ms.min(old_at_ms);
        if !topic.evicts() {
            return;
        }
        if topic.quota.bytes > bytes_max {
            self.mark_evict(index);
        } else if old_at_ms < topic.quota.armed.at_ms() {
            self.arm_eviction(index, old_at_ms);
        }
    }

    pub(crate) fn mark_evict(&mut self, index: u32) {
        let topic = self.topic_mut(index);
        if topic.evicts() && !std::mem::replace(&mut topic.quota.evicts, true) {
            self.to_evict.push(index);
        }
    }

    fn arm_eviction(&mut self, index: u32, at_ms: u64) {
        let topic = self.topics[index as usize].as_mut().expect("in use");
        let who = Sleeper::Quota(index);
        self.wall_alarms.set(who, &mut topic.quota.armed, at_ms);
    }

    /// Makes backlogs small that have become too large. What is not stored yet waits for a later turn.
    #[cold]
    pub(crate) fn evict(&mut self) {
        for index in std::mem::take(&mut self.to_evict) {
            let Some(topic) = self.topics[index as usize].as_mut() else {
                continue;
            };
            topic.quota.evicts = false;
            if !topic.evicts() {
                continue;
            }
            let (mut bytes, mut old_at_ms, mut again) = (0, u64::MAX, false);
            for sub in topic.subs.clone() {
                if !self.sub(sub).durable {
                    continue;
                }
                let evicted = self.evict_of(sub);
                bytes = evicted.bytes.max(bytes);
                old_at_ms = old_at_ms.min(evicted.old_at_ms);
                again |= evicted.again;
            }
            self.topic_mut(index).quota.bytes = bytes;
            if old_at_ms != u64::MAX {
                // The one behind the first may be older, if the wall clock was set back.
                old_at_ms = old_at_ms.min(self.now.wall_ms + LOOK_AGAIN_MS);
            }
            self.arm_eviction(index, old_at_ms);
            if again {
                self.mark_evict(index);
            }
        }
    }

    /// Acks the oldest entries of a subscription until its backlog is within the limits.
    fn evict_of(&mut self, index: SubIndex) -> Evicted {
        let sub = self.sub(index);
        let (slot, floor) = (sub.slot, sub.window.floor());
        let quota = &self.topic_at(sub.topic).policy.backlog_quota;
        // What is done away with while a seek is on its way is not to be found behind its record.
        let end = match sub.seeks {
            0 => self.log.ready_end(slot),
            _ => floor,
        };
        let mut evicted = Evicted {
            bytes: self.log.bytes_from(slot, floor),
            old_at_ms: u64::MAX,
            again: false,
        };
        let mut to = floor;
        while let Some(hints) = self.log.hints(slot, to) {
            let old_at_ms = hints.publish_ms.saturating_add(quota.age_max_ms());
            if evicted.bytes <= quota.bytes_max() && old_at_ms > self.now.wall_ms {
                evicted.old_at_ms = old_at_ms;
                break;
            }
            if to - floor == EVICTED_MAX {
                evicted.old_at_ms = self.now.wall_ms + 1; // other topics have their turn
                break;
            }
            if to >= end {
                evicted.again = true;
                break;
            }
            evicted.bytes -= u64::from(self.log.bytes(slot, to).unwrap_or(0));
            to += 1;
        }
        if to > floor {
            self.remove(index, floor..to, |gone| &mut gone.evicted);
        }
        evicted
    }
}

/// What an eviction has left of a subscription's backlog.
#[derive(Clone, Copy, Debug)]
struct Evicted {
    bytes: u64,
    /// When its first entry is too old, Unix milliseconds.
    old_at_ms: u64,
    /// It is still too large.
    again: bool,
}
