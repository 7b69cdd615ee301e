//! The least that a client of a shard needs: what crate `pelton` does properly.

use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Duration;

use crossbeam_channel::{Receiver as Bell, Sender as Ring, bounded};
use pelton_broker::flow::{Grant, Granter};
use pelton_broker::storage::{Durability, Options as LogOptions, Position};
use pelton_broker::{
    ConsumerId, InitialPosition, KeyShared, OpenProducer, OpenedProducer, ProducerId, Reply,
    Request, Run, Subscribe, SubscriptionKind, TopicId,
};
use pelton_rings::{Receiver, SlotSender, slots, spsc};

use crate::{
    Arrival, ConsumerSignal, Data, EngineOptions, Handler, HandlerDelivery, Idle, Ports,
    ProducerSignal, ProducerState, Publish, PushError, RECEIPTS_PER_PAGE, ReceiptPage,
    ReceiptState, Runtime, ShardHandle, Verdict,
};

/// Longer than anything here takes, short enough to end a hang.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// One shard in memory, small, that parks at once: two CPUs are shared by many tests.
pub(super) fn options() -> EngineOptions {
    let log = LogOptions {
        segment_bytes: 1 << 20,
        tail_bytes: 1 << 20,
        ..LogOptions::default()
    };
    EngineOptions {
        idle: Idle::Park,
        log,
        ..EngineOptions::default()
    }
}

/// Repeats `attempt` until it gives something. It is called with a waker that it must leave where
/// the other side finds it before it looks.
pub(super) fn wait_for<T>(what: &str, mut attempt: impl FnMut(&Waker) -> Option<T>) -> T {
    let (bell, waker) = waker();
    loop {
        if let Some(value) = attempt(&waker) {
            return value;
        }
        assert!(
            bell.recv_timeout(PATIENCE).is_ok(),
            "waited in vain for {what}"
        );
    }
}

fn waker() -> (Bell<()>, Waker) {
    struct Rings(Ring<()>);
    impl Wake for Rings {
        fn wake(self: Arc<Self>) {
            let _ = self.0.try_send(());
        }
    }
    let (ring, bell) = bounded(1);
    (bell, Waker::from(Arc::new(Rings(ring))))
}

/// Asks the core and waits for what it says.
pub(super) fn ask(handle: &ShardHandle, request: Request, ports: Ports) -> crate::Answer {
    let from = handle
        .request(request, ports)
        .expect("the control lane takes it");
    from.wait_timeout(PATIENCE)
        .expect("an answer")
        .expect("an answer in time")
}

pub(super) fn open_topic(handle: &ShardHandle, name: &str, durability: Durability) -> TopicId {
    let request = Request::OpenTopic {
        name: name.to_owned(),
        durability,
    };
    match ask(handle, request, Ports::None) {
        Ok(Reply::Topic(topic)) => topic,
        other => panic!("{other:?}"),
    }
}

/// The handle of the shard that owns a topic, and the topic, opened in memory.
pub(super) fn memory_topic<'a>(runtime: &'a Runtime, name: &str) -> (&'a ShardHandle, TopicId) {
    let handle = runtime.handle(runtime.shard_of(name));
    (handle, open_topic(handle, name, Durability::Memory))
}

/// A producer's handle.
pub(super) struct TestProducer {
    pub(super) handle: ShardHandle,
    pub(super) id: ProducerId,
    pub(super) signal: Arc<ProducerSignal>,
    ring: SlotSender<Publish>,
    sequence: u64,
    page: Arc<ReceiptPage>,
}

/// A receipt.
pub(super) struct TestReceipt {
    page: Arc<ReceiptPage>,
    index: u8,
}

impl TestProducer {
    pub(super) fn open(handle: &ShardHandle, topic: TopicId, queue: usize) -> TestProducer {
        let (ring, receiver) = slots(queue);
        let signal = Arc::new(ProducerSignal::new());
        let ports = Ports::Producer {
            ring: receiver,
            signal: Arc::clone(&signal),
        };
        let request = Request::from(OpenProducer::shared(topic, "p"));
        let Ok(Reply::Producer(OpenedProducer { id, .. })) = ask(handle, request, ports) else {
            panic!("no producer")
        };
        TestProducer::of(handle, id, ring, signal)
    }

