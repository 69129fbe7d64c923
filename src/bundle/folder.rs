//! The `*.kat` files of a folder, as `katcall apply -f` reads them.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use super::{
    MAX_BUNDLE, MAX_FILE, MAX_FILES, SourceFile,
    archive::{is_ignored, text},
    carried,
    diagnostic::{Class, Diagnostic, quote},
    parse::{check_file_name, check_file_size},
};

/// Reads the `*.kat` files at the top of a folder, or the one given file.
///
/// Files that its volumes mount are one text in the result, [`super::CARRIED`]. Other files,
/// folders, hidden files and editors' backups are ignored. Errors: everything that is wrong with
/// the folder and its files; the texts are not parsed as YAML.
pub fn read_folder(path: &Path) -> Result<Vec<SourceFile>, Vec<Diagnostic>> {
    let shown = path.display().to_string();
    let refuse = |class, message: String| Diagnostic::of_file(class, &shown, message);
    let unreadable =
        |error: io::Error| vec![refuse(Class::Archive, format!("can't be read: {error}"))];
    let metadata = fs::metadata(path).map_err(unreadable)?;
    let mut names = Vec::new();
    let mut diagnostics = Vec::new();
    // The first file, by name, that may be meant as a `*.kat` file.
    let mut yaml: Option<String> = None;
    if metadata.is_dir() {
        for entry in fs::read_dir(path).map_err(unreadable)? {
            let name = entry.map_err(unreadable)?.file_name();
            let lossy = name.to_string_lossy();
            let is_yaml = lossy.ends_with(".yaml") || lossy.ends_with(".yml");
            if is_yaml && !is_ignored(&lossy) && yaml.as_deref().is_none_or(|one| &*lossy < one) {
                yaml = Some(lossy.to_string());
            }
            if !lossy.ends_with(".kat") || is_ignored(&lossy) {
                continue;
            }
            match name.to_str() {
                Some(name) => names.push((name.to_owned(), path.join(name))),
                None => diagnostics.push(Diagnostic::of_file(
                    Class::Encoding,
                    &lossy,
                    "the name is not UTF-8",
                )),
            }
        }
    } else {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        names.push((name.into_owned(), path.to_owned()));
    }
    names.sort();
    if names.is_empty() && diagnostics.is_empty() {
        diagnostics.push(
            refuse(Class::Missing, "no *.kat file is in this folder".to_owned()).hint(match yaml {
                Some(yaml) => format!(
                    "only files whose names end in .kat are read: rename {} if it is meant for KAT",
                    quote(&yaml)
                ),
                None => "a workload needs at least a workload.kat".to_owned(),
            }),
        );
    }
    if names.len() > MAX_FILES {
        let message = format!("found {} files, expected at most {MAX_FILES}", names.len());
        return Err(vec![refuse(Class::Oversize, message)]);
    }
    let mut files = Vec::new();
    let mut total = 0;
    for (name, path) in names {
        match read(&name, &path) {
            Ok(file) => {
                total += file.text.len();
                files.push(file);
            }
            Err(found) => diagnostics.push(found),
        }
        if total > MAX_BUNDLE {
            let message = format!("the files have more than {MAX_BUNDLE} bytes together");
            diagnostics.push(refuse(Class::Oversize, message));
            break;
        }
    }
    if metadata.is_dir() {
        let carried = carried::read_folders(path, &carried::folders(&files));
        let added = carried.and_then(|carried| carried::add(&mut files, &carried));
        diagnostics.extend(added.err().into_iter().flatten());
        files.sort_by(|left, right| left.name.cmp(&right.name));
    }
    match diagnostics.is_empty() {
        true => Ok(files),
        false => Err(diagnostics),
    }
}

fn read(name: &str, path: &Path) -> Result<SourceFile, Diagnostic> {
    if let Some(found) = check_file_name(name) {
        return Err(found);
    }
    let unreadable = |error: io::Error| {
        Diagnostic::of_file(Class::Archive, name, format!("can't be read: {error}"))
    };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    if !metadata.is_file() {
        // A pipe or device could block or never end.
        let message = "is not a plain file";
        return Err(Diagnostic::of_file(Class::Archive, name, message));
    }
    let size = usize::try_from(metadata.len()).unwrap_or(usize::MAX);
    if let Some(found) = check_file_size(name, size) {
        return Err(found);
    }
    let most = u64::try_from(MAX_FILE).unwrap_or(u64::MAX);
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
        .map_err(unreadable)?;
    if let Some(found) = check_file_size(name, bytes.len()) {
        return Err(found);
    }
    Ok(SourceFile {
        name: name.to_owned(),
        text: text(name, bytes)?,
    })
}
