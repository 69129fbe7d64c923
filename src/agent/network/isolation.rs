//! Isolation of namespaces: what `kat-net` has to know of the cluster's instances, from the store's
//! keys, and what it says of it.

use std::{collections::BTreeSet, path::Path};

use jiff::Timestamp;
use serde::Deserialize;

use super::files::{entries_below, read};
use kat_host::files;
use kat_store::mirror::{MirrorEntries, MirrorState};
use kat_types::{
    api::{ConnectionEnd, IsolationReport, RefusedReport},
    machine::{
        isolation::{
            EVERY_NAMESPACE, IsolationMode, IsolationRules, IsolationState, RefusedTraffic,
            TrafficEnd,
        },
        network::Transport,
    },
    resource::{ClusterSpec, Isolation, NamespaceAccess, NamespaceIsolation, Protocol},
    services::{NamespaceNetwork, ServiceAccess},
    store::{keys, records::Allocation},
};

/// Largest state of isolation that is read, in bytes.
const STATE_LIMIT: u64 = 1 << 20;

/// The rules of a machine that knows no instance of the cluster yet.
pub(crate) fn first_rules(spec: &ClusterSpec) -> IsolationRules {
    IsolationRules {
        schema: 1,
        mode: spec.isolation.into(),
        ..IsolationRules::default()
    }
}

/// Whether the rules of two states may differ.
pub(crate) fn differs(before: &MirrorState, after: &MirrorState) -> bool {
    let revision = |state: &MirrorState, key: &str| {
        let entry = state.entries.get(key);
        entry.map_or(0, |entry| entry.mod_revision)
    };
    let has_changed = |key: &str| revision(before, key) != revision(after, key);
    let mut settings = [keys::WANTED_CONFIGURATION, keys::CLUSTER].into_iter();
    let mut prefixes = [keys::ALLOCATIONS, keys::NETWORK_NAMESPACES].into_iter();
    settings.any(has_changed)
        || prefixes.any(|prefix| !after.same_below(before, prefix))
        || (!after.same_below(before, keys::SERVICES)
            && !access_revisions(&before.entries).eq(access_revisions(&after.entries)))
}

/// The objects that say which namespaces may reach a workload, with their revisions.
fn access_revisions(entries: &MirrorEntries) -> impl Iterator<Item = (&str, i64)> {
    let services = entries_below(entries, keys::SERVICES);
    let accesses = services.filter(|(key, _)| key.ends_with("/access"));
    accesses.map(|(key, entry)| (key, entry.mod_revision))
}

/// The rules from the store's keys at a revision. What this version can't read, because a newer version
/// wrote it, allows nothing.
pub(crate) fn rules(entries: &MirrorEntries, revision: i64) -> IsolationRules {
    let mut rules = IsolationRules {
        schema: 1,
        mode: mode(entries),
        revision,
        ..IsolationRules::default()
    };
    for (key, entry) in entries_below(entries, keys::ALLOCATIONS) {
        let Some(instance) = key.strip_suffix("/ip") else {
            continue;
        };
        let Some(allocation) = read::<Allocation>(entry) else {
            continue;
        };
        if allocation.released || allocation.namespace.is_empty() {
            continue;
        }
        let namespace = rules.namespaces.entry(allocation.namespace).or_default();
        let workload = namespace.workloads.entry(allocation.workload).or_default();
        workload
            .instances
            .insert(allocation.address, instance.to_owned());
    }
    for (name, entry) in entries_below(entries, keys::NETWORK_NAMESPACES) {
        if let Some(known) = read::<NamespaceNetwork>(entry) {
            let namespace = rules.namespaces.entry(name.to_owned()).or_default();
            namespace.allow = allowed(&known.access);
        }
    }
    for (key, entry) in entries_below(entries, keys::SERVICES) {
        let Some((namespace, workload)) = key
            .strip_suffix("/access")
            .and_then(|name| name.split_once('/'))
        else {
            continue;
        };
        let namespace = rules.namespaces.get_mut(namespace);
        let workload = namespace.and_then(|namespace| namespace.workloads.get_mut(workload));
        if let (Some(workload), Some(access)) = (workload, read::<ServiceAccess>(entry)) {
            workload.allow = access.allow_namespaces.into_iter().collect();
        }
    }
    rules
}

