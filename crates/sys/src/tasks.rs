//! File work that a shard's thread must not do itself (runtime 3.2, 3.3, 3.12).

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::file::{Access, SegmentFile, c_path, sync_dir};
use crate::memory::Memory;
use crate::op::{FileTask, Fill};
use crate::syscall::{at, check, effect, retry};

/// Zeros are written in pieces of this size, each synced: 64 MiB with one sync made commits beside
/// it wait for 7.6 ms at p99, this 0.36 ms (runtime 3.2).
const PIECE_BYTES: u64 = 256 << 10;

/// A task with its file found.
#[derive(Debug)]
pub(crate) struct TaskWork {
    pub(crate) task: FileTask,
    pub(crate) file: Option<Arc<SegmentFile>>,
}

/// Does the task. The memory that went in comes back; `closing` ends a throttled one early.
pub(crate) fn run(work: TaskWork, closing: &AtomicBool) -> (io::Result<usize>, Option<Memory>) {
    match work.task {
        FileTask::Create {
            path,
            bytes,
            header,
            fill,
        } => (create(&path, bytes, &header, fill, closing), Some(header)),
        FileTask::Recycle {
            from_path,
            to_path,
            header,
        } => (recycle(&from_path, &to_path, &header), Some(header)),
        FileTask::Prewrite {
            path,
            offset,
            bytes,
            bytes_per_s,
        } => {
            let range = offset..offset.saturating_add(bytes);
            (prewrite(&path, range, bytes_per_s, closing), None)
        }
        FileTask::Unlink { path } => (unlink(&path), None),
        FileTask::Forget { .. } => (
            work.file.map_or(Ok(()), |file| file.forget()).map(|()| 0),
            None,
        ),
        FileTask::SyncDir { path } => (sync_dir(&path).map(|()| 0), None),
        FileTask::Kv(batch) => (
            batch.kv.apply(&batch.writes).map(|()| batch.writes.len()),
            None,
        ),
    }
}

fn create(
    path: &Path,
    bytes: u64,
    header: &Memory,
    fill: Fill,
    closing: &AtomicBool,
) -> io::Result<usize> {
    let file = SegmentFile::open(path, Access::CreateNew, false)?;
    let make = || {
        match fill {
            Fill::Zeros { bytes_per_s } => write_zeros(&file, 0..bytes, bytes_per_s, closing)?,
            Fill::Allocate => allocate(&file, bytes, closing)?,
        }
        finish(&file, header)?;
        // Commits are O_DIRECT: one over cached pages goes to a worker that drops them first.
        let _ = file.forget();
        Ok(())
    };
    make()
        .map(|()| usize::try_from(bytes).unwrap_or(usize::MAX))
        .map_err(|error| {
            // A fallocate of 64 MiB that failed left 24 MiB behind (runtime 3.11).
            remove_failed(path);
            at("create", path, &error)
        })
}

fn recycle(from: &Path, to: &Path, header: &Memory) -> io::Result<usize> {
    rename_new(from, to).map_err(|error| at("rename to", to, &error))?;
    effect("rename to", to);
    let finish = || finish(&SegmentFile::open(to, Access::ReadWrite, false)?, header);
    finish().map(|()| header.len()).map_err(|error| {
        remove_failed(to);
        at("recycle", to, &error)
    })
}

fn prewrite(
    path: &Path,
    range: Range<u64>,
    bytes_per_s: u64,
    closing: &AtomicBool,
) -> io::Result<usize> {
    let file = SegmentFile::open(path, Access::ReadWrite, false)?;
    write_zeros(&file, range, bytes_per_s, closing)
        .map(|()| {
            // As after a creation.
            let _ = file.forget();
            0
        })
        .map_err(|error| at("write zeros to", path, &error))
}

fn unlink(path: &Path) -> io::Result<usize> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(at("unlink", path, &error));
        }
        _ => effect("unlink", path),
    }
    sync_dir(parent(path))?;
    Ok(0)
}

/// The header, the sync of the file, the sync of its name: only then the file may be relied on.
fn finish(file: &SegmentFile, header: &Memory) -> io::Result<()> {
    write_all(file, 0, header.as_slice())?;
    file.sync_data()?;
    sync_dir(parent(file.path()))
}

fn write_all(file: &SegmentFile, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        done += file.write_at(offset + done as u64, &bytes[done..])?;
    }
    Ok(())
}

fn write_zeros(
    file: &SegmentFile,
    range: Range<u64>,
    bytes_per_s: u64,
    closing: &AtomicBool,
) -> io::Result<()> {
    let bytes = range.end - range.start;
    let zeros = vec![0; usize::try_from(PIECE_BYTES.min(bytes)).unwrap_or(0)];
    let start = Instant::now();
    let mut done = 0;
    while done < bytes {
        if closing.load(Ordering::Relaxed) {
            return Err(io::Error::from_raw_os_error(libc::ECANCELED));
        }
        let piece = (bytes - done).min(PIECE_BYTES);
        write_all(
            file,
            range.start + done,
            &zeros[..usize::try_from(piece).unwrap_or(0)],
        )?;
        file.sync_data()?;
        done += piece;
        if bytes_per_s > 0 {
            let due = Duration::from_nanos(pace_ns(done, bytes_per_s));
            // The pace is kept by a pool thread of its own, which has no event to wait for.
            std::thread::sleep(
                due.saturating_sub(start.elapsed())
                    .min(Duration::from_millis(100)),
            );
        }
    }
    Ok(())
}

/// When `done` bytes may be written at this rate, in nanoseconds from the start.
fn pace_ns(done: u64, bytes_per_s: u64) -> u64 {
    let ns = u128::from(done) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
    u64::try_from(ns).unwrap_or(u64::MAX)
}

fn allocate(file: &SegmentFile, bytes: u64, closing: &AtomicBool) -> io::Result<()> {
    let (fd, len) = (
        file.raw_fd(),
        libc::off_t::try_from(bytes).unwrap_or(libc::off_t::MAX),
    );
    // SAFETY: fallocate takes integers and an open descriptor.
    match retry(|| check(unsafe { libc::fallocate(fd, 0, 0, len) })) {
        // A file system without it: the space has to be there all the same.
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            write_zeros(file, 0..bytes, 0, closing)
        }
        other => other.map(drop),
    }
}

/// Renames, never over a file that exists.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let (from_c, to_c) = (c_path(from)?, c_path(to)?);
    let (here, flags) = (libc::AT_FDCWD, libc::RENAME_NOREPLACE);
    // SAFETY: both paths are C strings that outlive the call.
    match check(unsafe { libc::renameat2(here, from_c.as_ptr(), here, to_c.as_ptr(), flags) }) {
        // A file system without the flag.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            if to.exists() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            fs::rename(from, to)
        }
        other => other.map(drop),
    }
}

/// Takes away what a failed task left; best effort, since the first error is the one that counts.
fn remove_failed(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = sync_dir(parent(path));
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}
