//! The cases SEG-*, with bytes of segment files edited.
mod length;

use super::disk::{Disk, File, Rng, Trace};
use super::dump::{DumpItem, dump};
use super::{World, recover, small};
use crate::entry::ENTRY_HEADER_BYTES;
use crate::format::{
    BLOCK_HEADER_BYTES, BlockHeader, Reader, SECTION_HEADER_BYTES, SegmentHeader, Trailer, pages,
    section,
};
use crate::{
    AckDelta, Durability, LogEvent, NewEntry, Options, PAGE_BYTES, Position, RecoverError, Refused,
    Repair, SegmentId, SubKey, TopicKey, TopicSlot,
};

const FIRST: SegmentId = SegmentId(1);

/// A log in which each body was published and receipted on its own, so it has a block of its own.
fn published(bodies: &[&[u8]]) -> World {
    let mut world = World::new(small());
    let slot = world.topic(1);
    for body in bodies {
        world.publish(slot, body);
    }
    world
}

/// Byte offset of the block that holds entry `index` of the only topic, and of the entry in it.
fn block_of(disk: &Disk, index: usize) -> (usize, usize) {
    let bytes = &disk.files[&FIRST].cached;
    let mut seen = 0;
    let mut page = 1;
    while let Some(block) = BlockHeader::peek(&bytes[page * PAGE_BYTES..]) {
        let from = page * PAGE_BYTES;
        for found in block.sections(&bytes[from..]).flatten() {
            if found.kind == section::ENTRIES {
                if seen == index {
                    return (from, from + found.at + 32);
                }
                seen += 1;
            }
        }
        page += block.pages as usize;
    }
    panic!("no entry {index}");
}

fn edit(disk: &mut Disk, at: usize, change: impl Fn(u8) -> u8) {
    let file = disk.files.get_mut(&FIRST).unwrap();
    file.cached[at] = change(file.cached[at]);
    file.durable = file.cached.clone();
}

fn put(disk: &mut Disk, at: usize, value: &[u8]) {
    for (index, &byte) in value.iter().enumerate() {
        edit(disk, at + index, |_| byte);
    }
}

/// Makes all checksums and links of a segment right again, from the first block on.
fn relink(disk: &mut Disk, id: SegmentId) {
    let file = disk.files.get_mut(&id).unwrap();
    let mut page = 1;
    let mut prev = None;
    while let Some(block) = BlockHeader::peek(&file.cached[page * PAGE_BYTES..]) {
        let bytes = &mut file.cached[page * PAGE_BYTES..];
        let block = BlockHeader {
            prev_crc: prev.unwrap_or(block.prev_crc),
            ..block
        };
        prev = Some(block.seal(&mut bytes[..block.pages as usize * PAGE_BYTES]));
        page += block.pages as usize;
    }
    file.durable = file.cached.clone();
}

fn fix_entry_crc(disk: &mut Disk, at: usize, len: usize) {
    let crc = crc_fast::crc32_iscsi(&disk.files[&FIRST].cached[at + 4..at + len]);
    put(disk, at, &crc.to_le_bytes());
}

/// Opens, and gives the bodies of topic 1.
fn open(disk: Disk) -> (World, Vec<Vec<u8>>) {
    let (mut world, _) = World::open(disk, small()).unwrap();
    let slot = world.topic(1);
    let bodies = world.bodies(slot, 0);
    (world, bodies)
}

fn damaged(disk: &Disk) -> (SegmentId, u64, Vec<u64>) {
    let before = disk
        .clone()
        .files
        .into_values()
        .map(|file| file.cached)
        .collect::<Vec<_>>();
    let error = recover(disk, &small()).expect_err("damage is an error");
    let after = disk
        .files
        .values()
        .map(|file| file.cached.clone())
        .collect::<Vec<_>>();
    assert_eq!(before, after, "nothing is changed");
    match error {
        RecoverError::Damaged {
            segment,
            offset,
            ledgers,
            ..
        } => (segment, offset, ledgers),
        error => panic!("{error}"),
    }
}

