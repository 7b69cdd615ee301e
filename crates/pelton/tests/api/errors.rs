//! Bad input: each a typed error with one line that says what to do; nothing lost.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

use pelton::{
    DeleteError, Durability, Engine, KEY_BYTES_MAX, Message, OpenError, ProducerError, RecvError,
    SendError, SubscribeError, SubscriptionKind, TopicError, TrySendError,
};

use crate::common::{LONG, memory, receive, shared, small, subscribed};

/// One line, with what was tried and what to do; and the words given here.
fn check_text(error: &dyn Error, words: &[&str]) {
    let text = error.to_string();
    assert!(!text.contains('\n') && text.len() > 30, "{text:?}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[test]
fn a_full_queue_gives_the_payload_back() {
    // Nobody turns this engine, so the queue stays full.
    let (engine, mut driver) = Engine::in_memory().open_driven().unwrap();
    let topic = driver.run_until(engine.topic("t").begin()).unwrap();
    let mut consumer = driver.run_until(topic.subscribe("s").begin()).unwrap();
    let mut producer = driver.run_until(topic.producer().queue(4).begin()).unwrap();
    for i in 0..4u8 {
        producer.try_send(vec![i]).unwrap();
    }
    let payload = vec![4u8; 100];
    let place = payload.as_ptr();
    let refused = producer.try_send(payload).unwrap_err();
    assert!(refused.is_full());
    check_text(&refused, &["full", "send()"]);
    let payload = refused.into_payload();
    assert_eq!(
        (payload.as_ptr(), payload.len()),
        (place, 100),
        "the same memory, untouched"
    );
    let error = producer.send(&payload).unwrap_err();
    assert_eq!(
        error,
        SendError::WouldBlock {
            topic: "t".to_owned()
        }
    );
    while driver.run_once().items > 0 {}
    producer.try_send(payload).unwrap();
    while driver.run_once().items > 0 {}
    for i in 0..5 {
        let delivery = consumer.try_recv().unwrap().expect("all five are there");
        assert_eq!(delivery.payload()[0], i);
        delivery.ack();
    }
}

#[test]
fn a_message_that_is_too_large_is_refused_and_the_next_one_passes() {
    let engine = Engine::in_memory().entry_bytes_max(1_000).open().unwrap();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    let error = producer.send(vec![0; 995]).unwrap_err();
    assert_eq!(
        error,
        SendError::TooLarge {
            topic: "t".into(),
            bytes: 1_001,
            max: 1_000,
            option: "entry_bytes_max",
        }
    );
    check_text(
        &error,
        &["1001 bytes", "\"t\"", "at most 1000", "send less"],
    );
    let error = producer.try_send(vec![7; 995]).unwrap_err();
    assert!(matches!(
        &error,
        TrySendError::Failed {
            error: SendError::TooLarge { .. },
            ..
        }
    ));
    assert_eq!(error.into_payload(), vec![7; 995]);
    let error = producer
        .send_batch([Message::new(&[0; 500]); 2])
        .unwrap_err();
    assert!(
        matches!(error, SendError::TooLarge { bytes: 1_012, .. }),
        "{error}"
    );
    producer.send(vec![1; 994]).unwrap();
    producer.flush().unwrap();
    assert_eq!(receive(&mut consumer, 1), [vec![1; 994]]);
    assert_eq!(producer.sent(), 1, "refused entries take no number");
}

#[test]
fn an_entry_larger_than_the_memory_of_memory_topics_is_never_answered() {
    let engine = Engine::in_memory().memory_backlog_bytes(1 << 20);
    let engine = engine.open().unwrap();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    let error = producer.send(vec![0; 2 << 20]).unwrap_err();
    check_text(&error, &["at most 524288", "Builder::memory_backlog_bytes"]);
    producer.send(vec![1; 500_000]).unwrap();
    producer.flush().unwrap();
    assert_eq!(receive(&mut consumer, 1), [vec![1; 500_000]]);
}

#[test]
fn options_that_cannot_work_are_refused_by_name_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("data");
    let open = |builder: pelton::Builder| builder.open().unwrap_err();
    let error = open(Engine::builder(&dir).segment_bytes(70_000));
    check_text(&error, &["segment_bytes is 70000", "multiple of 4 KiB"]);
    let error = open(Engine::in_memory().memory_backlog_bytes(0));
    check_text(&error, &["memory_backlog_bytes is 0", "at least 64 KiB"]);
    let error = open(Engine::in_memory().entry_bytes_max(1));
    check_text(&error, &["entry_bytes_max is 1", "framing"]);
    assert!(!dir.exists());
}

#[test]
fn batches_and_keys_out_of_range_are_refused() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    let error = producer.send_batch::<Message<'_>>([]).unwrap_err();
    check_text(&error, &["0 messages", "1 to 100000"]);
    let error = producer
        .send_batch((0..100_001).map(|_| Message::new(b"")))
        .unwrap_err();
    assert!(
        matches!(
            error,
            SendError::BatchSize {
                messages: 100_001,
                ..
            }
        ),
        "{error}"
    );
    let key = vec![0; KEY_BYTES_MAX + 1];
    let error = producer
        .send_message(Message::new(b"x").key(&key))
        .unwrap_err();
    check_text(&error, &["65535 bytes", "65534"]);
    producer
        .send_message(Message::new(b"x").key(&key[1..]))
        .unwrap();
    producer
        .send_batch((0..100_000).map(|_| Message::new(b"")))
        .unwrap();
    for messages in [1, 100_000] {
        let delivery = consumer.recv_timeout(LONG).unwrap().unwrap();
        assert_eq!(delivery.message_count(), messages);
        delivery.ack();
    }
}

