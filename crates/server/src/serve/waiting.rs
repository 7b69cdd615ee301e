//! What a connection has asked of a shard, and what it does with the answer.

use std::task::{Poll, Waker};

use pelton_shard::broker::{ConsumerId, ProducerId, Reply, Request, RequestError};
use pelton_shard::{Answer, Control, NoReply, Ports, PushError, ReplyFrom, ShardHandle, reply};
use pelton_wire::commands::{AckResponse, Success};

use super::connection::{Connection, End};
use super::consume::OpeningConsumer;
use super::consumer::{Consumer, Ends};
use super::context::Context;
use super::lookup::Listing;
use super::produce::{OpeningProducer, ProducerEnds};
use super::producer::Producer;
use super::refusal::Refusal;
use super::schemas::{Found, Registered};
use super::topic::Topic;

/// A question, and its purpose.
#[derive(Debug)]
pub(crate) struct Waiting {
    from: From,
    pub(crate) then: Then,
}

#[derive(Debug)]
enum From {
    Shard(ReplyFrom<Answer>),
    Registered(ReplyFrom<Result<Registered, Refusal>>),
    Found(ReplyFrom<Option<Found>>),
}

/// What was answered.
#[derive(Debug)]
pub(crate) enum Answered {
    Shard(Answer),
    Registered(Result<Registered, Refusal>),
    Found(Option<Found>),
}

/// What an answer is for.
#[derive(Debug)]
pub(crate) enum Then {
    ProducerSchema(Box<OpeningProducer>),
    ProducerTopic(Box<OpeningProducer>),
    ProducerOpen(Box<(OpeningProducer, ProducerEnds)>),
    /// The subscription that a producer wants to exist; its consumer is closed at once.
    InitialSubscription(ShardHandle),
    ProducerClosed {
        /// Nobody if the server closed it.
        request_id: Option<u64>,
        topic: String,
        name: String,
    },
    ConsumerSchema(Box<OpeningConsumer>),
    ConsumerTopic(Box<OpeningConsumer>),
    ConsumerOpen(Box<(OpeningConsumer, Ends)>),
    ConsumerClosed {
        /// Nobody if the server closed it.
        request_id: Option<u64>,
        topic: String,
        subscription: String,
    },
    Unsubscribed {
        request_id: u64,
    },
    Acked {
        request_id: u64,
        consumer_id: u64,
    },
    Sought {
        request_id: u64,
    },
    LastMessageId {
        request_id: u64,
        consumer_id: u64,
    },
    ConsumerStats {
        request_id: u64,
        consumer_id: u64,
    },
    Topics(Box<Listing>),
    Schema {
        request_id: u64,
    },
    SchemaMade {
        request_id: u64,
    },
}

impl Waiting {
    /// Asks a shard.
    fn asked(shard: &ShardHandle, request: Request, ports: Ports, then: Then) -> Waiting {
        let from = From::Shard(send(shard, request, ports));
        Waiting { from, then }
    }

    /// Detaches a producer; `request_id` if its client asks for that.
    pub(crate) fn producer_closed(
        topic: &Topic,
        producer: ProducerId,
        name: String,
        request_id: Option<u64>,
    ) -> Waiting {
        let then = Then::ProducerClosed {
            request_id,
            topic: topic.name.to_string(),
            name,
        };
        let request = Request::CloseProducer { producer };
        Waiting::asked(&topic.handle, request, Ports::None, then)
    }

    /// Detaches a consumer; `request_id` if its client asks for that.
    pub(crate) fn consumer_closed(consumer: Consumer, request_id: Option<u64>) -> Waiting {
        let then = Then::ConsumerClosed {
            request_id,
            topic: consumer.topic.name.to_string(),
            subscription: consumer.subscription,
        };
        let request = Request::CloseConsumer {
            consumer: consumer.id,
        };
        Waiting::asked(&consumer.topic.handle, request, Ports::None, then)
    }

    pub(crate) fn registered(from: ReplyFrom<Result<Registered, Refusal>>, then: Then) -> Waiting {
        let from = From::Registered(from);
        Waiting { from, then }
    }

    pub(crate) fn found(from: ReplyFrom<Option<Found>>, then: Then) -> Waiting {
        let from = From::Found(from);
        Waiting { from, then }
    }

    pub(crate) fn poll(&self, waker: &Waker) -> Poll<Result<Answered, NoReply>> {
        match &self.from {
            From::Shard(from) => from.poll(waker).map_ok(Answered::Shard),
            From::Registered(from) => from.poll(waker).map_ok(Answered::Registered),
            From::Found(from) => from.poll(waker).map_ok(Answered::Found),
        }
    }
}

impl Connection {
    /// Asks a shard; the answer wakes this connection.
    pub(crate) fn ask(&mut self, shard: &ShardHandle, request: Request, ports: Ports, then: Then) {
        self.wait_for(Waiting::asked(shard, request, ports, then));
    }

