//! `katcall version`.

use std::time::Duration;

use serde::Serialize;

use crate::{
    args::{GlobalArgs, VersionArgs},
    connect,
    console::Console,
    errors::CliError,
    output,
};
use kat_client::{ClientError, ClientOptions};
use kat_types::VERSION;

#[derive(Serialize)]
struct Versions {
    katcall: &'static str,
    /// `None` when the cluster could not be reached.
    cluster: Option<String>,
}

/// Does not fail if the cluster can't be reached.
pub(crate) async fn run(
    global: &GlobalArgs,
    console: &Console,
    arguments: &VersionArgs,
) -> Result<(), CliError> {
    let asked: Result<String, CliError> = match connect::client(global) {
        Ok(client) => client
            .with_options(ClientOptions {
                retry_for: Duration::ZERO,
                unreachable_for: Duration::ZERO,
                ..client.options()
            })
            .version()
            .await
            .map(|answer| answer.version)
            .map_err(ClientError::into),
        Err(error) => Err(error),
    };
    let versions = Versions {
        katcall: VERSION,
        cluster: asked.as_ref().ok().cloned(),
    };
    match arguments.output {
        Some(format) => output::document(console, format, &versions)?,
        None => {
            console.line(&format!("katcall {VERSION}"))?;
            if let Some(cluster) = &versions.cluster {
                console.line(&format!("cluster {}", output::plain(cluster)))?;
            }
        }
    }
    if let Err(error) = asked {
        console.note(&format!("the cluster's version is not known: {error}"));
    }
    Ok(())
}
