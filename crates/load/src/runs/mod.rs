//! One module per kind of load.

pub(crate) mod backlog;
pub(crate) mod control;
pub(crate) mod idle;
pub(crate) mod replay;
pub(crate) mod rtt;
pub(crate) mod stream;
pub(crate) mod synced;
