//! An allocator that counts, for the tests that hold "0 allocations per message".
//!
//! Set as `#[global_allocator]` in a test binary it passes everything on to the system's allocator;
//! between [`Counting::arm`] and [`Counting::disarm`] it counts what every thread asks for. Freeing is
//! not counted. Behind the feature `counting-alloc`; nothing of the engine uses it.
#![expect(
    unsafe_code,
    reason = "GlobalAlloc is an unsafe trait; rule H1 keeps it in this crate"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The system's allocator with counters.
#[derive(Debug)]
pub struct Counting {
    armed: AtomicBool,
    allocations: AtomicU64,
    bytes: AtomicU64,
    largest: AtomicU64,
}

/// What was asked for while the counters were armed, by all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Calls that gave memory: alloc, zeroed alloc, and realloc.
    pub allocations: u64,
    /// Bytes asked for by them.
    pub bytes: u64,
    /// The largest of them, in bytes.
    pub largest: u64,
}

impl Counting {
    /// Counts nothing until armed.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a static needs a const constructor"
    )]
    pub const fn new() -> Counting {
        Counting {
            armed: AtomicBool::new(false),
            allocations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            largest: AtomicU64::new(0),
        }
    }

    /// Starts counting at zero.
    pub fn arm(&self) {
        self.allocations.store(0, Ordering::SeqCst);
        self.bytes.store(0, Ordering::SeqCst);
        self.largest.store(0, Ordering::SeqCst);
        self.armed.store(true, Ordering::SeqCst);
    }

    /// Stops counting and tells.
    pub fn disarm(&self) -> Counted {
        self.armed.store(false, Ordering::SeqCst);
        Counted {
            allocations: self.allocations.load(Ordering::SeqCst),
            bytes: self.bytes.load(Ordering::SeqCst),
            largest: self.largest.load(Ordering::SeqCst),
        }
    }

    fn count(&self, bytes: usize) {
        if self.armed.load(Ordering::Relaxed) {
            let bytes = bytes as u64;
            self.allocations.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
            self.largest.fetch_max(bytes, Ordering::Relaxed);
        }
    }
}

// SAFETY: every call is passed on unchanged to `System`, which upholds the contract; counting touches
// atomics only and never allocates.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.count(layout.size());
        // SAFETY: the caller's promises about `layout` are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.count(new_size);
        // SAFETY: `memory` came from `System` with `layout`; the caller promises the rest.
        unsafe { System.realloc(memory, layout, new_size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System` with `layout`.
        unsafe { System.dealloc(memory, layout) }
    }
}
