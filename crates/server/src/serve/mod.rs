//! The server: real clients of Apache Pulsar on the shards that own their topics.
//!
//! Each shard listens on a port of its own, and its connections live on its thread (`host.rs`): a
//! frame is read, its entry published, dispatched and written in one turn, with no thread in between.
//! LOOKUP names the port of a topic's owner. Read `connection.rs` first, then `produce.rs` and
//! `consume.rs`.

mod connection;
mod consume;
mod consumer;
mod context;
mod host;
mod lookup;
mod outbox;
mod produce;
mod producer;
mod refusal;
mod schemas;
mod topic;
mod waiting;
mod wake;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::Sender;
use pelton_shard::broker::storage::Durability;
use pelton_shard::net::TcpListener;
use pelton_shard::{Control, Kv, MakeResident, PushError, Resident, Runtime, SERVER_FILE, reply};
use pelton_wire::{MESSAGE_BYTES_MAX, PRELOGIN_FRAME_BYTES_MAX};

use context::{Counters, Limits, Shared};
use host::Host;
use schemas::SchemaStore;

/// Connections of one shard. Source: wire spec 9.
const CONNECTIONS_MAX: usize = 10_000;
/// From accept to CONNECTED.
const HANDSHAKE_NS: u64 = 30_000_000_000;
/// A connection is asked for a sign of life after so long, and closed after twice as long.
const KEEP_ALIVE_NS: u64 = 30_000_000_000;

/// A server that listens.
#[derive(Debug)]
pub(crate) struct Server {
    shared: Arc<Shared>,
}

impl Server {
    /// Listens on one address for each shard; 0 as a port takes any.
    ///
    /// # Errors
    /// One line: which address was taken, or what else was not to be had.
    pub(crate) fn start(
        runtime: &Runtime,
        addresses: &[SocketAddr],
        durability: Durability,
        log: Sender<String>,
    ) -> Result<Server, String> {
        let mut listeners = Vec::new();
        let mut urls = Vec::new();
        for &address in addresses {
            let bound = TcpListener::bind(address)
                .and_then(|listener| Ok((listener.local_addr()?, listener)));
            let (address, listener) = bound.map_err(|error| {
                format!("listening on {address} failed: {error}; end what uses it, or name another with --listen or --shard-port-base")
            })?;
            urls.push(format!("pulsar://{address}"));
            listeners.push(listener);
        }
        let schemas = schema_store(runtime).map_err(|error| {
            format!("opening the schemas failed: {error}; make the data directory readable")
        })?;
        let shared = Arc::new(Shared {
            handles: runtime.handles().to_vec(),
            router: runtime.router(),
            urls,
            durability,
            limits: Limits {
                message_bytes_max: MESSAGE_BYTES_MAX,
                prelogin_frame_bytes_max: PRELOGIN_FRAME_BYTES_MAX,
                handshake_ns: HANDSHAKE_NS,
                keep_alive_ns: KEEP_ALIVE_NS,
                connections_max: CONNECTIONS_MAX,
            },
            schemas,
            log,
            counters: Counters::default(),
            draining: AtomicBool::new(false),
            started_ms: runtime.clock().wall_ms(),
        });
        for (shard, listener) in (0..).zip(listeners) {
            settle(&shared, shard, listener).map_err(|error| {
                format!("starting the network of shard {shard} failed: {error}")
            })?;
        }
        Ok(Server { shared })
    }

    /// Where clients may connect to, the first shard's port first.
    pub(crate) fn urls(&self) -> &[String] {
        &self.shared.urls
    }

    /// Lets nobody new in, and closes each connection once it is owed nothing.
    pub(crate) fn drain(&self) {
        self.shared.draining.store(true, Ordering::Release);
        self.shared
            .handles
            .iter()
            .for_each(pelton_shard::ShardHandle::wake);
    }

    /// Connections that are open.
    pub(crate) fn open(&self) -> u64 {
        self.shared.counters.open.load(Ordering::Relaxed)
    }
}

fn schema_store(runtime: &Runtime) -> io::Result<SchemaStore> {
    let path = runtime.dir().map(|dir| dir.join(SERVER_FILE));
    let store = path.map(|path| Kv::open(&path)).transpose()?;
    SchemaStore::start(store)
}

/// Puts a listener on its shard's thread.
fn settle(shared: &Arc<Shared>, shard: u32, listener: TcpListener) -> io::Result<()> {
    let (to, made) = reply();
    let own = Arc::clone(shared);
    let make = MakeResident::new(move |sockets| {
        let host = Host::new(own, shard, listener, sockets)?;
        Ok(Box::new(host) as Box<dyn Resident>)
    });
    let control = Control::Settle { make, reply: to };
    let handle = &shared.handles[shard as usize];
    if let Err(PushError::Full(control)) = handle.control(control) {
        let _stopped = handle.keep_control(control);
    }
    made.wait().map_err(io::Error::other)?
}
