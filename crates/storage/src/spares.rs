//! Spares: segments made ahead, consumed ones used again, and what happens when the disk is full.
use crate::ahead::{Ahead, PIECE_BYTES};
use crate::commit::{Pending, Store, coming};
use crate::format::SegmentHeader;
use crate::gather::Batch;
use crate::log::{Log, LogEvent};
use crate::op::{DiskError, DiskOpKind, Fill};
use crate::page::{PAGE_BYTES, PageBuf};
use crate::segments::SegmentState;

/// Wait between two attempts to make a segment after one failed.
const CREATE_RETRY_NS: u64 = 1_000_000_000;

impl Log {
    /// Consumed segments are recorded as freed; the record's sync lets them go.
    pub(crate) fn free_consumed(&mut self, store: &mut Store) {
        if store.poisoned.is_some() || !store.segments.look || store.is_marked() {
            return;
        }
        self.use_freed(store);
        let floor = store.checkpoint.floor_seq;
        while let Some(slot) = store.segments.find_consumed(floor) {
            store.segments.get_mut(slot).state = SegmentState::Freeing;
            store.gather.make_room(16);
            store.gather.open.freed.push(slot);
        }
        if store.no_space || store.spares() < self.options.spares_min as usize {
            store.gather.soon |= !store.gather.open.freed.is_empty();
            let behind = store
                .segments
                .iter()
                .filter(|(_, segment)| segment.is_consumed(u64::MAX));
            if let Some(last_seq) = behind.map(|(_, segment)| segment.last_seq).max() {
                store.checkpoint.start_for(last_seq);
            }
        }
    }

    /// Segments whose freed record is synced are recycled, or unlinked beyond `spares_max`.
    pub(crate) fn use_freed(&mut self, store: &mut Store) {
        let synced = store.chain.synced_seq;
        loop {
            let freed = store
                .segments
                .iter()
                .find(|(_, segment)| {
                    segment.state == SegmentState::Freeing
                        && segment.freed_seq != 0
                        && segment.freed_seq <= synced
                })
                .map(|(slot, segment)| (slot, segment.id, segment.bytes));
            let Some((slot, id, bytes)) = freed else {
                return;
            };
            store.segments.get_mut(slot).state = SegmentState::Leaving;
            if bytes == self.options.segment_bytes
                && store.spares() < self.options.spares_max as usize
            {
                let to = store.segments.new_id();
                let header = store.segment_header(to, bytes);
                let new = store.segments.add(coming(to, bytes));
                let pending = Pending::Recycle {
                    from: slot,
                    to: new,
                };
                store.push_op(
                    DiskOpKind::Recycle {
                        from: id,
                        to,
                        header,
                    },
                    pending,
                );
            } else {
                let pending = Pending::Unlink { slot };
                store.push_op(DiskOpKind::Unlink { segment: id }, pending);
            }
        }
    }

    /// Sees to enough spares, one in the making at a time.
    pub(crate) fn keep_spares(&mut self, store: &mut Store) {
        if store.poisoned.is_some() || store.no_space && store.now_ns < store.retry_create_ns {
            return;
        }
        // The first segment has the disk to itself until it is written through.
        if !store.lacks_spare(self.options.spares_min) || store.ahead.is_some() {
            return;
        }
        if store.active.is_none() && store.segments.ready().is_none() {
            store.create_first(self.options.segment_bytes);
        } else {
            store.create(self.options.segment_bytes, Fill::ZerosPaced);
        }
    }

    /// A roll waits for a segment: one is allocated at once, unless the first is being made.
    pub(crate) fn hurry_spare(&mut self, store: &mut Store) {
        store.wanted = true;
        let hurried = |pending: &Pending| {
            matches!(
                pending,
                Pending::Create {
                    allocated: true,
                    ..
                }
            )
        };
        let first = store.active.is_none() && store.segments.count(SegmentState::Coming) > 0;
        if first || store.pending_has(hurried) || store.segments.ready().is_some() {
            return;
        }
        if store.active.is_none() {
            store.create_first(self.options.segment_bytes);
            return;
        }
        let slot = store.create(self.options.segment_bytes, Fill::Allocate);
        store.stats.segments_allocated += 1;
        let id = store.segments.get(slot).id;
        self.events.push_back(LogEvent::SegmentAllocated(id));
    }

