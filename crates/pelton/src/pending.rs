//! Answers to control calls: block on them, await them, or drive the engine until they are there.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::Idle;
use crate::port::{
    Answer, Control, NoReply, Ports, PushError, ReplyFrom, Request, ShardHandle, reply,
};
use crate::wait::{self, Waiter};

/// The answer to a control call, on its way. The call itself is sent at once, by whatever made this.
///
/// As a future it needs no runtime and must not be polled again after it gave its value. Dropped, the
/// call still takes place, and what it would have attached is detached again.
#[must_use = "the answer is lost; what the call attached is detached again"]
pub struct Pending<T> {
    /// `None` once it gave its value.
    attempt: Option<Attempt<T>>,
    ready: Option<T>,
    /// What happens to the attempt of a call that attaches something, if nobody waits for it.
    adopt: Option<fn(Attempt<T>)>,
    idle: Idle,
    engine_id: u64,
}

type Attempt<T> = Box<dyn FnMut(Option<&Waker>) -> Option<T> + Send>;

impl<T> Pending<T> {
    /// Makes the first attempt at once: that sends the call.
    pub(crate) fn new(
        engine_id: u64,
        idle: Idle,
        attempt: impl FnMut(Option<&Waker>) -> Option<T> + Send + 'static,
    ) -> Pending<T> {
        let attempt: Option<Attempt<T>> = Some(Box::new(attempt));
        let mut pending = Pending {
            attempt,
            ready: None,
            adopt: None,
            idle,
            engine_id,
        };
        pending.ready = pending.look(None);
        pending
    }

    /// An answer that needs no shard.
    pub(crate) fn ready(value: T) -> Pending<T> {
        let (ready, idle) = (Some(value), Idle::Park);
        Pending {
            attempt: None,
            ready,
            adopt: None,
            idle,
            engine_id: 0,
        }
    }

    /// The value detaches something when it is dropped: if this is dropped before, that still happens.
    pub(crate) fn attaches(mut self) -> Pending<T>
    where
        T: 'static,
    {
        self.adopt = Some(Orphan::adopt);
        self
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
        if self.ready.is_some() {
            return self.ready.take();
        }
        let value = self.attempt.as_mut()?(waker);
        if value.is_some() {
            self.attempt = None;
        }
        value
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if self.ready.is_none()
            && let (Some(adopt), Some(attempt)) = (self.adopt, self.attempt.take())
        {
            adopt(attempt);
        }
    }
}

// Nothing in it is pinned.
impl<T> Unpin for Pending<T> {}

impl<T> Future for Pending<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.look(Some(context.waker()))
            .map_or(Poll::Pending, Poll::Ready)
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending")
            .field("ready", &self.ready.is_some())
            .finish_non_exhaustive()
    }
}

/// An attempt that nobody waits for any more. The waker of its answer makes it, on the shard's thread,
/// and drops the value, which detaches what was attached.
struct Orphan<T> {
    /// Holds the attempt but while it is made: a cell that any thread can try to take from.
    put: Sender<Attempt<T>>,
    take: Receiver<Attempt<T>>,
    woken: AtomicBool,
}

impl<T: 'static> Orphan<T> {
    /// A call that the full control lane has not taken after so many attempts is given up unsent.
    const ATTEMPTS: u32 = 100;

    fn adopt(attempt: Attempt<T>) {
        let (put, take) = bounded(1);
        let _ = put.try_send(attempt);
        Arc::new(Orphan {
            put,
            take,
            woken: AtomicBool::new(false),
        })
        .make();
    }

    fn make(self: Arc<Self>) {
        let waker = Waker::from(Arc::clone(&self));
        for _ in 0..Self::ATTEMPTS {
            let Ok(mut attempt) = self.take.try_recv() else {
                return;
            };
            self.woken.store(false, Ordering::Release);
            if attempt(Some(&waker)).is_some() {
                return;
            }
            let _ = self.put.try_send(attempt);
            // A wake-up while the cell was empty found nothing to do.
            if !self.woken.load(Ordering::Acquire) {
                return;
            }
        }
        drop(self.take.try_recv());
    }
}

impl<T: 'static> Wake for Orphan<T> {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.make();
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
        Call {
            handle,
            unsent: Some(control),
            answer,
        }
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
    let control = Control::Request {
        request,
        ports,
        reply: to,
    };
    let mut call = Call::new(handle.clone(), control, from);
    let mut finish = Some(finish);
    Pending::new(engine_id, idle, move |waker| {
        let answer = call.look(waker)?;
        finish.take().map(|finish| finish(answer))
    })
}
