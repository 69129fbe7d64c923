//! Derives the problems of a cluster from the API's responses. No input or output.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Display};

use jiff::Timestamp;

use super::{
    InstanceItem, ListableItem, NodeItem, WorkloadItem, is_refused,
    urgency::{LATE_JOIN_SECONDS, Urgency, is_older},
};
use crate::{
    commands::reading::{
        get::rows::{is_overview_only, workload_reason},
        why::{holds_up, reasons},
    },
    output::{one_line, plain, word},
    time,
};
use kat_client::ClientError;
use kat_types::{
    api::{
        AVAILABLE, ApiTime, AuthorityPhase, AuthorityStatus, BackupView, ClusterOverview,
        Condition, DISK_PRESSURE, ETCD_CONDITION, FILES_WRITTEN, Health, HealthView, InstancePhase,
        Metadata, NodePhase, NodeRole, ObjectKind, ObjectReference, OverviewRelayState,
        OverviewStore, READS_FILES, RouteItem, RouteStatus, STORE_EPOCH_REFUSED, StoreView,
        VirtualAddressItem, WorkloadPhase,
    },
    machine::program_version::{ProgramVersion, etcd_has_known_holes, etcd_mended_versions},
    reason::Reason,
    resource::Bytes,
};

/// The problem where the machines that hold the store have no quorum.
const STALE: &str = "no machine leads that can be reached, so nothing can be changed; everything runs on, and what is shown is what was known last. If most that hold the store are gone for good: `sudo kat-agent recover`";
/// The field of what the caller may not read.
const NOT_VISIBLE: &str = "not visible to this caller";

/// Time without an answer over the overlay after which a machine is a problem. The leader has
/// judged it before where enough machines can tell.
const UNANSWERED_SECONDS: u32 = 30;
/// Time after which the replacement of an authority is a problem.
const REPLACED_WITHIN_SECONDS: i64 = 600;
/// Remaining validity below which an authority is a problem.
const AUTHORITY_DAYS: i64 = 30;
/// Remaining validity below which a machine's certificate is a problem. Certificates live 30 days
/// and are renewed after 20, so with fewer days left renewal does not work.
const CERTIFICATE_DAYS: i64 = 5;

/// The API's responses, each possibly an error.
pub(crate) struct StatusResponses {
    pub(crate) health: Result<HealthView, ClientError>,
    pub(crate) nodes: Result<Vec<NodeItem>, ClientError>,
    pub(crate) workloads: Result<Vec<WorkloadItem>, ClientError>,
    pub(crate) instances: Result<Vec<InstanceItem>, ClientError>,
    pub(crate) routes: Result<Vec<RouteItem>, ClientError>,
    /// The namespace of `workloads`, `instances` and `routes`, where the caller may not read all.
    pub(crate) namespace: Option<String>,
    /// The overview that a machine without the store shows; `None` on one that holds it.
    pub(crate) overview: Option<ClusterOverview>,
    pub(crate) authorities: Result<Vec<AuthorityStatus>, ClientError>,
    pub(crate) addresses: Result<Vec<VirtualAddressItem>, ClientError>,
}

impl StatusResponses {
    /// Adds what the agent of the caller's machine says, where another server was asked. Of a machine
    /// in the cluster that is the same, since its agent asks the leader.
    pub(super) fn add_own_health(&mut self, own: Option<HealthView>) {
        if let (Ok(health), Some(own)) = (&mut self.health, own)
            && health.planning.is_empty()
        {
            health.planning = own.planning;
        }
    }

    /// Whether the object of an event exists; true where that is not known.
    pub(super) fn has(&self, object: &ObjectReference) -> bool {
        let is = |metadata: &Metadata| {
            metadata.namespace.as_deref().unwrap_or_default() == object.namespace
                && metadata.name == object.name
        };
        let (nodes, workloads) = (self.nodes.as_ref(), self.workloads.as_ref());
        match &object.kind {
            ObjectKind::Node => nodes.map_or(true, |all| all.iter().any(|one| is(&one.metadata))),
            ObjectKind::Workload => {
                workloads.map_or(true, |all| all.iter().any(|one| is(&one.metadata)))
            }
            ObjectKind::Instance => (self.instances.as_ref())
                .map_or(true, |all| all.iter().any(|one| is(&one.metadata))),
            _ => true,
        }
    }
}

/// The content of the screen.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(crate) leader: String,
    pub(crate) etcd: String,
    pub(crate) nodes: String,
    pub(crate) workloads: String,
    pub(crate) instances: String,
    /// Empty where it is not known.
    pub(crate) backup: String,
    /// Problems because of which the cluster is not healthy.
    pub(crate) troubles: Vec<String>,
    /// Changes in progress without a problem yet.
    pub(crate) under_way: Vec<String>,
    /// Known holes of programs. A cluster with them is well, since the distribution may have nothing
    /// newer.
    pub(crate) security: Vec<String>,
    /// Whether the caller may not read a part, whose problems are not known here.
    pub(crate) partial: bool,
}

impl Findings {
    pub(crate) fn of(known: &StatusResponses, now: Timestamp) -> Self {
        let mut findings = Self::default();
        match &known.health {
            Err(error) => findings
                .troubles
                .push(format!("the API is not well: {error}")),
            Ok(health) => {
                findings
                    .troubles
                    .extend(health.stale.then(|| STALE.to_owned()));
                findings.troubles.extend(health.trouble.clone());
                findings
                    .troubles
                    .extend(health.planning.iter().map(|line| one_line(line)));
            }
        }
        if let Ok(HealthView {
            backup: Some(backup),
            ..
        }) = &known.health
        {
            findings.of_backup(backup, now);
        }
        findings.of_nodes(&known.nodes, is_refused(&known.workloads), now);
        findings.partial |= known.namespace.is_some() || known.overview.is_some();
        if matches!(&known.health, Ok(health) if health.stale) {
            // The members' state is the one that the last leader saw.
            "not known while no machine leads".clone_into(&mut findings.etcd);
        }
        if let Ok(HealthView {
            store: Some(store), ..
        }) = &known.health
        {
            if findings.etcd == NOT_VISIBLE {
                findings.etcd.insert_str(0, "members ");
            }
            findings.etcd.push_str(&weight(store));
            findings.security.extend(known_holes(&store.versions));
        }
        match known
            .overview
            .as_ref()
            .and_then(|one| Some((one, one.relay.as_ref()?)))
        {
            None => {
                findings.of_authorities(known, now);
                findings.of_addresses(known);
                findings.of_routes(known);
                findings.of_workloads(&known.workloads, now);
                findings.of_instances(&known.instances, now);
                if let Some(namespace) = &known.namespace {
                    for counts in [&mut findings.workloads, &mut findings.instances] {
                        counts.push_str(&format!(" in namespace {}", one_line(namespace)));
                    }
                }
            }
            Some((overview, relay)) => {
                findings.of_overview(overview, relay);
                findings.of_instances(&known.instances, now);
                findings
                    .instances
                    .push_str(&format!(" on {}", one_line(&relay.node)));
            }
        }
        findings
    }

