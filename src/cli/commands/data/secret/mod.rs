//! `katcall secret`: writes values, and never reads them. No message contains a value.

mod args;

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use tokio::time::Instant;

use crate::{
    CliSession,
    commands::reading::{
        describe::{Sheet, of_object},
        get,
    },
    errors::CliError,
    output::{
        plain,
        table::{Cell, Table},
    },
    references::{self, Reference, SECRETS},
    time, wait,
    wait::AwaitedWorkload,
};
use args::{SecretCommand, SecretNameArgs, SecretSetArgs, SecretUnsetArgs, SecretWaitArgs};
use kat_client::{ClientError, ListChange, RequestPath};
use kat_types::{
    api::{ApplyResult, ObjectKind, SecretItem, SecretRequest},
    resource::secret::{SecretValues, VALUE_LIMIT, check_key},
};

pub(crate) use args::SecretArgs;

pub(crate) struct SecretName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl SecretName {
    pub(crate) fn of(reference: &Reference) -> Self {
        Self {
            namespace: reference.namespace.clone(),
            name: reference.name.clone(),
        }
    }
}

impl SecretNameArgs {
    fn named(&self) -> Result<SecretName, CliError> {
        let reference = references::one(&self.name, SECRETS, &self.namespace)?;
        Ok(SecretName::of(&reference))
    }
}

pub(crate) async fn run<'run>(
    session: &impl Fn() -> Result<CliSession<'run>, CliError>,
    arguments: &SecretArgs,
) -> Result<(), CliError> {
    match &arguments.command {
        SecretCommand::Set(arguments) => {
            // Values are read before any request is sent.
            let named = arguments.which.named()?;
            let values = read(arguments, &mut io::stdin())?;
            set(&session()?, arguments, named, &values).await
        }
        SecretCommand::Unset(arguments) => unset(&session()?, arguments).await,
        SecretCommand::RotateKey => rotate(&session()?).await,
    }
}

/// Reads the values that the command line names. No error contains a value.
fn read(arguments: &SecretSetArgs, stdin: &mut dyn Read) -> Result<SecretValues, CliError> {
    let mut values = SecretValues::default();
    let mut stdin = Some(stdin);
    let mut add = |key: &str, value: Vec<u8>| {
        check_key(key).map_err(|error| CliError::usage(error.to_string()))?;
        if value.len() > VALUE_LIMIT {
            return Err(CliError::usage(format!(
                "the value of `{key}` has more than {VALUE_LIMIT} bytes, which is as many as there can be"
            )));
        }
        match values.0.insert(key.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err(CliError::usage(format!("the key `{key}` is named twice"))),
        }
    };
    let mut from_stdin = |key: &str| {
        let stdin = stdin.take();
        let stdin = stdin.ok_or_else(|| CliError::usage("stdin can be read for one key only"))?;
        bounded(stdin).map_err(|error| CliError::failed(format!("stdin, for `{key}`: {error}")))
    };
    for (place, word) in arguments.values.iter().enumerate() {
        let Some((key, value)) = word.split_once('=') else {
            let number = place + 1;
            return Err(CliError::usage(format!(
                "argument {number} after the name is not KEY=VALUE"
            ))
            .hinted("`katcall secret set NAME KEY=VALUE`, or `--from-file KEY=PATH`"));
        };
        let value = match value {
            "-" => from_stdin(key)?,
            value => value.as_bytes().to_vec(),
        };
        add(key, value)?;
    }
    for word in &arguments.from_file {
        let (key, path) = match word.split_once('=') {
            Some((key, path)) => (key, path),
            None => {
                let name = Path::new(word).file_name();
                (
                    name.and_then(|name| name.to_str()).unwrap_or_default(),
                    word.as_str(),
                )
            }
        };
        let value = match path {
            "-" if key == "-" => {
                return Err(CliError::usage("what comes from stdin needs a key")
                    .hinted("`--from-file KEY=-`"));
            }
            "-" => from_stdin(key)?,
            path => File::open(path)
                .and_then(|mut file| bounded(&mut file))
                .map_err(|error| CliError::failed(format!("{path}: {error}")))?,
        };
        add(key, value)?;
    }
    if values.0.is_empty() {
        return Err(CliError::usage("nothing is to be set: name a key")
            .hinted("`katcall secret set NAME KEY=VALUE`, or `--from-file KEY=PATH`"));
    }
    Ok(values)
}