/// Whether rules have to be written in the place of those that were written last: they differ in more
/// than the revision, or the leader waits for a later one, to give an address to another namespace.
pub(crate) fn replaces(
    next: &IsolationRules,
    written: &IsolationRules,
    entries: &MirrorEntries,
) -> bool {
    let is_awaited = || {
        entries_below(entries, keys::ALLOCATIONS).any(|(_, entry)| {
            entry.mod_revision > written.revision
                && read::<Allocation>(entry).is_some_and(|allocation| allocation.released)
        })
    };
    (next.mode, &next.namespaces) != (written.mode, &written.namespaces)
        // After a restore.
        || next.revision < written.revision
        || is_awaited()
}

/// The cluster's setting. A word of a later version isolates; other settings of a later version make
/// no difference.
fn mode(entries: &MirrorEntries) -> IsolationMode {
    let places = [
        (keys::WANTED_CONFIGURATION, "/configuration/spec/isolation"),
        (keys::CLUSTER, "/spec/isolation"),
    ];
    let stored = places.into_iter().find_map(|(key, place)| {
        let entry = entries.get(key)?;
        Some((read::<serde_json::Value>(entry)?, place))
    });
    let Some((stored, place)) = stored else {
        return IsolationMode::None;
    };
    let Some(word) = stored.pointer(place) else {
        return IsolationMode::None;
    };
    let isolation = Isolation::deserialize(word);
    isolation.map_or(IsolationMode::Namespaces, IsolationMode::from)
}

fn allowed(access: &NamespaceAccess) -> BTreeSet<String> {
    match access.isolation {
        NamespaceIsolation::Shared => BTreeSet::from([EVERY_NAMESPACE.to_owned()]),
        NamespaceIsolation::Private => access.allow_namespaces.iter().cloned().collect(),
    }
}

/// What `kat-net` says of isolation in this file; `None` where it has said nothing since the boot.
pub(crate) fn report(path: &Path) -> Option<IsolationReport> {
    let text = files::read_bounded(path, STATE_LIMIT).ok()?;
    let state: IsolationState = serde_json::from_slice(&text).ok()?;
    Some(IsolationReport {
        mode: state.mode.map(|mode| match mode {
            IsolationMode::None => Isolation::None,
            IsolationMode::Audit => Isolation::Audit,
            IsolationMode::Namespaces => Isolation::Namespaces,
        }),
        revision: state.revision,
        problem: state.problem,
        refused: state.refused.into_iter().map(refused).collect(),
    })
}

