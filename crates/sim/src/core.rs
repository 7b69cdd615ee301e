//! The real core of one shard, and every arm that names its events, requests and effects.

use std::collections::BTreeMap;

use pelton_broker::flow::{Account, Granter};
use pelton_broker::storage::{
    CursorState, DiskDone, Durability, Log, Options as LogOptions, Position, Recovered, SubKey,
    TopicKey,
};
use pelton_broker::{
    Broker, BrokerStats, ConsumerId, Effect, Event, Handled, InitialPosition, LogState, MetaDone,
    Now, OpenProducer, Options, Policy, ProducerId, Publish, Receipts, Reply, Request,
    RequestError, RequestId, SeekTo, Subscribe, TOPIC_PREFIX, TopicId, TopicRecord,
    producer_number,
};

use crate::cursor::Still;
use crate::disk::Disk;
use crate::meta::Meta;
use crate::sequences::{names, producer_name};
use crate::sub::Wish;

#[derive(Debug)]
pub(crate) struct Core {
    broker: Broker,
    shard: usize,
}

/// What came out of the core for its clients.
#[derive(Debug)]
pub(crate) enum Out {
    HandOver(HandOver),
    /// An attachment ends and goes on as a new one.
    Reset(ConsumerId, ConsumerId, Granter),
    /// A consumer is told that nothing more comes, a producer that nothing more is taken.
    EndOfTopic(ConsumerId),
    Terminated(ProducerId),
    /// A consumer is told whether it is the active one.
    Active(ConsumerId, bool),
    Receipts(Receipts),
    Reply(u64, Result<Reply, RequestError>),
    /// Name of a topic whose record is being written.
    Record(Box<TopicRecord>),
    Poisoned,
}

/// A run as a consumer gets it.
#[derive(Debug)]
pub(crate) struct HandOver {
    pub(crate) consumer: ConsumerId,
    pub(crate) entries: Vec<Delivered>,
    pub(crate) messages: u32,
    pub(crate) redeliveries: u32,
    pub(crate) still: Option<Still>,
}

/// One entry as a consumer gets it.
#[derive(Clone, Debug)]
pub(crate) struct Delivered {
    pub(crate) position: Position,
    pub(crate) body: Vec<u8>,
    pub(crate) messages: u32,
    pub(crate) key_hash: u32,
    pub(crate) sequence: u64,
    pub(crate) publish_ms: u64,
}

/// What a client asks for.
#[derive(Debug)]
pub(crate) enum Ask {
    OpenTopic(String, Durability),
    DeleteTopic(String),
    OpenProducer(TopicId, u32),
    CloseProducer(ProducerId),
    Subscribe {
        topic: TopicId,
        sub: String,
        wish: Wish,
        initial: InitialPosition,
        account: Account,
        slot: u32,
    },
    CloseConsumer(ConsumerId),
    FlushAcks(ConsumerId),
    Unsubscribe(TopicId, String),
    SetPolicy(TopicId, Policy),
    Seek(TopicId, String, SeekTo),
    LastPosition(TopicId, String),
    Terminate(TopicId),
}

/// What a consumer says of entries.
#[derive(Clone, Debug)]
pub(crate) enum Say {
    Ack(Position),
    AckRun(Position, u32),
    /// With what is left of it.
    AckBatch(Position, Still),
    AckCumulative(Position, Still),
    /// With the delay that it asks for, in nanoseconds.
    Nack(Position, Option<u64>),
    NackAll,
    Release(Position),
}

/// A topic as recovery found it.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) record: TopicRecord,
    pub(crate) durability: Durability,
    pub(crate) positions: Vec<Position>,
    /// The highest of each producer's name.
    pub(crate) sequences: BTreeMap<String, u64>,
    /// By durable id of the subscription.
    pub(crate) cursors: Vec<(u64, CursorState)>,
}

#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) core: Core,
    pub(crate) found: Vec<Found>,
    pub(crate) clean: bool,
}

impl Core {
    /// Opens what is on the disk, as the shell does, and says what a second look at it found.
    pub(crate) fn open(
        shard: usize,
        options: &LogOptions,
        disk: &mut Disk,
        records: &[(String, Vec<u8>)],
        now: Now,
    ) -> Result<Opened, String> {
        let first = recover(options, disk)?;
        for repair in &first.repairs {
            disk.repair(repair);
        }
        let again = recover(options, disk)?;
        if again.cursors != first.cursors || again.report.entries != first.report.entries {
            return Err("recovering again finds something else".to_owned());
        }
        if let Some(torn) = again.report.torn {
            return Err(format!("{torn:?} is still torn after the repairs"));
        }
        let clean = first.report.clean;
        let found = look(first.log, &first.cursors, shard, records)?;
        let options = Options {
            shard: shard as u32,
            durable: true,
        };
        let mut broker = Broker::new(again.log, options);
        let restored = broker.restore(records, &again.cursors, now);
        restored.map_err(|error| error.to_string())?;
        let core = Core { broker, shard };
        Ok(Opened { core, found, clean })
    }

