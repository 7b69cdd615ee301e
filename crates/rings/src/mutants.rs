//! Broken twins of the wake-up protocol: each must fail in loom (`spec/priority_and_balance.md`
//! A13.3, `spec/runtime.md` 10.2), else the models prove nothing.
//!
//! The protocol is written out once more, small, from the same atomics, with one fault that can be
//! switched on. Without a fault it must pass. Each runs in a child process: a deadlock found by
//! loom may abort it.

use std::process::Command;

use loom::thread::{self, Thread};

use crate::models::check;
use crate::sync::{
    Arc, AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, UnsafeCell, fence,
};

/// Names the fault and the scenario to the child.
const VARIABLE: &str = "PELTON_RINGS_MUTANT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Must pass: the pusher clears `sleeping` by load and store, which may ring twice.
    ClearedByStore,
    /// Must pass: the plain protocol of A2.4, which never skips the RMW and so needs no fence in the
    /// taker.
    BitAlwaysSet,
    AnnouncedAfterTheSecondLook,
    NoSecondLook,
    SecondLookAtControlOnly,
    SecondLookAtDataOnly,
    NoSecondLookAtStop,
    RungOnlyIfTheRingLookedEmpty,
    NoFenceInThePusher,
    NoFenceInTheConsumer,
    PublishedRelaxed,
    SequenceReadRelaxed,
    BitBeforePublish,
    /// `BitAlwaysSet`, Relaxed. (With the fence of the taker in place loom cannot show the fault: it
    /// runs a fence together with the operation before it. By C11 it is one all the same.)
    BitSetAndTakenRelaxed,
    SetSkippedWithoutFence,
    TakenWithoutFence,
    /// A watched source is let go, and not looked at after its bit is cleared.
    LetGoWithoutLook,
}

impl Fault {
    fn always_sets(self) -> bool {
        matches!(self, BitAlwaysSet | BitSetAndTakenRelaxed)
    }
}

/// Who pushes; one thread each.
#[derive(Clone, Copy, Debug)]
enum Scenario {
    /// Control and data item by item: "cd", "dd", and 's' for the stop flag.
    Lanes(&'static str),
    /// Ready bits: so many peers with so many items each.
    Peers(usize, usize),
    /// One peer with two items, watched until the first has come.
    Watched,
}

use Fault::*;

const CD: Scenario = Scenario::Lanes("cd");
const DD: Scenario = Scenario::Lanes("dd");
const C_STOP: Scenario = Scenario::Lanes("cs");
const TWO_PEERS: Scenario = Scenario::Peers(2, 1);
const PEER_TWICE: Scenario = Scenario::Peers(1, 2);
const WATCHED: Scenario = Scenario::Watched;

const DEADLOCK: &str = "deadlock";
const RACE: &str = "Causality violation";

/// What must pass, and what must fail with which words of loom.
const CASES: [(Fault, Scenario, Option<&str>); 24] = [
    (None, CD, Option::None),
    (None, DD, Option::None),
    (None, C_STOP, Option::None),
    (None, TWO_PEERS, Option::None),
    (None, PEER_TWICE, Option::None),
    (ClearedByStore, CD, Option::None),
    (BitAlwaysSet, TWO_PEERS, Option::None),
    (BitAlwaysSet, PEER_TWICE, Option::None),
    (AnnouncedAfterTheSecondLook, CD, Some(DEADLOCK)),
    (NoSecondLook, CD, Some(DEADLOCK)),
    (SecondLookAtControlOnly, CD, Some(DEADLOCK)),
    (SecondLookAtDataOnly, CD, Some(DEADLOCK)),
    (NoSecondLookAtStop, C_STOP, Some(DEADLOCK)),
    (RungOnlyIfTheRingLookedEmpty, DD, Some(DEADLOCK)),
    (NoFenceInThePusher, CD, Some(DEADLOCK)),
    (NoFenceInTheConsumer, CD, Some(DEADLOCK)),
    (PublishedRelaxed, CD, Some(RACE)),
    (SequenceReadRelaxed, CD, Some(RACE)),
    (BitBeforePublish, TWO_PEERS, Some(DEADLOCK)),
    (BitSetAndTakenRelaxed, TWO_PEERS, Some(DEADLOCK)),
    (SetSkippedWithoutFence, PEER_TWICE, Some(DEADLOCK)),
    (TakenWithoutFence, PEER_TWICE, Some(DEADLOCK)),
    (None, WATCHED, Option::None),
    (LetGoWithoutLook, WATCHED, Some(DEADLOCK)),
];

#[test]
fn every_mutant_fails_and_the_protocol_without_fault_passes() {
    let program = std::env::current_exe().unwrap();
    for (index, (fault, scenario, words)) in CASES.into_iter().enumerate() {
        let child = Command::new(&program)
            .args([
                "--exact",
                "mutants::one_in_a_child",
                "--ignored",
                "--nocapture",
            ])
            .env(VARIABLE, index.to_string())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert_eq!(
            child.status.success(),
            words.is_none(),
            "{fault:?} with {scenario:?}; the child said:\n{said}",
        );
        let expected = words.unwrap_or("");
        assert!(
            said.contains(expected),
            "{fault:?} failed without {expected:?}:\n{said}"
        );
    }
}

#[test]
#[ignore = "started by every_mutant_fails_and_the_protocol_without_fault_passes"]
fn one_in_a_child() {
    let index: usize = std::env::var(VARIABLE).unwrap().parse().unwrap();
    let (fault, scenario, _) = CASES[index];
    check(3, move || match scenario {
        Scenario::Lanes(letters) => lanes(fault, letters),
        Scenario::Peers(peers, items) => ready_bits(fault, peers, items),
        Scenario::Watched => watched(fault),
    });
}

/// A ring of two that is never filled a second time.
#[derive(Default)]
struct Lane {
    tail: AtomicUsize,
    head: AtomicUsize,
    published: [AtomicBool; 2],
    places: [Place; 2],
}

struct Place(UnsafeCell<usize>);

impl Default for Place {
    fn default() -> Place {
        Place(UnsafeCell::new(0))
    }
}

// SAFETY: a place is written before and read after its `published` flag; that this holds is what
// the models check.
unsafe impl Sync for Place {}

impl Lane {
    /// Writes and publishes the next place; whether the ring looked empty before.
    fn push(&self, fault: Fault, value: usize) -> bool {
        let position = self.tail.fetch_add(1, Ordering::Relaxed);
        let looked_empty = position == self.head.load(Ordering::Relaxed);
        self.places[position].0.with_mut(|place| {
            // SAFETY: claimed by us alone.
            unsafe { place.write(value) };
        });
        let order = if fault == PublishedRelaxed {
            Ordering::Relaxed
        } else {
            Ordering::Release
        };
        self.published[position].store(true, order);
        looked_empty
    }

