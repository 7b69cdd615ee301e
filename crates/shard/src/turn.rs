//! One turn of a shard: kernel, lanes, deadlines, effects. Start reading here.
//!
//! A shard is one thread that owns its topics, their log and everything attached to them. It takes
//! turns; a turn never sleeps, and every step of it is bounded. A turn that found nothing hands over to
//! `idle.rs`, which spins a little, looks again, and parks.
//!
//! ```text
//!        handles (other threads)                                 other shards
//!   slot rings   data lane   control lane                       mesh rings, two lanes
//!        |           |           |                                     |
//!        +-----------+-----------+-------------- inbox.rs -------------+     what can be taken
//!                                |
//!   disk.rs: completions ---> Event ---> broker.handle                       what it means
//!                                              |
//!                                        poll_effect ---> effects.rs         what is to be done
//!                                              |
//!        +----------------+----------------+---+-----------+-----------------+
//!   receipt pages    consumer rings    handlers here    disk.rs          mesh.rs
//! ```

use std::sync::Arc;

use pelton_broker::{Broker, Event, Handled, Now, Publish as Entry, Request};
use pelton_metrics::Counter;
use pelton_sys::Clock;

use crate::consumers::{Consumers, Verdicts};
use crate::disk::{Answer, DiskSide};
use crate::idle::Sleeper;
use crate::inbox::{Inbox, Input, Item};
use crate::mesh::{Outbox, PeerData};
use crate::port::{Data, Shared};
use crate::requests::{Pending, Requests};
use crate::resident::Resident;
use crate::routes::Routes;
use crate::stop::Stop;
use crate::watch::{TurnWork, Watch};

/// The kernel, and what other sources announced, is looked at again after so many items (A4.3).
const ITEMS_PER_TURN_MAX: u32 = 64;

/// The wall clock is read so often; between two reads it moves with the monotonic one.
const WALL_CLOCK_EVERY_NS: u64 = 100_000_000;

/// One shard: the parts, joined by [`Shard::turn`].
pub(crate) struct Shard {
    pub(crate) shared: Arc<Shared>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) clock: Clock,
    pub(crate) wall: Wall,
    /// What can be taken: both lanes, producers' rings, the mesh.
    pub(crate) inbox: Inbox,
    /// What it means: topics, subscriptions, the log. No I/O in there.
    pub(crate) broker: Broker,
    /// Where deliveries go.
    pub(crate) consumers: Consumers,
    /// Who waits for an answer.
    pub(crate) requests: Requests,
    pub(crate) disk: DiskSide,
    /// What goes to other shards.
    pub(crate) outbox: Outbox,
    /// What lives on this thread beside the topics: connections of a server.
    pub(crate) resident: Option<Box<dyn Resident>>,
    pub(crate) sleeper: Sleeper,
    pub(crate) watch: Watch,
    pub(crate) stop: Option<Stop>,
    /// Durability of open topics, by id: their producers hear of a full disk.
    pub(crate) durable_topics: Vec<bool>,
    pub(crate) verdicts: Verdicts,
    /// Entries the core took since the start.
    pub(crate) entries_taken: u64,
    pub(crate) notes: Vec<String>,
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Things done: completions, items of the lanes, effects. 0: the turn found nothing.
    pub items: u32,
    /// There is more to do at once: do not wait.
    pub more: bool,
    /// When the next turn is due although nothing happens, monotonic nanoseconds.
    pub next_deadline_ns: Option<u64>,
}

impl Shard {
    /// One turn. Never sleeps.
    pub(crate) fn turn(&mut self) -> Work {
        let now = self.read_clocks(); // the only clock read of the turn
        let credit = self.inbox.credit();
        let mut work = TurnWork::default();
        self.look_at_kernel(now, &mut work);
        self.let_resident(now, &mut work, true);
        self.take_items(now, &mut work);
        let _ = self.broker.handle(Event::Tick, now); // deadlines, dispatch, commit, trim
        self.carry_out_effects(now, &mut work);
        self.tell_handles();
        self.let_resident(now, &mut work, false);
        self.step_stop(now);
        self.watch.record(now.mono_ns, credit, work);
        let items = work.items();
        // What the core was told behind its tick has consequences, as it may have of an answer of the
        // disk, and what was held back may fit after the trims of this turn.
        let told_late = work.handled > 0
            || work.to_itself > 0
            || work.written_bytes > 0
            || work.completions > 0;
        let more = told_late
            || self.broker.has_work()
            || self.stop.as_ref().is_some_and(Stop::wants_turn)
            || (items > 0 && self.inbox.producers.any_held());
        Work {
            items,
            more,
            next_deadline_ns: self.next_deadline(),
        }
    }

