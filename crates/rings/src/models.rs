//! loom models of the real rings: order, exclusion, close, drop (`spec/runtime.md` 10.1). Sleep and
//! wake are in `wake_models.rs`.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p pelton-rings --lib`.

use std::sync::Arc as StdArc;

use loom::thread;

use crate::{
    Full, Item, PriorityReceiver, PriorityRing, SlotReceiver, Wake, priority, slots, spsc,
};

/// Just before the integer wraps, so that every model crosses it.
pub(crate) const START: usize = usize::MAX;

/// Checks `model` in every interleaving with at most `preemptions` forced switches.
pub(crate) fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

#[test]
fn spsc_of_two_passes_values_in_order() {
    check(3, || {
        let (mut sender, mut receiver) = spsc::starting_at(2, START);
        let pusher = thread::spawn(move || {
            let mut refused = 0;
            for value in 0..4 {
                refused += usize::from(sender.push(Box::new(value - refused)).is_err());
            }
            4 - refused
        });
        let mut popped = 0;
        for _ in 0..2 {
            if let Some(value) = receiver.peek() {
                assert_eq!(**value, popped);
            }
            if let Some(value) = receiver.pop() {
                assert_eq!(*value, popped);
                popped += 1;
            }
        }
        let pushed = pusher.join().unwrap();
        assert_eq!(receiver.len(), pushed - popped);
        while let Some(value) = receiver.pop() {
            assert_eq!(*value, popped);
            popped += 1;
        }
        assert_eq!(popped, pushed);
    });
}

