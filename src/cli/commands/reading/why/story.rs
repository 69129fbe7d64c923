//! Derives the text of `katcall why` from the API's responses. Pure.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    event_reasons::{ends_warning, event_explanation},
    reasons::{self, PLACEHOLDER_WORDS, ReasonPlaceholders},
};
use crate::{
    commands::{changing::rollout, reading::status::urgency::Urgency},
    output::{one_line, word},
    time,
};
use kat_client::KeyedItem;
use kat_types::{
    api::{
        AVAILABLE, ApiTime, Condition, DATA_LOST_CONDITION, DISK_PRESSURE, DRAIN_BLOCKED,
        ETCD_CONDITION, Event, EventKind, HOST_PORT_IN_USE, HOST_PORT_NOT_ALLOWED, Health,
        InstanceItem, InstancePhase, NodeItem, NodePhase, ObjectKind, ROLLED_BACK, RouteItem,
        STORE_EPOCH_REFUSED, VirtualAddressItem, WorkloadItem, WorkloadPhase, other_image,
    },
    assignment::is_machine_slot,
    reason::{EventReason, Reason},
    resource::{Bytes, HostPortOn, MilliCpu, ResourceList},
};

/// Age from which a machine's report is late. Each machine reports every `agentTickSeconds`, 15 by
/// default, and at once when something changes.
const LATE_REPORT_SECONDS: i64 = 20;
/// Time without an answer over the overlay from which a machine may be lost.
const UNANSWERED_SECONDS: u32 = 5;
/// The cause where nothing is wrong.
const NO_PROBLEM: &str = "no problem is known";
/// Most instances that are described one by one.
const INSTANCES: usize = 12;
/// Most machines whose free resources are named.
const FREEST: usize = 4;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WhyReport {
    /// The present state, and since when.
    pub(crate) state: String,
    /// The wanted state.
    pub(crate) wanted: String,
    /// The actual state.
    pub(crate) is: Vec<String>,
    /// The causes; empty where no problem is known.
    pub(crate) because: Vec<String>,
    /// Facts that hold nothing up, such as an image that is not pinned.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    pub(crate) lately: Vec<String>,
    /// What to try next.
    pub(crate) next: Vec<String>,
}

impl WhyReport {
    /// Adds a reason with its message; `subject` is the object that has it.
    fn add_reason(
        &mut self,
        subject: &str,
        reason: &str,
        message: &str,
        names: &ReasonPlaceholders<'_>,
    ) {
        let known = reasons::find(reason);
        let means = match known {
            Some(known) => names.fill(known.means),
            // A reason of a newer version.
            None => format!("it reports {reason}"),
        };
        let sentence = if subject.is_empty() {
            means
        } else {
            format!("{subject}: {means}")
        };
        let message = one_line(message);
        let repeated = message.is_empty() || sentence.contains(&message);
        let told = if repeated {
            sentence
        } else {
            format!("{sentence}\n  {message}")
        };
        let reason = known.and_then(|_| reasons::reason_of(reason));
        let list = match reason.is_some_and(is_note) {
            true => &mut self.notes,
            false => &mut self.because,
        };
        if !list.contains(&told) {
            list.push(told);
        }
        if let Some(next) = known.map(|known| names.fill(known.next)) {
            self.try_next(next);
        }
    }

    /// Names the machines that take no instance of a workload, because a person drains them.
    /// The next step for `blocked_on` comes with the reason why an instance cannot leave it.
    fn tell_drains(
        &mut self,
        conditions: &[Condition],
        drained: &[NodeItem],
        blocked_on: Option<&str>,
    ) {
        let excluded = conditions.iter().any(|condition| {
            condition.reason == Reason::Unschedulable && condition.message.contains("being drained")
        });
        for node in drained.iter().filter(|_| excluded) {
            let name = &node.metadata.name;
            let means = match node.spec.drain_forced {
                true => format!(
                    "machine {name} is being drained by force: its instances were stopped, also those that no other machine can take"
                ),
                false => format!("machine {name} is being drained and takes no instance"),
            };
            self.because.push(means);
            if blocked_on != Some(name.as_str()) {
                self.try_next(format!("katcall uncordon {name} ends the drain"));
            }
        }
    }

