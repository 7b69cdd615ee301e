//! The connections of one shard, on its own thread: accepts, reads at the start of a turn, writes at
//! its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;

use pelton_shard::Resident;
use pelton_shard::broker::Now;
use pelton_shard::net::{Ready, Sockets, TcpListener};

use super::connection::{Connection, End};
use super::context::{Context, Shared, count};
use super::waiting::settle_orphans;
use super::wake::Woken;

/// The number of the listener among the sockets; a connection has its own plus one.
const LISTENER: usize = 0;

/// New connections of one turn. Source: wire spec 9.
const ACCEPTS_PER_TURN: usize = 20;

/// Bytes taken from a socket at once.
const READ_BYTES: usize = 64 * 1024;

/// How often it is looked at what time alone decides.
const SWEEP_NS: u64 = 1_000_000_000;

/// After an accept that failed, e.g. for want of descriptors.
const ACCEPT_AGAIN_NS: u64 = 100_000_000;

pub(crate) struct Host {
    cx: Context,
    sockets: Sockets,
    listener: Option<TcpListener>,
    /// The listener may have more, from this instant on.
    accepts_from_ns: Option<u64>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    open: usize,
    /// Connections to be looked at in this turn.
    listed: Vec<usize>,
    woken: Arc<Woken>,
    /// Those that were woken in this turn, in order; kept for its memory.
    taken: Vec<usize>,
    orphan_waker: Waker,
    sweep_ns: u64,
    scratch: Box<[u8]>,
}

impl Host {
    /// Called on the shard's thread.
    pub(crate) fn new(
        shared: Arc<Shared>,
        shard: u32,
        mut listener: TcpListener,
        sockets: Sockets,
    ) -> io::Result<Host> {
        sockets.add(&mut listener, LISTENER)?;
        let connections_max = shared.limits.connections_max;
        let handle = shared.handles[shard as usize].clone();
        // One more than there are connections: for what those that are gone had asked for.
        let woken = Woken::new(connections_max + 1, handle);
        Ok(Host {
            orphan_waker: woken.waker(connections_max),
            woken,
            cx: Context::new(shared, shard),
            sockets,
            listener: Some(listener),
            accepts_from_ns: Some(0),
            connections: Vec::new(),
            free: Vec::new(),
            open: 0,
            listed: Vec::new(),
            taken: Vec::new(),
            sweep_ns: 0,
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
        })
    }

    fn accept(&mut self) -> u32 {
        let now_ns = self.cx.now.mono_ns;
        let mut accepted = 0;
        while self
            .accepts_from_ns
            .is_some_and(|from_ns| from_ns <= now_ns)
            && accepted < ACCEPTS_PER_TURN
            && let Some(listener) = &self.listener
        {
            match listener.accept() {
                Ok((stream, peer)) => {
                    accepted += 1;
                    count(&self.cx.shared.counters.accepted);
                    if self.open >= self.cx.shared.limits.connections_max {
                        count(&self.cx.shared.counters.refused);
                        continue; // dropped, and so closed
                    }
                    // One that fails here is gone already.
                    let _ = stream.set_nodelay(true);
                    self.take_connection(stream, peer);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accepts_from_ns = None;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    count(&self.cx.shared.counters.accept_errors);
                    self.cx
                        .shared
                        .say(format!("accepting a connection failed: {error}"));
                    self.accepts_from_ns = Some(now_ns + ACCEPT_AGAIN_NS);
                }
            }
        }
        accepted as u32
    }

