//! Hints, properties, sums and seek by time: in memory, stored, and recovered either way.
use super::disk::Rng;
use super::dump::{DumpItem, dump};
use super::{World, recover, small};
use crate::format::VERSION;
use crate::{
    Durability, Hints, Log, NewEntry, Place, RecoverError, SegmentId, TopicKey, TopicSlot,
};

#[derive(Clone, Debug)]
struct Entry {
    hints: Hints,
    properties: Vec<u8>,
    body: Vec<u8>,
    messages: u32,
}

impl Entry {
    fn random(rng: &mut Rng) -> Entry {
        let mut time = || match rng.below(8) {
            0 => 2_000 + rng.below(100),
            1 => rng.next(),
            _ => 0,
        };
        let (deliver_at_ms, deadline_ms) = (time(), time());
        let publish_ms = match rng.below(50) {
            0 => rng.next(),
            _ => 1_000 + rng.below(50),
        };
        let key_hash = if rng.one_in(2) { 0 } else { rng.next() as u32 };
        let properties = if rng.one_in(4) { rng.below(300) } else { 0 };
        Entry {
            hints: Hints {
                key_hash,
                publish_ms,
                deliver_at_ms,
                deadline_ms,
            },
            properties: (0..properties).map(|_| rng.next() as u8).collect(),
            body: (0..rng.below(900)).map(|_| rng.next() as u8).collect(),
            messages: 1 + rng.below(200) as u32,
        }
    }

    fn as_new(&self) -> NewEntry<'_> {
        NewEntry {
            body: &self.body,
            properties: &self.properties,
            messages: self.messages,
            key_hash: self.hints.key_hash,
            publish_ms: self.hints.publish_ms,
            deliver_at_ms: self.hints.deliver_at_ms,
            deadline_ms: self.hints.deadline_ms,
            ..NewEntry::default()
        }
    }

    fn bytes(&self) -> u64 {
        (self.properties.len() + self.body.len()) as u64
    }
}

/// All that the log says of a topic is what a plain list says; nothing is read for it.
fn check(log: &Log, slot: TopicSlot, entries: &[Entry]) {
    let first = log.first(slot);
    assert_eq!(log.end(slot) - first, entries.len() as u64);
    assert_eq!(log.hints(slot, log.end(slot)), None);
    assert_eq!(
        first.checked_sub(1).and_then(|at| log.hints(slot, at)),
        None
    );
    let (mut bytes, mut messages) = (0, 0);
    for (at, entry) in entries.iter().enumerate().rev() {
        let ordinal = first + at as u64;
        bytes += entry.bytes();
        messages += u64::from(entry.messages);
        assert_eq!(log.hints(slot, ordinal), Some(entry.hints));
        assert_eq!(log.bytes(slot, ordinal).map(u64::from), Some(entry.bytes()));
        assert_eq!(log.bytes_from(slot, ordinal), bytes);
        assert_eq!(log.backlog_messages(slot, ordinal), messages);
    }
    assert_eq!(log.bytes_from(slot, 0), bytes, "trimmed ones do not count");
    let hints = (first..).zip(entries.iter().map(|entry| entry.hints));
    let timed: Vec<_> = hints.filter(|(_, hints)| hints.is_timed()).collect();
    assert_eq!(log.timed(slot), timed);
    for since in [0, 1, 999, 1_000, 1_020, 1_049, 1_050, u64::MAX] {
        let found = entries.iter().position(|e| e.hints.publish_ms >= since);
        let expected = found.map_or(log.end(slot), |at| first + at as u64);
        assert_eq!(log.first_published_since(slot, since), expected);
    }
}

fn check_blocks(world: &mut World, slot: TopicSlot, entries: &[Entry]) {
    for (ordinal, entry) in (world.log.first(slot)..).zip(entries) {
        if let Place::OnDisk = world.log.locate(slot, ordinal) {
            world.log.fetch(slot, ordinal, 16, 100_000);
            world.settle();
        }
        let Place::Memory(block, at) = world.log.locate(slot, ordinal) else {
            panic!("{ordinal} cannot be read");
        };
        assert_eq!(block.meta(at).hints(), entry.hints);
        assert_eq!(block.properties(at), entry.properties);
        assert_eq!(block.body(at), entry.body);
        assert_eq!(block.meta(at).messages, entry.messages);
    }
}

