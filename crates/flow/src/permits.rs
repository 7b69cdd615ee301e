//! Permits as two counters that only rise.
//!
//! `granted` is written by the consumer's side alone, `delivered` by its shard alone; permits are the
//! difference, debt included, and nothing is ever clamped. So no grant is lost, nothing needs a
//! compare-exchange, and `granted = delivered + available + revoked` can be checked at any time.
//! Source: CommandFlow of the Pulsar protocol; apache/pulsar#10396 on debt, #6054 on sums.

use std::sync::Arc;

use crate::Messages;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Grants that would lift what is available above this many messages are not taken (rule D18).
pub const AVAILABLE_MAX: u64 = 1 << 40;

/// The counter shared by a consumer's handle and its shard, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub struct Permits {
    granted: AtomicU64,
    /// Set by a dispatcher that waits for this consumer; whoever takes it rings the shard.
    parked: AtomicBool,
}

/// What became of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a parked dispatcher needs its doorbell"]
pub enum Grant {
    /// Counted; the dispatcher is not waiting for it.
    Taken,
    /// Counted; the dispatcher is parked on this consumer: mark it ready and ring the shard.
    Ring,
    /// Zero, or more than [`AVAILABLE_MAX`] outstanding: not counted.
    Ignored,
}

impl Permits {
    fn add(&self, granted: u64) -> bool {
        self.granted.store(granted, Ordering::Release);
        // Partner: the fence of `Account::park`. Either the parker sees the grant, or we its flag.
        fence(Ordering::SeqCst);
        self.parked.load(Ordering::Relaxed) && self.parked.swap(false, Ordering::AcqRel)
    }
}

/// The consumer's side of a pair: the only writer of `granted`.
#[derive(Debug)]
pub struct Granter {
    permits: Arc<Permits>,
    granted: u64,
    received: u64,
}

impl Granter {
    /// A pair at 0/0: the granter for the handle, the account for the shard.
    #[must_use]
    pub fn pair() -> (Granter, Account) {
        let permits = Arc::new(Permits {
            granted: AtomicU64::new(0),
            parked: AtomicBool::new(false),
        });
        let account = Account {
            permits: Arc::clone(&permits),
            delivered: 0,
            revoked: 0,
        };
        (
            Granter {
                permits,
                granted: 0,
                received: 0,
            },
            account,
        )
    }

    /// Grants `n` messages. Cancel safe: one store.
    pub fn grant(&mut self, n: u32) -> Grant {
        let outstanding = self.granted.saturating_sub(self.received);
        if n == 0 || outstanding + u64::from(n) > AVAILABLE_MAX {
            return Grant::Ignored;
        }
        self.granted += u64::from(n);
        if self.permits.add(self.granted) {
            Grant::Ring
        } else {
            Grant::Taken
        }
    }

    /// Notes messages that arrived, so that [`Granter::outstanding`] is known without asking.
    pub fn received(&mut self, messages: u32) {
        self.received += u64::from(messages);
    }

    /// Messages granted and not yet received; negative while an entry overshot.
    #[must_use]
    pub fn outstanding(&self) -> i64 {
        self.granted.wrapping_sub(self.received).cast_signed()
    }

    /// Messages granted in all.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.granted
    }
}

/// The shard's side of a pair: the only writer of `delivered`.
#[derive(Debug)]
pub struct Account {
    permits: Arc<Permits>,
    delivered: u64,
    /// Permits taken away so far, debt included: may be negative.
    revoked: i64,
}

impl Account {
    /// Permits in hand, in messages: below zero is debt, paid by grants alone.
    #[must_use]
    pub fn available(&self) -> i64 {
        let granted = self.permits.granted.load(Ordering::Acquire);
        granted
            .wrapping_sub(self.delivered)
            .cast_signed()
            .wrapping_sub(self.revoked)
    }

    /// Messages granted in all, as far as the shard has seen.
    #[must_use]
    pub fn granted(&self) -> u64 {
        self.permits.granted.load(Ordering::Acquire)
    }

