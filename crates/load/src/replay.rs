//! A file of real events: one JSON object a line, sent as it stands.

use std::{collections::BTreeMap, fs, ops::Range, path::Path};

use crate::LoadError;

/// Lines of a file, their keys and their arrival times.
#[derive(Debug)]
pub struct Events {
    text: String,
    lines: Vec<Event>,
    keys: Vec<String>,
    /// The field the keys came from.
    pub key_field: Option<String>,
    /// True if every line has a `time_ms`.
    pub timed: bool,
}

/// One line.
#[derive(Clone, Debug)]
struct Event {
    bytes: Range<usize>,
    key: u32,
    /// Nanoseconds after the first line's, never falling.
    offset_ns: u64,
}

impl Events {
    /// Reads a file. Blank lines are skipped. Each other line must be a JSON object; `key` names a
    /// field of it whose value (text or number) is the line's key, and lines without it share the
    /// empty key. `time_ms`, if every line has one, is the arrival time in milliseconds.
    ///
    /// # Errors
    /// If the file cannot be read, is not UTF-8, has no lines, has a line that is no JSON object, or
    /// if `key` is given and no line has that field. Each names file and line.
    pub fn read(path: &Path, key: Option<&str>) -> Result<Events, LoadError> {
        let text = fs::read_to_string(path).map_err(|error| LoadError::Input {
            path: path.to_owned(),
            why: error.to_string(),
            remedy: "give --input a readable UTF-8 file with one JSON object a line",
        })?;
        Events::parse(text, key).map_err(|(why, remedy)| LoadError::Input {
            path: path.to_owned(),
            why,
            remedy,
        })
    }

    fn parse(text: String, key: Option<&str>) -> Result<Events, (String, &'static str)> {
        let mut lines = Vec::new();
        let mut ids: BTreeMap<String, u32> = BTreeMap::new();
        let mut keys = Vec::new();
        let mut times = Vec::new();
        let mut keyed = 0_usize;
        let mut start = 0;
        for (number, line) in text.split_inclusive('\n').enumerate() {
            let bytes = start..start + line.trim_end().len();
            start += line.len();
            if bytes.is_empty() {
                continue;
            }
            let object: serde_json::Map<String, serde_json::Value> =
                serde_json::from_str(&text[bytes.clone()]).map_err(|error| {
                    (
                        format!("line {} is not a JSON object: {error}", number + 1),
                        "correct or remove that line",
                    )
                })?;
            times.extend(object.get("time_ms").and_then(serde_json::Value::as_u64));
            let value = key.and_then(|field| object.get(field));
            keyed += usize::from(value.is_some());
            let name = value.map_or_else(String::new, |value| match value {
                serde_json::Value::String(text) => text.clone(),
                other => other.to_string(),
            });
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
        if let (Some(field), 0) = (key, keyed) {
            let why = format!("no line has the field {field:?}");
            return Err((
                why,
                "name a field of the lines with --key, or leave --key out",
            ));
        }
        let timed = times.len() == lines.len();
        if timed {
            set_offsets(&mut lines, &times);
        }
        Ok(Events {
            text,
            lines,
            keys,
            key_field: key.map(str::to_owned),
            timed,
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

/// Arrival times that step back are held at the latest before them: the file's order is the order.
fn set_offsets(lines: &mut [Event], times: &[u64]) {
    let first = times[0];
    let mut latest = first;
    for (line, &time_ms) in lines.iter_mut().zip(times) {
        latest = latest.max(time_ms);
        line.offset_ns = (latest - first).saturating_mul(1_000_000);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, key: Option<&str>) -> Result<Events, String> {
        Events::parse(text.to_owned(), key).map_err(|(why, _)| why)
    }

    #[test]
    fn lines_keep_their_bytes_keys_and_times() {
        let text =
            "{\"time_ms\":1000,\"k\":\"a\"}\r\n\n{\"time_ms\":3000,\"k\":2}\n{\"time_ms\":2000}";
        let events = parse(text, Some("k")).unwrap();
        assert_eq!(
            (events.len(), events.key_count(), events.timed),
            (3, 3, true)
        );
        assert_eq!(events.line(0), b"{\"time_ms\":1000,\"k\":\"a\"}");
        assert_eq!(events.line(2), b"{\"time_ms\":2000}");
        let names: Vec<_> = (0..3).map(|i| events.key_name(events.key(i))).collect();
        assert_eq!(names, ["a", "2", ""]);
        // The third line's time steps back: it is held at the second's.
        assert_eq!(events.offsets_ns(1.0), [0, 2_000_000_000, 2_000_000_000]);
        assert_eq!(events.offsets_ns(20_000.0), [0, 100_000, 100_000]);
        assert_eq!(events.longest(), 24);
    }

    #[test]
    fn a_line_without_a_time_makes_the_file_untimed() {
        let events = parse("{\"time_ms\":1}\n{}\n", None).unwrap();
        assert!(!events.timed);
        assert_eq!((events.key_count(), events.span_ns()), (1, 0));
    }

    #[test]
    fn what_cannot_be_replayed_is_refused_with_the_line() {
        assert!(parse("", None).unwrap_err().contains("no lines"));
        let error = parse("{}\nnot json\n", None).unwrap_err();
        assert!(error.starts_with("line 2 is not a JSON object"), "{error}");
        assert!(parse("[1]\n", None).unwrap_err().starts_with("line 1"));
        assert!(
            parse("{\"a\":1}\n", Some("origin"))
                .unwrap_err()
                .contains("\"origin\"")
        );
        let missing = Events::read(Path::new("/nonexistent/file"), None)
            .unwrap_err()
            .to_string();
        assert!(
            missing.contains("/nonexistent/file") && !missing.contains('\n'),
            "{missing}"
        );
    }
}
