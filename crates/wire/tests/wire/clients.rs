//! What real clients sent: decoded, verified, and encoded again to the same bytes.

use pelton_wire::{
    Batch, Command, Compression, Entry, Split, checksum_of, commands::Sender, encode_entry_before,
    push_single, split,
};

use crate::data::{FRAME_BYTES_MAX, connections, encoded, frames, transcripts, whole};

#[test]
fn every_recorded_frame_is_its_command_and_encodes_to_the_same_bytes() {
    for recorded in transcripts() {
        let [from, direction, name] = recorded.about[..] else {
            panic!("three columns: {:?}", recorded.about);
        };
        let frame = whole(&recorded.bytes);
        assert_eq!(frame.command.name(), name, "{from}");
        let other = match direction {
            "C" => Sender::Server,
            _ => Sender::Client,
        };
        assert_ne!(frame.command.sender(), other, "{name}");
        assert_eq!(
            encoded(frame.command, frame.content),
            recorded.bytes,
            "{from}: {:?}",
            frame.command
        );
    }
}

#[test]
fn a_frame_cut_anywhere_is_partial_and_says_how_far_to_read() {
    for recorded in transcripts() {
        let all = &recorded.bytes;
        for cut in 0..all.len() {
            let Ok(Split::Partial { bytes_needed }) = split(&all[..cut], FRAME_BYTES_MAX) else {
                panic!("{:?} cut at {cut}", recorded.about);
            };
            let expected = match cut {
                ..4 => 4,
                4..8 => 8,
                _ => all.len(),
            };
            assert_eq!(bytes_needed, expected, "{:?} cut at {cut}", recorded.about);
        }
    }
}

#[test]
fn how_a_connection_is_cut_into_segments_changes_nothing() {
    for recorded in connections() {
        let expected = frames(&recorded.bytes);
        assert!(!expected.is_empty());
        for segment_bytes in [1, 2, 3, 7, 64, 1_000, recorded.bytes.len()] {
            let mut received = Vec::new();
            let mut next = expected.iter();
            for segment in recorded.bytes.chunks(segment_bytes) {
                received.extend_from_slice(segment);
                while let Ok(Split::Whole { frame, bytes }) = split(&received, FRAME_BYTES_MAX) {
                    assert_eq!(Some(&frame), next.next(), "segments of {segment_bytes}");
                    received.drain(..bytes);
                }
            }
            assert_eq!((next.next(), &received[..]), (None, &[][..]));
        }
    }
}

#[test]
fn whole_connections_encode_to_the_same_bytes() {
    for recorded in connections() {
        let again: Vec<u8> = frames(&recorded.bytes)
            .into_iter()
            .flat_map(|frame| encoded(frame.command, frame.content))
            .collect();
        assert_eq!(again, recorded.bytes, "{:?}", recorded.about);
    }
}

/// Counts of what the recordings contain, so that a test cannot pass by finding nothing.
#[derive(Debug, Default, PartialEq)]
struct Seen {
    entries: u32,
    messages: u32,
    batches: u32,
    compressed: u32,
    chunks: u32,
    delayed: u32,
    with_properties: u32,
}

#[test]
fn entries_of_real_clients_verify_and_can_be_built_again() {
    let mut seen = Seen::default();
    for recorded in connections() {
        for frame in frames(&recorded.bytes) {
            if !matches!(frame.command, Command::Send(_) | Command::Message(_)) {
                continue;
            }
            let entry = Entry::received(frame.content).expect("a client computed its checksum");
            assert_eq!(entry.stored, frame.content);
            assert_eq!(Entry::trusted(entry.stored), Ok(entry));
            assert_eq!(frame.content[..6], checksum_of(&entry.stored[6..]));
            assert_eq!(built(&entry), frame.content, "{:?}", entry.metadata);
            if matches!(frame.command, Command::Send(_)) {
                count(&entry, &mut seen);
            }
        }
    }
    let expected = Seen {
        entries: 21,
        messages: 94,
        batches: 3,
        compressed: 4,
        chunks: 3,
        delayed: 2,
        with_properties: 5,
    };
    assert_eq!(seen, expected);
}

/// The entry, made of what was decoded of it.
fn built(entry: &Entry<'_>) -> Vec<u8> {
    let compressed = entry.metadata.payload_compression() != Some(Compression::None);
    let mut payload = Vec::new();
    if entry.metadata.is_batch() && !compressed {
        for single in Batch::new(entry.payload, entry.metadata.message_count()) {
            let single = single.expect("a client made it");
            push_single(&single.metadata, single.payload, &mut payload);
        }
    } else {
        payload.extend_from_slice(entry.payload);
    }
    let mut out = Vec::new();
    encode_entry_before(&entry.metadata, &payload, &mut out);
    out.extend(payload);
    out
}

fn count(entry: &Entry<'_>, seen: &mut Seen) {
    let metadata = &entry.metadata;
    seen.entries += 1;
    seen.messages += metadata.message_count();
    seen.batches += u32::from(metadata.is_batch());
    seen.compressed += u32::from(metadata.payload_compression() != Some(Compression::None));
    seen.chunks += u32::from(metadata.chunk().is_some());
    seen.delayed += u32::from(metadata.deliver_at_time.is_some());
    seen.with_properties += u32::from(metadata.properties.into_iter().next().is_some());
}
