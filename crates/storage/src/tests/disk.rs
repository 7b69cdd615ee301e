//! A disk in memory with a cached and a durable state, which can fail, tear and lose what was not
//! synced (`spec/runtime.md` 10.7).
use std::collections::BTreeMap;

use crate::{
    DiskDone, DiskError, DiskOp, DiskOpKind, PAGE_BYTES, PageBuf, Repair, SegmentId, SegmentInfo,
};

pub(crate) const SECTOR: usize = 512;

/// A small generator: chance is an input, so failures can be run again.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct File {
    pub(crate) cached: Vec<u8>,
    pub(crate) durable: Vec<u8>,
}

/// What was done to the disk, for tests of order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    Write(SegmentId, u64, usize),
    CommitStart(SegmentId, u64, usize),
    Committed(SegmentId),
    SyncStart(SegmentId),
    Synced(SegmentId),
    Created(SegmentId),
    Recycled(SegmentId, SegmentId),
    Prewritten(SegmentId, u64, u64),
    Unlinked(SegmentId),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    pub(crate) files: BTreeMap<SegmentId, File>,
    pub(crate) trace: Vec<Trace>,
    /// The next write stops after this many bytes.
    pub(crate) short_write: Option<usize>,
    pub(crate) fail_write: bool,
    pub(crate) fail_sync: bool,
    /// Files the file system has room for.
    pub(crate) files_max: Option<usize>,
    /// Reads that touch these sectors fail.
    pub(crate) bad_sectors: Vec<(SegmentId, u64)>,
    /// Reads fail with EINTR this often.
    pub(crate) interrupts: u32,
    /// Reads come back short this often.
    pub(crate) short_reads: u32,
}

/// An operation that was submitted and is not done.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) op: DiskOp,
    /// Of a sync or a commit: the sectors it is for, as they were when it was submitted.
    dirty: Vec<(usize, Vec<u8>)>,
}

pub(crate) fn error(errno: i32, text: &str) -> DiskError {
    DiskError {
        errno,
        text: text.into(),
    }
}

impl Disk {
    pub(crate) fn infos(&self) -> Vec<SegmentInfo> {
        self.files
            .iter()
            .map(|(&id, file)| SegmentInfo {
                id,
                bytes: file.cached.len() as u64,
            })
            .collect()
    }

