//! Group commit.
use crate::cursor::*;
use crate::entry::*;
use crate::log::*;
use crate::op::*;
use crate::position::*;
use crate::stats::LogStats;

/// x
#[derive(Debug)]
pub(crate) struct Store;

impl Log {
    pub(crate) fn epoch(&self) -> u32 { 0 }
    pub(crate) fn append_stored(&mut self, _: TopicSlot, _: &NewEntry<'_>, _: u64) -> Result<Appended, Refused> { Err(Refused::NoDisk) }
    pub(crate) fn trim_stored(&mut self, _: TopicSlot, _: u64) {}
    pub(crate) fn attach_recovered(&mut self, _: TopicSlot) {}
    /// x
    pub fn fetch(&mut self, _slot: TopicSlot, _ordinal: u64, _want_entries: u32, _read_ahead_bytes: u64) -> Fetch { Fetch::NotNeeded }
    /// x
    pub fn open_sub(&mut self, _slot: TopicSlot, _sub: SubKey, _mark_delete: Option<Position>) -> Ticket { Ticket(0) }
    /// x
    pub fn drop_sub(&mut self, _slot: TopicSlot, _sub: SubKey) {}
    /// x
    pub fn ack_record(&mut self, _slot: TopicSlot, _sub: SubKey, _delta: AckDelta<'_>) -> Ticket { Ticket(0) }
    /// x
    pub fn cursor(&self, _slot: TopicSlot, _sub: SubKey) -> Option<CursorState> { None }
    /// x
    pub fn commit_soon(&mut self) {}
    /// x
    pub fn flush_turn(&mut self, _now_ns: u64) {}
    /// x
    pub fn poll_op(&mut self) -> Option<DiskOp> { None }
    /// x
    pub fn on_done(&mut self, _done: DiskDone) {}
    /// x
    pub fn poll_event(&mut self) -> Option<LogEvent> { self.events.pop_front() }
    /// x
    pub fn done_through(&self, _durability: Durability) -> Ticket { Ticket(0) }
    /// x
    pub fn close_mark(&mut self) {}
    /// x
    pub fn idle(&self) -> bool { true }
    /// x
    pub fn next_deadline(&self) -> Option<u64> { None }
    /// x
    pub fn stats(&self) -> LogStats { LogStats::default() }
    /// x
    pub fn forget_unopened(&mut self) {}
    /// x
    pub fn poisoned(&self) -> Option<&DiskError> { None }
}
