//! `katcall delete`.

use tokio::time::Instant;

use super::{
    Session,
    apply::local::{self, Content, Purpose},
    args::{Delete, DeletedKind},
    errors::CliError,
    get, names,
    wait::{self, Target},
};
use crate::api::types::{NamespaceItem, NodeItem, WorkloadItem};

pub(super) async fn run(session: &Session<'_>, arguments: &Delete) -> Result<(), CliError> {
    let deadline = Instant::now() + arguments.timeout;
    let things = match (arguments.kind, &arguments.name) {
        (Some(DeletedKind::Workload), Some(name)) => vec![Thing::Workload {
            namespace: arguments.namespace.namespace.clone(),
            name: name.clone(),
        }],
        (Some(DeletedKind::Namespace), Some(name)) => {
            let name = names::namespace(name).map_err(CliError::usage)?;
            vec![Thing::Namespace { name }]
        }
        (Some(DeletedKind::Node), Some(name)) => vec![Thing::Node { name: name.clone() }],
        _ => of_folders(session, arguments)?,
    };
    for thing in &things {
        match delete(session, arguments, deadline, thing).await {
            Err(error) if arguments.ignore_not_found && error.is_not_found() => {
                session.console.note(&error.to_string());
            }
            done => done?,
        }
    }
    Ok(())
}

async fn delete(
    session: &Session<'_>,
    arguments: &Delete,
    deadline: Instant,
    thing: &Thing,
) -> Result<(), CliError> {
    match thing {
        Thing::Workload { .. } | Thing::Node { .. } if arguments.cascade => {
            Err(CliError::usage("`--cascade` is for namespaces only"))
        }
        Thing::Workload { namespace, name } => {
            workload(session, arguments.wait, deadline, namespace, name).await
        }
        Thing::Namespace { name } => namespace(session, arguments, deadline, name).await,
        // It is gone when this is answered.
        Thing::Node { name } => match session.client.delete_node(name).await {
            Ok(()) => session.console.line(&format!("node/{name} deleted")),
            Err(error) => Err(get::missing::<NodeItem>(session, error, None, name).await),
        },
    }
}

/// What is to go.
enum Thing {
    Workload { namespace: String, name: String },
    Namespace { name: String },
    Node { name: String },
}

/// The workloads of folders. A namespace goes only where its file stands alone: what else is in it
/// is not the folder's.
fn of_folders(session: &Session<'_>, arguments: &Delete) -> Result<Vec<Thing>, CliError> {
    let colour = session.console.error_colour;
    let folders = local::prepare_all(&arguments.files, Purpose::Delete, colour)?;
    let last = folders
        .into_iter()
        .filter_map(|mut folder| folder.contents.pop());
    Ok(last
        .map(|content| match content {
            Content::Workload { namespace, name } => Thing::Workload { namespace, name },
            Content::Namespace(namespace) => Thing::Namespace {
                name: namespace.metadata.name,
            },
        })
        .collect())
}

async fn workload(
    session: &Session<'_>,
    wait: bool,
    deadline: Instant,
    namespace: &str,
    name: &str,
) -> Result<(), CliError> {
    let (client, console) = (&session.client, session.console);
    let scope = Some(namespace);
    // One that is made anew while this waits is another.
    let uid = match client.workload(namespace, name).await {
        Ok(item) => item.metadata.uid,
        Err(error) => return Err(get::missing::<WorkloadItem>(session, error, scope, name).await),
    };
    if let Err(error) = client.delete_workload(namespace, name, false).await {
        return Err(get::missing::<WorkloadItem>(session, error, scope, name).await);
    }
    if !wait {
        return console.line(&format!("workload/{name} deleting"));
    }
    let target = Target {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        uid,
        generation: 0,
    };
    wait::until_gone(session, &target, deadline).await?;
    console.line(&format!("workload/{name} deleted"))
}

async fn namespace(
    session: &Session<'_>,
    arguments: &Delete,
    deadline: Instant,
    name: &str,
) -> Result<(), CliError> {
    let (client, console) = (&session.client, session.console);
    if let Err(error) = client.delete_namespace(name, arguments.cascade).await {
        if error.status() == Some(409) && !arguments.cascade && error.hint().is_none() {
            return Err(CliError::failed(error.to_string())
                .hinted("`--cascade` deletes everything in it too"));
        }
        return Err(get::missing::<NamespaceItem>(session, error, None, name).await);
    }
    if !arguments.wait {
        return console.line(&format!("namespace/{name} deleting"));
    }
    wait::until_namespace_gone(session, name, deadline).await?;
    console.line(&format!("namespace/{name} deleted"))
}
