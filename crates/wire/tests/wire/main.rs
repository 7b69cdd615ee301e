//! The protocol against what real clients sent, against an independent encoder, and against bytes that
//! nobody should send.
#![forbid(unsafe_code)]

mod clients;
mod data;
mod every_field;
mod hostile;
mod round_trip;
