//! `Engine::explain`: why nothing moves, as a user sees it.

use pelton::{InitialPosition, SubscriptionKind, Why};

use crate::common::{eventually, memory, receive};

/// What the user of a service at a standstill asks first: is it us, or is it the consumers?
#[test]
fn a_consumer_that_asks_for_too_little_is_named_and_one_that_reads_all_is_caught_up() {
    let engine = memory();
    let topic = engine.topic("orders").open().unwrap();
    let slow = topic
        .subscribe("billing")
        .kind(SubscriptionKind::Shared)
        .initial(InitialPosition::Earliest)
        .name("slow")
        .manual_permits();
    let mut slow = slow.open().unwrap();
    let quick = topic.subscribe("audit").initial(InitialPosition::Earliest);
    let mut quick = quick.open().unwrap();
    let mut producer = topic.producer().open().unwrap();
    producer.send_batch(["a", "b", "c"]).unwrap();
    producer.send("d").unwrap();
    slow.grant(1).unwrap();
    assert_eq!(receive(&mut quick, 2).len(), 2);
    eventually(&engine, ("orders", "billing"), |s| {
        s.delivered_messages == 3
    });
    eventually(&engine, ("orders", "audit"), |s| s.backlog_messages == 0);

    let all = engine.explain().unwrap();
    let of = |name: &str| all.iter().find(|one| one.subscription == name).unwrap();
    let billing = of("billing");
    let owes =
        |why: &Why| matches!(why, Why::NoPermits { consumer, owed: 3, .. } if consumer == "slow");
    assert!(
        billing.reasons.iter().any(|reason| owes(&reason.why)),
        "{billing}"
    );
    assert!(
        billing
            .to_string()
            .contains("consumer slow must ask for 3 more messages"),
        "{billing}"
    );
    let first = &of("audit").first().unwrap().why;
    assert!(
        matches!(first, Why::CaughtUp { position: Some(_) }),
        "{first}"
    );

    slow.grant(3).unwrap();
    eventually(&engine, ("orders", "billing"), |s| {
        s.delivered_messages == 4
    });
    let all = engine.explain().unwrap();
    let billing = all
        .iter()
        .find(|one| one.subscription == "billing")
        .unwrap();
    assert!(
        !billing.reasons.iter().any(|reason| owes(&reason.why)),
        "{billing}"
    );
}
