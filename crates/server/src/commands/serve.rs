//! `pelton serve`: opens the engine, listens, and ends in order at a signal.

use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crossbeam_channel::{Receiver, bounded};
use pelton_shard::broker::storage::Options as LogOptions;
use pelton_shard::{EngineOptions, Runtime, spawn_named};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level::pipe};

use crate::args::Serve;
use crate::config;
use crate::outcome::{Failure, print};
use crate::serve::{Limits, Server, Serving};

/// Lines that may wait to be printed; more are dropped, for a shard does not wait.
const LINES_MAX: usize = 1_000;

/// How long connections have to take what they are owed, and how long the engine has to end.
const DRAIN: Duration = Duration::from_secs(5);

pub(crate) fn run(flags: &Serve) -> Result<(), Failure> {
    let serve = &config::in_force(flags)?;
    if serve.print_config {
        return print(&config::printed(serve)?);
    }
    let mut signals = signals().map_err(|error| {
        let text =
            format!("watching for SIGTERM failed: {error}; run it where signals are handled");
        Failure::Error(text)
    })?;
    let runtime = pelton_shard::open(EngineOptions {
        dir: Some(serve.data.clone()),
        shards: serve.shards,
        disk: serve.disk.into(),
        pin: serve.pin,
        log: log_options(serve),
        ..EngineOptions::default()
    })
    .map_err(Failure::error)?;
    let (log, lines) = bounded(LINES_MAX);
    let started = Server::start(&runtime, &serving(serve), log);
    let server = started.map_err(Failure::Error)?;
    spawn_named("pelton-log", move || tell(&lines)).map_err(Failure::error)?;
    if !serve.listen.ip().is_loopback() {
        eprintln!(
            "pelton: {} is open to others, and asks nobody who they are",
            serve.listen
        );
    }
    print(&format!("ready: {}\n", server.urls().join(" ")))?;
    wait_for_signal(&mut signals).map_err(Failure::error)?;
    end(&server, &runtime)
}

/// What a stored message needs beside its own bytes: its metadata, and the framing of the log.
const FRAMING_BYTES: u32 = 16 << 10;

fn log_options(serve: &Serve) -> LogOptions {
    LogOptions {
        memory_backlog_bytes: serve.memory_backlog_bytes,
        entry_bytes_max: serve.max_message_bytes + FRAMING_BYTES,
        ..LogOptions::default()
    }
}

fn serving(serve: &Serve) -> Serving {
    Serving {
        addresses: addresses(serve),
        advertised_host: serve.advertised_host.clone(),
        durability: serve.durability.into(),
        limits: Limits {
            message_bytes_max: serve.max_message_bytes,
            handshake_ns: serve.handshake_timeout_s * 1_000_000_000,
            keep_alive_ns: serve.keep_alive_s * 1_000_000_000,
            connections_max: serve.max_connections as usize,
            ..Limits::default()
        },
    }
}

/// The first shard's is `--listen`.
fn addresses(serve: &Serve) -> Vec<SocketAddr> {
    let base = serve.shard_port_base;
    let of_shard = |shard: usize| match (shard, base) {
        (0, _) => serve.listen,
        (_, 0) => SocketAddr::new(serve.listen.ip(), 0),
        _ => SocketAddr::new(serve.listen.ip(), base.saturating_add(shard as u16)),
    };
    (0..serve.shards).map(of_shard).collect()
}

/// Stops in order: nobody new, receipts that are owed, then the engine.
fn end(server: &Server, runtime: &Runtime) -> Result<(), Failure> {
    server.drain();
    let clock = runtime.clock();
    let until_ns = clock.now_ns() + pelton_shard::nanos(DRAIN);
    let (_nobody, never) = bounded::<()>(0);
    while server.open() > 0 && clock.now_ns() < until_ns {
        // A drained connection is told by nobody: there is no hurry, and no hot path.
        let _ = never.recv_timeout(Duration::from_millis(5));
    }
    let report = runtime.shutdown(DRAIN, false);
    print(&format!("{report}\n"))?;
    match report.clean {
        true => Ok(()),
        false => Err(Failure::Told),
    }
}

/// SIGTERM and Ctrl-C: a byte for the first, the end of the process for the second.
fn signals() -> io::Result<UnixStream> {
    let (read, write) = UnixStream::pair()?;
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first signal finds the flag not yet set.
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
        pipe::register(signal, write.try_clone()?)?;
    }
    Ok(read)
}

fn wait_for_signal(signals: &mut UnixStream) -> io::Result<()> {
    loop {
        match signals.read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(|_| ()),
        }
    }
}

fn tell(lines: &Receiver<String>) {
    let mut err = io::stderr();
    for line in lines {
        // Nobody is left who could be told that it cannot be told.
        let _ = writeln!(err, "pelton: {line}");
    }
}
