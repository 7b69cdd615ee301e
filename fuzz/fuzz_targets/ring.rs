//! Any sequence of operations on each kind of ring, beside a model of `VecDeque`s.
//!
//! Oracle: the same values in the same order, nothing accepted beyond the capacity, nothing refused
//! below it, everything dropped exactly once. Values own memory, so the address sanitizer sees one
//! that is dropped twice and the leak sanitizer one that is not dropped.
//!
//! One thread only: what threads may see in between is the business of the loom models.
#![cfg_attr(fuzzing, no_main)]

#[cfg(all(test, not(fuzzing)))]
#[expect(dead_code, reason = "nothing was found here yet")]
mod inputs;

use std::collections::VecDeque;

use pelton_rings::{
    Full, Item, PriorityReceiver, PriorityRing, Receiver, Sender, SlotReceiver, SlotSender, Wake,
    priority_ring, slots, spsc,
};

/// A value with its number, in memory of its own.
type Value = Box<u64>;

/// Credit of the lane rule, A3: full, and per data item.
const CREDIT: (u32, u32) = (32, 8);

#[derive(Clone, Copy, Debug)]
enum Op {
    Push,
    PushOther,
    PushMany(u8),
    Pop,
    PopMany(u8),
    Look,
    Sleep,
    CloseSender,
    CloseReceiver,
}

/// The first byte says which ring and how large, then two bytes are an operation and its argument:
/// dense, so that nearly every mutation is another sequence of operations.
fn check(data: &[u8]) {
    let [shape, rest @ ..] = data else { return };
    let ops = rest.chunks_exact(2).map(|op| decode(op[0], op[1]));
    let capacity = 1 << ((shape / 4) % 7);
    match shape % 4 {
        0 => Spsc::new(capacity).run(ops),
        1 => Slots::new(capacity).run(ops),
        _ => Priority::new(capacity).run(ops),
    }
}

fn decode(code: u8, argument: u8) -> Op {
    match code % 32 {
        0..=6 => Op::Push,
        7..=12 => Op::PushOther,
        13..=15 => Op::PushMany(argument % 80),
        16..=24 => Op::Pop,
        25..=26 => Op::PopMany(argument % 80),
        27..=29 => Op::Look,
        30 => Op::Sleep,
        // Rarely, or most sequences would be short.
        _ if argument == 0 => Op::CloseSender,
        _ if argument == 1 => Op::CloseReceiver,
        _ => Op::Look,
    }
}

/// A bounded queue, exact: a place is free as soon as its value is popped, and a ring whose other
/// end is gone fills up like any other.
#[derive(Debug)]
struct Model {
    capacity: usize,
    queue: VecDeque<u64>,
    next: u64,
}

impl Model {
    fn new(capacity: usize) -> Model {
        Model {
            capacity,
            queue: VecDeque::new(),
            next: 0,
        }
    }

    fn value(&mut self) -> Value {
        self.next += 1;
        Box::new(self.next)
    }

    fn pushed(&mut self, accepted: bool) {
        assert_eq!(accepted, self.queue.len() < self.capacity, "{self:?}");
        if accepted {
            self.queue.push_back(self.next);
        }
    }

    /// Of `offered` values numbered from `next`, `accepted` went.
    fn pushed_many(&mut self, offered: u64, accepted: usize) {
        let room = self.capacity - self.queue.len();
        assert_eq!(
            accepted,
            room.min(usize::try_from(offered).expect("a byte")),
            "{self:?}"
        );
        self.queue
            .extend(self.next + 1..=self.next + accepted as u64);
        self.next += offered;
    }

    fn popped(&mut self, got: Option<u64>) {
        assert_eq!(got, self.queue.pop_front());
    }

    fn free(&self) -> usize {
        self.capacity - self.queue.len()
    }
}

struct Spsc {
    model: Model,
    sender: Option<Sender<Value>>,
    receiver: Option<Receiver<Value>>,
}

impl Spsc {
    fn new(capacity: usize) -> Spsc {
        let (sender, receiver) = spsc(capacity);
        Spsc {
            model: Model::new(capacity),
            sender: Some(sender),
            receiver: Some(receiver),
        }
    }

    fn run(mut self, ops: impl Iterator<Item = Op>) {
        for op in ops {
            match op {
                Op::Push | Op::PushOther => self.push(),
                Op::PushMany(n) => self.push_many(n),
                Op::Pop => self.pop(),
                Op::PopMany(n) => self.pop_many(usize::from(n)),
                Op::Look | Op::Sleep => self.look(),
                Op::CloseSender => self.sender = None,
                Op::CloseReceiver => self.receiver = None,
            }
        }
        // What was published before its sender went is still there, and nothing else.
        self.sender = None;
        if let Some(mut receiver) = self.receiver.take() {
            while let Some(value) = receiver.pop() {
                self.model.popped(Some(*value));
            }
            assert!(self.model.queue.is_empty());
        }
    }

