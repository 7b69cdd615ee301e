//! The configuration file of `pelton serve`: what it sets goes where the flags of that name go.
//!
//! A key is checked by the very parser its flag has, so there is one list of keys, one set of limits
//! and one set of defaults: those of `args/serve.rs`.

use std::ffi::OsString;

use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};
use toml::{Table, Value};

use crate::args::Serve;
use crate::outcome::Failure;

/// Flags that say how to start, not with what values.
const NOT_KEYS: [&str; 2] = ["config", "print_config"];

/// Names less alike than that are not offered as what was meant. Source: clap, for its flags.
const ALIKE_MIN: f64 = 0.7;

/// The values in force: the flags, then the file they name, then the defaults.
///
/// # Errors
/// One line: which file, which key, and what would be right.
pub(crate) fn in_force(serve: &Serve) -> Result<Serve, Failure> {
    let Some(file) = &serve.config else {
        return Ok(serve.clone());
    };
    let text = std::fs::read_to_string(file).map_err(|error| {
        let file = file.display();
        Failure::Usage(format!(
            "reading the configuration {file} failed: {error}; name a file that can be read"
        ))
    })?;
    let mut line = std::env::args_os().skip_while(|word| word != "serve");
    line.next();
    merged(&text, line.collect()).map_err(|why| {
        let file = file.display();
        Failure::Usage(format!("the configuration {file} cannot be used: {why}"))
    })
}

/// The same values as a file, each with what it means.
pub(crate) fn printed(serve: &Serve) -> Result<String, Failure> {
    let values = Table::try_from(serve).map_err(Failure::error)?;
    let mut text = String::new();
    for argument in command().get_arguments() {
        let key = argument.get_id().as_str();
        if !is_key(key) {
            continue;
        }
        let help = argument.get_help().map(ToString::to_string);
        text += &format!("# {}\n", help.unwrap_or_default());
        text += &match values.get(key) {
            Some(value) => format!("{key} = {value}\n\n"),
            None => format!("# {key} is not set\n\n"),
        };
    }
    text.pop();
    Ok(text)
}

fn merged(text: &str, flags: Vec<OsString>) -> Result<Serve, String> {
    let table: Table = text
        .parse()
        .map_err(|error: toml::de::Error| error.to_string().trim_end().replace('\n', " "))?;
    let mut words = Vec::new();
    for (key, value) in &table {
        if !is_key(key) {
            return Err(unknown(key));
        }
        let word = format!("--{}={}", key.replace('_', "-"), plain(key, value)?);
        parsed(vec![word.clone().into()]).map_err(|error| format!("key {key}: {error}"))?;
        words.push(word.into());
    }
    // Whatever is given twice, the later one counts.
    words.extend(flags);
    let matches = parsed(words)?;
    Serve::from_arg_matches(&matches).map_err(|error| first_line(&error))
}

fn parsed(words: Vec<OsString>) -> Result<ArgMatches, String> {
    let matches = command().try_get_matches_from(words);
    matches.map_err(|error| first_line(&error))
}

fn command() -> Command {
    Serve::augment_args(Command::new("serve").no_binary_name(true))
}

fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}

fn is_key(name: &str) -> bool {
    !NOT_KEYS.contains(&name)
        && command()
            .get_arguments()
            .any(|known| known.get_id() == name)
}

fn unknown(key: &str) -> String {
    let command = command();
    let keys = command.get_arguments().map(|known| known.get_id().as_str());
    let nearest = keys
        .filter(|known| !NOT_KEYS.contains(known))
        .map(|known| (strsim::jaro_winkler(known, key), known))
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((alike, name)) if alike >= ALIKE_MIN => {
            format!("there is no key {key:?}; is {name} meant?")
        }
        _ => format!("there is no key {key:?}; pelton serve --print-config lists them"),
    }
}

/// A value as its flag would be given it; a list with commas.
fn plain(key: &str, value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(_) | Value::Boolean(_) => Ok(value.to_string()),
        Value::Array(items) if items.iter().all(Value::is_str) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            Ok(items.join(","))
        }
        other => Err(format!(
            "key {key}: a value of type {} is not taken; give a string, a whole number, true or false, or a list of strings",
            other.type_str()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(words: &[&str]) -> Vec<OsString> {
        words.iter().map(Into::into).collect()
    }

    #[test]
    fn a_flag_goes_before_the_file_and_the_file_before_the_default() {
        let file = "shards = 2\npin = true\nlisten = \"127.0.0.1:7000\"";
        let serve = merged(file, flags(&["--shards", "3"])).unwrap();
        assert_eq!((serve.shards, serve.pin), (3, true));
        assert_eq!(serve.listen, "127.0.0.1:7000".parse().unwrap());
        assert_eq!(serve.shard_port_base, 6_700);
    }

    #[test]
    fn every_flag_but_two_is_a_key_and_there_are_at_most_25() {
        let command = command();
        let keys: Vec<_> = command
            .get_arguments()
            .map(|a| a.get_id().as_str())
            .filter(|key| is_key(key))
            .collect();
        assert!((10..=25).contains(&keys.len()), "{keys:?}");
        for not in NOT_KEYS {
            let error = merged(&format!("{not} = true"), Vec::new()).unwrap_err();
            assert!(error.contains("there is no key"), "{error}");
        }
    }

    #[test]
    fn an_unknown_key_is_refused_with_the_nearest_name() {
        let error = merged("shard = 2", Vec::new()).unwrap_err();
        assert_eq!(error, "there is no key \"shard\"; is shards meant?");
        let error = merged("zzz = 2", Vec::new()).unwrap_err();
        assert!(error.ends_with("--print-config lists them"), "{error}");
    }

    #[test]
    fn a_value_is_held_to_what_its_flag_is_held_to() {
        for (bad, says) in [
            (
                "shards = 0",
                "key shards: invalid value '0' for '--shards <N>': give a whole number",
            ),
            (
                "durability = \"often\"",
                "key durability: invalid value 'often'",
            ),
            (
                "shards = 1.5",
                "key shards: a value of type float is not taken",
            ),
            ("pin = \"perhaps\"", "key pin: invalid value"),
            ("shards = ", "TOML parse error"),
        ] {
            let error = merged(bad, Vec::new()).unwrap_err();
            assert!(
                error.contains(says) && !error.contains('\n'),
                "{bad}: {error}"
            );
        }
    }

    #[test]
    fn what_is_printed_is_read_back_as_the_same() {
        let serve = merged("shards = 4\nadvertised_host = \"here\"", Vec::new()).unwrap();
        let text = printed(&serve).unwrap();
        let again = merged(&text, Vec::new()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{serve:?}"));
        assert_eq!(printed(&again).unwrap(), text);
    }
}
