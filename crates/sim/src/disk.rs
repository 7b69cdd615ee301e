//! The disk of one shard, in memory: what is cached, what is durable, and everything between.
//!
//! Writes are done at once, as the real shell does them; everything else stays in flight until a step
//! ends it, in any order. A power cut keeps any part of what was not synced; a failed sync may forget
//! what it was to write, and the next one would succeed (Rebello et al., USENIX ATC 2020).

use std::collections::{BTreeMap, BTreeSet};

use pelton_broker::storage::{
    DiskDone, DiskError, DiskOp, DiskOpKind, PAGE_BYTES, PageBuf, Repair, SegmentId, SegmentInfo,
};

use crate::chance::Chance;
use crate::steps::Fault;

const SECTOR: usize = 512;
/// A range is read three times before its entries count as damaged; the fake fails fewer.
const READ_FAILURES_MAX: u8 = 2;

#[derive(Clone, Debug, Default)]
struct File {
    cached: Vec<u8>,
    durable: Vec<u8>,
    /// Pages that differ from what is durable, as far as the kernel knows.
    dirty: BTreeSet<usize>,
}

#[derive(Debug)]
struct InFlight {
    op: DiskOp,
    /// Of a sync or commit: the pages it writes, as they were when it was asked for.
    pages: Vec<(usize, Vec<u8>)>,
}

#[derive(Debug, Default)]
pub(crate) struct Disk {
    files: BTreeMap<SegmentId, File>,
    in_flight: Vec<InFlight>,
    next: Vec<(Fault, u64)>,
    /// Files there is room for.
    files_max: Option<usize>,
    /// How often a range could not be read in this life.
    failures: BTreeMap<(SegmentId, u64), u8>,
    /// A write or sync went wrong in this life: the log may be poisoned.
    pub(crate) harmed: bool,
    /// A sync failed in this life: what was only written may be gone.
    pub(crate) lied: bool,
    /// A file could not be made in this life: publishes may be refused.
    pub(crate) was_full: bool,
    /// The log asked for something that it must not ask for.
    pub(crate) misuse: Option<String>,
}

impl Disk {
    pub(crate) fn fault(&mut self, fault: Fault, chance: u64) {
        match fault {
            Fault::Full => self.files_max = Some(self.files.len() + (chance % 2) as usize),
            Fault::Room => self.files_max = None,
            fault if self.next.len() < 4 => self.next.push((fault, chance)),
            _ => {}
        }
    }

    /// From now on everything goes well.
    pub(crate) fn heal(&mut self) {
        self.next.clear();
        self.files_max = None;
    }

