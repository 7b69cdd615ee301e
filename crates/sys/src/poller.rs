//! The one wait of a shard: its eventfd, its timer and its sockets in one epoll (runtime 1.8, 1.14).

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::notify::Notifier;
use crate::sockets::{Ready, Sockets, ready_of};
use crate::syscall::check;

/// Deadlines nearer than this arm the timer descriptor: epoll counts whole milliseconds, rounded
/// up (50 us asked, 1,081 us got; runtime 1.14).
const TIMER_BELOW_NS: u64 = 2_000_000;
const NS_PER_MS: u64 = 1_000_000;
const NS_PER_S: u64 = 1_000_000_000;
const EVENTS_PER_POLL: usize = 128;
const NOTIFIED: Token = Token(0);
const TIMER: Token = Token(1);

/// Sleeps until notified or until a deadline. Owns the epoll, eventfd and timer descriptors.
pub struct Poller {
    poll: Poll,
    events: Events,
    ready: Vec<Ready>,
    notifier: Notifier,
    timer: OwnedFd,
    timer_armed: bool,
}

/// Why [`Poller::wait`] came back. Neither: a signal, or the timer of an earlier wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Woken {
    /// Somebody wrote the eventfd: another thread, the pool or the ring.
    pub notified: bool,
    /// The time asked for is over.
    pub timed_out: bool,
    /// A socket has something: see [`Poller::take_ready`].
    pub sockets: bool,
}

impl Poller {
    /// # Errors
    /// When the kernel gives no epoll, eventfd or timer descriptor (usually EMFILE).
    pub fn new() -> io::Result<Self> {
        let poll = Poll::new()?;
        let notifier = Notifier::new()?;
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: timerfd_create takes two integers and touches no memory of ours.
        let fd = check(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: the kernel has just given us this descriptor; nobody else knows it.
        let timer = unsafe { OwnedFd::from_raw_fd(fd) };
        // mio registers edge-triggered, which is what lets both stay unread.
        let registry = poll.registry();
        registry.register(
            &mut SourceFd(&notifier.raw_fd()),
            NOTIFIED,
            Interest::READABLE,
        )?;
        registry.register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        let events = Events::with_capacity(EVENTS_PER_POLL);
        Ok(Self {
            poll,
            events,
            ready: Vec::new(),
            notifier,
            timer,
            timer_armed: false,
        })
    }

    /// The waking end, for other threads, the disk and the pool.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        self.notifier.clone()
    }

