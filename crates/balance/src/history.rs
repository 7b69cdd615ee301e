//! Scores that remember: what the strategies with history judge by instead of the present load.

/// An exponential average per shard.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct History {
    weight: f64,
    of_shard: Vec<Option<f64>>,
}

impl History {
    /// `weight` of the past, for `shards` of which nothing is known.
    pub(crate) fn new(weight: f64, shards: usize) -> Self {
        Self {
            weight,
            of_shard: vec![None; shards],
        }
    }

    /// Takes in a score and gives the average. The first score is taken as it is.
    pub(crate) fn step(&mut self, shard: usize, score: f64) -> f64 {
        let next = match self.of_shard[shard] {
            None => score,
            Some(old) => old * self.weight + (1.0 - self.weight) * score,
        };
        self.of_shard[shard] = Some(next);
        next
    }

    pub(crate) fn forget(&mut self, shard: usize) {
        self.of_shard[shard] = None;
    }
}
