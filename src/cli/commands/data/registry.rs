//! `katcall registry`: settings and credentials of registries.

use clap::{Args, Subcommand};

use super::login::{self, LoginArgs, LogoutArgs};
use crate::{
    CliSession,
    args::{DocumentFormat, NamespaceOption, OutputFormat},
    errors::CliError,
    output,
    output::{
        json::PrintedItems,
        table::{Cell, Table},
    },
};
use kat_client::ClientError;
use kat_types::api::RegistryRequest;

#[derive(Debug, Args)]
pub(crate) struct RegistryArgs {
    #[command(subcommand)]
    command: RegistryCommand,
}

#[derive(Debug, Subcommand)]
enum RegistryCommand {
    /// Set how the leader and every machine's Podman reach a registry
    Set {
        /// Host of the registry, such as `registry.example` or `registry.lab:5000`
        host: String,
        /// Accept any certificate, and HTTP without TLS
        #[arg(long)]
        insecure: bool,
        /// Mirror that is tried before the registry; may be repeated
        #[arg(long = "mirror", value_name = "HOST[/PATH]")]
        mirrors: Vec<String>,
    },
    /// Remove the settings of a registry
    Unset {
        /// Host of the registry
        host: String,
    },
    /// Store a name and password for a namespace's pulls from a registry
    Login(LoginArgs),
    /// Remove a namespace's name and password for a registry; its instances continue to run
    Logout(LogoutArgs),
    /// List the settings of registries, and the registries to which a namespace is logged in
    List {
        #[command(flatten)]
        namespace: NamespaceOption,
        /// Output format
        #[arg(short, long, default_value = "table")]
        output: OutputFormat,
    },
}

pub(crate) async fn run<'run>(
    session: &impl Fn() -> Result<CliSession<'run>, CliError>,
    arguments: &RegistryArgs,
) -> Result<(), CliError> {
    if let RegistryCommand::Login(arguments) = &arguments.command {
        // The password is read before any request is sent.
        return login::login(session, arguments).await;
    }
    let session = &session()?;
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
        RegistryCommand::Login(_) => Ok(()),
        RegistryCommand::Logout(arguments) => login::logout(session, arguments).await,
        RegistryCommand::List { namespace, output } => {
            list(session, &namespace.namespace, *output).await
        }
    }
}

async fn list(
    session: &CliSession<'_>,
    namespace: &str,
    format: OutputFormat,
) -> Result<(), CliError> {
    let console = session.console;
    let logins = session.client.registry_logins(namespace).await?.items;
    let settings = match session.client.registries().await {
        Ok(settings) => Some(settings.items),
        Err(ClientError::Refused(refusal)) if refusal.status == 403 => {
            console.note("how registries are reached is shown to admins alone");
            None
        }
        Err(error) => return Err(error.into()),
    };
    let registries = login::rows(settings, logins);
    let list = PrintedItems { items: &registries };
    match format {
        OutputFormat::Json => output::document(console, DocumentFormat::Json, &list),
        OutputFormat::Yaml => output::document(console, DocumentFormat::Yaml, &list),
        OutputFormat::Name => registries
            .iter()
            .try_for_each(|row| console.line(&format!("registry/{}", output::plain(&row.host)))),
        _ if registries.is_empty() => {
            console.note(&format!(
                "no registry has a setting, and namespace {namespace} is logged in to none"
            ));
            Ok(())
        }
        _ => {
            let mut table = Table::new(vec!["HOST", "INSECURE", "MIRRORS", "LOGIN"]);
            for row in &registries {
                let reached = row.reached.as_ref();
                let insecure = reached.map_or("", |one| if one.insecure { "yes" } else { "no" });
                let mirrors = reached.map_or_else(String::new, |one| one.mirrors.join(", "));
                let login = row.login.as_ref();
                let login = login.map_or("", |one| one.username.as_deref().unwrap_or("yes"));
                table.row(vec![
                    Cell::new(&row.host),
                    Cell::new(insecure),
                    Cell::new(mirrors),
                    Cell::new(login),
                ]);
            }
            let width = console.width.filter(|_| format != OutputFormat::Wide);
            console.print(&table.within(width).render(console.colour))
        }
    }
}
