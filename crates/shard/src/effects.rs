//! Carries out what the core asks for, and takes in what the control lane brings.

use std::sync::atomic::{Ordering, fence};

use pelton_broker::{
    BrokerStats, ConsumerId, Effect, Event, LogState, Now, Outcome, Receipts, Refusal, Reply,
    Request, RequestError, RequestId, Run,
};
use pelton_metrics::{Counter, ShardMetrics};

use crate::port::{
    Answer, CloseReason, Control, PORTS_MAX, Ports, ProducerState, ReplyTo, ShardStats, Stamped,
};
use crate::requests::{Pending, Then};
use crate::turn::Shard;
use crate::watch::TurnWork;

impl Shard {
    /// Takes effects until there are none. An operation that is done at once (an inline write) may
    /// bring more of them; the log bounds what it writes in a turn.
    pub(crate) fn carry_out_effects(&mut self, now: Now, work: &mut TurnWork) {
        let written_before = self.watch.metrics.counters.get(Counter::BytesWritten);
        self.consumers.push_spilled();
        loop {
            while let Some(effect) = self.broker.poll_effect() {
                work.effects += 1;
                self.carry_out(effect, now, work);
            }
            let Some(answer) = self.disk.next_done() else {
                break;
            };
            self.on_answer(answer, now);
        }
        if self.broker.log().is_crowded() {
            let broker = &mut self.broker;
            self.consumers.hold_back(|consumer| {
                let writable = false;
                let _ = broker.handle(Event::Writable { consumer, writable }, now);
            });
        }
        self.disk.enter();
        let written = self.watch.metrics.counters.get(Counter::BytesWritten);
        work.written_bytes += written.saturating_sub(written_before);
        // Before the loop that takes what this shard has for itself: nothing else would look at it.
        self.inbox.producers.answer_refused(&mut self.outbox);
        // What handlers forwarded to topics of this shard joins the data lane of the next turn.
        while let Some(data) = self.outbox.pop_own() {
            work.data += 1;
            work.to_itself += 1;
            self.on_peer(self.shared.index, data, now);
        }
        self.outbox.flush(&mut self.watch.metrics.counters);
    }

    /// Wakes who waits for what this turn did: once per handle, after everything is in place.
    pub(crate) fn tell_handles(&mut self) {
        let producers = &mut self.inbox.producers;
        if self.consumers.owes_news() || producers.owes_news() {
            // Partner: the fences of those who ask to be woken. One for all pushes, pops and receipts
            // of this turn: either we see that someone waits, or it sees what we did.
            fence(Ordering::SeqCst);
            self.consumers.tell();
            producers.tell();
        }
    }

    fn carry_out(&mut self, effect: Effect, now: Now, work: &mut TurnWork) {
        match effect {
            Effect::HandOver { consumer, run } => self.hand_over(consumer, run, now, work),
            Effect::Reset {
                consumer,
                becomes,
                granter,
            } => {
                if self.consumers.reset(consumer, becomes, granter) {
                    let consumer = becomes;
                    let _ = self.broker.handle(Event::Granted { consumer }, now);
                }
            }
            Effect::EndOfTopic { consumer } => self.consumers.end_of_topic(consumer),
            Effect::Terminated { producer } => {
                let state = ProducerState::Terminated;
                self.inbox.producers.ended(producer, state);
            }
            Effect::Fenced { producer } => {
                let state = ProducerState::Fenced;
                self.inbox.producers.ended(producer, state);
            }
            Effect::Receipts(receipts) => self.give_receipts(receipts),
            Effect::Reply { id, reply } => self.answer(id, reply, now),
            Effect::Disk(op) => {
                self.disk
                    .carry_out(op, now.mono_ns, &mut self.watch.metrics);
            }
            Effect::Meta(op) => self.disk.meta(op, now.mono_ns),
            Effect::DeadLetter { token, letter } => {
                let owner = self.routes.shard_of(&letter.topic);
                self.outbox.send_letter(owner, token, letter);
            }
            Effect::Active { consumer, active } => self.consumers.set_active(consumer, active),
            Effect::LogState(state) => self.set_log_state(state),
        }
    }

    fn set_log_state(&mut self, state: LogState) {
        let why = self.disk.no_segment();
        self.inbox.producers.set_log_state(state, why.is_some());
        let note = why.map(|why| format!("no segment can be made: {why}"));
        if note.is_some() && self.notes.last() != note.as_ref() {
            self.notes.extend(note);
        }
    }

