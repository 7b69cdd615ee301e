//! Commands of consumers: SUBSCRIBE, FLOW, ACK, redelivery, SEEK and the rest. Source: wire spec 6.

use std::sync::Arc;

use pelton_shard::broker::flow::Granter;
use pelton_shard::broker::keys::KeyRange;
use pelton_shard::broker::{
    ConsumerId, InitialPosition, KeyShared, Reply, Request, SeekTo, Subscribe, SubscriptionKind,
    TopicId,
};
use pelton_shard::rings::spsc;
use pelton_shard::{ConsumerSignal, Ports};
use pelton_wire::commands::{
    Ack, AckResponse, CloseConsumer, ConsumerStats, ConsumerStatsResponse, Flow, GetLastMessageId,
    GetLastMessageIdResponse, InitialPosition as Initial, KeySharedMode,
    RedeliverUnacknowledgedMessages, Seek, SubType, Subscribe as Asked, Unsubscribe,
};
use pelton_wire::{MessageId, NO_ID, ServerError};

use super::connection::Connection;
use super::consumer::{Consumer, Ends, RING_RUNS, Told, position_of};
use super::context::Context;
use super::produce::{check_length, registers};
use super::refusal::Refusal;
use super::topic::{Named, Topic};
use super::waiting::{Then, Waiting};

/// Consumers of one connection. Source: wire spec 9.
const CONSUMERS_MAX: usize = 10_000;

/// How long a consumer that a seek has closed waits for its client. Source: wire spec 6.4.
const PARKED_NS: u64 = 60_000_000_000;

/// A consumer on its way: schema, topic, attachment.
#[derive(Debug)]
pub(crate) struct OpeningConsumer {
    pub(crate) request_id: u64,
    consumer_id: u64,
    pub(crate) named: Named,
    subscription: String,
    kind: SubscriptionKind,
    durable: bool,
    initial: InitialPosition,
    name: String,
    priority_level: i32,
    key_shared: KeyShared,
    pub(crate) topic: Option<Topic>,
}

impl Connection {
    pub(crate) fn subscribe(&mut self, asked: &Asked<'_>, cx: &mut Context) {
        if let Some(consumer) = self.consumers.get_mut(&asked.consumer_id) {
            // It comes back after a seek, or asks twice.
            consumer.unpark();
            self.succeed(asked.request_id);
            return;
        }
        match self.may_subscribe(asked, cx) {
            Ok(opening) => match asked.schema {
                Some(schema) if registers(schema.schema_type) => {
                    let from = cx.shared.schemas.register(&opening.named, &schema);
                    let then = Then::ConsumerSchema(Box::new(opening));
                    self.wait_for(Waiting::registered(from, then));
                }
                _ => self.consumer_schema(opening, cx),
            },
            Err(refusal) => self.refuse(asked.request_id, &refusal),
        }
    }

    fn may_subscribe(&self, asked: &Asked<'_>, cx: &Context) -> Result<OpeningConsumer, Refusal> {
        let named = Named::parse(asked.topic)?;
        cx.check_owner(&named.name)?;
        let kind = match asked.sub_type {
            SubType::Exclusive => SubscriptionKind::Exclusive,
            SubType::Shared => SubscriptionKind::Shared,
            SubType::Failover => SubscriptionKind::Failover,
            SubType::KeyShared => SubscriptionKind::KeyShared,
        };
        if asked.subscription.is_empty() {
            return Err(Refusal::not_allowed("the subscription name is empty"));
        }
        check_length("subscription", asked.subscription)?;
        check_length("consumer", asked.name().unwrap_or(""))?;
        if asked.read_compacted() && !(named.persistent && kind.is_single()) {
            return Err(Refusal::not_allowed(
                "a compacted topic is read by Exclusive or Failover consumers of a persistent topic",
            ));
        }
        if self.consumers.len() >= CONSUMERS_MAX {
            return Err(Refusal::not_allowed("the connection has 10,000 consumers"));
        }
        Ok(OpeningConsumer {
            request_id: asked.request_id,
            consumer_id: asked.consumer_id,
            named,
            subscription: asked.subscription.to_owned(),
            kind,
            durable: asked.durable(),
            initial: initial_of(asked, cx.now.wall_ms),
            name: asked.name().unwrap_or("").to_owned(),
            priority_level: asked.priority_level(),
            key_shared: key_shared_of(asked, kind)?,
            topic: None,
        })
    }

    /// Its schema is one that the topic takes.
    pub(crate) fn consumer_schema(&mut self, opening: OpeningConsumer, cx: &Context) {
        let durability = cx.durability_of(&opening.named);
        self.open_topic(Then::ConsumerTopic(Box::new(opening)), durability, cx);
    }

