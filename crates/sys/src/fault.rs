//! Faults by seed, under the operation table: what a kernel may do and a test cannot ask it for
//! (runtime 10.5). Ring operations are out of reach of preloading and strace.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::Path;

use crate::op::RawDone;

/// Shortens, fails, doubles, delays and reorders results on their way to the table.
#[derive(Debug)]
pub(crate) struct Faults {
    random: Random,
    held: Vec<RawDone>,
    /// Results given out in this order before chance has a say.
    pub(crate) script: VecDeque<Fault>,
    /// Of 100 results, how many are shortened, turned into EINTR or EAGAIN, and doubled.
    pub(crate) shorten_percent: u64,
    pub(crate) retry_percent: u64,
    pub(crate) double_percent: u64,
    /// So many results are kept back before one is let go, in random order.
    pub(crate) delay: usize,
    /// Nothing is let go any more: a kernel that never answers.
    pub(crate) stuck: bool,
}

/// What becomes of one result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// At most so many bytes.
    Short(usize),
    /// This error number.
    Errno(i32),
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            held: Vec::new(),
            script: VecDeque::new(),
            shorten_percent: 0,
            retry_percent: 0,
            double_percent: 0,
            delay: 0,
            stuck: false,
        }
    }

    pub(crate) fn scripted(script: impl IntoIterator<Item = Fault>) -> Self {
        Self {
            script: script.into_iter().collect(),
            ..Self::new(0)
        }
    }

    pub(crate) fn hold(&mut self, mut raw: RawDone) {
        match self.script.pop_front() {
            Some(Fault::Short(limit)) => raw.result = raw.result.map(|got| got.min(limit)),
            Some(Fault::Errno(errno)) => raw.result = Err(io::Error::from_raw_os_error(errno)),
            None => self.roll(&mut raw),
        }
        if self.random.percent(self.double_percent) {
            let (user_data, result) = (raw.user_data, Ok(0));
            self.held.push(RawDone {
                user_data,
                result,
                memory: None,
            });
            // The true one first: the double must find a slot that is free or used anew.
            let last = self.held.len() - 1;
            self.held.insert(last, raw);
        } else {
            self.held.push(raw);
        }
    }

    /// A result that may go on now.
    pub(crate) fn release(&mut self) -> Option<RawDone> {
        if self.stuck || self.held.is_empty() {
            return None;
        }
        if self.delay > 0 && self.held.len() <= self.delay && !self.random.percent(10) {
            return None;
        }
        let at = if self.delay > 0 {
            self.random.below(self.held.len())
        } else {
            0
        };
        // A double never overtakes its original: both carry the same user data.
        let user_data = self.held[at].user_data;
        let first = self
            .held
            .iter()
            .position(|raw| raw.user_data == user_data)
            .unwrap_or(at);
        Some(self.held.remove(first))
    }

    fn roll(&mut self, raw: &mut RawDone) {
        if let Ok(got) = raw.result
            && got > 0
            && self.random.percent(self.shorten_percent)
        {
            // Never 0, which would be the end of the file.
            raw.result = Ok(1 + self.random.below(got));
        } else if self.random.percent(self.retry_percent) {
            let errno = if self.random.percent(50) {
                libc::EINTR
            } else {
                libc::EAGAIN
            };
            raw.result = Err(io::Error::from_raw_os_error(errno));
        }
    }
}

/// A small generator (splitmix64): the same seed gives the same faults everywhere.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound.max(1) as u64).expect("below a usize")
    }

    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
}

thread_local! {
    /// Error numbers that the next enters of this thread's ring answer.
    static ENTERS: RefCell<VecDeque<i32>> = const { RefCell::new(VecDeque::new()) };
    /// What files and directories of this thread went through, while it is recorded.
    static EFFECTS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
    /// What the next inline writes of this thread do: so many bytes at most, or an error number.
    static WRITES: RefCell<VecDeque<Result<usize, i32>>> = const { RefCell::new(VecDeque::new()) };
}

/// Sets what the next inline writes of this thread do.
pub(crate) fn script_writes(script: impl IntoIterator<Item = Result<usize, i32>>) {
    WRITES.with_borrow_mut(|writes| {
        writes.clear();
        writes.extend(script);
    });
}

pub(crate) fn next_write() -> Option<Result<usize, i32>> {
    WRITES.with_borrow_mut(VecDeque::pop_front)
}

/// Sets the error numbers that the next enters of this thread's ring answer.
pub(crate) fn script_enters(script: impl IntoIterator<Item = i32>) {
    ENTERS.with_borrow_mut(|enters| enters.extend(script));
}

pub(crate) fn next_enter() -> Option<i32> {
    ENTERS.with_borrow_mut(VecDeque::pop_front)
}

/// Notes an effect on the disk, if this thread is recorded.
pub(crate) fn effect(what: &str, path: &Path) {
    EFFECTS.with_borrow_mut(|effects| {
        if let Some(effects) = effects {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            effects.push(format!("{what} {name}"));
        }
    });
}

/// The effects of `run` on this thread, in order.
pub(crate) fn recorded(run: impl FnOnce()) -> Vec<String> {
    EFFECTS.set(Some(Vec::new()));
    run();
    EFFECTS.take().unwrap_or_default()
}
