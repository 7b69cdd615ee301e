//! Consumed segments, full disks, cursors and their checkpoints.
use super::disk::{InFlight, Rng, Trace};
use super::{World, recover, small};
use crate::{
    AckDelta, DiskOpKind, Durability, LogEvent, Options, Position, RecoverError, Refused,
    SegmentId, SubKey, TopicKey, TopicSlot,
};

const SUB: SubKey = SubKey(1);

fn consume(world: &mut World, slot: TopicSlot) {
    let ready = world.log.ready_end(slot);
    if let Some(at) = ready
        .checked_sub(1)
        .and_then(|last| world.log.position(slot, last))
    {
        world.log.ack_record(slot, SUB, AckDelta::MarkDelete(at));
        world.log.trim(slot, ready);
    }
    world.log.commit_soon();
    world.settle();
}

#[test]
fn segment_delete_panic_eager_trimming_and_restarts_keep_positions_rising() {
    let mut world = World::new(small());
    let mut slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let mut last = Position::default();
    for number in 0..3000u32 {
        let position = world.append(slot, &number.to_le_bytes()).unwrap().position;
        assert!(position > last);
        last = position;
        if number % 50 == 0 {
            world.settle();
            consume(&mut world, slot);
            assert_eq!(world.log.first(slot), world.log.end(slot));
        }
        if number % 500 == 499 {
            world.settle();
            let before = world.log.cursor(slot, SUB).unwrap().mark_delete;
            world = World::open(world.kill(), small()).unwrap().0;
            slot = world.topic(1);
            world.log.open_sub(slot, SUB, None);
            world.log.forget_unopened();
            assert_eq!(world.log.cursor(slot, SUB).unwrap().mark_delete, before);
            world.settle();
            assert!(world.log.stats().segments_in_use >= 1);
        }
    }
}

#[test]
fn consumed_segments_are_recycled_and_beyond_the_spares_unlinked() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    for _ in 0..200 {
        world.publish(slot, &[1; 4000]);
    }
    let in_use = world.log.stats().segments_in_use;
    assert!(in_use > 10);
    consume(&mut world, slot);
    world.now_ns += 1_000_000_000;
    world.settle();
    let stats = world.log.stats();
    assert!(stats.segments_in_use <= 2, "{stats:?}");
    assert!(
        stats.spares_ready <= 3 && stats.spares_ready >= 2,
        "{stats:?}"
    );
    assert!(
        stats.segments_recycled >= 1 && stats.segments_unlinked >= 5,
        "{stats:?}"
    );
    assert_eq!(
        world.disk.files.len() as u64,
        stats.segments_in_use + stats.spares_ready
    );
    // The record that a segment is free is synced before anything happens to its file.
    let trace = &world.disk.trace;
    let gone = trace
        .iter()
        .position(|event| matches!(event, Trace::Unlinked(_)))
        .unwrap();
    assert!(matches!(
        trace[..gone]
            .iter()
            .rfind(|e| !matches!(e, Trace::Recycled(..))),
        Some(Trace::Synced(_) | Trace::Committed(_) | Trace::Unlinked(_))
    ));
}

#[test]
fn a_log_with_enough_spares_rests_although_the_last_one_could_not_be_made() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let making = |op: &InFlight| matches!(op.op.kind, DiskOpKind::Create { .. });
    for _ in 0..100 {
        world.publish(slot, &[1; 4000]);
    }
    while !world.in_flight.iter().any(making) {
        world.append(slot, &[1; 4000]).unwrap();
        world.turn();
        while let Some(index) = world.in_flight.iter().position(|op| !making(op)) {
            world.complete(index);
        }
    }
    // Before it has failed, consumed segments are spares again.
    world.disk.files_max = Some(0);
    let last = world
        .log
        .position_before(slot, world.log.end(slot))
        .unwrap();
    world.log.ack_record(slot, SUB, AckDelta::MarkDelete(last));
    world.log.trim(slot, world.log.end(slot));
    for _ in 0..20 {
        world.log.commit_soon();
        world.turn();
        while let Some(index) = world.in_flight.iter().position(|op| !making(op)) {
            world.complete(index);
        }
    }
    assert!(world.log.stats().spares_ready >= 2);
    world.settle();
    world.now_ns += 2_000_000_000;
    world.turn();
    assert!(world.in_flight.is_empty());
    assert_eq!(world.log.next_deadline(), None, "it would never sleep");
}

