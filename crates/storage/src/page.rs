//! A buffer whose memory starts on a 4 KiB border, made without unsafe code.

/// Bytes of a page: unit of every offset and length on disk.
pub const PAGE_BYTES: usize = 4096;

/// Bytes whose start is 4 KiB aligned, as O_DIRECT asks for (`spec/runtime.md` 2.4).
///
/// It is a `Vec` a page longer than needed, and the place in it where the first border lies, so it
/// can be taken apart and put together again without copying.
#[derive(Debug, Default)]
pub struct PageBuf {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl PageBuf {
    /// A zeroed buffer of `len` bytes.
    #[must_use]
    pub fn new(len: usize) -> PageBuf {
        let bytes = vec![0; len + PAGE_BYTES];
        let start = bytes.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        PageBuf { bytes, start, len }
    }

    /// Puts a buffer together from what [`PageBuf::into_parts`] gave, or from another buffer of the
    /// same shape.
    ///
    /// # Panics
    /// If `start + len` lies behind the end of `bytes`.
    #[must_use]
    pub fn from_parts(bytes: Vec<u8>, start: usize, len: usize) -> PageBuf {
        assert!(
            start + len <= bytes.len(),
            "the window must lie within the bytes"
        );
        PageBuf { bytes, start, len }
    }

    /// The memory, where the window starts in it, and the window's length, in bytes.
    #[must_use]
    pub fn into_parts(self) -> (Vec<u8>, usize, usize) {
        (self.bytes, self.start, self.len)
    }

    /// Length of the window, in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the window is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Largest window this buffer can have, in bytes.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// The bytes of the window.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes of the window.
    #[must_use]
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    /// Sets the window's length; grows the memory (and then copies) only if it is too short.
    pub(crate) fn set_len(&mut self, len: usize) {
        if len > self.capacity() {
            let mut longer = PageBuf::new(len.next_power_of_two());
            longer.len = self.len;
            longer.as_mut_slice().copy_from_slice(self.as_slice());
            *self = longer;
        }
        self.len = len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_starts_on_a_page_border_and_survives_growth_and_parts() {
        let mut buffer = PageBuf::new(PAGE_BYTES);
        buffer.as_mut_slice().fill(7);
        buffer.set_len(5 * PAGE_BYTES);
        assert_eq!(buffer.as_slice().as_ptr().align_offset(PAGE_BYTES), 0);
        assert!(
            buffer.as_slice()[..PAGE_BYTES]
                .iter()
                .all(|&byte| byte == 7)
        );
        let (bytes, start, len) = buffer.into_parts();
        let again = PageBuf::from_parts(bytes, start, len);
        assert_eq!(again.as_slice().as_ptr().align_offset(PAGE_BYTES), 0);
        assert_eq!(again.len(), 5 * PAGE_BYTES);
    }
}
