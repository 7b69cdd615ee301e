//! One limit of the engine on several shards, by leases that travel with a delay.

use proptest::prelude::*;

use super::world::*;
use crate::*;

const LEASE_MS: u32 = 20;

#[derive(Debug)]
enum Mail {
    Ask(u32, Ask),
    Lease(u32, Lease),
}

struct Engine {
    now_ns: u64,
    shards: Vec<World>,
    lessees: Vec<Lessee>,
    coordinator: Coordinator,
    mail: Vec<(u64, Mail)>,
    delay_ns: u64,
    asked: usize,
    largest_lease: u64,
}

impl Engine {
    fn new(shards: usize, delay_ns: u64) -> Self {
        let world = || {
            let mut world = World::default();
            world.topic(NO_LIMIT);
            world
        };
        Self {
            now_ns: 0,
            shards: (0..shards).map(|_| world()).collect(),
            lessees: (0..shards).map(|_| Lessee::default()).collect(),
            coordinator: Coordinator::new(shards, LEASE_MS),
            mail: Vec::new(),
            delay_ns,
            asked: 0,
            largest_lease: 0,
        }
    }

    fn limit(&mut self, rate: Option<Rate>) {
        self.coordinator.set(self.now_ns, rate);
        let messages = rate.map(Rate::leased);
        for shard in &mut self.shards {
            shard.broker.set(
                self.now_ns,
                Limits {
                    messages,
                    bytes: None,
                },
            );
            let wake = shard.broker.wake();
            shard.wake(wake);
        }
    }

    /// One look of every shard at its work, its lease and its mail. False if there was none.
    fn turn(&mut self) -> bool {
        let now_ns = self.now_ns;
        let due = self.mail.iter().position(|(at_ns, _)| *at_ns <= now_ns);
        let mail = due.map(|index| self.mail.remove(index).1);
        let mut busy = mail.is_some();
        match mail {
            Some(Mail::Ask(shard, ask)) => self.coordinator.on_ask(now_ns, shard, ask),
            Some(Mail::Lease(shard, lease)) => {
                self.largest_lease = self.largest_lease.max(lease.tokens);
                let world = &mut self.shards[shard as usize];
                self.lessees[shard as usize].on_lease(&mut world.broker.messages, lease);
                let wake = world.broker.wake();
                world.wake(wake);
            }
            None => {}
        }
        while let Some((shard, lease)) = self.coordinator.poll(now_ns) {
            self.mail
                .push((now_ns + self.delay_ns, Mail::Lease(shard, lease)));
        }
        for (index, world) in self.shards.iter_mut().enumerate() {
            world.now_ns = now_ns;
            world.settle_down();
            let claimants = world.broker.claimants();
            let asks = self.lessees[index].poll(now_ns, &mut world.broker.messages, claimants);
            if let Some(ask) = asks {
                self.mail
                    .push((now_ns + self.delay_ns, Mail::Ask(index as u32, ask)));
                self.asked += 1;
                busy = true;
            }
        }
        busy
    }

    fn run_until(&mut self, end_ns: u64) {
        loop {
            while self.turn() {}
            let due = self.shards.iter().map(World::next_ns);
            let due = due.chain(self.lessees.iter().map(Lessee::next_deadline_ns));
            let due = due.chain(self.mail.iter().map(|(at_ns, _)| *at_ns));
            let next_ns = due
                .chain([self.coordinator.next_deadline_ns()])
                .min()
                .unwrap();
            if next_ns > end_ns {
                break;
            }
            assert!(next_ns > self.now_ns, "a deadline that is never met");
            self.now_ns = next_ns;
        }
        self.now_ns = end_ns;
    }

    /// What is left with the coordinator now.
    fn unleased(&mut self) -> i64 {
        assert_eq!(self.coordinator.poll(self.now_ns), None);
        self.coordinator.on_ask(self.now_ns, 0, Ask::default());
        self.coordinator.tokens()
    }

    fn delivered(&self) -> Vec<Delivery> {
        merged(&self.shards.iter().collect::<Vec<_>>())
    }

    /// The bound of `lease.rs`.
    fn check_bound(&self, rate: u64, capacity: u64, largest_entry: u64) {
        let shards = self.shards.len() as u64;
        let allowed = capacity + shards * (self.largest_lease + largest_entry - 1);
        check_windows(by_messages(&self.delivered()), rate, allowed);
    }
}

