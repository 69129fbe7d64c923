//! `katcall create`.

use std::collections::BTreeMap;

use crate::{
    CliSession,
    args::{CreateArgs, CreatedKind},
    errors::CliError,
    references,
};
use kat_types::{
    api::{NamespaceItem, NamespacePhase, NamespaceSpec, WriteOutcome},
    resource::{Namespace, NamespaceMetadata},
};

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
    let outcome = match session.client.create_new_namespace(&namespace).await {
        Ok(result) => result.outcome,
        Err(error) if error.status() == Some(412) => {
            let present = session.client.namespace(name).await?;
            refuse_other(&present, name)?;
            WriteOutcome::Unchanged
        }
        Err(error) => return Err(error.into()),
    };
    session.console.line(&format!("namespace/{name} {outcome}"))
}

/// Refuses a present namespace that has more than what this command gives to a new one.
fn refuse_other(present: &NamespaceItem, name: &str) -> Result<(), CliError> {
    if present.status.phase == NamespacePhase::Deleting {
        let message = format!("the namespace `{name}` is being deleted");
        return Err(CliError::failed(message).hinted("wait until it is gone"));
    }
    if present.metadata.labels.is_empty() && present.spec == NamespaceSpec::default() {
        return Ok(());
    }
    let message = format!(
        "the namespace `{name}` exists already, with labels or settings of its own; nothing was changed"
    );
    Err(CliError::failed(message).hinted(format!(
        "`katcall describe namespace {name}` shows them, and `katcall namespace set {name} SETTING=VALUE` changes settings"
    )))
}
