//! Producers: who may publish (rule D142), and what is stored once only (rule D141).

use pelton_storage::Durability;

use super::disk::FakeDisk;
use super::world::World;
use crate::{
    Numbered, OpenProducer, OpenedProducer, Outcome, Policy, ProducerAccess, ProducerId, Refusal,
    Reply, Request, RequestError,
};

impl World {
    fn open_producer(
        &mut self,
        slot: u32,
        access: ProducerAccess,
        topic_epoch: Option<u64>,
    ) -> Result<OpenedProducer, RequestError> {
        let asked = OpenProducer {
            slot,
            access,
            topic_epoch,
            ..OpenProducer::shared(self.topic, "p")
        };
        self.ask(asked.into()).map(producer)
    }

    /// Asks for a producer that has to wait.
    fn wait_for_topic(&mut self, slot: u32) {
        let asked = OpenProducer {
            slot,
            access: ProducerAccess::WaitForExclusive,
            ..OpenProducer::shared(self.topic, "p")
        };
        self.begin(asked.into());
        self.settle();
        assert!(self.replies.is_empty(), "it waits");
    }

    fn close_producer(&mut self, producer: ProducerId) {
        self.begin(Request::CloseProducer { producer });
        self.settle();
        let done = self.replies.remove(0);
        assert!(matches!(done, Ok(Reply::Done)), "{done:?}");
    }

    /// How the last publish of this producer ended.
    fn publish_by(&mut self, producer: ProducerId, numbered: Option<Numbered>) -> Outcome {
        (self.producer, self.sequence) = (producer, self.sequence + 1);
        self.receipts.clear();
        self.publish_with(|entry| entry.numbered = numbered);
        // A log that writes inline does so slice by slice, each in a turn.
        for _ in 0..4 {
            self.settle();
        }
        let [receipts] = self.receipts[..] else {
            panic!("one receipt: {:?}", self.receipts)
        };
        assert_eq!((receipts.producer, receipts.count), (producer, 1));
        receipts.outcome
    }

    fn publish_one(&mut self, sequence: u64) -> Outcome {
        self.publish_by(self.producer, one(sequence))
    }
}

fn producer(reply: Reply) -> OpenedProducer {
    match reply {
        Reply::Producer(opened) => opened,
        other => panic!("{other:?}"),
    }
}

fn one(sequence: u64) -> Option<Numbered> {
    Some(Numbered {
        first: sequence,
        last: sequence,
    })
}

fn deduplicates() -> Policy {
    Policy {
        deduplication_enabled: true,
        ..Policy::default()
    }
}

const DURABILITIES: [Durability; 3] = [Durability::Memory, Durability::Written, Durability::Synced];

#[test]
fn an_exclusive_producer_is_alone_and_the_next_one_waits_for_its_end() {
    for durability in DURABILITIES {
        let mut world = World::with(durability);
        let shared = world.producer;
        let busy = |opened| matches!(opened, Err(RequestError::ProducerBusy { .. }));
        let fenced = |opened| matches!(opened, Err(RequestError::ProducerFenced { .. }));
        assert!(fenced(world.open_producer(
            1,
            ProducerAccess::Exclusive,
            None
        )));
        world.wait_for_topic(1);
        assert!(busy(world.open_producer(2, ProducerAccess::Shared, None)));
        assert!(fenced(world.open_producer(
            2,
            ProducerAccess::Exclusive,
            None
        )));
        world.wait_for_topic(2);
        world.begin(Request::CloseProducer { producer: shared });
        world.settle();
        let replies = std::mem::take(&mut world.replies);
        let first = replies.into_iter().find_map(|reply| match reply {
            Ok(Reply::Producer(opened)) => Some(opened),
            _ => None,
        });
        let first = first.expect("its turn has come");
        assert_eq!((first.id.slot, first.topic_epoch), (1, Some(0)));
        assert!(matches!(
            world.publish_by(first.id, None),
            Outcome::Stored(_)
        ));
        let name = "t".to_owned();
        let in_use = world.ask(Request::DeleteTopic { name });
        assert!(matches!(in_use, Err(RequestError::InUse { users: 2, .. })));
        world.begin(Request::CloseProducer { producer: first.id });
        world.settle();
        let second = world.replies.iter().find_map(|reply| match reply {
            Ok(Reply::Producer(opened)) => Some(*opened),
            _ => None,
        });
        let second = second.expect("and that of the next");
        assert_eq!((second.id.slot, second.topic_epoch), (2, Some(1)));
    }
}

