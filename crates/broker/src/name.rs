//! What a topic or subscription may be called.

use crate::RequestError;

/// Longest name in bytes: it is a metadata key and a label in metrics.
const NAME_BYTES_MAX: usize = 512;

/// Checks a topic or subscription name: 1 to 512 bytes, no control characters, no blanks around it.
///
/// # Errors
/// [`RequestError::InvalidName`], which says what is wrong.
pub fn check_name(what: &'static str, name: &str) -> Result<(), RequestError> {
    let why = if name.is_empty() {
        "is empty: use 1 to 512 bytes"
    } else if name.len() > NAME_BYTES_MAX {
        "is too long: use 1 to 512 bytes"
    } else if name.chars().any(char::is_control) {
        "holds a control character: use printable characters"
    } else if name.trim() != name {
        "starts or ends with a blank: remove it"
    } else {
        return Ok(());
    };
    Err(RequestError::InvalidName {
        what,
        name: name.chars().take(64).collect(),
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::check_name;

    #[test]
    fn names_of_pulsar_are_fine_and_odd_ones_are_not() {
        for good in [
            "a",
            "persistent://public/default/orders",
            "Bestellungen für Köln",
        ] {
            assert_eq!(check_name("topic", good), Ok(()));
        }
        for bad in ["", " a", "a\n", "a\u{0}b", &"x".repeat(513)] {
            assert!(check_name("topic", bad).is_err(), "{bad:?} passed");
        }
    }
}