    /// What a machine without the store knows of the cluster.
    fn of_overview(&mut self, overview: &ClusterOverview, relay: &OverviewRelayState) {
        let elsewhere = match relay.elsewhere().as_str() {
            "" => String::new(),
            elsewhere => format!("; ask {}", one_line(elsewhere)),
        };
        let node = one_line(&relay.node);
        self.workloads = format!("not known on {node}, which does not hold the store{elsewhere}");
        let store = &overview.store;
        let members = counted_members(store.healthy, store.members);
        let Some(silence) = relay.silence() else {
            self.etcd = members;
            self.troubles
                .extend(overview.stale.then(|| STALE.to_owned()));
            if overview.stale {
                "not known while no machine leads".clone_into(&mut self.etcd);
            } else {
                self.of_store(store);
            }
            return;
        };
        let then = relay.time();
        let ready = overview.nodes.iter();
        let ready = ready.filter(|node| node.phase == NodePhase::Ready).count();
        let all = overview.nodes.len();
        let last = |text: String| match &then {
            Some(then) => format!("not known; {text} {then}"),
            None => "not known".to_owned(),
        };
        self.leader = last(match &overview.leader {
            Some(leader) => format!("{} led", one_line(leader)),
            None => "no machine led".to_owned(),
        });
        self.etcd = last(members);
        self.nodes = last(format!("{ready} of {all} were ready"));
        let shown = match then {
            Some(then) => format!("what is shown of other machines is {then}"),
            None => "nothing is known of other machines since kat-agent started here".to_owned(),
        };
        let mut lines = vec![format!("{}; {shown}", one_line(&silence))];
        let asked = relay.asked.iter().filter(|server| !server.error.is_empty());
        lines.extend(asked.map(|server| {
            format!(
                "{} gave no answer: {}",
                one_line(&server.name),
                one_line(&server.error)
            )
        }));
        // The reason of everything else comes first.
        lines.append(&mut self.troubles);
        self.troubles = lines;
    }

    /// Machines that do not answer others over the overlay, and are not judged: of two machines
    /// neither can be, nor the leader's own.
    fn of_overlay(&mut self, nodes: &[&NodeItem]) {
        let reporting = |node: &&&NodeItem| {
            let status = &node.status;
            let mut conditions = status.conditions.iter();
            !matches!(
                status.phase,
                NodePhase::NotReady | NodePhase::Joining | NodePhase::Detached
            ) && !conditions.any(|one| one.reason == Reason::OverlayDown)
        };
        // Who has had no answer from each, and for how long.
        let mut silent: Vec<(&str, Vec<&str>, u32)> = Vec::new();
        for node in nodes.iter().filter(reporting) {
            let name = node.metadata.name.as_str();
            let mut names = Vec::new();
            let mut longest = 0;
            for other in nodes.iter().filter(reporting) {
                let mut peers = other.status.peers.iter();
                let peer = peers.find(|peer| peer.name == name);
                let seconds = peer.and_then(|peer| peer.unanswered_seconds);
                if let Some(seconds) = seconds.filter(|seconds| *seconds >= UNANSWERED_SECONDS) {
                    names.push(other.metadata.name.as_str());
                    longest = longest.max(seconds);
                }
            }
            silent.push((name, names, longest));
        }
        // One that reaches nobody says so of all: it is named once, by the others.
        silent.sort_by_key(|(_, names, _)| Reverse(names.len()));
        let mut told: Vec<(&str, &str)> = Vec::new();
        for (name, mut names, longest) in silent {
            names.retain(|other| !told.contains(&(name, other)));
            if names.is_empty() {
                continue;
            }
            told.extend(names.iter().map(|other| (*other, name)));
            self.troubles.push(format!(
                "node {name} has not answered {} over the overlay for {longest} s, so connections to it may hang: is WireGuard's port open between them, and does kat-net run on {name}?",
                names.join(", ")
            ));
        }
    }

    fn of_store(&mut self, store: &OverviewStore) {
        if store.quorum == Some(false) {
            self.troubles.push(format!(
                "most members of etcd do not answer ({} of {} do), so nothing can be changed",
                store.healthy, store.members
            ));
        } else if store.healthy < store.members {
            self.troubles.push(format!(
                "{} of {} members of etcd do not answer",
                store.members.saturating_sub(store.healthy),
                store.members
            ));
        }
        for word in &store.reasons {
            let means = reasons::find(word).map_or("", |explanation| explanation.means);
            let line = reason_and_message(word, means);
            let line = line.trim_start_matches(": ").to_owned();
            match reasons::reason_of(word) {
                Some(Reason::EtcdHasKnownHoles) => self.security.push(line),
                _ => self.troubles.push(line),
            }
        }
    }

