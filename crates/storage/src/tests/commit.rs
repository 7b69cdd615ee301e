//! Group commit: what a receipt needs, what waits for what (`spec/runtime.md` 3.4 to 3.7).
use super::disk::{Rng, Trace};
use super::dump::{DumpItem, dump};
use super::{World, small};
use crate::{
    AckDelta, DiskOpKind, Durability, LogEvent, Options, Refused, SubKey, Ticket, TopicKey,
};

#[test]
fn a_block_written_after_a_sync_was_submitted_is_not_acknowledged_by_it() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    let other = world.log.open_topic(TopicKey(2), Durability::Written);
    world.publish(slot, b"1");
    let second = world.append(slot, b"2").unwrap();
    world.turn();
    assert_eq!(world.in_flight_syncs(), 1);
    // A written topic's entry does not wait, and takes the third along: both behind the sync.
    let third = world.append(slot, b"3").unwrap();
    world.append(other, b"w").unwrap();
    world.turn();
    assert_eq!(world.log.ready_end(other), 1, "the write is its receipt");
    world.complete_sync();
    assert!(world.log.done_through(Durability::Synced) >= second.ticket);
    assert!(world.log.done_through(Durability::Synced) < third.ticket);
    assert_eq!(world.log.ready_end(slot), 2);
    world.settle();
    assert_eq!(world.log.ready_end(slot), 3);
}

#[test]
fn what_is_gathered_during_a_sync_becomes_one_block_with_entries_of_a_topic_adjacent() {
    let mut world = World::new(small());
    let slots = [world.topic(1), world.topic(2)];
    world.publish(slots[0], b"first");
    world.publish(slots[1], b"first");
    world.append(slots[0], b"now").unwrap();
    world.turn();
    let blocks = world.log.stats().blocks_written;
    for round in 0..20u8 {
        world
            .append(slots[usize::from(round % 2)], &[round; 50])
            .unwrap();
        world.turn();
    }
    assert_eq!(
        world.log.stats().blocks_written,
        blocks,
        "gathered while the sync is in flight"
    );
    world.complete_sync();
    world.turn();
    assert_eq!(world.log.stats().blocks_written, blocks + 1);
    world.settle();
    let infos = world.disk.infos();
    let disk = &world.disk;
    let mut topics = Vec::new();
    dump(
        &infos,
        &mut |id, offset, into| disk.read(id, offset, into),
        &mut |item| match item {
            DumpItem::Block => topics.clear(),
            DumpItem::Entry { topic, .. } => topics.push(topic.0),
            _ => {}
        },
    )
    .unwrap();
    assert_eq!(topics, [[1; 10], [2; 10]].concat());
}

#[test]
fn a_full_slice_does_not_wait_for_the_sync_in_flight() {
    let mut world = World::new(Options {
        segment_bytes: 1 << 20,
        ..small()
    });
    let slot = world.topic(1);
    world.log.open_topic(TopicKey(2), Durability::Written);
    world.publish(slot, b"1");
    world.append(slot, b"2").unwrap();
    world.turn();
    let blocks = world.log.stats().blocks_written;
    for _ in 0..100 {
        world.append(slot, &[7; 3000]).unwrap();
    }
    for _ in 0..10 {
        world.turn();
    }
    let written = world.log.stats().blocks_written - blocks;
    assert_eq!(
        written,
        300_000 / 65_536,
        "full blocks are written, the rest is gathered"
    );
    world.settle();
    assert_eq!(world.log.ready_end(slot), 102);
}

