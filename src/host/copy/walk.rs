//! Walks through a folder in an order that is the same on all machines, without leaving the folder.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::File,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat},
    io::Errno,
};

use super::{
    Attributes, BLOCK, CopyEntry, CopyError, EntryKind, ExtendedAttributes, MOST_ATTRIBUTES,
    MOST_DEEP, MOST_HELD, MOST_LINKED, MOST_NAMES, Owners, allowed_mode, is_copied, system,
};

/// Receives the walked entries.
pub(super) trait WalkVisitor {
    /// An entry; a folder's entries follow it, and a file's blocks.
    fn entry(&mut self, entry: &CopyEntry) -> Result<(), CopyError>;
    /// A block of a file that is not all zeros; at most [`BLOCK`] bytes.
    fn block(&mut self, offset: u64, block: &[u8]) -> Result<(), CopyError>;
    /// The end of a folder or a file.
    fn end(&mut self) -> Result<(), CopyError>;
    /// Called after reading data without an entry or block to report.
    fn idle(&mut self) -> Result<(), CopyError> {
        Ok(())
    }
    /// Whether the content of files is needed.
    fn reads(&self) -> bool {
        true
    }
}

struct CopyWalk<'v, V> {
    owners: &'v Owners,
    visit: &'v mut V,
    device: u64,
    /// By inode: the first path of a file with several names, and the number of its names still to
    /// come.
    linked: BTreeMap<u64, (Vec<u8>, usize)>,
    names: usize,
    /// Bytes of those names and paths, and their limit.
    held: usize,
    limit: usize,
    skipped: u64,
    path: PathBuf,
    block: Vec<u8>,
}

/// Walks through `folder`, beginning with itself. Returns the number of skipped sockets and
/// devices.
pub(super) fn walk<V: WalkVisitor>(
    folder: &File,
    owners: &Owners,
    visit: &mut V,
) -> Result<u64, CopyError> {
    walk_within(folder, owners, visit, MOST_HELD)
}

/// Like [`walk`], with a limit on the bytes of names in memory.
pub(super) fn walk_within<V: WalkVisitor>(
    folder: &File,
    owners: &Owners,
    visit: &mut V,
    limit: usize,
) -> Result<u64, CopyError> {
    let stat =
        rustix::fs::fstat(folder).map_err(|error| system("look at", Path::new(""), error))?;
    if !owners.has(stat.st_uid) {
        return Err(CopyError::Foreign(stat.st_uid));
    }
    let mut walk = CopyWalk {
        owners,
        visit,
        device: stat.st_dev,
        linked: BTreeMap::new(),
        names: 0,
        held: 0,
        limit,
        skipped: 0,
        path: PathBuf::new(),
        block: vec![0; BLOCK],
    };
    walk.folder(folder, Vec::new(), &stat, 0)?;
    Ok(walk.skipped)
}

/// Counts the entries of a folder except folders, and estimates their bytes. `meanwhile` is called
/// for each.
pub(super) fn measure(
    folder: &File,
    owners: &Owners,
    meanwhile: &mut dyn FnMut() -> Result<(), CopyError>,
) -> Result<(u64, u64), CopyError> {
    struct EntryCounter<'m> {
        files: u64,
        bytes: u64,
        meanwhile: &'m mut dyn FnMut() -> Result<(), CopyError>,
    }
    impl WalkVisitor for EntryCounter<'_> {
        fn entry(&mut self, entry: &CopyEntry) -> Result<(), CopyError> {
            self.files += u64::from(entry.kind != EntryKind::Folder);
            (self.meanwhile)()
        }

        fn block(&mut self, length: u64, _: &[u8]) -> Result<(), CopyError> {
            self.bytes = self.bytes.saturating_add(length);
            Ok(())
        }

        fn end(&mut self) -> Result<(), CopyError> {
            Ok(())
        }

        fn reads(&self) -> bool {
            false
        }
    }
    let mut counting = EntryCounter {
        files: 0,
        bytes: 0,
        meanwhile,
    };
    walk(folder, owners, &mut counting)?;
    Ok((counting.files, counting.bytes))
}

