//! Notices what was lost, doubled, reordered or sent without permits.
//!
//! Every message carries its producer and sequence ([`Header`]). Per subscription and producer a low
//! mark says that everything below it arrived; a message in order costs a compare and an add, and an
//! entry in order no more than one message.

use crate::{payload::Header, sequences::Sequences};

/// Why a delivery was not the next one expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// New and in order.
    InOrder,
    /// New, but one with a higher sequence of the same producer and key came before it.
    OutOfOrder,
    /// It had arrived already.
    Doubled,
    /// Nobody published it: unknown producer or a sequence not yet sent, or not a payload of the load.
    Foreign,
}

#[derive(Debug)]
struct Subscription {
    name: String,
    producers: Vec<Sequences>,
    acked: u64,
    doubled: u64,
    foreign: u64,
    out_of_order: u64,
    damaged: u64,
}

#[derive(Debug)]
struct Consumer {
    subscription: usize,
    /// By key: the next sequence that would be in order.
    next: Vec<u64>,
    granted: u64,
    delivered: u64,
    overrun_max: u64,
}

/// Checks one run: producers, subscriptions and their consumers, all known by index.
///
/// After construction a message allocates nothing unless more than a million are out of order.
#[derive(Debug, Default)]
pub struct Verifier {
    /// Messages published, by producer.
    published: Vec<u64>,
    keys: usize,
    subscriptions: Vec<Subscription>,
    consumers: Vec<Consumer>,
    /// Messages in the largest entry published.
    largest_entry: u64,
    /// Which producers a subscription is to be given, by subscription.
    expected_from: Vec<std::ops::Range<usize>>,
}

impl Verifier {
    /// A run of `producers` producers whose messages carry keys below `keys`.
    #[must_use]
    pub fn new(producers: usize, keys: usize) -> Verifier {
        Verifier {
            published: vec![0; producers],
            keys,
            ..Verifier::default()
        }
    }

    /// Adds a subscription that is to be given all messages of `producers`; its index.
    pub fn add_subscription(
        &mut self,
        name: impl Into<String>,
        producers: std::ops::Range<usize>,
    ) -> usize {
        self.subscriptions.push(Subscription {
            name: name.into(),
            producers: self
                .published
                .iter()
                .map(|_| Sequences::with_room())
                .collect(),
            acked: 0,
            doubled: 0,
            foreign: 0,
            out_of_order: 0,
            damaged: 0,
        });
        self.expected_from.push(producers);
        self.subscriptions.len() - 1
    }

    /// Adds a consumer of a subscription; its index.
    pub fn add_consumer(&mut self, subscription: usize) -> usize {
        self.consumers.push(Consumer {
            subscription,
            next: vec![0; self.keys],
            granted: 0,
            delivered: 0,
            overrun_max: 0,
        });
        self.consumers.len() - 1
    }

    /// The sequence the next message of `producer` carries.
    #[inline]
    #[must_use]
    pub fn next_sequence(&self, producer: usize) -> u64 {
        self.published[producer]
    }

    /// One entry of `messages` messages of `producer` was taken by the engine.
    #[inline]
    pub fn published(&mut self, producer: usize, messages: u64) {
        self.published[producer] += messages;
        self.largest_entry = self.largest_entry.max(messages);
    }

    /// So many entries of one message each.
    #[inline]
    pub fn published_each(&mut self, producer: usize, entries: u64) {
        self.published[producer] += entries;
        self.largest_entry = self.largest_entry.max(1);
    }

    /// `consumer` granted `messages` permits.
    #[inline]
    pub fn granted(&mut self, consumer: usize, messages: u64) {
        self.consumers[consumer].granted += messages;
    }

    /// Permits granted so far that no delivery has used, in messages.
    #[inline]
    #[must_use]
    pub fn permits_left(&self, consumer: usize) -> u64 {
        let consumer = &self.consumers[consumer];
        consumer.granted.saturating_sub(consumer.delivered)
    }

