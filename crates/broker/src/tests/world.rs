//! One topic in a core, in memory if nothing else is said, driven by hand.

use std::collections::BTreeMap;

use pelton_flow::{Grant, Granter};
use pelton_storage::{Durability, Log, Options as LogOptions, Position};

use super::disk::FakeDisk;
use crate::{
    Broker, ConsumerId, Effect, Event, Handled, InitialPosition, KeyShared, Letter, Now,
    OpenProducer, Options, Policy, ProducerId, Publish, Receipts, Reply, Request, RequestError,
    RequestId, Subscribe, SubscriptionKind, SubscriptionStats, TopicId, Why,
};

/// What becomes of dead letters on their way to their topic, which is in the same core here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mail {
    Works,
    /// They stay on their way.
    Holds,
    /// They arrive, and nobody says so.
    Unanswered,
    /// They come back.
    Fails,
}

/// Requests for letters have their token on top of this as their id.
const LETTER: u64 = 1 << 32;

/// How a consumer attaches.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) kind: SubscriptionKind,
    pub(super) name: Option<String>,
    pub(super) priority_level: i32,
    pub(super) key_shared: KeyShared,
    /// Caps or delays may hold up a backlog beside permits.
    pub(super) capped: bool,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            kind: SubscriptionKind::Shared,
            name: None,
            priority_level: 0,
            key_shared: KeyShared::default(),
            capped: false,
        }
    }
}

/// When a world begins.
pub(super) const START: Now = Now {
    mono_ns: 1,
    wall_ms: 1,
};

pub(super) struct World {
    pub(super) broker: Broker,
    pub(super) disk: FakeDisk,
    pub(super) now: Now,
    pub(super) topic: TopicId,
    pub(super) producer: ProducerId,
    pub(super) sequence: u64,
    pub(super) granters: BTreeMap<ConsumerId, Granter>,
    /// How the next consumers attach.
    pub(super) wish: Wish,
    /// Key hash of each entry published, by its number in the ledger.
    pub(super) hashes: Vec<u32>,
    /// What deliveries of partly acked entries said, in order.
    pub(super) parts: Vec<(Position, Vec<u64>)>,
    pub(super) first_ledger: Option<u64>,
    /// Failover: who was told what, in order.
    pub(super) told: Vec<(ConsumerId, bool)>,
    /// Every delivery in order: consumer, position, messages, redeliveries.
    pub(super) got: Vec<(ConsumerId, Position, u32, u32)>,
    pub(super) receipts: Vec<Receipts>,
    pub(super) replies: Vec<Result<Reply, RequestError>>,
    /// Attachments that a seek ended, and what they became.
    pub(super) resets: Vec<(ConsumerId, ConsumerId)>,
    /// Attachments that were told the end of the topic.
    pub(super) ended: Vec<ConsumerId>,
    /// Producers that were told that another one has taken the topic for itself.
    pub(super) fenced: Vec<ProducerId>,
    pub(super) mail: Mail,
    pub(super) letters: Vec<(u64, Box<Letter>)>,
    /// Properties and bodies of deliveries that have properties, in order.
    pub(super) read: Vec<(Vec<u8>, Vec<u8>)>,
}

impl World {
    pub(super) fn new() -> Self {
        World::with(Durability::Memory)
    }

    pub(super) fn with(durability: Durability) -> Self {
        if durability.is_stored() {
            return World::reopen(FakeDisk::default(), durability);
        }
        let options = Options {
            shard: 0,
            durable: false,
        };
        let broker = Broker::new(Log::in_memory(LogOptions::default()), options);
        World::of(broker, FakeDisk::default(), durability)
    }

    /// The same topic after a restart.
    pub(super) fn reopen(disk: FakeDisk, durability: Durability) -> Self {
        let disk = disk.reopened();
        let recovered = disk.recover();
        let options = Options {
            shard: 0,
            durable: true,
        };
        let mut broker = Broker::new(recovered.log, options);
        broker
            .restore(&disk.records(), &recovered.cursors, START)
            .expect("the records are good");
        World::of(broker, disk, durability)
    }

