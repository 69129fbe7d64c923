//! `katcall registry login`, `logout`, and the output of `list`. No message contains a password.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal, Read, Write},
};

use clap::Args;
use serde::Serialize;
use tokio::sync::oneshot;

use crate::{
    CliSession, args::NamespaceOption, console::Console, errors::CliError, output::plain,
    terminal::EchoOff,
};
use kat_types::api::{
    LoginCheck, RegistryLoginRequest, RegistryLoginView, RegistryView, WriteOutcome,
};

/// Largest password input in bytes.
const LIMIT: u64 = 64 << 10;
/// Longest line that a terminal returns (termios(3)).
const LINE: usize = 4095;

#[derive(Debug, Args)]
pub(crate) struct LoginArgs {
    /// The registry, such as `registry.example`, `registry.lab:5000` or `docker.io`, or what is below a path of it, such as
    /// `ghcr.io/organisation`
    #[arg(value_name = "HOST[/PATH]")]
    registry: String,
    #[command(flatten)]
    namespace: NamespaceOption,
    /// The name; asked for on a terminal
    #[arg(short, long, value_name = "NAME")]
    username: Option<String>,
    /// Read the password, or a token that stands for one, from stdin; it is asked for on a terminal without it
    #[arg(long)]
    password_stdin: bool,
    /// Do not ask the registry whether it takes them
    #[arg(long)]
    no_check: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogoutArgs {
    /// The registry, as it was logged in to
    #[arg(value_name = "HOST[/PATH]")]
    registry: String,
    #[command(flatten)]
    namespace: NamespaceOption,
}

pub(crate) async fn login<'run>(
    session: &impl Fn() -> Result<CliSession<'run>, CliError>,
    arguments: &LoginArgs,
) -> Result<(), CliError> {
    let request = read(arguments).await?;
    let CliSession { client, console } = session()?;
    let namespace = &arguments.namespace.namespace;
    let registry = &arguments.registry;
    let result = client.login_registry(namespace, registry, &request).await?;
    let registry = plain(&result.login.registry);
    match result.check {
        LoginCheck::Accepted => {}
        LoginCheck::NotAsked => console.warning(&format!(
            "{registry} answers without a password, so this one could not be checked"
        )),
        LoginCheck::NotChecked => console.note("the registry was not asked whether it takes them"),
    }
    let done = match result.outcome {
        WriteOutcome::Unchanged => "unchanged",
        _ => "logged in",
    };
    console.line(&format!(
        "registry/{registry} {done}, namespace {namespace}"
    ))
}

async fn read(arguments: &LoginArgs) -> Result<RegistryLoginRequest, CliError> {
    let username = match &arguments.username {
        Some(username) => username.clone(),
        None if io::stdin().is_terminal() && !arguments.password_stdin => {
            line("username: ", None).await?
        }
        None => {
            return Err(
                CliError::usage("no name was given, and there is no terminal to ask on")
                    .hinted("`--username NAME`"),
            );
        }
    };
    let password = if arguments.password_stdin {
        let mut bytes = Vec::new();
        let read = io::stdin().take(LIMIT + 1).read_to_end(&mut bytes);
        read.map_err(|error| CliError::failed(format!("stdin: {error}")))?;
        if bytes.len() as u64 > LIMIT {
            return Err(CliError::usage(format!(
                "what comes from stdin has more than {LIMIT} bytes"
            )));
        }
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| CliError::usage("what comes from stdin is no UTF-8 text"))?;
        without_end(&text).to_owned()
    } else if io::stdin().is_terminal() {
        let hidden = EchoOff::begin()
            .map_err(|error| CliError::failed(format!("the terminal can't be set: {error}")))?;
        line("password (it is not shown): ", Some(hidden)).await?
    } else {
        return Err(
            CliError::usage("no password was given, and there is no terminal to ask on")
                .hinted("`--password-stdin` reads it from stdin"),
        );
    };
    if username.is_empty() || password.is_empty() {
        return Err(CliError::usage(
            "a name and a password are needed; nothing was changed",
        ));
    }
    Ok(RegistryLoginRequest {
        username,
        password,
        no_check: arguments.no_check,
    })
}