#[test]
fn a_full_disk_stops_publishing_and_acks_start_it_again_by_themselves() {
    let mut world = World::new(small());
    world.disk.files_max = Some(5);
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let mut count = 0u64;
    let refused = loop {
        world.now_ns += 2_000_000_000;
        match world.append(slot, &[3; 4000]) {
            Ok(_) => count += 1,
            Err(refused) => break refused,
        }
        world.settle();
        assert!(count < 200, "the disk never fills");
    };
    assert_eq!(refused, Refused::DiskFull);
    world.settle();
    assert!(world.events.contains(&LogEvent::DiskFull(true)));
    assert_eq!(
        world.log.ready_end(slot),
        count,
        "all that was taken has its receipt"
    );
    assert_eq!(world.bodies(slot, 0).len() as u64, count, "reads go on");
    // Acks go on: their records are committed with the disk full.
    let half = world.log.position(slot, count / 2).unwrap();
    let ticket = world.log.ack_record(slot, SUB, AckDelta::MarkDelete(half));
    world.log.trim(slot, count / 2 + 1);
    world.log.commit_soon();
    for _ in 0..3 {
        world.settle();
    }
    assert!(world.log.done_through(Durability::Synced) >= ticket);
    assert!(
        world.events.contains(&LogEvent::DiskFull(false)),
        "{:?}",
        world.log.stats()
    );
    for _ in 0..5 {
        world.publish(slot, b"again");
    }
    assert!(world.disk.files.len() <= 5);
    let (mut world, _) = World::open(world.kill(), small()).unwrap();
    let slot = world.topic(1);
    let bodies = world.bodies(slot, 0);
    assert_eq!(bodies.iter().filter(|body| *body == b"again").count(), 5);
}

#[test]
fn a_log_that_cannot_make_its_first_segment_keeps_nobody_waiting() {
    // Known before the first entry: refused until there is room.
    let mut world = World::new(small());
    world.disk.files_max = Some(0);
    let slot = world.topic(1);
    world.turn();
    world.complete(0);
    assert_eq!(world.append(slot, b"early"), Err(Refused::DiskFull));
    world.disk.files_max = None;
    world.now_ns += 2_000_000_000;
    world.settle();
    world.publish(slot, b"1");

    // Found out with an entry taken: nobody knows when it could be written.
    let mut world = World::new(small());
    world.disk.files_max = Some(0);
    let slot = world.topic(1);
    world.append(slot, b"early").unwrap();
    world.settle();
    let error = world.log.poisoned().expect("it does not wait for room");
    assert!(error.is_full(), "{error}");
    assert_eq!(world.append(slot, b"late"), Err(Refused::Poisoned));
    assert!(world.log.idle());
    let (mut world, _) = World::open(world.kill(), small()).unwrap();
    let slot = world.topic(1);
    world.disk.files_max = None;
    world.publish(slot, b"1");
    assert_eq!(world.bodies(slot, 0), [b"1"]);
}

/// Acks that come one by one need a page each, of which few are left.
#[test]
fn a_full_disk_publishes_again_once_everything_is_acked_at_any_pace() {
    for pause_ns in [1_000_000, 300_000_000] {
        let mut world = World::new(Options {
            segment_bytes: 256 << 10,
            ..small()
        });
        world.disk.files_max = Some(8);
        let slot = world.topic(1);
        world.log.open_sub(slot, SUB, None);
        for cycle in 0..3 {
            while world.append(slot, &[3; 2000]).is_ok() {
                world.now_ns += 1_000_000;
                world.settle();
            }
            let end = world.log.ready_end(slot);
            assert_eq!(end, world.log.end(slot), "all has its receipt");
            for ordinal in world.log.first(slot)..end {
                let at = world.log.position(slot, ordinal).unwrap();
                world.log.ack_record(slot, SUB, AckDelta::MarkDelete(at));
                world.log.trim(slot, ordinal + 1);
                world.now_ns += pause_ns;
                world.turn();
                while !world.in_flight.is_empty() {
                    world.complete(0);
                }
            }
            for _ in 0..10 {
                world.now_ns += 1_000_000_000;
                world.log.commit_soon();
                world.settle();
            }
            let stats = world.log.stats();
            assert_eq!(
                stats.disk_full, 0,
                "{pause_ns} ns, cycle {cycle}: {stats:?}"
            );
            world.publish(slot, b"again");
        }
    }
}

