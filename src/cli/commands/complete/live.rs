//! Names of the cluster that continue a word, with what stands before them: `KIND/` and
//! `NAMESPACE/`.

use super::{CompletedObjects, CompletedWords, ContainerKind, KindWords};
use crate::commands::reading::get::{JobItem, ListableItem};
use kat_client::{Client, ClientError, RequestPath};
use kat_types::{
    api::{
        InstanceItem, List, NamespaceItem, NodeItem, RouteItem, RunItem, SecretItem, TokenView,
        VirtualAddressItem, VolumeItem, WorkloadItem,
    },
    resource::named_kind::NamedKind,
};

/// The word that is being written, and the namespace in which it is looked up.
#[derive(Debug, Clone)]
pub(super) struct NamePlace<'a> {
    pub(super) current: &'a str,
    pub(super) namespace: String,
    /// `--namespace` is on the line, which no reference may contradict.
    pub(super) is_namespace_written: bool,
}

/// The parts of a reference that are written.
#[derive(Debug, PartialEq, Eq)]
struct WrittenReference<'a> {
    /// The kinds that the name may have.
    kinds: Vec<NamedKind>,
    /// `KIND/`, or nothing.
    kind: &'a str,
    /// What stands after it.
    rest: &'a str,
}

impl<'a> WrittenReference<'a> {
    fn of(objects: CompletedObjects, current: &'a str) -> Self {
        if let Some((word, rest)) = current.split_once('/')
            && let Some(kind) = NamedKind::of_word(word)
            && objects.kinds.contains(&kind)
        {
            return Self {
                kinds: vec![kind],
                kind: current.get(..=word.len()).unwrap_or_default(),
                rest,
            };
        }
        let bare = objects.bare.iter();
        Self {
            kinds: bare
                .filter(|kind| objects.kinds.contains(kind))
                .copied()
                .collect(),
            kind: "",
            rest: current,
        }
    }
}

/// What is proposed without a cluster: words for kinds.
pub(super) fn local(wanted: &CompletedWords, current: &str) -> Vec<String> {
    let CompletedWords::Objects(objects) = wanted else {
        return Vec::new();
    };
    if objects.words == KindWords::Known {
        return Vec::new();
    }
    let mut words = Vec::new();
    for kind in objects.kinds {
        match objects.words {
            KindWords::PluralOf(kinds) if kinds.contains(kind) => {
                words.push(kind.plural().to_owned());
            }
            KindWords::None | KindWords::Known | KindWords::PluralOf(_) => {}
            KindWords::Singular => words.push(kind.singular().to_owned()),
            KindWords::Plural => words.push(kind.plural().to_owned()),
        }
        // The two ways to write a kind are not both listed before anything is written.
        if !current.is_empty() {
            words.push(format!("{}/", kind.singular()));
        }
    }
    words
}

/// Names that continue the word.
pub(super) async fn names(
    client: &Client,
    wanted: &CompletedWords,
    place: &NamePlace<'_>,
) -> Vec<String> {
    let found = match wanted {
        CompletedWords::Objects(objects) => {
            return references(client, *objects, place).await;
        }
        CompletedWords::Logins => client.registry_logins(&place.namespace).await.map(|list| {
            let logins = list.items.into_iter();
            logins.map(|login| login.registry).collect()
        }),
        CompletedWords::Registries => client.registries().await.map(|list| {
            let registries = list.items.into_iter();
            registries.map(|registry| registry.host).collect()
        }),
        CompletedWords::Authorities => client.authorities().await.map(|list| {
            let authorities = list.items.into_iter();
            authorities.map(|one| one.name).collect()
        }),
        CompletedWords::Configurations => client.configuration_history().await.map(|history| {
            let revisions = history.revisions.iter();
            revisions.map(|one| one.number.to_string()).collect()
        }),
        CompletedWords::Containers { of, kinds } => containers(client, of, kinds, place).await,
        CompletedWords::SecretKeys { of, suffix } => {
            let (namespace, name) = qualified(of, place);
            secret_keys(client, namespace, name, suffix).await
        }
        CompletedWords::Contexts
        | CompletedWords::Settings { .. }
        | CompletedWords::ExplainedPaths
        | CompletedWords::Quotas => Ok(Vec::new()),
    };
    found.unwrap_or_default()
}

/// Namespace and name of a written reference; a word for a kind before them counts for nothing.
fn qualified<'a>(written: &'a str, place: &'a NamePlace<'_>) -> (&'a str, &'a str) {
    let after_kind = match written.split_once('/') {
        Some((word, rest)) if NamedKind::of_word(word).is_some() => rest,
        _ => written,
    };
    after_kind
        .split_once('/')
        .unwrap_or((&place.namespace, after_kind))
}

async fn secret_keys(
    client: &Client,
    namespace: &str,
    name: &str,
    suffix: &str,
) -> Result<Vec<String>, ClientError> {
    let secret: SecretItem = client.get(RequestPath::secret(namespace, name)?).await?;
    let keys = secret.spec.keys.iter();
    Ok(keys.map(|key| format!("{}{suffix}", key.name)).collect())
}

/// The containers of a workload, or of that of an instance.
async fn containers(
    client: &Client,
    of: &str,
    kinds: &[ContainerKind],
    place: &NamePlace<'_>,
) -> Result<Vec<String>, ClientError> {
    let (namespace, name) = qualified(of, place);
    let workload = match client.workload(namespace, name).await {
        Err(error) if error.is_not_found() => {
            let instance = client.instance(namespace, name).await?;
            client
                .workload(namespace, &instance.status.workload)
                .await?
        }
        other => other?,
    };
    let spec = &workload.spec.workload;
    let mut names = Vec::new();
    for kind in kinds {
        let containers = match kind {
            ContainerKind::Init => &spec.init_containers,
            ContainerKind::Sidecar => &spec.sidecars,
        };
        names.extend(containers.iter().filter_map(|one| one.name.clone()));
    }
    Ok(names)
}

