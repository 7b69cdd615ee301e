//! The metadata store of the engine, in memory: slow, sometimes failing, never half done.

use std::collections::{BTreeMap, VecDeque};

use pelton_broker::{MetaDone, MetaOp};

use crate::chance::Chance;

/// One store for all shards; each shard has one transaction in flight at a time, as the shell does.
#[derive(Debug, Default)]
pub(crate) struct Meta {
    store: BTreeMap<String, Vec<u8>>,
    queues: Vec<VecDeque<MetaOp>>,
    /// The next transactions of these shards fail.
    fail: Vec<bool>,
}

impl Meta {
    pub(crate) fn new(shards: usize) -> Meta {
        Meta {
            store: BTreeMap::new(),
            queues: vec![VecDeque::new(); shards],
            fail: vec![false; shards],
        }
    }

    pub(crate) fn records(&self) -> Vec<(String, Vec<u8>)> {
        let pair = |(key, value): (&String, &Vec<u8>)| (key.clone(), value.clone());
        self.store.iter().map(pair).collect()
    }

    pub(crate) fn begin(&mut self, shard: usize, op: MetaOp) {
        self.queues[shard].push_back(op);
    }

    pub(crate) fn in_flight(&self, shard: usize) -> bool {
        !self.queues[shard].is_empty()
    }

    pub(crate) fn fail_next(&mut self, shard: usize) {
        self.fail[shard] = true;
    }

    pub(crate) fn heal(&mut self) {
        self.fail.fill(false);
    }

    /// Ends the transaction in flight.
    pub(crate) fn complete(&mut self, shard: usize) -> Option<MetaDone> {
        let op = self.queues[shard].pop_front()?;
        // Those that only wait for their turn touch nothing that could fail.
        if !op.writes.is_empty() && std::mem::take(&mut self.fail[shard]) {
            let result = Err("the store said no".to_owned());
            return Some(MetaDone {
                token: op.token,
                result,
            });
        }
        let token = op.token;
        self.apply(op);
        Some(MetaDone {
            token,
            result: Ok(()),
        })
    }

    fn apply(&mut self, op: MetaOp) {
        for (key, value) in op.writes {
            match value {
                Some(value) => self.store.insert(key, value),
                None => self.store.remove(&key),
            };
        }
    }

    /// The process dies: what is in flight is done as a whole or not at all, the rest never was.
    pub(crate) fn crash(&mut self, chance: &mut Chance) {
        for shard in 0..self.queues.len() {
            if let Some(op) = self.queues[shard].pop_front()
                && chance.one_in(2)
            {
                self.apply(op);
            }
            self.queues[shard].clear();
        }
        self.heal();
    }
}
