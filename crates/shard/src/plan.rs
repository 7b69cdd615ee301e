//! What is decided before a thread is started: the directory, its lock, the driver, who owns what.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, ThreadId};

use pelton_broker::storage::Options as LogOptions;
use pelton_broker::{TOPIC_PREFIX, TopicRecord};
use pelton_sys::{
    Clock, DirLock, DiskPlan, IoPool, Kv, LOCK_FILE, SpinInput, SpinVerdict, cpus_allowed,
    pool_threads, quota, raise_open_files, spin_verdict, sync_dir,
};

use crate::error::OpenError;
use crate::mesh::mesh;
use crate::port::{ShardHandle, Shared};
use crate::reached;
use crate::routes::Routes;
use crate::runtime::{Ends, Runtime, TakeOnce};
use crate::spawn::{EngineOptions, SHARDS_MAX};
use crate::start::{OnDisk, Seed};

/// Keys and values of the metadata.
pub(crate) type Records = Vec<(String, Vec<u8>)>;

/// Everything that is decided before a thread is started.
pub(crate) struct Plan {
    pub(crate) options: EngineOptions,
    pub(crate) resources: Arc<Resources>,
    on_disk: Option<OnDisk>,
    routes: Arc<Routes>,
    /// Metadata of each shard.
    records: Vec<Records>,
    /// How far the log of each shard is known to have come.
    reached: Vec<u64>,
    verdict: SpinVerdict,
    clock: Clock,
    shareds: Vec<Arc<Shared>>,
    notes: Vec<String>,
}

/// What shards share and the last of them lets go of.
#[derive(Debug)]
pub(crate) struct Resources {
    /// `None` in memory.
    pub(crate) on_disk: Option<DiskResources>,
}

/// The same of an engine with a directory: its lock is let go last.
#[derive(Debug)]
pub(crate) struct DiskResources {
    pub(crate) kv: Kv,
    pub(crate) pool: IoPool,
    _lock: DirLock,
}

impl Plan {
    pub(crate) fn make(mut options: EngineOptions) -> Result<Plan, OpenError> {
        check(&options)?;
        raise_open_files();
        if options.log.log_id == 0 {
            options.log.log_id = random_id();
        }
        let (resources, on_disk, pairs) = match &options.dir {
            None => (None, None, Vec::new()),
            Some(dir) => {
                let lock = take_dir(dir, options.shards)?;
                let plan = DiskPlan::decide(options.disk, options.shards)?;
                let path = dir.join(META_FILE);
                if reached::lacks_metadata(dir, options.shards) {
                    return Err(OpenError::NoMetadata { path });
                }
                let kv = Kv::open(&path).map_err(OpenError::metadata)?;
                let pairs = kv.load().map_err(OpenError::Metadata)?;
                let pool = IoPool::new(pool_threads(options.shards)).map_err(OpenError::Pool)?;
                let resources = DiskResources {
                    kv,
                    pool,
                    _lock: lock,
                };
                let dir = dir.clone();
                (Some(resources), Some(OnDisk { dir, plan }), pairs)
            }
        };
        let reached = reached::load(&pairs, options.shards);
        let (routes, records) = split(pairs, options.shards)?;
        let allowed = cpus_allowed().len();
        let verdict = spin_verdict(&SpinInput {
            shards: options.shards,
            polling_consumers: 0,
            consumer_shares_cpu: false,
            cpus_allowed: allowed,
            quota_milli_cpus: quota().map(|quota| quota.milli_cpus),
        });
        let mut notes = vec![format!("spinning: {verdict}")];
        if options.pin && allowed < options.shards {
            let shards = options.shards;
            notes.push(format!(
                "not pinned: {shards} shards on {allowed} allowed CPUs"
            ));
            options.pin = false;
        }
        Ok(Plan {
            options,
            resources: Arc::new(Resources { on_disk: resources }),
            on_disk,
            routes: Arc::new(routes),
            records,
            reached,
            verdict,
            clock: Clock::new(),
            shareds: Vec::new(),
            notes,
        })
    }

    pub(crate) fn seeds(&mut self) -> Vec<Seed> {
        let options = &self.options;
        let slots = (options.control_slots, options.data_slots);
        let mut lanes = Vec::new();
        for index in 0..options.shards {
            let (shared, receiver) = Shared::new(index as u32, options.shards, slots);
            self.shareds.push(shared);
            lanes.push(receiver);
        }
        let cpus: Vec<usize> = if options.pin {
            cpus_allowed().iter().collect()
        } else {
            Vec::new()
        };
        let ends = mesh(&self.shareds)
            .into_iter()
            .zip(lanes)
            .zip(std::mem::take(&mut self.records));
        ends.enumerate()
            .map(|(index, (((outbox, peers), lanes), records))| Seed {
                shared: Arc::clone(&self.shareds[index]),
                routes: Arc::clone(&self.routes),
                clock: self.clock.clone(),
                lanes,
                outbox,
                peers,
                records,
                on_disk: self.on_disk.clone(),
                log: LogOptions {
                    reached: self.reached[index],
                    ..options.log.clone()
                },
                idle: options.idle,
                verdict: self.verdict,
                cpu: cpus.get(index).copied(),
                notes: self.notes.clone(),
            })
            .collect()
    }