// SEG-TORN-TAIL-STALE-RECORD

#[test]
fn seg_torn_tail_stale_record_1_a_bad_byte_in_a_receipted_block_is_damage() {
    let world = published(&[&[1; 64], &[2; 64], &[3; 64], &[4; 64]]);
    let disk = world.kill();
    let (block, entry) = block_of(&disk, 2);
    for at in block..entry + ENTRY_HEADER_BYTES + 64 {
        let mut bad = disk.clone();
        edit(&mut bad, at, |byte| byte ^ 0x10);
        let (segment, offset, ledgers) = damaged(&bad);
        assert_eq!((segment, offset), (FIRST, block as u64), "byte {at}");
        assert_eq!(ledgers.len(), 1);
    }
    let mut bad = disk;
    edit(&mut bad, entry + ENTRY_HEADER_BYTES, |byte| byte ^ 1);
    let mut shown = Vec::new();
    let infos = bad.infos();
    let mut read = |id, offset, into: &mut [u8]| bad.read(id, offset, into);
    dump(&infos, &mut read, &mut |item| match item {
        DumpItem::Entry { body, .. } => shown.push(body[0]),
        DumpItem::Bad {
            offset,
            stray_blocks,
            ..
        } => {
            assert_eq!((offset, stray_blocks), (block as u64, 1));
        }
        _ => {}
    })
    .unwrap();
    assert_eq!(shown, [1, 2]);
}

/// 1 and 2 receipted; 3 and 4 written and not synced: by a topic whose blocks are written at the
/// end of their turn, so that two are in flight.
fn two_in_flight(third: &[u8], fourth: &[u8]) -> Disk {
    let mut world = published(&[&[1; 64], &[2; 64]]);
    let slot = world.log.open_topic(TopicKey(2), Durability::Written);
    world.append(slot, third).unwrap();
    world.turn();
    world.append(slot, fourth).unwrap();
    world.turn();
    world.kill()
}

fn open_both(disk: Disk) -> (World, TopicSlot, Vec<Vec<u8>>) {
    let (mut world, _) = World::open(disk, small()).unwrap();
    let slot = world.topic(1);
    let mut bodies = world.bodies(slot, 0);
    let second = world.log.open_topic(TopicKey(2), Durability::Written);
    bodies.extend(world.bodies(second, 0));
    (world, second, bodies)
}

#[test]
fn seg_torn_tail_stale_record_2_both_torn_then_a_new_third_of_any_length() {
    for len in [64, 40, 200, 5000] {
        let mut disk = two_in_flight(&[3; 64], &[4; 64]);
        for index in [2, 3] {
            let (_, entry) = block_of(&disk, index);
            edit(&mut disk, entry + ENTRY_HEADER_BYTES, |byte| !byte);
        }
        let (mut world, _, bodies) = open_both(disk);
        assert_eq!(bodies, [[1; 64], [2; 64]]);
        let new = vec![33; len];
        let slot = world.topic_slot();
        world.append(slot, &new).unwrap();
        world.turn();
        let mut rng = Rng(len as u64);
        let disk = world.clone_disk();
        world.settle();
        let (_, _, bodies) = open_both(world.crash(&mut rng));
        assert_eq!(bodies, [&[1; 64][..], &[2; 64], &new], "receipted");
        let (_, _, bodies) = open_both(disk);
        assert_eq!(bodies, [&[1; 64][..], &[2; 64], &new], "written");
    }
}

#[test]
fn seg_torn_tail_stale_record_3_the_intact_fourth_behind_a_torn_third_never_appears() {
    let mut disk = two_in_flight(&[3; 64], &[4; 64]);
    let (third, entry) = block_of(&disk, 2);
    edit(&mut disk, entry + ENTRY_HEADER_BYTES, |byte| !byte);
    let recovered = recover(&disk, &small()).unwrap();
    assert_eq!(recovered.report.torn, Some((FIRST, third as u64)));
    let (mut world, second, bodies) = open_both(disk);
    assert_eq!(
        bodies,
        [[1; 64], [2; 64]],
        "an ordinary power cut is no damage"
    );
    world.append(second, &[33; 64]).unwrap();
    world.turn();
    let disk = world.kill();
    let (_, _, bodies) = open_both(disk.clone());
    assert_eq!(bodies, [[1; 64], [2; 64], [33; 64]]);
    // The same with the new third where the first life's was: the mark of the second life lies
    // there instead, so nothing of the first can follow it.
    let (_, _, bodies) = open_both(disk);
    assert_eq!(bodies, [[1; 64], [2; 64], [33; 64]]);
}