    fn of(broker: Broker, disk: FakeDisk, durability: Durability) -> Self {
        let mut world = World {
            broker,
            disk,
            now: START,
            topic: TopicId(0),
            producer: ProducerId { slot: 0, serial: 0 },
            sequence: 0,
            granters: BTreeMap::new(),
            wish: Wish::default(),
            hashes: Vec::new(),
            parts: Vec::new(),
            told: Vec::new(),
            first_ledger: None,
            got: Vec::new(),
            receipts: Vec::new(),
            replies: Vec::new(),
            resets: Vec::new(),
            ended: Vec::new(),
            fenced: Vec::new(),
            mail: Mail::Works,
            letters: Vec::new(),
            read: Vec::new(),
        };
        let name = "t".to_owned();
        let open = Request::OpenTopic { name, durability };
        let Ok(Reply::Topic(topic)) = world.ask(open) else {
            panic!("no topic")
        };
        world.topic = topic;
        let open = Request::from(OpenProducer::shared(topic, "p"));
        match world.ask(open) {
            Ok(Reply::Producer(opened)) => world.producer = opened.id,
            Err(RequestError::Terminated { .. }) => {}
            other => panic!("{other:?}"),
        }
        world
    }

    pub(super) fn send(&mut self, event: Event<'_>) {
        assert_eq!(self.broker.handle(event, self.now), Handled::Taken);
    }

    pub(super) fn ask(&mut self, request: Request) -> Result<Reply, RequestError> {
        assert!(self.replies.is_empty(), "an answer nobody took");
        self.begin(request);
        for _ in 0..100 {
            self.carry_out_all();
            if let Some(reply) = self.replies.pop() {
                return reply;
            }
            self.now.mono_ns += 1;
            self.send(Event::Tick);
        }
        panic!("no answer");
    }

    /// Asks and does not wait for the answer.
    pub(super) fn begin(&mut self, request: Request) {
        self.send(Event::Request {
            id: RequestId(1),
            request,
        });
    }

    fn carry_out_all(&mut self) {
        loop {
            while let Some(effect) = self.broker.poll_effect() {
                self.carry_out(effect);
            }
            if self.carry_mail() {
                continue;
            }
            let Some(done) = self.disk.next_done() else {
                return;
            };
            self.send(done);
        }
    }

