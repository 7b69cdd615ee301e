//! A directory, read only: what `pelton log verify` and `pelton log dump` stand on.
//!
//! Every log is recovered as an open would, but its repairs are only counted and nothing is written;
//! then every live entry is read and its checksum checked. Names of topics come from a copy of the
//! metadata. Stop the engine first: of a running one, a commit that is just being written looks torn.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use pelton_broker::storage::{
    Block, CursorState, DiskDone, DiskError, DiskOpKind, Durability, EntryMeta, Fetch, Log,
    Options, Place, Position, RecoverError, RecoverReport, Recovered, Repair, SegmentId, TopicKey,
    TopicSlot,
};
use pelton_broker::{TOPIC_PREFIX, TopicRecord};
use pelton_sys::{Kv, SegmentFile};

use crate::disk::{error_of, shard_dir};
use crate::error::OpenError;
use crate::plan::{META_FILE, look_at_dir};
use crate::reached;
use crate::spawn::SHARDS_MAX;
use crate::start::{list_segments, open_cached};

/// Entries asked for with one read, and bytes read ahead.
const READ_ENTRIES: u32 = 4_096;
const READ_AHEAD_BYTES: u64 = 4 << 20;
/// Entries after which the memory of what was looked at is given back.
const TRIM_EVERY: u64 = 1_024;

/// What a directory holds, shard by shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirReport {
    /// One per shard.
    pub shards: Vec<ShardLog>,
    /// There are segments, and no metadata that names their topics.
    pub metadata_missing: bool,
}

/// The log of one shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardLog {
    /// Index of the shard.
    pub shard: u32,
    /// Its folder.
    pub dir: PathBuf,
    /// Segment files in it.
    pub files: u64,
    /// Their length together, in bytes.
    pub bytes: u64,
    /// Why it cannot be opened: damage to something that was promised, among others.
    pub error: Option<RecoverError>,
    /// What recovery found.
    pub found: RecoverReport,
    /// What an open would change first: the torn end of a commit that was never receipted, say.
    pub repairs: Vec<Repair>,
    /// Topics with entries or cursors, by key.
    pub topics: Vec<TopicLog>,
}

/// The entries of one topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopicLog {
    /// Its durable id.
    pub key: u64,
    /// Its name; `None` if the metadata does not know it (it was deleted).
    pub name: Option<String>,
    /// Live entries.
    pub entries: u64,
    /// Messages in them.
    pub messages: u64,
    /// Bytes of their properties and bodies.
    pub bytes: u64,
    /// Entries with a deliver-at time or a deadline.
    pub timed: u64,
    /// Consecutive entries, in order: a ledger that is named twice has a gap between.
    pub runs: Vec<EntryRun>,
    /// Entries that cannot be read or whose checksum is wrong; not in the counts above.
    pub bad: Vec<Position>,
    /// Ack state of its subscriptions.
    pub cursors: Vec<CursorLog>,
}

/// Consecutive entries of one ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRun {
    /// The first one.
    pub first: Position,
    /// How many.
    pub entries: u64,
}

/// The ack state of one subscription.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CursorLog {
    /// Its durable id.
    pub key: u64,
    /// Its name, if the metadata knows it.
    pub name: Option<String>,
    /// Everything up to here is acked; `None`: nothing is.
    pub mark_delete: Option<Position>,
    /// Entries acked beyond that.
    pub acked_beyond: u64,
    /// Entries of which some messages are acked.
    pub partly_acked: u64,
}

/// One entry, as [`dump`] gives it.
#[derive(Clone, Copy, Debug)]
pub struct DumpedEntry<'a> {
    /// Index of the shard.
    pub shard: u32,
    /// Name of the topic, or empty if the metadata does not know it.
    pub topic: &'a str,
    /// Counts, times and numbers.
    pub meta: &'a EntryMeta,
    /// Properties of the entry as a whole, as they were handed in; mostly empty.
    pub properties: &'a [u8],
    /// The framed messages.
    pub body: &'a [u8],
}

impl DirReport {
    /// Whether everything that was promised is there and readable.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let is_sound = |shard: &ShardLog| {
            shard.error.is_none()
                && shard.found.reached.is_none()
                && shard.found.lost_segments.is_empty()
                && shard.topics.iter().all(|topic| topic.bad.is_empty())
        };
        !self.metadata_missing && self.shards.iter().all(is_sound)
    }
}

/// Reads every live entry of a directory and checks it.
///
/// # Errors
/// If `dir` is no directory of an engine, or a file of it cannot be opened. Damage is not an error
/// here: it is in the report.
pub fn verify(dir: &Path) -> Result<DirReport, OpenError> {
    dump(dir, &mut |_| ControlFlow::Continue(()))
}

