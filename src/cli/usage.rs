//! Usage errors in KAT's own words.

use std::{error::Error as _, ffi::OsString};

use clap::{
    Command,
    error::{ContextKind, ContextValue, Error, ErrorKind},
};

use super::{args, console::Console};
use kat_bundle::nearest_name;

const USAGE: u8 = 2;

/// Commands of similar programs, and what KAT has instead.
const ELSEWHERE: [(&str, &str); 58] = [
    (
        "attach",
        "`katcall logs NAME -f` follows what a program prints, `katcall exec -it NAME -- sh` opens a shell",
    ),
    (
        "backup",
        "`sudo kat-agent backup FOLDER`, on a machine that holds the store",
    ),
    (
        "build",
        "KAT builds no images: `podman build` and `podman push`, then `katcall set image NAME=IMAGE`",
    ),
    (
        "check",
        "`sudo kat-agent check` checks a machine, `katcall status` the cluster",
    ),
    (
        "compose",
        "KAT does not read Compose files; `katcall new NAME --image IMAGE DIR` writes the files of a workload",
    ),
    ("containers", "`katcall ps` lists instances"),
    ("copy", "`katcall cp` copies files to and from a container"),
    (
        "deploy",
        "`katcall apply -f DIR` creates or updates workloads",
    ),
    (
        "destroy",
        "`katcall delete workload NAME` deletes a workload",
    ),
    (
        "down",
        "`katcall delete workload NAME` deletes a workload, `katcall delete namespace NAME --cascade` all of a namespace",
    ),
    (
        "expose",
        "`ports` in workload.kat, with `hostPort` for other machines; `katcall explain workload.spec.ports` lists the fields",
    ),
    (
        "forward",
        "`katcall port-forward NAME LOCAL:PORT` forwards a local port to an instance",
    ),
    (
        "help",
        "`katcall --help` lists the commands, `katcall COMMAND --help` says what one takes",
    ),
    (
        "image",
        "`katcall get instances -o wide` shows the images in use",
    ),
    (
        "images",
        "`katcall get instances -o wide` shows the images in use",
    ),
    (
        "import",
        "KAT does not read Compose files; `katcall new NAME --image IMAGE DIR` writes the files of a workload",
    ),
    (
        "info",
        "`katcall status` shows the cluster, `katcall version` the versions",
    ),
    (
        "init",
        "`sudo kat-agent init` makes a machine the first one of a cluster",
    ),
    (
        "inspect",
        "`katcall describe NAME` is for people, `katcall get KIND NAME -o yaml` for programs",
    ),
    ("instances", "`katcall ps` lists instances"),
    (
        "join",
        "`sudo kat-agent join` adds a machine; `katcall token create --join` prints its whole command",
    ),
    (
        "kill",
        "`katcall restart NAME` replaces the instances of a workload",
    ),
    (
        "leave",
        "`sudo kat-agent reset` takes a machine out of the cluster",
    ),
    (
        "list",
        "`katcall get workloads` lists workloads, `katcall ps` instances",
    ),
    (
        "login",
        "`katcall registry login` logs in to a registry, `katcall context add` adds a cluster",
    ),
    (
        "logout",
        "`katcall registry logout` forgets the password of a registry, `katcall context remove` a cluster",
    ),
    (
        "ls",
        "`katcall get workloads` lists workloads, `katcall ps` instances",
    ),
    ("machines", "`katcall get nodes` lists machines"),
    ("namespaces", "`katcall get namespaces` lists namespaces"),
    ("nodes", "`katcall get nodes` lists machines"),
    (
        "patch",
        "`katcall apply -f DIR` changes a workload; `katcall scale` and `katcall set image` change one field",
    ),
    (
        "pause",
        "`katcall rollout pause` pauses a rollout, `katcall stop NAME` ends the instances of a workload",
    ),
    ("pods", "`katcall ps` lists instances"),
    (
        "pull",
        "machines pull images themselves; `katcall set image NAME=IMAGE` gives a workload another image",
    ),
    (
        "push",
        "KAT has no registry: `podman push`, then `katcall set image NAME=IMAGE`",
    ),
    (
        "recover",
        "`sudo kat-agent recover`, on a machine that holds the store",
    ),
    (
        "recovery-key",
        "`sudo kat-agent recovery-key`, on a machine that holds the store",
    ),
    ("remove", "`katcall delete KIND/NAME` deletes an object"),
    (
        "reset",
        "`sudo kat-agent reset` takes a machine out of the cluster",
    ),
    ("restore", "`sudo kat-agent restore FILE`, on a new machine"),
    (
        "resume",
        "`katcall rollout resume` continues a rollout, `katcall job resume` the schedule of a Job",
    ),
    ("routes", "`katcall get routes` lists routes"),
    ("secrets", "`katcall get secrets` lists secrets"),
    (
        "services",
        "`katcall get workloads -o wide` shows the service address of each workload",
    ),
    (
        "sh",
        "`katcall exec -it NAME -- sh` opens a shell in a container",
    ),
    (
        "shell",
        "`katcall exec -it NAME -- sh` opens a shell in a container",
    ),
    (
        "show",
        "`katcall describe NAME` is for people, `katcall get KIND NAME -o yaml` for programs",
    ),
    (
        "ssh",
        "`katcall exec -it NAME -- sh` opens a shell in a container",
    ),
    (
        "stats",
        "`katcall top` shows the use of processor and memory",
    ),
    (
        "tail",
        "`katcall logs NAME -f` follows what a program prints",
    ),
    ("tokens", "`katcall token list` lists tokens"),
    (
        "undo",
        "`katcall rollback` goes back to an earlier generation",
    ),
    (
        "unpause",
        "`katcall rollout resume` continues a rollout, `katcall start NAME` starts a stopped workload",
    ),
    ("up", "`katcall apply -f DIR` creates or updates workloads"),
    (
        "update",
        "`katcall apply -f DIR` updates workloads, the package `kat` on each machine updates KAT",
    ),
    (
        "upgrade",
        "`katcall apply -f DIR` updates workloads, the package `kat` on each machine updates KAT",
    ),
    ("volumes", "`katcall get volumes` lists volumes"),
    ("workloads", "`katcall get workloads` lists workloads"),
];

