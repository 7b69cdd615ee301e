//! What crosses threads in Pelton: bounded rings, the two-lane inbox of a shard, its doorbell.
//!
//! | shape | pushed by | used for |
//! |---|---|---|
//! | [`spsc()`] | one thread, by value | deliveries, mesh |
//! | [`slots()`] | one thread, in place: buffers inside a slot are reused | publishes of a producer |
//! | [`priority_ring`] | any thread, two lanes | control and acks of in-process handles |
//! | [`ReadyWords`] | any thread, one bit a source | "this source has published something" |
//!
//! # The one way to publish
//!
//! ```
//! # use pelton_rings::{slots, Doorbell, ReadyWords, Wake};
//! # let (mut sender, mut receiver) = slots::<Vec<u8>>(8);
//! # let (ready, doorbell) = (ReadyWords::new(64), Doorbell::new());
//! # let wake_the_poller = || ();
//! // The source:
//! sender.push_with(|body| { body.clear(); body.extend_from_slice(b"hello") }).unwrap();
//! if ready.set_and_ring(3, &doorbell) == Wake::Needed {
//!     wake_the_poller(); // writes the shard's eventfd
//! }
//! // The shard, once per turn:
//! for word in 0..ready.words() {
//!     let bits = ready.take(word);
//!     assert_eq!(bits, 1 << 3); // for each bit: drain that source
//! }
//! receiver.pop_with(|body| assert_eq!(body, b"hello")).unwrap();
//! // Before it sleeps: announce first, look again second.
//! doorbell.announce();
//! if ready.any() || !receiver.is_empty() {
//!     doorbell.disarm(); // and take another turn
//! }
//! ```
//!
//! # Invariants
//!
//! - Nothing blocks, spins, makes a system call, or allocates after construction. A full ring gives
//!   the value back ([`Full`]).
//! - FIFO per source and lane. A ring of N takes exactly N.
//! - Positions are `usize`, run freely and wrap.
//! - The only sequentially consistent operations are fences: one in [`Doorbell::ring`], one in
//!   [`Doorbell::announce`], and the pair of [`ReadyWords`].
//! - A value left in a ring is dropped exactly once, with the last of its ends.
//!
//! Rules: `spec/runtime.md` 5 and 10, `spec/priority_and_balance.md` A1 to A4.
#![expect(
    unsafe_code,
    reason = "slots are handed between threads; loom models check each hand-over"
)]

mod sync;

mod positions;
mod slots;
mod spsc;

mod credit;
mod doorbell;
mod mpsc;
mod priority;
mod ready;

#[cfg(all(test, not(loom)))]
mod cases;
#[cfg(all(test, not(loom)))]
mod lanes_test;
#[cfg(all(test, loom))]
mod models;
#[cfg(all(test, loom))]
mod mutants;
#[cfg(all(test, not(loom)))]
mod spsc_test;
#[cfg(all(test, loom))]
mod wake_models;

pub use credit::{Credit, Lane};
pub use doorbell::{Doorbell, Wake};
pub use priority::{
    CONTROL_LANE_SLOTS, DATA_LANE_SLOTS, Item, PriorityReceiver, PriorityRing, priority_ring,
};
pub use ready::ReadyWords;
pub use slots::{SlotReceiver, SlotSender, slots};
pub use spsc::{Receiver, Sender, spsc};
pub use sync::{CachePadded, Full};
