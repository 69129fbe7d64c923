//! The columns of each kind of item.

use std::{cmp::Ordering, collections::BTreeMap};

use super::{Columns, ListableItem};
use crate::{
    commands::changing::quota,
    console::TextTone,
    output::{
        short_image,
        table::{Cell, tone_of},
        word,
    },
    references::Reference,
    time, volumes,
};
use kat_client::{ClientError, KeyedItem, RequestPath};
use kat_types::api::{
    ASSIGNMENTS_APPLIED, Condition, DISK_PRESSURE, Event, EventFilter, Health, INGRESS_PORTS_OPEN,
    ISOLATION_ENFORCED, InstanceItem, InstancePhase, InstanceStatus, NamespaceItem, NodeItem,
    NodeStatus, OVERVIEW_ONLY, ObjectReference, RouteItem, STORE_SILENT, Scope, SecretItem,
    TokenView, VIRTUAL_ADDRESSES_HELD, VirtualAddressItem, VolumeItem, WorkloadItem, WorkloadPhase,
};
use kat_types::assignment::is_machine_slot;
use kat_types::resource::named_kind::NamedKind;

/// The labels of kinds without labels.
static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

fn namespace_of(item: &impl KeyedItem) -> Cell {
    Cell::new(item.key().0)
}

/// Puts the namespace, if it is shown, before a kind's own columns.
pub(super) fn with_namespace<T>(columns: Columns, namespace: T, rest: Vec<T>) -> Vec<T> {
    let mut all = Vec::with_capacity(rest.len() + 1);
    if columns.namespaces {
        all.push(namespace);
    }
    all.extend(rest);
    all
}

/// Why a workload is not as wanted: the first condition that is not satisfied, or any condition.
pub(crate) fn workload_reason(item: &WorkloadItem) -> Option<&Condition> {
    let status = &item.status;
    if matches!(
        status.phase,
        WorkloadPhase::Running | WorkloadPhase::Succeeded
    ) {
        return None;
    }
    let spoken = |condition: &&Condition| !condition.reason.is_empty();
    let conditions = &status.conditions;
    conditions
        .iter()
        .filter(|condition| !condition.status)
        .find(spoken)
        .or_else(|| conditions.iter().find(spoken))
}

/// Whether a machine without the store shows this one by the cluster's overview, which does not
/// have all of it.
pub(crate) fn is_overview_only(item: &NodeItem) -> bool {
    let mut conditions = item.status.conditions.iter();
    conditions.any(|one| one.kind == OVERVIEW_ONLY && one.status)
}

/// Such as `1 of 2 free`; empty for a machine without GPUs.
fn gpus(status: &NodeStatus) -> String {
    let free = status.gpus.iter().filter(|gpu| !gpu.used).count();
    match status.gpus.len() {
        0 => String::new(),
        all => format!("{free} of {all} free"),
    }
}

/// The reason of a machine's phase; for a healthy machine, whether it is short of disk space, does not
/// act on its list of assignments, does not isolate namespaces, or does not get a virtual address.
fn node_reason(status: &NodeStatus) -> &str {
    let is_shown = |one: &&Condition| match one.kind.as_str() {
        DISK_PRESSURE => one.status,
        ASSIGNMENTS_APPLIED | ISOLATION_ENFORCED | VIRTUAL_ADDRESSES_HELD | INGRESS_PORTS_OPEN => {
            !one.status
        }
        _ => false,
    };
    let shown = status.conditions.iter().find(is_shown);
    match shown.filter(|_| status.reason.is_empty()) {
        Some(condition) => &condition.reason,
        None => &status.reason,
    }
}

/// Such as `Workload default/web` or `Node a`.
pub(crate) fn object(of: &ObjectReference) -> String {
    if of.namespace.is_empty() {
        format!("{} {}", of.kind, of.name)
    } else {
        format!("{} {}/{}", of.kind, of.namespace, of.name)
    }
}

