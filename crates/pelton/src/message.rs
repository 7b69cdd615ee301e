//! Messages and how they lie inside an entry body.
//!
//! An entry is what is stored, dispatched and acked as a whole: one message, or a batch. Its body is
//! its messages one after the other, without padding; integers are little endian:
//!
//! ```text
//! u32 payload length | u16 key length | key | payload        0xFFFF as key length: no key
//! ```
//!
//! There is no count and no checksum in here: the entry's stored header has both.

use std::time::Duration;

use crate::Clock;

/// Bytes in front of each message's key and payload.
pub const MESSAGE_HEADER_BYTES: usize = 6;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = NO_KEY as usize - 1;

const NO_KEY: u16 = u16::MAX;

/// A message, borrowed: what a producer is given, and what a delivery shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message<'a> {
    /// Says what the message is about, at most [`KEY_BYTES_MAX`] bytes.
    pub key: Option<&'a [u8]>,
    /// The message itself, any bytes.
    pub payload: &'a [u8],
    /// When it was meant to be sent, on [`crate::Clock`]; 0 means "now". Not part of what is stored.
    pub(crate) intended_ns: u64,
    pub(crate) deliver: When,
    pub(crate) deadline: When,
    pub(crate) sequence: Option<u64>,
}

/// An instant of the wall clock that a message may name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum When {
    #[default]
    Unsaid,
    /// Unix milliseconds.
    At(u64),
    /// Milliseconds from when it is sent.
    After(u64),
}

impl When {
    fn after(span: Duration) -> When {
        When::After(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    /// Unix milliseconds; 0 if nothing is said. Reads the clock only for a span.
    pub(crate) fn unix_ms(self, clock: &Clock) -> u64 {
        match self {
            When::Unsaid => 0,
            When::At(unix_ms) => unix_ms,
            When::After(ms) => clock.wall_ms().saturating_add(ms),
        }
    }
}

impl<'a> Message<'a> {
    /// A message without a key.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Message<'a> {
        Message {
            payload,
            ..Message::default()
        }
    }

    /// The same with a key, at most [`KEY_BYTES_MAX`] bytes. The entry is stored under
    /// [`key_hash`] of the key of its first message.
    #[must_use]
    pub fn key(mut self, key: &'a [u8]) -> Message<'a> {
        self.key = Some(key);
        self
    }

    /// When it was meant to be sent, in nanoseconds of [`crate::Clock::now_ns`]; 0 means "now".
    ///
    /// Generators of load with a rate give it, so that times count from there
    /// ([`crate::Delivery::arrived_ns`]) and a stalled generator is not hidden
    /// (coordinated omission). Of a batch the earliest counts. It is kept in memory only.
    #[must_use]
    pub fn intended_ns(mut self, intended_ns: u64) -> Message<'a> {
        self.intended_ns = intended_ns;
        self
    }

    /// Not to be delivered before this time, in Unix milliseconds; to be exact, in the first turn of
    /// the shard at or after it. Shared and KeyShared subscriptions heed it, others deliver at once
    /// and in order (rules D122 and D123). Of a batch the latest time counts. 0 is "at once".
    ///
    /// A topic's policy may switch it off or limit it:
    /// [`Policy::delayed_delivery_max_delay_in_millis`](crate::Policy).
    #[must_use]
    pub fn deliver_at_ms(mut self, unix_ms: u64) -> Message<'a> {
        self.deliver = When::At(unix_ms);
        self
    }

