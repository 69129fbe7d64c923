//! Live names for completion scripts: which kind of name the end of a line needs, and the names of
//! that kind.
//!
//! All errors are silent, since the user is typing.

use std::time::Duration;

use crate::{
    CliSession, args,
    args::{CompleteArgs, GlobalArgs},
    commands::{
        changing::{delete::DELETED, wait_for::AWAITED},
        reading::{describe::DESCRIBED, get::LISTED, get::ListableItem, why::EXPLAINED},
    },
    connect,
    console::Console,
    context,
    errors::CliError,
};
use kat_client::{Client, ClientError, ClientOptions};
use kat_types::{
    api::{
        InstanceItem, List, NamespaceItem, NodeItem, SecretItem, TokenView, VolumeItem,
        WorkloadItem,
    },
    resource::named_kind::NamedKind,
};

/// Longest wait for the cluster: the user waits for the completion.
const PATIENCE: Duration = Duration::from_secs(1);

/// The kind of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CompletedNames {
    Of(NamedKind),
    /// Workloads and instances, for logs.
    WorkloadsAndInstances,
    /// Words for kinds.
    Kinds(&'static [NamedKind]),
    /// Words for kinds, in the plural.
    PluralKinds(&'static [NamedKind]),
    /// Words for kinds, and workloads.
    KindsAndWorkloads(&'static [NamedKind]),
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
    /// The positional words before, which are not proposed again.
    written: Vec<String>,
    namespace: Option<String>,
    global: GlobalArgs,
}

pub(crate) async fn run(console: &Console, arguments: &CompleteArgs) -> Result<(), CliError> {
    let wanted = completion_request(&arguments.words);
    let Some(names) = wanted.names else {
        return Ok(());
    };
    let mut found = match names {
        CompletedNames::Contexts => context::names(),
        CompletedNames::Kinds(kinds) => singulars(kinds),
        CompletedNames::PluralKinds(kinds) => {
            let plurals = kinds.iter().map(|kind| kind.plural().to_owned());
            plurals.collect()
        }
        names => {
            let options = ClientOptions {
                connect_timeout: PATIENCE,
                request_timeout: PATIENCE,
                retry_for: Duration::ZERO,
                unreachable_for: Duration::ZERO,
                ..ClientOptions::default()
            };
            let Ok(client) = connect::client_with(&wanted.global, options) else {
                return print(console, &kinds_of(names));
            };
            let namespace = wanted
                .namespace
                .unwrap_or_else(|| connect::default_namespace(&wanted.global));
            let session = CliSession { client, console };
            let found = live(&session.client, names, &namespace);
            let live = match tokio::time::timeout(2 * PATIENCE, found).await {
                Ok(Ok(found)) => found,
                _ => Vec::new(),
            };
            [kinds_of(names), live].concat()
        }
    };
    found.retain(|name| !wanted.written.contains(name));
    print(console, &found)
}

fn print(console: &Console, names: &[String]) -> Result<(), CliError> {
    let harmless = |name: &&String| !name.contains(char::is_control);
    names
        .iter()
        .filter(harmless)
        .try_for_each(|name| console.line(name))
}

fn singulars(kinds: &[NamedKind]) -> Vec<String> {
    let singulars = kinds.iter().map(|kind| kind.singular().to_owned());
    singulars.collect()
}

/// The words for kinds that come before live names.
fn kinds_of(names: CompletedNames) -> Vec<String> {
    match names {
        CompletedNames::KindsAndWorkloads(kinds) => singulars(kinds),
        _ => Vec::new(),
    }
}

async fn live(
    client: &Client,
    names: CompletedNames,
    namespace: &str,
) -> Result<Vec<String>, ClientError> {
    match names {
        CompletedNames::Of(NamedKind::Workload) | CompletedNames::KindsAndWorkloads(_) => {
            list::<WorkloadItem>(client, namespace).await
        }
        CompletedNames::Of(NamedKind::Instance) => list::<InstanceItem>(client, namespace).await,
        CompletedNames::Of(NamedKind::Node) => list::<NodeItem>(client, namespace).await,
        CompletedNames::Of(NamedKind::Namespace) => list::<NamespaceItem>(client, namespace).await,
        CompletedNames::Of(NamedKind::Volume) => list::<VolumeItem>(client, namespace).await,
        CompletedNames::Of(NamedKind::Secret) => list::<SecretItem>(client, namespace).await,
        CompletedNames::Of(NamedKind::Token) => list::<TokenView>(client, namespace).await,
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
        CompletedNames::Of(NamedKind::Event)
        | CompletedNames::Contexts
        | CompletedNames::Kinds(_)
        | CompletedNames::PluralKinds(_) => Ok(Vec::new()),
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
                    "namespace" => Some(CompletedNames::Of(NamedKind::Namespace)),
                    "context" => Some(CompletedNames::Contexts),
                    "without" if path == ["ca", "migrate"] => {
                        Some(CompletedNames::Of(NamedKind::Node))
                    }
                    "node" if matches!(path.as_slice(), ["run" | "new"]) => {
                        Some(CompletedNames::Of(NamedKind::Node))
                    }
                    "to" if path == ["volume", "move"] => Some(CompletedNames::Of(NamedKind::Node)),
                    "on" if path == ["volume", "forget"] => {
                        Some(CompletedNames::Of(NamedKind::Node))
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
    wanted.written = places.into_iter().map(str::to_owned).collect();
    wanted
}

fn option<'a>(command: &'a clap::Command, name: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|argument| {
        let long = argument.get_long().map(|long| format!("--{long}"));
        let short = argument.get_short().map(|short| format!("-{short}"));
        long.as_deref() == Some(name) || short.as_deref() == Some(name)
    })
}

const TOP: &[NamedKind] = &[NamedKind::Node, NamedKind::Instance];

fn names_at(path: &[&str], places: &[&str]) -> Option<CompletedNames> {
    let nodes = CompletedNames::Of(NamedKind::Node);
    let workloads = CompletedNames::Of(NamedKind::Workload);
    let kind = places.first().and_then(|word| NamedKind::of_word(word));
    match (path, places) {
        (["get"], []) => Some(CompletedNames::PluralKinds(LISTED.kinds)),
        (["top"], []) => Some(CompletedNames::PluralKinds(TOP)),
        (["delete"], []) => Some(CompletedNames::Kinds(DELETED.kinds)),
        (["wait"], []) => Some(CompletedNames::Kinds(AWAITED.kinds)),
        (["describe"], []) => Some(CompletedNames::KindsAndWorkloads(DESCRIBED.kinds)),
        (["why"], []) => Some(CompletedNames::KindsAndWorkloads(EXPLAINED.kinds)),
        (["get" | "top" | "delete" | "wait" | "describe" | "why"], [_, ..]) => {
            kind.map(CompletedNames::Of)
        }
        (["secret", _], [_, ..]) => None,
        (["drain" | "label" | "taint"], [] | ["node" | "nodes"]) => Some(nodes),
        (["cordon" | "uncordon"], _) => Some(nodes),
        (["logs" | "exec" | "port-forward" | "events"], []) => {
            Some(CompletedNames::WorkloadsAndInstances)
        }
        (["export" | "edit"], []) => Some(workloads),
        (["history"], [] | ["workload"]) => Some(workloads),
        (["rollback" | "restart" | "scale"] | ["rollout" | "set", _], _) => Some(workloads),
        (["secret", "set" | "unset"], []) => Some(CompletedNames::Of(NamedKind::Secret)),
        (["registry", "logout"], []) => Some(CompletedNames::Logins),
        (["volume", "move" | "forget"], []) => Some(CompletedNames::Of(NamedKind::Volume)),
        (["ca", "rotate"], []) => Some(CompletedNames::Authorities),
        (["token", "revoke"], []) => Some(CompletedNames::Of(NamedKind::Token)),
        (["context", "use" | "remove"], []) => Some(CompletedNames::Contexts),
        (["cp"], []) => Some(CompletedNames::PlacesThere),
        // Only one side of a copy can be in a container.
        (["cp"], [first]) if !first.contains(':') => Some(CompletedNames::PlacesThere),
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
        let workloads = Some(CompletedNames::Of(NamedKind::Workload));
        let nodes = Some(CompletedNames::Of(NamedKind::Node));
        for (line, wanted) in [
            ("", None),
            ("get", Some(CompletedNames::PluralKinds(LISTED.kinds))),
            ("top", Some(CompletedNames::PluralKinds(TOP))),
            ("delete", Some(CompletedNames::Kinds(DELETED.kinds))),
            ("rm", Some(CompletedNames::Kinds(DELETED.kinds))),
            (
                "describe",
                Some(CompletedNames::KindsAndWorkloads(DESCRIBED.kinds)),
            ),
            (
                "why",
                Some(CompletedNames::KindsAndWorkloads(EXPLAINED.kinds)),
            ),
            ("why web", None),
            ("wait workload", workloads),
            ("restart web", workloads),
            ("rollout restart", workloads),
            ("cordon", nodes),
            ("uncordon a", nodes),
            ("label", nodes),
            ("label node a", None),
            ("get wl", workloads),
            ("get -o json workload", workloads),
            ("get -w workloads", workloads),
            ("get workloads web", workloads),
            (
                "why instance",
                Some(CompletedNames::Of(NamedKind::Instance)),
            ),
            ("describe node", nodes),
            ("get volume", Some(CompletedNames::Of(NamedKind::Volume))),
            ("delete volume", Some(CompletedNames::Of(NamedKind::Volume))),
            (
                "delete volume web/data",
                Some(CompletedNames::Of(NamedKind::Volume)),
            ),
            ("drain", nodes),
            ("volume move", Some(CompletedNames::Of(NamedKind::Volume))),
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
            ("get wl -n", Some(CompletedNames::Of(NamedKind::Namespace))),
            (
                "get wl --namespace",
                Some(CompletedNames::Of(NamedKind::Namespace)),
            ),
            ("rollback", workloads),
            ("rollback workload", workloads),
            ("rollout pause", workloads),
            ("rollout", None),
            ("scale --replicas 3", workloads),
            ("ca rotate", Some(CompletedNames::Authorities)),
            ("ca rotate etcd-client-ca", None),
            ("ca migrate --without", nodes),
            ("token revoke", Some(CompletedNames::Of(NamedKind::Token))),
            ("secret set", Some(CompletedNames::Of(NamedKind::Secret))),
            ("secret unset db", None),
            ("registry logout", Some(CompletedNames::Logins)),
            ("delete secret", Some(CompletedNames::Of(NamedKind::Secret))),
            ("context use", Some(CompletedNames::Contexts)),
            ("get wl --context", Some(CompletedNames::Contexts)),
            ("create namespace", None),
        ] {
            assert_eq!(names(line), wanted, "{line}");
        }
        let words = ["get", "wl", "web", "-n", "shop", "--context=home"].map(str::to_owned);
        let wanted = completion_request(&words);
        assert_eq!(wanted.written, ["wl", "web"]);
        assert_eq!(wanted.namespace.as_deref(), Some("shop"));
        assert_eq!(wanted.global.context.as_deref(), Some("home"));
    }
}
