//! Why a subscription, or one of its consumers, gets nothing now (rules D144 and D145).
//!
//! Everything is read from the state that dispatch itself goes by, when somebody asks: the path of a
//! message pays two stores for it, the instants of the last hand-over. Asking changes nothing.

use std::fmt;

use pelton_storage::Position;
use serde::{Serialize, Serializer};

use crate::broker::SubIndex;
use crate::keyed::{hash_of, look_ahead_of};
use crate::keys::KeyOrder;
use crate::selector::Selector;
use crate::subscription::{Consumer, Subscription};
use crate::{Broker, SubscriptionKind, TopicId};

/// Keys that are listed one by one; there may be as many as hashes.
const KEYS_LISTED_MAX: usize = 16;

/// A subscription that is not moving, or of which a consumer is not, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Topic name.
    pub topic: String,
    /// Subscription name.
    pub subscription: String,
    /// How its consumers share its entries.
    #[serde(rename = "type")]
    pub kind: SubscriptionKind,
    /// All that holds, what stops the subscription as a whole first.
    pub reasons: Vec<Reason>,
}

/// One thing that holds entries up.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reason {
    /// Since when without a break, Unix milliseconds.
    #[serde(rename = "sinceUnixMs")]
    pub since_unix_ms: u64,
    /// What it is.
    #[serde(flatten)]
    pub why: Why,
}

/// What holds entries up. The list is that of section 19 of the dispatch specification; each has a
/// wake that ends it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(
    tag = "kind",
    rename_all = "snake_case",
    rename_all_fields = "camelCase"
)]
#[non_exhaustive]
pub enum Why {
    /// Everything that is durable was handed over. Ends with the next durable entry.
    CaughtUp {
        /// The last entry that can be delivered, if one is known.
        #[serde(serialize_with = "as_text")]
        position: Option<Position>,
    },
    /// Nobody is attached.
    NoConsumer,
    /// The consumer has asked for no more than it got. Ends with its next grant.
    NoPermits {
        /// Its name.
        consumer: String,
        /// Permits in messages; below zero is debt.
        available: i64,
        /// All it ever asked for, messages.
        granted: u64,
        /// All it ever got, messages.
        delivered: u64,
        /// Messages it must ask for before it gets an entry.
        owed: i64,
    },
    /// Too much is not acked. Ends with acks, or with a change of the limit.
    UnackedCap {
        /// Whose cap it is.
        scope: CapScope,
        /// Messages handed over and not acked.
        unacked: u64,
        /// The cap, messages.
        limit: u64,
        /// It goes on once so many are left.
        resume_at: u64,
    },
    /// The key has moved to another consumer, and the old one still holds messages of it.
    KeyDraining {
        /// The key's hash.
        hash: u16,
        /// Who holds them.
        old_owner: String,
        /// Who waits, if anybody owns the key.
        new_owner: Option<String>,
        /// Messages held.
        left: u64,
    },
    /// The owner of the key may not get entries, for reasons of its own.
    KeyBlocked {
        /// The key's hash.
        hash: u16,
        /// The entry that waits.
        #[serde(serialize_with = "as_text")]
        position: Option<Position>,
        /// The owner.
        owner: String,
        /// `no_permits` or `unacked_cap`: listed for the owner as well.
        owner_reason: &'static str,
    },
    /// So many entries were put aside for keys that may not go that no further ones are looked at.
    KeyLookAheadFull {
        /// Entries put aside.
        in_replay: u64,
        /// How many may be.
        limit: u64,
        /// The hash with most of them.
        hottest_hash: Option<u16>,
        /// Its part of them, 0 to 1.
        hottest_share: f64,
    },
    /// No consumer has asked for this key (sticky ranges). Ends when one attaches.
    KeyNoOwner {
        /// The key's hash.
        hash: u16,
    },
    /// The new active consumer waits for what the old one holds.
    FailoverWait {
        /// The old one, if it is still attached.
        old: Option<String>,
        /// The new one.
        new: String,
        /// When the wait ends at the latest, Unix milliseconds.
        until_unix_ms: u64,
        /// Messages the old one holds.
        old_unacked: u64,
    },
    /// The next entry has not the topic's durability yet. Ends with a commit.
    AwaitDurable {
        /// The entry.
        #[serde(serialize_with = "as_text")]
        position: Option<Position>,
    },
    /// The next entry is being read.
    AwaitDisk {
        /// The entry.
        #[serde(serialize_with = "as_text")]
        position: Option<Position>,
    },
    /// The next entry must be read, and no read buffer is free.
    ReadMemoryFull,
    /// Entries that cannot be read were passed over; they stay unacked.
    Damaged {
        /// How many.
        entries: u64,
    },
    /// All that is left is to be delivered later, as its publisher said.
    Delayed {
        /// Entries that wait.
        entries: u64,
        /// When the first one is due, Unix milliseconds.
        next_due_unix_ms: u64,
    },
    /// All that is left was nacked and waits for its delay to pass.
    RedeliveryDelay {
        /// Entries that wait.
        entries: u64,
        /// When the first one is due, Unix milliseconds.
        next_due_unix_ms: u64,
    },
    /// A seek is not durable yet.
    Seeking,
    /// The log has failed. Ends when the engine is opened again.
    LogPoisoned {
        /// The first failure.
        error: String,
    },
}

