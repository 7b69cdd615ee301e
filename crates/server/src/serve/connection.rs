//! One connection: bytes to frames, frames to commands, answers to bytes.
//!
//! A connection lives on one shard's thread. What it asks of a shard goes through rings and lanes, and
//! what comes back wakes it by a bit; it never waits. What each command means is in `produce.rs`,
//! `consume.rs` and `lookup.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read as _};
use std::net::SocketAddr;
use std::task::Waker;

use pelton_shard::net::TcpStream;
use pelton_wire::commands::{Command, Connect, Connected, Error, Ping, Pong, Refused};
use pelton_wire::{ProtocolError, Split, frame_bytes_max, negotiated_version, split};

use super::consumer::{Consumer, Told};
use super::context::{Context, count};
use super::outbox::Outbox;
use super::producer::{Closing, Producer};
use super::refusal::Refusal;
use super::waiting::Waiting;

/// A connection gets nothing more from its consumers while so many bytes wait to be written.
const OUT_BYTES_MAX: usize = 1 << 20;

/// Pieces read of one connection in a turn, so that others have their turn too.
const READS_PER_TURN: u32 = 4;

/// Answers that a connection may be owed before it is read again. Source: wire spec 9.
const OWED_MAX: usize = 1_000;
const OWED_BYTES_MAX: usize = 32 << 20;

/// A connection whose peer takes nothing for so long is closed.
const STUCK_NS: u64 = 60_000_000_000;

/// Why a connection ends.
#[derive(Debug)]
pub(crate) enum End {
    /// Its client closed it.
    Gone,
    /// It broke.
    Io(io::Error),
    /// It sent what is not this protocol.
    Protocol(ProtocolError),
    /// It broke a rule of the server, or the server is stopping.
    Rule(&'static str),
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Gone => f.write_str("its client closed it"),
            End::Io(error) => error.fmt(f),
            End::Protocol(error) => error.fmt(f),
            End::Rule(rule) => f.write_str(rule),
        }
    }
}

impl From<ProtocolError> for End {
    fn from(error: ProtocolError) -> End {
        End::Protocol(error)
    }
}

/// Whether the next frame may be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Frame,
    /// The frame was not taken: there is no room for what it holds.
    Later,
}

/// Why a connection is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocked {
    /// The ring of a producer is full; its shard wakes the connection.
    Room,
    /// It is owed too much.
    Owed,
}

pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) peer: SocketAddr,
    pub(crate) waker: Waker,
    /// Bytes of frames that are not whole yet, or that have to wait.
    received: Vec<u8>,
    pub(crate) out: Outbox,
    /// The kernel may have more to read, or take more.
    pub(crate) readable: bool,
    pub(crate) writable: bool,
    /// A frame waits.
    blocked: Option<Blocked>,
    /// `None` before CONNECTED.
    pub(crate) client: Option<Client>,
    pub(crate) producers: BTreeMap<u64, Producer>,
    pub(crate) consumers: BTreeMap<u64, Consumer>,
    /// Producers the server closed: what their client sent before it heard so is dropped.
    pub(crate) closed_producers: BTreeSet<u64>,
    pub(crate) waiting: Vec<Waiting>,
    /// Entries that are owed a receipt.
    pub(crate) owed: usize,
    pub(crate) owed_bytes: usize,
    pub(crate) accepted_ns: u64,
    /// When something last came.
    heard_ns: u64,
    pinged_ns: u64,
    /// Since when the kernel takes nothing.
    stuck_ns: Option<u64>,
    /// In the list of those to be looked at, at the end of the turn.
    pub(crate) listed: bool,
}

/// What a client said of itself.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) version: String,
    pub(crate) protocol_version: i32,
}

impl Client {
    /// Source: wire spec 3, command 31.
    fn knows_active_consumer(&self) -> bool {
        self.protocol_version >= 12
    }

    /// Others take REACHED_END_OF_TOPIC for an error and come back for ever. Source: wire spec 3.
    fn knows_end_of_topic(&self) -> bool {
        const KNOWING: [&str; 3] = ["Pulsar-Java", "pulsar-rs", "magnetar"];
        KNOWING.iter().any(|name| self.version.starts_with(name))
    }
}