    /// Messages' worth of permits taken away; negative where debt was.
    #[must_use]
    pub fn revoked(&self) -> i64 {
        self.revoked
    }

    /// Debits what one delivery carries, at hand-over, once.
    pub fn spend(&mut self, messages: Messages) {
        self.delivered += messages.0;
    }

    /// Messages handed over in all.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Declares that the dispatcher waits for this consumer. False if permits came meanwhile: the
    /// dispatcher goes on instead. After true, the next grant answers [`Grant::Ring`].
    #[must_use]
    pub fn park(&self) -> bool {
        self.permits.parked.swap(true, Ordering::AcqRel);
        // Partner: the fence of `Permits::add`.
        fence(Ordering::SeqCst);
        if self.available() > 0 {
            self.permits.parked.swap(false, Ordering::AcqRel);
            return false;
        }
        true
    }

    /// Takes away what is available, debt included, and says how much it was (rule D14). What is
    /// granted later counts from 0.
    pub fn revoke(&mut self) -> i64 {
        let available = self.available();
        self.revoked = self.revoked.wrapping_add(available);
        available
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn debt_is_kept_until_it_is_granted_back() {
        let (mut granter, mut account) = Granter::pair();
        assert_eq!(granter.grant(20), Grant::Taken);
        account.spend(Messages(100));
        assert_eq!(account.available(), -80);
        assert_eq!(granter.grant(80), Grant::Taken);
        assert_eq!(account.available(), 0);
        assert_eq!(granter.grant(1), Grant::Taken);
        account.spend(Messages(100));
        assert_eq!((account.available(), account.revoke()), (-99, -99));
        assert_eq!(granter.grant(5), Grant::Taken);
        assert_eq!((account.available(), account.revoked()), (5, -99));
    }

    #[test]
    fn a_parked_dispatcher_is_rung_once() {
        let (mut granter, account) = Granter::pair();
        assert!(account.park());
        assert_eq!(granter.grant(1), Grant::Ring);
        assert_eq!(granter.grant(1), Grant::Taken);
        assert!(!account.park());
    }

    #[test]
    fn hostile_grants_are_ignored() {
        let (mut granter, account) = Granter::pair();
        assert_eq!(granter.grant(0), Grant::Ignored);
        let taken = (0..300)
            .filter(|_| granter.grant(u32::MAX) != Grant::Ignored)
            .count();
        assert_eq!(taken, 256);
        assert!(account.available() as u64 <= AVAILABLE_MAX);
    }

    #[test]
    fn conservation_holds_over_a_long_random_walk() {
        let (mut granter, mut account) = Granter::pair();
        let (mut seed, mut granted, mut delivered) = (7u64, 0u64, 0u64);
        for _ in 0..1_000_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let n = (seed >> 33) % 50 + 1;
            if seed >> 63 == 0 {
                if granter.grant(n as u32) != Grant::Ignored {
                    granted += n;
                }
            } else if account.available() > 0 {
                account.spend(Messages(n));
                granter.received(n as u32);
                delivered += n;
            }
            assert_eq!(granted as i64, delivered as i64 + account.available());
            assert!(account.available() >= -49);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc as LoomArc;
    use loom::sync::atomic::AtomicUsize;

    /// A dispatcher that parks and a granter: every grant is either seen before the sleep or rings.
    #[test]
    fn a_grant_is_seen_or_rings() {
        for grants in 1..=3u32 {
            loom::model(move || {
                let (mut granter, account) = Granter::pair();
                let rung = LoomArc::new(AtomicUsize::new(0));
                let bell = LoomArc::clone(&rung);
                let handle = loom::thread::spawn(move || {
                    for _ in 0..grants {
                        if granter.grant(1) == Grant::Ring {
                            bell.fetch_add(1, Ordering::AcqRel);
                        }
                    }
                });
                let parked = account.park();
                handle.join().unwrap();
                let rings = rung.load(Ordering::Acquire);
                assert!(!parked || rings == 1, "parked {parked}, rung {rings} times");
                assert_eq!(account.available(), i64::from(grants));
            });
        }
    }
}
