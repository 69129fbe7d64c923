//! katcall(1), and a page for each of its commands, from the description of the command line.

use super::{Block, ManualPage, Section};
use crate::args;
use kat_manual::CommandLine;

/// Files that `katcall` reads, and what they are.
const FILES: [(&str, &str); 3] = [
    (
        "/etc/kat/admin.conf",
        "Connection file with administrators' rights, which `kat-agent init` writes.",
    ),
    (
        "/run/kat/api.sock",
        "Socket of the agent of this machine, for root and the group `kat`.",
    ),
    (
        "~/.config/kat/contexts.json",
        "The clusters of `katcall context`. If `XDG_CONFIG_HOME` is set, `kat/contexts.json` below it.",
    ),
];

/// What somebody wants, and the commands for it.
const EXAMPLES: [(&str, &str); 8] = [
    (
        "Create a workload from an image, reach its port 8080 as port 80, and keep its files:",
        "katcall run registry.example/web:1 -p 80:8080 --save web/ --wait",
    ),
    (
        "Show what changed files would change, and apply them:",
        "katcall plan web/\nkatcall apply web/ --wait",
    ),
    (
        "Find out why a workload does not run, and follow its log:",
        "katcall why web\nkatcall logs web --follow --since 10m",
    ),
    ("Open a shell in a container:", "katcall exec -it web -- sh"),
    (
        "Return to the last healthy generation:",
        "katcall rollback web --wait",
    ),
    (
        "Set a key of a secret from standard input:",
        "katcall secret set database --from-file password=-",
    ),
    (
        "Empty a machine before maintenance, and use it again afterwards:",
        "katcall drain n2\nkatcall uncordon n2",
    ),
    (
        "Create a connection file for a pipeline, which may deploy to one namespace:",
        "katcall token create --scope deploy:webshop -o connection > ci.conf",
    ),
];

fn command_line() -> CommandLine {
    CommandLine::new(args::command(), Section::UserCommands)
}

/// katcall(1), with every command and option.
pub(super) fn page() -> ManualPage {
    let mut further = vec![Block::heading("Files")];
    further.extend(FILES.map(|(path, about)| Block::Entry {
        term: path.to_owned(),
        paragraphs: vec![about.to_owned()],
    }));
    further.push(Block::heading("Examples"));
    for (purpose, commands) in EXAMPLES {
        further.push(Block::paragraph(purpose));
        further.push(Block::Example(commands.to_owned()));
    }
    further.push(Block::heading("See also"));
    further.push(Block::paragraph(
        "kat-agent(8), workload.kat(5), cluster.kat(5), kat-files(7), kat-reasons(7)",
    ));
    command_line().page(further)
}

/// A page for each command.
pub(super) fn command_pages() -> Vec<ManualPage> {
    command_line().command_pages()
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kat_manual::audit;

    use super::*;

    #[test]
    fn every_visible_command_and_option_is_in_the_page_of_katcall() {
        let text = page().man_page();
        let missing = audit::missing(&args::command(), &text);
        assert_eq!(missing, Vec::<String>::new());
        assert!(text.contains("\n.SS \"katcall ca rotate\"\n"));
        assert!(!text.contains("__complete"));
    }

    #[test]
    fn the_pages_of_katcall_fit_into_a_terminal() {
        for page in command_pages().into_iter().chain([page()]) {
            let wide = audit::wide_lines(&page.man_page());
            assert_eq!(wide, Vec::<String>::new(), "{}", page.file_name());
        }
    }

    #[test]
    fn exit_codes_and_variables_have_sections_of_their_own() {
        let text = page().man_page();
        assert!(
            text.contains("\n.SH \"EXIT STATUS\"\n.PP\n0 done, 1 "),
            "{text}"
        );
        assert!(
            text.contains("\n.SH ENVIRONMENT\n.PP\nKAT_SERVER is "),
            "{text}"
        );
    }

    #[test]
    fn katcall_accepts_the_examples_of_its_page() {
        for (_, commands) in EXAMPLES {
            for line in commands.lines() {
                let command = line.split(" > ").next().unwrap();
                let parsed = args::KatcallArgs::try_parse_from(command.split(' '));
                assert!(parsed.is_ok(), "{line}: {:?}", parsed.err());
            }
        }
    }
}
