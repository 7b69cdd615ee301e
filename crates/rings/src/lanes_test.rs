//! The tests of `spec/priority_and_balance.md` A12 that concern the inbox, named by their number,
//! and the inbox against a pair of deques.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use crate::{Credit, Full, Item, Lane, PriorityReceiver, PriorityRing, Wake, priority_ring};

const COUNT: u64 = if cfg!(debug_assertions) {
    1_000_000
} else {
    10_000_000
};

fn push_all<C, D>(
    ring: &PriorityRing<C, D>,
    control: impl IntoIterator<Item = C>,
    data: impl IntoIterator<Item = D>,
) {
    assert!(
        control
            .into_iter()
            .all(|item| ring.push_control(item).is_ok())
    );
    assert!(data.into_iter().all(|item| ring.push_data(item).is_ok()));
}

/// The lanes of the next `count` items, as letters.
fn lanes<C, D>(receiver: &mut PriorityReceiver<C, D>, count: usize) -> String {
    let letter = |item| match item {
        Item::Control(_) => 'C',
        Item::Data(_) => 'D',
    };
    (0..count)
        .map_while(|_| receiver.pop())
        .map(letter)
        .collect()
}

#[test]
fn t1_control_comes_before_data_pushed_earlier() {
    let (ring, mut receiver) = priority_ring(4, 4);
    assert!(ring.push_data(2).is_ok() && ring.push_control(20).is_ok());
    assert!(ring.push_data(4).is_ok() && ring.push_control(15).is_ok());
    let expected = [
        Item::Control(20),
        Item::Control(15),
        Item::Data(2),
        Item::Data(4),
    ];
    for (popped, item) in expected.into_iter().enumerate() {
        assert_eq!(ring.len(), 4 - popped);
        assert_eq!(receiver.pop(), Some(item));
    }
    assert_eq!(
        (receiver.pop(), ring.len(), ring.is_empty()),
        (None, 0, true)
    );
}

/// Eight sources push `COUNT` items in all, a tenth of them control; the receiver closes the inbox
/// after `close_after` items. Checks order per (source, lane), and returns pushed and dispatched.
fn eight_sources(close_after: u64) -> (u64, u64) {
    const SOURCES: u64 = 8;
    let (ring, mut receiver) = priority_ring::<(u64, u64), (u64, u64)>(256, 1_024);
    let pushed = AtomicU64::new(0);
    let mut dispatched = 0;
    std::thread::scope(|scope| {
        for source in 0..SOURCES {
            let (ring, pushed) = (ring.clone(), &pushed);
            scope.spawn(move || {
                let mut next = [0, 0];
                for i in 0..COUNT / SOURCES {
                    let lane = usize::from(i % 10 != 0);
                    let item = (source, next[lane]);
                    let push = || match lane {
                        0 => ring.push_control(item).is_ok(),
                        _ => ring.push_data(item).is_ok(),
                    };
                    while !push() {
                        if ring.is_closed() {
                            pushed.fetch_add(next[0] + next[1], Ordering::Relaxed);
                            return;
                        }
                        std::thread::yield_now();
                    }
                    next[lane] += 1;
                }
                pushed.fetch_add(next[0] + next[1], Ordering::Relaxed);
            });
        }
        let mut expected = [[0; SOURCES as usize]; 2];
        while dispatched < COUNT && !(receiver.is_closed() && receiver.is_drained()) {
            let (lane, (source, number)) = match receiver.pop() {
                Some(Item::Control(item)) => (0, item),
                Some(Item::Data(item)) => (1, item),
                None => {
                    std::thread::yield_now();
                    continue;
                }
            };
            let expected = &mut expected[lane][source as usize];
            assert_eq!(number, *expected, "lane {lane}, source {source}");
            *expected += 1;
            dispatched += 1;
            if dispatched == close_after {
                receiver.close();
            }
        }
    });
    assert_eq!(receiver.pop(), None);
    (pushed.into_inner(), dispatched)
}

#[test]
fn t2_t3_eight_sources_lose_double_and_invert_nothing() {
    assert_eq!(eight_sources(u64::MAX), (COUNT, COUNT));
}

#[test]
fn t2_what_was_pushed_before_a_close_is_dispatched_and_all_else_returned() {
    let (pushed, dispatched) = eight_sources(COUNT / 3);
    assert_eq!(pushed, dispatched);
    assert!((COUNT / 3..COUNT).contains(&dispatched), "{dispatched}");
}