#[test]
fn a_disk_found_full_only_when_the_segment_is_used_up_still_takes_acks() {
    for files_max in 2..6 {
        let mut world = World::new(Options {
            segment_bytes: 256 << 10,
            ..small()
        });
        let slot = world.topic(1);
        world.log.open_sub(slot, SUB, None);
        world.publish(slot, b"the first segment is there");
        world.disk.files_max = Some(files_max);
        // Whether there is room for one more segment is known late.
        let making = |op: &InFlight| matches!(op.op.kind, DiskOpKind::Create { .. });
        for _ in 0..(files_max + 1) * 100 {
            if world.append(slot, &[3; 2000]).is_err() {
                break;
            }
            world.now_ns += 200_000_000;
            world.turn();
            while let Some(index) = world.in_flight.iter().position(|op| !making(op)) {
                world.complete(index);
            }
            if world.log.ready_end(slot) + 50 < world.log.end(slot) {
                world.settle();
            }
        }
        world.settle();
        for _ in 0..20 {
            world.now_ns += 2_000_000_000;
            consume(&mut world, slot);
        }
        let stats = world.log.stats();
        assert_eq!(
            (world.log.ready_end(slot), stats.disk_full),
            (world.log.end(slot), 0),
            "{files_max} files: {stats:?}"
        );
        world.publish(slot, b"goes on");
    }
}

/// A publisher far ahead of the disk leaves an ack in nearly every batch that waits, and the record that
/// frees a segment behind all of them; one page for each would use up what is left.
#[test]
fn a_full_disk_takes_the_records_of_all_that_waits_together() {
    for files in 4..12 {
        let mut world = World::new(Options {
            segment_bytes: 256 << 10,
            block_bytes: 32 << 10,
            ..small()
        });
        let slot = world.topic(1);
        world.log.open_sub(slot, SUB, None);
        let mut acked = 0;
        let ack = |world: &mut World, acked: &mut u64| {
            let through = world.log.ready_end(slot).min(*acked + 4);
            if through > *acked {
                *acked = through;
                let at = world.log.position(slot, through - 1).unwrap();
                world.log.ack_record(slot, SUB, AckDelta::MarkDelete(at));
                world.log.trim(slot, through);
            }
        };
        while world.log.stats().segments_in_use < files {
            world.publish(slot, &[1; 4000]);
        }
        world.disk.files_max = Some(files as usize);
        for step in 0..4_000 {
            world.append(slot, &[2; 2000]).unwrap();
            if step % 15 == 0 {
                ack(&mut world, &mut acked);
            }
            world.turn();
        }
        for _ in 0..2_000 {
            world.now_ns += 5_000_000;
            ack(&mut world, &mut acked);
            world.turn();
            while !world.in_flight.is_empty() {
                world.complete(0);
            }
        }
        let stats = world.log.stats();
        let (ready, end) = (world.log.ready_end(slot), world.log.end(slot));
        assert_eq!(
            (ready, acked, stats.disk_full),
            (end, end, 0),
            "{files} files: {stats:?}"
        );
        world.publish(slot, b"goes on");
    }
}

