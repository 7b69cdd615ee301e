//! Recovery from any bytes.
//!
//! An input is a short life of a log (appends, acks, trims, turns, crashes), then damage to its
//! files; some inputs are raw bytes instead. Half of the damaged ones get correct checksums again, so
//! that the damage reaches what lies behind them.
//!
//! Oracles: no panic, memory bounded (`-rss_limit_mb`); a crash alone always recovers, with every entry
//! whose sync was seen, unless trimmed; what recovers once recovers the same after its repairs were
//! carried out, and takes appends; an entry that is read back is the one that was written there,
//! unless checksums were forged.
#![cfg_attr(fuzzing, no_main)]

mod disk;
#[cfg(all(test, not(fuzzing)))]
mod inputs;

use std::collections::{BTreeMap, VecDeque};

use pelton_storage::{
    AckDelta, DiskOp, Durability, Log, NewEntry, Options, Place, Position, Recovered, SubKey,
    Ticket, TopicKey, TopicSlot,
};

use crate::disk::Files;

const TOPICS: [(TopicKey, Durability); 2] = [
    (TopicKey(11), Durability::Synced),
    (TopicKey(22), Durability::Written),
];
const SUB: SubKey = SubKey(5);
const BODY_BYTES: [usize; 8] = [0, 1, 64, 100, 3_900, 4_096, 12_000, 30_000];

/// Turns that finish whatever is going on; each moves every operation on.
const TURNS_MAX: usize = 200;

fn options() -> Options {
    Options {
        segment_bytes: 64 << 10,
        tail_bytes: 128 << 10,
        read_buffers: 4,
        read_buffer_bytes: 64 << 10,
        gather_bytes_max: 256 << 10,
        block_bytes: 16 << 10,
        commit_bytes: 64 << 10,
        slice_bytes: 16 << 10,
        spares_min: 2,
        spares_max: 3,
        memory_backlog_bytes: 1 << 20,
        lent_bytes_max: 1 << 20,
        entry_bytes_max: 32 << 10,
        ack_delay_ns: 1_000,
        log_id: 0x0123_4567_89AB_CDEF,
        reached: 0,
        accept_loss: false,
    }
}

/// What was appended and may be there after a crash.
#[derive(Clone, Copy, Debug)]
struct Written {
    sequence: u64,
    bytes: usize,
    ticket: Ticket,
    /// Its sync was seen: it has to be there.
    promised: bool,
    /// It may come back after a crash, or not.
    trimmed: bool,
}

/// A log, its files, and what is known about both.
struct World {
    log: Log,
    files: Files,
    slots: [TopicSlot; 2],
    now_ns: u64,
    next_sequence: u64,
    waiting: VecDeque<DiskOp>,
    written: BTreeMap<(usize, Position), Written>,
    forged: bool,
}

fn check(data: &[u8]) {
    let [flags, steps, rest @ ..] = data else {
        return;
    };
    if flags % 8 == 0 {
        let mut files = Files::one(rest.to_vec());
        if flags & 8 != 0 {
            files.seal();
        }
        return check_any(files);
    }
    let life = (usize::from(*steps) * 2).min(rest.len());
    let mut world = World::open(Files::default());
    for step in rest[..life].chunks_exact(2) {
        world.step(step[0], step[1]);
    }
    let damage = rest[life..].chunks_exact(4);
    if damage.len() == 0 {
        world.crash(usize::from(flags / 8));
        return world.check();
    }
    world.crash(usize::from(flags / 16));
    damage.for_each(|fault| world.files.damage([fault[0], fault[1], fault[2], fault[3]]));
    world.forged = flags & 8 != 0;
    if world.forged {
        world.files.seal();
    }
    world.check_damaged();
}

impl World {
    /// Opens what must be openable.
    fn open(mut files: Files) -> World {
        let recovered = files
            .recover(&options())
            .expect("a crash loses nothing that was promised");
        files.repair(&recovered.repairs);
        World::over(files, recovered)
    }

    fn over(files: Files, recovered: Recovered) -> World {
        let mut log = recovered.log;
        let slots = TOPICS.map(|(key, durability)| log.open_topic(key, durability));
        for slot in slots {
            let _ = log.open_sub(slot, SUB, None);
        }
        World {
            log,
            files,
            slots,
            now_ns: 1,
            next_sequence: 0,
            waiting: VecDeque::new(),
            written: BTreeMap::new(),
            forged: false,
        }
    }

