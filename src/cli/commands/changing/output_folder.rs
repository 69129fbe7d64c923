//! Writes the files of a workload into a folder of the caller's.
//!
//! Their names may come from a cluster, and others may be able to write in the folder. So each part
//! of a path is opened below the part before it, no link is followed, and nothing is overwritten
//! unless that is asked for. Files may hold values of variables: only their owner can read them.

use std::{
    collections::BTreeSet,
    fs::{self, DirBuilder},
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::DirBuilderExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat},
    io::Errno,
};

use crate::{errors::CliError, output::plain};
use kat_bundle::{CARRIED, SourceFile, unpack_carried};

/// What happens to files that exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExistingFiles {
    /// An error with this hint.
    Refuse {
        hint: &'static str,
    },
    Replace,
}

/// One file to write.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OutputFile {
    /// Path below the folder.
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
    pub(super) executable: bool,
}

/// The files by their paths; those that volumes mount are unpacked.
pub(super) fn files_of(sources: &[SourceFile]) -> Result<Vec<OutputFile>, CliError> {
    let mut files = Vec::new();
    for source in sources {
        if source.name != CARRIED {
            files.push(OutputFile {
                path: source.name.clone(),
                bytes: source.text.clone().into_bytes(),
                executable: false,
            });
            continue;
        }
        let carried = unpack_carried(&source.text)
            .map_err(|error| CliError::failed(format!("files to mount: {}", plain(&error))))?;
        files.extend(carried.into_iter().map(|file| OutputFile {
            path: file.path,
            bytes: file.bytes,
            executable: file.executable,
        }));
    }
    files.sort();
    Ok(files)
}

/// Checks that none of the files exists; the error has this hint.
pub(super) fn check_free(
    folder: &Path,
    files: &[OutputFile],
    hint: &'static str,
) -> Result<(), CliError> {
    let folder = OutputFolder::at(folder);
    match folder.opened()? {
        Some(top) => folder.refuse_existing(&top, files, hint),
        None => Ok(()),
    }
}

/// Writes the files and returns their paths; the folder is made if it does not exist.
pub(super) fn write(
    folder: &Path,
    files: &[OutputFile],
    existing: ExistingFiles,
) -> Result<Vec<PathBuf>, CliError> {
    let folder = OutputFolder::at(folder);
    // All paths are checked before anything is written.
    for file in files {
        folder.parts(&file.path)?;
    }
    if folder.opened()?.is_none() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder.path)
            .map_err(|error| folder.failed("", &error))?;
    }
    let Some(top) = folder.opened()? else {
        return Err(CliError::failed(format!(
            "`{}` was removed meanwhile",
            plain(&folder.path.display().to_string())
        )));
    };
    if let ExistingFiles::Refuse { hint } = existing {
        folder.refuse_existing(&top, files, hint)?;
    }
    let write = |file: &OutputFile| {
        folder.write(&top, file, existing)?;
        Ok(folder.path.join(&file.path))
    };
    files.iter().map(write).collect()
}

/// The `*.kat` files at the top of the folder that are not among `files`: an apply of the folder
/// sends them too.
pub(super) fn other_kat_files(folder: &Path, files: &[OutputFile]) -> Vec<String> {
    let known: BTreeSet<&str> = files.iter().map(|file| file.path.as_str()).collect();
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_other = |name: &String| {
        name.ends_with(".kat") && !name.starts_with('.') && !known.contains(name.as_str())
    };
    let mut others: Vec<String> = names.filter(is_other).collect();
    others.sort();
    others
}

struct OutputFolder {
    /// Without `/` at its end, which would follow a link.
    path: PathBuf,
}

impl OutputFolder {
    fn at(folder: &Path) -> Self {
        let path: PathBuf = folder.components().collect();
        Self {
            path: match path.as_os_str().is_empty() {
                true => PathBuf::from("."),
                false => path,
            },
        }
    }

