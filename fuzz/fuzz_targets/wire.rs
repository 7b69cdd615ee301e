//! The wire protocol from any bytes.
//!
//! The first byte of an input chooses what the rest is: a stream as it came from a socket, the envelope
//! of a command, changes to a recorded frame, the covered part of an entry, or the payload of a batch.
//!
//! Oracles: no panic; a frame cut anywhere asks for more, or fails as the whole does; decode, encode,
//! decode gives the same command; what an entry says to store ends as the content does; a batch is never
//! longer than its bytes.
#![cfg_attr(fuzzing, no_main)]

#[cfg(all(test, not(fuzzing)))]
#[expect(dead_code, reason = "nothing was found here yet")]
mod inputs;

use std::sync::LazyLock;

use pelton_wire::{
    Batch, Command, Entry, ProtocolError, Split, checksum_of, encode_before, encode_entry_before,
    split,
};

/// Small, so that inputs reach it.
const FRAME_BYTES_MAX: u32 = 2_000;

/// One frame of each command, to begin with.
static RECORDED: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let lines = include_str!("../../crates/wire/tests/data/every_field.tsv").lines();
    lines
        .filter(|line| !line.starts_with('#'))
        .map(recorded)
        .collect()
});

fn recorded(line: &str) -> Vec<u8> {
    let text = line.rsplit('\t').next().unwrap_or_default();
    let byte = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(byte).collect()
}

fn check(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else {
        return;
    };
    match kind % 5 {
        0 => stream(rest),
        1 => stream(&framed(rest)),
        2 => stream(&changed(rest)),
        3 => entry(&[&checksum_of(rest), rest].concat()),
        _ => batch(rest),
    }
}

fn framed(envelope: &[u8]) -> Vec<u8> {
    let bytes = u32::try_from(envelope.len()).expect("inputs are small");
    let lengths = [(bytes + 4).to_be_bytes(), bytes.to_be_bytes()];
    [lengths.as_flattened(), envelope].concat()
}

/// A recorded frame of which each pair of bytes, place and value, changes one; its lengths stay.
fn changed(changes: &[u8]) -> Vec<u8> {
    let Some((which, changes)) = changes.split_first() else {
        return Vec::new();
    };
    let mut frame = RECORDED[usize::from(*which) % RECORDED.len()].clone();
    for [place, value] in changes.as_chunks().0 {
        let places = frame.len() - 8;
        frame[8 + usize::from(*place) % places] = *value;
    }
    frame
}

fn stream(mut received: &[u8]) {
    loop {
        match split(received, FRAME_BYTES_MAX) {
            Ok(Split::Whole { frame, bytes }) => {
                cut(&received[..bytes], None);
                stable(frame.command, frame.content);
                entry(frame.content);
                received = &received[bytes..];
            }
            Ok(Split::Partial { bytes_needed }) => {
                assert!(bytes_needed > received.len());
                assert!(bytes_needed <= 4 + FRAME_BYTES_MAX as usize);
                return;
            }
            Err(error) => return cut(received, Some(error)),
        }
    }
}

/// Fewer bytes never say something else than all of them.
fn cut(frame: &[u8], expected: Option<ProtocolError>) {
    for length in [
        1,
        4,
        7,
        8,
        9,
        frame.len() / 2,
        frame.len().saturating_sub(1),
    ] {
        match frame.get(..length).map(|part| split(part, FRAME_BYTES_MAX)) {
            Some(Ok(Split::Whole { .. })) => panic!("{length} of {} bytes", frame.len()),
            Some(Err(error)) => assert_eq!(Some(error), expected),
            Some(Ok(Split::Partial { .. })) | None => {}
        }
    }
}

fn stable(command: Command<'_>, content: &[u8]) {
    let once = encoded(command, content);
    let Ok(Split::Whole { frame, bytes }) = split(&once, u32::MAX) else {
        panic!("what was encoded is not a frame: {command:?}");
    };
    assert_eq!((bytes, frame.content), (once.len(), content));
    // Compared as bytes, because a rate may be no number.
    assert_eq!(encoded(frame.command, content), once, "{command:?}");
}

fn encoded(command: Command<'_>, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_before(command, content.len(), &mut out);
    out.extend_from_slice(content);
    out
}

fn entry(content: &[u8]) {
    let Ok(entry) = Entry::received(content) else {
        return;
    };
    assert!(content.ends_with(entry.stored) && entry.stored.ends_with(entry.payload));
    let again = Entry::trusted(entry.stored).expect("it was understood before");
    assert_eq!(
        (again.metadata, again.payload),
        (entry.metadata, entry.payload)
    );
    let mut built = Vec::new();
    encode_entry_before(&entry.metadata, entry.payload, &mut built);
    built.extend_from_slice(entry.payload);
    let built = Entry::received(&built).expect("we made it");
    assert_eq!(
        (built.metadata, built.payload),
        (entry.metadata, entry.payload)
    );
    assert!(entry.metadata.message_count() >= 1);
    let _ = entry.metadata.routing_key();
    batch(entry.payload);
}

fn batch(payload: &[u8]) {
    let count = Batch::new(payload, u32::MAX).count();
    // Each has a length and a size at least; the last one found may be an error.
    assert!(count <= payload.len() / 6 + 1);
}

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| check(data));

/// Runs the check over the given files: a finding under a debugger, without libFuzzer.
#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        check(&std::fs::read(path)?);
    }
    Ok(())
}

#[cfg(all(test, not(fuzzing)))]
mod tests {
    #[test]
    fn any_bytes_are_refused_or_understood_on_generated_inputs() {
        crate::inputs::each(30_000, 300, super::check);
    }
}
