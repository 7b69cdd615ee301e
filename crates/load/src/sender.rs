//! A producer of the load: frames its messages, sends them, and times some of their receipts.

use std::{
    collections::VecDeque,
    pin::Pin,
    task::{Context, Poll, Waker},
};

use pelton::{Message, Producer, Receipt, Topic, TrySendError};
use pelton_metrics::Histogram;

use crate::{
    LoadError,
    crossbeam::CAPACITY,
    embedded::Clock,
    payload::{HEADER_BYTES, Header},
    seen::FILL,
    verify::Verifier,
};

/// Bytes in a producer's queue: each slot keeps its body's memory, and all of them take turns.
const QUEUE_BYTES: usize = 512 << 10;

/// Receipts kept at a time to be timed. A full list skips entries, it never waits.
const RECEIPTS_KEPT: usize = 4_096;

/// Entries in a producer's queue.
pub(crate) fn queue(entry_bytes: usize) -> usize {
    let entries = QUEUE_BYTES / entry_bytes;
    entries.clamp(16, CAPACITY).next_power_of_two()
}

/// One producer and what it sends.
#[derive(Debug)]
pub(crate) struct Sender {
    producer: Producer,
    /// Its number in the verifier.
    index: usize,
    /// The payloads being sent.
    buffer: Vec<u8>,
    size: usize,
    batch: usize,
    receipts: VecDeque<(u64, Receipt)>,
    /// Every so many entries keep their receipt.
    sample: u64,
    /// Entries sent since the last one whose receipt was kept.
    unsampled: u64,
}

impl Sender {
    /// Producer number `index`, of entries of `batch` messages of `size` bytes, the receipt of every
    /// `sample`th of which is timed.
    pub(crate) fn open(
        topic: &Topic,
        index: usize,
        (size, batch): (usize, usize),
        sample: u64,
    ) -> Result<Sender, LoadError> {
        let builder = topic.producer().name("load").queue(queue(size * batch));
        Ok(Sender {
            producer: builder.open().map_err(LoadError::engine)?,
            index,
            buffer: Vec::new(),
            size,
            batch,
            receipts: VecDeque::with_capacity(RECEIPTS_KEPT),
            sample,
            unsampled: 0,
        })
    }

    /// True if it sends single messages, so that a burst can go with one call.
    pub(crate) fn is_single(&self) -> bool {
        self.batch == 1
    }

    /// True while receipts are being waited for.
    pub(crate) fn owes_receipts(&self) -> bool {
        !self.receipts.is_empty()
    }

    /// Forgets the receipts being waited for.
    pub(crate) fn forget_receipts(&mut self) {
        self.receipts.clear();
    }

    /// Sends up to `entries` single-message entries with one look at the shard for all of them; how
    /// many had room.
    pub(crate) fn send_burst(
        &mut self,
        verifier: &mut Verifier,
        entries: usize,
        intended_ns: u64,
    ) -> Result<usize, LoadError> {
        self.fill(verifier, entries, intended_ns);
        let payloads = self.buffer.chunks_exact(self.size);
        let mut messages = payloads.map(|payload| Message::new(payload).intended_ns(intended_ns));
        let (sent, last) = self
            .producer
            .try_send_each(&mut messages)
            .map_err(LoadError::engine)?;
        if let Some(receipt) = last {
            verifier.published_each(self.index, sent as u64);
            self.keep(intended_ns, receipt, sent as u64);
        }
        Ok(sent)
    }

    /// Sends one entry; false if the queue is full.
    #[inline]
    pub(crate) fn try_send(
        &mut self,
        verifier: &mut Verifier,
        intended_ns: u64,
    ) -> Result<bool, LoadError> {
        if self.batch > 1 && self.is_full() {
            return Ok(false);
        }
        self.fill(verifier, self.batch, intended_ns);
        let receipt = if self.batch == 1 {
            let message = Message::new(&self.buffer).intended_ns(intended_ns);
            match self.producer.try_send_message(message) {
                Ok(receipt) => receipt,
                Err(TrySendError::Full(_)) => return Ok(false),
                Err(error) => return Err(LoadError::engine(error)),
            }
        } else {
            let payloads = self.buffer.chunks_exact(self.size);
            let messages = payloads.map(|payload| Message::new(payload).intended_ns(intended_ns));
            self.producer
                .send_batch(messages)
                .map_err(LoadError::engine)?
        };
        verifier.published(self.index, self.batch as u64);
        self.keep(intended_ns, receipt, 1);
        Ok(true)
    }