    pub(crate) fn consumer_topic(
        &mut self,
        mut opening: OpeningConsumer,
        id: TopicId,
        cx: &Context,
    ) {
        let topic = Topic::new(&opening.named, id, cx.own_shard());
        let (sender, ring) = spsc(RING_RUNS);
        let signal = Arc::new(ConsumerSignal::new());
        let (granter, account) = Granter::pair();
        let ports = Ports::Consumer {
            ring: sender,
            signal: Arc::clone(&signal),
        };
        let request = Request::Subscribe(Box::new(Subscribe {
            topic: id,
            subscription: opening.subscription.clone(),
            kind: opening.kind,
            initial: opening.initial,
            durable: opening.durable,
            consumer: opening.name.clone(),
            priority_level: opening.priority_level,
            key_shared: std::mem::take(&mut opening.key_shared),
            account,
            slot: 0,
        }));
        let shard = topic.handle.clone();
        opening.topic = Some(topic);
        let ends = Ends {
            ring,
            signal,
            granter,
        };
        let then = Then::ConsumerOpen(Box::new((opening, ends)));
        self.ask(&shard, request, ports, then);
    }

    pub(crate) fn consumer_open(
        &mut self,
        opening: OpeningConsumer,
        ends: Ends,
        id: ConsumerId,
        cx: &mut Context,
    ) {
        let OpeningConsumer {
            request_id,
            consumer_id,
            subscription,
            kind,
            name,
            topic,
            ..
        } = opening;
        let Some(topic) = topic else { return };
        cx.count_consumer(&topic.name, &subscription);
        let consumer = Consumer::new(topic, subscription, kind, (id, name), ends);
        self.consumers.insert(consumer_id, consumer);
        self.succeed(request_id);
    }

    pub(crate) fn flow(&mut self, asked: Flow) {
        // A client may send it behind our close of its consumer.
        if let Some(consumer) = self.consumers.get_mut(&asked.consumer_id) {
            consumer.grant(asked.message_permits);
        }
    }

    pub(crate) fn ack(&mut self, asked: &Ack<'_>) {
        let consumer_id = asked.consumer_id;
        let refusal = match self.consumers.get_mut(&consumer_id) {
            Some(_) if asked.txnid_most_bits.is_some() => {
                Refusal::not_allowed("Transactions are not enabled.")
            }
            Some(consumer) => {
                consumer.ack(asked);
                let Some(request_id) = asked.request_id else {
                    return;
                };
                let request = Request::FlushAcks {
                    consumer: consumer.id,
                };
                let shard = consumer.topic.handle.clone();
                let then = Then::Acked {
                    request_id,
                    consumer_id,
                };
                self.ask(&shard, request, Ports::None, then);
                return;
            }
            None => no_consumer(),
        };
        if let Some(request_id) = asked.request_id {
            self.out.push(AckResponse {
                consumer_id,
                request_id: Some(request_id),
                error: Some(refusal.code),
                message: Some(&refusal.text),
                ..AckResponse::default()
            });
        }
    }

    pub(crate) fn redeliver(&mut self, asked: &RedeliverUnacknowledgedMessages<'_>) {
        if let Some(consumer) = self.consumers.get_mut(&asked.consumer_id) {
            consumer.redeliver(asked.message_ids, asked.consumer_epoch);
        }
    }

    pub(crate) fn close_consumer(&mut self, asked: &CloseConsumer<'_>) {
        match self.consumers.remove(&asked.consumer_id) {
            Some(consumer) => self.end_consumer(consumer, Some(asked.request_id)),
            None => self.succeed(asked.request_id),
        }
    }

    fn end_consumer(&mut self, consumer: Consumer, request_id: Option<u64>) {
        self.wait_for(Waiting::consumer_closed(consumer, request_id));
    }

    pub(crate) fn unsubscribe(&mut self, asked: Unsubscribe, cx: &Context) {
        let request_id = asked.request_id;
        let Some(consumer) = self.consumers.get(&asked.consumer_id) else {
            self.refuse(request_id, &no_consumer());
            return;
        };
        if cx.consumers_of(&consumer.topic.name, &consumer.subscription) > 1 {
            let text = "Other consumers are connected: close them first";
            self.refuse(request_id, &Refusal::new(ServerError::ConsumerBusy, text));
            return;
        }
        let Some(consumer) = self.consumers.remove(&asked.consumer_id) else {
            return;
        };
        let shard = consumer.topic.handle.clone();
        let request = Request::Unsubscribe {
            topic: consumer.topic.id,
            subscription: consumer.subscription.clone(),
        };
        self.end_consumer(consumer, None);
        self.ask(
            &shard,
            request,
            Ports::None,
            Then::Unsubscribed { request_id },
        );
    }

