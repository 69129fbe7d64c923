//! The objects of the store: one row for each kind of key, from which the machines that see a key
//! and the table in `docs/internals/etcd-keys.md` follow.

use super::keys;

/// The machines without the store that see an object. Machines that hold the store read all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeenBy {
    /// None.
    None,
    /// Every machine.
    All,
    /// The machine whose name is the part `NODE` of the key.
    Node,
}

/// One kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredObject {
    /// Its key below [`keys::ROOT`]. A part in capitals stands for any text without `/`, and `...` at
    /// the end for any text.
    pub key: &'static str,
    /// The machines without the store that see it.
    pub seen_by: SeenBy,
    /// What it holds, in Markdown.
    pub holds: &'static str,
}

const fn row(key: &'static str, seen_by: SeenBy, holds: &'static str) -> StoredObject {
    StoredObject {
        key,
        seen_by,
        holds,
    }
}

/// Every object of the store. A key has the first row that fits.
pub const STORED_OBJECTS: &[StoredObject] = &[
    row(
        "authorities/NAME",
        SeenBy::None,
        "an authority: who signs, who holds its key, and its replacement",
    ),
    row(
        "backup",
        SeenBy::None,
        "when the leader made its last backup, or why not",
    ),
    row(
        "config/cluster",
        SeenBy::All,
        "settings of the cluster by which leaders go",
    ),
    row(
        "config/cluster_authority",
        SeenBy::All,
        "which certificates of `cluster-ca` the machines trust and use",
    ),
    row("config/cluster_uid", SeenBy::All, "identity of the cluster"),
    row(
        "config/endpoints",
        SeenBy::All,
        "where each machine answers, who holds etcd, and hashes of their keys",
    ),
    row(
        "config/leader_endpoint",
        SeenBy::All,
        "`host:port` of the leader's API",
    ),
    row(
        "config/leader_name",
        SeenBy::All,
        "the machine that leads, written with its endpoint",
    ),
    row(
        "config/members",
        SeenBy::All,
        "etcd's members: id, vote, answer; ids of those that have left",
    ),
    row(
        "config/registries",
        SeenBy::All,
        "how registries are reached",
    ),
    row(
        "config/store_epoch",
        SeenBy::All,
        "how often the store was begun anew, with the proofs",
    ),
    row(
        "config/wanted",
        SeenBy::All,
        "the settings that users want and machines follow, with number, time and author of the change",
    ),
    row(
        "configurations/NUMBER",
        SeenBy::None,
        "settings before the present ones, with time and author; the last 20",
    ),
    row(
        "dns/NS/W/KIND/VALUE",
        SeenBy::All,
        "a record; KIND is `A`, VALUE an address, or `instance=address`",
    ),
    row(
        "events/ID",
        SeenBy::None,
        "an event; at most 1000, and none that has not recurred for 72 h",
    ),
    row(
        "indexes/last",
        SeenBy::None,
        "the index that was given away last",
    ),
    row(
        "indexes/INDEX",
        SeenBy::None,
        "the workload that owns an index",
    ),
    row(
        "leader_election/ID",
        SeenBy::None,
        "a candidate of the election, as etcd's own package `concurrency` writes it",
    ),
    row(
        "ingress/accounts/ID",
        SeenBy::None,
        "the account at a server for certificates (ACME), its key sealed; never deleted",
    ),
    row(
        "ingress/authority",
        SeenBy::None,
        "KAT's own authority for ingress, its key sealed",
    ),
    row(
        "ingress/certificates/HOST",
        SeenBy::None,
        "a certificate of that authority or by ACME, its key sealed",
    ),
    row(
        "ingress/challenges/TOKEN",
        SeenBy::All,
        "what port 80 answers to a challenge of ACME, which every stranger may fetch",
    ),
    row(
        "ingress/claims",
        SeenBy::None,
        "empty; written with every change of who has which host or alias, or ports 80 and 443",
    ),
    row(
        "ingress/dns/VALUE",
        SeenBy::None,
        "a record of DNS that answers a challenge of ACME, until the leader has removed it",
    ),
    row(
        "ingress/new_orders/NS",
        SeenBy::None,
        "how many certificates were ordered for hosts of a namespace that had none; deleted after 24 h",
    ),
    row(
        "jobs/NS/W/state",
        SeenBy::None,
        "what of a Job's schedule is decided, and whether it is suspended",
    ),
    row(
        "jobs/NS/W/runs/RUN",
        SeenBy::None,
        "a run of a Job; RUN is its scheduled time, `manual-NUMBER` or `generation-NUMBER`",
    ),
    row(
        "ingress/renewal",
        SeenBy::None,
        "the round that certificates of KAT's own authority have to be of; it rises when a machine is deleted",
    ),
    row(
        "ingress/sticky",
        SeenBy::None,
        "the key of the cookies of sticky routes, sealed",
    ),
    row(
        "ingress/orders/HOST",
        SeenBy::None,
        "the order of a certificate by ACME, or why the last one failed",
    ),
    row("namespaces/NS", SeenBy::None, "a namespace"),
    row(
        "network/allocations/I/ip",
        SeenBy::All,
        "address of an instance, with its namespace and workload",
    ),
    row(
        "network/config/overlay_cidr",
        SeenBy::None,
        "the network of the overlay",
    ),
    row(
        "network/namespaces/NS",
        SeenBy::All,
        "which other namespaces may reach the workloads of a namespace",
    ),
    row(
        "network/nodes/NODE/reach",
        SeenBy::All,
        "how a machine is reached besides its addresses",
    ),
    row(
        "network/nodes/NODE/subnet",
        SeenBy::All,
        "a machine's part of the overlay",
    ),
    row(
        "network/nodes/NODE/wg_endpoints",
        SeenBy::All,
        "`host:port` of a machine's WireGuard",
    ),
    row(
        "network/nodes/NODE/wg_pubkey",
        SeenBy::All,
        "public key of a machine's WireGuard",
    ),
    row(
        "network/services/NS/W/access",
        SeenBy::All,
        "which other namespaces may reach a workload besides",
    ),
    row(
        "network/services/NS/W/balance",
        SeenBy::All,
        "ports of a service, and which instances serve, leave, are away or are held",
    ),
    row(
        "network/services/NS/W/host_ports",
        SeenBy::None,
        "the host ports chosen for `auto`",
    ),
    row(
        "network/services/NS/W/ip",
        SeenBy::All,
        "address of a service",
    ),
    row(
        "network/virtual/ADDRESS",
        SeenBy::All,
        "the machine that is to hold a virtual address, with the number of that decision",
    ),
    row(
        "nodes/desired/NODE/images",
        SeenBy::Node,
        "images that the machine keeps, by workload user",
    ),
    row(
        "nodes/desired/NODE/instances/I",
        SeenBy::Node,
        "a complete assignment",
    ),
    row(
        "nodes/desired/NODE/meta",
        SeenBy::Node,
        "revision and count that confirm the list of assignments",
    ),
    row(
        "nodes/desired/NODE/moves/NS/W/V",
        SeenBy::Node,
        "a volume that the machine has to send or receive",
    ),
    row(
        "nodes/desired/NODE/removals/NS/W/V",
        SeenBy::Node,
        "a volume that the machine has to remove",
    ),
    row(
        "nodes/desired/NODE/routes/NS/W",
        SeenBy::Node,
        "routes that the machine serves, with certificates and passwords sealed for it",
    ),
    // A machine of a later version reads its own key also where an earlier one has the store.
    row(
        "nodes/desired/NODE/LATER...",
        SeenBy::Node,
        "what a later version has the machine do",
    ),
    row(
        "nodes/registration/NODE",
        SeenBy::None,
        "a machine: identity, addresses, labels, and what users decided about it",
    ),
    row("nodes/status/NODE", SeenBy::None, "a machine's status"),
    row(
        "planned",
        SeenBy::None,
        "empty; written with every plan, so that its revision identifies the last plan",
    ),
    row(
        "registries/NS/REGISTRY...",
        SeenBy::None,
        "sealed credentials; REGISTRY is `HOST[/PATH]`",
    ),
    row(
        "routes/ROUTE...",
        SeenBy::None,
        "a route to something outside KAT; ROUTE is `HOST/PATH`",
    ),
    row("schema_version", SeenBy::None, "`v1.0`"),
    row(
        "sealing/NUMBER",
        SeenBy::None,
        "a key that seals secrets, sealed with the recovery key",
    ),
    row(
        "secrets/NS/NAME",
        SeenBy::None,
        "a secret: keys with sizes, version, sealed values",
    ),
    row("tokens/ID", SeenBy::None, "a token, hashed"),
    row(
        "volumes/NS/W/V",
        SeenBy::None,
        "the machine that has a volume's data",
    ),
    row(
        "workloads/archive/NS/W/GENERATION/meta",
        SeenBy::None,
        "origin of a generation",
    ),
    row(
        "workloads/archive/NS/W/GENERATION/FILE",
        SeenBy::None,
        "files of the generations that are kept",
    ),
    row(
        "workloads/desired/NS/W/manifest/FILE",
        SeenBy::None,
        "a file as written; `files.pack` is what volumes mount",
    ),
    row(
        "workloads/desired/NS/W/meta",
        SeenBy::None,
        "generation, hashes, index, pause, restart",
    ),
    row(
        "workloads/status/NS/W",
        SeenBy::None,
        "phase, counts, conditions, rollout, good generations",
    ),
];