    pub(crate) fn ask(&mut self, id: u64, ask: Ask, now: Now) {
        let request = match ask {
            Ask::OpenTopic(name, durability) => Request::OpenTopic { name, durability },
            Ask::DeleteTopic(name) => Request::DeleteTopic { name },
            Ask::OpenProducer(topic, slot) => {
                let shared = OpenProducer::shared(topic, producer_name(slot));
                Request::from(OpenProducer { slot, ..shared })
            }
            Ask::CloseProducer(producer) => Request::CloseProducer { producer },
            Ask::Subscribe {
                topic,
                sub: subscription,
                wish,
                initial,
                account,
                slot,
            } => Request::Subscribe(Box::new(Subscribe {
                topic,
                subscription,
                kind: wish.kind,
                initial,
                durable: wish.durable,
                consumer: wish.name,
                priority_level: wish.priority,
                key_shared: wish.keys,
                account,
                slot,
            })),
            Ask::CloseConsumer(consumer) => Request::CloseConsumer { consumer },
            Ask::FlushAcks(consumer) => Request::FlushAcks { consumer },
            Ask::Unsubscribe(topic, subscription) => Request::Unsubscribe {
                topic,
                subscription,
            },
            Ask::SetPolicy(topic, policy) => {
                let policy = Box::new(policy);
                Request::SetPolicy { topic, policy }
            }
            Ask::Seek(topic, subscription, to) => Request::Seek {
                topic,
                subscription,
                to,
            },
            Ask::Terminate(topic) => Request::Terminate { topic },
            Ask::LastPosition(topic, subscription) => Request::LastPosition {
                topic,
                subscription,
            },
        };
        let id = RequestId(id);
        self.event(Event::Request { id, request }, now);
    }

    pub(crate) fn say(&mut self, consumer: ConsumerId, say: &Say, now: Now) {
        let event = match *say {
            Say::Ack(position) => Event::Ack { consumer, position },
            Say::AckRun(first, entries) => Event::AckRun {
                consumer,
                first,
                entries,
            },
            Say::AckBatch(position, ref still) => Event::AckBatch {
                consumer,
                position,
                still,
            },
            Say::AckCumulative(position, ref still) => Event::AckCumulative {
                consumer,
                position,
                still,
            },
            Say::Nack(position, delay_ns) => Event::Nack {
                consumer,
                position,
                delay_ns,
            },
            Say::NackAll => Event::NackAll { consumer },
            Say::Release(position) => Event::Release { consumer, position },
        };
        self.event(event, now);
    }

    /// True if the entry was taken, or refused for good.
    pub(crate) fn publish(&mut self, producer: ProducerId, entry: Publish<'_>, now: Now) -> bool {
        let entry = &entry;
        let event = Event::Publish { producer, entry };
        self.broker.handle(event, now) == Handled::Taken
    }

    pub(crate) fn granted(&mut self, consumer: ConsumerId, now: Now) {
        self.event(Event::Granted { consumer }, now);
    }

    pub(crate) fn disk_done(&mut self, done: DiskDone, now: Now) {
        self.event(Event::Disk(done), now);
    }

    pub(crate) fn meta_done(&mut self, done: MetaDone, now: Now) {
        self.event(Event::Meta(done), now);
    }

    pub(crate) fn tick(&mut self, now: Now) {
        self.event(Event::Tick, now);
    }

    fn event(&mut self, event: Event<'_>, now: Now) {
        let handled = self.broker.handle(event, now);
        assert_eq!(handled, Handled::Taken, "only publishes are held");
    }

    pub(crate) fn close(&mut self) {
        self.broker.close();
    }

