//! Properties of an entry: names and values beside its messages.
//!
//! ```text
//! u32 length of the name | name | u32 length of the value | value        for each, little endian
//! ```

/// Adds a property behind those that are there.
pub fn push_property(to: &mut Vec<u8>, name: &str, value: &str) {
    for text in [name, value] {
        let length = u32::try_from(text.len()).expect("a property is shorter than 4 GiB");
        to.extend_from_slice(&length.to_le_bytes());
        to.extend_from_slice(text.as_bytes());
    }
}

/// The properties of an entry, in their order; a name may come more than once. Any bytes are safe to
/// give: it ends early where they stop making sense.
#[derive(Clone, Debug)]
pub struct Properties<'a> {
    rest: &'a [u8],
}

impl<'a> Properties<'a> {
    /// Reads what [`push_property`] wrote.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Properties<'a> {
        Properties { rest: bytes }
    }

    /// The value of the last property of this name: what was added last holds.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        let named = self.clone().filter(|(found, _)| *found == name);
        named.last().map(|(_, value)| value)
    }

    fn text(&mut self) -> Option<&'a str> {
        let (length, rest) = self.rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
        let (text, rest) = rest.split_at_checked(length)?;
        self.rest = rest;
        std::str::from_utf8(text).ok()
    }
}

impl<'a> Iterator for Properties<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<(&'a str, &'a str)> {
        let pair = self.text().zip(self.text());
        if pair.is_none() {
            self.rest = &[];
        }
        pair
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_pushed_comes_back_and_any_cut_ends_early(
            pairs in prop::collection::vec((".{0,9}", ".{0,9}"), 0..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            for (name, value) in &pairs {
                push_property(&mut bytes, name, value);
            }
            let read: Vec<_> = Properties::of(&bytes).collect();
            prop_assert!(read.iter().copied().eq(pairs.iter().map(|(n, v)| (&**n, &**v))));
            let cut = cut.index(bytes.len() + 1);
            let some: Vec<_> = Properties::of(&bytes[..cut]).collect();
            prop_assert!(read.starts_with(&some));
            prop_assert_eq!(some.len() == read.len(), cut == bytes.len());
            for (name, _) in &read {
                let last = read.iter().rev().find(|(found, _)| found == name);
                prop_assert_eq!(Properties::of(&bytes).get(name), last.map(|&(_, value)| value));
            }
        }
    }
}
