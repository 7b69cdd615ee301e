//! A file of real events: one JSON object a line, sent as it stands.

use std::{collections::BTreeMap, fs, ops::Range, path::Path};

use serde_json::{Map, Value};

use crate::LoadError;

/// Lines of a file, their keys and their arrival times.
#[derive(Debug)]
pub struct Events {
    text: String,
    lines: Vec<Event>,
    keys: Vec<String>,
    /// The field the keys came from.
    pub key_field: Option<String>,
    /// True if every line has a `time_ms`, false if none has.
    pub timed: bool,
    /// Blank lines, which are left out.
    pub blank: usize,
    /// Lines whose time is before that of an earlier line, with which they are sent.
    pub back: usize,
}

/// What is wrong with a file, and what to do.
type Refusal = (String, &'static str);

const CORRECT: &str = "correct or remove that line";

/// What an entry takes of a line beside the generator's own header; an engine takes 5 MiB.
const LINE_BYTES_MAX: usize = 5 << 20;

/// One line.
#[derive(Clone, Debug)]
struct Event {
    bytes: Range<usize>,
    key: u32,
    /// Nanoseconds after the first line's, never falling.
    offset_ns: u64,
}

impl Events {
    /// Reads a file. Each line must be a JSON object, blank ones are left out and counted; lines may end
    /// with LF or CR LF, the last one with neither. `key` names a field whose value (text or number) is
    /// the line's key. `time_ms`, on every line or on none, is the arrival time in milliseconds.
    ///
    /// # Errors
    /// If the file cannot be read, is not UTF-8, has no lines, or has a line that is no JSON object,
    /// lacks `key` or `time_ms`, or is longer than an entry may be. Each names file and line.
    pub fn read(path: &Path, key: Option<&str>) -> Result<Events, LoadError> {
        let refuse = |(why, remedy)| LoadError::Input {
            path: path.to_owned(),
            why,
            remedy,
        };
        let bytes = fs::read(path).map_err(|error| {
            let remedy = "give --input a readable file with one JSON object a line";
            refuse((error.to_string(), remedy))
        })?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = valid.iter().filter(|&&byte| byte == b'\n').count() + 1;
            refuse((format!("line {line} is not UTF-8"), CORRECT))
        })?;
        Events::parse(text, key).map_err(refuse)
    }

    fn parse(text: String, key: Option<&str>) -> Result<Events, Refusal> {
        if text.starts_with('\u{feff}') {
            let why = "line 1 begins with a byte order mark".into();
            return Err((why, "save it as UTF-8 without one"));
        }
        let mut lines = Vec::new();
        let mut ids: BTreeMap<String, u32> = BTreeMap::new();
        let mut keys = Vec::new();
        let mut times = Times::default();
        let (mut start, mut blank) = (0, 0);
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            let ended = line.strip_suffix('\n').unwrap_or(line);
            let content = ended.strip_suffix('\r').unwrap_or(ended);
            let bytes = start..start + content.len();
            start += line.len();
            if content.trim().is_empty() {
                blank += 1;
                continue;
            }
            let object = object(number, content)?;
            times.line(number, &object)?;
            let name = key.map_or(Ok(String::new()), |field| {
                let value = object.get(field);
                value.map(name_of).ok_or_else(|| {
                    let why = format!("line {number} has no field {field:?}");
                    (why, "name a field of all lines with --key, or leave it out")
                })
            })?;
            let id = *ids.entry(name.clone()).or_insert_with(|| {
                keys.push(name);
                u32::try_from(keys.len() - 1).expect("fewer keys than lines of a file in memory")
            });
            lines.push(Event {
                bytes,
                key: id,
                offset_ns: 0,
            });
        }
        if lines.is_empty() {
            return Err((
                "it has no lines".into(),
                "give --input a file with one JSON object a line",
            ));
        }
        let timed = times.of_every_line()?;
        let back = timed.map_or(0, |times| set_offsets(&mut lines, times));
        let timed = timed.is_some();
        Ok(Events {
            text,
            lines,
            keys,
            key_field: key.map(str::to_owned),
            timed,
            blank,
            back,
        })
    }

    /// Lines, 1 or more.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Different keys, 1 or more.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys.len()
    }

    /// Text of a key.
    #[must_use]
    pub fn key_name(&self, key: u32) -> &str {
        &self.keys[key as usize]
    }

    /// Key of a line, by index.
    #[must_use]
    pub fn key(&self, line: usize) -> u32 {
        self.lines[line].key
    }

    /// Bytes of a line, without its line end.
    #[must_use]
    pub fn line(&self, line: usize) -> &[u8] {
        self.text[self.lines[line].bytes.clone()].as_bytes()
    }

    /// The longest line, in bytes.
    #[must_use]
    pub fn longest(&self) -> usize {
        self.lines
            .iter()
            .map(|line| line.bytes.len())
            .max()
            .unwrap_or(0)
    }

    /// Time from the first to the last line, in nanoseconds; 0 without times.
    #[must_use]
    pub fn span_ns(&self) -> u64 {
        self.lines.last().map_or(0, |line| line.offset_ns)
    }

    /// Offset of every line from the start when the time runs `speed` times as fast, in nanoseconds.
    #[must_use]
    pub fn offsets_ns(&self, speed: f64) -> Vec<u64> {
        self.lines
            .iter()
            .map(|line| (line.offset_ns as f64 / speed) as u64)
            .collect()
    }
}

