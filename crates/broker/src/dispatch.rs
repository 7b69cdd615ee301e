//! One pass of a dispatcher: gate, plan, read, hand over.
//!
//! The gate is "some consumer may get an entry", never a sum. Candidates are what is owed again,
//! lowest first, then what was never sent. Entries in memory are handed over in the pass that plans
//! them, as runs of consecutive slots of one block; others are fetched, and the pass that the fetch
//! wakes finds them in memory. Permits are debited at hand-over, by the exact count of each entry.

use std::collections::VecDeque;
use std::sync::Arc;

use pelton_flow::{Budget, Bytes, Entries, Messages};
use pelton_storage::{Block, Fetch, Log, Place, Position};

use crate::ack_set::AckSet;
use crate::broker::SubIndex;
use crate::selector::{PASS_ENTRIES_MAX, Selector};
use crate::subscription::{Consumer, Subscription};
use crate::times::{Over, Screened, Times};
use crate::unacked::debit;
use crate::window::State;
use crate::{Broker, ConsumerId, Effect, Run};

/// Stored bytes of one pass (`dispatcherMaxReadSizeBytes`).
const PASS_BYTES_MAX: u64 = 5 << 20;
/// What is read ahead of a plan that was not limited by permits: eight reads of 256 KiB, which
/// keeps a device busy (O_DIRECT reads reach their bandwidth at four).
const READ_AHEAD_BYTES: u64 = 2 << 20;
/// Entries that one pass looks at and that may not go: the next turn goes on behind them.
const LOOKED_AT_MAX: u64 = 4 * PASS_ENTRIES_MAX;

/// What a pass looks at next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) ordinal: u64,
    /// One past the last ordinal that may follow in the same run.
    pub(crate) end: u64,
    /// The state its entries are in.
    pub(crate) state: State,
}

/// What is left of a pass.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    now_ns: u64,
    entries_left: u64,
    bytes_left: u64,
    /// Entries that it may still look at because of their times, or that it finds blocked.
    looks_left: u64,
}

/// How an offer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offered {
    /// So many entries went to the consumer.
    Gone(u64),
    /// The entry cannot be read; it was passed over.
    Skipped,
    /// It is being read: the pass ends, and the read wakes the next one.
    Awaited,
    /// No read buffer is free: the pass ends, and the next free one wakes it.
    NoBuffer,
}

/// How far a pass came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passed {
    /// As far as it could; the topic has no times.
    Plain,
    /// The same, and entries may have been put aside until their time.
    Timed,
    /// Up to this entry, which is over; it goes on once that is taken away.
    Over(u64, Over),
}

impl Broker {
    pub(crate) fn pass(&mut self, index: SubIndex) {
        if let Selector::Failover(_) = self.sub(index).selector {
            self.take_over(index);
        }
        let mut pass = Pass::new(self.now.mono_ns);
        loop {
            let passed = match self.sub(index).selector {
                Selector::KeyShared(_) => self.pass_by_key(index, &mut pass),
                _ => self.pass_in_turn(index, &mut pass),
            };
            match passed {
                Passed::Plain => return,
                Passed::Timed => return self.arm_later(index),
                Passed::Over(ordinal, over) => self.end_of_time(index, ordinal, over),
            }
        }
    }

    /// Hands over to whoever's turn it is.
    fn pass_in_turn(&mut self, index: SubIndex, pass: &mut Pass) -> Passed {
        let sub = self.subs[index.0 as usize].as_mut().expect("it is there");
        let topic = self.topics[sub.topic as usize]
            .as_ref()
            .expect("it has a topic");
        let entries_per_turn = topic.entries_per_turn();
        let times = topic.times_for(sub.kind, self.now);
        let passed = Passed::all(times.as_ref());
        while let Some(candidate) = sub.next_candidate(self.log.ready_end(sub.slot)) {
            if let Some(times) = &times {
                if pass.has_looked() {
                    sub.selector.end_of_pass();
                    self.want(index);
                    return passed;
                }
                match times.screen(&self.log, sub, candidate) {
                    Screened::Go => {}
                    Screened::PutAside => continue,
                    Screened::Full => break,
                    Screened::Over(over) => return Passed::Over(candidate.ordinal, over),
                }
            }
            let Some((port, turn_left)) = sub.selector.pick(&mut self.consumers, entries_per_turn)
            else {
                break;
            };
            if pass.is_over() {
                sub.selector.end_of_pass();
                self.want(index);
                return passed;
            }
            let consumer = self.consumers[port as usize].as_mut().expect("picked");
            let offered = pass.offer(
                &mut self.log,
                &mut self.effects,
                (sub, candidate),
                (port, consumer),
                (turn_left, times.as_ref()),
            );
            match offered {
                Offered::Gone(entries) => sub.selector.took(port, entries),
                Offered::Skipped => {}
                Offered::Awaited => break,
                Offered::NoBuffer => {
                    self.starved.push(index);
                    break;
                }
            }
        }
        sub.selector.end_of_pass();
        passed
    }
}