#[test]
fn a_fencing_producer_ends_the_others_and_what_they_publish_then_does_not_exist() {
    for durability in DURABILITIES {
        let mut world = World::with(durability);
        let old = world.producer;
        let consumer = world.attach(0);
        assert!(matches!(world.publish_by(old, None), Outcome::Stored(_)));
        world.wait_for_topic(1);
        let asked = OpenProducer {
            slot: 2,
            access: ProducerAccess::ExclusiveWithFencing,
            ..OpenProducer::shared(world.topic, "p")
        };
        world.begin(asked.into());
        world.settle();
        let mut replies = std::mem::take(&mut world.replies).into_iter();
        let waited = replies.next();
        assert!(matches!(
            waited,
            Some(Err(RequestError::ProducerFenced { .. }))
        ));
        let new = producer(replies.next().expect("the new one's").expect("attached"));
        assert_eq!((&world.fenced[..], new.topic_epoch), (&[old][..], Some(0)));
        let refused = world.publish_by(old, None);
        assert_eq!(refused, Outcome::Refused(Refusal::Fenced));
        assert!(matches!(world.publish_by(new.id, None), Outcome::Stored(_)));
        world.flow(consumer, 10);
        assert_eq!(world.got.len(), 2);
        // The end of what was fenced off is not the end of what holds the topic.
        world.close_producer(old);
        let busy = world.open_producer(3, ProducerAccess::Shared, None);
        assert!(matches!(busy, Err(RequestError::ProducerBusy { .. })));
        assert!(matches!(world.publish_by(new.id, None), Outcome::Stored(_)));
    }
}

#[test]
fn who_comes_back_with_an_old_epoch_is_refused_and_the_epoch_outlives_a_restart() {
    let mut world = World::with(Durability::Synced);
    world.close_producer(world.producer);
    let first = world
        .open_producer(1, ProducerAccess::Exclusive, None)
        .unwrap();
    world.close_producer(first.id);
    let again = world
        .open_producer(1, ProducerAccess::Exclusive, first.topic_epoch)
        .unwrap();
    assert_eq!(again.topic_epoch, Some(0), "it had the topic last");
    let taken = world
        .open_producer(2, ProducerAccess::ExclusiveWithFencing, None)
        .unwrap();
    assert_eq!(taken.topic_epoch, Some(1));
    let mut world = World::reopen(world.disk, Durability::Synced);
    world.close_producer(world.producer);
    for access in [
        ProducerAccess::Exclusive,
        ProducerAccess::WaitForExclusive,
        ProducerAccess::ExclusiveWithFencing,
    ] {
        let late = world.open_producer(1, access, again.topic_epoch);
        assert!(matches!(late, Err(RequestError::ProducerFenced { .. })));
    }
    let back = world
        .open_producer(1, ProducerAccess::Exclusive, taken.topic_epoch)
        .unwrap();
    assert_eq!(back.topic_epoch, Some(1));
}

#[test]
fn an_epoch_that_cannot_be_stored_attaches_nobody() {
    let mut world = World::with(Durability::Synced);
    world.close_producer(world.producer);
    world.disk.fails_meta = true;
    let failed = world.open_producer(1, ProducerAccess::Exclusive, None);
    assert!(matches!(failed, Err(RequestError::Metadata { .. })));
    let opened = world
        .open_producer(1, ProducerAccess::Shared, None)
        .unwrap();
    assert!(matches!(
        world.publish_by(opened.id, None),
        Outcome::Stored(_)
    ));
}