    fn step(&mut self, code: u8, argument: u8) {
        let topic = usize::from(argument) % 2;
        match code % 16 {
            0..=6 => {
                self.append(topic, BODY_BYTES[usize::from(argument / 2) % 8]);
            }
            7 => self.ack(topic, u64::from(argument / 2)),
            8 => self.ack_one(topic, u64::from(argument / 2)),
            9 => self.trim(topic, u64::from(argument / 2)),
            10..=11 => self.turn(usize::from(argument) % 4),
            12 => self.turn(usize::MAX),
            13..=14 => self.settle(),
            _ if argument.is_multiple_of(4) => self.stop(),
            _ => self.reopen(usize::from(argument)),
        }
    }

    fn append(&mut self, topic: usize, bytes: usize) -> Option<Position> {
        let body = body(self.next_sequence, bytes);
        let entry = NewEntry {
            body: &body,
            messages: 1,
            key_hash: 0,
            producer: 9,
            sequence: self.next_sequence,
            publish_ms: 1,
            arrived_ns: self.now_ns,
            ..NewEntry::default()
        };
        let appended = self
            .log
            .append(self.slots[topic], &entry, self.now_ns)
            .ok()?;
        let written = Written {
            sequence: self.next_sequence,
            bytes,
            ticket: appended.ticket,
            promised: false,
            trimmed: false,
        };
        self.next_sequence += 1;
        self.written.insert((topic, appended.position), written);
        Some(appended.position)
    }

    /// Acks everything up to the entry `back` before the last.
    fn ack(&mut self, topic: usize, back: u64) {
        let slot = self.slots[topic];
        let ordinal = self.log.end(slot).saturating_sub(1 + back);
        if let Some(position) = self.log.position(slot, ordinal) {
            let _ = self
                .log
                .ack_record(slot, SUB, AckDelta::MarkDelete(position));
        }
    }

    fn ack_one(&mut self, topic: usize, back: u64) {
        let slot = self.slots[topic];
        let ordinal = self.log.end(slot).saturating_sub(1 + back);
        if let Some(position) = self.log.position(slot, ordinal) {
            let _ = self
                .log
                .ack_record(slot, SUB, AckDelta::Ranges(&[(position, 1)]));
        }
    }

    /// Acks and trims all but the last `keep` entries.
    fn trim(&mut self, topic: usize, keep: u64) {
        self.ack(topic, keep);
        let slot = self.slots[topic];
        let before = self.log.end(slot).saturating_sub(keep);
        self.log.trim(slot, before);
        for ((t, position), written) in &mut self.written {
            if *t == topic && self.log.ordinal(slot, *position).is_none_or(|o| o < before) {
                (written.trimmed, written.promised) = (true, false);
            }
        }
    }

    /// One turn in which the disk completes at most `operations`.
    fn turn(&mut self, operations: usize) {
        self.now_ns += 10_000;
        self.log.flush_turn(self.now_ns);
        self.collect();
        for _ in 0..operations {
            let Some(op) = self.waiting.pop_front() else {
                break;
            };
            let done = self.files.carry_out(op);
            self.log.on_done(done);
            self.collect();
        }
        while self.log.poll_event().is_some() {}
        let synced = self.log.done_through(Durability::Synced);
        for written in self.written.values_mut() {
            written.promised |= written.ticket <= synced && !written.trimmed;
        }
    }

