//! Who is active on a Failover subscription, and since when it may be sent to (rules D69 to D75).
//!
//! The caller tells of attachments, of the time, and, while a new active waits for the old one, of
//! what that still holds. It learns the active, whom to tell, and when to come back.

use std::collections::{BTreeMap, VecDeque};

use crate::keys::murmur3_32;

/// One Failover subscription. Times are monotonic nanoseconds.
#[derive(Debug)]
pub(crate) struct Election {
    /// The k of "candidate k mod n".
    k: u64,
    /// Partitions only: the elected one takes over from an equal once membership was still for so long.
    quiet_ns: Option<u64>,
    /// How long a new active waits for what the old one holds (`activeConsumerFailoverDelayTimeMillis`).
    takeover_ns: u64,
    /// By priority, then name bytes, then arrival.
    members: Vec<Member>,
    /// The last join or leave.
    membership_ns: u64,
    active: Option<u32>,
    takeover: Option<Takeover>,
    departures: Departures,
}

/// Where a subscription's election differs from another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ElectionOptions {
    /// `failoverRebalanceQuietMillis`, in nanoseconds.
    pub(crate) quiet_ns: u64,
    /// `activeConsumerFailoverDelayTimeMillis`, in nanoseconds.
    pub(crate) takeover_ns: u64,
}

#[derive(Debug)]
struct Member {
    slot: u32,
    priority: i32,
    name: Box<str>,
    /// Until then it may not take over from a living active (rule D71).
    damped_until_ns: u64,
}

/// The former active, which may hold entries that come before those of the new one.
#[derive(Clone, Copy, Debug)]
struct Takeover {
    old: u32,
    since_ns: u64,
    until_ns: u64,
}

/// A new active that waits for the former one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakeoverWait {
    pub(crate) old: u32,
    pub(crate) new: u32,
    pub(crate) since_ns: u64,
    pub(crate) until_ns: u64,
}

/// What an attachment, an end or the time changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nobody is to be told.
    Nothing,
    /// A newcomer is not the active.
    NotElected(u32),
    /// The active changed: raise the read epoch and restart at the first unacked message (rule D74).
    Changed {
        /// Who was; attached or not. It gets nothing any more.
        old: Option<u32>,
        /// Who is. [`Election::may_start`] tells when it may be sent to.
        new: Option<u32>,
    },
}

impl Default for ElectionOptions {
    fn default() -> Self {
        Self {
            quiet_ns: SECOND_NS,
            takeover_ns: SECOND_NS,
        }
    }
}

const SECOND_NS: u64 = 1_000_000_000;

impl Election {
    /// Nobody is attached. `partition` is the number of the partition, or `None` if the topic is none.
    #[must_use]
    pub(crate) fn new(topic: &str, partition: Option<u32>, options: ElectionOptions) -> Self {
        let hashed = || murmur3_32(topic.as_bytes()) & 0x7fff_ffff;
        Self {
            k: u64::from(partition.unwrap_or_else(hashed)),
            quiet_ns: partition.map(|_| options.quiet_ns),
            takeover_ns: options.takeover_ns,
            members: Vec::new(),
            membership_ns: 0,
            active: None,
            takeover: None,
            departures: Departures::default(),
        }
    }

    /// A consumer attached. A lower `priority` number goes first.
    pub(crate) fn join(&mut self, slot: u32, name: &str, priority: i32, now_ns: u64) -> Step {
        let order = |member: &Member| (member.priority, &*member.name) <= (priority, name);
        let at = self.members.partition_point(order);
        let member = Member {
            slot,
            priority,
            name: name.into(),
            damped_until_ns: now_ns.saturating_add(self.departures.damping_ns(name)),
        };
        self.members.insert(at, member);
        self.membership_ns = now_ns;
        match self.elect(now_ns) {
            Step::Nothing => Step::NotElected(slot),
            changed => changed,
        }
    }

    /// An attachment ended, and what it held went to replay.
    pub(crate) fn leave(&mut self, slot: u32, now_ns: u64) -> Step {
        let Some(at) = self.members.iter().position(|member| member.slot == slot) else {
            return Step::Nothing;
        };
        let member = self.members.remove(at);
        self.membership_ns = now_ns;
        self.old_holds(slot, 0);
        if self.active != Some(slot) {
            return self.elect(now_ns);
        }
        self.departures.note(member.name, now_ns);
        self.active = None;
        let heir = self.elected().map(|member| member.slot);
        self.change(Some(slot), heir)
    }

    /// Time went on to `now_ns`: what [`Self::next_deadline_ns`] gave may be due.
    pub(crate) fn tick(&mut self, now_ns: u64) -> Step {
        if self
            .takeover
            .is_some_and(|takeover| takeover.until_ns <= now_ns)
        {
            self.takeover = None;
        }
        self.elect(now_ns)
    }

    /// What the former active still holds: to be told after a change, and whenever it falls.
    pub(crate) fn old_holds(&mut self, slot: u32, messages: u64) {
        if messages == 0 && self.takeover.is_some_and(|takeover| takeover.old == slot) {
            self.takeover = None;
        }
    }

    /// The active, if it need not wait for the former one (rule D73).
    #[must_use]
    pub(crate) fn may_start(&self) -> Option<u32> {
        self.active.filter(|_| self.takeover.is_none())
    }

    /// Who waits for whom, if the active does.
    #[must_use]
    pub(crate) fn takeover(&self) -> Option<TakeoverWait> {
        let (new, takeover) = self.active.zip(self.takeover)?;
        Some(TakeoverWait {
            old: takeover.old,
            new,
            since_ns: takeover.since_ns,
            until_ns: takeover.until_ns,
        })
    }

