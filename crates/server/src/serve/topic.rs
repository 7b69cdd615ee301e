//! A topic as a connection knows it.

use std::rc::Rc;

use pelton_shard::ShardHandle;
use pelton_shard::broker::TopicId;
use pelton_wire::{Domain, TopicName};

use super::refusal::Refusal;

/// An open topic, and the way to its shard. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Topic {
    /// In full: `persistent://public/default/orders`.
    pub(crate) name: Rc<str>,
    pub(crate) id: TopicId,
    pub(crate) handle: ShardHandle,
    /// n of `-partition-n`; message ids carry it.
    pub(crate) partition: Option<i32>,
}

impl Topic {
    pub(crate) fn new(named: &Named, id: TopicId, handle: &ShardHandle) -> Topic {
        Topic {
            name: named.name.as_str().into(),
            id,
            handle: handle.clone(),
            partition: named.partition,
        }
    }
}

/// A name that was parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) name: String,
    /// The same without `-partition-n`: what has the schemas.
    pub(crate) parent: String,
    pub(crate) partition: Option<i32>,
    pub(crate) persistent: bool,
}

impl Named {
    /// In the one form that counts, whatever form the client sent.
    pub(crate) fn parse(text: &str) -> Result<Named, Refusal> {
        let parsed = TopicName::parse(text).map_err(|error| {
            let code = pelton_wire::InvalidName::CODE;
            Refusal::new(code, format!("topic name {text:?}: {error}"))
        })?;
        Ok(Named {
            name: parsed.to_string(),
            parent: parsed.parent().to_string(),
            partition: parsed.partition().map(u32::cast_signed),
            persistent: parsed.domain == Domain::Persistent,
        })
    }
}
