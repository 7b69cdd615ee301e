//! A subscription: its cursor, what it owes again, and its consumers.

use std::collections::BTreeMap;

use pelton_flow::{Account, Average};
use pelton_storage::{CursorState, Durability, Log, Position, SubKey, Ticket, TopicSlot};

use crate::ack_set::AckSet;
use crate::alarms::{Armed, Sleeper};
use crate::broker::SubIndex;
use crate::expiry::Gone;
use crate::meta::Undo;
use crate::name::check_name;
use crate::redelivery::{Redelivery, Return};
use crate::replay::Replay;
use crate::rotation::Rotation;
use crate::selector::Selector;
use crate::timers::Timers;
use crate::topic::put;
use crate::unacked::Caps;
use crate::window::{State, Window};
use crate::{
    Broker, ConsumerId, InitialPosition, Reply, RequestError, RequestId, Subscribe,
    SubscriptionKind, SubscriptionRecord, TopicId,
};

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) name: Box<str>,
    pub(crate) key: SubKey,
    pub(crate) topic: u32,
    pub(crate) slot: TopicSlot,
    pub(crate) kind: SubscriptionKind,
    /// Kept when its last consumer leaves, and holds back what it has not acked.
    pub(crate) durable: bool,
    /// Seeks that are not yet durable: nothing is handed over or acked meanwhile.
    pub(crate) seeks: u32,
    /// The lowest entry that one of them wants.
    pub(crate) sought: u64,
    /// Not durable, after a seek: when it ends if no consumer has come back, monotonic nanoseconds.
    pub(crate) waits_until_ns: Option<u64>,
    pub(crate) window: Window,
    /// First entry that was never handed over.
    pub(crate) read: u64,
    pub(crate) replay: Replay,
    /// What is left of entries that are acked in part.
    pub(crate) partial: BTreeMap<u64, AckSet>,
    /// How often an entry was asked for again: what consumers see (rule D109). Only entries that were.
    pub(crate) redeliveries: BTreeMap<u64, Redelivery>,
    /// Entries in [`State::Delayed`], by the monotonic nanosecond at which they are owed again.
    pub(crate) delays: Timers,
    /// Since when there is any, monotonic nanoseconds.
    pub(crate) delayed_ns: u64,
    /// When the broker will look at `delays`; `u64::MAX` if not at all.
    pub(crate) armed_ns: u64,
    /// Entries in [`State::Later`], by the Unix millisecond at which they are due.
    pub(crate) later: Timers,
    /// When the broker will look at `later`.
    pub(crate) armed_later: Armed,
    /// What is before this was swept by the policy's deadline.
    pub(crate) swept: u64,
    pub(crate) gone: Gone,
    /// Port slots of the consumers, in order of arrival.
    pub(crate) consumers: Vec<u32>,
    /// Who gets the next entry.
    pub(crate) selector: Selector,
    /// The sticky bit of rule D57: queued for a pass.
    pub(crate) wanted: bool,
    pub(crate) caps: Caps,
    /// At its unacked cap: nothing that was never sent is sent (rule D105).
    pub(crate) blocked: bool,
    /// Messages handed over and not acked.
    pub(crate) unacked: u64,
    pub(crate) delivered_messages: u64,
    pub(crate) acked_messages: u64,
    /// Messages of the topic that are no backlog of this subscription and were not acked in this run:
    /// they came before it, were passed over, or were acked earlier. A seek back makes it less than 0.
    pub(crate) skipped_messages: i64,
    /// Monotonic nanoseconds: of the last hand-over, or of its beginning; since when it has no
    /// consumer, and since when the last seek is on its way.
    pub(crate) moved_ns: u64,
    pub(crate) alone_ns: u64,
    pub(crate) seek_ns: u64,
    /// Since when the next entry is to be read.
    pub(crate) awaits_ns: Option<u64>,
    pub(crate) jumped_messages: u64,
    pub(crate) dropped_messages: u64,
    pub(crate) damaged_entries: u64,
    /// Since when there is any.
    pub(crate) damaged_ns: u64,
    pub(crate) first_damaged: Option<Position>,
    /// Acked since the last record, behind the floor: (first ordinal, entries).
    pub(crate) new_acks: Vec<(u64, u64)>,
    /// Acked in part since the last record.
    pub(crate) new_partial: Vec<u64>,
    /// Scratch: the same as positions.
    pub(crate) ranges: Vec<(Position, u64)>,
    pub(crate) recorded_floor: u64,
    pub(crate) ack_queued: bool,
    pub(crate) ack_ticket: Option<Ticket>,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) serial: u32,
    /// Its serial before the first seek that began it again.
    first_serial: u32,
    pub(crate) name: String,
    pub(crate) sub: SubIndex,
    pub(crate) priority_level: i32,
    pub(crate) account: Account,
    /// Its selector offers it entries.
    pub(crate) offered: bool,
    /// It has no permits, and its next grant says so.
    pub(crate) parked: bool,
    /// At its unacked cap.
    pub(crate) blocked: bool,
    /// There is room on the way to it.
    writable: bool,
    /// It was told that nothing more comes.
    pub(crate) at_end: bool,
    pub(crate) unacked: u64,
    pub(crate) average: Average,
    /// When it got the last entry, or attached; monotonic nanoseconds.
    pub(crate) moved_ns: u64,
}

