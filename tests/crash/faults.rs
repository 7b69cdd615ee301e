//! Disks that are full, read-only or failing, through the API: every error has a type and one line,
//! nothing receipted is lost, nothing refused is stored, and every call comes back.

use std::collections::BTreeSet;
use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use pelton::{
    AckError, Consumer, Durability, Engine, Producer, Receipt, ReceiptError, SendError, TopicError,
};

use crate::child::{TOPIC, number, open, payload, subscribe};
use crate::power::LoopDisk;

/// Reached only by a call that hangs.
const DEADLINE: Duration = Duration::from_secs(60);
/// More than any of these disks takes.
const MESSAGES_MAX: u64 = 1_000_000;
/// In flight at a time.
const WINDOW: u64 = 16;

/// Gives what `work` gives; if that takes too long, something hangs.
fn in_time<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    let worker = std::thread::Builder::new().spawn(move || done.send(work()));
    let worker = worker.expect("a thread");
    match ended.recv_timeout(DEADLINE) {
        Ok(value) => value,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what} did not end in {DEADLINE:?}"),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            let panicked = worker.join().expect_err("it gave nothing");
            std::panic::resume_unwind(panicked)
        }
    }
}

/// One line that says what to do, with these words in it.
fn check_text(error: &dyn Error, words: &[&str]) {
    let text = error.to_string();
    println!("{text}");
    assert!(!text.contains('\n') && text.len() > 30, "{text:?}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

/// What became of the messages that were sent.
#[derive(Debug, Default)]
struct Sent {
    receipted: BTreeSet<u64>,
    /// Not stored, for sure.
    refused: BTreeSet<u64>,
    /// The first that was not stored, or may not be, and why the producer took no more.
    receipt_error: Option<ReceiptError>,
    send_error: Option<SendError>,
}

/// Sends from `first` on, up to `WINDOW` in flight, until the producer takes no more or so many are
/// receipted.
fn send(producer: &mut Producer, first: u64, receipts: u64) -> Sent {
    let mut sent = Sent::default();
    let mut owed: Vec<(u64, Receipt)> = Vec::new();
    for next in first..first + MESSAGES_MAX {
        let full = owed.len() as u64 == WINDOW;
        if full || sent.receipted.len() as u64 >= receipts {
            for (number, receipt) in owed.drain(..) {
                sent.note(number, receipt.wait());
            }
        }
        if sent.receipted.len() as u64 >= receipts {
            return sent;
        }
        match producer.send(payload(next)) {
            Ok(receipt) => owed.push((next, receipt)),
            Err(error) => {
                sent.refused.insert(next);
                sent.send_error = Some(error);
                for (number, receipt) in owed.drain(..) {
                    sent.note(number, receipt.wait());
                }
                return sent;
            }
        }
    }
    panic!("the disk never failed: {} receipts", sent.receipted.len());
}

impl Sent {
    fn note(&mut self, number: u64, outcome: Result<pelton::Position, ReceiptError>) {
        match outcome {
            Ok(_) => _ = self.receipted.insert(number),
            Err(error) => {
                if !matches!(error, ReceiptError::Unknown { .. }) {
                    self.refused.insert(number);
                }
                self.receipt_error.get_or_insert(error);
            }
        }
    }

    /// Opens a healthy directory: all that was receipted is there, in order, and nothing refused.
    fn check(&self, dir: &Path) -> (Engine, Consumer) {
        let engine = open(dir);
        let mut consumer = subscribe(&engine);
        let mut seen: Vec<u64> = Vec::new();
        while seen.len() < self.receipted.len() || seen.last() < self.receipted.last() {
            let delivery = consumer.recv_timeout(Duration::from_secs(10));
            let delivery = delivery.expect("the consumer lives");
            let delivery = delivery.unwrap_or_else(|| panic!("after {seen:?}: {self:?}"));
            seen.push(number(delivery.payload()).expect("an intact payload"));
            delivery.keep();
        }
        while let Some(delivery) = consumer.try_recv().expect("the consumer lives") {
            seen.push(number(delivery.payload()).expect("an intact payload"));
            delivery.keep();
        }
        assert!(seen.is_sorted_by(|a, b| a < b), "each once, in order");
        let seen = BTreeSet::from_iter(seen);
        let lost: Vec<_> = self.receipted.difference(&seen).collect();
        assert!(lost.is_empty(), "receipted and lost: {lost:?}");
        let stored: Vec<_> = self.refused.intersection(&seen).collect();
        assert!(stored.is_empty(), "refused and stored: {stored:?}");
        (engine, consumer)
    }
}

fn producer(engine: &Engine) -> Producer {
    let topic = engine.topic(TOPIC).open().expect("the topic opens");
    topic.producer().open().expect("the producer attaches")
}

/// Fills the file system to the last block; gone when it is removed.
fn fill(dir: &Path) -> PathBuf {
    let path = dir.join("balloon");
    let mut options = std::fs::OpenOptions::new();
    let balloon = options.create(true).append(true).open(&path);
    let mut balloon = balloon.expect("an empty file");
    for bytes in [1 << 20, 4 << 10] {
        let zeros = vec![0; bytes];
        let full = loop {
            if let Err(error) = balloon.write_all(&zeros) {
                break error;
            }
        };
        assert_eq!(full.kind(), std::io::ErrorKind::StorageFull, "{full}");
    }
    path
}

/// Every file under `dir` with what is in it.
fn files(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let bytes = std::fs::read(&path).expect("readable");
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

#[test]
fn a_full_disk_refuses_and_keeps_and_acks_make_room() {
    let disk = match LoopDisk::new() {
        Ok(disk) => disk,
        Err(why) => return println!("skipped: {why}"),
    };
    let (root, dir) = (disk.path().to_owned(), disk.path().join("data"));
    in_time("a full disk", move || {
        let engine = open(&dir);
        let mut consumer = subscribe(&engine);
        let mut producer = producer(&engine);
        let mut sent = send(&mut producer, 0, 500);
        let balloon = fill(&root);
        let rest = send(&mut producer, 10_000, MESSAGES_MAX);
        let error = rest.send_error.clone().expect("the disk is full");
        assert!(matches!(error, SendError::DiskFull { .. }), "{error}");
        check_text(&error, &["full", &dir.display().to_string(), "make space"]);
        if let Some(error) = &rest.receipt_error {
            assert_eq!(*error, ReceiptError::DiskFull, "nothing is unknown");
            check_text(error, &["full", "make space"]);
        }
        sent.receipted.extend(&rest.receipted);
        sent.refused.extend(&rest.refused);
        // Everything else goes on, or says why not.
        engine.stats().expect("statistics need no disk");
        let delivery = consumer.try_recv().expect("the consumer lives");
        delivery.expect("what is stored is delivered").keep();
        if let Err(error) = engine.topic("another").open() {
            assert!(matches!(error, TopicError::Metadata { .. }), "{error}");
            check_text(&error, &["make space"]);
        }
        drop((producer, consumer));
        let report = engine.shutdown(Duration::from_secs(10));
        println!("{report}");
        assert!(report.clean, "{report}");
        drop(engine);

        std::fs::remove_file(balloon).expect("room again");
        let (engine, mut consumer) = sent.check(&dir);
        let mut producer = self::producer(&engine);
        let balloon = fill(&root);
        let rest = send(&mut producer, 20_000, MESSAGES_MAX);
        println!("{} more receipts until it is full", rest.receipted.len());
        assert!(matches!(rest.send_error, Some(SendError::DiskFull { .. })));
        drop(consumer);
        consumer = subscribe(&engine);
        for _ in 0..sent.receipted.len() {
            let delivery = consumer.recv_timeout(DEADLINE).expect("it lives");
            delivery.expect("it is stored").ack();
        }
        consumer.flush_acks().expect("acks have room kept for them");
        // Room is made by the shard in its own time: each answer ends a round trip to it.
        let receipt = loop {
            engine.stats().expect("the engine lives");
            match producer.send(payload(30_000)) {
                Ok(receipt) => break receipt,
                Err(error) => assert!(matches!(error, SendError::DiskFull { .. }), "{error}"),
            }
        };
        receipt.wait().expect("it is stored");
        assert!(balloon.exists(), "acks made the room");
        assert!(engine.shutdown(Duration::from_secs(10)).clean);
    });
}

#[test]
fn a_read_only_disk_is_refused_and_unchanged() {
    let disk = match LoopDisk::new() {
        Ok(disk) => disk,
        Err(why) => return println!("skipped: {why}"),
    };
    let dir = disk.path().join("data");
    let engine = open(&dir);
    drop(subscribe(&engine));
    let sent = send(&mut producer(&engine), 0, 100);
    assert!(engine.shutdown(DEADLINE).clean);
    drop(engine);
    disk.remount("ro");
    let before = files(disk.path());
    for dir in [dir.clone(), disk.path().join("new")] {
        let path = dir.clone();
        let refused = in_time("opening", move || Engine::builder(dir).open().map(drop));
        let error = refused.expect_err("nothing can be written");
        check_text(&error, &[&path.display().to_string(), "check"]);
    }
    assert!(files(disk.path()) == before, "nothing was changed");
    disk.remount("rw");
    drop(sent.check(&dir));
}

/// What is true of every engine whose log was poisoned under this load.
fn check_poisoned(engine: Engine, mut consumer: Consumer, sent: &Sent) {
    let error = sent.send_error.clone().expect("the log takes no more");
    assert!(matches!(error, SendError::Poisoned { .. }), "{error}");
    check_text(&error, &["/shard-0/seg-", "open the engine again"]);
    let error = sent.receipt_error.clone().expect("one was in flight");
    assert!(matches!(error, ReceiptError::Unknown { .. }), "{error}");
    check_text(&error, &["/shard-0/seg-", "open the engine again"]);
    engine.stats().expect("statistics need no disk");
    if let Some(delivery) = consumer.try_recv().expect("the consumer lives") {
        delivery.ack();
    }
    let error = consumer.flush_acks().expect_err("acks need the log");
    assert!(matches!(error, AckError::NotDurable { .. }), "{error}");
    check_text(&error, &["/shard-0/seg-", "open the engine again"]);
    // A new topic is metadata first, whose file may still have had room on a disk that is full; what is
    // known meets the log.
    match engine.topic("another").open() {
        Ok(another) => check_refused(&another),
        Err(error @ TopicError::Metadata { .. }) => check_text(&error, &["meta.redb", "try again"]),
        Err(error @ TopicError::Poisoned { .. }) => {
            check_text(&error, &["/shard-0/seg-", "again"]);
        }
        Err(error) => panic!("{error}"),
    }
    check_refused(&engine.topic(TOPIC).open().expect("its metadata is known"));
    drop(consumer);
    let report = engine.shutdown(Duration::from_secs(10));
    println!("{report}");
    assert!(!report.clean && report.running.is_empty(), "{report}");
}

/// A topic of a poisoned log takes nothing.
fn check_refused(topic: &pelton::Topic) {
    let mut producer = topic.producer().open().expect("attaching needs no disk");
    let receipt = producer.send(payload(0)).map(|receipt| receipt.wait());
    let refused = matches!(
        receipt,
        Err(SendError::Poisoned { .. }) | Ok(Err(ReceiptError::Poisoned { .. }))
    );
    assert!(refused, "{receipt:?}");
}

/// Set in the child of [`a_write_that_fails_poisons_the_log`], to its directory.
const LIMITED: &str = "PELTON_LIMITED_DIR";

#[test]
fn a_write_that_fails_poisons_the_log() {
    if let Some(dir) = std::env::var_os(LIMITED) {
        for durability in [Durability::Synced, Durability::Written] {
            let dir = Path::new(&dir).join(format!("{durability:?}"));
            in_time("a failing write", move || write_fails(&dir, durability));
        }
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    // The signal that goes with the failure is inherited as ignored.
    let mut child = Command::new("sh");
    child.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]);
    child.arg(std::env::current_exe().expect("a test binary"));
    child.args(["--exact", "faults::a_write_that_fails_poisons_the_log"]);
    child.args(["--nocapture", "--test-threads=1"]);
    child.env(LIMITED, dir.path());
    // By way of a pipe: what it says may not meet the limit.
    let output = child.output().expect("a shell");
    println!("{}", String::from_utf8_lossy(&output.stdout));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// Every write beyond the first pages of any file fails with EFBIG from some moment on.
fn write_fails(dir: &Path, durability: Durability) {
    let engine = open(dir);
    let other = engine.topic("other").durability(durability);
    let _other = other.open().expect("the topic opens");
    let consumer = subscribe(&engine);
    let mut producer = producer(&engine);
    let mut sent = send(&mut producer, 0, 200);
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).expect("there is a limit");
    setrlimit(Resource::RLIMIT_FSIZE, 4_096, hard).expect("it may be lowered");
    let rest = send(&mut producer, 10_000, MESSAGES_MAX);
    drop(producer);
    check_poisoned(engine, consumer, &rest);
    assert!(rest.receipted.is_empty(), "nothing can have been written");
    setrlimit(Resource::RLIMIT_FSIZE, soft, hard).expect("and raised again");
    sent.refused.extend(rest.refused);
    drop(sent.check(dir));
}

#[test]
fn a_sync_that_fails_poisons_the_log() {
    for durability in [Durability::Synced, Durability::Written] {
        let disk = match LoopDisk::thin(40 << 20) {
            Ok(disk) => disk,
            Err(why) => return println!("skipped: {why}"),
        };
        let dir = disk.path().join("data");
        let sent = in_time("a failing sync", move || sync_fails(&dir, durability));
        disk.heal();
        let dir = disk.path().join("data");
        in_time("the reopen", move || drop(sent.check(&dir)));
    }
}

/// The disk has less room than its file system believes. With a `written` topic in the log, writes go
/// to the page cache and it is the sync that fails.
fn sync_fails(dir: &Path, durability: Durability) -> Sent {
    let engine = Engine::builder(dir).open().expect("it opens");
    let other = engine.topic("other").durability(durability);
    let _other = other.open().expect("the topic opens");
    let consumer = subscribe(&engine);
    let mut producer = producer(&engine);
    let sent = send(&mut producer, 0, MESSAGES_MAX);
    println!("{} receipts before it fails", sent.receipted.len());
    drop(producer);
    check_poisoned(engine, consumer, &sent);
    sent
}
