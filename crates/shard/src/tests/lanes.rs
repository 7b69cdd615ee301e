//! The lane rule over all sources of a shard (A3, A5, case PRIO-LOW-STARVED), on the inbox itself.

use std::collections::VecDeque;
use std::sync::Arc;

use pelton_broker::storage::Position;
use pelton_broker::{ConsumerId, Handled, ProducerId, Request};
use pelton_rings::{SlotSender, slots};
use pelton_sys::Clock;

use crate::inbox::{Inbox, Input, Item};
use crate::mesh::{Forwarded, Outbox, PeerData, mesh};
use crate::port::{Control, Data, Ports, ProducerSignal, Publish, ShardHandle, Shared};

/// An inbox with its pushers, and no shard behind it.
struct World {
    inbox: Inbox,
    handle: ShardHandle,
    /// Of shard 1, whose peer the inbox's shard is.
    peer: Outbox,
    rings: Vec<(ProducerId, SlotSender<Publish>)>,
}

fn world() -> World {
    let clock = Clock::new();
    let (shared, lanes) = Shared::new(0, 2, (256, 1_024));
    let (other, _) = Shared::new(1, 2, (256, 1_024));
    let mut ends = mesh(&[Arc::clone(&shared), other]);
    let (peer, _) = ends.pop().unwrap();
    let (_, peers) = ends.pop().unwrap();
    let inbox = Inbox::new(Arc::clone(&shared), lanes, peers);
    World {
        inbox,
        handle: ShardHandle { shared, clock },
        peer,
        rings: Vec::new(),
    }
}

impl World {
    fn control(&self) -> bool {
        self.handle.request(Request::Stats, Ports::None).is_ok()
    }

    fn data(&self, entry: u64) -> bool {
        self.handle.data(ack(entry)).is_ok()
    }

    fn producer(&mut self, queue: usize) -> usize {
        let (ring, receiver) = slots(queue);
        let signal = Arc::new(ProducerSignal::new());
        let slot = self
            .inbox
            .producers
            .open_ring(receiver, signal, false)
            .unwrap();
        let id = ProducerId { slot, serial: 1 };
        self.inbox.producers.attached(id);
        self.rings.push((id, ring));
        self.rings.len() - 1
    }

    fn publish(&mut self, producer: usize, sequence: u64) -> bool {
        let (id, ring) = &mut self.rings[producer];
        let pushed = ring.push_with(|slot| slot.sequence = sequence).is_ok();
        self.handle.published(id.slot);
        pushed
    }

    /// The next dispatch: 'c' or 'd'.
    fn take(&mut self) -> Option<char> {
        self.inbox.look();
        self.next(|_| Handled::Taken).map(|next| match next {
            Next::Shard(Item::Control(_)) => 'c',
            _ => 'd',
        })
    }