    fn of_nodes(
        &mut self,
        nodes: &Result<Vec<NodeItem>, ClientError>,
        alone: bool,
        now: Timestamp,
    ) {
        let nodes = match nodes {
            Ok(nodes) => sorted(nodes),
            Err(error) => {
                self.nodes = self.unknown("nodes", error);
                self.leader.clone_from(&self.nodes);
                self.etcd.clone_from(&self.nodes);
                return;
            }
        };
        self.of_leaders(&nodes, alone);
        self.of_members(&nodes, now);
        let ready = nodes
            .iter()
            .filter(|node| node.status.phase == NodePhase::Ready)
            .count();
        self.nodes = format!("{ready} of {} ready", nodes.len());
        self.of_overlay(&nodes);
        for node in nodes {
            self.of_node(node, now);
        }
    }

    fn of_leaders(&mut self, nodes: &[&NodeItem], alone: bool) {
        let leaders: Vec<&str> = nodes
            .iter()
            .filter(|node| node.status.roles.contains(&NodeRole::Leader))
            .map(|node| node.metadata.name.as_str())
            .collect();
        if leaders.is_empty() && alone {
            "not known".clone_into(&mut self.leader);
        } else if leaders.is_empty() {
            "none".clone_into(&mut self.leader);
            self.troubles
                .push("no machine leads: nothing is decided until one is elected".to_owned());
        } else {
            self.leader = leaders.join(", ");
        }
    }

    fn of_node(&mut self, node: &NodeItem, now: Timestamp) {
        let status = &node.status;
        let name = &node.metadata.name;
        let by_overview = is_overview_only(node);
        if by_overview && node.caution().is_some() {
            return;
        }
        let heard = match status.last_heartbeat {
            None if by_overview => String::new(),
            None if status.phase == NodePhase::Joining => " (no report yet)".to_owned(),
            None => " (no report to the present leader)".to_owned(),
            Some(then) => format!(" (last report {} ago)", time::age(now, then)),
        };
        let said = reason_and_message(&status.reason, &status.message);
        let line = format!("node {name} is {}{heard}{said}", word(&status.phase));
        self.of_faults(name, &status.conditions);
        self.of_conditions(&format!("node {name}"), &status.conditions, now);
        let joins = !by_overview && status.phase == NodePhase::Joining;
        let created = node.metadata.creation_timestamp;
        match status.phase {
            // The machine's status is not updated any more.
            NodePhase::Ready if status.reason == Reason::NotWritable => self.troubles.push(line),
            NodePhase::Ready => {}
            NodePhase::NotReady | NodePhase::Detached => self.troubles.push(line),
            NodePhase::Joining if joins && is_older(created, LATE_JOIN_SECONDS, now) => {
                self.troubles.push(line);
            }
            NodePhase::Joining | NodePhase::Draining | NodePhase::Drained => {
                self.under_way.push(line);
            }
        }
    }

    /// The conditions of a machine that have sentences of their own, except those of etcd's members.
    fn of_faults(&mut self, name: &str, conditions: &[Condition]) {
        let unwritten = message_of(conditions, |one| one.kind == FILES_WRITTEN && !one.status);
        self.troubles.extend(unwritten.map(|message| {
            format!("node {name} goes by old files, since new ones cannot be written: {message}")
        }));
        let refused = message_of(conditions, |one| {
            one.kind == STORE_EPOCH_REFUSED && one.status
        });
        self.troubles.extend(
            refused.map(|message| format!("node {name} does not follow the cluster: {message}")),
        );
        let unreachable = message_of(conditions, |one| one.reason == Reason::OverlayDown);
        self.troubles.extend(
            unreachable
                .map(|message| format!("node {name} is unreachable over the overlay: {message}")),
        );
        let short = message_of(conditions, |one| one.kind == DISK_PRESSURE && one.status);
        self.troubles
            .extend(short.map(|message| format!("node {name} is short of disk space: {message}")));
        // It ends with an upgrade, and everything runs meanwhile.
        let older = message_of(conditions, |one| one.kind == READS_FILES && !one.status);
        self.under_way.extend(
            older.map(|message| format!("node {name} has an earlier version of KAT: {message}")),
        );
    }

    fn of_backup(&mut self, backup: &BackupView, now: Timestamp) {
        self.backup = match backup.last {
            Some(last) => format!("{} ago on {}", time::age(now, last), backup.node),
            None => "none yet".to_owned(),
        };
        if backup.failing {
            let line = format!(
                "the leader fails to make backups (last: {}); `katcall get events -A` says why",
                self.backup
            );
            self.troubles.push(line);
        } else if backup.overdue {
            let line = format!(
                "no backup was made for longer than three times backupIntervalMinutes (last: {}); `journalctl -u kat-agent` on the machine that leads says more",
                self.backup
            );
            self.troubles.push(line);
        }
    }

    /// The state of etcd's members is in conditions of their machines.
    fn of_members(&mut self, nodes: &[&NodeItem], now: Timestamp) {
        let members = nodes.iter().filter_map(|node| {
            let mut conditions = node.status.conditions.iter();
            let member = conditions.find(|one| one.kind == ETCD_CONDITION)?;
            Some((&node.metadata.name, member))
        });
        let (mut count, mut well) = (0_usize, 0_usize);
        for (name, member) in members {
            count += 1;
            let line = format!("etcd of {name}: {}", one_line(&member.message));
            match (member.status, Reason::from_word(&member.reason)) {
                (true, _) => well += 1,
                (false, Some(Reason::NoAnswer)) => self.troubles.push(line),
                (false, _) => match late_member(name, member, now) {
                    Some(late) => self.troubles.push(format!("{line}; {late}")),
                    None => self.under_way.push(line),
                },
            }
        }
        self.etcd = counted_members(well, count);
    }

    fn of_authorities(&mut self, known: &StatusResponses, now: Timestamp) {
        let Some(authorities) = self.listed("authorities", known, &known.authorities) else {
            return;
        };
        for one in authorities {
            if one.phase != AuthorityPhase::Settled {
                self.of_replacement(one, now);
            }
            self.of_expiries(one, now);
        }
    }

