//! The facts of the host report, each from where the kernel says it.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::affinity::cpus_allowed;
use crate::cgroup::quota;
use crate::clock::nanos;
use crate::file::{Access, IoMode, SegmentFile};
use crate::host::Fact;
use crate::limits::raw_fdatasync_ns;
use crate::memory::Memory;
use crate::probe::{Backend, DiskChoice, DiskPlan, memlock_limit, read_word};
use crate::spin::{SpinInput, SpinVerdict, spin_verdict};
use crate::syscall::check;

/// One ring of 256 and 1,024 entries (runtime 1.3).
const RING_BYTES: u64 = 36 << 10;
/// Descriptors a shard owns besides files and sockets, and a margin for those.
const FILES_PER_SHARD: u64 = 4 + 64;
const FILES_BASE: u64 = 64;

pub(crate) fn kernel() -> Fact {
    let release = read_word(Path::new("/proc/sys/kernel/osrelease")).unwrap_or_default();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|word| word.parse::<u32>());
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) >= (6, 1) => {
            Fact::ok("kernel", release)
        }
        _ => Fact::warn(
            "kernel",
            release,
            "6.1 or newer has the io_uring that Pelton is made for",
        ),
    }
}

pub(crate) fn disk_driver(shards: usize) -> Fact {
    let choice = match DiskChoice::from_env() {
        Ok(choice) => choice,
        Err(why) => {
            let remedy = "set the environment variable DISK to one of these";
            return Fact::fail("disk driver", why, remedy);
        }
    };
    match DiskPlan::decide(choice, shards.max(1)) {
        Err(error) => Fact::fail("disk driver", error.why, error.remedy),
        Ok(plan) => {
            let report = plan.report();
            match (&report.why, &report.remedy) {
                (Some(why), Some(remedy)) => {
                    let name = match report.backend {
                        Backend::Uring => "io_uring",
                        Backend::Pread => "pread pool",
                    };
                    Fact::warn("disk driver", format!("{name}: {why}"), remedy.clone())
                }
                _ => Fact::ok("disk driver", report.to_string()),
            }
        }
    }
}

pub(crate) fn memory_and_files(shards: usize) -> Vec<Fact> {
    let shards = shards.max(1) as u64;
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the pointer covers one rlimit that is ours to write.
    let known = check(unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) }).is_ok();
    let need = shards * RING_BYTES;
    // SAFETY: geteuid takes nothing and touches no memory of ours.
    let root = unsafe { libc::geteuid() } == 0;
    let text = format!("limit {}, {} KiB needed", memlock_limit(), need / 1024);
    let memory = if root {
        Fact::ok("locked memory", format!("{text}, root is exempt"))
    } else if known && limit.rlim_cur >= need {
        Fact::ok("locked memory", text)
    } else {
        Fact::warn(
            "locked memory",
            text,
            "ulimit -l unlimited, or LimitMEMLOCK=infinity",
        )
    };

    let need = FILES_BASE + shards * FILES_PER_SHARD;
    // SAFETY: the pointer covers one rlimit that is ours to write.
    let known = check(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) }).is_ok();
    // The hard limit: opening an engine raises the soft one to it.
    let text = format!("limit {}, {need} needed", limit.rlim_max);
    let files = if known && limit.rlim_max >= need {
        Fact::ok("open files", text)
    } else {
        Fact::fail(
            "open files",
            text,
            format!("ulimit -Hn {}", need.next_power_of_two()),
        )
    };
    vec![memory, files]
}

pub(crate) fn cpus(shards: usize) -> Vec<Fact> {
    let allowed = cpus_allowed();
    let count = allowed.len();
    let text = format!("{allowed} allowed, {shards} shards");
    let cpus = if shards <= count {
        Fact::ok("CPUs", text)
    } else {
        Fact::warn("CPUs", text, format!("take at most {count} shards"))
    };
    let limit = quota();
    let quota_milli_cpus = limit.as_ref().map(|quota| quota.milli_cpus);
    let quota = match &limit {
        None => Fact::ok("CPU quota", "none"),
        Some(quota) => {
            let text = format!(
                "{}.{:03} CPUs, by {}",
                quota.milli_cpus / 1000,
                quota.milli_cpus % 1000,
                quota.set_by.display()
            );
            if (quota.milli_cpus as usize) < count * 1000 {
                let remedy = "raise cpu.max to the allowed CPUs, or allow fewer CPUs: a used-up \
                              quota stops the engine for up to 100 ms";
                Fact::warn("CPU quota", text, remedy)
            } else {
                Fact::ok("CPU quota", text)
            }
        }
    };
    let verdict = spin_verdict(&SpinInput {
        shards,
        polling_consumers: 0,
        consumer_shares_cpu: false,
        cpus_allowed: count,
        quota_milli_cpus,
    });
    let spinning = match verdict {
        SpinVerdict::Off(_) => {
            let remedy = "more CPUs, or fewer shards; without spinning a wake costs 13 to 31 us";
            Fact::warn("spinning", verdict.to_string(), remedy)
        }
        _ => Fact::ok("spinning", verdict.to_string()),
    };
    vec![cpus, quota, spinning]
}

