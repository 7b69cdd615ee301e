//! Partly acked entries as cursor records: committed, checkpointed, recovered, removed.
use super::disk::Rng;
use super::{World, small};
use crate::{AckDelta, CursorState, Durability, NewEntry, Options, Position, SubKey, TopicSlot};

const SUB: SubKey = SubKey(1);

fn batch(world: &mut World, slot: TopicSlot, messages: u32) -> Position {
    let entry = NewEntry {
        body: b"a batch",
        messages,
        ..NewEntry::default()
    };
    let at = world.log.append(slot, &entry, 1).unwrap().position;
    world.settle();
    at
}

fn ack(world: &mut World, slot: TopicSlot, at: Position, words: &[u64]) {
    let ticket = world
        .log
        .ack_record(slot, SUB, AckDelta::Batch(&[(at, words)]));
    world.log.commit_soon();
    world.settle();
    assert!(world.log.done_through(Durability::Synced) >= ticket);
}

fn reopen(world: World, options: &Options) -> (World, TopicSlot, CursorState) {
    let (mut world, recovered) = World::open(world.kill(), options.clone()).unwrap();
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let state = world.log.cursor(slot, SUB).unwrap();
    assert_eq!(recovered.cursors[0].partial, state.partial);
    (world, slot, state)
}

#[test]
fn ack_set_words_survive_a_restart_and_go_with_a_whole_ack_a_mark_or_a_reset() {
    let mut world = World::new(small());
    let mut slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let at: Vec<Position> = [130, 64, 64, 12, 12, 10]
        .map(|messages| batch(&mut world, slot, messages))
        .to_vec();
    ack(&mut world, slot, at[0], &[u64::MAX]);
    ack(&mut world, slot, at[0], &[u64::MAX - 1, u64::MAX, 3]);
    ack(&mut world, slot, at[1], &[i64::MAX as u64]);
    ack(&mut world, slot, at[2], &[u64::MAX]);
    ack(&mut world, slot, at[3], &[0xFE0, 7, 7, 7]);
    ack(&mut world, slot, at[4], &[0]);
    let sets = [
        (at[0], vec![u64::MAX - 1]),
        (at[1], vec![u64::MAX >> 1]),
        (at[2], vec![u64::MAX]),
        (at[3], vec![0xFE0]),
    ];
    for _ in 0..2 {
        let state = world.log.cursor(slot, SUB).unwrap();
        assert_eq!(state.partial, sets);
        assert_eq!(
            (state.mark_delete, &state.acked[..]),
            (None, &[(at[4], 1)][..])
        );
        let (again, new_slot, recovered) = reopen(world, &small());
        assert_eq!(recovered, state);
        (world, slot) = (again, new_slot);
    }
    // The same set again changes nothing; one for an acked or unknown entry neither.
    let before = world.log.stats().cursor_bytes_written;
    ack(&mut world, slot, at[0], &[u64::MAX]);
    ack(&mut world, slot, at[4], &[1]);
    ack(
        &mut world,
        slot,
        Position {
            ledger: 99,
            entry: 0,
        },
        &[1],
    );
    assert_eq!(world.log.stats().cursor_bytes_written, before);
    // Two sets with nothing in common are the whole entry, and the mark goes over both.
    ack(&mut world, slot, at[1], &[1 << 63]);
    world
        .log
        .ack_record(slot, SUB, AckDelta::Ranges(&[(at[0], 1)]));
    ack(&mut world, slot, at[5], &[0x3F0]);
    let (mut world, slot, state) = reopen(world, &small());
    assert_eq!(state.mark_delete, Some(at[1]));
    let left = [
        (at[2], vec![u64::MAX]),
        (at[3], vec![0xFE0]),
        (at[5], vec![0x3F0]),
    ];
    assert_eq!(state.partial, left);
    world.log.ack_record(slot, SUB, AckDelta::MarkDelete(at[3]));
    world.log.commit_soon();
    world.settle();
    let (mut world, slot, state) = reopen(world, &small());
    assert_eq!(state.partial, &left[2..]);
    world.log.ack_record(slot, SUB, AckDelta::Reset(None));
    world.log.commit_soon();
    world.settle();
    let (_, _, state) = reopen(world, &small());
    assert_eq!((state.partial, state.mark_delete), (Vec::new(), None));
}

