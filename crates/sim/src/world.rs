//! The world: shards of the real core on one thread, their disks, metadata and clients, and the oracle.

use std::collections::BTreeMap;

use pelton_broker::storage::{Durability, Options as LogOptions};
use pelton_broker::{ConsumerId, InitialPosition, Now, Policy, TopicRecord};

use crate::chance::Chance;
use crate::clients::{Consumer, Producer};
use crate::core::{Ask, Core, Out};
use crate::disk::Disk;
use crate::meta::Meta;
use crate::oracle::{Check, Life, Oracle, Topic, Violation, hold};
use crate::reopen::Ending;
use crate::replies::Asked;
use crate::steps::{End, Step};
use crate::wishes::wish;

/// Rounds after which a shard must have come to rest.
const ROUNDS_MAX: u32 = 3_000;
/// A shard that only waits for room on its disk looks again for ever; so often is enough.
const IDLE_ROUNDS_MAX: u32 = 12;

const DURABILITIES: [Durability; 4] = [
    Durability::Synced,
    Durability::Memory,
    Durability::Written,
    Durability::NonPersistent,
];

/// The seeded world.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: Now,
    pub(crate) shards: Vec<Shard>,
    pub(crate) meta: Meta,
    pub(crate) oracle: Oracle,
    pub(crate) producers: Vec<Producer>,
    pub(crate) consumers: Vec<Consumer>,
    /// Requests without an answer.
    pub(crate) asked: BTreeMap<u64, (usize, Asked)>,
    /// Consumers that were just told the end of their topic.
    told_end: Vec<usize>,
    pub(crate) last_request: u64,
    pub(crate) last_entry: u64,
    pub(crate) totals: Totals,
}

#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) core: Core,
    pub(crate) disk: Disk,
    options: LogOptions,
    /// Consumers whose grant rang the doorbell.
    pub(crate) bells: Vec<usize>,
    pub(crate) poisoned: bool,
    pub(crate) meta_failed: bool,
}

