//! Elections, rule by rule and at random.

use super::*;
use proptest::prelude::*;

const MS: u64 = 1_000_000;
const A: u32 = 1;
const B: u32 = 2;
const C: u32 = 3;

fn topic(partition: Option<u32>) -> Election {
    Election::new(
        "persistent://public/default/t",
        partition,
        ElectionOptions::default(),
    )
}

fn told(election: &Election, step: Step) -> Vec<(u32, bool)> {
    let mut told: Vec<_> = election.notices(step).collect();
    told.sort_unstable();
    told
}

fn changed(old: Option<u32>, new: Option<u32>) -> Step {
    Step::Changed { old, new }
}

/// Case FAILOVER-FLAP, 1 and 2.
/// The former active that is waited for, and until when.
fn waits_for(election: &Election) -> Option<(u32, u64)> {
    let takeover = election.takeover.as_ref();
    takeover.map(|takeover| (takeover.old, takeover.until_ns))
}

#[test]
fn t40_others_come_and_go_and_the_active_stays() {
    let mut election = topic(None);
    assert_eq!(election.join(26, "z", 0, 0), changed(None, Some(26)));
    assert_eq!(election.join(25, "y", 0, 100 * MS), Step::NotElected(25));
    let mut now = 200 * MS;
    for _ in 0..100 {
        let step = election.join(24, "x", 0, now);
        assert_eq!(told(&election, step), [(24, false)]);
        assert_eq!(election.leave(24, now + 50 * MS), Step::Nothing);
        assert_eq!(
            (election.tick(now + 99 * MS), election.active),
            (Step::Nothing, Some(26))
        );
        now += 100 * MS;
    }
    assert_eq!(election.next_deadline_ns(), None);
    election.leave(26, now);
    election.leave(25, now);
    assert_eq!((election.active, election.members.len()), (None, 0));
    for (slot, name) in [(1, "z"), (2, "y"), (3, "x")] {
        election.join(slot, name, 0, now);
        assert_eq!(election.may_start(), Some(1));
    }
}

/// Case FAILOVER-FLAP, 3.
#[test]
fn d70_a_lower_priority_number_takes_over_at_once_and_an_equal_one_never() {
    let mut election = topic(None);
    election.join(A, "p1", 1, 0);
    let step = election.join(B, "p0", 0, 5);
    assert_eq!(step, changed(Some(A), Some(B)));
    assert_eq!(told(&election, step), [(A, false), (B, true)]);
    let step = election.join(C, "a", 0, 6);
    assert_eq!(
        (step, told(&election, step)),
        (Step::NotElected(C), vec![(C, false)])
    );
    assert_eq!(election.tick(60 * SECOND_NS), Step::Nothing);
    assert_eq!(election.active, Some(B));
}

#[test]
fn d69_candidates_are_by_priority_name_bytes_and_arrival_and_k_counts_them() {
    for (partition, expected) in [(0, 4), (1, 3), (2, 1), (3, 4), (7, 3)] {
        let mut election = topic(Some(partition));
        for (slot, name, priority) in [(1, "b", 0), (2, "A", 1), (3, "a", 0), (4, "B", 0)] {
            election.join(slot, name, priority, 0);
        }
        election.tick(SECOND_NS);
        assert_eq!(election.active, Some(expected), "partition {partition}");
    }
    let mut twins = topic(Some(1));
    twins.join(9, "same", 0, 0);
    twins.join(8, "same", 0, 0);
    assert_eq!(twins.tick(SECOND_NS), changed(Some(9), Some(8)));
    let whole = topic(None);
    let hash = murmur3_32(b"persistent://public/default/t") & 0x7fff_ffff;
    assert_eq!(whole.k, u64::from(hash));
}

#[test]
fn d70_on_a_partition_the_elected_one_waits_for_quiet() {
    let mut election = topic(Some(0));
    election.join(B, "b", 0, 0);
    election.join(A, "a", 0, 300 * MS);
    assert_eq!(election.next_deadline_ns(), Some(1_300 * MS));
    election.join(C, "c", 0, 900 * MS);
    assert_eq!(
        (election.tick(1_899 * MS), election.active),
        (Step::Nothing, Some(B))
    );
    assert_eq!(election.next_deadline_ns(), Some(1_900 * MS));
    assert_eq!(election.tick(1_900 * MS), changed(Some(B), Some(A)));
}

