//! The pages of a program and of its commands, from clap's description of the command line.

use clap::{Arg, Command, builder::StyledStr};

use crate::page::{Block, ManualPage, Section};

/// Paragraphs of a program's help that are sections of their own in its page: how they begin, and the section's heading.
const OWN_SECTIONS: [(&str, &str); 2] = [
    ("Exit codes: ", "Exit status"),
    ("Environment variables: ", "Environment"),
];

/// The command line of a program.
#[derive(Debug)]
pub struct CommandLine {
    program: Command,
    section: Section,
}

impl CommandLine {
    /// The pages of `program` will be in this section of the manual.
    pub fn new(mut program: Command, section: Section) -> Self {
        program.build();
        Self { program, section }
    }

    /// The page of the program, with all options of all commands. `further` follows what clap knows: files, examples,
    /// and other pages.
    pub fn page(&self, further: Vec<Block>) -> ManualPage {
        let program = &self.program;
        let name = program.get_name();
        let mut blocks = vec![Block::heading("Synopsis")];
        blocks.extend(synopsis(program));
        let description = description(program);
        let is_own = |text: &str| {
            OWN_SECTIONS
                .iter()
                .any(|(start, _)| text.starts_with(*start))
        };
        blocks.push(Block::heading("Description"));
        blocks.extend(
            description
                .iter()
                .filter(|text| !is_own(text))
                .map(|text| Block::paragraph(text)),
        );
        blocks.push(Block::heading("Global options"));
        blocks.extend(visible_arguments(program).into_iter().map(entry));
        blocks.push(Block::heading("Commands"));
        blocks.push(Block::paragraph(
            "Each command also takes the options above, except for `--version`.",
        ));
        add_commands(name, program, &mut blocks);
        for (start, heading) in OWN_SECTIONS {
            let texts = description.iter();
            let mut texts = texts
                .filter_map(|text| text.strip_prefix(start))
                .map(Block::paragraph)
                .peekable();
            if texts.peek().is_some() {
                blocks.push(Block::heading(heading));
                blocks.extend(texts);
            }
        }
        blocks.extend(further);
        ManualPage {
            name: name.to_owned(),
            section: self.section,
            about: about(program),
            blocks,
        }
    }

    /// A page for each command, such as `katcall-ca-rotate`.
    pub fn command_pages(&self) -> Vec<ManualPage> {
        let mut pages = Vec::new();
        self.add_pages(self.program.get_name(), &self.program, &mut pages);
        pages
    }

    fn add_pages(&self, path: &str, command: &Command, pages: &mut Vec<ManualPage>) {
        for below in visible_commands(command) {
            let name = format!("{path}-{}", below.get_name());
            pages.push(self.command_page(&name, below));
            self.add_pages(&name, below, pages);
        }
    }

    fn command_page(&self, name: &str, command: &Command) -> ManualPage {
        let mut blocks = vec![Block::heading("Synopsis")];
        blocks.extend(synopsis(command));
        blocks.push(Block::heading("Description"));
        blocks.extend(
            description(command)
                .iter()
                .map(|text| Block::paragraph(text)),
        );
        let arguments = own_arguments(command);
        if !arguments.is_empty() {
            blocks.push(Block::heading("Options"));
            blocks.extend(arguments.into_iter().map(entry));
        }
        let mut below = visible_commands(command).peekable();
        if below.peek().is_some() {
            blocks.push(Block::heading("Commands"));
            blocks.extend(below.map(|one| {
                Block::Entry {
                    term: one.get_name().to_owned(),
                    paragraphs: texts(one.get_about())
                        .iter()
                        .map(|text| sentence(text))
                        .collect(),
                }
            }));
        }
        blocks.push(Block::heading("See also"));
        blocks.push(Block::paragraph(&format!(
            "{}({}), which also describes the options that every command takes",
            self.program.get_name(),
            self.section.number()
        )));
        ManualPage {
            name: name.to_owned(),
            section: self.section,
            about: about(command),
            blocks,
        }
    }
}

