//! Who must be active on a Failover subscription, and whom the core has to tell (rules D69 to D75).

use std::collections::BTreeMap;

use pelton_broker::Policy;
use pelton_broker::keys::murmur3_32;

use crate::oracle::{Check, hold};

const SECOND_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct Election {
    k: u64,
    /// Partitions only: how long membership must have been still before an equal one takes over.
    quiet_ns: Option<u64>,
    delay_ns: u64,
    /// In order of arrival.
    members: Vec<Member>,
    membership_ns: u64,
    active: Option<usize>,
    /// Who may still hold earlier entries, and until when that counts.
    wait: Option<(usize, u64)>,
    /// Names that left while they were active: when, and how long that damps them.
    departures: BTreeMap<String, (u64, u64)>,
    /// Notices that must come now.
    owed: BTreeMap<usize, bool>,
}

#[derive(Clone, Debug)]
struct Member {
    consumer: usize,
    name: String,
    priority: i32,
    /// From when on it may take over from a living active.
    free_ns: u64,
}

impl Election {
    pub(crate) fn new(topic: &str, policy: &Policy) -> Election {
        let number = topic.rsplit_once("-partition-");
        let partition = number.and_then(|(_, number)| number.parse::<u32>().ok());
        let hashed = murmur3_32(topic.as_bytes()) & 0x7fff_ffff;
        let quiet_ns = policy.failover_rebalance_quiet_millis * 1_000_000;
        Election {
            k: u64::from(partition.unwrap_or(hashed)),
            quiet_ns: partition.map(|_| quiet_ns),
            delay_ns: policy.active_consumer_failover_delay_time_millis * 1_000_000,
            members: Vec::new(),
            membership_ns: 0,
            active: None,
            wait: None,
            departures: BTreeMap::new(),
            owed: BTreeMap::new(),
        }
    }

    pub(crate) fn join(&mut self, consumer: usize, name: &str, priority: i32, now_ns: u64) {
        let damping_ns = self.departures.get(name).map_or(0, |&(_, damping)| damping);
        self.members.push(Member {
            consumer,
            name: name.to_owned(),
            priority,
            free_ns: now_ns + damping_ns,
        });
        self.membership_ns = now_ns;
        if !self.elect(now_ns) {
            self.owed.insert(consumer, false);
        }
    }

    pub(crate) fn leave(&mut self, consumer: usize, now_ns: u64) {
        let Some(at) = self.members.iter().position(|m| m.consumer == consumer) else {
            return;
        };
        let member = self.members.remove(at);
        self.membership_ns = now_ns;
        self.wait = self.wait.filter(|&(old, _)| old != consumer);
        if self.active != Some(consumer) {
            self.elect(now_ns);
            return;
        }
        let damping_ns = match self.departures.get(&member.name) {
            Some(&(last, damping)) if now_ns - last <= 60 * SECOND_NS => {
                (2 * damping).min(30 * SECOND_NS)
            }
            _ => SECOND_NS,
        };
        self.departures.insert(member.name, (now_ns, damping_ns));
        let heir = pick(self.k, &self.candidates()).map(|heir| heir.consumer);
        self.change(heir);
    }

    /// Time has come to `now_ns`. True if the wait for the former active is over by it.
    pub(crate) fn tick(&mut self, now_ns: u64) -> bool {
        let over = self.wait.is_some_and(|(_, until)| until <= now_ns);
        if over {
            self.wait = None;
        }
        self.elect(now_ns);
        over
    }

    /// The former active has nothing left.
    pub(crate) fn settle(&mut self, holds: impl Fn(usize) -> bool) {
        self.wait = self.wait.filter(|&(old, _)| holds(old));
    }

    pub(crate) fn active(&self) -> Option<usize> {
        self.active
    }

    /// The one that may be sent to.
    pub(crate) fn may_start(&self) -> Option<usize> {
        self.active.filter(|_| self.wait.is_none())
    }

    /// When something must happen though nobody does anything.
    pub(crate) fn due_ns(&self) -> Option<u64> {
        let better = self.better().iter().map(|member| member.free_ns).min();
        let equal = self.equal().map(|(_, from_ns)| from_ns);
        let wait = self.wait.map(|(_, until)| until);
        [wait, better, equal].into_iter().flatten().min()
    }

    /// A notice came: it must be owed, and nobody is told to start while another is to be told to stop.
    pub(crate) fn told(&mut self, consumer: usize, active: bool) -> Check {
        let owed = self.owed.remove(&consumer);
        hold("D75 notice", owed == Some(active), || {
            format!("consumer {consumer} is told {active}, owed is {owed:?} of {self:?}")
        })?;
        let alone = !active || !self.owed.values().any(|active| !active);
        hold("D75 two active", alone, || {
            format!("{consumer} before {:?}", self.owed)
        })
    }

    pub(crate) fn check_told(&self) -> Check {
        hold("D75 notice", self.owed.is_empty(), || {
            format!("{:?} were not told", self.owed)
        })
    }

    fn elect(&mut self, now_ns: u64) -> bool {
        let Some(active) = self.active else {
            let first = pick(self.k, &self.candidates()).map(|member| member.consumer);
            if first.is_some() {
                self.change(first);
            }
            return first.is_some();
        };
        let mut better = self.better();
        better.retain(|member| member.free_ns <= now_ns);
        let equal = self.equal().filter(|&(_, from_ns)| from_ns <= now_ns);
        let new = pick(self.k, &better).or(equal.map(|(member, _)| member));
        let Some(new) = new else { return false };
        self.wait.get_or_insert((active, now_ns + self.delay_ns));
        self.change(Some(new.consumer));
        true
    }

    fn change(&mut self, new: Option<usize>) {
        self.active = new;
        self.wait = self
            .wait
            .filter(|&(old, _)| new.is_some_and(|new| new != old));
        let told = self.members.iter().map(|member| member.consumer);
        self.owed = told
            .map(|consumer| (consumer, Some(consumer) == new))
            .collect();
    }

    /// Those of the lowest number, by name.
    fn candidates(&self) -> Vec<Member> {
        let lowest = self.members.iter().map(|member| member.priority).min();
        let of_lowest = |member: &&Member| Some(member.priority) == lowest;
        let mut candidates: Vec<_> = self.members.iter().filter(of_lowest).cloned().collect();
        candidates.sort_by(|a, b| a.name.cmp(&b.name));
        candidates
    }

    /// The candidates, if the living active is none of them.
    fn better(&self) -> Vec<Member> {
        let mut candidates = self.candidates();
        let of = |member: &Member| Some(member.consumer) == self.active;
        if self.active.is_none() || candidates.iter().any(of) {
            candidates.clear();
        }
        candidates
    }

    /// On a partition, the one that takes over from an equal, and when.
    fn equal(&self) -> Option<(Member, u64)> {
        let still_ns = self.membership_ns + self.quiet_ns?;
        let active = self.active.filter(|_| self.better().is_empty())?;
        let elected = pick(self.k, &self.candidates())?;
        let from_ns = still_ns.max(elected.free_ns);
        (elected.consumer != active).then_some((elected, from_ns))
    }
}

fn pick(k: u64, members: &[Member]) -> Option<Member> {
    let at = k.checked_rem(members.len() as u64)?;
    members.get(at as usize).cloned()
}
