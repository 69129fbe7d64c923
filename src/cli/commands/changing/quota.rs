//! `katcall namespace set`.

use std::str::FromStr;

use clap::{Args, Subcommand};

use crate::{CliSession, commands::reading::get, errors::CliError, references};
use kat_client::ClientError;
use kat_types::{
    api::{
        ApplyResult, DefaultRequests, NamespaceAccessRequest, NamespaceDefaultsRequest,
        NamespaceItem, NamespaceRequest,
    },
    resource::{
        Amounts, Bytes, MilliCpu, NamespaceIsolation, NamespaceMetadata, QuantityError,
        QuotaResource, ResourceList,
    },
};

/// Most tries of a change that conflicts with changes of the same namespace by others.
const ATTEMPTS: usize = 5;
/// The settings besides quotas.
const ISOLATION: &str = "isolation";
const ALLOW_NAMESPACES: &str = "allowNamespaces";
const INGRESS_HOSTS: &str = "ingressHosts";
const DEFAULT_CPU: &str = "defaults.requests.cpu";
const DEFAULT_MEMORY: &str = "defaults.requests.memory";
pub(crate) const NAMESPACE_SETTINGS: [&str; 5] = [
    ISOLATION,
    ALLOW_NAMESPACES,
    INGRESS_HOSTS,
    DEFAULT_CPU,
    DEFAULT_MEMORY,
];

#[derive(Debug, Args)]
pub(crate) struct NamespaceArgs {
    #[command(subcommand)]
    command: NamespacesCommand,
}

#[derive(Debug, Subcommand)]
enum NamespacesCommand {
    /// Set quotas and defaults of a namespace, and which others may reach its workloads; other settings stay
    ///
    /// Quotas are workloads, instances, cpu, memory, volumes, secrets, secretBytes, fileBytes, events, hosts and
    /// certificateOrders. What exceeds one already stays; only growth is refused. `certificateOrders` is the number of
    /// certificates that are ordered within 24 hours for hosts that have none, 20 by default; further ones wait.
    /// `isolation` is Private or Shared (reached by all namespaces), and `allowNamespaces` has the names of other
    /// namespaces that may reach this one's workloads, with commas between them. `ingressHosts` has the hosts that its routes may have, such as
    /// `*.shop.example.org`; all, or none. `defaults.requests.cpu` and `defaults.requests.memory` are what new
    /// instances request for each container that has neither a request nor a limit; running ones stay as they are.
    Set(NamespaceSetArgs),
}