/// Adds the commands below a command, each followed by those below it.
fn add_commands(path: &str, command: &Command, blocks: &mut Vec<Block>) {
    for below in visible_commands(command) {
        let path = format!("{path} {}", below.get_name());
        blocks.push(Block::Subheading(path.clone()));
        blocks.extend(synopsis(below));
        blocks.extend(description(below).iter().map(|text| Block::paragraph(text)));
        blocks.extend(own_arguments(below).into_iter().map(entry));
        add_commands(&path, below, blocks);
    }
}

fn visible_commands(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|one| !one.is_hide_set())
}

/// The arguments in the order of `--help`: first those that are known by their position.
fn visible_arguments(command: &Command) -> Vec<&Arg> {
    let visible = command.get_arguments().filter(|one| !one.is_hide_set());
    let (mut arguments, options): (Vec<&Arg>, Vec<&Arg>) =
        visible.partition(|one| one.is_positional());
    arguments.extend(options);
    arguments
}

/// The arguments that not every command has.
fn own_arguments(command: &Command) -> Vec<&Arg> {
    let mut arguments = visible_arguments(command);
    arguments.retain(|one| !one.is_global_set() && one.get_id().as_str() != "help");
    arguments
}

/// What follows the name of a page.
fn about(command: &Command) -> String {
    let texts = texts(command.get_about());
    lower_case_start(&texts.join(" "))
}

/// The usage of `--help`.
fn synopsis(command: &Command) -> Vec<Block> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(usage.as_str());
    let lines = usage.lines().map(str::trim);
    lines
        .map(|line| Block::Paragraph(format!("`{line}`")))
        .collect()
}

/// The paragraphs of the longer help, and other names of the command.
fn description(command: &Command) -> Vec<String> {
    let texts = texts(command.get_long_about().or(command.get_about()));
    let mut paragraphs: Vec<String> = texts.iter().map(|text| sentence(text)).collect();
    let aliases = command.get_visible_aliases();
    paragraphs.extend(other_names(
        aliases.map(|alias| format!("`{alias}`")).collect(),
    ));
    paragraphs
}

/// An argument with its help, default and possible values.
fn entry(argument: &Arg) -> Block {
    let term = match (argument.get_short(), argument.get_long()) {
        (Some(short), Some(_)) => format!("-{short}, {argument}"),
        _ => argument.to_string(),
    };
    let mut paragraphs = Vec::new();
    let mut facts = Vec::new();
    for text in texts(argument.get_long_help().or(argument.get_help())) {
        let (text, stated) = split_brackets(&text);
        paragraphs.push(sentence(text));
        facts.extend(stated);
    }
    facts.extend(default_value(argument));
    facts.extend(possible_values(argument));
    facts.extend(variable(argument));
    let short = argument.get_visible_short_aliases().into_iter().flatten();
    let long = argument.get_visible_aliases().into_iter().flatten();
    let short = short.map(|alias| format!("`-{alias}`"));
    let long = long.map(|alias| format!("`--{alias}`"));
    facts.extend(other_names(short.chain(long).collect()));
    // One paragraph holds the help, if that is one paragraph, and the facts.
    let facts = facts.join(" ");
    match paragraphs.as_mut_slice() {
        _ if facts.is_empty() => {}
        [only] => {
            only.push(' ');
            only.push_str(&facts);
        }
        _ => paragraphs.push(facts),
    }
    Block::Entry { term, paragraphs }
}

fn default_value(argument: &Arg) -> Option<String> {
    if !argument.get_action().takes_values() || argument.is_hide_default_value_set() {
        return None;
    }
    let values = argument.get_default_values().iter();
    let values = values.filter(|value| !value.is_empty());
    let values: Vec<String> = values
        .map(|value| format!("`{}`", value.to_string_lossy()))
        .collect();
    (!values.is_empty()).then(|| format!("Default: {}.", values.join(", ")))
}

fn possible_values(argument: &Arg) -> Option<String> {
    if argument.is_hide_possible_values_set() {
        return None;
    }
    let values = argument.get_possible_values().into_iter();
    let values: Vec<String> = values
        .filter(|value| !value.is_hide_set())
        .map(|value| {
            let name = value.get_name();
            let help = texts(value.get_help()).join(" ");
            // The help of `json` says no more than that it is JSON.
            if help.is_empty() || help.eq_ignore_ascii_case(name) {
                format!("`{name}`")
            } else {
                format!("`{name}` ({})", lower_case_start(&help))
            }
        })
        .collect();
    (!values.is_empty()).then(|| format!("One of {}.", values.join(", ")))
}

