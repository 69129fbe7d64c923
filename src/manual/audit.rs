//! What a man page lacks or has wrong. The tests of the programs use it; it knows clap's commands and the language of
//! man(7), and none of the code that writes pages.

use clap::{Arg, Command};

/// The macros and requests that a page may have.
const REQUESTS: [&str; 10] = ["TH", "SH", "SS", "PP", "TP", "IP", "RS", "RE", "nf", "fi"];
/// Escapes of man(7), with the text that they stand for. A backslash is the first, since it may be before another one.
const ESCAPES: [(&str, &str); 11] = [
    ("\\\\", "\u{1}"),
    ("\\(rs", "\u{1}"),
    ("\\-", "-"),
    ("\\(aq", "'"),
    ("\\(ga", "`"),
    ("\\(ha", "^"),
    ("\\(ti", "~"),
    ("\\(dq", "\""),
    ("\\&", ""),
    ("\\fB", ""),
    ("\\fR", ""),
];
/// Characters that roff obeys, or prints as other characters.
const NEVER_BARE: [char; 6] = ['\\', '-', '\'', '`', '^', '~'];
/// Columns of a terminal with 80 of them that an example has: its indentation takes 11, and the margin 2.
const WIDEST_EXAMPLE: usize = 67;
/// The same for a term, which is indented by 7.
const WIDEST_TERM: usize = 71;
/// The same for a word that describes a term, indented by 14.
const LONGEST_WORD: usize = 64;

/// The visible commands and options of a program that its page does not have exactly once, or without their help. An
/// option that every command has is expected once, in the page's section of global options.
pub fn missing(program: &Command, man_page: &str) -> Vec<String> {
    let mut program = program.clone();
    program.build();
    let mut missing = Vec::new();
    let globals = section(man_page, ".SH \"GLOBAL OPTIONS\"");
    let all = program.get_arguments();
    find_arguments(all, "the global options", globals, &mut missing);
    find_commands(&program, program.get_name(), man_page, &mut missing);
    missing
}

/// Lines of a man page that roff would not print as they are meant.
pub fn format_errors(man_page: &str) -> Vec<String> {
    let lines = man_page.lines();
    let errors = lines.filter_map(|line| Some(format!("{}: {line}", format_error(line)?)));
    errors.collect()
}

/// Lines of a man page that do not fit into 80 columns.
pub fn wide_lines(man_page: &str) -> Vec<String> {
    let mut wide = Vec::new();
    let mut previous = "";
    let mut is_literal = false;
    for line in man_page.lines() {
        match line {
            ".nf" => is_literal = true,
            ".fi" => is_literal = false,
            _ => {}
        }
        let text = unescaped(line);
        let widest = if is_literal {
            WIDEST_EXAMPLE
        } else if previous == ".TP" {
            WIDEST_TERM
        } else {
            usize::MAX
        };
        let has_long_word = text.split(' ').any(|word| width(word) > LONGEST_WORD);
        if width(&text) > widest || has_long_word {
            wide.push(text);
        }
        previous = line;
    }
    wide
}

fn width(text: &str) -> usize {
    text.chars().count()
}

fn find_commands(command: &Command, path: &str, page: &str, missing: &mut Vec<String>) {
    for below in command.get_subcommands().filter(|one| !one.is_hide_set()) {
        let path = format!("{path} {}", below.get_name());
        let heading = format!(".SS \"{}\"", path.replace('-', "\\-"));
        let text = section(page, &heading);
        let about = below.get_about().map(ToString::to_string);
        if !about.is_some_and(|about| has_text(text, &about)) {
            missing.push(format!("the description of {path}"));
        }
        let arguments = below.get_arguments();
        let own = arguments.filter(|one| !one.is_global_set() && one.get_id().as_str() != "help");
        find_arguments(own, &path, text, missing);
        find_commands(below, &path, page, missing);
    }
}

fn find_arguments<'args>(
    arguments: impl Iterator<Item = &'args Arg>,
    place: &str,
    text: &str,
    missing: &mut Vec<String>,
) {
    let terms: Vec<String> = text
        .split("\n.TP\n")
        .skip(1)
        .filter_map(|part| part.lines().next())
        .map(unescaped)
        .collect();
    let mut visible = 0;
    for argument in arguments.filter(|one| !one.is_hide_set()) {
        visible += 1;
        let found = terms.iter().filter(|term| is_term_of(term, argument));
        if found.count() != 1 {
            missing.push(format!("{argument} of {place}"));
        }
        let help = argument.get_long_help().or(argument.get_help());
        let help = help.map(ToString::to_string);
        let help = help.as_deref().and_then(|help| help.split("\n\n").next());
        // What brackets say may stand as a sentence.
        let help = help.and_then(|help| help.split(" [").next());
        if !help.is_some_and(|help| has_text(text, help)) {
            missing.push(format!("the help of {argument} of {place}"));
        }
    }
    if terms.len() != visible {
        missing.push(format!(
            "{place}: {} terms for {visible} arguments",
            terms.len()
        ));
    }
}

/// Whether a term such as `-o, --output <FORMAT>` or `<NAME>...` is the argument's.
fn is_term_of(term: &str, argument: &Arg) -> bool {
    let mut names = term
        .split(", ")
        .filter_map(|name| name.split([' ', '=', '[']).next());
    match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => names.any(|name| name.strip_prefix("--") == Some(long)),
        (None, Some(short)) => names.any(|name| name == format!("-{short}")),
        (None, None) => {
            let mut value_names = argument.get_value_names().into_iter().flatten();
            let is_option = term.starts_with('-');
            !is_option
                && value_names.all(|name| {
                    term.contains(&format!("<{name}>")) || term.contains(&format!("[{name}]"))
                })
        }
    }
}