#[test]
fn seg_torn_tail_stale_record_3_holds_without_the_zeros_too_for_the_epoch_differs() {
    let mut disk = two_in_flight(&[3; 64], &[4; 64]);
    let (_, entry) = block_of(&disk, 2);
    edit(&mut disk, entry + ENTRY_HEADER_BYTES, |byte| !byte);
    let stale = disk.files[&FIRST].cached.clone();
    let (fourth, _) = block_of(&disk_without_third(&disk), 3);
    let (mut world, second, _) = open_both(disk);
    world.append(second, &[33; 64]).unwrap();
    world.turn();
    let mut disk = world.kill();
    // Put the old fourth back behind the new end, as if the zeros had never been written.
    let end = first_free_page(&disk) * PAGE_BYTES;
    let old = stale[fourth..fourth + PAGE_BYTES].to_vec();
    let at = end.max(fourth);
    put(&mut disk, at, &old);
    let (_, _, bodies) = open_both(disk);
    assert_eq!(bodies, [[1; 64], [2; 64], [33; 64]]);
}

/// The same disk with the third entry's block made good, to find the fourth behind it.
fn disk_without_third(disk: &Disk) -> Disk {
    let mut disk = disk.clone();
    relink(&mut disk, FIRST);
    disk
}

fn first_free_page(disk: &Disk) -> usize {
    let bytes = &disk.files[&FIRST].cached;
    let mut page = 1;
    while let Some(block) = BlockHeader::peek(&bytes[page * PAGE_BYTES..]) {
        page += block.pages as usize;
    }
    page
}

#[test]
fn seg_torn_tail_stale_record_4_blocks_of_a_former_life_never_follow_the_new_end() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.log.open_sub(slot, SubKey(1), None);
    let is_recycled = |event: &Trace| matches!(event, Trace::Recycled(..));
    let mut number = 0u64;
    let mut expected: Vec<Vec<u8>> = Vec::new();
    // One page each, so old and new blocks stand on the same borders.
    for _ in 0..200 {
        number += 1;
        let mut body = vec![7; 64];
        body[..8].copy_from_slice(&number.to_le_bytes());
        let position = world.publish(slot, &body);
        expected.push(body);
        let active = world.active_segment();
        let reused = world
            .disk
            .trace
            .iter()
            .any(|event| matches!(event, Trace::Recycled(_, to) if *to == active));
        if reused {
            let disk = world.clone_disk();
            let infos = disk.infos();
            let file = &disk.files[&active].cached;
            let stale = (1..15).filter_map(|page| BlockHeader::peek(&file[page * PAGE_BYTES..]));
            let stale = stale.filter(|block| block.segment != active.0).count();
            assert_eq!(infos.len(), disk.files.len());
            if stale > 0 {
                let (_, bodies) = open(disk);
                let kept = expected.len() - bodies.len();
                assert_eq!(bodies, expected[kept..], "exactly what the new life wrote");
            }
        }
        if number.is_multiple_of(10) {
            world
                .log
                .ack_record(slot, SubKey(1), AckDelta::MarkDelete(position));
            let end = world.log.end(slot);
            world.log.trim(slot, end);
            world.log.commit_soon();
            world.settle();
        }
    }
    assert!(
        world
            .disk
            .trace
            .iter()
            .filter(|event| is_recycled(event))
            .count()
            > 3
    );
}

