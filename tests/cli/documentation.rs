//! README and the guide: their example files are read as `apply` reads them, and their lines of
//! katcall have commands and options that exist.

use std::{collections::BTreeMap, path::PathBuf};

use clap::error::ErrorKind;
use kat_bundle::{DecodeMode, SourceFile};

fn page(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// README and each page of the guide, with its text.
fn pages() -> Vec<(String, String)> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/guide/{name}"))
        .collect();
    names.sort();
    names.insert(0, "README.md".to_owned());
    names
        .into_iter()
        .map(|name| (name.clone(), page(&name)))
        .collect()
}

/// The lines of code blocks, without their indentation.
fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.strip_prefix("    "))
}

/// The files that lines such as `cat >web/workload.kat <<'END'` write, by their paths.
fn written_files(text: &str) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut lines = code(text);
    while let Some(line) = lines.next() {
        let Some(place) = line
            .strip_prefix("cat >")
            .and_then(|rest| rest.strip_suffix(" <<'END'"))
        else {
            continue;
        };
        let body = lines.by_ref().take_while(|line| *line != "END");
        let body: Vec<&str> = body.collect();
        files.insert(place.to_owned(), body.join("\n") + "\n");
    }
    files
}

/// The words of a command of katcall in a line of a shell: up to a comment, a redirection or another
/// command.
fn katcall_words(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start();
    let line = line.strip_prefix("sudo ").unwrap_or(line);
    if !line.starts_with("katcall ") {
        return None;
    }
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    for one in line.chars() {
        match (quote, one) {
            (Some(open), _) if open == one => quote = None,
            (None, '\'' | '"') => {
                quote = Some(one);
                word.get_or_insert_default();
            }
            (None, '|' | '>' | '<' | ';' | '&') => break,
            (None, '#') if word.is_none() => break,
            (None, ' ') => words.extend(word.take()),
            (_, other) => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Some(words)
}

/// What katcall would say of a command line; `None` if it takes it.
fn mistake(words: &[String]) -> Option<clap::Error> {
    kat_cli::command().try_get_matches_from(words).err()
}

#[test]
fn the_files_that_the_readme_writes_are_read_and_need_nothing_that_is_missing() {
    let files = written_files(&page("README.md"));
    assert!(files.contains_key("web/workload.kat"), "{files:?}");
    let mut folders: BTreeMap<String, Vec<SourceFile>> = BTreeMap::new();
    for (path, text) in files {
        let (folder, name) = path.rsplit_once('/').unwrap();
        let name = name.to_owned();
        let files = folders.entry(folder.to_owned()).or_default();
        files.push(SourceFile { name, text });
    }
    for (folder, files) in folders {
        let bundle = kat_bundle::parse(&files, DecodeMode::Strict)
            .unwrap_or_else(|found| panic!("{folder}: {found:?}"));
        let refused = kat_bundle::not_yet(&bundle);
        assert!(refused.is_empty(), "{folder}: {refused:?}");
    }
}

#[test]
fn the_readme_applies_the_folder_that_it_writes() {
    let text = page("README.md");
    let applied: Vec<Vec<String>> = code(&text)
        .filter_map(katcall_words)
        .filter(|words| words.get(1).is_some_and(|word| word == "apply"))
        .collect();
    assert!(!applied.is_empty());
    let files = written_files(&text);
    for words in applied {
        let folder = words.iter().find(|word| word.ends_with('/')).unwrap();
        assert!(
            files.keys().any(|path| path.starts_with(folder)),
            "{words:?}"
        );
    }
}

#[test]
fn every_line_of_katcall_in_a_block_of_code_is_a_whole_command() {
    let mut count = 0;
    for (name, text) in pages() {
        for line in code(&text) {
            let Some(words) = katcall_words(line) else {
                continue;
            };
            count += 1;
            if let Some(error) = mistake(&words) {
                let is_help = matches!(
                    error.kind(),
                    ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
                );
                assert!(is_help, "{name}: {line}\n{error}");
            }
        }
    }
    assert!(count > 20, "{count}");
}

/// A sentence may leave out arguments, and name values in capitals.
#[test]
fn every_command_of_katcall_in_a_sentence_exists_with_its_options() {
    let mut count = 0;
    for (name, text) in pages() {
        let sentences = text.lines().filter(|line| !line.starts_with("    "));
        for span in sentences.flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let Some(words) = katcall_words(span) else {
                continue;
            };
            count += 1;
            let Some(error) = mistake(&words) else {
                continue;
            };
            let is_left_out = matches!(
                error.kind(),
                ErrorKind::MissingRequiredArgument
                    | ErrorKind::MissingSubcommand
                    | ErrorKind::DisplayHelp
                    | ErrorKind::DisplayVersion
                    | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
            );
            let has_placeholder = matches!(
                error.kind(),
                ErrorKind::ValueValidation | ErrorKind::InvalidValue
            ) && (words.iter().any(|word| is_placeholder(word))
                || words.last().is_some_and(|word| word.starts_with('-')));
            assert!(
                is_left_out || has_placeholder,
                "{name}: `{span}`: {:?}\n{error}",
                error.kind()
            );
        }
    }
    assert!(count > 60, "{count}");
}

/// Such as `NAME` or `--to=NODE`.
fn is_placeholder(word: &str) -> bool {
    let value = word.rsplit(['=', '/', ':']).next().unwrap_or(word);
    value.chars().any(|one| one.is_ascii_uppercase())
        && value.chars().all(|one| !one.is_ascii_lowercase())
}
