//! Whether an entry of a key may go now, and which waiting entry goes next (rules D86 to D93).
//!
//! An entry of hash h may go to the owner of h if nobody else holds entries of h (else h is
//! draining), no lower entry of h waits for redelivery, and the owner is eligible. Entries that may
//! not go wait here, in replay or in a redelivery delay; an entry delayed by its publisher is not in
//! here. Only the lowest waiting entry of a hash can be the next, so each hash is listed under its
//! owner by that one entry, and each eligible owner once by the lowest of its list. No call looks
//! at more than a few of them, however many are blocked.

use std::collections::{BTreeMap, BTreeSet};

use crate::keys::{AssignError, Change, KeyRange, Owners};

/// Owners, holders and waiting entries of one Key_Shared subscription.
///
/// A hash has a state while something of it is held or waits. The table from hash to state takes
/// 128 KiB; a state 48 bytes. Holding and releasing entries of hashes of which nothing waits takes
/// no memory once as many hashes were busy before.
#[derive(Debug)]
pub struct KeyOrder {
    owners: Owners,
    /// `allowOutOfOrderDelivery` (rule D93): who holds and what is lower does not matter.
    out_of_order: bool,
    /// By hash: where its state is, plus one.
    index: Box<[u16]>,
    states: Vec<HashState>,
    free: Vec<u16>,
    /// Waiting entries by hash and ordinal.
    waiting: BTreeMap<(u16, u64), Wait>,
    /// By owner, ordinal and hash: what may go as soon as its owner is eligible. In order, it is at
    /// most the lowest waiting entry of each hash.
    ready: BTreeSet<(u32, u64, u16)>,
    /// The lowest ready ordinal of each eligible owner.
    fronts: BTreeSet<(u64, u32)>,
    eligible: BTreeSet<u32>,
    in_replay: u64,
    in_delay: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct HashState {
    hash: u16,
    owner: Option<u32>,
    /// Who holds the pending entries, if there are any.
    holder: u32,
    /// Messages held and not acked.
    pending: u64,
    /// The ordinal under which it is listed in `ready`; in order only.
    listed: Option<u64>,
    /// Waiting entries, of both kinds.
    waiting: u32,
    replay: u32,
    /// Entries kept back while it was draining.
    refused: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Replay,
    Delay,
}

/// Why an entry may not go now. It joins replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// Nobody owns the hash.
    NoOwner,
    /// Another consumer still holds entries of it.
    Draining {
        /// Who does.
        holder: u32,
        /// Who waits.
        owner: u32,
    },
    /// A lower entry of the hash waits.
    Behind {
        /// Which.
        ordinal: u64,
    },
    /// Its owner is not eligible.
    Owner(u32),
}

/// A hash that moved and whose former owner still holds some of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draining {
    /// The hash.
    pub hash: u16,
    /// Who holds it.
    pub holder: u32,
    /// Who waits for it; `None` if nobody owns it.
    pub owner: Option<u32>,
    /// Messages held.
    pub left: u64,
    /// Entries that wait for it.
    pub waiting: u32,
    /// Entries that were kept back by it.
    pub refused: u32,
}

/// The end of a drain: the hash is free for its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unblocked {
    /// The hash.
    pub hash: u16,
    /// Who held it.
    pub holder: u32,
    /// Who may have it now.
    pub owner: Option<u32>,
}

/// Entries that may be in replay before unread ones have to wait (rule D90). A term of 0 is dropped;
/// without either the subscription's unacked limit counts, or 200,000 if that is off as well.
#[must_use]
pub fn look_ahead_limit(
    consumers: u64,
    per_consumer: u64,
    per_subscription: u64,
    unacked_limit: u64,
) -> u64 {
    let by_consumers = consumers.saturating_mul(per_consumer);
    match (per_consumer, per_subscription) {
        (0, 0) if unacked_limit == 0 => 200_000,
        (0, 0) => unacked_limit,
        (0, limit) => limit,
        (_, 0) => by_consumers,
        (_, limit) => by_consumers.min(limit),
    }
}

impl KeyOrder {
    /// Nothing waits, nothing is held. `out_of_order` is `allowOutOfOrderDelivery`.
    #[must_use]
    pub fn new(owners: Owners, out_of_order: bool) -> Self {
        Self {
            owners,
            out_of_order,
            index: vec![0; 1 << 16].into_boxed_slice(),
            states: Vec::new(),
            free: Vec::new(),
            waiting: BTreeMap::new(),
            ready: BTreeSet::new(),
            fronts: BTreeSet::new(),
            eligible: BTreeSet::new(),
            in_replay: 0,
            in_delay: 0,
        }
    }

