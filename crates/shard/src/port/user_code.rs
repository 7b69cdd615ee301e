//! Code of the user on a shard's thread: handlers, what they hold, wakers. A panic in it ends there,
//! and costs nobody else the shard.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use atomic_waker::AtomicWaker;

/// Runs it; `None` if it panicked. Its own state may be broken then.
pub(crate) fn contained<T>(run: impl FnOnce() -> T) -> Option<T> {
    let payload = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(value) => return Some(value),
        Err(payload) => payload,
    };
    // What it panicked with has a drop of its own, and so would have what that panics with.
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(payload);
    }
    None
}

/// An [`AtomicWaker`] that shards wake and drop.
#[derive(Debug, Default)]
pub(crate) struct UserWaker(AtomicWaker);

impl UserWaker {
    /// See [`AtomicWaker::register`].
    pub(crate) fn register(&self, waker: &Waker) {
        self.0.register(waker);
    }

    /// See [`AtomicWaker::wake`].
    pub(crate) fn wake(&self) {
        if let Some(waker) = self.0.take() {
            contained(|| waker.wake());
        }
    }

    /// Nobody is woken any more.
    pub(crate) fn clear(&self) {
        if let Some(waker) = self.0.take() {
            contained(|| drop(waker));
        }
    }
}

impl Drop for UserWaker {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::{Poll, Wake};

    use super::*;
    use crate::port::{ConsumerSignal, ProducerSignal, ReceiptPage, reply};

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            panic!("this panic is part of the test");
        }
    }

    struct PanicsWhenDropped;

    impl Wake for PanicsWhenDropped {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for PanicsWhenDropped {
        fn drop(&mut self) {
            panic!("this panic is part of the test");
        }
    }

    #[test]
    fn a_panic_ends_here_and_so_does_that_of_its_payload() {
        assert_eq!(contained(|| 7), Some(7));
        assert_eq!(
            contained(|| panic!("this panic is part of the test")),
            None::<()>
        );
        let run = || std::panic::panic_any(PanicsWhenDropped);
        assert_eq!(contained(run), None::<()>);
    }

    #[test]
    fn a_waker_that_panics_does_so_to_nobody_who_wakes_or_drops_it() {
        for waker in [
            Waker::from(Arc::new(Panics)),
            Waker::from(Arc::new(PanicsWhenDropped)),
        ] {
            let (producer, consumer) = (Arc::new(ProducerSignal::new()), ConsumerSignal::new());
            for wake in [true, false] {
                producer.wait_for_space(&waker);
                consumer.wait_for_delivery(&waker);
                let page = ReceiptPage::new(Arc::clone(&producer));
                let _pending = page.poll(3, &waker);
                let (to, from) = reply::<u8>();
                assert_eq!(from.poll(&waker), Poll::Pending);
                if wake {
                    producer.space_freed();
                    consumer.delivered();
                    page.wake(0, 5);
                    to.send(7);
                    assert_eq!(from.try_take(), Ok(Some(7)));
                }
            }
            // The last one to drop it is this test, which must not panic either.
            std::mem::forget(waker);
        }
    }
}
