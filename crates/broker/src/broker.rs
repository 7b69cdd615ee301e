//! The parts of a shard's core, and which of them an event goes to. Rules live in the parts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use pelton_storage::{Durability, Log, LogEvent, Ticket, TopicSlot};

use crate::alarms::{Sleeper, WallAlarms};
use crate::dead_letter::DeadLetters;
use crate::meta::MetaWaits;
use crate::producers::Producer;
use crate::receipts::ReceiptBook;
use crate::seek::SeekWait;
use crate::subscription::{Consumer, Subscription};
use crate::topic::Topic;
use crate::unacked::Freed;
use crate::{
    ConsumerId, Effect, Event, Handled, LogState, Now, Policy, ProducerId, Reply, Request,
    RequestError, RequestId,
};

/// What a core is told about the engine around it.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of this shard: part of the durable ids that it gives out.
    pub shard: u32,
    /// Whether there is a directory; without one only memory topics can be opened.
    pub durable: bool,
}

/// Index of a subscription in [`Broker`]; reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SubIndex(pub(crate) u32);

/// The core of one shard. Not `Sync` by use: one owner calls it.
#[derive(Debug)]
pub struct Broker {
    pub(crate) options: Options,
    /// Of topics that have none of their own.
    pub(crate) default_policy: Arc<Policy>,
    pub(crate) log: Log,
    pub(crate) now: Now,
    pub(crate) topics: Vec<Option<Topic>>,
    pub(crate) names: BTreeMap<Box<str>, u32>,
    /// Topic of each slot of the log.
    pub(crate) by_slot: Vec<u32>,
    pub(crate) subs: Vec<Option<Subscription>>,
    pub(crate) free_subs: Vec<u32>,
    pub(crate) producers: Vec<Option<Producer>>,
    pub(crate) consumers: Vec<Option<Consumer>>,
    pub(crate) run_queue: VecDeque<SubIndex>,
    /// Topics whose subscriptions were woken by a publish of this turn.
    pub(crate) woken: Vec<u32>,
    /// Subscriptions with acks to record, and topics to trim, at the end of the turn.
    pub(crate) acked: Vec<SubIndex>,
    pub(crate) to_trim: Vec<u32>,
    /// Topics in memory alone that may keep what is acked.
    pub(crate) kept_in_memory: BTreeSet<u32>,
    /// Topics whose backlog is too large for their policy, to be made smaller.
    pub(crate) to_evict: Vec<u32>,
    /// Subscriptions that found no free read buffer.
    pub(crate) starved: Vec<SubIndex>,
    /// Who may get more since something was acked or came back.
    pub(crate) freed: Freed,
    /// When a subscription has something to do though nothing happens, monotonic nanoseconds.
    alarms: BTreeSet<(u64, SubIndex)>,
    /// The same by the wall clock.
    pub(crate) wall_alarms: WallAlarms,
    pub(crate) dead_letters: DeadLetters,
    pub(crate) receipts: ReceiptBook,
    pub(crate) effects: VecDeque<Effect>,
    pub(crate) meta: MetaWaits,
    pub(crate) flushes: Vec<Flush>,
    /// In their order.
    pub(crate) seeks: Vec<SeekWait>,
    pub(crate) poisoned: Option<String>,
    /// Since when, monotonic nanoseconds.
    pub(crate) poisoned_ns: u64,
    pub(crate) next_serial: u32,
    pub(crate) next_key: u64,
    closing: bool,
    /// Acks and nacks that named nothing that exists.
    pub(crate) acks_ignored: u64,
}

/// A request that waits until what it appended, or the acks before it, are durable.
#[derive(Debug)]
pub(crate) struct Flush {
    pub(crate) id: RequestId,
    pub(crate) ticket: Ticket,
    pub(crate) durability: Durability,
}

impl Broker {
    /// A core without topics over an open log.
    #[must_use]
    pub fn new(log: Log, options: Options) -> Self {
        Self {
            options,
            default_policy: Arc::default(),
            log,
            now: Now::default(),
            topics: Vec::new(),
            names: BTreeMap::new(),
            by_slot: Vec::new(),
            subs: Vec::new(),
            free_subs: Vec::new(),
            producers: Vec::new(),
            consumers: Vec::new(),
            run_queue: VecDeque::new(),
            woken: Vec::new(),
            acked: Vec::new(),
            to_trim: Vec::new(),
            kept_in_memory: BTreeSet::new(),
            to_evict: Vec::new(),
            starved: Vec::new(),
            freed: Freed::default(),
            alarms: BTreeSet::new(),
            wall_alarms: WallAlarms::default(),
            dead_letters: DeadLetters::default(),
            receipts: ReceiptBook::default(),
            effects: VecDeque::new(),
            meta: MetaWaits::default(),
            flushes: Vec::new(),
            seeks: Vec::new(),
            poisoned: None,
            poisoned_ns: 0,
            next_serial: 1,
            next_key: 1,
            closing: false,
            acks_ignored: 0,
        }
    }

