//! Carried files: files of the workload's folder that its containers mount, `volumes[].files` (not
//! in RFC001-KAT 3.2; for example a config file beside `workload.kat`).
//!
//! Except in the user's folder and archive they are one text, [`CARRIED`]: a tar.gz in base64. So
//! they are stored, archived and rolled back together with the `*.kat` files.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

use super::{
    SourceFile,
    archive::{ArchiveFile, ArchiveLimits, entries_of},
    diagnostic::{Class, Diagnostic, quote},
    kind::DocumentKind,
    yaml::{self, YamlValue, item_path, locate},
};
use crate::cross_file_rules::ParsedDocument;
use kat_types::{
    encoding::digest::sha256_hex,
    resource::{WorkloadSpec, normal},
};

/// Name of the text; no `*.kat` file has it.
pub const CARRIED: &str = "files.pack";
/// Maximum bytes of all carried files of a workload.
pub const MAX_CARRIED: usize = 512 * 1024;
/// Maximum number of carried files of a workload.
pub const MAX_CARRIED_FILES: usize = 256;
/// Maximum bytes of a path, as in an archive.
const MAX_PATH: usize = 255;
/// Maximum depth of folders.
const MAX_DEPTH: usize = 16;

/// A carried file.
#[derive(Clone, PartialEq, Eq)]
pub struct CarriedFile {
    /// Path within the workload's folder, such as `conf/nginx.conf`.
    pub path: String,
    /// Whether it is executable.
    pub executable: bool,
    pub bytes: Vec<u8>,
}

/// Does not show the content, which may be confidential.
impl std::fmt::Debug for CarriedFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("CarriedFile")
            .field("path", &self.path)
            .field("executable", &self.executable)
            .field("bytes", &self.bytes.len())
            .finish()
    }
}

impl CarriedFile {
    /// Identifies its content: SHA-256, hexadecimal, and a mark for an executable file.
    pub(super) fn mark(&self) -> String {
        let mut text = sha256_hex(&self.bytes);
        text.push_str(if self.executable { "+x" } else { "" });
        text
    }
}

/// Packs carried files into one text.
///
/// # Errors
/// A path that tar can't hold.
pub fn pack_carried(files: &[CarriedFile]) -> io::Result<String> {
    let mut sorted: Vec<&CarriedFile> = files.iter().collect();
    sorted.sort_by(|left, right| left.path.cmp(&right.path));
    let gzip = GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), Compression::default());
    let mut builder = Builder::new(gzip);
    for file in sorted {
        append(&mut builder, file)?;
    }
    Ok(STANDARD.encode(builder.into_inner()?.finish()?))
}

/// Adds a file to an archive.
pub(super) fn append<W: io::Write>(builder: &mut Builder<W>, file: &CarriedFile) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(if file.executable { 0o755 } else { 0o644 });
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(u64::try_from(file.bytes.len()).map_err(io::Error::other)?);
    builder.append_data(&mut header, &file.path, file.bytes.as_slice())
}

/// Unpacks the files of such a text, in the order of their paths.
///
/// # Errors
/// A message if the text is damaged, or has more than is allowed.
pub fn unpack_carried(text: &str) -> Result<Vec<CarriedFile>, String> {
    let archive = STANDARD
        .decode(text)
        .map_err(|error| format!("the carried files are not base64: {error}"))?;
    let limits = ArchiveLimits {
        compressed: 2 * MAX_CARRIED,
        expanded: 4 * MAX_CARRIED,
        entries: MAX_CARRIED_FILES,
        path: MAX_PATH,
    };
    let (found, wrong) = entries_of(&archive, &limits);
    if let Some(wrong) = wrong.into_iter().next() {
        return Err(format!("the carried files: {}", wrong.message));
    }
    let files: Vec<_> = found.into_iter().map(CarriedFile::from).collect();
    let total: usize = files.iter().map(|file| file.bytes.len()).sum();
    let paths: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    // A file with the path of another one's folder.
    let clash = |path: &&str| {
        let mut above = path
            .match_indices('/')
            .filter_map(|(place, _)| path.get(..place));
        above.any(|folder| paths.contains(folder))
    };
    if total > MAX_CARRIED || paths.len() < files.len() || paths.iter().any(clash) {
        return Err("the carried files are too many bytes, or two have one path".to_owned());
    }
    Ok(files)
}

impl From<ArchiveFile> for CarriedFile {
    fn from(found: ArchiveFile) -> Self {
        Self {
            path: found.path,
            executable: found.executable,
            bytes: found.bytes,
        }
    }
}