/// Such as `admin`, `read` or `deploy:webshop`.
pub(crate) fn scope(scope: &Scope) -> String {
    match scope {
        Scope::Admin => "admin".to_owned(),
        Scope::Read => "read".to_owned(),
        Scope::Deploy { namespace } => format!("deploy:{namespace}"),
        Scope::Join => "join".to_owned(),
    }
}

/// The scope, and the remaining uses of the token.
fn scope_and_uses(token: &TokenView) -> String {
    let mut scope = scope(&token.scope);
    if token.insecure_trust_network {
        scope.push_str(" without a token");
    }
    match token.uses {
        None => scope,
        Some(0) => format!("{scope}, used up"),
        Some(uses) => format!("{scope}, {uses} left"),
    }
}

impl ListableItem for WorkloadItem {
    const SINGULAR: &'static str = "workload";
    const PLURAL: &'static str = "workloads";
    const NAMESPACED: bool = true;
    const OPTIONAL: &'static [&'static str] = &["AGE", "UPDATED"];

    fn list(namespace: Option<&str>) -> Result<RequestPath, ClientError> {
        RequestPath::workloads(namespace)
    }

    fn item_route(namespace: &str, name: &str) -> Option<Result<RequestPath, ClientError>> {
        Some(RequestPath::workload(namespace, name))
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut rest = vec!["NAME", "TYPE", "PHASE", "READY", "UPDATED", "REASON", "AGE"];
        if columns.wide {
            rest.extend(["GENERATION", "ADDRESS", "HOSTPORTS", "IMAGE"]);
        }
        with_namespace(columns, "NAMESPACE", rest)
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let status = &self.status;
        let source = &self.spec.workload.source;
        let reason = workload_reason(self).map_or("", |condition| condition.reason.as_str());
        let mut rest = vec![
            Cell::new(&self.metadata.name),
            Cell::new(word(&self.spec.workload.kind)),
            Cell::phase(&word(&status.phase)),
            Cell::new(format!("{}/{}", status.ready, status.replicas)),
            Cell::new(status.updated.to_string()),
            Cell::new(reason),
            Cell::new(time::age(columns.now, self.metadata.creation_timestamp)),
        ];
        if columns.wide {
            let git = source.git.as_ref().map(|git| git.repository.as_str());
            rest.push(Cell::new(self.metadata.generation.to_string()));
            let address = status.service_address;
            rest.push(Cell::new(
                address.map_or_else(String::new, |address| address.to_string()),
            ));
            let ports = status.host_ports.iter();
            let ports: Vec<String> = ports
                .map(|port| format!("{}/{}", port.port, word(&port.protocol)))
                .collect();
            rest.push(Cell::new(ports.join(",")));
            let source = source.image.as_deref().or(git).unwrap_or_default();
            rest.push(Cell::new(short_image(source)));
        }
        with_namespace(columns, namespace_of(self), rest)
    }
}

/// The health as one word; empty where nothing checks it, and where its machine does not answer.
pub(crate) fn health_word(status: &InstanceStatus) -> String {
    match status.health {
        _ if status.phase == InstancePhase::Unknown => String::new(),
        Health::NotApplicable => String::new(),
        Health::PendingCheck => "pending".to_owned(),
        other => word(&other),
    }
}

fn health(status: &InstanceStatus) -> Cell {
    match status.health {
        Health::PendingCheck => Cell::toned(health_word(status), TextTone::Busy),
        _ => Cell::phase(&health_word(status)),
    }
}

