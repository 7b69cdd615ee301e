//! Tests about the source itself: what no compiler holds, or would hold only where it looks.
#![forbid(unsafe_code)]

mod arrows;
mod cases;
mod lex;
mod map;
mod source;

use std::{
    fs,
    path::{Path, PathBuf},
};

/// The folder of the workspace.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is a folder of the workspace")
}

/// A file of ours, as text.
struct Source {
    /// From the root, `/` between the parts.
    path: String,
    text: String,
}

impl Source {
    /// `storage` for `crates/storage/src/log.rs`; nothing for what is not in `crates/`.
    fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }
}

/// Every Rust file of the workspace, in order of path.
fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    for folder in ["crates", "tests", "benches", "fuzz"] {
        collect(&root().join(folder), &mut paths);
    }
    paths.sort();
    assert!(
        paths.len() > 20,
        "only {} Rust files found: wrong folder?",
        paths.len()
    );
    paths.into_iter().map(read).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("list {}: {e}", folder.display())) {
        let path = entry.expect("a folder can be listed to its end").path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, paths);
        } else if path.extension().is_some_and(|e| e == "rs") {
            paths.push(path);
        }
    }
}

fn read(path: PathBuf) -> Source {
    let text = fs::read_to_string(&path)
        .unwrap_or_else(|e| panic!("read {}: {e}", path.display()))
        .replace("\r\n", "\n");
    let path = path
        .strip_prefix(root())
        .expect("found below the root")
        .to_string_lossy()
        .into();
    Source { path, text }
}

/// Fails with one line per finding.
fn expect_none(findings: &[String], rule: &str) {
    assert!(findings.is_empty(), "{rule}\n  {}", findings.join("\n  "));
}
