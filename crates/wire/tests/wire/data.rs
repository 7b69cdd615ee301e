//! The recordings in `tests/data`, one item a line, columns between tabs, frames in hexadecimal.

use pelton_wire::{
    Command, Frame, MESSAGE_BYTES_MAX, Split, encode_before, frame_bytes_max, split,
};

/// The limit that holds while clients are told 5 MiB.
pub(crate) const FRAME_BYTES_MAX: u32 = frame_bytes_max(MESSAGE_BYTES_MAX);

/// A recorded frame, or all frames of one direction of a connection.
pub(crate) struct Recorded {
    /// Who recorded what: the columns in front.
    pub(crate) about: Vec<&'static str>,
    pub(crate) bytes: Vec<u8>,
}

pub(crate) fn transcripts() -> Vec<Recorded> {
    read(include_str!("../data/transcripts.tsv"))
}

pub(crate) fn connections() -> Vec<Recorded> {
    read(include_str!("../data/connections.tsv"))
}

pub(crate) fn every_field() -> Vec<Recorded> {
    read(include_str!("../data/every_field.tsv"))
}

fn read(file: &'static str) -> Vec<Recorded> {
    let lines = file.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut about: Vec<_> = line.split('\t').collect();
            let bytes = from_hex(about.pop().expect("a line has columns"));
            Recorded { about, bytes }
        })
        .collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// The frame that `bytes` are, all of them.
pub(crate) fn whole(bytes: &[u8]) -> Frame<'_> {
    match split(bytes, FRAME_BYTES_MAX) {
        Ok(Split::Whole { frame, bytes: n }) if n == bytes.len() => frame,
        other => panic!("{} bytes: {other:?}", bytes.len()),
    }
}

/// All frames of a stream.
pub(crate) fn frames(mut stream: &[u8]) -> Vec<Frame<'_>> {
    let mut frames = Vec::new();
    while !stream.is_empty() {
        match split(stream, FRAME_BYTES_MAX) {
            Ok(Split::Whole { frame, bytes }) => {
                frames.push(frame);
                stream = &stream[bytes..];
            }
            other => panic!("after {} frames: {other:?}", frames.len()),
        }
    }
    frames
}

/// The frame of a command and its content.
pub(crate) fn encoded(command: Command<'_>, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_before(command, content.len(), &mut out);
    out.extend_from_slice(content);
    out
}
