//! Derives the text of `katcall why` from the API's responses. Pure.

use jiff::Timestamp;
use serde::Serialize;

use super::{
    event_reasons::event_explanation,
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
        NodeItem, NodePhase, ObjectKind, ROLLED_BACK, WorkloadItem, WorkloadPhase,
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
    /// The causes; empty where nothing holds it up.
    pub(crate) because: Vec<String>,
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
            None => format!("it says {reason}"),
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
        if !self.because.contains(&told) {
            self.because.push(told);
        }
        if let Some(next) = known.map(|known| names.fill(known.next)) {
            self.try_next(next);
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
        let latest = events.iter().position(is_warning);
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

pub(crate) fn of_workload(
    item: &WorkloadItem,
    instances: &[InstanceItem],
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
            "the leader has not looked at generation {} yet",
            item.metadata.generation
        ));
        story.try_next("katcall status says whether a machine leads".to_owned());
    }
    let troubled: Vec<&InstanceItem> = instances
        .iter()
        .filter(|instance| !instance.status.reason.is_empty())
        .collect();
    for condition in &status.conditions {
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
    finish(&mut story, status.phase == WorkloadPhase::Running);
    let warned = events.iter().find(|event| is_warning(event));
    let warned = warned.and_then(|event| instance_of(event, instances));
    let names = warned.map_or(names, instance_names);
    story.lately(&events, now, &names)
}

fn wanted_of_workload(item: &WorkloadItem, image: &str) -> String {
    if item.status.phase == WorkloadPhase::Deleting {
        return "nothing: it is to go".to_owned();
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
fn holds_up(condition: &Condition) -> bool {
    let bad_when_true = [
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

/// Such as `on n1 runs for 5m, started again 3 times`.
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
        InstancePhase::Starting => "starts",
        InstancePhase::Running => "runs",
        InstancePhase::Restarting => "is between two starts",
        InstancePhase::Stopping => "is being stopped",
        InstancePhase::Stopped => "is stopped",
        InstancePhase::Failed => "has failed",
        InstancePhase::Succeeded => "has ended well",
        InstancePhase::Unknown => "is not known of",
    };
    let health = match status.health {
        Health::Healthy => ", healthy",
        Health::Unhealthy => ", not healthy",
        Health::PendingCheck => ", its probe has not said yet",
        Health::NotApplicable => "",
    };
    let again = match status.restarts {
        0 => String::new(),
        1 => ", started again once".to_owned(),
        count => format!(", started again {count} times"),
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
        image: &status.image,
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

pub(crate) fn of_node(item: &NodeItem, events: Vec<Event>, now: Timestamp) -> WhyReport {
    let (_, name) = item.key();
    let status = &item.status;
    let heard = status.last_heartbeat.map_or_else(
        || "it has not reported yet".to_owned(),
        |then| format!("its last report came {} ago", time::age(now, then)),
    );
    let mut story = WhyReport {
        state: format!("node {name} is {}: {heard}", word(&status.phase)),
        wanted: if item.spec.draining {
            "that it is empty: it is being drained".to_owned()
        } else {
            "that it takes work".to_owned()
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
        "nothing holds it up".to_owned()
    } else {
        "it is on its way, and says nothing else".to_owned()
    });
}

#[cfg(test)]
mod tests;
