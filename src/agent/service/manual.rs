//! kat-agent(8), and a page for each of its commands, from the description of the command line.

use std::{io, path::Path};

use clap::CommandFactory;
use kat_manual::{Block, CommandLine, ManualPage, Section};

use super::program::AgentArgs;

/// What somebody wants, and the commands for it.
const EXAMPLES: [(&str, &str); 5] = [
    (
        "Check a machine, and make it the first of a new cluster:",
        "kat-agent check\nkat-agent init",
    ),
    (
        "Add this machine to a cluster, with a token of `katcall token create --join`:",
        "kat-agent join --leader-api 192.0.2.11:9115 --token-file token",
    ),
    (
        "Back the cluster up to another disk, and restore it on a bare machine:",
        "kat-agent backup /mnt/usb/\nkat-agent restore /mnt/usb/kat-home-20261122T034507Z.backup",
    ),
    (
        "Print the key that opens the backups:",
        "kat-agent recovery-key",
    ),
    ("Take this machine out of its cluster:", "kat-agent reset"),
];

fn command_line() -> CommandLine {
    CommandLine::new(AgentArgs::command(), Section::SystemAdministration)
}

/// kat-agent(8), with every command and option.
fn page() -> ManualPage {
    let mut further = vec![
        Block::heading("Files"),
        Block::Entry {
            term: "/etc/kat/agent.yaml".to_owned(),
            paragraphs: vec!["Settings of this machine: agent.yaml(5).".to_owned()],
        },
        Block::paragraph("kat-files(7) lists all files."),
        Block::heading("Examples"),
    ];
    for (purpose, commands) in EXAMPLES {
        further.push(Block::paragraph(purpose));
        further.push(Block::Example(commands.to_owned()));
    }
    further.push(Block::heading("See also"));
    further.push(Block::paragraph(
        "katcall(1), agent.yaml(5), cluster.kat(5), kat-files(7), kat-reasons(7)",
    ));
    command_line().page(further)
}

/// Writes every page as a man page into a folder.
pub(super) fn write_man_pages(folder: &Path) -> io::Result<()> {
    std::fs::create_dir_all(folder)?;
    page().write_into(folder)?;
    for page in command_line().command_pages() {
        page.write_into(folder)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kat_manual::audit;

    use super::*;

    #[test]
    fn every_visible_command_and_option_is_in_the_page_of_kat_agent() {
        let text = page().man_page();
        let missing = audit::missing(&AgentArgs::command(), &text);
        assert_eq!(missing, Vec::<String>::new());
        assert!(text.contains("\n.SS \"kat\\-agent recovery\\-key\"\n"));
        assert!(!text.contains("work\\-on\\-disk"));
        assert!(
            text.contains("\n.SH \"EXIT STATUS\"\n.PP\n0 done, 1 "),
            "{text}"
        );
    }

    #[test]
    fn a_formatter_prints_every_page_of_kat_agent_as_it_is_meant() {
        for page in command_line().command_pages().into_iter().chain([page()]) {
            let text = page.man_page();
            let errors = [audit::format_errors(&text), audit::wide_lines(&text)].concat();
            assert_eq!(errors, Vec::<String>::new(), "{}", page.file_name());
        }
    }

    #[test]
    fn kat_agent_accepts_the_examples_of_its_page() {
        for (_, commands) in EXAMPLES {
            for line in commands.lines() {
                let parsed = AgentArgs::try_parse_from(line.split(' '));
                assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
            }
        }
    }

    #[test]
    fn the_pages_of_kat_agent_are_written_under_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let pages = folder.path().join("pages");
        write_man_pages(&pages).unwrap();
        for name in [
            "kat-agent.8",
            "kat-agent-init.8",
            "kat-agent-recovery-key.8",
        ] {
            let text = std::fs::read_to_string(pages.join(name)).unwrap();
            assert!(text.starts_with(".TH kat\\-agent"), "{text}");
        }
        assert!(!pages.join("kat-agent-hook.8").exists());
    }

    #[test]
    fn the_reference_of_the_documentation_is_what_kat_agent_says() {
        let update = "UPDATE_SCHEMA=1 cargo nextest run --package kat-agent manual";
        let page = page();
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../docs/reference")
            .join(format!("{}.md", page.file_name()));
        let text = page.markdown(&format!("the command line of kat-agent: {update}"));
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path);
        assert!(
            found.is_ok_and(|found| found == text),
            "{} is outdated: {update}",
            path.display()
        );
    }
}
