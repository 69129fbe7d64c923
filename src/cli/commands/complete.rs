//! Live names for completion scripts: which kind of name the end of a line needs, and the names of
//! that kind.
//!
//! All errors are silent, since the user is typing.

use std::time::Duration;

use clap::ValueEnum;

use super::get::Listed;
use crate::{
    Session, args,
    args::{Complete, Global, Kind},
    connect,
    console::Console,
    context,
    errors::CliError,
};
use kat_client::{Client, ClientError, Options};
use kat_types::api::{
    InstanceItem, List, NamespaceItem, NodeItem, SecretItem, TokenView, VolumeItem, WorkloadItem,
};

/// Longest wait for the cluster: the user waits for the completion.
const PATIENCE: Duration = Duration::from_secs(1);

/// The kind of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Names {
    Of(Kind),
    /// Workloads and instances, for logs.
    WorkloadsAndInstances,
    /// `INSTANCE:/`, with which a path in a container begins.
    PlacesThere,
    Contexts,
    /// Registries with credentials in a namespace.
    Logins,
}

/// What the end of the line needs.
#[derive(Debug, Default)]
struct Wanted {
    names: Option<Names>,
    namespace: Option<String>,
    global: Global,
}

pub(crate) async fn run(console: &Console, arguments: &Complete) -> Result<(), CliError> {
    let wanted = wanted(&arguments.words);
    let Some(names) = wanted.names else {
        return Ok(());
    };
    let found = match names {
        Names::Contexts => context::names(),
        names => {
            let options = Options {
                connect_timeout: PATIENCE,
                request_timeout: PATIENCE,
                retry_for: Duration::ZERO,
                unreachable_for: Duration::ZERO,
                ..Options::default()
            };
            let Ok(client) = connect::client_with(&wanted.global, options) else {
                return Ok(());
            };
            let namespace = wanted
                .namespace
                .or_else(|| std::env::var("KAT_NAMESPACE").ok())
                .unwrap_or_else(|| "default".to_owned());
            let session = Session { client, console };
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

async fn live(client: &Client, names: Names, namespace: &str) -> Result<Vec<String>, ClientError> {
    match names {
        Names::Of(Kind::Workloads) => list::<WorkloadItem>(client, namespace).await,
        Names::Of(Kind::Instances) => list::<InstanceItem>(client, namespace).await,
        Names::Of(Kind::Nodes) => list::<NodeItem>(client, namespace).await,
        Names::Of(Kind::Namespaces) => list::<NamespaceItem>(client, namespace).await,
        Names::Of(Kind::Volumes) => list::<VolumeItem>(client, namespace).await,
        Names::Of(Kind::Secrets) => list::<SecretItem>(client, namespace).await,
        Names::Of(Kind::Tokens) => list::<TokenView>(client, namespace).await,
        Names::WorkloadsAndInstances => {
            let mut found = list::<WorkloadItem>(client, namespace).await?;
            found.extend(list::<InstanceItem>(client, namespace).await?);
            Ok(found)
        }
        Names::Logins => {
            let logins = client.registry_logins(namespace).await?.items;
            Ok(logins.into_iter().map(|login| login.registry).collect())
        }
        Names::PlacesThere => {
            let found = list::<InstanceItem>(client, namespace).await?;
            Ok(found.iter().map(|name| format!("{name}:/")).collect())
        }
        Names::Of(Kind::Events) | Names::Contexts => Ok(Vec::new()),
    }
}

async fn list<T: Listed>(client: &Client, namespace: &str) -> Result<Vec<String>, ClientError> {
    let namespace = T::NAMESPACED.then_some(namespace);
    let list: List<T> = client.get(T::list(namespace)?).await?;
    let mut names: Vec<String> = list.items.iter().map(|item| item.key().1).collect();
    names.sort();
    Ok(names)
}

/// Determines what the next word of a line is; `words` are the words before it, without the
/// program's name.
fn wanted(words: &[String]) -> Wanted {
    let mut command = args::command();
    command.build();
    let mut here = &command;
    let mut wanted = Wanted::default();
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
                    "namespace" => Some(Names::Of(Kind::Namespaces)),
                    "context" => Some(Names::Contexts),
                    "to" if path == ["volume", "move"] => Some(Names::Of(Kind::Nodes)),
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

fn names_at(path: &[&str], places: &[&str]) -> Option<Names> {
    let nodes = Names::Of(Kind::Nodes);
    match (path, places) {
        (["secret", _], [_, ..]) => None,
        (["drain" | "uncordon"], []) => Some(nodes),
        (["logs" | "exec" | "port-forward" | "events"], []) => Some(Names::WorkloadsAndInstances),
        (["rollback" | "history" | "restart" | "scale"] | ["rollout" | "set", _], []) => {
            Some(Names::Of(Kind::Workloads))
        }
        (["secret", "set" | "unset"], []) => Some(Names::Of(Kind::Secrets)),
        (["registry", "logout"], []) => Some(Names::Logins),
        (["volume", "move"], []) => Some(Names::Of(Kind::Volumes)),
        (["token", "revoke"], []) => Some(Names::Of(Kind::Tokens)),
        (["context", "use" | "remove"], []) => Some(Names::Contexts),
        (["cp"], []) => Some(Names::PlacesThere),
        // Only one side of a copy can be in a container.
        (["cp"], [first]) if !first.contains(':') => Some(Names::PlacesThere),
        (["create" | "explain" | "completion"], _) => None,
        (_, [kind]) => Kind::from_str(kind, true).ok().map(Names::Of),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Option<Names> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        wanted(&words).names
    }

    #[test]
    fn the_line_says_what_is_named_next() {
        let workloads = Some(Names::Of(Kind::Workloads));
        let nodes = Some(Names::Of(Kind::Nodes));
        for (line, wanted) in [
            ("", None),
            ("get", None),
            ("get wl", workloads),
            ("get -o json workload", workloads),
            ("get -w workloads", workloads),
            ("get workloads web", None),
            ("why instance", Some(Names::Of(Kind::Instances))),
            ("describe node", nodes),
            ("get volume", Some(Names::Of(Kind::Volumes))),
            ("delete volume", Some(Names::Of(Kind::Volumes))),
            ("delete volume web/data", None),
            ("drain", nodes),
            ("volume move", Some(Names::Of(Kind::Volumes))),
            ("volume move web/data --to", nodes),
            ("label node", nodes),
            ("logs", Some(Names::WorkloadsAndInstances)),
            ("cp", Some(Names::PlacesThere)),
            ("cp ./x", Some(Names::PlacesThere)),
            ("cp web:/x", None),
            ("cp ./x ./y", None),
            ("logs -f --tail 5", Some(Names::WorkloadsAndInstances)),
            ("logs --tail", None),
            ("get wl -n", Some(Names::Of(Kind::Namespaces))),
            ("get wl --namespace", Some(Names::Of(Kind::Namespaces))),
            ("rollback", workloads),
            ("rollback workload", workloads),
            ("rollout pause", workloads),
            ("rollout", None),
            ("scale --replicas 3", workloads),
            ("token revoke", Some(Names::Of(Kind::Tokens))),
            ("secret set", Some(Names::Of(Kind::Secrets))),
            ("secret unset db", None),
            ("registry logout", Some(Names::Logins)),
            ("delete secret", Some(Names::Of(Kind::Secrets))),
            ("context use", Some(Names::Contexts)),
            ("get wl --context", Some(Names::Contexts)),
            ("create namespace", None),
        ] {
            assert_eq!(names(line), wanted, "{line}");
        }
        let words = ["get", "wl", "-n", "shop", "--context=home"].map(str::to_owned);
        let wanted = wanted(&words);
        assert_eq!(wanted.namespace.as_deref(), Some("shop"));
        assert_eq!(wanted.global.context.as_deref(), Some("home"));
    }
}
