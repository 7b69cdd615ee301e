//! What a consumer receives: an entry, and the duty to say what became of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::message::{Message, Messages};
use crate::port::{AckPart, AckSet, Block, ConsumerId, Data, EntryMeta, ShardHandle, TopicId};
use crate::{Position, Properties, SubscriptionKind, acks};

/// What happens to a [`Delivery`] that is dropped without `ack`, `nack` or `reject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnDrop {
    /// It is nacked: delivered again, soon. The default.
    #[default]
    Nack,
    /// It is released: delivered again, soon, as if it had not been received; its count stays.
    Release,
    /// It stays with the consumer until that is closed, or until it is acked by position
    /// ([`crate::Consumer::ack_position`]).
    Keep,
}

/// An entry as it can be read: its messages, and what the log knows of it.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    body: &'a [u8],
    properties: &'a [u8],
    meta: &'a EntryMeta,
    redeliveries: u32,
    still: Option<&'a [u64]>,
}

impl<'a> Entry<'a> {
    pub(crate) fn new(
        (properties, body): (&'a [u8], &'a [u8]),
        meta: &'a EntryMeta,
        redeliveries: u32,
        still: Option<&'a [u64]>,
    ) -> Entry<'a> {
        Entry {
            body,
            properties,
            meta,
            redeliveries,
            still,
        }
    }

    /// Where it is stored; rises along a topic, with gaps.
    #[must_use]
    pub fn position(&self) -> Position {
        self.meta.position
    }

    /// Messages in it that are not acked, 1 or more: what it costs in permits.
    #[must_use]
    pub fn message_count(&self) -> u32 {
        match self.still {
            None => self.meta.messages,
            Some(words) => words.iter().map(|word| word.count_ones()).sum(),
        }
    }

    /// Messages it was published with.
    #[must_use]
    pub fn batch_messages(&self) -> u32 {
        self.meta.messages
    }

    /// Its messages that are not acked, in the order they were sent; [`Messages::index`] tells the
    /// place of each in the batch.
    #[must_use]
    pub fn messages(&self) -> Messages<'a> {
        Messages::of(self.body).only(self.still)
    }

    /// The payload of its first message; empty if the body holds none.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.first().payload
    }

    /// The key of its first message.
    #[must_use]
    pub fn key(&self) -> Option<&'a [u8]> {
        self.first().key
    }

    /// Hash of the key of its first message ([`crate::key_hash`]), 0 without one.
    #[must_use]
    pub fn key_hash(&self) -> u32 {
        self.meta.key_hash
    }

    /// When it was stored, in Unix milliseconds of a clock that may step.
    #[must_use]
    pub fn publish_time_ms(&self) -> u64 {
        self.meta.publish_ms
    }

    /// The time it is not delivered before ([`Message::deliver_at_ms`]), in Unix milliseconds; 0 if it
    /// has none.
    #[must_use]
    pub fn deliver_at_ms(&self) -> u64 {
        self.meta.deliver_at_ms
    }

    /// The time from which it is not delivered ([`Message::deadline_ms`]), in Unix milliseconds; 0 if
    /// it has none of its own.
    #[must_use]
    pub fn deadline_ms(&self) -> u64 {
        self.meta.deadline_ms
    }

    /// When the producer sent it, or meant to ([`Message::intended_ns`]), in nanoseconds of the
    /// engine's clock; 0 if it was read from disk.
    #[must_use]
    pub fn arrived_ns(&self) -> u64 {
        self.meta.arrived_ns
    }

    /// When the log took it, in nanoseconds of the engine's clock; 0 if it was read from disk.
    #[must_use]
    pub fn appended_ns(&self) -> u64 {
        self.meta.appended_ns
    }

    /// The producer's number for it: from 0, rising by one an entry.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.meta.sequence
    }

    /// How often it was nacked before, in this run of the engine; 0 on Exclusive and Failover.
    #[must_use]
    pub fn redelivery_count(&self) -> u32 {
        self.redeliveries
    }

    /// Properties of the entry as a whole: what the engine says of a dead letter (rule D121).
    #[must_use]
    pub fn properties(&self) -> Properties<'a> {
        Properties::of(self.properties)
    }

    /// Its body as stored: framed messages.
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.body
    }

    fn first(&self) -> Message<'a> {
        self.messages().next().unwrap_or_default()
    }
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("position", &self.position())
            .field("messages", &self.message_count())
            .field("bytes", &self.body.len())
            .field("redeliveries", &self.redeliveries)
            .finish()
    }
}