    /// Adds the machines of instances that may be lost, although the leader has not judged them yet: what
    /// is known of the instances there may be old.
    pub(crate) fn tell_silent_machines(
        &mut self,
        nodes: &[NodeItem],
        instances: &[InstanceItem],
        now: Timestamp,
    ) {
        for node in nodes {
            let name = &node.metadata.name;
            let mut placed = instances.iter();
            let is_used = placed.any(|item| item.status.node.as_ref() == Some(name));
            let Some(silence) = silence(node, nodes, now).filter(|_| is_used) else {
                continue;
            };
            self.because.retain(|line| line != NO_PROBLEM);
            self.because.push(format!(
                "machine {name} may be off or cut off, and what is known of its instances may be old: {silence}"
            ));
            self.try_next(format!("katcall why node {name}"));
        }
    }

    /// Notes what machines have left of the resources of which none has as much as an instance asks for.
    /// The leader's message leaves that out: it would be stored anew with each placement.
    pub(crate) fn tell_free_resources(&mut self, conditions: &[Condition], nodes: &[NodeItem]) {
        for resource in &SCARCE_RESOURCES {
            let asks = format!("{}: asks ", resource.word);
            let is_scarce = conditions.iter().any(|condition| {
                condition.reason == Reason::Unschedulable && condition.message.contains(&asks)
            });
            if is_scarce {
                self.notes.extend(resource.free_in_words(nodes));
            }
        }
    }

    fn try_next_of(&mut self, reason: &str, names: &ReasonPlaceholders<'_>) {
        if let Some(known) = reasons::find(reason) {
            self.try_next(names.fill(known.next));
        }
    }

    fn try_next(&mut self, next: String) {
        if !next.is_empty() && !self.next.contains(&next) {
            self.next.push(next);
        }
    }

    /// Adds the events, the newest first. The latest warning is followed by its next step, unless
    /// the report has that step already. `names` are those of the object of that warning.
    fn lately(mut self, events: &[Event], now: Timestamp, names: &ReasonPlaceholders<'_>) -> Self {
        let latest = events
            .iter()
            .position(|event| is_warning(event) && !is_over(event, events));
        for (position, event) in events.iter().enumerate() {
            let age = time::age(now, event.timestamp);
            let often = match event.count {
                0 | 1 => String::new(),
                count => format!(" ({count} times)"),
            };
            let about = &event.involved_object;
            let message = one_line(&event.message);
            let mut told = format!(
                "{age} ago {} of {}{often}: {message}",
                event.reason, about.name
            );
            if latest == Some(position) {
                let next = names.fill(next_of_event(event));
                if !next.is_empty() && !self.next.contains(&next) {
                    told.push_str(&format!("\n  try: {next}"));
                }
            }
            self.lately.push(told);
        }
        self
    }
}

/// A resource that instances request, as the leader's messages name it.
struct ScarceResource {
    word: &'static str,
    amount: fn(&ResourceList) -> Option<u64>,
    shown: fn(u64) -> String,
}

const SCARCE_RESOURCES: [ScarceResource; 2] = [
    ScarceResource {
        word: "processor",
        amount: |list| list.cpu.map(|cpu| cpu.0),
        shown: |amount| MilliCpu(amount).to_string(),
    },
    ScarceResource {
        word: "memory",
        amount: |list| list.memory.map(|memory| memory.0),
        shown: |amount| Bytes(amount).rounded(),
    },
];

impl ScarceResource {
    /// Such as `memory that is not requested yet: n2 3.1Gi of 24.0Gi, n1 1.0Gi of 8.0Gi`; `None` where
    /// the server does not say it.
    fn free_in_words(&self, nodes: &[NodeItem]) -> Option<String> {
        let ready = nodes
            .iter()
            .filter(|node| node.status.phase == NodePhase::Ready);
        let mut free: Vec<(u64, u64, &str)> = ready
            .filter_map(|node| {
                let all = (self.amount)(&node.status.allocatable)?;
                let requested = (self.amount)(&node.status.requested)?;
                let name = node.metadata.name.as_str();
                Some((all.saturating_sub(requested), all, name))
            })
            .collect();
        free.sort_by(|left, right| right.0.cmp(&left.0).then(left.2.cmp(right.2)));
        let mut parts: Vec<String> = free
            .iter()
            .take(FREEST)
            .map(|(free, all, name)| {
                format!("{name} {} of {}", (self.shown)(*free), (self.shown)(*all))
            })
            .collect();
        let more = free.len().saturating_sub(FREEST);
        match more {
            0 => {}
            1 => parts.push("and no more on 1 other".to_owned()),
            more => parts.push(format!("and no more on {more} others")),
        }
        (!parts.is_empty()).then(|| {
            format!(
                "{} that is not requested yet: {}",
                self.word,
                parts.join(", ")
            )
        })
    }
}

