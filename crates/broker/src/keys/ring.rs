//! Auto split by consistent hashing (rule D83).
//!
//! Each consumer has the same number of points on a ring of 65,536 places. A hash belongs to the
//! first point at or above it, or else to the lowest one. Several consumers may claim one place:
//! the earliest has it, the others wait for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::hash::{Murmur3, fold};
use crate::keys::{Change, Changes, KeyRange};

/// With n consumers of R points, a join or leave costs one merge of at most min(n R, 65,536) points
/// and R searches of the waiting claims, whose number is what n R has beyond the places taken.
#[derive(Debug)]
pub struct Ring {
    points_per_consumer: u32,
    /// Places that are taken, ascending.
    points: Vec<Point>,
    waiting: BTreeMap<Claim, u32>,
    members: BTreeMap<u32, Member>,
    /// Indexes in use among consumers of equal name.
    names: BTreeMap<Box<str>, BTreeSet<u32>>,
    joins: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    place: u16,
    owner: u32,
}

/// By place, then by arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    place: u16,
    join: u64,
}

#[derive(Debug)]
struct Member {
    name: Box<str>,
    /// The lowest that was free among equal names, as Pulsar counts.
    index: u32,
    join: u64,
}

impl Ring {
    /// A ring on which each consumer has `points_per_consumer` points
    /// (`subscriptionKeySharedConsistentHashingReplicaPoints`), at least 1.
    #[must_use]
    pub fn new(points_per_consumer: u32) -> Self {
        Self {
            points_per_consumer: points_per_consumer.max(1),
            points: Vec::new(),
            waiting: BTreeMap::new(),
            members: BTreeMap::new(),
            names: BTreeMap::new(),
            joins: 0,
        }
    }

    pub(super) fn join(&mut self, consumer: u32, name: &str) -> Changes {
        let indexes = self.names.entry(name.into()).or_default();
        let index = (0..)
            .find(|index| !indexes.contains(index))
            .expect("a free index");
        indexes.insert(index);
        self.joins += 1;
        let member = Member {
            name: name.into(),
            index,
            join: self.joins,
        };
        let mut taken = Vec::new();
        for place in member.places(self.points_per_consumer) {
            if self.at(place).is_some() {
                let join = member.join;
                self.waiting.insert(Claim { place, join }, consumer);
            } else {
                taken.push(place);
            }
        }
        self.members.insert(consumer, member);
        let olds: Vec<_> = taken.iter().map(|&place| self.owner(place)).collect();
        let owner = consumer;
        self.points
            .extend(taken.iter().map(|&place| Point { place, owner }));
        // Two sorted runs: the stable sort merges them.
        self.points.sort();
        let mut changes = Changes::new();
        for (place, old) in taken.into_iter().zip(olds) {
            self.tell(&mut changes, place, (old, Some(consumer)));
        }
        changes
    }

    pub(super) fn leave(&mut self, consumer: u32) -> Changes {
        let Some(member) = self.members.remove(&consumer) else {
            return Vec::new();
        };
        self.forget_name(&member);
        let mut left = Vec::new();
        for place in member.places(self.points_per_consumer) {
            let join = member.join;
            if self.waiting.remove(&Claim { place, join }).is_none() {
                left.push(place);
            }
        }
        // While the leaver's points still stand they say which hashes were its own.
        let mut changes = Changes::new();
        for place in left {
            self.tell(&mut changes, place, (Some(consumer), None));
            let claims = Claim { place, join: 0 }..=Claim {
                place,
                join: u64::MAX,
            };
            let heir = self
                .waiting
                .range(claims)
                .next()
                .map(|(&claim, &heir)| (claim, heir));
            if let Some((claim, heir)) = heir {
                self.waiting.remove(&claim);
                let at = self.at(place).expect("it was taken");
                self.points[at].owner = heir;
            }
        }
        self.points.retain(|point| point.owner != consumer);
        for change in &mut changes {
            change.new = self.owner(change.range.last);
        }
        changes
    }

    pub(super) fn owner(&self, hash: u16) -> Option<u32> {
        let at = self.points.partition_point(|point| point.place < hash);
        let point = self.points.get(at).or_else(|| self.points.first())?;
        Some(point.owner)
    }

    pub(super) fn ranges_of(&self, consumer: u32) -> Vec<KeyRange> {
        let mut found = Changes::new();
        for point in self.points.iter().filter(|point| point.owner == consumer) {
            self.tell(&mut found, point.place, (None, None));
        }
        found.into_iter().map(|change| change.range).collect()
    }

