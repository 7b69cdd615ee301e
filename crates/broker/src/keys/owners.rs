//! Who owns a hash: one of three policies, and what moves when a consumer comes or goes.

use crate::keys::{Ring, Split, Sticky};

/// The policy of one Key_Shared subscription. It has the same one as long as a consumer is attached.
///
/// A consumer is named by its slot; a slot is in at most once at a time.
#[derive(Debug)]
pub enum Owners {
    /// Consistent hashing (rule D83).
    Ring(Ring),
    /// The widest range is halved (rule D84).
    Split(Split),
    /// Ranges that the clients named (rule D85).
    Sticky(Sticky),
}

/// Hashes `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRange {
    /// The lowest hash.
    pub first: u16,
    /// The highest hash.
    pub last: u16,
}

/// A range that got another owner. What is `None` has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The hashes that moved.
    pub range: KeyRange,
    /// Whose they were.
    pub old: Option<u32>,
    /// Whose they are.
    pub new: Option<u32>,
}

/// What one join or leave moved: disjoint ranges, each with one old and one new owner.
pub type Changes = Vec<Change>;

/// Why a consumer cannot be given hashes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssignError {
    /// A range ends before it starts or leaves 0 to 65,535.
    #[error("{first}..={last} is no range within 0..=65535")]
    OutOfRange {
        /// As named by the client.
        first: i64,
        /// As named by the client.
        last: i64,
    },
    /// A sticky consumer that names no range.
    #[error("a sticky consumer names at least one range")]
    NoRanges,
    /// A range that another consumer, or another range of this one, covers in part.
    #[error("{}..={} overlaps {}..={}", range.first, range.last, other.first, other.last)]
    Overlap {
        /// The one asked for.
        range: KeyRange,
        /// The one in its way.
        other: KeyRange,
    },
    /// Every hash already has a consumer of its own.
    #[error("no range is wide enough to be halved")]
    TooManyConsumers,
}

impl KeyRange {
    /// All hashes.
    pub const ALL: Self = Self {
        first: 0,
        last: u16::MAX,
    };

    /// Takes a range as a client wrote it.
    ///
    /// # Errors
    /// [`AssignError::OutOfRange`].
    pub fn new(first: i64, last: i64) -> Result<Self, AssignError> {
        match (u16::try_from(first), u16::try_from(last)) {
            (Ok(low), Ok(high)) if low <= high => Ok(Self {
                first: low,
                last: high,
            }),
            _ => Err(AssignError::OutOfRange { first, last }),
        }
    }

    /// Whether `hash` lies within.
    #[must_use]
    pub fn contains(self, hash: u16) -> bool {
        (self.first..=self.last).contains(&hash)
    }
}

impl Owners {
    /// Takes a consumer in. `ranges` are for [`Owners::Sticky`] alone, `name` for [`Owners::Ring`].
    ///
    /// # Errors
    /// [`AssignError`]; then nothing changed.
    pub fn join(
        &mut self,
        consumer: u32,
        name: &str,
        ranges: &[KeyRange],
    ) -> Result<Changes, AssignError> {
        match self {
            Self::Ring(ring) => Ok(ring.join(consumer, name)),
            Self::Split(split) => split.join(consumer),
            Self::Sticky(sticky) => sticky.join(consumer, ranges),
        }
    }

    /// Lets a consumer go; one that is not in changes nothing.
    pub fn leave(&mut self, consumer: u32) -> Changes {
        match self {
            Self::Ring(ring) => ring.leave(consumer),
            Self::Split(split) => split.leave(consumer),
            Self::Sticky(sticky) => sticky.leave(consumer),
        }
    }

    /// The consumer that owns `hash`, at the cost of one binary search.
    #[must_use]
    pub fn owner(&self, hash: u16) -> Option<u32> {
        match self {
            Self::Ring(ring) => ring.owner(hash),
            Self::Split(split) => split.owner(hash),
            Self::Sticky(sticky) => sticky.owner(hash),
        }
    }

