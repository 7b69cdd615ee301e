//! Reads: what fails, what is served beside it, and who waits (`spec/runtime.md` 2.4 to 2.9).
use super::disk::SECTOR;
use super::{World, small};
use crate::{Fetch, LogEvent, Options, Place, SegmentId, TopicSlot};

fn body(number: usize) -> Vec<u8> {
    let mut body = vec![number as u8; 900];
    body[..8].copy_from_slice(&(number as u64).to_le_bytes());
    body
}

/// A log with `count` entries in sealed segments, none of them in memory.
fn cold(count: usize, options: Options) -> (World, TopicSlot) {
    let mut world = World::new(options.clone());
    let slot = world.topic(1);
    for number in 0..count {
        if world.append(slot, &body(number)).is_err() {
            world.settle();
            world.append(slot, &body(number)).unwrap();
        }
        if number % 10 == 0 {
            world.settle();
        }
    }
    world.settle();
    let (mut world, _) = World::open(world.kill(), options).unwrap();
    let slot = world.topic(1);
    world.log.open_sub(slot, crate::SubKey(1), None);
    world.settle();
    (world, slot)
}

/// Segment and byte offset of an entry's stored header.
fn place(world: &World, slot: TopicSlot, ordinal: u64) -> (SegmentId, usize) {
    let live = world.log.live(slot).unwrap();
    let spot = live.index.get(ordinal).unwrap();
    let store = world.log.store.as_ref().unwrap();
    (store.segments.get(spot.segment).id, spot.offset as usize)
}

#[test]
fn a_backlog_is_read_in_order_and_merged_into_few_reads() {
    let (mut world, slot) = cold(400, small());
    let bodies = world.bodies(slot, 0);
    assert_eq!(bodies.len(), 400);
    assert!(
        bodies
            .iter()
            .enumerate()
            .all(|(number, found)| *found == body(number))
    );
    let stats = world.log.stats();
    assert!(stats.reads < 40, "{} reads for 400 entries", stats.reads);
    assert!(stats.read_buffers_out <= 4);
}

#[test]
fn short_reads_and_interrupts_are_repeated_and_the_bytes_are_right() {
    let (mut world, slot) = cold(100, small());
    world.disk.interrupts = 5;
    world.disk.short_reads = 2;
    let bodies = world.bodies(slot, 0);
    assert!(
        bodies
            .iter()
            .enumerate()
            .all(|(number, found)| *found == body(number))
    );
    assert_eq!(world.log.stats().reads_repeated, 7);
    assert_eq!(world.log.stats().entries_failed, 0);
}

#[test]
fn a_flipped_bit_fails_that_entry_alone_and_quarantines_its_segment() {
    let (mut world, slot) = cold(100, small());
    let (segment, offset) = place(&world, slot, 7);
    world.disk.files.get_mut(&segment).unwrap().cached[offset + 200] ^= 4;
    let bodies = world.bodies(slot, 0);
    for (number, found) in bodies.iter().enumerate() {
        if number == 7 {
            assert_eq!(found, b"FAILED");
        } else {
            assert_eq!(*found, body(number));
        }
    }
    assert!(world.events.contains(&LogEvent::Quarantined(segment)));
    assert_eq!(
        world.log.fetch(slot, 7, 1, 0),
        Fetch::NotNeeded,
        "it is not read for ever"
    );
    // Never used again, though all of it is consumed.
    let end = world.log.end(slot);
    world.log.trim(slot, end);
    world.log.commit_soon();
    world.settle();
    world.settle();
    assert!(world.disk.files.contains_key(&segment));
    assert_eq!(world.log.stats().segments_quarantined, 1);
}

#[test]
fn a_bad_sector_fails_what_is_in_it_and_its_neighbours_are_served() {
    let (mut world, slot) = cold(100, small());
    let (segment, offset) = place(&world, slot, 31);
    world
        .disk
        .bad_sectors
        .push((segment, ((offset + 100) / SECTOR) as u64));
    let bodies = world.bodies(slot, 0);
    let failed: Vec<usize> = (0..100)
        .filter(|&number| bodies[number] == b"FAILED")
        .collect();
    assert!(failed.contains(&31), "{failed:?}");
    // A read is whole pages: whoever shares the sector's page shares its fate.
    assert!(failed.len() <= 6, "{failed:?}");
    assert!((0..100).all(|number| failed.contains(&number) || bodies[number] == body(number)));
}

