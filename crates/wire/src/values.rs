//! Fields: how often one may be there, and those that may be there many times.

use crate::{
    error::{Malformed, ProtocolError},
    protobuf::{Layout, Reader, Value, put_key},
};

/// The values of a repeated field, in order: those of a slice, or those of a received message, which
/// are decoded while they are walked. Nothing is allocated for them.
#[derive(Clone, Copy)]
pub struct Values<'a, T>(Source<'a, T>);

#[derive(Clone, Copy)]
enum Source<'a, T> {
    Listed(&'a [T]),
    /// The fields of a message from the first of that number on. All of it has been decoded once, so
    /// decoding it again cannot fail.
    Encoded {
        fields: &'a [u8],
        number: u32,
    },
}

impl<'a, T> Values<'a, T> {
    /// No values.
    pub const NONE: Self = Self(Source::Listed(&[]));

    /// The values of `listed`.
    #[must_use]
    pub const fn new(listed: &'a [T]) -> Self {
        Self(Source::Listed(listed))
    }
}

impl<T> Default for Values<'_, T> {
    fn default() -> Self {
        Self::NONE
    }
}

impl<'a, T: Value<'a>> IntoIterator for Values<'a, T> {
    type Item = T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        Iter(match self.0 {
            Source::Listed(listed) => Walk::Listed(listed.iter()),
            Source::Encoded { fields, number } => Walk::Encoded {
                reader: Reader::new(fields),
                packed: Reader::new(&[]),
                number,
            },
        })
    }
}

impl<'a, T: Value<'a> + PartialEq> PartialEq for Values<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.into_iter().eq(*other)
    }
}

impl<'a, T: Value<'a> + std::fmt::Debug> std::fmt::Debug for Values<'a, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(*self).finish()
    }
}

/// Walks [`Values`].
#[derive(Clone, Debug)]
pub struct Iter<'a, T>(Walk<'a, T>);

#[derive(Clone, Debug)]
enum Walk<'a, T> {
    Listed(std::slice::Iter<'a, T>),
    Encoded {
        reader: Reader<'a>,
        /// What is left of the packed field last met.
        packed: Reader<'a>,
        number: u32,
    },
}

impl<'a, T: Value<'a>> Iterator for Iter<'a, T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match &mut self.0 {
            Walk::Listed(listed) => listed.next().copied(),
            Walk::Encoded {
                reader,
                packed,
                number,
            } => next_encoded(reader, packed, *number).expect("it has been decoded before"),
        }
    }
}

fn next_encoded<'a, T: Value<'a>>(
    reader: &mut Reader<'a>,
    packed: &mut Reader<'a>,
    wanted: u32,
) -> Result<Option<T>, ProtocolError> {
    loop {
        while !packed.rest().is_empty() {
            if let Some(value) = T::read(packed)? {
                return Ok(Some(value));
            }
        }
        match reader.field()? {
            None => return Ok(None),
            Some((number, layout)) if number != wanted => reader.skip(layout)?,
            Some((_, layout)) if layout == T::LAYOUT => {
                if let Some(value) = T::read(reader)? {
                    return Ok(Some(value));
                }
            }
            Some(_) => *packed = Reader::new(reader.bytes()?),
        }
    }
}

/// How often a field may be there: a value is required, `Option` is optional, [`Values`] is repeated.
pub(crate) trait Field<'a>: Copy {
    /// What is known of it while its message is read.
    type Slot: Default;

    /// Reads one occurrence. `fields` begins at its key.
    fn meet(
        slot: &mut Self::Slot,
        key: (u32, Layout),
        fields: &'a [u8],
        reader: &mut Reader<'a>,
    ) -> Result<(), ProtocolError>;

    /// The field when its message has ended.
    fn settle(slot: Self::Slot, name: &'static str) -> Result<Self, ProtocolError>;

    /// Appends it with its key, as often as it is there.
    fn put(&self, number: u32, out: &mut Vec<u8>);
}

impl<'a, T: Value<'a>> Field<'a> for T {
    type Slot = Option<T>;

    #[inline]
    fn meet(
        slot: &mut Option<T>,
        (_, layout): (u32, Layout),
        _: &'a [u8],
        reader: &mut Reader<'a>,
    ) -> Result<(), ProtocolError> {
        if layout != T::LAYOUT {
            return Err(Malformed::FieldType.into());
        }
        // The last one counts.
        *slot = T::read(reader)?.or(*slot);
        Ok(())
    }

    #[inline]
    fn settle(slot: Option<T>, name: &'static str) -> Result<T, ProtocolError> {
        slot.ok_or(ProtocolError::Missing(name))
    }

    #[inline]
    fn put(&self, number: u32, out: &mut Vec<u8>) {
        put_key(number, T::LAYOUT, out);
        self.write(out);
    }
}

impl<'a, T: Value<'a>> Field<'a> for Option<T> {
    type Slot = Self;

    #[inline]
    fn meet(
        slot: &mut Self,
        key: (u32, Layout),
        fields: &'a [u8],
        reader: &mut Reader<'a>,
    ) -> Result<(), ProtocolError> {
        T::meet(slot, key, fields, reader)
    }

    #[inline]
    fn settle(slot: Self, _: &'static str) -> Result<Self, ProtocolError> {
        Ok(slot)
    }

    #[inline]
    fn put(&self, number: u32, out: &mut Vec<u8>) {
        if let Some(value) = self {
            value.put(number, out);
        }
    }
}

impl<'a, T: Value<'a>> Field<'a> for Values<'a, T> {
    type Slot = Self;

    fn meet(
        slot: &mut Self,
        (number, layout): (u32, Layout),
        fields: &'a [u8],
        reader: &mut Reader<'a>,
    ) -> Result<(), ProtocolError> {
        // Numbers come one by one or packed.
        if layout == T::LAYOUT {
            T::read(reader)?;
        } else if layout == Layout::Bytes {
            let mut packed = reader.nested()?;
            while !packed.rest().is_empty() {
                T::read(&mut packed)?;
            }
        } else {
            return Err(Malformed::FieldType.into());
        }
        if let Source::Listed(_) = slot.0 {
            slot.0 = Source::Encoded { fields, number };
        }
        Ok(())
    }

    fn settle(slot: Self, _: &'static str) -> Result<Self, ProtocolError> {
        Ok(slot)
    }

    fn put(&self, number: u32, out: &mut Vec<u8>) {
        for value in *self {
            value.put(number, out);
        }
    }
}