    pub(crate) fn into_runtime(
        self,
        ends: Vec<Ends>,
        threads: Vec<JoinHandle<()>>,
        driven_by: Option<ThreadId>,
    ) -> Runtime {
        Runtime {
            handles: self
                .shareds
                .into_iter()
                .map(|shared| ShardHandle {
                    shared,
                    clock: self.clock.clone(),
                })
                .collect(),
            routes: self.routes,
            clock: self.clock,
            dir: self.options.dir,
            disk: self.on_disk.map(|disk| disk.plan.report().clone()),
            notes: self.notes,
            ends,
            threads: TakeOnce::new(threads),
            resources: TakeOnce::new(self.resources),
            driven_by,
            first_report: OnceLock::new(),
        }
    }
}

pub(crate) const META_FILE: &str = "meta.redb";

/// What a server keeps in the data directory for itself, e.g. schemas. An engine leaves it alone.
pub const SERVER_FILE: &str = "server.redb";

fn check(options: &EngineOptions) -> Result<(), OpenError> {
    let bad = |text: String| Err(OpenError::Options(text));
    if !(1..=SHARDS_MAX).contains(&options.shards) {
        return bad(format!(
            "shards is 1 to {SHARDS_MAX}, not {}",
            options.shards
        ));
    }
    for (name, slots) in [
        ("control_slots", options.control_slots),
        ("data_slots", options.data_slots),
    ] {
        if slots < 2 || !slots.is_power_of_two() {
            return bad(format!("{name} is a power of two from 2 on, not {slots}"));
        }
    }
    options.log.check().or_else(bad)
}

/// Makes the directory if there is none, takes its lock, and looks at what is in it.
fn take_dir(dir: &Path, shards: usize) -> Result<DirLock, OpenError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| OpenError::Directory { path, source }
    };
    if !dir.exists() {
        fs::create_dir_all(dir).map_err(failed(dir))?;
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_dir(parent.unwrap_or(Path::new("."))).map_err(failed(dir))?;
    }
    // Foreign files first: a wrong directory is left as it was, without even a lock file.
    let found = look_at_dir(dir)?;
    let lock = DirLock::take(dir)?;
    if found > shards {
        return Err(OpenError::TooFewShards {
            found,
            asked: shards,
        });
    }
    for index in 0..shards {
        let shard = crate::disk::shard_dir(dir, index as u32);
        if !shard.exists() {
            fs::create_dir(&shard).map_err(failed(&shard))?;
        }
    }
    sync_dir(dir).map_err(failed(dir))?;
    Ok(lock)
}

/// How many shards a directory holds. Hidden files and `lost+found` are nobody's business.
pub(crate) fn look_at_dir(dir: &Path) -> Result<usize, OpenError> {
    let failed = |source| OpenError::Directory {
        path: dir.to_owned(),
        source,
    };
    let mut shards = 0;
    for entry in fs::read_dir(dir).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let known = [META_FILE, SERVER_FILE, LOCK_FILE];
        if known.contains(&&*name) || is_ignored(&name) {
            continue;
        }
        match name
            .strip_prefix("shard-")
            .and_then(|index| index.parse::<usize>().ok())
        {
            Some(index) if index < SHARDS_MAX => shards = shards.max(index + 1),
            _ => return Err(OpenError::Foreign { path: entry.path() }),
        }
    }
    Ok(shards)
}

pub(crate) fn is_ignored(name: &str) -> bool {
    name.starts_with('.') || name == "lost+found"
}

/// Which shard each record belongs to; those of no topic go to all.
fn split(pairs: Records, shards: usize) -> Result<(Routes, Vec<Records>), OpenError> {
    let mut known = BTreeMap::new();
    let mut records = vec![Vec::new(); shards];
    for (key, value) in pairs {
        if !key.starts_with(TOPIC_PREFIX) {
            records
                .iter_mut()
                .for_each(|shard| shard.push((key.clone(), value.clone())));
            continue;
        }
        let record = TopicRecord::decode(&key, &value)?;
        let Some(shard) = records.get_mut(record.shard as usize) else {
            let found = record.shard as usize + 1;
            return Err(OpenError::TooFewShards {
                found,
                asked: shards,
            });
        };
        known.insert(record.name.into_boxed_str(), record.shard);
        shard.push((key, value));
    }
    Ok((Routes::new(shards as u32, known), records))
}

/// An identity for a new log: what the standard library seeds its hash maps with, from the kernel,
/// with the time and the process mixed in.
fn random_id() -> u128 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let half = |salt: u64| {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u64(salt);
        hasher.write_u64(Clock::new().wall_ms());
        hasher.write_u32(std::process::id());
        hasher.finish()
    };
    (u128::from(half(1)) << 64) | u128::from(half(2)) | 1
}
