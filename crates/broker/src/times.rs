//! What the times of an entry mean: too early, due, or over (rules D122 to D126, D130, D131).
//!
//! Everything is decided by hints, before permits, reads and keys are spent. A topic whose entries
//! have no times and whose policy asks for none has no [`TopicTimes`], and pays nothing.

use pelton_storage::{Hints, Log, TopicSlot};

use crate::alarms::{Armed, Sleeper};
use crate::broker::SubIndex;
use crate::dispatch::Candidate;
use crate::subscription::Subscription;
use crate::timers::Timers;
use crate::topic::Topic;
use crate::window::State;
use crate::{Broker, Now, Policy, SubscriptionKind};

/// What a topic keeps because of times.
#[derive(Debug, Default)]
pub(crate) struct TopicTimes {
    /// Entries with a deadline of their own, by it, Unix milliseconds.
    pub(crate) deadlines: Timers,
    /// When the next sweep is.
    pub(crate) armed: Armed,
    /// No sweep before this.
    pub(crate) rests_until_ms: u64,
}

/// What one subscription goes by in one turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times<'a> {
    policy: &'a Policy,
    now_ms: u64,
    /// Times to deliver at are heeded.
    pub(crate) delays: bool,
}

/// What an entry's times say now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It may go.
    Due,
    /// Not before this Unix millisecond.
    Later(u64),
    Over(Over),
}

/// Why an entry is not handed over any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// It has outlived the topic's time to live.
    Expired,
    /// Its deadline has passed.
    Late,
}

/// What a pass does with its next candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Screened {
    Go,
    /// It was put aside until its time.
    PutAside,
    /// It has to be put aside, and no more can be: the pass ends.
    Full,
    Over(Over),
}

impl Topic {
    /// What its entries' times mean, if any has some or the policy gives them one.
    #[inline]
    pub(crate) fn times_for(&self, kind: SubscriptionKind, now: Now) -> Option<Times<'_>> {
        self.times.as_ref()?;
        Some(Times {
            policy: &self.policy,
            now_ms: now.wall_ms,
            delays: self.policy.delays(kind),
        })
    }
}

impl Policy {
    /// Whether entries without times of their own have some by it.
    pub(crate) fn gives_times(&self) -> bool {
        self.message_ttl_seconds > 0 || self.max_delivery_lag_millis > 0
    }

    /// Whether times to deliver at are heeded (rule D123).
    pub(crate) fn delays(&self, kind: SubscriptionKind) -> bool {
        !kind.is_single() && self.delayed_delivery_enabled
    }

    /// Whether a publish is refused for its time to deliver at (rule D123).
    pub(crate) fn delays_too_long(&self, deliver_at_ms: u64, now: Now) -> bool {
        let max_ms = self.delayed_delivery_max_delay_in_millis;
        max_ms != 0 && deliver_at_ms.saturating_sub(now.wall_ms) > max_ms
    }

    /// When an entry's time to live is over, Unix milliseconds.
    pub(crate) fn expires_at_ms(&self, hints: &Hints) -> u64 {
        after(
            hints.publish_ms,
            self.message_ttl_seconds.saturating_mul(1_000),
        )
    }

    /// The earliest of an entry's deadlines (rule D130), Unix milliseconds.
    pub(crate) fn late_at_ms(&self, hints: &Hints) -> u64 {
        let own_ms = if hints.deadline_ms == 0 {
            u64::MAX
        } else {
            hints.deadline_ms
        };
        own_ms.min(after(hints.publish_ms, self.max_delivery_lag_millis))
    }
}

/// `span_ms` later; never, if that is 0.
fn after(since_ms: u64, span_ms: u64) -> u64 {
    if span_ms == 0 {
        u64::MAX
    } else {
        since_ms.saturating_add(span_ms)
    }
}