    fn failed(&self, file: &str, error: &io::Error) -> CliError {
        let path = self.path.join(file);
        let shown = plain(&path.display().to_string());
        let shown = shown.trim_end_matches('/');
        match Errno::from_io_error(error) {
            Some(Errno::LOOP) => {
                CliError::failed(format!("`{shown}` is a link, or lies behind one"))
            }
            Some(Errno::NOTDIR) => {
                CliError::failed(format!("`{shown}` is not a folder, or lies in none"))
            }
            Some(Errno::EXIST) => CliError::failed(format!("`{shown}` exists already")),
            _ => CliError::failed(format!("`{shown}` cannot be written: {error}")),
        }
    }

    /// The folder itself; `None` if it does not exist.
    fn opened(&self) -> Result<Option<OwnedFd>, CliError> {
        match openat(CWD, &self.path, FOLDER, Mode::empty()) {
            Ok(folder) => Ok(Some(folder)),
            Err(Errno::NOENT) => Ok(None),
            // With O_DIRECTORY a link is ENOTDIR.
            Err(error) => Err(self.failed("", &error.into())),
        }
    }

    /// The parts of a path, if all of them stay below the folder.
    fn parts<'path>(&self, path: &'path str) -> Result<Vec<&'path str>, CliError> {
        let parts: Vec<&str> = path.split('/').collect();
        let is_plain = |part: &&str| {
            !matches!(*part, "" | "." | "..") && !part.chars().any(|one| one.is_control())
        };
        if parts.iter().all(is_plain) {
            return Ok(parts);
        }
        Err(CliError::failed(format!(
            "the name `{}` is not that of a file below `{}`; nothing was written",
            plain(path),
            plain(&self.path.display().to_string())
        )))
    }

    /// The folder of a file, and the file's name in it. Missing folders are made, or `None` is
    /// returned.
    fn parent<'path>(
        &self,
        top: &OwnedFd,
        path: &'path str,
        make: bool,
    ) -> Result<Option<(OwnedFd, &'path str)>, CliError> {
        let failed = |error: io::Error| self.failed(path, &error);
        let mut parts = self.parts(path)?;
        let name = parts.pop().unwrap_or_default();
        let mut folder = top.try_clone().map_err(failed)?;
        for part in parts {
            if make {
                match mkdirat(&folder, part, Mode::RWXU) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(error) => return Err(failed(error.into())),
                }
            }
            folder = match openat(&folder, part, FOLDER, Mode::empty()) {
                Ok(inner) => inner,
                Err(Errno::NOENT) if !make => return Ok(None),
                Err(error) => return Err(failed(error.into())),
            };
        }
        Ok(Some((folder, name)))
    }

    fn refuse_existing(
        &self,
        top: &OwnedFd,
        files: &[OutputFile],
        hint: &'static str,
    ) -> Result<(), CliError> {
        let mut existing = Vec::new();
        for file in files {
            let Some((folder, name)) = self.parent(top, &file.path, false)? else {
                continue;
            };
            match statat(&folder, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(_) => existing.push(format!(
                    "`{}`",
                    plain(&self.path.join(&file.path).display().to_string())
                )),
                Err(Errno::NOENT) => {}
                Err(error) => return Err(self.failed(&file.path, &error.into())),
            }
        }
        let verb = match existing.len() {
            0 => return Ok(()),
            1 => "exists",
            _ => "exist",
        };
        let names = existing.join(", ");
        let message = format!("{names} {verb} already; nothing was written");
        Err(CliError::failed(message).hinted(hint))
    }

    fn write(
        &self,
        top: &OwnedFd,
        file: &OutputFile,
        existing: ExistingFiles,
    ) -> Result<(), CliError> {
        let failed = |error: io::Error| self.failed(&file.path, &error);
        let Some((folder, name)) = self.parent(top, &file.path, true)? else {
            return Err(failed(io::ErrorKind::NotFound.into()));
        };
        let mode = match file.executable {
            true => Mode::RWXU,
            false => Mode::RUSR | Mode::WUSR,
        };
        let create = |name: &str| -> io::Result<()> {
            let created = openat(&folder, name, NEW_FILE, mode)?;
            let mut created = fs::File::from(created);
            created.write_all(&file.bytes)
        };
        match existing {
            ExistingFiles::Refuse { .. } => create(name).map_err(failed),
            // The rename replaces a link itself, and never leaves half a file.
            ExistingFiles::Replace => {
                let new = format!(".katcall-{}", std::process::id());
                let _ = unlinkat(&folder, &new, AtFlags::empty());
                let written =
                    create(&new).and_then(|()| Ok(renameat(&folder, &new, &folder, name)?));
                written.map_err(|error| {
                    let _ = unlinkat(&folder, &new, AtFlags::empty());
                    failed(error)
                })
            }
        }
    }
}

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const NEW_FILE: OFlags = OFlags::WRONLY
    .union(OFlags::CREATE)
    .union(OFlags::EXCL)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    const REFUSE: ExistingFiles = ExistingFiles::Refuse { hint: "another" };

    fn file(path: &str, text: &str) -> OutputFile {
        OutputFile {
            path: path.to_owned(),
            bytes: text.into(),
            executable: path.ends_with(".sh"),
        }
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_written_for_their_owner_alone_and_never_over_others() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("web");
        let files = [file("conf/in/a", "one"), file("run.sh", "two")];
        let written = write(&folder, &files, REFUSE).unwrap();
        assert_eq!(written, [folder.join("conf/in/a"), folder.join("run.sh")]);
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&folder.join("conf")), 0o700);
        assert_eq!(mode(&written[0]), 0o600);
        assert_eq!(mode(&written[1]), 0o700);

        let more = [file("b", "new"), file("run.sh", "other")];
        let error = write(&folder, &more, REFUSE).unwrap_err();
        assert!(
            error.to_string().contains("run.sh` exists already"),
            "{error}"
        );
        assert!(!folder.join("b").exists(), "nothing is written by halves");
        assert!(check_free(&folder, &more, "").is_err());
        assert!(check_free(&folder, &[file("b/c", "")], "").is_ok());
        assert!(check_free(&home.path().join("none"), &more, "").is_ok());
        write(&folder, &more, ExistingFiles::Replace).unwrap();
        assert_eq!(fs::read_to_string(folder.join("run.sh")).unwrap(), "other");
        let names = fs::read_dir(&folder).unwrap();
        assert_eq!(names.count(), 3, "no temporary file is left");
    }

    #[test]
    fn no_link_is_followed_and_no_path_leaves_the_folder() {
        let home = tempfile::tempdir().unwrap();
        let victim = home.path().join("victim");
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("x"), "mine").unwrap();
        let folder = home.path().join("web");
        fs::create_dir(&folder).unwrap();
        symlink(&victim, folder.join("conf")).unwrap();
        symlink(victim.join("x"), folder.join("workload.kat")).unwrap();
        symlink(victim.join("new"), folder.join("dangling")).unwrap();
        symlink(&victim, home.path().join("link")).unwrap();
        let both = [REFUSE, ExistingFiles::Replace];
        for existing in both {
            for path in [
                "../x",
                "/x",
                "a/../../x",
                "conf/x",
                "conf/new",
                "",
                "a//b",
                "./x",
                "a/.",
                "..",
                "a\nb",
                "a\u{1b}[2J",
            ] {
                let error = write(&folder, &[file(path, "evil")], existing).unwrap_err();
                let shown = error.to_string();
                assert!(!shown.contains(char::is_control), "{shown:?}");
            }
            for folder in ["link", "link/", "link/.", "victim/x"] {
                let folder = home.path().join(folder);
                assert!(
                    write(&folder, &[file("y", "evil")], existing).is_err(),
                    "{folder:?}"
                );
            }
        }
        for path in ["workload.kat", "dangling"] {
            let files = [file(path, "new")];
            assert!(write(&folder, &files, REFUSE).is_err());
            // With the caller's word the link itself is replaced.
            write(&folder, &files, ExistingFiles::Replace).unwrap();
            assert_eq!(fs::read_to_string(folder.join(path)).unwrap(), "new");
        }
        assert_eq!(fs::read_to_string(victim.join("x")).unwrap(), "mine");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 3);
    }

    #[test]
    fn other_files_of_the_folder_are_named() {
        let home = tempfile::tempdir().unwrap();
        let files = [file("workload.kat", "")];
        write(home.path(), &files, REFUSE).unwrap();
        for name in ["job.kat", "notes.md", ".hidden.kat"] {
            fs::write(home.path().join(name), "").unwrap();
        }
        assert_eq!(other_kat_files(home.path(), &files), ["job.kat"]);
    }
}
