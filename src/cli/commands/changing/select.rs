//! The workloads that the words or the labels of a command select.

use crate::{
    CliSession,
    args::NamespaceOption,
    errors::CliError,
    references::{self, LabelSelector, Reference, WORKLOADS},
};
use kat_types::resource::named_kind::NamedKind;

/// The workloads that the words name, or those of the namespace with the labels; a note if none has
/// them.
pub(crate) async fn named_or_labelled(
    session: &CliSession<'_>,
    words: &[String],
    selector: &LabelSelector,
    option: &NamespaceOption,
) -> Result<Vec<Reference>, CliError> {
    if selector.is_empty() {
        return references::objects(words, WORKLOADS, option);
    }
    match words {
        [] => {}
        [kind] if NamedKind::of_word(kind) == Some(NamedKind::Workload) => {}
        _ => {
            return Err(CliError::usage(
                "`--label` and the name of a workload exclude each other",
            ));
        }
    }
    let found = workloads(session, option, selector).await?;
    if found.is_empty() {
        let namespace = &option.namespace;
        session.console.note(&format!(
            "no workloads with these labels in namespace {namespace}"
        ));
    }
    Ok(found)
}

/// The workloads of the namespace with the labels, by name.
pub(crate) async fn workloads(
    session: &CliSession<'_>,
    option: &NamespaceOption,
    selector: &LabelSelector,
) -> Result<Vec<Reference>, CliError> {
    let namespace = &option.namespace;
    let mut items = session.client.workloads(Some(namespace)).await?.items;
    items.retain(|item| selector.selects(&item.metadata.labels));
    let mut found: Vec<Reference> = items
        .into_iter()
        .map(|item| Reference {
            kind: Some(NamedKind::Workload),
            namespace: namespace.clone(),
            names_namespace: false,
            name: item.metadata.name,
        })
        .collect();
    found.sort_by(|left, right| left.name.cmp(&right.name));
    Ok(found)
}