fn bounded(from: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut value = Vec::new();
    from.take(VALUE_LIMIT as u64 + 1).read_to_end(&mut value)?;
    Ok(value)
}

async fn set(
    session: &CliSession<'_>,
    arguments: &SecretSetArgs,
    named: SecretName,
    values: &SecretValues,
) -> Result<(), CliError> {
    let encoded = values.0.iter();
    let content = SecretRequest {
        values: encoded
            .map(|(key, value)| (key.clone(), BASE64_STANDARD.encode(value)))
            .collect(),
        merge: !arguments.replace,
        remove: Vec::new(),
    };
    let SecretName { namespace, name } = &named;
    let result = session
        .client
        .write_secret(namespace, name, &content)
        .await?;
    finish(session, named, &result, &arguments.waiting).await
}

async fn unset(session: &CliSession<'_>, arguments: &SecretUnsetArgs) -> Result<(), CliError> {
    let named = arguments.which.named()?;
    let SecretName { namespace, name } = &named;
    let before = found(session, namespace, name).await?;
    let is_there = |key: &&String| before.spec.keys.iter().any(|one| one.name == **key);
    if let Some(key) = arguments.keys.iter().find(|key| !is_there(key)) {
        let key = plain(key);
        return Err(CliError::not_found(format!(
            "secret `{name}` has no key `{key}`"
        )));
    }
    let content = SecretRequest {
        merge: true,
        remove: arguments.keys.clone(),
        ..SecretRequest::default()
    };
    let result = session
        .client
        .write_secret(namespace, name, &content)
        .await?;
    finish(session, named, &result, &arguments.waiting).await
}

pub(crate) async fn found(
    session: &CliSession<'_>,
    namespace: &str,
    name: &str,
) -> Result<SecretItem, CliError> {
    match session.client.secret(namespace, name).await {
        Ok(item) => Ok(item),
        Err(error) => Err(missing(session, error, namespace, name).await),
    }
}

async fn missing(
    session: &CliSession<'_>,
    error: ClientError,
    namespace: &str,
    name: &str,
) -> CliError {
    get::missing::<SecretItem>(session, error, Some(namespace), name).await
}

async fn finish(
    session: &CliSession<'_>,
    named: SecretName,
    result: &ApplyResult,
    waiting: &SecretWaitArgs,
) -> Result<(), CliError> {
    let SecretName { namespace, name } = named;
    let version = result.metadata.generation;
    let said = format!("{}, version {version}", result.outcome);
    session.console.line(&format!("secret/{name} {said}"))?;
    if !waiting.wait {
        return Ok(());
    }
    let started = Instant::now();
    let deadline = started + waiting.timeout;
    let users = match tokio::time::timeout_at(deadline, begun(session, &namespace, &name)).await {
        Ok(users) => users?,
        Err(_) => {
            return Err(CliError::deadline(format!(
                "workloads that use secret `{name}` have not begun to roll out"
            ))
            .hinted("`katcall status` says whether the cluster is well"));
        }
    };
    for user in users {
        let item = session.client.workload(&namespace, &user).await?;
        let target = AwaitedWorkload {
            namespace: namespace.clone(),
            name: user,
            uid: item.metadata.uid,
            generation: item.metadata.generation,
        };
        wait::until_running(session, target, started, waiting.timeout).await?;
    }
    Ok(())
}

/// The workloads that use a secret, once the rollout of each with the secret's present version has
/// begun.
async fn begun(
    session: &CliSession<'_>,
    namespace: &str,
    name: &str,
) -> Result<Vec<String>, CliError> {
    let route = RequestPath::secrets(Some(namespace))?;
    let mut changes = session.client.follow::<SecretItem>(route, true);
    loop {
        let items = match changes.next().await? {
            ListChange::Listed(items) => items,
            ListChange::Changed(item) => vec![item],
            ListChange::Deleted(_) | ListChange::Interrupted(_) => continue,
        };
        let own = items.into_iter().find(|item| item.metadata.name == name);
        match own {
            Some(item) if item.status.behind.is_empty() => return Ok(item.status.used_by),
            _ => {}
        }
    }
}

