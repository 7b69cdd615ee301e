//! Instants of the wall clock at which something has to happen though nothing else does.
//!
//! They are kept in the wall clock's own time, so a step of it changes what is due and nothing has
//! to be computed again (rule D122).

use std::collections::BTreeSet;

use crate::Now;
use crate::broker::SubIndex;

/// A sleeping shard looks at the wall clock so often while it waits for one of its instants: nobody
/// says when it steps.
const LOOK_AGAIN_MS: u64 = 1_000;

/// Who is to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sleeper {
    /// Entries of it are due.
    Sub(SubIndex),
    /// Entries of it may have outlived their time.
    Topic(u32),
    /// The first entry of it is kept no longer.
    Kept(u32),
    /// The backlog of it is too old.
    Quota(u32),
}

/// When somebody is woken, Unix milliseconds; kept by him, and nothing at first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Armed(u64);

impl Default for Armed {
    fn default() -> Self {
        Self(u64::MAX)
    }
}

impl Armed {
    /// `u64::MAX`: never.
    pub(crate) fn at_ms(self) -> u64 {
        self.0
    }

    /// He was woken.
    pub(crate) fn rung(&mut self) {
        *self = Self::default();
    }
}

#[derive(Debug, Default)]
pub(crate) struct WallAlarms {
    /// Unix milliseconds.
    queue: BTreeSet<(u64, Sleeper)>,
}

impl WallAlarms {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Wakes `who` at `at_ms` instead of when he is `armed` for; `u64::MAX` is never.
    pub(crate) fn set(&mut self, who: Sleeper, armed: &mut Armed, at_ms: u64) {
        if armed.0 == at_ms {
            return;
        }
        if armed.0 != u64::MAX {
            self.queue.remove(&(armed.0, who));
        }
        if at_ms != u64::MAX {
            self.queue.insert((at_ms, who));
        }
        armed.0 = at_ms;
    }

    pub(crate) fn disarm(&mut self, who: Sleeper, armed: &mut Armed) {
        self.set(who, armed, u64::MAX);
    }

    /// Whose instant has come; it is armed no more.
    pub(crate) fn pop_due(&mut self, now_ms: u64) -> Option<Sleeper> {
        self.queue.first().filter(|&&(at_ms, _)| at_ms <= now_ms)?;
        self.queue.pop_first().map(|(_, who)| who)
    }

    /// When to look next, monotonic nanoseconds.
    pub(crate) fn next_ns(&self, now: Now) -> Option<u64> {
        let &(at_ms, _) = self.queue.first()?;
        let wait_ms = at_ms.saturating_sub(now.wall_ms).min(LOOK_AGAIN_MS);
        Some(now.mono_ns + wait_ms * 1_000_000)
    }
}
