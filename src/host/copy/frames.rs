//! The frames of a copy's stream: a letter, a length and a payload. Numbers are big-endian.
//!
//! The stream begins with `T` (expected totals). Each entry is an `E`; the entries of a folder
//! follow it and end with `Z`, as do the blocks `D` of a file. The stream ends with `S` (the
//! summary) or, at any point, with `F` (the reason of a failure).

use std::io::{self, Read};

use super::{
    Attributes, BLOCK, CopyEntry, CopyError, EntryKind, MOST_ATTRIBUTES, Summary, is_copied,
};

/// Size of a piece of the stream in bytes.
pub const CHUNK: usize = 256 << 10;
/// Longest payload: a block, or an entry with its attributes and the longest path.
const MOST: usize = BLOCK + MOST_ATTRIBUTES + (64 << 10);
/// Longest name in bytes, as on Linux.
const MOST_NAME: usize = 255;
/// Longest target of a symbolic link in bytes.
const MOST_TARGET: usize = 4095;
/// Longest path within the folder in bytes.
const MOST_PATH: usize = 60 << 10;
/// Longest reason of a failure in bytes.
const MOST_REASON: usize = 4096;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum CopyFrame {
    Total { files: u64, bytes: u64 },
    Entry(CopyEntry),
    Block { offset: u64, bytes: Vec<u8> },
    End,
    Summary(Summary),
    Failed(String),
}

impl CopyFrame {
    pub(super) fn write(&self, to: &mut Vec<u8>) {
        let begin = |to: &mut Vec<u8>, letter: u8| {
            to.push(letter);
            to.extend([0; 4]);
            to.len()
        };
        let start = match self {
            Self::Total { files, bytes } => {
                let start = begin(to, b'T');
                to.extend(files.to_be_bytes());
                to.extend(bytes.to_be_bytes());
                start
            }
            Self::Entry(entry) => {
                let start = begin(to, b'E');
                encode_entry(entry, to);
                start
            }
            Self::Block { offset, bytes } => return write_block(*offset, bytes, to),
            Self::End => begin(to, b'Z'),
            Self::Summary(summary) => {
                let start = begin(to, b'S');
                to.extend(summary.files.to_be_bytes());
                to.extend(summary.bytes.to_be_bytes());
                to.extend(summary.skipped.to_be_bytes());
                to.extend(summary.digest.as_bytes());
                start
            }
            Self::Failed(reason) => {
                let start = begin(to, b'F');
                let reason = reason.as_bytes();
                to.extend(reason.get(..MOST_REASON).unwrap_or(reason));
                start
            }
        };
        let length = u32::try_from(to.len() - start).unwrap_or(u32::MAX);
        if let Some(place) = to.get_mut(start - 4..start) {
            place.copy_from_slice(&length.to_be_bytes());
        }
    }

    /// Reads the next frame; `None` at the end of the stream.
    pub(super) fn read(from: &mut impl Read) -> Result<Option<Self>, CopyError> {
        let mut head = [0; 5];
        match from.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(CopyError::Stream(error.to_string())),
        }
        let [letter, length @ ..] = head;
        let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
        if length > MOST {
            return Err(broken_stream("a frame is too long"));
        }
        let mut payload = vec![0; length];
        from.read_exact(&mut payload)
            .map_err(|error| CopyError::Stream(error.to_string()))?;
        Self::parse(letter, &payload).map(Some)
    }

    fn parse(letter: u8, payload: &[u8]) -> Result<Self, CopyError> {
        let mut parts = FramePayload(payload);
        let frame = match letter {
            b'T' => Self::Total {
                files: parts.read_u64()?,
                bytes: parts.read_u64()?,
            },
            b'E' => Self::Entry(parts.entry()?),
            b'D' => {
                let offset = parts.read_u64()?;
                let bytes = std::mem::take(&mut parts.0).to_vec();
                if bytes.is_empty() || bytes.len() > BLOCK {
                    return Err(broken_stream("a block has a wrong length"));
                }
                Self::Block { offset, bytes }
            }
            b'Z' => Self::End,
            b'S' => Self::Summary(Summary {
                files: parts.read_u64()?,
                bytes: parts.read_u64()?,
                skipped: parts.read_u64()?,
                digest: match std::str::from_utf8(parts.bytes(64)?) {
                    Ok(digest) if digest.bytes().all(|one| one.is_ascii_hexdigit()) => {
                        digest.to_owned()
                    }
                    _ => return Err(broken_stream("the digest is none")),
                },
            }),
            b'F' => {
                let reason = std::mem::take(&mut parts.0);
                let reason = reason.get(..MOST_REASON).unwrap_or(reason);
                let reason = String::from_utf8_lossy(reason);
                Self::Failed(reason.chars().filter(|one| !one.is_control()).collect())
            }
            _ => return Err(broken_stream("a frame of an unknown kind")),
        };
        match parts.0.is_empty() {
            true => Ok(frame),
            false => Err(broken_stream("a frame is longer than what it says")),
        }
    }
}