impl ListableItem for InstanceItem {
    const SINGULAR: &'static str = "instance";
    const PLURAL: &'static str = "instances";
    const NAMESPACED: bool = true;
    const OPTIONAL: &'static [&'static str] = &["AGE"];
    const OPTIONAL_IN_WATCH: &'static [&'static str] = &["AGE", "HEALTH", "RESTARTS"];

    fn list(namespace: Option<&str>) -> Result<RequestPath, ClientError> {
        RequestPath::instances(namespace)
    }

    fn item_route(namespace: &str, name: &str) -> Option<Result<RequestPath, ClientError>> {
        Some(RequestPath::instance(namespace, name))
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut rest = vec![
            "NAME", "NODE", "PHASE", "HEALTH", "RESTARTS", "REASON", "AGE",
        ];
        if columns.wide {
            rest.extend(["WORKLOAD", "IP", "USER", "UNIT", "IMAGE"]);
        }
        with_namespace(columns, "NAMESPACE", rest)
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let status = &self.status;
        let mut rest = vec![
            Cell::new(&self.metadata.name),
            Cell::new(status.node.as_deref().unwrap_or_default()),
            Cell::phase(&word(&status.phase)),
            health(status),
            Cell::new(status.restarts.to_string()),
            Cell::new(&status.reason),
            Cell::new(time::age(columns.now, self.metadata.creation_timestamp)),
        ];
        if columns.wide {
            let address = status.ip.map(|ip| ip.to_string()).unwrap_or_default();
            rest.push(Cell::new(&status.workload));
            rest.push(Cell::new(address));
            rest.push(Cell::new(&status.user));
            rest.push(Cell::new(&status.unit));
            rest.push(Cell::new(short_image(&status.image)));
        }
        with_namespace(columns, namespace_of(self), rest)
    }
}

impl ListableItem for NodeItem {
    const SINGULAR: &'static str = "node";
    const PLURAL: &'static str = "nodes";
    const NAMESPACED: bool = false;
    const OPTIONAL: &'static [&'static str] = &["AGE"];

    fn list(_: Option<&str>) -> Result<RequestPath, ClientError> {
        Ok(RequestPath::nodes())
    }

    fn item_route(_: &str, name: &str) -> Option<Result<RequestPath, ClientError>> {
        Some(RequestPath::node(name))
    }

    fn caution(&self) -> Option<&str> {
        let mut conditions = self.status.conditions.iter();
        let silent = conditions.find(|one| one.kind == STORE_SILENT && one.status);
        silent.map(|one| one.message.as_str())
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut headers = vec![
            "NAME",
            "PHASE",
            "ROLES",
            "ADDRESS",
            "INSTANCES",
            "REASON",
            "AGE",
        ];
        if columns.wide {
            headers.extend([
                "VERSION",
                "SUBNET",
                "ADDRESSES",
                "OVERLAY",
                "CPU",
                "MEMORY",
                "ARCHITECTURE",
                "GPUS",
            ]);
        }
        headers
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let status = &self.status;
        let roles: Vec<String> = status.roles.iter().map(word).collect();
        let mut row = vec![
            Cell::new(&self.metadata.name),
            Cell::phase(&word(&status.phase)),
            Cell::new(roles.join(",")),
            Cell::new(status.addresses.first().map_or("", String::as_str)),
            Cell::new(match is_overview_only(self) {
                true => String::new(),
                false => status.instances.to_string(),
            }),
            Cell::new(node_reason(status)),
            Cell::new(time::age(columns.now, self.metadata.creation_timestamp)),
        ];
        if columns.wide {
            let resources = &status.allocatable;
            let processor = resources.cpu.map(|cpu| cpu.to_string());
            let memory = resources.memory.map(|memory| memory.rounded());
            row.push(Cell::new(&status.version));
            row.push(Cell::new(&status.subnet));
            row.push(Cell::new(status.addresses.join(",")));
            row.push(Cell::new(&status.overlay_address));
            row.push(Cell::new(processor.unwrap_or_default()));
            row.push(Cell::new(memory.unwrap_or_default()));
            row.push(Cell::new(&status.architecture));
            row.push(Cell::new(gpus(status)));
        }
        row
    }
}

