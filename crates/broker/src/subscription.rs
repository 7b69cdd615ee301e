//! A subscription: its cursor, what it owes again, and its consumers.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use pelton_flow::{Account, Average, Messages};
use pelton_storage::{AckDelta, CursorState, Durability, Log, Position, SubKey, Ticket, TopicSlot};

use crate::broker::{AckFlush, SubIndex};
use crate::meta::Undo;
use crate::name::check_name;
use crate::replay::Replay;
use crate::topic::put;
use crate::window::{State, Window};
use crate::{
    Broker, ConsumerId, InitialPosition, Reply, RequestError, RequestId, SubscriptionKind,
    SubscriptionRecord, TopicId,
};

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) name: Box<str>,
    pub(crate) key: SubKey,
    pub(crate) topic: u32,
    pub(crate) kind: SubscriptionKind,
    pub(crate) window: Window,
    /// First entry that was never handed over.
    pub(crate) read: u64,
    pub(crate) replay: Replay,
    /// How often an entry was asked for again; only entries that were.
    pub(crate) redeliveries: BTreeMap<u64, u32>,
    /// Port slots of the consumers, in order of arrival.
    pub(crate) consumers: Vec<u32>,
    /// Those that are not parked, the next one in front (rule D77).
    pub(crate) rotation: VecDeque<u32>,
    /// Entries the one in front may still get in this turn of the rotation.
    pub(crate) turn_left: u64,
    /// The sticky bit of rule D57: queued for a pass.
    pub(crate) wanted: bool,
    /// Messages handed over and not acked.
    pub(crate) unacked: u64,
    pub(crate) delivered_messages: u64,
    pub(crate) acked_messages: u64,
    /// Messages of the topic that came before this subscription, or were acked in an earlier run.
    pub(crate) skipped_messages: u64,
    pub(crate) damaged_entries: u64,
    /// Acked since the last record, behind the floor: (first ordinal, entries).
    new_acks: Vec<(u64, u64)>,
    /// Scratch: the same as positions.
    ranges: Vec<(Position, u64)>,
    recorded_floor: u64,
    ack_queued: bool,
    ack_ticket: Option<Ticket>,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) serial: u32,
    pub(crate) name: String,
    pub(crate) sub: SubIndex,
    pub(crate) account: Account,
    pub(crate) parked: bool,
    pub(crate) unacked: u64,
    pub(crate) average: Average,
}

impl Consumer {
    pub(crate) fn new(name: String, account: Account) -> Self {
        let average = Average::default();
        Self {
            serial: 0,
            name,
            sub: SubIndex(0),
            account,
            parked: false,
            unacked: 0,
            average,
        }
    }
}

impl Subscription {
    pub(crate) fn new(name: String, key: SubKey, topic: u32, floor: u64) -> Self {
        Self {
            name: name.into(),
            key,
            topic,
            kind: SubscriptionKind::Shared,
            window: Window::new(floor),
            read: floor,
            replay: Replay::default(),
            redeliveries: BTreeMap::new(),
            consumers: Vec::new(),
            rotation: VecDeque::new(),
            turn_left: 0,
            wanted: false,
            unacked: 0,
            delivered_messages: 0,
            acked_messages: 0,
            skipped_messages: 0,
            damaged_entries: 0,
            new_acks: Vec::new(),
            ranges: Vec::new(),
            recorded_floor: floor,
            ack_queued: false,
            ack_ticket: None,
        }
    }

    pub(crate) fn record(&self) -> SubscriptionRecord {
        SubscriptionRecord {
            name: self.name.to_string(),
            key: self.key.0,
        }
    }

    /// Puts a fresh subscription where its recovered cursor says.
    pub(crate) fn restore(&mut self, cursor: &CursorState, slot: TopicSlot, log: &Log) {
        if let Some(mark_delete) = cursor.mark_delete {
            let floor = log
                .ordinal_after(slot, mark_delete)
                .max(self.window.floor());
            for ordinal in self.window.floor()..floor {
                self.skipped_messages += u64::from(log.messages(slot, ordinal).unwrap_or(0));
            }
            self.window.skip_to(floor);
        }
        for ordinal in cursor
            .acked_positions()
            .filter_map(|position| log.ordinal(slot, position))
        {
            if self.window.ack(ordinal).0 != State::Acked {
                self.skipped_messages += u64::from(log.messages(slot, ordinal).unwrap_or(0));
            }
        }
        self.read = self.window.floor();
        self.recorded_floor = self.window.floor();
    }

