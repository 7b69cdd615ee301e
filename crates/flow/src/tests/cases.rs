//! The public failures of the area "rate limits", and the exact examples of the dispatch
//! specification (T23 to T30), each with the instants at which entries leave.

use super::world::*;
use crate::*;

fn leaves_at(sub: &Sub) -> Vec<u64> {
    sub.delivered
        .iter()
        .map(|delivery| delivery.at_ns / MILLI)
        .collect()
}

/// T23. A whole token is asked for, so the second entry leaves at 9.01 s and not just after 9 s.
#[test]
fn rate_debt_big_batch_an_entry_larger_than_the_limit_keeps_its_debt() {
    for (burst, times) in [
        (None, [0, 9_010, 19_010, 29_010, 39_010, 49_010, 59_010]),
        (Some(1), [0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000]),
    ] {
        let mut world = World::default();
        let topic = world.topic(NO_LIMIT);
        let limits = Limits {
            messages: Rate::new(100, 1, burst),
            bytes: None,
        };
        for _ in 0..5 {
            world.sub(topic, limits, (1000, 100), 20);
        }
        world.run_until(60 * SECOND);
        for sub in &world.subs {
            assert_eq!(leaves_at(sub), times, "each has its own bucket");
            assert!(
                sub.passes <= 8,
                "woken at the computed instant, not by polling"
            );
            check_windows(by_messages(&sub.delivered), 100, burst.unwrap_or(100) + 999);
        }
        assert!(
            world.subs[0]
                .delivered
                .iter()
                .all(|d| d.at_ns.is_multiple_of(MILLI)),
            "exact"
        );
    }
}

/// T24: the last at 9.0 s, 90 events, 4095 messages withheld, 9.0 throttled seconds.
#[test]
fn a_throttled_backlog_is_counted_by_event_amount_and_time() {
    let mut world = World::default();
    let topic = world.topic(NO_LIMIT);
    world.sub(topic, message_limit(10), (1, 8), 100);
    world.subs[0].permits = 1000;
    world.run_until(20 * SECOND);
    let sub = &world.subs[0];
    assert_eq!(sub.delivered.last().unwrap().at_ns, 9 * SECOND);
    let counts = sub.throttle.counts(world.now_ns);
    assert_eq!(counts.events, [[0, 0], [0, 0], [90, 0]]);
    assert_eq!(counts.throttled_ns, [[0, 0], [0, 0], [9 * SECOND, 0]]);
    assert_eq!(
        (counts.withheld_messages, counts.withheld_bytes),
        (4095, 8 * 4095)
    );
}

#[test]
fn a_limit_that_is_switched_off_lets_all_that_wait_go_at_once() {
    let mut world = World::default();
    let topic = world.topic(message_limit(10));
    for _ in 0..4 {
        world.sub(topic, NO_LIMIT, (1, 8), 25);
    }
    world.run_until(3 * SECOND);
    assert_eq!(messages(&world.delivered()), 40);
    world.topics[topic].set(3 * SECOND, NO_LIMIT);
    let wake = world.topics[topic].wake();
    world.wake(wake);
    world.run_until(3 * SECOND);
    assert_eq!(messages(&world.delivered()), 100);
    assert_eq!(
        world.topics[topic].claimants(),
        0,
        "nobody is left in a queue"
    );
}

/// T24, moved at 5 s: buckets and counters go along, under another id, and nothing is granted.
#[test]
fn a_move_carries_levels_and_counters_and_grants_nothing() {
    let mut old = World::default();
    let topic = old.topic(NO_LIMIT);
    old.sub(topic, message_limit(10), (1, 8), 100);
    old.run_until(5 * SECOND);
    old.limiter(0).leave();

    let mut new = World::default();
    new.now_ns = old.now_ns;
    let topic = new.topic(NO_LIMIT);
    for _ in 0..2 {
        new.sub(topic, NO_LIMIT, (1, 8), 0);
    }
    new.subs.push(old.subs.pop().unwrap());
    new.subs[2].topic = topic;
    new.want(2);
    new.run_until(20 * SECOND);
    let sub = &new.subs[2];
    assert_eq!(
        (sub.delivered.len(), sub.delivered[99].at_ns),
        (100, 9 * SECOND)
    );
    let counts = sub.throttle.counts(new.now_ns);
    assert_eq!(counts.events[2][0], 90);
    assert_eq!(counts.throttled_ns[2][0], 9 * SECOND);
}

