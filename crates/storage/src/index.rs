//! The index of a durable topic: place, size and message count of each live entry.
use std::collections::VecDeque;

/// Where an entry is stored. 16 bytes per live entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    /// Slot in the segment table; [`Spot::PENDING`] until its commit block is laid out.
    pub(crate) segment: u32,
    /// Byte offset of its stored header in the segment.
    pub(crate) offset: u32,
    /// Length of its body.
    pub(crate) bytes: u32,
    /// Messages in it.
    pub(crate) messages: u32,
}

impl Spot {
    pub(crate) const PENDING: u32 = u32::MAX;
}

/// Spots of consecutive ordinals.
#[derive(Debug, Default)]
pub(crate) struct Index {
    spots: VecDeque<Spot>,
    first: u64,
}

impl Index {
    pub(crate) fn push_pending(&mut self, bytes: u32, messages: u32) {
        self.spots.push_back(Spot {
            segment: Spot::PENDING,
            offset: 0,
            bytes,
            messages,
        });
    }

    /// The index of a recovered topic: ordinals count from 0.
    pub(crate) fn from_spots(spots: VecDeque<Spot>) -> Index {
        Index { spots, first: 0 }
    }

    #[cfg(test)]
    pub(crate) fn push(&mut self, spot: Spot) {
        self.spots.push_back(spot);
    }

    pub(crate) fn get(&self, ordinal: u64) -> Option<&Spot> {
        self.spots
            .get(usize::try_from(ordinal.checked_sub(self.first)?).ok()?)
    }

    pub(crate) fn place(&mut self, ordinal: u64, segment: u32, offset: u32) {
        let at = usize::try_from(ordinal - self.first).expect("an index fits memory");
        let spot = &mut self.spots[at];
        spot.segment = segment;
        spot.offset = offset;
    }

    /// Removes the spots below `before`, giving each to `gone`.
    pub(crate) fn trim(&mut self, before: u64, mut gone: impl FnMut(&Spot)) {
        while self.first < before
            && let Some(spot) = self.spots.pop_front()
        {
            gone(&spot);
            self.first += 1;
        }
    }

    pub(crate) fn messages_from(&self, ordinal: u64) -> u64 {
        let skip = usize::try_from(ordinal.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.spots
            .iter()
            .skip(skip)
            .map(|spot| u64::from(spot.messages))
            .sum()
    }
}
