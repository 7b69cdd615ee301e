//! Whether io_uring can be had here, decided once for all shards, with the reason (runtime 4).

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::OnceLock;

use crate::affinity::cpus_allowed;
use crate::ladder::{Step, builder, ladder};
use crate::probe_child::{ChildVerdict, try_in_child};
use crate::probe_self::self_test;
use crate::uring::{CQ_ENTRIES, SQ_ENTRIES, UringOptions};

/// What the operator wants: auto, uring or pread, by `DISK` or by the engine's builder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskChoice {
    /// io_uring where it can be had, else the pread pool.
    #[default]
    Auto,
    /// io_uring, or no start.
    Uring,
    /// The pread pool: the off switch (runtime 4.5).
    Pread,
}

/// The two drivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// One io_uring per shard.
    Uring,
    /// Threads that call pread and fdatasync.
    Pread,
}

/// The decision for all disks of a process.
#[derive(Clone, Debug)]
pub struct DiskPlan {
    report: DiskReport,
    pub(crate) options: UringOptions,
}

/// What a disk runs on, and why. [`fmt::Display`] is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskReport {
    /// The driver.
    pub backend: Backend,
    /// With io_uring: step of the ladder of flags, 1 (all of them) to 5.
    pub step: Option<u8>,
    /// Whether the ring is restricted to its six opcodes.
    pub restricted: bool,
    /// Why it is not io_uring, or not step 1.
    pub why: Option<String>,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// Uring is chosen, and it cannot be had (runtime 4.4).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "io_uring is asked for and cannot be had: {why}; {remedy}, or choose the driver auto (DISK=auto)"
)]
pub struct DiskPlanError {
    /// Why.
    pub why: String,
    /// What to do about it.
    pub remedy: String,
}

/// Why io_uring is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Refusal {
    why: String,
    remedy: String,
}

impl DiskChoice {
    /// What the environment variable `DISK` says: `auto`, `uring`, `pread`, any case; absent or
    /// empty is `Auto`.
    ///
    /// # Errors
    /// The value, if it is none of these.
    pub fn from_env() -> Result<Self, String> {
        std::env::var("DISK").map_or(Ok(Self::Auto), |value| Self::parse(&value))
    }

    /// One of `auto`, `uring`, `pread`.
    ///
    /// # Errors
    /// The value, if it is none of these.
    pub fn parse(value: &str) -> Result<Self, String> {
        match value.trim().to_ascii_lowercase().as_str() {
            "" | "auto" => Ok(Self::Auto),
            "uring" => Ok(Self::Uring),
            "pread" => Ok(Self::Pread),
            _ => Err(format!("disk is auto, uring or pread, not {value:?}")),
        }
    }
}

impl DiskPlan {
    /// Decides for an engine of `shards` shards: the same for all of them, never some on a ring
    /// and some not. Looks, and tries a ring out, once per process; then makes as many rings as
    /// there are shards, since the memory they lock may be limited.
    ///
    /// # Errors
    /// Uring is chosen and cannot be had for all, with the remedy.
    pub fn decide(choice: DiskChoice, shards: usize) -> Result<Self, DiskPlanError> {
        let plan = Self::probed(choice)?;
        if plan.backend() == Backend::Pread {
            return Ok(plan);
        }
        let step = Step(plan.report.step.unwrap_or(1));
        let build = || builder(step, CQ_ENTRIES).build(SQ_ENTRIES);
        // All of them at once, then none: `Disk::open` waits for the memory to come back.
        let rings: io::Result<Vec<_>> = (0..shards).map(|_| build()).collect();
        match rings {
            Ok(_) => Ok(plan),
            Err(error) => {
                let Refusal { why, remedy } = refusal_of(&error);
                let why = format!("not for {shards} shards: {why}");
                Self::of(choice, Err(Refusal { why, remedy }))
            }
        }
    }