    fn waits(&self, fault: Fault, head: usize) -> bool {
        let order = if fault == SequenceReadRelaxed {
            Ordering::Relaxed
        } else {
            Ordering::Acquire
        };
        head < 2 && self.published[head].load(order)
    }

    /// Pops all that is published; returns how many.
    fn drain(&self, fault: Fault, head: &mut usize) -> usize {
        let before = *head;
        while self.waits(fault, *head) {
            self.places[*head].0.with(|place| {
                // SAFETY: published, and not written again.
                assert_eq!(unsafe { place.read() }, 7);
            });
            *head += 1;
            self.head.store(*head, Ordering::Release);
        }
        *head - before
    }
}

#[derive(Default)]
struct Bell(AtomicU32);

impl Bell {
    fn ring(&self, fault: Fault, sleeper: &Thread) {
        if fault != NoFenceInThePusher {
            fence(Ordering::SeqCst);
        }
        if self.0.load(Ordering::Relaxed) == 1 {
            let ours = if fault == ClearedByStore {
                self.0.store(0, Ordering::Release);
                true
            } else {
                self.0.swap(0, Ordering::AcqRel) == 1
            };
            if ours {
                sleeper.unpark();
            }
        }
    }

    fn announce(&self, fault: Fault) {
        self.0.swap(1, Ordering::AcqRel);
        if fault != NoFenceInTheConsumer {
            fence(Ordering::SeqCst);
        }
    }

