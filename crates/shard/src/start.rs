//! Builds one shard on the thread that will run it: the kernel ties a ring to its maker.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pelton_broker::storage::{
    Log, Options as LogOptions, Recovered, Repair, SegmentId, SegmentInfo,
};
use pelton_broker::{Broker, Now, Options as BrokerOptions};
use pelton_sys::{
    Access, Clock, Disk, DiskPlan, FileId, Poller, SegmentFile, SpinVerdict, drop_page_cache, pin,
    sync_dir, zero_range,
};

use crate::consumers::{Consumers, Verdicts};
use crate::disk::{DiskSide, error_of, shard_dir};
use crate::error::OpenError;
use crate::idle::{Idle, Sleeper};
use crate::inbox::Inbox;
use crate::mesh::{FromPeer, Outbox};
use crate::plan::{DiskResources, Records, Resources, is_ignored};
use crate::port::{Lanes, Shared};
use crate::reached;
use crate::requests::Requests;
use crate::routes::Routes;
use crate::turn::{Shard, Wall};
use crate::watch::Watch;

/// What a shard is built from; it goes to the shard's thread.
#[derive(Debug)]
pub(crate) struct Seed {
    pub(crate) shared: Arc<Shared>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) clock: Clock,
    pub(crate) lanes: Lanes,
    pub(crate) outbox: Outbox,
    pub(crate) peers: Vec<Option<FromPeer>>,
    pub(crate) records: Records,
    /// Where and how durable topics are kept; `None` in memory.
    pub(crate) on_disk: Option<OnDisk>,
    pub(crate) log: LogOptions,
    pub(crate) idle: Idle,
    pub(crate) verdict: SpinVerdict,
    pub(crate) cpu: Option<usize>,
    pub(crate) notes: Vec<String>,
}

/// The directory of an engine, and the driver of its disk.
#[derive(Clone, Debug)]
pub(crate) struct OnDisk {
    pub(crate) dir: PathBuf,
    pub(crate) plan: DiskPlan,
}

/// Pins the thread, recovers the log, makes ring and poller.
pub(crate) fn build(seed: Seed, resources: &Resources) -> Result<Shard, OpenError> {
    let index = seed.shared.index;
    let start = |source: io::Error| OpenError::Start {
        shard: index,
        source,
    };
    let mut notes = seed.notes;
    if let Some(cpu) = seed.cpu {
        match pin(cpu) {
            Ok(()) => notes.push(format!("shard {index} is pinned to CPU {cpu}")),
            Err(error) => notes.push(format!("shard {index} is not pinned to CPU {cpu}: {error}")),
        }
    }
    let poller = Poller::new().map_err(start)?;
    let _ = seed.shared.notifier.set(poller.notifier());
    let options = BrokerOptions {
        shard: index,
        durable: seed.on_disk.is_some(),
    };
    let mut wall = Wall::new(&seed.clock);
    let (broker, disk) = match (&seed.on_disk, &resources.on_disk) {
        (Some(OnDisk { dir, plan }), Some(DiskResources { kv, pool, .. })) => {
            let dir = shard_dir(dir, index);
            let reached = seed.log.reached;
            let Recovered {
                log,
                cursors,
                report,
                ..
            } = recover(&dir, seed.log)?;
            notes.push(format!("shard {index} recovered: {report:?}"));
            if report.end != reached {
                reached::store(kv, index, report.end).map_err(OpenError::Metadata)?;
            }
            let mut disk = Disk::open(plan, pool, &poller.notifier()).map_err(start)?;
            notes.push(format!("shard {index}: {}", disk.report()));
            open_segments(&mut disk, &dir)?;
            let mono_ns = seed.clock.now_ns();
            let wall_ms = wall.at(mono_ns, &seed.clock);
            let now = Now { mono_ns, wall_ms };
            let mut broker = Broker::new(log, options);
            broker.restore(&seed.records, &cursors, now)?;
            (broker, DiskSide::new(disk, dir, kv.clone()))
        }
        _ => (
            Broker::new(Log::in_memory(seed.log), options),
            DiskSide::none(),
        ),
    };
    Ok(Shard {
        wall,
        inbox: Inbox::new(Arc::clone(&seed.shared), seed.lanes, seed.peers),
        shared: seed.shared,
        routes: seed.routes,
        clock: seed.clock,
        broker,
        consumers: Consumers::default(),
        requests: Requests::default(),
        disk,
        outbox: seed.outbox,
        resident: None,
        sleeper: Sleeper::new(seed.idle, seed.verdict, poller),
        watch: Watch::new(),
        stop: None,
        durable_topics: Vec::new(),
        verdicts: Verdicts::default(),
        entries_taken: 0,
        notes,
    })
}

