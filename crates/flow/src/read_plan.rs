//! How many whole entries may go now.

use crate::limiter::{Step, TokensLeft};
use crate::{Allowance, Average, Bytes, Entries, Messages, Withheld};

/// What one plan may still take for one consumer. Each entry is admitted while every limit has room
/// for at least one unit, and is then charged in full: whenever anything may go, at least one whole
/// entry goes, however large, and a store is never asked for zero entries (rules D30 and D31;
/// pulsar#6719).
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The least of each unit: an entry takes the same from all limits of a unit. Nothing within a
    /// step, where every entry is looked at closely.
    least: Least,
    step: Option<Step>,
    /// Each limit as it was given, or within a step what is left of it.
    given: Given,
}

/// Each one less than what may go, so that one look at the signs asks all three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Least {
    messages: i64,
    bytes: i64,
    entries: i64,
}

/// Every limit.
#[derive(Clone, Copy, Debug)]
struct Given {
    permits: i64,
    tokens: TokensLeft,
    bytes: i64,
    headroom: i64,
    entries: i64,
}

/// The limit that refused the next entry, in the order in which they are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The consumer has asked for no more messages.
    Permits,
    /// A rate limit has no whole token, or others wait for it.
    Tokens,
    /// The pass had its step of a rate limit that others want too.
    Step,
    /// The plan holds as many bytes as a pass may take.
    Bytes,
    /// The consumer or its subscription holds as many unacked messages as it may.
    Unacked,
    /// The plan holds as many entries as a pass may take.
    Entries,
}

impl Budget {
    /// `permits` in messages as [`crate::Account::available`] gives them, debt included.
    #[inline]
    #[must_use]
    pub fn new(permits: i64, entries: Entries, bytes: Bytes) -> Self {
        let given = Given {
            permits,
            tokens: TokensLeft::UNLIMITED,
            bytes: i64::try_from(bytes.0).unwrap_or(i64::MAX),
            headroom: i64::MAX,
            entries: i64::try_from(entries.0).unwrap_or(i64::MAX),
        };
        Self {
            least: given.least(),
            step: None,
            given,
        }
    }

    /// The same, within what rate limits leave to the pass.
    #[inline]
    #[must_use]
    pub fn with_tokens(self, allowance: &Allowance) -> Self {
        let tokens = allowance.left();
        Self::of(
            Given {
                tokens,
                ..self.given
            },
            allowance.step(),
        )
    }

    /// The same, while fewer than `messages` more are unacked (rule D103); zero or less: nothing goes.
    #[inline]
    #[must_use]
    pub fn with_headroom(self, messages: i64) -> Self {
        Self::of(
            Given {
                headroom: messages,
                ..self.given
            },
            self.step,
        )
    }

    #[inline]
    fn of(given: Given, step: Option<Step>) -> Self {
        let least = if step.is_some() {
            Least::NOTHING
        } else {
            given.least()
        };
        Self { least, step, given }
    }

    /// Charges one entry, or names the first limit without room.
    ///
    /// # Errors
    /// The [`Stop`] reason; nothing is charged then.
    #[inline]
    pub fn admit(&mut self, messages: Messages, bytes: Bytes) -> Result<(), Stop> {
        if !self.least.has_room() {
            // By value: a reference would keep the plan in memory instead of in registers.
            let Some(step) = self.step else {
                return Err(refusal(self.given, self.least));
            };
            let (given, step) = admit_within(self.given, step, messages, bytes)?;
            (self.given, self.step) = (given, Some(step));
            return Ok(());
        }
        self.least.charge(messages, bytes);
        Ok(())
    }

    fn left(&self) -> Given {
        if self.step.is_some() {
            self.given
        } else {
            self.given.after(self.least)
        }
    }

    /// What rate limits keep back after [`Budget::admit`] said [`Stop::Tokens`] or [`Stop::Step`]: of
    /// the refused entry and those behind it as many as every other limit admits (rule D54). With
    /// several consumers, make this budget of the permits of all that could get an entry.
    #[must_use]
    pub fn withheld(&self, candidates: impl Iterator<Item = (Messages, Bytes)>) -> Withheld {
        let others = Given {
            tokens: TokensLeft::UNLIMITED,
            ..self.left()
        };
        let mut others = Self::of(others, None);
        let mut withheld = Withheld::default();
        for (messages, bytes) in candidates {
            if others.admit(messages, bytes).is_err() {
                break;
            }
            withheld.entries += Entries(1);
            withheld.messages += messages;
            withheld.bytes += bytes;
        }
        withheld
    }
}

impl Least {
    const NOTHING: Self = Self {
        messages: -1,
        bytes: -1,
        entries: -1,
    };