impl<V: WalkVisitor> CopyWalk<'_, V> {
    fn folder(
        &mut self,
        folder: &File,
        name: Vec<u8>,
        stat: &Stat,
        depth: usize,
    ) -> Result<(), CopyError> {
        if depth > MOST_DEEP {
            return Err(self.too_much("folders lie too deep in each other"));
        }
        let entry = self.entry_of(name, EntryKind::Folder, stat, Some(folder))?;
        self.visit.entry(&entry)?;
        let mut names = Vec::new();
        let before = self.held;
        let listing = Dir::read_from(folder).map_err(|error| self.failed("list", error))?;
        for found in listing {
            let found = found.map_err(|error| self.failed("list", error))?;
            let name = found.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
                self.held += name.len();
            }
            if self.names + names.len() > MOST_NAMES || self.held > self.limit {
                return Err(self.too_much("has too many names in one folder"));
            }
        }
        names.sort_unstable();
        let (count, bytes) = (names.len(), self.held - before);
        self.names += count;
        for name in names {
            self.path.push(OsStr::from_bytes(&name));
            self.visit_entry(folder, name, depth)?;
            self.path.pop();
        }
        self.names -= count;
        self.held -= bytes;
        self.visit.end()
    }

    fn visit_entry(&mut self, folder: &File, name: Vec<u8>, depth: usize) -> Result<(), CopyError> {
        let at = OsStr::from_bytes(&name);
        let stat = rustix::fs::statat(folder, at, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(|error| self.failed("look at", error))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if stat.st_dev != self.device {
            return Err(CopyError::Mounted(self.path.clone()));
        }
        match kind {
            FileType::Directory => {
                let (inner, stat) = self.open(folder, at, &stat, OFlags::DIRECTORY)?;
                self.folder(&inner, name, &stat, depth + 1)
            }
            FileType::RegularFile => self.file(folder, name, &stat),
            FileType::Symlink => {
                let target = rustix::fs::readlinkat(folder, at, Vec::new())
                    .map_err(|error| self.failed("read the link", error))?;
                let kind = EntryKind::Symlink(target.into_bytes());
                let entry = self.entry_of(name, kind, &stat, None)?;
                self.visit.entry(&entry)
            }
            FileType::Fifo => {
                let entry = self.entry_of(name, EntryKind::Fifo, &stat, None)?;
                self.visit.entry(&entry)
            }
            _ => {
                self.skipped += 1;
                Ok(())
            }
        }
    }

    fn file(&mut self, folder: &File, name: Vec<u8>, stat: &Stat) -> Result<(), CopyError> {
        if stat.st_nlink > 1 {
            if let Some((first, left)) = self.linked.get_mut(&stat.st_ino) {
                let kind = EntryKind::Link(first.clone());
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.held -= first.len();
                    self.linked.remove(&stat.st_ino);
                }
                // The file's attributes were sent with its first name.
                let entry = CopyEntry {
                    name,
                    kind,
                    attributes: Attributes::default(),
                };
                return self.visit.entry(&entry);
            }
            let path = self.path.as_os_str().as_bytes().to_vec();
            let others = usize::try_from(stat.st_nlink).unwrap_or(usize::MAX) - 1;
            self.held += path.len();
            if self.linked.len() >= MOST_LINKED || self.held > self.limit {
                return Err(self.too_much("too many files have several names"));
            }
            self.linked.insert(stat.st_ino, (path, others));
        }
        let at = OsStr::from_bytes(&name);
        let (file, before) = self.open(folder, at, stat, OFlags::NONBLOCK)?;
        let size = u64::try_from(before.st_size).unwrap_or(0);
        let entry = self.entry_of(name.clone(), EntryKind::File(size), &before, Some(&file))?;
        self.visit.entry(&entry)?;
        if self.visit.reads() {
            self.contents(&file, size)?;
        } else {
            let taken = u64::try_from(before.st_blocks).unwrap_or(0) * 512;
            self.visit.block(taken.min(size), &[])?;
        }
        let after = rustix::fs::fstat(&file).map_err(|error| self.failed("look at", error))?;
        let state = |stat: &Stat| {
            let (changed, modified) = (stat.st_ctime, stat.st_mtime);
            (
                stat.st_size,
                changed,
                stat.st_ctime_nsec,
                modified,
                stat.st_mtime_nsec,
            )
        };
        if state(&before) != state(&after) {
            return Err(CopyError::Changed(self.path.clone()));
        }
        self.visit.end()
    }

    /// Reports the blocks of a file that are not all zeros, cut at the same offsets on all
    /// machines.
    fn contents(&mut self, file: &File, size: u64) -> Result<(), CopyError> {
        let length = u64::try_from(BLOCK).unwrap_or(u64::MAX);
        let mut next = 0;
        while next < size {
            // A file system without holes has data everywhere.
            let data = match rustix::fs::seek(file, SeekFrom::Data(next)) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(_) => next,
            };
            let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(size);
            let mut offset = data - data % length;
            while offset < hole.min(size) {
                let wanted = usize::try_from((size - offset).min(length)).unwrap_or(BLOCK);
                let mut block = std::mem::take(&mut self.block);
                let result = self.block(file, offset, block.get_mut(..wanted));
                self.block = block;
                result?;
                offset += length;
            }
            next = offset.max(hole);
        }
        Ok(())
    }

    fn block(
        &mut self,
        file: &File,
        offset: u64,
        block: Option<&mut [u8]>,
    ) -> Result<(), CopyError> {
        let Some(block) = block else { return Ok(()) };
        let mut filled = 0;
        while let Some(rest) = block.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let place = offset + u64::try_from(filled).unwrap_or(0);
            match rustix::io::pread(file, rest, place) {
                Ok(0) => return Err(CopyError::Changed(self.path.clone())),
                Ok(count) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(self.failed("read", error)),
            }
        }
        match block.iter().all(|byte| *byte == 0) {
            true => self.visit.idle(),
            false => self.visit.block(offset, block),
        }
    }

    /// Opens an entry, and checks that it is the one whose status was read.
    fn open(
        &self,
        folder: &File,
        name: &OsStr,
        stat: &Stat,
        flags: OFlags,
    ) -> Result<(File, Stat), CopyError> {
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(folder, name, flags, Mode::empty())
            .map_err(|error| self.failed("open", error))?;
        let now = rustix::fs::fstat(&opened).map_err(|error| self.failed("look at", error))?;
        match (now.st_ino, now.st_dev) == (stat.st_ino, stat.st_dev) {
            true => Ok((File::from(opened), now)),
            false => Err(CopyError::Changed(self.path.clone())),
        }
    }

    fn entry_of(
        &self,
        name: Vec<u8>,
        kind: EntryKind,
        stat: &Stat,
        open: Option<&File>,
    ) -> Result<CopyEntry, CopyError> {
        let (uid, gid) = (stat.st_uid, stat.st_gid);
        let mode = match kind {
            // Symbolic links have no mode of their own.
            EntryKind::Symlink(_) => 0o777,
            _ => allowed_mode(self.owners, &kind, stat.st_mode, uid, gid),
        };
        let extended = open.map_or(Ok(Vec::new()), |file| self.extended(file))?;
        Ok(CopyEntry {
            name,
            kind,
            attributes: Attributes {
                mode,
                uid,
                gid,
                seconds: stat.st_mtime,
                nanoseconds: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
                extended,
            },
        })
    }

    fn extended(&self, file: &File) -> Result<ExtendedAttributes, CopyError> {
        let failed = |error| self.failed("read the attributes of", error);
        let mut list = vec![0; 64 << 10];
        let length = match rustix::fs::flistxattr(file, list.as_mut_slice()) {
            Ok(length) => length,
            Err(Errno::NOTSUP) => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        list.truncate(length);
        let mut found = Vec::new();
        let mut total = 0;
        for name in list.split(|byte| *byte == 0).filter(|name| is_copied(name)) {
            let mut value = vec![0; 64 << 10];
            let length = rustix::fs::fgetxattr(file, name, value.as_mut_slice()).map_err(failed)?;
            value.truncate(length);
            total += name.len() + length;
            if total > MOST_ATTRIBUTES {
                return Err(self.too_much("has too many extended attributes"));
            }
            found.push((name.to_vec(), value));
        }
        found.sort_unstable();
        Ok(found)
    }

    fn failed(&self, verb: &'static str, error: Errno) -> CopyError {
        system(verb, &self.path, error)
    }

    fn too_much(&self, what: &'static str) -> CopyError {
        CopyError::TooMuch {
            path: self.path.clone(),
            what,
        }
    }
}