fn object(number: usize, line: &str) -> Result<Map<String, Value>, Refusal> {
    if line.len() > LINE_BYTES_MAX {
        let why = format!(
            "line {number} has {} bytes, an entry takes {LINE_BYTES_MAX}",
            line.len()
        );
        return Err((why, CORRECT));
    }
    serde_json::from_str(line).map_err(|error| {
        // The parser counts lines of its own: it was given one.
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or(&text);
        let column = error.column();
        let why = format!("line {number} is not a JSON object: {what} at column {column}");
        (why, CORRECT)
    })
}

fn name_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The `time_ms` of the lines so far.
#[derive(Default)]
struct Times {
    of_lines_ms: Vec<u64>,
    /// The first line without one.
    missing: Option<usize>,
}

impl Times {
    fn line(&mut self, number: usize, object: &Map<String, Value>) -> Result<(), Refusal> {
        match object.get("time_ms").map(Value::as_u64) {
            Some(Some(time_ms)) => self.of_lines_ms.push(time_ms),
            Some(None) => {
                let why = format!("time_ms of line {number} is no whole number of milliseconds");
                return Err((why, CORRECT));
            }
            None => self.missing = self.missing.or(Some(number)),
        }
        Ok(())
    }

    /// All of them, or `None` if no line has one.
    fn of_every_line(&self) -> Result<Option<&[u64]>, Refusal> {
        match (&self.of_lines_ms[..], self.missing) {
            ([], _) => Ok(None),
            (times, None) => Ok(Some(times)),
            (_, Some(number)) => Err((
                format!("line {number} has no time_ms, and others have one"),
                "give every line a time_ms, or none",
            )),
        }
    }
}

/// Arrival times that step back are held at the latest before them: the file's order is the order.
/// How many were.
fn set_offsets(lines: &mut [Event], times_ms: &[u64]) -> usize {
    let first = times_ms[0];
    let (mut latest, mut back) = (first, 0);
    for (line, &time_ms) in lines.iter_mut().zip(times_ms) {
        back += usize::from(time_ms < latest);
        latest = latest.max(time_ms);
        line.offset_ns = (latest - first).saturating_mul(1_000_000);
    }
    back
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, key: Option<&str>) -> Result<Events, String> {
        Events::parse(text.to_owned(), key).map_err(|(why, _)| why)
    }

    #[test]
    fn lines_keep_their_bytes_keys_and_times() {
        let text = "{\"time_ms\":1000,\"k\":\"a\"}\r\n \n{\"time_ms\":3000,\"k\":2}\n{\"time_ms\":2000,\"k\":\"\"} ";
        let events = parse(text, Some("k")).unwrap();
        assert_eq!(
            (events.len(), events.key_count(), events.timed),
            (3, 3, true)
        );
        assert_eq!(events.line(0), b"{\"time_ms\":1000,\"k\":\"a\"}");
        assert_eq!(
            events.line(2),
            b"{\"time_ms\":2000,\"k\":\"\"} ",
            "as it stands"
        );
        let names: Vec<_> = (0..3).map(|i| events.key_name(events.key(i))).collect();
        assert_eq!(names, ["a", "2", ""]);
        // The third line's time steps back: it is held at the second's.
        assert_eq!(events.offsets_ns(1.0), [0, 2_000_000_000, 2_000_000_000]);
        assert_eq!(events.offsets_ns(20_000.0), [0, 100_000, 100_000]);
        assert_eq!((events.longest(), events.blank, events.back), (24, 1, 1));
    }

    #[test]
    fn a_file_without_times_is_untimed() {
        let events = parse("{\"a\":1}\n{}\n", None).unwrap();
        assert!(!events.timed);
        assert_eq!((events.key_count(), events.span_ns()), (1, 0));
    }

    #[test]
    fn what_cannot_be_replayed_is_refused_with_the_line() {
        assert!(parse("\u{feff}{}", None).unwrap_err().starts_with("line 1"));
        assert!(parse("", None).unwrap_err().contains("no lines"));
        let error = parse("{}\nnot json\n", None).unwrap_err();
        assert!(error.starts_with("line 2 is not a JSON object"), "{error}");
        assert!(parse("[1]\n", None).unwrap_err().starts_with("line 1"));
        assert!(
            parse("{\"a\":1}\n", Some("origin"))
                .unwrap_err()
                .contains("\"origin\"")
        );
        let refused = |text: &str, key| parse(text, key).unwrap_err();
        let error = refused("{\"k\":1}\n\n{\"l\":1}\n", Some("k"));
        assert_eq!(error, "line 3 has no field \"k\"");
        let error = refused("{\"time_ms\":1}\r\n{}", None);
        assert!(error.starts_with("line 2 has no time_ms"), "{error}");
        for bad in ["-1", "1.5", "\"1\"", "null"] {
            let error = refused(&format!("{{\"time_ms\":{bad}}}"), None);
            assert!(error.starts_with("time_ms of line 1 is no"), "{error}");
        }
        let error = refused("{}\n{\"cut\":", None);
        assert!(
            error.ends_with("EOF while parsing a value at column 7"),
            "{error}"
        );
        let huge = format!("{{}}\n{{\"a\":\"{}\"}}", "x".repeat(LINE_BYTES_MAX));
        assert!(refused(&huge, None).starts_with("line 2 has 52428"));
        let path = std::env::temp_dir().join(format!("pelton-replay-{}", std::process::id()));
        fs::write(&path, b"{}\n{}\n\xff\n").unwrap();
        let error = Events::read(&path, None).unwrap_err().to_string();
        assert!(error.contains("line 3 is not UTF-8"), "{error}");
        fs::remove_file(&path).unwrap();
        let missing = Events::read(Path::new("/nonexistent/file"), None)
            .unwrap_err()
            .to_string();
        assert!(
            missing.contains("/nonexistent/file") && !missing.contains('\n'),
            "{missing}"
        );
    }
}
