//! Archives of `*.kat` files: tar in gzip, read defensively and written reproducibly.
//!
//! Refused are: other formats, bytes after the end, too many bytes or entries, paths that leave the
//! archive, links and devices, the same file twice, and names and texts that are not UTF-8. Owners,
//! modes and times are not read.

use std::io::{self, Read};

use flate2::{Compression, GzBuilder, bufread::GzDecoder};
use tar::{Builder, EntryType};

use super::{
    CARRIED, MAX_BUNDLE, MAX_CARRIED, MAX_CARRIED_FILES, MAX_FILES, SourceFile,
    carried::{self, CarriedFile},
    diagnostic::{Class, Diagnostic, Position, Span, quote},
    parse::{check_file_name, check_file_size},
};

/// Limits of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Bytes of the archive.
    pub compressed: usize,
    /// Bytes of the tar in it.
    pub expanded: usize,
    /// Number of entries, including folders and ignored files.
    pub entries: usize,
    /// Bytes of an entry's path.
    pub path: usize,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        Self {
            compressed: MAX_BUNDLE,
            expanded: 4 * MAX_BUNDLE,
            entries: MAX_FILES + MAX_CARRIED_FILES,
            path: 255,
        }
    }
}

/// File name in diagnostics of the archive itself.
const ARCHIVE: &str = "archive";

/// Reads an archive within the usual limits.
///
/// The files are at its top, or all in one folder. Other files that volumes mount are one text in
/// the result, [`CARRIED`]. Hidden files and editors' backups are ignored. Errors: everything that
/// is wrong with the archive; the texts are not parsed as YAML.
pub fn read_archive(bytes: &[u8]) -> Result<Vec<SourceFile>, Vec<Diagnostic>> {
    read_archive_within(bytes, &ArchiveLimits::default())
}

/// Reads an archive within some limits.
pub fn read_archive_within(
    bytes: &[u8],
    limits: &ArchiveLimits,
) -> Result<Vec<SourceFile>, Vec<Diagnostic>> {
    sources_of(entries_of(bytes, limits))
}

/// Whether the bytes are a tar archive without gzip.
pub(super) fn is_plain_tar(bytes: &[u8]) -> bool {
    bytes.get(257..262) == Some(b"ustar")
}

/// As [`read_archive`], for a tar archive without gzip.
pub(super) fn read_plain_tar(tar: &[u8]) -> Result<Vec<SourceFile>, Vec<Diagnostic>> {
    sources_of(entries_of_tar(tar, &ArchiveLimits::default()))
}

/// The files of an archive whose entries were read.
fn sources_of(
    (entries, mut diagnostics): (Vec<ArchiveFile>, Vec<Diagnostic>),
) -> Result<Vec<SourceFile>, Vec<Diagnostic>> {
    let files = files(entries, &mut diagnostics);
    if files.is_empty() && diagnostics.is_empty() {
        let message = "no *.kat file is in the archive";
        diagnostics.push(Diagnostic::of_file(Class::Missing, ARCHIVE, message));
    }
    match diagnostics.is_empty() {
        true => Ok(files),
        false => Err(diagnostics),
    }
}

/// The plain files of an archive, and diagnostics of the other entries.
pub(super) fn entries_of(
    bytes: &[u8],
    limits: &ArchiveLimits,
) -> (Vec<ArchiveFile>, Vec<Diagnostic>) {
    match expand(bytes, limits) {
        Ok(tar) => entries_of_tar(&tar, limits),
        Err(found) => (Vec::new(), vec![found]),
    }
}

fn entries_of_tar(tar: &[u8], limits: &ArchiveLimits) -> (Vec<ArchiveFile>, Vec<Diagnostic>) {
    let mut reader = ArchiveReader {
        limits,
        diagnostics: Vec::new(),
        entries: Vec::new(),
    };
    if let Err(fatal) = reader.run(tar) {
        reader.diagnostics.push(fatal);
    }
    (reader.entries, reader.diagnostics)
}

fn refuse(class: Class, message: impl Into<String>) -> Diagnostic {
    Diagnostic::of_file(class, ARCHIVE, message)
}

/// Decompresses the archive.
fn expand(bytes: &[u8], limits: &ArchiveLimits) -> Result<Vec<u8>, Diagnostic> {
    if bytes.len() > limits.compressed {
        let message = format!(
            "the archive has {} bytes, expected at most {}",
            bytes.len(),
            limits.compressed
        );
        return Err(refuse(Class::Oversize, message));
    }
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        let found = match bytes {
            [] => "nothing",
            [b'P', b'K', ..] => "a zip archive",
            [0x28, 0xb5, 0x2f, 0xfd, ..] => "a zstd stream",
            [0xfd, b'7', b'z', b'X', b'Z', ..] => "an xz stream",
            [b'B', b'Z', b'h', ..] => "a bzip2 stream",
            _ if is_plain_tar(bytes) => "a tar archive without gzip",
            _ => "other bytes",
        };
        let message = format!("found {found}, expected a tar archive in gzip (.tar.gz)");
        return Err(refuse(Class::Archive, message)
            .hint("pack it with `tar --create --gzip`, or give katcall the folder"));
    }
    let most = u64::try_from(limits.expanded).unwrap_or(u64::MAX);
    let mut decoder = GzDecoder::new(bytes).take(most.saturating_add(1));
    let mut tar = Vec::new();
    decoder.read_to_end(&mut tar).map_err(|error| {
        let message = format!("the gzip stream is damaged: {}", quote(&error.to_string()));
        refuse(Class::Archive, message)
    })?;
    if tar.len() > limits.expanded {
        let message = format!("the archive expands to more than {} bytes", limits.expanded);
        return Err(refuse(Class::Oversize, message));
    }
    if !decoder.into_inner().into_inner().is_empty() {
        let message = "found more bytes after the end of the gzip stream";
        return Err(refuse(Class::Archive, message));
    }
    Ok(tar)
}

