//! Carries out what the log and the metadata ask of the disk, and says how it ended.
//!
//! Writes are done inline and answered at once (`spec/runtime.md` 3.4); commits, reads and syncs go to
//! the driver, file work and metadata to the I/O pool. Buffers change hands without copying.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pelton_broker::storage::{
    DiskDone, DiskError, DiskOp, DiskOpKind, Fill as LogFill, PageBuf, SegmentId,
};
use pelton_broker::{MetaDone, MetaOp};
use pelton_metrics::{Counter, ShardMetrics};
use pelton_sys::{
    Access, Completion, Disk, FileId, FileTask, Fill, IoFault, Kv, KvBatch, KvWrite, Memory, Op,
    Shutdown,
};

/// Segments are filled no faster than this, so that commits do not wait behind them (3.2).
const SPARE_FILL_BYTES_PER_S: u64 = 50_000_000;
/// Completions taken in one turn, about.
const COMPLETIONS_PER_TURN_MAX: usize = 256;

/// The disk of one shard; without one only metadata is asked for, and answered at once.
#[derive(Debug)]
pub(crate) struct DiskSide {
    files: Option<Files>,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    /// Operations the driver had no room for, oldest first.
    waiting: VecDeque<(u32, Op)>,
    /// Metadata transactions, done one after the other; the first may be in flight.
    meta: VecDeque<MetaOp>,
    meta_in_flight: bool,
    /// Answers that need no wait.
    done: VecDeque<Answer>,
    /// Completions of one look; emptied after it.
    ended: Vec<Completion>,
    /// Why no segment could be made, if the last try failed and not for want of space.
    no_segment: Option<String>,
    /// Totals of the driver as last asked for.
    counted: DriverCounts,
}

#[derive(Debug)]
struct Files {
    disk: Disk,
    /// Folder of the segments.
    dir: PathBuf,
    kv: Kv,
}

#[derive(Debug)]
struct Flight {
    /// Number in the log, or the token of a metadata transaction.
    id: u64,
    kind: Kind,
    submitted_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Commit(SegmentId),
    Sync(SegmentId),
    Read(SegmentId),
    /// When it is done, the file is opened: it may be written at any time from then on.
    Make(SegmentId),
    Task,
    Meta,
}

/// Kinds of operations in flight, as far as the idle policy cares.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InFlight {
    /// Something that a thread of ours or of the ring carries out until it is durable.
    pub(crate) sync: bool,
    /// A commit that the ring's kernel side carries out.
    pub(crate) commit: bool,
    pub(crate) reads: bool,
}

/// What the driver counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DriverCounts {
    pub(crate) enters: u64,
    pub(crate) overflows: u64,
    pub(crate) short_transfers: u64,
}

/// What the core is told.
#[derive(Debug)]
pub(crate) enum Answer {
    Disk(DiskDone),
    Meta(MetaDone),
}

impl DiskSide {
    /// Of an engine in memory.
    pub(crate) fn none() -> DiskSide {
        DiskSide::of(None)
    }

    /// Over a disk in which every segment of `dir` is open already.
    pub(crate) fn new(disk: Disk, dir: PathBuf, kv: Kv) -> DiskSide {
        DiskSide::of(Some(Files { disk, dir, kv }))
    }

    fn of(files: Option<Files>) -> DiskSide {
        DiskSide {
            files,
            flights: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            meta: VecDeque::new(),
            meta_in_flight: false,
            done: VecDeque::new(),
            ended: Vec::new(),
            no_segment: None,
            counted: DriverCounts::default(),
        }
    }