#[test]
fn t4_control_is_next_and_33_control_let_one_data_item_through() {
    for (controls, expected) in [(1, "C".into()), (32, "C".repeat(32))] {
        let (ring, mut receiver) = priority_ring(64, 16_384);
        push_all(&ring, [], 0..10_000);
        push_all(&ring, 0..controls, []);
        assert_eq!(lanes(&mut receiver, controls), expected);
    }
    let (ring, mut receiver) = priority_ring(64, 16_384);
    push_all(&ring, 0..33, 0..10_000);
    assert_eq!(lanes(&mut receiver, 34), "C".repeat(32) + "DC");
}

#[test]
fn t5_both_lanes_always_full() {
    let (ring, mut receiver) = priority_ring(4, 4);
    push_all(&ring, 0..4, 0..4);
    let mut seen = String::new();
    for _ in 0..3_600 {
        let lane = lanes(&mut receiver, 1);
        if lane == "C" {
            push_all(&ring, [0], []);
        } else {
            push_all(&ring, [], [0]);
        }
        seen += &lane;
    }
    let pattern = "C".repeat(32) + &("D".to_string() + &"C".repeat(8)).repeat(400);
    assert_eq!(seen, pattern[..3_600]);
    assert_eq!(seen.matches('D').count(), 397);
}

#[test]
fn t7_control_alone_spends_no_credit() {
    let (ring, mut receiver) = priority_ring(64, 64);
    for _ in 0..1_000_000 {
        assert_eq!(ring.push_control(0), Ok(Wake::NotNeeded));
        assert!(matches!(receiver.pop(), Some(Item::Control(0))));
    }
    push_all(&ring, 0..40, 0..4);
    assert_eq!(lanes(&mut receiver, 33), "C".repeat(32) + "D");
}

#[test]
fn t11_a_shard_that_never_idles_is_never_woken_and_an_idle_one_once() {
    let (ring, mut receiver) = priority_ring::<u64, u64>(16, 16);
    for i in 0..1_000_000 {
        assert_eq!(ring.push_data(i), Ok(Wake::NotNeeded));
        assert_eq!(receiver.pop_data(), Some(i));
    }
    receiver.doorbell().announce();
    assert!(!receiver.has_published());
    let wakes = [ring.push_data(1), ring.push_control(1), ring.push_data(2)];
    assert_eq!(
        wakes,
        [Ok(Wake::Needed), Ok(Wake::NotNeeded), Ok(Wake::NotNeeded)]
    );
    assert!(receiver.has_published());
    receiver.doorbell().disarm();
}

#[test]
fn t12_a_full_control_lane_gives_the_item_back_and_takes_it_after_one_dispatch() {
    let (ring, mut receiver) = priority_ring::<u32, u32>(256, 4);
    push_all(&ring, 0..256, []);
    assert_eq!(ring.push_control(256), Err(Full(256)));
    assert_eq!(receiver.pop(), Some(Item::Control(0)));
    assert_eq!(ring.push_control(256), Ok(Wake::NotNeeded));
    // What the source kept goes in its order, before anything newer.
    let mut kept: VecDeque<u32> = (257..260).collect();
    while let Some(&oldest) = kept.front() {
        match ring.push_control(oldest) {
            Ok(_) => drop(kept.pop_front()),
            Err(Full(item)) => {
                assert_eq!(item, oldest);
                assert!(receiver.pop().is_some());
            }
        }
    }
    let rest: Vec<_> = std::iter::from_fn(|| receiver.pop_control()).collect();
    assert_eq!(rest, (4..260).collect::<Vec<_>>());
}

#[test]
fn t12_one_lane_full_does_not_touch_the_other() {
    let (ring, _receiver) = priority_ring(2, 2);
    push_all(&ring, [], 0..2);
    assert!(ring.push_data(2).is_err());
    push_all(&ring, 0..2, []);
    assert!(ring.push_control(2).is_err());
}

#[test]
fn t16_control_that_arrives_during_a_batch_is_dispatched_next() {
    let (ring, mut receiver) = priority_ring(4, 64);
    receiver.doorbell().announce();
    assert_eq!(ring.push_data_batch(&mut (0..16)), (16, Wake::Needed));
    receiver.doorbell().disarm();
    assert_eq!(lanes(&mut receiver, 3), "DDD");
    push_all(&ring, [0], []);
    assert_eq!(lanes(&mut receiver, 100), "C".to_string() + &"D".repeat(13));
}

#[test]
fn a_list_keeps_in_order_what_does_not_go() {
    let (ring, mut receiver) = priority_ring::<u32, u32>(1, 32);
    let mut list: VecDeque<u32> = (0..50).collect();
    assert_eq!(ring.push_data_list(&mut list), (32, Wake::NotNeeded));
    assert!(list.iter().copied().eq(32..50));
    assert!((0..5).all(|i| receiver.pop_data() == Some(i)));
    assert_eq!(ring.push_data_list(&mut list), (5, Wake::NotNeeded));
    assert!((5..37).all(|i| receiver.pop_data() == Some(i)));
    ring.close();
    assert_eq!(ring.push_data_list(&mut list), (0, Wake::NotNeeded));
    assert!(list.iter().copied().eq(37..50));
}

