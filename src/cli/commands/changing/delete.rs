//! `katcall delete`.

mod volume;

use std::fmt;

use tokio::time::Instant;

use super::apply::local::{self, FolderObject, FolderUse};
use crate::{
    CliSession,
    args::DeleteArgs,
    commands::{
        changing::select,
        data::secret::{self, SecretName},
        reading::get,
    },
    confirm,
    errors::CliError,
    output::plain,
    references::{self, BareName, CommandKinds, Named, Reference},
    volumes,
    volumes::{PresentVolumes, VolumeName},
    wait,
    wait::AwaitedWorkload,
};
use kat_client::Deletion;
use kat_types::{
    api::{NamespaceItem, NodeItem, VolumeItem, VolumePhase, WorkloadItem},
    resource::named_kind::NamedKind,
    store::ingress::OutsideRoute,
};

pub(crate) const DELETED: CommandKinds = CommandKinds {
    kinds: &[
        NamedKind::Workload,
        NamedKind::Namespace,
        NamedKind::Node,
        NamedKind::Volume,
        NamedKind::Secret,
        NamedKind::Route,
    ],
    bare: BareName::Refused,
};

pub(crate) async fn run(session: &CliSession<'_>, arguments: &DeleteArgs) -> Result<(), CliError> {
    let things = if !arguments.files.is_empty() {
        of_folders(session, arguments)?
    } else if arguments.selector.is_empty() {
        let objects = references::objects(&arguments.words, DELETED, &arguments.namespace)?;
        let mut things = Vec::new();
        for object in &objects {
            things.push(named(session, object).await?);
        }
        things
    } else {
        let selected = selected(session, arguments).await?;
        if selected.is_empty() {
            let namespace = &arguments.namespace.namespace;
            session.console.note(&format!(
                "no workloads with these labels in namespace {namespace}"
            ));
            return Ok(());
        }
        selected
    };
    for thing in &things {
        thing.check(arguments)?;
    }
    let present = present(session, arguments, &things).await?;
    if !arguments.selector.is_empty() {
        confirm_selected(session, arguments, &things)?;
    }
    if arguments.volumes {
        let going = things.iter().flat_map(|thing| thing.volumes(&present));
        volumes::confirm_removal(session.console, going, arguments.yes)?;
    }
    let run = DeleteRun {
        session,
        arguments,
        present,
        deadline: Instant::now() + arguments.timeout,
    };
    references::for_each(session.console, &things, async |thing| {
        match run.delete(thing).await {
            Err(error) if arguments.ignore_not_found && error.is_not_found() => {
                session.console.note(&error.to_string());
                Ok(())
            }
            done => done,
        }
    })
    .await
}

/// The object that a reference names.
async fn named(session: &CliSession<'_>, object: &Reference) -> Result<DeletedObject, CliError> {
    let (namespace, name) = (object.namespace.clone(), object.name.clone());
    match object.kind {
        Some(NamedKind::Workload) => Ok(DeletedObject::Workload { namespace, name }),
        Some(NamedKind::Namespace) => {
            let name = references::namespace(&name).map_err(CliError::usage)?;
            Ok(DeletedObject::Namespace { name })
        }
        Some(NamedKind::Node) => Ok(DeletedObject::Node { name }),
        Some(NamedKind::Volume) => {
            let named = volumes::named(session, object).await?;
            Ok(DeletedObject::Volume(named))
        }
        Some(NamedKind::Secret) => Ok(DeletedObject::Secret(SecretName::of(object))),
        Some(NamedKind::Route) => {
            let (host, path) = match name.split_once('/') {
                Some((host, path)) => (host.to_owned(), format!("/{path}")),
                None => (name, "/".to_owned()),
            };
            Ok(DeletedObject::Route { host, path })
        }
        Some(
            NamedKind::Instance
            | NamedKind::Job
            | NamedKind::Run
            | NamedKind::Event
            | NamedKind::Token
            | NamedKind::Address,
        )
        | None => Err(CliError::usage(format!(
            "`{object}` is nothing that can be deleted"
        ))),
    }
}

/// The workloads of the namespace that have the labels.
async fn selected(
    session: &CliSession<'_>,
    arguments: &DeleteArgs,
) -> Result<Vec<DeletedObject>, CliError> {
    match references::all(&arguments.words, DELETED, &arguments.namespace)? {
        Named::AllOf(NamedKind::Workload) => {}
        Named::AllOf(_) => {
            return Err(CliError::usage("`--label` deletes workloads only")
                .hinted("`katcall delete workload -l KEY=VALUE`"));
        }
        Named::Objects(_) => {
            return Err(CliError::usage(
                "`--label` and the name of an object exclude each other",
            ));
        }
    }
    let names = select::workloads(session, &arguments.namespace, &arguments.selector).await?;
    let thing = |object: Reference| DeletedObject::Workload {
        namespace: object.namespace,
        name: object.name,
    };
    Ok(names.into_iter().map(thing).collect())
}

