//! Who may depend on whom (DESIGN 2, style 3.1).

use std::collections::BTreeMap;

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};

use crate::{expect_none, root};

/// An arrow that is not here does not exist. Leaves stand at the end.
const ARROWS: [(&str, &[&str]); 13] = [
    (
        "pelton-server",
        &[
            "pelton",
            "pelton-shard",
            "pelton-load",
            "pelton-balance",
            "pelton-metrics",
            "pelton-wire",
        ],
    ),
    ("pelton-load", &["pelton", "pelton-metrics"]),
    ("pelton", &["pelton-shard"]),
    (
        "pelton-shard",
        &[
            "pelton-broker",
            "pelton-sys",
            "pelton-rings",
            "pelton-metrics",
        ],
    ),
    ("pelton-sim", &["pelton-broker"]),
    (
        "pelton-broker",
        &["pelton-storage", "pelton-flow", "pelton-metrics"],
    ),
    ("pelton-rings", &[]),
    ("pelton-sys", &[]),
    ("pelton-flow", &[]),
    ("pelton-storage", &[]),
    ("pelton-wire", &[]),
    ("pelton-balance", &[]),
    ("pelton-metrics", &[]),
];

/// More arrows for tests, each for one thing.
const TEST_ARROWS: [(&str, &str); 1] = [
    // The counting allocator, which is unsafe code.
    ("pelton", "pelton-sys"),
];

/// Packages that may depend on anything of ours, and on which nothing depends.
const OUTSIDE: [&str; 3] = ["pelton-tests", "pelton-benches", "pelton-fuzz"];

/// Crates that would bring files, sockets, threads, clocks or chance into the core.
const NOT_IN_CORE: [&str; 10] = [
    "libc",
    "mio",
    "io-uring",
    "redb",
    "quanta",
    "tempfile",
    "rand",
    "getrandom",
    "fastrand",
    "crossbeam-channel",
];

/// The crates that are pure: events and `now` in, effects out.
pub(crate) const CORE: [&str; 6] = ["broker", "storage", "flow", "wire", "balance", "metrics"];

fn metadata() -> Metadata {
    // Offline and without resolving: what the manifests say is all that is asked.
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .unwrap_or_else(|e| panic!("cargo metadata: {e}"))
}

#[test]
fn every_dependency_between_our_crates_follows_an_arrow() {
    let arrows = BTreeMap::from(ARROWS);
    let mut findings = Vec::new();
    for package in &metadata().packages {
        let name = package.name.as_str();
        let for_tests = |d: &str| TEST_ARROWS.contains(&(name, d));
        let ours = package
            .dependencies
            .iter()
            .filter(|d| !(d.kind == DependencyKind::Development && for_tests(&d.name)))
            .map(|d| d.name.as_str())
            .filter(|d| *d == "pelton" || d.starts_with("pelton-"));
        if OUTSIDE.contains(&name) {
            let wrong = ours.filter(|d| OUTSIDE.contains(d));
            findings.extend(wrong.map(|d| format!("{name} -> {d}: nothing depends on it")));
            continue;
        }
        let Some(allowed) = arrows.get(name) else {
            findings.push(format!("{name}: no line in tests/tidy/arrows.rs"));
            continue;
        };
        let wrong = ours.filter(|d| !allowed.contains(d));
        findings.extend(wrong.map(|d| format!("{name} -> {d}: not an arrow of the design")));
    }
    expect_none(
        &findings,
        "dependencies follow the arrows of docs/ARCHITECTURE.md:",
    );
}

#[test]
fn the_core_depends_on_nothing_that_brings_io_threads_clocks_or_chance() {
    let mut findings = Vec::new();
    for package in &metadata().packages {
        let name = package.name.strip_prefix("pelton-").unwrap_or_default();
        if CORE.contains(&name) {
            let normal = package
                .dependencies
                .iter()
                .filter(|d| d.kind == DependencyKind::Normal)
                .filter(|d| NOT_IN_CORE.contains(&d.name.as_str()));
            findings.extend(normal.map(|d| format!("{} -> {}", package.name, d.name)));
        }
    }
    expect_none(
        &findings,
        "the core takes events and `now`, and gives effects:",
    );
}

#[test]
fn every_package_takes_its_lints_from_the_workspace() {
    let mut findings = Vec::new();
    for package in &metadata().packages {
        let manifest = std::fs::read_to_string(&package.manifest_path).expect("cargo read it");
        if !manifest.contains("[lints]\nworkspace = true\n") {
            findings.push(format!(
                "{}: add `[lints]` with `workspace = true`",
                package.name
            ));
        }
    }
    expect_none(&findings, "the rules that are lints hold in every package:");
}
