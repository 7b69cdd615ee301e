//! The content of SEND and MESSAGE: metadata and payload of one entry.
//!
//! ```text
//! [0x0e02][u32 BE n][BrokerEntryMetadata, n bytes]      only to clients that asked for it
//! [0x0e01][u32 BE CRC32C of all that follows]           stored from here on, and sent as it was stored
//! [u32 BE m][MessageMetadata, m bytes][payload]
//! ```

use crate::{
    BrokerEntryMetadata, MessageMetadata, ProtocolError, frame::length, message::Message,
    protobuf::Reader,
};

/// In front of a checksum.
const MAGIC_CHECKSUM: [u8; 2] = [0x0e, 0x01];

/// In front of what the server adds.
const MAGIC_SERVER: [u8; 2] = [0x0e, 0x02];

/// Magic number and checksum.
const CHECKSUM_BYTES: usize = 6;

/// An entry, in the memory it was received or stored in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Entry<'a> {
    /// What to store, and later to send with [`crate::encode_before`]: everything from the checksum
    /// on. If `checksum` is not there, [`checksum_of`] these bytes belongs in front of them, because
    /// clients refuse a MESSAGE without one.
    pub stored: &'a [u8],
    /// CRC32C as its producer computed it.
    pub checksum: Option<u32>,
    /// What it says of itself.
    pub metadata: MessageMetadata<'a>,
    /// A message or a [`crate::Batch`]; perhaps compressed, perhaps encrypted.
    pub payload: &'a [u8],
    /// What the server said of it, in a MESSAGE.
    pub server: Option<BrokerEntryMetadata>,
}

impl<'a> Entry<'a> {
    /// Reads and verifies what followed a SEND or a MESSAGE.
    ///
    /// Errors: a checksum that does not fit, and what [`Entry::trusted`] gives.
    pub fn received(content: &'a [u8]) -> Result<Self, ProtocolError> {
        let (server, rest) = server_part(content)?;
        let (checksum, covered) = checksum_part(rest)?;
        if let Some(claimed) = checksum {
            let computed = crc_fast::crc32_iscsi(covered);
            if computed != claimed {
                return Err(ProtocolError::Checksum { claimed, computed });
            }
        }
        Self::covered(rest, checksum, covered, server)
    }

    /// Reads what was [`stored`](Self::stored) and needs no checking again.
    ///
    /// Errors: cut off, a length beyond its end, bad metadata.
    pub fn trusted(stored: &'a [u8]) -> Result<Self, ProtocolError> {
        let (checksum, covered) = checksum_part(stored)?;
        Self::covered(stored, checksum, covered, None)
    }

    fn covered(
        stored: &'a [u8],
        checksum: Option<u32>,
        covered: &'a [u8],
        server: Option<BrokerEntryMetadata>,
    ) -> Result<Self, ProtocolError> {
        let (metadata, payload) = sized("metadata", covered).map_err(|error| match error {
            // A mark that is not known reads as a length of over 200 MiB.
            ProtocolError::Length { .. } if checksum.is_none() && covered[0] == 0x0e => {
                ProtocolError::Magic(u16::from_be_bytes([covered[0], covered[1]]))
            }
            error => error,
        })?;
        Ok(Self {
            stored,
            checksum,
            metadata: MessageMetadata::decode(metadata)?,
            payload,
            server,
        })
    }
}

fn server_part(content: &[u8]) -> Result<(Option<BrokerEntryMetadata>, &[u8]), ProtocolError> {
    let Some(rest) = content.strip_prefix(&MAGIC_SERVER) else {
        return Ok((None, content));
    };
    let (metadata, rest) = sized("broker entry metadata", rest)?;
    let metadata = BrokerEntryMetadata::read_fields(&mut Reader::new(metadata))?;
    Ok((Some(metadata), rest))
}

/// The checksum, and what it covers.
fn checksum_part(content: &[u8]) -> Result<(Option<u32>, &[u8]), ProtocolError> {
    let Some(rest) = content.strip_prefix(&MAGIC_CHECKSUM) else {
        return Ok((None, content));
    };
    let (checksum, covered) = length(rest).ok_or(ProtocolError::CutOff("a checksum"))?;
    Ok((Some(checksum), covered))
}

/// A part with its length in front, and what follows it.
pub(crate) fn sized<'a>(
    part: &'static str,
    bytes: &'a [u8],
) -> Result<(&'a [u8], &'a [u8]), ProtocolError> {
    let (claimed, rest) = length(bytes).ok_or(ProtocolError::CutOff(part))?;
    rest.split_at_checked(claimed as usize)
        .ok_or(ProtocolError::Length {
            part,
            claimed_bytes: claimed.into(),
            available_bytes: rest.len(),
        })
}

/// What belongs in front of an entry whose producer sent no checksum.
#[must_use]
pub fn checksum_of(covered: &[u8]) -> [u8; CHECKSUM_BYTES] {
    prefix(crc_fast::crc32_iscsi(covered))
}

fn prefix(checksum: u32) -> [u8; CHECKSUM_BYTES] {
    let [m0, m1] = MAGIC_CHECKSUM;
    let [c0, c1, c2, c3] = checksum.to_be_bytes();
    [m0, m1, c0, c1, c2, c3]
}

/// Appends an entry of our own making up to its payload: it is stored, or follows a SEND, when
/// `payload` follows it.
///
/// # Panics
/// If the metadata have 4 GiB or more.
pub fn encode_entry_before(metadata: &MessageMetadata<'_>, payload: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    out.extend([0; CHECKSUM_BYTES]);
    put_sized(out, |out| metadata.encode(out));
    let head = &out[start + CHECKSUM_BYTES..];
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(head);
    digest.update(payload);
    let checksum = digest.finalize() as u32;
    out[start..start + CHECKSUM_BYTES].copy_from_slice(&prefix(checksum));
}

/// Appends what goes in front of stored bytes for a client that reads broker entry metadata. Only for
/// those: another one closes its connection. Source: wire spec 2.
pub fn encode_server_part(metadata: &BrokerEntryMetadata, out: &mut Vec<u8>) {
    out.extend(MAGIC_SERVER);
    put_sized(out, |out| metadata.write_fields(out));
}

/// Appends what `fill` appends, with its length in 4 bytes in front.
pub(crate) fn put_sized(out: &mut Vec<u8>, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend([0; 4]);
    fill(out);
    let bytes = u32::try_from(out.len() - start - 4).expect("metadata are smaller than 4 GiB");
    out[start..start + 4].copy_from_slice(&bytes.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_castagnoli_behind_its_mark() {
        // The check value of CRC-32C: RFC 3720, B.4, is the same polynomial.
        assert_eq!(
            checksum_of(b"123456789"),
            [0x0e, 0x01, 0xe3, 0x06, 0x92, 0x83]
        );
    }
}