/// Writes a [`CopyFrame::Block`] without a copy of its bytes.
pub(super) fn write_block(offset: u64, bytes: &[u8], to: &mut Vec<u8>) {
    let length = u32::try_from(bytes.len() + 8).unwrap_or(u32::MAX);
    to.push(b'D');
    to.extend(length.to_be_bytes());
    to.extend(offset.to_be_bytes());
    to.extend(bytes);
}

/// Encodes an entry for the stream and for the digest.
pub(super) fn encode_entry(entry: &CopyEntry, to: &mut Vec<u8>) {
    let CopyEntry {
        name,
        kind,
        attributes,
    } = entry;
    let short = |text: &[u8], to: &mut Vec<u8>| {
        to.extend(u16::try_from(text.len()).unwrap_or(u16::MAX).to_be_bytes());
        to.extend(text);
    };
    short(name, to);
    match kind {
        EntryKind::Folder => to.push(b'd'),
        EntryKind::File(size) => {
            to.push(b'f');
            to.extend(size.to_be_bytes());
        }
        EntryKind::Link(path) => {
            to.push(b'h');
            short(path, to);
        }
        EntryKind::Symlink(target) => {
            to.push(b'l');
            short(target, to);
        }
        EntryKind::Fifo => to.push(b'p'),
    }
    to.extend(attributes.mode.to_be_bytes());
    to.extend(attributes.uid.to_be_bytes());
    to.extend(attributes.gid.to_be_bytes());
    to.extend(attributes.seconds.to_be_bytes());
    to.extend(attributes.nanoseconds.to_be_bytes());
    let count = u16::try_from(attributes.extended.len()).unwrap_or(u16::MAX);
    to.extend(count.to_be_bytes());
    for (name, value) in &attributes.extended {
        short(name, to);
        to.extend(u32::try_from(value.len()).unwrap_or(u32::MAX).to_be_bytes());
        to.extend(value);
    }
}

fn broken_stream(what: &str) -> CopyError {
    CopyError::Stream(what.to_owned())
}

/// Whether the name is a single path component that can't lead out of its folder.
fn is_name(name: &[u8]) -> bool {
    let plain = !name.contains(&b'/') && !name.contains(&0);
    plain && !name.is_empty() && name.len() <= MOST_NAME && name != b"." && name != b".."
}

struct FramePayload<'p>(&'p [u8]);

impl<'p> FramePayload<'p> {
    fn bytes(&mut self, count: usize) -> Result<&'p [u8], CopyError> {
        let (taken, rest) = self
            .0
            .split_at_checked(count)
            .ok_or_else(|| broken_stream("a frame is shorter than what it says"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], CopyError> {
        let bytes = self.bytes(N)?;
        bytes
            .try_into()
            .map_err(|_| broken_stream("a number is missing"))
    }

    fn read_u16(&mut self) -> Result<usize, CopyError> {
        Ok(usize::from(u16::from_be_bytes(self.array()?)))
    }

    fn read_u32(&mut self) -> Result<u32, CopyError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    fn read_u64(&mut self) -> Result<u64, CopyError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<&'p [u8], CopyError> {
        let length = self.read_u16()?;
        self.bytes(length)
    }

