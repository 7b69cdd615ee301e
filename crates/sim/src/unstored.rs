//! Subscriptions of topics that store nothing: each entry goes to whoever can take it when its turn
//! ends, or is dropped and counted (rule D138).

use pelton_broker::{SubscriptionKind, SubscriptionStats};

use crate::clients::Consumer;
use crate::core::HandOver;
use crate::election::Election;
use crate::oracle::{Check, Entry, Life, hold};
use crate::sub::Sub;

/// What one of them has seen pass.
#[derive(Debug)]
pub(crate) struct Passed {
    /// The first entry that was published since it was made.
    pub(crate) from: usize,
    /// One past the last entry that was handed over.
    next: usize,
    /// Messages dropped, as last told, and before the turn.
    dropped: u64,
    dropped_before: u64,
}

impl Passed {
    pub(crate) fn new(from: usize) -> Passed {
        Passed {
            from,
            next: from,
            dropped: 0,
            dropped_before: 0,
        }
    }

    /// A turn begins.
    pub(crate) fn tick(&mut self) {
        self.dropped_before = self.dropped;
    }

    /// What is counted for it: nothing is kept, whatever else.
    pub(crate) fn counts(&mut self, told: &SubscriptionStats) -> SubscriptionStats {
        self.dropped = told.dropped_messages;
        SubscriptionStats {
            unacked_messages: 0,
            replay_entries: 0,
            acked_messages: 0,
            seeking: false,
            jumped_messages: 0,
            ..told.clone()
        }
    }
}

/// A run was handed over: each entry at most once, in order, to one who has permits and whose turn it is.
pub(crate) fn handed_out(
    life: &mut Life,
    at: usize,
    consumers: &mut [Consumer],
    run: &HandOver,
) -> Check {
    for delivered in &run.entries {
        let index = life.recognize(delivered)?;
        let Life { subs, entries, .. } = life;
        let named = |sub: &&mut Sub| sub.name == consumers[at].sub;
        let Some(sub) = subs.iter_mut().find(named) else {
            return hold("T7 nobody", false, || "the subscription is gone".to_owned());
        };
        let permits = consumers[at].granted as i64 - consumers[at].delivered as i64;
        hold("T1 overrun", permits > 0, || {
            format!("consumer {at} has {permits} permits and gets entry {index}")
        })?;
        sub.check_chosen((at, index), entries, consumers)?;
        let messages = u64::from(entries[index].messages);
        sub.delivered_messages += messages;
        consumers[at].delivered += messages;
        let passed = sub.passed.as_mut().expect("of such a topic");
        let once = passed.next <= index;
        hold("D138 once", once, || format!("entry {index}: {passed:?}"))?;
        passed.next = index + 1;
    }
    Ok(())
}

impl Sub {
    /// A turn is over: everything went or was dropped, and nothing was while somebody could take it.
    pub(crate) fn check_passed(&self, entries: &[Entry], consumers: &[Consumer]) -> Check {
        let Some(passed) = &self.passed else {
            return Ok(());
        };
        let published = entries[passed.from..].iter();
        let published: u64 = published.map(|entry| u64::from(entry.messages)).sum();
        let counted = self.delivered_messages + passed.dropped;
        hold("D138 counted", published == counted, || {
            format!("{published} messages for {}, counted {counted}", self.name)
        })?;
        let eligible = |at: &usize| consumers[*at].granted > consumers[*at].delivered;
        let mut consumers = self.consumers.iter().copied();
        let willing = match self.kind {
            SubscriptionKind::Failover => {
                let start = self.election.as_ref().and_then(Election::may_start);
                start.filter(eligible)
            }
            // Nobody outside knows whose key was dropped.
            SubscriptionKind::KeyShared => None,
            SubscriptionKind::Exclusive | SubscriptionKind::Shared => consumers.find(eligible),
        };
        let dropped = passed.dropped - passed.dropped_before;
        hold("D138 dropped", dropped == 0 || willing.is_none(), || {
            format!(
                "{dropped} messages for {}, and {willing:?} could take them",
                self.name
            )
        })
    }
}