    pub(crate) fn quiet(&self) -> bool {
        self.broker.quiet() && !self.broker.has_work()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.broker.has_work()
    }

    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.broker.next_deadline()
    }

    /// Counts of every topic; reading them asks for nothing else.
    pub(crate) fn stats(&mut self, now: Now) -> Result<BrokerStats, String> {
        let (id, request) = (RequestId(u64::MAX), Request::Stats);
        self.event(Event::Request { id, request }, now);
        match (self.broker.poll_effect(), self.broker.poll_effect()) {
            (
                Some(Effect::Reply {
                    reply: Ok(Reply::Stats(stats)),
                    ..
                }),
                None,
            ) => Ok(*stats),
            other => Err(format!("reading statistics gave {other:?}")),
        }
    }

    /// Takes effects until there are none: what is for the disk and the metadata goes there, the
    /// rest comes back.
    pub(crate) fn drain(&mut self, disk: &mut Disk, meta: &mut Meta, now: Now) -> Vec<Out> {
        let mut out = Vec::new();
        while let Some(effect) = self.broker.poll_effect() {
            match effect {
                Effect::HandOver { consumer, run } => {
                    let slots = run.first_slot..run.first_slot + run.count;
                    let entry = |slot| {
                        let meta = run.block.meta(slot);
                        Delivered {
                            position: meta.position,
                            body: run.block.body(slot).to_vec(),
                            messages: meta.messages,
                            key_hash: meta.key_hash,
                            sequence: meta.sequence,
                            publish_ms: meta.publish_ms,
                        }
                    };
                    out.push(Out::HandOver(HandOver {
                        consumer,
                        entries: slots.map(entry).collect(),
                        messages: run.messages,
                        redeliveries: run.redeliveries,
                        still: run.still.map(Vec::from),
                    }));
                }
                Effect::Active { consumer, active } => out.push(Out::Active(consumer, active)),
                Effect::Receipts(receipts) => out.push(Out::Receipts(receipts)),
                Effect::Reply { id, reply } => out.push(Out::Reply(id.0, reply)),
                Effect::Disk(op) => {
                    if let Some(done) = disk.submit(op) {
                        self.disk_done(done, now);
                    }
                }
                Effect::Meta(op) => {
                    for (key, value) in &op.writes {
                        if let Some(value) = value
                            && key.starts_with(TOPIC_PREFIX)
                            && let Ok(record) = TopicRecord::decode(key, value)
                        {
                            out.push(Out::Record(Box::new(record)));
                        }
                    }
                    meta.begin(self.shard, op);
                }
                Effect::LogState(LogState::Poisoned(_)) => out.push(Out::Poisoned),
                Effect::LogState(LogState::Open | LogState::DiskFull) => {}
                Effect::Reset {
                    consumer,
                    becomes,
                    granter,
                } => out.push(Out::Reset(consumer, becomes, granter)),
                Effect::EndOfTopic { consumer } => out.push(Out::EndOfTopic(consumer)),
                Effect::Terminated { producer } => out.push(Out::Terminated(producer)),
                other @ (Effect::DeadLetter { .. } | Effect::Fenced { .. }) => {
                    unreachable!("nobody asked for {other:?}")
                }
            }
        }
        out
    }
}

fn recover(options: &LogOptions, disk: &Disk) -> Result<Recovered, String> {
    let mut read = |id, offset, into: &mut [u8]| disk.read(id, offset, into);
    let recovered = Log::recover(options.clone(), &disk.infos(), &mut read);
    recovered.map_err(|error| error.to_string())
}

/// Opens every topic of the shard in a log of its own, only to look.
fn look(
    mut log: Log,
    cursors: &[CursorState],
    shard: usize,
    records: &[(String, Vec<u8>)],
) -> Result<Vec<Found>, String> {
    let mut found = Vec::new();
    for (key, value) in records {
        if !key.starts_with(TOPIC_PREFIX) {
            continue;
        }
        let record = TopicRecord::decode(key, value).map_err(|error| error.to_string())?;
        if record.shard as usize != shard {
            continue;
        }
        let durability = match record.durability.as_str() {
            "written" => Durability::Written,
            _ => Durability::Synced,
        };
        let slot = log.open_topic(TopicKey(record.key), durability);
        let positions = (log.first(slot)..log.end(slot))
            .filter_map(|ordinal| log.position(slot, ordinal))
            .collect();
        let of_topic = |c: &&CursorState| c.topic == TopicKey(record.key);
        let cursors = cursors.iter().filter(of_topic).map(|cursor| {
            let SubKey(key) = cursor.sub;
            (key, cursor.clone())
        });
        found.push(Found {
            cursors: cursors.collect(),
            sequences: names()
                .filter_map(|name| {
                    let sequence = log.last_sequence(slot, producer_number(&name))?;
                    Some((name, sequence))
                })
                .collect(),
            positions,
            durability,
            record,
        });
    }
    Ok(found)
}
