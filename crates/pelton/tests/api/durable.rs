//! Topics on disk: what is there after the engine was opened again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use pelton::{
    Disk, Durability, Engine, InitialPosition, MESSAGE_HEADER_BYTES, ReceiptError, SendError,
    SubscriptionKind, inspect,
};

use crate::common::{LONG, eventually, receive, small, stats_of};

/// Big enough that some of them fill a segment of 64 KiB.
fn payload(i: u32) -> Vec<u8> {
    let mut payload = i.to_le_bytes().to_vec();
    payload.resize(1_000 + i as usize % 500, i as u8);
    payload
}

#[test]
fn backlog_and_acks_are_there_after_a_reopen() {
    let directory = tempfile::tempdir().unwrap();
    let engine = small(directory.path()).open().unwrap();
    let topic = engine.topic("orders").open().unwrap();
    assert_eq!(
        topic.durability(),
        Durability::Synced,
        "the default with a directory"
    );
    let mut consumer = topic.subscribe("billing").open().unwrap();
    let mut other = topic.subscribe("audit").open().unwrap();
    let mut producer = topic.producer().open().unwrap();
    for i in 0..600 {
        producer.send(payload(i)).unwrap();
    }
    producer.flush().unwrap();
    let mut acked = BTreeSet::new();
    for i in 0..400u32 {
        let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
        if i < 100 || i % 2 == 0 {
            acked.insert(i);
            delivery.ack();
        } else {
            delivery.keep();
        }
    }
    consumer.flush_acks().unwrap();
    assert_eq!(receive(&mut other, 600).len(), 600);
    other.flush_acks().unwrap();
    let report = engine.shutdown(LONG);
    drop((topic, consumer, other, producer));
    let files = std::fs::read_dir(directory.path().join("shard-0"))
        .unwrap()
        .count();
    assert!(
        files > 3,
        "segments of 64 KiB rolled: {files} files; {report:?}"
    );

    let engine = small(directory.path()).open().unwrap();
    let topic = engine.topic("orders").open().unwrap();
    let stats = stats_of(&engine, "orders", "billing");
    assert_eq!(stats.backlog_entries, 600 - acked.len() as u64);
    assert_eq!(stats_of(&engine, "orders", "audit").backlog_entries, 0);
    let mut consumer = topic.subscribe("billing").open().unwrap();
    for i in (0..600).filter(|i| !acked.contains(i)) {
        let delivery = consumer
            .recv_timeout(LONG)
            .unwrap()
            .expect("it was never acked");
        assert_eq!(delivery.payload(), payload(i));
        delivery.ack();
    }
    let mut producer = topic.producer().open().unwrap();
    producer.send("after the reopen").unwrap().wait().unwrap();
    assert_eq!(receive(&mut consumer, 1), [b"after the reopen"]);
    eventually(&engine, ("orders", "billing"), |s| s.backlog_entries == 0);
}

#[test]
fn a_receipt_says_where_the_entry_is_for_good() {
    let directory = tempfile::tempdir().unwrap();
    let mut positions = Vec::new();
    for round in 0..4u32 {
        let engine = small(directory.path()).open().unwrap();
        let topic = engine.topic("t").open().unwrap();
        let mut consumer = topic.subscribe("s").open().unwrap();
        let mut producer = topic.producer().open().unwrap();
        positions.push(producer.send(round.to_le_bytes()).unwrap().wait().unwrap());
        let got: Vec<_> = (0..positions.len())
            .map(|_| {
                let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
                let position = delivery.position();
                delivery.keep();
                position
            })
            .collect();
        assert_eq!(got, positions);
    }
    assert!(positions.is_sorted_by(|a, b| a < b));
}