/// T31, and the scene with 20 subscriptions.
#[test]
fn rate_shared_limiter_race_two_shards_hold_one_limit_within_a_percent_and_burst_once() {
    for per_shard in [1, 10] {
        let mut engine = Engine::new(2, 5_000);
        engine.limit(Rate::per_second(1000));
        for world in &mut engine.shards {
            world.many_subs(per_shard, NO_LIMIT, 20_000);
        }
        engine.run_until(SECOND);
        let first = messages(&engine.delivered());
        assert!(
            (1_980..=2_000 + 2 * 20).contains(&first),
            "{first}: one burst and one second"
        );
        engine.run_until(11 * SECOND);
        let all = engine.delivered();
        let after = messages(&all) - first;
        assert!(after.abs_diff(10_000) <= 100, "{after}");
        assert!(engine.largest_lease <= 20);
        engine.check_bound(1000, 1000, 1);
        let ten_seconds = by_messages(&all)
            .filter(|d| d.0 <= 10 * SECOND)
            .map(|d| d.1);
        assert!(ten_seconds.sum::<u64>() <= 10_000 + 1000 + 2 * 20);

        let subs = engine.shards.iter().flat_map(|world| &world.subs);
        let shares: Vec<u64> = subs.map(|sub| messages(&sub.delivered)).collect();
        let mean = messages(&all) / shares.len() as u64;
        assert!(
            shares.iter().all(|share| share.abs_diff(mean) * 20 <= mean),
            "{shares:?}"
        );
        assert!(
            engine.asked <= 1_300,
            "a lease is many messages: asked {} times",
            engine.asked
        );
    }
}

/// The part of a shard follows its claimants, so that subscriptions are equal wherever they are.
#[test]
fn a_shard_with_more_subscriptions_leases_more() {
    let mut engine = Engine::new(2, 5_000);
    engine.limit(Rate::per_second(2000));
    engine.shards[0].many_subs(2, NO_LIMIT, 20_000);
    engine.shards[1].many_subs(8, NO_LIMIT, 20_000);
    engine.run_until(20 * SECOND);
    let subs = engine.shards.iter().flat_map(|world| &world.subs);
    let shares: Vec<u64> = subs.map(|sub| messages(&sub.delivered)).collect();
    assert!(
        shares.iter().all(|share| share.abs_diff(4_200) <= 210),
        "{shares:?}"
    );
}

#[test]
fn entries_larger_than_a_lease_leave_a_debt_that_the_coordinator_takes_off() {
    let mut engine = Engine::new(2, 5_000);
    engine.limit(Rate::per_second(100));
    for world in &mut engine.shards {
        world.sub(0, NO_LIMIT, (1000, 8), 100);
    }
    engine.run_until(200 * SECOND);
    let sent = messages(&engine.delivered());
    assert!((19_000..=20_000 + 100 + 2 * 1001).contains(&sent), "{sent}");
    engine.check_bound(100, 100, 1000);
}

/// What an idle shard holds goes back, and the other gets the whole rate.
#[test]
fn a_lease_that_nobody_uses_goes_back_after_a_tenth_of_a_second() {
    let mut engine = Engine::new(2, 5_000);
    engine.limit(Rate::per_second(1000));
    engine.shards[0].sub(0, NO_LIMIT, (1, 8), 1);
    engine.run_until(SECOND);
    assert_eq!(engine.unleased(), 1000, "nothing is lost");
    assert_eq!(engine.shards[0].broker.messages.tokens(), 0);
    assert_eq!(engine.asked, 2, "one lease, one return");

    engine.shards[1].sub(0, NO_LIMIT, (1, 8), 20_000);
    engine.run_until(11 * SECOND);
    let sent = messages(&engine.delivered());
    assert!(sent.abs_diff(11_000) <= 110, "{sent}");
}

#[test]
fn what_a_shard_returns_can_be_leased_again_up_to_the_burst() {
    let mut coordinator = Coordinator::new(2, LEASE_MS);
    coordinator.set(0, Rate::new(1000, 1, Some(30)));
    let ask = |claimants, returned| Ask {
        claimants,
        debt: 0,
        returned,
    };
    coordinator.on_ask(0, 0, ask(1, 0));
    assert_eq!(
        coordinator.poll(0),
        Some((
            0,
            Lease {
                tokens: 20,
                settled: 0
            }
        ))
    );
    coordinator.on_ask(0, 0, ask(0, 15));
    assert_eq!(coordinator.tokens(), 25);
    coordinator.on_ask(0, 0, ask(0, 15));
    assert_eq!(coordinator.tokens(), 30);
}

