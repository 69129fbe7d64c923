//! The pages of the manual that describe files, fields and reasons.
//!
//! A [`ManualPage`] is built from the tables of the program, and rendered as a man page for the package and
//! as Markdown for `docs/reference`. A test compares `docs/reference` with the tables. The pages of
//! the commands are clap's (`commands/cluster/generate.rs`).

mod fields;
mod files;
mod reasons;

use std::{io, path::Path};

use roff::{Inline, Roff, bold, roman};

/// Section of file formats, man-pages(7).
const FORMATS: u8 = 5;
/// Section of overviews, man-pages(7).
const OVERVIEWS: u8 = 7;

/// A page of the manual.
pub(crate) struct ManualPage {
    /// Name without the section, such as `workload.kat`.
    name: &'static str,
    section: u8,
    /// What follows the name in the page's first section, in lower case without a full stop.
    about: &'static str,
    blocks: Vec<Block>,
}

/// A part of a page. In texts, words between backticks are literal.
enum Block {
    Heading(String),
    Paragraph(String),
    /// Literal lines.
    Example(String),
    /// A term and the paragraphs that describe it.
    Entry {
        term: String,
        paragraphs: Vec<String>,
    },
}

impl Block {
    fn heading(text: &str) -> Self {
        Self::Heading(text.to_owned())
    }

    fn paragraph(text: &str) -> Self {
        Self::Paragraph(text.to_owned())
    }
}

/// All pages, in the order of their names.
pub(crate) fn pages() -> Vec<ManualPage> {
    let mut pages = fields::pages();
    pages.push(files::page());
    pages.push(reasons::page());
    pages
}

/// Writes every page as a man page into an existing folder.
pub(crate) fn write_man_pages(folder: &Path) -> io::Result<()> {
    for page in pages() {
        std::fs::write(folder.join(page.file_name()), page.man_page())?;
    }
    Ok(())
}

impl ManualPage {
    /// The man page's file name, such as `workload.kat.5`.
    fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section)
    }

    /// The page in the language of man(7).
    fn man_page(&self) -> String {
        let mut page = Roff::new();
        let section = self.section.to_string();
        let version = format!("KAT {}", kat_types::VERSION);
        page.control("TH", [self.name, &section, "", &version, "KAT"]);
        page.control("SH", ["NAME"]);
        page.text([roman(format!("{} - {}", self.name, self.about))]);
        for block in &self.blocks {
            match block {
                Block::Heading(text) => {
                    page.control("SH", [text.to_uppercase().as_str()]);
                }
                Block::Paragraph(text) => {
                    page.control("PP", []);
                    page.text(inlines(text));
                }
                Block::Example(text) => {
                    page.control("PP", []);
                    page.control("RS", ["4"]);
                    page.control("nf", []);
                    for line in text.lines() {
                        page.text([roman(line)]);
                    }
                    page.control("fi", []);
                    page.control("RE", []);
                }
                Block::Entry { term, paragraphs } => {
                    page.control("TP", []);
                    page.text([bold(term.as_str())]);
                    for (number, text) in paragraphs.iter().enumerate() {
                        if number > 0 {
                            page.control("IP", []);
                        }
                        page.text(inlines(text));
                    }
                }
            }
        }
        page.to_roff()
    }

    /// The page as Markdown.
    #[cfg(test)]
    fn markdown(&self) -> String {
        let mut text = format!(
            "<!-- Generated from the tables of katcall: UPDATE_SCHEMA=1 cargo nextest run --package kat-cli manual -->\n\n# {}({}): {}\n",
            self.name, self.section, self.about
        );
        for block in &self.blocks {
            text.push('\n');
            text.push_str(&match block {
                Block::Heading(heading) => format!("## {heading}\n"),
                Block::Paragraph(paragraph) => format!("{}\n", wrapped(paragraph)),
                Block::Example(example) => format!("```\n{}\n```\n", example.trim_end()),
                Block::Entry { term, paragraphs } => {
                    let lines: Vec<String> = paragraphs.iter().map(|one| wrapped(one)).collect();
                    format!("**`{term}`**\\\n{}\n", lines.join("\\\n"))
                }
            });
        }
        text
    }
}