    /// Starts an operation of the log, or does it.
    pub(crate) fn carry_out(&mut self, op: DiskOp, now_ns: u64, metrics: &mut ShardMetrics) {
        let DiskOp { id, kind } = op;
        let counters = &mut metrics.counters;
        let Some(files) = self.files.as_mut() else {
            debug_assert!(false, "a log in memory asked for the disk: {kind:?}");
            return;
        };
        let path = |segment: SegmentId| files.dir.join(segment.to_string());
        let (kind, op) = match kind {
            DiskOpKind::Write {
                segment,
                offset,
                buffer,
            } => {
                counters.increment(Counter::DiskWrites);
                let result = files
                    .disk
                    .write_at(FileId(segment.0), offset, buffer.as_slice());
                match &result {
                    Ok(bytes) => counters.add(Counter::BytesWritten, *bytes as u64),
                    Err(_) => counters.increment(Counter::DiskErrors),
                }
                let result = result.map_err(|error| self.disk_error("write to", segment, &error));
                self.done.push_back(Answer::Disk(DiskDone {
                    id,
                    result,
                    buffer: Some(buffer),
                }));
                return;
            }
            DiskOpKind::Commit {
                segment,
                offset,
                buffer,
            } => {
                counters.increment(Counter::DiskWrites);
                counters.increment(Counter::DiskSyncs);
                let (file, memory) = (FileId(segment.0), memory_of(buffer));
                (
                    Kind::Commit(segment),
                    Op::Commit {
                        file,
                        offset,
                        memory,
                    },
                )
            }
            DiskOpKind::Sync { segment } => {
                counters.increment(Counter::DiskSyncs);
                (
                    Kind::Sync(segment),
                    Op::Sync {
                        file: FileId(segment.0),
                    },
                )
            }
            DiskOpKind::Read {
                segment,
                offset,
                buffer,
                direct,
            } => {
                counters.increment(Counter::DiskReads);
                if !direct {
                    counters.increment(Counter::ReadsOfOpenSegment);
                }
                let len = buffer.len() as u32;
                let (file, memory) = (FileId(segment.0), memory_of(buffer));
                (
                    Kind::Read(segment),
                    Op::Read {
                        file,
                        offset,
                        len,
                        memory,
                        direct,
                    },
                )
            }
            DiskOpKind::Create {
                segment,
                bytes,
                header,
                fill,
            } => {
                let (path, header) = (path(segment), memory_of(header));
                let fill = match fill {
                    LogFill::Zeros => Fill::Zeros { bytes_per_s: 0 },
                    LogFill::ZerosPaced => Fill::Zeros {
                        bytes_per_s: SPARE_FILL_BYTES_PER_S,
                    },
                    LogFill::Allocate => Fill::Allocate,
                };
                (
                    Kind::Make(segment),
                    task(FileTask::Create {
                        path,
                        bytes,
                        header,
                        fill,
                    }),
                )
            }
            DiskOpKind::Recycle { from, to, header } => {
                let (from_path, to_path) = (path(from), path(to));
                let header = memory_of(header);
                files.disk.close_file(FileId(from.0));
                (
                    Kind::Make(to),
                    task(FileTask::Recycle {
                        from_path,
                        to_path,
                        header,
                    }),
                )
            }
            DiskOpKind::Prewrite {
                segment,
                offset,
                bytes,
            } => (
                Kind::Task,
                task(FileTask::Prewrite {
                    path: path(segment),
                    offset,
                    bytes,
                    bytes_per_s: SPARE_FILL_BYTES_PER_S,
                }),
            ),
            DiskOpKind::Unlink { segment } => {
                let path = path(segment);
                files.disk.close_file(FileId(segment.0));
                (Kind::Task, task(FileTask::Unlink { path }))
            }
            DiskOpKind::Forget { segment } => (
                Kind::Task,
                task(FileTask::Forget {
                    file: FileId(segment.0),
                }),
            ),
        };
        if matches!(kind, Kind::Make(_) | Kind::Task) {
            counters.increment(Counter::DiskTasks);
        }
        let user = self.insert(Flight {
            id,
            kind,
            submitted_ns: now_ns,
        });
        self.submit(user, op);
    }

    /// Queues a metadata transaction behind the earlier ones.
    pub(crate) fn meta(&mut self, op: MetaOp, now_ns: u64) {
        if self.files.is_none() {
            self.done.push_back(Answer::Meta(MetaDone {
                token: op.token,
                result: Ok(()),
            }));
            return;
        }
        self.meta.push_back(op);
        self.start_meta(now_ns);
    }

