//! A directory for one run, removed with it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use crate::LoadError;

const PREFIX: &str = "pelton-bench-";

/// A fresh directory that is removed when it is dropped, also when the run fails or panics.
///
/// A process that is killed removes nothing, so the next run does: the directory's name carries the
/// process id, and one whose process is gone is removed first.
#[derive(Debug)]
pub struct WorkDir {
    path: PathBuf,
}

impl WorkDir {
    /// Makes one in `parent`, which exists, or in the current directory: a system's temporary directory is often
    /// kept in memory, where a sync costs nothing and says nothing.
    ///
    /// # Errors
    /// [`LoadError::Directory`] if it cannot be made.
    pub fn new(parent: Option<&Path>) -> Result<WorkDir, LoadError> {
        let parent = parent.unwrap_or(Path::new("."));
        let failed = |why| LoadError::Directory {
            path: parent.to_owned(),
            why,
        };
        let parent = fs::canonicalize(parent).map_err(failed)?;
        remove_leftovers(&parent);
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{PREFIX}{}-{serial}", process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Ok(WorkDir { path }),
            Err(why) => Err(LoadError::Directory { path, why }),
        }
    }

    /// The directory, absolute.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A directory of its own inside, made now.
    ///
    /// # Errors
    /// [`LoadError::Directory`] if it cannot be made.
    pub fn sub(&self, name: &str) -> Result<PathBuf, LoadError> {
        let path = self.path.join(name);
        match fs::create_dir_all(&path) {
            Ok(()) => Ok(path),
            Err(why) => Err(LoadError::Directory { path, why }),
        }
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        // Nobody is left to tell; the next run tries again.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn remove_leftovers(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.filter_map(io::Result::ok) {
        let name = entry.file_name();
        let pid = name
            .to_str()
            .and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'))
            .and_then(|(pid, _)| pid.parse::<u32>().ok());
        if pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_leaves_nothing_behind_even_if_it_panics_and_sweeps_what_a_killed_one_left() {
        let parent = std::env::temp_dir().join(format!("pelton-workdir-test-{}", process::id()));
        fs::create_dir_all(parent.join(format!("{PREFIX}4294967295-0/shard-0"))).unwrap();
        fs::create_dir_all(parent.join(format!("{PREFIX}not-ours"))).unwrap();
        let path = std::panic::catch_unwind(|| {
            let dir = WorkDir::new(Some(&parent)).unwrap();
            fs::write(dir.sub("deep/er").unwrap().join("file"), b"x").unwrap();
            std::panic::panic_any(dir.path().to_owned());
        })
        .unwrap_err()
        .downcast::<PathBuf>()
        .unwrap();
        assert!(!path.exists());
        let left: Vec<_> = fs::read_dir(&parent)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, [format!("{PREFIX}not-ours").as_str()]);
        fs::remove_dir_all(&parent).unwrap();
    }

    #[test]
    fn a_parent_that_is_a_file_is_named_in_the_error() {
        let file = std::env::temp_dir().join(format!("pelton-workdir-file-{}", process::id()));
        fs::write(&file, b"").unwrap();
        let error = WorkDir::new(Some(&file)).unwrap_err().to_string();
        assert!(error.contains(file.to_str().unwrap()), "{error}");
        fs::remove_file(&file).unwrap();
    }
}
