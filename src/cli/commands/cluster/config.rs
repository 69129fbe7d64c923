//! `katcall config`.

use crate::{
    CliSession,
    args::{ConfigArgs, ConfigCommand},
    errors::CliError,
    output,
};

pub(crate) async fn run<'run>(
    session: &impl Fn() -> Result<CliSession<'run>, CliError>,
    arguments: &ConfigArgs,
) -> Result<(), CliError> {
    match &arguments.command {
        ConfigCommand::Get { output } => {
            let session = session()?;
            let configuration = session.client.cluster_configuration().await?;
            output::document(session.console, *output, &configuration)
        }
        ConfigCommand::Set { .. } => Err(CliError::failed(
            "changing settings is not built yet; nothing was changed",
        )
        .hinted("what belongs to one machine is set in its /etc/kat/agent.yaml")),
    }
}
