//! One thin module per subcommand.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod log;
pub(crate) mod serve;
pub(crate) mod simulate;