impl Connection {
    pub(crate) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        waker: Waker,
        now_ns: u64,
    ) -> Connection {
        Connection {
            stream,
            peer,
            waker,
            received: Vec::new(),
            out: Outbox::default(),
            readable: true,
            writable: true,
            blocked: None,
            client: None,
            producers: BTreeMap::new(),
            consumers: BTreeMap::new(),
            closed_producers: BTreeSet::new(),
            waiting: Vec::new(),
            owed: 0,
            owed_bytes: 0,
            accepted_ns: now_ns,
            heard_ns: now_ns,
            pinged_ns: now_ns,
            stuck_ns: None,
            listed: false,
        }
    }

    /// Reads and carries out what is there, within the share of one turn. How many frames.
    pub(crate) fn take_in(&mut self, cx: &mut Context, scratch: &mut [u8]) -> Result<u32, End> {
        let mut frames = 0;
        if self.blocked.take().is_some() {
            frames += self.take_received(cx)?;
        }
        for _ in 0..READS_PER_TURN {
            if self.blocked.is_some() || !self.readable {
                break;
            }
            let read = match self.stream.read(scratch) {
                Ok(0) => return Err(End::Gone),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable = false;
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(End::Io(error)),
            };
            self.heard_ns = cx.now.mono_ns;
            if self.received.is_empty() {
                let (taken, count) = self.take_frames(&scratch[..read], cx)?;
                self.received.extend_from_slice(&scratch[taken..read]);
                frames += count;
            } else {
                self.received.extend_from_slice(&scratch[..read]);
                frames += self.take_received(cx)?;
            }
        }
        Ok(frames)
    }

    /// Whether another turn would find something to take in; `woken` if this one was woken.
    pub(crate) fn wants_turn(&self, woken: bool) -> bool {
        match self.blocked {
            None => self.readable,
            Some(Blocked::Room) => woken,
            Some(Blocked::Owed) => self.owed < OWED_MAX / 2 && self.owed_bytes < OWED_BYTES_MAX / 2,
        }
    }

    /// Takes answers, receipts and entries, and writes what the kernel takes. How much it was.
    pub(crate) fn give_out(&mut self, cx: &mut Context) -> Result<u32, End> {
        let before = self.out.len();
        let mut count = self.take_answers(cx)?;
        for (&producer_id, producer) in &mut self.producers {
            let (entries, bytes) = producer.give_receipts(producer_id, &self.waker, &mut self.out);
            self.owed -= entries;
            self.owed_bytes -= bytes;
            count += entries;
            if producer.is_fenced() {
                producer.closing.get_or_insert(Closing::Server);
            }
        }
        self.close_settled();
        let knows_end = self.client.as_ref().is_some_and(Client::knows_end_of_topic);
        let knows_active = self
            .client
            .as_ref()
            .is_some_and(Client::knows_active_consumer);
        loop {
            for (&consumer_id, consumer) in &mut self.consumers {
                let told = Told {
                    consumer_id,
                    waker: &self.waker,
                    out_bytes_max: OUT_BYTES_MAX,
                    knows_end,
                    knows_active,
                    now_ns: cx.now.mono_ns,
                };
                count += consumer.give_arrivals(told, &mut self.out);
            }
            let crowded = self.out.len() >= OUT_BYTES_MAX;
            self.write(cx.now.mono_ns)?;
            // What was not taken for want of room is, as soon as there is some.
            if !crowded || self.out.len() >= OUT_BYTES_MAX / 2 {
                break;
            }
        }
        Ok((count + usize::from(before > self.out.len())) as u32)
    }

    /// Refuses a request.
    pub(crate) fn refuse(&mut self, request_id: u64, refusal: &Refusal) {
        self.out.push(Error {
            request_id,
            error: refusal.code,
            message: &refusal.text,
        });
    }

    /// What time alone decides. True if there is something to write.
    pub(crate) fn on_time(&mut self, cx: &mut Context) -> Result<bool, End> {
        let (now_ns, limits) = (cx.now.mono_ns, cx.shared.limits);
        let since = |then_ns: u64| now_ns.saturating_sub(then_ns);
        if self.client.is_none() && since(self.accepted_ns) > limits.handshake_ns {
            count(&cx.shared.counters.handshake_timeouts);
            return Err(End::Rule("it did not connect in time"));
        }
        if self
            .stuck_ns
            .is_some_and(|stuck_ns| since(stuck_ns) > STUCK_NS)
        {
            count(&cx.shared.counters.evicted);
            return Err(End::Rule("it takes nothing"));
        }
        if self.blocked.is_some() {
            self.heard_ns = now_ns; // it is we who do not listen
        }
        if since(self.heard_ns) > 2 * limits.keep_alive_ns {
            count(&cx.shared.counters.evicted);
            return Err(End::Rule("it is silent"));
        }
        let mut has_news = self.give_up_parked(now_ns);
        if since(self.heard_ns.max(self.pinged_ns)) > limits.keep_alive_ns {
            self.pinged_ns = now_ns;
            self.out.push(Ping {});
            has_news = true;
        }
        Ok(has_news)
    }

    /// Whether it is owed nothing and has all that was written to it.
    pub(crate) fn is_settled(&self) -> bool {
        self.owed == 0 && self.out.is_empty()
    }

    fn write(&mut self, now_ns: u64) -> Result<(), End> {
        if !self.writable || self.out.is_empty() {
            return Ok(());
        }
        let before = self.out.len();
        let written = self.out.write_to(&mut self.stream);
        if self.out.len() < before {
            self.stuck_ns = None;
        }
        match written {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.writable = false;
                self.stuck_ns.get_or_insert(now_ns);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(End::Io(error)),
        }
    }

    fn take_received(&mut self, cx: &mut Context) -> Result<u32, End> {
        let mut received = std::mem::take(&mut self.received);
        let taken = self.take_frames(&received, cx);
        if let Ok((taken, _)) = &taken {
            received.drain(..*taken);
        }
        // The memory of a large frame is not kept for those that may follow it.
        if received.is_empty() && received.capacity() > OUT_BYTES_MAX {
            received = Vec::new();
        }
        self.received = received;
        taken.map(|(_, frames)| frames)
    }

    /// Carries out the whole frames of `bytes`: how many bytes, and how many frames.
    fn take_frames(&mut self, bytes: &[u8], cx: &mut Context) -> Result<(usize, u32), End> {
        let (mut at, mut frames) = (0, 0);
        while at < bytes.len() {
            let limits = &cx.shared.limits;
            let max = match self.client {
                Some(_) => frame_bytes_max(limits.message_bytes_max),
                None => limits.prelogin_frame_bytes_max,
            };
            let (frame, length) = match split(&bytes[at..], max)? {
                Split::Partial { .. } => break,
                Split::Whole { frame, bytes } => (frame, bytes),
            };
            if self.owed >= OWED_MAX || self.owed_bytes >= OWED_BYTES_MAX {
                self.blocked = Some(Blocked::Owed);
                break;
            }
            if self.carry_out(frame.command, frame.content, cx)? == Next::Later {
                self.blocked = Some(Blocked::Room);
                break;
            }
            frames += 1;
            at += length;
        }
        Ok((at, frames))
    }

    fn carry_out(
        &mut self,
        command: Command<'_>,
        content: &[u8],
        cx: &mut Context,
    ) -> Result<Next, End> {
        match command {
            Command::Ping(_) => self.out.push(Pong {}),
            Command::Pong(_) => {}
            Command::Connect(connect) if self.client.is_none() => self.connect(&connect, cx),
            Command::Connect(_) => return Err(End::Rule("a second CONNECT")),
            _ if self.client.is_none() => return Err(End::Rule("a command before CONNECT")),
            Command::Send(send) => return self.send(&send, content, cx),
            Command::Ack(ack) => self.ack(&ack),
            Command::Flow(flow) => self.flow(flow),
            Command::Producer(asked) => self.open_producer(&asked, cx),
            Command::CloseProducer(asked) => self.close_producer(&asked),
            Command::Subscribe(asked) => self.subscribe(&asked, cx),
            Command::CloseConsumer(asked) => self.close_consumer(&asked),
            Command::Unsubscribe(asked) => self.unsubscribe(asked, cx),
            Command::RedeliverUnacknowledgedMessages(asked) => self.redeliver(&asked),
            Command::Seek(asked) => self.seek(&asked),
            Command::GetLastMessageId(asked) => self.last_message_id(asked),
            Command::ConsumerStats(asked) => self.consumer_stats(asked),
            Command::PartitionedMetadata(asked) => self.partitioned_metadata(&asked),
            Command::Lookup(asked) => self.lookup(&asked, cx),
            Command::GetTopicsOfNamespace(asked) => self.topics_of_namespace(&asked, cx),
            Command::GetSchema(asked) => self.get_schema(&asked, cx),
            Command::GetOrCreateSchema(asked) => self.get_or_create_schema(&asked, cx),
            Command::Refused(asked) => {
                self.refuse(asked.request_id, &Refusal::new(Refused::CODE, asked.text()));
            }
            _ => return Err(End::Rule("a command that only servers send")),
        }
        Ok(Next::Frame)
    }

    fn connect(&mut self, connect: &Connect<'_>, cx: &mut Context) {
        let protocol_version = negotiated_version(connect.protocol_version());
        self.client = Some(Client {
            version: connect.client_version.to_owned(),
            protocol_version,
        });
        self.out.push(Connected {
            server_version: concat!("Pelton ", env!("CARGO_PKG_VERSION")),
            protocol_version: Some(protocol_version),
            max_message_size: Some(cx.shared.limits.message_bytes_max.cast_signed()),
            feature_flags: None,
        });
    }
}
