//! One error enum per operation. Each `Display` is one line: what was tried, on what, why it failed,
//! what to do.
//!
//! `NotOwner`, `Fenced` and `OwnerChanging` are there from the first release: an embedded engine
//! owns all its topics and never gives them, a distributed one will.

mod control;
mod data;
mod position;

pub use control::{
    DeleteError, PolicyError, ProducerError, StatsError, SubscribeError, TopicError,
};
pub use data::{
    AckError, ForwardError, GrantError, ReceiptError, RecvError, SendError, TrySendError,
};
pub use position::{PositionError, TerminateError};
