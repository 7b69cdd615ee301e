//! What commands are made of: ids, schemas, flags, codes.

use crate::message::{message, numbered};

/// "No id": the request of a command nobody asked for (server-initiated CLOSE_*, ERROR before
/// CONNECTED), ledger and entry of what was not stored. Source: wire spec 5.1, 6.1.
pub const NO_ID: u64 = u64::MAX;

message! {
    /// A key and its value: properties of messages, producers, subscriptions, schemas. Bytes, not text,
    /// because clients set them from strings of any encoding and they are passed through.
    KeyValue<'a> {
        1 required key: &'a [u8],
        2 required value: &'a [u8],
    }
}

message! {
    /// The name of a stored message.
    MessageId<'a> {
        1 required ledger_id: u64,
        2 required entry_id: u64,
        /// n on `-partition-n`.
        3 optional partition: i32 = -1,
        /// Place in its batch.
        4 optional batch_index: i32 = -1,
        /// A bit for each message of the batch, lowest first, 1 = not acked.
        5 repeated ack_set: i64,
        /// Messages in the batch.
        6 optional batch_size: i32,
        /// None or one: where a chunked message begins. Repeated, because that is how a message can
        /// contain its own kind here.
        7 repeated first_chunk_message_id: MessageId<'a>,
    }
}

impl MessageId<'_> {
    /// In front of the first entry; also the last id of an empty topic and that of what was not
    /// stored.
    pub const EARLIEST: Self = Self::new(NO_ID, NO_ID);

    /// Behind the last entry.
    pub const LATEST: Self = Self::new(i64::MAX.cast_unsigned(), i64::MAX.cast_unsigned());

    /// An entry as a whole, its partition not named.
    #[must_use]
    pub const fn new(ledger_id: u64, entry_id: u64) -> Self {
        Self {
            ledger_id,
            entry_id,
            partition: None,
            batch_index: None,
            ack_set: crate::Values::NONE,
            batch_size: None,
            first_chunk_message_id: crate::Values::NONE,
        }
    }
}

message! {
    /// A schema as its client describes it.
    Schema<'a> {
        1 required name: &'a str,
        3 required schema_data: &'a [u8],
        4 required schema_type: SchemaType,
        5 repeated properties: KeyValue<'a>,
    }
}

numbered! {
    /// What [`Schema::schema_data`] describes.
    SchemaType {
        None = 0,
        String = 1,
        Json = 2,
        Protobuf = 3,
        Avro = 4,
        Bool = 5,
        Int8 = 6,
        Int16 = 7,
        Int32 = 8,
        Int64 = 9,
        Float = 10,
        Double = 11,
        Date = 12,
        Time = 13,
        Timestamp = 14,
        KeyValue = 15,
        Instant = 16,
        LocalDate = 17,
        LocalTime = 18,
        LocalDateTime = 19,
        ProtobufNative = 20,
        /// Whatever the topic has; registers nothing.
        AutoConsume = 21,
        External = 22,
    }
}

message! {
    /// What a client or a server can do beyond the protocol version.
    FeatureFlags {
        1 optional supports_auth_refresh: bool = false,
        2 optional supports_broker_entry_metadata: bool = false,
        3 optional supports_partial_producer: bool = false,
        4 optional supports_topic_watchers: bool = false,
        5 optional supports_get_partitioned_metadata_without_auto_creation: bool = false,
        6 optional supports_repl_dedup_by_lid_and_eid: bool = false,
        7 optional supports_topic_watcher_reconcile: bool = false,
        8 optional supports_scalable_topics: bool = false,
        9 optional supports_tc_metadata_discovery: bool = false,
    }
}

numbered! {
    /// Why a request was refused. What clients make of each: wire spec 4.
    ServerError {
        Unknown = 0,
        Metadata = 1,
        Persistence = 2,
        Authentication = 3,
        Authorization = 4,
        ConsumerBusy = 5,
        ServiceNotReady = 6,
        ProducerBlockedQuotaExceededError = 7,
        ProducerBlockedQuotaExceededException = 8,
        Checksum = 9,
        UnsupportedVersion = 10,
        TopicNotFound = 11,
        SubscriptionNotFound = 12,
        ConsumerNotFound = 13,
        TooManyRequests = 14,
        TopicTerminated = 15,
        ProducerBusy = 16,
        InvalidTopicName = 17,
        IncompatibleSchema = 18,
        ConsumerAssign = 19,
        TransactionCoordinatorNotFound = 20,
        InvalidTxnStatus = 21,
        NotAllowed = 22,
        TransactionConflict = 23,
        TransactionNotFound = 24,
        ProducerFenced = 25,
    }
}

/// Bytes that are never shown: credentials. `Debug` prints their number.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a [u8]);

impl std::fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl<'a> crate::protobuf::Value<'a> for Secret<'a> {
    const LAYOUT: crate::protobuf::Layout = crate::protobuf::Layout::Bytes;

    fn read(
        reader: &mut crate::protobuf::Reader<'a>,
    ) -> Result<Option<Self>, crate::ProtocolError> {
        Ok(Some(Self(reader.bytes()?)))
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.0.write(out);
    }
}