#[test]
fn seg_torn_tail_stale_record_5_a_file_cut_at_any_byte_gives_the_longest_valid_prefix() {
    let bodies: Vec<Vec<u8>> = (1..=6u8)
        .map(|n| vec![n; 64 + usize::from(n) * 900])
        .collect();
    let refs: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).collect();
    let mut disk = published(&refs).kill();
    disk.files.retain(|&id, _| id == FIRST);
    let ends: Vec<usize> = (0..6)
        .map(|index| block_of(&disk, index).1 + ENTRY_HEADER_BYTES + bodies[index].len())
        .collect();
    let size = first_free_page(&disk) * PAGE_BYTES;
    for cut in 0..=size {
        let mut cut_disk = disk.clone();
        let file = cut_disk.files.get_mut(&FIRST).unwrap();
        file.cached.truncate(cut);
        file.durable.truncate(cut);
        let expected = ends.iter().filter(|&&end| end <= cut).count();
        let first = recover(&cut_disk, &small()).unwrap();
        assert_eq!(first.report.entries, expected as u64, "cut at {cut}");
        // Near each border, and here and there, go on and open again.
        let near = |&end: &usize| cut.abs_diff(end) < 2 || cut % PAGE_BYTES < 2;
        if ends.iter().any(near) || cut.is_multiple_of(509) {
            for repair in &first.repairs {
                cut_disk.repair(repair);
                let again = recover(&cut_disk, &small()).unwrap();
                assert_eq!(again.report.entries, expected as u64, "cut at {cut}, again");
            }
            let (mut world, found) = open(cut_disk);
            assert_eq!(found, bodies[..expected]);
            let slot = world.topic_slot();
            world.publish(slot, b"behind");
            let (_, found) = open(world.kill());
            assert_eq!(found[..expected], bodies[..expected]);
            assert_eq!(found[expected..], [b"behind"], "cut at {cut}");
        }
    }
}

#[test]
fn seg_torn_tail_stale_record_6_index_data_of_a_former_life_gives_no_messages() {
    // A sealed segment gets a new header and name, as recycling does: old footer and trailer stay.
    let mut world = World::new(small());
    let slot = world.topic(1);
    while world.log.stats().segments_sealed == 0 {
        world.publish(slot, &[9; 3000]);
    }
    let mut file = world.disk.files[&FIRST].clone();
    let header = SegmentHeader {
        segment: 9,
        ..SegmentHeader::decode(&file.cached).unwrap()
    };
    header.encode(&mut file.cached[..PAGE_BYTES]);
    file.durable = file.cached.clone();
    assert!(
        Trailer::decode(&file.cached[15 * PAGE_BYTES..]).is_some(),
        "the old trailer is there"
    );
    let mut disk = Disk::default();
    disk.files.insert(SegmentId(9), file);
    let recovered = recover(&disk, &small()).unwrap();
    assert_eq!((recovered.report.entries, recovered.report.spares), (0, 1));
    assert!(recovered.topics.is_empty() && recovered.repairs.is_empty());
    // A sealed segment without its trailer and footer: only whole records.
    let mut disk = world.kill();
    let count = recover(&disk, &small()).unwrap().report.entries;
    let file = disk.files.get_mut(&FIRST).unwrap();
    file.cached[15 * PAGE_BYTES..].fill(0);
    let recovered = recover(&disk, &small()).unwrap();
    assert_eq!(
        recovered.report.entries, count,
        "the segment is read block by block"
    );
    assert!(recovered.report.segments_scanned >= 1);
}

// SEG-ZERO-REGION-CRC

#[test]
fn seg_zero_region_crc_1_a_segment_of_zeros_is_empty_and_used_again() {
    let options = Options {
        segment_bytes: 8 << 20,
        ..small()
    };
    let mut disk = Disk::default();
    let zeros = vec![0; 8 << 20];
    disk.files.insert(
        SegmentId(4),
        File {
            cached: zeros.clone(),
            durable: zeros,
        },
    );
    let (mut world, recovered) = World::open(disk, options).unwrap();
    assert_eq!(
        (recovered.report.segments, recovered.report.entries),
        (0, 0)
    );
    let slot = world.topic(1);
    world.publish(slot, b"1");
    let used = |event: &&Trace| matches!(event, Trace::Recycled(SegmentId(4), _));
    assert!(
        world.disk.trace.iter().find(used).is_some(),
        "{:?}",
        world.disk.trace
    );
}