fn is_warning(event: &Event) -> bool {
    event.kind == EventKind::Warning
}

/// Whether what the event reported has ended since, by a later one of these about the same object.
pub(crate) fn is_over(event: &Event, events: &[Event]) -> bool {
    let about = |one: &Event| {
        let object = &one.involved_object;
        (
            object.kind.clone(),
            object.namespace.clone(),
            object.name.clone(),
        )
    };
    events.iter().any(|later| {
        later.timestamp > event.timestamp
            && ends_warning(&event.reason, &later.reason)
            && about(later) == about(event)
    })
}

/// Whether the reason only adds to what is known of an object that works.
fn is_note(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::ImageNotPinned | Reason::ControllerMissing | Reason::CdiSpecUnusable
    )
}

/// The next step for an event; empty if there is none or this version does not know the reason.
fn next_of_event(event: &Event) -> &'static str {
    let own = EventReason::from_word(&event.reason).map(event_explanation);
    // Events of instances also repeat reasons that machines report.
    let known = own.or_else(|| reasons::find(of_instances(&event.reason)));
    known.map_or("", |known| known.next)
}

/// Such as ` for 5m`; empty where it is not known.
fn lasting(since: ApiTime, now: Timestamp) -> String {
    match time::age(now, since).as_str() {
        "-" => String::new(),
        age => format!(" for {age}"),
    }
}

fn plural(count: u32, one: &str, more: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        count => format!("{count} {more}"),
    }
}

/// A virtual address.
pub(super) fn of_address(
    item: &VirtualAddressItem,
    events: Vec<Event>,
    now: Timestamp,
) -> WhyReport {
    let mut report = WhyReport::default();
    let (name, status) = (&item.metadata.name, &item.status);
    let holder = status.holder.as_deref();
    report.state = match (holder, status.held, status.reason.as_str()) {
        (Some(holder), true, "") => format!("address {name} is held by {holder}"),
        (Some(holder), false, "") => format!("address {name} is on its way to {holder}"),
        (_, _, reason) => format!("address {name} is not held: {reason}"),
    };
    report.wanted = "one ingress machine has the address at a time".to_owned();
    for machine in &status.machines {
        let message = match machine.message.as_str() {
            "" => String::new(),
            message => format!(": {}", one_line(message)),
        };
        let (node, state) = (&machine.node, word(&machine.state));
        report.is.push(format!("{node} is {state}{message}"));
    }
    if !status.reason.is_empty() {
        let names = ReasonPlaceholders {
            node: holder.unwrap_or("the machine"),
            ..PLACEHOLDER_WORDS
        };
        report.add_reason(name, &status.reason, &status.message, &names);
    }
    report.lately(&events, now, &PLACEHOLDER_WORDS)
}