/// An iterator that says it has 5 and then has 2, or panics.
struct Liar(u32, bool);

impl Iterator for Liar {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        self.0 += 1;
        assert!(self.0 < 3 || !self.1, "on purpose");
        (self.0 < 3).then_some(self.0)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (5, Some(5))
    }
}

impl ExactSizeIterator for Liar {}

#[test]
fn a_batch_that_ends_early_or_panics_does_not_stop_the_lane() {
    for panics in [false, true] {
        let (ring, mut receiver) = priority_ring::<u32, u32>(1, 8);
        let push = AssertUnwindSafe(|| ring.push_data_batch(&mut Liar(0, panics)).0);
        assert_eq!(catch_unwind(push).ok(), (!panics).then_some(2));
        push_all(&ring, [], [7]);
        let popped: Vec<u32> = std::iter::from_fn(|| receiver.pop_data()).collect();
        assert_eq!(popped, [1, 2, 7]);
        assert!(receiver.is_drained());
        push_all(&ring, [], 0..8);
    }
}

#[test]
fn a_closed_inbox_refuses_pushes_and_is_drained() {
    let (ring, mut receiver) = priority_ring::<u32, u32>(4, 4);
    push_all(&ring, [1], [2]);
    assert!(!ring.is_closed());
    ring.clone().close();
    assert!(ring.is_closed() && receiver.is_closed() && !receiver.is_drained());
    assert_eq!(
        (ring.push_control(3), ring.push_data(3)),
        (Err(Full(3)), Err(Full(3)))
    );
    assert_eq!(lanes(&mut receiver, 9), "CD");
    assert!(receiver.is_drained());

    let (ring, receiver) = priority_ring::<u32, u32>(4, 4);
    drop(receiver);
    assert!(ring.is_closed() && ring.push_data(1).is_err());
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Control,
    Data,
    Batch(u32),
    Pop,
    PopControl,
    PopData,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::Control),
        3 => Just(Op::Data),
        1 => (0..40u32).prop_map(Op::Batch),
        8 => Just(Op::Pop),
        1 => Just(Op::PopControl),
        1 => Just(Op::PopData),
    ]
}

proptest! {
    #[test]
    fn an_inbox_behaves_like_two_deques_and_a_credit(
        exponents in (0..4u32, 0..6u32),
        back in prop_oneof![Just(2usize), Just(10), 0..40usize],
        ops in proptest::collection::vec(op(), 1..400),
    ) {
        let capacities = (1usize << exponents.0, 1usize << exponents.1);
        let (ring, mut receiver) =
            crate::priority::starting_at(capacities.0, capacities.1, usize::MAX - back);
        let (mut control, mut data) = (VecDeque::new(), VecDeque::new());
        let mut credit = Credit::new();
        for (serial, op) in (0u32..).step_by(100).zip(ops) {
            match op {
                Op::Control => {
                    let fits = control.len() < capacities.0;
                    prop_assert_eq!(ring.push_control(serial).is_ok(), fits);
                    control.extend(fits.then_some(serial));
                }
                Op::Data => {
                    let fits = data.len() < capacities.1;
                    prop_assert_eq!(ring.push_data(serial).is_ok(), fits);
                    data.extend(fits.then_some(serial));
                }
                Op::Batch(count) => {
                    let went = (count as usize).min(capacities.1 - data.len());
                    let mut batch = serial..serial + count;
                    prop_assert_eq!(ring.push_data_batch(&mut batch), (went, Wake::NotNeeded));
                    prop_assert_eq!(batch.start, serial + went as u32);
                    data.extend(serial..batch.start);
                }
                Op::Pop => {
                    let expected = match credit.choose(!control.is_empty(), !data.is_empty()) {
                        Some(Lane::Control) => control.pop_front().map(Item::Control),
                        Some(Lane::Data) => data.pop_front().map(Item::Data),
                        None => None,
                    };
                    prop_assert_eq!(receiver.pop(), expected);
                    prop_assert_eq!(receiver.credit(), &credit);
                }
                Op::PopControl => prop_assert_eq!(receiver.pop_control(), control.pop_front()),
                Op::PopData => prop_assert_eq!(receiver.pop_data(), data.pop_front()),
            }
            prop_assert_eq!((ring.control_len(), ring.data_len()), (control.len(), data.len()));
            prop_assert_eq!(receiver.control_waits(), !control.is_empty());
            prop_assert_eq!(receiver.data_waits(), !data.is_empty());
            prop_assert_eq!(receiver.is_drained(), ring.is_empty());
            prop_assert!(!receiver.stalled());
        }
    }
}
