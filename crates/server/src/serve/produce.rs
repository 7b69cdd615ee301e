//! Commands of producers: PRODUCER, SEND, CLOSE_PRODUCER. Source: wire spec 6.1.

use std::sync::Arc;

use pelton_shard::broker::storage::Durability;
use pelton_shard::broker::{
    InitialPosition, KeyShared, OpenProducer, OpenedProducer, ProducerAccess, Request, Subscribe,
    SubscriptionKind, TopicId, flow::Granter,
};
use pelton_shard::rings::{SlotSender, slots, spsc};
use pelton_shard::{ConsumerSignal, Ports, ProducerSignal, Publish};
use pelton_wire::commands::{
    AccessMode, CloseProducer, Producer as Asked, ProducerSuccess, Send, SendError,
};
use pelton_wire::{Entry, NO_ID, ProtocolError, SchemaType, ServerError};

use super::connection::{Connection, End, Next};
use super::context::Context;
use super::producer::{Answered, Closing, Producer, RING_ENTRIES};
use super::refusal::Refusal;
use super::schemas::Registered;
use super::topic::{Named, Topic};
use super::waiting::{Then, Waiting};

/// Producers of one connection. Source: wire spec 9.
const PRODUCERS_MAX: usize = 10_000;

/// Longest name of a producer, consumer or subscription, in bytes. Source: wire spec 9.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// A producer on its way: schema, topic, attachment.
#[derive(Debug)]
pub(crate) struct OpeningProducer {
    request_id: u64,
    producer_id: u64,
    pub(crate) named: Named,
    pub(crate) name: String,
    access: ProducerAccess,
    /// Of the attachment that it takes up again.
    topic_epoch: Option<u64>,
    schema_version: Option<u64>,
    initial_subscription: Option<String>,
    pub(crate) topic: Option<Topic>,
}

/// What connects a producer with its shard.
#[derive(Debug)]
pub(crate) struct ProducerEnds {
    ring: SlotSender<Publish>,
    signal: Arc<ProducerSignal>,
}

impl Connection {
    pub(crate) fn open_producer(&mut self, asked: &Asked<'_>, cx: &mut Context) {
        if let Some(open) = self.producers.get(&asked.producer_id) {
            let (name, answered) = (open.name.clone(), open.answered_open);
            self.give_producer(asked.request_id, &name, &answered);
            return;
        }
        match self.may_open_producer(asked, cx) {
            Ok(opening) => {
                self.begin_producer(opening, asked, cx);
            }
            Err(refusal) => self.refuse(asked.request_id, &refusal),
        }
    }

    fn may_open_producer(
        &self,
        asked: &Asked<'_>,
        cx: &mut Context,
    ) -> Result<OpeningProducer, Refusal> {
        let named = Named::parse(asked.topic)?;
        cx.check_owner(&named.name)?;
        if self.producers.len() >= PRODUCERS_MAX {
            return Err(Refusal::not_allowed("the connection has 10,000 producers"));
        }
        check_length("producer", asked.name().unwrap_or(""))?;
        let name = match asked.name() {
            Some(name) => name.to_owned(),
            None => cx.new_name(),
        };
        if !cx.take_producer_name(&named.name, &name) {
            let text = format!("Producer with name '{name}' is already connected to topic");
            return Err(Refusal::new(ServerError::ProducerBusy, text));
        }
        Ok(OpeningProducer {
            request_id: asked.request_id,
            producer_id: asked.producer_id,
            named,
            name,
            access: match asked.producer_access_mode.unwrap_or_default() {
                AccessMode::Shared => ProducerAccess::Shared,
                AccessMode::Exclusive => ProducerAccess::Exclusive,
                AccessMode::WaitForExclusive => ProducerAccess::WaitForExclusive,
                AccessMode::ExclusiveWithFencing => ProducerAccess::ExclusiveWithFencing,
            },
            topic_epoch: asked.topic_epoch,
            schema_version: None,
            initial_subscription: asked.initial_subscription().map(str::to_owned),
            topic: None,
        })
    }

