//! Which CPUs the process may use, and pinning a thread to one of them (runtime 3.8, 7.3).

use std::fmt;
use std::io;
use std::mem;
use std::sync::OnceLock;

use crate::syscall::check;

/// A set of CPUs, as the kernel's affinity calls take it (CPUs 0 to 1,023).
#[derive(Clone, Copy)]
pub struct CpuSet(libc::cpu_set_t);

/// The CPUs this process could use when this was first asked.
///
/// [`pin`] asks before it narrows anything, so the answer is the one from before pinning: after
/// it, a list of CPUs is a list of one. An empty set if the kernel did not say.
#[must_use]
pub fn cpus_allowed() -> &'static CpuSet {
    static BEFORE_PINNING: OnceLock<CpuSet> = OnceLock::new();
    BEFORE_PINNING.get_or_init(|| CpuSet::of_this_thread().unwrap_or_else(|_| CpuSet::empty()))
}

/// Pins the calling thread to `cpu`.
///
/// # Errors
/// EINVAL if the CPU does not exist or the cpuset forbids it. That is a line in the report, not a
/// reason to stop (runtime 7.3).
pub fn pin(cpu: usize) -> io::Result<()> {
    let _ = cpus_allowed();
    let mut set = CpuSet::empty();
    set.add(cpu)?;
    set.apply()
}

/// The CPU the calling thread runs on now.
#[must_use]
pub fn current_cpu() -> Option<usize> {
    // SAFETY: sched_getcpu takes nothing and touches no memory of ours.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

impl CpuSet {
    /// No CPU.
    #[must_use]
    pub fn empty() -> Self {
        // SAFETY: a cpu_set_t is an array of integers; all zeros is the empty set.
        Self(unsafe { mem::zeroed() })
    }

    /// The CPUs the calling thread may run on now.
    ///
    /// # Errors
    /// Where the kernel has more CPUs than this set has places (EINVAL).
    pub fn of_this_thread() -> io::Result<Self> {
        let mut set = Self::empty();
        let size = mem::size_of::<libc::cpu_set_t>();
        // SAFETY: the pointer covers `size` bytes that are ours to write.
        check(unsafe { libc::sched_getaffinity(0, size, &raw mut set.0) })?;
        Ok(set)
    }

    /// Adds a CPU.
    ///
    /// # Errors
    /// InvalidInput from CPU 1,024 on.
    pub fn add(&mut self, cpu: usize) -> io::Result<()> {
        if cpu >= places() {
            let text = format!("CPU {cpu} is beyond the {} a set can name", places());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        // SAFETY: `cpu` is below the number of places in the set, checked above.
        unsafe { libc::CPU_SET(cpu, &mut self.0) };
        Ok(())
    }

    /// Whether a CPU is in it.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        if cpu >= places() {
            return false;
        }
        // SAFETY: `cpu` is below the number of places in the set, checked above.
        unsafe { libc::CPU_ISSET(cpu, &self.0) }
    }

    /// Its CPUs, rising.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..places()).filter(|cpu| self.contains(*cpu))
    }

    /// How many CPUs it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether it holds none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Makes it the mask of the calling thread.
    ///
    /// # Errors
    /// EINVAL if none of its CPUs exists or is allowed.
    pub fn apply(&self) -> io::Result<()> {
        let size = mem::size_of::<libc::cpu_set_t>();
        // SAFETY: the pointer covers `size` bytes that outlive the call.
        check(unsafe { libc::sched_setaffinity(0, size, &raw const self.0) })?;
        Ok(())
    }

    pub(crate) fn raw(&self) -> &libc::cpu_set_t {
        &self.0
    }
}

fn places() -> usize {
    8 * mem::size_of::<libc::cpu_set_t>()
}

impl PartialEq for CpuSet {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for CpuSet {}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As the kernel writes lists of CPUs: `0-3,8`.
impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if_eq(&(last + 1)) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{CpuSet, cpus_allowed, current_cpu, pin};

    #[test]
    fn a_set_is_written_as_the_kernel_writes_it() {
        let mut set = CpuSet::empty();
        for cpu in [0, 1, 2, 5, 7, 8] {
            set.add(cpu).expect("a small number");
        }
        assert_eq!(set.to_string(), "0-2,5,7-8");
        assert_eq!(set.len(), 6);
        assert!(set.add(1024).is_err());
        assert!(!set.contains(4096));
    }

    #[test]
    fn pinning_one_thread_leaves_the_known_mask_as_it_was() {
        let before = *cpus_allowed();
        let cpu = before.iter().next().expect("one CPU at least");
        let seen = crate::spawn_named("pinned", move || {
            pin(cpu).expect("an allowed CPU");
            (
                CpuSet::of_this_thread().expect("a mask").len(),
                current_cpu(),
            )
        });
        let (len, ran_on) = seen.expect("a thread").join().expect("no panic");
        assert_eq!((len, ran_on), (1, Some(cpu)));
        assert_eq!(*cpus_allowed(), before);
    }

    #[test]
    fn pinning_to_a_cpu_that_is_not_there_is_an_error() {
        assert!(pin(1023).is_err() || cpus_allowed().contains(1023));
    }
}
