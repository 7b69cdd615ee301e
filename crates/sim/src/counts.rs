//! What the core counts, against what it must be; and what must be so at rest.

use pelton_broker::storage::Durability;
use pelton_broker::{BrokerStats, ConsumerStats, SubscriptionStats, TopicStats};

use crate::clients::{Consumer, Producer};
use crate::oracle::{Check, Entry, Fate, Life, Oracle, Topic, hold};
use crate::sub::Sub;

impl Oracle {
    /// Compares what the core counts with what it must be.
    pub(crate) fn check_stats(
        &mut self,
        shard: usize,
        stats: &BrokerStats,
        (lied, now_ms): (bool, u64),
        consumers: &[Consumer],
    ) -> Check {
        self.last_ack += 1; // of what the engine itself is done with
        let at = Look {
            lied,
            now_ms,
            ack: self.last_ack,
        };
        let ours = |topic: &&mut Topic| topic.shard == shard && topic.life.is_some();
        let mut topics = stats.topics.iter();
        for topic in self.topics.iter_mut().filter(ours) {
            let told = topics.next().filter(|told| told.name == topic.name);
            hold("T2 topics", told.is_some(), || {
                format!("{} is missing in the statistics", topic.name)
            })?;
            if let (Some(told), Some(life)) = (told, &mut topic.life) {
                check_topic((life, topic.durability), told, at, consumers)?;
            }
        }
        let extra = topics.next();
        hold("T2 topics", extra.is_none(), || {
            format!("{extra:?} should not be there")
        })
    }

    /// At rest: nobody who could be served waits for what could be sent (T3).
    pub(crate) fn check_rest(&self, shard: usize, poisoned: bool, consumers: &[Consumer]) -> Check {
        for topic in self.topics.iter().filter(|topic| topic.shard == shard) {
            let Some(life) = &topic.life else { continue };
            let mut ready = life.ready(topic.durability);
            if poisoned && topic.durability == Durability::Written {
                // What was written is not sent before a sync has proved its positions.
                ready = ready.min(life.opened_at);
            }
            for sub in life.subs.iter().filter(|sub| sub.passed.is_none()) {
                let stalled = sub.stalled((&life.entries, ready), consumers);
                hold("T3 stalled", stalled.is_none(), || {
                    let (topic, sub) = (&topic.name, &sub.name);
                    format!("(entry, consumer) of {topic}/{sub} wait: {stalled:?}")
                })?;
            }
        }
        Ok(())
    }

    /// A turn is over: of what is not stored everything went or was dropped.
    pub(crate) fn check_passed(&self, shard: usize, consumers: &[Consumer]) -> Check {
        let ours = self.topics.iter().filter(|topic| topic.shard == shard);
        for life in ours.filter_map(|topic| topic.life.as_ref()) {
            for sub in &life.subs {
                sub.check_passed(&life.entries, consumers)?;
            }
        }
        Ok(())
    }

    /// Whether a consumer is rightly told that nothing more comes.
    pub(crate) fn check_end(&self, at: usize, consumer: &Consumer) -> Check {
        let life = self.topics[consumer.topic].life.as_ref();
        let mut subs = life.iter().flat_map(|life| &life.subs);
        let sub = subs.find(|sub| sub.consumers.contains(&at));
        let len = life.map_or(0, |life| life.entries.len());
        let done = |sub: &Sub| sub.cursor.lowest_unacked(len) == len && !sub.is_seeking();
        let ends = life.is_some_and(|life| life.end.takes_nothing()) && sub.is_some_and(done);
        hold("D132 end", ends, || {
            let lowest = sub.map(|sub| (sub.cursor.lowest_unacked(len), sub.is_seeking()));
            let (end, name) = (life.map(|life| life.end), &consumer.sub);
            format!("consumer {at} of {name} is told: {end:?}, {lowest:?} of {len}")
        })
    }

