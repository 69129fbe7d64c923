//! Unpacks an untrusted tar stream from a container.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

use bytes::{Buf, Bytes};
use rustix::fs::OFlags;
use tar::{Archive, EntryType};
use tokio::sync::mpsc;

/// Longest name in bytes.
const MOST_NAME: u64 = 4096;
/// Most skipped names that are reported.
const MOST_TOLD: usize = 20;

/// Reads from a channel.
struct PieceReader {
    receiver: mpsc::Receiver<Bytes>,
    piece: Bytes,
}

impl Read for PieceReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() {
            match self.receiver.blocking_recv() {
                Some(piece) => self.piece = piece,
                None => return Ok(0),
            }
        }
        let length = self.piece.len().min(buffer.len());
        let (to, _) = buffer.split_at_mut(length);
        self.piece.copy_to_slice(to);
        Ok(length)
    }
}

fn wrong(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// An entry of the stream that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SkippedEntry {
    pub(crate) name: String,
    /// The kind of entry, in words.
    pub(crate) what: &'static str,
    /// Whether it is the named file itself, so that nothing was copied.
    pub(crate) named: bool,
}

fn in_words(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Symlink => "a link",
        EntryType::Link => "another name of a file that came before (a hard link)",
        _ => "neither a file nor a folder",
    }
}

/// Writes the entry `top` of the stream and everything below it to `place`. Returns the skipped
/// entries.
pub(crate) fn unpack(
    receiver: mpsc::Receiver<Bytes>,
    top: &str,
    place: &Path,
) -> io::Result<Vec<SkippedEntry>> {
    let pieces = PieceReader {
        receiver,
        piece: Bytes::new(),
    };
    let mut archive = Archive::new(pieces);
    let mut left_out = Vec::new();
    let mut long_name: Option<Vec<u8>> = None;
    let mut found = false;
    // Raw entries: otherwise the library would read a name of any length into memory.
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        let kind = entry.header().entry_type();
        match kind {
            EntryType::GNULongName | EntryType::XHeader => {
                if entry.size() > MOST_NAME {
                    return Err(wrong("a name in the stream is too long"));
                }
                let mut text = Vec::new();
                entry.read_to_end(&mut text)?;
                if let Some(name) = name_in(kind, &text) {
                    long_name = Some(name);
                }
                continue;
            }
            EntryType::XGlobalHeader | EntryType::GNULongLink => continue,
            _ => {}
        }
        let name = long_name
            .take()
            .unwrap_or_else(|| entry.path_bytes().into_owned());
        let name = String::from_utf8(name).map_err(|_| wrong("a name is not UTF-8"))?;
        let to = local_path_of(&name, top, place)?;
        match kind {
            EntryType::Directory if fs::symlink_metadata(&to).is_ok_and(|there| there.is_dir()) => {
            }
            EntryType::Directory => fs::create_dir(&to)?,
            EntryType::Regular | EntryType::Continuous => {
                let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
                let mut file = OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .mode(0o600)
                    .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
                    .open(&to)?;
                io::copy(&mut entry, &mut file)?;
                // Write permission for group and others in the container is not taken over.
                let mode = mode & !0o022 | 0o200;
                file.set_permissions(fs::Permissions::from_mode(mode))?;
            }
            _ if to == place => {
                return Ok(vec![SkippedEntry {
                    name,
                    what: in_words(kind),
                    named: true,
                }]);
            }
            _ if left_out.len() < MOST_TOLD => left_out.push(SkippedEntry {
                name,
                what: in_words(kind),
                named: false,
            }),
            _ => {}
        }
        found = true;
    }
    if found {
        Ok(left_out)
    } else {
        Err(wrong("nothing came out of the container"))
    }
}

/// The name that a long-name entry gives to the next one.
fn name_in(kind: EntryType, text: &[u8]) -> Option<Vec<u8>> {
    if kind == EntryType::GNULongName {
        let end = text.iter().position(|byte| *byte == 0);
        return Some(text.get(..end.unwrap_or(text.len()))?.to_vec());
    }
    let mut fields = tar::PaxExtensions::new(text).flatten();
    let path = fields.find(|field| field.key_bytes() == b"path")?;
    Some(path.value_bytes().to_vec())
}

