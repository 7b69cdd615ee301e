//! Entries that outlive their time: the sweep of a topic, and what becomes of them (rules D126 and
//! D131).
//!
//! A pass never hands over what is over, so the sweep is for what no pass looks at: entries nobody
//! has permits for, and, by the time to live, those that were handed over. It looks at hints, is
//! armed for the first entry that can be over, and rests for a second afterwards.

use std::ops::Range;

use pelton_storage::{Durability, Hints, Log};

use crate::alarms::{Sleeper, WallAlarms};
use crate::broker::SubIndex;
use crate::dead_letter::Reason;
use crate::times::{Fate, Over, Times, TopicTimes};
use crate::topic::Topic;
use crate::window::State;
use crate::{Broker, DeadlineAction};

/// From one sweep of a topic to the next.
const SWEEP_MS: u64 = 1_000;
/// Entries of one subscription that one sweep takes away; a later turn goes on.
const SWEEP_ENTRIES_MAX: u64 = 10_000;
/// Deadlines of entries that are gone are forgotten once there are so many more than entries.
const DEADLINES_SPARE: u64 = 1_024;

/// Messages that went without an ack, by cause; in messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gone {
    pub(crate) expired: u64,
    pub(crate) late: u64,
    pub(crate) dead_lettered: u64,
    pub(crate) rejected: u64,
    pub(crate) evicted: u64,
}

impl Topic {
    /// Takes note of when an entry can be over.
    #[cold]
    pub(crate) fn note_times(
        &mut self,
        index: u32,
        ordinal: u64,
        hints: &Hints,
        (log, alarms): (&Log, &mut WallAlarms),
    ) {
        if self.durability == Durability::NonPersistent {
            return;
        }
        let times = self.times.get_or_insert_default();
        if hints.deadline_ms != 0 {
            times.deadlines.arm(hints.deadline_ms, ordinal);
            let (first, end) = (log.first(self.slot), log.end(self.slot));
            if times.deadlines.len() > 2 * (end - first) + DEADLINES_SPARE {
                times.deadlines.forget_below(first);
            }
        }
        let over_at_ms = self.policy.expires_at_ms(hints);
        let over_at_ms = over_at_ms.min(self.policy.late_at_ms(hints));
        if over_at_ms < times.armed.at_ms() {
            times.arm_sweep(index, over_at_ms, alarms);
        }
    }
}

impl TopicTimes {
    /// Has the topic of that index swept at `at_ms`, or as soon as it may be.
    fn arm_sweep(&mut self, index: u32, at_ms: u64, alarms: &mut WallAlarms) {
        let at_ms = at_ms.max(self.rests_until_ms);
        alarms.set(Sleeper::Topic(index), &mut self.armed, at_ms);
    }
}

impl Broker {
    /// Looks again at everything a topic has: after a restart, a seek, or a change of its policy.
    pub(crate) fn list_times(&mut self, topic: u32) {
        let Some(state) = self.topics[topic as usize].as_mut() else {
            return;
        };
        if state.durability == Durability::NonPersistent {
            return;
        }
        let timed = self.log.timed(state.slot);
        if state.times.is_none() && timed.is_empty() && !state.policy.gives_times() {
            return;
        }
        let times = state.times.get_or_insert_default();
        let deadlines = timed
            .into_iter()
            .filter(|(_, hints)| hints.deadline_ms != 0);
        times.deadlines = deadlines
            .map(|(ordinal, hints)| (hints.deadline_ms, ordinal))
            .collect();
        for index in state.subs.clone() {
            let sub = self.sub_mut(index);
            sub.swept = sub.window.floor();
        }
        self.arm_next_sweep(topic);
    }

    fn arm_sweep(&mut self, topic: u32, at_ms: u64) {
        let state = self.topics[topic as usize].as_mut().expect("in use");
        if let Some(times) = state.times.as_deref_mut() {
            times.arm_sweep(topic, at_ms, &mut self.wall_alarms);
        }
    }

    /// Takes away what is over, of every subscription of the topic.
    pub(crate) fn sweep(&mut self, topic: u32) {
        let now_ms = self.now.wall_ms;
        let state = self.topics[topic as usize].as_mut().expect("it was armed");
        let times = state.times.as_mut().expect("it was armed");
        times.armed.rung();
        times.rests_until_ms = now_ms + SWEEP_MS;
        let subs = state.subs.clone();
        // What is done away with while a seek is on its way is not to be found behind its record.
        if subs.iter().any(|&index| self.sub(index).seeks > 0) {
            return self.arm_sweep(topic, now_ms);
        }
        let late = self.take_late(topic);
        let mut more = late.len() as u64 == SWEEP_ENTRIES_MAX;
        for index in subs {
            more |= self.sweep_expired(index);
            more |= self.sweep_lag(index);
            for &ordinal in &late {
                self.end_if_late(index, ordinal);
            }
        }
        if more {
            // Not in this turn: other topics have theirs.
            let times = self.topic_mut(topic).times.as_mut().expect("as above");
            times.rests_until_ms = now_ms + 1;
            return self.arm_sweep(topic, now_ms);
        }
        self.arm_next_sweep(topic);
    }

