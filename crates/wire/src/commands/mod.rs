//! All commands: which there are, their numbers, and the envelope they travel in.

mod connect;
mod consume;
mod lookup;
mod produce;

pub use connect::{AuthChallenge, AuthData, AuthResponse, Connect, Connected, Ping, Pong};
pub use consume::{
    Ack, AckResponse, AckType, ActiveConsumerChange, CloseConsumer, ConsumerStats,
    ConsumerStatsResponse, Error, Flow, GetLastMessageId, GetLastMessageIdResponse,
    InitialPosition, IntRange, KeySharedMeta, KeySharedMode, LongProperty, Message,
    ReachedEndOfTopic, RedeliverUnacknowledgedMessages, Seek, SubType, Subscribe, Success,
    Unsubscribe, ValidationError,
};
pub use lookup::{
    GetOrCreateSchema, GetOrCreateSchemaResponse, GetSchema, GetSchemaResponse,
    GetTopicsOfNamespace, GetTopicsOfNamespaceResponse, Lookup, LookupOutcome, LookupResponse,
    MetadataOutcome, PartitionedMetadata, PartitionedMetadataResponse, TopicMode,
};
pub use produce::{
    AccessMode, CloseProducer, Producer, ProducerSuccess, Send, SendError, SendReceipt,
};

use crate::{
    ServerError,
    error::ProtocolError,
    message::{Message as _, message},
    protobuf::{Layout, Reader, Value, put_key, put_varint},
};

/// Who may send a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// Clients alone.
    Client,
    /// Servers alone; from a client it ends the connection.
    Server,
    /// Both.
    Either,
}

/// The number of the command is that of its field in the envelope.
macro_rules! commands {
    ($($number:literal $name:ident $(<$life:lifetime>)? $wire_name:literal $sender:ident,)+) => {
        /// A command. Field 1 of its envelope names the number, and the field of that number holds it.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum Command<'a> {
            $(#[doc = concat!("Command ", $number, ", ", $wire_name, ".")] $name($name $(<$life>)?),)+
            /// One that is known well enough to be refused.
            Refused(Refused),
        }

        $(impl<'a> From<$name $(<$life>)?> for Command<'a> {
            #[inline]
            fn from(command: $name $(<$life>)?) -> Self {
                Self::$name(command)
            }
        })+

        impl<'a> Command<'a> {
            /// The number of the command.
            #[must_use]
            pub fn number(&self) -> u32 {
                match self {
                    $(Self::$name(_) => $number,)+
                    Self::Refused(refused) => refused.number,
                }
            }

            /// Its name in the protocol, for logs.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $wire_name,)+
                    Self::Refused(_) => "REFUSED",
                }
            }

            /// Who may send it.
            #[must_use]
            pub fn sender(&self) -> Sender {
                match self {
                    $(Self::$name(_) => Sender::$sender,)+
                    Self::Refused(_) => Sender::Client,
                }
            }

            fn read_body(number: u32, body: &mut Reader<'a>) -> Result<Self, ProtocolError> {
                Ok(match number {
                    $($number => Self::$name($name::read_fields(body)?),)+
                    _ => Self::Refused(Refused::read(number, body)?),
                })
            }

            fn write_body(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$name(command) => command.write(out),)+
                    Self::Refused(refused) => refused.request().write(out),
                }
            }
        }
    };
}

