//! `katcall registry`: how registries are reached.

use clap::{Args, Subcommand};

use super::{
    Session,
    args::{DocumentFormat, Format},
    errors::CliError,
    output::{
        self,
        json::Items,
        table::{Cell, Table},
    },
};
use crate::api::types::{RegistryRequest, RegistryView};

#[derive(Debug, Args)]
pub(super) struct Registry {
    #[command(subcommand)]
    command: RegistryCommand,
}

#[derive(Debug, Subcommand)]
enum RegistryCommand {
    /// Say how a registry is reached, by the leader and by every machine's Podman
    Set {
        /// Such as `registry.example` or `registry.lab:5000`
        host: String,
        /// Its certificate is not checked, and HTTP without TLS will do
        #[arg(long)]
        insecure: bool,
        /// Asked before it; may be repeated
        #[arg(long = "mirror", value_name = "HOST[/PATH]")]
        mirrors: Vec<String>,
    },
    /// Forget what was said about a registry
    Unset {
        /// Its host
        host: String,
    },
    /// List what is said about registries
    List {
        /// How to print it
        #[arg(short, long, default_value = "table")]
        output: Format,
    },
}

pub(super) async fn run(session: &Session<'_>, arguments: &Registry) -> Result<(), CliError> {
    let (client, console) = (&session.client, session.console);
    match &arguments.command {
        RegistryCommand::Set {
            host,
            insecure,
            mirrors,
        } => {
            let request = RegistryRequest {
                insecure: *insecure,
                mirrors: mirrors.clone(),
            };
            client.set_registry(host, &request).await?;
            console.line(&format!("registry/{} set", output::plain(host)))
        }
        RegistryCommand::Unset { host } => {
            client.unset_registry(host).await?;
            console.line(&format!("registry/{} forgotten", output::plain(host)))
        }
        RegistryCommand::List { output } => list(session, *output).await,
    }
}

async fn list(session: &Session<'_>, format: Format) -> Result<(), CliError> {
    let console = session.console;
    let registries = session.client.registries().await?.items;
    let list = Items { items: &registries };
    match format {
        Format::Json => output::document(console, DocumentFormat::Json, &list),
        Format::Yaml => output::document(console, DocumentFormat::Yaml, &list),
        Format::Name => registries.iter().try_for_each(|registry| {
            console.line(&format!("registry/{}", output::plain(&registry.host)))
        }),
        _ if registries.is_empty() => {
            console.note("nothing is said about registries");
            Ok(())
        }
        _ => {
            let mut table = Table::new(vec!["HOST", "INSECURE", "MIRRORS"]);
            for RegistryView {
                host,
                insecure,
                mirrors,
            } in &registries
            {
                let insecure = if *insecure { "yes" } else { "no" };
                table.row(vec![
                    Cell::new(host),
                    Cell::new(insecure),
                    Cell::new(mirrors.join(", ")),
                ]);
            }
            console.print(&table.render(console.colour))
        }
    }
}
