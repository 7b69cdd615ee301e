//! What a system call returns, as an [`io::Result`].

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd;

/// The result of a call that answers -1 and sets `errno`.
pub(crate) fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(returned)
    }
}

/// The same for calls that return a size.
pub(crate) fn check_size(returned: isize) -> io::Result<usize> {
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

/// Calls again for as long as a signal interrupts the call.
pub(crate) fn retry<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Puts what was tried, and on what, in front of an error; the kind stays.
pub(crate) fn at(what: &str, path: &std::path::Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

/// A file in memory, without a name.
pub(crate) fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string that outlives the call.
    let fd = check(unsafe { libc::memfd_create(c"pelton".as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Where the tests record what happens to files and directories; nothing otherwise.
#[cfg(not(test))]
pub(crate) fn effect(_what: &str, _path: &std::path::Path) {}

#[cfg(test)]
pub(crate) use crate::fault::effect;