#[test]
fn names_that_are_not_valid_are_refused() {
    let engine = memory();
    let long = "x".repeat(513);
    for name in ["", " a", "b ", "c\nd", long.as_str()] {
        let error = engine.topic(name).open().unwrap_err();
        assert!(matches!(error, TopicError::InvalidName { .. }), "{error}");
        check_text(&error, &["opening topic", "name"]);
        let topic = engine.topic("fine").open().unwrap();
        let error = topic.subscribe(name).open().unwrap_err();
        assert!(
            matches!(error, SubscribeError::InvalidName { .. }),
            "{error}"
        );
    }
    engine
        .topic("persistent://public/default/Grüße, 世界")
        .open()
        .unwrap();
}

#[test]
fn a_topic_keeps_the_durability_it_was_made_with() {
    let directory = tempfile::tempdir().unwrap();
    for round in 0..2 {
        let engine = small(directory.path()).open().unwrap();
        if round == 0 {
            engine
                .topic("t")
                .durability(Durability::Written)
                .open()
                .unwrap();
        }
        let error = engine.topic("t").open().unwrap_err();
        let expected = TopicError::DurabilityMismatch {
            name: "t".to_owned(),
            existing: Durability::Written,
            asked: Durability::Synced,
        };
        assert_eq!(error, expected);
        let remedy = "durability(Durability::Written)";
        check_text(&error, &["\"t\"", remedy, "Synced", "delete it first"]);
    }
}

#[test]
fn a_second_consumer_of_an_exclusive_subscription_is_not_told_of_shared() {
    let engine = memory();
    let (topic, first) = subscribed(&engine, "t", "s");
    let error = topic.subscribe("s").open().unwrap_err();
    check_text(&error, &["Exclusive", "kind(SubscriptionKind::Shared)"]);
    drop(first);
    let (_, shared) = shared(&engine, "t", "s");
    let error = topic.subscribe("s").open().unwrap_err();
    check_text(&error, &["are Shared", "kind(SubscriptionKind::Shared)"]);
    drop(shared);
}

#[test]
fn an_engine_in_memory_refuses_durable_topics() {
    let engine = memory();
    for asked in [Durability::Written, Durability::Synced] {
        let error = engine.topic("t").durability(asked).open().unwrap_err();
        assert_eq!(
            error,
            TopicError::NoDirectory {
                name: "t".to_owned(),
                asked
            }
        );
        check_text(&error, &["Engine::builder"]);
    }
    assert_eq!(
        engine.topic("t").open().unwrap().durability(),
        Durability::Memory
    );
}

#[test]
fn sizes_out_of_range_are_refused() {
    let engine = memory();
    let (topic, _) = subscribed(&engine, "t", "s");
    for queue in [0, 1, 65_537, usize::MAX] {
        let error = topic.producer().queue(queue).open().unwrap_err();
        assert!(
            matches!(error, ProducerError::InvalidQueue { .. }),
            "{error}"
        );
        check_text(&error, &["65536"]);
    }
    for window in [0, u32::MAX] {
        let error = topic.subscribe("w").window(window).open().unwrap_err();
        assert!(
            matches!(error, SubscribeError::InvalidWindow { .. }),
            "{error}"
        );
        check_text(&error, &["1048576"]);
    }
}

#[test]
fn what_does_not_exist_or_is_in_use_is_not_deleted() {
    let engine = memory();
    let (topic, consumer) = subscribed(&engine, "t", "s");
    let error = engine.delete_topic("u").unwrap_err();
    assert_eq!(
        error,
        DeleteError::NotFound {
            what: "topic",
            name: "u".to_owned()
        }
    );
    let error = engine.delete_topic("t").unwrap_err();
    check_text(&error, &["topic", "\"t\"", "close them first"]);
    let error = topic.unsubscribe("s").unwrap_err();
    assert!(
        matches!(error, DeleteError::InUse { users: 1, .. }),
        "{error}"
    );
    drop(consumer);
    topic.unsubscribe("s").unwrap();
    assert!(matches!(
        topic.unsubscribe("s"),
        Err(DeleteError::NotFound { .. })
    ));
    engine.delete_topic("t").unwrap();
    let error = topic.producer().open().unwrap_err();
    assert!(matches!(error, ProducerError::TopicGone { .. }), "{error}");
    let error = topic
        .subscribe("s")
        .kind(SubscriptionKind::Shared)
        .open()
        .unwrap_err();
    assert!(matches!(error, SubscribeError::TopicGone { .. }), "{error}");
}

