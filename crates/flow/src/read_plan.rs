//! How many whole entries may go now.

use crate::{Average, Bytes, Entries, Messages};

/// What one plan may still take. Each entry is admitted while every limit has room for at least one
/// unit, and is then charged in full: whenever anything may go, at least one whole entry goes,
/// however large, and a store is never asked for zero entries (rules D30 and D31; pulsar#6719).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The lesser of permits and headroom: an entry takes its messages from both.
    messages: i64,
    /// Which of the two it is.
    messages_stop: Stop,
    entries: u64,
    bytes: i64,
}

/// The limit that refused the next entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The consumer has asked for no more messages.
    Permits,
    /// The consumer or its subscription holds as many unacked messages as it may.
    Unacked,
    /// The plan holds as many entries as a pass may take.
    Entries,
    /// The plan holds as many bytes as a pass may take.
    Bytes,
}

impl Budget {
    /// `permits` in messages as [`crate::Account::available`] gives them, debt included.
    #[must_use]
    pub fn new(permits: i64, entries: Entries, bytes: Bytes) -> Self {
        Self {
            messages: permits,
            messages_stop: Stop::Permits,
            entries: entries.0,
            bytes: i64::try_from(bytes.0).unwrap_or(i64::MAX),
        }
    }

    /// The same, while fewer than `messages` more are unacked (rule D103); zero or less: nothing goes.
    #[must_use]
    pub fn with_headroom(self, messages: i64) -> Self {
        if messages >= self.messages {
            return self;
        }
        Self {
            messages,
            messages_stop: if self.messages <= 0 {
                Stop::Permits
            } else {
                Stop::Unacked
            },
            ..self
        }
    }

    /// Charges one entry, or names the first limit without room.
    ///
    /// # Errors
    /// The [`Stop`] reason; nothing is charged then.
    #[inline]
    pub fn admit(&mut self, messages: Messages, bytes: Bytes) -> Result<(), Stop> {
        if self.messages <= 0 {
            return Err(self.messages_stop);
        }
        if self.entries == 0 {
            return Err(Stop::Entries);
        }
        if self.bytes <= 0 {
            return Err(Stop::Bytes);
        }
        self.messages = self.messages.saturating_sub_unsigned(messages.0);
        self.entries -= 1;
        self.bytes = self.bytes.saturating_sub_unsigned(bytes.0);
        Ok(())
    }

    /// Entries that a plan may still take.
    #[must_use]
    pub fn entries_left(&self) -> Entries {
        Entries(self.entries)
    }

    /// Bytes that a plan may still take; 0 once overdrawn.
    #[must_use]
    pub fn bytes_left(&self) -> Bytes {
        Bytes(self.bytes.max(0).unsigned_abs())
    }
}

/// Entries to ask of a store that keeps no counts, for `messages` in hand: never 0 while there are
/// permits, exactly 1 while nothing is known (rule D25; apache/pulsar#18553).
#[must_use]
pub fn estimated_entries(messages: i64, average: Average, limit: Entries) -> Entries {
    if messages <= 0 {
        return Entries(0);
    }
    let entries = average
        .get()
        .map_or(1.0, |average| (messages as f64 / average).ceil());
    Entries((entries as u64).clamp(1, limit.0.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn taken(permits: i64, sizes: &[u64]) -> (usize, Stop) {
        let mut budget = Budget::new(permits, Entries(500), Bytes(5 << 20));
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
        let budget = Budget::new(1000, Entries(500), Bytes(5 << 20));
        let mut one = budget.with_headroom(1);
        assert_eq!(one.admit(Messages(36), Bytes(1)), Ok(()));
        assert_eq!(one.admit(Messages(1), Bytes(1)), Err(Stop::Unacked));
        let full = budget.with_headroom(0).admit(Messages(1), Bytes(1));
        assert_eq!(full, Err(Stop::Unacked));
    }

    #[test]
    fn without_counts_the_read_is_never_empty_and_starts_at_one() {
        let mut average = Average::default();
        assert_eq!(estimated_entries(1000, average, Entries(500)), Entries(1));
        average.observe(Messages(100), Entries(1));
        assert_eq!(estimated_entries(1000, average, Entries(500)), Entries(10));
        assert_eq!(estimated_entries(4, average, Entries(500)), Entries(1));
        assert_eq!(estimated_entries(0, average, Entries(500)), Entries(0));
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