/// T25: 100 at the start, not 800; then equal shares.
#[test]
fn rate_shared_limiter_race_subscriptions_of_a_topic_spend_its_tokens_once_and_take_turns() {
    let mut world = World::default();
    let topic = world.topic(message_limit(100));
    for _ in 0..8 {
        world.sub(topic, NO_LIMIT, (1, 8), 5000);
    }
    world.run_until(0);
    assert_eq!(messages(&world.delivered()), 100);
    world.run_until(10 * SECOND);
    let mut shares: Vec<usize> = world.subs.iter().map(|sub| sub.delivered.len()).collect();
    shares.sort_unstable();
    assert_eq!(shares, [137, 137, 137, 137, 138, 138, 138, 138]);
    let all = world.delivered();
    let gaps = all.windows(2).map(|pair| pair[1].at_ns - pair[0].at_ns);
    assert_eq!(gaps.max(), Some(10 * MILLI));
    check_windows(by_messages(&all), 100, 100);
    let passes: u64 = world.subs.iter().map(|sub| sub.passes).sum();
    assert!(
        passes < 1_250,
        "a token wakes one dispatcher: {passes} passes"
    );
}

/// A consumer that grants one permit at a time triggers a pass with each, and gets no more for it.
#[test]
fn rate_shared_limiter_race_more_triggers_bring_no_larger_share() {
    let mut world = World::default();
    let topic = world.topic(message_limit(100));
    for _ in 0..4 {
        world.sub(topic, NO_LIMIT, (1, 8), 5000);
    }
    for step in 1..=1000 {
        world.run_until(step * 10 * MILLI - 1);
        world.want(2);
        world.now_ns += 1;
        world.want(2);
        world.settle_down();
    }
    let shares = world.subs.iter().map(|sub| sub.delivered.len());
    assert!(
        shares.clone().all(|share| share.abs_diff(275) <= 1),
        "{:?}",
        shares.collect::<Vec<_>>()
    );
}

/// T26: a slow read cannot bank the refill of its time.
#[test]
fn rate_shared_limiter_race_a_read_in_flight_keeps_its_tokens_and_banks_none() {
    let mut world = World::default();
    let topic = world.topic(message_limit(100));
    world.sub(topic, NO_LIMIT, (1, 8), 5000);
    world.subs[0].read_ns = SECOND / 2;
    world.run_until(20 * SECOND);
    let all = world.delivered();
    check_windows(by_messages(&all), 100, 100);
    assert!(
        messages(&all) > 900,
        "and it is not starved: {}",
        messages(&all)
    );
}

/// T27: 2^30 * 2^33 ns leaves 63 bits at 8.589934592 s.
#[test]
fn rate_refill_overflow_no_idle_time_is_too_long() {
    let (per_s, day_s) = (1 << 30, 86_400);
    for idle_ns in [
        8_589_934_592,
        8_600_000_000,
        17_200_000_000,
        day_s / 2 * SECOND,
        400 * day_s * SECOND,
        u64::MAX,
    ] {
        let mut bucket = TokenBucket::default();
        bucket.set(0, Rate::per_second(per_s));
        bucket.reserve(1 << 30);
        bucket.settle(0, 1 << 30, 1 << 30);
        bucket.refill(idle_ns);
        assert!(bucket.admits());
        bucket.reserve(1024);
        assert_eq!(bucket.tokens(), per_s - 1024, "after {idle_ns} ns");
    }
}

/// T27: the balance is 1, nowhere near 2^63 or 2^64.
#[test]
fn rate_refill_overflow_a_lowered_limit_caps_the_level_and_underflows_nothing() {
    let mut bucket = TokenBucket::default();
    bucket.set(0, Rate::per_second(100));
    bucket.reserve(90);
    bucket.set(0, Rate::per_second(1));
    assert_eq!(
        (bucket.tokens(), bucket.reserved()),
        (1, 90),
        "with 90 on their way"
    );
    bucket.settle(0, 90, 0);
    assert_eq!(bucket.tokens(), 1, "and when they come back");
    bucket.reserve(1);
    assert_eq!(bucket.ready_at_ns(1), u64::MAX, "all is out for a read");
    bucket.settle(0, 1, 1);
    assert_eq!(bucket.ready_at_ns(1), SECOND);
}

