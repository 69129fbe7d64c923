//! Words for completion scripts: what the end of a line needs, and the names of the cluster that
//! fit there.
//!
//! A script calls `katcall __complete --current=WORD -- WORDS`, with the words before the one that
//! is being written. A word that ends in `/`, `.`, `=` or `:/` is continued without a space.
//!
//! All errors are silent, since the user is typing.

mod live;

use std::time::Duration;

use crate::{
    args,
    args::{CompleteArgs, GlobalArgs},
    commands::{
        changing::{delete::DELETED, quota::NAMESPACE_SETTINGS, wait_for::AWAITED},
        cluster::config,
        reading::{
            describe::DESCRIBED,
            explain,
            get::{LISTED, WITH_EVENTS},
            top::SHOWN,
            why::EXPLAINED,
        },
    },
    connect,
    console::Console,
    context,
    errors::CliError,
    references::{
        BareName, CANCELLED, CommandKinds, INSTANCES, NODES, SECRETS, TOKENS, VOLUMES, WORKLOADS,
    },
};
use kat_client::ClientOptions;
use kat_types::resource::{QuotaResource, named_kind::NamedKind};

/// Longest wait for the cluster: the user waits for the completion.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most words that are printed.
const MOST_WORDS: usize = 2000;

/// Objects that a command takes as `[KIND/][NAMESPACE/]NAME`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CompletedObjects {
    /// The kinds that may stand before the slash.
    kinds: &'static [NamedKind],
    /// The kinds of bare names.
    bare: &'static [NamedKind],
    /// Which words for kinds are proposed before names.
    words: KindWords,
    /// What follows each name, such as `:/` for a path in a container.
    suffix: &'static str,
}

/// The words for kinds that may stand alone before names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KindWords {
    /// None, but a kind may stand with its slash before a name.
    None,
    /// None, and no kind before a slash: the kind is known.
    Known,
    Singular,
    Plural,
    PluralOf(&'static [NamedKind]),
}

/// `top` has no list of workloads.
const TOP: KindWords = KindWords::PluralOf(&[NamedKind::Node, NamedKind::Instance]);

/// The kind of words.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CompletedWords {
    Objects(CompletedObjects),
    Contexts,
    /// Registries with credentials in a namespace.
    Logins,
    /// Registries with settings.
    Registries,
    /// Certificate authorities of the cluster.
    Authorities,
    /// Init containers and sidecars of a workload, or of that of an instance.
    Containers {
        of: String,
        kinds: &'static [ContainerKind],
    },
    /// Keys of a secret, each with this after it.
    SecretKeys {
        of: String,
        suffix: &'static str,
    },
    /// Numbers of the kept configurations.
    Configurations,
    /// Settings of the cluster; with `changeable` only those that can be changed, each with the
    /// suffix.
    Settings {
        changeable: bool,
        suffix: &'static str,
    },
    /// Fields of files, and reasons.
    ExplainedPaths,
    /// Quotas of namespaces.
    Quotas,
}

/// The kinds of containers beside the main one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContainerKind {
    Init,
    Sidecar,
}

/// What the end of the line needs.
#[derive(Debug, Default)]
struct CompletionRequest {
    wanted: Option<CompletedWords>,
    /// The word that is being written, as far as it is.
    current: String,
    /// The positional words before, which are not proposed again.
    written: Vec<String>,
    namespace: Option<String>,
    global: GlobalArgs,
}

impl CompletedObjects {
    /// Of a command whose bare names are of one kind, or of those kinds of its own that people run
    /// programs with.
    fn of(command: CommandKinds) -> Self {
        Self {
            kinds: command.kinds,
            bare: match command.bare {
                BareName::Is(_) => command.kinds,
                BareName::Open => &[NamedKind::Workload, NamedKind::Instance, NamedKind::Node],
                BareName::Refused => &[],
            },
            words: KindWords::None,
            suffix: "",
        }
    }

    /// Of a command for running programs.
    const fn of_instances() -> Self {
        Self {
            kinds: INSTANCES.kinds,
            bare: INSTANCES.kinds,
            words: KindWords::None,
            suffix: "",
        }
    }

    fn with_words(self, words: KindWords) -> Self {
        Self { words, ..self }
    }

    fn with_suffix(self, suffix: &'static str) -> Self {
        Self { suffix, ..self }
    }
}