    pub(crate) fn wait_for(&mut self, waiting: Waiting) {
        self.waiting.push(waiting);
        // The next look finds an answer that is there already, and leaves the waker for others. Not a
        // look here: an answer can be taken once.
        self.waker.wake_by_ref();
    }

    /// Looks for answers, and acts on them; how many there were.
    pub(crate) fn take_answers(&mut self, cx: &mut Context) -> Result<usize, End> {
        let mut count = 0;
        for waiting in std::mem::take(&mut self.waiting) {
            match waiting.poll(&self.waker) {
                Poll::Pending => self.waiting.push(waiting),
                Poll::Ready(answer) => {
                    count += 1;
                    self.on_answer(waiting.then, answer, cx)?;
                }
            }
        }
        Ok(count)
    }

    fn on_answer(
        &mut self,
        then: Then,
        answer: Result<Answered, NoReply>,
        cx: &mut Context,
    ) -> Result<(), End> {
        let stopping = || Refusal::not_ready("the server is stopping");
        if let Ok(Answered::Shard(Err(RequestError::DurabilityMismatch { existing, .. }))) = answer
        {
            // It stays what it was made as, whatever new topics are made as now.
            self.open_topic(then, existing, cx);
            return Ok(());
        }
        match (then, answer) {
            (Then::ProducerSchema(opening), answer) => match answer {
                Ok(Answered::Registered(registered)) => {
                    self.producer_schema(*opening, registered, cx);
                }
                _ => self.refuse_producer(&opening, &stopping(), cx),
            },
            (Then::ProducerTopic(opening), answer) => match shard_answer(answer) {
                Ok(Reply::Topic(topic)) => self.producer_topic(*opening, topic, cx),
                Ok(_) => self.refuse_producer(&opening, &stopping(), cx),
                Err(refusal) => self.refuse_producer(&opening, &refusal, cx),
            },
            (Then::ProducerOpen(boxed), answer) => match shard_answer(answer) {
                Ok(Reply::Producer(opened)) => {
                    let (opening, ends) = *boxed;
                    self.producer_open(opening, ends, opened);
                }
                Ok(_) => self.refuse_producer(&boxed.0, &stopping(), cx),
                Err(refusal) => self.refuse_producer(&boxed.0, &refusal, cx),
            },
            (Then::InitialSubscription(shard), answer) => {
                if let Ok(Reply::Consumer(consumer)) = shard_answer(answer) {
                    let_go(&shard, consumer);
                }
            }
            (
                Then::ProducerClosed {
                    request_id,
                    topic,
                    name,
                },
                _,
            ) => {
                cx.free_producer_name(&topic, &name);
                if let Some(request_id) = request_id {
                    self.succeed(request_id);
                }
            }
            (Then::ConsumerSchema(opening), answer) => match answer {
                Ok(Answered::Registered(Ok(_))) => self.consumer_schema(*opening, cx),
                Ok(Answered::Registered(Err(refusal))) => {
                    self.refuse(opening.request_id, &refusal);
                }
                _ => self.refuse(opening.request_id, &stopping()),
            },
            (Then::ConsumerTopic(opening), answer) => match shard_answer(answer) {
                Ok(Reply::Topic(topic)) => self.consumer_topic(*opening, topic, cx),
                Ok(_) => self.refuse(opening.request_id, &stopping()),
                Err(refusal) => self.refuse(opening.request_id, &refusal),
            },
            (Then::ConsumerOpen(boxed), answer) => match shard_answer(answer) {
                Ok(Reply::Consumer(id)) => {
                    let (opening, ends) = *boxed;
                    self.consumer_open(opening, ends, id, cx);
                }
                Ok(_) => self.refuse(boxed.0.request_id, &stopping()),
                Err(refusal) => self.refuse(boxed.0.request_id, &refusal),
            },
            (
                Then::ConsumerClosed {
                    request_id,
                    topic,
                    subscription,
                },
                _,
            ) => {
                cx.uncount_consumer(&topic, &subscription);
                if let Some(request_id) = request_id {
                    self.succeed(request_id);
                }
            }
            (Then::Unsubscribed { request_id }, answer) => match shard_answer(answer) {
                // One that is not durable went with its consumer.
                Ok(_) => self.succeed(request_id),
                Err(refusal) if refusal.code == pelton_wire::ServerError::SubscriptionNotFound => {
                    self.succeed(request_id);
                }
                Err(refusal) => self.refuse(request_id, &refusal),
            },
            (
                Then::Acked {
                    request_id,
                    consumer_id,
                },
                answer,
            ) => {
                let refused = shard_answer(answer).err();
                self.out.push(AckResponse {
                    consumer_id,
                    request_id: Some(request_id),
                    error: refused.as_ref().map(|refusal| refusal.code),
                    message: refused.as_ref().map(|refusal| refusal.text.as_str()),
                    ..AckResponse::default()
                });
            }
            (Then::Sought { request_id }, answer) => {
                // Its own close goes first: a client waits for both, in that order.
                self.give_closes(cx);
                match shard_answer(answer) {
                    Ok(_) => self.succeed(request_id),
                    Err(refusal) => self.refuse(request_id, &refusal),
                }
            }
            (
                Then::LastMessageId {
                    request_id,
                    consumer_id,
                },
                answer,
            ) => self.give_last_message_id(request_id, consumer_id, shard_answer(answer)),
            (
                Then::ConsumerStats {
                    request_id,
                    consumer_id,
                },
                answer,
            ) => self.give_consumer_stats(request_id, consumer_id, shard_answer(answer)),
            (Then::Topics(listing), answer) => self.give_topics(*listing, shard_answer(answer)),
            (Then::Schema { request_id }, answer) => match answer {
                Ok(Answered::Found(found)) => self.give_schema(request_id, found),
                _ => self.refuse(request_id, &stopping()),
            },
            (Then::SchemaMade { request_id }, answer) => match answer {
                Ok(Answered::Registered(made)) => self.give_schema_version(request_id, made),
                _ => self.refuse(request_id, &stopping()),
            },
        }
        Ok(())
    }

