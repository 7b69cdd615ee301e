//! The core of a shard in memory: publish, plan and hand over, ack, without threads or rings.
//!
//! Entries of one message and 64 bytes; one Shared subscription.
#![expect(clippy::disallowed_methods, reason = "a bench reads the clock")]

mod world;

use std::time::{Duration, Instant};

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};

use crate::world::World;

/// A part of a turn, and its name.
type Step = (&'static str, fn(&mut World));

/// Entries that one turn finds when the shard is busy.
const TURN: u64 = 100;

fn whole_way(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("publish_dispatch_ack");
    for consumers in [1, 100] {
        let mut world = check(consumers);
        group.throughput(Throughput::Elements(1));
        group.bench_function(format!("by_1_to_{consumers}"), |bencher| {
            bencher.iter(|| turn(&mut world, 1));
        });
        group.throughput(Throughput::Elements(TURN));
        group.bench_function(format!("by_100_to_{consumers}"), |bencher| {
            bencher.iter(|| turn(&mut world, TURN));
        });
    }
}

fn parts(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("parts_of_100");
    group.throughput(Throughput::Elements(TURN));
    for name in ["publish", "dispatch", "ack", "trim"] {
        part(&mut group, name);
    }
}

/// Publishes, hands over and acks `entries` in two turns.
fn turn(world: &mut World, entries: u64) {
    world.publish(entries);
    world.tick();
    world.ack_all();
    world.tick();
}

/// Everything published comes once, and nothing comes again after its ack.
fn check(consumers: u32) -> World {
    let mut world = World::warm(consumers);
    let first = world.published();
    world.publish(TURN);
    assert_eq!(world.tick(), 100);
    assert!(world.holds_all_from(first));
    world.ack_all();
    assert_eq!(world.tick(), 0);
    world
}

/// Times the step of that name in a turn of 100, and none of the others.
fn part(group: &mut BenchmarkGroup<'_, WallTime>, name: &str) {
    let steps: [Step; 4] = [
        ("publish", |world| world.publish(TURN)),
        ("dispatch", |world| assert_eq!(world.tick(), 100)),
        ("ack", World::ack_all),
        ("trim", |world| assert_eq!(world.tick(), 0)),
    ];
    let mut world = check(1);
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|turns| {
            let mut spent = Duration::ZERO;
            for (step, run) in (0..turns).flat_map(|_| steps) {
                let began = Instant::now();
                run(&mut world);
                spent += if step == name {
                    began.elapsed()
                } else {
                    Duration::ZERO
                };
            }
            spent
        });
    });
}

criterion_group!(benches, whole_way, parts);
criterion_main!(benches);