/// Kinds that `create` does not take, and how they are created.
const CREATED: [(&str, &str); 6] = [
    (
        "deployment",
        "`katcall run IMAGE` creates a workload, and so does `katcall apply -f DIR`",
    ),
    (
        "job",
        "`katcall run IMAGE --job` creates a Job, and so does `katcall apply -f DIR`",
    ),
    (
        "secret",
        "`katcall secret set NAME --from-file KEY=PATH` creates a secret",
    ),
    ("token", "`katcall token create` creates a token"),
    (
        "volume",
        "a workload brings its volumes: `katcall explain workload.spec.volumes` lists the fields",
    ),
    (
        "workload",
        "`katcall run IMAGE` creates a workload, and so does `katcall apply -f DIR`",
    ),
];

/// Prints the mistake in a command line, or the requested help; returns the exit code.
pub(super) fn report(error: &Error, words: &[OsString], console: &Console) -> u8 {
    let Some((message, hint)) = in_words(error, words) else {
        // Help and version go to stdout, clap's own messages to stderr.
        let _ = error.print();
        return if error.use_stderr() { USAGE } else { 0 };
    };
    console.failure(&message, Some(&hint));
    USAGE
}

/// The message and a hint; `None` leaves the message to clap.
fn in_words(error: &Error, words: &[OsString]) -> Option<(String, String)> {
    let (command, path) = invoked(words);
    let see_help = || format!("`{path} --help` shows what it takes");
    let texts = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    let text = |kind| texts(kind).into_iter().next();
    match error.kind() {
        ErrorKind::InvalidValue => {
            let value = text(ContextKind::InvalidValue).filter(|value| !value.is_empty())?;
            let place = argument_in_words(&text(ContextKind::InvalidArg)?);
            let valid = texts(ContextKind::ValidValue);
            if valid.is_empty() {
                return None;
            }
            let mut created = CREATED.iter();
            let created = match command.get_name() {
                "create" => created.find(|(kind, _)| *kind == value),
                _ => None,
            };
            let hint = created
                .map(|(_, hint)| (*hint).to_owned())
                .or_else(|| meant(&value, &valid))
                .unwrap_or_else(|| match valid.as_slice() {
                    [only] => format!("only `{only}` goes there"),
                    _ => format!("it is one of {}", valid.join(", ")),
                });
            Some((format!("`{value}` is not {place}"), hint))
        }
        ErrorKind::ValueValidation => {
            let argument = text(ContextKind::InvalidArg)?;
            let reason = error.source()?.to_string();
            let option = argument.split(' ').next().unwrap_or(&argument);
            Some((format!("`{option}`: {reason}"), see_help()))
        }
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand)?;
            let commands: Vec<String> = command
                .get_subcommands()
                .filter(|command| !command.is_hide_set())
                .map(|command| command.get_name().to_owned())
                .collect();
            let elsewhere = ELSEWHERE.iter().find(|(other, _)| *other == word);
            let hint = elsewhere
                .map(|(_, hint)| (*hint).to_owned())
                .or_else(|| meant_command(&word, &commands))
                .unwrap_or_else(|| format!("`{path} --help` lists the commands"));
            Some((format!("there is no command `{word}`"), hint))
        }
        ErrorKind::UnknownArgument => {
            let word = text(ContextKind::InvalidArg)?;
            let hint = namespace_of_files(&command, &word)
                .or_else(|| {
                    let near = text(ContextKind::SuggestedArg)?;
                    Some(format!("did you mean `{near}`?"))
                })
                .or_else(|| with_separator(&command, words, &word))
                .unwrap_or_else(see_help);
            Some((format!("unexpected argument `{word}`"), hint))
        }
        ErrorKind::MissingRequiredArgument => {
            let missing: Vec<String> = texts(ContextKind::InvalidArg)
                .iter()
                .map(|argument| format!("`{argument}`"))
                .collect();
            if missing.is_empty() {
                return None;
            }
            let verb = if missing.len() == 1 { "is" } else { "are" };
            let message = format!("{} {verb} missing", missing.join(", "));
            Some((message, usage(error).unwrap_or_else(see_help)))
        }
        ErrorKind::ArgumentConflict => {
            let one = text(ContextKind::InvalidArg)?;
            let other = text(ContextKind::PriorArg)?;
            let message = format!("`{one}` and `{other}` exclude each other");
            Some((message, usage(error).unwrap_or_else(see_help)))
        }
        _ => None,
    }
}