    pub(super) fn of(
        handle: &ShardHandle,
        id: ProducerId,
        ring: SlotSender<Publish>,
        signal: Arc<ProducerSignal>,
    ) -> TestProducer {
        let page = Arc::new(ReceiptPage::new(Arc::clone(&signal)));
        TestProducer {
            handle: handle.clone(),
            id,
            signal,
            ring,
            sequence: 0,
            page,
        }
    }

    /// `None` if the ring is full or the producer may not publish.
    pub(super) fn try_send(&mut self, body: &[u8]) -> Option<TestReceipt> {
        if self.signal.state() != ProducerState::Open || self.ring.free() == 0 {
            return None;
        }
        let index = (self.sequence % RECEIPTS_PER_PAGE as u64) as u8;
        if index == 0 {
            self.page = Arc::new(ReceiptPage::new(Arc::clone(&self.signal)));
        }
        let page = (index == 0).then(|| Arc::clone(&self.page));
        let pushed = self.ring.push_with(|slot| {
            slot.body.clear();
            slot.body.extend_from_slice(body);
            slot.messages = 1;
            slot.sequence = self.sequence;
            slot.page = page;
        });
        assert!(pushed.is_ok());
        self.sequence += 1;
        self.handle.published(self.id.slot);
        Some(TestReceipt {
            page: Arc::clone(&self.page),
            index,
        })
    }

    /// Waits for room; `None` if the producer is closed.
    pub(super) fn send(&mut self, body: &[u8]) -> Option<TestReceipt> {
        let signal = Arc::clone(&self.signal);
        wait_for("room in the ring", |waker| {
            if let Some(receipt) = self.try_send(body) {
                return Some(Some(receipt));
            }
            signal.wait_for_space(waker);
            match signal.state() {
                ProducerState::Stopping | ProducerState::Closed => Some(None),
                _ => self.try_send(body).map(Some),
            }
        })
    }

    pub(super) fn close(&self) -> crate::ReplyFrom<crate::Answer> {
        let request = Request::CloseProducer { producer: self.id };
        self.handle
            .request(request, Ports::None)
            .expect("the control lane takes it")
    }
}

impl TestReceipt {
    pub(super) fn wait(&self) -> ReceiptState {
        wait_for("a receipt", |waker| {
            match self.page.poll(self.index, waker) {
                ReceiptState::Pending => None,
                answer => Some(answer),
            }
        })
    }

    pub(super) fn get(&self) -> ReceiptState {
        self.page.get(self.index)
    }
}

/// A consumer's handle with a window that it grants again as it acks.
pub(super) struct TestConsumer {
    pub(super) handle: ShardHandle,
    pub(super) id: ConsumerId,
    pub(super) signal: Arc<ConsumerSignal>,
    pub(super) granter: Granter,
    ring: Receiver<Arrival>,
    run: Option<(Run, u32)>,
    /// Seeks that began it again.
    pub(super) resets: u32,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Got {
    pub(super) body: Vec<u8>,
    pub(super) position: Position,
    pub(super) redeliveries: u32,
}

impl TestConsumer {
    pub(super) fn open(handle: &ShardHandle, topic: TopicId, window: u32) -> TestConsumer {
        TestConsumer::open_named(handle, topic, "sub", SubscriptionKind::Exclusive, window)
    }

    pub(super) fn open_named(
        handle: &ShardHandle,
        topic: TopicId,
        subscription: &str,
        kind: SubscriptionKind,
        window: u32,
    ) -> TestConsumer {
        let (sender, ring) = spsc(window.next_power_of_two().max(2) as usize);
        let signal = Arc::new(ConsumerSignal::new());
        let (mut granter, account) = Granter::pair();
        let _ = granter.grant(window);
        let ports = Ports::Consumer {
            ring: sender,
            signal: Arc::clone(&signal),
        };
        let request = subscribe(topic, subscription, kind, account);
        let id = match ask(handle, request, ports) {
            Ok(Reply::Consumer(id)) => id,
            other => panic!("{other:?}"),
        };
        TestConsumer {
            handle: handle.clone(),
            id,
            signal,
            granter,
            ring,
            run: None,
            resets: 0,
        }
    }

    pub(super) fn try_recv(&mut self) -> Option<Got> {
        if self.run.is_none() {
            self.run = self.next_run().map(|run| (run, 0));
        }
        let (run, next) = self.run.as_mut()?;
        let slot = run.first_slot + *next;
        let got = Got {
            body: run.block.body(slot).to_vec(),
            position: run.block.meta(slot).position,
            redeliveries: run.redeliveries,
        };
        self.granter.received(run.block.meta(slot).messages);
        *next += 1;
        if *next == run.count {
            self.run = None;
        }
        Some(got)
    }