    /// What the probe says, which is made once per process.
    fn probed(choice: DiskChoice) -> Result<Self, DiskPlanError> {
        static PROBED: OnceLock<Result<Step, Refusal>> = OnceLock::new();
        let probed = match choice {
            DiskChoice::Pread => Err(Refusal {
                why: "it is chosen".to_owned(),
                remedy: "choose auto (DISK=auto) for io_uring".to_owned(),
            }),
            _ => PROBED.get_or_init(|| probe(Path::new("/proc"))).clone(),
        };
        Self::of(choice, probed)
    }

    fn of(choice: DiskChoice, probed: Result<Step, Refusal>) -> Result<Self, DiskPlanError> {
        let mut report = DiskReport {
            backend: Backend::Uring,
            step: None,
            restricted: false,
            why: None,
            remedy: None,
        };
        match probed {
            Ok(step) => report.reached(step),
            Err(Refusal { why, remedy }) if choice == DiskChoice::Uring => {
                return Err(DiskPlanError { why, remedy });
            }
            Err(refusal) => {
                report.backend = Backend::Pread;
                report.why = Some(refusal.why);
                report.remedy = Some(refusal.remedy);
            }
        }
        Ok(Self {
            report,
            options: UringOptions::new(Step(1), *cpus_allowed()),
        })
    }

    /// Begins the ladder of flags lower down, for tests of the steps (runtime 2.1: everything
    /// runs on the ring, on the ring at step 3 and on pread).
    #[must_use]
    pub fn from_step(mut self, step: u8) -> Self {
        self.options.first_step = Step(step.clamp(1, 5));
        self
    }

    /// The driver that every disk gets.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.report.backend
    }

    /// The decision in words.
    #[must_use]
    pub fn report(&self) -> &DiskReport {
        &self.report
    }

    pub(crate) fn uring_options(&self) -> UringOptions {
        self.options
    }

    /// A ring that the probe got and a shard did not, in the operator's words.
    #[expect(clippy::unused_self, reason = "the plan is what the error is about")]
    pub(crate) fn explain_build(&self, error: &io::Error) -> io::Error {
        let refusal = refusal_of(error);
        let text = format!("a shard's io_uring: {}; {}", refusal.why, refusal.remedy);
        io::Error::new(error.kind(), text)
    }
}

impl DiskReport {
    /// A ring was built for real.
    pub(crate) fn built(&mut self, step: Step, restricted: bool) {
        self.restricted = restricted;
        self.reached(step);
    }

    fn reached(&mut self, step: Step) {
        self.step = Some(step.0);
        self.why = (step.0 > 1).then(|| format!("the kernel takes flags from step {} on", step.0));
        self.remedy = (step.0 > 1).then(|| {
            let lost = match step.0 {
                2 => "nothing measurable is lost",
                3 => "completions interrupt sleeps; correct, slower",
                4 => "the kernel does not check who submits",
                _ => "one more system call before each sleep",
            };
            format!("kernel 6.6 has all ({lost})")
        });
    }
}

impl fmt::Display for DiskReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.backend, self.step) {
            (Backend::Uring, Some(step)) => write!(f, "io_uring, flags of step {step}")?,
            (Backend::Uring, None) => f.write_str("io_uring")?,
            (Backend::Pread, _) => f.write_str("pread pool")?,
        }
        if let Some(why) = &self.why {
            write!(f, ": {why}")?;
        }
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