    /// As [`Message::deliver_at_ms`], so long after it is sent; whole milliseconds.
    #[must_use]
    pub fn deliver_after(mut self, delay: Duration) -> Message<'a> {
        self.deliver = When::after(delay);
        self
    }

    /// Worth nothing from this time on, in Unix milliseconds: an entry that nobody was given by then
    /// is given to nobody, but dropped and counted (rules D130 and D131). Of a batch the latest
    /// deadline counts, and none if a message has none. 0 is "no deadline".
    ///
    /// The topic's policy may give every message one; the earlier counts.
    #[must_use]
    pub fn deadline_ms(mut self, unix_ms: u64) -> Message<'a> {
        self.deadline = When::At(unix_ms);
        self
    }

    /// As [`Message::deadline_ms`], so long after it is sent; whole milliseconds.
    #[must_use]
    pub fn deadline_after(mut self, span: Duration) -> Message<'a> {
        self.deadline = When::after(span);
        self
    }

    /// Its number among all that producers of the same name send to the topic. If the topic's policy
    /// says so ([`crate::Policy::deduplication_enabled`]), a message whose number is not higher than
    /// all before it is not stored again: its receipt says [`crate::Position::NOWHERE`], once the one
    /// before it is as durable as the topic (rule D141). That holds after a restart and a crash too,
    /// and however long ago that one was acked. Of a batch the lowest number is looked at, and the
    /// highest kept.
    #[must_use]
    pub fn sequence(mut self, sequence: u64) -> Message<'a> {
        self.sequence = Some(sequence);
        self
    }

    /// Whether it says more than most: a time or a sequence.
    #[inline]
    pub(crate) fn has_extras(&self) -> bool {
        self.deliver != When::Unsaid || self.deadline != When::Unsaid || self.sequence.is_some()
    }

    /// Bytes this message takes in an entry body.
    #[must_use]
    pub fn framed_bytes(&self) -> usize {
        MESSAGE_HEADER_BYTES + self.key.map_or(0, <[u8]>::len) + self.payload.len()
    }
}

impl<'a> From<&'a [u8]> for Message<'a> {
    fn from(payload: &'a [u8]) -> Message<'a> {
        Message::new(payload)
    }
}

