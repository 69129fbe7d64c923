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
            let name = references::namespace(&arguments.name).map_err(CliError::usage)?;
            let namespace = Namespace {
                metadata: NamespaceMetadata {
                    name,
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
    }
}
