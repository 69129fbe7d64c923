//! Live names for completion scripts: which kind of name the end of a line needs, and the names of
//! that kind.
//!
//! All errors are silent, since the user is typing.

use std::time::Duration;

use clap::ValueEnum;

use crate::{
    CliSession, args,
    args::{CompleteArgs, GlobalArgs, ListedKind},
    commands::reading::get::ListableItem,
    connect,
    console::Console,
    context,
    errors::CliError,
};
use kat_client::{Client, ClientError, ClientOptions};
use kat_types::api::{
    InstanceItem, List, NamespaceItem, NodeItem, SecretItem, TokenView, VolumeItem, WorkloadItem,
};

/// Longest wait for the cluster: the user waits for the completion.
const PATIENCE: Duration = Duration::from_secs(1);

/// The kind of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CompletedNames {
    Of(ListedKind),
    /// Workloads and instances, for logs.
    WorkloadsAndInstances,
    /// `INSTANCE:/`, with which a path in a container begins.
    PlacesThere,
    Contexts,
    /// Registries with credentials in a namespace.
    Logins,
    /// Certificate authorities of the cluster.
    Authorities,
}

/// What the end of the line needs.
#[derive(Debug, Default)]
struct CompletionRequest {
    names: Option<CompletedNames>,
    namespace: Option<String>,
    global: GlobalArgs,
}

pub(crate) async fn run(console: &Console, arguments: &CompleteArgs) -> Result<(), CliError> {
    let wanted = completion_request(&arguments.words);
    let Some(names) = wanted.names else {
        return Ok(());
    };
    let found = match names {
        CompletedNames::Contexts => context::names(),
        names => {
            let options = ClientOptions {
                connect_timeout: PATIENCE,
                request_timeout: PATIENCE,
                retry_for: Duration::ZERO,
                unreachable_for: Duration::ZERO,
                ..ClientOptions::default()
            };
            let Ok(client) = connect::client_with(&wanted.global, options) else {
                return Ok(());
            };
            let namespace = wanted
                .namespace
                .unwrap_or_else(|| connect::default_namespace(&wanted.global));
            let session = CliSession { client, console };
            let found = live(&session.client, names, &namespace);
            match tokio::time::timeout(2 * PATIENCE, found).await {
                Ok(Ok(found)) => found,
                _ => Vec::new(),
            }
        }
    };
    let harmless = |name: &&String| !name.contains(char::is_control);
    found
        .iter()
        .filter(harmless)
        .try_for_each(|name| console.line(name))
}

async fn live(
    client: &Client,
    names: CompletedNames,
    namespace: &str,
) -> Result<Vec<String>, ClientError> {
    match names {
        CompletedNames::Of(ListedKind::Workloads) => list::<WorkloadItem>(client, namespace).await,
        CompletedNames::Of(ListedKind::Instances) => list::<InstanceItem>(client, namespace).await,
        CompletedNames::Of(ListedKind::Nodes) => list::<NodeItem>(client, namespace).await,
        CompletedNames::Of(ListedKind::Namespaces) => {
            list::<NamespaceItem>(client, namespace).await
        }
        CompletedNames::Of(ListedKind::Volumes) => list::<VolumeItem>(client, namespace).await,
        CompletedNames::Of(ListedKind::Secrets) => list::<SecretItem>(client, namespace).await,
        CompletedNames::Of(ListedKind::Tokens) => list::<TokenView>(client, namespace).await,
        CompletedNames::WorkloadsAndInstances => {
            let mut found = list::<WorkloadItem>(client, namespace).await?;
            found.extend(list::<InstanceItem>(client, namespace).await?);
            Ok(found)
        }
        CompletedNames::Logins => {
            let logins = client.registry_logins(namespace).await?.items;
            Ok(logins.into_iter().map(|login| login.registry).collect())
        }
        CompletedNames::Authorities => {
            let authorities = client.authorities().await?.items;
            Ok(authorities.into_iter().map(|one| one.name).collect())
        }
        CompletedNames::PlacesThere => {
            let found = list::<InstanceItem>(client, namespace).await?;
            Ok(found.iter().map(|name| format!("{name}:/")).collect())
        }
        CompletedNames::Of(ListedKind::Events) | CompletedNames::Contexts => Ok(Vec::new()),
    }
}

async fn list<T: ListableItem>(
    client: &Client,
    namespace: &str,
) -> Result<Vec<String>, ClientError> {
    let namespace = T::NAMESPACED.then_some(namespace);
    let list: List<T> = client.get(T::list(namespace)?).await?;
    let mut names: Vec<String> = list.items.iter().map(|item| item.key().1).collect();
    names.sort();
    Ok(names)
}

/// Determines what the next word of a line is; `words` are the words before it, without the
/// program's name.
fn completion_request(words: &[String]) -> CompletionRequest {
    let mut command = args::command();
    command.build();
    let mut here = &command;
    let mut wanted = CompletionRequest::default();
    let mut path: Vec<&str> = Vec::new();
    let mut places: Vec<&str> = Vec::new();
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        if word.starts_with('-') {
            let (name, written) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            let option = option(here, name);
            if !option.is_some_and(|option| option.get_action().takes_values()) {
                continue;
            }
            let id = option.map_or("", |option| option.get_id().as_str());
            let Some(value) = written.or_else(|| words.next()) else {
                // The next word is the value of this option.
                wanted.names = match id {
                    "namespace" => Some(CompletedNames::Of(ListedKind::Namespaces)),
                    "context" => Some(CompletedNames::Contexts),
                    "without" if path == ["ca", "migrate"] => {
                        Some(CompletedNames::Of(ListedKind::Nodes))
                    }
                    "node" if matches!(path.as_slice(), ["run" | "new"]) => {
                        Some(CompletedNames::Of(ListedKind::Nodes))
                    }
                    "to" if path == ["volume", "move"] => {
                        Some(CompletedNames::Of(ListedKind::Nodes))
                    }
                    "on" if path == ["volume", "forget"] => {
                        Some(CompletedNames::Of(ListedKind::Nodes))
                    }
                    _ => None,
                };
                return wanted;
            };
            match id {
                "namespace" => wanted.namespace = Some(value.to_owned()),
                "context" => wanted.global.context = Some(value.to_owned()),
                "connection" => wanted.global.connection = Some(value.into()),
                _ => {}
            }
        } else if let Some(next) = here.find_subcommand(word).filter(|_| places.is_empty()) {
            path.push(next.get_name());
            here = next;
        } else {
            places.push(word);
        }
    }
    wanted.names = names_at(&path, &places);
    wanted
}

