//! Random appends, acks, trims, syncs and crashes against a model: what was receipted is never
//! lost, order is kept, nothing appears that was not appended, and acks never go back behind what
//! was promised.
use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::disk::{Disk, Rng};
use super::{World, recover};
use crate::{
    AckDelta, Durability, Hints, NewEntry, Options, Position, Refused, SubKey, Ticket, TopicKey,
    TopicSlot,
};

#[derive(Clone, Debug)]
struct Entry {
    position: Position,
    body: Vec<u8>,
    messages: u32,
    hints: Hints,
    ticket: Ticket,
    /// Its receipt went out.
    receipted: bool,
    /// A sync proved it, so a power cut must not lose it either.
    synced: bool,
}

#[derive(Clone, Debug, Default)]
struct SubModel {
    /// Acked in memory, and the ticket of each ack.
    acked: BTreeMap<Position, Ticket>,
    /// Acks a sync proved.
    synced: BTreeSet<Position>,
    /// Messages acked of entries that are not acked whole, and the ticket of each ack.
    parts: BTreeMap<Position, BTreeMap<u32, Ticket>>,
    /// Those a sync proved.
    parts_synced: BTreeMap<Position, BTreeSet<u32>>,
}

#[derive(Debug)]
struct TopicModel {
    key: TopicKey,
    durability: Durability,
    slot: TopicSlot,
    entries: Vec<Entry>,
    subs: Vec<SubModel>,
}

struct Model {
    world: World,
    topics: Vec<TopicModel>,
    rng: Rng,
    bodies: u64,
    synced: Ticket,
    /// In this life the disk may fail.
    faults: bool,
    /// A sync failed: what the page cache held may be gone.
    lied: bool,
    log: Vec<String>,
}

const SUBS: usize = 2;

fn options(rng: &mut Rng) -> Options {
    Options {
        // The longer ones are written through ahead of their tail.
        segment_bytes: if rng.one_in(4) { 1 << 20 } else { 64 << 10 },
        tail_bytes: 16 << 10 << rng.below(3),
        read_buffers: 2 + rng.below(6) as u32,
        spares_max: 2 + rng.below(3) as u32,
        block_bytes: 4096 << rng.below(5),
        commit_bytes: 4096 << rng.below(6),
        slice_bytes: 4096 << rng.below(5),
        ack_delay_ns: 20_000,
        log_id: 99,
        ..Options::default()
    }
}

fn some_hints(rng: &mut Rng) -> Hints {
    let mut some = |below| if rng.one_in(4) { rng.below(below) } else { 0 };
    Hints {
        key_hash: some(1 << 32) as u32,
        publish_ms: some(u64::MAX),
        deliver_at_ms: some(1 << 42),
        deadline_ms: some(1 << 42),
    }
}

/// Indexes of the messages that a set says are acked.
fn acked_in(words: &[u64], messages: u32) -> impl Iterator<Item = u32> {
    (0..messages).filter(|index| {
        let word = words.get((index / 64) as usize).copied().unwrap_or(0);
        word >> (index % 64) & 1 == 0
    })
}

impl SubModel {
    fn ack_part(&mut self, entry: &Entry, words: &[u64], ticket: Ticket) {
        if self.acked.contains_key(&entry.position) {
            return;
        }
        let parts = self.parts.entry(entry.position).or_default();
        for index in acked_in(words, entry.messages) {
            parts.entry(index).or_insert(ticket);
        }
        if parts.len() as u32 == entry.messages {
            self.acked.insert(entry.position, ticket);
        }
    }