#[test]
fn blocks_gathered_during_a_commit_go_with_the_next_one_and_stay_unproven_until_it_ends() {
    let mut world = World::new(Options {
        segment_bytes: 4 << 20,
        block_bytes: 64 << 10,
        commit_bytes: 256 << 10,
        ..small()
    });
    let slot = world.topic(1);
    world.publish(slot, b"1");
    let first = world.append(slot, b"2").unwrap();
    world.turn();
    world.disk.trace.clear();
    for _ in 0..100 {
        world.append(slot, &[7; 3000]).unwrap();
    }
    for _ in 0..10 {
        world.turn();
    }
    assert_eq!(world.disk.trace, [], "one commit in flight");
    assert_eq!(
        world.log.next_deadline(),
        None,
        "a full run waits for the commit, not for a turn"
    );
    world.complete_sync();
    assert_eq!(world.log.done_through(Durability::Synced), first.ticket);
    assert_eq!(world.log.ready_end(slot), 2);
    world.turn();
    let commits = |world: &World| {
        let trace = world.disk.trace.iter();
        trace
            .filter_map(|event| match event {
                Trace::CommitStart(_, _, len) => Some(*len),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    let len = commits(&world)[0];
    assert!((200 << 10..=256 << 10).contains(&len), "four blocks: {len}");
    assert_eq!(world.log.ready_end(slot), 2, "in flight is not durable");
    world.complete_sync();
    assert!(world.log.ready_end(slot) > 60);
    world.settle();
    assert_eq!(commits(&world).len(), 2);
    assert_eq!(world.log.ready_end(slot), 102);
    assert_eq!(world.log.stats().syncs, 4);
}

/// A log with a first segment that is allocated and written through behind the first receipt.
fn with_long_segments() -> World {
    let mut world = World::new(Options {
        segment_bytes: 4 << 20,
        ..small()
    });
    let slot = world.topic(1);
    world.turn();
    world.complete(0);
    world.append(slot, b"first").unwrap();
    world
}

fn is_prewrite(op: &super::InFlight) -> bool {
    matches!(op.op.kind, DiskOpKind::Prewrite { .. })
}

/// Completes all but the zeros in flight.
fn turn_beside_zeros(world: &mut World) {
    world.turn();
    while let Some(index) = world.in_flight.iter().position(|op| !is_prewrite(op)) {
        world.complete(index);
    }
}

/// How many zeros were written, in bytes.
fn prewritten(world: &World) -> u64 {
    let trace = world.disk.trace.iter();
    let bytes = trace.map(|event| match event {
        Trace::Prewritten(_, _, bytes) => *bytes,
        _ => 0,
    });
    bytes.sum()
}

#[test]
fn the_first_receipt_of_a_log_waits_for_no_zeros() {
    let mut world = with_long_segments();
    for _ in 0..2 {
        turn_beside_zeros(&mut world);
    }
    let slot = world.topic_slot();
    assert_eq!(world.log.ready_end(slot), 1, "receipted");
    assert_eq!(prewritten(&world), 0);
    assert!(world.in_flight.iter().any(is_prewrite), "they follow");
    world.settle();
    let (segment, lead) = (4 << 20, 256 << 10);
    assert_eq!(prewritten(&world), segment - lead, "all behind the lead");
    assert_eq!(world.log.next_deadline(), None);
}

#[test]
fn a_block_of_a_new_log_waits_for_one_piece_of_zeros_at_most() {
    let mut world = with_long_segments();
    let slot = world.topic_slot();
    turn_beside_zeros(&mut world);
    let (mut waits, mut sent) = (0, 1);
    while world.log.stats().segments_sealed == 0 {
        world.append(slot, &[7; 30_000]).unwrap();
        sent += 1;
        for _ in 0..4 {
            turn_beside_zeros(&mut world);
        }
        if world.log.ready_end(slot) < sent {
            let now_ns = world.now_ns;
            let due = world.log.next_deadline().is_some_and(|at| at <= now_ns);
            assert!(!due, "it waits for the zeros, not in circles");
            // The disk checks that they meet no block.
            let index = world.in_flight.iter().position(is_prewrite);
            world.complete(index.expect("nothing else to wait for"));
            waits += 1;
        }
    }
    assert_eq!(waits, 1);
    assert_eq!(prewritten(&world), 256 << 10, "the tail was faster");
    world.settle();
    let options = world.options.clone();
    let (mut world, _) = World::open(world.kill(), options).unwrap();
    let slot = world.topic(1);
    assert_eq!(world.bodies(slot, 0).len() as u64, sent);
}

#[test]
fn a_tail_slower_than_the_zeros_never_waits_for_them() {
    let mut world = with_long_segments();
    let slot = world.topic_slot();
    let mut sent = 1;
    while world.log.stats().segments_sealed == 0 {
        world.append(slot, &[7; 3_000]).unwrap();
        sent += 1;
        for _ in 0..4 {
            turn_beside_zeros(&mut world);
        }
        assert_eq!(world.log.ready_end(slot), sent);
        if let Some(index) = world.in_flight.iter().position(is_prewrite) {
            world.complete(index);
        }
    }
    assert_eq!(prewritten(&world), (4 << 20) - (256 << 10));
}

#[test]
fn zeros_that_fail_leave_the_segment_allocated_and_the_log_sound() {
    let mut world = with_long_segments();
    turn_beside_zeros(&mut world);
    let slot = world.topic_slot();
    let index = world.in_flight.iter().position(is_prewrite).unwrap();
    let id = world.in_flight.remove(index).unwrap().op.id;
    world.log.on_done(crate::DiskDone {
        id,
        result: Err(super::disk::error(crate::DiskError::EIO, "zeros failed")),
        buffer: None,
    });
    world.publish(slot, b"second");
    assert!(world.log.poisoned().is_none());
    assert_eq!(prewritten(&world), 0, "given up");
}

#[test]
fn a_failed_commit_proves_nothing_and_poisons_the_log() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.publish(slot, b"1");
    world.append(slot, b"2").unwrap();
    world.turn();
    world.append(slot, b"3").unwrap();
    world.disk.fail_sync = true;
    world.complete_sync();
    assert!(world.log.poisoned().is_some());
    for _ in 0..5 {
        world.turn();
    }
    assert!(world.in_flight.is_empty(), "nothing more is written");
    assert_eq!(world.log.ready_end(slot), 1);
    assert!(world.log.idle());
    let mut rng = Rng(5);
    let (mut world, _) = World::open(world.crash(&mut rng), small()).unwrap();
    let slot = world.topic(1);
    assert_eq!(world.bodies(slot, 0), [b"1"]);
}

#[test]
fn a_written_topic_opened_during_a_commit_is_written_inline_behind_it() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.publish(slot, b"1");
    world.append(slot, b"2").unwrap();
    world.turn();
    let other = world.log.open_topic(TopicKey(2), Durability::Written);
    world.append(other, b"w").unwrap();
    world.turn();
    assert_eq!(
        world.log.ready_end(other),
        0,
        "a kill may still undo the block before it"
    );
    world.complete_sync();
    assert_eq!(
        (world.log.ready_end(slot), world.log.ready_end(other)),
        (2, 0)
    );
    world.turn();
    assert_eq!(world.log.ready_end(other), 1, "the write is its receipt");
    world.append(slot, b"3").unwrap();
    world.settle();
    assert_eq!(world.log.ready_end(slot), 3);
    let (mut world, _) = World::open(world.kill(), small()).unwrap();
    let slot = world.topic(1);
    assert_eq!(world.bodies(slot, 0), [b"1", b"2", b"3"]);
}

#[test]
fn a_long_entry_goes_out_in_slices_over_several_turns() {
    let mut world = World::new(Options {
        segment_bytes: 4 << 20,
        ..small()
    });
    let slot = world.topic(1);
    world.log.open_topic(TopicKey(2), Durability::Written);
    world.publish(slot, b"1");
    let body: Vec<u8> = (0..1_000_000u32).map(|at| (at / 7) as u8).collect();
    world.append(slot, &body).unwrap();
    world.disk.trace.clear();
    let mut turns = 0;
    while world.log.ready_end(slot) < 2 {
        world.turn();
        while !world.in_flight.is_empty() {
            world.complete(0);
        }
        turns += 1;
    }
    let writes: Vec<usize> = world
        .disk
        .trace
        .iter()
        .filter_map(|event| {
            if let Trace::Write(_, _, len) = event {
                Some(*len)
            } else {
                None
            }
        })
        .collect();
    assert!(turns >= 1_000_000 / 65_536, "{turns} turns");
    assert!(writes.iter().all(|&len| len <= 65_536), "{writes:?}");
    let (mut world, _) = World::open(world.kill(), small()).unwrap();
    let slot = world.topic(1);
    assert_eq!(world.bodies(slot, 0), [&b"1"[..], &body]);
}

#[test]
fn acks_ride_with_data_or_commit_alone_after_their_delay_or_at_once_when_somebody_waits() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.log.open_sub(slot, SubKey(1), None);
    let first = world.publish(slot, b"1");
    let second = world.publish(slot, b"2");
    let ticket = world
        .log
        .ack_record(slot, SubKey(1), AckDelta::MarkDelete(first));
    world.turn();
    assert!(world.log.done_through(Durability::Synced) < ticket);
    let deadline = world.log.next_deadline().expect("a deadline for the acks");
    assert!(deadline > world.now_ns && deadline <= world.now_ns + 100_000_000);
    world.now_ns = deadline;
    world.settle();
    assert!(world.log.done_through(Durability::Synced) >= ticket);
    assert_eq!(world.log.next_deadline(), None);
    let again = world
        .log
        .ack_record(slot, SubKey(1), AckDelta::MarkDelete(first));
    assert_eq!(again, ticket, "nothing new: as done as it was");
    let ticket = world
        .log
        .ack_record(slot, SubKey(1), AckDelta::MarkDelete(second));
    world.log.commit_soon();
    world.settle();
    assert!(world.log.done_through(Durability::Synced) >= ticket);
    assert!(world.log.idle());
}

