//! `pelton serve`: every key of its configuration file, which is a flag as well.

use std::{net::SocketAddr, path::PathBuf};

use clap::ArgAction;
use serde::Serialize;

use super::{Disk, Durability, at_least_1, shards};

/// Each shard listens on a port of its own, and clients find the one of their topic: they are given
/// the address of --listen alone. There is no authentication: who can connect may do everything.
///
/// Every flag but --config and --print-config is a key of the configuration file too, with _ for -. A
/// flag goes before the file, the file before the default.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(args_override_self = true)]
pub(crate) struct Serve {
    /// TOML file with values for these flags, e.g. shards = 2
    #[arg(long, value_name = "FILE")]
    #[serde(skip)]
    pub(crate) config: Option<PathBuf>,

    /// Prints the values in force as such a file, and ends
    #[arg(long)]
    #[serde(skip)]
    pub(crate) print_config: bool,

    /// Directory of the data, made if missing
    #[arg(long, value_name = "DIR", default_value = "pelton.data")]
    pub(crate) data: PathBuf,

    /// Address of the first shard's port
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6650")]
    pub(crate) listen: SocketAddr,

    /// Shard N listens on this port plus N; 0 takes any free port
    #[arg(long, value_name = "PORT", default_value_t = 6_700)]
    pub(crate) shard_port_base: u16,

    /// Host that clients are told, if it is not the one of --listen
    #[arg(long, value_name = "HOST")]
    pub(crate) advertised_host: Option<String>,

    /// Shards, one thread each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = shards, allow_negative_numbers = true)]
    pub(crate) shards: usize,

    /// Pins each shard to a CPU of its own, if there are enough
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    pub(crate) pin: bool,

    /// When a message of a new topic counts as stored
    #[arg(long, value_enum, default_value_t = Durability::Synced)]
    pub(crate) durability: Durability,

    /// How the disk is driven
    #[arg(long, value_enum, default_value_t = Disk::Auto)]
    pub(crate) disk: Disk,

    /// Memory of each shard for the backlog of topics that are not on disk, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = at_least_1, allow_negative_numbers = true)]
    pub(crate) memory_backlog_bytes: u64,

    /// Largest message, bytes
    #[arg(long, value_name = "BYTES", default_value_t = pelton_wire::MESSAGE_BYTES_MAX, value_parser = message_bytes, allow_negative_numbers = true)]
    pub(crate) max_message_bytes: u32,

    /// Connections of each shard; one more is closed at once
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = at_least_1, allow_negative_numbers = true)]
    pub(crate) max_connections: u64,

    /// A connection that has not said who it is after so long is closed, seconds
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = short_seconds, allow_negative_numbers = true)]
    pub(crate) handshake_timeout_s: u64,

    /// A silent connection is asked for a sign of life after so long, and closed after twice that, seconds
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = short_seconds, allow_negative_numbers = true)]
    pub(crate) keep_alive_s: u64,
}

fn short_seconds(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(seconds) if (1..=86_400).contains(&seconds) => Ok(seconds),
        _ => Err("give a whole number, 1 to 86400 (a day)".into()),
    }
}

/// What a segment and the protocol have room for, whatever is asked.
fn message_bytes(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(bytes) if (1_024..=48 << 20).contains(&bytes) => Ok(bytes),
        _ => Err("give a whole number, 1024 to 50331648 (48 MiB)".into()),
    }
}
