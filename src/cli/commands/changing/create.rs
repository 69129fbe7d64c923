//! `katcall create`.

use std::collections::BTreeMap;

use crate::{
    CliSession,
    args::{CreateArgs, CreatedKind},
    errors::CliError,
    references,
};
use kat_types::resource::{Namespace, NamespaceMetadata};

pub(crate) async fn run(session: &CliSession<'_>, arguments: &CreateArgs) -> Result<(), CliError> {
    match arguments.kind {
        CreatedKind::Namespace => {
            let names = arguments.names.iter();
            let names: Result<Vec<String>, String> =
                names.map(|name| references::namespace(name)).collect();
            let names = names.map_err(CliError::usage)?;
            references::for_each(session.console, &names, async |name| {
                create_namespace(session, name).await
            })
            .await
        }
    }
}

async fn create_namespace(session: &CliSession<'_>, name: &str) -> Result<(), CliError> {
    let namespace = Namespace {
        metadata: NamespaceMetadata {
            name: name.to_owned(),
            labels: BTreeMap::new(),
        },
        spec: None,
    };
    let result = session.client.create_namespace(&namespace, false).await?;
    session.console.line(&format!(
        "namespace/{} {}",
        result.metadata.name, result.outcome
    ))
}
