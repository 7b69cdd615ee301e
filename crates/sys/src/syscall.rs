//! What a system call returns, as an [`io::Result`].

use std::io;

/// The result of a call that answers -1 and sets `errno`.
pub(crate) fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(returned) }
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