fn variable(argument: &Arg) -> Option<String> {
    let variable = argument.get_env().filter(|_| !argument.is_hide_env_set())?;
    Some(variable_fact(&variable.to_string_lossy()))
}

fn variable_fact(name: &str) -> String {
    format!("Environment variable: `{name}`.")
}

fn other_names(names: Vec<String>) -> Option<String> {
    match names.as_slice() {
        [] => None,
        [one] => Some(format!("Alias: {one}.")),
        several => Some(format!("Aliases: {}.", several.join(", "))),
    }
}

/// Splits what a help says in brackets at its end from the rest, as sentences: `[default: ...]` and `[env: ...]`, which
/// are for defaults that clap does not know.
fn split_brackets(help: &str) -> (&str, Vec<String>) {
    let mut text = help;
    let mut facts = Vec::new();
    while let Some(inner) = text.strip_suffix(']')
        && let Some((before, inside)) = inner.rsplit_once(" [")
        && let Some(fact) = bracket_fact(inside)
    {
        facts.insert(0, fact);
        text = before;
    }
    (text, facts)
}

fn bracket_fact(inside: &str) -> Option<String> {
    match inside.split_once(": ")? {
        ("default", value) => Some(format!("Default: {value}.")),
        ("env", name) => Some(variable_fact(name)),
        _ => None,
    }
}

/// The paragraphs of a help, each in one line.
fn texts(help: Option<&StyledStr>) -> Vec<String> {
    let Some(help) = help else {
        return Vec::new();
    };
    let help = help.to_string();
    let paragraphs = help.split("\n\n").map(|paragraph| {
        let words: Vec<&str> = paragraph.split_whitespace().collect();
        words.join(" ")
    });
    paragraphs
        .filter(|paragraph| !paragraph.is_empty())
        .collect()
}

/// The text with a full stop. clap removes that of a help of one paragraph.
fn sentence(text: &str) -> String {
    if text.ends_with(['.', ':', '!', '?']) {
        text.to_owned()
    } else {
        format!("{text}.")
    }
}

/// The text without the capital at its start, unless the first word is one of capitals, such as JSON.
fn lower_case_start(text: &str) -> String {
    let mut letters = text.chars();
    let Some(first) = letters.next() else {
        return String::new();
    };
    let rest = letters.as_str();
    if rest.starts_with(char::is_uppercase) {
        return text.to_owned();
    }
    format!("{}{rest}", first.to_lowercase())
}

#[cfg(test)]
mod tests {
    use clap::{ArgAction, builder::PossibleValue};

    use super::*;
    use crate::audit;

    fn format_option() -> Arg {
        let values = [
            PossibleValue::new("table").help("Columns"),
            PossibleValue::new("json").help("JSON"),
            PossibleValue::new("old").hide(true),
        ];
        Arg::new("format")
            .short('o')
            .long("format")
            .visible_alias("as")
            .value_name("FORMAT")
            .default_value("table")
            .value_parser(values)
            .help("Output format")
    }

    fn flag(name: &'static str) -> Arg {
        Arg::new(name).long(name).action(ArgAction::SetTrue)
    }

    fn program() -> Command {
        let list = Command::new("list")
            .about("List what there is")
            .visible_alias("ls")
            .arg(
                Arg::new("name")
                    .value_name("NAME")
                    .help("A name [default: all]"),
            )
            .arg(format_option())
            .arg(flag("secret").hide(true).help("Never shown"));
        let set = Command::new("set")
            .about("Set a value")
            .long_about("Set a value.\n\nIt is kept,\nas written")
            .arg(
                Arg::new("value")
                    .value_name("KEY=VALUE")
                    .required(true)
                    .help("The value"),
            );
        let group = Command::new("config")
            .about("Settings")
            .subcommand_required(true)
            .subcommand(set);
        Command::new("prog")
            .version("1")
            .about("Does it")
            .long_about("Does it.\n\nExit codes: 0 done, 1 not.\n\nIt's all.")
            .disable_help_subcommand(true)
            .subcommand_required(true)
            .arg(
                Arg::new("context")
                    .long("context")
                    .value_name("NAME")
                    .global(true)
                    .help("A cluster"),
            )
            .subcommand(list)
            .subcommand(group)
            .subcommand(Command::new("man").hide(true).about("Write pages"))
    }

