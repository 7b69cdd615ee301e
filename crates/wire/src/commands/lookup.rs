//! Where topics are, which there are, and what they contain.

use crate::message::{message, numbered};
use crate::types::{KeyValue, Schema, ServerError};

message! {
    /// How many partitions a topic has.
    PartitionedMetadata<'a> {
        1 required topic: &'a str,
        2 required request_id: u64,
        6 optional metadata_auto_creation_enabled: bool = true,
    }
}

message! {
    /// The answer to PARTITIONED_METADATA. `response` always set: clients read absent as failed.
    PartitionedMetadataResponse<'a> {
        /// 0: not partitioned.
        1 optional partitions: u32,
        2 required request_id: u64,
        3 optional response: MetadataOutcome,
        4 optional error: ServerError,
        5 optional message: &'a str,
    }
}

numbered! {
    /// Whether PARTITIONED_METADATA could be answered.
    MetadataOutcome {
        Success = 0,
        Failed = 1,
    }
}

message! {
    /// Who serves a topic.
    Lookup<'a> {
        1 required topic: &'a str,
        2 required request_id: u64,
        3 optional authoritative: bool = false,
        7 optional advertised_listener_name: &'a str,
        8 repeated properties: KeyValue<'a>,
    }
}

impl<'a> Lookup<'a> {
    /// The listener asked for; an empty name is none.
    #[must_use]
    pub fn listener(&self) -> Option<&'a str> {
        self.advertised_listener_name
            .filter(|name| !name.is_empty())
    }
}

message! {
    /// The answer to LOOKUP. Without TLS its URL is left out: empty is worse than none.
    LookupResponse<'a> {
        1 optional broker_service_url: &'a str,
        2 optional broker_service_url_tls: &'a str,
        3 optional response: LookupOutcome,
        4 required request_id: u64,
        5 optional authoritative: bool = false,
        6 optional error: ServerError,
        7 optional message: &'a str,
        8 optional proxy_through_service_url: bool = false,
    }
}

numbered! {
    /// What to do with the URL of a LOOKUP_RESPONSE.
    LookupOutcome {
        /// Ask there.
        Redirect = 0,
        /// The owner is there.
        Connect = 1,
        Failed = 2,
    }
}

message! {
    /// Which topics a namespace has.
    GetTopicsOfNamespace<'a> {
        1 required request_id: u64,
        /// `tenant/namespace`.
        2 required namespace: &'a str,
        3 optional mode: TopicMode,
        4 optional topics_pattern: &'a str,
        5 optional topics_hash: &'a str,
        6 repeated properties: KeyValue<'a>,
    }
}

numbered! {
    /// Topics of which domain.
    TopicMode {
        Persistent = 0,
        NonPersistent = 1,
        All = 2,
    }
}

message! {
    /// The answer to GET_TOPICS_OF_NAMESPACE: full names, each partition one.
    GetTopicsOfNamespaceResponse<'a> {
        1 required request_id: u64,
        2 repeated topics: &'a str,
        /// True: only those that match the pattern are here.
        3 optional filtered: bool = false,
        4 optional topics_hash: &'a str,
        5 optional changed: bool = true,
    }
}

message! {
    /// The schema of a topic: the last, or one version.
    GetSchema<'a> {
        1 required request_id: u64,
        2 required topic: &'a str,
        /// 8 bytes, big endian.
        3 optional schema_version: &'a [u8],
    }
}

message! {
    /// The answer to GET_SCHEMA.
    GetSchemaResponse<'a> {
        1 required request_id: u64,
        2 optional error_code: ServerError,
        3 optional error_message: &'a str,
        4 optional schema: Schema<'a>,
        /// 8 bytes, big endian.
        5 optional schema_version: &'a [u8],
    }
}

message! {
    /// Registers a schema unless it is there, and asks for its version.
    GetOrCreateSchema<'a> {
        1 required request_id: u64,
        2 required topic: &'a str,
        3 required schema: Schema<'a>,
        4 optional producer_name: &'a str,
    }
}

message! {
    /// The answer to GET_OR_CREATE_SCHEMA.
    GetOrCreateSchemaResponse<'a> {
        1 required request_id: u64,
        2 optional error_code: ServerError,
        3 optional error_message: &'a str,
        /// 8 bytes, big endian.
        4 optional schema_version: &'a [u8],
    }
}