    /// Runs until the shard has stopped.
    pub(crate) fn run(&mut self) {
        while !self.is_stopped() {
            let work = self.turn();
            // Not a whole turn to find that there is nothing: the next message would wait for its end.
            if !work.more && !self.has_work() {
                self.idle(work.next_deadline_ns);
            }
        }
    }

    /// The next instant at which a turn is due.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let stop = self.stop.as_ref().map(Stop::deadline_ns);
        let resident = self.resident.as_ref();
        let resident = resident.and_then(|resident| resident.next_deadline_ns());
        [self.broker.next_deadline(), stop, resident]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether anything could be done now: the second look of a sleeper covers all of it.
    pub(crate) fn has_work(&mut self) -> bool {
        self.inbox.has_work()
            || self.disk.work_pending()
            || self.broker.has_work()
            || self.shared.stop.is_news(self.stop.as_ref())
            || self.resident_has_work()
    }

    fn look_at_kernel(&mut self, now: Now, work: &mut TurnWork) {
        self.disk.reap(now.mono_ns, &mut self.watch.metrics);
        while let Some(answer) = self.disk.next_done() {
            work.completions += 1;
            self.on_answer(answer, now);
        }
    }

    fn take_items(&mut self, now: Now, work: &mut TurnWork) {
        self.inbox.look();
        let mut budget = ITEMS_PER_TURN_MAX;
        let (mut entries, mut messages, mut bytes, mut held) = (0, 0, 0, 0);
        loop {
            let broker = &mut self.broker;
            let before = budget;
            let item = self.inbox.take(&mut budget, &mut |input| match input {
                Input::Publish(producer, slot) => {
                    let extras = slot.extras.as_deref().copied().unwrap_or_default();
                    let entry = Entry {
                        body: &slot.body,
                        messages: slot.messages,
                        key_hash: slot.key_hash,
                        sequence: slot.sequence,
                        numbered: extras.numbered,
                        arrived_ns: slot.arrived_ns,
                        deliver_at_ms: extras.deliver_at_ms,
                        deadline_ms: extras.deadline_ms,
                    };
                    let entry = &entry;
                    let handled = broker.handle(Event::Publish { producer, entry }, now);
                    if handled == Handled::Held {
                        held += 1;
                        return handled;
                    }
                    entries += 1;
                    messages += u64::from(slot.messages);
                    bytes += slot.body.len() as u64;
                    handled
                }
                Input::Data(data) => broker.handle(event_of(&data), now),
            });
            let control = u32::from(matches!(item, Some(Item::Control(_))));
            work.control += control;
            work.data += before - budget - control;
            match item {
                None => break,
                Some(Item::Control(item)) => {
                    self.on_control(item, now);
                }
                Some(Item::Granted(slot)) => {
                    if let Some(consumer) = self.consumers.has_room(slot) {
                        let writable = true;
                        let event = Event::Writable { consumer, writable };
                        let _ = self.broker.handle(event, now);
                    }
                    if let Some(consumer) = self.consumers.id_of(slot) {
                        let _ = self.broker.handle(Event::Granted { consumer }, now);
                    }
                }
                Some(Item::Peer { from, data }) => self.on_peer(from, data, now),
            }
        }
        work.published += entries as u32;
        let counters = &mut self.watch.metrics.counters;
        self.entries_taken += entries;
        counters.add(Counter::EntriesIn, entries);
        counters.add(Counter::MessagesIn, messages);
        counters.add(Counter::BytesIn, bytes);
        counters.add(Counter::HeldNoRoom, held);
    }

