//! The kind of an object that the command line names without one: the only kind that has an object
//! with the name.

use futures_util::future::join_all;

use super::get::ListableItem;
use crate::{
    CliSession,
    errors::CliError,
    references::{self, CommandKinds, Reference},
};
use kat_bundle::nearest_name;
use kat_client::ClientError;
use kat_types::{
    api::{InstanceItem, List, NamespaceItem, NodeItem, SecretItem, WorkloadItem},
    resource::named_kind::NamedKind,
};

/// The kind of the reference, or the only kind of the command that has an object with its name.
///
/// A kind that the caller may not read counts as one without such an object.
pub(crate) async fn kind_of(
    session: &CliSession<'_>,
    object: &Reference,
    command: CommandKinds,
) -> Result<NamedKind, CliError> {
    if let Some(kind) = object.kind {
        return Ok(kind);
    }
    let possible = named_alone(command, object);
    let answers =
        join_all(possible.map(|kind| async move { (kind, exists(session, kind, object).await) }));
    let mut found = Vec::new();
    for (kind, answer) in answers.await {
        match answer {
            Ok(()) => found.push(kind),
            Err(error) if error.is_not_found() || error.status() == Some(403) => {}
            // No object can have the name.
            Err(ClientError::Name { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let name = &object.name;
    match found.as_slice() {
        [kind] => Ok(*kind),
        [] => Err(missing(session, object, command).await),
        several => Err(
            CliError::usage(format!("`{object}` is the name of several objects"))
                .hinted(format!("write one of {}", forms(several, name))),
        ),
    }
}

/// The kinds that the reference can mean: the name of a volume, a route or an address is never written alone, and a
/// namespace only before names that are in one.
fn named_alone(command: CommandKinds, object: &Reference) -> impl Iterator<Item = NamedKind> {
    let is_possible = |kind: &NamedKind| kind.is_namespaced() || !object.names_namespace;
    let kinds = command.kinds.iter().copied();
    kinds
        .filter(|kind| {
            !matches!(
                kind,
                NamedKind::Volume | NamedKind::Route | NamedKind::Address
            )
        })
        .filter(is_possible)
}

/// Such as `workload/web, secret/web`.
fn forms(kinds: &[NamedKind], name: &str) -> String {
    let forms: Vec<String> = kinds
        .iter()
        .map(|kind| format!("{}/{name}", kind.singular()))
        .collect();
    forms.join(", ")
}

async fn exists(
    session: &CliSession<'_>,
    kind: NamedKind,
    object: &Reference,
) -> Result<(), ClientError> {
    let client = &session.client;
    let Reference {
        namespace, name, ..
    } = object;
    match kind {
        NamedKind::Workload => client.workload(namespace, name).await.map(drop),
        NamedKind::Instance => client.instance(namespace, name).await.map(drop),
        NamedKind::Node => client.node(name).await.map(drop),
        NamedKind::Namespace => client.namespace(name).await.map(drop),
        NamedKind::Secret => client.secret(namespace, name).await.map(drop),
        NamedKind::Volume
        | NamedKind::Route
        | NamedKind::Job
        | NamedKind::Run
        | NamedKind::Address
        | NamedKind::Event
        | NamedKind::Token => Err(ClientError::Name {
            what: kind.singular(),
            name: name.clone(),
        }),
    }
}

/// The error for a name that no kind has, with a similar name of one of the kinds.
async fn missing(session: &CliSession<'_>, object: &Reference, command: CommandKinds) -> CliError {
    let Reference {
        namespace, name, ..
    } = object;
    let kinds: Vec<&str> = named_alone(command, object)
        .map(|kind| kind.singular())
        .collect();
    let kinds = kinds.join(", ");
    let kinds = match kinds.rsplit_once(", ") {
        Some((first, last)) => format!("{first} or {last}"),
        None => kinds,
    };
    let error = CliError::not_found(format!(
        "there is no {kinds} `{object}` in namespace `{namespace}`"
    ));
    let mut near = Vec::new();
    for kind in named_alone(command, object) {
        let names = match kind {
            NamedKind::Workload => names::<WorkloadItem>(session, namespace).await,
            NamedKind::Instance => names::<InstanceItem>(session, namespace).await,
            NamedKind::Node => names::<NodeItem>(session, namespace).await,
            NamedKind::Namespace => names::<NamespaceItem>(session, namespace).await,
            NamedKind::Secret => names::<SecretItem>(session, namespace).await,
            NamedKind::Volume
            | NamedKind::Route
            | NamedKind::Job
            | NamedKind::Run
            | NamedKind::Event
            | NamedKind::Token
            | NamedKind::Address => continue,
        };
        let found = nearest_name(name, names.iter().map(String::as_str));
        near.extend(found.map(|found| format!("{}/{found}", kind.singular())));
    }
    let near = near.first().map(|near| format!("did you mean `{near}`?"));
    let hint = near.or_else(|| references::meant_kind(name, command.kinds));
    error.hinted(hint.unwrap_or_else(|| "`katcall get all -A` lists what there is".to_owned()))
}

/// The names of a kind; none where they cannot be read.
async fn names<T: ListableItem>(session: &CliSession<'_>, namespace: &str) -> Vec<String> {
    let Ok(route) = T::list(T::NAMESPACED.then_some(namespace)) else {
        return Vec::new();
    };
    let list = session.client.get::<List<T>>(route).await;
    let items = list.map(|list| list.items).unwrap_or_default();
    items.iter().map(|item| item.key().1).collect()
}
