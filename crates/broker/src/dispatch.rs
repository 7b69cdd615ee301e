//! One pass of a dispatcher: gate, plan, read, hand over.
//!
//! The gate is "some consumer has permits", never a sum. Candidates are what is owed again, lowest
//! first, then what was never sent. Entries in memory are handed over in the pass that plans them,
//! as runs of consecutive slots of one block; others are fetched, and the pass that the fetch wakes
//! finds them in memory. Permits are debited at hand-over, by the exact count of each entry.

use pelton_flow::{Budget, Bytes, Entries, Messages};
use pelton_storage::{Block, Fetch, Log, Place, TopicSlot};

use crate::broker::SubIndex;
use crate::subscription::{Consumer, Subscription, debit};
use crate::window::State;
use crate::{Broker, ConsumerId, Effect, Run};

/// Entries of one pass (`dispatcherMaxReadBatchSize`).
const PASS_ENTRIES_MAX: u64 = 100;
/// Stored bytes of one pass (`dispatcherMaxReadSizeBytes`).
const PASS_BYTES_MAX: u64 = 5 << 20;
/// Entries a consumer gets before the next one's turn (`dispatcherMaxRoundRobinBatchSize`).
const ROUND_ROBIN_ENTRIES: u64 = 20;
/// What is read ahead of a plan that was not limited by permits: eight reads of 256 KiB, which
/// keeps a device busy (O_DIRECT reads reach their bandwidth at four).
const READ_AHEAD_BYTES: u64 = 2 << 20;

/// What a pass looks at next.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    ordinal: u64,
    /// One past the last ordinal that may follow in the same run.
    end: u64,
    /// The state its entries are in.
    state: State,
}

impl Broker {
    pub(crate) fn pass(&mut self, index: SubIndex) {
        let Some(sub) = self.subs[index.0 as usize].as_mut() else {
            return;
        };
        sub.wanted = false;
        self.hand_over_what_may_go(index);
        self.sub_mut(index).end_of_pass();
    }

    fn hand_over_what_may_go(&mut self, index: SubIndex) {
        let sub = self.subs[index.0 as usize]
            .as_mut()
            .expect("the pass found it");
        let slot = self.topics[sub.topic as usize]
            .as_ref()
            .expect("it has a topic")
            .slot;
        let (mut entries_left, mut bytes_left) = (PASS_ENTRIES_MAX, PASS_BYTES_MAX);
        while let Some(candidate) = sub.next_candidate(self.log.ready_end(slot)) {
            let Some(port) = sub.pick(&mut self.consumers) else {
                return;
            };
            if entries_left == 0 || bytes_left == 0 {
                self.want(index);
                return;
            }
            let wished = (candidate.end - candidate.ordinal)
                .min(entries_left)
                .min(sub.turn_left);
            let wished_u32 = u32::try_from(wished).unwrap_or(u32::MAX);
            let Some((block, first_slot, found)) =
                self.log.run(slot, candidate.ordinal, wished_u32)
            else {
                match self.log.locate(slot, candidate.ordinal) {
                    Place::Failed | Place::Gone => sub.pass_over(candidate),
                    Place::Reading => return,
                    Place::OnDisk | Place::Memory(..) => {
                        let permits = permits_of(&self.consumers, port);
                        let fetch = sub.fetch(&mut self.log, slot, candidate, permits);
                        if fetch == Fetch::NoBuffer {
                            self.starved.push(index);
                        }
                        return;
                    }
                }
                continue;
            };
            let consumer = self.consumers[port as usize].as_mut().expect("picked");
            let budget = Budget::new(
                consumer.account.available(),
                Entries(wished),
                Bytes(bytes_left),
            );
            let taken = sub.take(candidate, &block, (first_slot, found), budget, port);
            debit(sub, consumer, Messages(u64::from(taken.messages)));
            consumer.average.observe(
                Messages(u64::from(taken.messages)),
                Entries(u64::from(taken.count)),
            );
            entries_left -= u64::from(taken.count);
            bytes_left = bytes_left.saturating_sub(taken.bytes);
            sub.end_of_turn(u64::from(taken.count));
            let run = Run {
                block,
                first_slot,
                count: taken.count,
                messages: taken.messages,
                redeliveries: taken.redeliveries,
            };
            let consumer = ConsumerId {
                slot: port,
                serial: consumer.serial,
            };
            self.effects.push_back(Effect::HandOver { consumer, run });
        }
    }
}

/// What one hand-over takes.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    count: u32,
    messages: u32,
    bytes: u64,
    redeliveries: u32,
}

