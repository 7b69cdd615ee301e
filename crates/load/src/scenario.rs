//! The named loads, what each takes and what it starts from.

use std::path::{Path, PathBuf};

use pelton::Durability;

use crate::{LoadError, payload::HEADER_BYTES};

/// A load by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A tour of about 10 s: short parts of `rtt`, `throughput`, `batch` and `synced`.
    Mix,
    /// One message in flight, to a consumer on another thread and to a handler on the shard.
    Rtt,
    /// Single-message entries, as many as go through.
    Throughput,
    /// Entries of 100 messages, as many as go through.
    Batch,
    /// Durable receipts: one in flight, then saturated with 256 B, then with 4 KiB.
    Synced,
    /// Writes several times the tail memory, drops it from the page cache, drains it from disk.
    Backlog,
    /// One Shared subscription with 100 consumers.
    Shared,
    /// Ten subscriptions on one topic.
    Fanout,
    /// Control requests while the data lane is full.
    Control,
    /// The lines of a file.
    Replay,
    /// 100,000 topics with one subscription each, and nothing to do.
    IdleTopics,
}

impl Scenario {
    /// All of them, the tour first.
    pub const ALL: [Scenario; 11] = [
        Scenario::Mix,
        Scenario::Rtt,
        Scenario::Throughput,
        Scenario::Batch,
        Scenario::Synced,
        Scenario::Backlog,
        Scenario::Shared,
        Scenario::Fanout,
        Scenario::Control,
        Scenario::Replay,
        Scenario::IdleTopics,
    ];

    /// Name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Mix => "mix",
            Scenario::Rtt => "rtt",
            Scenario::Throughput => "throughput",
            Scenario::Batch => "batch",
            Scenario::Synced => "synced",
            Scenario::Backlog => "backlog",
            Scenario::Shared => "shared",
            Scenario::Fanout => "fanout",
            Scenario::Control => "control",
            Scenario::Replay => "replay",
            Scenario::IdleTopics => "idle-topics",
        }
    }

    /// One line of help.
    #[must_use]
    pub fn help(self) -> &'static str {
        match self {
            Scenario::Mix => "a tour of 10 s: short parts of rtt, throughput, batch and synced",
            Scenario::Rtt => "one message in flight: publish to delivery, by ring and by handler",
            Scenario::Throughput => "single-message entries, as many as go through",
            Scenario::Batch => "entries of 100 messages, as many as go through",
            Scenario::Synced => "durable receipts: one in flight, saturated 256 B, saturated 4 KiB",
            Scenario::Backlog => {
                "write several times the tail memory, then drain it cold from disk"
            }
            Scenario::Shared => "one Shared subscription with 100 consumers",
            Scenario::Fanout => "ten subscriptions on one topic",
            Scenario::Control => "control requests while the data lane is full",
            Scenario::Replay => "the lines of a file (--input), at the pace of their time_ms",
            Scenario::IdleTopics => "100,000 idle topics: memory and open time of each",
        }
    }

    /// True if its report has a latency.
    #[must_use]
    pub fn has_latency(self) -> bool {
        !matches!(self, Scenario::Backlog | Scenario::IdleTopics)
    }

    /// True if it can be given a rate.
    fn takes_rate(self) -> bool {
        use Scenario::{Batch, Fanout, Replay, Shared, Throughput};
        matches!(self, Throughput | Batch | Shared | Fanout | Replay)
    }

    fn durability(self) -> Durability {
        match self {
            Scenario::Synced | Scenario::Backlog | Scenario::Replay => Durability::Synced,
            _ => Durability::Memory,
        }
    }

    fn batch(self) -> usize {
        match self {
            Scenario::Batch => 100,
            _ => 1,
        }
    }

    fn message_bytes(self) -> usize {
        match self {
            Scenario::Backlog => 4_096,
            _ => 64,
        }
    }
}

/// Which disk driver the engine is to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskDriver {
    /// io_uring where it can be had, else the pread pool.
    Auto,
    /// io_uring or an error.
    Uring,
    /// The pread pool.
    Pread,
}

/// What was asked for. `None` leaves a value to the scenario.
#[derive(Clone, Debug)]
pub struct Options {
    /// The load.
    pub scenario: Scenario,
    /// File to replay.
    pub input: Option<PathBuf>,
    /// Field of its lines that holds the key.
    pub key: Option<String>,
    /// How many times as fast as recorded; above 0.
    pub speed: Option<f64>,
    /// Measured time in seconds; above 0.
    pub seconds: Option<f64>,
    /// Messages per second; 1 or more.
    pub rate: Option<u64>,
    /// Shards, 1 to 64.
    pub shards: usize,
    /// Durability of the topics.
    pub durability: Option<Durability>,
    /// Bytes of a message, [`HEADER_BYTES`] or more.
    pub message_bytes: Option<usize>,
    /// Messages in an entry.
    pub batch: Option<usize>,
    /// Where the run makes its own directory; the current directory otherwise.
    pub dir: Option<PathBuf>,
    /// Disk driver; the engine's own choice otherwise, which the environment's `DISK` decides.
    pub disk: Option<DiskDriver>,
}

impl Options {
    /// A scenario with nothing else said.
    #[must_use]
    pub fn new(scenario: Scenario) -> Options {
        Options {
            scenario,
            input: None,
            key: None,
            speed: None,
            seconds: None,
            rate: None,
            shards: 1,
            durability: None,
            message_bytes: None,
            batch: None,
            dir: None,
            disk: None,
        }
    }