    /// Sends `content` as one message under `key`; false if the queue is full.
    pub(crate) fn try_send_content(
        &mut self,
        verifier: &mut Verifier,
        (key, key_name): (u32, Option<&[u8]>),
        content: &[u8],
        intended_ns: u64,
    ) -> Result<bool, LoadError> {
        let header = Header {
            key,
            ..self.header(verifier, intended_ns)
        };
        self.buffer.resize(HEADER_BYTES, 0);
        header.write(&mut self.buffer);
        self.buffer.extend_from_slice(content);
        let mut message = Message::new(&self.buffer).intended_ns(intended_ns);
        message.key = key_name;
        match self.producer.try_send_message(message) {
            Ok(receipt) => self.keep(intended_ns, receipt, 1),
            Err(TrySendError::Full(_)) => return Ok(false),
            Err(error) => return Err(LoadError::engine(error)),
        }
        verifier.published(self.index, 1);
        Ok(true)
    }

    /// Sends one entry and blocks until its receipt is there.
    pub(crate) fn send_and_wait(
        &mut self,
        verifier: &mut Verifier,
        intended_ns: u64,
    ) -> Result<(), LoadError> {
        self.fill(verifier, 1, intended_ns);
        let message = Message::new(&self.buffer).intended_ns(intended_ns);
        let receipt = self
            .producer
            .send_message(message)
            .map_err(LoadError::engine)?;
        verifier.published(self.index, 1);
        receipt.wait().map(drop).map_err(LoadError::engine)
    }

    /// Times the receipts that have come; how many.
    pub(crate) fn settle(
        &mut self,
        clock: &Clock,
        publish_receipt: &mut Histogram,
    ) -> Result<usize, LoadError> {
        let mut settled = 0;
        let mut now_ns = None;
        while let Some((intended_ns, receipt)) = self.receipts.front() {
            let Some(answer) = receipt.try_get() else {
                break;
            };
            answer.map_err(LoadError::engine)?;
            let now_ns = *now_ns.get_or_insert_with(|| clock.now_ns());
            publish_receipt.record(now_ns.saturating_sub(*intended_ns));
            self.receipts.pop_front();
            settled += 1;
        }
        Ok(settled)
    }

    /// Blocks until every entry sent has its receipt.
    pub(crate) fn flush(&mut self) -> Result<(), LoadError> {
        self.producer.flush().map_err(LoadError::engine)
    }

    /// True if there is something to do: room, where that is waited for, or a receipt. Else the waker
    /// is woken when there is.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, waits_for_room: bool) -> bool {
        if waits_for_room && self.producer.poll_ready(context).is_ready() {
            return true;
        }
        let first = self.receipts.front_mut();
        first.is_some_and(|(_, receipt)| Pin::new(receipt).poll(context).is_ready())
    }

    /// True if its queue has no room.
    pub(crate) fn is_full(&mut self) -> bool {
        let mut nobody = Context::from_waker(Waker::noop());
        matches!(self.producer.poll_ready(&mut nobody), Poll::Pending)
    }

    fn header(&self, verifier: &Verifier, intended_ns: u64) -> Header {
        let producer = u32::try_from(self.index).expect("few producers");
        Header {
            producer,
            key: producer,
            sequence: verifier.next_sequence(self.index),
            intended_ns,
        }
    }

    /// The next `messages` payloads, in the buffer.
    #[inline]
    fn fill(&mut self, verifier: &Verifier, messages: usize, intended_ns: u64) {
        let mut header = self.header(verifier, intended_ns);
        self.buffer.resize(self.size * messages, FILL);
        for payload in self.buffer.chunks_exact_mut(self.size) {
            header.write(payload);
            header.sequence += 1;
        }
    }

    /// The receipt of the last of `entries` just sent: kept if one is due.
    fn keep(&mut self, intended_ns: u64, receipt: Receipt, entries: u64) {
        self.unsampled += entries;
        if self.unsampled >= self.sample && self.receipts.len() < RECEIPTS_KEPT {
            self.unsampled = 0;
            self.receipts.push_back((intended_ns, receipt));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_a_power_of_two_and_small_enough_to_stay_in_a_cache() {
        for (entry_bytes, entries) in [(24, 1_024), (512, 1_024), (6_400, 128), (4 << 20, 16)] {
            assert_eq!(queue(entry_bytes), entries, "{entry_bytes}");
        }
    }
}
