//! One engine per data directory (runtime 3.12).

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use crate::syscall::{check, retry};

/// Holds a data directory: `flock` on `DIR/LOCK`, which carries the holder's process id. The
/// kernel lets go when the holder dies, however it dies; the file stays.
#[derive(Debug)]
pub struct DirLock {
    file: File,
}

/// Its name in a data directory.
pub const LOCK_FILE: &str = "LOCK";

/// Why a data directory could not be held.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another engine has it.
    #[error("{} is in use by process {holder}: stop it, or give this engine another directory", path.display())]
    Held {
        /// The lock file.
        path: PathBuf,
        /// The process id in it, or `unknown`.
        holder: String,
    },
    /// The lock file could not be made or locked.
    #[error(
        "lock {}: {source}; check the permissions of the directory and its file system",
        path.display()
    )]
    Io {
        /// The lock file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl DirLock {
    /// Takes the lock of `dir`, which must exist.
    ///
    /// # Errors
    /// [`LockError::Held`] names the process that has it, this one included.
    pub fn take(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join(LOCK_FILE);
        match Self::try_take(&path) {
            Ok(Ok(file)) => Ok(Self { file }),
            Ok(Err(holder)) => Err(LockError::Held { path, holder }),
            Err(source) => Err(LockError::Io { path, source }),
        }
    }

    fn try_take(path: &Path) -> io::Result<Result<File, String>> {
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let fd = file.as_raw_fd();
        // SAFETY: the descriptor is open; flock touches no memory of ours.
        let locked = retry(|| check(unsafe { libc::flock(fd, libc::LOCK_EX | libc::LOCK_NB) }));
        if let Err(error) = locked {
            if error.raw_os_error() != Some(libc::EWOULDBLOCK) {
                return Err(error);
            }
            let mut text = String::new();
            let _ = file.read_to_string(&mut text);
            let holder = text.trim();
            let known = !holder.is_empty() && holder.bytes().all(|byte| byte.is_ascii_digit());
            return Ok(Err(if known {
                holder.to_owned()
            } else {
                "unknown".to_owned()
            }));
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())?;
        Ok(Ok(file))
    }
}

impl Drop for DirLock {
    fn drop(&mut self) {
        // Closing is not enough: a child that another thread has forked holds the descriptor, and the
        // lock with it, until its exec.
        // SAFETY: the descriptor is open; flock touches no memory of ours.
        let _ = unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_UN) };
    }
}

#[cfg(test)]
mod tests {
    use super::{DirLock, LockError};

    #[test]
    fn a_second_opener_is_told_who_holds_the_directory() {
        let dir = tempfile::tempdir().expect("a folder");
        let lock = DirLock::take(dir.path()).expect("the first");
        let Err(LockError::Held { holder, .. }) = DirLock::take(dir.path()) else {
            panic!("a second lock was given");
        };
        assert_eq!(holder, std::process::id().to_string());
        drop(lock);
        drop(DirLock::take(dir.path()).expect("free again"));
    }

    #[test]
    fn a_forked_child_that_holds_the_descriptor_does_not_hold_the_lock() {
        let dir = tempfile::tempdir().expect("a folder");
        let lock = DirLock::take(dir.path()).expect("the first");
        // What a child has before its exec: the same open file description.
        let _child = lock.file.try_clone().expect("a descriptor");
        drop(lock);
        drop(DirLock::take(dir.path()).expect("free again"));
    }

    #[test]
    fn a_missing_directory_is_an_io_error_with_its_path() {
        let dir = tempfile::tempdir().expect("a folder");
        let error = DirLock::take(&dir.path().join("none")).expect_err("no such folder");
        assert!(error.to_string().contains("none/LOCK"), "{error}");
    }
}