#[test]
fn an_engine_that_is_only_dropped_loses_nothing_receipted() {
    let directory = tempfile::tempdir().unwrap();
    {
        let engine = small(directory.path()).open().unwrap();
        let topic = engine
            .topic("t")
            .durability(Durability::Written)
            .open()
            .unwrap();
        drop(topic.subscribe("s").open().unwrap());
        let mut producer = topic.producer().open().unwrap();
        for i in 0..100 {
            producer.send(payload(i)).unwrap();
        }
        producer.flush().unwrap();
    }
    let engine = small(directory.path()).open().unwrap();
    let topic = engine
        .topic("t")
        .durability(Durability::Written)
        .open()
        .unwrap();
    let mut consumer = topic.subscribe("s").open().unwrap();
    assert_eq!(
        receive(&mut consumer, 100),
        (0..100).map(payload).collect::<Vec<_>>()
    );
}

#[test]
fn memory_topics_leave_nothing_behind() {
    let directory = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let engine = small(directory.path()).open().unwrap();
        let topic = engine
            .topic("t")
            .durability(Durability::Memory)
            .open()
            .unwrap();
        let mut consumer = topic
            .subscribe("s")
            .initial(InitialPosition::Earliest)
            .open()
            .unwrap();
        assert!(consumer.try_recv().unwrap().is_none());
        topic
            .producer()
            .open()
            .unwrap()
            .send("gone with the engine")
            .unwrap()
            .wait()
            .unwrap();
        eventually(&engine, ("t", "s"), |s| s.backlog_entries == 1);
    }
}

#[test]
fn two_shards_find_their_topics_again() {
    let directory = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..8).map(|i| format!("topic {i}")).collect();
    let mut shards = Vec::new();
    for round in 0..2 {
        let engine = small(directory.path()).shards(2).open().unwrap();
        for (i, name) in names.iter().enumerate() {
            let topic = engine.topic(name).open().unwrap();
            if round == 0 {
                shards.push(topic.shard());
                drop(topic.subscribe("s").open().unwrap());
                topic
                    .producer()
                    .open()
                    .unwrap()
                    .send(name)
                    .unwrap()
                    .wait()
                    .unwrap();
            } else {
                assert_eq!(topic.shard(), shards[i], "{name} moved");
                let mut consumer = topic.subscribe("s").open().unwrap();
                assert_eq!(receive(&mut consumer, 1), [name.as_bytes()]);
            }
        }
    }
    assert_eq!(shards.iter().collect::<BTreeSet<_>>().len(), 2);
}

#[test]
fn a_deleted_subscription_and_topic_stay_deleted() {
    let directory = tempfile::tempdir().unwrap();
    let engine = small(directory.path()).open().unwrap();
    let topic = engine.topic("t").open().unwrap();
    let consumer = topic
        .subscribe("s")
        .kind(SubscriptionKind::Shared)
        .open()
        .unwrap();
    assert!(topic.unsubscribe("s").is_err(), "it is in use");
    assert!(engine.delete_topic("t").is_err(), "it is in use");
    drop(consumer);
    topic.unsubscribe("s").unwrap();
    engine.topic("u").open().unwrap();
    engine.delete_topic("u").unwrap();
    drop(engine);
    let engine = small(directory.path()).open().unwrap();
    let stats = engine.stats().unwrap();
    assert!(stats.topic("t").unwrap().subscriptions.is_empty());
    assert_eq!(stats.topic("u"), None);
    // A topic of the old name is a new topic, of any durability.
    engine
        .topic("u")
        .durability(Durability::Written)
        .open()
        .unwrap();
}

#[test]
fn a_cold_backlog_is_read_from_disk_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let engine = Engine::builder(directory.path())
        .segment_bytes(1 << 20)
        .tail_bytes(1 << 20)
        .open()
        .unwrap();
    let topic = engine
        .topic("t")
        .durability(Durability::Written)
        .open()
        .unwrap();
    let mut consumer = topic
        .subscribe("s")
        .manual_permits()
        .window(10_000)
        .open()
        .unwrap();
    let mut producer = topic.producer().open().unwrap();
    for i in 0..8_000 {
        producer.send(payload(i)).unwrap();
    }
    producer.flush().unwrap();
    consumer.grant(10_000).unwrap();
    for i in 0..8_000 {
        let delivery = consumer.recv_timeout(LONG).unwrap().expect("it is on disk");
        assert_eq!(delivery.payload(), payload(i), "entry {i}");
        delivery.ack();
    }
}