impl Times<'_> {
    fn fate(&self, hints: &Hints) -> Fate {
        let (expires_at_ms, late_at_ms) = (
            self.policy.expires_at_ms(hints),
            self.policy.late_at_ms(hints),
        );
        if self.now_ms >= late_at_ms.min(expires_at_ms) {
            let first = late_at_ms <= expires_at_ms;
            return Fate::Over(if first { Over::Late } else { Over::Expired });
        }
        if self.delays && hints.deliver_at_ms > self.now_ms {
            return Fate::Later(hints.deliver_at_ms);
        }
        Fate::Due
    }

    pub(crate) fn fate_of(&self, log: &Log, slot: TopicSlot, ordinal: u64) -> Fate {
        let hints = log.hints(slot, ordinal).unwrap_or_default();
        self.fate(&hints)
    }

    /// Of entries from `ordinal` on, the first of which is due: how many are, at most `most`.
    pub(crate) fn due_run(&self, log: &Log, slot: TopicSlot, ordinal: u64, most: u64) -> u64 {
        let due = |at: &u64| self.fate_of(log, slot, ordinal + at) == Fate::Due;
        1 + (1..most).take_while(due).count() as u64
    }

    /// Looks at a candidate, and puts it aside if its time has not come.
    pub(crate) fn screen(&self, log: &Log, sub: &mut Subscription, next: Candidate) -> Screened {
        match self.fate_of(log, sub.slot, next.ordinal) {
            Fate::Due => Screened::Go,
            Fate::Over(over) => Screened::Over(over),
            Fate::Later(at_ms) => {
                let max = self.policy.delayed_delivery_max_entries_per_subscription;
                if next.state == State::Unread && sub.later.len() >= max {
                    return Screened::Full;
                }
                sub.put_aside(log, next, at_ms);
                Screened::PutAside
            }
        }
    }
}

impl Subscription {
    fn put_aside(&mut self, log: &Log, Candidate { ordinal, state, .. }: Candidate, at_ms: u64) {
        match state {
            State::Replay => self.end_replay(log, ordinal),
            _ => self.read = ordinal + 1,
        }
        self.window.set(ordinal, State::Later, 0);
        self.later.arm(at_ms, ordinal);
    }

    /// It is acked, or over, before its time has come.
    pub(crate) fn end_later(&mut self, log: &Log, ordinal: u64) {
        let hints = log.hints(self.slot, ordinal).unwrap_or_default();
        self.later.disarm(hints.deliver_at_ms, ordinal);
    }
}

impl Broker {
    /// Entries of the subscription whose time has come are owed; of those that are due, the lowest
    /// goes first.
    pub(crate) fn end_later(&mut self, index: SubIndex) {
        self.owe_later_until(index, self.now.wall_ms);
    }

    /// Its times to deliver at are not heeded any more: what waits for them does not.
    pub(crate) fn heed_no_later(&mut self, index: SubIndex) {
        self.owe_later_until(index, u64::MAX);
    }

    fn owe_later_until(&mut self, index: SubIndex, at_ms: u64) {
        let sub = self.subs[index.0 as usize].as_mut().expect("in use");
        while let Some(ordinal) = sub.later.pop_due(at_ms) {
            sub.owe(&self.log, ordinal);
        }
        self.arm_later(index);
        self.want(index);
    }

    /// Takes note of when the first of its entries is due by the wall clock.
    pub(crate) fn arm_later(&mut self, index: SubIndex) {
        let sub = self.subs[index.0 as usize].as_mut().expect("in use");
        let at_ms = sub.later.next_due().unwrap_or(u64::MAX);
        self.wall_alarms
            .set(Sleeper::Sub(index), &mut sub.armed_later, at_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_earliest_end_counts_and_an_entry_that_is_over_does_not_wait() {
        let policy = Policy {
            message_ttl_seconds: 1,
            max_delivery_lag_millis: 500,
            ..Policy::default()
        };
        let fate = |now_ms, deliver_at_ms, deadline_ms, delays| {
            let hints = Hints {
                publish_ms: 1_000,
                deliver_at_ms,
                deadline_ms,
                ..Hints::default()
            };
            let policy = &policy;
            Times {
                policy,
                now_ms,
                delays,
            }
            .fate(&hints)
        };
        assert_eq!(fate(1_499, 0, 0, true), Fate::Due);
        assert_eq!(fate(1_500, 0, 0, true), Fate::Over(Over::Late));
        assert_eq!(fate(1_100, 0, 1_100, true), Fate::Over(Over::Late));
        assert_eq!(fate(1_099, 1_100, 0, true), Fate::Later(1_100));
        assert_eq!(fate(1_100, 1_100, 0, true), Fate::Due);
        assert_eq!(fate(1_099, 1_100, 0, false), Fate::Due);
        assert_eq!(fate(1_500, 9_000, 0, true), Fate::Over(Over::Late));
        let policy = Policy {
            max_delivery_lag_millis: 0,
            ..policy.clone()
        };
        let hints = Hints {
            publish_ms: 1_000,
            ..Hints::default()
        };
        let times = Times {
            policy: &policy,
            now_ms: 2_000,
            delays: true,
        };
        assert_eq!(times.fate(&hints), Fate::Over(Over::Expired));
    }
}