/// As [`verify`], and gives every entry to `each`: shard by shard, topic by topic, in order. `Break`
/// ends the dump; the report then covers what was looked at.
///
/// # Errors
/// As [`verify`].
pub fn dump(
    dir: &Path,
    each: &mut dyn FnMut(DumpedEntry<'_>) -> ControlFlow<()>,
) -> Result<DirReport, OpenError> {
    let failed = |source| OpenError::Directory {
        path: dir.to_owned(),
        source,
    };
    let shards = look_at_dir(dir)?;
    let names = Names::load(dir)?;
    let shards = shards.max(names.reached.len());
    if shards == 0 {
        let text = "there is no engine's data in it";
        return Err(failed(io::Error::new(io::ErrorKind::NotFound, text)));
    }
    let mut report = DirReport {
        metadata_missing: reached::lacks_metadata(dir, shards),
        ..DirReport::default()
    };
    for shard in 0..shards as u32 {
        let folder = shard_dir(dir, shard);
        if !folder.exists() && names.reached(shard) == 0 {
            continue;
        }
        let (log, flow) = look_at_shard(shard, folder, &names, each)?;
        report.shards.push(log);
        if flow.is_break() {
            break;
        }
    }
    Ok(report)
}

/// Names by shard-wide durable ids.
#[derive(Default)]
struct Names {
    topics: BTreeMap<(u32, u64), TopicRecord>,
    /// How far the log of each shard is known to have come; shorter if nothing is known of the rest.
    reached: Vec<u64>,
}

impl Names {
    fn reached(&self, shard: u32) -> u64 {
        self.reached.get(shard as usize).copied().unwrap_or(0)
    }

    /// Opening the store writes to it, so a copy is opened.
    fn load(dir: &Path) -> Result<Names, OpenError> {
        static COPIES: AtomicU64 = AtomicU64::new(0);
        let from = dir.join(META_FILE);
        if from.metadata().map_or(0, |file| file.len()) == 0 {
            return Ok(Names::default());
        }
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("pelton-inspect-{}-{number}.redb", std::process::id());
        let copy = std::env::temp_dir().join(name);
        // Bytes alone: a copy of a file that is read only would be so too.
        let pairs = fs::read(&from)
            .and_then(|bytes| fs::write(&copy, bytes))
            .and_then(|()| Kv::open(&copy))
            .and_then(|kv| kv.load())
            .map_err(|error| {
                let text = format!("{} (a copy of {})", error, from.display());
                OpenError::Metadata(io::Error::new(error.kind(), text))
            });
        let _ = fs::remove_file(&copy);
        let pairs = pairs?;
        let mut names = Names {
            reached: reached::load(&pairs, SHARDS_MAX),
            ..Names::default()
        };
        while names.reached.pop_if(|reached| *reached == 0).is_some() {}
        for (key, value) in pairs {
            if key.starts_with(TOPIC_PREFIX) {
                let record = TopicRecord::decode(&key, &value)?;
                names.topics.insert((record.shard, record.key), record);
            }
        }
        Ok(names)
    }
}

fn look_at_shard(
    shard: u32,
    dir: PathBuf,
    names: &Names,
    each: &mut dyn FnMut(DumpedEntry<'_>) -> ControlFlow<()>,
) -> Result<(ShardLog, ControlFlow<()>), OpenError> {
    let segments = match dir.exists() {
        true => list_segments(&dir)?,
        false => Vec::new(),
    };
    let mut report = ShardLog {
        shard,
        files: segments.len() as u64,
        bytes: segments.iter().map(|segment| segment.bytes).sum(),
        ..ShardLog::default()
    };
    let mut files = Segments {
        dir,
        open: BTreeMap::new(),
    };
    let options = Options {
        log_id: 1,
        reached: names.reached(shard),
        accept_loss: true,
        ..Options::default()
    };
    let recovered = Log::recover(options, &segments, &mut |segment, offset, into| {
        files.read(segment, offset, into)
    });
    let Recovered {
        mut log,
        repairs,
        cursors,
        topics,
        report: found,
    } = match recovered {
        Ok(recovered) => recovered,
        Err(error) => {
            report.error = Some(error);
            report.dir = files.dir;
            return Ok((report, ControlFlow::Continue(())));
        }
    };
    (report.found, report.repairs) = (found, repairs);
    let mut flow = ControlFlow::Continue(());
    for key in topics {
        let record = names.topics.get(&(shard, key.0));
        let slot = log.open_topic(key, Durability::Synced);
        let mut topic = topic_log(key, record, &cursors);
        let name = record.map_or("", |record| record.name.as_str());
        flow = read_topic(&mut log, slot, &mut files, &mut topic, &mut |block, at| {
            each(DumpedEntry {
                shard,
                topic: name,
                meta: block.meta(at),
                properties: block.properties(at),
                body: block.body(at),
            })
        });
        report.topics.push(topic);
        if flow.is_break() {
            break;
        }
    }
    report.dir = files.dir;
    Ok((report, flow))
}

fn topic_log(key: TopicKey, record: Option<&TopicRecord>, cursors: &[CursorState]) -> TopicLog {
    let name_of = |sub: u64| {
        let subs = record.map_or(&[][..], |record| &record.subscriptions);
        subs.iter()
            .find(|known| known.key == sub)
            .map(|known| known.name.clone())
    };
    let cursors = cursors
        .iter()
        .filter(|cursor| cursor.topic == key)
        .map(|cursor| CursorLog {
            key: cursor.sub.0,
            name: name_of(cursor.sub.0),
            mark_delete: cursor.mark_delete,
            acked_beyond: cursor.acked.iter().map(|(_, count)| count).sum(),
            partly_acked: cursor.partial.len() as u64,
        });
    TopicLog {
        key: key.0,
        name: record.map(|record| record.name.clone()),
        cursors: cursors.collect(),
        ..TopicLog::default()
    }
}

fn read_topic(
    log: &mut Log,
    slot: TopicSlot,
    files: &mut Segments,
    topic: &mut TopicLog,
    each: &mut dyn FnMut(&Block, u32) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let (first, end) = (log.first(slot), log.end(slot));
    for ordinal in first..end {
        if (ordinal - first).is_multiple_of(TRIM_EVERY) {
            // In memory only: what a trim would do to the files is never carried out.
            log.trim(slot, ordinal);
        }
        loop {
            match log.locate(slot, ordinal) {
                Place::Memory(block, at) => {
                    topic.count(block.meta(at));
                    each(block, at)?;
                    break;
                }
                Place::OnDisk | Place::Reading => {
                    if !fetch(log, slot, ordinal, files) {
                        topic.bad.extend(log.position(slot, ordinal));
                        break;
                    }
                }
                Place::Failed => {
                    topic.bad.extend(log.position(slot, ordinal));
                    break;
                }
                Place::Gone => break,
            }
        }
    }
    log.trim(slot, end);
    ControlFlow::Continue(())
}

/// Reads what the log wants for an entry. False if it got nowhere.
fn fetch(log: &mut Log, slot: TopicSlot, ordinal: u64, files: &mut Segments) -> bool {
    if matches!(
        log.fetch(slot, ordinal, READ_ENTRIES, READ_AHEAD_BYTES),
        Fetch::NoBuffer
    ) {
        log.trim(slot, ordinal);
        if matches!(log.fetch(slot, ordinal, 1, 0), Fetch::NoBuffer) {
            return false;
        }
    }
    let mut reads = 0;
    while let Some(op) = log.poll_op() {
        // Anything else (new spares, say) stays undone.
        if let DiskOpKind::Read {
            segment,
            offset,
            mut buffer,
            ..
        } = op.kind
        {
            let result = files.read(segment, offset, buffer.as_mut_slice());
            log.on_done(DiskDone {
                id: op.id,
                result,
                buffer: Some(buffer),
            });
            reads += 1;
        }
    }
    while log.poll_event().is_some() {}
    reads > 0
}

impl TopicLog {
    fn count(&mut self, meta: &EntryMeta) {
        self.entries += 1;
        self.messages += u64::from(meta.messages);
        self.bytes += u64::from(meta.payload_bytes());
        self.timed += u64::from(meta.deliver_at_ms | meta.deadline_ms != 0);
        match self.runs.last_mut() {
            Some(run) if meta.position.is_behind(run.first, run.entries) => {
                run.entries += 1;
            }
            _ => self.runs.push(EntryRun {
                first: meta.position,
                entries: 1,
            }),
        }
    }
}

/// The files of a shard's folder, opened to read when first asked for.
struct Segments {
    dir: PathBuf,
    open: BTreeMap<SegmentId, SegmentFile>,
}

impl Segments {
    fn read(
        &mut self,
        segment: SegmentId,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, DiskError> {
        let read = open_cached(&mut self.open, &self.dir, segment)
            .and_then(|file| file.read_at(offset, into));
        read.map_err(|error| error_of(&error, format!("read {segment} at {offset}: {error}")))
    }
}