#[test]
fn appends_beyond_the_gather_bound_are_held_and_told_when_there_is_room() {
    let mut world = World::new(Options {
        gather_bytes_max: 64 << 10,
        ..small()
    });
    let slot = world.topic(1);
    world.publish(slot, b"1");
    let mut count = 1;
    while world.append(slot, &[1; 1000]).is_ok() {
        count += 1;
        assert!(count < 100, "no bound");
    }
    assert_eq!(world.append(slot, &[1; 1000]), Err(Refused::NoMemory));
    let ticket = world.log.ack_record(
        slot,
        SubKey(1),
        AckDelta::MarkDelete(crate::Position::default()),
    );
    assert_eq!(
        ticket,
        Ticket(0),
        "no such subscription: nothing to wait for"
    );
    assert!(!world.events.contains(&LogEvent::Room));
    world.settle();
    assert!(world.events.contains(&LogEvent::Room));
    assert!(world.append(slot, &[1; 1000]).is_ok());
}

#[test]
fn written_entries_of_a_reopened_log_wait_until_its_epoch_is_proven() {
    let mut world = World::new(small());
    let slot = world.log.open_topic(TopicKey(1), Durability::Written);
    world.append(slot, b"1").unwrap();
    world.settle();
    let (mut world, _) = World::open(world.kill(), small()).unwrap();
    let slot = world.log.open_topic(TopicKey(1), Durability::Written);
    world.append(slot, b"2").unwrap();
    world.turn();
    assert_eq!(
        world.log.ready_end(slot),
        1,
        "a power cut might give its position to another"
    );
    world.settle();
    assert_eq!(world.log.ready_end(slot), 2);
    world.append(slot, b"3").unwrap();
    world.turn();
    assert_eq!(
        world.log.ready_end(slot),
        3,
        "from then on the write is enough"
    );
}

