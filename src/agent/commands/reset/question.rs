//! The question before a reset: what is stopped, and what becomes of the cluster.

use std::{collections::BTreeSet, path::Path};

use crate::{
    cluster::{cluster_cache::ClusterCache, identity::MachineIdentity},
    commands::setup::read_joined,
    desired_state::desired::DesiredState,
    service::paths,
};

/// Most workloads that are named.
const NAMED: usize = 5;

/// What a reset takes away.
#[derive(Debug, Default, PartialEq, Eq)]
struct ResetExtent {
    /// Workloads with an instance here, as `NAMESPACE/NAME`.
    workloads: BTreeSet<String>,
    /// Name of the cluster; `None` if the machine is in none, or its files cannot be read.
    cluster: Option<String>,
    store: StorePart,
}

/// What this machine holds of the cluster's store.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum StorePart {
    #[default]
    Nothing,
    /// Others hold it too.
    Shared,
    /// No other machine holds it.
    Alone,
}

/// The question, without its answers.
pub(crate) fn question() -> String {
    // Nobody else can read the files, and the reset itself says that it needs root.
    if !rustix::process::geteuid().is_root() {
        return ResetExtent::default().to_string();
    }
    let identity = read_joined();
    let desired = DesiredState::stored(Path::new(paths::DESIRED)).unwrap_or_default();
    let assignments = desired.assignments.values();
    let extent = ResetExtent {
        workloads: assignments
            .map(|one| format!("{}/{}", one.namespace, one.workload))
            .collect(),
        store: identity.as_ref().map_or(StorePart::Nothing, |identity| {
            store_part(identity, ClusterCache::stored())
        }),
        cluster: identity.map(|identity| identity.cluster.metadata.name),
    };
    extent.to_string()
}

fn store_part(identity: &MachineIdentity, known: ClusterCache) -> StorePart {
    let others = known.of_others(identity).endpoints.machines;
    match (identity.etcd, others.values().any(|other| other.etcd)) {
        (false, _) => StorePart::Nothing,
        (true, true) => StorePart::Shared,
        (true, false) => StorePart::Alone,
    }
}

impl std::fmt::Display for ResetExtent {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut named: Vec<&str> = self.workloads.iter().map(String::as_str).collect();
        let more = named.len().saturating_sub(NAMED);
        named.truncate(NAMED);
        let named = named.join(", ");
        match (self.workloads.len(), more) {
            (0, _) => formatter.write_str("this removes every workload of KAT on this machine")?,
            (_, 0) => write!(formatter, "this stops and removes {named} on this machine")?,
            _ => write!(
                formatter,
                "this stops and removes {named} and {more} more on this machine"
            )?,
        }
        formatter.write_str(", with the images; data of volumes and backups stay")?;
        let Some(cluster) = &self.cluster else {
            return Ok(());
        };
        match self.store {
            StorePart::Nothing => write!(formatter, "; the machine leaves the cluster `{cluster}`"),
            StorePart::Shared => write!(
                formatter,
                "; the machine leaves the cluster `{cluster}`, whose store others hold too"
            ),
            StorePart::Alone => write!(
                formatter,
                "; no other machine holds the store of the cluster `{cluster}`, so the cluster ends"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kat_types::api::MachineEndpoints;

    #[test]
    fn the_question_names_the_workloads_and_what_becomes_of_the_cluster() {
        let mut extent = ResetExtent {
            workloads: ["default/web", "shop/db"].map(str::to_owned).into(),
            cluster: Some("home".to_owned()),
            store: StorePart::Alone,
        };
        assert_eq!(
            extent.to_string(),
            "this stops and removes default/web, shop/db on this machine, with the images; data of volumes and \
             backups stay; no other machine holds the store of the cluster `home`, so the cluster ends"
        );
        extent.store = StorePart::Shared;
        assert!(
            extent
                .to_string()
                .ends_with("leaves the cluster `home`, whose store others hold too")
        );
        extent.workloads = (0..9).map(|number| format!("default/w{number}")).collect();
        let text = extent.to_string();
        assert!(
            text.contains("default/w4 and 4 more on this machine"),
            "{text}"
        );
        assert!(!text.contains('\n'), "{text}");
        assert_eq!(
            ResetExtent::default().to_string(),
            "this removes every workload of KAT on this machine, with the images; data of volumes and backups stay"
        );
    }

    #[test]
    fn a_machine_holds_the_store_alone_where_no_other_one_does() {
        let mut identity = MachineIdentity::example("n1");
        let known = |machines: &[(&str, bool)]| {
            let mut known = ClusterCache::default();
            for (name, etcd) in machines {
                let machine = MachineEndpoints {
                    etcd: *etcd,
                    ..MachineEndpoints::default()
                };
                known.endpoints.machines.insert((*name).to_owned(), machine);
            }
            known
        };
        identity.etcd = true;
        let alone = known(&[("n1", true), ("n2", false)]);
        assert_eq!(store_part(&identity, alone), StorePart::Alone);
        let shared = known(&[("n1", true), ("n2", true)]);
        assert_eq!(store_part(&identity, shared), StorePart::Shared);
        identity.etcd = false;
        let worker = known(&[("n1", false), ("n2", true)]);
        assert_eq!(store_part(&identity, worker), StorePart::Nothing);
    }
}
