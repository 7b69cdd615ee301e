//! What rate limits did to a subscription, under the names that operators know.

use crate::text::{Kind, Page};

/// The counters of one subscription as plain numbers.
///
/// Arrays are `[scope][unit]`: broker, topic, subscription; messages, bytes. Every value only rises,
/// has one writer, the subscription's shard, and is given as it is: whoever counts lets it saturate
/// at 2^63 - 1 and starts it at 0 with the engine or with a new subscription only. Source: rules D53
/// to D56 of the dispatch specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Throttled {
    /// Passes that ended because a limit had no token.
    pub events: [[u64; 2]; 3],
    /// Nanoseconds in which a limit held the subscription up.
    pub throttled_ns: [[u64; 2]; 3],
    /// Messages kept back.
    pub withheld_messages: u64,
    /// Bytes kept back.
    pub withheld_bytes: u64,
}

/// One of [`Throttled::fields`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Field {
    /// A count.
    Count(u64),
    /// Seconds; JSON has them as a double, the page to the last digit.
    Seconds(f64),
}

const REASONS: [&str; 3] = ["broker", "topic", "subscription"];
const UNITS: [&str; 2] = ["msg", "bytes"];

const EVENTS: [[&str; 2]; 3] = [
    [
        "dispatchThrottledMsgEventsByBrokerLimit",
        "dispatchThrottledBytesEventsByBrokerLimit",
    ],
    [
        "dispatchThrottledMsgEventsByTopicLimit",
        "dispatchThrottledBytesEventsByTopicLimit",
    ],
    [
        "dispatchThrottledMsgEventsBySubscriptionLimit",
        "dispatchThrottledBytesEventsBySubscriptionLimit",
    ],
];
const SECONDS: [[&str; 2]; 3] = [
    [
        "dispatchThrottledMsgSecondsByBrokerLimit",
        "dispatchThrottledBytesSecondsByBrokerLimit",
    ],
    [
        "dispatchThrottledMsgSecondsByTopicLimit",
        "dispatchThrottledBytesSecondsByTopicLimit",
    ],
    [
        "dispatchThrottledMsgSecondsBySubscriptionLimit",
        "dispatchThrottledBytesSecondsBySubscriptionLimit",
    ],
];

impl Throttled {
    /// Every value under its name in the JSON statistics of a subscription. Numbers above 2^53 lose
    /// their last digits in readers that keep them as doubles: the page has them in full.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, Field)> + '_ {
        let cells = (0..3).flat_map(|scope| (0..2).map(move |unit| (scope, unit)));
        let amounts = [
            (
                "dispatchThrottledMsgs",
                Field::Count(self.withheld_messages),
            ),
            ("dispatchThrottledBytes", Field::Count(self.withheld_bytes)),
        ];
        let events = cells
            .clone()
            .map(|(scope, unit)| (EVENTS[scope][unit], Field::Count(self.events[scope][unit])));
        let seconds = cells.map(|(scope, unit)| {
            let ns = self.throttled_ns[scope][unit];
            (SECONDS[scope][unit], Field::Seconds(ns as f64 / 1e9))
        });
        amounts.into_iter().chain(events).chain(seconds)
    }
}

/// A subscription on the page: its labels (`cluster namespace topic subscription`, in that order and
/// as they are to be printed) and its counters.
pub type ThrottledRow<'a> = (&'a [(&'a str, &'a str)], Throttled);

