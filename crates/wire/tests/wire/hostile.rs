//! Bytes that nobody should send: what is wrong is named, as early as it can be known, and nothing
//! panics. The tests in capitals are cases of the catalogue.

use pelton_wire::{
    Answer, Batch, Command, Entry, Malformed, PRELOGIN_FRAME_BYTES_MAX, ProtocolError, ServerError,
    Split, TopicName, checksum_of,
    commands::{Lookup, Ping, Refused, Send, Sender},
    encode, split,
};

use crate::data::{FRAME_BYTES_MAX, connections, encoded, every_field, frames, transcripts, whole};

fn check(received: &[u8], expected: Result<Split<'_>, ProtocolError>) {
    assert_eq!(
        split(received, FRAME_BYTES_MAX),
        expected,
        "{received:02x?}"
    );
    if let Err(error) = expected {
        assert_eq!(error.answer(), Answer::Close, "{error}");
    }
}

fn too_large(frame_bytes: u32) -> Result<Split<'static>, ProtocolError> {
    Err(ProtocolError::TooLarge {
        frame_bytes,
        frame_bytes_max: FRAME_BYTES_MAX,
    })
}

fn partial(bytes_needed: usize) -> Result<Split<'static>, ProtocolError> {
    Ok(Split::Partial { bytes_needed })
}

#[test]
fn frame_huge_length() {
    assert_eq!(FRAME_BYTES_MAX, 5_253_120);
    for frame_bytes in [u32::MAX, 0x7fff_ffff, 0x8000_0000, 5_253_121] {
        check(&frame_bytes.to_be_bytes(), too_large(frame_bytes));
    }
    check(&5_253_120_u32.to_be_bytes(), partial(8));
    check(b"GET / HTTP/1.1", too_large(0x4745_5420));
    check(&[0x16, 3, 1, 2], too_large(0x1603_0102));
    check(&[0, 0, 0, 0], Err(ProtocolError::TooShort(0)));
    check(&[0, 0, 0, 3], Err(ProtocolError::TooShort(3)));
    // The command's length is judged before the rest has arrived.
    let length = |claimed_bytes, available_bytes| {
        Err(ProtocolError::Length {
            part: "the command",
            claimed_bytes,
            available_bytes,
        })
    };
    check(&[0, 0, 0, 8, 0, 0, 0, 5], length(5, 4));
    check(&[0, 0, 0, 8, 255, 255, 255, 255], length(0xffff_ffff, 4));
    check(&[0, 0, 0, 8, 0, 0, 0, 4], partial(12));
}

#[test]
fn before_connected_a_frame_has_at_most_64_kib() {
    let at = |frame_bytes: u32| split(&frame_bytes.to_be_bytes(), PRELOGIN_FRAME_BYTES_MAX).is_ok();
    assert!(at(65_536) && !at(65_537));
}

#[test]
fn frame_borderline_size() {
    // The largest payload, in a frame of a metadata and a command of ordinary size, and the largest
    // frame there is.
    for content_bytes in [5_242_920, 5_253_120 - 4 - 8] {
        let send = Send {
            sequence_id: 1,
            ..Send::default()
        };
        let frame = encoded(send.into(), &vec![7; content_bytes]);
        assert!(
            frame.len() <= 4 + FRAME_BYTES_MAX as usize,
            "{content_bytes}"
        );
        assert_eq!(whole(&frame).content.len(), content_bytes);
    }
}

/// A frame of an envelope.
fn framed(envelope: &[u8]) -> Vec<u8> {
    let bytes = u32::try_from(envelope.len()).expect("small");
    let lengths = [(bytes + 4).to_be_bytes(), bytes.to_be_bytes()];
    [lengths.as_flattened(), envelope].concat()
}