    /// The next answer that needs no wait.
    pub(crate) fn next_done(&mut self) -> Option<Answer> {
        self.done.pop_front()
    }

    /// Submits what waits, and moves what has ended to [`DiskSide::next_done`].
    pub(crate) fn reap(&mut self, now_ns: u64, metrics: &mut ShardMetrics) {
        let DiskSide {
            files: Some(files),
            waiting,
            ended,
            ..
        } = self
        else {
            return;
        };
        while let Some((user, op)) = waiting.pop_front() {
            if let Err(op) = files.disk.submit(u64::from(user), op) {
                waiting.push_front((user, op));
                break;
            }
        }
        files.disk.reap(COMPLETIONS_PER_TURN_MAX, |completion| {
            ended.push(completion)
        });
        if ended.is_empty() {
            return;
        }
        let mut ended = std::mem::take(&mut self.ended);
        for completion in ended.drain(..) {
            self.end(completion, now_ns, metrics);
        }
        self.ended = ended;
        self.start_meta(now_ns);
    }

    /// Hands what this turn submitted to the kernel.
    pub(crate) fn enter(&mut self) {
        if let Some(files) = &mut self.files {
            files.disk.enter();
        }
    }

    /// Whether there is something to submit or reap now: part of the look before a sleep.
    pub(crate) fn work_pending(&mut self) -> bool {
        !self.done.is_empty()
            || self
                .files
                .as_mut()
                .is_some_and(|files| files.disk.work_pending())
    }

    /// Why no segment can be made, if it is not for want of space: to the log both are a full disk.
    pub(crate) fn no_segment(&self) -> Option<&str> {
        self.no_segment.as_deref()
    }

    /// From now on completions end the sleep.
    pub(crate) fn arm_sleep(&mut self) {
        if let Some(files) = &mut self.files {
            files.disk.arm_sleep();
        }
    }

    /// After the sleep.
    pub(crate) fn disarm(&mut self) {
        if let Some(files) = &mut self.files {
            files.disk.disarm();
        }
    }

    /// What is in flight that a sleep would wait for.
    pub(crate) fn in_flight(&self) -> InFlight {
        self.files
            .as_ref()
            .map_or(InFlight::default(), |files| InFlight {
                sync: files.disk.sync_in_flight(),
                commit: files.disk.commit_in_flight(),
                reads: files.disk.reads_in_flight() > 0,
            })
    }

    /// What the driver counted since the last call.
    pub(crate) fn driver_counts(&mut self) -> DriverCounts {
        let Some(files) = &mut self.files else {
            return DriverCounts::default();
        };
        let stats = files.disk.stats();
        let totals = DriverCounts {
            enters: stats.enters_total,
            overflows: stats.overflow_total,
            short_transfers: stats.short_transfers_total,
        };
        let before = std::mem::replace(&mut self.counted, totals);
        DriverCounts {
            enters: totals.enters - before.enters,
            overflows: totals.overflows - before.overflows,
            short_transfers: totals.short_transfers - before.short_transfers,
        }
    }

    /// The longest sleep allowed now, see [`Disk::sleep_max_ns`].
    pub(crate) fn sleep_max_ns(&self) -> Option<u64> {
        self.files.as_ref()?.disk.sleep_max_ns()
    }

    /// Ends everything, waiting for what is in flight for at most `grace`.
    pub(crate) fn kv(&self) -> Option<&Kv> {
        self.files.as_ref().map(|files| &files.kv)
    }

    pub(crate) fn shutdown(
        &mut self,
        grace: Duration,
        now_ns: u64,
        metrics: &mut ShardMetrics,
    ) -> Shutdown {
        let Some(files) = &mut self.files else {
            return Shutdown {
                completed: 0,
                leaked: 0,
            };
        };
        let mut ended = Vec::new();
        let shutdown = files
            .disk
            .shutdown(grace, |completion| ended.push(completion));
        for completion in ended {
            self.end(completion, now_ns, metrics);
        }
        shutdown
    }

