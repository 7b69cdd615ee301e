//! Sockets in a shard's one wait. Who owns a socket reads and writes it; this says when.

use std::io;

use mio::event::Source;
use mio::{Interest, Registry, Token};

pub use mio::net::{TcpListener, TcpStream};

/// Tokens below are the poller's own.
const FIRST_TOKEN: usize = 2;

/// Where sockets of one poller are registered. An edge is told once: read and write until the kernel
/// says that it would block.
#[derive(Debug)]
pub struct Sockets {
    registry: Registry,
}

/// A socket that has something, under the number it was registered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The number.
    pub id: usize,
    /// There may be something to read: bytes, a connection, an end or an error.
    pub readable: bool,
    /// It may take bytes again.
    pub writable: bool,
}

impl Sockets {
    pub(crate) fn new(registry: Registry) -> Sockets {
        Sockets { registry }
    }

    /// Watches a socket for both directions.
    ///
    /// # Errors
    /// What epoll says: no memory, or too many watches.
    pub fn add(&self, socket: &mut impl Source, id: usize) -> io::Result<()> {
        let both = Interest::READABLE | Interest::WRITABLE;
        self.registry
            .register(socket, Token(FIRST_TOKEN + id), both)
    }

    /// Watches it no more. What is in the list of those that are ready may still name it.
    ///
    /// # Errors
    /// What epoll says, e.g. that it is not watched.
    pub fn remove(&self, socket: &mut impl Source) -> io::Result<()> {
        self.registry.deregister(socket)
    }
}

/// The socket an event is about; `None` if it is the poller's own.
pub(crate) fn ready_of(event: &mio::event::Event) -> Option<Ready> {
    Some(Ready {
        id: event.token().0.checked_sub(FIRST_TOKEN)?,
        readable: event.is_readable() || event.is_read_closed() || event.is_error(),
        writable: event.is_writable() || event.is_write_closed() || event.is_error(),
    })
}
