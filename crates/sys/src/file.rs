//! An open file: inline writes, blocking reads for recovery, and how it takes O_DIRECT.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};

use crate::memory::{MEMORY_ALIGN, Memory};
use crate::syscall::{at, check_size, effect, retry};

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To read only; nothing is changed.
    Read,
    /// To read and write a file that exists.
    ReadWrite,
    /// To read and write a file that must not exist yet. Its directory is not synced.
    CreateNew,
}

/// How reads that ask for O_DIRECT are done on a file: the ladder of runtime 2.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IoMode {
    /// O_DIRECT.
    Direct = 0,
    /// Through the page cache, which drops the pages afterwards (RWF_DONTCACHE, 6.14).
    DontCache = 1,
    /// Through the page cache.
    Buffered = 2,
}

/// An open file. The descriptors close with the last operation that uses them.
#[derive(Debug)]
pub struct SegmentFile {
    path: PathBuf,
    buffered: File,
    direct: Option<File>,
    /// A [`IoMode`]; only ever steps down, on what the file system answers.
    mode: AtomicU8,
    /// What O_DIRECT asks of memory, offset and length, in bytes.
    align: usize,
}

impl SegmentFile {
    /// Opens `path`; with `direct` also for O_DIRECT reads, if its file system has them.
    ///
    /// # Errors
    /// What `open` says, with the path in the text and the kind kept.
    pub fn open(path: &Path, access: Access, direct: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(access != Access::Read)
            .create_new(access == Access::CreateNew);
        let buffered = retry(|| options.open(path)).map_err(|error| at("open", path, &error))?;
        if access == Access::CreateNew {
            effect("create", path);
        }
        let (direct, mode) = if direct {
            open_direct(path, access)?
        } else {
            (None, IoMode::Buffered)
        };
        let align = direct.as_ref().map_or(1, alignment);
        let mode = AtomicU8::new(mode as u8);
        Ok(Self {
            path: path.to_owned(),
            buffered,
            direct,
            mode,
            align,
        })
    }

    /// Its path when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How reads that ask for O_DIRECT are done on it now.
    #[must_use]
    pub fn io_mode(&self) -> IoMode {
        match self.mode.load(Ordering::Relaxed) {
            0 => IoMode::Direct,
            1 => IoMode::DontCache,
            _ => IoMode::Buffered,
        }
    }

    /// What O_DIRECT asks of memory, offset and length here, in bytes (STATX_DIOALIGN); 1 without.
    #[must_use]
    pub fn direct_align(&self) -> usize {
        self.align
    }

    /// One `pwrite`, through the page cache; EINTR repeats it, and EAGAIN eight times.
    ///
    /// # Errors
    /// The kernel's. Fewer bytes than given is no error here: the caller sees the count. 0 bytes
    /// of some is one (`WriteZero`).
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<usize> {
        let mut tries = 0;
        let written = loop {
            match retry(|| faulty_write(&self.buffered, bytes, offset)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && tries < 8 => tries += 1,
                other => break other?,
            }
        };
        if written == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        effect("write", &self.path);
        Ok(written)
    }

    /// Reads until `into` is full or the file ends; the count says which. Blocks: for recovery
    /// and tools.
    ///
    /// # Errors
    /// The kernel's.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match retry(|| {
                self.buffered
                    .read_at(&mut into[done..], offset + done as u64)
            })? {
                0 => break,
                more => done += more,
            }
        }
        Ok(done)
    }

    /// `fdatasync`, blocking. Never call it again after an error.
    ///
    /// # Errors
    /// The kernel's; then what was written before may be lost.
    pub fn sync_data(&self) -> io::Result<()> {
        self.buffered.sync_data()?;
        effect("sync", &self.path);
        Ok(())
    }

    /// How a read is to be done: `wanted` O_DIRECT into `memory`. Misaligned: the page cache.
    pub(crate) fn way(&self, wanted: bool, memory: &Memory, offset: u64, len: usize) -> IoMode {
        let aligned = memory.is_aligned(self.align)
            && offset.is_multiple_of(self.align as u64)
            && len.is_multiple_of(self.align);
        match self.io_mode() {
            IoMode::Direct if !wanted || !aligned => IoMode::Buffered,
            IoMode::DontCache if !wanted => IoMode::Buffered,
            mode => mode,
        }
    }

    /// After the kernel refused `tried` (EINVAL, EOPNOTSUPP): what this file does from now on.
    pub(crate) fn step_down(&self, tried: IoMode) -> IoMode {
        let next = if tried == IoMode::Direct {
            IoMode::DontCache
        } else {
            IoMode::Buffered
        };
        self.mode.fetch_max(next as u8, Ordering::Relaxed);
        next
    }

    /// The descriptor and the flags of a read done that way.
    pub(crate) fn target(&self, mode: IoMode) -> (RawFd, i32) {
        match (mode, &self.direct) {
            (IoMode::Direct, Some(direct)) => (direct.as_raw_fd(), 0),
            (IoMode::DontCache, _) => (self.buffered.as_raw_fd(), libc::RWF_DONTCACHE),
            _ => (self.buffered.as_raw_fd(), 0),
        }
    }

    pub(crate) fn raw_fd(&self) -> RawFd {
        self.buffered.as_raw_fd()
    }

    /// One try of a read, blocking: what a pool thread does.
    pub(crate) fn read_once(&self, mode: IoMode, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let (fd, flags) = self.target(mode);
        let piece = libc::iovec {
            iov_base: into.as_mut_ptr().cast(),
            iov_len: into.len(),
        };
        let offset = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the one iovec covers exactly `into`, which we borrow mutably for the call.
        check_size(unsafe { libc::preadv2(fd, &raw const piece, 1, offset, flags) })
    }

    /// One try of a write that is durable when it returns, blocking: what a pool thread does.
    pub(crate) fn commit_once(&self, mode: IoMode, at: u64, bytes: &[u8]) -> io::Result<usize> {
        let (fd, flags) = self.commit_target(mode);
        let piece = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let offset = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the one iovec covers exactly `bytes`, which the call only reads.
        check_size(unsafe { libc::pwritev2(fd, &raw const piece, 1, offset, flags) })
    }

    /// The descriptor and the flags of a durable write.
    pub(crate) fn commit_target(&self, mode: IoMode) -> (RawFd, i32) {
        match (mode, &self.direct) {
            (IoMode::Direct, Some(direct)) => (direct.as_raw_fd(), libc::RWF_DSYNC),
            _ => (self.buffered.as_raw_fd(), libc::RWF_DSYNC),
        }
    }

    /// Tells of a durable write that has ended well, for tests of the order of effects.
    pub(crate) fn committed(&self) {
        effect("commit", &self.path);
    }

    /// Drops the clean pages of the file from the page cache.
    pub(crate) fn forget(&self) -> io::Result<()> {
        drop_clean_pages(&self.buffered)
    }
}