/// The routes of a host, or the one with a path.
pub(super) fn of_routes(routes: &[RouteItem], events: Vec<Event>, now: Timestamp) -> WhyReport {
    let mut report = WhyReport::default();
    let served = routes.iter().filter(|route| route.status.served).count();
    let Some(first) = routes.first() else {
        return report;
    };
    let host = &first.spec.host;
    report.state = match routes {
        [only] if only.status.served => format!("route {} is served", only.metadata.name),
        [only] => format!(
            "route {} is not served: {}",
            only.metadata.name, only.status.reason
        ),
        all => format!("{served} of {} routes of {host} are served", all.len()),
    };
    report.wanted = format!(
        "requests for {host} reach {}",
        routes
            .iter()
            .map(|route| match route.spec.workload.as_str() {
                "" => format!("{} at {}", route.spec.to, route.spec.path),
                workload => format!("{workload} at {} ({})", route.spec.path, route.spec.to),
            })
            .collect::<Vec<_>>()
            .join(", ")
    );
    for route in routes {
        let (spec, status) = (&route.spec, &route.status);
        let behind = match spec.workload.is_empty() {
            true => "KAT does not know the state of what is behind it".to_owned(),
            false => format!(
                "{} of {} instances take requests",
                status.serving, status.instances
            ),
        };
        report.is.push(format!(
            "{}: {behind}, certificate: {}",
            route.metadata.name, spec.issuer
        ));
        let names = ReasonPlaceholders {
            workload: &spec.workload,
            namespace: route.metadata.namespace.as_deref().unwrap_or_default(),
            ..PLACEHOLDER_WORDS
        };
        if !status.served {
            report.add_reason(
                &route.metadata.name,
                &status.reason,
                &status.message,
                &names,
            );
        } else if !status.message.is_empty() {
            report.because.push(one_line(&status.message));
        } else if spec.to.starts_with("port ") && status.serving == 0 {
            report.because.push(format!(
                "no instance of {} takes requests, so that callers get 503",
                spec.workload
            ));
            report.try_next(format!("katcall why workload {}", spec.workload));
        }
        for machine in &status.machines {
            let names = ReasonPlaceholders {
                node: &machine.node,
                ..names
            };
            if machine.serves {
                report
                    .is
                    .push(format!("{} serves {}", machine.node, route.metadata.name));
            } else if !machine.message.is_empty() {
                report.because.push(format!(
                    "{} does not serve {}: {}",
                    machine.node,
                    route.metadata.name,
                    one_line(&machine.message)
                ));
                report.try_next_of(&machine.reason, &names);
            }
        }
    }
    report.because.dedup();
    report.lately(&events, now, &PLACEHOLDER_WORDS)
}

/// The further names of a workload, its host ports of the machines that serve routes, and those that are for
/// some addresses alone.
pub(crate) fn names_and_sources(item: &WorkloadItem) -> Vec<String> {
    let Some(balancer) = &item.spec.load_balancer else {
        return Vec::new();
    };
    let mut notes = Vec::new();
    if !balancer.aliases.is_empty() {
        let aliases = balancer.aliases.join(", ");
        notes.push(format!("its aliases in its namespace: {aliases}"));
    }
    for port in &balancer.ports {
        let mut host_ports = item.status.host_ports.iter();
        let host_port = host_ports
            .find(|one| (one.container_port, one.protocol) == (port.container_port, port.protocol));
        let Some(host_port) = host_port else {
            continue;
        };
        if port.host_port_on == HostPortOn::Ingress {
            notes.push(format!(
                "the machines that serve routes have its host port {}/{}, wherever its instances run",
                host_port.port,
                port.protocol.word()
            ));
        }
        if !port.allow_sources.is_empty() {
            notes.push(format!(
                "host port {}/{} refuses all but {}",
                host_port.port,
                port.protocol.word(),
                port.allow_sources.join(" and ")
            ));
        }
    }
    notes
}