impl Passed {
    pub(crate) fn all(times: Option<&Times<'_>>) -> Self {
        if times.is_some() {
            Passed::Timed
        } else {
            Passed::Plain
        }
    }
}

impl Pass {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self {
            now_ns,
            entries_left: PASS_ENTRIES_MAX,
            bytes_left: PASS_BYTES_MAX,
            looks_left: LOOKED_AT_MAX,
        }
    }

    /// Counts a look at an entry that may not go now; true if there were enough of them.
    pub(crate) fn has_looked(&mut self) -> bool {
        self.looks_left = self.looks_left.saturating_sub(1);
        self.looks_left == 0
    }

    pub(crate) fn is_over(&self) -> bool {
        self.entries_left == 0 || self.bytes_left == 0
    }

    /// Hands over what of the candidate's run is in memory and within every limit, at most
    /// `entries_max`.
    pub(crate) fn offer(
        &mut self,
        log: &mut Log,
        effects: &mut VecDeque<Effect>,
        (sub, candidate): (&mut Subscription, Candidate),
        (port, consumer): (u32, &mut Consumer),
        (entries_max, times): (u64, Option<&Times<'_>>),
    ) -> Offered {
        let permits = consumer.account.available();
        let mut wished = (candidate.end - candidate.ordinal)
            .min(self.entries_left)
            .min(entries_max);
        if let Some(times) = times {
            // An entry costs a permit at least: no more are looked at.
            let most = wished.min(permits.max(1).cast_unsigned());
            wished = times.due_run(log, sub.slot, candidate.ordinal, most);
        }
        let wished_u32 = u32::try_from(wished).unwrap_or(u32::MAX);
        let Some((block, first_slot, found)) = log.run(sub.slot, candidate.ordinal, wished_u32)
        else {
            return match log.locate(sub.slot, candidate.ordinal) {
                Place::Failed | Place::Gone => {
                    let position = log.position(sub.slot, candidate.ordinal);
                    sub.pass_over(candidate, position, self.now_ns);
                    Offered::Skipped
                }
                Place::Reading => Offered::Awaited,
                Place::OnDisk | Place::Memory(..) => {
                    sub.awaits_ns.get_or_insert(self.now_ns);
                    match sub.fetch(log, candidate, permits) {
                        Fetch::NoBuffer => Offered::NoBuffer,
                        _ => Offered::Awaited,
                    }
                }
            };
        };
        let budget = Budget::new(permits, Entries(wished), Bytes(self.bytes_left))
            .with_headroom(sub.caps.headroom(consumer.unacked, sub.unacked));
        let taken = sub.take(candidate, (&block, first_slot, found), budget, port);
        let messages = Messages(u64::from(taken.messages));
        let entries = u64::from(taken.count);
        debit(sub, consumer, messages, self.now_ns);
        consumer
            .average
            .observe(Messages(taken.whole_messages), Entries(entries));
        self.entries_left -= entries;
        self.bytes_left = self.bytes_left.saturating_sub(taken.bytes);
        let run = Run {
            block,
            first_slot,
            count: taken.count,
            messages: taken.messages,
            redeliveries: taken.redeliveries,
            still: taken.still,
        };
        let serial = consumer.serial;
        let consumer = ConsumerId { slot: port, serial };
        effects.push_back(Effect::HandOver { consumer, run });
        Offered::Gone(entries)
    }
}

/// What one hand-over takes.
#[derive(Debug, Default)]
struct Taken {
    count: u32,
    /// Not acked: what the delivery carries (P of rule D7).
    messages: u32,
    /// As published: what the average is made of (rule D23).
    whole_messages: u64,
    bytes: u64,
    redeliveries: u32,
    still: Option<Box<[u64]>>,
}