#[cfg(not(test))]
fn faulty_write(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    file.write_at(bytes, offset)
}

#[cfg(test)]
fn faulty_write(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    match crate::fault::next_write() {
        Some(Ok(limit)) => file.write_at(&bytes[..limit.min(bytes.len())], offset),
        Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
        None => file.write_at(bytes, offset),
    }
}

/// The second descriptor, for O_DIRECT; EINVAL and the like mean the file system has none.
fn open_direct(path: &Path, access: Access) -> io::Result<(Option<File>, IoMode)> {
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(access != Access::Read)
        .custom_flags(libc::O_DIRECT);
    match retry(|| options.open(path)) {
        Ok(file) => Ok((Some(file), IoMode::Direct)),
        Err(error) if means_no_direct(&error) => Ok((None, IoMode::DontCache)),
        Err(error) => Err(at("open for O_DIRECT", path, &error)),
    }
}

/// Whether an open with O_DIRECT failed because the file system has none.
pub(crate) fn means_no_direct(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

/// What O_DIRECT asks of this file, in bytes: a power of two, at most what [`Memory`] has.
fn alignment(file: &File) -> usize {
    // SAFETY: a statx is made of integers; all zeros is one.
    let mut answer: libc::statx = unsafe { std::mem::zeroed() };
    let mask = libc::STATX_DIOALIGN;
    let (fd, flags, empty) = (file.as_raw_fd(), libc::AT_EMPTY_PATH, c"");
    // SAFETY: the path is a C string and the answer is ours, both outlive the call.
    let code = unsafe { libc::statx(fd, empty.as_ptr(), flags, mask, &raw mut answer) };
    let align = answer.stx_dio_mem_align.max(answer.stx_dio_offset_align) as usize;
    let known = code == 0 && answer.stx_mask & mask != 0 && align.is_power_of_two();
    if known {
        align.min(MEMORY_ALIGN)
    } else {
        MEMORY_ALIGN
    }
}

/// Makes the names in a directory durable; needed after create, rename and unlink (runtime 3.12).
///
/// # Errors
/// The kernel's, with the path.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    let dir = if dir.as_os_str().is_empty() {
        Path::new(".")
    } else {
        dir
    };
    let sync = || File::open(dir)?.sync_all();
    sync().map_err(|error| at("sync directory", dir, &error))?;
    effect("sync directory", dir);
    Ok(())
}

/// Lets the page cache drop a file's pages, dirty ones written first.
///
/// # Errors
/// The kernel's, with the path.
pub fn drop_page_cache(path: &Path) -> io::Result<()> {
    let drop = || {
        let file = File::open(path)?;
        file.sync_data()?;
        drop_clean_pages(&file)
    };
    drop().map_err(|error| at("drop cached pages of", path, &error))
}

fn drop_clean_pages(file: &File) -> io::Result<()> {
    // SAFETY: fadvise takes integers and an open descriptor.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// Writes zeros over a range and syncs it, blocking: what recovery does to a torn tail.
///
/// # Errors
/// The kernel's, with the path.
pub fn zero_range(file: &SegmentFile, offset: u64, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; usize::try_from(bytes.min(256 << 10)).unwrap_or(256 << 10)];
    let run = || {
        let mut done = 0;
        while done < bytes {
            let piece = usize::try_from(bytes - done)
                .unwrap_or(usize::MAX)
                .min(zeros.len());
            done += file.write_at(offset + done, &zeros[..piece])? as u64;
        }
        file.sync_data()
    };
    run().map_err(|error| at("write zeros to", file.path(), &error))
}

/// A path as the kernel takes it.
pub(crate) fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}