/// One file of the archive.
pub(super) struct ArchiveFile {
    pub(super) path: String,
    pub(super) executable: bool,
    /// Its content, read up to one byte more than the limit.
    pub(super) bytes: Vec<u8>,
    /// Its full size in bytes.
    whole: usize,
}

struct ArchiveReader<'a> {
    limits: &'a ArchiveLimits,
    diagnostics: Vec<Diagnostic>,
    entries: Vec<ArchiveFile>,
}

impl ArchiveReader<'_> {
    fn run(&mut self, tar: &[u8]) -> Result<(), Diagnostic> {
        let damaged = |error: io::Error| {
            let message = format!("the tar archive is damaged: {}", quote(&error.to_string()));
            refuse(Class::Archive, message)
        };
        let mut archive = tar::Archive::new(tar);
        for (index, entry) in archive.entries().map_err(damaged)?.enumerate() {
            if index >= self.limits.entries {
                let message = format!("found more than {} entries", self.limits.entries);
                return Err(refuse(Class::Oversize, message));
            }
            let mut entry = entry.map_err(damaged)?;
            let kind = entry.header().entry_type();
            // Written by `git archive`; it names a commit and is not a file.
            if kind == EntryType::XGlobalHeader {
                continue;
            }
            let Some(path) = self.path(&entry.path_bytes()) else {
                continue;
            };
            match kind {
                EntryType::Directory => {}
                EntryType::Regular => {
                    let size = entry.size();
                    let executable = entry.header().mode().is_ok_and(|mode| mode & 0o100 != 0);
                    let most = u64::try_from(MAX_CARRIED).unwrap_or(u64::MAX);
                    let mut bytes = Vec::new();
                    entry
                        .by_ref()
                        .take(most + 1)
                        .read_to_end(&mut bytes)
                        .map_err(damaged)?;
                    let whole = usize::try_from(size).unwrap_or(usize::MAX);
                    if bytes.len() < whole && bytes.len() <= MAX_CARRIED {
                        let message = format!("`{}` is cut off", quote(&path));
                        return Err(refuse(Class::Archive, message));
                    }
                    self.entries.push(ArchiveFile {
                        path,
                        executable,
                        bytes,
                        whole,
                    });
                }
                other => self.diagnostics.push(Diagnostic::of_file(
                    Class::Archive,
                    &path,
                    format!("is {}, expected a plain file", name_of(other)),
                )),
            }
        }
        Ok(())
    }

    /// A path within the archive, without `./`; `None` for the top, or after recording a
    /// diagnostic.
    fn path(&mut self, bytes: &[u8]) -> Option<String> {
        let lossy = String::from_utf8_lossy(bytes);
        let mut refuse = |class, message: &str| {
            self.diagnostics
                .push(Diagnostic::of_file(class, &lossy, message));
            None
        };
        let Ok(path) = std::str::from_utf8(bytes) else {
            return refuse(Class::Encoding, "the name is not UTF-8");
        };
        if path.len() > self.limits.path {
            return refuse(Class::Oversize, "the path is too long");
        }
        if path.starts_with('/') {
            return refuse(
                Class::Archive,
                "is an absolute path, expected a path within the archive",
            );
        }
        if path.split('/').any(|part| part == "..") {
            return refuse(Class::Archive, "leaves the archive by `..`");
        }
        if path.contains('\\') || path.chars().any(char::is_control) {
            return refuse(
                Class::Archive,
                "has a backslash or control character in its name",
            );
        }
        let parts: Vec<_> = path
            .split('/')
            .filter(|part| !part.is_empty() && *part != ".")
            .collect();
        (!parts.is_empty()).then(|| parts.join("/"))
    }
}

fn name_of(kind: EntryType) -> &'static str {
    match kind {
        EntryType::Symlink | EntryType::Link => "a link",
        EntryType::Char | EntryType::Block => "a device",
        EntryType::Fifo => "a pipe",
        EntryType::GNUSparse => "a sparse file",
        _ => "a special entry",
    }
}