    /// An entry of `messages` messages reached `consumer`. Call it once an entry, then
    /// [`Verifier::delivered`] for each of its messages.
    #[inline]
    pub fn delivered_entry(&mut self, consumer: usize, messages: u64) {
        let consumer = &mut self.consumers[consumer];
        consumer.delivered += messages;
        let overrun = consumer.delivered.saturating_sub(consumer.granted);
        consumer.overrun_max = consumer.overrun_max.max(overrun);
    }

    /// Messages of the entry just counted: `count` with consecutive sequences from `first` on, all of
    /// its producer and key. In order they cost a message nothing.
    #[inline]
    pub fn delivered_run(&mut self, consumer: usize, first: Header, count: u64) {
        if !self.take_run(consumer, &first, count) {
            for offset in 0..count {
                let sequence = first.sequence.wrapping_add(offset);
                self.delivered(consumer, Some(Header { sequence, ..first }));
            }
        }
    }

    /// True if all of them were the next ones expected and are counted.
    fn take_run(&mut self, consumer: usize, first: &Header, count: u64) -> bool {
        let consumer = &mut self.consumers[consumer];
        let subscription = &mut self.subscriptions[consumer.subscription];
        let producer = first.producer as usize;
        let Some(end) = first.sequence.checked_add(count) else {
            return false;
        };
        let known = self.expected_from[consumer.subscription].contains(&producer)
            && self.published[producer] >= end;
        let Some(next) = consumer.next.get_mut(first.key as usize) else {
            return false;
        };
        if !known || first.sequence < *next {
            return false;
        }
        let taken = subscription.producers[producer].take_run(first.sequence, count);
        if taken {
            *next = end;
        }
        taken
    }

    /// One message of the entry just counted; `None` is a payload without a header.
    #[inline]
    pub fn delivered(&mut self, consumer: usize, header: Option<Header>) -> Seen {
        let consumer = &mut self.consumers[consumer];
        let subscription = &mut self.subscriptions[consumer.subscription];
        let Some(header) = header else {
            subscription.foreign += 1;
            return Seen::Foreign;
        };
        let producer = header.producer as usize;
        let known = self.expected_from[consumer.subscription].contains(&producer)
            && header.sequence < self.published[producer];
        let Some(next) = consumer.next.get_mut(header.key as usize).filter(|_| known) else {
            subscription.foreign += 1;
            return Seen::Foreign;
        };
        if !subscription.producers[producer].observe(header.sequence) {
            subscription.doubled += 1;
            return Seen::Doubled;
        }
        if header.sequence < *next {
            subscription.out_of_order += 1;
            return Seen::OutOfOrder;
        }
        *next = header.sequence + 1;
        Seen::InOrder
    }

    /// A delivered message whose content is not what was published. It counts as lost.
    pub fn damaged(&mut self, consumer: usize) {
        self.subscriptions[self.consumers[consumer].subscription].damaged += 1;
    }

    /// The subscription of `consumer` acked an entry of `messages`.
    #[inline]
    pub fn acked(&mut self, consumer: usize, messages: u64) {
        self.subscriptions[self.consumers[consumer].subscription].acked += messages;
    }

    /// What the engine itself counts as acked for the subscription of this name, in messages. Call it
    /// when every ack has arrived; fewer than were sent is a broken promise.
    pub fn engine_acked(&mut self, name: &str, messages: u64) {
        let found = self
            .subscriptions
            .iter_mut()
            .find(|subscription| subscription.name == name);
        if let Some(subscription) = found {
            subscription.acked = subscription.acked.min(messages);
        }
    }

    /// Messages that some subscription still has to be given or to ack.
    #[must_use]
    pub fn outstanding(&self) -> u64 {
        self.subscriptions
            .iter()
            .zip(&self.expected_from)
            .map(|(subscription, producers)| {
                let expected: u64 = self.published[producers.clone()].iter().sum();
                expected.saturating_sub(subscription.acked)
            })
            .sum()
    }

    /// Messages published by all producers.
    #[must_use]
    pub fn published_total(&self) -> u64 {
        self.published.iter().sum()
    }