    fn note_ack(&mut self, ordinal: u64) {
        match self.new_acks.last_mut() {
            Some((first, count)) if *first + *count == ordinal => *count += 1,
            _ => self.new_acks.push((ordinal, 1)),
        }
    }
}

impl Broker {
    pub(crate) fn subscribe(
        &mut self,
        id: RequestId,
        topic: TopicId,
        name: &str,
        (kind, initial): (SubscriptionKind, InitialPosition),
        consumer: Consumer,
        slot: u32,
    ) -> Result<Option<Reply>, RequestError> {
        check_name("subscription", name)?;
        let found = self.find_topic(topic)?;
        let existing = found
            .subs
            .iter()
            .copied()
            .find(|&sub| *self.sub(sub).name == *name);
        if let Some(index) = existing {
            let sub = self.sub(index);
            let consumers = sub.consumers.len();
            let alone = sub.kind == SubscriptionKind::Exclusive || kind != sub.kind;
            if consumers > 0 && alone {
                return Err(RequestError::ConsumerBusy {
                    topic: self.topic_at(topic.0).name.to_string(),
                    subscription: name.to_owned(),
                    kind: sub.kind,
                    consumers,
                });
            }
            let reply = Reply::Consumer(self.attach(index, kind, consumer, slot));
            return Ok(self.answer_after_meta(id, name.to_owned(), reply));
        }
        let index = self.create_subscription(topic, name, initial);
        let reply = Reply::Consumer(self.attach(index, kind, consumer, slot));
        if self.topic_at(topic.0).durability == Durability::Memory {
            return Ok(Some(reply));
        }
        self.write_record(
            id,
            topic.0,
            reply,
            Undo::Subscription(topic, name.to_owned()),
        );
        Ok(None)
    }

    fn create_subscription(
        &mut self,
        topic: TopicId,
        name: &str,
        initial: InitialPosition,
    ) -> SubIndex {
        let key = SubKey(self.new_key());
        let slot = self.topic_at(topic.0).slot;
        let (first, end) = (self.log.first(slot), self.log.end(slot));
        let backlog = self.log.backlog_messages(slot, first);
        let floor = match initial {
            InitialPosition::Latest => end,
            InitialPosition::Earliest => first,
        };
        let mut sub = Subscription::new(name.to_owned(), key, topic.0, floor);
        let ours = if floor == end { 0 } else { backlog };
        sub.skipped_messages = self.topic_at(topic.0).messages - ours;
        // The starting point is durable too, or a crash would move it back: what lies before it may
        // be trimmed now and found again by the next recovery.
        let before = self.log.position_before(slot, floor);
        sub.ack_ticket = Some(self.log.open_sub(slot, key, before));
        // The first subscription may start behind entries that nobody waits for any more.
        self.mark_trim(topic.0);
        self.insert_sub(sub)
    }

    fn attach(
        &mut self,
        index: SubIndex,
        kind: SubscriptionKind,
        mut consumer: Consumer,
        slot: u32,
    ) -> ConsumerId {
        let serial = self.serial();
        consumer.serial = serial;
        consumer.sub = index;
        put(&mut self.consumers, slot, consumer);
        let sub = self.sub_mut(index);
        sub.kind = kind;
        sub.consumers.push(slot);
        sub.rotation.push_back(slot);
        self.want(index);
        ConsumerId { slot, serial }
    }

    /// Ends an attachment once, by identity (rules D15 and D113): what it held is owed again, its
    /// permits are revoked, debt included.
    pub(crate) fn close_consumer(&mut self, id: ConsumerId) {
        if self.consumer(id).is_none() {
            return;
        }
        let Some(consumer) = self.consumers[id.slot as usize].take() else {
            return;
        };
        let sub = self.sub_mut(consumer.sub);
        sub.consumers.retain(|&slot| slot != id.slot);
        if sub.rotation.front() == Some(&id.slot) {
            sub.turn_left = 0;
        }
        sub.rotation.retain(|&slot| slot != id.slot);
        if consumer.unacked > 0 {
            for ordinal in sub.window.floor()..sub.window.end() {
                if sub.window.get(ordinal) == State::Held(id.slot) {
                    let messages = sub.window.messages(ordinal);
                    sub.window.set(ordinal, State::Replay, messages);
                    sub.replay.insert(ordinal);
                }
            }
            sub.unacked -= consumer.unacked;
        }
        let _revoked = consumer.account.revoke();
        self.want(consumer.sub);
    }