/// In the order of runtime 4.1: sysctl, seccomp, build, opcodes, self-test.
fn probe(proc: &Path) -> Result<Step, Refusal> {
    let sysctl = read_word(&proc.join("sys/kernel/io_uring_disabled"));
    if sysctl.as_deref() == Some("2") {
        return Err(Refusal {
            why: "kernel.io_uring_disabled is 2".to_owned(),
            remedy: "sysctl kernel.io_uring_disabled=0".to_owned(),
        });
    }
    if seccomp_mode(proc) == Some(2) {
        // A filter may answer with a signal that kills: a child finds out (runtime 4.2).
        match try_in_child() {
            ChildVerdict::Works => {}
            ChildVerdict::Errno(errno) => {
                let name = errno_name(errno);
                return Err(seccomp_refusal(&format!("answers {name} to io_uring")));
            }
            ChildVerdict::Signal(signal) => {
                return Err(seccomp_refusal(&format!(
                    "kills io_uring with signal {signal}"
                )));
            }
            ChildVerdict::Unknown(error) => {
                return Err(seccomp_refusal(&format!(
                    "is there and cannot be tried out ({error})"
                )));
            }
        }
    }
    let (ring, step) = ladder(Step(1), |step| builder(step, CQ_ENTRIES).build(SQ_ENTRIES))
        .map_err(|error| match sysctl.as_deref() {
            Some("1") if error.raw_os_error() == Some(libc::EPERM) => Refusal {
                why: "kernel.io_uring_disabled is 1 and this user is not in io_uring_group"
                    .to_owned(),
                remedy: "sysctl kernel.io_uring_disabled=0, or add the group".to_owned(),
            },
            _ => refusal_of(&error),
        })?;
    self_test(ring).map_err(|why| Refusal {
        why: format!("the self-test failed: {why}"),
        remedy: "allow io_uring_enter and io_uring_register, or take a newer kernel".to_owned(),
    })?;
    Ok(step)
}

/// The whole decision with another `/proc`, not remembered.
#[cfg(test)]
pub(crate) fn probed_report(choice: DiskChoice, proc: &Path) -> Result<DiskReport, DiskPlanError> {
    DiskPlan::of(choice, probe(proc)).map(|plan| plan.report)
}

fn seccomp_refusal(what: &str) -> Refusal {
    Refusal {
        why: format!("a seccomp filter (Seccomp: 2) {what}"),
        remedy: "allow io_uring_setup, io_uring_enter and io_uring_register in the container's \
                 seccomp profile"
            .to_owned(),
    }
}

fn refusal_of(error: &io::Error) -> Refusal {
    let errno = error.raw_os_error().unwrap_or(0);
    let (why, remedy) = match errno {
        libc::ENOMEM => {
            let limit = memlock_limit();
            (
                format!("ENOMEM: no locked memory left for a ring (limit {limit})"),
                "raise it: ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit",
            )
        }
        libc::ENOSYS => (
            "ENOSYS: the kernel has no io_uring".to_owned(),
            "take kernel 6.1 or newer",
        ),
        libc::EPERM => (
            "EPERM: io_uring is forbidden here".to_owned(),
            "allow it: kernel.io_uring_disabled, seccomp profile, security module",
        ),
        libc::EINVAL => (
            "EINVAL: the kernel is older than 5.18".to_owned(),
            "take kernel 6.1 or newer",
        ),
        _ => (
            format!("{} ({error})", errno_name(errno)),
            "see errno; pread works meanwhile",
        ),
    };
    Refusal {
        why,
        remedy: remedy.to_owned(),
    }
}

/// The soft limit of locked memory, as people read it.
pub(crate) fn memlock_limit() -> String {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer covers one rlimit that is ours to write.
    let code = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) };
    match (code, limit.rlim_cur) {
        (0, libc::RLIM_INFINITY) => "unlimited".to_owned(),
        (0, bytes) => format!("{} KiB", bytes / 1024),
        _ => "unknown".to_owned(),
    }
}

/// `Seccomp:` of this thread's status, which the shards inherit: 0 none, 1 strict, 2 filter.
pub(crate) fn seccomp_mode(proc: &Path) -> Option<u32> {
    let status = fs::read_to_string(proc.join("thread-self/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"))?;
    line.trim().parse().ok()
}

pub(crate) fn read_word(path: &Path) -> Option<String> {
    fs::read_to_string(path)
        .ok()
        .map(|text| text.trim().to_owned())
}

fn errno_name(errno: i32) -> String {
    match errno {
        libc::EPERM => "EPERM".to_owned(),
        libc::ENOSYS => "ENOSYS".to_owned(),
        libc::EACCES => "EACCES".to_owned(),
        libc::ENOMEM => "ENOMEM".to_owned(),
        libc::EMFILE => "EMFILE".to_owned(),
        other => format!("errno {other}"),
    }
}
