//! What exact rate limits cost: a pass of a dispatcher from its opening to its settlement, entries
//! of one message and 64 bytes, with no limit, at one scope (messages) and at three (both).

use std::hint::black_box;

use gungraun::prelude::*;
use pelton_flow::{
    Budget, Bytes, Entries, Limiter, Limits, Messages, Rate, Scope, Terms, Throttle,
};

use crate::baseline::limit;

#[derive(Debug, Default)]
struct Scopes {
    broker: Scope,
    topic: Scope,
    subscription: Scope,
    throttle: Throttle,
    now_ns: u64,
}

fn off() -> Scopes {
    Scopes::default()
}

fn one() -> Scopes {
    let mut scopes = off();
    let messages = Rate::per_second(1_000_000);
    scopes.topic.set(
        0,
        Limits {
            messages,
            bytes: None,
        },
    );
    scopes
}

fn three() -> Scopes {
    let mut scopes = off();
    let (messages, bytes) = (Rate::per_second(1_000_000), Rate::per_second(1 << 30));
    for scope in [
        &mut scopes.broker,
        &mut scopes.topic,
        &mut scopes.subscription,
    ] {
        scope.set(0, Limits { messages, bytes });
    }
    scopes
}

/// One pass of so many entries, handed over at once.
fn pass(scopes: &mut Scopes, entries: u64) {
    scopes.now_ns += 100_000;
    let mut limiter = Limiter {
        dispatcher: 0,
        scopes: [
            &mut scopes.broker,
            &mut scopes.topic,
            &mut scopes.subscription,
        ],
        throttle: &mut scopes.throttle,
    };
    limiter.claim();
    let mut allowance = limiter.open(scopes.now_ns, Terms::default());
    let mut budget = Budget::new(1 << 20, Entries(entries), Bytes(5 << 20)).with_tokens(&allowance);
    while budget
        .admit(black_box(Messages(1)), black_box(Bytes(64)))
        .is_ok()
    {}
    allowance.spend(Entries(entries), Messages(entries), Bytes(64 * entries));
    let closed = limiter.close(scopes.now_ns, &allowance, None);
    let (messages, bytes) = (Messages(entries), Bytes(64 * entries));
    limiter.settle(
        scopes.now_ns,
        closed.reservation,
        Entries(entries),
        messages,
        bytes,
    );
    assert!(limiter.wakes().next().is_none());
}

fn by_1(mut scopes: Scopes) -> Scopes {
    (0..100).for_each(|_| pass(&mut scopes, 1));
    scopes
}

fn by_100(mut scopes: Scopes) -> Scopes {
    pass(&mut scopes, 100);
    scopes
}

#[library_benchmark(config = limit("limits_off_1_x100"))]
#[bench::run(off())]
fn limits_off_1_x100(scopes: Scopes) -> Scopes {
    by_1(scopes)
}

#[library_benchmark(config = limit("limits_1_scope_1_x100"))]
#[bench::run(one())]
fn limits_1_scope_1_x100(scopes: Scopes) -> Scopes {
    by_1(scopes)
}

#[library_benchmark(config = limit("limits_3_scopes_1_x100"))]
#[bench::run(three())]
fn limits_3_scopes_1_x100(scopes: Scopes) -> Scopes {
    by_1(scopes)
}

#[library_benchmark(config = limit("limits_off_100"))]
#[bench::run(off())]
fn limits_off_100(scopes: Scopes) -> Scopes {
    by_100(scopes)
}

#[library_benchmark(config = limit("limits_1_scope_100"))]
#[bench::run(one())]
fn limits_1_scope_100(scopes: Scopes) -> Scopes {
    by_100(scopes)
}

#[library_benchmark(config = limit("limits_3_scopes_100"))]
#[bench::run(three())]
fn limits_3_scopes_100(scopes: Scopes) -> Scopes {
    by_100(scopes)
}

library_benchmark_group!(
    name = limit_group,
    benchmarks = [
        limits_off_1_x100,
        limits_1_scope_1_x100,
        limits_3_scopes_1_x100,
        limits_off_100,
        limits_1_scope_100,
        limits_3_scopes_100
    ]
);