    #[inline]
    fn has_room(&self) -> bool {
        (self.messages | self.bytes | self.entries) >= 0
    }

    #[inline]
    fn charge(&mut self, messages: Messages, bytes: Bytes) {
        self.messages = self.messages.saturating_sub_unsigned(messages.0);
        self.bytes = self.bytes.saturating_sub_unsigned(bytes.0);
        self.entries -= 1;
    }
}

impl Given {
    #[inline]
    fn least(&self) -> Least {
        let messages = self.permits.min(self.tokens.messages).min(self.headroom);
        let bytes = self.bytes.min(self.tokens.bytes);
        let entries = self.entries.min(self.tokens.entries);
        Least {
            messages: messages.saturating_sub(1),
            bytes: bytes.saturating_sub(1),
            entries: entries.saturating_sub(1),
        }
    }

    /// What is left of each when so much is left of the least.
    fn after(&self, least: Least) -> Self {
        let start = self.least();
        let messages = start.messages.saturating_sub(least.messages);
        let bytes = start.bytes.saturating_sub(least.bytes);
        let entries = start.entries - least.entries;
        Self {
            permits: self.permits.saturating_sub(messages),
            tokens: TokensLeft {
                messages: self.tokens.messages.saturating_sub(messages),
                entries: self.tokens.entries - entries,
                bytes: self.tokens.bytes.saturating_sub(bytes),
            },
            bytes: self.bytes.saturating_sub(bytes),
            headroom: self.headroom.saturating_sub(messages),
            entries: self.entries - entries,
        }
    }

    fn first_without_room(&self) -> Option<Stop> {
        Some(match self {
            _ if self.permits <= 0 => Stop::Permits,
            _ if self.tokens.is_spent() => Stop::Tokens,
            _ if self.bytes <= 0 => Stop::Bytes,
            _ if self.headroom <= 0 => Stop::Unacked,
            _ if self.entries <= 0 => Stop::Entries,
            _ => return None,
        })
    }
}

#[cold]
fn refusal(given: Given, least: Least) -> Stop {
    let stop = given.after(least).first_without_room();
    stop.expect("the least of all limits has no room")
}

#[cold]
fn admit_within(
    given: Given,
    mut step: Step,
    messages: Messages,
    bytes: Bytes,
) -> Result<(Given, Step), Stop> {
    if let Some(stop) = given.first_without_room() {
        return Err(stop);
    }
    if !step.admit(messages, bytes) {
        return Err(Stop::Step);
    }
    let mut least = given.least();
    least.charge(messages, bytes);
    Ok((given.after(least), step))
}

/// Entries to ask of a store that keeps no counts, for `messages` in hand (the least of permits,
/// tokens and headroom): never 0 while there are any, exactly 1 while nothing is known, at most
/// `limit` (rule D25; apache/pulsar#18553).
#[must_use]
pub fn estimated_entries(messages: i64, average: Average, limit: Entries) -> Entries {
    let Some(average) = average.get().filter(|_| messages > 0) else {
        return Entries(u64::from(messages > 0));
    };
    let entries = (messages as f64 / average).ceil();
    Entries((entries as u64).clamp(1, limit.0.max(1)))
}