    /// Entries whose own deadline has passed; those that cannot be delivered yet are left for later.
    fn take_late(&mut self, topic: u32) -> Vec<u64> {
        let now_ms = self.now.wall_ms;
        let state = self.topics[topic as usize].as_mut().expect("in use");
        let ready_end = self.log.ready_end(state.slot);
        let times = state.times.as_mut().expect("it is swept");
        let (mut late, mut not_ready) = (Vec::new(), Vec::new());
        while (late.len() as u64) < SWEEP_ENTRIES_MAX
            && let Some(due_ms) = times.deadlines.next_due()
            && let Some(ordinal) = times.deadlines.pop_due(now_ms)
        {
            if ordinal < ready_end {
                late.push(ordinal);
            } else {
                not_ready.push((due_ms, ordinal));
            }
        }
        for (due_ms, ordinal) in not_ready {
            times.deadlines.arm(due_ms, ordinal);
        }
        late
    }

    /// Acks the lowest entries as far as they have outlived the time to live, handed over or not
    /// (rule D126). True if there may be more.
    fn sweep_expired(&mut self, index: SubIndex) -> bool {
        let sub = self.sub(index);
        let (slot, policy) = (sub.slot, &self.topic_at(sub.topic).policy);
        if policy.message_ttl_seconds == 0 {
            return false;
        }
        let floor = sub.window.floor();
        let most = (floor + SWEEP_ENTRIES_MAX).min(self.log.ready_end(slot));
        let expired = |ordinal: &u64| {
            let hints = self.log.hints(slot, *ordinal);
            hints.is_some_and(|hints| policy.expires_at_ms(&hints) <= self.now.wall_ms)
        };
        let end = floor + (floor..most).take_while(expired).count() as u64;
        if end > floor {
            self.remove(index, floor..end, |gone| &mut gone.expired);
        }
        end == floor + SWEEP_ENTRIES_MAX
    }

    /// The same by the policy's deadline; pending ones are left alone. What it has passed and comes
    /// back is looked at when it does.
    fn sweep_lag(&mut self, index: SubIndex) -> bool {
        let sub = self.sub(index);
        let slot = sub.slot;
        if self.topic_at(sub.topic).policy.max_delivery_lag_millis == 0 {
            return false;
        }
        let first = sub.swept.max(sub.window.floor());
        let most = (first + SWEEP_ENTRIES_MAX).min(self.log.ready_end(slot));
        let mut at = first;
        while at < most && self.fate(index, at) == Fate::Over(Over::Late) {
            self.end_if_late(index, at);
            at += 1;
        }
        self.sub_mut(index).swept = at;
        at == first + SWEEP_ENTRIES_MAX
    }

    fn end_if_late(&mut self, index: SubIndex, ordinal: u64) {
        let waits = matches!(
            self.sub(index).window.get(ordinal),
            State::Unread | State::Replay | State::Delayed | State::Later
        );
        if waits && self.fate(index, ordinal) == Fate::Over(Over::Late) {
            self.end_of_time(index, ordinal, Over::Late);
        }
    }

    /// What an entry's times say now.
    pub(crate) fn fate(&self, index: SubIndex, ordinal: u64) -> Fate {
        let sub = self.sub(index);
        let times = self.topic_at(sub.topic).times_for(sub.kind, self.now);
        let fate = |times: Times<'_>| times.fate_of(&self.log, sub.slot, ordinal);
        times.map_or(Fate::Due, fate)
    }

    /// An entry that nobody holds is over.
    pub(crate) fn end_of_time(&mut self, index: SubIndex, ordinal: u64, over: Over) {
        let dies = self.topic_at(self.sub(index).topic).policy.deadline_action;
        match (over, dies) {
            (Over::Late, DeadlineAction::DeadLetter) => self.bury(index, ordinal, Reason::Deadline),
            (Over::Late, DeadlineAction::Drop) => {
                self.remove(index, ordinal..ordinal + 1, |gone| &mut gone.late);
            }
            (Over::Expired, _) => {
                self.remove(index, ordinal..ordinal + 1, |gone| &mut gone.expired);
            }
        }
    }

    /// The engine itself is done with entries; they do not count as acked.
    pub(crate) fn remove(
        &mut self,
        index: SubIndex,
        ordinals: Range<u64>,
        cause: impl FnOnce(&mut Gone) -> &mut u64,
    ) {
        let before = self.sub(index).acked_messages;
        self.ack_ordinals(index, ordinals);
        let sub = self.sub_mut(index);
        let messages = std::mem::replace(&mut sub.acked_messages, before) - before;
        sub.skipped_messages += messages.cast_signed();
        *cause(&mut sub.gone) += messages;
        self.want(index);
    }

    /// Arms the sweep for the first entry that can be over.
    fn arm_next_sweep(&mut self, topic: u32) {
        let state = self.topic_at(topic);
        let Some(times) = &state.times else {
            return;
        };
        let (slot, policy) = (state.slot, &state.policy);
        let mut at_ms = times.deadlines.next_due().unwrap_or(u64::MAX);
        for &index in &state.subs {
            let sub = self.sub(index);
            let (floor, swept) = (sub.window.floor(), sub.swept.max(sub.window.floor()));
            if let Some(hints) = self.log.hints(slot, floor) {
                at_ms = at_ms.min(policy.expires_at_ms(&hints));
            }
            if let Some(hints) = self.log.hints(slot, swept) {
                let by_lag_alone = Hints {
                    deadline_ms: 0,
                    ..hints
                };
                at_ms = at_ms.min(policy.late_at_ms(&by_lag_alone));
            }
        }
        self.arm_sweep(topic, at_ms);
    }
}