/// Whether the file is hidden or an editor's backup.
pub(super) fn is_ignored(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let hidden = path.split('/').any(|part| part.starts_with('.'));
    let backup = [".bak", ".orig", ".rej", ".swp", ".swo", ".tmp"]
        .iter()
        .any(|end| name.ends_with(end));
    hidden || backup || name.ends_with('~') || (name.starts_with('#') && name.ends_with('#'))
}

/// The files at the top, or in the one folder that contains everything.
fn files(entries: Vec<ArchiveFile>, diagnostics: &mut Vec<Diagnostic>) -> Vec<SourceFile> {
    let folder = common_folder(&entries);
    let mut files: Vec<SourceFile> = Vec::new();
    let mut others: Vec<CarriedFile> = Vec::new();
    for mut found in entries {
        let name = folder
            .as_deref()
            .and_then(|folder| found.path.strip_prefix(folder))
            .unwrap_or(&found.path)
            .to_owned();
        if !name.ends_with(".kat") || name.contains('/') || is_ignored(&name) {
            name.clone_into(&mut found.path);
            others.push(found.into());
            continue;
        }
        if let Some(bad) = check_file_size(&name, found.whole) {
            diagnostics.push(bad);
            continue;
        }
        if let Some(bad) = check_file_name(&name) {
            diagnostics.push(bad);
            continue;
        }
        if files.iter().any(|file| file.name == name) {
            diagnostics.push(duplicate_entry(&name));
            continue;
        }
        match text(&name, found.bytes) {
            Ok(text) => files.push(SourceFile { name, text }),
            Err(bad) => diagnostics.push(bad),
        }
    }
    if files.len() > MAX_FILES {
        let message = format!(
            "found {} *.kat files, expected at most {MAX_FILES}",
            files.len()
        );
        diagnostics.push(refuse(Class::Oversize, message));
    }
    let carried = carried_of(&files, others, diagnostics);
    if let Err(found) = carried::add(&mut files, &carried) {
        diagnostics.extend(found);
    }
    files.sort_by(|left, right| left.name.cmp(&right.name));
    files
}

/// The other files that volumes mount. A volume without any file is reported later.
fn carried_of(
    files: &[SourceFile],
    others: Vec<CarriedFile>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Vec<CarriedFile> {
    let folders = carried::folders(files);
    let mut kept: Vec<CarriedFile> = Vec::new();
    for file in others {
        let mounted = folders
            .iter()
            .any(|folder| carried::is_in(&file.path, folder));
        if mounted && carried::is_litter(&file.path) || !mounted && is_ignored(&file.path) {
            continue;
        }
        if !mounted {
            diagnostics.push(carried::not_mounted(&file.path));
        } else if kept.iter().any(|other| other.path == file.path) {
            diagnostics.push(duplicate_entry(&file.path));
        } else {
            kept.push(file);
        }
    }
    kept
}

fn duplicate_entry(name: &str) -> Diagnostic {
    Diagnostic::of_file(Class::Duplicate, name, "is in the archive twice")
}

/// `folder/`, if every entry is in the same folder, which has its `*.kat` files at the top.
fn common_folder(entries: &[ArchiveFile]) -> Option<String> {
    let (folder, _) = entries.first()?.path.split_once('/')?;
    let prefix = format!("{folder}/");
    let all = entries.iter().all(|entry| entry.path.starts_with(&prefix));
    all.then_some(prefix)
}

/// The text of a file; the diagnostic has the position of the first byte that is not UTF-8.
pub(super) fn text(name: &str, bytes: Vec<u8>) -> Result<String, Diagnostic> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let bytes = error.as_bytes();
        let before = String::from_utf8_lossy(bytes.get(..valid).unwrap_or_default());
        let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let last = before.rsplit('\n').next().unwrap_or_default();
        let place = Position {
            line: number(before.matches('\n').count() + 1),
            column: number(last.chars().count() + 1),
        };
        let byte = bytes.get(valid).copied().unwrap_or_default();
        let message = format!("found the byte 0x{byte:02x}, expected UTF-8 text");
        let found = Diagnostic::at(Class::Encoding, name, Span::point(place), message);
        match bytes {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => found.hint("it is UTF-16: save it as UTF-8"),
            _ => found.hint("save it as UTF-8"),
        }
    })
}

/// Packs files reproducibly: the same files give the same bytes. Carried files have their paths in
/// the folder.
///
/// Errors: a name that tar can't hold, and carried files that can't be read.
pub fn pack(files: &[SourceFile]) -> io::Result<Vec<u8>> {
    let mut sorted: Vec<CarriedFile> = Vec::new();
    for file in files {
        if file.name == CARRIED {
            sorted.extend(carried::unpack_carried(&file.text).map_err(io::Error::other)?);
        } else {
            sorted.push(CarriedFile {
                path: file.name.clone(),
                executable: false,
                bytes: file.text.clone().into_bytes(),
            });
        }
    }
    sorted.sort_by(|left, right| left.path.cmp(&right.path));
    let gzip = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::default());
    let mut builder = Builder::new(gzip);
    for file in &sorted {
        carried::append(&mut builder, file)?;
    }
    builder.into_inner()?.finish()
}
