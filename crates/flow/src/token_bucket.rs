//! A token bucket that is told the time and never rounds.
//!
//! The level is kept in units of token x period-nanosecond, so that a nanosecond adds exactly
//! `rate` units: nothing is lost however often the bucket is looked at. 128 bits hold every product
//! of a rate, a time and a period (rule D40).

use crate::rate::Rate;

/// A clock that went back further than this is followed: without it a bucket that was once told a
/// time far ahead would stand still until then. Less is jitter between cores and adds nothing.
const FOLLOWED_STEP_BACK_NS: u64 = 1_000_000_000;

/// One limit of one scope, in messages or in bytes.
///
/// The order of a use is: [`refill`](Self::refill), look, [`reserve`](Self::reserve) what is about
/// to be read, and [`settle`](Self::settle) when it was sent or given up. With one whole token an
/// entry of any size may go, so debt is less than one entry; `level + reserved` never exceeds the
/// capacity by refill, so a slow read cannot bank it. Over any window T what goes is at most
/// `rate * T + capacity + largest entry - 1` (rules D41 to D43; apache/pulsar#8599, #23930).
#[derive(Clone, Debug, Default)]
pub struct TokenBucket {
    /// The rate in force, or the last one while the bucket is off; `None` if it was never on.
    rate: Option<Rate>,
    on: bool,
    /// What is in hand, in token x period-ns; below zero is debt.
    level: i128,
    /// Tokens taken for reads that are not settled yet.
    reserved: u64,
    refilled_ns: u64,
}

impl TokenBucket {
    /// Changes the limit: the level stays, capped at the new capacity, so neither is debt forgiven
    /// nor a burst granted; debt is worked off at the new rate. `None` switches it off; switched on
    /// again it has the old level with the refill since. The first limit starts full, one that
    /// leases fill starts empty (rule D48).
    pub fn set(&mut self, now_ns: u64, rate: Option<Rate>) {
        self.advance(now_ns);
        self.on = rate.is_some();
        let Some(new) = rate else { return };
        let full = level_of(new.capacity, new.period_ns);
        self.level = match self.rate {
            Some(old) => rescaled(self.level, old.period_ns, new.period_ns).min(full),
            None if new.tokens == 0 => 0,
            None => full,
        };
        if self.rate.is_none() {
            self.refilled_ns = now_ns;
        }
        self.rate = rate;
    }

    /// Whether there is a limit.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Adds what came since the last refill, up to the capacity. A `now_ns` before it adds nothing.
    pub fn refill(&mut self, now_ns: u64) {
        if self.on {
            self.advance(now_ns);
        }
    }

    /// Whole tokens in hand at the last refill, rounded down; below zero is debt. `i64::MAX` if
    /// nothing limits.
    #[must_use]
    pub fn tokens(&self) -> i64 {
        let Some(rate) = self.rate.filter(|_| self.on) else {
            return i64::MAX;
        };
        // Usual limits fit 64 bits, where a division costs a tenth.
        match (i64::try_from(self.level), i64::try_from(rate.period_ns)) {
            (Ok(level), Ok(period_ns)) => level.div_euclid(period_ns),
            _ => {
                let tokens = self.level.div_euclid(i128::from(rate.period_ns));
                i64::try_from(tokens).unwrap_or(if tokens < 0 { i64::MIN } else { i64::MAX })
            }
        }
    }

    /// Whether an entry may go: one whole token is in hand, or nothing limits.
    #[inline]
    #[must_use]
    pub fn admits(&self) -> bool {
        !self.on
            || self
                .rate
                .is_none_or(|rate| self.level >= i128::from(rate.period_ns))
    }

    /// Takes tokens for what is about to be read, in the turn of the refill.
    pub fn reserve(&mut self, tokens: u64) {
        self.debit(tokens);
        self.reserved = self.reserved.saturating_add(tokens);
    }

    /// Ends a reservation: what was not sent goes back.
    pub fn settle(&mut self, now_ns: u64, reserved: u64, sent: u64) {
        // Before the reservation ends: it held this refill back.
        self.advance(now_ns);
        self.reserved = self.reserved.saturating_sub(reserved);
        if reserved >= sent {
            self.refund(reserved - sent);
        } else {
            self.debit(sent - reserved);
        }
    }