/// Lists what a selector selects, and asks for confirmation. Without a terminal `--yes` is required.
fn confirm_selected(
    session: &CliSession<'_>,
    arguments: &DeleteArgs,
    things: &[DeletedObject],
) -> Result<(), CliError> {
    let console = session.console;
    console.note("with these labels, and to be deleted:");
    for thing in things {
        console.note(&format!("  {thing}"));
    }
    if arguments.yes {
        return Ok(());
    }
    confirm::ask("delete them?")
}

/// An object to delete.
enum DeletedObject {
    Workload {
        namespace: String,
        name: String,
    },
    Namespace {
        name: String,
    },
    Node {
        name: String,
    },
    Volume(VolumeName),
    Secret(SecretName),
    /// A route to something outside KAT.
    Route {
        host: String,
        path: String,
    },
}

/// Such as `workload/web`.
impl fmt::Display for DeletedObject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name) = match self {
            Self::Workload { name, .. } => (NamedKind::Workload, plain(name)),
            Self::Namespace { name } => (NamedKind::Namespace, plain(name)),
            Self::Node { name } => (NamedKind::Node, plain(name)),
            Self::Volume(named) => (NamedKind::Volume, plain(&named.without_namespace())),
            Self::Secret(named) => (NamedKind::Secret, plain(&named.name)),
            Self::Route { host, path } => {
                (NamedKind::Route, plain(&OutsideRoute::name(host, path)))
            }
        };
        write!(formatter, "{}/{name}", kind.singular())
    }
}

impl DeletedObject {
    /// Checks that the options fit the object.
    fn check(&self, arguments: &DeleteArgs) -> Result<(), CliError> {
        let (cascades, has_volumes) = match self {
            Self::Workload { .. } => (false, true),
            Self::Namespace { .. } => (true, true),
            Self::Node { .. } | Self::Volume(_) | Self::Secret(_) | Self::Route { .. } => {
                (false, false)
            }
        };
        if arguments.cascade && !cascades {
            return Err(CliError::usage("`--cascade` is for namespaces only"));
        }
        if arguments.volumes && !has_volumes {
            return Err(CliError::usage(
                "`--volumes` is for workloads and namespaces only",
            ));
        }
        Ok(())
    }

    /// The volumes that are deleted with the object, or kept.
    fn volumes<'item>(&'item self, present: &'item PresentVolumes) -> Vec<&'item VolumeItem> {
        match self {
            Self::Workload { namespace, name } => present
                .of_workload(namespace, name)
                // A released volume belongs to an earlier workload with this name.
                .filter(|item| item.status.phase != VolumePhase::Released)
                .collect(),
            Self::Namespace { name } => present.in_namespace(name).collect(),
            Self::Node { .. } | Self::Volume(_) | Self::Secret(_) | Self::Route { .. } => {
                Vec::new()
            }
        }
    }
}

/// The existing volumes. An error is ignored where nothing depends on them.
async fn present(
    session: &CliSession<'_>,
    arguments: &DeleteArgs,
    things: &[DeletedObject],
) -> Result<PresentVolumes, CliError> {
    let namespaces = things.iter().filter_map(|thing| match thing {
        DeletedObject::Workload { namespace, .. } => Some(namespace.as_str()),
        DeletedObject::Namespace { name } => Some(name.as_str()),
        DeletedObject::Node { .. }
        | DeletedObject::Volume(_)
        | DeletedObject::Secret(_)
        | DeletedObject::Route { .. } => None,
    });
    match PresentVolumes::of(session, namespaces).await {
        Err(_) if !arguments.volumes => Ok(PresentVolumes::default()),
        found => found,
    }
}

/// The objects of folders. A namespace is deleted only if its file stands alone: other workloads in
/// the namespace are not the folder's.
fn of_folders(
    session: &CliSession<'_>,
    arguments: &DeleteArgs,
) -> Result<Vec<DeletedObject>, CliError> {
    let colour = session.console.error_colour;
    let folders = local::prepare_all(&arguments.files, FolderUse::Delete, colour)?;
    let last = folders.into_iter().flat_map(|mut folder| {
        let is_route = |content: &FolderObject| matches!(content, FolderObject::Route(_));
        // A folder has routes or a workload.
        if folder.contents.iter().any(is_route) {
            folder.contents.retain(is_route);
            return folder.contents;
        }
        folder.contents.pop().into_iter().collect()
    });
    Ok(last
        .map(|content| match content {
            FolderObject::Workload { namespace, name } => {
                DeletedObject::Workload { namespace, name }
            }
            FolderObject::Namespace(namespace) => DeletedObject::Namespace {
                name: namespace.metadata.name,
            },
            FolderObject::Route(route) => DeletedObject::Route {
                host: route.spec.host,
                path: route.spec.path,
            },
        })
        .collect())
}