    /// The ranges of one consumer, ascending, none touching the next (`keyHashRangeArrays`).
    #[must_use]
    pub fn ranges_of(&self, consumer: u32) -> Vec<KeyRange> {
        let mut ranges = match self {
            Self::Ring(ring) => ring.ranges_of(consumer),
            Self::Split(split) => split.ranges_of(consumer),
            Self::Sticky(sticky) => sticky.ranges_of(consumer),
        };
        ranges.sort_unstable();
        ranges.dedup_by(|next, kept| {
            let touch = kept.last.checked_add(1) == Some(next.first);
            if touch {
                kept.last = next.last;
            }
            touch
        });
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn table(owners: &Owners) -> Vec<Option<u32>> {
        (0..=u16::MAX).map(|hash| owners.owner(hash)).collect()
    }

    fn check_changes(before: &[Option<u32>], after: &[Option<u32>], changes: &[Change]) {
        let mut moved = before.to_vec();
        for change in changes {
            for hash in change.range.first..=change.range.last {
                assert_eq!(before[usize::from(hash)], change.old, "old owner of {hash}");
                moved[usize::from(hash)] = change.new;
            }
        }
        assert!(
            moved == after,
            "the changes lead from one table to the next"
        );
        let told: usize = changes
            .iter()
            .map(|c| usize::from(c.range.last - c.range.first) + 1)
            .sum();
        let differ = before.iter().zip(after).filter(|(a, b)| a != b).count();
        assert_eq!(
            told, differ,
            "no hash is told twice, or without having moved"
        );
    }

    fn check_ranges(after: &[Option<u32>], owners: &Owners, consumers: &[u32]) {
        for &consumer in consumers {
            let ranges = owners.ranges_of(consumer);
            assert!(ranges.is_sorted_by(|a, b| u32::from(a.last) + 1 < u32::from(b.first)));
            let listed: usize = ranges
                .iter()
                .map(|r| {
                    let part = usize::from(r.first)..=usize::from(r.last);
                    assert!(after[part.clone()].iter().all(|&o| o == Some(consumer)));
                    part.count()
                })
                .sum();
            let owned = after.iter().filter(|&&o| o == Some(consumer)).count();
            assert_eq!(listed, owned);
        }
    }

    /// The range a sticky consumer of this number asks for; some overlap.
    fn ranges_for(consumer: u32) -> [KeyRange; 2] {
        let first = u16::try_from(consumer * 5_000).unwrap();
        [
            KeyRange {
                first,
                last: first + 3_000,
            },
            KeyRange {
                first: first + 3_500,
                last: first + 3_500 + (consumer % 3) as u16 * 1_000,
            },
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn changes_and_ranges_agree_with_the_owner_of_each_hash(
            policy in 0..3,
            steps in prop::collection::vec((0u32..12, any::<bool>()), 1..24),
        ) {
            let mut owners = match policy {
                0 => Owners::Ring(Ring::new(3)),
                1 => Owners::Split(Split::default()),
                _ => Owners::Sticky(Sticky::default()),
            };
            let mut inside: Vec<u32> = Vec::new();
            let mut before = table(&owners);
            for (consumer, join) in steps {
                let is_in = inside.contains(&consumer);
                let changes = if join && !is_in {
                    // Three names for twelve consumers, so that equal names and points occur.
                    let name = ["x", "y", "z"][consumer as usize % 3];
                    match owners.join(consumer, name, &ranges_for(consumer)) {
                        Ok(changes) => {
                            inside.push(consumer);
                            changes
                        }
                        Err(error) => {
                            let overlap = matches!(error, AssignError::Overlap { .. });
                            prop_assert!(overlap && policy == 2);
                            Vec::new()
                        }
                    }
                } else if !join {
                    inside.retain(|&c| c != consumer);
                    owners.leave(consumer)
                } else {
                    continue;
                };
                let after = table(&owners);
                check_changes(&before, &after, &changes);
                check_ranges(&after, &owners, &inside);
                let all_owned = after.iter().all(Option::is_some);
                prop_assert!(policy == 2 || all_owned != inside.is_empty());
                before = after;
            }
        }
    }

    #[test]
    fn d85_a_range_lies_within_the_hashes() {
        assert_eq!(KeyRange::new(0, 65_535), Ok(KeyRange::ALL));
        for (first, last) in [(-1, 5), (0, 65_536), (7, 6), (i64::MIN, i64::MAX)] {
            assert_eq!(
                KeyRange::new(first, last),
                Err(AssignError::OutOfRange { first, last })
            );
        }
    }
}
