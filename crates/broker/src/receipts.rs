//! Receipts owed to producers, in the order of their appends.
//!
//! Entries of one producer that were appended one after the other in the same turn are answered as
//! one run, so a saturated producer costs one effect a turn and not one a message.

use std::collections::VecDeque;

use pelton_storage::{Durability, Position, Ticket};

use crate::{Effect, Outcome, ProducerId, Receipts};

#[derive(Debug, Default)]
pub(crate) struct ReceiptBook {
    /// Of memory topics: answered at once, gathered into runs.
    ready: Option<Owed>,
    written: VecDeque<Owed>,
    synced: VecDeque<Owed>,
    turn: u64,
}

#[derive(Debug)]
struct Owed {
    ticket: Ticket,
    turn: u64,
    next_ordinal: u64,
    receipts: Receipts,
}

/// One appended entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Append {
    pub(crate) producer: ProducerId,
    pub(crate) sequence: u64,
    pub(crate) ordinal: u64,
    pub(crate) position: Position,
    pub(crate) ticket: Ticket,
}

impl ReceiptBook {
    /// Runs end with the turn: a receipt never waits for a later commit than its own.
    pub(crate) fn next_turn(&mut self) {
        self.turn += 1;
    }

    /// Owes a receipt; `effects` takes the run of a memory topic that this entry does not continue.
    #[inline]
    pub(crate) fn owe(
        &mut self,
        durability: Durability,
        append: Append,
        effects: &mut VecDeque<Effect>,
    ) {
        if durability == Durability::Memory
            && let Some(owed) = &mut self.ready
            && owed.join(&append, self.turn)
        {
            return;
        }
        self.owe_another(durability, append, effects);
    }

    fn owe_another(
        &mut self,
        durability: Durability,
        append: Append,
        effects: &mut VecDeque<Effect>,
    ) {
        let turn = self.turn;
        let queue = match durability {
            Durability::NonPersistent => {
                let (producer, sequence) = (append.producer, append.sequence);
                return self.owe_apart(producer, sequence, Outcome::Unstored, effects);
            }
            Durability::Memory => {
                self.flush_ready(effects);
                self.ready = Some(Owed::new(&append, turn));
                return;
            }
            Durability::Written => &mut self.written,
            Durability::Synced => &mut self.synced,
        };
        if queue
            .back_mut()
            .is_none_or(|owed| !owed.join(&append, turn))
        {
            queue.push_back(Owed::new(&append, turn));
        }
    }

    /// Owes a receipt for an entry that is not stored again: it says so once what is stored is as
    /// durable as its topic promises. That is owed a receipt in front of it, or has it.
    pub(crate) fn owe_duplicate(
        &mut self,
        durability: Durability,
        producer: ProducerId,
        sequence: u64,
        effects: &mut VecDeque<Effect>,
    ) {
        let queue = match durability {
            Durability::NonPersistent | Durability::Memory => {
                return self.owe_apart(producer, sequence, Outcome::Duplicate, effects);
            }
            Durability::Written => &mut self.written,
            Durability::Synced => &mut self.synced,
        };
        queue.push_back(Owed {
            ticket: Ticket::default(),
            turn: self.turn,
            next_ordinal: 0,
            receipts: Receipts {
                producer,
                first_sequence: sequence,
                count: 1,
                outcome: Outcome::Duplicate,
            },
        });
    }

    /// Owes a receipt without a position, answered at once.
    pub(crate) fn owe_apart(
        &mut self,
        producer: ProducerId,
        sequence: u64,
        outcome: Outcome,
        effects: &mut VecDeque<Effect>,
    ) {
        let turn = self.turn;
        if let Some(Owed {
            receipts, turn: of, ..
        }) = &mut self.ready
            && *of == turn
            && receipts.producer == producer
            && receipts.outcome == outcome
            && receipts.first_sequence + u64::from(receipts.count) == sequence
        {
            receipts.count += 1;
            return;
        }
        self.flush_ready(effects);
        self.ready = Some(Owed {
            ticket: Ticket(0),
            turn,
            next_ordinal: 0,
            receipts: Receipts {
                producer,
                first_sequence: sequence,
                count: 1,
                outcome,
            },
        });
    }

    /// Emits the run of a memory topic that is still open.
    pub(crate) fn flush_ready(&mut self, effects: &mut VecDeque<Effect>) {
        if let Some(owed) = self.ready.take() {
            effects.push_back(Effect::Receipts(owed.receipts));
        }
    }

    /// Emits what has become as durable as it was promised.
    pub(crate) fn settle(
        &mut self,
        done_through: impl Fn(Durability) -> Ticket,
        effects: &mut VecDeque<Effect>,
    ) {
        let queues = [
            (Durability::Written, &mut self.written),
            (Durability::Synced, &mut self.synced),
        ];
        for (durability, queue) in queues {
            let through = done_through(durability);
            while queue.front().is_some_and(|owed| owed.ticket <= through) {
                let owed = queue.pop_front().expect("a front was seen");
                effects.push_back(Effect::Receipts(owed.receipts));
            }
        }
    }

    /// The log failed: nothing that is still owed is known to be stored.
    pub(crate) fn fail(&mut self, effects: &mut VecDeque<Effect>) {
        for owed in self.written.drain(..).chain(self.synced.drain(..)) {
            let outcome = Outcome::Unknown;
            effects.push_back(Effect::Receipts(Receipts {
                outcome,
                ..owed.receipts
            }));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_none() && self.written.is_empty() && self.synced.is_empty()
    }
}

impl Owed {
    fn new(append: &Append, turn: u64) -> Self {
        let receipts = Receipts {
            producer: append.producer,
            first_sequence: append.sequence,
            count: 1,
            outcome: Outcome::Stored(append.position),
        };
        Self {
            ticket: append.ticket,
            turn,
            next_ordinal: append.ordinal + 1,
            receipts,
        }
    }

    #[inline]
    fn join(&mut self, append: &Append, turn: u64) -> bool {
        let run = &mut self.receipts;
        let Outcome::Stored(first) = run.outcome else {
            return false;
        };
        // Within one ledger, consecutive ordinals are consecutive entries. A large turn is more than
        // one commit.
        let continues = self.turn == turn
            && self.ticket == append.ticket
            && run.producer == append.producer
            && run.first_sequence + u64::from(run.count) == append.sequence
            && self.next_ordinal == append.ordinal
            && first.ledger == append.position.ledger;
        if continues {
            run.count += 1;
            self.next_ordinal += 1;
        }
        continues
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_does_not_wait_for_a_later_commit_of_its_turn() {
        let (mut book, mut effects) = (ReceiptBook::default(), VecDeque::new());
        for (sequence, ticket) in [(0, 1), (1, 1), (2, 2)] {
            let append = Append {
                producer: ProducerId { slot: 0, serial: 1 },
                sequence,
                ordinal: sequence,
                position: Position {
                    ledger: 1,
                    entry: sequence,
                },
                ticket: Ticket(ticket),
            };
            book.owe(Durability::Synced, append, &mut effects);
        }
        book.settle(|_| Ticket(1), &mut effects);
        let Some(Effect::Receipts(receipts)) = effects.pop_front() else {
            panic!("the first commit is done")
        };
        assert_eq!((receipts.first_sequence, receipts.count), (0, 2));
        assert!(effects.is_empty() && !book.is_empty());
    }
}