    pub(crate) fn on_created(
        &mut self,
        store: &mut Store,
        slot: u32,
        result: &Result<usize, DiskError>,
    ) {
        match result {
            Ok(_) => {
                store.segments.get_mut(slot).state = SegmentState::Ready;
                store.stats.segments_created += 1;
                store.no_space = false;
            }
            Err(error) => {
                let has_none = store.active.is_none() && store.segments.ready().is_none();
                if has_none && store.gather.held_bytes > 0 {
                    // There is no telling when what was taken could be written.
                    self.poison(store, error.clone());
                }
                // Whatever the reason: without new segments publishing ends with the active one.
                store.segments.remove(slot);
                store.ahead.take_if(|ahead| ahead.is_of(slot));
                store.no_space = true;
                store.segments.look = true;
                store.retry_create_ns = store.now_ns.saturating_add(CREATE_RETRY_NS);
            }
        }
    }

    pub(crate) fn on_recycled(
        &mut self,
        store: &mut Store,
        from: u32,
        to: u32,
        result: &Result<usize, DiskError>,
    ) {
        store.segments.remove(from);
        match result {
            Ok(_) => {
                store.segments.get_mut(to).state = SegmentState::Ready;
                store.stats.segments_recycled += 1;
                if store.segments.count(SegmentState::Ready) >= self.options.spares_min as usize {
                    store.no_space = false;
                }
            }
            // The file may have either name now; the next open finds it empty or unlinks it.
            Err(_) => store.segments.remove(to),
        }
    }
}

impl Store {
    /// Whether one more is to be made.
    pub(crate) fn lacks_spare(&self, spares_min: u32) -> bool {
        let wanted = spares_min as usize + usize::from(self.active.is_none());
        self.wanted
            && self.segments.count(SegmentState::Coming) == 0
            && self.segments.count(SegmentState::Ready) < wanted
    }

    /// Ready and coming spares.
    fn spares(&self) -> usize {
        self.segments.count(SegmentState::Ready) + self.segments.count(SegmentState::Coming)
    }

    /// A ready spare for the next block. While the disk is full the last one is for records.
    pub(crate) fn take_spare(&mut self, is_data: bool) -> Option<u32> {
        if is_data && self.no_space && self.segments.count(SegmentState::Ready) < 2 {
            return None;
        }
        self.segments.ready()
    }

    /// The segment that the first receipt waits for.
    fn create_first(&mut self, bytes: u64) {
        if bytes <= PIECE_BYTES {
            self.create(bytes, Fill::Zeros);
        } else {
            let slot = self.create(bytes, Fill::Allocate);
            self.ahead = Some(Ahead::new(slot));
        }
    }

    fn create(&mut self, bytes: u64, fill: Fill) -> u32 {
        let segment = self.segments.new_id();
        let header = self.segment_header(segment, bytes);
        let slot = self.segments.add(coming(segment, bytes));
        let pending = Pending::Create {
            slot,
            allocated: fill == Fill::Allocate,
        };
        self.push_op(
            DiskOpKind::Create {
                segment,
                bytes,
                header,
                fill,
            },
            pending,
        );
        slot
    }

    fn segment_header(&self, segment: crate::op::SegmentId, bytes: u64) -> PageBuf {
        let mut page = PageBuf::new(PAGE_BYTES);
        let header = SegmentHeader {
            log_id: self.chain.log_id,
            segment: segment.0,
            bytes,
            block_bytes_max: self.block_bytes_max as u64,
        };
        header.encode(page.as_mut_slice());
        page
    }

    /// Puts the records of everything gathered in front of the data they came behind, in one batch as far
    /// as they fit one, so that acks can free space while publishing is stopped; false if they were there
    /// already. Batch by batch they would use up the pages that are left, one each, before the record
    /// that frees a segment has its turn. What is empty then goes; its ticket is done with the data before it.
    pub(crate) fn let_records_ahead(&mut self) -> bool {
        if self.gather.open.has_records() {
            // Closing it makes later marks of its subscriptions new records.
            self.gather.close();
        }
        let bytes_max = self.gather.batch_bytes_max;
        let closed = &mut self.gather.closed;
        let first = closed.front();
        let were_ahead = first.is_some_and(|first| first.groups.is_empty() && first.has_records());
        let mut ahead = Batch::default();
        let mut moved = 0;
        for batch in closed.iter_mut().filter(|batch| batch.has_records()) {
            if !batch.move_records(&mut ahead, bytes_max) {
                break;
            }
            moved += 1;
        }
        let Some(last) = closed.back().filter(|_| moved > 0) else {
            return false;
        };
        let (ticket, waiting) = (last.ticket, closed.len());
        closed.retain(|batch| !batch.is_empty());
        let emptied = closed.len() < waiting;
        let last = closed.back_mut().unwrap_or(&mut ahead);
        last.ticket = ticket;
        // Whoever waits for the ticket of records waits for a sync, be it of the data it is done with now.
        last.wants_sync |= emptied;
        closed.push_front(ahead);
        moved > usize::from(were_ahead)
    }
}