/// `drained` are the machines that are being drained.
pub(crate) fn of_workload(
    item: &WorkloadItem,
    instances: &[InstanceItem],
    drained: &[NodeItem],
    events: Vec<Event>,
    now: Timestamp,
) -> WhyReport {
    let (namespace, name) = item.key();
    let status = &item.status;
    let image = item.spec.workload.source.image.as_deref();
    let image = image.unwrap_or_default();
    let available = status
        .conditions
        .iter()
        .find(|condition| condition.kind == AVAILABLE);
    let since = available.map_or(ApiTime::UNKNOWN, |condition| condition.since);
    let mut story = WhyReport {
        state: format!(
            "workload {namespace}/{name} is {}{}: {} of {} healthy{}",
            word(&status.phase),
            lasting(since, now),
            status.ready,
            plural(status.replicas, "instance", "instances"),
            match status.updated < status.replicas {
                true => format!(
                    ", {} of generation {}",
                    status.updated, item.metadata.generation
                ),
                false => String::new(),
            }
        ),
        wanted: wanted_of_workload(item, image),
        is: present(instances, now),
        ..WhyReport::default()
    };
    let names = ReasonPlaceholders {
        namespace: &namespace,
        workload: &name,
        image,
        ..PLACEHOLDER_WORDS
    };
    let behind = status.observed_generation < item.metadata.generation;
    if behind {
        story.because.push(format!(
            "the leader has not processed generation {} yet",
            item.metadata.generation
        ));
        story.try_next("katcall status says whether a machine leads".to_owned());
    }
    let blocked_on = drain_blocked_on(&status.conditions, drained);
    let drain_names = ReasonPlaceholders {
        node: blocked_on.unwrap_or(names.node),
        ..names
    };
    story.tell_drains(&status.conditions, drained, blocked_on);
    let troubled: Vec<&InstanceItem> = instances
        .iter()
        .filter(|instance| !instance.status.reason.is_empty())
        .collect();
    // What adds to the causes has its next step behind theirs.
    let (notes, causes): (Vec<&Condition>, Vec<&Condition>) = status
        .conditions
        .iter()
        .partition(|condition| reasons::reason_of(&condition.reason).is_some_and(is_note));
    for condition in causes {
        let of_instance = troubled
            .iter()
            .any(|instance| instance.status.reason == condition.reason);
        if holds_up(condition) && !of_instance {
            let reason = reason_of_condition(condition, item);
            let names = match condition.kind == DRAIN_BLOCKED {
                true => &drain_names,
                false => &names,
            };
            story.add_reason("", reason, &condition.message, names);
        }
    }
    for instance in troubled {
        tell_instance(&mut story, instance, &instance.metadata.name);
    }
    tell_way_back(&mut story, item, instances);
    if status.paused && status.phase != WorkloadPhase::Paused {
        story.add_reason("", Reason::Paused.word(), "", &names);
    }
    for condition in notes.into_iter().filter(|condition| holds_up(condition)) {
        story.add_reason("", &condition.reason, &condition.message, &names);
    }
    story.notes.extend(beside_counts(&status.conditions));
    finish(&mut story, status.phase == WorkloadPhase::Running);
    let mut warnings = events.iter().filter(|event| is_warning(event));
    let warned = warnings.find(|event| !is_over(event, &events));
    let warned = warned.and_then(|event| instance_of(event, instances));
    let names = warned.map_or(names, instance_names);
    story.lately(&events, now, &names)
}

/// The reason with which a condition of a workload is explained.
fn reason_of_condition<'a>(condition: &'a Condition, item: &WorkloadItem) -> &'a str {
    match condition.kind.as_str() {
        DRAIN_BLOCKED if condition.reason != Reason::DrainWaits => Reason::DrainBlocked.word(),
        _ if stalled_at_first(&condition.reason, item) => Reason::FirstVersionStalled.word(),
        _ => of_instances(&condition.reason),
    }
}

/// The drained machine that an instance of the workload cannot leave. The condition names it in its
/// message only.
fn drain_blocked_on<'a>(conditions: &[Condition], drained: &'a [NodeItem]) -> Option<&'a str> {
    let mut conditions = conditions.iter();
    let blocked = conditions.find(|one| one.kind == DRAIN_BLOCKED && one.status)?;
    if let [only] = drained {
        return Some(&only.metadata.name);
    }
    let mut names = drained.iter().map(|node| node.metadata.name.as_str());
    names.find(|name| {
        let stays = format!(" can't leave {name}");
        let after = blocked.message.split_once(&stays).map(|(_, after)| after);
        after.is_some_and(|after| after.starts_with(':') || after.starts_with(" yet:"))
    })
}

/// What the leader adds to the counts of a healthy workload, such as the machines of a DaemonService
/// that do not answer: those are not among the counted ones. The message of an unhealthy one is a cause.
fn beside_counts(conditions: &[Condition]) -> Option<String> {
    let healthy = conditions.iter().find(|condition| {
        condition.kind == AVAILABLE && condition.status && condition.reason == Reason::AllHealthy
    })?;
    let (_, beside) = healthy.message.split_once("; ")?;
    Some(one_line(beside))
}

