//! Key_Shared: which consumer owns a key, and in which order the entries of a key may go.
//!
//! Everything here speaks of hashes of 16 bit ([`key_hash`]), never of keys. `owners.rs` answers who
//! owns a hash, by one of three policies; `order.rs` answers whether an entry may go now and which
//! waiting entry goes next.

mod hash;
mod order;
mod owners;
mod ring;
mod split;
mod sticky;

#[cfg(test)]
mod order_model;

pub use hash::{Murmur3, key_hash, murmur3_32, unkeyed_hash};
pub use order::{Blocked, Draining, KeyOrder, Unblocked, look_ahead_limit};
pub use owners::{AssignError, Change, Changes, KeyRange, Owners};
pub use ring::Ring;
pub use split::Split;
pub use sticky::Sticky;
