//! Each command with every field set, from an encoder that shares nothing with ours.

use std::collections::BTreeSet;

use crate::data::{encoded, every_field, whole};

#[test]
fn no_field_of_any_command_is_lost_or_called_by_another_name() {
    let recordings = every_field();
    let numbers: BTreeSet<u32> = recordings.iter().map(|r| number(r.about[0])).collect();
    assert_eq!(numbers, (2..=40).collect());
    for recorded in &recordings {
        let frame = whole(&recorded.bytes);
        let (number, name) = (number(recorded.about[0]), recorded.about[1]);
        assert_eq!(
            (frame.command.number(), frame.command.name()),
            (number, name)
        );
        assert_eq!(encoded(frame.command, &[]), recorded.bytes, "{name}");
        let ours = names(&format!("{:?}", frame.command));
        let theirs: Vec<_> = recorded.about[2].split_whitespace().map(plain).collect();
        assert_eq!(ours, theirs, "{name}");
    }
}

fn number(text: &str) -> u32 {
    text.parse().expect("a number")
}

/// The names of the fields that are set, in order, as `Debug` prints them.
fn names(debug: &str) -> Vec<String> {
    let mut fields = debug.split(": ").collect::<Vec<_>>();
    let values = fields.split_off(1);
    let last_word = |text: &str| text.rsplit(['{', ' ']).next().map(str::to_string);
    let mut names = Vec::new();
    let mut name = last_word(fields.first().copied().unwrap_or_default());
    for value in values {
        let is_set = !value.starts_with("None") && !value.starts_with("[]");
        names.extend(
            name.filter(|name| is_set && !name.is_empty())
                .map(|name| plain(&name)),
        );
        name = last_word(value);
    }
    names
}

/// Without case and underscores; `schema_type` and `sub_type` are `type` in the protocol.
fn plain(name: &str) -> String {
    match name {
        "schema_type" | "sub_type" | "subType" => "type".into(),
        name => name.replace('_', "").to_lowercase(),
    }
}
