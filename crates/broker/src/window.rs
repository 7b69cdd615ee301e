//! The state of each entry of a subscription, from its mark-delete on (rule D4).
//!
//! Entries are named by their ordinal, which the ledger list gives out; eight bytes an entry (the
//! state and its messages, so that an ack looks nothing up), one deque, no allocation once it has
//! grown to the subscription's spread.

use std::collections::VecDeque;

/// The one state of an entry; nothing else decides whether it may be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Unread,
    Acked,
    Replay,
    /// Handed to the consumer of this slot and not acked.
    Held(u32),
}

/// A word: the state above, the entry's messages below (0 while they are not known).
const STATE_SHIFT: u32 = 32;
const UNREAD: u64 = 0;
const ACKED: u64 = 1;
const REPLAY: u64 = 2;
const HELD: u64 = 3;

impl State {
    fn pack(self, messages: u32) -> u64 {
        let state = match self {
            State::Unread => UNREAD,
            State::Acked => ACKED,
            State::Replay => REPLAY,
            State::Held(slot) => HELD + u64::from(slot),
        };
        state << STATE_SHIFT | u64::from(messages)
    }

    fn unpack(word: u64) -> Self {
        match word >> STATE_SHIFT {
            UNREAD => State::Unread,
            ACKED => State::Acked,
            REPLAY => State::Replay,
            held => State::Held((held - HELD) as u32),
        }
    }
}

#[derive(Debug)]
pub(crate) struct Window {
    /// First entry that is not acked: one past the mark-delete.
    floor: u64,
    states: VecDeque<u64>,
}

impl Window {
    pub(crate) fn new(floor: u64) -> Self {
        Self {
            floor,
            states: VecDeque::new(),
        }
    }

    pub(crate) fn floor(&self) -> u64 {
        self.floor
    }

    /// One past the last entry with a state of its own; all later ones are unread.
    pub(crate) fn end(&self) -> u64 {
        self.floor + self.states.len() as u64
    }

    pub(crate) fn get(&self, ordinal: u64) -> State {
        if ordinal < self.floor {
            return State::Acked;
        }
        self.word(ordinal).map_or(State::Unread, State::unpack)
    }

    #[inline]
    fn word(&self, ordinal: u64) -> Option<u64> {
        let offset = usize::try_from(ordinal.checked_sub(self.floor)?).ok()?;
        self.states.get(offset).copied()
    }

    /// Sets the state of an entry at or behind the floor, and its messages. Acking goes by
    /// [`Window::ack`].
    #[inline]
    pub(crate) fn set(&mut self, ordinal: u64, state: State, messages: u32) {
        debug_assert!(ordinal >= self.floor && state != State::Acked);
        self.put((ordinal - self.floor) as usize, state.pack(messages));
    }

    /// Messages of an entry that has been handed over.
    pub(crate) fn messages(&self, ordinal: u64) -> u32 {
        self.word(ordinal).map_or(0, |word| word as u32)
    }

    /// Marks an entry acked, moves the floor over what is acked without a gap, and returns what the
    /// entry was before, with its messages.
    #[inline]
    pub(crate) fn ack(&mut self, ordinal: u64) -> (State, u32) {
        if ordinal != self.floor {
            let before = (self.get(ordinal), self.messages(ordinal));
            if ordinal > self.floor {
                self.put((ordinal - self.floor) as usize, State::Acked.pack(0));
            }
            return before;
        }
        let word = self.states.pop_front().unwrap_or_default();
        self.floor += 1;
        while self.states.front() == Some(&State::Acked.pack(0)) {
            self.states.pop_front();
            self.floor += 1;
        }
        (State::unpack(word), word as u32)
    }

    /// Moves the floor up to `ordinal`: everything before it no longer exists or is acked.
    pub(crate) fn skip_to(&mut self, ordinal: u64) {
        while self.floor < ordinal {
            self.states.pop_front();
            self.floor += 1;
        }
    }

    #[inline]
    fn put(&mut self, offset: usize, word: u64) {
        if offset == self.states.len() {
            self.states.push_back(word);
            return;
        }
        while self.states.len() <= offset {
            self.states.push_back(State::Unread.pack(0));
        }
        self.states[offset] = word;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn the_floor_moves_when_the_gap_is_filled() {
        let mut window = Window::new(1);
        for ordinal in 1..=5 {
            window.set(ordinal, State::Held(0), 7);
        }
        for ordinal in [2, 3, 5] {
            assert_eq!(window.ack(ordinal), (State::Held(0), 7));
        }
        assert_eq!(window.floor(), 1);
        window.ack(1);
        assert_eq!(window.floor(), 4);
        window.ack(4);
        assert_eq!((window.floor(), window.end()), (6, 6));
        assert_eq!(window.ack(3), (State::Acked, 0));
    }

    #[test]
    fn a_million_holes_filled_in_reverse_end_in_constant_size() {
        let mut window = Window::new(0);
        for ordinal in (1..1_000_000).step_by(2) {
            window.ack(ordinal);
        }
        for half in (0..500_000).rev() {
            window.ack(2 * half);
        }
        assert_eq!((window.floor(), window.end()), (1_000_000, 1_000_000));
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_map(ops in prop::collection::vec((0u64..40, 0u8..4), 1..300)) {
            let (mut window, mut model) = (Window::new(0), BTreeMap::new());
            for (ordinal, op) in ops {
                if op == 0 {
                    let before = model.insert(ordinal, State::Acked).unwrap_or(State::Unread);
                    prop_assert_eq!(window.ack(ordinal).0, before);
                } else if model.get(&ordinal) != Some(&State::Acked) {
                    let state = [State::Unread, State::Replay, State::Held(7)][op as usize - 1];
                    window.set(ordinal, state, 1);
                    model.insert(ordinal, state);
                }
                for ordinal in 0..41 {
                    let expected = model.get(&ordinal).copied().unwrap_or(State::Unread);
                    prop_assert_eq!(window.get(ordinal), expected);
                }
                prop_assert!(window.get(window.floor()) != State::Acked);
            }
        }
    }
}
