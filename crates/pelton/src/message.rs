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
}

impl<'a> Message<'a> {
    /// A message without a key.
    #[must_use]
    pub fn new(payload: &'a [u8]) -> Message<'a> {
        Message {
            key: None,
            payload,
            intended_ns: 0,
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
}

impl<'a> Messages<'a> {
    /// Reads a body as this module lays it out. Any bytes are safe to give.
    #[must_use]
    pub fn of(body: &'a [u8]) -> Messages<'a> {
        Messages {
            rest: body,
            intact: true,
        }
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
                intended_ns: 0,
            },
            rest,
        ))
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        if self.rest.is_empty() {
            return None;
        }
        if let Some((message, rest)) = self.split() {
            self.rest = rest;
            return Some(message);
        }
        self.rest = &[];
        self.intact = false;
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
    ((murmur3_32(key) & 0x7fff_ffff) % 65_536).max(1)
}

fn murmur3_32(bytes: &[u8]) -> u32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let scramble = |k: u32| k.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);
    let (words, tail) = bytes.as_chunks::<4>();
    let mut hash = 0u32;
    for word in words {
        hash ^= scramble(u32::from_le_bytes(*word));
        hash = hash
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64);
    }
    if !tail.is_empty() {
        let mut last = [0u8; 4];
        last[..tail.len()].copy_from_slice(tail);
        hash ^= scramble(u32::from_le_bytes(last));
    }
    // The algorithm takes the length modulo 2^32.
    hash ^= bytes.len() as u32;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
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

    /// Reference values of murmur3_x86_32 with seed 0.
    #[test]
    fn the_hash_is_murmur3() {
        assert_eq!(murmur3_32(b""), 0);
        assert_eq!(murmur3_32(b"test"), 0xba6b_d213);
        assert_eq!(murmur3_32(b"Hello, world!"), 0xc036_3e43);
        assert_eq!(
            murmur3_32(b"The quick brown fox jumps over the lazy dog"),
            0x2e4f_f723
        );
        assert_eq!(key_hash(b""), 1);
        assert_eq!(key_hash(b"test"), 0xd213);
    }
}
