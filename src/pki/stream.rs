//! Large sealed files: a header in clear, then numbered records sealed with the recovery key.
//!
//! The file begins with `KATB`, a version (1), the header's length (4 bytes, big-endian) and the
//! header. Each record has one byte that is 1 for the last record and 0 for others, the length of
//! its sealed bytes (4 bytes, big-endian), and the sealed bytes ([`seal`]). The header, the
//! record's number, and whether it is the last are authenticated with each record: so none can be
//! left out, moved, or cut off unnoticed. The last record is empty.

use std::io::{self, Read, Write};

use sha2::{Digest, Sha256};

use crate::{
    recovery_key as seal,
    recovery_key::{RecoveryKey, SealError},
};

/// Prefix of a sealed file.
const MAGIC: &[u8; 4] = b"KATB";
/// The version that is written, and the newest that can be read.
const VERSION: u8 = 1;
/// Longest header in bytes.
const MOST_HEADER: usize = 64 << 10;
/// Longest record in bytes before it is sealed.
pub const MOST_RECORD: usize = 1 << 20;
/// Upper bound of the bytes that sealing adds to a record.
const MARGIN: usize = 256;

/// Why a sealed file can't be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// An error of the disk, or of the source of the bytes.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The file is not a sealed file.
    #[error("it is no sealed file of KAT")]
    Foreign,
    /// The file has a newer version.
    #[error("it was made by a newer version of KAT (format {0}; this one reads up to {VERSION})")]
    Newer(u8),
    /// An impossible length.
    #[error("it is damaged at record {0}")]
    Damaged(u64),
    /// A record can't be opened, although the key seems to be right.
    #[error("record {number}: {error}")]
    Sealed {
        /// Number of the record, from 0.
        number: u64,
        error: SealError,
    },
    /// The end of the file is missing.
    #[error("it is not whole: its end is missing")]
    CutOff,
}

/// The data that is authenticated with every record.
struct RecordContext {
    header: [u8; 32],
    number: u64,
}

impl RecordContext {
    fn of(header: &[u8]) -> Self {
        Self {
            header: Sha256::new()
                .chain_update(MAGIC)
                .chain_update([VERSION])
                .chain_update(header)
                .finalize()
                .into(),
            number: 0,
        }
    }

    fn context(&self, last: bool) -> Vec<u8> {
        let mut context = b"kat-sealed-file".to_vec();
        context.extend(self.header);
        context.extend(self.number.to_be_bytes());
        context.push(u8::from(last));
        context
    }
}

/// Writes a sealed file.
pub struct SealedWriter<'a, W> {
    out: W,
    key: &'a RecoveryKey,
    place: RecordContext,
}

impl<'a, W: Write> SealedWriter<'a, W> {
    /// Writes the header.
    ///
    /// # Errors
    /// [`StreamError::Io`].
    pub fn begin(mut out: W, key: &'a RecoveryKey, header: &[u8]) -> Result<Self, StreamError> {
        if header.len() > MOST_HEADER {
            return Err(io::Error::other("the header is too long").into());
        }
        out.write_all(MAGIC)?;
        out.write_all(&[VERSION])?;
        out.write_all(&length(header.len())?)?;
        out.write_all(header)?;
        Ok(Self {
            out,
            key,
            place: RecordContext::of(header),
        })
    }

    /// Adds records of at most [`MOST_RECORD`] bytes; none for an empty slice.
    pub fn add(&mut self, plain: &[u8]) -> Result<(), StreamError> {
        for piece in plain.chunks(MOST_RECORD) {
            self.record(piece, false)?;
        }
        Ok(())
    }

    /// Adds the last record, and returns the output.
    pub fn finish(mut self) -> Result<W, StreamError> {
        self.record(&[], true)?;
        Ok(self.out)
    }

    fn record(&mut self, plain: &[u8], last: bool) -> Result<(), StreamError> {
        let number = self.place.number;
        let sealed = seal::seal(self.key, plain, &self.place.context(last))
            .map_err(|error| StreamError::Sealed { number, error })?;
        self.out.write_all(&[u8::from(last)])?;
        self.out.write_all(&length(sealed.len())?)?;
        self.out.write_all(&sealed)?;
        self.place.number += 1;
        Ok(())
    }
}

fn length(length: usize) -> io::Result<[u8; 4]> {
    let length = u32::try_from(length).map_err(io::Error::other)?;
    Ok(length.to_be_bytes())
}

/// Reads a sealed file.
pub struct SealedReader<R> {
    input: R,
    header: Vec<u8>,
    place: RecordContext,
    ended: bool,
}