    /// The virtual addresses that no machine holds.
    fn of_addresses(&mut self, known: &StatusResponses) {
        let Some(addresses) = self.listed("virtual addresses", known, &known.addresses) else {
            return;
        };
        for one in addresses {
            let name = plain(&one.metadata.name);
            let status = &one.status;
            let holder = status.holder.as_deref().map(plain).unwrap_or_default();
            match (reasons::reason_of(&status.reason), status.held) {
                // The condition of the machine says so.
                (Some(Reason::VirtualAddressTaken | Reason::VirtualAddressRefused), _) => {}
                (_, true) if status.reason.is_empty() => {}
                (_, false) if status.reason.is_empty() => self
                    .under_way
                    .push(format!("virtual address {name} is on its way to {holder}")),
                (_, held) => self.troubles.push(format!(
                    "virtual address {name} {}{}",
                    match held {
                        true => "may not be held",
                        false => "is not held",
                    },
                    reason_and_message(&status.reason, &status.message)
                )),
            }
        }
    }

    /// The routes that are not served as they are written.
    fn of_routes(&mut self, known: &StatusResponses) {
        let Some(routes) = self.listed("routes", known, &known.routes) else {
            return;
        };
        for one in sorted(routes) {
            let status = &one.status;
            let of = match (one.spec.workload.as_str(), &one.metadata.namespace) {
                ("", _) => String::new(),
                (workload, None) => format!(" of workload {}", plain(workload)),
                (workload, Some(namespace)) => {
                    format!(" of workload {}/{}", plain(namespace), plain(workload))
                }
            };
            let route = format!("route {}{of}", plain(&one.metadata.name));
            let line = format!(
                "{route} is not served{}",
                reason_and_message(&status.reason, &status.message)
            );
            match reasons::reason_of(&status.reason) {
                Some(Reason::Served) => self.of_served_route(&route, status),
                // A person has switched all routes off.
                Some(Reason::IngressDisabled) => {}
                // The condition of the machine says so, to a caller that sees machines.
                Some(Reason::IngressPortInUse | Reason::IngressFailed) if known.nodes.is_ok() => {}
                // A machine that does not report is named by itself.
                Some(Reason::NodeNotReady) => self.under_way.push(line),
                // The machines are given it.
                Some(Reason::NoIngressMachine) if !status.machines.is_empty() => {
                    self.under_way.push(line);
                }
                Some(_) if is_fault(&status.reason) => self.troubles.push(line),
                Some(_) | None => self.under_way.push(line),
            }
        }
    }

    /// Machines that refuse a route which another one serves, and a certificate that is not renewed
    /// and still valid.
    fn of_served_route(&mut self, route: &str, status: &RouteStatus) {
        for machine in &status.machines {
            if machine.reason == Reason::RouteRefused.word() {
                self.troubles.push(format!(
                    "{route} is not served on {}{}",
                    plain(&machine.node),
                    reason_and_message(&machine.reason, &machine.message)
                ));
            }
        }
        if !status.message.is_empty() {
            let said = reason_and_message("", &status.message);
            self.under_way.push(format!("{route}{said}"));
        }
    }

    fn of_replacement(&mut self, one: &AuthorityStatus, now: Timestamp) {
        let since = one.replacement_since.get();
        // A time that katcall is given to learn of an authority is no delay.
        let due = since.max(one.grace_until.get());
        let lasts = due.map_or(0, |due| now.duration_since(due).as_secs());
        let since = since.map_or_else(String::new, |since| {
            let age = time::age(now, since.into());
            if one.phase == AuthorityPhase::Due {
                format!(" (for {age})")
            } else {
                format!(" (replacement began {age} ago)")
            }
        });
        let line = format!(
            "authority {} is in phase {}{since}{}",
            plain(&one.name),
            word(&one.phase),
            reason_and_message("", &one.message)
        );
        if one.phase == AuthorityPhase::Migration || lasts > REPLACED_WITHIN_SECONDS {
            self.troubles.push(line);
        } else {
            self.under_way.push(line);
        }
    }

    fn of_expiries(&mut self, one: &AuthorityStatus, now: Timestamp) {
        let name = plain(&one.name);
        if let Some(when) = expiry(one.not_after, AUTHORITY_DAYS, now) {
            self.troubles.push(format!("authority {name} {when}"));
        }
        for certificate in &one.certificates {
            if let Some(when) = expiry(certificate.expires, CERTIFICATE_DAYS, now) {
                let node = plain(&certificate.name);
                self.troubles.push(format!(
                    "certificate of {name} on {node} {when} and was not renewed: `journalctl -u kat-agent` on {node} says why"
                ));
            }
        }
    }

    /// Conditions that wait for a person, of an object without a problem of its own phase.
    fn of_conditions(&mut self, object: &str, conditions: &[Condition], now: Timestamp) {
        for one in conditions {
            // These have sentences of their own.
            let told = [
                AVAILABLE,
                ETCD_CONDITION,
                FILES_WRITTEN,
                STORE_EPOCH_REFUSED,
                DISK_PRESSURE,
            ];
            let urgency = Urgency::of_word(&one.reason, Urgency::Calm);
            if !told.contains(&one.kind.as_str())
                && one.reason != Reason::OverlayDown
                && holds_up(one)
                && urgency.is_problem(one.since, now)
            {
                // The type says more than the reason where both differ, as with a blocked drain.
                let kind = one_line(&one.kind);
                let said = reason_and_message(&one.reason, &one.message);
                self.troubles.push(format!("{object}: {kind}{said}"));
            }
        }
    }

