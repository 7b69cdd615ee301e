//! The files a command writes.

use std::{
    fs::{self, OpenOptions},
    io,
    path::Path,
};

use crate::outcome::Failure;

/// Opens the file as it will be opened to write it, but changes nothing. Before the work: nobody
/// wants to learn of a typing error after it. `input` is what the command reads.
pub(crate) fn check_output(path: &Path, input: Option<&Path>) -> Result<(), Failure> {
    let refuse = |why: &str| {
        Err(Failure::Usage(format!(
            "writing {} would fail: {why}; name a file that you may write, in a directory that exists",
            path.display()
        )))
    };
    let same = |input: &Path| fs::canonicalize(input).ok() == fs::canonicalize(path).ok();
    if path.exists() && input.is_some_and(same) {
        return refuse("it is the file to read");
    }
    match OpenOptions::new().append(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let made = OpenOptions::new().write(true).create_new(true).open(path);
            match made.and_then(|_| fs::remove_file(path)) {
                Ok(()) => Ok(()),
                Err(error) => refuse(&error.to_string()),
            }
        }
        Err(error) => refuse(&error.to_string()),
    }
}

/// Writes the whole file.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| {
        Failure::Error(format!(
            "writing {} failed: {error}; name a file that you may write",
            path.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_is_refused_before_the_run_and_the_others_are_left_as_they_are()
    {
        let dir = std::env::temp_dir().join(format!("pelton-output-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let (new, old) = (dir.join("new.json"), dir.join("old.json"));
        fs::write(&old, "old").unwrap();
        check_output(&new, None).unwrap();
        assert!(!new.exists(), "the check leaves no file behind");
        check_output(&old, Some(&new)).unwrap();
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        for (path, input) in [
            (dir.join("missing/new.json"), None),
            (dir.clone(), None),
            (old.clone(), Some(old.as_path())),
        ] {
            let Err(Failure::Usage(line)) = check_output(&path, input) else {
                panic!("{} is refused", path.display());
            };
            assert!(line.contains(path.to_str().unwrap()), "{line}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
