//! How much of the machine went to others while something was measured.

use std::fs;

/// CPU time so far, in the kernel's ticks of 10 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    /// Of all CPUs, idle or not.
    all: u64,
    /// Of all CPUs, not idle; what the hypervisor gave to other machines counts.
    busy: u64,
    /// Of this process.
    own: u64,
}

/// A moment to look back to. Where `/proc` tells nothing, it is always quiet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbours {
    since: Option<Ticks>,
}

impl Neighbours {
    /// Now.
    pub(crate) fn now() -> Neighbours {
        Neighbours { since: read() }
    }

    /// Share of all CPUs, 0 to 1, that went to other processes and other virtual machines since then;
    /// 0 if that was so short that ticks say nothing.
    pub(crate) fn share(&self) -> f64 {
        match (self.since, read()) {
            (Some(since), Some(now)) => share(since, now),
            _ => 0.0,
        }
    }
}

/// 100 ms of two CPUs: below that one tick is more than what matters.
const TICKS_MIN: u64 = 20;

fn share(since: Ticks, now: Ticks) -> f64 {
    let all = now.all.saturating_sub(since.all);
    if all < TICKS_MIN {
        return 0.0;
    }
    let busy = now.busy.saturating_sub(since.busy);
    let others = busy.saturating_sub(now.own.saturating_sub(since.own));
    others as f64 / all as f64
}

fn read() -> Option<Ticks> {
    let machine = fs::read_to_string("/proc/stat").ok()?;
    let process = fs::read_to_string("/proc/self/stat").ok()?;
    parse(&machine, &process)
}

fn parse(machine: &str, process: &str) -> Option<Ticks> {
    let cpu = machine.lines().next()?.strip_prefix("cpu ")?;
    let numbers = |text: &str| {
        let parsed = text.split_whitespace().map(str::parse::<u64>);
        parsed.collect::<Result<Vec<u64>, _>>().ok()
    };
    // user nice system idle iowait irq softirq steal; guest times are in user already.
    let numbers = numbers(cpu)?;
    let &[user, nice, system, idle, iowait, irq, softirq, steal] = numbers.get(..8)? else {
        return None;
    };
    let busy = user + nice + system + irq + softirq + steal;
    // The name may hold blanks and brackets; the last bracket ends it. Fields 14 and 15 are its times.
    let (_, fields) = process.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(str::parse::<u64>);
    let own = times.next()?.ok()? + times.next()?.ok()?;
    Some(Ticks {
        all: busy + idle + iowait,
        busy,
        own,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_idle_nor_ours_went_to_others() {
        let process = |user, system| format!("7 (a) b) R 1 2 3 4 5 6 7 8 9 10 {user} {system} 0 0");
        let since = parse("cpu  100 0 10 500 5 0 0 0 0 0\ncpu0 ...", &process(40, 2)).unwrap();
        // 100 ticks later: 60 user, 10 stolen, 30 idle; 50 of them ours.
        let now = parse("cpu  160 0 10 530 5 0 0 10 0 0\n", &process(85, 7)).unwrap();
        assert!((share(since, now) - 0.2).abs() < 1e-9, "{since:?} {now:?}");
        let later = Ticks {
            all: since.all + TICKS_MIN - 1,
            busy: since.busy + TICKS_MIN - 1,
            ..since
        };
        assert!(share(since, later) < f64::EPSILON, "too short to say");
    }

    #[test]
    fn this_machine_can_be_read_and_nonsense_is_refused() {
        assert!(read().is_some());
        assert_eq!(parse("cpu  1 2 3\n", "7 (a) R 1"), None);
        assert_eq!(parse("", ""), None);
    }
}