    fn of_workloads(&mut self, workloads: &Result<Vec<WorkloadItem>, ClientError>, now: Timestamp) {
        let workloads = match workloads {
            Ok(workloads) => sorted(workloads),
            Err(error) => {
                self.workloads = self.unknown("workloads", error);
                return;
            }
        };
        let mut running = 0_usize;
        for item in &workloads {
            let status = &item.status;
            let reason = workload_reason(item);
            let phase = word(&status.phase);
            let said = reason.map_or_else(String::new, |reason| {
                reason_and_message(beside_phase(&phase, &reason.reason), &reason.message)
            });
            let name = full_name(*item);
            let line = format!(
                "workload {name} is {phase} ({} of {} ready){said}",
                status.ready, status.replicas
            );
            // The urgency of the phase, where the reason is of a newer version.
            let urgency = match status.phase {
                WorkloadPhase::Running
                | WorkloadPhase::Succeeded
                | WorkloadPhase::Scheduled
                | WorkloadPhase::Active => {
                    running += 1;
                    self.of_conditions(&format!("workload {name}"), &status.conditions, now);
                    continue;
                }
                WorkloadPhase::Stalled | WorkloadPhase::Failed => Urgency::Problem,
                WorkloadPhase::Degraded => judged(reason, Urgency::Problem),
                WorkloadPhase::Pending | WorkloadPhase::Deleting => judged(reason, Urgency::Calm),
                // A person paused or stopped it, and its instances are judged by themselves.
                WorkloadPhase::Paused | WorkloadPhase::Stopped | WorkloadPhase::Progressing => {
                    Urgency::Calm
                }
            };
            let since = reason.map_or(ApiTime::UNKNOWN, |reason| reason.since);
            if urgency.is_problem(since, now) {
                self.troubles.push(line);
            } else {
                self.under_way.push(line);
                self.of_conditions(&format!("workload {name}"), &status.conditions, now);
            }
        }
        self.workloads = match workloads.len() {
            0 => "none".to_owned(),
            count => format!("{running} of {count} running as written"),
        };
    }

    fn of_instances(&mut self, instances: &Result<Vec<InstanceItem>, ClientError>, now: Timestamp) {
        let instances = match instances {
            Ok(instances) => sorted(instances),
            Err(error) => {
                self.instances = self.unknown("instances", error);
                return;
            }
        };
        let mut running = 0_usize;
        for item in &instances {
            let status = &item.status;
            let place = status
                .node
                .as_ref()
                .map_or_else(String::new, |node| format!(" on {node}"));
            let name = format!("instance {}{place}", full_name(*item));
            let healthy = status.health != Health::Unhealthy;
            if status.phase == InstancePhase::Running && healthy {
                running += 1;
                self.of_conditions(&name, &status.conditions, now);
                continue;
            }
            let leaving = matches!(
                status.phase,
                InstancePhase::Stopping | InstancePhase::Stopped | InstancePhase::Succeeded
            );
            let urgency = match status.reason.as_str() {
                "" => Urgency::Calm,
                reason => Urgency::of_word(reason, Urgency::Problem),
            };
            let wrong = !healthy
                || urgency.is_problem(status.since, now)
                || matches!(status.phase, InstancePhase::Failed | InstancePhase::Unknown);
            let ends = status.reason != Reason::StopNotEnding;
            if !wrong || (leaving && ends) {
                continue;
            }
            let phase = if status.phase == InstancePhase::Running {
                word(&status.health)
            } else {
                word(&status.phase)
            };
            self.troubles.push(format!(
                "{name} is {phase}{}",
                reason_and_message(beside_phase(&phase, &status.reason), &status.message)
            ));
        }
        self.instances = match instances.len() {
            0 => "none".to_owned(),
            count => format!("{running} of {count} running"),
        };
    }

    /// The items of a list that is not shown to every caller. That a leader of an older version has no
    /// such list is no problem, nor that nobody has it while no machine leads.
    fn listed<'k, T>(
        &mut self,
        what: &str,
        known: &StatusResponses,
        answer: &'k Result<Vec<T>, ClientError>,
    ) -> Option<&'k [T]> {
        let error = match answer {
            Ok(items) => return Some(items),
            Err(error) => error,
        };
        match error.status() {
            Some(403) => self.partial = true,
            Some(404) => {}
            _ if matches!(&known.health, Ok(health) if health.stale) => {}
            _ => {
                self.unknown(what, error);
            }
        }
        None
    }

    /// The field of what cannot be read. What the caller may not read is no problem of the cluster.
    fn unknown(&mut self, what: &str, error: &ClientError) -> String {
        if error.status() == Some(403) {
            self.partial = true;
            return NOT_VISIBLE.to_owned();
        }
        self.troubles
            .push(format!("{what} cannot be read: {error}"));
        "not known".to_owned()
    }
}

/// Whether a reason is a problem from its beginning on.
fn is_fault(reason: &str) -> bool {
    let urgency = Urgency::of_word(reason, Urgency::Calm);
    matches!(urgency, Urgency::Problem | Urgency::ForPerson)
}

/// The urgency of a workload's reason; `unknown` where there is none, or one of a newer version.
fn judged(reason: Option<&Condition>, unknown: Urgency) -> Urgency {
    reason.map_or(unknown, |reason| Urgency::of_word(&reason.reason, unknown))
}

/// For how long a member of etcd has had no vote, and where its machine or the leader says why, if that lasts too long.
/// A leader of an earlier version does not say since when.
fn late_member(name: &str, member: &Condition, now: Timestamp) -> Option<String> {
    member.since.get()?;
    let urgency = Urgency::of_word(&member.reason, Urgency::Calm);
    if !urgency.is_problem(member.since, now) {
        return None;
    }
    let look = match Reason::from_word(&member.reason) {
        Some(Reason::Starts) => {
            format!("`systemctl status kat-etcd kat-agent` on {name} says more")
        }
        _ => {
            "`journalctl -u kat-agent` on the machine that leads says what it waits for".to_owned()
        }
    };
    Some(format!(
        "it has had no vote for {}: {look}",
        time::age(now, member.since)
    ))
}

fn counted_members(well: impl Display, all: impl Display) -> String {
    let all = all.to_string();
    match all.as_str() {
        "0" => "not known yet".to_owned(),
        "1" => format!("{well} of 1 member well"),
        all => format!("{well} of {all} members well"),
    }
}

/// Such as `expires on 2026-12-01 (in 3d)`, if fewer than `days` days are left.
fn expiry(expires: ApiTime, days: i64, now: Timestamp) -> Option<String> {
    let then = expires.get()?;
    if then.duration_since(now).as_hours() >= days.saturating_mul(24) {
        return None;
    }
    let date = then.strftime("%Y-%m-%d");
    if then <= now {
        return Some(format!("expired on {date}"));
    }
    Some(format!("expires on {date} ({})", time::until(now, expires)))
}