/// Recovers the log in `dir` and carries out its repairs, in order.
fn recover(dir: &Path, options: LogOptions) -> Result<Recovered, OpenError> {
    let segments = list_segments(dir)?;
    let mut files = BTreeMap::new();
    for info in &segments {
        let path = dir.join(info.id.to_string());
        // After a failed sync the page cache holds what the disk does not: read from the disk.
        // Where the advice is not taken, nothing is lost but that.
        let _ = drop_page_cache(&path);
    }
    let mut read = |segment: SegmentId, offset: u64, into: &mut [u8]| {
        let file = open_cached(&mut files, dir, segment)
            .map_err(|error| error_of(&error, error.to_string()))?;
        file.read_at(offset, into).map_err(|error| {
            let text = format!("read {segment} at {offset}: {error}");
            error_of(&error, text)
        })
    };
    let recovered =
        Log::recover(options, &segments, &mut read).map_err(|source| OpenError::Recover {
            dir: dir.to_owned(),
            source,
        })?;
    drop(files);
    for repair in &recovered.repairs {
        repair_one(dir, repair)?;
    }
    Ok(recovered)
}

fn repair_one(dir: &Path, repair: &Repair) -> Result<(), OpenError> {
    let (Repair::Zero { segment, .. } | Repair::Sync(segment) | Repair::Unlink(segment)) = *repair;
    let path = dir.join(segment.to_string());
    let open = || SegmentFile::open(&path, Access::ReadWrite, false);
    let named = |what: &str, error: io::Error| {
        io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
    };
    let result = match *repair {
        Repair::Zero { offset, bytes, .. } => {
            open().and_then(|file| zero_range(&file, offset, bytes))
        }
        Repair::Sync(_) => {
            open().and_then(|file| file.sync_data().map_err(|error| named("sync", error)))
        }
        Repair::Unlink(_) => match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(named("unlink", error)),
            _ => sync_dir(dir),
        },
    };
    result.map_err(|source| OpenError::Repair { path, source })
}

/// Every segment file of a shard, by number. Anything else in its folder is foreign.
pub(crate) fn list_segments(dir: &Path) -> Result<Vec<SegmentInfo>, OpenError> {
    let failed = |source| OpenError::Directory {
        path: dir.to_owned(),
        source,
    };
    let mut segments = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if is_ignored(&name) {
            continue;
        }
        let Some(id) = segment_of(&name) else {
            return Err(OpenError::Foreign { path: entry.path() });
        };
        let bytes = entry.metadata().map_err(failed)?.len();
        segments.push(SegmentInfo { id, bytes });
    }
    segments.sort_by_key(|segment| segment.id);
    Ok(segments)
}

/// The number in a segment's file name; only the exact form counts.
fn segment_of(name: &str) -> Option<SegmentId> {
    let digits = name.strip_prefix("seg-")?.strip_suffix(".log")?;
    let id = SegmentId(u64::from_str_radix(digits, 16).ok()?);
    (id.to_string() == name).then_some(id)
}

/// A file of the folder, opened once, for reading.
pub(crate) fn open_cached<'a>(
    files: &'a mut BTreeMap<SegmentId, SegmentFile>,
    dir: &Path,
    segment: SegmentId,
) -> io::Result<&'a SegmentFile> {
    match files.entry(segment) {
        std::collections::btree_map::Entry::Occupied(file) => Ok(file.into_mut()),
        std::collections::btree_map::Entry::Vacant(place) => {
            let file = SegmentFile::open(&dir.join(segment.to_string()), Access::Read, false)?;
            Ok(place.insert(file))
        }
    }
}

/// What recovery left is open for the log from now on.
fn open_segments(disk: &mut Disk, dir: &Path) -> Result<(), OpenError> {
    for SegmentInfo { id, .. } in list_segments(dir)? {
        let path = dir.join(id.to_string());
        disk.open_file(FileId(id.0), &path, Access::ReadWrite, true)
            .map_err(|source| OpenError::Directory { path, source })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_name_of_a_segment_is_one() {
        assert_eq!(segment_of("seg-000000000000001f.log"), Some(SegmentId(31)));
        for name in [
            "seg-1f.log",
            "seg-000000000000001F.log",
            "seg-.log",
            "notes.txt",
            "seg-0000",
        ] {
            assert_eq!(segment_of(name), None, "{name}");
        }
    }

    #[test]
    fn a_foreign_file_beside_the_segments_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("seg-0000000000000002.log"), [0; 8]).unwrap();
        fs::write(dir.path().join(".hidden"), []).unwrap();
        let found = list_segments(dir.path()).unwrap();
        assert_eq!(
            found,
            [SegmentInfo {
                id: SegmentId(2),
                bytes: 8
            }]
        );
        fs::write(dir.path().join("notes.txt"), []).unwrap();
        let error = list_segments(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("notes.txt") && error.contains("the right directory"),
            "{error}"
        );
    }
}