#[test]
fn every_handle_of_a_closed_engine_says_so() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    let mut producer = topic.producer().open().unwrap();
    producer.send("last").unwrap().wait().unwrap();
    engine.shutdown(LONG);
    assert!(matches!(
        engine.topic("u").open(),
        Err(TopicError::EngineClosed { .. })
    ));
    assert!(matches!(
        engine.delete_topic("t"),
        Err(DeleteError::EngineClosed { .. })
    ));
    assert!(engine.stats().is_err());
    assert!(matches!(
        topic.producer().open(),
        Err(ProducerError::EngineClosed { .. })
    ));
    assert!(matches!(
        topic.subscribe("s").open(),
        Err(SubscribeError::EngineClosed { .. })
    ));
    let error = producer.send("late").unwrap_err();
    assert_eq!(
        error,
        SendError::Closed {
            topic: "t".to_owned()
        }
    );
    assert_eq!(
        producer.try_send("late").unwrap_err().into_payload(),
        "late"
    );
    // What was handed over before is still received.
    while let Ok(delivery) = consumer.recv() {
        assert_eq!(delivery.payload(), b"last");
        delivery.ack();
    }
    let error = consumer.try_recv().unwrap_err();
    assert!(matches!(error, RecvError::Closed { .. }));
    check_text(&error, &["\"t\"", "\"s\"", "subscribe again"]);
    assert!(consumer.flush_acks().is_err());
}

#[test]
fn a_directory_has_one_engine_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let engine = small(directory.path()).open().unwrap();
    let error = small(directory.path()).open().unwrap_err();
    check_text(&error, &[&directory.path().display().to_string()]);
    assert!(matches!(error, OpenError::Lock(_)), "{error:?}");
    drop(engine);
    small(directory.path()).open().unwrap();
}

#[test]
fn a_directory_that_cannot_be_written_is_refused() {
    let error = Engine::builder("/proc/pelton").open().unwrap_err();
    check_text(&error, &["/proc/pelton"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    let error = Engine::builder(&file).open().unwrap_err();
    check_text(&error, &[&file.display().to_string()]);
    assert_eq!(std::fs::read(&file).unwrap(), b"not a directory");
}

/// Mounted read-only over itself, for root, whom mode bits do not stop.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn mount(path: &Path) -> Result<ReadOnly, String> {
        run(Command::new("mount").arg("--bind").args([path, path]))?;
        let mounted = ReadOnly(path.to_owned());
        run(Command::new("mount")
            .args(["-o", "remount,ro,bind"])
            .arg(path))
        .map(|()| mounted)
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        if let Err(error) = run(Command::new("umount").arg(&self.0)) {
            eprintln!("{error}");
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    output.status.success().then_some(()).ok_or(said)
}

#[test]
fn a_read_only_directory_is_refused_and_unchanged() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o555)).unwrap();
    let probe = path.join("probe");
    let _mounted = match std::fs::write(&probe, "") {
        Err(_) => None,
        Ok(()) => {
            std::fs::remove_file(&probe).unwrap();
            match ReadOnly::mount(&path) {
                Ok(mounted) => Some(mounted),
                Err(why) => {
                    println!("skipped: mode bits do not stop root, who may not mount: {why}");
                    return;
                }
            }
        }
    };
    assert!(std::fs::write(&probe, "").is_err());
    let error = small(&path).open().unwrap_err();
    check_text(&error, &[&path.display().to_string(), "check"]);
    assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
}

#[test]
fn foreign_files_are_neither_touched_nor_taken_for_data() {
    let directory = tempfile::tempdir().unwrap();
    let engine = small(directory.path()).open().unwrap();
    let (topic, _) = subscribed(&engine, "t", "s");
    topic
        .producer()
        .open()
        .unwrap()
        .send("kept")
        .unwrap()
        .wait()
        .unwrap();
    drop(engine);
    let foreign = [
        directory.path().join("notes.txt"),
        directory.path().join("shard-0").join("seg-copy.log"),
        directory.path().join("shard-0").join("core.1234"),
    ];
    // One after the other: each is named, and nothing is opened while it is there.
    for path in &foreign {
        std::fs::write(path, "foreign").unwrap();
        let error = small(directory.path()).open().unwrap_err();
        assert!(matches!(error, OpenError::Foreign { .. }), "{error:?}");
        check_text(
            &error,
            &[&path.display().to_string(), "the right directory"],
        );
        assert_eq!(std::fs::read(path).unwrap(), b"foreign");
        std::fs::remove_file(path).unwrap();
    }
    let engine = small(directory.path()).open().unwrap();
    let topic = engine.topic("t").open().unwrap();
    let mut consumer = topic.subscribe("s").open().unwrap();
    assert_eq!(receive(&mut consumer, 1), [b"kept"]);
}
