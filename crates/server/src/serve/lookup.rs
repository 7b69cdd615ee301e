//! Where topics are, which there are, and their schemas: answered by every shard for every topic.

use std::collections::BTreeSet;

use pelton_shard::broker::{Reply, Request};
use pelton_shard::{Ports, ShardHandle};
use pelton_wire::commands::{
    GetOrCreateSchema, GetOrCreateSchemaResponse, GetSchema, GetSchemaResponse,
    GetTopicsOfNamespace, GetTopicsOfNamespaceResponse, Lookup, LookupOutcome, LookupResponse,
    MetadataOutcome, PartitionedMetadata, PartitionedMetadataResponse, TopicMode,
};
use pelton_wire::{Domain, KeyValue, Namespace, Schema, ServerError, TopicName, Values};

use super::connection::Connection;
use super::context::Context;
use super::refusal::Refusal;
use super::schemas::{Found, Registered};
use super::topic::Named;
use super::waiting::{Then, Waiting};

/// A walk over the shards for the topics of a namespace.
#[derive(Debug)]
pub(crate) struct Listing {
    request_id: u64,
    namespace: String,
    mode: TopicMode,
    left: Vec<ShardHandle>,
    found: BTreeSet<String>,
}

impl Connection {
    pub(crate) fn partitioned_metadata(&mut self, asked: &PartitionedMetadata<'_>) {
        let named = Named::parse(asked.topic);
        let refusal = named.as_ref().err();
        self.out.push(PartitionedMetadataResponse {
            partitions: refusal.is_none().then_some(0),
            request_id: asked.request_id,
            // Absent is read as a failure.
            response: Some(match refusal {
                None => MetadataOutcome::Success,
                Some(_) => MetadataOutcome::Failed,
            }),
            error: refusal.map(|refusal| refusal.code),
            message: refusal.map(|refusal| refusal.text.as_str()),
        });
    }

    pub(crate) fn lookup(&mut self, asked: &Lookup<'_>, cx: &Context) {
        let request_id = asked.request_id;
        let named = match (Named::parse(asked.topic), asked.listener()) {
            (Ok(_), Some(listener)) => Err(Refusal::not_ready(format!(
                "the broker do not have {listener} listener"
            ))),
            (named, _) => named,
        };
        match named {
            Ok(named) => self.out.push(LookupResponse {
                broker_service_url: Some(cx.owner_of(&named.name).1),
                response: Some(LookupOutcome::Connect),
                request_id,
                authoritative: Some(true),
                proxy_through_service_url: Some(false),
                ..LookupResponse::default()
            }),
            Err(refusal) => self.out.push(LookupResponse {
                response: Some(LookupOutcome::Failed),
                request_id,
                error: Some(refusal.code),
                message: Some(&refusal.text),
                ..LookupResponse::default()
            }),
        }
    }

    pub(crate) fn topics_of_namespace(&mut self, asked: &GetTopicsOfNamespace<'_>, cx: &Context) {
        let listing = Listing {
            request_id: asked.request_id,
            namespace: asked.namespace.to_owned(),
            mode: asked.mode.unwrap_or_default(),
            left: cx.shared.handles.clone(),
            found: BTreeSet::new(),
        };
        self.list_next(listing);
    }

    fn list_next(&mut self, mut listing: Listing) {
        match listing.left.pop() {
            Some(shard) => {
                let then = Then::Topics(Box::new(listing));
                self.ask(&shard, Request::Stats, Ports::None, then);
            }
            None => {
                let topics: Vec<&str> = listing.found.iter().map(String::as_str).collect();
                self.out.push(GetTopicsOfNamespaceResponse {
                    request_id: listing.request_id,
                    topics: Values::new(&topics),
                    filtered: Some(false),
                    topics_hash: None,
                    changed: Some(true),
                });
            }
        }
    }

    pub(crate) fn give_topics(&mut self, mut listing: Listing, reply: Result<Reply, Refusal>) {
        match reply {
            Ok(Reply::Stats(stats)) => {
                let names = stats.topics.into_iter().map(|topic| topic.name);
                let wanted: Vec<String> = names.filter(|name| listing.wants(name)).collect();
                listing.found.extend(wanted);
                self.list_next(listing);
            }
            Ok(_) => {}
            Err(refusal) => self.refuse(listing.request_id, &refusal),
        }
    }

    pub(crate) fn get_schema(&mut self, asked: &GetSchema<'_>, cx: &Context) {
        let request_id = asked.request_id;
        let named = Named::parse(asked.topic);
        let version = asked.schema_version.filter(|version| !version.is_empty());
        let version = version.map(|version| version.try_into().map(u64::from_be_bytes));
        match (named, version.transpose()) {
            (Ok(named), Ok(version)) => {
                let from = cx.shared.schemas.find(&named, version);
                self.wait_for(Waiting::found(from, Then::Schema { request_id }));
            }
            (Err(refusal), _) => self.give_no_schema(request_id, &refusal),
            (_, Err(_)) => self.give_schema(request_id, None),
        }
    }

    pub(crate) fn give_schema(&mut self, request_id: u64, found: Option<Found>) {
        let Some(Found { version, schema }) = found else {
            let text = "the topic has no such schema";
            let refusal = Refusal::new(ServerError::TopicNotFound, text);
            return self.give_no_schema(request_id, &refusal);
        };
        let properties: Vec<KeyValue<'_>> = (schema.properties.iter())
            .map(|(key, value)| KeyValue { key, value })
            .collect();
        self.out.push(GetSchemaResponse {
            request_id,
            schema: Some(Schema {
                name: &schema.name,
                schema_data: &schema.data,
                schema_type: schema.schema_type(),
                properties: Values::new(&properties),
            }),
            schema_version: Some(&version.to_be_bytes()),
            ..GetSchemaResponse::default()
        });
    }

    fn give_no_schema(&mut self, request_id: u64, refusal: &Refusal) {
        self.out.push(GetSchemaResponse {
            request_id,
            error_code: Some(refusal.code),
            error_message: Some(&refusal.text),
            ..GetSchemaResponse::default()
        });
    }

    pub(crate) fn get_or_create_schema(&mut self, asked: &GetOrCreateSchema<'_>, cx: &Context) {
        let request_id = asked.request_id;
        match Named::parse(asked.topic) {
            Ok(named) => {
                let from = cx.shared.schemas.register(&named, &asked.schema);
                let then = Then::SchemaMade { request_id };
                self.wait_for(Waiting::registered(from, then));
            }
            Err(refusal) => self.give_schema_version(request_id, Err(refusal)),
        }
    }

    pub(crate) fn give_schema_version(
        &mut self,
        request_id: u64,
        made: Result<Registered, Refusal>,
    ) {
        let version = made.as_ref().ok().map(|made| made.version.to_be_bytes());
        let refusal = made.as_ref().err();
        self.out.push(GetOrCreateSchemaResponse {
            request_id,
            error_code: refusal.map(|refusal| refusal.code),
            error_message: refusal.map(|refusal| refusal.text.as_str()),
            schema_version: version.as_ref().map(|version| &version[..]),
        });
    }
}

impl Listing {
    fn wants(&self, name: &str) -> bool {
        let Ok(name) = TopicName::parse(name) else {
            return false; // of an engine that was used without a server
        };
        let domain = match self.mode {
            TopicMode::Persistent => name.domain == Domain::Persistent,
            TopicMode::NonPersistent => name.domain == Domain::NonPersistent,
            TopicMode::All => true,
        };
        domain && Namespace::parse(&self.namespace) == Ok(name.namespace)
    }
}