#[test]
fn a_disk_that_fills_while_data_waits_for_its_segment_still_takes_acks() {
    for seed in 0..30 {
        let mut rng = Rng(seed);
        let mut world = World::new(small());
        world.disk.files_max = Some(3 + rng.below(3) as usize);
        let slot = world.topic(1);
        world.log.open_sub(slot, SUB, None);
        let mut acked = 0;
        for _ in 0..2000 {
            world.now_ns += rng.below(50_000_000);
            let _ = world.append(slot, &vec![5; 1 + rng.below(9000) as usize]);
            world.turn();
            while !world.in_flight.is_empty() && rng.one_in(2) {
                world.complete(0);
            }
            let ready = world.log.ready_end(slot);
            if ready > acked && rng.one_in(5) {
                acked = acked + 1 + rng.below(ready - acked);
                let at = world.log.position(slot, acked - 1).unwrap();
                world.log.ack_record(slot, SUB, AckDelta::MarkDelete(at));
                world.log.trim(slot, acked);
            }
        }
        for _ in 0..20 {
            world.now_ns += 2_000_000_000;
            world.settle();
            let ready = world.log.ready_end(slot);
            if let Some(at) = ready
                .checked_sub(1)
                .and_then(|at| world.log.position(slot, at))
            {
                world.log.ack_record(slot, SUB, AckDelta::MarkDelete(at));
                world.log.trim(slot, ready);
            }
        }
        let end = world.log.end(slot);
        assert_eq!(
            world.log.ready_end(slot),
            end,
            "seed {seed}: {:?}",
            world.log.stats()
        );
        world.publish(slot, b"goes on");
        assert!(world.disk.files.len() <= 5, "seed {seed}");
    }
}

#[test]
fn unacked_after_delete_a_lost_segment_is_named_and_can_be_accepted_as_lost() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let positions: Vec<Position> = (0..60).map(|n| world.publish(slot, &[n; 2500])).collect();
    world
        .log
        .ack_record(slot, SUB, AckDelta::MarkDelete(positions[2]));
    let touching = [(positions[8], 1), (positions[20], 5), (positions[40], 2)];
    world.log.ack_record(slot, SUB, AckDelta::Ranges(&touching));
    world.log.commit_soon();
    world.settle();
    let mut disk = world.kill();
    disk.files.remove(&SegmentId(2));
    let missing = RecoverError::Missing {
        segments: vec![SegmentId(2)],
    };
    assert_eq!(recover(&disk, &small()).err(), Some(missing));
    let accept = Options {
        accept_loss: true,
        ..small()
    };
    let (mut world, recovered) = World::open(disk, accept).unwrap();
    assert_eq!(recovered.report.lost_segments, [SegmentId(2)]);
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let there: Vec<u8> = world.bodies(slot, 0).iter().map(|body| body[0]).collect();
    assert!(there.len() < 60 && there.len() > 30);
    assert!(there.is_sorted());
    let cursor = world.log.cursor(slot, SUB).unwrap();
    assert_eq!(cursor.mark_delete, Some(positions[2]));
    let next = world.log.ordinal_after(slot, positions[2]);
    let gone = (0..60u8).find(|n| !there.contains(n)).unwrap();
    let after = world.log.ordinal_after(slot, positions[usize::from(gone)]);
    assert!(next <= after, "a position in the gap counts as passed");
    assert!(
        world
            .log
            .ordinal(slot, positions[usize::from(gone)])
            .is_none()
    );
    assert_eq!(
        world.log.backlog_messages(slot, 0),
        there.len() as u64,
        "only what exists"
    );
    world.settle();
    let again = World::open(world.kill(), small()).unwrap().1;
    assert!(
        again.report.lost_segments.is_empty(),
        "once accepted, it is not asked again"
    );
}

#[test]
fn unacked_after_delete_trimming_what_nobody_acked_passes_every_cursor() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let positions: Vec<Position> = (0..10).map(|n| world.publish(slot, &[n; 10])).collect();
    world.log.ack_record(
        slot,
        SUB,
        AckDelta::Ranges(&[(positions[4], 2), (positions[8], 1)]),
    );
    world.log.trim(slot, 7);
    let cursor = world.log.cursor(slot, SUB).unwrap();
    assert_eq!(cursor.mark_delete, Some(positions[6]));
    assert_eq!(cursor.acked, [(positions[8], 1)]);
}

#[test]
fn a_checkpoint_larger_than_a_segment_spans_several_and_keeps_them() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    let first = world.publish(slot, b"first");
    for sub in 0..3000 {
        world.log.open_sub(slot, SubKey(sub), Some(first));
        if sub % 100 == 0 {
            world.settle();
        }
    }
    for number in 0..300u32 {
        let position = world.publish(slot, &[number as u8; 3000]);
        let sub = SubKey(u64::from(number) * 7 % 3000);
        world
            .log
            .ack_record(slot, sub, AckDelta::MarkDelete(position));
    }
    world.settle();
    assert!(world.log.stats().checkpoints >= 2);
    let expected: Vec<_> = (0..3000)
        .map(|sub| world.log.cursor(slot, SubKey(sub)).unwrap())
        .collect();
    world.log.commit_soon();
    world.settle();
    let recovered = World::open(world.kill(), small()).unwrap().1;
    assert_eq!(recovered.cursors, expected);
}

