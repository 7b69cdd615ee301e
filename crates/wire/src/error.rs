//! What can be wrong with received bytes, and what the peer is told.

use crate::types::ServerError;

/// Bytes that are not this protocol. [`answer`](Self::answer) says what follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The frame claims to be larger than the limit that holds now.
    #[error("a frame of {frame_bytes} bytes, the limit is {frame_bytes_max}")]
    TooLarge {
        /// What the frame claims, without its own 4 bytes.
        frame_bytes: u32,
        /// The limit.
        frame_bytes_max: u32,
    },
    /// The frame has no room for the size of its command.
    #[error("a frame of {0} bytes, the least is 4")]
    TooShort(u32),
    /// A part claims to be longer than what it is a part of.
    #[error("{part} claims {claimed_bytes} bytes of {available_bytes}")]
    Length {
        /// The command, the metadata of a message and so on.
        part: &'static str,
        /// What it claims.
        claimed_bytes: u64,
        /// What there is.
        available_bytes: usize,
    },
    /// What a part must have at least is not there.
    #[error("{0} is cut off")]
    CutOff(&'static str),
    /// Two bytes in front of the metadata that look like a mark but are neither of the two known.
    #[error("unknown magic number {0:#06x}")]
    Magic(u16),
    /// The content of a SEND is not what its producer computed the checksum of.
    #[error("checksum {claimed:#010x}, the content has {computed:#010x}")]
    Checksum {
        /// What was sent.
        claimed: u32,
        /// CRC32C of what arrived.
        computed: u32,
    },
    /// Not the protobuf encoding.
    #[error("bad protobuf: {0}")]
    Protobuf(#[from] Malformed),
    /// A required field is absent, or is an enum with an unknown number.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A number that no command has, or that of a refused one without a request to answer.
    #[error("unknown command {0}")]
    UnknownCommand(u32),
    /// A count of messages below 1.
    #[error("a batch of {0} messages")]
    MessageCount(i32),
}

/// How bytes are not the protobuf encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A varint goes on beyond the end of its message.
    #[error("a varint is cut off")]
    VarintCutOff,
    /// A varint has more than 10 bytes.
    #[error("a varint over 10 bytes")]
    VarintTooLong,
    /// The value of a field goes on beyond the end of its message.
    #[error("a field is cut off")]
    FieldCutOff,
    /// 0, or above 2^29 - 1.
    #[error("a field number out of range")]
    FieldNumber,
    /// A layout that the encoding does not have (any more).
    #[error("an unknown layout of a field")]
    Layout,
    /// A known field, but of another type.
    #[error("a field of another type")]
    FieldType,
    /// Text that is not UTF-8.
    #[error("text that is not UTF-8")]
    Text,
    /// Messages within messages, more than 8 with the command.
    #[error("messages nested too deep")]
    Depth,
}

/// What a server does about a [`ProtocolError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Log the reason, close the connection without a word.
    Close,
    /// Answer the SEND with a SEND_ERROR of that code and go on.
    SendError(ServerError),
}

impl ProtocolError {
    /// Everything closes the connection but a checksum: after that code, and no other, clients keep
    /// theirs. Source: wire spec 2 and 9.
    #[must_use]
    pub fn answer(&self) -> Answer {
        match self {
            Self::Checksum { .. } => Answer::SendError(ServerError::Checksum),
            _ => Answer::Close,
        }
    }
}