    fn take_connection(
        &mut self,
        mut stream: pelton_shard::net::TcpStream,
        peer: std::net::SocketAddr,
    ) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        if let Err(error) = self.sockets.add(&mut stream, index + 1) {
            self.cx
                .shared
                .say(format!("watching {peer} failed: {error}"));
            self.free.push(index);
            return;
        }
        self.open += 1;
        self.cx.shared.counters.open.fetch_add(1, Ordering::Relaxed);
        let waker = self.woken.waker(index);
        let now_ns = self.cx.now.mono_ns;
        self.connections[index] = Some(Connection::new(stream, peer, waker, now_ns));
        self.list(index);
    }

    fn list(&mut self, index: usize) {
        if let Some(Some(connection)) = self.connections.get_mut(index)
            && !std::mem::replace(&mut connection.listed, true)
        {
            self.listed.push(index);
        }
    }

    fn close(&mut self, index: usize, end: &End) {
        let Some(mut connection) = self.connections[index].take() else {
            return;
        };
        let shared = &self.cx.shared;
        if matches!(end, End::Protocol(_)) {
            count(&shared.counters.malformed);
        }
        if !matches!(end, End::Gone) {
            shared.say(format!("connection of {} closed: {end}", connection.peer));
        }
        shared.counters.open.fetch_sub(1, Ordering::Relaxed);
        let _ = self.sockets.remove(&mut connection.stream);
        connection.abandon(&mut self.cx);
        self.open -= 1;
        self.free.push(index);
        self.orphan_waker.wake_by_ref();
    }

    /// What time alone decides.
    fn sweep(&mut self) {
        let now_ns = self.cx.now.mono_ns;
        if now_ns < self.sweep_ns {
            return;
        }
        self.sweep_ns = now_ns + SWEEP_NS;
        for index in 0..self.connections.len() {
            let Some(connection) = &mut self.connections[index] else {
                continue;
            };
            match connection.on_time(&mut self.cx) {
                Ok(true) => self.list(index),
                Ok(false) => {}
                Err(end) => self.close(index, &end),
            }
        }
    }

    /// The server stops: nobody new comes in, and who is owed nothing is let go.
    fn drain(&mut self) {
        if let Some(mut listener) = self.listener.take() {
            let _ = self.sockets.remove(&mut listener);
        }
        for index in 0..self.connections.len() {
            if let Some(connection) = &self.connections[index]
                && connection.is_settled()
            {
                self.close(index, &End::Rule("the server is stopping"));
            }
        }
    }
}

impl Resident for Host {
    fn take_in(&mut self, ready: &mut Vec<Ready>, now: Now) -> u32 {
        self.cx.now = now;
        for Ready {
            id,
            readable,
            writable,
        } in ready.drain(..)
        {
            let Some(index) = id.checked_sub(1) else {
                self.accepts_from_ns = Some(0);
                continue;
            };
            if let Some(Some(connection)) = self.connections.get_mut(index) {
                connection.readable |= readable;
                connection.writable |= writable;
                self.list(index);
            }
        }
        let mut done = self.accept();
        if self.cx.shared.is_draining() {
            return done;
        }
        for at in 0..self.listed.len() {
            let index = self.listed[at];
            let Some(connection) = &mut self.connections[index] else {
                continue;
            };
            match connection.take_in(&mut self.cx, &mut self.scratch) {
                Ok(frames) => done += frames,
                Err(end) => self.close(index, &end),
            }
        }
        done
    }

    fn give_out(&mut self, now: Now) -> u32 {
        self.cx.now = now;
        let mut done = 0;
        let mut woken = std::mem::take(&mut self.taken);
        woken.clear();
        self.woken.take(|index| woken.push(index));
        for &index in &woken {
            self.list(index);
        }
        // The last number there is.
        if woken.last() == Some(&self.cx.shared.limits.connections_max) {
            settle_orphans(&mut self.cx, &self.orphan_waker);
        }
        let listed = std::mem::take(&mut self.listed);
        for index in listed {
            let Some(connection) = &mut self.connections[index] else {
                continue;
            };
            connection.listed = false;
            match connection.give_out(&mut self.cx) {
                Ok(given) => {
                    done += given;
                    if connection.wants_turn(woken.binary_search(&index).is_ok()) {
                        self.list(index);
                    }
                }
                Err(end) => self.close(index, &end),
            }
        }
        self.taken = woken;
        self.sweep();
        if self.cx.shared.is_draining() {
            self.drain();
        }
        done
    }

    fn has_work(&self) -> bool {
        let accepts = self.accepts_from_ns.is_some_and(|from_ns| from_ns == 0);
        let reads = !self.listed.is_empty() && !self.cx.shared.is_draining();
        reads || self.woken.any() || (accepts && self.listener.is_some())
    }

    fn next_deadline_ns(&self) -> Option<u64> {
        let sweep = (self.open > 0).then_some(self.sweep_ns);
        let accept = self.accepts_from_ns.filter(|_| self.listener.is_some());
        sweep.into_iter().chain(accept).min()
    }
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Host { cx, open, .. } = self;
        f.debug_struct("Host")
            .field("shard", &cx.shard)
            .field("open", open)
            .finish_non_exhaustive()
    }
}