/// Adds carried files, as one text, to the `*.kat` files.
pub(super) fn add(
    files: &mut Vec<SourceFile>,
    carried: &[CarriedFile],
) -> Result<(), Vec<Diagnostic>> {
    if carried.is_empty() {
        return Ok(());
    }
    let too_many = |message: String| {
        vec![
            Diagnostic::of_file(Class::Oversize, "", message)
                .hint("what is larger belongs into the image, or into a volume"),
        ]
    };
    if carried.len() > MAX_CARRIED_FILES {
        return Err(too_many(format!(
            "{} files are to be mounted from the folder, expected at most {MAX_CARRIED_FILES}",
            carried.len()
        )));
    }
    let total: usize = carried.iter().map(|file| file.bytes.len()).sum();
    if total > MAX_CARRIED {
        return Err(too_many(format!(
            "the files that are to be mounted from the folder have {total} bytes together, expected at most {MAX_CARRIED}"
        )));
    }
    let text = pack_carried(carried).map_err(|error| {
        let message = format!("can't be packed: {error}");
        vec![Diagnostic::of_file(Class::Archive, CARRIED, message)]
    })?;
    files.push(SourceFile {
        name: CARRIED.to_owned(),
        text,
    });
    Ok(())
}

/// The folders that the texts name in `volumes[].files`, read leniently: mistakes are reported
/// later.
pub(super) fn folders(files: &[SourceFile]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.name.ends_with(".kat")) {
        for root in yaml::read(&file.name, &file.text, &mut Vec::new()).roots {
            let kind = locate(&root, "kind").map(|(node, _)| &node.value);
            let is_workload = matches!(kind, Some(YamlValue::Scalar { text, .. }) if DocumentKind::from_word(text) == Some(DocumentKind::Workload));
            let volumes = locate(&root, "spec.volumes").map(|(node, _)| &node.value);
            let Some(YamlValue::Sequence(volumes)) = volumes.filter(|_| is_workload) else {
                continue;
            };
            for index in 0..volumes.len() {
                let path = format!("{}.files", item_path("spec.volumes", index));
                if let Some((node, _)) = locate(&root, &path)
                    && let YamlValue::Scalar { text, .. } = &node.value
                    && let Some(folder) = normal(text)
                {
                    found.push(folder);
                }
            }
        }
    }
    found
}

/// Whether the path is in the folder.
pub(super) fn is_in(path: &str, folder: &str) -> bool {
    path.strip_prefix(folder)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Whether the file belongs to an editor or to version control. Other hidden files are carried:
/// programs read `.htaccess`.
pub(super) fn is_litter(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let ends = [".bak", ".orig", ".rej", ".swp", ".swo", ".tmp", "~"];
    let of_others = [".git", ".hg", ".svn", ".DS_Store"];
    let kept = |part: &str| of_others.contains(&part) || part.starts_with(".#");
    path.split('/').any(kept)
        || ends.iter().any(|end| name.ends_with(end))
        || (name.starts_with('#') && name.ends_with('#'))
}

/// Reads the carried files of a user's folder.
pub(super) fn read_folders(
    top: &Path,
    folders: &[String],
) -> Result<Vec<CarriedFile>, Vec<Diagnostic>> {
    let mut reader = PackReader {
        top,
        left: MAX_CARRIED,
        files: Vec::new(),
        diagnostics: Vec::new(),
    };
    let mut folders: Vec<&String> = folders.iter().collect();
    folders.sort();
    folders.dedup();
    let outer = |folder: &&String| !folders.iter().any(|other| is_in(folder, other));
    for folder in folders.iter().copied().filter(outer) {
        reader.folder(folder, 0);
    }
    match reader.diagnostics.is_empty() {
        true => Ok(reader.files),
        false => Err(reader.diagnostics),
    }
}

struct PackReader<'a> {
    top: &'a Path,
    left: usize,
    files: Vec<CarriedFile>,
    diagnostics: Vec<Diagnostic>,
}

