//! How a connection hears that something of its own moved: a bit, and its shard is awake.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Wake, Waker};

use pelton_shard::ShardHandle;

/// Which connections of a shard were woken. Set from any thread, taken by the shard.
#[derive(Debug)]
pub(crate) struct Woken {
    any: AtomicBool,
    words: Box<[AtomicU64]>,
    shard: ShardHandle,
}

impl Woken {
    pub(crate) fn new(connections: usize, shard: ShardHandle) -> Arc<Woken> {
        let words = (0..connections.div_ceil(64)).map(|_| AtomicU64::new(0));
        Arc::new(Woken {
            any: AtomicBool::new(false),
            words: words.collect(),
            shard,
        })
    }

    /// Wakes the connection of that number.
    pub(crate) fn waker(self: &Arc<Woken>, connection: usize) -> Waker {
        let woken = Arc::clone(self);
        Waker::from(Arc::new(Bit { connection, woken }))
    }

    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Takes all that were woken, in order.
    pub(crate) fn take(&self, mut found: impl FnMut(usize)) {
        // Before the bits: one that is set later sets this again.
        if !self.any.swap(false, Ordering::AcqRel) {
            return;
        }
        for (index, word) in self.words.iter().enumerate() {
            let mut bits = word.swap(0, Ordering::AcqRel);
            while bits != 0 {
                found(index * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }
}

struct Bit {
    connection: usize,
    woken: Arc<Woken>,
}

impl Wake for Bit {
    fn wake(self: Arc<Bit>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Bit>) {
        let Woken { any, words, shard } = &*self.woken;
        let bit = 1 << (self.connection % 64);
        words[self.connection / 64].fetch_or(bit, Ordering::AcqRel);
        if !any.swap(true, Ordering::AcqRel) {
            shard.wake();
        }
    }
}
