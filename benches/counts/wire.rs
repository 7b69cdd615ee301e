//! The four commands of which there is one for each message: their frames, in one receive buffer.

use gungraun::prelude::*;
use pelton_wire::{
    Command, Entry, MessageId, MessageMetadata, Split, Values,
    commands::{Ack, AckType, Flow, Message, Send},
    encode, encode_before, encode_entry_before, split,
};

use crate::baseline::limit;

const FRAMES: u64 = 100;
const FRAME_BYTES_MAX: u32 = pelton_wire::frame_bytes_max(pelton_wire::MESSAGE_BYTES_MAX);

/// Entries of one message and 64 bytes.
fn sends() -> Vec<u8> {
    let mut stream = Vec::new();
    for sequence_id in 0..FRAMES {
        let metadata = MessageMetadata {
            producer_name: "pelton-12653-1",
            sequence_id,
            publish_time: 1_795_983_685_026,
            ..MessageMetadata::default()
        };
        let mut content = Vec::new();
        encode_entry_before(&metadata, &[7; 64], &mut content);
        content.extend([7; 64]);
        let send = Send {
            producer_id: 3,
            sequence_id,
            ..Send::default()
        };
        encode_before(send, content.len(), &mut stream);
        stream.extend(content);
    }
    stream
}

fn id(entry_id: u64) -> MessageId<'static> {
    MessageId {
        partition: Some(-1),
        ..MessageId::new(12, entry_id)
    }
}

fn acks() -> Vec<u8> {
    let mut stream = Vec::new();
    for entry_id in 0..FRAMES {
        let ids = [id(entry_id)];
        let ack = Ack {
            consumer_id: 3,
            ack_type: AckType::Individual,
            message_id: Values::new(&ids),
            ..Ack::default()
        };
        encode(ack, &mut stream);
    }
    stream
}

fn flows() -> Vec<u8> {
    let mut stream = Vec::new();
    for _ in 0..FRAMES {
        let flow = Flow {
            consumer_id: 3,
            message_permits: 500,
        };
        encode(flow, &mut stream);
    }
    stream
}

/// Hands each frame of a stream to `each`, which gives a number of it, and sums those.
fn walk(mut stream: &[u8], each: impl Fn(Command<'_>, &[u8]) -> u64) -> u64 {
    let mut sum = 0;
    while let Ok(Split::Whole { frame, bytes }) = split(stream, FRAME_BYTES_MAX) {
        sum += each(frame.command, frame.content);
        stream = &stream[bytes..];
    }
    sum
}

#[library_benchmark(config = limit("wire_send_100"))]
#[bench::run(sends())]
fn wire_send_100(stream: Vec<u8>) -> Vec<u8> {
    let sum = walk(&stream, |command, content| match command {
        Command::Send(_) => {
            let entry = Entry::received(content).expect("we made it");
            u64::from(entry.metadata.message_count()) + entry.metadata.sequence_id
        }
        other => panic!("{other:?}"),
    });
    assert_eq!(sum, FRAMES + FRAMES * (FRAMES - 1) / 2);
    stream
}

#[library_benchmark(config = limit("wire_ack_100"))]
#[bench::run(acks())]
fn wire_ack_100(stream: Vec<u8>) -> Vec<u8> {
    let sum = walk(&stream, |command, _| match command {
        Command::Ack(ack) => ack.message_id.into_iter().map(|id| id.entry_id).sum(),
        other => panic!("{other:?}"),
    });
    assert_eq!(sum, FRAMES * (FRAMES - 1) / 2);
    stream
}

#[library_benchmark(config = limit("wire_flow_100"))]
#[bench::run(flows())]
fn wire_flow_100(stream: Vec<u8>) -> Vec<u8> {
    let sum = walk(&stream, |command, _| match command {
        Command::Flow(flow) => flow.message_permits.into(),
        other => panic!("{other:?}"),
    });
    assert_eq!(sum, FRAMES * 500);
    stream
}

#[library_benchmark(config = limit("wire_message_100"))]
#[bench::run(Vec::with_capacity(100 * 64))]
fn wire_message_100(mut out: Vec<u8>) -> Vec<u8> {
    for entry_id in 0..FRAMES {
        let message = Message {
            consumer_id: 3,
            message_id: id(entry_id),
            ..Message::default()
        };
        encode_before(message, 106, &mut out);
    }
    // Both lengths, the envelope of 6 bytes and more than 10 for the partition.
    assert!(out.len() > 100 * 30);
    out
}

library_benchmark_group!(
    name = wire_group,
    benchmarks = [wire_send_100, wire_ack_100, wire_flow_100, wire_message_100]
);
