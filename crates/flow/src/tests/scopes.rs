//! Limits at several scopes at once, who gets what share of them, and whom they leave out.

use proptest::prelude::*;

use super::world::*;
use crate::*;

/// The message counts of subscriptions are within `percent` of their mean.
fn assert_fair(shares: &[u64], percent: u64) {
    let sum: u64 = shares.iter().sum();
    let mean = sum / shares.len() as u64;
    let worst = shares
        .iter()
        .map(|share| share.abs_diff(mean))
        .max()
        .unwrap();
    assert!(worst * 100 <= mean * percent, "mean {mean}: {shares:?}");
}

fn shares(world: &World) -> Vec<u64> {
    world
        .subs
        .iter()
        .map(|sub| messages(&sub.delivered))
        .collect()
}

/// Twenty subscriptions under limits at every scope; the one that is lowest in sum wins.
#[test]
fn with_limits_at_three_scopes_each_holds_the_lowest_wins_and_shares_are_fair() {
    for (broker, topic, subscription, expected_per_s) in [
        (1_000, 800, 90, 1_000),
        (5_000, 800, 90, 1_600),
        (5_000, 5_000, 90, 1_800),
        (1_600, 800, 80, 1_600),
    ] {
        let mut world = World::default();
        world.broker.set(0, message_limit(broker));
        for _ in 0..2 {
            let topic = world.topic(message_limit(topic));
            for _ in 0..10 {
                world.sub(topic, message_limit(subscription), (1, 8), 3_000);
            }
        }
        world.run_until(SECOND);
        let first_second = messages(&world.delivered());
        world.run_until(11 * SECOND);
        let all = world.delivered();
        let per_s = (messages(&all) - first_second) / 10;
        let what = (broker, topic, subscription);
        assert!(
            per_s.abs_diff(expected_per_s) * 100 <= expected_per_s,
            "{per_s}/s of {what:?}"
        );
        assert_fair(&shares(&world), 5);
        check_windows(by_messages(&all), broker as u64, broker as u64);
        for of_topic in world.subs.chunks(10) {
            let mut deliveries: Vec<Delivery> = of_topic
                .iter()
                .flat_map(|sub| sub.delivered.clone())
                .collect();
            deliveries.sort_by_key(|delivery| delivery.at_ns);
            check_windows(by_messages(&deliveries), topic as u64, topic as u64);
        }
        for sub in &world.subs {
            check_windows(
                by_messages(&sub.delivered),
                subscription as u64,
                subscription as u64,
            );
        }
    }
}

#[test]
fn partitions_with_a_byte_limit_each_hold_it_within_a_percent_in_every_window() {
    let mut world = World::default();
    for partition in 0..10_u64 {
        let topic = world.topic(byte_limit(1_000_000));
        world.sub(topic, NO_LIMIT, (3, 700 + partition), 20_000);
    }
    world.run_until(11 * SECOND);
    for sub in &world.subs {
        check_windows(by_bytes(&sub.delivered), 1_000_000, 1_000_000 + 709);
        let after_burst: u64 = by_bytes(&sub.delivered)
            .filter(|d| d.0 > SECOND)
            .map(|d| d.1)
            .sum();
        assert!(after_burst.abs_diff(10_000_000) <= 100_000, "{after_burst}");
    }
}

#[test]
fn entries_of_many_sizes_share_a_limit_fairly_and_never_overdraw_it_by_a_whole_entry() {
    let mut world = World::default();
    let topic = world.topic(message_limit(5_000));
    for _ in 0..6 {
        let sub = world.sub(topic, NO_LIMIT, (1, 8), 0);
        let sizes = [1, 7, 100, 1, 1000, 7].iter().cycle().take(3_000);
        world.subs[sub]
            .backlog
            .extend(sizes.map(|&size| (size, size * 8)));
    }
    world.run_until(120 * SECOND);
    let all = world.delivered();
    check_windows(by_messages(&all), 5_000, 5_000 + 999);
    let sent = messages(&all);
    assert!(sent.abs_diff(5_000 * 121) <= 6_050, "{sent}");
    assert_fair(&shares(&world), 5);
}

