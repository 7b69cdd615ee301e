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

pub(crate) use context::Limits;

use context::{Counters, Shared};
use host::Host;
use schemas::SchemaStore;

/// What a server is to do.
#[derive(Clone, Debug)]
pub(crate) struct Serving {
    /// One for each shard; 0 as a port takes any.
    pub(crate) addresses: Vec<SocketAddr>,
    /// What clients are told in place of the host they are listened to on.
    pub(crate) advertised_host: Option<String>,
    /// Of new topics.
    pub(crate) durability: Durability,
    pub(crate) limits: Limits,
}

/// A server that listens.
#[derive(Debug)]
pub(crate) struct Server {
    shared: Arc<Shared>,
}

impl Server {
    /// Listens, and lets clients in.
    ///
    /// # Errors
    /// One line: which address was taken, or what else was not to be had.
    pub(crate) fn start(
        runtime: &Runtime,
        serving: &Serving,
        log: Sender<String>,
    ) -> Result<Server, String> {
        let mut listeners = Vec::new();
        let mut urls = Vec::new();
        for &address in &serving.addresses {
            let bound = TcpListener::bind(address)
                .and_then(|listener| Ok((listener.local_addr()?, listener)));
            let (address, listener) = bound.map_err(|error| {
                format!("listening on {address} failed: {error}; end what uses it, or name another with --listen or --shard-port-base")
            })?;
            urls.push(format!("pulsar://{}", serving.advertised(address)));
            listeners.push(listener);
        }
        let schemas = schema_store(runtime).map_err(|error| {
            format!("opening the schemas failed: {error}; make the data directory readable")
        })?;
        let shared = Arc::new(Shared {
            handles: runtime.handles().to_vec(),
            router: runtime.router(),
            urls,
            durability: serving.durability,
            limits: serving.limits,
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

impl Serving {
    /// The address that clients are told: nobody can connect to a wildcard.
    fn advertised(&self, address: SocketAddr) -> String {
        let port = address.port();
        match &self.advertised_host {
            Some(host) => format!("{host}:{port}"),
            None if address.ip().is_unspecified() => format!("{}:{port}", host_name()),
            None => address.to_string(),
        }
    }
}

/// As the kernel says it; others may know the host by another name.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
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
