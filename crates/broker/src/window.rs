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
    /// Owed again, as soon as somebody may have it.
    Replay,
    /// Owed again at a later time, and its key with it.
    Delayed,
    /// Never handed over, and not to be before its publisher's time.
    Later,
    /// Being copied to the dead-letter topic.
    DeadLettering,
    /// Could not be read; passed over, never acked by the engine (rule D6).
    Damaged,
    /// Handed to the consumer of this slot and not acked.
    Held(u32),
}

/// A word: the state above, the entry's messages below (0 while they are not known).
const STATE_SHIFT: u32 = 32;
const UNREAD: u64 = 0;
const ACKED: u64 = 1;
const REPLAY: u64 = 2;
const DELAYED: u64 = 3;
const LATER: u64 = 4;
const DEAD_LETTERING: u64 = 5;
const DAMAGED: u64 = 6;
const HELD: u64 = 7;

impl State {
    #[inline]
    fn pack(self, messages: u32) -> u64 {
        self.code() << STATE_SHIFT | u64::from(messages)
    }

    #[inline]
    fn code(self) -> u64 {
        match self {
            State::Unread => UNREAD,
            State::Acked => ACKED,
            State::Replay => REPLAY,
            State::Delayed => DELAYED,
            State::Later => LATER,
            State::DeadLettering => DEAD_LETTERING,
            State::Damaged => DAMAGED,
            State::Held(slot) => HELD + u64::from(slot),
        }
    }

    fn unpack(word: u64) -> Self {
        match word >> STATE_SHIFT {
            UNREAD => State::Unread,
            ACKED => State::Acked,
            REPLAY => State::Replay,
            DELAYED => State::Delayed,
            LATER => State::Later,
            DEAD_LETTERING => State::DeadLettering,
            DAMAGED => State::Damaged,
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

    /// How many entries from `ordinal` on, which is not below the floor, are in this state; at most
    /// `most`.
    #[inline]
    pub(crate) fn run_of(&self, ordinal: u64, state: State, most: u32) -> u32 {
        let code = state.code();
        if ordinal >= self.end() {
            return if code == UNREAD { most } else { 0 };
        }
        let words = (ordinal..).map(|at| self.word(at).map_or(UNREAD, |word| word >> STATE_SHIFT));
        let same = words.take(most as usize).take_while(|&found| found == code);
        same.count() as u32
    }

    /// Entries from `ordinal` on, which is not below the floor, are handed to the consumer of a
    /// slot; `messages` has the count of each.
    #[inline]
    pub(crate) fn hold(
        &mut self,
        ordinal: u64,
        slot: u32,
        messages: impl ExactSizeIterator<Item = u32>,
    ) {
        let held = State::Held(slot).code() << STATE_SHIFT;
        let (count, mut words) = (
            messages.len(),
            messages.map(|count| held | u64::from(count)),
        );
        if ordinal == self.end() && count > 1 {
            return self.states.extend(words);
        }
        for (at, word) in (ordinal - self.floor..).zip(&mut words) {
            self.put(at as usize, word);
        }
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
        self.pass_acked();
        (State::unpack(word), word as u32)
    }

    /// Moves the floor up to `ordinal`: everything before it no longer exists or is acked.
    pub(crate) fn skip_to(&mut self, ordinal: u64) {
        while self.floor < ordinal {
            self.states.pop_front();
            self.floor += 1;
        }
        self.pass_acked();
    }

    #[inline]
    fn pass_acked(&mut self) {
        while self.states.front() == Some(&State::Acked.pack(0)) {
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
        fn runs_are_held_and_found_as_one_by_one(
            held in prop::collection::vec((0u64..40, 1u32..5, 0u32..9), 0..20),
        ) {
            let (mut window, mut single) = (Window::new(0), Window::new(0));
            for (first, count, slot) in held {
                window.hold(first, slot, vec![slot + 1; count as usize].into_iter());
                for ordinal in first..first + u64::from(count) {
                    single.set(ordinal, State::Held(slot), slot + 1);
                }
                for ordinal in 0..50 {
                    prop_assert_eq!(window.get(ordinal), single.get(ordinal));
                    prop_assert_eq!(window.messages(ordinal), single.messages(ordinal));
                    let state = single.get(ordinal);
                    let run = (ordinal..ordinal + 7).take_while(|&o| single.get(o) == state).count();
                    prop_assert_eq!(window.run_of(ordinal, state, 7), run as u32);
                }
            }
        }

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
