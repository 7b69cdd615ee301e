//! `docs/ARCHITECTURE.md` is the reader's way in: what it names exists, and it names every file.
//!
//! A file is named by its path from the root (`tests/tidy/map.rs`), by `shard/src/turn.rs`, short for
//! `crates/shard/src/turn.rs`, or by `turn.rs` alone where its crate was named last. One group is
//! expanded: `storage/src/{log,read}.rs`.

use std::collections::BTreeSet;

use crate::{expect_none, root, sources};

const MAP: &str = "docs/ARCHITECTURE.md";

/// One thing the map names.
#[derive(Debug, PartialEq, Eq)]
enum Named {
    /// `crates/NAME`.
    Crate(String),
    /// A source file: as written, and its path from the root.
    File { name: String, path: String },
}

#[test]
fn every_crate_and_file_the_map_names_exists() {
    let mut findings = Vec::new();
    for named in names(&map()) {
        match named {
            Named::Crate(name) if !root().join("crates").join(&name).is_dir() => {
                findings.push(format!("crates/{name}"));
            }
            Named::File { name, path } if !root().join(&path).is_file() => {
                findings.push(format!("{name} (looked for {path})"));
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
        .map(|named| match named {
            Named::Crate(name) => format!("crates/{name}"),
            Named::File { path, .. } => path,
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
    let mut last_crate = None;
    let mut found = Vec::new();
    let part_of_path = |c: char| c.is_alphanumeric() || "_-/.".contains(c);
    // A comma belongs to a path inside a group only.
    let mut in_group = false;
    let tokens = text.split(|c: char| {
        in_group = (in_group || c == '{') && c != '}' && !c.is_whitespace();
        !(part_of_path(c) || "{}".contains(c) || (in_group && c == ','))
    });
    for token in tokens {
        if let Some(name) = crate_of(token) {
            last_crate = Some(name);
            found.push(Named::Crate(name.to_string()));
        }
        for name in expand(token)
            .into_iter()
            .filter(|name| name.ends_with(".rs"))
        {
            let path = path_of(&name, last_crate);
            found.push(Named::File { name, path });
        }
    }
    found
}

/// The crate that `crates/NAME...` or `NAME/src/...` is about.
fn crate_of(token: &str) -> Option<&str> {
    let mut parts = token.split('/');
    let name = match parts.next()? {
        "crates" => parts.next()?,
        name if parts.next() == Some("src") => name,
        _ => return None,
    };
    (!name.is_empty() && !name.contains(['{', '.'])).then_some(name)
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

/// The path from the root that a name stands for.
fn path_of(name: &str, last_crate: Option<&str>) -> String {
    let from_root = ["crates/", "tests/", "benches/", "fuzz/"];
    match (crate_of(name), last_crate) {
        _ if from_root.iter().any(|top| name.starts_with(top)) => name.to_string(),
        (None, Some(last)) => format!("crates/{last}/src/{name}"),
        _ => format!("crates/{name}"),
    }
}

#[test]
fn names_are_found_in_every_spelling() {
    let text = "`crates/shard` turn.rs, `sys/src/{disk,uring}.rs`: port/page.rs\n\
                crates/a/src/b.rs (tests/t/main.rs) lib/../x";
    let file = |name: &str, path: &str| Named::File {
        name: name.into(),
        path: path.into(),
    };
    let expected = [
        Named::Crate("shard".to_string()),
        file("turn.rs", "crates/shard/src/turn.rs"),
        Named::Crate("sys".to_string()),
        file("sys/src/disk.rs", "crates/sys/src/disk.rs"),
        file("sys/src/uring.rs", "crates/sys/src/uring.rs"),
        file("port/page.rs", "crates/sys/src/port/page.rs"),
        Named::Crate("a".to_string()),
        file("crates/a/src/b.rs", "crates/a/src/b.rs"),
        file("tests/t/main.rs", "tests/t/main.rs"),
    ];
    assert_eq!(names(text), expected);
}
