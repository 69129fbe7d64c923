//! `katcall delete volume`.

use tokio::time::Instant;

use crate::{
    CliSession,
    args::DeleteArgs,
    commands::reading::get,
    errors::CliError,
    output::plain,
    volumes::{self, VolumeConfirmation, VolumeName},
    wait,
};
use kat_types::api::{VolumeItem, VolumePhase, WriteOutcome};

/// Asks no confirmation where the request would be refused, or the volume is being removed already.
pub(crate) async fn delete(
    session: &CliSession<'_>,
    arguments: &DeleteArgs,
    deadline: Instant,
    named: &VolumeName,
) -> Result<(), CliError> {
    let (client, console) = (&session.client, session.console);
    let VolumeName {
        namespace,
        workload,
        name,
    } = named;
    let short = named.without_namespace();
    let item = match client.volume(namespace, workload, name).await {
        Ok(item) => item,
        Err(error) => {
            let scope = Some(namespace.as_str());
            return Err(get::missing::<VolumeItem>(session, error, scope, &short).await);
        }
    };
    let tried = client.try_delete_volume(namespace, workload, name).await?;
    // If its machine is gone, too, no data is removed. An unknown outcome is confirmed.
    let removes = tried.outcome != WriteOutcome::Forgetting;
    let mut asked = VolumeConfirmation::Nobody;
    if removes && item.status.phase != VolumePhase::Removing {
        asked = volumes::confirm_removal(console, [&item], arguments.yes)?;
    }
    let version = &item.metadata.resource_version;
    // The version ensures that exactly the confirmed volume is removed.
    let version = (asked == VolumeConfirmation::Somebody).then_some(version.as_str());
    client
        .delete_volume(namespace, workload, name, version)
        .await?;
    if !removes {
        console.note(&forgotten(&item));
    }
    if arguments.wait {
        let word = if removes { "deleted" } else { "forgotten" };
        wait::until_volumes_gone(session, namespace, [item], deadline).await?;
        return console.line(&format!("volume/{short} {word}"));
    }
    console.line(&format!("volume/{short} {}", tried.outcome))
}

/// Why no data is removed.
fn forgotten(item: &VolumeItem) -> String {
    let node = item.status.node.as_deref().unwrap_or("its machine");
    let path = &item.status.path;
    plain(&match &item.spec.host_path {
        Some(_) => format!("the files at {path} on {node} stay; only their place is forgotten"),
        None => {
            format!(
                "{node} is no machine of the cluster: what lies there at {path} is given up, and stays"
            )
        }
    })
}