    fn push(&mut self) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        let pushed = sender.push(self.model.value());
        if let Err(Full(value)) = &pushed {
            assert_eq!(**value, self.model.next, "a refused value comes back");
        }
        self.model.pushed(pushed.is_ok());
    }

    fn push_many(&mut self, n: u8) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        let first = self.model.next + 1;
        let mut values = (first..first + u64::from(n)).map(Box::new);
        let pushed = sender.push_chunk(&mut values);
        assert_eq!(
            values.count() + pushed,
            usize::from(n),
            "what did not go stays here"
        );
        self.model.pushed_many(u64::from(n), pushed);
    }

    fn pop(&mut self) {
        let Some(receiver) = &mut self.receiver else {
            return;
        };
        self.model.popped(receiver.pop().map(|v| *v));
    }

    fn pop_many(&mut self, max: usize) {
        let Some(receiver) = &mut self.receiver else {
            return;
        };
        let model = &mut self.model;
        let expected = max.min(model.queue.len());
        let popped = receiver.pop_chunk(max, |value| model.popped(Some(*value)));
        assert_eq!(popped, expected);
    }

    fn look(&mut self) {
        let (sender_gone, receiver_gone) = (self.sender.is_none(), self.receiver.is_none());
        if let Some(receiver) = &mut self.receiver {
            assert_eq!(
                receiver.peek().map(|v| **v),
                self.model.queue.front().copied()
            );
            assert_eq!(receiver.len(), self.model.queue.len());
            assert_eq!(receiver.is_empty(), self.model.queue.is_empty());
            assert_eq!(receiver.is_closed(), sender_gone);
        }
        if let Some(sender) = &mut self.sender {
            assert_eq!(sender.capacity(), self.model.capacity);
            assert_eq!(sender.is_closed(), receiver_gone);
            assert_eq!(sender.free(), self.model.free());
        }
    }
}

/// A ring whose slots keep their buffers: a slot holds what was last written into it.
struct Slots {
    model: Model,
    sender: Option<SlotSender<Vec<u64>>>,
    receiver: Option<SlotReceiver<Vec<u64>>>,
}

impl Slots {
    fn new(capacity: usize) -> Slots {
        let (sender, receiver) = slots(capacity);
        Slots {
            model: Model::new(capacity),
            sender: Some(sender),
            receiver: Some(receiver),
        }
    }

    fn run(mut self, ops: impl Iterator<Item = Op>) {
        for op in ops {
            match op {
                Op::Push => self.push(1),
                Op::PushOther => self.push_panicking(),
                Op::PushMany(n) => self.push(usize::from(n)),
                Op::Pop => self.pop(),
                Op::PopMany(n) => (0..n).for_each(|_| self.pop()),
                Op::Look | Op::Sleep => self.look(),
                Op::CloseSender => self.sender = None,
                Op::CloseReceiver => self.receiver = None,
            }
        }
        self.sender = None;
        while self.receiver.is_some() && !self.model.queue.is_empty() {
            self.pop();
        }
    }

    /// Writes one value of `words` words.
    fn push(&mut self, words: usize) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        let number = *self.model.value();
        let pushed = sender.push_with(|slot| {
            slot.clear();
            slot.push(number);
            slot.resize(1 + words, number);
        });
        self.model.pushed(pushed.is_ok());
    }

    /// A writer that panics half-way publishes nothing. (libFuzzer aborts on any panic, so that this
    /// happens in `cargo test` only.)
    fn push_panicking(&mut self) {
        let Some(sender) = &mut self.sender else {
            return;
        };
        if cfg!(fuzzing) {
            return;
        }
        let attempt = std::panic::AssertUnwindSafe(|| {
            sender.push_with(|slot| {
                slot.clear();
                std::panic::resume_unwind(Box::new("half-way"));
            })
        });
        match std::panic::catch_unwind(attempt) {
            Err(_) => {}
            Ok(full) => self.model.pushed(full.is_ok()),
        }
    }

    fn pop(&mut self) {
        let Some(receiver) = &mut self.receiver else {
            return;
        };
        let got = receiver.pop_with(|slot| {
            assert!(
                slot.iter().all(|word| *word == slot[0]),
                "a slot holds one value"
            );
            slot[0]
        });
        self.model.popped(got);
    }

    fn look(&mut self) {
        let (sender_gone, receiver_gone) = (self.sender.is_none(), self.receiver.is_none());
        if let Some(receiver) = &mut self.receiver {
            assert_eq!(receiver.len(), self.model.queue.len());
            assert_eq!(receiver.is_empty(), self.model.queue.is_empty());
            assert_eq!(receiver.is_closed(), sender_gone);
        }
        if let Some(sender) = &mut self.sender {
            assert_eq!(sender.capacity(), self.model.capacity);
            assert_eq!(sender.is_closed(), receiver_gone);
            assert_eq!(sender.free(), self.model.free());
        }
    }
}