#[test]
fn hints_and_properties_come_back_from_sealed_and_open_segments_alike() {
    for seed in 0..6 {
        let mut rng = Rng(seed);
        let mut world = World::new(small());
        let mut entries = Vec::new();
        let mut slot = world.topic(1);
        for life in 0..3 {
            for _ in 0..300 {
                let entry = Entry::random(&mut rng);
                world.log.append(slot, &entry.as_new(), 1).unwrap();
                entries.push(entry);
                if rng.one_in(5) {
                    world.settle();
                }
                if rng.one_in(50) {
                    let before = world.log.first(slot) + rng.below(40).min(entries.len() as u64);
                    world.settle();
                    world.log.trim(slot, before);
                    let gone = entries.len() as u64 - (world.log.end(slot) - before);
                    entries.drain(..gone as usize);
                    check(&world.log, slot, &entries);
                }
            }
            world.settle();
            check(&world.log, slot, &entries);
            assert!(world.log.stats().segments_sealed > 0);
            let (again, recovered) = World::open(world.kill(), small()).unwrap();
            assert!(recovered.report.segments > recovered.report.segments_scanned || life == 0);
            world = again;
            slot = world.topic(1);
            // What was trimmed and shares a segment with live entries is there again.
            let back = (world.log.end(slot) - world.log.first(slot)) - entries.len() as u64;
            world.log.trim(slot, world.log.first(slot) + back);
            check(&world.log, slot, &entries);
            check_blocks(&mut world, slot, &entries);
        }
    }
}

#[test]
fn a_memory_topic_gives_the_same_hints_sums_and_seeks() {
    let mut rng = Rng(5);
    let mut world = World::new(small());
    let slot = world.log.open_topic(TopicKey(9), Durability::Memory);
    let mut entries = Vec::new();
    for number in 0..3_000 {
        let entry = Entry::random(&mut rng);
        world.log.append(slot, &entry.as_new(), 1).unwrap();
        entries.push(entry);
        if rng.one_in(30) {
            let ordinal = world.log.first(slot) + rng.below(entries.len() as u64);
            world.log.run(slot, ordinal, 9);
        }
        if rng.one_in(40) {
            let trimmed = rng.below(1 + entries.len().min(60) as u64);
            world.log.trim(slot, world.log.first(slot) + trimmed);
            entries.drain(..trimmed as usize);
        }
        if number % 250 == 0 {
            check(&world.log, slot, &entries);
        }
    }
    check(&world.log, slot, &entries);
    check_blocks(&mut world, slot, &entries);
    world.log.trim(slot, world.log.end(slot));
    check(&world.log, slot, &[]);
}

#[test]
fn neighbours_of_an_unreadable_entry_keep_their_properties() {
    let mut rng = Rng(8);
    let mut world = World::new(small());
    let slot = world.topic(1);
    let entries: Vec<Entry> = (0..20).map(|_| Entry::random(&mut rng)).collect();
    for entry in &entries {
        world.log.append(slot, &entry.as_new(), 1).unwrap();
    }
    world.settle();
    let (mut world, _) = World::open(world.kill(), small()).unwrap();
    let slot = world.topic(1);
    let body = &entries[7].body;
    let file = world.disk.files.get_mut(&SegmentId(1)).unwrap();
    let at = file
        .cached
        .windows(body.len())
        .position(|bytes| bytes == body);
    file.cached[at.unwrap()] ^= 1;
    file.durable.clone_from(&file.cached);
    world.log.fetch(slot, 0, 20, 0);
    world.settle();
    assert!(matches!(world.log.locate(slot, 7), Place::Failed));
    for (ordinal, entry) in (0..).zip(&entries).filter(|&(ordinal, _)| ordinal != 7) {
        let Place::Memory(block, at) = world.log.locate(slot, ordinal) else {
            panic!("{ordinal} is not there");
        };
        assert_eq!(block.properties(at), entry.properties);
        assert_eq!(block.body(at), entry.body);
    }
}

#[test]
fn a_directory_of_an_older_format_is_refused_by_name_and_number() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.publish(slot, b"1");
    let mut disk = world.kill();
    let file = &mut disk.files.get_mut(&SegmentId(1)).unwrap().cached;
    file[8] = 1;
    let crc = crc_fast::crc32_iscsi(&file[8..64]);
    file[4..8].copy_from_slice(&crc.to_le_bytes());
    let error = recover(&disk, &small()).unwrap_err();
    assert_eq!(
        error,
        RecoverError::Version {
            segment: SegmentId(1),
            found: 1,
            expected: u32::from(VERSION)
        }
    );
    let text = error.to_string();
    let wanted = format!("format {VERSION}");
    assert!(
        text.contains("has format 1") && text.contains(&wanted),
        "{text}"
    );
}

#[test]
fn times_and_properties_are_stored_as_they_were_handed_in() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    let mut rng = Rng(3);
    let entries: Vec<Entry> = (0..400).map(|_| Entry::random(&mut rng)).collect();
    for entry in &entries {
        world.log.append(slot, &entry.as_new(), 1).unwrap();
    }
    world.settle();
    let (disk, mut shown) = (world.kill(), entries.iter());
    dump(
        &disk.infos(),
        &mut |id, at, into| disk.read(id, at, into),
        &mut |item| {
            if let DumpItem::Entry {
                meta,
                properties,
                body,
                ..
            } = item
            {
                let entry = shown.next().unwrap();
                assert_eq!(
                    (meta.hints(), properties, body),
                    (entry.hints, &entry.properties[..], &entry.body[..])
                );
            }
        },
    )
    .unwrap();
    assert!(shown.next().is_none());
}
