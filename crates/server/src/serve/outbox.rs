//! What waits to be written to one connection, in order.

use std::collections::VecDeque;
use std::io::{self, IoSlice, Write};
use std::sync::Arc;

use pelton_shard::broker::storage::Block;
use pelton_wire::Command;

/// Bodies from this size on are written from where they are stored; smaller ones are copied, which
/// costs less than a slice of their own in the gathered write.
const LENT_BYTES_MIN: usize = 8 * 1024;

/// Slices of one gathered write.
const SLICES_MAX: usize = 64;

/// A buffer larger than this is not kept for the next commands.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// Frames on their way out.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are written.
    front_written: usize,
    /// Bytes not yet written.
    bytes: usize,
    spare: Vec<u8>,
}

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    /// A body in the memory of the log.
    Body(Arc<Block>, u32),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Bytes(bytes) => bytes,
            Piece::Body(block, slot) => block.body(*slot),
        }
    }
}

impl Outbox {
    /// Bytes that are not written yet.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Adds a command without content.
    pub(crate) fn push<'a>(&mut self, command: impl Into<Command<'a>>) {
        self.append(|out| pelton_wire::encode(command, out));
    }

    /// Adds a command, and as its content the body of an entry.
    pub(crate) fn push_entry<'a>(
        &mut self,
        command: impl Into<Command<'a>>,
        block: &Arc<Block>,
        slot: u32,
    ) {
        let body = block.body(slot);
        let lent = body.len() >= LENT_BYTES_MIN;
        self.append(|out| {
            pelton_wire::encode_before(command, body.len(), out);
            if !lent {
                out.extend_from_slice(body);
            }
        });
        if lent {
            self.bytes += body.len();
            self.pieces.push_back(Piece::Body(Arc::clone(block), slot));
        }
    }

    /// Writes until all is written or `stream` takes no more.
    ///
    /// # Errors
    /// What the stream says, `WouldBlock` among them, and `WriteZero`.
    pub(crate) fn write_to(&mut self, stream: &mut impl Write) -> io::Result<()> {
        while self.bytes > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut used = 0;
            let mut skip = self.front_written;
            for (slice, piece) in slices.iter_mut().zip(&self.pieces) {
                *slice = IoSlice::new(&piece.bytes()[skip..]);
                skip = 0;
                used += 1;
            }
            let written = stream.write_vectored(&slices[..used])?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.written(written);
        }
        Ok(())
    }

    fn append(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if !matches!(self.pieces.back(), Some(Piece::Bytes(_))) {
            let buffer = std::mem::take(&mut self.spare);
            self.pieces.push_back(Piece::Bytes(buffer));
        }
        let Some(Piece::Bytes(buffer)) = self.pieces.back_mut() else {
            return;
        };
        let before = buffer.len();
        write(buffer);
        self.bytes += buffer.len() - before;
    }

    fn written(&mut self, written: usize) {
        self.bytes -= written;
        self.front_written += written;
        while let Some(front) = self.pieces.front() {
            let bytes = front.bytes().len();
            if self.front_written < bytes {
                return;
            }
            self.front_written -= bytes;
            if let Some(Piece::Bytes(mut buffer)) = self.pieces.pop_front()
                && buffer.capacity() <= KEPT_BYTES_MAX
            {
                buffer.clear();
                self.spare = buffer;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pelton_wire::commands::{Ping, Pong};

    /// Takes `step` bytes a call.
    struct Slow {
        step: usize,
        got: Vec<u8>,
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.step);
            self.got.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn however_little_a_stream_takes_the_bytes_come_in_order() {
        let mut expected = Vec::new();
        pelton_wire::encode(Ping {}, &mut expected);
        pelton_wire::encode(Pong {}, &mut expected);
        for step in 1..=expected.len() {
            let mut out = Outbox::default();
            out.push(Ping {});
            out.push(Pong {});
            assert_eq!(out.len(), expected.len());
            let mut slow = Slow {
                step,
                got: Vec::new(),
            };
            out.write_to(&mut slow)
                .expect("it takes something each time");
            assert!(out.is_empty() && slow.got == expected, "step {step}");
        }
    }
}