pub(crate) fn scheduler() -> Vec<Fact> {
    let tick = match tick_hz() {
        Some(hz) => Fact::ok("tick", format!("{hz} Hz, {} us", 1_000_000 / hz)),
        None => Fact::ok("tick", "unknown"),
    };
    let preemption = match read_word(Path::new("/sys/kernel/debug/sched/preempt")) {
        Some(text) => Fact::ok("preemption", text),
        None => {
            let version = read_word(Path::new("/proc/sys/kernel/version")).unwrap_or_default();
            let word = version.split(' ').find(|word| word.starts_with("PREEMPT"));
            Fact::ok("preemption", word.unwrap_or("none").to_owned())
        }
    };
    let autogroup = match read_word(Path::new("/proc/sys/kernel/sched_autogroup_enabled")) {
        Some(text) if text == "1" => Fact::ok("autogroup", "on"),
        Some(_) => Fact::ok("autogroup", "off"),
        None => Fact::ok("autogroup", "not there"),
    };
    vec![tick, preemption, autogroup]
}

/// The tick from the kernel's own configuration, where it can be read.
fn tick_hz() -> Option<u32> {
    let release = read_word(Path::new("/proc/sys/kernel/osrelease"))?;
    let config = fs::read_to_string(format!("/boot/config-{release}")).ok()?;
    let line = config
        .lines()
        .find_map(|line| line.strip_prefix("CONFIG_HZ="))?;
    line.trim().parse().ok().filter(|hz| *hz > 0)
}

pub(crate) fn clock_source() -> Fact {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    match read_word(Path::new(path)) {
        None => Fact::ok("clock", "unknown"),
        Some(name) if ["tsc", "kvm-clock", "arch_sys_counter"].contains(&name.as_str()) => {
            Fact::ok("clock", name)
        }
        Some(name) => {
            let remedy =
                "a clock read is a system call; boot with clocksource=tsc where it is stable";
            Fact::warn("clock", name, remedy)
        }
    }
}

pub(crate) fn data_dir(dir: &Path) -> Vec<Fact> {
    if !dir.is_dir() {
        let text = format!("{} is no directory", dir.display());
        return vec![Fact::fail(
            "data directory",
            text,
            format!("mkdir -p {}", dir.display()),
        )];
    }
    let kind = file_system(dir);
    let text = format!("{} on {kind}", dir.display());
    let place = match kind.as_str() {
        "tmpfs" | "ramfs" => Fact::warn(
            "data directory",
            text,
            "use a disk: this is lost when the machine stops",
        ),
        "nfs" | "overlayfs" => Fact::warn(
            "data directory",
            text,
            "use a local file system (ext4, xfs)",
        ),
        _ => Fact::ok("data directory", text),
    };
    let direct = match with_scratch(dir, 0, |file| (file.io_mode(), file.direct_align())) {
        Err(error) => Fact::fail(
            "O_DIRECT",
            error.to_string(),
            "make the directory writable for this user",
        ),
        Ok((IoMode::Direct, align)) => Fact::ok("O_DIRECT", format!("{align} bytes aligned")),
        Ok(_) => Fact::warn(
            "O_DIRECT",
            format!("refused by {kind}"),
            "use ext4 or xfs: backlog reads go through the page cache here",
        ),
    };
    vec![place, direct]
}

