//! How a subscription gets a consumer, or a handler.

use std::sync::Arc;

use super::{Consumer, Parts};
use crate::delivery::{OnDrop, Source};
use crate::error::SubscribeError;
use crate::handler::{HandlerDelivery, HandlerGuard, wrap};
use crate::pending::{Pending, ask};
use crate::port::{
    Account, ConsumerSignal, Granter, KeyShared, NoReply, Ports, Reply, Request, RequestError,
    Subscribe, spsc,
};
use crate::topic::TopicInner;
use crate::wait::Waiter;
use crate::{InitialPosition, KeyRange, SubscriptionKind, Verdict};

/// Largest window of a consumer, in messages.
pub const WINDOW_MESSAGES_MAX: u32 = 1 << 20;

/// Messages a consumer asks for ahead of receiving them, by default.
const WINDOW_MESSAGES: u32 = 1_000;

/// Attaches a consumer, or a handler, to a subscription: [`crate::Topic::subscribe`].
#[derive(Debug)]
#[must_use = "a builder does nothing until it is opened"]
pub struct SubscribeBuilder {
    topic: Arc<TopicInner>,
    subscription: String,
    kind: SubscriptionKind,
    initial: InitialPosition,
    durable: bool,
    name: String,
    window: u32,
    auto: bool,
    on_drop: OnDrop,
    priority_level: i32,
    key_shared: KeyShared,
}

impl SubscribeBuilder {
    pub(crate) fn new(topic: Arc<TopicInner>, subscription: String) -> SubscribeBuilder {
        SubscribeBuilder {
            topic,
            subscription,
            kind: SubscriptionKind::Exclusive,
            initial: InitialPosition::Latest,
            durable: true,
            name: String::new(),
            window: WINDOW_MESSAGES,
            auto: true,
            on_drop: OnDrop::default(),
            priority_level: 0,
            key_shared: KeyShared::default(),
        }
    }

    /// How the subscription's consumers share its entries: [`SubscriptionKind::Exclusive`] is the
    /// default.
    pub fn kind(mut self, kind: SubscriptionKind) -> SubscribeBuilder {
        self.kind = kind;
        self
    }

    /// Where a new subscription starts: [`InitialPosition::Latest`] (the default); `Earliest`, the first
    /// entry that another subscription still keeps; `At` an entry, or `Since` a publish time. An
    /// existing one goes on where it was: [`crate::Topic::seek`] moves it.
    pub fn initial(mut self, initial: InitialPosition) -> SubscribeBuilder {
        self.initial = initial;
        self
    }

    /// A new subscription is a cursor in memory: it ends with its last consumer and holds nothing back,
    /// so entries that no other subscription keeps may be gone before it has read them.
    /// [`crate::Topic::reader`] is made of this.
    pub fn non_durable(mut self) -> SubscribeBuilder {
        self.durable = false;
        self
    }

    /// The consumer's name, shown in statistics. Empty by default.
    pub fn name(mut self, name: impl Into<String>) -> SubscribeBuilder {
        self.name = name.into();
        self
    }

    /// Most messages that may be granted and not yet received, 1 to [`WINDOW_MESSAGES_MAX`]; 1,000 by
    /// default. The consumer's ring has a slot for each (32 bytes).
    pub fn window(mut self, messages: u32) -> SubscribeBuilder {
        self.window = messages;
        self
    }

    /// Grants nothing by itself: permits come from [`Consumer::grant`] alone, within the window.
    pub fn manual_permits(mut self) -> SubscribeBuilder {
        self.auto = false;
        self
    }

    /// What becomes of a delivery that is dropped without ack or nack.
    pub fn on_drop(mut self, on_drop: OnDrop) -> SubscribeBuilder {
        self.on_drop = on_drop;
        self
    }

    /// Lower numbers go first, 0 by default: a Shared subscription serves others only while no
    /// consumer of a lower number can take an entry, Failover elects among the lowest.
    pub fn priority_level(mut self, level: i32) -> SubscribeBuilder {
        self.priority_level = level;
        self
    }

    /// KeyShared: the key hashes this consumer wants ([`crate::key_hash`]), instead of a share of
    /// all. No two consumers of a subscription may want the same; all or none of them name ranges.
    pub fn key_ranges(mut self, ranges: impl IntoIterator<Item = KeyRange>) -> SubscribeBuilder {
        self.key_shared.ranges = ranges.into_iter().collect();
        self
    }

    /// KeyShared: entries of a key go to the same consumer, but may overtake each other; so nobody
    /// waits when keys change hands.
    pub fn allow_out_of_order_delivery(mut self) -> SubscribeBuilder {
        self.key_shared.allow_out_of_order_delivery = true;
        self
    }

    /// Attaches the consumer, and blocks until the shard has answered; a new subscription of a durable
    /// topic is on disk then.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing was changed.
    pub fn open(self) -> Result<Consumer, SubscribeError> {
        let would_block = self.would_block();
        self.begin().wait().unwrap_or(Err(would_block))
    }

    /// As [`SubscribeBuilder::open`], to be waited for, awaited or driven.
    pub fn begin(self) -> Pending<Result<Consumer, SubscribeError>> {
        self.begin_as(|consumer| consumer)
    }