fn wanted_of_workload(item: &WorkloadItem, image: &str) -> String {
    if item.status.phase == WorkloadPhase::Deleting {
        return "nothing: it is being deleted".to_owned();
    }
    format!(
        "{} of generation {}{}",
        plural(item.status.replicas, "instance", "instances"),
        item.metadata.generation,
        if image.is_empty() {
            String::new()
        } else {
            format!(", from {image}")
        }
    )
}

/// Whether a condition is a problem.
pub(crate) fn holds_up(condition: &Condition) -> bool {
    let bad_when_true = [
        STORE_EPOCH_REFUSED,
        DRAIN_BLOCKED,
        DATA_LOST_CONDITION,
        ROLLED_BACK,
        "LimitsNotEnforced",
        HOST_PORT_IN_USE,
        HOST_PORT_NOT_ALLOWED,
        DISK_PRESSURE,
    ];
    condition.status == bad_when_true.contains(&condition.kind.as_str())
}

fn present(instances: &[InstanceItem], now: Timestamp) -> Vec<String> {
    if instances.is_empty() {
        return vec!["no instance is placed".to_owned()];
    }
    let mut lines: Vec<String> = instances
        .iter()
        .take(INSTANCES)
        .map(|instance| {
            let state = instance_state(instance, now);
            format!("{} {state}", instance.metadata.name)
        })
        .collect();
    if let Some(more) = instances
        .len()
        .checked_sub(INSTANCES)
        .filter(|more| *more > 0)
    {
        lines.push(format!("and {more} more"));
    }
    lines
}

/// Such as `on n1 runs for 5m, restarted 3 times`.
fn instance_state(item: &InstanceItem, now: Timestamp) -> String {
    let status = &item.status;
    let node = status.node.as_ref();
    let place = node.map_or_else(|| "nowhere yet".to_owned(), |node| format!("on {node}"));
    let does = match status.phase {
        InstancePhase::Pending => "waits for a machine",
        InstancePhase::Scheduled if status.reason == Reason::Evicted => {
            "is stopped until there is room"
        }
        InstancePhase::Scheduled => "waits for the agent",
        InstancePhase::Pulling => "pulls its image",
        InstancePhase::Building => "builds its image",
        InstancePhase::Prepared => "is ready to start, and waits for the end of its predecessor",
        InstancePhase::Starting => "starts",
        InstancePhase::Running => "runs",
        InstancePhase::Restarting => "is between two runs",
        InstancePhase::Stopping => "is being stopped",
        InstancePhase::Stopped => "is stopped",
        InstancePhase::Failed => "has failed",
        InstancePhase::Succeeded => "has ended with success",
        InstancePhase::Unknown => "is in an unknown state",
    };
    let health = match status.health {
        // The last known health says nothing of an instance whose machine does not answer.
        _ if status.phase == InstancePhase::Unknown => "",
        Health::Healthy => ", healthy",
        Health::Unhealthy => ", not healthy",
        Health::PendingCheck => ", not checked yet",
        Health::NotApplicable => "",
    };
    let again = match status.restarts {
        0 => String::new(),
        1 => ", restarted once".to_owned(),
        count => format!(", restarted {count} times"),
    };
    format!(
        "{place} {does}{}{health}{again}",
        lasting(status.since, now)
    )
}

/// What is left to try after the causes: the next apply of a stalled rollout, or the earlier version
/// where the new one does not come up.
fn tell_way_back(story: &mut WhyReport, item: &WorkloadItem, instances: &[InstanceItem]) {
    let status = &item.status;
    if status.phase == WorkloadPhase::Stalled {
        story.try_next(reasons::after_stall().to_owned());
        return;
    }
    let generation = item.metadata.generation;
    let fails = |instance: &InstanceItem| {
        let urgency = Urgency::of_word(&instance.status.reason, Urgency::Calm);
        let is_fault = matches!(urgency, Urgency::Problem | Urgency::ForPerson);
        instance.status.generation == generation && is_fault
    };
    let is_update = matches!(
        status.phase,
        WorkloadPhase::Progressing | WorkloadPhase::Degraded
    ) && status.updated < status.replicas;
    let earlier = status
        .last_good_generation
        .filter(|good| *good < generation);
    if let Some(good) = earlier
        && is_update
        && instances.iter().any(fails)
    {
        story.try_next(format!(
            "katcall rollback workload {}/{} returns to generation {good}, the last healthy one",
            item.key().0,
            item.metadata.name
        ));
    }
}