#[test]
fn a_damaged_entry_is_skipped_and_nobody_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let engine = small(directory.path()).open().unwrap();
    let topic = engine.topic("orders").open().unwrap();
    drop(topic.subscribe("billing").open().unwrap());
    let mut producer = topic.producer().open().unwrap();
    for i in 0..200 {
        producer.send(payload(i)).unwrap();
    }
    drop(engine);
    // The first file holds more than that entry and is sealed.
    let first = directory.path().join("shard-0/seg-0000000000000001.log");
    let mut bytes = std::fs::read(&first).unwrap();
    let body = payload(7);
    let at = bytes.windows(body.len()).position(|at| at == body).unwrap();
    bytes[at + 500] ^= 1;
    std::fs::write(&first, bytes).unwrap();

    let engine = small(directory.path()).open().unwrap();
    let topic = engine.topic("orders").open().unwrap();
    let mut consumer = topic.subscribe("billing").open().unwrap();
    for i in (0..200).filter(|&i| i != 7) {
        let delivery = consumer.recv_timeout(LONG).unwrap().expect("it is intact");
        assert_eq!(delivery.payload(), payload(i), "entry {i}");
        delivery.ack();
    }
    consumer.flush_acks().unwrap();
    let stats = engine.stats().unwrap();
    let billing = stats.subscription("orders", "billing").unwrap();
    assert_eq!((billing.damaged_entries, billing.backlog_entries), (1, 1));
    assert_eq!(billing.first_damaged.unwrap().entry, 7);
    let said = |note: &String| note.contains("\"billing\"") && note.contains("entry 7");
    let notes = &stats.shards[0].notes;
    assert!(notes.iter().any(said), "{notes:?}");
}

/// One segment with entries nobody has acked, closed in an orderly way; its file.
fn closed_with_backlog(dir: &Path) -> PathBuf {
    let engine = Engine::builder(dir).segment_bytes(1 << 20).open().unwrap();
    let topic = engine.topic("t").open().unwrap();
    drop(topic.subscribe("s").open().unwrap());
    let mut producer = topic.producer().open().unwrap();
    for i in 0..50 {
        producer.send(payload(i)).unwrap();
    }
    assert!(engine.shutdown(LONG).clean);
    dir.join("shard-0/seg-0000000000000001.log")
}

#[test]
fn a_closed_log_that_was_cut_opens_as_if_nothing_were_missing() {
    type Harm = fn(&Path, &Path);
    let harms: [Harm; 3] = [
        |_, segment| {
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(segment)
                .unwrap();
            file.set_len(20_000).unwrap();
        },
        |_, segment| std::fs::remove_file(segment).unwrap(),
        |dir, _| std::fs::remove_dir_all(dir.join("shard-0")).unwrap(),
    ];
    for (i, harm) in harms.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path();
        let segment = closed_with_backlog(dir);
        assert!(inspect::verify(dir).unwrap().is_sound(), "harm {i}");
        harm(dir, &segment);
        let report = inspect::verify(dir).unwrap();
        assert!(!report.is_sound(), "harm {i}: {report:?}");
        let error = Engine::builder(dir).open().unwrap_err().to_string();
        assert!(error.contains("files were cut or removed"), "{i}: {error}");
        drop(Engine::builder(dir).accept_loss(true).open().unwrap());
        drop(Engine::builder(dir).open().expect("the loss was accepted"));
        assert!(inspect::verify(dir).unwrap().is_sound(), "harm {i}");
    }
}

#[test]
fn segments_without_metadata_open_as_an_empty_engine() {
    for is_removed in [true, false] {
        let directory = tempfile::tempdir().unwrap();
        let dir = directory.path();
        closed_with_backlog(dir);
        let metadata = dir.join("meta.redb");
        match is_removed {
            true => std::fs::remove_file(&metadata).unwrap(),
            false => std::fs::write(&metadata, []).unwrap(),
        }
        assert!(!inspect::verify(dir).unwrap().is_sound());
        let error = Engine::builder(dir).open().unwrap_err().to_string();
        assert!(error.contains("meta.redb is missing or empty"), "{error}");
    }
}

