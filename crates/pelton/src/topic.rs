//! Topics and subscriptions: where producers and consumers come from.

use std::path::Path;
use std::sync::Arc;

use crate::consumer::SubscribeBuilder;
use crate::error::{DeleteError, PolicyError, TerminateError, TopicError};
use crate::pending::{Pending, ask};
use crate::port::{NoReply, Ports, Reply, Request, RequestError, ShardHandle, TopicId};
use crate::producer::ProducerBuilder;
use crate::{Clock, Durability, Idle, Policy};

/// What handles need to know of their engine.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) engine_id: u64,
    pub(crate) clock: Clock,
    pub(crate) waiting: Idle,
    /// The data directory; empty in memory.
    pub(crate) dir: Arc<Path>,
    pub(crate) entry_limit: EntryLimit,
}

/// The longest entry in bytes, framing included, and the option of [`crate::Builder`] that says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryLimit {
    pub(crate) bytes: usize,
    pub(crate) option: &'static str,
}

/// The longest entries: one must fit into a segment, or into the memory for memory topics.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryLimits {
    pub(crate) stored: EntryLimit,
    pub(crate) memory: EntryLimit,
}

/// Makes or opens a topic: [`crate::Engine::topic`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct TopicBuilder {
    name: String,
    durability: Durability,
    handle: ShardHandle,
    settings: Settings,
    limits: EntryLimits,
}

impl TopicBuilder {
    pub(crate) fn new(
        name: String,
        durability: Durability,
        handle: ShardHandle,
        settings: Settings,
        limits: EntryLimits,
    ) -> TopicBuilder {
        TopicBuilder {
            name,
            durability,
            handle,
            settings,
            limits,
        }
    }

    /// When a receipt is given: [`Durability::Synced`] (after fdatasync; the default with a
    /// directory), `Written` (after the write), `Memory` (never on disk; the default without one) or
    /// `NonPersistent` (kept nowhere: an entry goes at once to the consumers that can take it, and its
    /// receipt has [`crate::Position::NOWHERE`]). A topic keeps the durability it was made with:
    /// each open asks for the same.
    pub fn durability(mut self, durability: Durability) -> TopicBuilder {
        self.durability = durability;
        self
    }

    /// Opens the topic, made if it does not exist, and blocks until the shard has answered; a new
    /// durable topic is on disk then.
    ///
    /// # Errors
    /// [`TopicError`]; nothing was changed.
    pub fn open(self) -> Result<Topic, TopicError> {
        let name = self.name.clone();
        self.begin()
            .wait()
            .unwrap_or(Err(TopicError::WouldBlock { name }))
    }

    /// As [`TopicBuilder::open`], to be waited for, awaited or driven.
    pub fn begin(self) -> Pending<Result<Topic, TopicError>> {
        let TopicBuilder {
            name,
            durability,
            handle,
            mut settings,
            limits,
        } = self;
        settings.entry_limit = match durability.is_stored() {
            true => limits.stored,
            false => limits.memory,
        };
        let request = Request::OpenTopic {
            name: name.clone(),
            durability,
        };
        let asked = (settings.engine_id, settings.waiting);
        let shard = handle.clone();
        ask(
            asked,
            &shard,
            request,
            Ports::None,
            move |answer| match answer {
                Ok(Ok(Reply::Topic(id))) => {
                    let name = name.into_boxed_str();
                    Ok(Topic {
                        inner: Arc::new(TopicInner {
                            name,
                            id,
                            durability,
                            handle,
                            settings,
                        }),
                    })
                }
                other => Err(topic_refused(name, other)),
            },
        )
    }
}

fn topic_refused(name: String, answer: Result<Result<Reply, RequestError>, NoReply>) -> TopicError {
    match answer {
        Err(_) => TopicError::EngineClosed { name },
        Ok(Err(RequestError::InvalidName { name, why, .. })) => {
            TopicError::InvalidName { name, why }
        }
        Ok(Err(RequestError::DurabilityMismatch {
            name,
            existing,
            asked,
        })) => TopicError::DurabilityMismatch {
            name,
            existing,
            asked,
        },
        Ok(Err(RequestError::NoDirectory { name, asked })) => {
            TopicError::NoDirectory { name, asked }
        }
        Ok(Err(RequestError::Metadata { error, .. })) => TopicError::Metadata { name, error },
        Ok(Err(RequestError::Poisoned { error })) => TopicError::Poisoned { name, error },
        Ok(Err(error)) => TopicError::Refused {
            name,
            why: error.to_string(),
        },
        Ok(Ok(reply)) => TopicError::Refused {
            name,
            why: format!("the shard answered {reply:?}"),
        },
    }
}

/// A topic of this engine: a list of entries, and the subscriptions that go through it. Cheap to
/// clone, usable from any thread; it does not keep the engine open.
///
/// A topic without subscriptions keeps nothing: subscribe before publishing.
#[derive(Clone, Debug)]
pub struct Topic {
    pub(crate) inner: Arc<TopicInner>,
}

#[derive(Debug)]
pub(crate) struct TopicInner {
    pub(crate) name: Box<str>,
    pub(crate) id: TopicId,
    pub(crate) durability: Durability,
    pub(crate) handle: ShardHandle,
    pub(crate) settings: Settings,
}

impl TopicInner {
    pub(crate) fn asking(&self) -> (u64, Idle) {
        (self.settings.engine_id, self.settings.waiting)
    }
}

