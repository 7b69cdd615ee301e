//! A disk that does at once what it is asked, holds syncs back, or fails them; and the metadata.

use std::collections::{BTreeMap, VecDeque};

use pelton_storage::{
    DiskDone, DiskError, DiskOp, DiskOpKind, Log, Options as LogOptions, PAGE_BYTES, Recovered,
    SegmentId, SegmentInfo,
};

use crate::{Effect, Event, MetaDone};

#[derive(Debug, Default)]
pub(super) struct FakeDisk {
    files: BTreeMap<SegmentId, Vec<u8>>,
    meta: BTreeMap<String, Vec<u8>>,
    /// Syncs and commits stay in flight.
    pub(super) holds_syncs: bool,
    /// Reads stay in flight.
    pub(super) holds_reads: bool,
    /// The next metadata operation fails and changes nothing.
    pub(super) fails_meta: bool,
    held: Vec<DiskDone>,
    done: VecDeque<Event<'static>>,
}

impl FakeDisk {
    /// What a process finds that opens it after another one died.
    pub(super) fn reopened(self) -> FakeDisk {
        FakeDisk {
            files: self.files,
            meta: self.meta,
            ..FakeDisk::default()
        }
    }

    pub(super) fn recover(&self) -> Recovered {
        let options = LogOptions {
            segment_bytes: 256 << 10,
            log_id: 7,
            ..LogOptions::default()
        };
        let bytes = |file: &Vec<u8>| file.len() as u64;
        let segments: Vec<_> = self
            .files
            .iter()
            .map(|(&id, file)| SegmentInfo {
                id,
                bytes: bytes(file),
            })
            .collect();
        let mut read = |id: SegmentId, offset: u64, into: &mut [u8]| {
            let file = &self.files[&id];
            let from = (offset as usize).min(file.len());
            let count = into.len().min(file.len() - from);
            into[..count].copy_from_slice(&file[from..from + count]);
            Ok(count)
        };
        Log::recover(options, &segments, &mut read).expect("nothing was damaged")
    }

    /// Spoils every place where `bytes` are stored.
    pub(super) fn spoil(&mut self, bytes: &[u8]) {
        for file in self.files.values_mut() {
            let places = 0..=file.len() - bytes.len();
            let found: Vec<_> = places.filter(|&at| file[at..].starts_with(bytes)).collect();
            found.into_iter().for_each(|at| file[at] ^= 0xFF);
        }
    }

    pub(super) fn records(&self) -> Vec<(String, Vec<u8>)> {
        self.meta
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    }

    pub(super) fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Disk(op) => self.disk(op),
            Effect::Meta(op) if std::mem::take(&mut self.fails_meta) => {
                let (token, result) = (op.token, Err("a test failed it".to_owned()));
                self.done.push_back(Event::Meta(MetaDone { token, result }));
            }
            Effect::Meta(op) => {
                for (key, value) in op.writes {
                    match value {
                        Some(value) => self.meta.insert(key, value),
                        None => self.meta.remove(&key),
                    };
                }
                let (token, result) = (op.token, Ok(()));
                self.done.push_back(Event::Meta(MetaDone { token, result }));
            }
            other => panic!("{other:?} is nothing for a disk"),
        }
    }

    fn disk(&mut self, op: DiskOp) {
        let mut done = DiskDone {
            id: op.id,
            result: Ok(0),
            buffer: None,
        };
        let reads = matches!(op.kind, DiskOpKind::Read { .. });
        let proves = matches!(op.kind, DiskOpKind::Commit { .. } | DiskOpKind::Sync { .. });
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
                let file = self.files.get_mut(&segment).expect("it was made");
                let from = offset as usize;
                file[from..from + buffer.len()].copy_from_slice(buffer.as_slice());
                done.result = Ok(buffer.len());
                done.buffer = Some(buffer);
            }
            DiskOpKind::Read {
                segment,
                offset,
                mut buffer,
                ..
            } => {
                let file = &self.files[&segment];
                let (from, count) = (offset as usize, buffer.len());
                buffer
                    .as_mut_slice()
                    .copy_from_slice(&file[from..from + count]);
                done.result = Ok(count);
                done.buffer = Some(buffer);
            }
            DiskOpKind::Create {
                segment,
                bytes,
                header,
                ..
            } => {
                let mut file = vec![0; bytes as usize];
                file[..PAGE_BYTES].copy_from_slice(&header.as_slice()[..PAGE_BYTES]);
                self.files.insert(segment, file);
                done.buffer = Some(header);
            }
            DiskOpKind::Recycle { from, to, header } => {
                let mut file = self.files.remove(&from).expect("it was made");
                file[..PAGE_BYTES].copy_from_slice(&header.as_slice()[..PAGE_BYTES]);
                self.files.insert(to, file);
                done.buffer = Some(header);
            }
            DiskOpKind::Unlink { segment } => {
                self.files.remove(&segment);
            }
            DiskOpKind::Sync { .. } | DiskOpKind::Prewrite { .. } | DiskOpKind::Forget { .. } => {}
        }
        if proves && self.holds_syncs || reads && self.holds_reads {
            return self.held.push(done);
        }
        self.done.push_back(Event::Disk(done));
    }

    /// What was held back ends, well or badly; what comes later is not held.
    pub(super) fn let_go(&mut self, well: bool) {
        (self.holds_syncs, self.holds_reads) = (false, false);
        for mut done in self.held.drain(..) {
            if !well {
                let text = "sync of a test failed".to_owned();
                done.result = Err(DiskError {
                    errno: DiskError::EIO,
                    text,
                });
            }
            self.done.push_back(Event::Disk(done));
        }
    }

    pub(super) fn next_done(&mut self) -> Option<Event<'static>> {
        self.done.pop_front()
    }
}