    fn collect(&mut self) {
        while let Some(op) = self.log.poll_op() {
            self.waiting.push_back(op);
        }
    }

    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.turn(usize::MAX);
            if self.log.idle() && self.waiting.is_empty() {
                return;
            }
        }
        panic!("the log does not come to rest");
    }

    /// An orderly stop, then the next start.
    fn stop(&mut self) {
        self.settle();
        self.log.close_mark();
        self.settle();
        self.reopen(0);
    }

    /// A crash while `pages` pages of the next write have got to the file.
    fn crash(&mut self, pages: usize) {
        if let Some(op) = self.waiting.front() {
            self.files.tear(op, pages % 8);
        }
        self.waiting.clear();
    }

    fn reopen(&mut self, pages: usize) {
        self.crash(pages);
        let old = std::mem::replace(self, World::open(self.files.clone()));
        self.next_sequence = old.next_sequence;
        self.now_ns = old.now_ns;
        self.written = old.written;
        self.check_promised();
        // What was not promised and has gone is gone for good; the rest was synced by the repairs.
        let (log, slots) = (&self.log, self.slots);
        self.written.retain(|(topic, position), written| {
            (written.promised, written.trimmed) = (true, false);
            written.ticket = Ticket(0);
            log.ordinal(slots[*topic], *position).is_some()
        });
    }

    fn check_promised(&self) {
        for ((topic, position), written) in &self.written {
            let there = self.log.ordinal(self.slots[*topic], *position).is_some();
            assert!(
                there || !written.promised,
                "topic {topic}: {position:?} is lost"
            );
        }
    }

    /// After a crash and nothing else.
    fn check(mut self) {
        self.reopen(0);
        self.check_bodies();
        self.check_goes_on();
    }

    fn check_damaged(self) {
        let Some(mut after) = recovers_twice(self.files) else {
            return;
        };
        after.next_sequence = self.next_sequence;
        after.written = self.written;
        after.forged = self.forged;
        after.check_bodies();
        if !after.forged {
            after.check_goes_on();
        }
    }

    /// What is read back is what was written, or is said to be unreadable.
    fn check_bodies(&mut self) {
        for (topic, slot) in self.slots.into_iter().enumerate() {
            for ordinal in self.log.first(slot)..self.log.end(slot) {
                let _ = self.log.fetch(slot, ordinal, 4, 16 << 10);
                self.settle();
                let Some(position) = self.log.position(slot, ordinal) else {
                    continue;
                };
                let Place::Memory(block, at) = self.log.locate(slot, ordinal) else {
                    continue;
                };
                if self.forged {
                    continue;
                }
                let written = self.written.get(&(topic, position));
                let written = written.expect("an entry that nobody wrote");
                assert_eq!(block.meta(at).sequence, written.sequence);
                assert_eq!(block.body(at), body(written.sequence, written.bytes));
            }
        }
    }

    /// It takes an append, which is there after the next crash.
    fn check_goes_on(mut self) {
        let Some(position) = self.append(0, 100) else {
            return;
        };
        self.settle();
        let after = World::open(self.files);
        assert!(
            after.log.ordinal(after.slots[0], position).is_some(),
            "{position:?} is lost"
        );
    }
}

fn body(sequence: u64, bytes: usize) -> Vec<u8> {
    sequence
        .to_le_bytes()
        .into_iter()
        .cycle()
        .take(bytes)
        .collect()
}

/// Any bytes under the name of a segment.
fn check_any(files: Files) {
    if let Some(mut world) = recovers_twice(files) {
        world.forged = true;
        world.check_bodies();
    }
}

/// Recovers, carries out the repairs and recovers again; nothing if it cannot be recovered at all.
fn recovers_twice(files: Files) -> Option<World> {
    let first = match files.recover(&options()) {
        Ok(first) => first,
        Err(error) => {
            assert_eq!(
                files.recover(&options()).err(),
                Some(error),
                "the same answer again"
            );
            return None;
        }
    };
    let mut repaired = files;
    repaired.repair(&first.repairs);
    let second = repaired
        .recover(&options())
        .expect("what recovers once recovers again");
    assert_eq!(first.topics, second.topics);
    assert_eq!(first.cursors, second.cursors);
    let counts = |r: &Recovered| (r.report.entries, r.report.ledgers, r.report.segments);
    assert_eq!(counts(&first), counts(&second));
    assert_eq!(second.report.torn, None, "the torn end was cut");
    Some(World::over(repaired, second))
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| check(data));

/// Runs the check over the given files: a finding under a debugger, without libFuzzer.
#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        check(&std::fs::read(path)?);
    }
    Ok(())
}

#[cfg(all(test, not(fuzzing)))]
mod tests {
    #[test]
    fn what_was_found_once_stays_fixed() {
        crate::inputs::findings("recover", super::check);
    }

    #[test]
    fn generated_lives_and_damage_keep_every_promise() {
        crate::inputs::each(500, 300, super::check);
    }
}