/// The size of the store, shown after the count of its members.
fn weight(store: &StoreView) -> String {
    let (used, file) = (Bytes(store.used_bytes), Bytes(store.file_bytes));
    let most = store.quota_bytes.map_or_else(String::new, |quota| {
        format!(" of {}", Bytes(quota).rounded())
    });
    format!(
        "; {} in use, largest file {}{most}",
        used.rounded(),
        file.rounded()
    )
}

/// The members of etcd with known holes, if there are some. Versions that cannot be read are passed
/// over.
fn known_holes(versions: &BTreeMap<String, String>) -> Option<String> {
    let mut members = Vec::new();
    for (node, version) in versions {
        let version = ProgramVersion::find(version);
        if let Some(version) = version.filter(|version| etcd_has_known_holes(*version)) {
            members.push(format!("{version} on {node}"));
        }
    }
    let have = match members.len() {
        0 => return None,
        1 => "has",
        _ => "have",
    };
    Some(format!(
        "etcd {} {have} known holes in its users' rights (CVE-2026-33343): root of any machine with a certificate for etcd can read and write the whole store; upgrade etcd to {} or newer when the distribution has it",
        members.join(", "),
        etcd_mended_versions()
    ))
}

/// The message of the first condition that `is` accepts, on one line.
fn message_of(conditions: &[Condition], is: impl Fn(&Condition) -> bool) -> Option<String> {
    let found = conditions.iter().find(|one| is(one));
    found.map(|one| one_line(&one.message))
}

fn sorted<T: ListableItem>(items: &[T]) -> Vec<&T> {
    let mut items: Vec<&T> = items.iter().collect();
    items.sort_by(|left, right| T::order(left, right));
    items
}

fn full_name<T: ListableItem>(item: &T) -> String {
    let (namespace, name) = item.key();
    format!("{namespace}/{name}")
}

/// A reason that is shown after a phase: empty if it says nothing but the phase.
fn beside_phase<'r>(phase: &str, reason: &'r str) -> &'r str {
    if reason == phase { "" } else { reason }
}