    fn begin_producer(&mut self, opening: OpeningProducer, asked: &Asked<'_>, cx: &mut Context) {
        match asked.schema {
            Some(schema) if registers(schema.schema_type) => {
                let from = cx.shared.schemas.register(&opening.named, &schema);
                let then = Then::ProducerSchema(Box::new(opening));
                self.wait_for(Waiting::registered(from, then));
            }
            _ => self.open_producer_topic(opening, cx),
        }
    }

    pub(crate) fn producer_schema(
        &mut self,
        mut opening: OpeningProducer,
        registered: Result<Registered, Refusal>,
        cx: &mut Context,
    ) {
        match registered {
            Ok(Registered { version }) => {
                opening.schema_version = Some(version);
                self.open_producer_topic(opening, cx);
            }
            Err(refusal) => self.refuse_producer(&opening, &refusal, cx),
        }
    }

    fn open_producer_topic(&mut self, opening: OpeningProducer, cx: &Context) {
        let durability = cx.durability_of(&opening.named);
        self.open_topic(Then::ProducerTopic(Box::new(opening)), durability, cx);
    }

    /// Opens, or makes, the topic that is wanted next.
    pub(crate) fn open_topic(&mut self, then: Then, durability: Durability, cx: &Context) {
        let name = match &then {
            Then::ProducerTopic(opening) => opening.named.name.clone(),
            Then::ConsumerTopic(opening) => opening.named.name.clone(),
            _ => return,
        };
        let request = Request::OpenTopic { name, durability };
        self.ask(cx.own_shard(), request, Ports::None, then);
    }

    pub(crate) fn producer_topic(
        &mut self,
        mut opening: OpeningProducer,
        id: TopicId,
        cx: &Context,
    ) {
        let topic = Topic::new(&opening.named, id, cx.own_shard());
        if let Some(subscription) = opening.initial_subscription.take() {
            self.make_subscription(&topic, subscription);
        }
        let (sender, receiver) = slots::<Publish>(RING_ENTRIES);
        let signal = Arc::new(ProducerSignal::new());
        let ports = Ports::Producer {
            ring: receiver,
            signal: Arc::clone(&signal),
        };
        let request = OpenProducer {
            access: opening.access,
            topic_epoch: opening.topic_epoch,
            ..OpenProducer::shared(id, opening.name.clone())
        };
        if opening.access == ProducerAccess::WaitForExclusive {
            // A second answer follows when it is its turn.
            self.give_producer(opening.request_id, &opening.name, &Answered::default());
        }
        let shard = topic.handle.clone();
        opening.topic = Some(topic);
        let ring = sender;
        let then = Then::ProducerOpen(Box::new((opening, ProducerEnds { ring, signal })));
        self.ask(&shard, request.into(), ports, then);
    }

    /// A durable subscription at the first entry, unless there is one: what a dead-letter producer
    /// wants, so that nothing it sends is let go.
    fn make_subscription(&mut self, topic: &Topic, subscription: String) {
        let (_granter, account) = Granter::pair();
        let (ring, _never_taken) = spsc(2);
        let request = Request::Subscribe(Box::new(Subscribe {
            topic: topic.id,
            subscription,
            kind: SubscriptionKind::Shared,
            initial: InitialPosition::Earliest,
            durable: true,
            consumer: String::new(),
            priority_level: 0,
            key_shared: KeyShared::default(),
            account,
            slot: 0,
        }));
        let signal = Arc::new(ConsumerSignal::new());
        let ports = Ports::Consumer { ring, signal };
        let then = Then::InitialSubscription(topic.handle.clone());
        self.ask(&topic.handle, request, ports, then);
    }

    pub(crate) fn producer_open(
        &mut self,
        opening: OpeningProducer,
        ends: ProducerEnds,
        opened: OpenedProducer,
    ) {
        let ProducerEnds { ring, signal } = ends;
        let OpeningProducer {
            request_id,
            producer_id,
            name,
            schema_version,
            topic,
            ..
        } = opening;
        let Some(topic) = topic else { return };
        let answered = Answered {
            ready: true,
            schema_version,
            topic_epoch: opened.topic_epoch,
            last_sequence: opened.last_sequence,
        };
        self.closed_producers.remove(&producer_id);
        self.give_producer(request_id, &name, &answered);
        let producer = Producer::new(topic, name, opened.id, ring, signal, answered);
        self.producers.insert(producer_id, producer);
    }