    pub(crate) fn granted(&mut self, id: ConsumerId) {
        if self.consumer(id).is_none() {
            return;
        }
        let Some(consumer) = self.consumers[id.slot as usize].as_mut() else {
            return;
        };
        let index = consumer.sub;
        if std::mem::take(&mut consumer.parked) {
            self.sub_mut(index).rotation.push_back(id.slot);
            self.want(index);
        }
    }

    /// An ack acts on the position, whoever sends it (rule D94); again changes nothing (D99).
    pub(crate) fn ack(&mut self, id: ConsumerId, position: Position) {
        let Some((index, ordinal)) = self.resolve(id, position) else {
            return;
        };
        self.ack_ordinal(index, ordinal);
    }

    /// As [`Broker::ack`] for consecutive entries of one ledger; of those that are trimmed or were
    /// never there nothing is left to do.
    pub(crate) fn ack_run(&mut self, id: ConsumerId, first: Position, entries: u32) {
        let Some(index) = self.consumer(id).map(|consumer| consumer.sub) else {
            self.acks_ignored += 1;
            return;
        };
        let slot = self.topic_at(self.sub(index).topic).slot;
        let ordinals = self.log.ordinals(slot, first, entries);
        if ordinals.is_empty() {
            self.acks_ignored += 1;
            return;
        }
        self.ack_ordinals(index, ordinals);
    }

    pub(crate) fn ack_cumulative(&mut self, id: ConsumerId, position: Position) {
        let Some((index, last)) = self.resolve(id, position) else {
            return;
        };
        if self.sub(index).kind != SubscriptionKind::Exclusive {
            self.acks_ignored += 1;
            return;
        }
        while self.sub(index).window.floor() <= last {
            let floor = self.sub(index).window.floor();
            self.ack_ordinal(index, floor);
        }
    }

    /// The entry leaves the sender's hands and is owed again; its count rises (rule D107). Ignored
    /// for entries that the sender does not hold.
    pub(crate) fn nack(&mut self, id: ConsumerId, position: Position) {
        let Some((index, ordinal)) = self.resolve(id, position) else {
            return;
        };
        if self.sub(index).window.get(ordinal) != State::Held(id.slot) {
            self.acks_ignored += 1;
            return;
        }
        let messages = self.sub(index).window.messages(ordinal);
        if let Some(consumer) = self.consumers[id.slot as usize].as_mut() {
            consumer.unacked -= u64::from(messages);
        }
        let sub = self.sub_mut(index);
        sub.unacked -= u64::from(messages);
        sub.window.set(ordinal, State::Replay, messages);
        sub.replay.insert(ordinal);
        let count = sub.redeliveries.entry(ordinal).or_insert(0);
        *count = count.saturating_add(1);
        self.want(index);
    }

    /// Which subscription and entry an ack names; counts what names nothing.
    fn resolve(&mut self, id: ConsumerId, position: Position) -> Option<(SubIndex, u64)> {
        let found = self
            .consumer(id)
            .map(|consumer| consumer.sub)
            .and_then(|index| {
                let slot = self.topic_at(self.sub(index).topic).slot;
                self.log
                    .ordinal(slot, position)
                    .map(|ordinal| (index, ordinal))
            });
        if found.is_none() {
            self.acks_ignored += 1;
        }
        found
    }

    fn ack_ordinal(&mut self, index: SubIndex, ordinal: u64) {
        self.ack_ordinals(index, ordinal..ordinal + 1);
    }

    /// Acks a run. Held entries say how many messages they carry; others are looked up.
    fn ack_ordinals(&mut self, index: SubIndex, ordinals: Range<u64>) {
        let sub = self.subs[index.0 as usize].as_mut().expect("resolved");
        for ordinal in ordinals {
            let (before, mut messages) = sub.window.ack(ordinal);
            match before {
                State::Acked => continue,
                State::Held(slot) => {
                    sub.unacked -= u64::from(messages);
                    if let Some(holder) = self.consumers[slot as usize].as_mut() {
                        holder.unacked -= u64::from(messages);
                    }
                }
                State::Replay => sub.replay.remove(ordinal),
                State::Unread => {
                    let topic = self.topics[sub.topic as usize]
                        .as_ref()
                        .expect("it has a topic");
                    messages = self.log.messages(topic.slot, ordinal).unwrap_or(0);
                }
            }
            if !sub.redeliveries.is_empty() {
                sub.redeliveries.remove(&ordinal);
            }
            sub.acked_messages += u64::from(messages);
            sub.note_ack(ordinal);
        }
        if !sub.ack_queued {
            sub.ack_queued = true;
            self.acked.push(index);
        }
    }