pub(crate) async fn run(console: &Console, arguments: &CompleteArgs) -> Result<(), CliError> {
    let current = arguments.current.clone().unwrap_or_default();
    let request = completion_request(&arguments.words, current);
    let Some(wanted) = &request.wanted else {
        return Ok(());
    };
    let mut found = match wanted {
        CompletedWords::Contexts => context::names(),
        CompletedWords::Settings { changeable, suffix } => config::setting_names(*changeable)
            .map(|name| format!("{name}{suffix}"))
            .collect(),
        CompletedWords::ExplainedPaths => explain::next_paths(&request.current),
        CompletedWords::Quotas => {
            let quotas = QuotaResource::ALL.into_iter().map(QuotaResource::word);
            let words = quotas.chain(NAMESPACE_SETTINGS);
            words.map(|word| format!("{word}=")).collect()
        }
        wanted => {
            let local = live::local(wanted, &request.current);
            [local, names(wanted, &request).await].concat()
        }
    };
    // A word that only begins something is no proposal for itself.
    let is_new = |name: &String| *name != request.current || !name.ends_with(['/', '.', '=']);
    found.retain(|name| {
        name.starts_with(&request.current) && is_new(name) && !request.written.contains(name)
    });
    let harmless = |name: &&String| !name.contains(char::is_control);
    let found = found.iter().filter(harmless).take(MOST_WORDS);
    found.into_iter().try_for_each(|name| console.line(name))
}

/// Names of the cluster; none if it does not answer in time.
async fn names(wanted: &CompletedWords, request: &CompletionRequest) -> Vec<String> {
    let options = ClientOptions {
        connect_timeout: PATIENCE,
        request_timeout: PATIENCE,
        retry_for: Duration::ZERO,
        unreachable_for: Duration::ZERO,
        ..ClientOptions::default()
    };
    let Ok(client) = connect::client_with(&request.global, options) else {
        return Vec::new();
    };
    let place = live::NamePlace {
        current: &request.current,
        namespace: match &request.namespace {
            Some(namespace) => namespace.clone(),
            None => connect::default_namespace(&request.global),
        },
        is_namespace_written: request.namespace.is_some(),
    };
    let found = live::names(&client, wanted, &place);
    tokio::time::timeout(2 * PATIENCE, found)
        .await
        .unwrap_or_default()
}

/// The words of a line as they were written: bash splits them at `=`. `None` if the word that is
/// being written is the value of a word that takes none from the cluster, such as `mtu=`.
fn joined(words: &[String]) -> Option<Vec<String>> {
    let mut joined: Vec<String> = Vec::new();
    let mut is_open = false;
    for word in words {
        match joined.last_mut() {
            Some(last) if word == "=" && !is_open => {
                last.push('=');
                is_open = true;
            }
            Some(last) if is_open => {
                last.push_str(word);
                is_open = false;
            }
            _ => joined.push(word.clone()),
        }
    }
    if is_open {
        // `--namespace=` is as `--namespace`, whose value is the next word.
        let last = joined.last_mut()?;
        if !last.starts_with("--") {
            return None;
        }
        last.pop();
    }
    Some(joined)
}

/// Determines what the next word of a line is; `words` are the words before it, without the
/// program's name.
fn completion_request(words: &[String], current: String) -> CompletionRequest {
    let mut command = args::command();
    command.build();
    let mut here = &command;
    let mut request = CompletionRequest {
        current,
        ..CompletionRequest::default()
    };
    let Some(words) = joined(words) else {
        return request;
    };
    let mut path: Vec<&str> = Vec::new();
    let mut places: Vec<&str> = Vec::new();
    // The option whose value is the word that is being written.
    let mut open: Option<&str> = None;
    let mut words = words.iter().map(String::as_str);
    while let Some(word) = words.next() {
        // What follows is the command of a container.
        if word == "--" {
            return request;
        }
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
                open = Some(id);
                break;
            };
            match id {
                "namespace" => request.namespace = Some(value.to_owned()),
                "context" => request.global.context = Some(value.to_owned()),
                "connection" => request.global.connection = Some(value.into()),
                _ => {}
            }
        } else if let Some(next) = here.find_subcommand(word).filter(|_| places.is_empty()) {
            path.push(next.get_name());
            here = next;
        } else {
            places.push(word);
        }
    }
    request.wanted = match open {
        Some(id) => value_of(id, &path, &places),
        None => {
            request.written = places.iter().map(|&place| place.to_owned()).collect();
            words_at(&path, &places)
        }
    };
    request
}

fn option<'a>(command: &'a clap::Command, name: &str) -> Option<&'a clap::Arg> {
    command.get_arguments().find(|argument| {
        let long = argument.get_long().map(|long| format!("--{long}"));
        let short = argument.get_short().map(|short| format!("-{short}"));
        long.as_deref() == Some(name) || short.as_deref() == Some(name)
    })
}