#[test]
fn producer_half_batch() {
    check(
        &framed(&[]),
        Err(ProtocolError::Missing("BaseCommand.type")),
    );
    for number in 0..=127 {
        let body = Err(ProtocolError::Missing("the body of a command"));
        check(&framed(&[0x08, number]), body);
    }
    // An empty body: fine where nothing is required, else the first missing field is named.
    for (number, missing) in [
        (2, "Connect.client_version"),
        (4, "Subscribe.topic"),
        (5, "Producer.topic"),
        (6, "Send.producer_id"),
        (10, "Ack.consumer_id"),
        (11, "Flow.consumer_id"),
        (50, "Request.request_id"),
    ] {
        let envelope = [&[0x08, number][..], &key(number), &[0]].concat();
        check(&framed(&envelope), Err(ProtocolError::Missing(missing)));
    }
    let unknown = [0x08, 0x8f, 0x4e, 0xfa, 0xf0, 0x04, 0x02, 0x08, 0x01];
    check(&framed(&unknown), Err(ProtocolError::UnknownCommand(9_999)));
    // An ACK of nothing is an ACK.
    let ack = framed(&[0x08, 10, 0x52, 4, 0x08, 1, 0x10, 0]);
    assert!(
        matches!(whole(&ack).command, Command::Ack(ack) if ack.message_id.into_iter().next().is_none())
    );
}

/// Key of a field of bytes.
fn key(number: u8) -> Vec<u8> {
    let key = u16::from(number) << 3 | 2;
    if key < 0x80 {
        return vec![key as u8];
    }
    vec![key as u8 | 0x80, (key >> 7) as u8]
}

#[test]
fn requests_for_what_is_not_offered_can_be_answered() {
    for (number, text) in [
        (50, "Transactions are not enabled."),
        (64, "Not supported"),
        (81, "Not supported"),
    ] {
        let refused = Refused {
            number,
            request_id: 7,
        };
        let frame = encoded(Command::Refused(refused), &[]);
        assert_eq!(whole(&frame).command, Command::Refused(refused));
        assert_eq!(
            (Refused::CODE, refused.text()),
            (ServerError::NotAllowed, text)
        );
    }
    let beyond = framed(&[0x08, 69, 0xaa, 0x04, 2, 0x08, 1]);
    check(&beyond, Err(ProtocolError::UnknownCommand(69)));
}

#[test]
fn the_body_may_stand_in_front_of_the_type_and_fields_nobody_knows_are_skipped() {
    // FLOW of 9 permits for consumer 5, with unknown fields of every layout.
    let unknown = [
        0xf8, 0x7f, 1, 0xf9, 0x7f, 1, 2, 3, 4, 5, 6, 7, 8, 0xfa, 0x7f, 2, 1, 2, 0xfd, 0x7f, 1, 2,
        3, 4,
    ];
    let body = [&[0x08, 5][..], &unknown, &[0x10, 9]].concat();
    let mut envelope = vec![0x5a, body.len() as u8];
    envelope.extend(&body);
    envelope.extend(unknown);
    envelope.extend([0x08, 11]);
    let frame = framed(&envelope);
    let Command::Flow(flow) = whole(&frame).command else {
        panic!("not a FLOW");
    };
    assert_eq!((flow.consumer_id, flow.message_permits), (5, 9));
}

#[test]
fn of_two_types_the_last_counts_and_so_does_its_body() {
    // FLOW's body, PING and its body, then FLOW.
    let twice = framed(&[0x5a, 4, 0x08, 5, 0x10, 9, 0x08, 18, 0x92, 0x01, 0, 0x08, 11]);
    assert!(matches!(whole(&twice).command, Command::Flow(flow) if flow.message_permits == 9));
}