    pub(crate) fn read(
        &self,
        id: SegmentId,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, DiskError> {
        let bytes = &self
            .files
            .get(&id)
            .ok_or_else(|| error(2, "no such file"))?
            .cached;
        let from = (offset as usize).min(bytes.len());
        let len = into.len().min(bytes.len() - from);
        into[..len].copy_from_slice(&bytes[from..from + len]);
        Ok(len)
    }

    pub(crate) fn repair(&mut self, repair: &Repair) {
        match *repair {
            Repair::Zero {
                segment,
                offset,
                bytes,
            } => {
                let file = self.files.get_mut(&segment).unwrap();
                let end = ((offset + bytes) as usize).max(file.cached.len());
                file.cached.resize(end, 0);
                file.cached[offset as usize..(offset + bytes) as usize].fill(0);
            }
            Repair::Sync(segment) => {
                let file = self.files.get_mut(&segment).unwrap();
                file.durable = file.cached.clone();
            }
            Repair::Unlink(segment) => {
                self.files.remove(&segment);
            }
        }
    }

    /// Carries out a write at once; `None` if the operation is not one.
    pub(crate) fn submit(&mut self, op: DiskOp) -> Result<DiskDone, InFlight> {
        match op.kind {
            DiskOpKind::Write {
                segment,
                offset,
                buffer,
            } => {
                assert!(
                    offset.is_multiple_of(PAGE_BYTES as u64),
                    "writes start on a page"
                );
                assert!(
                    buffer.len().is_multiple_of(PAGE_BYTES),
                    "writes are whole pages"
                );
                if self.fail_write {
                    let result = Err(error(DiskError::EIO, "write failed"));
                    return Ok(DiskDone {
                        id: op.id,
                        result,
                        buffer: Some(buffer),
                    });
                }
                let len = self
                    .short_write
                    .take()
                    .unwrap_or(buffer.len())
                    .min(buffer.len());
                let file = self.files.get_mut(&segment).unwrap();
                let end = (offset as usize + len).max(file.cached.len());
                file.cached.resize(end, 0);
                file.cached[offset as usize..][..len].copy_from_slice(&buffer.as_slice()[..len]);
                self.trace.push(Trace::Write(segment, offset, len));
                Ok(DiskDone {
                    id: op.id,
                    result: Ok(len),
                    buffer: Some(buffer),
                })
            }
            DiskOpKind::Commit {
                segment,
                offset,
                ref buffer,
            } => {
                assert!(offset.is_multiple_of(PAGE_BYTES as u64), "on a page");
                assert!(buffer.len().is_multiple_of(PAGE_BYTES), "whole pages");
                self.trace
                    .push(Trace::CommitStart(segment, offset, buffer.len()));
                let file = self.files.get_mut(&segment).unwrap();
                let (from, end) = (offset as usize, offset as usize + buffer.len());
                let dirty = dirty_sectors(file);
                assert!(
                    !dirty.iter().any(|&at| at * SECTOR < from),
                    "a commit proves nothing that was written before it"
                );
                // From now on the device may have any part of it.
                file.cached.resize(end.max(file.cached.len()), 0);
                file.cached[from..end].copy_from_slice(buffer.as_slice());
                let sectors = from / SECTOR..end / SECTOR;
                let dirty = sectors
                    .map(|sector| (sector, sector_of(&file.cached, sector).to_vec()))
                    .collect();
                Err(InFlight { op, dirty })
            }
            DiskOpKind::Sync { segment } => {
                self.trace.push(Trace::SyncStart(segment));
                let file = &self.files[&segment];
                let dirty = dirty_sectors(file);
                let dirty = dirty
                    .into_iter()
                    .map(|sector| (sector, sector_of(&file.cached, sector).to_vec()))
                    .collect();
                Err(InFlight { op, dirty })
            }
            _ => Err(InFlight {
                op,
                dirty: Vec::new(),
            }),
        }
    }

    pub(crate) fn complete(&mut self, in_flight: InFlight) -> DiskDone {
        let InFlight {
            op: DiskOp { id, kind },
            dirty,
        } = in_flight;
        let mut buffer = None;
        let result = match kind {
            DiskOpKind::Write { .. } => unreachable!("writes are inline"),
            DiskOpKind::Commit {
                segment,
                buffer: written,
                ..
            } => {
                let len = written.len();
                buffer = Some(written);
                if std::mem::take(&mut self.fail_sync) || self.fail_write {
                    self.lose(segment, dirty);
                    Err(error(DiskError::EIO, "commit failed"))
                } else {
                    self.make_durable(segment, dirty);
                    self.trace.push(Trace::Committed(segment));
                    Ok(len)
                }
            }
            DiskOpKind::Sync { segment } => {
                if std::mem::take(&mut self.fail_sync) {
                    self.lose(segment, dirty);
                    Err(error(DiskError::EIO, "sync failed"))
                } else {
                    self.make_durable(segment, dirty);
                    self.trace.push(Trace::Synced(segment));
                    Ok(0)
                }
            }
            DiskOpKind::Read {
                segment,
                offset,
                buffer: mut into,
                ..
            } => {
                let result = self.read_op(segment, offset, &mut into);
                buffer = Some(into);
                result
            }
            DiskOpKind::Create {
                segment,
                bytes,
                header,
                ..
            } => {
                if self.files_max.is_some_and(|max| self.files.len() >= max) {
                    Err(error(DiskError::ENOSPC, "no room"))
                } else {
                    let mut content = vec![0; bytes as usize];
                    content[..PAGE_BYTES].copy_from_slice(header.as_slice());
                    let file = File {
                        durable: content.clone(),
                        cached: content,
                    };
                    self.files.insert(segment, file);
                    self.trace.push(Trace::Created(segment));
                    Ok(0)
                }
            }
            DiskOpKind::Recycle { from, to, header } => {
                let mut file = self.files.remove(&from).unwrap();
                file.cached[..PAGE_BYTES].copy_from_slice(header.as_slice());
                file.durable = file.cached.clone();
                self.files.insert(to, file);
                self.trace.push(Trace::Recycled(from, to));
                Ok(0)
            }
            DiskOpKind::Prewrite {
                segment,
                offset,
                bytes,
            } => {
                let file = self.files.get_mut(&segment).unwrap();
                let range = offset as usize..(offset + bytes) as usize;
                let behind_blocks = file.cached[range.clone()].iter().all(|&byte| byte == 0);
                assert!(behind_blocks, "zeros over blocks of {segment} at {offset}");
                file.durable[range].fill(0);
                self.trace.push(Trace::Prewritten(segment, offset, bytes));
                Ok(0)
            }
            DiskOpKind::Unlink { segment } => {
                self.files.remove(&segment).unwrap();
                self.trace.push(Trace::Unlinked(segment));
                Ok(0)
            }
            DiskOpKind::Forget { .. } => Ok(0),
        };
        DiskDone { id, result, buffer }
    }

    fn make_durable(&mut self, segment: SegmentId, sectors: Vec<(usize, Vec<u8>)>) {
        let file = self.files.get_mut(&segment).unwrap();
        for (sector, bytes) in sectors {
            let end = (sector * SECTOR + bytes.len()).max(file.durable.len());
            file.durable.resize(end, 0);
            file.durable[sector * SECTOR..][..bytes.len()].copy_from_slice(&bytes);
        }
    }

    /// The kernel marks the pages clean, so a later sync would succeed; what a direct read finds is
    /// what was there before.
    fn lose(&mut self, segment: SegmentId, sectors: Vec<(usize, Vec<u8>)>) {
        let file = self.files.get_mut(&segment).unwrap();
        for (sector, bytes) in sectors {
            let at = sector * SECTOR;
            let old = file.durable.get(at..at + bytes.len());
            let old = old.map_or_else(|| vec![0; bytes.len()], <[u8]>::to_vec);
            file.cached[at..at + bytes.len()].copy_from_slice(&old);
        }
    }

    fn read_op(
        &mut self,
        segment: SegmentId,
        offset: u64,
        into: &mut PageBuf,
    ) -> Result<usize, DiskError> {
        if self.interrupts > 0 {
            self.interrupts -= 1;
            return Err(error(DiskError::EINTR, "interrupted"));
        }
        let sectors = offset / 512..(offset + into.len() as u64) / 512;
        if self
            .bad_sectors
            .iter()
            .any(|(id, at)| *id == segment && sectors.contains(at))
        {
            return Err(error(DiskError::EIO, "bad sector"));
        }
        let read = self.read(segment, offset, into.as_mut_slice())?;
        if self.short_reads > 0 {
            self.short_reads -= 1;
            into.as_mut_slice()[read / 2..].fill(0xEE);
            return Ok(read / 2);
        }
        Ok(read)
    }

    /// What a power cut leaves: each sector that was not synced is kept or dropped by chance.
    pub(crate) fn crash(&mut self, rng: &mut Rng) {
        // Sometimes all or nothing: those are the likeliest and the most often forgotten.
        let mode = rng.below(4);
        for file in self.files.values_mut() {
            let mut bytes = file.durable.clone();
            bytes.resize(file.cached.len().max(bytes.len()), 0);
            for sector in dirty_sectors(file) {
                let keep = match mode {
                    0 => false,
                    1 => true,
                    _ => rng.one_in(2),
                };
                if keep {
                    let from = sector_of(&file.cached, sector);
                    bytes[sector * SECTOR..][..from.len()].copy_from_slice(from);
                }
            }
            file.cached = bytes.clone();
            file.durable = bytes;
        }
        self.fail_sync = false;
        self.fail_write = false;
        self.short_write = None;
    }

    /// What a crash may leave of an operation that was in flight.
    pub(crate) fn crash_in_flight(&mut self, in_flight: InFlight, rng: &mut Rng) {
        match in_flight.op.kind {
            DiskOpKind::Create {
                segment,
                bytes,
                header,
                ..
            } => match rng.below(4) {
                0 => {}
                1 => {
                    let len = rng.below(bytes + 1) as usize;
                    let content = vec![0; len];
                    self.files.insert(
                        segment,
                        File {
                            cached: content.clone(),
                            durable: content,
                        },
                    );
                }
                2 => {
                    let mut content = header.as_slice().to_vec();
                    content.truncate(rng.below(PAGE_BYTES as u64 + 1) as usize / SECTOR * SECTOR);
                    self.files.insert(
                        segment,
                        File {
                            cached: content.clone(),
                            durable: content,
                        },
                    );
                }
                _ => {
                    let mut content = vec![0; bytes as usize];
                    content[..PAGE_BYTES].copy_from_slice(header.as_slice());
                    self.files.insert(
                        segment,
                        File {
                            cached: content.clone(),
                            durable: content,
                        },
                    );
                }
            },
            DiskOpKind::Recycle { from, to, header } => {
                let step = rng.below(3);
                if step > 0 {
                    let mut file = self.files.remove(&from).unwrap();
                    if step == 2 {
                        file.cached[..PAGE_BYTES].copy_from_slice(header.as_slice());
                        file.durable = file.cached.clone();
                    }
                    self.files.insert(to, file);
                }
            }
            DiskOpKind::Unlink { segment } if rng.one_in(2) => {
                self.files.remove(&segment);
            }
            DiskOpKind::Sync { segment } if rng.one_in(2) => {
                self.make_durable(segment, in_flight.dirty);
            }
            // Past the page cache: a dead process may leave any part of it undone.
            DiskOpKind::Commit { segment, .. } => {
                let mut lost = in_flight.dirty;
                let done_in_10 = rng.below(11);
                lost.retain(|_| rng.below(10) >= done_in_10);
                self.lose(segment, lost);
            }
            _ => {}
        }
    }
}

fn sector_of(bytes: &[u8], sector: usize) -> &[u8] {
    &bytes[sector * SECTOR..bytes.len().min((sector + 1) * SECTOR)]
}

fn dirty_sectors(file: &File) -> Vec<usize> {
    (0..file.cached.len().div_ceil(SECTOR))
        .filter(|&sector| {
            let cached = sector_of(&file.cached, sector);
            file.durable
                .get(sector * SECTOR..sector * SECTOR + cached.len())
                != Some(cached)
        })
        .collect()
}