async fn rotate(session: &CliSession<'_>) -> Result<(), CliError> {
    let mut rotation = session.client.rotate_sealing_key(false).await?;
    while rotation.left > 0 {
        let left = rotation.left;
        session
            .console
            .note(&format!("{left} secrets are still to be sealed anew"));
        rotation = session.client.rotate_sealing_key(true).await?;
        if rotation.left >= left {
            return Err(CliError::failed(format!(
                "the rotation does not come nearer to its end: {left} secrets are left"
            ))
            .hinted(
                "run `katcall secret rotate-key` again to continue; nothing is lost meanwhile",
            ));
        }
    }
    let key = rotation.key;
    session.console.line(&format!(
        "all secrets are sealed with key {key}; earlier keys are gone"
    ))
}

/// The sheet of `katcall describe secret`.
pub(crate) async fn describe(
    session: &CliSession<'_>,
    sheet: &mut Sheet,
    named: &SecretName,
) -> Result<(), CliError> {
    let SecretName { namespace, name } = named;
    let item = found(session, namespace, name).await?;
    sheet.field("name", &item.metadata.name);
    sheet.field("namespace", namespace);
    sheet.field("version", &item.metadata.generation.to_string());
    sheet.field("used by", &item.status.used_by.join(", "));
    sheet.field("not yet by", &item.status.behind.join(", "));
    sheet.age(item.metadata.creation_timestamp);
    sheet.field("updated", &time::to_the_second(item.status.updated));
    sheet.section("keys");
    let mut table = Table::new(vec!["KEY", "BYTES"]);
    for key in &item.spec.keys {
        table.row(vec![Cell::new(&key.name), Cell::new(key.size.to_string())]);
    }
    sheet.table(table);
    of_object(session, sheet, ObjectKind::Secret, namespace, name).await;
    Ok(())
}

/// `katcall delete secret`.
pub(crate) async fn delete(session: &CliSession<'_>, named: &SecretName) -> Result<(), CliError> {
    let SecretName { namespace, name } = named;
    if let Err(error) = session.client.delete_secret(namespace, name).await {
        return Err(missing(session, error, namespace, name).await);
    }
    session.console.line(&format!("secret/{name} deleted"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        set: SecretSetArgs,
    }

    fn values(words: &[&str], stdin: &str) -> Result<SecretValues, String> {
        let words = ["set", "db"].iter().chain(words);
        let line = Line::try_parse_from(words).unwrap();
        read(&line.set, &mut stdin.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn values_come_from_the_line_from_files_and_from_stdin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tls.key");
        std::fs::write(&path, b"\xffkey\n").unwrap();
        let file = path.to_str().unwrap();
        let other = format!("OTHER={file}");
        let words = [
            "A=b=c",
            "E=",
            "--from-file",
            file,
            "--from-file",
            &other,
            "I=-",
        ];
        let SecretValues(found) = values(&words, "in\n").unwrap();
        let found: Vec<_> = found
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_slice()))
            .collect();
        let expected: [(&str, &[u8]); 5] = [
            ("A", b"b=c"),
            ("E", b""),
            ("I", b"in\n"),
            ("OTHER", b"\xffkey\n"),
            ("tls.key", b"\xffkey\n"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_is_wrong_is_said_without_the_value() {
        let long = format!("A={}", "hunter2".repeat(10_000));
        for words in [
            vec!["hunter2"],
            vec!["A=1", "A=hunter2"],
            vec!["..=hunter2"],
            vec![&long],
            vec![],
            vec!["--from-file", "-"],
            vec!["A=-", "B=-"],
            vec!["--from-file", "/none/file"],
        ] {
            let said = values(&words, "hunter2").unwrap_err();
            assert!(!said.contains("hunter2"), "{said}");
        }
    }
}
