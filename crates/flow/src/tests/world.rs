//! Dispatchers of some shards on a virtual clock: the seam of `limiter.rs` and `lease.rs` as a
//! dispatcher uses it, with a run queue, a timer per dispatcher and reads that take their time.

use std::collections::VecDeque;

use crate::*;

pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const MILLI: u64 = 1_000_000;
const PASS_ENTRIES: Entries = Entries(100);
const PASS_BYTES: Bytes = Bytes(5 << 20);

/// One entry that arrived at its consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delivery {
    pub(super) at_ns: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

type Entry = (u64, u64);

#[derive(Debug)]
struct Read {
    done_ns: u64,
    entries: Vec<Entry>,
    reservation: Reservation,
}

#[derive(Debug, Default)]
pub(super) struct Sub {
    pub(super) topic: usize,
    pub(super) scope: Scope,
    pub(super) throttle: Throttle,
    pub(super) permits: i64,
    pub(super) terms: Terms,
    pub(super) read_ns: u64,
    pub(super) backlog: VecDeque<Entry>,
    pub(super) delivered: Vec<Delivery>,
    pub(super) passes: u64,
    read: Option<Read>,
    wanted: bool,
    timer_ns: Option<u64>,
}

/// One shard.
#[derive(Debug, Default)]
pub(super) struct World {
    pub(super) now_ns: u64,
    pub(super) broker: Scope,
    pub(super) topics: Vec<Scope>,
    pub(super) subs: Vec<Sub>,
    run_queue: VecDeque<usize>,
}

impl World {
    pub(super) fn topic(&mut self, limits: Limits) -> usize {
        let mut scope = Scope::default();
        scope.set(self.now_ns, limits);
        self.topics.push(scope);
        self.topics.len() - 1
    }

    /// A subscription with a backlog and ample permits.
    pub(super) fn sub(
        &mut self,
        topic: usize,
        limits: Limits,
        entry: Entry,
        entries: usize,
    ) -> usize {
        let mut sub = Sub {
            topic,
            permits: 1 << 40,
            ..Sub::default()
        };
        sub.scope.set(self.now_ns, limits);
        sub.backlog.extend(std::iter::repeat_n(entry, entries));
        self.subs.push(sub);
        self.want(self.subs.len() - 1);
        self.subs.len() - 1
    }

    /// So many subscriptions of the first topic, with a backlog of singles.
    pub(super) fn many_subs(&mut self, count: usize, limits: Limits, entries: usize) {
        for _ in 0..count {
            self.sub(0, limits, (1, 8), entries);
        }
    }