/// One entry, handed over to a consumer. Say [`Delivery::ack`] or [`Delivery::nack`]; from any thread.
///
/// It holds on to memory of its shard, shared with its neighbours: keep it as long as the work takes,
/// not longer. Dropped without a word it is nacked ([`OnDrop`]).
#[must_use = "ack or nack it; dropped, it is delivered again"]
pub struct Delivery {
    block: Arc<Block>,
    source: Arc<Source>,
    slot: u32,
    redeliveries: u32,
    settled: bool,
    /// What of it is not acked, once that is not all of it.
    part: Option<AckSet>,
}

impl Delivery {
    pub(crate) fn new(
        block: Arc<Block>,
        slot: u32,
        redeliveries: u32,
        part: Option<AckSet>,
        source: Arc<Source>,
    ) -> Delivery {
        Delivery {
            block,
            source,
            slot,
            redeliveries,
            settled: false,
            part,
        }
    }

    /// It is done: never delivered to this subscription again. The ack is on its way when this
    /// returns; it is durable with one of the next commits ([`crate::Consumer::flush_acks`] waits for
    /// that). Waits, shortly, only if the shard's data lane is full; never inside a handler.
    pub fn ack(mut self) {
        self.settled = true;
        self.source.push(Data::Ack {
            consumer: self.source.id,
            position: self.position(),
        });
    }

    /// It could not be handled: deliver it again, to this consumer or another one of the
    /// subscription. Its [`Entry::redelivery_count`] rises. An Exclusive or Failover subscription, whose
    /// entries go in order, starts again at its first unacked entry instead, and counts nothing: what
    /// is on its way to the consumer comes twice. Grants nothing: see [`crate::Consumer::grant`].
    pub fn nack(mut self) {
        self.settled = true;
        self.source.push(Data::Nack {
            consumer: self.source.id,
            position: self.position(),
        });
    }

    /// One message of it is done: the one at this place in its batch ([`Messages::index`]). Ack the
    /// last one, and the whole entry is; nack it, and the rest comes again. A place that is acked
    /// already, or that the batch does not have, changes nothing.
    pub fn ack_message(&mut self, index: u32) {
        let batch_messages = self.block.meta(self.slot).messages;
        let part = self
            .part
            .get_or_insert_with(|| AckSet::full(batch_messages));
        if !part.contains(index) {
            return;
        }
        let mut still: Box<[u64]> = part.words().into();
        still[index as usize / 64] &= !(1 << (index % 64));
        part.merge(&still);
        self.settled = part.left() == 0;
        self.source.push(Data::AckPart(Box::new(AckPart {
            consumer: self.source.id,
            position: self.position(),
            still,
            cumulative: false,
        })));
    }

    /// As [`Delivery::nack`], but not before `delay` from now, whatever the topic's policy says; in
    /// milliseconds, 49 days at most.
    pub fn nack_after(mut self, delay: Duration) {
        self.settled = true;
        self.source.push(Data::NackLater {
            consumer: self.source.id,
            position: self.position(),
            delay_ms: u32::try_from(delay.as_millis()).unwrap_or(u32::MAX),
        });
    }

    /// It goes back as if it had not been received: its [`Entry::redelivery_count`] stays.
    pub fn release(mut self) {
        self.settled = true;
        self.source.push(Data::Release {
            consumer: self.source.id,
            position: self.position(),
        });
    }

    /// It cannot be handled: it goes to the dead-letter topic of the topic's policy
    /// ([`crate::DeadLetter`]) and is acked once a copy is durable there. Without such a policy it is
    /// dropped and counted ([`crate::SubscriptionStats::rejected_messages`]).
    pub fn reject(mut self) {
        self.settled = true;
        self.source.push(Data::Reject {
            consumer: self.source.id,
            position: self.position(),
        });
    }

    /// Neither: it stays with the consumer until that is closed, whatever its [`OnDrop`].
    pub fn keep(mut self) {
        self.settled = true;
    }

