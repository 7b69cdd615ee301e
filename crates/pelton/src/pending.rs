//! Answers to control calls: block on them, await them, or drive the engine until they are there.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::Idle;
use crate::port::{Answer, Control, NoReply, Ports, PushError, ReplyFrom, Request, ShardHandle, reply};
use crate::wait::{self, Waiter};

/// The answer to a control call, on its way. The call itself is sent at once, by whatever made this.
///
/// As a future it needs no runtime and must not be polled again after it gave its value. Dropped, the
/// call still takes place, and what it would have attached is detached again.
#[must_use = "the answer is lost; what the call attached is detached again"]
pub struct Pending<T> {
    attempt: Attempt<T>,
    ready: Option<T>,
    idle: Idle,
    engine_id: u64,
}

type Attempt<T> = Box<dyn FnMut(Option<&Waker>) -> Option<T> + Send>;

impl<T> Pending<T> {
    pub(crate) fn new(
        engine_id: u64,
        idle: Idle,
        attempt: impl FnMut(Option<&Waker>) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        let mut attempt: Attempt<T> = Box::new(attempt);
        let ready = attempt(None);
        Pending { attempt, ready, idle, engine_id }
    }

    /// An answer that needs no shard.
    pub(crate) fn ready(value: T) -> Pending<T> {
        Pending { attempt: Box::new(|_| None), ready: Some(value), idle: Idle::Park, engine_id: 0 }
    }

    /// Blocks until the answer is there.
    ///
    /// # Errors
    /// Gives itself back if this thread runs the shard and would wait for itself: see
    /// [`crate::Driver::run_until`].
    pub fn wait(mut self) -> Result<T, Pending<T>> {
        if let Some(value) = self.try_take() {
            return Ok(value);
        }
        if !wait::may_block(self.engine_id) {
            return Err(self);
        }
        let value = Waiter::new(self.idle).wait(None, |waker| self.look(waker));
        Ok(value.expect("without a time-out there is an end"))
    }

    /// Blocks until the answer is there, at most for `timeout`; `None` when that passed, or if this
    /// thread runs the shard. It can be asked again.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<T> {
        let value = self.try_take();
        if value.is_some() || !wait::may_block(self.engine_id) {
            return value;
        }
        Waiter::new(self.idle).wait(Some(timeout), |waker| self.look(waker))
    }

    /// The answer, once, if it is there.
    pub fn try_take(&mut self) -> Option<T> {
        self.look(None)
    }

    fn look(&mut self, waker: Option<&Waker>) -> Option<T> {
        self.ready.take().or_else(|| (self.attempt)(waker))
    }
}

// Nothing in it is pinned.
impl<T> Unpin for Pending<T> {}

impl<T> Future for Pending<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.look(Some(context.waker())).map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("ready", &self.ready.is_some()).finish_non_exhaustive()
    }
}

/// One control item on its way to one shard: retried while the lane is full, then waited for.
pub(crate) struct Call<A> {
    handle: ShardHandle,
    unsent: Option<Control>,
    answer: ReplyFrom<A>,
}

impl<A> Call<A> {
    pub(crate) fn new(handle: ShardHandle, control: Control, answer: ReplyFrom<A>) -> Call<A> {
        Call { handle, unsent: Some(control), answer }
    }

    pub(crate) fn look(&mut self, waker: Option<&Waker>) -> Option<Result<A, NoReply>> {
        if let Some(control) = self.unsent.take() {
            match self.handle.control(control) {
                Ok(()) => {}
                Err(PushError::Closed(_)) => return Some(Err(NoReply)),
                Err(PushError::Full(control)) => {
                    self.unsent = Some(control);
                    // Nothing tells when the lane has room again; 256 calls are few, so look again.
                    if let Some(waker) = waker {
                        waker.wake_by_ref();
                    }
                    return None;
                }
            }
        }
        match waker {
            None => self.answer.try_take().transpose(),
            Some(waker) => match self.answer.poll(waker) {
                Poll::Pending => None,
                Poll::Ready(answer) => Some(answer),
            },
        }
    }
}

/// Asks the core of a shard and turns its answer into what the user asked for.
pub(crate) fn ask<T: 'static>(
    (engine_id, idle): (u64, Idle),
    handle: &ShardHandle,
    request: Request,
    ports: Ports,
    finish: impl FnOnce(Result<Answer, NoReply>) -> T + Send + 'static,
) -> Pending<T> {
    let (to, from) = reply();
    let control = Control::Request { request, ports, reply: to };
    let mut call = Call::new(handle.clone(), control, from);
    let mut finish = Some(finish);
    Pending::new(engine_id, idle, move |waker| {
        let answer = call.look(waker)?;
        finish.take().map(|finish| finish(answer))
    })
}
