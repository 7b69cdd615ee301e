//! How a message is declared: a table of its fields, from which its type, decoding and encoding follow.

use crate::{
    error::ProtocolError,
    protobuf::{Reader, Value},
};

/// A message: its fields without a length in front.
pub(crate) trait Message<'a>: Value<'a> {
    /// Reads to the end of `reader`.
    fn read_fields(reader: &mut Reader<'a>) -> Result<Self, ProtocolError>;

    /// Appends the fields that are there.
    fn write_fields(&self, out: &mut Vec<u8>);
}

/// Declares a message: a line for each field, in rising order of its number, like a `.proto` file.
///
/// `required` is a plain value whose absence is an error, `optional` an `Option` (with a default also
/// a method of its name), `repeated` a [`Values`]. Fields it does not know are skipped.
macro_rules! message {
    ($(#[$meta:meta])* $name:ident<$life:lifetime> { $($fields:tt)* }) => {
        message! { @impl [$(#[$meta])*] $name [$name<$life>] $life { $($fields)* } }
    };
    ($(#[$meta:meta])* $name:ident { $($fields:tt)* }) => {
        message! { @impl [$(#[$meta])*] $name [$name] 'a { $($fields)* } }
    };
    (@impl [$($meta:tt)*] $name:ident [$($self:tt)*] $life:lifetime {
        $($(#[$doc:meta])* $number:literal $label:ident $field:ident: $type:ty $(= $default:expr)?,)*
    }) => {
        $($meta)*
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        pub struct $($self)* {
            $(
                $(#[$doc])*
                #[doc = concat!("\n\nField ", $number, ", ", stringify!($label), ".")]
                pub $field: $crate::message::labelled!($life $label $type),
            )*
        }

        message! { @defaults $life [$($self)*] $($([$field: $type = $default])?)* }

        impl<$life> $crate::message::Message<$life> for $($self)* {
            #[allow(unused_mut, unused_variables, reason = "PING and PONG have no fields")]
            #[inline]
            fn read_fields(
                reader: &mut $crate::protobuf::Reader<$life>,
            ) -> Result<Self, $crate::error::ProtocolError> {
                #[derive(Default)]
                struct Slots<$life> {
                    $($field: <$crate::message::labelled!($life $label $type) as $crate::values::Field<$life>>::Slot,)*
                    of: std::marker::PhantomData<&$life ()>,
                }
                let mut slots = Slots::default();
                loop {
                    let fields = reader.rest();
                    let Some(key) = reader.field()? else { break };
                    match key.0 {
                        $($number => <$crate::message::labelled!($life $label $type) as $crate::values::Field<$life>>::meet(
                            &mut slots.$field, key, fields, reader,
                        )?,)*
                        _ => reader.skip(key.1)?,
                    }
                }
                Ok(Self {
                    $($field: $crate::values::Field::settle(
                        slots.$field,
                        concat!(stringify!($name), ".", stringify!($field)),
                    )?,)*
                })
            }

            #[allow(unused_variables, reason = "PING and PONG have no fields")]
            #[inline]
            fn write_fields(&self, out: &mut Vec<u8>) {
                $($crate::values::Field::put(&self.$field, $number, out);)*
            }
        }

        impl<$life> $crate::protobuf::Value<$life> for $($self)* {
            const LAYOUT: $crate::protobuf::Layout = $crate::protobuf::Layout::Bytes;

            #[inline]
            fn read(
                reader: &mut $crate::protobuf::Reader<$life>,
            ) -> Result<Option<Self>, $crate::error::ProtocolError> {
                use $crate::message::Message;
                Self::read_fields(&mut reader.nested()?).map(Some)
            }

            #[inline]
            fn write(&self, out: &mut Vec<u8>) {
                $crate::protobuf::put_sized(out, |out| {
                    $crate::message::Message::write_fields(self, out);
                });
            }
        }
    };
    (@defaults $life:lifetime [$($self:tt)*]) => {};
    (@defaults $life:lifetime [$($self:tt)*] $([$field:ident: $type:ty = $default:expr])+) => {
        impl<$life> $($self)* {
            $(
                #[doc = concat!("`", stringify!($field), "`, ", stringify!($default), " if absent.")]
                #[must_use]
                #[inline]
                pub fn $field(&self) -> $type {
                    self.$field.unwrap_or($default)
                }
            )+
        }
    };
}

/// The type of a field.
macro_rules! labelled {
    ($life:lifetime required $type:ty) => { $type };
    ($life:lifetime optional $type:ty) => { Option<$type> };
    ($life:lifetime repeated $type:ty) => { $crate::values::Values<$life, $type> };
}

/// Declares a closed enum with the numbers of the protocol; the first is the default. A number that is
/// not among them counts as an unknown field.
macro_rules! numbered {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            #[default]
            $($(#[$doc])* #[doc = concat!("\n\nNumber ", $number, ".")] $variant = $number,)+
        }

        impl $name {
            /// The one with that number.
            #[must_use]
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl $crate::protobuf::Value<'_> for $name {
            const LAYOUT: $crate::protobuf::Layout = $crate::protobuf::Layout::Varint;

            #[inline]
            fn read(
                reader: &mut $crate::protobuf::Reader<'_>,
            ) -> Result<Option<Self>, $crate::error::ProtocolError> {
                Ok(Self::from_number(reader.varint()? as i32))
            }

            #[inline]
            fn write(&self, out: &mut Vec<u8>) {
                $crate::protobuf::put_varint(*self as u64, out);
            }
        }
    };
}

pub(crate) use {labelled, message, numbered};