/// Whose cap on unacked messages it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CapScope {
    /// That of the consumer of this name.
    Consumer(String),
    /// That of the subscription.
    Subscription,
}

impl Explanation {
    /// The first reason: what stops the subscription as a whole, if it is stopped.
    #[must_use]
    pub fn first(&self) -> Option<&Reason> {
        self.reasons.first()
    }
}

/// One line: which subscription, and each reason.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({:?})", self.topic, self.subscription, self.kind)?;
        for (reason, sign) in self
            .reasons
            .iter()
            .zip([": "].into_iter().chain(std::iter::repeat("; ")))
        {
            write!(f, "{sign}{}", reason.why)?;
        }
        Ok(())
    }
}

/// What it is and what ends it, without the time.
impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::CaughtUp { .. } => f.write_str("everything was handed over"),
            Why::NoConsumer => f.write_str("no consumer is attached"),
            Why::NoPermits { consumer, owed, .. } => {
                write!(
                    f,
                    "consumer {consumer} must ask for {owed} more messages to get any"
                )
            }
            Why::UnackedCap {
                scope,
                unacked,
                limit,
                resume_at,
            } => {
                match scope {
                    CapScope::Consumer(name) => write!(f, "consumer {name} holds")?,
                    CapScope::Subscription => f.write_str("its consumers hold")?,
                }
                write!(
                    f,
                    " {unacked} unacked messages of at most {limit}, and goes on at {resume_at}"
                )
            }
            Why::KeyDraining {
                hash,
                old_owner,
                left,
                ..
            } => {
                write!(
                    f,
                    "key hash {hash} has moved, and {old_owner} still holds {left} messages of it"
                )
            }
            Why::KeyBlocked {
                hash,
                owner,
                owner_reason,
                ..
            } => {
                write!(
                    f,
                    "key hash {hash} waits for its owner {owner} ({owner_reason})"
                )
            }
            Why::KeyLookAheadFull {
                in_replay, limit, ..
            } => {
                write!(
                    f,
                    "{in_replay} entries wait for their keys, and at most {limit} may"
                )
            }
            Why::KeyNoOwner { hash } => write!(f, "nobody has asked for key hash {hash}"),
            Why::FailoverWait {
                new, old_unacked, ..
            } => {
                write!(
                    f,
                    "{new} takes over, once the old consumer's {old_unacked} messages are acked"
                )
            }
            Why::AwaitDurable { .. } => f.write_str("the next entry is not durable yet"),
            Why::AwaitDisk { .. } => f.write_str("the next entry is being read"),
            Why::ReadMemoryFull => f.write_str("no read buffer is free"),
            Why::Damaged { entries } => {
                write!(f, "{entries} entries cannot be read and were passed over")
            }
            Why::RedeliveryDelay { entries, .. } => {
                write!(f, "{entries} nacked entries wait for their delay to pass")
            }
            Why::Delayed { entries, .. } => {
                write!(f, "{entries} entries are to be delivered later")
            }
            Why::Seeking => f.write_str("a seek is not durable yet"),
            Why::LogPoisoned { error } => {
                write!(f, "the log has failed, open the engine again: {error}")
            }
        }
    }
}