/// D47: with the switch, who has caught up neither asks nor debits.
#[test]
fn a_subscription_that_has_caught_up_may_be_left_out_of_every_limit() {
    let mut world = World::default();
    world.broker.set(0, message_limit(10));
    let topic = world.topic(message_limit(10));
    world.sub(topic, message_limit(10), (1, 8), 1000);
    world.subs[0].terms.exempt = is_exempt(false, Entries(1000), Entries(1000));
    world.run_until(0);
    assert_eq!(messages(&world.delivered()), 1000);
    assert_eq!(
        world.broker.bucket(Unit::Messages).tokens(),
        10,
        "nothing is debited"
    );
    assert_eq!(world.subs[0].throttle.counts(0), ThrottleCounts::default());

    // It falls behind: the limits take hold, and let go when it has caught up again.
    world.subs[0].terms.exempt = is_exempt(false, Entries(1001), Entries(1000));
    world.subs[0].backlog.extend([(1, 8); 40]);
    world.want(0);
    world.run_until(SECOND);
    assert_eq!(messages(&world.delivered()), 1020);
    world.subs[0].terms.exempt = true;
    world.want(0);
    world.run_until(SECOND);
    assert_eq!(messages(&world.delivered()), 1040);
    assert_eq!(world.topics[topic].claimants(), 0, "it left the queue");
}

/// D49: one token per entry, whatever its messages.
#[test]
fn a_limit_may_count_entries_instead_of_messages() {
    let mut world = World::default();
    let topic = world.topic(message_limit(10));
    world.sub(topic, NO_LIMIT, (1000, 8), 100);
    world.subs[0].terms.per_entry = true;
    world.run_until(2 * SECOND);
    assert_eq!(world.subs[0].delivered.len(), 30);
}

/// All tokens are out for slow reads: nothing but a settlement wakes who waits.
#[test]
fn a_bucket_that_is_all_out_for_reads_wakes_the_next_when_one_is_back() {
    let mut world = World::default();
    let limits = Limits {
        messages: Rate::new(100, 1, Some(1)),
        bytes: None,
    };
    let topic = world.topic(limits);
    for _ in 0..3 {
        let sub = world.sub(topic, NO_LIMIT, (1, 8), 100);
        world.subs[sub].read_ns = 200 * MILLI;
    }
    world.run_until(10 * SECOND);
    // A read of 200 ms and a refill of 10 ms each, by turns.
    assert_eq!(shares(&world), [16, 16, 15]);
}

/// What was not sent goes back, and a completion that nobody waits for any more debits nothing.
#[test]
fn a_plan_that_is_given_up_is_refunded_at_every_scope() {
    let mut world = World::default();
    world.broker.set(0, message_limit(100));
    let topic = world.topic(message_limit(50));
    world.sub(topic, byte_limit(1000), (1, 8), 0);
    let mut limiter = world.limiter(0);
    let mut allowance = limiter.open(0, Terms::default());
    allowance.spend(Entries(3), Messages(30), Bytes(600));
    let closed = limiter.close(0, &allowance, None);
    let levels = |limiter: &Limiter<'_>| {
        let [broker, topic, subscription] = &limiter.scopes;
        let messages = [broker, topic].map(|scope| scope.bucket(Unit::Messages).tokens());
        (messages, subscription.bucket(Unit::Bytes).tokens())
    };
    assert_eq!(levels(&limiter), ([70, 20], 400));
    limiter.settle(0, closed.reservation, Entries(1), Messages(10), Bytes(200));
    assert_eq!(levels(&limiter), ([90, 40], 800), "two of three came back");
}

/// The two kinds of backlog differ in these counters alone.
#[test]
fn backlog_of_slow_consumers_and_backlog_of_throttling_are_told_apart() {
    let backlog_of = |limits, permits| {
        let mut world = World::default();
        let topic = world.topic(limits);
        world.sub(topic, NO_LIMIT, (1, 8), 1000);
        world.subs[0].permits = permits;
        world.run_until(10 * SECOND);
        assert_eq!(world.subs[0].backlog.len(), 890);
        world.subs[0].throttle.counts(10 * SECOND)
    };
    let slow = backlog_of(message_limit(1_000_000), 110);
    assert_eq!(slow, ThrottleCounts::default());
    let throttled = backlog_of(message_limit(10), 1 << 40);
    assert_eq!(throttled.throttled_ns[1], [10 * SECOND, 0]);
    assert!(throttled.events[1][0] == 101 && throttled.withheld_messages > 0);
    // Both at once: the permits are the first of all limits, so this is the consumers' doing.
    let both = backlog_of(message_limit(110), 110);
    assert_eq!(both, ThrottleCounts::default());
}