/// Adds the families of rate limits; every series is there, zero or not.
pub fn throttled_page(page: &mut Page, rows: &[ThrottledRow<'_>]) {
    const FAMILIES: [(&str, &str); 2] = [
        (
            "pulsar_subscription_dispatch_throttled_msg_events",
            "Passes that ended because a limit on messages had no token, by its scope.",
        ),
        (
            "pulsar_subscription_dispatch_throttled_bytes_events",
            "Passes that ended because a limit on bytes had no token, by its scope.",
        ),
    ];
    for (unit, (name, help)) in FAMILIES.into_iter().enumerate() {
        page.family(name, Kind::Counter, help);
        for (labels, throttled) in rows {
            for (scope, reason) in REASONS.into_iter().enumerate() {
                page.number(
                    &with(labels, &[("reason", reason)]),
                    throttled.events[scope][unit],
                );
            }
        }
    }
    page.family(
        "pulsar_subscription_dispatch_throttled_msgs",
        Kind::Counter,
        "Messages that would have gone but for rate limits, added up over passes.",
    );
    for (labels, throttled) in rows {
        page.number(labels, throttled.withheld_messages);
    }
    page.family(
        "pulsar_subscription_dispatch_throttled_bytes",
        Kind::Counter,
        "Bytes that would have gone but for rate limits, added up over passes.",
    );
    for (labels, throttled) in rows {
        page.number(labels, throttled.withheld_bytes);
    }
    page.family(
        "pelton_subscription_dispatch_throttled_seconds_total",
        Kind::Counter,
        "Time in which a limit held the subscription up, by scope and unit.",
    );
    for (labels, throttled) in rows {
        for (scope, reason) in REASONS.into_iter().enumerate() {
            for (unit, name) in UNITS.into_iter().enumerate() {
                let labels = with(labels, &[("reason", reason), ("unit", name)]);
                page.seconds(&labels, u128::from(throttled.throttled_ns[scope][unit]));
            }
        }
    }
}

fn with<'a>(labels: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [labels, more].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: [(&str, &str); 4] = [
        ("cluster", "c"),
        ("namespace", "n"),
        ("topic", "a\"b"),
        ("subscription", "s"),
    ];

    /// Every cell holds another number.
    fn throttled() -> Throttled {
        Throttled {
            events: [[11, 12], [21, 22], [31, 32]],
            throttled_ns: [[1, 2], [3, 4], [5, 1_500_000_000]],
            withheld_messages: 4095,
            withheld_bytes: 32_760,
        }
    }

    #[test]
    fn every_counter_is_in_json_under_the_name_of_its_scope_and_unit() {
        let fields: Vec<(&str, Field)> = throttled().fields().collect();
        assert_eq!(fields.len(), 14);
        for (scope, kind) in ["Broker", "Topic", "Subscription"].into_iter().enumerate() {
            for (unit, what) in ["Msg", "Bytes"].into_iter().enumerate() {
                let events = format!("dispatchThrottled{what}EventsBy{kind}Limit");
                let expected = throttled().events[scope][unit];
                let found = fields.iter().find(|(name, _)| *name == events);
                assert_eq!(found.unwrap().1, Field::Count(expected), "{events}");
                let seconds = format!("dispatchThrottled{what}SecondsBy{kind}Limit");
                let expected = throttled().throttled_ns[scope][unit] as f64 / 1e9;
                let found = fields.iter().find(|(name, _)| *name == seconds);
                assert_eq!(found.unwrap().1, Field::Seconds(expected), "{seconds}");
            }
        }
        assert_eq!(fields[0], ("dispatchThrottledMsgs", Field::Count(4095)));
        assert_eq!(fields[1], ("dispatchThrottledBytes", Field::Count(32_760)));
    }

    #[test]
    fn every_counter_is_on_the_page_with_the_labels_of_its_subscription() {
        let mut page = Page::new();
        throttled_page(
            &mut page,
            &[(&LABELS, throttled()), (&LABELS[..1], Throttled::default())],
        );
        let text = page.finish();
        let labels = r#"cluster="c",namespace="n",topic="a\"b",subscription="s""#;
        for line in [
            format!(
                "pulsar_subscription_dispatch_throttled_msg_events{{{labels},reason=\"topic\"}} 21\n"
            ),
            format!(
                "pulsar_subscription_dispatch_throttled_bytes_events{{{labels},reason=\"broker\"}} 12\n"
            ),
            format!("pulsar_subscription_dispatch_throttled_msgs{{{labels}}} 4095\n"),
            format!("pulsar_subscription_dispatch_throttled_bytes{{{labels}}} 32760\n"),
            format!(
                "pelton_subscription_dispatch_throttled_seconds_total{{{labels},reason=\"subscription\",\
                 unit=\"bytes\"}} 1.500000000\n"
            ),
            "pulsar_subscription_dispatch_throttled_msgs{cluster=\"c\"} 0\n".to_string(),
        ] {
            assert!(text.contains(&line), "{line}\n{text}");
        }
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples, 2 * (3 + 3 + 1 + 1 + 6), "zeros are shown");
    }

    /// COUNTER-32BIT for these counters, up to where they saturate.
    #[test]
    fn counter_32bit_no_throttle_counter_is_printed_negative_or_rounded() {
        for value in [1 << 31, 1 << 32, (1 << 53) + 1, i64::MAX.unsigned_abs()] {
            let row = Throttled {
                events: [[value; 2]; 3],
                throttled_ns: [[value; 2]; 3],
                withheld_messages: value,
                withheld_bytes: value,
            };
            let mut page = Page::new();
            throttled_page(&mut page, &[(&LABELS, row)]);
            let text = page.finish();
            let seconds = format!("{}.{:09}", value / 1_000_000_000, value % 1_000_000_000);
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                let printed = line.rsplit_once(' ').unwrap().1;
                assert!(printed == value.to_string() || printed == seconds, "{line}");
            }
            for (name, field) in row.fields() {
                match field {
                    Field::Count(count) => {
                        let json = serde_json::json!({ name: count }).to_string();
                        assert_eq!(json, format!("{{\"{name}\":{value}}}"));
                    }
                    Field::Seconds(seconds) => assert!(seconds > 0.0 && seconds.is_finite()),
                }
            }
        }
    }
}
