//! Expands a folder of folders, each with one workload.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The folders that a path stands for, by name: the path itself, or those of its folders that
/// contain `*.kat` files, if it has no `workload.kat` of its own. A `namespace.kat` beside them
/// comes first.
///
/// A path that can't be read stands for itself; the error is reported when it is read.
pub(crate) fn folders(path: &Path) -> Vec<PathBuf> {
    let itself = || vec![path.to_owned()];
    if !path.is_dir() || path.join("workload.kat").exists() {
        return itself();
    }
    let Ok(mut below) = folders_with_files(path) else {
        return itself();
    };
    if below.is_empty() {
        return itself();
    }
    below.sort();
    if has_files(path) {
        below.insert(0, path.to_owned());
    }
    below
}

fn folders_with_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let hidden = entry.file_name().to_string_lossy().starts_with('.');
        let path = entry.path();
        if !hidden && path.is_dir() && has_files(&path) {
            folders.push(path);
        }
    }
    Ok(folders)
}

/// Whether the folder has `*.kat` files.
fn has_files(path: &Path) -> bool {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| {
        let name = name.to_string_lossy();
        name.ends_with(".kat") && !name.starts_with('.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[&str]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let shown = |path: PathBuf| {
            let below = path.strip_prefix(root.path()).unwrap();
            below.display().to_string()
        };
        folders(root.path()).into_iter().map(shown).collect()
    }

    #[test]
    fn a_folder_stands_for_itself_or_for_those_in_it() {
        assert_eq!(found(&["workload.kat", "old/workload.kat"]), [""]);
        assert_eq!(
            found(&[
                "web/workload.kat",
                "db/workload.kat",
                "docs/x.md",
                ".git/x.kat"
            ]),
            ["db", "web"]
        );
        assert_eq!(
            found(&["namespace.kat", "web/workload.kat"]),
            ["", "web"],
            "the namespace comes first"
        );
        assert_eq!(found(&["x.md"]), [""]);
        let missing = Path::new("/nowhere/at/all");
        assert_eq!(folders(missing), [missing]);
    }
}
