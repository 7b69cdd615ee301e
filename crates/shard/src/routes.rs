//! Which shard owns a topic.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Who owns a topic, for whoever asks. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Router(pub(crate) Arc<Routes>);

impl Router {
    /// The shard that owns a topic, or would if it were made now.
    #[must_use]
    pub fn shard_of(&self, topic: &str) -> u32 {
        self.0.shard_of(topic)
    }
}

/// Topics that exist live where their metadata says; a new one lives where its name hashes to.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    shards: u32,
    known: BTreeMap<Box<str>, u32>,
}

impl Routes {
    pub(crate) fn new(shards: u32, known: BTreeMap<Box<str>, u32>) -> Routes {
        Routes { shards, known }
    }

    /// The owner's index.
    pub(crate) fn shard_of(&self, topic: &str) -> u32 {
        match self.known.get(topic) {
            Some(&shard) => shard,
            None => (hash(topic) % u64::from(self.shards.max(1))) as u32,
        }
    }
}

/// FNV-1a, with a last mix: its low bits alone follow the last byte too closely.
fn hash(name: &str) -> u64 {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_topic_stays_where_it_is_and_new_ones_spread() {
        let routes = Routes::new(4, BTreeMap::from([("orders".into(), 3)]));
        assert_eq!(routes.shard_of("orders"), 3);
        let mut counts = [0; 4];
        for i in 0..4_000 {
            counts[routes.shard_of(&format!("topic-{i}")) as usize] += 1;
        }
        assert!(
            counts.iter().all(|&count| (800..1_200).contains(&count)),
            "{counts:?}"
        );
    }
}