#[derive(Debug, Args)]
struct NamespaceSetArgs {
    /// Name of the namespace
    #[arg(value_parser = references::namespace)]
    name: String,
    /// Settings and their values, such as instances=10, memory=8Gi, isolation=Shared or allowNamespaces=web,ops;
    /// SETTING=none removes a quota, a default or all allowed namespaces
    #[arg(required = true, value_name = "SETTING=VALUE", value_parser = parse)]
    changes: Vec<NamespaceEdit>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum NamespaceEdit {
    Quota {
        counted: QuotaResource,
        amount: Option<u64>,
    },
    Isolation(NamespaceIsolation),
    AllowNamespaces(Vec<String>),
    /// `None` for all hosts.
    IngressHosts(Option<Vec<String>>),
    DefaultCpu(Option<MilliCpu>),
    DefaultMemory(Option<Bytes>),
}

fn parse(text: &str) -> Result<NamespaceEdit, String> {
    let (word, value) = text
        .split_once('=')
        .ok_or_else(|| format!("`{text}` is not `SETTING=VALUE`"))?;
    match word {
        ISOLATION => return isolation(value).map(NamespaceEdit::Isolation),
        ALLOW_NAMESPACES => return allowed(value).map(NamespaceEdit::AllowNamespaces),
        INGRESS_HOSTS => return hosts(value).map(NamespaceEdit::IngressHosts),
        DEFAULT_CPU => return amount(value).map(NamespaceEdit::DefaultCpu),
        DEFAULT_MEMORY => return amount(value).map(NamespaceEdit::DefaultMemory),
        _ => {}
    }
    let counted = QuotaResource::of_word(word).ok_or_else(|| {
        let words = QuotaResource::ALL.map(QuotaResource::word).join(", ");
        format!(
            "`{word}` is no setting; settings are {ISOLATION}, {ALLOW_NAMESPACES}, {INGRESS_HOSTS}, {DEFAULT_CPU}, {DEFAULT_MEMORY}, and the quotas {words}"
        )
    })?;
    let amount = match value {
        "none" => None,
        amount => Some(counted.read(amount).map_err(|error| error.to_string())?),
    };
    Ok(NamespaceEdit::Quota { counted, amount })
}

fn amount<T: FromStr<Err = QuantityError>>(value: &str) -> Result<Option<T>, String> {
    match value {
        "none" => Ok(None),
        amount => T::from_str(amount)
            .map(Some)
            .map_err(|error| error.to_string()),
    }
}

fn isolation(value: &str) -> Result<NamespaceIsolation, String> {
    match value {
        "Private" => Ok(NamespaceIsolation::Private),
        "Shared" => Ok(NamespaceIsolation::Shared),
        other => Err(format!("`{other}` is neither Private nor Shared")),
    }
}

fn allowed(value: &str) -> Result<Vec<String>, String> {
    if value == "none" {
        return Ok(Vec::new());
    }
    let names = value.split(',').map(|name| match name {
        "*" => Ok(name.to_owned()),
        name => references::namespace(name),
    });
    names.collect()
}

fn hosts(value: &str) -> Result<Option<Vec<String>>, String> {
    if value == "all" {
        return Ok(None);
    }
    if value == "none" {
        return Ok(Some(Vec::new()));
    }
    let hosts = value.split(',').map(|host| {
        kat_bundle::check_route_host(host)?;
        Ok(host.to_owned())
    });
    hosts.collect::<Result<_, String>>().map(Some)
}

fn quota_after(before: &Amounts, changes: &[NamespaceEdit]) -> Amounts {
    let mut quota = *before;
    for change in changes {
        if let NamespaceEdit::Quota { counted, amount } = change {
            quota.set(*counted, *amount);
        }
    }
    quota
}

/// Who may reach the namespace after the changes.
fn access_after(item: &NamespaceItem, changes: &[NamespaceEdit]) -> NamespaceAccessRequest {
    let mut access = NamespaceAccessRequest {
        isolation: item.spec.isolation,
        allow_namespaces: item.spec.allow_namespaces.clone(),
        ingress_hosts: item.spec.ingress_hosts.clone(),
        quota: None,
        defaults: defaults_after(&item.spec.defaults.requests, changes),
    };
    for change in changes {
        match change {
            NamespaceEdit::Quota { .. }
            | NamespaceEdit::DefaultCpu(_)
            | NamespaceEdit::DefaultMemory(_) => {}
            NamespaceEdit::Isolation(isolation) => access.isolation = *isolation,
            NamespaceEdit::AllowNamespaces(names) => access.allow_namespaces.clone_from(names),
            NamespaceEdit::IngressHosts(hosts) => access.ingress_hosts.clone_from(hosts),
        }
    }
    access
}

/// The defaults of the namespace after the changes; `None` if these leave them as they are.
fn defaults_after(
    before: &ResourceList,
    changes: &[NamespaceEdit],
) -> Option<NamespaceDefaultsRequest> {
    let mut requests = DefaultRequests {
        cpu: before.cpu,
        memory: before.memory,
    };
    let mut is_changed = false;
    for change in changes {
        match change {
            NamespaceEdit::DefaultCpu(cpu) => requests.cpu = *cpu,
            NamespaceEdit::DefaultMemory(memory) => requests.memory = *memory,
            NamespaceEdit::Quota { .. }
            | NamespaceEdit::Isolation(_)
            | NamespaceEdit::AllowNamespaces(_)
            | NamespaceEdit::IngressHosts(_) => continue,
        }
        is_changed = true;
    }
    is_changed.then_some(NamespaceDefaultsRequest { requests })
}

pub(crate) async fn run(
    session: &CliSession<'_>,
    arguments: &NamespaceArgs,
) -> Result<(), CliError> {
    let NamespacesCommand::Set(NamespaceSetArgs { name, changes }) = &arguments.command;
    for _ in 0..ATTEMPTS {
        let item = match session.client.namespace(name).await {
            Ok(item) => item,
            Err(error) => {
                return Err(get::missing::<NamespaceItem>(session, error, None, name).await);
            }
        };
        match set(session, name, &item, changes).await {
            Ok(result) => {
                let line = format!("namespace/{name} {}", result.outcome);
                session.console.line(&line)?;
                session.console.warnings(&result.warnings);
                return Ok(());
            }
            Err(error) if error.status() == Some(412) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(CliError::failed(format!(
        "others keep changing namespace `{name}`; nothing was changed"
    )))
}

/// Sends the changes. Quotas and access are two requests, of which the second depends on the first.
async fn set(
    session: &CliSession<'_>,
    name: &str,
    item: &NamespaceItem,
    changes: &[NamespaceEdit],
) -> Result<ApplyResult, ClientError> {
    let client = &session.client;
    let has_quota = |change: &NamespaceEdit| matches!(change, NamespaceEdit::Quota { .. });
    let version = &item.metadata.resource_version;
    let mut quota_set = None;
    if changes.iter().any(has_quota) {
        let quota = quota_after(&item.spec.quota, changes);
        let result = client.set_namespace_quota(name, &quota, version).await?;
        quota_set = Some(result);
    }
    if let Some(result) = quota_set.take_if(|_| changes.iter().all(has_quota)) {
        return Ok(result);
    }
    let metadata = NamespaceMetadata {
        name: name.to_owned(),
        labels: item.metadata.labels.clone(),
    };
    let request = NamespaceRequest {
        api_version: None,
        kind: None,
        metadata,
        spec: Some(access_after(item, changes)),
    };
    let version = match &quota_set {
        Some(result) => &result.metadata.resource_version,
        None => version,
    };
    client.set_namespace(&request, version).await
}

/// Which other namespaces may reach the workloads of a namespace, in words.
pub(crate) fn reached_by(isolation: NamespaceIsolation, allowed: &[String]) -> String {
    let all = isolation == NamespaceIsolation::Shared || allowed.iter().any(|name| name == "*");
    match (all, allowed) {
        (true, _) => "all namespaces".to_owned(),
        (false, []) => "itself".to_owned(),
        (false, names) => names.join(", "),
    }
}

/// Requests in words, such as `cpu 100m, memory 64Mi`.
pub(crate) fn requests_in_words(requests: &ResourceList) -> String {
    let cpu = requests.cpu.map(|cpu| format!("cpu {cpu}"));
    let memory = requests.memory.map(|memory| format!("memory {memory}"));
    let both: Vec<_> = cpu.into_iter().chain(memory).collect();
    both.join(", ")
}

/// The use of each quota, and of resources without one: `instances 3 of 10`. A quota that holds by
/// default is shown where some of it is used.
pub(crate) fn lines(quota: &Amounts, used: &Amounts) -> Vec<String> {
    let line = |counted: QuotaResource| {
        let used = used.get(counted).unwrap_or(0);
        let shown = format!("{} {}", counted.word(), counted.show(used));
        let by_default = counted.default_quota().filter(|_| used > 0);
        match quota.get(counted).or(by_default) {
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
        let quota = quota_after(&before, &changes);
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
        let orders = |quota: Option<u64>, used: u64| {
            let amounts = |certificate_orders| Amounts {
                certificate_orders,
                ..Amounts::default()
            };
            lines(&amounts(quota), &amounts(Some(used))).join(", ")
        };
        assert_eq!(orders(None, 0), "");
        assert_eq!(orders(None, 3), "certificateOrders 3 of 20");
        assert_eq!(orders(Some(50), 0), "certificateOrders 0 of 50");
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

    #[test]
    fn default_requests_are_set_one_by_one_and_left_alone_by_other_changes() {
        let before = ResourceList {
            cpu: Some(MilliCpu(100)),
            ..ResourceList::default()
        };
        let after = |texts: &[&str]| {
            let edits: Vec<_> = texts.iter().map(|text| parse(text).unwrap()).collect();
            defaults_after(&before, &edits).map(|defaults| {
                let DefaultRequests { cpu, memory } = defaults.requests;
                requests_in_words(&ResourceList {
                    cpu,
                    memory,
                    storage: None,
                })
            })
        };
        assert_eq!(after(&["workloads=3", "isolation=Shared"]), None);
        assert_eq!(
            after(&["defaults.requests.memory=64Mi"]).as_deref(),
            Some("cpu 100m, memory 64Mi")
        );
        assert_eq!(after(&["defaults.requests.cpu=none"]).as_deref(), Some(""));
        for wrong in ["defaults.requests.cpu=much", "defaults.requests.gpu=1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_not_named_of_who_may_reach_a_namespace_stays() {
        let mut item = NamespaceItem {
            kind: "Namespace".to_owned(),
            metadata: kat_types::api::Metadata::default(),
            spec: kat_types::api::NamespaceSpec::default(),
            status: kat_types::api::NamespaceStatus::default(),
        };
        item.spec.allow_namespaces = vec!["ops".to_owned()];
        let after = |texts: &[&str]| {
            let edits: Vec<_> = texts.iter().map(|text| parse(text).unwrap()).collect();
            let access = access_after(&item, &edits);
            reached_by(access.isolation, &access.allow_namespaces)
        };
        assert_eq!(after(&["workloads=3"]), "ops");
        assert_eq!(after(&["isolation=Shared"]), "all namespaces");
        assert_eq!(after(&["allowNamespaces=web,ops"]), "web, ops");
        assert_eq!(after(&["allowNamespaces=*"]), "all namespaces");
        assert_eq!(
            after(&["allowNamespaces=none", "isolation=Private"]),
            "itself"
        );
        for wrong in [
            "isolation=",
            "isolation=shared",
            "allowNamespaces=",
            "allowNamespaces=A,b",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