fn stalled_at_first(reason: &str, item: &WorkloadItem) -> bool {
    reason == Reason::ProgressDeadlineExceeded.word() && !rollout::has_earlier_good(item)
}

/// The reason as instances use it, where the same word means something else for a machine.
fn of_instances(reason: &str) -> &str {
    if reason == Reason::Unconfirmed.word() {
        return Reason::UnconfirmedInstance.word();
    }
    reason
}

/// The instance that an event is about, if it is one of these.
fn instance_of<'a>(event: &Event, instances: &'a [InstanceItem]) -> Option<&'a InstanceItem> {
    let about = &event.involved_object;
    let mut instances = instances.iter();
    instances.find(|item| about.kind == ObjectKind::Instance && about.name == item.metadata.name)
}

fn instance_names(item: &InstanceItem) -> ReasonPlaceholders<'_> {
    let status = &item.status;
    ReasonPlaceholders {
        namespace: item.metadata.namespace.as_deref().unwrap_or_default(),
        workload: &status.workload,
        instance: &item.metadata.name,
        node: status.node.as_deref().unwrap_or("its machine"),
        // An image of a sidecar is named by the message.
        image: other_image(&status.message).unwrap_or(&status.image),
        user: &status.user,
        unit: &status.unit,
    }
}

fn tell_instance(story: &mut WhyReport, item: &InstanceItem, subject: &str) {
    let status = &item.status;
    let names = instance_names(item);
    if !status.reason.is_empty() {
        let reason = of_instances(&status.reason);
        story.add_reason(subject, reason, &status.message, &names);
    }
    if status.reason == Reason::UserNotReady && status.message.contains(" is taken") {
        story.try_next(format!("on {}: sudo kat-agent check", names.node));
    }
    for condition in status.conditions.iter().filter(|one| holds_up(one)) {
        story.add_reason(subject, &condition.reason, &condition.message, &names);
    }
}

pub(crate) fn of_instance(item: &InstanceItem, events: Vec<Event>, now: Timestamp) -> WhyReport {
    let (namespace, name) = item.key();
    let status = &item.status;
    let leaves = matches!(
        status.phase,
        InstancePhase::Stopping | InstancePhase::Stopped
    );
    let place = match is_machine_slot(status.slot) {
        // The slot of a DaemonService follows from its machine.
        true => "the machine's instance".to_owned(),
        false => format!("slot {}", status.slot),
    };
    let mut story = WhyReport {
        state: format!("instance {namespace}/{name} {}", instance_state(item, now)),
        wanted: if leaves {
            format!("that it ends; it was {place} of {}", status.workload)
        } else {
            format!(
                "that it runs {} as {place} of {}, generation {}",
                status.image, status.workload, status.generation
            )
        },
        ..WhyReport::default()
    };
    let code = status.exit_code;
    story.is.push(match code {
        Some(code) => format!(
            "its unit is {}; its program last ended with {code}",
            status.unit
        ),
        None => format!("its unit is {}", status.unit),
    });
    tell_instance(&mut story, item, "");
    let running = status.phase == InstancePhase::Running;
    finish(&mut story, running && status.health != Health::Unhealthy);
    story.lately(&events, now, &instance_names(item))
}