    /// One dispatch.
    fn next(&mut self, mut core: impl FnMut(&Input<'_>) -> Handled) -> Option<Next> {
        let mut budget = 1;
        let mut data = None;
        let item = self.inbox.take(&mut budget, &mut |input| {
            let handled = core(&input);
            if let (Input::Data(ack), Handled::Taken) = (input, handled) {
                data = Some(ack);
            }
            handled
        });
        match item {
            Some(item) => Some(Next::Shard(item)),
            None if budget == 1 => None,
            None => Some(data.map_or(Next::Entry, Next::Data)),
        }
    }
}

/// What was dispatched.
#[derive(Debug)]
enum Next {
    Entry,
    Data(Data),
    Shard(Item),
}

fn ack(entry: u64) -> Data {
    let consumer = ConsumerId { slot: 0, serial: 1 };
    Data::Ack {
        consumer,
        position: Position { ledger: 1, entry },
    }
}

#[test]
fn prio_low_starved_data_gets_its_share_however_much_control_there_is() {
    let mut world = world();
    let producer = world.producer(64);
    let mut sequence = 0;
    let mut order = Vec::new();
    for _ in 0..100_000 {
        while world.control() {}
        while world.data(0) {}
        while world.publish(producer, sequence) {
            sequence += 1;
        }
        order.push(world.take().unwrap());
    }
    let data = |n: usize| order[..n].iter().filter(|&&lane| lane == 'd').count();
    assert!(order[..32].iter().all(|&lane| lane == 'c'));
    assert_eq!(order[32], 'd');
    assert_eq!((data(3_600), data(100_000)), (397, 11_108));
    let ahead = order
        .windows(360)
        .map(|w| w.iter().filter(|&&l| l == 'd').count())
        .min();
    assert!(ahead >= Some((360 - 32_usize).div_ceil(9)), "{ahead:?}");
}

#[test]
fn prio_low_starved_a_lone_control_request_is_next_however_much_data_there_is() {
    let mut world = world();
    let producer = world.producer(64);
    let (mut sequence, mut since) = (0, 0);
    for i in 0..20_000 {
        while world.publish(producer, sequence) {
            sequence += 1;
        }
        while world.data(0) {}
        if i % 100 == 99 {
            assert!(world.control());
            assert_eq!(world.take(), Some('c'), "after {since} data items");
            since = 0;
        } else {
            assert_eq!(world.take(), Some('d'));
            since += 1;
        }
    }
}

#[test]
fn prio_low_starved_31_controls_and_one_data_item_for_ever_still_leave_one_in_nine() {
    let mut world = world();
    let (mut dispatched, mut data) = (0_u32, 0_u32);
    for _ in 0..1_000 {
        for _ in 0..31 {
            assert!(world.control());
        }
        let mut control = 0;
        while control < 31 {
            while world.data(0) {}
            dispatched += 1;
            match world.take().unwrap() {
                'c' => control += 1,
                _ => data += 1,
            }
        }
        // One data item more now that control is gone: a count that any data clears starts anew.
        while world.data(0) {}
        dispatched += 1;
        data += u32::from(world.take() == Some('d'));
    }
    assert!(
        data >= (dispatched - 32).div_ceil(9),
        "{data} of {dispatched}"
    );
}

#[test]
fn data_sources_take_turns_of_sixteen_and_keep_their_order() {
    let mut world = world();
    let producers = [world.producer(64), world.producer(64)];
    for sequence in 0..64 {
        for producer in producers {
            assert!(world.publish(producer, sequence));
        }
        assert!(world.data(sequence));
        world.peer_forward(sequence);
    }
    world.peer.flush(&mut pelton_metrics::Counters::new());
    let mut next = [0_u64; 4];
    let mut visits: Vec<(usize, u32)> = Vec::new();
    world.inbox.look();
    loop {
        let mut published = None;
        let item = world.next(|input| {
            if let Input::Publish(id, publish) = input {
                published = Some((id.slot as usize, publish.sequence));
            }
            Handled::Taken
        });
        let (source, number) = match item {
            None => break,
            Some(Next::Entry) => published.unwrap(),
            Some(Next::Data(Data::Ack { position, .. })) => (2, position.entry),
            Some(Next::Shard(Item::Peer {
                from: 1,
                data: PeerData::Forward(forwarded),
            })) => (3, forwarded.arrived_ns),
            Some(other) => panic!("{other:?}"),
        };
        assert_eq!(number, next[source], "FIFO within source {source}");
        next[source] += 1;
        match visits.last_mut() {
            Some((last, count)) if *last == source => *count += 1,
            _ => visits.push((source, 1)),
        }
    }
    assert_eq!(next, [64; 4]);
    assert_eq!(visits.len(), 16);
    assert!(visits.iter().all(|&(_, count)| count == 16), "{visits:?}");
}

impl World {
    /// A forward of shard 1, numbered by its arrival.
    fn peer_forward(&mut self, number: u64) {
        let producer = ProducerId {
            slot: 99,
            serial: 1,
        };
        self.peer.set_now(number);
        self.peer
            .forward(&crate::port::ForwardTo { shard: 0, producer }, b"x", 1, 0)
            .unwrap();
        let consumer = ConsumerId { slot: 0, serial: 1 };
        assert!(self.peer.send_current(
            consumer,
            Position {
                ledger: 1,
                entry: number
            }
        ));
    }
}

#[test]
fn a_held_entry_stays_first_of_its_producer_and_holds_up_nobody_else() {
    let mut world = world();
    let (held, free) = (world.producer(16), world.producer(16));
    for sequence in 0..8 {
        assert!(world.publish(held, sequence));
        assert!(world.publish(free, sequence));
    }
    let mut offered = Vec::new();
    let mut got = Vec::new();
    let mut drain = |world: &mut World, room: bool| {
        world.inbox.look();
        while let Some(next) = world.next(|input| {
            let Input::Publish(id, publish) = input else {
                panic!()
            };
            if id.slot == 0 {
                offered.push(publish.sequence);
                if !room {
                    return Handled::Held;
                }
            }
            got.push((id.slot, publish.sequence));
            Handled::Taken
        }) {
            assert!(matches!(next, Next::Entry));
        }
        (std::mem::take(&mut offered), std::mem::take(&mut got))
    };
    let (offered, got) = drain(&mut world, false);
    assert_eq!(offered, [0], "once per turn");
    assert_eq!(
        got,
        (0..8).map(|sequence| (1, sequence)).collect::<Vec<_>>()
    );
    assert!(!world.inbox.has_work(), "it does not keep the shard awake");
    assert!(world.inbox.producers.any_held());
    let (offered, got) = drain(&mut world, false);
    assert_eq!((offered, got), (vec![0], vec![]));
    let (_, got) = drain(&mut world, true);
    assert_eq!(
        got,
        (0..8).map(|sequence| (0, sequence)).collect::<Vec<_>>()
    );
    assert!(!world.inbox.producers.any_held());
}

#[test]
fn a_fenced_close_comes_after_exactly_its_own_entries() {
    let mut world = world();
    let producers: VecDeque<usize> = (0..50).map(|_| world.producer(128)).collect();
    for &producer in &producers {
        for sequence in 0..100 {
            assert!(world.publish(producer, sequence));
        }
    }
    for &producer in &producers {
        let request = Request::CloseProducer {
            producer: world.rings[producer].0,
        };
        assert!(world.handle.request(request, Ports::None).is_ok());
    }
    let mut taken = [0_u64; 50];
    let mut closed = [false; 50];
    loop {
        world.inbox.look();
        let item = world.next(|input| {
            let Input::Publish(id, publish) = input else {
                panic!()
            };
            let slot = id.slot as usize;
            assert!(!closed[slot]);
            assert_eq!(publish.sequence, taken[slot]);
            taken[slot] += 1;
            Handled::Taken
        });
        match item {
            None => break,
            Some(Next::Shard(Item::Control(stamped))) => {
                let Control::Request { request, .. } = stamped.control else {
                    panic!()
                };
                let Request::CloseProducer { producer } = request else {
                    panic!()
                };
                let slot = producer.slot as usize;
                assert_eq!(taken[slot], 100);
                closed[slot] = true;
                // Too late: this is refused, not taken.
                assert!(world.publish(slot, 100));
            }
            Some(_) => {}
        }
    }
    assert!(closed.iter().all(|&closed| closed));
    assert!(taken.iter().all(|&taken| taken == 100));
}

#[test]
fn control_that_closes_a_consumer_waits_for_the_acks_before_it_and_nothing_else_does() {
    let mut world = world();
    for entry in 0..100 {
        assert!(world.data(entry));
    }
    let request = || Request::FlushAcks {
        consumer: ConsumerId { slot: 0, serial: 1 },
    };
    assert!(world.handle.request(request(), Ports::None).is_ok());
    for entry in 100..200 {
        assert!(world.data(entry));
    }
    assert!(world.control());
    let mut order = Vec::new();
    world.inbox.look();
    while let Some(next) = world.next(|_| Handled::Taken) {
        order.push(match next {
            Next::Data(_) => 'd',
            Next::Shard(Item::Control(item)) if is_fenced(&item.control) => 'f',
            _ => 's',
        });
    }
    assert_eq!(order.iter().position(|&c| c == 's'), Some(0), "not fenced");
    let acks = order.iter().position(|&c| c == 'f').unwrap() - 1;
    // The fence is counted when the request is looked at: what was pushed until then is before it.
    assert_eq!(acks, 200);
    assert_eq!(order.len(), 202);
}

#[test]
fn what_a_full_lane_kept_is_behind_it_and_in_front_of_all_that_follows() {
    let mut world = world();
    let consumer = ConsumerId { slot: 0, serial: 1 };
    let data = (0..).take_while(|&i| world.data(i)).count() as u64;
    for i in data..data + 300 {
        world.handle.keep_data(ack(i)).unwrap();
    }
    let close = Request::CloseConsumer { consumer };
    let _closed = world.handle.request(close, Ports::None).unwrap();
    let control = 1 + (0..).take_while(|_| world.control()).count();
    let (reply, _from) = crate::port::reply();
    let flush = Control::Request {
        request: Request::FlushAcks { consumer },
        ports: Ports::None,
        reply,
    };
    world.handle.keep_control(flush).unwrap();

    let (mut acks, mut controls, mut fenced) = (0, 0, Vec::new());
    assert!(world.inbox.has_work());
    assert_eq!(world.inbox.depths(), (control + 1, data as usize + 300));
    loop {
        world.inbox.look();
        match world.next(|_| Handled::Taken) {
            None => break,
            Some(Next::Data(ack_of)) => {
                assert_eq!(ack_of, ack(acks), "out of order");
                acks += 1;
                // Full, whatever room there is, until the last one that was kept is taken.
                assert_eq!(world.handle.data(ack(9)).is_ok(), acks >= data + 300);
                if acks >= data + 300 {
                    break;
                }
            }
            Some(Next::Shard(Item::Control(item))) if is_fenced(&item.control) => {
                fenced.push(acks);
            }
            Some(Next::Shard(Item::Control(_))) => controls += 1,
            other => panic!("{other:?}"),
        }
    }
    while let Some(next) = world.next(|_| Handled::Taken) {
        if let Next::Shard(Item::Control(item)) = next
            && is_fenced(&item.control)
        {
            fenced.push(acks);
        }
    }
    assert_eq!(controls, control - 1);
    assert_eq!(fenced, [data + 300; 2], "a close or flush in front of acks");
    assert!(world.control(), "room again");
}

fn is_fenced(control: &Control) -> bool {
    matches!(
        control,
        Control::Request {
            request: Request::FlushAcks { .. } | Request::CloseConsumer { .. },
            ..
        }
    )
}

#[test]
fn a_full_lane_takes_nothing_from_the_other() {
    let world = world();
    while world.data(0) {}
    assert_eq!(world.inbox.depths(), (0, 1_024));
    let mut control = 0;
    while world.control() {
        control += 1;
    }
    assert_eq!(control, 256);
}

#[test]
fn what_is_queued_when_the_inbox_closes_is_counted_and_its_askers_are_told() {
    let mut world = world();
    let asked: Vec<_> = (0..10)
        .map(|_| world.handle.request(Request::Stats, Ports::None).unwrap())
        .collect();
    for entry in 0..500 {
        assert!(world.data(entry));
    }
    assert_eq!(world.inbox.close(), (10, 500));
    assert!(asked.iter().all(|from| from.try_take().is_err()));
    assert!(!world.control() && !world.data(0));
    assert!(world.handle.is_closed());
}

#[test]
fn forwarded_entries_join_the_ring_order_of_their_own_producer() {
    let mut world = world();
    let slot = world.inbox.producers.open_forward(false).unwrap();
    let producer = ProducerId { slot, serial: 7 };
    world.inbox.producers.attached(producer);
    for number in 0..5 {
        let forwarded = Forwarded {
            producer,
            messages: 1,
            key_hash: 0,
            arrived_ns: number,
            from: 1,
            token: number as u32,
            body: vec![number as u8],
        };
        world.inbox.producers.enqueue(forwarded).unwrap();
        world.inbox.activate(slot);
    }
    let mut got = Vec::new();
    while world
        .next(|input| {
            let Input::Publish(id, publish) = input else {
                panic!()
            };
            got.push((*id, publish.sequence, publish.body[0]));
            Handled::Taken
        })
        .is_some()
    {}
    assert_eq!(
        got,
        (0..5).map(|n| (producer, n, n as u8)).collect::<Vec<_>>()
    );
}