#[test]
fn seg_zero_region_crc_2_zeros_end_the_entries_and_the_next_block_goes_right_behind() {
    let disk = published(&[b"1", b"2", b"3"]).kill();
    let end = first_free_page(&disk);
    let (mut world, bodies) = open(disk);
    assert_eq!(bodies, [b"1", b"2", b"3"]);
    world.settle();
    let offset = (end * PAGE_BYTES) as u64;
    let written =
        |event: &&Trace| matches!(event, Trace::CommitStart(FIRST, at, _) if *at == offset);
    assert!(
        world.disk.trace.iter().find(written).is_some(),
        "{:?}",
        world.disk.trace
    );
}

/// Four bytes that make `f`, a checksum as a function of them, zero. CRC32C is affine.
fn force_zero(f: impl Fn([u8; 4]) -> u32) -> [u8; 4] {
    let zero = f([0; 4]);
    let mut rows: Vec<(u32, u32)> = (0..32)
        .map(|bit| (f((1u32 << bit).to_le_bytes()) ^ zero, 1u32 << bit))
        .collect();
    let (mut value, mut wanted) = (0u32, zero);
    for bit in 0..32 {
        let Some(at) = rows.iter().position(|row| row.0 >> bit & 1 == 1) else {
            continue;
        };
        let pivot = rows.swap_remove(at);
        for row in &mut rows {
            if row.0 >> bit & 1 == 1 {
                row.0 ^= pivot.0;
                row.1 ^= pivot.1;
            }
        }
        if wanted >> bit & 1 == 1 {
            wanted ^= pivot.0;
            value ^= pivot.1;
        }
    }
    assert_eq!(f(value.to_le_bytes()), 0);
    value.to_le_bytes()
}

#[test]
fn seg_zero_region_crc_3_a_checksum_of_zero_ends_nothing() {
    let disk = published(&[&[1; 64], &[2; 64], &[3; 64]]).kill();
    let (block, entry) = block_of(&disk, 1);
    let len = ENTRY_HEADER_BYTES + 64;
    let with = |four: [u8; 4]| {
        let mut disk = disk.clone();
        put(&mut disk, entry + ENTRY_HEADER_BYTES, &four);
        fix_entry_crc(&mut disk, entry, len);
        relink(&mut disk, FIRST);
        disk
    };
    let word =
        |disk: &Disk, at: usize| Reader::new(&disk.files[&FIRST].cached[at..]).u32().unwrap();
    for at in [entry, block + 4] {
        let disk = with(force_zero(|four| word(&with(four), at)));
        assert_eq!(word(&disk, at), 0);
        assert_eq!(open(disk).1.len(), 3, "all three entries");
    }
}

#[test]
fn seg_zero_region_crc_4_files_of_nothing_header_only_and_a_zeroed_footer_open() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    while world.log.stats().segments_sealed == 0 {
        world.publish(slot, &[9; 3000]);
    }
    let header = SegmentHeader {
        log_id: 77,
        segment: 40,
        bytes: 64 << 10,
        block_bytes_max: 48 << 10,
    };
    let mut page = vec![0; PAGE_BYTES];
    header.encode(&mut page);
    let mut disk = world.kill();
    let count = recover(&disk, &small()).unwrap().report.entries;
    disk.files.insert(
        SegmentId(40),
        File {
            cached: page.clone(),
            durable: page,
        },
    );
    disk.files.insert(SegmentId(41), File::default());
    let last = disk.files.get_mut(&FIRST).unwrap();
    let trailer = Trailer::decode(&last.cached[15 * PAGE_BYTES..]).unwrap();
    let footer = trailer.page as usize * PAGE_BYTES;
    // The footer alone: its block was synced, so its loss is damage, though nothing of it is
    // needed but the index, which is rebuilt when the rest is there.
    let whole = last.cached.clone();
    last.cached[15 * PAGE_BYTES..].fill(0);
    let recovered = recover(&disk, &small()).unwrap();
    assert_eq!(recovered.report.entries, count);
    assert_eq!(
        recovered
            .repairs
            .iter()
            .filter(|r| matches!(r, Repair::Unlink(_)))
            .count(),
        2
    );
    let last = disk.files.get_mut(&FIRST).unwrap();
    last.cached = whole;
    last.cached[footer..footer + PAGE_BYTES].fill(0);
    let (segment, offset, _) = damaged(&disk);
    assert_eq!((segment, offset), (FIRST, footer as u64));
}