    /// Goes over to the attachment that a seek has made of it.
    fn next_run(&mut self) -> Option<Run> {
        loop {
            match self.ring.pop()? {
                Arrival::Run(run) => return Some(run),
                Arrival::Reset { becomes, granter } => {
                    self.id = becomes;
                    self.granter = granter;
                    self.resets += 1;
                }
            }
        }
    }

    /// Waits for an entry; `None` if the consumer is closed.
    pub(super) fn recv(&mut self) -> Option<Got> {
        let signal = Arc::clone(&self.signal);
        wait_for("a delivery", |waker| {
            if let Some(got) = self.try_recv() {
                return Some(Some(got));
            }
            signal.wait_for_delivery(waker);
            match self.try_recv() {
                None if signal.closed().is_some() => Some(None),
                None => None,
                got => Some(got),
            }
        })
    }

    /// Acks and grants one message again.
    pub(super) fn ack(&mut self, got: &Got) {
        self.push(Data::Ack {
            consumer: self.id,
            position: got.position,
        });
        self.grant(1);
    }

    pub(super) fn grant(&mut self, messages: u32) {
        if self.granter.grant(messages) == Grant::Ring {
            self.handle.granted(self.id.slot);
        }
    }

    pub(super) fn push(&self, mut data: Data) {
        while let Err(error) = self.handle.data(data) {
            let PushError::Full(back) = error else { return };
            data = back;
            std::thread::yield_now();
        }
    }
}

pub(super) fn subscribe(
    topic: TopicId,
    subscription: &str,
    kind: SubscriptionKind,
    account: pelton_broker::flow::Account,
) -> Request {
    Request::Subscribe(Box::new(Subscribe {
        topic,
        subscription: subscription.to_owned(),
        kind,
        initial: InitialPosition::Earliest,
        consumer: "c".to_owned(),
        account,
        slot: 0,
        priority_level: 0,
        durable: true,
        key_shared: KeyShared::default(),
    }))
}

/// Attaches a handler with a window of `window` messages.
pub(super) fn open_handler(
    handle: &ShardHandle,
    topic: TopicId,
    window: u32,
    handler: Box<dyn FnMut(&HandlerDelivery<'_>) -> Verdict + Send>,
) -> (ConsumerId, Arc<ConsumerSignal>) {
    let signal = Arc::new(ConsumerSignal::new());
    let (mut granter, account) = Granter::pair();
    let _ = granter.grant(window);
    let ports = Ports::Handler {
        handler: Handler::new(handler),
        granter,
        signal: Arc::clone(&signal),
    };
    let request = subscribe(topic, "handler", SubscriptionKind::Exclusive, account);
    match ask(handle, request, ports) {
        Ok(Reply::Consumer(id)) => (id, signal),
        other => panic!("{other:?}"),
    }
}

/// Attaches a handler that stands still in its first entry, and the shard with it. The second end
/// says when it does; it goes on when the first one is dropped.
pub(super) fn open_stalled_handler(
    handle: &ShardHandle,
    topic: TopicId,
    window: u32,
) -> (Ring<()>, Bell<()>) {
    let (go, wait) = bounded::<()>(0);
    let (entered, is_in) = bounded(1);
    let mut stood = false;
    let stand = Box::new(move |_: &HandlerDelivery<'_>| {
        if !std::mem::replace(&mut stood, true) {
            entered.send(()).unwrap();
            let _ = wait.recv_timeout(PATIENCE);
        }
        Verdict::Ack
    });
    open_handler(handle, topic, window, stand);
    (go, is_in)
}

/// A thread of a test.
pub(super) fn spawn<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> std::thread::JoinHandle<T> {
    pelton_sys::spawn_named("test", body).expect("a thread")
}

/// What the shard measured since the last call.
pub(super) fn stats(handle: &ShardHandle) -> crate::ShardStats {
    let (to, from) = crate::reply();
    let control = crate::Control::Stats {
        spare: Box::default(),
        reply: to,
    };
    handle.control(control).expect("the control lane takes it");
    from.wait_timeout(PATIENCE)
        .expect("an answer")
        .expect("in time")
}

pub(super) fn is_stored(state: ReceiptState) -> bool {
    matches!(state, ReceiptState::Stored(_))
}
