//! What is stored once only: the sequences of each producer's name (rule D141).

use std::collections::BTreeMap;

use pelton_broker::{Numbered, Outcome};

use crate::oracle::{Check, Entry, Fate, Life, hold};

/// Producers of two names publish to each topic, so that some share theirs.
const NAMES: u32 = 2;

/// The name that the producer in this slot has.
pub(crate) fn producer_name(slot: u32) -> String {
    format!("p{}", slot % NAMES)
}

/// All there are.
pub(crate) fn names() -> impl Iterator<Item = String> {
    (0..NAMES).map(producer_name)
}

/// Sequences of an entry, mostly the next ones, by the few bits that say how it is.
pub(crate) fn numbered(highest: Option<u64>, seed: u64) -> Option<Numbered> {
    let next = highest.map_or(0, |highest| highest + 1);
    let first = match seed % 16 {
        0 => return None,
        1 | 2 => next.saturating_sub(1),
        3 => next.saturating_sub(4),
        4 => next + 7,
        _ => next,
    };
    let last = first + seed / 16 % 3;
    Some(Numbered { first, last })
}

impl Entry {
    fn sequence_of(&self, name: &str) -> Option<u64> {
        let (of, sequence) = self.numbered.as_ref()?;
        (of == name).then_some(*sequence)
    }
}

impl Life {
    /// The highest sequence that counts for a name.
    pub(crate) fn highest(&self, name: &str) -> Option<u64> {
        let of_entries = self
            .entries
            .iter()
            .filter_map(|entry| entry.sequence_of(name));
        of_entries.max().max(self.sequences.get(name).copied())
    }

    /// What must not be stored was answered: if well, what it repeats is as durable as it should be.
    pub(crate) fn check_repeated(&self, name: &str, highest: u64, outcome: Outcome) -> Check {
        let stored = matches!(outcome, Outcome::Stored(_) | Outcome::Unstored);
        hold("D141 once", !stored, || {
            format!("{name} {highest}: {outcome:?}")
        })?;
        let of = |entry: &&Entry| entry.sequence_of(name) == Some(highest);
        let known = self.entries.iter().find(of).map(|entry| entry.fate);
        let durable = matches!(known, None | Some(Fate::Stored | Fate::Found));
        hold(
            "D141 durable",
            durable || outcome != Outcome::Duplicate,
            || format!("{name} {highest}: {known:?} when a duplicate was receipted"),
        )
    }

    /// Compares what recovery found with what must be there: `keeps` if receipts were promises.
    pub(crate) fn check_found(
        &self,
        found: &BTreeMap<String, u64>,
        present: &[usize],
        keeps: bool,
    ) -> Check {
        for name in names() {
            let stored = |(at, entry): (usize, &Entry)| {
                let promised = entry.fate == Fate::Found || entry.fate == Fate::Stored && keeps;
                let there = promised || present.binary_search(&at).is_ok();
                entry.sequence_of(&name).filter(|_| there)
            };
            let least = self.entries.iter().enumerate().filter_map(stored).max();
            let least = least.max(self.sequences.get(&name).copied());
            let (found, most) = (found.get(&name).copied(), self.highest(&name));
            hold("D141 found", least <= found && found <= most, || {
                format!("{name}: found {found:?}, must be {least:?} to {most:?}")
            })?;
        }
        Ok(())
    }
}