/// Prompts, and reads a line on a thread of its own, so that an interrupt ends the wait and
/// restores the terminal.
async fn line(question: &str, hidden: Option<EchoOff>) -> Result<String, CliError> {
    let _ = write!(io::stderr(), "{question}");
    let (sender, answer) = oneshot::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = io::stdin().read_line(&mut text);
        let _ = sender.send(read.map(|_| text));
    });
    let answer = answer.await;
    if hidden.is_some() {
        let _ = writeln!(io::stderr());
    }
    drop(hidden);
    let unread = |error: &dyn std::fmt::Display| {
        CliError::failed(format!("the answer can't be read: {error}"))
    };
    let text = answer
        .map_err(|error| unread(&error))?
        .map_err(|error| unread(&error))?;
    if text.len() >= LINE {
        return Err(CliError::usage(
            "a terminal takes no line as long as that; nothing was changed",
        )
        .hinted("`--password-stdin` reads it from stdin"));
    }
    Ok(without_end(&text).to_owned())
}

/// Removes the line break at the end of a text.
fn without_end(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

pub(crate) async fn logout(
    session: &CliSession<'_>,
    arguments: &LogoutArgs,
) -> Result<(), CliError> {
    let namespace = &arguments.namespace.namespace;
    let registry = &arguments.registry;
    session.client.logout_registry(namespace, registry).await?;
    let console: &Console = session.console;
    console.line(&format!(
        "registry/{} logged out, namespace {namespace}",
        plain(registry)
    ))
}

/// A row of `katcall registry list`.
#[derive(Debug, Serialize)]
pub(crate) struct RegistryRow {
    /// The registry's host, with a path where the credentials are for one.
    pub(crate) host: String,
    /// `None` if the user may not see the settings.
    #[serde(flatten)]
    pub(crate) reached: Option<RegistryAccess>,
    /// The namespace's credentials for the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) login: Option<RegistryLoginView>,
}

/// The settings of a registry.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(crate) struct RegistryAccess {
    pub(crate) insecure: bool,
    pub(crate) mirrors: Vec<String>,
}

/// The settings of registries, if the user may see them, and the credentials of a namespace: one
/// row for each name.
pub(crate) fn rows(
    settings: Option<Vec<RegistryView>>,
    logins: Vec<RegistryLoginView>,
) -> Vec<RegistryRow> {
    let known = settings.is_some();
    let set = settings.into_iter().flatten().map(|view| {
        let RegistryView {
            host,
            insecure,
            mirrors,
        } = view;
        (host, RegistryAccess { insecure, mirrors })
    });
    let set: BTreeMap<String, RegistryAccess> = set.collect();
    let rows = set.iter().map(|(host, reached)| RegistryRow {
        host: host.clone(),
        reached: Some(reached.clone()),
        login: None,
    });
    let mut rows: Vec<RegistryRow> = rows.collect();
    for login in logins {
        let own = rows.iter_mut().find(|row| row.host == login.registry);
        if let Some(row) = own {
            row.login = Some(login);
            continue;
        }
        // A path has the settings of its host.
        let name = login.registry.clone();
        let host = name.split_once('/').map_or(name.as_str(), |(host, _)| host);
        let reached = set.get(host).cloned();
        rows.push(RegistryRow {
            host: name,
            reached: known.then(|| reached.unwrap_or_default()),
            login: Some(login),
        });
    }
    rows.sort_by(|one, other| one.host.cmp(&other.host));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_that_is_set_and_logged_in_to_has_one_row() {
        let set = |host: &str, insecure| RegistryView {
            host: host.to_owned(),
            insecure,
            mirrors: Vec::new(),
        };
        let login = |registry: &str| RegistryLoginView {
            registry: registry.to_owned(),
            ..RegistryLoginView::default()
        };
        let settings = vec![set("a.example", true), set("m.example", false)];
        let logins = vec![
            login("a.example"),
            login("a.example/org"),
            login("b.example"),
        ];
        let rows = rows(Some(settings), logins);
        let told: Vec<_> = rows
            .iter()
            .map(|row| {
                let insecure = row.reached.as_ref().unwrap().insecure;
                (row.host.as_str(), insecure, row.login.is_some())
            })
            .collect();
        let expected = [
            ("a.example", true, true),
            ("a.example/org", true, true),
            ("b.example", false, true),
            ("m.example", false, false),
        ];
        assert_eq!(told, expected);
        let unseen = super::rows(None, vec![login("a.example")]);
        assert_eq!(unseen[0].reached, None);
    }

    #[test]
    fn the_end_of_a_line_is_no_part_of_a_password() {
        for (text, expected) in [
            ("a\n", "a"),
            ("a\r\n", "a"),
            ("a b ", "a b "),
            ("a\n\n", "a\n"),
        ] {
            assert_eq!(without_end(text), expected);
        }
    }
}
