//! Who owns a key of a KeyShared subscription, looked up the slow way from who is attached (rules D82 to
//! D85, D90).

use pelton_broker::keys::{KeyRange, key_hash};
use pelton_broker::{KeyShared, Policy};

/// Key hashes that entries have. Entries without a key are each a key of their own, whose places are
/// none of these.
pub(crate) const KEYS: [u16; 7] = [58, 5_536, 21_772, 27_058, 41_358, 63_679, 64_071];

/// How a subscription shares out its keys, and to whom.
#[derive(Debug)]
pub(crate) struct Keys {
    pub(crate) out_of_order: bool,
    sharing: Sharing,
    /// In order of arrival.
    members: Vec<Member>,
}

#[derive(Debug)]
enum Sharing {
    /// So many points a consumer.
    Ring(u32),
    /// Last hash of each range and whose it is, ascending.
    Split(Vec<(u16, usize)>),
    Sticky,
}

#[derive(Debug)]
struct Member {
    consumer: usize,
    name: String,
    /// Among equal names.
    index: u32,
    places: Vec<u16>,
    ranges: Vec<KeyRange>,
}

impl Keys {
    /// As the first consumer wants it.
    pub(crate) fn new(wish: &KeyShared, policy: &Policy) -> Keys {
        let points = policy.subscription_key_shared_consistent_hashing_replica_points;
        let sharing = match policy.subscription_key_shared_use_consistent_hashing {
            _ if !wish.ranges.is_empty() => Sharing::Sticky,
            true => Sharing::Ring(points.max(1)),
            false => Sharing::Split(Vec::new()),
        };
        Keys {
            out_of_order: wish.allow_out_of_order_delivery,
            sharing,
            members: Vec::new(),
        }
    }

    pub(crate) fn is_sticky(&self) -> bool {
        matches!(self.sharing, Sharing::Sticky)
    }

    /// Whether a newcomer asks for what the others have.
    pub(crate) fn suits(&self, wish: &KeyShared) -> bool {
        self.is_sticky() != wish.ranges.is_empty()
            && self.out_of_order == wish.allow_out_of_order_delivery
    }

    /// False, and nothing changed, if others have some of its keys.
    pub(crate) fn join(&mut self, consumer: usize, name: &str, ranges: &[KeyRange]) -> bool {
        let taken = self.members.iter().flat_map(|member| &member.ranges);
        let all: Vec<_> = taken.chain(ranges).collect();
        let meet = |a: &KeyRange, b: &KeyRange| a.first <= b.last && b.first <= a.last;
        let overlap = (1..all.len()).any(|at| all[..at].iter().any(|other| meet(all[at], other)));
        if self.is_sticky() && overlap {
            return false;
        }
        let used = |index: &u32| {
            let mut equal = self.members.iter().filter(|member| member.name == name);
            equal.any(|member| member.index == *index)
        };
        let index = (0..).find(|index| !used(index)).expect("a free one");
        let points = match self.sharing {
            Sharing::Ring(points) => points,
            _ => 0,
        };
        let place = |point| key_hash(format!("{name}\0{index}\0{point}").as_bytes());
        self.members.push(Member {
            consumer,
            name: name.to_owned(),
            index,
            places: (0..points).map(place).collect(),
            ranges: ranges.to_vec(),
        });
        if let Sharing::Split(split) = &mut self.sharing {
            halve(split, consumer);
        }
        true
    }

    pub(crate) fn leave(&mut self, consumer: usize) {
        self.members.retain(|member| member.consumer != consumer);
        let Sharing::Split(split) = &mut self.sharing else {
            return;
        };
        split.retain(|&(_, owner)| owner != consumer);
        if let Some(top) = split.last_mut() {
            top.0 = u16::MAX;
        }
    }

    pub(crate) fn owner(&self, hash: u16) -> Option<usize> {
        match &self.sharing {
            Sharing::Ring(_) => {
                let points = self.members.iter().flat_map(|member| {
                    let way = |place: &u16| (place.wrapping_sub(hash), member.consumer);
                    member.places.iter().map(way)
                });
                // Of equal ones the first counts, which is of the earlier attachment.
                points.min_by_key(|&(way, _)| way).map(|(_, owner)| owner)
            }
            Sharing::Split(split) => {
                let range = split.iter().find(|&&(last, _)| hash <= last);
                range.map(|&(_, owner)| owner)
            }
            Sharing::Sticky => {
                let has = |member: &&Member| member.ranges.iter().any(|r| r.contains(hash));
                self.members.iter().find(has).map(|member| member.consumer)
            }
        }
    }
}

/// The newcomer takes the lower half of the widest range, the lowest of such.
fn halve(split: &mut Vec<(u16, usize)>, newcomer: usize) {
    let first = |at: usize| match at {
        0 => 0,
        _ => u32::from(split[at - 1].0) + 1,
    };
    let width = |at: usize| u32::from(split[at].0) - first(at);
    let widest = (0..split.len()).rev().max_by_key(|&at| width(at));
    let (at, last) = match widest {
        None => (0, u32::from(u16::MAX)),
        Some(at) => (at, first(at) + width(at) / 2),
    };
    split.insert(at, (last as u16, newcomer));
}

/// Entries that may be put aside before unread ones have to wait (rule D90).
pub(crate) fn look_ahead(consumers: usize, policy: &Policy) -> u64 {
    let each = policy.key_shared_look_ahead_msg_in_replay_threshold_per_consumer;
    let all = policy.key_shared_look_ahead_msg_in_replay_threshold_per_subscription;
    let limits = [consumers as u64 * each, all];
    let limit = limits.into_iter().filter(|&limit| limit > 0).min();
    let unacked = Some(policy.max_unacked_messages_per_subscription).filter(|&limit| limit > 0);
    limit.or(unacked).unwrap_or(200_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_entry_without_a_key_has_the_place_of_a_key() {
        let place = |ordinal: u64| (ordinal.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16;
        let meets = |ordinal: &u64| KEYS.contains(&place(*ordinal).max(1));
        assert_eq!((0..20_000).find(meets), None);
    }

    #[test]
    fn the_examples_of_t36() {
        let policy = Policy {
            subscription_key_shared_use_consistent_hashing: false,
            ..Policy::default()
        };
        let mut keys = Keys::new(&KeyShared::default(), &policy);
        (1..=3).for_each(|consumer| assert!(keys.join(consumer, "c", &[])));
        let owners = |keys: &Keys| [0, 16_384, 32_768].map(|hash| keys.owner(hash));
        assert_eq!(owners(&keys), [Some(3), Some(2), Some(1)]);
        keys.leave(2);
        assert_eq!(owners(&keys), [Some(3), Some(1), Some(1)]);
        keys.leave(1);
        assert_eq!(owners(&keys), [Some(3), Some(3), Some(3)]);
    }
}