    pub(crate) fn seek(&mut self, asked: &Seek<'_>) {
        let request_id = asked.request_id;
        let Some(consumer) = self.consumers.get(&asked.consumer_id) else {
            self.refuse(request_id, &no_consumer());
            return;
        };
        let to = match (&asked.message_id, asked.message_publish_time) {
            (Some(id), _) => seek_to(id),
            (None, Some(ms)) => InitialPosition::Since(ms).into(),
            (None, None) => {
                self.refuse(request_id, &Refusal::not_allowed("a SEEK to nowhere"));
                return;
            }
        };
        let request = Request::Seek {
            topic: consumer.topic.id,
            subscription: consumer.subscription.clone(),
            to,
        };
        let shard = consumer.topic.handle.clone();
        self.ask(&shard, request, Ports::None, Then::Sought { request_id });
    }

    /// Tells clients which of their consumers a seek has closed.
    pub(crate) fn give_closes(&mut self, cx: &Context) {
        for (&consumer_id, consumer) in &mut self.consumers {
            let told = Told {
                consumer_id,
                waker: &self.waker,
                out_bytes_max: usize::MAX,
                knows_end: false,
                knows_active: false,
                now_ns: cx.now.mono_ns,
            };
            consumer.give_arrivals(told, &mut self.out);
        }
    }

    /// Ends consumers whose clients have not come back after a seek; true if there were any.
    pub(crate) fn give_up_parked(&mut self, now_ns: u64) -> bool {
        let overdue = |consumer: &Consumer| {
            let parked = consumer.parked_ns;
            parked.is_some_and(|since_ns| now_ns.saturating_sub(since_ns) > PARKED_NS)
        };
        let gone: Vec<u64> = (self.consumers.iter())
            .filter_map(|(&id, consumer)| overdue(consumer).then_some(id))
            .collect();
        for id in &gone {
            if let Some(consumer) = self.consumers.remove(id) {
                self.end_consumer(consumer, None);
            }
        }
        !gone.is_empty()
    }

    pub(crate) fn last_message_id(&mut self, asked: GetLastMessageId) {
        let (request_id, consumer_id) = (asked.request_id, asked.consumer_id);
        let Some(consumer) = self.consumers.get(&consumer_id) else {
            self.refuse(request_id, &no_consumer());
            return;
        };
        let request = Request::LastPosition {
            topic: consumer.topic.id,
            subscription: consumer.subscription.clone(),
        };
        let shard = consumer.topic.handle.clone();
        let then = Then::LastMessageId {
            request_id,
            consumer_id,
        };
        self.ask(&shard, request, Ports::None, then);
    }

    pub(crate) fn give_last_message_id(
        &mut self,
        request_id: u64,
        consumer_id: u64,
        reply: Result<Reply, Refusal>,
    ) {
        let (last, last_messages, mark_delete) = match reply {
            Ok(Reply::LastPosition {
                last,
                last_messages,
                mark_delete,
            }) => (last, last_messages, mark_delete),
            Ok(_) => return,
            Err(refusal) => return self.refuse(request_id, &refusal),
        };
        let consumer = self.consumers.get(&consumer_id);
        let partition = consumer.and_then(|consumer| consumer.topic.partition);
        let id = |position: Option<pelton_shard::broker::storage::Position>| MessageId {
            partition,
            ..position.map_or(MessageId::EARLIEST, |at| {
                MessageId::new(at.ledger, at.entry)
            })
        };
        // A batch of one is not told from a single message by its count: both compare alike.
        let batch = last_messages.filter(|&messages| messages > 1);
        self.out.push(GetLastMessageIdResponse {
            last_message_id: MessageId {
                batch_index: batch.map(|messages| messages.cast_signed() - 1),
                ..id(last)
            },
            request_id,
            consumer_mark_delete_position: Some(id(mark_delete)),
        });
    }

    pub(crate) fn consumer_stats(&mut self, asked: ConsumerStats) {
        let (request_id, consumer_id) = (asked.request_id, asked.consumer_id);
        match self.consumers.get(&consumer_id) {
            Some(consumer) => {
                let shard = consumer.topic.handle.clone();
                let then = Then::ConsumerStats {
                    request_id,
                    consumer_id,
                };
                self.ask(&shard, Request::Stats, Ports::None, then);
            }
            None => self.refuse_stats(request_id, &no_consumer()),
        }
    }