    /// Messages delivered to all consumers, doubled ones included.
    #[must_use]
    pub fn delivered_total(&self) -> u64 {
        self.consumers
            .iter()
            .map(|consumer| consumer.delivered)
            .sum()
    }

    /// Compares what was published with what arrived. Call it when nothing is under way any more.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let mut verdict = Verdict {
            published: self.published_total(),
            permit_overrun_max: self
                .consumers
                .iter()
                .map(|c| c.overrun_max)
                .max()
                .unwrap_or(0),
            permit_overrun_allowed: self.largest_entry.saturating_sub(1),
            ..Verdict::default()
        };
        let mut worst: Option<(u64, &str)> = None;
        for (subscription, producers) in self.subscriptions.iter().zip(&self.expected_from) {
            let expected: u64 = self.published[producers.clone()].iter().sum();
            let distinct: u64 = subscription.producers.iter().map(Sequences::distinct).sum();
            let intact = distinct.saturating_sub(subscription.damaged);
            let lost = expected.saturating_sub(intact);
            let doubled = subscription.doubled + subscription.foreign;
            verdict.delivered += intact;
            verdict.expected += expected;
            verdict.acked += subscription.acked.min(distinct);
            verdict.lost += lost;
            verdict.duplicated += doubled;
            verdict.out_of_order += subscription.out_of_order;
            let unacked = expected.saturating_sub(subscription.acked);
            if lost + doubled + subscription.out_of_order + unacked > 0
                && worst.is_none_or(|(missing, _)| lost + unacked > missing)
            {
                worst = Some((lost + unacked, &subscription.name));
            }
        }
        verdict.worst_subscription = worst.map(|(_, name)| name.to_owned());
        verdict
    }
}

/// What came of a run, in messages; over all subscriptions where there are several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Published by the producers.
    pub published: u64,
    /// What the subscriptions had to be given: `published`, once per subscription.
    pub expected: u64,
    /// Different messages that arrived intact.
    pub delivered: u64,
    /// Acked.
    pub acked: u64,
    /// Published and never delivered, or delivered with other content.
    pub lost: u64,
    /// Delivered a second time, or never published.
    pub duplicated: u64,
    /// Delivered after a later message of the same producer and key.
    pub out_of_order: u64,
    /// Most that any consumer was ever given beyond what it had granted.
    pub permit_overrun_max: u64,
    /// Entries are indivisible, so the largest entry less one is within the rule (DESIGN 3).
    pub permit_overrun_allowed: u64,
    /// The subscription that is furthest off, if one is.
    pub worst_subscription: Option<String>,
}

impl Verdict {
    /// Adds another part of the same run.
    pub fn merge(&mut self, other: &Verdict) {
        self.published += other.published;
        self.expected += other.expected;
        self.delivered += other.delivered;
        self.acked += other.acked;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.out_of_order += other.out_of_order;
        // The part with the largest excess decides; equal parts keep the larger figure.
        let excess = |v: &Verdict| {
            v.permit_overrun_max
                .saturating_sub(v.permit_overrun_allowed)
        };
        if (excess(other), other.permit_overrun_max) > (excess(self), self.permit_overrun_max) {
            self.permit_overrun_max = other.permit_overrun_max;
            self.permit_overrun_allowed = other.permit_overrun_allowed;
        }
        if self.worst_subscription.is_none() {
            self.worst_subscription
                .clone_from(&other.worst_subscription);
        }
    }