#[test]
fn a_terminated_topic_turns_away_who_waits_for_it() {
    let mut world = World::new();
    world.wait_for_topic(1);
    let topic = world.topic;
    world.begin(Request::Terminate { topic });
    world.settle();
    let refused = |reply| matches!(reply, &Err(RequestError::Terminated { .. }));
    assert!(world.replies.iter().any(refused), "{:?}", world.replies);
}

#[test]
fn a_sequence_is_stored_once() {
    for durability in DURABILITIES {
        let mut world = World::with(durability);
        // Where sequences do not count, they mean nothing.
        for _ in 0..2 {
            assert!(matches!(world.publish_one(7), Outcome::Stored(_)));
        }
        world.policy(deduplicates());
        let consumer = world.attach(0);
        world.flow(consumer, 100);
        world.ack_all();
        world.got.clear();
        assert!(matches!(world.publish_one(5), Outcome::Stored(_)));
        assert_eq!(world.publish_one(5), Outcome::Duplicate);
        assert_eq!(world.publish_one(3), Outcome::Duplicate);
        let batch = Some(Numbered { first: 6, last: 9 });
        let of = world.producer;
        assert!(matches!(world.publish_by(of, batch), Outcome::Stored(_)));
        let overlaps = Some(Numbered { first: 9, last: 12 });
        assert_eq!(world.publish_by(of, overlaps), Outcome::Duplicate);
        assert!(matches!(world.publish_by(of, None), Outcome::Stored(_)));
        assert_eq!(world.got.len(), 3);
        // All producers of a name count as one, those of another name do not.
        let same = world
            .open_producer(1, ProducerAccess::Shared, None)
            .unwrap();
        assert_eq!(same.last_sequence, Some(9));
        assert_eq!(world.publish_by(same.id, one(9)), Outcome::Duplicate);
        let other = OpenProducer {
            slot: 2,
            ..OpenProducer::shared(world.topic, "q")
        };
        let other = world.ask(other.into()).map(producer).unwrap();
        assert_eq!(other.last_sequence, None);
        assert!(matches!(
            world.publish_by(other.id, one(0)),
            Outcome::Stored(_)
        ));
        world.policy(Policy::default());
        assert!(matches!(
            world.publish_by(same.id, one(9)),
            Outcome::Stored(_)
        ));
    }
}

#[test]
fn a_duplicate_is_receipted_when_what_it_repeats_is_durable() {
    let mut world = World::with(Durability::Synced);
    world.policy(deduplicates());
    world.disk.holds_syncs = true;
    for _ in 0..2 {
        world.publish_with(|entry| entry.numbered = one(1));
        world.settle();
    }
    assert!(world.receipts.is_empty(), "neither is durable");
    world.disk.let_go(true);
    world.settle();
    let outcomes: Vec<_> = world.receipts.iter().map(|it| it.outcome).collect();
    assert!(matches!(
        outcomes[..],
        [Outcome::Stored(_), Outcome::Duplicate]
    ));
}

#[test]
fn sequences_count_after_a_restart_though_their_entries_are_gone() {
    let mut world = World::with(Durability::Synced);
    world.policy(deduplicates());
    let consumer = world.attach(0);
    world.flow(consumer, 1_000);
    for sequence in 0..50 {
        assert!(matches!(world.publish_one(sequence), Outcome::Stored(_)));
    }
    world.ack_all();
    let mut disk = world.disk;
    for life in 1..4 {
        let mut world = World::reopen(disk, Durability::Synced);
        let opened = world
            .open_producer(1, ProducerAccess::Shared, None)
            .unwrap();
        assert_eq!(opened.last_sequence, Some(48 + life));
        assert_eq!(world.publish_one(48 + life), Outcome::Duplicate);
        assert!(matches!(world.publish_one(49 + life), Outcome::Stored(_)));
        disk = std::mem::take::<FakeDisk>(&mut world.disk);
    }
}