commands! {
    2 Connect<'a> "CONNECT" Client,
    3 Connected<'a> "CONNECTED" Server,
    4 Subscribe<'a> "SUBSCRIBE" Client,
    5 Producer<'a> "PRODUCER" Client,
    6 Send<'a> "SEND" Client,
    7 SendReceipt<'a> "SEND_RECEIPT" Server,
    8 SendError<'a> "SEND_ERROR" Server,
    9 Message<'a> "MESSAGE" Server,
    10 Ack<'a> "ACK" Client,
    11 Flow "FLOW" Client,
    12 Unsubscribe "UNSUBSCRIBE" Client,
    13 Success<'a> "SUCCESS" Server,
    14 Error<'a> "ERROR" Server,
    15 CloseProducer<'a> "CLOSE_PRODUCER" Either,
    16 CloseConsumer<'a> "CLOSE_CONSUMER" Either,
    17 ProducerSuccess<'a> "PRODUCER_SUCCESS" Server,
    18 Ping "PING" Either,
    19 Pong "PONG" Either,
    20 RedeliverUnacknowledgedMessages<'a> "REDELIVER_UNACKNOWLEDGED_MESSAGES" Client,
    21 PartitionedMetadata<'a> "PARTITIONED_METADATA" Client,
    22 PartitionedMetadataResponse<'a> "PARTITIONED_METADATA_RESPONSE" Server,
    23 Lookup<'a> "LOOKUP" Client,
    24 LookupResponse<'a> "LOOKUP_RESPONSE" Server,
    25 ConsumerStats "CONSUMER_STATS" Client,
    26 ConsumerStatsResponse<'a> "CONSUMER_STATS_RESPONSE" Server,
    27 ReachedEndOfTopic "REACHED_END_OF_TOPIC" Server,
    28 Seek<'a> "SEEK" Client,
    29 GetLastMessageId "GET_LAST_MESSAGE_ID" Client,
    30 GetLastMessageIdResponse<'a> "GET_LAST_MESSAGE_ID_RESPONSE" Server,
    31 ActiveConsumerChange "ACTIVE_CONSUMER_CHANGE" Server,
    32 GetTopicsOfNamespace<'a> "GET_TOPICS_OF_NAMESPACE" Client,
    33 GetTopicsOfNamespaceResponse<'a> "GET_TOPICS_OF_NAMESPACE_RESPONSE" Server,
    34 GetSchema<'a> "GET_SCHEMA" Client,
    35 GetSchemaResponse<'a> "GET_SCHEMA_RESPONSE" Server,
    36 AuthChallenge<'a> "AUTH_CHALLENGE" Server,
    37 AuthResponse<'a> "AUTH_RESPONSE" Client,
    38 AckResponse<'a> "ACK_RESPONSE" Server,
    39 GetOrCreateSchema<'a> "GET_OR_CREATE_SCHEMA" Client,
    40 GetOrCreateSchemaResponse<'a> "GET_OR_CREATE_SCHEMA_RESPONSE" Server,
}

impl<'a> Command<'a> {
    /// Decodes an envelope.
    #[inline]
    pub(crate) fn decode(envelope: &'a [u8]) -> Result<Self, ProtocolError> {
        let (mut number, mut body) = (None, None);
        let mut fields = Reader::new(envelope);
        while let Some((field, layout)) = fields.field()? {
            match layout {
                Layout::Varint if field == 1 => (number, body) = (u32::read(&mut fields)?, None),
                Layout::Bytes if Some(field) == number => body = Some(fields.nested()?),
                _ => fields.skip(layout)?,
            }
        }
        let number = number.ok_or(ProtocolError::Missing("BaseCommand.type"))?;
        // The type stands in front in what clients write, but it need not.
        if body.is_none() {
            body = find(number, Reader::new(envelope))?;
        }
        let mut body = body.ok_or(ProtocolError::Missing("the body of a command"))?;
        Self::read_body(number, &mut body)
    }

    /// Appends the envelope.
    #[inline]
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_key(1, Layout::Varint, out);
        put_varint(u64::from(self.number()), out);
        put_key(self.number(), Layout::Bytes, out);
        self.write_body(out);
    }
}

/// The message in the field of that number.
fn find(number: u32, mut fields: Reader<'_>) -> Result<Option<Reader<'_>>, ProtocolError> {
    let mut found = None;
    while let Some((field, layout)) = fields.field()? {
        match layout {
            Layout::Bytes if field == number => found = Some(fields.nested()?),
            _ => fields.skip(layout)?,
        }
    }
    Ok(found)
}

/// A request for something that is not offered: transactions, topic watchers, scalable topics. The
/// answer is an ERROR with [`CODE`](Self::CODE) and [`text`](Self::text). Source: wire spec 3 and 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The number of the command: 50 to 68, 70 to 81.
    pub number: u32,
    /// The request to answer.
    pub request_id: u64,
}

message! {
    /// All that these requests have in common.
    Request {
        1 required request_id: u64,
    }
}

impl Refused {
    /// A deliberate refusal; other codes look like a hang to clients, which try again.
    pub const CODE: ServerError = ServerError::NotAllowed;

    /// Why it is refused, in the words that clients show.
    #[must_use]
    pub fn text(&self) -> &'static str {
        match self.number {
            50..=63 => "Transactions are not enabled.",
            _ => "Not supported",
        }
    }

    fn read(number: u32, body: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        if !matches!(number, 50..=68 | 70..=81) {
            return Err(ProtocolError::UnknownCommand(number));
        }
        let request_id = Request::read_fields(body)?.request_id;
        Ok(Self { number, request_id })
    }

    fn request(self) -> Request {
        let request_id = self.request_id;
        Request { request_id }
    }
}
