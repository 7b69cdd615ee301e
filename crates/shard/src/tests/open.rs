//! What can be wrong with a directory, and what is said about it.

use std::fs;
use std::path::Path;

use pelton_broker::storage::Durability;

use super::harness::{PATIENCE, TestConsumer, TestProducer, is_stored, open_topic, options, spawn};
use crate::plan::Resources;
use crate::spawn::open_with;
use crate::start::{Seed, build};
use crate::turn::Shard;
use crate::{EngineOptions, OpenError, open, open_driven};

fn in_dir(dir: &Path) -> EngineOptions {
    EngineOptions {
        dir: Some(dir.to_owned()),
        ..options()
    }
}

fn error_of(options: EngineOptions) -> (OpenError, String) {
    let error = open(options).expect_err("it must not open");
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    (error, text)
}

#[test]
fn a_directory_in_use_says_who_uses_it() {
    let dir = tempfile::tempdir().unwrap();
    let first = open(in_dir(dir.path())).unwrap();
    let (error, text) = error_of(in_dir(dir.path()));
    assert!(matches!(error, OpenError::Lock(_)), "{text}");
    assert!(text.contains(&std::process::id().to_string()), "{text}");
    drop(first);
    open(in_dir(dir.path())).unwrap();
}

#[test]
fn a_foreign_file_is_named_and_the_directory_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("thesis.txt"), b"mine").unwrap();
    let (error, text) = error_of(in_dir(dir.path()));
    assert!(
        matches!(error, OpenError::Foreign { .. }) && text.contains("thesis.txt"),
        "{text}"
    );
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);

    let dir = tempfile::tempdir().unwrap();
    drop(open(in_dir(dir.path())).unwrap());
    fs::write(dir.path().join("shard-0/seg-1.log"), b"mine").unwrap();
    let (error, text) = error_of(in_dir(dir.path()));
    assert!(
        matches!(error, OpenError::Foreign { .. }) && text.contains("seg-1.log"),
        "{text}"
    );
}

#[test]
fn a_path_that_is_a_file_is_an_error_with_the_path() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, b"").unwrap();
    let (error, text) = error_of(in_dir(&path));
    assert!(
        matches!(error, OpenError::Directory { .. }) && text.contains("file"),
        "{text}"
    );
}

#[test]
fn damaged_metadata_is_an_error_with_the_path_and_not_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(in_dir(dir.path())).unwrap());
    let path = dir.path().join("meta.redb");
    let mut bytes = fs::read(&path).unwrap();
    // Behind the header, which redb checks by itself.
    bytes[4_096..].iter_mut().for_each(|byte| *byte ^= 0x55);
    fs::write(&path, &bytes).unwrap();
    let (error, text) = error_of(in_dir(dir.path()));
    assert!(
        matches!(error, OpenError::MetadataDamaged(_)) && text.contains("meta.redb"),
        "{text}"
    );
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_directory_of_more_shards_says_how_many_it_needs() {
    let dir = tempfile::tempdir().unwrap();
    drop(
        open(EngineOptions {
            shards: 3,
            ..in_dir(dir.path())
        })
        .unwrap(),
    );
    let (error, text) = error_of(in_dir(dir.path()));
    assert!(
        matches!(error, OpenError::TooFewShards { found: 3, asked: 1 }),
        "{text}"
    );
    // More is fine: old topics stay where they are.
    drop(
        open(EngineOptions {
            shards: 4,
            ..in_dir(dir.path())
        })
        .unwrap(),
    );
}

#[test]
fn topics_stay_on_their_shard_when_there_are_more_shards() {
    let dir = tempfile::tempdir().unwrap();
    let two = open(EngineOptions {
        shards: 2,
        ..in_dir(dir.path())
    })
    .unwrap();
    let names: Vec<String> = (0..20).map(|i| format!("topic-{i}")).collect();
    let owners: Vec<u32> = names
        .iter()
        .map(|name| {
            let owner = two.shard_of(name);
            let topic = open_topic(two.handle(owner), name, Durability::Written);
            let _subscribed = TestConsumer::open(two.handle(owner), topic, 1);
            let mut producer = TestProducer::open(two.handle(owner), topic, 4);
            assert!(is_stored(producer.send(name.as_bytes()).unwrap().wait()));
            owner
        })
        .collect();
    drop(two);
    let five = open(EngineOptions {
        shards: 5,
        ..in_dir(dir.path())
    })
    .unwrap();
    for (name, owner) in names.iter().zip(owners) {
        assert_eq!(five.shard_of(name), owner);
        let topic = open_topic(five.handle(owner), name, Durability::Written);
        let mut consumer = TestConsumer::open(five.handle(owner), topic, 4);
        assert_eq!(consumer.recv().unwrap().body, name.as_bytes());
    }
}

#[test]
fn options_that_cannot_be_are_refused() {
    for bad in [
        EngineOptions {
            shards: 0,
            ..options()
        },
        EngineOptions {
            shards: 65,
            ..options()
        },
        EngineOptions {
            control_slots: 3,
            ..options()
        },
        EngineOptions {
            data_slots: 0,
            ..options()
        },
    ] {
        assert!(matches!(error_of(bad).0, OpenError::Options(_)));
    }
    let two = EngineOptions {
        shards: 2,
        ..options()
    };
    assert!(matches!(open_driven(two), Err(OpenError::Options(_))));
}

#[test]
fn a_shard_that_panics_while_it_is_built_ends_the_open_and_is_named() {
    fn build_or_panic(seed: Seed, resources: &Resources) -> Result<Shard, OpenError> {
        assert!(seed.shared.index != 1, "this one is meant to panic");
        build(seed, resources)
    }
    let (tell, told) = crossbeam_channel::bounded(1);
    spawn(move || {
        let two = EngineOptions {
            shards: 2,
            ..options()
        };
        let _ = tell.send(open_with(two, build_or_panic).map(drop));
    });
    let opened = told.recv_timeout(PATIENCE).expect("it does not hang");
    let error = opened.unwrap_err();
    assert!(
        matches!(error, OpenError::Start { shard: 1, .. }),
        "{error:?}"
    );
    assert!(
        error
            .to_string()
            .contains("its thread panicked while it opened"),
        "{error}"
    );
}