/// The value of an option.
fn value_of(id: &str, path: &[&str], places: &[&str]) -> Option<CompletedWords> {
    let values = |command| {
        let objects = CompletedObjects::of(command).with_words(KindWords::Known);
        Some(CompletedWords::Objects(objects))
    };
    let containers = |kinds| {
        let of = places.first().map(|&name| name.to_owned());
        of.map(|of| CompletedWords::Containers { of, kinds })
    };
    match (path, id) {
        (_, "namespace") => values(only(NamedKind::Namespace)),
        (_, "context") => Some(CompletedWords::Contexts),
        (["ca", "migrate"], "without")
        | (["run" | "new"], "node")
        | (["volume", "move"], "to")
        | (["volume", "forget"], "on") => values(NODES),
        (["logs"], "container") => containers(&[ContainerKind::Init, ContainerKind::Sidecar]),
        (["exec"], "container") => containers(&[ContainerKind::Sidecar]),
        _ => None,
    }
}

/// A positional word after others.
fn words_at(path: &[&str], places: &[&str]) -> Option<CompletedWords> {
    let objects = |command| Some(CompletedWords::Objects(CompletedObjects::of(command)));
    let with_words = |command, words| {
        let objects = CompletedObjects::of(command).with_words(words);
        Some(CompletedWords::Objects(objects))
    };
    let instances = |suffix| {
        let objects = CompletedObjects::of_instances().with_suffix(suffix);
        Some(CompletedWords::Objects(objects))
    };
    let is_word = |word: &&str| !word.contains('/') && NamedKind::of_word(word).is_some();
    let kind = places.first().filter(|word| is_word(word));
    let kind = kind.and_then(|word| NamedKind::of_word(word));
    match (path, places) {
        (["get"], []) => with_words(LISTED, KindWords::Plural),
        (["top"], []) => with_words(SHOWN, TOP),
        (["delete"], []) => with_words(DELETED, KindWords::Singular),
        (["wait"], []) => with_words(AWAITED, KindWords::Singular),
        (["describe"], []) => with_words(DESCRIBED, KindWords::Singular),
        (["why"], []) => with_words(EXPLAINED, KindWords::Singular),
        // A kind and names of it, or references.
        (["get" | "top" | "delete" | "wait" | "describe" | "why"], [_, ..]) => match (kind, path) {
            (Some(kind), _) => with_words(only(kind), KindWords::Known),
            (None, ["get"]) => objects(LISTED),
            (None, ["top"]) => objects(SHOWN),
            (None, ["delete"]) => objects(DELETED),
            (None, ["wait"]) => objects(AWAITED),
            (None, ["describe"]) => objects(DESCRIBED),
            (None, _) => objects(EXPLAINED),
        },
        (["drain" | "label" | "taint" | "cordon" | "uncordon"], _) => objects(NODES),
        (["logs" | "exec" | "port-forward"], []) => instances(""),
        (["events"], []) => objects(WITH_EVENTS),
        (["export" | "edit"], []) | (["history"], [] | ["workload"]) => objects(WORKLOADS),
        (["rollback" | "restart" | "scale" | "stop" | "start"] | ["rollout", _], _) => {
            objects(WORKLOADS)
        }
        (["job", "run"], []) | (["job", "suspend" | "resume"], _) => objects(WORKLOADS),
        (["job", "cancel"], _) => objects(CANCELLED),
        (["set", "image"], _) => Some(CompletedWords::Objects(
            CompletedObjects::of(WORKLOADS).with_suffix("="),
        )),
        (["secret", "set" | "unset"], []) => objects(SECRETS),
        (["secret", "set"], [name, ..]) => Some(CompletedWords::SecretKeys {
            of: (*name).to_owned(),
            suffix: "=",
        }),
        (["secret", "unset"], [name, ..]) => Some(CompletedWords::SecretKeys {
            of: (*name).to_owned(),
            suffix: "",
        }),
        (["registry", "logout"], []) => Some(CompletedWords::Logins),
        (["registry", "set" | "unset" | "login"], []) => Some(CompletedWords::Registries),
        (["namespace", "set"], []) => with_words(only(NamedKind::Namespace), KindWords::Known),
        (["namespace", "set"], [_, ..]) => Some(CompletedWords::Quotas),
        (["volume", "move" | "forget"], []) => objects(VOLUMES),
        (["ca", "rotate"], []) => Some(CompletedWords::Authorities),
        (["token", "revoke"], _) => objects(TOKENS),
        (["config", "get"], _) => Some(CompletedWords::Settings {
            changeable: false,
            suffix: "",
        }),
        (["config", "set"], _) => Some(CompletedWords::Settings {
            changeable: true,
            suffix: "=",
        }),
        (["config", "unset"], _) => Some(CompletedWords::Settings {
            changeable: true,
            suffix: "",
        }),
        (["config", "rollback"], []) => Some(CompletedWords::Configurations),
        (["context", "use" | "remove"], []) => Some(CompletedWords::Contexts),
        (["explain"], []) => Some(CompletedWords::ExplainedPaths),
        // Only one side of a copy can be in a container.
        (["cp"], []) => instances(":/"),
        (["cp"], [first]) if !first.contains(':') => instances(":/"),
        _ => None,
    }
}