    /// Who owns what.
    #[must_use]
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Whether entries of a key may overtake each other.
    #[must_use]
    pub fn is_out_of_order(&self) -> bool {
        self.out_of_order
    }

    // Membership.

    /// Takes a consumer in; it is not eligible yet. Hashes that move to it and are held by others
    /// are draining from now on.
    ///
    /// # Errors
    /// As [`Owners::join`].
    pub fn join(
        &mut self,
        consumer: u32,
        name: &str,
        ranges: &[KeyRange],
    ) -> Result<(), AssignError> {
        let changes = self.owners.join(consumer, name, ranges)?;
        self.apply(&changes);
        Ok(())
    }

    /// Lets a consumer go. What it holds stays held until it is released.
    pub fn leave(&mut self, consumer: u32) {
        self.set_eligible(consumer, false);
        let changes = self.owners.leave(consumer);
        self.apply(&changes);
    }

    /// Whether a consumer may get entries now (permits, headroom, writable).
    pub fn set_eligible(&mut self, consumer: u32, eligible: bool) {
        let changed = if eligible {
            self.eligible.insert(consumer)
        } else {
            self.eligible.remove(&consumer)
        };
        let Some(front) = self.first_ready(consumer).filter(|_| changed) else {
            return;
        };
        if eligible {
            self.fronts.insert((front, consumer));
        } else {
            self.fronts.remove(&(front, consumer));
        }
    }

    fn apply(&mut self, changes: &[Change]) {
        // Nothing is busy: the change of owner meets nobody.
        let busy = self.states.len() > self.free.len();
        for change in changes.iter().filter(|_| busy) {
            for hash in change.range.first..=change.range.last {
                if let Some(at) = self.find(hash) {
                    self.unlist_all(hash);
                    self.states[at].owner = change.new;
                    self.list_all(hash);
                }
            }
        }
    }

    // An entry at a time.

    /// Whether the entry may go now, and to whom. It is asked for the entry at the read position;
    /// of those that wait, [`Self::next_ready`] knows.
    ///
    /// # Errors
    /// Why not; the entry joins replay.
    pub fn may_go(&mut self, ordinal: u64, hash: u16) -> Result<u32, Blocked> {
        let Some(at) = self.find(hash) else {
            return self.eligible_owner(self.owners.owner(hash));
        };
        if !self.out_of_order {
            let state = &mut self.states[at];
            if let Some((holder, owner)) = state.draining().then_some(state.holder).zip(state.owner)
            {
                state.refused += 1;
                return Err(Blocked::Draining { holder, owner });
            }
            if let Some((lowest, _)) = self.lowest(hash).filter(|&(lowest, _)| lowest < ordinal) {
                return Err(Blocked::Behind { ordinal: lowest });
            }
        }
        self.eligible_owner(self.states[at].owner)
    }

    fn eligible_owner(&self, owner: Option<u32>) -> Result<u32, Blocked> {
        let owner = owner.ok_or(Blocked::NoOwner)?;
        let eligible = self.eligible.contains(&owner);
        eligible.then_some(owner).ok_or(Blocked::Owner(owner))
    }

    /// The lowest waiting entry that may go, its hash and to whom. It stays until it is removed.
    #[must_use]
    pub fn next_ready(&self) -> Option<(u64, u16, u32)> {
        let &(ordinal, owner) = self.fronts.first()?;
        let from = (owner, ordinal, 0);
        let &(_, _, hash) = self.ready.range(from..).next().expect("a front is ready");
        Some((ordinal, hash, owner))
    }

    /// Entries were handed over to `consumer`. To take a waiting one, hold it, then remove it.
    pub fn hold(&mut self, hash: u16, consumer: u32, messages: u64) {
        if self.out_of_order || messages == 0 {
            return;
        }
        let at = self.find_or_add(hash);
        let state = &mut self.states[at];
        debug_assert!(
            state.pending == 0 || state.holder == consumer,
            "entries of hash {hash} are at one consumer"
        );
        state.holder = consumer;
        state.pending += messages;
        self.relist(hash);
    }

    /// Messages held are acked, nacked, or their holder has left. Says so if this ends a drain.
    pub fn release(&mut self, hash: u16, messages: u64) -> Option<Unblocked> {
        if self.out_of_order || messages == 0 {
            return None;
        }
        let at = self.find(hash).expect("what is released was held");
        let state = &mut self.states[at];
        let was_draining = state.draining();
        state.pending -= messages;
        if state.pending > 0 {
            return None;
        }
        state.refused = 0;
        let (holder, owner) = (state.holder, state.owner);
        self.relist(hash);
        self.drop_if_idle(hash);
        was_draining.then_some(Unblocked {
            hash,
            holder,
            owner,
        })
    }