#[test]
fn a_dispatcher_that_leaves_makes_room_for_the_next_in_the_queue() {
    let mut world = World::default();
    let topic = world.topic(message_limit(1));
    for _ in 0..3 {
        world.sub(topic, NO_LIMIT, (1, 8), 10);
    }
    world.run_until(0);
    assert_eq!(world.topics[topic].claimants(), 3);
    assert_eq!(
        world.topics[topic].wake(),
        Some(Wake {
            dispatcher: 0,
            at_ns: SECOND
        })
    );
    world.limiter(1).leave();
    world.limiter(0).leave();
    assert_eq!(
        world.topics[topic].wake(),
        Some(Wake {
            dispatcher: 2,
            at_ns: SECOND
        })
    );
    world.limiter(1).leave();
    assert_eq!(
        (
            world.topics[topic].claimants(),
            world.topics[topic].wake().is_some()
        ),
        (1, true)
    );
}

/// Takes as many singles as may go, at most `most`; says how many, and what refused the next.
fn pass(world: &mut World, index: usize, most: u64) -> (u64, Option<Stop>) {
    let now_ns = world.now_ns;
    let mut limiter = world.limiter(index);
    limiter.claim();
    let mut allowance = limiter.open(now_ns, Terms::default());
    let mut budget = Budget::new(1 << 40, Entries(most), Bytes(1 << 40)).with_tokens(&allowance);
    let (mut taken, mut stop) = (0, None);
    while stop.is_none() {
        match budget.admit(Messages(1), Bytes(8)) {
            Ok(()) => taken += 1,
            Err(found) => stop = Some(found),
        }
    }
    allowance.spend(Entries(taken), Messages(taken), Bytes(8 * taken));
    let refused = matches!(stop, Some(Stop::Tokens | Stop::Step)).then(Withheld::default);
    let closed = limiter.close(now_ns, &allowance, refused);
    limiter.settle(
        now_ns,
        closed.reservation,
        Entries(taken),
        Messages(taken),
        Bytes(8 * taken),
    );
    (taken, stop)
}

/// Else a dispatcher between two busy scopes would go from one queue to the other for ever.
#[test]
fn a_turn_that_another_scope_did_not_let_be_used_is_kept() {
    let one_by_one = |per_s| Limits {
        messages: Rate::new(per_s, 1, Some(1)),
        bytes: None,
    };
    let mut world = World::default();
    world.broker.set(0, one_by_one(1));
    for _ in 0..2 {
        world.topic(one_by_one(10));
    }
    for topic in [0, 0, 1] {
        world.sub(topic, NO_LIMIT, (1, 8), 0);
    }
    assert_eq!(
        pass(&mut world, 2, 9),
        (1, Some(Stop::Tokens)),
        "the engine's only token"
    );
    world.topics[0].messages.debit(1);
    for index in [0, 1] {
        assert_eq!(pass(&mut world, index, 9).0, 0);
        assert!(
            world.topics[0]
                .wake()
                .is_some_and(|wake| wake.dispatcher == 0)
        );
    }
    // The topic has a token, the engine has none: 0 waits for the engine, 1 is first at the topic.
    world.now_ns = 100 * MILLI;
    assert_eq!(pass(&mut world, 0, 9).0, 0);
    assert_eq!(world.topics[0].wake().map(|wake| wake.dispatcher), Some(1));
    world.limiter(2).leave();
    assert_eq!(
        world.broker.wake(),
        Some(Wake {
            dispatcher: 0,
            at_ns: SECOND
        })
    );
    world.now_ns = SECOND;
    assert_eq!(
        pass(&mut world, 0, 9).0,
        1,
        "it need not queue at the topic again"
    );
}

