//! A file system in a loop file, whose power can be cut, and which can have less room than it says.
//!
//! A cut: the process is stopped, the backing file is copied (what the file system had not written yet
//! is not in it), and the copy takes the place of the original: mounted, its journal replays.
//!
//! Less room, as on a thin volume: the backing file is sparse and lies in a small tmpfs. Once that is
//! full, writes to blocks that were never written fail with EIO. They go to it page by page: of a longer
//! one that only begins before the end, the loop device would say that all of it was written (seen with
//! Linux 6.18: a short write of the backing file counts as a whole one).

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Size of the backing file: room for the segments of a few lives.
const DISK_BYTES: u64 = 256 << 20;

pub(crate) struct LoopDisk {
    work: tempfile::TempDir,
    mount: PathBuf,
    /// The backing file lies in a tmpfs of its own.
    thin: bool,
}

impl LoopDisk {
    /// Why this user or machine can have none, in a line; `None` if it can.
    pub(crate) fn missing() -> Option<&'static str> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let is_root = status
            .lines()
            .any(|line| line.starts_with("Uid:") && line.contains("\t0\t0"));
        if !is_root {
            Some("needs root to mount a loop file")
        } else if !Path::new("/dev/loop-control").exists() {
            Some("needs loop devices, and there is no /dev/loop-control")
        } else {
            None
        }
    }

    /// # Errors
    /// What went wrong, in a line.
    pub(crate) fn new() -> Result<Self, String> {
        Self::make(None)
    }

    /// With so many bytes behind the [`DISK_BYTES`] that it seems to have.
    pub(crate) fn thin(bytes: u64) -> Result<Self, String> {
        Self::make(Some(bytes))
    }

    fn make(thin_bytes: Option<u64>) -> Result<Self, String> {
        let work = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|e| e.to_string())?;
        if let Some(bytes) = thin_bytes {
            run(Command::new("mount")
                .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "tmpfs"])
                .arg(work.path()))?;
        }
        let disk = Self {
            mount: work.path().join("mount"),
            work,
            thin: thin_bytes.is_some(),
        };
        std::fs::create_dir(&disk.mount).map_err(|e| e.to_string())?;
        let image = std::fs::OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(disk.image());
        image
            .and_then(|file| file.set_len(DISK_BYTES))
            .map_err(|e| e.to_string())?;
        run(Command::new("mkfs.ext4")
            // Nothing is left for the kernel to write by itself.
            .args(["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"])
            // Whole pages, and room beside the journal on a thin disk.
            .args(["-b", "4096", "-J", "size=8"])
            .arg(disk.image()))?;
        disk.mount_image()?;
        if disk.thin {
            let limit = disk.device().join("queue/max_sectors_kb");
            std::fs::write(&limit, "4").map_err(|e| format!("write {}: {e}", limit.display()))?;
        }
        Ok(disk)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.mount
    }

    fn image(&self) -> PathBuf {
        self.work.path().join("disk.img")
    }

    fn copy(&self) -> PathBuf {
        self.work.path().join("cut.img")
    }

    fn mount_image(&self) -> Result<(), String> {
        run(Command::new("mount")
            .args(["-o", "loop"])
            .arg(self.image())
            .arg(&self.mount))
    }

    /// Makes what is mounted read-only (`ro`) or writable (`rw`).
    pub(crate) fn remount(&self, mode: &str) {
        run(Command::new("mount")
            .args(["-o", &format!("remount,{mode}")])
            .arg(&self.mount))
        .expect("it is mounted");
    }

    /// Gives a thin disk all the room it said it had, and mounts it afresh.
    pub(crate) fn heal(&self) {
        run(Command::new("mount")
            .args(["-o", &format!("remount,size={}", 2 * DISK_BYTES)])
            .arg(self.work.path()))
        .expect("a tmpfs grows");
        run(Command::new("umount").arg(&self.mount)).expect("nobody uses it");
        self.mount_image().expect("the journal replays");
    }

    /// Stops the process and takes the disk as it is at this instant.
    pub(crate) fn cut(&self, child: &Child) {
        run(Command::new("kill").args(["-STOP", &child.id().to_string()])).expect("it stops");
        // A copy takes its time, and is of no instant if the disk was written meanwhile.
        loop {
            let before = self.writes();
            std::fs::copy(self.image(), self.copy()).expect("the disk is copied");
            if self.writes() == before {
                return;
            }
        }
    }

    /// What the kernel shows of the loop device.
    fn device(&self) -> PathBuf {
        let mut list = Command::new("losetup");
        list.args(["--noheadings", "--output", "NAME", "--associated"]);
        let output = list.arg(self.image()).output().expect("losetup runs");
        let name = String::from_utf8_lossy(&output.stdout)
            .trim()
            .replace("/dev/", "");
        Path::new("/sys/block").join(name)
    }

    /// Writes that the loop device has done or is doing, as the kernel counts them.
    fn writes(&self) -> Vec<String> {
        let stat = std::fs::read_to_string(self.device().join("stat"));
        let stat = stat.expect("the loop device is there");
        let fields: Vec<_> = stat.split_whitespace().map(str::to_owned).collect();
        // Writes completed, sectors written, requests in flight, flushes completed.
        [4, 6, 8, 15].map(|at| fields[at].clone()).to_vec()
    }

    /// Puts the copy in place, once the process is gone.
    pub(crate) fn swap(&self) {
        // Lazily: the kernel may still be tearing down what the process had in flight.
        run(Command::new("umount").arg("-l").arg(&self.mount)).expect("it is mounted");
        std::fs::rename(self.copy(), self.image()).expect("the copy is there");
        self.mount_image().expect("the journal replays");
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        let tmpfs = self.thin.then_some(self.work.path());
        for mounted in [Some(self.mount.as_path()), tmpfs].into_iter().flatten() {
            if let Err(error) = run(Command::new("umount").arg("-l").arg(mounted)) {
                eprintln!("{error}");
            }
        }
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?} failed: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}