    /// Takes one event. Cheap events (publish, ack, nack, grant) leave their consequences to the
    /// next [`Event::Tick`], so a turn pays for dispatch and commit once.
    pub fn handle(&mut self, event: Event<'_>, now: Now) -> Handled {
        self.now = now;
        match event {
            Event::Publish { producer, entry } => return self.publish(producer, entry),
            Event::Ack { consumer, position } => self.ack(consumer, position),
            Event::AckRun {
                consumer,
                first,
                entries,
            } => self.ack_run(consumer, first, entries),
            Event::AckBatch {
                consumer,
                position,
                still,
            } => self.ack_batch(consumer, position, still),
            Event::AckCumulative {
                consumer,
                position,
                still,
            } => self.ack_cumulative(consumer, position, still),
            Event::Nack {
                consumer,
                position,
                delay_ns,
            } => self.nack(consumer, position, delay_ns),
            Event::Release { consumer, position } => self.release(consumer, position),
            Event::Reject { consumer, position } => self.reject(consumer, position),
            Event::NackAll { consumer } => self.nack_all(consumer),
            Event::Granted { consumer } => self.granted(consumer),
            Event::Writable { consumer, writable } => self.set_writable(consumer, writable),
            Event::Request { id, request } => self.request(id, request),
            Event::Disk(done) => {
                self.log.on_done(done);
                self.drain_log();
            }
            Event::Meta(done) => self.meta_done(done),
            Event::DeadLettered { token, stored } => self.dead_lettered(token, stored),
            Event::Tick => self.tick(),
        }
        Handled::Taken
    }

