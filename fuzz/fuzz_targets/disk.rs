//! The files of a log in memory: they do what the log asks, and can be damaged.

use std::collections::BTreeMap;

use pelton_storage::{
    DiskDone, DiskError, DiskOp, DiskOpKind, Log, Options, PAGE_BYTES, RecoverError, Recovered,
    Repair, SegmentId, SegmentInfo,
};

/// Segment files by number. Everything written is there at once: what a power cut may lose of what
/// was not synced is the business of the simulator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files(BTreeMap<SegmentId, Vec<u8>>);

impl Files {
    /// Only this file.
    pub(crate) fn one(bytes: Vec<u8>) -> Files {
        Files(BTreeMap::from([(SegmentId(1), bytes)]))
    }

    pub(crate) fn carry_out(&mut self, op: DiskOp) -> DiskDone {
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
                let file = self
                    .0
                    .get_mut(&segment)
                    .expect("written to while it exists");
                write(file, offset, buffer.as_slice());
                done(buffer.len(), Some(buffer))
            }
            DiskOpKind::Read {
                segment,
                offset,
                mut buffer,
                ..
            } => {
                let file = self.0.get(&segment).map_or(&[][..], Vec::as_slice);
                let bytes = read(file, offset, buffer.as_mut_slice());
                done(bytes, Some(buffer))
            }
            DiskOpKind::Create {
                segment,
                bytes,
                header,
                ..
            } => {
                let mut file = vec![0; usize::try_from(bytes).expect("small files")];
                file[..header.len()].copy_from_slice(header.as_slice());
                assert!(
                    self.0.insert(segment, file).is_none(),
                    "{segment} is made twice"
                );
                done(0, Some(header))
            }
            DiskOpKind::Recycle { from, to, header } => {
                let mut file = self.0.remove(&from).expect("recycled while it exists");
                file[..header.len()].copy_from_slice(header.as_slice());
                assert!(self.0.insert(to, file).is_none(), "{to} is made twice");
                done(0, Some(header))
            }
            DiskOpKind::Prewrite { .. } => done(0, None),
            DiskOpKind::Unlink { segment } => {
                self.0.remove(&segment);
                done(0, None)
            }
            DiskOpKind::Sync { .. } | DiskOpKind::Forget { .. } => done(0, None),
        }
    }

    /// The first `pages` pages of a write, as a crash in the middle of it leaves them.
    pub(crate) fn tear(&mut self, op: &DiskOp, pages: usize) {
        if let DiskOpKind::Write {
            segment,
            offset,
            buffer,
        }
        | DiskOpKind::Commit {
            segment,
            offset,
            buffer,
        } = &op.kind
            && let Some(file) = self.0.get_mut(segment)
        {
            let bytes = buffer.len().min(pages * PAGE_BYTES);
            write(file, *offset, &buffer.as_slice()[..bytes]);
        }
    }

    pub(crate) fn recover(&self, options: &Options) -> Result<Recovered, RecoverError> {
        let segments: Vec<SegmentInfo> = self
            .0
            .iter()
            .map(|(id, file)| SegmentInfo {
                id: *id,
                bytes: file.len() as u64,
            })
            .collect();
        Log::recover(
            options.clone(),
            &segments,
            &mut |segment, offset, buffer| {
                let file = self.0.get(&segment).ok_or_else(|| DiskError {
                    errno: 2,
                    text: format!("open {segment}: not there"),
                })?;
                Ok(read(file, offset, buffer))
            },
        )
    }

    pub(crate) fn repair(&mut self, repairs: &[Repair]) {
        for repair in repairs {
            match *repair {
                Repair::Zero {
                    segment,
                    offset,
                    bytes,
                } => {
                    let file = self.0.get_mut(&segment).expect("repaired while it exists");
                    let zeros = vec![0; usize::try_from(bytes).expect("small files")];
                    write(file, offset, &zeros);
                }
                Repair::Sync(segment) => assert!(self.0.contains_key(&segment)),
                Repair::Unlink(segment) => assert!(self.0.remove(&segment).is_some()),
            }
        }
    }

    /// One fault. `code` says which kind, the others where.
    pub(crate) fn damage(&mut self, [code, segment, place, value]: [u8; 4]) {
        let count = self.0.len();
        let Some(id) = self
            .0
            .keys()
            .nth(usize::from(segment) % count.max(1))
            .copied()
        else {
            return;
        };
        let file = self.0.get_mut(&id).expect("just seen");
        let pages = (file.len() / PAGE_BYTES).max(1);
        let page = usize::from(place) % pages * PAGE_BYTES;
        let rest = file.len().saturating_sub(page);
        match code % 8 {
            // A byte of the first 256 of a page, where the headers are; then anywhere.
            0..=2 => set(
                file,
                page + usize::from(code / 8) * 8 + usize::from(value % 8),
                value,
            ),
            3 => set(
                file,
                page + usize::from(value) * 16 + usize::from(code / 8),
                value,
            ),
            4 => file[page..]
                .iter_mut()
                .take(PAGE_BYTES)
                .for_each(|byte| *byte = 0),
            5 => {
                let from = usize::from(value) % pages * PAGE_BYTES;
                let bytes = PAGE_BYTES.min(rest).min(file.len() - from);
                file.copy_within(from..from + bytes, page);
            }
            6 => file.truncate(page + usize::from(value) % PAGE_BYTES.min(rest.max(1))),
            _ => {
                let file = self.0.remove(&id).expect("just seen");
                // Lost, or found under another name.
                if value % 4 != 0 {
                    self.0
                        .insert(SegmentId(id.0.wrapping_add(u64::from(value) / 4)), file);
                }
            }
        }
    }

    /// Makes every checksum right for what is there, so that damage reaches the code behind them.
    /// Layout: `format.rs` and `entry.rs` of the storage crate.
    pub(crate) fn seal(&mut self) {
        let mut previous = 0;
        for file in self.0.values_mut() {
            let mut footer = 0;
            for at in (0..file.len().saturating_sub(PAGE_BYTES - 1)).step_by(PAGE_BYTES) {
                match &file[at..at + 4] {
                    b"PSG1" => seal_range(file, at + 4, at + 8, at + 64),
                    b"PBK1" => {
                        put(file, at + 72, previous);
                        let used = usize::try_from(get(file, at + 12)).expect("64 bits");
                        if used >= 8 && used <= file.len() - at {
                            seal_range(file, at + 4, at + 8, at + used);
                        }
                        (previous, footer) = (get(file, at + 4), get(file, at + 4));
                    }
                    b"PTR1" => {
                        put(file, at + 40, footer);
                        seal_range(file, at + 4, at + 8, at + 64);
                    }
                    _ => {}
                }
            }
        }
    }
}

fn read(file: &[u8], offset: u64, buffer: &mut [u8]) -> usize {
    let at = usize::try_from(offset)
        .unwrap_or(usize::MAX)
        .min(file.len());
    let bytes = buffer.len().min(file.len() - at);
    buffer[..bytes].copy_from_slice(&file[at..at + bytes]);
    bytes
}

/// A file that was cut grows again.
fn write(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let at = usize::try_from(offset).expect("small files");
    file.resize(file.len().max(at + bytes.len()), 0);
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

fn set(file: &mut [u8], at: usize, value: u8) {
    if let Some(byte) = file.get_mut(at) {
        *byte = value;
    }
}

fn seal_range(file: &mut [u8], crc_at: usize, from: usize, to: usize) {
    let crc = crc_fast::crc32_iscsi(&file[from..to]);
    put(file, crc_at, crc);
}

fn get(file: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([0, 1, 2, 3].map(|i| file[at + i]))
}

fn put(file: &mut [u8], at: usize, value: u32) {
    file[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
