//! What of a subscription is acked, message by message, and how much of that is promised.

use std::collections::BTreeMap;

use crate::oracle::FOUND;

/// Where a subscription is, between two seeks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor {
    /// Number of the ack of each entry, 0 without one; shorter than the topic's entries.
    acked: Vec<u64>,
    /// Entries that were acked in part: what was left after each ack, with its number.
    parts: BTreeMap<usize, Vec<(u64, Still)>>,
    /// Acks up to this number are as durable as the topic.
    pub(crate) promised: u64,
}

/// Messages of an entry that are not acked, 64 a word.
pub(crate) type Still = Vec<u64>;

/// All messages of a batch.
pub(crate) fn all_of(messages: u32) -> Still {
    let word = |at: u32| match messages - 64 * at {
        64.. => u64::MAX,
        bits => (1 << bits) - 1,
    };
    (0..messages.div_ceil(64)).map(word).collect()
}

/// What both have; words that are not there are 0.
pub(crate) fn both(a: &[u64], b: &[u64]) -> Still {
    let word = |at: usize| a[at] & b.get(at).copied().unwrap_or(0);
    (0..a.len()).map(word).collect()
}

pub(crate) fn count(still: &[u64]) -> u32 {
    still.iter().map(|word| word.count_ones()).sum()
}

impl Cursor {
    pub(crate) fn promised(promised: u64) -> Cursor {
        Cursor {
            promised,
            ..Cursor::default()
        }
    }

    pub(crate) fn is_acked(&self, index: usize) -> bool {
        self.ack_of(index) != 0
    }

    pub(crate) fn ack_of(&self, index: usize) -> u64 {
        self.acked.get(index).copied().unwrap_or(0)
    }

    pub(crate) fn is_promised(&self, index: usize) -> bool {
        self.is_acked(index) && self.acked[index] <= self.promised
    }

    pub(crate) fn set_acked(&mut self, index: usize, ack: u64) {
        if self.acked.len() <= index {
            self.acked.resize(index + 1, 0);
        }
        self.acked[index] = ack;
    }

    /// What is left of an entry that is acked in part.
    pub(crate) fn part(&self, index: usize) -> Option<&Still> {
        let part = self.parts.get(&index).filter(|_| !self.is_acked(index))?;
        part.last().map(|(_, still)| still)
    }

    pub(crate) fn set_part(&mut self, index: usize, ack: u64, still: Still) {
        self.parts.entry(index).or_default().push((ack, still));
    }

    /// What is left of an entry, at most, after a crash; `keeps`: which kept what was promised.
    pub(crate) fn promised_part(&self, index: usize, keeps: bool) -> Option<&Still> {
        let through = if keeps { self.promised } else { FOUND };
        let mut acks = self.parts.get(&index)?.iter().rev();
        acks.find(|&&(ack, _)| ack <= through)
            .map(|(_, still)| still)
    }

    /// Messages of an entry that are not acked.
    pub(crate) fn left(&self, index: usize, messages: u32) -> u32 {
        match self.part(index) {
            _ if self.is_acked(index) => 0,
            Some(still) => count(still),
            None => messages,
        }
    }

    pub(crate) fn lowest_unacked(&self, entries: usize) -> usize {
        (0..entries)
            .find(|&at| !self.is_acked(at))
            .unwrap_or(entries)
    }
}
