//! The units of the dispatch path, one type each.

macro_rules! unit {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl std::ops::AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                Self(values.map(|value| value.0).sum())
            }
        }
    };
}

unit!(
    /// Messages: permits, unacked, tokens, rates, the backlog shown to users.
    Messages
);
unit!(
    /// Entries: stored records of one or more messages; plans, positions, replay.
    Entries
);
unit!(
    /// Stored bytes of payload: byte tokens and read budgets.
    Bytes
);
