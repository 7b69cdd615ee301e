//! Auto split without a ring: a newcomer takes half of the widest range (rule D84).

use crate::keys::{AssignError, Change, Changes, KeyRange};

/// One range per consumer; together they cover all hashes. A join or leave costs one look at each.
#[derive(Debug, Default)]
pub struct Split {
    /// The last hash of a range and its owner, ascending; a range starts where the one before ends.
    ranges: Vec<(u16, u32)>,
}

impl Split {
    pub(super) fn join(&mut self, consumer: u32) -> Result<Changes, AssignError> {
        let Some(widest) = (0..self.ranges.len()).max_by_key(|&at| {
            // Of equal ones the last would win, so the lowest start is made to count more.
            (self.width(at), std::cmp::Reverse(at))
        }) else {
            self.ranges.push((u16::MAX, consumer));
            return Ok(vec![Change {
                range: KeyRange::ALL,
                old: None,
                new: Some(consumer),
            }]);
        };
        let range = self.range(widest);
        if range.first == range.last {
            return Err(AssignError::TooManyConsumers);
        }
        // Of an odd width the newcomer's half is the larger one, as Pulsar rounds.
        let last = range.first + (range.last - range.first) / 2;
        let old = Some(self.ranges[widest].1);
        self.ranges.insert(widest, (last, consumer));
        Ok(vec![Change {
            range: KeyRange { last, ..range },
            old,
            new: Some(consumer),
        }])
    }

    pub(super) fn leave(&mut self, consumer: u32) -> Changes {
        let Some(at) = self.ranges.iter().position(|&(_, owner)| owner == consumer) else {
            return Vec::new();
        };
        let range = self.range(at);
        // Without its last hash a range falls to the one above it; the top one has none above.
        self.ranges.remove(at);
        let heir = at.min(self.ranges.len().saturating_sub(1));
        if let Some(top) = self.ranges.last_mut() {
            top.0 = u16::MAX;
        }
        vec![Change {
            range,
            old: Some(consumer),
            new: self.ranges.get(heir).map(|&(_, owner)| owner),
        }]
    }

    pub(super) fn owner(&self, hash: u16) -> Option<u32> {
        let at = self.ranges.partition_point(|&(last, _)| last < hash);
        self.ranges.get(at).map(|&(_, owner)| owner)
    }

    pub(super) fn ranges_of(&self, consumer: u32) -> Vec<KeyRange> {
        let at = self.ranges.iter().position(|&(_, owner)| owner == consumer);
        at.map(|at| self.range(at)).into_iter().collect()
    }

    fn range(&self, at: usize) -> KeyRange {
        KeyRange {
            first: at
                .checked_sub(1)
                .map_or(0, |before| self.ranges[before].0 + 1),
            last: self.ranges[at].0,
        }
    }

    fn width(&self, at: usize) -> u16 {
        let range = self.range(at);
        range.last - range.first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(split: &Split) -> Vec<(u32, u16, u16)> {
        let range = |at: usize| (split.ranges[at].1, split.range(at));
        (0..split.ranges.len())
            .map(range)
            .map(|(owner, range)| (owner, range.first, range.last))
            .collect()
    }

    #[test]
    fn t36_the_widest_range_is_halved_and_falls_to_its_neighbour() {
        let mut split = Split::default();
        split.join(1).unwrap();
        assert_eq!(shown(&split), [(1, 0, 65_535)]);
        split.join(2).unwrap();
        assert_eq!(shown(&split), [(2, 0, 32_767), (1, 32_768, 65_535)]);
        split.join(3).unwrap();
        assert_eq!(
            shown(&split),
            [(3, 0, 16_383), (2, 16_384, 32_767), (1, 32_768, 65_535)]
        );
        split.leave(2);
        assert_eq!(shown(&split), [(3, 0, 16_383), (1, 16_384, 65_535)]);
        split.leave(1);
        assert_eq!(shown(&split), [(3, 0, 65_535)]);
        let last = split.leave(3);
        assert_eq!((last[0].range, last[0].new), (KeyRange::ALL, None));
        assert_eq!(split.owner(5), None);
    }

    #[test]
    fn d84_every_hash_can_have_a_consumer_of_its_own_and_no_more() {
        let one_each = (0..=u16::MAX).map(|hash| (hash, u32::from(hash)));
        let mut split = Split {
            ranges: one_each.collect(),
        };
        assert_eq!(split.join(65_536), Err(AssignError::TooManyConsumers));
        split.leave(40_000);
        split.join(65_536).unwrap();
        assert_eq!(
            (split.owner(40_000), split.owner(40_001)),
            (Some(65_536), Some(40_001))
        );
        assert_eq!(split.join(65_537), Err(AssignError::TooManyConsumers));
    }
}