/// What a run of the world came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Entries taken.
    pub entries: u64,
    /// Entries handed over.
    pub delivered: u64,
    /// Lives of the engine.
    pub lives: u64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Result<World, Violation> {
        let mut chance = Chance(seed ^ 0x0B5E_55ED);
        let shards = 1 + chance.below(3) as usize;
        let topics = 2 + chance.below(4) as usize;
        let first = chance.below(4) as usize;
        let topic = |at: usize| Topic {
            name: match at % 2 {
                0 => format!("t{at}"),
                _ => format!("t{at}-partition-{at}"),
            },
            shard: at % shards,
            durability: DURABILITIES[(first + at) % DURABILITIES.len()],
            life: None,
            former: Vec::new(),
        };
        let oracle = Oracle {
            topics: (0..topics).map(topic).collect(),
            last_ack: crate::oracle::FOUND,
            last_life: 0,
        };
        let mut world = World {
            now: Now {
                mono_ns: 1_000_000_000,
                wall_ms: 1_700_000_000_000,
            },
            shards: Vec::new(),
            meta: Meta::new(shards),
            oracle,
            producers: Vec::new(),
            consumers: Vec::new(),
            asked: BTreeMap::new(),
            told_end: Vec::new(),
            last_request: 0,
            last_entry: 0,
            totals: Totals::default(),
        };
        for at in 0..shards {
            let options = log_options(&mut chance, at);
            let shard = world.open(at, Disk::default(), options)?.0;
            world.shards.push(shard);
        }
        Ok(world)
    }

    fn open(
        &self,
        at: usize,
        mut disk: Disk,
        options: LogOptions,
    ) -> Result<(Shard, Vec<crate::core::Found>, bool), Violation> {
        let opened = Core::open(at, &options, &mut disk, &self.meta.records(), self.now);
        let opened = opened.map_err(|what| Violation {
            rule: "recovery",
            what,
        })?;
        let shard = Shard {
            core: opened.core,
            disk,
            options,
            bells: Vec::new(),
            poisoned: false,
            meta_failed: false,
        };
        Ok((shard, opened.found, opened.clean))
    }

    /// Carries out one step, then checks what it touched.
    pub(crate) fn step(&mut self, step: Step) -> Check {
        self.now.mono_ns += 1_000;
        match step {
            Step::Turn { shard } => self.turn(self.shard(shard)),
            Step::Complete { shard, pick } => {
                let shard = self.shard(shard);
                self.complete(shard, usize::from(pick));
                self.pump(shard)
            }
            Step::Settle { shard } => self.settle(self.shard(shard)),
            Step::Pass { micros } => {
                self.now.mono_ns += u64::from(micros) * 1_000;
                self.now.wall_ms += u64::from(micros) / 1_000;
                Ok(())
            }
            Step::SetWall { back, seconds } => {
                let ms = u64::from(seconds) * 1_000;
                let wall = self.now.wall_ms;
                self.now.wall_ms = if back {
                    wall.saturating_sub(ms)
                } else {
                    wall + ms
                };
                Ok(())
            }
            Step::Fault {
                shard,
                fault,
                chance,
            } => {
                let shard = self.shard(shard);
                self.shards[shard].disk.fault(fault, u64::from(chance));
                Ok(())
            }
            Step::MetaFault { shard } => {
                let shard = self.shard(shard);
                self.meta.fail_next(shard);
                self.shards[shard].meta_failed = true;
                Ok(())
            }
            Step::Crash { end, chance } => self.crash(end, u64::from(chance)),
            of_client => self.client_step(of_client),
        }
    }

    fn shard(&self, pick: u8) -> usize {
        usize::from(pick) % self.shards.len()
    }

    pub(crate) fn ask(&mut self, shard: usize, ask: Ask, asked: Asked) -> Check {
        self.last_request += 1;
        self.asked.insert(self.last_request, (shard, asked));
        let (id, now) = (self.last_request, self.now);
        self.shards[shard].core.ask(id, ask, now);
        self.pump(shard)
    }

    pub(crate) fn turn(&mut self, at: usize) -> Check {
        let now = self.now;
        let shard = &mut self.shards[at];
        for consumer in std::mem::take(&mut shard.bells) {
            if let Some(id) = self.consumers[consumer].id {
                shard.core.granted(id, now);
            }
        }
        self.oracle.tick(at, now.mono_ns);
        shard.core.tick(now);
        self.pump(at)?;
        self.oracle.check_passed(at, &self.consumers)?;
        let shard = &self.shards[at];
        // Within a millisecond of a deadline it may wait for a buffer.
        let soon = |at: u64| at <= now.mono_ns + 1_000_000;
        let waits = shard.core.next_deadline().is_some_and(soon);
        if !self.in_flight(at) && !waits && !shard.core.has_work() && !shard.disk.lied {
            self.oracle
                .check_rest(at, shard.poisoned, &self.consumers)?;
        }
        Ok(())
    }

    fn in_flight(&self, at: usize) -> bool {
        self.shards[at].disk.in_flight() > 0 || self.meta.in_flight(at)
    }

    /// Ends one operation in flight, if there is one.
    fn complete(&mut self, at: usize, pick: usize) {
        let (shard, now) = (&mut self.shards[at], self.now);
        let disk = shard.disk.in_flight();
        let all = disk + usize::from(self.meta.in_flight(at));
        if all == 0 {
            return;
        }
        if pick % all < disk {
            let done = shard.disk.complete(pick % all);
            shard.core.disk_done(done, now);
        } else if let Some(done) = self.meta.complete(at) {
            shard.core.meta_done(done, now);
        }
    }

    /// Turns and completions until nothing is left to do; then nobody may be left waiting.
    pub(crate) fn settle(&mut self, at: usize) -> Check {
        let mut idle = 0;
        for _ in 0..ROUNDS_MAX {
            let completions = self.in_flight(at);
            while self.in_flight(at) {
                self.complete(at, 0);
                self.pump(at)?;
            }
            self.turn(at)?;
            let core = &self.shards[at].core;
            let due = core.next_deadline();
            if core.has_work()
                || self.in_flight(at)
                || due.is_some_and(|due| due <= self.now.mono_ns)
            {
                self.now.mono_ns += 1_000;
                continue;
            }
            if completions && self.shards[at].disk.has_room() {
                idle = 0;
            }
            idle += 1;
            match due {
                Some(due) if idle < IDLE_ROUNDS_MAX => {
                    // A buffer that nobody came for is free after a second.
                    let least = if idle > 4 { 300_000_000 } else { 1_000 };
                    self.now.mono_ns = due.max(self.now.mono_ns + least);
                }
                _ => return self.check_settled(at),
            }
        }
        hold("rest", false, || {
            format!("shard {at} does not come to rest")
        })
    }

    fn check_settled(&mut self, at: usize) -> Check {
        let shard = &self.shards[at];
        if !shard.disk.lied {
            self.oracle
                .check_rest(at, shard.poisoned, &self.consumers)?;
        }
        if shard.poisoned || !shard.disk.has_room() {
            return Ok(());
        }
        let waiting = self.asked.values().find(|asked| asked.0 == at);
        hold("D20 no answer", waiting.is_none(), || {
            format!("{waiting:?}")
        })?;
        self.oracle.check_keeping(at, self.now.wall_ms)?;
        if shard.core.next_deadline().is_some() {
            return Ok(());
        }
        self.oracle
            .check_ends(at, &self.consumers, &self.producers)?;
        self.oracle.check_settled(at)
    }

    /// Carries out what the core asks for, and checks everything it did.
    pub(crate) fn pump(&mut self, at: usize) -> Check {
        let shard = &mut self.shards[at];
        let out = shard.core.drain(&mut shard.disk, &mut self.meta, self.now);
        for out in out {
            self.take(at, out)?;
        }
        let shard = &mut self.shards[at];
        let misuse = shard.disk.misuse.take();
        hold("T5 disk", misuse.is_none(), || format!("{misuse:?}"))?;
        let stats = shard.core.stats(self.now).map_err(|what| Violation {
            rule: "T8 statistics",
            what,
        })?;
        let (lied, next_ns) = (shard.disk.lied, shard.core.next_deadline());
        let look = (lied, self.now.wall_ms);
        self.oracle.check_stats(at, &stats, look, &self.consumers)?;
        self.oracle.check_owed(at, next_ns)?;
        for told in std::mem::take(&mut self.told_end) {
            // One whose attachment a seek has ended since had nothing left before it.
            let consumer = &self.consumers[told];
            if consumer.at_end {
                self.oracle.check_end(told, consumer)?;
            }
        }
        Ok(())
    }

    fn take(&mut self, at: usize, out: Out) -> Check {
        match out {
            Out::HandOver(run) => {
                let found = self.attached(at, run.consumer)?;
                self.totals.delivered += run.entries.len() as u64;
                let lied = self.shards[at].disk.lied;
                self.oracle
                    .delivered(found, &mut self.consumers, &run, lied)
            }
            Out::Reset(id, becomes, granter) => {
                let found = self.attached(at, id)?;
                self.consumers[found].begin_again(becomes, granter);
                let sub = self.oracle.sub_of(&self.consumers[found]);
                let owed = sub.and_then(|(sub, _)| {
                    let owed = sub.to_reset.iter().position(|&owed| owed == found)?;
                    Some(sub.to_reset.remove(owed))
                });
                hold("D133 reset", owed.is_some(), || {
                    format!("nobody sought under {id:?}")
                })
            }
            Out::EndOfTopic(id) => {
                let found = self.attached(at, id)?;
                let again = std::mem::replace(&mut self.consumers[found].at_end, true);
                self.told_end.push(found);
                hold("D132 end", !again, || {
                    format!("consumer {found} is told again")
                })
            }
            Out::Terminated(id) => {
                let topics = &self.oracle.topics;
                let of = |p: &&mut Producer| topics[p.topic].shard == at && p.id == Some(id);
                let producer = self.producers.iter_mut().find(of);
                let first = producer.map(|producer| !std::mem::replace(&mut producer.at_end, true));
                hold("D132 end", first == Some(true), || {
                    format!("{id:?} is told again: {first:?}")
                })
            }
            Out::Active(id, active) => {
                let found = self.attached(at, id)?;
                let sub = self.oracle.sub_of(&self.consumers[found]);
                let election = sub.and_then(|(sub, _)| sub.election.as_mut());
                match election {
                    Some(election) => election.told(found, active),
                    None => hold("D75 notice", false, || format!("{id:?} is no candidate")),
                }
            }
            Out::Receipts(receipts) => self.receipts(at, receipts),
            Out::Reply(id, reply) => {
                let asked = self.asked.remove(&id);
                hold("D20 answers", asked.is_some(), || {
                    format!("{id} is answered twice")
                })?;
                match asked {
                    Some((_, asked)) => self.answered(at, asked, reply),
                    None => Ok(()),
                }
            }
            Out::Record(record) => {
                self.note_keys(&record);
                Ok(())
            }
            Out::Poisoned => {
                self.shards[at].poisoned = true;
                hold("poisoned", self.shards[at].disk.harmed, || {
                    "nothing failed on the disk".to_owned()
                })
            }
        }
    }

    /// Whom something is for. One that was not told yet that it is attached is known by its slot.
    fn attached(&mut self, at: usize, id: ConsumerId) -> Result<usize, Violation> {
        let topics = &self.oracle.topics;
        let found = self.consumers.iter().position(|c| {
            let here = c.attached && topics[c.topic].shard == at && c.slot == id.slot;
            here && c.id.is_none_or(|known| known == id)
        });
        let found = found.ok_or_else(|| Violation {
            rule: "T7 nobody",
            what: format!("{id:?} is not attached"),
        })?;
        self.consumers[found].id = Some(id);
        Ok(found)
    }

    /// A record names the durable ids: what recovery finds is known by them.
    fn note_keys(&mut self, record: &TopicRecord) {
        let named = |topic: &&mut Topic| topic.name == record.name;
        let topic = self.oracle.topics.iter_mut().find(named);
        if let Some(life) = topic.and_then(|topic| topic.life.as_mut()) {
            life.key = record.key;
            for stored in &record.subscriptions {
                if let Some(sub) = life.sub(&stored.name) {
                    sub.key = stored.key;
                }
            }
        }
    }

    /// A topic is no longer in the core, with all that was attached to it.
    pub(crate) fn forget_topic(&mut self, topic: usize) {
        let state = &mut self.oracle.topics[topic];
        if let Some(life) = state.life.take() {
            state.former.push(life);
        }
        for consumer in self.consumers.iter_mut().filter(|c| c.topic == topic) {
            consumer.attached = false;
        }
    }

    pub(crate) fn forget_sub(&mut self, topic: usize, name: &str) {
        if let Some(life) = &mut self.oracle.topics[topic].life {
            life.subs.retain(|sub| sub.name != name);
        }
        let of_sub = |c: &&mut Consumer| c.topic == topic && c.sub == name;
        for consumer in self.consumers.iter_mut().filter(of_sub) {
            consumer.attached = false;
        }
    }

    pub(crate) fn holds(&mut self, consumer: usize) -> Vec<usize> {
        let sub = self.oracle.sub_of(&self.consumers[consumer]);
        sub.map_or_else(Vec::new, |(sub, _)| sub.held_by(consumer))
    }

    /// The process ends, in order or not, and the next one opens what is left.
    fn crash(&mut self, end: End, chance: u64) -> Check {
        self.totals.lives += 1;
        let mut chance = Chance(chance);
        let mut orderly = vec![false; self.shards.len()];
        if end == End::Stop {
            self.meta.heal();
            for (at, orderly) in orderly.iter_mut().enumerate() {
                self.shards[at].disk.heal();
                self.shards[at].core.close();
                self.pump(at)?;
                self.settle_stop(at)?;
                *orderly = !self.shards[at].poisoned;
                let quiet = self.shards[at].core.quiet();
                hold("stop", quiet, || {
                    format!("shard {at} is not quiet after its stop")
                })?;
            }
        }
        let power = end == End::PowerCut || end == End::Stop && chance.one_in(2);
        self.meta.crash(&mut chance);
        (self.producers, self.consumers) = (Vec::new(), Vec::new());
        self.asked.clear();
        for (at, orderly) in orderly.into_iter().enumerate() {
            let shard = &mut self.shards[at];
            let ending = Ending {
                orderly,
                loses_written: power || shard.disk.lied,
            };
            shard.disk.crash(power, &mut chance);
            let disk = std::mem::take(&mut shard.disk);
            let options = shard.options.clone();
            let (shard, found, clean) = self.open(at, disk, options)?;
            hold("stop", clean || !orderly, || {
                format!("shard {at} left no mark")
            })?;
            self.shards[at] = shard;
            self.oracle.reopened(at, found, ending)?;
            self.pump(at)?;
        }
        Ok(())
    }

    /// After a close: turns until the core says that it is done.
    fn settle_stop(&mut self, at: usize) -> Check {
        for round in 0..ROUNDS_MAX {
            self.turn(at)?;
            while self.in_flight(at) {
                self.complete(at, 0);
                self.pump(at)?;
            }
            if self.shards[at].core.quiet() {
                break;
            }
            let due = self.shards[at].core.next_deadline().unwrap_or(0);
            // Records look for room more often than files are tried again.
            let least = if round > 200 { 10_000_000 } else { 1_000 };
            self.now.mono_ns = due.max(self.now.mono_ns + least);
        }
        Ok(())
    }

    /// The end of every run: with a disk that works again, everything that was promised reaches a
    /// consumer, and once it is acked nothing of it comes back.
    pub(crate) fn finish(&mut self) -> Check {
        for round in 0..2 {
            self.meta.heal();
            for at in 0..self.shards.len() {
                self.shards[at].disk.heal();
                self.settle(at)?;
            }
            if round == 0 && self.shards.iter().any(|shard| shard.poisoned) {
                self.crash(End::Kill, round)?;
            }
        }
        for consumer in 0..self.consumers.len() {
            self.close_consumer(consumer)?;
        }
        let mut drained = Vec::new();
        for topic in 0..self.oracle.topics.len() {
            drained.extend(self.drain(topic)?);
        }
        self.crash(End::PowerCut, 1)?;
        for topic in &self.oracle.topics {
            let subs = topic.life.iter().flat_map(|life| &life.subs);
            // One whose deletion failed may be there again.
            for sub in subs.filter(|sub| drained.contains(&sub.key)) {
                let len = topic.life.as_ref().map_or(0, |life| life.entries.len());
                let lowest = sub.cursor.lowest_unacked(len);
                let durable = topic.durability == Durability::Written || lowest == len;
                hold("T7 ack lost", durable, || {
                    format!("{}/{} starts at {lowest} of {len}", topic.name, sub.name)
                })?;
            }
        }
        Ok(())
    }

    /// Gives everything of a topic to new consumers, and acks it; gives the ids of its subscriptions.
    fn drain(&mut self, topic: usize) -> Result<Vec<u64>, Violation> {
        let at = self.oracle.topics[topic].shard;
        if self.oracle.topics[topic].life.is_none() {
            return Ok(Vec::new());
        }
        self.open_topic(topic, false)?;
        self.settle(at)?;
        let subs = self
            .oracle
            .life(topic)
            .subs
            .iter()
            .filter(|sub| sub.durable);
        let subs: Vec<_> = subs.map(|sub| (sub.key, sub.name.clone())).collect();
        for (_, name) in &subs {
            let consumer = self.consumers.len();
            let shared = wish((0, false), u8::MAX, 0);
            self.subscribe(topic, name, (shared, InitialPosition::Earliest), 1 << 30)?;
            self.settle(at)?;
            // Its unacked cap may let it have no more than a part at a time, and some may be delayed.
            loop {
                let held = self.holds(consumer);
                let sub = self.oracle.life(topic).sub(name);
                if held.is_empty() && sub.and_then(|sub| sub.due_ns()).is_none() {
                    break;
                }
                for index in held {
                    self.ack(consumer, index)?;
                }
                self.settle(at)?;
            }
            self.flush_acks(consumer)?;
            self.settle(at)?;
        }
        Ok(subs.into_iter().map(|(key, _)| key).collect())
    }

    pub(crate) fn new_life(&mut self) -> Life {
        self.oracle.last_life += 1;
        Life {
            serial: self.oracle.last_life,
            policies: vec![(Policy::default(), true)],
            ..Life::default()
        }
    }
}

/// Small sizes, so that a short run sees rolls, evictions and full buffers.
fn log_options(chance: &mut Chance, shard: usize) -> LogOptions {
    LogOptions {
        segment_bytes: 64 << 10,
        tail_bytes: 8 << 10 << chance.below(4),
        read_buffers: 1 + chance.below(6) as u32,
        read_buffer_bytes: 16 << 10 << chance.below(2),
        gather_bytes_max: 32 << 10 << chance.below(4),
        slice_bytes: 4_096 << chance.below(5),
        spares_max: 2 + chance.below(3) as u32,
        memory_backlog_bytes: 64 << 10 << chance.below(5),
        entry_bytes_max: 24 << 10,
        ack_delay_ns: [20_000, 5_000_000, 100_000_000][chance.below(3) as usize],
        log_id: 0x51E9 + shard as u128,
        ..LogOptions::default()
    }
}