/// Deletes a route to something outside KAT. That of a workload goes with its file.
async fn route(
    session: &CliSession<'_>,
    thing: &DeletedObject,
    host: &str,
    path: &str,
) -> Result<(), CliError> {
    match session.client.delete_route(host, path).await {
        Ok(()) => session.console.line(&format!("{thing} deleted")),
        Err(error) if error.is_not_found() => {
            let error =
                CliError::not_found(format!("there is no {thing} to something outside KAT"));
            Err(error.hinted(
                "a route of a workload ends when its VirtualLoadBalancer.kat is applied without it",
            ))
        }
        Err(error) => Err(error.into()),
    }
}

/// A run of the command.
struct DeleteRun<'run> {
    session: &'run CliSession<'run>,
    arguments: &'run DeleteArgs,
    /// The volumes that existed before.
    present: PresentVolumes,
    deadline: Instant,
}

impl DeleteRun<'_> {
    async fn delete(&self, thing: &DeletedObject) -> Result<(), CliError> {
        let session = self.session;
        match thing {
            DeletedObject::Workload { namespace, name } => self.workload(namespace, name).await?,
            DeletedObject::Namespace { name } => self.namespace(name).await?,
            DeletedObject::Volume(named) => {
                return volume::delete(session, self.arguments, self.deadline, named).await;
            }
            DeletedObject::Secret(named) => return secret::delete(session, named).await,
            DeletedObject::Node { name } => return node(session, name).await,
            DeletedObject::Route { host, path } => return route(session, thing, host, path).await,
        }
        let of_it = thing.volumes(&self.present);
        if !self.arguments.volumes {
            volumes::say_kept(session.console, of_it);
        }
        Ok(())
    }

    async fn workload(&self, namespace: &str, name: &str) -> Result<(), CliError> {
        let session = self.session;
        let (client, console) = (&session.client, session.console);
        let scope = Some(namespace);
        // A workload that is created again meanwhile has another uid.
        let uid = match client.workload(namespace, name).await {
            Ok(item) => item.metadata.uid,
            Err(error) => {
                let error = get::missing::<WorkloadItem>(session, error, scope, name).await;
                return Err(self.with_kept(error, namespace, name));
            }
        };
        let how = Deletion {
            volumes: self.arguments.volumes,
            ..Deletion::default()
        };
        if let Err(error) = client.delete_workload(namespace, name, how).await {
            return Err(get::missing::<WorkloadItem>(session, error, scope, name).await);
        }
        if !self.arguments.wait {
            return console.line(&format!("workload/{name} deleting"));
        }
        let target = AwaitedWorkload {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid,
            generation: 0,
        };
        wait::until_gone(session, &target, self.deadline).await?;
        if self.arguments.volumes {
            let volumes = self.present.of_workload(namespace, name).cloned();
            wait::until_volumes_gone(session, namespace, volumes, self.deadline).await?;
        }
        console.line(&format!("workload/{name} deleted"))
    }

    /// Adds a hint about data that a missing workload has left.
    fn with_kept(&self, error: CliError, namespace: &str, name: &str) -> CliError {
        let mut kept = self.present.of_workload(namespace, name);
        match kept.next() {
            Some(volume) if error.is_not_found() => {
                let volume = &volume.metadata.name;
                error.hinted(format!(
                    "data of it is kept: `katcall delete volume {namespace}/{name}/{volume}` removes it"
                ))
            }
            _ => error,
        }
    }

    async fn namespace(&self, name: &str) -> Result<(), CliError> {
        let session = self.session;
        let (client, console) = (&session.client, session.console);
        let how = Deletion {
            cascade: self.arguments.cascade,
            volumes: self.arguments.volumes,
            ..Deletion::default()
        };
        if let Err(error) = client.delete_namespace(name, how).await {
            if error.status() == Some(409) && !how.cascade && error.hint().is_none() {
                return Err(CliError::failed(error.to_string())
                    .hinted("`--cascade` deletes everything in it too"));
            }
            return Err(get::missing::<NamespaceItem>(session, error, None, name).await);
        }
        if !self.arguments.wait {
            return console.line(&format!("namespace/{name} deleting"));
        }
        wait::until_namespace_gone(session, name, self.deadline).await?;
        if how.volumes {
            let volumes = self.present.in_namespace(name).cloned();
            wait::until_volumes_gone(session, name, volumes, self.deadline).await?;
        }
        console.line(&format!("namespace/{name} deleted"))
    }
}

/// Removes a machine. The removal is complete when the request returns.
async fn node(session: &CliSession<'_>, name: &str) -> Result<(), CliError> {
    let console = session.console;
    let volumes = session.client.volumes(None).await;
    if let Err(error) = session.client.delete_node(name).await {
        return Err(get::missing::<NodeItem>(session, error, None, name).await);
    }
    console.line(&format!("node/{name} deleted"))?;
    if let Ok(list) = volumes {
        volumes::warn_left_behind(console, name, &list.items);
    }
    console.hint(&format!(
        "if {} still runs or comes back, run `sudo kat-agent reset` there",
        plain(name)
    ));
    Ok(())
}