impl Consumer {
    fn new(
        serial: u32,
        sub: SubIndex,
        name: String,
        priority_level: i32,
        account: Account,
        now_ns: u64,
    ) -> Self {
        Self {
            serial,
            first_serial: serial,
            name,
            sub,
            priority_level,
            account,
            offered: false,
            parked: false,
            blocked: false,
            writable: true,
            at_end: false,
            unacked: 0,
            average: Average::default(),
            moved_ns: now_ns,
        }
    }

    /// A seek ends the attachment, which goes on in the same port as a new one. Returns the serial
    /// it had.
    pub(crate) fn begin_again(&mut self, serial: u32, account: Account, now_ns: u64) -> u32 {
        let _revoked = self.account.revoke();
        self.account = account;
        self.parked = false;
        self.blocked = false;
        self.writable = true;
        self.at_end = false;
        self.unacked = 0;
        self.average = Average::default();
        self.moved_ns = now_ns;
        std::mem::replace(&mut self.serial, serial)
    }

    /// Whether a serial is one of its own, of now or before a seek.
    pub(crate) fn had(&self, serial: u32) -> bool {
        let age = |serial: u32| serial.wrapping_sub(self.first_serial);
        age(serial) <= age(self.serial)
    }

    /// Whether it has asked for anything since the last seek, if there was one.
    fn came_back(&self) -> bool {
        self.serial == self.first_serial || self.account.granted() > 0
    }

    /// Whether it may get an entry now. One without permits is parked: its next grant is an event.
    pub(crate) fn may_go(&mut self) -> bool {
        if self.blocked || !self.writable {
            return false;
        }
        if self.account.available() > 0 || !self.account.park() {
            return true;
        }
        self.parked = true;
        false
    }
}

impl Subscription {
    pub(crate) fn new(
        name: String,
        key: SubKey,
        (topic, slot): (u32, TopicSlot),
        floor: u64,
        now_ns: u64,
    ) -> Self {
        Self {
            name: name.into(),
            key,
            topic,
            slot,
            kind: SubscriptionKind::Shared,
            durable: true,
            seeks: 0,
            sought: u64::MAX,
            waits_until_ns: None,
            window: Window::new(floor),
            read: floor,
            replay: Replay::default(),
            partial: BTreeMap::new(),
            redeliveries: BTreeMap::new(),
            delays: Timers::default(),
            delayed_ns: 0,
            armed_ns: u64::MAX,
            later: Timers::default(),
            armed_later: Armed::default(),
            swept: floor,
            gone: Gone::default(),
            consumers: Vec::new(),
            selector: Selector::Shared(Rotation::default()),
            wanted: false,
            caps: Caps::default(),
            blocked: false,
            unacked: 0,
            delivered_messages: 0,
            acked_messages: 0,
            skipped_messages: 0,
            moved_ns: now_ns,
            alone_ns: now_ns,
            seek_ns: 0,
            awaits_ns: None,
            jumped_messages: 0,
            dropped_messages: 0,
            damaged_entries: 0,
            damaged_ns: 0,
            first_damaged: None,
            new_acks: Vec::new(),
            new_partial: Vec::new(),
            ranges: Vec::new(),
            recorded_floor: floor,
            ack_queued: false,
            ack_ticket: None,
        }
    }