    /// At rest: everybody has been told of the end who has nothing left, and every producer.
    pub(crate) fn check_ends(
        &self,
        shard: usize,
        consumers: &[Consumer],
        producers: &[Producer],
    ) -> Check {
        let topics = self.topics.iter().enumerate();
        for (at, topic) in topics.filter(|(_, topic)| topic.shard == shard) {
            let Some(life) = topic.life.as_ref().filter(|life| life.end.answered) else {
                continue;
            };
            let len = life.entries.len();
            let done = |sub: &&Sub| sub.cursor.lowest_unacked(len) == len && !sub.is_seeking();
            let mut waiting = life.subs.iter().filter(done).flat_map(|sub| &sub.consumers);
            let waiting = waiting.find(|&&at| !consumers[at].at_end);
            let of = |p: &&Producer| p.topic == at && p.life == life.serial && p.open;
            let producer = producers
                .iter()
                .filter(of)
                .find(|p| p.id.is_some() && !p.at_end);
            hold("D132 end", waiting.is_none() && producer.is_none(), || {
                let name = &topic.name;
                format!("of {name} was not told: consumer {waiting:?}, {producer:?}")
            })?;
        }
        Ok(())
    }

    /// At rest with a disk that works: every publish is answered, what all have acked is gone.
    pub(crate) fn check_settled(&self, shard: usize) -> Check {
        for topic in self.topics.iter().filter(|topic| topic.shard == shard) {
            let Some(life) = &topic.life else { continue };
            if topic.durability == Durability::NonPersistent {
                continue;
            }
            let owed = life
                .entries
                .iter()
                .position(|entry| entry.fate == Fate::Owed);
            hold("no receipt", owed.is_none(), || {
                format!("for {owed:?} of {}", topic.name)
            })?;
            let len = life.entries.len();
            let needs = life.subs.iter().map(|sub| sub.needs(len)).min();
            let ready = life.ready(topic.durability);
            let kept = len - needs.unwrap_or(ready).min(ready);
            let more = life.policy().retention.retention_time_in_minutes != 0;
            hold("D127 kept", life.stored == kept || more, || {
                format!(
                    "{} keeps {} entries, {kept} are wanted",
                    topic.name, life.stored
                )
            })?;
        }
        Ok(())
    }
}

/// When and how the core is looked at.
#[derive(Clone, Copy, Debug)]
struct Look {
    /// The disk has lost what it said it had.
    lied: bool,
    now_ms: u64,
    /// Number of the acks that the engine gave by itself since the last look.
    ack: u64,
}

fn check_topic(
    (life, durability): (&mut Life, Durability),
    told: &TopicStats,
    at: Look,
    consumers: &[Consumer],
) -> Check {
    let len = life.entries.len();
    let ends = life.end.takes_nothing();
    hold("D132 terminated", told.terminated == ends, || {
        format!("{}: {:?}", told.name, life.end)
    })?;
    for told in &told.subscriptions {
        let Life { subs, entries, .. } = life;
        if let Some(sub) = subs.iter_mut().find(|sub| sub.name == told.name) {
            sub.learn_start(len, told)?;
            sub.note_evicted(entries, told, at.now_ms, at.ack)?;
        }
    }
    if durability != Durability::NonPersistent {
        check_kept((life, durability), told, at.now_ms)?;
    }
    let producers = (told.producers, life.producers);
    hold("T2 producers", producers.0 == producers.1, || {
        format!("{}: {producers:?}", told.name)
    })?;
    hold(
        "T2 subscriptions",
        told.subscriptions.len() == life.subs.len(),
        || format!("{told:?}"),
    )?;
    for told_sub in &told.subscriptions {
        let sub = life.subs.iter_mut().find(|sub| sub.name == told_sub.name);
        hold("T2 subscriptions", sub.is_some(), || {
            format!("{told_sub:?}")
        })?;
        if let Some(sub) = sub {
            sub.note_aside(told_sub)?;
            check_sub(&life.entries, sub, told_sub, at.lied, consumers)?;
        }
    }
    Ok(())
}

