//! A consumer subscribes, is sent what it asked for, acks, seeks, and closes.

use crate::message::{message, numbered};
use crate::types::{KeyValue, MessageId, Schema, ServerError};

message! {
    /// Adds a consumer to a subscription, which is created if it does not exist.
    Subscribe<'a> {
        1 required topic: &'a str,
        2 required subscription: &'a str,
        3 required sub_type: SubType,
        4 required consumer_id: u64,
        5 required request_id: u64,
        6 optional consumer_name: &'a str,
        /// Lower is served first.
        7 optional priority_level: i32 = 0,
        8 optional durable: bool = true,
        /// Where a subscription that is not durable begins, this entry included.
        9 optional start_message_id: MessageId<'a>,
        10 repeated metadata: KeyValue<'a>,
        11 optional read_compacted: bool = false,
        12 optional schema: Schema<'a>,
        13 optional initial_position: InitialPosition,
        14 optional replicate_subscription_state: bool,
        15 optional force_topic_creation: bool = true,
        16 optional start_message_rollback_duration_sec: u64 = 0,
        17 optional key_shared_meta: KeySharedMeta<'a>,
        18 repeated subscription_properties: KeyValue<'a>,
        19 optional consumer_epoch: u64,
    }
}

impl<'a> Subscribe<'a> {
    /// The name asked for; an empty one is none.
    #[must_use]
    pub fn name(&self) -> Option<&'a str> {
        self.consumer_name.filter(|name| !name.is_empty())
    }
}

numbered! {
    /// Who of a subscription's consumers is sent what.
    SubType {
        Exclusive = 0,
        Shared = 1,
        Failover = 2,
        KeyShared = 3,
    }
}

numbered! {
    /// Where a new subscription begins.
    InitialPosition {
        Latest = 0,
        Earliest = 1,
    }
}

message! {
    /// Which keys a Key_Shared consumer wants.
    KeySharedMeta<'a> {
        1 required key_shared_mode: KeySharedMode,
        3 repeated hash_ranges: IntRange,
        4 optional allow_out_of_order_delivery: bool = false,
    }
}

numbered! {
    /// Who divides the keys: the server, or the consumers themselves.
    KeySharedMode {
        AutoSplit = 0,
        Sticky = 1,
    }
}

message! {
    /// Hashes from `start` to `end`, both included.
    IntRange {
        1 required start: i32,
        2 required end: i32,
    }
}

message! {
    /// Adds permits.
    Flow {
        1 required consumer_id: u64,
        /// In messages, not entries.
        2 required message_permits: u32,
    }
}

message! {
    /// An entry for a consumer; what the SEND carried follows the command.
    Message<'a> {
        1 required consumer_id: u64,
        2 required message_id: MessageId<'a>,
        3 optional redelivery_count: u32 = 0,
        /// Bits of the messages still unacked; only for a batch of which some are acked.
        4 repeated ack_set: i64,
        5 optional consumer_epoch: u64,
    }
}

message! {
    /// Acks entries, or messages of batches.
    Ack<'a> {
        1 required consumer_id: u64,
        2 required ack_type: AckType,
        3 repeated message_id: MessageId<'a>,
        4 optional validation_error: ValidationError,
        5 repeated properties: LongProperty<'a>,
        6 optional txnid_least_bits: u64,
        7 optional txnid_most_bits: u64,
        /// There: an ACK_RESPONSE is wanted.
        8 optional request_id: u64,
    }
}

numbered! {
    /// What an ACK covers.
    AckType {
        /// The ids it names.
        Individual = 0,
        /// Everything up to and with its id.
        Cumulative = 1,
    }
}

numbered! {
    /// Why a client gave a message up instead of handing it to its application.
    ValidationError {
        UncompressedSizeCorruption = 0,
        DecompressionError = 1,
        ChecksumMismatch = 2,
        BatchDeSerializeError = 3,
        DecryptionError = 4,
    }
}

