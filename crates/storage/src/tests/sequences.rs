//! The highest sequence of a producer counts if and only if its entry is stored.
use std::collections::BTreeMap;

use super::disk::Rng;
use super::{World, small};
use crate::{AckDelta, NewEntry, Options, SubKey, Ticket, TopicSlot};

const SUB: SubKey = SubKey(1);

struct Producers {
    world: World,
    slot: TopicSlot,
    /// Numbered entries by producer and sequence: the commit that makes it durable.
    appended: BTreeMap<(u64, u64), Ticket>,
    /// Of entries that a sync proved, or that are known of another life.
    promised: BTreeMap<u64, u64>,
}

impl Producers {
    fn open(world: World) -> Producers {
        let mut producers = Producers {
            world,
            slot: TopicSlot(0),
            appended: BTreeMap::new(),
            promised: BTreeMap::new(),
        };
        producers.reopened();
        producers
    }

    fn reopened(&mut self) {
        self.slot = self.world.topic(1);
        self.world.log.open_sub(self.slot, SUB, None);
        self.world.log.forget_unopened();
    }

    fn append(&mut self, producer: u64, sequence: u64, is_numbered: bool) {
        let mut body = [producer.to_le_bytes(), sequence.to_le_bytes()].concat();
        body.resize(300, 7);
        let entry = NewEntry {
            body: &body,
            messages: 1,
            producer,
            sequence,
            is_numbered,
            ..NewEntry::default()
        };
        let now_ns = self.world.now_ns;
        let appended = self.world.log.append_apart(self.slot, &entry, now_ns);
        if let (Ok(appended), true) = (appended, is_numbered) {
            self.appended.insert((producer, sequence), appended.ticket);
        }
    }

    fn consume(&mut self) {
        let ready = self.world.log.ready_end(self.slot);
        let last = ready.checked_sub(1);
        if let Some(at) = last.and_then(|last| self.world.log.position(self.slot, last)) {
            let delta = AckDelta::MarkDelete(at);
            self.world.log.ack_record(self.slot, SUB, delta);
            self.world.log.trim(self.slot, ready);
        }
    }

    fn note_promised(&mut self) {
        let done = self.world.log.done_through(crate::Durability::Synced);
        let proven = self.appended.iter().filter(|(_, ticket)| **ticket <= done);
        for (&(producer, sequence), _) in proven {
            let promised = self.promised.entry(producer).or_default();
            *promised = sequence.max(*promised);
        }
    }

    /// Producer and sequence of the entries that are there, in order.
    fn stored(&mut self) -> impl Iterator<Item = (u64, u64)> {
        let bodies = self.world.bodies(self.slot, 0).into_iter();
        bodies.map(|body| {
            let (producer, rest) = body.split_first_chunk().expect("as it was made");
            let sequence = rest.first_chunk().expect("as it was made");
            (u64::from_le_bytes(*producer), u64::from_le_bytes(*sequence))
        })
    }

    fn highest(&self, producer: u64) -> Option<u64> {
        self.world.log.last_sequence(self.slot, producer)
    }
}

#[test]
fn a_sequence_outlives_its_entry_and_its_segment() {
    let mut producers = Producers::open(World::new(small()));
    for sequence in 0..40 {
        producers.append(5, sequence, true);
    }
    producers.append(5, 1_000, false);
    // Segments come and go until nothing of them is left.
    for round in 0..60 {
        for at in 0..20 {
            producers.append(6, round * 20 + at, true);
        }
        producers.world.settle();
        producers.consume();
        producers.world.now_ns += 1_000_000_000;
        producers.world.settle();
    }
    let stats = producers.world.log.stats();
    assert!(stats.segments_recycled > 1, "{stats:?}");
    for _ in 0..2 {
        assert_eq!(producers.highest(5), Some(39));
        assert_eq!(producers.highest(6), Some(1_199));
        assert_eq!(producers.highest(7), None);
        producers.world = World::open(producers.world.kill(), small()).unwrap().0;
        producers.reopened();
    }
    producers.world.log.drop_topic(producers.slot);
    producers.reopened();
    assert_eq!(producers.highest(5), None);
}

#[test]
fn after_a_power_cut_a_sequence_counts_if_and_only_if_its_entry_is_stored() {
    for seed in 0..150 {
        let mut rng = Rng(seed);
        let options = Options {
            block_bytes: 4096 << rng.below(3),
            ..small()
        };
        let mut producers = Producers::open(World::new(options.clone()));
        let mut next = [0u64; 200];
        for life in 0..6 {
            for _ in 0..rng.below(400) {
                match rng.below(10) {
                    0..6 => {
                        let most = if rng.one_in(3) { 200 } else { 3 };
                        let producer = rng.below(most);
                        let sequence = &mut next[producer as usize];
                        producers.append(producer, *sequence, true);
                        *sequence += 1 + rng.below(3);
                    }
                    6 => producers.consume(),
                    7 => producers.world.settle(),
                    8 => producers.world.turn(),
                    _ if !producers.world.in_flight.is_empty() => producers.world.complete(0),
                    _ => {}
                }
                producers.note_promised();
            }
            let disk = producers.world.crash(&mut rng);
            producers.world = World::open(disk, options.clone()).unwrap().0;
            producers.reopened();
            let stored: BTreeMap<_, _> = producers.stored().collect();
            for producer in 0..200 {
                let found = producers.highest(producer);
                let promised = producers.promised.get(&producer).copied();
                let expected = promised.max(stored.get(&producer).copied());
                assert_eq!(
                    found, expected,
                    "seed {seed}, life {life}, producer {producer}"
                );
                next[producer as usize] = found.map_or(0, |found| found + 1);
            }
            producers.appended.clear();
            producers.promised = (0..200)
                .filter_map(|p| Some((p, producers.highest(p)?)))
                .collect();
        }
    }
}