    pub(crate) fn on_answer(&mut self, answer: Answer, now: Now) {
        let event = match answer {
            Answer::Disk(done) => Event::Disk(done),
            Answer::Meta(done) => Event::Meta(done),
        };
        let _ = self.broker.handle(event, now);
    }

    /// An entry that a handler forwarded, a dead letter, or the answer to one of them.
    pub(crate) fn on_peer(&mut self, from: u32, data: PeerData, now: Now) {
        match data {
            PeerData::Forward(forwarded) => {
                let slot = forwarded.producer.slot;
                match self.inbox.producers.enqueue(forwarded) {
                    Ok(()) => self.inbox.activate(slot),
                    // Its producer is closed.
                    Err(gone) => self.outbox.answer(gone.from, gone.token, false, gone.body),
                }
            }
            PeerData::Letter { token, letter } => {
                let id = self.requests.insert(Pending::Letter { from, token });
                let request = Request::DeadLetter(letter);
                let _ = self.broker.handle(Event::Request { id, request }, now);
            }
            PeerData::LetterAnswer { token, stored } => {
                let event = Event::DeadLettered { token, stored };
                let _ = self.broker.handle(event, now);
            }
            PeerData::Answer {
                token,
                stored,
                body,
            } => {
                let Some(settled) = self.outbox.answered(from, token, stored, body) else {
                    return;
                };
                let (consumer, position) = (settled.consumer, settled.position);
                let event = match settled.stored {
                    true => Event::Ack { consumer, position },
                    false => Event::Nack {
                        consumer,
                        position,
                        delay_ns: None,
                    },
                };
                let _ = self.broker.handle(event, now);
            }
        }
    }

    fn read_clocks(&mut self) -> Now {
        let mono_ns = self.clock.now_ns();
        self.watch.close_turn(mono_ns);
        self.sleeper
            .end_gap(mono_ns, &mut self.watch.metrics.counters);
        self.outbox.set_now(mono_ns);
        Now {
            mono_ns,
            wall_ms: self.wall.at(mono_ns, &self.clock),
        }
    }
}

/// An item of the data lane, as the core's event.
fn event_of(data: &Data) -> Event<'_> {
    match *data {
        Data::Ack { consumer, position } => Event::Ack { consumer, position },
        Data::AckRun {
            consumer,
            first,
            entries,
        } => Event::AckRun {
            consumer,
            first,
            entries,
        },
        Data::AckCumulative { consumer, position } => Event::AckCumulative {
            consumer,
            position,
            still: &[],
        },
        Data::AckPart(ref part) => {
            let (consumer, position, still) = (part.consumer, part.position, &*part.still);
            match part.cumulative {
                true => Event::AckCumulative {
                    consumer,
                    position,
                    still,
                },
                false => Event::AckBatch {
                    consumer,
                    position,
                    still,
                },
            }
        }
        Data::Nack { consumer, position } => Event::Nack {
            consumer,
            position,
            delay_ns: None,
        },
        Data::NackLater {
            consumer,
            position,
            delay_ms,
        } => Event::Nack {
            consumer,
            position,
            delay_ns: Some(u64::from(delay_ms) * 1_000_000),
        },
        Data::Release { consumer, position } => Event::Release { consumer, position },
        Data::Reject { consumer, position } => Event::Reject { consumer, position },
        Data::NackAll { consumer } => Event::NackAll { consumer },
    }
}

/// The wall clock, at the price of the monotonic one.
#[derive(Debug)]
pub(crate) struct Wall {
    read_at_ns: u64,
    wall_ms: u64,
}

impl Wall {
    pub(crate) fn new(clock: &Clock) -> Wall {
        Wall {
            read_at_ns: clock.now_ns(),
            wall_ms: clock.wall_ms(),
        }
    }

    pub(crate) fn at(&mut self, mono_ns: u64, clock: &Clock) -> u64 {
        let since_ns = mono_ns.saturating_sub(self.read_at_ns);
        if since_ns < WALL_CLOCK_EVERY_NS {
            return self.wall_ms + since_ns / 1_000_000;
        }
        *self = Wall {
            read_at_ns: mono_ns,
            wall_ms: clock.wall_ms(),
        };
        self.wall_ms
    }
}
