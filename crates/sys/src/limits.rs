//! The machine's own limits, to judge the product against in the same run (runtime 11.5).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};

use crate::file::means_no_direct;
use crate::memory::Memory;
use crate::syscall::at;

const PAGE_BYTES: usize = 4096;
/// A sync each 4 MiB, the commit buffer's size (runtime 11.5).
const SYNC_EACH_BYTES: u64 = 4 << 20;
const WRITE_BYTES: usize = 256 << 10;
const READ_BYTES: usize = 256 << 10;
/// Reads in flight.
const READ_DEPTH: usize = 4;
/// The region a raw commit is measured in; it wraps there, over written blocks.
const COMMIT_REGION_BYTES: u64 = 4 << 20;

/// What a directory's disk can do, by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawLimits {
    /// Median of one `pwrite` of 4 KiB and one `fdatasync` over written blocks, in nanoseconds.
    pub fdatasync_ns: u64,
    /// Sequential writes over written blocks with a sync each 4 MiB, in bytes per second.
    pub write_bytes_per_s: u64,
    /// O_DIRECT reads of 256 KiB, four in flight, in bytes per second.
    pub read_bytes_per_s: u64,
}

/// Switches of a thread, since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    /// It waited for something.
    pub voluntary: u64,
    /// It was preempted.
    pub involuntary: u64,
}

/// All three limits of a directory's disk, with files of `bytes` and `rounds` commits.
///
/// # Errors
/// The kernel's, with the path.
pub fn raw_limits(dir: &Path, bytes: u64, rounds: usize) -> io::Result<RawLimits> {
    Ok(RawLimits {
        fdatasync_ns: raw_fdatasync_ns(dir, rounds)?,
        write_bytes_per_s: raw_write_bytes_per_s(dir, bytes)?,
        read_bytes_per_s: raw_read_bytes_per_s(dir, bytes)?,
    })
}

/// Median of `rounds` (at least 1) raw commits: `pwrite` of 4 KiB, `fdatasync`, over written
/// blocks, in nanoseconds.
///
/// # Errors
/// The kernel's, with the path.
pub fn raw_fdatasync_ns(dir: &Path, rounds: usize) -> io::Result<u64> {
    let scratch = Scratch::new(dir, COMMIT_REGION_BYTES)?;
    let page = [1; PAGE_BYTES];
    let mut took = Vec::with_capacity(rounds.max(1));
    for round in 0..rounds.max(1) {
        let offset = (round as u64 * PAGE_BYTES as u64) % COMMIT_REGION_BYTES;
        let start = Instant::now();
        scratch
            .file
            .write_all_at(&page, offset)
            .map_err(|error| scratch.at("write", &error))?;
        scratch
            .file
            .sync_data()
            .map_err(|error| scratch.at("sync", &error))?;
        took.push(start.elapsed().as_nanos());
    }
    took.sort_unstable();
    Ok(u64::try_from(took[took.len() / 2]).unwrap_or(u64::MAX))
}

/// Sequential writes of `bytes` over written blocks, a sync each 4 MiB, in bytes per second.
///
/// # Errors
/// The kernel's, with the path.
pub fn raw_write_bytes_per_s(dir: &Path, bytes: u64) -> io::Result<u64> {
    let scratch = Scratch::new(dir, bytes)?;
    let start = Instant::now();
    write_through(&scratch.file, scratch.bytes).map_err(|error| scratch.at("write", &error))?;
    Ok(per_second(scratch.bytes, start))
}

/// O_DIRECT reads of a file of `bytes`, 256 KiB each, four in flight, in bytes per second; by
/// io_uring, or by four threads where it cannot be had.
///
/// # Errors
/// The kernel's, with the path; Unsupported where the file system has no O_DIRECT.
pub fn raw_read_bytes_per_s(dir: &Path, bytes: u64) -> io::Result<u64> {
    let scratch = Scratch::new(dir, bytes)?;
    let mut options = OpenOptions::new();
    let file = options
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(&scratch.path);
    let file = file.map_err(|error| scratch.at("open for O_DIRECT", &told_apart(error)))?;
    let start = Instant::now();
    match IoUring::new(8) {
        Ok(ring) => read_by_ring(ring, &file, scratch.bytes),
        Err(_) => read_by_threads(&file, scratch.bytes),
    }
    .map_err(|error| scratch.at("read", &error))?;
    Ok(per_second(scratch.bytes, start))
}

/// CPU time the calling thread has used, in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the pointer covers one timespec that is ours to write.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

/// How often the calling thread was switched out.
#[must_use]
pub fn thread_switches() -> Switches {
    // SAFETY: a rusage is made of integers; all zeros is one.
    let mut usage: libc::rusage = unsafe { mem::zeroed() };
    // SAFETY: the pointer covers one rusage that is ours to write.
    if unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) } != 0 {
        return Switches::default();
    }
    Switches {
        voluntary: u64::try_from(usage.ru_nvcsw).unwrap_or(0),
        involuntary: u64::try_from(usage.ru_nivcsw).unwrap_or(0),
    }
}

/// Memory the process has resident, in bytes; 0 if it cannot be read.
#[must_use]
pub fn process_rss_bytes() -> u64 {
    // SAFETY: sysconf takes an integer.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse::<u64>().ok());
    pages.unwrap_or(0) * page
}

/// std takes the EINVAL of an open with O_DIRECT for a wrong argument.
fn told_apart(error: io::Error) -> io::Error {
    if means_no_direct(&error) {
        io::Error::new(io::ErrorKind::Unsupported, error)
    } else {
        error
    }
}

