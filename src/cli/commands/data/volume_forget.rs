//! `katcall volume forget`.

use clap::Args;

use crate::{
    CliSession,
    args::NamespaceOption,
    commands::reading::get,
    confirm,
    errors::CliError,
    output::plain,
    references::{self, VOLUMES},
    volumes::{self, VolumeName},
};
use kat_types::api::{VolumeItem, VolumeRemovalState};

#[derive(Debug, Args)]
pub(crate) struct ForgetArgs {
    /// Volume, as WORKLOAD/VOLUME
    #[arg(value_name = "[NAMESPACE/]WORKLOAD/VOLUME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) namespace: NamespaceOption,
    /// Machine on which the data is missing
    #[arg(long, value_name = "NODE")]
    pub(crate) on: String,
    /// Give the data up without asking
    #[arg(long)]
    pub(crate) yes: bool,
}

/// Asks no confirmation where the request would be refused, or the data was given up before.
pub(crate) async fn run(session: &CliSession<'_>, arguments: &ForgetArgs) -> Result<(), CliError> {
    let (client, console) = (&session.client, session.console);
    let reference = references::one(&arguments.name, VOLUMES, &arguments.namespace)?;
    let named = volumes::named(session, &reference).await?;
    let VolumeName {
        namespace,
        workload,
        name,
    } = &named;
    let short = named.without_namespace();
    let item = match client.volume(namespace, workload, name).await {
        Ok(item) => item,
        Err(error) => {
            let scope = Some(namespace.as_str());
            return Err(get::missing::<VolumeItem>(session, error, scope, &short).await);
        }
    };
    let node = arguments.on.as_str();
    client
        .try_forget_volume(namespace, workload, name, node)
        .await?;
    let mut removals = item.status.removals.iter();
    let given_up_before = removals
        .any(|removal| removal.node == *node && removal.state == VolumeRemovalState::Forgetting);
    // The version ensures that exactly the confirmed data is given up.
    let mut version = None;
    if !given_up_before {
        let path = &item.status.path;
        console.note(
            "data that is to be given up; KAT neither uses nor removes it when its disk returns:",
        );
        console.note(&plain(&format!(
            "  volume {namespace}/{short} on {node}: {path}"
        )));
        if !arguments.yes {
            confirm::ask("give it up?")?;
            version = Some(item.metadata.resource_version.as_str());
        }
    }
    let done = client
        .forget_volume(namespace, workload, name, node, version)
        .await?;
    console.line(&format!("volume/{short} {}", done.outcome))
}