/// The election's part of T41 and of case FAILOVER-STALE-READ.
#[test]
fn t41_the_new_active_starts_when_the_old_one_is_done_or_gone_or_late() {
    let preempted = || {
        let mut election = topic(None);
        election.join(A, "a", 1, 0);
        election.join(B, "b", 0, 100);
        election.old_holds(A, 200);
        assert_eq!((election.active, election.may_start()), (Some(B), None));
        assert_eq!(waits_for(&election), Some((A, SECOND_NS + 100)));
        election
    };
    let mut acked = preempted();
    acked.old_holds(A, 1);
    assert_eq!(acked.may_start(), None);
    acked.old_holds(A, 0);
    assert_eq!(
        (acked.may_start(), acked.next_deadline_ns()),
        (Some(B), None)
    );

    let mut closed = preempted();
    assert_eq!(closed.leave(A, 200), Step::Nothing);
    assert_eq!(closed.may_start(), Some(B));

    let mut late = preempted();
    assert_eq!(late.next_deadline_ns(), Some(SECOND_NS + 100));
    assert_eq!(
        (late.tick(SECOND_NS + 99), late.may_start()),
        (Step::Nothing, None)
    );
    assert_eq!(
        (late.tick(SECOND_NS + 100), late.may_start()),
        (Step::Nothing, Some(B))
    );

    // The one who waits leaves: the next one waits for the same, until the same instant.
    let mut third = preempted();
    assert_eq!(third.join(C, "c", -1, 300), changed(Some(B), Some(C)));
    assert_eq!(waits_for(&third), Some((A, SECOND_NS + 100)));
    assert_eq!(third.leave(C, 400), changed(Some(C), Some(B)));
    assert_eq!(
        (third.may_start(), waits_for(&third)),
        (None, Some((A, SECOND_NS + 100)))
    );
    // And the old one may become active again; it does not wait for itself.
    assert_eq!(third.leave(B, 500), changed(Some(B), Some(A)));
    assert_eq!(third.may_start(), Some(A));
}

#[test]
fn d71_who_left_while_active_may_not_take_over_for_a_while() {
    let mut election = topic(None);
    election.join(A, "calm", 1, 0);
    let mut now = 0;
    for damping_s in [0, 1, 2, 4, 8, 16, 30, 30] {
        let joined = election.join(B, "flapping", 0, now);
        if damping_s == 0 {
            assert_eq!(joined, changed(Some(A), Some(B)));
        } else {
            assert_eq!(joined, Step::NotElected(B));
            let due = now + damping_s * SECOND_NS;
            assert_eq!(election.next_deadline_ns(), Some(due));
            assert_eq!(election.tick(due - 1), Step::Nothing);
            assert_eq!(election.tick(due), changed(Some(A), Some(B)));
            now = due;
        }
        election.old_holds(A, 0);
        now += 10 * MS;
        assert_eq!(election.leave(B, now), changed(Some(B), Some(A)));
    }
    // With no living active it is electable at once.
    election.leave(A, now);
    assert_eq!(election.join(B, "flapping", 0, now), changed(None, Some(B)));
    // A departure long after the last one starts anew.
    now += 61 * SECOND_NS;
    election.leave(B, now);
    assert_eq!(election.departures.damping_ns("flapping"), SECOND_NS);
}

#[test]
fn d71_of_several_better_ones_those_that_may_take_over_are_elected() {
    let mut election = topic(Some(0));
    election.departures.note("a".into(), 0);
    election.join(C, "c", 1, 0);
    election.join(A, "a", 0, 0);
    assert_eq!(election.join(B, "b", 0, 10), changed(Some(C), Some(B)));
}

#[test]
fn names_of_clients_that_never_return_are_forgotten() {
    let mut election = topic(None);
    for n in 0..1_000 {
        election.join(A, &format!("random-{n}"), 0, n);
        election.leave(A, n);
    }
    assert_eq!(election.departures.by_name.len(), DEPARTURES_MAX);
    assert_eq!(election.departures.order.len(), DEPARTURES_MAX);
    assert_eq!(election.departures.damping_ns("random-0"), 0);
    assert_eq!(election.departures.damping_ns("random-999"), SECOND_NS);
}

proptest! {
    /// D72: an active exists whenever a consumer is attached, it is attached, and each change says so.
    /// Nothing happens between deadlines, and a deadline that is due changes something.
    #[test]
    fn d72_somebody_is_active_whenever_somebody_is_attached(
        partition in prop::option::of(0u32..4),
        steps in prop::collection::vec((0u32..5, 0u32..3, 0u64..900), 1..80),
    ) {
        let mut election = topic(partition);
        let mut attached = std::collections::BTreeSet::new();
        let mut now = 0;
        for (slot, action, pause_ms) in steps {
            now += pause_ms * MS;
            while let Some(due) = election.next_deadline_ns().filter(|&due| due <= now) {
                let before = (election.active, election.may_start());
                prop_assert_eq!(election.tick(due.saturating_sub(1)), Step::Nothing);
                prop_assert_eq!((election.active, election.may_start()), before);
                election.tick(due);
                prop_assert_ne!((election.active, election.may_start()), before);
                prop_assert!(election.next_deadline_ns().is_none_or(|next| next > due));
            }
            let before = election.active;
            let name = ["a", "b"][slot as usize % 2];
            let step = match action {
                0 if attached.insert(slot) => election.join(slot, name, (slot % 3) as i32, now),
                1 if attached.remove(&slot) => election.leave(slot, now),
                _ => { election.old_holds(slot, 0); Step::Nothing }
            };
            if let Step::Changed { old, new } = step {
                prop_assert_eq!((old, new), (before, election.active));
                prop_assert_eq!(told(&election, step).len(), attached.len());
            } else {
                prop_assert_eq!(election.active, before);
            }
            prop_assert_eq!(election.active.is_some(), !attached.is_empty());
            prop_assert!(election.active.is_none_or(|active| attached.contains(&active)));
            if let Some((old, _)) = waits_for(&election) {
                prop_assert!(attached.contains(&old) && election.active != Some(old));
            }
        }
    }
}