/// The same for `bytes` in hand, by the mean size of the ledger's entries (rule D26). The lesser of
/// the two is read.
#[must_use]
pub fn estimated_entries_of_bytes(bytes: i64, ledger: (Entries, Bytes), limit: Entries) -> Entries {
    let (entries, size) = ledger;
    if bytes <= 0 || entries.0 == 0 || size.0 == 0 {
        return Entries(u64::from(bytes > 0));
    }
    // bytes / (size / entries), rounded up.
    let found = u128::from(bytes.unsigned_abs()) * u128::from(entries.0);
    let found = u64::try_from(found.div_ceil(u128::from(size.0))).unwrap_or(u64::MAX);
    Entries(found.clamp(1, limit.0.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PASS: (Entries, Bytes) = (Entries(500), Bytes(5 << 20));

    fn taken(permits: i64, sizes: &[u64]) -> (usize, Stop) {
        let mut budget = Budget::new(permits, PASS.0, PASS.1);
        for (count, &size) in sizes.iter().enumerate() {
            if let Err(stop) = budget.admit(Messages(size), Bytes(size)) {
                return (count, stop);
            }
        }
        panic!("the plan did not end");
    }

    #[test]
    fn a_thousand_permits_take_one_entry_of_a_thousand() {
        assert_eq!(taken(1000, &[1000; 500]), (1, Stop::Permits));
    }

    #[test]
    fn one_permit_takes_a_whole_entry_and_debt_takes_none() {
        assert_eq!(taken(1, &[100; 3]), (1, Stop::Permits));
        assert_eq!(taken(0, &[100; 3]), (0, Stop::Permits));
        assert_eq!(taken(-99, &[100; 3]), (0, Stop::Permits));
    }

    #[test]
    fn a_headroom_of_one_message_takes_one_whole_entry() {
        let budget = Budget::new(1000, PASS.0, PASS.1);
        let mut one = budget.with_headroom(1);
        assert_eq!(one.admit(Messages(36), Bytes(1)), Ok(()));
        assert_eq!(one.admit(Messages(1), Bytes(1)), Err(Stop::Unacked));
        let full = budget.with_headroom(0).admit(Messages(1), Bytes(1));
        assert_eq!(full, Err(Stop::Unacked));
    }

    #[test]
    fn the_first_limit_without_room_is_named_and_a_refusal_charges_nothing() {
        let one = (Messages(1), Bytes(1));
        let refusal = |permits, bytes, headroom, entries| {
            let budget =
                Budget::new(permits, Entries(entries), Bytes(bytes)).with_headroom(headroom);
            let mut twice = budget;
            let refused = twice.admit(one.0, one.1).unwrap_err();
            assert_eq!(twice.least, budget.least);
            refused
        };
        assert_eq!(refusal(0, 0, 0, 0), Stop::Permits);
        assert_eq!(refusal(1, 0, 0, 0), Stop::Bytes);
        assert_eq!(refusal(1, 1, 0, 0), Stop::Unacked);
        assert_eq!(refusal(1, 1, 1, 0), Stop::Entries);
        for (permits, bytes, headroom, entries, stop) in [
            (3, 9, 9, 9, Stop::Permits),
            (9, 3, 9, 9, Stop::Bytes),
            (9, 9, 3, 9, Stop::Unacked),
            (9, 9, 9, 3, Stop::Entries),
        ] {
            let budget = Budget::new(permits, Entries(entries), Bytes(bytes));
            let mut budget = budget.with_headroom(headroom);
            (0..3).for_each(|_| assert_eq!(budget.admit(one.0, one.1), Ok(())));
            assert_eq!(budget.admit(one.0, one.1), Err(stop), "after three");
        }
    }

    /// PERMIT-ZERO-READ, the part without counts: estimate unset, 1 and 1000.
    #[test]
    fn permit_zero_read_without_counts_the_read_is_never_empty_and_starts_at_one() {
        let mut average = Average::default();
        assert_eq!(estimated_entries(1000, average, PASS.0), Entries(1));
        average.observe(Messages(100), Entries(1));
        assert_eq!(estimated_entries(1000, average, PASS.0), Entries(10));
        for (permits, sizes) in [
            (1000, [10, 500, 1]),
            (4, [1, 4, 1]),
            (-1, [0; 3]),
            (2, [1, 2, 1]),
        ] {
            for (batch, entries) in [100, 1, 1000].into_iter().zip(sizes) {
                let mut average = Average::default();
                average.observe(Messages(batch), Entries(1));
                assert_eq!(
                    estimated_entries(permits, average, PASS.0),
                    Entries(entries)
                );
            }
        }
        assert_eq!(estimated_entries(i64::MAX, average, Entries(0)), Entries(1));
        assert_eq!(estimated_entries(i64::MIN, average, PASS.0), Entries(0));
    }

    #[test]
    fn without_counts_bytes_become_entries_by_the_mean_size_of_the_ledger() {
        let ledger = (Entries(3), Bytes(100));
        let entries = |bytes| estimated_entries_of_bytes(bytes, ledger, PASS.0).0;
        assert_eq!(
            [-1, 0, 1, 33, 34, 100, i64::MAX].map(entries),
            [0, 0, 1, 1, 2, 3, 500]
        );
        let empty = estimated_entries_of_bytes(100, (Entries(0), Bytes(0)), PASS.0);
        assert_eq!(empty, Entries(1), "one entry teaches the size");
    }

    proptest! {
        #[test]
        fn overshoot_is_less_than_the_largest_entry(
            permits in 1i64..5000, sizes in prop::collection::vec(1u64..2000, 1..400)
        ) {
            let mut budget = Budget::new(permits, Entries(1000), Bytes(u64::MAX));
            let mut sum = 0;
            for &size in &sizes {
                if budget.admit(Messages(size), Bytes(1)).is_ok() { sum += size } else { break }
            }
            let largest = sizes.iter().copied().max().unwrap_or(1);
            prop_assert!(sum >= 1 && (sum as i64) - permits < largest as i64);
        }
    }
}