#[test]
fn a_cursor_without_its_topic_open_survives_checkpoints_until_it_is_forgotten() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let first = world.publish(slot, b"1");
    let ranges: Vec<Position> = (0..40).map(|_| world.publish(slot, b"x")).collect();
    world.log.ack_record(slot, SUB, AckDelta::MarkDelete(first));
    for at in ranges.iter().step_by(2) {
        world
            .log
            .ack_record(slot, SUB, AckDelta::Ranges(&[(*at, 1)]));
    }
    world.log.commit_soon();
    world.settle();
    let (mut world, recovered) = World::open(world.kill(), small()).unwrap();
    let expected = recovered.cursors;
    assert_eq!(expected.len(), 1);
    let other = world.topic(2);
    for _ in 0..100 {
        world.publish(other, &[2; 4000]);
    }
    let (mut world, recovered) = World::open(world.kill(), small()).unwrap();
    assert_eq!(recovered.cursors, expected);
    world.topic(2);
    world.log.forget_unopened();
    let other = world.topic_slot();
    for _ in 0..100 {
        world.publish(other, &[2; 4000]);
    }
    let recovered = World::open(world.kill(), small()).unwrap().1;
    assert!(recovered.cursors.is_empty());
}

#[test]
fn a_reset_replaces_what_was_acked_before_it_and_not_what_comes_after() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let at: Vec<Position> = (0..10).map(|n| world.publish(slot, &[n])).collect();
    world.log.ack_record(slot, SUB, AckDelta::MarkDelete(at[7]));
    world
        .log
        .ack_record(slot, SUB, AckDelta::Reset(Some(at[1])));
    world
        .log
        .ack_record(slot, SUB, AckDelta::Ranges(&[(at[4], 2)]));
    world.log.ack_record(slot, SUB, AckDelta::MarkDelete(at[2]));
    let expected = world.log.cursor(slot, SUB).unwrap();
    assert_eq!(
        (expected.mark_delete, &expected.acked[..]),
        (Some(at[2]), &[(at[4], 2)][..])
    );
    world.log.commit_soon();
    world.settle();
    let recovered = World::open(world.kill(), small()).unwrap().1;
    assert_eq!(recovered.cursors, [expected]);
}

#[test]
fn files_of_another_log_or_of_no_log_are_refused_and_left_alone() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.publish(slot, b"1");
    let disk = world.kill();
    let mut other = World::new(Options {
        log_id: 78,
        ..small()
    });
    let slot = other.topic(1);
    other.publish(slot, b"1");
    let mut mixed = disk.clone();
    mixed
        .files
        .insert(SegmentId(3), other.disk.files[&SegmentId(3)].clone());
    assert!(matches!(
        recover(&mixed, &small()).err(),
        Some(RecoverError::Foreign {
            segment: SegmentId(3),
            found: 78,
            expected: 77
        })
    ));
    let mut mixed = disk;
    mixed.files.get_mut(&SegmentId(3)).unwrap().cached[..20]
        .copy_from_slice(b"holiday pictures 001");
    assert_eq!(
        recover(&mixed, &small()).err(),
        Some(RecoverError::NotASegment {
            segment: SegmentId(3)
        })
    );
}

#[test]
fn a_topic_that_became_memory_leaves_its_stored_entries_to_be_forgotten() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.publish(slot, b"1");
    let (mut world, _) = World::open(world.kill(), small()).unwrap();
    let slot = world.log.open_topic(TopicKey(1), Durability::Memory);
    world.log.forget_unopened();
    let appended = world.append(slot, b"2").unwrap();
    assert_eq!((appended.ordinal, world.log.ready_end(slot)), (0, 1));
    assert_eq!(world.bodies(slot, 0), [b"2"]);
}