#[test]
fn without_a_free_buffer_the_reader_waits_and_is_told_when_to_try_again() {
    let options = Options {
        read_buffers: 1,
        read_buffer_bytes: 8 << 10,
        ..small()
    };
    let (mut world, slot) = cold(100, options);
    assert_eq!(world.log.fetch(slot, 0, 1, 0), Fetch::Started);
    assert!(matches!(world.log.locate(slot, 0), Place::Reading));
    assert_eq!(world.log.fetch(slot, 0, 1, 0), Fetch::AlreadyReading);
    assert_eq!(world.log.fetch(slot, 50, 1, 0), Fetch::NoBuffer);
    world.settle();
    world.events.clear();
    // Read, but nobody has seen it yet.
    world.turn();
    assert!(!world.events.contains(&LogEvent::Room));
    assert!(world.log.next_deadline().is_some(), "nobody rings");
    let (block, first, count) = world.log.run(slot, 0, 100).unwrap();
    assert!(count >= 1);
    // It was seen, so its buffer may go, and another takes its place while a delivery holds it.
    world.turn();
    assert!(world.events.contains(&LogEvent::Room));
    assert_eq!(world.log.fetch(slot, 50, 1, 0), Fetch::Started);
    assert_eq!(
        world.log.fetch(slot, 99, 1, 0),
        Fetch::NoBuffer,
        "one at a time"
    );
    world.settle();
    assert_eq!(block.body(first), body(0), "what is lent stays as it was");
    assert!(matches!(world.log.locate(slot, 50), Place::Memory(..)));
}

/// A reader waits for the one buffer while half of what may be gathered is on its way to the disk.
fn starved_beside_appends(fail: bool) -> World {
    let options = Options {
        read_buffers: 1,
        read_buffer_bytes: 8 << 10,
        gather_bytes_max: 32 << 10,
        ..small()
    };
    let (mut world, slot) = cold(100, options);
    assert_eq!(world.log.fetch(slot, 0, 1, 0), Fetch::Started);
    world.settle();
    for _ in 0..20 {
        world.append(slot, &body(0)).unwrap();
    }
    world.disk.fail_write = fail;
    world.turn();
    if fail {
        world.complete(0);
    }
    assert_eq!(world.log.fetch(slot, 50, 1, 0), Fetch::NoBuffer);
    assert!(world.log.next_deadline().is_some(), "nobody rings");
    assert!(world.log.run(slot, 0, 1).is_some(), "now it was seen");
    world.turn();
    world
}

#[test]
fn a_reader_without_a_buffer_does_not_wait_for_appends() {
    let world = starved_beside_appends(false);
    assert_eq!(world.in_flight_syncs(), 1);
    assert!(world.events.contains(&LogEvent::Room));
}

#[test]
fn a_reader_without_a_buffer_goes_on_in_a_poisoned_log() {
    let world = starved_beside_appends(true);
    assert!(world.log.poisoned().is_some());
    assert!(world.events.contains(&LogEvent::Room));
}

#[test]
fn blocks_of_the_tail_leave_memory_oldest_first_and_are_read_back() {
    let mut world = World::new(Options {
        tail_bytes: 20_000,
        ..small()
    });
    let slot = world.topic(1);
    for number in 0..100 {
        world.publish(slot, &body(number));
    }
    assert!(world.log.stats().tail_bytes <= 20_000 + 4096);
    assert!(matches!(world.log.locate(slot, 99), Place::Memory(..)));
    assert!(matches!(world.log.locate(slot, 0), Place::OnDisk));
    let bodies = world.bodies(slot, 0);
    assert!(
        bodies
            .iter()
            .enumerate()
            .all(|(number, found)| *found == body(number))
    );
    assert!(
        world.log.stats().reads_active_segment > 0,
        "the active one is read buffered"
    );
}

#[test]
fn entries_longer_than_a_read_buffer_are_read_by_themselves() {
    let options = Options {
        read_buffer_bytes: 8 << 10,
        tail_bytes: 0,
        ..small()
    };
    let mut world = World::new(options.clone());
    let slot = world.topic(1);
    let bodies: Vec<Vec<u8>> = [10, 30_000, 20, 40_000, 30]
        .map(|len| vec![len as u8; len])
        .into();
    for body in &bodies {
        world.publish(slot, body);
    }
    let (mut world, _) = World::open(world.kill(), options).unwrap();
    let slot = world.topic(1);
    assert_eq!(world.bodies(slot, 0), bodies);
}

#[test]
fn trimming_and_dropping_while_a_read_is_in_flight_is_harmless() {
    let (mut world, slot) = cold(100, small());
    assert_eq!(world.log.fetch(slot, 0, 100, 1 << 20), Fetch::Started);
    world.turn();
    world.log.trim(slot, 5);
    world.settle();
    assert!(matches!(world.log.locate(slot, 4), Place::Gone));
    let (block, first, _) = world.log.run(slot, 5, 1).unwrap();
    assert_eq!(block.body(first), body(5));
    drop(block);
    let (mut world, slot) = cold(100, small());
    assert_eq!(world.log.fetch(slot, 0, 10, 0), Fetch::Started);
    world.turn();
    world.log.drop_topic(slot);
    world.settle();
    let other = world
        .log
        .open_topic(crate::TopicKey(9), crate::Durability::Synced);
    assert_eq!(world.log.end(other), 0);
    assert_eq!(
        world.log.stats().read_buffers_out,
        0,
        "every buffer came home"
    );
}