    pub(crate) fn succeed(&mut self, request_id: u64) {
        self.out.push(Success {
            request_id,
            schema: None,
        });
    }

    /// Lets go of everything: the shard detaches what was attached, and what is still being attached
    /// is seen to by `cx`.
    pub(crate) fn abandon(&mut self, cx: &mut Context) {
        for producer in std::mem::take(&mut self.producers).into_values() {
            let Producer {
                topic, id, name, ..
            } = producer;
            cx.orphans
                .push(Waiting::producer_closed(&topic, id, name, None));
        }
        for consumer in std::mem::take(&mut self.consumers).into_values() {
            cx.orphans.push(Waiting::consumer_closed(consumer, None));
        }
        cx.orphans.append(&mut self.waiting);
    }
}

/// Detaches a consumer that nobody uses, nor counts.
fn let_go(shard: &ShardHandle, consumer: ConsumerId) {
    let _nobody_waits = send(shard, Request::CloseConsumer { consumer }, Ports::None);
}

/// Looks at what connections that are gone had asked for: what was attached for them is detached.
pub(crate) fn settle_orphans(cx: &mut Context, waker: &Waker) {
    for orphan in std::mem::take(&mut cx.orphans) {
        let answer = match orphan.poll(waker) {
            Poll::Pending => {
                cx.orphans.push(orphan);
                continue;
            }
            Poll::Ready(answer) => answer,
        };
        let reply = shard_answer(answer).ok();
        match (orphan.then, reply) {
            (Then::ProducerOpen(boxed), Some(Reply::Producer(opened))) => {
                let OpeningProducer { topic, name, .. } = boxed.0;
                let Some(topic) = topic else { continue };
                cx.orphans
                    .push(Waiting::producer_closed(&topic, opened.id, name, None));
                waker.wake_by_ref(); // nobody has looked at it, so nobody would be woken
            }
            (
                Then::ProducerOpen(_) | Then::ProducerTopic(_) | Then::ProducerSchema(_),
                Some(Reply::Topic(_)) | None,
            ) => {}
            (Then::ProducerClosed { topic, name, .. }, _) => cx.free_producer_name(&topic, &name),
            (Then::ConsumerOpen(boxed), Some(Reply::Consumer(consumer))) => {
                if let Some(topic) = boxed.0.topic {
                    let_go(&topic.handle, consumer);
                }
            }
            (Then::InitialSubscription(shard), Some(Reply::Consumer(consumer))) => {
                let_go(&shard, consumer);
            }
            (
                Then::ConsumerClosed {
                    topic,
                    subscription,
                    ..
                },
                _,
            ) => cx.uncount_consumer(&topic, &subscription),
            _ => {}
        }
    }
}

/// Pushes a request; it waits on the heap if the lane is full, for this thread must not.
pub(crate) fn send(shard: &ShardHandle, request: Request, ports: Ports) -> ReplyFrom<Answer> {
    let (to, from) = reply();
    let control = Control::Request {
        request,
        ports,
        reply: to,
    };
    if let Err(PushError::Full(control)) = shard.control(control) {
        let _stopped = shard.keep_control(control);
    }
    from
}

/// The reply, or why there is none.
fn shard_answer(answer: Result<Answered, NoReply>) -> Result<Reply, Refusal> {
    match answer {
        Ok(Answered::Shard(answer)) => answer.map_err(Refusal::from),
        _ => Err(Refusal::not_ready("the server is stopping")),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_answer_that_is_there_before_somebody_waits_for_it_is_not_lost() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let peer = listener.local_addr().expect("bound");
        let stream = pelton_shard::net::TcpStream::connect(peer).expect("a peer");
        let mut connection = Connection::new(stream, peer, Waker::noop().clone(), 0);
        let (to, from) = reply();
        to.send(None);
        connection.wait_for(Waiting::found(from, Then::Schema { request_id: 1 }));
        let answer = connection.waiting[0].poll(Waker::noop());
        assert!(
            matches!(answer, Poll::Ready(Ok(Answered::Found(None)))),
            "{answer:?}"
        );
    }
}
