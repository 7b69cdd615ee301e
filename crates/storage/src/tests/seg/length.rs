//! Case SEG-LENGTH-CORRUPT: no length or count from disk is trusted.
use super::*;

#[test]
fn seg_length_corrupt_lengths_of_an_entry_and_its_block() {
    let disk = published(&[&[1; 64], &[2; 64], &[3; 64]]).kill();
    let (block, entry) = block_of(&disk, 1);
    let used = BlockHeader::peek(&disk.files[&FIRST].cached[block..])
        .unwrap()
        .used;
    for len in [u32::MAX, 0x8000_0000, 0, 1, 63, 65, 64 + used] {
        for outer in [false, true] {
            let mut bad = disk.clone();
            put(&mut bad, entry + 4, &len.to_le_bytes());
            if outer {
                let end = ENTRY_HEADER_BYTES + len.min(200) as usize;
                fix_entry_crc(&mut bad, entry, end);
                relink(&mut bad, FIRST);
            }
            assert_eq!(
                damaged(&bad).1,
                block as u64,
                "length {len:#x}, outer {outer}"
            );
            let mut shown = 0;
            let mut read = |id, offset, into: &mut [u8]| bad.read(id, offset, into);
            let infos = bad.infos();
            dump(&infos, &mut read, &mut |item| {
                shown += u32::from(matches!(item, DumpItem::Entry { .. }));
            })
            .unwrap();
            assert_eq!(shown, 1, "entry 1 is readable");
        }
        for at in [12, 16] {
            let mut bad = disk.clone();
            put(&mut bad, block + at, &len.to_le_bytes());
            if len as usize != PAGE_BYTES && (at == 16) != (len == 1) {
                assert_eq!(
                    damaged(&bad).1,
                    block as u64,
                    "block field {at}, length {len:#x}"
                );
            }
        }
    }
}

#[test]
fn seg_length_corrupt_a_bad_last_block_is_a_torn_tail() {
    let disk = published(&[&[1; 64], &[2; 64]]).kill();
    let (_, entry) = block_of(&disk, 1);
    for len in [u32::MAX, 0x8000_0000, 0, 1, 65] {
        let mut bad = disk.clone();
        put(&mut bad, entry + 4, &len.to_le_bytes());
        assert_eq!(open(bad).1, [[1; 64]]);
    }
}

/// Sets a count within the first section of this kind, with all checksums right.
fn with_count(disk: &Disk, id: SegmentId, kind: u32, at: usize, count: u32) -> Disk {
    let mut disk = disk.clone();
    let bytes = &mut disk.files.get_mut(&id).unwrap().cached;
    let mut page = 1;
    let mut found = None;
    while let Some(block) = BlockHeader::peek(&bytes[page * PAGE_BYTES..]) {
        let from = page * PAGE_BYTES;
        let mut sections = block.sections(&bytes[from..]).flatten();
        if let Some(section) = sections.find(|section| section.kind == kind) {
            found = Some(from + section.at + at);
        }
        page += block.pages as usize;
    }
    let at = found.expect("a section of this kind");
    bytes[at..at + 4].copy_from_slice(&count.to_le_bytes());
    relink(&mut disk, id);
    // The trailer names the footer's checksum.
    let bytes = &mut disk.files.get_mut(&id).unwrap().cached;
    let last = bytes.len() - PAGE_BYTES;
    if let Some(trailer) = Trailer::decode(&bytes[last..]) {
        let footer = BlockHeader::peek(&bytes[trailer.page as usize * PAGE_BYTES..]).unwrap();
        Trailer {
            crc: footer.crc,
            ..trailer
        }
        .encode(&mut bytes[last..]);
    }
    disk
}

#[test]
fn seg_length_corrupt_huge_counts_under_right_checksums_are_refused_before_allocation() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.log.open_sub(slot, SubKey(1), None);
    world.publish(slot, &[1; 64]);
    let second = world.publish(slot, &[2; 64]);
    world
        .log
        .ack_record(slot, SubKey(1), AckDelta::Ranges(&[(second, 1)]));
    world.publish(slot, &[3; 64]);
    let disk = world.kill();
    for (kind, at) in [
        (section::ENTRIES, 28),
        (section::ACKED, 32),
        (section::CURSOR, 20),
    ] {
        for count in [0x7FFF_FFF0, u32::MAX, 2] {
            let bad = with_count(&disk, FIRST, kind, at, count);
            let _ = recover(&bad, &small());
        }
    }
    // A footer: the segment is read block by block instead.
    let mut world = World::new(small());
    let slot = world.topic(1);
    while world.log.stats().segments_sealed == 0 {
        world.publish(slot, &[9; 3000]);
    }
    world.publish(slot, &[9; 30]);
    let disk = world.kill();
    for count in [0x7FFF_FFF0, u32::MAX] {
        let bad = with_count(&disk, FIRST, section::GROUP, 28, count);
        damaged(&bad);
    }
}

// SEG-DIR-FSYNC