#[test]
fn rate_refill_overflow_limits_of_any_size_come_and_go_under_reservations() {
    let sizes = [i64::MAX, 0, -1, 1, i64::MIN, i64::MAX - 1, 100];
    for period_s in [1, 3, u32::MAX] {
        let mut bucket = TokenBucket::default();
        let mut now_ns = 0;
        for round in 0..5_000_u64 {
            let size = sizes[(round % 7) as usize];
            bucket.set(
                now_ns,
                Rate::new(size, period_s, (round % 2 == 0).then_some(round)),
            );
            assert_eq!(bucket.is_on(), size > 0, "zero and less are no limit");
            bucket.refill(now_ns);
            if bucket.admits() {
                bucket.reserve(round);
                now_ns = now_ns.wrapping_add(round << (round % 50));
                bucket.settle(now_ns, round, round / 2);
            }
            if bucket.is_on() {
                assert!(i128::from(bucket.tokens()) <= i128::from(bucket.capacity()));
            }
        }
        bucket.set(now_ns, Rate::per_second(i64::MAX));
        bucket.refill(now_ns.wrapping_add(10 * SECOND));
        assert!(bucket.admits(), "no stall afterwards");
    }
}

/// (a): each use refills to its own instant first. (b): one late refill for all of them.
#[test]
fn rate_cap_before_debit_the_cap_comes_after_what_was_consumed() {
    let full = || {
        let mut bucket = TokenBucket::default();
        bucket.set(0, Rate::per_second(100));
        bucket
    };
    let mut punctual = full();
    for second in 1..=5 {
        punctual.refill(second * SECOND);
        punctual.reserve(100);
        punctual.settle(second * SECOND, 100, 100);
        assert_eq!(punctual.tokens(), 0, "T28");
    }
    let mut late = full();
    (1..=5).for_each(|_| late.debit(100));
    late.refill(5 * SECOND);
    assert_eq!(late.tokens(), 100);

    // Any mixture of the two: never negative, and no longer wait than for what is missing.
    for mixture in 0..32_u64 {
        let mut mixed = full();
        for second in 1..=5 {
            if mixture >> (second - 1) & 1 == 1 {
                mixed.refill(second * SECOND);
            }
            mixed.debit(100);
        }
        mixed.refill(5 * SECOND);
        assert!(
            (0..=100).contains(&mixed.tokens()),
            "{mixture:05b}: {}",
            mixed.tokens()
        );
        assert!(mixed.ready_at_ns(1) <= 5 * SECOND + 10 * MILLI);
    }
}

#[test]
fn rate_cap_before_debit_a_clock_that_steps_back_or_differs_between_cores_adds_nothing() {
    let mut bucket = TokenBucket::default();
    bucket.set(10 * SECOND, Rate::per_second(100));
    bucket.reserve(100);
    bucket.settle(10 * SECOND, 100, 100);
    bucket.refill(8 * SECOND);
    assert_eq!(bucket.tokens(), 0, "no negative refill");

    // Two cores, 5 ms apart, in turns: the time that passes is counted once.
    let mut jittery = TokenBucket::default();
    jittery.set(0, Rate::new(1_000_000, 1, Some(10_000_000)));
    jittery.reserve(10_000_000);
    jittery.settle(0, 10_000_000, 10_000_000);
    for step in 1..=1000 {
        jittery.refill(step * MILLI + 5 * MILLI);
        jittery.refill(step * MILLI);
    }
    assert_eq!(jittery.tokens(), 1_005_000);
}