    fn disk_error(&self, what: &str, segment: SegmentId, error: &io::Error) -> DiskError {
        let dir = self.files.as_ref().map(|files| files.dir.as_path());
        let path = dir.unwrap_or(Path::new("")).join(segment.to_string());
        error_of(error, format!("{what} {}: {error}", path.display()))
    }

    fn submit(&mut self, user: u32, op: Op) {
        let Some(files) = &mut self.files else { return };
        if !self.waiting.is_empty() {
            self.waiting.push_back((user, op));
        } else if let Err(op) = files.disk.submit(u64::from(user), op) {
            self.waiting.push_back((user, op));
        }
    }

    fn start_meta(&mut self, now_ns: u64) {
        let Some(files) = &self.files else { return };
        if self.meta_in_flight {
            return;
        }
        let Some(MetaOp { token, writes }) = self.meta.pop_front() else {
            return;
        };
        let writes = writes
            .into_iter()
            .map(|(key, value)| KvWrite { key, value })
            .collect();
        let op = task(FileTask::Kv(KvBatch {
            kv: files.kv.clone(),
            writes,
        }));
        self.meta_in_flight = true;
        let user = self.insert(Flight {
            id: token,
            kind: Kind::Meta,
            submitted_ns: now_ns,
        });
        self.submit(user, op);
    }

    fn insert(&mut self, flight: Flight) -> u32 {
        match self.free.pop() {
            Some(user) => {
                self.flights[user as usize] = Some(flight);
                user
            }
            None => {
                self.flights.push(Some(flight));
                u32::try_from(self.flights.len() - 1).expect("far fewer than the disk takes")
            }
        }
    }

    fn end(&mut self, completion: Completion, now_ns: u64, metrics: &mut ShardMetrics) {
        let Completion {
            user,
            result,
            memory,
        } = completion;
        let slot = usize::try_from(user).unwrap_or(usize::MAX);
        let Some(Flight {
            id,
            kind,
            submitted_ns,
        }) = self.flights.get_mut(slot).and_then(Option::take)
        else {
            metrics.counters.increment(Counter::StaleCompletions);
            return;
        };
        self.free.push(user as u32);
        let took_ns = now_ns.saturating_sub(submitted_ns);
        match kind {
            Kind::Commit(_) | Kind::Sync(_) => metrics.sync.record(took_ns),
            Kind::Read(_) => metrics.read.record(took_ns),
            _ => {}
        }
        let result = match kind {
            Kind::Meta => {
                self.meta_in_flight = false;
                let result = result.map(drop).map_err(|error| error.to_string());
                self.done
                    .push_back(Answer::Meta(MetaDone { token: id, result }));
                return;
            }
            // A file that ends early is not the driver's business: the log asked for so much.
            Kind::Read(_) => match result {
                Err(error) => match IoFault::of(&error) {
                    Some(IoFault::Truncated { got, .. }) => Ok(got),
                    _ => Err(error),
                },
                ok => ok,
            },
            Kind::Make(segment) => result.and_then(|bytes| {
                let files = self.files.as_mut().expect("a completion of its disk");
                let path = files.dir.join(segment.to_string());
                let access = Access::ReadWrite;
                files
                    .disk
                    .open_file(FileId(segment.0), &path, access, true)
                    .map(|()| bytes)
            }),
            Kind::Commit(_) | Kind::Sync(_) | Kind::Task => result,
        };
        match (&result, kind) {
            (Ok(bytes), Kind::Read(_)) => {
                metrics.counters.add(Counter::BytesRead, *bytes as u64);
            }
            (Ok(bytes), Kind::Commit(_)) => {
                metrics.counters.add(Counter::BytesWritten, *bytes as u64);
            }
            (Ok(_), _) => {}
            (Err(_), _) => metrics.counters.increment(Counter::DiskErrors),
        }
        let result = result.map_err(|error| match kind {
            Kind::Commit(segment) => self.disk_error("commit to", segment, &error),
            Kind::Sync(segment) => self.disk_error("sync", segment, &error),
            Kind::Read(segment) => self.disk_error("read", segment, &error),
            // They name their file.
            Kind::Make(_) | Kind::Task | Kind::Meta => error_of(&error, error.to_string()),
        });
        if let Kind::Make(_) = kind {
            self.no_segment = match &result {
                Err(error) if !error.is_full() => Some(error.text.clone()),
                _ => None,
            };
        }
        let buffer = memory.map(buffer_of);
        self.done
            .push_back(Answer::Disk(DiskDone { id, result, buffer }));
    }
}