/// Two lanes, the lane rule and the doorbell.
struct Priority {
    control: Model,
    data: Model,
    credit: u32,
    asleep: bool,
    ring: PriorityRing<Value, Value>,
    receiver: PriorityReceiver<Value, Value>,
}

impl Priority {
    fn new(capacity: usize) -> Priority {
        // The lanes differ in size, so that one taken for the other shows.
        let (ring, receiver) = priority_ring(capacity, 2 * capacity);
        Priority {
            control: Model::new(capacity),
            data: Model::new(2 * capacity),
            credit: CREDIT.0,
            asleep: false,
            ring,
            receiver,
        }
    }

    fn run(mut self, ops: impl Iterator<Item = Op>) {
        let mut other_handle = Some(self.ring.clone());
        for op in ops {
            match op {
                Op::Push => self.push_control(),
                Op::PushOther => self.push_data(),
                Op::PushMany(n) => self.push_data_batch(u64::from(n)),
                Op::Pop => self.pop(),
                Op::PopMany(n) => (0..n).for_each(|_| self.pop()),
                Op::Look | Op::CloseReceiver => self.look(),
                Op::Sleep => self.sleep(),
                Op::CloseSender => other_handle = None,
            }
        }
        drop(other_handle);
        self.ring.close();
        assert!(self.ring.is_closed() && self.ring.push_control(Box::new(0)).is_err());
        while !(self.control.queue.is_empty() && self.data.queue.is_empty()) {
            assert!(!self.receiver.is_drained());
            self.pop();
        }
        assert!(self.receiver.is_drained());
    }

    fn push_control(&mut self) {
        let pushed = self.ring.push_control(self.control.value());
        self.control.pushed(pushed.is_ok());
        match pushed {
            Ok(wake) => self.rang(wake),
            Err(Full(value)) => assert_eq!(*value, self.control.next),
        }
    }

    fn push_data(&mut self) {
        let pushed = self.ring.push_data(self.data.value());
        self.data.pushed(pushed.is_ok());
        match pushed {
            Ok(wake) => self.rang(wake),
            Err(Full(value)) => assert_eq!(*value, self.data.next),
        }
    }

    fn push_data_batch(&mut self, n: u64) {
        let first = self.data.next + 1;
        let mut batch: VecDeque<Value> = (first..first + n).map(Box::new).collect();
        let (pushed, wake) = self.ring.push_data_list(&mut batch);
        assert_eq!(pushed + batch.len(), usize::try_from(n).expect("a byte"));
        self.data.pushed_many(n, pushed);
        if pushed > 0 {
            self.rang(wake);
        }
    }

    /// Exactly the first publish after an announced sleep wakes.
    fn rang(&mut self, wake: Wake) {
        assert_eq!(wake == Wake::Needed, self.asleep);
        self.asleep = false;
    }

    fn pop(&mut self) {
        let (control, data) = (!self.control.queue.is_empty(), !self.data.queue.is_empty());
        match self.receiver.pop() {
            Some(Item::Control(value)) => {
                assert!(self.credit > 0 || !data, "data is owed");
                self.credit -= u32::from(data);
                self.control.popped(Some(*value));
            }
            Some(Item::Data(value)) => {
                assert!(!control || self.credit == 0, "control goes first");
                self.credit = CREDIT.0.min(self.credit + CREDIT.1);
                self.data.popped(Some(*value));
            }
            None => assert!(!control && !data, "something waits"),
        }
        assert_eq!(self.receiver.credit().level(), self.credit);
    }

    fn look(&mut self) {
        let (control, data) = (self.control.queue.len(), self.data.queue.len());
        assert_eq!(self.receiver.control_waits(), control > 0);
        assert_eq!(self.receiver.data_waits(), data > 0);
        assert_eq!(self.receiver.has_published(), control + data > 0);
        assert_eq!(self.receiver.control_len(), control);
        assert_eq!(self.receiver.data_len(), data);
        assert_eq!(self.ring.len(), control + data);
        assert!(
            !self.receiver.stalled(),
            "nobody is between claim and publish"
        );
    }

    /// The sleeper's half of the protocol: announce, look again, stay awake if there is work.
    fn sleep(&mut self) {
        self.receiver.doorbell().announce();
        self.asleep = true;
        if self.receiver.has_published() {
            self.receiver.doorbell().disarm();
            self.asleep = false;
        }
    }
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| check(data));

/// Runs the check over the given files: a finding under a debugger, without libFuzzer.
#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        check(&std::fs::read(path)?);
    }
    Ok(())
}

#[cfg(all(test, not(fuzzing)))]
mod tests {
    #[test]
    fn the_rings_agree_with_their_model_on_generated_inputs() {
        crate::inputs::each(3_000, 1_000, super::check);
    }
}
