//! Memory topics: runs, bounds, and memory that is used again.
use std::sync::Arc;

use super::small;
use crate::{Durability, Log, LogEvent, NewEntry, Options, Place, Refused, TopicKey, TopicSlot};

fn entry(body: &[u8], messages: u32) -> NewEntry<'_> {
    NewEntry {
        body,
        messages,
        key_hash: 1,
        producer: 2,
        sequence: 3,
        publish_ms: 4,
        arrived_ns: 5,
        ..NewEntry::default()
    }
}

fn log() -> (Log, TopicSlot) {
    let mut log = Log::in_memory(small());
    let slot = log.open_topic(TopicKey(1), Durability::Memory);
    (log, slot)
}

#[test]
fn runs_give_every_entry_once_in_order_whatever_the_turns_bring() {
    let (mut log, slot) = log();
    let mut number = 0u64;
    let mut next = 0;
    let mut messages = 0;
    for turn in 0..200usize {
        for _ in 0..turn % 37 {
            let body = vec![number as u8; (turn * 31 + number as usize * 7) % 3000];
            let appended = log.append(slot, &entry(&body, 2), 9).unwrap();
            assert_eq!(appended.ordinal, number);
            number += 1;
            messages += 2;
        }
        assert_eq!(log.backlog_messages(slot, next), messages);
        while let Some((block, first, count)) = log.run(slot, next, 10) {
            assert!(count <= 10);
            for at in first..first + count {
                assert!(block.body(at).iter().all(|&byte| byte == next as u8));
                assert_eq!(log.ordinal(slot, block.meta(at).position), Some(next));
                next += 1;
                messages -= 2;
            }
        }
        assert_eq!(next, number);
        if turn % 3 == 0 {
            log.trim(slot, next);
            assert_eq!(log.first(slot), next);
        }
    }
    assert!(matches!(log.locate(slot, 0), Place::Gone));
}

#[test]
fn the_same_memory_serves_turn_after_turn() {
    let (mut log, slot) = log();
    let mut seen = Vec::new();
    for turn in 0..50 {
        let ordinal = log.append(slot, &entry(b"body", 1), 9).unwrap().ordinal;
        let (block, ..) = log.run(slot, ordinal, 1).unwrap();
        let memory = Arc::as_ptr(&block);
        drop(block);
        log.trim(slot, ordinal + 1);
        if turn < 10 {
            seen.push(memory);
        } else {
            assert!(seen.contains(&memory), "a new block in steady state");
        }
    }
}

#[test]
fn a_backlog_at_its_bound_holds_the_publisher_until_a_trim_makes_room() {
    let mut log = Log::in_memory(Options {
        memory_backlog_bytes: 1 << 20,
        ..small()
    });
    let slot = log.open_topic(TopicKey(1), Durability::Memory);
    let mut count = 0u64;
    while log.append(slot, &entry(&[7; 1000], 1), 9).is_ok() {
        count += 1;
        assert!(count < 2000, "no bound");
    }
    assert_eq!(
        log.append(slot, &entry(&[7; 1000], 1), 9),
        Err(Refused::NoMemory)
    );
    assert_eq!(log.poll_event(), None);
    let held: Vec<_> = (0..count).filter_map(|at| log.run(slot, at, 1)).collect();
    log.trim(slot, count);
    log.flush_turn(10);
    assert_eq!(log.poll_event(), None, "every block is still lent");
    drop(held);
    for turn in 0..100 {
        log.flush_turn(11 + turn);
    }
    assert_eq!(log.poll_event(), Some(LogEvent::Room));
    assert!(log.append(slot, &entry(&[7; 1000], 1), 9).is_ok());
}

#[test]
fn idle_topics_cost_a_few_words() {
    let mut log = Log::in_memory(small());
    for key in 0..100_000 {
        let slot = log.open_topic(TopicKey(key), Durability::Memory);
        assert_eq!(log.end(slot), 0);
    }
    assert!(size_of::<crate::topic::Topic>() <= 32);
    assert_eq!(log.stats().memory_bytes, 0);
}

#[test]
fn an_entry_longer_than_the_bound_is_refused() {
    let mut log = Log::in_memory(Options {
        entry_bytes_max: 100,
        ..small()
    });
    let slot = log.open_topic(TopicKey(1), Durability::Memory);
    assert_eq!(
        log.append(slot, &entry(&[1; 101], 1), 9),
        Err(Refused::TooLarge)
    );
    assert!(log.append(slot, &entry(&[1; 100], 1), 9).is_ok());
    assert!(log.append(slot, &entry(&[], 1), 9).is_ok());
}

#[test]
fn an_entry_above_the_bound_is_refused_although_the_open_block_has_room() {
    let mut log = Log::in_memory(Options {
        entry_bytes_max: 100,
        ..small()
    });
    let slot = log.open_topic(TopicKey(1), Durability::Memory);
    log.append(slot, &entry(&[0; 100], 1), 9).unwrap();
    let refused = log.append(slot, &entry(&[0; 101], 1), 9).unwrap_err();
    assert_eq!(refused, Refused::TooLarge);
}

#[test]
fn an_entry_longer_than_all_memory_is_refused_and_the_longest_one_goes_again_and_again() {
    let options = Options {
        memory_backlog_bytes: 128 << 10,
        ..small()
    };
    let most = options.memory_entry_bytes_max();
    assert_eq!(most, 64 << 10);
    let mut log = Log::in_memory(options);
    let slot = log.open_topic(TopicKey(1), Durability::Memory);
    assert_eq!(
        log.append(slot, &entry(&vec![1; most + 1], 1), 9),
        Err(Refused::TooLarge)
    );
    // With small ones in between, whose open block takes memory too.
    for turn in 0..20 {
        for bytes in [most, 100] {
            let appended = log.append(slot, &entry(&vec![1; bytes], 1), turn);
            let ordinal = appended.expect("it is empty").ordinal;
            log.trim(slot, ordinal + 1);
            log.flush_turn(turn);
        }
    }
}