impl Topic {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// When its receipts are given.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.inner.durability
    }

    /// Index of the shard that owns it.
    #[must_use]
    pub fn shard(&self) -> usize {
        self.inner.handle.index() as usize
    }

    /// A producer of this topic.
    pub fn producer(&self) -> ProducerBuilder {
        ProducerBuilder::new(Arc::clone(&self.inner))
    }

    /// A consumer of a subscription of this topic, made if it does not exist.
    pub fn subscribe(&self, subscription: impl Into<String>) -> SubscribeBuilder {
        SubscribeBuilder::new(Arc::clone(&self.inner), subscription.into())
    }

    /// Ends the topic for good: it takes no entry any more and serves what it has. Blocks until that is
    /// as durable as the topic. Consumers are told when they have acked all of it
    /// ([`crate::Consumer::reached_end`]). Again, it changes nothing.
    ///
    /// # Errors
    /// [`TerminateError`]; nothing was changed.
    pub fn terminate(&self) -> Result<(), TerminateError> {
        let topic = self.inner.name.to_string();
        self.begin_terminate()
            .wait()
            .unwrap_or(Err(TerminateError::WouldBlock { topic }))
    }

    /// As [`Topic::terminate`], to be waited for, awaited or driven.
    pub fn begin_terminate(&self) -> Pending<Result<(), TerminateError>> {
        let topic = self.inner.name.to_string();
        let request = Request::Terminate {
            topic: self.inner.id,
        };
        ask(
            self.inner.asking(),
            &self.inner.handle,
            request,
            Ports::None,
            move |answer| match answer {
                Ok(Ok(_)) => Ok(()),
                Err(_) => Err(TerminateError::EngineClosed { topic }),
                Ok(Err(RequestError::NotFound { .. })) => Err(TerminateError::TopicGone { topic }),
                Ok(Err(RequestError::NotPossible { why, .. })) => {
                    Err(TerminateError::NotPossible { topic, why })
                }
                Ok(Err(RequestError::Metadata { error, .. })) => {
                    Err(TerminateError::Metadata { topic, error })
                }
                Ok(Err(error)) => {
                    let why = error.to_string();
                    Err(TerminateError::Refused { topic, why })
                }
            },
        )
    }

    /// Changes what the topic's subscriptions go by, from now on, and blocks until that is durable.
    ///
    /// # Errors
    /// [`PolicyError`]; nothing was changed.
    pub fn set_policy(&self, policy: &Policy) -> Result<(), PolicyError> {
        let topic = self.inner.name.to_string();
        let pending = self.begin_set_policy(policy);
        pending
            .wait()
            .unwrap_or(Err(PolicyError::WouldBlock { topic }))
    }

    /// As [`Topic::set_policy`], to be waited for, awaited or driven.
    pub fn begin_set_policy(&self, policy: &Policy) -> Pending<Result<(), PolicyError>> {
        let topic = self.inner.name.to_string();
        let request = Request::SetPolicy {
            topic: self.inner.id,
            policy: Box::new(policy.clone()),
        };
        let answered = move |answer: Result<Result<Reply, RequestError>, NoReply>| match answer {
            Ok(Ok(_)) => Ok(()),
            Err(_) => Err(PolicyError::EngineClosed { topic }),
            Ok(Err(RequestError::NotFound { .. })) => Err(PolicyError::TopicGone { topic }),
            Ok(Err(RequestError::Metadata { error, .. })) => {
                Err(PolicyError::Metadata { topic, error })
            }
            Ok(Err(RequestError::InvalidPolicy { why, .. })) => {
                Err(PolicyError::Invalid { topic, why })
            }
            Ok(Err(error)) => {
                let why = error.to_string();
                Err(PolicyError::Refused { topic, why })
            }
        };
        ask(
            self.inner.asking(),
            &self.inner.handle,
            request,
            Ports::None,
            answered,
        )
    }

    /// Deletes a subscription and what it has not acked, and blocks until that is durable. It must
    /// have no consumers.
    ///
    /// # Errors
    /// [`DeleteError`]; nothing was changed.
    pub fn unsubscribe(&self, subscription: &str) -> Result<(), DeleteError> {
        let (what, name) = ("subscription", subscription.to_owned());
        let pending = self.begin_unsubscribe(subscription);
        pending
            .wait()
            .unwrap_or(Err(DeleteError::WouldBlock { what, name }))
    }

    /// As [`Topic::unsubscribe`], to be waited for, awaited or driven.
    pub fn begin_unsubscribe(&self, subscription: &str) -> Pending<Result<(), DeleteError>> {
        let name = subscription.to_owned();
        let request = Request::Unsubscribe {
            topic: self.inner.id,
            subscription: name.clone(),
        };
        ask(
            self.inner.asking(),
            &self.inner.handle,
            request,
            Ports::None,
            move |answer| deleted("subscription", name, answer),
        )
    }
}

/// What a deletion was answered with.
pub(crate) fn deleted(
    what: &'static str,
    name: String,
    answer: Result<Result<Reply, RequestError>, NoReply>,
) -> Result<(), DeleteError> {
    match answer {
        Ok(Ok(Reply::Done)) => Ok(()),
        Err(_) => Err(DeleteError::EngineClosed { what, name }),
        Ok(Err(RequestError::NotFound { .. })) => Err(DeleteError::NotFound { what, name }),
        Ok(Err(RequestError::InUse { users, .. })) => Err(DeleteError::InUse { what, name, users }),
        Ok(Err(RequestError::Metadata { error, .. })) => {
            Err(DeleteError::Metadata { what, name, error })
        }
        Ok(Err(error)) => Err(DeleteError::Refused {
            what,
            name,
            why: error.to_string(),
        }),
        Ok(Ok(reply)) => {
            let why = format!("the shard answered {reply:?}");
            Err(DeleteError::Refused { what, name, why })
        }
    }
}
