//! Batches: the payload of an entry of several messages.
//!
//! ```text
//! for each message: [u32 BE s][SingleMessageMetadata, s bytes][payload, as many bytes as that says]
//! ```

use crate::{
    ProtocolError, SingleMessageMetadata,
    entry::{put_sized, sized},
    message::Message,
    protobuf::Reader,
};

/// Walks the messages of a batch, in order. Ends after its count, or with the first error.
#[derive(Clone, Debug)]
pub struct Batch<'a> {
    rest: &'a [u8],
    messages_left: u32,
}

/// A message of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Single<'a> {
    /// What it says of itself.
    pub metadata: SingleMessageMetadata<'a>,
    /// Its payload.
    pub payload: &'a [u8],
}

impl<'a> Batch<'a> {
    /// `payload` of an entry that [is a batch](crate::MessageMetadata::is_batch) of `message_count`,
    /// after decryption and decompression.
    #[must_use]
    pub fn new(payload: &'a [u8], message_count: u32) -> Self {
        Self {
            rest: payload,
            messages_left: message_count,
        }
    }

    fn take(&mut self) -> Result<Single<'a>, ProtocolError> {
        let (metadata, rest) = sized("metadata of a message", self.rest)?;
        let metadata = SingleMessageMetadata::read_fields(&mut Reader::new(metadata))?;
        let payload = usize::try_from(metadata.payload_size)
            .ok()
            .and_then(|bytes| rest.split_at_checked(bytes));
        let (payload, rest) = payload.ok_or(ProtocolError::Length {
            part: "the payload of a message",
            claimed_bytes: i64::from(metadata.payload_size).cast_unsigned(),
            available_bytes: rest.len(),
        })?;
        self.rest = rest;
        Ok(Single { metadata, payload })
    }
}

impl<'a> Iterator for Batch<'a> {
    type Item = Result<Single<'a>, ProtocolError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.messages_left = self.messages_left.checked_sub(1)?;
        let single = self.take();
        if single.is_err() {
            self.messages_left = 0;
        }
        Some(single)
    }
}

/// Appends a message to the payload of a batch; its `payload_size` is set here.
///
/// # Panics
/// If the payload has 2 GiB or more.
pub fn push_single(metadata: &SingleMessageMetadata<'_>, payload: &[u8], batch: &mut Vec<u8>) {
    let metadata = SingleMessageMetadata {
        payload_size: i32::try_from(payload.len()).expect("a message is smaller than 2 GiB"),
        ..*metadata
    };
    put_sized(batch, |out| metadata.write_fields(out));
    batch.extend_from_slice(payload);
}
