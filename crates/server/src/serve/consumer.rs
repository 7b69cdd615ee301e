//! A consumer of a connection: its end of the ring, its permits, and what it is told besides.

use std::sync::Arc;
use std::task::Waker;

use pelton_shard::broker::flow::{Grant, Granter};
use pelton_shard::broker::storage::Position;
use pelton_shard::broker::{ConsumerId, Run, SubscriptionKind};
use pelton_shard::rings::Receiver;
use pelton_shard::{AckPart, Arrival, ConsumerSignal, Data, PushError};
use pelton_wire::commands::{
    Ack, AckType, ActiveConsumerChange, CloseConsumer, Message, ReachedEndOfTopic,
};
use pelton_wire::{MessageId, NO_ID, Values};

use super::outbox::Outbox;
use super::topic::Topic;

/// Runs in the ring; more wait on the shard's heap.
pub(crate) const RING_RUNS: usize = 256;

/// A subscribed consumer.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) topic: Topic,
    pub(crate) subscription: String,
    pub(crate) kind: SubscriptionKind,
    pub(crate) id: ConsumerId,
    pub(crate) name: String,
    ring: Receiver<Arrival>,
    signal: Arc<ConsumerSignal>,
    granter: Granter,
    /// Marks of seeks taken from the ring.
    resets: u32,
    /// As its client last said with a redelivery; comes back in every message.
    epoch: Option<u64>,
    /// What it was last told of being active.
    active: bool,
    told_end: bool,
    /// Since when it waits for its client to subscribe again, after a seek has closed it there.
    pub(crate) parked_ns: Option<u64>,
}

/// What connects a consumer with its shard.
#[derive(Debug)]
pub(crate) struct Ends {
    pub(crate) ring: Receiver<Arrival>,
    pub(crate) signal: Arc<ConsumerSignal>,
    pub(crate) granter: Granter,
}

/// What one look at a consumer may tell its client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told<'a> {
    pub(crate) consumer_id: u64,
    pub(crate) waker: &'a Waker,
    /// Nothing more is taken once so many bytes wait to be written.
    pub(crate) out_bytes_max: usize,
    /// REACHED_END_OF_TOPIC is a reconnect storm for those who do not know it.
    pub(crate) knows_end: bool,
    pub(crate) knows_active: bool,
    pub(crate) now_ns: u64,
}

impl Consumer {
    pub(crate) fn new(
        topic: Topic,
        subscription: String,
        kind: SubscriptionKind,
        (id, name): (ConsumerId, String),
        ends: Ends,
    ) -> Consumer {
        let Ends {
            ring,
            signal,
            granter,
        } = ends;
        Consumer {
            topic,
            subscription,
            kind,
            id,
            name,
            ring,
            signal,
            granter,
            resets: 0,
            epoch: None,
            active: false,
            told_end: false,
            parked_ns: None,
        }
    }

    /// Permits its client gave.
    pub(crate) fn grant(&mut self, messages: u32) {
        if self.parked_ns.is_none() && self.granter.grant(messages) == Grant::Ring {
            self.topic.handle.granted(self.id.slot);
        }
    }

    /// Its client has subscribed again after a seek.
    pub(crate) fn unpark(&mut self) {
        self.parked_ns = None;
        self.told_end = false;
        self.active = false;
    }

    /// Gives what has arrived; how many messages and notices. Stops early if too many bytes wait.
    pub(crate) fn give_arrivals(&mut self, told: Told<'_>, out: &mut Outbox) -> usize {
        let mut count = 0;
        self.signal.wait_for_delivery(told.waker);
        while out.len() < told.out_bytes_max
            && let Some(arrival) = self.ring.pop()
        {
            count += 1;
            match arrival {
                Arrival::Reset { becomes, granter } => {
                    self.resets = self.resets.wrapping_add(1);
                    self.id = becomes;
                    self.granter = granter;
                    self.park(told, out);
                }
                // In front of a seek's mark: it was taken back.
                Arrival::Run(_) if self.signal.resets() != self.resets => {}
                Arrival::Run(run) => self.give_run(told.consumer_id, &run, out),
            }
        }
        if self.signal.is_held_back() && self.signal.take_held_back(self.ring.len()) {
            self.topic.handle.granted(self.id.slot);
        }
        count + self.give_notices(told, out)
    }

