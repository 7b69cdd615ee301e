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
    fn the_average_is_never_below_one() {
        let mut average = Average::default();
        average.observe(Messages(1), Entries(4));
        assert_eq!(average.get(), Some(1.0));
    }
}
