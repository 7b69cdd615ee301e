//! Frames: a command with its length, and what may follow it.
//!
//! ```text
//! [u32 BE frame bytes][u32 BE command bytes][command][content]      the first length counts neither
//!                                                                   itself nor what follows the frame
//! ```
//! Only SEND and MESSAGE have content: see [`crate::Entry`].

use crate::{Command, ProtocolError};

/// Bytes of each length.
const LENGTH_BYTES: usize = 4;

/// What a frame may have beyond the largest message: metadata and command. Source: wire spec 9.
const OVERHEAD_BYTES_MAX: u32 = 10 << 10;

/// The largest frame before CONNECTED, in bytes, unless configured otherwise: a stranger costs little.
/// Source: wire spec 9.
pub const PRELOGIN_FRAME_BYTES_MAX: u32 = 64 << 10;

/// The largest message, in bytes, unless configured otherwise; clients assume it when CONNECTED names
/// none. Source: wire spec 3 and 9.
pub const MESSAGE_BYTES_MAX: u32 = 5 << 20;

/// Where a frame ends, as far as that can be told.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "all of it borrows; a box would be an allocation for each frame"
)]
pub enum Split<'a> {
    /// There is more to come. Every length that has arrived is within its limits, so it is safe to make
    /// room for `bytes_needed`; but a length is a claim, so make it as bytes arrive.
    Partial {
        /// Bytes from the start of the frame to have before asking again. More than there are now.
        bytes_needed: usize,
    },
    /// A whole frame.
    Whole {
        /// What it says.
        frame: Frame<'a>,
        /// Bytes of it; the next frame begins behind them.
        bytes: usize,
    },
}

/// A frame, in the memory it was received in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Frame<'a> {
    /// What it says.
    pub command: Command<'a>,
    /// What follows the command.
    pub content: &'a [u8],
}

/// The largest frame, in bytes, of a connection whose largest message is announced as
/// `message_bytes_max`. Before CONNECTED it is [`PRELOGIN_FRAME_BYTES_MAX`].
#[must_use]
pub const fn frame_bytes_max(message_bytes_max: u32) -> u32 {
    message_bytes_max.saturating_add(OVERHEAD_BYTES_MAX)
}

/// Looks for a frame at the start of `received`. How the bytes arrive changes no result.
///
/// Errors: as soon as the bytes that are wrong have arrived; lengths before the rest is waited for.
pub fn split(received: &[u8], frame_bytes_max: u32) -> Result<Split<'_>, ProtocolError> {
    let Some((frame_bytes, rest)) = length(received) else {
        let bytes_needed = LENGTH_BYTES;
        return Ok(Split::Partial { bytes_needed });
    };
    if frame_bytes > frame_bytes_max {
        return Err(ProtocolError::TooLarge {
            frame_bytes,
            frame_bytes_max,
        });
    }
    let within = (frame_bytes as usize)
        .checked_sub(LENGTH_BYTES)
        .ok_or(ProtocolError::TooShort(frame_bytes))?;
    let Some((command_bytes, rest)) = length(rest) else {
        let bytes_needed = 2 * LENGTH_BYTES;
        return Ok(Split::Partial { bytes_needed });
    };
    if command_bytes as usize > within {
        return Err(ProtocolError::Length {
            part: "the command",
            claimed_bytes: command_bytes.into(),
            available_bytes: within,
        });
    }
    let bytes = LENGTH_BYTES + frame_bytes as usize;
    let Some(body) = rest.get(..within) else {
        let bytes_needed = bytes;
        return Ok(Split::Partial { bytes_needed });
    };
    let (command, content) = body.split_at(command_bytes as usize);
    let command = Command::decode(command)?;
    let frame = Frame { command, content };
    Ok(Split::Whole { frame, bytes })
}

/// The length in front of `bytes`, and what follows it.
pub(crate) fn length(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*length), rest))
}

/// Appends the frame of a command without content.
pub fn encode<'a>(command: impl Into<Command<'a>>, out: &mut Vec<u8>) {
    encode_before(command, 0, out);
}

/// Appends the frame of a command but not its content: `content_bytes` must follow on the connection,
/// from wherever they are. So an entry is sent as it was received, in a gathered write.
///
/// # Panics
/// If the frame would have 4 GiB or more.
pub fn encode_before<'a>(command: impl Into<Command<'a>>, content_bytes: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; 2 * LENGTH_BYTES]);
    command.into().encode(out);
    let command_bytes = out.len() - start - 2 * LENGTH_BYTES;
    let frame_bytes = LENGTH_BYTES + command_bytes + content_bytes;
    let mut put = |at: usize, bytes: usize| {
        let bytes = u32::try_from(bytes).expect("a frame is smaller than 4 GiB");
        out[at..at + LENGTH_BYTES].copy_from_slice(&bytes.to_be_bytes());
    };
    put(start, frame_bytes);
    put(start + LENGTH_BYTES, command_bytes);
}
