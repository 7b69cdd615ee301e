//! Case STORM-ACK-RANGES: what a million alternating holes cost. `--nocapture` prints it.
use super::{World, recover, small};
use crate::{AckDelta, Options, Position, SubKey, TopicSlot};

const SUB: SubKey = SubKey(1);
/// Holes: every second entry is acked.
const HOLES: u64 = 1_000_000;

fn options(segment_bytes: u64) -> Options {
    Options {
        segment_bytes,
        tail_bytes: 1 << 20,
        ..small()
    }
}

/// A topic with a subscription and so many empty entries, and the position of the first.
fn filled(options: &Options, entries: u64) -> (World, TopicSlot, Position) {
    let mut world = World::new(options.clone());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let first = world.append(slot, b"").unwrap().position;
    for number in 1..entries {
        while world.append(slot, b"").is_err() {
            world.settle();
        }
        if number % 20_000 == 0 {
            world.settle();
        }
    }
    world.settle();
    (world, slot, first)
}

#[test]
fn storm_ack_ranges_a_million_holes_cost_a_bit_each() {
    let options = options(16 << 20);
    let (mut world, slot, first) = filled(&options, 2 * HOLES);
    let at = |entry| first.nth(entry);
    let before = world.log.stats().cursor_bytes_written;
    let checkpoints = world.log.stats().checkpoints;
    for hole in 0..HOLES {
        let range = [(at(2 * hole + 1), 1)];
        world.log.ack_record(slot, SUB, AckDelta::Ranges(&range));
    }
    world.log.commit_soon();
    world.settle();
    let records = world.log.stats().cursor_bytes_written - before;
    let live = world.log.live(slot).unwrap();
    let memory = live.subs.get(SUB).unwrap().bitmap_bytes();
    let index = live.index.state_bytes();

    let store = world.log.store.as_mut().unwrap();
    store.start_checkpoint();
    let before = world.log.stats().cursor_bytes_written;
    world.settle();
    assert!(world.log.stats().checkpoints > checkpoints);
    let checkpoint = world.log.stats().cursor_bytes_written - before;

    let disk = world.kill();
    let recovered = recover(&disk, &options).unwrap();
    let (mut log, cursors) = (recovered.log, recovered.cursors);
    let slot = log.open_topic(crate::TopicKey(1), crate::Durability::Synced);
    log.open_sub(slot, SUB, None);
    let state = log.cursor(slot, SUB).unwrap();
    let expected = (0..HOLES).map(|hole| (at(2 * hole + 1), 1));
    assert!(state.acked.iter().copied().eq(expected));
    assert_eq!(cursors, [state]);

    println!("{HOLES} holes over {} entries", 2 * HOLES);
    println!("  memory         {memory} bytes of bitmap (index {index} bytes)");
    println!(
        "  records        {:.2} bytes per ack",
        records as f64 / HOLES as f64
    );
    println!("  checkpoint     {checkpoint} bytes");
    assert!(memory as u64 <= 2 * HOLES / 8 + 64);
    assert!(records <= 10 * HOLES);
    assert!(checkpoint <= HOLES / 2);
}

#[test]
fn storm_ack_ranges_acked_to_the_end_in_reverse_leave_nothing_behind() {
    const N: u64 = 200_000;
    let options = options(8 << 20);
    let (mut world, slot, first) = filled(&options, N);
    let at = |entry| first.nth(entry);
    let before = world.log.stats().cursor_bytes_written;
    for entry in (1..N).step_by(2) {
        world
            .log
            .ack_record(slot, SUB, AckDelta::Ranges(&[(at(entry), 1)]));
    }
    world.log.commit_soon();
    world.settle();
    let bytes = world.log.stats().cursor_bytes_written - before;
    assert!(bytes < 10 * N / 2, "{bytes} bytes for {} acks", N / 2);
    let (mut world, _) = World::open(world.kill(), options.clone()).unwrap();
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let cursor = world.log.cursor(slot, SUB).unwrap();
    assert_eq!(
        (cursor.mark_delete, cursor.acked.len() as u64),
        (None, N / 2)
    );
    assert!(
        cursor
            .acked
            .iter()
            .zip((1..N).step_by(2))
            .all(|(ack, n)| *ack == (at(n), 1))
    );
    for entry in (0..N).step_by(2).collect::<Vec<_>>().into_iter().rev() {
        world
            .log
            .ack_record(slot, SUB, AckDelta::Ranges(&[(at(entry), 1)]));
    }
    world.log.commit_soon();
    world.settle();
    let (mut world, _) = World::open(world.kill(), options).unwrap();
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let cursor = world.log.cursor(slot, SUB).unwrap();
    assert_eq!(
        world.log.ordinal_after(slot, cursor.mark_delete.unwrap()),
        N
    );
    assert!(cursor.acked.is_empty(), "the floor is the end");
}
