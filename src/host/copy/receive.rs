//! The receiving end of a copy: writes the stream's content into a folder that only root may enter,
//! and then compares it.

use std::{
    ffi::OsStr,
    fs::File,
    io::Read,
    os::{fd::OwnedFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, StatVfs, Timespec, Timestamps,
        UTIME_OMIT, Uid, XattrFlags,
    },
    io::Errno,
};

use super::{
    Attributes, CopyEntry, CopyError, CopyProgress, EntryKind, MOST_DEEP, Owners, Summary,
    allowed_mode, digest, frames::CopyFrame, system,
};

/// Bytes between two checks of the free space.
const LOOK_EVERY: u64 = 64 << 20;

/// Bytes that stay free for other programs on a file system of `whole` bytes: 1 GiB, or 5 % where
/// that is less. A percentage of a large file system would reserve more than is needed.
pub(super) fn stays_free(whole: u64) -> u64 {
    (1 << 30).min(whole / 20)
}

/// A file or folder that is being written.
struct UnfinishedEntry {
    file: File,
    attributes: Attributes,
    /// Size of a file; `None` for a folder.
    size: Option<u64>,
}

struct CopyReceiver<'r> {
    root: &'r File,
    owners: &'r Owners,
    progress: &'r CopyProgress,
    stack: Vec<UnfinishedEntry>,
    path: PathBuf,
    /// The copied folder itself was received.
    begun: bool,
    /// Bytes written since the last check of the free space.
    unseen: u64,
}

/// Writes the stream's content into `into`, an empty folder that no other user can enter, syncs it
/// to the disk, reads it back and compares. Blocks for as long as that takes.
///
/// # Errors
/// [`CopyError`]; the content of `into` is to be removed then.
pub fn receive(
    from: &mut impl Read,
    into: &File,
    owners: &Owners,
    progress: &CopyProgress,
) -> Result<Summary, CopyError> {
    let mut receiving = CopyReceiver {
        root: into,
        owners,
        progress,
        stack: Vec::new(),
        path: PathBuf::new(),
        begun: false,
        unseen: 0,
    };
    let expected = loop {
        progress.check()?;
        let frame = CopyFrame::read(from)?.ok_or(CopyError::Ended)?;
        match frame {
            CopyFrame::Total { files, bytes } => receiving.expect(files, bytes)?,
            CopyFrame::Entry(entry) => receiving.entry(entry)?,
            CopyFrame::Block { offset, bytes } => receiving.block(offset, &bytes)?,
            CopyFrame::End => receiving.end()?,
            CopyFrame::Failed(reason) => return Err(CopyError::Other(reason)),
            CopyFrame::Summary(summary) if receiving.begun && receiving.stack.is_empty() => {
                break summary;
            }
            CopyFrame::Summary(_) => return Err(broken_stream("it ends within a folder")),
        }
    };
    rustix::fs::syncfs(into).map_err(|error| system("bring to the disk", Path::new(""), error))?;
    progress.verify();
    let mut found = digest(into, owners, progress)?;
    // Skipped entries do not exist at this end.
    found.skipped += expected.skipped;
    match found == expected {
        true => Ok(found),
        false => Err(CopyError::Differs {
            expected: expected.digest,
            found: found.digest,
        }),
    }
}