impl PackReader<'_> {
    fn refuse(&mut self, class: Class, path: &str, message: &str) {
        let found = Diagnostic::of_file(class, path, message);
        self.diagnostics.push(found);
    }

    /// The first part of the path that is a link, which is refused: it could lead to files that
    /// must not be sent.
    fn link_on_the_way(&self, folder: &str) -> Option<String> {
        let parts = Path::new(folder)
            .ancestors()
            .filter(|part| *part != Path::new(""));
        let is_link = |part: &&Path| {
            fs::symlink_metadata(self.top.join(part)).is_ok_and(|found| found.is_symlink())
        };
        let mut links = parts.filter(is_link);
        links.next().map(|link| link.display().to_string())
    }

    /// Reads a folder. A missing folder is reported where the volume is checked, which knows the
    /// line.
    fn folder(&mut self, folder: &str, depth: usize) {
        let path = self.top.join(folder);
        if let Some(link) = self.link_on_the_way(folder) {
            return self.refuse(Class::Archive, &link, "is a link, expected a plain folder");
        }
        let entries = match fs::symlink_metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Ok(metadata) if !metadata.is_dir() => {
                return self.refuse(Class::Archive, folder, "is not a folder, expected one");
            }
            _ => fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>),
        };
        let mut names = match entries {
            Ok(entries) => entries,
            Err(error) => {
                let message = format!("can't be read: {error}");
                return self.refuse(Class::Archive, folder, &message);
            }
        };
        names.sort_by_key(fs::DirEntry::file_name);
        for entry in names {
            let name = entry.file_name();
            let inner = format!("{folder}/{}", name.to_string_lossy());
            if is_litter(&inner) {
                continue;
            }
            let clean = |name: &str| !name.contains('\\') && !name.chars().any(char::is_control);
            if !name.to_str().is_some_and(clean) || inner.len() > MAX_PATH {
                let message =
                    "the name is not UTF-8, has a backslash or control character, or is too long";
                self.refuse(Class::Encoding, &inner, message);
                continue;
            }
            match entry.file_type() {
                Ok(kind) if kind.is_dir() && depth >= MAX_DEPTH => {
                    self.refuse(Class::Oversize, &inner, "lies too deep");
                }
                Ok(kind) if kind.is_dir() => self.folder(&inner, depth + 1),
                Ok(kind) if kind.is_file() => self.file(inner, &entry.path()),
                _ => self.refuse(
                    Class::Archive,
                    &inner,
                    "is a link or a special file, expected a plain file",
                ),
            }
            if !self.diagnostics.is_empty() && self.left == 0 {
                return;
            }
        }
    }

    fn file(&mut self, name: String, path: &Path) {
        let most = u64::try_from(self.left)
            .unwrap_or(u64::MAX)
            .saturating_add(1);
        let mut bytes = Vec::new();
        let read = File::open(path).and_then(|file| {
            let executable = file.metadata()?.permissions().mode() & 0o100 != 0;
            file.take(most).read_to_end(&mut bytes)?;
            Ok(executable)
        });
        match read {
            Err(error) => self.refuse(Class::Archive, &name, &format!("can't be read: {error}")),
            Ok(_) if bytes.len() > self.left || self.files.len() >= MAX_CARRIED_FILES => {
                self.left = 0;
                let message = format!(
                    "with it there are more than {MAX_CARRIED_FILES} files or {MAX_CARRIED} bytes to be mounted from the folder"
                );
                self.refuse(Class::Oversize, &name, &message);
            }
            Ok(executable) => {
                self.left -= bytes.len();
                self.files.push(CarriedFile {
                    path: name,
                    executable,
                    bytes,
                });
            }
        }
    }
}

/// Checks volumes against the carried files.
pub(super) fn check(
    document: &ParsedDocument<'_>,
    spec: &WorkloadSpec,
    carried: &[CarriedFile],
    found: &mut Vec<Diagnostic>,
) {
    let mut known = Vec::new();
    for (index, volume) in spec.volumes.iter().enumerate() {
        let Some(written) = &volume.files else {
            continue;
        };
        let at = |message: String| {
            let path = format!("{}.files", item_path("spec.volumes", index));
            document.at_value(Class::CrossFile, &path, message)
        };
        let Some(folder) = volume.carried_folder() else {
            let message = format!(
                "found `{}`, expected a folder within the workload's own",
                quote(written)
            );
            found.push(at(message).hint("such as `files: conf/`"));
            continue;
        };
        if !carried.iter().any(|file| is_in(&file.path, &folder)) {
            let message = format!(
                "no file lies in `{}/` of the workload's folder",
                quote(&folder)
            );
            found.push(
                at(message).hint("put the files beside workload.kat, in a folder of this name"),
            );
        }
        let mounts = spec.containers().flat_map(|(path, container)| {
            let mounts = container.volume_mounts.iter().enumerate();
            mounts.map(move |(place, mount)| {
                (item_path(&format!("{path}.volumeMounts"), place), mount)
            })
        });
        for (place, mount) in mounts {
            let Some(inner) = mount
                .sub_path
                .as_deref()
                .filter(|_| mount.name == volume.name)
            else {
                continue;
            };
            let whole = normal(&format!("{folder}/{inner}")).unwrap_or_default();
            let there = |file: &CarriedFile| file.path == whole || is_in(&file.path, &whole);
            if !carried.iter().any(there) {
                let path = format!("{place}.subPath");
                let message = format!("`{}` is not in the workload's folder", quote(&whole));
                found.push(document.at_value(Class::CrossFile, &path, message));
            }
        }
        known.push(folder);
    }
    for file in carried {
        if !known.iter().any(|folder| is_in(&file.path, folder)) {
            found.push(not_mounted(&file.path));
        }
    }
}

/// The diagnostic of a file that no volume mounts.
pub(super) fn not_mounted(path: &str) -> Diagnostic {
    let message = match path.ends_with(".kat") {
        true => "lies in a folder, expected *.kat files at the top",
        false => "no volume mounts it",
    };
    let hint = "leave it out, or name its folder in `files:` of a volume";
    Diagnostic::of_file(Class::Archive, path, message).hint(hint)
}
