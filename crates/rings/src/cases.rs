//! The cases of the catalogue that concern rings; each test is named after its case.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::catch_unwind;
use std::rc::Rc;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use crate::mpsc::Mpsc;
use crate::{
    Credit, Full, Item, Lane, PriorityReceiver, PriorityRing, ReadyWords, Wake, priority, slots,
    spsc,
};

const STARTS: [usize; 3] = [0, usize::MAX - 2, usize::MAX - 10];

/// Runs `pushes` pushes and pops with up to 4 values inside, the way the case describes it.
/// `push` and `pop` are the ring; `len` is asked after each step.
fn wrap_around(
    capacity: usize,
    mut push: impl FnMut(u64) -> bool,
    mut pop: impl FnMut() -> Option<u64>,
    len: impl Fn() -> usize,
) {
    const PUSHES: u64 = if cfg!(debug_assertions) {
        100_000
    } else {
        1_000_000
    };
    let (mut pushed, mut popped) = (0, 0);
    while pushed < PUSHES {
        for _ in 0..=pushed % 4 {
            let fits = ((pushed - popped) as usize) < capacity;
            assert_eq!(push(pushed), fits, "push {pushed} with {popped} popped");
            pushed += u64::from(fits);
            assert_eq!(len() as u64, pushed - popped);
        }
        for _ in 0..=popped % 3 {
            let expected = (popped < pushed).then_some(popped);
            assert_eq!(pop(), expected);
            popped += u64::from(expected.is_some());
            assert_eq!(len() as u64, pushed - popped);
        }
        while pushed - popped > 4 {
            assert_eq!(pop(), Some(popped));
            popped += 1;
        }
    }
}

#[test]
fn queue_wrap_nonpow2() {
    for (capacity, start) in [1, 2, 8].into_iter().flat_map(|c| STARTS.map(|s| (c, s))) {
        let (mut sender, receiver) = spsc::starting_at(capacity, start);
        assert_eq!(sender.capacity(), capacity);
        let receiver = std::cell::RefCell::new(receiver);
        let len = || receiver.borrow().len();
        wrap_around(
            capacity,
            |v| sender.push(v).is_ok(),
            || receiver.borrow_mut().pop(),
            len,
        );

        let (mut sender, receiver) = slots::starting_at(capacity, start);
        assert_eq!(sender.capacity(), capacity);
        let receiver = std::cell::RefCell::new(receiver);
        let push = |value| sender.push_with(|slot| *slot = value).is_ok();
        let pop = || receiver.borrow_mut().pop_with(|slot| *slot);
        wrap_around(capacity, push, pop, || receiver.borrow().len());

        let (lane, mut head) = Mpsc::new(capacity, start);
        assert_eq!(lane.capacity(), capacity);
        wrap_around(
            capacity,
            |v| lane.push(v).is_ok(),
            || lane.pop(&mut head),
            || lane.len(),
        );
    }
    for capacity in [0, 3, 5, 7] {
        assert!(
            catch_unwind(|| crate::spsc::<u8>(capacity)).is_err(),
            "{capacity}"
        );
        assert!(
            catch_unwind(|| crate::slots::<u8>(capacity)).is_err(),
            "{capacity}"
        );
        assert!(catch_unwind(|| crate::priority_ring::<u8, u8>(capacity, 1)).is_err());
        assert!(catch_unwind(|| crate::priority_ring::<u8, u8>(1, capacity)).is_err());
    }
}

#[test]
fn queue_wrap_nonpow2_a_batch_claim_crosses_the_end() {
    for start in STARTS {
        for before in 0..8 {
            let (lane, mut head) = Mpsc::new(8, start);
            for value in 0..before {
                lane.push(value).unwrap();
                assert_eq!(lane.pop(&mut head), Some(value));
            }
            let mut batch = 0..20;
            assert_eq!(lane.push_batch(&mut batch), 8);
            assert_eq!((batch, lane.len()), (8..20, 8));
            let popped: Vec<i32> = std::iter::from_fn(|| lane.pop(&mut head)).collect();
            assert_eq!(popped, [0, 1, 2, 3, 4, 5, 6, 7]);
        }
    }
}