    pub(crate) fn has_room(&self) -> bool {
        self.files_max.is_none()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(crate) fn infos(&self) -> Vec<SegmentInfo> {
        let info = |(&id, file): (&SegmentId, &File)| SegmentInfo {
            id,
            bytes: file.cached.len() as u64,
        };
        self.files.iter().map(info).collect()
    }

    pub(crate) fn read(
        &self,
        id: SegmentId,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize, DiskError> {
        let file = self
            .files
            .get(&id)
            .ok_or_else(|| error(2, "no such file"))?;
        let from = (offset as usize).min(file.cached.len());
        let len = into.len().min(file.cached.len() - from);
        into[..len].copy_from_slice(&file.cached[from..from + len]);
        Ok(len)
    }

    pub(crate) fn repair(&mut self, repair: &Repair) {
        match *repair {
            Repair::Zero {
                segment,
                offset,
                bytes,
            } => {
                let file = self.files.get_mut(&segment).expect("it was listed");
                file.write(offset as usize, &vec![0; bytes as usize]);
                file.sync_all();
            }
            Repair::Sync(segment) => {
                self.files
                    .get_mut(&segment)
                    .expect("it was listed")
                    .sync_all();
            }
            Repair::Unlink(segment) => {
                self.files.remove(&segment);
            }
        }
    }

    /// Starts an operation; a write is done at once.
    pub(crate) fn submit(&mut self, op: DiskOp) -> Option<DiskDone> {
        let mut pages = Vec::new();
        match &op.kind {
            DiskOpKind::Write { .. } => return Some(self.write(op)),
            DiskOpKind::Commit {
                segment,
                offset,
                buffer,
            } => {
                self.one_proof_at_a_time();
                if let Some(file) = self.files.get_mut(segment) {
                    let first = *offset as usize / PAGE_BYTES;
                    if file.dirty.first().is_some_and(|&page| page < first) {
                        self.misuse = Some("a commit above what no sync has proved".to_owned());
                    }
                    // From now on the device may have any part of it.
                    file.write(*offset as usize, buffer.as_slice());
                    let page = |page: usize| (page, file.page(page).to_vec());
                    pages = (first..first + buffer.len() / PAGE_BYTES)
                        .map(page)
                        .collect();
                } else {
                    self.misuse = Some(format!("commit to {segment}, which is not there"));
                }
            }
            DiskOpKind::Sync { segment } => {
                self.one_proof_at_a_time();
                if let Some(file) = self.files.get(segment) {
                    let page = |&page: &usize| (page, file.page(page).to_vec());
                    pages = file.dirty.iter().map(page).collect();
                } else {
                    self.misuse = Some(format!("sync of {segment}, which is not there"));
                }
            }
            _ => {}
        }
        self.in_flight.push(InFlight { op, pages });
        None
    }

    /// What is in flight of syncs and commits could otherwise prove each other's blocks.
    fn one_proof_at_a_time(&mut self) {
        let proves =
            |kind: &DiskOpKind| matches!(kind, DiskOpKind::Sync { .. } | DiskOpKind::Commit { .. });
        if self.in_flight.iter().any(|other| proves(&other.op.kind)) {
            self.misuse = Some("two syncs or commits in flight".to_owned());
        }
    }

    fn take_fault(&mut self, wanted: impl Fn(Fault) -> bool) -> Option<(Fault, u64)> {
        let at = self.next.iter().position(|&(fault, _)| wanted(fault))?;
        Some(self.next.remove(at))
    }

    fn write(&mut self, op: DiskOp) -> DiskDone {
        let DiskOpKind::Write {
            segment,
            offset,
            buffer,
        } = op.kind
        else {
            unreachable!("only writes are done at once");
        };
        let fault = self.take_fault(|fault| matches!(fault, Fault::Write | Fault::ShortWrite));
        let Some(file) = self.files.get_mut(&segment) else {
            self.misuse = Some(format!("write to {segment}, which is not there"));
            return done(op.id, Err(error(2, "no such file")), Some(buffer));
        };
        let len = match fault {
            Some((_, chance)) => (chance as usize) % (buffer.len() + 1),
            None => buffer.len(),
        };
        file.write(offset as usize, &buffer.as_slice()[..len]);
        self.harmed |= fault.is_some();
        let result = match fault {
            Some((Fault::Write, _)) => Err(error(DiskError::EIO, "write failed")),
            _ => Ok(len),
        };
        done(op.id, result, Some(buffer))
    }

    /// Ends the operation at `index` of those in flight.
    pub(crate) fn complete(&mut self, index: usize) -> DiskDone {
        let InFlight {
            op: DiskOp { id, kind },
            pages,
        } = self.in_flight.remove(index);
        match kind {
            DiskOpKind::Sync { segment } => done(id, self.end_sync(segment, pages), None),
            DiskOpKind::Commit {
                segment, buffer, ..
            } => {
                let len = buffer.len();
                let result = self.end_sync(segment, pages).map(|_| len);
                done(id, result, Some(buffer))
            }
            DiskOpKind::Read {
                segment,
                offset,
                mut buffer,
                ..
            } => {
                let result = self.end_read(segment, offset, &mut buffer);
                done(id, result, Some(buffer))
            }
            DiskOpKind::Create {
                segment,
                bytes,
                header,
                ..
            } => {
                let failed = self.take_fault(|fault| fault == Fault::Create).is_some();
                if failed || self.files_max.is_some_and(|max| self.files.len() >= max) {
                    self.was_full = true;
                    // A new log that took entries has nowhere to put them.
                    self.harmed |= self.files.is_empty();
                    return done(id, Err(error(DiskError::ENOSPC, "no room")), None);
                }
                self.files.insert(segment, File::new(bytes, &header));
                done(id, Ok(0), Some(header))
            }
            DiskOpKind::Recycle { from, to, header } => {
                let fault = self.take_fault(|fault| fault == Fault::Create);
                if let Some((_, chance)) = fault {
                    self.was_full = true;
                    self.rename(from, to, &header, chance % 3);
                    return done(id, Err(error(DiskError::EIO, "recycle failed")), None);
                }
                self.rename(from, to, &header, 2);
                done(id, Ok(0), Some(header))
            }
            DiskOpKind::Prewrite {
                segment,
                offset,
                bytes,
            } => {
                if self.take_fault(|fault| fault == Fault::Create).is_some() {
                    return done(id, Err(error(DiskError::EIO, "prewrite failed")), None);
                }
                let range = offset as usize..(offset + bytes) as usize;
                match self.files.get_mut(&segment) {
                    Some(file) if file.cached[range.clone()].iter().all(|&byte| byte == 0) => {
                        file.durable[range].fill(0);
                    }
                    _ => self.misuse = Some(format!("zeros over blocks of {segment} at {offset}")),
                }
                done(id, Ok(0), None)
            }
            DiskOpKind::Unlink { segment } => {
                self.files.remove(&segment);
                done(id, Ok(0), None)
            }
            DiskOpKind::Forget { .. } => done(id, Ok(0), None),
            DiskOpKind::Write { .. } => unreachable!("writes are done at once"),
        }
    }

    fn end_sync(
        &mut self,
        segment: SegmentId,
        pages: Vec<(usize, Vec<u8>)>,
    ) -> Result<usize, DiskError> {
        let fault = self.take_fault(|fault| fault == Fault::Sync);
        let Some(file) = self.files.get_mut(&segment) else {
            return Err(error(2, "no such file"));
        };
        let Some((_, chance)) = fault else {
            for (page, bytes) in pages {
                file.keep(page, &bytes);
            }
            return Ok(0);
        };
        // Some pages made it, some did not; the kernel calls all of them clean.
        let mut chance = Chance(chance);
        for (page, bytes) in pages {
            if chance.one_in(2) {
                file.keep(page, &bytes);
            }
            file.dirty.remove(&page);
        }
        if chance.one_in(2) {
            file.drop_clean();
        }
        (self.harmed, self.lied) = (true, true);
        Err(error(DiskError::EIO, "sync failed"))
    }

    fn end_read(
        &mut self,
        segment: SegmentId,
        offset: u64,
        buffer: &mut PageBuf,
    ) -> Result<usize, DiskError> {
        let read = self.read(segment, offset, buffer.as_mut_slice())?;
        let failed = self.failures.get(&(segment, offset)).copied();
        let may_fail = failed.is_none_or(|failed| failed < READ_FAILURES_MAX);
        let wanted = |fault| matches!(fault, Fault::Read | Fault::ShortRead | Fault::Interrupt);
        let fault = may_fail.then(|| self.take_fault(wanted)).flatten();
        if fault.is_none() {
            return Ok(read);
        }
        *self.failures.entry((segment, offset)).or_default() += 1;
        match fault {
            Some((Fault::Interrupt, _)) => Err(error(DiskError::EINTR, "interrupted")),
            Some((Fault::ShortRead, chance)) => {
                let got = (chance as usize) % (read + 1);
                buffer.as_mut_slice()[got..].fill(0xEE);
                Ok(got)
            }
            _ => Err(error(DiskError::EIO, "bad sector")),
        }
    }

    /// Steps of a recycling: 0 nothing yet, 1 renamed, 2 with its new header.
    fn rename(&mut self, from: SegmentId, to: SegmentId, header: &PageBuf, step: u64) {
        if step == 0 {
            return;
        }
        let Some(mut file) = self.files.remove(&from) else {
            self.misuse = Some(format!("recycling of {from}, which is not there"));
            return;
        };
        if step == 2 {
            file.write(0, header.as_slice());
            file.sync_all();
        }
        self.files.insert(to, file);
    }

    /// The process dies; with `power` the machine does. What is left is what the next life opens.
    pub(crate) fn crash(&mut self, power: bool, chance: &mut Chance) {
        for in_flight in std::mem::take(&mut self.in_flight) {
            self.crash_in_flight(in_flight, chance);
        }
        // Sometimes all or nothing: those are the likeliest and the most often forgotten.
        let mode = chance.below(4);
        for file in self.files.values_mut() {
            file.drop_clean();
            if power {
                file.cut(mode, chance);
            }
        }
        *self = Disk {
            files: std::mem::take(&mut self.files),
            ..Disk::default()
        };
    }

    /// What may be there of an operation that nobody saw the end of.
    fn crash_in_flight(&mut self, in_flight: InFlight, chance: &mut Chance) {
        match in_flight.op.kind {
            DiskOpKind::Create {
                segment,
                bytes,
                header,
                ..
            } => {
                let mut file = File::new(bytes, &header);
                match chance.below(4) {
                    0 => return,
                    1 => file.truncate(chance.below(bytes + 1) as usize),
                    2 => {
                        let sectors = chance.below((PAGE_BYTES / SECTOR) as u64 + 1);
                        file.truncate(sectors as usize * SECTOR);
                    }
                    _ => {}
                }
                self.files.insert(segment, file);
            }
            DiskOpKind::Recycle { from, to, header } => {
                self.rename(from, to, &header, chance.below(3));
            }
            DiskOpKind::Unlink { segment } if chance.one_in(2) => {
                self.files.remove(&segment);
            }
            DiskOpKind::Sync { segment } if chance.one_in(2) => {
                if let Some(file) = self.files.get_mut(&segment) {
                    for (page, bytes) in in_flight.pages {
                        file.keep(page, &bytes);
                    }
                }
            }
            DiskOpKind::Commit { segment, .. } => {
                if let Some(file) = self.files.get_mut(&segment) {
                    for (page, bytes) in in_flight.pages {
                        let torn =
                            chance.below((bytes.len() / SECTOR) as u64 + 1) as usize * SECTOR;
                        match chance.below(3) {
                            0 => {}
                            1 => file.keep(page, &bytes[..torn]),
                            _ => file.keep(page, &bytes),
                        }
                        file.dirty.remove(&page);
                    }
                }
            }
            _ => {}
        }
    }
}

impl File {
    fn new(bytes: u64, header: &PageBuf) -> File {
        let mut cached = vec![0; bytes as usize];
        cached[..header.len()].copy_from_slice(header.as_slice());
        File {
            durable: cached.clone(),
            cached,
            dirty: BTreeSet::new(),
        }
    }

    fn page(&self, page: usize) -> &[u8] {
        let end = self.cached.len().min((page + 1) * PAGE_BYTES);
        &self.cached[page * PAGE_BYTES..end]
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.cached.len() < end {
            self.cached.resize(end, 0);
        }
        self.cached[offset..end].copy_from_slice(bytes);
        self.dirty
            .extend(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES));
    }

    /// These bytes of a page are durable now; the page is clean unless it was written again.
    fn keep(&mut self, page: usize, bytes: &[u8]) {
        let at = page * PAGE_BYTES;
        if self.durable.len() < at + bytes.len() {
            self.durable.resize(at + bytes.len(), 0);
        }
        self.durable[at..at + bytes.len()].copy_from_slice(bytes);
        if self.page(page) == bytes {
            self.dirty.remove(&page);
        }
    }

    fn sync_all(&mut self) {
        self.durable.clone_from(&self.cached);
        self.dirty.clear();
    }

    fn truncate(&mut self, bytes: usize) {
        self.cached.truncate(bytes);
        self.durable.truncate(bytes);
    }

    /// Lets go of clean pages of the cache: the next read of them comes from the disk.
    fn drop_clean(&mut self) {
        self.durable.resize(self.cached.len(), 0);
        for page in 0..self.cached.len().div_ceil(PAGE_BYTES) {
            let end = self.cached.len().min((page + 1) * PAGE_BYTES);
            let range = page * PAGE_BYTES..end;
            if !self.dirty.contains(&page) {
                self.cached[range.clone()].copy_from_slice(&self.durable[range]);
            }
        }
    }

    /// A power cut: each sector that was not synced is there or not.
    fn cut(&mut self, mode: u64, chance: &mut Chance) {
        for page in std::mem::take(&mut self.dirty) {
            let end = self.cached.len().min((page + 1) * PAGE_BYTES);
            let torn = chance.one_in(4);
            let page_kept = chance.one_in(2);
            for from in (page * PAGE_BYTES..end).step_by(SECTOR) {
                let range = from..end.min(from + SECTOR);
                let kept = match mode {
                    0 => false,
                    1 => true,
                    _ if torn => chance.one_in(2),
                    _ => page_kept,
                };
                if kept {
                    self.durable[range.clone()].copy_from_slice(&self.cached[range]);
                }
            }
        }
        self.cached.clone_from(&self.durable);
    }
}

fn error(errno: i32, text: &str) -> DiskError {
    DiskError {
        errno,
        text: text.to_owned(),
    }
}

fn done(id: u64, result: Result<usize, DiskError>, buffer: Option<PageBuf>) -> DiskDone {
    DiskDone { id, result, buffer }
}