    /// An entry is owed again, or for the first time. One in a delay is due.
    pub fn insert_replay(&mut self, ordinal: u64, hash: u16) {
        self.insert(ordinal, hash, Wait::Replay);
    }

    /// A nacked entry waits for its redelivery delay to pass, and its key with it. It is made due by
    /// [`Self::insert_replay`].
    pub fn insert_delayed(&mut self, ordinal: u64, hash: u16) {
        self.insert(ordinal, hash, Wait::Delay);
    }

    /// An entry no longer waits: it was taken, acked, or has expired. One that did not changes nothing.
    pub fn remove(&mut self, ordinal: u64, hash: u16) {
        let Some(wait) = self.waiting.remove(&(hash, ordinal)) else {
            return;
        };
        self.count(hash, wait, false);
        if self.out_of_order {
            self.unlist(self.state(hash).owner, ordinal, hash);
        } else {
            self.relist(hash);
        }
        self.drop_if_idle(hash);
    }

    fn insert(&mut self, ordinal: u64, hash: u16, wait: Wait) {
        self.find_or_add(hash);
        if let Some(before) = self.waiting.insert((hash, ordinal), wait) {
            self.count(hash, before, false);
        }
        self.count(hash, wait, true);
        if !self.out_of_order {
            self.relist(hash);
        } else if wait == Wait::Replay {
            self.list(self.state(hash).owner, ordinal, hash);
        } else {
            self.unlist(self.state(hash).owner, ordinal, hash);
        }
    }

    fn count(&mut self, hash: u16, wait: Wait, more: bool) {
        let at = self.find(hash).expect("it has a waiting entry");
        let state = &mut self.states[at];
        let add = |count: &mut u32| *count = if more { *count + 1 } else { *count - 1 };
        add(&mut state.waiting);
        let all = match wait {
            Wait::Replay => {
                add(&mut state.replay);
                &mut self.in_replay
            }
            Wait::Delay => &mut self.in_delay,
        };
        *all = if more { *all + 1 } else { *all - 1 };
    }

    // What explain() tells.

    /// Entries in replay.
    #[must_use]
    pub fn in_replay(&self) -> u64 {
        self.in_replay
    }

    /// Entries in a redelivery delay.
    #[must_use]
    pub fn in_delay(&self) -> u64 {
        self.in_delay
    }

    /// The hashes that are draining; looks at every busy hash.
    pub fn draining(&self) -> impl Iterator<Item = Draining> {
        let draining = |state: &HashState| {
            state.draining().then_some(Draining {
                hash: state.hash,
                holder: state.holder,
                owner: state.owner,
                left: state.pending,
                waiting: state.waiting,
                refused: state.refused,
            })
        };
        self.busy().filter_map(draining)
    }

    /// The hash with the most entries in replay, the lowest of such, and how many these are; looks
    /// at every busy hash.
    #[must_use]
    pub fn hottest(&self) -> Option<(u16, u32)> {
        let in_replay = self.busy().filter(|state| state.replay > 0);
        let hottest = in_replay.max_by_key(|state| (state.replay, std::cmp::Reverse(state.hash)));
        hottest.map(|state| (state.hash, state.replay))
    }

    /// The hashes with waiting entries that nobody owns; looks at every busy hash.
    pub fn without_owner(&self) -> impl Iterator<Item = u16> {
        let waits = |state: &&HashState| state.waiting > 0 && state.owner.is_none();
        self.busy().filter(waits).map(|state| state.hash)
    }

    /// Who holds entries of `hash`, and how many messages.
    #[must_use]
    pub fn held(&self, hash: u16) -> Option<(u32, u64)> {
        let state = &self.states[self.find(hash)?];
        (state.pending > 0).then_some((state.holder, state.pending))
    }

    fn busy(&self) -> impl Iterator<Item = &HashState> {
        let is_busy = |state: &&HashState| state.pending > 0 || state.waiting > 0;
        self.states.iter().filter(is_busy)
    }

    // The states.

    fn find(&self, hash: u16) -> Option<usize> {
        usize::from(self.index[usize::from(hash)]).checked_sub(1)
    }

    fn state(&self, hash: u16) -> &HashState {
        &self.states[self.find(hash).expect("it has a state")]
    }

