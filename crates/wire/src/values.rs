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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MessageId, message::Message};

    /// The message that these fields are.
    fn read(fields: &[u8]) -> Result<MessageId<'_>, ProtocolError> {
        MessageId::read_fields(&mut Reader::new(fields))
    }

    fn ack_set(fields: &[u8]) -> Vec<i64> {
        let id = [&[0x08, 1, 0x10, 1][..], fields].concat();
        read(&id)
            .expect("a message id")
            .ack_set
            .into_iter()
            .collect()
    }

    #[test]
    fn repeated_numbers_come_one_by_one_or_packed_or_both() {
        assert_eq!(ack_set(&[]), []);
        assert_eq!(ack_set(&[0x28, 1, 0x28, 2]), [1, 2]);
        assert_eq!(ack_set(&[0x2a, 3, 1, 0x80, 1]), [1, 128]);
        assert_eq!(ack_set(&[0x2a, 0]), []);
        let minus_one = [0x28, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        let both = [&[0x28, 9, 0x2a, 2, 8, 7][..], &minus_one].concat();
        assert_eq!(ack_set(&both), [9, 8, 7, -1]);
    }

    #[test]
    fn other_fields_in_between_do_not_matter() {
        // Ledger again, an unknown field, batch size: between the values and behind them.
        assert_eq!(
            ack_set(&[0x28, 1, 0x08, 5, 0x28, 2, 0x7a, 1, 0, 0x30, 4]),
            [1, 2]
        );
    }

    #[test]
    fn bad_values_are_found_when_the_message_is_decoded() {
        let id = |field: &[u8]| [&[0x08, 1, 0x10, 1][..], field].concat();
        let malformed = |field: &[u8]| read(&id(field)).map(|_| ());
        let error = |malformed: Malformed| Err(malformed.into());
        assert_eq!(
            malformed(&[0x2a, 2, 1, 0x80]),
            error(Malformed::VarintCutOff)
        );
        assert_eq!(malformed(&[0x28]), error(Malformed::VarintCutOff));
        assert_eq!(malformed(&[0x2d, 1, 2, 3, 4]), error(Malformed::FieldType));
        // An id within the id that lacks its entry.
        let missing = Err(ProtocolError::Missing("MessageId.entry_id"));
        assert_eq!(malformed(&[0x3a, 2, 0x08, 1]), missing);
    }

    #[test]
    fn of_a_field_that_is_there_twice_the_last_counts() {
        let id = read(&[0x08, 1, 0x10, 2, 0x08, 3, 0x18, 4, 0x18, 5]).expect("a message id");
        assert_eq!((id.ledger_id, id.entry_id, id.partition()), (3, 2, 5));
    }

    #[test]
    fn listed_and_received_values_are_the_same() {
        let id = MessageId {
            ack_set: Values::new(&[1, -1]),
            first_chunk_message_id: Values::new(&[MessageId::LATEST]),
            ..MessageId::EARLIEST
        };
        let mut fields = Vec::new();
        id.write_fields(&mut fields);
        let received = read(&fields).expect("a message id");
        assert_eq!(received, id);
        assert_eq!(format!("{received:?}"), format!("{id:?}"));
        assert_ne!(received.ack_set, Values::new(&[1]));
    }
}
