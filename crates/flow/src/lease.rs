//! Limits that span shards: one bucket keeps the time, shards lease tokens from it off the hot path.
//!
//! A [`Coordinator`] has the bucket of one unit. On each shard a [`Lessee`] looks after a bucket of
//! the engine's [`crate::Scope`] that only leases fill ([`crate::Rate::leased`]). Messages are values;
//! whoever owns the two carries them, in order. Once a turn, outside of passes:
//!
//! ```
//! # use pelton_flow::*;
//! # let rate = Rate::per_second(1000).unwrap();
//! # let mut coordinator = Coordinator::new(2, 20);
//! # coordinator.set(0, Some(rate));
//! # let (mut scope, mut lessee, mut now_ns) = (Scope::default(), Lessee::default(), 0);
//! # scope.set(0, Limits { messages: Some(rate.leased()), bytes: None });
//! // Each shard:
//! let claimants = scope.claimants() + 1;
//! let bucket = scope.bucket_mut(Unit::Messages);
//! if let Some(ask) = lessee.poll(now_ns, bucket, claimants) {
//!     coordinator.on_ask(now_ns, 1, ask); // by way of the mesh, if that is another shard
//! }
//! // The shard with the coordinator, which also wakes at `coordinator.next_deadline_ns()`:
//! while let Some((shard, lease)) = coordinator.poll(now_ns) {
//!     assert_eq!((shard, lease.tokens), (1, 20));
//!     lessee.on_lease(bucket, lease); // on that shard, which then asks `scope.wake()`
//! }
//! ```
//!
//! # Bound
//!
//! A lease is taken from the bucket when it is granted, so over any window T all shards together hand
//! over at most `rate * T + capacity + sum over shards of (one lease + one entry - 1)`: the leases in
//! hand when the window began, and the debt of each shard at its end (rule D52). One lease is the
//! shard's part, by claimants, of what the rate gives in `limitLeaseMillis`, and at least one token.

use std::collections::VecDeque;

use crate::rate::Rate;
use crate::token_bucket::TokenBucket;

/// A lease that lies unused for this long goes back.
const UNUSED_MAX_NS: u64 = 100_000_000;

/// What a shard tells the coordinator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Dispatchers of the shard that want tokens: the measure of its part. None: it wants no lease.
    pub claimants: u32,
    /// Tokens it spent beyond its leases, one entry at most.
    pub debt: u64,
    /// Tokens of its lease that it did not use and no longer has.
    pub returned: u64,
}

/// The answer to an [`Ask`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// To be spent.
    pub tokens: u64,
    /// Debt that was taken from the coordinator's bucket.
    pub settled: u64,
}

/// Keeps the time of one limit, in messages or in bytes, and grants leases, first come first served.
#[derive(Debug)]
pub struct Coordinator {
    bucket: TokenBucket,
    lease_ns: u64,
    /// By shard: dispatchers that wanted tokens when it last asked.
    claimants: Vec<u32>,
    /// Shards without an answer, and the debt that each was relieved of.
    asking: VecDeque<(u32, u64)>,
}

impl Coordinator {
    /// For `shards` shards, without a limit. `lease_ms` is `limitLeaseMillis`.
    #[must_use]
    pub fn new(shards: usize, lease_ms: u32) -> Self {
        Self {
            bucket: TokenBucket::default(),
            lease_ns: u64::from(lease_ms) * 1_000_000,
            claimants: vec![0; shards],
            asking: VecDeque::new(),
        }
    }

    /// Changes the limit, as [`TokenBucket::set`] does. The shards' buckets get `rate.leased()`.
    pub fn set(&mut self, now_ns: u64, rate: Option<Rate>) {
        self.bucket.set(now_ns, rate);
    }

    /// Takes in what a shard said.
    ///
    /// # Panics
    /// If there is no such shard.
    pub fn on_ask(&mut self, now_ns: u64, shard: u32, ask: Ask) {
        self.bucket.refill(now_ns);
        self.bucket.refund(ask.returned);
        self.bucket.debit(ask.debt);
        self.claimants[shard as usize] = ask.claimants;
        self.asking.push_back((shard, ask.debt));
    }

