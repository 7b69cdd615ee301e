//! Rounds in a row that a gap was seen, counted per shard. Per pair they would never add up where
//! shards take turns at one end (rule R13).

/// Two counts per shard: rounds with a gap of `low` or more, and of `high` or more.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HitCounters {
    pub(crate) limits: Limits,
    low_hits: Vec<u32>,
    high_hits: Vec<u32>,
}

/// What counts, and how often it must.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Limits {
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) hits_low: u32,
    pub(crate) hits_high: u32,
}

impl HitCounters {
    pub(crate) fn new(limits: Limits, shards: usize) -> Self {
        Self {
            limits,
            low_hits: vec![0; shards],
            high_hits: vec![0; shards],
        }
    }

    /// One round of a pair; true if its gap counts at all. A gap that does not ends the row.
    pub(crate) fn count(&mut self, ends: [usize; 2], gap: f64) -> bool {
        if gap < self.limits.low {
            self.clear(ends);
            return false;
        }
        for shard in ends {
            self.low_hits[shard] += 1;
            if gap < self.limits.high {
                self.high_hits[shard] = 0;
            } else {
                self.high_hits[shard] += 1;
            }
        }
        true
    }

    /// Whether either end was apart often enough.
    pub(crate) fn reached(&self, ends: [usize; 2]) -> bool {
        ends.into_iter().any(|shard| {
            self.high_hits[shard] >= self.limits.hits_high
                || self.low_hits[shard] >= self.limits.hits_low
        })
    }

    pub(crate) fn clear(&mut self, ends: [usize; 2]) {
        for shard in ends {
            self.low_hits[shard] = 0;
            self.high_hits[shard] = 0;
        }
    }

    pub(crate) fn clear_all(&mut self) {
        self.low_hits.fill(0);
        self.high_hits.fill(0);
    }
}