    /// Compares what was found of a partly acked entry, and goes on from it.
    fn found_part(&mut self, entry: &Entry, words: Option<&[u64]>) {
        let at = entry.position;
        let found: BTreeSet<u32> = words
            .map(|words| acked_in(words, entry.messages).collect())
            .unwrap_or_default();
        let known = self.parts.remove(&at).unwrap_or_default();
        let promised = self.parts_synced.remove(&at).unwrap_or_default();
        assert!(
            found.iter().all(|index| known.contains_key(index)),
            "never acked of {at:?}"
        );
        assert!(promised.is_subset(&found), "promised of {at:?}");
        assert!(words.is_none_or(|words| words.last().is_some_and(|&word| word != 0)));
        if !found.is_empty() {
            let again = found.iter().map(|&index| (index, Ticket(0)));
            self.parts.insert(at, again.collect());
            self.parts_synced.insert(at, found);
        }
    }
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut rng = Rng(seed);
        let mut world = World::new(options(&mut rng));
        let mut topics = Vec::new();
        // A `written` topic makes the log write inline.
        let some_written = rng.one_in(2);
        for key in 1..=3 {
            let durability = if key == 3 && some_written {
                Durability::Written
            } else {
                Durability::Synced
            };
            let key = TopicKey(key);
            let slot = world.log.open_topic(key, durability);
            for sub in 0..SUBS as u64 {
                world.log.open_sub(slot, SubKey(sub), None);
            }
            let subs = vec![SubModel::default(); SUBS];
            topics.push(TopicModel {
                key,
                durability,
                slot,
                entries: Vec::new(),
                subs,
            });
        }
        Model {
            world,
            topics,
            rng,
            bodies: 0,
            synced: Ticket(0),
            faults: false,
            lied: false,
            log: Vec::new(),
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..40 => self.append(),
            40..60 => self.ack(),
            60..70 => self.trim(),
            70..85 => self.world.turn(),
            85..97 => {
                let count = self.world.in_flight.len() as u64;
                if count > 0 {
                    let index = self.rng.below(count) as usize;
                    self.world.complete(index);
                }
            }
            97 => self.world.settle(),
            98 => self.read_some(),
            _ => self.misfortune(),
        }
        self.note_receipts();
    }

    /// Time passes, and now and then the disk fails or fills.
    fn misfortune(&mut self) {
        self.world.now_ns += 50_000;
        let disk = &mut self.world.disk;
        match self.rng.below(if self.faults { 12 } else { 1000 }) {
            0 => (disk.fail_sync, self.lied) = (true, true),
            1 => disk.fail_write = true,
            2..4 => disk.short_write = Some(self.rng.below(9000) as usize),
            4 => disk.files_max = Some(disk.files.len() + self.rng.below(2) as usize),
            5 => {
                disk.files_max = None;
                self.world.now_ns += 2_000_000_000;
            }
            _ => {}
        }
    }

    fn append(&mut self) {
        let index = self.rng.below(3) as usize;
        let len = match self.rng.below(20) {
            0 => self.rng.below(40_000),
            1..5 => self.rng.below(5000),
            _ => self.rng.below(100),
        };
        self.bodies += 1;
        let mut body = self.bodies.to_le_bytes().to_vec();
        body.resize((len as usize).max(8), self.bodies as u8);
        let (messages, hints) = (1 + self.rng.below(200) as u32, some_hints(&mut self.rng));
        let topic = &mut self.topics[index];
        let entry = NewEntry {
            body: &body[..8],
            properties: &body[8..],
            messages,
            key_hash: hints.key_hash,
            producer: 1,
            sequence: self.bodies,
            publish_ms: hints.publish_ms,
            deliver_at_ms: hints.deliver_at_ms,
            deadline_ms: hints.deadline_ms,
            ..NewEntry::default()
        };
        match self.world.log.append(topic.slot, &entry, self.world.now_ns) {
            Ok(appended) => {
                if let Some(last) = topic.entries.last() {
                    assert!(last.position < appended.position, "positions rise");
                }
                topic.entries.push(Entry {
                    position: appended.position,
                    body: body[..8].to_vec(),
                    messages,
                    hints,
                    ticket: appended.ticket,
                    receipted: false,
                    synced: false,
                });
            }
            Err(Refused::NoMemory | Refused::DiskFull) => {}
            Err(Refused::Poisoned) => assert!(self.world.log.poisoned().is_some()),
            Err(refused) => panic!("refused: {refused}"),
        }
    }

    fn ack(&mut self) {
        let topic = &mut self.topics[self.rng.below(3) as usize];
        let sub = self.rng.below(SUBS as u64);
        let ready = topic.entries.iter().filter(|entry| entry.receipted).count();
        let state = &mut topic.subs[sub as usize];
        if ready == 0 {
            return;
        }
        let from = self.rng.below(ready as u64) as usize;
        if self.rng.one_in(3) {
            let words: Vec<u64> = (0..self.rng.below(5))
                .map(|_| self.rng.next() | self.rng.next())
                .collect();
            let entry = &topic.entries[from];
            let delta = AckDelta::Batch(&[(entry.position, &words)]);
            let ticket = self.world.log.ack_record(topic.slot, SubKey(sub), delta);
            state.ack_part(entry, &words, ticket);
        } else if self.rng.one_in(2) {
            let mark = topic.entries[from].position;
            let ticket =
                self.world
                    .log
                    .ack_record(topic.slot, SubKey(sub), AckDelta::MarkDelete(mark));
            for entry in &topic.entries[..=from] {
                state.acked.entry(entry.position).or_insert(ticket);
            }
        } else {
            let to = (from + 1 + self.rng.below(5) as usize).min(ready);
            let ranges: Vec<_> = topic.entries[from..to]
                .iter()
                .map(|entry| (entry.position, 1))
                .collect();
            let ticket =
                self.world
                    .log
                    .ack_record(topic.slot, SubKey(sub), AckDelta::Ranges(&ranges));
            for &(position, _) in &ranges {
                state.acked.entry(position).or_insert(ticket);
            }
        }
        if self.rng.one_in(4) {
            self.world.log.commit_soon();
        }
    }

    /// Trims what both subscriptions have acked without a gap.
    fn trim(&mut self) {
        for topic in &self.topics {
            let acked = |entry: &&Entry| {
                topic
                    .subs
                    .iter()
                    .all(|sub| sub.acked.contains_key(&entry.position))
            };
            let Some(last) = topic.entries.iter().take_while(acked).last() else {
                continue;
            };
            let before = self.world.log.ordinal_after(topic.slot, last.position);
            self.world.log.trim(topic.slot, before);
        }
    }

    fn read_some(&mut self) {
        let index = self.rng.below(3) as usize;
        let slot = self.topics[index].slot;
        let first = self.world.log.first(slot);
        let ready = self.world.log.ready_end(slot);
        // What a failed sync lost may be unreadable now.
        if first == ready || self.lied {
            return;
        }
        let from = first + self.rng.below(ready - first);
        let expected: Vec<Vec<u8>> = {
            let at = self.world.log.position(slot, from).unwrap();
            let entries = &self.topics[index].entries;
            let start = entries
                .iter()
                .position(|entry| entry.position == at)
                .unwrap();
            entries[start..]
                .iter()
                .map(|entry| entry.body.clone())
                .collect()
        };
        let bodies = self.world.bodies(slot, from);
        assert_eq!(
            bodies,
            expected[..bodies.len()],
            "what is read is what was appended"
        );
    }

    fn note_receipts(&mut self) {
        let synced = self.world.log.done_through(Durability::Synced);
        let moved = std::mem::replace(&mut self.synced, synced) != synced;
        for topic in &mut self.topics {
            let ready = self.world.log.ready_end(topic.slot);
            let last = ready
                .checked_sub(1)
                .and_then(|at| self.world.log.position(topic.slot, at));
            for entry in topic.entries.iter_mut().rev() {
                if entry.receipted && entry.synced {
                    break;
                }
                entry.receipted |= last.is_some_and(|last| entry.position <= last);
                entry.synced |= entry.ticket <= synced;
            }
            for sub in topic.subs.iter_mut().filter(|_| moved) {
                let proven = sub.acked.iter().filter(|&(_, &ticket)| ticket <= synced);
                sub.synced.extend(proven.map(|(&position, _)| position));
                for (&at, parts) in &sub.parts {
                    let proven = parts.iter().filter(|&(_, &ticket)| ticket <= synced);
                    let known = sub.parts_synced.entry(at).or_default();
                    known.extend(proven.map(|(&index, _)| index));
                }
            }
        }
    }

    /// Ends this life in one of three ways, opens again, and compares with the model.
    fn reopen(&mut self) {
        self.note_receipts();
        let power = self.rng.one_in(2);
        let orderly = !power && self.rng.one_in(2);
        if orderly {
            self.world.log.close_mark();
            self.world.disk.files_max = None;
            self.world.now_ns += 2_000_000_000;
            self.world.settle();
            assert!(self.world.log.idle(), "an orderly stop comes to rest");
            self.note_receipts();
        }
        let poisoned = self.world.log.poisoned().is_some();
        let loses = power || std::mem::take(&mut self.lied);
        self.faults = self.rng.one_in(3);
        // No crash takes it away: a log that ends before it is refused.
        let reached = self.world.log.synced_sequence();
        let fresh = options(&mut self.rng);
        let world = std::mem::replace(&mut self.world, World::new(fresh.clone()));
        let options = Options { reached, ..fresh };
        let disk = if power {
            world.crash(&mut self.rng)
        } else {
            kill(world, &mut self.rng)
        };
        self.log
            .push(format!("reopen power={power} orderly={orderly}"));
        self.check_idempotent(&disk, &options);
        let (world, recovered) = World::open(disk, options).unwrap_or_else(|error| {
            panic!("{error}; {:?}", self.log);
        });
        assert!(
            !orderly || poisoned || recovered.report.clean,
            "an orderly stop leaves its mark"
        );
        self.world = world;
        for index in 0..self.topics.len() {
            self.open_topic(index, loses);
        }
        self.world.log.forget_unopened();
    }

    fn open_topic(&mut self, index: usize, loses: bool) {
        let topic = &mut self.topics[index];
        let log = &mut self.world.log;
        topic.slot = log.open_topic(topic.key, topic.durability);
        let slot = topic.slot;
        let (first, end) = (log.first(slot), log.ready_end(slot));
        let found: BTreeSet<Position> = (first..end)
            .map(|at| log.position(slot, at).unwrap())
            .collect();
        for (key, sub) in topic.subs.iter_mut().enumerate() {
            let key = SubKey(key as u64);
            log.open_sub(slot, key, None);
            let state = log.cursor(slot, key).unwrap();
            let is_acked = |at: Position| {
                state.mark_delete.is_some_and(|mark| at <= mark)
                    || state.acked.iter().any(|&(first, count)| {
                        first.ledger == at.ledger
                            && (first.entry..first.entry + count).contains(&at.entry)
                    })
            };
            let partial: BTreeMap<Position, Vec<u64>> = state.partial.iter().cloned().collect();
            assert!(
                partial
                    .keys()
                    .all(|&at| found.contains(&at) && !is_acked(at))
            );
            // The state says nothing of acked entries above the mark that are no longer stored.
            for entry in topic
                .entries
                .iter()
                .filter(|entry| found.contains(&entry.position))
            {
                let (at, acked) = (entry.position, is_acked(entry.position));
                assert!(
                    !acked || sub.acked.contains_key(&at),
                    "{at:?} was never acked"
                );
                assert!(
                    acked || !sub.synced.contains(&at),
                    "the ack of {at:?} was promised"
                );
                if acked {
                    sub.acked.insert(at, Ticket(0));
                    sub.synced.insert(at);
                    sub.parts.remove(&at);
                    sub.parts_synced.remove(&at);
                } else {
                    sub.acked.remove(&at);
                    sub.found_part(entry, partial.get(&at).map(|words| &words[..]));
                }
            }
        }
        assert_eq!(found.len() as u64, end - first);
        let known: BTreeSet<Position> = topic.entries.iter().map(|entry| entry.position).collect();
        assert!(
            found.is_subset(&known),
            "phantoms: {:?}",
            found.difference(&known)
        );
        let last = found.last().copied();
        let mut kept = Vec::new();
        for entry in topic.entries.drain(..) {
            let consumed = topic
                .subs
                .iter()
                .all(|sub| sub.acked.contains_key(&entry.position));
            let promised = entry.synced || entry.receipted && !loses;
            let is_there = found.contains(&entry.position);
            assert!(
                is_there || consumed || !promised,
                "{:?} was promised",
                entry.position
            );
            assert!(
                is_there || consumed || last.is_none_or(|last| entry.position > last),
                "{:?} is missing before {last:?}",
                entry.position
            );
            if is_there {
                kept.push(Entry {
                    receipted: true,
                    synced: true,
                    ticket: Ticket(0),
                    ..entry
                });
            }
        }
        topic.entries = kept;
        for (ordinal, entry) in (first..).zip(&topic.entries) {
            let log = &self.world.log;
            assert_eq!(log.hints(slot, ordinal), Some(entry.hints));
            assert_eq!(log.messages(slot, ordinal), Some(entry.messages));
        }
        // An entry that a failed sync undid took its acks along; its position may be another's now.
        for sub in &mut topic.subs {
            sub.acked.retain(|position, _| found.contains(position));
            sub.synced.retain(|position| found.contains(position));
        }
        let bodies = self.world.bodies(slot, 0);
        let expected: Vec<&Vec<u8>> = topic.entries.iter().map(|entry| &entry.body).collect();
        assert!(bodies.iter().eq(expected), "bodies differ after the open");
    }

    /// Recovery that is stopped anywhere and run again finds the same.
    fn check_idempotent(&mut self, disk: &Disk, options: &Options) {
        let first = recover(disk, options).unwrap();
        let mut again = disk.clone();
        for repair in &first.repairs {
            let second = recover(&again, options).unwrap();
            assert_eq!(second.cursors, first.cursors);
            assert_eq!(second.topics, first.topics);
            assert_eq!(second.report.entries, first.report.entries);
            again.repair(repair);
        }
        let last = recover(&again, options).unwrap();
        assert_eq!(last.report.entries, first.report.entries);
        assert_eq!(last.cursors, first.cursors);
        assert_eq!(
            last.report.torn, None,
            "nothing torn is left after the repairs"
        );
    }
}

