//! The hash of a key (rule D82).

/// What an entry is routed by: murmur3 of its key (x86, 32 bit, seed 0) with the top bit cleared,
/// modulo 65,536, where 0 becomes 1. So 0 is free to mean "no key" where a hash is stored.
///
/// Source: the hash of Pulsar's Key_Shared subscriptions, so that the same key is the same number
/// whichever client wrote it.
#[must_use]
pub fn key_hash(key: &[u8]) -> u16 {
    fold(murmur3_32(key))
}

/// The hash of an entry without a key: that of "`producer_name`-`sequence`".
#[must_use]
pub fn unkeyed_hash(producer_name: &str, sequence: u64) -> u16 {
    let mut hash = Murmur3::default();
    hash.write(producer_name.as_bytes());
    hash.write(b"-");
    hash.write_decimal(sequence);
    fold(hash.finish())
}

/// Murmur3 (x86, 32 bit, seed 0) of all of `bytes`.
#[must_use]
pub fn murmur3_32(bytes: &[u8]) -> u32 {
    let mut hash = Murmur3::default();
    hash.write(bytes);
    hash.finish()
}

/// The low 16 bit are the remainder by 65,536, with the top bit or without.
pub(super) fn fold(hash: u32) -> u16 {
    ((hash & 0xffff) as u16).max(1)
}

/// Murmur3 of what is written in parts, without joining the parts first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Murmur3 {
    hash: u32,
    /// Bytes that do not fill a word yet.
    tail: [u8; 4],
    tail_bytes: usize,
    /// Modulo 2^32, as the algorithm takes it.
    bytes: u32,
}

impl Murmur3 {
    /// Adds a part.
    pub fn write(&mut self, mut part: &[u8]) {
        self.bytes = self.bytes.wrapping_add(part.len() as u32);
        if self.tail_bytes > 0 {
            let fill = part.len().min(4 - self.tail_bytes);
            self.tail[self.tail_bytes..self.tail_bytes + fill].copy_from_slice(&part[..fill]);
            self.tail_bytes += fill;
            part = &part[fill..];
            if self.tail_bytes < 4 {
                return;
            }
            self.mix(self.tail);
        }
        let (words, rest) = part.as_chunks::<4>();
        for word in words {
            self.mix(*word);
        }
        self.tail = [0; 4];
        self.tail[..rest.len()].copy_from_slice(rest);
        self.tail_bytes = rest.len();
    }

    /// Adds a number as its decimal digits.
    pub fn write_decimal(&mut self, mut number: u64) {
        let mut digits = [0u8; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        self.write(&digits[first..]);
    }

    /// The hash of what was written.
    #[must_use]
    pub fn finish(&self) -> u32 {
        let mut hash = self.hash;
        if self.tail_bytes > 0 {
            hash ^= scramble(self.tail);
        }
        hash ^= self.bytes;
        hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
        hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
        hash ^ (hash >> 16)
    }

    fn mix(&mut self, word: [u8; 4]) {
        self.hash = (self.hash ^ scramble(word))
            .rotate_left(13)
            .wrapping_mul(5)
            .wrapping_add(0xe654_6b64);
    }
}

fn scramble(word: [u8; 4]) -> u32 {
    u32::from_le_bytes(word)
        .wrapping_mul(0xcc9e_2d51)
        .rotate_left(15)
        .wrapping_mul(0x1b87_3593)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn t35_hashes_are_pulsars() {
        for (key, hash) in [
            ("a", 27_058),
            ("key-0", 63_679),
            ("key-1", 5_536),
            ("key-2", 21_772),
            ("order-42", 41_358),
            ("hello", 64_071),
            ("", 1),
        ] {
            assert_eq!(key_hash(key.as_bytes()), hash, "{key:?}");
        }
    }

    /// Reference values of `murmur3_x86_32` with seed 0.
    #[test]
    fn the_hash_is_murmur3() {
        assert_eq!(murmur3_32(b""), 0);
        assert_eq!(murmur3_32(b"test"), 0xba6b_d213);
        assert_eq!(murmur3_32(b"Hello, world!"), 0xc036_3e43);
        assert_eq!(
            murmur3_32(b"The quick brown fox jumps over the lazy dog"),
            0x2e4f_f723
        );
        assert_eq!(fold(0x1234_0000), 1);
        assert_eq!(fold(0xffff_ffff), 65_535);
    }

    #[test]
    fn d82_without_a_key_the_producer_and_sequence_are_it() {
        for sequence in [0, 7, 10, 1_234_567, u64::MAX] {
            let joined = format!("orders-{sequence}");
            assert_eq!(
                unkeyed_hash("orders", sequence),
                key_hash(joined.as_bytes())
            );
        }
    }

    proptest! {
        #[test]
        fn parts_hash_as_the_whole(parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..8)) {
            let mut hash = Murmur3::default();
            for part in &parts {
                hash.write(part);
            }
            prop_assert_eq!(hash.finish(), murmur3_32(&parts.concat()));
        }
    }
}
