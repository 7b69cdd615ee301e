//! What is kept of a topic, and how large its backlog may become. Rules D127 to D129.

use pelton::{
    BacklogPolicy, BacklogQuota, InitialPosition, Policy, PolicyError, ProducerError, ReceiptError,
    Retention, TrySendError,
};

use crate::common::{LONG, memory, receive, small, subscribed};

fn limits(limit_size: i64, policy: BacklogPolicy) -> Policy {
    Policy {
        backlog_quota: BacklogQuota {
            limit_size,
            policy,
            ..BacklogQuota::default()
        },
        ..Policy::default()
    }
}

#[test]
fn a_reader_finds_what_was_acked_and_is_kept_after_a_restart_too() {
    let directory = tempfile::tempdir().unwrap();
    let engine = small(directory.path()).open().unwrap();
    let topic = engine.topic("t").open().unwrap();
    let mut policy = Policy {
        retention: Retention {
            retention_time_in_minutes: -1,
            retention_size_in_mb: -1,
        },
        ..Policy::default()
    };
    topic.set_policy(&policy).unwrap();
    let mut consumer = topic.subscribe("s").open().unwrap();
    let mut producer = topic.producer().open().unwrap();
    for number in 0..20u8 {
        producer.send([number]).unwrap();
    }
    producer.flush().unwrap();
    receive(&mut consumer, 20);
    consumer.flush_acks().unwrap();
    drop((producer, consumer, topic));
    engine.shutdown(LONG);
    let engine = small(directory.path()).open().unwrap();
    let topic = engine.topic("t").open().unwrap();
    let mut reader = topic.reader(InitialPosition::Earliest).open().unwrap();
    for number in 0..20u8 {
        assert_eq!(
            reader.read().unwrap().messages().next().unwrap().payload,
            [number]
        );
    }
    policy.retention.retention_size_in_mb = 0;
    let refused = topic.set_policy(&policy);
    assert!(matches!(refused, Err(PolicyError::Invalid { .. })));
}

#[test]
fn a_producer_waits_or_hears_so_while_the_backlog_is_as_large_as_it_may_be() {
    let engine = memory();
    let (topic, mut consumer) = subscribed(&engine, "t", "s");
    topic
        .set_policy(&limits(10, BacklogPolicy::ProducerRequestHold))
        .unwrap();
    let mut producer = topic.producer().queue(2).open().unwrap();
    producer.send([1; 10]).unwrap().wait().unwrap();
    let held = producer.send([2; 10]).unwrap();
    // The shard has looked at it before it answers this.
    let refused = topic.producer().open();
    assert!(matches!(refused, Err(ProducerError::BacklogQuota { .. })));
    let mut sent = 0;
    while producer.try_send([3; 10]).is_ok() {
        sent += 1;
    }
    assert!(sent <= 2, "{sent} entries in a queue of 2");
    let full = producer.try_send([4; 10]);
    assert!(matches!(full, Err(TrySendError::Full { .. })), "{full:?}");
    assert_eq!(receive(&mut consumer, 1), [[1; 10]]);
    held.wait().unwrap();
    receive(&mut consumer, 1 + sent);
    topic
        .set_policy(&limits(10, BacklogPolicy::ProducerException))
        .unwrap();
    producer.send([5; 10]).unwrap().wait().unwrap();
    let refused = producer.send([6; 10]).unwrap().wait();
    assert_eq!(refused, Err(ReceiptError::BacklogQuota));
}
