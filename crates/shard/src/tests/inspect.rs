//! A directory looked at without a change.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pelton_broker::storage::{Durability, Options as LogOptions};

use super::harness::{PATIENCE, TestConsumer, TestProducer, is_stored, open_topic, options};
use crate::inspect::{dump, verify};
use crate::{EngineOptions, open};

const BODY_BYTES: usize = 1_000;

/// Writes `entries` entries of 1,000 bytes, of which the first 100 are acked, and stops.
fn make(dir: &Path, entries: u32) {
    let log = LogOptions {
        segment_bytes: 256 << 10,
        ..options().log
    };
    let runtime = open(EngineOptions {
        dir: Some(dir.to_owned()),
        shards: 2,
        log,
        ..options()
    })
    .unwrap();
    let handle = runtime.handle(runtime.shard_of("kept"));
    let topic = open_topic(handle, "kept", Durability::Written);
    let mut consumer = TestConsumer::open(handle, topic, 100);
    let mut producer = TestProducer::open(handle, topic, 64);
    let receipts: Vec<_> = (0..entries)
        .map(|i| {
            let mut body = vec![i as u8; BODY_BYTES];
            body[..4].copy_from_slice(&i.to_be_bytes());
            producer.send(&body).unwrap()
        })
        .collect();
    assert!(receipts.iter().all(|receipt| is_stored(receipt.wait())));
    for _ in 0..100 {
        let got = consumer.recv().unwrap();
        consumer.ack(&got);
    }
    assert!(runtime.shutdown(PATIENCE, false).clean);
}

/// Every file under `dir` with its bytes.
fn image(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                files.push((path.display().to_string(), fs::read(&path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn a_directory_is_verified_entry_by_entry_and_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), 3_000);
    let before = image(dir.path());
    let report = verify(dir.path()).unwrap();
    assert!(report.is_sound(), "{report:?}");
    assert_eq!(report.shards.len(), 2);
    let topics: Vec<_> = report
        .shards
        .iter()
        .flat_map(|shard| &shard.topics)
        .collect();
    let [topic] = topics.as_slice() else {
        panic!("{report:?}")
    };
    assert_eq!(topic.name.as_deref(), Some("kept"));
    // Whole segments of acked entries may be gone; what is not acked is all there.
    assert!(
        (2_900..=3_000).contains(&topic.entries),
        "{}",
        topic.entries
    );
    assert_eq!(topic.messages, topic.entries);
    assert_eq!(topic.bytes, topic.entries * BODY_BYTES as u64);
    assert_eq!(topic.runs.len(), 1);
    assert_eq!(topic.cursors.len(), 1);
    assert_eq!(topic.cursors[0].name.as_deref(), Some("sub"));
    assert!(topic.cursors[0].mark_delete.is_some());
    assert!(before == image(dir.path()), "nothing was changed");
}

#[test]
fn a_dump_gives_every_entry_in_order_and_ends_when_told() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), 500);
    let mut next = None;
    let report = dump(dir.path(), &mut |entry| {
        assert_eq!(entry.topic, "kept");
        let number = u32::from_be_bytes(entry.body[..4].try_into().unwrap());
        assert_eq!(number, *next.get_or_insert(number));
        next = Some(number + 1);
        if number == 400 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    assert_eq!(next, Some(401));
    assert!(report.unwrap().is_sound());
}

#[test]
fn damage_is_in_the_report_with_its_entry() {
    let dir = tempfile::tempdir().unwrap();
    make(dir.path(), 3_000);
    let sound = verify(dir.path()).unwrap();
    let shard = sound
        .shards
        .iter()
        .find(|shard| !shard.topics.is_empty())
        .unwrap();
    // The middle of the second segment: sealed, and full of entries.
    let mut segments: Vec<_> = fs::read_dir(&shard.dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    segments.sort();
    let file = fs::OpenOptions::new()
        .write(true)
        .open(&segments[1])
        .unwrap();
    // Longer than what fills the last page of a block, where nobody looks.
    file.write_all_at(&[0xff; 8 << 10], 100_000).unwrap();
    let report = verify(dir.path()).unwrap();
    assert!(!report.is_sound(), "{report:?}");
    // Some cannot be read, and their neighbours can: two runs of the ledger with them in between.
    let (before, after) = (
        &shard.topics[0],
        &report.shards[shard.shard as usize].topics[0],
    );
    let (Some(lowest), Some(highest)) = (after.bad.first(), after.bad.last()) else {
        panic!("{report:?}")
    };
    let [first, second] = after.runs.as_slice() else {
        panic!("{report:?}")
    };
    assert_eq!(after.entries + after.bad.len() as u64, before.entries);
    assert_eq!(first.first, before.runs[0].first);
    assert_eq!(first.first.entry + first.entries, lowest.entry);
    assert_eq!(second.first.entry, highest.entry + 1);
}

#[test]
fn a_directory_without_an_engine_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    assert!(
        verify(dir.path())
            .unwrap_err()
            .to_string()
            .contains("no engine")
    );
    assert!(verify(&dir.path().join("missing")).is_err());
}