#[test]
fn queue_capacity_off_by_one() {
    for capacity in [1, 2, 64] {
        let (mut sender, mut receiver) = crate::spsc(capacity);
        assert!((0..capacity).all(|value| sender.push(value).is_ok()));
        assert_eq!(sender.push(capacity), Err(Full(capacity)));
        assert_eq!(
            (sender.capacity(), receiver.capacity()),
            (capacity, capacity)
        );
        // As many credits as places: each pop gives one back, and the push it pays for goes.
        for value in 0..1_000 {
            assert_eq!(receiver.pop(), Some(value));
            sender.push(value + capacity).unwrap();
        }

        let (mut sender, receiver) = crate::slots(capacity);
        assert!((0..capacity).all(|value| sender.push_with(|slot| *slot = value).is_ok()));
        assert_eq!(sender.push_with(|slot| *slot = capacity), Err(Full(())));
        assert_eq!(
            (sender.capacity(), receiver.capacity()),
            (capacity, capacity)
        );

        let (ring, _receiver) = crate::priority_ring(capacity, capacity);
        assert!((0..capacity).all(|value| ring.push_control(value).is_ok()));
        assert_eq!(ring.push_control(capacity), Err(Full(capacity)));
        let mut data = 0..capacity + 1;
        assert_eq!(ring.push_data_batch(&mut data), (capacity, Wake::NotNeeded));
        assert_eq!(data, capacity..capacity + 1);
        assert_eq!(ring.push_data(capacity), Err(Full(capacity)));
        assert_eq!(
            (ring.capacity(), ring.len()),
            ((capacity, capacity), 2 * capacity)
        );
    }
}

#[test]
fn queue_stalled_producer() {
    let (ring, mut receiver) = crate::priority_ring::<u32, u32>(4, 4);
    let claim = ring.claim_data(1);
    assert_eq!(ring.push_data(1), Ok(Wake::NotNeeded));
    // Non-blocking: the lane says "empty", it does not wait for the one who sleeps.
    assert_eq!((receiver.pop_data(), receiver.pop()), (None, None));
    assert!(receiver.stalled() && !receiver.has_published());
    assert_eq!((receiver.data_len(), receiver.is_drained()), (2, false));
    // The other lane is served meanwhile.
    for value in 0..100 {
        assert_eq!(ring.push_control(value), Ok(Wake::NotNeeded));
        assert_eq!(receiver.pop(), Some(Item::Control(value)));
    }
    claim.unwrap().publish(Some(0));
    assert!(!receiver.stalled());
    assert_eq!(
        (receiver.pop_data(), receiver.pop_data()),
        (Some(0), Some(1))
    );
    assert!(receiver.is_drained());
}

#[test]
fn queue_stalled_producer_yielding_between_claim_and_publish() {
    const EACH: u64 = 1_000;
    let (ring, mut receiver) = crate::priority_ring::<(), (u64, u64)>(1, 8);
    std::thread::scope(|scope| {
        for source in 0..4 {
            let ring = ring.clone();
            scope.spawn(move || {
                for number in 0..EACH {
                    let mut claim = loop {
                        match ring.claim_data(1) {
                            Some(claim) => break claim,
                            None => std::thread::yield_now(),
                        }
                    };
                    std::thread::yield_now();
                    claim.publish(Some((source, number)));
                }
            });
        }
        let mut next = [0; 4];
        while next != [EACH; 4] {
            if let Some((source, number)) = receiver.pop_data() {
                assert_eq!(number, next[source as usize], "source {source}");
                next[source as usize] += 1;
            } else {
                std::thread::yield_now();
            }
        }
    });
}

#[test]
fn queue_drop_leak() {
    for (start, receiver_first) in STARTS.into_iter().flat_map(|s| [(s, false), (s, true)]) {
        let token = Rc::new(());
        let (mut sender, mut receiver) = spsc::starting_at(16, start);
        (0..10).for_each(|_| sender.push(Rc::clone(&token)).unwrap());
        (0..3).for_each(|_| drop(receiver.pop().unwrap()));
        assert_eq!(Rc::strong_count(&token), 8);
        drop_both(sender, receiver, receiver_first);
        assert_eq!(Rc::strong_count(&token), 1);

        let (ring, mut receiver) = priority::starting_at(16, 16, start);
        (0..10).for_each(|_| assert!(ring.push_control(Rc::clone(&token)).is_ok()));
        (0..10).for_each(|_| assert!(ring.push_data(Rc::clone(&token)).is_ok()));
        (0..3).for_each(|_| drop((receiver.pop_data(), receiver.pop_control())));
        assert_eq!(Rc::strong_count(&token), 15);
        drop_both(ring, receiver, receiver_first);
        assert_eq!(Rc::strong_count(&token), 1);

        let (mut sender, mut receiver) = slots::starting_at::<Option<Rc<()>>>(16, start);
        (0..10).for_each(|_| sender.push_with(|s| *s = Some(Rc::clone(&token))).unwrap());
        (0..3).for_each(|_| drop(receiver.pop_with(Option::take)));
        assert_eq!(Rc::strong_count(&token), 8);
        drop_both(sender, receiver, receiver_first);
        assert_eq!(Rc::strong_count(&token), 1);
    }
}

fn drop_both<A, B>(a: A, b: B, b_first: bool) {
    if b_first {
        drop(b);
        drop(a);
    } else {
        drop(a);
        drop(b);
    }
}