#[test]
fn an_orderly_stop_marks_everything_synced_and_damage_before_the_mark_is_seen() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.append(slot, b"last").unwrap();
    world.log.close_mark();
    assert!(!world.log.idle());
    world.settle();
    assert!(world.log.idle());
    let disk = world.kill();
    let (world, recovered) = World::open(disk.clone(), small()).unwrap();
    assert!(recovered.report.clean);
    drop(world);
    let mut bad = disk;
    for file in bad.files.values_mut() {
        if let Some(at) = file.cached.windows(4).position(|bytes| bytes == b"last") {
            file.cached[at] ^= 1;
        }
    }
    assert!(matches!(
        World::open(bad, small()),
        Err(crate::RecoverError::Damaged { .. })
    ));
}

#[test]
fn a_dropped_topic_leaves_nothing_and_its_slot_serves_another() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    world.publish(slot, b"old");
    world.append(slot, b"gathered").unwrap();
    world.log.drop_topic(slot);
    let again = world.log.open_topic(TopicKey(2), Durability::Synced);
    assert_eq!(again, slot);
    assert_eq!((world.log.first(again), world.log.end(again)), (0, 0));
    world.publish(again, b"new");
    assert_eq!(world.bodies(again, 0), [b"new"]);
    let (mut world, recovered) = World::open(world.kill(), small()).unwrap();
    assert_eq!(
        recovered.topics,
        [TopicKey(1), TopicKey(2)],
        "the metadata decides"
    );
    let slot = world.log.open_topic(TopicKey(2), Durability::Synced);
    world.log.forget_unopened();
    assert_eq!(world.bodies(slot, 0), [b"new"]);
}