impl<'a> From<&Message<'a>> for Message<'a> {
    fn from(message: &Message<'a>) -> Message<'a> {
        *message
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Message<'a> {
    fn from(payload: &'a [u8; N]) -> Message<'a> {
        Message::new(payload)
    }
}

impl<'a> From<&'a str> for Message<'a> {
    fn from(payload: &'a str) -> Message<'a> {
        Message::new(payload.as_bytes())
    }
}

/// Appends a message whose lengths the caller has checked: key at most [`KEY_BYTES_MAX`], payload
/// within `u32`.
pub(crate) fn frame(body: &mut Vec<u8>, message: &Message<'_>) {
    let key_length = message.key.map_or(NO_KEY, |key| {
        u16::try_from(key.len()).expect("checked by the caller")
    });
    let payload_length = u32::try_from(message.payload.len()).expect("checked by the caller");
    let payload_bytes = payload_length.to_le_bytes();
    let key_bytes = key_length.to_le_bytes();
    body.reserve(message.framed_bytes());
    body.extend_from_slice(&[
        payload_bytes[0],
        payload_bytes[1],
        payload_bytes[2],
        payload_bytes[3],
        key_bytes[0],
        key_bytes[1],
    ]);
    body.extend_from_slice(message.key.unwrap_or_default());
    body.extend_from_slice(message.payload);
}

/// The messages of an entry body, in order.
///
/// Ends early where the body stops making sense, which only an entry written by something else can
/// do (bodies carry a checksum); [`Messages::intact`] tells.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
    intact: bool,
    /// The messages to show, a bit each; `None`: all.
    still: Option<&'a [u64]>,
    index: u32,
}

impl<'a> Messages<'a> {
    /// Reads a body as this module lays it out. Any bytes are safe to give.
    #[must_use]
    pub fn of(body: &'a [u8]) -> Messages<'a> {
        Messages {
            rest: body,
            intact: true,
            still: None,
            index: 0,
        }
    }

    /// Only those whose bit in `still` is 1.
    pub(crate) fn only(self, still: Option<&'a [u64]>) -> Messages<'a> {
        Messages { still, ..self }
    }

    /// Place within the entry of the message that came last, 0 first.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index.saturating_sub(1)
    }

    /// False once the iterator has met bytes that are no message; it ended there.
    #[must_use]
    pub fn intact(&self) -> bool {
        self.intact
    }

    fn split(&self) -> Option<(Message<'a>, &'a [u8])> {
        let (payload_length, rest) = self.rest.split_first_chunk::<4>()?;
        let (key_length, rest) = rest.split_first_chunk::<2>()?;
        let payload_length = usize::try_from(u32::from_le_bytes(*payload_length)).ok()?;
        let (key, rest) = match u16::from_le_bytes(*key_length) {
            NO_KEY => (None, rest),
            length => {
                let (key, rest) = rest.split_at_checked(usize::from(length))?;
                (Some(key), rest)
            }
        };
        let (payload, rest) = rest.split_at_checked(payload_length)?;
        Some((
            Message {
                key,
                payload,
                ..Message::default()
            },
            rest,
        ))
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        while !self.rest.is_empty() {
            let Some((message, rest)) = self.split() else {
                self.rest = &[];
                self.intact = false;
                break;
            };
            self.rest = rest;
            let (word, bit) = (self.index / 64, self.index % 64);
            self.index += 1;
            let shown = |still: &[u64]| still.get(word as usize).copied().unwrap_or(0) >> bit & 1;
            if self.still.is_none_or(|still| shown(still) == 1) {
                return Some(message);
            }
        }
        None
    }
}

impl std::iter::FusedIterator for Messages<'_> {}

/// The hash an entry is stored under: murmur3 of the key (x86, 32 bit, seed 0) with the top bit
/// cleared, modulo 65,536, where 0 becomes 1. 0 itself means "no key".
///
/// Source: the hash of Pulsar's Key_Shared subscriptions, so that the same key is the same number
/// whichever client wrote it (rule D82).
#[must_use]
pub fn key_hash(key: &[u8]) -> u32 {
    u32::from(crate::port::key_hash(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(messages: &[Message<'_>]) -> Vec<u8> {
        let mut body = Vec::new();
        for message in messages {
            frame(&mut body, message);
        }
        body
    }

    #[test]
    fn what_is_framed_is_read_back() {
        let long = vec![7u8; 70_000];
        let key = vec![b'k'; KEY_BYTES_MAX];
        let messages = [
            Message::new(b""),
            Message::new(b"payload").key(b""),
            Message::new(b"").key(b"key"),
            Message::new(&long).key(&key),
        ];
        let body = body(&messages);
        assert_eq!(
            body.len(),
            messages.iter().map(Message::framed_bytes).sum::<usize>()
        );
        let mut read = Messages::of(&body);
        assert_eq!(read.by_ref().collect::<Vec<_>>(), messages);
        assert!(read.intact());
    }

    #[test]
    fn the_layout_is_as_documented() {
        assert_eq!(
            body(&[Message::new(b"abc").key(b"k")]),
            b"\x03\0\0\0\x01\0kabc"
        );
        assert_eq!(body(&[Message::new(b"abc")]), b"\x03\0\0\0\xff\xffabc");
    }

    #[test]
    fn a_body_cut_anywhere_ends_early_and_says_so() {
        let messages = [Message::new(b"first").key(b"a"), Message::new(b"second")];
        let whole = body(&messages);
        let first = messages[0].framed_bytes();
        for cut in 1..whole.len() {
            let mut read = Messages::of(&whole[..cut]);
            assert_eq!(
                read.by_ref().count(),
                usize::from(cut >= first),
                "cut at {cut}"
            );
            assert_eq!(read.intact(), cut == first, "cut at {cut}");
            assert_eq!(read.next(), None);
        }
    }

    #[test]
    fn lengths_beyond_the_body_are_no_message() {
        for bytes in [
            &b"\xff\xff\xff\xff\0\0abc"[..],
            b"\x01\0\0\0\xfe\xffabc",
            b"\x04\0\0\0\xff\xffabc",
        ] {
            let mut read = Messages::of(bytes);
            assert_eq!((read.next(), read.intact()), (None, false));
        }
    }

    #[test]
    fn the_hash_is_that_of_pulsar() {
        assert_eq!((key_hash(b""), key_hash(b"order-42")), (1, 41_358));
    }

    #[test]
    fn of_a_partly_acked_batch_the_rest_is_shown_with_its_places() {
        let texts: Vec<String> = (0..70).map(|n| n.to_string()).collect();
        let messages: Vec<_> = texts.iter().map(|text| Message::from(&**text)).collect();
        let body = body(&messages);
        let mut rest = Messages::of(&body).only(Some(&[1 << 3 | 1 << 63, 1 << 1]));
        let mut shown = Vec::new();
        while let Some(message) = rest.next() {
            shown.push((rest.index(), std::str::from_utf8(message.payload).unwrap()));
        }
        assert_eq!(shown, [(3, "3"), (63, "63"), (65, "65")]);
        assert!(rest.intact());
    }
}
