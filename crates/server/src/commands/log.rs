//! `pelton log`: reads a data directory without changing it.

use std::{
    fmt::Write as _,
    io::{self, BufWriter, Write},
    ops::ControlFlow,
    path::Path,
};

use pelton::{
    Messages,
    inspect::{self, DirReport, DumpedEntry, ShardLog, TopicLog},
};
use pelton_load::units;

use crate::outcome::{Failure, print, printed};

/// Ranges of entries shown per topic; a scattered backlog has thousands.
const RUNS_SHOWN: usize = 20;

/// Bytes shown of a key or payload.
const TEXT_SHOWN: usize = 160;

const RED: &str = "\x1b[1;31m";
const YELLOW: &str = "\x1b[33m";
const GREEN: &str = "\x1b[32m";
const BOLD: &str = "\x1b[1m";
const PLAIN: &str = "\x1b[0m";

pub(crate) fn verify(dir: &Path) -> Result<(), Failure> {
    let report = inspect::verify(dir).map_err(|error| unreadable(dir, error))?;
    print(&text(&report))?;
    match report.is_sound() {
        true => Ok(()),
        false => Err(Failure::Told),
    }
}

pub(crate) fn dump(dir: &Path, limit: Option<u64>) -> Result<(), Failure> {
    let mut left = limit.unwrap_or(u64::MAX);
    let mut out = BufWriter::new(io::stdout().lock());
    let mut wrote = Ok(());
    let mut each = |entry: DumpedEntry<'_>| {
        if left == 0 {
            return ControlFlow::Break(());
        }
        left -= 1;
        wrote = entry_lines(&mut out, &entry);
        match &wrote {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    let report = inspect::dump(dir, &mut each).map_err(|error| unreadable(dir, error))?;
    printed(wrote.and_then(|()| out.flush()))?;
    drop(out);
    let damaged = report
        .shards
        .iter()
        .find_map(|shard| shard.error.as_ref().map(|e| (shard, e)));
    if let Some((shard, error)) = damaged {
        return Err(Failure::Error(format!(
            "reading {} stopped: {error}; see pelton log verify {}",
            shard.dir.display(),
            dir.display()
        )));
    }
    Ok(())
}

fn unreadable(dir: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::Error(format!(
        "reading the data directory {} failed: {error}; nothing was changed",
        dir.display()
    ))
}

fn text(report: &DirReport) -> String {
    let mut out = String::new();
    for shard in &report.shards {
        shard_lines(&mut out, shard);
    }
    if report.metadata_missing {
        let _ = writeln!(
            out,
            "{RED}MISSING{PLAIN}: meta.redb, which names the topics: without it an open is refused"
        );
    }
    let _ = match report.is_sound() {
        true => writeln!(
            out,
            "{GREEN}sound{PLAIN}: all that was promised is there and readable"
        ),
        false => writeln!(
            out,
            "{RED}NOT SOUND{PLAIN}: keep a copy of the directory before anything is done to it"
        ),
    };
    out
}

fn shard_lines(out: &mut String, shard: &ShardLog) {
    let found = &shard.found;
    let _ = writeln!(
        out,
        "{BOLD}shard {}{PLAIN}  {}: {} of segments in {}, {} in {}",
        shard.shard,
        shard.dir.display(),
        units::bytes(shard.bytes as f64),
        units::many(shard.files, "file"),
        units::entries(found.entries),
        units::many(found.ledgers, "ledger")
    );
    if let Some(error) = &shard.error {
        let _ = writeln!(out, "  {RED}DAMAGED{PLAIN}: {error}");
        return;
    }
    let stop = match found.clean {
        true => "stopped in an orderly way",
        false => "not stopped in an orderly way, or still running",
    };
    let _ = writeln!(
        out,
        "  {stop}; {} segments with blocks, {} of them read block by block, {} spares",
        found.segments, found.segments_scanned, found.spares
    );
    if let Some((segment, offset)) = found.torn {
        let _ = writeln!(
            out,
            "  {YELLOW}torn end{PLAIN} in {segment} at byte {offset}: a commit that was never \
             receipted; the next open cuts it"
        );
    }
    if !shard.repairs.is_empty() {
        let _ = writeln!(
            out,
            "  the next open has {} to do: it syncs, cuts or zeroes what a commit left",
            units::many(shard.repairs.len() as u64, "repair")
        );
    }
    if let Some(reached) = found.reached {
        let _ = writeln!(
            out,
            "  {RED}MISSING{PLAIN}: its end, or all of it: the log ends at block {} and had reached \
             block {reached}",
            found.end
        );
    }
    for segment in &found.lost_segments {
        let _ = writeln!(
            out,
            "  {RED}MISSING{PLAIN}: {segment} held entries that are not acked"
        );
    }
    shard
        .topics
        .iter()
        .for_each(|topic| topic_lines(out, topic));
}

fn topic_lines(out: &mut String, topic: &TopicLog) {
    let name = topic.name.as_deref().map_or_else(
        || format!("(deleted, id {})", topic.key),
        |name| format!("{name:?}"),
    );
    let _ = writeln!(
        out,
        "  topic {name}: {} entries, {} messages, {} of payload and framing",
        units::count(topic.entries),
        units::count(topic.messages),
        units::bytes(topic.bytes as f64)
    );
    if topic.timed > 0 {
        let _ = writeln!(
            out,
            "    {} with a deliver-at time or a deadline",
            units::count(topic.timed)
        );
    }
    let mut previous = None;
    for run in topic.runs.iter().take(RUNS_SHOWN) {
        // Within a ledger a gap is what was acked before its neighbours, or is bad (named below).
        let gap = if previous == Some(run.first.ledger) {
            ", after a gap"
        } else {
            ""
        };
        previous = Some(run.first.ledger);
        let last = run.first.last_of(run.entries).entry;
        let _ = writeln!(
            out,
            "    ledger {}: entries {} to {last}{gap}",
            run.first.ledger, run.first.entry
        );
    }
    if topic.runs.len() > RUNS_SHOWN {
        let _ = writeln!(out, "    and {} ranges more", topic.runs.len() - RUNS_SHOWN);
    }
    for bad in topic.bad.iter().take(RUNS_SHOWN) {
        let _ = writeln!(
            out,
            "    {RED}BAD{PLAIN}: ledger {} entry {} cannot be read",
            bad.ledger, bad.entry
        );
    }
    if topic.bad.len() > RUNS_SHOWN {
        let _ = writeln!(
            out,
            "    {RED}BAD{PLAIN}: and {} entries more",
            topic.bad.len() - RUNS_SHOWN
        );
    }
    for cursor in &topic.cursors {
        let name = cursor.name.as_deref().map_or_else(
            || format!("(deleted, id {})", cursor.key),
            |name| format!("{name:?}"),
        );
        let acked = cursor.mark_delete.map_or_else(
            || "nothing acked in a row".to_owned(),
            |at| format!("acked through ledger {} entry {}", at.ledger, at.entry),
        );
        let _ = writeln!(
            out,
            "    subscription {name}: {acked}, {} beyond, {} in part",
            cursor.acked_beyond, cursor.partly_acked
        );
    }
}

/// One line per entry, one more per message.
fn entry_lines(out: &mut impl Write, entry: &DumpedEntry<'_>) -> io::Result<()> {
    let meta = entry.meta;
    write!(
        out,
        "shard {} topic {:?} ledger {} entry {} messages {} bytes {} producer {:016x} sequence {} \
         key_hash {} publish_ms {}",
        entry.shard,
        entry.topic,
        meta.position.ledger,
        meta.position.entry,
        meta.messages,
        meta.bytes,
        meta.producer,
        meta.sequence,
        meta.key_hash,
        meta.publish_ms
    )?;
    for (name, ms) in [
        ("deliver_at_ms", meta.deliver_at_ms),
        ("deadline_ms", meta.deadline_ms),
    ] {
        if ms != 0 {
            write!(out, " {name} {ms}")?;
        }
    }
    if !entry.properties.is_empty() {
        write!(out, " properties {}", shown(entry.properties))?;
    }
    writeln!(out)?;
    let mut messages = Messages::of(entry.body);
    for message in messages.by_ref() {
        match message.key {
            Some(key) => writeln!(out, "  {} -> {}", shown(key), shown(message.payload))?,
            None => writeln!(out, "  {}", shown(message.payload))?,
        }
    }
    if !messages.intact() {
        writeln!(
            out,
            "  the rest of the body is no message of this engine's framing"
        )?;
    }
    Ok(())
}

fn shown(bytes: &[u8]) -> String {
    let (start, rest) = bytes.split_at(bytes.len().min(TEXT_SHOWN));
    match rest.len() {
        0 => format!("\"{}\"", start.escape_ascii()),
        more => format!("\"{}\" and {more} bytes", start.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_and_binary_payloads_are_shown_in_one_short_line() {
        assert_eq!(shown(b"a\n\xff"), "\"a\\n\\xff\"");
        assert!(shown(&[b'x'; 1_000]).ends_with("x\" and 840 bytes"));
    }
}
