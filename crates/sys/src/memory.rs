//! Memory for the disk: 4 KiB aligned, one owner at a time, moved by value.

use std::fmt;

/// The alignment of every buffer, in bytes: at least what any file asks of O_DIRECT (runtime 2.4).
pub const MEMORY_ALIGN: usize = 4096;

/// A piece of memory whose first byte sits on a 4 KiB border.
///
/// It is a `Vec<u8>` of which a part is used, so that a layer without `unsafe` can hold the same
/// thing: [`Memory::into_parts`] and [`Memory::from_parts`] convert without a copy. An operation
/// takes it by value and its completion gives it back; between the two nobody can touch it.
pub struct Memory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Memory {
    /// `len` bytes of zeros, aligned. The pages are touched by whoever uses them first.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let bytes = vec![0; len + MEMORY_ALIGN - 1];
        let start = bytes.as_ptr().align_offset(MEMORY_ALIGN);
        // `align_offset` may decline to answer; then the memory is usable, only not aligned.
        let start = if start < MEMORY_ALIGN { start } else { 0 };
        Self { bytes, start, len }
    }

    /// Memory of parts that another owner kept: `len` bytes from `start` of `bytes`.
    ///
    /// Panics if the range is not inside `bytes`.
    #[must_use]
    pub fn from_parts(bytes: Vec<u8>, start: usize, len: usize) -> Self {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= bytes.len()),
            "{start} + {len} lies outside of {} bytes",
            bytes.len()
        );
        Self { bytes, start, len }
    }

    /// The parts: all bytes, where the aligned part starts, and how long it is.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, usize, usize) {
        (self.bytes, self.start, self.len)
    }

    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it starts on a border of `align` bytes (a power of two).
    #[must_use]
    pub fn is_aligned(&self, align: usize) -> bool {
        (self.as_slice().as_ptr() as usize).is_multiple_of(align.max(1))
    }

    /// Its bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// Its bytes, to write.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::{MEMORY_ALIGN, Memory};

    #[test]
    fn every_length_starts_on_a_page_border_and_survives_the_parts() {
        for len in [0, 1, 511, 4096, 262_144] {
            let mut memory = Memory::new(len);
            assert!(memory.is_aligned(MEMORY_ALIGN));
            memory.as_mut_slice().fill(7);
            let (bytes, start, length) = memory.into_parts();
            let memory = Memory::from_parts(bytes, start, length);
            assert!(memory.is_aligned(MEMORY_ALIGN));
            assert!(memory.as_slice().iter().all(|byte| *byte == 7));
            assert_eq!(memory.len(), len);
        }
    }

    #[test]
    #[should_panic(expected = "lies outside")]
    fn parts_outside_of_the_bytes_are_refused() {
        let _ = Memory::from_parts(vec![0; 8], 4, 5);
    }
}