#[test]
fn bad_protobuf_closes() {
    let flow = |body: &[u8]| framed(&[&[0x08, 11, 0x5a, body.len() as u8][..], body].concat());
    let bad = |reason| Err(ProtocolError::Protobuf(reason));
    let eleven_bytes = [
        0x08, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00,
    ];
    check(&flow(&eleven_bytes), bad(Malformed::VarintTooLong));
    check(&flow(&[0x08, 0x80]), bad(Malformed::VarintCutOff));
    check(&flow(&[0x12, 5, 0]), bad(Malformed::FieldType));
    check(&flow(&[0x7a, 5, 0]), bad(Malformed::FieldCutOff));
    check(&flow(&[0x0b]), bad(Malformed::Layout));
    check(&flow(&[0x00, 1]), bad(Malformed::FieldNumber));
    let subscribe = framed(&[0x08, 4, 0x22, 3, 0x0a, 1, 0xff]);
    check(&subscribe, bad(Malformed::Text));
    // An enum with an unknown number is an unknown field, so SUBSCRIBE has no type.
    let lookup = [
        0x08, 4, 0x22, 12, 0x0a, 1, b't', 0x12, 1, b's', 0x18, 9, 0x20, 1, 0x28, 1,
    ];
    check(
        &framed(&lookup),
        Err(ProtocolError::Missing("Subscribe.sub_type")),
    );
}

#[test]
fn messages_nested_over_8_deep_close() {
    // SEEK to an id within an id within an id.
    for (ids, fits) in [(6, true), (7, false)] {
        let mut id = Vec::new();
        for _ in 0..ids {
            let inner = (!id.is_empty()).then(|| [&[0x3a, id.len() as u8][..], &id].concat());
            id = [&[0x08, 1, 0x10, 1][..], &inner.unwrap_or_default()].concat();
        }
        let body = [&[0x08, 1, 0x10, 1, 0x1a, id.len() as u8][..], &id].concat();
        let frame = framed(&[&[0x08, 28, 0xe2, 0x01, body.len() as u8][..], &body].concat());
        match split(&frame, FRAME_BYTES_MAX) {
            Ok(_) => assert!(fits, "{ids}"),
            Err(error) => {
                assert_eq!(error, ProtocolError::Protobuf(Malformed::Depth));
                assert!(!fits, "{ids}");
            }
        }
    }
}

/// The content of the first SEND there is.
fn content() -> Vec<u8> {
    let recorded = connections();
    let sends = recorded.iter().flat_map(|r| frames(&r.bytes));
    let send = sends
        .into_iter()
        .find(|f| matches!(f.command, Command::Send(_)));
    send.expect("clients sent").content.to_vec()
}

#[test]
fn any_changed_byte_of_an_entry_is_a_checksum_error_and_only_that_send_fails() {
    let content = content();
    for at in 2..content.len() {
        let mut damaged = content.clone();
        damaged[at] ^= 0x40;
        let error = Entry::received(&damaged).expect_err("one byte is another");
        assert!(
            matches!(error, ProtocolError::Checksum { .. }),
            "{at}: {error}"
        );
        assert_eq!(error.answer(), Answer::SendError(ServerError::Checksum));
    }
}

#[test]
fn an_entry_cut_anywhere_is_an_error() {
    let content = content();
    for cut in 0..content.len() {
        let error = Entry::received(&content[..cut]).expect_err("something is missing");
        let checksum = matches!(error, ProtocolError::Checksum { .. });
        assert_eq!(checksum, cut >= 6, "{cut}: {error}");
    }
}

/// With a checksum that fits.
fn sealed(covered: &[u8]) -> Vec<u8> {
    [&checksum_of(covered), covered].concat()
}

