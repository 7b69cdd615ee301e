//! What stands in front of a payload: metadata of an entry, and of each message in a batch.

use std::borrow::Cow;

use base64::{Engine, engine::general_purpose::STANDARD};

use crate::{
    KeyValue, ProtocolError,
    message::{Message, message, numbered},
    protobuf::Reader,
};

message! {
    /// The metadata of an entry, which is one message or a batch. `producer_name`, `sequence_id` and
    /// `publish_time` are required: Java clients refuse a message without them, so it must not get in.
    MessageMetadata<'a> {
        1 required producer_name: &'a str,
        2 required sequence_id: u64,
        /// Milliseconds since 1970, by the producer's clock.
        3 required publish_time: u64,
        4 repeated properties: KeyValue<'a>,
        5 optional replicated_from: &'a str,
        /// A C++ client takes any bytes for a key.
        6 optional partition_key: &'a [u8],
        7 repeated replicate_to: &'a str,
        /// A number and not the enum, so that one to come is not mistaken for none.
        8 optional compression: i32 = 0,
        /// Bytes of the payload before it was compressed.
        9 optional uncompressed_size: u32 = 0,
        /// There: the payload is a batch, be it of one.
        11 optional num_messages_in_batch: i32 = 1,
        /// Milliseconds since 1970, set by the application.
        12 optional event_time: u64,
        13 repeated encryption_keys: EncryptionKey<'a>,
        14 optional encryption_algo: &'a str,
        15 optional encryption_param: &'a [u8],
        /// 8 bytes, big endian, or none.
        16 optional schema_version: &'a [u8],
        17 optional partition_key_b64_encoded: bool = false,
        18 optional ordering_key: &'a [u8],
        /// Milliseconds since 1970.
        19 optional deliver_at_time: i64,
        20 optional marker_type: i32,
        22 optional txnid_least_bits: u64,
        23 optional txnid_most_bits: u64,
        /// Of the last message of a batch.
        24 optional highest_sequence_id: u64 = 0,
        25 optional null_value: bool = false,
        /// Common to the chunks of a message.
        26 optional uuid: &'a str,
        27 optional num_chunks_from_msg: i32,
        /// Bytes of all chunks together.
        28 optional total_chunk_msg_size: i32,
        29 optional chunk_id: i32,
        30 optional null_partition_key: bool = false,
    }
}

message! {
    /// A data key, encrypted for one reader.
    EncryptionKey<'a> {
        1 required key: &'a str,
        2 required value: &'a [u8],
        3 repeated metadata: KeyValue<'a>,
    }
}

numbered! {
    /// How a payload is compressed.
    Compression {
        None = 0,
        Lz4 = 1,
        Zlib = 2,
        Zstd = 3,
        Snappy = 4,
    }
}

message! {
    /// The metadata of one message of a batch.
    SingleMessageMetadata<'a> {
        1 repeated properties: KeyValue<'a>,
        2 optional partition_key: &'a [u8],
        /// Bytes.
        3 required payload_size: i32,
        /// Compaction took the payload; the place stays, so that batch indexes do not move.
        4 optional compacted_out: bool = false,
        5 optional event_time: u64,
        6 optional partition_key_b64_encoded: bool = false,
        7 optional ordering_key: &'a [u8],
        8 optional sequence_id: u64,
        9 optional null_value: bool = false,
        10 optional null_partition_key: bool = false,
    }
}

message! {
    /// What a server may add in front of an entry for clients that announced that they read it.
    BrokerEntryMetadata {
        /// Milliseconds since 1970.
        1 optional broker_timestamp: u64,
        /// Of the last message of the entry.
        2 optional index: u64,
    }
}

/// Which part of a message an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// Common to all chunks of a message.
    pub uuid: &'a str,
    /// From 0.
    pub id: u32,
    /// 2 or more.
    pub count: u32,
}