    /// Where sockets that end this wait are registered.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn sockets(&self) -> io::Result<Sockets> {
        self.poll.registry().try_clone().map(Sockets::new)
    }

    /// Sockets that have something and that nobody has taken yet.
    #[must_use]
    pub fn any_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Moves them behind what is in `into`.
    pub fn take_ready(&mut self, into: &mut Vec<Ready>) {
        into.append(&mut self.ready);
    }

    /// Sleeps until notified, until a socket has something, or for `timeout_ns` nanoseconds; `None` has no end, 0 only looks.
    ///
    /// Up to 2 ms are kept by the timer descriptor, longer times are rounded down to milliseconds.
    /// A notification given before the call is not lost. A signal ends the wait with nothing set.
    ///
    /// # Errors
    /// Only what a closed or broken descriptor gives; not a time-out, not a signal.
    pub fn wait(&mut self, timeout_ns: Option<u64>) -> io::Result<Woken> {
        let timed = matches!(timeout_ns, Some(1..TIMER_BELOW_NS));
        let poll_timeout = match timeout_ns {
            Some(ns) if timed => {
                self.set_timer(ns)?;
                None
            }
            other => {
                if self.timer_armed {
                    self.set_timer(0)?;
                }
                other.map(|ns| Duration::from_millis(ns / NS_PER_MS))
            }
        };
        match self.poll.poll(&mut self.events, poll_timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                return Ok(Woken::default());
            }
            Err(error) => return Err(error),
        }
        let mut woken = Woken::default();
        let mut anything = false;
        for event in &self.events {
            anything = true;
            match event.token() {
                NOTIFIED => woken.notified = true,
                TIMER => {
                    self.timer_armed = false;
                    woken.timed_out |= timed;
                }
                _ => {
                    if let Some(ready) = ready_of(event) {
                        self.ready.push(ready);
                        woken.sockets = true;
                    }
                }
            }
        }
        woken.timed_out |= !anything && timeout_ns.is_some() && !timed;
        Ok(woken)
    }

    /// Arms the timer for `ns` from now; 0 disarms it.
    fn set_timer(&mut self, ns: u64) -> io::Result<()> {
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = libc::timespec {
            tv_sec: libc::time_t::try_from(ns / NS_PER_S).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::try_from(ns % NS_PER_S).unwrap_or(0),
        };
        let spec = libc::itimerspec {
            it_interval: zero,
            it_value: value,
        };
        let fd = self.timer.as_raw_fd();
        // SAFETY: the descriptor is ours and open, `spec` outlives the call, old is not asked for.
        check(unsafe { libc::timerfd_settime(fd, 0, &raw const spec, ptr::null_mut()) })?;
        self.timer_armed = ns > 0;
        Ok(())
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poller")
            .field("timer_armed", &self.timer_armed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{Poller, Woken};
    use crate::{Clock, TcpListener, TcpStream};

    #[test]
    fn a_wake_before_the_sleep_is_not_lost_and_is_seen_once() {
        let mut poller = Poller::new().expect("a poller");
        poller.notifier().wake();
        poller.notifier().wake();
        let woken = poller.wait(None).expect("a wait");
        assert_eq!(
            woken,
            Woken {
                notified: true,
                timed_out: false,
                ..Woken::default()
            }
        );
        assert_eq!(
            poller.wait(Some(0)).expect("a look"),
            Woken {
                notified: false,
                timed_out: true,
                ..Woken::default()
            }
        );
    }

    #[test]
    fn each_wake_of_another_thread_ends_one_sleep() {
        let mut poller = Poller::new().expect("a poller");
        let notifier = poller.notifier();
        let (ask, asked) = std::sync::mpsc::channel();
        let waker = crate::spawn_named("waker", move || {
            while asked.recv().is_ok() {
                notifier.wake();
            }
        })
        .expect("a thread");
        for _ in 0..1_000 {
            ask.send(()).expect("the waker lives");
            assert!(poller.wait(Some(5_000_000_000)).expect("a wait").notified);
        }
        drop(ask);
        waker.join().expect("no panic");
    }

    /// Runtime test 6: a deadline in 300 us fires within 300-600 us at p50, not after 1 ms.
    #[test]
    fn a_deadline_in_300_us_is_kept_by_the_timer() {
        let clock = Clock::new();
        let mut poller = Poller::new().expect("a poller");
        let mut took: Vec<u64> = (0..51)
            .map(|_| {
                let start = clock.now_ns();
                let woken = poller.wait(Some(300_000)).expect("a wait");
                assert_eq!(
                    woken,
                    Woken {
                        notified: false,
                        timed_out: true,
                        ..Woken::default()
                    }
                );
                clock.now_ns() - start
            })
            .collect();
        took.sort_unstable();
        assert!(took[0] >= 290_000, "fired early: {} ns", took[0]);
        // The middle one on a quiet machine; the fastest fifth where others use the CPUs.
        assert!(
            took[25] <= 600_000 || took[10] <= 600_000,
            "p50 {} ns",
            took[25]
        );
    }

    #[test]
    fn a_long_deadline_is_rounded_down_and_an_old_timer_does_not_answer_for_it() {
        let clock = Clock::new();
        let mut poller = Poller::new().expect("a poller");
        poller.notifier().wake();
        assert!(poller.wait(Some(1_900_000)).expect("a wait").notified);
        let start = clock.now_ns();
        let woken = poller.wait(Some(4_900_000)).expect("a wait");
        assert_eq!(
            woken,
            Woken {
                notified: false,
                timed_out: true,
                ..Woken::default()
            }
        );
        assert!(clock.now_ns() - start >= 3_900_000);
    }

    #[test]
    fn a_socket_ends_the_wait_and_is_named_by_its_number() {
        let mut poller = Poller::new().expect("a poller");
        let sockets = poller.sockets().expect("a registry");
        let any = "127.0.0.1:0".parse().expect("an address");
        let mut listener = TcpListener::bind(any).expect("a port");
        sockets.add(&mut listener, 7).expect("a watch");
        let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("a peer");
        assert!(poller.wait(Some(5_000_000_000)).expect("a wait").sockets);
        let mut ready = Vec::new();
        poller.take_ready(&mut ready);
        assert_eq!(ready.iter().map(|ready| ready.id).collect::<Vec<_>>(), [7]);
        assert!(ready[0].readable && !poller.any_ready());
        drop(peer);
        sockets.remove(&mut listener).expect("watched until now");
    }
}
