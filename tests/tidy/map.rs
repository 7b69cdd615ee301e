//! `docs/ARCHITECTURE.md` is the reader's way in: what it names exists, and it names every file.
//!
//! A file is named by its path from the root (`tests/tidy/map.rs`), by `shard/turn.rs`, short for
//! `crates/shard/src/turn.rs`, or by `turn.rs` alone below a mention of `crates/shard`. One group is
//! expanded: `storage/{log,read}.rs`.

use std::collections::BTreeSet;

use crate::{expect_none, root, sources};

const MAP: &str = "docs/ARCHITECTURE.md";

/// One thing the map names.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    /// `crates/NAME`.
    Crate(String),
    /// Every path from the root that the name may stand for.
    File {
        name: String,
        candidates: Vec<String>,
    },
}

#[test]
fn every_crate_and_file_the_map_names_exists() {
    let mut findings = Vec::new();
    for named in names(&map()) {
        match named {
            Named::Crate(name) if !root().join("crates").join(&name).is_dir() => {
                findings.push(format!("crates/{name}"));
            }
            Named::File { name, candidates }
                if !candidates.iter().any(|path| root().join(path).is_file()) =>
            {
                findings.push(format!("{name} (none of {})", candidates.join(", ")));
            }
            _ => {}
        }
    }
    expect_none(&findings, "docs/ARCHITECTURE.md names what does not exist:");
}

#[test]
fn the_map_names_every_crate_and_every_source_file() {
    let named: BTreeSet<String> = names(&map())
        .into_iter()
        .flat_map(|named| match named {
            Named::Crate(name) => vec![format!("crates/{name}")],
            Named::File { candidates, .. } => candidates,
        })
        .collect();
    let mut missing = BTreeSet::new();
    for source in &sources() {
        let Some(name) = source.crate_name() else {
            continue;
        };
        if !named.contains(&format!("crates/{name}")) {
            missing.insert(format!("crates/{name}"));
        }
        // lib.rs is docs, `mod` lines and `pub use`: the crate's own line names it.
        let is_source = source.path.starts_with(&format!("crates/{name}/src/"));
        if is_source && !source.path.ends_with("/lib.rs") && !named.contains(&source.path) {
            missing.insert(source.path.clone());
        }
    }
    let missing: Vec<String> = missing.into_iter().collect();
    expect_none(&missing, "docs/ARCHITECTURE.md does not name:");
}

fn map() -> String {
    std::fs::read_to_string(root().join(MAP)).unwrap_or_else(|e| panic!("read {MAP}: {e}"))
}

fn names(text: &str) -> Vec<Named> {
    let mut section = None;
    let mut found = Vec::new();
    let part_of_path = |c: char| c.is_alphanumeric() || "_-/.".contains(c);
    // A comma belongs to a path inside a group only.
    let mut in_group = false;
    let tokens = text.split(|c: char| {
        in_group = (in_group || c == '{') && c != '}' && !c.is_whitespace();
        !(part_of_path(c) || "{}".contains(c) || (in_group && c == ','))
    });
    for token in tokens {
        if let Some(name) = token
            .strip_prefix("crates/")
            .and_then(|rest| rest.split('/').next())
            && !name.is_empty()
            && !name.contains(['{', '*'])
        {
            section = Some(name.to_string());
            found.push(Named::Crate(name.to_string()));
        }
        for name in expand(token)
            .into_iter()
            .filter(|name| name.ends_with(".rs"))
        {
            let candidates = candidates(&name, section.as_deref());
            found.push(Named::File { name, candidates });
        }
    }
    found
}

/// `a/{b,c}.rs` is `a/b.rs` and `a/c.rs`.
fn expand(token: &str) -> Vec<String> {
    let Some((before, rest)) = token.split_once('{') else {
        return vec![token.to_string()];
    };
    let Some((group, after)) = rest.split_once('}') else {
        return Vec::new();
    };
    group
        .split(',')
        .map(|part| format!("{before}{part}{after}"))
        .collect()
}

fn candidates(name: &str, section: Option<&str>) -> Vec<String> {
    if ["crates/", "tests/", "benches/", "fuzz/"]
        .iter()
        .any(|top| name.starts_with(top))
    {
        return vec![name.to_string()];
    }
    let mut paths = Vec::new();
    if let Some((first, rest)) = name.split_once('/') {
        paths.push(format!("crates/{first}/src/{rest}"));
    }
    paths.extend(section.map(|section| format!("crates/{section}/src/{name}")));
    paths
}

#[test]
fn names_are_found_in_every_spelling() {
    let text = "`crates/shard` turn.rs, `sys/{disk,uring}.rs`\ncrates/a/src/b.rs (tests/t/main.rs)";
    let file = |name: &str, candidates: &[&str]| Named::File {
        name: name.to_string(),
        candidates: candidates.iter().map(|c| (*c).to_string()).collect(),
    };
    let expected = [
        Named::Crate("shard".to_string()),
        file("turn.rs", &["crates/shard/src/turn.rs"]),
        file(
            "sys/disk.rs",
            &["crates/sys/src/disk.rs", "crates/shard/src/sys/disk.rs"],
        ),
        file(
            "sys/uring.rs",
            &["crates/sys/src/uring.rs", "crates/shard/src/sys/uring.rs"],
        ),
        Named::Crate("a".to_string()),
        file("crates/a/src/b.rs", &["crates/a/src/b.rs"]),
        file("tests/t/main.rs", &["tests/t/main.rs"]),
    ];
    assert_eq!(names(text), expected);
}