    /// When it has something to do though nothing happens.
    pub(crate) fn next_due_ns(&self) -> Option<u64> {
        let election = match &self.selector {
            Selector::Failover(election) => election.next_deadline_ns(),
            _ => None,
        };
        let alone = self.consumers.is_empty();
        let end = self.waits_until_ns.filter(|_| alone);
        [self.delays.next_due(), election, end]
            .into_iter()
            .flatten()
            .min()
    }

    /// The lowest entry that must not be removed yet, if it holds anything back.
    pub(crate) fn holds_from(&self) -> Option<u64> {
        let lowest = self.window.floor().min(self.sought);
        // What a queued pass is about to hand over waits for it.
        (self.durable || self.wanted).then_some(lowest)
    }

    /// Messages not yet acked, of a topic that so many were appended to.
    pub(crate) fn backlog_messages(&self, appended: u64) -> u64 {
        let done = self.skipped_messages + self.acked_messages.cast_signed();
        u64::try_from(appended.cast_signed() - done).unwrap_or(0)
    }

    pub(crate) fn record(&self) -> SubscriptionRecord {
        SubscriptionRecord {
            name: self.name.to_string(),
            key: self.key.0,
        }
    }

    /// Puts a fresh subscription where its recovered cursor says.
    pub(crate) fn restore(&mut self, cursor: &CursorState, log: &Log) {
        let slot = self.slot;
        if let Some(mark_delete) = cursor.mark_delete {
            let floor = log
                .ordinal_after(slot, mark_delete)
                .max(self.window.floor());
            for ordinal in self.window.floor()..floor {
                self.skipped_messages += i64::from(log.messages(slot, ordinal).unwrap_or(0));
            }
            self.window.skip_to(floor);
        }
        for ordinal in cursor
            .acked_positions()
            .filter_map(|position| log.ordinal(slot, position))
        {
            if self.window.ack(ordinal).0 != State::Acked {
                self.skipped_messages += i64::from(log.messages(slot, ordinal).unwrap_or(0));
            }
        }
        for (position, words) in &cursor.partial {
            let Some(ordinal) = log.ordinal(slot, *position) else {
                continue;
            };
            let messages = log.messages(slot, ordinal).unwrap_or(0);
            let set = AckSet::of(messages, words);
            if self.window.get(ordinal) != State::Acked && set.left() > 0 {
                self.skipped_messages += i64::from(messages - set.left());
                self.partial.insert(ordinal, set);
            }
        }
        self.read = self.window.floor();
        self.recorded_floor = self.window.floor();
    }
}

impl Broker {
    pub(crate) fn subscribe(
        &mut self,
        id: RequestId,
        asked: Subscribe,
    ) -> Result<Option<Reply>, RequestError> {
        let (topic, name) = (asked.topic, asked.subscription.clone());
        check_name("subscription", &name)?;
        if let Some(index) = self.find_sub(topic, &name)? {
            let sub = self.sub(index);
            let consumers = sub.consumers.len();
            let alone = sub.kind == SubscriptionKind::Exclusive || asked.kind != sub.kind;
            if consumers > 0 && !alone && !sub.selector.shares_keys_as(&asked.key_shared) {
                return Err(RequestError::KeySharedMode {
                    topic: self.topic_at(topic.0).name.to_string(),
                    subscription: name,
                });
            }
            if consumers > 0 && alone {
                return Err(RequestError::ConsumerBusy {
                    topic: self.topic_at(topic.0).name.to_string(),
                    subscription: name,
                    kind: sub.kind,
                    consumers,
                });
            }
            if sub.durable != asked.durable {
                return Err(RequestError::NotPossible {
                    what: "subscription",
                    name,
                    why: "exists and is of the other kind: one is durable, one is not",
                });
            }
            let reply = Reply::Consumer(self.attach(index, asked)?);
            return Ok(self.answer_after_meta(id, name, reply));
        }
        let durable = asked.durable;
        let index = self.create_subscription(topic, &name, asked.initial, durable);
        let attached = self.attach(index, asked);
        if attached.is_err() {
            self.undo_subscription(topic, &name);
        }
        let reply = Reply::Consumer(attached?);
        if !durable {
            return Ok(self.answer_after_meta(id, name, reply));
        }
        if !self.topic_at(topic.0).durability.is_stored() {
            return Ok(Some(reply));
        }
        self.write_record(id, topic.0, reply, Undo::Subscription(topic, name));
        Ok(None)
    }

