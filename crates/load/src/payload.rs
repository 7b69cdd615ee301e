//! What a message of the load carries: who sent it, as which one, under which key and when it was due.

/// Bytes of a [`Header`] in front of every payload; no message of the load is smaller.
pub const HEADER_BYTES: usize = 24;

/// The first [`HEADER_BYTES`] of a payload, little-endian in the order of the fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Index of the producer in the run.
    pub producer: u32,
    /// Index of the key in the run; order is checked per key. A producer without keys has one.
    pub key: u32,
    /// The producer's number for this message: 0, 1, 2 and so on.
    pub sequence: u64,
    /// When the schedule wanted it sent, monotonic nanoseconds of the engine's clock.
    pub intended_ns: u64,
}

impl Header {
    /// Writes it over the first [`HEADER_BYTES`] of `payload`.
    ///
    /// # Panics
    /// If `payload` is shorter.
    #[inline]
    pub fn write(&self, payload: &mut [u8]) {
        let header: &mut [u8; HEADER_BYTES] = (&mut payload[..HEADER_BYTES])
            .try_into()
            .expect("the slice has this length");
        header[0..4].copy_from_slice(&self.producer.to_le_bytes());
        header[4..8].copy_from_slice(&self.key.to_le_bytes());
        header[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        header[16..24].copy_from_slice(&self.intended_ns.to_le_bytes());
    }

    /// Reads it back; `None` if `payload` is too short to be one of ours.
    #[inline]
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<Header> {
        let header: &[u8; HEADER_BYTES] = payload.first_chunk()?;
        let [p0, p1, p2, p3, k0, k1, k2, k3, rest @ ..] = *header;
        let (sequence, intended) = rest.split_first_chunk::<8>()?;
        Some(Header {
            producer: u32::from_le_bytes([p0, p1, p2, p3]),
            key: u32::from_le_bytes([k0, k1, k2, k3]),
            sequence: u64::from_le_bytes(*sequence),
            intended_ns: u64::from_le_bytes(intended.try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_back_as_it_was_written_and_leaves_the_rest_alone() {
        let header = Header {
            producer: 7,
            key: u32::MAX,
            sequence: u64::MAX - 1,
            intended_ns: 1 << 63,
        };
        let mut payload = [0xAB; 32];
        header.write(&mut payload);
        assert_eq!(Header::read(&payload), Some(header));
        assert_eq!(payload[HEADER_BYTES..], [0xAB; 8]);
    }

    #[test]
    fn a_payload_that_is_too_short_is_not_ours() {
        assert_eq!(Header::read(&[0; HEADER_BYTES - 1]), None);
        assert_eq!(Header::read(&[]), None);
    }
}