    fn give_producer(&mut self, request_id: u64, name: &str, answered: &Answered) {
        let version = answered.schema_version.map(u64::to_be_bytes);
        self.out.push(ProducerSuccess {
            request_id,
            producer_name: name,
            last_sequence_id: Some(answered.last_sequence.map_or(-1, u64::cast_signed)),
            schema_version: Some(version.as_ref().map_or(&[], |version| &version[..])),
            topic_epoch: answered.topic_epoch,
            producer_ready: Some(answered.ready),
        });
    }

    pub(crate) fn refuse_producer(
        &mut self,
        opening: &OpeningProducer,
        refusal: &Refusal,
        cx: &mut Context,
    ) {
        cx.free_producer_name(&opening.named.name, &opening.name);
        self.refuse(opening.request_id, refusal);
    }

    pub(crate) fn close_producer(&mut self, asked: &CloseProducer<'_>) {
        match self.producers.get_mut(&asked.producer_id) {
            // It ends at the end of the turn, or when the last receipt it is owed has been given.
            Some(producer) => producer.closing = Some(Closing::Client(asked.request_id)),
            None => self.succeed(asked.request_id),
        }
    }

    /// Ends the producers whose clients have closed them and that are owed nothing.
    pub(crate) fn close_settled(&mut self) {
        let settled = |producer: &Producer| producer.closing.filter(|_| !producer.owes());
        while let Some((producer_id, closing)) = self
            .producers
            .iter()
            .find_map(|(&id, producer)| Some((id, settled(producer)?)))
        {
            let Some(producer) = self.producers.remove(&producer_id) else {
                return;
            };
            if closing == Closing::Server {
                self.closed_producers.insert(producer_id);
                self.out.push(CloseProducer {
                    producer_id,
                    request_id: NO_ID,
                    ..CloseProducer::default()
                });
            }
            let request_id = match closing {
                Closing::Client(request_id) => Some(request_id),
                Closing::Server => None,
            };
            let Producer {
                topic, id, name, ..
            } = producer;
            self.wait_for(Waiting::producer_closed(&topic, id, name, request_id));
        }
    }

    pub(crate) fn send(
        &mut self,
        send: &Send<'_>,
        content: &[u8],
        cx: &Context,
    ) -> Result<Next, End> {
        let Some(producer) = self.producers.get_mut(&send.producer_id) else {
            return match self.closed_producers.contains(&send.producer_id) {
                true => Ok(Next::Frame),
                false => Err(End::Rule("a SEND of a producer that is not open")),
            };
        };
        if !producer.has_room(&self.waker) {
            return Ok(Next::Later);
        }
        let refused = match Entry::received(content) {
            Ok(_) if send.txnid_most_bits.is_some() => {
                Refusal::not_allowed("Transactions are not enabled.")
            }
            Ok(entry) => {
                self.owed += 1;
                self.owed_bytes += producer.publish(send, &entry, cx.now.mono_ns);
                return Ok(Next::Frame);
            }
            Err(ProtocolError::Checksum { .. }) => Refusal::new(
                ServerError::Checksum,
                "the checksum does not fit what arrived",
            ),
            Err(error) => return Err(End::Protocol(error)),
        };
        self.out.push(SendError {
            producer_id: send.producer_id,
            sequence_id: send.sequence_id,
            error: refused.code,
            message: &refused.text,
        });
        Ok(Next::Frame)
    }
}

/// Whether a schema of that type is one to keep.
pub(crate) fn registers(schema_type: SchemaType) -> bool {
    !matches!(schema_type, SchemaType::None | SchemaType::AutoConsume)
}

pub(crate) fn check_length(what: &str, name: &str) -> Result<(), Refusal> {
    match name.len() > NAME_BYTES_MAX {
        true => Err(Refusal::not_allowed(format!(
            "the {what} name has {} bytes: use at most {NAME_BYTES_MAX}",
            name.len()
        ))),
        false => Ok(()),
    }
}
