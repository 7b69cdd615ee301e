//! Push and pop, alone and by 16.

use std::hint::black_box;

use gungraun::prelude::*;
use pelton_rings::{
    PriorityReceiver, PriorityRing, Receiver, Sender, SlotReceiver, SlotSender, priority_ring,
    slots, spsc,
};

use crate::baseline::limit;

type Spsc = (Sender<u64>, Receiver<u64>);
type Slots = (SlotSender<Vec<u8>>, SlotReceiver<Vec<u8>>);
type Priority = (PriorityRing<u64, u64>, PriorityReceiver<u64, u64>);

/// Slots that have all held a body once, so that none allocates any more.
fn warm_slots() -> Slots {
    let (mut sender, mut receiver) = slots::<Vec<u8>>(64);
    for _ in 0..64 {
        assert!(sender.push_with(|slot| slot.resize(64, 1)).is_ok());
        assert!(receiver.pop_with(|_| ()).is_some());
    }
    (sender, receiver)
}

#[library_benchmark(config = limit("spsc_push_pop_1000"))]
#[bench::run(spsc(1_024))]
fn spsc_push_pop_1000((mut sender, mut receiver): Spsc) -> Spsc {
    for i in 0..1_000 {
        assert!(sender.push(black_box(i)).is_ok());
        black_box(receiver.pop());
    }
    (sender, receiver)
}

#[library_benchmark(config = limit("spsc_by_16_1000"))]
#[bench::run(spsc(1_024))]
fn spsc_by_16_1000((mut sender, mut receiver): Spsc) -> Spsc {
    for first in (0..1_000).step_by(16) {
        sender.push_chunk(&mut (first..black_box(first + 16).min(1_000)));
        receiver.pop_chunk(16, |value| {
            black_box(value);
        });
    }
    (sender, receiver)
}

#[library_benchmark(config = limit("slots_push_pop_64b_1000"))]
#[bench::run(warm_slots())]
fn slots_push_pop_64b_1000((mut sender, mut receiver): Slots) -> Slots {
    for _ in 0..1_000 {
        let pushed = sender.push_with(|slot| {
            slot.clear();
            slot.extend_from_slice(black_box(&[7; 64]));
        });
        assert!(pushed.is_ok());
        black_box(receiver.pop_with(|slot| slot.len()));
    }
    (sender, receiver)
}

#[library_benchmark(config = limit("priority_push_pop_1000"))]
#[bench::run(priority_ring(256, 1_024))]
fn priority_push_pop_1000((ring, mut receiver): Priority) -> Priority {
    for i in 0..1_000 {
        assert!(ring.push_data(black_box(i)).is_ok());
        black_box(receiver.pop());
    }
    (ring, receiver)
}

#[library_benchmark(config = limit("priority_by_16_1000"))]
#[bench::run(priority_ring(256, 1_024))]
fn priority_by_16_1000((ring, mut receiver): Priority) -> Priority {
    for _ in 0..1_000 / 16 {
        let mut batch = black_box([1_u64; 16]).into_iter();
        let _ = ring.push_data_batch(&mut batch);
        while let Some(item) = receiver.pop() {
            black_box(item);
        }
    }
    (ring, receiver)
}

library_benchmark_group!(
    name = ring_group,
    benchmarks = [
        spsc_push_pop_1000,
        spsc_by_16_1000,
        slots_push_pop_64b_1000,
        priority_push_pop_1000,
        priority_by_16_1000
    ]
);