    /// Hands on the letters that are on their way; true if there were some.
    fn carry_mail(&mut self) -> bool {
        if self.mail == Mail::Holds {
            return false;
        }
        let letters = std::mem::take(&mut self.letters);
        let any = !letters.is_empty();
        for (token, letter) in letters {
            if self.mail == Mail::Fails {
                let stored = false;
                self.send(Event::DeadLettered { token, stored });
                continue;
            }
            let request = Request::DeadLetter(letter);
            let id = RequestId(LETTER + token);
            self.send(Event::Request { id, request });
        }
        any
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::HandOver { consumer, run } => {
                for slot in run.first_slot..run.first_slot + run.count {
                    let meta = run.block.meta(slot);
                    self.got
                        .push((consumer, meta.position, meta.messages, run.redeliveries));
                    let properties = run.block.properties(slot);
                    if !properties.is_empty() {
                        let body = run.block.body(slot).to_vec();
                        self.read.push((properties.to_vec(), body));
                    }
                    if let Some(still) = &run.still {
                        self.parts.push((meta.position, still.to_vec()));
                    }
                }
            }
            Effect::Active { consumer, active } => self.told.push((consumer, active)),
            Effect::Receipts(receipts) => self.receipts.push(receipts),
            Effect::Reply { id, reply } if id.0 >= LETTER => {
                if self.mail == Mail::Works {
                    self.send(Event::DeadLettered {
                        token: id.0 - LETTER,
                        stored: reply.is_ok(),
                    });
                }
            }
            Effect::Reply { reply, .. } => self.replies.push(reply),
            Effect::DeadLetter { token, letter } => self.letters.push((token, letter)),
            Effect::Reset {
                consumer,
                becomes,
                granter,
            } => {
                self.granters.remove(&consumer);
                self.granters.insert(becomes, granter);
                self.resets.push((consumer, becomes));
            }
            Effect::EndOfTopic { consumer } => self.ended.push(consumer),
            Effect::Fenced { producer } => self.fenced.push(producer),
            Effect::Terminated { .. } | Effect::LogState(_) => {}
            other => self.disk.carry_out(other),
        }
    }

    /// Runs until nothing moves; returns how many deliveries that made.
    pub(super) fn settle(&mut self) -> usize {
        let before = self.got.len();
        loop {
            self.now.mono_ns += 1;
            self.send(Event::Tick);
            self.carry_out_all();
            self.check();
            if !self.broker.has_work() {
                return self.got.len() - before;
            }
        }
    }

    pub(super) fn publish(&mut self, entries: usize, messages: u32) {
        for _ in 0..entries {
            self.publish_keyed(0, messages);
        }
    }

    pub(super) fn publish_keyed(&mut self, key_hash: u32, messages: u32) {
        self.publish_with(|entry| {
            entry.key_hash = key_hash;
            entry.messages = messages;
        });
    }

    /// An entry of one message, unless `with` says something else.
    pub(super) fn publish_with(&mut self, with: impl FnOnce(&mut Publish<'_>)) {
        let (sequence, body) = (self.sequence, self.sequence.to_le_bytes());
        let mut entry = Publish {
            body: &body,
            messages: 1,
            sequence,
            arrived_ns: 1,
            ..Publish::default()
        };
        with(&mut entry);
        let key_hash = entry.key_hash;
        self.send(Event::Publish {
            producer: self.producer,
            entry: &entry,
        });
        self.hashes.push(key_hash);
        self.sequence += 1;
    }

    pub(super) fn try_attach(
        &mut self,
        slot: u32,
        kind: SubscriptionKind,
    ) -> Result<ConsumerId, RequestError> {
        self.subscribe("s", slot, |asked| asked.kind = kind)
    }

    /// Shared, from the first entry, durable, as wished, unless `ask` says something else.
    pub(super) fn subscribe(
        &mut self,
        subscription: &str,
        slot: u32,
        ask: impl FnOnce(&mut Subscribe),
    ) -> Result<ConsumerId, RequestError> {
        let (granter, account) = Granter::pair();
        let name = self.wish.name.clone().unwrap_or_else(|| format!("c{slot}"));
        let mut asked = Subscribe {
            topic: self.topic,
            subscription: subscription.to_owned(),
            kind: SubscriptionKind::Shared,
            initial: InitialPosition::Earliest,
            consumer: name,
            priority_level: self.wish.priority_level,
            durable: true,
            key_shared: self.wish.key_shared.clone(),
            account,
            slot,
        };
        ask(&mut asked);
        match self.ask(Request::Subscribe(Box::new(asked)))? {
            Reply::Consumer(id) => {
                self.granters.insert(id, granter);
                Ok(id)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn attach(&mut self, slot: u32) -> ConsumerId {
        self.try_attach(slot, self.wish.kind).unwrap()
    }

    pub(super) fn flow(&mut self, consumer: ConsumerId, permits: u32) -> usize {
        if self.granters.get_mut(&consumer).unwrap().grant(permits) == Grant::Ring {
            self.send(Event::Granted { consumer });
        }
        self.settle()
    }

    pub(super) fn ack(&mut self, consumer: ConsumerId, position: Position) {
        self.send(Event::Ack { consumer, position });
    }

    pub(super) fn nack(&mut self, consumer: ConsumerId, position: Position) {
        self.send(Event::Nack {
            consumer,
            position,
            delay_ns: None,
        });
    }

    pub(super) fn ack_all(&mut self) {
        for (consumer, position, ..) in self.got.clone() {
            self.ack(consumer, position);
        }
        self.settle();
    }

    pub(super) fn close(&mut self, consumer: ConsumerId) {
        let done = self.ask(Request::CloseConsumer { consumer });
        assert!(matches!(done, Ok(Reply::Done)));
        self.settle();
    }

    pub(super) fn stats(&mut self) -> SubscriptionStats {
        let Ok(Reply::Stats(mut stats)) = self.ask(Request::Stats) else {
            panic!("no stats")
        };
        stats.topics[0].subscriptions.remove(0)
    }

    /// Why the first subscription, or a consumer of it, is not moving: since when, and what.
    pub(super) fn why(&mut self) -> Vec<(u64, Why)> {
        let topic = Some(self.topic);
        let Ok(Reply::Explain(mut all)) = self.ask(Request::Explain { topic }) else {
            panic!("no explanation")
        };
        let reasons = all.drain(..).next().map_or(Vec::new(), |one| one.reasons);
        reasons
            .into_iter()
            .map(|reason| (reason.since_unix_ms, reason.why))
            .collect()
    }

    /// Both clocks go on, to this Unix millisecond, and nothing is due meanwhile.
    pub(super) fn at_ms(&mut self, wall_ms: u64) {
        self.now = Now {
            mono_ns: wall_ms * 1_000_000,
            wall_ms,
        };
    }

    pub(super) fn permits(&mut self, name: &str) -> i64 {
        let stats = self.stats();
        stats
            .consumers
            .iter()
            .find(|c| c.name == name)
            .unwrap()
            .available_permits
    }

    /// What holds after every step: the sums of rule D102 agree, and at rest nobody with permits
    /// waits beside a backlog that could go (T3).
    pub(super) fn check(&mut self) {
        let stats = self.broker.stats();
        for sub in &stats.topics[0].subscriptions {
            let held: u64 = sub.consumers.iter().map(|c| c.unacked_messages).sum();
            assert_eq!(held, sub.unacked_messages);
            assert!(sub.unacked_messages <= sub.backlog_messages);
            let rotation = [SubscriptionKind::Exclusive, SubscriptionKind::Shared];
            if !rotation.contains(&self.wish.kind) || self.wish.capped {
                continue;
            }
            let waiting = sub.backlog_messages > sub.unacked_messages && !sub.seeking;
            let asked = sub.consumers.iter().any(|c| c.available_permits > 0);
            assert!(
                self.broker.has_work() || !(waiting && asked),
                "a lost wake-up: {sub:?}"
            );
        }
    }

    /// Lets time pass, and whatever it brings happen; returns how many deliveries that made.
    pub(super) fn pass_ns(&mut self, ns: u64) -> usize {
        let (before, until) = (self.got.len(), self.now.mono_ns + ns);
        while let Some(due_ns) = self
            .broker
            .next_deadline()
            .filter(|&due_ns| due_ns <= until)
        {
            self.move_clocks(due_ns.saturating_sub(1));
            self.settle();
        }
        self.move_clocks(until);
        self.settle();
        self.got.len() - before
    }

    /// Both clocks go on, at least to there.
    fn move_clocks(&mut self, mono_ns: u64) {
        let mono_ns = self.now.mono_ns.max(mono_ns);
        self.now.wall_ms += mono_ns / 1_000_000 - self.now.mono_ns / 1_000_000;
        self.now.mono_ns = mono_ns;
    }

    /// Lets time pass until the wall clock shows so many milliseconds.
    pub(super) fn pass_until_ms(&mut self, wall_ms: u64) -> usize {
        let ms = wall_ms - self.now.wall_ms;
        let into_ms = self.now.mono_ns % 1_000_000;
        self.pass_ns(ms * 1_000_000 - into_ms.min(ms * 1_000_000))
    }

    pub(super) fn policy(&mut self, policy: Policy) -> usize {
        let (topic, policy) = (self.topic, Box::new(policy));
        let done = self.ask(Request::SetPolicy { topic, policy });
        assert!(matches!(done, Ok(Reply::Done)));
        self.settle()
    }

    /// Entry numbers that a consumer got, in order; forgets them all.
    pub(super) fn take_entries(&mut self) -> Vec<(u32, u64)> {
        let got = std::mem::take(&mut self.got);
        got.into_iter()
            .map(|got| (got.0.slot, got.1.entry))
            .collect()
    }
}