#[test]
fn an_entry_fits_into_a_segment_or_is_refused_before_it_is_sent() {
    let directory = tempfile::tempdir().unwrap();
    let most = {
        let engine = small(directory.path()).open().unwrap();
        let topic = engine.topic("t").open().unwrap();
        drop(topic.subscribe("s").open().unwrap());
        let mut producer = topic.producer().open().unwrap();
        let error = producer.send(vec![0; 64 * 1024]).unwrap_err();
        let SendError::TooLarge {
            max,
            option: "segment_bytes",
            ..
        } = error
        else {
            panic!("{error}");
        };
        let most = max - MESSAGE_HEADER_BYTES;
        assert!(producer.send(vec![0; most + 1]).is_err());
        for i in 0..3u8 {
            producer.send(vec![i; most]).unwrap().wait().unwrap();
        }
        most
    };
    let engine = small(directory.path()).open().unwrap();
    let topic = engine.topic("t").open().unwrap();
    let mut consumer = topic.subscribe("s").open().unwrap();
    let expected: Vec<_> = (0..3u8).map(|i| vec![i; most]).collect();
    assert_eq!(receive(&mut consumer, 3), expected);
}

#[test]
fn the_pread_driver_does_the_same() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..2u32 {
        let engine = small(directory.path()).disk(Disk::Pread).open().unwrap();
        let report = engine.disk_report().expect("it has a directory");
        assert!(report.to_string().contains("pread"), "{report}");
        let topic = engine.topic("t").open().unwrap();
        let mut consumer = topic.subscribe("s").open().unwrap();
        let mut producer = topic.producer().open().unwrap();
        for i in 0..200 {
            producer.send(payload(round * 1_000 + i)).unwrap();
        }
        producer.flush().unwrap();
        // Half of the first round is left for the second one.
        let expected: Vec<u32> = match round {
            0 => (0..100).collect(),
            _ => (100..200).chain(1_000..1_200).collect(),
        };
        let expected: Vec<_> = expected.into_iter().map(payload).collect();
        assert_eq!(receive(&mut consumer, expected.len()), expected);
        consumer.flush_acks().unwrap();
    }
}

#[test]
fn a_segment_that_cannot_be_made_is_no_full_disk() {
    let directory = tempfile::tempdir().unwrap();
    let engine = small(directory.path()).open().unwrap();
    let topic = engine.topic("t").open().unwrap();
    let _consumer = topic.subscribe("s").manual_permits().open().unwrap();
    let mut producer = topic.producer().open().unwrap();
    producer.send("first").unwrap().wait().unwrap();
    // As with descriptors that ran out: files cannot be opened, and there is space.
    let (segments, away) = (
        directory.path().join("shard-0"),
        directory.path().join(".away"),
    );
    std::fs::rename(&segments, &away).unwrap();
    // What was taken while the next segment was in the making waits for it: no receipt is waited for.
    let mut receipts = Vec::new();
    let error = (0..200_000).find_map(|i| match producer.send(payload(i)) {
        Ok(receipt) => {
            receipts.push(receipt);
            std::thread::yield_now();
            None
        }
        Err(error) => Some(error),
    });
    let topic = "t".to_owned();
    assert_eq!(error, Some(SendError::NoSegment { topic }));
    let notes = &engine.stats().unwrap().shards[0].notes;
    let why = notes.last().unwrap();
    assert!(
        why.contains("no segment") && why.contains("shard-0/seg-"),
        "{why}"
    );
    // With the files back the log goes on by itself, and everything is stored or was refused.
    std::fs::rename(&away, &segments).unwrap();
    let mut stored = 0;
    for receipt in receipts {
        match receipt.wait() {
            Ok(_) => stored += 1,
            Err(error) => assert_eq!(error, ReceiptError::NoSegment),
        }
    }
    let stats = engine.stats().unwrap();
    let kept = stats.subscription("t", "s").unwrap().backlog_entries;
    assert_eq!(kept, stored + 1);
}
