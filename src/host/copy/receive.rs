//! The end that gets the data: makes what the stream says below a folder that only root may enter, and then compares.

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
    Attributes, CopyError, Entry, Kind, MOST_DEEP, Owners, Progress, Summary, allowed_mode, digest,
    frames::Frame, system,
};

/// After so many bytes it is looked again whether enough stays free.
const LOOK_EVERY: u64 = 64 << 20;

/// What stays free of a file system of so many bytes, for everybody else on the machine: 1 GiB, and of a small one 5 %.
/// A part of a large one would keep much that nobody needs.
pub(super) fn stays_free(whole: u64) -> u64 {
    (1 << 30).min(whole / 20)
}

/// What is open.
struct Open {
    file: File,
    attributes: Attributes,
    /// Of a file.
    size: Option<u64>,
}

struct Receiving<'r> {
    root: &'r File,
    owners: &'r Owners,
    progress: &'r Progress,
    stack: Vec<Open>,
    path: PathBuf,
    /// The copied folder has come, and its end.
    begun: bool,
    /// Bytes that were written since the last look at what is free.
    unseen: u64,
}

/// Makes in `into`, an empty folder that nobody else can enter, what the stream says, brings it to the disk, reads it
/// again and compares. Blocks for as long as that takes.
///
/// # Errors
/// [`CopyError`]; then what lies in `into` is to be removed.
pub fn receive(
    from: &mut impl Read,
    into: &File,
    owners: &Owners,
    progress: &Progress,
) -> Result<Summary, CopyError> {
    let mut receiving = Receiving {
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
        let frame = Frame::read(from)?.ok_or(CopyError::Ended)?;
        match frame {
            Frame::Total { files, bytes } => receiving.expect(files, bytes)?,
            Frame::Entry(entry) => receiving.entry(entry)?,
            Frame::Block { offset, bytes } => receiving.block(offset, &bytes)?,
            Frame::End => receiving.end()?,
            Frame::Failed(reason) => return Err(CopyError::Other(reason)),
            Frame::Summary(summary) if receiving.begun && receiving.stack.is_empty() => {
                break summary;
            }
            Frame::Summary(_) => return Err(broken("it ends within a folder")),
        }
    };
    rustix::fs::syncfs(into).map_err(|error| system("bring to the disk", Path::new(""), error))?;
    progress.verify();
    let mut found = digest(into, owners, progress)?;
    // Of what is not copied nothing is here.
    found.skipped += expected.skipped;
    match found == expected {
        true => Ok(found),
        false => Err(CopyError::Differs {
            expected: expected.digest,
            found: found.digest,
        }),
    }
}