impl<'a> MessageMetadata<'a> {
    /// Decodes metadata that stands alone.
    ///
    /// Errors: bad protobuf, a missing field, a message count below 1.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, ProtocolError> {
        let metadata = Self::read_fields(&mut Reader::new(bytes))?;
        match metadata.num_messages_in_batch {
            Some(count @ ..1) => Err(ProtocolError::MessageCount(count)),
            _ => Ok(metadata),
        }
    }

    /// Appends it, without a length.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.write_fields(out);
    }

    /// Messages of the entry, at least 1.
    #[must_use]
    pub fn message_count(&self) -> u32 {
        self.num_messages_in_batch().max(1).cast_unsigned()
    }

    /// True if the payload is a row of messages with metadata of their own, which [`crate::Batch`]
    /// walks. A batch of one is still a batch: clients go by the presence of the count.
    #[must_use]
    pub fn is_batch(&self) -> bool {
        self.num_messages_in_batch.is_some()
    }

    /// How the payload is compressed. Nothing: in a way not known here.
    #[must_use]
    pub fn payload_compression(&self) -> Option<Compression> {
        Compression::from_number(self.compression())
    }

    /// The sequence id of its last message: what a receipt names and deduplication compares.
    /// Source: wire spec 6.1.
    #[must_use]
    pub fn last_sequence_id(&self) -> u64 {
        self.sequence_id.max(self.highest_sequence_id())
    }

    /// The part it is, if it is one of several.
    #[must_use]
    pub fn chunk(&self) -> Option<Chunk<'a>> {
        let (uuid, count, id) = (self.uuid?, self.num_chunks_from_msg?, self.chunk_id?);
        let (id, count) = (u32::try_from(id).ok()?, u32::try_from(count).ok()?);
        (count > 1 && id < count).then_some(Chunk { uuid, id, count })
    }

    /// What Key_Shared hashes: ordering key, else partition key (decoded, if it says that it is base64
    /// and is), else producer and sequence. Of a batch it is the key of the entry; only clients that
    /// batch by key get its messages right. Source: wire spec 6.5.
    #[must_use]
    pub fn routing_key(&self) -> Cow<'a, [u8]> {
        if let Some(key) = self.ordering_key {
            return key.into();
        }
        match self.partition_key {
            Some(key) if self.partition_key_b64_encoded() => {
                STANDARD.decode(key).map_or(key.into(), Cow::from)
            }
            Some(key) => key.into(),
            None => format!("{}-{}", self.producer_name, self.sequence_id)
                .into_bytes()
                .into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata() -> MessageMetadata<'static> {
        MessageMetadata {
            producer_name: "p",
            sequence_id: 7,
            ..MessageMetadata::default()
        }
    }

    #[test]
    fn the_key_that_routes_is_the_ordering_key_then_the_partition_key_then_producer_and_sequence() {
        let check = |metadata: MessageMetadata<'_>, expected: &[u8]| {
            assert_eq!(&*metadata.routing_key(), expected);
        };
        let mut metadata = metadata();
        check(metadata, b"p-7");
        metadata.partition_key = Some(b"a2V5");
        check(metadata, b"a2V5");
        metadata.partition_key_b64_encoded = Some(true);
        check(metadata, b"key");
        // Said to be base64 and is not: as it stands, so that the message goes somewhere.
        metadata.partition_key = Some(b"k\xff");
        check(metadata, b"k\xff");
        metadata.ordering_key = Some(b"");
        check(metadata, b"");
    }

    #[test]
    fn an_entry_without_a_count_is_one_message_and_one_with_a_count_is_a_batch() {
        for (count, messages, is_batch) in
            [(None, 1, false), (Some(1), 1, true), (Some(9), 9, true)]
        {
            let metadata = MessageMetadata {
                num_messages_in_batch: count,
                ..metadata()
            };
            assert_eq!(metadata.message_count(), messages);
            assert_eq!(metadata.is_batch(), is_batch);
        }
    }

    #[test]
    fn a_count_below_1_is_refused() {
        for count in [0, -1, i32::MIN] {
            let mut bytes = Vec::new();
            let metadata = MessageMetadata {
                num_messages_in_batch: Some(count),
                ..metadata()
            };
            metadata.encode(&mut bytes);
            let decoded = MessageMetadata::decode(&bytes);
            assert_eq!(decoded, Err(ProtocolError::MessageCount(count)));
        }
    }

    #[test]
    fn a_chunk_is_one_of_several_with_a_name_in_common() {
        let chunk = |uuid, id, count| {
            let metadata = MessageMetadata {
                uuid,
                chunk_id: id,
                num_chunks_from_msg: count,
                ..metadata()
            };
            metadata
                .chunk()
                .map(|chunk| (chunk.uuid, chunk.id, chunk.count))
        };
        assert_eq!(chunk(Some("u"), Some(1), Some(2)), Some(("u", 1, 2)));
        assert_eq!(chunk(Some("u"), Some(0), Some(1)), None);
        assert_eq!(chunk(Some("u"), Some(2), Some(2)), None);
        assert_eq!(chunk(Some("u"), Some(-1), Some(2)), None);
        assert_eq!(chunk(None, Some(0), Some(2)), None);
        assert_eq!(chunk(Some("u"), None, Some(2)), None);
    }

    #[test]
    fn a_compression_that_is_not_known_is_not_taken_for_none() {
        let compression = |number| {
            let metadata = MessageMetadata {
                compression: number,
                ..metadata()
            };
            metadata.payload_compression()
        };
        assert_eq!(compression(None), Some(Compression::None));
        assert_eq!(compression(Some(3)), Some(Compression::Zstd));
        assert_eq!(compression(Some(5)), None);
    }
}
