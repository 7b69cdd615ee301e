//! Who goes first, control or data: the credit rule (`spec/priority_and_balance.md` A3).

/// The two lanes of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Create, subscribe, close, seek, move, policy change, shutdown, stats, explain.
    Control,
    /// Publish, flow, ack.
    Data,
}

/// Control goes first while there is credit: it costs one per control item dispatched while data
/// waits, and each data item earns eight, up to 32. At zero one data item is forced.
///
/// So data gets at least `ceil((n - 32) / 9)` of any `n` dispatches made while it waits, never
/// waits for more than 32 control items, and a control item with `k` ahead of it waits for at most
/// `k / 8 + 1` data items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credit(u32);

impl Credit {
    /// The highest level, and the one to start from.
    pub const MAX: u32 = 32;
    /// What one data item earns.
    pub const PER_DATA: u32 = 8;

    /// Full credit.
    pub const fn new() -> Credit {
        Credit(Credit::MAX)
    }

    /// Which lane gives the next item, given which lanes hold one; `None` if neither does.
    ///
    /// The credit changes here and nowhere else. Finding data empty changes nothing: a reset there
    /// looks harmless, but lets a caller with one request outstanding fall from 1 in 9 to 1 in 33.
    #[inline]
    pub fn choose(&mut self, control_waits: bool, data_waits: bool) -> Option<Lane> {
        if control_waits && (self.0 > 0 || !data_waits) {
            self.0 -= u32::from(data_waits);
            return Some(Lane::Control);
        }
        if data_waits {
            self.0 = Credit::MAX.min(self.0 + Credit::PER_DATA);
            return Some(Lane::Data);
        }
        None
    }

    /// The credit left, 0 to 32.
    pub const fn level(&self) -> u32 {
        self.0
    }
}

impl Default for Credit {
    fn default() -> Credit {
        Credit::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data among the next `dispatches`, all made while both lanes hold something.
    fn data_among(credit: &mut Credit, dispatches: u32) -> u32 {
        (0..dispatches)
            .map(|_| u32::from(credit.choose(true, true) == Some(Lane::Data)))
            .sum()
    }

    #[test]
    fn an_empty_inbox_gives_nothing_and_a_lone_lane_goes() {
        let mut credit = Credit::new();
        assert_eq!(credit.choose(false, false), None);
        assert_eq!(credit.choose(true, false), Some(Lane::Control));
        assert_eq!(credit.choose(false, true), Some(Lane::Data));
        assert_eq!(credit, Credit::default());
    }

    #[test]
    fn t5_both_lanes_full_is_32_control_then_one_data_per_eight_control() {
        let mut credit = Credit::new();
        assert_eq!(data_among(&mut credit, 32), 0);
        assert_eq!(credit.level(), 0);
        for _ in 0..100 {
            assert_eq!(credit.choose(true, true), Some(Lane::Data));
            assert_eq!(data_among(&mut credit, 8), 0);
        }
        for (dispatches, data) in [(36, 1), (72, 5), (360, 37), (3_600, 397), (36_000, 3_997)] {
            assert_eq!(
                data_among(&mut Credit::new(), dispatches),
                data,
                "of {dispatches}"
            );
        }
        let mut credit = Credit::new();
        for before in 0..100 {
            let data = data_among(&mut credit.clone(), 36_000);
            assert!((3_997..=4_000).contains(&data), "{data} after {before}");
            data_among(&mut credit, 1);
        }
    }

    #[test]
    fn t6_control_missing_once_in_32_does_not_starve_data() {
        let mut credit = Credit::new();
        let data = (0..36_000)
            .filter(|i| credit.choose(i % 32 != 31, true) == Some(Lane::Data))
            .count();
        assert!(data >= 3_997, "{data}: any data clears the count");
    }

    #[test]
    fn t7_control_alone_neither_costs_nor_earns() {
        let mut credit = Credit::new();
        for _ in 0..1_000_000 {
            assert_eq!(credit.choose(true, false), Some(Lane::Control));
        }
        assert_eq!(data_among(&mut credit, 32), 0);
        assert_eq!(credit.choose(true, true), Some(Lane::Data));
    }

    #[test]
    fn t8_a_lane_that_runs_empty_does_not_refill_the_credit() {
        let mut credit = Credit::new();
        let (mut waits, mut while_waiting, mut data) = (true, 0, 0);
        while while_waiting < 3_600 {
            while_waiting += u32::from(waits);
            let chosen = credit.choose(true, waits);
            data += u32::from(chosen == Some(Lane::Data));
            waits = chosen == Some(Lane::Control); // Refilled one dispatch later.
        }
        assert_eq!(data, 397);
    }

    #[test]
    fn control_waits_for_one_data_item_per_eight_control_ahead() {
        // (control items ahead, most data dispatched before it, the same from full credit)
        for (ahead, worst, from_full) in [
            (0, 1, 0),
            (7, 1, 0),
            (8, 2, 0),
            (31, 4, 0),
            (32, 5, 1),
            (63, 8, 4),
            (255, 32, 28),
        ] {
            let data_before = |mut credit: Credit| {
                let (mut control, mut data) = (0, 0);
                while control <= ahead {
                    match credit.choose(true, true) {
                        Some(Lane::Control) => control += 1,
                        _ => data += 1,
                    }
                }
                data
            };
            assert_eq!(
                data_before(Credit::new()),
                from_full,
                "{ahead} ahead, full credit"
            );
            let most = (0..=Credit::MAX)
                .map(|level| data_before(Credit(level)))
                .max();
            assert_eq!(most, Some(worst), "{ahead} ahead");
        }
    }

    #[test]
    fn data_keeps_its_floor_against_every_adversary() {
        // fewest[credit] = least data among n dispatches made while data waits, whatever the
        // adversary puts into control; data may also run empty, and control then passes uncounted,
        // which changes nothing (T8).
        let mut fewest = [0u32; Credit::MAX as usize + 1];
        for dispatches in 1..=3_600u32 {
            let after = |level: u32, control: bool| {
                let mut credit = Credit(level);
                let chosen = credit.choose(control, true);
                u32::from(chosen == Some(Lane::Data)) + fewest[credit.level() as usize]
            };
            let next = std::array::from_fn(|level| {
                after(level as u32, true).min(after(level as u32, false))
            });
            fewest = next;
            let floor = dispatches.saturating_sub(32).div_ceil(9);
            assert_eq!(fewest.iter().min(), Some(&floor), "{dispatches} dispatches");
        }
    }
}