/// The process dies: file work in flight is anywhere, writes are in the page cache.
fn kill(mut world: World, rng: &mut Rng) -> Disk {
    while let Some(in_flight) = world.in_flight.pop_front() {
        world.disk.crash_in_flight(in_flight, rng);
    }
    world.kill()
}

fn run(seed: u64, lives: u32, steps: u32) {
    let mut model = Model::new(seed);
    for _ in 0..lives {
        let count = model.rng.below(u64::from(steps)) as u32;
        for _ in 0..count {
            model.step();
        }
        model.reopen();
    }
}

/// Runs one seed again: `SEED=... LONG=1 cargo test -p pelton-storage seed`.
#[test]
fn a_seed_from_outside_runs_again() {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(1);
    if std::env::var("LONG").is_ok() {
        run(seed, 3, 6000);
    } else {
        run(seed, 6, 400);
    }
}

/// In this run a failed sync undoes entries that were acked, and their positions are given out again:
/// the model once took the old acks for acks of the new entries.
#[test]
fn a_position_that_was_undone_is_given_to_another_entry() {
    run(11_863_699_467_911_262_255, 6, 400);
}

proptest! {
    // A seed does not shrink into a simpler one.
    #![proptest_config(ProptestConfig { cases: 32, max_shrink_iters: 0, ..Default::default() })]

    #[test]
    fn receipts_survive_any_crash_in_order_and_without_phantoms(seed in any::<u64>()) {
        run(seed, 6, 400);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3, max_shrink_iters: 0, ..Default::default() })]

    #[test]
    fn long_lives_with_many_segments_survive_too(seed in any::<u64>()) {
        run(seed, 3, 6000);
    }
}
