//! Case STORM-ACK-RANGES: what a million alternating holes cost. `--nocapture` prints it.
use std::time::Instant;

use super::{World, recover, small};
use crate::{AckDelta, Options, Position, SubKey};

const SUB: SubKey = SubKey(1);
/// Holes: every second entry is acked.
const HOLES: u64 = 1_000_000;

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test of how the cost grows; its bounds are wide"
)]
fn storm_ack_ranges_a_million_holes_cost_a_bit_each_and_acks_stay_flat() {
    let options = Options {
        segment_bytes: 16 << 20,
        tail_bytes: 1 << 20,
        ..small()
    };
    let mut world = World::new(options.clone());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let first = world.append(slot, b"").unwrap().position;
    for number in 1..2 * HOLES {
        while world.append(slot, b"").is_err() {
            world.settle();
        }
        if number % 20_000 == 0 {
            world.settle();
        }
    }
    world.settle();
    let at = |entry: u64| Position {
        ledger: first.ledger,
        entry,
    };
    let before = world.log.stats().cursor_bytes_written;
    let checkpoints = world.log.stats().checkpoints;
    let mut costs = Vec::new();
    let mut acked = 0;
    for holes in [1_000, 100_000, HOLES] {
        // The last thousand acks before each number of holes are timed, ten at a time.
        let mut times = Vec::new();
        while acked < holes {
            let start = Instant::now();
            for hole in acked..acked + 10 {
                let range = [(at(2 * hole + 1), 1)];
                world.log.ack_record(slot, SUB, AckDelta::Ranges(&range));
            }
            acked += 10;
            if acked + 1_000 > holes {
                times.push(start.elapsed().as_nanos() as u64 / 10);
            }
        }
        times.sort_unstable();
        costs.push(times[times.len() / 2]);
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
    let start = Instant::now();
    world.settle();
    let checkpoint_time = start.elapsed();
    assert!(world.log.stats().checkpoints > checkpoints);
    let checkpoint = world.log.stats().cursor_bytes_written - before;

    let disk = world.kill();
    let start = Instant::now();
    let recovered = recover(&disk, &options).unwrap();
    let recovery = start.elapsed();
    let (mut log, cursors) = (recovered.log, recovered.cursors);
    let start = Instant::now();
    let slot = log.open_topic(crate::TopicKey(1), crate::Durability::Synced);
    log.open_sub(slot, SUB, None);
    let open = start.elapsed();
    let start = Instant::now();
    let state = log.cursor(slot, SUB).unwrap();
    let listing = start.elapsed();
    let expected = (0..HOLES).map(|hole| (at(2 * hole + 1), 1));
    assert!(state.acked.iter().copied().eq(expected));
    assert_eq!(cursors, [state]);

    println!("{HOLES} holes over {} entries", 2 * HOLES);
    println!("  memory         {memory} bytes of bitmap (index {index} bytes)");
    println!(
        "  records        {:.2} bytes per ack",
        records as f64 / HOLES as f64
    );
    println!("  checkpoint     {checkpoint} bytes in {checkpoint_time:?}");
    println!("  recovery       {recovery:?}, open topic {open:?}, list of stretches {listing:?}");
    println!("  ack            {costs:?} ns each at 1 k, 100 k, 1 M holes");
    assert!(memory as u64 <= 2 * HOLES / 8 + 64);
    assert!(records <= 10 * HOLES);
    assert!(checkpoint <= HOLES / 2);
    // Wide: the build may be a debug one, and the machine busy.
    assert!(recovery.as_secs() < 60 && open.as_secs() < 20);
    assert!(
        costs[2] < 10 * costs[0].max(100),
        "acks are flat: {costs:?}"
    );
}

#[test]
fn storm_ack_ranges_acked_to_the_end_in_reverse_leave_nothing_behind() {
    const N: u64 = 200_000;
    let options = Options {
        segment_bytes: 8 << 20,
        tail_bytes: 1 << 20,
        ..small()
    };
    let mut world = World::new(options.clone());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let first = world.append(slot, b"").unwrap().position;
    for number in 1..N {
        while world.append(slot, b"").is_err() {
            world.settle();
        }
        if number % 20_000 == 0 {
            world.settle();
        }
    }
    world.settle();
    let at = |entry: u64| Position {
        ledger: first.ledger,
        entry,
    };
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