/// The invoked command, and its name as written.
fn invoked(words: &[OsString]) -> (Command, String) {
    let mut command = args::command();
    let mut path = command.get_name().to_owned();
    let mut words = words.iter().skip(1).filter_map(|word| word.to_str());
    while let Some(word) = words.next() {
        if matches!(word, "--context" | "--connection") {
            words.next();
        } else if !word.starts_with('-') {
            let Some(found) = command.find_subcommand(word).cloned() else {
                break;
            };
            path = format!("{path} {}", found.get_name());
            command = found;
        }
    }
    (command, path)
}

/// Where the namespace of a command is that reads it from files.
fn namespace_of_files(command: &Command, word: &str) -> Option<String> {
    let reads_files = matches!(command.get_name(), "apply" | "plan" | "diff");
    (reads_files && matches!(word, "-n" | "--namespace")).then(|| {
        "the files name their namespace: `namespace: NAME` below `metadata` of workload.kat"
            .to_owned()
    })
}

/// The same command line with the command of `exec` or `run` separated by `--`.
fn with_separator(command: &Command, words: &[OsString], word: &str) -> Option<String> {
    if !matches!(command.get_name(), "exec" | "run") || word.starts_with('-') {
        return None;
    }
    let words: Option<Vec<&str>> = words.iter().skip(1).map(|word| word.to_str()).collect();
    let words = words?;
    // Other characters would need quoting.
    let letter = |one: u8| one.is_ascii_alphanumeric() || b"-_./=:,@+%".contains(&one);
    let plain = |word: &&str| word.bytes().all(letter);
    let once = words.iter().filter(|one| **one == word).count() == 1;
    let at = words.iter().position(|one| *one == word)?;
    let (before, run) = words.split_at_checked(at)?;
    if !once || !words.iter().all(plain) {
        return Some("the command goes after `--`".to_owned());
    }
    Some(format!(
        "the command goes after `--`: `katcall {} -- {}`",
        before.join(" "),
        run.join(" ")
    ))
}

