//! Derives the text of `katcall why` from the API's responses. Pure.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    event_reasons::{ends_warning, event_explanation},
    reasons::{self, PLACEHOLDER_WORDS, ReasonPlaceholders},
};
use crate::{
    commands::changing::rollout,
    output::{one_line, word},
    time,
};
use kat_client::KeyedItem;
use kat_types::{
    api::{
        AVAILABLE, ApiTime, Condition, DATA_LOST_CONDITION, DISK_PRESSURE, DRAIN_BLOCKED, Event,
        EventKind, HOST_PORT_IN_USE, HOST_PORT_NOT_ALLOWED, Health, InstanceItem, InstancePhase,
        NodeItem, NodePhase, ObjectKind, ROLLED_BACK, STORE_EPOCH_REFUSED, WorkloadItem,
        WorkloadPhase, other_image,
    },
    reason::{EventReason, Reason},
};

/// Most instances that are described one by one.
const INSTANCES: usize = 12;

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
    fn tell_drains(&mut self, conditions: &[Condition], drained: &[NodeItem]) {
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
            self.try_next(format!("katcall uncordon {name} ends the drain"));
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
    matches!(reason, Reason::ImageNotPinned | Reason::ControllerMissing)
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
    story.tell_drains(&status.conditions, drained);
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
            let reason = match condition.kind.as_str() {
                DRAIN_BLOCKED => Reason::DrainBlocked.word(),
                _ if stalled_at_first(&condition.reason, item) => {
                    Reason::FirstVersionStalled.word()
                }
                _ => of_instances(&condition.reason),
            };
            story.add_reason("", reason, &condition.message, &names);
        }
    }
    for instance in troubled {
        tell_instance(&mut story, instance, &instance.metadata.name);
    }
    if status.phase == WorkloadPhase::Stalled {
        story.try_next(reasons::after_stall().to_owned());
    }
    if status.paused && status.phase != WorkloadPhase::Paused {
        story.add_reason("", Reason::Paused.word(), "", &names);
    }
    for condition in notes.into_iter().filter(|condition| holds_up(condition)) {
        story.add_reason("", &condition.reason, &condition.message, &names);
    }
    finish(&mut story, status.phase == WorkloadPhase::Running);
    let mut warnings = events.iter().filter(|event| is_warning(event));
    let warned = warnings.find(|event| !is_over(event, &events));
    let warned = warned.and_then(|event| instance_of(event, instances));
    let names = warned.map_or(names, instance_names);
    story.lately(&events, now, &names)
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
    let mut story = WhyReport {
        state: format!("instance {namespace}/{name} {}", instance_state(item, now)),
        wanted: if leaves {
            format!(
                "that it ends; it was slot {} of {}",
                status.slot, status.workload
            )
        } else {
            format!(
                "that it runs {} as slot {} of {}, generation {}",
                status.image, status.slot, status.workload, status.generation
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
            story.try_next(names.fill(
                "make room on another machine, move the data with katcall volume move, or stop what cannot leave with katcall drain {node} --force",
            ));
        }
    }
    if !status.reason.is_empty() {
        story.add_reason("", &status.reason, &status.message, &names);
    }
    for condition in status.conditions.iter().filter(|one| holds_up(one)) {
        story.add_reason("", &condition.reason, &condition.message, &names);
    }
    finish(&mut story, status.phase == NodePhase::Ready);
    story.lately(&events, now, &names)
}

/// Ensures that the text is never empty.
fn finish(story: &mut WhyReport, well: bool) {
    if !story.because.is_empty() {
        return;
    }
    story.because.push(if well {
        "no problem is known".to_owned()
    } else {
        "it progresses, and reports nothing else".to_owned()
    });
}

#[cfg(test)]
mod tests;