    /// The first instant with `tokens` whole tokens in hand if nobody takes any: the last refill if
    /// that is so already, `u64::MAX` if time alone does not bring it (all is reserved, or only
    /// leases fill it). Exact: a nanosecond earlier there are not as many.
    #[must_use]
    pub fn ready_at_ns(&self, tokens: u64) -> u64 {
        let Some(rate) = self.rate.filter(|_| self.on) else {
            return self.refilled_ns;
        };
        let wanted = level_of(tokens, rate.period_ns);
        let missing = wanted.saturating_sub(self.level);
        if missing <= 0 {
            return self.refilled_ns;
        }
        if rate.tokens == 0 || self.ceiling(rate) < wanted {
            return u64::MAX;
        }
        let wait_ns = missing.unsigned_abs().div_ceil(u128::from(rate.tokens));
        let wait_ns = u64::try_from(wait_ns).unwrap_or(u64::MAX);
        self.refilled_ns.saturating_add(wait_ns)
    }

    /// Tokens the bucket holds when full; `u64::MAX` if nothing limits.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.rate
            .filter(|_| self.on)
            .map_or(u64::MAX, |rate| rate.capacity)
    }

    /// Tokens taken and not settled yet.
    #[must_use]
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// Takes tokens at once.
    pub(crate) fn debit(&mut self, tokens: u64) {
        self.level = self.level.saturating_sub(self.level_of(tokens));
    }

    /// Adds tokens, more than the capacity too: what a lease brings was taken from it elsewhere.
    pub(crate) fn credit(&mut self, tokens: u64) {
        self.level = self.level.saturating_add(self.level_of(tokens));
    }

    /// Puts tokens back, up to the capacity, which may be lower than when they were taken.
    pub(crate) fn refund(&mut self, tokens: u64) {
        let Some(rate) = self.rate else { return };
        let full = level_of(rate.capacity, rate.period_ns).max(self.level);
        self.level = self.level.saturating_add(self.level_of(tokens)).min(full);
    }

    /// The rate in force.
    pub(crate) fn rate(&self) -> Option<Rate> {
        self.rate.filter(|_| self.on)
    }

    fn advance(&mut self, now_ns: u64) {
        let Some(rate) = self.rate else { return };
        if now_ns == self.refilled_ns {
            return;
        }
        if now_ns < self.refilled_ns {
            if self.refilled_ns - now_ns > FOLLOWED_STEP_BACK_NS {
                self.refilled_ns = now_ns;
            }
            return;
        }
        // Below 2^63 * 2^64.
        let gained = u128::from(rate.tokens) * u128::from(now_ns - self.refilled_ns);
        let gained = i128::try_from(gained).unwrap_or(i128::MAX);
        let room = self.ceiling(rate).saturating_sub(self.level).max(0);
        self.level += gained.min(room);
        self.refilled_ns = now_ns;
    }

    /// How far refill may lift the level: what is out for reads counts as if it were in hand.
    fn ceiling(&self, rate: Rate) -> i128 {
        level_of(rate.capacity, rate.period_ns) - level_of(self.reserved, rate.period_ns)
    }

    fn level_of(&self, tokens: u64) -> i128 {
        self.rate.map_or(0, |rate| level_of(tokens, rate.period_ns))
    }
}

/// Tokens in units of the level: below 2^64 * 2^62.
fn level_of(tokens: u64, period_ns: u64) -> i128 {
    // Unsigned, because only a signed product of this width needs a check.
    (u128::from(tokens) * u128::from(period_ns)).cast_signed()
}

/// A level in units of another period, rounded down by less than one such unit.
fn rescaled(level: i128, old_ns: u64, new_ns: u64) -> i128 {
    let (old, new) = (i128::from(old_ns), i128::from(new_ns));
    if old == new {
        return level;
    }
    // Whole tokens and the part of one, because level * period can pass 128 bits.
    let (tokens, part) = (level.div_euclid(old), level.rem_euclid(old));
    tokens.saturating_mul(new).saturating_add(part * new / old)
}
