//! The log over a fake disk. `World` is the shell: it carries out operations and keeps the books.
mod commit;
mod crash;
mod disk;
mod dump;
mod hints;
mod holes;
mod memory;
mod partial;
mod reads;
mod retain;
mod seg;
mod sequences;

use std::collections::VecDeque;

use crate::{
    Appended, DiskOpKind, Durability, LogEvent, NewEntry, Options, Place, Position, RecoverError,
    Recovered, Refused, SegmentId, TopicKey, TopicSlot,
};
use crate::{Fetch, Log};
use disk::{Disk, InFlight, Rng};

/// Small sizes, so that a test sees many segments.
pub(crate) fn small() -> Options {
    Options {
        segment_bytes: 64 << 10,
        tail_bytes: 64 << 10,
        read_buffers: 4,
        spares_max: 3,
        log_id: 77,
        ..Options::default()
    }
}

pub(crate) struct World {
    pub(crate) disk: Disk,
    pub(crate) log: Log,
    pub(crate) in_flight: VecDeque<InFlight>,
    pub(crate) now_ns: u64,
    pub(crate) events: Vec<LogEvent>,
    pub(crate) options: Options,
}

impl World {
    pub(crate) fn new(options: Options) -> World {
        World::open(Disk::default(), options).unwrap().0
    }

    /// Opens a disk's content and carries out the repairs.
    pub(crate) fn open(disk: Disk, options: Options) -> Result<(World, Recovered), RecoverError> {
        let mut world_disk = disk;
        let mut recovered = recover(&world_disk, &options)?;
        for repair in &recovered.repairs {
            world_disk.repair(repair);
        }
        let log = std::mem::replace(&mut recovered.log, Log::in_memory(options.clone()));
        let world = World {
            disk: world_disk,
            log,
            in_flight: VecDeque::new(),
            now_ns: 1_000_000_000,
            events: Vec::new(),
            options,
        };
        Ok((world, recovered))
    }

    pub(crate) fn topic(&mut self, key: u64) -> TopicSlot {
        self.log.open_topic(TopicKey(key), Durability::Synced)
    }

    pub(crate) fn append(&mut self, slot: TopicSlot, body: &[u8]) -> Result<Appended, Refused> {
        let entry = NewEntry {
            body,
            messages: 1,
            key_hash: 3,
            producer: 5,
            sequence: 7,
            publish_ms: 9,
            arrived_ns: self.now_ns,
            ..NewEntry::default()
        };
        self.log.append(slot, &entry, self.now_ns)
    }

    /// One turn: at most one write; syncs, reads and file work stay in flight.
    pub(crate) fn turn(&mut self) {
        self.now_ns += 1000;
        self.log.flush_turn(self.now_ns);
        let mut writes = 0;
        while let Some(op) = self.log.poll_op() {
            if let DiskOpKind::Write { buffer, .. } = &op.kind {
                assert!(
                    buffer.len() <= self.options.slice_bytes as usize,
                    "a slice is too long"
                );
                writes += 1;
            }
            match self.disk.submit(op) {
                Ok(done) => self.log.on_done(done),
                Err(in_flight) => {
                    let second = is_sync(&in_flight) && self.in_flight.iter().any(is_sync);
                    assert!(!second, "two syncs in flight");
                    self.in_flight.push_back(in_flight);
                }
            }
        }
        assert!(
            writes <= 2,
            "more than a slice (and the rest of a short one) in a turn"
        );
        while let Some(event) = self.log.poll_event() {
            self.events.push(event);
        }
    }

    pub(crate) fn complete(&mut self, index: usize) {
        if let Some(in_flight) = self.in_flight.remove(index) {
            let done = self.disk.complete(in_flight);
            self.log.on_done(done);
            while let Some(event) = self.log.poll_event() {
                self.events.push(event);
            }
        }
    }

    /// Turns and completions until nothing is left to do.
    pub(crate) fn settle(&mut self) {
        for _ in 0..100_000 {
            self.turn();
            if self.in_flight.is_empty() {
                let due = self.log.next_deadline().is_some_and(|at| at <= self.now_ns);
                if !due {
                    return;
                }
            }
            while !self.in_flight.is_empty() {
                self.complete(0);
            }
        }
        panic!("the log does not come to rest: {:?}", self.log.stats());
    }

    /// Appends and waits for the receipt: a block of its own.
    pub(crate) fn publish(&mut self, slot: TopicSlot, body: &[u8]) -> Position {
        let appended = self.append(slot, body).unwrap();
        self.settle();
        assert!(
            self.log.ready_end(slot) > appended.ordinal,
            "no receipt: {:?}",
            self.events
        );
        assert!(self.log.done_through(Durability::Synced) >= appended.ticket);
        appended.position
    }

    /// Bodies of all live ready entries from `from` on, read from disk where need be.
    pub(crate) fn bodies(&mut self, slot: TopicSlot, from: u64) -> Vec<Vec<u8>> {
        let mut bodies = Vec::new();
        let mut next = from.max(self.log.first(slot));
        while next < self.log.ready_end(slot) {
            if let Some((block, first, count)) = self.log.run(slot, next, 64) {
                for at in first..first + count {
                    let expected = self.log.position(slot, next);
                    assert_eq!(Some(block.meta(at).position), expected);
                    bodies.push(block.body(at).to_vec());
                    next += 1;
                }
                continue;
            }
            match self.log.locate(slot, next) {
                Place::Failed => {
                    bodies.push(b"FAILED".to_vec());
                    next += 1;
                }
                Place::OnDisk => {
                    let fetch = self.log.fetch(slot, next, 16, 100_000);
                    assert_eq!(fetch, Fetch::Started);
                    self.settle();
                }
                place => panic!("{next} is {place:?}"),
            }
        }
        bodies
    }

    /// A power cut: what was not synced is kept or lost by chance.
    pub(crate) fn crash(mut self, rng: &mut Rng) -> Disk {
        while let Some(in_flight) = self.in_flight.pop_front() {
            self.disk.crash_in_flight(in_flight, rng);
        }
        self.disk.crash(rng);
        self.disk
    }

    pub(crate) fn in_flight_syncs(&self) -> usize {
        self.in_flight.iter().filter(|op| is_sync(op)).count()
    }

    pub(crate) fn complete_sync(&mut self) {
        let index = self
            .in_flight
            .iter()
            .position(is_sync)
            .expect("a sync in flight");
        self.complete(index);
    }

    pub(crate) fn clone_disk(&self) -> Disk {
        self.disk.clone()
    }

    /// The segment commits go to.
    pub(crate) fn active_segment(&self) -> SegmentId {
        let store = self.log.store.as_ref().unwrap();
        store.segments.get(store.active.as_ref().unwrap().slot).id
    }

    /// Slot of the topic that was opened first.
    pub(crate) fn topic_slot(&self) -> TopicSlot {
        TopicSlot(0)
    }

    /// The process dies; the page cache lives.
    pub(crate) fn kill(self) -> Disk {
        self.disk
    }
}

/// What makes something durable: one is in flight at a time.
pub(crate) fn is_sync(op: &InFlight) -> bool {
    matches!(
        op.op.kind,
        DiskOpKind::Sync { .. } | DiskOpKind::Commit { .. }
    )
}

pub(crate) fn recover(disk: &Disk, options: &Options) -> Result<Recovered, RecoverError> {
    Log::recover(options.clone(), &disk.infos(), &mut |id, offset, into| {
        disk.read(id, offset, into)
    })
}