impl Subscription {
    fn next_candidate(&mut self, ready_end: u64) -> Option<Candidate> {
        if self.blocked && self.caps.headroom(0, self.unacked) <= 0 {
            return None;
        }
        if let Some((ordinal, end)) = self.replay.first() {
            return Some(Candidate {
                ordinal,
                end,
                state: State::Replay,
            });
        }
        if self.blocked {
            return None;
        }
        self.next_unread(ready_end).map(|ordinal| Candidate {
            ordinal,
            end: ready_end,
            state: State::Unread,
        })
    }

    /// The first entry that was never handed over nor put aside.
    pub(crate) fn next_unread(&mut self, ready_end: u64) -> Option<u64> {
        self.read = self.read.max(self.window.floor());
        while self.read < ready_end && self.window.get(self.read) != State::Unread {
            self.read += 1;
        }
        (self.read < ready_end).then_some(self.read)
    }

    /// Admits whole entries of a run while the budget has room, and marks them held. Entries of a
    /// run were asked for equally often, and one that is acked in part is a run of its own.
    fn take(
        &mut self,
        Candidate { ordinal, state, .. }: Candidate,
        (block, first_slot, found): (&Arc<Block>, u32, u32),
        mut budget: Budget,
        port: u32,
    ) -> Taken {
        let part = self.partial.get(&ordinal);
        let mut taken = Taken {
            redeliveries: self.count_of(ordinal),
            still: part.map(|set| set.words().into()),
            ..Taken::default()
        };
        let mut same = self.window.run_of(ordinal, state, found);
        if !self.partial.is_empty() || !self.redeliveries.is_empty() {
            let alike = |at: &u32| *at == 0 || self.joins(ordinal + u64::from(*at), &taken);
            same = (0..same).take_while(alike).count() as u32;
        }
        let part_messages = part.map(AckSet::left);
        let messages_of = |slot: u32| part_messages.unwrap_or_else(|| block.meta(slot).messages);
        for slot in first_slot..first_slot + same {
            let (messages, bytes) = (messages_of(slot), u64::from(block.meta(slot).bytes));
            if budget
                .admit(Messages(u64::from(messages)), Bytes(bytes))
                .is_err()
            {
                break;
            }
            taken.count += 1;
            taken.messages += messages;
            taken.whole_messages += u64::from(block.meta(slot).messages);
            taken.bytes += bytes;
        }
        let slots = first_slot..first_slot + taken.count;
        self.window.hold(ordinal, port, slots.map(messages_of));
        match state {
            State::Unread => self.read = ordinal + u64::from(taken.count),
            _ => self.replay.remove_run(ordinal, u64::from(taken.count)),
        }
        debug_assert!(
            taken.count > 0,
            "a candidate in reach and permits give at least one entry"
        );
        taken
    }

    /// Whether an entry can follow in the run: whole, and asked for as often as the others.
    fn joins(&self, ordinal: u64, run: &Taken) -> bool {
        run.still.is_none()
            && !self.partial.contains_key(&ordinal)
            && self.count_of(ordinal) == run.redeliveries
    }

    pub(crate) fn count_of(&self, ordinal: u64) -> u32 {
        // Whoever gets all in order is told no counts (rule D109).
        if self.redeliveries.is_empty() || self.kind.is_single() {
            return 0;
        }
        self.redeliveries
            .get(&ordinal)
            .map_or(0, |redelivery| redelivery.count)
    }

    /// A damaged entry is counted and passed over, never acked, at no cost (rule D6).
    fn pass_over(&mut self, candidate: Candidate, position: Option<Position>, now_ns: u64) {
        if self.damaged_entries == 0 {
            self.damaged_ns = now_ns;
        }
        self.damaged_entries += 1;
        self.first_damaged = self.first_damaged.or(position);
        self.window.set(candidate.ordinal, State::Damaged, 0);
        match candidate.state {
            State::Replay => self.replay.remove(candidate.ordinal),
            _ => self.read = candidate.ordinal + 1,
        }
    }

    /// Asks for exactly the entries that the permits in hand pay for, by the index. Reads ahead
    /// only where the permits would take more than one plan (rule D36).
    fn fetch(&self, log: &mut Log, candidate: Candidate, permits: i64) -> Fetch {
        let slot = self.slot;
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
