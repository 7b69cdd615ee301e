//! Schemas of topics: kept beside the data, one version after the other, by a thread of their own.
//!
//! The first schema of a topic is version 0; the same bytes are the same version; another type is
//! refused. A new version of a type is taken: whether readers of the old one understand it is not
//! compared. Source: wire spec 6.1.

use std::collections::BTreeMap;
use std::io;

use crossbeam_channel::{Receiver, Sender, unbounded};
use pelton_shard::{Kv, KvWrite, ReplyFrom, ReplyTo, reply, spawn_named};
use pelton_wire::{Schema, SchemaType, ServerError};
use serde::{Deserialize, Serialize};

use super::refusal::Refusal;
use super::topic::Named;

/// Of keys in the server's store; behind it topic and version.
const KEY_PREFIX: &str = "schema/";

/// A way to the thread that keeps them. Cheap to clone; never blocks.
#[derive(Clone, Debug)]
pub(crate) struct SchemaStore(Sender<Ask>);

/// The version a schema has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Registered {
    pub(crate) version: u64,
}

/// A schema and its version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) version: u64,
    pub(crate) schema: Stored,
}

/// As it came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub(crate) name: String,
    /// Its number in the protocol.
    type_number: i32,
    pub(crate) data: Vec<u8>,
    pub(crate) properties: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Stored {
    fn of(schema: &Schema<'_>) -> Stored {
        let pairs = schema.properties.into_iter();
        Stored {
            name: schema.name.to_owned(),
            type_number: schema.schema_type as i32,
            data: schema.schema_data.to_owned(),
            properties: pairs
                .map(|pair| (pair.key.to_owned(), pair.value.to_owned()))
                .collect(),
        }
    }

    pub(crate) fn schema_type(&self) -> SchemaType {
        SchemaType::from_number(self.type_number).unwrap_or_default()
    }
}

#[derive(Debug)]
enum Ask {
    Register {
        topic: String,
        schema: Stored,
        reply: ReplyTo<Result<Registered, Refusal>>,
    },
    Find {
        topic: String,
        version: Option<u64>,
        reply: ReplyTo<Option<Found>>,
    },
}

impl SchemaStore {
    /// Reads what is kept and starts the thread. Without a store they are gone with the process.
    ///
    /// # Errors
    /// The store cannot be read, or the kernel gives no thread.
    pub(crate) fn start(store: Option<Kv>) -> io::Result<SchemaStore> {
        let topics = match &store {
            Some(store) => load(store)?,
            None => BTreeMap::new(),
        };
        let (sender, asks) = unbounded();
        let mut keeper = Keeper { topics, store };
        spawn_named("pelton-schemas", move || keeper.run(&asks))?;
        Ok(SchemaStore(sender))
    }

    /// The version of a schema, made if it is new.
    pub(crate) fn register(
        &self,
        topic: &Named,
        schema: &Schema<'_>,
    ) -> ReplyFrom<Result<Registered, Refusal>> {
        let (reply, from) = reply();
        // A thread that is gone drops the end it would answer by.
        let _ = self.0.send(Ask::Register {
            topic: topic.parent.clone(),
            schema: Stored::of(schema),
            reply,
        });
        from
    }

    /// The last schema, or one version.
    pub(crate) fn find(&self, topic: &Named, version: Option<u64>) -> ReplyFrom<Option<Found>> {
        let (reply, from) = reply();
        let _ = self.0.send(Ask::Find {
            topic: topic.parent.clone(),
            version,
            reply,
        });
        from
    }
}

struct Keeper {
    topics: BTreeMap<String, Vec<Stored>>,
    store: Option<Kv>,
}

impl Keeper {
    fn run(&mut self, asks: &Receiver<Ask>) {
        for ask in asks {
            match ask {
                Ask::Register {
                    topic,
                    schema,
                    reply,
                } => reply.send(self.register(topic, schema)),
                Ask::Find {
                    topic,
                    version,
                    reply,
                } => reply.send(self.find(&topic, version)),
            }
        }
    }