    /// One sentence per broken promise; empty if the run is fine.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let at = self
            .worst_subscription
            .as_ref()
            .map_or(String::new(), |name| format!(" (worst: {name})"));
        let mut found = Vec::new();
        let mut say = |count: u64, what: &str| {
            if count > 0 {
                found.push(format!("{count} messages {what}{at}"));
            }
        };
        say(self.lost, "lost");
        say(self.duplicated, "delivered twice or never published");
        say(self.out_of_order, "out of order");
        say(self.expected.saturating_sub(self.acked), "not acked");
        if self.permit_overrun_max > self.permit_overrun_allowed {
            found.push(format!(
                "a consumer was given {} messages beyond its permits; at most {} are within the rule",
                self.permit_overrun_max, self.permit_overrun_allowed
            ));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One producer, one subscription, one consumer with permits for everything.
    fn run(published: u64, delivered: &[u64]) -> Verdict {
        let mut verifier = Verifier::new(1, 1);
        let subscription = verifier.add_subscription("s", 0..1);
        let consumer = verifier.add_consumer(subscription);
        for _ in 0..published {
            verifier.published(0, 1);
        }
        verifier.granted(consumer, published + delivered.len() as u64);
        for &sequence in delivered {
            deliver(&mut verifier, consumer, 0, 0, sequence);
        }
        verifier.verdict()
    }

    fn deliver(v: &mut Verifier, consumer: usize, producer: u32, key: u32, sequence: u64) -> Seen {
        v.delivered_entry(consumer, 1);
        let seen = v.delivered(
            consumer,
            Some(Header {
                producer,
                key,
                sequence,
                intended_ns: 0,
            }),
        );
        v.acked(consumer, 1);
        seen
    }

    /// (lost, duplicated, out of order)
    fn faults(verdict: &Verdict) -> (u64, u64, u64) {
        (verdict.lost, verdict.duplicated, verdict.out_of_order)
    }

    #[test]
    fn a_run_in_which_all_is_well_has_no_violation() {
        let verdict = run(1_000, &(0..1_000).collect::<Vec<_>>());
        assert_eq!(verdict.violations(), Vec::<String>::new());
        assert_eq!(
            (verdict.published, verdict.delivered, verdict.acked),
            (1_000, 1_000, 1_000)
        );
    }

    #[test]
    fn a_lost_message_is_noticed_at_the_start_in_the_middle_and_at_the_end() {
        for lost in [0, 1, 63, 64, 65, 127, 128, 129, 998, 999] {
            let delivered: Vec<u64> = (0..1_000).filter(|&s| s != lost).collect();
            let verdict = run(1_000, &delivered);
            assert_eq!(faults(&verdict), (1, 0, 0), "lost {lost}");
            assert!(verdict.violations()[0].contains("1 messages lost (worst: s)"));
        }
        assert_eq!(faults(&run(10, &[])), (10, 0, 0));
    }

    #[test]
    fn a_doubled_message_is_noticed_whether_it_comes_at_once_or_much_later() {
        for doubled in [0, 1, 63, 64, 65, 500, 999] {
            let mut delivered: Vec<u64> = (0..1_000).collect();
            delivered.push(doubled);
            assert_eq!(faults(&run(1_000, &delivered)), (0, 1, 0), "late {doubled}");
            let mut delivered: Vec<u64> = (0..1_000).collect();
            delivered.insert(doubled as usize, doubled);
            assert_eq!(
                faults(&run(1_000, &delivered)),
                (0, 1, 0),
                "at once {doubled}"
            );
        }
    }

    #[test]
    fn doubled_above_a_gap_is_noticed_as_well_as_the_gap() {
        let mut delivered: Vec<u64> = (0..300).filter(|&s| s != 10).collect();
        delivered.extend([200, 11, 299, 9]);
        assert_eq!(faults(&run(300, &delivered)), (1, 4, 0));
    }

    #[test]
    fn two_messages_that_changed_places_are_out_of_order_and_not_lost() {
        for first in [0_usize, 62, 63, 64, 500, 998] {
            let mut delivered: Vec<u64> = (0..1_000).collect();
            delivered.swap(first, first + 1);
            assert_eq!(faults(&run(1_000, &delivered)), (0, 0, 1), "at {first}");
        }
        let reversed: Vec<u64> = (0..200).rev().collect();
        assert_eq!(faults(&run(200, &reversed)), (0, 0, 199));
    }

    #[test]
    fn what_nobody_published_is_noticed() {
        let mut verifier = Verifier::new(2, 2);
        let subscription = verifier.add_subscription("s", 0..1);
        let consumer = verifier.add_consumer(subscription);
        verifier.published(0, 1);
        verifier.published(1, 1);
        verifier.granted(consumer, 100);
        for (producer, key, sequence) in
            [(0, 0, 1), (0, 0, u64::MAX), (1, 1, 0), (9, 0, 0), (0, 9, 0)]
        {
            let seen = deliver(&mut verifier, consumer, producer, key, sequence);
            assert_eq!(seen, Seen::Foreign, "{producer} {key} {sequence}");
        }
        verifier.delivered_entry(consumer, 1);
        assert_eq!(verifier.delivered(consumer, None), Seen::Foreign);
        assert_eq!(faults(&verifier.verdict()), (1, 6, 0));
    }

    #[test]
    fn an_overrun_within_an_entry_is_allowed_and_one_message_more_is_not() {
        for (granted, violation) in [(1, false), (0, true)] {
            let mut verifier = Verifier::new(1, 1);
            let subscription = verifier.add_subscription("s", 0..1);
            let consumer = verifier.add_consumer(subscription);
            verifier.published(0, 10);
            verifier.granted(consumer, granted);
            verifier.delivered_entry(consumer, 10);
            // Granting later does not undo it.
            verifier.granted(consumer, 1_000);
            let verdict = verifier.verdict();
            assert_eq!(verdict.permit_overrun_max, 10 - granted);
            let noticed = verdict
                .violations()
                .iter()
                .any(|v| v.contains("beyond its permits"));
            assert_eq!(noticed, violation);
        }
    }

    #[test]
    fn what_was_delivered_and_not_acked_is_noticed() {
        let mut verifier = Verifier::new(1, 1);
        let subscription = verifier.add_subscription("s", 0..1);
        let consumer = verifier.add_consumer(subscription);
        verifier.published(0, 1);
        verifier.granted(consumer, 1);
        deliver(&mut verifier, consumer, 0, 0, 0);
        verifier.published(0, 1);
        verifier.delivered_entry(consumer, 1);
        assert_eq!(verifier.outstanding(), 1);
        let header = Header {
            producer: 0,
            key: 0,
            sequence: 1,
            intended_ns: 0,
        };
        assert_eq!(verifier.delivered(consumer, Some(header)), Seen::InOrder);
        let violations = verifier.verdict().violations();
        assert!(
            violations
                .iter()
                .any(|v| v.contains("1 messages not acked")),
            "{violations:?}"
        );
    }

    #[test]
    fn an_ack_that_the_engine_did_not_take_is_noticed() {
        let mut verifier = Verifier::new(1, 1);
        let subscription = verifier.add_subscription("s", 0..1);
        let consumer = verifier.add_consumer(subscription);
        verifier.granted(consumer, 3);
        for sequence in 0..3 {
            verifier.published(0, 1);
            deliver(&mut verifier, consumer, 0, 0, sequence);
        }
        verifier.engine_acked("another", 0);
        assert_eq!(verifier.verdict().violations(), Vec::<String>::new());
        verifier.engine_acked("s", 2);
        assert_eq!(
            verifier.verdict().violations(),
            ["1 messages not acked (worst: s)"]
        );
    }

    #[test]
    fn damaged_content_counts_as_lost() {
        let mut verifier = Verifier::new(1, 1);
        let subscription = verifier.add_subscription("s", 0..1);
        let consumer = verifier.add_consumer(subscription);
        verifier.published(0, 1);
        verifier.granted(consumer, 1);
        deliver(&mut verifier, consumer, 0, 0, 0);
        verifier.damaged(consumer);
        assert_eq!(verifier.verdict().lost, 1);
    }

    #[test]
    fn every_subscription_must_be_given_every_message() {
        let mut verifier = Verifier::new(1, 1);
        let consumers: Vec<usize> = ["a", "b"]
            .into_iter()
            .map(|name| {
                let subscription = verifier.add_subscription(name, 0..1);
                verifier.add_consumer(subscription)
            })
            .collect();
        verifier.published(0, 1);
        consumers.iter().for_each(|&c| verifier.granted(c, 10));
        deliver(&mut verifier, consumers[0], 0, 0, 0);
        let verdict = verifier.verdict();
        assert_eq!(
            (verdict.expected, verdict.delivered, verdict.lost),
            (2, 1, 1)
        );
        assert_eq!(verdict.worst_subscription.as_deref(), Some("b"));
    }

    #[test]
    fn consumers_of_a_shared_subscription_may_interleave_but_each_sees_rising_sequences() {
        let mut verifier = Verifier::new(1, 1);
        let subscription = verifier.add_subscription("s", 0..1);
        let (a, b) = (
            verifier.add_consumer(subscription),
            verifier.add_consumer(subscription),
        );
        (0..6).for_each(|_| verifier.published(0, 1));
        verifier.granted(a, 10);
        verifier.granted(b, 10);
        for (consumer, sequence) in [(a, 3), (b, 0), (b, 1), (a, 4), (b, 5)] {
            assert_eq!(
                deliver(&mut verifier, consumer, 0, 0, sequence),
                Seen::InOrder
            );
        }
        assert_eq!(deliver(&mut verifier, a, 0, 0, 2), Seen::OutOfOrder);
        assert_eq!(faults(&verifier.verdict()), (0, 0, 1));
    }

    #[test]
    fn keys_are_ordered_each_for_itself() {
        let mut verifier = Verifier::new(1, 2);
        let subscription = verifier.add_subscription("s", 0..1);
        let consumer = verifier.add_consumer(subscription);
        (0..4).for_each(|_| verifier.published(0, 1));
        verifier.granted(consumer, 10);
        assert_eq!(deliver(&mut verifier, consumer, 0, 0, 2), Seen::InOrder);
        assert_eq!(deliver(&mut verifier, consumer, 0, 1, 1), Seen::InOrder);
        assert_eq!(deliver(&mut verifier, consumer, 0, 0, 0), Seen::OutOfOrder);
        assert_eq!(deliver(&mut verifier, consumer, 0, 1, 3), Seen::InOrder);
    }

    #[test]
    fn runs_are_counted_as_their_messages_one_by_one_would_be() {
        for seed in 1..300_u64 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mut random = |below: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % below
            };
            let published = 1 + random(200);
            let make = || {
                let mut verifier = Verifier::new(1, 1);
                let subscription = verifier.add_subscription("s", 0..1);
                let consumer = verifier.add_consumer(subscription);
                verifier.published(0, published);
                verifier.granted(consumer, 1 << 40);
                verifier
            };
            let (mut by_run, mut one_by_one) = (make(), make());
            let mut next = 0;
            for _ in 0..random(40) {
                // Mostly where the last one ended; else anywhere, also beyond what was published.
                let first = if random(4) > 0 {
                    next
                } else {
                    random(published + 5)
                };
                let count = 1 + random(30);
                next = first + count;
                let header = |sequence| Header {
                    producer: 0,
                    key: 0,
                    sequence,
                    intended_ns: 0,
                };
                for verifier in [&mut by_run, &mut one_by_one] {
                    verifier.delivered_entry(0, count);
                    verifier.acked(0, count);
                }
                by_run.delivered_run(0, header(first), count);
                (first..next).for_each(|s| _ = one_by_one.delivered(0, Some(header(s))));
            }
            assert_eq!(by_run.verdict(), one_by_one.verdict(), "seed {seed}");
        }
    }

    #[test]
    fn merging_parts_keeps_the_overrun_that_breaks_the_rule() {
        let fine = Verdict {
            permit_overrun_max: 99,
            permit_overrun_allowed: 99,
            ..Verdict::default()
        };
        let broken = Verdict {
            permit_overrun_max: 1,
            permit_overrun_allowed: 0,
            ..Verdict::default()
        };
        for (mut first, second) in [(fine.clone(), broken.clone()), (broken, fine)] {
            first.merge(&second);
            assert_eq!(first.violations().len(), 1);
        }
    }
}