fn option<'a>(command: &'a clap::Command, name: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|argument| {
        let long = argument.get_long().map(|long| format!("--{long}"));
        let short = argument.get_short().map(|short| format!("-{short}"));
        long.as_deref() == Some(name) || short.as_deref() == Some(name)
    })
}

fn names_at(path: &[&str], places: &[&str]) -> Option<CompletedNames> {
    let nodes = CompletedNames::Of(ListedKind::Nodes);
    match (path, places) {
        (["secret", _], [_, ..]) => None,
        (["drain" | "uncordon"], []) => Some(nodes),
        (["logs" | "exec" | "port-forward" | "events"], []) => {
            Some(CompletedNames::WorkloadsAndInstances)
        }
        (
            ["rollback" | "history" | "restart" | "scale" | "export" | "edit"]
            | ["rollout" | "set", _],
            [],
        ) => Some(CompletedNames::Of(ListedKind::Workloads)),
        (["secret", "set" | "unset"], []) => Some(CompletedNames::Of(ListedKind::Secrets)),
        (["registry", "logout"], []) => Some(CompletedNames::Logins),
        (["volume", "move" | "forget"], []) => Some(CompletedNames::Of(ListedKind::Volumes)),
        (["ca", "rotate"], []) => Some(CompletedNames::Authorities),
        (["token", "revoke"], []) => Some(CompletedNames::Of(ListedKind::Tokens)),
        (["context", "use" | "remove"], []) => Some(CompletedNames::Contexts),
        (["cp"], []) => Some(CompletedNames::PlacesThere),
        // Only one side of a copy can be in a container.
        (["cp"], [first]) if !first.contains(':') => Some(CompletedNames::PlacesThere),
        (
            [
                "create" | "explain" | "completion" | "run" | "new" | "apply" | "plan" | "diff"
                | "export" | "edit",
            ],
            _,
        ) => None,
        (_, [kind]) => ListedKind::from_str(kind, true)
            .ok()
            .map(CompletedNames::Of),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Option<CompletedNames> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        completion_request(&words).names
    }

    #[test]
    fn the_line_says_what_is_named_next() {
        let workloads = Some(CompletedNames::Of(ListedKind::Workloads));
        let nodes = Some(CompletedNames::Of(ListedKind::Nodes));
        for (line, wanted) in [
            ("", None),
            ("get", None),
            ("get wl", workloads),
            ("get -o json workload", workloads),
            ("get -w workloads", workloads),
            ("get workloads web", None),
            (
                "why instance",
                Some(CompletedNames::Of(ListedKind::Instances)),
            ),
            ("describe node", nodes),
            ("get volume", Some(CompletedNames::Of(ListedKind::Volumes))),
            (
                "delete volume",
                Some(CompletedNames::Of(ListedKind::Volumes)),
            ),
            ("delete volume web/data", None),
            ("drain", nodes),
            ("volume move", Some(CompletedNames::Of(ListedKind::Volumes))),
            ("volume move web/data --to", nodes),
            ("label node", nodes),
            ("logs", Some(CompletedNames::WorkloadsAndInstances)),
            ("cp", Some(CompletedNames::PlacesThere)),
            ("cp ./x", Some(CompletedNames::PlacesThere)),
            ("cp web:/x", None),
            ("cp ./x ./y", None),
            (
                "logs -f --tail 5",
                Some(CompletedNames::WorkloadsAndInstances),
            ),
            ("logs --tail", None),
            (
                "get wl -n",
                Some(CompletedNames::Of(ListedKind::Namespaces)),
            ),
            (
                "get wl --namespace",
                Some(CompletedNames::Of(ListedKind::Namespaces)),
            ),
            ("rollback", workloads),
            ("rollback workload", workloads),
            ("rollout pause", workloads),
            ("rollout", None),
            ("scale --replicas 3", workloads),
            ("ca rotate", Some(CompletedNames::Authorities)),
            ("ca rotate etcd-client-ca", None),
            ("ca migrate --without", nodes),
            ("token revoke", Some(CompletedNames::Of(ListedKind::Tokens))),
            ("secret set", Some(CompletedNames::Of(ListedKind::Secrets))),
            ("secret unset db", None),
            ("registry logout", Some(CompletedNames::Logins)),
            (
                "delete secret",
                Some(CompletedNames::Of(ListedKind::Secrets)),
            ),
            ("context use", Some(CompletedNames::Contexts)),
            ("get wl --context", Some(CompletedNames::Contexts)),
            ("create namespace", None),
        ] {
            assert_eq!(names(line), wanted, "{line}");
        }
        let words = ["get", "wl", "-n", "shop", "--context=home"].map(str::to_owned);
        let wanted = completion_request(&words);
        assert_eq!(wanted.namespace.as_deref(), Some("shop"));
        assert_eq!(wanted.global.context.as_deref(), Some("home"));
    }
}
