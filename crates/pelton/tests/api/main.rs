//! The embedding API as its users see it. One binary; each module says what belongs there.
#![expect(
    clippy::disallowed_methods,
    reason = "tests start threads of their own"
)]

mod common;

mod asynchronous;
mod dead_letters;
mod driven;
mod durable;
mod errors;
mod explain;
mod handlers;
mod keeping;
mod messages;
mod permits;
mod producers;
mod redelivery;
mod shutdown;
mod slow;
mod times;
