//! Names of topics: parsed in every form that clients send, printed in the one that counts.

use std::fmt;

use crate::ServerError;

/// Bytes of the longest name, in its canonical form. Source: wire spec 5.2.
const NAME_BYTES_MAX: usize = 1_024;

/// In front of the number of a partition.
const PARTITION_MARK: &str = "-partition-";

/// Whether a topic keeps its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Domain {
    /// `persistent`.
    Persistent,
    /// `non-persistent`: whoever is not there misses it.
    NonPersistent,
}

impl Domain {
    /// As it stands in names.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::NonPersistent => "non-persistent",
        }
    }
}

/// `tenant/name`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace<'a> {
    /// Who it belongs to.
    pub tenant: &'a str,
    /// Its name within the tenant.
    pub name: &'a str,
}

impl<'a> Namespace<'a> {
    /// Where topics without a namespace are.
    pub const DEFAULT: Namespace<'static> = Namespace {
        tenant: "public",
        name: "default",
    };

    /// Errors: not two parts, or other characters than letters, digits and `-=:._`.
    pub fn parse(text: &'a str) -> Result<Self, InvalidName> {
        let (tenant, name) = text.split_once('/').ok_or(InvalidName)?;
        if !is_part(tenant) || !is_part(name) {
            return Err(InvalidName);
        }
        Ok(Self { tenant, name })
    }
}

impl fmt::Display for Namespace<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.tenant, self.name)
    }
}

/// The name of a topic. Printed it is canonical: `persistent://public/default/orders`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicName<'a> {
    /// Whether it keeps its entries.
    pub domain: Domain,
    /// Where it is.
    pub namespace: Namespace<'a>,
    /// Its own name, with `-partition-N` if it is a partition.
    pub local: &'a str,
}

impl<'a> TopicName<'a> {
    /// Parses `local`, `tenant/namespace/local` or a full name.
    ///
    /// Errors: another form (four parts are names of the time before namespaces lost their cluster), an
    /// empty part, a character that a tenant or namespace cannot have, too long.
    pub fn parse(text: &'a str) -> Result<Self, InvalidName> {
        let (domain, path) = match text.split_once("://") {
            Some(("persistent", path)) => (Domain::Persistent, path),
            Some(("non-persistent", path)) => (Domain::NonPersistent, path),
            Some(_) => return Err(InvalidName),
            None if text.contains('/') => (Domain::Persistent, text),
            None => return Self::new(Domain::Persistent, Namespace::DEFAULT, text),
        };
        let (namespace, local) = path.rsplit_once('/').ok_or(InvalidName)?;
        Self::new(domain, Namespace::parse(namespace)?, local)
    }

    fn new(domain: Domain, namespace: Namespace<'a>, local: &'a str) -> Result<Self, InvalidName> {
        let bytes = domain.as_str().len()
            + "://".len()
            + namespace.tenant.len()
            + "/".len()
            + namespace.name.len()
            + "/".len()
            + local.len();
        if local.is_empty() || bytes > NAME_BYTES_MAX {
            return Err(InvalidName);
        }
        Ok(Self {
            domain,
            namespace,
            local,
        })
    }

    /// N of `-partition-N`, written as N is printed; nothing if the topic is not a partition.
    #[must_use]
    pub fn partition(&self) -> Option<u32> {
        self.split_partition().map(|(_, partition)| partition)
    }

    /// The topic that this is a partition of; itself if it is none.
    #[must_use]
    pub fn parent(&self) -> Self {
        let local = self
            .split_partition()
            .map_or(self.local, |(local, _)| local);
        Self { local, ..*self }
    }

    fn split_partition(&self) -> Option<(&'a str, u32)> {
        let (local, digits) = self.local.rsplit_once(PARTITION_MARK)?;
        let canonical = digits == "0" || !digits.starts_with('0');
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
        // Ids of messages carry it as an i32.
        let partition = digits.parse::<i32>().ok()?;
        (!local.is_empty() && canonical && is_number).then_some((local, partition.cast_unsigned()))
    }
}

impl fmt::Display for TopicName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            domain,
            namespace,
            local,
        } = self;
        write!(f, "{}://{namespace}/{local}", domain.as_str())
    }
}

/// The name of a partition of `topic`, in full.
#[must_use]
pub fn partition_name(topic: TopicName<'_>, partition: u32) -> String {
    format!("{topic}{PARTITION_MARK}{partition}")
}

/// True for what may be a tenant or a namespace.
fn is_part(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-=:._".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

/// Not the name of a topic or of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a name: expected tenant/namespace, and topic or [domain://]tenant/namespace/topic")]
pub struct InvalidName;

impl InvalidName {
    /// The code to answer with.
    pub const CODE: ServerError = ServerError::InvalidTopicName;
}
