//! Drives an engine inside this process: one thread that sends when the schedule says so, receives in
//! between, checks and acks everything, and waits for whatever comes next.

use std::{
    hint::spin_loop,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

pub(crate) use pelton::Clock;
use pelton::{Consumer, InitialPosition, SubscribeBuilder, Topic, Verdict};
use pelton_metrics::Histogram;

use crate::{
    DIGITS, LoadError,
    schedule::{Lag, Schedule},
    seen::{Content, Seen},
    sender::Sender,
    verify::Verifier,
    waker::ThreadWaker,
};

/// Entries sent, then received, before the other is looked at, at most.
pub(crate) const BURST: usize = 64;

/// Bytes of a burst: more would push each other out of the first caches.
const BURST_BYTES: usize = 16 << 10;

/// Deliveries that share a clock read: 16 take well below a microsecond.
const PER_CLOCK_READ: usize = 16;

/// Nothing to do for this long: the thread parks. Longer than a wake-up takes, so that a busy engine
/// never pays for one.
const SPIN_NS: u64 = 30_000;

/// A park is no longer than this: nobody wakes it for a run that is to end early.
const STOP_LOOK_NS: u64 = 50_000_000;

/// Before a due send the thread wakes up this much early and spins: a timer is late by as much.
const EARLY_NS: u64 = 120_000;

/// Nothing arrived for this long while something was owed: it is lost.
pub(crate) const STALL_NS: u64 = 10_000_000_000;

/// A consumer and what it has granted.
#[derive(Debug)]
pub(crate) struct Taker {
    consumer: Consumer,
    window: u32,
    /// 0 while the consumer is not to be given anything.
    target: u32,
}

/// Sends, receives and checks on one thread.
#[derive(Debug)]
pub(crate) struct Client {
    clock: Clock,
    /// Once true nothing more is sent.
    stop: Arc<AtomicBool>,
    senders: Vec<Sender>,
    takers: Vec<Taker>,
    pub(crate) seen: Seen,
    pub(crate) publish_receipt: Histogram,
    pub(crate) lag: Lag,
    waker: ThreadWaker,
    /// Messages owed to all subscriptions together, above which a closed loop does not send.
    under_way_max: u64,
    /// Entries sent, then received, before the other is looked at.
    burst: usize,
    /// One producer of single messages at full speed: they go by bursts.
    by_bursts: bool,
    /// A producer's queue was full when something was due.
    held: bool,
    /// Something owed did not arrive.
    pub(crate) stalled: bool,
    idle_since_ns: Option<u64>,
}

impl Client {
    pub(crate) fn new(
        clock: Clock,
        stop: Arc<AtomicBool>,
        verifier: Verifier,
        content: Content,
    ) -> Client {
        Client {
            clock,
            stop,
            senders: Vec::new(),
            takers: Vec::new(),
            seen: Seen::new(verifier, content),
            publish_receipt: Histogram::new(DIGITS),
            lag: Lag::new(),
            waker: ThreadWaker::new(),
            under_way_max: u64::MAX,
            burst: BURST,
            by_bursts: false,
            held: false,
            stalled: false,
            idle_since_ns: None,
        }
    }

    /// A closed loop keeps at most so many messages under way to all subscriptions together.
    pub(crate) fn bound(&mut self, under_way: u64) {
        self.under_way_max = under_way;
    }

    /// Adds a producer of entries of `batch` messages of `size` bytes.
    pub(crate) fn add_sender(
        &mut self,
        topic: &Topic,
        (size, batch): (usize, usize),
        sample: u64,
    ) -> Result<(), LoadError> {
        let (entry_bytes, index) = (size * batch, self.senders.len());
        self.burst = (BURST_BYTES / entry_bytes).clamp(1, BURST);
        self.senders
            .push(Sender::open(topic, index, (size, batch), sample)?);
        Ok(())
    }

    /// Attaches the consumer of the verifier with the same number, with nothing granted yet.
    pub(crate) fn add_taker(
        &mut self,
        subscribe: SubscribeBuilder,
        window: u32,
    ) -> Result<(), LoadError> {
        let subscribe = subscribe
            .initial(InitialPosition::Earliest)
            .window(window)
            .manual_permits();
        self.takers.push(Taker {
            consumer: subscribe.name("load").open().map_err(LoadError::engine)?,
            window,
            target: 0,
        });
        Ok(())
    }

    /// Topic, subscription and the verifier's name of every consumer.
    pub(crate) fn subscriptions(&self) -> Vec<(String, String, String)> {
        let names = self.takers.iter().map(|taker| {
            let (topic, subscription) = (taker.consumer.topic(), taker.consumer.subscription());
            let label = format!("{topic}/{subscription}");
            (topic.to_owned(), subscription.to_owned(), label)
        });
        names.collect()
    }

    /// Lets every consumer have its window from now on.
    pub(crate) fn open_windows(&mut self) -> Result<(), LoadError> {
        for taker in &mut self.takers {
            taker.target = taker.window;
        }
        (0..self.takers.len()).try_for_each(|i| self.grant(i))
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    /// Begins a measured time: all figures start at zero, the checks go on.
    pub(crate) fn restart(&mut self) {
        self.seen.restart();
        self.publish_receipt.clear();
        self.lag = Lag::new();
        self.senders.iter_mut().for_each(Sender::forget_receipts);
    }

    /// Sends entries by the schedule, all producers in turn, and receives, until `end_ns`, the
    /// schedule's end or that of the run.
    pub(crate) fn run(&mut self, schedule: &mut Schedule, end_ns: u64) -> Result<(), LoadError> {
        self.by_bursts = matches!(&self.senders[..], [only] if only.is_single());
        let ran = self.run_with(schedule, end_ns, |client, n, due_ns| {
            let count = client.senders.len();
            // One after the other; the remainder of one is what a division would be paid for.
            let i = if count == 1 { 0 } else { n as usize % count };
            client.try_send_entry(i, due_ns)
        });
        self.by_bursts = false;
        ran
    }

    /// As [`Client::run`]; `send` is given the entry's number and its due time, and says false if
    /// there was no room for it.
    pub(crate) fn run_with(
        &mut self,
        schedule: &mut Schedule,
        end_ns: u64,
        mut send: impl FnMut(&mut Client, u64, u64) -> Result<bool, LoadError>,
    ) -> Result<(), LoadError> {
        loop {
            let now_ns = self.clock.now_ns();
            if now_ns >= end_ns || self.stalled || self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let Some(due_ns) = schedule.next_ns(now_ns) else {
                return Ok(());
            };
            let mut worked = 0;
            if due_ns <= now_ns && self.may_send(schedule) {
                worked += self.send_due(schedule, now_ns, &mut send)?;
            }
            worked += self.receive_burst()?;
            worked += self.settle_receipts()?;
            // A saturated schedule is always due; what is waited for then is room, or a delivery.
            let next_ns = schedule.next_ns(now_ns).filter(|&due_ns| due_ns > now_ns);
            self.rest(worked, next_ns.unwrap_or(u64::MAX).min(end_ns))?;
        }
    }

    /// Receives until nothing is owed any more, or nothing has arrived for 10 s: what is owed then is
    /// lost, the verdict says so, and further calls of this and [`Client::run`] do nothing.
    pub(crate) fn drain(&mut self) -> Result<(), LoadError> {
        let mut progress_ns = self.clock.now_ns();
        while self.owed() && !self.stalled {
            let worked = self.receive_burst()? + self.settle_receipts()?;
            let now_ns = self.clock.now_ns();
            if worked > 0 {
                progress_ns = now_ns;
            } else if now_ns - progress_ns > STALL_NS {
                self.stalled = true;
            }
            self.rest(worked, now_ns + STALL_NS / 10)?;
        }
        self.seen.flush();
        Ok(())
    }

    /// A closed loop keeps a bounded number of messages under way, as a channel of that capacity does;
    /// an open loop sends what is due, whatever became of the last one.
    fn may_send(&self, schedule: &Schedule) -> bool {
        schedule.is_open_loop() || self.seen.verifier.outstanding() < self.under_way_max
    }

    fn owed(&self) -> bool {
        self.seen.verifier.outstanding() > 0 || self.senders.iter().any(Sender::owes_receipts)
    }

    /// Sends what is due, at most a burst. A burst of a saturated schedule shares its intended time.
    fn send_due(
        &mut self,
        schedule: &mut Schedule,
        now_ns: u64,
        send: &mut impl FnMut(&mut Client, u64, u64) -> Result<bool, LoadError>,
    ) -> Result<usize, LoadError> {
        let open_loop = schedule.is_open_loop();
        if self.by_bursts && !open_loop {
            let left = usize::try_from(schedule.left()).unwrap_or(usize::MAX);
            let burst = self.burst.min(left);
            let sent = self.senders[0].send_burst(&mut self.seen.verifier, burst, now_ns)?;
            (0..sent).for_each(|_| schedule.advance());
            self.held = sent < burst;
            return Ok(sent);
        }
        let mut sent = 0;
        while sent < self.burst {
            let Some(due_ns) = schedule.next_ns(now_ns).filter(|&due_ns| due_ns <= now_ns) else {
                break;
            };
            if !send(self, schedule.sent(), due_ns)? {
                self.held = true;
                return Ok(sent);
            }
            if open_loop {
                self.lag.sent(due_ns, self.clock.now_ns(), self.held);
            }
            schedule.advance();
            sent += 1;
        }
        // The ring took all that was due: whatever is late from now on is not its fault.
        self.held &= sent == self.burst;
        Ok(sent)
    }

    /// Sends one entry of producer `i`; false if its queue is full.
    pub(crate) fn try_send_entry(&mut self, i: usize, intended_ns: u64) -> Result<bool, LoadError> {
        self.senders[i].try_send(&mut self.seen.verifier, intended_ns)
    }

    /// Sends `content` as one message of producer `i` under `key`; false if its queue is full.
    pub(crate) fn try_send_content(
        &mut self,
        i: usize,
        key: (u32, Option<&[u8]>),
        content: &[u8],
        intended_ns: u64,
    ) -> Result<bool, LoadError> {
        self.senders[i].try_send_content(&mut self.seen.verifier, key, content, intended_ns)
    }

    /// Takes what has arrived, at most a burst per consumer, and acks it; how many entries.
    pub(crate) fn receive_burst(&mut self) -> Result<usize, LoadError> {
        let (clock, seen, burst) = (&self.clock, &mut self.seen, self.burst);
        let mut received = 0;
        for (i, taker) in self.takers.iter_mut().enumerate() {
            let (mut n, mut now_ns) = (0, 0);
            let shown = taker.consumer.try_for_each(burst, |entry| {
                if n % PER_CLOCK_READ == 0 {
                    now_ns = clock.now_ns();
                }
                n += 1;
                seen.entry(i, entry, now_ns);
                Verdict::Ack
            });
            received += shown.map_err(LoadError::engine)?;
        }
        (0..self.takers.len()).try_for_each(|i| self.grant(i))?;
        Ok(received)
    }

    /// Keeps the window of consumer `i` at least half full.
    fn grant(&mut self, i: usize) -> Result<(), LoadError> {
        let taker = &mut self.takers[i];
        let left = i64::from(taker.target) - taker.consumer.permits();
        if left > i64::from(taker.target / 2) {
            let more = u32::try_from(left).expect("at most the window and one batch");
            self.grant_more(i, more)?;
        }
        Ok(())
    }

    /// Grants consumer `i` so many messages more.
    pub(crate) fn grant_more(&mut self, i: usize, messages: u32) -> Result<(), LoadError> {
        // First: what is granted counts from the moment the engine can see it.
        self.seen.verifier.granted(i, u64::from(messages));
        self.takers[i]
            .consumer
            .grant(messages)
            .map_err(LoadError::engine)
    }

    /// Times the receipts that have come; how many.
    pub(crate) fn settle_receipts(&mut self) -> Result<usize, LoadError> {
        let mut settled = 0;
        for sender in &mut self.senders {
            settled += sender.settle(&self.clock, &mut self.publish_receipt)?;
        }
        Ok(settled)
    }

    /// Publishes one entry of producer `i`, waits for its receipt, and receives what is there.
    pub(crate) fn publish_and_wait(&mut self, i: usize) -> Result<(), LoadError> {
        let intended_ns = self.clock.now_ns();
        self.senders[i].send_and_wait(&mut self.seen.verifier, intended_ns)?;
        self.publish_receipt
            .record(self.clock.now_ns() - intended_ns);
        self.receive_burst()?;
        Ok(())
    }

    /// Has all consumers together take so many messages and no more: permits are granted for these
    /// only, a window ahead.
    pub(crate) fn take_exactly(&mut self, messages: u64) -> Result<(), LoadError> {
        let mut to_grant = messages;
        let until = self.seen.messages + messages;
        let mut progress_ns = self.clock.now_ns();
        while self.seen.messages < until {
            for i in 0..self.takers.len() {
                let window = i64::from(self.takers[i].window);
                let room = (window - self.takers[i].consumer.permits())
                    .max(0)
                    .unsigned_abs();
                let more = room.min(to_grant);
                if more > 0 && (more >= window.unsigned_abs() / 2 || more == to_grant) {
                    self.grant_more(i, u32::try_from(more).expect("at most a window"))?;
                    to_grant -= more;
                }
            }
            let worked = self.receive_burst()?;
            let now_ns = self.clock.now_ns();
            if worked > 0 {
                progress_ns = now_ns;
            } else if now_ns - progress_ns > STALL_NS {
                self.stalled = true;
                break;
            }
            self.rest(worked, now_ns + STALL_NS / 10)?;
        }
        Ok(())
    }

    /// Waits until every entry sent has its receipt.
    pub(crate) fn flush(&mut self) -> Result<(), LoadError> {
        self.senders.iter_mut().try_for_each(Sender::flush)
    }

    /// Waits until every ack is where its topic's durability wants it.
    pub(crate) fn flush_acks(&mut self) -> Result<(), LoadError> {
        for taker in &mut self.takers {
            taker.consumer.flush_acks().map_err(LoadError::engine)?;
        }
        Ok(())
    }

    /// After a round of the loop: nothing if it did something, else spin, then park until something
    /// arrives or `until_ns` comes near.
    pub(crate) fn rest(&mut self, worked: usize, until_ns: u64) -> Result<(), LoadError> {
        if worked > 0 {
            self.idle_since_ns = None;
            return Ok(());
        }
        let now_ns = self.clock.now_ns();
        let since_ns = *self.idle_since_ns.get_or_insert(now_ns);
        let left_ns = until_ns.saturating_sub(now_ns);
        if now_ns - since_ns < SPIN_NS || left_ns < EARLY_NS {
            spin_loop();
            return Ok(());
        }
        self.park(left_ns - EARLY_NS / 2)
    }

    fn park(&mut self, ns: u64) -> Result<(), LoadError> {
        let mut context = Context::from_waker(self.waker.arm());
        for (i, taker) in self.takers.iter_mut().enumerate() {
            if let Poll::Ready(delivery) = taker.consumer.poll_recv(&mut context) {
                let delivery = delivery.map_err(LoadError::engine)?;
                self.seen.entry(i, delivery.entry(), self.clock.now_ns());
                delivery.ack();
                self.idle_since_ns = None;
                return self.grant(i);
            }
        }
        let held = self.held;
        if self
            .senders
            .iter_mut()
            .any(|sender| sender.poll(&mut context, held))
        {
            return Ok(());
        }
        self.waker.park(ns.min(STOP_LOOK_NS));
        Ok(())
    }
}