    /// Applies an ACK; false if it is one that cannot be applied.
    pub(crate) fn ack(&mut self, ack: &Ack<'_>) {
        let consumer = self.id;
        let cumulative = ack.ack_type == AckType::Cumulative;
        if self.parked_ns.is_some() || (cumulative && !self.kind.is_single()) {
            return;
        }
        let mut burst: Option<(Position, u32)> = None;
        for id in ack.message_id {
            let position = position_of(&id);
            let still: Box<[u64]> = id.ack_set.into_iter().map(i64::cast_unsigned).collect();
            if still.is_empty() && !cumulative {
                match &mut burst {
                    Some((first, entries)) if position.is_behind(*first, u64::from(*entries)) => {
                        *entries += 1;
                    }
                    _ => {
                        self.push_burst(burst.replace((position, 1)));
                    }
                }
                continue;
            }
            self.push_burst(burst.take());
            let data = match still.is_empty() {
                true => Data::AckCumulative { consumer, position },
                false => Data::AckPart(Box::new(AckPart {
                    consumer,
                    position,
                    still,
                    cumulative,
                })),
            };
            self.push(data);
        }
        self.push_burst(burst);
    }

    /// Asks for entries again: those, or all it holds if there are none.
    pub(crate) fn redeliver(&mut self, ids: Values<'_, MessageId<'_>>, epoch: Option<u64>) {
        let consumer = self.id;
        self.epoch = epoch.or(self.epoch);
        let mut any = false;
        for id in ids {
            any = true;
            let position = position_of(&id);
            // Clients have waited already: no delay is added to theirs.
            self.push(Data::NackLater {
                consumer,
                position,
                delay_ms: 0,
            });
        }
        if !any {
            self.push(Data::NackAll { consumer });
        }
    }

    fn give_run(&mut self, consumer_id: u64, run: &Run, out: &mut Outbox) {
        self.granter.received(run.messages);
        let still: Vec<i64> = match &run.still {
            Some(words) => words.iter().map(|word| word.cast_signed()).collect(),
            None => Vec::new(),
        };
        // Of one consumer in order, redelivery is a rewind: nothing is counted (wire spec 3, 20).
        let redeliveries = (!self.kind.is_single()).then_some(run.redeliveries);
        for slot in run.first_slot..run.first_slot + run.count {
            let Position { ledger, entry } = run.block.meta(slot).position;
            let message = Message {
                consumer_id,
                message_id: MessageId {
                    partition: self.topic.partition,
                    ..MessageId::new(ledger, entry)
                },
                redelivery_count: redeliveries.filter(|&count| count > 0),
                ack_set: Values::new(&still),
                consumer_epoch: self.epoch,
            };
            out.push_entry(message, &run.block, slot);
        }
    }

    /// A seek has ended it: its client is told so, and comes again.
    fn park(&mut self, told: Told<'_>, out: &mut Outbox) {
        if self.parked_ns.replace(told.now_ns).is_none() {
            out.push(CloseConsumer {
                consumer_id: told.consumer_id,
                request_id: NO_ID,
                ..CloseConsumer::default()
            });
        }
    }

    fn give_notices(&mut self, told: Told<'_>, out: &mut Outbox) -> usize {
        let consumer_id = told.consumer_id;
        let mut count = 0;
        if self.parked_ns.is_some() {
            return 0;
        }
        let active = self.signal.is_active();
        let tells = told.knows_active && self.kind == SubscriptionKind::Failover;
        if tells && active != self.active {
            self.active = active;
            count += 1;
            out.push(ActiveConsumerChange {
                consumer_id,
                is_active: Some(active),
            });
        }
        if told.knows_end && self.signal.at_end() && !self.told_end {
            self.told_end = true;
            count += 1;
            out.push(ReachedEndOfTopic { consumer_id });
        }
        count
    }

    fn push_burst(&self, burst: Option<(Position, u32)>) {
        let consumer = self.id;
        match burst {
            None => {}
            Some((position, 1)) => self.push(Data::Ack { consumer, position }),
            Some((first, entries)) => self.push(Data::AckRun {
                consumer,
                first,
                entries,
            }),
        }
    }

    fn push(&self, data: Data) {
        // The shard's own thread cannot wait for room: it is the one that makes it.
        if let Err(PushError::Full(data)) = self.topic.handle.data(data) {
            let _stopping = self.topic.handle.keep_data(data);
        }
    }
}

/// Where an id points.
pub(crate) fn position_of(id: &MessageId<'_>) -> Position {
    Position {
        ledger: id.ledger_id,
        entry: id.entry_id,
    }
}
