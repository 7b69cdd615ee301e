//! Where a subscription is, and how it is moved.

use crate::consumer::Consumer;
use crate::error::PositionError;
use crate::pending::{Pending, ask};
use crate::port::{NoReply, Ports, Reply, Request, RequestError, ShardHandle, TopicId};
use crate::topic::Topic;
use crate::{Idle, Position, SeekTo};

/// How far a subscription is, and how far its topic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LastPosition {
    /// The last entry that is as durable as the topic, whether it still exists or not; `None` if
    /// nothing is known of one.
    pub last: Option<Position>,
    /// Everything of the subscription up to this entry is acked; `None` if nothing is known of that.
    pub mark_delete: Option<Position>,
}

impl Topic {
    /// Moves a subscription, back or forth, and blocks until that is as durable as the topic:
    ///
    /// - to where a new one would start ([`crate::InitialPosition`]): `Earliest`, `Latest`, `At` an
    ///   entry, or `Since` a publish time, which finds the first entry in the order of positions;
    /// - to a message of a batch ([`SeekTo::Message`]), or to some of its messages ([`SeekTo::Part`]).
    ///
    /// Its consumers and handlers stay. What they held, acked or not, is dropped; permits start again
    /// (a consumer with manual permits grants anew), redelivery counts too, and acks given before
    /// change nothing. Seeks are carried out one after the other.
    ///
    /// # Errors
    /// [`PositionError`]; the subscription is where it was.
    pub fn seek(&self, subscription: &str, to: impl Into<SeekTo>) -> Result<(), PositionError> {
        let (topic, name) = (self.name().to_owned(), subscription.to_owned());
        self.begin_seek(subscription, to)
            .wait()
            .unwrap_or_else(|_| Err(would_block(topic, name)))
    }

    /// As [`Topic::seek`], to be waited for, awaited or driven.
    pub fn begin_seek(
        &self,
        subscription: &str,
        to: impl Into<SeekTo>,
    ) -> Pending<Result<(), PositionError>> {
        self.of(subscription).seek(to.into())
    }

    /// Where the topic ends, and how far a subscription is. Blocks until the shard has answered.
    ///
    /// # Errors
    /// [`PositionError`].
    pub fn last_position(&self, subscription: &str) -> Result<LastPosition, PositionError> {
        let (topic, name) = (self.name().to_owned(), subscription.to_owned());
        self.begin_last_position(subscription)
            .wait()
            .unwrap_or_else(|_| Err(would_block(topic, name)))
    }

    /// As [`Topic::last_position`], to be waited for, awaited or driven.
    pub fn begin_last_position(
        &self,
        subscription: &str,
    ) -> Pending<Result<LastPosition, PositionError>> {
        self.of(subscription).last_position()
    }

    fn of<'a>(&'a self, subscription: &'a str) -> Asking<'a> {
        Asking {
            handle: &self.inner.handle,
            asking: self.inner.asking(),
            id: self.inner.id,
            topic: self.name(),
            subscription,
        }
    }
}

impl Consumer {
    /// As [`Topic::seek`] of its subscription; the next delivery is the first one behind it.
    ///
    /// # Errors
    /// As [`Topic::seek`].
    pub fn seek(&mut self, to: impl Into<SeekTo>) -> Result<(), PositionError> {
        let names = (self.topic().to_owned(), self.subscription().to_owned());
        self.begin_seek(to)
            .wait()
            .unwrap_or_else(|_| Err(would_block(names.0, names.1)))
    }

    /// As [`Consumer::seek`], to be waited for, awaited or driven.
    pub fn begin_seek(&mut self, to: impl Into<SeekTo>) -> Pending<Result<(), PositionError>> {
        self.asking().seek(to.into())
    }

    pub(crate) fn begin_last_position(&self) -> Pending<Result<LastPosition, PositionError>> {
        self.asking().last_position()
    }
}

/// Which subscription is asked about, and of whom.
pub(crate) struct Asking<'a> {
    pub(crate) handle: &'a ShardHandle,
    pub(crate) asking: (u64, Idle),
    pub(crate) id: TopicId,
    pub(crate) topic: &'a str,
    pub(crate) subscription: &'a str,
}

impl Asking<'_> {
    fn seek(self, to: SeekTo) -> Pending<Result<(), PositionError>> {
        let (topic, subscription) = (self.topic.to_owned(), self.subscription.to_owned());
        let request = Request::Seek {
            topic: self.id,
            subscription: subscription.clone(),
            to,
        };
        ask(
            self.asking,
            self.handle,
            request,
            Ports::None,
            move |answer| match answer {
                Ok(Ok(Reply::Done)) => Ok(()),
                other => Err(refused(topic, subscription, other)),
            },
        )
    }

    fn last_position(self) -> Pending<Result<LastPosition, PositionError>> {
        let (topic, subscription) = (self.topic.to_owned(), self.subscription.to_owned());
        let request = Request::LastPosition {
            topic: self.id,
            subscription: subscription.clone(),
        };
        ask(
            self.asking,
            self.handle,
            request,
            Ports::None,
            move |answer| match answer {
                Ok(Ok(Reply::LastPosition {
                    last, mark_delete, ..
                })) => Ok(LastPosition { last, mark_delete }),
                other => Err(refused(topic, subscription, other)),
            },
        )
    }
}

pub(crate) fn would_block(topic: String, subscription: String) -> PositionError {
    PositionError::WouldBlock {
        topic,
        subscription,
    }
}

fn refused(
    topic: String,
    subscription: String,
    answer: Result<Result<Reply, RequestError>, NoReply>,
) -> PositionError {
    match answer {
        Err(_) => PositionError::EngineClosed {
            topic,
            subscription,
        },
        Ok(Err(RequestError::NotFound { .. })) => PositionError::NotFound {
            topic,
            subscription,
        },
        Ok(Err(RequestError::NotPossible { why, .. })) => PositionError::NotPossible {
            topic,
            subscription,
            why,
        },
        Ok(Err(RequestError::Poisoned { error })) => PositionError::Poisoned {
            topic,
            subscription,
            error,
        },
        Ok(other) => PositionError::Refused {
            topic,
            subscription,
            why: match other {
                Ok(reply) => format!("the shard answered {reply:?}"),
                Err(error) => error.to_string(),
            },
        },
    }
}