    /// Measured time in seconds.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.seconds.unwrap_or(10.0)
    }

    pub(crate) fn durability(&self) -> Durability {
        self.durability.unwrap_or(self.scenario.durability())
    }

    pub(crate) fn message_bytes(&self) -> usize {
        self.message_bytes.unwrap_or(self.scenario.message_bytes())
    }

    pub(crate) fn batch(&self) -> usize {
        self.batch.unwrap_or(self.scenario.batch())
    }

    /// Says what does not go together.
    ///
    /// # Errors
    /// [`LoadError::Options`], a usage error.
    pub fn check(&self) -> Result<(), LoadError> {
        let scenario = self.scenario;
        let replay = scenario == Scenario::Replay;
        let refuse = |why: String, remedy| Err(LoadError::Options { why, remedy });
        let not_here =
            |option: &str| format!("{option} has no meaning for scenario {}", scenario.name());
        match () {
            () if replay && self.input.is_none() => {
                refuse("replay needs a file".into(), "name one with --input FILE")
            }
            () if !replay && self.input.is_some() => {
                refuse(not_here("--input"), "use it with replay, or leave it out")
            }
            () if !replay && (self.key.is_some() || self.speed.is_some()) => refuse(
                not_here("--key or --speed"),
                "use it with replay, or leave it out",
            ),
            () if self.rate.is_some() && !scenario.takes_rate() => refuse(
                not_here("--rate"),
                "use it with throughput, batch, shared, fanout or replay",
            ),
            () if self.batch.is_some() && (replay || !scenario.takes_rate()) => refuse(
                not_here("--batch"),
                "use it with throughput, batch, shared or fanout",
            ),
            () if self.rate == Some(0) => {
                refuse("a rate of 0 never sends".into(), "give --rate 1 or more")
            }
            () if self.dir.as_deref().is_some_and(|dir| !dir.is_dir()) => refuse(
                format!(
                    "{} is no directory",
                    self.dir.as_deref().unwrap_or(Path::new("")).display()
                ),
                "name one that exists with --dir DIR",
            ),
            () if scenario == Scenario::Rtt && self.shards > 1 => refuse(
                not_here("--shards"),
                "leave it out: one message in flight is on one shard",
            ),
            () if !(1..=64).contains(&self.shards) => refuse(
                format!("{} shards cannot be had", self.shards),
                "give --shards 1 to 64",
            ),
            () => self.check_sizes(),
        }
    }

    fn check_sizes(&self) -> Result<(), LoadError> {
        let refuse = |why: String, remedy| Err(LoadError::Options { why, remedy });
        let scenario = self.scenario;
        let memory = self.durability() == Durability::Memory;
        let entry_bytes = self.message_bytes().saturating_mul(self.batch());
        match () {
            () if self.message_bytes() < HEADER_BYTES => refuse(
                format!(
                    "a message of {} bytes has no room for its producer and sequence",
                    self.message_bytes()
                ),
                "give --size 24 or more",
            ),
            () if self.batch() == 0 || self.batch() > 100_000 => refuse(
                format!("an entry of {} messages cannot be had", self.batch()),
                "give --batch 1 to 100000",
            ),
            () if entry_bytes > 4 << 20 => refuse(
                format!("an entry of {entry_bytes} bytes is larger than 4 MiB"),
                "give a smaller --size or --batch",
            ),
            () if memory && matches!(scenario, Scenario::Synced | Scenario::Backlog) => refuse(
                format!("{} is about the disk", scenario.name()),
                "give --durability written or synced, or leave it out",
            ),
            () if !memory && scenario == Scenario::IdleTopics => refuse(
                "idle-topics is about topics in memory".into(),
                "leave --durability out",
            ),
            () if self.durability.is_some() && scenario == Scenario::Mix => refuse(
                "the tour has parts of every durability".into(),
                "name a scenario, or leave --durability out",
            ),
            () => Ok(()),
        }
    }
}

/// Name of a durability in reports and on the command line.
#[must_use]
pub fn durability_name(durability: Durability) -> &'static str {
    match durability {
        Durability::NonPersistent => "non-persistent",
        Durability::Memory => "memory",
        Durability::Written => "written",
        Durability::Synced => "synced",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl Fn(&mut Options)) -> String {
        let mut options = Options::new(Scenario::Throughput);
        change(&mut options);
        let error = options.check().expect_err("it does not go together");
        assert!(error.is_usage());
        error.to_string()
    }

    #[test]
    fn every_scenario_can_be_run_with_nothing_else_said_but_replay() {
        for scenario in Scenario::ALL {
            let fine = Options::new(scenario).check().is_ok();
            assert_eq!(fine, scenario != Scenario::Replay, "{}", scenario.name());
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused_with_what_to_do() {
        assert!(refused(|o| o.scenario = Scenario::Replay).contains("--input FILE"));
        assert!(refused(|o| o.input = Some("x".into())).contains("throughput"));
        assert!(refused(|o| o.key = Some("x".into())).contains("--key"));
        assert!(refused(|o| o.rate = Some(0)).contains("--rate 1"));
        assert!(
            refused(|o| (o.scenario, o.rate) = (Scenario::Rtt, Some(5)))
                .contains("--rate has no meaning")
        );
        assert!(refused(|o| o.message_bytes = Some(23)).contains("--size 24"));
        assert!(refused(|o| o.batch = Some(0)).contains("--batch 1"));
        assert!(
            refused(|o| (o.batch, o.message_bytes) = (Some(1_000), Some(5_000))).contains("4 MiB")
        );
        assert!(refused(|o| (o.scenario, o.shards) = (Scenario::Rtt, 2)).contains("--shards has"));
        assert!(refused(|o| o.shards = 0).contains("--shards 1"));
        assert!(refused(|o| o.dir = Some("/nowhere/at/all".into())).contains("--dir DIR"));
        let memory = Some(Durability::Memory);
        assert!(
            refused(|o| (o.scenario, o.durability) = (Scenario::Synced, memory)).contains("disk")
        );
    }
}
