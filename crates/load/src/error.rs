//! Why a run could not be made. What a run found wrong with the engine is in the report instead.

use std::path::PathBuf;

/// One line each: what was tried, on what, why it failed, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The file to replay cannot be used.
    #[error("reading {} failed: {why}; {remedy}", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Options that do not go together; a usage error.
    #[error("{why}; {remedy}")]
    Options {
        /// What is wrong.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
    /// The directory for the run could not be made.
    #[error("making the directory {} failed: {why}; give --dir a directory you may write to", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        why: std::io::Error,
    },
    /// The engine refused something; its own line says all.
    #[error("{0}")]
    Engine(String),
    /// A limit of the machine could not be measured.
    #[error("measuring {what} in {} failed: {why}; give --dir a directory on a disk with some GB free", dir.display())]
    Limit {
        /// The limit.
        what: &'static str,
        /// Where.
        dir: PathBuf,
        /// What the system said.
        why: String,
    },
    /// Stopped before anything was measured.
    #[error("interrupted before anything was measured; nothing is left behind")]
    Interrupted,
}

impl LoadError {
    /// True if the command was wrong, not the run.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        matches!(self, LoadError::Options { .. })
    }

    pub(crate) fn engine(error: impl std::fmt::Display) -> LoadError {
        LoadError::Engine(error.to_string())
    }
}