/// Whether a part of a page has a text, whatever is bold in it.
fn has_text(part: &str, text: &str) -> bool {
    let words: Vec<&str> = text.split_whitespace().collect();
    unescaped(part).contains(&words.join(" ").replace('`', ""))
}

/// The part of a page between this heading and the next one, with the end of the line before it; empty if there is no
/// such heading.
fn section<'page>(page: &'page str, heading: &str) -> &'page str {
    let line = format!("\n{heading}\n");
    let Some((_, after)) = page.split_once(line.as_str()) else {
        return "";
    };
    // With the line break, so that the first line is like others.
    let start = page.len() - after.len() - 1;
    let part = page.get(start..).unwrap_or(after);
    let ends = ["\n.SH ", "\n.SS "].map(|next| part.find(next));
    match ends.into_iter().flatten().min() {
        Some(end) => part.get(..end).unwrap_or(part),
        None => part,
    }
}

/// What a reader sees of a line.
fn unescaped(line: &str) -> String {
    let mut text = line.to_owned();
    for (escape, meaning) in ESCAPES {
        text = text.replace(escape, meaning);
    }
    text.replace('\u{1}', "\\")
}

fn format_error(line: &str) -> Option<&'static str> {
    if line.starts_with('\'') {
        return Some("a request with an apostrophe");
    }
    if let Some(request) = line.strip_prefix('.') {
        let name = request.split(' ').next().unwrap_or(request);
        if !REQUESTS.contains(&name) {
            return Some("an unknown request");
        }
    }
    if !line.is_ascii() {
        return Some("characters beyond ASCII");
    }
    let mut bare = line.to_owned();
    for (escape, _) in ESCAPES {
        bare = bare.replace(escape, "");
    }
    if bare.contains(NEVER_BARE) {
        return Some("a character without an escape");
    }
    let last_font = line.rsplit_once("\\f").map(|(_, font)| font);
    if last_font.is_some_and(|font| !font.starts_with('R')) {
        return Some("a font that does not end");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
.TH prog 1
.SH \"GLOBAL OPTIONS\"
.TP
\\fB\\-h, \\-\\-help\\fR
Print help.
.SH COMMANDS
.SS \"prog set\\-key\"
.PP
Set \\fBthe\\fR key.
.TP
\\fB\\-f, \\-\\-from\\-file <PATH>\\fR
A file. Default: none.
.TP
\\fB[NAME]...\\fR
Names.
.SH EXAMPLES
.RS 4
.nf
prog set\\-key
.fi
.RE
";

    fn program() -> Command {
        let from_file = Arg::new("from_file")
            .short('f')
            .long("from-file")
            .value_name("PATH");
        let names = Arg::new("names")
            .value_name("NAME")
            .num_args(1..)
            .help("Names");
        let set = Command::new("set-key")
            .about("Set `the` key")
            .arg(names)
            .arg(from_file.help("A file [default: none]"));
        Command::new("prog")
            .disable_help_subcommand(true)
            .subcommand(set)
    }

    #[test]
    fn a_whole_page_lacks_nothing() {
        assert_eq!(missing(&program(), PAGE), Vec::<String>::new());
        assert_eq!(format_errors(PAGE), Vec::<String>::new());
        assert_eq!(wide_lines(PAGE), Vec::<String>::new());
    }

    #[test]
    fn a_missing_command_option_help_or_argument_is_found() {
        for (part, expected) in [
            ("prog set\\-key\"", "the description of prog set-key"),
            ("\\-\\-from\\-file", "--from-file <PATH> of prog set-key"),
            ("A file", "the help of --from-file <PATH> of prog set-key"),
            ("NAME", "[NAME]... of prog set-key"),
            ("\\-\\-help", "--help of the global options"),
            ("Print help", "the help of --help of the global options"),
        ] {
            let page = PAGE.replacen(part, "x", 1);
            let found = missing(&program(), &page);
            assert!(found.contains(&expected.to_owned()), "{part}: {found:?}");
        }
        let twice = PAGE.replace(
            ".SH EXAMPLES",
            ".TP\n\\fB\\-\\-from\\-file <PATH>\\fR\nA file.\n.SH EXAMPLES",
        );
        assert!(
            missing(&program(), &twice).contains(&"--from-file <PATH> of prog set-key".to_owned())
        );
    }

    #[test]
    fn what_roff_would_obey_or_replace_is_found() {
        for line in [
            "'x", ".x", "a-b", "it's", "~/x", "a`b", "\\x", "a\\\\-b", "\\fBbold", "\u{e9}",
        ] {
            assert_eq!(format_errors(line).len(), 1, "{line}");
        }
        for line in [".PP", "a\\-b", "\\fBa\\fR", "\\&.x", "\\\\\\-", "it\\(aqs"] {
            assert_eq!(format_errors(line), Vec::<String>::new(), "{line}");
        }
    }

    #[test]
    fn what_is_wider_than_a_terminal_is_found() {
        let long = "x ".repeat(36);
        let word = "x".repeat(65);
        assert_eq!(wide_lines(&format!(".nf\n{long}\n.fi")).len(), 1);
        assert_eq!(wide_lines(&format!(".TP\n{long}\ntext")).len(), 1);
        assert_eq!(wide_lines(&format!(".PP\n{long}")).len(), 0);
        assert_eq!(wide_lines(&format!(".PP\n{word}")).len(), 1);
    }
}