    pub(crate) fn create_subscription(
        &mut self,
        topic: TopicId,
        name: &str,
        initial: InitialPosition,
        durable: bool,
    ) -> SubIndex {
        let key = SubKey(self.new_key());
        let state = self.topic_at(topic.0);
        let (slot, messages) = (state.slot, state.messages);
        let floor = match state.durability {
            Durability::NonPersistent => self.log.end(slot),
            _ => self.start_of(slot, &initial.into()).ordinal,
        };
        let now_ns = self.now.mono_ns;
        let mut sub = Subscription::new(name.to_owned(), key, (topic.0, slot), floor, now_ns);
        let backlog = self.log.backlog_messages(slot, floor);
        sub.skipped_messages = messages.saturating_sub(backlog).cast_signed();
        sub.durable = durable;
        if durable {
            // The starting point is durable too, or a crash would move it back: what lies before it
            // may be trimmed now and found again by the next recovery.
            let before = self.log.position_before(slot, floor);
            sub.ack_ticket = Some(self.log.open_sub(slot, key, before));
            // The first subscription may start behind entries that nobody waits for any more.
            self.mark_trim(topic.0);
        }
        let index = self.insert_sub(sub);
        self.look_at_quota(topic.0);
        if self.topic_at(topic.0).times.is_some() {
            self.list_times(topic.0); // what is over for others is not for this one
        }
        index
    }

    /// A subscription changes its kind only here, with nobody attached (rule D68).
    fn attach(&mut self, index: SubIndex, asked: Subscribe) -> Result<ConsumerId, RequestError> {
        let (serial, slot) = (self.serial(), asked.slot);
        let sub = self.subs[index.0 as usize].as_mut().expect("it was found");
        let topic = self.topics[sub.topic as usize]
            .as_ref()
            .expect("it has a topic");
        if sub.consumers.is_empty() {
            sub.selector = Selector::new(&asked, topic);
            sub.kind = asked.kind;
            if sub.kind.is_single() {
                sub.end_all_delays(&self.log);
            }
            sub.list_waiting(&self.log);
        }
        sub.selector
            .admit(&asked)
            .map_err(|why| RequestError::KeyRanges {
                topic: topic.name.to_string(),
                subscription: asked.subscription.clone(),
                why,
            })?;
        let caps = Caps::new(asked.kind, &topic.policy);
        let name = asked.consumer.clone();
        let (level, account) = (asked.priority_level, asked.account);
        let consumer = Consumer::new(serial, index, name, level, account, self.now.mono_ns);
        put(&mut self.consumers, slot, consumer);
        sub.consumers.push(slot);
        sub.waits_until_ns = None;
        let first = sub.consumers.len() == 1;
        let delays = topic.policy.delays(sub.kind);
        caps.apply(sub, &mut self.consumers);
        if first && !delays {
            self.heed_no_later(index);
        }
        self.joined(index, slot);
        self.look_for_end(index);
        Ok(ConsumerId { slot, serial })
    }

    /// Ends an attachment once, by identity (rules D15 and D113): what it held is owed again, its
    /// permits are revoked, debt included.
    pub(crate) fn close_consumer(&mut self, id: ConsumerId) {
        let Some(consumer) = self.attachment(id) else {
            return;
        };
        let (index, holds) = (consumer.sub, consumer.unacked > 0);
        let came_back = consumer.came_back();
        let sub = self.subs[index.0 as usize].as_mut().expect("attached");
        sub.consumers.retain(|&slot| slot != id.slot);
        if sub.consumers.is_empty() {
            sub.alone_ns = self.now.mono_ns;
        }
        if let Some(consumer) = self.consumers[id.slot as usize].as_mut() {
            sub.selector.remove(id.slot, consumer);
        }
        if holds {
            self.give_back_all(index, Some(id.slot), Return::Ended);
        }
        self.left(index, id.slot);
        if let Some(mut consumer) = self.consumers[id.slot as usize].take() {
            debug_assert_eq!(consumer.unacked, 0, "all it held went back");
            let _revoked = consumer.account.revoke();
        }
        self.wake_freed(index);
        self.want(index);
        let sub = self.sub(index);
        if !sub.durable && sub.consumers.is_empty() {
            self.left_alone(index, came_back);
        }
    }