#[test]
fn prio_low_starved() {
    // Through the rings: control never empty, much data, full credit.
    let (ring, mut receiver) = crate::priority_ring::<u32, u32>(4, 16_384);
    let (mut controls, mut datas) = (0..u32::MAX, 0..u32::MAX);
    let (mut control_next, mut data_next, mut data_in_first) = (0, 0, Vec::new());
    for dispatch in 1..=100_000 {
        while ring.control_len() < 4 {
            assert!(ring.push_control(controls.next().unwrap()).is_ok());
        }
        while ring.data_len() < 16_384 {
            assert!(ring.push_data(datas.next().unwrap()).is_ok());
        }
        match receiver.pop().unwrap() {
            Item::Control(number) => {
                assert_eq!(number, control_next);
                control_next += 1;
            }
            Item::Data(number) => {
                assert_eq!(number, data_next);
                data_next += 1;
            }
        }
        if matches!(dispatch, 32 | 33 | 3_600 | 100_000) {
            data_in_first.push(data_next);
        }
    }
    assert_eq!(data_in_first, [0, 1, 397, 11_108]);

    // A lone control request goes next.
    let mut credit = Credit::new();
    assert!((0..1_000).all(|_| credit.choose(false, true) == Some(Lane::Data)));
    assert_eq!(credit.choose(true, true), Some(Lane::Control));

    // 31 controls, one data, again and again.
    let mut credit = Credit::new();
    let data = (0..100_000).filter(|i| credit.choose(i % 32 != 31, true) == Some(Lane::Data));
    assert!(data.count() >= (100_000 - 32) / 9);
}

/// Stands for the eventfd: a written mark stays until the sleeper takes it.
fn write_eventfd(eventfd: &SyncSender<()>, wake: Wake) -> u64 {
    let _already_written = wake == Wake::Needed && eventfd.try_send(()).is_err();
    u64::from(wake == Wake::Needed)
}

#[test]
fn wake_stolen() {
    const EACH: u64 = if cfg!(debug_assertions) {
        20_000
    } else {
        200_000
    };
    let (ring, mut receiver) = crate::priority_ring::<u64, u64>(4, 4);
    let (eventfd, poller) = sync_channel(1);
    let (mut announced, mut wakes) = (0, 0);
    std::thread::scope(|scope| {
        let pushers: Vec<_> = (0..3)
            .map(|source| {
                let (ring, eventfd) = (ring.clone(), eventfd.clone());
                scope.spawn(move || {
                    let mut written = 0;
                    for number in 0..EACH {
                        let push = || match (source + number) % 3 {
                            0 => ring.push_control(1).ok(),
                            _ => ring.push_data(1).ok(),
                        };
                        let wake = loop {
                            match push() {
                                Some(wake) => break wake,
                                None => std::thread::yield_now(),
                            }
                        };
                        written += write_eventfd(&eventfd, wake);
                    }
                    written
                })
            })
            .collect();
        let mut popped = 0;
        while popped < 3 * EACH {
            if receiver.pop().is_some() {
                popped += 1;
                continue;
            }
            receiver.doorbell().announce();
            announced += 1;
            if !receiver.has_published() {
                // A rescue: it slept until its deadline while something was there.
                let woken = poller.recv_timeout(Duration::from_secs(20));
                assert_ne!(woken, Err(RecvTimeoutError::Timeout), "{popped} popped");
            }
            receiver.doorbell().disarm();
        }
        wakes = pushers
            .into_iter()
            .map(|pusher| pusher.join().unwrap())
            .sum::<u64>();
    });
    assert!(
        wakes <= announced,
        "{wakes} wakes for {announced} announcements"
    );
}

/// Counts the allocations of threads that ask for it.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: hands everything to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise, passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise, passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[test]
fn nothing_is_allocated_after_construction() {
    let (mut sender, mut receiver) = crate::spsc(64);
    let (mut slot_sender, mut slot_receiver) = crate::slots::<u64>(64);
    let (ring, mut inbox): (PriorityRing<u64, u64>, PriorityReceiver<u64, u64>) =
        crate::priority_ring(16, 64);
    let ready = ReadyWords::new(1_000);
    let before = ALLOCATIONS.get();
    for i in 0..10_000 {
        sender.push_chunk(&mut (0..40));
        receiver.pop_chunk(40, |_| ());
        slot_sender.push_with(|slot| *slot = i).unwrap();
        slot_receiver.pop_with(|slot| *slot).unwrap();
        assert!(
            ring.push_control(i).is_ok() && ring.push_data_batch(&mut [i; 40].into_iter()).0 == 40
        );
        while inbox.pop().is_some() {}
        assert_eq!(ready.set_and_ring(999, ring.doorbell()), Wake::NotNeeded);
        assert_ne!(ready.take(15), 0);
    }
    assert_eq!(ALLOCATIONS.get(), before);
}
