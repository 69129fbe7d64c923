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
    /// Keep a name and password for a namespace's pulls from a registry
    Login(LoginArgs),
    /// Take the name and password for a registry away from a namespace; what runs goes on, and pulls no more
    Logout(LogoutArgs),
    /// List what is said about registries, and to which of them a namespace is logged in
    List {
        #[command(flatten)]
        namespace: NamespaceOption,
        /// How to print it
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
                "nothing is said about registries, and namespace {namespace} is logged in to none"
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
            console.print(&table.render(console.colour))
        }
    }
}