/// Nothing is removed that somebody needs, and whoever needs nothing goes on behind it.
fn check_kept(
    (life, durability): (&mut Life, Durability),
    told: &TopicStats,
    now_ms: u64,
) -> Check {
    let len = life.entries.len();
    let stored = usize::try_from(told.entries).unwrap_or(usize::MAX);
    let needs = life.subs.iter().map(|sub| sub.needs(len)).min();
    let needed = len - needs.unwrap_or(len);
    hold("T7 trimmed", (needed..=len).contains(&stored), || {
        format!(
            "{} has {stored} entries of {len}, {needed} are needed",
            told.name
        )
    })?;
    // What memory alone has gives way to what is new.
    let gone = life.stored_from()..len - stored;
    let kept = gone.clone().find(|&at| life.keeps(at, now_ms));
    let kept = kept.filter(|_| durability.is_stored());
    hold("D127 kept", kept.is_none(), || {
        format!("{kept:?} of {gone:?} of {} is to be kept", told.name)
    })?;
    (life.stored, life.known) = (stored, len);
    for sub in &mut life.subs {
        sub.jump(len - stored, &life.entries);
    }
    Ok(())
}

fn check_sub(
    entries: &[Entry],
    sub: &mut Sub,
    told: &SubscriptionStats,
    lied: bool,
    consumers: &[Consumer],
) -> Check {
    let passed = sub.passed.as_mut().map(|passed| passed.counts(told));
    let unacked = (0..entries.len()).filter(|&at| !sub.cursor.is_acked(at));
    let (backlog_entries, backlog_messages) = unacked.fold((0, 0), |(count, sum), at| {
        (count + 1, sum + sub.left(at, entries))
    });
    let expected = SubscriptionStats {
        name: sub.name.clone(),
        backlog_entries,
        backlog_messages,
        backlog_bytes: match sub.passed {
            None => sub.backlog_bytes(entries),
            Some(_) => told.backlog_bytes,
        },
        unacked_messages: sub.unacked(None, entries),
        replay_entries: sub.replay_entries() + sub.aside,
        delayed_entries: sub.delayed_entries(),
        delivered_messages: sub.delivered_messages,
        acked_messages: sub.acked_messages,
        durable: sub.durable,
        seeking: sub.is_seeking(),
        jumped_messages: sub.jumped_messages,
        dropped_messages: 0,
        damaged_entries: 0,
        first_damaged: None,
        expired_messages: 0,
        deadline_dropped_messages: 0,
        dead_lettered_messages: 0,
        dead_lettering_entries: 0,
        rejected_messages: 0,
        evicted_messages: sub.evicted_messages,
        consumers: Vec::new(),
    };
    let expected = match passed {
        Some(passed) => SubscriptionStats {
            delivered_messages: expected.delivered_messages,
            consumers: Vec::new(),
            ..passed
        },
        None => expected,
    };
    let mut told = told.clone();
    let told_consumers = std::mem::take(&mut told.consumers);
    if lied {
        // What a failed sync lost is damaged, and passed over.
        told.replay_entries = told.replay_entries.max(expected.replay_entries);
        told.damaged_entries = 0;
        told.first_damaged = None;
    }
    hold("T2 counts", told == expected, || {
        format!("{told:?} should be {expected:?}")
    })?;
    let as_many = told_consumers.len() == sub.consumers.len();
    hold("T2 consumers", as_many, || {
        format!("{told_consumers:?} should be {:?}", sub.consumers)
    })?;
    for (told, &at) in told_consumers.iter().zip(&sub.consumers) {
        let consumer = &consumers[at];
        let expected = ConsumerStats {
            name: consumer.name.clone(),
            available_permits: consumer.granted as i64 - consumer.delivered as i64,
            delivered_messages: consumer.delivered,
            unacked_messages: sub.unacked(Some(at), entries),
            avg_messages_per_entry: told.avg_messages_per_entry,
        };
        hold("T1 conservation", *told == expected, || {
            format!("{told:?} should be {expected:?}")
        })?;
    }
    Ok(())
}