impl ListableItem for NamespaceItem {
    const SINGULAR: &'static str = "namespace";
    const PLURAL: &'static str = "namespaces";
    const NAMESPACED: bool = false;

    fn list(_: Option<&str>) -> Result<RequestPath, ClientError> {
        Ok(RequestPath::namespaces())
    }

    fn item_route(_: &str, name: &str) -> Option<Result<RequestPath, ClientError>> {
        Some(RequestPath::namespace(name))
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &self.metadata.labels
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut headers = vec!["NAME", "PHASE", "WORKLOADS", "AGE"];
        if columns.wide {
            headers.extend(["REACHED BY", "QUOTAS"]);
        }
        headers
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let mut row = vec![
            Cell::new(&self.metadata.name),
            Cell::phase(&word(&self.status.phase)),
            Cell::new(self.status.workloads.to_string()),
            Cell::new(time::age(columns.now, self.metadata.creation_timestamp)),
        ];
        if columns.wide {
            let spec = &self.spec;
            let reached_by = quota::reached_by(spec.isolation, &spec.allow_namespaces);
            let quotas = quota::lines(&spec.quota, &self.status.used);
            row.push(Cell::new(reached_by));
            row.push(Cell::new(quotas.join(", ")));
        }
        row
    }
}

impl ListableItem for VolumeItem {
    const SINGULAR: &'static str = "volume";
    const PLURAL: &'static str = "volumes";
    const NAMESPACED: bool = true;
    const OPTIONAL: &'static [&'static str] = &["AGE", "RECLAIM"];

    fn list(namespace: Option<&str>) -> Result<RequestPath, ClientError> {
        RequestPath::volumes(namespace)
    }

    fn item_route(namespace: &str, name: &str) -> Option<Result<RequestPath, ClientError>> {
        let (workload, name) = name.split_once('/').unwrap_or(("", name));
        Some(RequestPath::volume(namespace, workload, name))
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &NO_LABELS
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut rest = vec![
            "WORKLOAD", "VOLUME", "SLOT", "NODE", "STATUS", "RECLAIM", "AGE",
        ];
        if columns.wide {
            rest.extend(["PATH", "USED BY", "KEPT"]);
        }
        with_namespace(columns, "NAMESPACE", rest)
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let (spec, status) = (&self.spec, &self.status);
        // That of a DaemonService follows from the machine.
        let slot = spec.slot.filter(|slot| !is_machine_slot(*slot));
        let slot = slot.map(|slot| slot.to_string());
        let mut rest = vec![
            Cell::new(&spec.workload),
            Cell::new(&self.metadata.name),
            Cell::new(slot.unwrap_or_default()),
            Cell::new(volumes::machine(self)),
            Cell::toned(volumes::state(self), tone_of(&word(&status.phase))),
            Cell::new(word(&spec.reclaim)),
            Cell::new(time::age(columns.now, self.metadata.creation_timestamp)),
        ];
        if columns.wide {
            rest.push(Cell::new(&status.path));
            rest.push(Cell::new(status.used_by.join(",")));
            rest.push(Cell::new(volumes::kept_copies(self)));
        }
        with_namespace(columns, namespace_of(self), rest)
    }
}

