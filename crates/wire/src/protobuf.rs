//! The protobuf encoding: varints, fields, and what a field can hold.
//!
//! Own code and not a library because everything borrows from the receive buffer, absent is told
//! from default, a required field that is missing is an error, and nothing is allocated.
//! Source: <https://protobuf.dev/programming-guides/encoding/>.

use crate::error::{Malformed, ProtocolError};

/// Messages within messages, the command included. Source: wire spec 9.
const DEPTH_MAX: u8 = 8;

/// Bytes of the longest varint.
const VARINT_BYTES_MAX: usize = 10;

/// How the value of a field is laid out. Groups (3, 4) died with protobuf 1; nobody sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Varint,
    Fixed64,
    Bytes,
    Fixed32,
}

/// Reads the fields of one message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    depth: u8,
}

impl<'a> Reader<'a> {
    /// Of an outermost message.
    #[inline]
    pub(crate) fn new(message: &'a [u8]) -> Self {
        let (rest, depth) = (message, 1);
        Self { rest, depth }
    }

    /// What is not read yet.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Number and layout of the next field; nothing at the end of the message.
    #[inline]
    pub(crate) fn field(&mut self) -> Result<Option<(u32, Layout)>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let layout = match key & 7 {
            0 => Layout::Varint,
            1 => Layout::Fixed64,
            2 => Layout::Bytes,
            5 => Layout::Fixed32,
            _ => return Err(Malformed::Layout),
        };
        match u32::try_from(key >> 3) {
            Ok(number @ 1..=0x1FFF_FFFF) => Ok(Some((number, layout))),
            _ => Err(Malformed::FieldNumber),
        }
    }

    /// A varint. Of a tenth byte only the lowest bit counts, as in other implementations.
    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Malformed> {
        match self.rest {
            // Most are one byte: field keys, small ids, flags.
            [byte @ 0..0x80, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for (i, byte) in self.rest.iter().take(VARINT_BYTES_MAX).enumerate() {
            value |= u64::from(byte & 0x7F) << (7 * i);
            if byte & 0x80 == 0 {
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(if self.rest.len() < VARINT_BYTES_MAX {
            Malformed::VarintCutOff
        } else {
            Malformed::VarintTooLong
        })
    }

    #[inline]
    fn take(&mut self, bytes: u64) -> Result<&'a [u8], Malformed> {
        let taken = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| self.rest.split_at_checked(bytes));
        let (taken, rest) = taken.ok_or(Malformed::FieldCutOff)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The bytes of a field of that layout.
    #[inline]
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let bytes = self.varint()?;
        self.take(bytes)
    }

    fn fixed64(&mut self) -> Result<u64, Malformed> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("8 were taken")))
    }

    /// A reader of the message in this field.
    #[inline]
    pub(crate) fn nested(&mut self) -> Result<Self, Malformed> {
        let (depth, rest) = (self.depth + 1, self.bytes()?);
        if depth > DEPTH_MAX {
            return Err(Malformed::Depth);
        }
        Ok(Self { rest, depth })
    }

    /// Passes over a value.
    #[inline]
    pub(crate) fn skip(&mut self, layout: Layout) -> Result<(), Malformed> {
        match layout {
            Layout::Varint => self.varint().map(drop),
            Layout::Fixed64 => self.take(8).map(drop),
            Layout::Bytes => self.bytes().map(drop),
            Layout::Fixed32 => self.take(4).map(drop),
        }
    }
}

/// Appends a varint of the fewest bytes.
#[inline]
pub(crate) fn put_varint(value: u64, out: &mut Vec<u8>) {
    if value < 0x80 {
        out.push(value as u8);
    } else {
        put_long_varint(value, out);
    }
}

fn put_long_varint(mut value: u64, out: &mut Vec<u8>) {
    let mut bytes = [0; VARINT_BYTES_MAX];
    for (at, byte) in bytes.iter_mut().enumerate() {
        if value < 0x80 {
            *byte = value as u8;
            out.extend_from_slice(&bytes[..=at]);
            return;
        }
        *byte = value as u8 | 0x80;
        value >>= 7;
    }
}

/// Appends number and layout of a field.
#[inline]
pub(crate) fn put_key(number: u32, layout: Layout, out: &mut Vec<u8>) {
    let layout = match layout {
        Layout::Varint => 0,
        Layout::Fixed64 => 1,
        Layout::Bytes => 2,
        Layout::Fixed32 => 5,
    };
    put_varint(u64::from(number) << 3 | layout, out);
}

/// Appends what `fill` appends, with its length in front.
#[inline]
pub(crate) fn put_sized(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    // A byte is room for 127, which is nearly always enough; else what was appended moves up.
    let start = out.len();
    out.push(0);
    fill(out);
    let bytes = out.len() - start - 1;
    if bytes < 0x80 {
        out[start] = bytes as u8;
    } else {
        let mut length = Vec::with_capacity(VARINT_BYTES_MAX);
        put_varint(bytes as u64, &mut length);
        out.splice(start..=start, length);
    }
}

/// What one field can hold: numbers, truth, text, bytes, and the enums and messages of this crate.
pub(crate) trait Value<'a>: Copy {
    /// The layout it is written in.
    const LAYOUT: Layout;

    /// Reads one. Nothing: a number that an enum does not have, which counts as an unknown field.
    fn read(reader: &mut Reader<'a>) -> Result<Option<Self>, ProtocolError>;

    /// Appends it, without the key.
    fn write(&self, out: &mut Vec<u8>);
}

/// Implements [`Value`] for numbers that are a varint.
macro_rules! varints {
    ($($type:ty: $value:ident => $from:expr, $to:expr;)*) => { $(
        impl Value<'_> for $type {
            const LAYOUT: Layout = Layout::Varint;

            #[inline]
            fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ProtocolError> {
                let $value = reader.varint()?;
                Ok(Some($from))
            }

            #[inline]
            fn write(&self, out: &mut Vec<u8>) {
                let $value = *self;
                put_varint($to, out);
            }
        }
    )* };
}

// Too large a number loses its upper bits, and a negative one is written in 10 bytes: both as the
// encoding has it.
varints! {
    u64: value => value, value;
    i64: value => value.cast_signed(), value.cast_unsigned();
    u32: value => value as u32, u64::from(value);
    i32: value => value as i32, i64::from(value).cast_unsigned();
    bool: value => value != 0, u64::from(value);
}

impl Value<'_> for f64 {
    const LAYOUT: Layout = Layout::Fixed64;

    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, ProtocolError> {
        Ok(Some(Self::from_bits(reader.fixed64()?)))
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.to_bits().to_le_bytes());
    }
}

impl<'a> Value<'a> for &'a [u8] {
    const LAYOUT: Layout = Layout::Bytes;

    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Option<Self>, ProtocolError> {
        Ok(Some(reader.bytes()?))
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        put_varint(self.len() as u64, out);
        out.extend_from_slice(self);
    }
}

impl<'a> Value<'a> for &'a str {
    const LAYOUT: Layout = Layout::Bytes;

    #[inline]
    fn read(reader: &mut Reader<'a>) -> Result<Option<Self>, ProtocolError> {
        let text = std::str::from_utf8(reader.bytes()?);
        text.map(Some).map_err(|_| Malformed::Text.into())
    }

    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        self.as_bytes().write(out);
    }
}