    /// The next thing to carry out, until `None`.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects
            .pop_front()
            .or_else(|| self.log.poll_op().map(Effect::Disk))
    }

    /// When the core wants a turn although nothing happens, in monotonic nanoseconds.
    #[must_use]
    pub fn next_deadline(&self) -> Option<u64> {
        let alarm = self.alarms.first().map(|&(at_ns, _)| at_ns);
        let by_wall = self.wall_alarms.next_ns(self.now);
        let retry = self.dead_letters.next_due_ns();
        [self.log.next_deadline(), alarm, by_wall, retry]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether dispatchers, acks to record or topics to trim wait for a tick: take another turn
    /// without sleeping.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !(self.run_queue.is_empty() && self.acked.is_empty() && self.to_trim.is_empty())
    }

    /// Orderly stop: from now on publishes are refused; what was taken is committed and marked.
    pub fn close(&mut self) {
        self.closing = true;
        self.record_acks();
        self.log.close_mark();
    }

    /// Nothing is owed: no receipt, no metadata, no commit or read in flight.
    #[must_use]
    pub fn quiet(&self) -> bool {
        self.receipts.is_empty() && self.meta.is_empty() && self.log.idle()
    }

    /// Whether a write or sync failed: what was in it may or may not be stored.
    #[must_use]
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.is_some()
    }

    /// The log, for its statistics.
    #[must_use]
    pub fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn closing(&self) -> bool {
        self.closing
    }

    /// End of a turn: one pass per dispatcher that was queued (rule D33), then records, then one
    /// commit for all of it.
    fn tick(&mut self) {
        self.ring_alarms();
        while let Some(index) = self.woken.pop() {
            self.wake_topic(index);
            if let Some(topic) = self.topics[index as usize].as_mut() {
                topic.woken = false;
            }
        }
        for _ in 0..self.run_queue.len() {
            if let Some(index) = self.run_queue.pop_front() {
                self.dispatch(index);
            }
        }
        if !self.dead_letters.is_empty() {
            self.send_letters();
        }
        if !self.to_evict.is_empty() {
            self.evict();
        }
        self.record_acks();
        self.trim();
        self.receipts.flush_ready(&mut self.effects);
        self.log.flush_turn(self.now.mono_ns);
        self.receipts.next_turn();
        self.drain_log();
    }

    /// One pass of a dispatcher, as its topic wants it. A seek that ends queues it again.
    fn dispatch(&mut self, index: SubIndex) {
        let Some(sub) = self.subs[index.0 as usize].as_mut() else {
            return;
        };
        sub.wanted = false;
        let (topic, durable, seeks) = (sub.topic, sub.durable, sub.seeks);
        if !durable {
            self.mark_trim(topic);
        }
        if seeks > 0 {
            return;
        }
        match self.topic_at(topic).durability {
            Durability::NonPersistent => self.hand_out(index),
            _ => self.pass(index),
        }
    }

    /// Takes over what the log has to say: what became durable, was read, or failed.
    fn drain_log(&mut self) {
        while let Some(event) = self.log.poll_event() {
            match event {
                LogEvent::Ready(slot) | LogEvent::Fetched(slot) => self.wake_slot(slot),
                LogEvent::DiskFull(full) => {
                    let state = if full {
                        LogState::DiskFull
                    } else {
                        LogState::Open
                    };
                    self.effects.push_back(Effect::LogState(state));
                }
                LogEvent::Room => {
                    for index in std::mem::take(&mut self.starved) {
                        self.want(index);
                    }
                }
                LogEvent::SegmentAllocated(_) | LogEvent::Quarantined(_) => {} // counted by the log
                LogEvent::Poisoned { error } => {
                    let error = error.to_string();
                    self.receipts
                        .settle(|d| self.log.done_through(d), &mut self.effects);
                    // Before the receipts that it is the reason of.
                    let state = LogState::Poisoned(error.clone());
                    self.effects.push_back(Effect::LogState(state));
                    self.receipts.fail(&mut self.effects);
                    self.settle_seeks();
                    self.fail_seeks(&error);
                    for flush in self.flushes.drain(..) {
                        let reply = Err(RequestError::Poisoned {
                            error: error.clone(),
                        });
                        self.effects.push_back(Effect::Reply {
                            id: flush.id,
                            reply,
                        });
                    }
                    self.poisoned = Some(error);
                    self.poisoned_ns = self.now.mono_ns;
                }
            }
        }
        self.receipts.settle(
            |durability| self.log.done_through(durability),
            &mut self.effects,
        );
        self.settle_flushes();
        if !self.seeks.is_empty() {
            self.settle_seeks();
        }
    }

    fn settle_flushes(&mut self) {
        let (log, effects) = (&self.log, &mut self.effects);
        self.flushes.retain(|flush| {
            let done = flush.ticket <= log.done_through(flush.durability);
            if done {
                effects.push_back(Effect::Reply {
                    id: flush.id,
                    reply: Ok(Reply::Done),
                });
            }
            !done
        });
    }

    fn request(&mut self, id: RequestId, request: Request) {
        let answered = match request {
            Request::OpenTopic { name, durability } => self.open_topic(id, name, durability),
            Request::DeleteTopic { name } => self.delete_topic(id, &name),
            Request::OpenProducer(asked) => self.open_producer(id, *asked),
            Request::CloseProducer { producer } => {
                self.close_producer(producer);
                Ok(Some(Reply::Done))
            }
            Request::Subscribe(asked) => self.subscribe(id, *asked),
            Request::CloseConsumer { consumer } => {
                self.close_consumer(consumer);
                Ok(Some(Reply::Done))
            }
            Request::FlushAcks { consumer } => self.flush_acks(id, consumer),
            Request::Unsubscribe {
                topic,
                subscription,
            } => self.unsubscribe(id, topic, &subscription),
            Request::Seek {
                topic,
                subscription,
                to,
            } => self.seek(id, topic, &subscription, &to),
            Request::LastPosition {
                topic,
                subscription,
            } => self.last_position(topic, &subscription).map(Some),
            Request::Terminate { topic } => self.terminate(id, topic),
            Request::SetPolicy { topic, policy } => self.set_policy(id, topic, *policy),
            Request::DeadLetter(letter) => self.take_letter(id, *letter),
            Request::Stats => Ok(Some(Reply::Stats(Box::new(self.stats())))),
            Request::Explain { topic } => Ok(Some(Reply::Explain(self.explain(topic)))),
        };
        let reply = match answered {
            Ok(None) => return, // its metadata or its commit answers
            Ok(Some(reply)) => Ok(reply),
            Err(error) => Err(error),
        };
        self.effects.push_back(Effect::Reply { id, reply });
    }

    /// Queues a dispatcher for the next tick: the sticky `wanted` bit of rule D57.
    pub(crate) fn want(&mut self, index: SubIndex) {
        if let Some(sub) = self.subs[index.0 as usize].as_mut()
            && !sub.wanted
        {
            sub.wanted = true;
            self.run_queue.push_back(index);
        }
    }

    /// Takes note of when the subscription has something to do.
    pub(crate) fn arm(&mut self, index: SubIndex) {
        let sub = self.sub_mut(index);
        let next_ns = sub.next_due_ns().unwrap_or(u64::MAX);
        let armed_ns = std::mem::replace(&mut sub.armed_ns, next_ns);
        if next_ns != armed_ns {
            self.disarm(index, armed_ns);
            if next_ns != u64::MAX {
                self.alarms.insert((next_ns, index));
            }
        }
    }

    pub(crate) fn disarm(&mut self, index: SubIndex, armed_ns: u64) {
        if armed_ns != u64::MAX {
            self.alarms.remove(&(armed_ns, index));
        }
    }

    fn ring_alarms(&mut self) {
        while let Some(&(at_ns, index)) = self.alarms.first()
            && at_ns <= self.now.mono_ns
        {
            self.alarms.pop_first();
            self.sub_mut(index).armed_ns = u64::MAX;
            self.on_alarm(index);
        }
        if !self.wall_alarms.is_empty() {
            self.ring_wall_alarms();
        }
    }

    #[cold]
    fn ring_wall_alarms(&mut self) {
        while let Some(who) = self.wall_alarms.pop_due(self.now.wall_ms) {
            match who {
                Sleeper::Sub(index) => {
                    self.sub_mut(index).armed_later.rung();
                    self.end_later(index);
                }
                Sleeper::Topic(topic) => self.sweep(topic),
                Sleeper::Kept(topic) => {
                    self.topic_mut(topic).kept.armed.rung();
                    self.mark_trim(topic);
                }
                Sleeper::Quota(topic) => {
                    self.topic_mut(topic).quota.armed.rung();
                    self.mark_evict(topic);
                }
            }
        }
    }

    fn wake_slot(&mut self, slot: TopicSlot) {
        if let Some(&topic) = self
            .by_slot
            .get(slot.0 as usize)
            .filter(|&&topic| topic != u32::MAX)
        {
            self.wake_topic(topic);
            // What was acked, or skipped by every subscription, before it was stored.
            let subs = self.topics[topic as usize].iter().flat_map(|t| &t.subs);
            let first = self.log.first(slot);
            if subs
                .into_iter()
                .all(|&sub| self.sub(sub).window.floor() > first)
            {
                self.mark_trim(topic);
            }
        }
    }

    fn wake_topic(&mut self, topic: u32) {
        let subs = self.topics[topic as usize]
            .as_ref()
            .map_or(0, |topic| topic.subs.len());
        for at in 0..subs {
            if let Some(index) = self.topics[topic as usize]
                .as_ref()
                .map(|topic| topic.subs[at])
            {
                self.want(index);
            }
        }
        if subs == 0 {
            self.mark_trim(topic); // nobody's pass does
        }
    }

    pub(crate) fn mark_trim(&mut self, topic: u32) {
        if let Some(state) = self.topics[topic as usize].as_mut()
            && !state.trim
        {
            state.trim = true;
            self.to_trim.push(topic);
        }
    }

    pub(crate) fn producer(&self, id: ProducerId) -> Option<&Producer> {
        let producer = self.producers.get(id.slot as usize)?.as_ref()?;
        (producer.serial == id.serial).then_some(producer)
    }

    pub(crate) fn consumer(&self, id: ConsumerId) -> Option<&Consumer> {
        let consumer = self.consumers.get(id.slot as usize)?.as_ref()?;
        (consumer.serial == id.serial).then_some(consumer)
    }

    /// As [`Broker::consumer`], also by an id that it had before a seek.
    pub(crate) fn attachment(&self, id: ConsumerId) -> Option<&Consumer> {
        let consumer = self.consumers.get(id.slot as usize)?.as_ref()?;
        consumer.had(id.serial).then_some(consumer)
    }

    /// A number no attachment of this shard had before.
    pub(crate) fn serial(&mut self) -> u32 {
        let serial = self.next_serial;
        self.next_serial = serial.wrapping_add(1);
        serial
    }
}
