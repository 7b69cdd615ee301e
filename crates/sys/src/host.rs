//! The host report: one fact per line with its verdict and what to do about it (runtime 4.6).

use std::fmt;
use std::path::Path;
use std::time::Duration;

use crate::host_facts;
use crate::syscall::check;

/// Is this fact as it should be?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Yes.
    Ok,
    /// It works, with a loss that the remedy names.
    Warn,
    /// Something that matters is missing.
    Fail,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What was looked at.
    pub name: &'static str,
    /// What was found.
    pub value: String,
    /// How that is to be taken.
    pub verdict: Verdict,
    /// What to do, exactly; empty if nothing.
    pub remedy: String,
}

/// What an engine finds on this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostReport {
    /// The lines, in reading order.
    pub facts: Vec<Fact>,
}

impl Fact {
    pub(crate) fn ok(name: &'static str, value: impl Into<String>) -> Self {
        Self {
            name,
            value: value.into(),
            verdict: Verdict::Ok,
            remedy: String::new(),
        }
    }

    pub(crate) fn warn(
        name: &'static str,
        value: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            value: value.into(),
            verdict: Verdict::Warn,
            remedy: remedy.into(),
        }
    }

    pub(crate) fn fail(
        name: &'static str,
        value: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            name,
            value: value.into(),
            verdict: Verdict::Fail,
            remedy: remedy.into(),
        }
    }
}

impl HostReport {
    /// The worst verdict of all lines.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        let has = |verdict| self.facts.iter().any(|fact| fact.verdict == verdict);
        match () {
            () if has(Verdict::Fail) => Verdict::Fail,
            () if has(Verdict::Warn) => Verdict::Warn,
            () => Verdict::Ok,
        }
    }
}

/// Looks at the machine, for an engine of `shards` shards with its data in `dir`.
///
/// `probe` is how long to measure the disk: 2 s give a steady median, `None` measures nothing.
#[must_use]
pub fn host_report(dir: Option<&Path>, shards: usize, probe: Option<Duration>) -> HostReport {
    let mut facts = vec![host_facts::kernel(), host_facts::disk_driver(shards)];
    facts.extend(host_facts::memory_and_files(shards));
    facts.extend(host_facts::cpus(shards));
    facts.extend(host_facts::scheduler());
    facts.push(host_facts::clock_source());
    if let Some(dir) = dir {
        facts.extend(host_facts::data_dir(dir));
        if let Some(time) = probe {
            facts.extend(host_facts::measure(dir, time));
        }
    }
    HostReport { facts }
}

/// Raises the process's soft limit of open files to its hard limit, as whoever opens segments and
/// rings needs. Where the kernel refuses, it stays as it was.
pub fn raise_open_files() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer covers one rlimit that is ours to write.
    let known = check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }).is_ok();
    if known && limit.rlim_cur < limit.rlim_max {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: the pointer covers one rlimit that outlives the call.
        let _ = check(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) });
    }
}

impl fmt::Display for HostReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self
            .facts
            .iter()
            .map(|fact| fact.name.len())
            .max()
            .unwrap_or(0);
        for fact in &self.facts {
            writeln!(f, "{:<4}  {:<width$}  {fact}", fact.verdict, fact.name)?;
        }
        Ok(())
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.value)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Fact, HostReport, Verdict, host_report};
    use std::time::Duration;

    #[test]
    fn a_report_says_all_it_was_asked_one_fact_a_line() {
        let dir = tempfile::tempdir().expect("a folder");
        let report = host_report(Some(dir.path()), 1, Some(Duration::from_millis(50)));
        let text = report.to_string();
        for name in [
            "kernel",
            "disk driver",
            "locked memory",
            "open files",
            "CPUs",
            "CPU quota",
            "spinning",
            "tick",
            "preemption",
            "autogroup",
            "clock",
            "data directory",
            "O_DIRECT",
            "durable 4 KiB",
            "read 4 KiB",
        ] {
            let count = report.facts.iter().filter(|fact| fact.name == name).count();
            assert_eq!(count, 1, "{name} in\n{text}");
        }
        assert_eq!(text.lines().count(), report.facts.len(), "{text}");
        for fact in &report.facts {
            assert_eq!(
                fact.verdict == Verdict::Ok,
                fact.remedy.is_empty(),
                "{fact:?}"
            );
        }
    }

    #[test]
    fn the_worst_line_is_the_verdict() {
        let mut report = HostReport::default();
        assert_eq!(report.verdict(), Verdict::Ok);
        report.facts.push(Fact::fail("a", "x", "y"));
        report.facts.push(Fact::warn("b", "x", "y"));
        assert_eq!(report.verdict(), Verdict::Fail);
    }

    #[test]
    fn a_missing_directory_is_a_failed_line() {
        let dir = tempfile::tempdir().expect("a folder");
        let report = host_report(Some(&dir.path().join("none")), 1, None);
        assert_eq!(report.verdict(), Verdict::Fail, "{report}");
    }
}