    fn hand_over(&mut self, consumer: ConsumerId, run: Run, now: Now, work: &mut TurnWork) {
        let counters = &mut self.watch.metrics.counters;
        counters.add(Counter::EntriesOut, u64::from(run.count));
        counters.add(Counter::MessagesOut, u64::from(run.messages));
        let count = run.count;
        let mut verdicts = std::mem::take(&mut self.verdicts);
        self.consumers
            .hand_over(consumer, run, &mut self.outbox, &mut verdicts);
        if !verdicts.is_empty() {
            work.handled += count;
            for position in verdicts.acked.drain(..) {
                let _ = self.broker.handle(Event::Ack { consumer, position }, now);
            }
            for position in verdicts.nacked.drain(..) {
                let event = Event::Nack {
                    consumer,
                    position,
                    delay_ns: None,
                };
                let _ = self.broker.handle(event, now);
            }
            for position in verdicts.rejected.drain(..) {
                let event = Event::Reject { consumer, position };
                let _ = self.broker.handle(event, now);
            }
            if std::mem::take(&mut verdicts.granted) {
                let _ = self.broker.handle(Event::Granted { consumer }, now);
            }
            if std::mem::take(&mut verdicts.panicked) {
                let note =
                    format!("the handler of consumer {consumer:?} panicked and was detached");
                self.notes.push(note);
                if self.consumers.panicked(consumer) {
                    self.detach(consumer, now);
                }
            }
        }
        self.verdicts = verdicts;
    }

    /// Ends an attachment whose handler panicked: what it held is owed again.
    fn detach(&mut self, consumer: ConsumerId, now: Now) {
        self.consumers.close(consumer, CloseReason::HandlerPanicked);
        let id = self.requests.insert(Pending::Own);
        let request = Request::CloseConsumer { consumer };
        let _ = self.broker.handle(Event::Request { id, request }, now);
    }

    pub(crate) fn give_receipts(&mut self, mut receipts: Receipts) {
        let full = Outcome::Refused(Refusal::DiskFull);
        if receipts.outcome == full && self.disk.no_segment().is_some() {
            receipts.outcome = Outcome::Refused(Refusal::NoSegment);
        }
        let counter = match receipts.outcome {
            Outcome::Stored(_) | Outcome::Unstored | Outcome::Duplicate => {
                Some(Counter::ReceiptsSent)
            }
            Outcome::Refused(Refusal::DiskFull | Refusal::NoSegment) => {
                Some(Counter::RefusedDiskFull)
            }
            Outcome::Refused(Refusal::Poisoned) => Some(Counter::RefusedPoisoned),
            Outcome::Refused(Refusal::Invalid) => Some(Counter::RefusedTooLarge),
            Outcome::Refused(Refusal::Closed) => Some(Counter::RefusedClosed),
            Outcome::Refused(Refusal::Terminated) => Some(Counter::RefusedTerminated),
            Outcome::Refused(Refusal::Fenced) => Some(Counter::RefusedFenced),
            Outcome::Refused(Refusal::DelayTooLong) => Some(Counter::RefusedDelay),
            Outcome::Refused(Refusal::BacklogQuota) => Some(Counter::RefusedBacklog),
            Outcome::Unknown => None,
        };
        if let Some(counter) = counter {
            self.watch
                .metrics
                .counters
                .add(counter, u64::from(receipts.count));
        }
        self.inbox.producers.answer(&receipts, &mut self.outbox);
    }

    /// An item of the control lane.
    pub(crate) fn on_control(&mut self, item: Stamped, now: Now) {
        let waited_ns = now.mono_ns.saturating_sub(item.pushed_ns);
        self.watch.metrics.control_wait.record(waited_ns);
        if let Some(owner) = self.owner_elsewhere(&item.control) {
            self.outbox.send_control(owner, item);
            return;
        }
        match item.control {
            Control::Request {
                request,
                ports,
                reply,
            } => self.on_request(request, ports, reply, now),
            Control::Settle { make, reply } => reply.send(self.settle_resident(make)),
            Control::Stats { spare, reply } => {
                let id = self.requests.insert(Pending::Stats { spare, reply });
                let _ = self.broker.handle(
                    Event::Request {
                        id,
                        request: Request::Stats,
                    },
                    now,
                );
            }
        }
    }

    /// Requests that name a topic run where it lives, wherever they arrived.
    fn owner_elsewhere(&self, control: &Control) -> Option<u32> {
        let Control::Request { request, .. } = control else {
            return None;
        };
        let (Request::OpenTopic { name, .. } | Request::DeleteTopic { name }) = request else {
            return None;
        };
        let owner = self.routes.shard_of(name);
        (owner != self.shared.index).then_some(owner)
    }