    /// Sleeps unless `look` finds something.
    fn sleep_unless(&self, fault: Fault, look: impl Fn() -> bool) {
        let found = if fault == AnnouncedAfterTheSecondLook {
            let found = look();
            self.announce(fault);
            found
        } else {
            self.announce(fault);
            fault != NoSecondLook && look()
        };
        if !found {
            thread::park();
        }
        self.0.swap(0, Ordering::AcqRel);
    }
}

#[derive(Default)]
struct Inbox {
    control: Lane,
    data: Lane,
    stop: AtomicBool,
    bell: Bell,
}

type Pusher = Box<dyn FnOnce(&Thread)>;

/// Runs the sleeper and each pusher but the last in a thread of its own. The sleeper joins nobody:
/// loom takes a late `unpark` for the end of whatever its thread waits for.
fn run(sleeper: impl FnOnce() + 'static, mut pushers: Vec<Pusher>) {
    let sleeper = thread::spawn(sleeper);
    let owner = sleeper.thread().clone();
    let last = pushers.pop().unwrap();
    let spawn = |pusher: Pusher| {
        let owner = owner.clone();
        thread::spawn(move || pusher(&owner))
    };
    let others: Vec<_> = pushers.into_iter().map(spawn).collect();
    last(&owner);
    for thread in others {
        thread.join().unwrap();
    }
    sleeper.join().unwrap();
}

fn lanes(fault: Fault, letters: &'static str) {
    let inbox = Arc::new(Inbox::default());
    let pushers = letters
        .chars()
        .map(|letter| {
            let inbox = Arc::clone(&inbox);
            Box::new(move |owner: &Thread| {
                let looked_empty = match letter {
                    'c' => inbox.control.push(fault, 7),
                    'd' => inbox.data.push(fault, 7),
                    _ => {
                        inbox.stop.store(true, Ordering::Release);
                        true
                    }
                };
                if looked_empty || fault != RungOnlyIfTheRingLookedEmpty {
                    inbox.bell.ring(fault, owner);
                }
            }) as Pusher
        })
        .collect();
    run(move || sleep_over_lanes(fault, letters, &inbox), pushers);
}

fn sleep_over_lanes(fault: Fault, letters: &str, inbox: &Inbox) {
    let stops = letters.contains('s');
    let (mut control, mut data) = (0, 0);
    let items = letters.len() - usize::from(stops);
    loop {
        inbox.control.drain(fault, &mut control);
        inbox.data.drain(fault, &mut data);
        let stopped = inbox.stop.load(Ordering::Acquire);
        if control + data == items && stopped == stops {
            break;
        }
        inbox.bell.sleep_unless(fault, || {
            (fault != SecondLookAtDataOnly && inbox.control.waits(fault, control))
                || (fault != SecondLookAtControlOnly && inbox.data.waits(fault, data))
                // Once seen, the flag is no news: with an item missing it would spin here.
                || (fault != NoSecondLookAtStop && !stopped && inbox.stop.load(Ordering::Acquire))
        });
    }
}

#[derive(Default)]
struct Peers {
    rings: [Lane; 2],
    ready: AtomicU64,
    bell: Bell,
}

impl Peers {
    fn set(&self, fault: Fault, peer: usize) {
        let bit = 1 << peer;
        if !fault.always_sets() && self.ready.load(Ordering::Relaxed) & bit != 0 {
            if fault != SetSkippedWithoutFence {
                fence(Ordering::SeqCst);
            }
            if self.ready.load(Ordering::Relaxed) & bit != 0 {
                return;
            }
        }
        let relaxed = fault == BitSetAndTakenRelaxed;
        self.ready.fetch_or(
            bit,
            if relaxed {
                Ordering::Relaxed
            } else {
                Ordering::Release
            },
        );
    }

    fn take(&self, fault: Fault) -> u64 {
        let relaxed = fault == BitSetAndTakenRelaxed;
        let bits = self.ready.swap(
            0,
            if relaxed {
                Ordering::Relaxed
            } else {
                Ordering::AcqRel
            },
        );
        if !fault.always_sets() && fault != TakenWithoutFence {
            fence(Ordering::SeqCst);
        }
        bits
    }
}

fn ready_bits(fault: Fault, peers: usize, items: usize) {
    let shared = Arc::new(Peers::default());
    let pushers = (0..peers)
        .map(|peer| {
            let shared = Arc::clone(&shared);
            Box::new(move |owner: &Thread| {
                for _ in 0..items {
                    if fault == BitBeforePublish {
                        shared.set(fault, peer);
                    }
                    shared.rings[peer].push(fault, 7);
                    if fault != BitBeforePublish {
                        shared.set(fault, peer);
                    }
                    shared.bell.ring(fault, owner);
                }
            }) as Pusher
        })
        .collect();
    run(
        move || sleep_over_bits(fault, peers, items, &shared),
        pushers,
    );
}

fn watched(fault: Fault) {
    let shared = Arc::new(Peers::default());
    let pusher = {
        let shared = Arc::clone(&shared);
        Box::new(move |owner: &Thread| {
            for _ in 0..2 {
                shared.rings[0].push(fault, 7);
                shared.set(fault, 0);
                shared.bell.ring(fault, owner);
            }
        }) as Pusher
    };
    run(move || sleep_over_watched(fault, &shared), vec![pusher]);
}

/// Looks at the ring whatever the bit says, until the first item has come; then lets go of it.
fn sleep_over_watched(fault: Fault, shared: &Peers) {
    let (ring, mut head) = (&shared.rings[0], 0);
    while ring.drain(fault, &mut head) == 0 {
        shared.bell.sleep_unless(fault, || ring.waits(fault, head));
    }
    let mut look = fault != LetGoWithoutLook;
    shared.take(fault);
    while head < 2 {
        if look {
            ring.drain(fault, &mut head);
        }
        look = shared.take(fault) != 0;
        if head < 2 && !look {
            shared
                .bell
                .sleep_unless(fault, || shared.ready.load(Ordering::Acquire) != 0);
        }
    }
}

fn sleep_over_bits(fault: Fault, peers: usize, items: usize, shared: &Peers) {
    let mut heads = [0; 2];
    loop {
        let bits = shared.take(fault);
        for peer in (0..peers).filter(|peer| bits >> peer & 1 == 1) {
            shared.rings[peer].drain(fault, &mut heads[peer]);
        }
        if heads[0] + heads[1] == peers * items {
            break;
        }
        if bits == 0 {
            shared
                .bell
                .sleep_unless(fault, || shared.ready.load(Ordering::Acquire) != 0);
        }
    }
}