#[test]
fn a_shared_limit_that_changes_or_goes_leaves_nobody_behind_and_grants_no_burst() {
    let mut engine = Engine::new(2, 5_000);
    engine.limit(Rate::per_second(100));
    for world in &mut engine.shards {
        world.sub(0, NO_LIMIT, (1, 8), 3_000);
    }
    engine.run_until(10 * SECOND);
    assert!(messages(&engine.delivered()).abs_diff(1_100) <= 10);
    engine.limit(Rate::per_second(200));
    engine.run_until(10 * SECOND + 1);
    assert!(
        messages(&engine.delivered()).abs_diff(1_100) <= 10,
        "no burst"
    );
    engine.run_until(20 * SECOND);
    assert!(messages(&engine.delivered()).abs_diff(3_100) <= 31);
    engine.limit(None);
    engine.run_until(20 * SECOND);
    assert_eq!(messages(&engine.delivered()), 6_000, "all that waited");
    engine.limit(Rate::per_second(100));
    for world in &mut engine.shards {
        world.subs[0].backlog.extend([(1, 8); 1000]);
        world.want(0);
    }
    engine.run_until(21 * SECOND);
    let again = messages(&engine.delivered()) - 6_000;
    assert!(again <= 105, "the old level, not a new burst: {again}");
    assert!(again >= 95, "{again}");
}

/// Limits at all three scopes, 20 subscriptions, 2 shards.
#[test]
fn with_three_scopes_on_two_shards_the_lowest_wins_and_shares_are_fair() {
    for (broker, topic, subscription, expected_per_s) in [
        (1_000, 700, 90, 1_000),
        (5_000, 700, 90, 1_400),
        (5_000, 5_000, 60, 1_200),
    ] {
        let mut engine = Engine::new(2, 5_000);
        engine.limit(Rate::per_second(broker));
        for world in &mut engine.shards {
            world.topics[0].set(0, message_limit(topic));
            world.many_subs(10, message_limit(subscription), 3_000);
        }
        engine.run_until(SECOND);
        let first = messages(&engine.delivered());
        engine.run_until(11 * SECOND);
        let all = engine.delivered();
        let per_s = (messages(&all) - first) / 10;
        assert!(
            per_s.abs_diff(expected_per_s) * 100 <= expected_per_s,
            "{per_s}/s"
        );
        engine.check_bound(broker as u64, broker as u64, 1);
        let subs = engine.shards.iter().flat_map(|world| &world.subs);
        let shares: Vec<u64> = subs.map(|sub| messages(&sub.delivered)).collect();
        let mean = messages(&all) / 20;
        assert!(
            shares.iter().all(|share| share.abs_diff(mean) * 20 <= mean),
            "{shares:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn leases_of_any_delay_keep_the_bound_and_leave_nothing_behind(
        rate in 1u64..3_000, burst in prop_oneof![Just(None), (1u64..500).prop_map(Some)],
        delay_ns in 0u64..30_000_000,
        subs in prop::collection::vec((0usize..3, 1u64..200, 0usize..80), 1..8),
    ) {
        let mut engine = Engine::new(3, delay_ns);
        engine.limit(Rate::new(rate as i64, 1, burst));
        for &(shard, size, entries) in &subs {
            engine.shards[shard].sub(0, NO_LIMIT, (size, 8), entries);
        }
        engine.run_until(40_000_000 * SECOND);
        let expected: u64 = subs.iter().map(|&(_, size, entries)| size * entries as u64).sum();
        prop_assert_eq!(messages(&engine.delivered()), expected);
        let largest = subs.iter().map(|sub| sub.1).max().unwrap();
        engine.check_bound(rate, burst.unwrap_or(rate), largest);
        // Everything came back: nothing is lost on the way, and no debt is left.
        prop_assert_eq!(engine.unleased(), burst.unwrap_or(rate) as i64);
        prop_assert!(engine.shards.iter().all(|world| world.broker.messages.tokens() == 0));
    }
}