    pub(super) fn limiter(&mut self, index: usize) -> Limiter<'_> {
        let sub = &mut self.subs[index];
        Limiter {
            dispatcher: index as u32,
            scopes: [
                &mut self.broker,
                &mut self.topics[sub.topic],
                &mut sub.scope,
            ],
            throttle: &mut sub.throttle,
        }
    }

    pub(super) fn want(&mut self, index: usize) {
        let reads = self.subs[index].read.is_some();
        if !reads && !std::mem::replace(&mut self.subs[index].wanted, true) {
            self.run_queue.push_back(index);
            self.limiter(index).claim();
        }
    }

    pub(super) fn wake(&mut self, wake: Option<Wake>) {
        let Some(Wake { dispatcher, at_ns }) = wake else {
            return;
        };
        match at_ns {
            _ if at_ns <= self.now_ns => self.want(dispatcher as usize),
            u64::MAX => {}
            _ => self.subs[dispatcher as usize].timer_ns = Some(at_ns),
        }
    }

    pub(super) fn next_ns(&self) -> u64 {
        let due = self
            .subs
            .iter()
            .flat_map(|sub| [sub.timer_ns, sub.read.as_ref().map(|r| r.done_ns)]);
        due.flatten().min().unwrap_or(u64::MAX)
    }

    /// Everything that is due now, until nothing more moves.
    pub(super) fn settle_down(&mut self) {
        for index in 0..self.subs.len() {
            if self.subs[index]
                .timer_ns
                .is_some_and(|at_ns| at_ns <= self.now_ns)
            {
                self.subs[index].timer_ns = None;
                self.want(index);
            }
            if self.subs[index]
                .read
                .as_ref()
                .is_some_and(|read| read.done_ns <= self.now_ns)
            {
                let read = self.subs[index].read.take().unwrap();
                self.hand_over(index, &read.entries, read.reservation);
                self.want(index);
            }
        }
        let mut passes = 0;
        while let Some(index) = self.run_queue.pop_front() {
            self.subs[index].wanted = false;
            self.pass(index);
            passes += 1;
            assert!(passes < 1_000_000, "dispatchers wake each other for ever");
        }
    }

    pub(super) fn run_until(&mut self, end_ns: u64) {
        self.settle_down();
        while self.next_ns() <= end_ns {
            self.now_ns = self.next_ns();
            self.settle_down();
        }
        self.now_ns = end_ns;
    }

    fn pass(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let sub = &mut self.subs[index];
        sub.passes += 1;
        let (permits, terms, backlog) = (sub.permits, sub.terms, std::mem::take(&mut sub.backlog));
        let mut limiter = self.limiter(index);
        let mut allowance = limiter.open(now_ns, terms);
        let mut budget = Budget::new(permits, PASS_ENTRIES, PASS_BYTES).with_tokens(&allowance);
        let (mut planned, mut stop, mut refused) = (Vec::new(), None, None);
        let mut candidates = backlog
            .iter()
            .map(|entry| (Messages(entry.0), Bytes(entry.1)));
        while let Some((messages, bytes)) = candidates.clone().next() {
            if let Err(found) = budget.admit(messages, bytes) {
                stop = Some(found);
                break;
            }
            allowance.spend(Entries(1), messages, bytes);
            planned.push((messages.0, bytes.0));
            candidates.next();
        }
        if let Some(Stop::Tokens | Stop::Step) = stop {
            let counts = allowance.counts();
            refused = Some(if counts {
                budget.withheld(candidates)
            } else {
                Withheld::default()
            });
        }
        let full = matches!(stop, Some(Stop::Entries | Stop::Bytes));
        let closed = limiter.close(now_ns, &allowance, refused);
        let sub = &mut self.subs[index];
        sub.backlog = backlog;
        sub.backlog.drain(..planned.len());
        sub.permits -= planned.iter().map(|entry| entry.0 as i64).sum::<i64>();
        if sub.read_ns > 0 && !planned.is_empty() {
            let done_ns = now_ns + sub.read_ns;
            sub.read = Some(Read {
                done_ns,
                entries: planned,
                reservation: closed.reservation,
            });
            // It does not use its turns meanwhile, and is wanted when the read is back.
            self.limiter(index).leave();
            self.wake_first(index);
        } else {
            self.hand_over(index, &planned, closed.reservation);
        }
        if closed.again || full {
            self.want(index);
        }
        self.check_buckets(index);
    }

    fn hand_over(&mut self, index: usize, entries: &[Entry], reservation: Reservation) {
        let at_ns = self.now_ns;
        for &(messages, bytes) in entries {
            self.subs[index].delivered.push(Delivery {
                at_ns,
                messages,
                bytes,
            });
        }
        let messages = Messages(entries.iter().map(|entry| entry.0).sum());
        let bytes = Bytes(entries.iter().map(|entry| entry.1).sum());
        let mut limiter = self.limiter(index);
        limiter.settle(
            at_ns,
            reservation,
            Entries(entries.len() as u64),
            messages,
            bytes,
        );
        self.wake_first(index);
    }

    fn wake_first(&mut self, index: usize) {
        let wakes: Vec<Wake> = self.limiter(index).wakes().collect();
        wakes.into_iter().for_each(|wake| self.wake(Some(wake)));
    }

    /// T4: what is in hand and out for reads never exceeds the capacity.
    fn check_buckets(&mut self, index: usize) {
        let limiter = self.limiter(index);
        for bucket in limiter
            .scopes
            .iter()
            .flat_map(|scope| Unit::ALL.map(|unit| scope.bucket(unit)))
        {
            let (tokens, reserved) = (i128::from(bucket.tokens()), i128::from(bucket.reserved()));
            if bucket.is_on() {
                assert!(
                    tokens + reserved <= i128::from(bucket.capacity()),
                    "{bucket:?}"
                );
            }
        }
    }

    pub(super) fn delivered(&self) -> Vec<Delivery> {
        merged(&[self])
    }
}

/// What all subscriptions of some shards got, by time.
pub(super) fn merged(worlds: &[&World]) -> Vec<Delivery> {
    let subs = worlds.iter().flat_map(|world| &world.subs);
    let mut all: Vec<Delivery> = subs.flat_map(|sub| sub.delivered.iter().copied()).collect();
    all.sort_by_key(|delivery| delivery.at_ns);
    all
}

pub(super) fn messages(deliveries: &[Delivery]) -> u64 {
    deliveries.iter().map(|delivery| delivery.messages).sum()
}

/// Over every window, not only those that start at a second: what was handed over is at most
/// `per_s * window + allowed`.
pub(super) fn check_windows(amounts: impl Iterator<Item = (u64, u64)>, per_s: u64, allowed: u64) {
    let (mut sum, mut least) = (0_i128, i128::MAX);
    for (at_ns, amount) in amounts {
        let refilled = i128::from(per_s) * i128::from(at_ns);
        least = least.min(sum - refilled);
        sum += i128::from(amount) * i128::from(SECOND);
        let most = sum - refilled - least;
        assert!(
            most <= i128::from(allowed) * i128::from(SECOND),
            "{} more than the rate in a window that ends at {at_ns} ns, allowed are {allowed}",
            most / i128::from(SECOND)
        );
    }
}

pub(super) fn by_messages(deliveries: &[Delivery]) -> impl Iterator<Item = (u64, u64)> + '_ {
    deliveries
        .iter()
        .map(|delivery| (delivery.at_ns, delivery.messages))
}

pub(super) fn by_bytes(deliveries: &[Delivery]) -> impl Iterator<Item = (u64, u64)> + '_ {
    deliveries
        .iter()
        .map(|delivery| (delivery.at_ns, delivery.bytes))
}

pub(super) fn message_limit(per_s: i64) -> Limits {
    Limits {
        messages: Rate::per_second(per_s),
        bytes: None,
    }
}

pub(super) fn byte_limit(per_s: i64) -> Limits {
    Limits {
        messages: None,
        bytes: Rate::per_second(per_s),
    }
}

pub(super) const NO_LIMIT: Limits = Limits {
    messages: None,
    bytes: None,
};
