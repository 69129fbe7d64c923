//! `katcall namespace set`.

use clap::{Args, Subcommand};

use crate::{CliSession, commands::reading::get, errors::CliError, references};
use kat_types::{
    api::NamespaceItem,
    resource::{Amounts, QuotaResource},
};

/// Most tries of a change that conflicts with changes of the same namespace by others.
const ATTEMPTS: usize = 5;

#[derive(Debug, Args)]
pub(crate) struct NamespaceArgs {
    #[command(subcommand)]
    command: NamespacesCommand,
}

#[derive(Debug, Subcommand)]
enum NamespacesCommand {
    /// Set quotas of a namespace; other quotas stay
    ///
    /// Quotas are workloads, instances, cpu, memory, volumes, secrets, secretBytes, fileBytes and events. What exceeds
    /// one already stays; only growth is refused.
    Set(QuotaSetArgs),
}

#[derive(Debug, Args)]
struct QuotaSetArgs {
    /// Name of the namespace
    #[arg(value_parser = references::namespace)]
    name: String,
    /// Quotas and amounts, such as instances=10 or memory=8Gi; QUOTA=none removes a quota
    #[arg(required = true, value_name = "QUOTA=AMOUNT", value_parser = parse)]
    changes: Vec<QuotaEdit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct QuotaEdit {
    counted: QuotaResource,
    amount: Option<u64>,
}

fn parse(text: &str) -> Result<QuotaEdit, String> {
    let (word, amount) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is not `QUOTA=AMOUNT`"))?;
    let counted = QuotaResource::of_word(word).ok_or_else(|| {
        let words = QuotaResource::ALL.map(QuotaResource::word).join(", ");
        format!("`{word}` is no quota; quotas are {words}")
    })?;
    let amount = match amount {
        "none" => None,
        amount => Some(counted.read(amount).map_err(|error| error.to_string())?),
    };
    Ok(QuotaEdit { counted, amount })
}

fn after(before: &Amounts, changes: &[QuotaEdit]) -> Amounts {
    let mut quota = *before;
    for change in changes {
        quota.set(change.counted, change.amount);
    }
    quota
}

pub(crate) async fn run(
    session: &CliSession<'_>,
    arguments: &NamespaceArgs,
) -> Result<(), CliError> {
    let NamespacesCommand::Set(QuotaSetArgs { name, changes }) = &arguments.command;
    for _ in 0..ATTEMPTS {
        let item = match session.client.namespace(name).await {
            Ok(item) => item,
            Err(error) => {
                return Err(get::missing::<NamespaceItem>(session, error, None, name).await);
            }
        };
        let quota = after(&item.spec.quota, changes);
        let version = &item.metadata.resource_version;
        match session
            .client
            .set_namespace_quota(name, &quota, version)
            .await
        {
            Ok(result) => {
                let line = format!("namespace/{name} {}", result.outcome);
                return session.console.line(&line);
            }
            Err(error) if error.status() == Some(412) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(CliError::failed(format!(
        "others keep changing namespace `{name}`; nothing was changed"
    )))
}

/// The use of each quota, and of resources without one: `instances 3 of 10`.
pub(crate) fn lines(quota: &Amounts, used: &Amounts) -> Vec<String> {
    let line = |counted: QuotaResource| {
        let used = used.get(counted).unwrap_or(0);
        let shown = format!("{} {}", counted.word(), counted.show(used));
        match quota.get(counted) {
            Some(quota) => Some(format!("{shown} of {}", counted.show(quota))),
            None => (used > 0).then_some(shown),
        }
    };
    QuotaResource::ALL.into_iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_set_and_taken_away() {
        let before = Amounts {
            workloads: Some(1),
            secrets: Some(2),
            ..Amounts::default()
        };
        let changes: Vec<_> = ["instances=10", "memory=8Gi", "secrets=none"]
            .iter()
            .map(|text| parse(text).unwrap())
            .collect();
        let quota = after(&before, &changes);
        let used = Amounts {
            instances: Some(3),
            volumes: Some(1),
            secrets: Some(0),
            ..Amounts::default()
        };
        assert_eq!(
            lines(&quota, &used),
            [
                "workloads 0 of 1",
                "instances 3 of 10",
                "memory 0 of 8Gi",
                "volumes 1"
            ]
        );
        for wrong in [
            "",
            "instances",
            "pods=3",
            "instances=1.5",
            "memory=much",
            "cpu=",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