impl ListableItem for RouteItem {
    const SINGULAR: &'static str = "route";
    const PLURAL: &'static str = "routes";
    const NAMESPACED: bool = true;
    // The whole address of a redirect is in `describe`.
    const TEXTS: &'static [&'static str] = &["TO"];
    const OPTIONAL: &'static [&'static str] = &["TLS"];

    fn list(namespace: Option<&str>) -> Result<RequestPath, ClientError> {
        RequestPath::routes(namespace)
    }

    fn item_route(_: &str, _: &str) -> Option<Result<RequestPath, ClientError>> {
        None
    }

    /// A host alone names all its routes.
    fn is_named(&self, name: &str) -> bool {
        let path = self.spec.path.trim_end_matches('/');
        match name.split_once('/') {
            None => self.spec.host == name,
            Some((host, wanted)) => {
                self.spec.host == host
                    && path.trim_start_matches('/') == wanted.trim_end_matches('/')
            }
        }
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &NO_LABELS
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut rest = vec!["HOST", "PATH", "WORKLOAD", "TO", "TLS", "SERVING", "STATUS"];
        if columns.wide {
            rest.extend(["MACHINES", "ADDRESSES"]);
        }
        with_namespace(columns, "NAMESPACE", rest)
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let (spec, status) = (&self.spec, &self.status);
        let (workload, serving) = match spec.workload.is_empty() {
            // It leads to something outside KAT.
            true => ("-".to_owned(), "-".to_owned()),
            false => (
                spec.workload.clone(),
                format!("{}/{}", status.serving, status.instances),
            ),
        };
        let mut rest = vec![
            Cell::new(&spec.host),
            Cell::new(&spec.path),
            Cell::new(workload),
            Cell::new(&spec.to),
            Cell::new(&spec.issuer),
            Cell::new(serving),
            Cell::phase(&status.reason),
        ];
        if columns.wide {
            let serves = status.machines.iter().filter(|machine| machine.serves);
            let machines: Vec<&str> = serves.map(|machine| machine.node.as_str()).collect();
            rest.push(Cell::new(machines.join(",")));
            rest.push(Cell::new(status.addresses.join(",")));
        }
        with_namespace(columns, namespace_of(self), rest)
    }
}

/// Such as `Held` or `VirtualAddressTaken`.
pub(crate) fn address_state(item: &VirtualAddressItem) -> &str {
    let status = &item.status;
    match (status.held, status.reason.as_str()) {
        (true, "") => "Held",
        (false, "") => "Moving",
        (_, reason) => reason,
    }
}

impl ListableItem for VirtualAddressItem {
    const SINGULAR: &'static str = "address";
    const PLURAL: &'static str = "addresses";
    const NAMESPACED: bool = false;

    fn list(_: Option<&str>) -> Result<RequestPath, ClientError> {
        Ok(RequestPath::virtual_addresses())
    }

    fn item_route(_: &str, _: &str) -> Option<Result<RequestPath, ClientError>> {
        None
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &NO_LABELS
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut headers = vec!["ADDRESS", "HOLDER", "STATUS", "SINCE"];
        if columns.wide {
            headers.extend(["INTERFACE", "LEADER LOST", "MACHINES"]);
        }
        headers
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let (spec, status) = (&self.spec, &self.status);
        let mut row = vec![
            Cell::new(&spec.address),
            Cell::new(status.holder.as_deref().unwrap_or("-")),
            Cell::phase(address_state(self)),
            Cell::new(time::age(columns.now, status.since)),
        ];
        if columns.wide {
            let machines = status.machines.iter();
            let machines: Vec<String> = machines
                .map(|machine| format!("{} {}", machine.node, word(&machine.state)))
                .collect();
            row.push(Cell::new(&spec.interface));
            row.push(Cell::new(&spec.on_leader_loss));
            row.push(Cell::new(machines.join(", ")));
        }
        row
    }
}

impl ListableItem for SecretItem {
    const SINGULAR: &'static str = "secret";
    const PLURAL: &'static str = "secrets";
    const NAMESPACED: bool = true;

    fn list(namespace: Option<&str>) -> Result<RequestPath, ClientError> {
        RequestPath::secrets(namespace)
    }

