//! How a topic gets a producer.

use std::sync::Arc;

use super::Producer;
use crate::ProducerAccess;
use crate::error::ProducerError;
use crate::pending::{Pending, ask};
use crate::port::{
    NoReply, OpenProducer, Ports, ProducerSignal, Publish, Reply, RequestError, slots,
};
use crate::receipt::Pages;
use crate::topic::TopicInner;
use crate::wait::Waiter;

/// Largest queue of a producer, in entries.
pub const QUEUE_ENTRIES_MAX: usize = 65_536;

/// Entries in a producer's queue by default.
const QUEUE_ENTRIES: usize = 1_024;

/// Makes a producer: [`crate::Topic::producer`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct ProducerBuilder {
    topic: Arc<TopicInner>,
    name: String,
    access: ProducerAccess,
    topic_epoch: Option<u64>,
    queue: usize,
}

impl ProducerBuilder {
    pub(crate) fn new(topic: Arc<TopicInner>) -> ProducerBuilder {
        ProducerBuilder {
            topic,
            name: String::new(),
            access: ProducerAccess::Shared,
            topic_epoch: None,
            queue: QUEUE_ENTRIES,
        }
    }

    /// Its name: stored with its entries by hash; need not be unique. Empty by default. Sequences of
    /// messages count for each name ([`crate::Message::sequence`]).
    pub fn name(mut self, name: impl Into<String>) -> ProducerBuilder {
        self.name = name.into();
        self
    }

    /// Whether it shares the topic with other producers; with any number of them by default (rule
    /// D142). One that waits for its turn is attached when the last of the others is closed:
    /// [`ProducerBuilder::begin`] waits without blocking.
    pub fn access(mut self, access: ProducerAccess) -> ProducerBuilder {
        self.access = access;
        self
    }

    /// As [`Producer::topic_epoch`] said when it was attached before: if another producer had the
    /// topic for itself since, it is refused instead of taking it back.
    pub fn topic_epoch(mut self, epoch: u64) -> ProducerBuilder {
        self.topic_epoch = Some(epoch);
        self
    }

    /// Entries that may wait for the shard: 2 to [`QUEUE_ENTRIES_MAX`], rounded up to a power of two;
    /// 1,024 by default. A slot keeps the memory of the largest body it has held, up to 64 KiB.
    pub fn queue(mut self, entries: usize) -> ProducerBuilder {
        self.queue = entries;
        self
    }

    /// Attaches the producer, and blocks until the shard has answered.
    ///
    /// # Errors
    /// [`ProducerError`]; nothing was changed.
    pub fn open(self) -> Result<Producer, ProducerError> {
        let topic = self.topic.name.to_string();
        self.begin()
            .wait()
            .unwrap_or(Err(ProducerError::WouldBlock { topic }))
    }

    /// As [`ProducerBuilder::open`], to be waited for, awaited or driven.
    pub fn begin(self) -> Pending<Result<Producer, ProducerError>> {
        let ProducerBuilder {
            topic,
            name,
            access,
            topic_epoch,
            queue,
        } = self;
        if !(2..=QUEUE_ENTRIES_MAX).contains(&queue) {
            let topic = topic.name.to_string();
            let max = QUEUE_ENTRIES_MAX;
            return Pending::ready(Err(ProducerError::InvalidQueue { topic, queue, max }));
        }
        let (sender, receiver) = slots::<Publish>(queue.next_power_of_two());
        let signal = Arc::new(ProducerSignal::new());
        let ports = Ports::Producer {
            ring: receiver,
            signal: Arc::clone(&signal),
        };
        let request = OpenProducer {
            access,
            topic_epoch,
            ..OpenProducer::shared(topic.id, name.clone())
        };
        let request = request.into();
        let handle = topic.handle.clone();
        ask(topic.asking(), &handle, request, ports, move |answer| {
            let opened = match answer {
                Ok(Ok(Reply::Producer(opened))) => opened,
                other => return Err(refused(&topic.name, other)),
            };
            let waiter = Waiter::new(topic.settings.waiting);
            Ok(Producer {
                pages: Pages::new(Arc::clone(&signal)),
                clock: topic.settings.clock.clone(),
                ring: sender,
                signal,
                opened,
                topic,
                name: name.into(),
                next: 0,
                batch: Vec::new(),
                waiter,
            })
        })
        .attaches()
    }
}

pub(crate) fn refused(
    topic: &str,
    answer: Result<Result<Reply, RequestError>, NoReply>,
) -> ProducerError {
    let topic = topic.to_owned();
    match answer {
        Err(_) => ProducerError::EngineClosed { topic },
        Ok(Err(RequestError::NotFound { .. })) => ProducerError::TopicGone { topic },
        Ok(Err(RequestError::Terminated { .. })) => ProducerError::Terminated { topic },
        Ok(Err(RequestError::ProducerBusy { .. })) => ProducerError::Busy { topic },
        Ok(Err(RequestError::ProducerFenced { .. })) => ProducerError::Fenced { topic },
        Ok(Err(RequestError::BacklogQuota { .. })) => ProducerError::BacklogQuota { topic },
        Ok(Err(RequestError::Poisoned { error })) => ProducerError::Poisoned { topic, error },
        Ok(Err(error)) => ProducerError::Refused {
            topic,
            why: error.to_string(),
        },
        Ok(Ok(reply)) => ProducerError::Refused {
            topic,
            why: format!("the shard answered {reply:?}"),
        },
    }
}