#[test]
fn spsc_of_one_passes_values_in_order() {
    check(3, || {
        let (mut sender, mut receiver) = spsc::starting_at(1, START);
        let pusher = thread::spawn(move || {
            let first = sender.push(1).is_ok();
            assert!(first);
            sender.push(2).is_ok()
        });
        let popped = [receiver.pop(), receiver.pop()];
        let second = pusher.join().unwrap();
        match popped {
            [Some(1), None] | [None, Some(1)] => assert_eq!(receiver.pop(), second.then_some(2)),
            [Some(1), Some(2)] => assert!(second),
            [None, None] => assert_eq!(receiver.pop(), Some(1)),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn spsc_chunks_are_published_once_and_in_order() {
    check(3, || {
        let (mut sender, mut receiver) = spsc::starting_at(2, START);
        let pusher = thread::spawn(move || {
            let mut values = 0..4;
            sender.push_chunk(&mut values) + sender.push_chunk(&mut values)
        });
        let mut popped = 0;
        let first = receiver.pop_chunk(3, |value| {
            assert_eq!(value, popped);
            popped += 1;
        });
        assert_ne!(first, 1, "two are shown at once, or none");
        let pushed = pusher.join().unwrap();
        receiver.pop_chunk(4, |value| {
            assert_eq!(value, popped);
            popped += 1;
        });
        assert_eq!(popped, pushed);
    });
}

#[test]
fn spsc_closed_by_the_sender_is_drained_first() {
    check(3, || {
        let (mut sender, mut receiver) = spsc::starting_at(2, START);
        let pusher = thread::spawn(move || sender.push(7).unwrap());
        let mut popped = 0;
        loop {
            let closed = receiver.is_closed();
            match receiver.pop() {
                Some(value) => popped += value,
                None if closed => break,
                None => thread::yield_now(),
            }
        }
        assert_eq!(popped, 7);
        pusher.join().unwrap();
    });
}

#[test]
fn spsc_ends_dropped_at_any_time_drop_each_value_once() {
    check(3, || {
        let token = StdArc::new(());
        let (mut sender, mut receiver) = spsc::starting_at(2, START);
        let values = [
            StdArc::clone(&token),
            StdArc::clone(&token),
            StdArc::clone(&token),
        ];
        let pusher = thread::spawn(move || {
            for value in values {
                let _refused = sender.push(value);
            }
        });
        drop(receiver.pop());
        drop(receiver);
        pusher.join().unwrap();
        assert_eq!(StdArc::strong_count(&token), 1);
    });
}

#[test]
fn slots_are_used_by_one_side_at_a_time() {
    check(3, || {
        let (mut sender, mut receiver) = slots::starting_at::<Vec<u32>>(2, START);
        let pusher = thread::spawn(move || {
            let mut pushed = 0;
            for _ in 0..4 {
                let push = sender.push_with(|slot| {
                    slot.clear();
                    slot.push(pushed);
                });
                pushed += u32::from(push.is_ok());
            }
            pushed
        });
        let mut expected = 0;
        let mut pop = |receiver: &mut SlotReceiver<Vec<u32>>| {
            let seen = receiver.pop_with(|slot| {
                assert_eq!(*slot, [expected]);
                slot.push(9);
                expected += 1;
            });
            seen.is_some()
        };
        for _ in 0..2 {
            pop(&mut receiver);
        }
        let pushed = pusher.join().unwrap();
        while pop(&mut receiver) {}
        assert_eq!(expected, pushed);
        assert!(receiver.is_closed());
    });
}

pub(crate) type Ring = PriorityRing<u32, u32>;

/// Pops what is there and checks that numbers of one source (tens) rise by one.
#[derive(Default)]
pub(crate) struct Popped {
    next: [u32; 3],
    pub(crate) count: u32,
}

impl Popped {
    fn take(&mut self, value: u32) {
        let next = &mut self.next[value as usize / 10];
        assert_eq!(value % 10, *next, "order of source {}", value / 10);
        *next += 1;
        self.count += 1;
    }

    pub(crate) fn drain(&mut self, receiver: &mut PriorityReceiver<u32, u32>) {
        while let Some(Item::Control(value) | Item::Data(value)) = receiver.pop() {
            self.take(value);
        }
    }
}

#[test]
fn mpsc_two_by_two_at_capacity_two() {
    check(3, || {
        let (ring, mut receiver) = priority::starting_at(1, 2, START);
        let pushers: Vec<_> = (0..2)
            .map(|source| {
                let ring: Ring = ring.clone();
                thread::spawn(move || {
                    let mut pushed = 0;
                    for _ in 0..2 {
                        match ring.push_data(source * 10 + pushed) {
                            Ok(wake) => {
                                assert_eq!(wake, Wake::NotNeeded);
                                pushed += 1;
                            }
                            Err(Full(value)) => assert_eq!(value, source * 10 + pushed),
                        }
                    }
                    pushed
                })
            })
            .collect();
        let mut popped = Popped::default();
        for _ in 0..2 {
            if let Some(value) = receiver.pop_data() {
                popped.take(value);
            }
        }
        let pushed: u32 = pushers
            .into_iter()
            .map(|pusher| pusher.join().unwrap())
            .sum();
        assert!(pushed >= 2 && ring.len() == (pushed - popped.count) as usize);
        popped.drain(&mut receiver);
        assert_eq!((popped.count, receiver.is_drained()), (pushed, true));
    });
}

#[test]
fn mpsc_of_one_passes_values_of_two_pushers() {
    check(3, || {
        let (ring, mut receiver) = priority::starting_at(1, 1, START);
        let other: Ring = ring.clone();
        let pusher = thread::spawn(move || u32::from(other.push_data(0).is_ok()));
        let mut popped = Popped::default();
        let mut pushed = 0;
        for _ in 0..2 {
            pushed += u32::from(ring.push_data(10 + pushed).is_ok());
            if let Some(value) = receiver.pop_data() {
                popped.take(value);
            }
        }
        pushed += pusher.join().unwrap();
        popped.drain(&mut receiver);
        assert_eq!(popped.count, pushed);
    });
}

#[test]
fn a_batch_and_a_single_push_share_a_lane() {
    check(3, || {
        let (ring, mut receiver) = priority::starting_at(1, 2, START);
        let [first, second]: [Ring; 2] = [ring.clone(), ring];
        let batch = thread::spawn(move || first.push_data_batch(&mut [0, 1, 2].into_iter()).0);
        let single = thread::spawn(move || usize::from(second.push_data(10).is_ok()));
        let mut popped = Popped::default();
        popped.drain(&mut receiver);
        let pushed = batch.join().unwrap() + single.join().unwrap();
        assert!(pushed >= 2);
        popped.drain(&mut receiver);
        assert_eq!(
            (popped.count as usize, receiver.is_drained()),
            (pushed, true)
        );
    });
}

#[test]
fn after_a_close_what_is_drained_is_all_there_will_be() {
    check(3, || {
        let (ring, mut receiver) = priority::starting_at(1, 2, START);
        let other: Ring = ring.clone();
        let pusher = thread::spawn(move || {
            let data = u32::from(other.push_data(0).is_ok());
            data + u32::from(data == 1 && other.push_data(1).is_ok())
        });
        let mut popped = Popped::default();
        popped.drain(&mut receiver);
        ring.close();
        assert!(ring.push_data(20).is_err());
        while !receiver.is_drained() {
            popped.drain(&mut receiver);
            thread::yield_now();
        }
        assert_eq!(popped.count, pusher.join().unwrap());
        assert_eq!(receiver.pop(), None);
    });
}

#[test]
fn an_inbox_dropped_at_any_time_drops_each_value_once() {
    check(3, || {
        let token = StdArc::new(());
        let (ring, mut receiver) = priority::starting_at(1, 2, START);
        let values = [StdArc::clone(&token), StdArc::clone(&token)];
        let pusher = thread::spawn(move || {
            for value in values {
                let _refused: Result<Wake, Full<StdArc<()>>> = ring.push_data(value);
            }
            let _closed = ring.push_control(());
        });
        drop(receiver.pop());
        drop(receiver);
        pusher.join().unwrap();
        assert_eq!(StdArc::strong_count(&token), 1);
    });
}