impl Subscription {
    fn next_candidate(&mut self, ready_end: u64) -> Option<Candidate> {
        if let Some((ordinal, end)) = self.replay.first() {
            return Some(Candidate {
                ordinal,
                end,
                state: State::Replay,
            });
        }
        self.read = self.read.max(self.window.floor());
        while self.read < ready_end && self.window.get(self.read) != State::Unread {
            self.read += 1;
        }
        (self.read < ready_end).then_some(Candidate {
            ordinal: self.read,
            end: ready_end,
            state: State::Unread,
        })
    }

    /// The consumer in front of the rotation that has permits; those without are parked and come
    /// back with their next grant.
    fn pick(&mut self, consumers: &mut [Option<Consumer>]) -> Option<u32> {
        while let Some(&port) = self.rotation.front() {
            if let Some(consumer) = consumers[port as usize].as_mut() {
                if consumer.account.available() > 0 || !consumer.account.park() {
                    if self.turn_left == 0 {
                        let alone = self.rotation.len() == 1;
                        self.turn_left = if alone {
                            PASS_ENTRIES_MAX
                        } else {
                            ROUND_ROBIN_ENTRIES
                        };
                    }
                    return Some(port);
                }
                consumer.parked = true;
            }
            self.rotation.pop_front();
            self.turn_left = 0;
        }
        None
    }

    /// The rotation moves on with each pass, so entries that arrive one by one go round as well
    /// (apache/pulsar#15703).
    fn end_of_pass(&mut self) {
        if self.turn_left > 0 {
            self.end_of_turn(self.turn_left);
        }
    }

    /// Moves the rotation on when a consumer has had its entries. One alone keeps its place.
    fn end_of_turn(&mut self, entries: u64) {
        self.turn_left = self.turn_left.saturating_sub(entries);
        if self.turn_left == 0 && self.rotation.len() > 1 {
            self.rotation.rotate_left(1);
        }
    }

    /// Admits whole entries of a run while the budget has room, and marks them held.
    fn take(
        &mut self,
        candidate: Candidate,
        block: &Block,
        (first_slot, found): (u32, u32),
        mut budget: Budget,
        port: u32,
    ) -> Taken {
        let mut taken = Taken {
            redeliveries: self.count_of(candidate.ordinal),
            ..Taken::default()
        };
        for at in 0..found {
            let ordinal = candidate.ordinal + u64::from(at);
            let fits = self.window.get(ordinal) == candidate.state
                && (at == 0 || self.count_of(ordinal) == taken.redeliveries);
            let meta = block.meta(first_slot + at);
            let messages = Messages(u64::from(meta.messages));
            if !fits
                || budget
                    .admit(messages, Bytes(u64::from(meta.bytes)))
                    .is_err()
            {
                break;
            }
            self.window.set(ordinal, State::Held(port), meta.messages);
            if candidate.state == State::Replay {
                self.replay.remove(ordinal);
            }
            taken.count += 1;
            taken.messages += meta.messages;
            taken.bytes += u64::from(meta.bytes);
        }
        if candidate.state == State::Unread {
            self.read = candidate.ordinal + u64::from(taken.count);
        }
        debug_assert!(
            taken.count > 0,
            "a candidate in reach and permits give at least one entry"
        );
        taken
    }

    fn count_of(&self, ordinal: u64) -> u32 {
        if self.redeliveries.is_empty() {
            return 0;
        }
        self.redeliveries.get(&ordinal).copied().unwrap_or(0)
    }

    /// A damaged entry is counted and passed over, never acked, at no cost (rule D6).
    fn pass_over(&mut self, candidate: Candidate) {
        self.damaged_entries += 1;
        match candidate.state {
            State::Replay => self.replay.remove(candidate.ordinal),
            _ => self.read = candidate.ordinal + 1,
        }
    }

    /// Asks for exactly the entries that the permits in hand pay for, by the index. Reads ahead
    /// only where the permits would take more than one plan (rule D36).
    fn fetch(&self, log: &mut Log, slot: TopicSlot, candidate: Candidate, permits: i64) -> Fetch {
        let mut budget = Budget::new(permits, Entries(PASS_ENTRIES_MAX), Bytes(PASS_BYTES_MAX));
        let mut entries = 0u32;
        let mut ahead = 0;
        for ordinal in candidate.ordinal..candidate.end {
            let (Some(messages), Some(bytes)) =
                (log.messages(slot, ordinal), log.bytes(slot, ordinal))
            else {
                break;
            };
            match budget.admit(Messages(u64::from(messages)), Bytes(u64::from(bytes))) {
                Ok(()) => entries += 1,
                Err(pelton_flow::Stop::Permits) => break,
                Err(_) => {
                    ahead = READ_AHEAD_BYTES;
                    break;
                }
            }
        }
        log.fetch(slot, candidate.ordinal, entries.max(1), ahead)
    }
}

fn permits_of(consumers: &[Option<Consumer>], port: u32) -> i64 {
    consumers[port as usize]
        .as_ref()
        .map_or(0, |consumer| consumer.account.available())
}