#[test]
fn lengths_and_marks_within_an_entry_are_checked() {
    let length = |part, claimed_bytes, available_bytes| ProtocolError::Length {
        part,
        claimed_bytes,
        available_bytes,
    };
    let table: [(Vec<u8>, ProtocolError); 9] = [
        (vec![], ProtocolError::CutOff("metadata")),
        (vec![0x0e, 0x01, 0, 0], ProtocolError::CutOff("a checksum")),
        (sealed(&[0, 0, 0]), ProtocolError::CutOff("metadata")),
        (sealed(&[0, 0, 0, 1]), length("metadata", 1, 0)),
        (sealed(&[255; 4]), length("metadata", 0xffff_ffff, 0)),
        (vec![0x0e, 0x03, 0, 0, 1], ProtocolError::Magic(0x0e03)),
        (
            vec![0x0e, 0x02, 0, 0],
            ProtocolError::CutOff("broker entry metadata"),
        ),
        (
            vec![0x0e, 0x02, 0, 0, 0, 9, 1],
            length("broker entry metadata", 9, 1),
        ),
        (
            sealed(&[0; 4]),
            ProtocolError::Missing("MessageMetadata.producer_name"),
        ),
    ];
    for (content, expected) in table {
        assert_eq!(Entry::received(&content), Err(expected), "{content:02x?}");
        assert_eq!(expected.answer(), Answer::Close);
    }
}

#[test]
fn a_batch_ends_with_the_first_message_that_does_not_fit() {
    // A message of 3 bytes, then one that claims more than there is, then one of a negative size.
    let good = [0, 0, 0, 2, 0x18, 3, 1, 2, 3];
    let negative = [
        0, 0, 0, 11, 0x18, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1,
    ];
    for bad in [
        &[0, 0, 0, 2, 0x18, 9, 1][..],
        &negative,
        &[0, 0, 0, 9],
        &[0, 0],
        &[],
    ] {
        let payload = [&good[..], bad].concat();
        let walked: Vec<_> = Batch::new(&payload, 1_000).collect();
        assert_eq!(walked.len(), 2, "{bad:02x?}");
        assert_eq!(walked[0].map(|single| single.payload), Ok(&[1, 2, 3][..]));
        assert!(walked[1].is_err(), "{bad:02x?}");
    }
    assert_eq!(Batch::new(&good, 1).count(), 1);
    assert_eq!(Batch::new(&good, 0).count(), 0);
}

#[test]
fn credentials_are_not_shown() {
    let recorded = every_field();
    let connect = recorded
        .iter()
        .find(|r| r.about[1] == "CONNECT")
        .expect("it is there");
    let shown = format!("{:?}", whole(&connect.bytes).command);
    assert!(shown.contains("auth_data: Some(3 bytes)"), "{shown}");
}

#[test]
fn every_recorded_frame_survives_100_mutations_without_a_panic() {
    // xorshift64*: any seed but 0 will do.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut random = |below: usize| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % below
    };
    let (mut accepted, mut refused) = (0, 0);
    for recorded in every_field().into_iter().chain(transcripts()) {
        for _ in 0..100 {
            let mut bytes = recorded.bytes.clone();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            match split(&bytes, FRAME_BYTES_MAX) {
                Ok(Split::Whole { frame, .. }) => {
                    accepted += 1;
                    let _ = Entry::received(frame.content);
                    let again = encoded(frame.command, frame.content);
                    let twice = whole(&again);
                    assert_eq!(encoded(twice.command, twice.content), again);
                }
                Ok(Split::Partial { .. }) | Err(_) => refused += 1,
            }
        }
    }
    assert!(accepted > 1_000 && refused > 1_000, "{accepted} {refused}");
}

#[test]
fn a_ping_is_ten_bytes_and_a_command_says_who_may_send_it() {
    let mut out = Vec::new();
    encode(Ping {}, &mut out);
    assert_eq!(out, framed(&[0x08, 18, 0x92, 0x01, 0]));
    assert_eq!(whole(&out).command.sender(), Sender::Either);
}

#[test]
fn an_empty_name_is_none_and_an_absent_field_has_its_default() {
    let lookup = Lookup {
        topic: "t",
        advertised_listener_name: Some(""),
        ..Lookup::default()
    };
    assert_eq!((lookup.listener(), lookup.authoritative()), (None, false));
    assert!(TopicName::parse(lookup.topic).is_ok());
}