impl Broker {
    /// Every subscription of the shard, or of one topic, that is not moving or has a consumer that is
    /// not. One with a pass queued is moving.
    pub(crate) fn explain(&self, topic: Option<TopicId>) -> Vec<Explanation> {
        let topics = self.names.values().copied();
        topics
            .filter(|&index| topic.is_none_or(|topic| topic.0 == index))
            .flat_map(|index| self.topic_at(index).subs.iter())
            .filter_map(|&index| self.explain_sub(index))
            .collect()
    }

    fn explain_sub(&self, index: SubIndex) -> Option<Explanation> {
        let sub = self.sub(index);
        let mut reasons = if sub.wanted {
            Vec::new()
        } else {
            self.reasons_of_all(sub)
        };
        for consumer in self.consumers_of(sub) {
            reasons.extend(self.reason_of(sub, consumer));
        }
        if sub.damaged_entries > 0 {
            let entries = sub.damaged_entries;
            reasons.push(self.since(sub.damaged_ns, Why::Damaged { entries }));
        }
        (!reasons.is_empty()).then(|| Explanation {
            topic: self.topic_at(sub.topic).name.to_string(),
            subscription: sub.name.to_string(),
            kind: sub.kind,
            reasons,
        })
    }

    /// What stops the subscription as a whole.
    fn reasons_of_all(&self, sub: &Subscription) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if let Some(error) = &self.poisoned {
            let error = error.clone();
            reasons.push(self.since(self.poisoned_ns, Why::LogPoisoned { error }));
        }
        if sub.seeks > 0 {
            reasons.push(self.since(sub.seek_ns, Why::Seeking));
        }
        if sub.consumers.is_empty() {
            reasons.push(self.since(sub.alone_ns, Why::NoConsumer));
        }
        if sub.blocked {
            let why = sub.caps.why_subscription(sub.unacked);
            reasons.push(self.since(sub.moved_ns, why));
        }
        reasons.extend(self.failover_wait(sub));
        reasons.extend(self.next_entry(sub));
        if let Selector::KeyShared(order) = &sub.selector {
            reasons.extend(self.reasons_of_keys(sub, order));
        }
        reasons
    }

    /// What the next entry waits for, if it is not a consumer.
    fn next_entry(&self, sub: &Subscription) -> Option<Reason> {
        let position = |ordinal| self.log.position(sub.slot, ordinal);
        if sub.replay.entries() > 0 {
            return None;
        }
        let (ready_end, end) = (self.log.ready_end(sub.slot), self.log.end(sub.slot));
        let next = sub.read.max(sub.window.floor());
        if next < ready_end {
            let waits_ns = sub.awaits_ns?;
            let why = match self.starved.iter().any(|&index| self.is(index, sub)) {
                true => Why::ReadMemoryFull,
                false => Why::AwaitDisk {
                    position: position(next),
                },
            };
            return Some(self.since(waits_ns, why));
        }
        if next < end {
            let position = position(next);
            return Some(self.since(sub.moved_ns, Why::AwaitDurable { position }));
        }
        if let Some(due_ns) = sub.delays.next_due() {
            let why = Why::RedeliveryDelay {
                entries: sub.delays.len(),
                next_due_unix_ms: self.wall_ms_at(due_ns),
            };
            return Some(self.since(sub.moved_ns.max(sub.delayed_ns), why));
        }
        if let Some(next_due_unix_ms) = sub.later.next_due() {
            let entries = sub.later.len();
            let why = Why::Delayed {
                entries,
                next_due_unix_ms,
            };
            return Some(self.since(sub.moved_ns, why));
        }
        let position = self.log.position_before(sub.slot, ready_end);
        Some(self.since(sub.moved_ns, Why::CaughtUp { position }))
    }

    fn failover_wait(&self, sub: &Subscription) -> Option<Reason> {
        let Selector::Failover(election) = &sub.selector else {
            return None;
        };
        let wait = election.takeover()?;
        let old = self.consumer_at(sub, wait.old);
        let why = Why::FailoverWait {
            old: old.map(|consumer| consumer.name.clone()),
            new: self.consumer_at(sub, wait.new)?.name.clone(),
            until_unix_ms: self.wall_ms_at(wait.until_ns),
            old_unacked: old.map_or(0, |consumer| consumer.unacked),
        };
        Some(self.since(wait.since_ns, why))
    }

    fn reasons_of_keys(&self, sub: &Subscription, order: &KeyOrder) -> Vec<Reason> {
        let mut whys = Vec::new();
        let name = |slot| {
            let consumer = self.consumer_at(sub, slot);
            consumer.map_or_else(String::new, |consumer| consumer.name.clone())
        };
        let limit = look_ahead_of(sub, &self.topic_at(sub.topic).policy);
        if order.in_replay() >= limit {
            let hottest = order.hottest();
            let share = |(_, entries)| f64::from(entries) / order.in_replay().max(1) as f64;
            whys.push(Why::KeyLookAheadFull {
                in_replay: order.in_replay(),
                limit,
                hottest_hash: hottest.map(|(hash, _)| hash),
                hottest_share: hottest.map_or(0.0, share),
            });
        }
        let drains = order.draining().filter(|drain| drain.waiting > 0);
        whys.extend(drains.take(KEYS_LISTED_MAX).map(|drain| Why::KeyDraining {
            hash: drain.hash,
            old_owner: name(drain.holder),
            new_owner: drain.owner.map(name),
            left: drain.left,
        }));
        let no_owner = order.without_owner().take(KEYS_LISTED_MAX);
        whys.extend(no_owner.map(|hash| Why::KeyNoOwner { hash }));
        for &slot in &sub.consumers {
            let ready = order.first_ready(slot);
            let (Some(ordinal), Some(consumer)) = (ready, self.consumer_at(sub, slot)) else {
                continue;
            };
            let Some(owner_reason) = blocked_by(consumer) else {
                continue;
            };
            whys.push(Why::KeyBlocked {
                hash: hash_of(&self.log, sub.slot, ordinal),
                position: self.log.position(sub.slot, ordinal),
                owner: consumer.name.clone(),
                owner_reason,
            });
        }
        let reason = |why| self.since(sub.moved_ns, why);
        whys.into_iter().map(reason).collect()
    }

    /// What stops one consumer, whatever the others do.
    fn reason_of(&self, sub: &Subscription, consumer: &Consumer) -> Option<Reason> {
        let why = match blocked_by(consumer)? {
            UNACKED_CAP => sub.caps.why_consumer(&consumer.name, consumer.unacked),
            _ => {
                let available = consumer.account.available();
                Why::NoPermits {
                    consumer: consumer.name.clone(),
                    available,
                    granted: consumer.account.granted(),
                    delivered: consumer.account.delivered(),
                    owed: 1 - available,
                }
            }
        };
        Some(self.since(consumer.moved_ns, why))
    }

    fn consumers_of(&self, sub: &Subscription) -> impl Iterator<Item = &Consumer> {
        let slots = sub.consumers.iter();
        slots.filter_map(|&slot| self.consumers[slot as usize].as_ref())
    }

    fn consumer_at(&self, sub: &Subscription, slot: u32) -> Option<&Consumer> {
        let attached = sub.consumers.contains(&slot);
        attached.then(|| self.consumers[slot as usize].as_ref())?
    }

    fn is(&self, index: SubIndex, sub: &Subscription) -> bool {
        let there = self.subs[index.0 as usize].as_ref();
        there.is_some_and(|there| there.key == sub.key && there.topic == sub.topic)
    }

    fn since(&self, mono_ns: u64, why: Why) -> Reason {
        Reason {
            since_unix_ms: self.wall_ms_at(mono_ns),
            why,
        }
    }

    /// The wall clock at a monotonic instant, as it stands now, to the nearest millisecond.
    fn wall_ms_at(&self, mono_ns: u64) -> u64 {
        let now = self.now;
        match mono_ns.checked_sub(now.mono_ns) {
            Some(ahead_ns) => now.wall_ms.saturating_add(ahead_ns.div_ceil(1_000_000)),
            None => now
                .wall_ms
                .saturating_sub((now.mono_ns - mono_ns + 500_000) / 1_000_000),
        }
    }
}

const NO_PERMITS: &str = "no_permits";
const UNACKED_CAP: &str = "unacked_cap";

fn blocked_by(consumer: &Consumer) -> Option<&'static str> {
    if consumer.account.available() <= 0 {
        Some(NO_PERMITS)
    } else {
        consumer.blocked.then_some(UNACKED_CAP)
    }
}

/// `ledger:entry`, as operators write it.
fn as_text<S: Serializer>(position: &Option<Position>, serializer: S) -> Result<S::Ok, S::Error> {
    match position {
        Some(position) => {
            serializer.collect_str(&format_args!("{}:{}", position.ledger, position.entry))
        }
        None => serializer.serialize_none(),
    }
}