// SEG-FAILED-APPEND-REMNANT

#[test]
fn seg_failed_append_remnant_a_write_that_stops_twice_poisons_and_hides_nothing() {
    let bodies: Vec<Vec<u8>> = (1..=13u8).map(|n| vec![n; 4096]).collect();
    let mut world = World::new(small());
    let slot = world.topic(1);
    // A `written` topic makes the log write inline.
    world.log.open_topic(TopicKey(2), Durability::Written);
    for body in &bodies[..10] {
        world.publish(slot, body);
    }
    let eleventh = world.append(slot, &bodies[10]).unwrap();
    world.disk.short_write = Some(1000);
    world.log.flush_turn(world.now_ns);
    let op = world.log.poll_op().unwrap();
    let done = world.disk.submit(op).expect("a write");
    world.log.on_done(done);
    // Continued once, from the page it stopped in; it stops again.
    world.disk.short_write = Some(1000);
    world.settle();
    assert!(world.log.poisoned().is_some());
    assert!(
        world
            .events
            .iter()
            .any(|event| matches!(event, LogEvent::Poisoned { .. }))
    );
    assert_eq!(world.append(slot, b"12"), Err(Refused::Poisoned));
    world.settle();
    assert_eq!(
        world.log.ready_end(slot),
        10,
        "no receipt without reopening"
    );
    assert_eq!(world.bodies(slot, 0), bodies[..10], "reads go on");
    let (mut world, found) = open(world.kill());
    assert_eq!(found[..10], bodies[..10]);
    let slot = world.topic_slot();
    let twelfth = world.publish(slot, &bodies[11]);
    assert!(
        twelfth.ledger > eleventh.position.ledger,
        "its position is never used again"
    );
    world.publish(slot, &bodies[12]);
    let (_, found) = open(world.kill());
    let without = [&bodies[..10], &bodies[11..]].concat();
    assert!(found == without || found == bodies, "11 is absent or whole");
}

#[test]
fn seg_failed_append_remnant_one_short_write_is_continued() {
    for len in [0, 1, 1000, 4095, 4096, 5000] {
        let mut world = World::new(small());
        let slot = world.topic(1);
        // A `written` topic makes the log write inline.
        world.log.open_topic(TopicKey(2), Durability::Written);
        world.publish(slot, b"1");
        world.disk.short_write = Some(len);
        world.publish(slot, &[2; 6000]);
        let (_, found) = open(world.kill());
        assert_eq!(found, [&b"1"[..], &[2; 6000]]);
    }
}

#[test]
fn seg_failed_append_remnant_a_failed_sync_is_never_made_good_by_another() {
    let mut world = published(&[b"1"]);
    let slot = world.topic_slot();
    let appended = world.append(slot, b"2").unwrap();
    world.disk.fail_sync = true;
    world.settle();
    assert!(world.log.poisoned().is_some());
    let syncs = |world: &World| {
        world
            .disk
            .trace
            .iter()
            .filter(|event| matches!(event, Trace::SyncStart(_) | Trace::CommitStart(..)))
            .count()
    };
    let count = syncs(&world);
    for _ in 0..50 {
        world.now_ns += 1_000_000_000;
        world.log.commit_soon();
        world.settle();
    }
    assert_eq!(syncs(&world), count, "fsync is not repeated");
    assert_eq!(world.log.ready_end(slot), appended.ordinal);
    assert!(world.log.done_through(Durability::Synced) < appended.ticket);
    assert!(world.log.idle());
}