message! {
    /// A number with a name.
    LongProperty<'a> {
        1 required key: &'a str,
        2 required value: u64,
    }
}

message! {
    /// The acks of one ACK are applied, or are not.
    AckResponse<'a> {
        1 required consumer_id: u64,
        2 optional txnid_least_bits: u64,
        3 optional txnid_most_bits: u64,
        4 optional error: ServerError,
        5 optional message: &'a str,
        6 optional request_id: u64,
    }
}

message! {
    /// A consumer ends. From the server: `request_id` is [`crate::NO_ID`], and the URLs say where to go on.
    CloseConsumer<'a> {
        1 required consumer_id: u64,
        2 required request_id: u64,
        3 optional assigned_broker_service_url: &'a str,
        4 optional assigned_broker_service_url_tls: &'a str,
    }
}

message! {
    /// Ends a subscription.
    Unsubscribe {
        1 required consumer_id: u64,
        2 required request_id: u64,
        /// Even while others are connected to it.
        3 optional force: bool = false,
    }
}

message! {
    /// Sends unacked entries again.
    RedeliverUnacknowledgedMessages<'a> {
        1 required consumer_id: u64,
        /// None: all that this consumer holds.
        2 repeated message_ids: MessageId<'a>,
        3 optional consumer_epoch: u64,
    }
}

message! {
    /// Moves the cursor of a subscription.
    Seek<'a> {
        1 required consumer_id: u64,
        2 required request_id: u64,
        3 optional message_id: MessageId<'a>,
        /// Milliseconds since 1970.
        4 optional message_publish_time: u64,
    }
}

message! {
    /// What the last message of the topic is.
    GetLastMessageId {
        1 required consumer_id: u64,
        2 required request_id: u64,
    }
}

message! {
    /// The answer to GET_LAST_MESSAGE_ID.
    GetLastMessageIdResponse<'a> {
        /// [`MessageId::EARLIEST`] if the topic is empty.
        1 required last_message_id: MessageId<'a>,
        2 required request_id: u64,
        /// Always set.
        3 optional consumer_mark_delete_position: MessageId<'a>,
    }
}

message! {
    /// A Failover consumer is active from now on, or is not.
    ActiveConsumerChange {
        1 required consumer_id: u64,
        2 optional is_active: bool = false,
    }
}

message! {
    /// The topic is terminated and the consumer has everything. Never to C++ or Go clients.
    ReachedEndOfTopic {
        1 required consumer_id: u64,
    }
}

message! {
    /// Asks for the state of a consumer.
    ConsumerStats {
        1 required request_id: u64,
        4 required consumer_id: u64,
    }
}

message! {
    /// The answer to CONSUMER_STATS. Rates are per second.
    ConsumerStatsResponse<'a> {
        1 required request_id: u64,
        2 optional error_code: ServerError,
        3 optional error_message: &'a str,
        /// Messages.
        4 optional msg_rate_out: f64,
        /// Bytes.
        5 optional msg_throughput_out: f64,
        6 optional msg_rate_redeliver: f64,
        7 optional consumer_name: &'a str,
        /// In messages; debt is sent as 0.
        8 optional available_permits: u64,
        9 optional unacked_messages: u64,
        10 optional blocked_consumer_on_unacked_msgs: bool,
        11 optional address: &'a str,
        12 optional connected_since: &'a str,
        13 optional sub_type: &'a str,
        14 optional msg_rate_expired: f64,
        15 optional msg_backlog: u64,
        16 optional message_ack_rate: f64,
    }
}

message! {
    /// A request was carried out.
    Success<'a> {
        1 required request_id: u64,
        2 optional schema: Schema<'a>,
    }
}

message! {
    /// A request was refused. Before CONNECTED: `request_id` is [`crate::NO_ID`].
    Error<'a> {
        1 required request_id: u64,
        2 required error: ServerError,
        3 required message: &'a str,
    }
}