/// CLOCK-BACKWARDS for limits: one bad reading far ahead must not stop them until then.
#[test]
fn clock_backwards_a_jump_neither_stalls_a_limit_nor_gives_more_than_its_burst() {
    for far_ns in [3600 * SECOND, 86_400 * SECOND, u64::MAX] {
        let mut bucket = TokenBucket::default();
        bucket.set(10 * SECOND, Rate::per_second(100));
        bucket.reserve(150);
        bucket.settle(10 * SECOND, 150, 150);
        bucket.refill(far_ns);
        assert_eq!(bucket.tokens(), 100, "one burst");
        bucket.reserve(150);
        bucket.settle(11 * SECOND, 150, 150);
        assert_eq!(bucket.tokens(), -50, "the way back adds nothing");
        assert_eq!(
            bucket.ready_at_ns(1),
            11 * SECOND + 510 * MILLI,
            "and it goes on from there"
        );
        bucket.refill(11 * SECOND + 510 * MILLI);
        assert!(bucket.admits());
    }
}

/// T28: neither forgives debt nor grants a burst; debt is worked off at the new rate.
#[test]
fn a_raised_limit_keeps_the_debt_and_works_it_off_faster() {
    let mut bucket = TokenBucket::default();
    bucket.set(0, Rate::per_second(100));
    bucket.reserve(1000);
    bucket.settle(0, 1000, 1000);
    bucket.set(0, Rate::per_second(1000));
    assert_eq!(
        (bucket.tokens(), bucket.ready_at_ns(1)),
        (-900, 901 * MILLI)
    );
    bucket.refill(901 * MILLI - 1);
    assert!(!bucket.admits());
    bucket.refill(901 * MILLI);
    assert!(bucket.admits());
    // Another period says the same in other units.
    bucket.set(901 * MILLI, Rate::new(10_000, 10, None));
    assert_eq!(bucket.tokens(), 1);
}

#[test]
fn a_limit_switched_off_and_on_again_resumes_its_level_with_the_refill_since() {
    let mut bucket = TokenBucket::default();
    bucket.set(0, Rate::per_second(100));
    bucket.reserve(1000);
    bucket.settle(0, 1000, 1000);
    bucket.set(SECOND, None);
    assert!(bucket.admits() && bucket.tokens() == i64::MAX);
    bucket.set(3 * SECOND, Rate::per_second(5000));
    assert_eq!(bucket.tokens(), -600, "three seconds of the old rate");
}

/// T29: three scopes, and every bucket debited by exactly what was sent.
#[test]
fn the_lowest_of_three_scopes_wins_and_all_are_debited_alike() {
    let mut world = World::default();
    world.broker.set(0, message_limit(1000));
    let topic = world.topic(message_limit(500));
    for _ in 0..3 {
        world.sub(topic, message_limit(100), (1, 8), 10_000);
    }
    world.run_until(10 * SECOND);
    for sub in &world.subs {
        assert_eq!(messages(&sub.delivered), 1100);
        assert_eq!(
            sub.throttle.counts(0).events[..2],
            [[0, 0], [0, 0]],
            "only one limited"
        );
    }
    // Above 300 per second both are full but for what went at this instant.
    assert_eq!(world.broker.bucket(Unit::Messages).tokens(), 997);
    assert_eq!(world.topics[topic].bucket(Unit::Messages).tokens(), 497);
}

/// T30: bytes are exact, and a limit that is never reached counts nothing.
#[test]
fn a_byte_limit_holds_within_one_entry_and_counts_nothing_while_it_is_not_reached() {
    let mut world = World::default();
    let topic = world.topic(byte_limit(100_000));
    world.sub(topic, NO_LIMIT, (1, 1000), 10_000);
    world.run_until(10 * SECOND);
    let sent: u64 = world.subs[0]
        .delivered
        .iter()
        .map(|delivery| delivery.bytes)
        .sum();
    assert!((1_100_000..=1_101_000).contains(&sent), "{sent}");
    check_windows(by_bytes(&world.subs[0].delivered), 100_000, 100_000 + 999);
    assert!(world.subs[0].throttle.counts(world.now_ns).events[1][1] > 0);

    let mut unreached = World::default();
    let topic = unreached.topic(byte_limit(1_000_000));
    unreached.sub(topic, NO_LIMIT, (1, 1000), 0);
    for _ in 0..1000 {
        unreached.subs[0].backlog.push_back((1, 1000));
        unreached.want(0);
        unreached.run_until(unreached.now_ns + 10 * MILLI);
    }
    assert_eq!(unreached.subs[0].delivered.len(), 1000);
    assert_eq!(
        unreached.subs[0].throttle.counts(unreached.now_ns),
        ThrottleCounts::default()
    );
}