// SEG-LENGTH-CORRUPT

#[test]
fn seg_dir_fsync_a_new_segment_is_ready_and_the_old_one_synced_before_its_first_receipt() {
    for inline in [true, false] {
        check_order_of_segments(inline);
    }
}

fn check_order_of_segments(inline: bool) {
    let mut world = World::new(small());
    let slot = world.topic(1);
    if inline {
        world.log.open_topic(TopicKey(2), Durability::Written);
    }
    world.log.open_sub(slot, SubKey(1), None);
    let mut rng = Rng(5);
    for number in 0..1500u32 {
        let body = vec![number as u8; 1 + rng.below(5000) as usize];
        if world.append(slot, &body).is_err() {
            world.settle();
        }
        if rng.one_in(40) {
            world.settle();
        } else {
            world.turn();
        }
        if rng.one_in(10) {
            world.settle();
            let ready = world.log.ready_end(slot);
            let at = world.log.position(slot, ready - 1).unwrap();
            world
                .log
                .ack_record(slot, SubKey(1), AckDelta::MarkDelete(at));
            world.log.trim(slot, ready);
        }
    }
    world.settle();
    let mut made = Vec::new();
    let mut dirty: Vec<SegmentId> = Vec::new();
    let mut rolls = 0;
    for event in &world.disk.trace {
        match event {
            // The executor syncs file and directory before it reports either.
            Trace::Created(id) | Trace::Recycled(_, id) => made.push(*id),
            Trace::Write(id, ..) => {
                assert!(made.contains(id), "written before it was ready");
                if !dirty.contains(id) {
                    dirty.push(*id);
                }
            }
            Trace::SyncStart(id) => {
                assert_eq!(
                    dirty.first(),
                    Some(id),
                    "an older segment is not synced yet"
                );
                rolls += u32::from(dirty.len() > 1);
                dirty.remove(0);
            }
            Trace::CommitStart(id, ..) => {
                assert!(made.contains(id), "written before it was ready");
                assert_eq!(dirty, [], "a commit proves nothing written before it");
            }
            Trace::Synced(_) | Trace::Committed(_) | Trace::Prewritten(..) | Trace::Unlinked(_) => {
            }
        }
    }
    assert_eq!(
        rolls > 5,
        inline,
        "inline, the test saw rolls with both segments unsynced: {rolls}"
    );
}

#[test]
fn block_lengths_and_offsets_are_whole_pages_and_an_entry_too_long_is_refused() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    let longest = (64 << 10)
        - 4 * PAGE_BYTES
        - BLOCK_HEADER_BYTES
        - SECTION_HEADER_BYTES
        - 32
        - ENTRY_HEADER_BYTES;
    assert_eq!(
        world.append(slot, &vec![1; longest + 1]),
        Err(Refused::TooLarge)
    );
    let body = vec![1; longest];
    for _ in 0..3 {
        world.publish(slot, &body);
    }
    assert_eq!(pages(longest), 12);
    let (_, found) = open(world.kill());
    assert_eq!(found, [&body[..], &body, &body]);
    let entry = NewEntry {
        body: b"",
        messages: 1,
        key_hash: 0,
        producer: 0,
        sequence: 0,
        publish_ms: 0,
        arrived_ns: 0,
        ..NewEntry::default()
    };
    let mut log = crate::Log::in_memory(small());
    let slot = log.open_topic(TopicKey(1), Durability::Synced);
    assert_eq!(log.append(slot, &entry, 0), Err(Refused::NoDisk));
    let slot = log.open_topic(TopicKey(2), Durability::Memory);
    let position = log.append(slot, &entry, 0).unwrap().position;
    assert_eq!(log.ordinal(slot, position), Some(0));
    assert_eq!(
        log.ordinal(
            slot,
            Position {
                entry: 1,
                ..position
            }
        ),
        None
    );
}