    pub(crate) fn granted(&mut self, id: ConsumerId) {
        if self.attachment(id).is_none() {
            return;
        }
        let Some(consumer) = self.consumers[id.slot as usize].as_mut() else {
            return;
        };
        if std::mem::take(&mut consumer.parked) {
            let index = consumer.sub;
            self.offer(index, id.slot);
        }
    }

    pub(crate) fn set_writable(&mut self, id: ConsumerId, writable: bool) {
        if self.consumer(id).is_none() {
            return;
        }
        let Some(consumer) = self.consumers[id.slot as usize].as_mut() else {
            return;
        };
        consumer.writable = writable;
        if writable {
            let index = consumer.sub;
            self.offer(index, id.slot);
        }
    }

    /// A consumer that was passed over may get entries again.
    pub(crate) fn offer(&mut self, index: SubIndex, slot: u32) {
        let sub = self.subs[index.0 as usize].as_mut();
        let consumer = self.consumers[slot as usize].as_mut();
        if let (Some(sub), Some(consumer)) = (sub, consumer) {
            sub.selector.offer(slot, consumer);
            self.want(index);
        }
    }

    pub(crate) fn unsubscribe(
        &mut self,
        id: RequestId,
        topic: TopicId,
        name: &str,
    ) -> Result<Option<Reply>, RequestError> {
        let what = "subscription";
        let Some(index) = self.find_sub(topic, name)? else {
            return Err(RequestError::NotFound {
                what,
                name: name.to_owned(),
            });
        };
        let users = self.sub(index).consumers.len();
        if users > 0 {
            return Err(RequestError::InUse {
                what,
                name: name.to_owned(),
                users,
            });
        }
        let stored = self.topic_at(topic.0).durability.is_stored() && self.sub(index).durable;
        self.end_subscription(index);
        if !stored {
            return Ok(Some(Reply::Done));
        }
        self.write_record(id, topic.0, Reply::Done, Undo::Nothing);
        Ok(None)
    }

    /// Removes a subscription with whatever is attached to it.
    pub(crate) fn undo_subscription(&mut self, topic: TopicId, name: &str) {
        if let Ok(Some(index)) = self.find_sub(topic, name) {
            self.end_subscription(index);
        }
    }

    pub(crate) fn end_subscription(&mut self, index: SubIndex) {
        let Subscription {
            topic, slot, key, ..
        } = *self.sub(index);
        self.log.drop_sub(slot, key);
        self.topic_mut(topic).subs.retain(|&sub| sub != index);
        self.remove_sub(index);
        self.mark_trim(topic);
    }

    /// # Errors
    /// There is no such topic.
    pub(crate) fn find_sub(
        &self,
        topic: TopicId,
        name: &str,
    ) -> Result<Option<SubIndex>, RequestError> {
        let subs = &self.find_topic(topic)?.subs;
        Ok(subs
            .iter()
            .copied()
            .find(|&sub| *self.sub(sub).name == *name))
    }

    pub(crate) fn insert_sub(&mut self, sub: Subscription) -> SubIndex {
        let topic = sub.topic;
        let index = match self.free_subs.pop() {
            Some(index) => {
                self.subs[index as usize] = Some(sub);
                SubIndex(index)
            }
            None => {
                self.subs.push(Some(sub));
                SubIndex(u32::try_from(self.subs.len() - 1).expect("fewer than 2^32"))
            }
        };
        self.topic_mut(topic).subs.push(index);
        index
    }

    pub(crate) fn remove_sub(&mut self, index: SubIndex) {
        let Some(mut sub) = self.subs[index.0 as usize].take() else {
            return;
        };
        self.disarm(index, sub.armed_ns);
        self.dead_letters.forget(index);
        let who = Sleeper::Sub(index);
        self.wall_alarms.disarm(who, &mut sub.armed_later);
        for slot in sub.consumers {
            self.consumers[slot as usize] = None;
        }
        // A stale entry in the run queue or the list of acked ones finds nobody, or a newcomer
        // whose pass then has nothing to do.
        self.free_subs.push(index.0);
    }

    pub(crate) fn sub(&self, index: SubIndex) -> &Subscription {
        self.subs[index.0 as usize]
            .as_ref()
            .expect("an index in use names a subscription")
    }

    pub(crate) fn sub_mut(&mut self, index: SubIndex) -> &mut Subscription {
        self.subs[index.0 as usize]
            .as_mut()
            .expect("an index in use names a subscription")
    }
}
