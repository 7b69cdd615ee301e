//! A producer opens, sends, and closes.

use crate::message::{message, numbered};
use crate::types::{KeyValue, MessageId, Schema, ServerError};

message! {
    /// Opens a producer. Ids are unique within the connection.
    Producer<'a> {
        1 required topic: &'a str,
        2 required producer_id: u64,
        3 required request_id: u64,
        4 optional producer_name: &'a str,
        5 optional encrypted: bool = false,
        6 repeated metadata: KeyValue<'a>,
        7 optional schema: Schema<'a>,
        /// Rises with each reconnect of the client.
        8 optional epoch: u64 = 0,
        9 optional user_provided_producer_name: bool = true,
        10 optional producer_access_mode: AccessMode,
        11 optional topic_epoch: u64,
        12 optional txn_enabled: bool = false,
        13 optional initial_subscription_name: &'a str,
    }
}

impl<'a> Producer<'a> {
    /// The name asked for; an empty one is none.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        self.producer_name.filter(|name| !name.is_empty())
    }

    /// The subscription to create with the topic; an empty name is none.
    #[must_use]
    pub fn initial_subscription(&self) -> Option<&'a str> {
        self.initial_subscription_name
            .filter(|name| !name.is_empty())
    }
}

numbered! {
    /// Who else may produce.
    AccessMode {
        Shared = 0,
        Exclusive = 1,
        WaitForExclusive = 2,
        ExclusiveWithFencing = 3,
    }
}

message! {
    /// The answer to PRODUCER.
    ProducerSuccess<'a> {
        1 required request_id: u64,
        2 required producer_name: &'a str,
        /// The highest stored, -1 if none or not kept.
        3 optional last_sequence_id: i64 = -1,
        /// Always set, empty if there is none: Java throws otherwise.
        4 optional schema_version: &'a [u8],
        5 optional topic_epoch: u64,
        /// False: it waits for its turn, and a second answer with true follows.
        6 optional producer_ready: bool = true,
    }
}

message! {
    /// An entry to store; its metadata and payload follow the command (see [`crate::Entry`]).
    Send<'a> {
        1 required producer_id: u64,
        2 required sequence_id: u64,
        /// A hint; the metadata counts.
        3 optional num_messages: i32 = 1,
        4 optional txnid_least_bits: u64,
        5 optional txnid_most_bits: u64,
        6 optional highest_sequence_id: u64 = 0,
        7 optional is_chunk: bool = false,
        8 optional marker: bool = false,
        /// The id that a replicator wants for it.
        9 optional message_id: MessageId<'a>,
    }
}

message! {
    /// The entry is as durable as its topic promises. In order for each producer.
    SendReceipt<'a> {
        1 required producer_id: u64,
        /// As in the SEND.
        2 required sequence_id: u64,
        /// [`MessageId::EARLIEST`] if it was not stored.
        3 optional message_id: MessageId<'a>,
        4 optional highest_sequence_id: u64 = 0,
    }
}

message! {
    /// The entry was not stored. C++ closes the connection on every code but `Checksum`.
    SendError<'a> {
        1 required producer_id: u64,
        2 required sequence_id: u64,
        3 required error: ServerError,
        4 required message: &'a str,
    }
}

message! {
    /// A producer ends. From the server: `request_id` is [`crate::NO_ID`], and the URLs say where to go on.
    CloseProducer<'a> {
        1 required producer_id: u64,
        2 required request_id: u64,
        3 optional assigned_broker_service_url: &'a str,
        4 optional assigned_broker_service_url_tls: &'a str,
    }
}
