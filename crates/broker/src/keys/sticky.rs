//! Ranges that the clients named (rule D85).

use crate::keys::{AssignError, Change, Changes, KeyRange};

/// Disjoint ranges; a hash in a hole has no owner.
#[derive(Debug, Default)]
pub struct Sticky {
    /// Ascending.
    ranges: Vec<(KeyRange, u32)>,
}

impl Sticky {
    pub(super) fn join(
        &mut self,
        consumer: u32,
        ranges: &[KeyRange],
    ) -> Result<Changes, AssignError> {
        if ranges.is_empty() {
            return Err(AssignError::NoRanges);
        }
        let mut wanted = ranges.to_vec();
        wanted.sort_unstable();
        for (at, &range) in wanted.iter().enumerate() {
            let own = at.checked_sub(1).map(|before| wanted[before]);
            let own = own.filter(|before| before.last >= range.first);
            if let Some(other) = own.or_else(|| self.overlapping(range)) {
                return Err(AssignError::Overlap { range, other });
            }
        }
        self.ranges
            .extend(wanted.iter().map(|&range| (range, consumer)));
        self.ranges.sort_unstable();
        let change = |range| Change {
            range,
            old: None,
            new: Some(consumer),
        };
        Ok(wanted.into_iter().map(change).collect())
    }

    pub(super) fn leave(&mut self, consumer: u32) -> Changes {
        let change = |range| Change {
            range,
            old: Some(consumer),
            new: None,
        };
        let left = self.ranges_of(consumer).into_iter().map(change).collect();
        self.ranges.retain(|&(_, owner)| owner != consumer);
        left
    }

    pub(super) fn owner(&self, hash: u16) -> Option<u32> {
        let at = self.ranges.partition_point(|(range, _)| range.last < hash);
        let &(range, owner) = self.ranges.get(at)?;
        range.contains(hash).then_some(owner)
    }

    pub(super) fn ranges_of(&self, consumer: u32) -> Vec<KeyRange> {
        let own = self.ranges.iter().filter(|&&(_, owner)| owner == consumer);
        own.map(|&(range, _)| range).collect()
    }

    fn overlapping(&self, range: KeyRange) -> Option<KeyRange> {
        let at = self
            .ranges
            .partition_point(|(other, _)| other.last < range.first);
        let &(other, _) = self.ranges.get(at)?;
        (other.first <= range.last).then_some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u16, last: u16) -> KeyRange {
        KeyRange { first, last }
    }

    #[test]
    fn d85_overlap_is_refused_and_changes_nothing() {
        let mut sticky = Sticky::default();
        sticky.join(1, &[range(100, 199), range(300, 399)]).unwrap();
        for (asked, other) in [
            (range(0, 100), range(100, 199)),
            (range(199, 250), range(100, 199)),
            (range(120, 130), range(100, 199)),
            (range(200, 65_535), range(300, 399)),
        ] {
            let refused = AssignError::Overlap {
                range: asked,
                other,
            };
            assert_eq!(sticky.join(2, &[range(500, 600), asked]), Err(refused));
            assert_eq!(sticky.ranges_of(2), []);
        }
        let twice = [range(500, 600), range(600, 700)];
        assert!(matches!(
            sticky.join(2, &twice),
            Err(AssignError::Overlap { .. })
        ));
        assert_eq!(sticky.join(2, &[]), Err(AssignError::NoRanges));
        sticky.join(2, &[range(200, 299)]).unwrap();
        let owners: Vec<_> = [99, 100, 199, 200, 299, 300, 399, 400]
            .map(|hash| sticky.owner(hash))
            .into();
        let (one, two) = (Some(1), Some(2));
        assert_eq!(owners, [None, one, one, two, two, one, one, None]);
        assert_eq!(sticky.leave(1).len(), 2);
        assert_eq!((sticky.owner(150), sticky.owner(250)), (None, two));
    }
}