#[test]
fn the_longest_sets_are_checkpointed_in_pieces_smaller_than_they_are() {
    let options = Options {
        block_bytes: 4096,
        ..small()
    };
    let mut rng = Rng(4);
    let mut world = World::new(options.clone());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let at: Vec<Position> = (0..6).map(|_| batch(&mut world, slot, 100_000)).collect();
    let over = batch(&mut world, slot, 100_065);
    for &at in &at {
        let words: Vec<u64> = (0..1563).map(|_| rng.next() | 1).collect();
        ack(&mut world, slot, at, &words);
    }
    let before = world.log.stats().cursor_bytes_written;
    ack(&mut world, slot, over, &[1; 1564]);
    assert_eq!(
        world.log.stats().cursor_bytes_written,
        before,
        "too long to be kept"
    );
    let state = world.log.cursor(slot, SUB).unwrap();
    assert!(state.partial.iter().all(|(_, words)| words.len() == 1563));
    let checkpoints = world.log.stats().checkpoints;
    let mut now = state.clone();
    for _ in 0..3 {
        // Rolls, so that all that is left of the sets is their checkpoint.
        for _ in 0..60 {
            world.publish(slot, &[7; 9000]);
        }
        let last = world.log.end(slot) - 1;
        for ordinal in 7..last {
            let at = world.log.position(slot, ordinal).unwrap();
            world
                .log
                .ack_record(slot, SUB, AckDelta::Ranges(&[(at, 1)]));
        }
        world.log.commit_soon();
        world.settle();
        now = world.log.cursor(slot, SUB).unwrap();
        assert_eq!(now.partial, state.partial);
    }
    assert!(world.log.stats().checkpoints >= checkpoints + 2);
    let (mut world, recovered) = World::open(world.kill(), options.clone()).unwrap();
    assert_eq!(recovered.cursors, [now.clone()]);
    // A checkpoint of a cursor that nobody opens is in pieces too.
    let other = world.topic(2);
    let before = world.log.stats().checkpoints;
    for _ in 0..60 {
        world.publish(other, &[7; 9000]);
    }
    assert!(world.log.stats().checkpoints > before);
    let recovered = World::open(world.kill(), options).unwrap().1;
    assert_eq!(recovered.cursors, [now]);
}

#[test]
fn a_checkpoint_that_was_cut_short_takes_no_ack_and_no_set_back() {
    let options = Options {
        block_bytes: 4096,
        ack_delay_ns: 1_000,
        ..small()
    };
    let mut world = World::new(options.clone());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let first = batch(&mut world, slot, 100_000);
    for number in 0..40_000_u64 {
        while world.append(slot, b"").is_err() {
            world.settle();
        }
        if number % 100 == 99 {
            world.settle();
        }
    }
    world.settle();
    ack(&mut world, slot, first, &[5; 1500]);
    let at = |entry| Position {
        ledger: first.ledger,
        entry,
    };
    let holes: Vec<_> = (1..40_000).step_by(2).map(|entry| (at(entry), 1)).collect();
    for holes in holes.chunks(100) {
        world.log.ack_record(slot, SUB, AckDelta::Ranges(holes));
        world.settle();
    }
    let state = world.log.cursor(slot, SUB).unwrap();
    assert_eq!(state.acked.len(), 20_000);
    let store = world.log.store.as_mut().unwrap();
    store.start_checkpoint();
    let (mut cuts, done) = (0, world.log.stats().checkpoints);
    while world.log.stats().checkpoints == done {
        let (_, recovered) = World::open(world.clone_disk(), options.clone()).unwrap();
        assert_eq!(
            recovered.cursors,
            std::slice::from_ref(&state),
            "cut after {cuts} blocks"
        );
        world.turn();
        while !world.in_flight.is_empty() {
            world.complete(0);
        }
        cuts += 1;
    }
    assert!(cuts >= 4, "the checkpoint took {cuts} blocks");
}

#[test]
fn a_checkpoint_between_an_ack_and_a_reset_mixes_no_two_states() {
    let options = Options {
        block_bytes: 4096,
        ..small()
    };
    let mut world = World::new(options.clone());
    let slot = world.topic(1);
    world.log.open_sub(slot, SUB, None);
    let at: Vec<Position> = [1; 10].map(|one| batch(&mut world, slot, one)).to_vec();
    world.log.store.as_mut().unwrap().start_checkpoint();
    world
        .log
        .ack_record(slot, SUB, AckDelta::Ranges(&[(at[5], 1)]));
    let acked = world.log.cursor(slot, SUB).unwrap();
    // A batch for each: the ack's block has no room for the second of them.
    for _ in 0..2 {
        world.append(slot, &[1; 2000]).unwrap();
    }
    world
        .log
        .ack_record(slot, SUB, AckDelta::Reset(Some(at[2])));
    let reset = world.log.cursor(slot, SUB).unwrap();
    let mut found = Vec::new();
    while found.last() != Some(&reset) {
        world.now_ns += 5_000_000;
        world.turn();
        while !world.in_flight.is_empty() {
            world.complete(0);
            let (_, recovered) = World::open(world.clone_disk(), options.clone()).unwrap();
            found.extend(recovered.cursors);
        }
    }
    found.dedup();
    let nothing = CursorState {
        acked: Vec::new(),
        ..acked.clone()
    };
    assert!(
        found == [nothing, acked.clone(), reset.clone()] || found == [acked, reset],
        "{found:?}"
    );
}
