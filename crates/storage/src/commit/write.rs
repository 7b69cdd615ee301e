//! When a block is due, and blocks on their way inline: pieces are written slice by slice, and one
//! sync follows them.
use super::*;

impl Store {
    /// Data is committed unless a sync is in flight that it can share the next one with; records
    /// alone wait for data, or for their delay.
    pub(super) fn is_due(&self) -> bool {
        let open = &self.gather.open;
        if !self.gather.closed.is_empty() || self.writing.is_some() || open.is_empty() {
            return false;
        }
        if !open.groups.is_empty() {
            return self.sync.is_none() || open.has_written;
        }
        self.gather.soon || self.closing != Closing::No
    }

    pub(super) fn close_if_due(&mut self) {
        let waited = self.now_ns.saturating_sub(self.last_commit_ns) >= self.ack_delay_ns;
        if self.is_due()
            || waited
                && self.gather.open.has_records()
                && self.gather.closed.is_empty()
                && self.writing.is_none()
        {
            self.gather.close();
        }
        if self.closing == Closing::Wanted
            && !self.has_commit_work()
            && self.sync.is_none()
            && self.unsynced.is_empty()
        {
            self.closing = Closing::Marked;
            self.mark_wanted = self.active.is_some();
        }
    }

    /// The next block of the chain, of so many bytes.
    pub(super) fn new_block(&mut self, segment: u32, bytes: usize, seals: bool) -> Unsynced {
        let bytes = bytes as u64;
        let done = Unsynced {
            seq: self.chain.next_seq,
            segment,
            bytes,
            seals,
            // The next segment's first sync counts only behind this one.
            wants: seals,
            batch: None,
            said_written: false,
        };
        self.chain.next_seq += 1;
        self.checkpoint.bytes_since_start += bytes;
        self.last_commit_ns = self.now_ns;
        done
    }

    pub(super) fn start_writing(&mut self, pieces: VecDeque<(u64, PageBuf)>, done: Unsynced) {
        self.writing = Some(Writing {
            segment: done.segment,
            pieces,
            sent: 0,
            in_flight: false,
            done,
        });
    }

    /// Gives the batch to the block that was laid out from it.
    pub(super) fn finish_layout(&mut self, block: &mut Unsynced, batch: Batch, part: Part) {
        self.stats.cursor_bytes_written += (self.scratch.len() + batch.cursor.len()) as u64;
        let marks = std::mem::take(&mut self.mark_wanted);
        self.checkpoint
            .note_block(block.seq, part, self.scratch.len());
        if let Some(active) = &mut self.active {
            let number = self.checkpoint.number;
            active.footer.starts.extend(part.starts.then_some(number));
            active.footer.ends.extend(part.ends.then_some(number));
        }
        // Until a sync has proved this life, `written` entries wait for one as well.
        block.wants = batch.wants_sync
            || batch.has_records()
            || marks
            || part != Part::default()
            || !self.proven;
        block.batch = Some(batch);
    }

    /// The next part of a checkpoint, if one is under way and the block has room for it.
    pub(super) fn checkpoint_part(
        &mut self,
        topics: &[crate::topic::Topic],
        bytes: usize,
        (groups, entries): (usize, usize),
    ) -> Part {
        self.scratch.clear();
        if !self.checkpoint.is_active() {
            return Part::default();
        }
        let most = format::pages(self.gather.batch_bytes_max);
        let mut pages = most.min(self.pages_before_zeros());
        while pages > format::pages(bytes) && !self.fits(pages, groups, entries, 0) {
            pages -= 1;
        }
        let budget = (pages * PAGE_BYTES).saturating_sub(bytes);
        if budget < PART_BYTES_MIN || !self.fits(pages, groups, entries, 0) {
            return Part::default();
        }
        self.checkpoint.fill(
            &mut self.scratch,
            budget,
            topics,
            &self.recovered,
            &self.segments,
            &self.gather.resets_waiting(),
        )
    }

    pub(super) fn emit_slice(&mut self, slice_bytes: usize) {
        let Some(mut writing) = self.writing.take() else {
            return;
        };
        if let Some((offset, piece)) = writing.pieces.pop_front() {
            let at = offset + writing.sent as u64;
            let left = piece.len() - writing.sent;
            let buffer = if left == piece.len() && left <= slice_bytes {
                piece
            } else {
                let len = left.min(slice_bytes);
                let mut buffer = self.take_buffer(len);
                let from = writing.sent;
                buffer
                    .as_mut_slice()
                    .copy_from_slice(&piece.as_slice()[from..from + len]);
                writing.sent += len;
                if writing.sent < piece.len() {
                    writing.pieces.push_front((offset, piece));
                } else {
                    writing.sent = 0;
                    self.put_buffer(piece);
                }
                buffer
            };
            let segment = self.segments.get(writing.segment).id;
            let len = buffer.len();
            let pending = Pending::Write {
                segment: writing.segment,
                offset: at,
                len,
                again: false,
            };
            self.push_op(
                DiskOpKind::Write {
                    segment,
                    offset: at,
                    buffer,
                },
                pending,
            );
            writing.in_flight = true;
        }
        self.writing = Some(writing);
    }

    /// One sync in flight: the oldest segment first, so that what is synced is a prefix of the
    /// chain. It proves exactly the blocks whose last slice had returned when it is submitted.
    pub(super) fn start_sync(&mut self, bytes_max: u64) {
        if self.sync.is_some() || self.poisoned.is_some() {
            return;
        }
        let due = self.unsynced_wants > 0
            || self.unsynced_bytes > bytes_max
            || self.closing != Closing::No;
        let Some(first) = self.unsynced.front().filter(|_| due) else {
            return;
        };
        let segment = first.segment;
        let through = self
            .unsynced
            .iter()
            .take_while(|done| done.segment == segment)
            .last()
            .map_or(first.seq, |done| done.seq);
        let id: SegmentId = self.segments.get(segment).id;
        let op = self.push_op(DiskOpKind::Sync { segment: id }, Pending::Sync);
        self.sync = Some((op, through));
    }
}

impl Store {
    pub(crate) fn start_checkpoint(&mut self) {
        self.checkpoint.start();
    }

    /// Makes a segment of the table active.
    pub(crate) fn activate(&mut self, slot: u32) {
        self.segments.get_mut(slot).state = SegmentState::Active;
        self.active = Some(Active {
            slot,
            page: 1,
            footer: FooterBuilder::default(),
        });
        self.checkpoint.start_at_roll();
    }

    pub(crate) fn pending_has(&self, want: impl Fn(&Pending) -> bool) -> bool {
        self.pending.iter().any(|(_, pending)| want(pending))
    }
}