/// Such as `: CrashLoop: the last words`, or empty.
fn reason_and_message(reason: &str, message: &str) -> String {
    let mut text = String::new();
    for part in [reason, message] {
        if !part.is_empty() {
            text.push_str(": ");
            text.push_str(&one_line(part));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use kat_types::api::{CertificateExpiry, Condition};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reason_that_is_the_phase_is_said_once() {
        let said = |phase: &str, reason: &str| {
            reason_and_message(beside_phase(phase, reason), "0 of 2 are healthy")
        };
        assert_eq!(said("Progressing", "Progressing"), ": 0 of 2 are healthy");
        assert_eq!(
            said("Degraded", "CrashLoop"),
            ": CrashLoop: 0 of 2 are healthy"
        );
    }

    #[test]
    fn a_machine_that_goes_by_old_files_or_refuses_the_store_is_a_trouble() {
        let refused = Condition {
            kind: STORE_EPOCH_REFUSED.to_owned(),
            status: true,
            message: "a store of epoch 9 is refused".to_owned(),
            ..Condition::default()
        };
        let condition = Condition {
            kind: FILES_WRITTEN.to_owned(),
            reason: Reason::FilesNotWritten.into(),
            message: "/var/lib/kat/network/dns.json: can't write beside it: no space".to_owned(),
            ..Condition::default()
        };
        let node = json!({"kind": "Node", "metadata": {"name": "n3"}, "spec": {}, "status": {"phase": "Ready"}});
        let mut node: NodeItem = serde_json::from_value(node).unwrap();
        let mut troubles = |conditions| {
            node.status.conditions = conditions;
            let mut findings = Findings::default();
            findings.of_nodes(&Ok(vec![node.clone()]), true, Timestamp::UNIX_EPOCH);
            findings.troubles
        };
        assert_eq!(troubles(Vec::new()), Vec::<String>::new());
        let unreachable = Condition {
            reason: Reason::OverlayDown.into(),
            message: "n1 and n2 say so".to_owned(),
            ..Condition::default()
        };
        assert_eq!(
            troubles(vec![unreachable]),
            ["node n3 is unreachable over the overlay: n1 and n2 say so"]
        );
        let told = troubles(vec![condition]);
        assert!(
            told.len() == 1 && told[0].contains("n3") && told[0].contains("network/dns.json"),
            "{told:?}"
        );
        assert_eq!(
            troubles(vec![refused]),
            ["node n3 does not follow the cluster: a store of epoch 9 is refused"]
        );
    }

    #[test]
    fn a_machine_that_is_short_of_disk_space_and_an_evicted_instance_are_troubles() {
        let mut node = member();
        node.status.conditions.push(Condition {
            kind: DISK_PRESSURE.to_owned(),
            status: true,
            reason: Reason::DiskPressure.into(),
            message: "/var/lib/kat: 90 MiB of 1.9 GiB are free, less than 194 MiB".to_owned(),
            ..Condition::default()
        });
        let evicted = json!({
            "kind": "Instance",
            "metadata": {"name": "filler-aaaaa", "namespace": "default"},
            "spec": {},
            "status": {
                "workload": "filler", "node": "n1", "phase": "Scheduled", "reason": Reason::Evicted.word(),
                "message": "stopped, because /var/lib/kat ran full", "health": "not_applicable",
            },
        });
        let mut known = known(health(false, &[]), node);
        known.instances = Ok(vec![serde_json::from_value(evicted).unwrap()]);
        let troubles = Findings::of(&known, Timestamp::UNIX_EPOCH).troubles;
        assert_eq!(
            troubles,
            [
                "node n1 is short of disk space: /var/lib/kat: 90 MiB of 1.9 GiB are free, less than 194 MiB",
                "instance default/filler-aaaaa on n1 is Scheduled: Evicted: stopped, because /var/lib/kat ran full",
            ]
        );
    }

    #[test]
    fn a_machine_that_does_not_read_every_file_is_shown_and_the_cluster_is_well() {
        let now = Timestamp::now();
        let mut node = member();
        let why = "its KAT reads files of version 1, and those of a stored workload need version 2";
        let condition = json!({"type": READS_FILES, "status": false, "reason": "ReaderTooOld",
            "message": why, "since": ""});
        let condition: Condition = serde_json::from_value(condition).unwrap();
        node.status.conditions.push(condition);
        let before = Findings::of(&known(health(false, &[]), member()), now);
        let found = Findings::of(&known(health(false, &[]), node), now);
        assert_eq!(found.troubles, before.troubles);
        let shown = format!("has an earlier version of KAT: {why}");
        assert!(
            found.under_way.iter().any(|line| line.ends_with(&shown)),
            "{:?}",
            found.under_way
        );
    }

    #[test]
    fn backups_that_fail_are_a_trouble() {
        let now: Timestamp = "2026-11-22T04:00:00Z".parse().unwrap();
        let found = |last: Option<&str>, failing, overdue| {
            let backup = BackupView {
                last: last.map(ApiTime::parse),
                node: "n1".to_owned(),
                failing,
                overdue,
            };
            let mut findings = Findings::default();
            findings.of_backup(&backup, now);
            (findings.backup, findings.troubles)
        };
        let none = Vec::<String>::new();
        let none_yet = ("none yet".to_owned(), none.clone());
        assert_eq!(found(None, false, false), none_yet);
        let last = Some("2026-11-22T03:40:00Z");
        assert_eq!(
            found(last, false, false),
            ("20m ago on n1".to_owned(), none)
        );
        let (backup, troubles) = found(last, true, true);
        assert_eq!(backup, "20m ago on n1");
        assert!(troubles.len() == 1 && troubles[0].contains("fails to make backups"));
        let (_, troubles) = found(last, false, true);
        assert!(troubles.len() == 1 && troubles[0].contains("no backup was made for longer"));
    }

    fn health(stale: bool, planning: &[&str]) -> HealthView {
        HealthView {
            status: "ok".to_owned(),
            leader: !stale,
            stale,
            backup: None,
            store_epoch: None,
            store_server: None,
            trouble: None,
            planning: planning.iter().map(|line| (*line).to_owned()).collect(),
            store: None,
        }
    }

    fn known(health: HealthView, node: NodeItem) -> StatusResponses {
        StatusResponses {
            health: Ok(health),
            nodes: Ok(vec![node]),
            workloads: Ok(Vec::new()),
            instances: Ok(Vec::new()),
            namespace: None,
            overview: None,
            authorities: Ok(Vec::new()),
            addresses: Ok(Vec::new()),
            routes: Ok(Vec::new()),
        }
    }

    fn member() -> NodeItem {
        let condition = json!({"type": ETCD_CONDITION, "status": true, "reason": "", "message": "", "since": ""});
        let item = json!({
            "kind": "Node",
            "metadata": {"name": "n1"},
            "spec": {},
            "status": {"phase": NodePhase::Ready, "roles": [NodeRole::Leader], "conditions": [condition]},
        });
        serde_json::from_value(item).unwrap()
    }

    #[test]
    fn the_only_member_is_not_called_well_while_it_does_not_lead() {
        let now = Timestamp::UNIX_EPOCH;
        let findings = Findings::of(&known(health(false, &[]), member()), now);
        assert_eq!(findings.etcd, "1 of 1 member well");
        assert_eq!(findings.troubles, Vec::<String>::new());
        let findings = Findings::of(&known(health(true, &[]), member()), now);
        assert_eq!(findings.etcd, "not known while no machine leads");
        assert_eq!(findings.troubles, [STALE]);
    }

    #[test]
    fn a_machine_that_was_deleted_is_not_called_well_although_its_former_cluster_is() {
        let found = |cluster: &[&str], own: Option<&[&str]>| {
            let mut known = known(health(false, cluster), member());
            known.add_own_health(own.map(|lines| health(true, lines)));
            Findings::of(&known, Timestamp::UNIX_EPOCH).troubles
        };
        assert_eq!(found(&[], Some(&["deleted"])), ["deleted"]);
        assert_eq!(found(&[], Some(&[])), Vec::<String>::new());
        assert_eq!(found(&[], None), Vec::<String>::new());
        assert_eq!(found(&["no plan"], Some(&["no plan"])), ["no plan"]);
    }

    #[test]
    fn members_of_an_etcd_with_known_holes_are_named_and_the_cluster_stays_well() {
        let found = |versions: &[(&str, &str)]| {
            let versions = versions.iter();
            let versions = versions.map(|(node, version)| (node.to_string(), version.to_string()));
            let mut health = health(false, &[]);
            health.store = Some(StoreView {
                file_bytes: 0,
                used_bytes: 0,
                quota_bytes: None,
                versions: versions.collect(),
            });
            let findings = Findings::of(&known(health, member()), Timestamp::UNIX_EPOCH);
            assert_eq!(findings.troubles, Vec::<String>::new());
            findings.security
        };
        let told = found(&[("n1", "3.5.16"), ("n2", "3.5.33"), ("n3", "3.6.2")]);
        assert_eq!(
            told,
            [
                "etcd 3.5.16 on n1, 3.6.2 on n3 have known holes in its users' rights (CVE-2026-33343): root of any machine with a certificate for etcd can read and write the whole store; upgrade etcd to 3.5.33, 3.6.14, 3.7.1 or newer when the distribution has it"
            ]
        );
        let none = Vec::<String>::new();
        assert_eq!(found(&[("n1", "3.7.1"), ("n2", "no version")]), none);
        assert_eq!(found(&[]), none);
    }

    /// What is found about one authority at a fixed time.
    fn found_of(change: impl FnOnce(&mut AuthorityStatus)) -> Findings {
        let now: Timestamp = "2026-11-22T04:00:00Z".parse().unwrap();
        let mut authority = AuthorityStatus {
            name: "etcd-client-ca".to_owned(),
            not_after: ApiTime::parse("2036-11-01T00:00:00Z"),
            certificates: vec![CertificateExpiry {
                name: "n2".to_owned(),
                expires: ApiTime::parse("2026-11-27T04:00:00Z"),
            }],
            ..AuthorityStatus::default()
        };
        change(&mut authority);
        let mut known = known(health(false, &[]), member());
        known.authorities = Ok(vec![authority]);
        Findings::of(&known, now)
    }

    #[test]
    fn a_replacement_is_under_way_for_ten_minutes_and_then_a_trouble() {
        let none = Vec::<String>::new();
        let found = found_of(|_| {});
        assert_eq!(
            (found.troubles, found.under_way),
            (none.clone(), none.clone())
        );
        let replaced = |phase, since: &str| {
            found_of(|one| {
                one.phase = phase;
                one.replacement_since = ApiTime::parse(since);
                "being replaced, because somebody asked for it; etcd of n2 restarts"
                    .clone_into(&mut one.message);
            })
        };
        let found = replaced(AuthorityPhase::Trust, "2026-11-22T03:50:00Z");
        assert_eq!(
            found.under_way,
            [
                "authority etcd-client-ca is in phase Trust (replacement began 10m ago): being replaced, because somebody asked for it; etcd of n2 restarts"
            ]
        );
        assert_eq!(found.troubles, none);
        let found = replaced(AuthorityPhase::Retire, "2026-11-22T03:49:59Z");
        assert!(found.troubles.len() == 1 && found.troubles[0].contains("in phase Retire"));
        let found = replaced(AuthorityPhase::Due, "");
        assert_eq!((found.troubles, found.under_way.len()), (none.clone(), 1));
        let found = replaced(AuthorityPhase::Due, "2026-11-22T03:50:00Z");
        assert_eq!(found.troubles, none);
        assert!(found.under_way[0].contains("in phase Due (for 10m): "));
        let found = replaced(AuthorityPhase::Migration, "");
        assert!(found.troubles.len() == 1 && found.troubles[0].contains("in phase Migration"));
        assert_eq!(found.under_way, none);
    }

    #[test]
    fn what_expires_soon_is_a_trouble_with_its_machine_and_date() {
        let authority = |not_after: &str| {
            let not_after = ApiTime::parse(not_after);
            found_of(|one| one.not_after = not_after).troubles
        };
        let none = Vec::<String>::new();
        assert_eq!(authority("2026-12-22T04:00:00Z"), none);
        assert_eq!(authority(""), none);
        assert_eq!(
            authority("2026-12-22T03:00:00Z"),
            ["authority etcd-client-ca expires on 2026-12-22 (in 29d)"]
        );
        assert_eq!(
            authority("2026-11-22T04:00:00Z"),
            ["authority etcd-client-ca expired on 2026-11-22"]
        );
        let certificate = |expires: &str| {
            let expires = ApiTime::parse(expires);
            found_of(|one| one.certificates[0].expires = expires).troubles
        };
        assert_eq!(certificate(""), none);
        assert_eq!(
            certificate("2026-11-27T03:00:00Z"),
            [
                "certificate of etcd-client-ca on n2 expires on 2026-11-27 (in 4d) and was not renewed: `journalctl -u kat-agent` on n2 says why"
            ]
        );
    }

    #[test]
    fn a_virtual_address_that_nobody_can_hold_is_a_trouble_and_one_that_moves_is_none() {
        let found = |status: serde_json::Value| {
            let item = json!({"kind": "VirtualAddress", "metadata": {"name": "192.168.1.9"},
                "spec": {"address": "192.168.1.9/24"}, "status": status});
            let mut known = known(health(false, &[]), member());
            known.addresses = Ok(vec![serde_json::from_value(item).unwrap()]);
            let findings = Findings::of(&known, Timestamp::UNIX_EPOCH);
            (findings.troubles, findings.under_way)
        };
        let none = Vec::<String>::new();
        let held = json!({"holder": "n1", "held": true});
        assert_eq!(found(held), (none.clone(), none.clone()));
        let nobody = json!({"held": false, "reason": "NoAddressHolder", "message": "no machine can hold it"});
        let line =
            "virtual address 192.168.1.9 is not held: NoAddressHolder: no machine can hold it";
        assert_eq!(found(nobody), (vec![line.to_owned()], none.clone()));
        let silent = json!({"holder": "n1", "held": true, "reason": "NodeNotReady",
            "message": "n1 does not report, and no other machine can hold it"});
        let (troubles, _) = found(silent);
        assert!(
            troubles.len() == 1 && troubles[0].contains("may not be held: NodeNotReady"),
            "{troubles:?}"
        );
        let moves = json!({"holder": "n2", "held": false});
        let line = "virtual address 192.168.1.9 is on its way to n2";
        assert_eq!(found(moves), (none.clone(), vec![line.to_owned()]));
        // The machine has a condition, which is told.
        let taken =
            json!({"holder": "n1", "reason": "VirtualAddressTaken", "message": "n1: of 0a:00"});
        assert_eq!(found(taken), (none.clone(), none));
    }

    fn refused(status: u16) -> ClientError {
        let body = kat_types::api::ErrorBody::default();
        ClientError::Refused(Box::new(kat_client::ApiRefusal { status, body }))
    }

    #[test]
    fn a_leader_that_shows_no_authorities_is_no_trouble_and_a_failure_is_one() {
        let found = |stale, status| {
            let mut known = known(health(stale, &[]), member());
            known.authorities = Err(refused(status));
            Findings::of(&known, Timestamp::UNIX_EPOCH).troubles
        };
        assert_eq!(found(false, 404), Vec::<String>::new());
        assert_eq!(found(false, 403), Vec::<String>::new());
        assert_eq!(found(true, 503), [STALE]);
        let told = found(false, 500);
        assert!(
            told.len() == 1 && told[0].starts_with("authorities cannot be read"),
            "{told:?}"
        );
    }

    #[test]
    fn what_cannot_be_written_is_a_trouble_and_named() {
        let now = Timestamp::UNIX_EPOCH;
        let line = "NotWritable: workload default/big is left as it is";
        let findings = Findings::of(&known(health(false, &[line]), member()), now);
        assert_eq!(findings.troubles, [line]);
        let mut node = member();
        node.status.reason = Reason::NotWritable.into();
        let findings = Findings::of(&known(health(false, &[]), node), now);
        assert!(findings.troubles[0].contains("node n1 is Ready"));
    }
}