impl<R: Read> SealedReader<R> {
    /// Reads the header, which needs no key. It is authenticated with the first record.
    pub fn begin(mut input: R) -> Result<Self, StreamError> {
        let mut start = [0; 5];
        whole(&mut input, &mut start).map_err(|error| match error {
            StreamError::CutOff => StreamError::Foreign,
            other => other,
        })?;
        let [magic @ .., version] = start;
        match (&magic == MAGIC, version) {
            (false, _) => return Err(StreamError::Foreign),
            (true, VERSION) => {}
            (true, other) => return Err(StreamError::Newer(other)),
        }
        let length = read_length(&mut input)?;
        if length > MOST_HEADER {
            return Err(StreamError::Foreign);
        }
        let mut header = vec![0; length];
        whole(&mut input, &mut header)?;
        Ok(Self {
            input,
            place: RecordContext::of(&header),
            header,
            ended: false,
        })
    }

    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Reads the next record; `None` after the last.
    pub fn next(&mut self, key: &RecoveryKey) -> Result<Option<Vec<u8>>, StreamError> {
        if self.ended {
            return Ok(None);
        }
        let mut last = [0];
        whole(&mut self.input, &mut last)?;
        let length = read_length(&mut self.input)?;
        let number = self.place.number;
        if length > MOST_RECORD + MARGIN {
            return Err(StreamError::Damaged(number));
        }
        let mut sealed = vec![0; length];
        whole(&mut self.input, &mut sealed)?;
        let is_last = match last {
            [0] => false,
            [1] => true,
            _ => return Err(StreamError::Damaged(number)),
        };
        let plain = seal::open(key, &sealed, &self.place.context(is_last))
            .map_err(|error| StreamError::Sealed { number, error })?;
        self.place.number += 1;
        if is_last {
            self.ended = true;
            return Ok(None);
        }
        Ok(Some(plain))
    }
}

fn read_length(input: &mut impl Read) -> Result<usize, StreamError> {
    let mut bytes = [0; 4];
    whole(input, &mut bytes)?;
    usize::try_from(u32::from_be_bytes(bytes)).map_err(|_| StreamError::Foreign)
}

fn whole(input: &mut impl Read, buffer: &mut [u8]) -> Result<(), StreamError> {
    match input.read_exact(buffer) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(StreamError::CutOff),
        read => Ok(read?),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(key: &RecoveryKey, records: &[&[u8]]) -> Vec<u8> {
        let mut writer = SealedWriter::begin(Vec::new(), key, b"{\"a\":1}").unwrap();
        for record in records {
            writer.add(record).unwrap();
        }
        writer.finish().unwrap()
    }

    fn read(key: &RecoveryKey, bytes: &[u8]) -> Result<Vec<Vec<u8>>, StreamError> {
        let mut reader = SealedReader::begin(bytes)?;
        let mut records = Vec::new();
        while let Some(record) = reader.next(key)? {
            records.push(record);
        }
        assert!(reader.next(key).unwrap().is_none());
        Ok(records)
    }

    #[test]
    fn what_was_written_is_read_again_with_the_same_key_only() {
        let key = RecoveryKey::generate().unwrap();
        let long = vec![7; MOST_RECORD + 1];
        let bytes = written(&key, &[b"facts", &long]);
        assert_eq!(
            SealedReader::begin(&bytes[..]).unwrap().header(),
            b"{\"a\":1}"
        );
        let records = read(&key, &bytes).unwrap();
        let lengths: Vec<_> = records.iter().map(Vec::len).collect();
        assert_eq!(lengths, [5, MOST_RECORD, 1]);
        let other = RecoveryKey::generate().unwrap();
        let error = read(&other, &bytes).unwrap_err();
        assert!(
            matches!(error, StreamError::Sealed { number: 0, .. }),
            "{error}"
        );
    }

    #[test]
    fn what_is_foreign_newer_or_cut_off_is_named() {
        let key = RecoveryKey::generate().unwrap();
        let bytes = written(&key, &[b"one", b"two"]);
        for cut in 0..bytes.len() {
            read(&key, &bytes[..cut]).unwrap_err();
        }
        let without_end = bytes.len() - (5 + 5 + 12 + 16);
        let error = read(&key, &bytes[..without_end]).unwrap_err();
        assert!(matches!(error, StreamError::CutOff), "{error}");
        let mut newer = bytes.clone();
        newer[4] = 2;
        assert!(matches!(read(&key, &newer), Err(StreamError::Newer(2))));
        assert!(matches!(
            read(&key, b"PK\x03\x04 and so on"),
            Err(StreamError::Foreign)
        ));
        assert!(matches!(read(&key, b""), Err(StreamError::Foreign)));
    }

    #[test]
    fn records_can_not_change_places_or_files() {
        let key = RecoveryKey::generate().unwrap();
        let bytes = written(&key, &[b"one", b"two"]);
        let (start, record) = (9 + 7, 5 + 5 + 12 + 3 + 16);
        let mut swapped = bytes.clone();
        let (one, two) = (start..start + record, start + record..start + 2 * record);
        let first = bytes[one.clone()].to_vec();
        swapped.copy_within(two.clone(), start);
        swapped[two].copy_from_slice(&first);
        read(&key, &swapped).unwrap_err();
        let mut header = bytes.clone();
        header[start - 2] = b'2';
        read(&key, &header).unwrap_err();
        let mut shorter = bytes;
        shorter.drain(one);
        read(&key, &shorter).unwrap_err();
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_and_no_changed_byte_passes(
            foreign: Vec<u8>,
            at: prop::sample::Index,
            change in 1_u8..,
        ) {
            let key = RecoveryKey::generate().unwrap();
            prop_assert!(read(&key, &foreign).is_err());
            let mut bytes = written(&key, &[b"facts", b"data"]);
            let at = at.index(bytes.len());
            bytes[at] ^= change;
            prop_assert!(read(&key, &bytes).is_err());
        }
    }
}
