//! A broker in memory with one topic, one producer and one Shared subscription, driven by hand.

use std::collections::VecDeque;

use pelton_broker::{
    Broker, ConsumerId, Effect, Event, Handled, InitialPosition, KeyShared, Now, OpenProducer,
    Options, ProducerId, Publish, Reply, Request, RequestId, Subscribe, SubscriptionKind,
    flow::Granter,
    storage::{Durability, Log, Options as LogOptions, Position},
};

/// A broker and what it has handed over that is not yet acked.
#[derive(Debug)]
pub(crate) struct World {
    broker: Broker,
    now: Now,
    producer: ProducerId,
    /// Kept: a consumer whose granter is gone gets no more permits.
    granters: Vec<Granter>,
    body: [u8; 64],
    next_sequence: u64,
    held: VecDeque<(ConsumerId, Position)>,
}

impl World {
    /// Consumers with permits for more messages than any bench sends.
    pub(crate) fn new(consumers: u32) -> World {
        let log = Log::in_memory(LogOptions::default());
        let mut world = World {
            broker: Broker::new(
                log,
                Options {
                    shard: 0,
                    durable: false,
                },
            ),
            now: Now {
                mono_ns: 1,
                wall_ms: 1,
            },
            producer: ProducerId { slot: 0, serial: 0 },
            granters: Vec::new(),
            body: [7; 64],
            next_sequence: 0,
            held: VecDeque::with_capacity(1_024),
        };
        let (name, durability) = ("topic".to_owned(), Durability::Memory);
        let Reply::Topic(topic) = world.ask(Request::OpenTopic { name, durability }) else {
            panic!("asked for a topic")
        };
        let open = OpenProducer::shared(topic, "producer").into();
        let Reply::Producer(opened) = world.ask(open) else {
            panic!("asked for a producer")
        };
        world.producer = opened.id;
        for slot in 0..consumers {
            let (mut granter, account) = Granter::pair();
            let _ = granter.grant(u32::MAX);
            world.granters.push(granter);
            let reply = world.ask(Request::Subscribe(Box::new(Subscribe {
                topic,
                subscription: "subscription".to_owned(),
                kind: SubscriptionKind::Shared,
                initial: InitialPosition::Earliest,
                consumer: format!("consumer {slot}"),
                account,
                slot,
                priority_level: 0,
                durable: true,
                key_shared: KeyShared::default(),
            })));
            assert!(matches!(reply, Reply::Consumer(_)), "{reply:?}");
        }
        world
    }

    /// The same, with every buffer grown to its size and nothing left over.
    pub(crate) fn warm(consumers: u32) -> World {
        let mut world = World::new(consumers);
        for _ in 0..50 {
            world.publish(100);
            assert_eq!(world.tick(), 100);
            world.ack_all();
            assert_eq!(world.tick(), 0);
        }
        world
    }

    /// Entries published so far.
    pub(crate) fn published(&self) -> u64 {
        self.next_sequence
    }

    /// Entries of one message with a body of 64 bytes; dispatched by the next tick.
    pub(crate) fn publish(&mut self, entries: u64) {
        for _ in 0..entries {
            let entry = Publish {
                body: &self.body,
                messages: 1,
                key_hash: 0,
                sequence: self.next_sequence,
                arrived_ns: self.now.mono_ns,
                ..Publish::default()
            };
            let event = Event::Publish {
                producer: self.producer,
                entry: &entry,
            };
            assert_eq!(self.broker.handle(event, self.now), Handled::Taken);
            self.next_sequence += 1;
        }
    }

    /// The end of a turn: commit, dispatch, trim. Returns how many entries were handed over.
    pub(crate) fn tick(&mut self) -> usize {
        let before = self.held.len();
        self.now.mono_ns += 1_000;
        self.send(Event::Tick);
        while let Some(effect) = self.broker.poll_effect() {
            if let Effect::HandOver { consumer, run } = effect {
                let slots = run.first_slot..run.first_slot + run.count;
                let positions = slots.map(|slot| (consumer, run.block.meta(slot).position));
                self.held.extend(positions);
            }
        }
        self.held.len() - before
    }

    /// Acks everything that was handed over, in order.
    pub(crate) fn ack_all(&mut self) {
        while let Some((consumer, position)) = self.held.pop_front() {
            self.send(Event::Ack { consumer, position });
        }
    }

    /// Whether what is held is every entry from `first` on, each once, in order of position.
    pub(crate) fn holds_all_from(&self, first: u64) -> bool {
        let mut entries: Vec<u64> = self
            .held
            .iter()
            .map(|(_, position)| position.entry)
            .collect();
        entries.sort_unstable();
        entries.into_iter().eq(first..self.next_sequence)
    }

    fn send(&mut self, event: Event<'_>) {
        assert_eq!(self.broker.handle(event, self.now), Handled::Taken);
    }

    fn ask(&mut self, request: Request) -> Reply {
        self.send(Event::Request {
            id: RequestId(1),
            request,
        });
        while let Some(effect) = self.broker.poll_effect() {
            if let Effect::Reply { reply, .. } = effect {
                return reply.expect("the bench asks for what can be had");
            }
        }
        panic!("a request in memory is answered at once")
    }
}