    /// Writes down the acks of this turn, one record a subscription, and lets the topics be trimmed.
    pub(crate) fn record_acks(&mut self) {
        while let Some(index) = self.acked.pop() {
            let Some(sub) = self.subs[index.0 as usize].as_mut() else {
                continue;
            };
            sub.ack_queued = false;
            let topic = sub.topic;
            let state = self.topics[topic as usize]
                .as_ref()
                .expect("a subscription has a topic");
            if state.durability != Durability::Memory {
                record_acks_of(sub, state.slot, &mut self.log);
            }
            sub.new_acks.clear();
            self.mark_trim(topic);
        }
    }

    pub(crate) fn flush_acks(
        &mut self,
        id: RequestId,
        consumer: ConsumerId,
    ) -> Result<Option<Reply>, RequestError> {
        let missing = || RequestError::NotFound {
            what: "consumer",
            name: format!("{consumer:?}"),
        };
        let index = self.consumer(consumer).ok_or_else(missing)?.sub;
        self.record_acks();
        let durability = self.topic_at(self.sub(index).topic).durability;
        let Some(ticket) = self.sub(index).ack_ticket else {
            return Ok(Some(Reply::Done));
        };
        if ticket <= self.log.done_through(durability) {
            return Ok(Some(Reply::Done));
        }
        if let Some(error) = &self.poisoned {
            return Err(RequestError::Poisoned {
                error: error.clone(),
            });
        }
        self.log.commit_soon();
        self.flushes.push(AckFlush {
            id,
            ticket,
            durability,
        });
        Ok(None)
    }

    pub(crate) fn unsubscribe(
        &mut self,
        id: RequestId,
        topic: TopicId,
        name: &str,
    ) -> Result<Option<Reply>, RequestError> {
        let what = "subscription";
        let found = self.find_topic(topic)?;
        let index = found
            .subs
            .iter()
            .copied()
            .find(|&sub| *self.sub(sub).name == *name);
        let Some(index) = index else {
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
        self.undo_subscription(topic.0, name);
        if self.topic_at(topic.0).durability == Durability::Memory {
            return Ok(Some(Reply::Done));
        }
        self.write_record(id, topic.0, Reply::Done, Undo::Nothing);
        Ok(None)
    }

    /// Removes a subscription with whatever is attached to it.
    pub(crate) fn undo_subscription(&mut self, topic: u32, name: &str) {
        let Some(state) = self.topics[topic as usize].as_ref() else {
            return;
        };
        let slot = state.slot;
        let found = state
            .subs
            .iter()
            .copied()
            .find(|&sub| *self.sub(sub).name == *name);
        if let Some(index) = found {
            self.log.drop_sub(slot, self.sub(index).key);
            self.topic_mut(topic).subs.retain(|&sub| sub != index);
            self.remove_sub(index);
            self.mark_trim(topic);
        }
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
        let Some(sub) = self.subs[index.0 as usize].take() else {
            return;
        };
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

fn record_acks_of(sub: &mut Subscription, slot: TopicSlot, log: &mut Log) {
    let floor = sub.window.floor();
    if floor > sub.recorded_floor
        && let Some(last) = log.position(slot, floor - 1)
    {
        sub.ack_ticket = Some(log.ack_record(slot, sub.key, AckDelta::MarkDelete(last)));
        sub.recorded_floor = floor;
    }
    sub.ranges.clear();
    for &(first, count) in &sub.new_acks {
        for position in (first.max(floor)..first + count).filter_map(|o| log.position(slot, o)) {
            match sub.ranges.last_mut() {
                Some((start, entries)) if position.is_behind(*start, *entries) => *entries += 1,
                _ => sub.ranges.push((position, 1)),
            }
        }
    }
    if !sub.ranges.is_empty() {
        sub.ack_ticket = Some(log.ack_record(slot, sub.key, AckDelta::Ranges(&sub.ranges)));
    }
}

/// Debits one delivery everywhere at once: permits, unacked and counters move by the same P.
pub(crate) fn debit(sub: &mut Subscription, consumer: &mut Consumer, messages: Messages) {
    consumer.account.spend(messages);
    consumer.unacked += messages.0;
    sub.unacked += messages.0;
    sub.delivered_messages += messages.0;
}