impl CopyReceiver<'_> {
    fn expect(&self, files: u64, bytes: u64) -> Result<(), CopyError> {
        self.progress.expect(files, bytes);
        if self.begun {
            // A later total is only a keepalive.
            return Ok(());
        }
        let there =
            rustix::fs::fstatvfs(self.root).map_err(|error| self.failed("look at", error))?;
        // Some file systems allocate inodes on demand and report 0.
        if there.f_files > 0 && there.f_favail < files {
            return Err(CopyError::TooMuch {
                path: PathBuf::from("."),
                what: "the file system has too few inodes left",
            });
        }
        room(&there, bytes)
    }

    /// Checks the free space again, since other programs write to the disk meanwhile.
    fn look_again(&mut self, written: u64) -> Result<(), CopyError> {
        self.unseen = self.unseen.saturating_add(written);
        if self.unseen < LOOK_EVERY {
            return Ok(());
        }
        self.unseen = 0;
        let there =
            rustix::fs::fstatvfs(self.root).map_err(|error| self.failed("look at", error))?;
        room(&there, 0)
    }

    fn entry(&mut self, entry: CopyEntry) -> Result<(), CopyError> {
        let CopyEntry {
            name,
            kind,
            attributes,
        } = entry;
        let Attributes { mode, uid, gid, .. } = attributes;
        let fits = matches!(kind, EntryKind::Symlink(_) | EntryKind::Link(_))
            || mode == allowed_mode(self.owners, &kind, mode, uid, gid);
        if !fits {
            return Err(broken_stream("a file has rights that it may not have"));
        }
        let Some(parent) = self.stack.last() else {
            if self.begun || !name.is_empty() || kind != EntryKind::Folder {
                return Err(broken_stream("it does not begin with one folder"));
            }
            if !self.owners.has(uid) {
                return Err(CopyError::Foreign(uid));
            }
            self.begun = true;
            let file = self.root.try_clone().map_err(|error| CopyError::System {
                verb: "open",
                path: PathBuf::from("."),
                error,
            })?;
            self.stack.push(UnfinishedEntry {
                file,
                attributes,
                size: None,
            });
            return Ok(());
        };
        if parent.size.is_some() || name.is_empty() {
            return Err(broken_stream("something lies in what is no folder"));
        }
        if self.stack.len() > MOST_DEEP {
            return Err(broken_stream("folders lie too deep in each other"));
        }
        let at = OsStr::from_bytes(&name);
        self.path.push(at);
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match kind {
            EntryKind::Folder => {
                rustix::fs::mkdirat(&parent.file, at, Mode::from(0o700))
                    .map_err(|error| self.failed("make", error))?;
                let flags = flags | OFlags::DIRECTORY | OFlags::RDONLY;
                let file = rustix::fs::openat(&parent.file, at, flags, Mode::empty())
                    .map_err(|error| self.failed("open", error))?;
                self.open(file, attributes, None);
            }
            EntryKind::File(size) => {
                let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                let file = rustix::fs::openat(&parent.file, at, flags, Mode::from(0o600))
                    .map_err(|error| self.failed("make", error))?;
                self.progress.add(1, 0);
                self.open(file, attributes, Some(size));
            }
            EntryKind::Link(first) => {
                self.link(&parent.file, at, &first)?;
                self.done();
            }
            EntryKind::Symlink(target) => {
                rustix::fs::symlinkat(OsStr::from_bytes(&target), &parent.file, at)
                    .map_err(|error| self.failed("make", error))?;
                self.set_owner_and_time(&parent.file, at, &attributes)?;
                self.done();
            }
            EntryKind::Fifo => {
                let mode = Mode::from(0o600);
                rustix::fs::mknodat(&parent.file, at, FileType::Fifo, mode, 0)
                    .map_err(|error| self.failed("make", error))?;
                // No other user can enter the folder, so the name still refers to the new pipe.
                self.own(&parent.file, at, &attributes)?;
                let mode = Mode::from(attributes.mode);
                rustix::fs::chmodat(&parent.file, at, mode, AtFlags::empty())
                    .map_err(|error| self.failed("give a mode to", error))?;
                self.set_owner_and_time(&parent.file, at, &attributes)?;
                self.done();
            }
        }
        Ok(())
    }

    fn open(&mut self, file: OwnedFd, attributes: Attributes, size: Option<u64>) {
        self.stack.push(UnfinishedEntry {
            file: File::from(file),
            attributes,
            size,
        });
    }

    fn done(&mut self) {
        self.path.pop();
        self.progress.add(1, 0);
    }

    /// Adds another name to an existing file; the path to it may contain only folders.
    fn link(&self, parent: &File, name: &OsStr, first: &[u8]) -> Result<(), CopyError> {
        let first = Path::new(OsStr::from_bytes(first));
        let (Some(folder), Some(file)) = (first.parent(), first.file_name()) else {
            return Err(broken_stream("a link leads nowhere"));
        };
        let folder = match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = rustix::fs::openat2(self.root, folder, flags, Mode::empty(), resolve)
            .map_err(|error| self.failed("find the first name of", error))?;
        // Without AT_SYMLINK_FOLLOW a symbolic link itself would get the name.
        rustix::fs::linkat(&folder, file, parent, name, AtFlags::empty())
            .map_err(|error| self.failed("make", error))
    }

    fn block(&mut self, offset: u64, mut bytes: &[u8]) -> Result<(), CopyError> {
        let Some(UnfinishedEntry {
            file,
            size: Some(size),
            ..
        }) = self.stack.last()
        else {
            return Err(broken_stream("contents of no file"));
        };
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > *size) {
            return Err(broken_stream("contents beyond the end of a file"));
        }
        let mut place = offset;
        while !bytes.is_empty() {
            match rustix::io::pwrite(file, bytes, place) {
                Ok(0) => return Err(self.failed("write", Errno::IO)),
                Ok(count) => {
                    place += u64::try_from(count).unwrap_or(0);
                    bytes = bytes.get(count..).unwrap_or_default();
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.failed("write", error)),
            }
        }
        self.progress.add(0, length);
        self.look_again(length)
    }

    /// Completes a file or folder: sets its owner, mode, attributes and times.
    fn end(&mut self) -> Result<(), CopyError> {
        let Some(open) = self.stack.pop() else {
            return Err(broken_stream("the end of nothing"));
        };
        let UnfinishedEntry {
            file,
            attributes,
            size,
        } = open;
        if let Some(size) = size {
            rustix::fs::ftruncate(&file, size).map_err(|error| self.failed("write", error))?;
        }
        let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
        rustix::fs::fchown(&file, Some(uid), Some(gid))
            .map_err(|error| self.failed("give an owner to", error))?;
        for (name, value) in &attributes.extended {
            rustix::fs::fsetxattr(&file, name.as_slice(), value, XattrFlags::empty())
                .map_err(|error| self.failed("give attributes to", error))?;
        }
        // After the owner: changing the owner clears mode bits.
        rustix::fs::fchmod(&file, Mode::from(attributes.mode))
            .map_err(|error| self.failed("give a mode to", error))?;
        rustix::fs::futimens(&file, &times(&attributes))
            .map_err(|error| self.failed("give a time to", error))?;
        self.path.pop();
        Ok(())
    }

    /// Sets owner and time of an entry that can't be opened.
    fn set_owner_and_time(
        &self,
        parent: &File,
        name: &OsStr,
        attributes: &Attributes,
    ) -> Result<(), CopyError> {
        self.own(parent, name, attributes)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(parent, name, &times(attributes), flags)
            .map_err(|error| self.failed("give a time to", error))
    }

    fn own(&self, parent: &File, name: &OsStr, attributes: &Attributes) -> Result<(), CopyError> {
        let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        // Setting the same owner a second time clears no mode bits of a pipe or link.
        rustix::fs::chownat(parent, name, Some(uid), Some(gid), flags)
            .map_err(|error| self.failed("give an owner to", error))
    }

    fn failed(&self, verb: &'static str, error: Errno) -> CopyError {
        system(verb, &self.path, error)
    }
}

/// Checks that enough space stays free after `bytes` more.
fn room(there: &StatVfs, bytes: u64) -> Result<(), CopyError> {
    let of = |blocks: u64| blocks.saturating_mul(there.f_frsize);
    let (free, whole) = (of(there.f_bavail), of(there.f_blocks));
    let needed = bytes.saturating_add(stays_free(whole));
    match free < needed {
        true => Err(CopyError::NoRoom { needed, free }),
        false => Ok(()),
    }
}

fn times(attributes: &Attributes) -> Timestamps {
    Timestamps {
        last_access: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
        last_modification: Timespec {
            tv_sec: attributes.seconds,
            tv_nsec: attributes.nanoseconds.into(),
        },
    }
}

fn broken_stream(what: &str) -> CopyError {
    CopyError::Stream(what.to_owned())
}
