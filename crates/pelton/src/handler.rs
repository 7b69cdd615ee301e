//! Handlers: consumers that run on the shard's own thread.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::Verdict;
use crate::acks;
use crate::delivery::Entry;
use crate::error::{ForwardError, ProducerError};
use crate::message::{KEY_BYTES_MAX, Message, frame, key_hash};
use crate::pending::{Pending, ask};
use crate::port::{
    CloseReason, ConsumerId, ConsumerSignal, ForwardTo, Handler, OpenProducer, Ports, Reply,
    Request, ShardDelivery, ShardForwardError,
};
use crate::producer::refused;
use crate::topic::{Topic, TopicInner};

/// One entry as a handler sees it: an [`Entry`], and the way to send something on from it.
pub struct HandlerDelivery<'a> {
    entry: Entry<'a>,
    forward: &'a ForwardFn<'a>,
}

type ForwardFn<'a> = dyn Fn(&ForwardTo, &[u8], u32, u32) -> Result<(), ShardForwardError> + 'a;

impl HandlerDelivery<'_> {
    /// Sends a message on to another topic, over the mesh if another shard owns that. The entry the
    /// handler was given is acked, if it says so, once everything it forwarded is stored there; if
    /// any of it is refused, the entry comes again. So nothing is lost, and a message may be
    /// forwarded twice.
    ///
    /// # Errors
    /// [`ForwardError`]: nothing was sent; nack to try again later.
    pub fn forward(&self, to: &mut Forwarder, message: Message<'_>) -> Result<(), ForwardError> {
        to.frame(&message)?;
        let hash = message.key.map_or(0, key_hash);
        (self.forward)(&to.to, &to.body, 1, hash).map_err(|error| to.refused(error))
    }

    /// Sends the whole entry on, as it is.
    ///
    /// # Errors
    /// As [`HandlerDelivery::forward`].
    pub fn forward_entry(&self, to: &mut Forwarder) -> Result<(), ForwardError> {
        let entry = &self.entry;
        (self.forward)(
            &to.to,
            entry.body(),
            entry.message_count(),
            entry.key_hash(),
        )
        .map_err(|error| to.refused(error))
    }
}

impl<'a> Deref for HandlerDelivery<'a> {
    type Target = Entry<'a>;

    fn deref(&self) -> &Entry<'a> {
        &self.entry
    }
}

impl fmt::Debug for HandlerDelivery<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandlerDelivery").field(&self.entry).finish()
    }
}

/// The user's function as the shard calls it.
pub(crate) fn wrap(
    mut handler: impl FnMut(&HandlerDelivery<'_>) -> Verdict + Send + 'static,
) -> Handler {
    Handler::new(move |delivery: &ShardDelivery<'_>| {
        let forward = |to: &ForwardTo, body: &[u8], messages: u32, hash: u32| {
            delivery.forward(to, body, messages, hash)
        };
        let redeliveries = delivery.redelivery_count();
        let still = delivery.still();
        let entry = Entry::new(
            (delivery.properties(), delivery.body()),
            delivery.meta(),
            redeliveries,
            still,
        );
        handler(&HandlerDelivery {
            entry,
            forward: &forward,
        })
    })
}

/// A topic that handlers forward to, wherever its owner is: [`Topic::forwarder`]. Move it into the
/// handler. Dropped, it is detached.
pub struct Forwarder {
    to: ForwardTo,
    topic: Arc<TopicInner>,
    /// The message being framed.
    body: Vec<u8>,
}

impl Topic {
    /// A way for handlers to send to this topic. Blocks until the shard has answered: open it before
    /// the handler, not inside.
    ///
    /// # Errors
    /// [`ProducerError`]; nothing was changed.
    pub fn forwarder(&self) -> Result<Forwarder, ProducerError> {
        let topic = self.inner.name.to_string();
        self.begin_forwarder()
            .wait()
            .unwrap_or(Err(ProducerError::WouldBlock { topic }))
    }

    /// As [`Topic::forwarder`], to be waited for, awaited or driven.
    pub fn begin_forwarder(&self) -> Pending<Result<Forwarder, ProducerError>> {
        let topic = Arc::clone(&self.inner);
        let request = OpenProducer::shared(topic.id, "").into();
        let handle = topic.handle.clone();
        ask(
            topic.asking(),
            &handle,
            request,
            Ports::Forward,
            move |answer| match answer {
                Ok(Ok(Reply::Producer(opened))) => {
                    let to = ForwardTo {
                        shard: topic.handle.index(),
                        producer: opened.id,
                    };
                    Ok(Forwarder {
                        to,
                        topic,
                        body: Vec::new(),
                    })
                }
                other => Err(refused(&topic.name, other)),
            },
        )
        .attaches()
    }
}

impl Forwarder {
    /// Name of the topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic.name
    }

    fn frame(&mut self, message: &Message<'_>) -> Result<(), ForwardError> {
        let (bytes, max) = (
            message.framed_bytes(),
            self.topic.settings.entry_limit.bytes,
        );
        if bytes > max || message.key.is_some_and(|key| key.len() > KEY_BYTES_MAX) {
            return Err(ForwardError::TooLarge {
                topic: self.topic.name.to_string(),
                bytes,
                max,
            });
        }
        self.body.clear();
        frame(&mut self.body, message);
        Ok(())
    }

    fn refused(&self, error: ShardForwardError) -> ForwardError {
        let topic = self.topic.name.to_string();
        match error {
            ShardForwardError::Full(_) => ForwardError::Full { topic },
            error => ForwardError::Refused {
                topic,
                why: error.to_string(),
            },
        }
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        let request = Request::CloseProducer {
            producer: self.to.producer,
        };
        acks::detach(&self.topic.handle, request, self.topic.settings.engine_id);
    }
}

impl fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Forwarder").field(&self.topic.name).finish()
    }
}

/// Keeps a handler attached; dropped, it detaches it and does not wait. The subscription stays.
#[must_use = "dropped, the handler is detached"]
pub struct HandlerGuard {
    topic: Arc<TopicInner>,
    id: ConsumerId,
    signal: Arc<ConsumerSignal>,
}

impl HandlerGuard {
    pub(crate) fn new(
        topic: Arc<TopicInner>,
        id: ConsumerId,
        signal: Arc<ConsumerSignal>,
    ) -> HandlerGuard {
        HandlerGuard { topic, id, signal }
    }

    /// Why the handler is not called any more; `None` while it is attached.
    #[must_use]
    pub fn detached(&self) -> Option<CloseReason> {
        self.signal.closed()
    }

    /// Whether the topic was terminated and everything of the subscription is acked.
    #[must_use]
    pub fn reached_end(&self) -> bool {
        self.signal.at_end()
    }

    /// Detaches the handler. When the answer is there it runs no more and has been dropped; what it
    /// was given and did not ack is delivered to others. True unless the engine was closed already.
    pub fn close(self) -> Pending<bool> {
        let request = Request::CloseConsumer { consumer: self.id };
        let handle = self.topic.handle.clone();
        // The drop of `self` asks once more, which changes nothing (rule D15).
        ask(
            self.topic.asking(),
            &handle,
            request,
            Ports::None,
            |answer| matches!(answer, Ok(Ok(_))),
        )
    }
}

impl Drop for HandlerGuard {
    fn drop(&mut self) {
        let request = Request::CloseConsumer { consumer: self.id };
        acks::detach(&self.topic.handle, request, self.topic.settings.engine_id);
    }
}

impl fmt::Debug for HandlerGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerGuard")
            .field("topic", &self.topic.name)
            .field("detached", &self.detached())
            .finish_non_exhaustive()
    }
}