fn meant(word: &str, candidates: &[String]) -> Option<String> {
    nearest_name(word, candidates.iter().map(String::as_str))
        .map(|near| format!("did you mean `{near}`?"))
}

/// The command that a word is a slip of. A word of two letters is no slip of another one, and a slip
/// is seldom in the first letter: `stop` is not `top`.
fn meant_command(word: &str, commands: &[String]) -> Option<String> {
    let first = word.chars().next()?;
    let near = commands
        .iter()
        .filter(|command| word.chars().count() > 2 && command.starts_with(first))
        .map(String::as_str);
    nearest_name(word, near).map(|near| format!("did you mean `{near}`?"))
}

fn usage(error: &Error) -> Option<String> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return None;
    };
    let usage = usage.to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    Some(format!("usage: `{usage}`"))
}

/// The name of an argument in a message: `a kind` for a positional one, ``a value of `--output` ``
/// for an option.
fn argument_in_words(argument: &str) -> String {
    let name = argument.split(' ').next().unwrap_or(argument);
    if name.starts_with('-') {
        return format!("a value of `{name}`");
    }
    format!(
        "a {}",
        name.trim_matches(['<', '>', '[', ']']).to_lowercase()
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn hint(line: &str) -> String {
        let words: Vec<OsString> = ["katcall"]
            .into_iter()
            .chain(line.split(' '))
            .map(OsString::from)
            .collect();
        let error = args::KatcallArgs::try_parse_from(&words).unwrap_err();
        in_words(&error, &words).unwrap().1
    }

    #[test]
    fn a_command_of_another_program_gets_one_true_hint() {
        let command = args::command();
        for (word, text) in ELSEWHERE {
            assert!(
                command.find_subcommand(word).is_none(),
                "there is a command {word}"
            );
            assert_eq!(hint(word), text);
            // The first command that a hint names exists.
            let named = text.split("`katcall ").nth(1);
            let named = named.and_then(|rest| rest.split([' ', '`']).next());
            if let Some(named) = named.filter(|named| !named.starts_with('-')) {
                assert!(command.find_subcommand(named).is_some(), "{text}");
            }
        }
    }

    #[test]
    fn a_namespace_for_files_is_answered_with_its_place_in_them() {
        for command in ["apply", "plan", "diff"] {
            for option in ["-n", "--namespace"] {
                let hint = hint(&format!("{command} web {option} shop"));
                assert!(hint.contains("below `metadata` of workload.kat"), "{hint}");
            }
        }
    }

    #[test]
    fn a_kind_that_create_does_not_take_is_answered_with_the_command_that_creates_it() {
        for (kind, text) in CREATED {
            assert_eq!(hint(&format!("create {kind} x")), text);
        }
        assert_eq!(hint("create pod x"), "only `namespace` goes there");
        assert_eq!(hint("create namespaces x"), "did you mean `namespace`?");
    }

    #[test]
    fn no_other_command_is_proposed_for_a_word_that_is_no_slip() {
        for word in ["xtop", "cq", "xp", "lp", "pz"] {
            let hint = hint(word);
            assert!(
                !hint.contains("`top`") && !hint.contains("`cp`"),
                "{word}: {hint}"
            );
        }
        assert_eq!(hint("statsu"), "did you mean `status`?");
        assert!(!hint("stats").contains("`status`"));
        assert!(!hint("expose").contains("`export`"));
        assert_eq!(hint("desribe web"), "did you mean `describe`?");
    }
}
