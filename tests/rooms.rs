//! Compares the table of rooms in ARCHITECTURE.md with the dependencies of the crates, and checks
//! that each file is compiled, and with which settings, and that each file that ARCHITECTURE.md and
//! docs/internals name exists.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

type Rooms = BTreeMap<String, BTreeSet<String>>;

/// Reads the rows `| `room` | what | `uses`, ... |` below the heading "The rooms".
fn table(text: &str) -> Rooms {
    let (_, after) = text.split_once("\n## The rooms\n").unwrap();
    let chapter = after.split("\n## ").next().unwrap();
    let rows = chapter.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.trim_matches('|').split('|').collect();
        let [room, _, uses] = cells.as_slice() else {
            panic!("a row without three cells: {row}");
        };
        let named = |cell: &str| -> BTreeSet<String> {
            let names = cell.split('`').skip(1).step_by(2);
            names.map(str::to_owned).collect()
        };
        let rooms = named(room);
        (rooms.first().unwrap().clone(), named(uses))
    })
    .collect()
}

/// The workspace's crates that a manifest depends on, except for its tests. No crate of the
/// workspace reads TOML, so this reads lines: `kat-x.workspace = true`, `kat-x = { ... }`,
/// `other = { package = "kat-x" }`, `[dependencies.kat-x]` and the same below `[target.*]`.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let room = |text: &str| {
        let name = text.strip_prefix("kat-")?;
        name.split(['.', '=', ',', '}', '#'])
            .next()
            .map(str::to_owned)
    };
    let lists = |table: &str| {
        let name = table.rsplit('.').next();
        matches!(name, Some("dependencies" | "build-dependencies"))
    };
    let mut found = BTreeSet::new();
    let mut inside = false;
    for line in manifest.lines() {
        let line = line.replace(['"', '\'', ' ', '\t'], "");
        if let Some(header) = line.strip_prefix('[') {
            let header = header.split(']').next().unwrap();
            let (table, key) = header.rsplit_once('.').unwrap_or(("", header));
            found.extend(room(key).filter(|_| lists(table)));
            inside = lists(header) || lists(table);
        } else if inside {
            let package = line.split_once("package=").map(|(_, package)| package);
            found.extend(room(&line).into_iter().chain(package.and_then(room)));
        }
    }
    found
}

fn manifests(sources: &Path) -> Rooms {
    let folders = fs::read_dir(sources).unwrap().map(|entry| entry.unwrap());
    let folders = folders.filter(|entry| entry.file_type().unwrap().is_dir());
    folders
        .map(|entry| {
            let manifest = fs::read_to_string(entry.path().join("Cargo.toml")).unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, dependencies(&manifest))
        })
        .collect()
}

#[test]
fn each_room_uses_the_rooms_that_architecture_says_and_no_others() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let said = table(&fs::read_to_string(top.join("ARCHITECTURE.md")).unwrap());
    let is = manifests(&top.join("src"));
    assert!(is.len() > 10, "found {} rooms", is.len());
    assert_eq!(said, is);
}

/// The files in the table of `docs/internals/finding-things.md` exist.
#[test]
fn each_file_that_a_stranger_was_asked_for_is_there() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(top.join("docs/internals/finding-things.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let rows: Vec<&str> = rows.filter(|line| line.contains("`src/")).collect();
    assert_eq!(rows.len(), 20);
    for row in rows {
        let path = row
            .split('`')
            .find(|part| part.starts_with("src/"))
            .unwrap();
        assert!(top.join(path).is_file(), "{path} is not there");
    }
}

#[test]
fn a_dependency_that_the_table_lacks_is_found() {
    let said = table(
        "\n## The rooms\n| room | what | uses |\n|---|---|---|\n| `plan` | x | `types` |\n## Next",
    );
    let with = "[package]\n\n[dependencies]\nkat-store.workspace = true\nkat-types.workspace = true\nserde.workspace = true\n\n[lints]\n";
    assert_eq!(dependencies(with).len(), 2);
    assert_ne!(said.get("plan"), Some(&dependencies(with)));
    let without = with.replace("kat-store.workspace = true\n", "");
    assert_eq!(said.get("plan"), Some(&dependencies(&without)));
}