/// `workloads` are those with an instance on the machine, where it is being drained.
pub(crate) fn of_node(
    item: &NodeItem,
    workloads: &[WorkloadItem],
    events: Vec<Event>,
    now: Timestamp,
) -> WhyReport {
    let (_, name) = item.key();
    let status = &item.status;
    let heard = status.last_heartbeat.map_or_else(
        || match status.phase {
            NodePhase::Joining => "it has not reported yet".to_owned(),
            _ => "it has not reported to the present leader".to_owned(),
        },
        |then| format!("its last report came {} ago", time::age(now, then)),
    );
    let mut story = WhyReport {
        state: format!("node {name} is {}: {heard}", word(&status.phase)),
        wanted: match (item.spec.draining, item.spec.drain_forced) {
            (true, true) => "that it is empty: it is being drained by force".to_owned(),
            (true, false) => "that it is empty: it is being drained".to_owned(),
            (false, _) => "that it takes instances".to_owned(),
        },
        is: vec![format!(
            "{} on it",
            plural(status.instances, "instance is", "instances are")
        )],
        ..WhyReport::default()
    };
    let names = ReasonPlaceholders {
        node: &name,
        ..PLACEHOLDER_WORDS
    };
    for workload in workloads {
        let (namespace, workload_name) = workload.key();
        let mut conditions = workload.status.conditions.iter();
        let blocked = conditions.find(|one| one.kind == DRAIN_BLOCKED && one.status);
        if let Some(blocked) = blocked {
            let message = one_line(&blocked.message);
            story.because.push(format!(
                "workload {namespace}/{workload_name} cannot leave it\n  {message}"
            ));
            if blocked.reason != Reason::DrainWaits {
                story.try_next(names.fill(
                    "make room on another machine, move the data with katcall volume move, or stop what cannot leave with katcall drain {node} --force",
                ));
            }
        }
    }
    let is_blocked = !story.because.is_empty();
    if status.reason == Reason::Draining {
        // The message of a drain refers to `katcall why`.
        match is_blocked {
            true => story.try_next(format!("katcall uncordon {name} ends the drain")),
            false => story.add_reason("", &status.reason, "", &names),
        }
    } else if !status.reason.is_empty() {
        story.add_reason("", &status.reason, &status.message, &names);
    }
    for condition in status.conditions.iter().filter(|one| holds_up(one)) {
        story.add_reason("", &condition.reason, &condition.message, &names);
    }
    finish(&mut story, status.phase == NodePhase::Ready);
    story.lately(&events, now, &names)
}

/// Why a machine may be lost; `None` of one that speaks, and of one that the leader has judged.
fn silence(node: &NodeItem, nodes: &[NodeItem], now: Timestamp) -> Option<String> {
    let status = &node.status;
    let is_judged = matches!(
        status.phase,
        NodePhase::NotReady | NodePhase::Joining | NodePhase::Detached
    );
    if is_judged {
        return None;
    }
    let mut signs = Vec::new();
    let last = status.last_heartbeat?;
    let age = last.get().map(|then| now.duration_since(then).as_secs());
    let is_late = age.is_some_and(|age| age >= LATE_REPORT_SECONDS);
    // A report after the first question in vain shows that the machine is on. What another machine
    // said before it went off itself stays in its status.
    let has_reported_since = |seconds: u32| age.is_some_and(|age| age < i64::from(seconds));
    let mut conditions = status.conditions.iter();
    let member = conditions.find(|one| one.kind == ETCD_CONDITION);
    if member.is_some_and(|one| !one.status && one.reason == Reason::NoAnswer) {
        signs.push("its etcd does not answer".to_owned());
    }
    let unanswered: Vec<&str> = nodes
        .iter()
        .filter(|other| {
            let mut peers = other.status.peers.iter();
            let peer = peers.find(|peer| peer.name == node.metadata.name);
            let seconds = peer.and_then(|peer| peer.unanswered_seconds);
            seconds.is_some_and(|seconds| {
                seconds >= UNANSWERED_SECONDS && !has_reported_since(seconds)
            })
        })
        .map(|other| other.metadata.name.as_str())
        .collect();
    match unanswered.as_slice() {
        [] => {}
        [one] => signs.push(format!("{one} gets no answer from it")),
        [one, others @ ..] => signs.push(format!(
            "{one} and {} get no answer from it",
            plural(
                u32::try_from(others.len()).unwrap_or(u32::MAX),
                "other",
                "others"
            )
        )),
    }
    if signs.is_empty() && !is_late {
        return None;
    }
    signs.push(format!("its last report came {} ago", time::age(now, last)));
    Some(signs.join(", "))
}

/// Ensures that the text is never empty.
fn finish(story: &mut WhyReport, well: bool) {
    if !story.because.is_empty() {
        return;
    }
    story.because.push(if well {
        NO_PROBLEM.to_owned()
    } else {
        "it progresses, and reports nothing else".to_owned()
    });
}

#[cfg(test)]
mod tests;