    fn find_or_add(&mut self, hash: u16) -> usize {
        debug_assert_ne!(hash, 0, "no key has the hash 0 (rule D82)");
        if let Some(at) = self.find(hash) {
            return at;
        }
        let state = HashState {
            hash,
            owner: self.owners.owner(hash),
            ..HashState::default()
        };
        let number = self.free.pop().unwrap_or_else(|| {
            self.states.push(state);
            u16::try_from(self.states.len()).expect("hashes are 1 to 65,535")
        });
        self.index[usize::from(hash)] = number;
        let at = usize::from(number) - 1;
        self.states[at] = state;
        at
    }

    fn drop_if_idle(&mut self, hash: u16) {
        let state = self.state(hash);
        if state.pending == 0 && state.waiting == 0 {
            self.free
                .push(std::mem::take(&mut self.index[usize::from(hash)]));
        }
    }

    /// The lowest waiting entry of a hash.
    fn lowest(&self, hash: u16) -> Option<(u64, Wait)> {
        let all = (hash, 0)..=(hash, u64::MAX);
        let (&(_, ordinal), &wait) = self.waiting.range(all).next()?;
        Some((ordinal, wait))
    }

    // The lists.

    /// Lists a hash by the entry that is its lowest now.
    fn relist(&mut self, hash: u16) {
        let at = self.find(hash).expect("it has a state");
        let state = self.states[at];
        let may_go = state.waiting > 0 && !state.draining();
        let next = match may_go.then(|| self.lowest(hash)).flatten() {
            Some((ordinal, Wait::Replay)) => Some(ordinal),
            _ => None,
        };
        if next == state.listed {
            return;
        }
        self.states[at].listed = next;
        if let Some(ordinal) = state.listed {
            self.unlist(state.owner, ordinal, hash);
        }
        if let Some(ordinal) = next {
            self.list(state.owner, ordinal, hash);
        }
    }

    /// Before the owner of a hash changes, and after.
    fn unlist_all(&mut self, hash: u16) {
        let at = self.find(hash).expect("it has a state");
        let owner = self.states[at].owner;
        if let Some(ordinal) = self.states[at].listed.take() {
            self.unlist(owner, ordinal, hash);
        }
        if self.out_of_order {
            for ordinal in self.replay_of(hash) {
                self.unlist(owner, ordinal, hash);
            }
        }
    }

    fn list_all(&mut self, hash: u16) {
        if !self.out_of_order {
            self.relist(hash);
            return;
        }
        let owner = self.state(hash).owner;
        for ordinal in self.replay_of(hash) {
            self.list(owner, ordinal, hash);
        }
    }

    fn replay_of(&self, hash: u16) -> Vec<u64> {
        let all = self.waiting.range((hash, 0)..=(hash, u64::MAX));
        let replay = all.filter(|&(_, &wait)| wait == Wait::Replay);
        replay.map(|(&(_, ordinal), _)| ordinal).collect()
    }

    fn list(&mut self, owner: Option<u32>, ordinal: u64, hash: u16) {
        let Some(owner) = owner else {
            return;
        };
        let before = self.first_ready(owner);
        self.ready.insert((owner, ordinal, hash));
        self.move_front(owner, before);
    }

    fn unlist(&mut self, owner: Option<u32>, ordinal: u64, hash: u16) {
        let Some(owner) = owner else {
            return;
        };
        let before = self.first_ready(owner);
        self.ready.remove(&(owner, ordinal, hash));
        self.move_front(owner, before);
    }

    fn move_front(&mut self, owner: u32, before: Option<u64>) {
        let now = self.first_ready(owner);
        if now == before || !self.eligible.contains(&owner) {
            return;
        }
        if let Some(ordinal) = before {
            self.fronts.remove(&(ordinal, owner));
        }
        if let Some(ordinal) = now {
            self.fronts.insert((ordinal, owner));
        }
    }

    /// The lowest entry of its own that may go as soon as a consumer is eligible.
    #[must_use]
    pub fn first_ready(&self, owner: u32) -> Option<u64> {
        let all = (owner, 0, 0)..=(owner, u64::MAX, u16::MAX);
        self.ready.range(all).next().map(|&(_, ordinal, _)| ordinal)
    }
}

impl HashState {
    /// Somebody holds entries of it who does not own it.
    fn draining(&self) -> bool {
        self.pending > 0 && self.owner != Some(self.holder)
    }
}

#[cfg(test)]
impl KeyOrder {
    pub(super) fn free_states(&self) -> usize {
        self.free.len()
    }

    pub(super) fn all_states(&self) -> usize {
        self.states.len()
    }
}