#[test]
fn a_step_that_ran_out_of_tokens_goes_on_unless_the_dispatcher_leaves() {
    for leaves in [false, true] {
        let mut world = World::default();
        // Steps of 4 tokens.
        let topic = world.topic(message_limit(1024));
        for _ in 0..2 {
            world.sub(topic, NO_LIMIT, (1, 8), 0);
        }
        world.topics[topic].messages.debit(1021);
        world.limiter(1).claim();
        assert_eq!(pass(&mut world, 0, 9), (3, Some(Stop::Tokens)));
        if leaves {
            world.limiter(0).leave();
        }
        world.now_ns = SECOND;
        let expected = if leaves { 4 } else { 1 };
        assert_eq!(pass(&mut world, 0, 9), (expected, Some(Stop::Step)));
    }
}

/// D30: tokens are asked before read bytes, headroom and the read batch.
#[test]
fn the_first_limit_without_room_is_the_reason_and_withheld_is_what_the_others_admit() {
    let mut world = World::default();
    let topic = world.topic(message_limit(2));
    world.sub(topic, NO_LIMIT, (1, 8), 0);
    let allowance = world.limiter(0).open(0, Terms::default());
    let budget = Budget::new(10, Entries(5), Bytes(1 << 20)).with_tokens(&allowance);
    let candidates = std::iter::repeat((Messages(1), Bytes(8)));
    let mut two = budget;
    assert!((0..2).all(|_| two.admit(Messages(1), Bytes(8)).is_ok()));
    assert_eq!(two.admit(Messages(1), Bytes(8)), Err(Stop::Tokens));
    let withheld = two.withheld(candidates.clone());
    assert_eq!(
        (withheld.messages, withheld.bytes),
        (Messages(3), Bytes(24)),
        "five entries a pass"
    );
    assert_eq!(
        two.with_headroom(1).withheld(candidates.clone()).entries,
        Entries(1)
    );

    let spent = Budget::new(10, Entries(2), Bytes(16)).with_tokens(&allowance);
    let mut spent = spent.with_headroom(2);
    assert!((0..2).all(|_| spent.admit(Messages(1), Bytes(8)).is_ok()));
    assert_eq!(
        spent.admit(Messages(1), Bytes(8)),
        Err(Stop::Tokens),
        "all at once"
    );
    assert_eq!(
        spent.withheld(candidates),
        Withheld::default(),
        "which counts nothing"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Random limits, sizes, reads and policy changes: every window of every scope holds until the
    /// limits change, no dispatcher stays behind, and what was sent is what was debited.
    #[test]
    fn no_dispatcher_is_forgotten_and_every_window_holds(
        limits in prop::array::uniform3(prop_oneof![Just(0i64), 1i64..2_000]),
        burst in prop_oneof![Just(None), (1u64..300).prop_map(Some)],
        subs in prop::collection::vec((0usize..3, 1u64..300, 0u64..3, 1usize..60), 1..8),
    ) {
        let limit = |per_s| Limits { messages: Rate::new(per_s, 1, burst), bytes: None };
        let mut world = World::default();
        world.broker.set(0, limit(limits[0]));
        for _ in 0..3 {
            world.topic(limit(limits[1]));
        }
        for &(topic, size, read, entries) in &subs {
            let sub = world.sub(topic, limit(limits[2]), (size, 8), entries);
            world.subs[sub].read_ns = read * 7 * MILLI;
        }
        world.run_until(40_000_000 * SECOND);
        for (sub, &(_, size, _, entries)) in world.subs.iter().zip(&subs) {
            prop_assert_eq!(messages(&sub.delivered), size * entries as u64, "nothing stays");
        }
        let largest = subs.iter().map(|sub| sub.1).max().unwrap();
        for (index, &per_s) in limits.iter().enumerate().filter(|(_, per_s)| **per_s > 0) {
            let allowed = burst.unwrap_or(per_s as u64) + largest - 1;
            let groups: Vec<Vec<&Sub>> = match index {
                0 => vec![world.subs.iter().collect()],
                1 => (0..3).map(|t| world.subs.iter().filter(|sub| sub.topic == t).collect()).collect(),
                _ => world.subs.iter().map(|sub| vec![sub]).collect(),
            };
            for group in groups {
                let mut all: Vec<Delivery> = group.iter().flat_map(|sub| sub.delivered.clone()).collect();
                all.sort_by_key(|delivery| delivery.at_ns);
                check_windows(by_messages(&all), per_s as u64, allowed);
            }
        }
    }
}
