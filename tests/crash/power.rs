//! A file system in a loop file, whose power can be cut.
//!
//! The process is stopped, the backing file is copied (what the file system had not written yet is
//! not in it), and the copy takes the place of the original: mounted, its journal replays.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

/// Size of the backing file: room for the segments of a few lives.
const DISK_BYTES: u64 = 256 << 20;

pub(crate) struct LoopDisk {
    work: tempfile::TempDir,
    mount: PathBuf,
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
        let work = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).map_err(|e| e.to_string())?;
        let disk = Self {
            mount: work.path().join("mount"),
            work,
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
            .args(["-q", "-F"])
            .arg(disk.image()))?;
        disk.mount_image()?;
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

    /// Stops the process and takes the disk as it is at this instant.
    pub(crate) fn cut(&self, child: &Child) {
        run(Command::new("kill").args(["-STOP", &child.id().to_string()])).expect("it stops");
        std::fs::copy(self.image(), self.copy()).expect("the disk is copied");
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
        if let Err(error) = run(Command::new("umount").arg("-l").arg(&self.mount)) {
            eprintln!("{error}");
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
