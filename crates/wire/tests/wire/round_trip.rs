//! What is encoded decodes to itself, whatever the values.

use pelton_wire::{
    Batch, BrokerEntryMetadata, Command, Entry, KeyValue, MessageId, MessageMetadata, Schema,
    SchemaType, SingleMessageMetadata, Values,
    commands::{
        Ack, AckType, Flow, IntRange, KeySharedMeta, KeySharedMode, Message, Send, SubType,
        Subscribe,
    },
    encode_entry_before, encode_server_part, push_single,
};
use proptest::{collection::vec, option, prelude::*};

use crate::data::{encoded, whole};

fn check(command: Command<'_>, content: &[u8]) {
    let frame = encoded(command, content);
    let again = whole(&frame);
    assert_eq!((again.command, again.content), (command, content));
}

/// Numbers of every length, near the ends of what a varint of that length holds.
fn number() -> impl Strategy<Value = u64> {
    (0_u32..=64, any::<i8>()).prop_map(|(bits, offset)| {
        let edge = 1_u128.checked_shl(bits).unwrap_or_default() as u64;
        edge.wrapping_add_signed(offset.into())
    })
}

fn properties() -> impl Strategy<Value = Vec<(Vec<u8>, Vec<u8>)>> {
    vec((vec(any::<u8>(), 0..9), vec(any::<u8>(), 0..200)), 0..4)
}

fn key_values(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<KeyValue<'_>> {
    pairs
        .iter()
        .map(|(key, value)| KeyValue { key, value })
        .collect()
}

proptest! {
    #[test]
    fn flow(consumer_id in number(), permits in number()) {
        check(Flow { consumer_id, message_permits: permits as u32 }.into(), &[]);
    }

    #[test]
    fn send(ids in [number(), number(), number()], count in option::of(any::<i32>()), chunk in option::of(any::<bool>()), content in vec(any::<u8>(), 0..300)) {
        let [producer_id, sequence_id, highest] = ids;
        let send = Send {
            producer_id,
            sequence_id,
            num_messages: count,
            highest_sequence_id: Some(highest),
            is_chunk: chunk,
            ..Send::default()
        };
        check(send.into(), &content);
        prop_assert_eq!(send.num_messages(), count.unwrap_or(1));
    }

    #[test]
    fn ack_and_message(consumer_id in number(), ids in vec((number(), number(), option::of(any::<i32>()), vec(any::<i64>(), 0..4)), 0..40), request_id in option::of(number())) {
        let chunk = [MessageId::EARLIEST];
        let ids: Vec<_> = ids.iter().map(|(ledger_id, entry_id, partition, ack_set)| MessageId {
            ledger_id: *ledger_id,
            entry_id: *entry_id,
            partition: *partition,
            ack_set: Values::new(ack_set),
            first_chunk_message_id: Values::new(&chunk),
            ..MessageId::LATEST
        }).collect();
        let ack = Ack {
            consumer_id,
            ack_type: AckType::Cumulative,
            message_id: Values::new(&ids),
            request_id,
            ..Ack::default()
        };
        check(ack.into(), &[]);
        for message_id in ids {
            let message = Message {
                consumer_id,
                message_id,
                ack_set: message_id.ack_set,
                ..Message::default()
            };
            check(message.into(), b"content");
        }
    }

    #[test]
    fn subscribe(names in [".{0,20}", ".{0,200}", ".{0,9}"], ids in [number(), number()], ranges in vec(any::<(i32, i32)>(), 0..5), pairs in properties()) {
        let (ranges, pairs): (Vec<_>, _) = (
            ranges.iter().map(|(start, end)| IntRange { start: *start, end: *end }).collect(),
            key_values(&pairs),
        );
        let subscribe = Subscribe {
            topic: &names[0],
            subscription: &names[1],
            sub_type: SubType::KeyShared,
            consumer_id: ids[0],
            request_id: ids[1],
            consumer_name: Some(&names[2]),
            metadata: Values::new(&pairs),
            schema: Some(Schema {
                name: &names[2],
                schema_data: names[1].as_bytes(),
                schema_type: SchemaType::External,
                properties: Values::new(&pairs),
            }),
            key_shared_meta: Some(KeySharedMeta {
                key_shared_mode: KeySharedMode::Sticky,
                hash_ranges: Values::new(&ranges),
                allow_out_of_order_delivery: Some(false),
            }),
            ..Subscribe::default()
        };
        check(subscribe.into(), &[]);
        prop_assert_eq!(subscribe.name().is_none(), names[2].is_empty());
    }

    #[test]
    fn entries_and_their_batches(name in ".{0,20}", times in [number(), number()], pairs in properties(), payloads in vec(vec(any::<u8>(), 0..300), 1..20), index in number()) {
        let pairs = key_values(&pairs);
        let single = SingleMessageMetadata {
            properties: Values::new(&pairs),
            sequence_id: Some(times[0]),
            ..SingleMessageMetadata::default()
        };
        let mut batch = Vec::new();
        for payload in &payloads {
            push_single(&single, payload, &mut batch);
        }
        let metadata = MessageMetadata {
            producer_name: &name,
            sequence_id: times[0],
            publish_time: times[1],
            properties: Values::new(&pairs),
            num_messages_in_batch: Some(payloads.len() as i32),
            highest_sequence_id: Some(index),
            ..MessageMetadata::default()
        };
        let server = BrokerEntryMetadata { broker_timestamp: None, index: Some(index) };
        let mut content = Vec::new();
        encode_server_part(&server, &mut content);
        let start = content.len();
        encode_entry_before(&metadata, &batch, &mut content);
        content.extend_from_slice(&batch);

        let entry = Entry::received(&content).expect("we made it");
        prop_assert_eq!(entry.metadata, metadata);
        prop_assert_eq!(entry.server, Some(server));
        prop_assert_eq!(entry.stored, &content[start..]);
        prop_assert_eq!(entry.metadata.last_sequence_id(), times[0].max(index));
        let mut walked = Vec::new();
        for found in Batch::new(entry.payload, entry.metadata.message_count()) {
            let found = found.expect("we made it");
            prop_assert_eq!(found.metadata.properties, single.properties);
            walked.push(found.payload.to_vec());
        }
        prop_assert_eq!(walked, payloads);

        // Without its checksum the same entry is accepted, and told apart.
        let bare = Entry::received(&content[start + 6..]).expect("no checksum is needed");
        prop_assert_eq!((bare.checksum, bare.metadata), (None, metadata));
    }

    #[test]
    fn any_bytes_are_refused_or_understood(bytes in vec(any::<u8>(), 0..400), count in any::<u32>()) {
        let _ = pelton_wire::split(&bytes, u32::MAX);
        let _ = Entry::received(&bytes);
        let _ = Entry::trusted(&bytes);
        prop_assert!(Batch::new(&bytes, count).count() <= bytes.len() + 1);
    }
}
