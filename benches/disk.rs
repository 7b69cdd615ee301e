//! A log on a disk that does everything at once: in memory, or nowhere.

use std::collections::BTreeMap;

use pelton_broker::storage::{
    DiskDone, DiskOp, DiskOpKind, Durability, Log, NewEntry, Options, SegmentId, SegmentInfo,
    Ticket, TopicKey, TopicSlot,
};

/// A log with one synced topic.
#[derive(Debug)]
pub(crate) struct Shelf {
    log: Log,
    topic: TopicSlot,
    now_ns: u64,
    body: Vec<u8>,
    last: Ticket,
    /// What was written, if it is kept; a bench is not about copying it.
    files: Option<BTreeMap<SegmentId, Vec<u8>>>,
}

impl Shelf {
    /// With bodies of so many bytes.
    pub(crate) fn new(body_bytes: usize, keep: bool) -> Shelf {
        Shelf::over(keep.then(BTreeMap::new), body_bytes)
    }

    fn over(files: Option<BTreeMap<SegmentId, Vec<u8>>>, body_bytes: usize) -> Shelf {
        let segments: Vec<SegmentInfo> = files
            .iter()
            .flatten()
            .map(|(id, file)| SegmentInfo {
                id: *id,
                bytes: file.len() as u64,
            })
            .collect();
        let options = Options {
            log_id: 1,
            segment_bytes: 4 << 20,
            ..Options::default()
        };
        let recovered = Log::recover(options, &segments, &mut |segment, offset, buffer| {
            let file = &files.as_ref().expect("it has segments")[&segment][offset as usize..];
            let bytes = buffer.len().min(file.len());
            buffer[..bytes].copy_from_slice(&file[..bytes]);
            Ok(bytes)
        });
        let mut log = recovered.expect("written by a log").log;
        let topic = log.open_topic(TopicKey(1), Durability::Synced);
        let (body, last) = (vec![7; body_bytes], Ticket(0));
        let mut shelf = Shelf {
            log,
            topic,
            now_ns: 1,
            body,
            last,
            files,
        };
        shelf.commit();
        shelf
    }

    /// Crosses a few segment borders, so that buffers have their size and segments are recycled.
    pub(crate) fn warm(body_bytes: usize) -> Shelf {
        let mut shelf = Shelf::new(body_bytes, false);
        let entries = (20 << 20) / body_bytes.max(64) as u64;
        for _ in 0..entries / 100 {
            shelf.append(100);
            shelf.commit();
            shelf.consume();
        }
        shelf
    }

    pub(crate) fn append(&mut self, entries: u64) {
        for _ in 0..entries {
            let entry = NewEntry {
                body: &self.body,
                messages: 1,
                key_hash: 0,
                producer: 1,
                sequence: self.now_ns,
                publish_ms: 1,
                arrived_ns: self.now_ns,
                ..NewEntry::default()
            };
            let appended = self.log.append(self.topic, &entry, self.now_ns);
            self.last = appended.expect("there is room").ticket;
        }
    }

    /// Turns until everything appended is synced.
    pub(crate) fn commit(&mut self) {
        loop {
            self.now_ns += 1_000;
            self.log.flush_turn(self.now_ns);
            while let Some(op) = self.log.poll_op() {
                let done = self.carry_out(op);
                self.log.on_done(done);
            }
            while self.log.poll_event().is_some() {}
            if self.log.done_through(Durability::Synced) >= self.last {
                return;
            }
        }
    }

    /// Takes everything that may be dispatched, as runs, and trims it; returns how many entries.
    pub(crate) fn consume(&mut self) -> u64 {
        let (first, end) = (self.log.first(self.topic), self.log.ready_end(self.topic));
        let mut next = first;
        while next < end {
            let (block, slot, count) = self
                .log
                .run(self.topic, next, u32::MAX)
                .expect("the tail is in memory");
            assert_eq!(block.body(slot).len(), self.body.len());
            next += u64::from(count);
        }
        self.log.trim(self.topic, end);
        end - first
    }

    /// Entries that are there after the log is opened again.
    pub(crate) fn reopened(self) -> u64 {
        assert!(self.files.is_some(), "only what was kept can be opened");
        let again = Shelf::over(self.files, self.body.len());
        again.log.end(again.topic) - again.log.first(again.topic)
    }

    fn carry_out(&mut self, op: DiskOp) -> DiskDone {
        let id = op.id;
        let done = |bytes, buffer| DiskDone {
            id,
            result: Ok(bytes),
            buffer,
        };
        match op.kind {
            DiskOpKind::Write {
                segment,
                offset,
                buffer,
            }
            | DiskOpKind::Commit {
                segment,
                offset,
                buffer,
            } => {
                if let Some(files) = &mut self.files {
                    let file = files.get_mut(&segment).expect("made before");
                    file[offset as usize..][..buffer.len()].copy_from_slice(buffer.as_slice());
                }
                done(buffer.len(), Some(buffer))
            }
            DiskOpKind::Create {
                segment,
                bytes,
                header,
                ..
            } => {
                if let Some(files) = &mut self.files {
                    let mut file = vec![0; bytes as usize];
                    file[..header.len()].copy_from_slice(header.as_slice());
                    files.insert(segment, file);
                }
                done(0, Some(header))
            }
            DiskOpKind::Recycle { from, to, header } => {
                if let Some(files) = &mut self.files {
                    let mut file = files.remove(&from).expect("made before");
                    file[..header.len()].copy_from_slice(header.as_slice());
                    files.insert(to, file);
                }
                done(0, Some(header))
            }
            DiskOpKind::Read { .. } => panic!("everything is dispatched from memory"),
            DiskOpKind::Sync { .. } | DiskOpKind::Unlink { .. } | DiskOpKind::Forget { .. } => {
                done(0, None)
            }
        }
    }
}
