//! Moving average of messages per entry: shown in statistics, and the plan of a store without counts.

use crate::{Entries, Messages};

/// `avg_messages_per_entry` of one consumer, subscription or topic, in messages per entry.
///
/// The first observation is taken as it is; then 0.9 old + 0.1 new; never below 1; zero entries are
/// no observation. Source: rules D22 and D23 of the dispatch specification; apache/pulsar#18553.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Average(Option<f64>);

impl Average {
    /// Takes one observation: what one pass handed over, whole batch sizes even of partly acked
    /// entries.
    pub fn observe(&mut self, messages: Messages, entries: Entries) {
        if entries.0 == 0 {
            return;
        }
        let sample = messages.0 as f64 / entries.0 as f64;
        let mixed = self.0.map_or(sample, |old| 0.9 * old + 0.1 * sample);
        self.0 = Some(mixed.max(1.0));
    }

    /// The average, or `None` before the first observation.
    #[must_use]
    pub fn get(&self) -> Option<f64> {
        self.0
    }

    /// As it is shown: rounded half up, 0 before the first observation (rule D23).
    #[must_use]
    pub fn shown(&self) -> u64 {
        self.0.map_or(0, |average| average.round() as u64)
    }

    /// What plans a read for a consumer where a store has no counts: its own average, else the
    /// largest of the subscription's other consumers, else the topic's (rule D25). With none of
    /// them [`crate::estimated_entries`] reads one entry.
    #[must_use]
    pub fn nearest(own: Self, others: impl IntoIterator<Item = Self>, topic: Self) -> Self {
        let largest = |others: f64, other: f64| others.max(other);
        let mut others = others.into_iter().filter_map(|other| other.0);
        let found = own
            .0
            .or_else(|| others.next().map(|first| others.fold(first, largest)));
        Self(found.or(topic.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ema_estimate() {
        let mut average = Average::default();
        assert_eq!(average.get(), None);
        average.observe(Messages(1000), Entries(10));
        let mut values = vec![average.get().unwrap()];
        average.observe(Messages(0), Entries(0));
        let mut below_two = None;
        for single in 1..=60 {
            average.observe(Messages(1), Entries(1));
            values.push(average.get().unwrap());
            if below_two.is_none() && average.get().unwrap() < 2.0 {
                below_two = Some(single);
            }
        }
        for (got, expected) in values.iter().zip([100.0, 90.1, 81.19, 73.171]) {
            assert!((got - expected).abs() < 1e-9, "{got} is not {expected}");
        }
        assert_eq!(below_two, Some(44));
    }

    #[test]
    fn ema_estimate_no_observation_makes_it_less_than_one_or_no_number() {
        for (messages, entries) in [(0, 1), (u64::MAX, 1), (u64::MAX, u64::MAX), (0, u64::MAX)] {
            let mut average = Average::default();
            for _ in 0..2000 {
                average.observe(Messages(messages), Entries(entries));
                average.observe(Messages(messages), Entries(0));
                let value = average.get().unwrap();
                assert!(value.is_finite() && value >= 1.0, "{value}");
            }
        }
    }

    #[test]
    fn ema_estimate_comes_from_the_nearest_that_has_one() {
        let of = |messages| {
            let mut average = Average::default();
            average.observe(Messages(messages), Entries(1));
            average
        };
        let unset = Average::default();
        let others = [of(50), unset, of(7)];
        assert_eq!(Average::nearest(of(3), others, of(20)).get(), Some(3.0));
        assert_eq!(Average::nearest(unset, others, of(20)).get(), Some(50.0));
        assert_eq!(Average::nearest(unset, [unset], of(20)).get(), Some(20.0));
        assert_eq!(Average::nearest(unset, [], unset).get(), None);
    }

    #[test]
    fn ema_estimate_is_shown_rounded_half_up() {
        let mut average = Average::default();
        assert_eq!(average.shown(), 0);
        average.observe(Messages(5), Entries(2));
        assert_eq!(average.shown(), 3);
    }

    #[test]
    fn the_average_is_never_below_one() {
        let mut average = Average::default();
        average.observe(Messages(1), Entries(4));
        assert_eq!(average.get(), Some(1.0));
    }
}
