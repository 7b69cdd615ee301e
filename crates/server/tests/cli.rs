//! The binary as a user runs it: exit codes, output, files.
#![expect(
    clippy::disallowed_methods,
    reason = "tests wait for processes of their own"
)]

#[path = "cli/simulate.rs"]
mod simulate;

use std::{
    path::PathBuf,
    process::{Command, Output},
};

fn pelton(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_pelton"))
        .args(args)
        .output()
        .expect("the binary is built with its tests")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn scratch(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("pelton-cli-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a scratch directory");
    dir
}

#[test]
fn a_bench_prints_a_table_without_colours_and_writes_its_files() {
    let dir = scratch("bench");
    let path = |name: &str| dir.join(name).display().to_string();
    let (json, hgrm, html) = (path("a.json"), path("a.hgrm"), path("a.html"));
    let out = pelton(&[
        "bench",
        "throughput",
        "--rate",
        "5000",
        "--duration",
        "0.2",
        "--json",
        &json,
        "--hgrm",
        &hgrm,
        "--html",
        &html,
    ]);
    let table = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{table}{}", text(&out.stderr));
    assert!(
        table.contains("nothing lost, doubled or out of order"),
        "{table}"
    );
    assert!(!table.contains('\x1b'), "no terminal, no colours");
    assert_eq!(text(&out.stderr), "", "no terminal, no progress");
    let read = |path: &str| std::fs::read_to_string(path).expect("the file was written");
    let value: serde_json::Value = serde_json::from_str(&read(&json)).expect("one JSON object");
    assert_eq!(value["schema"], 1);
    assert_eq!(value["messages"]["lost"], 0);
    assert!(read(&hgrm).contains("Percentile"));
    assert!(read(&html).contains("<svg"));
    std::fs::remove_dir_all(&dir).expect("ours");
}

#[test]
fn usage_errors_end_with_2_and_say_what_to_do_in_one_line() {
    for (args, remedy) in [
        (&["bench", "replay"][..], "--input FILE"),
        (&["bench", "rtt", "--rate", "5"], "leave it out"),
        (&["bench", "throughput", "--size", "3"], "--size 24"),
        (&["bench", "rtt", "--dir", "/nonexistent/x"], "--dir DIR"),
        (&["bench", "backlog", "--hgrm", "x"], "leave --hgrm out"),
        (
            &["bench", "rtt", "--json", "/nonexistent/x.json"],
            "a directory that exists",
        ),
    ] {
        let out = pelton(args);
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {error}");
        let first = error.lines().next().unwrap_or_default();
        assert!(first.starts_with("pelton: "), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(
            error.contains(remedy) || first.contains("use it with"),
            "{error}"
        );
    }
    assert_eq!(pelton(&["bench", "nothing"]).status.code(), Some(2));
    assert_eq!(pelton(&[]).status.code(), Some(2));
}

#[test]
fn an_interrupt_while_replay_waits_for_its_next_line_is_not_heard() {
    let dir = scratch("gap");
    let events = dir.join("gap.ndjson");
    let lines = "{\"time_ms\":0}\n{\"time_ms\":864000000}\n";
    std::fs::write(&events, lines).expect("a file of events");
    let replay = ["bench", "replay", "--speed", "1", "--input"];
    let mut run = Command::new(env!("CARGO_BIN_EXE_pelton"))
        .args(replay)
        .arg(&events)
        .arg("--dir")
        .arg(&dir)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the binary is built with its tests");
    std::thread::sleep(std::time::Duration::from_secs(3));
    let pid = run.id().to_string();
    let told = Command::new("kill").args(["-INT", &pid]).status();
    assert!(told.expect("kill is there").success());
    let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let code = loop {
        if let Some(status) = run.try_wait().expect("it is our child") {
            break status.code();
        }
        if std::time::Instant::now() > until {
            run.kill().expect("it is our child");
            panic!("it still runs");
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    };
    assert_eq!(code, Some(1), "an interrupted run has not checked all");
    let left = std::fs::read_dir(&dir).expect("ours").count();
    assert_eq!(left, 1, "its directory is removed");
    std::fs::remove_dir_all(&dir).expect("ours");
}

#[test]
fn json_to_standard_output_makes_a_file_of_a_strange_name() {
    let dir = scratch("stdout");
    let args = ["bench", "rtt", "--duration", "0.1", "--json", "-"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_pelton"));
    let out = command.args(args).current_dir(&dir).output();
    let out = out.expect("the binary is built with its tests");
    let error = text(&out.stderr);
    let value: serde_json::Value = serde_json::from_slice(&out.stdout).expect(&error);
    assert_eq!(value["schema"], 1);
    let left = std::fs::read_dir(&dir).expect("ours").count();
    assert_eq!(left, 0, "no file is made");
    std::fs::remove_dir_all(&dir).expect("ours");
}

#[test]
fn output_that_could_not_be_written_ends_with_0() {
    for args in [&["check", "--no-probe"][..], &["log", "verify"]] {
        let dir = scratch("full");
        let data = dir.join("data");
        drop(pelton::Engine::builder(&data).open().expect("an engine"));
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full");
        let mut command = Command::new(env!("CARGO_BIN_EXE_pelton"));
        command.args(args).stdout(full.expect("Linux has it"));
        if args[0] == "log" {
            command.arg(&data);
        }
        let out = command
            .output()
            .expect("the binary is built with its tests");
        assert_eq!(out.status.code(), Some(1), "{args:?}");
        let error = text(&out.stderr);
        assert!(error.contains("standard output"), "{args:?}: {error}");
        std::fs::remove_dir_all(&dir).expect("ours");
    }
}

#[test]
fn what_cannot_be_done_ends_with_1_and_one_line() {
    let dir = scratch("empty");
    let empty = dir.display().to_string();
    for args in [
        &["bench", "replay", "--input", "/nonexistent"][..],
        &["log", "verify", "/nonexistent"],
        &["log", "verify", &empty],
        &["log", "dump", &empty],
        &["check", "--dir", "/nonexistent"],
        &["check", "--dir", "/proc"],
    ] {
        let out = pelton(args);
        let error = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let left = std::fs::read_dir(&dir).expect("still there").count();
    assert_eq!(left, 0, "looking changes nothing");
    std::fs::remove_dir(&dir).expect("ours and empty");
}

#[test]
fn a_log_is_verified_and_dumped_and_damage_is_named() {
    let dir = scratch("log");
    {
        let engine = pelton::Engine::builder(&dir)
            .open()
            .expect("a fresh directory");
        let topic = engine.topic("orders").open().expect("a topic");
        let subscribe = topic.subscribe("billing");
        let subscribe = subscribe.initial(pelton::InitialPosition::Earliest);
        let mut consumer = subscribe.open().expect("a consumer");
        let mut producer = topic.producer().open().expect("a producer");
        for i in 0..10 {
            producer.send(format!("order {i}")).expect("sent");
        }
        producer.flush().expect("stored");
        for _ in 0..4 {
            consumer.recv().expect("delivered").ack();
        }
        consumer.flush_acks().expect("durable");
        assert!(engine.shutdown(std::time::Duration::from_secs(10)).clean);
    }
    let path = dir.display().to_string();
    let verified = pelton(&["log", "verify", &path]);
    let report = text(&verified.stdout);
    assert_eq!(
        verified.status.code(),
        Some(0),
        "{report}{}",
        text(&verified.stderr)
    );
    assert!(
        report.contains("topic \"orders\"") && report.contains("sound"),
        "{report}"
    );
    assert!(
        report.contains("subscription \"billing\": acked through"),
        "{report}"
    );

    let dumped = pelton(&["log", "dump", &path, "--limit", "2"]);
    let lines = text(&dumped.stdout);
    assert_eq!(
        dumped.status.code(),
        Some(0),
        "{lines}{}",
        text(&dumped.stderr)
    );
    assert_eq!(lines.matches("topic \"orders\"").count(), 2, "{lines}");
    assert!(lines.contains("\"order "), "{lines}");
    damage(&dir, b"order 7");
    let verified = pelton(&["log", "verify", &path]);
    let report = text(&verified.stdout);
    assert_eq!(verified.status.code(), Some(1), "{report}");
    assert!(
        report.contains("NOT SOUND") && report.contains("seg-"),
        "{report}"
    );
    std::fs::remove_dir_all(&dir).expect("ours");
}

/// Changes one byte of the only place in the segments of `dir` that holds `what`.
fn damage(dir: &std::path::Path, what: &[u8]) {
    let mut found = 0;
    for entry in std::fs::read_dir(dir.join("shard-0")).expect("the folder of the shard") {
        let path = entry.expect("an entry").path();
        let mut bytes = std::fs::read(&path).expect("a segment");
        if let Some(at) = bytes.windows(what.len()).position(|window| window == what) {
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).expect("writable");
            found += 1;
        }
    }
    assert_eq!(found, 1, "the payload is stored as it is, once");
}