    /// Whom to tell, before the new active's first message, whether it is active (rule D75).
    pub(crate) fn notices(&self, step: Step) -> impl Iterator<Item = (u32, bool)> {
        let told = move |slot| match step {
            Step::Nothing => false,
            Step::NotElected(newcomer) => newcomer == slot,
            Step::Changed { .. } => true,
        };
        let slots = self.members.iter().map(|member| member.slot);
        let told = slots.filter(move |&slot| told(slot));
        told.map(|slot| (slot, self.active == Some(slot)))
    }

    /// When [`Self::tick`] may change something, if nobody comes or goes before.
    #[must_use]
    pub(crate) fn next_deadline_ns(&self) -> Option<u64> {
        let takeover = self.takeover.map(|takeover| takeover.until_ns);
        let better = self
            .better()
            .iter()
            .map(|member| member.damped_until_ns)
            .min();
        let equal = self.equal().map(|(_, from_ns)| from_ns);
        [takeover, better, equal].into_iter().flatten().min()
    }

    /// Rule D70: no living active is replaced at once, a living one only by one of a lower number,
    /// or by the elected one of its own once that is due.
    fn elect(&mut self, now_ns: u64) -> Step {
        let Some(active) = self.active else {
            return match self.elected().map(|member| member.slot) {
                Some(slot) => self.change(None, Some(slot)),
                None => Step::Nothing,
            };
        };
        let free = |member: &&Member| member.damped_until_ns <= now_ns;
        let better = self.better().iter().filter(free);
        let due = self.equal().filter(|&(_, from_ns)| from_ns <= now_ns);
        let elected = pick(self.k, better).or(due.map(|(member, _)| member));
        let Some(slot) = elected.map(|member| member.slot) else {
            return Step::Nothing;
        };
        // One that never started holds nothing; who is waited for stays the same, and so does the end.
        self.takeover.get_or_insert(Takeover {
            old: active,
            since_ns: now_ns,
            until_ns: now_ns.saturating_add(self.takeover_ns),
        });
        self.change(Some(active), Some(slot))
    }

    fn change(&mut self, old: Option<u32>, new: Option<u32>) -> Step {
        self.active = new;
        // Nobody waits for itself, and nobody waits if there is nobody.
        self.takeover = self
            .takeover
            .filter(|takeover| new.is_some_and(|new| takeover.old != new));
        Step::Changed { old, new }
    }

    /// Those of the lowest priority number (rule D69).
    fn candidates(&self) -> &[Member] {
        let lowest = self.members.first().map_or(0, |member| member.priority);
        let end = self
            .members
            .partition_point(|member| member.priority == lowest);
        &self.members[..end]
    }

    fn elected(&self) -> Option<&Member> {
        pick(self.k, self.candidates().iter())
    }

    /// The candidates, if their number is lower than that of the living active.
    fn better(&self) -> &[Member] {
        let candidates = self.candidates();
        let is_one = |slot| candidates.iter().any(|member| member.slot == slot);
        match self.active {
            Some(active) if !is_one(active) => candidates,
            _ => &[],
        }
    }

    /// On a partition, the elected one that is to replace a living active of equal priority, and
    /// from when on.
    fn equal(&self) -> Option<(&Member, u64)> {
        let quiet_ns = self.quiet_ns?;
        let active = self.active.filter(|_| self.better().is_empty())?;
        let elected = self.elected().filter(|member| member.slot != active)?;
        let still_ns = self.membership_ns.saturating_add(quiet_ns);
        Some((elected, still_ns.max(elected.damped_until_ns)))
    }
}

/// The member k mod n of n.
fn pick<'a>(k: u64, mut members: impl Iterator<Item = &'a Member> + Clone) -> Option<&'a Member> {
    let n = members.clone().count() as u64;
    let at = k.checked_rem(n)?;
    members.nth(usize::try_from(at).ok()?)
}

/// Names that left while they were active (rule D71), the latest ones.
#[derive(Debug, Default)]
struct Departures {
    by_name: BTreeMap<Box<str>, Departure>,
    /// Names in order of their first departure that is still known.
    order: VecDeque<Box<str>>,
}

#[derive(Clone, Copy, Debug)]
struct Departure {
    last_ns: u64,
    damping_ns: u64,
}

/// Names kept. Clients that take a fresh name each time would fill any memory.
const DEPARTURES_MAX: usize = 256;
const DAMPING_MIN_NS: u64 = SECOND_NS;
const DAMPING_MAX_NS: u64 = 30 * SECOND_NS;
const DEPARTURE_WINDOW_NS: u64 = 60 * SECOND_NS;

impl Departures {
    fn note(&mut self, name: Box<str>, now_ns: u64) {
        let known = self.by_name.get(&name);
        let damping_ns = match known {
            Some(last) if now_ns.saturating_sub(last.last_ns) <= DEPARTURE_WINDOW_NS => {
                (last.damping_ns * 2).min(DAMPING_MAX_NS)
            }
            _ => DAMPING_MIN_NS,
        };
        if known.is_none() {
            self.order.push_back(name.clone());
            if self.order.len() > DEPARTURES_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.by_name.remove(&oldest);
            }
        }
        let departure = Departure {
            last_ns: now_ns,
            damping_ns,
        };
        self.by_name.insert(name, departure);
    }

    fn damping_ns(&self, name: &str) -> u64 {
        self.by_name
            .get(name)
            .map_or(0, |departure| departure.damping_ns)
    }
}

#[cfg(test)]
mod tests;
