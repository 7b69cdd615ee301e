//! loom models of sleep and wake: the doorbell over two lanes, close, ready bits
//! (`spec/priority_and_balance.md` A13.2). Their broken twins are in `mutants.rs`.

use loom::thread;

use crate::models::{Popped, Ring, START, check};
use crate::sync::Arc;
use crate::{Doorbell, PriorityReceiver, ReadyWords, Wake, priority, spsc};

/// The idle loop of a shard over the two lanes, until `items` have come. A lost wake-up is a
/// deadlock, which loom reports.
fn shard(receiver: &mut PriorityReceiver<u32, u32>, items: u32) {
    let mut popped = Popped::default();
    loop {
        popped.drain(receiver);
        if popped.count == items {
            return;
        }
        receiver.doorbell().announce();
        if !receiver.has_published() {
            thread::park();
        }
        receiver.doorbell().disarm();
    }
}

fn wake(shard: &thread::Thread, wake: Wake) {
    if wake == Wake::Needed {
        shard.unpark();
    }
}

/// One pusher thread for each letter: `c` control, `d` data.
fn wakes_for(letters: &'static str, preemptions: usize) {
    check(preemptions, move || {
        let (ring, mut receiver) = priority::starting_at(2, 2, START);
        let owner = thread::current();
        let pushers: Vec<_> = letters
            .chars()
            .enumerate()
            .map(|(source, letter)| {
                let (ring, owner): (Ring, _) = (ring.clone(), owner.clone());
                let value = source as u32 * 10;
                thread::spawn(move || {
                    match letter {
                        'c' => wake(&owner, ring.push_control(value).unwrap()),
                        _ => wake(&owner, ring.push_data(value).unwrap()),
                    }
                    ring // Dropped after the join: fewer interleavings of no interest.
                })
            })
            .collect();
        shard(&mut receiver, letters.len() as u32);
        let _rings: Vec<_> = pushers
            .into_iter()
            .map(|pusher| pusher.join().unwrap())
            .collect();
    });
}

#[test]
fn the_doorbell_wakes_for_a_control_and_a_data_item() {
    wakes_for("cd", 3);
}

#[test]
fn the_doorbell_wakes_for_two_data_items() {
    wakes_for("dd", 3);
}

#[test]
fn the_doorbell_wakes_for_three_pushers() {
    wakes_for("ccd", 2);
}

#[test]
fn the_doorbell_wakes_for_a_close() {
    check(3, || {
        let (ring, mut receiver) = priority::starting_at(2, 2, START);
        let owner = thread::current();
        let other: Ring = ring.clone();
        let pusher = {
            let owner = owner.clone();
            thread::spawn(move || u32::from(other.push_control(0).map(|w| wake(&owner, w)).is_ok()))
        };
        let stopper = thread::spawn(move || {
            ring.close();
            wake(&owner, ring.doorbell().ring());
        });
        shard_until_closed(&mut receiver);
        stopper.join().unwrap();
        let pushed = pusher.join().unwrap();
        assert!(receiver.is_drained() && pushed <= 1);
    });
}

/// Sleeps until the inbox is closed and drained.
fn shard_until_closed(receiver: &mut PriorityReceiver<u32, u32>) {
    let mut popped = Popped::default();
    loop {
        popped.drain(receiver);
        if receiver.is_closed() && receiver.is_drained() {
            return;
        }
        receiver.doorbell().announce();
        let stop = receiver.is_closed() && receiver.is_drained();
        if !receiver.has_published() && !stop {
            thread::park();
        }
        receiver.doorbell().disarm();
    }
}

/// `peers` threads push `items` each into a ring of their own and set their ready bit.
fn wakes_for_peers(peers: usize, items: u32, preemptions: usize, with_one_fence: bool) {
    check(preemptions, move || {
        let shared = Arc::new((ReadyWords::new(64), Doorbell::new()));
        let owner = thread::current();
        let mut receivers = Vec::new();
        let pushers: Vec<_> = (0..peers)
            .map(|peer| {
                let (mut sender, receiver) = spsc::starting_at(2, START);
                receivers.push((receiver, 0));
                let (shared, owner) = (Arc::clone(&shared), owner.clone());
                thread::spawn(move || {
                    let (ready, doorbell) = &*shared;
                    for value in 0..items {
                        sender.push(value).unwrap();
                        if with_one_fence {
                            wake(&owner, ready.set_and_ring(peer, doorbell));
                        } else {
                            ready.set(peer);
                            wake(&owner, doorbell.ring());
                        }
                    }
                    (sender, shared) // Dropped after the join, as above.
                })
            })
            .collect();
        let (ready, doorbell) = &*shared;
        while receivers.iter().any(|(_, popped)| *popped < items) {
            let bits = ready.take(0);
            for (peer, (receiver, popped)) in receivers.iter_mut().enumerate() {
                while bits >> peer & 1 == 1
                    && let Some(value) = receiver.pop()
                {
                    assert_eq!(value, *popped);
                    *popped += 1;
                }
            }
            if bits != 0 {
                continue;
            }
            doorbell.announce();
            if !ready.any() {
                thread::park();
            }
            doorbell.disarm();
        }
        let _ends: Vec<_> = pushers
            .into_iter()
            .map(|pusher| pusher.join().unwrap())
            .collect();
    });
}

/// A peer whose bit stays set: its ring is looked at instead, until the bit is cleared after the first
/// item; from then on the bit tells again.
#[test]
fn a_peer_that_is_watched_and_then_not_any_more_is_not_lost() {
    check(3, || {
        let shared = Arc::new((ReadyWords::new(64), Doorbell::new()));
        let owner = thread::current();
        let (mut sender, mut receiver) = spsc::starting_at(2, START);
        let pusher = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (ready, doorbell) = &*shared;
                for value in 0..2 {
                    sender.push(value).unwrap();
                    wake(&owner, ready.set_and_ring(0, doorbell));
                }
                (sender, shared) // Dropped after the join, as above.
            })
        };
        let (ready, doorbell) = &*shared;
        let (mut popped, mut watched) = (0, true);
        loop {
            if ready.look(0) != 0 && !watched {
                ready.clear(0, 1);
            }
            while let Some(value) = receiver.pop() {
                assert_eq!(value, popped);
                popped += 1;
            }
            if popped == 2 {
                break;
            }
            if watched && popped == 1 {
                watched = false;
                ready.clear(0, 1);
                continue; // Looks once more.
            }
            doorbell.announce();
            let news = if watched {
                !receiver.is_empty()
            } else {
                ready.look(0) != 0
            };
            if !news {
                thread::park();
            }
            doorbell.disarm();
        }
        let _ends = pusher.join().unwrap();
    });
}

#[test]
fn a_ready_bit_set_while_set_is_not_lost() {
    wakes_for_peers(1, 2, 3, false);
}

#[test]
fn a_ready_bit_set_and_rung_with_one_fence_is_not_lost() {
    wakes_for_peers(1, 2, 3, true);
}

#[test]
fn ready_bits_of_two_peers_are_not_lost() {
    wakes_for_peers(2, 1, 3, true);
    wakes_for_peers(2, 1, 3, false);
}

#[test]
fn ready_bits_of_three_peers_are_not_lost() {
    wakes_for_peers(3, 1, 2, true);
}
