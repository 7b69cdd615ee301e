//! The by-value ring: beside a deque, across threads, at its ends.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use proptest::prelude::*;

use crate::spsc::starting_at;
use crate::{Full, spsc};

#[test]
fn values_come_out_in_the_order_they_went_in() {
    let (mut sender, mut receiver) = spsc(4);
    for value in 0..4 {
        sender.push(value).unwrap();
    }
    assert_eq!(sender.push(4), Err(Full(4)));
    assert_eq!(
        (receiver.len(), sender.free(), receiver.peek()),
        (4, 0, Some(&0))
    );
    let popped: Vec<i32> = std::iter::from_fn(|| receiver.pop()).collect();
    assert_eq!(popped, [0, 1, 2, 3]);
    assert_eq!(
        (receiver.is_empty(), receiver.peek(), sender.free()),
        (true, None, 4)
    );
}

#[test]
fn a_chunk_takes_from_the_iterator_only_what_fits() {
    let (mut sender, mut receiver) = starting_at(4, usize::MAX - 2);
    sender.push(0).unwrap();
    let mut values = 1..10;
    assert_eq!(sender.push_chunk(&mut values), 3);
    assert_eq!(values, 4..10);
    let mut popped = Vec::new();
    assert_eq!(receiver.pop_chunk(3, |value| popped.push(value)), 3);
    assert_eq!(receiver.pop_chunk(3, |value| popped.push(value)), 1);
    assert_eq!(receiver.pop_chunk(3, |value| popped.push(value)), 0);
    assert_eq!(popped, [0, 1, 2, 3]);
}

#[test]
fn a_long_chunk_frees_slots_while_it_is_being_handled() {
    let (mut sender, mut receiver) = spsc(64);
    assert_eq!(sender.push_chunk(&mut (0..64)), 64);
    let mut free_at = Vec::new();
    receiver.pop_chunk(64, |_| free_at.push(sender.free()));
    assert_eq!((free_at[0], free_at[16], free_at[63]), (0, 16, 48));
}

#[test]
fn a_chunk_that_panics_loses_only_what_it_was_given() {
    let (mut sender, mut receiver) = spsc(8);
    let token = Rc::new(());
    sender.push_chunk(&mut (0..4).map(|_| Rc::clone(&token)));
    let mut calls = 0;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        receiver.pop_chunk(4, |_| {
            calls += 1;
            assert!(calls < 2, "on purpose");
        })
    }));
    assert!(outcome.is_err());
    assert_eq!((receiver.len(), Rc::strong_count(&token)), (2, 3));
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        sender.push_chunk(&mut (0..4).map(|i| {
            assert!(i < 2, "on purpose");
            Rc::clone(&token)
        }))
    }));
    assert!(outcome.is_err());
    drop(sender);
    assert_eq!(receiver.len(), 4);
    drop(receiver);
    assert_eq!(Rc::strong_count(&token), 1);
}

#[test]
fn after_the_sender_is_gone_the_rest_is_drained() {
    let (mut sender, mut receiver) = spsc(2);
    sender.push(7).unwrap();
    assert!(!receiver.is_closed());
    drop(sender);
    assert!(receiver.is_closed());
    assert_eq!((receiver.pop(), receiver.pop()), (Some(7), None));
}

#[test]
fn after_the_receiver_is_gone_the_sender_knows() {
    let (mut sender, receiver) = spsc(1);
    drop(receiver);
    assert!(sender.is_closed());
    assert_eq!((sender.push(1), sender.push(2)), (Ok(()), Err(Full(2))));
}

#[test]
fn the_ends_may_go_to_other_threads_without_sync() {
    fn sendable<T: Send>(_: &T) {}
    let (sender, receiver) = spsc::<std::cell::Cell<u8>>(1);
    sendable(&sender);
    sendable(&receiver);
}

#[test]
fn two_threads_see_every_value_once_and_in_order() {
    const COUNT: usize = 200_000;
    let (mut sender, mut receiver) = starting_at(8, usize::MAX - 10);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut values = (0..COUNT).peekable();
            while values.peek().is_some() {
                if values.peek().is_some_and(|value| value % 3 == 0) {
                    let count = sender.free().min(5);
                    sender.push_chunk(&mut values.by_ref().take(count));
                } else if let Some(value) = values.next_if(|_| sender.free() > 0) {
                    sender.push(value).unwrap();
                }
                std::thread::yield_now();
            }
        });
        let mut expected = 0;
        while expected < COUNT {
            let closed = receiver.is_closed();
            let before = expected;
            receiver.pop_chunk(3, |value| {
                assert_eq!(value, expected);
                expected += 1;
            });
            assert!(
                expected > before || !closed,
                "the sender is gone, {expected} came"
            );
        }
    });
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Push,
    PushChunk(usize),
    Pop,
    PopChunk(usize),
    Peek,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::Push),
        2 => (0..12usize).prop_map(Op::PushChunk),
        3 => Just(Op::Pop),
        2 => (0..12usize).prop_map(Op::PopChunk),
        1 => Just(Op::Peek),
    ]
}

proptest! {
    #[test]
    fn a_ring_behaves_like_a_deque(
        exponent in 0..4u32,
        back in prop_oneof![Just(2usize), Just(10), 0..40usize],
        ops in proptest::collection::vec(op(), 1..200),
    ) {
        let capacity = 1usize << exponent;
        let token = Rc::new(());
        let (mut sender, mut receiver) = starting_at(capacity, usize::MAX - back);
        let mut model = VecDeque::new();
        let mut serial = 0u32..;
        let mut value = || (serial.next().unwrap(), Rc::clone(&token));
        for op in ops {
            match op {
                Op::Push => {
                    let item = value();
                    match sender.push(item.clone()) {
                        Ok(()) => model.push_back(item),
                        Err(Full(back)) => {
                            prop_assert_eq!(back.0, item.0);
                            prop_assert_eq!(model.len(), capacity);
                        }
                    }
                }
                Op::PushChunk(count) => {
                    let items: Vec<_> = (0..count).map(|_| value()).collect();
                    let went = sender.push_chunk(&mut items.iter().cloned());
                    prop_assert_eq!(went, count.min(capacity - model.len()));
                    model.extend(items.into_iter().take(went));
                }
                Op::Pop => prop_assert_eq!(receiver.pop(), model.pop_front()),
                Op::PopChunk(max) => {
                    let mut popped = Vec::new();
                    let count = receiver.pop_chunk(max, |item| popped.push(item));
                    prop_assert_eq!(count, max.min(model.len()));
                    let expected: Vec<_> = model.drain(..count).collect();
                    prop_assert_eq!(popped, expected);
                }
                Op::Peek => prop_assert_eq!(receiver.peek(), model.front()),
            }
            prop_assert_eq!(receiver.len(), model.len());
            prop_assert_eq!(receiver.is_empty(), model.is_empty());
            prop_assert_eq!(sender.free(), capacity - model.len());
        }
        drop(model);
        drop(sender);
        drop(receiver);
        prop_assert_eq!(Rc::strong_count(&token), 1);
    }
}
