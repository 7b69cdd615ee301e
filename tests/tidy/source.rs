//! Rules about the text of every source file.

use crate::{
    Source,
    arrows::CORE,
    expect_none,
    lex::{code_only, words},
    sources,
};

/// The crates that may say `unsafe`; each use there is justified where it stands.
const UNSAFE_CRATES: [&str; 2] = ["rings", "sys"];

/// Longer than this and a file has more than one subject (we aim at 150 to 400).
const LINES_MAX: usize = 800;

/// A justification stands in the comment directly above; this many lines of it and of the beginning
/// of the statement are looked at.
const LINES_ABOVE: usize = 12;

/// Parts of std that the core does without, and where the need for one goes instead.
const NOT_IN_CORE: [(&str, &str); 6] = [
    ("fs", "give a DiskOp"),
    ("net", "give an effect"),
    ("thread", "the core has one caller"),
    ("Instant", "take `now`"),
    ("SystemTime", "take `now`"),
    ("RandomState", "take a seed"),
];

#[test]
fn unsafe_code_lives_in_rings_and_sys_alone() {
    let mut findings = Vec::new();
    for source in &sources() {
        if source
            .crate_name()
            .is_some_and(|name| UNSAFE_CRATES.contains(&name))
        {
            continue;
        }
        let code = code_only(&source.text);
        findings.extend(lines_with_word(&code, "unsafe").map(|n| format!("{}:{n}", source.path)));
    }
    expect_none(&findings, "unsafe outside crates/rings and crates/sys:");
}

#[test]
fn every_other_crate_forbids_unsafe_code() {
    let mut findings = Vec::new();
    for source in &sources() {
        let Some(name) = source.crate_name() else {
            continue;
        };
        let is_root = ["lib.rs", "main.rs"].map(|root| format!("crates/{name}/src/{root}"));
        if is_root.contains(&source.path)
            && !UNSAFE_CRATES.contains(&name)
            && !code_only(&source.text).contains("#![forbid(unsafe_code)]")
        {
            findings.push(source.path.clone());
        }
    }
    expect_none(&findings, "add #![forbid(unsafe_code)] to:");
}

#[test]
fn every_unsafe_block_and_impl_has_its_safety_comment() {
    let mut findings = Vec::new();
    for source in &sources() {
        findings.extend(unjustified(&source.text).map(|n| format!("{}:{n}", source.path)));
    }
    expect_none(
        &findings,
        "say `// SAFETY:` with the invariant directly above:",
    );
}

#[test]
fn the_core_names_no_file_socket_thread_clock_or_random_source() {
    let mut findings = Vec::new();
    for source in &sources() {
        let is_core = source.crate_name().is_some_and(|name| CORE.contains(&name));
        // A file of tests has its `#[cfg(test)]` where it is named as a module.
        if is_core && source.path.contains("/src/") && !source.path.contains("/src/tests/") {
            let used = impure(&source.text);
            findings.extend(used.map(|(n, what)| format!("{}:{n}: {what}", source.path)));
        }
    }
    expect_none(
        &findings,
        "the core takes events and `now`, and gives effects:",
    );
}

#[test]
fn positions_are_computed_with_in_the_storage_crate_alone() {
    let mut findings = Vec::new();
    for source in &sources() {
        let path = &source.path;
        // The simulator computes what the log should have done; tests say what they expect.
        let may = ["crates/storage/", "crates/sim/", "/tests"];
        if !path.contains("/src/") || may.iter().any(|part| path.contains(part)) {
            continue;
        }
        let code = code_only(&source.text);
        let code = without_tests(&code);
        for sign in [".entry + ", ".entry - ", ".entry += ", ".entry -= "] {
            let lines = code.match_indices(sign).map(|(at, _)| line_of(code, at));
            findings.extend(lines.map(|n| format!("{path}:{n}: {sign}")));
        }
    }
    expect_none(&findings, "ask Position::nth, last_of or is_behind:");
}

#[test]
fn no_file_is_too_long_to_have_one_subject() {
    let mut findings = Vec::new();
    for Source { path, text } in &sources() {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            findings.push(format!("{path}: {lines} lines"));
        }
    }
    expect_none(&findings, "split what is over 800 lines by subject:");
}

#[test]
fn nothing_is_left_to_be_done_in_code() {
    let mut findings = Vec::new();
    for source in &sources() {
        let code = code_only(&source.text);
        for word in ["todo", "unimplemented"] {
            let calls = words(&code).filter(|(w, end)| *w == word && code[*end..].starts_with('!'));
            let lines = calls.map(|(_, end)| line_of(&code, end));
            findings.extend(lines.map(|n| format!("{}:{n}: {word}!", source.path)));
        }
    }
    expect_none(&findings, "a path that can be taken does something:");
}