#[test]
fn a_dependency_is_found_in_each_form() {
    let manifest = "\
[package]
name = \"kat-own\"

[dependencies]
kat-a.workspace = true
kat-b = { path = \"../b\" }
kat-c={workspace=true}
\"kat-d\" = \"1\" # not kat-x
renamed = { package = \"kat-e\", path = \"../e\" }
# kat-x.workspace = true
serde = { workspace = true, features = [\"rc\"] }

[dependencies.kat-f]
workspace = true

[dependencies.other]
package = \"kat-g\"

[target.'cfg(unix)'.dependencies]
kat-h.workspace = true

[build-dependencies]
kat-i.workspace = true

[dev-dependencies]
kat-x.workspace = true

[dev-dependencies.kat-y]
workspace = true

[features]
kat-z = []
";
    let found: String = dependencies(manifest).into_iter().collect();
    assert_eq!(found, "abcdefghi");
}

/// All Rust files below a folder.
fn rust_files(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = entry.path();
        if entry.file_type().unwrap().is_dir() {
            if entry.file_name() != "target" {
                rust_files(&path, found);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.insert(path.canonicalize().unwrap());
        }
    }
}

/// The names of Rust files in a text, such as `tests/rooms.rs` or `rooms.rs`.
fn named_files(text: &str) -> BTreeSet<&str> {
    let is_of_path = |letter: char| letter.is_alphanumeric() || "_-./".contains(letter);
    let words = text.split(|letter: char| !is_of_path(letter));
    let words = words.map(|word| word.trim_end_matches('.'));
    words
        .filter(|word| word.ends_with(".rs") && *word != ".rs")
        .collect()
}

/// What is wrong with the names of Rust files in a document. A path from the top of the tree or
/// from `src` names that file; any other name must be the end of exactly one path.
fn wrong_names(document: &str, text: &str, files: &BTreeSet<String>) -> Vec<String> {
    let mut wrong = Vec::new();
    for name in named_files(text) {
        if files.contains(name) || files.contains(&format!("src/{name}")) {
            continue;
        }
        let end = format!("/{name}");
        let paths = files.iter().map(String::as_str);
        let found: Vec<&str> = paths.filter(|path| path.ends_with(&end)).collect();
        match found.as_slice() {
            [_] => {}
            [] => wrong.push(format!("{document} names `{name}`, which does not exist")),
            several => wrong.push(format!(
                "{document} names `{name}`, which may be any of {}",
                several.join(", ")
            )),
        }
    }
    wrong
}

#[test]
fn each_file_that_architecture_and_the_internals_name_exists() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let top = top.canonicalize().unwrap();
    let mut found = BTreeSet::new();
    for folder in ["src", "tests", "contrib"] {
        rust_files(&top.join(folder), &mut found);
    }
    let paths = found.iter().filter_map(|path| path.strip_prefix(&top).ok());
    let files: BTreeSet<String> = paths
        .map(|path| path.to_str().unwrap().to_owned())
        .collect();

    let mut documents = vec![top.join("ARCHITECTURE.md")];
    let internals = fs::read_dir(top.join("docs/internals")).unwrap();
    let internals = internals.map(|entry| entry.unwrap().path());
    documents.extend(internals.filter(|path| path.extension().is_some_and(|end| end == "md")));
    let (mut names, mut wrong) = (0, Vec::new());
    for path in documents {
        let text = fs::read_to_string(&path).unwrap();
        let document = path.strip_prefix(&top).unwrap().to_str().unwrap();
        names += named_files(&text).len();
        wrong.extend(wrong_names(document, &text, &files));
    }
    assert!(names > 100, "found {names} names of files");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_name_of_a_missing_file_and_a_name_of_two_files_are_found() {
    let files = [
        "src/api/apply.rs",
        "tests/api/apply.rs",
        "src/plan/draft.rs",
    ];
    let files: BTreeSet<String> = files.map(str::to_owned).into();
    let wrong = |text: &str| wrong_names("MAP.md", text, &files);
    let right = "`src/plan/draft.rs`, `plan/draft.rs`, draft.rs. See (`api/apply.rs`, *.rs).";
    assert_eq!(named_files(right).len(), 4);
    assert_eq!(wrong(right), Vec::<String>::new());
    assert_eq!(
        wrong("In `plan/drafts.rs`."),
        ["MAP.md names `plan/drafts.rs`, which does not exist"]
    );
    assert_eq!(
        wrong("In aft.rs."),
        ["MAP.md names `aft.rs`, which does not exist"]
    );
    assert_eq!(
        wrong("Also `apply.rs`."),
        ["MAP.md names `apply.rs`, which may be any of src/api/apply.rs, tests/api/apply.rs"]
    );
}

/// Adds a file and the files of its `mod name;` lines. `home` is the folder of its modules.
fn follow(file: &Path, home: &Path, seen: &mut BTreeSet<PathBuf>) {
    let Ok(file) = file.canonicalize() else {
        return;
    };
    let text = fs::read_to_string(&file).unwrap();
    if !seen.insert(file.clone()) {
        return;
    }
    let beside = file.parent().unwrap();
    let mut written: Option<&str> = None;
    for line in text.lines().map(str::trim) {
        let path = line.strip_prefix("#[path = \"");
        if let Some(path) = path.and_then(|path| path.strip_suffix("\"]")) {
            written = Some(path);
        } else if let Some(name) = line.strip_suffix(';') {
            let name = name.rsplit_once("mod ").map(|(_, name)| name);
            let is_name = |name: &&str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
            let Some(name) = name.filter(is_name) else {
                continue;
            };
            match written.take() {
                Some(path) => {
                    let path = beside.join(path);
                    follow(&path, path.parent().unwrap(), seen);
                }
                None => {
                    let own = home.join(name);
                    follow(&own.with_extension("rs"), &own, seen);
                    follow(&own.join("mod.rs"), &own, seen);
                }
            }
        }
    }
}

/// Files that are part of no target of a crate, so that nothing compiles them.
fn unreached(crates: &[PathBuf]) -> Vec<PathBuf> {
    let (mut all, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for folder in crates {
        rust_files(folder, &mut all);
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let paths = manifest
            .lines()
            .filter_map(|line| line.strip_prefix("path = \""));
        // The last two are Cargo's defaults.
        let paths = paths.filter_map(|path| path.strip_suffix('"'));
        for path in paths.chain(["src/lib.rs", "src/main.rs"]) {
            let root = folder.join(path);
            follow(&root, root.parent().unwrap(), &mut seen);
        }
    }
    all.difference(&seen).cloned().collect()
}

#[test]
fn each_file_is_compiled_by_some_target() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let rooms = fs::read_dir(top.join("src")).unwrap();
    let mut crates: Vec<PathBuf> = rooms.map(|entry| entry.unwrap().path()).collect();
    crates.extend(["tests", "contrib/bench", "contrib/fuzz"].map(|name| top.join(name)));
    assert_eq!(unreached(&crates), Vec::<PathBuf>::new());
}

#[test]
fn a_file_without_a_mod_line_is_found() {
    let room = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = room.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("Cargo.toml", "[lib]\npath = \"lib.rs\"\n");
    write("lib.rs", "mod one;\n#[cfg(test)]\npub(crate) mod tests;\n");
    write(
        "one.rs",
        "mod inner;\n#[path = \"../far.rs\"]\nmod other;\n",
    );
    write("one/inner.rs", "");
    write("tests/mod.rs", "");
    write("tests/lost.rs", "");
    let found = unreached(&[room.path().to_owned()]);
    let lost = room.path().join("tests/lost.rs").canonicalize().unwrap();
    assert_eq!(found, [lost]);
}

/// The programs read no jitter of the processor when they start, in packages as in tests.
#[test]
fn every_build_turns_the_jitter_entropy_of_aws_lc_off() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let config = fs::read_to_string(top.join(".cargo/config.toml")).unwrap();
    let (_, after) = config.split_once("\n[env]\n").unwrap();
    let mut settings = after.split("\n[").next().unwrap().lines();
    let setting = "AWS_LC_SYS_NO_JITTER_ENTROPY = { value = \"1\", force = true }";
    assert!(settings.any(|line| line == setting), "{config}");

    // Cargo reads that file where it is called from, which for packages is the top of the tree.
    let script = fs::read_to_string(top.join("contrib/package")).unwrap();
    let into_the_tree = "cd \"$(dirname \"$(readlink -f \"${BASH_SOURCE[0]}\")\")/..\"";
    let mut folders = script.lines().filter(|line| line.starts_with("cd "));
    assert_eq!(folders.next(), Some(into_the_tree));
    let (before, _) = script.split_once("cargo build ").unwrap();
    assert!(before.contains(&format!("\n{into_the_tree}\n")));
    for other in ["AWS_LC_SYS", "--config", "--manifest-path", "pushd "] {
        assert!(!script.contains(other), "contrib/package has `{other}`");
    }
}