fn task(task: FileTask) -> Op {
    Op::Task(Box::new(task))
}

fn memory_of(buffer: PageBuf) -> Memory {
    let (bytes, start, len) = buffer.into_parts();
    Memory::from_parts(bytes, start, len)
}

fn buffer_of(memory: Memory) -> PageBuf {
    let (bytes, start, len) = memory.into_parts();
    PageBuf::from_parts(bytes, start, len)
}

/// The log tells "full" and "again" from other failures by number; an error that has been given a
/// text has lost it, and keeps only its kind.
pub(crate) fn error_of(error: &io::Error, text: String) -> DiskError {
    let errno = error.raw_os_error().unwrap_or(match error.kind() {
        io::ErrorKind::StorageFull => DiskError::ENOSPC,
        io::ErrorKind::QuotaExceeded => DiskError::EDQUOT,
        io::ErrorKind::Interrupted => DiskError::EINTR,
        io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => DiskError::EAGAIN,
        _ => DiskError::EIO,
    });
    DiskError { errno, text }
}

/// Name of the folder of a shard's segments.
pub(crate) fn shard_dir(dir: &Path, shard: u32) -> PathBuf {
    dir.join(format!("shard-{shard}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_goes_to_the_disk_and_back_without_a_copy() {
        let mut buffer = PageBuf::new(8_192);
        buffer.as_mut_slice().fill(7);
        let place = buffer.as_slice().as_ptr();
        let memory = memory_of(buffer);
        assert_eq!(memory.as_slice().as_ptr(), place);
        let buffer = buffer_of(memory);
        assert_eq!((buffer.as_slice().as_ptr(), buffer.len()), (place, 8_192));
    }

    #[test]
    fn a_full_disk_is_recognised_although_the_error_has_only_its_kind_left() {
        let error = io::Error::new(io::ErrorKind::StorageFull, "create seg-1: no space");
        assert!(error_of(&error, error.to_string()).is_full());
        let error = io::Error::from_raw_os_error(5);
        assert_eq!(error_of(&error, error.to_string()).errno, DiskError::EIO);
    }

    #[test]
    fn an_operation_that_fails_later_says_what_it_was_and_on_which_file() {
        let dir = tempfile::tempdir().unwrap();
        let plan = pelton_sys::DiskPlan::decide(pelton_sys::DiskChoice::Pread, 1).unwrap();
        let pool = pelton_sys::IoPool::new(2).unwrap();
        let poller = pelton_sys::Poller::new().unwrap();
        let disk = Disk::open(&plan, &pool, &poller.notifier()).unwrap();
        let kv = Kv::open(&dir.path().join("kv")).unwrap();
        let mut side = DiskSide::new(disk, dir.path().to_owned(), kv);
        let segment = SegmentId(7); // which nobody has opened
        let ops = [
            ("sync", DiskOpKind::Sync { segment }),
            (
                "read",
                DiskOpKind::Read {
                    segment,
                    offset: 0,
                    buffer: PageBuf::new(4_096),
                    direct: true,
                },
            ),
            (
                "commit to",
                DiskOpKind::Commit {
                    segment,
                    offset: 0,
                    buffer: PageBuf::new(4_096),
                },
            ),
        ];
        let mut metrics = ShardMetrics::new();
        for (what, kind) in ops {
            side.carry_out(DiskOp { id: 1, kind }, 0, &mut metrics);
            side.enter();
            side.reap(0, &mut metrics);
            let Some(Answer::Disk(done)) = side.next_done() else {
                panic!("a {what} without a file is refused at once")
            };
            let text = done.result.unwrap_err().text;
            let path = dir.path().join("seg-0000000000000007.log");
            let start = format!("{what} {}: ", path.display());
            assert!(text.starts_with(&start), "{text}");
        }
    }
}
