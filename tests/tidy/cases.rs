//! `docs/CASES.md` says where each known way to go wrong is tested: the tests are there.

use crate::{expect_none, read, root};

const TABLE: &str = "docs/CASES.md";

/// One row: the id of the case, and the files that hold tests of it.
fn rows() -> Vec<(String, Vec<String>)> {
    let table = read(root().join(TABLE)).text;
    let rows: Vec<_> = table.lines().filter_map(row).collect();
    assert!(rows.len() > 50, "{TABLE} has {} rows", rows.len());
    rows
}

fn row(line: &str) -> Option<(String, Vec<String>)> {
    let mut cells = line.strip_prefix("| ")?.split(" | ");
    let id = cells.next()?;
    let is_id = id.contains('-')
        && id
            .chars()
            .all(|c| c.is_ascii_uppercase() || "-0123456789".contains(c));
    let files = cells.last()?.split('`').skip(1).step_by(2);
    is_id.then(|| (id.to_owned(), files.map(str::to_owned).collect()))
}

/// Whether the text has a test that carries the id in its name.
fn has_test(text: &str, id: &str) -> bool {
    let name = id.to_lowercase().replace('-', "_");
    let tests = text.split("#[test]\n").skip(1);
    tests
        .filter_map(|test| test.split("fn ").nth(1)?.split('(').next())
        .any(|test| test.contains(&name))
}

#[test]
fn every_case_has_the_tests_that_its_row_names() {
    let mut findings = Vec::new();
    for (id, files) in rows() {
        if files.is_empty() && !OPEN.contains(&id.as_str()) {
            findings.push(format!("{id} names no file"));
        }
        for file in files {
            let path = root().join(&file);
            if !path.is_file() || !has_test(&read(path).text, &id) {
                findings.push(format!("{id}: no test of that name in {file}"));
            }
        }
    }
    expect_none(&findings, "docs/CASES.md names tests that are not there:");
}

/// Cases nobody has written a test for yet; the list only gets shorter.
const OPEN: [&str; 3] = [
    "SUBSCRIBE-DUPLICATE-PENDING",
    "CONN-HALF-OPEN",
    "CONN-LIMIT-HANDSHAKE",
];

#[test]
fn what_is_no_test_is_not_taken_for_one() {
    let id = "A-CASE";
    assert!(has_test("#[test]\nfn a_case_of_two() {}", id));
    assert!(has_test("#[test]\n#[ignore]\npub fn it_is_a_case() {}", id));
    assert!(!has_test("fn a_case() {}", id));
    assert!(!has_test("// fn a_case\n#[test]\nfn other() {}", id));
    assert_eq!(row("| case | what | tests in |"), None);
    assert_eq!(
        row("| A-CASE | what | `a.rs`, `b.rs` |"),
        Some((id.to_owned(), vec!["a.rs".to_owned(), "b.rs".to_owned()]))
    );
}
