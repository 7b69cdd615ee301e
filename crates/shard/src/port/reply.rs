//! One answer to one control request: to wait for with a blocked thread or from a task.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

use super::user_code::UserWaker;

/// The two ends of one answer.
#[must_use]
pub fn reply<T>() -> (ReplyTo<T>, ReplyFrom<T>) {
    let (sender, receiver) = crossbeam_channel::bounded(1);
    let waker = Arc::new(UserWaker::default());
    let to = ReplyTo {
        sender: Some(sender),
        waker: Arc::clone(&waker),
    };
    (to, ReplyFrom { receiver, waker })
}

/// The answering end. Dropped without an answer, it tells the asker that none will come.
#[derive(Debug)]
pub struct ReplyTo<T> {
    sender: Option<Sender<T>>,
    waker: Arc<UserWaker>,
}

impl<T> ReplyTo<T> {
    /// Answers. Never blocks; an asker that went away is not an error.
    pub fn send(mut self, answer: T) {
        if let Some(sender) = self.sender.take() {
            // The channel holds one answer and this is the only one, so it cannot be full.
            let _ = sender.try_send(answer);
        }
    }
}

impl<T> Drop for ReplyTo<T> {
    fn drop(&mut self) {
        // Disconnect first, so that the woken asker sees it.
        self.sender = None;
        self.waker.wake();
    }
}

/// The asking end.
#[derive(Debug)]
pub struct ReplyFrom<T> {
    receiver: Receiver<T>,
    waker: Arc<UserWaker>,
}

/// No answer came: the shard ended, or gave the request up, before it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine stopped before it answered")]
pub struct NoReply;

impl<T> ReplyFrom<T> {
    /// Blocks until the answer is there. Not from a shard's own thread: see
    /// [`super::on_shard_thread`].
    ///
    /// # Errors
    /// [`NoReply`] if none will come.
    pub fn wait(self) -> Result<T, NoReply> {
        self.receiver.recv().map_err(|_| NoReply)
    }

    /// As [`ReplyFrom::wait`] for at most `timeout`; `Ok(None)` when that passed.
    ///
    /// # Errors
    /// [`NoReply`] if none will come.
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<T>, NoReply> {
        match self.receiver.recv_timeout(timeout) {
            Ok(answer) => Ok(Some(answer)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(NoReply),
        }
    }

    /// The answer if it is there.
    ///
    /// # Errors
    /// [`NoReply`] if none will come.
    pub fn try_take(&self) -> Result<Option<T>, NoReply> {
        match self.receiver.try_recv() {
            Ok(answer) => Ok(Some(answer)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(NoReply),
        }
    }

    /// The answer, or `waker` is woken once it is there (or will never be).
    pub fn poll(&self, waker: &Waker) -> Poll<Result<T, NoReply>> {
        self.waker.register(waker);
        match self.try_take() {
            Ok(None) => Poll::Pending,
            Ok(Some(answer)) => Poll::Ready(Ok(answer)),
            Err(none) => Poll::Ready(Err(none)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_arrives_once_and_a_dropped_end_is_told() {
        let (to, from) = reply();
        assert!(from.poll(Waker::noop()).is_pending());
        to.send(7);
        assert_eq!(from.poll(Waker::noop()), Poll::Ready(Ok(7)));
        assert_eq!(from.wait(), Err(NoReply));

        let (to, from) = reply::<u8>();
        drop(to);
        assert_eq!(from.try_take(), Err(NoReply));
    }
}
