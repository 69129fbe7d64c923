//! kat-files(7), from the table in `docs/internals/files-on-a-machine.md`.

use super::{Block, ManualPage, Section};

/// The page with the table, which a reader of the sources finds where the other mechanisms are described.
const TABLE: &str = include_str!("../../../docs/internals/files-on-a-machine.md");

pub(super) fn page() -> ManualPage {
    let mut blocks = vec![
        Block::heading("Description"),
        Block::paragraph(
            "Files that KAT creates outside `/usr`. Configuration is in `/etc/kat`, state and keys are in \
             `/var/lib/kat`, and `/run/kat` is empty after a boot. An upgrade and a removal of the package keep all \
             of them. `kat-agent reset` takes a machine out of its cluster.",
        ),
        Block::paragraph(
            "Words in capitals stand for names and numbers: `UID` for the user of a workload, `NAMESPACE` or `NS` \
             for a namespace, `W` for a workload.",
        ),
        Block::heading("Files"),
    ];
    blocks.extend(rows(TABLE).map(|row| entry(&row)));
    blocks.push(Block::heading("See also"));
    blocks.push(Block::paragraph("kat-agent(8), agent.yaml(5), hier(7)"));
    ManualPage {
        name: "kat-files".to_owned(),
        section: Section::Overviews,
        about: "files of KAT on a machine".to_owned(),
        blocks,
    }
}

/// A row of the table.
struct FileRow<'a> {
    path: &'a str,
    mode: &'a str,
    writer: &'a str,
    after_reset: &'a str,
    after_purge: &'a str,
}

/// The rows of the table, without its two head rows.
fn rows(page: &str) -> impl Iterator<Item = FileRow<'_>> {
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line
            .strip_prefix('|')?
            .strip_suffix('|')?
            .split('|')
            .collect();
        let cells: [&str; 5] = cells.try_into().ok()?;
        let [path, mode, writer, after_reset, after_purge] = cells.map(str::trim);
        Some(FileRow {
            path,
            mode,
            writer,
            after_reset,
            after_purge,
        })
    });
    rows.skip(2)
}

fn entry(row: &FileRow<'_>) -> Block {
    let row_path = without_links(row.path);
    // What is described follows the paths.
    let (paths, about) = row_path.split_once(": ").unwrap_or((&row_path, ""));
    let mut paragraphs = Vec::new();
    if !about.is_empty() {
        paragraphs.push(format!("{about}."));
    }
    if !row.mode.is_empty() {
        paragraphs.push(format!("Mode and owner: {}.", without_links(row.mode)));
    }
    paragraphs.push(format!("Written by: {}.", row.writer));
    paragraphs.push(format!(
        "After kat-agent reset: {}. After a purge of the package without reset: {}.",
        row.after_reset, row.after_purge
    ));
    Block::Entry {
        term: paths.replace('`', ""),
        paragraphs,
    }
}

/// The text with the words of its links alone, since a man page has none: `(words (page.md#part))`
/// is left out, and `words (page.md)` keeps its words.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((words, after)) = link.split_once("](") else {
            break;
        };
        let Some((_, after)) = after.split_once(')') else {
            break;
        };
        // A reference in parentheses that is nothing but a link.
        match (before.strip_suffix(" ("), after.strip_prefix(')')) {
            (Some(before), Some(after)) => {
                plain.push_str(before);
                rest = after;
            }
            _ => {
                plain.push_str(before);
                plain.push_str(words);
                rest = after;
            }
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_an_entry() {
        let lines = TABLE.lines().filter(|line| line.starts_with('|'));
        assert_eq!(rows(TABLE).count(), lines.count() - 2);
        let paths: Vec<&str> = rows(TABLE).map(|row| row.path).collect();
        assert!(paths.len() > 40, "{}", paths.len());
        for path in paths {
            assert!(path.contains('`'), "{path}");
        }
    }

    #[test]
    fn links_leave_their_words() {
        assert_eq!(
            without_links("`/a`: room ([disk.md](disk.md#room)), and [more](b.md)"),
            "`/a`: room, and more"
        );
        assert_eq!(without_links("`user@[UID]` stays"), "`user@[UID]` stays");
    }
}
