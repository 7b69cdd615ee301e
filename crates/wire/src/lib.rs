//! The part of Pulsar's binary protocol that a dispatch engine needs: bytes to commands, commands to
//! bytes.
//!
//! [`split`] finds a frame in received bytes and gives its [`Command`], which borrows from them;
//! [`Entry::received`] gives what a SEND is about, and the slice to store. [`encode`] and
//! [`encode_before`] append frames to a buffer, the latter for content that is sent from where it is
//! stored. Both directions of every command are here, so this serves servers and clients.
//!
//! There is no connection, clock or thread here, no state, and no allocation in decoding. Nothing a
//! peer sends panics. Source: `wire.md` of the specification, Pulsar's `PulsarApi.proto`.
#![forbid(unsafe_code)]

mod batch;
pub mod commands;
mod entry;
mod error;
mod frame;
mod message;
mod metadata;
mod protobuf;
mod topic;
mod types;
mod values;

pub use batch::{Batch, Single, push_single};
pub use commands::Command;
pub use entry::{Entry, checksum_of, encode_entry_before, encode_server_part};
pub use error::{Answer, Malformed, ProtocolError};
pub use frame::{
    Frame, MESSAGE_BYTES_MAX, PRELOGIN_FRAME_BYTES_MAX, Split, encode, encode_before,
    frame_bytes_max, split,
};
pub use metadata::{
    BrokerEntryMetadata, Chunk, Compression, EncryptionKey, MessageMetadata, SingleMessageMetadata,
};
pub use topic::{Domain, InvalidName, Namespace, TopicName, partition_name};
pub use types::{
    FeatureFlags, KeyValue, MessageId, NO_ID, Schema, SchemaType, Secret, ServerError,
};
pub use values::{Iter, Values};

/// The newest version of the protocol that is spoken here.
const PROTOCOL_VERSION: i32 = 21;

/// The version to speak with a client that announced `theirs`.
#[must_use]
pub fn negotiated_version(theirs: i32) -> i32 {
    theirs.min(PROTOCOL_VERSION)
}