/// Measures durable writes for half of the time and cold reads for the other.
pub(crate) fn measure(dir: &Path, time: Duration) -> Vec<Fact> {
    let half = time / 2;
    let durable = match durable_ns(dir, half) {
        Err(error) => Fact::fail("durable 4 KiB", error.to_string(), "see the error"),
        Ok(ns) => {
            let text = format!("{} us", ns / 1000);
            if near_tick(ns, tick_hz().unwrap_or(250)) {
                let remedy = "CPUs oversubscribed: a sync takes whole scheduler ticks; give this \
                              machine fewer busy threads or more CPUs";
                Fact::warn("durable 4 KiB", text, remedy)
            } else {
                Fact::ok("durable 4 KiB", text)
            }
        }
    };
    let read = match read_ns(dir, half) {
        Err(error) => Fact::fail("read 4 KiB", error.to_string(), "see the error"),
        Ok(ns) => Fact::ok("read 4 KiB", format!("{} us", ns / 1000)),
    };
    vec![durable, read]
}

/// Whether a time is within 5 % of a multiple of the tick (runtime 4.6).
fn near_tick(ns: u64, hz: u32) -> bool {
    let tick = 1_000_000_000 / u64::from(hz.max(1));
    let times = (ns + tick / 2) / tick;
    times > 0 && ns.abs_diff(times * tick) * 20 <= times * tick
}

fn durable_ns(dir: &Path, time: Duration) -> std::io::Result<u64> {
    let one = raw_fdatasync_ns(dir, 1)?.max(1);
    let rounds = nanos(time) / one;
    raw_fdatasync_ns(dir, usize::try_from(rounds.clamp(3, 10_000)).unwrap_or(3))
}

fn read_ns(dir: &Path, time: Duration) -> std::io::Result<u64> {
    const PAGES: u64 = 1024;
    with_scratch(dir, PAGES, |file| {
        let mut memory = Memory::new(4096);
        let (start, mut took) = (Instant::now(), Vec::new());
        while took.len() < 3 || (start.elapsed() < time && took.len() < 10_000) {
            // Not in order, so that no layer below reads ahead.
            let page = (took.len() as u64 * 389) % PAGES;
            let before = Instant::now();
            file.read_once(file.io_mode(), page * 4096, memory.as_mut_slice())?;
            took.push(before.elapsed().as_nanos());
        }
        took.sort_unstable();
        Ok(u64::try_from(took[took.len() / 2]).unwrap_or(u64::MAX))
    })?
}

/// Runs with a synced file of so many 4 KiB pages, and removes it.
fn with_scratch<T>(
    dir: &Path,
    pages: u64,
    run: impl FnOnce(&SegmentFile) -> T,
) -> std::io::Result<T> {
    let path = dir.join(format!(".pelton-check-{}", std::process::id()));
    let _ = fs::remove_file(&path);
    let file = SegmentFile::open(&path, Access::CreateNew, true)?;
    let filled = crate::file::zero_range(&file, 0, pages * 4096);
    let result = filled.map(|()| run(&file));
    let _ = fs::remove_file(&path);
    result
}

/// The name of the file system under a directory.
fn file_system(dir: &Path) -> String {
    let Ok(path) = crate::file::c_path(dir) else {
        return "unknown".to_owned();
    };
    // SAFETY: a statfs is made of integers; all zeros is one.
    let mut answer: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path is a C string and the answer is ours, both outlive the call.
    if check(unsafe { libc::statfs(path.as_ptr(), &raw mut answer) }).is_err() {
        return "unknown".to_owned();
    }
    // Numbers of linux/magic.h; their type differs by target, their low 32 bits do not.
    match answer.f_type as u32 {
        0xef53 => "ext4".to_owned(),
        0x5846_5342 => "xfs".to_owned(),
        0x9123_683e => "btrfs".to_owned(),
        0x0102_1994 => "tmpfs".to_owned(),
        0x8584_58f6 => "ramfs".to_owned(),
        0x794c_7630 => "overlayfs".to_owned(),
        0x6969 => "nfs".to_owned(),
        0xf2f5_2010 => "f2fs".to_owned(),
        0x2fc1_2fc1 => "zfs".to_owned(),
        other => format!("file system {other:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::near_tick;

    #[test]
    fn a_sync_of_whole_ticks_is_noticed() {
        for (ns, expected) in [
            (160_000, false),
            (3_900_000, true),
            (4_000_000, true),
            (8_300_000, true),
            (6_000_000, false),
            (0, false),
        ] {
            assert_eq!(near_tick(ns, 250), expected, "{ns}");
        }
    }
}
