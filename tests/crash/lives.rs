//! The parent: kills a child, opens what it left, compares with what it was told.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::child::{DIR_VARIABLE, FIRST_VARIABLE, number, open, subscribe};
use crate::power::LoopDisk;

/// Longest a reopen may take.
const REOPEN_MS_MAX: u128 = 2_000;

pub(crate) struct Lives {
    home: Home,
    seed: u64,
    runs: u32,
    /// First number the next child publishes: above all that any child can have published.
    next: u64,
    receipted: BTreeSet<u64>,
    acked: BTreeSet<u64>,
    /// About to be acked: gone or not, either is right.
    undecided: BTreeSet<u64>,
    reopen_ms_max: u128,
    receipts: u64,
    redelivered: u64,
}

/// Where the data is, and so how a life ends.
pub(crate) enum Home {
    /// By SIGKILL: the page cache survives.
    Directory(tempfile::TempDir),
    /// By a power cut: what was not synced may be gone.
    Disk(LoopDisk),
}

impl Home {
    fn path(&self) -> &Path {
        match self {
            Home::Directory(dir) => dir.path(),
            Home::Disk(disk) => disk.path(),
        }
    }
}

impl Lives {
    pub(crate) fn new(home: Home, seed: u64) -> Self {
        Self {
            home,
            seed,
            runs: 0,
            next: 0,
            receipted: BTreeSet::new(),
            acked: BTreeSet::new(),
            undecided: BTreeSet::new(),
            reopen_ms_max: 0,
            receipts: 0,
            redelivered: 0,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed = self
            .seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_041);
        (self.seed >> 33) % below
    }

    pub(crate) fn end_one_and_check(&mut self) {
        self.runs += 1;
        let mut child = self.start();
        let promises = self.random(3_000);
        let highest = self.listen(&mut child, promises);
        if let Home::Disk(disk) = &self.home {
            disk.cut(&child);
        }
        child.kill().expect("the child is killed");
        // What it still managed to say before it died counts as well.
        let highest = highest.max(self.listen(&mut child, u64::MAX));
        child.wait().expect("the child is gone");
        if let Home::Disk(disk) = &self.home {
            disk.swap();
        }
        self.check();
        self.next = self.next.max(highest + 10_000);
    }

    fn start(&mut self) -> Child {
        Command::new(std::env::current_exe().expect("a test binary"))
            .args([
                "--exact",
                "tests::nothing_promised_is_lost_when_the_process_is_killed",
            ])
            .args(["--nocapture", "--test-threads=1"])
            .env(DIR_VARIABLE, self.home.path())
            .env(FIRST_VARIABLE, self.next.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the child starts")
    }

    /// Reads up to `promises` lines; returns the highest number seen.
    fn listen(&mut self, child: &mut Child, promises: u64) -> u64 {
        let mut highest = self.next;
        let stdout = child.stdout.as_mut().expect("piped");
        let mut lines = BufReader::with_capacity(1, stdout);
        let (mut line, mut heard) = (String::new(), 0);
        while heard < promises && lines.read_line(&mut line).is_ok_and(|bytes| bytes > 0) {
            if let Some(told) = line.trim_end_matches('\n').split_once(' ')
                && line.ends_with('\n')
                && let Ok(number) = told.1.parse::<u64>()
            {
                heard += 1;
                highest = highest.max(number);
                match told.0 {
                    "r" => self.receipts += u64::from(self.receipted.insert(number)),
                    "a" => assert!(self.acked.insert(number), "{number} was acked twice"),
                    "i" => _ = self.undecided.insert(number),
                    _ => heard -= 1,
                }
            }
            line.clear();
        }
        highest
    }

    /// Opens the directory: all that was receipted and not acked is there, in order, each once.
    fn check(&mut self) {
        let clock = pelton::Clock::new();
        let started_ns = clock.now_ns();
        let engine = open(self.home.path());
        let mut consumer = subscribe(&engine);
        let reopen_ms = u128::from(clock.now_ns() - started_ns) / 1_000_000;
        self.reopen_ms_max = self.reopen_ms_max.max(reopen_ms);
        let backlog = backlog_entries(&engine);
        let mut seen = BTreeSet::new();
        let mut last = None;
        for _ in 0..backlog {
            let delivery = consumer
                .recv_timeout(Duration::from_secs(10))
                .expect("the consumer lives")
                .expect("the backlog arrives");
            let found = number(delivery.payload());
            let number = found.unwrap_or_else(|| panic!("a payload nobody published ({self:?})"));
            assert!(
                last < Some(number),
                "{number} came after {last:?} ({self:?})"
            );
            last = Some(number);
            assert!(
                !self.acked.contains(&number),
                "{number} was acked and came back ({self:?})"
            );
            seen.insert(number);
            delivery.keep();
        }
        for lost in self.receipted.difference(&seen) {
            let gone = self.acked.contains(lost) || self.undecided.contains(lost);
            assert!(gone, "{lost} was receipted and is lost ({self:?})");
        }
        // What an ack took is settled; what came back in spite of one was not acked.
        self.receipted.retain(|number| seen.contains(number));
        self.undecided.clear();
        assert!(
            reopen_ms <= REOPEN_MS_MAX,
            "a reopen took {reopen_ms} ms ({self:?})"
        );
        // What came without a receipt has been seen now: it may not vanish any more.
        for &number in &seen {
            self.redelivered += 1;
            self.receipted.insert(number);
        }
        drop(consumer);
        engine.shutdown(Duration::from_secs(5));
    }

    pub(crate) fn report(&self) {
        println!(
            "{} ends: {} receipts, {} acks made durable, {} deliveries checked, 0 lost, 0 wrong, \
             slowest reopen {} ms",
            self.runs,
            self.receipts,
            self.acked.len(),
            self.redelivered,
            self.reopen_ms_max
        );
    }
}

impl std::fmt::Debug for Lives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "run {}, seed now {}, directory {:?}",
            self.runs,
            self.seed,
            self.home.path()
        )
    }
}

fn backlog_entries(engine: &pelton::Engine) -> u64 {
    let stats = engine.stats().expect("the engine answers");
    let topics = stats.shards.iter().flat_map(|shard| &shard.broker.topics);
    topics
        .flat_map(|topic| &topic.subscriptions)
        .map(|sub| sub.backlog_entries)
        .sum()
}
