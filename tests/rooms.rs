//! The table of rooms in ARCHITECTURE.md against what the crates really depend on.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

type Rooms = BTreeMap<String, BTreeSet<String>>;

/// Rows `| `room` | what | `uses`, ... |` below the heading "The rooms".
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

/// The crates of the workspace in `[dependencies]`.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let Some((_, after)) = manifest.split_once("\n[dependencies]\n") else {
        return BTreeSet::new();
    };
    let section = after.split("\n[").next().unwrap();
    let crates = section.lines().filter_map(|line| line.strip_prefix("kat-"));
    let names = crates.map(|line| line.split(['.', ' ']).next().unwrap().to_owned());
    names.collect()
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

/// The table of `docs/internals/finding-things.md` is of today's files.
#[test]
fn each_file_that_a_stranger_was_asked_for_is_there() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = fs::read_to_string(top.join("docs/internals/finding-things.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.contains("`src/")).collect();
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