    fn entry(&mut self) -> Result<CopyEntry, CopyError> {
        let name = self.text()?.to_vec();
        if !name.is_empty() && !is_name(&name) {
            return Err(broken_stream("a name leads elsewhere"));
        }
        let [letter] = self.array()?;
        let kind = match letter {
            b'd' => EntryKind::Folder,
            b'f' => EntryKind::File(self.read_u64()?),
            b'h' => {
                let path = self.text()?;
                let inside = path.split(|byte| *byte == b'/').all(is_name);
                if path.len() > MOST_PATH || !inside {
                    return Err(broken_stream("a link leads elsewhere"));
                }
                EntryKind::Link(path.to_vec())
            }
            b'l' => {
                let target = self.text()?;
                if target.is_empty() || target.len() > MOST_TARGET || target.contains(&0) {
                    return Err(broken_stream("a symbolic link has no target"));
                }
                EntryKind::Symlink(target.to_vec())
            }
            b'p' => EntryKind::Fifo,
            _ => return Err(broken_stream("an entry of an unknown kind")),
        };
        let mut attributes = Attributes {
            mode: self.read_u32()?,
            uid: self.read_u32()?,
            gid: self.read_u32()?,
            seconds: i64::from_be_bytes(self.array()?),
            nanoseconds: self.read_u32()?,
            extended: Vec::new(),
        };
        if attributes.mode > 0o7777 || attributes.nanoseconds > 999_999_999 {
            return Err(broken_stream("a mode or a time is none"));
        }
        // chown(2) takes it for "leave the owner as it is".
        if [attributes.uid, attributes.gid].contains(&u32::MAX) {
            return Err(broken_stream("an owner is none"));
        }
        for _ in 0..self.read_u16()? {
            let name = self.text()?;
            let length = usize::try_from(self.read_u32()?).unwrap_or(usize::MAX);
            let value = self.bytes(length)?;
            if !is_copied(name) || name.contains(&0) || name.len() > MOST_NAME {
                return Err(broken_stream("an attribute is not one that is copied"));
            }
            attributes.extended.push((name.to_vec(), value.to_vec()));
        }
        Ok(CopyEntry {
            name,
            kind,
            attributes,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], kind: EntryKind) -> CopyFrame {
        CopyFrame::Entry(CopyEntry {
            name: name.to_vec(),
            kind,
            attributes: Attributes {
                mode: 0o4755,
                uid: 20_001,
                gid: 7,
                seconds: -3,
                nanoseconds: 999_999_999,
                extended: vec![(b"user.a".to_vec(), vec![0, 1, 255])],
            },
        })
    }

    #[test]
    fn what_is_written_is_read_again() {
        let frames = [
            CopyFrame::Total {
                files: 3,
                bytes: u64::MAX,
            },
            entry(b"", EntryKind::Folder),
            entry(b"\xff\n", EntryKind::File(7)),
            entry(b"b", EntryKind::Link(b"a/\xff".to_vec())),
            entry(b"c", EntryKind::Symlink(b"/etc/../x".to_vec())),
            entry(b"d", EntryKind::Fifo),
            CopyFrame::Block {
                offset: 1 << 40,
                bytes: vec![1; BLOCK],
            },
            CopyFrame::End,
            CopyFrame::Summary(Summary {
                files: 1,
                bytes: 2,
                skipped: 3,
                digest: "ab".repeat(32),
            }),
            CopyFrame::Failed("no".to_owned()),
        ];
        let mut text = Vec::new();
        for frame in &frames {
            frame.write(&mut text);
        }
        let mut from = text.as_slice();
        for frame in &frames {
            assert_eq!(CopyFrame::read(&mut from).unwrap().as_ref(), Some(frame));
        }
        assert_eq!(CopyFrame::read(&mut from).unwrap(), None);
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        let bad = [
            entry(b"..", EntryKind::Folder),
            entry(b"a/b", EntryKind::Folder),
            entry(b".", EntryKind::Fifo),
            entry(b"a\0", EntryKind::Fifo),
            entry(&[b'a'; 256], EntryKind::Fifo),
            entry(b"a", EntryKind::Link(b"../x".to_vec())),
            entry(b"a", EntryKind::Link(b"/etc/passwd".to_vec())),
            entry(b"a", EntryKind::Link(Vec::new())),
            entry(b"a", EntryKind::Symlink(Vec::new())),
        ];
        for frame in bad {
            let mut text = Vec::new();
            frame.write(&mut text);
            assert!(CopyFrame::read(&mut text.as_slice()).is_err(), "{frame:?}");
        }
        let CopyFrame::Entry(mut privileged) = entry(b"a", EntryKind::Folder) else {
            unreachable!();
        };
        let mut nobodys = [privileged.clone(), privileged.clone()];
        nobodys[0].attributes.uid = u32::MAX;
        nobodys[1].attributes.gid = u32::MAX;
        privileged.attributes.extended = vec![(b"security.capability".to_vec(), vec![1])];
        for entry in nobodys.into_iter().chain([privileged]) {
            let mut text = Vec::new();
            CopyFrame::Entry(entry).write(&mut text);
            assert!(CopyFrame::read(&mut text.as_slice()).is_err());
        }
        for text in [&b"D\xff\xff\xff\xff"[..], b"Q\0\0\0\0", b"Z\0\0\0\x01x"] {
            assert!(CopyFrame::read(&mut &*text).is_err(), "{text:?}");
        }
    }
}
