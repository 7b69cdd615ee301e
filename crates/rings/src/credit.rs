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
