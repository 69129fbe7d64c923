//! A page of the manual and its Markdown.

use std::{io, path::Path};

use crate::man_format::ManText;

/// A section of the manual, man-pages(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    UserCommands = 1,
    FileFormats = 5,
    Overviews = 7,
    SystemAdministration = 8,
}

impl Section {
    pub(crate) fn number(self) -> u8 {
        self as u8
    }
}

/// A page of the manual.
#[derive(Debug)]
pub struct ManualPage {
    /// Name without the section, such as `workload.kat`.
    pub name: String,
    pub section: Section,
    /// What follows the name in the page's first section, in lower case without a full stop.
    pub about: String,
    pub blocks: Vec<Block>,
}

/// A part of a page. In texts, words between backticks are literal.
#[derive(Debug)]
pub enum Block {
    Heading(String),
    /// A heading below a [`Block::Heading`].
    Subheading(String),
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
    pub fn heading(text: &str) -> Self {
        Self::Heading(text.to_owned())
    }

    pub fn paragraph(text: &str) -> Self {
        Self::Paragraph(text.to_owned())
    }
}

impl ManualPage {
    /// The man page's file name, such as `workload.kat.5`.
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.name, self.section.number())
    }

    /// Writes the man page into an existing folder.
    pub fn write_into(&self, folder: &Path) -> io::Result<()> {
        std::fs::write(folder.join(self.file_name()), self.man_page())
    }

    /// The page in the language of man(7).
    pub fn man_page(&self) -> String {
        let mut page = ManText::default();
        let section = self.section.number().to_string();
        let version = format!("KAT {}", kat_types::VERSION);
        let title = [
            self.name.as_str(),
            section.as_str(),
            "",
            version.as_str(),
            "KAT",
        ];
        page.request("TH", &title);
        page.request("SH", &["NAME"]);
        page.text(&format!("{} - {}", self.name, self.about));
        for block in &self.blocks {
            match block {
                Block::Heading(text) => page.request("SH", &[text.to_uppercase().as_str()]),
                Block::Subheading(text) => page.request("SS", &[text.as_str()]),
                Block::Paragraph(text) => {
                    page.request("PP", &[]);
                    page.text(text);
                }
                Block::Example(text) => {
                    page.request("PP", &[]);
                    page.request("RS", &["4"]);
                    page.request("nf", &[]);
                    for line in text.lines() {
                        page.literal(line);
                    }
                    page.request("fi", &[]);
                    page.request("RE", &[]);
                }
                Block::Entry { term, paragraphs } => {
                    page.request("TP", &[]);
                    page.bold(term);
                    for (number, text) in paragraphs.iter().enumerate() {
                        if number > 0 {
                            page.request("IP", &[]);
                        }
                        page.text(text);
                    }
                }
            }
        }
        page.finish()
    }

    /// The page as Markdown. `origin` says what the page is generated from, and how.
    pub fn markdown(&self, origin: &str) -> String {
        let mut text = format!(
            "<!-- Generated from {origin} -->\n\n# {}({}): {}\n",
            self.name,
            self.section.number(),
            self.about
        );
        for block in &self.blocks {
            text.push('\n');
            text.push_str(&match block {
                Block::Heading(heading) => format!("## {heading}\n"),
                Block::Subheading(heading) => format!("### {heading}\n"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit;

    fn page(blocks: Vec<Block>) -> ManualPage {
        ManualPage {
            name: "example.kat".to_owned(),
            section: Section::FileFormats,
            about: "an example".to_owned(),
            blocks,
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
    fn markdown_names_the_origin_and_has_the_headings_of_both_levels() {
        let blocks = vec![
            Block::heading("Commands"),
            Block::Subheading("katcall get".to_owned()),
        ];
        let text = page(blocks).markdown("a table");
        let expected = "<!-- Generated from a table -->\n\n# example.kat(5): an example\n\n## Commands\n\n### katcall get\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_man_page_begins_with_its_name_and_escapes_what_the_formatter_would_obey() {
        let page = page(vec![
            Block::paragraph(".hidden and `a\\b`"),
            Block::Example("'quoted\n.TH".to_owned()),
        ]);
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
        assert_eq!(audit::format_errors(&text), Vec::<String>::new());
    }

    #[test]
    fn the_title_of_a_man_page_has_an_empty_date() {
        let text = page(Vec::new()).man_page();
        let title = format!(
            ".TH example.kat 5 \"\" \"KAT {}\" KAT\n",
            kat_types::VERSION
        );
        assert!(text.starts_with(&title), "{text}");
    }
}
