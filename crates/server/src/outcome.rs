//! How a command ends, and how it prints.

use std::{
    fmt,
    io::{self, Write as _},
    process::ExitCode,
};

/// Why a command does not end with 0.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It did what it was asked, and what it checked is not so. All has been said.
    Told,
    /// It could not do it. One line: what was tried, on what, why it failed, what to do.
    Error(String),
    /// It was asked for something that does not go together.
    Usage(String),
}

impl Failure {
    pub(crate) fn error(error: impl fmt::Display) -> Failure {
        Failure::Error(error.to_string())
    }
}

/// Prints to standard output, without colours where that is no terminal.
///
/// # Errors
/// As [`printed`].
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    printed(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What became of a write to standard output. A reader that has gone away (`| head`) is no failure.
///
/// # Errors
/// What was to be shown was not.
pub(crate) fn printed(result: io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::Error(format!(
            "writing to standard output failed: {error}; send it somewhere with room"
        ))),
        _ => Ok(()),
    }
}

/// Prints the one line of a failure.
pub(crate) fn fail(line: &str, code: u8) -> ExitCode {
    let mut out = anstream::stderr().lock();
    let _ = writeln!(out, "\x1b[1;31mpelton:\x1b[0m {line}");
    ExitCode::from(code)
}
