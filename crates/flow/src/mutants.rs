//! Broken twins of parking: each must fail in loom, else its model proves nothing (runtime 6.3).
//!
//! The protocol of `permits.rs` once more, small, with one fault that can be switched on; each runs
//! in a child process, because what loom finds may abort it.

use std::process::Command;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

const VARIABLE: &str = "PELTON_FLOW_MUTANT";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    NoFenceInGrant,
    NoFenceInPark,
    NoSecondLook,
    FlagAfterTheSecondLook,
    RungOnlyIfNothingWasGrantedBefore,
}

use Fault::*;

const CASES: [(Fault, bool); 6] = [
    (None, true),
    (NoFenceInGrant, false),
    (NoFenceInPark, false),
    (NoSecondLook, false),
    (FlagAfterTheSecondLook, false),
    (RungOnlyIfNothingWasGrantedBefore, false),
];

#[test]
fn every_mutant_of_parking_fails() {
    let program = std::env::current_exe().unwrap();
    for (index, (fault, passes)) in CASES.into_iter().enumerate() {
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
            passes,
            "{fault:?}; the child said:\n{said}"
        );
        assert!(
            passes || said.contains("a grant was missed"),
            "{fault:?} failed otherwise:\n{said}"
        );
    }
}

#[test]
#[ignore = "started by every_mutant_of_parking_fails"]
fn one_in_a_child() {
    let index: usize = std::env::var(VARIABLE).unwrap().parse().unwrap();
    let fault = CASES[index].0;
    loom::model(move || park_beside_two_grants(fault));
}

#[derive(Default)]
struct Pair {
    granted: AtomicU64,
    parked: AtomicBool,
    rung: AtomicUsize,
}

/// The dispatcher has used the first permit and parks while the second is granted.
fn park_beside_two_grants(fault: Fault) {
    let pair = Arc::new(Pair::default());
    pair.granted.store(1, Ordering::Release);
    let ours = Arc::clone(&pair);
    let granter = loom::thread::spawn(move || {
        ours.granted.store(2, Ordering::Release);
        if fault != NoFenceInGrant {
            fence(Ordering::SeqCst);
        }
        let look = fault != RungOnlyIfNothingWasGrantedBefore;
        if look && ours.parked.load(Ordering::Relaxed) && ours.parked.swap(false, Ordering::AcqRel)
        {
            ours.rung.fetch_add(1, Ordering::AcqRel);
        }
    });
    let asleep = park(&pair, fault);
    granter.join().unwrap();
    let woken = pair.rung.load(Ordering::Acquire) > 0;
    assert!(!asleep || woken, "a grant was missed");
}

fn park(pair: &Pair, fault: Fault) -> bool {
    if fault == FlagAfterTheSecondLook {
        if pair.granted.load(Ordering::Acquire) > 1 {
            return false;
        }
        pair.parked.swap(true, Ordering::AcqRel);
        return true;
    }
    pair.parked.swap(true, Ordering::AcqRel);
    if fault != NoFenceInPark {
        fence(Ordering::SeqCst);
    }
    fault == NoSecondLook || pair.granted.load(Ordering::Acquire) <= 1
}
