//! The CPU quota of the control groups, version 1 and 2 (runtime 7.3).

use std::fs;
use std::path::{Path, PathBuf};

/// The tightest CPU quota among a process's control group and its ancestors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Thousandths of a CPU: 500 is half a CPU.
    pub milli_cpus: u32,
    /// The file that says so.
    pub set_by: PathBuf,
}

/// The quota this process lives under, `None` if nothing limits it or nothing can be read.
#[must_use]
pub fn quota() -> Option<Quota> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    quota_of(&groups, &mounts)
}

/// `groups` is the text of `/proc/self/cgroup`, `mounts` that of `/proc/self/mountinfo`.
fn quota_of(groups: &str, mounts: &str) -> Option<Quota> {
    let mut tightest: Option<Quota> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let version_2 = controllers.is_empty();
        if !version_2 && !controllers.split(',').any(|name| name == "cpu") {
            continue;
        }
        let Some((mount, root)) = mount_of(mounts, version_2) else {
            continue;
        };
        // A container may see only a part of the tree: what is above its root is not mounted.
        let below = group
            .strip_prefix(root.trim_end_matches('/'))
            .unwrap_or(group);
        let mut folder = mount.join(below.trim_start_matches('/'));
        loop {
            if let Some(found) = read_quota(&folder, version_2)
                && tightest
                    .as_ref()
                    .is_none_or(|known| found.milli_cpus < known.milli_cpus)
            {
                tightest = Some(found);
            }
            if folder == mount || !folder.pop() {
                break;
            }
        }
    }
    tightest
}

/// Where the hierarchy is mounted, and which of its folders is the mount's root.
fn mount_of(mounts: &str, version_2: bool) -> Option<(PathBuf, String)> {
    mounts.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut right = right.split(' ');
        let kind = right.next()?;
        let options = right.nth(1)?;
        let fits = match version_2 {
            true => kind == "cgroup2",
            false => kind == "cgroup" && options.split(',').any(|name| name == "cpu"),
        };
        let mut left = left.split(' ');
        let root = left.nth(3)?;
        let point = left.next()?;
        fits.then(|| (PathBuf::from(point), root.to_owned()))
    })
}

fn read_quota(folder: &Path, version_2: bool) -> Option<Quota> {
    let (set_by, quota_us, period_us) = if version_2 {
        let file = folder.join("cpu.max");
        let text = fs::read_to_string(&file).ok()?;
        let mut words = text.split_whitespace();
        let quota = words.next()?.parse::<u64>().ok()?; // "max" is no number: no limit here
        (file, quota, words.next()?.parse::<u64>().ok()?)
    } else {
        let file = folder.join("cpu.cfs_quota_us");
        let quota = fs::read_to_string(&file).ok()?.trim().parse::<u64>().ok()?; // -1: no limit
        let period = fs::read_to_string(folder.join("cpu.cfs_period_us")).ok()?;
        (file, quota, period.trim().parse::<u64>().ok()?)
    };
    let milli_cpus = quota_us.checked_mul(1000)?.checked_div(period_us)?;
    Some(Quota {
        milli_cpus: u32::try_from(milli_cpus).unwrap_or(u32::MAX),
        set_by,
    })
}

#[cfg(test)]
mod tests {
    use super::quota_of;
    use std::fs;

    #[test]
    fn the_tightest_ancestor_of_version_2_wins() {
        let dir = tempfile::tempdir().expect("a folder");
        let leaf = dir.path().join("a/b");
        fs::create_dir_all(&leaf).expect("folders");
        fs::write(leaf.join("cpu.max"), "max 100000\n").expect("a file");
        fs::write(dir.path().join("a/cpu.max"), "50000 100000\n").expect("a file");
        fs::write(dir.path().join("cpu.max"), "200000 100000\n").expect("a file");
        let mounts = format!(
            "31 23 0:27 / {} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
            dir.path().display()
        );
        let found = quota_of("0::/a/b\n", &mounts).expect("a quota");
        assert_eq!(found.milli_cpus, 500);
        assert_eq!(found.set_by, dir.path().join("a/cpu.max"));
        assert_eq!(quota_of("0::/a/b\n", ""), None);
    }

    #[test]
    fn version_1_is_read_below_the_mounts_own_root() {
        let dir = tempfile::tempdir().expect("a folder");
        let leaf = dir.path().join("job");
        fs::create_dir_all(&leaf).expect("folders");
        fs::write(leaf.join("cpu.cfs_quota_us"), "150000\n").expect("a file");
        fs::write(leaf.join("cpu.cfs_period_us"), "100000\n").expect("a file");
        fs::write(dir.path().join("cpu.cfs_quota_us"), "-1\n").expect("a file");
        fs::write(dir.path().join("cpu.cfs_period_us"), "100000\n").expect("a file");
        let mounts = format!(
            "33 32 0:30 /docker/x {} rw - cgroup cgroup rw,cpu,cpuacct\n",
            dir.path().display()
        );
        let groups = "5:memory:/docker/x\n4:cpu,cpuacct:/docker/x/job\n";
        let found = quota_of(groups, &mounts).expect("a quota");
        assert_eq!(
            (found.milli_cpus, found.set_by),
            (1500, leaf.join("cpu.cfs_quota_us"))
        );
    }
}