    pub(crate) fn give_consumer_stats(
        &mut self,
        request_id: u64,
        consumer_id: u64,
        reply: Result<Reply, Refusal>,
    ) {
        let (stats, consumer) = match (reply, self.consumers.get(&consumer_id)) {
            (Ok(Reply::Stats(stats)), Some(consumer)) => (stats, consumer),
            (Err(refusal), _) => return self.refuse_stats(request_id, &refusal),
            _ => return self.refuse_stats(request_id, &no_consumer()),
        };
        let subscription = (stats.topics.iter())
            .find(|topic| *topic.name == *consumer.topic.name)
            .and_then(|topic| {
                let mut all = topic.subscriptions.iter();
                all.find(|subscription| subscription.name == consumer.subscription)
            });
        let own = subscription.and_then(|subscription| {
            let mut all = subscription.consumers.iter();
            all.find(|found| found.name == consumer.name)
        });
        let address = self.peer.to_string();
        self.out.push(ConsumerStatsResponse {
            request_id,
            consumer_name: Some(&consumer.name),
            available_permits: own.map(|own| own.available_permits.max(0).cast_unsigned()),
            unacked_messages: own.map(|own| own.unacked_messages),
            address: Some(&address),
            sub_type: Some(kind_name(consumer.kind)),
            msg_backlog: subscription.map(|found| found.backlog_messages),
            ..ConsumerStatsResponse::default()
        });
    }

    fn refuse_stats(&mut self, request_id: u64, refusal: &Refusal) {
        self.out.push(ConsumerStatsResponse {
            request_id,
            error_code: Some(refusal.code),
            error_message: Some(&refusal.text),
            ..ConsumerStatsResponse::default()
        });
    }
}

/// As statistics name it.
fn kind_name(kind: SubscriptionKind) -> &'static str {
    match kind {
        SubscriptionKind::Exclusive => "Exclusive",
        SubscriptionKind::Failover => "Failover",
        SubscriptionKind::Shared => "Shared",
        SubscriptionKind::KeyShared => "Key_Shared",
    }
}

fn no_consumer() -> Refusal {
    Refusal::new(ServerError::ConsumerNotFound, "Consumer not found")
}

/// Where a new subscription starts. One that is not durable starts at the entry it names.
fn initial_of(asked: &Asked<'_>, now_ms: u64) -> InitialPosition {
    let back_ms = asked
        .start_message_rollback_duration_sec()
        .saturating_mul(1_000);
    match &asked.start_message_id {
        _ if back_ms > 0 => InitialPosition::Since(now_ms.saturating_sub(back_ms)),
        Some(id) if !asked.durable() => position(id),
        _ if asked.initial_position == Some(Initial::Earliest) => InitialPosition::Earliest,
        _ => InitialPosition::Latest,
    }
}

/// Delivery starts at the entry: its client drops what it does not want of it. Source: wire spec 6.4.
fn position(id: &MessageId<'_>) -> InitialPosition {
    match (id.ledger_id, id.entry_id) {
        (NO_ID, _) => InitialPosition::Earliest,
        (_, NO_ID) => InitialPosition::At(position_of(&MessageId::new(id.ledger_id, 0))),
        ids if ids == (MessageId::LATEST.ledger_id, MessageId::LATEST.entry_id) => {
            InitialPosition::Latest
        }
        _ => InitialPosition::At(position_of(id)),
    }
}

fn seek_to(id: &MessageId<'_>) -> SeekTo {
    let still: Box<[u64]> = id.ack_set.into_iter().map(i64::cast_unsigned).collect();
    match position(id) {
        InitialPosition::At(position) if !still.is_empty() => SeekTo::Part { position, still },
        start => start.into(),
    }
}

fn key_shared_of(asked: &Asked<'_>, kind: SubscriptionKind) -> Result<KeyShared, Refusal> {
    let Some(meta) = &asked.key_shared_meta else {
        return Ok(KeyShared::default());
    };
    if kind != SubscriptionKind::KeyShared {
        return Ok(KeyShared::default());
    }
    let assign = |text: String| Refusal::new(ServerError::ConsumerAssign, text);
    let mut ranges = Vec::new();
    if meta.key_shared_mode == KeySharedMode::Sticky {
        for range in meta.hash_ranges {
            let made = KeyRange::new(range.start.into(), range.end.into());
            ranges.push(made.map_err(|error| assign(error.to_string()))?);
        }
        if ranges.is_empty() {
            return Err(assign("a sticky consumer names at least one range".into()));
        }
    }
    Ok(KeyShared {
        ranges,
        allow_out_of_order_delivery: meta.allow_out_of_order_delivery(),
    })
}