    fn command_line() -> CommandLine {
        CommandLine::new(program(), Section::UserCommands)
    }

    #[test]
    fn the_page_of_a_program_has_every_visible_command_with_its_options() {
        let further = vec![
            Block::heading("Examples"),
            Block::Example("prog list".to_owned()),
        ];
        let page = command_line().page(further);
        assert_eq!(page.file_name(), "prog.1");
        let expected = "\
<!-- Generated from a test -->

# prog(1): does it

## Synopsis

`prog [OPTIONS] <COMMAND>`

## Description

Does it.

It's all.

## Global options

**`--context <NAME>`**\\
A cluster.

**`-h, --help`**\\
Print help (see a summary with '-h').

**`-V, --version`**\\
Print version.

## Commands

Each command also takes the options above, except for `--version`.

### prog list

`prog list [OPTIONS] [NAME]`

List what there is.

Alias: `ls`.

**`[NAME]`**\\
A name.
Default: all.

**`-o, --format <FORMAT>`**\\
Output format.
Default: `table`.
One of `table` (columns), `json`.
Alias: `--as`.

### prog config

`prog config [OPTIONS] <COMMAND>`

Settings.

### prog config set

`prog config set [OPTIONS] <KEY=VALUE>`

Set a value.

It is kept, as written.

**`<KEY=VALUE>`**\\
The value.

## Exit status

0 done, 1 not.

## Examples

```
prog list
```
";
        assert_eq!(page.markdown("a test"), expected);
        assert_eq!(
            audit::missing(&program(), &page.man_page()),
            Vec::<String>::new()
        );
        assert_eq!(audit::format_errors(&page.man_page()), Vec::<String>::new());
    }

    #[test]
    fn each_visible_command_has_a_page_of_its_own() {
        let pages = command_line().command_pages();
        let names: Vec<String> = pages.iter().map(ManualPage::file_name).collect();
        assert_eq!(names, ["prog-list.1", "prog-config.1", "prog-config-set.1"]);
        let texts: Vec<String> = pages.iter().map(|page| page.markdown("a test")).collect();
        let [list, config, set] = texts.as_slice() else {
            panic!("{texts:?}");
        };
        assert!(
            list.contains("# prog-list(1): list what there is\n"),
            "{list}"
        );
        assert!(list.contains("## Options\n\n**`[NAME]`**"), "{list}");
        assert!(!list.contains("--context"), "{list}");
        assert!(!list.contains("## Commands"), "{list}");
        assert!(
            config.contains("## Commands\n\n**`set`**\\\nSet a value.\n"),
            "{config}"
        );
        assert!(set.contains("It is kept, as written.\n"), "{set}");
        assert!(set.contains("prog(1), which also"), "{set}");
    }

    #[test]
    fn brackets_at_the_end_of_a_help_are_facts() {
        let (text, facts) = split_brackets("Namespace [env: KAT_NAMESPACE] [default: that of it]");
        assert_eq!(text, "Namespace");
        let expected = [
            "Environment variable: `KAT_NAMESPACE`.",
            "Default: that of it.",
        ];
        assert_eq!(facts, expected);
        let (text, facts) = split_brackets("Objects, as [KIND/NAME]");
        assert_eq!(text, "Objects, as [KIND/NAME]");
        assert!(facts.is_empty());
    }

    #[test]
    fn words_of_capitals_keep_them() {
        assert_eq!(lower_case_start("More columns"), "more columns");
        assert_eq!(lower_case_start("A file"), "a file");
        assert_eq!(lower_case_start("KAT on a machine"), "KAT on a machine");
        assert_eq!(lower_case_start(""), "");
    }
}
