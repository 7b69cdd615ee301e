//! The core of a shard in memory: entries of one message and 64 bytes, one consumer.

use gungraun::prelude::*;

use crate::{baseline::limit, world::World};

fn published() -> World {
    let mut world = World::warm(1);
    world.publish(100);
    world
}

fn delivered() -> World {
    let mut world = published();
    assert_eq!(world.tick(), 100);
    assert!(world.holds_all_from(world.published() - 100));
    world
}

#[library_benchmark(config = limit("publish_100"))]
#[bench::run(World::warm(1))]
fn publish_100(mut world: World) -> World {
    world.publish(100);
    world
}

// One entry a turn, so that nothing is shared between entries: plan, hand over, ack, trim.
#[library_benchmark(config = limit("publish_dispatch_ack_1_x100"))]
#[bench::run(World::warm(1))]
fn publish_dispatch_ack_1_x100(mut world: World) -> World {
    for _ in 0..100 {
        world.publish(1);
        assert_eq!(world.tick(), 1);
        world.ack_all();
    }
    world
}

#[library_benchmark(config = limit("dispatch_100"))]
#[bench::run(published())]
fn dispatch_100(mut world: World) -> World {
    assert_eq!(world.tick(), 100);
    world
}

// With the turn that trims what was acked.
#[library_benchmark(config = limit("ack_100"))]
#[bench::run(delivered())]
fn ack_100(mut world: World) -> World {
    world.ack_all();
    assert_eq!(world.tick(), 0);
    world
}

library_benchmark_group!(
    name = dispatch_group,
    benchmarks = [
        publish_100,
        publish_dispatch_ack_1_x100,
        dispatch_100,
        ack_100
    ]
);