impl Receiving<'_> {
    fn expect(&self, files: u64, bytes: u64) -> Result<(), CopyError> {
        self.progress.expect(files, bytes);
        if self.begun {
            // It is only a sign of life.
            return Ok(());
        }
        let there =
            rustix::fs::fstatvfs(self.root).map_err(|error| self.failed("look at", error))?;
        // Some file systems make room for files as it is needed, and say 0.
        if there.f_files > 0 && there.f_favail < files {
            return Err(CopyError::TooMuch {
                path: PathBuf::from("."),
                what: "the file system has too few inodes left",
            });
        }
        room(&there, bytes)
    }

    /// Others write to the disk meanwhile.
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

    fn entry(&mut self, entry: Entry) -> Result<(), CopyError> {
        let Entry {
            name,
            kind,
            attributes,
        } = entry;
        let Attributes { mode, uid, gid, .. } = attributes;
        let fits = matches!(kind, Kind::Symlink(_) | Kind::Link(_))
            || mode == allowed_mode(self.owners, &kind, mode, uid, gid);
        if !fits {
            return Err(broken("a file has rights that it may not have"));
        }
        let Some(parent) = self.stack.last() else {
            if self.begun || !name.is_empty() || kind != Kind::Folder {
                return Err(broken("it does not begin with one folder"));
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
            self.stack.push(Open {
                file,
                attributes,
                size: None,
            });
            return Ok(());
        };
        if parent.size.is_some() || name.is_empty() {
            return Err(broken("something lies in what is no folder"));
        }
        if self.stack.len() > MOST_DEEP {
            return Err(broken("folders lie too deep in each other"));
        }
        let at = OsStr::from_bytes(&name);
        self.path.push(at);
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match kind {
            Kind::Folder => {
                rustix::fs::mkdirat(&parent.file, at, Mode::from(0o700))
                    .map_err(|error| self.failed("make", error))?;
                let flags = flags | OFlags::DIRECTORY | OFlags::RDONLY;
                let file = rustix::fs::openat(&parent.file, at, flags, Mode::empty())
                    .map_err(|error| self.failed("open", error))?;
                self.open(file, attributes, None);
            }
            Kind::File(size) => {
                let flags = flags | OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                let file = rustix::fs::openat(&parent.file, at, flags, Mode::from(0o600))
                    .map_err(|error| self.failed("make", error))?;
                self.progress.add(1, 0);
                self.open(file, attributes, Some(size));
            }
            Kind::Link(first) => {
                self.link(&parent.file, at, &first)?;
                self.done();
            }
            Kind::Symlink(target) => {
                rustix::fs::symlinkat(OsStr::from_bytes(&target), &parent.file, at)
                    .map_err(|error| self.failed("make", error))?;
                self.give(&parent.file, at, &attributes)?;
                self.done();
            }
            Kind::Fifo => {
                let mode = Mode::from(0o600);
                rustix::fs::mknodat(&parent.file, at, FileType::Fifo, mode, 0)
                    .map_err(|error| self.failed("make", error))?;
                // Nobody else can come here: it is still what was made.
                self.own(&parent.file, at, &attributes)?;
                let mode = Mode::from(attributes.mode);
                rustix::fs::chmodat(&parent.file, at, mode, AtFlags::empty())
                    .map_err(|error| self.failed("give a mode to", error))?;
                self.give(&parent.file, at, &attributes)?;
                self.done();
            }
        }
        Ok(())
    }

    fn open(&mut self, file: OwnedFd, attributes: Attributes, size: Option<u64>) {
        self.stack.push(Open {
            file: File::from(file),
            attributes,
            size,
        });
    }

    fn done(&mut self) {
        self.path.pop();
        self.progress.add(1, 0);
    }

    /// Another name of a file that is there; the way to it goes through folders alone.
    fn link(&self, parent: &File, name: &OsStr, first: &[u8]) -> Result<(), CopyError> {
        let first = Path::new(OsStr::from_bytes(first));
        let (Some(folder), Some(file)) = (first.parent(), first.file_name()) else {
            return Err(broken("a link leads nowhere"));
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
        // Without AT_SYMLINK_FOLLOW a link itself would get the name.
        rustix::fs::linkat(&folder, file, parent, name, AtFlags::empty())
            .map_err(|error| self.failed("make", error))
    }

    fn block(&mut self, offset: u64, mut bytes: &[u8]) -> Result<(), CopyError> {
        let Some(Open {
            file,
            size: Some(size),
            ..
        }) = self.stack.last()
        else {
            return Err(broken("contents of no file"));
        };
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let end = offset.checked_add(length);
        if end.is_none_or(|end| end > *size) {
            return Err(broken("contents beyond the end of a file"));
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

    /// A file or folder is whole, and gets what belongs to it.
    fn end(&mut self) -> Result<(), CopyError> {
        let Some(open) = self.stack.pop() else {
            return Err(broken("the end of nothing"));
        };
        let Open {
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
        // After the owner: a change of owner clears bits.
        rustix::fs::fchmod(&file, Mode::from(attributes.mode))
            .map_err(|error| self.failed("give a mode to", error))?;
        rustix::fs::futimens(&file, &times(&attributes))
            .map_err(|error| self.failed("give a time to", error))?;
        self.path.pop();
        Ok(())
    }

    /// Owner and time of what can't be opened.
    fn give(&self, parent: &File, name: &OsStr, attributes: &Attributes) -> Result<(), CopyError> {
        self.own(parent, name, attributes)?;
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(parent, name, &times(attributes), flags)
            .map_err(|error| self.failed("give a time to", error))
    }

    fn own(&self, parent: &File, name: &OsStr, attributes: &Attributes) -> Result<(), CopyError> {
        let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        // The same owner again clears no bits of what has none.
        rustix::fs::chownat(parent, name, Some(uid), Some(gid), flags)
            .map_err(|error| self.failed("give an owner to", error))
    }

    fn failed(&self, verb: &'static str, error: Errno) -> CopyError {
        system(verb, &self.path, error)
    }
}

/// So many bytes more leave enough free.
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

fn broken(what: &str) -> CopyError {
    CopyError::Stream(what.to_owned())
}