    fn item_route(namespace: &str, name: &str) -> Option<Result<RequestPath, ClientError>> {
        Some(RequestPath::secret(namespace, name))
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &NO_LABELS
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut rest = vec!["NAME", "KEYS", "VERSION", "USED BY", "AGE"];
        if columns.wide {
            rest.extend(["UPDATED", "KEY NAMES"]);
        }
        with_namespace(columns, "NAMESPACE", rest)
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let (spec, status) = (&self.spec, &self.status);
        let mut rest = vec![
            Cell::new(&self.metadata.name),
            Cell::new(spec.keys.len().to_string()),
            Cell::new(self.metadata.generation.to_string()),
            Cell::new(status.used_by.join(",")),
            Cell::new(time::age(columns.now, self.metadata.creation_timestamp)),
        ];
        if columns.wide {
            let keys: Vec<&str> = spec.keys.iter().map(|key| key.name.as_str()).collect();
            rest.push(Cell::new(time::age(columns.now, status.updated)));
            rest.push(Cell::new(keys.join(",")));
        }
        with_namespace(columns, namespace_of(self), rest)
    }
}

impl ListableItem for Event {
    const SINGULAR: &'static str = "event";
    const PLURAL: &'static str = "events";
    const NAMESPACED: bool = true;
    const NAME_FILTERS: bool = true;
    // A repeated event replaces its earlier entry, and the oldest events are dropped.
    const GOES: bool = false;
    const OPTIONAL: &'static [&'static str] = &["COUNT", "TYPE"];

    fn list(namespace: Option<&str>) -> Result<RequestPath, ClientError> {
        let query = EventFilter {
            namespace: namespace.map(str::to_owned),
            ..EventFilter::default()
        };
        Ok(RequestPath::events(&query))
    }

    fn item_route(_: &str, _: &str) -> Option<Result<RequestPath, ClientError>> {
        None
    }

    /// An event is selected by the object that it is about.
    fn is_named(&self, name: &str) -> bool {
        self.involved_object.name == name || self.id == name
    }

    /// An event has a kind of its own only where it is named by its id.
    fn is_meant(&self, reference: &Reference) -> bool {
        let about = self.involved_object.kind.word();
        let kind = reference.kind.filter(|kind| *kind != NamedKind::Event);
        self.is_named(&reference.name)
            && kind.is_none_or(|kind| about.eq_ignore_ascii_case(kind.singular()))
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &NO_LABELS
    }

    fn headers(columns: Columns) -> Vec<&'static str> {
        let mut headers = vec!["LAST", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE"];
        if columns.wide {
            headers.insert(1, "FIRST");
        }
        headers
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let mut row = vec![
            Cell::new(time::age(columns.now, self.timestamp)),
            Cell::phase(self.kind.word()),
            Cell::new(&self.reason),
            Cell::new(object(&self.involved_object)),
            Cell::new(self.count.to_string()),
            Cell::new(&self.message),
        ];
        if columns.wide {
            row.insert(1, Cell::new(time::age(columns.now, self.first_timestamp)));
        }
        row
    }

    fn order(left: &Self, right: &Self) -> Ordering {
        (&left.timestamp, &left.id).cmp(&(&right.timestamp, &right.id))
    }
}

impl ListableItem for TokenView {
    const SINGULAR: &'static str = "token";
    const PLURAL: &'static str = "tokens";
    const NAMESPACED: bool = false;
    const TEXTS: &'static [&'static str] = &["NAME"];

    fn list(_: Option<&str>) -> Result<RequestPath, ClientError> {
        Ok(RequestPath::tokens())
    }

    fn item_route(_: &str, _: &str) -> Option<Result<RequestPath, ClientError>> {
        None
    }

    fn labels(&self) -> &BTreeMap<String, String> {
        &NO_LABELS
    }

    fn headers(_: Columns) -> Vec<&'static str> {
        vec!["ID", "NAME", "SCOPE", "AGE", "EXPIRES"]
    }

    fn row(&self, columns: Columns) -> Vec<Cell> {
        let expires = self.expires;
        vec![
            Cell::new(&self.id),
            Cell::new(&self.name),
            Cell::new(scope_and_uses(self)),
            Cell::new(time::age(columns.now, self.created)),
            Cell::new(
                expires.map_or_else(|| "never".to_owned(), |then| time::until(columns.now, then)),
            ),
        ]
    }
}