impl StoredObject {
    /// The row of a key; `None` for a key that this version does not know.
    pub fn of(key: &str) -> Option<&'static Self> {
        let below = key.strip_prefix(keys::ROOT)?;
        STORED_OBJECTS.iter().find(|object| object.has(below))
    }

    /// The machine that the key of this object is about, for rows with the part `NODE`.
    pub fn node_of(self, key: &str) -> Option<&str> {
        let at = self.key.split('/').position(|part| part == "NODE")?;
        key.strip_prefix(keys::ROOT)?.split('/').nth(at)
    }

    /// Whether a key, without [`keys::ROOT`], is one of this object's.
    fn has(&self, below: &str) -> bool {
        let (wanted, most) = match self.key.strip_suffix("...") {
            Some(wanted) => (wanted, wanted.split('/').count()),
            None => (self.key, usize::MAX),
        };
        let mut found = below.splitn(most, '/');
        let is_name = |part: &str| part.bytes().all(|byte| byte.is_ascii_uppercase());
        let fits = wanted.split('/').all(|part| {
            let found = found.next().filter(|found| !found.is_empty());
            found.is_some_and(|found| found == part || is_name(part))
        });
        fits && found.next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    const BEGIN: &str = "<!-- table: begin -->\n";
    const END: &str = "<!-- table: end -->\n";

    fn table() -> String {
        let mut table = "| key | seen by | value |\n|---|---|---|\n".to_owned();
        for object in STORED_OBJECTS {
            let seen_by = match object.seen_by {
                SeenBy::None => "",
                SeenBy::All => "all",
                SeenBy::Node => "NODE",
            };
            let StoredObject { key, holds, .. } = object;
            table.push_str(&format!("| `{key}` | {seen_by} | {holds} |\n"));
        }
        table
    }

    #[test]
    fn the_page_of_keys_has_every_object() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/etcd-keys.md");
        let text = std::fs::read_to_string(&page).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (_, after) = rest.split_once(END).unwrap();
        let wanted = format!("{before}{BEGIN}{}{END}{after}", table());
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(&page, &wanted).unwrap();
        } else {
            assert_eq!(
                text, wanted,
                "docs/internals/etcd-keys.md is outdated: UPDATE_SCHEMA=1 cargo nextest run --package kat-types stored_objects"
            );
        }
    }

    #[test]
    fn no_row_hides_a_later_one() {
        let mut seen = BTreeSet::new();
        for object in STORED_OBJECTS {
            assert!(seen.insert(object.key), "{} has two rows", object.key);
            let example = object.key.replace("...", "/more");
            let key = format!("{}{example}", keys::ROOT);
            assert_eq!(StoredObject::of(&key), Some(object));
            assert_eq!(object.node_of(&key).is_some(), object.key.contains("NODE"));
        }
    }

    #[test]
    fn a_key_with_an_empty_missing_or_further_part_is_of_no_object() {
        for key in [
            "/kat/",
            "/kat/backup/",
            "/kat/nodes/status/",
            "/kat/nodes/status/n1/more",
            "/kat/nodes/desired//meta",
            "/kat/nodes/desired/n1",
            "/kat/registries/default",
            "/kat/registries/default/",
            "/other/backup",
            "backup",
            "",
        ] {
            assert_eq!(StoredObject::of(key), None, "{key}");
        }
        assert!(StoredObject::of("/kat/registries/default/example.org/some/path").is_some());
    }
}