    fn register(&mut self, topic: String, schema: Stored) -> Result<Registered, Refusal> {
        let known = self.topics.get(&topic).map_or(&[][..], Vec::as_slice);
        let same = |old: &Stored| old.type_number == schema.type_number && old.data == schema.data;
        if let Some(version) = known.iter().position(same) {
            return Ok(registered(version));
        }
        if let Some(last) = known.last()
            && last.type_number != schema.type_number
        {
            let (has, asked) = (last.schema_type(), schema.schema_type());
            let text = format!("the topic has a schema of type {has:?}, not {asked:?}");
            return Err(Refusal::new(ServerError::IncompatibleSchema, text));
        }
        let version = known.len();
        self.keep(&topic, version, &schema).map_err(|error| {
            let text = format!("keeping the schema failed: {error}");
            Refusal::new(ServerError::Metadata, text)
        })?;
        self.topics.entry(topic).or_default().push(schema);
        Ok(registered(version))
    }

    fn keep(&self, topic: &str, version: usize, schema: &Stored) -> io::Result<()> {
        let Some(store) = &self.store else {
            return Ok(());
        };
        let value = Some(serde_json::to_vec(schema)?);
        let key = format!("{KEY_PREFIX}{topic}\n{version:08}");
        store.apply(&[KvWrite { key, value }])
    }

    fn find(&self, topic: &str, version: Option<u64>) -> Option<Found> {
        let known = self.topics.get(topic)?;
        let index = match version {
            Some(version) => usize::try_from(version).ok()?,
            None => known.len().checked_sub(1)?,
        };
        Some(Found {
            version: index as u64,
            schema: known.get(index)?.clone(),
        })
    }
}

fn registered(version: usize) -> Registered {
    let version = version as u64;
    Registered { version }
}

/// Keys rise by topic, then version.
fn load(store: &Kv) -> io::Result<BTreeMap<String, Vec<Stored>>> {
    let mut topics: BTreeMap<String, Vec<Stored>> = BTreeMap::new();
    for (key, value) in store.load()? {
        let key = key.strip_prefix(KEY_PREFIX);
        if let Some((topic, _version)) = key.and_then(|key| key.rsplit_once('\n')) {
            let schema = serde_json::from_slice(&value)?;
            topics.entry(topic.to_owned()).or_default().push(schema);
        }
    }
    Ok(topics)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(schema_type: SchemaType, data: &str) -> Stored {
        Stored {
            name: "s".into(),
            type_number: schema_type as i32,
            data: data.into(),
            properties: vec![(b"k".to_vec(), b"v".to_vec())],
        }
    }

    #[test]
    fn versions_rise_and_the_same_bytes_are_the_same_version_after_a_restart_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("server.redb");
        let open = || {
            let store = Kv::open(&path).expect("a store");
            let topics = load(&store).expect("readable");
            let store = Some(store);
            Keeper { topics, store }
        };
        let register = |keeper: &mut Keeper, data| {
            let registered = keeper.register("t".into(), schema(SchemaType::Json, data));
            registered.map(|registered| registered.version)
        };
        let mut keeper = open();
        assert_eq!(register(&mut keeper, "a"), Ok(0));
        assert_eq!(register(&mut keeper, "b"), Ok(1));
        drop(keeper);
        let mut keeper = open();
        assert_eq!(register(&mut keeper, "a"), Ok(0));
        assert_eq!(register(&mut keeper, "c"), Ok(2));
        let refused = keeper.register("t".into(), schema(SchemaType::String, "a"));
        let code = refused.map_err(|refusal| refusal.code);
        assert_eq!(code, Err(ServerError::IncompatibleSchema));
        let last = keeper.find("t", None).expect("there are three");
        assert_eq!((last.version, &last.schema.data[..]), (2, &b"c"[..]));
        assert_eq!(keeper.find("t", Some(3)), None);
        assert_eq!(keeper.find("u", None), None);
    }
}