#[test]
fn spares_are_made_when_a_durable_topic_opens_and_appends_wait_for_the_first() {
    let mut world = World::new(small());
    world.turn();
    assert!(
        world.in_flight.is_empty(),
        "an engine of memory topics makes no files"
    );
    let slot = world.topic(1);
    world.append(slot, b"1").unwrap();
    world.turn();
    let created = |world: &World| {
        let is_create = |op: &&super::InFlight| matches!(op.op.kind, DiskOpKind::Create { .. });
        world.in_flight.iter().filter(is_create).count()
    };
    assert_eq!(created(&world), 1);
    for _ in 0..5 {
        world.turn();
    }
    assert_eq!((created(&world), world.log.ready_end(slot)), (1, 0));
    world.settle();
    assert_eq!(world.log.ready_end(slot), 1);
    assert_eq!(world.log.stats().spares_ready, 2);
}

#[test]
fn a_first_block_without_room_for_a_checkpoint_is_proven_although_no_second_can_follow() {
    let options = Options {
        slice_bytes: 24 << 10,
        ..small()
    };
    let mut world = World::new(options);
    world.disk.files_max = Some(1);
    let slot = world.log.open_topic(TopicKey(1), Durability::Written);
    for _ in 0..12 {
        world.append(slot, &[7; 4_000]).unwrap();
    }
    for _ in 0..5 {
        world.settle();
    }
    let ready = world.log.ready_end(slot);
    assert!(ready > 0, "{:?}", world.log.stats());
}

#[test]
fn a_failed_write_keeps_the_receipts_of_a_sync_that_was_in_flight() {
    let mut world = World::new(small());
    let slot = world.topic(1);
    let other = world.log.open_topic(TopicKey(2), Durability::Written);
    world.publish(slot, b"1");
    world.append(slot, b"2").unwrap();
    world.turn();
    world.disk.fail_write = true;
    world.append(other, b"w").unwrap();
    world.turn();
    assert!(world.log.poisoned().is_some());
    world.complete_sync();
    assert_eq!(
        world.log.ready_end(slot),
        2,
        "the sync proves what it was submitted for"
    );
    assert_eq!(world.log.ready_end(other), 0);
    let mut rng = Rng(3);
    let (mut world, _) = World::open(world.crash(&mut rng), small()).unwrap();
    let slot = world.topic(1);
    assert_eq!(world.bodies(slot, 0), [b"1", b"2"]);
}