fn refused(traffic: RefusedTraffic) -> RefusedReport {
    let end = |end: TrafficEnd| ConnectionEnd {
        namespace: end.namespace,
        workload: end.workload,
        instance: end.instance,
    };
    let last = i64::try_from(traffic.last).ok();
    let last = last.and_then(|last| Timestamp::from_second(last).ok());
    RefusedReport {
        from: end(traffic.from),
        to: end(traffic.to),
        protocol: traffic.protocol.map(|protocol| match protocol {
            Transport::Tcp => Protocol::Tcp,
            Transport::Udp => Protocol::Udp,
        }),
        port: traffic.port,
        packets: traffic.packets,
        last: last.into(),
        passed: traffic.passed,
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, sync::Arc};

    use serde_json::json;

    use super::*;
    use kat_types::store::transaction::KeyValue;

    fn entries(pairs: &[(&str, serde_json::Value)]) -> MirrorEntries {
        let entry = |key: &str, value: &serde_json::Value| KeyValue {
            key: key.to_owned(),
            value: value.to_string().into_bytes(),
            mod_revision: 1,
            create_revision: 1,
        };
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| (Arc::from(*key), Arc::new(entry(key, value))))
            .collect()
    }

    fn allocation(last: u8, namespace: &str, released: bool) -> serde_json::Value {
        json!({
            "schema": 1, "node": "n1", "address": format!("10.100.0.{last}"), "later": true,
            "namespace": namespace, "workload": "web", "released": released,
        })
    }

    #[test]
    fn the_rules_have_every_address_in_use_with_those_that_may_reach_it() {
        let spec = json!({"clusterCIDR": "10.100.0.0/16", "isolation": "Audit"});
        let cluster = json!({"metadata": {"name": "home"}, "spec": spec});
        let entries = entries(&[
            ("/kat/config/cluster", cluster),
            (
                "/kat/network/allocations/web-aaaaa/ip",
                allocation(2, "shop", false),
            ),
            (
                "/kat/network/allocations/web-bbbbb/ip",
                allocation(3, "shop", true),
            ),
            (
                "/kat/network/allocations/web-ccccc/ip",
                allocation(4, "open", false),
            ),
            (
                "/kat/network/allocations/web-ddddd/ip",
                json!({"schema": 1, "node": "n1", "address": "10.100.0.5"}),
            ),
            (
                "/kat/network/namespaces/open",
                json!({"schema": 1, "isolation": "Shared", "allowNamespaces": ["ops"]}),
            ),
            (
                "/kat/network/namespaces/later",
                json!({"schema": 2, "isolation": "Tuesdays", "allowNamespaces": ["ops"]}),
            ),
            (
                "/kat/network/services/shop/web/access",
                json!({"schema": 1, "allowNamespaces": ["ops", "*"]}),
            ),
            (
                "/kat/network/services/shop/gone/access",
                json!({"schema": 1, "allowNamespaces": ["ops"]}),
            ),
        ]);

        let rules = rules(&entries, 7);

        assert_eq!((rules.mode, rules.revision), (IsolationMode::Audit, 7));
        let names: Vec<_> = rules.namespaces.keys().map(String::as_str).collect();
        assert_eq!(names, ["later", "open", "shop"]);
        let shop = &rules.namespaces["shop"];
        assert!(shop.allow.is_empty());
        let web = &shop.workloads["web"];
        let addresses: Vec<_> = web.instances.iter().collect();
        let address = Ipv4Addr::new(10, 100, 0, 2);
        assert_eq!(addresses, [(&address, &"web-aaaaa".to_owned())]);
        assert_eq!(web.allow, ["*", "ops"].map(str::to_owned).into());
        assert_eq!(shop.workloads.len(), 1);
        let open = &rules.namespaces["open"].allow;
        assert_eq!(*open, ["*".to_owned()].into());
        assert_eq!(rules.namespaces["later"].allow, ["ops".to_owned()].into());
    }

    #[test]
    fn rules_with_a_new_revision_alone_are_written_while_the_leader_waits_for_it() {
        let key = "/kat/network/allocations/web-aaaaa/ip";
        let of = |released| entries(&[(key, allocation(2, "shop", released))]);
        let [used, released] = [of(false), of(true)];
        let written = |revision| rules(&used, revision);
        assert!(!replaces(&rules(&used, 8), &written(7), &used));
        assert!(replaces(&rules(&used, 6), &written(7), &used), "a restore");
        assert!(replaces(&rules(&released, 8), &written(7), &released));
        // The mark has the revision 1.
        let written = |revision| rules(&released, revision);
        assert!(replaces(&rules(&released, 2), &written(0), &released));
        assert!(!replaces(&rules(&released, 2), &written(1), &released));
    }

    #[test]
    fn a_store_without_the_setting_isolates_nothing_and_one_of_a_later_version_isolates() {
        let mode = |pairs: &[(&str, serde_json::Value)]| super::mode(&entries(pairs));
        let cluster = |spec| json!({"metadata": {"name": "home"}, "spec": spec});
        let key = "/kat/config/cluster";
        assert_eq!(mode(&[]), IsolationMode::None);
        assert_eq!(mode(&[(key, cluster(json!({})))]), IsolationMode::None);
        let spec = json!({"isolation": "Zones"});
        assert_eq!(mode(&[(key, cluster(spec))]), IsolationMode::Namespaces);
        let audit = json!({"isolation": "Audit", "later": {"mesh": 1}, "mtu": "large"});
        let wanted = json!({"configuration": cluster(audit)});
        let isolated = cluster(json!({"isolation": "Namespaces"}));
        assert_eq!(mode(&[(key, isolated.clone())]), IsolationMode::Namespaces);
        let both = [(key, isolated), ("/kat/config/wanted", wanted)];
        assert_eq!(mode(&both), IsolationMode::Audit);
    }

    #[test]
    fn what_kat_net_says_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("isolation.json");
        assert_eq!(report(&path), None);
        let end = |namespace: &str| json!({"namespace": namespace, "workload": "web", "instance": "web-a"});
        let state = json!({
            "schema": 1, "mode": "namespaces", "revision": 9, "problem": "nft: no",
            "refused": [{"from": end("a"), "to": end("b"), "protocol": "tcp", "port": 80,
                         "packets": 3, "last": 1_700_000_000}],
        });
        std::fs::write(&path, state.to_string()).unwrap();

        let report = report(&path).unwrap();

        assert_eq!(report.mode, Some(Isolation::Namespaces));
        assert_eq!(
            (report.revision, report.problem.as_deref()),
            (9, Some("nft: no"))
        );
        let one = &report.refused[0];
        assert_eq!(
            (one.from.namespace.as_str(), one.to.namespace.as_str()),
            ("a", "b")
        );
        assert_eq!(
            (one.protocol, one.port, one.packets),
            (Some(Protocol::Tcp), 80, 3)
        );
        let last = one.last.get().map(|last| last.as_second());
        assert_eq!((last, one.passed), (Some(1_700_000_000), false));
    }
}