/// Numbers of the lines with an `unsafe` block or impl that nothing above justifies.
fn unjustified(text: &str) -> impl Iterator<Item = usize> {
    let code = code_only(text);
    let lines: Vec<&str> = text.lines().collect();
    let mut needing: Vec<usize> = words(&code)
        .filter(|(word, end)| {
            let after = code[*end..].trim_start();
            *word == "unsafe" && (after.starts_with('{') || after.starts_with("impl"))
        })
        .map(|(_, end)| line_of(&code, end))
        .collect();
    // Of one line each is found, so that two blocks on a line share the comment above it.
    needing.dedup();
    let all = needing.clone();
    needing.into_iter().filter(move |&line| {
        let above = (line.saturating_sub(LINES_ABOVE)..=line)
            .rev()
            .filter(|&n| n > 0);
        let until_another = above.take_while(|n| *n == line || !all.contains(n));
        !until_another
            .into_iter()
            .any(|n| lines[n - 1].contains("// SAFETY:"))
    })
}

/// Line numbers and names of what the core must not use. Unit tests, which stand last in a file, may.
fn impure(text: &str) -> impl Iterator<Item = (usize, String)> {
    let code = code_only(text);
    let code = without_tests(&code);
    let mut found = Vec::new();
    for (at, _) in code.match_indices("std::") {
        let path = &code[at + "std::".len()..];
        for (name, instead) in NOT_IN_CORE {
            if words(path_end(path)).any(|(word, _)| word == name) {
                found.push((line_of(code, at), format!("std::…{name}: {instead}")));
            }
        }
    }
    found.into_iter()
}

/// Code up to its unit tests, which stand last in a file. A single item for tests ends nothing.
fn without_tests(code: &str) -> &str {
    let tests = code.match_indices("#[cfg(test)]\nmod ").find(|(at, _)| {
        let line = code[*at..].lines().nth(1).unwrap_or_default();
        line.contains('{')
    });
    tests.map_or(code, |(at, _)| &code[..at])
}

/// A path and all branches of its groups: `time::{Duration, Instant}`.
fn path_end(path: &str) -> &str {
    let mut depth = 0;
    for (i, c) in path.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            '_' | ':' => {}
            ',' | ' ' | '\n' | '*' if depth > 0 => {}
            c if c.is_alphanumeric() => {}
            _ => return &path[..i],
        }
    }
    path
}

fn lines_with_word<'a>(code: &'a str, wanted: &'a str) -> impl Iterator<Item = usize> + 'a {
    words(code)
        .filter(move |(word, _)| *word == wanted)
        .map(|(_, end)| line_of(code, end))
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

#[test]
fn a_block_without_its_own_comment_is_found() {
    let table: [(&str, &[usize]); 7] = [
        ("// SAFETY: ours.\nunsafe { a() }", &[]),
        (
            "// SAFETY: two\n// lines.\nlet x =\n    unsafe { a() };",
            &[],
        ),
        ("unsafe { a() }", &[1]),
        ("// SAFETY: ours.\nunsafe { a() }\nunsafe { b() }", &[3]),
        ("unsafe impl Send for X {}", &[1]),
        ("/// # Safety\n/// Call once.\npub unsafe fn a();", &[]),
        ("// says unsafe { } only\nlet x = \"unsafe {\";", &[]),
    ];
    for (text, expected) in table {
        assert_eq!(unjustified(text).collect::<Vec<_>>(), expected, "{text}");
    }
}

#[test]
fn what_the_core_must_not_use_is_found_in_every_spelling() {
    let table: [(&str, &[usize]); 8] = [
        ("use std::time::Duration;", &[]),
        (
            "use std::{collections::BTreeMap, mem};\nfn thread() {}",
            &[],
        ),
        ("\nuse std::time::{Duration, Instant};", &[2]),
        ("use std::{\n    fmt,\n    thread,\n};", &[1]),
        ("let x = std::fs::read(p);", &[1]),
        ("let x = ::std::time::SystemTime::now();", &[1]),
        ("// std::fs::read", &[]),
        (
            "fn f() {}\n#[cfg(test)]\nmod tests { use std::thread; }",
            &[],
        ),
    ];
    for (text, expected) in table {
        assert_eq!(
            impure(text).map(|(n, _)| n).collect::<Vec<_>>(),
            expected,
            "{text}"
        );
    }
}