    /// The entry itself.
    #[must_use]
    pub fn entry(&self) -> Entry<'_> {
        Entry::new(
            (self.block.properties(self.slot), self.block.body(self.slot)),
            self.block.meta(self.slot),
            self.redeliveries,
            self.part.as_ref().map(AckSet::words),
        )
    }

    /// See [`Entry::position`].
    #[must_use]
    pub fn position(&self) -> Position {
        self.block.meta(self.slot).position
    }

    /// See [`Entry::message_count`].
    #[must_use]
    pub fn message_count(&self) -> u32 {
        self.entry().message_count()
    }

    /// See [`Entry::batch_messages`].
    #[must_use]
    pub fn batch_messages(&self) -> u32 {
        self.block.meta(self.slot).messages
    }

    /// See [`Entry::messages`].
    #[must_use]
    pub fn messages(&self) -> Messages<'_> {
        self.entry().messages()
    }

    /// See [`Entry::payload`].
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.entry().payload()
    }

    /// See [`Entry::key`].
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.entry().key()
    }

    /// See [`Entry::key_hash`].
    #[must_use]
    pub fn key_hash(&self) -> u32 {
        self.entry().key_hash()
    }

    /// See [`Entry::publish_time_ms`].
    #[must_use]
    pub fn publish_time_ms(&self) -> u64 {
        self.entry().publish_time_ms()
    }

    /// See [`Entry::arrived_ns`].
    #[must_use]
    pub fn arrived_ns(&self) -> u64 {
        self.entry().arrived_ns()
    }

    /// See [`Entry::appended_ns`].
    #[must_use]
    pub fn appended_ns(&self) -> u64 {
        self.entry().appended_ns()
    }

    /// See [`Entry::sequence`].
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.entry().sequence()
    }

    /// See [`Entry::redelivery_count`].
    #[must_use]
    pub fn redelivery_count(&self) -> u32 {
        self.redeliveries
    }

    pub(crate) fn source(&self) -> &Arc<Source> {
        &self.source
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        // A closed consumer has given everything back already.
        if self.settled || self.source.is_closed() {
            return;
        }
        let (consumer, position) = (self.source.id, self.position());
        match self.source.on_drop {
            OnDrop::Nack => self.source.push(Data::Nack { consumer, position }),
            OnDrop::Release => self.source.push(Data::Release { consumer, position }),
            OnDrop::Keep => {}
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Delivery").field(&self.entry()).finish()
    }
}

/// Where a delivery came from: shared by a consumer and all it has received.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) handle: ShardHandle,
    pub(crate) id: ConsumerId,
    pub(crate) on_drop: OnDrop,
    pub(crate) kind: SubscriptionKind,
    pub(crate) engine_id: u64,
    pub(crate) topic_id: TopicId,
    pub(crate) topic: Box<str>,
    pub(crate) subscription: Box<str>,
    /// Serial of the attachment before the first seek that began it again.
    first_serial: u32,
    /// Set before the close request leaves.
    closed: AtomicBool,
}

impl Source {
    pub(crate) fn new(
        handle: ShardHandle,
        id: ConsumerId,
        (on_drop, kind): (OnDrop, SubscriptionKind),
        engine_id: u64,
        (topic_id, topic, subscription): (TopicId, Box<str>, Box<str>),
    ) -> Source {
        let closed = AtomicBool::new(false);
        Source {
            handle,
            id,
            on_drop,
            kind,
            engine_id,
            topic_id,
            topic,
            subscription,
            first_serial: id.serial,
            closed,
        }
    }

    /// The same consumer as a seek has begun it again.
    pub(crate) fn after_seek(&self, becomes: ConsumerId) -> Source {
        Source {
            handle: self.handle.clone(),
            id: becomes,
            topic: self.topic.clone(),
            subscription: self.subscription.clone(),
            closed: AtomicBool::new(false),
            ..*self
        }
    }

    /// Whether both are of one consumer, before or after a seek.
    pub(crate) fn is_of(&self, other: &Source) -> bool {
        let of = |source: &Source| {
            let shard = source.handle.index();
            (source.engine_id, shard, source.id.slot, source.first_serial)
        };
        of(self) == of(other)
    }

    pub(crate) fn push(&self, data: Data) {
        acks::push(&self.handle, data, self.engine_id);
    }

    pub(crate) fn close(&self) -> bool {
        !self.closed.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}
