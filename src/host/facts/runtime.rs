//! The container runtime that Podman uses for workloads' users.

use std::path::{Path, PathBuf};

use crate::files;

/// Largest configuration file that is read, in bytes.
const LIMIT: u64 = 1 << 20;
/// Podman takes the first of these that is installed, where no file names one.
const KNOWN: [&str; 2] = ["crun", "runc"];
/// Folders of programs, where Podman looks for a runtime.
const FOLDERS: [&str; 6] = [
    "usr/bin",
    "usr/sbin",
    "usr/local/bin",
    "usr/local/sbin",
    "sbin",
    "bin",
];

/// The runtime of the machine whose files are below `root`: the one that containers.conf(5) names,
/// else the first that is installed. `None` if there is none.
pub fn container_runtime(root: &Path) -> Option<String> {
    let named = configuration_files(root).into_iter().rev();
    let named = named
        .filter_map(|path| files::read_text(&path, LIMIT).ok())
        .find_map(|text| named_runtime(&text));
    named.or_else(|| {
        let found = KNOWN.into_iter().find(|name| is_installed(root, name));
        found.map(str::to_owned)
    })
}

/// The files of all users, in the order in which later ones take precedence.
fn configuration_files(root: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for main in [
        "usr/share/containers/containers.conf",
        "etc/containers/containers.conf",
    ] {
        files.push(root.join(main));
        let folder = std::fs::read_dir(root.join(format!("{main}.d")));
        let entries = folder.into_iter().flatten().flatten();
        let mut parts: Vec<PathBuf> = entries
            .map(|entry| entry.path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "conf")
            })
            .collect();
        parts.sort();
        files.extend(parts);
    }
    files
}

/// `runtime` of the table `[engine]`, without the folder of a path.
fn named_runtime(text: &str) -> Option<String> {
    let mut table = "";
    let mut found = None;
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[') {
            table = name.split(']').next().unwrap_or_default().trim();
        } else if let Some((key, value)) = line.split_once('=')
            && (table, key.trim()) == ("engine", "runtime")
        {
            let value = value.trim();
            let quote = value
                .chars()
                .next()
                .filter(|first| matches!(first, '"' | '\''));
            let quoted = quote.and_then(|quote| value.get(1..)?.split(quote).next());
            let program = quoted.and_then(|path| path.rsplit('/').next());
            found = program.filter(|name| !name.is_empty()).map(str::to_owned);
        }
    }
    found
}

fn is_installed(root: &Path, program: &str) -> bool {
    let mut folders = FOLDERS.iter();
    folders.any(|folder| root.join(folder).join(program).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine with these files.
    fn runtime(files: &[(&str, &str)]) -> Option<String> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        container_runtime(root.path())
    }

    #[test]
    fn a_machine_without_settings_uses_crun_before_runc() {
        assert_eq!(runtime(&[]), None);
        let (crun, runc) = (("usr/bin/crun", ""), ("usr/sbin/runc", ""));
        assert_eq!(runtime(&[crun, runc]).unwrap(), "crun");
        assert_eq!(runtime(&[runc]).unwrap(), "runc");
    }

    #[test]
    fn the_last_file_that_names_a_runtime_decides() {
        let crun = ("usr/bin/crun", "");
        let commented = "[engine]\n#runtime = \"runc\"\n[engine.runtimes]\nruntime = [\"x\"]\n";
        let file = "etc/containers/containers.conf";
        assert_eq!(runtime(&[crun, (file, commented)]).unwrap(), "crun");
        let main = (
            file,
            "[containers]\nruntime = \"x\"\n[engine]\nruntime = \"runc\" # ours\n",
        );
        assert_eq!(runtime(&[crun, main]).unwrap(), "runc");
        let part = "[ engine ]\n  runtime='/opt/bin/crun'\n";
        let part = ("etc/containers/containers.conf.d/10-runtime.conf", part);
        assert_eq!(runtime(&[crun, main, part]).unwrap(), "crun");
        let vendor = "[engine]\nruntime = \"kata\"\n";
        let vendor = ("usr/share/containers/containers.conf", vendor);
        assert_eq!(runtime(&[crun, vendor]).unwrap(), "kata");
        assert_eq!(runtime(&[crun, vendor, main]).unwrap(), "runc");
    }
}
