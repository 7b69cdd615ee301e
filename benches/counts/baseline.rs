//! Instruction counts that the benches beside it are held to.
//!
//! A count above its baseline by more than [`SLACK_PERCENT`] fails. A new baseline is a commit that
//! says why. Counted by callgrind with the toolchain of `rust-toolchain.toml`, profile `bench`.

use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig};

/// Room for what differs between machines: the width of memory copies that libc chooses.
const SLACK_PERCENT: u64 = 2;

/// Name of the bench, instructions of one run of it.
const BASELINE: &[(&str, u64)] = &[
    ("spsc_push_pop_1000", 35_033),
    ("spsc_by_16_1000", 26_442),
    ("slots_push_pop_64b_1000", 74_122),
    ("priority_push_pop_1000", 133_032),
    ("priority_by_16_1000", 134_885),
    ("publish_100", 32_482),
    ("publish_dispatch_ack_1_x100", 318_667),
    ("dispatch_100", 9_000),
    ("ack_100", 40_464),
    ("limits_off_1_x100", 42_331),
    ("limits_1_scope_1_x100", 76_631),
    ("limits_3_scopes_1_x100", 183_431),
    ("limits_off_100", 2_822),
    ("limits_1_scope_100", 3_165),
    ("limits_3_scopes_100", 4_233),
    ("commit_1", 9_590),
    ("commit_100", 102_501),
    ("wire_send_100", 120_645),
    ("wire_ack_100", 166_164),
    ("wire_flow_100", 59_761),
    ("wire_message_100", 52_530),
];

/// Holds the bench of that name to its baseline.
pub(crate) fn limit(name: &str) -> LibraryBenchmarkConfig {
    let (_, instructions) = BASELINE
        .iter()
        .find(|(n, _)| *n == name)
        .expect("each bench has a baseline");
    let most = instructions * (100 + SLACK_PERCENT) / 100;
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, most)]));
    config
}