    /// Adds the hashes that belong to the point at `place`; those of the lowest wrap around.
    fn tell(&self, changes: &mut Changes, place: u16, (old, new): (Option<u32>, Option<u32>)) {
        let mut push = |first, last| {
            let range = KeyRange { first, last };
            changes.push(Change { range, old, new });
        };
        let at = self.at(place).expect("a point of the ring");
        if at > 0 {
            push(self.points[at - 1].place + 1, place);
            return;
        }
        push(0, place);
        let highest = self.points[self.points.len() - 1].place;
        if highest < u16::MAX {
            push(highest + 1, u16::MAX);
        }
    }

    fn at(&self, place: u16) -> Option<usize> {
        self.points
            .binary_search_by_key(&place, |point| point.place)
            .ok()
    }

    fn forget_name(&mut self, member: &Member) {
        let indexes = self.names.get_mut(&member.name).expect("it has an index");
        indexes.remove(&member.index);
        if indexes.is_empty() {
            self.names.remove(&member.name);
        }
    }
}

impl Member {
    /// Its places, ascending, each once.
    fn places(&self, points: u32) -> Vec<u16> {
        let mut named = Murmur3::default();
        named.write(self.name.as_bytes());
        named.write(b"\0");
        named.write_decimal(u64::from(self.index));
        named.write(b"\0");
        let place = |point| {
            let mut hash = named;
            hash.write_decimal(u64::from(point));
            fold(hash.finish())
        };
        let mut places: Vec<u16> = (0..points).map(place).collect();
        places.sort_unstable();
        places.dedup();
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::key_hash;
    use proptest::prelude::*;

    /// D83 as it is written, with nothing kept: all claims in one list.
    fn naive_owner(ring: &Ring, hash: u16) -> Option<u32> {
        let mut claims: Vec<(u16, u64, u32)> = Vec::new();
        for (&consumer, member) in &ring.members {
            for point in 0..ring.points_per_consumer {
                let text = format!("{}\0{}\0{point}", member.name, member.index);
                claims.push((key_hash(text.as_bytes()), member.join, consumer));
            }
        }
        let at_or_above = claims.iter().filter(|claim| claim.0 >= hash).min();
        at_or_above
            .or_else(|| claims.iter().min())
            .map(|claim| claim.2)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn d83_owners_are_those_of_the_definition(
            steps in prop::collection::vec((0u32..40, any::<bool>()), 1..60),
            points in 1u32..200,
            hashes in prop::collection::vec(any::<u16>(), 50),
        ) {
            let mut ring = Ring::new(points);
            for (consumer, join) in steps {
                match (join, ring.members.contains_key(&consumer)) {
                    (true, false) => drop(ring.join(consumer, ["a", "b"][consumer as usize % 2])),
                    (false, _) => drop(ring.leave(consumer)),
                    _ => {}
                }
            }
            for hash in hashes {
                prop_assert_eq!(ring.owner(hash), naive_owner(&ring, hash));
            }
            let claims: usize = ring.members.values().map(|m| m.places(points).len()).sum();
            prop_assert_eq!(ring.points.len() + ring.waiting.len(), claims);
        }
    }

    #[test]
    fn d83_of_equal_points_the_earlier_attachment_owns_and_the_later_inherits() {
        let mut ring = Ring::new(1);
        ring.join(1, "same");
        let place = ring.points[0].place;
        // The same name again gets index 1. When the first goes, index 0 is free for a third.
        ring.join(2, "same");
        ring.leave(1);
        ring.join(3, "same");
        assert!(ring.points.contains(&Point { place, owner: 3 }));
        // A clash is made by hand: nobody can be asked for a name that collides.
        let claim = Claim { place, join: 99 };
        ring.waiting.insert(claim, 2);
        assert_eq!(ring.owner(place), Some(3));
        ring.leave(3);
        assert_eq!(ring.owner(place), Some(2));
        assert!(ring.waiting.is_empty());
    }

    #[test]
    fn d83_equal_names_share_the_hashes() {
        let mut ring = Ring::new(100);
        for consumer in 0..4 {
            ring.join(consumer, "worker");
        }
        for consumer in 0..4 {
            let owned: u32 = ring
                .ranges_of(consumer)
                .iter()
                .map(|range| u32::from(range.last - range.first) + 1)
                .sum();
            assert!((9_000..26_000).contains(&owned), "{consumer}: {owned}");
        }
    }
}