    fn on_request(&mut self, mut request: Request, ports: Ports, reply: ReplyTo<Answer>, now: Now) {
        let opens = matches!(
            request,
            Request::OpenTopic { .. } | Request::OpenProducer(_) | Request::Subscribe(_)
        );
        if opens && self.stop.is_some() {
            return; // Dropping the reply says it: the engine stops.
        }
        let then = match (&mut request, ports) {
            (Request::OpenTopic { durability, .. }, _) => Then::TopicOpen(*durability),
            (Request::OpenProducer(asked), ports) => {
                let topic = asked.topic.0 as usize;
                let durable = self.durable_topics.get(topic).copied().unwrap_or(false);
                let producers = &mut self.inbox.producers;
                let opened = match ports {
                    Ports::Producer { ring, signal } => producers.open_ring(ring, signal, durable),
                    Ports::Forward => producers.open_forward(durable),
                    _ => None,
                };
                let Some(opened) = opened else {
                    return reply.send(Err(no_port("producers")));
                };
                asked.slot = opened;
                Then::ProducerOpen { slot: opened }
            }
            (Request::Subscribe(asked), ports) => match self.consumers.open(ports) {
                Ok(opened) => {
                    asked.slot = opened;
                    self.inbox.set_consumers_used(self.consumers.used());
                    Then::ConsumerOpen { slot: opened }
                }
                Err(_) => return reply.send(Err(no_port("consumers"))),
            },
            (Request::CloseProducer { producer }, _) => Then::ProducerClosed(*producer),
            (Request::CloseConsumer { consumer }, _) => Then::ConsumerClosed(*consumer),
            _ => Then::Nothing,
        };
        let id = self.requests.insert(Pending::Request { reply, then });
        let _ = self.broker.handle(Event::Request { id, request }, now);
    }

    fn answer(&mut self, id: RequestId, answer: Answer, now: Now) {
        match self.requests.take(id) {
            Some(Pending::Request { reply, then }) => {
                self.settle(then, &answer, now);
                reply.send(answer);
            }
            Some(Pending::Stats { spare, reply }) => self.give_stats(spare, reply, answer),
            Some(Pending::Letter { from, token }) => {
                self.outbox.answer_letter(from, token, answer.is_ok());
            }
            Some(Pending::Own) | None => {}
        }
    }

    /// What an answer means for the ports, before its asker sees it.
    fn settle(&mut self, then: Then, answer: &Answer, now: Now) {
        match (then, answer) {
            (Then::TopicOpen(durability), Ok(Reply::Topic(topic))) => {
                let index = topic.0 as usize;
                if self.durable_topics.len() <= index {
                    self.durable_topics.resize(index + 1, false);
                }
                self.durable_topics[index] = durability.is_stored();
            }
            (Then::ProducerOpen { .. }, Ok(Reply::Producer(opened))) => {
                self.inbox.producers.attached(opened.id);
            }
            (Then::ProducerOpen { slot }, _) => self.inbox.producers.not_attached(slot),
            (Then::ConsumerOpen { .. }, Ok(Reply::Consumer(id))) => {
                let panicked = self.consumers.attached(*id);
                if panicked {
                    self.detach(*id, now);
                }
            }
            (Then::ConsumerOpen { slot }, _) => self.consumers.not_attached(slot),
            (Then::ProducerClosed(id), _) => self.inbox.producers.closed(id),
            (Then::ConsumerClosed(id), _) => self.consumers.close(id, CloseReason::Asked),
            _ => {}
        }
    }

    fn give_stats(&mut self, spare: Box<ShardMetrics>, reply: ReplyTo<ShardStats>, answer: Answer) {
        let broker = match answer {
            Ok(Reply::Stats(stats)) => *stats,
            _ => return,
        };
        self.watch.count_log(self.broker.log().stats());
        let driver = self.disk.driver_counts();
        let counters = &mut self.watch.metrics.counters;
        counters.add(Counter::Enters, driver.enters);
        counters.add(Counter::RingOverflows, driver.overflows);
        counters.add(Counter::ShortTransfers, driver.short_transfers);
        let (control_depth, data_depth) = self.inbox.depths();
        let mut notes = self.notes.clone();
        notes.extend(damage_notes(&broker));
        reply.send(ShardStats {
            shard: self.shared.index,
            broker,
            metrics: std::mem::replace(&mut self.watch.metrics, spare),
            long_turns: self.watch.long_turns(),
            control_depth,
            data_depth,
            notes,
        });
    }
}

/// What subscriptions were not given because it could not be read: nobody else says so.
fn damage_notes(broker: &BrokerStats) -> impl Iterator<Item = String> {
    broker.topics.iter().flat_map(|topic| {
        topic.subscriptions.iter().filter_map(|sub| {
            let first = sub.first_damaged?;
            Some(format!(
                "topic {:?}: {} entries of subscription {:?} cannot be read and were passed over, the \
                 first at ledger {}, entry {}; `pelton log verify` says which files are damaged",
                topic.name, sub.damaged_entries, sub.name, first.ledger, first.entry
            ))
        })
    })
}

fn no_port(what: &str) -> RequestError {
    let name = what.to_owned();
    RequestError::InUse {
        what: "the shard's table of",
        name,
        users: PORTS_MAX,
    }
}