/// A kind that a word before the names says.
fn only(kind: NamedKind) -> CommandKinds {
    CommandKinds::only(match kind {
        NamedKind::Workload => &[NamedKind::Workload],
        NamedKind::Instance => &[NamedKind::Instance],
        NamedKind::Node => &[NamedKind::Node],
        NamedKind::Namespace => &[NamedKind::Namespace],
        NamedKind::Volume => &[NamedKind::Volume],
        NamedKind::Route => &[NamedKind::Route],
        NamedKind::Job => &[NamedKind::Job],
        NamedKind::Run => &[NamedKind::Run],
        NamedKind::Address => &[NamedKind::Address],
        NamedKind::Secret => &[NamedKind::Secret],
        NamedKind::Event => &[NamedKind::Event],
        NamedKind::Token => &[NamedKind::Token],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(line: &str) -> Option<CompletedWords> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        completion_request(&words, String::new()).wanted
    }

    #[test]
    fn the_line_says_what_is_named_next() {
        let objects = |command| Some(CompletedWords::Objects(CompletedObjects::of(command)));
        let with_words = |command, words| {
            let objects = CompletedObjects::of(command).with_words(words);
            Some(CompletedWords::Objects(objects))
        };
        let of = |kind| with_words(only(kind), KindWords::Known);
        let known_workloads = of(NamedKind::Workload);
        let known_nodes = of(NamedKind::Node);
        let instances = Some(CompletedWords::Objects(CompletedObjects::of_instances()));
        let places = Some(CompletedWords::Objects(
            CompletedObjects::of_instances().with_suffix(":/"),
        ));
        let workloads = objects(WORKLOADS);
        let nodes = objects(NODES);
        let spaces = of(NamedKind::Namespace);
        for (line, expected) in [
            ("", None),
            ("get", with_words(LISTED, KindWords::Plural)),
            ("top", with_words(SHOWN, TOP)),
            ("delete", with_words(DELETED, KindWords::Singular)),
            ("rm", with_words(DELETED, KindWords::Singular)),
            ("describe", with_words(DESCRIBED, KindWords::Singular)),
            ("why", with_words(EXPLAINED, KindWords::Singular)),
            ("why web", objects(EXPLAINED)),
            ("delete workload/web", objects(DELETED)),
            ("wait workload", known_workloads.clone()),
            ("restart web", workloads.clone()),
            ("rollout restart", workloads.clone()),
            ("cordon", nodes.clone()),
            ("uncordon a", nodes.clone()),
            ("label", nodes.clone()),
            ("label node a", nodes.clone()),
            ("taint a", nodes.clone()),
            ("get wl", known_workloads.clone()),
            ("get -o json workload", known_workloads.clone()),
            ("get -w workloads", known_workloads.clone()),
            ("get workloads web", known_workloads.clone()),
            ("why instance", of(NamedKind::Instance)),
            ("describe node", known_nodes.clone()),
            ("get volume", of(NamedKind::Volume)),
            ("delete volume", of(NamedKind::Volume)),
            ("delete volume web/data", of(NamedKind::Volume)),
            ("drain", nodes.clone()),
            ("drain a", nodes.clone()),
            ("volume move", objects(VOLUMES)),
            ("volume move web/data --to", known_nodes.clone()),
            ("volume forget web/data --on", known_nodes.clone()),
            ("label node", nodes.clone()),
            ("logs", instances.clone()),
            ("exec -it", instances.clone()),
            ("exec web --", None),
            ("exec web -- ls", None),
            ("events", objects(WITH_EVENTS)),
            ("cp", places.clone()),
            ("cp ./x", places),
            ("cp web:/x", None),
            ("cp ./x ./y", None),
            ("logs -f --tail 5", instances),
            ("logs --tail", None),
            ("get wl -n", spaces.clone()),
            ("get wl --namespace", spaces.clone()),
            ("get wl --namespace =", spaces),
            ("rollback", workloads.clone()),
            ("rollback workload", workloads.clone()),
            ("rollout pause", workloads.clone()),
            ("rollout", None),
            ("scale --replicas 3", workloads.clone()),
            ("stop", workloads.clone()),
            ("start web", workloads),
            ("job run", objects(WORKLOADS)),
            ("job run backup --", None),
            ("job suspend a", objects(WORKLOADS)),
            ("job cancel", objects(CANCELLED)),
            ("ca rotate", Some(CompletedWords::Authorities)),
            ("ca rotate etcd-client-ca", None),
            ("ca migrate --without", known_nodes.clone()),
            ("run nginx --on", known_nodes),
            ("token revoke", objects(TOKENS)),
            ("token revoke abc", objects(TOKENS)),
            ("secret set", objects(SECRETS)),
            ("registry logout", Some(CompletedWords::Logins)),
            ("registry set", Some(CompletedWords::Registries)),
            ("namespace set shop", Some(CompletedWords::Quotas)),
            ("delete secret", of(NamedKind::Secret)),
            ("context use", Some(CompletedWords::Contexts)),
            ("get wl --context", Some(CompletedWords::Contexts)),
            ("create namespace", None),
            ("explain", Some(CompletedWords::ExplainedPaths)),
            ("explain workload", None),
            ("explain --search", None),
            ("config rollback", Some(CompletedWords::Configurations)),
        ] {
            assert_eq!(wanted(line), expected, "{line}");
        }
        let words = ["get", "wl", "web", "-n", "shop", "--context=home"].map(str::to_owned);
        let request = completion_request(&words, "d".to_owned());
        assert_eq!(request.current, "d");
        assert_eq!(request.written, ["wl", "web"]);
        assert_eq!(request.namespace.as_deref(), Some("shop"));
        assert_eq!(request.global.context.as_deref(), Some("home"));
    }

    #[test]
    fn settings_and_keys_that_get_a_value_end_with_its_sign() {
        let settings = |changeable, suffix| Some(CompletedWords::Settings { changeable, suffix });
        assert_eq!(wanted("config get"), settings(false, ""));
        assert_eq!(wanted("config get mtu"), settings(false, ""));
        assert_eq!(wanted("config set"), settings(true, "="));
        assert_eq!(wanted("config unset --dry-run"), settings(true, ""));
        // bash splits at the sign, and gives the value as a word of its own.
        assert_eq!(wanted("config set mtu ="), None);
        assert_eq!(wanted("config set mtu = 1400"), settings(true, "="));
        let keys = |suffix| {
            let of = "db".to_owned();
            Some(CompletedWords::SecretKeys { of, suffix })
        };
        assert_eq!(wanted("secret set db"), keys("="));
        assert_eq!(wanted("secret unset db USER"), keys(""));
    }

    #[test]
    fn containers_are_those_of_what_is_named_before() {
        let containers = |kinds| {
            let of = "shop/web".to_owned();
            Some(CompletedWords::Containers { of, kinds })
        };
        assert_eq!(
            wanted("logs shop/web -c"),
            containers(&[ContainerKind::Init, ContainerKind::Sidecar])
        );
        assert_eq!(
            wanted("exec -it shop/web --container ="),
            containers(&[ContainerKind::Sidecar])
        );
        assert_eq!(wanted("exec -c"), None);
    }

    /// Every command that takes a reference to an object completes it.
    #[test]
    fn every_argument_for_an_object_is_completed() {
        let mut command = args::command();
        command.build();
        let mut open = vec![(Vec::<String>::new(), &command)];
        let mut count = 0;
        while let Some((path, here)) = open.pop() {
            for next in here.get_subcommands() {
                let mut path = path.clone();
                path.push(next.get_name().to_owned());
                open.push((path, next));
            }
            let first = here.get_positionals().next();
            let names = first.and_then(|first| first.get_value_names());
            let Some(name) = names.and_then(|names| names.first()) else {
                continue;
            };
            let objects = [
                "NAME", "WORKLOAD", "NODE", "VOLUME", "KIND", "KEY", "NUMBER",
            ];
            let is_object = objects.iter().any(|word| name.as_str().contains(word));
            // The names of new objects, and local files.
            let is_new = ["new", "run", "create"]
                .iter()
                .any(|new| path.iter().any(|part| part == new))
                || path.starts_with(&["context".to_owned(), "add".to_owned()]);
            if is_object && !is_new {
                count += 1;
                assert!(wanted(&path.join(" ")).is_some(), "{path:?} {name}");
            }
        }
        assert!(count > 25, "{count}");
    }
}
