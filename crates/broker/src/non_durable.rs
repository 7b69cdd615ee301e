//! Subscriptions that are not kept: cursors in memory, of readers above all (rules D127 and D137).
//!
//! They hold nothing back. What is removed before they have read it is jumped over and counted; but
//! what a queued pass is about to hand over waits for that pass.

use crate::Broker;
use crate::broker::SubIndex;
use crate::window::State;

/// How long one waits after a seek for a consumer that has yet to come back
/// (`nonDurableSeekGraceMs`).
const SEEK_GRACE_NS: u64 = 10_000_000_000;

impl Broker {
    /// Entries below `to` are being removed: the cursor moves to the first one that stays.
    pub(crate) fn jump(&mut self, index: SubIndex, to: u64) {
        let sub = self.subs[index.0 as usize].as_mut().expect("a topic's own");
        for ordinal in sub.window.floor()..to {
            let state = sub.window.get(ordinal);
            if state == State::Acked {
                continue;
            }
            let whole = self.log.messages(sub.slot, ordinal).unwrap_or(0);
            let part = sub.partial.remove(&ordinal);
            let messages = part.map_or(whole, |set| set.left());
            sub.skipped_messages += i64::from(messages);
            match state {
                State::Held(slot) => {
                    self.freed.note(sub, &mut self.consumers, slot, messages);
                    if sub.released(&self.log, ordinal, messages) {
                        self.freed.note_key();
                    }
                }
                waits => {
                    sub.jumped_messages += u64::from(messages);
                    self.freed.note_key(); // what stood behind it may go
                    match waits {
                        State::Replay => sub.end_replay(&self.log, ordinal),
                        State::Delayed => sub.end_delay(&self.log, ordinal),
                        State::Later => sub.end_later(&self.log, ordinal),
                        _ => {}
                    }
                }
            }
            sub.redeliveries.remove(&ordinal);
        }
        sub.window.skip_to(to);
        self.wake_freed(index);
        self.arm(index);
        self.look_for_end(index);
    }

    /// A seek has ended the attachments: those of remote clients come back by themselves, and may
    /// take a while.
    pub(crate) fn wait_for_return(&mut self, index: SubIndex) {
        let until_ns = self.now.mono_ns + SEEK_GRACE_NS;
        let sub = self.sub_mut(index);
        if !sub.durable {
            sub.waits_until_ns = Some(until_ns);
        }
    }

    /// Its last consumer has left. It ends with that, unless that consumer was ended by a seek and
    /// has not asked for anything since.
    pub(crate) fn left_alone(&mut self, index: SubIndex, came_back: bool) {
        if came_back || self.sub(index).waits_until_ns.is_none() {
            self.end_subscription(index);
        } else {
            self.arm(index);
        }
    }

    /// Ends it if it has waited long enough; true if so.
    pub(crate) fn end_wait(&mut self, index: SubIndex) -> bool {
        let sub = self.sub(index);
        let over = sub.waits_until_ns.is_some_and(|at| at <= self.now.mono_ns);
        let ends = over && sub.consumers.is_empty();
        if ends {
            self.end_subscription(index);
        }
        ends
    }
}