/// The text with one sentence on each line, and lines of at most 108 characters. No line begins with what Markdown
/// would take for a list or a heading.
#[cfg(test)]
fn wrapped(text: &str) -> String {
    const LONGEST: usize = 108;
    let mut lines = String::new();
    let mut length = 0;
    let mut ended = false;
    for word in text.split(' ') {
        let may_begin =
            word.starts_with(|first: char| first.is_alphabetic() || "`([/\"~".contains(first));
        let breaks = length > 0 && may_begin && (ended || length + 1 + word.len() > LONGEST);
        if breaks {
            lines.push('\n');
            length = 0;
        } else if length > 0 {
            lines.push(' ');
            length += 1;
        }
        lines.push_str(word);
        length += word.len();
        ended = word.ends_with('.');
    }
    lines
}

/// A text whose words between backticks are bold.
fn inlines(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    parts
        .filter(|(_, part)| !part.is_empty())
        .map(|(number, part)| match number % 2 {
            0 => roman(part),
            _ => bold(part),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, path::PathBuf};

    use super::*;
    use crate::commands::reading::explain;

    fn reference() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference")
    }

    #[test]
    fn the_reference_of_the_documentation_is_what_the_tables_say() {
        let folder = reference();
        let update = std::env::var_os("UPDATE_SCHEMA").is_some();
        let mut wanted = BTreeMap::new();
        for page in pages() {
            wanted.insert(format!("{}.md", page.file_name()), page.markdown());
        }
        if update {
            std::fs::create_dir_all(&folder).unwrap();
            for (name, text) in &wanted {
                std::fs::write(folder.join(name), text).unwrap();
            }
        }
        for (name, text) in &wanted {
            let found = std::fs::read_to_string(folder.join(name));
            assert!(
                found.as_ref().is_ok_and(|found| found == text),
                "docs/reference/{name} is outdated: UPDATE_SCHEMA=1 cargo nextest run --package kat-cli manual"
            );
        }
        for entry in std::fs::read_dir(&folder).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            assert!(
                wanted.contains_key(&name) || name == "README.md",
                "docs/reference/{name} is generated by nothing"
            );
        }
    }

    #[test]
    fn markdown_has_a_sentence_on_each_line_and_no_line_that_begins_a_list() {
        assert_eq!(wrapped("One. Two `a b`."), "One.\nTwo `a b`.");
        let long = format!("{} - 1. # end", "word ".repeat(22).trim_end());
        let lines = wrapped(&long);
        assert!(lines.contains('\n'), "{lines}");
        for line in lines.lines() {
            assert!(line.starts_with(char::is_alphabetic), "{line}");
        }
        assert_eq!(lines.replace('\n', " "), long);
    }

    #[test]
    fn a_man_page_begins_with_its_name_and_escapes_what_the_formatter_would_obey() {
        let page = ManualPage {
            name: "example.kat",
            section: FORMATS,
            about: "an example",
            blocks: vec![
                Block::paragraph(".hidden and `a\\b`"),
                Block::Example("'quoted\n.TH".to_owned()),
            ],
        };
        let text = page.man_page();
        assert!(
            text.contains("\n.SH NAME\nexample.kat \\- an example\n"),
            "{text}"
        );
        assert!(text.contains("\\fBa\\\\b\\fR"), "{text}");
        let obeyed = text.lines().filter(|line| line.starts_with(['.', '\'']));
        for line in obeyed {
            let name = line.get(1..3).unwrap();
            assert!(
                ["TH", "SH", "PP", "RS", "nf", "fi", "RE", "ie", "el", "ds"].contains(&name),
                "{text}"
            );
        }
        let titles = text.lines().filter(|line| line.starts_with(".TH"));
        assert_eq!(titles.count(), 1, "{text}");
    }

    #[test]
    fn every_field_and_every_reason_is_in_the_manual() {
        let all: String = pages().iter().map(ManualPage::man_page).collect();
        let escaped = |text: &str| text.replace('-', "\\-");
        for field in kat_bundle::fields::all() {
            assert!(all.contains(&escaped(field.path)), "{}", field.path);
        }
        for reason in kat_types::reason::Reason::ALL {
            let expected = explain::is_printed(*reason);
            assert_eq!(all.contains(reason.word()), expected, "{}", reason.word());
        }
        for reason in kat_types::reason::EventReason::ALL {
            assert!(all.contains(reason.word()), "{}", reason.word());
        }
    }
}
