//! A producer of a connection: its end of the ring, and the receipts it is owed, in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use pelton_shard::broker::ProducerId;
use pelton_shard::broker::keys::{key_hash, unkeyed_hash};
use pelton_shard::rings::SlotSender;
use pelton_shard::{
    ProducerSignal, ProducerState, Publish, PublishExtras, RECEIPTS_PER_PAGE, ReceiptPage,
    ReceiptState,
};
use pelton_wire::commands::{Send, SendError, SendReceipt};
use pelton_wire::{Entry, MessageId, checksum_of};

use super::outbox::Outbox;
use super::refusal;
use super::topic::Topic;

/// Entries that may wait for the shard.
pub(crate) const RING_ENTRIES: usize = 256;

/// An open producer.
#[derive(Debug)]
pub(crate) struct Producer {
    pub(crate) topic: Topic,
    pub(crate) name: String,
    pub(crate) id: ProducerId,
    ring: SlotSender<Publish>,
    signal: Arc<ProducerSignal>,
    /// The first one has the oldest answer that is missing.
    pages: VecDeque<Arc<ReceiptPage>>,
    spare: Option<Arc<ReceiptPage>>,
    /// Number of the next entry, and of the oldest that is not answered.
    next: u64,
    answered: u64,
    owed: VecDeque<Owed>,
    /// As its client was told; it may ask again.
    pub(crate) answered_open: Answered,
    /// It ends when nothing is owed to it.
    pub(crate) closing: Option<Closing>,
}

/// What PRODUCER was answered with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Answered {
    /// It may send; if not, it waits for its turn.
    pub(crate) ready: bool,
    pub(crate) schema_version: Option<u64>,
    pub(crate) topic_epoch: Option<u64>,
    pub(crate) last_sequence: Option<u64>,
}

/// Who closes a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// Its client, by this request.
    Client(u64),
    /// The server: its client is told.
    Server,
}

/// What a receipt says, known since the SEND.
#[derive(Clone, Copy, Debug)]
struct Owed {
    sequence_id: u64,
    highest_sequence_id: u64,
    bytes: usize,
}

impl Producer {
    pub(crate) fn new(
        topic: Topic,
        name: String,
        id: ProducerId,
        ring: SlotSender<Publish>,
        signal: Arc<ProducerSignal>,
        answered_open: Answered,
    ) -> Producer {
        Producer {
            topic,
            name,
            id,
            ring,
            signal,
            pages: VecDeque::new(),
            spare: None,
            next: 0,
            answered: 0,
            owed: VecDeque::new(),
            answered_open,
            closing: None,
        }
    }

    /// Whether an entry has room. If not, `waker` is woken once it has.
    pub(crate) fn has_room(&mut self, waker: &Waker) -> bool {
        if self.ring.free() > 0 {
            return true;
        }
        self.signal.wait_for_space(waker);
        self.ring.free() > 0
    }

    /// Publishes an entry, for which there is room; how many bytes it has.
    pub(crate) fn publish(&mut self, send: &Send<'_>, entry: &Entry<'_>, arrived_ns: u64) -> usize {
        let Entry {
            stored, metadata, ..
        } = entry;
        let has_key = metadata.ordering_key.is_some() || metadata.partition_key.is_some();
        let hash = match has_key {
            true => key_hash(&metadata.routing_key()),
            false => unkeyed_hash(metadata.producer_name, metadata.sequence_id),
        };
        let deliver_at_ms = metadata.deliver_at_time.unwrap_or(0).max(0).cast_unsigned();
        let page = self
            .next
            .is_multiple_of(RECEIPTS_PER_PAGE as u64)
            .then(|| self.new_page());
        let sequence = self.next;
        let pushed = self.ring.push_with(|slot| {
            slot.body.clear();
            if entry.checksum.is_none() {
                slot.body.extend_from_slice(&checksum_of(stored));
            }
            slot.body.extend_from_slice(stored);
            slot.messages = metadata.message_count();
            slot.key_hash = u32::from(hash);
            slot.sequence = sequence;
            slot.arrived_ns = arrived_ns;
            slot.extras = (deliver_at_ms > 0).then(|| {
                Box::new(PublishExtras {
                    deliver_at_ms,
                    ..PublishExtras::default()
                })
            });
            slot.page = page;
        });
        debug_assert!(pushed.is_ok(), "the caller saw that there is room");
        self.next += 1;
        self.owed.push_back(Owed {
            sequence_id: send.sequence_id,
            highest_sequence_id: metadata.last_sequence_id().max(send.highest_sequence_id()),
            bytes: stored.len(),
        });
        self.topic.handle.published(self.id.slot);
        stored.len()
    }

    /// Whether another producer has taken the topic for itself.
    pub(crate) fn is_fenced(&self) -> bool {
        self.signal.state() == ProducerState::Fenced
    }

    /// Whether receipts are owed.
    pub(crate) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Gives the receipts that are there, in order; how many, and of how many bytes of entries.
    pub(crate) fn give_receipts(
        &mut self,
        producer_id: u64,
        waker: &Waker,
        out: &mut Outbox,
    ) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        self.signal.wait_for_progress(waker);
        while let Some(&owed) = self.owed.front() {
            let index = (self.answered % RECEIPTS_PER_PAGE as u64) as u8;
            let Some(page) = self.pages.front() else {
                break;
            };
            match page.get(index) {
                ReceiptState::Pending => break,
                ReceiptState::Stored(position) => out.push(SendReceipt {
                    producer_id,
                    sequence_id: owed.sequence_id,
                    message_id: Some(MessageId {
                        partition: self.topic.partition,
                        ..MessageId::new(position.ledger, position.entry)
                    }),
                    highest_sequence_id: Some(owed.highest_sequence_id),
                }),
                state => {
                    if let Some(refusal) = refusal::of_receipt(state) {
                        out.push(SendError {
                            producer_id,
                            sequence_id: owed.sequence_id,
                            error: refusal.code,
                            message: &refusal.text,
                        });
                    }
                }
            }
            if usize::from(index) == RECEIPTS_PER_PAGE - 1 {
                self.spare = self.pages.pop_front();
            }
            self.answered += 1;
            self.owed.pop_front();
            count += 1;
            bytes += owed.bytes;
        }
        (count, bytes)
    }

    fn new_page(&mut self) -> Arc<ReceiptPage> {
        // The shard lets go of a page when all of it is answered and told.
        let spare = self.spare.take().and_then(|mut page| {
            Arc::get_mut(&mut page)?.reset();
            Some(page)
        });
        let page = spare.unwrap_or_else(|| Arc::new(ReceiptPage::new(Arc::clone(&self.signal))));
        self.pages.push_back(Arc::clone(&page));
        page
    }
}