/// References that continue the word.
async fn references(
    client: &Client,
    objects: CompletedObjects,
    place: &NamePlace<'_>,
) -> Vec<String> {
    let written = WrittenReference::of(objects, place.current);
    // The path in a container is no part of the reference.
    if !objects.suffix.is_empty() && written.rest.contains([':', '=']) {
        return Vec::new();
    }
    let WrittenReference {
        kind: before, rest, ..
    } = written;
    let mut found = Vec::new();
    for kind in &written.kinds {
        // Each place where the names may come from, with what stands before them there.
        let mut sources: Vec<(String, &str)> = Vec::new();
        match (kind.is_namespaced(), rest.split_once('/')) {
            (true, Some((namespace, _))) if !place.is_namespace_written => {
                sources.push((format!("{namespace}/"), namespace));
                // The first part may be the workload of a volume as well.
                if *kind == NamedKind::Volume {
                    sources.push((String::new(), &place.namespace));
                }
            }
            (true, Some(_)) if *kind != NamedKind::Volume => {}
            (false, Some(_)) => {}
            _ => sources.push((String::new(), &place.namespace)),
        }
        for (prefix, namespace) in sources {
            // A caller may be allowed to read one kind and not another.
            let names = listed(client, *kind, namespace).await.unwrap_or_default();
            let names = names.iter();
            found.extend(names.map(|name| format!("{before}{prefix}{name}{}", objects.suffix)));
        }
    }
    let namespaced = written.kinds.iter().any(|kind| kind.is_namespaced());
    let fits = found.iter().any(|name| name.starts_with(place.current));
    let is_first = !rest.contains('/');
    // Namespaces follow what is written of them, and a kind of which there is none here.
    let wants = !rest.is_empty() || (!before.is_empty() && !fits);
    if namespaced && is_first && wants && !place.is_namespace_written {
        let spaces = listed(client, NamedKind::Namespace, "").await;
        let spaces = spaces.unwrap_or_default();
        found.extend(spaces.iter().map(|name| format!("{before}{name}/")));
    }
    found
}

async fn listed(
    client: &Client,
    kind: NamedKind,
    namespace: &str,
) -> Result<Vec<String>, ClientError> {
    match kind {
        NamedKind::Workload => list::<WorkloadItem>(client, namespace).await,
        NamedKind::Instance => list::<InstanceItem>(client, namespace).await,
        NamedKind::Node => list::<NodeItem>(client, namespace).await,
        NamedKind::Namespace => list::<NamespaceItem>(client, namespace).await,
        NamedKind::Volume => list::<VolumeItem>(client, namespace).await,
        NamedKind::Route => list::<RouteItem>(client, namespace).await,
        NamedKind::Job => list::<JobItem>(client, namespace).await,
        NamedKind::Run => list::<RunItem>(client, namespace).await,
        NamedKind::Address => list::<VirtualAddressItem>(client, namespace).await,
        NamedKind::Secret => list::<SecretItem>(client, namespace).await,
        NamedKind::Token => list::<TokenView>(client, namespace).await,
        // Nobody types the id of an event.
        NamedKind::Event => Ok(Vec::new()),
    }
}

async fn list<T: ListableItem>(
    client: &Client,
    namespace: &str,
) -> Result<Vec<String>, ClientError> {
    let namespace = T::NAMESPACED.then_some(namespace);
    let list: List<T> = client.get(T::list(namespace)?).await?;
    let listed = list.items.iter().filter(|item| item.is_listed());
    let mut names: Vec<String> = listed.map(|item| item.key().1).collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{commands::reading::why::EXPLAINED, references::NODES};

    #[test]
    fn a_word_for_a_kind_before_a_slash_is_the_kind_where_the_command_takes_it() {
        let objects = CompletedObjects::of(EXPLAINED);
        let parts = |current| {
            let WrittenReference { kinds, kind, rest } = WrittenReference::of(objects, current);
            (kinds, kind.to_owned(), rest.to_owned())
        };
        // A bare name is never that of a route, which is `HOST/PATH`.
        let all = vec![NamedKind::Workload, NamedKind::Instance, NamedKind::Node];
        assert_eq!(parts(""), (all.clone(), String::new(), String::new()));
        assert_eq!(parts("we"), (all.clone(), String::new(), "we".to_owned()));
        let workload = vec![NamedKind::Workload];
        let split = |rest: &str| (workload.clone(), "wl/".to_owned(), rest.to_owned());
        assert_eq!(parts("wl/"), split(""));
        assert_eq!(parts("wl/shop/we"), split("shop/we"));
        // `why` takes no secrets, and `shop` is a namespace.
        for other in ["secret/db", "shop/we"] {
            assert_eq!(parts(other), (all.clone(), String::new(), other.to_owned()));
        }
    }

    #[test]
    fn a_kind_is_proposed_with_its_slash_once_something_is_written() {
        let why = CompletedObjects::of(EXPLAINED).with_words(KindWords::Singular);
        let why = CompletedWords::Objects(why);
        assert_eq!(
            local(&why, ""),
            ["workload", "instance", "node", "route", "address"]
        );
        let words = local(&why, "w");
        assert!(words.contains(&"workload/".to_owned()), "{words:?}");
        let drain = CompletedWords::Objects(CompletedObjects::of(NODES));
        assert_eq!(local(&drain, ""), Vec::<String>::new());
        assert_eq!(local(&drain, "n"), ["node/"]);
    }
}
