//! Wrong usage in KAT's words.

use std::error::Error as _;

use clap::error::{ContextKind, ContextValue, Error, ErrorKind};

use super::{args, console::Console, suggest};

const USAGE: u8 = 2;

/// Says what is wrong with the command line, or prints the help that was asked for; gives back the
/// exit code.
pub(super) fn report(error: &Error, console: &Console) -> u8 {
    let Some((message, hint)) = in_words(error) else {
        // Help and version go to stdout, clap's own words for the rest to stderr.
        let _ = error.print();
        return if error.use_stderr() { USAGE } else { 0 };
    };
    console.failure(&message, Some(&hint));
    USAGE
}

/// What is wrong, and a hint. clap's own words stand for what is not told here.
fn in_words(error: &Error) -> Option<(String, String)> {
    let texts = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => vec![text.clone()],
        Some(ContextValue::Strings(texts)) => texts.clone(),
        _ => Vec::new(),
    };
    let text = |kind| texts(kind).into_iter().next();
    match error.kind() {
        ErrorKind::InvalidValue => {
            let value = text(ContextKind::InvalidValue).filter(|value| !value.is_empty())?;
            let place = place(&text(ContextKind::InvalidArg)?);
            let valid = texts(ContextKind::ValidValue);
            if valid.is_empty() {
                return None;
            }
            let hint = meant(&value, &valid).unwrap_or_else(|| match valid.as_slice() {
                [only] => format!("only `{only}` goes there"),
                _ => format!("it is one of {}", valid.join(", ")),
            });
            Some((format!("`{value}` is not {place}"), hint))
        }
        ErrorKind::ValueValidation => {
            let argument = text(ContextKind::InvalidArg)?;
            let reason = error.source()?.to_string();
            let option = argument.split(' ').next().unwrap_or(&argument);
            Some((format!("`{option}`: {reason}"), SEE_HELP.to_owned()))
        }
        ErrorKind::InvalidSubcommand => {
            let word = text(ContextKind::InvalidSubcommand)?;
            let commands: Vec<String> = args::command()
                .get_subcommands()
                .map(|command| command.get_name().to_owned())
                .collect();
            let hint = text(ContextKind::SuggestedSubcommand)
                .map(|near| format!("did you mean `{near}`?"))
                .or_else(|| meant(&word, &commands))
                .unwrap_or_else(|| "`katcall --help` lists the commands".to_owned());
            Some((format!("there is no command `{word}`"), hint))
        }
        ErrorKind::UnknownArgument => {
            let word = text(ContextKind::InvalidArg)?;
            let hint = text(ContextKind::SuggestedArg).map_or_else(
                || SEE_HELP.to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            Some((format!("`{word}` is not expected here"), hint))
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
            Some((message, usage(error).unwrap_or_else(|| SEE_HELP.to_owned())))
        }
        ErrorKind::ArgumentConflict => {
            let one = text(ContextKind::InvalidArg)?;
            let other = text(ContextKind::PriorArg)?;
            let message = format!("`{one}` and `{other}` exclude each other");
            Some((message, usage(error).unwrap_or_else(|| SEE_HELP.to_owned())))
        }
        _ => None,
    }
}

const SEE_HELP: &str = "`katcall COMMAND --help` shows what it takes";

fn meant(word: &str, candidates: &[String]) -> Option<String> {
    suggest::nearest(word, candidates.iter().map(String::as_str))
        .map(|near| format!("did you mean `{near}`?"))
}

fn usage(error: &Error) -> Option<String> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return None;
    };
    let usage = usage.to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    Some(format!("it goes like `{usage}`"))
}

/// `a kind` for a place, ``a value of `--output` `` for an option.
fn place(argument: &str) -> String {
    let name = argument.split(' ').next().unwrap_or(argument);
    if name.starts_with('-') {
        return format!("a value of `{name}`");
    }
    format!(
        "a {}",
        name.trim_matches(['<', '>', '[', ']']).to_lowercase()
    )
}