/// A file of written blocks that goes away with its owner.
struct Scratch {
    file: File,
    path: PathBuf,
    bytes: u64,
}

impl Scratch {
    fn new(dir: &Path, bytes: u64) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!(".pelton-raw-{}-{number}", std::process::id()));
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(|error| at("create", &path, &error))?;
        let bytes = bytes
            .next_multiple_of(WRITE_BYTES as u64)
            .max(WRITE_BYTES as u64);
        let scratch = Self { file, path, bytes };
        write_through(&scratch.file, bytes).map_err(|error| scratch.at("write", &error))?;
        Ok(scratch)
    }

    fn at(&self, what: &str, error: &io::Error) -> io::Error {
        at(what, &self.path, error)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn write_through(file: &File, bytes: u64) -> io::Result<()> {
    let piece = vec![1; WRITE_BYTES];
    let mut done = 0;
    while done < bytes {
        file.write_all_at(&piece, done)?;
        done += WRITE_BYTES as u64;
        if done.is_multiple_of(SYNC_EACH_BYTES) {
            file.sync_data()?;
        }
    }
    file.sync_data()
}

fn per_second(bytes: u64, start: Instant) -> u64 {
    let rate = u128::from(bytes) * 1_000_000_000 / start.elapsed().as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

fn read_by_ring(mut ring: IoUring, file: &File, bytes: u64) -> io::Result<()> {
    // Leaked if an error leaves reads in flight: the kernel may still write there.
    let mut memory = mem::ManuallyDrop::new(Memory::new(READ_BYTES * READ_DEPTH));
    let base = memory.as_mut_slice().as_mut_ptr();
    let mut next = 0;
    let mut in_flight = 0;
    let mut free: Vec<usize> = (0..READ_DEPTH).collect();
    while next < bytes || in_flight > 0 {
        while next < bytes
            && let Some(place) = free.pop()
        {
            let into = base.wrapping_add(place * READ_BYTES);
            let read = opcode::Read::new(Fd(file.as_raw_fd()), into, READ_BYTES as u32);
            let entry = read.offset(next).build().user_data(place as u64);
            // SAFETY: each place is in flight at most once, and `memory` outlives them all.
            unsafe { ring.submission().push(&entry) }.expect("four of eight places");
            next += READ_BYTES as u64;
            in_flight += 1;
        }
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
            _ => {}
        }
        for done in ring.completion() {
            let got = usize::try_from(done.result())
                .map_err(|_| io::Error::from_raw_os_error(-done.result()))?;
            if got != READ_BYTES {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            free.push(usize::try_from(done.user_data()).expect("a place"));
            in_flight -= 1;
        }
    }
    drop(mem::ManuallyDrop::into_inner(memory));
    Ok(())
}

fn read_by_threads(file: &File, bytes: u64) -> io::Result<()> {
    let next = AtomicU64::new(0);
    let read = || -> io::Result<()> {
        let mut memory = Memory::new(READ_BYTES);
        loop {
            let offset = next.fetch_add(READ_BYTES as u64, Ordering::Relaxed);
            if offset >= bytes {
                return Ok(());
            }
            file.read_exact_at(memory.as_mut_slice(), offset)?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..READ_DEPTH).map(|_| scope.spawn(read)).collect();
        for thread in threads {
            thread
                .join()
                .map_err(|_| io::Error::other("a reader panicked"))??;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, drop_page_cache};

    #[test]
    fn limits_are_measured_and_leave_nothing_behind() {
        let dir = tempfile::tempdir().expect("a folder");
        let limits = raw_limits(dir.path(), 8 << 20, 5).expect("limits");
        assert!(limits.fdatasync_ns > 1_000, "{limits:?}");
        assert!(limits.write_bytes_per_s > 100_000, "{limits:?}");
        assert!(limits.read_bytes_per_s > 100_000, "{limits:?}");
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn a_file_system_without_o_direct_is_told_from_a_failure() {
        for (errno, kind) in [
            (libc::EINVAL, io::ErrorKind::Unsupported),
            (libc::EOPNOTSUPP, io::ErrorKind::Unsupported),
            (libc::EACCES, io::ErrorKind::PermissionDenied),
        ] {
            let error = at(
                "open",
                Path::new("p"),
                &told_apart(io::Error::from_raw_os_error(errno)),
            );
            assert_eq!(error.kind(), kind, "{error}");
        }
    }

    #[test]
    fn threads_read_where_no_ring_can_be_had() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("file");
        fs::write(&path, vec![1; 1 << 20]).expect("a file");
        let file = std::fs::File::open(&path).expect("the file");
        read_by_threads(&file, 1 << 20).expect("all of it");
        assert!(
            read_by_threads(&file, 2 << 20).is_err(),
            "read beyond the end"
        );
        drop_page_cache(&path).expect("dropped");
    }

    #[test]
    fn a_threads_own_time_and_switches_rise() {
        let clock = Clock::new();
        let (cpu, switches) = (thread_cpu_ns(), thread_switches());
        let until = clock.now_ns() + 2_000_000;
        while clock.now_ns() < until {}
        crate::Poller::new()
            .expect("a poller")
            .wait(Some(100_000))
            .expect("a wait");
        assert!(thread_cpu_ns() > cpu);
        assert!(thread_switches().voluntary > switches.voluntary);
        assert!(process_rss_bytes() > 100_000);
    }
}
