//! What consumers see: checked, timed, counted. One place for every message that arrives.

use std::sync::Arc;

use pelton::Entry;
use pelton_metrics::Histogram;

use crate::{
    DIGITS,
    payload::{HEADER_BYTES, Header},
    replay::Events,
    verify::Verifier,
};

/// Fills a payload behind its header; the last byte of every payload without content of its own.
pub(crate) const FILL: u8 = 0xA5;

/// What a payload must hold behind its header.
#[derive(Debug)]
pub(crate) enum Content {
    /// [`FILL`] up to this many bytes in all; the length and the last byte are checked.
    Filled { bytes: usize },
    /// A line of a file: the one that the producer sent as this sequence. Checked byte by byte.
    Lines {
        events: Arc<Events>,
        /// By producer, by sequence: the line.
        sent: Vec<Vec<u32>>,
    },
}

impl Content {
    #[inline]
    fn is_intact(&self, header: &Header, payload: &[u8]) -> bool {
        match self {
            Content::Filled { bytes } => {
                let last = payload.last().copied();
                payload.len() == *bytes && (*bytes == HEADER_BYTES || last == Some(FILL))
            }
            Content::Lines { events, sent } => {
                let line = sent
                    .get(header.producer as usize)
                    .and_then(|lines| lines.get(usize::try_from(header.sequence).ok()?));
                line.is_some_and(|&line| {
                    events.line(line as usize) == &payload[HEADER_BYTES..]
                        && events.key(line as usize) == header.key
                })
            }
        }
    }
}

/// Messages of an entry that follow each other.
#[derive(Clone, Copy)]
struct Run {
    first: Header,
    count: u64,
}

impl Run {
    #[inline]
    fn goes_on_with(&self, header: &Header) -> bool {
        let expected = Header {
            sequence: self.first.sequence.wrapping_add(self.count),
            ..self.first
        };
        *header == expected
    }
}

/// Verifier, histogram and counts of one thread that receives.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) verifier: Verifier,
    pub(crate) content: Content,
    /// Intended send time to receipt by the consumer.
    pub(crate) end_to_end: Histogram,
    /// Since the last [`Seen::restart`].
    pub(crate) messages: u64,
    pub(crate) bytes: u64,
    /// Equal latencies in a row are recorded at once: bursts share their clock reads.
    repeated_ns: u64,
    repeated: u64,
}

impl Seen {
    pub(crate) fn new(verifier: Verifier, content: Content) -> Seen {
        Seen {
            verifier,
            content,
            end_to_end: Histogram::new(DIGITS),
            messages: 0,
            bytes: 0,
            repeated_ns: 0,
            repeated: 0,
        }
    }

    /// An entry that `consumer` received at `now_ns` and is about to ack.
    #[inline]
    pub(crate) fn entry(&mut self, consumer: usize, entry: Entry<'_>, now_ns: u64) {
        let messages = u64::from(entry.message_count());
        self.verifier.delivered_entry(consumer, messages);
        let mut run: Option<Run> = None;
        for message in entry.messages() {
            let payload = message.payload;
            self.bytes += payload.len() as u64;
            let Some(header) = Header::read(payload) else {
                self.verifier.delivered(consumer, None);
                continue;
            };
            if !self.content.is_intact(&header, payload) {
                self.verifier.damaged(consumer);
            }
            match &mut run {
                Some(run) if run.goes_on_with(&header) => run.count += 1,
                _ => {
                    self.end_run(consumer, run, now_ns);
                    run = Some(Run {
                        first: header,
                        count: 1,
                    });
                }
            }
        }
        self.end_run(consumer, run, now_ns);
        self.messages += messages;
        self.verifier.acked(consumer, messages);
    }

    #[inline]
    fn end_run(&mut self, consumer: usize, run: Option<Run>, now_ns: u64) {
        let Some(Run { first, count }) = run else {
            return;
        };
        self.verifier.delivered_run(consumer, first, count);
        let ns = now_ns.saturating_sub(first.intended_ns);
        if ns == self.repeated_ns {
            self.repeated += count;
        } else {
            self.end_to_end.record_n(self.repeated_ns, self.repeated);
            (self.repeated_ns, self.repeated) = (ns, count);
        }
    }

    /// Everything seen, in the histogram.
    pub(crate) fn flush(&mut self) {
        self.end_to_end.record_n(self.repeated_ns, self.repeated);
        (self.repeated_ns, self.repeated) = (0, 0);
    }

    /// Begins a measured time: figures start at zero, the verifier goes on.
    pub(crate) fn restart(&mut self) {
        self.flush();
        self.end_to_end.clear();
        (self.messages, self.bytes) = (0, 0);
    }
}
