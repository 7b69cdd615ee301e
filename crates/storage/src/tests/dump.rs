//! What stands in the segments, block by block, damaged or not.
use crate::entry::{EntryMeta, TopicKey, decode_entry};
use crate::format::{BlockHeader, Reader, SegmentHeader, section};
use crate::page::PAGE_BYTES;
use crate::recover::{RecoverError, SegmentInfo};
use crate::scan::{ReadAt, Window, scan_blocks};

/// Something a dump shows, in the order it is stored.
pub(crate) enum DumpItem<'a> {
    /// A block of the chain.
    Block,
    /// An entry in the block before.
    Entry {
        topic: TopicKey,
        meta: &'a EntryMeta,
        properties: &'a [u8],
        body: &'a [u8],
    },
    /// The chain of a segment ends at a block that is not good.
    Bad {
        /// Byte offset of the block.
        offset: u64,
        /// Intact blocks behind it.
        stray_blocks: u32,
    },
}

/// Shows every good block of every segment, with its entries, in the order they are stored.
pub(crate) fn dump(
    segments: &[SegmentInfo],
    read: &mut ReadAt<'_>,
    show: &mut dyn FnMut(DumpItem<'_>),
) -> Result<(), RecoverError> {
    let mut scans = Vec::new();
    for &info in segments {
        let mut window = Window::new(read, info);
        let header = SegmentHeader::decode(window.get(0, PAGE_BYTES)?)
            .filter(|header| header.segment == info.id.0);
        if let Some(header) = header {
            scans.push((info, scan_blocks(&mut window, &header)?));
        }
    }
    scans.sort_by_key(|(info, scan)| (scan.order(), info.id));
    for (info, scan) in &scans {
        let mut window = Window::new(read, *info);
        let mut page = 1;
        while page < scan.end_page && scan.first.is_some() {
            let offset = u64::from(page) * PAGE_BYTES as u64;
            let Some(block) = BlockHeader::peek(window.get(offset, PAGE_BYTES)?) else {
                break;
            };
            let bytes = window.get(offset, block.pages as usize * PAGE_BYTES)?;
            show(DumpItem::Block);
            for section in block.sections(bytes).flatten() {
                if section.kind == section::ENTRIES {
                    show_entries(section.payload, show);
                }
            }
            page += block.pages;
        }
        if scan.torn_pages.is_some() || !scan.strays.is_empty() {
            show(DumpItem::Bad {
                offset: u64::from(scan.end_page) * PAGE_BYTES as u64,
                stray_blocks: scan.strays.len() as u32,
            });
        }
    }
    Ok(())
}

fn show_entries(payload: &[u8], show: &mut dyn FnMut(DumpItem<'_>)) {
    let mut r = Reader::new(payload);
    let Some(topic) = r.u64() else { return };
    let _ = r.bytes(24);
    while let Some(stored) = decode_entry(r.rest) {
        let meta = stored.meta;
        let start = meta.offset as usize;
        show(DumpItem::Entry {
            topic: TopicKey(topic),
            meta: &meta,
            properties: &r.rest[start - meta.properties_bytes as usize..start],
            body: &r.rest[start..start + meta.bytes as usize],
        });
        let _ = r.bytes(meta.stored_bytes());
    }
}
