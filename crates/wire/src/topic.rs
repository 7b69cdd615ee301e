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

#[cfg(test)]
mod tests {
    use super::*;

    /// Its canonical form, and that of what it is a partition of.
    fn check(text: &str, expected: Option<(&str, &str, Option<u32>)>) {
        let parsed = TopicName::parse(text).ok().map(|name| {
            let again = name.to_string();
            assert_eq!(TopicName::parse(&again), Ok(name), "{text}");
            (again, name.parent().to_string(), name.partition())
        });
        let parsed = parsed
            .as_ref()
            .map(|(name, parent, partition)| (&name[..], &parent[..], *partition));
        assert_eq!(parsed, expected, "{text}");
    }

    fn plain(text: &str, canonical: &str) {
        check(text, Some((canonical, canonical, None)));
    }

    #[test]
    fn every_form_becomes_the_full_name() {
        plain("t", "persistent://public/default/t");
        plain("a/b/t", "persistent://a/b/t");
        plain("persistent://a/b/t", "persistent://a/b/t");
        plain("non-persistent://a/b/t", "non-persistent://a/b/t");
        plain("a-=:._9/b/ö ?%2F", "persistent://a-=:._9/b/ö ?%2F");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let forms = "|a/b|a/b/c/d|persistent://|persistent://t|persistent://a/b|persistent://a/b/|\
                     persistent://a//t|persistent:///b/t|persistent://a/c/b/t|http://a/b/t|a/b/|/b/t|\
                     a b/c/t|ä/b/t|://a/b/t";
        for text in forms.split('|') {
            check(text, None);
        }
    }

    #[test]
    fn a_name_of_1024_bytes_is_the_longest() {
        let local = |bytes: usize| "t".repeat(bytes - "persistent://public/default/".len());
        assert!(TopicName::parse(&local(1_024)).is_ok());
        assert_eq!(TopicName::parse(&local(1_025)), Err(InvalidName));
    }

    #[test]
    fn a_partition_has_a_parent_and_a_number_written_in_one_way() {
        let partition = |text: &str, parent: &str, partition| {
            check(text, Some((text, parent, Some(partition))));
        };
        let full = "persistent://a/b/t-partition-0";
        partition(full, "persistent://a/b/t", 0);
        let full = "persistent://a/b/t-partition-1-partition-2147483647";
        partition(full, "persistent://a/b/t-partition-1", 2_147_483_647);
        for digits in ["", "01", "+1", "-1", "1x", "2147483648"] {
            let name = format!("persistent://a/b/t-partition-{digits}");
            plain(&name, &name);
        }
        plain("-partition-1", "persistent://public/default/-partition-1");
        let topic = TopicName::parse("t").expect("a name");
        let third = partition_name(topic, 3);
        partition(&third, "persistent://public/default/t", 3);
    }

    #[test]
    fn a_namespace_has_two_parts() {
        let namespace = Namespace::parse("public/default");
        assert_eq!(namespace, Ok(Namespace::DEFAULT));
        assert_eq!(Namespace::DEFAULT.to_string(), "public/default");
        for text in ["", "public", "a/b/c", "/b", "a/"] {
            assert_eq!(Namespace::parse(text), Err(InvalidName), "{text}");
        }
    }
}