    /// The same, for what is made of a consumer.
    pub(crate) fn begin_as<T: 'static>(
        self,
        make: fn(Consumer) -> T,
    ) -> Pending<Result<T, SubscribeError>> {
        if let Err(error) = self.check() {
            return Pending::ready(Err(error));
        }
        // Each entry holds a message or more and is handed over only against a permit, so a ring of
        // the window's size is never full (runtime 5.10).
        let (sender, receiver) = spsc((self.window as usize).next_power_of_two().max(2));
        let signal = Arc::new(ConsumerSignal::new());
        let (mut granter, account) = Granter::pair();
        if self.auto {
            let _nobody_waits_yet = granter.grant(self.window);
        }
        let ports = Ports::Consumer {
            ring: sender,
            signal: Arc::clone(&signal),
        };
        let request = self.request(account);
        let handle = self.topic.handle.clone();
        ask(
            self.topic.asking(),
            &handle,
            request,
            ports,
            move |answer| {
                let id = match answer {
                    Ok(Ok(Reply::Consumer(id))) => id,
                    other => return Err(self.refused(other)),
                };
                let settings = &self.topic.settings;
                let source = Source::new(
                    self.topic.handle.clone(),
                    id,
                    (self.on_drop, self.kind),
                    settings.engine_id,
                    (
                        self.topic.id,
                        self.topic.name.clone(),
                        self.subscription.into(),
                    ),
                );
                let waiter = Waiter::new(settings.waiting);
                let (name, window, auto) = (self.name.into(), self.window, self.auto);
                let parts = Parts {
                    ring: receiver,
                    signal,
                    granter,
                    name,
                    window,
                    auto,
                    waiter,
                };
                Ok(make(Consumer::new(parts, source)))
            },
        )
        .attaches()
    }

    /// Attaches a handler instead of a consumer: it is called for each entry on the shard's own
    /// thread, with no ring, wake-up or thread in between, and what it was given is granted again.
    ///
    /// It must not block: everything else of its shard waits meanwhile, and a blocking call of this
    /// crate gives `WouldBlock` inside it. A handler that panics is detached, and what it held is
    /// delivered again. Blocks until the shard has answered.
    ///
    /// # Errors
    /// [`SubscribeError`]; nothing was changed.
    pub fn handler(
        self,
        handler: impl FnMut(&HandlerDelivery<'_>) -> Verdict + Send + 'static,
    ) -> Result<HandlerGuard, SubscribeError> {
        let would_block = self.would_block();
        self.begin_handler(handler)
            .wait()
            .unwrap_or(Err(would_block))
    }

    /// As [`SubscribeBuilder::handler`], to be waited for, awaited or driven.
    pub fn begin_handler(
        self,
        handler: impl FnMut(&HandlerDelivery<'_>) -> Verdict + Send + 'static,
    ) -> Pending<Result<HandlerGuard, SubscribeError>> {
        if let Err(error) = self.check() {
            return Pending::ready(Err(error));
        }
        let signal = Arc::new(ConsumerSignal::new());
        let (mut granter, account) = Granter::pair();
        let _nobody_waits_yet = granter.grant(self.window);
        let ports = Ports::Handler {
            handler: wrap(handler),
            granter,
            signal: Arc::clone(&signal),
        };
        let request = self.request(account);
        let handle = self.topic.handle.clone();
        ask(
            self.topic.asking(),
            &handle,
            request,
            ports,
            move |answer| match answer {
                Ok(Ok(Reply::Consumer(id))) => Ok(HandlerGuard::new(self.topic, id, signal)),
                other => Err(self.refused(other)),
            },
        )
        .attaches()
    }

    fn check(&self) -> Result<(), SubscribeError> {
        if (1..=WINDOW_MESSAGES_MAX).contains(&self.window) {
            return Ok(());
        }
        Err(SubscribeError::InvalidWindow {
            topic: self.topic.name.to_string(),
            subscription: self.subscription.clone(),
            window: self.window,
            max: WINDOW_MESSAGES_MAX,
        })
    }

    fn request(&self, account: Account) -> Request {
        Request::Subscribe(Box::new(Subscribe {
            topic: self.topic.id,
            subscription: self.subscription.clone(),
            kind: self.kind,
            initial: self.initial,
            durable: self.durable,
            consumer: self.name.clone(),
            account,
            slot: 0,
            priority_level: self.priority_level,
            key_shared: self.key_shared.clone(),
        }))
    }

    fn would_block(&self) -> SubscribeError {
        SubscribeError::WouldBlock {
            topic: self.topic.name.to_string(),
            subscription: self.subscription.clone(),
        }
    }

    fn refused(&self, answer: Result<Result<Reply, RequestError>, NoReply>) -> SubscribeError {
        let topic = self.topic.name.to_string();
        let subscription = self.subscription.clone();
        match answer {
            Err(_) => SubscribeError::EngineClosed {
                topic,
                subscription,
            },
            Ok(Err(RequestError::InvalidName { name, why, .. })) => SubscribeError::InvalidName {
                topic,
                subscription: name,
                why,
            },
            Ok(Err(RequestError::ConsumerBusy {
                kind, consumers, ..
            })) => SubscribeError::ConsumerBusy {
                topic,
                subscription,
                kind,
                consumers,
            },
            Ok(Err(RequestError::KeyRanges { why, .. })) => SubscribeError::KeyRanges {
                topic,
                subscription,
                why: why.to_string(),
            },
            Ok(Err(RequestError::KeySharedMode { .. })) => SubscribeError::KeySharedMode {
                topic,
                subscription,
            },
            Ok(Err(RequestError::NotFound { .. })) => SubscribeError::TopicGone {
                topic,
                subscription,
            },
            Ok(Err(RequestError::Metadata { error, .. })) => SubscribeError::Metadata {
                topic,
                subscription,
                error,
            },
            Ok(Err(RequestError::Poisoned { error })) => SubscribeError::Poisoned {
                topic,
                subscription,
                error,
            },
            Ok(Err(error)) => SubscribeError::Refused {
                topic,
                subscription,
                why: error.to_string(),
            },
            Ok(Ok(reply)) => {
                let why = format!("the shard answered {reply:?}");
                SubscribeError::Refused {
                    topic,
                    subscription,
                    why,
                }
            }
        }
    }
}
