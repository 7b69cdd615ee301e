//! Tests of the disk as a whole, on the ring, on the ring at step 3, and on the pread pool.

mod cases;
mod disk;
mod seccomp;
mod tasks;
mod uring;

use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{
    Access, Completion, Disk, DiskChoice, DiskPlan, FileId, FileTask, Fill, IoPool, Memory, Op,
    Poller,
};

/// Nothing a test waits for takes longer on a machine that works.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// A shard's part of this crate: its poller, its disk, a folder.
pub(super) struct World {
    pub(super) dir: TempDir,
    pub(super) poller: Poller,
    pub(super) disk: Disk,
    pub(super) name: &'static str,
}

/// Runs on the ring, on the ring at step 3, and on pread; says which are not to be had.
pub(super) fn on_every_driver(run: impl Fn(World)) {
    for plan in plans() {
        run(World::new(&plan.1, plan.0));
    }
}

pub(super) fn plans() -> Vec<(&'static str, DiskPlan)> {
    let pread = DiskPlan::decide(DiskChoice::Pread, 1).expect("always to be had");
    let mut plans = vec![("pread", pread)];
    match DiskPlan::decide(DiskChoice::Uring, 1) {
        Ok(plan) => {
            plans.push(("ring", plan.clone()));
            plans.push(("ring at step 3", plan.from_step(3)));
        }
        Err(error) => eprintln!("skipped on the ring: {error}"),
    }
    plans
}

/// The ring alone, or `None` with a line that says why.
pub(super) fn ring_plan() -> Option<DiskPlan> {
    DiskPlan::decide(DiskChoice::Uring, 1)
        .inspect_err(|error| eprintln!("skipped: {error}"))
        .ok()
}

impl World {
    pub(super) fn new(plan: &DiskPlan, name: &'static str) -> Self {
        let poller = Poller::new().expect("a poller");
        let pool = IoPool::new(4).expect("a pool");
        let disk = Disk::open(plan, &pool, &poller.notifier()).expect("a disk");
        let dir = tempfile::tempdir().expect("a folder");
        Self {
            dir,
            poller,
            disk,
            name,
        }
    }

    /// Writes a file and opens it as number `file`.
    pub(super) fn file(&mut self, file: u64, bytes: &[u8], direct: bool) {
        let path = self.dir.path().join(file.to_string());
        std::fs::write(&path, bytes).expect("a file");
        std::fs::File::open(&path)
            .and_then(|file| file.sync_all())
            .expect("synced");
        self.open(file, &path, direct);
    }

    pub(super) fn open(&mut self, file: u64, path: &Path, direct: bool) {
        self.disk
            .open_file(FileId(file), path, Access::ReadWrite, direct)
            .expect("opened");
    }

    pub(super) fn submit(&mut self, user: u64, op: Op) {
        if let Err(op) = self.disk.submit(user, op) {
            panic!("{}: {op:?} was not taken", self.name);
        }
    }

    /// Reaps until so many operations have ended, sleeping as a shard does (runtime 1.10).
    pub(super) fn finish(&mut self, count: usize) -> Vec<Completion> {
        let start = Instant::now();
        let mut all = Vec::new();
        while all.len() < count {
            self.disk.reap(256, |completion| all.push(completion));
            if all.len() >= count {
                break;
            }
            self.disk.arm_sleep();
            if !self.disk.work_pending() {
                // With faults that hold results back there is nothing to wait for.
                let wait_ns = if self.disk.faults.is_some() {
                    100_000
                } else {
                    5_000_000_000
                };
                let woken = self.poller.wait(Some(wait_ns)).expect("a wait");
                let lost = woken.timed_out && wait_ns > 1_000_000;
                assert!(!lost, "{}: no wake in 5 s, {:?}", self.name, self.disk);
            }
            self.disk.disarm();
            assert!(
                start.elapsed() < PATIENCE,
                "{}: {} of {count}",
                self.name,
                all.len()
            );
        }
        assert_eq!(all.len(), count, "{}", self.name);
        all
    }

    /// One operation, from submit to end.
    pub(super) fn one(&mut self, op: Op) -> Completion {
        self.submit(77, op);
        let mut all = self.finish(1);
        let completion = all.pop().expect("one");
        assert_eq!(completion.user, 77);
        completion
    }
}

pub(super) fn read(file: u64, offset: u64, len: usize, direct: bool) -> Op {
    let memory = Memory::new(len);
    let len = u32::try_from(len).expect("small");
    Op::Read {
        file: FileId(file),
        offset,
        len,
        memory,
        direct,
    }
}

pub(super) fn task(task: FileTask) -> Op {
    Op::Task(Box::new(task))
}

/// Bytes that differ from place to place.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 7 + at % 251) as u8).collect()
}

pub(super) fn create(path: &Path, bytes: u64, fill: Fill) -> FileTask {
    let mut header = Memory::new(4096);
    header.as_mut_slice().fill(9);
    FileTask::Create {
        path: path.to_owned(),
        bytes,
        header,
        fill,
    }
}