    /// The next answer that can be given now.
    pub fn poll(&mut self, now_ns: u64) -> Option<(u32, Lease)> {
        let &(shard, settled) = self.asking.front()?;
        self.bucket.refill(now_ns);
        let part = self.part_of(shard);
        if part > 0 && self.bucket.tokens() < part.cast_signed() {
            return None;
        }
        self.bucket.debit(part);
        self.asking.pop_front();
        Some((
            shard,
            Lease {
                tokens: part,
                settled,
            },
        ))
    }

    /// When [`Coordinator::poll`] has an answer although nobody says anything; `u64::MAX` if never.
    #[must_use]
    pub fn next_deadline_ns(&self) -> u64 {
        let first = self.asking.front();
        first.map_or(u64::MAX, |&(shard, _)| {
            self.bucket.ready_at_ns(self.part_of(shard))
        })
    }

    /// Tokens that no shard has leased, at the last call that was told the time.
    #[must_use]
    pub fn tokens(&self) -> i64 {
        self.bucket.tokens()
    }

    /// Tokens of one lease for a shard; none without a limit or a claimant.
    fn part_of(&self, shard: u32) -> u64 {
        let Some(rate) = self.bucket.rate() else {
            return 0;
        };
        let mine = u128::from(self.claimants[shard as usize]);
        if mine == 0 {
            return 0;
        }
        let all: u128 = self
            .claimants
            .iter()
            .map(|&claimants| u128::from(claimants))
            .sum();
        // Below 2^63 * 2^52, and the quotient is scaled by a part of at most 1.
        let per_lease =
            u128::from(rate.tokens) * u128::from(self.lease_ns) / u128::from(rate.period_ns);
        let part = u64::try_from(per_lease.saturating_mul(mine) / all).unwrap_or(u64::MAX);
        part.clamp(1, rate.capacity)
    }
}

/// A shard's side of a lease, beside the bucket that holds what is left of it.
#[derive(Debug, Default)]
pub struct Lessee {
    asked: bool,
    last_lease: u64,
    /// What was in hand when the bucket was last seen to change, and since when.
    unused: i64,
    unused_since_ns: u64,
}

impl Lessee {
    /// What to tell the coordinator now, if anything: half of the lease is used and somebody wants
    /// more, there is debt, or the lease lies unused. One question at a time.
    pub fn poll(&mut self, now_ns: u64, bucket: &mut TokenBucket, claimants: u32) -> Option<Ask> {
        if self.asked || !bucket.is_on() {
            return None;
        }
        let tokens = bucket.tokens();
        if tokens != self.unused || claimants > 0 {
            self.unused = tokens;
            self.unused_since_ns = now_ns;
        }
        let debt = tokens.min(0).unsigned_abs();
        let half_left = tokens <= (self.last_lease / 2).cast_signed();
        if debt > 0 || (claimants > 0 && half_left) {
            self.asked = true;
            return Some(Ask {
                claimants,
                debt,
                returned: 0,
            });
        }
        if tokens > 0 && now_ns >= self.unused_since_ns.saturating_add(UNUSED_MAX_NS) {
            self.asked = true;
            let returned = tokens.unsigned_abs();
            bucket.debit(returned);
            return Some(Ask {
                claimants: 0,
                debt: 0,
                returned,
            });
        }
        None
    }

    /// Puts a lease in the bucket. The scope's first waiting dispatcher is wanted then.
    pub fn on_lease(&mut self, bucket: &mut TokenBucket, lease: Lease) {
        self.asked = false;
        self.last_lease = lease.tokens;
        bucket.credit(lease.tokens.saturating_add(lease.settled));
    }

    /// When a lease is due to go back although nothing happens; `u64::MAX` if none is in hand.
    #[must_use]
    pub fn next_deadline_ns(&self) -> u64 {
        if self.asked || self.unused <= 0 {
            return u64::MAX;
        }
        self.unused_since_ns.saturating_add(UNUSED_MAX_NS)
    }
}