/// The local path of an entry: below the place, with plain names only, and through no link.
fn local_path_of(name: &str, top: &str, place: &Path) -> io::Result<PathBuf> {
    let path = Path::new(name);
    let mut parts = path.components().filter(|part| *part != Component::CurDir);
    let out = || {
        wrong(format!(
            "`{}` would leave the place that was named",
            name.escape_debug()
        ))
    };
    if parts.next() != Some(Component::Normal(top.as_ref())) {
        return Err(out());
    }
    let mut to = place.to_owned();
    for part in parts {
        let Component::Normal(part) = part else {
            return Err(out());
        };
        if !fs::symlink_metadata(&to).is_ok_and(|there| there.is_dir()) {
            return Err(out());
        }
        to.push(part);
    }
    Ok(to)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct Stream(tar::Builder<Vec<u8>>);

    impl Stream {
        fn new() -> Self {
            Self(tar::Builder::new(Vec::new()))
        }

        /// Writes the name unchecked, because the library would refuse these names.
        fn add(mut self, name: &str, kind: EntryType, content: &[u8]) -> Self {
            let mut header = tar::Header::new_gnu();
            let field = &mut header.as_gnu_mut().unwrap().name;
            field[..name.len()].copy_from_slice(name.as_bytes());
            header.set_entry_type(kind);
            header.set_size(content.len() as u64);
            header.set_mode(0o4755);
            if kind == EntryType::Symlink {
                header.set_link_name("/etc").unwrap();
            }
            header.set_cksum();
            self.0.append(&header, content).unwrap();
            self
        }

        fn unpack(self, place: &Path) -> io::Result<Vec<SkippedEntry>> {
            let bytes = Bytes::from(self.0.into_inner().unwrap());
            let (sender, receiver) = mpsc::channel(1000);
            for piece in bytes.chunks(100) {
                sender.try_send(Bytes::copy_from_slice(piece)).unwrap();
            }
            drop(sender);
            unpack(receiver, "top", place)
        }
    }

    #[test]
    fn a_folder_comes_out_under_another_name() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("here");
        let long = format!("top/{}", "x".repeat(150));
        let stream = Stream::new()
            .add("top/", EntryType::Directory, b"")
            .add("./top/a", EntryType::Regular, b"one")
            .add(
                "link",
                EntryType::GNULongName,
                format!("{long}\0").as_bytes(),
            )
            .add("top/short", EntryType::Regular, b"two");
        assert_eq!(stream.unpack(&place).unwrap(), []);
        assert_eq!(fs::read(place.join("a")).unwrap(), b"one");
        let mode = fs::metadata(place.join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755);
        assert_eq!(fs::read(place.join("x".repeat(150))).unwrap(), b"two");
    }

    #[test]
    fn nothing_leaves_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("here");
        fs::create_dir(&place).unwrap();
        symlink(folder.path(), place.join("out")).unwrap();
        symlink(folder.path().join("victim"), place.join("file")).unwrap();
        for name in [
            "top/../evil",
            "../evil",
            "/evil",
            "/top/evil",
            "evil",
            "top/out/evil",
            "top/file",
        ] {
            let stream = Stream::new().add(name, EntryType::Regular, b"x");
            assert!(stream.unpack(&place).is_err(), "{name}");
        }
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }

    #[test]
    fn links_and_devices_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("here");
        let stream = Stream::new()
            .add("top", EntryType::Directory, b"")
            .add("top/link", EntryType::Symlink, b"")
            .add("top/device", EntryType::Char, b"")
            // The path goes through the link that was skipped.
            .add("top/link/evil", EntryType::Regular, b"x");
        assert!(stream.unpack(&place).is_err());
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
        let place = folder.path().join("again");
        let stream = Stream::new()
            .add("top", EntryType::Directory, b"")
            .add("top/link", EntryType::Symlink, b"")
            .add("top/again", EntryType::Link, b"")
            .add("top/pipe", EntryType::Fifo, b"");
        let left_out = stream.unpack(&place).unwrap();
        let told: Vec<_> = left_out
            .iter()
            .map(|one| (one.name.as_str(), one.what))
            .collect();
        let again = "another name of a file that came before (a hard link)";
        let neither = "neither a file nor a folder";
        assert_eq!(
            told,
            [
                ("top/link", "a link"),
                ("top/again", again),
                ("top/pipe", neither)
            ]
        );
    }

    #[test]
    fn a_skipped_entry_that_the_user_named_is_marked() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("here");
        let stream = Stream::new().add("./top", EntryType::Symlink, b"");
        let left_out = stream.unpack(&place).unwrap();
        assert!(left_out.iter().all(|one| one.named), "{left_out:?}");
        assert_eq!(left_out.len(), 1);
        assert!(fs::symlink_metadata(&place).is_err());
        let stream = Stream::new().add("top", EntryType::Directory, b"").add(
            "top/link",
            EntryType::Symlink,
            b"",
        );
        let left_out = stream.unpack(&place).unwrap();
        assert!(left_out.iter().all(|one| !one.named), "{left_out:?}");
    }

    #[test]
    fn a_name_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let long = vec![b'x'; 5000];
        let stream = Stream::new().add("link", EntryType::GNULongName, &long);
        assert!(stream.unpack(&folder.path().join("here")).is_err());
        assert!(Stream::new().unpack(&folder.path().join("here")).is_err());
    }
}
