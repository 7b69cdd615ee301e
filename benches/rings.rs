//! The rings: what one message costs on one thread, and what two threads reach together.
//!
//! Shapes: `1p1c` is one pushing and one popping thread, `alone` publishes every message, `by_16`
//! sixteen at a time. One-thread figures leave out shared cache lines, two-thread ones need two free
//! cores to mean anything.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

use std::{
    hint::{black_box, spin_loop},
    thread,
    time::{Duration, Instant},
};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use pelton_rings::{Wake, priority_ring, slots, spsc};

/// Places in every ring; the delivery ring of a consumer has about as many.
const CAPACITY: usize = 1_024;

/// Values published together.
const BATCH: usize = 16;

/// Body of a message in a slot ring.
const BODY: [u8; 64] = [7; 64];

fn one_thread(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one_thread");
    group.throughput(Throughput::Elements(1));

    let (mut sender, mut receiver) = spsc::<u64>(CAPACITY);
    assert!(sender.push(1).is_ok() && sender.push(2).is_ok());
    assert_eq!(
        (receiver.pop(), receiver.pop(), receiver.pop()),
        (Some(1), Some(2), None)
    );
    group.bench_function("spsc_push_pop_8b_alone", |bencher| {
        bencher.iter(|| {
            assert!(sender.push(black_box(3)).is_ok());
            receiver.pop()
        });
    });

    let (mut sender, mut receiver) = slots::<Vec<u8>>(CAPACITY);
    let write = |slot: &mut Vec<u8>| {
        slot.clear();
        slot.extend_from_slice(black_box(&BODY));
    };
    assert!(sender.push_with(write).is_ok());
    assert_eq!(receiver.pop_with(|slot| *slot == BODY), Some(true));
    group.bench_function("slots_push_pop_64b", |bencher| {
        bencher.iter(|| {
            assert!(sender.push_with(write).is_ok());
            receiver.pop_with(|slot| black_box(slot).len())
        });
    });

    let (ring, mut receiver) = priority_ring::<u64, u64>(256, CAPACITY);
    assert!(matches!(ring.push_data(1), Ok(Wake::NotNeeded)));
    assert!(matches!(ring.push_control(2), Ok(Wake::NotNeeded)));
    assert_eq!(
        (receiver.pop_control(), receiver.pop_data()),
        (Some(2), Some(1))
    );
    group.bench_function("priority_push_pop_8b_alone", |bencher| {
        bencher.iter(|| {
            assert!(ring.push_data(black_box(4)).is_ok());
            receiver.pop()
        });
    });
}

fn one_thread_by_16(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("one_thread_by_16");
    group.throughput(Throughput::Elements(BATCH as u64));

    let (mut sender, mut receiver) = spsc::<u64>(CAPACITY);
    let mut sum = 0;
    assert_eq!(sender.push_chunk(&mut (1..=16)), BATCH);
    assert_eq!(
        (receiver.pop_chunk(BATCH, |value| sum += value), sum),
        (BATCH, 136)
    );
    group.bench_function("spsc_push_pop_8b", |bencher| {
        bencher.iter(|| {
            assert_eq!(sender.push_chunk(&mut black_box(1..=16)), BATCH);
            receiver.pop_chunk(BATCH, |value| sum = sum.wrapping_add(value))
        });
    });

    let (ring, mut receiver) = priority_ring::<u64, u64>(256, CAPACITY);
    let mut batch = [5_u64; BATCH].into_iter();
    assert_eq!(ring.push_data_batch(&mut batch).0, BATCH);
    assert!((0..BATCH).all(|_| receiver.pop_data() == Some(5)) && receiver.pop().is_none());
    group.bench_function("priority_push_pop_8b", |bencher| {
        bencher.iter(|| {
            let mut batch = black_box([5_u64; BATCH]).into_iter();
            assert_eq!(ring.push_data_batch(&mut batch).0, BATCH);
            for _ in 0..BATCH {
                black_box(receiver.pop());
            }
        });
    });
}

fn two_threads(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("two_threads");
    group
        .sample_size(20)
        .measurement_time(Duration::from_secs(3));

    spsc_1p1c(1_000_000, 1);
    spsc_1p1c(1_000_000, BATCH as u64);
    group.throughput(Throughput::Elements(1));
    group.bench_function("spsc_1p1c_8b_alone", |b| b.iter_custom(|n| spsc_1p1c(n, 1)));
    group.bench_function("spsc_1p1c_8b_by_16", |b| {
        b.iter_custom(|n| spsc_1p1c(n, BATCH as u64));
    });

    round_trips(10_000);
    group.bench_function("spsc_round_trip", |b| b.iter_custom(round_trips));
}

/// Sends 0 to `count` from one thread to another, `chunk` at a time, and checks each on arrival.
fn spsc_1p1c(count: u64, chunk: u64) -> Duration {
    let (mut sender, mut receiver) = spsc::<u64>(CAPACITY);
    thread::scope(|scope| {
        let consumer = scope.spawn(move || {
            let mut expected = 0;
            while expected < count {
                let popped = receiver.pop_chunk(CAPACITY, |value| {
                    assert_eq!(value, expected, "in order and none lost");
                    expected += 1;
                });
                if popped == 0 {
                    spin_loop();
                }
            }
            assert_eq!(receiver.pop(), None);
        });
        let began = Instant::now();
        let mut next = 0;
        while next < count {
            let end = count.min(next + chunk);
            let pushed = sender.push_chunk(&mut (next..end)) as u64;
            next += pushed;
            if pushed == 0 {
                spin_loop();
            }
        }
        consumer.join().expect("the consumer checks and returns");
        began.elapsed()
    })
}

/// `count` times there and back, one value in flight.
fn round_trips(count: u64) -> Duration {
    let (mut there, mut ping) = spsc::<u64>(CAPACITY);
    let (mut back, mut pong) = spsc::<u64>(CAPACITY);
    let wait = move |receiver: &mut pelton_rings::Receiver<u64>| loop {
        match receiver.pop() {
            Some(value) => break value,
            None => spin_loop(),
        }
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            for _ in 0..count {
                let value = wait(&mut ping);
                assert!(back.push(value + 1).is_ok());
            }
        });
        let began = Instant::now();
        for i in 0..count {
            assert!(there.push(i).is_ok());
            assert_eq!(wait(&mut pong), i + 1);
        }
        began.elapsed()
    })
}

criterion_group!(benches, one_thread, one_thread_by_16, two_threads);
criterion_main!(benches);
